"""When the GPU did what the host asked for in a range of its time.

Enters: kernels and launches of one rank. Leaves: `GpuTime`, asked for the time of one range of the host after another.
"""

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.trace.producers.kineto.collect import Collected, Exchange, Spans

#: Between kernels that were launched ahead the GPU stands still for a few microseconds, and no longer than this.
LARGEST_GAP_US = 50.0
#: Start and end, microseconds of the file.
Range = tuple[float, float]


class GpuTime:
    """Answers when the kernels ran that were launched in a range of the host's time, on any thread.

    Threads are not told apart: backwards are launched by threads of autograd while the range stands on the main one.
    """

    def __init__(self, found: Collected) -> None:
        self._launched, self._start, self._end, before = _join(found.kernels, found.launches)
        self._reach = np.maximum.accumulate(self._end)
        #: Start of what was launched before the recording began, and until when the GPU was busy with that by then.
        self._before = before.start, np.maximum.accumulate(before.end)
        communication = [exchange for exchange in found.exchanges if exchange.by == "kernel"]
        #: All kernels of the communication library, with when the host launched each.
        self.launched = _by_launch(communication, found.launches)
        self._comm_launched = np.array([launched for launched, _ in self.launched])
        self._annotations = found.gpu_annotations
        self.is_there = bool(len(found.kernels) or communication or len(found.gpu_annotations))
        self.busy = merge(found.kernels.start, found.kernels.end)

    def of(self, start: float, end: float, name: int = -1, nth: int = -1) -> Range | None:
        """Say when the computing kernels launched from `start` to `end` (of the host) ran, microseconds of the file.

        Where no launch is known, the `nth` annotation of the GPU with that `name` is taken.
        """
        first, last = np.searchsorted(self._launched, (start, end))
        if last > first:
            return float(self._start[first:last].min()), float(self._end[first:last].max())
        if name >= 0:
            same = np.flatnonzero(self._annotations.key == name)
            if 0 <= nth < len(same):
                return float(self._annotations.start[same[nth]]), float(self._annotations.end[same[nth]])
        return None

    def back_to_back(self, since: float, until: float, start: float) -> float:
        """Say when those kernels began, of what was launched from `since` to `until`, that run without a gap up to `start`."""
        first, last = np.searchsorted(self._launched, (since, until))
        order = np.argsort(-self._end[first:last], kind="stable")
        end, begun = self._end[first:last][order], np.minimum.accumulate(np.r_[start, self._start[first:last][order]])
        apart = np.flatnonzero(end < begun[:-1] - LARGEST_GAP_US)
        return float(begun[apart[0] if len(apart) else -1])

    def worked_until(self, launched: float, began: float) -> float:
        """Say until when the GPU was busy with what the host launched before a time; -inf: with nothing.

        What has no launch was launched before the recording, if it `began` before a time of the GPU.
        """
        of = np.searchsorted(self._launched, launched), np.searchsorted(self._before[0], began)
        reached = (self._reach, self._before[1])
        return max((float(end[n - 1]) for n, end in zip(of, reached, strict=True) if n), default=-np.inf)

    def communication(self, start: float, end: float) -> list[Exchange]:
        """List the kernels of the communication library launched from `start` to `end`."""
        first, last = np.searchsorted(self._comm_launched, (start, end))
        return [exchange for _, exchange in self.launched[first:last]]


def merge(start: Seconds, end: Seconds) -> tuple[Seconds, Seconds]:
    """Join spans that touch or overlap.

    >>> merge(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    (array([0., 5.]), array([3., 6.]))
    """
    if not len(start):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.r_[True, start[1:] > reach[:-1]])
    return start[first], reach[np.r_[first[1:] - 1, len(start) - 1]]


def take_off(running: tuple[Seconds, Seconds], busy: tuple[Seconds, Seconds]) -> tuple[Seconds, Seconds]:
    """Give the spans in `running` and not in `busy`; all are merged spans.

    >>> take_off((np.array([0.0, 5.0]), np.array([4.0, 6.0])), (np.array([1.0]), np.array([2.0])))
    (array([0., 2., 5.]), array([1., 4., 6.]))
    """
    edges = np.unique(np.concatenate([*running, *busy]))
    middle = (edges[:-1] + edges[1:]) / 2
    alone = is_inside(middle, running) & ~is_inside(middle, busy)
    return merge(edges[:-1][alone], edges[1:][alone])


def overlap(start: Seconds, end: Seconds, spans: tuple[Seconds, Seconds]) -> Seconds:
    """Say how much of each range lies in merged spans; shape of `start`.

    >>> overlap(np.array([0.0, 4.0]), np.array([3.0, 9.0]), (np.array([1.0, 5.0]), np.array([2.0, 6.0])))
    array([1., 1.])
    """
    if not len(spans[0]):
        return np.zeros(len(start))
    edges = np.stack(spans, axis=1).ravel()
    covered = np.r_[0.0, np.cumsum(np.stack([np.zeros(len(spans[0])), spans[1] - spans[0]], axis=1).ravel()[1:])]
    # Covered up to a time: it grows within spans, and stands still between them.
    within = np.interp(end, edges, covered) - np.interp(start, edges, covered)
    return np.asarray(within)


def is_inside(at: Seconds, spans: tuple[Seconds, Seconds]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say for each time whether one of some merged spans holds it."""
    start, end = spans
    if not len(start):
        return np.zeros(len(at), dtype=bool)
    last = np.searchsorted(start, at, side="right") - 1
    return np.asarray((last >= 0) & (at <= end[np.maximum(last, 0)]))


def _join(kernels: Spans, launches: Spans) -> tuple[Seconds, Seconds, Seconds, Spans]:
    """Give launch, start and end of each kernel whose launch is known, by launch, and the others that began before all of these."""
    at = find_launch(kernels.key, launches)
    known = at >= 0
    launched = launches.start[at[known]]
    order = np.argsort(launched, kind="stable")
    before = ~known & (kernels.start < kernels.start[known].min(initial=np.inf))
    return launched[order], kernels.start[known][order], kernels.end[known][order], kernels.take(before)


def find_launch(correlation: Ints, launches: Spans) -> Ints:
    """Say which launch has each correlation; -1: none."""
    if not len(launches):
        return np.full(len(correlation), -1, dtype=np.int64)
    order = np.argsort(launches.key, kind="stable")
    at = np.minimum(np.searchsorted(launches.key[order], correlation), len(order) - 1)
    hit = (launches.key[order][at] == correlation) & (correlation >= 0)
    return np.where(hit, order[at], -1)


def _by_launch(exchanges: list[Exchange], launches: Spans) -> list[tuple[float, Exchange]]:
    """Sort kernels by when they were launched; those of unknown launch by when they began.

    Unknown ones that began before all others were launched before the recording: no call in it is theirs.
    """
    at = find_launch(np.array([exchange.correlation for exchange in exchanges], dtype=np.int64), launches)
    first = min((exchange.start for exchange, n in zip(exchanges, at, strict=True) if n >= 0), default=-np.inf)
    launched = [
        float(launches.start[n]) if n >= 0 else exchange.start if exchange.start >= first else -np.inf
        for exchange, n in zip(exchanges, at.tolist(), strict=True)
    ]
    return sorted(zip(launched, exchanges, strict=True), key=lambda pair: pair[0])
