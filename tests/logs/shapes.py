"""Runs of every shape that a series of step times can have, with the truth: what is lost to what, since when, at which period.

Enters: a shape and a seed. Leaves: a `Shape`; `write_exactly` makes of its run the `TrainingLog` that a perfect format would give.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from diagnose.model.diagnosis_document import LogRestart
from diagnose.model.training_log import LogEvent, LogIntervalKind, LogLoss, TrainingLog
from tests.logs.runs import Attempt, Between, LoggedRun

Floats = NDArray[np.float64]
Rng = np.random.Generator


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was put into a run."""

    #: First slow iteration, None where it is the first of all, and the first that is not slow any more, None where there is
    #: none.
    windows: tuple[tuple[int | None, int | None], ...] = ()
    #: Where it begins, from how many seconds to how many.
    ramp: tuple[int, float, float] | None = None
    #: Iterations from one slow one to the next.
    period: int | None = None
    #: Single slow iterations.
    count: int = 0
    #: Seconds that were put in, by what they count as.
    lost_s: dict[LogLoss, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A run and what was put into it; `noise_s` is the standard deviation of a step, `pace_s` its usual seconds."""

    kind: str
    run: LoggedRun
    truth: Truth
    pace_s: float
    noise_s: float


def draw_shape(kind: str, seed: int, *, interval: int | None = None) -> Shape:
    """Draw a run of a shape; the interval between lines is 1, 5 or 10 where it is not said."""
    rng = np.random.default_rng([seed, sorted(SHAPES).index(kind)])
    interval = int(rng.choice([1, 1, 5, 10])) if interval is None else interval
    return SHAPES[kind](rng, kind, interval)


def draw_noise(rng: Rng, n: int) -> tuple[Floats, float]:
    """Draw what steps vary by: log-normal jitter of 0.3 to 5%, in some runs with memory, and a few outliers.

    Returns
    -------
    ratio : ndarray of float64, shape (n,)
    sigma : float
        Its standard deviation, outliers left out.
    """
    sigma = float(np.exp(rng.uniform(np.log(0.003), np.log(0.05))))
    values = rng.standard_normal(n)
    if rng.random() < 0.4:
        memory = rng.uniform(0.2, 0.7)
        for i in range(1, n):
            values[i] = memory * values[i - 1] + np.sqrt(1 - memory**2) * values[i]
    ratio = np.exp(sigma * values - sigma**2 / 2)
    if rng.random() < 0.5:
        outliers = rng.random(n) < rng.uniform(0.0005, 0.003)
        ratio[outliers] *= 1.0 + rng.uniform(0.05, 0.6, int(outliers.sum()))
    return ratio, sigma


@dataclasses.dataclass(slots=True)
class _Draft:
    """A run in the making: `step_s` is changed in place."""

    rng: Rng
    interval: int
    n: int
    pace_s: float
    sigma: float
    step_s: Floats
    tokens: Floats
    batch_size: NDArray[np.int64]
    between: list[Between] = dataclasses.field(default_factory=list)
    intervals: dict[LogIntervalKind, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def draw(cls, rng: Rng, interval: int) -> "_Draft":
        """Draw a run in which nothing happens."""
        n = int(rng.integers(300, 1500)) * interval // interval * interval
        n = max(n, 120 * interval)
        pace_s = float(np.exp(rng.uniform(np.log(0.2), np.log(20.0))))
        ratio, sigma = draw_noise(rng, n)
        return cls(
            rng, interval, n, pace_s, sigma, pace_s * ratio, np.full(n, 2.0**20), np.full(n, 512, dtype=np.int64)
        )

    def finish(
        self,
        kind: str,
        truth: Truth,
        attempts: tuple[Attempt, ...] | None = None,
        iteration: NDArray[np.int64] | None = None,
    ) -> Shape:
        """Give the run."""
        run = LoggedRun(
            iteration=np.arange(1, len(self.step_s) + 1) if iteration is None else iteration,
            step_s=self.step_s,
            interval=self.interval,
            attempts=attempts or (Attempt(at=0),),
            tokens=self.tokens,
            batch_size=self.batch_size,
            parts={},
            between=tuple(self.between),
            intervals={"log": self.interval, **self.intervals},
            total=100_000,
        )
        return Shape(kind=kind, run=run, truth=truth, pace_s=self.pace_s, noise_s=self.pace_s * self.sigma)


def _healthy(rng: Rng, kind: str, interval: int) -> Shape:
    return _Draft.draw(rng, interval).finish(kind, Truth())


def _periodic(rng: Rng, kind: str, interval: int) -> Shape:
    """Slow steps at a period, one that no interval of the log is."""
    draft = _Draft.draw(rng, interval)
    period = int(rng.integers(2, 12)) if interval == 1 else int(rng.integers(3 * interval, 8 * interval))
    at = np.arange(int(rng.integers(0, period)), draft.n, period)
    added_s = rng.uniform(1.0, 8.0) * interval**0.5 * draft.pace_s * rng.uniform(0.9, 1.1, len(at))
    draft.step_s[at] += added_s
    return draft.finish(kind, Truth(period=period, count=len(at), lost_s={"periodic": float(added_s.sum())}))


def _sporadic(rng: Rng, kind: str, interval: int) -> Shape:
    """Slow steps at random: of few lines each, however long a line's interval is."""
    draft = _Draft.draw(rng, interval)
    hit = rng.random(draft.n) < rng.uniform(0.02, 0.1) / interval
    hit[: 10 * interval] = False
    added_s = np.where(hit, rng.uniform(2.0, 5.0, draft.n) * interval**0.5 * draft.pace_s, 0.0)
    draft.step_s += added_s
    return draft.finish(kind, Truth(count=int(hit.sum()), lost_s={"sporadic": float(added_s.sum())}))


def _windows(rng: Rng, kind: str, interval: int) -> Shape:
    """Two windows, or the last one goes on."""
    draft = _Draft.draw(rng, interval)
    length = draft.n // 5
    first = int(rng.integers(30 * interval, length + 30 * interval))
    second = int(rng.integers(first + length + 30 * interval, draft.n - length // 2))
    windows, lost_s = [], 0.0
    for begin in (first, second):
        end = min(begin + int(rng.integers(max(20 * interval, length // 3), length)), draft.n)
        before_s = draft.step_s[begin:end].copy()
        draft.step_s[begin:end] *= _strength(rng, draft)
        lost_s += float((draft.step_s[begin:end] - before_s).sum())
        windows.append((begin + 1, end + 1 if end < draft.n else None))
    return draft.finish(kind, Truth(windows=tuple(windows), lost_s={"windows": lost_s}))


def _first_steps(rng: Rng, kind: str, interval: int) -> Shape:
    """Slow from the first step on, until it is not."""
    draft = _Draft.draw(rng, interval)
    end = int(rng.integers(20 * interval, draft.n // 2))
    before_s = draft.step_s[:end].copy()
    draft.step_s[:end] *= _strength(rng, draft)
    lost_s = float((draft.step_s[:end] - before_s).sum())
    return draft.finish(kind, Truth(windows=((None, end + 1),), lost_s={"windows": lost_s}))


def _strength(rng: Rng, draft: _Draft) -> float:
    """Draw by how much a window is slower: so much that 2% of it can be told from the noise of its steps."""
    return 1.0 + max(float(rng.uniform(0.15, 1.0)), 4.0 * draft.sigma)


def _ramp(rng: Rng, kind: str, interval: int) -> Shape:
    """Steps that get longer and longer."""
    draft = _Draft.draw(rng, interval)
    begin = int(rng.integers(0, draft.n // 2)) if rng.random() < 0.7 else 0
    top = 1.0 + float(rng.uniform(0.5, 3.0))
    factor = np.ones(draft.n)
    factor[begin:] = np.linspace(1.0, top, draft.n - begin)
    before_s = draft.step_s.copy()
    draft.step_s *= factor
    lost_s = float((draft.step_s - before_s).sum())
    truth = Truth(ramp=(begin + 1, draft.pace_s, draft.pace_s * top), lost_s={"ramps": lost_s})
    return draft.finish(kind, truth)


def _restart(rng: Rng, kind: str, interval: int) -> Shape:
    """A restart that runs some steps again, with a slow first step, and nothing else."""
    draft = _Draft.draw(rng, interval)
    down = int(rng.integers(40, draft.n // interval - 40)) * interval
    again = int(rng.integers(0, min(30, down // interval - 10))) * interval
    iteration = np.concatenate([np.arange(1, down + 1), np.arange(down - again + 1, draft.n - again + 1)])
    gap_s = float(rng.uniform(30.0, 900.0))
    again_s = float(draft.step_s[down - again : down].sum())
    first_s = float(rng.uniform(10.0, 30.0)) * draft.pace_s
    for at in (0, down):
        draft.step_s[at] += first_s
    attempts = (Attempt(at=0, hosts=("a", "b")), Attempt(at=down, hosts=("a", "c"), gap_s=gap_s))
    lost_s: dict[LogLoss, float] = {"restarts": gap_s + again_s, "start": 2 * first_s}
    if down - again <= 0:
        lost_s["start"] = first_s
    return draft.finish(kind, Truth(lost_s=lost_s), attempts, iteration)


def _sequence(rng: Rng, kind: str, interval: int) -> Shape:
    """Sequences that get longer in stages, and steps with them: no fault."""
    draft = _Draft.draw(rng, interval)
    stages = int(rng.integers(3, 6))
    lengths = 1024.0 * 2.0 ** (np.arange(draft.n) * stages // draft.n)
    draft.tokens = 512.0 * lengths
    draft.step_s *= (lengths / lengths[0]) ** rng.uniform(0.8, 1.2)
    return draft.finish(kind, Truth())


def _saves(rng: Rng, kind: str, interval: int) -> Shape:
    """An evaluation every so many steps, and a save every few of these, in between steps."""
    draft = _Draft.draw(rng, interval)
    every = interval * int(rng.integers(8, 25))
    saves = every * int(rng.integers(2, 4))
    draft.intervals = {"evaluation": every, "save": saves}
    evaluation_s, save_s = (float(rng.uniform(5.0, 20.0)) * draft.pace_s * interval**0.5 for _ in range(2))
    lost_s: dict[LogLoss, float] = {"evaluation": 0.0, "save": 0.0}
    for step in range(every, draft.n, every):
        draft.between.append(
            Between(kind="evaluation", at=step - 1, seconds=evaluation_s * float(rng.uniform(0.95, 1.05)))
        )
        lost_s["evaluation"] += draft.between[-1].seconds
        if step % saves == 0:
            draft.between.append(Between(kind="save", at=step - 1, seconds=save_s * float(rng.uniform(0.95, 1.05))))
            lost_s["save"] += draft.between[-1].seconds
    return draft.finish(kind, Truth(lost_s=lost_s))


SHAPES: dict[str, Callable[[Rng, str, int], Shape]] = {
    "healthy": _healthy,
    "periodic": _periodic,
    "sporadic": _sporadic,
    "windows": _windows,
    "first-steps": _first_steps,
    "ramp": _ramp,
    "restart": _restart,
    "sequence": _sequence,
    "saves": _saves,
}


def write_exactly(run: LoggedRun, *, is_mean: bool = True, told: bool = True, inside: bool = False) -> TrainingLog:
    """Make the log of a run as a format without rounding would write it.

    Parameters
    ----------
    is_mean : bool
        A line is the mean since the one before, else the time of its own step.
    told : bool
        It tells of events, with their seconds.
    inside : bool
        What lies between steps counts as a part of the next one, as where a framework measures from line to line.
    """
    own_s = run.step_s.copy()
    if inside:
        for event in run.between:
            if event.at + 1 < len(own_s):
                own_s[event.at + 1] += event.seconds
    ends_s = run.ends_s()
    starts = [attempt.at for attempt in run.attempts]
    attempt_of = np.searchsorted(starts, np.arange(len(own_s)), side="right") - 1
    lines: list[tuple[int, int, float, float]] = []
    since = 0
    for i, iteration in enumerate(run.iteration.tolist()):
        if i in starts:
            since = i
        if iteration % run.interval == 0:
            seconds = float(own_s[since : i + 1].mean()) if is_mean else float(own_s[i])
            lines.append((i, iteration, seconds, float(ends_s[i])))
            since = i + 1
    at = np.array([line[0] for line in lines])
    attempt = attempt_of[at]
    restarts = tuple(
        LogRestart(lines[j][1], lines[j + 1][1], lines[j + 1][3] - lines[j][3])
        for j in np.flatnonzero(np.diff(attempt)).tolist()
    )
    events = (
        tuple(LogEvent(event.kind, int(run.iteration[event.at]), event.seconds) for event in run.between)
        if told
        else ()
    )
    return TrainingLog(
        name="exact",
        format="exact",
        reads="seconds",
        iteration=run.iteration[at],
        step_s=np.array([line[2] for line in lines]),
        is_mean=is_mean,
        batch_size=run.batch_size[at],
        attempt=attempt,
        stamp_s=np.array([line[3] for line in lines]),
        tokens=run.tokens[at],
        n_steps=np.zeros(len(at), dtype=np.int64),
        restarts=restarts,
        total=run.total,
        parts={part: seconds[at] for part, seconds in run.parts.items()},
        events=events,
        intervals=run.intervals,
        hosts=tuple(attempt.hosts for attempt in run.attempts),
    )
