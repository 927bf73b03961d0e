"""The walk from clock to clock: hand-made links of a few clocks, whose offsets one can add in the head."""

import dataclasses

import numpy as np
import pytest

from diagnose.model.recording import Recording
from diagnose.trace.clock_links import ClockLink, LinkFinder
from diagnose.trace.clocks import _tie, _tie_islands, align

NAN = float("nan")


def link(a: int, b: int, *ahead_s: float, spread_s: float = 0.1, how: str = "collectives") -> ClockLink:
    """Say that clock `b` is ahead of clock `a` by these seconds, one a group of steps."""
    return ClockLink(a, b, np.array(ahead_s), spread_s, how)


def rows(
    step: list[int],
    dp: list[int],
    start_s: list[float],
    *,
    duration_s: float = 1.0,
    host: list[int] | None = None,
    rank: list[int] | None = None,
) -> Recording:
    """Give forwards of single stages: data-parallel ranks that nothing ties to each other."""
    n = len(step)
    return Recording(
        "test",
        np.zeros(n, dtype=np.int8),
        np.array(step),
        np.array(dp),
        np.zeros(n, dtype=np.int64),
        np.array(start_s),
        np.full(n, duration_s),
        microbatch=np.zeros(n, dtype=np.int64),
        host=None if host is None else np.array(host),
        host_names=("near", "far"),
        rank=None if rank is None else np.array(rank),
    )


# ------------------------------------------------------------------------------------------ from clock to clock


def test_offsets_add_up_along_the_way() -> None:
    """0 -> 1 is 1 s, 2 -> 1 is -2 s: they read 0, 1 and 3 s, and the median clock stays where it is."""
    ahead_s, spread_s, how, island = _tie([link(0, 1, 1.0), link(2, 1, -2.0, spread_s=0.3)], 3, 1)
    assert ahead_s[:, 0].tolist() == [-1.0, 0.0, 2.0]
    assert spread_s.tolist() == pytest.approx([0.0, 0.1, 0.4])
    assert how == ["collectives"] * 3
    assert island.tolist() == [0, 0, 0]


def test_the_way_back_has_the_other_sign() -> None:
    """A link holds in both directions: the walk begins with the first clock, whichever end of the link it is."""
    for links in ([link(0, 1, 4.0)], [link(1, 0, -4.0)]):
        assert _tie(links, 2, 1)[0][:, 0].tolist() == [-2.0, 2.0]


def test_the_surest_link_counts() -> None:
    """Of two answers on the same pair, and of two ways round, the one with the smaller spread."""
    unsure, sure = link(0, 1, 9.0, spread_s=0.5, how="collectives"), link(0, 1, 1.0, spread_s=0.2, how="matched pairs")
    for links in ([unsure, sure], [sure, unsure]):
        ahead_s, spread_s, how, _ = _tie(links, 2, 1)
        assert (ahead_s[:, 0].tolist(), how) == ([-0.5, 0.5], ["matched pairs"] * 2)
        assert spread_s.tolist() == [0.0, 0.2]
    # 2 is reached over 1, since the direct way is less sure, though it begins at the root.
    around = [link(0, 1, 1.0, spread_s=0.1), link(1, 2, 1.0, spread_s=0.2), link(0, 2, 7.0, spread_s=0.5)]
    assert _tie(around, 3, 1)[0][:, 0].tolist() == [-1.0, 0.0, 1.0]
    # The direct way comes up before the last clock does, and ends nothing.
    ahead_s, _, _, island = _tie([*around, link(2, 3, 1.0, spread_s=0.9)], 4, 1)
    assert (ahead_s[:, 0].tolist(), island.tolist()) == ([-1.5, -0.5, 0.5, 1.5], [0, 0, 0, 0])


def test_an_end_with_nothing_beside_it_is_surer_than_half_a_bound() -> None:
    """Without a spread an end in each step comes first, one bound of the schedule last."""
    end = link(0, 1, 1.0, spread_s=NAN, how="matched pairs")
    wide = link(0, 1, 3.0, spread_s=0.5, how="schedule")
    half = link(0, 1, 9.0, spread_s=NAN, how="schedule")
    for links in ([end, wide, half], [half, wide, end]):
        assert _tie(links, 2, 1)[2] == ["matched pairs"] * 2
    for links in ([wide, half], [half, wide]):
        assert _tie(links, 2, 1)[0][:, 0].tolist() == [-1.5, 1.5]


def test_a_step_that_says_nothing_has_the_offset_of_the_others() -> None:
    """Their median; where no step says anything, none."""
    ahead_s = _tie([link(0, 1, 1.0, NAN, 3.0, 8.0)], 2, 4)[0]
    assert (ahead_s[1] - ahead_s[0]).tolist() == [1.0, 3.0, 3.0, 8.0]
    ahead_s = _tie([link(0, 1, NAN, NAN)], 2, 2)[0]
    assert ahead_s.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_clocks_without_a_link_are_islands() -> None:
    """Each is on its own, by nothing; the tied ones have one number, and their own median."""
    ahead_s, _, how, island = _tie([link(1, 3, 2.0)], 4, 1)
    assert ahead_s[:, 0].tolist() == [0.0, -1.0, 0.0, 1.0]
    assert how == ["", "collectives", "", "collectives"]
    assert island.tolist() == [0, 1, 2, 1]


# ------------------------------------------------------------------------------------------ islands


def tie_islands(recording: Recording, *, per_step: bool = False, island: list[int] | None = None) -> tuple:
    """Tie data-parallel ranks, each an island unless told otherwise."""
    group = np.unique(recording.step, return_inverse=True)[1] if per_step else np.zeros(len(recording), dtype=np.int64)
    finder = LinkFinder(recording, recording.dp, group)
    n = int(recording.dp.max()) + 1
    ahead_s, spread_s, how = np.zeros((n, finder.n_groups)), np.zeros(n), [""] * n
    _tie_islands(finder, np.array(island or range(n)), ahead_s, spread_s, how)
    return ahead_s, spread_s, how


def test_islands_begin_their_steps_together() -> None:
    """By the usual difference of their steps' first starts; half the interquartile range says how unsure that is."""
    step = [0, 1, 2, 3, 4] * 2
    late = [5.0, 5.1, 5.2, 5.4, 9.0]
    recording = rows(step, [0] * 5 + [1] * 5, [10.0 * n for n in range(5)] + [10.0 * n + late[n] for n in range(5)])
    ahead_s, spread_s, how = tie_islands(recording)
    assert ahead_s[:, 0].tolist() == pytest.approx([0.0, 5.2])
    assert spread_s.tolist() == pytest.approx([0.0, 0.15])
    assert how == ["", "step starts"]


def test_the_first_start_of_a_step_counts() -> None:
    """Whatever a rank computes later in the step."""
    recording = rows([0, 0, 0, 0], [0, 0, 1, 1], [0.0, 3.0, 2.0, 9.0])
    assert tie_islands(recording)[0][:, 0].tolist() == [0.0, 2.0]


def test_each_step_has_its_own_offset_where_clocks_start_anew() -> None:
    """A step that only one of them has takes the usual one; how unsure a single difference is, nobody knows."""
    recording = rows([0, 1, 2, 3, 0, 1, 2], [0, 0, 0, 0, 1, 1, 1], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 6.0])
    ahead_s, spread_s, _ = tie_islands(recording, per_step=True)
    assert ahead_s[1].tolist() == pytest.approx([1.0, 2.0, 6.0, 2.0])
    assert np.isnan(spread_s[1])


def test_the_largest_island_stays() -> None:
    """Ranks 1 and 2 are tied: rank 0 is moved to them. One that has no step with them stays."""
    recording = rows([0, 0, 0, 7], [0, 1, 2, 3], [3.0, 0.0, 1.0, 50.0])
    ahead_s, _, how = tie_islands(recording, island=[0, 1, 1, 3])
    assert ahead_s[:, 0].tolist() == [3.0, 0.0, 0.0, 0.0]
    assert how == ["step starts", "", "", ""]


def test_the_whole_island_moves_and_keeps_how_it_is_tied() -> None:
    """Two ranks that a collective ties are moved together."""
    recording = rows([0] * 5, [0, 1, 2, 3, 4], [0.0, 0.0, 0.0, 4.0, 5.0])
    finder = LinkFinder(recording, recording.dp, np.zeros(5, dtype=np.int64))
    ahead_s, spread_s, how = np.zeros((5, 1)), np.zeros(5), ["a", "a", "a", "collectives", ""]
    _tie_islands(finder, np.array([0, 0, 0, 3, 3]), ahead_s, spread_s, how)
    assert ahead_s[:, 0].tolist() == [0.0, 0.0, 0.0, 4.0, 4.0]
    assert how == ["a", "a", "a", "collectives", "step starts"]


# ------------------------------------------------------------------------------------------ all of it


def test_no_rows_and_one_clock_stay_as_they_are() -> None:
    """There is nothing to align."""
    one = rows([0, 1], [0, 0], [0.0, 5.0], host=[0, 0])
    assert align(one, "host") is one
    assert align(dataclasses.replace(one, host=None), "host").offsets == ()
    none = rows([], [], [])
    assert align(none, "rank") is none


def test_two_clocks_are_put_on_one() -> None:
    """Hosts are named; rows of none are together; offsets that were known before stay."""
    recording = rows([0, 0, 1, 1], [0, 1, 0, 1], [0.0, 4.0, 10.0, 14.0], host=[-1, 1, -1, 1])
    found = align(recording, "host")
    assert found.start_s.tolist() == [0.0, 0.0, 10.0, 10.0]
    assert [(offset.of, offset.offset_s, offset.how) for offset in found.offsets] == [("far", 4.0, "step starts")]
    again = align(dataclasses.replace(found, start_s=recording.start_s), "host")
    assert again.offsets == found.offsets * 2


def test_ranks_are_named_by_their_number_or_their_place() -> None:
    """By the number of the rank where all rows have one, else by dp rank and stage."""
    for rank, name in (([7, 9], "rank 9"), ([7, -1], "dp 1 stage 0"), (None, "dp 1 stage 0"), ([0, 9], "rank 9")):
        (offset,) = align(rows([0, 0], [0, 1], [0.0, 4.0], rank=rank), "rank").offsets
        assert (offset.of, offset.offset_s) == (name, 4.0)


@pytest.mark.parametrize(("n_clocks", "end"), [(5, "dp 4 stage 0"), (6, "dp 4 stage 0, ..")])
def test_clocks_that_nothing_ties_are_told(n_clocks: int, end: str) -> None:
    """Five are named at most; their times are taken as they are."""
    each = list(range(n_clocks))  # ranks none of which has a step with another
    found = align(rows(each, each, [2.0] * n_clocks), "rank")
    assert found.start_s.tolist() == [2.0] * n_clocks
    listed = f"dp 0 stage 0, dp 1 stage 0, dp 2 stage 0, dp 3 stage 0, {end}"
    assert found.warnings == (
        f"nothing ties the clocks of {n_clocks} ({listed}) to the others; their times are taken as they are",
    )


def test_steps_of_clocks_that_start_anew_begin_at_zero() -> None:
    """Each step has offsets of its own; what is said of a clock is the median of the steps in which it was off."""
    step, dp = [0, 1, 2, 3, 4] * 2, [0] * 5 + [1] * 5
    recording = rows(step, dp, [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 5.0, 7.0, 10.0])
    found = align(recording, "rank", per_step=True)
    assert found.start_s.tolist() == [0.0] * 10
    assert [(offset.of, offset.offset_s) for offset in found.offsets] == [("dp 1 stage 0", 3.0)]
