"""The rows of the store: the headline of a job, and one row a cause.

Enters: a diagnosis as `Diagnosis.to_dict` gives it, or the reason why there is none. Leaves: flat rows, a field a
column.
"""

import dataclasses
import json
from typing import Any

from diagnose.model.cause import When
from diagnose.model.fingerprint import find_machine, name_family


@dataclasses.dataclass(frozen=True, slots=True)
class JobRow:
    """One job: what it was made from, its headline numbers, or why it has none.

    `status` is diagnosed or failed; `failure` the kind of failure (see `work.Failure`) and `reason` one line on it. `name` is what
    all runs of the job share, `hosts` a JSON list. Times in seconds, ratios as plain numbers; None where not known.
    """

    location: str
    status: str
    identity: str | None = None
    content: str | None = None
    version: str | None = None
    rules: str | None = None
    classifier: str | None = None
    min_speedup: float | None = None
    failure: str | None = None
    reason: str | None = None
    size_bytes: int | None = None
    job_id: str | None = None
    owner: str | None = None
    framework: str | None = None
    gpu_type: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    n_gpus: int | None = None
    dp_size: int | None = None
    pp_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None
    vpp_size: int | None = None
    n_steps: int | None = None
    n_ops: int | None = None
    verdict: str | None = None
    slowdown: float | None = None
    waste: float | None = None
    recorded_step_s: float | None = None
    simulated_step_s: float | None = None
    ideal_step_s: float | None = None
    clean_step_s: float | None = None
    gpu_hours_analysed: float | None = None
    gpu_hours_wasted: float | None = None
    discrepancy: float | None = None
    replay_error: float | None = None
    m_w: float | None = None
    m_s: float | None = None
    n_causes: int | None = None
    top_cause: str | None = None
    top_recoverable: float | None = None
    name: str | None = None
    hosts: str | None = None

    @property
    def family(self) -> str:
        """The key that all runs of the job share."""
        return name_family(
            name=self.name or self.job_id,
            owner=self.owner,
            framework=self.framework,
            sizes=(self.dp_size, self.pp_size, self.tp_size, self.cp_size, self.vpp_size),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause of a job, the first in the report has `place` 1; lists of workers, stages, hosts and links as JSON.

    `machine` is the host that a fault stays with; None where it is the job's. `fingerprint` is what a finding is made of; None
    where the log of the whole run says that it is over: nobody has to mend it.
    """

    location: str
    place: int
    cause: str
    title: str
    confidence: float | None
    share: float | None
    recoverable: float | None
    workers: str
    stages: str
    hosts: str
    links: str
    pattern: str | None
    onset_step: int | None
    recovery_step: int | None
    period_steps: float | None
    fix: str | None
    predicted_step_s: float | None
    predicted_speedup: float | None
    fingerprint: str | None
    machine: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RunRow:
    """A run of a job: what it was made from, and when it ran.

    `family` is the key that all runs of the job share; `began_at` and `ended_at` are None where the metadata does not say them,
    `seen_at` is the end, or when it was diagnosed; `noted_at` is when `diagnose tickets` first met it, `came_at` when the
    triage began that first diagnosed it.
    """

    location: str
    content: str | None
    identity: str | None
    family: str
    verdict: str | None
    began_at: float | None
    ended_at: float | None
    seen_at: float
    noted_at: float
    came_at: float


def job_row(location: str, found: dict[str, Any]) -> JobRow:
    """Make the row of a diagnosed job from what `--format json` prints, where every number is finite or None."""
    job, causes = found["job"], found["causes"]
    return JobRow(
        location=location,
        status="diagnosed",
        **{key: found["made_by"][key] for key in ("version", "rules", "classifier")},
        **{key: job[key] for key in ("job_id", "owner", "framework", "gpu_type", "started_at", "finished_at")},
        **{key: job[key] for key in ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size")},
        **{f"n_{key}": job[key] for key in ("gpus", "steps", "ops")},
        **{key: found[key] for key in ("verdict", "slowdown", "waste")},
        **{f"{key}_step_s": found["step_time"][key] for key in ("recorded", "simulated", "ideal", "clean")},
        **{f"gpu_hours_{key}": found["gpu_hours"][key] for key in ("analysed", "wasted")},
        **{key: found["fidelity"][key] for key in ("discrepancy", "replay_error")},
        **{key: found["what_if"][key] for key in ("m_w", "m_s")},
        n_causes=len(causes),
        top_cause=causes[0]["cause"] if causes else None,
        top_recoverable=causes[0]["recoverable"] if causes else None,
        name=job["name"],
        hosts=None if job["hosts"] is None else json.dumps(job["hosts"]),
    )


def is_from_log(found: dict[str, Any]) -> bool:
    """Say whether a diagnosis, as `--format json` prints it, is of a log alone."""
    return found.get("log") is not None and not found["job"]["ops"]


def cause_rows(location: str, found: dict[str, Any]) -> tuple[CauseRow, ...]:
    """Make the rows of the causes of a diagnosed job, in the order of the report."""
    rows = []
    is_whole = is_from_log(found)
    for place, cause in enumerate(found["causes"], start=1):
        best = cause["fixes"][0] if cause["fixes"] else {}
        where: dict[str, Any] = {
            key: json.dumps(cause["where"][key]) for key in ("workers", "stages", "hosts", "links")
        }
        when = cause["when"]
        hosts = (*cause["where"]["hosts"], *(worker.get("host") for worker in cause["where"]["workers"]))
        rows.append(
            CauseRow(
                location=location,
                place=place,
                **{key: cause[key] for key in ("cause", "title", "confidence", "share", "recoverable")},
                **where,
                **{key: when[key] for key in ("pattern", "onset_step", "recovery_step", "period_steps")},
                fix=best.get("fix"),
                predicted_step_s=best.get("predicted_step_time"),
                predicted_speedup=best.get("predicted_speedup"),
                fingerprint=None if is_whole and When(**when).is_past else cause["fingerprint"],
                machine=find_machine(cause["who"], hosts),
            )
        )
    return tuple(rows)
