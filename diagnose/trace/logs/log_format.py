"""What a format of training logs is: how its lines are found, and what turns them into steps.

A format is one module of `formats/` with a constant `FORMAT`, listed in `catalogue.py`. Most formats are lines of text among other
text (`LogFormat`); some are files of their own (`FileFormat`).

Example of a format whose steps say `my step 12 took 0.5 s`::

    class _Reader:
        def __init__(self, log: LogBuilder) -> None:
            self.log = log

        def take(self, line: bytes) -> bool:
            if said := _STEP.search(line):
                self.log.add_step(int(said[1]), float(said[2]))
            return False

    FORMAT = LogFormat(
        name="my-trainer",
        title="My trainer",
        reads="took",
        example="my step N took .. s",
        step_marks=(b"my step ",),
        reader=_Reader,
    )
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from diagnose.trace.logs.builder import LogBuilder


class LineReader(Protocol):
    """Reads the lines of one format in one log, in the order of the file; keeps what it must remember between them."""

    def take(self, line: bytes) -> bool:
        """Take one line that has one of the marks, and tell the builder what it says.

        The line has no end of line, no colours, and nothing before it that a launcher or a log collector put there: neither
        `[rank3]: `, `[default0]:`, `0: ` of `srun -l`, nor the JSON or the stamp of a container. It has at most 64 KiB. It may
        be anything: cut, mixed with the line of another rank, or of a program that happens to print the same mark. The cost must
        be linear in its length. Never raises on what is in it.

        Returns
        -------
        bool
            True where the next line is wanted too, whatever is in it: for what is told in several lines. It is asked again
            with each, so it must say False after some lines that were not expected.
        """


@runtime_checkable
class HoldingReader(LineReader, Protocol):
    """A reader that cannot tell steps before it has seen all lines."""

    def end(self) -> None:
        """Tell the builder what was held back; called once, after the last line."""


@runtime_checkable
class RowReader(LineReader, Protocol):
    """A reader that can take many lines of steps at once, which costs a third of one line after the other."""

    #: A regular expression with two groups or more for a whole line of a step as the writer usually prints it, from its first
    #: byte to its last, with one of the step marks in it, beginning with no prefix that `wrappers` knows. It must not match a
    #: line that `take` reads otherwise than `take_rows` does: it is narrow, and whatever it does not match is given to `take`,
    #: with up to 64 KiB of lines around it. Like `take` it must be linear. Empty where lines are to be read one by one; it may
    #: be learned from the lines that `take` was given.
    row: bytes

    def take_rows(self, rows: list[tuple[bytes, ...]]) -> bool:
        """Take the groups of lines below each other as `take` would each line, or none of them: then it says False."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogFormat:
    """A format of lines of text, anywhere in a file and among lines of others."""

    #: As reports of what can be read call it: "torchtitan-console".
    name: str
    #: Who wrote it, as people call that: "torchtitan". The reader may set `LogBuilder.format` to say it better.
    title: str
    #: What its times are from, for people: "elapsed time per iteration (ms)". Likewise.
    reads: str
    #: The line of a step, for an error: "iteration N/ M | .. elapsed time per iteration (ms): ..".
    example: str
    #: Literals; each line of a step has one of them. The longer (6 bytes and more), the faster, and the surer that nobody else
    #: prints it. They must lie within what one colour covers, and have no character that JSON escapes (`"`, a tab).
    step_marks: tuple[bytes, ...]
    #: Makes the reader of one log, which fills this builder.
    reader: Callable[[LogBuilder], LineReader]
    #: Literals of other lines that tell something. Each costs time in every log of the format: one for several kinds of line is
    #: better than one a kind.
    marks: tuple[bytes, ...] = ()
    #: Literals that tell that a file is of this format even where it has no step. Only for a better error; they are of `marks`
    #: where the reader wants them.
    opening_marks: tuple[bytes, ...] = ()
    #: True where a line stands for all steps since the line before. Likewise.
    is_mean: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class FileFormat:
    """A format that is a whole file: one JSON document, a table, records of a tracker."""

    #: `name`, `title`, `reads`, `example`, `is_mean`: as of a `LogFormat`.
    name: str
    title: str
    reads: str
    example: str
    #: Says by the first 64 KiB of a file, unpacked and as UTF-8 with plain ends of lines, whether it is one; never raises.
    recognise: Callable[[bytes], bool]
    #: Reads a file into a builder; `name` is how errors call it. Raises `TraceError` where it cannot be read. Its memory is
    #: bounded, whatever the file is.
    read: Callable[[Path, LogBuilder, str], None]
    is_mean: bool = False
    #: True where it is no text: it is told by its bytes as they are, and not looked for among the lines of a log.
    is_binary: bool = False
    #: Of a table: says by the same 64 KiB whether it has steps and a column of this name; `LogBuilder.column` then says which.
    has_column: Callable[[bytes, str], bool] | None = None
