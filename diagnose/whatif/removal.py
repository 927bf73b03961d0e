"""Replay a job with some of its components removed, and share the lost time out among them.

Enters: observed blocks and `Components`. Leaves: `Gains`. Costs one replay with launch delays for each set of components
looked at: two for each component that exists, and 2^n for the Shapley shares of the n that matter (n at most 6; on large
jobs on an even sample of the steps).
"""

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from diagnose.model.components import COMPONENTS, Components, Gains
from diagnose.model.optype import P2P, Op
from diagnose.model.trace import Seconds
from diagnose.whatif.components import SLOW_WHOLE_STEP_RATIO, lower_median
from diagnose.whatif.observed import Observed
from diagnose.whatif.replay import replay

#: A component matters when removing it, alone or last, gives back this part of the step.
MATERIAL_SHARE = 0.005
#: A component whose seconds, even if all lay on the critical path, stay below this part of the time is not looked at.
NEGLIGIBLE_SHARE = 1e-3
#: Components shared out by Shapley values at most; the rest of the lost time is unexplained.
MAX_PLAYERS = 6
#: Operations replayed for the Shapley shares at most; larger jobs are sampled by steps.
MAX_SHAPLEY_OPS = 750_000
#: A transfer is slow beyond this many times the usual upper end (95%) of its type on an ordinary link, and by seconds enough.
SLOW_TRANSFER_RATIO = 3.0
#: Steps from which it is learned what is usual on a link.
MAX_LINK_STEPS = 16
#: A link is slow as a whole when its median is this many times that of an ordinary link.
SLOW_LINK_RATIO = 1.5
#: A launch delay, or time between steps, that no job is without: part of the step (1% before reduce-scatter in a production job).
ORDINARY_SHARE = 0.01
#: Launch delays up to this many times the usual one of their type are ordinary.
ORDINARY_DELAY_RATIO = 3.0

_COMPUTES = (int(Op.FORWARD), int(Op.BACKWARD))


class Removal:
    """Own times and launch delays of every block with any set of components removed.

    Parameters
    ----------
    observed : sequence of Observed
    components : Components
    n_stages : int
    between_s : ndarray of float64, shape (n_steps,)
        Time between each step and the next, seconds, in the order of the blocks; 0 where not known.
    """

    def __init__(
        self, observed: Sequence[Observed], components: Components, *, n_stages: int, between_s: Seconds
    ) -> None:
        self.observed = observed
        self.components = components
        self.n_stages = n_stages
        self.between_s = between_s
        self._total_s = sum(float(o.block.end_s.max(axis=(0, 2)).sum()) for o in observed)
        step_s = self._total_s / len(components.steps)
        self._ordinary_between_s = min(float(np.median(between_s)), ORDINARY_SHARE * step_s)
        self._optimizer_s = self._slow_optimizers()
        self._transfer_s = [_transfer_excess(o) for o in observed]
        self._delay_s = [_delay_excess(o) for o in observed]
        self._stage_ratio = components.typical_s.mean(axis=1, keepdims=True) / components.typical_s
        weight = components.microbatch_ratio
        there = ~np.isnan(components.compute_s).all(axis=1)
        self._microbatch_mean = np.where(there, weight, 0.0).sum(axis=(1, 3)) / np.maximum(there.sum(axis=(1, 3)), 1)

    def present(self) -> list[str]:
        """List the components that this job has at all."""
        c = self.components
        there = {
            "stage": c.typical_s.shape[1] > 1,
            "worker": bool(c.slow_workers.any()),
            "microbatch": bool((c.microbatch_ratio != 1.0).any()),
            "step": bool((c.step_ratio > SLOW_WHOLE_STEP_RATIO).any()),
            "pause": float(c.pause_s.max(axis=-1).sum()) > NEGLIGIBLE_SHARE * self._total_s,
            "transfer": self._worth_looking(self._transfer_s),
            "input-delay": self._worth_looking([d["input-delay"] for d in self._delay_s]),
            "start-delay": self._worth_looking([d["start-delay"] for d in self._delay_s]),
            "launch-delay": self._worth_looking([d["launch-delay"] for d in self._delay_s]),
            "between-steps": bool((self.between_s > self._ordinary_between_s).any()),
        }
        return [name for name in COMPONENTS if there[name]]

    def _worth_looking(self, excess_s: Sequence[dict[int, Seconds]]) -> bool:
        """Say whether the seconds on the worst lane of each operation add up to anything that could matter."""
        total = sum(float(e.max(axis=-1).sum()) for of_block in excess_s for e in of_block.values())
        return total > NEGLIGIBLE_SHARE * self._total_s

    def step_times(self, removed: Iterable[str], pick: Sequence[slice] | None = None) -> Seconds:
        """Replay all steps (or those picked, one slice a block) without some components: seconds, shape (n_steps,)."""
        gone = frozenset(removed)
        times = []
        first = 0
        for i, o in enumerate(self.observed):
            n_steps = len(o.block.steps)
            at = slice(0, n_steps) if pick is None else pick[i]
            own, delay = self._without(i, gone, first, at)
            replayed = replay(o.graph, own, delay)
            between = self.between_s[first : first + n_steps]
            if "between-steps" in gone:
                between = np.minimum(between, self._ordinary_between_s)
            between = between[at]
            times.append(np.broadcast_to(replayed, (len(between), 1))[:, 0] + between)
            first += n_steps
        return np.concatenate(times)

    def _without(self, i: int, gone: frozenset[str], first: int, at: slice) -> tuple[list[Seconds], list[Seconds]]:
        """Give own times and launch delays of one block without some components."""
        o = self.observed[i]
        own, delay = [_cut(array, at) for array in o.own], [_cut(array, at) for array in o.delay]
        steps = slice(first + at.start, first + at.stop, at.step)
        touched = gone & {"stage", "worker", "microbatch", "step", "pause"}
        if touched:
            nodes = o.block.nodes
            for node in np.flatnonzero(np.isin(nodes.op, _COMPUTES)).tolist():
                direction = int(nodes.op[node] == Op.BACKWARD)
                stage = int(nodes.stage[node])
                virtual = max(int(nodes.chunk[node]), 0) * self.n_stages + stage
                own[node] = self._compute(own[node], direction, virtual, int(nodes.microbatch[node]), steps, gone)
            if "worker" in gone:
                for node in np.flatnonzero(nodes.op == Op.OPTIMIZER).tolist():
                    if node in self._optimizer_s[i]:
                        own[node] = np.minimum(own[node], _cut(self._optimizer_s[i][node], at))
        if "transfer" in gone:
            for node, excess in self._transfer_s[i].items():
                own[node] = own[node] - excess[at]
        for name in gone & {"input-delay", "start-delay", "launch-delay"}:
            for node, excess in self._delay_s[i][name].items():
                delay[node] = delay[node] - excess[at]
        return own, delay

    def _compute(
        self, own: Seconds, direction: int, virtual: int, microbatch: int, steps: slice, gone: frozenset[str]
    ) -> Seconds:
        """Give one compute node's durations without some components; pauses are seconds, the rest is factors."""
        c = self.components
        pause = c.pause_s[direction, virtual, microbatch, steps]
        work = own - pause
        if "stage" in gone:
            work = work * self._stage_ratio[direction, virtual]
        if "worker" in gone and c.slow_workers[:, virtual % self.n_stages].any():
            work = work / c.worker_ratio[direction, virtual, steps]
        if "microbatch" in gone:
            work = work * (
                self._microbatch_mean[direction, steps, None] / c.microbatch_ratio[direction, microbatch, steps]
            )
        if "step" in gone:
            ratio = c.step_ratio[direction, steps, None]
            work = np.where(ratio > SLOW_WHOLE_STEP_RATIO, work / ratio, work)
        return work if "pause" in gone else work + pause

    def _slow_optimizers(self) -> list[dict[int, Seconds]]:
        """Give the peers' optimizer time for the optimizers of slow workers, by node of each block; (n_steps, n_dp)."""
        found: list[dict[int, Seconds]] = []
        for o in self.observed:
            nodes = o.block.nodes
            of_block: dict[int, Seconds] = {}
            for node in np.flatnonzero(nodes.op == Op.OPTIMIZER).tolist():
                slow = self.components.slow_workers[:, nodes.stage[node]]
                if slow.any():
                    peers = lower_median(o.own[node], axis=1)[:, None]
                    of_block[node] = np.where(slow, np.maximum(peers, 0.0), np.inf)
            found.append(of_block)
        return found

    def gains(self, together: Iterable[Sequence[str]] = ()) -> Gains:
        """Replay without each component, without all others, and share the lost time out.

        `together` are components that one cause stands for; they are also removed together, under their names joined by `+`.

        Source of the shares: Shapley (1953), over step time as the value of a set of components.
        """
        names = self.present()
        sets = {"+".join(names): frozenset(names) for names in together if len(names) > 1}
        everything = frozenset(names)
        wanted = [*self._single_sets(names), *(gone & everything for gone in sets.values())]
        wanted += [everything - gone for gone in sets.values()]
        distinct = list(dict.fromkeys(wanted))
        by_step = dict(zip(distinct, self._replay_all(distinct), strict=True))
        step_s = {gone: float(times.mean()) for gone, times in by_step.items()}
        replayed, clean = step_s[frozenset()], step_s[everything]
        alone = {name: step_s[frozenset({name})] for name in names}
        last = {name: step_s[everything - {name}] for name in names}
        worth = {name: max(replayed - alone[name], last[name] - clean) / replayed for name in names}
        players = [name for name in sorted(names, key=lambda n: -worth[n]) if worth[name] > MATERIAL_SHARE][
            :MAX_PLAYERS
        ]
        recorded = float(
            sum(float(o.block.end_s.max(axis=(0, 2)).sum()) for o in self.observed) + self.between_s.sum()
        ) / len(self.components.steps)
        for key, gone in sets.items():
            alone[key], last[key] = step_s[gone & everything], step_s[everything - gone]
        return Gains(
            recorded_s=recorded,
            replayed_s=replayed,
            clean_s=clean,
            replayed_steps_s=by_step[frozenset()],
            alone_steps_s={name: by_step[frozenset({name})] for name in names}
            | {key: by_step[gone & everything] for key, gone in sets.items()},
            alone_s=alone,
            last_s=last,
            share=self._shapley(players, names),
            blame_s=self._blame(),
        )

    def _blame(self) -> dict[str, Seconds]:
        """Add up the seconds of each component by worker, mean a step, shape (n_dp, n_stages), on the critical path or not."""
        c, n_steps = self.components, len(self.components.steps)
        n_dp = c.compute_s.shape[-1]
        found = {}
        for name, seconds in (
            ("worker", np.nan_to_num(c.compute_s) * (1.0 - 1.0 / c.worker_ratio[:, :, None])),
            ("pause", c.pause_s),
        ):
            by_virtual = seconds.sum(axis=(0, 2, 3)) / n_steps  # (n_virtual, n_dp)
            found[name] = by_virtual.reshape(-1, self.n_stages, n_dp).sum(axis=0).T
        delays = [(name, [d[name] for d in self._delay_s]) for name in ("input-delay", "start-delay", "launch-delay")]
        for name, of_blocks in [("transfer", self._transfer_s), *delays]:
            found[name] = np.zeros((n_dp, self.n_stages))
            for o, of_block in zip(self.observed, of_blocks, strict=True):
                for node, excess in of_block.items():
                    found[name][:, int(o.block.nodes.stage[node])] += excess.sum(axis=0) / n_steps
        return found

    def _replay_all(self, sets: Sequence[Iterable[str]], pick: Sequence[slice] | None = None) -> list[Seconds]:
        """Replay without each of several sets, side by side; the result does not depend on how many at once."""
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(lambda gone: self.step_times(gone, pick), sets))

    @staticmethod
    def _single_sets(names: Sequence[str]) -> list[frozenset[str]]:
        """List the empty set, each component, everything, and everything but each component, once."""
        everything = frozenset(names)
        sets = [frozenset[str](), everything]
        sets += [frozenset({name}) for name in names] + [everything - {name} for name in names]
        return list(dict.fromkeys(sets))

    def _shapley(self, players: Sequence[str], names: Sequence[str]) -> dict[str, float]:
        """Share the lost time out: each component's part averaged over all orders of removing them.

        Components that do not matter are one more player; its part is unexplained and is not listed.
        """
        rest = [name for name in names if name not in players]
        all_players: list[tuple[str, ...]] = [(name,) for name in players] + ([tuple(rest)] if rest else [])
        pick = self._sample_steps()
        orders = range(len(all_players) + 1)
        coalitions = [m for size in orders for m in itertools.combinations(range(len(all_players)), size)]
        removed = [[name for member in members for name in all_players[member]] for members in coalitions]
        worth = {
            frozenset(members): -float(times.sum())
            for members, times in zip(coalitions, self._replay_all(removed, pick), strict=True)
        }
        n = len(all_players)
        total = worth[frozenset(range(n))] - worth[frozenset()]
        if n == 0 or not players or total <= 0:
            return {}
        shares: dict[str, float] = {}
        for player, name in enumerate(players):
            part = 0.0
            others = [other for other in range(n) if other != player]
            for size in range(n):
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                for members in itertools.combinations(others, size):
                    before = frozenset(members)
                    part += weight * (worth[before | {player}] - worth[before])
            shares[name] = part / total
        return shares

    def _sample_steps(self) -> list[slice]:
        """Choose the steps on which the Shapley shares are taken: all, or evenly spread ones on a large job."""
        n_ops = sum(o.block.start_s.size for o in self.observed)
        stride = -(-n_ops // MAX_SHAPLEY_OPS)
        return [slice(0, len(o.block.steps), stride) for o in self.observed]


def _cut(array: Seconds, at: slice) -> Seconds:
    """Take some steps of an array of shape (n_steps or 1, n_dp or 1)."""
    return array[at] if array.shape[0] > 1 else array


def _transfer_excess(o: Observed) -> dict[int, Seconds]:
    """Say how much longer than on an ordinary link each transfer took, by node; only where it stands out; seconds."""
    nodes = o.block.nodes
    found: dict[int, Seconds] = {}
    step_s = float(np.mean(o.block.end_s.max(axis=(0, 2))))
    for op in (*P2P, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.SEPARATE, Op.EMBEDDING, Op.CLIP, Op.LAYERNORM):
        of_type = [n for event in o.graph.events for n in event.completes if nodes.op[n] == op]
        if not of_type:
            continue
        by_stage: dict[int, list[int]] = {}
        for node in of_type:
            by_stage.setdefault(int(nodes.stage[node]), []).append(node)
        stride = -(-len(o.block.steps) // MAX_LINK_STEPS)
        stacked = {stage: np.stack([o.own[n][::stride] for n in at]) for stage, at in by_stage.items()}
        medians = np.stack([np.median(s, axis=(0, 1)) for s in stacked.values()])  # (stages, n_dp)
        tops = np.stack([np.quantile(s, 0.95, axis=(0, 1)) for s in stacked.values()])
        usual = float(np.maximum(lower_median(medians.reshape(1, -1), axis=1)[0], 0.0))
        top = float(np.maximum(lower_median(tops.reshape(1, -1), axis=1)[0], usual))
        for row, (_, at) in enumerate(by_stage.items()):
            slow_link = medians[row] > SLOW_LINK_RATIO * usual + 1e-4 * step_s
            for node in at:
                own = o.own[node]
                excess = np.where(own > SLOW_TRANSFER_RATIO * top + 1e-3 * step_s, own - usual, 0.0)
                excess = np.where(slow_link, np.maximum(excess, np.minimum(medians[row] - usual, own - usual)), excess)
                excess = _recorded(o, node, np.maximum(excess, 0.0))
                if excess.any():
                    found[node] = excess
    return found


def _recorded(o: Observed, node: int, excess: Seconds) -> Seconds:
    """Leave out what was filled in: it is nobody's time."""
    return excess if o.block.filled is None else np.where(o.block.filled[node], 0.0, excess)


def _delay_excess(o: Observed) -> dict[str, dict[int, Seconds]]:
    """Say how much longer than usual each launch delay was, by class and node; seconds.

    Before forwards of the first stage the usual delay is that before computes elsewhere: a loader that is always slow
    leaves no ordinary delay there to compare with.
    """
    nodes = o.block.nodes
    simulated = [n for event in o.graph.events for n in event.members]
    computes = [n for n in simulated if nodes.op[n] in _COMPUTES]
    elsewhere = [n for n in computes if not (nodes.op[n] == Op.FORWARD and nodes.stage[n] == 0)] or computes
    step_s = float(np.mean(o.block.end_s.max(axis=(0, 2))))
    usual_compute = max(float(np.median(np.stack([np.median(o.delay[n]) for n in elsewhere]))), 0.0)
    found: dict[str, dict[int, Seconds]] = {"input-delay": {}, "start-delay": {}, "launch-delay": {}}
    for node in simulated:
        is_input = nodes.op[node] == Op.FORWARD and nodes.stage[node] == 0
        # A delay that is there in every step is no less lost; what no job is without is short.
        usual = min(max(float(np.median(o.delay[node])), 0.0), max(usual_compute, ORDINARY_SHARE * step_s))
        if is_input:
            usual = min(usual, usual_compute) if usual_compute > 0 else 0.0
        excess = np.where(o.delay[node] > ORDINARY_DELAY_RATIO * usual + 1e-4, o.delay[node] - usual, 0.0)
        excess = _recorded(o, node, excess)
        if not excess.any():
            continue
        kind = "input-delay" if is_input else "start-delay" if not o.graph.waits[node] else "launch-delay"
        found[kind][node] = excess
    return found
