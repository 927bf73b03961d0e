"""Rows of types that the format does not name: their worker is busy, nobody is idle, and whoever waits in them is not blamed."""

import dataclasses
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.fault import Fault
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.inputs import Inputs, Pause, draw_inputs
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds
from diagnose.trace.convert import write_trace
from diagnose.trace.load import load_trace
from diagnose.trace.read import read_rows
from diagnose.whatif.occupied import _find_groups
from tests.jobs import Shape, load, random_job, to_table
from tests.judge.cases import causes, diagnose_table, measure

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=5)
ABSOLUTE = dataclasses.replace(SPEC, absolute_times=True)
SLOW = WorkerFault(places=((1, 2),), slowdown=1.5)
#: Gains are right to this part of the step.
TOLERANCE = 0.02

#: Says by how much work is longer at some (step, dp rank, stage); 0: there is none.
Scale = Callable[[int, int, int], float]


def everywhere(_step: int, _dp: int, _stage: int) -> float:
    """All workers have the same work in all steps."""
    return 1.0


def add_work(inputs: Inputs, share: float, op: Op, scale: Scale = everywhere, *, first_only: bool = False) -> Inputs:
    """Keep workers busy before some operations: this part of the step on each worker, where the scale is 1."""
    step_s, seconds = float(simulate(inputs).step_s.mean()), np.zeros(inputs.work_s.shape)
    rng = inputs.spec.random("other work")
    for stage in range(inputs.spec.pp):
        tasks = [t for t, task in enumerate(inputs.programme.tasks) if task.stage == stage and task.op == op]
        tasks = tasks[:1] if first_only else tasks
        for at in np.ndindex(*inputs.lanes):
            long = rng.lognormal(0.0, 0.1, len(tasks)) * scale(*at, stage)
            seconds[(tasks, *at)] = share * step_s / max(len(tasks), 1) * long
    return inputs.with_pauses(Pause(Op.LOG, seconds, "before", recorded=True))


def add_tails(inputs: Inputs, share: float, scale: Scale = everywhere) -> Inputs:
    """Keep workers busy after the step."""
    step_s, (n_steps, n_dp) = float(simulate(inputs).step_s.mean()), inputs.lanes
    at = np.ndindex(inputs.spec.pp, n_steps, n_dp)
    tail_s = np.array([share * step_s * scale(step, dp, stage) for stage, step, dp in at])
    return dataclasses.replace(inputs, tail_s=tail_s.reshape(-1, n_steps, n_dp), tail_kind=Op.LOG)


def compose(spec: JobSpec, faults: Sequence[Fault] = ()) -> Inputs:
    """Give the times of a job with some faults."""
    inputs = draw_inputs(spec)
    for fault in faults:
        inputs = fault.apply(inputs)
    return inputs


def recorded(inputs: Inputs, name: str = "my-type") -> pa.Table:
    """Run a job, and call its rows of planned work something that nobody knows."""
    table = record(inputs, simulate(inputs))
    optype = pd.Series(table["optype"].to_pandas().astype(str)).replace("log", name)
    at = table.schema.get_field_index("optype")
    return table.set_column(at, "optype", pa.array(optype).dictionary_encode())


def beside(table: pa.Table, rows: pd.DataFrame, name: str) -> pa.Table:
    """Add rows of another type to a trace."""
    every = pd.concat([table.to_pandas().astype({"optype": str}), rows.assign(optype=name)], ignore_index=True)
    return pa.Table.from_pandas(every, preserve_index=False).replace_schema_metadata(table.schema.metadata)


def computes_of(table: pa.Table) -> pd.DataFrame:
    """List the computes of a trace."""
    rows = table.to_pandas().astype({"optype": str})
    return rows[rows.optype.str.endswith("-compute")]


@pytest.mark.parametrize("first_only", [False, True], ids=["each", "first"])
@pytest.mark.parametrize(
    "op", [Op.ALL_GATHER, Op.FORWARD, Op.BACKWARD, Op.FORWARD_SEND, Op.REDUCE_SCATTER, Op.OPTIMIZER]
)
def test_work_of_an_unknown_type_is_nobodys_fault(op: Op, first_only: bool) -> None:
    """What all workers do in each step stays where it is: it is named, and no time is lost to it."""
    found = measure(recorded(add_work(compose(SPEC), 0.1, op, first_only=first_only)))
    assert found.diagnosis.verdict == "healthy"
    assert found.gains.clean_s > 0.97 * found.gains.recorded_s
    assert any("workers are busy with `my-type`" in text for text in found.diagnosis.warnings)


@pytest.mark.parametrize(
    "scale",
    [
        lambda _step, dp, _stage: float(dp == 0),
        lambda _step, dp, stage: float(dp == 1 and stage == 2),
        lambda step, _dp, _stage: float(step % 4 == 1),
        lambda step, dp, stage: float(step in {2, 7, 11} and dp == stage == 0),
    ],
    ids=["dp-rank", "worker", "period", "now-and-then"],
)
@pytest.mark.parametrize("spec", [SPEC, ABSOLUTE], ids=["relative", "absolute"])
@pytest.mark.parametrize("between", [False, True], ids=["in-steps", "between"])
def test_who_alone_has_such_work_is_no_fault(between: bool, spec: JobSpec, scale: Scale) -> None:
    """One rank logs, or some steps do: that is how the job was written."""
    inputs = compose(spec)
    inputs = add_tails(inputs, 0.2, scale) if between else add_work(inputs, 0.2, Op.FORWARD, scale, first_only=True)
    assert diagnose_table(recorded(inputs)).verdict == "healthy"


@pytest.mark.parametrize(
    "fault",
    [
        SLOW,
        DataLoading(wait_ratio=3.0, where="before", dp_ranks=(1,)),
        GarbageCollection(),
        NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=20.0),
    ],
    ids=["worker", "loader", "collections", "link"],
)
@pytest.mark.parametrize("op", [Op.FORWARD, Op.BACKWARD], ids=["forward", "backward"])
def test_a_fault_beside_such_work_is_found_and_priced(fault: Fault, op: Op) -> None:
    """The same is said as without the work, and its gain is what mending truly gives beside the work."""
    with_work = add_work(compose(SPEC, [fault]), 0.06, op)
    mended = fault.mend(draw_inputs(SPEC)).with_pauses(with_work.pauses[-1])
    true = 1.0 - float(simulate(mended).step_s.mean() / simulate(with_work).step_s.mean())
    alone, diagnosis = diagnose_table(recorded(compose(SPEC, [fault]))), diagnose_table(recorded(with_work))
    assert causes(diagnosis) == causes(alone) != []
    assert diagnosis.causes[0].recoverable == pytest.approx(true, abs=TOLERANCE)


@pytest.mark.parametrize("between", [False, True], ids=["in-steps", "between"])
@pytest.mark.parametrize("spec", [SPEC, ABSOLUTE], ids=["relative", "absolute"])
def test_far_longer_work_of_one_worker_is_unknown_and_named(spec: JobSpec, between: bool) -> None:
    """It takes four times as long on one worker: that is lost time, of the type's name, on that worker."""

    def scale(_step: int, dp: int, stage: int) -> float:
        return 4.0 if (dp, stage) == (1, 2) else 1.0

    healthy = compose(spec)
    inputs = add_tails(healthy, 0.05, scale) if between else add_work(healthy, 0.05, Op.FORWARD, scale)
    even = add_tails(healthy, 0.05) if between else add_work(healthy, 0.05, Op.FORWARD)
    true = 1.0 - float(simulate(even).step_s.mean() / simulate(inputs).step_s.mean())
    (cause,) = diagnose_table(recorded(inputs)).causes
    assert cause.cause == "unknown"
    assert cause.title == "unknown cause: uneven `my-type`"
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(1, 2)]
    assert cause.evidence[0].text.startswith("rows of the type `my-type` on dp 1, stage 2 take 4")
    assert cause.recoverable == pytest.approx(true, abs=TOLERANCE)


def test_with_one_rank_the_other_stages_are_the_measure() -> None:
    """The same work takes four times as long on one stage of four; where one stage alone has any there is no measure."""
    alone = dataclasses.replace(SPEC, dp=1)

    def scale(_step: int, _dp: int, stage: int) -> float:
        return 4.0 if stage == 2 else 1.0

    (cause,) = diagnose_table(recorded(add_work(compose(alone), 0.05, Op.FORWARD, scale))).causes
    assert cause.title == "unknown cause: uneven `my-type`"
    assert [(worker.dp, worker.pp) for worker in cause.where.workers] == [(0, 2)]
    last = add_work(compose(alone), 0.2, Op.FORWARD, lambda _step, _dp, stage: float(stage == 3))
    assert diagnose_table(recorded(last)).verdict == "healthy"


def test_far_longer_work_in_some_steps_is_unknown_and_named() -> None:
    """All workers take six times as long in every third step: neither a loader nor a slow step."""
    (cause,) = diagnose_table(
        recorded(add_work(compose(SPEC), 0.05, Op.FORWARD, lambda step, _dp, _stage: 6.0 if step % 3 == 1 else 1.0))
    ).causes
    assert cause.title == "unknown cause: uneven `my-type`"


def test_work_that_is_longer_now_and_then_on_everybody_varies() -> None:
    """It costs some percent in steps that chance picks, on nobody more than on others: that is noise, and no finding."""
    table = recorded(
        add_work(compose(SPEC), 0.04, Op.FORWARD, lambda step, _dp, _stage: 4.5 if step in {1, 4, 5, 10, 12} else 1.0)
    )
    found = measure(table)
    assert found.gains.recoverable("other-work") > 0.05
    assert found.diagnosis.verdict == "noisy"


def meet(inputs: Inputs, share: float, size: int, uneven: float = 0.0) -> pa.Table:
    """Let each forward follow an all-to-all among groups of neighbouring dp ranks; each takes the same time by itself.

    Members leave it by up to a part `uneven` of that later.
    """
    chosen = {t for t, task in enumerate(inputs.programme.tasks) if task.op == Op.FORWARD}
    step_s = float(simulate(inputs).step_s.mean())
    seconds = np.zeros(inputs.work_s.shape)
    seconds[sorted(chosen)] = share * step_s / inputs.spec.microbatches
    inputs = inputs.with_pauses(Pause(Op.LOG, seconds, "before", recorded=False))
    left_s = uneven * seconds * inputs.spec.random("leaving").random(seconds.shape)
    table = recorded(_Meetings(inputs, chosen, size, left_s).inputs)
    rows = table.to_pandas().astype({"optype": str})
    return table if rows.empty else beside(table, _waits_before(rows), "ep-dispatch")


class _Meetings:
    """A job whose forwards start together within groups of dp ranks: launch delays that make it so, found by running it again."""

    def __init__(self, inputs: Inputs, chosen: set[int], size: int, left_s: Seconds) -> None:
        order = np.argsort([simulate(inputs).start_s[t].mean() for t in sorted(chosen)])
        self.inputs = inputs
        for task in np.array(sorted(chosen))[order].tolist():
            start_s = simulate(self.inputs).start_s[task]
            last = start_s.reshape(len(start_s), -1, size).max(axis=2).repeat(size, axis=1)
            delay_s = self.inputs.delay_s.copy()
            delay_s[task] += last - start_s + left_s[task]
            self.inputs = dataclasses.replace(self.inputs, delay_s=delay_s)


def _waits_before(rows: pd.DataFrame) -> pd.DataFrame:
    """Fill the time before each forward back to the last end of anything but a send on its worker."""
    found = []
    for _, of_worker in rows[~rows.optype.str.endswith("-send")].groupby(["step", "dp_rank", "stage"]):
        ends = np.sort((of_worker.start_ts + of_worker.duration)[of_worker.duration > 0])
        forwards = of_worker[of_worker.optype == "forward-compute"]
        before = np.searchsorted(ends, forwards.start_ts, side="right")
        begins = np.where(before > 0, ends[np.maximum(before, 1) - 1], 0.0)
        found.append(forwards.assign(duration=forwards.start_ts - begins, start_ts=begins))
    return pd.concat(found)


@pytest.mark.parametrize("size", [2, 4])
def test_who_waits_for_a_late_member_in_an_all_to_all_is_not_blamed(size: int) -> None:
    """The slow worker is named, and mending it gives the others' waits back, too; without it nothing is said."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=8)
    slow = WorkerFault(places=((1, 1),), slowdown=1.5)
    assert diagnose_table(meet(compose(spec), 0.06, size)).verdict == "healthy"
    table, healthy = meet(compose(spec, [slow]), 0.06, size), meet(compose(spec), 0.06, size)
    lengths = [_mean_step(of) for of in (healthy, table)]
    diagnosis = diagnose_table(table)
    assert causes(diagnosis) == ["worker-fault"]
    assert [(worker.dp, worker.pp) for worker in diagnosis.causes[0].where.workers] == [(1, 1)]
    assert diagnosis.causes[0].recoverable == pytest.approx(1.0 - lengths[0] / lengths[1], abs=TOLERANCE)


@pytest.mark.parametrize("uneven", [0.2, 1.0])
def test_an_all_to_all_in_which_members_rarely_wait_long_is_one(uneven: float) -> None:
    """The worker is slow in the last steps alone: in the others members come as close together as the network lets them go.

    They may leave far apart: it is enough that nobody leaves before the last has come.
    """
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=16)
    slow = WorkerFault(places=((1, 1),), slowdown=1.5, onset=10)
    tables = [meet(compose(spec, faults), 0.06, 4, uneven=uneven) for faults in ((), (slow,))]
    healthy_s, slow_s = (_mean_step(of) for of in tables)
    diagnosis = diagnose_table(tables[1])
    assert causes(diagnosis)[:1] == ["worker-fault"]
    assert diagnosis.causes[0].recoverable == pytest.approx(1.0 - healthy_s / slow_s, abs=TOLERANCE)
    assert not any("not simulated" in warning for warning in diagnosis.warnings)


def test_a_member_that_leaves_an_all_to_all_late_is_no_uneven_work() -> None:
    """One or the other of them always does, on the best network: it is uneven where it lasts long for all."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=16)
    found = measure(meet(compose(spec), 0.3, 4, uneven=1.5))
    assert found.gains.recoverable("other-work") < 0.005
    warning = next(text for text in found.diagnosis.warnings if "workers are busy" in text)
    assert warning.endswith("but for waits in `ep-dispatch` for who comes last")


def test_ranks_that_do_not_meet_are_no_group_of_an_all_to_all() -> None:
    """Two of four ranks are late together: the others leave before these come, and only pairs wait for each other."""
    rng = np.random.default_rng(5)
    begins_s = 0.001 * rng.random((8, 16, 4))
    begins_s[..., 2:] += np.where(rng.random((8, 16, 1)) < 0.1, 0.1, 0.0)
    of_pair_s = np.repeat(begins_s.reshape(8, 16, 2, 2).max(axis=3), 2, axis=2)
    ends_s = of_pair_s + 0.001 + 0.002 * rng.random(begins_s.shape)
    ends_s[0, 0, 0] = np.nan
    groups = _find_groups(begins_s, ends_s, is_wait=True)
    assert groups is not None and groups.tolist() == [0, 0, 1, 1]
    assert _find_groups(begins_s, ends_s, is_wait=False) is None
    assert _find_groups(np.full_like(begins_s, np.nan), ends_s, is_wait=True) is None


def test_experts_that_stay_hot_are_told_by_who_gets_quicker() -> None:
    """Ranks that exchange tokens take longer by what others take shorter: nobody is slow, and even tokens give it all back."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=16)
    even = compose(spec)
    tasks = even.programme.is_op(Op.FORWARD, Op.BACKWARD) & (even.programme.stage == 1)
    hot = np.ones(even.lanes)
    hot[7:] = (1.5, 0.9, 0.8, 0.8)
    lengths = [_mean_step(meet(inputs, 0.06, 4)) for inputs in (even, even.with_work(tasks, hot))]
    diagnosis = diagnose_table(meet(even.with_work(tasks, hot), 0.06, 4))
    assert causes(diagnosis) == ["expert-imbalance"]
    assert diagnosis.causes[0].recoverable == pytest.approx(1.0 - lengths[0] / lengths[1], abs=TOLERANCE)


def _mean_step(table: pa.Table) -> float:
    """Say how long a step takes, seconds after it began."""
    rows = table.to_pandas()
    return float((rows.start_ts + rows.duration).groupby(rows.step).max().mean())


def meet_inside(inputs: Inputs, size: int, share: float) -> pa.Table:
    """Let each forward and backward end with an all-to-all among groups of neighbouring dp ranks, which is a part of it."""
    inner = []
    chosen = [t for t, task in enumerate(inputs.programme.tasks) if task.op in {Op.FORWARD, Op.BACKWARD}]
    starts = simulate(inputs).start_s.mean(axis=(1, 2))
    for task in sorted(chosen, key=lambda t: float(starts[t])):
        end_s = simulate(inputs).end_s[task]
        last = end_s.reshape(len(end_s), -1, size).max(axis=2).repeat(size, axis=1) + share * end_s.max() / len(chosen)
        work_s = inputs.work_s.copy()
        work_s[task] += last - end_s
        inputs = dataclasses.replace(inputs, work_s=work_s)
        step, dp = np.indices(end_s.shape)
        rows = {"step": inputs.spec.step_numbers()[step], "dp_rank": dp, "start_ts": end_s, "duration": last - end_s}
        flat = {name: values.ravel() for name, values in rows.items()}
        inner.append(pd.DataFrame(flat | {"stage": inputs.programme.tasks[task].stage, "mb_id": -1, "seq_id": 0}))
    table = recorded(inputs)
    return beside(table, pd.concat(inner).astype({"start_ts": "float32", "duration": "float32"}), "ep-combine")


@pytest.mark.parametrize("size", [2, 4])
def test_waits_inside_computes_are_no_work(size: int) -> None:
    """In lockstep all ranks of a group compute equally long: their rows tell who the others wait for, and what that costs."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=8)
    tables = [
        meet_inside(compose(spec, faults), size, 0.05)
        for faults in ((), (WorkerFault(places=((1, 1),), slowdown=1.5),))
    ]
    healthy, slow = (diagnose_table(table) for table in tables)
    assert healthy.verdict == "healthy"
    assert causes(slow) == ["worker-fault"]
    assert [(worker.dp, worker.pp) for worker in slow.causes[0].where.workers] == [(1, 1)]
    lengths = [_mean_step(table) for table in tables]
    assert slow.causes[0].recoverable == pytest.approx(1.0 - lengths[0] / lengths[1], abs=TOLERANCE)


@pytest.mark.parametrize(("name", "is_known"), [("dp-wait", True), ("ep-combine", True), ("my-type", False)])
def test_waits_that_are_known_to_be_some_may_be_even(name: str, *, is_known: bool) -> None:
    """On the stage without a slow worker all come and leave as far apart: rows of no known type tell nothing then."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=8)
    rows = meet_inside(compose(spec, [WorkerFault(places=((1, 1),), slowdown=1.5)]), 4, 0.05)
    table = rows.to_pandas().astype({"optype": str})
    inner = (table.optype == "ep-combine").to_numpy()
    compute_s = float(table.duration[table.optype == "backward-compute"].median())
    left_s = 0.04 * compute_s * np.random.default_rng(7).random(len(table))
    table["duration"] = np.where(inner, np.maximum(table.duration - left_s, 1e-6), table.duration).astype("float32")
    table["optype"] = table.optype.where(~inner, name)
    found = diagnose_table(
        pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(rows.schema.metadata)
    )
    assert (causes(found)[:1] == ["worker-fault"]) == is_known


@pytest.mark.parametrize("faults", [(), (SLOW,)], ids=["healthy", "worker"])
def test_parts_of_computes_are_joined(faults: Sequence[Fault]) -> None:
    """Two rows of a forward with an all-to-all between them are one; what is said, and S, is as if it had been recorded so."""
    table = recorded(compose(SPEC, faults))
    rows = table.to_pandas().astype({"optype": str}).drop(columns="seq_id")
    forward = rows.optype == "forward-compute"
    whole = rows[forward]
    first, last = (
        whole.assign(duration=0.4 * whole.duration),
        whole.assign(duration=0.4 * whole.duration, start_ts=whole.start_ts + 0.6 * whole.duration),
    )
    between = whole.assign(
        optype="ep-dispatch", duration=0.2 * whole.duration, start_ts=whole.start_ts + 0.4 * whole.duration
    )
    parts = pa.Table.from_pandas(pd.concat([rows[~forward], first, between, last]), preserve_index=False)
    found, plain = (diagnose_table(t) for t in (parts.replace_schema_metadata(table.schema.metadata), table))
    assert causes(found) == causes(plain)
    assert found.what_if.slowdown == pytest.approx(plain.what_if.slowdown, rel=1e-4)


@pytest.mark.parametrize("faults", [(), (SLOW,)], ids=["healthy", "worker"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "across"])
def test_rows_in_or_across_computes_change_nothing(inside: bool, faults: Sequence[Fault]) -> None:
    """What lies in a compute is part of it; what overlaps computes runs on another stream."""
    table = recorded(compose(SPEC, faults))
    rows, rng = computes_of(table), np.random.default_rng(3)
    begins, lengths = ((0.3, 0.3), (0.2, 0.4)) if inside else ((0.1, 0.9), (0.5, 3.0))
    start = (rows.start_ts + rows.duration * rng.uniform(*begins, len(rows))).astype(rows.start_ts.dtype)
    rows = rows.assign(start_ts=start, duration=(rows.duration * rng.uniform(*lengths, len(rows))).astype("float32"))
    found, plain = measure(beside(table, rows, "async")), measure(table)
    assert all(o.busy is None for o in found.observed)
    assert found.gains.alone_s == plain.gains.alone_s
    assert causes(found.diagnosis) == causes(plain.diagnosis)


def test_ten_times_as_many_other_rows_are_kept() -> None:
    """Each compute launches ten things that nobody knows, of two types: all are counted by type, S is what it was."""
    shape = Shape(n_steps=4, n_dp=2, n_stages=2, n_microbatches=4)
    rows = random_job(shape, 0)
    computes = rows[rows.optype.str.endswith("-compute")]
    parts = [
        computes.assign(
            optype=f"kind-{n % 2}",
            start_ts=computes.start_ts + n / 10 * computes.duration,
            duration=computes.duration / 20,
        )
        for n in range(40)
    ]
    trace, plain = load(pd.concat([rows, *parts], ignore_index=True), shape.meta), load(rows, shape.meta)
    counts = np.bincount(trace.others.op)
    assert dict(zip(trace.other_types, counts.tolist(), strict=False)) == {
        "kind-0": 20 * len(computes),
        "kind-1": 20 * len(computes),
    }
    for one, other in zip(trace.blocks, plain.blocks, strict=True):
        np.testing.assert_array_equal(one.start_s, other.start_s)


def test_conversion_keeps_other_rows_and_their_types(tmp_path: Path) -> None:
    """What is written as one file, or read from one file a rank, has the same rows of the same types."""
    shape = Shape(n_steps=3, n_dp=2, n_stages=2, n_microbatches=4)
    rows = random_job(shape, 1)
    computes = rows[rows.optype.str.endswith("-compute")]
    of_first = computes[computes.dp_rank == 0].assign(optype="offload")
    of_second = computes[computes.dp_rank == 1].assign(optype="upload")
    rows = pd.concat([rows, of_first, of_second, computes.head(3).assign(optype=None)], ignore_index=True)
    whole = load(rows, shape.meta)
    for dp in (1, 0):
        pq.write_table(to_table(rows[rows.dp_rank == dp], shape.meta), tmp_path / f"{dp}.parquet")
    folder = load_trace(tmp_path)
    (tmp_path / "one").mkdir()
    one = tmp_path / "one" / "job.parquet"
    one.write_bytes(write_trace(read_rows(tmp_path, name="job"), shape.meta))
    for trace in (whole, folder, load_trace(one)):
        counts = {trace.other_types[kind]: int((trace.others.op == kind).sum()) for kind in np.unique(trace.others.op)}
        assert counts == {"offload": len(of_first), "upload": len(of_second), "(null)": 3}
        assert trace.others.start_s.sum() == pytest.approx(whole.others.start_s.sum(), rel=1e-9)


def test_rows_of_an_attempt_that_was_run_again_are_left_out() -> None:
    """A restart repeats a step much later on the job's clock: the rows of its first attempt say nothing of the second."""
    shape = Shape(n_steps=4, n_dp=2, n_stages=2, n_microbatches=4)
    rows = random_job(shape, 2)
    length = float((rows.start_ts + rows.duration).max())
    rows["start_ts"] += (rows.step - rows.step.min()) * 2 * length
    last = rows.step.max()
    again = rows[rows.step == last].assign(start_ts=lambda r: r.start_ts + 20 * length)
    every = pd.concat([rows, again], ignore_index=True)
    work = every[every.optype.str.endswith("-compute")].assign(optype="offload")
    trace = load(pd.concat([every, work], ignore_index=True), shape.meta)
    n_a_step = len(work) // 5
    assert (trace.others.step == last).sum() == n_a_step
    assert len(trace.others) == 4 * n_a_step


@pytest.mark.parametrize("name", ["recapture", None], ids=["row", "no-row"])
def test_what_made_a_compute_long_is_named_by_its_row(name: str | None) -> None:
    """Something nobody knows stops forwards now and then, as collections do: a row of it says that it is none."""
    inputs = compose(dataclasses.replace(SPEC, steps=30))
    rng, seconds = np.random.default_rng(2), np.zeros(inputs.work_s.shape)
    for stage, dp in np.ndindex(SPEC.pp, SPEC.dp):
        tasks = [t for t, task in enumerate(inputs.programme.tasks) if task.stage == stage and task.op == Op.FORWARD]
        for step in range(int(rng.integers(5)), 30, 5):
            seconds[int(rng.choice(tasks)), step, dp] = float(rng.uniform(0.2, 0.3))
    inputs = inputs.with_pauses(Pause(Op.LOG, seconds, "inside", recorded=name is not None))
    (cause,) = diagnose_table(recorded(inputs, name or "")).causes
    assert cause.title == ("unknown cause: uneven `recapture`" if name else "Python garbage collection")


def test_everything_draws_other_work(tmp_path: Path) -> None:
    """Pages and timelines show rows of any type, inside computes and between them, whatever it is called."""
    inputs = add_work(compose(SPEC), 0.1, Op.FORWARD, lambda _step, dp, _stage: 3.0 if dp == 1 else 1.0)
    seconds = np.zeros(inputs.work_s.shape)
    seconds[::7, ::3, 2] = 0.3 * (inputs.work_s[::7, ::3, 2] > 0)
    inputs = inputs.with_pauses(Pause(Op.LOG, seconds, "inside", recorded=True))
    job = tmp_path / "job.parquet"
    pq.write_table(recorded(inputs, "odd \x1b[31m<b>`name`\n" + 300 * "y"), job)
    drawn = [
        f"--html={tmp_path / 'page.html'}",
        f"--perfetto={tmp_path / 'lines.json.gz'}",
        f"-o{tmp_path / 'report.txt'}",
    ]
    assert main([str(job), *drawn]) == 0
    report = (tmp_path / "report.txt").read_text()
    assert "odd \\x1b[31m<b>`name` yyy" in report
    assert "\x1b[31m" not in report
    assert "<b>" not in (tmp_path / "page.html").read_text()
    assert "odd \\\\x1b[31m<b>`name`" in gzip.decompress((tmp_path / "lines.json.gz").read_bytes()).decode()


@pytest.mark.parametrize("name", ["log", "eval"])
def test_planned_work_in_each_step_is_busy_time_too(name: str) -> None:
    """What is logged in each step has no step to stand out from: it is named, stays, and takes no stall of the allocator."""
    found = measure(recorded(add_work(compose(SPEC, [SLOW]), 0.08, Op.FORWARD), name))
    assert causes(found.diagnosis) == ["worker-fault"]
    assert found.gains.recoverable("evaluation") == pytest.approx(0.0, abs=1e-3)
    assert any(f"workers are busy with `{name}`" in text for text in found.diagnosis.warnings)


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "between"])
def test_lost_rows_of_an_all_to_all_break_nothing(inside: bool) -> None:
    """A few of its rows are not there: single steps are still replayed and drawn, and the slow worker is named."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=8)
    table = (meet_inside if inside else meet)(
        compose(spec, [WorkerFault(places=((1, 1),), slowdown=1.5)]), size=2, share=0.05
    )
    rows = table.to_pandas().astype({"optype": str})
    lost = rows.optype.str.startswith("ep-") & (np.random.default_rng(1).random(len(rows)) < 0.02)
    table = pa.Table.from_pandas(rows[~lost], preserve_index=False).replace_schema_metadata(table.schema.metadata)
    found = measure(table)
    assert found.diagnosis.causes[0].cause == "worker-fault"
    assert found.analysis.timelines.clean(int(found.breakdown.steps[3]), np.arange(4)) is not None
    assert found.removal.step_times(["worker"], [slice(0, 8, 3)]).shape == (3,)


def test_who_lacks_a_row_of_an_all_to_all_was_in_it_as_the_others_were() -> None:
    """One in ten of its rows is not there: mending the slow worker gives back nearly what it does with all of them."""
    spec = dataclasses.replace(SPEC, pp=2, microbatches=4, steps=16)
    table = meet(compose(spec, [WorkerFault(places=((1, 1),), slowdown=1.5)]), 0.06, 4, uneven=1.0)
    rows = table.to_pandas().astype({"optype": str})
    lost = rows.optype.str.startswith("ep-") & (np.random.default_rng(1).random(len(rows)) < 0.1)
    fewer = pa.Table.from_pandas(rows[~lost], preserve_index=False).replace_schema_metadata(table.schema.metadata)
    (whole,), (found,) = (diagnose_table(of).causes for of in (table, fewer))
    assert found.where == whole.where
    assert found.recoverable == pytest.approx(whole.recoverable, abs=TOLERANCE)


# ------------------------------------------------------------------------------------------ layers that are gathered anew


def layers_job(
    slow: float, *, waits: bool, n_steps: int = 12, n_dp: int = 4, network: float = 1.0
) -> tuple[pa.Table, float]:
    """Make a job whose computes have three layers, with how long its steps take on average.

    Each gathers its parameters within the compute: in forwards while the one before runs, in backwards when it needs them, behind
    the reduction of the one before. Where nobody `waits` computes go on beside it. Rank 0 is so many times as slow, and each rank
    pauses once, twice as long as a layer takes; from the middle on the `network` is so many times as slow.
    """
    rng, n_layers, gather_s = np.random.default_rng(8), 3, 0.01
    rows: list[tuple[str, int, int, float, float]] = []
    total_s = 0.0

    def move(name: str, step: int, start_s: np.ndarray) -> np.ndarray:
        end_s = np.full(n_dp, start_s.max() + gather_s * (network if 2 * step >= n_steps else 1.0))
        rows.extend((name, step, rank, start_s[rank], end_s[rank]) for rank in range(n_dp))
        return end_s

    for step in range(n_steps):
        pace = rng.lognormal(0.0, 0.01, (2, n_layers, n_dp)) * np.where(np.arange(n_dp) == 0, slow, 1.0)
        layer_s = pace * np.array([0.05, 0.1])[:, None, None]
        if 2 <= step < 2 + n_dp:
            layer_s[step % 2, 1, step - 2] += 0.2
        now_s = np.zeros(n_dp)
        now_s = free_s = move("params-all-gather", step, now_s)
        for direction, name in enumerate(("forward-compute", "backward-compute")):
            began_s = now_s
            for layer in range(n_layers):
                begin_s = now_s
                if direction or layer < n_layers - 1:
                    free_s = move("params-all-gather", step, np.maximum(now_s, free_s))
                    begin_s = free_s if direction and waits else now_s
                now_s = begin_s + layer_s[direction, layer]
                if direction:
                    free_s = move("grads-reduce-scatter", step, np.maximum(now_s, free_s))
                elif waits and layer < n_layers - 1:
                    now_s = np.maximum(now_s, free_s)
            rows += [(name, step, rank, began_s[rank], now_s[rank]) for rank in range(n_dp)]
        done_s = np.maximum(now_s, free_s)
        rows += [("optimizer", step, rank, done_s[rank], done_s[rank] + 0.01) for rank in range(n_dp)]
        total_s += float(done_s.max()) + 0.01
    frame = pd.DataFrame(rows, columns=["optype", "step", "dp_rank", "start_ts", "end_ts"])
    frame = frame.sort_values(["step", "dp_rank", "start_ts"], kind="stable", ignore_index=True)
    frame["duration"] = frame.pop("end_ts") - frame.start_ts
    frame["seq_id"] = frame.groupby(["step", "dp_rank", "optype"]).cumcount()
    computes = frame.optype.str.endswith("compute")
    frame["mb_id"], frame["mc"], frame["stage"] = np.where(computes, 0, -1), np.where(computes, 0, -1), 0
    meta = {
        "dp_size": n_dp,
        "pp_size": 1,
        "tp_size": 1,
        "cp_size": 1,
        "vpp_size": 1,
        "world_size": n_dp,
        "job_id": "fsdp",
    }
    return to_table(frame, meta), total_s / n_steps


@pytest.mark.parametrize("waits", [True, False])
def test_who_waits_within_computes_for_parameters_is_not_slow(waits: bool) -> None:
    """Where ranks wait for the slow one in gathers and reductions all backwards take equally long, and its own are long else."""
    (table, step_s), (_, without_s) = (layers_job(slow, waits=waits) for slow in (2.0, 1.0))
    found = measure(table)
    assert found.gains.recoverable("worker") == pytest.approx(1.0 - without_s / step_s, abs=0.03)
    said = {cause.cause: cause for cause in found.diagnosis.causes}
    assert [worker.dp for worker in said["worker-fault"].where.workers] == [0]
    assert "kernel-queue-contention" not in said


def test_computes_are_longer_by_what_their_layers_wait_for_a_slow_network() -> None:
    """A network that gets slow within computes gives back what these are longer by."""
    (table, step_s), (_, without_s) = (layers_job(1.0, waits=True, network=network) for network in (8.0, 1.0))
    assert measure(table).gains.recoverable("transfer") == pytest.approx(1.0 - without_s / step_s, abs=0.03)


@pytest.mark.parametrize("waits", [True, False])
def test_layers_that_are_gathered_anew_are_no_fault(waits: bool) -> None:
    """In a job whose ranks are alike but for a pause each nobody is slow, and nothing is held up by communication."""
    table, _ = layers_job(1.0, waits=waits)
    assert not {cause.cause for cause in measure(table).diagnosis.causes} & {"worker-fault", "kernel-queue-contention"}
