"""Which steps are recorded."""

import statistics
import sys

import pytest

from diagnose.record.clock import Clock
from diagnose.record.cost import Cost
from diagnose.record.log import Log
from diagnose.record.sampling import CUT, DENSE_STEPS, WINDOW_STEPS, Sampling
from diagnose.record.steps import Steps


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 1.0])
def test_share(share):
    """Of the first thousand windows the part that was asked for is recorded."""
    steps = range(DENSE_STEPS, DENSE_STEPS + 4_000)
    recorded = sum(Sampling(share).span(step)[0] is not None for step in steps)
    assert recorded / len(steps) == pytest.approx(share, rel=0.35)


def test_windows_are_consecutive():
    """Each window is a run of consecutive steps: what one step leaves to the next can be seen."""
    windows = {}
    for step in range(2000):
        window = Sampling(0.1).span(step)[0]
        if window is not None:
            windows.setdefault(window, []).append(step)
    assert all(steps == list(range(steps[0], steps[0] + WINDOW_STEPS)) for steps in windows.values())


def test_short_jobs():
    """The first steps are all recorded, in windows as the others: a short job has no others."""
    windows = [Sampling(0.01).span(step)[0] for step in range(DENSE_STEPS)]
    assert windows == [step // WINDOW_STEPS for step in range(DENSE_STEPS)]
    assert Sampling(0.01).span(100 * DENSE_STEPS)[0] not in windows


def test_less_where_it_costs():
    """Where recording costs too much fewer windows are recorded, and all of them by the ranks on which it costs less, too."""
    asked = Sampling(0.1)
    few, fewer = asked.cut(0.08), asked.cut(0.5)
    assert asked.cut(0.04) == asked and (few.part, fewer.part) == (0.1 / CUT, 0.1 / CUT**2)
    steps = range(DENSE_STEPS, 40_000)
    recorded = [{step for step in steps if sampling.span(step)[0] is not None} for sampling in (asked, few, fewer)]
    assert recorded[0] > recorded[1] > recorded[2]
    assert [len(found) / len(steps) for found in recorded] == pytest.approx([0.1, 0.1 / CUT, 0.1 / CUT**2], rel=0.2)


def test_long_jobs():
    """A long job is recorded ever more rarely, and to its end."""
    recorded = [step for step in range(1_000_000) if Sampling(0.1).span(step)[0] is not None]
    assert 10_000 < len(recorded) < 25_000 and recorded[-1] > 990_000


def test_windows_do_not_keep_time():
    """What comes every 40 steps, as long as a block, is in some windows and not in others."""
    hit = [Sampling(0.1).span(step)[0] is not None for step in range(DENSE_STEPS + 7, 40_000, 40)]
    assert 0.03 < sum(hit) / len(hit) < 0.3


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_no_share(share):
    """A part that is none is refused, with what was expected."""
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        Sampling(share)


@pytest.mark.parametrize("sampling", [Sampling(0.01), Sampling(0.3), Sampling(1.0), Sampling(0.1).cut(0.5)])
def test_spans(sampling):
    """Up to the end of its span each step has the same answer, and the next one another, or a block of its own."""
    step = 0
    while step < 60_000:
        window, end = sampling.span(step)
        assert end > step and {sampling.span(step)[0], sampling.span(end - 1)[0]} == {window}
        assert window is None or sampling.span(end)[0] != window
        step = end


def calls_of(function, *args):
    """Count the Python functions that are called for one call of a function, itself among them."""
    found = []
    sys.setprofile(lambda _frame, event, _arg: found.append(event))
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found.count("call")


@pytest.mark.parametrize("n_parts", [1, 3])
def test_steps_that_are_not_recorded(n_parts):
    """Far from any that is recorded a step is only counted; those that are recorded are the same, also after one that failed."""
    log, sampling, n_calls = Log(Clock()), Sampling(0.01), []
    steps = Steps(log, sampling, Cost(now=lambda: 0), lambda: None)
    for n in range(3000):
        for part in range(n_parts):
            n_calls.append(calls_of(steps.begin, n + 7 if n % 2 else None))  # else it is counted on
            if part == n_parts - 1 and n != 1500:
                steps.before_optimizer("adam")
                steps.after_optimizer("adam")
            n_calls.append(calls_of(steps.abandon if n == 1500 and part == n_parts - 1 else steps.end))
    steps.close()
    recorded = {step.number for step in log.clock.moments}
    assert recorded == {n + 7 if n else 0 for n in range(3000) if n != 1500 and sampling.span(n)[0] is not None}
    assert n_parts > 1 or statistics.median(n_calls) == 1
