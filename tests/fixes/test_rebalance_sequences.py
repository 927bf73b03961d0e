"""Microbatches dealt out anew: what is predicted comes true, nothing waits unless asked for, nothing unknown is claimed."""

import dataclasses
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.errors import UsageError
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import generate, list_causes
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes import repack as repacking
from diagnose.fixes.catalogue import find_fix
from diagnose.fixes.microbatch_costs import Lengths, read_lengths
from diagnose.fixes.rebalance import Rebalanced, RebalanceSettings, know, rebalance
from diagnose.fixes.rebalance_sequences import NAME, SETTINGS, propose
from diagnose.fixes.repack import Way, repack
from diagnose.model.analysis import Analysis
from diagnose.model.change import Work
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Job
from diagnose.packing.cost import Cost
from tests.fixes.sequences import CAUSE, analysis, draw, error_of, rebalanced, simulated_steps_s
from tests.judge.cases import measure

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=81)
SEQUENCES = SequenceImbalance(quadratic_share=0.4, packed_tokens=32768, records_documents=True)
SILENT = dataclasses.replace(SEQUENCES, records_documents=False)
OTHERS = tuple(sorted(set(list_causes()) - {CAUSE}))
#: The owner's limits on the relative error of a predicted speedup.
MEDIAN, NINE_TENTHS = 0.01, 0.03


def remedy(job: Analysis, **settings: str) -> Remedy:
    """Propose, and be sure that something is."""
    found = propose(job, FaultLocation(), settings)
    assert isinstance(found, Remedy), found
    return found


def errors(n: int, *, seed: int, together: bool, asked: RebalanceSettings | None = None, **changes: Any) -> np.ndarray:
    """Collect the relative errors of predicted speedups on some jobs."""
    found = []
    for i in range(n):
        drawn = draw(seed, i, other=OTHERS[i % len(OTHERS)] if together else None, **changes)
        error = None if drawn is None else error_of(*drawn, asked=asked or RebalanceSettings())
        if error is not None:
            found.append(abs(error))
    assert len(found) > n / 2
    return np.array(found)


# ------------------------------------------------------------------------------------ predicted and true


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with another"])
@pytest.mark.parametrize("documents", [True, False], ids=["documents", "times alone"])
def test_predicted_speedups_come_true(documents: bool, together: bool) -> None:
    """On generated jobs the predicted speedup is that of simulating the job dealt out in this way."""
    found = errors(15, seed=11, together=together, records_documents=documents)
    assert np.median(found) <= (MEDIAN if not documents else 0.002)
    assert np.quantile(found, 0.9) <= (NINE_TENTHS if not documents else 0.01)


@pytest.mark.benchmark
@pytest.mark.parametrize("together", [False, True], ids=["alone", "with another"])
@pytest.mark.parametrize("method", [None, "greedy", "queues", "balanced", "implied", "times alone"])
def test_predicted_speedups_come_true_on_fifty_jobs(method: Any, together: bool) -> None:
    """The same on 50 jobs for every method."""
    silent = method == "times alone"
    asked = RebalanceSettings(None if silent else method)
    found = errors(50, seed=12, together=together, asked=asked, records_documents=not silent)
    print(f"{method} {'together' if together else 'alone'}: {len(found)} jobs, median {np.median(found):.4f}, ", end="")
    print(f"90% {np.quantile(found, 0.9):.4f}, largest {found.max():.4f}")
    assert np.median(found) <= MEDIAN
    assert np.quantile(found, 0.9) <= NINE_TENTHS


@pytest.mark.parametrize("documents", [True, False])
def test_what_lengths_misjudge_is_not_lost_on_the_way(documents: bool) -> None:
    """A microbatch takes along what it took: where lengths misjudge the short ones no work is lost while they are dealt out."""
    spec = JobSpec(pp=1, dp=2, microbatches=45, steps=17, seed=3)
    long = SequenceImbalance(
        quadratic_share=2.3, packed_tokens=131072, median_tokens=561.0, length_spread=1.2, records_tokens=documents
    )
    asked = RebalanceSettings("implied")
    assert error_of(spec, (long,), asked) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("method", ["queues", "balanced"])
def test_waiting_documents_come_true(method: Any) -> None:
    """Where documents wait the prediction is as good, once the steps are dealt out as the packer says."""
    error = error_of(dataclasses.replace(SPEC, steps=24), (SEQUENCES,), RebalanceSettings(method))
    assert error == pytest.approx(0.0, abs=0.01)


def test_the_replay_is_the_price() -> None:
    """The remedy's change, replayed, is what the search found; recorded costs in their old places change nothing."""
    job, known, found = rebalanced(SPEC, SEQUENCES)
    assert isinstance(found, Rebalanced)
    fix = remedy(job)
    assert job.price(fix.changes).mean() == pytest.approx(found.step_s)
    same = Work(np.ones_like(known.cost)[:, None])
    np.testing.assert_allclose(job.price([same]), job.gains.replayed_steps_s, rtol=1e-9)


def test_a_step_keeps_its_work() -> None:
    """Greedy and whole microbatches move work within a step: each step's sums are what they were."""
    for asked, faults in (
        (RebalanceSettings("greedy"), SEQUENCES),
        (RebalanceSettings("implied"), SEQUENCES),
        (RebalanceSettings(), SILENT),
    ):
        _, known, found = rebalanced(SPEC, faults, asked=asked)
        assert isinstance(found, Rebalanced)
        np.testing.assert_allclose(found.cost.sum(axis=(1, 3)), known.cost.sum(axis=(1, 3)), rtol=1e-9)
        if found.packed is not None and known.lengths is not None:
            np.testing.assert_allclose(found.packed.tokens.sum(axis=(0, 2)), known.lengths.tokens.sum(axis=(0, 2)))


# ------------------------------------------------------------------------------------ what is proposed


def test_documents_are_dealt_out() -> None:
    """With documents the step gets faster, ranks even, no token waits, and the figures say so."""
    job = analysis(SPEC, SEQUENCES)
    fix = remedy(job)
    figures = fix.figures
    assert figures["rank_imbalance_after"] < 1.05 < figures["rank_imbalance_before"]
    assert figures["imbalance_after"] <= figures["imbalance_before"]
    assert figures["tokens_delayed_share"] == figures["delay_max_steps"] == figures["delay_mean_steps"] == 0.0
    assert figures["cost_explained_share"] > 0.9
    # The quadratic part of the mean microbatch is 0.4 of it: where length squared / n is as large as length says n.
    sq = SEQUENCES.draw_documents(SPEC).tokens_sq().mean()
    assert figures["equal_cost_tokens"] == pytest.approx(sq / 32768 * 0.6 / 0.4, rel=0.1)
    assert job.price(fix.changes).mean() < 0.95 * job.gains.replayed_s
    assert "cost" in fix.summary
    assert any("explain" in said for said in fix.assumptions)


def test_it_is_mentioned_what_waiting_would_bring() -> None:
    """Where long documents cannot be evened out within a step the report says what letting them wait would give."""
    said = " ".join(remedy(analysis(dataclasses.replace(SPEC, steps=24), SEQUENCES)).assumptions)
    assert "method=balanced" in said or "method=queues" in said
    assert "tokens wait" in said


def test_whole_microbatches_without_documents() -> None:
    """Without documents whole microbatches move, by their times, and the report says that they cannot be split."""
    fix = remedy(analysis(SPEC, SILENT))
    assert fix.settings == {"method": "implied"}
    assert any("cannot be split further" in said for said in fix.assumptions)
    assert fix.figures["cost_explained_share"] is None
    assert fix.figures["memory_ratio"] == 1.0
    assert fix.figures["imbalance_after"] == pytest.approx(fix.figures["imbalance_before"])


def test_token_columns_are_enough_for_whole_microbatches() -> None:
    """With sums of lengths the cost is fitted, and the prediction as good as with documents."""
    tokens = dataclasses.replace(SILENT, records_tokens=True)
    fix = remedy(analysis(SPEC, tokens))
    assert fix.settings == {"method": "implied"}
    assert fix.figures["cost_explained_share"] > 0.9
    assert any("cannot be split further" in said for said in fix.assumptions)
    assert error_of(SPEC, (tokens,), RebalanceSettings()) == pytest.approx(0.0, abs=0.003)


def test_order_alone_helps_a_pipeline() -> None:
    """With one dp rank nothing can be dealt elsewhere, but neighbours that cost alike do not wait for each other."""
    spec = dataclasses.replace(SPEC, dp=1, microbatches=16, pp=4)
    job, _, found = rebalanced(spec, SILENT)
    assert isinstance(found, Rebalanced)
    assert found.step_s < 0.97 * job.gains.replayed_s
    before, after = (simulated_steps_s(spec, (SILENT,), one).mean() for one in (None, found))
    assert before / after > 1.03


def test_lengths_that_explain_nothing_are_not_trusted() -> None:
    """Documents of other microbatches explain no times: the costs are taken from these, and the report says so."""
    table = generate(SPEC, (SEQUENCES,)).trace
    step, dp, mb = (table[name].to_numpy() for name in ("step", "dp_rank", "mb_id"))
    drawn = SEQUENCES.draw_documents(SPEC)
    at = np.flatnonzero(mb >= 0)
    key = (np.searchsorted(SPEC.step_numbers(), step[at]) * SPEC.dp + dp[at]) * SPEC.microbatches + mb[at]
    shuffled = np.random.default_rng(0).permutation(len(drawn))
    lists = [drawn.lengths[low:high].tolist() for low, high in zip(drawn.offsets[:-1], drawn.offsets[1:], strict=True)]
    column: list[Any] = [None] * len(mb)
    for row, of_key in zip(at.tolist(), key.tolist(), strict=True):
        column[row] = lists[shuffled[of_key]]
    index = table.column_names.index("doc_lengths")
    job = measure(table.set_column(index, "doc_lengths", pa.array(column, pa.list_(pa.int32())))).analysis
    fix = remedy(job)
    assert fix.settings == {"method": "implied"}
    assert any("lengths explain only" in said for said in fix.assumptions)
    refused = propose(job, FaultLocation(), {"method": "greedy"})
    assert isinstance(refused, Refusal)
    assert "something else" in refused.reason


def test_unknown_documents_stay() -> None:
    """Before the documents are recorded nothing is moved, and the report says how many are known."""
    late = dataclasses.replace(SEQUENCES, onset=6)
    job = analysis(SPEC, late)
    fix = remedy(job)
    (work,) = fix.changes
    assert isinstance(work, Work)
    assert (work.factor[:, 0, :, :6] == 1.0).all()
    assert (work.factor[:, 0, :, 6:] != 1.0).any()
    assert any("62% of the microbatches" in said for said in fix.assumptions)
    assert error_of(SPEC, (late,), RebalanceSettings()) == pytest.approx(0.0, abs=0.01)


def test_beside_a_slow_worker() -> None:
    """A slow worker stays slow: its work is dealt anew, its pace is not."""
    faults = (SEQUENCES, WorkerFault(places=((1, 2),), slowdown=1.5))
    assert error_of(SPEC, faults, RebalanceSettings()) == pytest.approx(0.0, abs=0.01)


def test_beside_pauses() -> None:
    """Pauses stay where they are, as seconds."""
    faults = (SEQUENCES, GarbageCollection(pause_s=0.3))
    assert error_of(SPEC, faults, RebalanceSettings()) == pytest.approx(0.0, abs=0.01)


# -------------------------------------------------------------------------------------- what is refused


def refusal(job: Analysis, **settings: str) -> str:
    """Propose, and be sure that nothing is."""
    found = propose(job, FaultLocation(), settings)
    assert isinstance(found, Refusal), found
    return found.reason


def test_refusals() -> None:
    """An even job, one microbatch, one rank without a pipeline, and a packer without documents."""
    assert "no more than by chance" in refusal(analysis(SPEC))
    alone = JobSpec(pp=1, dp=1, microbatches=12, steps=20, seed=3)
    assert "go nowhere else" in refusal(analysis(alone, SILENT))
    assert "no doc_lengths" in refusal(analysis(SPEC, SILENT), method="greedy")
    few = dataclasses.replace(SPEC, steps=3)
    assert "too few steps" in refusal(analysis(few, SEQUENCES), method="queues", queues="2000,4000,8000,12000,16000")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "best"}, "expected one of greedy, queues, balanced, implied"),
        ({"memory": "0.5"}, "expected a factor from 1 on"),
        ({"memory": "much"}, "expected a number above 0"),
        ({"queues": "8192,4096"}, "expected lengths in tokens that rise"),
        ({"queues": "8k"}, "expected lengths in tokens that rise"),
        ({"queues": "0,4"}, "expected lengths in tokens that rise"),
        ({"queues": "4096", "method": "greedy"}, "queues goes with method=queues"),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, str], said: str) -> None:
    """A setting that makes no sense is refused with what was expected."""
    with pytest.raises(UsageError, match=NAME) as error:
        propose(analysis(SPEC, SEQUENCES), FaultLocation(), settings)
    assert said in error.value.message


def test_the_catalogue_knows_it() -> None:
    """It is found by its name, and its settings are those that it reads."""
    module = find_fix(NAME)
    assert module.SETTINGS is SETTINGS
    job = analysis(SPEC, SEQUENCES)
    for settings in ({}, {"method": "greedy"}, {"method": "balanced", "memory": "1.2"}, {"queues": "8192,16384"}):
        found = module.propose(job, FaultLocation(), settings)
        assert isinstance(found, Remedy)
        assert set(found.settings) <= set(SETTINGS)
        again = module.propose(job, FaultLocation(), found.settings)
        assert isinstance(again, Remedy)
        assert again.summary == found.summary


@pytest.mark.parametrize("framework", ["Megatron-LM 0.17", "torchtitan", "DeepSpeed", "PyTorch", None])
def test_how_is_for_the_framework(framework: str | None) -> None:
    """Advice is for the framework that the metadata name."""
    job = analysis(SPEC, SEQUENCES)
    named: Job = dataclasses.replace(job.trace.job, framework=framework)
    how = remedy(dataclasses.replace(job, trace=dataclasses.replace(job.trace, job=named))).how
    assert ("--sequence-packing-scheduler" in how) == (framework in ("Megatron-LM 0.17", None))
    assert "length squared" in how


# -------------------------------------------------------------------------------------------- packing


def lengths_of(job: Analysis) -> Lengths:
    """Read the documents of a job."""
    found = read_lengths(job)
    assert found is not None
    return found


@pytest.mark.parametrize("memory", [1.0, 1.1, 1.5])
@pytest.mark.parametrize("layout", ["ranks", "greedy", "queues", "balanced"])
def test_memory_is_kept(layout: Any, memory: float) -> None:
    """Packers that let documents wait keep the limit; those that do not exceed it only where nothing else is left."""
    job = analysis(SPEC, SEQUENCES)
    cost = Cost(1.0, 1 / 10_000)
    packed = repack(lengths_of(job), job.breakdown.steps, cost, Way(layout, memory), longest_weight=3.0)
    assert packed is not None
    longest = packed.tokens.max() / 32768
    assert packed.memory_ratio <= (memory if layout in ("queues", "balanced") else max(memory, 1.05)) + 1e-9
    if packed.waiting_share == 0:
        assert longest == pytest.approx(packed.memory_ratio)
    assert (packed.delayed_share > 0) == (layout in ("queues", "balanced") and packed.max_delay_steps > 0)
    if layout in ("ranks", "greedy"):
        assert packed.delayed_share == packed.waiting_share == 0.0
    # All steps together cost what they did.
    before = lengths_of(job)
    assert (cost.linear * packed.tokens + cost.quadratic * packed.tokens_sq).sum() == pytest.approx(
        (cost.linear * before.tokens + cost.quadratic * before.tokens_sq).sum()
    )


def test_a_sample_of_the_steps_says_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job with too many documents every few steps are packed, and the price is about that of packing all."""
    job = analysis(dataclasses.replace(SPEC, steps=30), SEQUENCES)
    known = know(job)
    whole = rebalance(job, known, RebalanceSettings("greedy"))
    monkeypatch.setattr("diagnose.fixes.rebalance.MAX_WORK_ASKED", 2.5e6)
    monkeypatch.setattr("diagnose.fixes.rebalance.LAYOUTS", {"greedy": ("ranks",)})
    sampled = rebalance(job, known, RebalanceSettings("greedy"))
    assert isinstance(whole, Rebalanced)
    assert isinstance(sampled, Rebalanced)
    assert sampled.packed is not None
    assert 0.1 < sampled.packed.sampled_share < 0.5
    assert (job.price([sampled.work]) < job.gains.replayed_steps_s)[sampled.packed.left].all()
    monkeypatch.setattr("diagnose.fixes.rebalance.MAX_WORK_ASKED", np.inf)
    all_steps = rebalance(job, known, RebalanceSettings("greedy"))
    assert isinstance(all_steps, Rebalanced)
    assert sampled.step_s == pytest.approx(all_steps.step_s, rel=0.03)


def test_a_batch_that_is_too_large_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where packing takes too long whole microbatches are dealt; asked for by name, it is refused."""
    job = analysis(SPEC, SEQUENCES)
    for name in ("MAX_WORK", "MAX_WORK_ASKED"):
        monkeypatch.setattr(f"diagnose.fixes.rebalance.{name}", 1000.0)
    fix = remedy(job)
    assert fix.settings == {"method": "implied"}
    assert any("too many documents" in said for said in fix.assumptions)
    assert "too large" in refusal(job, method="balanced")


def test_ranks_with_fewer_microbatches() -> None:
    """A rank whose documents are partly unknown takes no more than it has places for."""
    job = analysis(SPEC, SEQUENCES)
    lengths = lengths_of(job)
    list_at = lengths.list_at.copy()
    list_at[2:, 3, 1] = -1
    list_at[:, 5] = -1
    cut = dataclasses.replace(lengths, list_at=list_at)
    packed = repack(cut, job.breakdown.steps, Cost(1.0, 1e-4), Way("ranks", 1.1), longest_weight=3.0)
    assert packed is not None
    np.testing.assert_array_equal(packed.known, list_at >= 0)
    for values, before in ((packed.tokens, lengths.tokens), (packed.tokens_sq, lengths.tokens_sq)):
        np.testing.assert_array_equal(values[~packed.known], before[~packed.known])
    known = packed.known
    np.testing.assert_allclose(
        np.where(known, packed.tokens, 0).sum(axis=(0, 2)), np.where(known, lengths.tokens, 0).sum(axis=(0, 2))
    )


def test_thresholds_grow_with_the_room() -> None:
    """Queues begin where a document alone is half of a mean microbatch, and end where nothing is as long."""
    assert repacking.choose_thresholds(Cost(1.0, 0.0), 1000.0, 4000) == (500, 1000)
    assert repacking.choose_thresholds(Cost(1.0, 0.0), 1000.0, 600) == (500, 601)


def test_same_job_same_answer() -> None:
    """Proposing twice gives the same, to the bit."""
    job = analysis(SPEC, SEQUENCES)
    one, two = remedy(job), remedy(job)
    np.testing.assert_array_equal(one.changes[0].factor, two.changes[0].factor)
    assert dataclasses.replace(one, changes=()) == dataclasses.replace(two, changes=())


def test_a_search_is_no_long_one() -> None:
    """On a job of 512 microbatches a step proposing takes seconds, not minutes."""
    spec = JobSpec(pp=2, dp=32, microbatches=16, steps=12, seed=5)
    job = analysis(spec, SEQUENCES)
    began = time.process_time()
    found = rebalance(job, know(job), RebalanceSettings())
    assert isinstance(found, Rebalanced)
    assert time.process_time() - began < 20.0
