"""Find the lines of each format in a text, by their marks: what has no mark is never looked at line by line.

Enters: blocks of whole lines. Leaves: filled builders, one a format.
"""

from collections.abc import Sequence

from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.lines import strip_colours
from diagnose.trace.logs.log_format import FileFormat, HoldingReader, LogFormat
from diagnose.trace.logs.wrappers import unpack_json, unwrap

#: Of a longer line only what stands around its marks is read: so much before and behind.
LONG_LINE_BYTES = 1 << 16
AROUND_BYTES = 1 << 12


class Scan:
    """Reads the lines of one format out of blocks that are given one after the other."""

    def __init__(self, log_format: LogFormat, log: LogBuilder) -> None:
        self.format, self.log = log_format, log
        self._reader = log_format.reader(log)
        self._marks = tuple(dict.fromkeys((*log_format.step_marks, *log_format.marks)))
        self._goes_on = False
        #: Bytes that were searched for marks, and lines that were read: what it costs.
        self.n_searched = self.n_lines = 0

    def take(self, block: bytes) -> None:
        """Read a block."""
        end_of_block = len(block)
        found = [self._find(block, mark, 0) for mark in self._marks]
        at = 0
        while at < end_of_block:
            if self._goes_on:
                begin = mark_at = at
            else:
                mark_at = min(found)
                if mark_at >= end_of_block:
                    return
                begin = block.rfind(b"\n", at, mark_at) + 1 or at
            end = block.find(b"\n", mark_at)
            end = end_of_block if end < 0 else end
            if end - begin > LONG_LINE_BYTES:
                begin = max(begin, mark_at - AROUND_BYTES)
                end = min(end, mark_at + AROUND_BYTES)
            self._read(block[begin:end])
            at = end + 1
            for n, position in enumerate(found):
                if position < at:
                    found[n] = self._find(block, self._marks[n], at)

    def end(self) -> None:
        """Let the reader tell what it held back; after the last block."""
        if isinstance(self._reader, HoldingReader):
            self._reader.end()

    def _find(self, block: bytes, mark: bytes, at: int) -> int:
        """Find a mark from here on; the length of the block where it is not there."""
        found = block.find(mark, at)
        found = len(block) if found < 0 else found
        self.n_searched += found - at
        return found

    def _read(self, line: bytes) -> None:
        """Let the reader take a line, or the lines that a log collector packed into it."""
        packed = unpack_json(line) if line.startswith(b"{") else []
        wanted = [one for one in packed if any(mark in one for mark in self._marks)]
        for whole in wanted or (line,):
            self.n_lines += 1
            self.log.line = line = strip_colours(whole)
            self.log.source, self.log.rank, said = unwrap(line)
            self._goes_on = self._reader.take(said)


def has_marks(log_format: LogFormat | FileFormat, blocks: Sequence[bytes]) -> bool:
    """Say whether a mark of steps is somewhere in some blocks."""
    return isinstance(log_format, LogFormat) and any(
        mark in block for block in blocks for mark in log_format.step_marks
    )


def has_opening(log_format: LogFormat | FileFormat, blocks: Sequence[bytes]) -> bool:
    """Say whether some blocks are of a format even if they have no step."""
    return isinstance(log_format, LogFormat) and any(
        mark in block for block in blocks for mark in log_format.opening_marks
    )
