"""What tokens say of how long microbatches are: proof where they predict, silence where they do not."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.documents import Documents
from diagnose.model.optype import Op
from diagnose.model.trace import Nodes, Seconds
from diagnose.whatif.token_costs import _compare_optimizers, _fit, _fit_microbatches, _fit_ranks, _gather
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_slow", [False, True])
def test_one_microbatch_a_step_is_as_long_as_its_tokens_say(seed: int, is_slow: bool) -> None:
    """Of 24 microbatches in 8 steps each tells by itself; a worker that is slow besides, all the time, stays slow."""
    spec = JobSpec(pp=2, dp=3, microbatches=1, steps=8, noise=0.5, seed=seed)
    slow = [WorkerFault(places=((2, 1),), slowdown=1.6, backward_slowdown=1.6)] if is_slow else []
    documents = SequenceImbalance(records_tokens=True, quadratic_share=0.6, length_spread=1.2, packed_tokens=4096)
    found = measure(generate(spec, [documents, *slow]).trace)
    said = {cause.cause: cause for cause in found.diagnosis.causes if cause.confidence > 0.5}
    assert said.keys() == {"sequence-imbalance"} | ({"worker-fault"} if is_slow else set())
    if is_slow:
        assert [(w.dp, w.pp) for w in said["worker-fault"].where.workers] == [(2, 1)]


@pytest.mark.parametrize("layout", ["sorted", "packed"])
def test_nothing_that_tokens_tell_is_ordinary(layout: Any) -> None:
    """With one stage nothing but columns parts documents from what any job varies by: all that they tell comes back."""
    spec = JobSpec(pp=1, dp=4, microbatches=16, steps=12, noise=3.0, seed=7)
    job = generate(spec, [SequenceImbalance(records_tokens=True, quadratic_share=0.2, layout=layout)])
    found, truth = measure(job.trace), job.truth.faults[0].recoverable
    assert truth > 0.02 and found.gains.recoverable("microbatch") == pytest.approx(truth, abs=0.004)


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


def test_the_longest_documents_are_no_pauses() -> None:
    """Where lengths have a long tail what is clipped is how far a time is off its tokens: pauses move the price by nothing."""
    rng = np.random.default_rng(5)
    squares = rng.lognormal(0.0, 1.2, (1, 4, 6, 32))
    work = 0.4 + 0.6 * squares[0] / squares.mean()
    cost = work * rng.lognormal(0.0, 0.01, work.shape)
    cost[rng.random(work.shape) < 0.02] += 15.0
    found = _fit_microbatches(squares, cost, np.ones(work.shape, dtype=bool))
    assert found is not None
    longest = work > np.quantile(work, 0.9)
    np.testing.assert_allclose(found[longest] / work[longest], 1.0, atol=0.05)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddedBatches(SequenceImbalance):
    """Each rank pads its microbatches of a step to the longest of them: all of these are alike."""

    records_tokens: bool = True

    def _arrange(self, spec: JobSpec, documents: Documents) -> Seconds:  # noqa: ARG002 - of the base class
        lengths = np.random.default_rng(spec.seed).lognormal(0.0, 0.4, (spec.steps, spec.dp))
        return np.broadcast_to(1e6 * lengths**2, (spec.microbatches, spec.steps, spec.dp))


@pytest.mark.parametrize("is_slow", [False, True], ids=["padded", "beside a slow replica"])
@pytest.mark.parametrize("n_stages", [1, 2])
def test_batches_that_are_padded_by_rank_are_long_documents(n_stages: int, is_slow: bool) -> None:
    """Tokens prove it by what ranks of a step differ by; a replica that is slow with as many tokens stays slow."""
    spec = JobSpec(pp=n_stages, dp=4, microbatches=4, steps=24, noise=0.5, seed=5)
    worker = [slow(*((2, stage) for stage in range(n_stages)), by=1.8)] if is_slow else []
    found = measure(generate(spec, [PaddedBatches(), *worker]).trace).diagnosis
    said = {cause.cause: cause for cause in found.causes if cause.confidence > 0.5}
    assert said.keys() == {"sequence-imbalance"} | ({"worker-fault"} if is_slow else set())
    if is_slow:
        assert {place.dp for place in said["worker-fault"].where.workers} == {2}


def test_microbatches_that_are_alike_have_the_price_of_their_ranks() -> None:
    """Slow ranks and steps have no part in it; where a rank is slow in single steps unlike its tokens, nothing has a price."""
    rng = np.random.default_rng(8)
    lengths = rng.lognormal(0.0, 0.3, (12, 4))
    tokens = np.broadcast_to(lengths, (1, 3, 12, 4))
    work = 0.4 + 0.6 * lengths / lengths.mean()
    cost = work * rng.lognormal(0.0, 0.01, (3, 12, 4))
    there = np.ones(cost.shape, dtype=bool)
    there[2, 5] = False
    slow_of = np.array([1.0, 1.0, 1.3, 1.0]), 1.0 + (np.arange(12) > 8)[:, None]
    for slower in (1.0, *slow_of):
        found = _fit_microbatches(tokens, cost * slower, there)
        assert found is not None
        price = np.polyfit(lengths.ravel() / lengths.mean(), found[0].ravel(), 1)[0]
        assert price == pytest.approx(0.6 * np.mean(slower), rel=0.15)
    in_steps = np.where(rng.random((12, 4)) < 0.2, 2.0, 1.0)
    assert _fit_microbatches(tokens, rng.lognormal(0.0, 0.01, (3, 12, 4)) * in_steps, there) is None


def test_batches_that_are_alike_on_all_ranks_have_no_price() -> None:
    """They cost nobody a wait, and whatever else makes whole steps slow would be taken for them."""
    lengths = np.random.default_rng(9).lognormal(0.0, 0.3, (12, 1))
    tokens = np.broadcast_to(lengths, (1, 3, 12, 4))
    assert _fit_microbatches(tokens, tokens[0] * 1.0, np.ones((3, 12, 4), dtype=bool)) is None


def test_documents_that_are_drawn_one_by_one_are_not_asked_by_rank() -> None:
    """Their microbatches of one rank and step differ, and do not take as long: by ranks they would by what chance gives."""
    rng = np.random.default_rng(3)
    tokens = rng.lognormal(0.0, 0.5, (1, 2, 12, 4))
    of_rank = np.broadcast_to(tokens[0].mean(axis=0), (2, 12, 4))
    assert _fit_microbatches(tokens, of_rank, np.ones((2, 12, 4), dtype=bool)) is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongShards(SequenceImbalance):
    """Ranks whose documents are longer all the time: microbatches of a rank are all alike."""

    records_tokens: bool = True
    #: How many times the squares of lengths that other ranks have.
    squares: Mapping[int, float]

    def _arrange(self, spec: JobSpec, documents: Documents) -> Seconds:  # noqa: ARG002 - of the base class
        by_rank = np.array([self.squares.get(dp, 1.0) for dp in range(spec.dp)])
        return np.broadcast_to(1e6 * by_rank, (spec.microbatches, spec.steps, spec.dp))


def slow(*places: tuple[int, int], by: float) -> WorkerFault:
    """Make workers slow in all that they compute."""
    return WorkerFault(places=places, slowdown=by)


SHAPES = [JobSpec(pp=pp, dp=4, microbatches=n, steps=24, noise=0.5, seed=n) for pp, n in ((1, 2), (2, 4), (1, 1))]


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: f"{spec.pp} stages, {spec.microbatches} microbatches")
@pytest.mark.parametrize("squares", [{3: 4.0}, {1: 1.5, 2: 2.5, 3: 4.0}])
def test_ranks_with_longer_documents_all_the_time_are_rather_that(spec: JobSpec, squares: Mapping[int, float]) -> None:
    """Nothing tells what documents cost that never vary: who is slow is who has more, and that is told with its doubt."""
    found = measure(generate(spec, [LongShards(squares=squares)]).trace)
    (cause,) = found.diagnosis.causes
    assert cause.cause == "sequence-imbalance"
    assert 0.5 < cause.confidence < 0.8
    assert [other.cause for other in cause.alternatives] == ["worker-fault"]
    assert any(item.text.startswith("by its tokens dp 3 has") for item in cause.evidence)


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: f"{spec.pp} stages, {spec.microbatches} microbatches")
@pytest.mark.parametrize(
    ("squares", "at", "by"),
    [
        ({}, 3, 1.6),  # its tokens are those of others
        ({3: 1.1}, 3, 1.6),  # it has a few more
        ({3: 4.0}, 3, 1.4),  # documents make it slow, and its optimizer is slow, too
        ({3: 4.0}, 1, 2.5),  # another one is
        ({1: 1.5, 2: 2.5, 3: 4.0}, 2, 1.6),  # it pays more for its tokens than others do
    ],
)
def test_a_slow_replica_that_tokens_do_not_explain_stays_slow(
    spec: JobSpec, squares: Mapping[int, float], at: int, by: float
) -> None:
    """What its tokens explain is taken off, and no more."""
    places = [(at, stage) for stage in range(spec.pp)]
    found = measure(generate(spec, [LongShards(squares=squares), slow(*places, by=by)]).trace)
    (worker,) = [cause for cause in found.diagnosis.causes if cause.cause == "worker-fault"]
    assert {(place.dp, place.pp) for place in worker.where.workers} == set(places)
    assert worker.confidence > 0.9
    ratio = found.breakdown.worker_ratio[..., at]
    assert float(np.median(ratio)) == pytest.approx(by, rel=0.12)


@pytest.mark.parametrize(
    ("squares", "slower", "machine", "explained"),
    [
        ([1, 1, 1, 4], [1, 1, 1, 2], [1, 1, 1, 1], [1, 1, 1, 2]),
        ([1, 1, 1, 4], [1, 1, 1, 6], [1, 1, 1, 1], [1, 1, 1, 4]),  # at most as many times
        ([1, 1, 1, 4], [1, 1, 1, 3], [1, 1, 1, 1.5], [1, 1, 1, 2]),
        ([1, 1, 1, 4], [1, 1, 1, 1.5], [1, 1, 1, 1.5], None),
        ([1, 1, 1, 4], [1, 1, 2, 1], [1, 1, 1, 1], None),  # who has more is as quick as others
        ([1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 1, 1], None),
        ([4, 4, 4, 1], [2, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 0.5]),
        ([1, 1, 2, 3], [1, 1, 5, 1.2], [1, 1, 1, 1], [1, 1, 1.1, 1.2]),
        # From one and a half percent on: more of them, and what they cost.
        ([1, 1, 1, 1.014], [1, 1, 1, 1.1], [1, 1, 1, 1], None),
        ([1, 1, 1, 1.016], [1, 1, 1, 1.1], [1, 1, 1, 1], [1, 1, 1, 1.016]),
        ([1, 1, 1, 1.1], [1, 1, 1, 1.014], [1, 1, 1, 1], None),
        ([1, 1, 1, 1.1], [1, 1, 1, 1.016], [1, 1, 1, 1], [1, 1, 1, 1.016]),
    ],
)
def test_what_ranks_have_more_of_has_one_price(
    squares: list[float], slower: list[float], machine: list[float], explained: list[float] | None
) -> None:
    """All pay the lower of two prices, and no token costs more than another one."""
    columns = np.broadcast_to(np.array(squares, dtype=float), (1, 2, 8, 4))
    found = _fit_ranks(columns, np.broadcast_to(np.array(slower, dtype=float), (2, 3, 2, 8, 4)), np.array(machine))
    if explained is None:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_allclose(found[0, 0], explained, rtol=1e-6)


def test_one_slow_stage_is_not_paid_for_tokens() -> None:
    """Documents are long on all stages: who is slow on one of them is a worker."""
    columns = np.broadcast_to(np.array([1.0, 1.0, 4.0]), (1, 2, 8, 3))
    work_s = np.ones((2, 2, 2, 8, 3))
    work_s[:, 1, ..., 2] = 2.0
    assert _fit_ranks(columns, work_s, np.ones(3)) is None


def test_tokens_that_vary_as_much_within_a_rank_have_no_price_by_ranks() -> None:
    """Ranks that draw from the same documents do not have more all the time, and what is 0 is no reference."""
    drawn = np.random.default_rng(3).lognormal(0.0, 1.0, (1, 2, 24, 4))
    work_s = np.broadcast_to(np.array([1.0, 1.0, 1.0, 2.0]), (2, 1, 2, 24, 4))
    assert _fit_ranks(drawn, work_s, np.ones(4)) is None
    assert _fit_ranks(np.zeros((1, 2, 24, 4)), work_s, np.ones(4)) is None


def test_the_quickest_stage_says_how_slow_the_optimizers_of_a_rank_are() -> None:
    """Rank 1 is twice as slow on one stage, rank 2 on both by 1.5 or more; 5% is noise, and without optimizers all are alike."""
    own_s = {0: [1.05, 2.0, 1.5, 1.0], 1: [2.1, 2.0, 4.0, 2.0]}
    kinds = Nodes(*np.array([(Op.OPTIMIZER, 0, 0, -1, -1), (Op.OPTIMIZER, 1, 0, -1, -1)]).T)
    block = SimpleNamespace(nodes=kinds, start_s=np.zeros((2, 5, 4)))
    own = [np.broadcast_to(own_s[node], (5, 4)) for node in (0, 1)]
    observed = SimpleNamespace(block=block, own=own)
    assert _compare_optimizers([observed], 4).tolist() == pytest.approx([1.0, 1.0, 1.5 / 1.05, 1.0])  # type: ignore[list-item]
    assert _compare_optimizers([], 4).tolist() == [1.0] * 4


def test_a_column_that_would_save_time_costs_nothing() -> None:
    """Where one price is below 0, the column that explains more by itself has all of it."""
    tokens = np.array([[1.0, 2.0, 3.0, 4.0]])
    columns = np.stack([tokens, tokens**2])
    np.testing.assert_allclose(_fit(columns, 2.0 * columns[0] + 3.0 * columns[1]), [2.0, 3.0])
    np.testing.assert_allclose(_fit(columns, columns[1] - 0.5 * columns[0]), [0.0, 1.0 - 0.5 * 100.0 / 354.0])
