"""Draws one timeline of one step: streams as threads, arrows from sends to recvs, stalls, and how late everything was.

Enters: a timeline, what it is compared with, and where on the time axis the step begins. Leaves: events on a page.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause
from diagnose.model.components import STALLED
from diagnose.model.optype import DIRECTIONS, NAMES, P2P, Op
from diagnose.model.stalls import StallKind
from diagnose.model.timeline import Timeline
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.escape import name as safe_name
from diagnose.report.escape import prose
from diagnose.report.perfetto_events import Page, Slice, Thread, finite, to_ns
from diagnose.report.perfetto_times import OperationFacts, match_nodes

#: The streams of a worker; all collectives share one.
_STREAMS = {
    Op.FORWARD: "compute",
    Op.BACKWARD: "compute",
    Op.WEIGHT: "compute",
    Op.GC: "compute",
    Op.OPTIMIZER: "compute",
    Op.FORWARD_SEND: "forward-send",
    Op.FORWARD_RECV: "forward-recv",
    Op.BACKWARD_SEND: "backward-send",
    Op.BACKWARD_RECV: "backward-recv",
}
_COLLECTIVES = "dp communication"
_STALLS = "stalls"
#: Computes of all stages stand above everything else, so that the schedule of the pipeline can be seen.
_ORDER = ("compute", _STALLS, _COLLECTIVES, "forward-send", "forward-recv", "backward-send", "backward-recv")

#: What a stall is called.
_TITLES = {
    StallKind.NOBODY: "stall that nothing explains",
    StallKind.COLLECTION: "garbage collection",
    StallKind.ALLOCATION: "memory allocator",
    StallKind.INPUT: "waiting for input",
    StallKind.SAVING: "checkpoint",
    StallKind.WORKER: "slow worker",
    StallKind.TOGETHER: "all workers together: planned",
    StallKind.QUEUE: "queued behind communication",
}
#: A shorter stall than this is not drawn.
_LEAST_STALL_S = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Baselines:
    """Own times of the ideal timeline and ends of the clean one, by the nodes of the one that is drawn.

    Both have the shape (n_nodes, n_lanes), NaN where there is no such operation; None where there is no such timeline.
    """

    ideal_own_s: Seconds | None = None
    clean_end_s: Seconds | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DpTrack:
    """One dp rank of one timeline: where it is drawn."""

    pid: int
    dp: int  # Index of the dp rank: lane of the timeline
    begin_ns: int  # When the step begins, on the axis of the picture

    def at(self, seconds: float) -> int:
        """Say where a time of the step lies on the axis."""
        return self.begin_ns + to_ns(seconds)


def by_nodes_of(values: Seconds, timeline: Timeline, other: Timeline) -> Seconds:
    """Give values of another timeline's nodes by the nodes of this one; NaN where it has no such node."""
    at = np.array(match_nodes(timeline.nodes, other.nodes), dtype=np.int64)
    return np.asarray(np.where((at >= 0)[:, None], values[at], np.nan))


def draw_operations(
    page: Page,
    data: ReportData,
    timeline: Timeline,
    facts: OperationFacts,
    row: DpTrack,
    baselines: Baselines | None = None,
) -> None:
    """Draw the operations of one dp rank, each on the thread of its stream, and an arrow from each send to its recv.

    The timeline has all dp ranks. `baselines`, given for what was recorded, say beside each operation how much slower and later it
    was.
    """
    by_stream: dict[Thread, list[tuple[int, Slice]]] = defaultdict(list)
    n_stages = len(data.diagnosis.stage_labels)
    for node in range(len(timeline.nodes)):
        start_s, end_s = float(timeline.start_s[node, row.dp]), float(timeline.end_s[node, row.dp])
        if np.isnan(start_s) or np.isnan(end_s):
            continue
        op, stage = Op(int(timeline.nodes.op[node])), int(timeline.nodes.stage[node])
        thread = thread_of(data, row, stage, _STREAMS.get(op, _COLLECTIVES), n_stages)
        args = _describe(timeline, facts, node, row.dp, baselines)
        start_ns = row.at(start_s)
        what = Slice(facts.labels[node], NAMES[op], start_ns, max(row.at(end_s), start_ns), args)
        by_stream[thread].append((node, what))
    placed: dict[int, tuple[Slice, Thread]] = {}
    for thread in sorted(by_stream, key=lambda thread: thread.order):
        nodes = [node for node, _ in by_stream[thread]]
        drawn = page.side_by_side(thread, [what for _, what in by_stream[thread]])
        placed |= dict(zip(nodes, drawn, strict=True))
    for pair in timeline.pairs:
        if all(node in placed and timeline.nodes.op[node] in P2P for node in pair):
            _connect(page, placed[pair[0]], placed[pair[1]])


def _connect(page: Page, sender: tuple[Slice, Thread], receiver: tuple[Slice, Thread]) -> None:
    """Draw inside a recv when its data moved, and the arrow to there.

    An arrow to a slice that begins before the send's would be turned round.
    """
    (send, send_thread), (recv, recv_thread) = sender, receiver
    moves_ns = max(send.start_ns, recv.start_ns)
    if moves_ns > recv.end_ns:
        return
    moving = Slice(f"moving {recv.name.removeprefix('recv ')}", "transfer", moves_ns, recv.end_ns, {})
    page.slice(recv_thread, moving, depth=1)
    page.flow(send.name, (send_thread, send.start_ns), (recv_thread, moves_ns))


def thread_of(data: ReportData, row: DpTrack, stage: int, stream: str, n_stages: int) -> Thread:
    """Give the thread of a stream of a worker."""
    name = f"stage {int(data.diagnosis.stage_labels[stage])} {stream}"
    if stream == "compute":
        who = data.diagnosis.worker(row.dp, stage)
        name += f" (rank {who.rank}{f', host {safe_name(who.host)}' if who.host else ''})"
    kind = _ORDER.index(stream)
    order = stage * len(_ORDER) + kind
    return Thread(row.pid, name, stage if kind == 0 else n_stages + order)


def _describe(
    timeline: Timeline, facts: OperationFacts, node: int, dp: int, baselines: Baselines | None
) -> dict[str, Any]:
    """Say about an operation what its length does not show; times in milliseconds."""
    about = node if facts.serves[node] < 0 else facts.serves[node]
    microbatch, chunk = int(timeline.nodes.microbatch[about]), int(timeline.nodes.chunk[about])
    own_s = float(facts.own_s[node, dp])
    found: dict[str, Any] = {
        "step": timeline.step,
        "microbatch": microbatch if microbatch >= 0 else None,
        "chunk": chunk if chunk >= 0 else None,
        "own_ms": _ms(own_s),
        "launch_delay_ms": _ms(float(facts.delay_s[node, dp])),
    }
    if baselines is not None and baselines.ideal_own_s is not None:
        found["slower_than_ideal_by_ms"] = _ms(own_s - float(baselines.ideal_own_s[node, dp]))
    if baselines is not None and baselines.clean_end_s is not None:
        found["later_than_clean_by_ms"] = _ms(float(timeline.end_s[node, dp] - baselines.clean_end_s[node, dp]))
    return finite(found)


def _ms(seconds: float) -> float:
    """Give milliseconds, to the nanosecond."""
    return round(1e3 * seconds, 6) + 0.0


def count_lateness(page: Page, data: ReportData, timeline: Timeline, clean_end_s: Seconds, row: DpTrack) -> None:
    """Draw for each stage how much later than in the clean timeline each operation ended, in milliseconds, at its end."""
    late_s = timeline.end_s[:, row.dp] - clean_end_s[:, row.dp]
    for stage, label in enumerate(data.diagnosis.stage_labels.tolist()):
        nodes = np.flatnonzero((timeline.nodes.stage == stage) & np.isfinite(late_s))
        key = f"stage {label}"
        page.counter(row.pid, LATENESS, row.begin_ns, {key: 0.0})
        for node in nodes[np.argsort(timeline.end_s[nodes, row.dp], kind="stable")].tolist():
            at_ns = row.at(float(timeline.end_s[node, row.dp]))
            page.counter(row.pid, LATENESS, at_ns, {key: _ms(float(late_s[node]))})


#: Name of the counters of `count_lateness`.
LATENESS = "later than clean [ms]"


def draw_stalls(page: Page, data: ReportData, timeline: Timeline, row: DpTrack) -> None:
    """Draw the stalls of one dp rank of a recorded step, with the sentence of the cause, and the rows that are evidence."""
    by_stage: dict[int, list[Slice]] = defaultdict(list)
    for node in np.flatnonzero(np.isin(timeline.nodes.op, DIRECTIONS)).tolist():
        by_stage[int(timeline.nodes.stage[node])] += _stalls_of(data, timeline, node, row)
    rows = data.analysis.trace.evidence
    for i in np.flatnonzero((rows.step == timeline.step) & (rows.dp == row.dp)).tolist():
        start_ns, end_ns = row.at(float(rows.start_s[i])), row.at(float(rows.end_s[i]))
        if end_ns > start_ns:
            args = {"step": timeline.step, "seen_as": "a row of the trace"}
            by_stage[int(rows.stage[i])].append(Slice(NAMES[Op(int(rows.op[i]))], "evidence", start_ns, end_ns, args))
    for stage in sorted(by_stage):
        thread = thread_of(data, row, stage, _STALLS, len(data.diagnosis.stage_labels))
        page.side_by_side(thread, by_stage[stage])


def _stalls_of(data: ReportData, timeline: Timeline, node: int, row: DpTrack) -> list[Slice]:
    """Give the stalls inside and before one compute."""
    start_s, end_s = float(timeline.start_s[node, row.dp]), float(timeline.end_s[node, row.dp])
    place = _place(data, timeline, node, row.dp)
    if place is None or np.isnan(start_s) or np.isnan(end_s):
        return []
    breakdown, stalls = data.analysis.breakdown, data.analysis.breakdown.stalls
    inside_s, before_s = float(stalls.inside_s[place]), float(stalls.before_s[place])
    wait_s = 0.0 if breakdown.queue_wait_s is None else float(breakdown.queue_wait_s[place])
    before, inside = StallKind(int(stalls.before[place])), StallKind(int(stalls.inside[place]))
    spans = [
        (start_s - before_s, start_s, before, bool(stalls.recorded_before[place]), "before"),
        (start_s, min(start_s + wait_s, end_s), StallKind.QUEUE, False, "inside"),
        (max(end_s - inside_s, start_s), end_s, inside, bool(stalls.recorded_inside[place]), "inside"),
    ]
    return [
        _stall(data, timeline.step, (row.at(begin_s), row.at(finish_s)), kind, {"where": where, "has_a_row": recorded})
        for begin_s, finish_s, kind, recorded, where in spans
        if finish_s - begin_s > _LEAST_STALL_S
    ]


def _place(data: ReportData, timeline: Timeline, node: int, dp: int) -> tuple[int, int, int, int, int] | None:
    """Say where a compute stands in the arrays of `Breakdown`; None where it does not."""
    nodes, breakdown = timeline.nodes, data.analysis.breakdown
    at = np.flatnonzero(breakdown.steps == timeline.step)
    virtual = max(int(nodes.chunk[node]), 0) * data.analysis.trace.n_stages + int(nodes.stage[node])
    microbatch = int(nodes.microbatch[node])
    if not len(at) or microbatch < 0:
        return None
    place = (DIRECTIONS.index(Op(int(nodes.op[node]))), virtual, microbatch, int(at[0]), dp)
    shape = breakdown.compute_s.shape
    return place if all(i < n for i, n in zip(place, shape, strict=True)) else None


def _stall(data: ReportData, step: int, span: tuple[int, int], kind: StallKind, args: dict[str, Any]) -> Slice:
    """Make the slice of a stall, with the cause that it belongs to."""
    cause = next(iter(data.causes_of(STALLED.get(kind, ""))), None)
    found = {"step": step, "own_ms": (span[1] - span[0]) / 1e6} | args
    if cause is not None:
        found |= {"cause": prose(cause.title), "why": sentence(cause)}
    return Slice(_TITLES[kind], "stall", *span, found)


def sentence(cause: Cause) -> str:
    """Say in one sentence why a cause is said of the job."""
    return prose(cause.evidence[0].text) if cause.evidence else words.titled(cause)


def culprits_of(cause: Cause, data: ReportData) -> list[int]:
    """List the dp ranks (indices) that a cause names, worst first."""
    labels = {int(label): i for i, label in enumerate(data.diagnosis.dp_labels.tolist())}
    named: Sequence[int] = [who.dp for who in cause.where.workers] + [
        end.dp for link in cause.where.links for end in link.ends
    ]
    return [labels[dp] for dp in dict.fromkeys(named) if dp in labels]
