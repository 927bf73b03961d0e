"""Say which machines of a cluster are faulty, from their telemetry alone.

Enters: `Telemetry`. Leaves: a `MachinesDocument`. Costs a second for 1,500 machines x 15 minutes x 20 metrics.

The task, and which metrics tell most, are those of Minder (arXiv 2411.01791); the method is not: tests/machines/minder.py has
theirs.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from diagnose._version import __version__
from diagnose.errors import TraceError, name_some
from diagnose.machines.blame import ALONE, SURE, Blame, Suspect, blame
from diagnose.machines.deviate import list_deviations, list_standing
from diagnose.machines.events import list_events
from diagnose.machines.grid import Grid, make_grid
from diagnose.machines.job import WORK, Course, Slowing, find_slowing, follow_job
from diagnose.machines.roles import find_roles
from diagnose.machines.rules import Evidence, MachineRule, read_machine_rules
from diagnose.machines.strangers import find_strangers
from diagnose.machines.unlike import list_unlike
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.machines import SCHEMA, FaultyMachine, JobCourse, MachinesDocument, MachinesVerdict, Sign
from diagnose.model.telemetry import METRICS, Telemetry
from diagnose.numerics.figures import write_percent

#: Minutes that are looked at: Minder's.
MINUTES: Final = 15.0
#: Machines and time below which nobody can be compared with anybody.
MIN_MACHINES, MIN_S = 3, 240.0
#: A machine that has far less of these than its peers does nothing.
IDLE: Final = ("gpu_utilization", "gpu_power_w")
#: Signs shown of a machine, and machines named in a sentence.
MOST_SIGNS, MOST_NAMED = 6, 4
#: Remarks that are made; what the driver reports, and since when where that is not known.
MOST_REMARKS: Final = 5
XID, PAST = "gpu_xid", "since before these minutes"


def find_machines(
    telemetry: Telemetry,
    *,
    minutes: float = MINUTES,
    until_s: float | None = None,
    roles: Mapping[str, str] | None = None,
) -> MachinesDocument:
    """Find faulty machines.

    Parameters
    ----------
    telemetry : Telemetry
        Of all machines of one job.
    minutes : float
        How much of it is looked at, the last.
    until_s : float, optional
        Unix seconds at which that ends; the last sample if left out.
    roles : mapping of str to str, optional
        Name of the role of each machine; found if left out.

    Raises
    ------
    TraceError
        Nothing is in that time.
    RuleError
        A rule file is wrong.
    UsageError
        `roles` lacks machines.
    """
    rules, digest = read_machine_rules()
    grid = make_grid(telemetry, seconds=minutes * 60.0, until_s=until_s)
    if grid is None:
        raise TraceError(
            f"no samples in the {minutes:g} minutes asked for; look at --minutes and --at", where=telemetry.name
        )
    unlike = list_unlike(telemetry, grid)
    grid = _without(telemetry, unlike, grid, minutes)
    strangers = tuple(grid.hosts[host] for host in find_strangers(grid))
    grid = _without(telemetry, (*unlike, *strangers), grid, minutes)
    course = follow_job(grid)
    slowing = find_slowing(course, grid.bin_s)
    before = _before(course, slowing, grid)
    role = find_roles(grid, before, roles)
    changed = list_deviations(grid, role, course, before, is_slowed=slowing is not None)
    known = {(one.host, one.metric.name, one.direction) for one in changed}
    standing = [one for one in list_standing(grid, role) if (one.host, one.metric.name, one.direction) not in known]
    found = blame(grid, [*changed, *standing], list_events(grid), course, slowing, rules)
    old = _list_old_codes(grid, rules)
    verdict, reason = _judge(grid, course, slowing, found, old)
    left_out = [*_describe_unlike(unlike), *([_describe_strangers(strangers)] if strangers else [])]
    if left_out and verdict != "faulty":
        verdict, reason = "cannot-tell", "; ".join([*left_out, reason or f"the other {len(grid.hosts)} are sound"])
    machines = tuple(_describe(grid, suspect, course) for suspect in found.suspects) if verdict == "faulty" else ()
    return MachinesDocument(
        schema=SCHEMA,
        made_by=MadeBy(__version__, digest, None),
        source=telemetry.name,
        verdict=verdict,
        reason=reason,
        from_s=grid.from_s,
        to_s=grid.to_s,
        interval_s=grid.interval_s,
        n_machines=len(grid.hosts),
        roles=tuple(
            tuple(grid.hosts[i] for i in np.flatnonzero(role == number)) for number in range(int(role.max()) + 1)
        ),
        metrics=tuple(sorted(grid.series)),
        job=_tell_course(grid, course, slowing),
        machines=machines,
        affected=tuple(grid.hosts[host] for host in found.affected),
        remarks=tuple((*_remark(grid, found, course, slowing), *(f"{what} {PAST}" for what in old))[:MOST_REMARKS]),
        warnings=tuple(_warn(grid, telemetry, left_out)),
    )


def _without(telemetry: Telemetry, hosts: Collection[str], grid: Grid, minutes: float) -> Grid:
    """Leave machines out of a grid."""
    if not any(host in grid.hosts for host in hosts):
        return grid
    kept = tuple(one for one in telemetry.series if one.host not in hosts)
    return make_grid(dataclasses.replace(telemetry, series=kept), seconds=minutes * 60.0, until_s=grid.to_s) or grid


def _before(course: Course, slowing: Slowing | None, grid: Grid) -> slice:
    """Give the bins in which all is well, as far as known: before the job stops or slows, else the first half."""
    until = course.stopped if slowing is None else slowing.since
    until = until if until < grid.n_bins else (course.began + grid.n_bins) // 2
    return slice(course.began, max(until, course.began + 2))


def _judge(
    grid: Grid, course: Course, slowing: Slowing | None, found: Blame, old: Mapping[str, bool]
) -> tuple[MachinesVerdict, str | None]:
    """Say whether machines are faulty; where nobody can tell, why."""
    if found.suspects:
        return "faulty", None
    too_little = _say_too_little(grid)
    if too_little is not None:
        return "cannot-tell", too_little
    if found.together:
        what = "look for what they share, a rack, a switch, power, or the program"
        return "cannot-tell", f"{found.together} of {len(grid.hosts)} machines changed together: {what}"
    if course.state == "stopped":
        return "cannot-tell", "the job stopped, and no machine differs from the others: read the logs of its ranks"
    if slowing is not None and (found.affected or course.state == "running"):
        return "cannot-tell", _say_why_slower(slowing, found)
    if course.state == "unseen":
        return "cannot-tell", _say_why_unseen(course)
    before = _say_what_was_before(grid, found, old)
    return ("sound", None) if before is None else ("cannot-tell", before)


def _say_what_was_before(grid: Grid, found: Blame, old: Mapping[str, bool]) -> str | None:
    """Say which machines may have failed before these minutes."""
    idle = {
        one.host for one in found.rest if one.since_s == grid.from_s and one.metric in IDLE and one.change == "falls"
    }
    if idle:
        some = ", ".join(grid.hosts[host] for host in sorted(idle)[:3])
        why = "a spare, or it failed earlier; look further back with --minutes"
        return f"{some} did nothing all the time while the others worked: {why}"
    broken = [what for what, is_broken in old.items() if is_broken]
    return f"{broken[0]} {PAST}: read `dmesg`, or look further back with --minutes" if broken else None


def _list_old_codes(grid: Grid, rules: Sequence[MachineRule]) -> dict[str, bool]:
    """Word the errors that drivers report since before, and say of each whether the card breaks, whatever the job does."""
    breaks = {
        code for rule in rules if "running" in rule.job for one in rule.tells if one.metric == XID for code in one.codes
    }
    old = [one for one in grid.series.get(XID, ()) if one.values[0] > 0 and one.values.min() == one.values.max()]
    return {
        f"{one.host}: {METRICS[XID].words} (card {one.device}): {one.values[0]:.0f}": int(one.values[0]) in breaks
        for one in old
    }


def _say_why_unseen(course: Course) -> str:
    """Say why nobody knows whether the job works."""
    if course.metric is not None:
        return "most machines do nothing all the time: no job runs; look at another time with --at"
    wanted = ", ".join(WORK)
    return f"no metric tells whether the job works, and no machine stands out; expected some of {wanted}"


def _say_why_slower(slowing: Slowing, found: Blame) -> str:
    """Say why a job may be slower where no machine is to blame."""
    if found.affected:
        what = "their switch or rack is congested"
        return f"{len(found.affected)} machines send pauses since about the same time, and the job is slower: {what}"
    less = write_percent(slowing.share)
    return f"the job does {less} less work, and no machine differs from the others: read its log or trace"


def _say_too_little(grid: Grid) -> str | None:
    """Say what is missing where nobody can be compared with anybody."""
    if len(grid.hosts) < MIN_MACHINES:
        return f"{len(grid.hosts)} machines: there are no peers to compare with, expected {MIN_MACHINES} or more"
    seconds = grid.to_s - grid.from_s
    return None if seconds >= MIN_S else f"{seconds:.0f} s of telemetry; expected {MIN_S / 60:g} minutes or more"


def _tell_course(grid: Grid, course: Course, slowing: Slowing | None) -> JobCourse:
    """Say what the job did."""
    if course.state in ("stopped", "ended"):
        return JobCourse(course.state, grid.time_of(course.stopped) if course.stopped else None, course.metric, None)
    if course.state == "running" and slowing is not None:
        return JobCourse("slowed", grid.time_of(slowing.since), course.metric, slowing.share)
    return JobCourse(course.state, None, course.metric, None)


def _describe(grid: Grid, suspect: Suspect, course: Course) -> FaultyMachine:
    """Turn a suspect into what people read."""
    devices = sorted({card for one in suspect.evidence if METRICS[one.metric].of == "gpu" for card in one.devices})
    return FaultyMachine(
        host=grid.hosts[suspect.host],
        kind=suspect.rule.id,
        title=suspect.rule.title,
        confidence=_rate(suspect, course),
        since_s=None if suspect.since_s == grid.from_s else suspect.since_s,
        devices=tuple(devices),
        signs=tuple(_to_sign(grid, one) for one in suspect.evidence[:MOST_SIGNS]),
        do=suspect.rule.do,
        mistaken_for=suspect.rule.mistaken_for,
    )


def _rate(suspect: Suspect, course: Course) -> float:
    """Say how sure a suspect is, 0..1: a telling sign, or several that go far, in a job that suffers."""
    suffers = course.state in ("stopped", "ended")
    n_families = len({one.metric for one in suspect.evidence if one.score >= ALONE})
    if suspect.telling:
        return 0.97 if n_families else 0.9
    sure = 1.0 - 0.5 * math.exp(-(suspect.strength - SURE) / 4.0)
    return round(min(sure, 0.95) * (1.0 if suffers or n_families > 1 else 0.9), 2)


def _to_sign(grid: Grid, one: Evidence) -> Sign:
    """Word one piece of evidence."""
    return Sign(
        metric=one.metric,
        device=one.device,
        sentence=_word(one),
        since_s=None if one.since_s == grid.from_s else one.since_s,
        value=one.value if math.isfinite(one.value) else None,
        peers=one.peers if math.isfinite(one.peers) else None,
        deviations=round(one.score, 1),
    )


def _word(one: Evidence) -> str:
    """Say in a sentence what a sign is."""
    metric = METRICS[one.metric]
    if one.change == "ends":
        return f"card {one.device}: no samples any more" if one.device else "no samples of anything any more"
    device = f"card {one.device}" if metric.of == "gpu" else one.device
    what = metric.words + (f" ({device})" if one.device else "")
    if one.change == "becomes":
        return f"{what}: {one.value:.0f}"
    a_second = "/s" if metric.kind == "counter" and one.score else ""
    value, peers = (_number(number, metric.unit) + a_second for number in (one.value, one.peers))
    if one.change == "grows":
        return f"{what}: {value} more; three in four peers have at most {peers} more"
    return f"{what}: {value}; its peers have {peers}" if one.score else f"{what}: {value}; {peers} before"


def _number(value: float, unit: str) -> str:
    """Write a value with its unit, short."""
    if unit == "part":
        return f"{100.0 * value:.3g}%"
    if unit in ("bytes", "bytes/s"):
        for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}B{unit.removeprefix('bytes')}"
    number = f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"
    return number if unit == "1" else f"{number} {unit}"


def _remark(grid: Grid, found: Blame, course: Course, slowing: Slowing | None) -> Sequence[str]:
    """Say what stands out and is no reason to blame a machine; the most striking first."""
    blamed = {suspect.host for suspect in found.suspects} | set(found.affected)
    rest = [
        one for one in found.rest if one.host not in blamed and (one.score >= SURE or one.change in ("ends", "becomes"))
    ]
    rest.sort(key=lambda one: (one.change not in ("ends", "becomes"), -one.score, one.host))
    suffers = course.state in ("stopped", "ended") or slowing is not None
    why = "not what the job suffers from" if suffers else "the job does not suffer from it"
    return [f"{grid.hosts[one.host]}: {_word(one)} ({why})" for one in rest]


def _describe_unlike(unlike: Mapping[str, str]) -> Iterable[str]:
    """Say which machines cannot be compared, and why."""
    for why in dict.fromkeys(unlike.values()):
        yield f"{name_some([host for host in unlike if unlike[host] == why], MOST_NAMED)}: {why}"


def _describe_strangers(strangers: Sequence[str]) -> str:
    """Say which machines are not compared, and why."""
    named = name_some(strangers, MOST_NAMED)
    return f"{named} do not work and rest together with the others, as machines of one job do: give those of one job"


def _warn(grid: Grid, telemetry: Telemetry, left_out: Sequence[str]) -> Sequence[str]:
    """Say what makes the answer less sure."""
    found = (
        [f"{len(telemetry.unread)} metrics are not known here, such as {telemetry.unread[0]}"]
        if telemetry.unread
        else []
    )
    found += [f"{what}; not compared" for what in left_out]
    if grid.interval_s > 30.0:
        found.append(
            f"a sample every {grid.interval_s:.0f} s; faults of a few minutes need one every 15 s or more often"
        )
    return found
