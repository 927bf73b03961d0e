"""Make a job with known faults: its trace, and the truth about it.

Enters: a `JobSpec`, faults and decoys. Leaves: a `Job`. What a fault costs is found by mending it and running the job
again; decoys stay.
"""

import dataclasses
import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diagnose.errors import UsageError
from diagnose.faults.catalogue import list_cause_files
from diagnose.faults.decoy import Decoy, HiddenDecoy, settle
from diagnose.faults.draw_decoys import draw_decoys
from diagnose.faults.fault import DrawFault, Fault, Worker, choose_kind
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import NOISE, JobSpec
from diagnose.faults.world import draw_world, name_world
from diagnose.model.optype import EVIDENCE, NAMES
from diagnose.model.trace import TOKEN_COLUMNS, Seconds

#: How many of ten random jobs are healthy, and have one, two, three faults, as far as their shapes can have them.
N_FAULTS_SHARES = (0.2, 0.46, 0.23, 0.11)
#: How many shapes are drawn for causes before fewer of them do.
MAX_SHAPES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class FaultTruth:
    """What is true about one fault of a job."""

    cause: str
    #: The cause and its kind, as `Fault.full_kind`.
    kind: str
    #: Each (dp rank, stage).
    workers: tuple[Worker, ...]
    #: Where it happens; both empty where it happens everywhere.
    stages: tuple[int, ...]
    #: First step number with it, and first without it again; None: from the beginning, to the end.
    onset_step: int | None
    recovery_step: int | None
    #: It happens every so many steps; None: it has no period.
    period_steps: int | None
    #: In the unit of the cause.
    strength: float
    #: All fields of the fault.
    settings: dict[str, Any]
    #: Mean step time, seconds, with this fault alone mended and all others as they are.
    step_time_without_s: float
    #: Part of the mean step time that comes back with this fault alone mended: 1 - step_time_without_s / step_time_s.
    recoverable: float
    #: Part of the mean step time with all other faults mended that comes back when this one is mended too.
    recoverable_last: float
    #: Whether anything in the trace can tell it from the job's normal.
    tellable: bool
    #: Whether anything in the trace can tell its workers from others.
    place_tellable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """What is true about a job."""

    spec: JobSpec
    faults: tuple[FaultTruth, ...]
    #: Mean step time, seconds, as recorded and with all faults mended.
    step_time_s: float
    step_time_without_any_s: float
    #: What looks like a fault in it and is none.
    decoys: tuple[str, ...] = ()
    #: Features of its world, by the names of `world`.
    world: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the truth as JSON; same job, same bytes."""
        fields = {"job_id": self.spec.name, **dataclasses.asdict(self)}
        return json.dumps(fields, indent=1) + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A generated job."""

    trace: pa.Table
    truth: Truth


def generate(
    spec: JobSpec, faults: Sequence[Fault] = (), decoys: Sequence[Decoy] = (), *, healthy: Inputs | None = None
) -> Job:
    """Make a job with some faults, or a healthy one.

    Parameters
    ----------
    faults : sequence of Fault
        In any order.
    decoys : sequence of Decoy
        What is no fault, in any order. One that cannot be hidden in this job is left out.
    healthy : Inputs, optional
        Times of the job without any of them, where they are not to be drawn.

    Raises
    ------
    UsageError
        A fault that happens where, or when, the job has nothing.
    """
    for fault in faults:
        _check_time(spec, fault)
    healthy = draw_inputs(spec) if healthy is None else healthy
    everything = frozenset(range(len(faults)))
    present = []
    for decoy in sorted(decoys, key=lambda d: isinstance(d, HiddenDecoy)):  # what hides, hides behind all others
        mendings = {frozenset[int](), everything}
        settled = settle(decoy, [functools.partial(_run_with, healthy, faults, mended) for mended in mendings])
        if settled is not None:
            present.append(settled.name)
            healthy = settled.apply(healthy)
    inputs = _compose(healthy, faults, mended=frozenset())
    times = simulate(inputs)
    steps_s = _MeanSteps(healthy, faults, {frozenset(): float(times.step_s.mean())})
    truths = tuple(_truth(spec, fault, i, steps_s) for i, fault in enumerate(faults))
    truth = Truth(spec, truths, steps_s[frozenset()], steps_s[everything], tuple(present), name_world(spec))
    trace = record(inputs, times)
    return Job(trace if spec.evidence else strip_evidence(trace), truth)


def strip_evidence(table: pa.Table) -> pa.Table:
    """Leave out of a trace what not every tracer records: evidence rows and token columns; the metadata stay.

    Collections of garbage after the last compute, which are simulated operations, are left out too.
    """
    names = pa.array([NAMES[op] for op in EVIDENCE])
    kept = table.filter(pc.invert(pc.is_in(table["optype"].cast(pa.string()), names)))
    return kept.drop_columns([name for name in TOKEN_COLUMNS if name in kept.column_names])


def write_job(job: Job, path: Path) -> None:
    """Write a job's trace, and beside it `<name>.truth.json`; each appears under its name only when it is whole."""
    for target in (path, name_truth(path)):
        partial = target.with_name(f".{target.name}.partial")
        if target == path:
            pq.write_table(job.trace, partial, compression="zstd", compression_level=9)
        else:
            partial.write_text(job.truth.to_json())
        partial.replace(target)


def name_truth(path: Path) -> Path:
    """Name the file with the truth about a trace.

    >>> name_truth(Path("jobs/job-1.parquet")).name
    'job-1.truth.json'
    """
    return path.with_name(path.name.removesuffix(".parquet") + ".truth.json")


def list_causes() -> dict[str, DrawFault]:
    """List how to draw a fault of each cause, by name."""
    return {name: file.draw for name, file in list_cause_files().items()}


def _compose(healthy: Inputs, faults: Sequence[Fault], *, mended: frozenset[int]) -> Inputs:
    """Let the faults happen one after the other, some of them mended."""
    inputs = healthy
    for i, fault in enumerate(faults):
        inputs = fault.mend(inputs) if i in mended else fault.apply(inputs)
    return inputs


def _run_with(healthy: Inputs, faults: Sequence[Fault], mended: frozenset[int], decoy: Decoy) -> Seconds:
    """Run a job with one more decoy, and give its step times."""
    return simulate(_compose(decoy.apply(healthy), faults, mended=mended)).step_s


class _MeanSteps(dict[frozenset[int], float]):
    """Mean step time, seconds, with some faults mended; run once for each set of them."""

    def __init__(self, healthy: Inputs, faults: Sequence[Fault], known: dict[frozenset[int], float]) -> None:
        super().__init__(known)
        self.healthy, self.faults = healthy, faults

    @property
    def everything(self) -> frozenset[int]:
        """All faults."""
        return frozenset(range(len(self.faults)))

    def __missing__(self, mended: frozenset[int]) -> float:
        inputs = _compose(self.healthy, self.faults, mended=mended)
        self[mended] = mean_s = float(simulate(inputs).step_s.mean())
        return mean_s


def _check_time(spec: JobSpec, fault: Fault) -> None:
    """Refuse an onset or recovery outside of the job."""
    for name, index in (("onset", fault.onset), ("recovery", fault.recovery)):
        if index is not None and not 0 <= index < spec.steps:
            raise UsageError(f"{name} is {index}; expected an index below {spec.steps} steps", where=fault.cause)


def _truth(spec: JobSpec, fault: Fault, index: int, steps_s: _MeanSteps) -> FaultTruth:
    """Say what is true about one fault."""
    numbers = spec.step_numbers()
    without_s, others = steps_s[frozenset({index})], steps_s.everything - {index}
    period = getattr(fault, "period_steps", None)
    return FaultTruth(
        cause=fault.cause,
        kind=fault.full_kind,
        workers=fault.workers(spec),
        stages=fault.stages(spec),
        onset_step=int(numbers[fault.onset]) if fault.onset else None,
        recovery_step=None if fault.recovery is None else int(numbers[fault.recovery]),
        period_steps=None if period is None else int(period),
        strength=fault.strength,
        settings=dataclasses.asdict(fault),
        step_time_without_s=without_s,
        recoverable=1.0 - without_s / steps_s[frozenset()],
        recoverable_last=1.0 - steps_s[steps_s.everything] / steps_s[others],
        tellable=fault.tellable(spec),
        place_tellable=fault.place_tellable(spec),
    )


def random_faults(spec: JobSpec, rng: np.random.Generator, causes: Sequence[str] = ()) -> list[Fault]:
    """Draw faults of the causes given, or else of random causes: mostly one, sometimes none, two or three.

    A cause may come with a kind of it, as `worker-fault/replica`. Causes that the job cannot have are left out.
    """
    known = list_causes()
    drawn = []
    for name in causes or draw_causes(rng):
        cause, _, kind = name.partition("/")
        drawn.append(known[cause](spec, rng, kind=kind or None))
    return [fault for fault in drawn if fault is not None]


def draw_causes(rng: np.random.Generator) -> tuple[str, ...]:
    """Draw different causes, as many as a random job has: mostly one, sometimes none, two or three."""
    known = sorted(list_causes())
    n_faults = int(rng.choice(len(N_FAULTS_SHARES), p=N_FAULTS_SHARES))
    return tuple(rng.choice(known, size=min(n_faults, len(known)), replace=False).tolist())


def draw_kinds(rng: np.random.Generator, causes: Sequence[str], without: Collection[str] = ()) -> tuple[str, ...]:
    """Draw a kind of each cause that is given without one, by how often it is to be; a cause with none left is left out."""
    files, named = list_cause_files(), []
    for cause in causes:
        kinds = (
            {kind: n for kind, n in files[cause].kinds.items() if f"{cause}/{kind}" not in without}
            if "/" not in cause
            else {}
        )
        if "/" in cause:
            named.append(cause)
        elif kinds:
            named.append(f"{cause}/{choose_kind(kinds, rng)}")
    return tuple(named)


def draw_job(
    seed: int,
    i: int,
    *,
    noise: tuple[float, float] = NOISE,
    evidence: bool = True,
    causes: Sequence[str] = (),
    world: str | None = None,
    without: Collection[str] = (),
) -> tuple[JobSpec, list[Fault], list[Decoy]]:
    """Draw job i of a corpus: the same whatever other jobs are drawn.

    The causes and their kinds are drawn first, and then a world that can have them, so that all causes are equally frequent. Faults
    and decoys come last.

    Parameters
    ----------
    seed, i : int
        Of the corpus, and of the job in it.
    noise : (float, float)
        Limits of the noise; its logarithm is uniform.
    evidence : bool
        The trace has evidence rows and token columns. Without, it is the same job in all else.
    causes : sequence of str
        Of these instead of random causes; one may come with a kind of it, as `worker-fault/replica`.
    world : str, optional
        A feature that its world has.
    without : collection of str
        Features that its world does not have, and kinds of faults (`worker-fault/replica`) that are not drawn.

    Returns
    -------
    spec : JobSpec
    faults : list of Fault
    decoys : list of Decoy
        For `generate`.
    """
    rng = np.random.default_rng([seed, i])
    names = draw_kinds(rng, tuple(causes) or draw_causes(rng), without)
    best: tuple[JobSpec, list[Fault]] | None = None
    for _ in range(MAX_SHAPES):
        spec = draw_world(rng, noise=noise, only=world, without=without)
        faults = random_faults(spec, rng, names) if names else []
        if best is None or len(faults) > len(best[1]):
            best = spec, faults
        if len(faults) == len(names):
            break
    assert best is not None
    spec, faults = best
    spec = dataclasses.replace(spec, job_id=f"job-{seed}-{i:05d}", evidence=evidence)
    return spec, faults, draw_decoys(spec, rng, [fault.cause for fault in faults])
