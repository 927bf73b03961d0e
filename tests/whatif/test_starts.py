"""What workers that begin a step late wait for: all that has one origin gets its kind, and leaves together."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.decoys import OrdinaryLoads
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import generate
from diagnose.faults.planned_work import PlannedWork
from diagnose.faults.spec import JobSpec, Schedule
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.whatif.starts import Delays, attribute_launches
from tests.judge.cases import causes, diagnose_table, make, measure, measured

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=24, seed=5)
ABSOLUTE = dataclasses.replace(SPEC, absolute_times=True)
DATA_PARALLEL = JobSpec(pp=1, dp=4, microbatches=2, steps=24, gathers=False, absolute_times=True, seed=5)
TOLERANCE = 0.02


def found(spec: JobSpec, fault: DataLoading | CheckpointStall) -> tuple[Diagnosis, float]:
    """Diagnose a job with one fault; give also what mending it truly gives back."""
    job = generate(spec, [fault])
    return diagnose_table(job.trace), job.truth.faults[0].recoverable


@pytest.mark.parametrize("held_together", [False, True], ids=["each", "barrier"])
@pytest.mark.parametrize("reads_last", [False, True], ids=["first", "first-and-last"])
@pytest.mark.parametrize("records", [False, True], ids=["no-rows", "rows"])
def test_all_that_wait_for_a_batch_before_a_step_are_mended_together(
    held_together: bool, reads_last: bool, records: bool
) -> None:
    """Loaders of two stages, and a barrier behind them, hide each other's waits: without any of them the true gain is there."""
    fault = DataLoading(
        wait_ratio=5.0, where="step", held_together=held_together, reads_last=reads_last, records=records
    )
    diagnosis, recoverable = found(SPEC, fault)
    assert causes(diagnosis) == ["data-loading"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)


@pytest.mark.parametrize("where", ["before", "inside"])
def test_labels_are_input_too(where: str) -> None:
    """The last stage waits for labels as the first one does for batches."""
    fault = DataLoading(wait_ratio=6.0, where=where, dp_ranks=(1,), reads_last=True)  # type: ignore[arg-type]  # one of its names
    diagnosis, recoverable = found(SPEC, fault)
    assert causes(diagnosis) == ["data-loading"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)
    assert {(worker.dp, worker.pp) for worker in diagnosis.causes[0].where.workers} == {(1, 0), (1, 3)}


@pytest.mark.parametrize("vpp", [1, 2])
def test_labels_that_are_mostly_late(vpp: int) -> None:
    """What most forwards of the model's end wait is not what they usually wait: others hardly do."""
    spec = JobSpec(pp=4, vpp=vpp, dp=1, microbatches=8, steps=24, seed=3)
    fault = DataLoading(kind="late-labels", wait_ratio=8.0, probability=0.75, every_microbatch=True, reads_last=True)
    (true,) = make(spec, fault).truth.faults
    assert measured(spec, fault).gains.recoverable("input-delay") == pytest.approx(true.recoverable, abs=0.01)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("every_microbatch", [False, True], ids=["first", "every"])
def test_labels_alone_may_be_late(every_microbatch: bool, pp: int) -> None:
    """A rank's last stage waits for labels in most steps, and the first for nothing: input, or else what writes its logs."""
    fault = DataLoading(
        wait_ratio=9.0,
        spread=0.2,
        probability=0.9,
        dp_ranks=(1,),
        reads_last=True,
        reads_first=False,
        every_microbatch=every_microbatch,
    )
    diagnosis, recoverable = found(dataclasses.replace(SPEC, pp=pp), fault)
    (cause,) = diagnosis.causes
    assert cause.cause == "data-loading"
    assert [alternative.cause for alternative in cause.alternatives] == ["unknown"]
    assert cause.recoverable == pytest.approx(recoverable, abs=TOLERANCE)
    assert {(worker.dp, worker.pp) for worker in cause.where.workers} == {(1, pp - 1)}


def test_labels_that_are_late_now_and_then_are_late_on_one_stage() -> None:
    """All ranks of the last stage wait in a third of the steps, beside a worker of another that stalls: collections choose none."""
    late = DataLoading(kind="late-labels-alone", wait_ratio=9.0, probability=0.3, reads_last=True, reads_first=False)
    stalls = AllocatorStall(on_stages=(1,), on_dp_ranks=(0,), stall_ratio=2.0, probability=0.1)
    job = generate(dataclasses.replace(SPEC, dp=8, evidence=False), [late, stalls])
    diagnosis = diagnose_table(job.trace)
    (cause,) = [cause for cause in diagnosis.causes if cause.cause == "data-loading"]
    assert {worker.pp for worker in cause.where.workers} <= {3} and cause.confidence > 0.5
    assert all(cause.cause != "garbage-collection" for cause in diagnosis.causes)


def test_labels_of_all_ranks_are_late_beside_an_allocator_that_lets_some_computes_begin_late() -> None:
    """Stages that stall in both directions have something else: all other late forwards are first ones of the last stage."""
    spec = JobSpec(pp=8, dp=8, microbatches=3, steps=24, evidence=False, seed=3)
    late = DataLoading(kind="late-labels-alone", wait_ratio=20.0, probability=0.7, reads_last=True, reads_first=False)
    stalls = AllocatorStall(on_stages=(0, 1, 2), stall_ratio=3.0, probability=0.02, inside_share=0.5)
    job = generate(spec, [late, stalls])
    first = diagnose_table(job.trace).causes[0]
    assert first.cause == "data-loading" and first.confidence > 0.5
    assert first.recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=TOLERANCE)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "dualpipev"])
def test_labels_are_read_where_the_model_ends(schedule: Schedule) -> None:
    """Of a V the first worker holds the end of the model, too, and waits for labels in that chunk."""
    spec = JobSpec(pp=4, vpp=2, dp=2, microbatches=8, steps=12, schedule=schedule, evidence=False, seed=3)
    diagnosis, recoverable = found(
        spec, DataLoading(onset=4, wait_ratio=20.0, where="inside", late_share=0.4, reads_last=True)
    )
    assert causes(diagnosis) == ["data-loading"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)


def test_rows_before_the_first_operation_say_what_lies_between_steps() -> None:
    """On the job's clock a step begins when the barrier opens: rows say that workers waited for input before it."""
    diagnosis, recoverable = found(
        ABSOLUTE, DataLoading(wait_ratio=5.0, where="step", held_together=True, records=True)
    )
    assert causes(diagnosis) == ["data-loading"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)
    assert diagnosis.features["input.between_share"] == pytest.approx(1.0, abs=1e-3)


def test_who_waits_at_a_barrier_is_not_blamed() -> None:
    """Rows of dp rank 2 say what all wait for: it alone is named."""
    fault = DataLoading(wait_ratio=8.0, where="step", dp_ranks=(2,), held_together=True, records=True)
    diagnosis, _ = found(SPEC, fault)
    assert [(worker.dp, worker.pp) for worker in diagnosis.causes[0].where.workers] == [(2, 0)]


def test_a_constant_wait_counts_where_rows_prove_it() -> None:
    """As long in every step on every rank it looks like how a job is; rows say that it is not."""
    always = DataLoading(wait_ratio=1.0, spread=0.0, probability=1.0, is_common=True, records=True)
    diagnosis, recoverable = found(SPEC, always)
    assert recoverable > TOLERANCE
    assert causes(diagnosis) == ["data-loading"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=0.1 * recoverable)


def test_without_rows_the_doubt_is_said() -> None:
    """All workers begin steps late together, and nothing says what for: the confidence is split."""
    diagnosis, _ = found(SPEC, DataLoading(wait_ratio=5.0, where="step", held_together=True))
    (cause,) = diagnosis.causes
    assert cause.confidence < 0.8
    assert [other.cause for other in cause.alternatives] == ["unknown"]


@pytest.mark.parametrize("held_together", [False, True], ids=["each", "barrier"])
def test_saves_of_the_first_rank_are_no_input(held_together: bool) -> None:
    """Dp rank 0 begins every fourth step late: a save, with rows or without, and never a loader."""
    for recorded in (False, True):
        fault = CheckpointStall(
            period_steps=4, where="before", first_rank_only=True, held_together=held_together, recorded=recorded
        )
        diagnosis, recoverable = found(SPEC, fault)
        assert causes(diagnosis) == ["checkpoint-stall"]
        assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)


def test_a_save_that_ends_after_its_worker_went_on_held_the_others_as_well() -> None:
    """All begin when the longest save of dp rank 0 has let its worker go on; its row ends some milliseconds after that."""
    fault = CheckpointStall(
        period_steps=4, duration_s=2.0, where="before", first_rank_only=True, held_together=True, recorded=True
    )
    job = generate(SPEC, [fault])
    table = job.trace.to_pandas()
    table.loc[table.optype == "checkpoint", "duration"] += 6e-3
    diagnosis = diagnose_table(pa.Table.from_pandas(table, preserve_index=False))
    assert causes(diagnosis) == ["checkpoint-stall"]
    assert diagnosis.causes[0].recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=TOLERANCE)


@pytest.mark.parametrize("recorded", [False, True], ids=["no-rows", "rows"])
def test_a_clock_that_is_off_hides_no_late_start(recorded: bool) -> None:
    """All workers begin every fourth step late, behind a barrier: a clock that is off changes nothing."""
    spec = dataclasses.replace(SPEC, clock_s=5e-3)
    fault = CheckpointStall(period_steps=4, where="before", held_together=True, recorded=recorded)
    diagnosis, recoverable = found(spec, fault)
    assert "clocks differ" in " ".join(diagnosis.warnings)
    assert causes(diagnosis) == ["checkpoint-stall"]
    assert diagnosis.causes[0].recoverable == pytest.approx(recoverable, abs=TOLERANCE)


def test_a_job_that_reads_nothing_waits_for_no_input() -> None:
    """What metadata rule out is not said."""
    m = measured(SPEC, DataLoading(wait_ratio=5.0, where="step"))
    job = generate(SPEC, [DataLoading(wait_ratio=5.0, where="step")])
    assert m.breakdown.start_s is not None
    metadata = dict(job.trace.schema.metadata)
    metadata[b"diagnose.job"] = metadata[b"diagnose.job"].replace(b"{", b'{"reads_input": false, ', 1)
    diagnosis = diagnose_table(job.trace.replace_schema_metadata(metadata))
    assert "data-loading" not in causes(diagnosis)
    assert diagnosis.features["gain.input-delay"] == 0.0
    (unknown,) = diagnosis.causes
    assert unknown.evidence[0].text.endswith("if the job reads its data by other means, it may wait for these")


@pytest.mark.parametrize("told", [0.2, 0.01])
def test_what_is_saved_is_gathered_before(told: float) -> None:
    """Rows of saves tell of all that keeps their worker from beginning a step, where they are a fiftieth of it."""
    job = generate(DATA_PARALLEL, [CheckpointStall(period_steps=4, where="before", first_rank_only=True)])
    rows = job.trace.to_pandas()
    saving = rows.optype == "checkpoint"
    rows.loc[saving, "start_ts"] += (1.0 - told) * rows.duration[saving]
    rows.loc[saving, "duration"] *= told
    trace = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(job.trace.schema.metadata)
    stalls = measure(trace).breakdown.stalls
    by_rows = float(stalls.before_s[stalls.recorded_before & (stalls.before == StallKind.SAVING)].sum())
    all_s = float(stalls.seconds_of(StallKind.SAVING).sum())
    assert by_rows == pytest.approx(all_s if told > 0.02 else 0.0, rel=0.01)


def test_the_first_rank_saves_at_a_period() -> None:
    """With one stage nothing but forwards opens a step: dp rank 0 alone begins every fourth late, and no collector counts steps."""
    fault = CheckpointStall(period_steps=4, where="before", first_rank_only=True, recorded=False)
    diagnosis, recoverable = found(DATA_PARALLEL, fault)
    assert causes(diagnosis) == ["checkpoint-stall"]
    (cause,) = diagnosis.causes
    assert cause.recoverable == pytest.approx(recoverable, abs=TOLERANCE)
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(0, 0)]
    assert cause.confidence < 0.8  # who evaluates or logs for all is mostly the first, too
    late = dataclasses.replace(DATA_PARALLEL, seed=6)
    collections = GarbageCollection(on_workers=((0, 0),), worker_period_steps=5.0, jitter=0.3, inside_share=0.0)
    assert "checkpoint-stall" not in causes(diagnose_table(generate(late, [collections]).trace))


def test_late_forwards_beside_rows_of_a_loader_that_is_quick() -> None:
    """Where data-load rows are there all the time and tell of no wait something else comes before forwards, and is said so."""
    late = DataLoading(wait_ratio=3.0, probability=0.8)
    (unknown,) = diagnose_table(generate(SPEC, [late], [OrdinaryLoads(share=0.5)]).trace).causes
    assert unknown.title == "unknown cause: late forwards where data is read"
    assert "data-load rows tell of no wait" in unknown.evidence[0].text


def test_a_job_that_never_saves_may_save_by_other_means() -> None:
    """Where no save was seen, a stop of all workers every fourth step is unknown, and may be a save by other means."""
    job = generate(ABSOLUTE, (), [PlannedWork(period_steps=4, seconds=1.0, recorded=False)])
    metadata = dict(job.trace.schema.metadata)
    metadata[b"diagnose.job"] = metadata[b"diagnose.job"].replace(b"{", b'{"saves": false, ', 1)
    (unknown,) = diagnose_table(job.trace.replace_schema_metadata(metadata)).causes
    assert unknown.cause == "unknown"
    assert "no save was seen" in unknown.evidence[0].text


def test_a_first_rank_that_begins_late_may_save_by_other_means() -> None:
    """Likewise where the first dp rank alone begins steps late, and loaders were seen."""
    job = generate(SPEC, [CheckpointStall(period_steps=4, where="before", first_rank_only=True, recorded=False)])
    metadata = dict(job.trace.schema.metadata)
    facts = b'{"saves": false, "reads_input": true, '
    metadata[b"diagnose.job"] = metadata[b"diagnose.job"].replace(b"{", facts, 1)
    (unknown,) = diagnose_table(job.trace.replace_schema_metadata(metadata)).causes
    assert unknown.title == "unknown cause: late workers at the start of a step"
    assert "no save was seen" in unknown.evidence[0].text and "no loader" not in unknown.evidence[0].text


@pytest.mark.parametrize("where", ["between", "before"])
@pytest.mark.parametrize("spec", [SPEC, ABSOLUTE], ids=["step-clock", "job-clock"])
def test_planned_work_with_rows_is_none_of_the_causes(where: str, spec: JobSpec) -> None:
    """Evaluation every fourth step has its share, and makes no job straggle."""
    decoy = PlannedWork(period_steps=4, seconds=1.0, where=where)  # type: ignore[arg-type]  # one of its names
    diagnosis = diagnose_table(generate(spec, (), [decoy]).trace)
    assert (diagnosis.verdict, causes(diagnosis)) == ("healthy", [])
    assert (diagnosis.features["gain.evaluation"] or 0.0) > 0.1
    assert any("planned" in warning for warning in diagnosis.warnings)


def test_planned_work_without_rows_may_be_a_save_or_an_evaluation() -> None:
    """A gap every fourth step that no row tells of is put down to saves with less confidence, and the other reading is said."""
    decoy = PlannedWork(period_steps=4, seconds=1.0, recorded=False)
    (cause,) = diagnose_table(generate(ABSOLUTE, (), [decoy]).trace).causes
    assert cause.cause == "checkpoint-stall"
    assert cause.confidence < 0.8
    assert [other.cause for other in cause.alternatives] == ["evaluation"]


def test_kinds_of_late_starts_are_kept() -> None:
    """Late all-gathers, recvs and forwards of one barrier have one kind."""
    fault = DataLoading(wait_ratio=8.0, where="step", held_together=True, records=True)
    m = measured(SPEC, fault)
    start_s, told = m.breakdown.start_s, m.breakdown.start_recorded
    assert start_s is not None and told is not None
    assert told[start_s > 0].mean() > 0.9 and not told[start_s <= 0].any()
    kinds = np.concatenate([of_node[of_node > 0] for block in m.breakdown.late_kinds for of_node in block.values()])
    assert set(np.unique(kinds).tolist()) == {int(StallKind.INPUT)}


@pytest.mark.parametrize(
    ("late_s", "dps", "recorded", "n_late"),
    [(0.2, (1,), False, 1), (0.01, (1,), False, 0), (0.9, (1,), False, 0), (0.2, (0,), False, 0), (0.2, (1,), True, 0)],
    ids=["as long", "shorter", "longer", "on a worker that does not collect", "rows tell"],
)
def test_sends_that_are_as_late_as_collections_are_long(
    late_s: float, dps: tuple[int, ...], recorded: bool, n_late: int
) -> None:
    """A collector stops its process between a compute and its send, too; what is late in every step it does not."""
    seconds, kinds, told = np.zeros((3, 2, 1, 2, 10, 2))
    seconds[0, 0, 0, ::3, 1], kinds[0, 0, 0, ::3, 1] = [0.1, 0.2, 0.25, 0.3], StallKind.COLLECTION
    told[0, 0, 0, ::3, 1] = recorded
    no = np.zeros(seconds.shape, dtype=bool)
    stalls = Stalls(seconds, 0.0 * seconds, kinds.astype(np.int8), np.zeros(seconds.shape, np.int8), told > 0, no)
    nodes = SimpleNamespace(op=np.array([Op.FORWARD, Op.FORWARD_SEND, Op.FORWARD_SEND]), stage=np.zeros(3, dtype=int))
    late = {node: np.zeros((10, 2)) for node in range(3)}
    late[1][4, dps], late[2][:, 1], late[0][5, 1] = late_s, 0.2, 0.2
    delays = Delays(late, {}, {}, {})
    o: Any = SimpleNamespace(block=SimpleNamespace(nodes=nodes))
    attribute_launches([o], [delays], stalls, 1)
    assert [sum(int((kinds == StallKind.COLLECTION).sum()) for kinds in delays.kinds.values()), *delays.kinds] == [
        n_late,
        *([1] if n_late else []),
    ]
