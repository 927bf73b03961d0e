"""Real jobs recorded for this project: their causes are named, at their places, and nothing that is not there is said surely."""

import pytest

from tests.recorded.score import JOBS, SURE, TRUTH, diagnose, score

#: One a kind of fault, and of job; all of them: `python -m tests.recorded.score`.
NAMES = (
    *("healthy-d4", "healthy-z22", "noise-p42", "eval-d4", "pause-one-f4", "warm-p22"),
    *(
        "slow-late-d4",
        "host-off-p42",
        "ramp-p42",
        "models-d3",
        "worker-zbv",
        "half-p24",
        "gc-leak-p22",
        "disk-one-d4",
        "loss-i22",
        "ragged-last-d4",
        "save-dp0-p42",
        "nic-p42",
    ),
    "experts-p22",
    *(
        "link-one-way-p32",
        "link-back-window-p42",
        "replica-onset-p33",
        "two-onsets-a16",
        "three-workers-d3",
        "batch-grow-d4",
    ),
    *("stage-onset-p32", "two-stages-p61", "relay-p24"),
    *("two-experts-slow-p42", "stage-late-p23", "curriculum-p23", "half-old-d6", "first-mb-p23"),
)


@pytest.mark.parametrize("name", NAMES)
def test_as_recorded(name: str) -> None:
    """All that was done to a job is found, and nothing else."""
    assert score(name, diagnose(name, "recorded")) == "right"


@pytest.mark.parametrize("name", ["healthy-p22", "docs-p22", "burst-p24", "fwd-z22"])
def test_with_the_clock_of_each_step(name: str) -> None:
    """Where times count from the first operation of a step, who begins late is no late loader."""
    assert score(name, diagnose(name, "relative")) == "right"


@pytest.mark.parametrize(
    "name",
    [
        "healthy-d8",
        "host-d8",
        "tp-one-ft22",
        "k-healthy-ft22",
        "stopped-p22",
        "stopped-burst-d8",
        "save-a4",
        "two-load-d8",
        "link-one-way-p32",
        "seq-warm-d3",
        "healthy-sampled-d4",
        "skew-slow-p32",
        "save-odd-p22",
    ],
)
def test_without_rows(name: str) -> None:
    """Where no row tells what happened nothing is said surely that did not: steps that run into each other, pauses, one save."""
    assert score(name, diagnose(name, "bare")) == "right"


@pytest.mark.parametrize("variant", ["bare", "relative"])
def test_a_late_optimizer_is_no_late_loader(variant: str) -> None:
    """Who ends a step late begins the next one late."""
    assert score("opt-d4", diagnose("opt-d4", variant)) == "right"


@pytest.mark.parametrize("name", ["eval-d4", "log-d4"])
def test_a_stop_that_nothing_calls_a_save(name: str) -> None:
    """Without rows a stop of all at a period may be a save, planned work, or a loader's turn: one finding, with all of them."""
    found = next(cause for cause in diagnose(name, "bare").causes if cause.cause == "checkpoint-stall")
    assert found.confidence < SURE
    assert [other.cause for other in found.alternatives] == ["evaluation", "data-loading"]


def test_every_job_has_its_truth() -> None:
    """Each file has an entry, and says how it was made."""
    assert {path.stem for path in JOBS.glob("*.parquet")} == set(TRUTH)
    assert all(truth["made"]["steps"] > 0 for truth in TRUTH.values())
