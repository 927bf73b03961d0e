"""When each operation of one step ran, and when it would have run: timelines for pictures and trace viewers.

Enters: observed blocks, prepared blocks and changes. Leaves: `Timeline`s. Costs one replay of a single step each.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.change import Change, Remove, Reschedule
from diagnose.model.timeline import Timeline
from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Graph
from diagnose.whatif.levels import OfNodes
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.replay import replay_ends
from diagnose.whatif.scenarios import Prepared


class Timelines:
    """Draws single steps of a job.

    Parameters
    ----------
    prepared : sequence of Prepared
        For ideal times.
    removal : Removal
        For what was recorded, and for changes.
    """

    def __init__(self, prepared: Sequence[Prepared], removal: Removal) -> None:
        self._prepared = prepared
        self._removal = removal

    def recorded(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step as it was recorded; None where it was not analysed. What was filled in is NaN."""
        found = self._find(step)
        if found is None:
            return None
        _, o, at = found
        start_s, end_s = o.block.start_s[:, at], o.block.end_s[:, at]
        step_s = float(end_s.max())
        for hidden in (o.block.filled, o.block.absent):
            if hidden is not None:
                start_s, end_s = (np.where(hidden[:, at], np.nan, values) for values in (start_s, end_s))
        return _timeline("recorded", step, dp, o, start_s, end_s, step_s)

    def ideal(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step with ideal own times and without launch delays (arXiv 2505.05713); None where it was not analysed."""
        for p in self._prepared:
            if step in p.block.steps:
                start_s, end_s = _times(p.graph, p.ideal, None, (len(p.block.nodes), p.block.n_dp))
                like = Observed(p.block, p.graph, p.own, [])
                return _timeline("ideal", step, dp, like, start_s, end_s, float(np.nanmax(end_s)))
        return None

    def changed(self, name: str, step: int, dp: Ints, changes: Sequence[Change]) -> Timeline | None:
        """Give a step replayed with some changes; None where it was not analysed, or runs under another schedule."""
        found = self._find(step)
        if found is None or any(isinstance(change, Reschedule) for change in changes):
            return None
        i, o, at = found
        graph, own, delay = self._removal.change_steps(i, changes, slice(at, at + 1))
        start_s, end_s = _times(graph, own, delay, (len(o.block.nodes), o.block.n_dp))
        if o.block.absent is not None:
            start_s, end_s = (np.where(o.block.absent[:, at], np.nan, values) for values in (start_s, end_s))
        return _timeline(name, step, dp, o, start_s, end_s, float(np.nanmax(end_s)))

    def clean(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step replayed with every component removed."""
        return self.changed("clean", step, dp, [Remove(name) for name in self._removal.present()])

    def _find(self, step: int) -> tuple[int, Observed, int] | None:
        """Find the block that has a step, and its position there."""
        for i, o in enumerate(self._removal.observed):
            at = np.flatnonzero(o.block.steps == step)
            if len(at):
                return i, o, int(at[0])
        return None


def _timeline(name: str, step: int, dp: Ints, o: Observed, start_s: Seconds, end_s: Seconds, step_s: float) -> Timeline:
    """Keep some dp ranks of a step."""
    return Timeline(name, step, dp, o.block.nodes, start_s[:, dp], end_s[:, dp], tuple(o.pairs), step_s)


def _times(graph: Graph, own: OfNodes, delay: OfNodes | None, shape: tuple[int, int]) -> tuple[Seconds, Seconds]:
    """Say when each operation starts and ends in one step: seconds, shape (n_nodes, n_dp); NaN where the graph leaves it out."""
    ends = replay_ends(graph, own, delay)
    known = {node: end for node, end in enumerate(ends) if end is not None}
    start_s, end_s = np.full(shape, np.nan), np.full(shape, np.nan)
    for node, end in known.items():
        end_s[node] = end[0]
        sources = [known[source][0] for source in graph.waits[node] if source in known]
        sources += [barrier.opens(known)[0] for barrier in graph.barriers.get(node, ())]
        ready = np.max(np.broadcast_arrays(*sources), axis=0) if sources else np.zeros(1)
        ready = np.where(np.isneginf(ready), 0.0, ready)  # where it waits for nothing
        start_s[node] = np.minimum(ready + (0.0 if delay is None else delay[node][0]), end[0])
    return start_s, end_s
