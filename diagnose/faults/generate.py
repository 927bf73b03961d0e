"""Make a job with known faults: its trace, and the truth about it.

Enters: a `JobSpec` and faults. Leaves: a `Job`. What a fault costs is found by mending it and running the job again.
"""

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import diagnose.faults
from diagnose.errors import UsageError
from diagnose.faults.fault import DrawFault, Fault, Worker
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.model.trace import Ints


@dataclasses.dataclass(frozen=True, slots=True)
class FaultTruth:
    """What is true about one fault of a job.

    Attributes
    ----------
    cause : str
    workers : tuple of (dp rank, stage)
    stages : tuple of int
        Where it happens; both empty where it happens everywhere.
    onset_step, recovery_step : int or None
        First step number with it, and first without it again; None: from the beginning, to the end.
    strength : float
        In the unit of the cause.
    settings : dict
        All fields of the fault.
    step_time_without_s : float
        Mean step time, seconds, with this fault alone mended and all others as they are.
    recoverable : float
        Part of the mean step time that comes back with this fault alone mended: 1 - step_time_without_s / step_time_s.
    """

    cause: str
    workers: tuple[Worker, ...]
    stages: tuple[int, ...]
    onset_step: int | None
    recovery_step: int | None
    strength: float
    settings: dict[str, Any]
    step_time_without_s: float
    recoverable: float


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """What is true about a job.

    Attributes
    ----------
    step_time_s, step_time_without_any_s : float
        Mean step time, seconds, as recorded and with all faults mended.
    """

    spec: JobSpec
    faults: tuple[FaultTruth, ...]
    step_time_s: float
    step_time_without_any_s: float

    def to_json(self) -> str:
        """Write the truth as JSON; same job, same bytes."""
        fields = {"job_id": self.spec.name, **dataclasses.asdict(self)}
        return json.dumps(fields, indent=1) + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A generated job."""

    trace: pa.Table
    truth: Truth


def generate(spec: JobSpec, faults: Sequence[Fault] = ()) -> Job:
    """Make a job with some faults, or a healthy one.

    Parameters
    ----------
    spec : JobSpec
    faults : sequence of Fault
        In any order.

    Returns
    -------
    Job

    Raises
    ------
    UsageError
        A fault that happens where, or when, the job has nothing.
    """
    for fault in faults:
        _check_time(spec, fault)
    healthy = draw_inputs(spec)
    inputs = _compose(healthy, faults, mended=())
    times = simulate(inputs)
    step_time_s = float(times.step_s.mean())
    without = [_mean_step(_compose(healthy, faults, mended=(i,))) for i in range(len(faults))]
    without_any = step_time_s
    if faults:
        everything = tuple(range(len(faults)))
        without_any = without[0] if len(faults) == 1 else _mean_step(_compose(healthy, faults, mended=everything))
    numbers = spec.step_numbers()
    truths = tuple(_truth(spec, fault, numbers, step_time_s, s) for fault, s in zip(faults, without, strict=True))
    return Job(record(inputs, times), Truth(spec, truths, step_time_s, without_any))


def write_job(job: Job, path: Path) -> None:
    """Write a job's trace, and beside it `<name>.truth.json`; each appears under its name only when it is whole."""
    truth = path.with_name(path.name.removesuffix(".parquet") + ".truth.json")
    for target in (path, truth):
        partial = target.with_name(f".{target.name}.partial")
        if target == path:
            pq.write_table(job.trace, partial, compression="zstd", compression_level=9)
        else:
            partial.write_text(job.truth.to_json())
        partial.replace(target)


def list_causes() -> dict[str, DrawFault]:
    """Find every cause: the files of this folder that have `draw_fault`, by name.

    >>> "worker-fault" in list_causes()
    True
    """
    found: dict[str, DrawFault] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(diagnose.faults.__path__)):
        if not module.startswith("_"):
            draw = getattr(importlib.import_module(f"diagnose.faults.{module}"), "draw_fault", None)
            if draw is not None:
                found[module.replace("_", "-")] = draw
    return found


def _compose(healthy: Inputs, faults: Sequence[Fault], *, mended: tuple[int, ...]) -> Inputs:
    """Let the faults happen one after the other, some of them mended."""
    inputs = healthy
    for i, fault in enumerate(faults):
        inputs = fault.mend(inputs) if i in mended else fault.apply(inputs)
    return inputs


def _mean_step(inputs: Inputs) -> float:
    return float(simulate(inputs).step_s.mean())


def _check_time(spec: JobSpec, fault: Fault) -> None:
    """Refuse an onset or recovery outside of the job."""
    for name, index in (("onset", fault.onset), ("recovery", fault.recovery)):
        if index is not None and not 0 <= index < spec.steps:
            raise UsageError(f"{name} is {index}; expected an index below {spec.steps} steps", where=fault.cause)


def _truth(spec: JobSpec, fault: Fault, numbers: Ints, step_time_s: float, without_s: float) -> FaultTruth:
    """Say what is true about one fault."""
    return FaultTruth(
        cause=fault.cause,
        workers=fault.workers(spec),
        stages=fault.stages(spec),
        onset_step=int(numbers[fault.onset]) if fault.onset else None,
        recovery_step=None if fault.recovery is None else int(numbers[fault.recovery]),
        strength=fault.strength,
        settings=dataclasses.asdict(fault),
        step_time_without_s=without_s,
        recoverable=1.0 - without_s / step_time_s,
    )


def random_faults(spec: JobSpec, rng: np.random.Generator, causes: Sequence[str] = ()) -> list[Fault]:
    """Draw faults of the causes given, or else nothing (one job in four) or one of any cause.

    Parameters
    ----------
    spec : JobSpec
    rng : numpy.random.Generator
    causes : sequence of str

    Returns
    -------
    list of Fault
        Those among them that the job can have.
    """
    known = list_causes()
    names = list(causes)
    if not names and rng.random() < 0.75:
        names = [str(rng.choice(sorted(known)))]
    drawn = [known[name](spec, rng) for name in names]
    return [fault for fault in drawn if fault is not None]
