"""Who knows of which finding, until when.

Enters: an acknowledgement. Leaves: its row in the store, or all of them.
"""

import sqlalchemy as sa

from diagnose.model.ticket import Ack
from diagnose.triage.database import plain_row, put_rows
from diagnose.triage.schema import ACKS, FINDINGS
from diagnose.triage.store import Store


def list_acks(store: Store) -> dict[str, Ack]:
    """Give what somebody knows of, by fingerprint."""
    with store.reading() as read:
        found = [Ack(*tuple(row)) for rows in read(sa.select(ACKS).order_by(ACKS.c.fingerprint)) for row in rows]
    return {ack.fingerprint: ack for ack in found}


def write_ack(store: Store, ack: Ack) -> None:
    """Write down that somebody knows of a finding, in the place of what was said before."""
    store.transact(lambda connection: put_rows(connection, ACKS, [plain_row(ack)]))


def clear_ack(store: Store, fingerprint: str) -> bool:
    """Forget that somebody knows of a finding; False where nobody did."""
    gone = sa.delete(ACKS).where(ACKS.c.fingerprint == fingerprint)
    return store.transact(lambda connection: connection.execute(gone).rowcount > 0)


def end_acks(connection: sa.Connection, now_s: float) -> None:
    """Forget what was known until now, and remind of what is still there."""
    over = ACKS.c.until_at <= now_s
    for fingerprint, until_at in connection.execute(sa.select(ACKS.c.fingerprint, ACKS.c.until_at).where(over)).all():
        still_there = (FINDINGS.c.fingerprint == fingerprint) & (FINDINGS.c.state == "open")
        connection.execute(sa.update(FINDINGS).where(still_there).values(reminded_at=until_at))
    connection.execute(sa.delete(ACKS).where(over))
