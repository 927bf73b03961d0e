"""What a line for people says of a window, an episode or the state of a job; safe to show."""

import datetime as dt

from diagnose.model.live import Episode, EpisodeEvent, WatchedJob, Window
from diagnose.report import words
from diagnose.report.escape import prose


def describe_window(window: Window) -> str:
    """Say what a window showed."""
    steps = f"steps {window.first_step}-{window.last_step}"
    if window.why:
        return f"{steps}: cannot be diagnosed: {prose(window.why)}"
    said = f"{steps}: {window.verdict}"
    if window.slowdown is not None:
        said += f", slowdown {window.slowdown:.2f}"
    if window.step_s is not None:
        said += f", {words.seconds(window.step_s)} a step"
    return said + (f", {words.count(len(window.silent), 'rank')} silent" if window.silent else "")


def describe_episode(event: EpisodeEvent, episode: Episode, title: str) -> str:
    """Say what became of an episode."""
    what = words.at_place(prose(title), episode.where)
    longer = words.times(1 / (1 - episode.gain)) if 0 < episode.gain < 1 else ""
    if event == "recovered":
        return f"over: {what}, from step {episode.first_step} to {episode.recovered_step}"
    if event == "grew":
        return f"worse: {what}, steps now {longer}"
    late = f"{words.count(episode.delay_windows, 'window')} later" if episode.delay_windows else "in its first window"
    after = "" if episode.delay_s is None else f", {words.seconds(episode.delay_s)} after that step"
    return f"slow since step {episode.first_step}: {what}, steps {longer}; told {late}{after}"


def describe_state(job: WatchedJob) -> str:
    """Say what state a job is in."""
    return job.state + (f": {job.why}" if job.why else "")


def clock_time(at_s: float) -> str:
    """Write the time of day, UTC."""
    return f"{dt.datetime.fromtimestamp(at_s, dt.UTC):%H:%M:%S}"
