"""Timelines of some steps as a file for ui.perfetto.dev: as recorded, clean, fixed and ideal, one above the other.

Enters: a `ReportData`, and which steps and dp ranks to draw. Leaves: the bytes of the file, and what had to be left out.

    perfetto_choice.py   chooses steps and dp ranks
    perfetto_about.py    draws verdict, causes and figures
    perfetto_times.py    what each operation is called, and how its time is made up
    perfetto_step.py     draws one timeline of one step
    perfetto_events.py   writes events
"""

import dataclasses
import gzip
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause
from diagnose.model.change import Change
from diagnose.model.plain import to_plain
from diagnose.model.timeline import Timeline
from diagnose.model.trace import Evidence, Ints
from diagnose.report import words
from diagnose.report.escape import name as safe_name
from diagnose.report.escape import prose
from diagnose.report.perfetto_about import ABOUT, StepSlot, count_workers, draw_about, draw_summary
from diagnose.report.perfetto_choice import Choice, choose_dp, choose_steps, known_dp, known_steps, leave_out
from diagnose.report.perfetto_events import Page, Tracks, document, finite, to_ns
from diagnose.report.perfetto_step import (
    Baselines,
    DpTrack,
    by_nodes_of,
    count_lateness,
    culprits_of,
    draw_operations,
    draw_stalls,
)
from diagnose.report.perfetto_times import describe_operations

MEGABYTE = 1_000_000
#: The largest file that is written unless asked for, megabytes.
LIMIT_MB = 20.0
#: Room between two steps, as part of the longer of all.
_GAP_SHARE = 0.05
_LEAST_GAP_NS = 1_000_000
#: Processes below this are for what is said about the job.
_FIRST_PID = 10
#: Gzip at this level takes a third of the time of the highest, for 3% more bytes.
_LEVEL = 6
#: A file that has grown to so many times what is allowed is not finished.
_FAR_TOO_MUCH = 4


@dataclasses.dataclass(frozen=True, slots=True)
class AppliedFixes:
    """What the timelines called `fixed` are replayed with."""

    name: str
    changes: Sequence[Change]


@dataclasses.dataclass(frozen=True, slots=True)
class PerfettoFile:
    """A file for Perfetto."""

    content: bytes  # Chrome's JSON trace events, gzipped unless asked for plain
    choice: Choice  # What was drawn
    warnings: tuple[str, ...]  # What was left out, and why


def render(
    data: ReportData,
    *,
    steps: Ints | None = None,
    dp: Ints | None = None,
    limit_mb: float = LIMIT_MB,
    compressed: bool = True,
    applied: AppliedFixes | None = None,
) -> PerfettoFile:
    """Draw some steps of some dp ranks; the same data and choice give the same bytes.

    Parameters
    ----------
    steps : ndarray of int64, optional
        Numbers of steps; the worst and a typical one when left out.
    dp : ndarray of int64, optional
        Dp ranks by the labels of the file; those of the culprits and one sound peer when left out.
    limit_mb : float
        Of the file, in 10^6 bytes; whole steps and ranks are left out, the last first, until it fits.
    applied : AppliedFixes, optional
        What to replay as `fixed`; the plan of the diagnosis, if it has one, when left out.

    Raises
    ------
    UsageError
        A step was not analysed, there is no such dp rank, or not even one step of one rank fits.
    """
    choice = asked = Choice(
        choose_steps(data) if steps is None else known_steps(data, steps),
        choose_dp(data) if dp is None else known_dp(data, dp),
    )
    if applied is None and data.plan:
        applied = AppliedFixes("the plan of the diagnosis", data.plan)
    while True:
        content, part = _build(data, choice, applied, limit_mb * MEGABYTE, compressed=compressed)
        if content is not None:
            return PerfettoFile(content, choice, _describe_left_out(data, asked, choice, applied, limit_mb))
        if len(choice.steps) * len(choice.dp) == 1:
            raise UsageError(
                f"--perfetto-mb: one step of one dp rank takes more than {limit_mb:g} MB; expected a larger number"
            )
        choice = leave_out(choice, part)


def _describe_left_out(
    data: ReportData, asked: Choice, drawn: Choice, applied: AppliedFixes | None, limit_mb: float
) -> tuple[str, ...]:
    """Say what was asked for and is not drawn."""
    left_out = []
    steps = [str(step) for step in asked.steps[len(drawn.steps) :]]
    ranks = [str(int(data.diagnosis.dp_labels[dp])) for dp in asked.dp[len(drawn.dp) :]]
    for kind, names in (("step", steps), ("dp rank", ranks)):
        if names:
            which = f"{kind if len(names) == 1 else f'{kind}s'} {', '.join(words.some_of(names))}"
            left_out.append(
                f"--perfetto: {limit_mb:g} MB do not hold everything, so {which} left out; see --perfetto-mb"
            )
    if applied is not None and _replay(data, drawn.steps[0], applied) is None:
        left_out.append(
            f"--perfetto: no timeline with {prose(applied.name)}: under another schedule nothing says when each runs"
        )
    return tuple(left_out)


def _replay(data: ReportData, step: int, applied: AppliedFixes) -> Timeline | None:
    """Replay a step with the fixes applied."""
    return data.analysis.timelines.changed("fixed", step, np.arange(data.analysis.trace.n_dp), applied.changes)


def _build(
    data: ReportData, choice: Choice, applied: AppliedFixes | None, limit: float, *, compressed: bool
) -> tuple[bytes | None, float]:
    """Write the file; where it grows too large give None, and which part of it at most would have fitted."""
    buffer = io.BytesIO()
    file = gzip.GzipFile("", "wb", _LEVEL, buffer, mtime=0) if compressed else buffer
    pages = (page.lines() for page in _draw(data, choice, applied))
    for text in document(pages, _about(data)):
        file.write(text.encode("ascii"))
        if buffer.tell() > _FAR_TOO_MUCH * limit:
            return None, 1.0 / _FAR_TOO_MUCH
    if compressed:
        file.close()
    content = buffer.getvalue()
    return (content, 1.0) if len(content) <= limit else (None, limit / len(content))


def _about(data: ReportData) -> dict[str, Any]:
    """Say in the file what it is made from."""
    made_by = data.diagnosis.made_by
    return {
        "schema": "diagnose-perfetto/1",
        "job": safe_name(data.diagnosis.job.job_id),
        "made_by": finite(to_plain(made_by)),
        "unit": "ts and dur in microseconds; steps one after the other, each from its own begin",
    }


def _draw(data: ReportData, choice: Choice, applied: AppliedFixes | None) -> Iterator[Page]:
    """Draw all steps, then what is said about the job."""
    tracks = Tracks()
    tracks.process(ABOUT, f"diagnosis of {safe_name(data.diagnosis.job.job_id) or 'job'}")
    named: set[str] = set()
    slots: list[StepSlot] = []
    begin_ns = 0
    for step in sorted(choice.steps):
        slot = _arrange(data, choice, step, applied, begin_ns)
        begin_ns = slot.begin_ns + slot.length_ns + max(_LEAST_GAP_NS, round(_GAP_SHARE * slot.length_ns))
        for timeline in slot.timelines:
            _name_processes(tracks, data, choice, timeline.name, applied, named)
        yield _draw_step(tracks, data, choice, slot)
        slots.append(dataclasses.replace(slot, timelines=slot.timelines[:1]))
    page = Page(tracks)
    draw_about(page, data, slots)
    yield page


#: Timelines from the top down.
_KINDS = ("recorded", "clean", "fixed", "ideal")


def _pid(choice: Choice, kind: str, place: int) -> int:
    """Number the process of a timeline's dp rank: what was recorded on top, culprits first."""
    return _FIRST_PID + _KINDS.index(kind) * len(choice.dp) + place


def _name_processes(
    tracks: Tracks, data: ReportData, choice: Choice, kind: str, applied: AppliedFixes | None, named: set[str]
) -> None:
    """Name the processes of one kind of timeline, once."""
    if kind in named:
        return
    named.add(kind)
    guilty: dict[int, Cause] = {}
    for cause in data.diagnosis.causes:
        for dp in culprits_of(cause, data):
            guilty.setdefault(dp, cause)
    what = f"fixed ({prose(applied.name)})" if kind == "fixed" and applied else kind
    for place, dp in enumerate(choice.dp):
        title = f" — {prose(guilty[dp].title)}" if dp in guilty else ""
        name = f"{what}: dp {int(data.diagnosis.dp_labels[dp])}{title}"
        tracks.process(_pid(choice, kind, place), name)


def _arrange(data: ReportData, choice: Choice, step: int, applied: AppliedFixes | None, begin_ns: int) -> StepSlot:
    """Replay a step, and give it room for the longest of its timelines and for what happened before its begin."""
    everyone = np.arange(data.analysis.trace.n_dp)
    drawn = [data.analysis.timelines.recorded(step, everyone), data.analysis.timelines.clean(step, everyone)]
    drawn += [_replay(data, step, applied)] if applied else []
    drawn += [data.analysis.timelines.ideal(step, everyone)]
    timelines = tuple(timeline for timeline in drawn if timeline is not None)
    lanes = list(choice.dp)
    rows = Evidence.join([data.analysis.trace.evidence, data.analysis.trace.others])
    here = (rows.step == step) & np.isin(rows.dp, lanes)
    first_s = min(
        [0.0, *(float(np.fmin.reduce(t.start_s[:, lanes], axis=None)) for t in timelines), *rows.start_s[here]]
    )
    last_s = max([*(_last(t, lanes) for t in timelines), *rows.end_s[here]])
    lost_s = _lost_between(data, step)
    recorded_s = timelines[0].step_s if timelines else 0.0
    lead_ns = to_ns(-first_s) + 1 if first_s < 0 else 0
    length_ns = to_ns(max(last_s, recorded_s + lost_s)) + 1
    return StepSlot(step, begin_ns + lead_ns, length_ns, lost_s, timelines)


def _last(timeline: Timeline, lanes: Sequence[int]) -> float:
    """Say when the last operation drawn, and the step, have ended."""
    return max(timeline.step_s, float(np.fmax.reduce(timeline.end_s[:, lanes], axis=None)))


def _lost_between(data: ReportData, step: int) -> float:
    """Say how many seconds a step loses between it and the next, 0 where not known."""
    without_s = data.analysis.gains.alone_steps_s.get("between-steps")
    at = np.flatnonzero(data.analysis.breakdown.steps == step)
    if without_s is None or not len(at):
        return 0.0
    return max(0.0, float(data.analysis.gains.replayed_steps_s[at[0]] - without_s[at[0]]))


def _draw_step(tracks: Tracks, data: ReportData, choice: Choice, slot: StepSlot) -> Page:
    """Draw all timelines of one step."""
    page = Page(tracks)
    by_name = {timeline.name: timeline for timeline in slot.timelines}
    facts = {name: describe_operations(timeline) for name, timeline in by_name.items()}
    recorded = by_name["recorded"]
    ideal, clean = by_name.get("ideal"), by_name.get("clean")
    baselines = Baselines(
        None if ideal is None else by_nodes_of(facts["ideal"].own_s, recorded, ideal),
        None if clean is None else by_nodes_of(clean.end_s, recorded, clean),
    )
    for name, timeline in by_name.items():
        for place, dp in enumerate(choice.dp):
            row = DpTrack(_pid(choice, name, place), dp, slot.begin_ns)
            draw_operations(page, data, timeline, facts[name], row, baselines if name == "recorded" else None)
            if name == "recorded":
                draw_stalls(page, data, timeline, row)
                count_workers(page, data, row, slot.step)
                if baselines.clean_end_s is not None:
                    count_lateness(page, data, timeline, baselines.clean_end_s, row)
    draw_summary(page, data, choice, slot)
    return page
