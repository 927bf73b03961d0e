"""The paper's scenarios: everything ideal except one type, stage, dp rank or worker.

Enters: the blocks of a trace with their graphs. Leaves: a `WhatIf`. Costs about n_types + 3 x n_stages replays, each
O(operations); the exact slowdown of every worker costs n_stages of them.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import COMPUTE, NAMES, Op, of_types
from diagnose.model.trace import Block, Bools, Seconds, Trace
from diagnose.model.whatif import WhatIf
from diagnose.numerics.robust import median
from diagnose.whatif.dependencies import build_graph
from diagnose.whatif.fill import fill_block
from diagnose.whatif.graph import Graph
from diagnose.whatif.levels import OfNodes, stack
from diagnose.whatif.overlaps import find_overlaps
from diagnose.whatif.replay import group_walks, own_times, replay, replay_each_rank, side_by_side

#: Part of the workers that M_W fixes (arXiv 2505.05713, section 4.3).
SLOWEST_SHARE = 0.03
#: Steps from which the usual launch order is taken.
MAX_ORDER_STEPS = 16
#: Part of the steps that may be left out because nobody can say in which order they ran; steps that a message names.
MAX_UNORDERED_SHARE, MAX_NAMED = 0.2, 4
#: Less lost time than this part of the ideal is rounding.
NO_LOSS = 1e-9
#: Type under which a slowdown is reported where it is not the type's own name.
_REPORTED = {
    Op.FORWARD_SEND: "forward-pp-comm",
    Op.FORWARD_RECV: "forward-pp-comm",
    Op.BACKWARD_SEND: "backward-pp-comm",
    Op.BACKWARD_RECV: "backward-pp-comm",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A block without gaps, its graph, and its own times: what every scenario starts from.

    `own` and `ideal` have one array a node, shape (n_steps, n_dp) and (1, 1), seconds; all in one where lanes are few.
    """

    block: Block
    graph: Graph
    own: OfNodes
    ideal: OfNodes


def prepare(trace: Trace) -> tuple[Prepared, ...]:
    """Build the paper's graph of each block, fill the gaps and measure own and ideal times.

    Raises
    ------
    TraceError
        The graph of a block cannot be built.
    """
    blocks: list[tuple[Block, Graph, OfNodes]] = []
    for block in trace.blocks:
        start_s = typical_start(block)
        overlaps = find_overlaps(block, start_s)
        graph = build_graph(block.nodes, start_s, has_dp=trace.job.has_dp, overlaps=overlaps)
        filled = fill_block(block, graph)
        blocks.append((filled, graph, own_times(filled, graph)))
    usual = _ideal_by_type(blocks)
    by_op = np.array([usual.get(op, 0.0) for op in range(1 + max(Op))])
    found = []
    for block, graph, own in blocks:
        ideal = by_op[block.nodes.op][:, None, None]
        found.append(Prepared(block, graph, own, ideal if isinstance(own, np.ndarray) else list(ideal)))
    return tuple(found)


def leave_out_unordered(trace: Trace) -> Trace:
    """Leave out steps whose operations would wait for each other in a circle, where they are few: lost rows put them out of order.

    Raises
    ------
    TraceError
        They are more than `MAX_UNORDERED_SHARE` of the steps.
    """
    kept, errors = [], []
    for block in trace.blocks:
        start_s = typical_start(block)
        try:
            build_graph(block.nodes, start_s, has_dp=trace.job.has_dp, overlaps=find_overlaps(block, start_s))
        except TraceError as error:
            errors.append(error)
        else:
            kept.append(block)
    steps = np.setdiff1d(trace.steps, np.concatenate([block.steps for block in kept]) if kept else [])
    if len(steps) > MAX_UNORDERED_SHARE * len(trace.steps):
        raise errors[0]
    stays = ~np.isin(np.sort(trace.steps), steps)
    named = ", ".join(str(step) for step in steps[:MAX_NAMED].tolist()) + (", ..." if len(steps) > MAX_NAMED else "")
    told = f"left out, as their operations stand in no order that a schedule has, as where rows are lost: steps {named}"
    return dataclasses.replace(
        trace,
        blocks=tuple(kept),
        evidence=trace.evidence.take(~np.isin(trace.evidence.step, steps)),
        others=trace.others.take(~np.isin(trace.others.step, steps)),
        step_origin_s=None if trace.step_origin_s is None else trace.step_origin_s[stays],
        steps_dropped=trace.steps_dropped + len(steps),
        warnings=(*trace.warnings, told),
    )


def typical_start(block: Block) -> Seconds:
    """Say when each node usually starts: the mean over a few steps, or over the lanes that have everything.

    Seconds, shape (n_nodes,).

    Where no lane has, each gap is read off another lane, through the nodes of that stage that both lanes have: a gap must
    not move a node against its neighbours, because the launch order is taken from these times.
    """
    looked_at = block.start_s[:, :: -(-len(block.steps) // MAX_ORDER_STEPS)]
    total = looked_at.sum(axis=(1, 2))
    if not np.isnan(total).any():
        return np.asarray(total / (looked_at.shape[1] * looked_at.shape[2]))
    lanes = block.start_s.reshape(len(block.nodes), -1)
    gaps = np.isnan(lanes)
    complete = ~gaps.any(axis=0)
    if complete.any():
        return np.asarray(lanes[:, complete].mean(axis=1))
    fullest = int(gaps.sum(axis=0).argmin())
    usual = lanes[:, fullest].copy()
    for stage in np.unique(block.nodes.stage):
        here = block.nodes.stage == stage
        for lane in np.argsort(gaps.sum(axis=0), kind="stable"):
            need = here & np.isnan(usual) & ~gaps[:, lane]
            common = here & ~gaps[:, fullest] & ~gaps[:, lane]
            if need.any() and common.any():
                order = np.argsort(lanes[common, lane], kind="stable")
                usual[need] = np.interp(lanes[need, lane], lanes[common, lane][order], lanes[common, fullest][order])
    left = np.isnan(usual)
    if left.any():
        usual[left] = np.nansum(lanes[left], axis=1) / np.maximum((~gaps[left]).sum(axis=1), 1)
    return usual


def _ideal_by_type(blocks: Sequence[tuple[Block, Graph, OfNodes]]) -> dict[int, float]:
    """Take the mean (compute) or median (communication) of each type over the job, seconds."""
    by_type: dict[int, list[Seconds]] = {}
    for block, graph, own in blocks:
        moving = graph.moves.members.flat
        ops = block.nodes.op[moving]
        for op in np.unique(ops).tolist():
            of_type = moving[ops == op]
            by_type.setdefault(op, []).extend(
                [own[of_type]] if isinstance(own, np.ndarray) else (own[node][None] for node in of_type.tolist())
            )
    usual: dict[int, float] = {}
    for op, values in by_type.items():
        if op in COMPUTE:
            total = sum(seconds for v in values for seconds in v.reshape(len(v), -1).sum(axis=1).tolist())
            usual[op] = float(total / sum(v.size for v in values))
        else:
            usual[op] = float(median(np.concatenate([v.ravel() for v in values])))
    if sum(usual.values()) <= 0.0:
        # Clocks are so far off that transfers seem to end before they begin, by more than computes take.
        return {op: max(seconds, 0.0) for op, seconds in usual.items()}
    return usual


def explore(trace: Trace, prepared: Sequence[Prepared]) -> WhatIf:
    """Replay every scenario of the paper.

    Raises
    ------
    TraceError
        Operations take no time.

    Source: arXiv 2505.05713, sections 3 and 4; the exact slowdown of each worker is ours.
    """
    n_dp, n_stages = trace.n_dp, trace.n_stages
    reported = sorted({_report_as(op) for p in prepared for op in np.unique(p.block.nodes.op).tolist()})
    order = np.argsort(np.concatenate([p.block.steps for p in prepared]), kind="stable")

    blocks = [p.block for p in prepared]

    def run(scenarios: Sequence[Scenario]) -> list[Seconds]:
        """Replay scenarios; each gives one array with the steps of all blocks, in order."""
        return side_by_side(lambda scenario: np.concatenate([scenario(p) for p in prepared])[order], scenarios, blocks)

    kept = [_no_node, *(_of_type(name) for name in reported), lambda p: p.block.nodes.stage != n_stages - 1]
    in_turn = all(
        isinstance(p.own, np.ndarray) for p in prepared
    )  # small arrays of ideal times cost less by themselves
    parts = group_walks(kept, blocks) if in_turn else [[one] for one in kept]
    ideal_s, *type_s, stage_fixed_s = np.concatenate(run([_keep_each(part) for part in parts]), axis=1).T
    each = run([_each_rank, *(_each_worker(group) for group in group_walks(range(n_stages), blocks))])
    # Behind those of the dp ranks stands what all of them give together: (n_steps, n_dp + 2) and (n_steps, n_stages, n_dp + 1).
    dp_s, from_origin_s, simulated_s = each[0][:, :n_dp], each[0][:, n_dp], each[0][:, n_dp + 1]
    by_stage = np.moveaxis(np.concatenate(each[1:], axis=1), 1, 0)
    worker_s, stage_s = by_stage[..., :n_dp], by_stage[..., n_dp]
    total = float(ideal_s.sum())
    if not (ideal_s > 0).all():
        raise TraceError("the usual operation of every type takes no time; expected seconds", where="column 'duration'")
    by_worker = worker_s.sum(axis=1).T / total
    slowest = _slowest(by_worker)
    (workers_fixed_s,) = run([lambda p: _steps(p, replay(p.graph, _fix_workers(p, slowest)))])
    lost = float(simulated_s.sum()) - total
    recorded_s = np.concatenate([step_lengths(p.block) for p in prepared])[order]
    return WhatIf(
        steps=np.concatenate([p.block.steps for p in prepared])[order],
        recorded_s=recorded_s,
        simulated_s=simulated_s,
        ideal_s=ideal_s,
        discrepancy=float(recorded_s.sum() / from_origin_s.sum() - 1.0),
        by_optype={name: float(seconds.sum()) / total for name, seconds in zip(reported, type_s, strict=True)},
        by_stage=np.array([seconds.sum() / total for seconds in stage_s]),
        by_dp=np.broadcast_to(dp_s.sum(axis=0) / total, (n_dp,)),
        by_worker=by_worker,
        by_step=simulated_s / ideal_s,
        by_worker_step=np.moveaxis(worker_s / ideal_s[:, None], 2, 0),
        m_w=_regained(simulated_s, workers_fixed_s, lost, total),
        m_s=_regained(simulated_s, stage_fixed_s, lost, total),
    )


Scenario = Callable[[Prepared], Seconds]
#: Says which nodes of a block keep their own times, shape (n_nodes,).
Kept = Callable[[Prepared], Bools]


def _report_as(op: int) -> str:
    """Name the type under which an operation's slowdown is reported."""
    return _REPORTED.get(Op(int(op)), NAMES[Op(int(op))])


def _no_node(p: Prepared) -> Bools:
    """Let nothing keep its own times."""
    return np.zeros(len(p.block.nodes), dtype=bool)


def _of_type(name: str) -> Kept:
    """Keep the own times of one type."""

    def kept(p: Prepared) -> Bools:
        return of_types(p.block.nodes.op, [op for op in np.unique(p.block.nodes.op).tolist() if _report_as(op) == name])

    return kept


def _keep_each(each: Sequence[Kept]) -> Scenario:
    """Keep some own times, for each of several scenarios in one walk: (n_steps, n_scenarios)."""

    def scenario(p: Prepared) -> Seconds:
        lasting = replay(p.graph, _keep(p, [kept(p) for kept in each]))
        return np.broadcast_to(lasting, (len(each) * len(p.block.steps), 1)).reshape(len(each), -1).T

    return scenario


def _each_rank(p: Prepared) -> Seconds:
    """Keep the own times of one dp rank, for every rank in turn, and of all, from the origin and from the first start."""
    found = replay_each_rank(p.graph, p.own, p.ideal)
    steps = (_steps(p, seconds)[:, None] for seconds in (found.together_s, found.from_first_s))
    return np.concatenate([_lanes(p, found.alone_s), *steps], axis=1)


def _each_worker(group: Sequence[int]) -> Scenario:
    """Keep the own times of one worker, for every worker of a group of stages in turn, and of all workers of each stage."""

    def scenario(p: Prepared) -> Seconds:
        n_steps, n_dp = len(p.block.steps), p.block.n_dp
        found = replay_each_rank(p.graph, _keep(p, [p.block.nodes.stage == stage for stage in group]), p.ideal)
        lanes = (
            np.broadcast_to(seconds, (len(group) * n_steps, n)).reshape(len(group), n_steps, n)
            for seconds, n in ((found.alone_s, n_dp), (found.together_s, 1))
        )
        return np.moveaxis(np.concatenate(list(lanes), axis=2), 0, 1)

    return scenario


def _slowest(by_worker: Seconds) -> Bools:
    """Mark the slowest workers, 3% of them and at least one."""
    slowest = np.argsort(-by_worker, axis=None, kind="stable")[: math.ceil(SLOWEST_SHARE * by_worker.size)]
    fixed = np.zeros(by_worker.size, dtype=bool)
    fixed[slowest] = True
    return fixed.reshape(by_worker.shape)


def _regained(simulated_s: Seconds, fixed_s: Seconds, lost: float, total: float) -> float | None:
    """Say which part of the lost time comes back; None where nothing was lost."""
    return float(simulated_s.sum() - fixed_s.sum()) / lost if lost > NO_LOSS * total else None


def step_lengths(block: Block) -> Seconds:
    """Say how long each step took, from its first start to its last end: shape (n_steps,), seconds."""
    last = block.step_ends_s
    first = block.start_s.min(axis=(0, 2))
    return np.asarray(last - np.minimum(first, 0.0))


def _steps(prepared: Prepared, seconds: Seconds) -> Seconds:
    """Bring step times to shape (n_steps,)."""
    return np.broadcast_to(seconds, (len(prepared.block.steps), 1))[:, 0]


def _lanes(prepared: Prepared, seconds: Seconds) -> Seconds:
    """Bring step times by dp rank to shape (n_steps, n_dp)."""
    return np.broadcast_to(seconds, (len(prepared.block.steps), prepared.block.n_dp))


def _keep(prepared: Prepared, kept: Sequence[Bools]) -> OfNodes:
    """Take own times where `kept`, shape (n_nodes,), says so, else ideal; several scenarios stand in turn on the axis of steps."""
    own, ideal = prepared.own, prepared.ideal
    if len(kept) == 1 and not (isinstance(own, np.ndarray) and isinstance(ideal, np.ndarray)):
        return [a if keep else b for a, b, keep in zip(own, ideal, kept[0].tolist(), strict=True)]
    shape = (len(kept), len(prepared.block.steps), prepared.block.n_dp)
    own, ideal = stack(own, shape[1:]), stack(ideal, (1, 1))
    lanes = np.empty((len(own), *shape))
    lanes[:] = ideal[:, None]
    for n, of_scenario in enumerate(kept):
        lanes[of_scenario, n] = own[of_scenario]
    return lanes.reshape(len(own), -1, shape[-1])


def _fix_workers(prepared: Prepared, fixed: Bools) -> OfNodes:
    """Ideal times for the workers marked in `fixed` (shape (n_dp, n_stages)), else own."""
    own, ideal, lanes = prepared.own, prepared.ideal, fixed.T[prepared.block.nodes.stage][:, None]
    if isinstance(own, np.ndarray):
        return np.where(lanes, ideal, own)
    return [np.where(at, b, a) if at.any() else a for a, b, at in zip(own, ideal, lanes, strict=True)]
