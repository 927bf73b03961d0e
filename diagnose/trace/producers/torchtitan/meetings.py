"""When each rank reaches the points of a step, on one clock, and at which of them ranks wait for each other.

Enters: `Spans`. Leaves: a `Grid` of times, the offsets of the clocks, and the names of the meetings that are seen.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.trace.producers.torchtitan.spans import COMPUTE, FETCH, OPTIMIZER, STEP, Spans

#: Ranks end together when they are this much closer than they were before; and were so far apart that one can tell.
TOGETHER_RATIO = 0.25
LEAST_SPREAD_S = 2e-3
#: Clocks are moved by another point of a step than the last one only if that brings ranks this much closer still.
PREFERRED_RATIO = 0.9
#: Spread over ranks is that of all but this part of them.
SPREAD_QUANTILE = 0.9


class Grid:
    """When each rank reaches each point of each step: shape (n_ranks, n_steps), NaN where it has none."""

    def __init__(self, spans: Spans) -> None:
        self.ranks, self.rank_at = np.unique(spans.rank, return_inverse=True)
        self.steps, self.step_at = np.unique(spans.step, return_inverse=True)
        self.spans = spans

    def first(self, kind: int) -> Seconds:
        """Give the begin of the first span of a kind."""
        return -self._reduce(kind, -self.spans.start_s)

    def last(self, kind: int) -> Seconds:
        """Give the end of the last span of a kind."""
        return self._reduce(kind, self.spans.end_s)

    def first_end(self, kind: int) -> Seconds:
        """Give the end of the first span of a kind."""
        return -self._reduce(kind, -self.spans.end_s)

    def _reduce(self, kind: int, values: Seconds) -> Seconds:
        """Take the largest value of each rank and step."""
        here = self.spans.kind == kind
        found = np.full((len(self.ranks), len(self.steps)), -np.inf)
        np.maximum.at(found, (self.rank_at[here], self.step_at[here]), values[here])
        return np.where(np.isneginf(found), np.nan, found)


def _apart(reached: Seconds, offset_s: Seconds) -> float:
    """Say how far apart ranks are at a point, clocks aligned; seconds."""
    late = reached - offset_s[:, None]
    late = np.abs(late - np.nanmedian(late, axis=0))
    return float(np.nanquantile(late, SPREAD_QUANTILE))


def _clock_offsets(reached: Seconds, host: Ints) -> Seconds:
    """Say by how much each host's clock is ahead, if all reach a point together; seconds, shape (n_ranks,)."""
    late = reached - np.nanmedian(reached, axis=0)
    by_host = np.array([np.nanmedian(late[host == code]) for code in range(int(host.max()) + 1)])
    return np.asarray(by_host[host])


def choose_clocks(points: Sequence[Seconds], host: Ints) -> tuple[Seconds, int | None]:
    """Say by how much each rank's clock is ahead: what brings ranks closest together at all points, by meeting at one of them.

    Whoever is late by the same time in each step may as well have a clock that is ahead; so the last point of a step, at which
    all have waited, goes before the others, and ranks of a host have one clock. Gives seconds, shape (n_ranks,), and the point;
    None where clocks need no moving.
    """
    none = np.zeros(len(host))
    best: tuple[float, Seconds, int | None] = (sum(_apart(point, none) for point in points), none, None)
    for at in reversed(range(len(points))):
        offset_s = _clock_offsets(points[at], host)
        if not _is_closer(_apart(points[at], none), _apart(points[at], offset_s)):
            continue
        apart_s = sum(_apart(point, offset_s) for point in points)
        if apart_s < best[0] * (1.0 if best[2] is None else PREFERRED_RATIO):
            best = (apart_s, offset_s, at)
    return best[1], best[2]


def _meet(before: Seconds, after: Seconds) -> bool:
    """Say whether ranks that come to a point apart leave it together; not where they were never apart."""
    none = np.zeros(len(before))
    return _is_closer(_apart(before, none), _apart(after, none))


def _is_closer(before_s: float, after_s: float) -> bool:
    """Say whether ranks that were apart are together; seconds."""
    return before_s >= LEAST_SPREAD_S and after_s <= TOGETHER_RATIO * before_s


def find_begins(grid: Grid) -> Seconds:
    """Say when each rank begins each step."""
    begins = grid.first(STEP)
    return np.where(np.isnan(begins), np.fmin(grid.first(FETCH), grid.first(COMPUTE)), begins)


def find_meetings(grid: Grid) -> list[str]:
    """Say where ranks are seen to wait for each other."""
    begun = grid.first(COMPUTE)
    pairs = {
        "tokens": (grid.last(FETCH), begun),
        "compute": (begun, grid.first_end(COMPUTE)),
        "optimizer": (grid.last(COMPUTE), grid.last(OPTIMIZER)),
    }
    found = []
    for where, (before, after) in pairs.items():
        there = ~(np.isnan(before) | np.isnan(after)).any(axis=0)
        if there.any() and _meet(before[:, there], after[:, there]):
            found.append(where)
    return found


def align_spans(grid: Grid, offset_s: Seconds) -> Spans:
    """Put all ranks on one clock."""
    spans, shift_s = grid.spans, offset_s[grid.rank_at]
    return dataclasses.replace(spans, start_s=spans.start_s - shift_s, end_s=spans.end_s - shift_s)


def cut_waits(grid: Grid) -> Spans:
    """Let the first fwd_bwd of a step begin when the last rank begins it: all end it together, so who was there before waited."""
    spans, begun = grid.spans, grid.first(COMPUTE)
    last_s = np.nanmax(np.where(np.isnan(begun), -np.inf, begun), axis=0)[grid.step_at]
    first = (spans.kind == COMPUTE) & (spans.start_s <= begun[grid.rank_at, grid.step_at]) & (last_s < spans.end_s)
    return dataclasses.replace(spans, start_s=np.where(first, last_s, spans.start_s))
