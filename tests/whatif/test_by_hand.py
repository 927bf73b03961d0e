"""Small parts of the what-if on arrays that one can read: clocks, hidden barriers, batches, the clean step."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Block, Evidence, Nodes, Seconds
from diagnose.whatif import clocks
from diagnose.whatif.barriers import _find_barrier, _find_barriers, _holds, _lane_mean, _left_over, _list_late
from diagnose.whatif.batches import GRANULARITY_S, SampledLanes, _group_alike
from diagnose.whatif.clean import _flatten, _lay_out, _unite, split_clean
from diagnose.whatif.clocks import carry_over
from diagnose.whatif.components.other_work import describe_types
from diagnose.whatif.components.transfer import _measure_group, _measure_place, transfer_excess
from diagnose.whatif.computes import gather_computes, place_of, places_of
from diagnose.whatif.contention import _ends_then, _in_flight, _InFlight, _overlap, _usual_ratio, late_tolerance
from diagnose.whatif.delays import _first_forward, delay_excess, measure_carried
from diagnose.whatif.evidence import attribute_by_rows, without_recorded_pauses
from diagnose.whatif.fill import _fill_group
from diagnose.whatif.graph import Barrier, Event, Events, Graph, Ragged, _opening, group_by_length
from diagnose.whatif.observed import Observed, _add_tied_waits, _moving_times, _types_apart
from diagnose.whatif.occupied import Keys, Union, _last_before
from diagnose.whatif.overlaps import find_overlaps
from diagnose.whatif.replay import own_times
from diagnose.whatif.scenarios import typical_start
from diagnose.whatif.slow_places import _is_stretch, pair_seconds
from diagnose.whatif.starts import _is_input, list_opening
from diagnose.whatif.timeline import _times
from diagnose.whatif.transfers import _add_up_excess, _by_link, _measure_groups, _measure_links, _own_of_pairs
from diagnose.whatif.waits import add_waits

NAN = float("nan")


def nodes(*found: tuple[Op, int]) -> Nodes:
    """Give operations by type and stage."""
    op, stage = zip(*found, strict=True)
    none = np.full(len(op), -1)
    return Nodes(np.array(op, dtype=np.int64), np.array(stage), none * 0, none, none)


# ------------------------------------------------------------------------------------------ clocks


def pair(there: Any, back: Any, *, n_steps: int = 4, clip: Any = None, forward_s: float = 0.0) -> Any:
    """Give a block of two stages: how much later a recv ends than its send, forward and backward; None: no such transfer."""
    kinds = [
        (Op.FORWARD_SEND, 0),
        (Op.FORWARD_RECV, 1),
        (Op.BACKWARD_SEND, 1),
        (Op.BACKWARD_RECV, 0),
        (Op.CLIP, 0),
        (Op.CLIP, 1),
    ]
    kinds.append((Op.FORWARD, 0))
    end_s = np.zeros((7, n_steps, 1))
    end_s[1] += 0.0 if there is None else np.reshape(there, (-1, 1))
    end_s[3] += 0.0 if back is None else np.reshape(back, (-1, 1))
    end_s[5] += 0.0 if clip is None else clip
    end_s[6] += forward_s
    op = nodes(*kinds)
    if clip is None:
        op.op[4:6] = Op.GC
    members = [found for found, seen in (((0, 1), there), ((2, 3), back)) if seen is not None]
    moves = Events.of([Event(found, across_dp=False, completes=found) for found in members])
    block = SimpleNamespace(nodes=op, end_s=end_s, start_s=end_s * 0.0, steps=np.arange(n_steps), n_dp=1, filled=None)
    return [(block, SimpleNamespace(moves=moves))]


@pytest.fixture(autouse=True)
def _no_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no transfer be part of a batch."""
    monkeypatch.setattr(clocks, "find_all_batches", lambda _: [])


@pytest.mark.parametrize(
    ("there", "back", "clip", "ahead"),
    [
        (1.0, -1.0, None, 1.0),
        (1.4, -0.6, None, 1.0),
        (1.6, -0.4, None, 0.0),
        (0.5, 0.5, None, 0.0),
        (1.0, None, None, 0.0),
        (None, -1.0, None, 0.0),
        (1.0, None, 0.25, 0.25),
        (None, None, -0.25, -0.25),
        (1.0, -1.0, 0.25, 1.0),
        ([0.6, 0.6, 1.4, 1.4], -1.0, None, 1.0),
        ([0.0, 0.0, 2.0, 2.0], -1.0, None, 0.0),
    ],
    ids=[
        "a clock", "both a little late", "both late", "late alone", "one way", "the other way", "clip", "clip alone",
        "both ways before the clip", "spread", "wide spread",
    ],
)  # fmt: skip
def test_a_clock_is_early_one_way_and_late_the_other(there: Any, back: Any, clip: Any, ahead: float) -> None:
    """It counts where it is more than twice what its estimate is unsure by; without both ways the gradient clip tells."""
    usual_s, _ = clocks._along_stages(pair(there, back, clip=clip), 2, [1], 0.0)
    assert usual_s.tolist() == [[0.0, pytest.approx(ahead)]]


def test_receivers_that_come_late_say_nothing_of_clocks() -> None:
    """Where sends are buffered only a receiver that waited ends with its send: here one of ten, and one that was filled in is none.

    Those of one direction come late in the first half of the steps, and of the other one in the second.
    """
    kinds = [(Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 1), (Op.BACKWARD_SEND, 1), (Op.BACKWARD_RECV, 0)]
    end_s, filled = np.zeros((2, 2, 10, 16, 1)), np.zeros((2, 2, 10, 16, 1), dtype=bool)
    end_s[0, 1], end_s[1, 1] = 1.0, -1.0  # the clock of stage 1
    end_s[0, 1, 2:, :8] += 20.0
    end_s[1, 1, 2:, 8:] += 20.0
    end_s[:, 1, 0] -= 30.0
    filled[:, 1, 0] = True
    members = [(way + i, way + 10 + i) for way in (0, 20) for i in range(10)]
    moves = Events.of([Event(found, across_dp=False, completes=found) for found in members])
    op = nodes(*(kind for kind in kinds for _ in range(10)))
    shape = (40, 16, 1)
    block = SimpleNamespace(
        nodes=op, end_s=end_s.reshape(shape), filled=filled.reshape(shape), steps=np.arange(16), n_dp=1
    )
    usual_s, moved_s = clocks._along_stages([(block, SimpleNamespace(moves=moves))], 2, [1], 0.0)  # type: ignore[list-item]
    assert usual_s.tolist() == [[0.0, 1.0]]
    assert not moved_s.any()


def test_what_is_late_in_one_direction_from_a_step_on_is_no_clock() -> None:
    """And later in the other: as far apart as by a clock that moves, and later in one step than in another."""
    late_s = np.where(np.arange(16) < 8, 0.0, 10.0)
    for other_s, is_clock in ((np.full(16, 5.0), False), (late_s, False), (-late_s, True)):
        moved_s = clocks._along_stages(
            pair(10.0 - late_s if other_s is late_s else late_s, other_s, n_steps=16), 2, [1], 0.0
        )[1]
        assert moved_s.any() == is_clock


def test_sixteen_steps_are_looked_at() -> None:
    """Of more, evenly spread ones: every second of 17 to 32."""
    late = np.where(np.arange(17) % 2, 9.0, 1.0)
    for n, apart_s in ((17, 1.0), (16, 0.0)):
        (usual_s,) = clocks.estimate_clocks(pair(late[:n], -late[:n], n_steps=n)).usual_s
        assert usual_s[1] - usual_s[0] == apart_s


@pytest.mark.parametrize(
    ("offset_s", "forward_s", "found"),
    [(0.00019, 0.0, 0.0), (0.00021, 0.0, 0.000105), (0.00021, 0.06, 0.0), (0.00025, 0.06, 0.000125)],
)
def test_offsets_within_the_timers_granularity_are_left_alone(offset_s: float, forward_s: float, found: float) -> None:
    """Below 100 us, and below 0.2% of a typical forward, on either side of the median."""
    estimated = clocks.estimate_clocks(pair(offset_s, -offset_s, forward_s=forward_s))
    assert estimated.usual_s[0].tolist() == pytest.approx([-found, found])


@pytest.mark.parametrize(("spread", "found"), [(0.4, [-1.0, 0.0, 1.0]), (0.5, [0.0, 0.0, 0.0]), (0.6, [0.0, 0.0, 0.0])])
def test_ranks_are_compared_by_collectives(spread: float, found: list[float]) -> None:
    """With the median rank, where the difference is more than twice its spread."""
    wide = spread * np.array([-1.0, -1.0, 0.0, 1.0, 1.0])
    ends = np.stack([-1.0 - wide, wide * 0.0, 1.0 + wide], axis=1)[None]
    block = SimpleNamespace(
        nodes=nodes((Op.ALL_GATHER, 0)), start_s=ends - 1.0, end_s=ends, steps=np.arange(5), n_dp=3, filled=None
    )
    for across_dp in (True, False):
        moves = Events.of([Event((0,), across_dp=across_dp, completes=(0,))])
        along = np.zeros((3, 1)), np.zeros((5, 3, 1))
        offset_s, _ = clocks._across_ranks([(block, SimpleNamespace(moves=moves))], *along, [1], 0.0)
        assert offset_s.tolist() == pytest.approx(found if across_dp else [0.0] * 3)


def test_steps_begin_as_late_as_they_were_recorded_to() -> None:
    """Corrected times are moved so that the first operation keeps its start; never to before the step."""
    block = SimpleNamespace(
        nodes=nodes((Op.FORWARD, 0), (Op.FORWARD, 1)),
        start_s=np.array([[[0.5], [-0.5]], [[0.75], [2.0]]]),
        steps=np.arange(2),
    )
    # Stage 1 is 0.5 s ahead: its first operation began at 0.25 and 1.5.
    assert clocks._move_origin(block, clocks.Clocks(np.array([[0.0, 0.5]]))).tolist() == [-0.25, -0.5]


def test_rows_go_on_in_the_next_step() -> None:
    """What ends after the next step has begun is a row of that step, too; not behind the last step, a gap or a restart."""
    ends = {5: (12.0, 9.0), 6: (12.0,), 7: (99.0,)}
    rows = rows_of(*((Op.CHECKPOINT, step, 8.0, end_s) for step, found in ends.items() for end_s in found))
    trace = SimpleNamespace(
        step_origin_s=np.array([0.0, 10.0, 20.0, 40.0]), steps=np.array([5, 6, 7, 9]), restarted_steps=[]
    )
    found = carry_over(rows, trace)
    assert found.step.tolist() == [5, 5, 6, 7, 6, 7]
    assert (found.start_s[4:].tolist(), found.end_s[4:].tolist()) == ([-2.0, -2.0], [2.0, 2.0])
    trace.restarted_steps = [7]
    assert carry_over(rows, trace).step.tolist() == [5, 5, 6, 7, 6]


def test_rows_go_on_in_the_next_step_where_each_has_its_own_times() -> None:
    """The next step begins as the first worker is through: dp rank 0 logs for 2 s more, or until it begins; not behind a gap."""
    start_s = np.array([[[0.0, 0.0], [1.5, 0.0], [2.0, 0.0], [0.0, 0.0]]])
    steps = np.array([5, 6, 7, 9])
    trace = SimpleNamespace(
        step_origin_s=None,
        steps=steps,
        restarted_steps=[],
        n_dp=2,
        n_stages=1,
        blocks=[
            SimpleNamespace(
                nodes=nodes((Op.FORWARD, 0)), start_s=start_s, end_s=np.full((1, 4, 2), 8.0), steps=steps, n_dp=2
            )
        ],
    )
    rows = rows_of(*((Op.CHECKPOINT, step, 8.0, 10.0) for step in (5, 6, 7)))
    found = carry_over(rows, trace)
    assert found.step.tolist() == [5, 6, 7, 6, 7]
    assert (found.start_s[3:].tolist(), found.end_s[3:].tolist()) == ([0.0, 0.0], [1.5, 2.0])
    # Where times count from when the last worker was there rows have been moved to the first operation, and steps are with them.
    (block,) = trace.blocks
    block.start_s, block.end_s = start_s - 0.5, block.end_s - 0.5
    again = carry_over(rows, trace)
    assert (again.start_s[3:].tolist(), again.end_s[3:].tolist()) == ([0.0, 0.0], [1.5, 2.0])
    block.start_s = start_s
    # Where rows are lost nobody knows when a worker was through, and other rows do not say.
    trace.blocks[0].end_s = np.array([[[8.0, 8.0], [NAN, NAN], [NAN, NAN], [8.0, 8.0]]])
    two = dataclasses.replace(rows_of((Op.GC, 6, 8.0, 10.0), (Op.GC, 6, 4.0, 5.0)), dp=np.array([0, 1]))
    assert carry_over(two, trace).step.tolist() == [6, 6]
    trace.blocks[0].end_s = np.full((1, 4, 2), 8.0)
    # Where all log, all are through as late.
    both = [(Op.CHECKPOINT, 5, 8.0, 10.0), (Op.CHECKPOINT, 5, 8.0, 10.0)]
    everybody = dataclasses.replace(rows_of(*both), dp=np.array([0, 1]))
    assert carry_over(everybody, trace).step.tolist() == [5, 5]


# ------------------------------------------------------------------------------------------ launch delays, rows, lanes


def late_job(delays: dict[int, Any], *, filled: Any = None, n_dp: int = 1) -> Any:
    """Give two stages with two forwards and a send each; launch delays by node over 4 steps of 10 s, and dp ranks."""
    found = nodes(*((op, stage) for stage in (0, 1) for op in (Op.FORWARD, Op.FORWARD, Op.FORWARD_SEND)))
    found.seq[[1, 4]] = 1
    block: Any = SimpleNamespace(
        nodes=found, end_s=np.full((6, 4, n_dp), 10.0), step_ends_s=np.full(4, 10.0), filled=filled
    )
    whole = np.array([np.reshape(delays.get(n, np.zeros(4 * n_dp)), (4, n_dp)) for n in range(6)])
    moves = Events.of([Event((n,), across_dp=False, completes=(n,)) for n in range(6)])
    graph = Graph(Ragged.of([(), (0,), (1,), (), (3,), (4,)]), moves, {}, (), frozenset())
    return Observed(block, graph, whole, whole)


@pytest.mark.parametrize(
    ("node", "delay", "excess"),
    [
        (2, [0.29, 0.0, 0.0, 0.0], [0.29, 0.0, 0.0, 0.0]),
        (2, [0.3, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0]),
        (2, [0.31, 0.1, 0.1, 0.1], [0.21, 0.0, 0.0, 0.0]),
        (2, [1.0, 1.0, 1.0, 1.0], [0.9, 0.9, 0.9, 0.9]),
        (0, [0.16, 0.1, 0.1, 0.1], [0.06, 0.0, 0.0, 0.0]),
        (0, [0.15, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0]),
        (1, [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]),
        (3, [0.0001, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
        (3, [0.00011, 0.0, 0.0, 0.0], [0.00011, 0.0, 0.0, 0.0]),
    ],
    ids=["once", "three times", "more", "always", "the first forward", "nearly", "input", "short", "less short"],
)
def test_delays_beyond_the_ordinary(node: int, delay: list[float], excess: list[float]) -> None:
    """Three times the usual, at most a percent of the step; half of that before the first forward; none at the input elsewhere."""
    found = delay_excess(late_job({node: np.array(delay)}))
    assert found.get(node, np.zeros((4, 1)))[:, 0].tolist() == pytest.approx(excess)
    assert set(found) <= {node}
    assert delay_excess(late_job({node: np.array(delay)}, filled=np.ones((6, 4, 1), dtype=bool))) == {}


@pytest.mark.parametrize("ranks_s", [(0.0, 0.1), (0.0, 0.1, 0.0), (0.02, 0.08)])
def test_who_is_late_in_all_steps_is_so_by_all_that_others_are_not(ranks_s: tuple[float, ...]) -> None:
    """Of two ranks the quicker says what is usual, of more the middle."""
    late = np.tile(ranks_s, (4, 1))
    found = delay_excess(late_job({2: late}, n_dp=len(ranks_s)))
    assert found[2] == pytest.approx(np.where(late == max(ranks_s), late - ranks_s[0], 0.0))


def test_a_loader_is_measured_by_other_computes() -> None:
    """What forwards of the first stage usually wait is compared with delays of computes elsewhere."""
    late = {1: np.full(4, 0.2), **{n: np.full(4, 0.05) for n in (3, 4)}}
    assert delay_excess(late_job(late))[1][:, 0].tolist() == pytest.approx([0.15] * 4)


def test_what_is_left_of_the_step_before_is_no_delay() -> None:
    """What a worker begins a step with waits from its own last end on; what waits for something else waits as ever."""
    late, carried_s = np.array([0.0, 0.0, 0.4, 0.4]), np.zeros((2, 4, 1))
    carried_s[1, 2] = 0.5
    found = delay_excess(late_job({3: late, 5: late}), carried_s)
    assert {node: excess[:, 0].tolist() for node, excess in found.items()} == {
        3: pytest.approx([0.0, 0.0, 0.0, 0.4]),
        5: pytest.approx([0.0, 0.0, 0.3, 0.3]),
    }


def carried(
    steps: Any, places: Any, start_s: Any, end_s: Any, restarted: tuple[int, ...] = (), origin_s: Any = None
) -> Any:
    """Measure what two stages of one rank still do of the step before: operations by step, in which each begins and ends."""
    start_s, end_s = (np.broadcast_to(np.array(of)[..., None], (len(of), len(steps), 1)) for of in (start_s, end_s))
    block = SimpleNamespace(steps=np.array(steps), nodes=places, start_s=start_s, end_s=end_s, filled=None)
    origin_s = None if origin_s is None else np.array(origin_s)
    trace = SimpleNamespace(steps=block.steps, n_stages=2, n_dp=1, restarted_steps=restarted, step_origin_s=origin_s)
    (found,) = measure_carried(trace, [SimpleNamespace(block=block)])
    return found[..., 0].tolist()


@pytest.mark.parametrize(
    ("last", "origin_s", "expected"),
    [
        (Op.OPTIMIZER, [0.0, 8.0, 18.0, 60.0], [[0.0, 2.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]),
        (Op.BACKWARD, [0.0, 12.0, 18.0, 60.0], [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]),
        (Op.OPTIMIZER, None, [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]),
        (Op.BACKWARD, None, [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]),
    ],
    ids=[
        "steps run into each other",
        "a pause between",
        "the clock of each step",
        "the clock of each step, computes alone",
    ],
)
def test_what_workers_still_do_of_the_step_before(last: Op, origin_s: Any, expected: list[list[float]]) -> None:
    """From when the next step began; where nobody says, that is when who begins it first had ended, if its end is recorded."""
    start_s = [[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 1.0, 0.0]]
    end_s = [[10.0, 6.0, 6.0, 6.0], [9.0, 7.0, 5.0, 5.0]]
    places = nodes((Op.FORWARD, 0), (last, 1))
    assert carried([4, 5, 6, 9], places, start_s, end_s, origin_s=origin_s) == expected


def test_who_waits_from_the_beginning_does_not_begin_a_step() -> None:
    """Stage 1 ends each step 2 s before stage 0 and waits for the next: that begins with stage 0, which carries nothing over."""
    places = nodes((Op.FORWARD, 0), (Op.OPTIMIZER, 0), (Op.FORWARD_RECV, 1), (Op.FORWARD, 1))
    found = carried(range(3), places, [[0.001], [4.0], [0.0], [3.0]], [[3.0], [10.0], [3.0], [8.0]])
    assert found == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_who_ends_a_step_first_begins_the_next_with_a_wait() -> None:
    """Stage 0 gathers for 2 s more: it begins the next step at once, and waits for no loader."""
    places = nodes((Op.FORWARD, 0), (Op.ALL_GATHER, 0), (Op.FORWARD_RECV, 1), (Op.ALL_GATHER, 1))
    found = carried(range(3), places, [[2.0], [4.0], [0.0], [3.0]], [[3.0], [10.0], [3.0], [8.0]])
    assert found == [[0.0, 2.0, 2.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("last", "restarted", "expected"),
    [
        (Op.OPTIMIZER, (), [[0.0, 0.0, 0.0], [0.0, 2.0, 2.0]]),
        (Op.OPTIMIZER, (24,), [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]]),
        (Op.BACKWARD, (), [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
    ids=["the usual one", "after a restart", "computes alone"],
)
def test_what_workers_do_of_a_step_that_was_not_sampled(
    last: Op, restarted: tuple[int, ...], expected: list[list[float]]
) -> None:
    """Of each tenth step: stage 1 ends each 2 s after the stage that begins the next, but for one step; no loader keeps it."""
    start_s = [[0.0, 0.0, 0.0], [2.0, 2.5, 1.5]]
    end_s = [[10.0, 11.0, 9.0], [12.0, 13.0, 15.0]]
    places = nodes((Op.FORWARD, 0), (last, 1))
    for origin_s in (None, [0.0, 100.0, 200.0]):
        assert carried([4, 14, 24], places, start_s, end_s, restarted, origin_s) == expected


def rows_of(*found: tuple[Op, int, float, float]) -> Evidence:
    """Give rows of a type in a step (by number), from and to a time, of dp rank 0 on stage 0."""
    op, step, start, end = (np.array(column) for column in zip(*found, strict=True))
    return Evidence(op.astype(np.int64), step, step * 0, step * 0, start.astype(float), end.astype(float))


def computing(n_steps: int = 4) -> Any:
    """Give a block of one forward from 1 s to 3 s in steps 10, 11, .., on one worker."""
    found = Nodes(np.array([int(Op.FORWARD)]), np.array([0]), np.array([0]), np.array([0]), np.array([0]))
    start_s = np.ones((1, n_steps, 1))
    return SimpleNamespace(
        block=SimpleNamespace(nodes=found, steps=np.arange(10, 10 + n_steps), start_s=start_s, end_s=3.0 * start_s)
    )


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([(Op.GC, 11, 1.0, 1.31)], StallKind.COLLECTION),
        ([(Op.GC, 11, 1.0, 1.29)], StallKind.NOBODY),
        ([(Op.GC, 11, 0.0, 1.2), (Op.CUDA_MALLOC, 11, 1.2, 1.6)], StallKind.ALLOCATION),
        ([(Op.GC, 11, 2.6, 9.0), (Op.CUDA_MALLOC, 11, 1.2, 1.55)], StallKind.COLLECTION),
        ([(Op.GC, 12, 1.0, 3.0)], StallKind.NOBODY),
        ([(Op.GC, 99, 1.0, 3.0)], StallKind.NOBODY),
        ([(Op.GC, 11, 2.0, 2.0)], StallKind.NOBODY),
    ],
    ids=["covers", "too little", "the longer", "the longer within", "another step", "no step", "no length"],
)
def test_rows_say_what_a_stall_is(rows: Any, kind: StallKind) -> None:
    """Where they cover three tenths of it; of several the one that covers most."""
    stall_s = np.zeros((2, 1, 1, 4, 1))
    stall_s[0, 0, 0, 1] = 1.0
    kinds, said = attribute_by_rows([computing()], rows_of(*rows), stall_s, 1)
    assert kinds[0, 0, 0, 1, 0] == kind
    assert np.count_nonzero(kinds) == np.count_nonzero(said) == (kind != StallKind.NOBODY)
    assert not attribute_by_rows([computing()], rows_of(*rows), stall_s * 0.0, 1)[1].any()


def test_rows_are_taken_out_of_computes_that_they_make_longer() -> None:
    """A collection of 1 s in a forward of 3 s among those of 2 s; a loader beside a compute makes none longer."""
    compute_s = np.full((2, 1, 1, 4, 1), 2.0)
    rows = rows_of((Op.GC, 11, 1.0, 2.0))
    assert without_recorded_pauses([computing()], rows, compute_s, 1) is compute_s
    longer = compute_s.copy()
    longer[0, 0, 0, 1] = 3.0
    np.testing.assert_array_equal(without_recorded_pauses([computing()], rows, longer, 1), compute_s)
    assert without_recorded_pauses([computing()], rows_of((Op.GC, 11, 1.0, 1.0)), longer, 1) is longer
    # What covers nearly all of a compute is no part of its work.
    whole = rows_of((Op.GC, 10, 1.0, 2.0), (Op.GC, 11, 1.0, 2.0), (Op.GC, 13, 1.0, 3.0))
    longer[0, 0, 0, :2] = 3.0
    np.testing.assert_array_equal(without_recorded_pauses([computing()], whole, longer, 1), compute_s)
    # Each type for itself: those beside other computes made none longer.
    longer[0, 0, 0, 0] = 2.0
    beside = rows_of((Op.GC, 11, 1.0, 2.0), (Op.CUDA_MALLOC, 12, 1.0, 2.5), (Op.DATA_LOAD, 13, 1.0, 2.5))
    np.testing.assert_array_equal(without_recorded_pauses([computing()], beside, longer, 1), compute_s)
    elsewhere = rows_of((Op.GC, 99, 1.0, 2.0), (Op.EVAL, 11, 1.0, 2.0))
    np.testing.assert_array_equal(without_recorded_pauses([computing()], elsewhere, longer, 1), compute_s)


def test_what_other_work_adds_inside_operations_is_told_a_step() -> None:
    """Mean seconds a step of each type that has any."""
    excess_s = {3: np.array([[4.0], [0.0]]), 5: np.array([[1.0], [1.0]])}
    block = SimpleNamespace(steps=np.arange(2), n_dp=1)
    none = rows_of((Op.GC, 0, 0.0, 0.0)).take(np.zeros(0, dtype=np.int64))
    o: Any = SimpleNamespace(block=block, others=none, inside_s={1: excess_s}, busy=None, met=frozenset())
    (work,) = describe_types([o], ["log", "probe"], 1)
    assert (work.name, work.uneven_s) == ("probe", 3.0)


def test_rows_of_a_lane_are_joined() -> None:
    """Where they overlap or touch; each worker and step is a lane of its own."""
    keys = Keys(0.0, 100.0, 2, 1)
    rows = Evidence(
        *np.zeros((4, 5), dtype=np.int64), np.array([5.0, 1.0, 2.0, 3.0, 1.0]), np.array([6.0, 2.0, 3.0, 3.5, 4.0])
    )
    rows = dataclasses.replace(rows, step=np.array([0, 0, 0, 0, 1]))
    union = Union.of(keys, rows)
    assert (union.begin[1:].tolist(), union.end[1:].tolist()) == ([1.0, 5.0, 101.0], [3.5, 6.0, 104.0])
    at = np.array([0.0, 1.0, 2.0, 3.5, 4.0, 5.5, 50.0, 102.0, 150.0])
    assert union.until(at).tolist() == [0.0, 0.0, 1.0, 2.5, 2.5, 3.0, 3.5, 4.5, 6.5]
    assert [found[[1, 2, 4, 6]].tolist() for found in union.last(at)] == [[-np.inf, 1, 1, 5], [-np.inf, 3.5, 3.5, 6]]
    assert not Union.of(keys, rows.take(rows.op == 1)).until(at).any()  # there are no such rows
    assert _last_before(
        np.array([1.0, 4.0]), np.array([0.5, 1.0, 3.0, 9.0]), np.array([0.0, 0.0, 2.0, 2.0])
    ).tolist() == [0, 1, 2, 4]
    assert keys.at(np.array([0, 1]), np.array([-1.0, 99.0])).tolist() == [0.0, 150.0]
    assert (keys.lanes(1).ravel().tolist(), int(keys.lane(1, 1, 0))) == ([2, 3], 3)


def test_computes_that_took_no_time_are_missing() -> None:
    """So is what was filled in; the others stand at their direction, virtual stage and microbatch."""
    o = computing(3)
    o.own, o.block.n_dp = [np.array([[2.0], [0.0], [3.0]])], 1
    o.block.filled = np.array([[[False], [False], [True]]])
    found = gather_computes([o], 1)
    assert found.shape == (2, 1, 1, 3, 1)
    np.testing.assert_array_equal(found[0, 0, 0, :, 0], [2.0, NAN, NAN])
    assert np.isnan(found[1]).all()


def test_transfers_run_apart_where_they_overlap_computes() -> None:
    """A tenth of the next compute, in more than a twentieth of the times."""
    kinds = nodes((Op.FORWARD_SEND, 0), (Op.FORWARD, 0))
    for end, n, apart in ((0.11, 6, True), (0.11, 5, False), (0.09, 100, False)):
        end_s = np.zeros((2, 100))
        end_s[0, :n], end_s[1] = end, 1.0
        sample = SimpleNamespace(start_s=np.zeros((2, 100)), end_s=end_s)
        assert (int(Op.FORWARD_SEND) in _types_apart(kinds, sample, [np.array([0, 1])])) == apart
    assert int(Op.REDUCE_SCATTER) in _types_apart(kinds, sample, [np.array([1, 0])])


def test_what_ends_as_a_compute_starts_was_waited_for() -> None:
    """The first that was in flight before the delay and ends then, to a tolerance; gathers may follow each other."""
    kinds = nodes((Op.FORWARD_SEND, 0), (Op.FORWARD_SEND, 0), (Op.ALL_GATHER, 0), (Op.FORWARD, 0))
    start_s, end_s = np.zeros((4, 1, 1)), np.array([4.0, 5.0, 4.6, 6.0]).reshape(4, 1, 1)
    o = SimpleNamespace(block=SimpleNamespace(nodes=kinds, start_s=start_s, end_s=end_s))
    at, delay, among = np.full((1, 1), 5.0), np.full((1, 1), 2.0), np.ones((1, 1), dtype=bool)

    def found(sources: list[int], tolerance: float = 0.1, **changes: Any) -> list[int]:
        asked = {"delay": delay, "among": among} | changes
        within_s = np.full((1, 1), 0.1), np.full((1, 1), tolerance)
        return list(_ends_then(o, sources, at, asked["delay"], within_s, asked["among"]))

    assert found([0, 1, 2]) == [1]
    assert found([0, 2]) == [2]
    assert found([0, 1], tolerance=1.0) == [0]
    assert found([1], among=~among) == []
    end_s[1] = 5.2  # nobody waits for what goes on while he runs
    assert found([1], tolerance=1.0) == []
    end_s[1] = 5.0
    start_s[1] = 3.2
    assert found([1]) == []
    assert found([1], tolerance=0.2) == [1]
    assert found([2], delay=np.full((1, 1), 1.0)) == []


@pytest.mark.parametrize(("op", "n_waits"), [(Op.FORWARD_SEND, 40), (Op.ALL_GATHER, 16)])
def test_what_may_be_in_flight(op: Op, n_waits: int) -> None:
    """Each of 40 computes starts beside the send before it; of gathers, which are one a chunk, the last 16 are asked."""
    kinds = nodes(*[(op, 0)] * 40, *[(Op.FORWARD, 0)] * 40)
    kinds = dataclasses.replace(kinds, chunk=np.tile(np.arange(40), 2))
    start_s = np.concatenate([np.arange(40.0), np.arange(40.0) + 0.1])[:, None, None] * np.ones((1, 4, 1))
    o: Any = SimpleNamespace(block=SimpleNamespace(nodes=kinds, start_s=start_s, end_s=start_s + 0.9))
    found = {waits.node - 40: waits.sources for waits in _in_flight(o, op, 1)}
    assert list(found) == list(range(40 - n_waits, 40))
    assert all(node in sources for node, sources in found.items())
    assert max(map(len, found.values())) == (3 if op == Op.FORWARD_SEND else 16)


# ------------------------------------------------------------------------------------------ hidden barriers


def test_means_of_lanes() -> None:
    """Over the steps that recorded it."""
    assert _lane_mean(np.array([[1.0, NAN, NAN], [3.0, 4.0, NAN]])).tolist() == [2.0, 4.0, 0.0]


@pytest.mark.parametrize(
    ("n_early", "early_s", "beyond_s", "delay_s", "holds"),
    [
        (0, 0.0, 0.49, 1.0, True),
        (0, 0.0, 0.51, 1.0, False),
        (3, 0.2, 0.0, 1.0, True),
        (4, 0.2, 0.0, 1.0, False),
        (50, 0.00009, 0.0, 0.004, True),
        (50, 0.00011, 0.0, 0.004, False),
        (50, 0.019, 0.0, 1.0, True),
        (50, 0.021, 0.0, 1.0, False),
    ],
    ids=[
        "explains half",
        "too little",
        "3 of 100 early",
        "4 of 100",
        "as clocks",
        "earlier",
        "for so long",
        "too early",
    ],
)
def test_a_wait_holds_in_nearly_all_steps_and_explains_half(
    n_early: int, early_s: float, beyond_s: float, delay_s: float, holds: bool
) -> None:
    """Never earlier than clocks agree, or by 2% of the wait, in 97 of 100 steps; the rest of the delay is less than half of it."""
    beyond, delay = np.full((100, 1), beyond_s), np.full((100, 1), delay_s)
    beyond[:n_early] = -early_s
    assert _holds(beyond, delay, np.array([True])).tolist() == [holds]
    assert _holds(beyond, delay, np.array([False])).tolist() == [False]
    # What was not recorded is not early.
    unknown = np.vstack([beyond, np.full((1, 1), NAN)])
    assert _holds(unknown, np.vstack([delay, [[NAN]]]), np.array([True])).tolist() == [holds]


def find(
    ends: list[float], *, stages: list[int], n_dp: int = 1, start: float = 3.0, delay: float = 2.0
) -> Barrier | None:
    """Look for what the last node, on stage 0, waits for: `ends` are those of the others, in all of 4 steps."""
    end_s = np.array(ends)[:, None, None] * np.ones((1, 4, n_dp))
    found = nodes(*((Op.FORWARD, stage) for stage in [*stages, 0]))
    all_lanes = np.ones(n_dp, dtype=bool)
    whole = np.full((4, n_dp), delay)
    return _find_barrier(
        found, np.full((len(ends) + 1, 4, n_dp), start), end_s, len(ends), whole, all_lanes, list(range(len(ends)))
    )


def test_the_wait_that_explains_most_is_found() -> None:
    """Of two, the one that ends nearest before the start; of equals the first."""
    for ends, source in (([2.5, 2.9], 1), ([2.9, 2.5], 0), ([2.9, 2.9], 0), ([2.5, 3.5], 0)):
        assert find(ends, stages=[1, 1]) == Barrier((source,), across_dp=False, lanes=None)
    assert find([1.5], stages=[1]) is None
    assert find([3.5], stages=[1]) is None


def test_on_its_own_worker_a_wait_is_none() -> None:
    """Unless it is for all data-parallel ranks, of which there must be several."""
    assert find([2.9], stages=[0]) is None
    assert find([2.9], stages=[0], n_dp=2) == Barrier((0,), across_dp=True, lanes=None)


def test_several_waits_share_the_ranks() -> None:
    """Each is of the ranks that those before it did not explain; what they leave of the delay is told."""
    found = nodes((Op.FORWARD, 1), (Op.FORWARD, 2), (Op.FORWARD, 0))
    end_s = np.ones((3, 4, 2))
    end_s[0, :, 0], end_s[1, :, 1], end_s[0, :, 1], end_s[1, :, 0] = 2.9, 2.8, 9.0, 9.0
    start_s, delay = np.full((3, 4, 2), 3.0), np.full((4, 2), 2.0)
    waits = _find_barriers(found, start_s, end_s, 2, delay, np.ones(2, dtype=bool), [0, 1])
    assert [(w.sources, w.lanes.tolist()) for w in waits] == [((0,), [True, False]), ((1,), [False, True])]
    np.testing.assert_allclose(_left_over(start_s[2], end_s, delay, waits), [[0.1, 0.2]] * 4)
    whole = (Barrier((0,), across_dp=True, lanes=None),)
    np.testing.assert_allclose(_left_over(start_s[2], end_s * 0.1, delay, whole), [[2.0, 2.0]] * 4)


def test_of_waits_the_one_that_leaves_least_of_the_delay_is_taken() -> None:
    """A step in which nothing was late counts for none; nor is it enough to explain one rank well, and the other not."""
    found, start_s = nodes((Op.FORWARD, 1), (Op.FORWARD, 2), (Op.FORWARD, 0)), np.full((3, 4, 2), 10.0)
    delay = np.array([2.0, 2.0, 2.0, 0.0])[:, None] * np.ones((1, 2))
    end_s = np.full((3, 4, 2), 9.7)
    end_s[0] = np.array([9.9, 9.9, 9.9, 1.0])[:, None]
    both = np.ones(2, dtype=bool)
    assert _find_barrier(found, start_s, end_s, 2, delay, both, [1, 0]) == Barrier((0,), across_dp=False, lanes=None)
    end_s[0] = [9.9, 12.0]
    assert _find_barrier(found, start_s, end_s, 2, delay, both, [0, 1]) == Barrier((1,), across_dp=False, lanes=None)


def test_what_is_late_in_one_step_is_not_late() -> None:
    """On the mean over steps of one rank at least; what waits for nothing is never late."""
    graph: Any = SimpleNamespace(sources=Ragged.of([(), (0,), (0,)]))
    start_s, end_s = np.ones((2, 3, 4, 2))
    start_s[0], start_s[1, 0], start_s[2, :, 1] = 9.0, 2.0, 1.4
    assert _list_late(graph, start_s, end_s, 0.3) == {2}


# ------------------------------------------------------------------------------------------ batches


def lanes(
    start_s: Any, end_s: Any = None, *, n_dp: int = 1, filled: Any = None, kinds: Any = None, step_s: float = 10.0
) -> SampledLanes:
    """Sample operations of one worker; shape (n_nodes, n_steps) or with dp ranks."""
    start = np.array(start_s, dtype=float)
    start = start[..., None] if start.ndim == 2 else start
    end = start if end_s is None else np.array(end_s, dtype=float).reshape(start.shape)
    kinds = kinds or [(Op.FORWARD_SEND, 0)] * len(start)
    block = SimpleNamespace(
        start_s=start, end_s=end, filled=filled, nodes=nodes(*kinds), step_ends_s=np.array([step_s])
    )
    return SampledLanes(block)


def single_events(n: int) -> Events:
    """Let each of so many operations be an event of its own."""
    return Events.of([Event((node,), across_dp=False, completes=(node,)) for node in range(n)])


@pytest.mark.parametrize(
    ("n_steps", "n_dp", "n_lanes"), [(512, 1, 512), (1023, 1, 1023), (1024, 1, 512), (512, 2, 342), (513, 3, 385)]
)
def test_lanes_are_sampled_from_all_ranks(n_steps: int, n_dp: int, n_lanes: int) -> None:
    """512 and up to twice as many; the stride is no divisor of the ranks, so that all of these are looked at."""
    sample = lanes(np.arange(n_steps * n_dp, dtype=float).reshape(1, n_steps, n_dp))
    assert sample.start_s.shape == (1, n_lanes)
    assert len({int(at) % n_dp for at in sample.start_s[0]}) == n_dp


@pytest.mark.parametrize(("n_apart", "together"), [(0, True), (3, True), (4, False), (100, False)])
def test_a_batch_starts_and_ends_as_one(n_apart: int, together: bool) -> None:
    """In 97 of 100 lanes, by its starts and by its ends; what was not recorded says nothing."""
    first, second = np.zeros((2, 100))
    second[-n_apart or 100 :] = 1.0
    for start, end in (((first, second), (first, first)), ((first, first), (first, second))):
        groups = _group_alike(lanes(start, end), np.arange(2), 1e-6)
        assert groups == ([(0, 1)] if together else [])
    starts = np.column_stack([[first, second], [[0.0], [NAN]]])
    assert _group_alike(lanes(starts), np.arange(2), 1e-6) == ([(0, 1)] if together else [])


def test_batches_have_neighbours() -> None:
    """One of four groups before it is joined; a fifth is too far. Alone nobody is a batch, and three are one, not two."""
    assert _group_alike(lanes([[0.0] * 4] * 3), np.arange(3), 1e-6) == [(0, 1, 2)]
    at = [0.0, 1.0, 2.0, 3.0, 0.0]
    assert _group_alike(lanes([[t] * 4 for t in at]), np.arange(5), 1e-6) == [(0, 4)]
    at = [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]
    assert _group_alike(lanes([[t] * 4 for t in at]), np.arange(6), 1e-6) == []


def test_how_exact_times_are() -> None:
    """20 us, a thousandth of a typical forward, or twice the noise of computes that seem to overlap; float32 late in a step."""
    forward = [(Op.FORWARD, 0), (Op.FORWARD, 0)]
    assert lanes([[0.0], [0.5]], [[0.0], [0.5]]).tolerance_s == 20e-6
    assert lanes([[0.0], [0.5]], [[0.5], [1.0]], kinds=forward).tolerance_s == pytest.approx(0.5e-3)
    overlapping = lanes([[0.0], [0.4]], [[0.5], [1.0]], kinds=forward)
    assert overlapping.tolerance_s == pytest.approx(0.2)
    assert overlapping.blurred_s == pytest.approx(0.2)
    assert lanes([[0.0]], [[1.0]]).granularity_s == pytest.approx(GRANULARITY_S + 4 * 2.0**-23)
    assert lanes([[0.0]], [[1.0]]).blurred_s == lanes([[0.0]], [[1.0]]).granularity_s


def test_the_share_of_lanes_in_which_a_wait_holds() -> None:
    """Among those that recorded both; one by one as many at once."""
    starts, ends = [[0.0] * 4, [1.0, 1.0, 0.5, NAN]], [[1.0] * 4, [2.0] * 4]
    assert lanes(starts, ends).held_shares(np.array([0]), np.array([1])).tolist() == [pytest.approx(2 / 3)]
    whole = lanes([[0.0] * 4, [1.0, 1.0, 0.5, 1.0 - 19e-6]], ends)
    both_ways = whole.held_shares(np.array([0, 1]), np.array([1, 0]))
    assert both_ways.tolist() == [0.75, 0.0] == [whole.held_share(0, 1), whole.held_share(1, 0)]
    assert lanes([[NAN] * 2, [1.0] * 2], [[NAN] * 2, [2.0] * 2]).held_share(0, 1) == 0.0
    # By more than a tenth of the step it is as many lanes as three.
    far = lanes([[0.0] * 8, [0.5] + [1.0] * 7], [[1.0] * 8, [2.0] * 8], step_s=2.0)
    assert far.held_shares(np.array([0]), np.array([1])).tolist() == [0.5] and far.held_share(0, 1) == 0.875


def test_a_recv_waits_for_what_it_begins_with_the_end_of() -> None:
    """For the send just before it; or for that and for the compute before, in some lanes; not if one lane denies both."""
    kinds = [(Op.FORWARD, 0), (Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 0)]
    for ends, starts, found in (
        ([[1.0, 1.0], [2.0, 2.0]], [2.0, 2.0], {1}),
        ([[1.0, 1.5], [1.0, 2.0]], [1.0, 2.0], {0, 1}),
        ([[1.0, 1.5], [1.0, 2.0]], [1.0, 2.5], set()),
    ):
        sample = lanes([[0.0, 0.0], ends[0], starts], [*ends, [3.0, 3.0]], kinds=kinds)
        waits: list[set[int]] = [set(), set(), set()]
        moved, ended = sample.start_s.mean(axis=1), np.array([0.9, 0.95, 3.0])
        _add_tied_waits(nodes(*kinds), sample, waits, np.arange(3), moved, ended)
        assert waits == [set(), set(), found]


def test_when_an_operation_usually_moves() -> None:
    """As late as its lane, where it is missing in another one that is ten seconds late; with its batch it ends at the last."""
    sample = lanes([[0.0, 10.0], [1.0, 11.0], [2.0, NAN]])
    moves_s, ends_s = _moving_times(sample, np.zeros((3, 2, 1)), single_events(3), [(0, 1)])
    assert moves_s.tolist() == [5.0, 6.0, 1.0 + (1.0 + 10.5) / 2]
    assert ends_s.tolist() == [6.0, 6.0, 6.75]


def test_when_an_operation_starts_that_no_lane_has_with_the_others() -> None:
    """On the mean of the lanes that have it."""
    start_s = np.array([[1.0, NAN, NAN], [NAN, 3.0, 5.0]])[:, :, None]
    block: Any = SimpleNamespace(nodes=nodes((Op.FORWARD, 0), (Op.FORWARD, 1)), start_s=start_s, steps=np.arange(3))
    assert typical_start(block).tolist() == [1.0, 4.0]


@pytest.mark.parametrize("n_steps", [4, 300])
def test_a_transfer_that_ends_before_it_begins_took_no_time(n_steps: int) -> None:
    """By more than clocks are off; a compute keeps what was recorded, however many lanes there are."""
    kinds = nodes((Op.FORWARD_SEND, 0), (Op.FORWARD_SEND, 0), (Op.FORWARD, 0))
    start_s = np.ones((3, n_steps, 1))
    block: Any = SimpleNamespace(
        nodes=kinds, start_s=start_s, end_s=start_s + np.array([-0.02, -0.005, -0.02])[:, None, None]
    )
    graph = Graph(Ragged.of([()] * 3), single_events(3), {}, (), frozenset())
    assert [own.max() for own in own_times(block, graph)] == pytest.approx([0.0, -0.005, -0.02])


def test_what_a_transfer_may_open_before_any_compute() -> None:
    """All that waits for nothing but transfers, and what such a compute would open not."""
    kinds = nodes((Op.FORWARD_RECV, 0), (Op.FORWARD, 0), (Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 0), (Op.FORWARD, 0))
    found = _opening(kinds, Ragged.of([(), (0,), (1,), (0,), (3, 1)]), single_events(5))
    assert found == {1, 3}


@pytest.mark.parametrize(("n_pairs", "n_lanes", "found"), [(1, 7, False), (6, 7, True), (1, 8, True)])
def test_few_lanes_show_computes_side_by_side_where_many_are(n_pairs: int, n_lanes: int, *, found: bool) -> None:
    """Below eight lanes a tenth of the computes of a worker that runs two at a time do at least; one pair may be chance."""
    kinds = nodes(*[(Op.FORWARD, 0)] * 24)
    kinds.seq[:] = np.arange(24)
    at = np.arange(24.0)
    at[1 : 2 * n_pairs : 2] -= 1.0
    start_s = at[:, None, None] * np.ones((1, n_lanes, 1))
    block: Any = SimpleNamespace(nodes=kinds, start_s=start_s, end_s=start_s + 0.9)
    pairs = {2 * n + side: {2 * n + 1 - side} for n in range(n_pairs) for side in (0, 1)}
    assert find_overlaps(block, at) == (pairs if found else {})


def test_a_transfer_is_long_against_the_step() -> None:
    """Where transfers take next to nothing, by half a thousandth of the step, whatever ends early in it."""
    kinds = nodes((Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 1), (Op.OPTIMIZER, 1))
    moves = Events.of([Event((0, 1), across_dp=False, completes=(0, 1)), Event((2,), across_dp=False, completes=(2,))])
    end_s = np.array([0.1, 0.1, 10.0])[:, None, None] * np.ones((1, 12, 2))
    block = Block(np.arange(12), kinds, end_s, end_s)
    for seconds, found in ((0.004, []), (0.006, [1])):
        own = np.full((3, 12, 2), 1e-6)
        own[1, 5, 1] = seconds
        o = Observed(block, Graph(Ragged.of([()] * 3), moves, {}, (), frozenset()), own, own)
        assert list(transfer_excess(o, [o])[0]) == found


def test_a_transfer_beside_a_collective_of_its_worker_has_half_of_the_card() -> None:
    """One that takes up to twice as long there is as quick as others; not so where it takes longer, or moves before or after."""
    kinds = nodes((Op.BACKWARD_SEND, 1), (Op.BACKWARD_RECV, 0), (Op.REDUCE_SCATTER, 1), (Op.REDUCE_SCATTER, 0))
    events = [Event((0, 1), across_dp=False, completes=(0, 1))]
    events += [Event((node,), across_dp=True, completes=(node,)) for node in (2, 3)]
    for seconds, group_end_s, found in ((0.19, 1.05, []), (0.25, 1.05, [0, 1]), (0.19, 0.8, [0, 1])):
        own = np.array([0.1, 0.1, 0.3, 0.3])[:, None, None] * np.ones((1, 12, 2))
        own[:2, 5, 1] = seconds
        end_s = np.array([1.0, 1.0, group_end_s, 2.0])[:, None, None] * np.ones((1, 12, 2))
        block = Block(np.arange(12), kinds, end_s - own, end_s)
        o = Observed(block, Graph(Ragged.of([()] * 4), Events.of(events), {}, (), frozenset()), own, own)
        assert list(transfer_excess(o, [o])[0]) == found


def test_what_stands_for_lost_rows_of_a_collective_is_no_ordinary_one() -> None:
    """Those that took no time are not there: all others are as they always were."""
    kinds = nodes((Op.ALL_GATHER, 0), (Op.ALL_GATHER, 1), (Op.OPTIMIZER, 1))
    moves = Events.of([Event((0,), across_dp=True, completes=(0,)), Event((1,), across_dp=True, completes=(1,))])
    own = np.full((3, 12, 4), 0.1) + np.random.default_rng(1).normal(0.0, 1e-3, (1, 12, 1))
    own[0, 3] = 0.0
    end_s = np.array([0.1, 0.1, 1.0])[:, None, None] * np.ones((1, 12, 4))
    filled = np.zeros(end_s.shape, dtype=bool)
    filled[0, 3] = True
    block = Block(np.arange(12), kinds, end_s, end_s, filled=filled)
    o = Observed(block, Graph(Ragged.of([()] * 3), moves, {}, (), frozenset()), own, own)
    assert not transfer_excess(o, [o])[0]


def test_what_a_worker_begins_a_step_with() -> None:
    """What waits for nothing, and the earliest forward or recv, which here waits for parameters; a stage without any has none."""
    kinds = [(Op.ALL_GATHER, 0), (Op.FORWARD, 0), (Op.FORWARD, 0), (Op.OPTIMIZER, 0)]
    start_s = np.array([0.0, 3.0, 1.0, 9.0]).reshape(4, 1, 1)
    graph = SimpleNamespace(sources=Ragged.of([(), (0, 2), (0,), (1,)]))
    o: Any = SimpleNamespace(block=SimpleNamespace(nodes=nodes(*kinds), start_s=start_s), graph=graph)
    found = [list_opening(o, np.arange(4)), list_opening(o, np.array([0, 3])), list_opening(o, np.array([0, 2]))]
    assert [(opening.free, opening.first) for opening in found] == [((0,), (2,)), ((0,), ()), ((0,), (2,))]


# ------------------------------------------------------------------------------------------ the clean step


def test_spans_are_united() -> None:
    """Each second counts once, whatever runs beside it; gaps do not count."""
    spans = [(2.0, 2.0), (3.0, 2.0), (9.0, 1.0), (8.9, 0.5)]  # ends and lengths: 0-2, 1-3, 8-9, 8.4-8.9
    found = [(np.array([end, end]), np.array([length, length])) for end, length in spans]
    assert _unite(found) == pytest.approx(4.0)
    assert _unite(found[::-1]) == pytest.approx(4.0)
    assert _unite([(np.array([2.0, 5.0]), np.array([2.0, 1.0]))]) == pytest.approx(1.5)
    assert _unite([]) == 0.0


def test_worlds_lie_one_behind_the_other() -> None:
    """An array where it is kept, else 0, on the axis of steps; lanes become steps."""
    array = np.array([[1.0, 2.0]])
    of_nodes, kept = (
        np.stack([np.broadcast_to(array, (2, 2)), np.full((2, 2), 3.0)]),
        np.array([[True, False, True], [False, True, False]]),
    )
    [first, second] = _lay_out(of_nodes, kept).tolist()
    assert first == [[1, 2], [1, 2], [0, 0], [0, 0], [1, 2], [1, 2]]
    assert second == [[0, 0], [0, 0], [3, 3], [3, 3], [0, 0], [0, 0]]
    assert _flatten(array, (2, 2)).tolist() == [[1], [2], [1], [2]]
    assert _flatten(array, (1, 2)).tolist() == [[1], [2]]
    assert _flatten(np.array([[3.0]]), (2, 2)).tolist() == [[3]]


@pytest.mark.parametrize("between_s", [0.0, 1.0, 99.0])
def test_the_parts_are_the_clean_step(monkeypatch: pytest.MonkeyPatch, between_s: float) -> None:
    """They add up to it with the time between steps; a step that comes out longer without something adds nothing."""
    measured = {
        # Work, then with everything, without transfers, collectives, meetings, delays, other rows: of 2 steps, then of 1.
        0: (8.0, np.array([22.0, 20.0, 18.0, 17.0, 12.0, 14.0])), 1: (4.0, np.array([11.0, 10.0, 9.0, 8.5, 6.0, 7.0]))
    }  # fmt: skip
    monkeypatch.setattr("diagnose.whatif.clean._measure_block", lambda o, *_: measured[o.number])
    observed = [SimpleNamespace(number=i, block=SimpleNamespace(steps=np.zeros(n))) for i, n in enumerate((4, 1))]
    removal = SimpleNamespace(
        present=lambda: ["worker"],
        observed=observed,
        sample_steps=lambda: [slice(0, 4, 2), slice(0, 1, 1)],
        change_steps=lambda *_: (None, None, None),
        between_without=lambda _: np.full(5, between_s),
    )
    found = split_clean(removal, 23.0)
    scale = max(23.0 - between_s, 0.0) / 11.0
    parts = (found.compute_s, found.bubble_s, found.others_s, found.host_s, found.collectives_s, found.transfers_s)
    assert parts == pytest.approx([scale * part for part in (4.0, 3.0, 0.0, 1.5, 0.5 + 1.0, 1.0)])
    assert found.between_s == min(between_s, 23.0)
    assert found.step_s == pytest.approx(23.0)


# ------------------------------------------------------------------------------------------ transfers, timelines, waits


def two_ends(own: list[float]) -> Any:
    """Give a send from stage 0 and its recv on stage 1, and a collective of stage 1, in two steps on two ranks."""
    found = nodes((Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 1), (Op.ALL_GATHER, 1))
    events = [Event(ends, across_dp=ends == (2,), completes=ends) for ends in ((0, 1), (2,))]
    graph = Graph(Ragged.of([(), (), ()]), Events.of(events), {}, (), frozenset())
    block: Any = SimpleNamespace(nodes=found, n_dp=2, start_s=np.zeros((3, 2, 2)))
    seconds = [np.full((2, 2), s) for s in own]
    return Observed(block, graph, seconds, seconds)


def measure_links(o: Observed, n_steps: int) -> tuple[Seconds, Seconds]:
    """Measure the links of one block."""
    return _measure_links([_by_link(o, _own_of_pairs(o))], 2, n_steps, 2)


def test_a_collective_takes_what_its_quickest_rank_does() -> None:
    """Of ranks that end apart in one collective the first says how long it took; a stage without any has none."""
    o = two_ends([3.0, 3.0, 5.0])
    o.own[2][:] = [[5.0, 7.0], [4.0, 5.0]]  # two steps on two ranks
    group_s = _measure_groups([o], 2)
    assert np.isnan(group_s[0]) and group_s[1] == 4.5


def test_seconds_of_slow_transfers() -> None:
    """Of a pair those of its recv: a send may be over before; of a group the longest rank's; ratios to what they take without."""
    o = two_ends([3.0, 3.0, 5.0])
    one, two = np.array([[2.0, 0.0], [2.0, 0.0]]), np.array([[1.5, 0.0], [2.0, 1.0]])
    group = np.array([[4.0, 1.0], [0.0, 0.0]])

    def add_up(excess: dict[int, Seconds]) -> tuple[Seconds, Seconds, float | None, float | None]:
        return _add_up_excess([o], [_own_of_pairs(o)], [excess], 2, 2, everywhere=False)

    link_s, group_s, ratio, typical = add_up({0: one, 1: two, 2: group})
    assert link_s.tolist() == [[1.75, 0.5], [0.0, 0.0]]
    assert group_s.tolist() == [0.0, 2.0]
    # Pairs: 1.5 over 1.5, 2 over 1, 1 over 2; the group 4 over 1, and 1 over 4: of 9.5 s half are at 2 or less.
    assert (ratio, typical) == pytest.approx((2.0, 1.0))
    assert add_up({0: one})[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert add_up({2: group})[1].tolist() == [0.0, 2.0]
    assert add_up({})[2:] == (None, None)


def test_a_late_message_is_its_recvs_where_others_of_its_way_are_late() -> None:
    """A send that fits into a buffer is over at once: of two messages of a way two late ones are the link's, one alone is none."""
    found = nodes(*[(op, stage) for _ in range(3) for op, stage in ((Op.FORWARD_SEND, 0), (Op.FORWARD_RECV, 1))])
    events = [Event(ends, across_dp=False, completes=ends) for ends in ((0, 1), (2, 3), (4, 5))]
    graph = Graph(Ragged.of([()] * 6), Events.of(events), {}, (), frozenset())
    block: Any = SimpleNamespace(nodes=found, n_dp=1, start_s=np.zeros((6, 1, 1)))
    o = Observed(block, graph, [], [])
    late = {node: np.full((1, 1), 2.0) for node in (1, 3)}
    rows, took_s = pair_seconds(o, late)
    assert o.find_pairs()[rows].tolist() == [[0, 1], [2, 3]] and took_s.ravel().tolist() == [2.0, 2.0]
    assert not len(pair_seconds(o, {1: late[1]})[0])


def test_links_have_their_usual_seconds() -> None:
    """Those of recvs; transfers of more than three times the usual link count as late, by what they are longer."""
    o = two_ends([0.5, 0.1, 0.0])
    o.own[1] = np.array([[0.1, 0.1], [0.1, 0.5]])
    o.own[0] = np.full((2, 2), 0.05)
    link_s, late_s = measure_links(o, 2)
    assert link_s[0].tolist() == pytest.approx([0.1, 0.3])
    assert np.isnan(link_s[1]).all()
    assert late_s[0].tolist() == [0.0, 0.0]  # the usual link takes 0.2
    o.own[1][1, 1] = 1.9
    link_s, late_s = measure_links(o, 4)
    assert late_s[0].tolist() == pytest.approx([0.0, (1.9 - 0.55) / 4])  # the usual one is between 0.1 and 1.0
    o.own[1] = np.array([[0.1, 0.1], [0.1, 0.1], [0.1, 0.5]])
    o.own[0] = np.full((3, 2), 0.05)
    o.block.start_s = np.zeros((3, 3, 2))
    assert measure_links(o, 4)[1][0].tolist() == pytest.approx([0.0, 0.1])


def test_operations_start_when_what_they_wait_for_has_ended() -> None:
    """Later by their launch delay, never after their end; what the graph leaves out is not known."""
    ends = [np.array([[1.0, 2.0]]), np.array([[4.0, 2.5]]), None, np.array([[3.0, 3.0]])]
    graph = SimpleNamespace(waits=[(), (0, 2), (), ()], barriers={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diagnose.whatif.timeline.replay_ends", lambda *_: ends)
        start_s, end_s = _times(graph, [], None, (4, 2))
        assert start_s[[0, 1, 3]].tolist() == [[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]]
        assert np.isnan(start_s[2]).all() and np.isnan(end_s[2]).all()
        delay = [np.array([[0.5, 1.0]])] * 4
        assert _times(graph, [], delay, (4, 2))[0][1].tolist() == [1.5, 2.5]


def test_held_computes_wait_for_what_held_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that began before it ended work from then on; what is not replayed is waited for by nobody."""
    monkeypatch.setattr("diagnose.whatif.waits.add_barriers", lambda _nodes, _graph, barriers: barriers)
    start_s, end_s = np.array([0.0, 5.0]), np.array([4.0, 7.0])
    of_types = nodes((Op.FORWARD_SEND, 0), (Op.BACKWARD, 0))
    block = SimpleNamespace(nodes=of_types, start_s=start_s.reshape(2, 1, 1), end_s=end_s.reshape(2, 1, 1))
    graph = SimpleNamespace(events=[SimpleNamespace(completes=(0, 1))])
    o = SimpleNamespace(block=block, graph=graph, delay=[np.zeros((1, 1)), np.full((1, 1), 9.0)])
    held = np.ones((1, 1), dtype=bool)
    found = add_waits(o, {1: {0: held}}, {})
    assert found is not None
    assert (found.delay[1].tolist(), [b.sources for b in found.graph[1]]) == ([[1.0]], [(0,)])
    end_s[0] = block.end_s[0] = 6.0  # it began a second before that ended
    assert add_waits(o, {1: {0: held}}, {}).delay[1].tolist() == [[0.0]]
    of_types.op[0] = Op.REDUCE_SCATTER  # of its own gradients, which were there half a second after it had begun
    block.start_s[0] = 5.5
    assert add_waits(o, {1: {0: held}}, {1: np.full((1, 1), 0.5)}).delay[1].tolist() == [[-0.5]]
    assert add_waits(o, {1: {0: ~held}}, {}).delay[1].tolist() == [[9.0]]
    assert add_waits(o, {1: {7: held}}, {}) is None
    assert add_waits(o, {7: {0: held}}, {}) is None
    assert add_waits(o, {}, {}) is None


def test_rows_of_one_length_are_an_array() -> None:
    """Rows without any member are in none."""
    found = group_by_length(Ragged.of([(), (0, 2), (1,), (3, 4)]))
    assert [rows.tolist() for rows in found] == [[[1]], [[0, 2], [3, 4]]]


def test_parameters_gathered_one_right_after_the_other_are_one_wait() -> None:
    """A compute of 10 s is held for 5 s by two gathers in a row, gradients of other chunks, or parts of its own."""
    for op, chunks, held_s in (
        (Op.ALL_GATHER, 0, 5.0),
        (Op.REDUCE_SCATTER, [0, 2, 1], 5.0),
        (Op.REDUCE_SCATTER, 0, 5.0),
    ):
        times = [np.array(column)[:, None, None] for column in ([0.0, -1.0, 3.0], [10.0, 3.0, 5.0])]
        nodes = SimpleNamespace(op=np.array([Op.FORWARD, op, op]), chunk=np.zeros(3, dtype=int) + chunks)
        o: Any = SimpleNamespace(block=SimpleNamespace(start_s=times[0], end_s=times[1], nodes=nodes))
        assert _overlap(o, _InFlight(0, 0, (1, 2)))[0].item() == held_s


def test_what_a_compute_takes_over_its_partner_is_that_of_its_stage() -> None:
    """Two stages of 2 and 3 times as long, both known from computes that nothing overlaps."""
    virtual, apart = np.repeat([0, 1], 50), np.ones(100, dtype=bool)
    y = np.array([2.0, 3.0])[virtual] + np.tile([-0.01, 0.01], 50)
    usual, sigma = _usual_ratio(y, np.zeros(100), apart, ~apart, virtual, np.tile([0, 1], 50))
    assert usual == pytest.approx(np.array([2.0, 3.0])[virtual], abs=0.02)
    assert (sigma < 0.02).all()


@pytest.mark.parametrize(
    ("link_ratio", "is_card"), [(2.0, True), (2.5, True), (1.0, False), (4.0, False), (None, False)]
)
def test_a_collective_is_long_by_the_card_that_a_link_is_long_by(link_ratio: float | None, is_card: bool) -> None:
    """Twice as long as those of other stages: its buffers are larger, unless a link of the stage takes as many times as long."""
    equals = _measure_place(np.full(20, 1.0))
    found = _measure_group(np.full(20, 2.0), 1.0, equals, link_ratio)
    assert (found is equals) == is_card
    assert found.usual_s == (1.0 if is_card else 2.0)


def test_steps_come_in_a_stretch() -> None:
    """Several one after the other; neither one alone, nor all, nor here and there."""
    for at, found in (([3, 4, 5], True), ([3], False), (range(12), False), (range(0, 12, 2), False)):
        assert bool(_is_stretch(np.isin(np.arange(12), at))) == found


@pytest.mark.parametrize(("at", "found"), [([2, 7], True), ([2], False)])
def test_who_reads_begins_late_for_input_from_two_steps_on(at: list[int], found: bool) -> None:
    """Where the readers are late and another stage is not, whatever the steps."""
    late = np.zeros((2, 12, 3), dtype=bool)
    late[0, at] = True
    assert _is_input(np.arange(12), np.ones(late.shape), late, [0]) is found


@pytest.mark.parametrize(
    ("ranks", "at", "found"),
    [
        ([0], range(2, 24, 5), False),
        ([1], range(2, 24, 5), False),
        ([0, 1], range(2, 24, 5), True),
        ([0], (2, 3, 11, 19), True),
    ],
)
def test_a_reader_that_keeps_an_interval_alone_may_save(ranks: list[int], at: Sequence[int], found: bool) -> None:
    """One worker alone, exactly every fifth step, waits for no batch that anybody could name; two do, or one now and then."""
    late = np.zeros((2, 24, 3), dtype=bool)
    late[0, np.array(at)[:, None], ranks] = True
    assert _is_input(np.arange(24), np.ones(late.shape), late, [0]) is found


@pytest.mark.parametrize(
    ("ranks", "n_dp", "found"), [((0, 1), 2, True), ((0,), 2, False), ((1,), 2, True), ((0,), 1, True)]
)
def test_the_first_of_several_ranks_begins_late_for_saves_too(ranks: tuple[int, ...], n_dp: int, found: bool) -> None:
    """All ranks, another one, or the only one begin steps late on all stages, now and then: for input. The first need not."""
    late = np.zeros((2, 24, n_dp), dtype=bool)
    late[:, [[2], [3], [11], [19]], ranks] = True
    assert _is_input(np.arange(24), np.ones(late.shape), late, [0]) is found


def test_levels_in_time_tell_slow_steps_of_a_place() -> None:
    """Where transfers of one step differ as much as slow steps do from others, the usual one is that of the quick steps."""
    spread = np.exp(0.5 * np.random.default_rng(1).standard_normal((15, 40, 1)))
    spread[:, 20:] *= 1.9
    assert _measure_place(spread).usual_s == pytest.approx(1.0, rel=0.1)


def test_a_compute_has_one_place() -> None:
    """Direction, virtual stage and microbatch are those that all computes of a job have together."""
    kinds = dataclasses.replace(
        nodes((Op.FORWARD, 1), (Op.BACKWARD, 0), (Op.FORWARD, 1), (Op.WEIGHT, 1)),
        chunk=np.array([0, 1, 2, -1]),
        microbatch=np.array([3, 0, 1, 2]),
    )
    assert [place_of(kinds, node, 2) for node in range(4)] == [(0, 1, 3), (1, 2, 0), (0, 5, 1), (2, 1, 2)]
    assert np.transpose(places_of(kinds, np.arange(4), 2)).tolist() == [[0, 1, 3], [1, 2, 0], [0, 5, 1], [2, 1, 2]]


def test_the_first_forward_is_that_of_the_first_stage() -> None:
    """Whatever else is first of its kind."""
    kinds = dataclasses.replace(
        nodes((Op.ALL_GATHER, 0), (Op.FORWARD, 1), (Op.FORWARD, 0), (Op.FORWARD, 0)), seq=np.array([0, 0, 2, 1])
    )
    assert _first_forward(SimpleNamespace(block=SimpleNamespace(nodes=kinds))) == 3
    assert _first_forward(SimpleNamespace(block=SimpleNamespace(nodes=kinds.take(np.arange(4) < 2)))) == -1


def test_starts_are_as_exact_as_computes_are_long() -> None:
    """Those of short computes no better than launches are."""
    start_s = np.zeros((2, 1, 1))
    o: Any = SimpleNamespace(block=SimpleNamespace(start_s=start_s, end_s=np.array([1.0, 1e-6]).reshape(2, 1, 1)))
    long, short = late_tolerance(o, np.arange(2)).ravel().tolist()
    assert 1e-3 < long < 0.1
    assert 1e-6 < short < 1e-3


@pytest.mark.parametrize(
    ("other_start_s", "unsure", "start_s"), [(1.0, True, 8.0), (7.5, True, 4.0), (1.0, False, 4.0)]
)
def test_a_lost_member_of_a_slow_batch_moves_last(other_start_s: float, start_s: float, *, unsure: bool) -> None:
    """A transfer of 2 s that ended at 10 s began when its worker was ready, at 4 s.

    If nobody knows when that was, it began at 8 s where all had waited for it.
    """
    starts, ends = np.array([NAN, other_start_s]).reshape(2, 1, 1), np.array([NAN, 10.0]).reshape(2, 1, 1)
    ready = {0: np.full((1, 1), 4.0), 1: np.full((1, 1), other_start_s)}
    event, of_both = Event((0, 1), across_dp=False, completes=(0, 1)), dict.fromkeys((0, 1), np.full((1, 1), unsure))
    _fill_group(event, ready, of_both, [2.0, 2.0], [[], []], set(), starts, ends)
    assert (starts[0, 0, 0], ends[0, 0, 0]) == (start_s, 10.0)
