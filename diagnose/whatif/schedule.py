"""The same work under another pipeline schedule: the graph of it, own times and launch delays.

Enters: an observed block and what to run instead. Leaves: a `Rebuilt`, which turns the block's own times and launch delays
(changed or not) into those of the new graph. Computes keep their stage, microbatch and lane; transfers keep their link; what
opens and closes a step stays as it was recorded. Costs O(nodes) once, and O(operations) element operations a use.
"""

import dataclasses
from collections.abc import Sequence
from typing import get_args

import numpy as np

from diagnose.model.change import Reschedule
from diagnose.model.schedule import Part, order_launches, refuse_schedule
from diagnose.model.trace import Seconds
from diagnose.whatif.graph import Graph
from diagnose.whatif.observed import Observed
from diagnose.whatif.recorded import NewClosing, NewCompute, NewMove, Recorded, read_recorded
from diagnose.whatif.replay import Lanes
from diagnose.whatif.rewrite import GraphWriter

#: Parts of computes by direction.
PARTS = get_args(Part)


@dataclasses.dataclass(frozen=True, slots=True)
class Rebuilt:
    """A block under another schedule."""

    graph: Graph
    recorded: Recorded
    chunks: int
    parts: Sequence[NewCompute]
    moved: Sequence[NewMove]
    closed: Sequence[NewClosing]

    def times(self, own: Lanes, delay: Lanes, change: Reschedule) -> tuple[list[Seconds], list[Seconds]]:
        """Give own times and launch delays of the new graph's nodes from those of the recorded one's: seconds, one array a node."""
        zero = np.zeros((1, 1))
        new_own, new_delay = [zero] * self.graph.n_nodes, [zero] * self.graph.n_nodes
        work = self._work(own, change)
        late = self._late(delay)
        splits = any(part.part == "weight" for part in self.parts)
        for part in self.parts:
            place = (part.direction, part.virtual, part.microbatch)
            seconds = work[place]
            if self.recorded.splits and part.direction:
                weights = work[2, part.virtual, part.microbatch]
                seconds = weights if part.part == "weight" else seconds if splits else seconds + weights
            elif part.part == "weight":
                seconds = seconds * change.weight_share
            elif part.direction and splits:
                seconds = seconds * (1.0 - change.weight_share)
            new_own[part.node] = seconds if change.pieces == 1 else seconds / change.pieces
            new_delay[part.node] = late[(*place, part.part)]
        own_of, delay_of = _Medians(own), _Medians(delay)
        for moved in self.moved:
            seconds = own[moved.own[0]] if len(moved.own) == 1 else own_of[moved.own]
            new_own[moved.node] = seconds if change.pieces == 1 else seconds / change.pieces
            new_delay[moved.node] = delay[moved.delay[0]] if len(moved.delay) == 1 else delay_of[moved.delay]
        for closed in self.closed:
            seconds = own[closed.own[0]]
            for node in closed.own[1:]:
                seconds = seconds + own[node]
            new_own[closed.node] = seconds if closed.part == 1.0 else seconds * closed.part
            new_delay[closed.node] = delay[closed.delay[0]] if closed.delay else zero
        return new_own, new_delay

    def _work(self, own: Lanes, change: Reschedule) -> dict[tuple[int, int, int], Seconds]:
        """Share the computes out anew, by (direction, virtual stage, microbatch): backwards whole if they are so now.

        What is usual on a virtual stage moves with the work; how a lane differs from the usual stays with its worker.
        """
        r, n_stages = self.recorded, self.recorded.n_stages
        n_before = r.chunks * n_stages
        same = self.chunks == r.chunks
        found: dict[tuple[int, int, int], Seconds] = {}
        zero = np.zeros((1, 1))
        for direction, name in enumerate(PARTS[: 3 if r.splits else 2]):
            # A weight gradient of several microbatches stands at one of them.
            nodes = {(u, m): r.computes.get((name, u, m)) for u in range(n_before) for m in r.microbatches}
            at = {place: zero if node is None else own[node] for place, node in nodes.items()}
            share = change.share[direction]
            if same and np.array_equal(share, np.eye(n_before)):
                found |= {(direction, u, m): seconds for (u, m), seconds in at.items()}
                continue
            usual = np.array([_usual([at[u, m] for m in r.microbatches]) for u in range(n_before)])
            usual_after = share @ usual
            scale = 1.0 / np.where(usual > 0, usual, np.inf)
            for stage in range(n_stages):
                for m in r.microbatches:
                    ratios = [at[u, m] * scale[u] for u in range(stage, n_before, n_stages)]
                    mean = sum(ratios[1:], start=ratios[0]) / len(ratios)
                    for chunk in range(self.chunks):
                        virtual = chunk * n_stages + stage
                        found[direction, virtual, m] = usual_after[virtual] * (ratios[chunk] if same else mean)
        return found

    def _late(self, delay: Lanes) -> dict[tuple[int, int, int, str], Seconds]:
        """Give the launch delays of computes, by (direction, virtual stage, microbatch, part).

        Where the number of chunks changes the first keep those of the recorded ones; all others are launched as late as usual.
        """
        r = self.recorded
        usual: dict[tuple[str, int], Seconds] = {}  # by part and stage
        found: dict[tuple[int, int, int, str], Seconds] = {}
        for part in self.parts:
            stage = part.virtual % r.n_stages
            name = PARTS[part.direction]
            known = r.computes.get((part.part, part.virtual, part.microbatch))
            if known is not None:
                late = delay[known]
            else:
                if (name, stage) not in usual:
                    of_stage = range(stage, r.chunks * r.n_stages, r.n_stages)
                    usual[name, stage] = _median(
                        [delay[r.computes[name, u, m]] for u in of_stage for m in r.microbatches]
                    )
                late = usual[name, stage]
            found[part.direction, part.virtual, part.microbatch, part.part] = late
        return found


def rebuild(observed: Observed, schedule: str, chunks: int, pieces: int = 1) -> Rebuilt | None:
    """Build the graph of a block under one of `SCHEDULES`, with so many model chunks a stage, each microbatch cut into pieces.

    None where these steps cannot run so: not every microbatch runs forward and backward on every stage (an evaluation, a
    stage whose rows are lost), or the schedule asks for another number of microbatches. Workers block on transfers where the
    recorded ones do, except under `zero-bubble`, whose published implementations do not.

    Raises
    ------
    TraceError
        Operations would wait for each other in a circle.
    """
    recorded = read_recorded(observed)
    if recorded is None:
        return None
    recorded = recorded.cut(pieces)
    sizes = {"n_stages": recorded.n_stages, "chunks": chunks, "n_microbatches": len(recorded.microbatches)}
    if refuse_schedule(schedule, **sizes):
        return None
    orders = [order_launches(schedule, stage, **sizes) for stage in range(recorded.n_stages)]
    writer = GraphWriter(recorded, chunks, orders)
    blocking = schedule != "zero-bubble" and recorded.blocks()
    graph = writer.write(blocking=blocking, interleaved=schedule == "interleaved")
    return Rebuilt(graph, recorded, chunks, writer.parts(), writer.moved(), tuple(writer.closed))


class _Medians(dict[tuple[int, ...], Seconds]):
    """Median seconds of some nodes, lane by lane; each worked out once."""

    def __init__(self, arrays: Lanes) -> None:
        super().__init__()
        self.arrays = arrays

    def __missing__(self, nodes: tuple[int, ...]) -> Seconds:
        self[nodes] = median = _median([self.arrays[node] for node in nodes])
        return median


def _median(arrays: Sequence[Seconds]) -> Seconds:
    """Take the median of some arrays, lane by lane."""
    return arrays[0] if len(arrays) == 1 else np.asarray(np.median(np.stack(np.broadcast_arrays(*arrays)), axis=0))


def _usual(arrays: Sequence[Seconds]) -> float:
    """Take the median of all lanes of some nodes."""
    return float(np.median(np.stack(np.broadcast_arrays(*arrays))))
