"""Jobs with a trace and telemetry of the same machines, whose faults and sub-causes are known.

Enters: a seed and a number. Leaves: a `Case`, the same whatever other cases are drawn.
"""

import dataclasses
import io
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.faults.fault import Fault
from diagnose.faults.generate import Job, generate, random_faults
from diagnose.faults.spec import JobSpec, random_spec
from tests.clusters.bridge import Beside, SubCause, draw_sub_cause, telemetry_of
from tests.clusters.load import LOADS, STILL

#: What is drawn: a fault that telemetry shows; a job without a fault of a machine, in which a sound worker will be blamed by hand;
#: a fault that telemetry shows beside one that is no machine's.
Purpose = Literal["sub-cause", "veto", "sound"]
PURPOSES: Final[tuple[Purpose, ...]] = ("sub-cause", "veto", "sound")
#: How often a fault is of each cause.
CAUSES: Final = {"worker-fault": 0.5, "network-fault": 0.3, "data-loading": 0.2}
#: Causes that blame no machine.
OTHERS: Final = ("stage-imbalance", "sequence-imbalance", "checkpoint-stall")
#: Rows of a trace: small jobs are diagnosed in a second.
MAX_ROWS: Final = 30_000
#: Machines without which there are no peers to compare with; cards of one.
LEAST_HOSTS, MOST_CARDS = 4, 16
#: A fault costs at least this part of the step: what costs less the trace need not say.
LEAST_COST: Final = 0.05
#: Samples that are taken while a fault is there, at least.
LEAST_SAMPLES: Final = 5
#: Draws until a job can have what it is to have.
_TRIES: Final = 200
#: What dcgm-exporter's default-counters.csv leaves commented out, or does not have.
_NOT_STOCK: Final = frozenset(
    {
        "gpu_throttle_reasons",
        "gpu_thermal_violation_s",
        "gpu_power_violation_s",
        "gpu_power_limit_w",
        "gpu_pcie_generation",
        "gpu_pcie_width",
        "gpu_ecc_corrected",
        "gpu_ecc_uncorrected",
    }
)
#: Sub-causes of cards that something else still tells where those are missing; memory errors show in remapped rows, hours later.
_STOCK: Final = frozenset({"thermal", "power-cap", "clock-locked", "pcie", "xid"})


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes
    ----------
    purpose : str
    job : Job
    faults : tuple of Fault
        The first is the one that telemetry shows, where one is.
    sub_cause : str or None
        Of the first fault.
    beside : Beside
        Its telemetry; the clock is that of the trace.
    is_stock : bool
        Cards have what dcgm-exporter exports by default, and no more.
    """

    purpose: Purpose
    job: Job
    faults: tuple[Fault, ...]
    sub_cause: SubCause | None
    beside: Beside
    is_stock: bool

    def write_trace(self) -> io.BytesIO:
        """Write its trace as Parquet."""
        file = io.BytesIO()
        pq.write_table(self.trace, file)
        file.seek(0)
        return file

    @property
    def trace(self) -> pa.Table:
        """The trace by the time of day."""
        table = self.job.trace
        start_s = table["start_ts"].to_numpy().astype(np.float64)
        at = table.schema.get_field_index("start_ts")
        moved = pa.array(start_s - start_s.min() + self.beside.began_s)
        return table.set_column(at, "start_ts", moved)


def draw_case(seed: int, i: int, purpose: Purpose = "sub-cause") -> Case:
    """Draw case i of a seed.

    Raises
    ------
    RuntimeError
        No job that can have the fault was drawn.
    """
    rng = np.random.default_rng([seed, i, PURPOSES.index(purpose)])
    for _ in range(_TRIES):
        spec = _draw_spec(rng)
        cause = str(rng.choice(list(CAUSES), p=list(CAUSES.values())))
        causes: Sequence[str] = {
            "sub-cause": (cause,),
            "veto": (() if rng.random() < 0.3 else ("stage-imbalance",)),
            "sound": (cause, str(rng.choice(OTHERS))),
        }[purpose]
        faults = random_faults(spec, rng, causes) if causes else []
        if len(faults) < len(causes):
            continue
        job = generate(spec, faults)
        if purpose != "veto" and job.truth.faults[0].recoverable < LEAST_COST:
            continue
        sub_cause = None if purpose == "veto" else draw_sub_cause(faults[0], spec, rng)
        course = getattr(faults[0], "course", "") if sub_cause is not None else ""
        if sub_cause == "clock-locked" and course == "ramp":
            continue  # a clock that falls little by little is not locked
        is_stock = bool(rng.random() < 1 / 3) and (sub_cause is None or sub_cause in _STOCK)
        names = [name for name in (*LOADS, *STILL, "gpu_temperature_c") if not (is_stock and name in _NOT_STOCK)]
        beside = telemetry_of(job, faults, [sub_cause], metrics=names, noise=float(rng.uniform(0.5, 1.5)))
        if (
            sub_cause is not None
            and beside.reasons[0].until_s - beside.reasons[0].from_s < LEAST_SAMPLES * beside.interval_s
        ):
            continue  # it is over before anybody looks
        return Case(purpose, job, tuple(faults), sub_cause, beside, is_stock)
    raise RuntimeError(f"no job was drawn for case {i} of seed {seed}")


def _draw_spec(rng: np.random.Generator) -> JobSpec:
    """Draw a job on several machines, whose trace says which and has the time of day."""
    while True:
        spec = random_spec(rng, max_rows=MAX_ROWS)
        per_host = int(rng.choice([1, 2, 4, 8]))
        tp_size = min(spec.tp_size, max(1, MOST_CARDS // (per_host * spec.cp_size)))
        if spec.pp * spec.dp >= LEAST_HOSTS * per_host:
            return dataclasses.replace(spec, workers_per_host=per_host, tp_size=tp_size, absolute_times=True)
