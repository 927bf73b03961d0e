"""Other work that is uneven: rows of types that the format does not name, far longer on one worker, or in some steps, than usual.

What they take everywhere belongs to the job: replays keep it, and nobody is blamed for it.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.other_work import OtherWork
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence, Seconds
from diagnose.numerics.robust import fill_nan, lower_median, nan_median, upper_stretch
from diagnose.whatif.components.attribution import TINY_S
from diagnose.whatif.components.component import ByNode, Component, Part
from diagnose.whatif.delays import SHORTEST_S
from diagnose.whatif.observed import Observed
from diagnose.whatif.occupied import UNEVEN_RATIO, find_busy, measure_types

#: Fewer stages are no measure of each other.
MIN_STAGES = 3


class OtherWorkPart(Part):
    """Without it such work takes as long as usual at its place in the step, where there is any."""

    def find(self) -> None:
        """Find what is far longer than usual before each operation, beside what waits for that, and between steps."""
        around_s = np.concatenate([_measure_around(o, o.others, self.job.n_stages) for o in self.job.observed])
        self._excess_s = find_excess(around_s)
        #: Between steps everybody waits for the last.
        self._lost_s = around_s.max(axis=1) - (around_s - self._excess_s).max(axis=1)
        for o, late_s in zip(self.job.observed, self.late_s, strict=True):
            for node, excess in _find_uneven(o).items():
                late_s[node] = np.maximum(late_s.get(node, 0.0), excess)

    def ease_between(self, between_s: Seconds, steps: slice) -> Seconds:
        """Leave between steps what such work usually takes there."""
        known = self.job.gap_s.get(StallKind.OTHER)
        return between_s if known is None else between_s - np.minimum(self._lost_s, known)[steps]

    def blame(self) -> Seconds | None:
        """Add up the seconds by worker, those between steps too."""
        found = super().blame()
        if not self._excess_s.any():
            return found
        between = self._excess_s.sum(axis=0).reshape(self.job.n_dp, self.job.n_stages) / self.job.n_steps
        return np.asarray(between if found is None else found + between)

    def worst_s(self) -> float:
        """Add up its seconds on the worst lane of each operation, and between steps."""
        return super().worst_s() + float(self._lost_s.sum())


def find_excess(busy_s: Seconds) -> Seconds:
    """Say by how many seconds work is longer than usual, where it stands out; shapes (n_steps, n_dp), or (n_steps, n_workers).

    Usual is what the quicker half of the dp ranks that have any take in their usual step that has any: who has none, as all but
    the one that writes the log, is no measure. Where it gets longer for a stretch of steps these are not usual, even if most are.
    """
    known_s = np.where(busy_s > 0, busy_s, np.nan)
    longer = upper_stretch(np.sqrt(np.where(busy_s > 0, busy_s, fill_nan(nan_median(known_s, axis=0)))).T).T
    usual_s = nan_median(np.where(longer, np.nan, known_s), axis=0)
    usual_s = usual_s[np.isfinite(usual_s)]
    if not len(usual_s):
        return np.zeros(busy_s.shape)
    least_s = float(lower_median(usual_s))
    return np.where(busy_s > UNEVEN_RATIO * least_s + SHORTEST_S, busy_s - least_s, 0.0)


def _measure_around(o: Observed, rows: Evidence, n_stages: int) -> Seconds:
    """Say how long rows keep each worker before its step begins and after it has ended: seconds, (n_steps, n_dp x n_stages)."""
    before_s, after_s = np.zeros((2, len(o.block.steps), o.block.n_dp, n_stages))
    if len(rows):
        step = np.searchsorted(o.block.steps, rows.step)
        at = (step, rows.dp, rows.stage)
        np.maximum.at(before_s, at, -rows.start_s)
        np.maximum.at(after_s, at, rows.end_s - o.block.step_ends_s[step])
    return np.asarray((before_s + after_s).reshape(len(o.block.steps), -1))


def _find_uneven(o: Observed) -> ByNode:
    """Say by how much the work before each operation is longer than usual, by node; seconds.

    With one data-parallel rank the other stages are the measure, before the same operation of theirs, if all work is of one type.
    """
    if o.busy is None:
        return {}
    nodes = o.block.nodes
    busy = [n for event in o.graph.events for n in event.members if o.busy[n].any()]
    peers: dict[tuple[int, ...], list[int]] = {}
    compares_stages = o.block.n_dp == 1 and len(np.unique(o.others.op)) == 1
    for n in busy:
        peers.setdefault((int(nodes.op[n]), int(nodes.seq[n])) if compares_stages else (n,), []).append(n)
    found = ByNode()
    for alike in peers.values():
        for group in [alike] if len(alike) >= MIN_STAGES else [[n] for n in alike]:
            excess = find_excess(np.concatenate([_take_of_all(o, n) for n in group], axis=1))
            found |= {
                n: part for n, part in zip(group, np.split(excess, len(group), axis=1), strict=True) if part.any()
            }
    return found


def _take_of_all(o: Observed, node: int) -> Seconds:
    """Say how long such work before an operation lasts: a collective for as long as all of its members are in it.

    That one of these leaves it a little later than others is no uneven work.
    """
    seconds = np.broadcast_to(o.busy[node] if o.busy is not None else 0.0, o.block.start_s[node].shape)
    for barrier in o.graph.barriers.get(node, ()):
        if barrier.across_dp and barrier.groups is not None:
            seconds = barrier.over_group(seconds, np.minimum)
    return seconds


def describe_types(observed: Sequence[Observed], types: Sequence[str], n_stages: int) -> tuple[OtherWork, ...]:
    """Say of each type what it takes of the workers, and of what is uneven."""
    if not any(len(o.others) or o.inside_s for o in observed):
        return ()
    n_steps = sum(len(o.block.steps) for o in observed)
    busy_s = measure_types([(o.block, o.others) for o in observed], len(types), n_stages)
    uneven_s, usual_s = np.zeros(len(types)), np.zeros(len(types))
    for kind in np.unique(np.concatenate([o.others.op for o in observed])).tolist():
        around_s = [_measure_around(o, o.others.take(o.others.op == kind), n_stages) for o in observed]
        excess = find_excess(np.concatenate(around_s))
        seconds = np.where(excess > 0, np.concatenate(around_s), 0.0)
        uneven_s[kind] += seconds.sum() / n_steps
        usual_s[kind] += (seconds - excess).sum() / n_steps
    for o in observed:
        for kind, by_node in o.inside_s.items():
            uneven_s[kind] += sum(float(excess.sum()) for excess in by_node.values()) / n_steps
        uneven = _find_uneven(o)
        busy = find_busy(o.others, o.block) if uneven else None
        if busy is None or o.busy is None:
            continue
        for kind in np.unique(o.others.op).tolist():
            for node, of_type in zip(uneven, busy.within(o.block, o.delay, uneven, kind), strict=True):
                seconds = np.where(uneven[node] > 0, of_type, 0.0)
                usual = 1.0 - uneven[node] / np.maximum(o.busy[node], TINY_S)
                uneven_s[kind] += seconds.sum() / n_steps
                usual_s[kind] += (seconds * usual).sum() / n_steps
    return tuple(
        OtherWork(
            name,
            busy_s[kind],
            float(uneven_s[kind]),
            float(uneven_s[kind] / usual_s[kind]) if usual_s[kind] else 0.0,
            any(kind in o.met for o in observed),
        )
        for kind, name in enumerate(types)
        if busy_s[kind].any() or uneven_s[kind] > 0
    )


COMPONENT = Component(
    "other-work", OtherWorkPart, inside=StallKind.OTHER, before=StallKind.OTHER, traits=Traits(varies=True)
)
