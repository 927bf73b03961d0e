"""How uneven experts are, and what else may be the same: passed on from the components, weighed by what is known of the job."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.experts import SHARED_CHANCE, UNKNOWN_CHANCE, measure_experts
from diagnose.model.components import Experts
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import Op
from diagnose.model.trace import Trace
from tests.features.hand import components, slowed
from tests.jobs import Shape, load, random_job

NO_TOKENS = Feature.missing("no columns")


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Give a small job."""
    shape = Shape(n_steps=2, n_dp=2, n_stages=2, n_microbatches=2)
    return load(random_job(shape, 0), shape.meta)


def measure(
    trace: Trace, experts: Experts, *, ep_size: int | None = None, n_stages: int = 2, documents: Feature = NO_TOKENS
) -> Features:
    """Measure a job with these experts."""
    job = dataclasses.replace(trace.job, ep_size=ep_size)
    return measure_experts(
        components(n_stages=n_stages, experts=experts), dataclasses.replace(trace, job=job), documents
    )


def test_what_was_found_is_passed_on(trace: Trace) -> None:
    """Values are the components'; what could not be told is missing with its reason."""
    names = ("explained", "alone_share", "tokens_fit", "alike", "moved", "ep_size")
    found = measure(trace, Experts(explained=0.8, alone_share=0.9, tokens_fit=0.7, alike=0.4, moved=0.3), ep_size=2)
    assert [found[f"expert.{name}"].value for name in names] == [0.8, 0.9, 0.7, 0.4, 0.3, 2.0]
    none = measure(trace, Experts())
    missing = {name for name, feature in none.items() if feature.value is None}
    assert missing == {f"expert.{name}" for name in names}
    assert all(none[name].reason for name in missing)


@pytest.mark.parametrize(
    ("ep_size", "n_stages", "documents", "experts", "wanted"),
    [
        pytest.param(None, 1, NO_TOKENS, Experts(), UNKNOWN_CHANCE, id="nothing is known"),
        pytest.param(8, 1, NO_TOKENS, Experts(), SHARED_CHANCE, id="there are experts"),
        pytest.param(1, 1, NO_TOKENS, Experts(), 0.0, id="there are none"),
        pytest.param(None, 1, Feature(0.9), Experts(), 0.0, id="documents predict"),
        pytest.param(8, 1, NO_TOKENS, Experts(tokens_fit=0.0), 0.0, id="tokens of experts are known"),
        pytest.param(8, 2, NO_TOKENS, Experts(explained=0.9, alone_share=0.9), 0.0, id="stages tell"),
    ],
)
def test_or_sequences(
    trace: Trace, ep_size: int | None, n_stages: int, documents: Feature, experts: Experts, wanted: float
) -> None:
    """With one stage documents may be experts, unless columns or metadata tell."""
    found = measure(trace, experts, ep_size=ep_size, n_stages=n_stages, documents=documents)
    assert found["expert.or_sequences"].value == wanted


@pytest.mark.parametrize(
    ("ep_size", "experts", "wanted"),
    [
        pytest.param(None, Experts(), 0.0, id="nothing is known"),
        pytest.param(8, Experts(), SHARED_CHANCE, id="there are experts"),
        pytest.param(8, Experts(ratio=np.ones(1), explained=0.9), SHARED_CHANCE, id="they are uneven"),
        pytest.param(1, Experts(), 0.0, id="there are none"),
        pytest.param(8, Experts(tokens_fit=0.1), 0.0, id="their tokens are known"),
    ],
)
def test_or_worker(trace: Trace, ep_size: int | None, experts: Experts, wanted: float) -> None:
    """Hot experts may look like a slow worker where a job has experts, unless their tokens are known."""
    assert measure(trace, experts, ep_size=ep_size)["expert.or_worker"].value == wanted


def test_a_worker_that_stands_out_is_no_expert(trace: Trace) -> None:
    """Where experts are uneven all workers differ; one that is slower by far more than others do is slow by itself."""
    uneven = Experts(ratio=np.ones(1), explained=0.9)
    paces = np.exp(0.1 * np.random.default_rng(0).standard_normal((1, 2, 1, 10, 2)))
    for factor, wanted in ((1.1, SHARED_CHANCE), (2.0, 0.0)):
        slow = slowed({(1, 0): factor})
        found = dataclasses.replace(slow, compute_s=slow.compute_s * paces, experts=uneven)
        assert measure_experts(found, trace, NO_TOKENS)["expert.or_worker"].value == wanted


@pytest.mark.parametrize(
    ("optimizer", "ratio", "wanted"),
    [
        pytest.param(2.0, 2.0, 0.0, id="its optimizer is slow, too"),
        pytest.param(1.0, 2.0, UNKNOWN_CHANCE, id="it is not, and the worker stands out"),
        pytest.param(1.6, 1.1, 0.0, id="it is slow, and the worker does not stand out"),
        pytest.param(1.05, 1.1, SHARED_CHANCE, id="it is hardly slow"),
        pytest.param(np.nan, 1.1, SHARED_CHANCE, id="nobody knows"),
    ],
)
def test_no_token_makes_an_optimizer_longer(optimizer: float, ratio: float, wanted: float) -> None:
    """A machine that is slow in its optimizer, too, has no hot experts; one that is not may be throttled all the same."""
    shape = Shape(n_steps=10, n_dp=2, n_stages=2, n_microbatches=2)
    trace, slow = load(random_job(shape, 0), shape.meta), slowed({(1, 0): ratio})
    (block,) = trace.blocks
    (node,) = np.flatnonzero((block.nodes.op == Op.OPTIMIZER) & (block.nodes.stage == 0))
    end_s = block.end_s.copy()
    end_s[node] = block.start_s[node] + [1.0, optimizer]
    trace = dataclasses.replace(trace, blocks=(dataclasses.replace(block, end_s=end_s, steps=slow.steps),))
    paces = np.exp(0.1 * np.random.default_rng(0).standard_normal((1, 2, 1, 10, 2)))
    found = dataclasses.replace(
        slow, compute_s=slow.compute_s * paces, experts=Experts(ratio=np.ones(1), explained=0.9)
    )
    assert measure_experts(found, trace, NO_TOKENS)["expert.or_worker"].value == wanted


@pytest.mark.parametrize(("slow", "wanted"), [([0, 1], SHARED_CHANCE), ([0], 0.0), ([0, 2, 3], SHARED_CHANCE)])
def test_all_who_share_experts_are_slow_together(trace: Trace, slow: list[int], wanted: float) -> None:
    """Ranks of one group wait for each other inside the compute: a whole group is slow for its experts as well as for a worker.

    So are many workers, of whatever groups.
    """
    ratio = np.ones((2, 2, 10, 4))
    ratio[:, 1, :, slow] = 3.0
    by_worker = np.zeros((4, 2), dtype=bool)
    by_worker[slow, 1] = True
    found = components(
        n_dp=4, worker_ratio=ratio, slow_workers=by_worker, experts=Experts(ratio=np.ones(1), explained=0.9)
    )
    paces = np.exp(0.01 * np.random.default_rng(0).standard_normal(found.compute_s.shape))
    found = dataclasses.replace(found, compute_s=found.compute_s * ratio[:, :, None] * paces)
    job = dataclasses.replace(trace, job=dataclasses.replace(trace.job, ep_size=2))
    assert measure_experts(found, job, NO_TOKENS)["expert.or_worker"].value == wanted


@pytest.mark.parametrize(
    ("ep_size", "experts", "longer", "wanted"),
    [
        pytest.param(None, Experts(), (1.3, 1.3), 0.0, id="nothing is known"),
        pytest.param(2, Experts(), (1.3, 1.3), SHARED_CHANCE, id="there are experts"),
        pytest.param(None, Experts(ratio=np.ones(1), group=2), (1.3, 1.3), SHARED_CHANCE, id="ranks share them"),
        pytest.param(2, Experts(ratio=np.ones(1)), (1.3, 1.3), 0.0, id="each rank has its own"),
        pytest.param(2, Experts(tokens_fit=0.0), (1.3, 1.3), 0.0, id="their tokens are known"),
        pytest.param(1, Experts(group=2), (1.3, 1.3), 0.0, id="there are none"),
        pytest.param(2, Experts(), (1.3, 1.05), 0.0, id="a loss is long forward"),
        pytest.param(2, Experts(), (1.05, 1.3), 0.0, id="what is computed again is long backward"),
    ],
)
def test_or_stage(
    trace: Trace, ep_size: int | None, experts: Experts, longer: tuple[float, float], wanted: float
) -> None:
    """Hot experts that all of a group wait for look like a long stage, unless their tokens are known or one direction is long."""
    found = components(experts=experts)
    found.typical_s[:, 1] *= longer
    job = dataclasses.replace(trace.job, ep_size=ep_size)
    assert measure_experts(found, dataclasses.replace(trace, job=job), NO_TOKENS)["expert.or_stage"].value == wanted
