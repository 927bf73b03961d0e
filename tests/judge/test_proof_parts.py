"""Tables of a proof by hand: what is added up where, which rows show most, and how steps share columns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.judge.evidence import _describe_stalls
from diagnose.judge.mending import list_fixes_to_price, locate_fix
from diagnose.judge.other_work import describe_types, describe_uneven
from diagnose.judge.proof import (
    _as_map,
    _band,
    _experts,
    _find_links,
    _list_saves,
    _listed,
    _over_mean,
    _over_steps,
    _pace,
    _pauses,
    _ranks,
    _stages,
    _sum_rows,
    _sum_workers,
    _transfers,
    _usual,
)
from diagnose.judge.rest import _measure_longest
from diagnose.model.cause import Cause, When
from diagnose.model.course import Course
from diagnose.model.optype import Op
from diagnose.model.place import Link, Where, Worker
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Evidence
from tests.features.hand import gains, stalled, stalls
from tests.judge.cases import built_in

NAN = float("nan")
#: Labels are no indices: dp ranks 10, 11 and stages 4, 5, 6.
DP, STAGES = (10, 11), (4, 5, 6)


def job(*, steps: tuple[int, ...] = (7, 8), n_microbatches: int = 2, n_chunks: int = 1, **breakdown: Any) -> Any:
    """Give a job of 2 dp ranks and 3 stages, forwards of 1 s and backwards of 2 s, with two saves and a collection."""
    compute_s = np.ones((2, 3 * n_chunks, n_microbatches, len(steps), 2))
    compute_s[1] = 2.0
    given = {"compute_s": compute_s, "steps": np.array(steps), "queue_wait_s": None, "start_s": None}
    given["stalls"] = stalls(compute_s.shape)
    rows = [(Op.CHECKPOINT, 8, 0, 1, 0.5), (Op.CHECKPOINT, 3, 0, 1, 9.0), (Op.GC, 7, 1, 2, 0.25), (Op.GC, 7, 1, 2, 0.5)]
    op, step, dp, stage, seconds = (np.array(column) for column in zip(*rows, strict=True))
    return SimpleNamespace(
        breakdown=SimpleNamespace(**(given | breakdown)),
        courses={},
        trace=SimpleNamespace(
            n_dp=2,
            n_stages=3,
            dp_labels=np.array(DP),
            stage_labels=np.array(STAGES),
            host_of=lambda *_: None,
            evidence=SimpleNamespace(op=op, step=step, dp=dp, stage=stage, start_s=seconds * 0, end_s=seconds),
        ),
    )


def worker(dp: int, stage: int) -> Worker:
    """Name a worker by indices."""
    return Worker(DP[dp], STAGES[stage], 0)


# ------------------------------------------------------------------------------------------ adding up


def test_values_over_their_mean() -> None:
    """Of those that are known; NaN where nothing takes time."""
    found = _over_mean(np.array([[1.0, 2.0, NAN, 0.0], [3.0, NAN, NAN, 0.0]]))
    np.testing.assert_array_equal(found, [[0.5, 1.0, NAN, NAN], [1.5, NAN, NAN, NAN]])


def test_computes_are_added_up_by_worker() -> None:
    """Over directions, chunks and microbatches; NaN where a worker computes nothing in a step."""
    analysis = job(n_chunks=2)
    assert _sum_workers(analysis, analysis.breakdown.compute_s).tolist() == np.full((2, 3, 2), 12.0).tolist()
    seconds = analysis.breakdown.compute_s.copy()
    seconds[0, 1, 0, 0, 1] = NAN  # one of eight
    seconds[:, [2, 5], :, 1, 0] = NAN  # all of a worker
    found = _sum_workers(analysis, seconds)
    assert (found[1, 1, 0], found[0, 2, 0]) == (11.0, 12.0)
    assert np.isnan(found[0, 2, 1])


def test_rows_are_added_up_by_worker() -> None:
    """Each in its step, whatever the order of these; rows of steps left out count nowhere."""
    analysis = job(steps=(8, 7))
    found = _sum_rows(analysis, Op.GC)
    assert found[1, 2].tolist() == [0.0, 0.75]
    assert found.sum() == 0.75
    assert _sum_rows(analysis, Op.CHECKPOINT)[0, 1].tolist() == [0.5, 0.0]
    assert _list_saves(analysis) == (8,)


def test_who_is_usual() -> None:
    """The median of those that are not slow, or of all where there are no others that take time."""
    seconds = np.array([[1.0, 2.0], [30.0, 30.0], [3.0, 4.0]])
    assert _usual(seconds, np.array([False, True, False])) == 2.5
    assert _usual(seconds, np.array([True, True, True])) == 3.5
    assert _usual(seconds * [[0.0], [1.0], [0.0]], np.array([True, False, True])) == 30.0
    assert np.isnan(_usual(seconds * 0.0, np.array([False, True, False])))


# ------------------------------------------------------------------------------------------ tables


def test_a_table_has_four_digits() -> None:
    """And None where nothing is known."""
    assert _listed(np.array([[1.23456, NAN], [np.inf, 0.000123456]])) == ((1.235, None), (None, 0.0001235))


@pytest.mark.parametrize(("n_steps", "each", "n_columns"), [(100, 1, 100), (101, 2, 51), (250, 3, 84)])
def test_steps_share_columns(n_steps: int, each: int, n_columns: int) -> None:
    """A hundred at most, in the order of the steps: lines have the mean of each, maps the most."""
    steps = tuple(range(n_steps, 0, -1))
    analysis = job(steps=steps, n_microbatches=1)
    values = np.array(steps, dtype=float)
    lines = _over_steps(analysis, "pace", "ratio", [("a", values)], n_culprits=1)
    assert (lines.steps_each, len(lines.columns), lines.columns[:2]) == (each, n_columns, (1, 1 + each))
    assert lines.values[0][0] == pytest.approx((1 + each) / 2)
    left = n_steps - (n_columns - 1) * each
    assert lines.values[0][-1] == pytest.approx(n_steps - (left - 1) / 2, rel=1e-3)
    shown = _as_map(analysis, "ranks", "ratio", ["a"], values[None])
    assert shown.values[0][:2] == (float(each), 2.0 * each)


@pytest.mark.parametrize(("unit", "gone"), [("ratio", "24"), ("seconds", "1")])
def test_the_rows_that_show_most_are_kept(unit: Any, gone: str) -> None:
    """24 of them, in their order: by their largest ratio, or by all of their seconds."""
    analysis = job()
    table = np.tile([2.0, 2.0], (25, 1))
    table[0], table[1] = [0.0, 3.5], [2.5, 0.5]  # 0 has the largest value and more in all than 1
    names = [str(n) for n in range(25)]
    found = _as_map(analysis, "ranks", unit, names, table)
    assert (len(found.rows), found.left_out) == (24, 1)
    assert list(found.rows) == [name for name in names if name != gone]
    assert _as_map(analysis, "ranks", unit, names[:24], table[:24]).left_out == 0


def test_peers_are_a_band() -> None:
    """Their median, and the ends of the middle nine tenths where there are several; nobody is no band."""
    values = np.array([[float(n)] for n in range(21)] + [[NAN]])
    assert [(name, row.tolist()) for name, row in _band("peers", values)] == [
        ("peers, median", [10.0]), ("peers, low end", [1.0]), ("peers, high end", [19.0])
    ]  # fmt: skip
    assert [name for name, _ in _band("peers", values[:1])] == ["peers, median"]
    assert list(_band("peers", values[-1:])) == []


# ------------------------------------------------------------------------------------------ what shows which


def test_the_pace_of_a_slow_worker() -> None:
    """Against its peers on the stage, who are the band; six culprits have a row of their own."""
    analysis = job()
    analysis.breakdown.compute_s[:, 1, :, :, 1] *= 1.5
    found = _pace(analysis, Where(workers=(worker(1, 1),)), ())
    assert found is not None
    assert (found.rows, found.n_culprits) == (("dp 11, stage 5", "peers, median"), 1)
    assert found.values == ((1.5, 1.5), (1.0, 1.0))
    both = _pace(analysis, Where(workers=(worker(1, 1), worker(0, 1))), ())
    assert both is not None
    assert both.values[0] == (1.2, 1.2)  # without peers, against the median of all that the stage does
    assert _pace(analysis, Where(), ()) is None


@pytest.mark.parametrize(
    ("when", "ratios"),
    [
        (When("onset", 9), (1.0, 1.0, 1.5, 1.5, 1.5)),
        (When("transient", 9, 11), (1.0, 1.0, 1.5, 1.5, 1.5)),
        (When("constant"), (0.6667, 0.6667, 1.0, 1.0, 1.0)),
    ],
)
def test_the_pace_of_whole_stages(when: When, ratios: tuple[float, ...]) -> None:
    """Without peers against what they take before they are slow, or after it: three of five steps are slow, or all are."""
    analysis = job(steps=(7, 8, 9, 10, 11))
    analysis.breakdown.compute_s[:, 1, :, 2:] *= 1.5
    analysis.courses["worker"] = Course(when)
    found = _pace(analysis, Where(workers=(worker(0, 1), worker(1, 1))), ("worker",))
    assert found is not None
    assert found.values[:2] == (ratios, ratios)


def test_ranks_and_experts() -> None:
    """Ranks are compared over all stages, workers with their stage alone."""
    analysis = job()
    analysis.breakdown.compute_s[:, 2, :, :, 0] *= 3.0
    ranks, experts = _ranks(analysis, Where(), ()), _experts(analysis, Where(), ())
    assert ranks is not None
    assert experts is not None
    assert (ranks.rows, ranks.values) == (("dp 10", "dp 11"), ((1.25, 1.25), (0.75, 0.75)))
    assert experts.rows[-2:] == ("dp 10, stage 6", "dp 11, stage 6")
    assert experts.values == ((1.0, 1.0),) * 4 + ((1.5, 1.5), (0.5, 0.5))


def test_pauses_are_those_of_the_components() -> None:
    """Stalls of their kinds; rows where no stall shows one; waits for input before a step begins, too."""
    place, other = (0, 1, 0, 0, 1), (0, 0, 0, 1, 0)
    found = job(stalls=stalls((2, 3, 2, 2, 2), {place: (0.5, StallKind.NOBODY), other: (0.25, StallKind.INPUT)}))
    shown = _pauses(found, Where(), ("pause",))
    assert shown is not None
    assert (shown.rows[4], shown.values[4], shown.marked) == ("dp 11, stage 5", (0.5, 0.0), ())
    assert sum(map(sum, shown.values)) == 0.5
    assert _pauses(found, Where(), ("malloc-pause",)) is None
    collected = _pauses(found, Where(), ("gc-pause",))
    assert collected is not None
    assert collected.values[5] == (0.75, 0.0)
    found.breakdown.start_s = np.ones((3, 2, 2))
    late = _pauses(found, Where(), ("input-delay",))
    assert late is not None
    assert (late.values[0], late.values[1]) == ((1.0, 1.25), (1.0, 1.0))
    saved = _pauses(found, Where(), ("end-delay",))
    assert saved is not None
    assert (saved.marked, saved.values[1]) == ((8,), (0.0, 0.5))


@pytest.mark.parametrize(("n_virtual", "n_columns"), [(100, 100), (101, None), (1, 1)])
def test_stages_have_their_usual_seconds(n_virtual: int, n_columns: int | None) -> None:
    """Weight gradients are a part of the backward; more than a hundred virtual stages are not shown."""
    typical_s = np.array([[1.0], [2.0], [0.5]]) * np.ones((3, n_virtual))
    found = _stages(job(typical_s=typical_s), Where(), ())
    assert (None if found is None else len(found.columns)) == n_columns
    if found is not None:
        assert (found.rows, found.values[0][0], found.values[1][0]) == (("forward", "backward"), 1.0, 2.5)
    assert _stages(job(typical_s=typical_s * NAN), Where(), ()) is None


@pytest.mark.parametrize(
    ("where", "marked"),
    [
        (Where(workers=(worker(1, 0),)), [(0, 1), (2, 1)]),
        (Where(workers=(worker(0, 2),)), [(1, 0), (2, 0)]),
        (Where(links=(Link.between(worker(1, 0), worker(1, 1)),)), [(0, 1)]),
        (Where(links=(Link.between(worker(0, 2), worker(0, 1)),)), [(1, 0)]),
        (Where(links=(Link.between(worker(0, 2), worker(0, 0)),)), [(2, 0)]),
    ],
    ids=["worker", "last worker", "link", "the other way", "around"],
)
def test_links_are_those_of_their_first_stage(where: Where, marked: list[tuple[int, int]]) -> None:
    """A worker's are the one before it and its own; the last stage's goes around."""
    found = np.zeros((3, 2), dtype=bool)
    found[tuple(np.transpose(marked))] = True
    assert _find_links(job(), where).tolist() == found.tolist()


def test_slow_links_and_groups_have_rows() -> None:
    """Slowest first, against the usual one of all others; those that nobody measured have none."""
    analysis = job()
    links_s, groups_s = np.full((3, 2, 2), 0.1), np.full((3, 2), 0.4)
    links_s[0, 1], links_s[1, 1], links_s[2] = 0.3, 0.9, NAN
    links_s[0, 1, 1] = NAN  # lost in one step
    groups_s[2] = 0.8
    analysis.transfers = SimpleNamespace(link_steps_s=links_s, group_steps_s=groups_s)
    where = Where(links=tuple(Link.between(worker(1, a), worker(1, b)) for a, b in ((0, 1), (1, 2))), stages=(6,))
    found = _transfers(analysis, where, ())
    assert found is not None
    assert found.rows[:3] == ("link dp 11, stage 5 - 6", "link dp 11, stage 4 - 5", "collectives of stage 6")
    assert [row[0] for row in found.values[:3]] == [9.0, 3.0, 2.0]
    assert (found.n_culprits, found.rows[3], found.values[3]) == (3, "all others, median", (1.0, 1.0))
    nobody = _transfers(analysis, Where(), ())
    assert nobody is not None
    assert (nobody.n_culprits, nobody.rows[0]) == (0, "all transfers, median")


# ------------------------------------------------------------------------------------------ what else is said


def cause(name: str, after: float | None) -> Cause:
    """Give a cause, which gives so much back after others."""
    where = Where(stages=(len(name),))
    return Cause(
        cause=name, title="", confidence=0.9, share=None, recoverable=0.1, recoverable_after_others=after, where=where,
        when=When(), evidence=(), fixes=(), fingerprint="x",
    )  # fmt: skip


def test_fixes_are_those_of_the_rules() -> None:
    """What is said after others is hidden behind them; a cause without a rule has no fix; a fix acts where its first cause is."""
    causes = [cause("unknown", None), cause("worker-fault", None), cause("stage-imbalance", 0.1)]
    found = list_fixes_to_price(causes, built_in())
    assert [(one.cause, one.is_hidden) for one in found] == [("worker-fault", False), ("stage-imbalance", True)]
    fix = found[1].fixes[0].fix
    assert locate_fix(fix, causes, built_in()).where == causes[2].where
    assert locate_fix("no-such-fix", causes, built_in()).where == Where()


def other(name: str, busy_s: list[float], uneven_s: float = 0.0, ratio: float | None = None) -> SimpleNamespace:
    """Give rows of a type that the format does not name."""
    return SimpleNamespace(name=name, busy_s=np.array(busy_s), uneven_s=uneven_s, ratio=ratio, is_met=False)


def test_types_of_other_rows_are_named() -> None:
    """Five of those that take a percent of the step on some worker, the longest first."""
    gains = SimpleNamespace(recorded_s=10.0)
    few = [other("a", [0.0, 0.1]), other("b", [0.0999, 0.0999]), other("c", [0.3, 0.1])]
    (said,) = describe_types(SimpleNamespace(others=few, gains=gains))
    assert "busy with `c` (2% of the step), `a` (1% of the step on 1 of 2 workers): replays" in said
    assert describe_types(SimpleNamespace(others=few[1:2], gains=gains)) == []
    for n, more in ((5, ""), (6, ", 1 more types")):
        (said,) = describe_types(SimpleNamespace(others=[other(f"t{i}", [8.0]) for i in range(n)], gains=gains))
        assert f"`t4` (80% of the step){more}: " in said


@pytest.mark.parametrize(
    ("workers", "ratio", "text"),
    [
        ((), 2.0, "rows of the type `x y` take 2 times as long as usual, and no rule says why"),
        (((0, 1),), None, "rows of the type `x y` on dp 10, stage 5 make some computes longer, and no rule says why"),
        (((0, 1), (1, 1)), 2.0, "`x y` on dp 10, stage 5 and dp 11, stage 5 take 2 times"),
        (((0, 1), (1, 1), (1, 2)), 2.0, "`x y` on 3 workers take 2 times"),
    ],
)
def test_the_most_uneven_type_is_named(workers: Any, ratio: float | None, text: str) -> None:
    """With up to two workers by their names."""
    found = SimpleNamespace(others=[other("x  y", [1.0], 0.5, ratio), other("z", [9.0], 0.1, 3.0)])
    title, said = describe_uneven(found, Where(workers=tuple(worker(*at) for at in workers)))
    assert title == "unknown cause: uneven `x y`"
    assert text in said
    for n, name in ((60, "n" * 60), (61, "n" * 59 + "…")):
        assert describe_uneven(SimpleNamespace(others=[other("n" * n, [1.0], 0.5)]), Where())[0].endswith(f"`{name}`")
    waits = describe_uneven(SimpleNamespace(others=[other("z", [1.0]), other("y", [2.0])]), Where())
    assert waits[0] == "unknown cause: workers wait for `y`"
    assert "rows of the type `y` on others" in waits[1]
    assert describe_uneven(SimpleNamespace(others=[]), Where()) == ("", "")


def test_few_long_stalls_are_described_one_by_one() -> None:
    """By step, with the compute that stood still, for how long, and what its step lost."""
    found = stalled(
        inside={(1, 0, 0, 3, 1): (0.5, StallKind.COLLECTION), (0, 1, 1, 2, 0): (0.25, StallKind.COLLECTION)}
    )
    rule = next(rule for rule in built_in().rules if rule.components == ("gc-pause",))
    trace = job().trace
    trace.n_stages, trace.stage_labels, trace.hosts, trace.ranks = (
        2,
        np.array(STAGES),
        None,
        np.zeros((2, 2), dtype=int),
    )
    lost_s = np.zeros(len(found.steps))
    lost_s[3] = 0.4
    analysis: Any = SimpleNamespace(breakdown=found, gains=gains({"gc-pause": lost_s}), trace=trace)
    nothing = "and the step nothing: others waited anyway"
    assert [item.text for item in _describe_stalls(analysis, rule)] == [
        f"step {found.steps[2]}, dp 10, stage 5: forward of microbatch 1 took 250 ms longer, {nothing}",
        f"step {found.steps[3]}, dp 11, stage 4: backward of microbatch 0 took 500 ms longer, and the step 400 ms",
    ]


def test_what_makes_steps_long_and_is_no_row() -> None:
    """A mean step of 12 s where the usual one takes 9 s: rows of the rank that has most, stage by stage, are no part of it."""
    rows = Evidence(
        op=np.full(3, -2), step=np.array([7, 7, 99]), dp=np.array([0, 1, 0]), stage=np.array([0, 0, 1]),
        start_s=np.zeros(3), end_s=np.array([1.2, 6.0, 50.0]),
    )  # fmt: skip
    none = np.zeros((0, 5, 2))
    block = SimpleNamespace(nodes=SimpleNamespace(op=np.zeros(0)), start_s=none, end_s=none, steps=np.arange(5, 10))
    analysis: Any = SimpleNamespace(
        gains=SimpleNamespace(clean_steps_s=np.array([9.0, 9.0, 9.0, 21.0, 12.0]), clean_s=12.0),
        breakdown=SimpleNamespace(steps=np.array([5, 6, 7, 8, 9])),
        trace=SimpleNamespace(n_dp=2, n_stages=2, others=rows, blocks=(block,)),
    )
    assert _measure_longest(analysis) == pytest.approx((12.0 - 9.0 - 6.0 / 5.0) / 12.0)
