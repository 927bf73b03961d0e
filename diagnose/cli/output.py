"""Where results and errors go: standard output, files that appear when all is written, and lines on standard error.

Enters: text or bytes. Leaves: nothing half-written, and nothing that a terminal would take for an order.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from diagnose.errors import explain_unwritten
from diagnose.files import appearing


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a standard stream, None where it is closed, is a terminal."""
    return stream is not None and stream.isatty()


def write_stdout(text: str) -> None:
    """Write to standard output at once, so that a reader of a pipe sees each report as it is done."""
    from diagnose.report.escape import to_encoding

    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")
    sys.stdout.write(to_encoding(text, sys.stdout.encoding or "utf-8"))
    sys.stdout.flush()


def write_lines(text: str, path: str | None = None) -> None:
    """Write lines that hold text of the user's to standard output, or into a file."""
    from diagnose.report.escape import escape

    with open_output(path) as write:
        write("\n".join(escape(line) for line in text.split("\n")))


@contextlib.contextmanager
def open_output(path: str | None) -> Iterator[Callable[[str], object]]:
    """Give what writes reports: to standard output, or to a file that appears when all is written."""
    if path is None:
        yield write_stdout
        return
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a device or a pipe: nothing to rename over
        with _opened(target, path) as file:
            yield file.write
        return
    with contextlib.ExitStack() as stack:
        try:
            beside = stack.enter_context(appearing(target))
        except OSError as error:
            raise explain_unwritten(f"-o: cannot write {path}", error) from None
        with _opened(beside, path) as file:
            yield file.write
            is_empty = file.tell() == 0
        if is_empty:
            beside.unlink()


def _opened(path: Path, named: str) -> Any:
    """Open a file for writing text, or say why it cannot be."""
    try:
        return path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise explain_unwritten(f"-o: cannot write {named}", error) from None


def write_bytes(option: str, path: str, content: bytes) -> None:
    """Write a file beside its place, then put it there; into a device or a pipe, at once."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        with appearing(target) as beside, beside.open("wb") as file:
            file.write(content)
    except OSError as error:
        raise explain_unwritten(f"{option}: cannot write {path}", error) from None


def count(n: int, noun: str) -> str:
    """Write a number of things."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def print_error(message: str) -> None:
    """Write an error as one line to standard error, whatever the message holds."""
    print_message("error", message)


def print_message(kind: str, message: str) -> None:
    """Write an error or a warning as one line to standard error."""
    from diagnose.report.escape import escape

    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"diagnose: {kind}: {escape(message)}\n")
        sys.stderr.flush()
    except OSError:  # nobody can be told; the exit code says it
        drop(sys.stderr)


def print_internal_error(error: BaseException, job: str | None = None) -> None:
    """Say that the fault is ours, in one line; with DIAGNOSE_DEBUG set, where it is."""
    where = f"{job}: " if job is not None else ""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    print_error(f"{where}internal error: {what}; please report it; set DIAGNOSE_DEBUG=1 for the traceback")
    if os.environ.get("DIAGNOSE_DEBUG") and sys.stderr is not None:
        import traceback

        traceback.print_exception(error)


def drop(stream: TextIO | None) -> None:
    """Point a standard stream nowhere, so that Python's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
