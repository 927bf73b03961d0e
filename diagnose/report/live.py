"""Jobs that still run on a terminal: one with its slowdown since the start, its workers and its episodes, or many as a table.

Enters: `WatchedJob`s, and of one job what was found in its last window. Leaves: what rich draws, never more than fits the screen.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import WatchedJob
from diagnose.model.trace import Seconds
from diagnose.report import words
from diagnose.report.charts import bin_size, draw_chart, draw_heat_map, draw_sparkline, scale_of
from diagnose.report.escape import prose
from diagnose.report.live_words import (
    called,
    count_states,
    course_of,
    describe_briefly,
    describe_delay,
    describe_now,
    describe_silent,
    describe_steps,
    describe_what,
    lasting,
    list_open,
    list_over,
    rank,
    slowdowns_of,
)
from diagnose.report.styles import VERDICT_STYLES

STATE_STYLES: Final = {"running": "green", "waiting": "cyan", "blind": "bold yellow", "ended": "dim"}
#: Lines and columns of the smallest screen that all of it is laid out for.
LEAST_HEIGHT, LEAST_WIDTH = 10, 40
#: Lines of the slowdown since the start, and of workers, of one job.
_CHART, _WORKERS = 4, 8
#: Columns below which a table has no room for the slowdown since the start.
_NARROW = 72
_SPARK = 14


def draw_job(job: WatchedJob, diagnosis: Diagnosis | None, *, now_s: float, width: int, height: int) -> RenderableType:
    """Draw one job so that it fits: how it is, S since the start, the workers of the last window, and its episodes.

    Parameters
    ----------
    diagnosis : Diagnosis or None
        Of the last window; None where it is not at hand.
    now_s : float
        Unix seconds.
    """
    width, height = max(width, LEAST_WIDTH), max(height, LEAST_HEIGHT)
    said = describe_now(job)
    head = [_draw_title(job, now_s), Text(said, style=_style_of(job))]
    if job.why and prose(job.why) not in said:
        head.append(Text(prose(job.why), style="yellow"))
    head += _draw_window(job, now_s)
    episodes = list(_draw_episodes(job))
    left = height - len(head) - min(len(episodes), 3)
    chart = list(_draw_course(job, width)) if left >= _CHART + 2 else []
    left -= len(chart)
    workers = list(_draw_workers(job, diagnosis, width, left - 5)) if left >= 7 else []
    lines = [*head, *chart, *(workers if len(workers) <= left else [])]
    room = height - len(lines)
    if len(episodes) > room:
        n = len(episodes) - room + 1
        episodes = [*episodes[: room - 1], Text(f"  and {n} more lines: --html has all", style="dim")]
    return _stack([*lines, *episodes])


def draw_jobs(jobs: Sequence[WatchedJob], *, now_s: float, width: int, height: int) -> RenderableType:
    """Draw many jobs so that they fit: a line each, the worst first; what does not fit is counted."""
    width, height = max(width, LEAST_WIDTH), max(height, LEAST_HEIGHT)
    ordered = sorted(jobs, key=rank)
    room = height - 2
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    is_wide = width >= _NARROW
    table = Table.grid(padding=(0, 1), expand=True)
    longest = min(max((cell_len(called(job)) for job in shown), default=0), width // 4)
    for size in (longest, 7, 6, 4, *((_SPARK,) if is_wide else ())):
        table.add_column(width=size, no_wrap=True, overflow="ellipsis")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    head = ("job", "state", "last", "S", *(("since start",) if is_wide else ()), "what")
    table.add_row(*(Text(name, style="dim") for name in head))
    for job in shown:
        table.add_row(*_row(job, now_s, is_wide=is_wide))
    lines: list[RenderableType] = [Text(count_states(jobs)), table]
    if len(shown) < len(ordered):
        lines.append(Text(f"and {count_states(ordered[len(shown) :])}", style="dim"))
    return _stack(lines)


def _style_of(job: WatchedJob) -> str:
    """Give the colour of what is said of a job."""
    if list_open(job) and job.state != "ended":
        return "bold red"
    return "bold yellow" if job.state == "blind" else ""


def _row(job: WatchedJob, now_s: float, *, is_wide: bool) -> list[Text]:
    """Draw the line of a job."""
    last = job.windows[-1] if job.windows else None
    slowdown = "" if last is None or last.slowdown is None else words.ratio(last.slowdown)
    is_old = job.state in {"blind", "ended"}
    cells = [
        Text(called(job)),
        Text(job.state.upper() if job.state == "blind" else job.state, style=STATE_STYLES[job.state]),
        Text("" if last is None else lasting(now_s - last.seen_s), style="dim"),
        Text(slowdown, style="dim" if is_old else VERDICT_STYLES.get(last.verdict if last else "", "")),
    ]
    if is_wide:
        cells.append(
            Text(
                draw_sparkline(course_of(job), _SPARK) if _is_known(course_of(job)) else "",
                style="dim" if is_old else "",
            )
        )
    return [*cells, Text(describe_briefly(job), style=_style_of(job))]


def _draw_title(job: WatchedJob, now_s: float) -> Text:
    """Name the job and its state."""
    title = Text(called(job), style="bold")
    title.append(f"  {job.state.upper()}", style=f"{STATE_STYLES[job.state]}")
    title.append(f" for {lasting(now_s - job.since_s)}", style="dim")
    return title


def _draw_window(job: WatchedJob, now_s: float) -> Iterator[Text]:
    """Say what the last window is, and which ranks are silent in it."""
    if not job.windows:
        return
    last = job.windows[-1]
    said = f"window {last.number}, steps {last.first_step} to {last.last_step}, {lasting(now_s - last.seen_s)} ago: "
    said += f"{words.seconds(last.step_s)} a step, S {words.ratio(last.slowdown)}, diagnosed in {words.seconds(last.took_s)}"
    yield Text(said, style="dim")
    if last.silent:
        yield Text(f"silent in it: {describe_silent(last)}", style="yellow")


def _is_known(course: Seconds) -> bool:
    """Say whether there is anything to draw."""
    return bool(np.isfinite(course).any())


def _draw_course(job: WatchedJob, width: int) -> Iterator[Text]:
    """Draw S since the start over its steps, red in episodes; where nobody knows it, the step time of the last windows."""
    course, steps, unit_s = course_of(job), job.course_steps, None
    if not _is_known(course):
        known = [(window.first_step, window.step_s) for window in job.windows if window.step_s]
        if len(known) < 2:
            return
        steps, unit_s = tuple(step for step, _ in known), min(step_s for _, step_s in known)
        course = np.array([step_s / unit_s for _, step_s in known])
    low, high = scale_of(course)
    room = width - 8
    ends = [f"{end:.2f}" if unit_s is None else words.seconds(end * unit_s) for end in (high, low)]
    marks = [ends[0], *[""] * (_CHART - 2), ends[1]]
    styles = _style_columns(job, steps[:: bin_size(len(steps), room)])
    for mark, line in zip(marks, draw_chart(course, room, _CHART), strict=True):
        yield Text.assemble((f"{mark:>7} ", "dim"), *zip(line, styles, strict=True))
    first, last = str(steps[0]), str(steps[-1])
    foot = f"step {first}".ljust(max(len(styles) - len(last), len(first) + 6)) + last
    yield Text(f"{'S' if unit_s is None else 'a step':>7} {foot}", style="dim")


def _style_columns(job: WatchedJob, firsts: Sequence[int]) -> list[str]:
    """Give the colour of each column, by its first step: red where an episode has some of its steps."""
    spans = [(one.first_step, math.inf if one.recovered_step is None else one.recovered_step) for one in job.episodes]
    return [
        "red" if any(begin < next_first and first < end for begin, end in spans) else STATE_STYLES["running"]
        for first, next_first in itertools.pairwise((*firsts, math.inf))
    ]


def _draw_workers(job: WatchedJob, diagnosis: Diagnosis | None, width: int, rows: int) -> Iterator[Text]:
    """Draw the heat map of the last window."""
    if not job.windows or not job.windows[-1].worker_slowdowns:
        return
    found = slowdowns_of(job.windows[-1].worker_slowdowns)
    if found.ndim != 2 or not np.isfinite(found).any():
        return
    dp_labels, stage_labels, culprits = np.arange(found.shape[0]), np.arange(found.shape[1]), None
    if diagnosis is not None and (len(diagnosis.dp_labels), len(diagnosis.stage_labels)) == found.shape:
        dp_labels, stage_labels, culprits = diagnosis.dp_labels, diagnosis.stage_labels, diagnosis.find_culprits()
    most = max(1, min(rows, _WORKERS))
    yield from draw_heat_map(found, dp_labels, stage_labels, width, culprits=culprits, most_rows=most)


def _draw_episodes(job: WatchedJob) -> Iterator[Text]:
    """List the episodes that last, then those that are over."""
    for episode in list_open(job):
        told = f"told {describe_delay(episode)}"
        yield Text(
            f"! {words.percent(episode.gain):>5} {describe_steps(episode)}: {describe_what(episode)}; {told}",
            style="red",
        )
    for episode in list_over(job):
        cost = words.percent(episode.peak_gain)
        yield Text(f"  {cost:>5} {describe_steps(episode)}: {describe_what(episode)}", style="dim")


def _stack(lines: Sequence[RenderableType]) -> Group:
    """Put lines below each other; each is cut where the screen ends, so that none takes two."""
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)
