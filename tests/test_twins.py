"""Twins: different causes whose traces are the same row for row, so that nobody can tell them apart. README, Limits, lists them."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.data_loading import DataLoading
from diagnose.faults.decoy import Decoy
from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from tests.judge.cases import diagnose_table
from tests.scoring.swept_decoys import OlderMachines

#: Nothing varies, so that seconds that are added can equal a factor.
QUIET = JobSpec(pp=3, dp=4, microbatches=6, steps=10, noise=0.0, seed=12)
ONE_RANK = dataclasses.replace(QUIET, dp=1, noise=1.0)
#: Faults and decoys of a job.
Story = tuple[Sequence[Fault], Sequence[Decoy]]

LONG_STAGE: Story = ((StageImbalance(stage=1, forward_slowdown=1.5, backward_slowdown=1.5),), ())
ITS_ONE_WORKER: Story = ((WorkerFault(places=((0, 1),), slowdown=1.5, slows_optimizer=False),), ())
SLOW_HALF: Story = ((WorkerFault(places=tuple((dp, p) for dp in (2, 3) for p in range(3)), slowdown=1.25),), ())
OLDER_HALF: Story = ((), (OlderMachines(slowdown=1.25),))
SLOW_FORWARDS: Story = (
    (WorkerFault(places=((1, 0),), slowdown=1.5, backward_slowdown=1.0, slows_optimizer=False),),
    (),
)
LATE_BATCHES: Story = (
    (
        DataLoading(
            dp_ranks=(1,),
            wait_ratio=0.5,
            spread=0.0,
            probability=1.0,
            every_microbatch=True,
            where="inside",
            records=False,
        ),
    ),
    (),
)
TWINS = {
    "a long stage, or its only worker": (ONE_RANK, LONG_STAGE, ITS_ONE_WORKER),
    "two slow replicas of four, or older machines": (QUIET, SLOW_HALF, OLDER_HALF),
    "slow forwards of the first stage, or waits for input inside them": (QUIET, SLOW_FORWARDS, LATE_BATCHES),
}


@pytest.mark.parametrize("name", TWINS)
def test_their_traces_are_the_same(name: str) -> None:
    """Every row begins and ends at the same time, to the nanosecond."""
    spec, one, other = TWINS[name]
    tables = [make_trace(spec, story) for story in (one, other)]
    assert tables[0].column_names == tables[1].column_names
    for column in tables[0].column_names:
        values = [table[column] for table in tables]
        if pa.types.is_floating(values[0].type):
            np.testing.assert_allclose(*(v.to_numpy() for v in values), rtol=0, atol=1e-9)
        else:
            assert values[0].equals(values[1]), column


@pytest.mark.parametrize("name", TWINS)
def test_nothing_is_said_surely(name: str) -> None:
    """Whatever is said of them is said with less than 0.8, or with what else it may be."""
    spec, one, _ = TWINS[name]
    found = diagnose_table(make_trace(spec, one))
    assert found.causes
    assert all(cause.confidence < 0.8 for cause in found.causes)


def make_trace(spec: JobSpec, story: Story) -> pa.Table:
    """Make the trace of a job."""
    faults, decoys = story
    return generate(spec, faults, decoys).trace
