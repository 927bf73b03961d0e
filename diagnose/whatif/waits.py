"""A block's graph with waits added: what a component holds up starts when that ends, whenever that is in a scenario.

Enters: an observed block, and what waited for what. Leaves: a graph with barriers, and launch delays. Costs one sort of the nodes.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.trace import Bools, Seconds
from diagnose.whatif.contention import are_own_gradients, late_tolerance
from diagnose.whatif.graph import Barrier, Graph, add_barriers
from diagnose.whatif.observed import Observed


@dataclasses.dataclass(frozen=True, slots=True)
class WaitGraph:
    """A block's graph in which some computes wait for what held them up.

    `delay` are the launch delays of these computes beyond that, by node: seconds, shape (n_steps, n_dp).
    """

    graph: Graph
    delay: dict[int, Seconds]

    def graph_of(self, at: slice) -> Graph:
        """Give the graph of some of the steps."""
        n_steps = max(len(late) for late in self.delay.values())
        if len(range(n_steps)[at]) == n_steps:
            return self.graph
        cut = {
            node: tuple(
                b if b.lanes is None or b.lanes.ndim < 2 else dataclasses.replace(b, lanes=b.lanes[at])
                for b in barriers
            )
            for node, barriers in self.graph.barriers.items()
        }
        return dataclasses.replace(self.graph, barriers=cut)


def add_waits(
    o: Observed, waited_for: Mapping[int, Mapping[int, Bools]], inside_s: Mapping[int, Seconds]
) -> WaitGraph | None:
    """Let held computes wait for what held them up; None where nothing did, or where the waits would be circular.

    `inside_s` says, by node, how long they waited while they ran: shape (n_steps, n_dp).
    """
    barriers, delay = {}, {}
    # A job of one dp rank has no data-parallel collectives.
    replayed = {node for event in o.graph.events for node in event.completes}
    for node, all_sources in waited_for.items():
        sources = {source: lanes for source, lanes in all_sources.items() if source in replayed}
        if not sources or node not in replayed:
            continue
        start = o.block.start_s[node]
        opens, worked_s = np.full(start.shape, -np.inf), np.zeros(start.shape)
        for source, lanes in sources.items():
            later = lanes & (o.block.end_s[source] > opens)
            opens = np.where(later, o.block.end_s[source], opens)
            if are_own_gradients(o.block.nodes, source, node):
                worked_s = np.where(later, np.maximum(opens - start - inside_s.get(node, 0.0), 0.0), worked_s)
        held = np.isfinite(opens)
        # A late compute starts when that ends, within the clock's error; one held inside began before, and works from then on. What
        # it did until its own gradients were on their way is done by then.
        after_s = start - opens
        inside = after_s < -late_tolerance(o, node)
        delay[node] = np.where(held, np.where(inside, -worked_s, after_s), o.delay[node])
        barriers[node] = tuple(Barrier((source,), across_dp=False, lanes=lanes) for source, lanes in sources.items())
    if not barriers:
        return None
    try:
        return WaitGraph(add_barriers(o.block.nodes, o.graph, barriers), delay)
    except TraceError:
        return None
