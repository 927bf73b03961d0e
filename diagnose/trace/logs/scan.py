"""Find the lines of each format in a text, by their marks: what has no mark is never looked at line by line.

Enters: blocks of whole lines. Leaves: filled builders, one a format.

What it costs: 0.3 ns for a mark and a byte that is searched; 7 to 14 us for a line that has a mark, and 1.5 to 5 us for a plain
one of a step among others of a `RowReader`.
"""

import math
import re
from collections.abc import Sequence

from diagnose.trace.logs.any_job import MARKS, AnyJobReader
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.lines import strip_colours
from diagnose.trace.logs.log_format import FileFormat, HoldingReader, LogFormat, RowReader
from diagnose.trace.logs.stamps import find_stamp
from diagnose.trace.logs.wrappers import unpack_json, unwrap

#: Of a longer line only what stands around its marks is read: so much before and behind.
LONG_LINE_BYTES = 1 << 16
AROUND_BYTES = 1 << 12
#: Lines of steps that are nearer to each other are read together, in pieces of so many bytes.
NEAR_BYTES, ROWS_BYTES = 1 << 10, 1 << 16
#: Whose a line is: the reader's of the format, or that of what any job prints, or both.
_OWN, _ANY_JOB = 1, 2
_END_OF_LINE = ord("\n")


class Scan:
    """Reads the lines of one format, and what any job prints, out of blocks that are given one after the other."""

    def __init__(self, log_format: LogFormat, log: LogBuilder) -> None:
        self.format, self.log = log_format, log
        self._own, self._any_job = log_format.reader(log), AnyJobReader(log)
        self._row_reader = self._own if isinstance(self._own, RowReader) else None
        #: Each mark, and whose it is.
        self._marks = dict.fromkeys(MARKS, _ANY_JOB) | dict.fromkeys((*log_format.step_marks, *log_format.marks), _OWN)
        #: Who wants the next line whatever is in it.
        self._goes_on = 0
        #: After lines that could not be read together, the next try is behind so many bytes.
        self._retry_bytes = NEAR_BYTES
        #: Bytes that were searched for marks, and lines that were read: what it costs.
        self.n_searched = self.n_lines = 0

    def take(self, block: bytes) -> None:
        """Read a block."""
        end_of_block = len(block)
        # Where each mark is next; one that is nowhere in the rest of the block is left out.
        found: dict[bytes, int] = {}
        for mark in self._marks:
            self._find(block, mark, 0, found)
        at = rows_from = 0
        while at < end_of_block and (found or self._goes_on):
            mark_at = min(found.values(), default=end_of_block)
            is_near = rows_from <= at and mark_at - at < NEAR_BYTES and not self._goes_on
            if self._row_reader and is_near:
                end = self._find_rows(block, at, found)
                near = [mark for mark, position in found.items() if position < end]
                row = self._row_reader.row if near and end - at >= NEAR_BYTES else b""
                if row and self._take_rows(row, block[at:end], mark_at - at, near):
                    at, self._retry_bytes = end, NEAR_BYTES
                    for mark in near:
                        self._find(block, mark, at, found)
                    continue
                if row or end - at < NEAR_BYTES:
                    rows_from = at + self._retry_bytes
                    self._retry_bytes = min(2 * self._retry_bytes, ROWS_BYTES)
            if self._goes_on:
                following = block.find(b"\n", at, mark_at)
                mark_at = mark_at if following < 0 else following
            begin = block.rfind(b"\n", at, mark_at) + 1 or at
            end = block.find(b"\n", mark_at)
            end = end_of_block if end < 0 else end
            if end - begin > LONG_LINE_BYTES:
                begin = max(begin, mark_at - AROUND_BYTES)
                end = min(end, mark_at + AROUND_BYTES)
            at = end + 1
            wanted = self._goes_on
            for mark in [mark for mark, position in found.items() if position < at]:
                wanted |= self._marks[mark]
                self._find(block, mark, at, found)
            self._read(block[begin:end], wanted)

    def end(self) -> None:
        """Let the reader tell what it held back; after the last block."""
        if isinstance(self._own, HoldingReader):
            self._own.end()

    def _find(self, block: bytes, mark: bytes, at: int, found: dict[bytes, int]) -> None:
        """Find a mark from here on."""
        position = block.find(mark, at)
        if position < 0:
            found.pop(mark, None)
            position = len(block)
        else:
            found[mark] = position
        self.n_searched += max(position - at, 0)

    def _find_rows(self, block: bytes, at: int, found: dict[bytes, int]) -> int:
        """Say where the lines from here on end that have no mark but those of steps; here, where this is no begin of a line."""
        if not found or (at and block[at - 1] != _END_OF_LINE):
            return at
        others = (position for mark, position in found.items() if mark not in self.format.step_marks)
        end = min((*others, at + ROWS_BYTES, len(block)))
        return end if end == len(block) else block.rfind(b"\n", at, end) + 1 or at

    def _take_rows(self, row: bytes, lines: bytes, mark_at: int, marks: list[bytes]) -> bool:
        """Let the reader take lines at once if each that has a mark is the plain one of a step with the same in front of it."""
        if self._row_reader is None or b"\x1b" in lines:
            return False
        source, rank, _ = unwrap(lines[lines.rfind(b"\n", 0, mark_at) + 1 : mark_at])
        if not math.isnan(find_stamp(source)):
            return False
        self.log.source, self.log.rank = source, rank
        # An end of line before each lets the search run from literal to literal.
        rows = re.findall(rb"\n" + re.escape(source) + row + rb"(?![^\n])", b"\n" + lines)
        if len(rows) != sum(map(lines.count, marks)) or not self._row_reader.take_rows(rows):
            return False
        self.n_lines += len(rows)
        return True

    def _read(self, line: bytes, wanted: int) -> None:
        """Let the readers that want it take a line, or the lines that a log collector packed into it."""
        # A dict of Python is no JSON.
        packed, time = unpack_json(line) if line.startswith(b"{") and line[1:2] != b"'" else ([], b"")
        if not self._goes_on:
            packed = [one for one in packed if any(mark in one for mark in self._marks)]
        for whole in packed or (line,):
            self.n_lines += 1
            plain = strip_colours(whole)
            self.log.source, self.log.rank, said = unwrap(plain)
            self.log.line, self.log.around = said, time if packed else plain
            goes_on = _OWN if wanted & _OWN and self._own.take(said) else 0
            if wanted & _ANY_JOB and self._any_job.take(said):
                goes_on |= _ANY_JOB
            self._goes_on = goes_on


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
