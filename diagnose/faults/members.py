"""Record every tensor- and context-parallel member of each worker, one of them late where a fault sits at it.

Enters: rows of workers, one an operation, and which members are late in them. Leaves: rows of all members. The operation of the
group is what was simulated: it begins with the first member and ends with the last.
"""

import dataclasses

import numpy as np

from diagnose.faults.spec import JobSpec
from diagnose.model.trace import Bools, Ints, Seconds

#: Name of the rows in which members wait for each other.
WAIT = "tp-allreduce"
#: Members start, or end, together up to so many seconds.
JITTER_S = 4e-6


@dataclasses.dataclass(frozen=True, slots=True)
class LateMember:
    """A member that its worker's computes wait for."""

    dp: int
    stage: int
    #: Member `cp * tp_size + tp` of the worker.
    member: int
    #: Shape (n_tasks, n_steps). Seconds by which the others are earlier, by task.
    late_s: Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class MemberTimes:
    """Times of all members, shape (n_rows, n_members) each, seconds; `wait_s` of their waits for each other, or None."""

    start_s: Seconds
    duration_s: Seconds
    wait_s: Seconds | None


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerRows:
    """Rows of one kind; all arrays have shape (n_rows,), `task` -1 where a row is no task's."""

    op: Ints
    task: Ints
    seq: Ints
    step: Ints
    dp: Ints
    stage: Ints
    start_s: Seconds
    duration_s: Seconds


def spread_members(
    spec: JobSpec,
    late: tuple[LateMember, ...],
    rows: WorkerRows,
    compute: Bools,
) -> MemberTimes:
    """Give each member times of its own.

    `compute` marks the rows of computes. One member, drawn for each of them, is the slowest unless a fault makes one so; the others
    are earlier by ordinary noise. What is no compute begins and ends together. Clocks of hosts are off by a constant.
    `spec.members` says where lateness shows.
    """
    dp, stage, start_s, duration_s = rows.dp, rows.stage, rows.start_s, rows.duration_s
    rng, n_members = spec.random("member"), spec.n_members
    shape = (len(start_s), n_members)
    early_s = spec.member_noise * duration_s[:, None] * np.abs(rng.standard_normal(shape))
    early_s -= early_s.min(axis=1, keepdims=True)
    for one in late:
        at = np.flatnonzero(compute & (dp == one.dp) & (stage == one.stage))
        behind_s = one.late_s[rows.task[at], rows.step[at]]
        others = np.arange(n_members) != one.member
        early_s[at] += behind_s[:, None] * others
        early_s[at] -= early_s[at].min(axis=1, keepdims=True)
    early_s = np.where(compute[:, None], np.minimum(early_s, 0.95 * duration_s[:, None]), 0.0)
    jitter_s = np.abs(JITTER_S * rng.standard_normal(shape))
    jitter_s -= jitter_s.min(axis=1, keepdims=True)
    jitter_s = np.where(compute[:, None], np.minimum(jitter_s, 0.01 * duration_s[:, None]), 0.0)
    wait_s = None
    starts_s, ends_s = start_s[:, None] + jitter_s, np.repeat((start_s + duration_s)[:, None], n_members, axis=1)
    if spec.members == "ends":
        ends_s = ends_s - early_s
    elif spec.members == "starts":
        # The last to start is the late one, and the first to start waits longest.
        starts_s = start_s[:, None] + (early_s.max(axis=1, keepdims=True) - early_s)
        ends_s = ends_s - jitter_s
    else:
        wait_s = np.where(compute[:, None], early_s, np.nan)
    rank = np.arange(spec.pp * spec.dp * n_members).reshape(spec.pp, spec.dp, n_members).transpose(1, 0, 2)
    clock_s = spec.member_clock_s * rng.standard_normal(rank.size)[rank // max(spec.members_per_host, 1)]
    return MemberTimes(starts_s + clock_s[dp, stage], ends_s - starts_s, wait_s)
