"""Leaving out: jobs that are kept can be judged again as they were, and what is left out is in no training."""

import dataclasses
import io
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judges import read_classifier, read_rules
from diagnose.model.change import Remove
from diagnose.model.request import Request
from diagnose.pipeline import analyse_job
from diagnose.train.measure import MeasuredJob, RandomJobs, measure_jobs, place_kept
from tests.judge.measured_jobs import draw_jobs
from tests.scoring import leave_out as program
from tests.scoring.judged import JudgedJob, SaidCause, TrueCause
from tests.scoring.kept import KeptJob, NotPricedError, Prices, keep_job, read_kept, rejudge, write_kept
from tests.scoring.leave_out import N_PARTS, Measured, list_names, render
from tests.scoring.score import judge_generated

WANTED = (RandomJobs(1, 40, (0.3, 3.0)), RandomJobs(2, 20, (0.15, 4.5)))


def judged(job: MeasuredJob, *, found: bool) -> JudgedJob:
    """Give the row of a measured job, in which all its causes were found, or none."""
    causes = [kind.partition("/")[0] for kind in job.kinds]
    truth = [TrueCause(cause, (), (), None, 0.1, 0.1, kind=f"{cause}/drawn") for cause in causes]
    said = [SaidCause(cause, 0.95, 0.5, 0.1) for cause in causes] if found else []
    return JudgedJob(
        f"job-{job.seed}-{job.index}", dp=2, pp=2, steps=(1, 2), world=job.world, truth=tuple(truth), said=tuple(said)
    )


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """Give jobs as if they had been measured."""
    return Measured(WANTED, tmp_path, (draw_jobs(40, 1), draw_jobs(20, 2)))


def test_prices_are_asked_for_once() -> None:
    """The same changes in another order cost no replay; without a job to replay only what was priced is known."""
    asked = []

    def price(changes: Any) -> np.ndarray:
        asked.append(changes)
        return np.array([float(len(changes))])

    prices, mask = Prices(price), np.array([[True, False]])
    worker, stage, here = Remove("worker"), Remove("stage"), Remove("worker", mask)
    assert prices([worker, stage]) == prices([stage, worker]) == 2.0
    assert prices([here]) == prices([Remove("worker", mask.copy())]) == 1.0
    assert len(asked) == 2
    kept = pickle.loads(pickle.dumps(prices))
    assert kept([worker, stage]) == 2.0
    with pytest.raises(NotPricedError):
        kept([worker])
    with pytest.raises(NotPricedError):
        kept([Remove("worker", ~mask)])


def test_a_kept_job_is_judged_as_it_was(tmp_path: Path) -> None:
    """Written, read and judged by the classifier that ships, a job is said to have what its diagnosis says."""
    job = generate(JobSpec(pp=3, dp=3, microbatches=6, steps=10, seed=4), [WorkerFault(places=((1, 2),), slowdown=1.5)])
    truly = judge_generated(job)
    file = io.BytesIO()
    pq.write_table(job.trace, file)
    file.seek(0)
    analysis = analyse_job(Request(file, name=truly.job), read_rules())
    bare = dataclasses.replace(truly, said=(), verdict=None)
    write_kept(keep_job(bare, analysis, read_rules()), tmp_path / "job.kept")
    kept, classifier = read_kept(tmp_path / "job.kept"), read_classifier()
    assert classifier is not None
    again = rejudge(kept, read_rules(), classifier.judge(kept.analysis.features))
    assert again.said == truly.said != ()
    assert again.verdict == truly.verdict == "straggling"


def test_what_was_not_priced_is_measured_again(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a verdict asks for a price that is not kept the job is made once more, and the price kept with those before."""
    lacking, pricing = Prices(), Prices(lambda _: np.ones(1))
    lacking.known[("old",),] = np.zeros(1)
    files = {"job": KeptJob(JudgedJob("job"), SimpleNamespace(price=lacking, features={}))}  # type: ignore[arg-type]
    again = KeptJob(JudgedJob("job"), SimpleNamespace(price=pricing, features={}))  # type: ignore[arg-type]

    def rejudge(kept: KeptJob, *_: object) -> JudgedJob:
        kept.analysis.price([Remove("worker")])
        return kept.row

    monkeypatch.setattr(program, "read_kept", lambda _: files["job"])
    monkeypatch.setattr(program, "write_kept", lambda kept, _: files.update(job=kept))
    monkeypatch.setattr(program, "measure_again", lambda *_: again)
    monkeypatch.setattr(program, "rejudge", rejudge)
    classifier: Any = SimpleNamespace(judge=lambda _: None)
    assert program._judge(measured, 0, measured.jobs[0][0], read_rules(), classifier).job == "job"
    assert files["job"] is again
    assert len(pricing.known) == 2


def test_jobs_are_measured_again_where_they_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured for training alone is measured once more to be kept, and then no more."""
    from diagnose.train import measure

    asked: list[int] = []

    def measure_one(order: Any) -> MeasuredJob:
        asked.append(order[1])
        if order[3] is not None:
            order[3](None, None)
        return draw_jobs(order[1] + 1, 1)[order[1]]

    monkeypatch.setattr(measure, "_measure_one", measure_one)
    wanted = RandomJobs(1, 3, (0.3, 3.0))
    measure_jobs(wanted, cache=tmp_path)
    for _ in range(2):
        measure_jobs(wanted, cache=tmp_path, keep=lambda path, _job, _analysis: path.write_bytes(b""))
    assert asked == [0, 1, 2, 0, 1, 2]
    assert place_kept(tmp_path, wanted, 1).exists()


def test_what_is_left_out_is_in_no_training(measured: Measured) -> None:
    """Neither trees nor calibration see a job that has it, and all of both that have it are judged; parts are disjoint."""
    for name in ("interleaved", "worker-fault/drawn", "part-3"):
        others, left_out = measured.split(name)
        n_left = sum(len(part) for part in others)
        assert n_left + len(left_out) == 60
        assert {which for which, _ in left_out} == {0, 1}
    assert not any(job.has("interleaved") for part in measured.split("interleaved")[0] for job in part)
    judged = [(which, job.index) for i in range(N_PARTS) for which, job in measured.split(f"part-{i}")[1]]
    assert len(judged) == len(set(judged)) == 60


def test_what_few_or_most_have_is_not_left_out(measured: Measured) -> None:
    """Kinds come first; a cause stands for its kinds; what hardly any job has, or nearly all have, is not asked for."""
    assert list_names(measured) == ["stage-imbalance/drawn", "worker-fault/drawn", "interleaved"]
    assert list_names(measured, ["worker-fault"]) == ["worker-fault/drawn"]
    everywhere = [dataclasses.replace(job, world=("flat",)) for job in measured.jobs[0]]
    rare = [dataclasses.replace(job, world=("rare",)) for job in measured.jobs[1][:2]]
    assert list_names(dataclasses.replace(measured, jobs=(everywhere, rare)), ["flat", "rare"]) == []


def test_the_program_says_how_good_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each name is trained without and judged, and the totals are those of the rows."""
    monkeypatch.setattr(program, "measure_jobs", lambda wanted, **_: draw_jobs(wanted.n_jobs, wanted.seed))
    monkeypatch.setattr(program, "train", lambda *_, **__: {})
    monkeypatch.setattr(program, "dump_model", lambda _: "")
    monkeypatch.setattr(program, "read_classifier", lambda _: None)

    def judge(measured: Measured, which: int, job: MeasuredJob, *_: object) -> JudgedJob:
        return judged(job, found=bool(job.index % 2))

    monkeypatch.setattr(program, "_judge", judge)
    options = ["--jobs", "40", "--calibrate", "20", "--workers", "1", "--json", str(tmp_path / "rows.json")]
    result = CliRunner().invoke(program.main, options)
    assert result.exit_code == 0, result.output
    (mean,) = [line for line in result.output.splitlines() if line.startswith("features left out")]
    assert mean.split()[-2:] == ["1.000", "1"]  # interleaved jobs are those with odd numbers
    assert "kinds left out: mean F1" in result.output
    assert (tmp_path / "rows.json").exists()


def test_totals_by_hand() -> None:
    """One of two jobs of a kind found is F1 2/3; the lowest feature is named."""
    jobs = [job for job in draw_jobs(40, 1) if job.worth.keys() == {"worker-fault"}][:2]
    rows = [judged(jobs[0], found=True), judged(jobs[1], found=False)]
    text = render({"part-0": rows, "worker-fault/drawn": rows, "interleaved": rows[:1], "gpipe": rows})
    assert "kinds left out: mean F1" in text
    (mean,) = [line for line in text.splitlines() if line.startswith("kinds left out: mean F1")]
    assert mean.split()[-2:] == ["0.667", "1"]
    assert "lowest: gpipe" in text
