"""Pages of jobs that still run, written whole at each window: of one job its course and its last diagnosis, of many an index.

Enters: a `WatchedJob`, and the diagnosis of its last window. Leaves: the text of a page, the same for the same data and moment.
A page on a disk loads itself again; one that a server gives is told by the server what changed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose._version import __version__
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import Episode, WatchedJob, Window
from diagnose.report import words
from diagnose.report.charts import draw_sparkline
from diagnose.report.escape import name, prose
from diagnose.report.html.draw import Sheet, colour, styled
from diagnose.report.html.environment import fill_in, own_file
from diagnose.report.html.lines import Line, Marks, draw_lines
from diagnose.report.html.page import describe_saved
from diagnose.report.html.picture import LEAD_WIDTH, MAX_ROWS, Picture
from diagnose.report.html.workers import draw_kept_workers, draw_workers
from diagnose.report.live_words import (
    STATES_SAID,
    called,
    count_states,
    course_of,
    describe_briefly,
    describe_delay,
    describe_now,
    describe_silent,
    describe_steps,
    describe_what,
    list_open,
    list_over,
    moment,
    rank,
    slowdowns_of,
)

#: Seconds after which a browser without a stream of changes loads a page again.
REFRESH_S = 15
#: Episodes that are shaded in the picture: with more it would be nothing but shades.
_MAX_SHADED = 60
#: Episodes that are named in it.
_MAX_NAMED = 3
#: Characters of the course of a job in the index.
_SPARK = 24
_EPISODE_HEAD = ("state", "what", "steps", "costs now", "at most", "confidence", "began", "told", "delay", "over")
_WINDOW_HEAD = ("window", "steps", "verdict", "S", "step time", "rows", "diagnosed in", "seen", "silent")


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """How a server knows a page: its path from the root, where its stream of changes is, and from where on to tell."""

    page: str
    version: str

    def events(self) -> str:
        """Give the address of the stream, from the page."""
        return f"{'../' * self.page.count('/')}events?since={self.version}"


def render_job(
    job: WatchedJob,
    diagnosed: tuple[Window, Diagnosis] | None,
    *,
    now_s: float,
    in_site: bool = False,
    served: Served | None = None,
) -> str:
    """Write the page of a job, a whole HTML document.

    Parameters
    ----------
    diagnosed : (Window, Diagnosis) or None
        The last window that could be diagnosed; None where there is none, or its diagnosis is not at hand.
    now_s : float
        When this is written, Unix seconds.
    in_site : bool
        It lies in a folder beside the index.
    served : Served or None
        None for a page on a disk.
    """
    with styled():
        course, paces = draw_course(job), draw_paces(job)
        workers = _draw_workers(job, diagnosed)
    live = [picture for picture in (course or paces, workers) if picture is not None]
    paces = paces if course is not None else None
    pictures: list[Picture] = []
    values: dict[str, Any] = {"verdict": "", "in_site": in_site, "versions": [("diagnose", __version__)]}
    if diagnosed is not None:
        window, diagnosis = diagnosed
        steps = f" --steps {window.first_step}-{window.last_step} --min-speedup {diagnosis.min_speedup:g}"
        pictures, values = describe_saved(diagnosis, job.location, in_site=in_site, options=steps)
    return fill_in(
        "live.html.j2",
        [*live, *([] if paces is None else [paces]), *pictures],
        more_style=own_file("live.css"),
        more_script=own_file("live.js"),
        connects=served is not None,
        **_about_page(now_s, served, is_over=job.state == "ended"),
        **values
        | {
            "heading": "h3",
            "name": called(job),
            "state": job.state,
            "open": bool(list_open(job)),
            "now": _sentence(describe_now(job)),
            "why": _sentence(prose(job.why)) if job.why else "",
            "is_old": diagnosed is not None
            and (job.state != "running" or job.windows[-1].number != diagnosed[0].number),
            "window": "" if diagnosed is None else _name_window(diagnosed[0]),
            "live_facts": _facts(job),
            "live_pictures": live,
            "paces": paces,
            "episode_head": _EPISODE_HEAD,
            "episodes": [_row_of_episode(episode) for episode in (*list_open(job), *list_over(job))],
            "window_head": _WINDOW_HEAD,
            "windows": [_row_of_window(window) for window in reversed(job.windows)],
        },
    )


def _draw_workers(job: WatchedJob, diagnosed: tuple[Window, Diagnosis] | None) -> Picture | None:
    """Draw the workers of the last window that could be diagnosed; None where they were not told apart."""
    if diagnosed is not None:
        return draw_workers(diagnosed[1]) if diagnosed[1].is_replayed else None
    kept = next((window.worker_slowdowns for window in reversed(job.windows) if not window.why), ())
    return draw_kept_workers(slowdowns_of(kept)) if kept else None


def render_index(
    jobs: Sequence[WatchedJob], pages: Mapping[str, str], *, now_s: float, served: Served | None = None
) -> str:
    """Write the index of many jobs, a whole HTML document; `pages` are those of the jobs, from the index, by location."""
    ordered = sorted(jobs, key=rank)
    worst = ordered[0] if ordered else None
    said = f"{called(worst)}: {describe_now(worst)}" if worst is not None else "No jobs yet"
    if worst is not None and not list_open(worst) and worst.state == "running":
        said = "No open episode in any job"
    return fill_in(
        "live_index.html.j2",
        [],
        more_style=own_file("live.css"),
        more_script=own_file("live.js"),
        connects=served is not None,
        **_about_page(now_s, served, is_over=bool(jobs) and all(job.state == "ended" for job in jobs)),
        title=count_states(jobs),
        name="All jobs",
        verdict="",
        in_site=False,
        versions=[("diagnose", __version__)],
        counts=count_states(jobs),
        now=said,
        n_open=sum(bool(list_open(job)) for job in jobs),
        n_blind=sum(job.state == "blind" for job in jobs),
        jobs=[_row_of_job(job, pages.get(job.location)) for job in ordered],
        states=list(STATES_SAID.items()),
    )


def draw_course(job: WatchedJob) -> Picture | None:
    """Draw S since the start, with what lasted shaded; None where nothing is known of it."""
    course, steps = course_of(job), np.array(job.course_steps, dtype=np.int64)
    if not np.isfinite(course).any():
        return None
    sheet = draw_lines("course", steps, [Line("S", course, "accent")], "ratio", Marks(), LEAD_WIDTH)
    sheet.name_axes("step")
    shaded = [*list_open(job), *list_over(job)][:_MAX_SHADED]
    for n, episode in enumerate(shaded):
        _shade(sheet, steps, episode, named=n < _MAX_NAMED)
    worst = int(np.nanargmax(course))
    says = f"S of steps {steps[0]} to {steps[-1]}, as analysed window by window: from {words.ratio(float(np.nanmin(course)))} to "
    says += f"{words.ratio(float(course[worst]))} (step {steps[worst]})."
    says += " Shaded: episodes." if shaded else ""
    shown = np.sort(np.argsort(-np.nan_to_num(course), kind="stable")[:MAX_ROWS])
    return Picture(
        "course",
        "S since the start",
        says,
        sheet.svg(f"Line over steps {steps[0]} to {steps[-1]}. {says}"),
        ("step", "S"),
        [(str(steps[i]), words.ratio(float(course[i]))) for i in shown],
        note="" if len(steps) <= MAX_ROWS else f"the {MAX_ROWS} slowest of {len(steps):,} points",
        legend=(("accent", "S"), *((("bad", "an episode"),) if shaded else ())),
        probe=sheet.points | {"tall": True},
    )


def draw_paces(job: WatchedJob) -> Picture | None:
    """Draw the step time of the last windows: what S leaves out, such as waiting for data, is in it; None for one window."""
    known = [(window, window.step_s) for window in job.windows if window.step_s is not None]
    if len(known) < 2:
        return None
    steps = np.array([window.last_step for window, _ in known], dtype=np.int64)
    step_s = np.array([value for _, value in known])
    sheet = draw_lines("step-time", steps, [Line("step time", step_s, "accent")], "seconds", Marks(), LEAD_WIDTH)
    sheet.name_axes("last step of a window")
    shaded = [*list_open(job), *list_over(job)][:_MAX_SHADED]
    for episode in shaded:
        _shade(sheet, steps, episode, named=False)
    says = f"Mean step time of the last {len(known)} windows, from {words.seconds(float(step_s.min()))} to "
    says += f"{words.seconds(float(step_s.max()))}: with what S leaves out, such as waiting for data."
    return Picture(
        "step-time",
        "Step time by window",
        says,
        sheet.svg(f"Line over windows. {says}"),
        ("last step", "step time"),
        [(str(window.last_step), words.seconds(value)) for window, value in known],
        legend=(("accent", "step time"), *((("bad", "an episode"),) if shaded else ())),
        probe=sheet.points | {"tall": True},
    )


def _shade(sheet: Sheet, steps: np.ndarray[tuple[int], np.dtype[np.int64]], episode: Episode, *, named: bool) -> None:
    """Shade the steps of an episode, and name it where there is room."""
    last = episode.recovered_step
    left = float(np.searchsorted(steps, episode.first_step)) - 0.5
    right = len(steps) - 0.5 if last is None else float(np.searchsorted(steps, last)) - 0.5
    if right <= left:
        return
    is_open = last is None
    sheet.axes.axvspan(left, right, color=colour("bad"), alpha=0.22 if is_open else 0.1, linewidth=0, zorder=0)
    if named and is_open:
        across = "right" if left > len(steps) / 2 else "left"
        top = sheet.axes.get_ylim()[1]
        sheet.axes.axvline(left, color=colour("bad"), linewidth=2, linestyle=(0, (6, 3)))
        said = f"{name(episode.cause)}: step {episode.first_step}"
        lift = 0.05 * (top - sheet.axes.get_ylim()[0])
        sheet.write(left, top + lift, said, of="bad", across=across, bold=True)


def _about_page(now_s: float, served: Served | None, *, is_over: bool) -> dict[str, Any]:
    """Say how the page is renewed, and of when it is."""
    return {
        "refresh_s": 0 if is_over else REFRESH_S,
        "events": "" if served is None else served.events(),
        "page": "" if served is None else served.page,
        "written": moment(now_s),
        "written_s": f"{now_s:.0f}",
    }


def _facts(job: WatchedJob) -> list[tuple[str, str, str]]:
    """Give the figures that stand beside the state: name, value, what it means."""
    if not job.windows:
        return [("Windows", "0", "diagnosed so far")]
    last, opened = job.windows[-1], list_open(job)
    facts = [
        ("Episodes", f"{len(opened):,} open", f"{len(list_over(job)):,} over"),
        ("S", words.ratio(last.slowdown), "of the last window; 1 is ideal"),
        ("Step time", words.seconds(last.step_s), "mean of the last window"),
        ("Windows", f"{last.number + 1:,}", f"the last: {_name_window(last)}"),
        (
            "Last window",
            moment(last.seen_s)[-12:],
            f"of {moment(last.seen_s)[:10]}, diagnosed in {words.seconds(last.took_s)}",
        ),
    ]
    if last.silent:
        facts.append(("Silent", f"{len(last.silent):,}", describe_silent(last)))
    return facts


def _name_window(window: Window) -> str:
    """Name a window by its steps."""
    return f"steps {window.first_step:,} to {window.last_step:,}"


def _row_of_episode(episode: Episode) -> tuple[str, ...]:
    """Give the line of an episode in the table."""
    is_open = episode.recovered_step is None
    return (
        "open" if is_open else "over",
        describe_what(episode),
        describe_steps(episode),
        words.percent(episode.gain) if is_open else "",
        words.percent(episode.peak_gain),
        words.confidence(episode.confidence),
        moment(episode.began_s),
        moment(episode.told_s),
        describe_delay(episode),
        moment(episode.recovered_s),
    )


def _row_of_window(window: Window) -> tuple[str, ...]:
    """Give the line of a window in the table."""
    return (
        f"{window.number:,}",
        f"{window.first_step} to {window.last_step}",
        f"cannot be diagnosed: {prose(window.why)}" if window.why else prose(window.verdict),
        words.ratio(window.slowdown),
        words.seconds(window.step_s),
        f"{window.n_rows:,}",
        words.seconds(window.took_s),
        moment(window.seen_s),
        describe_silent(window) if window.silent else "",
    )


def _row_of_job(job: WatchedJob, page: str | None) -> dict[str, Any]:
    """Give the line of a job in the index."""
    last, course = job.windows[-1] if job.windows else None, course_of(job)
    is_known = bool(np.isfinite(course).any())
    return {
        "page": page,
        "name": called(job),
        "state": job.state,
        "open": bool(list_open(job)),
        "slowdown": "" if last is None or last.slowdown is None else words.ratio(last.slowdown),
        "step": "" if last is None else f"{last.last_step:,}",
        "spark": draw_sparkline(course, _SPARK) if is_known else "",
        "span": words.span(float(np.nanmin(course)), float(np.nanmax(course))) if is_known else "",
        "what": describe_briefly(job),
        "seen": "" if last is None else moment(last.seen_s),
    }


def _sentence(text: str) -> str:
    """Begin with a capital, and end with a point."""
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in '.!?' else '.'}"
