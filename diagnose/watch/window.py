"""One window: its rows are diagnosed as any job is, and what the watch keeps of that.

Enters: a delivery. Leaves: the diagnosis, a `Window`, and the causes in it.
"""

import dataclasses
import math
import time

import numpy as np
from msgspec import convert
from msgspec.structs import replace

from diagnose.errors import DiagnoseError, MetadataError, RuleError, asked_to_end
from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause, KeptCause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import Window
from diagnose.model.plain import to_plain
from diagnose.model.request import Request
from diagnose.model.trace import Ints, Seconds
from diagnose.pipeline import diagnose_and_keep
from diagnose.trace.input_files import forget_heads
from diagnose.watch.episodes import Found
from diagnose.watch.source import Delivery

#: Steps of a window whose slowdowns are kept.
MOST_STEPS = 64
#: Workers of a heat map that is kept: ten thousand GPUs.
MOST_WORKERS = 10_000
#: What is left of a step at least, whatever comes back.
MIN_REST = 1e-3
#: Steps on either side of where steps get longer, at least; by how much, of a step, and in standard deviations of the difference:
#: of the twenty places of a window one is that far out by chance once in a hundred windows.
MIN_SIDE = 2
MIN_RISE = 0.02
N_DEVIATIONS = 3.5
#: A start that is later is the time of day: 2001, in Unix seconds.
TIME_OF_DAY_S = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosed:
    """A window and its diagnosis; None where it could not be diagnosed, with the reason in the window."""

    window: Window
    diagnosis: Diagnosis | None
    data: ReportData | None
    found: tuple[Found, ...] = ()
    checked: frozenset[str] = frozenset()


def diagnose_window(delivery: Delivery, request: Request, *, number: int, seen_s: float) -> Diagnosed:
    """Diagnose what was delivered; `request` says all but where it lies.

    Raises
    ------
    RuleError
        A rule file is wrong.
    OSError
        There is no room to lay its rows out.
    """
    began_s = time.perf_counter()
    diagnosis, data, why = None, None, ""
    with delivery.lay_out() as path:
        try:
            diagnosis, data = diagnose_and_keep(dataclasses.replace(request, source=path))
        except DiagnoseError as error:
            if isinstance(error, RuleError) and not isinstance(error, MetadataError):
                raise
            why = str(error)
        except Exception as error:  # the same rows would fail again: the job goes on with the next
            if asked_to_end(error):
                raise
            why = f"internal error: {type(error).__name__}: {error}"
        finally:
            forget_heads()
    took_s = time.perf_counter() - began_s
    if diagnosis is None:
        window = _lost_window(delivery, why, number=number, seen_s=seen_s, took_s=took_s)
        return Diagnosed(window, None, None)
    clock = _StepClock.of(diagnosis, data)
    window = _keep(delivery, diagnosis, clock, number=number, seen_s=seen_s, took_s=took_s)
    steps = diagnosis.what_if.steps
    at = find_turn(diagnosis.what_if.recorded_s)
    turn = None if at is None else int(steps[at])
    found: dict[str, Found] = {}
    for one in (_find(cause, clock, window, steps, turn) for cause in diagnosis.causes):
        known = found.setdefault(one.cause.fingerprint, one)
        if one.gain > known.gain:
            found[one.cause.fingerprint] = one
    return Diagnosed(window, diagnosis, data, tuple(found.values()), frozenset(_checked(diagnosis)))


def _checked(diagnosis: Diagnosis) -> set[str]:
    """List the causes that a window was looked at for; an inconclusive one says nothing of what is not there."""
    if diagnosis.verdict == "inconclusive":
        return set()
    return {*diagnosis.checked, "unknown"} - {entry.cause for entry in diagnosis.not_checked}


@dataclasses.dataclass(frozen=True, slots=True)
class _StepClock:
    """When the steps of a window began and ended, Unix seconds, by step; empty where nobody knows."""

    begins_s: dict[int, float]
    ends_s: dict[int, float]

    @classmethod
    def of(cls, diagnosis: Diagnosis, data: ReportData | None) -> "_StepClock":
        """Read the clock of a trace."""
        origin = None if data is None else data.analysis.trace.step_origin_s
        found = diagnosis.what_if
        if origin is None or len(origin) != len(found.steps) or not len(origin) or origin[0] < TIME_OF_DAY_S:
            return cls({}, {})
        steps = found.steps.tolist()
        ends_s = (origin + found.recorded_s).tolist()
        return cls(dict(zip(steps, origin.tolist(), strict=True)), dict(zip(steps, ends_s, strict=True)))


def _keep(
    delivery: Delivery, diagnosis: Diagnosis, clock: _StepClock, *, number: int, seen_s: float, took_s: float
) -> Window:
    """Keep of a diagnosis what a watch shows."""
    what_if = diagnosis.what_if
    if diagnosis.log is not None and not len(what_if.steps):
        steps = np.asarray(diagnosis.log.iterations)
        slowdowns = np.full(len(steps), np.nan)
    else:
        steps, slowdowns = what_if.steps, what_if.by_step
    shown = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).astype(np.int64))
    workers = what_if.by_worker if what_if.by_worker.size <= MOST_WORKERS else np.zeros((0, 0))
    first, last = int(steps[0]), int(steps[-1])
    return Window(
        number=number,
        first_step=first,
        last_step=last,
        began_s=clock.begins_s.get(first),
        ended_s=clock.ends_s.get(last),
        seen_s=seen_s,
        took_s=took_s,
        n_rows=delivery.n_rows,
        verdict=diagnosis.verdict,
        step_s=_known(diagnosis.step_time.recorded),
        clean_s=_known(diagnosis.without_named_s),
        slowdown=_known(what_if.slowdown),
        steps=tuple(int(step) for step in steps[shown]),
        step_slowdowns=tuple(_known(one) for one in slowdowns[shown].tolist()),
        worker_slowdowns=tuple(tuple(_known(one) for one in row) for row in workers.tolist()),
        silent=delivery.silent,
    )


def _lost_window(delivery: Delivery, why: str, *, number: int, seen_s: float, took_s: float) -> Window:
    """Make the window of what could not be diagnosed."""
    step = max(delivery.mark.position or 0, 0)
    return Window(
        number=number,
        first_step=step,
        last_step=step,
        began_s=None,
        ended_s=None,
        seen_s=seen_s,
        took_s=took_s,
        n_rows=delivery.n_rows,
        verdict="inconclusive",
        step_s=None,
        slowdown=None,
        steps=(),
        step_slowdowns=(),
        worker_slowdowns=(),
        silent=delivery.silent,
        why=why,
    )


def _find(cause: Cause, clock: _StepClock, window: Window, steps: Ints, turn: int | None) -> Found:
    """Say since when a window has a cause, and what it costs there."""
    onset, end = cause.when.onset_step, cause.when.recovery_step
    found = Found(
        cause=convert(to_plain(cause), KeptCause),
        gain=(gain := max(cause.recoverable, cause.recoverable_after_others or 0.0)),
        lasting_gain=gain,
        first_step=window.first_step,
        began_s=window.began_s,
        ended_s=clock.ends_s.get(window.first_step),
        recovered_step=end,
    )
    if onset is not None:
        return _begin(found, onset, clock, steps)
    dated = None if turn is None or end is not None else _begin(found, turn, clock, steps)
    return replace(_begin(found, window.first_step, clock, steps), since_turn=dated)


def _begin(found: Found, first: int, clock: _StepClock, steps: Ints) -> Found:
    """Date a cause from a step on, and say what it costs in the steps that have it."""
    end = math.inf if found.recovered_step is None else found.recovered_step
    share = float(np.mean((steps >= first) & (steps < end))) if len(steps) else 1.0
    lost = found.gain / max(1.0 - found.gain, MIN_REST) / share if 0 < share < 1 else 0.0  # of a sound step
    return replace(
        found,
        lasting_gain=lost / (1.0 + lost) if lost else found.gain,
        first_step=first,
        began_s=clock.begins_s.get(first),
        ended_s=clock.ends_s.get(first),
    )


def find_turn(step_s: Seconds) -> int | None:
    """Find from where on steps take longer than before: the best split in two; None where chance makes as good a one.

    >>> find_turn(np.array([1.0, 1.01, 0.99, 1.0, 1.3, 1.31, 1.3]))
    4
    >>> find_turn(np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1])) is None
    True
    """
    n = len(step_s)
    if n < 2 * MIN_SIDE:
        return None
    first = np.arange(MIN_SIDE, n - MIN_SIDE + 1)
    total = np.r_[0.0, np.cumsum(step_s)]
    before, after = total[first] / first, (total[n] - total[first]) / (n - first)
    best = int(np.argmax((after - before) * np.abs(after - before) * first * (n - first)))
    at, rise = int(first[best]), float(after[best] - before[best])
    rest = np.r_[step_s[:at] - before[best], step_s[at:] - after[best]]
    spread = float(np.sqrt(np.mean(rest**2) * n / (n - 2) * (1 / at + 1 / (n - at))))
    return at if rise > N_DEVIATIONS * spread and rise > MIN_RISE * before[best] else None


def _known(value: float | None) -> float | None:
    """Give a number, None where it is none."""
    return None if value is None or not math.isfinite(value) else float(value)
