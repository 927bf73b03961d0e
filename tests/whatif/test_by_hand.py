"""Small parts of the what-if on arrays that one can read: clocks, hidden barriers, batches, the clean step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.model.optype import Op
from diagnose.model.trace import Nodes
from diagnose.whatif import clocks
from diagnose.whatif.barriers import _find_barrier, _find_barriers, _holds, _lane_mean, _left_over
from diagnose.whatif.batches import GRANULARITY_S, SampledLanes, _group_alike
from diagnose.whatif.clean import _flatten, _lay_out, _unite, split_clean
from diagnose.whatif.graph import Barrier

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
    events = [SimpleNamespace(members=found, across_dp=False) for found in members]
    block = SimpleNamespace(nodes=op, end_s=end_s, start_s=end_s * 0.0, steps=np.arange(n_steps), n_dp=1)
    return [(block, SimpleNamespace(events=events))]


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
    assert clocks._along_stages(pair(there, back, clip=clip), 2).tolist() == [[0.0, pytest.approx(ahead)]]


def test_sixteen_steps_are_looked_at() -> None:
    """Of more, evenly spread ones: every second of 17 to 32."""
    late = np.where(np.arange(17) % 2, 9.0, 1.0)
    assert clocks._along_stages(pair(late, -late, n_steps=17), 2)[0, 1] == 1.0
    assert clocks._along_stages(pair(late[:16], -late[:16], n_steps=16), 2)[0, 1] == 0.0


@pytest.mark.parametrize(
    ("offset_s", "forward_s", "found"),
    [(0.00019, 0.0, 0.0), (0.00021, 0.0, 0.000105), (0.00021, 0.06, 0.0), (0.00025, 0.06, 0.000125)],
)
def test_offsets_within_the_timers_granularity_are_left_alone(offset_s: float, forward_s: float, found: float) -> None:
    """Below 100 us, and below 0.2% of a typical forward, on either side of the median."""
    estimated = clocks.estimate_offsets(pair(offset_s, -offset_s, forward_s=forward_s))
    assert estimated[0].tolist() == pytest.approx([-found, found])


@pytest.mark.parametrize(("spread", "found"), [(0.4, [-1.0, 0.0, 1.0]), (0.6, [0.0, 0.0, 0.0])])
def test_ranks_are_compared_by_collectives(spread: float, found: list[float]) -> None:
    """With the median rank, where the difference is more than twice its spread."""
    wide = spread * np.array([-1.0, -1.0, 0.0, 1.0, 1.0])
    ends = np.stack([-1.0 - wide, wide * 0.0, 1.0 + wide], axis=1)[None]
    block = SimpleNamespace(nodes=nodes((Op.ALL_GATHER, 0)), end_s=ends, steps=np.arange(5), n_dp=3)
    event = SimpleNamespace(across_dp=True, members=(0,))
    offset_s = clocks._across_ranks([(block, SimpleNamespace(events=[event]))], np.zeros((3, 1)))
    assert offset_s.tolist() == pytest.approx(found)
    event.across_dp = False
    assert clocks._across_ranks([(block, SimpleNamespace(events=[event]))], np.zeros((3, 1))).tolist() == [0.0] * 3


def test_steps_begin_as_late_as_they_were_recorded_to() -> None:
    """Corrected times are moved so that the first operation keeps its start; never to before the step."""
    block = SimpleNamespace(
        nodes=nodes((Op.FORWARD, 0), (Op.FORWARD, 1)), start_s=np.array([[[0.5], [-0.5]], [[0.75], [2.0]]])
    )
    # Stage 1 is 0.5 s ahead: its first operation began at 0.25 and 1.5.
    assert clocks._move_origin(block, np.array([[0.0, 0.5]])).tolist() == [-0.25, -0.5]


# ------------------------------------------------------------------------------------------ hidden barriers


def test_means_of_lanes() -> None:
    """Over the steps that recorded it."""
    assert _lane_mean(np.array([[1.0, NAN, NAN], [3.0, 4.0, NAN]])).tolist() == [2.0, 4.0, 0.0]


@pytest.mark.parametrize(
    ("n_early", "early_s", "beyond_s", "holds"),
    [
        (0, 0.0, 0.49, True),
        (0, 0.0, 0.51, False),
        (3, 0.002, 0.0, True),
        (4, 0.002, 0.0, False),
        (50, 0.00009, 0.0, True),
        (50, 0.00011, 0.0, False),
    ],
    ids=["explains half", "too little", "3 of 100 early", "4 of 100", "as early as clocks", "earlier"],
)
def test_a_wait_holds_in_nearly_all_steps_and_explains_half(
    n_early: int, early_s: float, beyond_s: float, holds: bool
) -> None:
    """Never earlier than clocks agree, in 97 of 100 steps; the rest of the delay, 1 s each, is less than half of it."""
    beyond = np.full((100, 1), beyond_s)
    beyond[:n_early] = -early_s
    assert _holds(beyond, np.ones((100, 1)), np.array([True])).tolist() == [holds]
    assert _holds(beyond, np.ones((100, 1)), np.array([False])).tolist() == [False]
    # What was not recorded is not early.
    unknown = np.vstack([beyond, np.full((1, 1), NAN)])
    assert _holds(unknown, np.vstack([np.ones((100, 1)), [[NAN]]]), np.array([True])).tolist() == [holds]


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


# ------------------------------------------------------------------------------------------ batches


def lanes(start_s: Any, end_s: Any = None, *, n_dp: int = 1, filled: Any = None, kinds: Any = None) -> SampledLanes:
    """Sample operations of one worker; shape (n_nodes, n_steps) or with dp ranks."""
    start = np.array(start_s, dtype=float)
    start = start[..., None] if start.ndim == 2 else start
    end = start if end_s is None else np.array(end_s, dtype=float).reshape(start.shape)
    block = SimpleNamespace(
        start_s=start, end_s=end, filled=filled, nodes=nodes(*(kinds or [(Op.FORWARD_SEND, 0)] * len(start)))
    )
    return SampledLanes(block)


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
        groups = _group_alike(lanes(start, end), [0, 1], 1e-6)
        assert groups == ([(0, 1)] if together else [])
    starts = np.column_stack([[first, second], [[0.0], [NAN]]])
    assert _group_alike(lanes(starts), [0, 1], 1e-6) == ([(0, 1)] if together else [])


def test_batches_have_neighbours() -> None:
    """One of four groups before it is joined; a fifth is too far. Alone nobody is a batch."""
    at = [0.0, 1.0, 2.0, 3.0, 0.0]
    assert _group_alike(lanes([[t] * 4 for t in at]), list(range(5)), 1e-6) == [(0, 4)]
    at = [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]
    assert _group_alike(lanes([[t] * 4 for t in at]), list(range(6)), 1e-6) == []


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
    assert lanes(starts, ends).held_shares([(0, 1)]) == [pytest.approx(2 / 3)]
    whole = lanes([[0.0] * 4, [1.0, 1.0, 0.5, 1.0 - 19e-6]], ends)
    assert whole.held_shares([(0, 1), (1, 0)]) == [0.75, 0.0] == [whole.held_share(0, 1), whole.held_share(1, 0)]
    assert lanes([[NAN] * 2, [1.0] * 2], [[NAN] * 2, [2.0] * 2]).held_share(0, 1) == 0.0


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
    assert _lay_out(array, (True, False, True), (2, 2)).tolist() == [[1, 2], [1, 2], [0, 0], [0, 0], [1, 2], [1, 2]]
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
