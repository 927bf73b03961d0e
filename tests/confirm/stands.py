"""Diagnoses whose causes name machines, results made by hand, and programs that stand in for those of a cluster."""

from pathlib import Path
from typing import Any

import msgspec.structs

from diagnose.model.confirmation import HostResult, Measured, Skipped
from diagnose.model.diagnosis_document import DiagnosisDocument
from diagnose.model.place import Link, Where, Worker
from tests.report.examples import worker_fault

HOSTS = tuple(f"node-{n}" for n in range(16))


def document(
    cause: str = "worker-fault",
    where: Where | None = None,
    hosts: tuple[str, ...] | None = HOSTS,
    job_id: str = "pretrain-7b",
    confidence: float = 0.8,
) -> DiagnosisDocument:
    """Make a diagnosis of a job of 128 ranks on 16 machines with one cause, by default a slow worker on node-3, rank 27."""
    found = worker_fault().to_document()
    place = where or Where(workers=(Worker(3, 0, 27, "node-3"),))
    blamed = msgspec.structs.replace(found.causes[0], cause=cause, where=place, confidence=confidence)
    job = msgspec.structs.replace(found.job, hosts=hosts, job_id=job_id, world_size=128)
    return msgspec.structs.replace(found, causes=(blamed,), job=job)


def link(one: int, other: int) -> Where:
    """Blame the link of two machines."""
    ends = [Worker(n, 0, 8 * n, f"node-{n}") for n in (one, other)]
    return Where(workers=tuple(ends), links=(Link(*ends),))


def result(
    host: str, role: str = "control", job: str = "pretrain-7b", *, skipped: Any = (), **figures: Any
) -> HostResult:
    """Make a result; a figure is a value, what a test says, or both by card."""
    measured = []
    for name, given in figures.items():
        for of, value in (given if isinstance(given, dict) else {"": given}).items():
            is_said = isinstance(value, bool)
            measured.append(
                Measured(name.replace("_", "-"), of, None if is_said else value, value if is_said else None)
            )
    return HostResult(
        schema="diagnose-confirm/1",
        job=job,
        host=host,
        role=role,
        began_s=1.7e9,
        ended_s=1.7e9 + 60,
        measured=tuple(measured),
        skipped=tuple(Skipped(*one) for one in skipped),
    )


def machine(host: str, role: str = "control", *, gemm: float = 600.0, **more: Any) -> HostResult:
    """Make the result of a machine with eight cards of which all burn alike, whose processor and memory are as others'."""
    cards = {str(n): gemm + 2 * n for n in range(8)}  # TFLOP/s
    sound = {"cpu": 20.0, "steal": 0.0, "run_queue": 0.01, "memory": 90.0, "dcgm": True}
    return result(host, role, **({"gemm": cards} | sound | more))


def put_program(folder: Path, name: str, body: str) -> None:
    """Write a program of a few lines of shell."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)
