"""An episode without a sure name is looked at again, together with the windows before it."""

import dataclasses

import numpy as np
from msgspec.structs import replace

from diagnose.faults.generate import generate, list_causes
from diagnose.watch.episodes import Episodes
from diagnose.watch.files import TraceFiles
from diagnose.watch.follow import follow_episodes
from diagnose.watch.look_again import N_BEFORE, SPANS, look_again
from diagnose.watch.source import Mark
from diagnose.watch.steps import StepSource
from tests.watch.recorded import RecordedJob, SimulatedClock
from tests.watch.test_episodes import found, spread, window
from tests.watch.watching import SMALL, Watching, make_trace


class Asked(list):
    """Gives what is found in several windows together, and notes which were asked for."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = answers

    def __call__(self, first, last):
        """Note it."""
        self.append((first.number, last.number))
        return self.answers


def follow(n_windows: int, asked: Asked, seen: dict, *, restarts_at: int | None = None) -> Episodes:
    """Go through windows whose steps are longer from window 10 on, and look again after each."""
    episodes, windows = Episodes(), []
    for number in range(n_windows):
        at = replace(window(number), step_s=1.25 if number >= 10 else 1.0)
        if restarts_at is not None and number >= restarts_at:
            at = replace(at, first_step=at.first_step - 10 * restarts_at, last_step=at.last_step - 10 * restarts_at)
        windows.append(at)
        episodes = follow_episodes(episodes, at, seen.get(number, []), lambda _: True, "job", 1.0)
        episodes = look_again(episodes, windows, "job", asked)
    return episodes


UNKNOWN = {n: [spread(n, "unknown", 0.08)] for n in range(10, 40)}


def test_what_has_no_name_is_looked_at_when_it_is_told_and_each_time_that_it_has_lasted_twice_as_long():
    """The windows are those of the episode and four before it; later than after 16 nobody looks."""
    asked = Asked()
    assert follow(40, asked, UNKNOWN).open[0].episode.cause == "unknown"
    assert asked == [(10 - N_BEFORE, 10 + lasts - 1) for lasts in SPANS]
    asked = Asked()
    follow(40, asked, {n: [found(n)] for n in range(10, 40)})
    assert asked == []


def test_the_name_that_is_found_is_told():
    """GIVEN a cause that begins with the episode and costs as much, THEN the episode is told by its name, place and fingerprint."""
    named = replace(found(10), first_step=100)
    episodes = follow(20, asked := Asked(named), UNKNOWN)
    [course] = episodes.open
    assert asked == [(6, 11)]
    assert (course.episode.cause, course.told.cause) == (named.cause.cause,) * 2
    assert course.episode.name.startswith(named.cause.fingerprint) and course.episode.where == named.cause.where


def test_a_later_name_changes_no_ticket():
    """GIVEN a name that is found later, THEN the episode has it, and its ticket is the one that was opened."""
    asked = Asked(replace(found(10), first_step=100))
    first = follow(12, Asked(), UNKNOWN).open[0]
    episodes, windows = Episodes(open=(first,)), [replace(window(n), step_s=1.25) for n in range(14)]
    [course] = look_again(episodes, windows, "job", asked).open
    assert course.episode.cause != "unknown" and course.told == first.told
    assert (course.episode.name, course.episode.fingerprint) == (first.episode.name, first.episode.fingerprint)


def test_what_does_not_fit_gives_no_name():
    """A cause that was there before, costs much less, or is unlikely, is not what an episode is."""
    named = replace(found(10), first_step=100)
    unlikely = replace(named, cause=replace(named.cause, confidence=0.3))
    for other in (replace(named, first_step=60), replace(named, lasting_gain=0.03), unlikely, spread(10, "unknown")):
        assert follow(20, Asked(other), UNKNOWN).open[0].episode.cause == "unknown"


def test_windows_before_a_restart_are_left_out():
    """Steps of two starts are never diagnosed together."""
    follow(20, asked := Asked(), UNKNOWN, restarts_at=8)
    assert [first for first, _ in asked] == [8] * len(asked)
    follow(20, asked := Asked(), UNKNOWN, restarts_at=10)
    assert asked == []  # nothing before it


def test_a_network_that_slows_all_alike_is_told_by_its_name(tmp_path):
    """GIVEN links that get slow in all ranks, which no window after the first shows, THEN the episode is told as network fault."""
    n_steps = 400
    spec = dataclasses.replace(SMALL, steps=n_steps)
    fault = list_causes()["network-fault"](spec, np.random.default_rng(3), onset=200, strength=3.0)
    job = RecordedJob(generate(spec, [dataclasses.replace(fault, onset=205)]).trace, tmp_path / "job")
    watching = Watching(tmp_path / "job", store=tmp_path / "s.db", clock=SimulatedClock())
    job.write(int(job.steps[-1]))
    [shown] = watching.go()
    [episode] = shown.episodes
    assert episode.cause == "network-fault" and episode.delay_windows <= 2
    watching.close()


def test_steps_are_given_again(tmp_path):
    """GIVEN a file of the recorder, THEN its steps come again as often as asked, and windows go on as if nothing was."""
    job = RecordedJob(make_trace(100), tmp_path / "job")
    job.write(int(job.steps[-1]), ended=True)
    source = StepSource(tmp_path / "job", Mark(), files=TraceFiles(tmp_path / "job"), window_steps=20)
    rows = []
    for _ in range(3):
        source.look()
        delivery = source.deliver(0.0)
        rows.append(delivery.n_rows)
        source.take(delivery, 0.0)
    again = source.deliver_again(int(job.steps[20]), int(job.steps[59]))
    assert again.n_rows == rows[1] + rows[2]
    assert source.deliver(0.0).mark.position == int(job.steps[79])
    for file in job.folder.iterdir():
        file.unlink()
    assert source.deliver_again(int(job.steps[20]), int(job.steps[59])) is None
