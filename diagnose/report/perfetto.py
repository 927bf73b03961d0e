"""Timelines of some steps as a file for ui.perfetto.dev: as recorded, clean, mended and ideal, one above the other.

Enters: a `Scene`, and which steps and dp ranks to draw. Leaves: the bytes of the file, and what had to be left out.

    perfetto_times.py    what each operation is called, and how its time is made up
    perfetto_step.py     draws one timeline of one step
    perfetto_events.py   writes events
"""

import dataclasses
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.cause import Cause
from diagnose.model.change import Change
from diagnose.model.plain import to_plain
from diagnose.model.scene import Scene
from diagnose.model.timeline import Timeline
from diagnose.model.trace import Ints
from diagnose.report import words
from diagnose.report.escape import escape, prose
from diagnose.report.escape import name as safe_name
from diagnose.report.perfetto_events import Page, Slice, Thread, Tracks, document, finite, listed, to_ns
from diagnose.report.perfetto_step import (
    Against,
    Row,
    count_lateness,
    culprits_of,
    draw_operations,
    draw_stalls,
    take_over,
)
from diagnose.report.perfetto_times import learn

MEGABYTE = 1_000_000
#: The largest file that is written unless asked for, megabytes.
LIMIT_MB = 20.0
#: Dp ranks of culprits drawn unless asked for.
MAX_CULPRITS = 3
#: Room between two steps, as part of the longer of all.
_GAP_SHARE = 0.05
_LEAST_GAP_NS = 1_000_000
#: Process of what is said about the job; those of the timelines follow.
_ABOUT = 1
_FIRST_PID = 10
#: Gzip at this level takes a third of the time of the highest, for 3% more bytes.
_LEVEL = 6
#: A file that has grown to so many times what is allowed is not finished.
_FAR_TOO_MUCH = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is drawn; of both what matters most is first.

    Attributes
    ----------
    steps : tuple of int
    dp : tuple of int
        Indices of dp ranks.
    """

    steps: tuple[int, ...]
    dp: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Mended:
    """What the timelines called `fixed` are replayed with."""

    name: str
    changes: Sequence[Change]


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A file for Perfetto.

    Attributes
    ----------
    content : bytes
        Chrome's JSON trace events, gzipped unless asked for plain.
    choice : Choice
        What was drawn.
    warnings : tuple of str
        What was left out, and why.
    """

    content: bytes
    choice: Choice
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """One step, with its place on the time axis, and its timelines from the top down."""

    step: int
    begin_ns: int
    length_ns: int
    lost_between_s: float
    timelines: tuple[Timeline, ...]


def render(
    scene: Scene,
    *,
    steps: Ints | None = None,
    dp: Ints | None = None,
    limit_mb: float = LIMIT_MB,
    compressed: bool = True,
    mended: Mended | None = None,
) -> Picture:
    """Draw some steps of some dp ranks.

    Parameters
    ----------
    scene : Scene
    steps : ndarray of int64, optional
        Numbers of steps; the worst and a typical one when left out.
    dp : ndarray of int64, optional
        Dp ranks by the labels of the file; those of the culprits and one sound peer when left out.
    limit_mb : float
        Of the file, in 10^6 bytes; whole steps and ranks are left out, the last first, until it fits.
    compressed : bool
        False leaves the JSON plain.
    mended : Mended, optional
        What to replay as `fixed`; the plan of the diagnosis, if it has one, when left out.

    Returns
    -------
    Picture
        Same scene and choice, same bytes.

    Raises
    ------
    UsageError
        A step was not analysed, there is no such dp rank, or not even one step of one rank fits.
    """
    choice = asked = Choice(
        choose_steps(scene) if steps is None else _known_steps(scene, steps),
        choose_dp(scene) if dp is None else _known_dp(scene, dp),
    )
    if mended is None and scene.plan:
        mended = Mended("the plan of the diagnosis", scene.plan)
    while True:
        content, part = _build(scene, choice, mended, limit_mb * MEGABYTE, compressed=compressed)
        if content is not None:
            return Picture(content, choice, _tell(scene, asked, choice, mended, limit_mb))
        if len(choice.steps) * len(choice.dp) == 1:
            raise UsageError(
                f"--perfetto-mb: one step of one dp rank takes more than {limit_mb:g} MB; expected a larger number"
            )
        choice = _fewer(choice, part)


def choose_steps(scene: Scene) -> tuple[int, ...]:
    """Choose the step that is slowest against its ideal, launch delays included, and the one nearest to the median."""
    w = scene.diagnosis.what_if
    at = np.flatnonzero(np.isin(w.steps, scene.components.steps))
    slowdown = w.recorded_s[at] / w.ideal_s[at]
    worst = int(np.argmax(slowdown))
    distance = np.abs(slowdown - np.median(slowdown))
    distance[worst] = np.inf
    found = [worst] if len(at) == 1 else [worst, int(np.argmin(distance))]
    return tuple(int(w.steps[at[i]]) for i in found)


def choose_dp(scene: Scene) -> tuple[int, ...]:
    """Choose the dp ranks of the culprits, or the slowest one where no cause names any, and a sound peer."""
    slowdown = scene.diagnosis.what_if.by_dp
    named = [dp for cause in scene.diagnosis.causes for dp in culprits_of(cause, scene)]
    found = list(dict.fromkeys(named))[:MAX_CULPRITS] or [int(np.argmax(slowdown))]
    distance = np.abs(slowdown - np.median(slowdown))
    distance[sorted({*named, *found})] = np.inf
    peer = int(np.argmin(distance))
    return (*found, peer) if math.isfinite(distance[peer]) else tuple(found)


def _known_steps(scene: Scene, steps: Ints) -> tuple[int, ...]:
    """Refuse steps that were not analysed."""
    analysed = set(scene.components.steps.tolist())
    for step in steps.tolist():
        if step not in analysed:
            some = words.some_of([str(known) for known in sorted(analysed)])
            raise UsageError(f"--perfetto-steps: step {step} is not analysed; expected one of {', '.join(some)}")
    first = [step for step in choose_steps(scene) if step in steps]
    return tuple(dict.fromkeys([*first, *steps.tolist()]))


def _known_dp(scene: Scene, dp: Ints) -> tuple[int, ...]:
    """Refuse dp ranks that the job does not have."""
    labels = scene.diagnosis.dp_labels.tolist()
    for label in dp.tolist():
        if label not in labels:
            some = words.some_of([str(known) for known in labels])
            raise UsageError(f"--perfetto-dp: the job has no dp rank {label}; expected one of {', '.join(some)}")
    asked = [labels.index(label) for label in dp.tolist()]
    first = [place for place in choose_dp(scene) if place in asked]
    return tuple(dict.fromkeys([*first, *asked]))


def _fewer(choice: Choice, part: float) -> Choice:
    """Leave out ranks and steps, of the longer list the last, until so large a part of the file is left."""
    steps, dp = list(choice.steps), list(choice.dp)
    most = max(1, int(0.95 * part * len(steps) * len(dp)))
    while len(steps) * len(dp) > most:
        (dp if len(dp) >= len(steps) else steps).pop()
    return Choice(tuple(steps), tuple(dp))


def _tell(scene: Scene, asked: Choice, drawn: Choice, mended: Mended | None, limit_mb: float) -> tuple[str, ...]:
    """Say what was asked for and is not drawn."""
    told = []
    steps = [str(step) for step in asked.steps[len(drawn.steps) :]]
    ranks = [str(int(scene.diagnosis.dp_labels[dp])) for dp in asked.dp[len(drawn.dp) :]]
    for kind, names in (("step", steps), ("dp rank", ranks)):
        if names:
            which = f"{kind if len(names) == 1 else f'{kind}s'} {', '.join(words.some_of(names))}"
            told.append(f"--perfetto: {limit_mb:g} MB do not hold everything, so {which} left out; see --perfetto-mb")
    if mended is not None and _replay(scene, drawn.steps[0], mended) is None:
        told.append(
            f"--perfetto: no timeline with {prose(mended.name)}: under another schedule nothing says when each runs"
        )
    return tuple(told)


def _replay(scene: Scene, step: int, mended: Mended) -> Timeline | None:
    """Replay a step with what mends it."""
    return scene.timelines.changed("fixed", step, np.arange(scene.trace.n_dp), mended.changes)


def _build(
    scene: Scene, choice: Choice, mended: Mended | None, limit: float, *, compressed: bool
) -> tuple[bytes | None, float]:
    """Write the file; where it grows too large give None, and which part of it at most would have fitted."""
    buffer = io.BytesIO()
    file = gzip.GzipFile("", "wb", _LEVEL, buffer, mtime=0) if compressed else buffer
    pages = (page.lines() for page in _draw(scene, choice, mended))
    for text in document(pages, _about(scene)):
        file.write(text.encode("ascii"))
        if buffer.tell() > _FAR_TOO_MUCH * limit:
            return None, 1.0 / _FAR_TOO_MUCH
    if compressed:
        file.close()
    content = buffer.getvalue()
    return (content, 1.0) if len(content) <= limit else (None, limit / len(content))


def _about(scene: Scene) -> dict[str, Any]:
    """Say in the file what it is made from."""
    made_by = scene.diagnosis.made_by
    return {
        "schema": "diagnose-perfetto/1",
        "job": safe_name(scene.diagnosis.job.job_id),
        "made_by": finite(to_plain(made_by)),
        "unit": "ts and dur in microseconds; steps one after the other, each from its own begin",
    }


def _draw(scene: Scene, choice: Choice, mended: Mended | None) -> Iterator[Page]:
    """Draw all steps, then what is said about the job."""
    tracks = Tracks()
    tracks.process(_ABOUT, f"diagnosis of {safe_name(scene.diagnosis.job.job_id) or 'job'}")
    named: set[str] = set()
    slots: list[_Slot] = []
    begin_ns = 0
    for step in sorted(choice.steps):
        slot = _arrange(scene, choice, step, mended, begin_ns)
        begin_ns = slot.begin_ns + slot.length_ns + max(_LEAST_GAP_NS, round(_GAP_SHARE * slot.length_ns))
        for timeline in slot.timelines:
            _name_processes(tracks, scene, choice, timeline.name, mended, named)
        yield _draw_step(tracks, scene, choice, slot)
        slots.append(dataclasses.replace(slot, timelines=slot.timelines[:1]))
    page = Page(tracks)
    _draw_about(page, scene, slots)
    yield page


#: Timelines from the top down.
_KINDS = ("recorded", "clean", "fixed", "ideal")


def _pid(choice: Choice, kind: str, place: int) -> int:
    """Number the process of a timeline's dp rank: what was recorded on top, culprits first."""
    return _FIRST_PID + _KINDS.index(kind) * len(choice.dp) + place


def _name_processes(
    tracks: Tracks, scene: Scene, choice: Choice, kind: str, mended: Mended | None, named: set[str]
) -> None:
    """Name the processes of one kind of timeline, once."""
    if kind in named:
        return
    named.add(kind)
    guilty: dict[int, Cause] = {}
    for cause in scene.diagnosis.causes:
        for dp in culprits_of(cause, scene):
            guilty.setdefault(dp, cause)
    what = f"fixed ({prose(mended.name)})" if kind == "fixed" and mended else kind
    for place, dp in enumerate(choice.dp):
        title = f" — {prose(guilty[dp].title)}" if dp in guilty else ""
        name = f"{what}: dp {int(scene.diagnosis.dp_labels[dp])}{title}"
        tracks.process(_pid(choice, kind, place), name)


def _arrange(scene: Scene, choice: Choice, step: int, mended: Mended | None, begin_ns: int) -> _Slot:
    """Replay a step, and give it room for the longest of its timelines and for what happened before its begin."""
    everyone = np.arange(scene.trace.n_dp)
    drawn = [scene.timelines.recorded(step, everyone), scene.timelines.clean(step, everyone)]
    drawn += [_replay(scene, step, mended)] if mended else []
    drawn += [scene.timelines.ideal(step, everyone)]
    timelines = tuple(timeline for timeline in drawn if timeline is not None)
    lanes = list(choice.dp)
    rows = scene.trace.evidence
    here = (rows.step == step) & np.isin(rows.dp, lanes)
    first_s = min(
        [0.0, *(float(np.fmin.reduce(t.start_s[:, lanes], axis=None)) for t in timelines), *rows.start_s[here]]
    )
    last_s = max([*(_last(t, lanes) for t in timelines), *rows.end_s[here]])
    lost_s = _lost_between(scene, step)
    recorded_s = timelines[0].step_s if timelines else 0.0
    lead_ns = to_ns(-first_s) + 1 if first_s < 0 else 0
    length_ns = to_ns(max(last_s, recorded_s + lost_s)) + 1
    return _Slot(step, begin_ns + lead_ns, length_ns, lost_s, timelines)


def _last(timeline: Timeline, lanes: Sequence[int]) -> float:
    """Say when the last operation drawn, and the step, have ended."""
    return max(timeline.step_s, float(np.fmax.reduce(timeline.end_s[:, lanes], axis=None)))


def _lost_between(scene: Scene, step: int) -> float:
    """Say how many seconds a step loses between it and the next, 0 where not known."""
    without_s = scene.gains.alone_steps_s.get("between-steps")
    at = np.flatnonzero(scene.components.steps == step)
    if without_s is None or not len(at):
        return 0.0
    return max(0.0, float(scene.gains.replayed_steps_s[at[0]] - without_s[at[0]]))


def _draw_step(tracks: Tracks, scene: Scene, choice: Choice, slot: _Slot) -> Page:
    """Draw all timelines of one step."""
    page = Page(tracks)
    by_name = {timeline.name: timeline for timeline in slot.timelines}
    lore = {name: learn(timeline) for name, timeline in by_name.items()}
    recorded = by_name["recorded"]
    ideal, clean = by_name.get("ideal"), by_name.get("clean")
    against = Against(
        None if ideal is None else take_over(lore["ideal"].own_s, recorded, ideal),
        None if clean is None else take_over(clean.end_s, recorded, clean),
    )
    for name, timeline in by_name.items():
        for place, dp in enumerate(choice.dp):
            row = Row(_pid(choice, name, place), dp, slot.begin_ns)
            draw_operations(page, scene, timeline, lore[name], row, against if name == "recorded" else None)
            if name == "recorded":
                draw_stalls(page, scene, timeline, row)
                _count_workers(page, scene, row, slot.step)
                if against.clean_end_s is not None:
                    count_lateness(page, scene, timeline, against.clean_end_s, row)
    _draw_summary(page, scene, choice, slot)
    return page


def _at(scene: Scene, step: int) -> int:
    """Say where a step stands in the what-if analysis."""
    return int(np.flatnonzero(scene.diagnosis.what_if.steps == step)[0])


def _count_workers(page: Page, scene: Scene, row: Row, step: int) -> None:
    """Draw S_w of the workers of a dp rank in a step."""
    slowdown = scene.diagnosis.what_if.by_worker_step[row.dp, :, _at(scene, step)]
    labels = scene.diagnosis.stage_labels.tolist()
    values = {f"stage {label}": float(value) for label, value in zip(labels, slowdown, strict=True)}
    page.counter(row.pid, "slowdown S_w", row.begin_ns, values)


def _draw_summary(page: Page, scene: Scene, choice: Choice, slot: _Slot) -> None:
    """Draw the length of a step with its figures, and what was lost between it and the next."""
    w, at = scene.diagnosis.what_if, _at(scene, slot.step)
    lengths = {f"{timeline.name}_s": timeline.step_s for timeline in slot.timelines}
    figures = {"slowdown": float(w.by_step[at]), "simulated_s": float(w.simulated_s[at])} | lengths
    told = " (the worst drawn)" if len(choice.steps) > 1 and slot.step == choice.steps[0] else ""
    end_ns = slot.begin_ns + to_ns(slot.timelines[0].step_s)
    thread = Thread(_ABOUT, "steps", 1)
    page.slice(
        thread, Slice(f"step {slot.step}{told}", "step", slot.begin_ns, end_ns, finite({"step": slot.step} | figures))
    )
    if slot.lost_between_s > 0:
        args = {"step": slot.step, "lost_s": slot.lost_between_s}
        after_ns = end_ns + to_ns(slot.lost_between_s)
        page.slice(thread, Slice("lost between steps", "between-steps", end_ns, after_ns, args))
    page.counter(_ABOUT, "slowdown S", slot.begin_ns, {"of the step": figures["slowdown"]})
    page.counter(_ABOUT, "step time [s]", slot.begin_ns, {t.name: t.step_s for t in slot.timelines})


def _draw_about(page: Page, scene: Scene, slots: Sequence[_Slot]) -> None:
    """Draw verdict and causes over all the time drawn, each with the steps in which it acts."""
    diagnosis = scene.diagnosis
    begin_ns, end_ns = slots[0].begin_ns, max(slot.begin_ns + slot.length_ns for slot in slots)
    args = {
        "verdict": escape(diagnosis.verdict),
        "slowdown": diagnosis.what_if.slowdown,
        "recorded_step_s": diagnosis.step_time.recorded,
        "clean_step_s": diagnosis.step_time.clean,
        "warnings": listed([prose(warning) for warning in diagnosis.warnings]),
    }
    headline = Slice(words.headline(diagnosis), "verdict", begin_ns, end_ns, finite(args))
    page.slice(Thread(_ABOUT, "verdict", 0), headline)
    for place, cause in enumerate(diagnosis.causes):
        thread = Thread(_ABOUT, f"{place + 1}. {prose(cause.title)}", 2 + place)
        page.slice(thread, Slice(words.titled(cause), "cause", begin_ns, end_ns, _explain(cause)))
        for slot in slots:
            if _acts(cause, slot.step):
                name = f"{prose(cause.title)} in step {slot.step}"
                last_ns = slot.begin_ns + to_ns(slot.timelines[0].step_s)
                page.slice(thread, Slice(name, "cause", slot.begin_ns, last_ns, {"step": slot.step}), depth=1)


def _explain(cause: Cause) -> dict[str, Any]:
    """Say what is known of a cause."""
    return finite(
        {
            "cause": escape(cause.cause),
            "confidence": cause.confidence,
            "recoverable": cause.recoverable,
            "share": cause.share,
            "where": listed(words.places(cause.where)),
            "when": words.since(cause.when) or None,
            "evidence": listed([prose(item.text) for item in cause.evidence]),
            "fixes": listed([prose(f"{fix.fix}: {fix.summary}") for fix in cause.fixes]),
        }
    )


def _acts(cause: Cause, step: int) -> bool:
    """Say whether a cause acts in a step, as far as its pattern tells: of what comes and goes only stalls do."""
    when = cause.when
    if when.pattern in ("periodic", "sporadic"):
        return False
    began = when.onset_step is None or step >= when.onset_step
    return began and (when.recovery_step is None or step < when.recovery_step)
