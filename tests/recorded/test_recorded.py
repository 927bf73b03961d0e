"""Real jobs recorded for this project: their causes are named, at their places, and nothing that is not there is said surely."""

import gzip
import shutil
from pathlib import Path

import pytest

from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.recorded.score import JOBS, SURE, TRUTH, diagnose, score

PROFILES, DUMPS = JOBS.with_name("profiles"), JOBS.with_name("dumps")


def test_batches_that_are_longer_on_all_ranks_make_no_job_straggle() -> None:
    """Bucketed batches: each step has as much work on all ranks, and no two steps the same."""
    found = diagnose("t10-buckets-d4", "recorded")
    assert (found.verdict, found.causes) == ("noisy", ())
    assert "with more work" in found.why


def test_a_job_that_is_slower_for_most_of_its_steps() -> None:
    """All take 1.3 times as long from step 20 on, in 22 of 40 steps: it says since when, and what it was before."""
    (cause,) = diagnose("t13-slower-for-good-p24", "recorded").causes
    assert (cause.cause, cause.when.onset_step) == ("unknown", 20)
    assert cause.recoverable == pytest.approx(TRUTH["t13-slower-for-good-p24"]["made"]["share"], abs=0.02)


def test_a_job_that_gets_slower_for_good_after_a_slow_start() -> None:
    """All take 1.4 times as long from step 9 on, in 11 of 20 steps that vary: what the quicker ones took is usual."""
    (cause,) = diagnose("t16-slower-for-good-p21", "recorded").causes
    assert cause.cause == "unknown"
    assert 0.09 < cause.recoverable < TRUTH["t16-slower-for-good-p21"]["made"]["share"]


def test_the_only_rank_that_collects_in_half_of_its_steps_may_load() -> None:
    """Pauses inside any forward: a collector is as likely as a loader, and neither is sure."""
    (cause,) = diagnose("t13-gc-rank-0-d6", "recorded").causes
    assert {cause.cause, *(other.cause for other in cause.alternatives)} == {"data-loading", "garbage-collection"}
    assert cause.confidence < SURE


def test_hot_experts_that_move_on_are_no_slow_workers() -> None:
    """Each of four ranks is slow in turns: nobody is to be replaced."""
    assert "worker-fault" not in {cause.cause for cause in diagnose("t10-moe-hotter-d4", "recorded").causes}


def test_a_card_that_is_slow_in_a_fifth_of_the_steps() -> None:
    """Whether it is the card or its host nobody can tell: what would is said."""
    (unknown,) = diagnose("nic-flap-d3", "recorded").causes
    assert unknown.cause == "unknown"
    assert "counters of ports" in unknown.evidence[0].text


@pytest.mark.parametrize("name", ["healthy-p22", "docs-p22", "burst-p24", "fwd-z22"])
def test_with_the_clock_of_each_step(name: str) -> None:
    """Where times count from the first operation of a step, who begins late is no late loader."""
    assert score(name, diagnose(name, "relative")) == "right"


@pytest.mark.parametrize(
    "name",
    [
        "healthy-d8",
        "host-d8",
        "tp-one-ft22",
        "k-healthy-ft22",
        "stopped-p22",
        "save-a4",
        "two-load-d8",
        "link-one-way-p32",
        "seq-warm-d3",
        "healthy-sampled-d4",
        "skew-slow-p32",
        "save-odd-p22",
    ],
)
def test_without_rows(name: str) -> None:
    """Where no row tells what happened nothing is said surely that did not: steps that run into each other, pauses, one save."""
    assert score(name, diagnose(name, "bare")) == "right"


def test_a_process_that_is_stopped_in_a_few_steps() -> None:
    """Nobody can tell by what, but it is known where."""
    (unknown,) = diagnose("stopped-burst-d8", "recorded").causes
    assert unknown.cause == "unknown"
    assert [worker.dp for worker in unknown.where.workers] == [6]


@pytest.mark.parametrize("variant", ["bare", "relative"])
def test_a_late_optimizer_is_no_late_loader(variant: str) -> None:
    """Who ends a step late begins the next one late."""
    assert score("opt-d4", diagnose("opt-d4", variant)) == "right"


@pytest.mark.parametrize("name", ["eval-d4", "log-d4"])
def test_a_stop_that_nothing_calls_a_save(name: str) -> None:
    """Without rows a stop of all at a period may be a save, planned work, or a loader's turn: one finding, with all of them."""
    found = next(cause for cause in diagnose(name, "bare").causes if cause.cause == "checkpoint-stall")
    assert found.confidence < SURE
    assert [other.cause for other in found.alternatives] == ["evaluation", "data-loading"]


def test_a_slow_host_of_a_gpu_is_a_slow_worker() -> None:
    """Its forwards alone are late, as where they read data; and one stage is no uneven one."""
    (cause,) = diagnose("gpu-sliced-host-d2", "recorded").causes
    (other,) = cause.alternatives
    assert (cause.cause, other.cause) == ("worker-fault", "data-loading") and cause.confidence > other.confidence


def test_evidence_is_of_the_worker_that_is_named() -> None:
    """Another one is 1.07 times as slow all over; who is named is so in one microbatch of each step, which costs 38%."""
    (cause,) = diagnose("first-mb-p23", "recorded").causes
    assert "1.07" not in cause.evidence[0].text and "named ones" in cause.evidence[0].text


def test_what_is_less_sure_than_nobody_knows_does_not_lead() -> None:
    """Ranks that take turns on one GPU look like stalls of the allocator (0.00), a slow worker (0.49), or nobody knows (0.48)."""
    first = diagnose("gpu-sliced-f2", "recorded").causes[0]
    assert first.cause == "unknown" and "worker-fault" in {other.cause for other in first.alternatives}
    assert "allocator-stall" not in {other.cause for other in first.alternatives}


def test_profiles_of_a_gpu() -> None:
    """The GPU is a step and more behind its host, and works through what was launched before the profiler was on."""
    healthy = diagnose_job(Request(PROFILES / "gpu-healthy-d2"))
    assert (healthy.verdict, healthy.causes) == ("healthy", ())
    slow, uneven = diagnose_job(Request(PROFILES / "gpu-slow-p22")).causes
    assert [(worker.dp, worker.pp) for worker in slow.where.workers] == [(1, 1)]
    assert (slow.cause, uneven.cause, uneven.where.stages) == ("worker-fault", "stage-imbalance", (1,))


@pytest.mark.parametrize(
    ("name", "cause", "dp", "lost"),
    [
        ("dtensor-slow-d4", "worker-fault", 2, 0.235),  # parallelize_module: each layer ends with an all-reduce
        (
            "tensor-load-d4",
            "data-loading",
            1,
            0.48,
        ),  # all ranks wait in their forward for the one that waits for its batch
    ],
)
def test_profiles_of_jobs_that_exchange_within_their_computes(name: str, cause: str, dp: int, lost: float) -> None:
    """Who waits for whom there is seen: with all of it in the computes all ranks were as slow, and the jobs healthy."""
    found = diagnose_job(Request(PROFILES / name)).causes[0]
    assert (found.cause, [worker.dp for worker in found.where.workers]) == (cause, [dp])
    assert found.confidence > SURE
    assert found.recoverable == pytest.approx(lost, abs=0.06)


def test_a_profile_of_experts_says_so_beside_a_slow_worker() -> None:
    """A job whose ranks exchange all with all has experts: who computes longer may have more tokens."""
    (found,) = diagnose_job(Request(PROFILES / "experts-hot-d4")).causes
    assert "expert-imbalance" in {other.cause for other in found.alternatives}
    assert found.confidence < SURE
    assert found.recoverable == pytest.approx(0.15, abs=0.05)


def test_a_profile_of_experts_without_one_rank_is_no_surer(tmp_path: Path) -> None:
    """The file of one rank is damaged: how many ranks share the experts the others say."""
    folder = shutil.copytree(PROFILES / "experts-hot-d4", tmp_path / "job")
    text = gzip.decompress((folder / "rank2.json.gz").read_bytes())
    half = len(text) // 2
    (folder / "rank2.json.gz").write_bytes(gzip.compress(text[:half] + b'}}]" garbage {{' + text[half:]))
    said = diagnose_job(Request(folder))
    assert any("rank2.json.gz" in warning and "damaged" in warning for warning in said.warnings)
    (found,) = said.causes
    assert "expert-imbalance" in {other.cause for other in found.alternatives}
    assert found.confidence < SURE


def test_a_profile_of_a_pipeline_says_which_tensor_parallel_rank_is_slow() -> None:
    """Both ranks of the first stage compute as long, as one waits for the other in each layer: that is no long stage."""
    diagnosis = diagnose_job(Request(PROFILES / "tensor-pipe-slow-p21"))
    (found,) = diagnosis.causes
    assert not any("not simulated" in warning for warning in diagnosis.warnings), "waits within computes are known"
    assert (found.cause, found.alternatives) == ("worker-fault", ())
    assert [(worker.dp, worker.pp, worker.tp) for worker in found.where.workers] == [(0, 0, 1)]
    assert found.recoverable == pytest.approx(0.21, abs=0.05)


def test_a_profile_of_a_pipeline_with_experts_says_who_is_waited_for() -> None:
    """All ranks of the first stage compute as long, as they exchange tokens in each layer: that is no long stage either."""
    (found,) = diagnose_job(Request(PROFILES / "experts-pipe-slow-p22")).causes
    assert (found.cause, [(worker.dp, worker.pp) for worker in found.where.workers]) == ("worker-fault", [(1, 0)])
    assert [other.cause for other in found.alternatives] == ["expert-imbalance"]
    assert found.recoverable == pytest.approx(0.174, abs=0.05)


def test_dumps_of_nccl() -> None:
    """Of two ranks the one that the other waits for is late; nothing but time says by how much ranks differ by chance."""
    (cause,) = diagnose_job(Request(DUMPS / "gpu-slow-d2")).causes
    assert (cause.cause, [worker.dp for worker in cause.where.workers]) == ("worker-fault", [1])
    assert cause.recoverable == pytest.approx(0.34, abs=0.05)  # 148.6 ms a step against 98.2 without the fault


def test_every_job_has_its_truth() -> None:
    """Each file has an entry, and says how it was made."""
    assert {path.stem for path in JOBS.glob("*.parquet")} == set(TRUTH)
    assert all(truth["made"]["steps"] > 0 for truth in TRUTH.values())


@pytest.mark.parametrize(
    ("name", "gain", "workers"),
    [
        ("t22-host-busy-p24", 0.09, {(1, 0), (1, 1)}),
        ("t22-host-busy-p42", 0.112, {(0, 0), (0, 1), (0, 2), (0, 3)}),
        ("t22-stopped-p42", 0.06, {(1, 2)}),
        ("t22-stopped-p24", 0.107, {(2, 1)}),
        ("t22-stopped-host-p24", 0.206, {(3, 0), (3, 1)}),
    ],
)
def test_machines_that_others_use_now_and_then(name: str, gain: float, workers: set[tuple[int, int]]) -> None:
    """Another process for moments, or a signal that stops their own: no documents of their rank, nor an allocator above all."""
    (cause,) = diagnose(name, "recorded").causes
    assert cause.cause == "worker-fault" and cause.confidence > SURE
    assert {(worker.dp, worker.pp) for worker in cause.where.workers} == workers
    assert cause.recoverable == pytest.approx(gain, abs=0.06)


def test_of_two_slow_workers_one_has_recovered() -> None:
    """It was slow until step 14, the other one is since step 16: who is told, and that one alone is replaced."""
    (cause,) = diagnose("t22-recovered-p42", "recorded").causes
    (turns,) = [item.text for item in cause.evidence if item.id == "worker-fault/turns"]
    assert "dp 0 stage 0 until step 14; dp 1 stage 3 from step 16 on" in turns
    assert "replace the worker at dp 1 stage 3" in cause.fixes[0].summary


def test_a_link_that_costs_nothing_beside_a_slow_worker() -> None:
    """It is slow in all steps; that nobody waits for it from step 12 on is another worker's doing."""
    network = next(c for c in diagnose("t22-link-hidden-p42", "recorded").causes if c.cause == "network-fault")
    assert network.when.onset_step is None and network.when.recovery_step is None


def test_collections_stop_sends_too() -> None:
    """A fifth of what they cost lies between computes and their sends, and no row tells."""
    (cause,) = diagnose("t22-gc-growing-p42", "recorded").causes
    assert cause.recoverable == pytest.approx(0.225, abs=0.02)


def test_a_slow_link_of_a_ring() -> None:
    """Sends of rank 3 are slow: the collectives of all eight end as the link to rank 4 lets them, and no clock is off."""
    found = diagnose("t22-ring-link-d8", "recorded")
    (cause,) = found.causes
    ((source, target),) = [(link.source.dp, link.target.dp) for link in cause.where.links]
    assert (cause.cause, source, target) == ("network-fault", 3, 4)
    assert not any("clocks differ" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("t22-planned-gc-p42", "healthy", "planned collections every 8 steps"),
        ("t22-run-again-p24", "healthy", "the last attempt is analysed"),
        ("t10-evalslow-d4", "noisy", "planned work is longer on dp rank 1 than on others, which wait: by 24%"),
        ("t22-ramp-told-p42", "noisy", "is more work, by the columns"),
    ],
)
def test_what_is_planned_or_more_work_is_told(name: str, verdict: str, said: str) -> None:
    """Collections by a plan, steps that were run again, and sequences that get longer are nobody's fault."""
    found = diagnose(name, "recorded")
    assert (found.verdict, found.causes) == (verdict, ())
    assert any(said in text for text in (*found.warnings, found.why or ""))
