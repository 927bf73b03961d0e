"""Which triage has which job: a triage that lives keeps its lease, and the jobs that it has claimed are its own.

Enters: locations of jobs. Leaves: those that are ours. The tables call a triage run a night.
"""

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from diagnose.errors import ServiceError
from diagnose.triage.database import Database, plain_text
from diagnose.triage.machine import is_alive, name_machine, name_process
from diagnose.triage.schema import CLAIMS, NIGHTS

#: Seconds for which a triage is believed to live after it renewed its lease, and between two renewals: several may fail.
LEASE_S = 120.0
RENEW_S = 15.0


class Claims:
    """The claims of one triage run in a database that several runs may use at the same time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lease: _Lease | None = None
        # Made once: to make the statement takes SQLAlchemy longer than the database takes to run it.
        alive = sa.select(NIGHTS.c.night).where(NIGHTS.c.expires > database.clock)
        add = database.insert(CLAIMS)
        new, is_free = {"night": add.excluded.night}, CLAIMS.c.night.not_in(alive)
        take = add.on_conflict_do_update(index_elements=["location"], set_=new, where=is_free)
        #: Claims jobs that no living triage has, and returns those that it got.
        self._claim: sa.Executable = take.returning(CLAIMS.c.location)

    @property
    def run_id(self) -> str:
        """The name of this triage run, after `enter`."""
        assert self._lease is not None, "enter() comes first"
        return self._lease.run_id

    def enter(self) -> None:
        """Begin a triage run: from now on jobs can be claimed."""
        self._lease = self._database.retry(lambda: _Lease(self.renew))
        self._database.asks_again = True
        self._database.transact(self.expire)

    def leave(self) -> None:
        """End the triage run and give all claims back."""
        lease, self._lease = self._lease, None
        self._database.asks_again = False
        if lease is None:
            return
        lease.stop()

        def end(connection: sa.Connection) -> None:
            connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.night == lease.run_id))
            connection.execute(sa.delete(NIGHTS).where(NIGHTS.c.night == lease.run_id))

        with contextlib.suppress(ServiceError):  # then the lease runs out by itself
            self._database.transact(end)

    def renew(self, run_id: str) -> None:
        """Renew the lease of a triage run."""
        lease = self._database.upsert(
            NIGHTS,
            night=run_id,
            machine=name_machine(),
            process=name_process(os.getpid()),
            expires=self._database.clock + LEASE_S,
        )
        self._database.execute_once(lease)

    def expire(self, connection: sa.Connection) -> None:
        """Remove triage runs whose process is dead or whose lease has run out, and their claims."""
        here = sa.select(NIGHTS.c.night, NIGHTS.c.process).where(NIGHTS.c.machine == name_machine())
        dead = [run_id for run_id, process in connection.execute(here) if not is_alive(process)]
        over = NIGHTS.c.night.in_(dead) | (NIGHTS.c.expires < self._database.clock)
        connection.execute(sa.delete(NIGHTS).where(over))
        connection.execute(sa.delete(CLAIMS).where(CLAIMS.c.night.not_in(sa.select(NIGHTS.c.night))))

    def take(self, connection: sa.Connection, locations: Sequence[str]) -> list[str]:
        """Claim jobs that no living triage has; give those that are ours now."""
        # In order: two triages that claim the same jobs, each in an order of its own, would wait for each other.
        keys = sorted({plain_text(location) for location in locations})
        rows = [{"location": key, "night": self.run_id} for key in keys]
        ours = set(connection.execute(self._claim, rows).scalars())
        return [location for location in locations if plain_text(location) in ours]

    def end(self, connection: sa.Connection, locations: Sequence[str]) -> set[str]:
        """End claims; give those of the jobs that were ours until now."""
        given = {plain_text(location): location for location in locations}
        ended = sa.delete(CLAIMS).where(CLAIMS.c.location.in_(given) & (CLAIMS.c.night == self.run_id))
        return {given[key] for key in connection.execute(ended.returning(CLAIMS.c.location)).scalars()}


class _Lease:
    """Renews a lease from a thread for as long as this process lives."""

    def __init__(self, renew: Callable[[str], None]) -> None:
        self.run_id = uuid.uuid4().hex
        self._renew = renew
        self._ended = threading.Event()
        renew(self.run_id)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew it no more."""
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        """Renew it every few seconds; a renewal that fails is tried again before the lease runs out."""
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._renew(self.run_id)
