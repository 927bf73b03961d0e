"""A Parquet column of lists (document lengths) that is read later than the other columns, and a piece at a time.

Enters: a file and the name of its column. Leaves: pyarrow arrays of lists, in the order of the rows.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.errors import TraceError, shorten
from diagnose.trace.watched_file import refuse_changed

#: A column of lists that is read later, and only for the rows that are needed: it may be longer than all others together.
LISTS = "doc_lengths"
#: Rows of lists read at a time.
BATCH_ROWS = 1 << 16
#: What pyarrow raises for a file that is damaged.
UNREADABLE = (OSError, pa.ArrowException, ValueError, OverflowError, MemoryError, KeyError)


@dataclasses.dataclass(frozen=True, slots=True)
class ListColumn:
    """The column of document lengths, still in the file.

    `first` is the number of its first row, and `others` are the columns of further files of the same job.
    """

    source: Any
    name: str
    first: int = 0
    others: tuple["ListColumn", ...] = ()

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Read the column a piece at a time: the number of its first row, and a pyarrow array of lists."""
        first = self.first
        try:
            with pq.ParquetFile(self.source, page_checksum_verification=False) as file:
                for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[LISTS]):
                    batch.validate()
                    yield first, batch.column(0)
                    first += len(batch)
        except UNREADABLE as error:
            refuse_changed(self.source, self.name)
            raise describe_damage(error, f"{self.name}: column {LISTS!r}") from None
        refuse_changed(self.source, self.name)
        for other in self.others:
            yield from other.batches()


def describe_damage(error: Exception, where: str) -> TraceError:
    """Give the error of a file that cannot be read, with the reason."""
    if isinstance(error, MemoryError):
        return TraceError(
            "needs more memory to be read than there is; expected memory for all of its rows", where=where
        )
    return TraceError(
        f"cannot be read as Parquet ({shorten(error)}); expected an undamaged Parquet file: copy it again, or convert it",
        where=where,
    )
