"""Computes queued behind communication in flight: seconds in which a compute waits for a transfer of its own worker."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.optype import SENDS, Op, of_types
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Nodes, Seconds
from diagnose.whatif.batches import HELD_SHARE
from diagnose.whatif.components.component import Component, Extent, Members, Part
from diagnose.whatif.computes import gather_seconds, iterate_blocks, place_of
from diagnose.whatif.contention import (
    WaitedFor,
    Waits,
    are_own_gradients,
    late_tolerance,
    measure_late_starts,
    measure_waits,
)
from diagnose.whatif.levels import Changing
from diagnose.whatif.observed import Observed, are_gathered_anew
from diagnose.whatif.waits import WaitGraph, add_waits

#: Most of the waits are for parameters, always.
ON_PURPOSE_SHARE = 0.5
#: Waits are for slow transfers where this part of what they cost is gone without these, as the rule has it.
OF_SLOW_SHARE = 0.75
#: A transfer stands out by so much of its time, where it takes so many times as long as is usual for its worker; waits are no
#: contention where most of their seconds are for such.
FAR_SHARE = BEHIND_SHARE = 0.5
FAR_RATIO = 2.0
#: Of fewer transfers that nothing waits for nobody can say how long they take by themselves.
MIN_ALONE = 10
TINY_S = 1e-12


class QueuePart(Part):
    """What computes wait for is in the graph where it can be: then a scenario with shorter transfers has shorter waits."""

    waits_in_graph = True

    def find(self) -> None:
        """Take the waits inside computes from the breakdown, and put waits into the graphs."""
        breakdown, observed = self.job.breakdown, self.job.observed
        self.wait_s = breakdown.queue_wait_s
        waited_for = breakdown.waited_for or ({},) * len(observed)
        self._waits: list[WaitGraph | None] = []
        self._sooner: list[dict[int, Seconds]] = []
        for (steps, o), of_block in zip(iterate_blocks(observed), waited_for, strict=True):
            inside_s: dict[int, Seconds] = {}
            if self.wait_s is not None:
                nodes = o.block.nodes
                inside_s = {n: self.wait_s[(*place_of(nodes, n, self.job.n_stages), steps)] for n in of_block}
            self._waits.append(add_waits(o, of_block, inside_s))
            self._sooner.append(_measure_sooner(o, of_block))

    def ease_block(self, i: int, own: Changing, delay: Changing, at: slice, extent: Extent) -> None:
        """Let each part of the gradients begin when that part of the backward is done, which stands still no more."""
        super().ease_block(i, own, delay, at, extent)
        stage = self.job.observed[i].block.nodes.stage
        for node, sooner_s in self._sooner[i].items():
            part_s = extent.part(Members((int(stage[node]),), across_dp=False), sooner_s[at])
            delay[node] = np.maximum(delay[node] - part_s, 0.0)

    def waits(self, i: int) -> WaitGraph | None:
        """Give the graph in which computes wait for the communication in flight."""
        return self._waits[i]


@dataclasses.dataclass(frozen=True, slots=True)
class QueueWaits:
    """How long computes waited for communication in flight."""

    #: `inside_s`, `before_s`: axes as in `Breakdown`; seconds inside computes, and before them; None where
    #: there are none.
    inside_s: Seconds | None
    before_s: Seconds | None
    #: One a block: what each of them waited for, by node.
    by: tuple[dict[int, WaitedFor], ...]
    #: By how many standard deviations more computes wait than by chance; 0 where none does.
    deviations: float
    #: Part of the waits that are for a gather before the end of which the same compute hardly ever begins.
    on_purpose: float
    #: The same of a send, or of a reduction where parameters are gathered anew.
    blocking: float
    #: Part of the seconds that are waited for transfers that stand out among their like.
    behind_slow: float


def find_queue_waits(
    observed: Sequence[Observed],
    shape: tuple[int, ...],
    n_stages: int,
    variants: Seconds | None,
    paused_s: Seconds | None = None,
    excesses: Sequence[Mapping[int, Seconds]] = (),
) -> QueueWaits:
    """Find the computes that communication in flight made long, or late; `variants` and `paused_s` as for `measure_waits`.

    `excesses`, by block, say what transfers took beyond ordinary ones, as `transfer_excess` has it.
    """
    long, of_long = measure_waits(observed, n_stages=n_stages, variants=variants, paused_s=paused_s)
    late, of_late = measure_late_starts(observed, n_stages=n_stages)
    of_both = [_count_behind(observed, waits, excesses) for waits in (long, late)]
    if of_both[0][0] > BEHIND_SHARE * of_both[0][1]:
        # What stops a process stops what it sends, too: these computes did not wait, they stood still.
        long, of_long, of_both[0] = [Waits({}, {}) for _ in observed], 0.0, (0.0, 0.0)
    inside_s, before_s = (
        gather_seconds(observed, [of_block.seconds for of_block in of_blocks], shape, n_stages)
        for of_blocks in (long, late)
    )
    by = tuple(_merge_waits(*pair) for pair in zip(long, late, strict=True))
    behind_s, all_s = (sum(pair) for pair in zip(*of_both, strict=True))
    on_purpose, blocking = (_share_always(observed, by, which) for which in (_find_gathers, _find_blocking))
    return QueueWaits(
        inside_s, before_s, by, max(of_long, of_late), on_purpose, blocking, behind_s / max(all_s, TINY_S)
    )


def _count_behind(
    observed: Sequence[Observed], waits: Sequence[Waits], excesses: Sequence[Mapping[int, Seconds]]
) -> tuple[float, float]:
    """Add up the seconds waited for transfers that are far longer than ordinary ones, and all, that are waited for."""
    behind_s = all_s = 0.0
    for o, of_block, excess in zip(observed, waits, excesses, strict=bool(excesses)):
        nodes, took_s = o.block.nodes, o.block.end_s - o.block.start_s
        usual: dict[tuple[int, int], Seconds] = {}  # by type and stage, shape (n_dp,)
        for node, waited_for in of_block.by.items():
            seconds = np.broadcast_to(of_block.seconds[node], o.block.start_s[node].shape)
            for source, at in waited_for.items():
                all_s += float(seconds[at].sum())
                if source in excess:
                    like = int(nodes.op[source]), int(nodes.stage[source])
                    if like not in usual:
                        usual[like] = np.median(took_s[(nodes.op == like[0]) & (nodes.stage == like[1])], axis=(0, 1))
                    is_far = excess[source] > FAR_SHARE * took_s[source]
                    # What takes as long while nothing waits for it is slow by itself, and no process stood still.
                    alone_s = took_s[source][~at]
                    usual_s = np.maximum(usual[like], np.median(alone_s) if len(alone_s) >= MIN_ALONE else 0.0)
                    behind_s += float(seconds[at & is_far & (took_s[source] > FAR_RATIO * usual_s)].sum())
    return behind_s, all_s


def _measure_sooner(o: Observed, waited_for: Mapping[int, Mapping[int, Bools]]) -> dict[int, Seconds]:
    """Say how much less late each further part of gradients were if its backward had not stood still behind the parts before.

    By node, seconds of shape (n_steps, n_dp): it is there when as much of the backward is done, and is moved after the one before.
    """
    block, nodes, found = o.block, o.block.nodes, dict[int, Seconds]()
    for node, by in waited_for.items():
        parts = np.flatnonzero(nodes.stage == nodes.stage[node])
        parts = parts[are_own_gradients(nodes, parts, node)]
        parts = parts[(block.start_s[parts] < block.end_s[node]).mean(axis=(1, 2)) >= HELD_SHARE]
        first, *others = parts[np.argsort(block.start_s[parts].mean(axis=(1, 2)), kind="stable")].tolist() or [-1]
        held = np.any([at for source, at in by.items() if source in others], axis=0)
        stood_s, moved_s = block.end_s[first] - block.start_s[first], block.end_s[first]
        for part in others if held.any() else ():
            ready_s = block.start_s[part] - stood_s
            late_s = np.maximum(ready_s - moved_s, 0.0)
            found[part] = np.where(held, np.maximum(o.delay[part] - late_s, 0.0), 0.0)
            moved_s = (moved_s + late_s).max(axis=1, keepdims=True) + o.own[part]
            stood_s = stood_s + block.end_s[part] - block.start_s[part]
    return found


def _find_gathers(nodes: Nodes) -> Bools:
    """Mark the gathers of parameters."""
    return np.asarray(nodes.op == Op.ALL_GATHER)


def _find_blocking(nodes: Nodes) -> Bools:
    """Mark what a program may wait for though no compute needs it: sends, and reductions where parameters are gathered anew."""
    reduced: Bools = np.asarray(nodes.op == Op.REDUCE_SCATTER)
    return of_types(nodes.op, SENDS) | (reduced & are_gathered_anew(nodes))


def _share_always(
    observed: Sequence[Observed], by: Sequence[dict[int, WaitedFor]], which: Callable[[Nodes], Bools]
) -> float:
    """Say which part of the waits is for some operations before the end of which the same compute hardly ever begins."""
    n_waits = n_always = 0
    for o, of_block in zip(observed, by, strict=True):
        asked = which(o.block.nodes)
        for node, waited_for in of_block.items():
            begins_s = o.block.start_s[node] + late_tolerance(o, node)
            for source, at in waited_for.items():
                n_waits += int(at.sum())
                always = asked[source] and ((begins_s >= o.block.end_s[source]).mean() >= HELD_SHARE)
                n_always += int(at.sum()) if always else 0
    return n_always / max(n_waits, 1)


def _merge_waits(long: Waits, late: Waits) -> dict[int, WaitedFor]:
    """Bring together what made computes long and what made them late, by node."""
    merged = Waits({}, {})
    for waits in (long, late):
        for node, waited_for in waits.by.items():
            merged.add(node, waits.seconds[node], waited_for)
    return merged.by


def _is_excused(features: Features, explained: Collection[str]) -> bool:
    """Say whether computes wait for their parameters, and always, as the job is made; or for transfers that are slow."""
    purpose, slow = (features.get(f"queue.{name}") for name in ("on_purpose_share", "of_slow_share"))
    is_on_purpose = purpose is not None and (purpose.value or 0.0) >= ON_PURPOSE_SHARE
    return is_on_purpose or ("transfer" in explained and slow is not None and (slow.value or 0.0) >= OF_SLOW_SHARE)


COMPONENT = Component(
    "queue",
    QueuePart,
    inside=StallKind.QUEUE,
    before=StallKind.QUEUE,
    traits=Traits(is_excused=_is_excused),
)
