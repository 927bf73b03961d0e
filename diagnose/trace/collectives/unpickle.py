"""Read a pickle of plain values: dictionaries, lists, tuples, numbers, text. Everything else in it is refused before it is read.

A pickle is a program. This one may only build plain values: each of its instructions is looked at first, and one that names a
class, calls anything, or asks for somebody else's object ends the reading. What is left is bounded in size.
"""

import gc
import io
import pickle
import re
from typing import Any, NoReturn

from diagnose.errors import TraceError

#: Bytes of one file at most: 2,000 operations with their stacks are about 2 MB.
MAX_BYTES = 64 << 20
#: Lists, dictionaries and tuples of one file at most: an empty one is one byte there, and 60 in memory.
MAX_CONTAINERS = 4_000_000
#: Instructions that make one; the same bytes stand in numbers and text, so there are fewer than counted.
_OPENING = (b"}", b"]", b"(", b")", b"\x85", b"\x86", b"\x87")
_REFUSED = "is a Python pickle that asks to run code; expected plain values alone, as PyTorch writes them: nothing of it was run"
#: Instructions with what follows them, but for text: values, marks, containers, memory. The number of a place in memory has an
#: upper bound, for that many places are made. Instructions by name: Python's pickletools.
_RUN = re.compile(
    rb"(?:\x80[\x02-\x05]|\x95.{8}|[()\]}N\x88\x89aestu\x85\x86\x87\x94]|K.|M..|J.{4}|G.{8}|h.|j.{4}|q.|r..[\x00-\x3f]\x00"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9}))++",
    re.DOTALL,
)
#: Instructions that are followed by a length and so many bytes: of the length.
_LENGTHS = {0x58: 4, 0x8C: 1, 0x55: 1, 0x54: 4, 0x43: 1, 0x42: 4}
_STOP = 0x2E


def unpickle(data: bytes, *, name: str) -> Any:
    """Read plain values.

    Raises
    ------
    TraceError
        It asks for anything else, is too large, or is damaged.
    """
    check_instructions(data, name=name)
    collects = gc.isenabled()
    gc.disable()  # a million new containers are looked through again and again otherwise
    try:
        return _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        said = type(error).__name__
        raise TraceError(
            f"is a damaged pickle ({said}); expected one that was written to its end", where=name
        ) from None
    finally:
        if collects:
            gc.enable()


def check_instructions(data: bytes, *, name: str) -> None:
    """Refuse a pickle that does more than building plain values, or too many of them; nothing of it is run.

    Raises
    ------
    TraceError
        As `unpickle` does.
    """
    if len(data) > MAX_BYTES:
        raise TraceError(f"is larger than {MAX_BYTES >> 20} MB; expected the dump of one rank", where=name)
    if sum(data.count(opened) for opened in _OPENING) > MAX_CONTAINERS:
        raise TraceError(f"has more than {MAX_CONTAINERS:,} lists; expected the dump of one rank", where=name)
    at = 0
    while at < len(data):
        run = _RUN.match(data, at)
        at = run.end() if run else at
        if at >= len(data):
            break
        instruction = data[at]
        if instruction == _STOP:
            return
        width = _LENGTHS.get(instruction)
        if width is None:
            raise TraceError(_REFUSED, where=name)
        at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    raise TraceError("is a pickle that breaks off; expected one that was written to its end", where=name)


class _Plain(pickle.Unpickler):
    """An unpickler that knows no class and nobody else's objects, should an instruction ask for one after all."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise TraceError(_REFUSED, where=f"{module_name}.{global_name}"[:80])

    def persistent_load(self, pid: Any, /) -> NoReturn:  # noqa: ARG002 - what it asks for is not looked at
        raise TraceError(_REFUSED, where="an object of another program")
