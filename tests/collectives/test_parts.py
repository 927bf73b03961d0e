"""Parts of what is said of dumps, by hand: who is who, how ranks are laid out, and whom a hang names."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import diagnose
from diagnose.judge.collectives import judge_collectives
from diagnose.judge.collectives_beside import _is_same, _is_worker, _name
from diagnose.judge.collectives_hang import find_hang
from diagnose.judge.collectives_layout import find_layout
from diagnose.judge.collectives_waits import _measure_spans, _vary, measure_waits
from diagnose.judge.rules import load_rules
from diagnose.model.collectives import COMPLETED, NONE, SCHEDULED, STARTED, Collectives, Communicator
from diagnose.model.place import Where, Worker
from diagnose.model.trace import Job
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


@pytest.mark.parametrize(("n", "said"), [(4, ""), (6, " and 2 more")])
def test_of_many_places_four_are_named(n: int, said: str) -> None:
    """The others are counted."""
    where = Where(workers=tuple(Worker(rank, 0, rank) for rank in range(n)))
    assert _name(where) == "rank 0; rank 1; rank 2; rank 3" + said


def waiting(groups: list[tuple[int, ...]], rows: list[tuple[int, int, int, bool]]) -> Collectives:
    """Give what nobody ended: each row a rank, its group, the rank at the other end of a transfer or -1, and whether it sends."""
    rank, communicator, peer, is_send = (np.array(column) for column in zip(*sorted(rows), strict=True))
    n_ranks, n = max(max(group) for group in groups) + 1, len(rows)
    return Collectives(
        name="dumps",
        format="PyTorch Flight Recorder",
        ranks=np.arange(n_ranks),
        are_ranks_known=True,
        written_s=np.full(n_ranks, 1e4),
        timeout_s=600.0,
        hosts=(),
        communicators=tuple(Communicator(f"g{i}", np.array(group), True) for i, group in enumerate(groups)),
        kinds=("all_reduce", "send"),
        is_ordered=True,
        rank=rank,
        communicator=communicator,
        kind=(peer != NONE).astype(int),
        number=np.ones(n, dtype=int),
        peer=peer,
        is_send=is_send,
        size=np.ones(n, dtype=int),
        content=(peer != NONE).astype(int),
        called_s=np.arange(n) / 1e3,
        noticed_s=np.full(n, np.nan),
        duration_s=np.full(n, np.nan),
        state=np.full(n, SCHEDULED, dtype=np.int8),
        frames={},
        span_s=1.0,
    )


@pytest.mark.parametrize(("both", "named"), [(False, (1,)), (True, None)])
def test_a_transfer_waits_for_an_end_that_never_came(both: bool, named: tuple[int, ...] | None) -> None:
    """Where both ranks are in it neither waits for the other: what holds it up is not recorded."""
    rows = [(0, 0, 1, True)] + ([(1, 0, 0, False)] if both else [])
    hang, doubts = find_hang(waiting([(0, 1)], rows))
    assert (hang.ranks if hang else None) == named
    assert any("operations are not over that all their ranks called" in doubt for doubt in doubts) == both


@pytest.mark.parametrize(("first", "second", "named"), [(2, 3, (2, 3)), (2, 9, None)])
def test_ranks_of_one_fault_follow_each_other(first: int, second: int, named: tuple[int, ...] | None) -> None:
    """Two that others wait for in different groups are of one host or tensor group; far apart each may be at its own work."""
    others = [rank for rank in range(16) if rank not in (first, second)]
    groups = [(0, first), (1, second), tuple(others)]
    rows = [(0, 0, NONE, False), (1, 1, NONE, False)] + [(rank, 2, NONE, False) for rank in others[2:]]
    hang, doubts = find_hang(waiting(groups, rows))
    assert (hang.ranks if hang else None) == named
    assert any("in different groups" in doubt for doubt in doubts) == (named is None)


def test_ranks_that_wait_for_each_other() -> None:
    """Each is in a collective that the other has not called: a deadlock, which is never certain."""
    recorded = waiting([(0, 1), (0, 1)], [(0, 0, NONE, False), (1, 1, NONE, False)])
    job = Job("x", dp_size=2, pp_size=1, tp_size=1, cp_size=1, vpp_size=1, world_size=2)
    verdict, document = judge_collectives(recorded, job, load_rules().rules, min_speedup=1.02)
    assert document.hang is not None and document.hang.kind == "deadlock"
    assert 0.5 < verdict.causes[0].confidence < 1.0


def test_a_cause_of_more_workers_is_that_of_one_of_them() -> None:
    """What the dumps name and the trace does not is another one."""
    one, both = (
        SimpleNamespace(cause="worker-fault", where=Where(workers=tuple(Worker(dp, 0, dp) for dp in range(n))))
        for n in (1, 2)
    )
    assert _is_same(both, one)
    assert not _is_same(one, both)


@pytest.mark.parametrize(
    ("rank_3", "wrote_s", "timeout_s", "called", "named", "doubt"),
    [
        (2, 1700.0, 600.0, "all_reduce", (3,), ""),
        (2, 1005.0, 600.0, "all_reduce", None, "it may just have run on"),
        # A pause of 1000 s is usual here, but a watchdog would have ended the job.
        (2, 1700.0, np.nan, "all_reduce", None, "it may just have run on"),
        (1, 1700.0, 600.0, "all_reduce", None, "dumps of rank 3 are older than others"),
        # Who sends to all ends before who did not come.
        (1, 1700.0, 600.0, "broadcast", (3,), ""),
    ],
)
def test_a_call_that_one_rank_never_made(
    rank_3: int, wrote_s: float, timeout_s: float, called: str, named: tuple[int, ...] | None, doubt: str
) -> None:
    """Seven ranks wait in their third call, made 1000 s after the second, for the eighth; two before it all have ended."""
    number = np.array([i for rank in range(8) for i in range(1, 4 if rank != 3 else rank_3 + 1)])
    rows = [(rank, 0, NONE, False) for rank in range(8) for _ in range(3 if rank != 3 else rank_3)]
    recorded = dataclasses.replace(
        waiting([tuple(range(8))], rows),
        kinds=(called, "send"),
        number=number,
        called_s=np.where(number == 3, 1000.0, 0.0),
        state=np.where(number == 3, SCHEDULED, COMPLETED).astype(np.int8),
        written_s=np.full(8, wrote_s),
        timeout_s=timeout_s,
    )
    hang, doubts = find_hang(recorded)
    assert (hang.ranks if hang else None) == named
    assert doubt in " ".join(doubts)


@pytest.mark.parametrize(
    ("waited_s", "pause_s", "timeout_s", "hangs"),
    [
        (9.9, 1.0, np.nan, False),
        (10.1, 1.0, np.nan, True),
        (29.0, 10.0, np.nan, False),
        (31.0, 10.0, np.nan, True),
        (22.0, 10.0, 25.0, False),
        (23.0, 10.0, 25.0, True),
        (-1.0, 1.0, np.nan, True),  # clocks that say nothing
        (np.nan, 1.0, np.nan, True),
    ],
)
def test_who_waits_for_long_hangs(waited_s: float, pause_s: float, timeout_s: float, *, hangs: bool) -> None:
    """Ten seconds, three times the longest pause before, or nine tenths of what a watchdog waits: less is seen in jobs that run."""
    number = np.array([1, 2, 3] * 8)[:-1]
    recorded = dataclasses.replace(
        waiting([tuple(range(8))], [(i // 3, 0, NONE, False) for i in range(23)]),
        number=number,
        called_s=np.where(number == 3, pause_s, 0.0),
        state=np.where(number == 3, SCHEDULED, COMPLETED).astype(np.int8),
        written_s=np.full(8, pause_s + waited_s),
        timeout_s=timeout_s,
    )
    hang, doubts = find_hang(recorded)
    assert (hang.ranks if hang else ()) == ((7,) if hangs else ())
    assert ("it may just have run on" in " ".join(doubts)) is not hangs


@pytest.mark.parametrize(("not_begun", "named"), [((3,), (3,)), ((2, 3), (2, 3)), ((1, 2, 3), None)])
def test_a_device_that_never_began(not_begun: tuple[int, ...], named: tuple[int, ...] | None) -> None:
    """All four called it: at most half of them, whose devices did not come to it, hold the others up; never for certain."""
    called = waiting([(0, 1, 2, 3)], [(rank, 0, NONE, False) for rank in range(4)])
    state = np.where(np.isin(called.rank, not_begun), SCHEDULED, STARTED).astype(np.int8)
    job = Job("x", dp_size=4, pp_size=1, tp_size=1, cp_size=1, vpp_size=1, world_size=4)
    verdict, document = judge_collectives(
        dataclasses.replace(called, state=state), job, load_rules().rules, min_speedup=1.02
    )
    hang = document.hang
    assert (hang and (hang.kind, hang.ranks)) == (named and ("not-started", named))
    assert all(0.5 < cause.confidence < 1.0 for cause in verdict.causes) and len(verdict.causes) == (named is not None)
    if hang:
        assert (hang.at.waiting, hang.at.missing, hang.n_waiting) == ((0, 1, 2, 3), (), 4 - len(not_begun))


@pytest.mark.parametrize(("spread", "late"), [(0.0, [3]), (0.1, [])])
def test_who_is_late_is_so_far_beyond_what_ranks_differ_by(spread: float, late: list[int]) -> None:
    """A rank that waits for 30% of the time less than the others is late, unless all of them differ by that much."""
    called = waiting([tuple(range(8))], [(rank, 0, NONE, False) for rank in range(8) for _ in range(20)])
    waits = np.array([0.5 + spread * (-1) ** rank - (0.3 if rank == 3 else 0.0) for rank in range(8)])
    recorded = dataclasses.replace(
        called,
        is_ordered=False,
        number=np.tile(np.arange(20), 8),
        duration_s=np.repeat(waits / 20, 20),
        state=np.full(160, COMPLETED, dtype=np.int8),
    )
    assert [one.rank for one in measure_waits(recorded, least=0.02).late] == late


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


@pytest.mark.parametrize(
    ("shape", "fault", "named"),
    [
        (Shape(1, 8, 1), Fault("slow", 5, 1.35), "worker-fault"),
        (Shape(2, 4, 2), Fault("link", factor=30.0, group=("pair", 5, 13)), "network-fault"),
    ],
)
def test_a_culprit_is_for_those_whom_the_rule_names(shape: Shape, fault: Fault, named: str, tmp_path) -> None:
    """What dumps show bears who mends it, and how to check it, as the rule of its cause has them."""
    run = simulate(shape, fault, seed=5, n_steps=12)
    folder = write_inspector(run, tmp_path / "dumps", seed=1, version="v4.3", has_p2p=True)
    cause = diagnose.diagnose(folder).causes[0]
    rule = next(rule for rule in load_rules().rules if rule.id == cause.cause)
    assert cause.cause == named and cause.who and cause.check
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
    for slow in found.collectives.slow_groups:
        assert slow.more_s == pytest.approx(12 * (slow.transfer_s - slow.usual_s), rel=0.01)
        assert 0.0 < slow.share < 1.0
        assert not slow.is_pair


def test_how_much_two_ranks_wait_by_chance() -> None:
    """Of calls that take one rank longer by 1 in half of the parts of a recording, chance is as large as what they add up to."""
    longer = np.repeat([1.0, -1.0] * 4, 5)
    table = SimpleNamespace(seconds=np.stack([2.0 + longer, np.full(40, 2.0)], axis=1))
    assert _vary(table) == pytest.approx(5.0 * np.sqrt(8.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_groups", "kind", "doubt"), [(1, "unfinished", ""), (2, None, "all ranks of 2 groups began")]
)
def test_operations_that_all_ranks_began(n_groups: int, kind: str | None, doubt: str) -> None:
    """One that none ended is a hang; two at a time may be a moment in a job under way."""
    groups = [(0, 1), (2, 3)][:n_groups]
    called = waiting(groups, [(rank, g, NONE, False) for g, group in enumerate(groups) for rank in group])
    hang, doubts = find_hang(dataclasses.replace(called, state=np.full(2 * n_groups, STARTED, dtype=np.int8)))
    assert (hang.kind if hang else None) == kind
    assert doubt in " ".join(doubts)


@pytest.mark.parametrize("late", [True, False])
def test_a_rank_that_was_late_all_along_hangs_not(late: bool) -> None:
    """Seven wait for the eighth as the dumps are written: a hang, unless they waited for it in every call before."""
    number = np.array([i for rank in range(8) for i in range(21 if rank != 3 else 20)])
    called = waiting(
        [tuple(range(8))], [(rank, 0, NONE, False) for rank in range(8) for _ in range(21 if rank != 3 else 20)]
    )
    rank, is_open = called.rank, number == 20
    recorded = dataclasses.replace(
        called,
        is_ordered=False,
        number=number,
        called_s=np.where(is_open, 1000.0, number.astype(float)),
        written_s=np.full(8, 1700.0),
        duration_s=np.where(is_open, np.nan, np.where(late & (rank == 3), 0.01, 0.05)),
        state=np.where(is_open, SCHEDULED, COMPLETED).astype(np.int8),
    )
    job = Job("x", dp_size=8, pp_size=1, tp_size=1, cp_size=1, vpp_size=1, world_size=8)
    verdict, document = judge_collectives(recorded, job, load_rules().rules, min_speedup=1.02)
    assert (document.hang is None) == late
    assert ("as they did all along" in " ".join(document.doubts)) == late
    assert [cause.title.startswith("hang") for cause in verdict.causes] == [not late]


@pytest.mark.parametrize(("span_s", "told_s", "busy_s"), [(9.0, 9.0, 9.0), (np.nan, None, 0.5)])
def test_how_long_dumps_are(span_s: float, told_s: float | None, busy_s: float) -> None:
    """As long as they say; where they do not, nothing is told, and shares are of what the busiest rank spent in collectives."""
    called = waiting([(0, 1)], [(rank, 0, NONE, False) for rank in range(2) for _ in range(20)])
    recorded = dataclasses.replace(
        called,
        is_ordered=False,
        number=np.tile(np.arange(20), 2),
        duration_s=np.repeat([0.25 / 20, 0.5 / 20], 20),
        state=np.full(40, COMPLETED, dtype=np.int8),
        span_s=span_s,
    )
    job = Job("x", dp_size=2, pp_size=1, tp_size=1, cp_size=1, vpp_size=1, world_size=2)
    _, document = judge_collectives(recorded, job, load_rules().rules, min_speedup=1.02)
    assert document.seconds == told_s
    assert _measure_spans(recorded)[1] == pytest.approx(busy_s)
