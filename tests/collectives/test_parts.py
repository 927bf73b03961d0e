"""Parts of what is said of dumps, by hand: who is who, how ranks are laid out, and whom a hang names."""

import dataclasses

import numpy as np
import pytest

import diagnose
from diagnose.judge.collectives_beside import _is_worker
from diagnose.judge.collectives_layout import find_layout
from diagnose.judge.rules import load_rules
from diagnose.model.place import Worker
from diagnose.trace.collectives.recognise import find_dumps, load_collectives
from tests.collectives.simulate import Fault, Shape, simulate
from tests.collectives.write import write_flight_recorder, write_inspector


@pytest.mark.parametrize(
    ("known", "worker", "same"),
    [
        (Worker(1, 0, 4), Worker(1, 0, 5, tp=1), True),  # the whole worker, and one of its members
        (Worker(1, 0, 4, tp=0), Worker(1, 0, 5), True),
        (Worker(1, 0, 5, tp=1), Worker(1, 0, 5, tp=1), True),
        (Worker(1, 0, 4, tp=0), Worker(1, 0, 5, tp=1), False),
        (Worker(1, 0, 4), Worker(0, 0, 0), False),
        (Worker(1, 0, 4, "a.example"), Worker(1, 0, 4, "A"), True),
        (Worker(1, 0, 4, "a"), Worker(1, 0, 4, "b"), False),
    ],
)
def test_a_worker_and_its_members(known: Worker, worker: Worker, *, same: bool) -> None:
    """A member is its worker, and no other member; of two hosts one cannot be meant by both."""
    assert _is_worker(known, worker) is same


@pytest.mark.parametrize("shape", [Shape(1, 8, 1), Shape(2, 2, 2), Shape(2, 4, 1)])
def test_each_rank_has_its_place(shape: Shape, tmp_path) -> None:
    """Groups tell which ranks are members of one worker, and of one pipeline: every rank is where it was put."""
    folder = write_flight_recorder(simulate(shape, Fault("hang", 1, at=0.6), seed=1, n_steps=4), tmp_path / "d", seed=1)
    layout = find_layout(load_collectives(find_dumps(folder), name="dumps", report=lambda _: None))
    assert (layout.tp, layout.dp, layout.pp) == (shape.tp, shape.dp, shape.pp)
    for rank in range(shape.world):
        tp, dp, pp = shape.place(rank)
        worker = layout.worker(rank)
        assert (worker.tp, worker.dp, worker.pp) == (tp if shape.tp > 1 else None, dp, pp)


def test_a_mismatch_of_as_many_names_all(tmp_path) -> None:
    """Where as many ranks called one thing as another, nobody knows which of them are wrong."""
    pair = simulate(Shape(1, 2, 1), Fault("mismatch", 1, at=0.5), seed=3, n_steps=6)
    many = dataclasses.replace(pair.shape, dp=8)
    few = simulate(many, Fault("mismatch", 1, at=0.5), seed=3, n_steps=6)
    hangs = [
        diagnose.diagnose(write_flight_recorder(run, tmp_path / f"{run.shape.dp}", seed=1)).collectives.hang
        for run in (pair, few)
    ]
    assert [(hang.kind, hang.ranks) for hang in hangs] == [("mismatch", (0, 1)), ("mismatch", (1,))]


def test_a_late_rank_is_for_those_whom_the_rule_names(tmp_path) -> None:
    """What dumps show of a slow worker bears who mends it, and how to check it, as its rule has them."""
    run = simulate(Shape(1, 8, 1), Fault("slow", 5, 1.35), seed=5, n_steps=12)
    cause = diagnose.diagnose(write_flight_recorder(run, tmp_path / "dumps", seed=1, timing=True)).causes[0]
    rule = next(rule for rule in load_rules().rules if rule.id == cause.cause)
    assert cause.cause == "worker-fault" and cause.who and cause.check
    assert (cause.who, cause.check) == (rule.who, rule.check)


def test_a_slow_group_is_told_with_the_seconds_of_each_operation(tmp_path) -> None:
    """What a transfer takes by itself, nobody waiting, is that of the operation named, and not of the group's other one."""
    group = ("dp", 0, 0)
    run = simulate(Shape(2, 4, 2), Fault("link", factor=30.0, group=group), seed=6, n_steps=12)
    found = diagnose.diagnose(write_inspector(run, tmp_path / "dumps", seed=1, version="v4.2", has_p2p=True))
    truth = {}
    for name, op in (("AllGather", "_allgather_base"), ("ReduceScatter", "_reduce_scatter_base")):
        alone_s: dict[int, float] = {}
        for call in (call for of_rank in run.calls for call in of_rank if (call.group, call.op) == (group, op)):
            alone_s[call.number] = min(alone_s.get(call.number, np.inf), call.end - call.arrive)
        truth[name] = float(np.median(list(alone_s.values())))
    assert {slow.operation: slow.transfer_s for slow in found.collectives.slow_groups} == pytest.approx(truth, rel=0.01)
