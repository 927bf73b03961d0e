"""What was told to whom: so that every message arrives at least once, has one name, and two senders do not tell it twice.

Enters: the key of a message and who it is for. Leaves: a claim, or the mark that it has arrived.
"""

import sqlalchemy as sa

from diagnose.triage.schema import DELIVERIES, NIGHTS
from diagnose.triage.store import Store


class Deliveries:
    """What was told to one target, in a store that has been entered; `target` names it without its secrets."""

    def __init__(self, store: Store, target: str) -> None:
        self._store = store
        self._target = target
        self._arrived = (DELIVERIES.c.target == target) & DELIVERIES.c.sent_at.is_not(None)

    def sent(self) -> set[str]:
        """Give the keys of all messages that have arrived."""
        with self._store.reading() as read:
            return {row.key for rows in read(sa.select(DELIVERIES.c.key).where(self._arrived)) for row in rows}

    def last_events(self) -> dict[str, str]:
        """Give what was told last of each ticket."""
        query = sa.select(DELIVERIES.c.ticket, DELIVERIES.c.event).where(self._arrived).order_by(DELIVERIES.c.sent_at)
        with self._store.reading() as read:
            return {row.ticket: row.event for rows in read(query) for row in rows}

    def claim(self, key: str, ticket: str, event: str) -> bool:
        """Claim a message; False where it has arrived, or another who lives is sending it."""
        mine = {"night": self._store.run_id}
        alive = sa.select(NIGHTS.c.night).where(NIGHTS.c.expires > self._store.clock)

        def take(connection: sa.Connection) -> bool:
            add = self._store.insert(DELIVERIES).values(
                target=self._target, key=key, ticket=ticket, event=event, **mine
            )
            free = DELIVERIES.c.sent_at.is_(None) & (DELIVERIES.c.night.is_(None) | DELIVERIES.c.night.not_in(alive))
            take = add.on_conflict_do_update(index_elements=["target", "key"], set_=mine, where=free)
            return connection.execute(take.returning(DELIVERIES.c.key)).first() is not None

        return self._store.transact(take)

    def mark(self, key: str) -> None:
        """Write down that a message has arrived."""
        arrived = sa.update(DELIVERIES).where(self._at(key)).values(sent_at=self._store.clock, night=None)
        self._store.transact(lambda connection: connection.execute(arrived))

    def release(self, key: str) -> None:
        """Give a message back that did not arrive."""
        mine = self._at(key) & (DELIVERIES.c.night == self._store.run_id) & DELIVERIES.c.sent_at.is_(None)
        self._store.transact(lambda connection: connection.execute(sa.delete(DELIVERIES).where(mine)))

    def record_events(self, states: dict[str, str]) -> None:
        """Write down the state that was told of some tickets."""
        rows = [
            {"target": self._target, "key": ticket, "ticket": ticket, "event": state}
            for ticket, state in states.items()
        ]

        def write(connection: sa.Connection) -> None:
            add = self._store.insert(DELIVERIES).values(sent_at=self._store.clock)
            new = {"event": add.excluded.event, "sent_at": self._store.clock}
            connection.execute(add.on_conflict_do_update(index_elements=["target", "key"], set_=new), rows)

        if rows:
            self._store.transact(write)

    def _at(self, key: str) -> sa.ColumnElement[bool]:
        """Give the row of a message."""
        return (DELIVERIES.c.target == self._target) & (DELIVERIES.c.key == key)
