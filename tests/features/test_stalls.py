"""How stalls put down to collection, allocator and input look: direction, place, frequency, size, and what rows say."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from statistics import NormalDist

import numpy as np
import pytest

from diagnose.features.stalls import (
    COLLECTED_CHANCE,
    KINDS,
    LONE_CHANCE,
    ONCE_CHANCE,
    PACE_CHANCE,
    UNSEEN_CHANCE,
    measure_stalls,
    stall_course,
)
from diagnose.model.components import Breakdown
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence, Job, Seconds
from tests.features.hand import N_STEPS, Place, Stall, evidence, stalled

FORWARD, BACKWARD = 0, 1
#: A job whose recorder writes a row of every collection.
RECORDED = Job("recorded", 2, 2, 1, 1, 1, 4, records_gc=True)
#: Twenty draws of a normal distribution, as chance spreads them.
SPREAD = np.array([NormalDist().inv_cdf((i + 0.5) / 20) for i in range(20)])
#: What is asked of every kind.
ASKED = {
    "recorded_share", "backward_share", "stall_ratio", "a_step", "worker_steps_share", "workers_share", "contrast", "before_share",
    "first_share", "steps_share", "together_share", "growth",
}  # fmt: skip


def values(parts: Breakdown, kind: str, *rows: tuple[Op, int]) -> dict[str, float | None]:
    """Measure the stalls of one kind, by name without the kind."""
    found = measure_stalls(parts, evidence(rows))
    return {name.split(".")[1]: feature.value for name, feature in found.items() if name.startswith(f"{kind}.")}


def of(whose: StallKind, places: Mapping[Place, float]) -> dict[Place, Stall]:
    """Put stalls down to one cause."""
    return {place: (seconds, whose) for place, seconds in places.items()}


def test_without_stalls_everything_is_missing() -> None:
    """A job without stalls has every feature of every kind, missing with the reason."""
    found = measure_stalls(stalled(), evidence([(Op.GC, 103), (Op.CUDA_MALLOC, 104), (Op.DATA_LOAD, 105)]))
    assert {name.split(".")[0] for name in found} == set(KINDS)
    for kind in KINDS:
        assert {name.split(".")[1] for name in found if name.startswith(f"{kind}.")} >= ASKED
    assert all(feature.value is None and "no compute stalls" in feature.reason for feature in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_stalls_of_others_are_not_its_own(kind: str) -> None:
    """What is put down to nobody, a slow worker or a plan is none of the three."""
    others = {StallKind.NOBODY, StallKind.WORKER, StallKind.TOGETHER, StallKind.SAVING, StallKind.QUEUE}
    inside = {(FORWARD, 0, 0, int(whose), 0): (4.0, whose) for whose in others}
    assert set(values(stalled(inside), kind).values()) == {None}


def test_direction_is_by_seconds() -> None:
    """3 s in a forward and 1 s before a backward are a quarter backward, and a quarter before."""
    inside = of(StallKind.ALLOCATION, {(FORWARD, 0, 0, 3, 0): 3.0})
    before = of(StallKind.ALLOCATION, {(BACKWARD, 0, 0, 3, 0): 1.0})
    found = values(stalled(inside, before), "allocator")
    assert found["backward_share"] == pytest.approx(0.25)
    assert found["before_share"] == pytest.approx(0.25)


def test_a_typical_stall_is_measured_against_its_compute() -> None:
    """4 s in a forward of 1 s, in a backward of 2 s and in another forward: 4 times the compute."""
    places = {(FORWARD, 0, 0, 3, 0): 4.0, (BACKWARD, 0, 0, 4, 0): 4.0, (FORWARD, 0, 1, 5, 0): 4.0}
    assert values(stalled(of(StallKind.ALLOCATION, places)), "allocator")["stall_ratio"] == pytest.approx(4.0)


@pytest.mark.parametrize("kind", ["collection", "input"])
def test_how_often_a_worker_stalls(kind: str) -> None:
    """One worker with both forwards of every step, or one with two in ten steps, stall 2 and 0.2 times a step."""
    whose = KINDS[kind][0]
    every = {(FORWARD, 0, mb, step, 0): 1.0 for mb in range(2) for step in range(N_STEPS)}
    assert values(stalled(of(whose, every)), kind)["a_step"] == pytest.approx(2.0)
    seldom = {(FORWARD, 0, 0, step, 0): 1.0 for step in (2, 7)}
    found = values(stalled(of(whose, seldom)), kind)
    assert found["a_step"] == pytest.approx(0.2)
    assert found["steps_share"] == pytest.approx(0.2)


def test_on_how_many_workers_and_at_once() -> None:
    """Two of four workers stall in the same two steps: half of the workers, half of them together; apart, a quarter."""
    together = {(FORWARD, 0, 0, step, dp): 1.0 for step in (2, 6) for dp in (0, 1)}
    found = values(stalled(of(StallKind.COLLECTION, together)), "collection")
    assert (found["workers_share"], found["together_share"]) == (0.5, 0.5)
    apart = {(FORWARD, 0, 0, step + dp, dp): 1.0 for step in (2, 6) for dp in (0, 1)}
    found = values(stalled(of(StallKind.COLLECTION, apart)), "collection")
    assert (found["workers_share"], found["together_share"]) == (0.5, 0.25)


def test_chunks_of_a_worker_are_one_worker() -> None:
    """With two chunks, stalls in either are the worker's: one of four workers, twice in ten steps."""
    parts = stalled(of(StallKind.COLLECTION, {(FORWARD, 0, 0, 2, 0): 1.0, (FORWARD, 2, 0, 5, 0): 1.0}), n_chunks=2)
    found = values(parts, "collection")
    assert found["workers_share"] == pytest.approx(0.25)
    assert found["a_step"] == pytest.approx(0.2)


def test_seldom_and_on_any_worker_is_not_surely_input() -> None:
    """With one stage, long waits in one step of ten may be anything if all workers have them, or the first, who saves and logs."""
    short = {(FORWARD, 0, 0, step, dp): 0.01 for step in range(N_STEPS) for dp in range(2)}
    cases = (((0, 1), 1, ONCE_CHANCE), ((0,), 1, ONCE_CHANCE), ((1,), 1, 0.0), ((0, 1), 2, 0.0))
    for workers, n_stages, doubt in cases:
        long = {(FORWARD, 0, 0, 4, dp): 1.0 for dp in workers}
        parts = stalled(before=of(StallKind.INPUT, short | long), n_stages=n_stages)
        assert values(parts, "input")["unseen_doubt"] == doubt
    regular = {(FORWARD, 0, 0, step, step % 2): 1.0 for step in range(N_STEPS)}
    assert values(stalled(before=of(StallKind.INPUT, regular), n_stages=1), "input")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(
    ("steps", "workers", "doubt"),
    [
        ((0, 3, 6, 9), (0, 1), ONCE_CHANCE),
        ((0, 3, 6, 9), (0,), ONCE_CHANCE),
        ((0, 3, 6, 9), (1,), 0.0),
        ((0, 2, 6, 7, 9), (0, 1), 0.0),
        (range(N_STEPS), (0, 1), 0.0),
    ],
    ids=["all", "the first", "another", "no period", "every step"],
)
def test_what_all_wait_for_at_a_period_is_not_surely_input(
    steps: Sequence[int], workers: tuple[int, ...], doubt: float
) -> None:
    """A stop of all every so many steps may be a save or an evaluation; a row says that it is a loader."""
    places = {(FORWARD, 0, 0, step, dp): 0.5 for step in steps for dp in workers}
    assert values(stalled(before=of(StallKind.INPUT, places)), "input")["unseen_doubt"] == doubt
    told = stalled(before=of(StallKind.INPUT, places), recorded=list(places))
    assert values(told, "input")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(("n_told", "doubt"), [(0, 0.0), (1, 0.75 * ONCE_CHANCE), (3, 0.0)])
def test_what_rows_of_waits_do_not_tell_of_is_not_surely_input(n_told: int, doubt: float) -> None:
    """Who records waits for input records all of them: of four waits of one worker one has a row, or three, or none anywhere."""
    places = {(FORWARD, 0, 0, step, 1): 0.5 for step in (1, 2, 6, 7)}
    parts = stalled(before=of(StallKind.INPUT, places), recorded=list(places)[:n_told])
    assert values(parts, "input")["unseen_doubt"] == pytest.approx(doubt)


@pytest.mark.parametrize(("longest", "doubt"), [(0.5, UNSEEN_CHANCE), (3.0, ONCE_CHANCE)])
def test_steps_that_all_begin_late_are_not_surely_input(longest: float, doubt: float) -> None:
    """Where the first stage waits while the others begin nothing, all are late; if half of it is in one of ten, less surely."""
    lengths = {1: longest, 4: 0.5, 9: 0.5}
    parts = stalled(
        before=of(StallKind.INPUT, {(FORWARD, 0, 0, step, dp): lengths[step] for step in lengths for dp in (0, 1)})
    )
    start_s = np.zeros((2, N_STEPS, 2))
    start_s[1, [*lengths]] = np.array([[*lengths.values()]]).T
    parts = dataclasses.replace(parts, start_s=start_s, start_recorded=np.zeros(start_s.shape, dtype=bool))
    assert values(parts, "input")["unseen_doubt"] == pytest.approx(doubt)
    assert values(dataclasses.replace(parts, start_recorded=start_s > 0), "input")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(("length", "documents", "doubt"), [(0.2, 0.0, ONCE_CHANCE), (2.0, 0.0, 0.0), (0.2, 0.5, 0.0)])
def test_waits_as_short_as_computes_vary_are_not_surely_input(length: float, documents: float, doubt: float) -> None:
    """A busy host delays both: 0.2 s where forwards of 1 s vary by 0.1 s; documents vary forward and backward alike."""
    rng = np.random.default_rng(1)
    parts = stalled(before=of(StallKind.INPUT, {(FORWARD, 0, 0, step, 1): length for step in (1, 2, 6, 7)}))
    host, drawn = rng.standard_normal(parts.compute_s.shape), rng.standard_normal(parts.compute_s.shape[1:])
    factor = np.exp(documents * drawn if documents else 0.1 * host)
    parts = dataclasses.replace(parts, compute_s=parts.compute_s * factor)
    assert values(parts, "input")["unseen_doubt"] == doubt


@pytest.mark.parametrize(
    ("lengths", "told", "doubt"),
    [
        (np.exp(0.6 * SPREAD), False, ONCE_CHANCE),
        (np.exp(0.6 * np.abs(SPREAD)), False, ONCE_CHANCE),
        (np.exp(0.6 * np.abs(SPREAD)), True, 0.0),
        (np.append(np.ones(12), np.linspace(1.5, 4.0, 8)), False, 0.0),
        (np.append(np.ones(4), np.linspace(2.5, 4.0, 16)), False, 0.0),
    ],
    ids=["both sides", "one side", "rows tell", "most as usual", "most held up for much the same"],
)
def test_the_longer_forwards_of_one_spread_are_not_surely_input(lengths: Seconds, *, told: bool, doubt: float) -> None:
    """Forwards of a busy host are of every length; a loader leaves most as they are, or holds them up for a time of some size."""
    forwards = [(FORWARD, 0, microbatch, step, 1) for step in range(N_STEPS) for microbatch in range(2)]
    drawn = dict(zip(forwards, np.random.default_rng(2).permutation(lengths).tolist(), strict=True))
    waits = of(StallKind.INPUT, {place: length - 1.0 for place, length in drawn.items() if length > 1.4})
    parts = stalled(waits, recorded=waits if told else ())
    for place, length in drawn.items():
        parts.compute_s[place] = length
    assert values(parts, "input")["unseen_doubt"] == doubt
    before = stalled(before=waits, recorded=waits if told else ())
    assert values(before, "input")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(
    ("n_pauses", "length", "kind", "waiting", "doubt"),
    [
        (6, 0.6, StallKind.NOBODY, (1,), ONCE_CHANCE),
        (6, 0.6, StallKind.COLLECTION, (1,), ONCE_CHANCE),
        (6, 0.6, StallKind.ALLOCATION, (1,), ONCE_CHANCE),
        (6, 0.6, StallKind.ALLOCATION, (0, 1), ONCE_CHANCE),
        (3, 0.6, StallKind.NOBODY, (1,), 0.0),
        (30, 0.1, StallKind.NOBODY, (1,), 0.0),
        (6, 0.6, StallKind.WORKER, (1,), 0.0),
    ],
    ids=["more", "collections", "allocator", "behind a barrier", "fewer", "shorter", "a slow worker"],
)
def test_what_stops_computes_as_well_is_not_surely_input(
    n_pauses: int, length: float, kind: StallKind, waiting: tuple[int, ...], doubt: float
) -> None:
    """Four waits of half a second beside pauses inside computes, of about as long and more of them, have one reason."""
    waits = of(StallKind.INPUT, {(FORWARD, 0, 0, step, dp): 0.5 for step in (1, 2, 6, 7) for dp in waiting})
    everywhere = [(d, s, 1, step, dp) for d in range(2) for s in range(2) for step in range(N_STEPS) for dp in range(2)]
    pauses = of(kind, dict.fromkeys(everywhere[:n_pauses], length))
    parts = stalled(pauses, waits)
    assert values(parts, "input")["unseen_doubt"] == doubt
    start_s = np.zeros((2, N_STEPS, 2))
    start_s[0, 3, 1] = 9.0
    told = dataclasses.replace(parts, start_s=start_s, start_recorded=start_s > 0)
    assert values(told, "input")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(("direction", "doubt"), [(BACKWARD, ONCE_CHANCE), (FORWARD, 0.0)])
def test_backwards_that_begin_late_wait_for_no_input(direction: int, doubt: float) -> None:
    """What keeps them waiting as long, and longer in all, may keep first forwards waiting, too."""
    waits = of(StallKind.INPUT, {(FORWARD, 0, 0, step, 1): 0.5 for step in (1, 2, 6, 7)})
    late = of(StallKind.ALLOCATION, {(direction, 0, 1, step, dp): 0.6 for step in (1, 4, 7) for dp in (0, 1)})
    assert values(stalled(before=waits | late), "input")["unseen_doubt"] == doubt


@pytest.mark.parametrize(
    ("paused_s", "n_paused", "ranks", "doubt"),
    [(0.8, 6, (0, 1), ONCE_CHANCE), (0.5, 6, (0, 1), 0.0), (0.8, 1, (0, 1), 0.0), (0.8, 6, (0,), 0.0)],
    ids=["as long", "shorter", "too seldom", "waits of one rank"],
)
def test_a_busy_host_delays_loaders_too(paused_s: float, n_paused: int, ranks: tuple[int, ...], doubt: float) -> None:
    """Rows say that loaders took long: where computes of all pause as long for no reason, the hosts are busy."""
    waits = {(FORWARD, 0, 0, step, dp): 1.0 for step in range(N_STEPS) for dp in ranks}
    pauses = {(BACKWARD, stage, 1, step, dp): paused_s for step in range(n_paused) for stage in (0, 1) for dp in (0, 1)}
    parts = stalled(of(StallKind.NOBODY, pauses), of(StallKind.INPUT, waits), recorded=waits)
    assert values(parts, "input")["unseen_doubt"] == doubt


def test_waiting_for_the_first_batch_of_a_step() -> None:
    """Three waits before first microbatches and one before a second are three quarters first."""
    before = of(StallKind.INPUT, {(FORWARD, 0, 0, step, 0): 0.5 for step in (1, 2, 3)} | {(FORWARD, 0, 1, 4, 0): 0.5})
    found = values(stalled(before=before), "input")
    assert found["first_share"] == pytest.approx(0.75)
    assert found["before_share"] == pytest.approx(1.0)


def test_short_waits_beside_long_ones_do_not_count() -> None:
    """Two waits of 0.5 s are 0.2 a step, however often the worker is a millisecond late besides."""
    short = {(FORWARD, 0, mb, step, 0): 1e-3 for mb in range(2) for step in range(N_STEPS)}
    found = values(
        stalled(before=of(StallKind.INPUT, short | {(FORWARD, 0, 0, step, 0): 0.5 for step in (3, 7)})), "input"
    )
    assert (found["a_step"], found["in_a_step"]) == (pytest.approx(0.2), pytest.approx(1.0))


@pytest.mark.parametrize(("n_rows", "silent"), [(N_STEPS, 0.5), (N_STEPS // 2, 0.5), (N_STEPS // 2 - 1, 0.0)])
def test_waits_that_rows_of_a_loader_do_not_tell_of(n_rows: int, silent: float) -> None:
    """Of two waits of one worker with rows in all steps one has none; where fewer than half have any, nobody can say."""
    places = {(FORWARD, 0, 0, step, 0): 0.5 for step in (1, 2)}
    parts = stalled(before=of(StallKind.INPUT, places), recorded=[(FORWARD, 0, 0, 1, 0)])
    rows = [(Op.DATA_LOAD, 100 + step) for step in range(n_rows)]
    assert values(parts, "input", *rows)["silent_share"] == pytest.approx(silent)


def test_where_rows_tell_of_no_wait_it_is_something_else() -> None:
    """Rows of all steps tell of one in three waits: two in three are as probably something else as they are of all."""
    places = {(FORWARD, 0, 0, step, 0): 0.5 for step in (1, 4, 5)}
    parts = stalled(before=of(StallKind.INPUT, places), recorded=[(FORWARD, 0, 0, 1, 0)])
    rows = [(Op.DATA_LOAD, 100 + step) for step in range(N_STEPS)]
    assert values(parts, "input", *rows)["unseen_doubt"] == pytest.approx(2 / 3)
    assert values(parts, "input", *rows[:1])["unseen_doubt"] < 0.6


def test_who_waits_for_another_workers_batch_is_not_silent() -> None:
    """Its own rows tell of no wait, and another's of as long a one in the same step; in other steps nobody's do."""
    places = {(FORWARD, 0, 0, step, dp): 0.5 for step in (1, 2) for dp in (0, 1)} | {(FORWARD, 0, 0, 5, 1): 0.5}
    parts = stalled(before=of(StallKind.INPUT, places), recorded=[(FORWARD, 0, 0, step, 0) for step in (1, 2)])
    loads = evidence([(Op.DATA_LOAD, 100 + step) for step in range(N_STEPS)])
    loads = Evidence.join([dataclasses.replace(loads, dp=np.full(N_STEPS, dp)) for dp in (0, 1)])
    assert measure_stalls(parts, loads)["input.silent_share"].value == pytest.approx(0.2)


def test_a_single_wait_may_be_anything() -> None:
    """Waits in one step may be a host that was busy, unless a row says so; one more step is a loader's."""
    once = of(StallKind.INPUT, {(FORWARD, 0, 0, 3, dp): 0.5 for dp in (0, 1)})
    assert values(stalled(before=once), "input")["unseen_doubt"] == ONCE_CHANCE
    assert (
        values(stalled(before=once | of(StallKind.INPUT, {(FORWARD, 0, 0, 4, 0): 0.5})), "input")["unseen_doubt"] == 0.0
    )
    told = stalled(of(StallKind.INPUT, {(FORWARD, 0, 0, 3, 0): 0.5}), recorded=[(FORWARD, 0, 0, 3, 0)])
    assert values(told, "input", (Op.DATA_LOAD, 103))["unseen_doubt"] == 0.0


@pytest.mark.parametrize(
    ("recorded", "share"), [((), 0.0), ([(FORWARD, 0, 0, 3, 0)], 0.75)], ids=["beside", "one of two"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_say_whose_they_are(kind: str, recorded: Collection[Place], share: float) -> None:
    """The recorded part is by seconds: 3 s of 4 s; 0 where rows lie elsewhere, and missing where there are none of the type."""
    whose, row = KINDS[kind]
    inside = of(whose, {(FORWARD, 0, 0, 3, 0): 3.0, (FORWARD, 0, 0, 7, 0): 1.0})
    parts = stalled(inside, recorded=recorded)
    assert values(parts, kind, (row, 103))["recorded_share"] == pytest.approx(share)
    without = measure_stalls(parts, evidence([(Op.CHECKPOINT, 103)]))[f"{kind}.recorded_share"]
    assert without.value is None
    assert "rows" in without.reason


def test_collections_are_compared_with_backwards() -> None:
    """6 s of collections in forwards beside 2 s of other stalls in backwards is three times as much; beside none, any."""
    inside = of(StallKind.COLLECTION, {(FORWARD, 0, 0, 3, 0): 3.0, (FORWARD, 1, 0, 5, 1): 3.0})
    alone = values(stalled(inside), "collection")["contrast"]
    beside = inside | of(StallKind.NOBODY, {(BACKWARD, 0, 0, 4, 0): 2.0})
    assert values(stalled(beside), "collection")["contrast"] == pytest.approx(3.0)
    assert alone is not None
    assert alone >= 100.0


def test_the_allocator_is_compared_with_other_workers() -> None:
    """6 s on each of two workers beside 2 s of other stalls on each of the others is three times as much."""
    inside = of(StallKind.ALLOCATION, {(BACKWARD, 0, 0, 3, dp): 6.0 for dp in (0, 1)})
    inside |= of(StallKind.NOBODY, {(BACKWARD, 1, 0, 4, dp): 2.0 for dp in (0, 1)})
    assert values(stalled(inside), "allocator")["contrast"] == pytest.approx(3.0)


def test_backwards_of_the_allocators_workers_are_compared_with_other_backwards() -> None:
    """Collections in forwards of the other workers, however long, do not hide that backwards stall 3 times as long here."""
    inside = of(
        StallKind.ALLOCATION, {(direction, 0, 0, 3, dp): 6.0 for direction in (FORWARD, BACKWARD) for dp in (0, 1)}
    )
    inside |= of(StallKind.NOBODY, {(BACKWARD, 1, 0, 4, dp): 2.0 for dp in (0, 1)})
    inside |= of(StallKind.COLLECTION, {(FORWARD, 1, 0, 5, dp): 100.0 for dp in (0, 1)})
    found = values(stalled(inside), "allocator")
    assert found["contrast"] is not None
    assert found["contrast"] < 1.0
    assert found["backward_contrast"] == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["contrast", "backward_contrast"])
def test_where_every_worker_has_them_there_are_no_others(name: str) -> None:
    """Stalls on all workers have no contrast, and the reason says so."""
    inside = of(StallKind.ALLOCATION, {(BACKWARD, stage, 0, 3, dp): 6.0 for stage in (0, 1) for dp in (0, 1)})
    found = measure_stalls(stalled(inside), evidence())[f"allocator.{name}"]
    assert found.value is None
    assert "every worker" in found.reason


def test_growth_is_late_over_early() -> None:
    """1 s in each of the first five steps and 3 s in each of the last five is three times as much, in whatever order steps come."""
    parts = stalled(
        of(StallKind.ALLOCATION, {(BACKWARD, 0, 0, step, 0): 3.0 if step >= 5 else 1.0 for step in range(N_STEPS)})
    )
    assert values(parts, "allocator")["growth"] == pytest.approx(3.0)
    backwards = np.arange(N_STEPS)[::-1]
    stalls = dataclasses.replace(
        parts.stalls, inside_s=parts.stalls.inside_s[:, :, :, backwards], inside=parts.stalls.inside[:, :, :, backwards]
    )
    shuffled = dataclasses.replace(parts, steps=parts.steps[backwards], stalls=stalls)
    assert values(shuffled, "allocator")["growth"] == pytest.approx(3.0)


def test_few_stalls_have_no_trend() -> None:
    """Two stalls do not grow: missing, with the reason."""
    inside = of(StallKind.COLLECTION, {(FORWARD, 0, 0, 3, 0): 1.0, (FORWARD, 0, 0, 8, 0): 4.0})
    found = measure_stalls(stalled(inside), evidence())["collection.growth"]
    assert found.value is None
    assert "fewer than" in found.reason


def test_a_missing_compute_is_no_stall() -> None:
    """Computes that a lost row left out change nothing, warnings being errors."""
    inside = of(StallKind.COLLECTION, {(FORWARD, 0, 0, 3, 0): 3.0})
    parts = stalled(inside)
    compute_s = parts.compute_s.copy()
    compute_s[BACKWARD, 1, 1, 4, 1] = np.nan
    assert values(dataclasses.replace(parts, compute_s=compute_s), "collection") == values(parts, "collection")


def test_the_first_sign_of_stalls_is_no_trace_of_one() -> None:
    """Stalls of 0.04 s count as a sign of those of 0.5 s to come, stalls of 0.02 s do not."""
    for first_s, onset in ((0.04, 102), (0.02, 105)):
        seconds = dict.fromkeys((2, 3, 4), first_s) | dict.fromkeys(range(5, N_STEPS), 0.5)
        inside = of(StallKind.ALLOCATION, {(BACKWARD, 0, 0, step, 0): stall_s for step, stall_s in seconds.items()})
        assert stall_course(stalled(inside), StallKind.ALLOCATION).when.onset_step == onset


def test_waits_between_steps_are_there_all_the_time() -> None:
    """What all workers wait for before each step dates the cause, not that some of them wait a little longer until step 4."""
    inside = of(StallKind.INPUT, {(FORWARD, 0, 0, step, 0): 0.02 for step in range(4)})
    assert stall_course(stalled(inside), StallKind.INPUT).when.recovery_step == 104
    between_s = np.full(N_STEPS, 0.5)
    between_s[-1] = 0.0  # nothing follows the last step
    parts = dataclasses.replace(stalled(inside), between_s={StallKind.INPUT: between_s})
    assert stall_course(parts, StallKind.INPUT).when.pattern == "constant"


def test_a_collector_must_fill_up_again() -> None:
    """Workers that stall every fifth step never do so soon again; those that stall in the next step do so more than at random."""
    of_workers = {
        "regular": {(FORWARD, 0, 0, step, dp): 1.0 for dp in range(8) for step in range(dp % 5, N_STEPS, 5)},
        "in pairs": {(FORWARD, 0, 0, (dp + i) % N_STEPS, dp): 1.0 for dp in range(8) for i in (0, 1)},
    }
    found = {
        name: values(stalled(of(StallKind.COLLECTION, places), n_dp=8), "collection")["close_pairs"]
        for name, places in of_workers.items()
    }
    assert found["regular"] == 0.0
    assert found["in pairs"] is not None and found["in pairs"] > 1.0
    # Short ones, in pairs, of workers that lose far less than another does, are what every job has.
    beside = {(FORWARD, 0, 0, step, 8): 1.0 for step in range(0, N_STEPS, 2)}
    beside |= dict.fromkeys(of_workers["in pairs"], 0.12)
    assert (
        values(stalled(of(StallKind.COLLECTION, beside), n_dp=9), "collection")["close_pairs"] is None
    )  # one tells nothing


def test_collections_of_nearly_each_step_are_looked_at_by_computes() -> None:
    """Workers that stall every seventh compute, and eight make a step, never do so soon again; two of twelve apart by two do."""

    def at(n: int, dp: int) -> Place:
        step, left = divmod(n, 8)
        return FORWARD, 2 * (left % 4), left // 4, step, dp

    of_workers = {
        "regular": {at(n, dp): 1.0 for dp in range(8) for n in range(dp % 7, 8 * N_STEPS, 7)},
        "in pairs": {
            at(n + more, dp): 1.0 for dp in range(8) for n in range(dp, 8 * N_STEPS - 2, 12) for more in (0, 2)
        },
    }
    found = {
        name: values(stalled(of(StallKind.COLLECTION, places), n_dp=8, n_chunks=4), "collection")["close_pairs"]
        for name, places in of_workers.items()
    }
    assert found["regular"] == 0.0
    assert found["in pairs"] is not None and found["in pairs"] > 1.0


def test_rows_of_late_starts_tell_of_collections_too() -> None:
    """Short pauses that come in pairs say nothing beside long ones before steps that have rows."""
    pauses = of(StallKind.COLLECTION, {(FORWARD, 0, 0, (dp + i) % N_STEPS, dp): 1.0 for dp in range(8) for i in (0, 1)})
    parts = stalled(pauses, n_dp=8)
    before_s = np.zeros((2, N_STEPS, 8))
    before_s[1, ::4, 3] = 9.0
    found = measure_stalls(dataclasses.replace(parts, collected_s=before_s), evidence())
    assert found["collection.close_pairs"].reason == "rows tell of most of them"


@pytest.mark.parametrize(("n_steps", "n_microbatches", "doubt"), [(8, 2, True), (8, 1, False), (2, 2, True)])
def test_stalls_in_most_computes_may_be_a_pace(n_steps: int, n_microbatches: int, *, doubt: bool) -> None:
    """All computes of the steps that have any, or every other forward: the first may be a clock, unless rows say otherwise."""
    directions = (FORWARD, BACKWARD) if n_microbatches == 2 else (FORWARD,)
    places = {
        (direction, 0, mb, step, dp): 0.3
        for direction in directions
        for mb in range(n_microbatches)
        for step in range(n_steps)
        for dp in range(2)
    }
    found = values(stalled(of(StallKind.ALLOCATION, places)), "allocator")["pace_doubt"]
    assert found == (PACE_CHANCE if doubt else 0.0)
    assert values(stalled(of(StallKind.ALLOCATION, places), recorded=places), "allocator")["pace_doubt"] == 0.0
    long = dict.fromkeys(places, 5.0)
    assert values(stalled(of(StallKind.ALLOCATION, long)), "allocator")["pace_doubt"] == 0.0


@pytest.mark.parametrize(
    ("workers", "turns", "n_times", "doubt"),
    [
        (((0, 0),), 0, 6, LONE_CHANCE),
        (((0, 0), (1, 1)), 1, 5, LONE_CHANCE),
        (((0, 0), (1, 1), (0, 1)), 1, 3, 0.0),
        (((0, 0), (1, 1), (0, 1)), 1, 2, 0.0),
        (((0, 0), (1, 1), (0, 1)), 0, 1, LONE_CHANCE),
        (((0, 0), (1, 1), (0, 1)), 0, 6, LONE_CHANCE),
        (((0, 0), (0, 1), (1, 0), (1, 1)), 0, 6, LONE_CHANCE),
    ],
    ids=["one of four", "half", "more", "twice each", "in one step", "at once", "all at once"],
)
def test_every_process_has_a_collector(
    workers: Sequence[tuple[int, int]], turns: int, n_times: int, doubt: float
) -> None:
    """What stops half of the workers at most, or all but once, or most at once, may be something else, unless rows call it so."""
    n_turns = len(workers) if turns else 1
    places = {
        (FORWARD, stage, 0, n_turns * time + turns * turn, dp): 1.0
        for turn, (stage, dp) in enumerate(workers)
        for time in range(n_times)
    }
    parts = of(StallKind.COLLECTION, places)
    assert values(stalled(parts), "collection")["lone_doubt"] == doubt
    assert values(stalled(parts, recorded=places), "collection")["lone_doubt"] == 0.0


def test_who_pauses_by_a_count_of_its_own() -> None:
    """All pause in two of three steps, each every third of its 20 forwards from another one on: that is no pause of all at once."""
    first = {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 0}
    places = {
        (FORWARD, stage, forward % 2, forward // 2, dp): 1.0
        for (stage, dp), at in first.items()
        for forward in range(at, 20, 3)
    }
    found = values(stalled(of(StallKind.COLLECTION, places)), "collection")
    assert (found["counted_share"], found["lone_doubt"]) == (1.0, 0.0)


def test_two_pauses_are_no_collector() -> None:
    """Two pauses are too few to tell, though they are on all workers of a job of two."""
    places = {(FORWARD, 0, 0, step, dp): 1.0 for step, dp in ((2, 0), (7, 1))}
    assert values(stalled(of(StallKind.COLLECTION, places), n_stages=1), "collection")["lone_doubt"] == LONE_CHANCE


@pytest.mark.parametrize(
    ("workers", "stray", "growth", "pace", "unseen"),
    [
        (((0, 0), (0, 1)), (), 1.0, 0.0, 0.0),
        (((0, 1),), (), 1.0, PACE_CHANCE, 0.0),
        (((0, 1),), ((0, 0),), 1.0, PACE_CHANCE, 0.0),
        (((0, 1),), (), 0.01, 0.0, 0.0),
        (((0, 0), (0, 1), (1, 0), (1, 1)), (), 0.01, 0.0, LONE_CHANCE),
    ],
    ids=["one stage", "one worker", "one worker, and once another", "one worker, more and more", "all, more and more"],
)
def test_an_allocator_has_its_place(
    workers: Sequence[tuple[int, int]],
    stray: Sequence[tuple[int, int]],
    growth: float,
    pace: float,
    unseen: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is full on stages, or on a worker and ever more: what else stops one, or all, is somebody's, unless rows say so."""
    monkeypatch.setattr("diagnose.features.stalls.chance_of_growth", lambda *_counts: growth)
    places = {(way, stage, 0, step, dp): 1.0 for way in (0, 1) for stage, dp in workers for step in range(5, N_STEPS)}
    places |= {(FORWARD, stage, 0, 7, dp): 1.0 for stage, dp in stray}
    parts = of(StallKind.ALLOCATION, places)
    if stray:
        monkeypatch.setattr("diagnose.features.stalls.chance_of_excess", lambda *_counts: 0.0)
    found, told = (values(stalled(parts, recorded=rows), "allocator") for rows in ((), places))
    assert (found["pace_doubt"], found["unseen_doubt"]) == (pace, unseen)
    assert (told["pace_doubt"], told["unseen_doubt"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("places", "doubt"),
    [
        ({(1, 0), (3, 1), (4, 2), (4, 0), (7, 1), (8, 2)}, COLLECTED_CHANCE),
        ({(1, 0), (4, 0), (7, 0)}, COLLECTED_CHANCE),
        ({(step, dp) for step in (1, 4, 8) for dp in range(3)}, 0.0),
        ({(step, 0) for step in range(6)}, 0.0),
    ],
    ids=[
        "each in steps of its own",
        "one, seldom",
        "all in the same steps",
        "one, in most steps",
    ],
)
def test_who_begins_late_now_and_then_loads_or_collects(places: Collection[tuple[int, int]], doubt: float) -> None:
    """Without rows waits before first forwards that come as collections do may be these; gc rows that took nothing tell of none."""
    waits = of(StallKind.INPUT, {(FORWARD, 0, 0, step, dp): 2.0 for step, dp in places})
    parts = stalled(before=waits, n_stages=1, n_dp=3)
    assert values(parts, "input")["collected_doubt"] == doubt
    calls = evidence([(Op.GC, 101)])
    assert measure_stalls(parts, calls)["input.collected_doubt"].value == 0.0
    calls = dataclasses.replace(calls, end_s=calls.start_s)
    assert measure_stalls(parts, calls)["input.collected_doubt"].value == doubt
    assert measure_stalls(parts, calls, RECORDED)["input.collected_doubt"].value == 0.0


@pytest.mark.parametrize(("enough", "doubt"), [(N_STEPS, 0.0), (N_STEPS + 1, COLLECTED_CHANCE)])
def test_six_of_so_few_steps_are_not_most(enough: int, doubt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader is late in most steps; where they are too few to tell half from most it may as well be a collector."""
    monkeypatch.setattr("diagnose.features.stalls.ENOUGH_STEPS", enough)
    waits = of(StallKind.INPUT, {(FORWARD, 0, 0, step, 0): 2.0 for step in range(6)})
    assert values(stalled(before=waits, n_stages=1, n_dp=3), "input")["collected_doubt"] == doubt


@pytest.mark.parametrize(
    ("n_steps", "doubt"),
    [(5, COLLECTED_CHANCE), (6, COLLECTED_CHANCE * 2.0 / 3.0), (8, 0.0)],
    ids=["half", "more", "most"],
)
def test_what_stops_forwards_that_have_begun_loads_or_collects(n_steps: int, doubt: float) -> None:
    """With one stage, inside any forward, in half of the steps and more: it has its batch, and a collector is as likely."""
    pauses = of(StallKind.INPUT, {(FORWARD, 0, step % 2, step, 0): 2.0 for step in range(n_steps)})
    assert values(stalled(pauses, n_stages=1, n_dp=3), "input")["collected_doubt"] == pytest.approx(doubt)


def test_where_collections_are_recorded_no_other_pause_is_one() -> None:
    """One worker has a row, or the job says that it records them: then pauses of the other without rows are none."""
    parts = stalled(of(StallKind.COLLECTION, {(FORWARD, 0, 0, step, step % 2): 4.0 for step in range(4)}))
    rows = evidence([(Op.GC, 103)])
    calls = dataclasses.replace(rows, end_s=rows.start_s)
    asked = [(rows, None), (calls, None), (calls, RECORDED)]
    assert [measure_stalls(parts, *of_job)["collection.silent_share"].value for of_job in asked] == [1.0, 0.0, 1.0]


def test_one_pause_without_a_row_beside_collections_between_steps() -> None:
    """Rows tell of nearly all: the one may be anything, and nothing is in doubt for it."""
    parts = stalled(of(StallKind.COLLECTION, {(FORWARD, 0, 0, 3, 0): 1.0}))
    parts = dataclasses.replace(parts, between_s={StallKind.COLLECTION: np.full(N_STEPS, 9.9)})
    found = measure_stalls(parts, evidence([(Op.GC, 100)]))
    assert found["collection.silent_share"].value == pytest.approx(0.01)
    assert found["collection.lone_doubt"].value == 0.0


def test_where_some_workers_record_their_collections() -> None:
    """Of two pauses of the worker that records one has a row: of the other worker's nobody can tell, unless all record theirs."""
    pauses = of(StallKind.COLLECTION, {(FORWARD, 0, 0, step, step % 2): 4.0 for step in range(4)})
    parts = stalled(pauses)
    told = np.zeros(parts.stalls.inside.shape, dtype=bool)
    told[FORWARD, 0, 0, 0, 0] = True
    parts = dataclasses.replace(parts, stalls=dataclasses.replace(parts.stalls, recorded_inside=told))
    rows = evidence([(Op.GC, 100)])
    asked = [(rows, None), (rows, RECORDED)]
    assert [measure_stalls(parts, *of_job)["collection.silent_share"].value for of_job in asked] == [0.5, 0.75]


@pytest.mark.parametrize(("n_stages", "doubt"), [(1, COLLECTED_CHANCE), (2, 0.0)])
def test_with_one_stage_waits_before_any_forward_may_be_collections(n_stages: int, doubt: float) -> None:
    """Where there are more stages the first forwards of steps are those that wait for batches; with one each forward reads."""
    late = {(FORWARD, 0, mb, step, dp): 2.0 for step, dp, mb in ((1, 0, 0), (3, 1, 1), (4, 2, 1), (6, 0, 1), (7, 1, 0))}
    parts = stalled(before=of(StallKind.INPUT, late), n_stages=n_stages, n_dp=3)
    assert values(parts, "input")["collected_doubt"] == doubt


@pytest.mark.parametrize(
    ("dps", "mbs", "is_inside", "doubt"),
    [
        ((0,), (), True, COLLECTED_CHANCE),
        ((0, 1), (), True, 0.0),
        ((0,), (0, 1), True, 0.0),
        ((0,), (), False, 0.0),
    ],
    ids=["one worker", "two", "twice a step", "before"],
)
def test_one_worker_that_stops_once_a_step_in_any_forward_loads_or_collects(
    dps: tuple[int, ...], mbs: tuple[int, ...], is_inside: bool, doubt: float
) -> None:
    """With several stages nothing tells its loader from its collector, but for what strikes twice in a step, or others, too."""
    places = {(FORWARD, 0, mb, step, dp): 2.0 for step in range(9) for dp in dps for mb in mbs or (step % 2,)}
    stopped, none = of(StallKind.INPUT, places), of(StallKind.INPUT, {})
    parts = stalled(stopped if is_inside else none, before=none if is_inside else stopped, n_stages=2, n_dp=3)
    assert values(parts, "input")["collected_doubt"] == doubt


@pytest.mark.parametrize(("often", "doubt"), [(2.0, 0.0), (2.1, COLLECTED_CHANCE)])
def test_a_collector_does_not_stop_a_worker_time_and_again(
    often: float, doubt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one stage, each worker before both forwards of steps of its own."""
    monkeypatch.setattr("diagnose.features.stalls.OFTEN_A_STEP", often)
    late = {(FORWARD, 0, mb, step, dp): 2.0 for step, dp in ((1, 0), (3, 1), (4, 2), (6, 0)) for mb in (0, 1)}
    parts = stalled(before=of(StallKind.INPUT, late), n_stages=1, n_dp=3)
    assert values(parts, "input")["collected_doubt"] == doubt


def test_short_waits_inside_do_not_make_a_worker_begin_late_time_and_again() -> None:
    """One worker begins three steps late by 2 s each; that forwards wait for 1 ms besides tells nothing of these."""
    short = of(StallKind.INPUT, {(FORWARD, 0, mb, step, 0): 0.001 for mb in (0, 1) for step in range(N_STEPS)})
    start_s = np.zeros((1, N_STEPS, 3))
    start_s[0, [1, 4, 9], 0] = 2.0
    parts = stalled(before=short, n_stages=1, n_dp=3)
    parts = dataclasses.replace(parts, start_s=start_s, start_recorded=start_s < 0)
    assert values(parts, "input")["collected_doubt"] == COLLECTED_CHANCE


@pytest.mark.parametrize(("n_dp", "stage", "chance"), [(6, 2, 3**-5), (1, 2, 1.0), (6, 0, 1.0)])
def test_collections_choose_no_stage(n_dp: int, stage: int, chance: float) -> None:
    """Six workers of the last of three stages wait, and no others: labels. Between steps collections show on the first alone."""
    late = {(FORWARD, stage, 0, dp, dp): 2.0 for dp in range(n_dp)}
    parts = stalled(before=of(StallKind.INPUT, late), n_stages=3, n_dp=6)
    assert values(parts, "input")["collected_doubt"] == pytest.approx(COLLECTED_CHANCE * chance)


@pytest.mark.parametrize(("n_together", "doubt"), [(4, COLLECTED_CHANCE), (8, 0.0)])
def test_few_steps_with_waits_of_several_may_be_chance(n_together: int, doubt: float) -> None:
    """Of eight steps one has four of seven waits by chance, 2.1 times the usual variance, but not eight of eleven, 5.4 times."""
    places = {(1, dp) for dp in range(n_together)} | {(0, 8), (3, 9), (7, 10)}
    waits = of(StallKind.INPUT, {(FORWARD, 0, 0, step, dp): 2.0 for step, dp in places})
    assert values(stalled(before=waits, n_stages=1, n_dp=12), "input")["collected_doubt"] == doubt


@pytest.mark.parametrize(("of_backward", "doubt"), [(1.0, 0.0), (1.41, PACE_CHANCE)])
def test_an_allocator_takes_as_long_in_both_directions(
    of_backward: float, doubt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backwards work twice as long as forwards: halfway between as long a stall and as large a part nothing tells which it is."""
    monkeypatch.setattr("diagnose.features.stalls.chance_of_growth", lambda *_counts: 0.01)
    places = {
        (way, 0, mb, step, 1): (1.0 + 0.2 * (step % 3)) * of_backward**way
        for way in (0, 1)
        for mb in range(2)
        for step in range(5, N_STEPS)
    }
    found = values(stalled(of(StallKind.ALLOCATION, places)), "allocator")
    assert (found["pace_doubt"], found["unseen_doubt"]) == (doubt, 0.0)


@pytest.mark.parametrize(
    ("n_short", "ratio", "doubt"), [(4, 1.0, 0.0), (5, 1.0, PACE_CHANCE), (4, 2.0, 0.0), (5, 2.0, PACE_CHANCE)]
)
def test_pauses_have_no_other_side(n_short: int, ratio: float, doubt: float) -> None:
    """Twenty computes of a stage are a half longer than the others: if five are a half shorter all are of one wide spread.

    So it is around the pace of workers that are slow in the later steps.
    """
    places = {(way, 0, 0, step, dp): 0.5 for way in (0, 1) for step in (1, 6, 7, 8, 9) for dp in (0, 1)}
    parts = stalled(of(StallKind.ALLOCATION, places), n_dp=2, n_stages=2)
    compute_s = np.ones(parts.compute_s.shape) + parts.stalls.inside_s
    compute_s[0, 0, 1, -n_short:, 0] = 0.5
    worker_ratio = parts.worker_ratio.copy()
    worker_ratio[:, 0, 6:] = ratio
    np.multiply(parts.stalls.inside_s, worker_ratio[:, :, None], out=parts.stalls.inside_s)
    compute_s *= worker_ratio[:, :, None]
    found = values(dataclasses.replace(parts, compute_s=compute_s, worker_ratio=worker_ratio), "allocator")
    assert (found["pace_doubt"], found["unseen_doubt"]) == (doubt, 0.0)


@pytest.mark.parametrize(("held_s", "doubt"), [(2.4, 0.0), (2.6, LONE_CHANCE)])
def test_an_allocator_beside_computes_that_communication_holds_is_in_doubt(held_s: float, doubt: float) -> None:
    """Ten seconds on all ranks of a stage, beside more than a quarter of that in which others wait: these may be held, too."""
    places = {(BACKWARD, 0, 0, step, dp): 1.0 for dp in range(2) for step in range(5, N_STEPS)}
    parts = stalled(of(StallKind.ALLOCATION, places), n_dp=2)
    parts = dataclasses.replace(parts, queue_wait_s=np.full(parts.compute_s.shape, held_s / parts.compute_s.size))
    assert values(parts, "allocator")["unseen_doubt"] == doubt
    assert values(dataclasses.replace(parts, queue_wait_s=None), "allocator")["unseen_doubt"] == 0.0


@pytest.mark.parametrize(("last_s", "doubt"), [(2.0, 0.0), (1.92, 0.0), (1.8, COLLECTED_CHANCE)])
def test_both_ends_that_wait_as_long_do_not_collect(last_s: float, doubt: float) -> None:
    """The stage that reads labels waits by the same seconds in the same steps."""
    late = {
        (FORWARD, stage, 0, step, dp): s
        for step, dp in ((1, 0), (4, 1), (8, 0))
        for stage, s in ((0, 2.0), (2, last_s))
    }
    parts = stalled(before=of(StallKind.INPUT, late), n_stages=3)
    assert values(parts, "input")["collected_doubt"] == doubt


@pytest.mark.parametrize(
    ("place", "is_before", "doubt"),
    [
        ((FORWARD, 0, 0), True, COLLECTED_CHANCE),
        ((FORWARD, 0, 0), False, 0.0),
        ((FORWARD, 0, 1), True, 0.0),
        ((FORWARD, 1, 0), True, 0.0),
    ],
    ids=["before first forwards", "inside them", "before others", "on a stage that reads nothing"],
)
def test_collections_before_first_forwards_may_be_loaders(
    place: tuple[int, int, int], is_before: bool, doubt: float
) -> None:
    """No loader stops a forward that runs, nor one whose batch is long there."""
    pauses = of(StallKind.COLLECTION, {(*place, step, step % 2): 2.0 for step in (1, 4, 7, 8)})
    parts = stalled(before=pauses) if is_before else stalled(pauses)
    assert values(parts, "collection")["asked_doubt"] == doubt


@pytest.mark.parametrize(("share", "loader"), [(0.5, False), (0.4, True)])
def test_who_has_a_quick_loader_does_something_else_before_steps(share: float, *, loader: bool) -> None:
    """Where data-load rows are there in half of the steps and tell of no wait, what comes before steps is no loader's."""
    parts = stalled(before=of(StallKind.COLLECTION, {(FORWARD, 0, 0, step, 0): 2.0 for step in (1, 4, 7)}))
    rows = [(Op.DATA_LOAD, int(step)) for step in parts.steps[: round(share * N_STEPS)]]
    assert values(parts, "collection", *rows)["asked_doubt"] == (COLLECTED_CHANCE if loader else 0.0)


@pytest.mark.parametrize(
    ("varies_s", "told", "doubt"),
    [(0.0, False, ONCE_CHANCE), (0.0, True, 0.0), (1.0, False, 0.0)],
    ids=["always as long", "a row says so", "now longer, now shorter"],
)
def test_what_most_wait_for_before_every_step_may_be_anything(varies_s: float, told: bool, doubt: float) -> None:
    """A host does the same things before each step: without rows a loader that is always late is one of them."""
    waits = {(FORWARD, 0, 0, step, dp): 1.0 + varies_s * (step % 5) for step in range(N_STEPS) for dp in range(4)}
    parts = stalled(before=of(StallKind.INPUT, waits), n_stages=1, n_dp=4)
    if told:
        recorded = parts.stalls.before == StallKind.INPUT
        parts = dataclasses.replace(parts, stalls=dataclasses.replace(parts.stalls, recorded_before=recorded))
    assert values(parts, "input")["unseen_doubt"] == doubt


@pytest.mark.parametrize(("whose", "told"), [(StallKind.ALLOCATION, 1.0), (StallKind.NOBODY, None)])
def test_rows_before_a_reduction_are_asked_too(whose: StallKind, told: float | None) -> None:
    """Between the last compute and the reduction of gradients no compute stalls, but a row says what the reduction waits for."""
    late = dataclasses.replace(stalled(), late_kinds=({7: np.full((N_STEPS, 2), whose, dtype=np.int8)},))
    found = measure_stalls(late, evidence([(Op.CUDA_MALLOC, 101)]))
    assert found["allocator.recorded_share"].value == told
    assert measure_stalls(late, evidence())["allocator.recorded_share"].value is None
