"""The thread that turns steps into rows and rows into a file, beside the training.

Enters: steps that have ended, on the clock's queue. Leaves: the rank's file, written anew now and then and at the end.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.record.clock import Clock, Moment
from diagnose.record.log import StepLog
from diagnose.record.parallel_state import ParallelState
from diagnose.record.rows import list_operations
from diagnose.record.write import RecordedRows, prepare, write_rows

LOGGER = logging.getLogger("diagnose.record")

#: How often events are asked whether they have passed while a step is recorded, and how often the thread looks otherwise.
TICK_S = 0.005
IDLE_S = 0.5
#: How often the thread looks whether nothing is to be recorded.
LOOK_EVERY_S = 5.0
#: The file is written anew after so long, and after as much longer as writing it took times this: where the process is killed, the
#: last minute is lost, up to a million rows, and no more than a hundredth of what was recorded after that.
WRITE_EVERY_S = 60.0
WRITE_SHARE = 100.0
#: How long the end of the job waits for the last events and the last file, and where it ends in an error, which must get out.
PATIENCE_S = 30.0
PATIENCE_AFTER_ERROR_S = 5.0


class WriterThread(threading.Thread):
    """Writes what was recorded, with the metadata of the job as they are by then."""

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        state: ParallelState,
        metadata: dict[str, Any],
        fail: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="diagnose-recorder", daemon=True)
        self.folder = folder
        self.clock = clock
        self.state = state
        self.metadata = metadata
        self.fail = fail
        #: Called every few seconds.
        self.look: Callable[[], None] = lambda: None
        self.kept = RecordedRows()
        self._read: list[Moment] = []
        self._wake = threading.Event()
        self._is_asked = False
        self._answered = threading.Event()
        self._ends = False
        self._has_complained = False
        self._patience_s = PATIENCE_S

    def wake(self) -> None:
        """Wake the thread: a step is ready."""
        self._wake.set()

    def flush(self, patience_s: float) -> None:
        """Have the file written now, and wait for it so long at most; events that have not passed are not waited for."""
        self._answered.clear()
        self._is_asked = True
        self._wake.set()
        self._answered.wait(patience_s)

    def finish(self, patience_s: float) -> None:
        """Write what is left and end; waits for events that have not passed for a while."""
        self._patience_s = patience_s
        self._ends = True
        self._wake.set()
        self.join(patience_s)

    def run(self) -> None:
        """Write steps until the job ends."""
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the training goes on
            self.fail(error)
            with contextlib.suppress(Exception):
                if len(self.kept):
                    self._write()  # what came before

    def _work(self) -> None:
        """Take steps off the queue and write them."""
        prepare()
        n_written, last = 0, time.monotonic()
        pause_s = WRITE_EVERY_S
        looked = last
        deadline = None
        while True:
            self._take()
            if self._ends and deadline is None:
                deadline = time.monotonic() + self._patience_s / 2
            if deadline is not None and (not self.clock.moments or time.monotonic() > deadline):
                break
            is_asked, self._is_asked = self._is_asked, False
            if len(self.kept) > n_written and (is_asked or time.monotonic() - last > pause_s):
                began = time.monotonic()
                self._write()
                n_written, last = len(self.kept), time.monotonic()
                pause_s = max(WRITE_EVERY_S, WRITE_SHARE * (last - began))
            if is_asked:
                self._answered.set()
            if time.monotonic() - looked > LOOK_EVERY_S:
                self.look()
                looked = time.monotonic()
            if self.clock.moments:
                time.sleep(TICK_S)
            else:
                self._wake.wait(IDLE_S if not self._ends else 0.0)
                self._wake.clear()
        if len(self.kept):
            self._write()

    def _take(self) -> None:
        """Turn the steps whose events have all passed into rows."""
        while (passed := self.clock.next_passed()) is not None:
            if not isinstance(passed, StepLog):
                self._read.append(passed)
                continue
            with self.clock.asking() as may_ask:
                if not may_ask:
                    self.clock.moments.appendleft(passed)
                    return
                rows = list_operations(passed)
            self.kept.add(passed, rows)
            self.clock.reuse(self._read, passed.window)
            self._read.clear()

    def _write(self) -> None:
        """Write the file; where that fails it is tried again the next time, for a disk is not full for ever."""
        try:
            write_rows(self.folder, self.kept, self.state, self.metadata)
        except OSError as error:
            if self._ends or not self._has_complained:
                then = "what came since it last did is lost" if self._ends else "it goes on trying"
                LOGGER.warning("diagnose could not write its file (%s); %s", error, then)
            self._has_complained = True
