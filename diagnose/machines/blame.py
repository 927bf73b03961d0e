"""Which machine is at fault, and which kind of fault it is: rules over what stands out, the culprit before those that wait for it.

Enters: deviations, events, what the job did, rules. Leaves: `Suspect`s, and those that are only affected.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from diagnose.machines.deviate import SCALES, Deviation, Direction
from diagnose.machines.grid import Floats, Grid
from diagnose.machines.job import Course, Slowing
from diagnose.machines.rules import Evidence, MachineRule, Wanted
from diagnose.model.machines import JobState
from diagnose.numerics.robust import nan_median

#: Deviations of one machine count together: the root of the sum of their squares, one a family of metrics. From so many standard
#: deviations on it is no chance among thousands of machines times tens of metrics times moments, whose tails are heavier than
#: normal ones.
SURE: Final = 6.5
#: So many are enough where they begin when the job stops or slows: that leaves a fifth of the moments, and of a job that stands
#: still nothing else moves.
TIMELY: Final = {"stopped": 5.0, "ended": 5.0, "slowed": 6.0}
#: One deviation alone counts from here on.
ALONE: Final = 4.0
#: A machine that stops a job does so before the others wait; they may take three minutes to. What follows is no cause.
EARLIER_S, LATER_S = 200.0, 30.0
#: A job that is slowed is so at once, as far as means of a minute or two can tell.
AROUND_S: Final = 120.0
#: What says the same of a machine counts once.
FAMILY: Final = {
    "gpu_utilization": "gpu",
    "gpu_graphics_active": "gpu",
    "gpu_power_w": "gpu",
    "gpu_tensor_active": "gpu",
    "gpu_dram_active": "gpu",
    "gpu_temperature_c": "heat",
    "gpu_sm_clock_mhz": "heat",
    "gpu_memory_used_bytes": "memory",
    "memory_available_bytes": "memory",
    "cpu_used": "cpu",
    "run_queue": "cpu",
    "net_sent_bytes": "net",
    "net_received_bytes": "net",
    "gpu_nvlink_bytes": "nvlink",
    "gpu_pcie_bytes": "pcie",
}
#: What spreads from machine to machine: congestion, and GPUs that fail one after the other; and what only follows the rest of them.
SPREADS: Final = frozenset({"net_pfc_sent", "gpu"})
FOLLOWS: Final = frozenset({"heat", "nvlink", "pcie"})
#: A machine that does nothing has less than this part of what its peers have; of their power, even: cards that wait draw a third.
WHOLE: Final = 0.4
#: More machines than this part of all, and than this number, are no faults of machines: a rack, a switch, the program.
MOST_SHARE, MOST = 0.25, 8
#: Pauses that so many others send since the same time, to within half as many, are congestion; in a job that was slowed
#: then it takes half a rack.
TOGETHER_S, ABOUT, MIN_CONGESTED = 60.0, 0.2, (2, 4)
#: What is caught comes so many seconds later, at least; of pauses there are fewer, in decades.
LATER_BY_S, FEWER = 3.0, 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A machine that a rule blames: for some of what it shows at that time."""

    host: int
    rule: MachineRule
    evidence: tuple[Evidence, ...]
    timely: tuple[Evidence, ...]
    telling: bool
    strength: float
    since_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Blame:
    """What was found: `together` counts machines that changed together, where these are too many."""

    suspects: tuple[Suspect, ...]
    affected: tuple[int, ...]
    together: int
    rest: tuple[Evidence, ...]


def blame(
    grid: Grid,
    deviations: Sequence[Deviation],
    events: Sequence[Evidence],
    course: Course,
    slowing: Slowing | None,
    rules: Sequence[MachineRule],
) -> Blame:
    """Find the machines at fault."""
    evidence: dict[int, list[Evidence]] = defaultdict(list)
    for one in (*events, *_from_deviations(grid, deviations)):
        evidence[one.host].append(one)
    state: JobState = "slowed" if course.state == "running" and slowing is not None else course.state
    since_s = {"stopped": grid.time_of(course.stopped), "ended": grid.time_of(course.stopped)}.get(state)
    if state == "slowed" and slowing is not None:
        since_s = grid.time_of(slowing.since)
    found = []
    for host, its in evidence.items():
        suspect = _ask_rules(host, its, rules, state, since_s, grid)
        if suspect is None and state == "slowed":  # by something else, perhaps
            suspect = _ask_rules(host, its, rules, "running", None, grid)
        found += [] if suspect is None else [suspect]
    found.sort(key=lambda one: (not one.telling, -one.strength, one.host))
    if any(one.telling for one in found):  # which explains it: chance is no second fault
        found = [one for one in found if one.telling or one.strength >= SURE]
    suspects, affected = _part([one for one in found if not one.rule.alone], grid)
    congested = [one for one in suspects if _is_congestion(one, state, grid)]
    affected += [one.host for one in congested]
    # What may be a service that hurts nobody counts where nothing else explains why the job suffers.
    suspects = [one for one in suspects if one not in congested] or [one for one in found if one.rule.alone]
    most = max(1, min(MOST, int(MOST_SHARE * len(grid.hosts))))
    rest = tuple(one for its in evidence.values() for one in its)
    if len(suspects) > most:
        return Blame((), tuple(one.host for one in found), len(suspects), rest)
    return Blame(tuple(suspects), tuple(affected), 0, rest)


def _from_deviations(grid: Grid, deviations: Iterable[Deviation]) -> Iterable[Evidence]:
    """Turn deviations into evidence; of several devices of a machine the one that is furthest out stands for all."""
    groups: dict[tuple[int, str, Direction], list[Deviation]] = defaultdict(list)
    for one in deviations:
        groups[one.host, one.metric.name, one.direction].append(one)
    for (host, metric, direction), group in groups.items():
        first = group[0]
        devices = sorted({one.device for one in group if abs(one.score) >= ALONE})
        is_whole = len(devices) == len(grid.levels[metric].devices)
        yield Evidence(
            host=host,
            metric=metric,
            device="" if is_whole else first.device,
            change=direction,
            since_s=first.since_s,
            value=first.value,
            peers=first.peers,
            score=abs(first.score),
            devices=() if is_whole else tuple(devices),
        )


def _ask_rules(
    host: int,
    evidence: Sequence[Evidence],
    rules: Sequence[MachineRule],
    state: JobState,
    since_s: float | None,
    grid: Grid,
) -> Suspect | None:
    """Ask every rule about one machine; the one that most speaks for, or None."""
    best: Suspect | None = None
    timely = [one for one in evidence if _is_timely(one, state, since_s, grid)]
    for rule in rules:
        if state not in rule.job:
            continue
        telling = [one for one in timely if any(_fits(one, wanted) for wanted in rule.tells)]
        shown = [one for one in timely if any(_fits(one, wanted) for wanted in rule.shows)]
        if any(_fits(one, wanted) and one.score >= ALONE for one in timely for wanted in rule.never):
            continue
        strength = _together(shown)
        enough = (
            rule.least
            and strength >= TIMELY.get(state, SURE)
            and len([one for one in shown if one.score >= ALONE]) >= rule.least
        )
        if not telling and not enough:
            continue
        helping = [one for one in timely if any(_fits(one, wanted) for wanted in rule.helps)]
        signs = sorted(
            dict.fromkeys([*telling, *shown, *helping]), key=lambda one: (one.score > 0, -one.score, one.metric)
        )
        first_s = min(one.since_s for one in (telling or [one for one in shown if one.score >= ALONE]))
        suspect = Suspect(host, rule, tuple(signs), tuple(timely), bool(telling), strength, first_s)
        if best is None or (suspect.telling, suspect.strength) > (best.telling, best.strength):
            best = suspect
    return best


def _is_timely(one: Evidence, state: JobState, since_s: float | None, grid: Grid) -> bool:
    """Say whether evidence began when the job began to suffer; where the job does not, it may have begun at any time."""
    if since_s is None:
        return True
    if state == "slowed":
        return abs(one.since_s - since_s) <= AROUND_S + grid.bin_s or one.score == 0.0
    return -EARLIER_S - grid.bin_s <= one.since_s - since_s <= LATER_S + 2 * grid.bin_s


def _fits(one: Evidence, wanted: Wanted) -> bool:
    """Say whether evidence is what a rule looks for."""
    if one.metric != wanted.metric or one.change != wanted.change:
        return False
    if one.change == "becomes":
        return int(one.value) in wanted.codes
    if one.change == "ends":
        return (one.device != "") == (wanted.part == "device")
    return one.value >= wanted.least if one.change == "grows" else True


def _together(evidence: Iterable[Evidence]) -> float:
    """Add up evidence: of each family of metrics the strongest."""
    best: dict[str, float] = {}
    for one in evidence:
        family = FAMILY.get(one.metric, one.metric)
        best[family] = max(best.get(family, 0.0), one.score)
    return float(np.sqrt(sum(score**2 for score in best.values())))


def _part(found: Sequence[Suspect], grid: Grid) -> tuple[list[Suspect], list[int]]:
    """Part those at fault from those that caught it: later, weaker, and in nothing but what spreads."""
    suspects: list[Suspect] = []
    affected: list[int] = []
    for one in found:
        if any(_caught_from(one, other, grid) for other in found if other.host != one.host):
            affected.append(one.host)
        else:
            suspects.append(one)
    return suspects, affected


def _is_congestion(one: Suspect, state: JobState, grid: Grid) -> bool:
    """Say whether a machine only sends pauses, and others about as many since then: no machine but their switch is congested."""
    by_family = _by_family(one)
    own = by_family.get("net_pfc_sent")
    if one.telling or own is None:
        return False
    around_s = TOGETHER_S + grid.bin_s
    # What began at another time is no part of it: in a job that runs anything may have.
    together = {family for family, e in by_family.items() if abs(e.since_s - own.since_s) <= around_s}
    if together - FOLLOWS != {"net_pfc_sent"}:
        return False
    rise = _rises_since(grid, own.since_s)
    return int((rise > rise[one.host] - ABOUT).sum()) - 1 >= MIN_CONGESTED[state == "slowed"]


def _rises_since(grid: Grid, since_s: float) -> Floats:
    """Say by how many decades each machine sends more pauses since then: a switch has machines of several roles."""
    at = round((since_s - grid.from_s) / grid.bin_s)
    decades = np.log10(1.0 + np.maximum(grid.levels["net_pfc_sent"].values, 0.0) / SCALES["net_pfc_sent"].reference)
    rises = nan_median(decades[:, :, at:], axis=2) - nan_median(decades[:, :, :at], axis=2)
    return np.asarray(np.max(np.nan_to_num(rises, nan=-np.inf), axis=1))  # of several ports the one that does most


def _caught_from(one: Suspect, other: Suspect, grid: Grid) -> bool:
    """Say whether a machine shows only what it may have caught from another: later, and of pauses fewer."""
    own, theirs = _by_family(one), _by_family(other)
    shown = own.keys() - FOLLOWS
    if one.telling or not shown or not shown <= SPREADS & theirs.keys():
        return False
    if "gpu" in shown and not _idles_whole(own["gpu"]):
        return False
    if "net_pfc_sent" in shown and theirs["net_pfc_sent"].value < own["net_pfc_sent"].value * 10.0**FEWER:
        return False
    first = max(shown, key=lambda family: own[family].score)
    later_s = own[first].since_s - theirs[first].since_s
    # Where nobody can say who was first, it is who shows more.
    has_more = other.telling or "net_pfc_sent" in shown or bool(theirs.keys() - SPREADS - FOLLOWS)
    return later_s > max(LATER_BY_S, 0.5 * grid.interval_s) or (
        has_more and later_s > -max(LATER_BY_S, grid.interval_s)
    )


def _idles_whole(gpu: Evidence) -> bool:
    """Say whether all of a machine does nothing, as one does that waits; one card or process alone has a fault of its own."""
    return gpu.change == "falls" and not gpu.devices and gpu.value < WHOLE * gpu.peers


def _by_family(one: Suspect) -> dict[str, Evidence]:
    """Give the strongest sign of each family of metrics."""
    found: dict[str, Evidence] = {}
    for sign in sorted(one.timely, key=lambda sign: sign.score):
        if sign.score >= ALONE:
            found[FAMILY.get(sign.metric, sign.metric)] = sign
    return found
