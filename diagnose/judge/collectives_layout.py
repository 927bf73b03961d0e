"""How ranks are laid out over tensor, data and pipeline parallelism, by the groups that a recording has.

Enters: `Collectives`. Leaves: a `Layout`.
"""

import dataclasses

import numpy as np

from diagnose.model.collectives import NONE, Collectives
from diagnose.model.place import Worker


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Ranks in the order of Megatron-LM and of device meshes with the pipeline outside: tensor first, then data, then pipeline.

    Where groups do not tell, `is_known` is False and each rank counts as its own dp rank.
    """

    recorded: Collectives
    tp: int
    dp: int
    pp: int
    is_known: bool

    def worker(self, rank: int) -> Worker:
        """Say where a rank is."""
        host = self.recorded.host_of(rank)
        tp = rank % self.tp if self.tp > 1 else None
        return Worker(rank // self.tp % self.dp, rank // (self.tp * self.dp), rank, host, tp=tp)


def find_layout(recorded: Collectives) -> Layout:
    """Find how many ranks are in a tensor group and in a pipeline: blocks of ranks in a row, and ranks a stage apart."""
    world = max(1, recorded.world_size)
    unknown = Layout(recorded, 1, world, 1, is_known=False)
    mixed = set(np.unique(recorded.communicator[recorded.peer != NONE]).tolist())
    tp = pp = 1
    for g, each in enumerate(recorded.communicators):
        ranks = each.ranks[each.ranks != NONE]
        size = len(ranks)
        steps = np.unique(np.diff(ranks))
        if size < 2 or (size == world and g not in mixed):
            continue
        if g in mixed:
            if len(steps) != 1 or int(steps[0]) * size != world or pp not in (1, size):
                return unknown
            pp = size
        elif len(steps) == 1 and int(steps[0]) == 1:
            if tp not in (1, size) or int(ranks[0]) % size:
                return unknown
            tp = size
    if tp == world or world % (tp * pp):
        return unknown
    return Layout(recorded, tp, world // (tp * pp), pp, is_known=recorded.are_ranks_known)
