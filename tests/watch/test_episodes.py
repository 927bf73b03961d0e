"""What windows make of episodes, without a job."""

import pytest
from msgspec.structs import replace

from diagnose.model.cause import Alternative, KeptCause, When
from diagnose.model.live import Window
from diagnose.model.place import Where, Worker
from diagnose.report.live_words import describe_what
from diagnose.watch.episodes import Episodes, Found
from diagnose.watch.follow import follow_episodes

SAVES = "checkpoint-stall"


def window(number: int) -> Window:
    """Make the window of ten steps."""
    return Window(
        number=number,
        first_step=10 * number,
        last_step=10 * number + 9,
        began_s=None,
        ended_s=None,
        seen_s=100.0 * number,
        took_s=0.0,
        n_rows=1,
        verdict="healthy",
        step_s=1.0,
        slowdown=1.0,
        steps=(),
        step_slowdowns=(),
        worker_slowdowns=(),
    )


def found(number: int, gain: float = 0.2, dp: int = 0) -> Found:
    """Make a cause that a window has."""
    cause = KeptCause(
        cause=SAVES,
        title="",
        who=None,
        confidence=0.95,
        share=None,
        recoverable=gain,
        recoverable_after_others=None,
        where=Where(workers=(Worker(dp, 0),)),
        when=When(),
        evidence=(),
        fixes=(),
        fingerprint=f"of-dp-{dp}",
    )
    return Found(cause=cause, gain=gain, lasting_gain=gain, first_step=10 * number)


def follow(seen: dict[int, list[Found]], n_windows: int) -> Episodes:
    """Go through windows, each with what is found in it."""
    episodes = Episodes()
    for number in range(n_windows):
        episodes = follow_episodes(episodes, window(number), seen.get(number, []), lambda _episode: True, job="job")
    return episodes


def test_what_comes_and_goes_is_one_episode_once_that_is_known() -> None:
    """A save in every fifth window ends once; when it is back, it is known how long it stays away."""
    saves = {number: [found(number)] for number in range(4, 60, 5)}
    episodes = follow(saves, 60)
    assert [(one.first_step, one.recovered_step) for one in episodes.list_all()] == [(90, None), (40, 50)]
    # Thrice as long as it ever stayed away, and a window: then it is over.
    ended = follow(saves, 59 + 14)
    assert [one.recovered_step for one in ended.list_all()] == [600, 50]


def test_what_was_there_all_the_time_but_once_is_over_soon() -> None:
    """GIVEN a fault in fifty windows but two, THEN it is over four windows after its end; in two of four it is after seven."""
    here = {number: [found(number)] for number in range(50) if number not in (20, 21)}
    assert follow(here, 50 + 3).open and not follow(here, 50 + 4).open
    few = {number: [found(number)] for number in (4, 7)}
    assert follow(few, 7 + 7).open and not follow(few, 7 + 8).open


def test_one_window_names_nothing_that_others_had_no_name_for() -> None:
    """GIVEN steps that are longer for what has no name, THEN one window that says one is not believed; most of the last are."""
    names = ["unknown"] * 8 + ["data-loading"] + ["unknown"] * 3 + ["allocator-stall"] * 6
    steps_s = [1.0] * 10 + [1.25] * len(names)
    seen = {10 + i: [spread(10 + i, name)] for i, name in enumerate(names)}
    course = follow_steps(seen, steps_s, usual_s=1.0)
    assert [episodes.list_all()[0].cause for episodes in course[10:-1]] == ["unknown"] * (len(names) - 2) + [
        "allocator-stall"
    ]
    assert all(len(episodes.list_all()) == 1 for episodes in course[12:])


def test_somewhere_else_is_another_fault() -> None:
    """How long a fault stays away says nothing of the same cause in another place."""
    episodes = follow({4: [found(4)], 9: [found(9, dp=1)]}, 13)
    assert [one.recovered_step for one in episodes.list_all()] == [100, 50]


def test_what_was_gone_for_long_is_new() -> None:
    """What comes back a hundred windows later is over as soon as what came first."""
    episodes = follow({4: [found(4)], 104: [found(104)]}, 108)
    assert [one.recovered_step for one in episodes.list_all()] == [1050, 50]


def spread(number: int, cause: str, gain: float = 0.2) -> Found:
    """Make a cause that is spread over the job."""
    one = found(number, gain)
    return replace(one, cause=replace(one.cause, cause=cause, title=cause, where=Where(), fingerprint=cause))


def follow_steps(seen: dict[int, list[Found]], steps_s: list[float], usual_s: float | None = None) -> list[Episodes]:
    """Go through windows whose steps take so long, and usually `usual_s`; give the episodes after each."""
    episodes, after = Episodes(), []
    for number, step_s in enumerate(steps_s):
        at = replace(window(number), step_s=step_s)
        episodes = follow_episodes(episodes, at, seen.get(number, []), lambda _episode: True, "job", usual_s)
        after.append(episodes)
    return after


def test_the_same_seconds_under_another_name_are_told_once():
    """GIVEN a slowness that has one name, then another one, THEN it is one episode, which takes on the name and ends once."""
    seen = {n: [spread(n, "garbage-collection" if n < 14 else "sequence-imbalance")] for n in range(10, 20)}
    after = follow_steps(seen, [1.0] * 10 + [1.25] * 10 + [1.0] * 5)
    assert all(len(one.list_all()) <= 1 for one in after)
    assert after[13].open[0].episode.cause == "garbage-collection"
    assert after[19].open[0].episode.cause == "sequence-imbalance"
    [course] = after[-1].over
    assert course.episode.name == after[10].open[0].episode.name and course.episode.recovered_step == 200


def test_a_second_fault_is_told_where_steps_take_longer_for_it():
    """Beside an episode another is told with the second window in which steps are longer still."""
    seen = {
        n: [spread(n, "data-loading"), *([spread(n, "garbage-collection")] if n >= 15 else [])] for n in range(10, 20)
    }
    causes = [
        [one.cause for one in episodes.list_all()]
        for episodes in follow_steps(seen, [1.0] * 10 + [1.25] * 5 + [1.5] * 5)
    ]
    assert causes[14] == ["data-loading"] and causes[16] == ["data-loading", "garbage-collection"]
    causes = [[one.cause for one in episodes.list_all()] for episodes in follow_steps(seen, [1.0] * 10 + [1.25] * 10)]
    assert causes[-1] == ["data-loading"]


def test_another_worker_is_another_episode():
    """GIVEN one worker that is mended while another one gets slow, THEN the first is over, and the second is told."""
    seen = {n: [found(n, dp=0 if n < 14 else 3)] for n in range(10, 24)}
    after = follow_steps(seen, [1.0] * 10 + [1.25] * 14)
    assert [one.where.workers[0].dp for one in after[-1].list_all()] == [3, 0]
    assert [one.recovered_step for one in after[-1].list_all()] == [None, 140]


def test_a_fault_of_two_workers_is_one_episode_where_windows_show_one_of_them():
    """GIVEN stalls of two workers, of which windows show both, then one, then for long the other, THEN they are one episode."""
    both = found(0)
    both = replace(both, cause=replace(both.cause, where=Where(workers=(Worker(2, 0), Worker(1, 0)))))
    seen = {10: [both], 11: [both], 12: [found(12, dp=2)]} | {n: [found(n, dp=1)] for n in range(13, 20)}
    [course] = follow_steps(seen, [1.0] * 10 + [1.25] * 10)[-1].open
    assert (course.n_here, course.longest_gap) == (10, 0)
    # A place that none of the last windows had is another fault.
    other = follow_steps(seen | {n: [found(n, dp=3)] for n in range(13, 20)}, [1.0] * 10 + [1.25] * 10)[-1]
    assert [one.where.workers[0].dp for one in other.list_all()] == [3, 2]


def test_time_without_a_name_beside_a_fault_is_no_fault_of_its_own():
    """GIVEN a fault, and pauses elsewhere that nothing explains since the same window, THEN the fault alone is told."""
    rest = found(0, dp=3)
    rest = replace(rest, cause=replace(rest.cause, cause="unknown", fingerprint="rest"))
    seen = {n: [found(n, dp=0), replace(rest, first_step=10 * n)] for n in range(10, 20)}
    after = follow_steps(seen, [1.0] * 10 + [1.25] * 10 + [1.0] * 4)
    assert [one.cause for one in after[-1].list_all()] == [SAVES]


def test_two_names_of_one_fault_since_the_same_window_are_told_once():
    """GIVEN two causes since one window, and steps longer for one of them, THEN one episode goes on under the other name."""

    def stage(number: int) -> Found:
        one = spread(number, "stage-imbalance", 0.07)
        return replace(one, cause=replace(one.cause, where=Where(stages=(1,))))

    seen = {n: [*([stage(n)] if n < 16 else []), spread(n, "expert-imbalance", 0.06)] for n in range(10, 26)}
    after = follow_steps(seen, [1.0] * 10 + [1.08] * 16 + [1.0] * 5, usual_s=1.0)
    [course] = after[12].open
    assert (course.episode.cause, course.episode.beside) == ("stage-imbalance", ("expert-imbalance",))
    [only] = after[-1].list_all()
    assert (only.cause, only.beside, only.recovered_step) == ("expert-imbalance", ("stage-imbalance",), 260)


@pytest.mark.parametrize(("cause", "n_told"), [("stage-imbalance", 1), ("garbage-collection", 2)])
def test_of_two_imbalances_one_is_the_other_s_name(cause: str, n_told: int):
    """GIVEN an imbalance, and windows with longer steps that name another cause, THEN an imbalance is no second episode."""
    seen = {n: [spread(n, "expert-imbalance", 0.06)] for n in range(10, 30)}
    for number in (20, 21):
        seen[number].append(spread(number, cause, 0.1))
    after = follow_steps(seen, [1.0] * 10 + [1.08] * 10 + [1.2] * 2 + [1.08] * 8, usual_s=1.0)
    told = after[-1].list_all()
    assert len(told) == n_told
    assert cause in (told[-1].beside if n_told == 1 else [one.cause for one in told])


def test_two_faults_since_the_same_window_are_both_told_where_steps_are_longer_for_both():
    """GIVEN two causes since one window, THEN both are told where steps take as long as with both, else one with both names."""
    seen = {n: [spread(n, "data-loading", 0.2), spread(n, "garbage-collection", 0.1)] for n in range(10, 14)}
    [one] = follow_steps(seen, [1.0] * 10 + [1.25] * 4, usual_s=1.0)[-1].list_all()
    assert (one.cause, one.beside) == ("data-loading", ("garbage-collection",))
    for long_s in (1.43, 2.0):
        both = follow_steps(seen, [1.0] * 10 + [long_s] * 4, usual_s=1.0)[-1].list_all()
        assert [(one.cause, one.beside) for one in both] == [("data-loading", ()), ("garbage-collection", ())]


def test_what_has_no_name_beside_a_fault_that_varies_is_no_second_one():
    """GIVEN a fault whose steps vary, and rest in two windows as long as some before, THEN one is told; in longer ones two."""
    course_s = [1.0] * 10 + [1.2, 1.3, 1.25, 1.32, 1.22, 1.3] * 4 + [1.2, 1.21] * 4
    seen = {n: [spread(n, "expert-imbalance")] for n in range(10, 44)}
    seen |= {n: [spread(n, "expert-imbalance"), spread(n, "unknown", 0.08)] for n in (42, 43)}
    assert len(follow_steps(seen, [*course_s, 1.3, 1.31], usual_s=1.0)[-1].open) == 1
    assert len(follow_steps(seen, [*course_s, 1.6, 1.6], usual_s=1.0)[-1].open) == 2


def test_what_has_no_name_is_told_after_what_has_one_of_the_same_windows():
    """GIVEN windows in which a cause, and time without a name, both may be an episode, THEN the cause alone is told."""
    seen = {
        number: [spread(number, "unknown", 0.06), spread(number, "expert-imbalance", 0.05)] for number in range(10, 16)
    }
    [only] = follow_steps(seen, [1.0] * 10 + [1.1] * 6, usual_s=1.0)[-1].list_all()
    assert (only.cause, only.recovered_step) == ("expert-imbalance", None)


def test_a_fault_of_the_whole_job_goes_on_while_it_has_no_name():
    """GIVEN a cause that one window names, and the next ones do not, THEN they are windows of it and not of another episode."""
    names = ["garbage-collection"] + ["unknown"] * 12
    seen = {10 + i: [spread(10 + i, name, 0.3)] for i, name in enumerate(names)}
    [only] = follow_steps(seen, [1.0] * 10 + [1.2] + [1.5] * 12, usual_s=1.0)[-1].list_all()
    assert (only.first_step, only.recovered_step, only.last_step) == (100, None, 229)


def test_a_fault_of_the_whole_job_lasts_where_windows_show_little_of_it():
    """GIVEN steps that stay as long while windows find less time without a name, THEN it is one episode, over with its steps."""
    seen = {
        10 + n: [spread(10 + n, "garbage-collection" if n == 0 else "unknown", 0.1 if n > 6 else 0.4)]
        for n in range(14)
    }
    after = follow_steps(seen, [1.0] * 10 + [1.7 + n / 40 for n in range(14)] + [1.0] * 4, usual_s=1.0)
    assert [one.cause for one in after[23].list_all()] == ["garbage-collection"] and after[23].open
    [only] = after[-1].list_all()
    assert only.recovered_step == 240


def test_what_leaves_steps_as_long_as_they_were_is_no_episode():
    """GIVEN a worker that is slow beside one that got faster, THEN nothing is told; where steps are longer it is."""
    seen = {n: [found(n)] for n in range(10, 20)}
    assert follow_steps(seen, [1.0] * 20, usual_s=1.0)[-1] == Episodes()
    assert len(follow_steps(seen, [1.0] * 10 + [1.25] * 10, usual_s=1.0)[-1].open) == 1
    assert len(follow_steps(seen, [1.0] * 20)[-1].open) == 1  # nobody knows how long they were


def test_what_is_seen_at_its_onset_alone_lasts_while_steps_are_as_long():
    """GIVEN a slow network that only the window with its onset shows, THEN it is over when steps are as they were."""
    seen = {10: [spread(10, "network-fault")]}
    after = follow_steps(seen, [1.0] * 10 + [1.15] + [1.25] * 10 + [1.0] * 3, usual_s=1.0)
    [course] = after[20].open
    assert course.episode.last_step == 209 and course.n_gone == 0
    [course] = after[-1].over
    assert course.episode.cause == "network-fault" and course.episode.recovered_step == 210
    # An episode that never lengthened steps says nothing by their length.
    assert follow_steps(seen, [1.0] * 20)[-1].over[0].episode.recovered_step == 110


def test_a_slowness_without_a_name_takes_the_first_one_that_costs_as_much():
    """GIVEN longer steps that get a name later, THEN they are one episode; what costs much less is another one."""
    named = {n: [spread(n, "unknown" if n < 13 else "network-fault")] for n in range(10, 20)}
    [course] = follow_steps(named, [1.0] * 10 + [1.25] * 10, usual_s=1.0)[-1].open
    assert course.episode.cause == course.particulars.cause == "network-fault" and course.episode.first_step == 100
    less = {n: [spread(n, "unknown") if n < 13 else found(n, 0.1)] for n in range(10, 20)}
    assert follow_steps(less, [1.0] * 10 + [1.25] * 4, usual_s=1.0)[-1].open[0].episode.cause == "unknown"


def test_a_cause_that_costs_little_in_steps_that_are_much_longer_is_told():
    """GIVEN 3% that two windows name, THEN it is told where steps are longer by more, and not where by no more than that."""
    seen = {n: [spread(n, "expert-imbalance", gain=0.03)] for n in (10, 11)}
    assert len(follow_steps(seen, [1.0] * 10 + [1.08] * 2, usual_s=1.0)[-1].open) == 1
    assert not follow_steps(seen, [1.0] * 10 + [1.03] * 2, usual_s=1.0)[-1].open


def test_what_may_be_the_same_seconds_is_named_beside_the_episode():
    """GIVEN two faults in one place, or one with two names, THEN the episode names both, until steps are longer for the other."""
    both = {
        n: [spread(n, "data-loading"), *([spread(n, "garbage-collection")] if n > 12 else [])] for n in range(10, 20)
    }
    [course] = follow_steps(both, [1.0] * 10 + [1.25] * 10, usual_s=1.0)[-1].open
    assert (course.episode.cause, course.episode.beside) == ("data-loading", ("garbage-collection",))
    assert describe_what(course.episode) == "data-loading, spread over the job (also named: garbage-collection)"
    assert [one.beside for one in follow_steps(both, [1.0] * 10 + [1.25] * 3 + [1.5] * 7)[-1].list_all()] == [(), ()]


def test_a_small_cause_is_not_why_a_fault_grows():
    """GIVEN time without a name that grows, and 3% with one, THEN the second is named beside the first."""
    seen = {
        n: [spread(n, "unknown"), *([spread(n, "garbage-collection", 0.03)] if n > 14 else [])] for n in range(10, 20)
    }
    steps_s = [1.0] * 10 + [1.25 + 0.1 * n for n in range(10)]
    [course] = follow_steps(seen, steps_s, usual_s=1.0)[-1].open
    assert course.episode.beside == ("garbage-collection",)


def or_else(one: Found, confidence: float, *others: tuple[str, float]) -> Found:
    """Let a cause share its confidence with others."""
    alternatives = tuple(Alternative(cause, shared, "") for cause, shared in others)
    return replace(one, cause=replace(one.cause, confidence=confidence, alternatives=alternatives))


def test_a_cause_counts_with_what_else_it_may_be():
    """GIVEN 0.45 for one name and 0.44 for the other, THEN time is lost with 0.89, and is told by the first; 0.45 alone is not."""
    seen = {n: [or_else(spread(n, "garbage-collection"), 0.45, ("unknown", 0.44))] for n in (10, 12)}
    [course] = follow_steps(seen, [1.0] * 10 + [1.25, 1.0, 1.25], usual_s=1.0)[-1].open
    assert (course.episode.cause, course.episode.confidence) == ("garbage-collection", 0.45)
    assert describe_what(course.episode) == "garbage-collection, spread over the job or something else"
    seen = {n: [or_else(spread(n, "garbage-collection"), 0.45)] for n in (10, 12)}
    assert not follow_steps(seen, [1.0] * 10 + [1.25, 1.0, 1.25], usual_s=1.0)[-1].open


def test_what_else_it_may_be_is_the_same_fault_and_takes_no_name_from_it():
    """GIVEN a fault that is one thing or else another, THEN a window that says the other goes on with it under its first name."""
    seen = {n: [or_else(spread(n, "allocator-stall"), 0.5, ("unknown", 0.49))] for n in (10, 11)}
    seen |= {n: [spread(n, "unknown")] for n in range(12, 20)}
    [course] = follow_steps(seen, [1.0] * 10 + [1.25] * 10, usual_s=1.0)[-1].open
    assert (course.episode.cause, course.episode.confidence, course.n_gone) == ("allocator-stall", 0.5, 0)
    # Without that it is missed for three windows, and then goes on under its name all the same.
    seen |= {n: [spread(n, "allocator-stall")] for n in (10, 11)}
    [course] = follow_steps(seen, [1.0] * 10 + [1.25] * 10, usual_s=1.0)[-1].open
    assert course.episode.cause == "allocator-stall" and course.last_window >= 17


def test_what_grows_unevenly_is_one_fault():
    """GIVEN steps that get longer, by more or less from window to window, THEN a new name in the longest is said beside it."""
    steps_s = [1.0] * 10 + [1.3, 1.6, 1.45, 1.7, 1.5, 1.75, 1.9, 1.65, 1.95, 2.0]
    seen = {
        n: [spread(n, "unknown"), *([spread(n, "garbage-collection", 0.12)] if n >= 18 else [])] for n in range(10, 20)
    }
    [course] = follow_steps(seen, steps_s, usual_s=1.0)[-1].open
    assert course.episode.beside == ("garbage-collection",)
    # Where steps took as long in each window, the same rise is a second fault.
    assert len(follow_steps(seen, [1.0] * 10 + [1.7] * 8 + [2.0] * 2, usual_s=1.0)[-1].open) == 2


def test_a_guess_of_few_steps_takes_a_name_by_what_all_steps_lose():
    """GIVEN 22% by four steps of a window, and later 6% with a name in steps that are 9% longer, THEN they are one episode."""
    few = replace(spread(10, "unknown", gain=0.05), lasting_gain=0.22)
    seen = {
        10: [few],
        11: [replace(few, first_step=110)],
        **{n: [spread(n, "expert-imbalance", 0.06)] for n in range(12, 16)},
    }
    [course] = follow_steps(seen, [1.0] * 10 + [1.05] + [1.09] * 5, usual_s=1.0)[-1].open
    assert course.episode.cause == "expert-imbalance"
