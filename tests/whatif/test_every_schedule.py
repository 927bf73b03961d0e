"""Jobs under every schedule: the replay of their own rows takes what the event simulation says, also when computes change."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, Schedule
from diagnose.model.change import Scale
from diagnose.model.optype import DIRECTIONS, Op
from tests.golden_numbers import MEASURED, assert_unchanged
from tests.judge.cases import measure

SCHEDULES: dict[str, tuple[Schedule, int]] = {
    "1f1b": ("1f1b", 1),
    "interleaved": ("1f1b", 2),
    "eight chunks": ("1f1b", 8),
    "eager": ("eager", 1),
    "gpipe": ("gpipe", 1),
    "looped": ("looped", 3),
    "zb-h1": ("zero-bubble", 1),
    "zb-h1 interleaved": ("zero-bubble", 2),
    "zb-h2": ("zb-h2", 1),
    "zb-v": ("zb-v", 2),
    "dualpipev": ("dualpipev", 2),
}
JOB = JobSpec(pp=4, dp=2, microbatches=8, steps=6, transfer_s=3e-3, p2p="asynchronous", seed=5)
SPECS = {
    "streams": JOB,
    "lazy": dataclasses.replace(JOB, p2p="lazy", pp=3, microbatches=6, noise=0.5, separate=True),
    "other names": dataclasses.replace(
        JOB, pp=2, microbatches=12, input_rows="backward-input", merges_weights=True, noise=2.0
    ),
}


@pytest.mark.parametrize("job", SPECS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_predicted_step_is_the_simulated_one(name: str, job: str) -> None:
    """As recorded, and with all computes half as long again or a quarter shorter: within 0.5%; and nothing is said."""
    schedule, vpp = SCHEDULES[name]
    spec = dataclasses.replace(SPECS[job], schedule=schedule, vpp=vpp)
    inputs = draw_inputs(spec)
    m = measure(generate(spec).trace)
    assert m.gains.replayed_s == pytest.approx(simulate(inputs).step_s.mean(), rel=0.005)
    computes = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)
    for factor in (1.5, 0.75):
        change = Scale(frozenset(int(op) for op in DIRECTIONS), np.full((1, 1, 1), factor))
        truth = float(simulate(inputs.with_work(computes, factor)).step_s.mean())
        assert float(m.removal.price((change,)).mean()) == pytest.approx(truth, rel=0.005)
    assert (m.diagnosis.verdict, m.diagnosis.causes) == ("healthy", ())
    assert_unchanged(m.diagnosis, MEASURED, f"schedules/{name}, {job}")


@pytest.mark.parametrize("merges_weights", [False, True])
def test_documents_sorted_by_length_are_no_kind_of_compute(merges_weights: bool) -> None:
    """Under DualPipeV the first microbatches, the longest, run beside nothing: the documents are named all the same."""
    spec = dataclasses.replace(JOB, pp=3, vpp=2, dp=4, microbatches=12, steps=8, schedule="dualpipev", seed=4)
    spec = dataclasses.replace(spec, merges_weights=merges_weights)
    m = measure(generate(spec, [SequenceImbalance(layout="sorted", quadratic_share=0.2)]).trace)
    assert [cause.cause for cause in m.diagnosis.causes] == ["sequence-imbalance"]
