"""What is said of jobs that still run: of their state, windows and episodes, and which of them comes first.

Enters: a `WatchedJob`, or what is new of one. Leaves: sentences without line ends, user strings escaped.
"""

import datetime as dt
from collections import Counter
from collections.abc import Sequence

import numpy as np

from diagnose.model.live import Episode, EpisodeEvent, WatchedJob, Window
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.escape import name, prose

#: What a state means, as people are told.
STATES_SAID = {
    "running": "windows come and are diagnosed",
    "waiting": "nothing to diagnose came yet",
    "blind": "rows should have come and did not, or not from everybody: nobody can tell how the job is",
    "ended": "the job is over, or its files are gone",
}
#: Costs and slowdowns of jobs that differ by less than these are alike: their order would change with every window.
_ALIKE_GAIN, _ALIKE_SLOWDOWN = 0.01, 0.05


def called(job: WatchedJob) -> str:
    """Name a job."""
    return name(job.name or job.location) or "job"


def list_open(job: WatchedJob) -> list[Episode]:
    """List the episodes that last, the one that costs most first."""
    still = [episode for episode in job.episodes if episode.recovered_step is None]
    return sorted(still, key=lambda episode: (-episode.gain, episode.first_step, episode.name))


def list_over(job: WatchedJob) -> list[Episode]:
    """List the episodes that are over, the latest first."""
    return [episode for episode in job.episodes if episode.recovered_step is not None]


def rank(job: WatchedJob) -> tuple[int, float, float, str, str]:
    """Order jobs, the worst first: with episodes by what they cost, then blind, running by slowdown, waiting, ended."""
    opened = list_open(job)
    cost = sum(episode.gain for episode in opened)
    slowdown = (job.windows[-1].slowdown or 0.0) if job.windows else 0.0
    order = {"blind": 1, "running": 2, "waiting": 3, "ended": 4}[job.state]
    first = 0 if opened and job.state != "ended" else order
    return first, -round(cost / _ALIKE_GAIN), -round(slowdown / _ALIKE_SLOWDOWN), called(job), job.location


def describe_now(job: WatchedJob) -> str:
    """Say in one sentence how the job is: what is open, whether anybody can see it, or what its last window shows."""
    opened = list_open(job)
    if opened:
        also = f"; {words.count(len(opened) - 1, 'more episode')}" if len(opened) > 1 else ""
        said = f"{describe_episode(opened[0], job.windows[-1] if job.windows else None)}{also}"
        return said if job.state == "running" else f"{job.state}, and it may last: {said}"
    if job.state != "running":
        return f"{job.state}: {prose(job.why)}" if job.why else job.state
    if not job.windows:
        return prose(job.why) or "no window yet"
    last = job.windows[-1]
    if last.why:
        return f"the last window cannot be diagnosed: {prose(last.why)}"
    if last.verdict == "straggling":
        slower = _describe_slower(last)
        return "no open episode; the last window is straggling" + (f" ({slower})" if slower else "")
    return f"no open episode; the last window is {prose(last.verdict)}"


def describe_episode(episode: Episode, last: Window | None = None) -> str:
    """Say what an episode is, where, since when, and what it costs, or cost where the last window is without it.

    >>> from diagnose.model.place import Where, Worker
    >>> episode = Episode(name="f@40", fingerprint="f", cause="worker-fault", title="slow worker", where=Where((Worker(1, 0),)),
    ...     first_step=40, last_step=59, began_s=None, told_s=0.0, delay_windows=1, delay_s=None, recovered_step=None,
    ...     recovered_s=None, gain=0.15, peak_gain=0.2, confidence=0.9)
    >>> describe_episode(episode)
    'slow worker at dp 1, stage 0 since step 40, costs 15% of the step time'
    """
    said = f"{describe_what(episode)} {describe_steps(episode)}"
    if last is not None and episode.recovered_step is None and last.first_step > episode.last_step:
        return f"{said}, cost {words.percent(episode.gain)} of the step time; not seen after step {episode.last_step}"
    if episode.recovered_step is None:
        return f"{said}, costs {words.percent(episode.gain)} of the step time"
    return f"{said}, cost up to {words.percent(episode.peak_gain)} of the step time"


def describe_briefly(job: WatchedJob) -> str:
    """Say how the job is in few words, the figure first: for a line of a table, which may be cut."""
    opened = list_open(job)
    blind = "blind; " if job.state == "blind" else ""
    if opened:
        also = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
        return f"{blind}{words.percent(opened[0].gain)}{also}: {describe_what(opened[0])}"
    if job.state != "running" or not job.windows:
        return prose(job.why)
    return (
        f"cannot be diagnosed: {prose(job.windows[-1].why)}" if job.windows[-1].why else prose(job.windows[-1].verdict)
    )


def describe_window(window: Window) -> str:
    """Say what a window showed."""
    steps = f"steps {window.first_step}-{window.last_step}"
    if window.why:
        return f"{steps}: cannot be diagnosed: {prose(window.why)}"
    slower = _describe_slower(window)
    said = f"{steps}: {window.verdict}" + (f", {slower}" if slower else "")
    if window.step_s is not None:
        said += f", {words.seconds(window.step_s)} a step"
    return said + (f", {words.count(len(window.silent), 'rank')} silent" if window.silent else "")


def _describe_slower(window: Window) -> str:
    """Say how much slower a straggling window is than without faults, as the page of a diagnosis does; empty where unknown."""
    if window.verdict != "straggling" or not window.step_s or not window.clean_s or window.clean_s >= window.step_s:
        return ""
    return f"{words.slower(window.step_s / window.clean_s)} slower than without faults"


def describe_event(event: EpisodeEvent, episode: Episode) -> str:
    """Say what became of an episode."""
    what = describe_what(episode)
    longer = words.times(1 / (1 - episode.gain)) if 0 < episode.gain < 1 else ""
    if event == "recovered":
        return f"over: {what}, {describe_steps(episode)}"
    if event == "grew":
        return f"worse: {what}, steps now {longer}"
    late = f"{words.count(episode.delay_windows, 'window')} later" if episode.delay_windows else "in its first window"
    after = "" if episode.delay_s is None else f", {words.seconds(episode.delay_s)} after that step"
    return f"slow since step {episode.first_step}: {what}, steps {longer}; told {late}{after}"


def describe_what(episode: Episode) -> str:
    """Say what an episode is, and where, what else it may be, and what else windows name in its time."""
    return words.at_place(prose(episode.title) or name(episode.cause), episode.where) + describe_others(episode)


def describe_others(episode: Episode) -> str:
    """Say what else an episode may be, and which other causes windows name while it lasts; empty where there are none."""
    rivals = ["something else" if cause == "unknown" else name(cause) for cause in episode.or_else]
    beside = f" (also named: {', '.join(map(name, episode.beside))})" if episode.beside else ""
    return "".join(f" or {rival}" for rival in rivals) + beside


def describe_steps(episode: Episode) -> str:
    """Say from which step to which it lasted."""
    if episode.recovered_step is None:
        return f"since step {episode.first_step}"
    return f"steps {episode.first_step} to {max(episode.recovered_step - 1, episode.first_step)}"


def count_states(jobs: Sequence[WatchedJob]) -> str:
    """Say how many jobs there are, how many of them have episodes, and how many are in each state."""
    n_open = sum(bool(list_open(job)) for job in jobs)
    states = Counter(job.state for job in jobs)
    found = [f"{n_open:,} with an episode"] if n_open else []
    found += [f"{states[state]:,} {state}" for state in ("blind", "running", "waiting", "ended") if states[state]]
    return f"{words.count(len(jobs), 'job')}{': ' if found else ''}{', '.join(found)}"


def describe_silent(window: Window) -> str:
    """Name the ranks whose rows are missing."""
    return f"rank{'' if len(window.silent) == 1 else 's'} {', '.join(words.some_of([str(rank) for rank in window.silent]))}"


def course_of(job: WatchedJob) -> Seconds:
    """Give the slowdowns since the start, shape (n_course,); NaN where not known."""
    return np.array([np.nan if value is None else value for value in job.course_slowdowns], dtype=np.float64)


def slowdowns_of(rows: Sequence[Sequence[float | None]]) -> Seconds:
    """Give the slowdowns of the workers of a window, shape (n_dp, n_stages); NaN where not known."""
    return np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)


def describe_delay(episode: Episode) -> str:
    """Say how long after its first step an episode was told."""
    windows = "at once" if episode.delay_windows == 0 else f"{words.count(episode.delay_windows, 'window')} later"
    return windows if episode.delay_s is None else f"{windows}, after {lasting(episode.delay_s)}"


def lasting(seconds: float) -> str:
    """Write a length of time in the unit that suits, for people who wait.

    >>> lasting(0.4), lasting(42), lasting(200), lasting(9000), lasting(200_000)
    ('0 s', '42 s', '3 min', '2.5 h', '2.3 days')
    """
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0)):
        if seconds < most:
            return f"{max(seconds, 0.0) / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def moment(at_s: float | None) -> str:
    """Write a moment, UTC, to the second; empty where it is not known or no moment of a calendar.

    >>> moment(0.0), moment(None)
    ('1970-01-01 00:00:00 UTC', '')
    """
    try:
        return "" if at_s is None else f"{dt.datetime.fromtimestamp(int(at_s), dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return ""
