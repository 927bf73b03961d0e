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
    """How far a job was read: kept in the store, so that a watch that is started again goes on from there."""

    #: Which start of the job, or which file.
    start: str = ""
    #: The last step taken, the first byte not taken, or how many sessions were.
    position: int | None = None
    #: When the processes of that start began, as they say.
    attempt: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Delivery:
    """What is diagnosed together."""

    #: Rows, lines or bytes of it, as its files count.
    n_rows: int
    #: Ranks that should be in it, and are not.
    silent: tuple[int, ...]
    #: How many ranks the job has; None where nobody says it.
    n_ranks: int | None
    #: How much a step holds: tokens, or forward computes; None where nobody knows.
    work: float | None
    #: Gives a folder or file with these rows, and nothing else, while it is open.
    lay_out: Callable[[], contextlib.AbstractContextManager[Path]]
    #: How far the job was read once this is taken.
    mark: Mark
    #: True where the job began again, so that step numbers may go back.
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
