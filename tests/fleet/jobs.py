"""Jobs of a fleet whose figures one can add in the head."""

import math
from typing import Any

from diagnose.model.fleet import FleetCause, FleetJob
from diagnose.model.place import Where, Worker

DAY_S = 86_400.0


def cause(name: str = "worker-fault", *, share: float | None = 1.0, recoverable: float = 0.1, host: str | None = None,
          who: str = "platform", fingerprint: str = "f", dp: int = 0) -> FleetCause:  # fmt: skip
    """Make a cause; with a host, it blames a worker there."""
    where = Where() if host is None else Where(workers=(Worker(dp, 0, host=host),), hosts=(host,))
    return FleetCause(name, f"title of {name}", where, share, recoverable, who, fingerprint, "replace-worker")


def job(location: str = "/a", *causes: FleetCause, wasted: float | None = 10.0, **fields: Any) -> FleetJob:
    """Make a job of 100 GPU hours that straggles where it has causes."""
    known: dict[str, Any] = {
        "folder": location.rpartition("/")[0] or "/",
        "when_s": 0.0,
        "diagnosed_at_s": 0.0,
        "job_id": location.strip("/"),
        "n_gpus": 128,
        "sizes": (4, 4, 8, 1, 1),
        "verdict": "straggling" if causes else "healthy",
        "slowdown": 1.25,
        "hours_analysed": 100.0,
        "hours_wasted": wasted,
        "hours_recoverable": 5.0 if causes else 0.0,
        "discrepancy": 0.01,
        "m_w": 0.0,
        "m_s": 0.0,
        "causes": causes,
    }
    return FleetJob(location, **known | fields)


def failed(location: str, kind: str = "input", reason: str = "no trace") -> FleetJob:
    """Make a job that has no diagnosis."""
    return FleetJob(location, "/", 0.0, 0.0, failure=kind, reason=reason)


def close(a: float, b: float) -> bool:
    """Say whether two sums are equal but for rounding."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
