"""What writers of all formats ask of a run: when it logs, and what lies in between."""

import datetime as dt
from collections.abc import Iterator

import numpy as np

from tests.logs.runs import Attempt, Between, LoggedRun


def logged(run: LoggedRun, *, first: bool = False) -> list[int]:
    """Give the indices of the steps after which the log has a line; with `first`, the first step of all as well."""
    return [
        i
        for i, iteration in enumerate(run.iteration.tolist())
        if iteration % run.interval == 0 or (first and iteration == 1)
    ]


def between_after(run: LoggedRun, index: int) -> list[Between]:
    """Give what lies between a step and the next."""
    return [event for event in run.between if event.at == index]


def attempt_at(run: LoggedRun, index: int) -> Attempt | None:
    """Give the attempt that begins with a step; None where none does."""
    return next((attempt for attempt in run.attempts if attempt.at == index), None)


def windows(run: LoggedRun, *, first: bool = False) -> Iterator[tuple[int, int, float]]:
    """Give each line: the first and the last step that it is of, and the seconds since the line before, all counted in.

    After a start the first line is of the steps since the start, and its seconds have no start-up in them.
    """
    ends_s = run.ends_s()
    own_s = np.diff(ends_s, prepend=run.began_s)
    for attempt in run.attempts:
        own_s[attempt.at] -= attempt.gap_s
    begins = 0
    for last in logged(run, first=first):
        begins = max([begins, *(attempt.at for attempt in run.attempts if attempt.at <= last)])
        yield begins, last, float(own_s[begins : last + 1].sum())
        begins = last + 1


def stamp(seconds: float, form: str = "%Y-%m-%d %H:%M:%S,{ms:03d}") -> str:
    """Write a moment as Python's logging does."""
    whole, ms = divmod(round(seconds * 1000), 1000)
    return dt.datetime.fromtimestamp(whole, dt.UTC).strftime(form).replace("{ms:03d}", f"{ms:03d}")
