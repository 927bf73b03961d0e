"""Every exception that a user can meet, each with the exit code that `cli` ends with."""

import errno
import os
from collections.abc import Sequence

#: What says that there is no room, or that a disk fails: another name would not help.
_FAILING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class DiagnoseError(Exception):
    """Something the user can mend; the message says what was found, what was expected, and what to do.

    Parameters
    ----------
    message : str
        One line, without the place.
    where : str
        File, and column, row, line or operation where known.
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class OutputError(DiagnoseError):
    """What was asked for cannot be written, though its place can: the disk is full, or fails."""

    exit_code = 74


class UsageError(DiagnoseError):
    """An option or argument that makes no sense."""

    exit_code = 2


class TraceError(DiagnoseError):
    """The input cannot be read as a trace."""

    exit_code = 3


class MemoryShortageError(TraceError):
    """A trace that needs more memory than it may take."""


class RuleError(DiagnoseError):
    """One or more rule or configuration files are wrong; the message has one line a fault, `file:line: what`."""

    exit_code = 4


class MetadataError(RuleError):
    """A metadata file of one job is wrong; other jobs can be diagnosed."""


class ServiceError(DiagnoseError):
    """A store or a cluster does not answer, or not as it should."""

    exit_code = 74


def explain_unwritten(what: str, error: OSError | ValueError) -> DiagnoseError:
    """Give the error of what cannot be written: of its disk, or of who named a place that is none."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in _FAILING:
        return OutputError(
            f"{what}: {os.strerror(number or 0)}; expected a disk with room, and nothing half-written is left"
        )
    return UsageError(f"{what}: {said}")


def shorten(error: BaseException) -> str:
    """Give what an exception of somebody else's code says, as the part of a line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def name_some(names: Sequence[str], most: int) -> str:
    """Name the first few, and count the others.

    >>> name_some(["a", "b", "c", "d"], 2), name_some(["a"], 2)
    ('a, b and 2 more', 'a')
    """
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def asked_to_end(error: BaseException) -> BaseException | None:
    """Give the SIGTERM or Ctrl-C on whose way out an error arose; None where nobody asked the program to end.

    A signal comes anywhere: within `Condition.wait` it leaves a lock that is not held, and giving that back raises a
    `RuntimeError` in place of the end that was asked for.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, SystemExit | KeyboardInterrupt):
            return at
        seen.add(id(at))
        at = at.__context__
    return None
