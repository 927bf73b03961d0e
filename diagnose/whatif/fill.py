"""Fill the gaps of a block: operations whose rows were lost, and those that do not exist on a rank.

Enters: a block with NaN. Leaves: the same block without, so that everything after it can do without masks; `filled` says
where, so that nothing is learned from what was filled.
"""

import dataclasses
import warnings

import numpy as np

from diagnose.model.optype import COMPUTE, P2P, of_types
from diagnose.model.trace import Block, Bools, Seconds
from diagnose.numerics.robust import nan_median
from diagnose.whatif.batches import HELD_SHARE, SampledLanes, find_all_batches
from diagnose.whatif.graph import Event, Graph
from diagnose.whatif.levels import OfNodes
from diagnose.whatif.replay import launch_delays, own_times

#: A member that started this many own times before its group's end did not start last.
WAITED_RATIO = 1.5


def fill_block(block: Block, graph: Graph) -> Block:
    """Give every missing operation a start and an end, in topological order, that those recorded beside it allow.

    A missing member of a batch has the times of the batch. A missing member of a pair or collective ends with it; where what it
    waited for is missing, too, it started last if all others waited. Every other operation starts its usual launch delay after what
    it waited for, takes its usual own time (medians over the lanes that have it, else over its type), and ends before what waited
    for it. One that does not exist there (`absent`) takes no time.

    What comes back has no NaN and no `absent`.
    """
    gone = np.isnan(block.start_s)
    if not gone.any():
        return block
    start_s, end_s = block.start_s.copy(), block.end_s.copy()
    batches = find_all_batches(block)
    _copy_batches(batches, start_s, end_s)
    known = dataclasses.replace(block, start_s=start_s.copy(), end_s=end_s.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a node missing in all lanes has no median: the type's is used
        own = _usual(block, own_times(known, graph))
        delay = _usual(block, launch_delays(known, graph))
    waiters: list[list[int]] = [[] for _ in range(graph.n_nodes)]
    for node, sources in enumerate(graph.waits):
        for source in sources:
            waiters[source].append(node)
    compute, transfers = {int(op) for op in COMPUTE}, {int(op) for op in P2P}
    batched, in_graph = {node for batch in batches for node in batch}, set[int]()
    buffers = _buffers_sends(block, graph)
    for event in graph.events:
        in_graph.update(event.completes)
        if not np.isnan(start_s[list(event.members)]).any():
            continue
        ready = {node: _ready(node, graph, end_s, block, delay[node]) for node in event.members}
        if int(block.nodes.op[event.members[0]]) in compute:
            (node,) = event.members
            _fill_compute(node, ready[node], own[node], waiters[node], start_s, end_s)
        else:
            unsure = {node: np.any(gone[list(graph.waits[node])], axis=0) for node in event.members}
            _fill_group(event, ready, unsure, own, waiters, batched, start_s, end_s)
            if buffers and len(event.members) == 2 and int(block.nodes.op[event.members[0]]) in transfers:
                _part_pair(event, gone, ready, own, waiters, start_s, end_s)
        if block.absent is not None:
            for node in event.members:
                start_s[node] = np.where(block.absent[node], ready[node], start_s[node])
                end_s[node] = np.where(block.absent[node], ready[node], end_s[node])
    # What was filled cannot outlast the step that was recorded.
    last_s = np.fmax.reduce(np.fmax.reduce(block.end_s, axis=0), axis=1)[None, :, None]
    start_s, end_s = np.minimum(start_s, last_s), np.minimum(end_s, last_s)
    for node in set(range(graph.n_nodes)) - in_graph:
        start_s[node] = end_s[node] = 0.0
    filled = gone if block.absent is None else gone & ~block.absent
    return dataclasses.replace(
        block, start_s=start_s, end_s=end_s, absent=None, filled=filled if filled.any() else None
    )


def fill_again(block: Block, graph: Graph) -> Block:
    """Fill what was filled by the graph that times show: what waits for other workers was taken to wait for its own alone."""
    if block.filled is None:
        return block
    start_s, end_s = (np.where(block.filled, np.nan, times_s) for times_s in (block.start_s, block.end_s))
    return fill_block(dataclasses.replace(block, start_s=start_s, end_s=end_s, filled=None), graph)


def _copy_batches(batches: list[tuple[int, ...]], start_s: Seconds, end_s: Seconds) -> None:
    """Give lost operations of a blocking batch the times of those of the batch that were recorded."""
    for batch in batches:
        first, last = np.fmax.reduce(start_s[list(batch)]), np.fmax.reduce(end_s[list(batch)])
        for node in batch:
            start_s[node] = np.where(np.isnan(start_s[node]), first, start_s[node])
            end_s[node] = np.where(np.isnan(end_s[node]), last, end_s[node])


def _ready(node: int, graph: Graph, end_s: Seconds, block: Block, delay: float) -> Seconds:
    """Say when an operation would usually start: its launch delay after all that it waits for."""
    after = np.zeros(end_s.shape[1:])
    for opened_s in (
        *(end_s[source] for source in graph.waits[node]),
        *(barrier.opens(end_s) for barrier in graph.barriers.get(node, ())),
    ):
        after = np.maximum(after, opened_s)
    return after + (delay if block.absent is None else np.where(block.absent[node], 0.0, delay))


def _bound(waiters: list[int], start_s: Seconds) -> Seconds:
    """Say when what waits for an operation began, at the earliest; infinite where none was recorded."""
    return np.asarray(np.fmin.reduce([np.full(start_s.shape[1:], np.inf), *(start_s[waiter] for waiter in waiters)]))


def _fill_compute(node: int, ready: Seconds, own: float, waiters: list[int], start_s: Seconds, end_s: Seconds) -> None:
    """Fill a lost compute: it ended before anything that waited for it and was recorded."""
    gone = np.isnan(start_s[node])
    end = np.minimum(ready + own, _bound(waiters, start_s))
    end_s[node] = np.where(gone, end, end_s[node])
    start_s[node] = np.where(gone, np.minimum(ready, end), start_s[node])


def _fill_group(
    event: Event,
    ready: dict[int, Seconds],
    unsure: dict[int, Bools],
    own: list[float],
    waiters: list[list[int]],
    batched: set[int],
    start_s: Seconds,
    end_s: Seconds,
) -> None:
    """Fill the lost members of a pair or collective from those that were recorded.

    A member ends with its batch, which may be long after all have moved: the quickest of them says how long they move, and the
    others end when they usually do, and before what waited for them. When one was ready is `unsure` where what it waited for is
    lost, too.
    """
    members = list(event.members)
    starts, ends = start_s[members], end_s[members]  # (n_members, n_steps, n_dp)
    axes: tuple[int, ...] = (0, 2) if event.across_dp else (0,)
    together = np.broadcast_to(nan_median(ends, axis=axes, keepdims=True), ends.shape)
    latest = np.broadcast_to(np.fmax.reduce(starts, axis=axes, keepdims=True), ends.shape)
    begun = np.stack([ready[node] for node in members])
    took = min(own[node] for node in members)
    usual_end = np.broadcast_to(begun.max(axis=axes, keepdims=True), ends.shape) + took
    for at, node in enumerate(members):
        gone = np.isnan(starts[at])
        nobody = np.isnan(together[at])  # no member was recorded: the group moves when its last member is ready
        all_waited = latest[at] < together[at] - WAITED_RATIO * took
        last_start = together[at] - took
        start = np.where(all_waited & unsure[node], last_start, np.minimum(begun[at], last_start))
        beside_batch = node not in batched and not batched.isdisjoint(members)
        ended = np.minimum(together[at], usual_end[at]) if beside_batch else together[at]
        end = np.minimum(np.where(nobody, usual_end[at], ended), _bound(waiters[node], start_s))
        end_s[node] = np.where(gone, end, ends[at])
        start_s[node] = np.where(gone, np.minimum(np.where(nobody, begun[at], start), end), starts[at])


def _buffers_sends(block: Block, graph: Graph) -> bool:
    """Say whether sends end before their recv has begun, as no other do: then neither tells when the other ended."""
    members = graph.moves.members
    pairs = members.take(np.flatnonzero(members.lengths == 2)).flat.reshape(-1, 2)
    send, recv = pairs[of_types(block.nodes.op[pairs[:, 0]], P2P)].T
    sample = SampledLanes(block)
    early_s = sample.start_s[recv] - sample.end_s[send]
    return bool((early_s > sample.tolerance_s).sum() > (1.0 - HELD_SHARE) * np.isfinite(early_s).sum())


def _part_pair(
    event: Event,
    gone: Bools,
    ready: dict[int, Seconds],
    own: list[float],
    waiters: list[list[int]],
    start_s: Seconds,
    end_s: Seconds,
) -> None:
    """Let a lost send end by itself, and a lost recv not before it could begin, where sends are buffered."""
    send, recv = event.members
    sent = np.minimum(ready[send] + own[send], end_s[send])
    received = np.maximum(ready[recv], start_s[send]) + own[recv]
    for node, end in ((send, sent), (recv, np.minimum(received, _bound(waiters[recv], start_s)))):
        end_s[node] = np.where(gone[node], end, end_s[node])
        start_s[node] = np.where(gone[node], np.minimum(ready[node], end), start_s[node])


def _usual(block: Block, times: OfNodes) -> list[float]:
    """Take the median of each node over its lanes; of its type where no lane has it; 0 where nothing has."""
    medians = np.array([float(np.nanmedian(array)) if not np.isnan(array).all() else np.nan for array in times])
    for op in np.unique(block.nodes.op):
        of_op = block.nodes.op == op
        usual = np.nanmedian(medians[of_op]) if not np.isnan(medians[of_op]).all() else 0.0
        medians[of_op & np.isnan(medians)] = usual
    return [float(m) for m in medians]
