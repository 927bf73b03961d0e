"""The fleet as a page of text, or as one JSON object.

Enters: a `Fleet`. Leaves: text that reads at any width from 40 columns, with or without colour; the worst waste stands on its first
line.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.fleet import Fleet, FleetCause, FleetJob
from diagnose.model.fleet_document import STATES, Figure, Finding, HostCount, Hosts, Slice
from diagnose.model.plain import to_json
from diagnose.report import words
from diagnose.report.budget import draw_fleet_budget
from diagnose.report.charts import draw_bar
from diagnose.report.escape import name, prose
from diagnose.report.layout import draw, draw_bullets, draw_facts, make_grid, print_sections

#: Jobs, and entries of every other list, on the page where nobody asks for another number; the JSON has all.
N_JOBS = 10
N_LISTED = 10
#: Days shown, the newest.
N_DAYS = 14
#: Columns of the bar of a slice.
_BAR = 24
#: Columns below which tables have no room for bars, or for jobs beside their figures.
NARROW = 72
#: What lost time is sliced by, in the order of the page, with its heading and what an unknown key is called.
SLICES = {
    "cause": ("By cause", "no cause explains it"),
    "owner": ("By owner", "owner not known"),
    "folder": ("By folder of the trace", "not known"),
    "host": ("By host that is blamed", "no host is blamed"),
    "framework": ("By framework", "framework not known"),
    "gpu_type": ("By type of GPU", "type not known"),
    "day": ("By day", "not known"),
}
#: What a state of a finding means.
STATES_SAID = {
    "new": "never seen before",
    "worse": "costs at least 2% of the step time more than the night before",
    "back": "seen before, but not the night before",
    "recurring": "as the night before",
    "gone": "its jobs ran, and do not have it any more",
    "unseen": "nobody can tell",
}
_STATE_STYLES = {"new": "bold red", "worse": "bold red", "back": "red", "gone": "green", "unseen": "dim"}


def render(fleet: Fleet, *, width: int, color: bool, limit: int | None = None) -> str:
    """Write the fleet as a page that lists at most so many jobs."""

    def write(console: Console) -> None:
        console.print(Text(describe_worst(fleet), style="bold red" if fleet.totals.hours_wasted else "bold"))
        console.print()
        console.print(draw_facts(list_facts(fleet)))
        sections = list(_sections(fleet, limit or N_JOBS, width))
        if sections:
            console.print()
            print_sections(console, sections)

    return draw(write, width=width, color=color)


def render_json(fleet: Fleet, *, limit: int | None = None) -> str:
    """Write the fleet as one JSON object on one line, without the line end; ASCII."""
    return to_json(fleet.to_document(limit))


def describe_worst(fleet: Fleet) -> str:
    """Say in one sentence where most is lost: the job that is first, its cause, and what mending it gives back."""
    if not fleet.jobs:
        n = fleet.totals.n_jobs
        return f"no job to speak of: none of {words.count(n, 'job')} has figures that count" if n else "no jobs"
    slow = list_slow(fleet)
    if not slow:
        lost = any(job.wasted for job in fleet.jobs)
        return f"{'nothing to mend' if lost else 'no GPU hours lost'} in {words.count(len(fleet.jobs), 'job')}"
    job = slow[0]
    back = "" if not job.hours_recoverable else f", {words.hours(job.hours_recoverable)} recoverable"
    said = f"worst: {name_job(job)} lost {words.hours(job.wasted)} of {words.hours(job.hours_analysed)} GPU hours{back}"
    return f"{said}: {describe_cause(job.causes[0])}" if job.causes else f"{said}; no cause explains it"


def list_slow(fleet: Fleet) -> tuple[FleetJob, ...]:
    """Give the jobs that lose GPU hours to more than ordinary variation, in the order asked for."""
    return tuple(job for job in fleet.jobs if job.verdict != "healthy" and job.wasted > 0)


def list_facts(fleet: Fleet) -> list[tuple[str, str]]:
    """Say in a few lines what the fleet comes to."""
    t = fleet.totals
    verdicts = [
        (t.n_straggling, "straggling"),
        (t.n_healthy, "healthy"),
        (t.n_noisy, "noisy"),
        (t.n_inconclusive, "inconclusive"),
    ]
    counts = [f"{n:,} {what}" for n, what in (*verdicts, (t.n_failed, "not analysed")) if n]
    facts = [("Jobs", f"{t.n_jobs:,}" + (f": {', '.join(counts)}" if counts else ""))]
    if t.hours_analysed:
        lost = words.percent(t.hours_wasted / t.hours_analysed)
        said = f"{words.hours(t.hours_analysed)} analysed, {words.hours(t.hours_wasted)} lost ({lost}), "
        said += f"{words.hours(t.hours_recoverable)} recoverable by the jobs' plans"
        said += f"; {words.count(t.n_unpriced, 'job')} without a price" if t.n_unpriced else ""
        left_out = t.n_jobs - t.n_counted
        said += f"; {words.count(left_out, 'inconclusive or failed job')} left out" if left_out else ""
        facts.append(("GPU hours", said))
    if fleet.night is not None:
        facts.append(("Last night", describe_last_night(fleet)))
    facts.append(("Store", name(fleet.store)))
    if fleet.asked:
        facts.append(("Asked for", ", ".join(f"{key} {name(value)}" for key, value in fleet.asked.items())))
    return facts


def describe_last_night(fleet: Fleet) -> str:
    """Say what became of the faults, in counts."""
    night = fleet.night
    assert night is not None
    jobs = words.count(night.n_now, "judged job" if fleet.uncounted else "job")
    if not night.n_before and not night.n_earlier:
        return f"{jobs}; all are new: nothing to compare with"
    found = Counter(finding.state for finding in night.findings)
    said = ", ".join(f"{found[state]:,} {state}" for state in STATES if found[state]) or "no faults"
    return f"{jobs} against {night.n_before:,} the night before: {said}"


def name_job(job: FleetJob) -> str:
    """Name a job with its owner."""
    owner = f" ({name(job.owner)})" if job.owner else ""
    return f"{name(job.called or job.job_id or job.location)}{owner}"


def list_names(fleet: Fleet) -> dict[str, str]:
    """Give what each job is called, by location."""
    return {job.location: job.called for job in (*fleet.jobs, *fleet.uncounted)}


def describe_cause(cause: FleetCause | Finding) -> str:
    """Say a cause with its place."""
    return words.at_place(name(cause.cause), cause.where)


def describe_finding(finding: Finding, names: Mapping[str, str]) -> str:
    """Say what became of a fault, where it is and what it costs; `names` are what jobs are called, by location."""
    if finding.recoverable_now is None:
        cost = f"cost {words.percent(finding.recoverable_before)} of the step time"
    elif finding.recoverable_before is None:
        cost = f"costs {words.percent(finding.recoverable_now)} of the step time"
    else:
        before, now = words.percent(finding.recoverable_before), words.percent(finding.recoverable_now)
        cost = f"costs {now} of the step time, before {before}"
    if finding.gpu_hours_lost_per_day is not None:
        cost += f", {words.hours(finding.gpu_hours_lost_per_day)} GPU hours a day"
    n_jobs = finding.n_now or finding.n_before
    jobs = f"in {words.count(n_jobs, 'job')}, most in" if n_jobs > 1 else "in"
    job = name(names.get(finding.location) or finding.job_id or finding.location)
    owner = f" of {name(finding.owner)}" if finding.owner else ""
    note = f"; {prose(finding.note)}" if finding.note else ""
    return f"{describe_cause(finding)}: {cost}, {jobs} {job}{owner}{note}"


def describe_host(entry: HostCount) -> str:
    """Say how often a host is blamed, how often chance would do that, and what to think about."""
    chance = f"chance: {entry.expected:.2g}, p = {entry.p_value:.2g}, corrected {entry.p_adjusted:.2g}"
    said = f"{name(entry.host)}: blamed in {entry.n_blamed:,} of {entry.n_ran:,} jobs ({chance}), "
    said += f"{words.hours(entry.hours_wasted)} GPU hours lost"
    return f"{said}: {entry.proposal}" if entry.proposal else f"{said}: chance explains it"


def describe_base(hosts: Hosts) -> str:
    """Say which hosts and jobs were looked at."""
    said = f"Of {hosts.n_hosts:,} hosts in {words.count(hosts.n_jobs, 'job')}"
    if hosts.n_unknown:
        said += f"; {words.count(hosts.n_unknown, 'job')} not saying their hosts are in no test"
    return f"{said}; {words.count(hosts.n_copies, 'job')} left out as copies." if hosts.n_copies else f"{said}."


def describe_figure(figure: Figure, value: float | None) -> str:
    """Write a figure of the study in its unit.

    >>> figure = Figure("s", "jobs", 0.42, 0.425, 10, "share", "")
    >>> describe_figure(figure, figure.ours), describe_figure(figure, None)
    ('42.0%', '-')
    """
    if value is None:
        return "-"
    return f"{value:.1%}" if figure.unit == "share" else f"{value:.2f}"


def _sections(fleet: Fleet, limit: int, width: int) -> Iterator[tuple[str, RenderableType]]:
    """Give the parts of the page below the facts."""
    if slow := list_slow(fleet):
        order = "lose most GPU hours" if fleet.ranked_by == "lost" else "would give back most GPU hours"
        yield f"Jobs that {order}", _draw_jobs(slow[:limit], width)
    if fleet.night is not None and fleet.night.findings and (fleet.night.n_before or fleet.night.n_earlier):
        yield (
            f"Since the night before ({fleet.night.hours:g} h)",
            _draw_findings(fleet.night.findings, list_names(fleet)),
        )
    yield from draw_fleet_budget(fleet.budget, width)
    for key, (title, unknown) in SLICES.items():
        if any(entry.key is not None for entry in fleet.by[key]) and (key == "cause" or len(fleet.by[key]) > 1):
            yield title, _draw_slices(fleet.by[key], unknown, width, is_time=key == "day")
    yield from _about_hosts(fleet)
    if fleet.study.n_jobs:
        n_jobs = words.count(fleet.study.n_jobs, "job")
        yield f"Beside the study of 3,079 jobs (arXiv 2505.05713), {n_jobs}", _draw_study(fleet)
    if fleet.coverage:
        yield "Not analysed", _draw_coverage(fleet)


def _draw_jobs(jobs: tuple[FleetJob, ...], width: int) -> RenderableType:
    """Draw a line a job; where there is no room for columns, its figures above its name."""
    if width < NARROW:
        return draw_bullets(f"{_describe_figures(job)}: {name_job(job)}: {_describe_first(job)}" for job in jobs)
    table = make_grid(*4 * ["number"], "text")
    head = ("lost", "back", "slower", "GPUs", "job and first cause")
    table.add_row(*(Text(title, style="dim") for title in head))
    for job in jobs:
        table.add_row(
            Text(words.hours(job.wasted), style="bold"),
            "?" if job.hours_recoverable is None else words.hours(job.hours_recoverable),
            "?" if job.slower is None else words.times(job.slower),
            "?" if job.n_gpus is None else f"{job.n_gpus:,}",
            Text(f"{name_job(job)}: {_describe_first(job)}"),
        )
    return table


def _describe_figures(job: FleetJob) -> str:
    """Say what a job lost, in a few words."""
    back = "" if job.hours_recoverable is None else f", {words.hours(job.hours_recoverable)} recoverable"
    slower = "" if job.slower is None else f", {words.times(job.slower)} slower"
    return f"{words.hours(job.wasted)} GPU hours lost{back}{slower}"


def _describe_first(job: FleetJob) -> str:
    """Say the first cause of a job, and how many more there are."""
    if not job.causes:
        return "no cause explains it"
    also = f" and {len(job.causes) - 1} more" if len(job.causes) > 1 else ""
    return f"{describe_cause(job.causes[0])}{also}"


def _draw_findings(findings: tuple[Finding, ...], names: Mapping[str, str]) -> RenderableType:
    """Draw the faults by what became of them, a few of each."""
    table = make_grid("mark", "text")
    for state in STATES:
        found = [finding for finding in findings if finding.state == state]
        most = N_LISTED if state in {"new", "worse", "back"} else 3
        for finding in found[:most]:
            table.add_row(Text(state, style=_STATE_STYLES.get(state, "")), Text(describe_finding(finding, names)))
        if len(found) > most:
            table.add_row("", Text(f"and {len(found) - most:,} more {state}: {STATES_SAID[state]}", style="dim"))
    return table


def _draw_slices(slices: tuple[Slice, ...], unknown: str, width: int, *, is_time: bool) -> RenderableType:
    """Draw lost time as bars; days in order, everything else by loss."""
    total = sum(entry.hours_wasted for entry in slices)
    top = max((entry.hours_wasted for entry in slices), default=0.0) if is_time else total
    known = [entry for entry in slices if entry.key is not None]
    shown, rest = (known[-N_DAYS:], known[:-N_DAYS]) if is_time else (known[:N_LISTED], known[N_LISTED:])
    rows = [(name(entry.key or ""), entry.hours_wasted, words.count(entry.n_jobs, "job"), "red") for entry in shown]
    if rest:
        label = f"{'earlier' if is_time else 'others'} ({len(rest):,})"
        rows.insert(0 if is_time else len(rows), (label, sum(entry.hours_wasted for entry in rest), "", "dim"))
    rows += [
        (unknown, entry.hours_wasted, words.count(entry.n_jobs, "job"), "dim") for entry in slices if entry.key is None
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold", max_width=44)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, lost, jobs, style in rows:
        share = lost / top if top and width >= NARROW else 0.0
        table.add_row(
            Text(label, style=style if style == "dim" else ""),
            words.hours(lost),
            words.percent(lost / total if total else 0.0),
            jobs,
            Text(draw_bar(share, _BAR), style=style),
        )
    return table


def _about_hosts(fleet: Fleet) -> Iterator[tuple[str, RenderableType]]:
    """Say which hosts are blamed more often than by chance."""
    hosts = fleet.hosts
    if not hosts.blamed:
        return
    proposed = [entry for entry in hosts.blamed if entry.proposal]
    others = len(hosts.blamed) - len(proposed)
    lines = [describe_host(entry) for entry in proposed[:N_LISTED]]
    if len(proposed) > N_LISTED:
        lines.append(f"and {len(proposed) - N_LISTED:,} more: --format json lists all")
    if others:
        lines.append(f"{others:,} more {'is' if others == 1 else 'are'} blamed in several jobs as chance would have it")
    yield "Hosts blamed in several jobs", draw_bullets([*lines, f"{describe_base(hosts)} {hosts.assumption}"])


def _draw_study(fleet: Fleet) -> RenderableType:
    """Draw the study's figures beside ours."""
    table = make_grid("text", *3 * ["number"])
    table.add_row("", *(Text(title, style="dim") for title in ("here", "study", "of")))
    for figure in fleet.study.figures:
        ours, published = describe_figure(figure, figure.ours), describe_figure(figure, figure.published)
        table.add_row(figure.meaning, ours, published, f"{figure.n:,}")
    return table


def _draw_coverage(fleet: Fleet) -> RenderableType:
    """Draw why jobs have no diagnosis that counts."""
    table = make_grid("number", "mark", "text")
    for gap in fleet.coverage:
        reason = prose(gap.reason.removeprefix(f"{gap.example}: "))
        table.add_row(f"{gap.n_jobs:,}", name(gap.kind), Text(f"such as {name(gap.example)}: {reason}"))
    return table
