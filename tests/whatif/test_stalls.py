"""What stalls are attributed to: evidence rows first, then a slow worker, a plan, input, the allocator, collections, or nobody."""

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.inputs import Pause, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.whatif.components.malloc_pause import _choose_stages
from diagnose.whatif.components.start_delay import find_begun
from diagnose.whatif.stalls import _length_apart, _list_followers, attribute_stalls
from tests.features.hand import evidence
from tests.judge.cases import Measured, measure, measured

FORWARD, BACKWARD = 0, 1
STAGES, MICROBATCHES, STEPS, DP = 4, 8, 24, 4
SEEDS = range(5)
#: Length of the stalls, seconds, where a forward takes 1 s and a backward 2 s.
STALL_S = 3.0


def nothing(*, n_stages: int = STAGES, n_microbatches: int = MICROBATCHES, n_dp: int = DP) -> np.ndarray:
    """Give no stalls, or none anywhere: zeros, axes as in `Breakdown`."""
    return np.zeros((2, n_stages, n_microbatches, STEPS, n_dp))


def at_random(where: np.ndarray, chance: float, seed: int) -> np.ndarray:
    """Let some of the computes marked stall, each about as long."""
    rng = np.random.default_rng(seed)
    return np.where(where & (rng.random(where.shape) < chance), STALL_S * rng.uniform(0.8, 1.25, where.shape), 0.0)


def marked(
    direction: Any, stage: Any = slice(None), microbatch: Any = slice(None), dp: Any = slice(None), **shape: int
) -> np.ndarray:
    """Mark computes by place."""
    where = nothing(**shape) > 0
    where[direction, stage, microbatch, :, dp] = True
    return where


def judged(
    inside_s: np.ndarray,
    before_s: np.ndarray | None = None,
    *,
    worker_ratio: np.ndarray | None = None,
    n_stages: int | None = None,
    reads_input: bool | None = None,
    late: tuple[np.ndarray, np.ndarray] | None = None,
    receiving: np.ndarray | None = None,
    spread: np.ndarray | float = 1.0,
) -> Stalls:
    """Attribute hand-made stalls, without any evidence row; a stage has one chunk unless `n_stages` says otherwise.

    `spread` is by how many times computes take longer than usual besides.
    """
    work_s = np.ones(inside_s.shape) * spread
    work_s[BACKWARD] *= 2.0
    n_virtual, n_steps, n_dp = inside_s.shape[1], inside_s.shape[3], inside_s.shape[4]
    return attribute_stalls(
        [],
        evidence(),
        inside_s,
        np.zeros(inside_s.shape) if before_s is None else before_s,
        work_s,
        np.ones((2, n_virtual, n_steps, n_dp)) if worker_ratio is None else worker_ratio,
        queued=None,
        late=(np.zeros(inside_s.shape, dtype=np.int8), inside_s < 0) if late is None else late,
        starts_late=np.zeros((n_steps, n_dp), dtype=bool),
        steps=np.arange(n_steps),
        receiving=receiving,
        n_stages=n_stages or n_virtual,
        reads_input=reads_input,
    )


def share_of(stalls: Stalls, whose: StallKind) -> float:
    """Say which part of the stalled seconds is attributed to one."""
    return float(stalls.seconds_of(whose).sum() / (stalls.inside_s.sum() + stalls.before_s.sum()))


# ------------------------------------------------------------------------------------------ by their place


@pytest.mark.parametrize("seed", SEEDS)
def test_sparse_stalls_of_forwards_are_collections(seed: int) -> None:
    """Every worker stalls in a forward now and then, no backward does: collections."""
    stalls = judged(at_random(marked(FORWARD), 0.02, seed))
    assert share_of(stalls, StallKind.COLLECTION) > 0.95


@pytest.mark.parametrize("before", [False, True], ids=["inside", "before"])
def test_collections_may_delay_a_forward_instead(before: bool) -> None:
    """The same before forwards and not in them: collections, too."""
    seconds, none = at_random(marked(FORWARD), 0.02, 1), nothing()
    stalls = judged(none, seconds) if before else judged(seconds, none)
    assert share_of(stalls, StallKind.COLLECTION) > 0.95


def test_who_waits_for_what_no_row_tells_is_nobodys() -> None:
    """Both directions of two stages begin late, as with a slow card between them: a place tells nothing without transfer rows."""
    seconds = at_random(marked(slice(None), slice(1, 3), dp=0), 1.0, 1)
    receiving = np.ones((2, STAGES, 1, 1, 1), dtype=bool)
    assert share_of(judged(nothing(), seconds), StallKind.NOBODY) < 0.5
    assert share_of(judged(nothing(), seconds, receiving=receiving), StallKind.NOBODY) == 1.0
    # Within a compute nobody waits for a transfer.
    within = at_random(marked(FORWARD), 0.02, 1)
    assert share_of(judged(within, seconds, receiving=receiving), StallKind.COLLECTION) > 0.0


def test_labels_are_late_where_inputs_are() -> None:
    """The first stage waits for each microbatch, the last starts some late, no other: of who waits for others less is seen."""
    first, last = at_random(marked(FORWARD, 0), 0.9, 1), at_random(marked(FORWARD, STAGES - 1), 0.06, 2)
    known = np.where(first > 0, int(StallKind.INPUT), 0).astype(np.int8), np.zeros(first.shape, dtype=bool)
    noise = at_random(marked(FORWARD, slice(1, STAGES - 1)), 0.01, 3)
    stalls = judged(noise, first + last, late=known)
    assert (stalls.before[first + last > 0] == StallKind.INPUT).all()
    assert (judged(noise, last).before[last > 0] == StallKind.COLLECTION).all()


@pytest.mark.parametrize(("n_late", "kind"), [(MICROBATCHES, StallKind.INPUT), (1, StallKind.COLLECTION)])
def test_labels_are_late_for_several_microbatches_of_a_step(n_late: int, kind: StallKind) -> None:
    """In a few steps only, on the stage that ends the model alone: no worker collects several times in one."""
    before_s = nothing(n_stages=2, n_dp=3)
    for step in (3, 9, 15, 21):
        for dp in range(3):
            before_s[FORWARD, 1, (step + dp) % (MICROBATCHES - n_late + 1) :, step, dp][:n_late] = STALL_S
    assert share_of(judged(nothing(n_stages=2, n_dp=3), before_s), kind) == 1.0


def test_collections_in_forwards_that_begin_late_anyway() -> None:
    """All begin each step late by as much, whatever for: collections of one rank that fall into the first forward are some, too."""
    seconds = at_random(marked(FORWARD, microbatch=[0, 1], dp=0, n_microbatches=2), 0.15, 3)
    begins = marked(FORWARD, microbatch=0, n_microbatches=2)
    late = np.where(begins, int(StallKind.INPUT), 0).astype(np.int8), np.zeros(begins.shape, dtype=bool)
    stalls = judged(seconds, np.where(begins, 0.3, 0.0), late=late)
    collected = stalls.of_kind(StallKind.COLLECTION)[0]
    assert (seconds[:, :, 0] > 0).sum() >= 5
    assert (collected == (seconds > 0)).all()
    assert (stalls.before[begins] == StallKind.INPUT).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("before", [False, True], ids=["inside", "before"])
def test_the_first_forward_of_a_step_waits_for_input(seed: int, before: bool) -> None:
    """Stalls of first forwards of the first stage alone are input, in them or before them, were it in a third of the steps."""
    seconds, none = at_random(marked(FORWARD, 0, 0), 0.35, seed), nothing()
    stalls = judged(none, seconds) if before else judged(seconds, none)
    assert share_of(stalls, StallKind.INPUT) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_forward_of_the_first_stage_may_wait_for_input(seed: int) -> None:
    """A loader that is late for nearly every microbatch is input, though collections stop forwards, too."""
    assert share_of(judged(at_random(marked(FORWARD, 0), 0.6, seed)), StallKind.INPUT) == 1.0


def test_one_bad_loader_is_input() -> None:
    """One dp rank whose first forward waits in most steps waits for its input."""
    assert share_of(judged(at_random(marked(FORWARD, 0, 0, 2), 0.8, 1)), StallKind.INPUT) == 1.0


@pytest.mark.parametrize(("steps", "kind"), [((0, 2), StallKind.INPUT), ((0,), StallKind.COLLECTION)])
def test_one_bad_loader_is_late_for_any_forward(steps: tuple[int, ...], kind: StallKind) -> None:
    """One rank alone, in two of five steps, for whichever microbatch; in one of five its forwards are collected in."""
    gaps = nothing()
    for step in range(STEPS):
        gaps[FORWARD, 0, 3 * step % MICROBATCHES, step, 2] = STALL_S if step % 5 in steps else 0.0
    assert share_of(judged(nothing(), gaps), kind) == 1.0


@pytest.mark.parametrize(
    ("length_s", "middle_s", "kind"),
    [
        (STALL_S, 0.0, StallKind.INPUT),
        (0.96 * STALL_S, 0.0, StallKind.INPUT),
        (0.6 * STALL_S, 0.0, StallKind.INPUT),
        (STALL_S, STALL_S, StallKind.COLLECTION),
    ],
    ids=["as long", "nearly", "shorter", "another stage, too"],
)
def test_both_ends_that_wait_as_long_read_from_one_loader(length_s: float, middle_s: float, kind: StallKind) -> None:
    """Inputs and labels of a rank, in one step: chance does not put two collections there, twice."""
    before_s = nothing()
    for step, dp in ((2, 0), (7, 1)):
        before_s[FORWARD, 0, 0, step, dp] = STALL_S
        before_s[FORWARD, STAGES - 1, 0, step, dp] = length_s
        before_s[FORWARD, 1, 0, step, dp] = middle_s
    assert judged(nothing(), before_s).before[FORWARD, STAGES - 1, 0, 2, 0] == kind


@pytest.mark.parametrize(("n_ranks", "is_own"), [(2, False), (DP, True)], ids=["together", "each in steps of its own"])
def test_both_ends_that_wait_in_the_same_steps_read_from_one_loader(n_ranks: int, *, is_own: bool) -> None:
    """However long each of them waits: workers that collect do not know of each other's steps."""
    where = marked(FORWARD, dp=slice(n_ranks), n_stages=2, n_microbatches=1)
    in_step = np.random.default_rng(3).random((2, 1, STEPS, DP)) < 0.25
    where[FORWARD] &= in_step if is_own else in_step[0]
    assert share_of(judged(at_random(where, 1.0, 3)), StallKind.COLLECTION if is_own else StallKind.INPUT) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_of_backwards_are_no_loaders_however_short(seed: int) -> None:
    """The first stage stands still three times as long in forwards as in backwards, and not much more often."""
    forwards, backwards = at_random(marked(FORWARD, 0), 0.2, seed), at_random(marked(BACKWARD, 0), 0.15, seed) / 3.0
    assert share_of(judged(forwards + backwards), StallKind.INPUT) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_who_stalls_in_both_directions_waits_for_no_loader_whoever_waits_beside_it(seed: int) -> None:
    """Of the first stage one rank stalls in forwards alone, so that all of these together are far more than the backwards."""
    both = at_random(marked(FORWARD, 0, dp=2), 0.35, seed) + at_random(marked(BACKWARD, 0, dp=2), 0.2, seed + 50)
    stalls = judged(both + at_random(marked(FORWARD, 0, dp=0), 0.35, seed + 99))
    assert not (stalls.inside[both > 0] == StallKind.INPUT).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_who_collects_more_often_on_the_first_stage_does_not_wait_for_input(seed: int) -> None:
    """In each of its forwards alike, and on all other stages, too: that the first ones stall as the others says nothing."""
    seconds = np.where(
        marked(FORWARD, 0), at_random(marked(FORWARD), 0.05, seed), at_random(marked(FORWARD), 0.01, seed + 50)
    )
    assert share_of(judged(seconds), StallKind.COLLECTION) > 0.95


@pytest.mark.parametrize(("n_chunks", "kind"), [(1, StallKind.COLLECTION), (2, StallKind.NOBODY)])
def test_a_worker_collects_in_half_of_its_steps_at_most(n_chunks: int, kind: StallKind) -> None:
    """Whichever of its chunks it is in: one worker stalls in its first chunk in even steps, and in its second in odd ones."""
    seconds = nothing(n_stages=4)
    seconds[FORWARD, 1, 3, ::2, 1] = seconds[FORWARD, 3, 3, 1::2, 1] = STALL_S
    assert share_of(judged(seconds, n_stages=4 // n_chunks), kind) == 1.0


def every_so_many(interval: dict[tuple[int, int], tuple[int, int]]) -> np.ndarray:
    """Let workers (stage, dp) stall every so many forwards, from one on, by lengths that differ; four microbatches a step."""
    forwards = np.arange(STEPS * 4)
    seconds = nothing(n_stages=2, n_microbatches=4)
    for (stage, dp), (every, first) in interval.items():
        of_worker = np.where(forwards % every == first, STALL_S * (1.0 + forwards % 3), 0.0)
        seconds[FORWARD, stage, :, :, dp] = of_worker.reshape(STEPS, 4).T
    return seconds


OWN = {
    (0, 0): (7, 1),
    (0, 1): (5, 3),
    (0, 2): (3, 0),
    (0, 3): (7, 2),
    (1, 0): (5, 2),
    (1, 1): (7, 0),
    (1, 2): (3, 1),
    (1, 3): (6, 4),
}


@pytest.mark.parametrize(
    ("interval", "kind"),
    [
        (OWN, StallKind.COLLECTION),
        (OWN | {(0, 3): (4, 2)}, StallKind.COLLECTION),
        (dict.fromkeys(OWN, (5, 1)), StallKind.INPUT),
        ({(stage, dp): (5, dp) for stage, dp in OWN}, StallKind.INPUT),
        ({(0, 2): (5, 1)}, StallKind.COLLECTION),
        ({(0, 2): (4, 1)}, StallKind.INPUT),
    ],
    ids=[
        "each its own",
        "one as many as a step has",
        "in turns",
        "a loader for both ends of each rank",
        "one worker",
        "one microbatch",
    ],
)
def test_who_counts_forwards_collects(interval: dict[tuple[int, int], tuple[int, int]], kind: StallKind) -> None:
    """In most steps, as these are short. Processes of a loader that take turns do so alike on all ranks, or at both ends of one."""
    assert share_of(judged(every_so_many(interval)), kind) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("stage", "dp", "kind"),
    [
        (0, slice(None), StallKind.ALLOCATION),
        (slice(0, 2), slice(None), StallKind.ALLOCATION),
        (0, 2, StallKind.ALLOCATION),
        (1, 2, StallKind.WORKER),
    ],
    ids=["a stage", "two stages", "a worker of the first stage", "one of another"],
)
def test_stalls_of_both_directions_in_one_place(seed: int, stage: Any, dp: Any, kind: StallKind) -> None:
    """Stages stall for their allocator in forwards and backwards alike, and workers where memory is fullest; others are stopped."""
    where = marked(FORWARD, stage, dp=dp) | marked(BACKWARD, stage, dp=dp)
    assert share_of(judged(at_random(where, 0.1, seed)), kind) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_stalls_ever_more_often_runs_out_of_memory(seed: int) -> None:
    """On whichever stage it is."""
    rng = np.random.default_rng(seed)
    often = (rng.random(nothing().shape) < np.linspace(0.0, 0.7, STEPS)[:, None]) & marked(slice(None), 1, dp=2)
    assert share_of(judged(np.where(often, STALL_S, 0.0)), StallKind.ALLOCATION) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_an_allocator_is_one_where_a_quick_loader_has_rows(seed: int) -> None:
    """Each forward of the stage begins a little late, as a row says: those that stand still for long are as backwards."""
    stalled = at_random(marked(slice(None), 0), 0.1, seed)
    reads = np.where(marked(FORWARD, 0), 0.01, 0.0)
    late = np.where(reads > 0, int(StallKind.INPUT), 0).astype(np.int8), reads > 0
    stalls = judged(stalled, reads, late=late)
    assert (stalls.inside[stalled > 0] == StallKind.ALLOCATION).mean() > 0.95
    assert (stalls.before[reads > 0] == StallKind.INPUT).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("of_backward", "dp", "kind"),
    [(2.0, 1, StallKind.WORKER), (1.0, 1, StallKind.ALLOCATION), (2.0, slice(None), StallKind.ALLOCATION)],
    ids=["a part of each", "as long", "on all ranks"],
)
def test_who_takes_a_part_longer_now_and_then_is_slow(seed: int, of_backward: float, dp: Any, kind: StallKind) -> None:
    """A machine that others share lengthens a backward of two seconds by twice as much as a forward; no allocator does."""
    inside_s = at_random(marked((FORWARD, BACKWARD), 0, dp=dp), 0.4, seed)
    inside_s[BACKWARD] *= of_backward
    assert share_of(judged(inside_s), kind) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("is_unsteady", "kind"), [(True, StallKind.WORKER), (False, StallKind.ALLOCATION)])
def test_an_allocator_leaves_most_computes_of_a_stage_as_they_were(
    seed: int, kind: StallKind, *, is_unsteady: bool
) -> None:
    """Where all machines of a stage are unsteady the computes that do not stand out are longer by some part, too."""
    rng = np.random.default_rng(seed)
    part = np.where(marked((FORWARD, BACKWARD), 1), rng.exponential(0.1, nothing().shape), 0.0)
    spread = rng.normal(1.0, 0.01, part.shape) + np.where(part > 0.2, 0.0, part) * is_unsteady
    inside_s = np.where(part > 0.2, part, 0.0)
    inside_s[BACKWARD] *= 2.0
    assert share_of(judged(inside_s, spread=spread), kind) > 0.8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("stages", "dp"),
    [(slice(0, 1), slice(None)), (slice(2, 4), slice(None)), (slice(None), 1)],
    ids=["first", "last", "replica"],
)
def test_processes_that_are_stopped_by_the_clock(seed: int, stages: slice, dp: Any) -> None:
    """Twice as often in backwards, which take twice as long, whichever workers are of the host: no allocator does so."""
    shape = {"n_dp": 2}
    inside_s = at_random(marked(FORWARD, stages, dp=dp, **shape), 0.15, seed)
    inside_s += at_random(marked(BACKWARD, stages, dp=dp, **shape), 0.3, seed + 100)
    assert share_of(judged(inside_s), StallKind.WORKER) > 0.9


@pytest.mark.parametrize(
    ("workers", "often"),
    [([(1, 3), (0, 1)], 0.4), ([(1, 3)], 0.3), ([(1, 3)], 0.7), ([(0, 0)], 0.7)],
    ids=["beside another", "alone", "alone and mostly", "on the first stage"],
)
def test_who_is_slow_for_moments(workers: list[tuple[int, int]], often: float) -> None:
    """Backwards there come right after their forwards: both are longer by a like part, which no pause that reaches on is."""
    spec = JobSpec(pp=4, dp=4, microbatches=16, steps=14, seed=3)
    moments = np.where(np.random.default_rng(1).random((len(workers), 2, 16, 14)) < often, 1.8, 1.0)
    moments[0, BACKWARD] = moments[0, FORWARD]
    healthy = draw_inputs(spec)
    programme, work_s = healthy.programme, healthy.work_s.copy()
    for (dp, stage), factors in zip(workers, moments, strict=True):
        for op, factor in zip((Op.FORWARD, Op.BACKWARD), factors, strict=True):
            tasks = np.flatnonzero((programme.stage == stage) & programme.is_op(op))
            work_s[tasks, :, dp] *= factor[programme.microbatch[tasks]]
    slow = dataclasses.replace(healthy, work_s=work_s)
    (cause,) = measure(record(slow, simulate(slow))).diagnosis.causes
    assert cause.cause == "worker-fault"
    assert {(worker.dp, worker.pp) for worker in cause.where.workers} == set(workers)
    assert cause.recoverable > 0.3 * often


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_slow_for_moments_is_no_reference(seed: int) -> None:
    """Beside a replica that is known to be slow the other one has a few stalls: these are nobody's."""
    few = at_random(marked(slice(None), dp=0, n_dp=2), 0.05, seed)
    slow = at_random(marked(slice(None), dp=1, n_dp=2), 0.5, seed + 100)
    ratio = np.ones((2, STAGES, STEPS, 2))
    ratio[..., 1] = 3.0
    stalls = judged(few + slow, worker_ratio=ratio)
    assert (stalls.inside[few > 0] == StallKind.NOBODY).all()


@pytest.mark.parametrize(
    ("workers", "n_by_chance"),
    [([(0, 1)], 1), ([(0, 1), (0, 3)], 2), ([(0, 1), (0, 2)], 1), ([(0, 1), (1, 3)], 1), ([(0, 0), (0, 2), (0, 5)], 4)],
)
def test_machines_choose_no_stage(workers: list[tuple[int, int]], n_by_chance: int) -> None:
    """Of two stages: each worker but the first is on the same one by chance once in two times; neighbours may be of one host."""
    marked = np.zeros((2, 7), dtype=bool)
    marked[tuple(np.transpose(workers))] = True
    assert _choose_stages(marked) == pytest.approx(np.log(n_by_chance))


@pytest.mark.parametrize("seed", SEEDS)
def test_rare_stalls_of_a_stage_are_on_some_of_its_workers(seed: int) -> None:
    """Every second of sixteen dp ranks has some: so many on a stage that is not the first are its memory's, and no machines'."""
    shape = {"n_dp": 16, "n_microbatches": 1}
    every_second = slice(0, None, 2)
    where = marked(FORWARD, 1, dp=every_second, **shape) | marked(BACKWARD, 1, dp=every_second, **shape)
    assert share_of(judged(at_random(where, 0.06, seed)), StallKind.ALLOCATION) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.02, 0.05, 0.4])
def test_stalls_everywhere_are_nobodys(seed: int, share: float) -> None:
    """Where all workers stall in both directions at random it is neither the allocator nor a collection, however many do."""
    stalls = judged(at_random(marked(FORWARD) | marked(BACKWARD), share, seed))
    assert share_of(stalls, StallKind.NOBODY) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_everywhere_that_come_ever_more_often_are_the_allocators(seed: int) -> None:
    """Memory fills up: all workers stall in both directions, in the last steps several times as often as in the first."""
    rng = np.random.default_rng(seed)
    often = rng.random(nothing().shape) < np.linspace(0.01, 0.12, STEPS)[:, None]
    stalls = judged(np.where(often, STALL_S, 0.0))
    assert share_of(stalls, StallKind.ALLOCATION) > 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_on_half_of_the_workers_at_a_time_are_nobodys(seed: int) -> None:
    """Two hosts are busy for three steps now and then, on two stages each: no part of the workers is the one that stalls."""
    rng = np.random.default_rng(seed)
    busy = np.zeros((2, STEPS), dtype=bool)
    for host, since in ((0, 1), (1, 4), (0, 9), (1, 15), (1, 20)):
        busy[host, since : since + 3] = True
    where = np.broadcast_to(np.repeat(busy, 2, axis=0)[:, None, :, None], nothing().shape[1:])
    stalls = judged(np.where((rng.random(nothing().shape) < 0.3) & where, STALL_S, 0.0))
    assert share_of(stalls, StallKind.ALLOCATION) == 0.0
    assert share_of(stalls, StallKind.COLLECTION) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_collections_that_lengthen_a_few_backwards_stay_collections(seed: int) -> None:
    """A few backwards of one worker or of all are longer, too: far fewer than forwards, so it is no allocator."""
    for dp in (slice(None), 1):
        forwards, backwards = (
            at_random(marked(FORWARD, dp=dp), 0.03, seed),
            at_random(marked(BACKWARD, dp=dp), 0.004, seed + 50),
        )
        stalls = judged(forwards + backwards)
        assert (stalls.inside[forwards > 0] == StallKind.COLLECTION).all()
        assert share_of(stalls, StallKind.ALLOCATION) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_collections_beside_an_allocator_stay_collections(seed: int) -> None:
    """Of sparse stalls in all forwards and frequent ones on the first stage in both directions, each is attributed to its own."""
    collections = at_random(marked(FORWARD, slice(1, None)), 0.03, seed)
    allocator = at_random(marked(FORWARD, 0) | marked(BACKWARD, 0), 0.15, seed + 100)
    stalls = judged(collections + allocator)
    assert (stalls.inside[(collections > 0)] == StallKind.COLLECTION).mean() > 0.95
    assert (stalls.inside[(allocator > 0)] == StallKind.ALLOCATION).mean() > 0.8


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_stages_may_have_a_bad_allocator(seed: int) -> None:
    """Where half of the stages stall in both directions none does so far more often than all others, but all do together."""
    where = marked(FORWARD, slice(0, 3), n_stages=6) | marked(BACKWARD, slice(0, 3), n_stages=6)
    assert share_of(judged(at_random(where, 0.1, seed)), StallKind.ALLOCATION) > 0.95


@pytest.mark.parametrize(
    ("every", "stages", "whose"),
    [(4, STAGES, StallKind.SAVING), (1, STAGES, StallKind.COLLECTION), (4, 1, StallKind.INPUT)],
    ids=["at an interval", "in any step", "of one stage"],
)
def test_workers_that_leave_a_save_one_after_the_other(every: int, stages: int, whose: StallKind) -> None:
    """Now one dp rank and now another begins the step after a save late, on all stages: a collector counts no steps."""
    late = nothing()
    steps = np.arange(3, STEPS, 4) if every > 1 else np.random.default_rng(2).permutation(STEPS)[:6]
    for turn, step in enumerate(steps.tolist()):
        for stage in range(stages):
            late[FORWARD, stage, 0, step, (turn + stage) % DP] = STALL_S
    assert share_of(judged(nothing(), late), whose) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("ratio", "alone", "is_allocator"),
    [(2.0, 0.0, False), (2.0, 0.1, False), (1.0, 0.0, True)],
    ids=["like parts", "like parts, some forwards alone", "as long"],
)
def test_microbatches_that_are_long_in_both_directions_on_one_stage_are_no_allocators(
    seed: int, ratio: float, alone: float, is_allocator: bool
) -> None:
    """Backwards take twice as long as forwards: where the same ones are longer by the same part, it is what they hold."""
    stalls = at_random(marked(FORWARD, 3), 0.3, seed)
    stalls[BACKWARD] = stalls[FORWARD] * ratio
    stalls = np.maximum(stalls, at_random(marked(FORWARD, 3), alone, seed + 1))
    assert (share_of(judged(stalls), StallKind.ALLOCATION) > 0.5) == is_allocator


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("stage", "dp", "kind"),
    [(3, 1, StallKind.WORKER), (3, slice(None), StallKind.NOBODY), (slice(None), 1, StallKind.NOBODY)],
    ids=["worker", "stage", "replica"],
)
def test_one_worker_alone_holds_no_longer_microbatches(seed: int, stage: Any, dp: Any, kind: StallKind) -> None:
    """Documents are long on all stages of a rank, images on all ranks of a stage: else its machine is slow now and then."""
    stalls = at_random(marked(FORWARD, stage, dp=dp), 0.4, seed)
    stalls[BACKWARD] = 2.0 * stalls[FORWARD]
    assert share_of(judged(stalls), kind) > 0.9


# ------------------------------------------------------------------------- input, or collections, with one microbatch


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_of_the_first_stage_alone_are_input(seed: int) -> None:
    """With one microbatch gaps before forwards of the first stage are input, collections inside of forwards anywhere stay such."""
    shape = {"n_microbatches": 1}
    gaps = at_random(marked(FORWARD, 0, **shape), 0.2, seed)
    collections = at_random(marked(FORWARD, **shape), 0.2, seed + 100) * (gaps == 0)
    stalls = judged(collections, gaps)
    assert (stalls.before[gaps > 0] == StallKind.INPUT).all()
    assert (stalls.inside[collections > 0] == StallKind.COLLECTION).mean() > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_of_all_stages_are_collections(seed: int) -> None:
    """With one microbatch gaps before forwards of all stages are collections, on the first stage, too."""
    gaps = at_random(marked(FORWARD, n_microbatches=1), 0.2, seed)
    assert share_of(judged(np.zeros(gaps.shape), gaps), StallKind.COLLECTION) > 0.95


@pytest.mark.parametrize("place", [(0, 2), (1, 2), (0, 5)], ids=["first", "another stage", "another microbatch"])
def test_two_gaps_in_the_only_place_that_waits_for_input(place: tuple[int, int]) -> None:
    """Of 32 forwards of a worker in a step both gaps hit the first of the first stage: no chance; elsewhere they say nothing."""
    stage, step = place
    gaps = nothing()
    gaps[FORWARD, stage, 0 if step == 2 else 3, [step, 9], 1] = STALL_S
    whose = StallKind.INPUT if place == (0, 2) else StallKind.COLLECTION
    assert share_of(judged(nothing(), gaps), whose) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stops_backwards_as_often_is_waited_for_by_nobody(seed: int) -> None:
    """The allocator of the first stage may stop most of its ranks at once, in a forward as in a backward."""
    shape = {"n_stages": 2, "n_dp": 16}
    stalls = judged(at_random(marked(FORWARD, 0, **shape) | marked(BACKWARD, 0, **shape), 0.5, seed))
    assert share_of(stalls, StallKind.ALLOCATION) == 1.0


def test_a_forward_that_all_ranks_wait_for_waits_for_input() -> None:
    """All 8 ranks of the first stage at once in a single step, which no collections are; all stages at once are a plan."""
    for stages, whose in ((slice(0, 1), StallKind.INPUT), (slice(None), StallKind.TOGETHER)):
        gaps = nothing(n_dp=8)
        gaps[FORWARD, stages, 5, 7] = STALL_S
        assert share_of(judged(np.zeros(gaps.shape), gaps), whose) == 1.0
    # ... and beside collections of every stage.
    gaps[FORWARD, 1:] = 0.0
    collections = np.where(gaps > 0, 0.0, at_random(marked(FORWARD, n_dp=8), 0.02, 0))
    stalls = judged(collections, gaps)
    assert (stalls.before[gaps > 0] == StallKind.INPUT).all()
    assert (stalls.inside[collections > 0] == StallKind.COLLECTION).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("before", [False, True], ids=["inside", "before"])
def test_workers_that_wait_together_wait_for_input(seed: int, before: bool) -> None:
    """With one stage and one microbatch, a third of 16 ranks in every second step, others in each, is no collections' doing."""
    shape = {"n_stages": 1, "n_microbatches": 1, "n_dp": 16}
    seconds, none = at_random(marked(FORWARD, **shape), 0.35, seed), nothing(**shape)
    seconds[:, :, :, ::2] = 0.0
    stalls = judged(none, seconds) if before else judged(seconds, none)
    assert share_of(stalls, StallKind.INPUT) == 1.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", [0, 12], ids=["always", "from step 12"])
def test_workers_that_stop_one_by_one_collect(seed: int, first: int) -> None:
    """The same ranks in steps of their own do not come together, were it from a step on."""
    shape = {"n_stages": 1, "n_microbatches": 1, "n_dp": 16}
    seconds = at_random(marked(FORWARD, **shape), 0.2, seed)
    seconds[:, :, :, :first] = 0.0
    assert share_of(judged(seconds), StallKind.COLLECTION) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_that_stop_more_often_in_time_do_not_come_together(seed: int) -> None:
    """Stalls of single ranks that become five times as frequent are no waits of all for one storage."""
    shape = {"n_stages": 1, "n_microbatches": 1, "n_dp": 64}
    often = np.linspace(0.06, 0.3, STEPS)[:, None]
    seconds = at_random(marked(FORWARD, **shape), 1.0, seed)
    seconds *= np.random.default_rng(seed).random(seconds.shape) < often
    assert share_of(judged(seconds), StallKind.COLLECTION) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_collections_beside_a_loader_that_all_wait_for(seed: int) -> None:
    """All ranks start late in most steps, each by another time; what stops forwards in the others stays collections."""
    shape = {"n_stages": 1, "n_microbatches": 1, "n_dp": 32}
    gaps = at_random(marked(FORWARD, **shape), 1.0, seed)
    gaps[:, :, :, ::4] = 0.0
    collections = at_random(marked(FORWARD, **shape), 0.15, seed + 100)
    stalls = judged(np.where(gaps > 0, 0.0, collections), gaps)
    assert (stalls.before[gaps > 0] == StallKind.INPUT).all()
    assert (stalls.inside[(collections > 0) & (gaps == 0)] == StallKind.COLLECTION).all()


def test_few_long_stalls_are_looked_at_before_many_short_ones() -> None:
    """Eight waits for the first batch are input beside a hundred stalls of the allocator a twentieth as long."""
    waits = at_random(marked(FORWARD, 0, 0), 0.1, 1)
    short = 0.05 * at_random(marked(FORWARD, 0, slice(1, None)) | marked(BACKWARD, 0), 0.1, 2)
    assert 5 <= (waits > 0).sum() < (short > 0).sum() / 10
    stalls = judged(waits + short)
    assert (stalls.inside[waits > 0] == StallKind.INPUT).all()
    assert (stalls.inside[short > 0] == StallKind.ALLOCATION).mean() > 0.8


def test_all_workers_at_once_are_a_plan() -> None:
    """All workers at the same place of every sixth step: planned; within a forward it is a collection, and no evaluation."""
    seconds = nothing()
    seconds[FORWARD, :, 3, ::6] = STALL_S
    assert share_of(judged(nothing(), seconds), StallKind.PLANNED) == 1.0
    assert share_of(judged(seconds), StallKind.COLLECTION) == 1.0


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        (slice(2, None, 6), StallKind.SAVING),
        ([1, 2, 11, 23], StallKind.INPUT),
        (slice(0, None, 2), StallKind.INPUT),
        ([3, 21], StallKind.INPUT),
    ],
    ids=["an interval", "now and then", "every second step", "twice"],
)
def test_all_begin_late_every_so_many_steps_after_a_stop(at: Any, kind: StallKind) -> None:
    """With one stage, whose first forwards all are late: at an interval something stops all, else they wait for a batch."""
    late = nothing(n_stages=1)
    late[FORWARD, 0, 0, at] = STALL_S
    stalls = judged(nothing(n_stages=1), late)
    assert set(stalls.before[late > 0]) == {kind}


@pytest.mark.parametrize(("n_dp", "kind"), [(2, StallKind.SAVING), (1, StallKind.INPUT)])
@pytest.mark.parametrize("n_stages", [1, 4])
def test_the_first_rank_begins_late_at_an_interval(n_stages: int, n_dp: int, kind: StallKind) -> None:
    """It writes for all where there are others; the only rank may as well wait for its batch."""
    late = nothing(n_stages=n_stages, n_dp=n_dp)
    late[FORWARD, 0, 0, 2::6, 0] = STALL_S
    stalls = judged(nothing(n_stages=n_stages, n_dp=n_dp), late)
    assert set(stalls.before[late > 0]) == {kind}


@pytest.mark.parametrize(("shape", "begun"), [({}, True), ({"gathers": False}, False), ({"gathers_last": True}, False)])
def test_who_has_met_others_in_a_step_saves_nothing_in_it(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, bool], begun: bool
) -> None:
    """Parameters are gathered as a step begins: who stops between that and its first forward has no save, but its batch to read."""
    found = measured(JobSpec(pp=2, dp=2, microbatches=4, steps=6, seed=1, **shape))  # type: ignore[arg-type] # all are flags
    is_begun = find_begun(found.observed, found.breakdown.compute_s.shape, 2)
    assert (is_begun == begun).all()
    monkeypatch.setattr("diagnose.whatif.stalls.find_begun", lambda *_: np.full((4, STEPS, 2), begun))
    late = nothing(n_dp=2)
    late[FORWARD, 0, 0, 2::6, 0] = STALL_S
    stalls = judged(nothing(n_dp=2), late)
    assert set(stalls.before[late > 0]) == {StallKind.INPUT if begun else StallKind.SAVING}


@pytest.mark.parametrize(
    ("reads", "kind"), [(None, StallKind.INPUT), (True, StallKind.INPUT), (False, StallKind.TOGETHER)]
)
def test_who_reads_nothing_waits_for_no_batch(reads: bool | None, kind: StallKind) -> None:
    """Where the metadata say that no worker reads data what stops all of them is something else."""
    late = nothing(n_stages=1)
    late[FORWARD, 0, 0, [1, 2, 11, 23]] = STALL_S
    assert share_of(judged(nothing(n_stages=1), late, reads_input=reads), kind) == 1.0


def test_all_workers_at_once_now_and_then_have_no_plan() -> None:
    """All workers in the same forward of steps without a period: slow steps."""
    seconds = nothing()
    seconds[FORWARD, :, 3, [0, 3, 4, 11, 13, 18, 23]] = STALL_S
    stalls = judged(seconds)
    assert share_of(stalls, StallKind.TOGETHER) == 1.0


def test_collections_of_all_workers_every_so_many_steps_are_collections() -> None:
    """Each in a forward of its own of the same step, as where a training loop collects on all ranks, for much of the time."""
    seconds = nothing()
    for stage in range(STAGES):
        for dp in range(DP):
            seconds[FORWARD, stage, (2 * stage + dp) % MICROBATCHES, ::6, dp] = STALL_S
    assert share_of(judged(seconds), StallKind.COLLECTION) == 1.0


@pytest.mark.parametrize(("n_long", "length_s"), [(2, None), (3, 4.0)])
def test_three_long_stalls_stand_out(n_long: int, length_s: float | None) -> None:
    """More than four times as long as all others; not where a backward is as long."""
    seconds = np.full((2, 1, 1, 12, 1), 0.9)
    seconds[0, 0, 0, :n_long] = 4.0
    left = np.ones(seconds.shape, dtype=bool)
    assert _length_apart(seconds, left) == length_s
    seconds[1, 0, 0, 5] = 4.0
    assert _length_apart(seconds, left) is None


@pytest.mark.parametrize(("n_forward", "length_s"), [(12, 1.0), (3, None)], ids=["no chance", "chance"])
def test_what_is_longer_than_any_backward_and_most_of_all(n_forward: int, length_s: float | None) -> None:
    """Forwards of 1 s to 3.2 s beside six backwards of 0.9 s; forwards alone have nobody to stand out from."""
    seconds = np.zeros((2, 1, 1, 12, 1))
    seconds[0, 0, 0, :n_forward, 0] = np.linspace(1.0, 3.2, n_forward)
    assert _length_apart(seconds, seconds > 0) is None
    seconds[1, 0, 0, :6] = 0.9
    assert _length_apart(seconds, seconds > 0) == length_s


@pytest.mark.parametrize("seed", SEEDS)
def test_collections_beside_pauses_of_a_busy_host(seed: int) -> None:
    """Each worker pauses for 0.9 s to 6 s in a forward now and then, and all computes for up to 0.8 s, as often backwards."""
    rng = np.random.default_rng(seed)
    noise = np.where(rng.random(nothing().shape) < 0.02, rng.uniform(0.4, 0.8, nothing().shape), 0.0)
    length_s = rng.uniform(0.9, 6.0, nothing().shape)
    collected = np.where(marked(FORWARD) & (rng.random(nothing().shape) < 0.015), length_s, 0.0)
    stalls = judged(np.maximum(noise, collected))
    assert (stalls.inside[collected > 0] == StallKind.COLLECTION).mean() > 0.9


def test_each_in_its_own_step_is_no_plan() -> None:
    """The same stalls, each worker's in other steps, are collections."""
    seconds = nothing()
    for stage in range(STAGES):
        for dp in range(DP):
            seconds[FORWARD, stage, 3, (stage + STAGES * dp) % 6 :: 6, dp] = STALL_S
    assert share_of(judged(seconds), StallKind.TOGETHER) == 0.0
    assert share_of(judged(seconds), StallKind.COLLECTION) > 0.95


def test_small_stalls_beside_long_ones_are_not_drawn_along() -> None:
    """Ordinary tails of both directions on all workers, a hundredth as long, leave collections what they are."""
    collections = at_random(marked(FORWARD), 0.02, 2)
    tails = at_random(marked(FORWARD) | marked(BACKWARD), 0.03, 3) / 100.0
    stalls = judged(np.where(collections > 0, collections, tails))
    assert (stalls.inside[collections > 0] == StallKind.COLLECTION).mean() > 0.95
    assert stalls.seconds_of(StallKind.ALLOCATION).sum() < 0.02 * collections.sum()


def test_an_unsteady_slow_worker_is_its_own_doing() -> None:
    """A worker twice as slow stands out by a half now and then: that is the worker, and the same on a healthy one is not."""
    ratio = np.ones((2, STAGES, STEPS, DP))
    ratio[:, 0, :, 2] = 2.0
    seconds = at_random(marked((FORWARD, BACKWARD), 0, dp=2), 0.1, 4) / STALL_S / 2.0
    assert share_of(judged(seconds, worker_ratio=ratio), StallKind.WORKER) == 1.0
    assert share_of(judged(seconds), StallKind.WORKER) == 0.0


def test_a_long_stall_of_a_slow_worker_is_not_its_slowness() -> None:
    """A stall of ten computes on a worker half as fast again is no unsteadiness."""
    ratio = np.ones((2, STAGES, STEPS, DP))
    ratio[:, 1, :, 2] = 1.5
    seconds = nothing()
    seconds[FORWARD, 1, 3, ::5, 2] = 10.0
    assert share_of(judged(seconds, worker_ratio=ratio), StallKind.WORKER) == 0.0


def test_no_stalls_are_nobodys() -> None:
    """Without stalls nothing is attributed to anybody."""
    stalls = judged(nothing())
    assert not stalls.inside.any() and not stalls.before.any()
    assert not any(stalls.seconds_of(whose).any() for whose in StallKind)


def test_a_single_stall_of_a_backward_is_nobodys() -> None:
    """One backward that stands still once is not enough to blame the allocator, and no collection stops it."""
    seconds = nothing()
    seconds[BACKWARD, 2, 3, 7, 1] = STALL_S
    assert share_of(judged(seconds), StallKind.NOBODY) == 1.0


@pytest.mark.parametrize(
    "shape", [{"n_stages": 1}, {"n_dp": 1}, {"n_stages": 1, "n_dp": 1}, {"n_microbatches": 1}], ids=str
)
def test_small_jobs_are_survived(shape: dict[str, int]) -> None:
    """With one stage, rank, worker or microbatch every stall still is attributed to something, warnings being errors."""
    for direction in (FORWARD, BACKWARD):
        seconds = at_random(marked(direction, **shape), 0.1, 5)
        stalls = judged(seconds)
        assert (stalls.inside[seconds <= 0] == StallKind.NOBODY).all()
        if direction == BACKWARD:
            assert share_of(stalls, StallKind.COLLECTION) == share_of(stalls, StallKind.INPUT) == 0.0


def test_renaming_dp_ranks_renames_stalls() -> None:
    """With the dp ranks in another order every stall is attributed to the same."""
    seconds = at_random(marked(FORWARD), 0.02, 6) + at_random(marked(BACKWARD, 0), 0.1, 7)
    order = [2, 0, 3, 1]
    np.testing.assert_array_equal(judged(seconds[..., order]).inside, judged(seconds).inside[..., order])


# ------------------------------------------------------------------------------------------ evidence rows come first

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=91)
SAYS = {Op.GC: StallKind.COLLECTION, Op.CUDA_MALLOC: StallKind.ALLOCATION, Op.DATA_LOAD: StallKind.INPUT}
#: Where stalls lie, by what they would be taken for without rows.
PLACES: dict[str, tuple[Op, int | None, int | None]] = {
    "sparse forwards": (Op.FORWARD, None, None),
    "first forwards": (Op.FORWARD, 0, 0),
    "backwards of a stage": (Op.BACKWARD, 0, None),
}


def recorded(kind: Op, place: str, where: Literal["inside", "before"], *, rows: bool = True) -> Measured:
    """Let some computes stall for four forwards each, with rows of a type."""
    op, stage, number = PLACES[place]
    inputs, rng = draw_inputs(SPEC), np.random.default_rng(8)
    programme = inputs.programme
    at = programme.is_op(op)
    at &= (programme.stage == stage) | (stage is None)
    at &= (programme.microbatch == number) | (number is None)
    happens = at[:, None, None] & (rng.random(inputs.work_s.shape) < (0.03 if stage is None else 0.15))
    pause = Pause(kind, np.where(happens, 4 * SPEC.forward_s, 0.0), where, recorded=rows)
    inputs = dataclasses.replace(inputs, pauses=(pause,))
    return measure(record(inputs, simulate(inputs)))


@pytest.mark.parametrize("where", ["inside", "before"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", SAYS, ids=str)
def test_rows_come_first(kind: Op, place: str, where: Literal["inside", "before"]) -> None:
    """What an evidence row says of a stall is believed, wherever the stall lies, and is marked as recorded."""
    stalls = recorded(kind, place, where).breakdown.stalls
    seconds, whose, said = (
        (stalls.inside_s, stalls.inside, stalls.recorded_inside)
        if where == "inside"
        else (stalls.before_s, stalls.before, stalls.recorded_before)
    )
    long = seconds > SPEC.forward_s
    assert long.sum() > 5
    assert (whose[long] == SAYS[kind]).mean() > 0.95
    assert said[long].mean() > 0.95


@pytest.mark.parametrize(
    ("place", "whose"),
    [
        ("sparse forwards", StallKind.COLLECTION),
        ("first forwards", StallKind.INPUT),
        ("backwards of a stage", StallKind.ALLOCATION),
    ],
)
def test_without_rows_the_place_says(place: str, whose: StallKind) -> None:
    """The same stalls without rows are attributed by their place, and none is marked as recorded."""
    stalls = recorded(Op.GC, place, "inside", rows=False).breakdown.stalls
    long = stalls.inside_s > SPEC.forward_s
    assert (stalls.inside[long] == whose).mean() > 0.9
    assert not stalls.recorded_inside.any()


def test_rows_do_not_hide_a_median() -> None:
    """Where every backward of a stage has an allocator row for half of it, that half is no part of the stage's work."""
    inputs = draw_inputs(SPEC)
    here = inputs.programme.is_op(Op.BACKWARD) & (inputs.programme.stage == 0)
    seconds = np.where(here[:, None, None], 2.0 * SPEC.forward_s, 0.0) * np.ones(inputs.work_s.shape)
    inputs = dataclasses.replace(inputs, pauses=(Pause(Op.CUDA_MALLOC, seconds, "inside", recorded=True),))
    c = measure(record(inputs, simulate(inputs))).breakdown
    np.testing.assert_allclose(c.typical_s[BACKWARD, 0] / c.typical_s[BACKWARD, 1:].mean(), 1.0, atol=0.1)
    assert c.stalls.seconds_of(StallKind.ALLOCATION).sum() == pytest.approx(seconds.sum(), rel=0.1)


@pytest.mark.parametrize(
    "fault", [(), (WorkerFault(places=((1, 2),), slowdown=2.0, spread=0.05),)], ids=["healthy", "slow worker"]
)
def test_without_pauses_next_to_nothing_is_attributed(fault: Any) -> None:
    """A job in which nothing stands still has no stalls to speak of, not even beside an unsteady slow worker."""
    c = measured(SPEC, *fault).breakdown
    blamed = sum(
        c.stalls.seconds_of(whose).sum() for whose in (StallKind.COLLECTION, StallKind.ALLOCATION, StallKind.INPUT)
    )
    assert blamed < 1e-3 * np.nansum(c.compute_s)


def test_a_backward_follows_the_forward_before_it() -> None:
    """On the last stage the one of the same microbatch; there and elsewhere in all steps."""
    spec = JobSpec(pp=2, dp=2, microbatches=4, steps=6, seed=1)
    (o,) = measured(spec).observed
    found = [(after, before) for _, after, before in _list_followers([o], 2)]
    assert all(before[0] == FORWARD and after[0] == BACKWARD and before[1] == after[1] for after, before in found)
    assert [(after[2], before[2]) for after, before in found if after[1] == 1] == [(n, n) for n in range(4)]


def test_half_of_the_stages_that_stall_more_and_more() -> None:
    """What most of their computes take in the end is not what they usually take: before that they took far less."""
    spec = JobSpec(pp=4, dp=4, microbatches=2, steps=30, seed=2)
    fault = AllocatorStall(
        kind="growth", on_stages=(0, 1), stall_ratio=0.33, probability=0.28, frequency_growth=3.4, length_growth=1.0
    )
    found = measured(spec, fault)
    typical_s = found.breakdown.typical_s
    assert found.diagnosis.verdict == "straggling"
    assert typical_s.max(axis=1) == pytest.approx(typical_s[:, 2:].mean(axis=1), rel=0.2)
