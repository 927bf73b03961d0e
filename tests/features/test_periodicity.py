"""When time is lost at the borders between steps: its period, whether rows explain it, and which steps are slow as a whole."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from diagnose.features.periodicity import (
    LOADER_CHANCE,
    ONCE_CHANCE,
    PLANNED_CHANCE,
    STAGES_CHANCE,
    STOP_CHANCE,
    measure_periodicity,
)
from diagnose.model.feature import Features
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.numerics.period import find_period, find_train
from tests.features.hand import N_STEPS, components, evidence, gains, stalled

#: A checkpoint's rule asks for about so much regularity.
REGULAR = 0.8


def every(period: int, *, first: int = 0, seconds: float = 4.0) -> list[float]:
    """Lose seconds in every so manieth step."""
    return [seconds if i >= first and (i - first) % period == 0 else 0.0 for i in range(N_STEPS)]


def sampled(seed: int, n_runs: int = 8) -> np.ndarray:
    """Draw step numbers as production traces have them: runs of 2 to 8 steps with gaps of 15 to 200."""
    rng = np.random.default_rng([seed, 1])
    numbers: list[int] = []
    start = 16
    for _ in range(n_runs):
        run = int(rng.integers(2, 9))
        numbers += range(start, start + run)
        start += run + int(rng.integers(15, 200))
    return np.array(numbers)


def lost(seconds: dict[str, list[float]], *rows: tuple[Op, int], row_s: float = 8.0) -> Features:
    """Measure what is lost at the borders of steps, with evidence rows of some length or without."""
    return measure_periodicity(components(), gains(seconds), evidence(rows, seconds=row_s))


# ------------------------------------------------------------------------------------------ find_period


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("period", [3, 5, 7])
def test_a_period_is_found_in_sampled_steps(seed: int, period: int) -> None:
    """Where every so manieth step is hit, the period found has all hits and no other sampled step on it."""
    steps = sampled(seed, n_runs=16)
    hits = steps % period == 2
    found, regularity, _ = find_period(steps, hits)
    assert regularity == 1.0
    assert found % period == 0
    phase = steps[hits][0] % found
    inside = (steps >= steps[hits][0]) & (steps <= steps[hits][-1])
    np.testing.assert_array_equal(hits[inside], steps[inside] % found == phase)


@pytest.mark.parametrize("period", [2, 3, 5, 9])
def test_a_whole_trace_has_the_period_itself(period: int) -> None:
    """With no step left out, the period is the one, and no multiple of it."""
    steps = np.arange(50, 90)
    assert find_period(steps, steps % period == 1)[:2] == (period, 1.0)


def test_the_more_hits_the_less_it_is_chance() -> None:
    """Two hits are on one period by chance, ten are not."""
    steps = np.arange(60)
    chances = [find_period(steps[: 6 * n], steps[: 6 * n] % 6 == 0)[2] for n in (2, 3, 5, 10)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.1
    assert chances[-1] < 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_hits_at_random_have_no_period(seed: int) -> None:
    """Of 60 steps hit with a chance of 0.3 no period explains most."""
    hits = np.random.default_rng([seed, 2]).random(60) < 0.3
    assert find_period(np.arange(60), hits)[1] < REGULAR


@pytest.mark.parametrize("n_hits", [0, 1])
def test_nothing_and_once_have_no_period(n_hits: int) -> None:
    """Without two hits there is no period, and nothing is said against chance."""
    hits = np.arange(20) == (7 if n_hits else -1)
    assert find_period(np.arange(20), hits) == (1, 0.0, 1.0)


def test_one_hit_beside_the_period_costs_little() -> None:
    """Nine hits on a period of 5 and one beside it: the period is 5, nine tenths regular."""
    hits = (np.arange(45) % 5 == 0) | (np.arange(45) == 17)
    period, regularity, _ = find_period(np.arange(45), hits)
    assert period == 5
    assert regularity == pytest.approx(0.9)


# ------------------------------------------------------------------------------------------ borders between steps


@pytest.mark.parametrize("component", ["start-delay", "end-delay", "between-steps"])
def test_regular_stalls_have_a_period(component: str) -> None:
    """Steps 0, 3, 6 and 9 lose time, wherever at their borders: the period is 3, and all hits lie on it."""
    found = lost({component: every(3)})
    assert found["stall.period_steps"].value == 3.0
    assert found["stall.regularity"].value == 1.0


def test_the_end_of_a_step_and_the_start_of_the_next_are_one_border() -> None:
    """Of a save that ends one step late and starts the next one late, 4 s each, every 4 steps, nothing is counted twice."""
    found = lost({"end-delay": every(4, first=3), "start-delay": every(4, first=4)})
    assert found["stall.period_steps"].value == 4.0
    assert found["stall.regularity"].value == 1.0
    assert found["stall.size_ratio"].value == pytest.approx(8.0 / 10.0)
    assert found["stall.steps_share"].value == pytest.approx(2 / 10)


def test_irregular_stalls_have_none_to_speak_of() -> None:
    """Steps 0, 2, 5 and 9 are 2, 3 and 4 apart: no distance is the multiple of another often enough to be called regular."""
    regularity = lost({"start-delay": [4.0 if i in (0, 2, 5, 9) else 0.0 for i in range(N_STEPS)]})["stall.regularity"]
    assert regularity.value is not None
    assert regularity.value < REGULAR


def test_what_happened_once_has_no_period_and_is_not_irregular() -> None:
    """A single stall has a missing period, with the reason, and nothing speaks against its being regular."""
    found = lost({"start-delay": every(99, first=4)})
    assert found["stall.period_steps"].value is None
    assert "once" in found["stall.period_steps"].reason
    assert found["stall.regularity"].value == 1.0
    assert found["stall.chance"].value == 1.0


def test_what_happened_once_where_the_recording_begins_may_be_anything() -> None:
    """A single stall at the start of the first step says nothing of a period; a second one, on any step, does."""
    found = lost({"start-delay": every(99)})["stall.regularity"]
    assert found.value is None
    assert "first step recorded" in found.reason
    assert lost({"start-delay": every(6)})["stall.regularity"].value == 1.0


def test_every_step_is_all_steps() -> None:
    """What every step loses is lost at all borders."""
    assert lost({"start-delay": every(1)})["stall.steps_share"].value == 1.0


def test_small_stalls_beside_long_ones_do_not_count() -> None:
    """A tenth of a second at other borders changes neither period nor share."""
    little = [seconds or 0.1 for seconds in every(3)]
    whole, found = lost({"start-delay": every(3)}), lost({"start-delay": little})
    for name in ("period_steps", "regularity", "steps_share"):
        assert found[f"stall.{name}"] == whole[f"stall.{name}"]


def test_checkpoint_rows_explain_their_steps_and_the_next() -> None:
    """Of 4 s lost right after a checkpoint row and 4 s lost elsewhere half is explained."""
    seconds = {"start-delay": [4.0 if i in (3, 8) else 0.0 for i in range(N_STEPS)]}
    for row in (102, 103):
        assert lost(seconds, (Op.CHECKPOINT, row))["stall.checkpoint_share"].value == pytest.approx(0.5)


@pytest.mark.parametrize(("row_s", "share"), [(4.0, 1.0), (2.0, 1.0), (0.1, 0.05)])
def test_a_short_save_does_not_explain_a_long_stop(row_s: float, share: float) -> None:
    """4 s lost beside a row of as long, or half of it, are the row's; of those beside a tenth of a second a twentieth is."""
    seconds = {"start-delay": [4.0 if i == 3 else 0.0 for i in range(N_STEPS)]}
    found = lost(seconds, (Op.CHECKPOINT, 103), row_s=row_s)
    assert found["stall.checkpoint_share"].value == pytest.approx(share)


def test_without_rows_or_without_lost_time_checkpoints_are_missing() -> None:
    """No checkpoint rows, and rows but nothing lost, are two reasons and not 0."""
    assert "no checkpoint rows" in lost({"start-delay": every(3)})["stall.checkpoint_share"].reason
    assert "costs time" in lost({}, (Op.CHECKPOINT, 102))["stall.checkpoint_share"].reason


def test_nothing_lost_is_nothing_to_measure() -> None:
    """Without lost time everything of stalls is missing, with the reason."""
    found = {name: feature for name, feature in lost({}).items() if name.startswith("stall.")}
    assert len(found) >= 6
    assert all(feature.value is None and "costs time" in feature.reason for feature in found.values())


def test_input_delay_is_no_stall_between_steps() -> None:
    """Time lost before first forwards belongs to input, not to the border of the step."""
    assert lost({"input-delay": every(3)})["stall.period_steps"].value is None


@pytest.mark.parametrize(
    ("seconds", "doubt"),
    [
        ({"start-delay": every(3)}, PLANNED_CHANCE),
        ({"end-delay": every(3)}, 0.0),
        ({"between-steps": every(3), "end-delay": every(3, seconds=3.0)}, PLANNED_CHANCE),
        ({"between-steps": every(3), "end-delay": every(3, seconds=12.0)}, 0.0),
    ],
    ids=["late workers", "late optimizers", "mostly between steps", "a quarter between steps"],
)
def test_what_no_row_calls_a_save_may_be_planned(seconds: dict[str, list[float]], doubt: float) -> None:
    """A stop of all may be a save or an evaluation, unless rows say so; an optimizer is neither evaluation nor log."""
    found = lost(seconds)
    by_loader = found["stall.loader_doubt"].value or 0.0
    assert (by_loader > 0.0) == (set(seconds) != {"end-delay"})
    assert by_loader <= LOADER_CHANCE
    assert found["stall.planned_doubt"].value == pytest.approx(doubt * (1.0 - by_loader))
    assert found["stall.optimizer_doubt"].value == pytest.approx((PLANNED_CHANCE - doubt) * (1.0 - by_loader))
    rows = [(Op.CHECKPOINT, 100 + at) for at in range(0, N_STEPS, 3)]
    told = lost(seconds, *rows)
    for name in ("planned", "optimizer", "loader", "rare"):
        assert told[f"stall.{name}_doubt"].value == 0.0


@pytest.mark.parametrize(
    ("n_stops", "rows", "few", "rank", "doubt"),
    [
        pytest.param(2, (), 0, 0, 0.0, id="twice"),
        pytest.param(1, (), 0, 0, ONCE_CHANCE, id="once"),
        pytest.param(1, (), N_STEPS, 0, 0.0, id="once in few steps"),
        pytest.param(1, (), N_STEPS, 1, ONCE_CHANCE, id="... of a worker that saves for nobody"),
        pytest.param(1, (101,), 0, 0, 0.0, id="rows"),
    ],
)
def test_one_stop_is_as_probably_something_else(
    n_stops: int, rows: Sequence[int], few: int, rank: int, doubt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops all workers once, as a restart, is seen like a save, unless rows say so; what comes again is no restart."""
    monkeypatch.setattr("diagnose.features.periodicity.ONCE_STEPS", (few, few + N_STEPS))
    stops = gains({"start-delay": [4.0 if step in (1, 4)[:n_stops] else 0.0 for step in range(N_STEPS)]})
    stops.blame_s["start-delay"] = np.array([[1.0 - rank], [float(rank)]])
    found = measure_periodicity(
        components(n_stages=1), stops, evidence([(Op.CHECKPOINT, row) for row in rows], seconds=8.0)
    )
    planned, rare, loader = (found[f"stall.{name}_doubt"].value or 0.0 for name in ("planned", "rare", "loader"))
    assert rare == doubt
    assert planned == (0.0 if rows else (1.0 - doubt) * (1.0 - loader) * PLANNED_CHANCE)


@pytest.mark.parametrize(("others", "period"), [((1, 3, 7, 9), 2.0), ((1, 4, 7, 9), None), ((1, 7), None)])
def test_a_long_save_hides_no_others(others: Sequence[int], period: float | None) -> None:
    """Saves five times as long as others are one of several where all keep an interval, and else alone."""
    seconds = [4.0 if step == 5 else 0.8 if step in others else 0.0 for step in range(N_STEPS)]
    assert lost({"start-delay": seconds})["stall.period_steps"].value == period


@pytest.mark.parametrize(("of_first", "by_loader"), [(0.55, 1.0), (0.7, 1.0), (0.8, 0.0), (1.0, 0.5)])
def test_what_only_the_first_rank_does_may_be_planned(of_first: float, by_loader: float) -> None:
    """A stop of the first of two dp ranks alone is a save or a log, a loader's half as often; a little more on it is nothing."""
    stops = gains({"start-delay": every(3)})
    stops.blame_s["start-delay"] = np.array([[of_first], [1.0 - of_first]])
    found = measure_periodicity(components(n_stages=1), stops, evidence())
    loader = LOADER_CHANCE * by_loader
    assert found["stall.loader_doubt"].value == loader
    assert found["stall.planned_doubt"].value == (1.0 - loader) * PLANNED_CHANCE


@pytest.mark.parametrize(
    ("on", "doubt", "by_loader"),
    [
        ([[1.0, 0.6, 0.6], [0.0, 0.0, 0.0]], STAGES_CHANCE, 0.0),
        ([[1.0, 0.1, 0.1], [0.0, 0.0, 0.0]], STAGES_CHANCE, 0.5),
        ([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], STAGES_CHANCE, 0.0),
        ([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], PLANNED_CHANCE, 0.0),
    ],
    ids=["each stage", "the first", "one that reads nothing", "all"],
)
def test_the_first_rank_of_one_of_several_stages_saves(on: list[list[float]], doubt: float, by_loader: float) -> None:
    """One stage alone evaluates nothing: where the first rank of one, or of each, is busy it is rather a save."""
    stops = gains({"start-delay": every(3)})
    stops.blame_s["start-delay"] = np.array(on)
    found = measure_periodicity(components(n_stages=3), stops, evidence())
    loader = LOADER_CHANCE * by_loader
    assert found["stall.loader_doubt"].value == loader
    assert found["stall.planned_doubt"].value == (1.0 - loader) * doubt


@pytest.mark.parametrize(("seconds", "doubt"), [(0.2, PLANNED_CHANCE), (8.0, 0.0)])
def test_saves_whose_rows_are_far_shorter_than_what_is_lost_may_be_something_else(seconds: float, doubt: float) -> None:
    """One worker is late after each save, for twenty times as long as its row: as probably for something else."""
    stops = gains({"start-delay": every(3)})
    stops.blame_s["start-delay"] = np.array([[1.0, 0.1, 0.1], [0.0, 0.0, 0.0]])
    rows = evidence([(Op.CHECKPOINT, 100 + at) for at in range(0, N_STEPS, 3)], seconds=seconds)
    found = measure_periodicity(components(n_stages=3), stops, rows)
    loader = found["stall.loader_doubt"].value or 0.0
    assert found["stall.planned_doubt"].value == pytest.approx((1.0 - loader) * doubt)


@pytest.mark.parametrize(("in_optimizers", "told"), [(0.1, "planned"), (8.0, "optimizer")])
def test_what_the_first_rank_does_for_all_is_no_optimizer(in_optimizers: float, told: str) -> None:
    """A little that optimizers take longer beside it says nothing; where most is in these it is their work."""
    stops = gains({"start-delay": every(3), "end-delay": every(3, seconds=in_optimizers)})
    stops.blame_s["start-delay"] = np.array([[1.0], [0.0]])
    found = measure_periodicity(components(), stops, evidence())
    doubts = {name: found[f"stall.{name}_doubt"].value or 0.0 for name in ("planned", "optimizer")}
    assert [name for name, doubt in doubts.items() if doubt > 0.0] == [told]


@pytest.mark.parametrize(
    ("waits", "stops", "doubt"),
    [
        ((3, 6), every(3), STOP_CHANCE),
        ((0, 9), every(3), STOP_CHANCE),
        ((2, 3), every(3), STOP_CHANCE),
        ((2, 4, 6), every(3), 0.0),
        ((2, 3), every(1), 0.0),
    ],
    ids=["after stops", "on their period", "half after stops", "mostly elsewhere", "stops everywhere"],
)
def test_who_returns_late_from_a_stop_waits_for_no_input(
    waits: Sequence[int], stops: list[float], doubt: float
) -> None:
    """Waits in the steps that a stop of all comes before, on its period, may be its end; rows of a loader say otherwise."""
    places = {(0, 0, 0, step, 0): 1.0 for step in waits}
    by_input = {place: (seconds, StallKind.INPUT) for place, seconds in places.items()}
    # Of a stop on step 9 nothing is seen but the wait.
    lost_s = {"start-delay": [*stops[:9], 0.0]}
    found = measure_periodicity(stalled(by_input), gains(lost_s), evidence())
    assert found["stall.input_doubt"].value == doubt
    told = measure_periodicity(stalled(by_input, recorded=places), gains(lost_s), evidence())
    assert told["stall.input_doubt"].value == 0.0


def test_large_step_numbers_cost_nothing_more() -> None:
    """Hits hundreds of thousands of steps apart, at step numbers in the billions, still have their period."""
    steps = 10**9 + 50_000 * np.arange(40)
    period, regularity, _ = find_period(steps, np.arange(40) % 5 == 2)
    assert (period, regularity) == (250_000, 1.0)


@pytest.mark.parametrize("every", [37, 40, 50])
def test_few_coarse_lines_show_a_period(every: int) -> None:
    """Of 40 lines that stand for ten steps each, those hit every so many steps show it; hits at random do not."""
    lines = np.arange(1, 41) * 10
    hits = np.zeros(40, dtype=bool)
    hits[(np.arange(every, 401, every) - 1) // 10] = True
    train = find_train(lines, hits, width=10)
    assert train is not None and train.period == every
    rng = np.random.default_rng(every)
    assert all(
        find_train(lines, rng.random(40) < share, width=10) is None for share in (0.05, 0.1, 0.2) for _ in range(50)
    )


@pytest.mark.parametrize(
    ("course", "noise", "shared"),
    [("anew", 0.02, 0.95), ("anew", 0.6, 0.6), ("from a step on", 0.02, 0.0)],
    ids=["batches of other lengths", "busy hosts", "a slowdown"],
)
def test_what_all_computes_of_a_step_have_in_common(course: str, noise: float, shared: float) -> None:
    """Where a step has more work all workers and both directions take as much longer; what stays is no work that steps draw."""
    rng = np.random.default_rng(3)
    base = components(n_dp=4)
    of_step = rng.choice([1.0, 1.5], N_STEPS) if course == "anew" else np.where(np.arange(N_STEPS) < 5, 1.0, 1.5)
    alone = np.exp(noise * rng.standard_normal((2, base.compute_s.shape[1], 1, N_STEPS, 4)))
    compute_s = base.compute_s * of_step[:, None] * alone
    found = measure_periodicity(dataclasses.replace(base, compute_s=compute_s), gains(), evidence())[
        "step.shared"
    ].value
    assert found is not None
    assert (found >= shared) if shared > 0.9 else (found <= shared)
