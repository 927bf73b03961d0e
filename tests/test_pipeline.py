"""The pipeline as a whole: its stages, its options, and what holds for every diagnosis that it makes."""

import dataclasses
import json
import math

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from diagnose.errors import TraceError
from diagnose.faults.generate import draw_job, generate, random_faults
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis import Diagnosis
from diagnose.report.json_lines import render
from diagnose.report.schemas import make_schema
from diagnose.report.terminal import render as render_terminal
from diagnose.whatif.scenarios import leave_out_unordered
from tests.jobs import Shape, load, random_job, to_table
from tests.judge.cases import built_in, diagnose_table, diagnosed, make, measure
from tests.judge.test_budget import assert_adds_up

SPEC = JobSpec(pp=2, dp=4, microbatches=4, steps=10, seed=71)
SLOW = WorkerFault(places=((3, 1),), slowdown=2.0, onset=5)
SEEDS = range(40)
SCHEMA = jsonschema.Draft202012Validator(make_schema("diagnosis"))


def assert_holds(found: Diagnosis) -> None:
    """Check what holds for every diagnosis."""
    SCHEMA.validate(json.loads(render(found)))
    assert (found.verdict == "straggling") == bool(found.causes)
    assert (found.ledger is None) == (not found.causes)
    assert sorted([*found.checked, *(entry.cause for entry in found.not_checked)]) == [
        rule.id for rule in built_in().rules
    ]
    for name, value in found.features.items():
        assert value is None or math.isfinite(value), name
    if found.ledger is not None:
        assert sum(found.ledger.causes.values()) + found.ledger.unexplained == pytest.approx(1.0)
        assert set(found.ledger.components) <= set(COMPONENTS)
    shares = [cause.share or 0.0 for cause in found.causes]
    assert shares == sorted(shares, reverse=True)
    labels = {(int(dp), int(stage)) for dp in found.dp_labels for stage in found.stage_labels}
    steps = set(found.what_if.steps.tolist())
    for cause in found.causes:
        assert {(worker.dp, worker.pp) for worker in cause.where.workers} <= labels
        assert set(cause.where.stages) <= set(found.stage_labels.tolist())
        assert cause.when.onset_step is None or cause.when.onset_step in steps
        assert 0.0 <= cause.confidence <= 1.0


@pytest.mark.parametrize("seeds", [SEEDS[i : i + 4] for i in range(0, 40, 4)], ids=str)
def test_what_holds_for_every_diagnosis(seeds: range) -> None:
    """Of random jobs of all worlds, with faults and decoys, each diagnosis is valid, adds up, and speaks of workers that exist."""
    for seed in seeds:
        spec, faults, decoys = draw_job(23, seed)
        if seed % 4 == 3:  # others beside them, of the same causes too
            faults += random_faults(spec, np.random.default_rng([7, seed]))
        found = measure(generate(spec, faults, decoys).trace).diagnosis
        assert_holds(found)
        assert found.budget is not None
        assert_adds_up(found.budget)
        assert found.job.job_id in render_terminal(found, width=100, color=False)


def test_progress_tells_each_stage_once() -> None:
    """Whoever watches hears every stage, in the order of the data, and a diagnosis does not depend on it."""
    told: list[str] = []
    found = diagnose_table(make(SPEC, SLOW).trace, progress=told.append)
    assert told[0] == "reading"
    assert len(told) == len(set(told)) >= 4
    assert render(found) == render(diagnosed(SPEC, SLOW))


def test_steps_can_be_picked() -> None:
    """Only the steps asked for are analysed: without those in which the worker is slow, the job is healthy."""
    numbers, table = SPEC.step_numbers(), make(SPEC, SLOW).trace
    before = diagnose_table(table, steps=numbers[:5])
    after = diagnose_table(table, steps=numbers[5:])
    assert before.what_if.steps.tolist() == numbers[:5].tolist()
    assert before.verdict == "healthy"
    assert [cause.cause for cause in after.causes] == ["worker-fault"]
    assert after.causes[0].when.pattern == "constant"
    assert diagnosed(SPEC, SLOW).causes[0].when.onset_step == int(numbers[5])


def test_steps_that_are_not_there_are_refused() -> None:
    """Asking for steps that the trace does not have is an error that says so."""
    with pytest.raises(TraceError):
        diagnose_table(make(SPEC).trace, steps=np.array([999_999]))


def test_the_cost_in_gpu_hours() -> None:
    """GPU hours are recorded step time x steps x GPUs, and the wasted part is what lies above the clean step."""
    spec = JobSpec(pp=2, dp=4, microbatches=4, steps=10, tp_size=4, cp_size=2, seed=71)
    found = diagnosed(spec, SLOW)
    assert found.job.world_size == 2 * 4 * 4 * 2
    hours = found.step_time.recorded * spec.steps * found.job.world_size / 3600.0
    assert found.gpu_hours_analysed == pytest.approx(hours)
    assert found.gpu_hours_wasted == pytest.approx(hours * (1.0 - found.step_time.clean / found.step_time.recorded))


def test_the_numbers_of_a_diagnosis_are_one_story() -> None:
    """Step times, slowdown and fidelity follow from each other."""
    found = diagnosed(SPEC, SLOW)
    w = found.what_if
    assert found.step_time.simulated / found.step_time.ideal == pytest.approx(w.slowdown)
    assert found.step_time.recorded == pytest.approx(float(w.recorded_s.mean()))
    assert found.features["slowdown"] == w.slowdown
    assert found.features["gain.worker"] == found.causes[0].recoverable
    assert found.made_by.rules == built_in().digest


def test_a_step_in_no_order_is_left_out() -> None:
    """One step of ten whose computes stand in no order of a schedule is left out, and named; where it is all there is, refused."""
    rows = random_job(Shape(n_steps=10, n_dp=1, n_stages=3, n_microbatches=4), 3)
    good = rows[rows.step == sorted(rows.step.unique())[4]].reset_index(drop=True)
    bad = good.copy()
    for op in ("forward-recv", "forward-compute"):
        first, second = bad.index[(bad.stage == 1) & (bad.optype == op)][[0, 2]]
        bad.loc[[first, second], ["start_ts", "duration"]] = good.loc[
            [second, first], ["start_ts", "duration"]
        ].to_numpy()
    rows = pd.concat([(bad if step == 4 else good).assign(step=step) for step in range(10)], ignore_index=True)
    (told,) = [text for text in diagnose_table(to_table(rows)).warnings if text.startswith("left out")]
    assert told.endswith("lost: steps 4")
    trace = load(rows)
    with pytest.raises(TraceError, match="in a circle"):
        leave_out_unordered(dataclasses.replace(trace, blocks=trace.blocks[1:]))


@pytest.mark.parametrize(("pp", "dp"), [(1, 8), (2, 4)])
def test_reductions_that_begin_within_the_last_backward_are_launched_in_time(pp: int, dp: int) -> None:
    """Half of the last backward is over when its first gradients are summed: no job is slow for that."""
    table = make(JobSpec(pp=pp, dp=dp, microbatches=4, steps=12, clip="all", seed=1)).trace.to_pandas()
    earlier_s = 0.5 * table.duration[table.optype == "backward-compute"].median()
    reduces = table.optype == "grads-reduce-scatter"
    table.loc[reduces, "start_ts"] -= earlier_s
    table.loc[reduces, "duration"] += earlier_s
    found = diagnose_table(pa.Table.from_pandas(table, preserve_index=False))
    assert found.verdict == "healthy"
    assert (found.features["gain.launch-delay"] or 0.0) < 0.005


@pytest.mark.parametrize(("pp", "dp"), [(1, 8), (4, 4)])
def test_buckets_of_gradients_may_differ_in_size(pp: int, dp: int) -> None:
    """The last of four reductions takes five times as long as the others, on all stages: no group is slow for that."""
    spec = JobSpec(pp=pp, dp=dp, microbatches=4, steps=12, clip="all", collective_s=0.05, seed=1)
    table = make(spec).trace.to_pandas()
    backward_s = table.duration[table.optype == "backward-compute"].median()
    last = table[table.optype == "grads-reduce-scatter"].assign(seq_id=3)
    buckets = [
        last.assign(seq_id=2 - i, start_ts=last.start_ts - (i + 1) * 0.5 * backward_s, duration=0.2 * backward_s)
        for i in range(3)
    ]
    table = pd.concat([table[table.optype != "grads-reduce-scatter"], last, *buckets])
    found = diagnose_table(pa.Table.from_pandas(table, preserve_index=False))
    assert not found.causes


def test_parameters_gathered_for_each_forward_and_backward() -> None:
    """As sharded jobs do: each compute waits for a gather, each gather and reduction for all ranks. One rank is slow."""
    rng = np.random.default_rng(5)
    n_dp, pace = 6, np.where(np.arange(6) == 4, 1.5, 1.0)
    parts = []

    def add(step: int, name: str, seq: int, begin_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
        lanes = {"step": step, "dp_rank": np.arange(n_dp), "stage": 0, "optype": name, "seq_id": seq}
        parts.append(pd.DataFrame(lanes | {"start_ts": begin_s, "duration": end_s - begin_s}))
        return end_s + 1e-5

    def meet(step: int, name: str, seq: int, begin_s: np.ndarray) -> np.ndarray:
        return add(step, name, seq, begin_s, np.full(n_dp, begin_s.max() + 0.02 * rng.lognormal(0.0, 0.05)))

    for step in range(16):
        now_s = np.zeros(n_dp)
        for microbatch in range(3):
            for i, (name, took_s) in enumerate((("forward-compute", 0.1), ("backward-compute", 0.2))):
                now_s = meet(step, "params-all-gather", 2 * microbatch + i, now_s)
                now_s = add(step, name, microbatch, now_s, now_s + took_s * pace * rng.lognormal(0.0, 0.01, n_dp))
            now_s = meet(step, "grads-reduce-scatter", microbatch, now_s)
        add(step, "optimizer", 0, now_s, now_s + 0.01)
    found = diagnose_table(pa.Table.from_pandas(pd.concat(parts), preserve_index=False))
    assert found.fidelity.replay_error < 0.005
    (worker,) = found.causes
    assert (worker.cause, [(place.dp, place.pp) for place in worker.where.workers]) == ("worker-fault", [(4, 0)])
    assert worker.recoverable == pytest.approx(0.28, abs=0.03)


def test_a_lone_rank_that_gathers_parameters() -> None:
    """With one rank nobody replays its collectives, and nothing comes after them: the job is diagnosed all the same."""
    trace = generate(JobSpec(pp=4, dp=1, steps=12), []).trace
    rows = trace.to_pandas().astype({"optype": str})
    rows = rows[~rows["optype"].isin(["optimizer", "optimizer-clip-main-grad", "embedding-grads-all-reduce", "gc"])]
    rows["optype"] = rows["optype"].replace("layernorm-grads-all-reduce", "params-all-gather")
    table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(trace.schema.metadata)
    assert diagnose_table(table).verdict == "healthy"
