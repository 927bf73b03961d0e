"""What tests of causes share: generated jobs taken through the pipeline, with all that lies between trace and diagnosis kept."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from diagnose import pipeline
from diagnose.faults.fault import Fault
from diagnose.faults.generate import Job, generate
from diagnose.faults.spec import JobSpec
from diagnose.judge.rule import Judgement
from diagnose.judge.rules import RuleSet, load_rules
from diagnose.model.analysis import Analysis
from diagnose.model.components import Breakdown, Gains
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.model.trace import Trace
from diagnose.whatif.clocks import Clocks
from diagnose.whatif.observed import Observed
from diagnose.whatif.removal import Removal
from diagnose.whatif.scenarios import Prepared
from tests.jobs import to_file


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A diagnosis, and everything that the pipeline measured on the way there."""

    trace: Trace
    prepared: tuple[Prepared, ...]
    observed: tuple[Observed, ...]
    clocks: Clocks
    breakdown: Breakdown
    removal: Removal
    analysis: Analysis
    diagnosis: Diagnosis

    @property
    def gains(self) -> Gains:
        """What comes back when components are removed."""
        return self.analysis.gains


@cache
def built_in() -> RuleSet:
    """Read the rules that ship with the program."""
    return load_rules()


def measure(source: pa.Table | Path, **options: Any) -> Measured:
    """Diagnose a job and keep what each stage of the pipeline made of it."""
    kept: dict[str, Any] = {}

    def keep(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def kept_call(*args: Any, **named: Any) -> Any:
            kept[name] = call(*args, **named)
            return kept[name]

        return kept_call

    with contextlib.ExitStack() as stack:
        for name in ("load_trace", "prepare", "observe", "take_apart", "Removal", "analyse_job"):
            stack.enter_context(mock.patch.object(pipeline, name, keep(name, getattr(pipeline, name))))
        file = source if isinstance(source, Path) else to_file(source)
        diagnosis = pipeline.diagnose_job(Request(file, name="job.parquet", **options))
    observed, *_, clocks = kept["observe"]
    return Measured(
        kept["load_trace"],
        kept["prepare"],
        observed,
        clocks,
        kept["take_apart"],
        kept["Removal"],
        kept["analyse_job"],
        diagnosis,
    )


@cache
def measured_file(path: Path) -> Measured:
    """Measure a trace on disk, once."""
    return measure(path)


@cache
def make(spec: JobSpec, *faults: Fault) -> Job:
    """Generate a job, once."""
    return generate(spec, faults)


@cache
def measured(spec: JobSpec, *faults: Fault) -> Measured:
    """Generate and measure a job, once."""
    return measure(make(spec, *faults).trace)


def diagnosed(spec: JobSpec, *faults: Fault) -> Diagnosis:
    """Generate and diagnose a job, once."""
    return measured(spec, *faults).diagnosis


def diagnose_table(table: pa.Table, **options: Any) -> Diagnosis:
    """Diagnose a table as if it came from a file."""
    return pipeline.diagnose_job(Request(to_file(table), name="job.parquet", **options))


def judge(analysis: Analysis) -> list[Judgement]:
    """Let the built-in rules judge."""
    return [rule.judge(analysis.features) for rule in built_in().rules]


def causes(diagnosis: Diagnosis) -> list[str]:
    """List the causes found, largest share first."""
    return [cause.cause for cause in diagnosis.causes]


def culprits(diagnosis: Diagnosis, cause: str) -> list[tuple[int, int]]:
    """List the workers named for a cause as (dp, pp), worst first."""
    (found,) = [c for c in diagnosis.causes if c.cause == cause]
    return [(worker.dp, worker.pp) for worker in found.where.workers]


def set_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Replace a column, metadata kept."""
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def scale_times(table: pa.Table, factor: float) -> pa.Table:
    """Write the times in another unit, in double precision."""
    for name in ("start_ts", "duration"):
        table = set_column(table, name, table[name].to_numpy().astype("float64") * factor)
    return table


def shapley_of_two(both: float, without_first: float, without_second: float, without_any: float) -> Sequence[float]:
    """Share the time that two faults cost together out between them, from the step times of four runs."""
    total = both - without_any
    first = ((both - without_first) + (without_second - without_any)) / 2.0
    return first / total, 1.0 - first / total
