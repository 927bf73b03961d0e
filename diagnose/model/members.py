"""The tensor- and context-parallel members of each worker, where a trace records them all: who of them comes late, by how much."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

#: How the names of collectives within a tensor- or context-parallel group begin (ndtimeline: `tp-allreduce`).
GROUP_PREFIXES = ("tp-", "cp-")
#: What a wait within a compute is called that an adapter measured: for members of a tensor- or context-parallel group, or for other
#: data-parallel ranks.
WAITS = ("tp-wait", "cp-wait", "dp-wait")
#: The all-to-alls of experts, as the trace format calls them: whoever comes early waits in them for the last of a group.
ALL_TO_ALLS = ("ep-dispatch", "ep-combine")


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """How the members of each worker's group stand to each other, by step.

    Member `cp * n_tp + tp` is the one at these indices, as Megatron-LM numbers global ranks: tensor-parallel fastest.
    """

    #: `tp`, `cp`: shape (n_members,): labels of each member in the columns of the file; None where it has no such column.
    tp: NDArray[np.int64] | None
    cp: NDArray[np.int64] | None
    #: Shape (n_dp, n_stages, n_members): global ranks, -1 where a member has no row; None where the file does not tell members
    #: apart by them.
    ranks: NDArray[np.int64] | None
    #: Host of each member, at position `(dp_index * n_stages + stage_index) * n_members + member`; "" where not known.
    hosts: tuple[str, ...] | None
    #: Shape (n_steps,): step numbers, increasing; those that are not analysed are among them.
    steps: NDArray[np.int64]
    #: Shape (n_steps, n_dp, n_stages, n_members): seconds by which the computes of a member come after the median of the
    #: others, mean over the step, clocks corrected: their ends, or where `starts_late` their starts. NaN where a member has no
    #: row, or none that all others have, too.
    late_s: NDArray[np.float64]
    #: Shape (n_steps, n_dp, n_stages, n_members): part of the computes in which the member is the last; NaN as `late_s`.
    last_share: NDArray[np.float64]
    #: Shape (n_steps, n_dp, n_stages): computes that all members of the worker have.
    n_compared: NDArray[np.int64]
    #: Shape (n_dp, n_stages): True where members end together and start apart: whoever starts last is the one the others wait
    #: for.
    starts_late: NDArray[np.bool_]
    #: Shape (n_dp, n_stages): how much more the side that tells of lateness varies than the other, by which clocks are
    #: compared; near 1 a late member cannot be told from a clock that is off. NaN where nothing was compared.
    tightness: NDArray[np.float64]
    #: Shape (n_dp, n_stages, n_members): how far a member's clock is ahead of the first member's, seconds, median over steps.
    clock_s: NDArray[np.float64]
    #: Shape (n_steps, n_dp, n_stages, n_members): seconds in the collectives of the group; NaN where the members do not have
    #: equally many. None: not recorded.
    wait_s: NDArray[np.float64] | None

    @property
    def n_members(self) -> int:
        """Members of a group."""
        return int(self.late_s.shape[3])

    def host(self, dp: int, stage: int, member: int) -> str | None:
        """Name the host of a member; None where the file does not say."""
        if self.hosts is None:
            return None
        n_stages = self.late_s.shape[2]
        return self.hosts[(dp * n_stages + stage) * self.n_members + member] or None

    def hosts_of(self, dp: int, stage: int) -> tuple[str, ...]:
        """Name the hosts of a worker's members, each once."""
        found = (self.host(dp, stage, member) for member in range(self.n_members))
        return tuple(dict.fromkeys(host for host in found if host))

    def rank(self, dp: int, stage: int, member: int) -> int | None:
        """Give the global rank of a member; None where it is not known."""
        if self.ranks is None or self.ranks[dp, stage, member] < 0:
            return None
        return int(self.ranks[dp, stage, member])


@dataclasses.dataclass(frozen=True, slots=True)
class LateMember:
    """The member that its group waits for, or the reason why none can be named."""

    #: None where nobody is named; then `reason` says why, and is empty otherwise.
    member: int | None
    #: Seconds a compute by which it is late, or by which it waits less than the others; None where nothing was compared.
    late_s: float | None = None
    #: The same over what the worker loses in a compute: 1 accounts for all of it.
    late_share: float | None = None
    #: Part of the computes in which it is the last (or of the steps, in which it waits least).
    last_share: float | None = None
    #: One of "ends", "starts", "waits", or empty: what it is late with: it ends last, starts last, or waits least in the
    #: group's collectives.
    how: str = ""
    reason: str = ""
