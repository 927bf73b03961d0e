"""Replay a job with some of its components removed, and share the lost time out among them.

Enters: observed blocks and `Breakdown`. Leaves: `Gains`. Costs one replay with launch delays for each set of components
looked at: two for each component that exists, and 2^n for the Shapley shares of the n that matter (n at most 6; on large
jobs on an even sample of the steps).
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.change import Change, Remove, Reschedule, Scale, Spend, Work
from diagnose.model.components import Breakdown, Gains
from diagnose.model.optype import of_types
from diagnose.model.trace import Bools, Ints, Nodes, Seconds
from diagnose.whatif.components.catalogue import list_components
from diagnose.whatif.components.component import Extent, Lanes, Part, TakenApart, cut, find_parts, mix
from diagnose.whatif.computes import Place, Places, find_computes, place_of, places_of
from diagnose.whatif.contention import are_own_gradients
from diagnose.whatif.graph import Graph, repeat_lanes
from diagnose.whatif.levels import Changing, OfNodes, at_a_time, stack
from diagnose.whatif.observed import Observed
from diagnose.whatif.recorded import Recorded, read_recorded
from diagnose.whatif.replay import group_walks, replay, side_by_side
from diagnose.whatif.schedule import Rebuilt, rebuild
from diagnose.whatif.waits import WaitGraph

#: A component matters when removing it, alone or last, gives back this part of the step.
MATERIAL_SHARE = 0.005
#: Breakdown shared out by Shapley values at most; the rest of the lost time is unexplained.
MAX_PLAYERS = 6
#: Operations replayed for the Shapley shares, and for each candidate of a search, at most; larger jobs are sampled by steps.
MAX_SHAPLEY_OPS = 750_000

P = TypeVar("P", bound=Part)


class Removal:
    """Own times and launch delays of every block with any set of components removed; parameters as in `TakenApart`."""

    #: Seconds of each step without some sets of components, once `gains` has replayed them.
    _by_step: Mapping[frozenset[str], Seconds] = {}
    #: By which part each block that is replayed with its waits, and nothing changed, is off from one without.
    _waits_error: Mapping[int, float] = {}

    def __init__(
        self,
        observed: Sequence[Observed],
        breakdown: Breakdown,
        *,
        n_stages: int,
        between_s: Seconds,
        tail_s: Seconds | None = None,
    ) -> None:
        self.observed = observed
        self.breakdown = breakdown
        self.n_stages = n_stages
        self.between_s = between_s
        self._job = TakenApart(observed, breakdown, n_stages=n_stages, between_s=between_s, tail_s=tail_s)
        self._parts = {part.name: part for part in find_parts(self._job, list_components())}
        self._stalls_of = {part.component.inside: name for name, part in self._parts.items()}
        #: The computes of each block, so many as are looked at at a time.
        self._places = [_split_computes(o, n_stages) for o in observed]
        #: Where anything stalls a compute.
        self._stalled: Bools = np.asarray(breakdown.stalls.inside_s.any(axis=(-2, -1)))
        self._first_step = np.cumsum([0, *(len(o.block.steps) for o in observed)]).tolist()
        self._recorded: dict[int, Recorded | None] = {}
        self._rebuilt: dict[tuple[int, str, int, int, bool], Rebuilt | None] = {}
        self._waits_error = {i: self._measure_waits(i, at) for i, at in enumerate(self.sample_steps())}

    def present(self) -> list[str]:
        """List the components that this job has at all."""
        return [name for name, part in self._parts.items() if part.is_present()]

    def step_times(self, removed: Iterable[str], pick: Sequence[slice] | None = None) -> Seconds:
        """Replay all steps (or those picked, one slice a block) without some components: seconds, shape (n_steps,)."""
        return self.price([Remove(name) for name in removed], pick)

    def price(self, changes: Sequence[Change], pick: Sequence[slice] | None = None) -> Seconds:
        """Replay all steps (or those picked, one slice a block) with some changes: seconds, shape (n_steps,).

        Costs one replay, unless `gains` knows it. What several changes do to the same operation is joined: factors multiply, places
        add up.
        """
        gone = frozenset(
            change.component for change in changes if isinstance(change, Remove) and change.workers is None
        )
        if pick is None and len(gone) == len(changes) and gone in self._by_step:
            return self._by_step[gone].copy()
        (step_s,) = self._price_each([_Plan(changes)], pick)
        return np.asarray(step_s)

    def _price_each(self, plans: Sequence["_Plan"], pick: Sequence[slice] | None) -> Seconds:
        """Replay with each of several sets of changes, those that leave the same graph in one walk: seconds, (n_plans, n_steps)."""
        times = []
        for i, o in enumerate(self.observed):
            at = slice(0, len(o.block.steps)) if pick is None else pick[i]
            steps = self._steps_at(i, at)
            shape = len(range(len(o.block.steps))[at]), o.block.n_dp
            changed = [self._change(i, plan, at) for plan in plans]
            step_s = np.empty((len(plans), shape[0]))
            for graph in {id(graph): graph for graph, *_ in changed}.values():
                same = [n for n, (other, *_) in enumerate(changed) if other is graph]
                _, *lanes = zip(*(changed[n] for n in same), strict=True)
                own, delay = (_join_lanes(each, shape) for each in lanes)
                replayed = replay(repeat_lanes(graph, len(same), shape), own, delay)
                step_s[same] = np.broadcast_to(replayed, (len(same) * shape[0], 1)).reshape(len(same), -1)
            step_s += [self._between(plan, steps) for plan in plans]
            step_s += [plan.spent(len(self.breakdown.steps))[steps] for plan in plans]
            times.append(step_s)
        return np.concatenate(times, axis=1)

    def _change(self, i: int, plan: "_Plan", at: slice) -> tuple[Graph, OfNodes, OfNodes]:
        """Give graph, own times and launch delays of some steps of block `i` with some changes: seconds, (n_steps, n_dp)."""
        own, delay = self._with(i, plan, self._steps_at(i, at), at)
        if plan.schedule is not None and (rebuilt := self._rebuild(i, plan.schedule)) is not None:
            return rebuilt.graph, *rebuilt.times(own, delay, plan.schedule)
        return self._graph(i, plan, at), own, delay

    def between_without(self, changes: Sequence[Change]) -> Seconds:
        """Give the time between steps with some changes: seconds, shape (n_steps,)."""
        return self._between(_Plan(changes), slice(0, len(self.between_s)))

    def sample(self, changes: Sequence[Change]) -> Seconds:
        """Replay an even sample of the steps with some changes: all of them, unless the job is large."""
        return self.price(changes, self.sample_steps())

    def sample_steps(self) -> list[slice]:
        """Choose the steps on which much is replayed: all, or evenly spread ones on a large job."""
        n_ops = sum(o.block.start_s.size for o in self.observed)
        stride = -(-n_ops // MAX_SHAPLEY_OPS)
        return [slice(0, len(o.block.steps), stride) for o in self.observed]

    def change_steps(self, i: int, changes: Sequence[Change], at: slice) -> tuple[Graph, Changing, Changing]:
        """Give graph, own times and launch delays of some steps of block `i` with some changes: seconds, (n_steps, n_dp)."""
        plan = _Plan(changes)
        return self._graph(i, plan, at), *self._with(i, plan, self._steps_at(i, at), at)

    def part_of(self, kind: type[P]) -> P:
        """Give a component's part in this job."""
        return next(part for part in self._parts.values() if isinstance(part, kind))

    def _between(self, plan: "_Plan", steps: slice) -> Seconds:
        """Give the time between some steps."""
        between = self.between_s[steps]
        for name, part in self._parts.items():
            between = part.ease_between(between, steps) if name in plan.gone else between
        return between

    def _steps_at(self, i: int, at: slice) -> slice:
        """Say where some steps of block `i` are among the steps of all blocks."""
        first = self._first_step[i]
        return slice(first + at.start, first + at.stop, at.step)

    def _waits(self, i: int, plan: "_Plan") -> WaitGraph | None:
        """Give the waits that components cause in block `i`; under another schedule computes wait for something else: none."""
        if plan.schedule is not None or self._waits_error.get(i, 0.0) > MATERIAL_SHARE:
            return None
        every = (part.waits(i) for name, part in self._parts.items() if not plan.everywhere(name))
        return next((waits for waits in every if waits is not None), None)

    def _measure_waits(self, i: int, at: slice) -> float:
        """Say how far off a block is that is replayed with its waits from one without; 0 where nothing waits."""
        nothing, o = _Plan([]), self.observed[i]
        if self._waits(i, nothing) is None:
            return 0.0
        plain_s = replay(o.graph, _cut_lanes(o.own, at), _cut_lanes(o.delay, at))
        return abs(float(np.mean(replay(*self._change(i, nothing, at))) / np.mean(plain_s)) - 1.0)

    def _graph(self, i: int, plan: "_Plan", at: slice) -> Graph:
        """Give the graph of some steps of block `i`."""
        waits = self._waits(i, plan)
        return self.observed[i].graph if waits is None else waits.graph_of(at)

    def _rebuild(self, i: int, change: Reschedule) -> Rebuilt | None:
        """Give block `i` under another schedule, built once."""
        key = (i, change.schedule, change.chunks, change.pieces, change.overlap_cost is None)
        if key not in self._rebuilt:
            if i not in self._recorded:
                self._recorded[i] = read_recorded(self.observed[i], self.breakdown.variant_ratio)
            rebuilt = rebuild(self._recorded[i], change)
            # Work is shared out over the stages of the job: steps that lost the rows of one cannot be laid out anew.
            whole = (
                rebuilt is not None and change.share.shape[-1] == rebuilt.recorded.chunks * rebuilt.recorded.n_stages
            )
            self._rebuilt[key] = rebuilt if whole else None
        return self._rebuilt[key]

    def _with(self, i: int, plan: "_Plan", steps: slice, at: slice) -> tuple[Changing, Changing]:
        """Give own times and launch delays of one block with some changes."""
        o = self.observed[i]
        own, delay, nodes = _cut_lanes(o.own, at), _cut_lanes(o.delay, at), o.block.nodes
        waits = self._waits(i, plan)
        if waits is not None:
            for node, late in waits.delay.items():
                delay[node] = late[at]
        gone = [(part, plan.gone[name]) for name, part in self._parts.items() if name in plan.gone]
        late_s = _copy_lanes(delay, set(o.beside.values())) if gone else None
        if plan.work or waits is not None or any(part.in_computes for part, _ in gone):
            eased = [(part, extent) for part, extent in gone if part.changes_work]
            waited = [(part, part.wait_s) for part in self._parts.values() if part.wait_s is not None]
            touched = bool(eased or waited or plan.work)
            for computes, place in self._places[i]:
                if touched or self._stalled[place].any():
                    own[computes] = self._compute(own[computes], place, steps, plan, eased, waited, in_graph=waits)
        for part, extent in gone:
            part.ease_block(i, own, delay, at, extent)
        for scale in plan.scales:
            for some in at_a_time(own, np.flatnonzero(of_types(nodes.op, list(scale.ops)))):
                own[some] = own[some] * cut(scale.factor_of(nodes.stage[some]), steps)
        self._move_beside(i, plan, steps, at, own, delay, late_s, in_graph=waits)
        return own, delay

    def _move_beside(
        self,
        i: int,
        plan: "_Plan",
        steps: slice,
        at: slice,
        own: Changing,
        delay: Changing,
        late_s: Mapping[int, Seconds] | Seconds | None,
        *,
        in_graph: WaitGraph | None,
    ) -> None:
        """Let what begins while a compute of its worker runs begin when as much of that is done; changes `delay`.

        `late_s` are the delays of computes before anything changed, by node; None where none did.
        """
        o = self.observed[i]
        compute_of = np.full(len(o.block.nodes), -1)
        compute_of[[*o.beside]] = [*o.beside.values()]
        waited_for = self.breakdown.waited_for[i] if self.breakdown.waited_for else {}
        every = at_a_time(delay if isinstance(own, np.ndarray) else own, np.flatnonzero(compute_of >= 0))
        for node in every:
            compute = int(compute_of[node]) if isinstance(node, int) else compute_of[node]
            done_s = cut(o.block.start_s[node] - o.block.start_s[compute], at)
            before = cut(o.own[compute], at)  # type: ignore[index]  # of several nodes `own` is an array
            place = _find_places(o.block.nodes, compute, self.n_stages)
            for part in self._parts.values():
                # Waits in the graph are no part of its duration; nor those, where they are gone, that it has for what begins here.
                if (wait_s := part.wait_s) is not None and part.waits_in_graph:
                    left_out = in_graph is not None or (
                        plan.everywhere(part.name) and _are_for(o.block.nodes, waited_for, node, compute)
                    )
                    before = before - np.where(left_out, wait_s[(*place, steps)], 0.0)
            runs = (done_s > 0) & (done_s < before)
            saved = 1.0 - np.divide(own[compute], before, out=np.ones(done_s.shape), where=runs)
            delay[node] = delay[node] - saved * np.clip(done_s, 0.0, np.maximum(delay[node], 0.0))
            sooner_s = np.zeros(1) if late_s is None else late_s[compute] - delay[compute]  # type: ignore[index]  # as above
            if sooner_s.any():  # ... and as much sooner as the compute does
                delay[node] = np.minimum(delay[node], np.maximum(delay[node] - sooner_s, 0.0))

    def _compute(
        self,
        own: Seconds,
        place: Place | Places,
        steps: slice,
        plan: "_Plan",
        eased: Sequence[tuple[Part, Extent]],
        waited: Sequence[tuple[Part, Seconds]],
        *,
        in_graph: WaitGraph | None,
    ) -> Seconds:
        """Give the durations of computes with some changes; stalls are seconds, the rest is factors.

        `eased` are the components among the changes that are factors, `waited` those of the job that are waits in computes.
        What a compute waits for in the graph is no part of its duration. Of several computes `place` has arrays, and `own` the
        shape (n_computes, n_steps, n_dp).
        """
        stalls, stage = self.breakdown.stalls, place[1] % self.n_stages
        stall = stalls.inside_s[(*place, steps)]
        at = np.flatnonzero(stall) if self._stalled[place].any() else np.zeros(0, dtype=np.int64)  # few lanes
        stalled_s = stall.reshape(-1)[at]
        waits = [(part, wait_s[(*place, steps)]) for part, wait_s in waited]
        work = own
        if len(at):
            work = np.array(np.broadcast_to(own, stall.shape))
            work.flat[at] -= stalled_s
        for _, wait_s in waits:
            work = work - wait_s
        for part, extent in eased:
            work = part.ease_work(work, place, steps, extent.lanes(stage))
        for factor in plan.work:
            work = work * _pick(factor, place, steps)
        for part, wait_s in waits:
            if in_graph is None or not part.waits_in_graph:
                work = work + mix(plan.lanes(part.name, stage), 0.0, wait_s)
        if not len(at):
            return work
        kinds = stalls.inside[(*place, steps)].reshape(-1)[at]
        for kind in np.unique(kinds).tolist():
            lanes = plan.lanes(self._stalls_of[kind], stage)
            if lanes is not True:
                stays = (kinds == kind) & ~np.broadcast_to(lanes, stall.shape).reshape(-1)[at]
                work.flat[at[stays]] += stalled_s[stays]
        return work

    def gains(self, together: Iterable[Sequence[str]] = ()) -> Gains:
        """Replay without each component, without all others, and share the lost time out.

        `together` are components that one cause stands for; they are also removed together, under their names joined by `+`.

        Source of the shares: Shapley (1953), over step time as the value of a set of components.
        """
        names = self.present()
        sets = {"+".join(names): frozenset(names) for names in together if len(names) > 1}
        everything = frozenset(names)
        wanted = [frozenset[str](), everything, *(frozenset({name}) for name in names)]
        wanted += [everything - {name} for name in names]
        wanted += [gone & everything for gone in sets.values()] + [everything - gone for gone in sets.values()]
        distinct = list(dict.fromkeys(wanted))
        by_step = self._by_step = dict(zip(distinct, self._replay_all(distinct), strict=True))
        step_s = {gone: float(times.mean()) for gone, times in by_step.items()}
        replayed, clean = step_s[frozenset()], step_s[everything]
        if not replayed > 0.0:
            raise TraceError(
                "all operations of a step start at once; expected seconds at which each started",
                where="column 'start_ts'",
            )
        alone = {name: step_s[frozenset({name})] for name in names}
        last = {name: step_s[everything - {name}] for name in names}
        worth = {name: max(replayed - alone[name], last[name] - clean) / replayed for name in names}
        players = [name for name in sorted(names, key=lambda n: -worth[n]) if worth[name] > MATERIAL_SHARE][
            :MAX_PLAYERS
        ]
        recorded = float(sum(float(o.block.step_ends_s.sum()) for o in self.observed) + self.between_s.sum()) / len(
            self.breakdown.steps
        )
        blame = {name: part.blame() for name, part in self._parts.items()}
        for key, gone in sets.items():
            alone[key], last[key] = step_s[gone & everything], step_s[everything - gone]
        return Gains(
            recorded_s=recorded,
            replayed_s=replayed,
            clean_s=clean,
            replayed_steps_s=by_step[frozenset()],
            clean_steps_s=by_step[everything],
            alone_steps_s={name: by_step[frozenset({name})] for name in names}
            | {key: by_step[gone & everything] for key, gone in sets.items()},
            alone_s=alone,
            last_s=last,
            last_steps_s={name: by_step[everything - {name}] for name in names}
            | {key: by_step[everything - gone] for key, gone in sets.items()},
            share=self._shapley(players, names, by_step),
            blame_s={name: seconds for name, seconds in blame.items() if seconds is not None},
            traits={name: part.component.traits for name, part in self._parts.items()},
            waits_error=max(self._waits_error.values(), default=0.0),
        )

    def _replay_all(self, sets: Sequence[Iterable[str]], pick: Sequence[slice] | None = None) -> list[Seconds]:
        """Replay without each of several sets."""
        if not sets:
            return []
        plans, blocks = [_Plan([Remove(name) for name in gone]) for gone in sets], [o.block for o in self.observed]
        parts = group_walks(plans, blocks)
        return [*np.concatenate(side_by_side(lambda part: self._price_each(part, pick), parts, blocks))]

    def _shapley(
        self, players: Sequence[str], names: Sequence[str], by_step: Mapping[frozenset[str], Seconds]
    ) -> dict[str, float]:
        """Share the lost time out: each component's part averaged over all orders of removing them.

        Breakdown that do not matter are one more player; its part is unexplained and is not listed. `by_step` has the steps without
        some sets of components, known already.
        """
        rest = [name for name in names if name not in players]
        all_players: list[tuple[str, ...]] = [(name,) for name in players] + ([tuple(rest)] if rest else [])
        pick = self.sample_steps()
        orders = range(len(all_players) + 1)
        coalitions = [m for size in orders for m in itertools.combinations(range(len(all_players)), size)]
        removed = [frozenset(name for member in members for name in all_players[member]) for members in coalitions]
        # Steps do not know of each other: those of a sample are known where all are.
        sampled = np.concatenate([np.arange(len(self.between_s))[self._steps_at(i, at)] for i, at in enumerate(pick)])
        known = {gone: times[sampled] for gone, times in by_step.items()}
        wanted = [gone for gone in removed if gone not in known]
        known |= zip(wanted, self._replay_all(wanted, pick), strict=True)
        worth = {
            frozenset(members): -float(known[gone].sum()) for members, gone in zip(coalitions, removed, strict=True)
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


class _Plan:
    """Changes sorted by what they touch."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.gone: dict[str, Extent] = {}
        self.work: list[Seconds] = []
        self.scales: list[Scale] = []
        self._spent: list[Seconds] = []
        self.schedule: Reschedule | None = None
        for change in changes:
            match change:
                case Remove(component, workers):
                    extent, known = Extent(workers), self.gone.get(component)
                    self.gone[component] = extent if known is None else known.join(extent)
                case Work(factor):
                    self.work.append(factor)
                case Scale():
                    self.scales.append(change)
                case Spend(seconds):
                    self._spent.append(seconds)
                case Reschedule():
                    self.schedule = change

    def everywhere(self, name: str) -> bool:
        """Say whether a component goes on all workers."""
        return name in self.gone and self.gone[name].workers is None

    def lanes(self, name: str, stage: int | Ints) -> Lanes:
        """Say on which dp ranks of a stage, or of several, a component goes."""
        return self.gone[name].lanes(stage) if name in self.gone else False

    def spent(self, n_steps: int) -> Seconds:
        """Add up the seconds between steps, shape (n_steps,)."""
        return np.asarray(sum((np.broadcast_to(s, n_steps) for s in self._spent), start=np.zeros(n_steps)))


def _cut_lanes(lanes: OfNodes, at: slice) -> Changing:
    """Take some steps of one array a node, to be changed."""
    return lanes[:, at].copy() if isinstance(lanes, np.ndarray) else [cut(array, at) for array in lanes]


def _copy_lanes(lanes: Changing, nodes: Collection[int]) -> Mapping[int, Seconds] | Seconds:
    """Keep the arrays of some nodes as they are; of all, where these are one array."""
    return lanes.copy() if isinstance(lanes, np.ndarray) else {node: np.array(lanes[node]) for node in nodes}


def _are_for(
    nodes: Nodes, waited_for: Mapping[int, Mapping[int, Bools]], node: int | Ints, compute: int | Ints
) -> bool | Bools:
    """Say whether a compute ever waits for an operation that begins as it runs; of several with two more axes for the lanes.

    Whoever waits for the last part of its gradients waited for the others.
    """
    pairs = zip(np.atleast_1d(node).tolist(), np.atleast_1d(compute).tolist(), strict=True)

    def waits(one: int, other: int) -> bool:
        by = waited_for.get(other, ())
        return one in by or (
            bool(by) and are_own_gradients(nodes, one, other) and any(are_own_gradients(nodes, n, other) for n in by)
        )

    found = np.array([waits(*pair) for pair in pairs])
    return bool(found[0]) if isinstance(node, int) else found[:, None, None]


def _join_lanes(each: Sequence[OfNodes], shape: tuple[int, int]) -> OfNodes:
    """Put the arrays of several sets of changes, broadcastable to (n_steps, n_dp), in turn on the axis of steps."""
    if len(each) == 1:
        return each[0]
    if all(isinstance(lanes, np.ndarray) for lanes in each):
        return np.concatenate([stack(lanes, shape) for lanes in each], axis=1)
    return [
        np.concatenate([a if a.shape == shape else np.broadcast_to(a, shape) for a in of_node])
        for of_node in zip(*each, strict=True)
    ]


def _split_computes(o: Observed, n_stages: int) -> list[tuple[int | Ints, Place | Places]]:
    """List the computes of a block, as many as are looked at at a time, with their places."""
    return [
        (some, _find_places(o.block.nodes, some, n_stages)) for some in at_a_time(o.own, find_computes(o.block.nodes))
    ]


def _find_places(nodes: Nodes, some: int | Ints, n_stages: int) -> Place | Places:
    """Say where one compute, or several, stand in the arrays of `Breakdown`."""
    return place_of(nodes, some, n_stages) if isinstance(some, int) else places_of(nodes, some, n_stages)


def _pick(factor: Seconds, place: Place | Places, steps: slice) -> Seconds:
    """Take the factors of computes, shape broadcastable to (n_steps, n_dp), or (n_computes, n_steps, n_dp)."""
    places: tuple[int | Ints, ...] = place
    at = tuple(i if n > 1 else 0 for i, n in zip(places, factor.shape, strict=False))
    return cut(factor[at], steps)
