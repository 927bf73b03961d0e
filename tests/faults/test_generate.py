"""Generated jobs: their rows, their truth, and that nothing but the seed decides."""

import ast
import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import diagnose.faults
from diagnose.errors import UsageError
from diagnose.faults.__main__ import main
from diagnose.faults.catalogue import list_cause_files
from diagnose.faults.fault import Fault, choose_kind
from diagnose.faults.generate import generate, list_causes
from diagnose.faults.inputs import Pause, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op

SMALL = JobSpec(pp=3, dp=3, microbatches=4, steps=6, seed=11)
WORKER = WorkerFault(places=((1, 2),), slowdown=1.7, spread=0.02, onset=2)
FAULTS: tuple[Fault, ...] = (WORKER, StageImbalance(), SequenceImbalance())


def test_same_seed_same_table() -> None:
    """The same job twice gives the same rows and the same truth; another seed gives others."""
    first, second = generate(SMALL, FAULTS), generate(SMALL, FAULTS)
    assert first.trace.equals(second.trace, check_metadata=True)
    assert first.truth.to_json() == second.truth.to_json()
    assert not generate(dataclasses.replace(SMALL, seed=12), FAULTS).trace.equals(first.trace)


def test_mending_a_worker_gives_the_job_without_it() -> None:
    """Without the slow worker the job takes exactly as long as the job that never had it, noise included."""
    truth = generate(SMALL, [WORKER]).truth
    healthy = generate(SMALL).truth
    assert truth.faults[0].step_time_without_s == truth.step_time_without_any_s == healthy.step_time_s
    assert truth.faults[0].recoverable == 1.0 - healthy.step_time_s / truth.step_time_s > 0.1


def test_each_fault_is_mended_alone() -> None:
    """Mending one of several faults gives the job that has the others, in any order of the faults."""
    both = generate(SMALL, [WORKER, StageImbalance()]).truth
    assert both.faults[1].step_time_without_s < both.step_time_s
    alone = generate(SMALL, [StageImbalance()]).truth
    assert both.faults[0].step_time_without_s == alone.step_time_s
    turned = generate(SMALL, [StageImbalance(), WORKER]).truth
    assert turned.step_time_without_any_s == pytest.approx(both.step_time_without_any_s, rel=1e-12)


def test_fault_changes_nothing_before_its_onset_and_elsewhere() -> None:
    """A slow worker leaves the computes of all steps before the onset, and of all other workers, as they were."""
    before, after = draw_inputs(SMALL), WORKER.apply(draw_inputs(SMALL))
    ratio = np.ones_like(before.work_s)
    computes = before.programme.is_op(Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)
    ratio[computes] = after.work_s[computes] / before.work_s[computes]
    here = computes & (before.programme.stage == 2)
    assert ratio[here][:, 2:, 1] == pytest.approx(1.7, rel=0.1)
    ratio[here, 2:, 1] = 1.0
    assert (ratio == 1.0).all()
    assert np.array_equal(before.delay_s, after.delay_s)


def test_recovery_ends_a_fault() -> None:
    """A fault with onset 1 and recovery 3 makes steps 1 and 2 longer and no other."""
    fault = dataclasses.replace(WORKER, onset=1, recovery=3)
    longer = simulate(fault.apply(draw_inputs(SMALL))).step_s > simulate(draw_inputs(SMALL)).step_s
    assert longer.tolist() == [False, True, True, False, False, False]
    truth = generate(SMALL, [fault]).truth.faults[0]
    assert (truth.onset_step, truth.recovery_step) == (SMALL.step_numbers()[1], SMALL.step_numbers()[3])


@pytest.mark.parametrize("fault", [StageImbalance(), StageImbalance(stage=0), SequenceImbalance(quadratic_share=0.6)])
def test_mending_an_imbalance_keeps_the_work(fault: Fault) -> None:
    """Without noise a mended imbalance has the same seconds of work in each step, and takes less time."""
    healthy = draw_inputs(dataclasses.replace(SMALL, noise=0.0, microbatches=12))
    uneven, even = fault.apply(healthy), fault.mend(healthy)
    assert even.work_s.sum(axis=(0, 2)) == pytest.approx(uneven.work_s.sum(axis=(0, 2)), rel=1e-9)
    assert simulate(even).step_s.mean() < simulate(uneven).step_s.mean()
    forwards = even.work_s[even.programme.is_op(Op.FORWARD)]
    assert forwards.max(axis=(0, 2)) == pytest.approx(forwards.min(axis=(0, 2)))


def test_stage_imbalance_of_one_chunk() -> None:
    """An excess in the last model chunk only leaves the stage's other chunks as they are, and mended keeps the work."""
    healthy = draw_inputs(JobSpec(pp=2, vpp=2, dp=2, microbatches=4, steps=3, noise=0.0))
    fault = StageImbalance(chunk=-1)
    uneven, programme = fault.apply(healthy), healthy.programme
    changed = (uneven.work_s != healthy.work_s).any(axis=(1, 2))
    computes = programme.is_op(Op.FORWARD, Op.BACKWARD)
    assert np.array_equal(changed, computes & (programme.stage == 1) & (programme.chunk == 1))
    assert fault.mend(healthy).work_s.sum() == pytest.approx(uneven.work_s.sum())


def test_long_microbatch_is_long_on_every_stage_and_in_both_directions() -> None:
    """Sequence imbalance gives a microbatch the same factor on all stages, forward and backward, another in each step."""
    healthy = draw_inputs(SMALL)
    changed = SequenceImbalance(records_tokens=True).apply(healthy)
    assert changed.tokens_sq is not None and changed.tokens is not None
    computes = healthy.programme.is_op(Op.FORWARD, Op.BACKWARD)
    factor = changed.work_s[computes] / healthy.work_s[computes]
    number = healthy.programme.microbatch[computes]
    for microbatch in range(SMALL.microbatches):
        of_it = factor[number == microbatch]
        assert of_it == pytest.approx(np.broadcast_to(of_it[:1], of_it.shape))
    assert factor.std(axis=1).min() > 0.01
    assert (changed.tokens == 32768).all()
    assert (changed.tokens_sq <= 32768.0**2).all() and (changed.tokens_sq >= 32768.0).all()


def test_tokens_stand_on_compute_rows_only() -> None:
    """Tokens are recorded where a trace has them: on computes, null elsewhere."""
    frame = generate(SMALL, [SequenceImbalance(records_tokens=True)]).trace.to_pandas()
    compute = frame["optype"].isin(["forward-compute", "backward-compute"])
    assert frame.loc[compute, ["tokens", "tokens_sq"]].notna().all(axis=None)
    assert frame.loc[~compute, ["tokens", "tokens_sq"]].isna().all(axis=None)


def test_rows_of_a_healthy_job() -> None:
    """The table has the columns, narrow types and metadata of a production trace, and every worker every operation."""
    spec = dataclasses.replace(SMALL, tp_size=4)
    trace = generate(spec).trace
    types = {field.name: str(field.type) for field in trace.schema}
    assert types == {
        "dp_rank": "int8",
        "stage": "int8",
        "rank": "int16",
        "step": "int64",
        "optype": "dictionary<values=string, indices=int8, ordered=0>",
        "start_ts": "float",
        "duration": "float",
        "seq_id": "int32",
        "mc": "int8",
        "mb_id": "int8",
        "gmc": "int16",
    }
    job = json.loads(trace.schema.metadata[b"diagnose.job"])
    assert (job["dp_size"], job["pp_size"], job["tp_size"], job["world_size"]) == (3, 3, 4, 36)
    frame = trace.to_pandas()
    counts = frame[frame["stage"] == 1].groupby("optype", observed=True).size() / (spec.steps * spec.dp)
    assert counts["forward-compute"] == counts["backward-recv"] == 4
    assert "embedding-grads-all-reduce" not in counts
    assert counts["gc"] == counts["optimizer"] == counts["params-all-gather"] == 1
    assert frame.loc[frame["optype"] == "gc", "duration"].eq(0).all()
    assert sorted(frame["rank"].unique()) == [4 * i for i in range(9)]


def test_workers_are_dealt_to_hosts_by_rank() -> None:
    """With two workers a host, the first two share the first one, and a job without hosts has no such column."""
    spec = JobSpec(pp=2, dp=3, tp_size=2, microbatches=2, steps=2, workers_per_host=2)
    frame = generate(spec).trace.to_pandas()
    found = frame.groupby("host", observed=True)["rank"].unique()
    assert {host: sorted(ranks) for host, ranks in found.items()} == {
        "host-000": [0, 2],
        "host-001": [4, 6],
        "host-002": [8, 10],
    }
    assert "host" not in generate(dataclasses.replace(spec, workers_per_host=0)).trace.column_names


def test_operations_are_counted_by_start() -> None:
    """On every worker `seq_id` counts the operations of a type by start."""
    for p2p in ("blocking", "asynchronous"):
        spec = JobSpec(pp=2, vpp=2, dp=2, microbatches=4, steps=3, p2p=p2p)  # type: ignore[arg-type]
        frame = generate(spec).trace.to_pandas().astype({"optype": str})
        starts = frame.sort_values("seq_id").groupby(["step", "dp_rank", "stage", "optype"])["start_ts"]
        assert starts.apply(lambda s: s.is_monotonic_increasing).all()


def test_jobs_without_data_parallelism_have_no_dp_collectives() -> None:
    """With dp 1 there are no dp collectives unless context parallelism shares gradients out, with pp 1 no transfers."""
    gather = "params-all-gather"

    def types(**sizes: int) -> set[str]:
        return set(generate(JobSpec(dp=1, steps=2, **sizes)).trace.to_pandas()["optype"])

    assert gather not in types(pp=2) and gather in types(pp=2, cp_size=2)
    assert "forward-send" not in types(pp=1) and "embedding-grads-all-reduce" in types(pp=1)


def test_planned_collection_is_one_row() -> None:
    """A collection after the last compute makes the row that stands there longer, and adds none."""
    inputs = draw_inputs(SMALL)
    seconds = np.where(inputs.programme.is_op(Op.GC), 0.5, 0.0)[:, None, None]
    paused = dataclasses.replace(inputs, pauses=(Pause(Op.GC, seconds, "inside", recorded=True),))
    trace, healthy = record(paused, simulate(paused)), generate(SMALL).trace
    frame = trace.to_pandas()
    assert trace.num_rows == healthy.num_rows
    assert frame.loc[frame["optype"] == "gc", "duration"].to_numpy() == pytest.approx(0.5)


def test_pauses_and_tails_are_recorded_as_evidence() -> None:
    """A recorded pause inside an operation, before it, or after the optimizer has a row of its type, counted by start."""
    inputs = draw_inputs(dataclasses.replace(SMALL, noise=0.0))
    forward = inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == 0)
    seconds = np.where(forward, 0.2, 0.0)[:, None, None] * (np.arange(SMALL.steps) == 3)[None, :, None]
    tail_s = np.zeros((3, SMALL.steps, 1))
    tail_s[0, 5] = 2.0
    pauses = (Pause(Op.GC, seconds, "inside", recorded=True), Pause(Op.DATA_LOAD, seconds, "before", recorded=True))
    paused = dataclasses.replace(inputs, pauses=pauses, tail_s=tail_s, tail_kind=Op.CHECKPOINT)
    frame = record(paused, simulate(paused)).to_pandas()
    worker = frame[(frame["dp_rank"] == 0) & (frame["stage"] == 0)]
    collections = worker[(worker["optype"] == "gc") & (worker["step"] == SMALL.step_numbers()[3])].sort_values(
        "start_ts"
    )
    assert collections["seq_id"].tolist() == [0, 1, 2, 3, 4]
    assert collections["duration"].tolist() == pytest.approx([0.2] * 4 + [0.0])
    assert (worker["optype"] == "data-load").sum() == 4
    checkpoints = worker[worker["optype"] == "checkpoint"]
    assert checkpoints["step"].tolist() == [SMALL.step_numbers()[5]]
    assert checkpoints["duration"].tolist() == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({}, WorkerFault(places=((3, 0),))),
        ({}, StageImbalance(stage=3)),
        ({}, dataclasses.replace(WORKER, onset=6)),
        ({"vpp": 2, "microbatches": 4}, None),
        ({"dp": 0}, None),
        ({"forward_s": float("nan")}, None),
        ({"p2p": "eager"}, None),
    ],
)
def test_impossible_jobs_are_refused(spec: dict[str, object], fault: Fault | None) -> None:
    """A size, time or place that the job cannot have is refused with a message, not repaired."""
    with pytest.raises(UsageError):
        generate(dataclasses.replace(SMALL, **spec), [fault] if fault else [])  # type: ignore[arg-type]


def test_a_cause_is_found_by_its_file() -> None:
    """Every file with `draw_fault` is a cause, and draws a fault that says the same name."""
    rng = np.random.default_rng(3)
    roomy = dataclasses.replace(SMALL, p2p="asynchronous", separate=True, microbatches=12)
    for name, draw in list_causes().items():
        strength = {"sequence-imbalance": 0.5}.get(name, 1.5)
        drawn = [draw(spec, rng, strength=strength) for spec in (SMALL, roomy)]
        assert {fault.cause for fault in drawn if fault is not None} == {name}


def test_every_kind_of_a_cause_can_be_asked_for() -> None:
    """A fault that is drawn says which kind it is: the one asked for, or one of its file; an unknown one is refused."""
    roomy = dataclasses.replace(
        SMALL,
        pp=4,
        dp=4,
        vpp=2,
        p2p="asynchronous",
        separate=True,
        microbatches=8,
        steps=16,
        transfer_s=5e-3,
        workers_per_host=2,
    )
    for name, file in list_cause_files().items():
        for kind in file.kinds:
            drawn = [file.draw(spec, np.random.default_rng(5), kind=kind) for spec in (SMALL, roomy)]
            assert {fault.full_kind for fault in drawn if fault is not None} == {f"{name}/{kind}"}
        with pytest.raises(UsageError, match="no kind 'gremlins'"):
            file.draw(roomy, np.random.default_rng(5), kind="gremlins")


def test_choosing_a_kind_draws_nothing_else() -> None:
    """A generator draws the same after a kind was chosen by it; kinds come as often as they are to."""
    kinds = {"rare": 1.0, "usual": 9.0}
    drawn = [choose_kind(kinds, np.random.default_rng(seed)) for seed in range(300)]
    assert 0.05 < drawn.count("rare") / 300 < 0.15
    rng = np.random.default_rng(7)
    choose_kind(kinds, rng)
    assert rng.random() == np.random.default_rng(7).random()


def test_generator_does_not_know_the_replay() -> None:
    """The generator imports of the package only the data types and the errors: it can judge the replay."""
    judges = {"score.py", "prices.py"}  # compare diagnoses with the truth, and make nothing
    for file in Path(diagnose.faults.__path__[0]).glob("*.py"):
        if file.name in judges:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if name.startswith("diagnose"):
                    assert name.split(".")[1] in {"faults", "model", "errors"}, (file.name, name)


def test_command_writes_random_jobs(tmp_path: Path) -> None:
    """`--jobs` writes that many traces, each with its truth, and nothing half-written."""
    result = CliRunner().invoke(main, [str(tmp_path / "jobs"), "--jobs", "2", "--seed", "8"])
    assert result.exit_code == 0, result.output
    names = sorted(p.name for p in (tmp_path / "jobs").iterdir())
    assert names == [f"job-8-0000{i}.{end}" for i in range(2) for end in ("parquet", "truth.json")]
    for trace in (tmp_path / "jobs").glob("*.parquet"):
        truth = json.loads(trace.with_name(trace.name.replace(".parquet", ".truth.json")).read_text())
        metadata = json.loads(pq.read_schema(trace).metadata[b"diagnose.job"])
        assert truth["job_id"] == metadata["job_id"] == trace.stem


def test_command_refuses_an_unknown_cause(tmp_path: Path) -> None:
    """A cause that does not exist is a usage error that lists those that do."""
    result = CliRunner().invoke(main, [str(tmp_path / "x.parquet"), "--cause", "gremlins"])
    assert result.exit_code == 2
    assert "worker-fault" in result.output
    assert not list(tmp_path.iterdir())
