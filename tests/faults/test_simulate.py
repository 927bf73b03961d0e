"""The simulation against times that one can add in the head, and against orders written down by hand."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.compute_order import order_computes
from diagnose.faults.inputs import Hold, Inputs, Pause, draw_inputs
from diagnose.faults.programme import Launch, build_programme
from diagnose.faults.simulate import Times, simulate
from diagnose.faults.spec import JobSpec, random_spec
from diagnose.model.optype import Op

#: Forward 1 s, backward 2 s, transfer 0.5 s, optimizer 0.25 s; everything else takes no time.
BY_HAND = JobSpec(
    pp=2,
    dp=1,
    microbatches=2,
    steps=2,
    forward_s=1.0,
    backward_ratio=2.0,
    transfer_s=0.5,
    collective_s=0.0,
    optimizer_s=0.25,
    launch_delay_s=0.0,
    host_gap_s=0.0,
    noise=0.0,
)


def spans(
    inputs: Inputs, times: Times, stage: int, *ops: Op, lane: tuple[int, int] = (0, 0)
) -> list[tuple[str, float, float]]:
    """List (type and number, start, end) of some operations of a stage by start."""
    found = []
    for t, task in enumerate(inputs.programme.tasks):
        if task.stage == stage and task.op in ops:
            found.append((f"{task.op.name} {task.seq}", float(times.start_s[t][lane]), float(times.end_s[t][lane])))
    return sorted(found, key=lambda span: span[1:])


def test_blocking_batches_by_hand() -> None:
    """A batch of a send and a recv starts when the worker is free, ends when both have moved, and blocks the worker."""
    inputs = draw_inputs(BY_HAND)
    times = simulate(inputs)
    ops = (Op.FORWARD, Op.BACKWARD, Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV, Op.OPTIMIZER)
    assert sorted(spans(inputs, times, 0, *ops)) == [
        ("BACKWARD 0", 5.0, 7.0),
        ("BACKWARD 1", 8.5, 10.5),
        ("BACKWARD_RECV 0", 2.5, 5.0),
        ("BACKWARD_RECV 1", 7.0, 8.5),
        ("FORWARD 0", 0.0, 1.0),
        ("FORWARD 1", 1.5, 2.5),
        ("FORWARD_SEND 0", 1.0, 1.5),
        ("FORWARD_SEND 1", 2.5, 5.0),
        ("OPTIMIZER 0", 10.5, 10.75),
    ]
    assert sorted(spans(inputs, times, 1, *ops)) == [
        ("BACKWARD 0", 2.5, 4.5),
        ("BACKWARD 1", 6.0, 8.0),
        ("BACKWARD_SEND 0", 4.5, 5.0),
        ("BACKWARD_SEND 1", 8.0, 8.5),
        ("FORWARD 0", 1.5, 2.5),
        ("FORWARD 1", 5.0, 6.0),
        ("FORWARD_RECV 0", 0.0, 1.5),
        ("FORWARD_RECV 1", 4.5, 5.0),
        ("OPTIMIZER 0", 10.5, 10.75),
    ]
    assert times.step_s.tolist() == [10.75, 10.75]


def test_asynchronous_transfers_by_hand() -> None:
    """With streams of their own, transfers hide behind computes and the step is half a second shorter."""
    inputs = draw_inputs(dataclasses.replace(BY_HAND, p2p="asynchronous"))
    times = simulate(inputs)
    assert spans(inputs, times, 0, Op.FORWARD, Op.BACKWARD) == [
        ("FORWARD 0", 0.0, 1.0),
        ("FORWARD 1", 1.0, 2.0),
        ("BACKWARD 0", 5.0, 7.0),
        ("BACKWARD 1", 8.0, 10.0),
    ]
    assert spans(inputs, times, 1, Op.FORWARD_RECV, Op.FORWARD) == [
        ("FORWARD_RECV 0", 0.0, 1.5),
        ("FORWARD 0", 1.5, 2.5),
        ("FORWARD_RECV 1", 2.5, 3.0),
        ("FORWARD 1", 4.5, 5.5),
    ]
    assert times.step_s.tolist() == [10.25, 10.25]


def test_collective_waits_for_the_slowest_rank() -> None:
    """Only where dp ranks meet does a rank that is two seconds late in one step hold up the others, and in that step alone."""
    spec = dataclasses.replace(BY_HAND, dp=2, collective_s=1.0, averages_loss=False)
    inputs = draw_inputs(spec)
    late = inputs.work_s.copy()
    late[
        inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == 0) & (inputs.programme.microbatch == 0), 1, 1
    ] += 2.0
    before, after = simulate(inputs), simulate(dataclasses.replace(inputs, work_s=late))
    assert (after.step_s - before.step_s).tolist() == pytest.approx([0.0, 2.0])
    computes = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)
    assert np.array_equal(after.end_s[computes][:, :, 0], before.end_s[computes][:, :, 0])
    scatter = inputs.programme.is_op(Op.REDUCE_SCATTER)
    assert after.end_s[scatter][:, 1, 0].tolist() == after.end_s[scatter][:, 1, 1].tolist()


def test_loss_average_is_a_barrier_without_a_row() -> None:
    """Where the last stage averages its loss, its layernorm-grads wait for the last compute of the slowest dp rank."""
    spec = dataclasses.replace(BY_HAND, dp=2, averages_loss=True)
    inputs = draw_inputs(spec)
    work_s = inputs.work_s.copy()
    work_s[inputs.programme.is_op(Op.BACKWARD) & (inputs.programme.stage == 1), :, 1] += 3.0
    times = simulate(dataclasses.replace(inputs, work_s=work_s))
    last = np.flatnonzero(inputs.programme.is_op(Op.BACKWARD) & (inputs.programme.stage == 1))[-1]
    layernorm = np.flatnonzero(inputs.programme.is_op(Op.LAYERNORM))
    assert times.start_s[layernorm[1], 0, 0] == times.end_s[last, 0, 1]
    assert times.start_s[layernorm[0], 0, 0] < times.end_s[last, 0, 1]


def test_order_of_1f1b() -> None:
    """A stage runs as many forwards ahead as there are stages behind it, then one forward, one backward."""
    spec = JobSpec(pp=4, microbatches=5)
    orders = [" ".join(f"{c.op.name[0]}{c.number}" for c in order_computes(spec, stage)) for stage in range(4)]
    assert orders == [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ]


def test_order_of_interleaved_1f1b() -> None:
    """Interleaved, model chunks take turns in groups of as many microbatches as stages, backward from the last chunk on."""
    spec = JobSpec(pp=2, vpp=2, microbatches=4)
    found = [f"{c.op.name[0]}{c.chunk}.{c.microbatch}" for c in order_computes(spec, 0)]
    assert " ".join(found) == ("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3")


def test_interleaved_with_as_many_microbatches_as_stages_runs_all_forwards_first() -> None:
    """With one group of microbatches there is no steady phase."""
    order = [c.op for c in order_computes(JobSpec(pp=2, vpp=2, microbatches=2), 1)]
    assert order == [Op.FORWARD] * 4 + [Op.BACKWARD] * 4


def test_batches_of_1f1b_are_those_of_megatron() -> None:
    """In the steady phase a forward-send shares its batch with a backward-recv, and a backward-send with a forward-recv."""
    programme = build_programme(JobSpec(pp=3, dp=1, microbatches=3))
    main = next(s for s in programme.streams if programme.tasks[s[0].tasks[0]].stage == 1)

    def name(launch: Launch) -> str:
        return "+".join(f"{programme.tasks[t].op.name.lower()}{programme.tasks[t].seq}" for t in launch.tasks)

    assert [name(launch) for launch in main][:13] == [
        "forward_recv0",
        "forward0",
        "forward_send0",
        "forward_recv1",
        "forward1",
        "forward_send1+backward_recv0",
        "backward0",
        "backward_send0+forward_recv2",
        "forward2",
        "forward_send2+backward_recv1",
        "backward1",
        "backward_send1",
        "backward_recv2",
    ]


@pytest.mark.parametrize("seed", range(40))
def test_no_job_stands_still(seed: int) -> None:
    """Jobs of every shape run to their end, nothing ends before it starts, and a worker computes one thing at a time."""
    spec = dataclasses.replace(random_spec(np.random.default_rng(seed)), steps=2)
    inputs = draw_inputs(spec)
    times = simulate(inputs)
    assert (times.end_s >= times.start_s).all()
    assert (times.step_s > 0).all()
    for stage in range(spec.pp):
        tasks = np.flatnonzero(inputs.programme.is_op(Op.FORWARD, Op.BACKWARD) & (inputs.programme.stage == stage))
        assert (times.start_s[tasks[1:]] >= times.end_s[tasks[:-1]]).all()


def test_pause_inside_lengthens_and_pause_before_delays() -> None:
    """A pause inside an operation makes it longer; one before it makes it later."""
    inputs = draw_inputs(BY_HAND)
    first = inputs.programme.is_op(Op.FORWARD) & (inputs.programme.stage == 0) & (inputs.programme.microbatch == 0)
    seconds = np.where(first, 3.0, 0.0)[:, None, None] * np.array([1.0, 0.0])[None, :, None]
    (task,) = np.flatnonzero(first)
    inside = simulate(dataclasses.replace(inputs, pauses=(Pause(Op.GC, seconds, "inside", recorded=True),)))
    before = simulate(dataclasses.replace(inputs, pauses=(Pause(Op.DATA_LOAD, seconds, "before", recorded=True),)))
    assert (inside.start_s[task, :, 0].tolist(), inside.end_s[task, :, 0].tolist()) == ([0.0, 0.0], [4.0, 1.0])
    assert (before.start_s[task, :, 0].tolist(), before.end_s[task, :, 0].tolist()) == ([3.0, 0.0], [4.0, 1.0])
    assert inside.step_s.tolist() == before.step_s.tolist() == [13.75, 10.75]


def test_held_kernels_wait_behind_what_is_in_flight() -> None:
    """A held compute has started but does no work until the transfer in flight has ended."""
    inputs = draw_inputs(dataclasses.replace(BY_HAND, p2p="asynchronous"))
    at = {(t.op, t.stage, t.seq): i for i, t in enumerate(inputs.programme.tasks)}
    forward, send = at[Op.FORWARD, 0, 1], at[Op.FORWARD_SEND, 0, 0]
    hold = Hold(forward, (send,), np.array([[True], [False]]))
    times = simulate(dataclasses.replace(inputs, holds=(hold,)))
    assert times.start_s[forward, :, 0].tolist() == [1.0, 1.0]
    assert times.end_s[forward, :, 0].tolist() == [2.5, 2.0]


def test_tail_ends_the_step_later() -> None:
    """What a worker does after its optimizer belongs to the step time."""
    inputs = draw_inputs(BY_HAND)
    tail_s = np.zeros((2, 2, 1))
    tail_s[1, 1] = 5.0
    assert simulate(dataclasses.replace(inputs, tail_s=tail_s)).step_s.tolist() == [10.75, 15.75]
