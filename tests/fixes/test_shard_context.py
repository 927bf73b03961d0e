"""Documents over context-parallel ranks: the way in use is found out, the others are priced right, and short chunks cost."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes.catalogue import find_fix
from diagnose.fixes.shard_context import ADAPTIVE, NAME, SETTINGS, Sharded, propose, shard
from diagnose.fixes.shard_costs import share_documents, share_sequences
from diagnose.model.analysis import Analysis
from diagnose.model.change import Work
from diagnose.model.documents import Documents
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import PER_DOCUMENT, PER_SEQUENCE, Kernel
from tests.fixes.sequences import ShardedSequences, analysis
from tests.packing.sharding import Sharding, shard_per_document, shard_per_sequence

SPEC = JobSpec(pp=2, dp=2, microbatches=6, steps=12, cp_size=4, seed=91)
LONG = ShardedSequences(packed_tokens=65536, quadratic_share=0.5, records_documents=True)
#: Documents so short that cutting each of them makes chunks of a few dozen tokens.
SHORT = ShardedSequences(
    packed_tokens=8192, median_tokens=900.0, length_spread=1.3, quadratic_share=0.6, records_documents=True
)
OTHERS = {
    "alone": (),
    "worker": (WorkerFault(places=((1, 1),), slowdown=1.4),),
    "stage": (StageImbalance(forward_slowdown=1.5, backward_slowdown=1.3),),
}


def sharded(job: Analysis, now: str | None = None) -> Sharded:
    """Work out all ways, and be sure that it can be done."""
    found = shard(job, Kernel(), now)
    assert isinstance(found, Sharded), found
    return found


def remedy(job: Analysis, **settings: str) -> Remedy:
    """Propose, and be sure that something is."""
    found = propose(job, FaultLocation(), settings)
    assert isinstance(found, Remedy), found
    return found


def refusal(job: Analysis, **settings: str) -> str:
    """Propose, and be sure that nothing is."""
    found = propose(job, FaultLocation(), settings)
    assert isinstance(found, Refusal), found
    return found.reason


def simulated_s(spec: JobSpec, *faults: Any) -> float:
    """Simulate a job: mean seconds a step."""
    inputs = draw_inputs(spec)
    for fault in faults:
        inputs = fault.apply(inputs)
    return float(simulate(inputs).step_s.mean())


# ------------------------------------------------------------------------------------ predicted and true


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("cp", [2, 8])
@pytest.mark.parametrize("now", [PER_SEQUENCE, PER_DOCUMENT])
@pytest.mark.parametrize("documents", [LONG, SHORT], ids=["long", "short"])
def test_every_way_comes_true(documents: ShardedSequences, now: str, cp: int, other: str) -> None:
    """The way in use is found from the times, and each other way is predicted as the simulation of the job cut so has it."""
    spec = dataclasses.replace(SPEC, cp_size=cp)
    before = dataclasses.replace(documents, way=now)
    job = analysis(spec, before, *OTHERS[other])
    found = sharded(job)
    assert found.now == now
    for way, factor in found.factors.items():
        predicted = job.gains.replayed_s / float(job.price([Work(factor[:, None])]).mean())
        after = dataclasses.replace(documents, way=way)
        true = simulated_s(spec, before, *OTHERS[other]) / simulated_s(spec, after, *OTHERS[other])
        assert predicted == pytest.approx(true, rel=0.015), way


# ------------------------------------------------------------------------------------ what is proposed


def test_long_documents_are_cut_one_by_one() -> None:
    """Where sequences are cut and documents are long, cutting documents is proposed, and the figures compare all ways."""
    job = analysis(SPEC, LONG)
    fix = remedy(job)
    assert fix.settings == {"way": PER_DOCUMENT, "now": PER_SEQUENCE, "short_speed": "0.75"}
    figures = fix.figures
    assert figures["per_sequence_speedup"] == pytest.approx(1.0)
    assert figures["adaptive_speedup"] >= figures["per_document_speedup"] - 1e-9 > 1.05
    assert figures["per_document_kernel_loss_share"] > figures["per_sequence_kernel_loss_share"] > 0.0
    assert job.price(fix.changes).mean() == pytest.approx(job.gains.replayed_s / figures["per_document_speedup"])
    assert any("75% of full speed" in said for said in fix.assumptions)


def test_short_documents_are_cut_where_it_pays() -> None:
    """Where documents are short cutting each makes slow chunks: adaptive cuts some and not others."""
    spec = dataclasses.replace(SPEC, cp_size=8)
    fix = remedy(analysis(spec, SHORT))
    assert fix.settings["way"] == ADAPTIVE
    assert 0.0 < fix.figures["documents_cut_share"] < 1.0
    assert fix.figures["adaptive_speedup"] > fix.figures["per_document_speedup"]
    assert "of the microbatches" in fix.summary
    # Short chunks that are slower still are cut less often.
    slow = remedy(analysis(spec, SHORT), short_speed="0.3", now=PER_SEQUENCE, way=ADAPTIVE)
    assert slow.figures["documents_cut_share"] < fix.figures["documents_cut_share"]


def test_a_way_may_be_asked_for() -> None:
    """The way, and that of now, can be given."""
    job = analysis(SPEC, LONG)
    assert remedy(job, way=ADAPTIVE).settings["way"] == ADAPTIVE
    assert remedy(job, way=PER_SEQUENCE, now=PER_DOCUMENT).settings == {
        "way": PER_SEQUENCE,
        "now": PER_DOCUMENT,
        "short_speed": "0.75",
    }
    assert refusal(job, way=PER_SEQUENCE) == "documents are cut per-sequence now"
    assert find_fix(NAME).SETTINGS is SETTINGS


@pytest.mark.parametrize("framework", ["Megatron-LM", "PyTorch FSDP", None])
def test_how_is_for_the_framework(framework: str | None) -> None:
    """Advice is for the framework that the metadata name."""
    job = analysis(SPEC, LONG)
    named = dataclasses.replace(job.trace.job, framework=framework)
    how = remedy(dataclasses.replace(job, trace=dataclasses.replace(job.trace, job=named))).how
    assert ("thd_get_partitioned_indices" in how) == (framework in ("Megatron-LM", None))


# -------------------------------------------------------------------------------------- what is refused


def test_refusals() -> None:
    """No context parallelism, no documents, a way that is as good as any, and lengths that explain nothing."""
    assert "cp_size is 1" in refusal(analysis(dataclasses.replace(SPEC, cp_size=1), LONG))
    assert "no doc_lengths" in refusal(analysis(SPEC, dataclasses.replace(LONG, records_documents=False)))
    assert "no other way" in refusal(analysis(SPEC, dataclasses.replace(LONG, way=PER_DOCUMENT)))
    job = analysis(SPEC, LONG)
    documents = job.trace.documents
    assert documents is not None
    mixed = documents.take(np.random.default_rng(0).permutation(len(documents)))
    wrong = dataclasses.replace(documents, offsets=mixed.offsets, lengths=mixed.lengths)
    other = dataclasses.replace(job, trace=dataclasses.replace(job.trace, documents=wrong))
    assert "explains" in refusal(other)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"way": "per-token"}, "expected one of per-sequence, per-document, adaptive"),
        ({"now": "adaptive"}, "expected one of per-sequence, per-document"),
        ({"short_speed": "1.5"}, "expected a part of full speed"),
        ({"short_speed": "fast"}, "expected a number above 0"),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, str], said: str) -> None:
    """A setting that makes no sense is refused with what was expected."""
    with pytest.raises(UsageError, match=NAME) as error:
        propose(analysis(SPEC, LONG), FaultLocation(), settings)
    assert said in error.value.message


# ---------------------------------------------------------------------------- all microbatches at once


@pytest.mark.parametrize("seed", range(25))
def test_shares_are_those_of_one_microbatch_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of many microbatches equal those of `tests.packing.sharding` for each, however many pieces are looked at at once."""
    rng = np.random.default_rng(seed)
    n_lists, cp = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    n_each = rng.integers(0, 9, n_lists)
    lengths = np.exp(rng.uniform(0, 9, n_each.sum())).astype(np.int32) + 1
    number = np.arange(n_lists)
    documents = Documents(number, number, number, np.r_[0, np.cumsum(n_each)], lengths)
    monkeypatch.setattr("diagnose.fixes.shard_costs.MAX_PIECES", int(rng.choice([1, 60, 10**6])))
    cost = Cost(1.0, 1.0 / float(rng.uniform(100, 5000)))
    for share, one_by_one in ((share_sequences, shard_per_sequence), (share_documents, shard_per_document)):
        found = share(documents, cp, Kernel())
        expected: list[Sharding] = [
            one_by_one(lengths[low:high], cp, cost)
            for low, high in zip(documents.offsets[:-1], documents.offsets[1:], strict=True)
        ]
        np.testing.assert_array_equal(found.tokens, [one.tokens for one in expected])
        np.testing.assert_allclose(
            cost.linear * found.tokens + cost.quadratic * found.squares, [one.costs for one in expected]
        )
        np.testing.assert_allclose(found.slowest(cost), [one.slowest for one in expected])


def test_no_documents_have_no_shares() -> None:
    """Nothing to share out is nothing to do."""
    nothing = np.zeros(0, dtype=np.int64)
    empty = Documents(nothing, nothing, nothing, np.zeros(1, dtype=np.int64), nothing.astype(np.int32))
    found = share_sequences(empty, 2, Kernel())
    assert found.tokens.shape == (0, 2)
    assert found.kernel_loss_share == 0.0
