"""How good diagnoses are: figures over jobs whose truth is known.

Enters: one `JudgedJob` a job, what is true about it and what was said. Leaves: `Figures`, and the jobs that were judged wrong.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tests.scoring.judged import (
    COSTLY,
    COUNTS,
    EVALUATION,
    NOTHING,
    TOO_SMALL,
    UNKNOWN,
    Found,
    JudgedJob,
    judge_as_published,
)

#: A true cause that costs at most this part less than the largest may be taken for it.
AS_LARGE = 0.1
N_BINS = 10
#: What is said from here on is said surely.
SURE = 0.9


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
class PartFigures:
    """How good diagnoses of some of the jobs are: those with a kind of fault, or with a feature of their world.

    Of a kind `found` and `missed` count the jobs that have it, of a feature all true causes; `made_up` is all that was made up.
    """

    name: str
    n_jobs: int
    found: int
    missed: int
    made_up: int
    f1: float | None
    macro_f1: float | None
    #: Of what was said surely: what is there.
    sure: Rate
    #: Healthy jobs in which anything was said.
    false_alarms: Rate


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """All figures over some jobs."""

    n_jobs: int
    n_failed: int
    n_healthy: int
    min_confidence: float
    #: One a cause that is true or said anywhere, by name.
    causes: tuple[CauseFigures, ...]
    #: Mean F1 over the causes that occur.
    macro_f1: float | None
    #: Jobs whose largest true cause was said first.
    primary: Rate
    #: Healthy jobs in which anything was said.
    false_alarms: Rate
    #: Faulty jobs in which `unknown` was said.
    unknown: Rate
    #: As for each cause, over all that were found.
    worker: Rate
    stage: Rate
    onset: OnsetFigures
    gain: GainFigures
    #: Expected calibration error of the confidence of everything said, whatever the least confidence asked for.
    calibration_error: float | None
    bins: tuple[Bin, ...]
    #: Of everything said surely: what is there.
    sure: Rate
    kinds: tuple[PartFigures, ...]
    worlds: tuple[PartFigures, ...]
    #: Of jobs with exactly one true cause: true cause -> said first -> jobs.
    confusion: dict[str, dict[str, int]]
    #: The same of the published thresholds on the same jobs.
    published: tuple[CauseFigures, ...]
    published_macro_f1: float | None


def measure(rows: Sequence[JudgedJob], *, min_confidence: float = 0.0) -> Figures:
    """Say how good the diagnoses of some jobs are.

    Parameters
    ----------
    rows : sequence of JudgedJob
        In jobs that have a truth and no diagnosis nothing was said; those without a truth count as failed and no more.
    min_confidence : float
        A cause is said from here on.
    """
    known = [row for row in rows if row.dp]
    sure = [drop_unsure(row, min_confidence) for row in known]
    found = [found for row in sure for found in row.found()]
    causes = measure_causes(sure)
    published = measure_causes([judge_as_published(row) for row in known])
    bins = bin_confidence(known)
    healthy = [row for row in sure if row.is_healthy and not row.error]
    return Figures(
        n_jobs=len(rows),
        n_failed=sum(bool(row.error) for row in rows),
        n_healthy=len(healthy),
        min_confidence=min_confidence,
        causes=causes,
        macro_f1=macro_f1(causes),
        primary=rate(is_primary_right(row) for row in sure if row.countable()),
        false_alarms=rate(bool(row.said) for row in healthy),
        unknown=rate(any(s.cause == UNKNOWN for s in row.said) for row in sure if not row.is_healthy),
        worker=measure_workers(found),
        stage=measure_stages(found),
        onset=measure_onsets(found),
        gain=measure_gains(found),
        calibration_error=calibration_error(bins),
        bins=bins,
        sure=measure_sure(known),
        kinds=measure_kinds(sure),
        worlds=measure_worlds(sure),
        confusion=confuse(sure),
        published=published,
        published_macro_f1=macro_f1(published),
    )


def drop_unsure(row: JudgedJob, min_confidence: float) -> JudgedJob:
    """Leave out what was said with less confidence."""
    return dataclasses.replace(row, said=tuple(said for said in row.said if said.confidence >= min_confidence))


def rate(hits: Iterable[bool]) -> Rate:
    """Count.

    >>> rate([True, False])
    Rate(n=2, hits=1, share=0.5)
    """
    counted = list(hits)
    return Rate(len(counted), sum(counted), sum(counted) / len(counted) if counted else None)


def measure_causes(rows: Sequence[JudgedJob]) -> tuple[CauseFigures, ...]:
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


def is_primary_right(row: JudgedJob) -> bool:
    """Say whether what was said first is the largest true cause of a job, or one about as large.

    Where a decoy costs time `unknown` may come before it: that is what the decoy is. So may a true cause that nobody is asked for.
    """
    there, said = row.countable(), row.ranked() if COSTLY.isdisjoint(row.decoys) else row.named()
    unasked = {true.cause for true in row.truth if not true.tellable}
    said = [one for one in said if one.cause not in unasked]
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
    errors = [item.gain_error for item in found]
    if not errors:
        return GainFigures(0, None, None)
    return GainFigures(len(errors), float(np.mean(errors)), float(np.quantile(errors, 0.9)))


def measure_kinds(rows: Sequence[JudgedJob]) -> tuple[PartFigures, ...]:
    """Measure the jobs of each kind of fault that has to be said, by name."""
    by_kind: dict[str, list[JudgedJob]] = {}
    for row in rows:
        for kind in dict.fromkeys(true.kind or true.cause for true in row.countable()):
            by_kind.setdefault(kind, []).append(row)
    return tuple(measure_kind(kind, by_kind[kind]) for kind in sorted(by_kind))


def measure_kind(kind: str, rows: Sequence[JudgedJob]) -> PartFigures:
    """Measure jobs that have a kind of fault: was it found, and what was made up beside it."""
    cause = kind.partition("/")[0]
    found = sum(any(item.true.cause == cause for item in row.found()) for row in rows)
    return _part(kind, rows, found, len(rows) - found)


def measure_worlds(rows: Sequence[JudgedJob]) -> tuple[PartFigures, ...]:
    """Measure the jobs of each feature of worlds, by name."""
    names = sorted({name for row in rows for name in row.world})
    return tuple(measure_world(name, [row for row in rows if name in row.world]) for name in names)


def measure_world(name: str, rows: Sequence[JudgedJob]) -> PartFigures:
    """Measure jobs of a world."""
    return _part(name, rows, sum(len(row.found()) for row in rows), sum(len(row.missed()) for row in rows))


def _part(name: str, rows: Sequence[JudgedJob], found: int, missed: int) -> PartFigures:
    """Put the figures of some jobs together."""
    made_up = sum(said.cause != UNKNOWN for row in rows for said in row.made_up())
    return PartFigures(
        name=name,
        n_jobs=len(rows),
        found=found,
        missed=missed,
        made_up=made_up,
        f1=2 * found / (2 * found + missed + made_up) if found + missed else None,
        macro_f1=macro_f1(measure_causes(rows)),
        sure=measure_sure(rows),
        false_alarms=rate(bool(row.said) for row in rows if row.is_healthy and not row.error),
    )


def measure_sure(rows: Iterable[JudgedJob]) -> Rate:
    """Count what is there of everything that was said surely; left out is what `bin_confidence` leaves out."""
    return rate(there for confidence, there in list_said(rows) if confidence >= SURE)


def bin_confidence(rows: Iterable[JudgedJob]) -> tuple[Bin, ...]:
    """Part everything said into bins of equal count by confidence, and see how much of it is there.

    What a cause may be instead is said, too, with its own confidence. Left out: `unknown`, which has no truth, and causes that are
    there and too small to be required.
    """
    said = list_said(rows)
    said.sort(key=lambda pair: pair[0])
    parts = [part for part in np.array_split(np.array(said, dtype=np.float64).reshape(-1, 2), N_BINS) if len(part)]
    return tuple(
        Bin(len(part), float(part[0, 0]), float(part[-1, 0]), float(part[:, 0].mean()), float(part[:, 1].mean()))
        for part in parts
    )


def list_said(rows: Iterable[JudgedJob]) -> list[tuple[float, bool]]:
    """List how sure everything said is, what it may be instead included, and whether it is there; left out is what is neither."""
    said: list[tuple[float, bool]] = []
    for row in rows:
        worth = {true.cause: true.worth for true in row.truth if true.tellable}
        worth |= {true.cause: TOO_SMALL for true in row.truth if not true.tellable}
        worth |= {name: COUNTS for name in row.decoys if name == EVALUATION}
        claims = [(cause.cause, cause.confidence) for cause in row.named()]
        claims += [claim for cause in row.said for claim in cause.alternatives.items() if claim[0] != UNKNOWN]
        pairs = [(confidence, worth.get(name, 0.0)) for name, confidence in claims]
        said += [(confidence, value >= COUNTS) for confidence, value in pairs if not TOO_SMALL <= value < COUNTS]
    return said


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Take the mean distance between confidence and truth, each bin by its count; None where nothing was said."""
    n = sum(found.n for found in bins)
    return sum(found.n * abs(found.confidence - found.right) for found in bins) / n if n else None


def confuse(rows: Iterable[JudgedJob]) -> dict[str, dict[str, int]]:
    """Count what was said first in jobs with exactly one true cause."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        there = [true for true in row.truth if true.worth >= TOO_SMALL]
        if len(there) == 1 and there[0].worth >= COUNTS and there[0].tellable:
            said = row.ranked()
            table.setdefault(there[0].cause, Counter())[said[0].cause if said else NOTHING] += 1
    return {cause: dict(sorted(table[cause].items())) for cause in sorted(table)}
