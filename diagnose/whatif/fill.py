"""Fill the gaps of a block: operations whose rows were lost, and those that do not exist on a rank.

Enters: a block with NaN. Leaves: the same block without, so that everything after it can do without masks.
"""

import dataclasses
import warnings

import numpy as np

from diagnose.model.trace import Block, Seconds
from diagnose.whatif.graph import Graph
from diagnose.whatif.replay import launch_delays, own_times


def fill_block(block: Block, graph: Graph) -> Block:
    """Give every missing operation a start and an end, in topological order.

    A missing operation starts its usual launch delay after what it waited for and takes its usual own time (medians
    over the lanes that have it, else over its type). One that does not exist there (`absent`) takes no time.

    Parameters
    ----------
    block : Block
    graph : Graph

    Returns
    -------
    Block
        Without NaN, and without `absent`. The same object where nothing was missing.
    """
    if not np.isnan(block.start_s).any():
        return block
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a node missing in all lanes has no median: the type's is used
        own = _usual(block, own_times(block, graph))
        delay = _usual(block, launch_delays(block, graph))
    start_s, end_s = block.start_s.copy(), block.end_s.copy()
    shape = start_s.shape[1:]
    in_graph = set()
    for event in graph.events:
        in_graph.update(event.members)
        ready: list[Seconds] = []
        for node in event.members:
            after = np.zeros(shape)
            for source in graph.waits[node]:
                after = np.maximum(after, end_s[source])
            for barrier in graph.barriers.get(node, ()):
                gate = np.maximum.reduce([end_s[source] for source in barrier.sources])
                gate = gate.max(axis=1, keepdims=True) if barrier.across_dp else gate
                after = np.maximum(after, gate if barrier.lanes is None else np.where(barrier.lanes, gate, -np.inf))
            gone = np.isnan(start_s[node])
            absent = gone if block.absent is None else gone & block.absent[node]
            start_s[node] = np.where(gone, after + np.where(absent if block.absent is not None else False, 0.0, delay[node]), start_s[node])
            ready.append(start_s[node])
        moved = np.maximum.reduce(ready)
        if event.across_dp:
            moved = moved.max(axis=1, keepdims=True)
        for node in event.members:
            gone = np.isnan(end_s[node])
            filled = np.maximum(moved + own[node], start_s[node])
            if block.absent is not None:
                filled = np.where(block.absent[node], start_s[node], filled)
            end_s[node] = np.where(gone, filled, end_s[node])
    for node in set(range(graph.n_nodes)) - in_graph:
        start_s[node] = end_s[node] = 0.0
    return dataclasses.replace(block, start_s=start_s, end_s=end_s, absent=None)


def _usual(block: Block, times: list[Seconds]) -> list[float]:
    """Take the median of each node over its lanes; of its type where no lane has it; 0 where nothing has."""
    medians = np.array([float(np.nanmedian(array)) if not np.isnan(array).all() else np.nan for array in times])
    for op in np.unique(block.nodes.op):
        of_op = block.nodes.op == op
        usual = np.nanmedian(medians[of_op]) if not np.isnan(medians[of_op]).all() else 0.0
        medians[of_op & np.isnan(medians)] = usual
    return [float(m) for m in medians]
