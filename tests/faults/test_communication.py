"""Faults of the network, of kernels that queue behind it, and of saving: what they change, and what they leave alone."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pytest

from diagnose.errors import UsageError
from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.checkpoint_stall import draw_fault as draw_checkpoint
from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.inputs import Inputs, draw_inputs
from diagnose.faults.kernel_queue_contention import HOLDABLE, KernelQueueContention, list_queues
from diagnose.faults.kernel_queue_contention import draw_fault as draw_contention
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.network_fault import draw_fault as draw_network
from diagnose.faults.programme import build_programme
from diagnose.faults.simulate import Times, simulate
from diagnose.faults.spec import P2P, JobSpec, random_spec
from diagnose.faults.strength import find_strength, measure_cost, quiet_step
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.optype import COMPUTE, DP_COLLECTIVES, NAMES, Op
from diagnose.model.optype import P2P as TRANSFERS

JOB = JobSpec(pp=3, dp=3, microbatches=4, steps=8, noise=0.5, transfer_s=2e-3, seed=5)
#: Interleaved, with transfers and collectives beside computes.
BESIDE = JobSpec(
    pp=2,
    vpp=2,
    dp=2,
    microbatches=8,
    steps=6,
    transfer_s=5e-3,
    collective_s=0.1,
    p2p="asynchronous",
    separate=True,
    seed=6,
)
CARD = NetworkFault(scope="card", dp_rank=1, stage=1, slowdown=8.0)
LINK = NetworkFault(scope="link", dp_rank=2, stage=0, slowdown=8.0)
GROUP = NetworkFault(scope="group", stage=2, slowdown=4.0, onset=2, recovery=5)
NETWORK = (CARD, LINK, GROUP, dataclasses.replace(CARD, share=0.1, slowdown=1.0, stall_s=0.5))
CONTENTION = tuple(KernelQueueContention(rivals=rivals, held_ops=ops, slowdown=2.0) for rivals, ops in HOLDABLE.items())


def run(fault: Fault, spec: JobSpec) -> tuple[Inputs, Times, Times]:
    """Run a job with a fault, and with it mended."""
    healthy = draw_inputs(spec)
    inputs = fault.apply(healthy)
    return inputs, simulate(inputs), simulate(fault.mend(healthy))


def moving_s(inputs: Inputs, times: Times) -> np.ndarray:
    """Say how long each transfer or collective took once all had come; NaN for computes."""
    moving = np.full(times.end_s.shape, np.nan)
    for meeting in inputs.programme.meetings:
        members = list(meeting.members)
        begin = times.start_s[members].max(axis=0)
        begin = begin.max(axis=1, keepdims=True) if meeting.across_dp else begin
        moving[members] = times.end_s[members] - begin
    return moving


@pytest.mark.parametrize("p2p", ["blocking", "asynchronous"])
@pytest.mark.parametrize("fault", NETWORK, ids=lambda f: f"{f.scope}-{f.share}")
def test_network_fault_leaves_computes_alone(fault: NetworkFault, p2p: P2P) -> None:
    """A slow network makes steps longer and no compute."""
    inputs, faulty, mended = run(fault, dataclasses.replace(JOB, p2p=p2p))
    computes = inputs.programme.is_op(*COMPUTE)
    took = [(t.end_s - t.start_s)[computes] for t in (faulty, mended)]
    assert took[0] == pytest.approx(took[1], abs=1e-12)
    assert (faulty.step_s > mended.step_s)[fault.active(JOB)[:, 0]].sum() >= 3


def test_bad_card_slows_its_whole_group() -> None:
    """With one bad card the collectives of its stage take as much longer on all dp ranks, those of other stages do not."""
    spec = dataclasses.replace(JOB, noise=0.0)
    fault = dataclasses.replace(CARD, spread=0.0)
    inputs, faulty, mended = run(fault, spec)
    collectives, stage = inputs.programme.is_op(*DP_COLLECTIVES), inputs.programme.stage
    ratio = moving_s(inputs, faulty) / moving_s(inputs, mended)
    assert ratio[collectives & (stage == 1)] == pytest.approx(8.0)
    assert ratio[collectives & (stage != 1)] == pytest.approx(1.0)


def test_bad_card_slows_what_its_worker_sends_and_receives() -> None:
    """A card spoils every transfer of its worker in both directions, and none of other dp ranks."""
    spec = dataclasses.replace(JOB, noise=0.0, p2p="asynchronous")
    inputs, faulty, mended = run(dataclasses.replace(CARD, spread=0.0), spec)
    here = inputs.programme.is_op(*TRANSFERS) & (inputs.programme.stage == 1)
    ratio = (moving_s(inputs, faulty) / moving_s(inputs, mended))[here]
    assert ratio[:, :, 1] == pytest.approx(8.0)
    assert ratio[:, :, [0, 2]] == pytest.approx(1.0)


def test_bad_link_slows_transfers_between_its_ends_only() -> None:
    """A link has the transfers between two stages of a dp rank and no collective; its ends are the workers."""
    inputs = LINK.apply(draw_inputs(JOB))
    slow = (inputs.transfer_s > 2 * draw_inputs(JOB).transfer_s).all(axis=1)
    assert not slow[:, :2].any()
    tasks = [inputs.programme.tasks[t] for t in np.flatnonzero(slow[:, 2])]
    assert {(t.op, t.stage) for t in tasks} == {(Op.FORWARD_SEND, 0), (Op.BACKWARD_SEND, 1)}
    assert len(tasks) == 2 * JOB.microbatches
    assert LINK.workers(JOB) == ((2, 0), (2, 1))


def test_congestion_begins_and_ends() -> None:
    """A congested group is slow from the onset to the recovery on all dp ranks, in collectives alone."""
    before, after = draw_inputs(JOB), GROUP.apply(draw_inputs(JOB))
    ratio = np.divide(
        after.transfer_s, before.transfer_s, out=np.ones_like(after.transfer_s), where=before.transfer_s > 0
    )
    here = before.programme.is_op(*DP_COLLECTIVES) & (before.programme.stage == 2)
    assert (ratio[here][:, 2:5] > 2).all()
    ratio[here, 2:5] = 1.0
    assert (ratio == 1.0).all()
    assert GROUP.stages(JOB) == (2,) and GROUP.workers(JOB) == ()


def test_flap_leaves_the_median() -> None:
    """Of a flapping card's transfers exactly the share is stuck, for seconds, and the median stays."""
    fault = dataclasses.replace(CARD, slowdown=1.0, stall_s=2.0, share=0.05)
    before, after = draw_inputs(JOB), fault.apply(draw_inputs(JOB))
    assert np.array_equal(after.transfer_s, before.transfer_s)
    of_card = np.flatnonzero(CARD.apply(before).transfer_s[:, 0, 1] != before.transfer_s[:, 0, 1])
    stuck = after.stall_s[of_card, :, 1]
    assert stuck.sum() == after.stall_s.sum()
    stuck = stuck[stuck > 0]
    assert len(stuck) == round(0.05 * len(of_card) * JOB.steps)
    assert np.median(stuck) == pytest.approx(2.0, rel=0.2)
    took = [np.median(moving_s(before, simulate(i))[of_card, :, 1]) for i in (before, after)]
    assert took[1] == pytest.approx(took[0], rel=0.02)


@pytest.mark.parametrize("fault", CONTENTION, ids=lambda f: f.rivals)
def test_held_compute_takes_as_long_as_what_is_in_flight(fault: KernelQueueContention) -> None:
    """A held compute takes its normal time and what is left of the communication when it starts, to the last digit."""
    inputs, faulty, _ = run(fault, BESIDE)
    took = faulty.end_s - faulty.start_s
    n_held = 0
    for task, sources in list_queues(BESIDE, inputs.programme, fault.rivals, fault.held_ops):
        left_s = faulty.end_s[list(sources)].max(axis=0) - faulty.start_s[task]
        assert took[task] == pytest.approx(inputs.work_s[task] + np.maximum(left_s, 0.0), rel=1e-12)
        n_held += int((left_s > 0).sum())
    assert n_held >= BESIDE.steps * BESIDE.dp


@pytest.mark.parametrize("fault", CONTENTION, ids=lambda f: f.rivals)
def test_mended_computes_are_normal_beside_the_same_communication(fault: KernelQueueContention) -> None:
    """Without the queue every compute takes its work alone, and the communication still as long as with it."""
    inputs, faulty, mended = run(fault, BESIDE)
    computes = inputs.programme.is_op(*COMPUTE)
    assert (mended.end_s - mended.start_s)[computes] == pytest.approx(inputs.work_s[computes], abs=1e-12)
    moving = [moving_s(inputs, t)[~computes] for t in (faulty, mended)]
    assert moving[0] == pytest.approx(moving[1], abs=1e-12, nan_ok=True)
    assert faulty.step_s.mean() > 1.002 * mended.step_s.mean()


def test_late_compute_starts_when_the_transfer_has_ended() -> None:
    """In the late variant a compute never starts before what it queues behind has ended, and then takes its normal time."""
    fault = KernelQueueContention(rivals="sends", held_ops=(Op.FORWARD, Op.BACKWARD), slowdown=2.0, late=True)
    inputs, faulty, _ = run(fault, BESIDE)
    starts_at_once = 0
    for task, sources in list_queues(BESIDE, inputs.programme, fault.rivals, fault.held_ops):
        end_s = faulty.end_s[list(sources)].max(axis=0)
        assert (faulty.start_s[task] >= end_s).all()
        starts_at_once += int((faulty.start_s[task] == end_s).sum())
    assert starts_at_once > BESIDE.steps * BESIDE.dp
    computes = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)
    assert (faulty.end_s - faulty.start_s)[computes] == pytest.approx(inputs.work_s[computes], abs=1e-12)


def test_contention_begins_with_its_onset() -> None:
    """Communication is as long before as after; before the onset nothing is held, after it some computes are and some are not."""
    fault = KernelQueueContention(rivals="sends", slowdown=3.0, held_share=0.5, onset=3)
    inputs, faulty, mended = run(fault, BESIDE)
    assert np.array_equal(faulty.step_s[:3], mended.step_s[:3])
    assert (faulty.step_s[3:] > mended.step_s[3:]).all()
    assert (mended.step_s > simulate(draw_inputs(BESIDE)).step_s).all()
    held = np.array([hold.held for hold in inputs.holds])
    assert not held[:, :3].any()
    assert held[:, 3:].mean() == pytest.approx(0.5, abs=0.1)


def test_nobody_waits_in_a_circle() -> None:
    """Of 200 random jobs each runs to its end whatever its computes queue behind."""
    n_run = 0
    for seed in range(200):
        spec = dataclasses.replace(quiet_step(random_spec(np.random.default_rng(seed))), dp=2, p2p="asynchronous")
        programme = build_programme(spec)
        for late, (rivals, ops) in enumerate(HOLDABLE.items()):
            if list_queues(spec, programme, rivals, ops):
                fault = KernelQueueContention(rivals=rivals, held_ops=ops, late=bool(late % 2))
                simulate(fault.apply(draw_inputs(spec)))
                n_run += 1
    assert n_run > 300


def test_contention_needs_something_in_flight() -> None:
    """With blocking transfers, one model chunk and gradients reduced at the end nothing runs beside a compute."""
    assert draw_contention(JOB, np.random.default_rng(1)) is None
    with pytest.raises(UsageError, match="runs beside sends"):
        generate(JOB, [KernelQueueContention()])


@pytest.mark.parametrize("where", ["between", "before", "inside"])
def test_checkpoints_are_taken_at_multiples(where: str) -> None:
    """Steps whose number is a multiple of the interval, gaps of the sampling counted, are longer by the save; no other."""
    spec = dataclasses.replace(JOB, steps=30)
    fault = CheckpointStall(period_steps=4, phase=0, duration_s=3.0, spread=0.0, where=where)  # type: ignore[arg-type]
    _, faulty, mended = run(fault, spec)
    expected = np.where(spec.step_numbers() % 4 == 0, 3.0, 0.0)
    assert 2 < np.count_nonzero(expected) < 20
    assert faulty.step_s - mended.step_s == pytest.approx(expected, abs=0.02)
    assert (faulty.step_s == mended.step_s)[expected == 0].all()


@pytest.mark.parametrize("where", ["between", "before", "inside"])
def test_checkpoint_rows_stand_on_those_who_save(where: str) -> None:
    """Recorded, each save is one row of its length on each worker that saves; unrecorded there is none."""
    fault = CheckpointStall(period_steps=2, duration_s=1.5, where=where, first_rank_only=True, barrier=False)  # type: ignore[arg-type]
    frame = generate(JOB, [fault]).trace.to_pandas()
    rows = frame[frame["optype"] == "checkpoint"]
    assert sorted(zip(rows["step"], rows["dp_rank"], rows["stage"], strict=True)) == [
        (step, 0, stage) for step in JOB.step_numbers() if step % 2 == 0 for stage in range(3)
    ]
    assert rows["duration"].between(1.0, 2.2).all() and rows["duration"].nunique() > 3
    unrecorded = generate(JOB, [dataclasses.replace(fault, recorded=False)]).trace.to_pandas()
    assert not (unrecorded["optype"] == "checkpoint").any()


def test_barrier_makes_all_wait_for_the_slowest() -> None:
    """Behind a barrier all saves of a step last as long as the longest, and the step is no longer for it."""
    fault = CheckpointStall(period_steps=2, duration_s=1.5, spread=0.3)
    with_it, without = (
        dataclasses.replace(fault, barrier=barrier).apply(draw_inputs(JOB)) for barrier in (True, False)
    )
    slowest_s = np.broadcast_to(without.tail_s.max(axis=(0, 2), keepdims=True), with_it.tail_s.shape)
    assert np.array_equal(with_it.tail_s, slowest_s)
    assert simulate(with_it).step_s == pytest.approx(simulate(without).step_s, rel=0.001)


@pytest.mark.parametrize("spec", [JOB, BESIDE, JobSpec(dp=1, pp=2, steps=8, p2p="asynchronous")])
def test_save_before_a_step_holds_back_all_first_operations(spec: JobSpec) -> None:
    """A worker that saves before a step begins nothing until it has saved; its peers wait in the collective for it."""
    fault = CheckpointStall(period_steps=2, duration_s=2.0, spread=0.0, where="before", first_rank_only=True)
    inputs, faulty, _ = run(fault, spec)
    saves = fault.saves(spec)[:, 0]
    assert (faulty.start_s[:, saves, 0] >= 2.0).all()
    gathers = inputs.programme.is_op(Op.ALL_GATHER) & (inputs.programme.chunk == 0)
    if gathers.any():
        assert (faulty.start_s[gathers][:, saves, 1:] < 0.1).all()
        assert (faulty.end_s[gathers][:, saves, 1:] > 2.0).all()


def test_random_checkpoints_show() -> None:
    """No checkpoint that a trace cannot show is drawn: between steps it is recorded by all, or times are absolute."""
    drawn = []
    for seed in range(60):
        rng = np.random.default_rng([3, seed])
        spec = random_spec(rng)
        fault = draw_checkpoint(spec, rng)
        assert fault is not None and fault.saves(spec).any()
        if fault.where == "between":
            drawn.append(fault)
            assert spec.absolute_times or (fault.recorded and not fault.first_rank_only)
    assert len(drawn) > 10


def test_absolute_times_put_steps_one_after_the_other() -> None:
    """Each step begins when the one before and its checkpoint are over; steps left out in between count as the mean one."""
    spec = dataclasses.replace(JOB, absolute_times=True, steps=12)
    fault = CheckpointStall(period_steps=3, duration_s=0.7, recorded=False)
    trace = generate(spec, [fault]).trace
    assert str(trace.schema.field("start_ts").type) == "double"
    relative = generate(dataclasses.replace(spec, absolute_times=False), [fault]).trace.to_pandas()
    frame, numbers = trace.to_pandas(), spec.step_numbers()
    origin = (frame["start_ts"] - relative["start_ts"]).groupby(frame["step"]).agg(["min", "max"])
    assert origin["min"].to_numpy() == pytest.approx(origin["max"].to_numpy(), abs=1e-6)
    step_s = simulate(fault.apply(draw_inputs(spec))).step_s
    expected = [0.0]
    for i, (number, following) in enumerate(pairwise(numbers)):
        expected.append(expected[-1] + step_s[i] + (following - number - 1) * step_s.mean())
    assert np.diff(numbers).max() > 1
    assert origin["min"].to_numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        (JOB, [CARD, CheckpointStall(period_steps=2, duration_s=0.5)]),
        (JOB, [NETWORK[3], WorkerFault(places=((1, 1),), sends_slowdown=1.3)]),
        (BESIDE, [CONTENTION[0], dataclasses.replace(LINK, dp_rank=0)]),
        (BESIDE, [CONTENTION[2], CheckpointStall(where="inside", period_steps=2)]),
    ],
)
def test_what_comes_back_is_the_job_without_it(spec: JobSpec, faults: Sequence[Fault]) -> None:
    """What the truth says comes back is what another run without the fault takes less, in any order of the faults."""
    truth, turned = generate(spec, faults).truth, generate(spec, faults[::-1]).truth
    for i, fault in enumerate(truth.faults):
        without = faults[1 - i].apply(faults[i].mend(draw_inputs(spec)))
        assert fault.recoverable == pytest.approx(1 - simulate(without).step_s.mean() / truth.step_time_s, rel=1e-9)
        assert fault.recoverable == pytest.approx(turned.faults[1 - i].recoverable, rel=1e-9)
        assert fault.recoverable > 0.001


@pytest.mark.parametrize(
    ("draw", "kind"), [(draw_network, "card"), (draw_contention, "queued"), (draw_checkpoint, "saves")]
)
def test_same_seed_same_fault(draw, kind) -> None:
    """A fault is drawn the same twice, and takes the strength and onset that it is given."""
    spec = dataclasses.replace(BESIDE, steps=9)
    first, second = (draw(spec, np.random.default_rng(4)) for _ in range(2))
    assert first == second
    given = draw(spec, np.random.default_rng(4), strength=3.5, onset=4, kind=kind)
    assert (given.strength, given.onset, given.recovery) == (3.5, 4, None)


def test_most_random_network_faults_are_felt() -> None:
    """However small transfers are, most network faults cost between 1% and 60% of the step."""
    felt = []
    for seed in range(30):
        rng = np.random.default_rng([9, seed])
        spec = dataclasses.replace(random_spec(rng, max_rows=20_000), steps=10)
        fault = draw_network(spec, rng)
        if fault is not None:
            _, faulty, mended = run(fault, spec)
            felt.append(1 - mended.step_s.mean() / faulty.step_s.mean())
    assert np.mean([0.01 < part < 0.6 for part in felt]) > 0.7


def test_strength_is_found_for_a_cost() -> None:
    """The strength found costs what was asked for, and where no strength does, it is the one that costs most."""

    def make(slowdown: float) -> NetworkFault:
        return NetworkFault(slowdown=slowdown, spread=0.0)

    strength, _ = find_strength(JOB, make, cost=0.3, lowest=1.5, highest=40.0)
    assert measure_cost(JOB, make(strength)) == pytest.approx(0.3, rel=0.1)
    assert find_strength(JOB, make, cost=1e6, lowest=1.5, highest=40.0)[0] == pytest.approx(40.0)


@pytest.mark.parametrize(
    "fault",
    [
        dataclasses.replace(CARD, dp_rank=3),
        dataclasses.replace(CARD, stage=3),
        dataclasses.replace(LINK, stage=2),
        CheckpointStall(period_steps=0),
    ],
)
def test_impossible_faults_are_refused(fault: Fault) -> None:
    """A card, link or interval that the job cannot have is refused with a message."""
    with pytest.raises(UsageError):
        generate(JOB, [fault])


@pytest.mark.parametrize("onset", [None, 3], ids=["always", "from step 3"])
def test_a_collective_does_not_tell_whose_card_is_bad(onset: int | None) -> None:
    """With one stage a bad card leaves the same trace whichever dp rank has it: nobody can be asked whose it is."""
    spec = dataclasses.replace(JOB, pp=1, noise=0.0)
    cards = [dataclasses.replace(CARD, dp_rank=dp, stage=0, onset=onset) for dp in range(spec.dp)]
    jobs = [generate(spec, [card]) for card in cards]
    assert all(job.trace.equals(jobs[0].trace) for job in jobs)
    assert [job.truth.faults[0].place_tellable for job in jobs] == [False] * spec.dp
    assert {job.truth.faults[0].tellable for job in jobs} == {onset is not None}


def test_a_card_that_flaps_in_collectives_alone_is_not_told() -> None:
    """Of single transfers that get stuck those between two workers tell whose card it is, collectives do not."""
    told = set()
    for seed in range(12):
        spec = dataclasses.replace(JOB, microbatches=1, seed=seed)
        flap = dataclasses.replace(CARD, share=0.01, slowdown=1.0, stall_s=0.5)
        healthy, faulty = draw_inputs(spec), flap.apply(draw_inputs(spec))
        hit = (faulty.stall_s != healthy.stall_s).any(axis=(1, 2))
        between_two = bool((hit & faulty.programme.is_op(*TRANSFERS)).any())
        assert flap.place_tellable(spec) == between_two
        told.add(between_two)
    assert told == {True, False}


def test_what_slows_every_transfer_is_the_normal() -> None:
    """With two stages and one dp rank, interleaved, a bad card leaves the trace of a job whose network is as slow."""
    spec = JobSpec(pp=2, vpp=2, dp=1, microbatches=4, steps=4, noise=0.0, seed=5)
    card = NetworkFault(scope="card", stage=1, slowdown=8.0, spread=0.0)
    slow = dataclasses.replace(spec, transfer_s=8.0 * spec.transfer_s, collective_s=8.0 * spec.collective_s)
    alone = pc.field("optype").cast("string") == NAMES[Op.LAYERNORM]  # with one dp rank it moves nothing
    faulty, other = (
        job.trace.filter(~alone)["duration"].to_numpy() for job in (generate(spec, [card]), generate(slow))
    )
    np.testing.assert_allclose(faulty, other, rtol=1e-5)
    assert not card.tellable(spec)
    assert card.tellable(dataclasses.replace(spec, dp=2))
    assert card.tellable(dataclasses.replace(spec, pp=4))
    assert dataclasses.replace(card, onset=2).tellable(spec)


def test_nothing_shows_a_save_after_the_last_step() -> None:
    """Without rows a save between steps shows where the next step is sampled."""
    spec = dataclasses.replace(JOB, steps=4, contiguous=True, absolute_times=True)
    saves = [CheckpointStall(period_steps=20, phase=int(step) % 20, recorded=False) for step in spec.step_numbers()]
    assert [save.tellable(spec) for save in saves] == [True, True, True, False]
    assert dataclasses.replace(saves[-1], recorded=True).tellable(spec)
    assert not saves[0].tellable(dataclasses.replace(spec, absolute_times=False))


def test_without_rows_nobody_knows_who_saved_between_steps() -> None:
    """Whether one rank saves or all do, the next step begins as much later for all: only rows tell them apart."""
    spec = dataclasses.replace(JOB, absolute_times=True, noise=0.0)
    some = CheckpointStall(spread=0.0, first_rank_only=True, recorded=False)
    every = dataclasses.replace(some, first_rank_only=False)
    assert generate(spec, [some]).trace.equals(generate(spec, [every]).trace)
    assert not some.place_tellable(spec)
    assert dataclasses.replace(some, recorded=True).place_tellable(spec)
    assert not dataclasses.replace(some, recorded=True).place_tellable(dataclasses.replace(spec, evidence=False))
    assert dataclasses.replace(some, where="before").place_tellable(spec)
