"""Write rows in the place of those with their key, in either database.

Enters: rows as columns by name. Leaves: statements.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from diagnose.triage.store import CHUNK


def insert_into(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Give an INSERT that may say what to do in a conflict."""
    return (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)


def put_rows(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], *key: str) -> None:
    """Write rows in the place of those with their key."""
    if not rows:
        return
    add = insert_into(connection, table)
    new = {name: add.excluded[name] for name in rows[0] if name not in key}
    connection.execute(add.on_conflict_do_update(index_elements=list(key), set_=new), rows)


def in_chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Give a few at a time: no query takes any number."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
