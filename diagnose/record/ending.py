"""What a job is told that ends: nothing that was recorded is lost when a scheduler sends SIGTERM.

Enters: signals. Leaves: the recorder's file, written before whoever was asked to end is asked: the handler of the job, or the
default, which ends the process.
"""

import contextlib
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

LOGGER = logging.getLogger("diagnose.record")

#: Seconds that the last file may take. Schedulers kill 30 s after they asked (Kubernetes, Slurm's KillWait, torchrun).
FLUSH_S = 5.0
#: Seconds in which the training's thread comes back to Python, unless it waits for other ranks in a collective.
AT_ONCE_S = 0.5
#: Signals that end a process by default, and that people and schedulers send. Where Ctrl-C raises `KeyboardInterrupt`, it ends
#: the job as an error does, and needs nothing here.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


class Ending:
    """Writes what was recorded when the process is told to end, and passes the signal on.

    Python runs handlers on its main thread, and only when that is not within a call of C++: a rank that waits for others, which
    were told to end as well, would wait until it is killed. So a thread hears of the signal, too, and where nobody but the default
    is to be told, it ends the process.

    Parameters
    ----------
    flush : function of a number of seconds
        Writes the file, and waits no longer for it.
    """

    def __init__(self, flush: Callable[[float], None]) -> None:
        self._flush = flush
        self._before: dict[int, Any] = {}
        self._is_on = False
        self._heard = threading.Event()
        self._flushing = threading.RLock()  # a second signal comes while the file is written for the first
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        """Hear of signals from now on; elsewhere than on the main thread Python allows nobody to."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._is_on = True
        for number in SIGNALS:
            before = signal.getsignal(number)
            is_harmless = before in (signal.SIG_IGN, None) or before is signal.default_int_handler
            if not is_harmless:
                self._before[number] = before
                signal.signal(number, self._handle)
        self._listen_beside()

    def stop(self) -> None:
        """Put back what was there, where nobody else has put something in its place since."""
        self._is_on = False
        with contextlib.suppress(ValueError):  # closed on another thread: the handlers stay, and pass on
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, before)
            self._stop_beside()

    def forget(self) -> None:
        """Do the same in a process that was forked: signals to it are none of the job's."""
        pipe, self._pipe = self._pipe, None
        self.stop()
        if pipe is not None:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(-1)
            for end in pipe:
                os.close(end)

    def _listen_beside(self) -> None:
        """Have a thread hear of signals, unless another already does (an event loop)."""
        pipe = os.pipe()
        os.set_blocking(pipe[1], False)
        other = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
        if other != -1:
            signal.set_wakeup_fd(other)
            for end in pipe:
                os.close(end)
            return
        self._pipe = pipe
        self._thread = threading.Thread(target=self._wait, args=(pipe[0],), name="diagnose-signals", daemon=True)
        self._thread.start()

    def _stop_beside(self) -> None:
        """Let the thread end; it closes what it reads."""
        if self._pipe is None:
            return
        found = signal.set_wakeup_fd(-1)
        if found not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(found)
        os.close(self._pipe[1])
        self._pipe = None
        if self._thread is not None:
            self._thread.join(AT_ONCE_S)

    def _wait(self, end: int) -> None:
        """Wait for a signal on a thread, and see to it where the main thread does not."""
        while numbers := os.read(end, 64):
            for number in set(numbers) & self._before.keys():
                if not self._heard.wait(AT_ONCE_S) and self._is_on and self._before[number] == signal.SIG_DFL:
                    self._flush_once()
                    _end_by(number)
        os.close(end)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Write the file on the main thread, and pass the signal on."""
        self._heard.set()
        if self._is_on:
            self._flush_once()
        before = self._before[number]
        if callable(before):
            self._heard.clear()
            before(number, frame)
        elif before == signal.SIG_DFL:
            _end_by(number)

    def _flush_once(self) -> None:
        """Write the file; two threads at once need not."""
        with self._flushing:
            try:
                self._flush(FLUSH_S)
            except Exception:  # the signal is passed on
                LOGGER.debug("diagnose could not write its file", exc_info=True)


def _end_by(number: int) -> None:
    """End this process as the signal does by default, so that who waits for it sees by what it ended."""
    # Python's own `signal.signal` is for the main thread alone.
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)
