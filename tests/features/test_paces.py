"""Since when a run is slow by its log, and which ranks the log sets apart."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.paces import measure_log
from diagnose.judge.log import judge_log
from diagnose.model.cause import When
from diagnose.model.place import Worker
from diagnose.model.trace import Job
from diagnose.model.training_log import Extremes, LogFacts, RankTimes, TrainingLog
from tests.trace.producers.megatron_lines import noisy

SIZES = {"world_size": 16, "pp_size": 4, "tp_size": 2, "cp_size": 1}


def log_of(
    step_s: list[float],
    *,
    first: int = 1,
    interval: int = 1,
    batch_size: list[int] | None = None,
    timers: dict[str, RankTimes] | None = None,
    extremes: dict[str, Extremes] | None = None,
) -> TrainingLog:
    """Make the log of one attempt."""
    n = len(step_s)
    return TrainingLog(
        name="train.log",
        format="Megatron-LM",
        reads="elapsed time per iteration (ms)",
        is_mean=True,
        iteration=first + interval * np.arange(n),
        step_s=np.array(step_s),
        batch_size=np.array(batch_size or [512] * n),
        attempt=np.zeros(n, dtype=np.int64),
        stamp_s=np.full(n, np.nan),
        tokens=np.full(n, np.nan),
        n_steps=np.zeros(n, dtype=np.int64),
        timers=timers or {},
        extremes=extremes or {},
    )


def measure(log: TrainingLog) -> LogFacts:
    """Measure a log as of a job of 16 ranks."""
    return measure_log(log, min_speedup=1.02, sizes=SIZES)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_slow", [10, 400, 1100])
def test_onset(seed: int, n_slow: int) -> None:
    """A run that gets 7% slower, just now or long ago, is so from that iteration on."""
    facts = measure(log_of(noisy([(1200 - n_slow, 1.4), (n_slow, 1.5)], seed=seed)))
    assert facts.when.pattern == "onset"
    assert facts.when.onset_step == pytest.approx(1201 - n_slow, abs=1)
    assert facts.usual_s == pytest.approx(1.4, rel=0.01)
    assert facts.slow_s == pytest.approx(1.5, rel=0.01)
    assert facts.lost_s == pytest.approx(0.1 * n_slow, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_recovery(seed: int) -> None:
    """A run that is slow for a while has onset and recovery."""
    facts = measure(log_of(noisy([(300, 1.4), (100, 1.6), (800, 1.4)], noise=0.02, seed=seed)))
    assert facts.when == When("transient", pytest.approx(301, abs=1), pytest.approx(401, abs=1))


def test_slow_from_the_start() -> None:
    """A run that is slow at first has a recovery and no onset."""
    assert measure(log_of(noisy([(100, 1.6), (300, 1.4)]))).when == When("transient", None, 101)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.1])
def test_no_change(seed: int, noise: float) -> None:
    """Noise, however large, is no change of pace."""
    facts = measure(log_of(noisy([(600, 1.4)], noise=noise, seed=seed)))
    assert facts.when == When()
    assert facts.lost_s == 0


def test_long_steps_alone() -> None:
    """A long first step, and a long one every hundred, are no change of pace."""
    step_s = noisy([(600, 1.4)])
    step_s[0] = 30.0
    step_s[100::100] = [3.0] * 5
    facts = measure(log_of(step_s))
    assert facts.when == When()
    assert facts.ledger is not None
    assert facts.ledger.seconds["start"] == pytest.approx(28.6, rel=0.01)
    (spikes,) = facts.spikes
    assert (spikes.count, spikes.period) == (5, 100)


def test_growing_batch() -> None:
    """A batch that grows makes steps longer and nobody slower: its work is taken out."""
    facts = measure(log_of(noisy([(300, 1.0), (300, 2.0)]), batch_size=[256] * 300 + [512] * 300))
    assert facts.when == When()
    assert facts.work is not None
    assert facts.work.power == pytest.approx(1.0, abs=0.01)


def test_long_log() -> None:
    """In a log of 100,000 lines the onset is found to the line."""
    facts = measure(log_of(noisy([(90_010, 1.4), (9_990, 1.5)])))
    assert facts.when == When("onset", 90_011)
    assert len(facts.levels) == 2


def test_lines_apart() -> None:
    """A line each ten iterations gives the first iteration of the slow lines, and counts ten times in what was lost."""
    facts = measure(log_of(noisy([(30, 1.4), (20, 1.6)], noise=0.005), first=10, interval=10))
    assert facts.interval == 10
    assert facts.when == When("onset", 301)
    assert facts.lost_s == pytest.approx(20 * 10 * 0.2, rel=0.05)


def test_short_logs() -> None:
    """A log of one line, or a few, is no reason to say anything."""
    for n in range(1, 6):
        assert measure(log_of([1.0] * n)).when == When()


def times_of(rank_s: list[float], iterations: list[int]) -> RankTimes:
    """Report the same times after each iteration."""
    ranks = np.arange(len(rank_s))
    return RankTimes(
        np.repeat(iterations, len(ranks)), np.tile(ranks, len(iterations)), np.tile(rank_s, len(iterations))
    )


def test_rank_against_its_stage() -> None:
    """A rank is compared with its stage: long forwards of a whole stage set nobody apart, those of one rank of it do."""
    stages_s = [0.4] * 4 + [0.4] * 4 + [0.4] * 4 + [0.8] * 4
    facts = measure(log_of([1.0] * 50, timers={"forward-compute": times_of(stages_s, [10, 20])}))
    assert facts.slow_ranks == ()
    stages_s[6] = 0.6
    facts = measure(log_of([1.0] * 50, timers={"forward-compute": times_of(stages_s, [10, 20])}))
    (slow,) = facts.slow_ranks
    assert (slow.rank, slow.worker, slow.by_peers) == (6, Worker(1, 1, 6), True)
    assert slow.values["ratio"] == pytest.approx(1.5)


def test_rank_while_slow() -> None:
    """Ranks are compared in the reports of the time when the run is slow."""
    step_s = noisy([(500, 1.4), (100, 1.8)])
    quiet, slow = [0.4] * 16, [0.4] * 5 + [0.8] + [0.4] * 10
    parts = [times_of(quiet, list(range(10, 500, 10))), times_of(slow, [510, 550, 590])]
    joined = RankTimes(
        *(np.concatenate([getattr(part, key) for part in parts]) for key in ("iteration", "rank", "seconds"))
    )
    (found,) = measure(log_of(step_s, timers={"forward-compute": joined})).slow_ranks
    assert found.rank == 5
    assert found.worker == Worker(0, 1, 4)  # the group of ranks 4 and 5
    assert found.values["ratio"] == pytest.approx(2.0)


def extremes_of(low: float, high: float, low_rank: list[int], high_rank: list[int]) -> Extremes:
    """Report two ends after each tenth iteration."""
    n = len(low_rank)
    return Extremes(
        10 * np.arange(1, n + 1), np.full(n, low), np.array(low_rank), np.full(n, high), np.array(high_rank)
    )


def test_detector() -> None:
    """The rank with the lowest clock in all reports is named, with its heat; one that is hot only, or now and then slow, is not."""
    throttled = extremes_of(1200, 1980, [5] * 6, [0] * 6)
    hot = extremes_of(50, 88, [1] * 6, [5] * 6)
    changing = extremes_of(3000, 4000, [0] * 6, [1, 2, 3, 4, 5, 6])
    facts = measure(log_of([1.0] * 60, extremes={"Clk": throttled, "Tmp": hot, "Rtt": changing}))
    assert [(slow.rank, slow.measure, slow.by_peers) for slow in facts.slow_ranks] == [
        (5, "Clk", False),
        (5, "Tmp", False),
    ]
    assert measure(log_of([1.0] * 60, extremes={"Tmp": hot})).slow_ranks == ()


def test_too_few_peers() -> None:
    """Among three ranks of a stage nobody is named, however slow; among four the slow one is."""
    for n_on_stage, n_named in ((3, 0), (4, 1)):
        sizes = {"world_size": 4 * n_on_stage, "pp_size": 4, "tp_size": 1, "cp_size": 1}
        timers = {"forward-compute": times_of([0.8] + [0.4] * (4 * n_on_stage - 1), [10, 20])}
        facts = measure_log(log_of([1.0] * 50, timers=timers), min_speedup=1.02, sizes=sizes)
        assert len(facts.slow_ranks) == n_named


def test_a_stage_whose_ranks_scatter_has_no_slow_one() -> None:
    """A rank 27% above the median of its stage is not named where its peers differ by as much from each other."""
    stages_s = [0.4] * 12 + [0.4, 0.5, 0.6, 0.7]
    assert measure(log_of([1.0] * 50, timers={"forward-compute": times_of(stages_s, [10, 20])})).slow_ranks == ()


@pytest.mark.parametrize(
    ("clock", "n_reports", "n_named"),
    [(1200.0, 3, 1), (1200.0, 2, 0), (1900.0, 6, 0)],
    ids=["throttled", "two reports", "nearly as high"],
)
def test_the_lowest_clock_is_named_on_evidence(clock: float, n_reports: int, n_named: int) -> None:
    """The rank with the lowest clock is named from three reports on, and where the clock is far below the highest."""
    reported = extremes_of(clock, 1980, [5] * n_reports, [0] * n_reports)
    assert len(measure(log_of([1.0] * 60, extremes={"Clk": reported})).slow_ranks) == n_named


def test_iterations_that_get_shorter_are_over_where_they_are_as_short_as_the_others() -> None:
    """What falls evenly to the good pace was slow, and is not said to get longer."""
    falls = list(np.linspace(3.0, 1.0, 60) * noisy([(60, 1.0)], seed=1))
    for steps in (falls, falls + list(noisy([(60, 1.0)], seed=2))):
        facts = measure(log_of([float(s) for s in steps]))
        assert facts.when.recovery_step == pytest.approx(60, abs=3)
        assert [ramp.slope < 0 for ramp in facts.ramps] == [True]
        (cause,) = judge_log(facts, Job("job", 1, 1, 1, 1, 1, 1), ()).causes
        assert "get shorter evenly" in cause.title


@pytest.mark.parametrize("is_mean", [True, False])
def test_a_slow_iteration_is_longer_by_its_own_seconds(is_mean: bool) -> None:
    """Where lines are single steps of ten, the slow one is told as long as it is, and costs what ten would."""
    steps = noisy([(80, 1.0)], seed=3)
    steps[40] += 1.0
    log = dataclasses.replace(log_of(list(steps), interval=10), is_mean=is_mean)
    facts = measure(log)
    assert facts.spikes[0].excess == pytest.approx(10.0 if is_mean else 1.0, rel=0.1)
    assert facts.spikes[0].lost_s == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize("told", [True, False, None])
def test_a_period_of_the_workers_is_the_loader_unless_its_own_seconds_deny_it(told: bool | None) -> None:
    """Every fourth iteration is slow and there are four workers: where the log tells waiting for data, it must be there."""
    slow = np.arange(200) % 4 == 3
    steps = noisy([(200, 1.0)], seed=4) + slow
    log = dataclasses.replace(log_of(list(steps)), intervals={"loader-workers": 4})
    if told is not None:
        log = dataclasses.replace(log, parts={"data": np.full(200, 0.01) + slow * told})
    (cause,) = judge_log(measure(log), Job("job", 1, 1, 1, 1, 1, 1), ()).causes
    assert cause.cause == ("unknown" if told is False else "data-loading")
    assert not [other for other in cause.alternatives if told is False and other.cause == "data-loading"]
