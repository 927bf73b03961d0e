"""Traps: what looks like a fault and is none, and what must not depend on names, units, order or clocks."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.faults.catalogue import list_cause_files
from diagnose.faults.example import PLAIN_JOB as SPEC
from diagnose.faults.fault import Fault
from diagnose.faults.inputs import Inputs, Pause, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.optype import Op
from diagnose.report.json_lines import render
from tests.judge.cases import causes, culprits, diagnose_table, diagnosed, make, scale_times, set_column

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SLOW = WorkerFault(places=((2, 1),), slowdown=1.8)
SEQUENCES = SequenceImbalance(quadratic_share=0.5)
#: A job of each cause, and combinations, whose names, units and order must not matter.
JOBS: dict[str, tuple[JobSpec, tuple[Fault, ...]]] = {
    "healthy": (SPEC, ()),
    "worker and sequences": (SPEC, (SLOW, SEQUENCES)),
    **{cause: (file.plain.spec, (file.plain.fault,)) for cause, file in list_cause_files().items()},
}


def job(name: str) -> tuple[JobSpec, *tuple[Fault, ...]]:
    """Give the job of a name and its faults, as one takes them."""
    spec, faults = JOBS[name]
    return spec, *faults


def run(inputs: Inputs) -> pa.Table:
    """Run a job."""
    return record(inputs, simulate(inputs))


def waited_s(table: pa.Table, optype: str) -> dict[tuple[int, int], float]:
    """Add up the durations of one type by worker."""
    rows = table.filter(pc.equal(table["optype"].cast(pa.string()), optype))
    total = rows.group_by(["dp_rank", "stage"]).aggregate([("duration", "sum")]).to_pylist()
    return {(row["dp_rank"], row["stage"]): row["duration_sum"] for row in total}


# ------------------------------------------------------------------------------------------ the victim and the culprit


def test_the_rank_that_waits_longest_is_the_victim() -> None:
    """Of a slow stage's dp ranks the slow one waits least in reduce-scatter; it is named, and who waits longest is not."""
    waited = waited_s(make(SPEC, SLOW).trace, "grads-reduce-scatter")
    on_stage = {worker: seconds for worker, seconds in waited.items() if worker[1] == 1}
    assert min(on_stage, key=lambda worker: on_stage[worker]) == (2, 1)
    named = culprits(diagnosed(SPEC, SLOW), "worker-fault")
    assert named == [(2, 1)]
    assert max(waited, key=lambda worker: waited[worker]) not in named


@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_all_ranks_equally_slow_is_healthy(factor: float) -> None:
    """A job all of whose workers compute slowly has no straggler."""
    everybody = tuple((dp, stage) for dp in range(SPEC.dp) for stage in range(SPEC.pp))
    found = diagnosed(SPEC, WorkerFault(places=everybody, slowdown=factor))
    assert (found.verdict, found.causes) == ("healthy", ())


def test_a_slow_dp_rank_is_its_workers() -> None:
    """A dp rank slow on all its stages in all steps is slow workers, not long documents."""
    rank = tuple((1, stage) for stage in range(SPEC.pp))
    found = diagnosed(SPEC, WorkerFault(places=rank, slowdown=1.6))
    assert causes(found) == ["worker-fault"]
    assert set(culprits(found, "worker-fault")) == set(rank)


# ------------------------------------------------------------------------------------------ next to nothing


def test_one_step_is_inconclusive() -> None:
    """One step says nothing about what varies, however slow a worker is in it."""
    found = diagnosed(dataclasses.replace(SPEC, steps=1), SLOW)
    assert (found.verdict, found.causes) == ("inconclusive", ())
    assert found.slowest_workers(1)[0][0].dp == 2


@pytest.mark.parametrize("microbatches", [1, 4])
def test_one_rank_is_diagnosed(microbatches: int) -> None:
    """A job of a single worker has nobody to wait for: healthy, and what needs peers is not checked."""
    found = diagnosed(JobSpec(pp=1, dp=1, microbatches=microbatches, steps=8, seed=62))
    assert (found.verdict, found.causes) == ("healthy", ())
    assert found.what_if.slowdown == pytest.approx(1.0, abs=0.02)
    assert "worker-fault" in [entry.cause for entry in found.not_checked]


@pytest.mark.parametrize("steps", [[], [99_999]], ids=["none asked for", "none there"])
def test_an_empty_window_is_refused(steps: list[int]) -> None:
    """Where none of the steps asked for is in the trace nothing is diagnosed, and the error says which steps there are."""
    with pytest.raises(TraceError, match=r"none of the steps asked for .* expected some of \d+\.\.\d+"):
        diagnose_table(make(SPEC, SLOW).trace, steps=np.array(steps, dtype=np.int64))


def test_a_window_without_the_fault_is_healthy() -> None:
    """Only steps before the onset analysed, a slow worker is not there yet."""
    fault = dataclasses.replace(SLOW, onset=10)
    found = diagnose_table(make(SPEC, fault).trace, steps=SPEC.step_numbers()[:10])
    assert (found.verdict, found.causes) == ("healthy", ())


# ------------------------------------------------------------------------------------------ pauses


def paused(*, together: bool, seconds: float = 0.25, op: Op = Op.FORWARD) -> pa.Table:
    """Pause every rank every fourth step, in its third forward: each rank in steps of its own, or all in the same."""
    inputs = draw_inputs(SPEC)
    programme = inputs.programme
    pause_s = np.zeros(inputs.work_s.shape)
    for stage in range(SPEC.pp):
        task = int(np.flatnonzero(programme.is_op(op) & (programme.stage == stage))[2])
        for dp in range(SPEC.dp):
            first = 1 if together else (dp + stage) % 4
            pause_s[task, first::4, dp] = seconds
    return run(dataclasses.replace(inputs, pauses=(Pause(Op.GC, pause_s, "inside", recorded=False),)))


@pytest.mark.parametrize("together", [False, True], ids=["staggered", "simultaneous"])
@pytest.mark.parametrize("op", [Op.FORWARD, Op.BACKWARD], ids=str)
def test_pauses_are_no_slow_worker(together: bool, op: Op) -> None:
    """Whether ranks pause each in its own step or all in the same, none of them is called slow."""
    found = diagnose_table(paused(together=together, op=op))
    assert not {"worker-fault", "stage-imbalance", "sequence-imbalance"} & set(causes(found))


def test_staggered_pauses_are_lost_time() -> None:
    """Pauses out of step cost the job time, and the ledger has them as collections."""
    found = diagnose_table(paused(together=False))
    assert found.verdict == "straggling"
    assert found.ledger is not None
    assert found.ledger.components["gc-pause"] > 0.8


def test_simultaneous_pauses_are_no_collections_out_of_step() -> None:
    """What all ranks do in one step is planned: it cannot be planned away."""
    assert "garbage-collection" not in causes(diagnose_table(paused(together=True)))


def test_one_long_pause_is_no_slow_worker() -> None:
    """A worker that stands still once, for longer than a step, is not slow."""
    inputs = draw_inputs(SPEC)
    pause_s = np.zeros(inputs.work_s.shape)
    task = int(np.flatnonzero(inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == 2))[3])
    pause_s[task, 5, 1] = 3.0
    found = diagnose_table(run(dataclasses.replace(inputs, pauses=(Pause(Op.GC, pause_s, "inside", recorded=False),))))
    assert "worker-fault" not in causes(found)


# ------------------------------------------------------------------------------------------ the first steps


@pytest.mark.parametrize("onset", [1, 2, 3, 4])
def test_a_change_in_the_first_five_steps_is_dated(onset: int) -> None:
    """A worker that becomes slow in the second to fifth step is slow since then."""
    spec = dataclasses.replace(SPEC, steps=30)
    found = diagnosed(spec, dataclasses.replace(SLOW, onset=onset))
    assert culprits(found, "worker-fault") == [(2, 1)]
    assert found.causes[0].when.onset_step == int(spec.step_numbers()[onset])


@pytest.mark.parametrize("recovery", [3, 5])
def test_a_worker_that_recovers_in_the_first_steps_is_not_constantly_slow(recovery: int) -> None:
    """Slow in the first steps only is not said to be slow always, nor since some step."""
    found = diagnosed(dataclasses.replace(SPEC, steps=30), dataclasses.replace(SLOW, slowdown=3.0, recovery=recovery))
    for cause in found.causes:
        assert cause.when.pattern != "constant"
        assert cause.when.onset_step is None


# ------------------------------------------------------------------------------------------ names and units


def figures(found: Diagnosis) -> dict[str, float]:
    """List all ratios of a diagnosis by name."""
    ratios = {"slowdown": found.what_if.slowdown, "discrepancy": found.fidelity.discrepancy}
    ratios |= {f"by {name}": value for name, value in found.what_if.by_optype.items()}
    for cause in found.causes:
        ratios |= {f"{cause.cause} share": cause.share or 0.0, f"{cause.cause} recoverable": cause.recoverable}
        ratios |= {f"{cause.cause} confidence": cause.confidence}
    return ratios


def assert_same(found: Diagnosis, other: Diagnosis, *, tolerance: float = 1e-6) -> None:
    """Compare verdict, causes, times and ratios."""
    assert (found.verdict, causes(found)) == (other.verdict, causes(other))
    assert [cause.when for cause in found.causes] == [cause.when for cause in other.causes]
    assert figures(found) == pytest.approx(figures(other), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("names", [(10, 40, 20, 70), (3, 2, 1, 0)], ids=str)
def test_renaming_ranks_renames_findings_only(name: str, names: tuple[int, ...]) -> None:
    """With other numbers for the dp ranks the same causes are found, under those numbers."""
    plain, table = diagnosed(*job(name)), make(*job(name)).trace
    renamed = set_column(table, "dp_rank", np.array(names, dtype=np.int16)[table["dp_rank"].to_numpy()])
    found = diagnose_table(renamed)
    assert_same(found, plain)
    for before, after in zip(plain.causes, found.causes, strict=True):
        assert [(names[worker.dp], worker.pp) for worker in before.where.workers] == [
            (worker.dp, worker.pp) for worker in after.where.workers
        ]
        assert before.where.stages == after.where.stages


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_the_unit_of_time_changes_no_ratio(name: str, factor: float) -> None:
    """A job ten times as slow, or as fast, in everything has the same verdict, causes, shares and gains."""
    spec, *faults = job(name)
    spec = dataclasses.replace(spec, forward_s=2.0, transfer_s=0.02, collective_s=0.8, optimizer_s=0.4)
    faults = [slower(fault) for fault in faults]
    plain = diagnosed(spec, *faults)
    found = diagnose_table(scale_times(make(spec, *faults).trace, factor))
    assert_same(found, plain, tolerance=2e-3)
    assert found.step_time.recorded == pytest.approx(factor * plain.step_time.recorded, rel=1e-5)


def slower(fault: Fault) -> Fault:
    """Give a fault whose seconds suit a job 40 times as slow."""
    seconds = [name for name in ("pause_s", "duration_s") if hasattr(fault, name)]
    return dataclasses.replace(fault, **{name: 40.0 * getattr(fault, name) for name in seconds})


# ------------------------------------------------------------------------------------------ the same job again


@pytest.mark.parametrize("name", JOBS)
def test_the_same_job_twice_gives_the_same_bytes(name: str) -> None:
    """Nothing in the JSON depends on the run."""
    table = make(*job(name)).trace
    assert render(diagnose_table(table)) == render(diagnose_table(table)) == render(diagnosed(*job(name)))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("order", ["reversed", "shuffled", "by type"])
def test_the_order_of_rows_changes_no_byte(name: str, order: str) -> None:
    """Rows in any order are the same job."""
    table = make(*job(name)).trace
    n_rows = table.num_rows
    if order == "reversed":
        rows = np.arange(n_rows)[::-1]
    elif order == "shuffled":
        rows = np.random.default_rng(0).permutation(n_rows)
    else:
        rows = np.argsort(np.array(table["optype"].to_pylist()), kind="stable")
    assert render(diagnose_table(table.take(rows))) == render(diagnosed(*job(name)))


@pytest.mark.parametrize("name", JOBS)
def test_absolute_times_find_the_same_causes(name: str) -> None:
    """On the clock of the job, steps one after the other, causes, places and gains are those of times within the step."""
    table = make(*job(name)).trace
    start_s, step = table["start_ts"].to_numpy().astype(np.float64), table["step"].to_numpy()
    numbers = np.unique(step)
    length_s = np.array([(start_s + table["duration"].to_numpy())[step == number].max() for number in numbers])
    # Steps that were not sampled lie between, too.
    origin_s = 1.7e9 + np.concatenate([[0.0], np.cumsum(length_s[:-1] * np.diff(numbers))])
    absolute = set_column(table, "start_ts", start_s + origin_s[np.searchsorted(numbers, step)])
    found, plain = diagnose_table(absolute), diagnosed(*job(name))
    assert (found.verdict, causes(found)) == (plain.verdict, causes(plain))
    assert [cause.where for cause in found.causes] == [cause.where for cause in plain.causes]
    assert figures(found) == pytest.approx(figures(plain), rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("fixture", sorted(path.stem for path in FIXTURES.glob("*.parquet")))
def test_the_rows_of_one_dp_rank_alone(fixture: str) -> None:
    """Of a job of which only one dp rank was recorded nothing but that is known: a diagnosis, and no error."""
    table = pq.read_table(FIXTURES / f"{fixture}.parquet")
    assert diagnose_table(table.filter(pc.equal(table["dp_rank"], 0))).verdict
