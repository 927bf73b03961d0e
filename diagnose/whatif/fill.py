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
        The paper's, without batches and barriers.

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
    in_graph: set[int] = set()
    moved: dict[int, Seconds] = {}
    for i, event in enumerate(graph.events):
        in_graph.update(event.completes)
        for node in event.members:
            after = np.zeros(shape)
            for source in graph.waits[node]:
                after = np.maximum(after, end_s[source])
            gone = np.isnan(start_s[node])
            pause = delay[node] if block.absent is None else np.where(block.absent[node], 0.0, delay[node])
            start_s[node] = np.where(gone, after + pause, start_s[node])
        moved[i] = np.maximum.reduce([start_s[node] for node in event.members])
        if event.across_dp:
            moved[i] = moved[i].max(axis=1, keepdims=True)
        for node in event.completes:
            filled = np.maximum(moved[i] + own[node], start_s[node])
            if block.absent is not None:
                filled = np.where(block.absent[node], start_s[node], filled)
            end_s[node] = np.where(np.isnan(end_s[node]), filled, end_s[node])
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
