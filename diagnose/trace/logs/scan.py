"""Find the lines of each format in a text, by their marks: what has no mark is never looked at line by line.

Enters: blocks of whole lines. Leaves: filled builders, one a format.
"""

from collections.abc import Sequence

from diagnose.trace.logs.any_job import MARKS, AnyJobReader
from diagnose.trace.logs.builder import LogBuilder
from diagnose.trace.logs.lines import strip_colours
from diagnose.trace.logs.log_format import FileFormat, HoldingReader, LineReader, LogFormat
from diagnose.trace.logs.wrappers import unpack_json, unwrap

#: Of a longer line only what stands around its marks is read: so much before and behind.
LONG_LINE_BYTES = 1 << 16
AROUND_BYTES = 1 << 12


class Scan:
    """Reads the lines of one format, and what any job prints, out of blocks that are given one after the other."""

    def __init__(self, log_format: LogFormat, log: LogBuilder) -> None:
        self.format, self.log = log_format, log
        self._readers: tuple[LineReader, LineReader] = (log_format.reader(log), AnyJobReader(log))
        own = dict.fromkeys((*log_format.step_marks, *log_format.marks))
        #: Each mark with whose it is: the place of its reader.
        self._marks = tuple((mark, 0) for mark in own) + tuple((mark, 1) for mark in MARKS if mark not in own)
        self._goes_on = [False, False]
        #: Bytes that were searched for marks, and lines that were read: what it costs.
        self.n_searched = self.n_lines = 0

    def take(self, block: bytes) -> None:
        """Read a block."""
        end_of_block = len(block)
        found = [self._find(block, mark, 0) for mark, _ in self._marks]
        at = 0
        while at < end_of_block:
            mark_at = min(found)
            if any(self._goes_on):
                following = block.find(b"\n", at)
                mark_at = min(mark_at, end_of_block if following < 0 else following)
            elif mark_at >= end_of_block:
                return
            begin = block.rfind(b"\n", at, mark_at) + 1 or at
            end = block.find(b"\n", mark_at)
            end = end_of_block if end < 0 else end
            if end - begin > LONG_LINE_BYTES:
                begin = max(begin, mark_at - AROUND_BYTES)
                end = min(end, mark_at + AROUND_BYTES)
            wanted = [*self._goes_on]
            at = end + 1
            for n, position in enumerate(found):
                if position < at:
                    if position < end_of_block:
                        wanted[self._marks[n][1]] = True
                    found[n] = self._find(block, self._marks[n][0], at)
            self._read(block[begin:end], wanted)

    def end(self) -> None:
        """Let the reader tell what it held back; after the last block."""
        reader = self._readers[0]
        if isinstance(reader, HoldingReader):
            reader.end()

    def _find(self, block: bytes, mark: bytes, at: int) -> int:
        """Find a mark from here on; the length of the block where it is not there."""
        found = block.find(mark, at)
        found = len(block) if found < 0 else found
        self.n_searched += max(found - at, 0)
        return found

    def _read(self, line: bytes, wanted: list[bool]) -> None:
        """Let the readers that want it take a line, or the lines that a log collector packed into it."""
        packed, time = unpack_json(line) if line.startswith(b"{") else ([], b"")
        if not any(self._goes_on):
            packed = [one for one in packed if any(mark in one for mark, _ in self._marks)]
        for whole in packed or (line,):
            self.n_lines += 1
            plain = strip_colours(whole)
            self.log.source, self.log.rank, said = unwrap(plain)
            self.log.line, self.log.around = said, time if packed else plain
            for n, reader in enumerate(self._readers):
                if wanted[n]:
                    self._goes_on[n] = reader.take(said)


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
