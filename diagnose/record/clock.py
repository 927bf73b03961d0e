"""When something happened: on the host's clock, or on the GPU's without waiting for it.

Enters: moments as the hooks see them. Leaves: nanoseconds on one clock of this process, and its distance to unix time. On a GPU
a moment is an event recorded on the current stream; it is read once it has passed, never waited for.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

#: The GPU's clock is tied to the host's no closer than this where the queue of kernels was never seen empty.
TICK_NS = 500_000


class Moment:
    """An event on a stream, and when the host put it there."""

    __slots__ = ("event", "host_ns", "seen_ns")

    def __init__(self, host_ns: int, event: Any) -> None:
        #: `perf_counter_ns` before the event was recorded.
        self.host_ns = host_ns
        self.event = event
        #: `perf_counter_ns` when the event was first seen to have passed; 0 before.
        self.seen_ns = 0


#: When something happened: on the host in nanoseconds, or on the GPU.
Mark = int | Moment


class Window:
    """A few steps one after the other, on one pair of clocks."""

    def __init__(self) -> None:
        before = time.perf_counter_ns()
        wall = time.time_ns()
        #: Unix time when the host's counter stood at 0, nanoseconds.
        self.wall_ns = wall - (before + time.perf_counter_ns()) // 2
        #: The first event of the window, from which the others count.
        self.anchor: Moment | None = None
        self._least_ns = 0  # the counter at the anchor lies between these two
        self._most_ns = 0

    def relative_ns(self, mark: Mark) -> tuple[bool, int]:
        """Say when a mark was: True and nanoseconds after the window's first event, or False and the host's counter.

        The event must have passed.
        """
        if not isinstance(mark, Moment):
            return False, mark
        if self.anchor is None:
            self.anchor, after = mark, 0
            self._least_ns, self._most_ns = mark.host_ns, mark.seen_ns
        else:
            after = round(self.anchor.event.elapsed_time(mark.event) * 1e6)
        # An event passes after it was put on the stream and before it was seen to have passed.
        self._least_ns = max(self._least_ns, mark.host_ns - after)
        self._most_ns = min(self._most_ns, mark.seen_ns - after)
        return True, after

    def forget_anchor(self) -> None:
        """Let the window's event go, when its last step has been read."""
        self.anchor = None

    def unix_ns(self, relative: tuple[bool, int]) -> int:
        """Put a time on unix time, with all that is known of the window by now."""
        on_device, ns = relative
        if not on_device:
            return self.wall_ns + ns
        least, most = self._least_ns, max(self._most_ns, self._least_ns)
        return self.wall_ns + ns + (max(least, most - TICK_NS) + most) // 2


class Clock:
    """Gives marks: cheap, on the host, or on the GPU's current stream."""

    def __init__(self) -> None:
        self._cuda: Any = None
        #: Mark this moment: on the host, or on the GPU's current stream.
        self.now: Callable[[], Mark] = time.perf_counter_ns
        self._free: deque[Any] = deque()
        #: Events not yet seen to have passed, in the order in which they were recorded, and whatever else waits for
        #: those before it.
        self.moments: deque[Any] = deque()
        #: No event may be asked now.
        self.is_paused = False
        self._asking = threading.Lock()
        self._device: Any = None  # the one of the thread that asks

    def use_cuda(self, cuda: Any) -> None:
        """From now on marks are events of this module (`torch.cuda`)."""
        self._cuda = cuda
        self.now = self._record

    @property
    def is_device(self) -> bool:
        """True where marks are events of a GPU."""
        return self._cuda is not None

    def _record(self) -> Moment:
        """Record an event on the current stream."""
        host_ns = time.perf_counter_ns()
        try:
            event = self._free.popleft()
        except IndexError:
            event = self._cuda.Event(enable_timing=True)
        event.record()
        moment = Moment(host_ns, event)
        self.moments.append(moment)
        return moment

    @staticmethod
    def host_ns(mark: Mark) -> int:
        """Say when the host was there."""
        return mark.host_ns if isinstance(mark, Moment) else mark

    def next_passed(self) -> Any:
        """Take the next of `moments` if its time has come, never waiting for it; else None."""
        if not self.moments:
            return None
        first = self.moments[0]
        if isinstance(first, Moment):
            with self._asking:
                if self.is_paused:
                    return None
                device = first.event.device
                if device is not None and device != self._device:
                    # Threads begin on GPU 0: asking there about another's event takes a context's memory from GPU 0.
                    self._cuda.set_device(device)
                    self._device = device
                if not first.event.query():
                    return None
            first.seen_ns = time.perf_counter_ns()
        return self.moments.popleft()

    @contextlib.contextmanager
    def asking(self) -> Iterator[bool]:
        """Keep captures from beginning meanwhile; False where one runs already, and no event may be asked."""
        with self._asking:
            yield not self.is_paused

    def pause(self) -> None:
        """Ask no event any more; when this returns, none is being asked."""
        with self._asking:
            self.is_paused = True

    def resume(self) -> None:
        """Go on asking."""
        self.is_paused = False

    def reuse(self, moments: list[Moment], window: "Window") -> None:
        """Take back events that have been read, but not the one that their window counts from."""
        self._free.extend(moment.event for moment in moments if moment is not window.anchor)
