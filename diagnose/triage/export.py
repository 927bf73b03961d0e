"""Write the store as Parquet files, for DuckDB, pandas and everybody else.

Enters: a store. Leaves: `jobs.parquet`, `causes.parquet` and `documents.parquet` in a folder, all of one state of the store.
"""

import contextlib
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import parquet

from diagnose.errors import explain_unwritten
from diagnose.files import appearing
from diagnose.triage.schema import CAUSES, DOCUMENTS, JOBS, TIMES
from diagnose.triage.store import Store

_TYPES = {sa.Text: pa.string(), sa.BigInteger: pa.int64(), sa.Double: pa.float64()}


def export_store(store: Store, folder: Path) -> dict[str, int]:
    """Write all rows, and give the number of rows of each file; UsageError or OutputError where the folder cannot be written.

    The folder is made when it is not there; files of an earlier export are replaced when all new ones are complete.
    """
    times = [TIMES.c.diagnosed_at, TIMES.c.took_s]
    jobs = sa.select(*JOBS.c, *times).join(TIMES, JOBS.c.location == TIMES.c.location)
    queries = {
        "jobs": jobs.order_by(JOBS.c.location),
        "causes": sa.select(*CAUSES.c).order_by(CAUSES.c.location, CAUSES.c.place),
        "documents": sa.select(*DOCUMENTS.c).order_by(DOCUMENTS.c.location),
    }
    counts = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as appear, store.reading() as read:
            for name, query in queries.items():
                schema = pa.schema([(column.name, _TYPES[type(column.type)]) for column in query.selected_columns])
                path = appear.enter_context(appearing(folder / f"{name}.parquet"))
                n_rows = 0
                with parquet.ParquetWriter(path, schema) as writer:
                    for rows in read(query):
                        writer.write_table(pa.Table.from_pylist([dict(row._mapping) for row in rows], schema))  # noqa: SLF001 - its name in the library's documentation
                        n_rows += len(rows)
                counts[f"{name}.parquet"] = n_rows
    except OSError as error:
        raise explain_unwritten(f"cannot write into {folder}", error) from None
    return counts
