"""What a watch keeps of the jobs that it follows, so that one that is killed goes on from there.

Enters: locations, and what is to be kept as JSON. Leaves: the same. What it says is a matter of the watch.
"""

import sqlalchemy as sa

from diagnose.triage.database import plain_text
from diagnose.triage.schema import WATCHED
from diagnose.triage.store import Store


def read_watched(store: Store, location: str) -> str | None:
    """Read what is kept of a job; None where nothing is."""
    query = sa.select(WATCHED.c.state).where(WATCHED.c.location == plain_text(location))
    return store.ask(lambda connection: connection.execute(query).scalar())


def list_watched(store: Store) -> set[str]:
    """List the jobs of which something is kept, by location."""
    return set(store.ask(lambda connection: connection.execute(sa.select(WATCHED.c.location)).scalars().all()))


def write_watched(store: Store, location: str, state: str) -> None:
    """Keep something of a job, in one transaction, in the place of what was kept before."""
    row = store.upsert(WATCHED, location=plain_text(location), state=state, saved_at=store.clock)
    store.transact(lambda connection: connection.execute(row))
