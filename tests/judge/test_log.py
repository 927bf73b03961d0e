"""A log alone, and a log beside a trace."""

import dataclasses
from types import SimpleNamespace

import msgspec.structs
import numpy as np
import pytest

from diagnose.judge.log import _choose_window, join_log, judge_log
from diagnose.judge.log_causes import _date_windows, _find_data, describe_spikes
from diagnose.model.cause import Cause, When
from diagnose.model.diagnosis_document import LogSpikes, LogWindow
from diagnose.model.place import Where, Worker
from diagnose.model.trace import Job
from diagnose.model.training_log import Level, LogFacts, SlowRank
from tests.judge.cases import built_in

RULES = built_in().rules
JOB = Job("job", 4, 4, 1, 1, 1, 16)
#: The log has iterations 1 to 400; those from 101 to 300 take 2 s instead of 1.5 s.
SLOW = When("transient", 101, 301)
RANK = SlowRank(5, "Clk", Worker(1, 1, 5), "rank 5 has the lowest clock", {"value": 1200.0}, by_peers=False)


def facts_of(when: When = SLOW, slow_ranks: tuple[SlowRank, ...] = ()) -> LogFacts:
    """Give what a log showed."""
    iterations = np.arange(1, 401)
    low, high = when.onset_step or 1, when.recovery_step or 401
    slow = (iterations >= low) & (iterations < high) & (when.pattern is not None)
    return LogFacts(
        name="train.log",
        iterations=iterations,
        step_s=np.where(slow, 2.0, 1.5),
        interval=1,
        levels=(Level(1, 400, 1.5),),
        usual_s=None if when.pattern is None else 1.5,
        slow_s=None if when.pattern is None else 2.0,
        when=when,
        deviations=None if when.pattern is None else 50.0,
        lost_s=0.0,
        restarts=(),
        slow_ranks=slow_ranks,
        checkpoints_s=(),
    )


def cause_of(recoverable: float = 0.25, when: When | None = None, cause: str = "worker-fault") -> Cause:
    """Give a cause found in a trace."""
    return Cause(
        cause=cause,
        title="slow worker",
        confidence=0.9,
        share=1.0,
        recoverable=recoverable,
        where=Where(workers=(Worker(1, 1, 5),)),
        when=when or When("constant"),
        evidence=(),
        fixes=(),
        fingerprint="x",
    )


@pytest.mark.parametrize(("told", "what"), [(False, "iterations, or their work,"), (True, "iterations")])
def test_alone_slow(*, told: bool, what: str) -> None:
    """A log alone with a change of pace is straggling from an unknown cause, since then; every known cause is unchecked.

    That their work may have grown is said where the log does not tell it.
    """
    verdict = judge_log(dataclasses.replace(facts_of(When("onset", 101)), is_work_told=told), JOB, RULES)
    assert verdict.verdict == "straggling"
    (cause,) = verdict.causes
    assert cause.title == f"unknown cause: {what} got longer"
    assert (cause.cause, cause.when, cause.recoverable) == ("unknown", When("onset", 101), pytest.approx(0.25))
    assert cause.where == Where()
    (item,) = cause.evidence
    assert item.text.startswith("by the log an iteration takes 2 s from iteration 101 on, and 1.5 s otherwise")
    assert "worker-fault" in [entry.cause for entry in verdict.not_checked]
    assert verdict.checked == ()


def test_alone_flat() -> None:
    """A log alone without a change is inconclusive, never healthy: all steps may be slow."""
    verdict = judge_log(facts_of(When()), JOB, RULES)
    assert (verdict.verdict, verdict.causes) == ("inconclusive", ())


def test_alone_rank() -> None:
    """A log alone places the cause at a rank only where that was compared with its own stage."""
    hint = judge_log(facts_of(slow_ranks=(RANK,)), JOB, RULES).causes[0]
    assert hint.where == Where()
    assert hint.evidence[1].text == RANK.text
    sure = judge_log(facts_of(slow_ranks=(dataclasses.replace(RANK, by_peers=True),)), JOB, RULES).causes[0]
    assert sure.where.workers == (Worker(1, 1, 5),)
    assert sure.fingerprint != hint.fingerprint


@pytest.mark.parametrize(
    ("steps", "before", "after"),
    [
        (range(150, 160), When("constant"), When("transient", 101, 301)),
        (range(150, 160), When(), When("transient", 101, 301)),
        # The trace shows the onset between 80 and 120, the log where it is.
        ((80, 90, 120, 130, 140), When("onset", 120), When("transient", 101, 301)),
        # The trace knows better than the log when a step between two that it has was slow.
        ((80, 105, 120, 130, 140), When("onset", 120), When("transient", 120, 301)),
        (range(105, 145), When("onset", 120), When("transient", 120, 301)),
        ((280, 290, 310, 320), When("transient", None, 310), When("transient", None, 310)),
        (range(150, 160), When("periodic", period_steps=5.0), When("periodic", period_steps=5.0)),
    ],
)
def test_when_beside_a_trace(steps: range | tuple[int, ...], before: When, after: When) -> None:
    """What costs as much as the change of pace has the log's onset and recovery where the trace cannot see them."""
    at = np.array(steps)
    facts = facts_of()
    recorded_s = float(facts.step_s[at - 1].mean())
    share = float((facts.step_s[at - 1] == 2.0).mean()) * 0.5 / recorded_s
    (cause,), joined, warnings = join_log([cause_of(share, before)], facts, RULES, steps=at, recorded_s=recorded_s)
    assert cause.when == after
    assert joined.traced_s == pytest.approx(recorded_s)
    changed = [item.source for item in cause.evidence] == ["change-point"]
    assert changed == (before.pattern in (None, "constant", "onset"))
    assert bool(warnings) == (not changed)


def test_the_cause_that_fits() -> None:
    """Of two causes the one that costs what the pace changed by gets the onset; one that costs far less does not."""
    causes = [cause_of(0.05, cause="network-fault"), cause_of(0.22)]
    found, _, warnings = join_log(causes, facts_of(), RULES, steps=np.arange(150, 160), recorded_s=2.0)
    assert [cause.when for cause in found] == [When("constant"), SLOW]
    assert warnings == ()
    found, _, warnings = join_log(causes[:1], facts_of(), RULES, steps=np.arange(150, 160), recorded_s=2.0)
    assert found[0].when == When("constant")
    assert "no cause found in the trace accounts for" in warnings[0]


def test_stages_do_not_begin() -> None:
    """An uneven partition is so from the first step on, whatever the log shows."""
    found, _, _ = join_log(
        [cause_of(0.25, cause="stage-imbalance")], facts_of(), RULES, steps=np.arange(150, 160), recorded_s=2.0
    )
    assert found[0].when == When("constant")


def test_change_outside_the_trace() -> None:
    """A change of pace that no traced step lies in says nothing of causes in the trace."""
    found, facts, warnings = join_log([cause_of()], facts_of(), RULES, steps=np.arange(10, 20), recorded_s=1.5)
    assert found[0].when == When("constant")
    assert warnings == ()
    assert facts.when == SLOW


def test_contradiction() -> None:
    """Where log and trace differ on the traced steps, or share none, nothing of the log is used, and both say so."""
    found, _, warnings = join_log([cause_of()], facts_of(), RULES, steps=np.arange(150, 160), recorded_s=3.0)
    assert found[0].when == When("constant")
    assert "by the log and 3 s by the trace" in warnings[0]
    _, facts, warnings = join_log([cause_of()], facts_of(), RULES, steps=np.arange(500, 510), recorded_s=2.0)
    assert "has none of the traced steps" in warnings[0]
    assert facts.traced_s is None


def test_ranks_are_evidence_at_their_place() -> None:
    """A rank that the log sets apart is evidence for a cause at that worker, and for no other."""
    causes = [cause_of(), msgspec.structs.replace(cause_of(0.01), where=Where(workers=(Worker(0, 0, 0),)))]
    found, _, _ = join_log(causes, facts_of(slow_ranks=(RANK,)), RULES, steps=np.arange(150, 160), recorded_s=2.0)
    assert [item.text for item in found[0].evidence if item.source == "log"] == [RANK.text]
    assert found[1].evidence == ()


@pytest.mark.parametrize(("n", "told"), [(3, False), (4, True)])
def test_waits_for_data_are_told_of_a_few_lines(n: int, *, told: bool) -> None:
    """Three lines of a log are too few to say what its steps wait for."""
    facts = facts_of(When("constant"))
    few = dataclasses.replace(facts, iterations=facts.iterations[:n], step_s=facts.step_s[:n], parts={"data": 0.5})
    assert [found.cause for found in _find_data(few)] == ["data-loading"] * told


@pytest.mark.parametrize(
    ("is_mean", "interval", "said"),
    [
        (False, 1, "3 iterations take 2 s more, at no period: 1% of all time"),
        (True, 10, "3 lines of 10 iterations take 2 s more, at no period that they show: 1% of all time"),
    ],
)
def test_slow_iterations_of_a_log_are_told(*, is_mean: bool, interval: int, said: str) -> None:
    """Where a line is the mean of several iterations nobody sees which of them was slow."""
    facts = dataclasses.replace(facts_of(), is_mean=is_mean, interval=interval)
    spikes = LogSpikes(
        count=3, lines=400, pattern="sporadic", period=None, regularity=None, first=10, last=300, matches=(), excess=2.0, lost_s=6.0
    )  # fmt: skip
    assert describe_spikes(facts, spikes, 0.01) == said


@pytest.mark.parametrize(("of", "each"), [("tokens", "4 times the good pace"), ("", "2 s")])
def test_what_slow_iterations_of_a_rate_take_is_against_the_good_pace(of: str, each: str) -> None:
    """A rate alone has no seconds."""
    facts = dataclasses.replace(facts_of(), of=of, ledger=SimpleNamespace(good_pace=0.5))
    spikes = LogSpikes(
        count=3, lines=400, pattern="sporadic", period=None, regularity=None, first=10, last=300, matches=(), excess=2.0, lost_s=6.0
    )  # fmt: skip
    assert describe_spikes(facts, spikes, 0.01) == f"3 iterations take {each} more, at no period: 1% of all time"


@pytest.mark.parametrize(
    ("first", "when"),
    [
        ([50, 200], SLOW),  # two have no distance to compare
        ([50, 150, 250], When("periodic", 50, 270, 100.0)),
        ([50, 100, 250], When("sporadic", 50, 270)),
    ],
)
def test_windows_at_even_distances_are_periodic(first: list[int], when: When) -> None:
    """Three at least: from the first one's onset to the last one's recovery."""
    windows = tuple(LogWindow(at, at + 19, at, at + 20, 2.0, 10.0) for at in first)
    facts = dataclasses.replace(facts_of(), windows=windows)
    assert _date_windows(facts) == when
    # A trace of the last step of a window lies in that.
    assert _choose_window(facts, np.array([first[1] + 19])) == windows[1]
    assert _choose_window(dataclasses.replace(facts, windows=windows[:1]), np.arange(9)) is None


def test_what_slow_iterations_may_be_is_told() -> None:
    """What the log states the same interval of."""
    spikes = LogSpikes(
        count=3, lines=400, pattern="periodic", period=100, regularity=1.0, first=100, last=300, matches=("save",), excess=2.0,
        lost_s=6.0,
    )  # fmt: skip
    said = describe_spikes(facts_of(), spikes, 0.01)
    assert said.startswith("3 iterations take 2 s more, every 100 iterations: 1% of all time, as ")
    assert said.endswith(" by the log")
