"""Slow workers: one worker takes longer than its peers on the same stage, in all steps, from one on, or in single ones."""

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.stalls import Whose
from diagnose.model.trace import Seconds
from diagnose.whatif.components.component import ByNode, Component, Extent, Lanes, Part, cut, mix
from diagnose.whatif.computes import Place
from diagnose.whatif.medians import lower_median


class WorkerPart(Part):
    """Without it a slow worker takes as long as its peers: a fault adds work, and the work goes with it."""

    changes_work = True

    def find(self) -> None:
        """Find what slow workers' optimizers would take: as long as those of their peers."""
        self._peers_s = [self._peers_of(i) for i in range(len(self.job.observed))]

    def is_present(self) -> bool:
        """Say whether a worker is slow, or stalls as a slow one does."""
        return bool(self.job.components.slow_workers.any()) or super().is_present()

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Give a compute of a slow worker the work of its peers'."""
        direction, virtual, _ = place
        c = self.job.components
        if not c.slow_workers[:, virtual % self.job.n_stages].any():
            return work
        return work / mix(lanes, c.worker_ratio[direction, virtual, steps], 1.0)

    def ease_block(self, i: int, own: list[Seconds], delay: list[Seconds], at: slice, extent: Extent) -> None:
        """Let the optimizers of slow workers take as long as their peers', too."""
        stage = self.job.observed[i].block.nodes.stage
        for node, peers_s in self._peers_s[i].items():
            quicker = np.minimum(own[node], cut(peers_s, at))
            own[node] = np.asarray(mix(extent.lanes(int(stage[node])), quicker, own[node]))
        super().ease_block(i, own, delay, at, extent)

    def blame(self) -> Seconds | None:
        """Add up what each worker takes longer than its peers, and its stalls."""
        c = self.job.components
        longer = np.nan_to_num(c.compute_s) * (1.0 - 1.0 / c.worker_ratio[:, :, None])
        return self.blame_stalls(self.job.by_worker(longer))

    def _peers_of(self, i: int) -> ByNode:
        """Give the peers' optimizer time for the optimizers of slow workers, infinite for others, by node of a block."""
        o = self.job.observed[i]
        nodes, found = o.block.nodes, ByNode()
        for node in np.flatnonzero(nodes.op == Op.OPTIMIZER).tolist():
            slow = self.job.components.slow_workers[:, nodes.stage[node]]
            if slow.any():
                peers = lower_median(o.own[node], axis=1)[:, None]
                found[node] = np.where(slow, np.maximum(peers, 0.0), np.inf)
        return found


COMPONENT = Component("worker", WorkerPart, inside=Whose.WORKER, before=Whose.WORKER)
