"""Jobs under GPipe and zero-bubble, and models laid out layer by layer: times that one can add in the head."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.compute_order import order_computes
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.generate import generate, list_causes, random_faults
from diagnose.faults.inputs import draw_inputs
from diagnose.faults.network_fault import list_transfers
from diagnose.faults.programme import build_programme
from diagnose.faults.record import record
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import SPLITTING, JobSpec, Schedule, count_rows
from diagnose.faults.stage_imbalance import draw_fault as draw_stage
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


#: Schedules with how many chunks they have.
SCHEDULES: tuple[tuple[Schedule, int], ...] = (
    ("1f1b", 1),
    ("1f1b", 2),
    ("1f1b", 8),
    ("eager", 1),
    ("gpipe", 1),
    ("looped", 3),
    ("zero-bubble", 1),
    ("zero-bubble", 3),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("dualpipev", 2),
)


def most_held(spec: JobSpec, stage: int) -> float:
    """Count the microbatches of which a stage keeps activations, until their weight gradients are done, at most."""
    held = most = 0
    for compute in order_computes(spec, stage):
        held += compute.op == Op.FORWARD
        most = max(most, held)
        held -= compute.n_microbatches * (compute.op == Op.BACKWARD and compute.part != "input")
    assert held == 0
    return most / spec.vpp


def idle_share(spec: JobSpec) -> float:
    """Part of the time from a worker's first compute to its last in which it computes nothing; mean over workers."""
    inputs = draw_inputs(spec)
    times, shares = simulate(inputs), []
    for stage in range(spec.pp):
        here = inputs.programme.is_op(Op.FORWARD, Op.BACKWARD) & (inputs.programme.stage == stage)
        span_s = np.ptp([times.start_s[here, 0, 0].min(), times.end_s[here, 0, 0].max()])
        shares.append(1.0 - inputs.work_s[here, 0, 0].sum() / span_s)
    return float(np.mean(shares))


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
    assert most_held(JobSpec(pp=4, microbatches=8, schedule="zero-bubble"), stage) == 4.0


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


@pytest.mark.parametrize(("schedule", "vpp"), SCHEDULES)
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (3, 6), (4, 12)])
@pytest.mark.parametrize("merges_weights", [False, True])
def test_every_microbatch_once(schedule: Schedule, vpp: int, pp: int, microbatches: int, merges_weights: bool) -> None:
    """Each chunk runs every microbatch forward, then backward, then its weight gradients, once; and nobody waits in a circle."""
    spec = dataclasses.replace(
        BY_HAND, pp=pp, vpp=vpp, microbatches=microbatches, schedule=schedule, p2p="asynchronous", steps=1
    )
    spec = dataclasses.replace(spec, merges_weights=merges_weights)
    for stage in range(pp):
        order = order_computes(spec, stage)
        at: dict[str, dict[tuple[int, int], int]] = {"forward": {}, "backward": {}, "weight": {}}
        n_weights = 0
        for i, compute in enumerate(order):
            kind = "weight" if compute.part == "weight" else compute.op.name.lower()
            assert at[kind].setdefault((compute.chunk, compute.microbatch), i) == i
            n_weights += compute.n_microbatches * (kind == "weight")
        assert len(at["forward"]) == len(at["backward"]) == vpp * microbatches
        assert n_weights == sum(compute.part == "input" for compute in order)
        assert all(at["forward"][place] < i for place, i in at["backward"].items())
        assert all(at["backward"][place] < i for place, i in at["weight"].items())
    for p2p in ("asynchronous", "lazy"):
        inputs = draw_inputs(dataclasses.replace(spec, p2p=p2p))
        step_s = simulate(inputs).step_s
        work_s = inputs.work_s[inputs.programme.stage == 0].sum()
        assert (0.75 if schedule == "dualpipev" else 1.0) * work_s <= step_s[0] + 1e-9 < 4 * work_s


@pytest.mark.parametrize("pp", [2, 4, 6])
def test_memory_and_bubble_are_those_of_the_papers(pp: int) -> None:
    """As arXiv 2401.10241 says: H1 and ZB-V hold what 1F1B holds, H2 nearly twice as much; H1 has less bubble, H2 and ZB-V none."""
    spec = dataclasses.replace(BY_HAND, pp=pp, microbatches=4 * pp, steps=1, p2p="asynchronous")
    by_schedule = {
        name: dataclasses.replace(spec, schedule=name, vpp=vpp)
        for name, vpp in SCHEDULES
        if (name, vpp) not in (("1f1b", 2), ("1f1b", 8), ("zero-bubble", 3))
    }
    held = {name: max(most_held(one, stage) for stage in range(pp)) for name, one in by_schedule.items()}
    assert (held["1f1b"], held["zero-bubble"], held["zb-v"]) == (pp, pp, pp)
    assert (held["zb-h2"], held["eager"], held["dualpipev"]) == (2 * pp - 1, 2 * pp - 1, pp + 0.5)
    assert held["gpipe"] == held["looped"] == 4 * pp
    idle = {name: idle_share(one) for name, one in by_schedule.items()}
    assert idle["zb-h2"] == idle["zb-v"] == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < idle["zero-bubble"] < 0.5 * idle["1f1b"]
    assert idle["dualpipev"] < idle["zero-bubble"]


def torch_order(cls: Any, pp: int, vpp: int, microbatches: int, rank: int) -> list[tuple[int, str, int, bool]]:
    """List what torch runs on a rank: virtual stage, letter, microbatch, and whether beside the one before."""
    schedule = cls.__new__(cls)
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = pp, vpp, microbatches
    schedule._num_stages, schedule.num_stages, schedule._stages = pp * vpp, pp * vpp, [None] * vpp
    schedule.number_of_rounds = max(1, microbatches // pp)
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    actions = [action for action in schedule._calculate_single_rank_operations(rank) if action is not None]
    return [
        (one.stage_index, one.computation_type.value, one.microbatch_index, i > 0)
        for action in actions
        for i, one in enumerate(action.sub_actions or (action,))
    ]


@pytest.mark.parametrize(
    ("schedule", "name", "sizes"),
    [
        ("zb-v", "ScheduleZBVZeroBubble", [(2, 2, 1), (4, 2, 3), (4, 2, 11), (6, 2, 24)]),
        ("dualpipev", "ScheduleDualPipeV", [(2, 2, 4), (4, 2, 8), (5, 2, 13), (6, 2, 24)]),
        ("zero-bubble", "ScheduleInterleavedZeroBubble", [(2, 1, 4), (4, 2, 4), (4, 2, 12), (3, 3, 12)]),
        ("1f1b", "ScheduleInterleaved1F1B", [(2, 2, 4), (4, 2, 12), (3, 8, 12)]),
    ],
)
def test_orders_are_those_of_torch(schedule: Schedule, name: str, sizes: list[tuple[int, int, int]]) -> None:
    """Each rank computes what torch.distributed.pipelining computes, in the same order."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    letters = {"input": "I", "weight": "W"}
    for pp, vpp, microbatches in sizes:
        spec = JobSpec(pp=pp, vpp=vpp, microbatches=microbatches, schedule=schedule)
        for stage in range(pp):
            found = [
                (
                    spec.position(stage, c.chunk),
                    letters.get(c.part, "F" if c.op == Op.FORWARD else "B"),
                    c.microbatch,
                    c.beside,
                )
                for c in order_computes(spec, stage)
            ]
            assert found == torch_order(getattr(schedules, name), pp, vpp, microbatches, stage), (
                pp,
                microbatches,
                stage,
            )


def test_breadth_first_finishes_a_chunk_before_the_next() -> None:
    """Arxiv 2211.05953: all microbatches of a model chunk, then those of the next; backwards from the last chunk on."""
    order = order_computes(JobSpec(pp=2, vpp=2, microbatches=3, schedule="looped"), 0)
    assert " ".join(f"{c.op.name[0]}{c.chunk}.{c.microbatch}" for c in order) == (
        "F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 B1.0 B1.1 B1.2 B0.0 B0.1 B0.2"
    )


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipev"])
def test_a_v_comes_back_to_where_it_began(schedule: Schedule) -> None:
    """Stage s has positions s and 2 pp - 1 - s of the model; where both neighbours are on one stage nothing is sent."""
    spec = dataclasses.replace(BY_HAND, pp=3, vpp=2, microbatches=6, schedule=schedule, weight_share=0.4)
    spec = dataclasses.replace(spec, input_rows="backward-input", says_schedule=True)
    inputs = draw_inputs(spec)
    table = record(inputs, simulate(inputs))
    frame = table.to_pandas()
    computes = frame[frame["optype"] == "forward-compute"]
    found = {(row.stage, row.mc): row.gmc for row in computes.itertuples()}
    assert found == {(0, 0): 0, (1, 0): 1, (2, 0): 2, (2, 1): 3, (1, 1): 4, (0, 1): 5}
    assert all(spec.place(position) == place for place, position in found.items())
    per_lane = 6 * spec.steps
    for kind, counts in {
        "forward-send": (1, 2, 1),
        "forward-recv": (1, 2, 1),
        "backward-send": (1, 2, 1),
        "backward-recv": (1, 2, 1),
    }.items():
        rows = frame[frame["optype"] == kind]
        assert tuple(rows.groupby("stage").size() / per_lane) == counts
        assert sorted(rows["seq_id"].unique()) == list(range(6 * 2))
    split = frame[frame["optype"] == "backward-input"]
    keys = ["step", "stage", "mc", "mb_id"]
    weights = frame[frame["optype"] == "backward-weight"]
    assert sorted(map(tuple, split[keys].values)) == sorted(map(tuple, weights[keys].values))
    assert json.loads(table.schema.metadata[b"diagnose.job"])["schedule"] == {"zb-v": "zbv"}.get(schedule, schedule)


def test_two_computes_overlap_by_hand() -> None:
    """Under DualPipeV a forward and a backward start together, each longer than alone, and the next waits for both."""
    spec = dataclasses.replace(BY_HAND, vpp=2, microbatches=6, schedule="dualpipev", overlap_cost=1.25)
    inputs = draw_inputs(spec)
    times = simulate(inputs)
    ids = {(t.op, t.stage, t.seq): i for i, t in enumerate(inputs.programme.tasks)}
    order = order_computes(spec, 0)
    n_pairs = 0
    for before, compute, then in zip(order, order[1:], order[2:], strict=False):
        if compute.beside:
            first, second, third = (ids[c.op, 0, c.number] for c in (before, compute, then))
            assert times.start_s[first, 0, 0] == times.start_s[second, 0, 0]
            assert (times.end_s[first] - times.start_s[first])[0, 0] == pytest.approx(1.25)
            assert (times.end_s[second] - times.start_s[second])[0, 0] == pytest.approx(2.5)
            assert times.start_s[third, 0, 0] >= times.end_s[second, 0, 0]
            n_pairs += 1
    assert n_pairs > 6


def test_merged_weights_by_hand() -> None:
    """Weight gradients with nothing between them are one row, as long as all of them, of the last microbatch."""
    spec = dataclasses.replace(BY_HAND, pp=3, microbatches=6, schedule="zero-bubble")
    rows = {}
    for merges in (False, True):
        inputs = draw_inputs(dataclasses.replace(spec, merges_weights=merges))
        times = simulate(inputs)
        frame = record(inputs, times).to_pandas()
        rows[merges] = frame[(frame["optype"] == "backward-weight") & (frame["stage"] == 2) & (frame["step"] == 16)]
        assert times.step_s[0] == 6 * 3 + 2  # the bubble is (pp - 1) (F + B - W), and B and W are 1 s
    assert rows[False]["duration"].tolist() == [1.0] * 6
    assert rows[True]["duration"].tolist() == [1.0] * 3 + [3.0]
    assert rows[True]["mb_id"].tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize("cause", list(list_causes()))
@pytest.mark.parametrize(
    ("schedule", "vpp"), [("looped", 2), *((name, vpp) for name, vpp in SCHEDULES if name in SPLITTING)]
)
def test_every_fault_under_every_schedule(schedule: Schedule, vpp: int, cause: str) -> None:
    """A fault of each cause can be drawn, changes the steps, and leaves nobody waiting in a circle."""
    spec = JobSpec(pp=3, dp=4, vpp=vpp, microbatches=6, steps=5, p2p="asynchronous", transfer_s=2e-3, schedule=schedule)
    spec = dataclasses.replace(spec, contiguous=True, separate=True, absolute_times=True, workers_per_host=4, seed=3)
    drawn = (random_faults(spec, np.random.default_rng([4, i]), [cause]) for i in range(5))
    faults = next(found for found in drawn if found)
    (truth,) = generate(spec, faults).truth.faults
    assert truth.cause == cause
    assert abs(truth.recoverable) > 1e-6


def test_a_long_model_end_of_a_v_is_on_the_first_stage() -> None:
    """The vocabulary and the labels are where the model ends: the second chunk of stage 0."""
    spec = JobSpec(pp=4, vpp=2, microbatches=8, schedule="zb-v")
    drawn = [draw_stage(spec, np.random.default_rng(seed)) for seed in range(20)]
    stages = [fault.stages(spec) for fault in drawn if fault is not None]
    assert stages.count((0,)) > 12
    assert DataLoading(dp_ranks=(1,), reads_last=True).workers(spec) == ((1, 0),)
    assert DataLoading(dp_ranks=(1,), reads_last=True).workers(JobSpec(pp=4)) == ((1, 0), (1, 3))


def test_a_link_of_a_v_has_a_way() -> None:
    """One way over a link of a V go the forwards of its first chunk and the backwards of its second."""
    spec = JobSpec(pp=3, vpp=2, microbatches=6, schedule="zb-v")
    programme = build_programme(spec)
    for direction, op, chunk in (("forward", Op.FORWARD_SEND, 0), ("backward", Op.FORWARD_SEND, 1)):
        found = list_transfers(spec, programme, "link", 1, direction)  # type: ignore[arg-type] # one of Direction
        sends = [programme.tasks[task] for task in found]
        assert {task.stage for task in sends} == {1 if direction == "forward" else 2}
        forwards = [task.seq for task in sends if task.op == op]
        order = {c.number: c.chunk for c in order_computes(spec, sends[0].stage) if c.op == Op.FORWARD}
        assert {order[seq] for seq in forwards} == {chunk}
        assert len(sends) == 12
