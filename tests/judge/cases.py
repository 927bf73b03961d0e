"""What tests of causes share: generated jobs taken through the pipeline, with all that lies between trace and diagnosis kept."""

import dataclasses
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.faults.fault import Fault
from diagnose.faults.generate import Job, generate
from diagnose.faults.spec import JobSpec
from diagnose.judge.rules import Judgement, RuleSet, load_rules
from diagnose.judge.verdict import Case
from diagnose.model.components import Components, Gains
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.trace import Seconds, Trace
from diagnose.model.whatif import WhatIf
from diagnose.pipeline import diagnose_job, make_case
from diagnose.trace.load import load_trace
from diagnose.whatif.between import measure_between
from diagnose.whatif.components import take_apart
from diagnose.whatif.observed import Observed, observe
from diagnose.whatif.removal import Removal
from diagnose.whatif.scenarios import Prepared, explore, prepare
from tests.jobs import to_file


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Everything that the pipeline measures of a job before it judges."""

    trace: Trace
    prepared: tuple[Prepared, ...]
    what_if: WhatIf
    observed: tuple[Observed, ...]
    offset_s: Seconds
    components: Components
    removal: Removal
    gains: Gains
    case: Case


@cache
def built_in() -> RuleSet:
    """Read the rules that ship with the program."""
    return load_rules()


def measure(source: pa.Table | Path) -> Measured:
    """Take a job through the pipeline up to the judge."""
    trace = load_trace(source if isinstance(source, Path) else to_file(source), name="job.parquet")
    prepared = prepare(trace)
    what_if = explore(trace, prepared)
    observed, offset_s = observe(trace, prepared)
    components = take_apart(observed, trace.evidence, n_stages=trace.n_stages)
    removal = Removal(observed, components, n_stages=trace.n_stages, between_s=measure_between(trace, observed))
    gains = removal.gains([rule.components for rule in built_in().rules])
    case = make_case(trace, what_if, components, gains)
    return Measured(trace, prepared, what_if, observed, offset_s, components, removal, gains, case)


@cache
def make(spec: JobSpec, *faults: Fault) -> Job:
    """Generate a job, once."""
    return generate(spec, faults)


@cache
def measured(spec: JobSpec, *faults: Fault) -> Measured:
    """Generate and measure a job, once."""
    return measure(make(spec, *faults).trace)


@cache
def diagnosed(spec: JobSpec, *faults: Fault) -> Diagnosis:
    """Generate and diagnose a job, once."""
    return diagnose_table(make(spec, *faults).trace)


def diagnose_table(table: pa.Table, **options: Any) -> Diagnosis:
    """Diagnose a table as if it came from a file."""
    return diagnose_job(to_file(table), name="job.parquet", **options)


def judge(case: Case) -> list[Judgement]:
    """Let the built-in rules judge."""
    return [rule.judge(case.features) for rule in built_in().rules]


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


def content(table: pa.Table) -> bytes:
    """Give the bytes of the table as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def shapley_of_two(both: float, without_first: float, without_second: float, without_any: float) -> Sequence[float]:
    """Share the time that two faults cost together out between them, from the step times of four runs."""
    total = both - without_any
    first = ((both - without_first) + (without_second - without_any)) / 2.0
    return first / total, 1.0 - first / total
