"""What waits for what by the rules of the paper: pairs, groups, streams and the end of a step.

Enters: the nodes of a block. Leaves: a `Graph`, or the waits and events that it is made of.

Source: arXiv 2505.05713, section 3.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.optype import DIRECTIONS, DP_COLLECTIVES, P2P, Op, of_types
from diagnose.model.placement import WAYS
from diagnose.model.trace import Nodes, Seconds
from diagnose.whatif.graph import Events, Graph, Layout, Ragged, chain_waits, order_graph
from diagnose.whatif.overlaps import Overlaps, chain_beside

#: More than there are types of operations.
N_TYPES = 1000


def build_graph(nodes: Nodes, start_s: Seconds, *, has_dp: bool, overlaps: Overlaps | None = None) -> Graph:
    """Build the graph of the paper; without `has_dp` the dp collectives are left out (dp x dsp = 1).

    `start_s` is the typical start of each node: seconds after the step began, shape (n_nodes,). `overlaps` are computes that run
    beside others.

    Raises
    ------
    TraceError
        A send without a recv, or operations that wait for each other in a circle; both are named.

    Source: arXiv 2505.05713, section 3, and the analyser published with it.
    """
    layout = Layout(nodes, start_s, overlaps)
    waits = essential_waits(layout, has_dp=has_dp)
    kinds = number_kinds(layout)
    for stage in range(layout.n_stages):
        for op in P2P:
            streams: dict[int, list[int]] = {}
            for node in layout.of(op, stage):
                streams.setdefault(kinds[node], []).append(node)
            for stream in streams.values():
                chain_waits(waits, stream)
        for compute_op, recv_op, *_ in WAYS:
            before = dict(zip(layout.of(compute_op, stage)[1:], layout.of(compute_op, stage), strict=False))
            for recv in layout.of(recv_op, stage):
                compute = layout.served.get(recv)
                if compute in before:
                    waits[recv].add(before[compute])
        computes = layout.by_start(DIRECTIONS, stage)
        n_warmup = next((i for i, node in enumerate(computes) if nodes.op[node] == Op.BACKWARD), 0)
        if n_warmup >= 2:
            for op in (Op.BACKWARD_SEND, Op.BACKWARD_RECV):
                for node in layout.of(op, stage)[:1]:
                    waits[node].add(computes[n_warmup - 2])
    return order_graph(layout, waits, find_events(layout, has_dp=has_dp), barriers={})


def number_kinds(layout: Layout) -> list[int]:
    """Give each node its type; where chunks are not dealt out in turn, transfers of a type with each peer have one of their own.

    The type is the rest by `N_TYPES`.
    """
    kinds: list[int] = layout.nodes.op.tolist()
    if layout.nodes.position is None:
        return kinds
    for stage in range(layout.n_stages):
        for op in P2P:
            toward = 1 if op in (Op.FORWARD_SEND, Op.BACKWARD_RECV) else -1
            for node in layout.of(op, stage):
                compute = layout.served.get(node)
                peer = None if compute is None else layout.stage_at.get(int(layout.position[compute]) + toward)
                if peer is not None:
                    kinds[node] += N_TYPES * (1 if peer > stage else 2)
    return kinds


def essential_waits(layout: Layout, *, has_dp: bool) -> list[set[int]]:
    """Collect the waits that hold whatever the schedule: compute order, data, and the chain that ends a step."""
    nodes = layout.nodes
    waits: list[set[int]] = [set() for _ in range(len(nodes))]
    for stage in range(layout.n_stages):
        forwards = layout.of(Op.FORWARD, stage)
        computes = layout.by_start(DIRECTIONS, stage)
        last = chain_beside(waits, computes, layout.overlaps)
        _await_inputs(layout, stage, waits)
        for compute_op, recv_op, send_op, ahead in WAYS:
            for recv in layout.of(recv_op, stage):
                if recv in layout.served:
                    waits[layout.served[recv]].add(recv)
            for send in layout.of(send_op, stage):
                if send in layout.served:
                    waits[send].add(layout.served[send])
            for compute in layout.of(compute_op, stage):
                source = layout.beside(compute, -ahead)
                if source is not None and nodes.stage[source] == stage:
                    waits[compute].add(source)
        if has_dp:
            gathers = layout.by_start((Op.ALL_GATHER,), stage)
            chain_waits(waits, gathers)
            for gather in gathers:
                first = next((f for f in forwards if layout.chunk(f) == layout.chunk(gather)), None)
                if first is not None:
                    waits[first].add(gather)
        _close_step(layout, stage, computes, last, waits, has_dp=has_dp)
    if not any(layout.of(op, stage) for op in P2P for stage in range(layout.n_stages)):
        _link_computes(layout, waits)
    return waits


def _await_inputs(layout: Layout, stage: int, waits: list[set[int]]) -> None:
    """Let the weight gradients of a microbatch wait for the gradient of its input."""
    nodes = layout.nodes
    inputs = {(layout.chunk(n), int(nodes.microbatch[n])): n for n in layout.of(Op.BACKWARD, stage)}
    for node in layout.of(Op.WEIGHT, stage):
        source = inputs.get((layout.chunk(node), int(nodes.microbatch[node])))
        if source is not None:
            waits[node].add(source)


def _close_step(
    layout: Layout, stage: int, computes: list[int], last: list[int], waits: list[set[int]], *, has_dp: bool
) -> None:
    """Add the chain after the last compute, with overlapped reduce-scatter where the trace has a separate all-reduce."""
    scatters = layout.by_start((Op.REDUCE_SCATTER,), stage) if has_dp else []
    separate = layout.of(Op.SEPARATE, stage) if has_dp else []
    chain = last[-1:] + layout.of(Op.GC, stage)
    if separate:
        chain_waits(waits, scatters)
        for scatter in scatters:
            of_chunk = (node for node in computes if layout.chunk(node) == layout.chunk(scatter))
            own = [node for node in of_chunk if layout.nodes.op[node] != Op.FORWARD]
            waits[scatter].update(own[-1:])
        chain += layout.of(Op.LAYERNORM, stage)
        if layout.of(Op.LAYERNORM, stage):
            waits[layout.of(Op.LAYERNORM, stage)[0]].update(scatters[-1:])
        chain += layout.of(Op.EMBEDDING, stage) + separate
    else:
        chain += layout.of(Op.LAYERNORM, stage) + layout.of(Op.EMBEDDING, stage) + scatters
    chain += layout.of(Op.CLIP, stage) + layout.of(Op.OPTIMIZER, stage)
    chain_waits(waits, chain)
    for node in chain[1:2]:
        waits[node].update(last)


def _link_computes(layout: Layout, waits: list[set[int]]) -> None:
    """Let computes wait for each other across stages where the trace records no point-to-point operation."""
    for compute_op, _, _, ahead in WAYS:
        for stage in range(layout.n_stages):
            for node in layout.of(compute_op, stage):
                source = layout.beside(node, -ahead)
                if source is not None:
                    waits[node].add(source)


def find_events(layout: Layout, *, has_dp: bool) -> Events:
    """Group the nodes that move together.

    Raises
    ------
    TraceError
        A send (or recv) whose peer is nowhere in the trace.
    """
    nodes, n_stages = layout.nodes, layout.n_stages
    pairs = match_pairs(layout)
    clips = _group_by_seq(nodes, [node for stage in range(n_stages) for node in layout.of(Op.CLIP, stage)])
    ends = sorted({0, n_stages - 1})
    embeddings = _group_by_seq(nodes, [node for stage in ends for node in layout.of(Op.EMBEDDING, stage)])
    given = Ragged.of([*pairs, *clips, *embeddings])
    alone, collective = np.ones(len(nodes), dtype=bool), of_types(nodes.op, DP_COLLECTIVES)
    alone[given.flat] = False
    singles = np.flatnonzero(alone & (has_dp | ~collective))
    members = Ragged(np.r_[given.flat, singles], np.r_[given.begin, given.begin[-1] + 1 + np.arange(len(singles))])
    across_dp = np.r_[np.zeros(len(given), dtype=bool), collective[singles]]
    across_dp[len(pairs) : len(pairs) + len(clips)] = True
    return Events(members, members, Ragged.empty(len(members)), across_dp)


def _group_by_seq(nodes: Nodes, found: Sequence[int]) -> list[list[int]]:
    """Group nodes of several stages by number, rising."""
    return [[n for n in found if nodes.seq[n] == seq] for seq in sorted({int(nodes.seq[n]) for n in found})]


def match_pairs(layout: Layout) -> list[tuple[int, int]]:
    """Match each send with its recv; with interleaving through the model chunk that the microbatch enters next.

    Raises
    ------
    TraceError
        A send or recv that must have a peer and has none.
    """
    nodes = layout.nodes
    receives = of_types(nodes.op, (Op.FORWARD_RECV, Op.BACKWARD_RECV)).tolist()
    recv_of = {compute: move for move, compute in layout.served.items() if receives[move]}
    pairs: list[tuple[int, int]] = []
    for _, _, send_op, ahead in WAYS:
        for stage in range(layout.n_stages):
            for send in layout.of(send_op, stage):
                compute = layout.served.get(send)
                if compute is None:
                    continue
                to = layout.stage_at.get(int(layout.position[compute]) + ahead)
                if to is None:
                    continue
                peer = layout.beside(compute, ahead)
                recv = None if peer is None else recv_of.pop(peer, None)
                if recv is None:
                    raise TraceError(
                        f"{nodes.name(send)} has no recv on stage {to}; expected one for each send: "
                        "check that every rank's rows are in the file and mc names model chunks, or leave out point-to-point rows",
                        where="graph",
                    )
                pairs.append((send, recv))
    for compute, recv in recv_of.items():
        before = layout.stage_at.get(int(layout.position[compute]) - (1 if nodes.op[compute] == Op.FORWARD else -1))
        if before is not None:
            raise TraceError(
                f"{nodes.name(recv)} has no send on stage {before}; expected one for each recv: "
                "check that every rank's rows are in the file and mc names model chunks, or leave out point-to-point rows",
                where="graph",
            )
    return pairs
