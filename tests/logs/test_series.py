"""What is said of series of step times: the shapes that people paste, and what they are to be called."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.paces import measure_log
from diagnose.judge.log import judge_log
from diagnose.judge.log_causes import describe_spikes
from diagnose.judge.verdict import Verdict
from diagnose.model.place import Worker
from diagnose.model.trace import Job
from diagnose.model.training_log import LogEvent, LogFacts, RankTimes, TrainingLog
from tests.judge.cases import built_in
from tests.logs.formats import FORMATS
from tests.logs.formats_table import run_cell
from tests.logs.runs import Attempt, Between, LoggedRun, steady_run
from tests.logs.shapes import write_exactly

RULES = built_in().rules
JOB = Job("job", 4, 4, 1, 1, 1, 16)
SEEDS = range(5)


def noise(n: int, sigma: float = 0.01, seed: int = 0) -> np.ndarray:
    """Draw ratios around 1."""
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(n))


def run_of(step_s: np.ndarray, **changed: object) -> LoggedRun:
    """Make a run of step times."""
    return dataclasses.replace(steady_run(len(step_s)), step_s=np.asarray(step_s), **changed)


def look(log: TrainingLog | LoggedRun) -> tuple[LogFacts, Verdict]:
    """Measure and judge a log, or the exact one of a run."""
    facts = measure_log(write_exactly(log) if isinstance(log, LoggedRun) else log, min_speedup=1.02)
    assert facts.ledger is not None
    above_s = facts.ledger.total_s - facts.ledger.good_s
    assert sum(facts.ledger.seconds.values()) == pytest.approx(above_s, abs=1e-9 * facts.ledger.total_s)
    return facts, judge_log(facts, JOB, RULES)


def every_eighth(seed: int) -> np.ndarray:
    """Every eighth iteration takes 7.9 s instead of 0.9."""
    step_s = 0.9 * noise(1000, seed=seed)
    step_s[7::8] = 7.9
    return step_s


@pytest.mark.parametrize("seed", SEEDS)
def test_every_eighth_iteration(seed: int) -> None:
    """Half of all time in every eighth iteration is periodic, with the period and the cost; the job is not said to be steady."""
    facts, verdict = look(run_of(every_eighth(seed)))
    (spikes,) = facts.spikes
    assert (spikes.pattern, spikes.period, spikes.count) == ("periodic", 8, 125)
    assert facts.ledger.shares["periodic"] == pytest.approx(0.493, abs=0.002)
    (cause,) = verdict.causes
    assert (cause.cause, cause.when.pattern, cause.when.period_steps) == ("unknown", "periodic", 8)
    assert cause.recoverable == pytest.approx(0.493, abs=0.002)
    assert "every 8 steps?" in cause.check


def test_every_eighth_iteration_and_eight_workers() -> None:
    """Where the log says that the loader has eight workers, it is the loader: its fix has no price, as nothing was replayed."""
    _, verdict = look(run_of(every_eighth(0), intervals={"log": 1, "loader-workers": 8}))
    (cause,) = verdict.causes
    assert (cause.cause, cause.confidence) == ("data-loading", 0.8)
    assert (cause.fixes[0].fix, cause.fixes[0].predicted_step_time) == ("prefetch-input", None)
    assert "data-loading" in verdict.checked
    assert "data-loading" not in [entry.cause for entry in verdict.not_checked]


@pytest.mark.parametrize("seed", SEEDS)
def test_seven_percent_at_random(seed: int) -> None:
    """Of 7% of iterations at 3 to 6 times the pace it is said that they come at random, and what they cost."""
    rng = np.random.default_rng(seed)
    step_s = 1.4 * noise(1000, seed=seed)
    slow = rng.random(1000) < 0.07
    slow[:10] = False
    step_s[slow] *= rng.uniform(3.0, 6.0, int(slow.sum()))
    facts, verdict = look(run_of(step_s))
    (spikes,) = facts.spikes
    assert (spikes.pattern, spikes.count, facts.windows) == ("sporadic", int(slow.sum()), ())
    (cause,) = verdict.causes
    assert (cause.cause, cause.when.pattern) == ("unknown", "sporadic")
    assert spikes.lost_s == pytest.approx(step_s[slow].sum() - 1.4 * slow.sum(), rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ramp(seed: int) -> None:
    """Iterations that go from 11 to 40 s are a ramp, from where it begins to the end; no level is dated."""
    step_s = np.r_[np.full(30, 11.0), np.linspace(11.0, 40.0, 300)] * noise(330, 0.02, seed)
    facts, verdict = look(run_of(step_s))
    (ramp,) = facts.ramps
    assert (ramp.from_step_time, ramp.to_step_time) == (pytest.approx(11.0, rel=0.05), pytest.approx(40.0, rel=0.05))
    assert ramp.first == pytest.approx(31, abs=8)
    (cause,) = verdict.causes
    assert "longer and longer" in cause.title
    assert any("goes from 1" in item.text for item in cause.evidence)
    assert cause.recoverable == pytest.approx(1 - 11 / 40, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_eleven_lines(seed: int) -> None:
    """372 ms in iterations 5 to 9 and 1,150 ms in 10 to 15 is slow from 10 on."""
    step_s = np.r_[np.full(5, 0.372), np.full(6, 1.15)] * noise(11, 0.02, seed)
    facts, verdict = look(run_of(step_s, iteration=np.arange(5, 16)))
    assert (facts.when.pattern, facts.when.onset_step) == ("onset", 10)
    assert verdict.causes[0].recoverable == pytest.approx(1 - 0.372 / 1.15, abs=0.03)
    assert "sequence length" in verdict.causes[0].check


@pytest.mark.parametrize(("seed", "n", "more"), [*((seed, 9, " and 5 more") for seed in SEEDS), (0, 4, "")])
def test_nine_windows(seed: int, n: int, more: str) -> None:
    """Nine slow windows have nine onsets and nine recoveries, each with its cost; four of them are named."""
    starts = np.array([60, 190, 300, 450, 560, 700, 790, 930, 1080])[:n]
    step_s = np.ones(1200)
    for start in starts.tolist():
        step_s[start : start + 50] = 1.5
    facts, verdict = look(run_of(step_s * noise(1200, 0.02, seed)))
    assert [(window.onset, window.recovery) for window in facts.windows] == [(s + 1, s + 51) for s in starts.tolist()]
    assert [window.lost_s for window in facts.windows] == pytest.approx([25.0] * n, rel=0.05)
    (cause,) = verdict.causes
    assert (cause.when.pattern, cause.when.onset_step, cause.when.recovery_step) == ("sporadic", 61, starts[-1] + 51)
    (told,) = [item.text for item in cause.evidence if item.text.startswith(f"{n} slow windows")]
    assert told.endswith(", 451 to 500" + more)


@pytest.mark.parametrize("interval", [1, 10])
def test_two_paces_in_turn(interval: int) -> None:
    """A job whose steps take 1 s or 1.6 s, at random, has no window and no period; the lower pace is what it can do."""
    rng = np.random.default_rng(3)
    step_s = np.where(rng.random(1000) < 0.4, 1.6, 1.0) * noise(1000)
    facts, _ = look(run_of(step_s, interval=interval))
    assert (facts.windows, facts.ramps) == ((), ())
    assert all(spikes.period is None for spikes in facts.spikes)
    if interval == 1:
        assert facts.ledger.good_pace == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("seed", range(10))
def test_heavy_tails(seed: int) -> None:
    """Noise with heavy tails is nothing to tell of."""
    step_s = np.exp(0.02 * np.random.default_rng(seed).standard_t(2, 1000))
    facts, verdict = look(run_of(step_s))
    assert (facts.windows, verdict.verdict, verdict.causes) == ((), "inconclusive", ())


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_evaluation_and_saves(told: bool, inside: bool) -> None:
    """An evaluation is no fault, within step times or between them, told of or by its interval alone; saves are theirs."""
    between = [Between(kind="evaluation", at=at, seconds=20.0) for at in range(99, 999, 100)]
    between += [Between(kind="save", at=at, seconds=60.0) for at in range(299, 999, 300)]
    between.sort(key=lambda event: event.at)
    run = run_of(noise(1000), between=tuple(between), intervals={"log": 1, "evaluation": 100, "save": 300})
    facts, verdict = look(write_exactly(run, told=told, inside=inside))
    seconds = facts.ledger.seconds
    assert (seconds["evaluation"], seconds["save"]) == (pytest.approx(180, rel=0.02), pytest.approx(180, rel=0.02))
    assert [cause.cause for cause in verdict.causes] == ["checkpoint-stall"]


def test_slow_after_a_restart_on_other_hosts() -> None:
    """Slow since a restart on other hosts names both: the restart and the hosts."""
    step_s = np.r_[np.full(960, 1.0), np.full(300, 1.3)] * noise(1260)
    iteration = np.r_[np.arange(1, 961), np.arange(951, 1251)]
    attempts = (Attempt(at=0, hosts=("n1", "n2")), Attempt(at=960, hosts=("n1", "n9"), gap_s=300.0))
    facts, verdict = look(run_of(step_s, iteration=iteration, attempts=attempts))
    (cause,) = verdict.causes
    assert (cause.when.onset_step, cause.where.hosts) == (951, ("n9",))
    assert "after a restart on other hosts" in cause.title
    assert any("n9 in the place of n2" in item.text for item in cause.evidence)
    assert facts.ledger.seconds["restarts"] == pytest.approx(310, rel=0.02)


def test_flushes_of_the_allocator() -> None:
    """Slow iterations at which the log tells of flushes of the allocator's cache are its stalls."""
    rng = np.random.default_rng(0)
    at = np.sort(rng.choice(np.arange(20, 990), 60, replace=False))
    step_s = noise(1000)
    step_s[at] += 2.0
    events = tuple(LogEvent("cache-flush", int(i + 1)) for i in at)
    _, verdict = look(dataclasses.replace(write_exactly(run_of(step_s)), events=events))
    assert [(cause.cause, cause.confidence) for cause in verdict.causes] == [("allocator-stall", 0.9)]


def test_waiting_for_data() -> None:
    """Steps that wait for data by the log's own times are short of data."""
    step_s = noise(500)
    _, verdict = look(run_of(step_s, parts={"data": 0.3 * step_s}))
    (cause,) = verdict.causes
    assert (cause.cause, cause.recoverable) == ("data-loading", pytest.approx(0.3, rel=0.01))


def test_collections_at_their_interval() -> None:
    """Slow iterations at the interval of planned collections are these."""
    step_s = noise(1000)
    step_s[63::64] += 3.0
    _, verdict = look(run_of(step_s, intervals={"log": 1, "collection": 64}))
    assert [cause.cause for cause in verdict.causes] == ["garbage-collection"]


def test_a_slow_rank() -> None:
    """A rank that takes longer than the others of its stage is a worker's fault, at that rank."""
    rank_s = np.full(16, 0.4)
    rank_s[5] = 0.6
    iterations = np.repeat(np.arange(510, 600, 10), 16)
    timers = {"forward-compute": RankTimes(iterations, np.tile(np.arange(16), 9), np.tile(rank_s, 9))}
    log = write_exactly(run_of(np.r_[np.full(500, 1.4), np.full(100, 1.8)] * noise(600)))
    sizes = {"world_size": 16, "pp_size": 4, "tp_size": 1, "cp_size": 1}
    _, verdict = look(dataclasses.replace(log, timers=timers, sizes=sizes))
    (cause,) = verdict.causes
    assert (cause.cause, cause.where.workers) == ("worker-fault", (Worker(1, 1, 5),))


@pytest.mark.parametrize(("every", "shown", "others"), [(8, 40, (8,)), (30, 30, (3,)), (37, 37, ())])
def test_periods_that_lines_of_ten_show_alike(every: int, shown: int, others: tuple[int, ...]) -> None:
    """Lines of ten show every eighth iteration as every fortieth: both are named, and none is dated; longer periods are exact."""
    step_s = noise(4000, 0.005)
    step_s[every - 1 :: every] += 9.0
    facts, verdict = look(run_of(step_s, interval=10, intervals={"log": 10}))
    spikes = facts.spikes[0]
    assert (spikes.period, spikes.or_every) == (shown, others)
    assert (verdict.causes[0].when.period_steps is None) == bool(others)
    if others:
        both = f"every {others[0]} or {shown}"
        assert f"{both} iterations" in verdict.causes[0].title
        assert f"{both} steps" in verdict.causes[0].check


def test_periods_that_printed_steps_show_alike() -> None:
    """Where every tenth step is printed, and no other, every 37th shows as every 370th: the shorter ones are named, too."""
    step_s = noise(9000, 0.005)
    step_s[36::37] += 9.0
    facts, verdict = look(write_exactly(run_of(step_s, interval=10, intervals={"log": 10}), is_mean=False))
    spikes = facts.spikes[0]
    assert (spikes.period, spikes.or_every) == (370, (37, 74, 185))
    assert verdict.causes[0].when.period_steps is None


def test_an_evaluation_that_nothing_tells_of_around_saves_that_are_told() -> None:
    """Every hundredth step evaluates, with no line of it, and every third of these saves: the period is that of all of them."""
    between = [Between(kind="evaluation", at=at, seconds=20.0) for at in range(99, 999, 100)]
    saves = [Between(kind="save", at=at, seconds=60.0) for at in range(299, 999, 300)]
    run = run_of(noise(1000), between=tuple(sorted([*between, *saves], key=lambda event: event.at)))
    log = write_exactly(run, inside=True)
    facts, verdict = look(dataclasses.replace(log, events=tuple(e for e in log.events if e.kind == "save")))
    assert {(s.pattern, s.period, s.matches) for s in facts.spikes} == {
        ("periodic", 300, ("save",)),
        ("periodic", 100, ()),
    }
    assert facts.ledger.seconds["save"] == pytest.approx(180, rel=0.02)
    assert facts.ledger.seconds["periodic"] == pytest.approx(180, rel=0.02)
    assert {cause.cause for cause in verdict.causes} == {"checkpoint-stall", "unknown"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sawtooth(seed: int) -> None:
    """Iterations that get longer and longer until something resets them, again and again, come at that period."""
    step_s = (1.0 + np.arange(1200) % 200 / 200.0) * noise(1200, 0.01, seed)
    facts, verdict = look(run_of(step_s))
    assert len(facts.ramps) >= 5
    assert all(ramp.to_step_time > ramp.from_step_time for ramp in facts.ramps)
    (cause,) = verdict.causes
    assert "longer and longer" in cause.title
    assert facts.ledger.shares["ramps"] + facts.ledger.shares.get("windows", 0.0) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drift_that_restarts_undo(seed: int) -> None:
    """Iterations that get slower until the job is restarted, each time, cost what they take above the pace after a start."""
    drift = 1.0 + 0.5 * (np.arange(900) % 300) / 300.0
    attempts = tuple(Attempt(at=at, gap_s=120.0) for at in (0, 300, 600))
    facts, verdict = look(run_of(drift * noise(900, 0.01, seed), attempts=attempts))
    (cause,) = verdict.causes
    assert "longer and longer" in cause.title
    assert len(facts.ramps) >= 2
    lost = facts.ledger.seconds["ramps"] + facts.ledger.seconds.get("windows", 0.0)
    assert lost == pytest.approx(float((drift - 1.0).sum()), rel=0.1)


def test_flushes_in_every_step() -> None:
    """Where all steps flush the allocator's cache memory is said to be short, at a cost that is not known."""
    events = tuple(LogEvent("cache-flush", i) for i in range(1, 501))
    _, verdict = look(dataclasses.replace(write_exactly(run_of(noise(500))), events=events))
    (cause,) = verdict.causes
    assert (cause.cause, cause.confidence, cause.recoverable, cause.share) == ("allocator-stall", 0.6, 0.0, None)
    some = dataclasses.replace(write_exactly(run_of(noise(500))), events=events[:20])
    assert look(some)[1].causes == ()


def test_scatter_that_grows() -> None:
    """Step times that scatter five times as much at the end are told of."""
    facts, _ = look(run_of(np.r_[noise(400, 0.01), noise(400, 0.05, 1)]))
    assert facts.spread.last > 4 * facts.spread.first


@pytest.mark.parametrize("n_after", [1, 2])
def test_a_window_that_ends_just_before_the_log_does(n_after: int) -> None:
    """One or two lines at the usual pace are enough to say that it recovered."""
    step_s = noise(500)
    step_s[300 : 500 - n_after] *= 1.6
    facts, _ = look(run_of(step_s))
    (window,) = facts.windows
    assert (window.onset, window.recovery) == (301, 501 - n_after)


@pytest.mark.parametrize(("phase", "matches"), [(0, ("epoch",)), (50, ())])
def test_what_comes_within_an_epoch_is_not_its_begin(phase: int, matches: tuple[str, ...]) -> None:
    """Slow steps at the length of an epoch are matched with it where epochs begin, and not in their middle."""
    step_s = noise(1000)
    step_s[100 + phase :: 100] += 9.0
    facts, verdict = look(run_of(step_s, intervals={"epoch": 100}))
    (spikes,) = facts.spikes
    assert (spikes.period, spikes.matches) == (100, matches)
    assert [cause.cause for cause in verdict.causes] == ["data-loading" if matches else "unknown"]


def test_a_million_lines() -> None:
    """The period of a long log is exact, and a window of 40 lines is found to the line."""
    step_s = 1.4 * noise(1_000_000)
    step_s[900_000:900_040] *= 3.0
    step_s[7::8] += 0.9
    facts, _ = look(run_of(step_s))
    assert facts.spikes[0].period == 8
    (window,) = facts.windows
    assert (window.onset, window.recovery) == (pytest.approx(900_001, abs=1), pytest.approx(900_041, abs=1))


def test_waiting_for_data_in_the_first_steps_alone_is_no_cause() -> None:
    """Data that the first line waited for, and hardly any other, is in the cost of the first steps; who waits always is told."""
    step_s = 0.17 * noise(24)
    step_s[0] = 6.4
    waited = np.full(24, 0.003)
    waited[0] = 5.8
    log = dataclasses.replace(write_exactly(run_of(step_s)), parts={"data": waited})
    facts, verdict = look(log)
    assert facts.ledger.seconds["start"] == pytest.approx(6.23, abs=0.02)
    assert verdict.causes == ()
    _, verdict = look(dataclasses.replace(log, parts={"data": waited + 0.02}))
    assert [cause.cause for cause in verdict.causes] == ["data-loading"]
    assert verdict.causes[0].recoverable == pytest.approx(0.023 / 0.17, rel=0.02)


def test_what_is_told_of_a_printed_step_is_in_no_other() -> None:
    """An evaluation in the time of a printed iteration costs that once, though the line stands for five; else it is as all five."""
    run = run_of(1.44 * noise(60, 0.002))
    log = write_exactly(run)
    step_s = log.step_s.copy()
    step_s[[20, 40]] += 9.1
    events = tuple(LogEvent("evaluation", at) for at in (0, 100, 200))
    log = dataclasses.replace(log, iteration=np.arange(0, 300, 5), step_s=step_s, is_mean=False, events=events)
    facts, _ = look(log)
    assert facts.ledger.seconds["evaluation"] == pytest.approx(18.2, abs=0.1)
    assert [(spikes.count, spikes.matches) for spikes in facts.spikes] == [(2, ("evaluation",))]
    facts, _ = look(dataclasses.replace(log, events=()))
    assert facts.ledger.seconds["sporadic"] == pytest.approx(5 * 18.2, abs=0.5)


def test_what_an_evaluation_and_a_save_between_the_same_steps_tell_is_theirs() -> None:
    """Each takes its own seconds, also where another evaluation is too short to stand out."""
    between = (
        Between(kind="evaluation", at=99, seconds=4.0),
        Between(kind="save", at=99, seconds=3.0),
        Between(kind="evaluation", at=199, seconds=0.002),
    )
    facts, _ = look(write_exactly(run_of(noise(400, 0.002), between=between), told=True, inside=False))
    seconds = facts.ledger.seconds
    assert (seconds["evaluation"], seconds["save"]) == (pytest.approx(4.0, abs=0.05), pytest.approx(3.0, abs=0.05))
    texts = [describe_spikes(facts, spikes, 0.01) for spikes in facts.spikes]
    assert texts[0].startswith("4 s pass before iteration 101: ")


#: Logs that were answered falsely, each for a reason of its own.
MENDED = (
    ("Lightning, bar", "saves", 120000),  # a line with an evaluation after one without is no clock that was read late
    ("Lightning, bar", "windows", 120003),  # three lines off a coarse clock end a window
    ("Keras", "periodic", 120000),  # of lines of a hundred iterations each has three slow ones or four
    ("Keras", "restart", 120007),  # an attempt of two lines begins with a slow one
    ("JSON Lines, tokens", "restart", 120009),  # tokens are counted on where steps fall back
    ("YOLOX", "saves", 150000),  # each third evaluation has a save, and each twelfth of them is at the end of an epoch
    ("DiT", "windows", 120000),  # the line that a change lies in is between both levels
    ("DiT", "sequence", 120006),  # rates of two digits tell long steps worse than short ones
)


@pytest.mark.parametrize(("name", "kind", "seed"), MENDED)
def test_logs_that_were_answered_falsely(name: str, kind: str, seed: int) -> None:
    """What is said of them is what was put in, or that the file does not tell."""
    (one,) = run_cell(FORMATS[name], kind, [seed])
    assert one.is_right or one.lacks, one.said


def test_a_short_period_in_long_lines_is_one_of_those_named() -> None:
    """Every 31st iteration is slow: of lines of a hundred every fourth or fifth has one more, and 31 is named beside that."""
    step_s = noise(9700, 0.01)
    step_s[5::31] += 6.0
    facts, _ = look(dataclasses.replace(run_of(step_s), interval=100))
    (spikes,) = facts.spikes
    assert spikes.or_every == (31,)


def test_seconds_of_the_log_are_believed_before_what_it_tells_of() -> None:
    """A collection is told of at each slow step, and the seconds are those of the loader: it is the loader."""
    step_s = noise(1000, 0.01)
    step_s[99::100] += 3.0
    data_s = np.where(np.arange(1000) % 100 == 99, 3.01, 0.01)
    told = write_exactly(run_of(step_s, parts={"data": data_s}))
    events = tuple(LogEvent("collection", n) for n in range(100, 1001, 100))
    _, verdict = look(dataclasses.replace(told, events=events))
    assert [cause.cause for cause in verdict.causes] == ["data-loading"]


@pytest.mark.parametrize(("period", "interval"), [(7, 10), (8, 10), (13, 20)])
def test_a_period_shorter_than_a_line(period: int, interval: int) -> None:
    """Lines of ten of which some have two slow iterations and some have one show the period, and no other one."""
    step_s = noise(1200)
    step_s[period - 1 :: period] += 5.0
    facts, _ = look(run_of(step_s, interval=interval))
    (spikes,) = facts.spikes
    assert period in (spikes.period, *spikes.or_every)
    assert spikes.excess == pytest.approx(5.0, rel=0.05)


def test_two_periods_in_long_lines() -> None:
    """Every 8th is slow and every 24th more so: what is left beside the 24 in lines of ten is the 8, and no period of its own."""
    step_s = noise(960)
    step_s[7::8] += 5.0
    step_s[23::24] += 20.0
    facts, _ = look(run_of(step_s, interval=10))
    periods = [(spikes.period, *spikes.or_every) for spikes in facts.spikes]
    assert (24,) in periods
    assert all(24 in one or 8 in one for one in periods)


def test_evaluations_in_every_line() -> None:
    """Where the log tells of an evaluation in every line, those lines that have two are told as that, at its own interval."""
    step_s = noise(960)
    step_s[7::8] += 5.0
    events = tuple(LogEvent("evaluation", n, np.nan) for n in range(8, 961, 8))
    log = dataclasses.replace(write_exactly(run_of(step_s, interval=10)), events=events)
    facts = measure_log(log, min_speedup=1.02)
    (spikes,) = facts.spikes
    assert (spikes.told, spikes.matches, spikes.period) == (True, ("evaluation",), 8)


@pytest.mark.parametrize(
    ("at", "interval", "title"),
    [
        ([500], 1, "one iteration is slow"),
        ([500], 10, "one line of 10 iterations is slow"),
        ([101, 350, 356, 790], 1, "single iterations are slow, at random"),
        ([101, 350, 356, 790], 10, "single lines of 10 iterations are slow, at no period that they show"),
    ],
)
def test_what_slow_lines_without_a_period_are_called(at: list[int], interval: int, title: str) -> None:
    """Lines that are means of several iterations show neither which of them is slow nor a short period."""
    step_s = noise(960)
    step_s[at] += 100.0
    _, verdict = look(run_of(step_s, interval=interval))
    assert [cause.title for cause in verdict.causes] == [f"unknown cause: {title}"]


def test_of_several_things_with_the_interval_of_slow_iterations_two_are_said() -> None:
    """The first as the cause, in doubt for the others, and one more beside it."""
    step_s = noise(960)
    step_s[99::100] += 5.0
    facts, verdict = look(run_of(step_s, intervals=dict.fromkeys(("save", "collection", "evaluation"), 100)))
    assert facts.spikes[0].matches == ("collection", "evaluation", "save")
    (cause,) = verdict.causes
    assert (cause.cause, cause.confidence) == ("garbage-collection", pytest.approx(0.8 / 3))
    assert [other.cause for other in cause.alternatives] == ["unknown"]


def test_few_long_lines_show_no_period_that_is_shorter() -> None:
    """An evaluation every 120 in some 36 lines of 50 is no beat of every 35th, which would fit by chance."""
    step_s = noise(1830)
    step_s[120::120] += 20.0
    step_s[360::360] += 20.0
    facts, _ = look(run_of(step_s, interval=50))
    assert all(min((spikes.period or 120, *spikes.or_every)) >= 120 for spikes in facts.spikes)
