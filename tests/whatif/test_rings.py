"""A slow link of a ring: its collectives end late behind it, which is no clock, and says where it is."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import NAMES, Op
from diagnose.model.place import Link, Worker
from diagnose.model.trace import Seconds
from tests.judge.cases import diagnose_table, make, measure, set_column
from tests.whatif.test_clocks import skew

SPEC = JobSpec(pp=1, dp=6, microbatches=4, steps=16, forward_s=0.05, seed=41)
#: Gradients are reduced to parts, once around the ring, or everywhere, twice.
SPECS = {1: SPEC, 2: dataclasses.replace(SPEC, gathers=False)}


def hold_up(
    table: pa.Table, behind: int, held_s: Seconds, around: int = 1, way: int = 1, together: int = 1
) -> pa.Table:
    """Let the link to a rank hold up the reduction of each step: that rank by all of it, those further on the less.

    The one before it gets all at last but what it sent itself, `around` times; the ring goes up the ranks, or down. Of `together`
    ranks none ends before the last of them. The gradient clip ends when all are there, and the optimizer begins.
    """
    frame = table.to_pandas()
    held = held_s[np.unique(frame["step"], return_inverse=True)[1]]
    rounds = ((way * (frame["dp_rank"] - behind) % SPEC.dp) - (together - 1)).clip(lower=0)
    late = held * (1.0 - rounds / (SPEC.dp - 1.0) / around)
    reduces, clips, updates = (frame["optype"] == NAMES[op] for op in (Op.REDUCE_SCATTER, Op.CLIP, Op.OPTIMIZER))
    later = set_column(table, "start_ts", frame["start_ts"] + clips * late + updates * held)
    return set_column(later, "duration", frame["duration"] + reduces * late + clips * (held - late))


@pytest.mark.parametrize("pattern", ["always", "onset"])
@pytest.mark.parametrize("around", SPECS)
def test_a_slow_link_of_a_ring_is_no_clock(around: int, pattern: str) -> None:
    """Its ranks end the reduction apart, but the clip together."""
    held_s = np.where((np.arange(16) < 8) & (pattern == "onset"), 0.0, 0.06)
    assert measure(hold_up(make(SPECS[around]).trace, 3, held_s, around)).clocks.agree


def test_who_ends_early_in_the_clip_alone_has_no_clock() -> None:
    """A rank that lets all others go is through before them; it is not with what is less sure when it ends."""
    table = make(SPEC).trace
    frame, rng = table.to_pandas(), np.random.default_rng(1)
    early = np.where((frame["optype"] == NAMES[Op.CLIP]) & (frame["dp_rank"] == 0), -5e-4, 0.0)
    noise = np.where(frame["optype"] == NAMES[Op.CLIP], 0.0, rng.exponential(1e-3, len(frame)))
    assert measure(set_column(table, "duration", frame["duration"] + early + noise)).clocks.agree


def test_clocks_are_found_beside_a_slow_link_of_a_ring() -> None:
    """A clock is off in the clip, too."""
    skewed, true_s = skew(hold_up(make(SPEC).trace, 3, np.full(16, 0.03)), SPEC, 5e-3)
    assert np.abs(measure(skewed).clocks.usual_s - true_s).max() <= 0.1 * np.abs(true_s).max()


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("behind", [0, 3])
@pytest.mark.parametrize("pattern", ["always", "onset", "stuck"])
@pytest.mark.parametrize(("around", "way"), [(1, 1), (1, -1), (2, 1)])
def test_the_link_is_named_and_priced(around: int, way: int, behind: int, pattern: str, *, skewed: bool) -> None:
    """A ring tells it, also where all steps are slow; mended, members end together as early as the first one, or earlier."""
    at = np.arange(16)
    held_s = 0.1 * {"always": at >= 0, "onset": at >= 6, "stuck": at % 2 == 1}[pattern]
    table = hold_up(make(SPECS[around]).trace, behind, held_s, around, way)
    found = diagnose_table(skew(table, SPEC, 5e-3)[0] if skewed else table)
    (cause,) = found.causes
    if pattern == "always" and behind == 0:
        # So do ranks end to which the first one hands out in turn: nothing tells.
        assert cause.cause == "unknown"
        return
    assert cause.cause == "network-fault"
    assert cause.where.links == (Link(Worker((behind - way) % 6, 0), Worker(behind, 0)),)
    assert not cause.where.workers
    assert not cause.where.stages
    assert cause.recoverable == pytest.approx(held_s.sum() / found.what_if.recorded_s.sum(), rel=0.1)


@pytest.mark.parametrize("behind", [2, 3])
@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("together", [2, 3, 4])
def test_where_ranks_end_together_the_link_between_them_or_their_card_is_named(
    together: int, way: int, behind: int
) -> None:
    """Who ends when all is sent waits for its own slow link; of a slow card's two, three ranks do. Of more nobody can tell."""
    held_s = np.full(16, 0.1)
    found = diagnose_table(hold_up(make(SPEC).trace, behind, held_s, way=way, together=together))
    (cause,) = found.causes
    first, second = Worker(behind, 0), Worker((behind + way) % 6, 0)
    assert cause.cause == ("unknown" if together == 4 else "network-fault")
    assert cause.where.links == ((Link(first, second),) if together == 2 else ())
    assert [worker.dp for worker in cause.where.workers] == ([second.dp] if together == 3 else [])
    if together < 4:
        assert cause.recoverable == pytest.approx(held_s.sum() / found.what_if.recorded_s.sum(), rel=0.1)


def test_ranks_that_end_late_in_turn_have_no_slow_link() -> None:
    """Who is behind the slow link is so in nearly all collectives."""
    table = make(SPEC).trace
    for rank in range(6):
        table = hold_up(table, rank, np.where(np.arange(16) % 6 == rank, 0.1, 0.0))
    assert not any(cause.where.links for cause in diagnose_table(table).causes)


def test_one_rank_that_ends_early_does_not_tell_which_way_a_ring_goes() -> None:
    """Either of those beside it may be behind the slow link."""
    table = hold_up(make(SPEC).trace, 3, np.full(16, 0.1))
    frame = table.to_pandas()
    others = (frame["optype"] == NAMES[Op.REDUCE_SCATTER]) & (frame["dp_rank"] != 2)
    latest = frame["duration"][others].groupby(frame["step"]).transform("max")
    table = set_column(table, "duration", frame["duration"].where(~others, latest))
    assert not any(cause.where.links for cause in diagnose_table(table).causes)


def test_a_slow_worker_is_no_slow_link() -> None:
    """It begins its collectives last, and all end together."""
    found = diagnose_table(make(SPEC, WorkerFault(places=((2, 0),), slowdown=1.5)).trace)
    assert [cause.cause for cause in found.causes] == ["worker-fault"]
