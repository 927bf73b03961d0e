"""A slow link of a ring: its collectives end late behind it, which is no clock, and says where it is."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.model.optype import NAMES, Op
from diagnose.model.trace import Seconds
from tests.judge.cases import make, measure, set_column
from tests.whatif.test_clocks import skew

SPEC = JobSpec(pp=1, dp=6, microbatches=4, steps=16, forward_s=0.05, seed=41)
#: Gradients are reduced to parts, once around the ring, or everywhere, twice.
SPECS = {1: SPEC, 2: dataclasses.replace(SPEC, gathers=False)}


def hold_up(table: pa.Table, behind: int, held_s: Seconds, around: int = 1) -> pa.Table:
    """Let the link to a rank hold up the reduction of each step: that rank by all of it, those further on the less.

    The one before it gets all at last but what it sent itself, `around` times. The gradient clip ends when all are there, and the
    optimizer begins.
    """
    frame = table.to_pandas()
    held = held_s[np.unique(frame["step"], return_inverse=True)[1]]
    late = held * (1.0 - (frame["dp_rank"] - behind) % SPEC.dp / (SPEC.dp - 1.0) / around)
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
