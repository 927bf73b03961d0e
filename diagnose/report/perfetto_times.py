"""What a trace viewer is told of each operation beside its start and end.

Enters: a timeline of all dp ranks. Leaves: labels of its operations, and own times, waits and launch delays.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from diagnose.model.optype import COMPUTE, DIRECTIONS, DP_COLLECTIVES, NAMES, Op
from diagnose.model.placement import WAYS, match_transfers
from diagnose.model.timeline import Timeline
from diagnose.model.trace import Nodes, Seconds

#: The compute that an operation belongs to: its letter, and its type.
_SERVES = {
    Op.FORWARD: ("F", Op.FORWARD),
    Op.BACKWARD: ("B", Op.BACKWARD),
    Op.WEIGHT: ("W", Op.WEIGHT),
    Op.FORWARD_SEND: ("send F", Op.FORWARD),
    Op.FORWARD_RECV: ("recv F", Op.FORWARD),
    Op.BACKWARD_SEND: ("send B", Op.BACKWARD),
    Op.BACKWARD_RECV: ("recv B", Op.BACKWARD),
}


@dataclasses.dataclass(frozen=True, slots=True)
class OperationFacts:
    """What is known of the operations of one timeline."""

    #: One a node: `F3`, `send B3`, with interleaving `F3.1` (chunk 1); the name of the type for others.
    labels: tuple[str, ...]
    #: One a node: node of the compute whose data a point-to-point operation moves; -1 for all others.
    serves: tuple[int, ...]
    #: Shape (n_nodes, n_lanes): end minus when the last of those that move together had started, of a compute its own start;
    #: seconds, at least 0.
    own_s: Seconds
    #: Shape (n_nodes, n_lanes): launch delay of computes and sends: start after what the operation visibly waits for (its
    #: stream, its data, the parameters of its chunk), seconds, at least 0; NaN for all others.
    delay_s: Seconds


def describe_operations(timeline: Timeline) -> OperationFacts:
    """Say of each operation what it is called and how its time is made up; all dp ranks, as collectives wait for the last."""
    places = _Places(timeline.nodes)
    serves = match_transfers(timeline.nodes)
    return OperationFacts(
        labels=tuple(_label(timeline.nodes, node, serves.get(node, -1)) for node in range(len(timeline.nodes))),
        serves=tuple(serves.get(node, -1) for node in range(len(timeline.nodes))),
        own_s=np.maximum(timeline.end_s - _ready(timeline, places), 0.0),
        delay_s=_delays(timeline, places, serves),
    )


def match_nodes(nodes: Nodes, others: Nodes) -> list[int]:
    """Find each operation among others by type, stage and number; -1 where it is not there."""
    keys = zip(others.op.tolist(), others.stage.tolist(), others.seq.tolist(), strict=True)
    at = {key: i for i, key in enumerate(keys)}
    return [at.get(key, -1) for key in zip(nodes.op.tolist(), nodes.stage.tolist(), nodes.seq.tolist(), strict=True)]


class _Places:
    """The nodes of each type on each stage, in launch order."""

    def __init__(self, nodes: Nodes) -> None:
        self.stages = sorted(set(nodes.stage.tolist()))
        self._found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node in np.lexsort((nodes.seq, nodes.op, nodes.stage)).tolist():
            self._found[int(nodes.op[node]), int(nodes.stage[node])].append(node)

    def of(self, op: Op, stage: int) -> list[int]:
        """List the nodes of one type on one stage."""
        return self._found.get((int(op), stage), [])


def _label(nodes: Nodes, node: int, serves: int) -> str:
    """Name an operation as short as can be."""
    op = Op(int(nodes.op[node]))
    about = node if serves < 0 else serves
    chunk = f".{int(nodes.chunk[about])}" if int(nodes.chunk.max(initial=0)) > 0 and nodes.chunk[about] >= 0 else ""
    if op not in _SERVES:
        return NAMES[op] + chunk
    number = int(nodes.microbatch[about])
    return f"{_SERVES[op][0]}{number if number >= 0 else int(nodes.seq[node])}{chunk}"


def _ready(timeline: Timeline, places: _Places) -> Seconds:
    """Say when the last of those that move together had started."""
    nodes, ready_s = timeline.nodes, timeline.start_s.copy()
    for a, b in timeline.pairs:
        ready_s[[a, b]] = np.fmax(timeline.start_s[a], timeline.start_s[b])
    for node in np.flatnonzero(np.isin(nodes.op, [int(op) for op in DP_COLLECTIVES])).tolist():
        ready_s[node] = np.fmax.reduce(timeline.start_s[node])
    for op, stages in ((Op.CLIP, places.stages), (Op.EMBEDDING, [places.stages[0], places.stages[-1]])):
        by_seq: dict[int, set[int]] = defaultdict(set)
        for stage in stages:
            for node in places.of(op, stage):
                by_seq[int(nodes.seq[node])].add(node)
        for together in by_seq.values():
            members = sorted(together)
            latest = np.fmax.reduce(timeline.start_s[members], axis=0)
            ready_s[members] = np.fmax.reduce(latest) if op == Op.CLIP else latest
    alone = np.isin(nodes.op, [int(op) for op in COMPUTE])
    ready_s[alone] = timeline.start_s[alone]
    return ready_s


def _delays(timeline: Timeline, places: _Places, serves: Mapping[int, int]) -> Seconds:
    """Say how long after what they visibly wait for computes and sends started."""
    delay_s = np.full(timeline.start_s.shape, np.nan)
    for stage in places.stages:
        for node, sources in _sources(timeline, places, stage, serves).items():
            free_s = np.fmax.reduce(timeline.end_s[sources], axis=0) if sources else 0.0
            delay_s[node] = np.maximum(timeline.start_s[node] - free_s, 0.0)
    return delay_s


def _sources(timeline: Timeline, places: _Places, stage: int, serves: Mapping[int, int]) -> dict[int, list[int]]:
    """List what each compute and send of a stage waits for: the paper's graph, as far as it can be seen (DESIGN.md)."""
    nodes = timeline.nodes
    first_s = np.fmin.reduce(timeline.start_s, axis=1)
    found: dict[int, list[int]] = {}
    computes = sorted(
        (node for op in DIRECTIONS for node in places.of(op, stage)), key=lambda node: (first_s[node], node)
    )
    for before, node in zip([None, *computes], computes, strict=False):
        found[node] = [] if before is None else [before]
    for _, recv_op, send_op, _ in WAYS:
        for recv in places.of(recv_op, stage):
            if recv in serves:
                found[serves[recv]].append(recv)
        sent: list[int] = []
        for send in places.of(send_op, stage):
            if send in serves:
                found[send] = [serves[send], *sent[-1:]]
                sent.append(send)
    for gather in places.of(Op.ALL_GATHER, stage):
        opens = [f for f in places.of(Op.FORWARD, stage) if max(nodes.chunk[f], 0) == max(nodes.chunk[gather], 0)]
        for forward in opens[:1]:
            found[forward].append(gather)
    return found
