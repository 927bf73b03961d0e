"""Kinds of computes: a stage that mixes them is not uneven, and what is wrong with a job is no kind."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec, Schedule
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.whatif.computes import gather_computes
from diagnose.whatif.kinds import measure_kinds
from tests.judge.cases import measure

DUAL = JobSpec(pp=4, vpp=2, dp=4, microbatches=12, steps=8, p2p="asynchronous", schedule="dualpipev", seed=3)
MERGED = dataclasses.replace(DUAL, schedule="zb-v", merges_weights=True)


def kinds_of(spec: JobSpec, *faults: Fault) -> list[list[float]] | None:
    """List the ratios of the kinds of each direction, two digits."""
    observed = measure(generate(spec, faults).trace).observed
    kinds = measure_kinds(observed, gather_computes(observed, spec.pp), spec.pp)
    return None if kinds is None else [sorted(set(np.round(ratios.ravel(), 2).tolist())) for ratios in kinds]


@pytest.mark.parametrize(
    "fault",
    [None, WorkerFault(places=((1, 2),), slowdown=1.5), StageImbalance(stage=1), SequenceImbalance(layout="sorted")],
    ids=lambda fault: fault.cause if fault else "healthy",
)
def test_kinds_are_those_of_the_schedule(fault: Fault | None) -> None:
    """Beside another compute all take 1.3 times as long, a gradient of inputs is half of a backward; whatever is wrong."""
    faults = () if fault is None else (fault,)
    off = 0.0 if fault is None else 0.06
    dual = kinds_of(DUAL, *faults)
    assert dual is not None
    assert dual[0] == pytest.approx([1.0 / 1.3, 1.0], abs=0.01 + off)
    assert dual[1] == pytest.approx([0.5 / 1.3, 1.0 / 1.3, 1.0], abs=0.01 + off)
    assert np.allclose(dual[2], 1.0, atol=0.03)
    merged = kinds_of(MERGED, *faults)
    assert merged is not None and merged[:2] == [[1.0], [1.0]]
    assert merged[2] == pytest.approx([1.0, 2.0, 3.0], abs=0.02 + 5 * off)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_where_all_are_alike_nothing_is_changed(schedule: Schedule) -> None:
    """Each backward split, or none: one kind of each direction, also where some documents are longer in every step."""
    spec = dataclasses.replace(DUAL, schedule=schedule)
    assert kinds_of(spec) is None
    assert kinds_of(spec, SequenceImbalance(layout="sorted", quadratic_share=0.6)) is None
