"""Other schedules as a fix: the table of all, the best that the framework has, and refusals with their reasons."""

import dataclasses
from typing import Any

import pytest

from diagnose.errors import UsageError
from diagnose.faults.spec import JobSpec
from diagnose.fixes import schedule
from diagnose.model.change import Reschedule
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from tests.fixes.layered import Layered, measure_layered, run_otherwise, true_step_s
from tests.uneven_layers import UnevenLayers

SPEC = JobSpec(pp=4, dp=2, microbatches=8, steps=10, seed=31)
LAYERS = UnevenLayers(layers=(8,) * 4, last=(1.0, 0.5))


def propose(job: Layered, framework: str | None = None, **settings: str) -> Remedy | Refusal:
    """Ask for a schedule."""
    known = dataclasses.replace(job.analysis.trace.job, framework=framework)
    trace = dataclasses.replace(job.analysis.trace, job=known)
    return schedule.propose(dataclasses.replace(job.analysis, trace=trace), FaultLocation(), settings)


def remedy(job: Layered, framework: str | None = None, **settings: str) -> Remedy:
    """Ask for a schedule that there must be."""
    found = propose(job, framework, **settings)
    assert isinstance(found, Remedy), found
    return found


def test_the_table_has_every_schedule() -> None:
    """Step time, bubble and memory of each; of a healthy job the figures of the textbooks."""
    figures = remedy(measure_layered(SPEC, LAYERS)).figures
    for name in ("1f1b", "gpipe", "zero-bubble", "interleaved_2", "interleaved_4"):
        assert {f"{name}_step_time_s", f"{name}_bubble_share", f"{name}_in_flight_microbatches"} <= set(figures)
    # (pp - 1) / (microbatches + pp - 1) = 27% where all stages are alike; the last is a little longer.
    assert figures["1f1b_bubble_share"] == pytest.approx(0.28, abs=0.03)
    assert figures["1f1b_in_flight_microbatches"] == 4.0 and figures["gpipe_in_flight_microbatches"] == 8.0
    assert figures["zero-bubble_in_flight_microbatches"] == 4.0
    assert figures["interleaved_2_in_flight_microbatches"] == 5.5


@pytest.mark.parametrize(("name", "holds"), [("gpipe", "8 microbatches instead of 4"), ("zero-bubble", "")])
def test_its_words_say_what_changes(name: str, holds: str) -> None:
    """What workers wait in the pipeline, for faults too, which is no bubble; memory only where that is another."""
    found = remedy(measure_layered(SPEC, LAYERS), name=name)
    waits = [100 * (found.figures[f"{of}_bubble_share"] or 0.0) for of in (name, "1f1b")]
    assert (
        f"wait in the pipeline, for faults too, for {waits[0]:.0f}% of the step instead of {waits[1]:.0f}%"
        in found.summary
    )
    assert ("a stage holds" in found.summary) == bool(holds) and found.summary.endswith(holds)


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("zero-bubble", 1), ("interleaved", 2)])
def test_each_is_priced_as_it_truly_runs(name: str, chunks: int) -> None:
    """The schedule asked for is predicted within 1% of its simulation."""
    job = measure_layered(SPEC, LAYERS)
    found = remedy(job, name=name, **({"chunks": str(chunks)} if chunks > 1 else {}))
    assert isinstance(found.changes[0], Reschedule) and found.settings["name"] == name
    truth = true_step_s(SPEC, LAYERS) / true_step_s(*run_otherwise(SPEC, LAYERS, name, chunks))
    assert job.price() / job.price(*found.changes) == pytest.approx(truth, rel=0.01)


def test_frameworks_get_what_they_have() -> None:
    """Megatron-LM interleaves, DeepSpeed has 1F1B alone, torchtitan has all."""
    job = measure_layered(SPEC, LAYERS)
    found = remedy(job, "Megatron-LM core 0.12")
    assert found.settings["name"] == "interleaved" and "--num-layers-per-virtual-pipeline-stage" in found.how
    refused = propose(job, "DeepSpeed")
    assert isinstance(refused, Refusal) and "no schedule that the framework has" in refused.reason
    assert "pipeline_parallel_schedule" in remedy(job, "torchtitan").how
    assert "Megatron" not in remedy(job, "torchtitan").how


def test_an_interleaved_job_may_go_back() -> None:
    """1F1B of an interleaved job holds less and takes longer, by as much as the simulation says."""
    spec = dataclasses.replace(SPEC, vpp=2)
    fault = UnevenLayers(layers=(4,) * 8, last=(1.0, 0.5))
    job = measure_layered(spec, fault)
    found = remedy(job, name="1f1b")
    truth = true_step_s(spec, fault) / true_step_s(*run_otherwise(spec, fault, "1f1b", 1))
    assert job.price() / job.price(*found.changes) == pytest.approx(truth, rel=0.01)
    assert truth < 1.0


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
@pytest.mark.parametrize("now", ["zero-bubble", "zb-h2"])
def test_a_zero_bubble_job_is_priced_under_others(now: Any, name: str, chunks: int) -> None:
    """Its backwards become whole again; with more chunks the gradients of weights move with the layers."""
    spec = dataclasses.replace(SPEC, schedule=now)
    job = measure_layered(spec, LAYERS)
    found = remedy(job, name=name, **({"chunks": str(chunks)} if chunks > 1 else {}))
    truth = true_step_s(spec, LAYERS) / true_step_s(*run_otherwise(spec, LAYERS, name, chunks))
    assert job.price() / job.price(*found.changes) == pytest.approx(truth, rel=0.01)


#: Schedules with the chunks they run in these tests.
CHUNKS = {"1f1b": 1, "interleaved": 2, "gpipe": 1, "zero-bubble": 1, "zb-v": 2, "dualpipev": 2}
#: Jobs have them, and would run the others.
V_PAIRS = [(now, other) for now in CHUNKS for other in CHUNKS if now != other and {now, other} & {"zb-v", "dualpipev"}]


@pytest.mark.parametrize(("now", "other"), V_PAIRS)
def test_v_placements_are_priced_from_and_to_each_other(now: str, other: str) -> None:
    """The step under another schedule is the simulated one, within half a percent, the ends of the model unlike the rest."""
    schedule: Any = "1f1b" if now == "interleaved" else now
    chunks = CHUNKS[now]
    spec = JobSpec(
        pp=4, vpp=chunks, dp=2, microbatches=12, steps=4, noise=0.03, seed=9, p2p="asynchronous", schedule=schedule
    )
    layers = UnevenLayers(layers=(8 // chunks,) * (4 * chunks), last=(1.0, 0.5))
    job = measure_layered(spec, layers)
    settings = {"name": other} | ({"chunks": "2"} if other == "interleaved" else {})
    found = remedy(job, **settings, **({"overlap_cost": str(spec.overlap_cost)} if other == "dualpipev" else {}))
    truth = true_step_s(*run_otherwise(spec, layers, other, CHUNKS[other]))
    assert job.price(*found.changes) == pytest.approx(truth, rel=0.005)


@pytest.mark.parametrize("now", ["zb-v", "dualpipev"])
def test_a_v_is_known_by_its_order(now: Any) -> None:
    """A job that runs one V is told what others would give, not to run what it runs."""
    job = measure_layered(
        JobSpec(pp=4, vpp=2, dp=2, microbatches=12, steps=4, seed=9, schedule=now), UnevenLayers(layers=(2,) * 8)
    )
    refused = propose(job, name=now)
    assert isinstance(refused, Refusal) and "already" in refused.reason
    figures = remedy(job, name="1f1b").figures
    assert {f"{name}_step_time_s" for name in ("1f1b", "gpipe", "zero-bubble", "zb-v", "dualpipev")} <= set(figures)


def test_what_runs_together_takes_no_longer_than_one_after_the_other() -> None:
    """DualPipeV is priced as PyTorch runs it, until somebody says what overlapping costs."""
    job = measure_layered(dataclasses.replace(SPEC, p2p="asynchronous"), LAYERS)
    apart = job.price(*remedy(job, name="dualpipev").changes)
    free, dear = (job.price(*remedy(job, name="dualpipev", overlap_cost=cost).changes) for cost in ("1", "2"))
    assert free < 0.9 * apart and dear > apart


def test_a_gpipe_job_is_known_by_its_order() -> None:
    """A job that runs GPipe is told to run something else, not GPipe."""
    spec = dataclasses.replace(SPEC, schedule="gpipe")
    job = measure_layered(spec, LAYERS)
    refused = propose(job, name="gpipe")
    assert isinstance(refused, Refusal) and "already" in refused.reason
    found = remedy(job, name="1f1b")
    truth = true_step_s(spec, LAYERS) / true_step_s(SPEC, LAYERS)
    assert job.price() / job.price(*found.changes) == pytest.approx(truth, rel=0.01)
    assert found.figures["1f1b_in_flight_microbatches"] == 4.0


REFUSALS: dict[str, tuple[JobSpec, UnevenLayers, dict[str, str], str]] = {
    "one stage": (JobSpec(pp=1, dp=4, seed=3), UnevenLayers(layers=(6,)), {}, "one pipeline stage"),
    "present": (SPEC, LAYERS, {"name": "1f1b"}, "runs 1f1b already"),
    "odd microbatches": (dataclasses.replace(SPEC, microbatches=6), LAYERS, {"name": "interleaved"}, "multiple of 4"),
    "odd layers": (
        SPEC,
        UnevenLayers(layers=(9,) * 4),
        {"name": "interleaved", "chunks": "2"},
        "36 layers cannot be split",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_why(name: str) -> None:
    """What cannot run, or runs already, is refused with its reason."""
    spec, fault, settings, why = REFUSALS[name]
    found = propose(measure_layered(spec, fault), **settings)
    assert isinstance(found, Refusal) and why in found.reason, found


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"name": "dualpipe"}, "expected one of 1f1b, interleaved"),
        ({"chunks": "two"}, "expected a whole number"),
        ({"weight_share": "1.5"}, "expected a number from 0 to 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, str], why: str) -> None:
    """Bad settings are errors of the user, with what was expected."""
    with pytest.raises(UsageError, match=why):
        propose(measure_layered(SPEC, LAYERS), **settings)
