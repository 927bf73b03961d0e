"""Replay a job with some of its components removed, and share the lost time out among them.

Enters: observed blocks and `Components`. Leaves: `Gains`. Costs one replay with launch delays for each set of components
looked at: two for each component that exists, and 2^n for the Shapley shares of the n that matter (n at most 6; on large
jobs on an even sample of the steps).
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.change import Change, Remove, Reschedule, Scale, Spend, Work
from diagnose.model.components import COMPONENTS, Components, Gains
from diagnose.model.optype import Op
from diagnose.model.stalls import Whose
from diagnose.model.trace import Bools, Seconds
from diagnose.statistics.robust import lower_median
from diagnose.whatif.components import SLOW_WHOLE_STEP_RATIO
from diagnose.whatif.contention import late_tolerance
from diagnose.whatif.delays import ORDINARY_SHARE, delay_excess, delay_name, recorded
from diagnose.whatif.graph import Barrier, Graph, add_barriers
from diagnose.whatif.observed import Observed
from diagnose.whatif.replay import replay
from diagnose.whatif.schedule import Rebuilt, rebuild
from diagnose.whatif.transfers import transfer_excess

#: A component matters when removing it, alone or last, gives back this part of the step.
MATERIAL_SHARE = 0.005
#: A component whose seconds, even if all lay on the critical path, stay below this part of the time is not looked at.
NEGLIGIBLE_SHARE = 1e-3
#: Components shared out by Shapley values at most; the rest of the lost time is unexplained.
MAX_PLAYERS = 6
#: Operations replayed for the Shapley shares, and for each candidate of a search, at most; larger jobs are sampled by steps.
MAX_SHAPLEY_OPS = 750_000
#: An optimizer stands out beyond this many deviations, and this part of the usual one.
LONG_OPTIMIZER_DEVIATIONS = 6.0
LONG_OPTIMIZER_RATIO = 0.25
#: Between the quantiles 0.05 and 0.3 of a normal distribution, in standard deviations.
LOW_SPREAD_TO_SIGMA = 1.12

#: On which dp ranks: on all, on none, or an array of shape (n_dp,).
Lanes = Bools | bool

_COMPUTES = (int(Op.FORWARD), int(Op.BACKWARD))
#: The component that a stall inside a compute, or before one, belongs to, by whose doing it is.
INSIDE_OF = {
    Whose.NOBODY: "pause",
    Whose.COLLECTION: "gc-pause",
    Whose.ALLOCATION: "malloc-pause",
    Whose.INPUT: "input-delay",
    Whose.SAVING: "start-delay",
    Whose.WORKER: "worker",
    Whose.TOGETHER: "step",
    Whose.QUEUE: "queue",
}
BEFORE_OF = INSIDE_OF | {Whose.NOBODY: "launch-delay"}
#: Components that change how long a compute takes.
_IN_COMPUTES = frozenset({"queue", "stage", "microbatch", *INSIDE_OF.values()})


class Removal:
    """Own times and launch delays of every block with any set of components removed.

    Parameters
    ----------
    observed : sequence of Observed
    components : Components
    n_stages : int
    between_s : ndarray of float64, shape (n_steps,)
        Time between each step and the next, seconds, in the order of the blocks; 0 where not known.
    tail_s : ndarray of float64, shape (n_steps, n_dp, n_stages), optional
        Seconds of it in which rows say that a worker was busy.
    """

    def __init__(
        self,
        observed: Sequence[Observed],
        components: Components,
        *,
        n_stages: int,
        between_s: Seconds,
        tail_s: Seconds | None = None,
    ) -> None:
        self.observed = observed
        self.components = components
        self.n_stages = n_stages
        self.between_s = between_s
        self.tail_s = tail_s
        self._total_s = sum(float(o.block.end_s.max(axis=(0, 2)).sum()) for o in observed)
        step_s = self._total_s / len(components.steps)
        self._ordinary_between_s = float(np.median(between_s))
        # Where no optimizer was recorded it lies between the steps, with all else that ends one.
        if any((o.block.nodes.op == Op.OPTIMIZER).any() for o in observed):
            self._ordinary_between_s = min(self._ordinary_between_s, ORDINARY_SHARE * step_s)
        self._optimizer_s = self._slow_optimizers()
        self._transfer_s = [transfer_excess(o) for o in observed]
        self._delay_s = self._late_by_component()
        self._end_s = [_long_optimizers(o) for o in observed]
        self._workers_of = [_workers_of(o) for o in observed]
        self._stalled_s = self._stalls_by_component()
        held_by = components.held_by or ({},) * len(observed)
        self._held = [_hold_graph(o, of_block) for o, of_block in zip(observed, held_by, strict=True)]
        self._stage_ratio = components.typical_s.mean(axis=1, keepdims=True) / components.typical_s
        self._microbatch_ratio = weight = components.microbatch_ratio ** (1.0 - components.microbatch_ordinary)
        self._rebuilt: dict[tuple[int, str, int], Rebuilt | None] = {}
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
            "transfer": self._worth_looking(self._transfer_s),
            "between-steps": bool((self.between_s > self._ordinary_between_s).any()),
        }
        for name in COMPONENTS:
            late = [late[name] for late in self._delay_s if name in late]
            ends = self._end_s if name == "end-delay" else []
            hold = float(c.hold_s.max(axis=-1).sum()) if name == "queue" and c.hold_s is not None else 0.0
            seconds = hold + self._stalled_s[name] + self._worst_lanes([*late, *ends])
            there[name] = there.get(name, False) or self._enough(seconds)
        return [name for name in COMPONENTS if there[name]]

    def _worth_looking(self, excess_s: Sequence[dict[int, Seconds]]) -> bool:
        """Say whether the seconds on the worst lane of each operation add up to anything that could matter."""
        return self._enough(self._worst_lanes(excess_s))

    def _worst_lanes(self, excess_s: Sequence[dict[int, Seconds]]) -> float:
        """Add up the seconds on the worst lane of each operation."""
        return sum(float(e.max(axis=-1).sum()) for of_block in excess_s for e in of_block.values())

    def _enough(self, seconds: float) -> bool:
        """Say whether seconds that may all lie on the critical path could matter."""
        return seconds > NEGLIGIBLE_SHARE * self._total_s

    def _stalls_by_component(self) -> dict[str, float]:
        """Add up the stalls of computes on the worst lane of each operation, by component; seconds."""
        stalls = self.components.stalls
        found: dict[str, float] = dict.fromkeys(COMPONENTS, 0.0)
        for seconds, whose, names in (
            (stalls.inside_s, stalls.inside, INSIDE_OF),
            (stalls.before_s, stalls.before, BEFORE_OF),
        ):
            for kind in np.unique(whose[seconds > 0]).tolist():
                found[names[Whose(kind)]] += float(np.where(whose == kind, seconds, 0.0).max(axis=-1).sum())
        return found

    def _late_by_component(self) -> list[dict[str, dict[int, Seconds]]]:
        """Give the launch delays beyond the ordinary, one dict a block: component -> node -> seconds, (n_steps, n_dp)."""
        found: list[dict[str, dict[int, Seconds]]] = []
        first = 0
        for o in self.observed:
            nodes, of_block = o.block.nodes, dict[str, dict[int, Seconds]]()
            steps = slice(first, first + len(o.block.steps))
            first = steps.stop
            for node, excess in delay_excess(o).items():
                if nodes.op[node] not in _COMPUTES:
                    of_block.setdefault(delay_name(o, node), {})[node] = excess
            stalls = self.components.stalls
            for node in np.flatnonzero(np.isin(nodes.op, _COMPUTES)).tolist():
                place = (*self._place(o, node), steps)
                excess = stalls.before_s[place]
                if not excess.any():
                    continue
                whose = stalls.before[place]
                for kind in np.unique(whose[excess > 0]).tolist():
                    of_block.setdefault(BEFORE_OF[Whose(kind)], {})[node] = np.where(whose == kind, excess, 0.0)
            found.append(of_block)
        return found

    def _place(self, o: Observed, node: int) -> tuple[int, int, int]:
        """Say where a compute stands in the arrays of `Components`: direction, virtual stage, microbatch."""
        nodes = o.block.nodes
        virtual = max(int(nodes.chunk[node]), 0) * self.n_stages + int(nodes.stage[node])
        return int(nodes.op[node] == Op.BACKWARD), virtual, int(nodes.microbatch[node])

    def step_times(self, removed: Iterable[str], pick: Sequence[slice] | None = None) -> Seconds:
        """Replay all steps (or those picked, one slice a block) without some components: seconds, shape (n_steps,)."""
        return self.price([Remove(name) for name in removed], pick)

    def price(self, changes: Sequence[Change], pick: Sequence[slice] | None = None) -> Seconds:
        """Replay all steps (or those picked, one slice a block) with some changes: seconds, shape (n_steps,).

        Costs one replay. What several changes do to the same operation is joined: factors multiply, places add up.
        """
        plan = _Plan(changes)
        times = []
        first = 0
        for i, o in enumerate(self.observed):
            n_steps = len(o.block.steps)
            at = slice(0, n_steps) if pick is None else pick[i]
            steps = slice(first + at.start, first + at.stop, at.step)
            own, delay = self._with(i, plan, steps, at)
            held = self._held_by(i, plan)
            graph = o.graph if held is None else held.graph_of(at)
            if plan.schedule is not None and (rebuilt := self._rebuild(i, plan.schedule)) is not None:
                graph, (own, delay) = rebuilt.graph, rebuilt.times(own, delay, plan.schedule)
            replayed = replay(graph, own, delay)
            between = self.between_s[steps]
            if "between-steps" in plan.gone:
                between = np.minimum(between, self._ordinary_between_s)
            spent = plan.spent(len(self.components.steps))[steps]
            times.append(np.broadcast_to(replayed, (len(between), 1))[:, 0] + between + spent)
            first += n_steps
        return np.concatenate(times)

    def sample(self, changes: Sequence[Change]) -> Seconds:
        """Replay an even sample of the steps with some changes: all of them, unless the job is large."""
        return self.price(changes, self._sample_steps())

    def _held_by(self, i: int, plan: "_Plan") -> "_HoldGraph | None":
        """Give the waits for communication in flight of block `i`; under another schedule something else is in flight: none."""
        return None if plan.everywhere("queue") or plan.schedule is not None else self._held[i]

    def _rebuild(self, i: int, change: Reschedule) -> Rebuilt | None:
        """Give block `i` under another schedule, built once."""
        key = (i, change.schedule, change.chunks)
        if key not in self._rebuilt:
            self._rebuilt[key] = rebuild(self.observed[i], change.schedule, change.chunks)
        return self._rebuilt[key]

    def changed_times(self, i: int, changes: Sequence[Change]) -> tuple[list[Seconds], list[Seconds]]:
        """Give own times and launch delays of block `i` with some changes, one array a node: seconds, (n_steps, n_dp)."""
        first = sum(len(o.block.steps) for o in self.observed[:i])
        n_steps = len(self.observed[i].block.steps)
        return self._with(i, _Plan(changes), slice(first, first + n_steps), slice(0, n_steps))

    def changed_step(self, i: int, changes: Sequence[Change], at: int) -> tuple[Graph, list[Seconds], list[Seconds]]:
        """Give graph, own times and launch delays of one step of block `i` with some changes: seconds, shape (1, n_dp)."""
        plan = _Plan(changes)
        first = sum(len(o.block.steps) for o in self.observed[:i]) + at
        only = slice(at, at + 1)
        own, delay = self._with(i, plan, slice(first, first + 1), only)
        held = self._held_by(i, plan)
        return self.observed[i].graph if held is None else held.graph_of(only), own, delay

    def all_changes(self) -> list[Change]:
        """List what takes every component out that this job has."""
        return [Remove(name) for name in self.present()]

    def _with(self, i: int, plan: "_Plan", steps: slice, at: slice) -> tuple[list[Seconds], list[Seconds]]:
        """Give own times and launch delays of one block with some changes."""
        o = self.observed[i]
        own, delay = [_cut(array, at) for array in o.own], [_cut(array, at) for array in o.delay]
        nodes = o.block.nodes
        held = self._held_by(i, plan)
        if held is not None:
            for node, late in held.delay.items():
                delay[node] = late[at]
        if plan.touches_computes or held is not None:
            for node in np.flatnonzero(np.isin(nodes.op, _COMPUTES)).tolist():
                own[node] = self._compute(own[node], self._place(o, node), steps, plan, held)
        if "worker" in plan.gone:
            for node, peers_s in self._optimizer_s[i].items():
                quicker = np.minimum(own[node], _cut(peers_s, at))
                own[node] = np.asarray(_mix(plan.lanes("worker", int(nodes.stage[node])), quicker, own[node]))
        if "end-delay" in plan.gone:
            for node, excess in self._end_s[i].items():
                long_s = plan.part("end-delay", self._workers_of[i][node], excess[at])
                own[node] = own[node] - np.minimum(long_s, own[node])
        if "transfer" in plan.gone:
            for node, excess in self._transfer_s[i].items():
                own[node] = own[node] - plan.part("transfer", self._workers_of[i][node], excess[at])
        for name in plan.gone.keys() & self._delay_s[i].keys():
            for node, excess in self._delay_s[i][name].items():
                late = plan.part(name, _Workers((int(nodes.stage[node]),), across_dp=False), excess[at])
                delay[node] = delay[node] - np.minimum(late, np.maximum(delay[node], 0.0))
        for scale in plan.scales:
            for node in np.flatnonzero(np.isin(nodes.op, list(scale.ops))).tolist():
                own[node] = own[node] * _cut(scale.factor_of(int(nodes.stage[node])), steps)
        return own, delay

    def _compute(
        self,
        own: Seconds,
        place: tuple[int, int, int],
        steps: slice,
        plan: "_Plan",
        held: "_HoldGraph | None",
    ) -> Seconds:
        """Give one compute node's durations with some changes; stalls are seconds, the rest is factors.

        Where the graph knows what a compute waits for, that is no part of its duration.
        """
        c = self.components
        direction, virtual, microbatch = place
        stall = c.stalls.inside_s[(*place, steps)]
        hold = 0.0 if c.hold_s is None else c.hold_s[(*place, steps)]
        work = own - stall - hold
        stage = virtual % self.n_stages
        if (lanes := plan.lanes("stage", stage)) is not False:
            work = work * _mix(lanes, self._stage_ratio[direction, virtual], 1.0)
        if (lanes := plan.lanes("worker", stage)) is not False and c.slow_workers[:, stage].any():
            work = work / _mix(lanes, c.worker_ratio[direction, virtual, steps], 1.0)
        if (lanes := plan.lanes("microbatch", stage)) is not False:
            even = self._microbatch_mean[direction, steps, None] / self._microbatch_ratio[direction, microbatch, steps]
            work = work * _mix(lanes, even, 1.0)
        if (lanes := plan.lanes("step", stage)) is not False:
            ratio = c.step_ratio[direction, steps, None]
            work = work / _mix(lanes, np.where(ratio > SLOW_WHOLE_STEP_RATIO, ratio, 1.0), 1.0)
        for factor in plan.work:
            work = work * _pick(factor, (direction, virtual, microbatch), steps)
        lanes = (
            plan.lanes("queue", stage) if held is None else True
        )  # where the graph knows of waits they are no duration
        if lanes is not True:
            work = work + _mix(lanes, 0.0, hold)
        if not stall.any():
            return work
        whose = c.stalls.inside[(*place, steps)]
        for kind in np.unique(whose[stall > 0]).tolist():
            lanes = plan.lanes(INSIDE_OF[Whose(kind)], stage)
            if lanes is not True:
                work = work + _mix(lanes, 0.0, np.where(whose == kind, stall, 0.0))
        return work

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
        found: dict[str, Seconds] = {}
        n_workers = (n_dp, self.n_stages)

        def by_worker(seconds: Seconds) -> Seconds:
            by_virtual = seconds.sum(axis=(0, 2, 3)) / n_steps  # (n_virtual, n_dp)
            return np.asarray(by_virtual.reshape(-1, self.n_stages, n_dp).sum(axis=0).T)

        found["worker"] = by_worker(np.nan_to_num(c.compute_s) * (1.0 - 1.0 / c.worker_ratio[:, :, None]))
        for kind, name in INSIDE_OF.items():
            inside = c.stalls.inside == kind
            if (inside & (c.stalls.inside_s > 0)).any():
                found[name] = found.get(name, 0.0) + by_worker(np.where(inside, c.stalls.inside_s, 0.0))
        late = [
            (name, o, node, excess)
            for o, of_block in zip(self.observed, self._delay_s, strict=True)
            for name, of_name in of_block.items()
            for node, excess in of_name.items()
        ]
        for name, of_blocks in (("transfer", self._transfer_s), ("end-delay", self._end_s)):
            late += [(name, o, node, e) for o, b in zip(self.observed, of_blocks, strict=True) for node, e in b.items()]
        for name, o, node, excess in late:
            seconds = found.setdefault(name, np.zeros(n_workers))
            seconds[:, int(o.block.nodes.stage[node])] += excess.sum(axis=0) / n_steps
        if self.tail_s is not None and self.tail_s.any():
            long = self.between_s > self._ordinary_between_s
            busy_s = np.minimum(self.tail_s, self.between_s[:, None, None])
            found["between-steps"] = np.asarray(busy_s[long].sum(axis=0) / n_steps)
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
        """Choose the steps on which much is replayed: all, or evenly spread ones on a large job."""
        n_ops = sum(o.block.start_s.size for o in self.observed)
        stride = -(-n_ops // MAX_SHAPLEY_OPS)
        return [slice(0, len(o.block.steps), stride) for o in self.observed]


class _Plan:
    """Changes sorted by what they touch."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.gone: dict[str, Bools | None] = {}
        self.work: list[Seconds] = []
        self.scales: list[Scale] = []
        self._spent: list[Seconds] = []
        self.schedule: Reschedule | None = None
        for change in changes:
            match change:
                case Remove(component, workers):
                    known = self.gone.get(component, workers)
                    self.gone[component] = None if workers is None or known is None else workers | known
                case Work(factor):
                    self.work.append(factor)
                case Scale():
                    self.scales.append(change)
                case Spend(seconds):
                    self._spent.append(seconds)
                case Reschedule():
                    self.schedule = change

    @property
    def touches_computes(self) -> bool:
        """Say whether durations of computes change."""
        return bool(self.work) or not _IN_COMPUTES.isdisjoint(self.gone)

    def everywhere(self, name: str) -> bool:
        """Say whether a component goes on all workers."""
        return name in self.gone and self.gone[name] is None

    def lanes(self, name: str, stage: int) -> Lanes:
        """Say on which dp ranks of a stage a component goes: on all, on none, or an array of shape (n_dp,)."""
        if name not in self.gone:
            return False
        workers = self.gone[name]
        return True if workers is None else workers[:, stage]

    def part(self, name: str, of: "_Workers", excess_s: Seconds) -> Seconds:
        """Give the seconds of a component that go at a node; a transfer goes with any of its members."""
        workers = self.gone[name]
        if workers is None:
            return excess_s
        lanes = workers[:, list(of.stages)].any(axis=1)
        return np.where(lanes.any() if of.across_dp else lanes, excess_s, 0.0)

    def spent(self, n_steps: int) -> Seconds:
        """Add up the seconds between steps, shape (n_steps,)."""
        return np.asarray(sum((np.broadcast_to(s, n_steps) for s in self._spent), start=np.zeros(n_steps)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Workers:
    """The workers that take part in an operation: some stages of its own dp rank, or of all."""

    stages: tuple[int, ...]
    across_dp: bool


def _workers_of(o: Observed) -> dict[int, _Workers]:
    """Say who takes part in each operation, by node."""
    stage = o.block.nodes.stage.tolist()
    return {
        node: _Workers(tuple(stage[member] for member in event.members), event.across_dp)
        for event in o.graph.events
        for node in event.members
    }


def _mix(lanes: Lanes, changed: Seconds | float, kept: Seconds | float) -> Seconds | float:
    """Take the changed values where they hold."""
    if isinstance(lanes, bool):
        return changed if lanes else kept
    return np.where(lanes, changed, kept)


def _pick(factor: Seconds, place: tuple[int, int, int], steps: slice) -> Seconds:
    """Take the factors of one compute, shape broadcastable to (n_steps, n_dp)."""
    at = tuple(i if n > 1 else 0 for i, n in zip(place, factor.shape, strict=False))
    return _cut(factor[at], steps)


@dataclasses.dataclass(frozen=True, slots=True)
class _HoldGraph:
    """A block's graph in which held computes wait for the communication in flight.

    `delay` are the launch delays, seconds, (n_steps, n_dp), of these computes beyond that.
    """

    graph: Graph
    delay: dict[int, Seconds]

    def graph_of(self, at: slice) -> Graph:
        """Give the graph of some of the steps."""
        n_steps = max(len(late) for late in self.delay.values())
        if len(range(n_steps)[at]) == n_steps:
            return self.graph
        cut = {
            node: tuple(
                b if b.lanes is None or b.lanes.ndim < 2 else dataclasses.replace(b, lanes=b.lanes[at])
                for b in barriers
            )
            for node, barriers in self.graph.barriers.items()
        }
        return dataclasses.replace(self.graph, barriers=cut)


def _hold_graph(o: Observed, held_by: Mapping[int, Mapping[int, Bools]]) -> _HoldGraph | None:
    """Let held computes wait for what held them up; None where nothing did, or where the waits would be circular."""
    barriers, delay = {}, {}
    replayed = {
        node for event in o.graph.events for node in event.completes
    }  # a job of one dp rank has no dp collectives
    for node, all_sources in held_by.items():
        sources = {source: lanes for source, lanes in all_sources.items() if source in replayed}
        if not sources or node not in replayed:
            continue
        start = o.block.start_s[node]
        opens = np.full(start.shape, -np.inf)
        for source, lanes in sources.items():
            opens = np.where(lanes, np.maximum(opens, o.block.end_s[source]), opens)
        held = np.isfinite(opens)
        # A late compute starts when that ends, within the clock's error; one held inside began before, and works from then on.
        after_s = np.where(held, start - opens, 0.0)
        inside = after_s < -late_tolerance(o, node)
        delay[node] = np.where(held, np.where(inside, 0.0, after_s), o.delay[node])
        barriers[node] = tuple(
            Barrier(node, (source,), across_dp=False, lanes=lanes) for source, lanes in sources.items()
        )
    if not barriers:
        return None
    try:
        return _HoldGraph(add_barriers(o.block.nodes, o.graph, barriers), delay)
    except TraceError:
        return None


def _cut(array: Seconds, at: slice) -> Seconds:
    """Take some steps of an array of shape (n_steps or 1, n_dp or 1)."""
    return array[at] if array.shape[0] > 1 else array


def _long_optimizers(o: Observed) -> dict[int, Seconds]:
    """Say how much longer than its worker's usual each optimizer took, by node; only where it stands out; seconds."""
    found: dict[int, Seconds] = {}
    for node in np.flatnonzero(o.block.nodes.op == Op.OPTIMIZER).tolist():
        own = np.broadcast_to(o.own[node], o.block.start_s[node].shape)
        # Of every second step the longer ones may be what is wrong: the shorter half says what is usual.
        usual, low = np.quantile(own, 0.3, axis=0), np.quantile(own, 0.05, axis=0)
        sigma = (usual - low) / LOW_SPREAD_TO_SIGMA
        least = np.maximum(LONG_OPTIMIZER_DEVIATIONS * sigma, LONG_OPTIMIZER_RATIO * usual)
        excess = recorded(o, node, np.where(own - usual > least, own - usual, 0.0))
        if excess.any():
            found[node] = excess
    return found
