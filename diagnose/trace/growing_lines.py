"""Read a log of operations that grows line by line while its job runs: each time only the lines that are new.

Enters: the log of a rank, or of several. Leaves: the lines of some steps, as a file of their own. A step is whole once every rank
in the file has begun another: of an event timer that counts on from the beginning, the job was started again. A rank that is far
behind most of the others in one file has vanished, and is not waited for.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diagnose.model.trace import Ints
from diagnose.trace.growing import NO_STEP
from diagnose.trace.producers import event_timer
from diagnose.trace.producers.torchtitan import spans as torchtitan_spans

#: Bytes that are read at a time; no line of an operation is longer.
BLOCK_BYTES = 1 << 20
#: Bytes before the first that was not read, which tell whether the file is still the same.
KNOWN_BYTES = 256
#: A rank so many steps behind half of those in its file writes no more: a pipeline's ranks are at most a few steps apart, and what
#: they print waits in buffers of some kilobytes.
GONE_STEPS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class LineFormat:
    """How a producer writes while the job runs."""

    #: Gives rank and step of a line; no step where it is of the one that the rank is in, None where it is of no operation.
    place: Callable[[bytes], tuple[int, int | None] | None]
    #: What the names of one rank's files have in common, each written by another start; None where all starts are in one file,
    #: whose steps then begin again.
    file_of_rank: re.Pattern[str] | None = None


#: By the name of the producer.
FORMATS = {
    "event-timer": LineFormat(event_timer.place_line),
    "torchtitan": LineFormat(torchtitan_spans.place_line, re.compile(r".*global_rank_\d+")),
}


@dataclasses.dataclass(frozen=True, slots=True)
class StepLines:
    """Whole lines, and of which rank and step each is."""

    lines: list[bytes]
    ranks_of: list[int]
    steps_of: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def ranks(self) -> set[int]:
        """List the ranks."""
        return set(self.ranks_of)

    def steps(self) -> Ints:
        """List the steps, sorted."""
        return np.unique(np.array(self.steps_of, dtype=np.int64))

    def work(self) -> tuple[float, int]:
        """Say that lines do not tell how much work they are."""
        return 0.0, 0

    def write(self, path: Path) -> None:
        """Write them as a file of their own."""
        path.write_bytes(b"".join(self.lines))

    def keep(self, first: int, last: int) -> "StepLines":
        """Keep what is of some steps."""
        at = [i for i, step in enumerate(self.steps_of) if first <= step <= last]
        return StepLines(*([column[i] for i in at] for column in (self.lines, self.ranks_of, self.steps_of)))  # type: ignore[arg-type]


class GrowingLines:
    """What one start of a job writes into one file; as `growing.GrowingTrace` for what is written whole.

    `n_before` is how many starts before it wrote into the same file.
    """

    n_ranks = None
    started_at = None
    has_restarted = False
    is_outdated = False

    def __init__(self, path: Path, log_format: LineFormat, mark: int = NO_STEP, n_before: int = 0) -> None:
        self.path = path
        self.mark = mark
        self.written_s = 0.0
        self.is_finished = False
        self._format = log_format
        self.n_before = n_before
        self._stamp: tuple[int, int] | None = None
        #: The step that each rank is in.
        self._step_of: dict[int, int] = {}
        self._begin()

    def look(self) -> bool:
        """Look whether the file has changed; costs a stat."""
        try:
            found = self.path.stat()
        except OSError:
            self.written_s, self._stamp = 0.0, None
            return False
        stamp = found.st_mtime_ns, found.st_size
        if stamp == self._stamp:
            return False
        self.has_restarted = self._is_another(found.st_size)
        if self.has_restarted:
            self._n_ended = 0
            self.start_again(NO_STEP)
        self._stamp, self.written_s = stamp, found.st_mtime
        return True

    @property
    def last_step(self) -> int:
        """The last step that is whole in the file; `NO_STEP` where none is."""
        while self._find_whole() <= self.mark and self._read():
            pass
        return self._find_whole()

    def start_again(self, mark: int) -> None:
        """Forget what is in memory, and read from the first line on what comes after a step.

        Without a step it is the last start that was found: the file was begun anew, and has not those before.
        """
        self.n_before = min(self.n_before, self._n_ended) if mark == NO_STEP else self.n_before
        self.mark, self.is_finished = mark, False
        self._begin()

    def skip_all(self) -> None:
        """Take what the file has now for nothing: it is of an earlier attempt."""
        while self._read():
            pass
        self._pending, self._step_of = StepLines([], [], []), {}

    def steps(self, n_steps: int) -> Ints:
        """List the whole steps that nobody has taken, sorted: as many as asked for, or all that there are."""
        while True:
            found = self._pending.steps()
            found = found[found <= self._find_whole()]
            if len(found) >= n_steps or not self._read():
                return found[:n_steps]

    def read_through(self, step: int) -> None:
        """Have all lines up to a step in memory."""
        while self._find_whole() < step and self._read():
            pass

    def rows_through(self, step: int) -> StepLines | None:
        """Give the lines up to a step that nobody has taken; None where there are none."""
        self.read_through(step)
        return self._pending.keep(self.mark + 1, step) or None

    def read_again(self, first: int, last: int) -> StepLines | None:  # noqa: ARG002 - where steps stand in a log nobody knows
        """Lines are read once."""
        return None

    def drop_through(self, step: int) -> None:
        """Take the lines up to a step: they are not given again."""
        self.read_through(step)
        self.mark = max(self.mark, step)
        self._pending = self._pending.keep(self.mark + 1, -NO_STEP)

    def _is_another(self, n_bytes: int) -> bool:
        """Say whether the file was begun anew: it is shorter than what was read of it, or that is no longer in it."""
        if n_bytes < self._position or not self._known:
            return n_bytes < self._position
        try:
            with self.path.open("rb") as file:
                file.seek(self._position - len(self._known))
                return file.read(len(self._known)) != self._known
        except OSError:
            return False

    def _begin(self) -> None:
        """Stand before the first line."""
        self._position = self._n_ended = 0
        self._known = b""
        self._pending = StepLines([], [], [])
        self._step_of = {}

    def _find_whole(self) -> int:
        """Say which is the last step in memory, or taken, after which every rank that still writes has begun another."""
        steps = sorted(self._step_of.values())
        if not steps or self._n_ended < self.n_before:
            return NO_STEP
        least = steps[len(steps) // 2] - GONE_STEPS
        return next(step for step in steps if step >= least) - (not self.is_finished)

    def _read(self) -> bool:
        """Read the next whole lines; False where there are none."""
        if self.is_finished:
            return False
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                block = file.read(BLOCK_BYTES)
        except OSError:
            return False
        # More than a block without a line's end is no line of operations.
        whole = block[: block.rfind(b"\n") + 1] or block * (len(block) == BLOCK_BYTES)
        for line in whole.splitlines(keepends=True):
            placed = self._format.place(line)
            if placed is not None and not self._add(line, *placed):
                self.is_finished = True
                return True
        self._position += len(whole)
        self._known = whole[-KNOWN_BYTES:] or self._known
        return bool(whole)

    def _add(self, line: bytes, rank: int, step: int | None) -> bool:
        """Take a line; False where it is the first of the next start."""
        now = self._step_of.get(rank, NO_STEP)
        if step is not None and step < now and self._format.file_of_rank is None:
            if self._n_ended == self.n_before:
                return False
            self._n_ended += 1
            self._step_of = {}
            self._pending = StepLines([], [], [])
            now = NO_STEP
        self._step_of[rank] = max(now, step if step is not None else now)
        at = step if step is not None else now
        if at > self.mark and self._n_ended == self.n_before:
            self._pending.lines.append(line)
            self._pending.ranks_of.append(rank)
            self._pending.steps_of.append(at)
        return True
