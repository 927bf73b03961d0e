"""The tensor- and context-parallel members of each worker, where a trace records them all: who of them comes late, by how much."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

#: How the names of collectives within a tensor- or context-parallel group begin (ndtimeline: `tp-allreduce`).
GROUP_PREFIXES = ("tp-", "cp-")


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """How the members of each worker's group stand to each other, by step.

    Member `cp * n_tp + tp` is the one at these indices, as Megatron-LM numbers global ranks: tensor-parallel fastest.

    Attributes
    ----------
    tp, cp : ndarray of int64, shape (n_members,), or None
        Labels of each member in the columns of the file; None where it has no such column.
    ranks : ndarray of int64, shape (n_dp, n_stages, n_members), or None
        Global ranks, -1 where a member has no row; None where the file does not tell members apart by them.
    hosts : tuple of str, or None
        Host of each member, at position `(dp_index * n_stages + stage_index) * n_members + member`; "" where not known.
    steps : ndarray of int64, shape (n_steps,)
        Step numbers, increasing; those that are not analysed are among them.
    late_s : ndarray of float64, shape (n_steps, n_dp, n_stages, n_members)
        Seconds by which the computes of a member come after the median of the others, mean over the step, clocks corrected: their
        ends, or where `starts_late` their starts. NaN where a member has no row, or none that all others have, too.
    last_share : ndarray of float64, shape (n_steps, n_dp, n_stages, n_members)
        Part of the computes in which the member is the last; NaN as `late_s`.
    n_compared : ndarray of int64, shape (n_steps, n_dp, n_stages)
        Computes that all members of the worker have.
    starts_late : ndarray of bool, shape (n_dp, n_stages)
        True where members end together and start apart: whoever starts last is the one the others wait for.
    tightness : ndarray of float64, shape (n_dp, n_stages)
        How much more the side that tells of lateness varies than the other, by which clocks are compared; near 1 a late member
        cannot be told from a clock that is off. NaN where nothing was compared.
    clock_s : ndarray of float64, shape (n_dp, n_stages, n_members)
        How far a member's clock is ahead of the first member's, seconds, median over steps.
    wait_s : ndarray of float64, shape (n_steps, n_dp, n_stages, n_members), or None
        Seconds in the collectives of the group; NaN where the members do not have equally many. None: not recorded.
    """

    tp: NDArray[np.int64] | None
    cp: NDArray[np.int64] | None
    ranks: NDArray[np.int64] | None
    hosts: tuple[str, ...] | None
    steps: NDArray[np.int64]
    late_s: NDArray[np.float64]
    last_share: NDArray[np.float64]
    n_compared: NDArray[np.int64]
    starts_late: NDArray[np.bool_]
    tightness: NDArray[np.float64]
    clock_s: NDArray[np.float64]
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
    """The member that its group waits for, or the reason why none can be named.

    Attributes
    ----------
    member : int or None
        None where nobody is named; then `reason` says why, and is empty otherwise.
    late_s : float or None
        Seconds a compute by which it is late, or by which it waits less than the others; None where nothing was compared.
    late_share : float or None
        The same over what the worker loses in a compute: 1 accounts for all of it.
    last_share : float or None
        Part of the computes in which it is the last (or of the steps, in which it waits least).
    how : "ends", "starts", "waits" or ""
        What it is late with: it ends last, starts last, or waits least in the group's collectives.
    """

    member: int | None
    late_s: float | None = None
    late_share: float | None = None
    last_share: float | None = None
    how: str = ""
    reason: str = ""
