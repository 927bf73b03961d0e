"""The best layout in whole layers: the one that exhaustive replay finds, with the gain that truly moving the layers gives."""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.fixes import repartition_stages
from diagnose.fixes.assign import even_out, find_layout
from diagnose.fixes.layers import LayerModel, model_layers
from diagnose.model.change import Reschedule, Work
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from tests.fixes.layered import Layered, draw_layered, look, measure_layered, true_step_s
from tests.uneven_layers import UnevenLayers

ST = Path(__file__).parents[3] / "shared" / "artifact" / "trace-ST.parquet"
SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=10, seed=21)
LONG_LAST = UnevenLayers(layers=(6, 6, 6, 6), last=(3.0, 2.0))


@cache
def production() -> Layered:
    """Measure the production job with the long last stage."""
    if not ST.exists():
        pytest.skip(f"{ST} is not there")
    return look(ST)


def propose(job: Layered, **settings: str) -> Remedy | Refusal:
    """Ask for a layout."""
    return repartition_stages.propose(job.analysis, FaultLocation(), settings)


def remedy(job: Layered, **settings: str) -> Remedy:
    """Ask for a layout that there must be."""
    found = propose(job, **settings)
    assert isinstance(found, Remedy), found
    return found


def layout_of(found: Remedy) -> tuple[int, ...]:
    """Read the layout."""
    return tuple(map(int, found.settings["layout"].split("/")))


def layouts(total: int, n: int) -> Iterator[tuple[int, ...]]:
    """List all layouts of so many layers with at least one on each of n stages."""
    for cuts in itertools.combinations(range(1, total), n - 1):
        yield tuple(np.diff((0, *cuts, total)).tolist())


def model_of(job: Layered, **settings: str) -> LayerModel:
    """Model the layers of a job."""
    model = model_layers(job.analysis, settings, "repartition-stages")
    assert isinstance(model, LayerModel)
    return model


@pytest.mark.parametrize("layers", ["16", pytest.param("32", marks=pytest.mark.long)])
def test_production_job_gets_the_best_of_all_layouts(layers: str) -> None:
    """On ST no layout replayed is faster, with a twentieth of the replays, and the search says that it is sure."""
    job = production()
    found = remedy(job, layers=layers)
    model = model_of(job, layers=layers)
    priced = {layout: job.price(*model.change(layout)) for layout in layouts(int(layers), 4)}
    assert job.price(*found.changes) == pytest.approx(min(priced.values()), rel=1e-12)
    assert priced[layout_of(found)] == min(priced.values())
    assert found.figures["proven"] == 1.0
    n_replays = found.figures["n_replays"]
    assert n_replays is not None and n_replays < len(priced) / 10
    print(layout_of(found), {k: v and round(v, 4) for k, v in found.figures.items()})


def test_production_job_says_what_it_takes_for_granted() -> None:
    """ST's metadata know no layers: their number is assumed and said; gain, bound and flags are in the remedy."""
    found = remedy(production())
    assert any("taken as 32, 8 on each stage now" in text for text in found.assumptions)
    assert "--pipeline-model-parallel-layout" in found.how and "SplitPoint.BEGINNING" in found.how
    assert found.figures["gain_share"] == pytest.approx(0.163, abs=0.005)
    # With as many microbatches as stages a shorter last stage is better than equal ones.
    ratio = found.figures["part_of_bound_ratio"]
    assert ratio is not None and ratio > 1.0


@pytest.mark.parametrize(("microbatches", "beats"), [(4, True), (8, False)])
def test_a_layout_that_beats_even_stages_says_why(microbatches: int, *, beats: bool) -> None:
    """What it promises is less than the step time without uneven stages, which the report has as that without faults."""
    found = remedy(measure_layered(dataclasses.replace(SPEC, microbatches=microbatches), LONG_LAST))
    ratio = found.figures["part_of_bound_ratio"]
    assert ratio is not None and (ratio > 1.0) == beats
    assert found.summary.endswith("layers on the stages" + repartition_stages.BEATS_EVEN * beats)


def test_known_layers_are_found_again() -> None:
    """Layer times and what the ends compute beside them are those of the generator."""
    model = model_of(measure_layered(SPEC, LONG_LAST))
    assert model.known and not model.assumptions
    assert model.layer_s == pytest.approx(np.array([0.05, 0.05 * 1.8]) / 6, rel=0.01)
    assert model.extra_s[:, 1] / model.layer_s == pytest.approx([3.0, 2.0], abs=0.15)
    assert model.extra_s[:, 0] / model.layer_s == pytest.approx([0.0, 0.0], abs=0.1)


def test_the_layout_given_is_priced() -> None:
    """A user's own layout is not searched for."""
    found = remedy(measure_layered(SPEC, LONG_LAST), layout="7/6/6/5")
    assert found.summary.startswith("move 1 layer: 1 off stage 3; 1 to stage 0")
    assert found.figures["n_replays"] == 1.0 and found.figures["left_to_gain_at_most_share"] is None


def test_most_limits_what_a_stage_holds() -> None:
    """No virtual stage gets more layers than memory allows."""
    job = measure_layered(SPEC, LONG_LAST)
    free, bound = remedy(job), remedy(job, most="7")
    assert max(layout_of(bound)) == 7
    assert job.price(*bound.changes) >= job.price(*free.changes)
    model = model_of(job)
    best = min(job.price(*model.change(n)) for n in layouts(24, 4) if max(n) <= 7)
    assert job.price(*bound.changes) == pytest.approx(best, rel=2e-5)


@pytest.mark.parametrize("stall_s", [0.1, 0.4])
def test_a_slow_link_moves_no_layers(stall_s: float) -> None:
    """The layout is that of the job with sound links, however slow one is: no stage gets less to do so as to hide it."""
    link = NetworkFault(scope="link", stage=1, stall_s=stall_s)
    sound, slow = measure_layered(SPEC, LONG_LAST), measure_layered(SPEC, LONG_LAST, link)
    assert slow.price() > 1.1 * sound.price()
    assert layout_of(remedy(slow)) == layout_of(remedy(sound))
    assert any("after all other faults are mended" in text for text in remedy(slow).assumptions)


def test_interleaved_jobs_keep_their_chunks() -> None:
    """Layers are laid out over virtual stages, as good as all layouts within one layer of the best."""
    spec = dataclasses.replace(SPEC, pp=2, vpp=2)
    job = measure_layered(spec, UnevenLayers(layers=(4, 4, 4, 4), last=(2.0, 2.0)))
    found = remedy(job)
    assert isinstance(found.changes[0], Work)
    model = model_of(job)
    assert job.price(*found.changes) <= min(job.price(*model.change(n)) for n in layouts(16, 4)) * (1 + 2e-5)


def test_more_chunks_may_be_asked_for() -> None:
    """Interleaving and layout together: at least as good as the even split over as many chunks."""
    job = measure_layered(SPEC, LONG_LAST)
    found = remedy(job, chunks="2")
    assert isinstance(found.changes[0], Reschedule) and found.settings["chunks"] == "2"
    even = model_of(job).change((3,) * 8)
    assert job.price(*found.changes) <= job.price(*even)
    fault = dataclasses.replace(LONG_LAST, layers=layout_of(found))
    truth = true_step_s(SPEC, LONG_LAST) / true_step_s(
        dataclasses.replace(SPEC, vpp=2, forward_s=SPEC.forward_s / 2), fault
    )
    assert job.price() / job.price(*found.changes) == pytest.approx(truth, rel=0.01)


REFUSALS: dict[str, tuple[JobSpec, UnevenLayers, dict[str, str], str]] = {
    "even": (SPEC, UnevenLayers(layers=(6,) * 4), {}, "no imbalance to move"),
    "coarse": (
        dataclasses.replace(SPEC, pp=2),
        UnevenLayers(layers=(2, 2), last=(0.6, 0.6)),
        {},
        "whole layers are too coarse to even it out: no other layout in whole layers is 0.5% faster than the present 2/2",
    ),
    "one stage": (JobSpec(pp=1, dp=4, seed=3), UnevenLayers(layers=(6,)), {}, "one pipeline stage"),
    "too few": (SPEC, LONG_LAST, {"chunks": "2", "layers": "4"}, "cannot hold 4"),
    "too many": (SPEC, LONG_LAST, {"most": "5"}, "cannot hold 24"),
    "other stages": (SPEC, LONG_LAST, {"layers": "8/8/8"}, "has 3 numbers; expected one for each of the 4"),
    "odd microbatches": (dataclasses.replace(SPEC, microbatches=6), LONG_LAST, {"chunks": "2"}, "multiple of 4"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_why(name: str) -> None:
    """What cannot be done, or does not help, is refused with its reason."""
    spec, fault, settings, why = REFUSALS[name]
    found = propose(measure_layered(spec, fault), **settings)
    assert isinstance(found, Refusal) and why in found.reason, found


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"layers": "many"}, "expected a number of layers"),
        ({"layout": "9/9/9"}, "expected 4 numbers, 24 layers together"),
        ({"layout": "9/9/9/9"}, "expected 4 numbers, 24 layers together"),
        ({"least": "-1"}, "expected a whole number"),
        ({"chunks": "0"}, "expected a whole number from 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, str], why: str) -> None:
    """Bad settings are errors of the user, with what was expected."""
    with pytest.raises(UsageError, match=why):
        propose(measure_layered(SPEC, LONG_LAST), **settings)


def test_metadata_of_another_job_is_refused() -> None:
    """Layers for another number of stages are not guessed at."""
    job = measure_layered(SPEC, LONG_LAST)
    other = dataclasses.replace(job.analysis.trace.job, layers_per_stage=(6, 6, 6))
    trace = dataclasses.replace(job.analysis.trace, job=other)
    found = repartition_stages.propose(dataclasses.replace(job.analysis, trace=trace), FaultLocation(), {})
    assert isinstance(found, Refusal) and "layers_per_stage of the metadata has 3 numbers" in found.reason


@pytest.mark.parametrize("seed", range(12))
def test_search_finds_the_best_of_random_convex_prices(seed: int) -> None:
    """Of a maximum of random linear functions the search gives the best layout of all, or says how far off it may be."""
    rng = np.random.default_rng(seed)
    n, total = int(rng.integers(2, 6)), int(rng.integers(8, 15))
    paths: Any = rng.uniform(0.0, 1.0, (40, 3, n))

    def price(layout: Any) -> float:
        return float((paths @ np.asarray(layout) + 5.0).max(axis=1).mean())

    found = find_layout(price, [even_out(np.asarray, n, total, (1, total))], limits=(1, total), max_replays=400)
    best = min(map(price, layouts(total, n)))
    assert found.floor_s <= best
    assert found.price_s <= best * (1.0 + 1.1e-5)
    assert found.proven


def errors_of(jobs: range) -> list[float]:
    """Compare predicted speedups of the layouts found with the truth of running them."""
    errors = []
    for i in jobs:
        spec, fault = draw_layered(i)
        job = measure_layered(spec, fault)
        found = propose(job)
        if isinstance(found, Remedy):
            moved = dataclasses.replace(fault, layers=layout_of(found))
            truth = true_step_s(spec, fault) / true_step_s(spec, moved)
            errors.append(abs(job.price() / job.price(*found.changes) / truth - 1.0))
    return errors


@pytest.mark.parametrize(("n_jobs", "gain"), [(20, 8), pytest.param(120, 50, marks=pytest.mark.benchmark)])
def test_speedups_are_those_of_truly_moving_layers(n_jobs: int, gain: int) -> None:
    """On generated jobs the predicted speedup is that of the simulation; prints what it measures."""
    errors = errors_of(range(n_jobs))
    print("repartition", len(errors), "median, 90%, worst:", np.quantile(errors, [0.5, 0.9, 1.0]).round(5))
    assert len(errors) >= gain
    assert np.median(errors) <= 0.01 and np.quantile(errors, 0.9) <= 0.03


def test_of_layouts_that_are_as_good_the_nearest_is_taken() -> None:
    """GIVEN a last stage that is too long, and others that hardly matter, THEN no layers move between those."""
    found = find_layout(
        lambda layout: max(layout[3], 5.0) + 1e-3 * abs(layout[0] - 14.0),
        [(8, 8, 8, 8), (9, 9, 9, 5)],
        limits=(1, 32),
        max_replays=200,
    )
    assert found.layout == (9, 9, 9, 5)
