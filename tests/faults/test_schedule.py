"""Jobs under GPipe and zero-bubble, and models laid out layer by layer: times that one can add in the head."""

import dataclasses

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.compute_order import order_computes
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec, count_rows
from diagnose.model.optype import Op
from tests.uneven_layers import UnevenLayers

#: Forward 1 s, backward 2 s, all else takes no time.
BY_HAND = JobSpec(
    pp=2,
    dp=1,
    microbatches=2,
    steps=2,
    forward_s=1.0,
    backward_ratio=2.0,
    transfer_s=0.0,
    collective_s=0.0,
    optimizer_s=0.0,
    launch_delay_s=0.0,
    host_gap_s=0.0,
    noise=0.0,
)


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
def test_gpipe_by_hand(p2p: str) -> None:
    """Stage 0 F 0-1, 1-2; stage 1 F 1-2, 2-3, B 3-5, 5-7; stage 0 B 5-7, 7-9."""
    times = simulate(draw_inputs(dataclasses.replace(BY_HAND, p2p=p2p, schedule="gpipe")))
    assert times.step_s.tolist() == [9.0, 9.0]


def test_zero_bubble_by_hand() -> None:
    """Input and weight gradients 1 s each.

    Stage 1 F0 1-2, B0 2-3, F1 3-4, B1 4-5, W0 5-6, W1 6-7; stage 0 F0 0-1, F1 1-2, B0 3-4, W0 4-5, B1 5-6, W1 6-7.
    """
    inputs = draw_inputs(dataclasses.replace(BY_HAND, schedule="zero-bubble"))
    times = simulate(inputs)
    assert times.step_s.tolist() == [7.0, 7.0]
    backwards = inputs.programme.is_op(Op.BACKWARD)
    stages = inputs.programme.stage[backwards]
    assert times.start_s[backwards, 0, 0][stages == 1].tolist() == [2.0, 4.0, 5.0, 6.0]
    assert times.start_s[backwards, 0, 0][stages == 0].tolist() == [3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("stage", range(4))
def test_zero_bubble_holds_no_more_than_1f1b(stage: int) -> None:
    """No stage has more microbatches between forward and weight gradients than 1F1B's first stage between forward and backward."""
    held, most, total = 0, 0, 8
    for op, number in order_computes(JobSpec(pp=4, microbatches=total, schedule="zero-bubble"), stage):
        held += (op == Op.FORWARD) - (number >= total)
        most = max(most, held)
    assert held == 0 and most == 4


@pytest.mark.parametrize(("weight_share", "step_s"), [(0.0, 9.0), (1.0, 7.0)])
def test_the_split_of_a_backward(weight_share: float, step_s: float) -> None:
    """No weight gradients is 1F1B: 9 s; nothing but them lets stage 1 end after its first forward's start and all its work: 7 s."""
    spec = dataclasses.replace(BY_HAND, schedule="zero-bubble", weight_share=weight_share)
    work = draw_inputs(spec).work_s.sum(axis=0)
    assert np.allclose(work, 2 * 2 * 3.0)
    assert simulate(draw_inputs(spec)).step_s.tolist() == [step_s, step_s]


def test_layers_by_hand() -> None:
    """Five layers and three, where four take 1 s forward; the loss is worth one more: 1.25 s and 1 s."""
    fault = UnevenLayers(layers=(5, 3), last=(1.0, 0.0))
    inputs = fault.apply(draw_inputs(BY_HAND))
    forwards = inputs.programme.is_op(Op.FORWARD)
    assert inputs.work_s[forwards, 0, 0].tolist() == [1.25, 1.25, 1.0, 1.0]
    backwards = inputs.programme.is_op(Op.BACKWARD)
    assert inputs.work_s[backwards, 0, 0].tolist() == [2.5, 2.5, 1.5, 1.5]
    mended = fault.mend(draw_inputs(BY_HAND))
    assert mended.work_s[forwards, 0, 0].tolist() == [1.125] * 4
    assert fault.stages(BY_HAND) == (0,)
    assert fault.strength == pytest.approx(1.25 / 1.125)


def test_what_makes_no_sense_is_refused() -> None:
    """Each message says what was found and what was expected."""
    with pytest.raises(UsageError, match=r"schedule is 'gippe'; expected one of 1f1b, eager, gpipe, zero-bubble"):
        JobSpec(schedule="gippe")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="with vpp 2; expected vpp 1"):
        JobSpec(schedule="gpipe", vpp=2)
    with pytest.raises(UsageError, match=r"weight_share is 1\.5"):
        JobSpec(weight_share=1.5)
    with pytest.raises(UsageError, match="layers of 3 virtual stages; the job has 2"):
        UnevenLayers(layers=(1, 2, 3)).apply(draw_inputs(BY_HAND))


def test_weight_gradients_are_rows_of_their_own() -> None:
    """Where a backward is split, the trace has as many gradients of weights as of inputs, numbered alike."""
    spec = dataclasses.replace(BY_HAND, schedule="zero-bubble")
    inputs = draw_inputs(spec)
    frame = record(inputs, simulate(inputs)).to_pandas()
    assert len(frame) == count_rows(spec)
    split = [frame[frame["optype"] == name].reset_index(drop=True) for name in ("backward-compute", "backward-weight")]
    places = ["step", "dp_rank", "stage", "seq_id", "mb_id"]
    assert split[0][places].equals(split[1][places])
    assert (split[1]["start_ts"] >= split[0]["start_ts"] + split[0]["duration"] - 1e-6).all()
