"""A watch of one or more simulated jobs, round by round."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate, list_causes
from diagnose.faults.spec import JobSpec
from diagnose.model.live import LiveEvent, WatchedJob
from diagnose.triage.schema import NIGHTS
from diagnose.triage.store import Store
from diagnose.watch.request import WatchRequest
from diagnose.watch.tell import Teller
from diagnose.watch.views import View
from diagnose.watch.watch import Watch
from tests.watch.recorded import SimulatedClock

#: A job whose windows take a twentieth of a second.
SMALL = JobSpec(pp=1, dp=4, microbatches=2, contiguous=True, absolute_times=True, workers_per_host=1, job_id="job")


def make_trace(n_steps: int, fault: Fault | None = None, **spec: object) -> pa.Table:
    """Make the trace of a small job, with a fault or sound."""
    return generate(dataclasses.replace(SMALL, steps=n_steps, **spec), [fault] if fault else []).trace


def stretch(trace: pa.Table, ratio: float, first_step: int = 0) -> pa.Table:
    """Make all of a job take so many times as long from a step on."""
    step, start_s, duration_s = (trace[name].to_numpy() for name in ("step", "start_ts", "duration"))
    turn_s = start_s[step >= first_step].min()
    is_late = step >= first_step
    moved = {
        "start_ts": np.where(is_late, turn_s + (start_s - turn_s) * ratio, start_s),
        "duration": np.where(is_late, duration_s * ratio, duration_s),
    }
    for name, values in moved.items():
        trace = trace.set_column(trace.column_names.index(name), name, pa.array(values))
    return trace


def slow_worker(n_steps: int, onset: int, recovery: int | None, **spec: object) -> Fault:
    """Make one worker slow for a while, by half."""
    made = dataclasses.replace(SMALL, steps=n_steps, **spec)
    rng = np.random.default_rng(0)
    fault = list_causes()["worker-fault"](made, rng, onset=onset, strength=1.5, kind="worker")
    assert fault is not None
    return dataclasses.replace(fault, onset=onset, recovery=recovery)


class Watching:
    """A watch that is led by hand."""

    def __init__(
        self, *sources: Path, store: Path, clock: SimulatedClock, views: tuple[View, ...] = (), **asked: object
    ):
        self.clock = clock
        self.printed: list[LiveEvent] = []
        self.complaints: list[str] = []
        self.store = Store(f"sqlite:///{store}")
        self.store.enter()
        request = WatchRequest(sources=tuple(map(str, sources)), **asked)
        teller = Teller(self.store, self.printed.append)
        self.watch = Watch(
            request,
            self.store,
            teller,
            views=views,
            write=self.printed.append,
            complain=self.complaints.append,
            now_s=clock.now_s,
            sleep=clock.sleep,
        )

    def go(self) -> list[WatchedJob]:
        """Go round until nothing is left to do now; a search may take as long as what it has to import."""
        self.clock.at_s += 61.0
        self.watch._search_s = 0.0
        while self.watch.round():
            pass
        return self.watch.jobs()

    def events(self, *kinds: str) -> list[LiveEvent]:
        """List what was printed of some kinds."""
        return [event for event in self.printed if event.event in kinds]

    def kill(self) -> None:
        """Let it end as where it is killed: nothing is given back, and whoever comes finds its process dead."""
        self.store._claims._lease.stop()
        self.store.transact(lambda connection: connection.execute(sa.delete(NIGHTS)))
        self.store._claims._lease = None
        self.store._engine.dispose()

    def close(self) -> None:
        """End it in order."""
        self.watch.close()
        self.store.close()
