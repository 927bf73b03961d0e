"""What a job that still runs delivers, and when enough of it is there to be diagnosed.

Enters: the files of one job. Leaves: one `Delivery` after the other, each a folder or file that `diagnose` reads like any other.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class Mark(Struct, frozen=True, kw_only=True):
    """How far a job was read: kept in the store, so that a watch that is started again goes on from there.

    Attributes
    ----------
    start : str
        Which start of the job, or which file.
    position : int
        The last step taken, the first byte not taken, or how many sessions were.
    attempt : str
        When the processes of that start began, as they say.
    """

    start: str = ""
    position: int | None = None
    attempt: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """What is diagnosed together.

    Attributes
    ----------
    n_rows : int
        Rows, lines or bytes of it, as its files count.
    silent : tuple of int
        Ranks that should be in it, and are not.
    n_ranks : int or None
        How many ranks the job has; None where nobody says it.
    work : float or None
        How much a step holds: tokens, or forward computes; None where nobody knows.
    lay_out : callable
        Gives a folder or file with these rows, and nothing else, while it is open.
    mark : Mark
        How far the job was read once this is taken.
    restarts : bool
        True where the job began again, so that step numbers may go back.
    """

    n_rows: int
    silent: tuple[int, ...]
    n_ranks: int | None
    work: float | None
    lay_out: Callable[[], contextlib.AbstractContextManager[Path]]
    mark: Mark
    restarts: bool = False


class Source(Protocol):
    """The files of one job."""

    def look(self) -> bool:
        """Look whether there is anything new; costs next to nothing where there is not."""

    @property
    def written_s(self) -> float | None:
        """When its files were written last, Unix seconds, as their file system says; None where none is there."""

    def deliver(self, now_s: float) -> Delivery | None:
        """Give what is to be diagnosed next; the same again until it is taken. None where it is not all there."""

    def take(self, delivery: Delivery, now_s: float) -> None:
        """Take what was delivered: it is in the store, and is not given again."""

    def deliver_again(self, first: int, last: int) -> Delivery | None:
        """Give the steps from one to another once more that were taken; None where its files are not read twice."""

    @property
    def has_ended(self) -> bool:
        """True where the job has said that it ended, and all of it was delivered."""
