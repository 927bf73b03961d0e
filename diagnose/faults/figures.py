"""How good diagnoses are: figures over jobs whose truth is known.

Enters: one `Row` a job, what is true about it and what was said. Leaves: `Figures`, and the jobs that were judged wrong.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from diagnose.faults.fault import Worker
from diagnose.model.request import MIN_SPEEDUP

#: A true cause must be said when this part of the step comes back with it mended: the step is 2% shorter, as in a diagnosis.
COUNTS = 1.0 - 1.0 / MIN_SPEEDUP
#: Below this a true cause is as good as none, and false when said; in between it is neither required nor false.
TOO_SMALL = 0.008
#: A true cause that costs at most this part less than the largest may be taken for it.
AS_LARGE = 0.1
#: Said where time is lost and no cause is known for it.
UNKNOWN = "unknown"
#: Column of the confusion table for jobs in which nothing was said.
NOTHING = "nothing"
N_BINS = 10
#: Thresholds of arXiv 2505.05713: a job straggles, one worker or the last stage makes up for half of it, sequences vary.
PUBLISHED_S = 1.1
PUBLISHED_M = 0.5
PUBLISHED_CORRELATION = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class TrueCause:
    """A fault that a job has; `recoverable` with it alone mended, `recoverable_last` with all others mended before.

    One that nothing in the trace can tell from the job's normal (`tellable` false) is neither asked for nor wrong when said. Its
    workers are not asked for where nothing can tell them from others (`place_tellable` false).
    """

    cause: str
    workers: tuple[Worker, ...]
    stages: tuple[int, ...]
    onset_step: int | None
    recoverable: float
    recoverable_last: float
    tellable: bool = True
    place_tellable: bool = True

    @property
    def worth(self) -> float:
        """Part of the step that comes back, alone or after the others: the larger one."""
        return max(self.recoverable, self.recoverable_last)


@dataclasses.dataclass(frozen=True, slots=True)
class SaidCause:
    """A cause that was reported; `links` by the workers at their ends."""

    cause: str
    confidence: float
    share: float | None
    recoverable: float
    workers: tuple[Worker, ...] = ()
    stages: tuple[int, ...] = ()
    links: tuple[tuple[Worker, Worker], ...] = ()
    onset_step: int | None = None
    pattern: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One job: what is true, what was said, and what went wrong.

    Attributes
    ----------
    dp, pp : int
        0 where the job could not be made or read, so that there is no truth.
    steps : tuple of int
        Numbers of the sampled steps, increasing.
    decoys : tuple of str
        What the job has that looks like a cause and is none.
    truth : tuple of TrueCause
        One a cause at most.
    slowdown, m_w, m_s, correlation : float or None
        What the published thresholds ask for; None where it was not measured.
    error : str
        Why there is no diagnosis; empty where there is one.
    """

    job: str
    dp: int = 0
    pp: int = 0
    steps: tuple[int, ...] = ()
    decoys: tuple[str, ...] = ()
    truth: tuple[TrueCause, ...] = ()
    verdict: str | None = None
    said: tuple[SaidCause, ...] = ()
    slowdown: float | None = None
    m_w: float | None = None
    m_s: float | None = None
    correlation: float | None = None
    error: str = ""

    @property
    def is_healthy(self) -> bool:
        """True where no true cause is worth a word."""
        return all(true.worth < TOO_SMALL for true in self.truth)

    def countable(self) -> list[TrueCause]:
        """List the true causes that must be said, the largest first."""
        return sorted(
            (true for true in self.truth if true.worth >= COUNTS and true.tellable), key=lambda true: -true.recoverable
        )

    def named(self) -> list[SaidCause]:
        """List the causes said, as a report does: the largest share first, `unknown` left out."""
        return [said for said in self.ranked() if said.cause != UNKNOWN]

    def ranked(self) -> list[SaidCause]:
        """List all that was said, the largest share first."""
        return sorted(self.said, key=lambda said: (-(said.share or 0.0), -said.recoverable, said.cause))

    def missed(self) -> list[TrueCause]:
        """List the true causes that were not said and had to be."""
        names = {said.cause for said in self.said}
        return [true for true in self.countable() if true.cause not in names]

    def made_up(self) -> list[SaidCause]:
        """List what was said and is not there; `unknown` is made up in a healthy job only."""
        there = {true.cause for true in self.truth if true.worth >= TOO_SMALL}
        return [s for s in self.ranked() if s.cause not in there and (s.cause != UNKNOWN or self.is_healthy)]

    def found(self) -> "list[Found]":
        """List the true causes that had to be said and were, with what was said of them."""
        by_cause = {said.cause: said for said in self.said}
        return [Found(self, true, by_cause[true.cause]) for true in self.countable() if true.cause in by_cause]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A true cause of a job, and what was said of it."""

    row: Row
    true: TrueCause
    said: SaidCause

    @property
    def asks_for_worker(self) -> bool:
        """True where a worker can be named: there is one, peers to tell it from, and a trace that shows which it is."""
        return bool(self.true.workers) and self.true.place_tellable and self.row.dp != 1

    @property
    def right_worker(self) -> bool:
        """True where the worker named first has the fault, or where only links are named, an end of the first."""
        first = self.said.workers[:1] or (self.said.links[0] if self.said.links else ())
        return any(worker in self.true.workers for worker in first)

    @property
    def right_stage(self) -> bool:
        """True where the stage named first, or else that of the first worker, has the fault."""
        first = self.said.stages[:1] or tuple(stage for _, stage in self.said.workers[:1])
        return bool(first) and first[0] in self.true.stages


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """How many of how many; `share` is None of none."""

    n: int
    hits: int
    share: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class OnsetFigures:
    """Of causes that begin at some step: distance between the step said and the true one, counted in sampled steps.

    `n_missing` of the `n` were said without an onset; `median` and `exact` (a share) are of the others. `n_made_up` counts
    causes that are there from the beginning and were said with an onset.
    """

    n: int
    n_missing: int
    median: float | None
    exact: float | None
    n_made_up: int


@dataclasses.dataclass(frozen=True, slots=True)
class GainFigures:
    """Absolute error of `recoverable`, parts of the step."""

    n: int
    mean: float | None
    p90: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class CauseFigures:
    """How well one cause is found: `n` jobs have it, `found` and `missed` of them; `made_up` jobs do not have it.

    Ratios are None where nothing is there to be counted.
    """

    cause: str
    n: int
    found: int
    missed: int
    made_up: int
    precision: float | None
    recall: float | None
    f1: float | None
    worker: Rate
    stage: Rate
    onset: OnsetFigures
    gain: GainFigures


@dataclasses.dataclass(frozen=True, slots=True)
class Bin:
    """Causes said with similar confidence: the mean of it, and the part of them that is there."""

    n: int
    lowest: float
    highest: float
    confidence: float
    right: float


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """All figures over some jobs.

    Attributes
    ----------
    causes : tuple of CauseFigures
        One a cause that is true or said anywhere, by name.
    macro_f1, published_macro_f1 : float or None
        Mean F1 over the causes that occur: of what was said, and of the published thresholds on the same jobs.
    primary : Rate
        Jobs whose largest true cause was said first.
    false_alarms : Rate
        Healthy jobs in which anything was said.
    unknown : Rate
        Faulty jobs in which `unknown` was said.
    worker, stage, onset, gain
        As for each cause, over all that were found.
    calibration_error : float or None
        Expected calibration error of the confidence of everything said, whatever the least confidence asked for.
    confusion : dict of str to dict of str to int
        Of jobs with exactly one true cause: true cause -> said first -> jobs.
    """

    n_jobs: int
    n_failed: int
    n_healthy: int
    min_confidence: float
    causes: tuple[CauseFigures, ...]
    macro_f1: float | None
    primary: Rate
    false_alarms: Rate
    unknown: Rate
    worker: Rate
    stage: Rate
    onset: OnsetFigures
    gain: GainFigures
    calibration_error: float | None
    bins: tuple[Bin, ...]
    confusion: dict[str, dict[str, int]]
    published: tuple[CauseFigures, ...]
    published_macro_f1: float | None


def measure(rows: Sequence[Row], *, min_confidence: float = 0.0) -> Figures:
    """Say how good the diagnoses of some jobs are.

    Parameters
    ----------
    rows : sequence of Row
        In jobs that have a truth and no diagnosis nothing was said; those without a truth count as failed and no more.
    min_confidence : float
        A cause is said from here on.

    Returns
    -------
    Figures
    """
    known = [row for row in rows if row.dp]
    heard = [hear(row, min_confidence) for row in known]
    found = [found for row in heard for found in row.found()]
    causes = measure_causes(heard)
    published = measure_causes([judge_as_published(row) for row in known])
    bins = bin_confidence(known)
    healthy = [row for row in heard if row.is_healthy and not row.error]
    return Figures(
        n_jobs=len(rows),
        n_failed=sum(bool(row.error) for row in rows),
        n_healthy=len(healthy),
        min_confidence=min_confidence,
        causes=causes,
        macro_f1=macro_f1(causes),
        primary=rate(is_primary_right(row) for row in heard if row.countable()),
        false_alarms=rate(bool(row.said) for row in healthy),
        unknown=rate(any(s.cause == UNKNOWN for s in row.said) for row in heard if not row.is_healthy),
        worker=measure_workers(found),
        stage=measure_stages(found),
        onset=measure_onsets(found),
        gain=measure_gains(found),
        calibration_error=calibration_error(bins),
        bins=bins,
        confusion=confuse(heard),
        published=published,
        published_macro_f1=macro_f1(published),
    )


def hear(row: Row, min_confidence: float) -> Row:
    """Leave out what was said with less confidence."""
    return dataclasses.replace(row, said=tuple(said for said in row.said if said.confidence >= min_confidence))


def rate(hits: Iterable[bool]) -> Rate:
    """Count.

    >>> rate([True, False])
    Rate(n=2, hits=1, share=0.5)
    """
    counted = list(hits)
    return Rate(len(counted), sum(counted), sum(counted) / len(counted) if counted else None)


def measure_causes(rows: Sequence[Row]) -> tuple[CauseFigures, ...]:
    """Count for each cause the jobs in which it was found, missed and made up, and judge what was said of it."""
    found: dict[str, list[Found]] = {}
    missed, made_up = Counter[str](), Counter[str]()
    for row in rows:
        for item in row.found():
            found.setdefault(item.true.cause, []).append(item)
        missed.update(true.cause for true in row.missed())
        made_up.update(said.cause for said in row.made_up() if said.cause != UNKNOWN)
    names = sorted(found.keys() | missed.keys() | made_up.keys())
    return tuple(_cause_figures(name, found.get(name, []), missed[name], made_up[name]) for name in names)


def _cause_figures(cause: str, found: Sequence[Found], missed: int, made_up: int) -> CauseFigures:
    """Put the figures of one cause together."""
    hits = len(found)
    return CauseFigures(
        cause=cause,
        n=hits + missed,
        found=hits,
        missed=missed,
        made_up=made_up,
        precision=hits / (hits + made_up) if hits + made_up else None,
        recall=hits / (hits + missed) if hits + missed else None,
        f1=2 * hits / (2 * hits + missed + made_up) if hits + missed else None,
        worker=measure_workers(found),
        stage=measure_stages(found),
        onset=measure_onsets(found),
        gain=measure_gains(found),
    )


def macro_f1(causes: Iterable[CauseFigures]) -> float | None:
    """Take the mean F1 over the causes that occur; None where none does."""
    scores = [figures.f1 for figures in causes if figures.f1 is not None]
    return float(np.mean(scores)) if scores else None


def is_primary_right(row: Row) -> bool:
    """Say whether what was said first is the largest true cause of a job, or one about as large."""
    there, said = row.countable(), row.ranked()
    top = there[0].recoverable
    largest = {true.cause for true in there if top - true.recoverable <= AS_LARGE * abs(top)}
    return bool(said) and said[0].cause in largest


def measure_workers(found: Iterable[Found]) -> Rate:
    """Count where the worker named first is one that has the fault, among jobs that have peers to tell it from."""
    return rate(item.right_worker for item in found if item.asks_for_worker)


def measure_stages(found: Iterable[Found]) -> Rate:
    """Count where the stage named first is one that has the fault."""
    return rate(item.right_stage for item in found if item.true.stages)


def measure_onsets(found: Sequence[Found]) -> OnsetFigures:
    """Compare the steps from which on causes are said to be there with the true ones."""
    late = [item for item in found if item.true.onset_step is not None]
    off = [
        abs(_index(item, item.said.onset_step) - _index(item, item.true.onset_step)) for item in late if _dated(item)
    ]
    return OnsetFigures(
        n=len(late),
        n_missing=len(late) - len(off),
        median=float(np.median(off)) if off else None,
        exact=off.count(0) / len(off) if off else None,
        n_made_up=sum(_dated(item) for item in found if item.true.onset_step is None),
    )


def _dated(item: Found) -> bool:
    """Say whether an onset was said."""
    return item.said.onset_step is not None


def _index(item: Found, step: int | None) -> int:
    """Find a step among the sampled ones."""
    return int(np.searchsorted(item.row.steps, step or 0))


def measure_gains(found: Iterable[Found]) -> GainFigures:
    """Compare what is said to come back with what truly does."""
    errors = [abs(item.said.recoverable - item.true.recoverable) for item in found]
    if not errors:
        return GainFigures(0, None, None)
    return GainFigures(len(errors), float(np.mean(errors)), float(np.quantile(errors, 0.9)))


def bin_confidence(rows: Iterable[Row]) -> tuple[Bin, ...]:
    """Part everything said into bins of equal count by confidence, and see how much of it is there.

    Left out: `unknown`, which has no truth, and causes that are there and too small to be required.
    """
    said: list[tuple[float, bool]] = []
    for row in rows:
        worth = {true.cause: true.worth for true in row.truth if true.tellable}
        worth |= {true.cause: TOO_SMALL for true in row.truth if not true.tellable}
        pairs = [(cause.confidence, worth.get(cause.cause, 0.0)) for cause in row.named()]
        said += [(confidence, value >= COUNTS) for confidence, value in pairs if not TOO_SMALL <= value < COUNTS]
    said.sort(key=lambda pair: pair[0])
    parts = [part for part in np.array_split(np.array(said, dtype=np.float64).reshape(-1, 2), N_BINS) if len(part)]
    return tuple(
        Bin(len(part), float(part[0, 0]), float(part[-1, 0]), float(part[:, 0].mean()), float(part[:, 1].mean()))
        for part in parts
    )


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Take the mean distance between confidence and truth, each bin by its count; None where nothing was said."""
    n = sum(found.n for found in bins)
    return sum(found.n * abs(found.confidence - found.right) for found in bins) / n if n else None


def confuse(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Count what was said first in jobs with exactly one true cause."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        there = [true for true in row.truth if true.worth >= TOO_SMALL]
        if len(there) == 1 and there[0].worth >= COUNTS and there[0].tellable:
            said = row.ranked()
            table.setdefault(there[0].cause, Counter())[said[0].cause if said else NOTHING] += 1
    return {cause: dict(sorted(table[cause].items())) for cause in sorted(table)}


def judge_as_published(row: Row) -> Row:
    """Say instead what the thresholds of arXiv 2505.05713 say of a job."""
    signs = {
        "worker-fault": (row.m_w, PUBLISHED_M),
        "stage-imbalance": (row.m_s, PUBLISHED_M),
        "sequence-imbalance": (row.correlation, PUBLISHED_CORRELATION),
    }
    straggles = row.slowdown is not None and row.slowdown >= PUBLISHED_S
    said = [
        SaidCause(cause, 1.0, None, value)
        for cause, (value, least) in signs.items()
        if straggles and value is not None and value >= least
    ]
    return dataclasses.replace(row, said=tuple(said))


def find_worst(rows: Iterable[Row], n: int) -> list[Row]:
    """List the jobs that were judged wrong, those where most of the step is at stake first.

    Parameters
    ----------
    rows : iterable of Row
    n : int
        That many at most.
    """
    at_stake = {row.job: sum(stake for _, stake in list_errors(row)) for row in rows}
    wrong = [row for row in rows if list_errors(row)]
    return sorted(wrong, key=lambda row: (-at_stake[row.job], row.job))[:n]


def list_errors(row: Row) -> list[tuple[str, float]]:
    """List what is wrong about a diagnosis, in words and by the part of the step at stake."""
    wrong = [(f"missed {true.cause}", true.worth) for true in row.missed()]
    wrong += [(f"made up {said.cause}", said.recoverable) for said in row.made_up()]
    wrong += [
        (f"worker of {item.true.cause}: {_first(item.said)} for {_place(item.true.workers)}", item.true.worth)
        for item in row.found()
        if item.asks_for_worker and not item.right_worker
    ]
    return wrong


def describe(row: Row) -> str:
    """Write a job in one line: what is true, what was said, and what of it is wrong."""
    there = ", ".join(f"{true.cause} {true.recoverable:.3f} (last {true.recoverable_last:.3f})" for true in row.truth)
    said = ", ".join(f"{said.cause} {said.recoverable:.3f} @{said.confidence:.2f}" for said in row.ranked())
    parts = [f"true: {there or 'healthy'}"]
    parts += [f"decoys: {', '.join(row.decoys)}"] if row.decoys else []
    parts += [f"said: {said or NOTHING}", f"WRONG: {', '.join(what for what, _ in list_errors(row))}"]
    parts += [f"failed: {row.error}"] if row.error else []
    return f"{row.job} (dp {row.dp} pp {row.pp}, {len(row.steps)} steps): " + "; ".join(parts)


def _first(said: SaidCause) -> str:
    """Name the worker, or else the link, that was named first."""
    link = said.links[:1]
    return _place(said.workers) if said.workers or not link else f"{_place(link[0][:1])} to {_place(link[0][1:])}"


def _place(workers: Sequence[Worker]) -> str:
    """Name the first worker."""
    return f"dp {workers[0][0]} stage {workers[0][1]}" if workers else "nobody"
