"""Computes held up by communication in flight: the wait comes out as such, and removing it is mending it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diagnose.faults.decoys import LongerComputes
from diagnose.faults.generate import generate
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.kernel_queue_contention import KernelQueueContention, Rivals
from diagnose.faults.record import record
from diagnose.faults.simulate import Times, simulate
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import StallKind
from diagnose.whatif.components import queue
from diagnose.whatif.components.queue import _count_behind, find_queue_waits
from diagnose.whatif.contention import Waits
from diagnose.whatif.graph import Barrier
from diagnose.whatif.removal import MATERIAL_SHARE
from diagnose.whatif.waits import WaitGraph, add_waits
from tests.judge.cases import Measured, causes, make, measure, measured

BACKWARD, FORWARD = (Op.BACKWARD,), (Op.FORWARD,)
#: A job whose transfers run beside its computes, and one whose gradients do.
SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, p2p="asynchronous", seed=81)
SEPARATE = JobSpec(pp=4, vpp=2, dp=4, microbatches=8, steps=16, separate=True, p2p="asynchronous", seed=82)
#: One with forwards beside backwards.
DUAL_PIPE = dataclasses.replace(SEPARATE, schedule="dualpipev", seed=83)
#: A predicted gain must come that near to the true one.
GAIN_TOLERANCE = 0.03

#: What waits for what, so long that it matters, in which job.
CASES: dict[str, tuple[JobSpec, KernelQueueContention]] = {
    "backwards behind sends": (SPEC, KernelQueueContention(rivals="sends", held_ops=BACKWARD, slowdown=80.0)),
    "forwards behind sends": (SPEC, KernelQueueContention(rivals="sends", held_ops=FORWARD, slowdown=80.0)),
    "both behind sends": (SPEC, KernelQueueContention(rivals="sends", held_ops=BACKWARD + FORWARD, slowdown=80.0)),
    "backwards behind recvs": (SPEC, KernelQueueContention(rivals="recvs", held_ops=BACKWARD, slowdown=20.0)),
    "backwards behind gradients": (
        SEPARATE, KernelQueueContention(rivals="reduce-scatter", held_ops=BACKWARD, slowdown=25.0)
    ),
    "forwards behind parameters": (
        SEPARATE, KernelQueueContention(rivals="all-gather", held_ops=FORWARD, slowdown=40.0)
    ),
}  # fmt: skip


def held_s(m: Measured) -> np.ndarray:
    """Give the seconds that each compute waited for communication, in it or before it."""
    c = m.breakdown
    return c.stalls.seconds_of(StallKind.QUEUE) + (0.0 if c.queue_wait_s is None else c.queue_wait_s)


def true_hold_s(spec: JobSpec, fault: KernelQueueContention) -> np.ndarray:
    """Run the job and compare the length of its computes with their work: seconds, shape of `Breakdown.compute_s`."""
    inputs = fault.apply(draw_inputs(spec))
    times, programme = simulate(inputs), inputs.programme
    found = np.zeros((2, spec.pp * spec.vpp, spec.microbatches, spec.steps, spec.dp))
    for task in np.flatnonzero(programme.is_op(Op.FORWARD, Op.BACKWARD)).tolist():
        place = int(programme.tasks[task].op == Op.BACKWARD), programme.chunk[task] * spec.pp + programme.stage[task]
        found[(*place, programme.microbatch[task])] = times.end_s[task] - times.start_s[task] - inputs.work_s[task]
    return found


def held_share(m: Measured, direction: int) -> float:
    """Say which part of the computes of a direction waits."""
    return float((held_s(m)[direction] > 0).mean())


# ------------------------------------------------------------------------------------------ the wait comes out


@pytest.mark.parametrize("case", CASES)
def test_what_is_held_waits_as_long_as_it_truly_does(case: str) -> None:
    """The seconds of hold are those that the computes did no work, all in all to a tenth, and one by one where they are long."""
    spec, fault = CASES[case]
    found, true = held_s(measured(spec, fault)), true_hold_s(spec, fault)
    assert found.sum() == pytest.approx(true.sum(), rel=0.1)
    long = true > 0.5 * spec.forward_s
    assert np.median(np.abs(found - true)[long]) < 0.05 * spec.forward_s if long.any() else True
    assert (found[~np.isin(np.arange(2), [op == Op.BACKWARD for op in fault.held_ops])] == 0).all()


@pytest.mark.parametrize("case", ["backwards behind sends", "both behind sends", "forwards behind parameters"])
def test_late_computes_are_held_before_they_start(case: str) -> None:
    """Computes that start late, instead of taking long, have their wait before them, and none in them."""
    spec, fault = CASES[case]
    late = dataclasses.replace(fault, late=True)
    c = measured(spec, late).breakdown
    assert c.queue_wait_s is None or not c.queue_wait_s.any()
    assert (c.stalls.before_s[c.stalls.before == StallKind.QUEUE] > 0).sum() > 50


def test_what_only_some_wait_for_is_found() -> None:
    """Where half of the forwards wait, those are held, and the others are not."""
    spec, fault = CASES["forwards behind sends"]
    half = dataclasses.replace(fault, held_share=0.5)
    found, true = held_s(measured(spec, half))[0], true_hold_s(spec, half)[0]
    long = true > 0.3 * spec.forward_s
    assert long.sum() > 100
    assert (found[long] > 0).mean() > 0.9
    assert (found[true <= 0] > 0).mean() < 0.1


@pytest.mark.parametrize("late", [False, True], ids=["long", "late"])
@pytest.mark.parametrize("case", ["backwards behind recvs", "backwards behind gradients"])
def test_a_few_in_a_hundred_are_found(case: str, late: bool) -> None:
    """Where three computes of a hundred wait, these are held, far above chance, and nearly no others."""
    spec, fault = CASES[case]
    few = dataclasses.replace(fault, held_share=0.03, late=late)
    m, true = measured(spec, few), true_hold_s(spec, fault)
    found = held_s(m)[1]
    assert 0 < (found > 0).sum() < 0.06 * (true[1] > 0).sum()
    assert m.breakdown.queue_deviations > 10.0


@pytest.mark.parametrize("case", ["backwards behind recvs", "both behind sends", "backwards behind gradients"])
@pytest.mark.parametrize("excess", [0.12, 0.3])
def test_long_computes_beside_communication_are_not_held(case: str, excess: float) -> None:
    """Where 40% of the computes are longer by chance, no more end with communication in flight than chance lets them."""
    spec, fault = CASES[case]
    inputs = dataclasses.replace(fault, held_share=0.0).apply(LongerComputes(excess=excess).apply(draw_inputs(spec)))
    m = measure(record(inputs, simulate(inputs)))
    assert m.breakdown.queue_deviations == 0.0
    assert not held_s(m).any()


@pytest.mark.parametrize("case", ["forwards behind sends", "backwards behind recvs", "backwards behind gradients"])
def test_contention_begins_with_its_onset(case: str) -> None:
    """Before the onset no compute is held, and the diagnosis says since when."""
    spec, fault = CASES[case]
    m = measured(spec, dataclasses.replace(fault, onset=6))
    by_step = (held_s(m) > 0).mean(axis=(0, 1, 2, 4))
    assert (by_step[:6] < 0.05 * by_step[6:].mean()).all()
    assert m.analysis.courses["queue"].when.onset_step == int(spec.step_numbers()[6])


def test_where_most_are_held_those_with_more_work_are_too() -> None:
    """Half of the computes are longer by chance: one of 108 whose wait explains nearly all of it is held like all others."""
    spec, fault = CASES["backwards behind gradients"]
    job = generate(spec, [fault], [LongerComputes(share=0.5, excess=0.06)])
    m = measure(job.trace)
    assert np.count_nonzero(held_s(m)) == 108
    assert m.gains.recoverable("queue") == pytest.approx(job.truth.faults[0].recoverable, abs=0.005)


def test_a_worker_slow_in_its_forwards_alone_waits_as_long_as_its_peers() -> None:
    """Its backwards take another part of its forwards than those of its peers, which says nothing of their waits."""
    spec, fault = CASES["backwards behind sends"]
    slow = WorkerFault(kind="forwards", places=((1, 2),), slowdown=1.5, backward_slowdown=1.0)
    job = generate(spec, [fault, slow])
    m = measure(job.trace)
    of_stage_s = held_s(m)[1, 2].mean(axis=(0, 1))
    assert of_stage_s[1] == pytest.approx(np.median(of_stage_s), rel=0.2)
    assert m.gains.recoverable("queue") == pytest.approx(job.truth.faults[0].recoverable, abs=0.01)


# ------------------------------------------------------------------------------------------ removing it is mending it


@pytest.mark.parametrize("late", [False, True], ids=["long", "late"])
@pytest.mark.parametrize("case", CASES)
def test_removing_the_wait_is_mending_it(case: str, late: bool) -> None:
    """The job replayed without its queue takes as long as the job truly mended, in which communication is as slow as before."""
    spec, fault = CASES[case]
    fault = dataclasses.replace(fault, late=late)
    truth, m = make(spec, fault).truth.faults[0], measured(spec, fault)
    assert truth.recoverable > 0.02
    assert m.gains.recoverable("queue") == pytest.approx(truth.recoverable, abs=GAIN_TOLERANCE)


@pytest.mark.parametrize(
    ("late", "spec"),
    [
        (False, JobSpec(pp=4, vpp=4, dp=8, microbatches=4, steps=12, seed=84)),
        (True, JobSpec(pp=2, vpp=4, dp=2, microbatches=2, steps=52, seed=84)),
    ],
    ids=["long", "late"],
)
def test_which_gather_is_in_flight_differs_from_step_to_step(late: bool, spec: JobSpec) -> None:
    """Half of the first forwards wait for the gathers of later chunks: a stage behind them begins then, or while these move."""
    fault = KernelQueueContention(rivals="all-gather", held_ops=FORWARD, slowdown=20.0, held_share=0.5, late=late)
    truth = make(spec, fault).truth.faults[0]
    assert truth.recoverable > 0.02
    assert measured(spec, fault).gains.recoverable("queue") == pytest.approx(truth.recoverable, abs=0.003)


@pytest.mark.parametrize(("late", "held_share"), [(True, 1.0), (True, 0.8), (False, 1.0)])
def test_a_program_that_waits_for_its_sends_looks_the_same(late: bool, held_share: float) -> None:
    """Where no compute begins before the send ahead of it has ended nobody can tell; where some do, or begin and wait, all can."""
    spec, fault = CASES["both behind sends"]
    m = measured(spec, dataclasses.replace(fault, late=late, held_share=held_share))
    (cause,) = [cause for cause in m.diagnosis.causes if cause.cause == "kernel-queue-contention"]
    blocks = late and held_share == 1.0
    assert ((m.diagnosis.features["queue.blocking_doubt"] or 0.0) > 0.4) == blocks == (cause.confidence < 0.7)
    assert [other.cause for other in cause.alternatives] == ["unknown"] * blocks


@pytest.mark.parametrize(("late", "left_s"), [(False, 0.0), (True, 1.0)], ids=["long", "late"])
def test_computes_that_stand_still_with_their_transfers(
    late: bool, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where most of what computes seem to wait for stands out itself they do not wait: something stops both."""
    monkeypatch.setattr("diagnose.whatif.components.queue.FAR_RATIO", 0.0)  # as if most recvs were far shorter
    spec, fault = CASES["backwards behind recvs"]
    m = measured(spec, dataclasses.replace(fault, late=late))
    recvs = [np.flatnonzero(of_types(o.block.nodes.op, (Op.FORWARD_RECV, Op.BACKWARD_RECV))) for o in m.observed]
    excesses = [
        {node: o.block.end_s[node] - o.block.start_s[node] for node in nodes.tolist()}
        for o, nodes in zip(m.observed, recvs, strict=True)
    ]
    shape = m.breakdown.compute_s.shape
    waits, none = (find_queue_waits(m.observed, shape, spec.pp, None, None, each) for each in (({},), excesses))
    assert waits.behind_slow == 0.0 and waits.deviations > 4.0
    assert none.inside_s is None and none.behind_slow == left_s


@pytest.mark.parametrize(("others_s", "behind_s"), [(1.0, 9.0), (8.0, 0.0)])
def test_transfers_that_stand_out_are_far_from_those_of_their_worker(others_s: float, behind_s: float) -> None:
    """A recv of 9 s beside others of 1 s stands out; where a link always takes as long nothing stopped it."""
    n = np.array([0, 1, 2, 3])
    nodes = SimpleNamespace(op=np.where(n == 0, Op.BACKWARD, Op.FORWARD_RECV), stage=np.zeros(4, dtype=int))
    end_s = np.array([12.0, 9.0, others_s, others_s])[:, None, None]
    o: Any = SimpleNamespace(block=SimpleNamespace(nodes=nodes, start_s=np.zeros((4, 1, 1)), end_s=end_s))
    waits = Waits({0: np.full((1, 1), 9.0)}, {0: {1: np.ones((1, 1), dtype=bool)}})
    assert _count_behind([o], [waits], [{1: np.full((1, 1), 8.5)}]) == (behind_s, 9.0)


@pytest.mark.parametrize(("alone_s", "behind_s"), [(1.0, 9.0), (9.0, 0.0)])
def test_transfers_that_are_as_long_where_nothing_waits_did_not_stand_still(alone_s: float, behind_s: float) -> None:
    """One step of twelve waits for a recv of 9 s beside others of 1 s: in the other steps it is short, or as long by itself."""
    nodes = SimpleNamespace(op=np.array([Op.BACKWARD, *[Op.FORWARD_RECV] * 3]), stage=np.zeros(4, dtype=int))
    end_s = np.ones((4, 12, 1))
    end_s[1] = alone_s
    end_s[1, 0] = 9.0
    o: Any = SimpleNamespace(block=SimpleNamespace(nodes=nodes, start_s=np.zeros(end_s.shape), end_s=end_s))
    at = np.arange(12)[:, None] == 0
    waits = Waits({0: np.where(at, 9.0, 0.0)}, {0: {1: at}})
    assert _count_behind([o], [waits], [{1: np.full((12, 1), 8.5)}]) == (behind_s, 9.0)


@pytest.mark.parametrize("case", ["backwards behind recvs", "backwards behind gradients"])
def test_late_computes_whose_hosts_take_a_moment(case: str) -> None:
    """They begin up to 6% of their length after what they waited for has ended, each by another part: they waited all the same."""
    spec, fault = CASES[case]
    job = make(spec, dataclasses.replace(fault, late=True))
    rows = job.trace.to_pandas()
    computes = rows["optype"].astype(str).isin(["forward-compute", "backward-compute"])
    moment_s = np.where(computes, 0.06 * np.random.default_rng(1).random(len(rows)) * rows["duration"], 0.0)
    rows["start_ts"] += moment_s
    rows["duration"] -= moment_s
    m = measure(pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(job.trace.schema.metadata))
    (true,) = job.truth.faults
    assert m.gains.recoverable("queue") == pytest.approx(true.recoverable, abs=0.01)


def test_waits_that_the_steps_do_not_bear_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a replay with the waits misses the recorded steps they are no model of the job: it stays exact, and names nobody."""
    spec, fault = CASES["backwards behind recvs"]
    table = make(spec, fault).trace
    true = measured(spec, fault)
    monkeypatch.setattr(queue, "add_waits", lambda *args: _begin_later(add_waits(*args)))
    m = measure(table)
    assert true.gains.waits_error < MATERIAL_SHARE < m.gains.waits_error
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s)
    assert m.gains.recoverable("queue") == pytest.approx(true.gains.recoverable("queue"), abs=GAIN_TOLERANCE)
    assert [cause.cause for cause in true.diagnosis.causes] == ["kernel-queue-contention"]
    assert "kernel-queue-contention" not in {cause.cause for cause in m.diagnosis.causes}


def _begin_later(waits: WaitGraph | None) -> WaitGraph | None:
    """Let what waits begin a while after what it waits for has ended, longer than it truly does."""
    assert waits is not None
    return dataclasses.replace(waits, delay={node: late_s + 0.05 for node, late_s in waits.delay.items()})


@pytest.mark.parametrize(
    "fault",
    [
        KernelQueueContention(rivals="sends", held_ops=BACKWARD, slowdown=80.0),
        KernelQueueContention(rivals="all-gather", held_ops=FORWARD, slowdown=40.0),
    ],
    ids=["sends", "all-gather"],
)
def test_computes_side_by_side_are_compared_with_their_like(fault: KernelQueueContention) -> None:
    """Under DualPipeV some computes run beside others, and are longer for that alone: who waits is found all the same."""
    truth, m = make(DUAL_PIPE, fault).truth.faults[0], measured(DUAL_PIPE, fault)
    assert truth.recoverable > 0.02
    assert m.gains.recoverable("queue") == pytest.approx(truth.recoverable, abs=0.005)
    assert [cause.cause for cause in m.diagnosis.causes] == ["kernel-queue-contention"]


def test_each_step_is_mended() -> None:
    """Not only their mean: each step without the queue is as long as it is in the mended job."""
    spec, fault = CASES["backwards behind sends"]
    mended_s = simulate(fault.mend(draw_inputs(spec))).step_s
    np.testing.assert_allclose(measured(spec, fault).gains.alone_steps_s["queue"], mended_s, rtol=0.06)


# ------------------------------------------------------------------------------------------ its own gradients

#: Jobs whose last backward of a step has its own gradients reduced within it, from its middle on.
OVERLAPPED_LAST = [JobSpec(pp=pp, dp=4, microbatches=6, steps=20, scatters_within=0.5, seed=5) for pp in (1, 2, 4)]


def last_backwards(inputs: Inputs) -> list[int]:
    """Give the last backward of each stage."""
    last: dict[int, int] = {}
    for task in np.flatnonzero(inputs.programme.is_op(Op.BACKWARD)).tolist():
        last[inputs.programme.tasks[task].stage] = task
    return [last[stage] for stage in sorted(last)]


def reduce_within(spec: JobSpec, longer_s: Any) -> tuple[Inputs, Times]:
    """Run a job whose last backwards take so much longer, and launch their reduction when half of their own work is done."""
    work_s = 2.0 * spec.forward_s
    left = (0.5 * work_s + np.mean(longer_s)) / (work_s + np.mean(longer_s))
    inputs = draw_inputs(dataclasses.replace(spec, scatters_within=float(left)))
    transfer_s, work = inputs.transfer_s.copy(), inputs.work_s.copy()
    transfer_s[inputs.programme.is_op(Op.REDUCE_SCATTER)] = 0.08
    work[last_backwards(inputs)] += longer_s
    inputs = dataclasses.replace(inputs, transfer_s=transfer_s, work_s=work)
    return inputs, simulate(inputs)


def reduction_s(inputs: Inputs, times: Times) -> np.ndarray:
    """Give how long the reduction of each worker takes."""
    return (times.end_s - times.start_s)[np.flatnonzero(inputs.programme.is_op(Op.REDUCE_SCATTER))]


@pytest.mark.parametrize("spec", OVERLAPPED_LAST, ids=lambda spec: f"pp {spec.pp}")
def test_the_last_backward_waits_for_its_own_gradients(spec: JobSpec) -> None:
    """Half of it is done, then it stands still until they are reduced: that is contention, and removing it is mending it."""
    (inputs, times), mended = reduce_within(spec, 0.08), reduce_within(spec, 0.0)[1]
    for _ in range(
        8
    ):  # until the last backwards take as much longer as their reduction does, which their start decides
        inputs, times = reduce_within(spec, reduction_s(inputs, times))
    m = measure(record(inputs, times))
    assert held_s(m)[1].sum() == pytest.approx(reduction_s(inputs, times).sum(), rel=0.05)
    assert m.gains.waits_error == 0.0
    gain = 1.0 - mended.step_s.mean() / times.step_s.mean()
    assert gain > 0.04
    assert m.gains.recoverable("queue") == pytest.approx(gain, abs=0.01)
    (cause,) = m.diagnosis.causes
    assert (cause.cause, cause.confidence > 0.9) == ("kernel-queue-contention", True)


@pytest.mark.parametrize("seed", [5, 6])
@pytest.mark.parametrize("spec", OVERLAPPED_LAST, ids=lambda spec: f"pp {spec.pp}")
def test_a_last_backward_that_is_long_for_its_place_waits_for_nothing(spec: JobSpec, seed: int) -> None:
    """It takes as much longer as the reduction takes on the mean, always, but not in the step and on the worker where it does."""
    spec = dataclasses.replace(spec, seed=seed)
    longer_s = float(reduction_s(*reduce_within(spec, 0.0)).mean())
    m = measure(record(*reduce_within(spec, longer_s)))
    assert m.breakdown.queue_deviations == 0.0
    assert not held_s(m).any()
    m = measure(record(*reduce_within(spec, 0.0)))
    assert m.breakdown.queue_deviations == 0.0


# ------------------------------------------------------------------------------------------ harmless overlap


@pytest.mark.parametrize("slowdown", [1.0, 10.0, 40.0])
@pytest.mark.parametrize("rivals", ["sends", "recvs", "reduce-scatter", "all-gather"])
def test_overlap_that_holds_nobody_up_is_no_contention(rivals: Rivals, slowdown: float) -> None:
    """Where computes run beside communication, however slow it is, none is held."""
    held_ops = FORWARD if rivals == "all-gather" else BACKWARD
    fault = KernelQueueContention(rivals=rivals, held_ops=held_ops, slowdown=slowdown)
    inputs = fault.mend(draw_inputs(SEPARATE))
    m = measure(record(inputs, simulate(inputs)))
    assert held_share(m, 0) + held_share(m, 1) < 0.01
    assert m.gains.recoverable("queue") < 0.005
    assert "kernel-queue-contention" not in [cause.cause for cause in m.diagnosis.causes]


@pytest.mark.parametrize(
    "spec",
    [SPEC, SEPARATE, dataclasses.replace(SPEC, pp=2, dp=8), dataclasses.replace(SPEC, pp=8, dp=2, microbatches=16)],
    ids=["pp 4", "interleaved", "pp 2", "pp 8"],
)
@pytest.mark.parametrize(
    "fault",
    [
        StageImbalance(forward_slowdown=1.8, backward_slowdown=1.5),
        StageImbalance(stage=0, forward_slowdown=2.0, backward_slowdown=2.0),
        WorkerFault(places=((1, 0),), slowdown=1.8),
    ],
    ids=["long last stage", "long first stage", "slow worker"],
)
def test_unevenness_is_no_contention(spec: JobSpec, fault: Any) -> None:
    """Beside a long stage or a slow worker transfers are in flight during most computes, and hold none of them up."""
    m = measured(spec, fault)
    assert held_share(m, 0) + held_share(m, 1) < 0.01
    assert m.gains.recoverable("queue") < 0.005


def test_blocking_transfers_hold_nobody_up() -> None:
    """Where transfers block the worker no compute overlaps any."""
    m = measured(dataclasses.replace(SPEC, p2p="blocking"))
    assert m.breakdown.queue_wait_s is None
    assert "queue" not in m.removal.present()


def test_waits_of_some_steps_are_cut_with_them() -> None:
    """Of waits that differ from step to step those of the steps stay; others are the same in all of them."""
    (o,) = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=8, seed=1)).observed
    n_steps, n_dp = o.block.start_s.shape[1:]
    by_step = np.arange(n_steps * n_dp).reshape(n_steps, n_dp) % 3 == 0
    lanes = (None, by_step[0], by_step)
    graph = dataclasses.replace(o.graph, barriers={4: tuple(Barrier((0,), across_dp=False, lanes=of) for of in lanes)})
    waits = WaitGraph(graph, {4: np.zeros((n_steps, n_dp))})
    always, of_ranks, of_steps = (barrier.lanes for barrier in waits.graph_of(slice(0, n_steps, 3)).barriers[4])
    assert always is None
    np.testing.assert_array_equal(of_ranks, by_step[0])
    np.testing.assert_array_equal(of_steps, by_step[::3])
    assert waits.graph_of(slice(0, n_steps)) is graph


def gathered_ahead(*, waits: bool) -> pa.Table:
    """Let four ranks gather what the next compute needs as each runs, and reduce gradients; computes wait for these or not."""
    rng, rows = np.random.default_rng(1), list[tuple[Any, ...]]()
    for step in range(12):
        at, moved = np.zeros(4), 0.0
        computes = [
            (op, mb, mc) for mb in range(4) for op, mcs in (("forward", (0, 1)), ("backward", (1, 0))) for mc in mcs
        ]
        ends = at + 0.1
        rows += [(step, dp, "params-all-gather", at[dp], 0.1, -1, 0) for dp in range(4)]
        for nth, (op, mb, mc) in enumerate(computes):
            took = (0.2 if op == "forward" else 0.4) * rng.uniform(0.97, 1.03, 4)
            at = ends
            rows += [(step, dp, f"{op}-compute", at[dp], took[dp], mb, mc) for dp in range(4)]
            ends = at + took
            if nth + 1 < len(computes):
                begin = max(moved, at.max() + 0.001)
                moved = begin + 0.08
                rows += [(step, dp, "params-all-gather", begin, 0.08, -1, computes[nth + 1][2]) for dp in range(4)]
            if op == "backward":
                begin = max(moved, ends.max() + 0.001)
                moved = begin + 0.25 * rng.uniform(0.9, 1.1)
                rows += [(step, dp, "grads-reduce-scatter", begin, moved - begin, -1, mc) for dp in range(4)]
                ends = np.full(4, moved) + rng.uniform(0.0, 1e-5, 4) if waits else ends
        rows += [(step, dp, "optimizer", max(moved, ends[dp]), 0.05, -1, -1) for dp in range(4)]
    names = ("step", "dp_rank", "optype", "start_ts", "duration", "mb_id", "mc")
    return pa.table(
        {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        | {"stage": [0] * len(rows)}
    )


@pytest.mark.parametrize("waits", [False, True])
def test_reductions_that_hold_up_computes_where_gathers_are_ahead(waits: bool) -> None:
    """Gathers run beside computes, reductions do not, though no compute needs them: contention, or else a program that waits."""
    found = measure(gathered_ahead(waits=waits)).diagnosis
    assert causes(found) == (["kernel-queue-contention"] if waits else [])
    if waits:
        (cause,) = found.causes
        assert [other.cause for other in cause.alternatives] == ["unknown"]
        assert cause.recoverable > 0.15


def reduced_in_parts(*, held: bool) -> pa.Table:
    """Record four data-parallel ranks that reduce the gradients of the last backward in four parts, each as soon as it is there."""
    rng, rows = np.random.default_rng(9), []
    for step in range(20):
        at = rng.uniform(0.0, 0.002, 4)
        for mb in range(4):
            for op, usual in (("forward", 0.1), ("backward", 0.2)):
                took = usual * rng.uniform(0.97, 1.03, 4)
                begun, moved = at, 0.0
                for _ in range(4 if (op, mb) == ("backward", 3) else 0):
                    at = at + took / 4.0
                    ready = np.maximum(at, moved)
                    moved = ready.max() + 0.06 * rng.uniform(0.9, 1.1)
                    rows += [(step, r, "grads-reduce-scatter", ready[r], moved - ready[r], -1) for r in range(4)]
                    at = np.full(4, moved) if held else at
                at = at if moved else at + took
                rows += [(step, r, f"{op}-compute", begun[r], at[r] - begun[r], mb) for r in range(4)]
        at = np.maximum(at, moved)
        rows += [(step, r, "optimizer-clip-main-grad", at[r], at.max() - at[r] + 1e-3, -1) for r in range(4)]
    names = ("step", "dp_rank", "optype", "start_ts", "duration", "mb_id")
    return pa.table(
        {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        | {"stage": [0] * len(rows)}
    )


def test_gradients_that_are_reduced_in_parts_hold_their_backward_up() -> None:
    """It stands still behind each part, also the last, and works in between; what it would do meanwhile comes back."""
    found, mended = measure(reduced_in_parts(held=True)), measure(reduced_in_parts(held=False))
    assert causes(found.diagnosis) == ["kernel-queue-contention"]
    assert causes(mended.diagnosis) == []
    gain = 1.0 - mended.gains.recorded_s / found.gains.recorded_s
    assert found.gains.recoverable("queue") == pytest.approx(gain, abs=0.01)
    assert gain > 0.08
