"""Read logs line by line, whatever stands between a program and its file: gzip, progress bars, colours, several ranks at once.

Enters: a file of any size. Leaves: its lines as bytes, one at a time, in memory bounded by the longest line.
"""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import TraceError
from diagnose.trace.producers.input_files import open_unpacked
from diagnose.trace.streams import refuse_endless

#: Bytes read at a time.
CHUNK_BYTES = 1 << 20
#: A longer line is no line of a log: it is passed over, whole.
MAX_LINE_BYTES = 1 << 24
#: What a terminal obeys: colours and cursor moves.
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def read_lines(file: Path, *, name: str) -> Iterator[bytes]:
    """Read a file line by line, without ends of lines and colours, packed by gzip or not.

    A carriage return ends a line, too, as progress bars write it. Lines of more than 16 MiB are passed over.

    Raises
    ------
    TraceError
        The file cannot be read, or what gzip packed is damaged.
    """
    try:
        with open_unpacked(file) as stream:
            rest, too_long = b"", False
            n_read, may_be_endless = 0, not file.is_file()
            while chunk := stream.read(CHUNK_BYTES):
                n_read += len(chunk) if may_be_endless else 0
                refuse_endless(n_read, name)
                lines = (rest + chunk.replace(b"\r", b"\n")).split(b"\n")
                rest = lines.pop()
                if lines and too_long:
                    del lines[0]
                    too_long = False
                if len(rest) > MAX_LINE_BYTES:
                    rest, too_long = b"", True
                for line in lines:
                    yield _ANSI.sub(b"", line) if b"\x1b" in line else line
            if rest and not too_long:
                yield _ANSI.sub(b"", rest)
    except (OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise TraceError(f"cannot be read ({reason}); expected a whole file: copy it again", where=name) from None
