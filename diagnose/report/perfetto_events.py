"""Writes trace events: slices, flows and counters on named tracks, in Chrome's JSON format, as ui.perfetto.dev reads it.

Enters: slices in nanoseconds. Leaves: lines of JSON in the order of time. Perfetto drops a slice that crosses the end of
another on its thread, and cuts off what is less than a nanosecond; so times are whole nanoseconds, and slices that overlap get
threads of their own.

Source: "Trace Event Format" (Google, 2016), and the JSON importer of Perfetto's trace processor.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: First number of a thread: below are processes, so that no thread is taken for the main one.
_FIRST_THREAD = 1_000_000
#: Operations of one stream that run into each other by no more than this do so because of clocks and precision: on a
#: production trace computes on one stream do by up to 0.05 ms.
_OVERLAP_NS = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Something that took some time, in nanoseconds after the first step drawn began; name and category are safe to show."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any]  # Plain values that a viewer shows beside it


@dataclasses.dataclass(frozen=True, slots=True)
class Thread:
    """A track: its process, its name, and where it stands among the tracks of the process."""

    pid: int
    name: str
    order: int


class Page:
    """Collects the events of one step, and gives them in the order of time."""

    def __init__(self, tracks: "Tracks") -> None:
        self._tracks = tracks
        self._events: list[tuple[int, int, str]] = []

    def slice(self, thread: Thread, what: Slice, *, depth: int = 0) -> None:
        """Add a slice; at the same time the outer one (`depth` 0) goes first."""
        event = {
            "ph": "X",
            "pid": thread.pid,
            "tid": self._tracks.number(thread),
            "ts": micros(what.start_ns),
            "dur": micros(what.end_ns - what.start_ns),
            "name": what.name,
            "cat": what.category,
        }
        if what.args:
            event["args"] = what.args
        self._events.append((what.start_ns, depth, _write(event)))

    def side_by_side(self, thread: Thread, slices: Sequence[Slice]) -> list[tuple[Slice, Thread]]:
        """Add slices, each on the first thread of that name that is free: `name`, `name (2)`, ...; give them as drawn, in order.

        One that runs into the next by no more than clocks err by ends where that begins, and says so.
        """
        lanes: list[list[int]] = []
        drawn = list(slices)
        for i in sorted(range(len(drawn)), key=lambda i: (drawn[i].start_ns, drawn[i].end_ns)):
            begin_ns = drawn[i].start_ns
            lane = next((lane for lane in lanes if drawn[lane[-1]].end_ns - begin_ns <= _OVERLAP_NS), None)
            if lane is None:
                lanes.append([i])
            else:
                drawn[lane[-1]] = _end_by(drawn[lane[-1]], begin_ns)
                lane.append(i)
        threads = [thread] * len(drawn)
        for number, lane in enumerate(lanes, start=1):
            at = dataclasses.replace(thread, name=f"{thread.name} ({number})") if number > 1 else thread
            for i in lane:
                self.slice(at, drawn[i])
                threads[i] = at
        return list(zip(drawn, threads, strict=True))

    def flow(self, name: str, sender: tuple[Thread, int], receiver: tuple[Thread, int]) -> None:
        """Add an arrow between the innermost slices of two threads at some times, the second no earlier than the first."""
        number = self._tracks.next_flow()
        for depth, kind, (thread, at_ns) in ((4, {"ph": "s"}, sender), (5, {"ph": "f", "bp": "e"}, receiver)):
            event = kind | {
                "pid": thread.pid,
                "tid": self._tracks.number(thread),
                "ts": micros(at_ns),
                "id": number,
                "name": name,
                "cat": "transfer",
            }
            self._events.append((at_ns, depth, _write(event)))

    def counter(self, pid: int, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        """Add a value of each of some counters; what is not finite is left out."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if finite:
            event = {"ph": "C", "pid": pid, "ts": micros(at_ns), "name": name, "args": finite}
            self._events.append((at_ns, 6, _write(event)))

    def lines(self) -> Iterator[str]:
        """Give the names of new tracks, then all events."""
        yield from self._tracks.announce()
        yield from (text for *_, text in sorted(self._events, key=lambda event: event[:2]))


class Tracks:
    """Gives processes and threads their numbers, names and order."""

    def __init__(self) -> None:
        self._threads: dict[Thread, int] = {}
        self._news: list[str] = []
        self._flows = 0

    def process(self, pid: int, name: str) -> None:
        """Name a process; those of smaller numbers stand above."""
        for what, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": pid})):
            self._news.append(_write({"ph": "M", "pid": pid, "name": what, "args": args}))

    def number(self, thread: Thread) -> int:
        """Give a thread its number, unlike all others in the file."""
        if thread not in self._threads:
            tid = self._threads[thread] = _FIRST_THREAD + len(self._threads)
            for what, args in (
                ("thread_name", {"name": thread.name}),
                ("thread_sort_index", {"sort_index": thread.order}),
            ):
                self._news.append(_write({"ph": "M", "pid": thread.pid, "tid": tid, "name": what, "args": args}))
        return self._threads[thread]

    def next_flow(self) -> int:
        """Give an arrow its number."""
        self._flows += 1
        return self._flows

    def announce(self) -> list[str]:
        """Give the names of tracks that have not been given yet."""
        news, self._news = self._news, []
        return news


def micros(ns: int) -> float:
    """Give microseconds such that the nanoseconds come back where somebody cuts off instead of rounding.

    >>> micros(1001), int(1.001 * 1000), int(micros(1001) * 1000)
    (1.0010000000000001, 1000, 1001)
    """
    us = ns / 1000
    while int(us * 1000) < ns:
        us = math.nextafter(us, math.inf)
    return us


def _end_by(one: Slice, ns: int) -> Slice:
    """Draw a slice no longer than until some time."""
    cut_ns = one.end_ns - ns
    if cut_ns <= 0:
        return one
    return dataclasses.replace(one, end_ns=ns, args={**one.args, "drawn_shorter_by_ms": cut_ns / 1e6})


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a slice's arguments what is None or no finite number."""
    return {
        key: value
        for key, value in values.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def document(pages: Iterable[Iterable[str]], about: Mapping[str, Any]) -> Iterator[str]:
    """Put events into one JSON object, piece by piece; one event a line."""
    yield '{"traceEvents":[\n'
    comma = ""
    for page in pages:
        for line in page:
            yield f"{comma}{line}"
            comma = ",\n"
    yield f'\n],\n"displayTimeUnit":"ms",\n"otherData":{_write(about)}}}\n'


def to_ns(seconds: float) -> int:
    """Round to whole nanoseconds."""
    return round(seconds * 1e9)


def listed(lines: Sequence[str]) -> list[str] | None:
    """Give a list as an argument of a slice; None, which is left out, where it is empty."""
    return list(lines) or None


def _write(value: Mapping[str, Any]) -> str:
    """Write one object, ASCII only and without blanks."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
