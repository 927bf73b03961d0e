"""Documents over context-parallel ranks: the way in use is found out, the others are priced right, and short chunks cost."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import UsageError
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes.catalogue import find_fix
from diagnose.fixes.shard_context import ADAPTIVE, NAME, SETTINGS, Sharded, propose, shard
from diagnose.fixes.shard_costs import Shares, share_documents, share_sequences
from diagnose.model.analysis import Analysis
from diagnose.model.change import Work
from diagnose.model.documents import Documents
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.packing.cost import Cost
from diagnose.packing.sharding import PER_DOCUMENT, PER_SEQUENCE, Kernel
from tests.fixes.sequences import ShardedSequences, analysis
from tests.packing.sharding import IDEAL, shard_per_document, shard_per_sequence

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


WAYS = ((share_sequences, shard_per_sequence), (share_documents, shard_per_document))
COST = Cost(1.0, 1.0 / 1_000)


def documents_of(*lists: Sequence[int]) -> Documents:
    """Make the documents of some microbatches."""
    number = np.arange(len(lists))
    lengths = np.array([length for one in lists for length in one], dtype=np.int32)
    return Documents(number, number, number, np.r_[0, np.cumsum([len(one) for one in lists])].astype(np.int64), lengths)


def uneven(share: Callable[[Documents, int, Kernel], Shares], lengths: Sequence[int]) -> float:
    """Give the cost of the slowest of four ranks over the mean of all."""
    found = share(documents_of(lengths), 4, Kernel())
    costs = COST.linear * found.tokens + COST.quadratic * found.squares
    return float(costs.max() / costs.mean())


def assert_as_in_loops(lists: Sequence[Sequence[int]], cp: int, cost: Cost, kernel: Kernel) -> None:
    """Compare the shares of all microbatches at once with plain loops over each."""
    for share, shard_one in WAYS:
        found = share(documents_of(*lists), cp, kernel)
        tokens, costs = zip(*(shard_one(lengths, cp, cost, kernel) for lengths in lists), strict=True)
        np.testing.assert_array_equal(found.tokens, tokens)
        np.testing.assert_allclose(cost.linear * found.tokens + cost.quadratic * found.squares, costs)
        np.testing.assert_allclose(found.slowest(cost), np.max(costs, axis=1))


@pytest.mark.parametrize("seed", range(25))
def test_shares_are_those_of_one_microbatch_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of many microbatches equal those of plain loops over each, however many pieces are looked at at once."""
    rng = np.random.default_rng(seed)
    n_lists, cp = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    lists = [(np.exp(rng.uniform(0, 9, n)).astype(int) + 1).tolist() for n in rng.integers(0, 9, n_lists)]
    monkeypatch.setattr("diagnose.fixes.shard_costs.MAX_PIECES", int(rng.choice([1, 60, 10**6])))
    assert_as_in_loops(lists, cp, Cost(1.0, 1.0 / float(rng.uniform(100, 5000))), Kernel())


@settings(max_examples=150)
@given(lengths=st.lists(st.integers(1, 40), max_size=8), cp=st.integers(1, 5))
def test_attention_is_counted_token_by_token(lengths: list[int], cp: int) -> None:
    """Of short documents, too, shares are those of plain loops; with an ideal kernel all ranks together do each pair once."""
    assert_as_in_loops([lengths], cp, COST, IDEAL)
    for share, _ in WAYS:
        found = share(documents_of(lengths), cp, IDEAL)
        # Twice the pairs, less one a token: a document of d tokens counts d squared.
        assert found.squares.sum() == sum(2 * (token + 1) - 1 for length in lengths for token in range(length))
        assert found.kernel_loss_share == pytest.approx(0.0)


def test_what_each_way_is_good_for() -> None:
    """One long document is even either way; of several the ends burden some ranks unless every document is cut."""
    several = [4_096] * 8 + [32_768]
    assert [uneven(share, [65_536]) for share, _ in WAYS] == pytest.approx([1.0, 1.0])
    assert uneven(share_sequences, several) > 1.2
    assert uneven(share_documents, several) == pytest.approx(1.0)


def test_short_chunks_cost_more() -> None:
    """Cutting documents of 256 tokens into 16 chunks of 16 wastes most of the kernel's work; long chunks lose nothing."""
    assert share_documents(documents_of([256] * 8), 8, Kernel()).kernel_loss_share > 0.85
    assert share_documents(documents_of([65_536]), 8, Kernel()).kernel_loss_share == pytest.approx(0.0)


def test_tokens_left_over_are_dealt_in_turn() -> None:
    """Tokens that cannot be divided go to one rank after the other."""
    assert share_documents(documents_of([3]), 4, Kernel()).tokens.tolist() == [[1, 1, 1, 0]]


@pytest.mark.parametrize("wrong", [{"tile": 0}, {"slowest": 0.0}])
def test_a_kernel_makes_sense(wrong: dict[str, float]) -> None:
    """A kernel without sense is refused."""
    with pytest.raises(UsageError):
        Kernel(**wrong)


def test_no_documents_have_no_shares() -> None:
    """Nothing to share out is nothing to do."""
    found = share_sequences(documents_of(), 2, Kernel())
    assert found.tokens.shape == (0, 2)
    assert found.kernel_loss_share == 0.0
