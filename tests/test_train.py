"""Training: what is true of a job, what is kept, what is fitted, and that the same jobs give the same file."""

import dataclasses
import fnmatch
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from diagnose.errors import UsageError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.judge.classifier import load_classifier, read_classifier
from diagnose.model.feature import Feature
from diagnose.train import __main__ as program
from diagnose.train import measure
from diagnose.train.calibrate import fit_calibration, probabilities
from diagnose.train.fit import dump_model, measure_figures, train, write_model
from diagnose.train.measure import MeasuredJob, Order, RandomJobs, measure_job, measure_jobs, worth_by_cause
from diagnose.train.table import Table, choose_inputs, label, list_patterns, make_table
from diagnose.train.trees import TreeSettings
from tests.judge.measured_jobs import RULES, SMALL, as_features, draw_jobs, trained

INPUTS = list_patterns(RULES)
CAUSES = [rule.id for rule in RULES]
#: Jobs, of which none is generated here.
WANTED = RandomJobs(seed=1, n_jobs=4, noise=(0.3, 3.0))


# ------------------------------------------------------------------------------------------ what is true


@pytest.mark.parametrize(
    ("worth", "expected"),
    [(-0.1, 0.0), (0.0, 0.0), (0.0079, 0.0), (0.0081, None), (0.0195, None), (0.0197, 1.0), (0.5, 1.0)],
)
def test_labels(worth: float, expected: float | None) -> None:
    """A cause is there from the worth that is reported on, not there below 0.008, and open in between."""
    found = label(worth)
    assert (None if np.isnan(found) else found) == expected


def test_the_larger_worth_counts() -> None:
    """A fault that gains nothing alone, but much after the others, is there; of two of one cause the larger counts."""
    faults: Any = [
        SimpleNamespace(cause="stage-imbalance", recoverable=0.001, recoverable_last=0.2, tellable=True),
        SimpleNamespace(cause="worker-fault", recoverable=0.3, recoverable_last=0.1, tellable=True),
        SimpleNamespace(cause="worker-fault", recoverable=-0.1, recoverable_last=0.0, tellable=True),
    ]
    assert worth_by_cause(faults) == {"stage-imbalance": 0.2, "worker-fault": 0.3}


def test_what_cannot_be_told_teaches_nothing() -> None:
    """However much a fault costs that nothing in the trace can tell, it is labelled neither there nor absent."""
    fault: Any = SimpleNamespace(cause="network-fault", recoverable=0.4, recoverable_last=0.4, tellable=False)
    assert np.isnan(label(worth_by_cause([fault])["network-fault"]))


def test_open_jobs_teach_nothing_about_their_cause() -> None:
    """Whatever is measured of jobs in which a cause is neither there nor absent, its trees stay the same; others' do not."""
    jobs = draw_jobs(60, seed=1)
    gray = [
        dataclasses.replace(job, index=100 + job.index, worth={"worker-fault": 0.012}) for job in draw_jobs(20, seed=9)
    ]
    absurd = [
        dataclasses.replace(job, features=tuple({**v, "gain.worker": 9.0, "gain.stage": 9.0} for v in job.features))
        for job in gray
    ]
    first, second = (train(jobs + more, jobs, RULES, settings=SMALL)["causes"] for more in (gray, absurd))
    grown = [name for name in first["worker-fault"] if name != "calibration"]
    assert all(first["worker-fault"][name] == second["worker-fault"][name] for name in grown)
    assert first["stage-imbalance"]["cover"] != second["stage-imbalance"]["cover"]


# ------------------------------------------------------------------------------------------ what the trees see


def test_the_pipeline_measures_every_input() -> None:
    """Each pattern of inputs names a feature that the pipeline has, with evidence rows or without."""
    names = choose_inputs(measure_job(generate(JobSpec(pp=2, dp=2, microbatches=4, steps=6)).trace), INPUTS)
    assert len(names) > len(INPUTS)


def test_nothing_that_tells_the_generator_is_an_input() -> None:
    """Noise levels, sizes and the slowdown itself match no pattern of inputs."""
    kept_out = [
        "noise",
        "slowdown",
        "discrepancy",
        "worker.slow_share",
        "worker.m_w",
        "stall.period_steps",
        "sequence.spread",
    ]
    assert not [name for name in kept_out for pattern in INPUTS if fnmatch.fnmatch(name, pattern)]


def test_a_renamed_feature_is_noticed() -> None:
    """A pattern that matches nothing is an error, and so is a job that lacks an input."""
    with pytest.raises(UsageError, match=r"no feature is called worker\.pace"):
        choose_inputs(["worker.ratio"], ["worker.*", "worker.pace"])
    with pytest.raises(UsageError, match=r"job 0 of seed 1: has no worker\.pace"):
        make_table(draw_jobs(1, seed=1), ["gain.stage", "worker.pace"], CAUSES)


# ------------------------------------------------------------------------------------------ measuring


def measured(index: int, error: str = "") -> MeasuredJob:
    """Give a job as if it had been measured."""
    features = (
        ()
        if error
        else ({"gain.stage": 0.1 * index, "worker.ratio": None}, {"gain.stage": 0.1 * index, "worker.ratio": 1.0})
    )
    return MeasuredJob(1, index, ("stage-imbalance/stage",), ("gpipe",), {"stage-imbalance": 0.1}, features, error)


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training measures only jobs that the first did not, and goes on where an interrupted one stopped."""
    asked: list[int] = []

    def measure_one(order: Order) -> MeasuredJob:
        asked.append(order[1])
        return measured(order[1])

    monkeypatch.setattr(measure, "_measure_one", measure_one)
    first = measure_jobs(WANTED, cache=tmp_path)
    assert measure_jobs(WANTED, cache=tmp_path) == first == [measured(i) for i in range(4)]
    assert asked == [0, 1, 2, 3]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])  # stopped while it wrote
    told: list[tuple[int, int]] = []
    more = dataclasses.replace(WANTED, n_jobs=5)
    assert measure_jobs(more, cache=tmp_path, progress=lambda job, n_left: told.append((job.index, n_left))) == [
        measured(i) for i in range(5)
    ]
    assert asked[4:] == [3, 4]
    assert told == [(3, 1), (4, 0)]
    assert measure_jobs(WANTED, cache=tmp_path) == first
    measure_jobs(dataclasses.replace(WANTED, noise=(0.1, 1.0)), cache=tmp_path)
    assert asked[6:] == [0, 1, 2, 3]


def test_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that failed is not kept: the next training measures it again, and nothing else, and puts it in its place."""
    monkeypatch.setattr(
        measure, "_measure_one", lambda order: measured(order[1], error="as drawn" if order[1] in {1, 3} else "")
    )
    first = measure_jobs(WANTED, cache=tmp_path)
    assert [bool(job.error) for job in first] == [False, True, False, True]
    asked: list[int] = []
    monkeypatch.setattr(measure, "_measure_one", lambda order: asked.append(order[1]) or measured(order[1]))
    assert measure_jobs(WANTED, cache=tmp_path) == [measured(i) for i in range(4)]
    assert asked == [1, 3]


def test_other_code_measures_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another version measured is not taken for what this one would."""
    monkeypatch.setattr(measure, "_measure_one", lambda order: measured(order[1]))
    measure_jobs(WANTED, cache=tmp_path)
    monkeypatch.setattr(measure, "measuring_digest", lambda: "another")
    measure_jobs(WANTED, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_job_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that cannot be generated says why, and where, and the jobs after it are measured."""

    def draw(seed: int, index: int, **options: Any) -> Any:
        if index == 1:
            raise ZeroDivisionError("as drawn")
        return (JobSpec(pp=1, dp=2, microbatches=2, steps=4, noise=options["noise"][0], seed=index),)

    monkeypatch.setattr(measure, "draw_job", draw)
    monkeypatch.setattr(measure, "analyse", lambda _: SimpleNamespace(features={"gain.stage": Feature(0.0)}))
    jobs = measure_jobs(dataclasses.replace(WANTED, n_jobs=3), cache=tmp_path)
    assert [bool(job.features) for job in jobs] == [True, False, True]
    assert jobs[1].error.startswith("ZeroDivisionError: as drawn (test_train.py:")


# ------------------------------------------------------------------------------------------ fitting


def test_calibration_finds_the_odds() -> None:
    """Scores that are twice as sure as they may be are halved, and shifted ones shifted back."""
    rng = np.random.default_rng(0)
    odds = rng.normal(size=20_000) * 2
    present = rng.random(len(odds)) < probabilities(odds)
    slope, intercept = fit_calibration(2.0 * odds + 1.0, present)
    assert (slope, intercept) == pytest.approx((0.5, -0.5), abs=0.05)


def test_calibration_never_turns_the_order_round() -> None:
    """Scores that sort jobs the wrong way, perfectly or not at all still give a rising curve; so do too few jobs."""
    rng = np.random.default_rng(0)
    present = rng.random(200) < 0.3
    for score in (-3.0 * present, 100.0 * present, rng.normal(size=200), np.zeros(200)):
        slope, intercept = fit_calibration(score + 0.0, present)
        assert slope > 0
        assert np.isfinite(intercept)
    assert np.mean(probabilities(slope * score + intercept)) == pytest.approx(present.mean(), abs=0.01)
    assert fit_calibration(np.arange(10.0), np.arange(10) > 7) == (1.0, 0.0)


def test_figures_of_a_hand_made_case() -> None:
    """F1, log loss and calibration error of six jobs are what one gets by hand; a job that is open does not count."""
    present = np.zeros((6, len(CAUSES)))
    present[:, CAUSES.index("worker-fault")] = [1, 1, 0, 0, 0, np.nan]
    table = Table((), tuple(CAUSES), np.empty((6, 0)), present, np.arange(6))
    after = {"worker-fault": np.array([0.9, 0.2, 0.6, 0.1, 0.1, 1.0])}
    scores = {"worker-fault": np.zeros(6)}
    found = measure_figures(table, scores, after)
    assert found["f1"] == {"worker-fault": 0.5}
    assert found["macro_f1"] == 0.5
    assert found["log_loss"]["before"] == pytest.approx(np.log(2), abs=1e-4)
    assert found["log_loss"]["after"] == pytest.approx(-np.log([0.9, 0.2, 0.4, 0.9, 0.9]).mean(), abs=1e-4)
    assert found["ece"] == pytest.approx({"before": 0.1, "after": (0.1 + 0.8 + 0.6 + 0.2) / 5}, abs=1e-9)
    assert found["said"] == {"n": 2, "mean_probability": 0.75, "true_share": 0.5}


def test_the_same_jobs_give_the_same_bytes() -> None:
    """Training twice on the same jobs writes the same file; on others it does not."""
    again = train(draw_jobs(80, seed=1), draw_jobs(80, seed=2), RULES, settings=SMALL)
    assert dump_model(again) == dump_model(trained())
    assert dump_model(train(draw_jobs(80, seed=3), draw_jobs(80, seed=2), RULES, settings=SMALL)) != dump_model(
        trained()
    )


def test_failed_jobs_are_left_out() -> None:
    """Jobs that failed change nothing but their number."""
    failed = [measured(1000 + i, error="as drawn") for i in range(3)]
    found = train(draw_jobs(80, seed=1) + failed, draw_jobs(80, seed=2) + failed, RULES, settings=SMALL)
    assert dump_model(found) == dump_model(trained())


def test_a_feature_that_no_job_has_is_no_obstacle() -> None:
    """An input that is missing in all jobs of training is never looked at, and has no range to be outside of."""
    jobs = [
        dataclasses.replace(job, features=tuple({**v, "queue.ratio": None} for v in job.features))
        for job in draw_jobs(80, seed=1)
    ]
    found = read_classifier(dump_model(train(jobs, jobs, RULES, settings=SMALL)).encode())
    assert not any(found.inputs.index("queue.ratio") in trees.feature for trees in found.trees.values())
    values = jobs[0].features[0]
    plain, odd = (found.judge(as_features(values | {"queue.ratio": x})) for x in (None, 1e6))
    assert odd.probability == plain.probability
    assert odd.unlike is None


def test_nothing_to_train_on_is_an_error() -> None:
    """Without a job that could be measured, or with none that has a cause, training says so."""
    jobs = draw_jobs(10, seed=1)
    with pytest.raises(UsageError, match="no job could be measured"):
        train([measured(0, error="as drawn")], jobs, RULES)
    with pytest.raises(UsageError, match="no cause has jobs"):
        train([dataclasses.replace(job, worth={}) for job in jobs], jobs, RULES)


def test_a_full_classifier_is_a_small_file(tmp_path: Path) -> None:
    """With trees for all causes, all leaves in use and all prototypes taken, the file stays below 400 kB, and loads."""
    jobs = [
        dataclasses.replace(
            job, worth={cause: 0.1 for i, cause in enumerate(CAUSES) if (job.index >> i % 5) % 2 == i % 2}
        )
        for job in draw_jobs(250, seed=1)
    ]
    write_model(train(jobs, jobs[:60], RULES, settings=TreeSettings(leaf_rows=5)), tmp_path / "classifier.json")
    found = load_classifier(tmp_path / "classifier.json")
    assert found is not None
    assert sorted(found.trees) == sorted(CAUSES)
    assert all(len(trees.roots) == TreeSettings().iterations for trees in found.trees.values())
    assert found.likeness.prototypes.shape[0] == 200
    assert (tmp_path / "classifier.json").stat().st_size < 400_000
    assert [file.name for file in tmp_path.iterdir()] == ["classifier.json"]


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[RandomJobs]:
    """Let the command draw jobs instead of measuring some, the last of each seed failed, and list what it asks for."""
    asked = []

    def measure_jobs(wanted: RandomJobs, **_: Any) -> list[MeasuredJob]:
        asked.append(wanted)
        failed = dataclasses.replace(measured(wanted.n_jobs - 1, error="KeyError: as drawn"), seed=wanted.seed)
        return [*draw_jobs(wanted.n_jobs - 1, wanted.seed), failed]

    monkeypatch.setattr(program, "measure_jobs", measure_jobs)
    return asked


def test_the_command_trains_and_reports(tmp_path: Path, asked_for: list[RandomJobs]) -> None:
    """The command writes a classifier, prints how good it is, and names each job that failed by its seed."""
    file = tmp_path / "classifier.json"
    found = CliRunner().invoke(program.main, ["--jobs", "81", "--calibrate", "61", "--seed", "3", "--out", str(file)])
    assert found.exit_code == 5
    assert "macro-F1 0.9" in found.output or "macro-F1 1.0" in found.output
    assert f"failed: job 80 of seed {asked_for[0].seed}: KeyError: as drawn" in found.output
    training = json.loads(file.read_text())["training"]
    assert training["jobs"] == {"trees": 80, "calibration": 60}
    assert training["failed"] == 2
    assert training["seeds"]["trees"] != training["seeds"]["calibration"]
    (low, high), (lower, higher) = training["noise"]["trees"], training["noise"]["calibration"]
    assert lower < low < high < higher


def test_a_feature_of_worlds_can_be_left_out(tmp_path: Path, asked_for: list[RandomJobs]) -> None:
    """Interleaved jobs are kept from trees and calibration, and rated apart; the package gets no such classifier."""
    file = tmp_path / "classifier.json"
    options = ["--jobs", "121", "--calibrate", "61", "--leave-out", "interleaved"]
    refused = CliRunner().invoke(program.main, options)
    assert refused.exit_code == 2
    assert "--out" in refused.output
    assert not asked_for
    found = CliRunner().invoke(program.main, [*options, "--out", str(file)])
    assert "on 90 jobs with interleaved, left out" in found.output
    training = json.loads(file.read_text())["training"]
    assert training["jobs"] == {"trees": 60, "calibration": 30}
    assert training["left_out"]["jobs"] == 90
    assert training["left_out_name"] == "interleaved"
