"""What a component is: a name with what belongs to it, and in each job a part that can be taken out.

Enters: a job taken apart. Leaves: seconds by operation, changed own times and launch delays, blame by worker.
A part costs nothing but what its own file measures.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from diagnose.model.components import NOTHING_SPECIAL, Breakdown, Traits
from diagnose.model.stalls import Kinds, StallKind
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.whatif.computes import COMPUTES, Place, Places, find_computes, iterate_blocks, place_of, places_of
from diagnose.whatif.levels import Changing
from diagnose.whatif.observed import Observed
from diagnose.whatif.waits import WaitGraph

#: A component whose seconds, even if all lay on the critical path, stay below this part of the time is not looked at.
NEGLIGIBLE_SHARE = 1e-3

#: On which dp ranks: on all, on none, or an array of shape (1, n_dp), of several computes (n_computes, 1, n_dp).
Lanes = Bools | bool
#: Seconds of operations of one block by node, each of shape (n_steps, n_dp).
ByNode = dict[int, Seconds]


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """The workers that take part in an operation: some stages of its own dp rank, or of all."""

    stages: tuple[int, ...]
    across_dp: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """On which workers a component is removed: shape (n_dp, n_stages), or None for all of them."""

    workers: Bools | None

    def join(self, other: "Extent") -> "Extent":
        """Give the workers of both."""
        if self.workers is None or other.workers is None:
            return Extent(None)
        return Extent(self.workers | other.workers)

    def lanes(self, stage: int | Ints) -> Lanes:
        """Say on which dp ranks of a stage, or of several."""
        return True if self.workers is None else self.workers.T[stage][..., None, :]

    def part(self, of: Members, excess_s: Seconds) -> Seconds:
        """Give the seconds that go at an operation; where it is one of all dp ranks, they go with any of its members."""
        if self.workers is None:
            return excess_s
        lanes = self.workers[:, list(of.stages)].any(axis=1)
        return np.where(lanes.any() if of.across_dp else lanes, excess_s, 0.0)


class TakenApart:
    """A job as its components find themselves in it.

    Parameters
    ----------
    between_s : ndarray of float64, shape (n_steps,)
        Time between each step and the next, seconds, in the order of the blocks; 0 where not known.
    tail_s : ndarray of float64, shape (n_steps, n_dp, n_stages), or None
        Seconds of it in which rows say that a worker was busy.
    """

    def __init__(
        self,
        observed: Sequence[Observed],
        breakdown: Breakdown,
        *,
        n_stages: int,
        between_s: Seconds,
        tail_s: Seconds | None,
    ) -> None:
        self.observed = observed
        self.breakdown = breakdown
        self.n_stages = n_stages
        self.between_s = between_s
        self.tail_s = tail_s
        #: Time between steps that rows explain by something that is no save, seconds by kind, shape (n_steps,).
        self.gap_s = breakdown.between_s
        self.n_steps, self.n_dp = len(breakdown.steps), breakdown.compute_s.shape[-1]
        self.total_s = sum(float(o.block.step_ends_s.sum()) for o in observed)
        #: Launch delays beyond the ordinary: of all that is no compute and nothing is known of, and of others by kind of stall.
        self.late_s = [_without_computes(o, late_s) for o, late_s in zip(observed, breakdown.late_s, strict=True)]
        self.late_by_kind_s = [self._late_computes(o, steps) for steps, o in iterate_blocks(observed)]
        for late_s, by_kind, kinds in zip(self.late_s, self.late_by_kind_s, breakdown.late_kinds, strict=False):
            _split_by_kind(late_s, by_kind, kinds)
        stalls = breakdown.stalls
        #: Stalls on the worst lane of each compute by kind, seconds.
        self.inside_s = _worst_by_kind(stalls.inside_s, stalls.inside)
        self.before_s = _worst_by_kind(stalls.before_s, stalls.before)

    def members(self, i: int, node: int) -> Members:
        """Say who takes part in an operation of block `i`."""
        graph, stage = self.observed[i].graph, self.observed[i].block.nodes.stage
        across_dp = bool(graph.moves.across_dp[graph.starts_in[node]])
        return Members(tuple(stage[graph.members_of(node)].tolist()), across_dp)

    def could_matter(self, seconds: float) -> bool:
        """Say whether seconds that may all lie on the critical path could matter."""
        return seconds > NEGLIGIBLE_SHARE * self.total_s

    def by_worker(self, seconds: Seconds) -> Seconds:
        """Add up seconds of computes by worker, mean a step, shape (n_dp, n_stages)."""
        by_virtual = seconds.sum(axis=(0, 2, 3)) / self.n_steps  # (n_virtual, n_dp)
        return np.asarray(by_virtual.reshape(-1, self.n_stages, seconds.shape[-1]).sum(axis=0).T)

    def _late_computes(self, o: Observed, steps: slice) -> dict[int, ByNode]:
        """Give the late starts of a block's computes by kind of stall."""
        stalls, found = self.breakdown.stalls, dict[int, ByNode]()
        computes = find_computes(o.block.nodes)
        directions, virtual, microbatches = places_of(o.block.nodes, computes, self.n_stages)
        late = np.asarray(stalls.before_s[:, :, :, steps].any(axis=(-2, -1)))[directions, virtual, microbatches]
        for node in computes[late].tolist():
            place = (*place_of(o.block.nodes, node, self.n_stages), steps)
            late_s, kinds = stalls.before_s[place], stalls.before[place]
            for kind in np.unique(kinds[late_s > 0]).tolist():
                found.setdefault(kind, {})[node] = np.where(kinds == kind, late_s, 0.0)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Component:
    """A name for lost time, as in `COMPONENTS`, with what belongs to it in any job."""

    name: str
    #: What it is in one job.
    part: "type[Part]"
    #: `inside`, `before`: the stalls that are its: inside computes, and before them.
    inside: StallKind | None = None
    before: StallKind | None = None
    #: Says whether a launch delay of an operation, no compute, is its. The first component in the list that says so has it;
    #: where none does, it belongs to the component of late computes that nothing explains.
    owns_delay: Callable[[Observed, int], bool] | None = None
    #: What is special about it, for the judge.
    traits: Traits = NOTHING_SPECIAL


class Part:
    """A component in one job: what it costs, how it goes, and on whom it lies. By itself it is its stalls and launch delays.

    Attributes
    ----------
    late_s : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp)
        Launch delays that go with it, seconds by node, one dict a block.
    own_s : sequence of dict of int to ndarray of float64, shape (n_steps, n_dp)
        Own times that go with it, of operations that are no computes: transfers that stood still with a process, at least.
    wait_s : ndarray of float64, axes as in `Breakdown`, or None
        Seconds inside computes that are neither work nor a stall.
    """

    #: Whether it is a factor of the work of computes.
    changes_work = False
    #: Whether `wait_s` is no duration where `waits` gives a graph: it has the waits then.
    waits_in_graph = False

    def __init__(self, component: Component, job: TakenApart, late_s: Sequence[ByNode]) -> None:
        self.component = component
        self.job = job
        self.late_s = late_s
        frozen_s = job.breakdown.frozen_s.get(component.inside) if component.inside is not None else None
        self.own_s: Sequence[ByNode] = frozen_s or [{} for _ in job.observed]
        self.wait_s: Seconds | None = None
        self.find()

    @property
    def name(self) -> str:
        """The component's name."""
        return self.component.name

    @property
    def in_computes(self) -> bool:
        """Say whether computes take another time without it."""
        return self.changes_work or self.component.inside is not None or self.wait_s is not None

    def find(self) -> None:
        """Find what else belongs to it in the job, such as `own_s` and `wait_s`."""

    def is_present(self) -> bool:
        """Say whether the job has it at all."""
        return self.job.could_matter(self.worst_s())

    def worst_s(self) -> float:
        """Add up its seconds on the worst lane of each operation."""
        found = 0.0 if self.wait_s is None else float(self.wait_s.max(axis=-1).sum())
        if self.component.inside is not None:
            found += self.job.inside_s.get(self.component.inside, 0.0)
        if self.component.before is not None:
            found += self.job.before_s.get(self.component.before, 0.0)
            found += float(np.sum(self.job.gap_s.get(self.component.before, 0.0)))
        every = [e for of_blocks in (self.late_s, self.own_s) for of_block in of_blocks for e in of_block.values()]
        return found + sum(float(e.max(axis=-1).sum()) for e in every)

    def ease_work(self, work: Seconds, place: Place | Places, steps: slice, lanes: Lanes) -> Seconds:
        """Give the work of one compute without it, where `changes_work`: seconds, shape (n_steps, n_dp).

        Of several computes `place` has arrays, and work the shape (n_computes, n_steps, n_dp).
        """
        del place, steps, lanes
        return work

    def ease_block(self, i: int, own: Changing, delay: Changing, at: slice, extent: Extent) -> None:
        """Take it out of the own times and launch delays of block `i`, in place, computes' own times left out."""
        for node, excess in self.own_s[i].items():
            part_s = excess[at] if extent.workers is None else extent.part(self.job.members(i, node), excess[at])
            own[node] = _shorten(own[node], part_s)
        stage = self.job.observed[i].block.nodes.stage
        for node, excess in self.late_s[i].items():
            late = extent.part(Members((int(stage[node]),), across_dp=False), excess[at])
            delay[node] = _shorten(delay[node], late)

    def ease_between(self, between_s: Seconds, steps: slice) -> Seconds:
        """Give the time between some steps without it, seconds."""
        known = self.job.gap_s.get(self.component.before) if self.component.before is not None else None
        return between_s if known is None else _shorten(between_s, known[steps])

    def waits(self, i: int) -> WaitGraph | None:
        """Give the graph of block `i` in which the waits that it causes are waits, or None; `wait_s` is then no duration."""
        del i
        return None

    def blame(self) -> Seconds | None:
        """Add up its seconds by worker, mean a step, shape (n_dp, n_stages), on the critical path or not; None: on nobody."""
        return self.blame_stalls(None)

    def blame_stalls(self, found: Seconds | None) -> Seconds | None:
        """Add the seconds of its stalls, launch delays and own times to those found otherwise."""
        job, stalls = self.job, self.job.breakdown.stalls
        if self.component.inside is not None and self.component.inside in job.inside_s:
            stalled = job.by_worker(np.where(stalls.inside == self.component.inside, stalls.inside_s, 0.0))
            found = stalled if found is None else found + stalled
        nobody: tuple[Mapping[int, Bools], ...] = ({},) * len(job.observed)
        follows = job.breakdown.late_for_others or nobody
        for by_block, for_others in ((self.late_s, follows), (self.own_s, nobody)):
            for o, of_block, others in zip(job.observed, by_block, for_others, strict=True):
                for node, late_s in of_block.items():
                    # Who waits at a barrier for somebody else is a victim.
                    excess = np.where(others[node], 0.0, late_s) if node in others else late_s
                    found = np.zeros((job.n_dp, job.n_stages)) if found is None else found
                    found[:, int(o.block.nodes.stage[node])] += excess.sum(axis=0) / job.n_steps
        return found


def find_parts(job: TakenApart, catalogue: Sequence[Component]) -> list[Part]:
    """Find each component in a job, in the order of the catalogue."""
    nobodys = next(component for component in catalogue if component.before == StallKind.NOBODY)
    late: dict[str, list[ByNode]] = {component.name: [] for component in catalogue}
    for o, of_block, by_kind in zip(job.observed, job.late_s, job.late_by_kind_s, strict=True):
        owned: dict[str, ByNode] = {component.name: {} for component in catalogue}
        for node, excess in of_block.items():
            owner = next((c for c in catalogue if c.owns_delay is not None and c.owns_delay(o, node)), nobodys)
            owned[owner.name][node] = excess
        for component in catalogue:
            if component.before is not None:
                mine = owned[component.name]  # of one node some lanes may be known, and others its owner's
                mine |= {node: mine.get(node, 0.0) + s for node, s in by_kind.get(component.before, {}).items()}
            late[component.name].append(owned[component.name])
    return [component.part(component, job, late[component.name]) for component in catalogue]


def mix(lanes: Lanes, changed: Seconds | float, kept: Seconds | float) -> Seconds | float:
    """Take the changed values where they hold."""
    if isinstance(lanes, bool):
        return changed if lanes else kept
    return np.where(lanes, changed, kept)


def cut(array: Seconds, at: slice) -> Seconds:
    """Take some steps of an array of shape (..., n_steps or 1, n_dp or 1)."""
    return array[..., at, :] if array.shape[-2] > 1 else array


def _shorten(times: Seconds, by_s: Seconds) -> Seconds:
    """Take seconds off, no more than there are."""
    most_s = np.maximum(times, 0.0)
    most_s = np.minimum(by_s, most_s, out=most_s if most_s.shape == by_s.shape else None)
    return np.subtract(times, most_s, out=most_s)


def _without_computes(o: Observed, excess: Mapping[int, Seconds]) -> ByNode:
    """Leave computes out: their late starts are stalls."""
    return {node: seconds for node, seconds in excess.items() if o.block.nodes.op[node] not in COMPUTES}


def _split_by_kind(late_s: ByNode, by_kind: dict[int, ByNode], kinds: Mapping[int, Kinds]) -> None:
    """Move the launch delays of which it is known what they wait for, in place, to what they are."""
    for node, of_node in kinds.items():
        if node not in late_s:
            continue
        for kind in np.unique(of_node[of_node != StallKind.NOBODY]).tolist():
            by_kind.setdefault(kind, {})[node] = np.where(of_node == kind, late_s[node], 0.0)
        late_s[node] = np.where(of_node == StallKind.NOBODY, late_s[node], 0.0)


def _worst_by_kind(seconds: Seconds, kinds: Kinds) -> Mapping[int, float]:
    """Add up stalls on the worst lane of each compute, by kind; seconds."""
    at = np.flatnonzero(seconds > 0)  # few of all
    of_each, seconds_s = kinds.reshape(-1)[at], seconds.reshape(-1)[at]
    found: dict[int, float] = {}
    for kind in np.unique(of_each).tolist():
        worst_s, here = np.zeros(seconds.shape[:-1]), of_each == kind
        np.maximum.at(worst_s.reshape(-1), at[here] // seconds.shape[-1], seconds_s[here])
        found[kind] = float(worst_s.sum())
    return found
