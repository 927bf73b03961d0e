"""Read text whatever stands between a program and its file: gzip, UTF-16, progress bars, colours, several ranks at once.

Enters: a file of any size. Leaves: blocks of whole lines as bytes, or its lines one at a time; memory is bounded by the
longest line.
"""

import codecs
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import TraceError, shorten
from diagnose.trace.input_files import GZIP, ZSTD, open_unpacked
from diagnose.trace.streams import refuse_endless

#: Bytes read at a time.
CHUNK_BYTES = 1 << 20
#: A longer line is no line of a log: it is passed over, whole.
MAX_LINE_BYTES = 1 << 24
#: A sample is so many pieces of a file, of so many bytes each, spread evenly from its first byte to its last.
PIECES = 16
PIECE_BYTES = 1 << 16
#: How UTF-16 begins, as PowerShell writes what a program prints, by its encoding: with a mark, or with a few plain letters.
_UTF16 = {
    encoding: re.compile(rb"\A(?:" + mark + b"|(?:" + letter + rb"){8})", re.DOTALL)
    for encoding, mark, letter in (
        ("utf-16-le", rb"\xff\xfe", rb"[\t\r\n -~]\0"),
        ("utf-16-be", rb"\xfe\xff", rb"\0[\t\r\n -~]"),
    )
}
#: What a terminal obeys: colours and cursor moves.
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def read_blocks(file: Path, *, name: str) -> Iterator[bytes]:
    r"""Read a file in blocks of whole lines, each line but the last with its `\n`, packed by gzip or zstd or not.

    A carriage return ends a line, too, as progress bars write it. Lines of more than 16 MiB are passed over.

    Raises
    ------
    TraceError
        The file cannot be read, or what gzip packed is damaged.
    """
    rest: list[bytes] = []
    n_rest, too_long = 0, False
    for chunk in _read_chunks(file, name):
        end = chunk.rfind(b"\n") + 1
        if end:
            begin = chunk.find(b"\n") + 1 if too_long else 0
            yield b"".join((*rest, chunk[begin:end]))
            rest, n_rest, too_long = [], 0, False
        if end < len(chunk) and not too_long:
            rest.append(chunk[end:])
            n_rest += len(chunk) - end
        if n_rest > MAX_LINE_BYTES:
            rest, n_rest, too_long = [], 0, True
    if rest:
        yield b"".join(rest)


def read_lines(file: Path, *, name: str) -> Iterator[bytes]:
    """Read a file line by line as `read_blocks` does, without ends of lines and colours; raises as that does."""
    for block in read_blocks(file, name=name):
        for line in block.removesuffix(b"\n").split(b"\n"):
            yield strip_colours(line)


def read_sample(file: Path) -> list[bytes]:
    """Read some blocks of whole lines, at most a mebibyte of them, from all over a file; none where it cannot be read."""
    most = PIECES * PIECE_BYTES
    try:
        size = file.stat().st_size
        with open_unpacked(file) as stream:
            head = stream.read(PIECE_BYTES)
            if size <= most or find_utf16(head) or _is_packed(file):
                return [normalise(head + stream.read(most - PIECE_BYTES))]
            pieces = [head]
            for n in range(1, PIECES):
                stream.seek((size - PIECE_BYTES) * n // (PIECES - 1))
                pieces.append(stream.read(PIECE_BYTES))
    except (OSError, EOFError, zlib.error):
        return []
    whole = [normalise(piece) for piece in pieces]
    # The first line of a piece may have begun before it, and the last may go on after it.
    return [
        piece[piece.find(b"\n") + 1 if n else 0 : len(piece) if n == PIECES - 1 else piece.rfind(b"\n") + 1]
        for n, piece in enumerate(whole)
    ]


def strip_colours(line: bytes) -> bytes:
    """Take out what only a terminal obeys."""
    return _ANSI.sub(b"", line) if b"\x1b" in line else line


def normalise(content: bytes) -> bytes:
    """Give the beginning of a text as UTF-8 with plain ends of lines."""
    if encoding := find_utf16(content):
        content = content.decode(encoding, "replace").encode("utf-8", "replace")
    return _end_lines(content.removeprefix(codecs.BOM_UTF8))


def find_utf16(content: bytes) -> str:
    """Say in which UTF-16 the beginning of a text is written; empty where it is not."""
    return next((encoding for encoding, begins in _UTF16.items() if begins.match(content)), "")


def _end_lines(chunk: bytes) -> bytes:
    """Let every line end as on Unix."""
    return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk


def _is_packed(file: Path) -> bool:
    """Say whether gzip or zstd packed a file."""
    with file.open("rb") as raw:
        return raw.read(len(ZSTD)).startswith((GZIP, ZSTD))


def _read_chunks(file: Path, name: str) -> Iterator[bytes]:
    """Read UTF-8 with plain ends of lines, so many bytes at a time."""
    try:
        with open_unpacked(file) as stream:
            n_read, may_be_endless = 0, not file.is_file()
            decoder: codecs.IncrementalDecoder | None = None
            while chunk := stream.read(CHUNK_BYTES):
                if not n_read and (encoding := find_utf16(chunk)):
                    decoder = codecs.getincrementaldecoder(encoding)("replace")
                text = decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
                if not n_read:
                    text = text.removeprefix(codecs.BOM_UTF8)
                n_read += len(chunk)
                if may_be_endless:
                    refuse_endless(n_read, name)
                yield _end_lines(text)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"cannot be read ({shorten(error)}); expected a whole file: copy it again", where=name
        ) from None
