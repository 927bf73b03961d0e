"""Jobs of whole layers, measured as far as fixes of the pipeline look at them, and the truth about other layouts and schedules.

The truth is the generator's own event simulation of the same job, which shares nothing with the replay.
"""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from diagnose.faults.fault import Fault
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.model.analysis import Analysis, Suspects
from diagnose.trace.load import load_trace
from diagnose.whatif.components.between_steps import measure_between
from diagnose.whatif.observed import Observed, observe
from diagnose.whatif.removal import Removal
from diagnose.whatif.scenarios import prepare
from diagnose.whatif.take_apart import take_apart
from tests.jobs import to_file
from tests.uneven_layers import UnevenLayers


@dataclasses.dataclass(frozen=True, slots=True)
class Layered:
    """A measured job; `removal` replays it."""

    analysis: Analysis
    observed: tuple[Observed, ...]
    removal: Removal

    def price(self, *changes: Any) -> float:
        """Mean seconds a step with some changes."""
        return float(self.removal.price(changes).mean())


def look(source: Path | BinaryIO, layers: tuple[int, ...] | None = None) -> Layered:
    """Measure a trace; `layers` are those of each virtual stage, as metadata would say."""
    trace = load_trace(source, name="job.parquet")
    observed, evidence, _ = observe(trace, prepare(trace))
    job = dataclasses.replace(trace.job, layers_per_stage=layers)
    trace = dataclasses.replace(trace, evidence=evidence, job=job)
    breakdown = take_apart(observed, evidence, n_stages=trace.n_stages)
    removal = Removal(observed, breakdown, n_stages=trace.n_stages, between_s=measure_between(trace, observed))
    unseen: Any = None  # by fixes of the pipeline
    analysis = Analysis(
        trace=trace,
        what_if=unseen,
        breakdown=breakdown,
        gains=removal.gains(),
        transfers=unseen,
        features={},
        courses={},
        suspects=Suspects(),
        fidelity=unseen,
        filled_share=0.0,
        clock_offset_s=unseen,
        clocks_apart=False,
        clocks_move=False,
        price=removal.price,
        sample=removal.sample,
        timelines=unseen,
        date_worker=unseen,
        split_clean=unseen,
    )
    return Layered(analysis, observed, removal)


@cache
def measure_layered(spec: JobSpec, fault: UnevenLayers, *others: Fault) -> Layered:
    """Generate a job of whole layers, with other faults, and measure it, once."""
    inputs = fault.apply(draw_inputs(spec))
    for other in others:
        inputs = other.apply(inputs)
    return look(to_file(record(inputs, simulate(inputs))), fault.layers)


def true_step_s(spec: JobSpec, fault: UnevenLayers) -> float:
    """Mean seconds a step that the generator gives."""
    return float(simulate(fault.apply(draw_inputs(spec))).step_s.mean())


def draw_layered(i: int) -> tuple[JobSpec, UnevenLayers]:
    """Draw a pipelined job whose layers are split evenly, with an embedding and a loss worth up to four layers."""
    rng = np.random.default_rng([77, i])
    while (spec := random_spec(rng, max_rows=25_000)).pp < 2:
        pass
    each = max(int(rng.integers(4, 17)) // spec.vpp, 1)
    first, last = rng.uniform(0.0, 0.5, 2).tolist(), rng.uniform(0.3, 4.0, 2).tolist()
    return spec, UnevenLayers(layers=(each,) * spec.n_virtual, first=tuple(first), last=tuple(last))


def run_otherwise(spec: JobSpec, fault: UnevenLayers, schedule: str, chunks: int) -> tuple[JobSpec, UnevenLayers]:
    """Give the same job under another schedule, its layers split evenly over other chunks."""
    name: Any = "1f1b" if schedule == "interleaved" else schedule
    other = dataclasses.replace(spec, schedule=name, vpp=chunks, forward_s=spec.forward_s * spec.vpp / chunks)
    each: Any = sum(fault.layers) / other.n_virtual
    return other, dataclasses.replace(fault, layers=(each,) * other.n_virtual)
