"""Stores of many jobs in a moment: real diagnoses of the fixtures, under other names, with other sizes, owners, hosts and times."""

import functools
import hashlib
import json
import random

import sqlalchemy as sa

from diagnose.model.plain import to_json
from diagnose.triage.database import plain_text
from diagnose.triage.rows import JobRow, cause_rows, job_row
from diagnose.triage.schema import TIMES
from diagnose.triage.store import FinishedJob, Store
from diagnose.triage.worker import Outcome
from tests import fixture_jobs

FIXTURES = tuple(fixture_jobs.FIXTURES)
#: 2026-03-01T03:00:00Z, the night of the newest jobs.
NEWEST_S = 1_772_334_000.0
DAY_S = 86_400.0
OWNERS = ("alice", "bob", "carol", None)
#: This host is at fault wherever it is, in every second job.
BAD_HOST = "gpu-007"


@functools.cache
def diagnosed(name: str) -> str:
    """Write the diagnosis of a fixture as JSON, so that nobody changes it for others."""
    return to_json(fixture_jobs.diagnosed(name).to_dict())


def vary(name: str, i: int, seed: int = 1) -> dict:
    """Make a job of another size with other hosts out of a fixture's diagnosis."""
    rng = random.Random(f"{seed}-{i}")
    found = json.loads(diagnosed(name))
    scale = 2 ** rng.randrange(3, 9)
    job = found["job"]
    job |= {
        "job_id": f"{name}-{i:04}",
        "owner": OWNERS[i // 3 % len(OWNERS)],
        "gpus": 16 * scale,
        "world_size": 16 * scale,
    }
    job |= {"tp_size": scale, "framework": rng.choice(["Megatron-LM", "torchtitan"]), "gpu_type": "H800"}
    job["hosts"] = sorted({BAD_HOST, *(f"gpu-{n:03}" for n in rng.sample(range(256), 15))})[:16]
    more = rng.lognormvariate(0, 0.6)
    found["slowdown"] = 1 + (found["slowdown"] - 1) * more
    found["waste"] = 1 - 1 / found["slowdown"]
    hours = found["gpu_hours"]
    hours["analysed"] *= scale * 200
    hours["wasted"] *= scale * 200
    by_step = found["what_if"]["by_step"]
    found["what_if"]["by_step"] = {step: 1 + (value - 1) * more for step, value in by_step.items()}
    for cause in found["causes"]:
        family = f"{job['framework']} {scale} {cause['cause']}"
        cause["fingerprint"] = hashlib.sha256(family.encode()).hexdigest()[:16]
        if cause["who"] in {"platform", "hardware"}:
            host = BAD_HOST if BAD_HOST in job["hosts"] and i % 2 else rng.choice(job["hosts"])
            cause["where"]["hosts"] = [host]
            for worker in cause["where"]["workers"]:
                worker |= {"host": host, "dp": rng.randrange(4)}
    return found


def put(store: Store, location: str, found: dict | None, *, at_s: float, content: str | None = None, **failed) -> None:
    """Write a job, diagnosed at a moment, or failed."""
    if found is None:
        outcome = Outcome(JobRow(location, "failed", **failed))
    else:
        row = job_row(location, found)
        row = JobRow(
            **{f: getattr(row, f) for f in JobRow.__slots__} | {"content": content or location, "min_speedup": 1.02}
        )
        outcome = Outcome(row, cause_rows(location, found), to_json(found), took_s=1.0)

    def write(connection: sa.Connection) -> None:
        store._put(connection, [FinishedJob(location, outcome)], [location])
        connection.execute(sa.update(TIMES).where(TIMES.c.location == plain_text(location)).values(diagnosed_at=at_s))

    store.transact(write)


def fill(url: str, n_jobs: int, *, n_days: int = 28) -> None:
    """Fill a store: one job in ten has failed, the others are varied fixtures over some weeks."""
    with Store(url) as store:
        for i in range(n_jobs):
            at_s = NEWEST_S - (i * 7919 % n_jobs) / n_jobs * n_days * DAY_S
            location = f"/traces/{'prod' if i % 3 else 'research'}/run-{i:05}.parquet"
            if i % 11 == 10:
                kind = ("input", "input", "timeout", "memory")[i // 11 % 4]
                put(store, location, None, at_s=at_s, failure=kind, reason=f"{location}: made to fail: {kind}")
            else:
                # Every eleventh has failed: each fixture is at another place in turn.
                put(store, location, vary(FIXTURES[(i + i // 11) % len(FIXTURES)], i), at_s=at_s)
