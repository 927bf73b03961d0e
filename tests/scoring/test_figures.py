"""Figures: hand-made jobs whose counts, shares and errors one can add in the head."""

import dataclasses
from typing import Any

import pytest

from tests.scoring.figures import CauseFigures, OnsetFigures, Rate, drop_unsure, list_said, measure
from tests.scoring.judged import (
    COUNTS,
    NOTHING,
    TOO_SMALL,
    UNKNOWN,
    JudgedJob,
    SaidCause,
    TrueCause,
    describe,
    find_worst,
    judge_as_published,
)

STEPS = (16, 17, 18, 40, 41)


def true(cause: str, recoverable: float = 0.1, **fields: Any) -> TrueCause:
    """Make a fault."""
    place = {"workers": (), "stages": (), "onset_step": None, "recoverable_last": recoverable}
    return TrueCause(cause=cause, recoverable=recoverable, **(place | fields))


def said(cause: str, recoverable: float = 0.1, confidence: float = 0.9, **fields: Any) -> SaidCause:
    """Make something said, its share as large as what it gives back."""
    return SaidCause(cause, confidence, fields.pop("share", recoverable), recoverable, **fields)


def row(*causes: TrueCause | SaidCause, **fields: Any) -> JudgedJob:
    """Make a job with what is true and what was said."""
    there = tuple(cause for cause in causes if isinstance(cause, TrueCause))
    heard = tuple(cause for cause in causes if isinstance(cause, SaidCause))
    return JudgedJob(**({"job": "job", "dp": 4, "pp": 2, "steps": STEPS, "truth": there, "said": heard} | fields))


def cause_of(rows: list[JudgedJob], name: str) -> CauseFigures:
    """Give the figures of one cause."""
    (found,) = [figures for figures in measure(rows).causes if figures.cause == name]
    return found


# ------------------------------------------------------------------------------------------ found, missed, made up


def test_a_cause_is_found_missed_or_made_up() -> None:
    """Three of four found and one made up are precision 3/4, recall 3/4 and F1 3/4."""
    rows = [row(true("a"), said("a"))] * 3 + [row(true("a")), row(said("a"))]
    found = cause_of(rows, "a")
    assert (found.n, found.found, found.missed, found.made_up) == (4, 3, 1, 1)
    assert (found.precision, found.recall, found.f1) == (0.75, 0.75, 0.75)


def test_f1_is_the_harmonic_mean() -> None:
    """One of two found and nothing made up is precision 1, recall 1/2 and F1 2/3."""
    found = cause_of([row(true("a"), said("a")), row(true("a"))], "a")
    assert (found.precision, found.recall, found.f1) == (1.0, 0.5, pytest.approx(2 / 3))


def test_the_mean_f1_is_over_causes_that_occur() -> None:
    """With F1 1 and 0 of two causes that occur the mean is 1/2, whatever a third that does not occur was said for."""
    rows = [row(true("a"), said("a")), row(true("b")), row(said("c"))]
    assert measure(rows).macro_f1 == 0.5
    assert [figures.f1 for figures in measure(rows).causes] == [1.0, 0.0, None]


def test_without_any_cause_nothing_is_made_of_it() -> None:
    """Where no cause is true and none said, ratios are missing and not 0 or 1."""
    figures = measure([row()])
    assert figures.causes == ()
    assert figures.macro_f1 is figures.calibration_error is figures.primary.share is figures.gain.mean is None


@pytest.mark.parametrize(
    ("worth", "is_said", "counted"),
    [
        (COUNTS, True, (1, 0, 0)),
        (COUNTS, False, (0, 1, 0)),
        (COUNTS - 1e-9, True, (0, 0, 0)),
        (COUNTS - 1e-9, False, (0, 0, 0)),
        (TOO_SMALL, True, (0, 0, 0)),
        (TOO_SMALL - 1e-9, True, (0, 0, 1)),
        (TOO_SMALL - 1e-9, False, (0, 0, 0)),
    ],
)
def test_a_small_cause_is_neither_required_nor_false(
    worth: float, is_said: bool, counted: tuple[int, int, int]
) -> None:
    """From 0.008 to below 2% of the step a cause may be said or not; below it is made up."""
    job = row(true("a", worth), *([said("a")] if is_said else []))
    assert (len(job.found()), len(job.missed()), len(job.made_up())) == counted


@pytest.mark.parametrize(("alone", "last"), [(0.1, 0.0), (-0.01, 0.1)])
def test_a_cause_counts_alone_or_after_the_others(alone: float, last: float) -> None:
    """The larger one of what comes back alone and after the others says whether a cause counts."""
    assert [t.cause for t in row(true("a", alone, recoverable_last=last)).missed()] == ["a"]


def test_a_cause_is_said_from_a_confidence_on() -> None:
    """What was said with less confidence is missed where it is true, and not made up where it is not."""
    rows = [
        row(true("a"), said("a", confidence=0.49)),
        row(said("b", confidence=0.49)),
        row(true("a"), said("a", 0.1, 0.5)),
    ]
    figures = measure(rows, min_confidence=0.5)
    assert [(c.cause, c.found, c.missed, c.made_up) for c in figures.causes] == [("a", 1, 1, 0)]
    assert figures.false_alarms == Rate(1, 0, 0.0)


# ------------------------------------------------------------------------------------------ jobs


@pytest.mark.parametrize(
    ("causes", "is_right"),
    [
        ([true("a", 0.3), true("b", 0.2), said("a", 0.3), said("b", 0.2)], True),
        ([true("a", 0.3), true("b", 0.2), said("a", 0.2), said("b", 0.3)], False),
        ([true("a", 0.3), true("b", 0.28), said("a", 0.2), said("b", 0.3)], True),
        ([true("a", 0.3), said("b", 0.1), said("a", 0.3)], True),
        ([true("a", 0.3), said(UNKNOWN, 0.4), said("a", 0.3)], False),
        ([true("a", -0.1, recoverable_last=0.2), said("a")], True),
        ([true("a", 0.3), said("a", 0.3, share=0.2), said("b", 0.2, share=0.8)], False),
        ([true("a", 0.3, tellable=False), true("b", 0.2), said("a", 0.3), said("b", 0.2)], True),
        ([true("a", 0.3, tellable=False), true("b", 0.2), said("a", 0.3)], False),
        ([true("a", 0.3)], False),
    ],
)
def test_the_largest_cause_comes_first(causes: list[TrueCause | SaidCause], is_right: bool) -> None:
    """What has the largest share must be the largest true cause, or one within a tenth of it."""
    assert measure([row(*causes)]).primary == Rate(1, int(is_right), float(is_right))


def test_what_costs_time_and_is_no_cause_may_come_first() -> None:
    """`unknown` is what a costly decoy is; beside other decoys it hides the cause."""
    causes = [true("a", 0.1), said(UNKNOWN, 0.4), said("a", 0.1)]
    found = [measure([row(*causes, decoys=(name,))]).primary.hits for name in ("longer-computes", "warm-up")]
    assert found == [1, 0]


def test_jobs_without_a_cause_that_counts_have_no_primary_one() -> None:
    """A healthy job, and one whose cause is too small to be required, are left out."""
    assert measure([row(), row(true("a", 0.01), said("a"))]).primary.n == 0


def test_anything_said_of_a_healthy_job_is_a_false_alarm() -> None:
    """Of four healthy jobs one with a cause and one with `unknown` are half; jobs with a small cause are not healthy."""
    rows = [row(), row(true("a", 0.001)), row(said("a")), row(said(UNKNOWN)), row(true("a", 0.01), said("a"))]
    figures = measure(rows)
    assert figures.false_alarms == Rate(4, 2, 0.5)
    assert figures.n_healthy == 4


def test_unknown_is_counted_apart() -> None:
    """In faulty jobs `unknown` has its own rate and is not made up; no cause's precision falls by it."""
    figures = measure([row(true("a"), said("a"), said(UNKNOWN)), row(true("a"), said("a"))])
    assert figures.unknown == Rate(2, 1, 0.5)
    assert [c.cause for c in figures.causes] == ["a"]
    assert figures.causes[0].precision == 1.0


def test_a_job_that_fails_finds_nothing() -> None:
    """With a truth a failed job's causes are missed; without one, and where it is healthy, it is counted as failed only."""
    rows = [row(true("a"), error="crash"), row(error="crash"), JudgedJob("job", error="cannot be made")]
    figures = measure(rows)
    assert (figures.n_jobs, figures.n_failed, figures.n_healthy) == (3, 3, 0)
    assert cause_of(rows, "a").missed == 1
    assert figures.false_alarms.n == 0


def test_confusion_is_of_jobs_with_one_cause() -> None:
    """Jobs with one cause count by what was said first; those with two, or with one of doubtful size, do not."""
    rows = [
        row(true("a"), said("a")),
        row(true("a"), said("b", 0.3), said("a", 0.2)),
        row(true("a")),
        row(true("b"), true("c", 0.001), said(UNKNOWN)),
        row(true("a"), true("b"), said("a")),
        row(true("a"), true("b", 0.01), said("a")),
        row(true("a", 0.01), said("a")),
    ]
    assert measure(rows).confusion == {"a": {"a": 1, "b": 1, NOTHING: 1}, "b": {UNKNOWN: 1}}


# ------------------------------------------------------------------------------------------ place, time, gain


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"workers": ((1, 0), (3, 1))}, True),
        ({"workers": ((3, 1), (1, 0))}, False),
        ({}, False),
        ({"links": (((1, 1), (1, 0)),)}, True),
        ({"links": (((2, 0), (2, 1)),)}, False),
        ({"workers": ((3, 1),), "links": (((1, 1), (1, 0)),)}, False),
    ],
)
def test_the_worker_named_first_counts(fields: dict[str, Any], is_right: bool) -> None:
    """The first worker must be a true one; where only links are named, an end of the first."""
    job = row(true("a", workers=((1, 0),)), said("a", **fields))
    assert measure([job]).worker == Rate(1, int(is_right), float(is_right))


def test_workers_are_asked_for_where_they_can_be_told() -> None:
    """Causes that are everywhere, that were not said, and jobs of one dp rank do not count."""
    there = true("a", workers=((0, 0),))
    hidden = row(true("a", workers=((0, 0),), place_tellable=False), said("a"))
    assert measure([hidden]).worker.n == 0
    rows = [row(true("a"), said("a")), row(there), row(there, said("a"), dp=1)]
    assert measure(rows).worker.n == 0


def test_the_stage_named_first_counts() -> None:
    """The first stage must be a true one; where none is named, that of the first worker is taken."""
    there = true("a", stages=(1, 2))
    rows = [
        row(there, said("a", stages=(2,))),
        row(there, said("a", workers=((0, 1),))),
        row(there, said("a", stages=(0, 1))),
    ]
    assert measure([*rows, row(there, said("a"))]).stage == Rate(4, 2, 0.5)


def test_onsets_are_apart_in_sampled_steps() -> None:
    """From 18 to 40 is one sampled step; of errors 0, 1 and 3 the median is 1 and a third is exact; a missing one is apart."""
    onsets = [(40, 40), (18, 40), (16, 40), (None, 40), (None, None), (17, None)]
    rows = [row(true("a", onset_step=there), said("a", onset_step=heard)) for heard, there in onsets]
    assert measure(rows).onset == OnsetFigures(n=4, n_missing=1, median=1.0, exact=pytest.approx(1 / 3), n_made_up=1)


def test_errors_of_gains_are_absolute() -> None:
    """Errors of +0.02 and -0.04 are 0.03 on average, and their 90th percentile is nine tenths of the way."""
    rows = [row(true("a", 0.1), said("a", 0.12)), row(true("a", 0.1), said("a", 0.06)), row(said("a", 0.9))]
    gain = measure(rows).gain
    assert (gain.n, gain.mean, gain.p90) == (2, pytest.approx(0.03), pytest.approx(0.038))


def test_each_cause_has_its_own_places() -> None:
    """One cause's worker, onset and gain are not mixed with another's."""
    job = row(true("a", workers=((0, 0),)), true("b", stages=(1,)), said("a", workers=((0, 0),)), said("b", 0.3))
    a, b = measure([job]).causes
    assert (a.worker, b.worker.n, a.stage.n, b.stage) == (Rate(1, 1, 1.0), 0, 0, Rate(1, 0, 0.0))
    assert (a.gain.mean, b.gain.mean) == (0.0, pytest.approx(0.2))


# ------------------------------------------------------------------------------------------ confidence


def test_calibration_error_is_the_mean_distance() -> None:
    """Ten said with 0.8 of which eight are there, and ten with 0.6 of which none is: (0 + 0.6) / 2, from any order."""
    rows = [row(true("a"), said("a", 0.1, 0.8))] * 8 + [row(said("a", 0.1, 0.8))] * 2 + [row(said("a", 0.1, 0.6))] * 10
    figures = measure(rows)
    assert [found.n for found in figures.bins] == [2] * 10
    assert [found.confidence for found in figures.bins] == pytest.approx([0.6] * 5 + [0.8] * 5)
    # bins of two: among those said with 0.8 four hold only true ones and one only false ones
    assert figures.calibration_error == pytest.approx((5 * 0.6 + 4 * 0.2 + 0.8) / 10)


def test_calibration_leaves_out_what_has_no_truth() -> None:
    """`unknown` and causes too small to be required are in no bin; what a threshold of confidence hides is."""
    rows = [row(true("a", 0.01), said("a"), said(UNKNOWN)), row(true("a"), said("a", 0.1, 0.3))]
    (found,) = measure(rows, min_confidence=0.5).bins
    assert (found.n, found.confidence, found.right) == (1, 0.3, 1.0)


# ------------------------------------------------------------------------------------------ published thresholds


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        (
            {"slowdown": 1.1, "m_w": 0.5, "m_s": 0.5, "correlation": 0.9},
            {"worker-fault", "stage-imbalance", "sequence-imbalance"},
        ),
        ({"slowdown": 1.09, "m_w": 0.5, "m_s": 0.5, "correlation": 0.9}, set()),
        ({"slowdown": 1.1, "m_w": 0.49, "m_s": 0.49, "correlation": 0.89}, set()),
        ({"slowdown": 1.1, "m_w": None, "m_s": 0.6, "correlation": None}, {"stage-imbalance"}),
        ({"slowdown": None, "m_w": 1.0}, set()),
    ],
)
def test_published_thresholds(fields: dict[str, float | None], heard: set[str]) -> None:
    """The paper's thresholds say a cause at them and not below, only in jobs that straggle, and nothing unmeasured."""
    assert {s.cause for s in judge_as_published(row(said("data-loading"), **fields)).said} == heard


def test_published_thresholds_are_scored_on_the_same_causes() -> None:
    """With one of the two causes that occur found by the paper's thresholds, their mean F1 is 1/2."""
    rows = [
        row(true("worker-fault"), slowdown=2.0, m_w=1.0),
        row(true("data-loading"), said("data-loading"), slowdown=1.0),
    ]
    assert measure(rows).published_macro_f1 == 0.5


# ------------------------------------------------------------------------------------------ lists


def test_the_worst_jobs_are_those_with_most_at_stake() -> None:
    """Missed, made up, and a wrong worker count by what they cost, gains by their error; jobs without one are not listed."""
    rows = [
        row(true("a", 0.1), job="missed"),
        row(said("a", 0.3), job="made up"),
        row(true("a", 0.2, workers=((0, 0),)), said("a", 0.2, workers=((1, 0),)), job="elsewhere"),
        row(true("a", 0.2), said("a", 0.05), job="too little"),
        row(true("a", 0.2), said("a", 0.19), job="right"),
        row(said("a", -0.1), job="negative"),
    ]
    assert [found.job for found in find_worst(rows, 9)] == ["made up", "elsewhere", "too little", "missed", "negative"]
    assert [found.job for found in find_worst(rows, 1)] == ["made up"]


def test_a_job_is_described_in_a_line() -> None:
    """The line has job, truth with both gains, what was said with confidence, and what of it is wrong."""
    job = row(
        true("a", 0.1, recoverable_last=0.2),
        true("b", 0.3, workers=((1, 0),)),
        said("b", 0.25, 0.8),
        decoys=("warm-up",),
    )
    assert describe(job) == (
        "job (dp 4 pp 2, 5 steps): true: a 0.100 (last 0.200), b 0.300 (last 0.300); decoys: warm-up; "
        "said: b 0.250 @0.80; WRONG: missed a, worker of b: nobody for dp 1 stage 0, gain of b: 0.250 for 0.300"
    )


def test_hearing_changes_nothing_but_what_was_said() -> None:
    """A threshold of confidence leaves truth and measurements as they are."""
    job = row(true("a"), said("a", confidence=0.2), m_w=0.7)
    assert drop_unsure(job, 0.5) == dataclasses.replace(job, said=())


# ------------------------------------------------------------------------------------------ parts of the jobs


def test_jobs_are_cut_by_kind() -> None:
    """Of a kind its own cause is found or missed, and all that is made up beside it counts; small faults are of no kind."""
    rows = [
        row(true("a", kind="a/one"), said("a"), said("b")),
        row(true("a", kind="a/one"), true("b", kind="b/two"), said("b")),
        row(true("b", 0.01, kind="b/three"), said("b")),
    ]
    one, two = measure(rows).kinds
    assert (one.name, one.n_jobs, one.found, one.missed, one.made_up, one.f1) == ("a/one", 2, 1, 1, 1, 0.5)
    assert (two.name, two.n_jobs, two.found, two.missed, two.made_up, two.f1) == ("b/two", 1, 1, 0, 0, 1.0)


def test_jobs_are_cut_by_world() -> None:
    """Of a feature all true causes of its jobs count, and its healthy jobs."""
    rows = [row(true("a"), said("a"), world=("gpipe", "pairs")), row(said("b", confidence=0.95), world=("pairs",))]
    gpipe, pairs = measure(rows).worlds
    assert (gpipe.name, gpipe.macro_f1, gpipe.false_alarms) == ("gpipe", 1.0, Rate(0, 0, None))
    assert (pairs.n_jobs, pairs.found, pairs.made_up, pairs.false_alarms) == (2, 1, 1, Rate(1, 1, 1.0))
    assert pairs.sure == Rate(2, 1, 0.5) == measure(rows).sure


def test_a_finding_that_names_the_true_cause_too_is_not_made_up() -> None:
    """What may be another cause, as it says, is neither found nor false where that one is there, and false elsewhere."""
    both = said("a", confidence=0.6, alternatives={"b": 0.3})
    assert not row(true("b", tellable=False), both).made_up()
    assert list_said([row(true("c"), both)]) == [(0.6, False), (0.3, False)]
    assert list_said([row(true("b"), both)]) == [(0.6, False), (0.3, True)]
    assert list_said([row(true("b", tellable=False), both)]) == [(0.6, False)]
    assert row(true("c"), both).made_up() == [both]
    assert row(true("b"), both).missed()
    assert list_said([row(true("a"), both)]) == [(0.6, True), (0.3, False)]


def test_what_is_an_evaluation_or_unknown_instead() -> None:
    """An evaluation is there where the job has one, and it costs; nobody can say whether what is `unknown` is."""
    or_else = said("a", confidence=0.6, alternatives={"evaluation": 0.2, UNKNOWN: 0.2})
    assert list_said([row(true("a"), or_else)]) == [(0.6, True), (0.2, False)]
    assert list_said([row(or_else, decoys=("evaluation",))]) == [(0.6, False), (0.2, True)]


def test_unknown_is_right_where_chance_costs_time() -> None:
    """Computes that are longer by chance are no cause, and time that is lost."""
    assert measure([row(said(UNKNOWN), decoys=("longer-computes",))]).causes == ()
    assert not row(said(UNKNOWN), decoys=("longer-computes",)).made_up()
    assert row(said(UNKNOWN), decoys=("warm-up",)).made_up()
