"""Watched jobs made by hand around real diagnoses of fixtures: what views are tested with."""

from collections.abc import Sequence

import msgspec.structs
import numpy as np

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import Episode, LiveState, WatchedJob, Window
from diagnose.model.place import Where, Worker

#: The moment at which everything here is looked at: 2026-03-01 03:00:20 UTC, 20 s after the last window.
NOW_S = 1_772_334_020.0
#: Seconds between windows, and steps in each.
WINDOW_S, N_STEPS = 20.0, 20


def window_of(diagnosis: Diagnosis, number: int, *, n_windows: int) -> Window:
    """Make the window of which this is the diagnosis."""
    seen_s = NOW_S - WINDOW_S * (n_windows - number)
    w = diagnosis.what_if
    first = number * N_STEPS
    return Window(
        number=number,
        first_step=first,
        last_step=first + N_STEPS - 1,
        began_s=seen_s - WINDOW_S,
        ended_s=seen_s - 1.0,
        seen_s=seen_s,
        took_s=0.31,
        n_rows=diagnosis.n_ops,
        verdict=diagnosis.verdict,
        step_s=diagnosis.step_time.recorded,
        slowdown=w.slowdown,
        steps=tuple(range(first, first + N_STEPS)),
        step_slowdowns=tuple(np.resize(w.by_step, N_STEPS).tolist()),
        worker_slowdowns=tuple(map(tuple, w.by_worker.tolist())),
    )


def episode_of(diagnosis: Diagnosis, first_step: int, *, recovered: int | None = None, gain: float = 0.15) -> Episode:
    """Make the episode of the first cause of a diagnosis."""
    cause = diagnosis.causes[0]
    return Episode(
        name=f"{cause.fingerprint}@{first_step}",
        fingerprint=cause.fingerprint,
        cause=cause.cause,
        title=cause.title,
        where=cause.where,
        first_step=first_step,
        last_step=first_step + 60,
        began_s=NOW_S - 400,
        told_s=NOW_S - 380,
        delay_windows=1,
        delay_s=27.5,
        recovered_step=recovered,
        recovered_s=None if recovered is None else NOW_S - 100,
        gain=gain,
        peak_gain=gain * 1.2,
        confidence=cause.confidence,
    )


def job(
    name: str = "pretrain-7b",
    diagnosis: Diagnosis | None = None,
    *,
    n_windows: int = 41,
    state: LiveState = "running",
    why: str = "a window comes every 20 s",
    episodes: Sequence[Episode] = (),
    location: str | None = None,
    seed: int = 0,
) -> WatchedJob:
    """Make a job whose last window has this diagnosis, and whose steps are slower while an episode lasts."""
    n_course = min(n_windows * N_STEPS, 512)
    steps = np.linspace(0, max(n_windows * N_STEPS - 1, 0), n_course).astype(int)
    course = 1.02 + 0.004 * np.random.default_rng(seed).standard_normal(n_course)
    for episode in episodes:
        over = steps[-1] + 1 if episode.recovered_step is None else episode.recovered_step
        course[(steps >= episode.first_step) & (steps < over)] += episode.gain
    windows = () if diagnosis is None else tuple(
        window_of(diagnosis, number, n_windows=n_windows) for number in range(max(0, n_windows - 8), n_windows)
    )  # fmt: skip
    if windows:  # what is open lasts
        episodes = [
            msgspec.structs.replace(one, last_step=windows[-1].last_step) if one.recovered_step is None else one
            for one in episodes
        ]
    return WatchedJob(
        location=location or f"/traces/{name}",
        name=name,
        state=state,
        since_s=NOW_S - 3600,
        why=why,
        windows=windows,
        course_steps=tuple(steps.tolist()),
        course_slowdowns=tuple(course.tolist()),
        episodes=tuple(episodes),
    )


def last(watched: WatchedJob, diagnosis: Diagnosis | None) -> tuple[Window, Diagnosis] | None:
    """Give the last window with its diagnosis."""
    return None if diagnosis is None else (watched.windows[-1], diagnosis)


def hostile(text: str, diagnosis: Diagnosis) -> WatchedJob:
    """Put a text into every place that a trace can fill; a path may hold a byte that is no text."""
    where = Where(workers=(Worker(0, 0, rank=0, host=text),), hosts=(text, "b"))
    evil = msgspec.structs.replace(episode_of(diagnosis, 700), title=text, where=where, name=text, fingerprint=text)
    over = msgspec.structs.replace(evil, recovered_step=720, recovered_s=NOW_S)
    return job(text, diagnosis, why=text, location="/traces/" + text.replace("\ud800", "\udcff"), episodes=[evil, over])


def many(diagnosed: dict[str, Diagnosis], n: int = 64) -> list[WatchedJob]:
    """Make a room full of jobs: most are well, a few have episodes, some nobody can see, one waits, one ended."""
    slow, well = diagnosed["worker-fault"], diagnosed["healthy"]
    found = []
    for i in range(n):
        name = f"run-{i:02}"
        if i % 16 == 5:
            gain = 0.05 + i / 300
            found.append(job(name, slow, episodes=[episode_of(slow, 700, gain=gain)], seed=i))
        elif i % 20 == 7:
            found.append(
                job(name, well, state="blind", why="no new rows since 02:41:07; a window came every 20 s", seed=i)
            )
        elif i == 11:
            found.append(job(name, n_windows=0, state="waiting", why="no rows yet", seed=i))
        elif i == 12:
            found.append(job(name, well, state="ended", why="the recording ended with step 819", seed=i))
        else:
            found.append(job(name, well, episodes=[episode_of(slow, 120, recovered=300)] if i % 9 == 0 else [], seed=i))
    return found
