"""Which steps are recorded."""

import pytest

from diagnose.record.sampling import CUT, DENSE_STEPS, WINDOW_STEPS, Sampling


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 1.0])
def test_share(share):
    """Of the first thousand windows the part that was asked for is recorded."""
    steps = range(DENSE_STEPS, DENSE_STEPS + 4_000)
    recorded = sum(Sampling(share).window(step) is not None for step in steps)
    assert recorded / len(steps) == pytest.approx(share, rel=0.35)


def test_windows_are_consecutive():
    """Each window is a run of consecutive steps: what one step leaves to the next can be seen."""
    windows = {}
    for step in range(2000):
        window = Sampling(0.1).window(step)
        if window is not None:
            windows.setdefault(window, []).append(step)
    assert all(steps == list(range(steps[0], steps[0] + WINDOW_STEPS)) for steps in windows.values())


def test_short_jobs():
    """The first steps are all recorded, in windows as the others: a short job has no others."""
    windows = [Sampling(0.01).window(step) for step in range(DENSE_STEPS)]
    assert windows == [step // WINDOW_STEPS for step in range(DENSE_STEPS)]
    assert Sampling(0.01).window(100 * DENSE_STEPS) not in windows


def test_less_where_it_costs():
    """Where recording costs too much fewer windows are recorded, and all of them by the ranks on which it costs less, too."""
    asked = Sampling(0.1)
    few, fewer = asked.cut(0.08), asked.cut(0.5)
    assert asked.cut(0.04) == asked and (few.part, fewer.part) == (0.1 / CUT, 0.1 / CUT**2)
    steps = range(DENSE_STEPS, 40_000)
    recorded = [{step for step in steps if sampling.window(step) is not None} for sampling in (asked, few, fewer)]
    assert recorded[0] > recorded[1] > recorded[2]
    assert [len(found) / len(steps) for found in recorded] == pytest.approx([0.1, 0.1 / CUT, 0.1 / CUT**2], rel=0.2)


def test_long_jobs():
    """A long job is recorded ever more rarely, and to its end."""
    recorded = [step for step in range(1_000_000) if Sampling(0.1).window(step) is not None]
    assert 10_000 < len(recorded) < 25_000 and recorded[-1] > 990_000


def test_windows_do_not_keep_time():
    """What comes every 40 steps, as long as a block, is in some windows and not in others."""
    hit = [Sampling(0.1).window(step) is not None for step in range(DENSE_STEPS + 7, 40_000, 40)]
    assert 0.03 < sum(hit) / len(hit) < 0.3


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_no_share(share):
    """A part that is none is refused, with what was expected."""
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        Sampling(share)
