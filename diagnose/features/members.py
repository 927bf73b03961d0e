"""Which tensor- or context-parallel member of a slow worker the others wait for, where the trace records them all.

A member is named only where three things hold: it is last much more often than by chance; the seconds by which it is late are a
good part of those by which the worker is behind its peers; and it did not itself wait for the others.
"""

import numpy as np

from diagnose.features.workers import is_slow, slow_steps, slow_workers
from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.members import LateMember, Members
from diagnose.model.trace import Ints, Seconds, Trace

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "member.last_share": "part of the slowest worker's computes in which the same tensor- or context-parallel member is last "
    "(starts last where members end together, waits least where only waits tell); 1 always it, 1 over the number of members "
    "chance; misleads where a member's clock drifts within a step",
    "member.late_share": "seconds by which that member is behind the others over those by which the worker is behind its peers; 1 "
    "it accounts for all, 0 all members are slow alike; misleads where waits within operations are not recorded: all look alike",
}
#: Fewer computes than this, or fewer steps in which waits are known, are no evidence.
MIN_COMPUTES = 16
MIN_STEPS = 3
#: A member is named where it is last in this part of the way from chance to always, and late by this part of what the worker lost.
LAST_SHARE = 0.5
LATE_SHARE = 0.5
#: Times differ this many times as much where members come late as where they meet. With clocks that are off by a constant, and
#: nobody late, they differ alike: 1.
MIN_TIGHTNESS = 2.0


def find_late_members(trace: Trace, breakdown: Breakdown) -> dict[tuple[int, int], LateMember]:
    """Find the late member of each slow worker, by (dp index, stage index), or why none can be named.

    Empty where the trace records one row for all members.
    """
    if trace.members is None:
        return {}
    return {worker: _find_late_member(trace.members, breakdown, worker) for worker in slow_workers(breakdown)}


def count_members(trace: Trace, breakdown: Breakdown) -> int:
    """Count the members of the slowest worker where one of them is what makes it slow; else 1."""
    late = find_late_members(trace, breakdown)
    is_one = bool(late) and late[slow_workers(breakdown)[0]].member is not None
    return trace.members.n_members if trace.members is not None and is_one else 1


def measure_members(trace: Trace, breakdown: Breakdown) -> Features:
    """Measure how far one member of the slowest worker is behind the others.

    They are missing where no worker is slow, or nothing tells its members apart.
    """
    slow = slow_workers(breakdown)
    if trace.members is None or not slow:
        reason = (
            "no worker is slow" if trace.members else "the trace does not record the members of a worker one by one"
        )
        return {name: Feature.missing(reason) for name in READS_AS}
    late = _find_late_member(trace.members, breakdown, slow[0])
    values = {"member.last_share": late.last_share, "member.late_share": late.late_share}
    return {
        name: Feature.missing(late.reason or "nothing was compared") if value is None else Feature(value)
        for name, value in values.items()
    }


def _find_late_member(members: Members, breakdown: Breakdown, worker: tuple[int, int]) -> LateMember:
    """Find the late member of a worker by ends and starts, and by waits, if the two do not contradict each other."""
    at, lost_s, n_computes = _measure_loss(breakdown, worker)
    position = np.searchsorted(members.steps, at)
    lateness = _find_last_member(members, worker, position, lost_s)
    waits = _find_shortest_waits(members, worker, position, lost_s, n_computes)
    if waits is None:
        return lateness
    if waits.member is None:
        if lateness.member is None or not _waits_longer(members, worker, position, lateness, n_computes):
            return lateness
        return LateMember(None, lateness.late_s, reason="the member that comes last waits longer than the others")
    if lateness.member is not None and lateness.member != waits.member:
        return LateMember(None, waits.late_s, reason="the member that comes last is not the one that waits least")
    return waits


def _measure_loss(breakdown: Breakdown, worker: tuple[int, int]) -> tuple[Ints, Seconds, Ints]:
    """Give the steps in which a worker is slow, increasing, the seconds a compute lost there, and the number of computes."""
    dp, stage = worker
    n_stages = breakdown.slow_workers.shape[1]
    steps, behind = slow_steps(breakdown, worker)
    order = np.argsort(breakdown.steps, kind="stable")
    slow = is_slow(behind)
    compute_s = breakdown.compute_s[:, stage::n_stages, :, :, dp]
    lost_s = compute_s * (1.0 - 1.0 / breakdown.worker_ratio[:, stage::n_stages, None, :, dp])
    n_computes = (~np.isnan(compute_s)).sum(axis=(0, 1, 2))
    of_step = np.nansum(lost_s, axis=(0, 1, 2)) / np.maximum(n_computes, 1)
    return steps[slow], of_step[order][slow], n_computes[order][slow]


def _find_last_member(members: Members, worker: tuple[int, int], at: Ints, excess_s: Seconds) -> LateMember:
    """Find the member that ends, or starts, after the others; `excess_s` is what the worker lost a compute."""
    weight = members.n_compared[(at, *worker)].astype(np.float64)
    n_compared = int(weight.sum())
    if n_compared < MIN_COMPUTES:
        return LateMember(None, reason=f"all members have rows of only {n_compared} computes of its slow steps")
    seen = weight > 0
    weight = weight[seen] / weight.sum()
    late_s = weight @ members.late_s[(at, *worker)][seen]
    last_share = weight @ members.last_share[(at, *worker)][seen]
    top = int(np.nanargmax(late_s))
    lost_s = float(weight @ excess_s[seen])
    found = LateMember(
        member=top,
        late_s=float(late_s[top]),
        late_share=_share_of_loss(float(late_s[top]), lost_s),
        last_share=float(last_share[top]),
        how="starts" if members.starts_late[worker] else "ends",
    )
    n_members = int((~np.isnan(late_s)).sum())
    if found.late_share is None or found.late_share < LATE_SHARE:
        return _name_nobody(
            found, f"none is later than the others by more than {max(found.late_s or 0.0, 0.0):.2g} s a compute"
        )
    if (found.last_share or 0.0) < _least_last_share(n_members):
        return _name_nobody(found, f"none is last in more than {found.last_share:.2g} of the computes")
    if members.tightness[worker] < MIN_TIGHTNESS:
        return _name_nobody(found, "a late member cannot be told from a clock that is off")
    return found


def _find_shortest_waits(
    members: Members, worker: tuple[int, int], at: Ints, excess_s: Seconds, n_computes: Ints
) -> LateMember | None:
    """Find the member that waits least in the group's collectives; None where they are not recorded for all members alike."""
    if members.wait_s is None:
        return None
    wait_s = members.wait_s[(at, *worker)]  # (n_slow_steps, n_members)
    seen = ~np.isnan(wait_s).any(axis=1)
    if int(seen.sum()) < MIN_STEPS:
        return None
    wait_s, per_step = wait_s[seen], n_computes[seen]
    total_s = wait_s.sum(axis=0)
    least = int(total_s.argmin())
    n_all = max(int(per_step.sum()), 1)
    late_s = float(np.partition(total_s, 1)[1] - total_s[least]) / n_all
    lost_s = float((excess_s[seen] * per_step).sum()) / n_all
    share = float((wait_s.argmin(axis=1) == least).mean())
    found = LateMember(least, late_s, _share_of_loss(late_s, lost_s), share, "waits")
    if found.late_share is None or found.late_share < LATE_SHARE or share < _least_last_share(wait_s.shape[1]):
        return _name_nobody(found, f"none waits less than the others by more than {late_s:.2g} s a compute")
    return found


def _waits_longer(members: Members, worker: tuple[int, int], at: Ints, found: LateMember, n_computes: Ints) -> bool:
    """Say whether the member found waits longer than the others, by a good part of the seconds by which it is late."""
    assert members.wait_s is not None
    assert found.member is not None
    total_s = np.nansum(members.wait_s[(at, *worker)], axis=0)
    longer_s = float(total_s[found.member] - np.median(np.delete(total_s, found.member)))
    return longer_s > LATE_SHARE * (found.late_s or 0.0) * float(n_computes.sum())


def _least_last_share(n_members: int) -> float:
    """Say in which part of the computes a member that is named is last at least."""
    return LAST_SHARE + (1.0 - LAST_SHARE) / n_members


def _share_of_loss(late_s: float, lost_s: float) -> float | None:
    """Divide what a member is late by what was lost; None where nothing was lost."""
    return max(late_s, 0.0) / lost_s if lost_s > 0 else None


def _name_nobody(found: LateMember, reason: str) -> LateMember:
    """Keep what was measured, and name nobody."""
    return LateMember(None, found.late_s, found.late_share, found.last_share, found.how, reason)
