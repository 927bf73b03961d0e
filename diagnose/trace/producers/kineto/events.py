"""Stream the events of one Kineto trace (Chrome JSON, packed or not), a few megabytes at a time.

Enters: a file of any length. Leaves: its header, and lists of `Event`; the file is never in memory as a whole.

The array of events is cut where one object ends and the next begins, at a place found from the back of what was read. A wrong
place, inside a string or a nested object, leaves text that is no JSON, so what decodes was cut rightly.
"""

import dataclasses
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from diagnose.errors import TraceError
from diagnose.trace.input_files import open_unpacked

#: Bytes read at a time. An event is about 300 bytes; decoded ones take some 10 times the memory of their text.
CHUNK_BYTES = 4 << 20
#: Longest text without the end of an event: beyond it a file is damage, not a trace.
MAX_PENDING_BYTES = 16 << 20
#: Longest text before the events, and after them.
MAX_HEADER_BYTES = 16 << 20
#: Places that are tried, from the back, before more is read.
MAX_CUTS = 16

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_END = re.compile(rb"\}\s*\]\s*(?=[,}])")
#: Where the decoder stopped.
_PLACE = re.compile(r"byte (\d+)")
#: What JSON does not know, and some versions write: infinite bandwidths, and control characters in names of kernels.
_NOT_FINITE = re.compile(rb"(:\s*)-?(?:inf|nan|Infinity|NaN)\b")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')


class Args(msgspec.Struct, gc=False):
    """What is read of the arguments of an event; of any type, as versions differ."""

    correlation: Any = None
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)


class Event(msgspec.Struct, gc=False):
    """One event: times in microseconds, relative to the base of its file."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: Args | None = None


@dataclasses.dataclass(slots=True)
class Stream:
    """Events of a file as they come; the rest is known once they have all been read."""

    header: dict[str, Any] = dataclasses.field(default_factory=dict)  # what stands beside the events
    n_unreadable: int = 0  # entries of the array that are no events
    truncated: bool = False  # the file ends in the middle: the events up to there are good
    n_bytes: int = 0  # of text


_decoder = msgspec.json.Decoder(list[Event], strict=False)
_loose = msgspec.json.Decoder()


def read_events(path: Path, stream: Stream, *, where: str) -> Iterator[list[Event]]:
    """Read the events of a file in its order, some thousand at a time; fills in `stream` on the way.

    Raises
    ------
    TraceError
        It is damaged before the first event, or in the middle.
    """
    pending, pieces = _read_header(_read_text(path, stream, where), stream, where)
    ended = False
    for piece in pieces:
        pending += piece
        events, pending, ended = _take_events(pending, stream)
        if events:
            yield events
        if ended:
            break
        if len(pending) > MAX_PENDING_BYTES:
            raise TraceError(
                f"has no end of an event within {MAX_PENDING_BYTES >> 20} MB; expected a list of events as torch.profiler writes "
                "it: export the trace again",
                where=where,
            )
    else:
        events, pending, ended = _take_events(pending, stream, last=True)
        if events:
            yield events
    if ended:
        _read_footer(pending, pieces, stream)
        return
    _refuse_damage(pending, stream, where)
    stream.truncated = True


def _read_text(path: Path, stream: Stream, where: str) -> Iterator[bytes]:
    """Give the text of a file piece by piece; a packed one that breaks off gives what it has."""
    try:
        with open_unpacked(path) as source:
            while piece := source.read1(CHUNK_BYTES):
                stream.n_bytes += len(piece)
                yield piece
    except EOFError:
        stream.truncated = True
    except (OSError, zlib.error) as error:
        raise TraceError(f"cannot be read ({error}); expected a whole file: copy it again", where=where) from None


def _read_header(pieces: Iterator[bytes], stream: Stream, where: str) -> tuple[bytes, Iterator[bytes]]:
    """Read up to the first event; give what was read beyond it."""
    pending = b""
    for piece in pieces:
        pending += piece
        found = _KEY.search(pending)
        if found:
            stream.header.update(_decode_object(pending[: found.start()].rstrip().rstrip(b",") + b"}"))
            # An empty piece comes first, so that the text already read is decoded before more is read.
            return pending[found.end() :], itertools.chain((b"",), pieces)
        if len(pending) > MAX_HEADER_BYTES:
            break
    raise TraceError(
        'has no "traceEvents"; expected a trace that torch.profiler exported (export_chrome_trace, tensorboard_trace_handler)',
        where=where,
    )


def _read_footer(pending: bytes, pieces: Iterator[bytes], stream: Stream) -> None:
    """Read what stands after the events."""
    text = [pending]
    length = len(pending)
    for piece in pieces:
        length += len(piece)
        if length > MAX_HEADER_BYTES:
            return
        text.append(piece)
    stream.header.update(_decode_object(b"{" + b"".join(text).strip().lstrip(b",")))


def _decode_object(text: bytes) -> dict[str, Any]:
    """Decode an object; empty where it is none: what is beside the events is welcome, and not needed."""
    for attempt in (text, _mend(text)):
        try:
            found = _loose.decode(attempt)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _take_events(pending: bytes, stream: Stream, *, last: bool = False) -> tuple[list[Event], bytes, bool]:
    """Decode all whole events of the text; give them, the text left over, and whether the list of events has ended."""
    ends = [found.start() + 1 for found in _between_from_the_back(pending)]
    for end, mend in [*((end, False) for end in ends), *((end, True) for end in ends[:1])]:
        events = _decode(pending[:end], stream, mend=mend)
        if events is not None:
            rest = pending[end:].lstrip(b" \r\n\t").removeprefix(b",")
            closed = _find_end(rest, stream)
            if closed is not None:
                return events + closed[0], closed[1], True
            return events, rest, False
    closed = _find_end(pending, stream)
    if closed is not None:
        return *closed, True
    if last:  # cut off between two events, or behind the last one
        whole = pending.rstrip(b" \r\n\t,]")
        events = _decode(whole, stream, mend=False) if whole.endswith(b"}") else None
        if events is not None:
            return events, b"", False
    return [], pending, False


def _between_from_the_back(text: bytes) -> Iterator[re.Match[bytes]]:
    """Find where an event may end and the next begin, the last place first."""
    window = 1 << 16
    found = list(_BETWEEN.finditer(text, max(0, len(text) - window)))
    while not found and window < len(text):
        window *= 8
        found = list(_BETWEEN.finditer(text, max(0, len(text) - window)))
    yield from reversed(found[-MAX_CUTS:])


def _find_end(text: bytes, stream: Stream) -> tuple[list[Event], bytes] | None:
    """Find the end of the list of events; give the events before it and the text after it."""
    if text.lstrip(b" \r\n\t").startswith(b"]"):
        return [], text.lstrip(b" \r\n\t")[1:]
    places = [found for found, _ in zip(_END.finditer(text), range(MAX_CUTS), strict=False)]
    for found, mend in [*((found, False) for found in places), *((found, True) for found in places[:1])]:
        events = _decode(text[: found.start() + 1], stream, mend=mend)
        if events is not None:
            return events, text[found.end() :]
    return None


def _decode(text: bytes, stream: Stream, *, mend: bool) -> list[Event] | None:
    """Decode events; None where the text is no JSON. `mend` first makes JSON of what some versions write."""
    framed = b"[" + text.lstrip(b" \r\n\t,") + b"]"
    if mend:
        framed = _mend(framed)
    try:
        return _decoder.decode(framed)
    except msgspec.ValidationError:
        return _decode_one_by_one(framed, stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decode_one_by_one(framed: bytes, stream: Stream) -> list[Event] | None:
    """Decode events of which some are of another shape, and count those."""
    try:
        entries = _loose.decode(framed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    events = []
    for entry in entries:
        try:
            events.append(msgspec.convert(entry, Event, strict=False))
        except (msgspec.ValidationError, RecursionError):
            stream.n_unreadable += 1
    return events


def _mend(text: bytes) -> bytes:
    """Make JSON of what is nearly JSON."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode("utf-8")
    return _ESCAPE.sub(rb"\\\\", _CONTROL.sub(b" ", _NOT_FINITE.sub(rb"\1null", text)))


def _refuse_damage(rest: bytes, stream: Stream, where: str) -> None:
    """Refuse text that is damaged in its middle; a file that just ends early has one event begun at most."""
    if _BETWEEN.search(rest) is None:
        return
    at = 0
    try:
        _loose.decode(b"[" + rest)
    except msgspec.DecodeError as error:
        told = _PLACE.search(str(error))
        at = max(int(told[1]) - 1, 0) if told else 0
    except (UnicodeDecodeError, RecursionError):
        pass
    raise TraceError(
        f"is damaged about {max(stream.n_bytes - len(rest) + at, 0) >> 10} KB into its text (no JSON: "
        f"{json.dumps(rest[at : at + 40].decode('utf-8', 'replace').strip())}); expected events as torch.profiler writes "
        "them: export or copy it again",
        where=where,
    )
