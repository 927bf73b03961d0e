"""What tokens say of how long microbatches are: proof where they predict, silence where they do not."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op
from diagnose.model.trace import Nodes
from diagnose.whatif.token_costs import _gather
from tests.judge.cases import causes, measure

JOB = JobSpec(pp=2, dp=4, microbatches=4, steps=16, noise=0.5, seed=29)
#: All ranks draw documents, and rank 1 the longest: its tokens say so.
LONG = SequenceImbalance(layout="one-replica", replica=1, quadratic_share=0.4, records_tokens=True)


def test_long_documents_of_one_replica_are_no_slow_replica() -> None:
    """With tokens nobody calls the replica slow; without them a slow replica is at most as probable."""
    assert causes(measure(generate(JOB, [LONG]).trace).diagnosis) == ["sequence-imbalance"]
    without = measure(generate(JOB, [dataclasses.replace(LONG, records_tokens=False)]).trace).diagnosis
    said = {cause.cause: cause.confidence for cause in without.causes}
    assert max(said, key=lambda cause: said[cause]) == "sequence-imbalance"
    assert said.get("worker-fault", 0.0) <= 0.5


def test_a_slow_replica_beside_documents_stays_slow() -> None:
    """Documents of all ranks, whose tokens are recorded, do not clear a replica that is 1.5 times as slow."""
    slow = WorkerFault(kind="replica", places=((2, 0), (2, 1)), slowdown=1.5, backward_slowdown=1.5)
    found = measure(generate(JOB, [SequenceImbalance(records_tokens=True, quadratic_share=0.4), slow]).trace)
    (worker,) = [cause for cause in found.diagnosis.causes if cause.cause == "worker-fault"]
    assert {(place.dp, place.pp) for place in worker.where.workers} == {(2, 0), (2, 1)}
    assert worker.confidence > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_tokens_that_tell_nothing_change_nothing(seed: int) -> None:
    """Tokens drawn apart from the times predict none of them: the answer is that without the columns."""
    job = generate(JOB, [dataclasses.replace(LONG, records_tokens=False)])
    trace = job.trace
    rng = np.random.default_rng(seed)
    told = trace.append_column("tokens", pa.array(rng.integers(1000, 9000, len(trace))))
    found, without = measure(told).breakdown, measure(trace).breakdown
    assert not found.has_token_costs
    np.testing.assert_array_equal(found.worker_ratio, without.worker_ratio)


def test_columns_are_those_of_the_first_stage_that_differ() -> None:
    """Other stages may have lost theirs; a column that is the same for all microbatches, or that nobody has, tells nothing."""
    places = [
        (Op.FORWARD, 0, 0, 0, 0),
        (Op.FORWARD, 0, 1, 1, 0),
        (Op.FORWARD, 1, 0, 0, 0),
        (Op.OPTIMIZER, 0, 0, -1, -1),
    ]
    tokens, same = np.array([[10.0, 20.0, np.nan, np.nan], [5.0, 5.0, np.nan, np.nan]])[:, :, None, None]
    kinds = Nodes(*np.array(places).T)
    for squares in (same, None):
        block = SimpleNamespace(nodes=kinds, steps=np.arange(1), tokens=tokens, tokens_sq=squares)
        assert _gather([SimpleNamespace(block=block)], (2, 1, 1)).ravel().tolist() == [10.0, 20.0]  # type: ignore[list-item]
