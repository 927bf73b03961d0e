"""Two diagnoses compared: which causes belong together, and a change that adds up."""

import dataclasses
from fractions import Fraction

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.compare.compare import compare
from diagnose.model.comparison import Side
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.place import Where, Worker
from tests.compare.sides import seen, side

DP1, DP3 = Where(workers=(Worker(1, 0),)), Where(workers=(Worker(3, 0),))


def kinds(before: Side, after: Side) -> list[tuple[str, str]]:
    """Say what became of each cause."""
    return [(change.seen.cause, change.change) for change in compare(before, after).changes]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, 0.1, "came"),
        (0.1, None, "went"),
        (0.1, 0.2, "grew"),
        (0.2, 0.1, "shrank"),
        (0.2, 0.21, "same"),
    ],
)
def test_what_became_of_a_cause(old: float | None, new: float | None, expected: str) -> None:
    """A cause comes, goes, grows, shrinks, or is the same where less than 1% of the step changes."""
    before = side(*([] if old is None else [seen("worker-fault", old)]))
    after = side(*([] if new is None else [seen("worker-fault", new)]))
    assert kinds(before, after) == [("worker-fault", expected)]


def test_another_place_is_another_fault() -> None:
    """A slow worker that is gone, and another one that is slow now, are two findings."""
    before, after = side(seen("worker-fault", 0.3, DP1)), side(seen("worker-fault", 0.3, DP3))
    assert kinds(before, after) == [("worker-fault", "came"), ("worker-fault", "went")]
    assert compare(before, after).account.causes == {"worker-fault": 0.0}


def test_places_that_overlap_are_one() -> None:
    """A cause that spreads to more workers, or has no place on one side, is one finding."""
    both = Where(workers=(Worker(3, 0), Worker(1, 0)))
    assert kinds(side(seen("a", 0.3, DP1)), side(seen("a", 0.6, both))) == [("a", "grew")]
    assert kinds(side(seen("a", 0.3, DP1)), side(seen("a", 0.3))) == [("a", "same")]


def test_hardware_is_known_by_its_host() -> None:
    """A fault of the hardware on another host is another fault though the ranks are the same; elsewhere ranks count."""
    old, new = (Where(workers=(Worker(0, 0, host=host),)) for host in ("gpu-1", "gpu-2"))
    parts = [seen("worker-fault", 0.3, where, who="platform", fingerprint="f") for where in (old, new)]
    assert kinds(side(parts[0]), side(parts[1])) == [("worker-fault", "came"), ("worker-fault", "went")]
    parts = [seen("data-loading", 0.3, where, who="job owner") for where in (old, new)]
    assert kinds(side(parts[0]), side(parts[1])) == [("data-loading", "same")]


def test_what_nobody_looked_for_has_not_gone() -> None:
    """A cause that the other diagnosis could not look for is unclear, with the reason; so are all beside an inconclusive one."""
    blind = side(not_checked={"a": "no rows"})
    (change,) = compare(side(seen("a", 0.3)), blind).changes
    assert (change.change, change.note) == ("unclear", "the second diagnosis could not look for it: no rows")
    (change,) = compare(side(verdict="inconclusive"), side(seen("a", 0.3))).changes
    assert (change.change, change.note) == ("unclear", "the first diagnosis is inconclusive")


def test_worst_first() -> None:
    """What came stands before what grew, and that before what went; more seconds before fewer."""
    before = side(seen("g", 0.1), seen("w", 0.1), seen("s", 0.1))
    after = side(seen("c", 0.1), seen("d", 0.2), seen("g", 0.3), seen("s", 0.1))
    assert kinds(before, after) == [("d", "came"), ("c", "came"), ("g", "grew"), ("s", "same"), ("w", "went")]


@pytest.mark.parametrize(
    ("recorded_s", "trend"), [(2.05, "slower"), (2.03, "alike"), (1.97, "alike"), (1.95, "faster")]
)
def test_trend(recorded_s: float, trend: str) -> None:
    """Step times within 2% are alike."""
    assert compare(side(), side(recorded_s=recorded_s)).trend == trend


def test_the_change_is_explained() -> None:
    """The step is 0.5 s shorter: 0.3 by the fault that went, 0.1 by less other work, 0.1 unexplained."""
    before = side(seen("worker-fault", 0.3), recorded_s=2.0, clean_s=1.5)
    account = compare(before, side(recorded_s=1.5, clean_s=1.4)).account
    assert account is not None
    assert (account.recorded, account.clean, account.unexplained) == (-0.5, -0.1, -0.1)
    assert account.causes == {"worker-fault": -0.3}


seconds = st.floats(0.001, 1000.0)
sides = st.builds(
    lambda recorded, clean, lost: side(
        *(seen(cause, part) for cause, part in lost.items()), recorded_s=recorded, clean_s=clean
    ),
    seconds,
    seconds,
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.none() | st.floats(-10.0, 100.0), max_size=3),
)


@given(before=sides, after=sides)
def test_the_change_adds_up_exactly(before: Side, after: Side) -> None:
    """Recorded change = clean + causes + unexplained, to the nanosecond, whatever the numbers."""

    def whole(value: float) -> int:
        exact = Fraction(value) * 10**9
        assert abs(exact - round(exact)) < Fraction(1, 1000)
        return round(exact)

    account = compare(before, after).account
    assert account is not None
    parts = [account.clean, *account.causes.values(), account.unexplained]
    assert sum(map(whole, parts)) == whole(account.recorded)
    assert account.recorded == pytest.approx(after.recorded_s - before.recorded_s, abs=2e-9)
    rest = [one.recorded_s - one.clean_s - sum(c.lost_s or 0.0 for c in one.causes) for one in (before, after)]
    assert account.unexplained == pytest.approx(rest[1] - rest[0], abs=1e-8)


@given(before=sides, after=sides)
def test_back_and_forth(before: Side, after: Side) -> None:
    """The other way round everything that came went, and all seconds change their sign."""
    there, back = compare(before, after), compare(after, before)
    assert back.change_s == -there.change_s
    other = {"came": "went", "went": "came"}
    came = sorted((c.seen.cause, other[c.change]) for c in there.changes if c.change in other)
    assert came == sorted((c.seen.cause, c.change) for c in back.changes if c.change in other)
    assert {cause: -by for cause, by in there.account.causes.items()} == back.account.causes


@pytest.mark.parametrize("which", [0, 1])
def test_no_account_without_trust(which: int) -> None:
    """Where a diagnosis is inconclusive, or has no clean step time, nothing is accounted for."""
    for doubtful in (side(clean_s=None), side(verdict="inconclusive")):
        pair = [side(), side()]
        pair[which] = doubtful
        assert compare(*pair).account is None


def test_was_it_worth_it() -> None:
    """A fix that had promised 0.4 s and gave 0.3 s reached three quarters; fixes of what stays are not weighed."""
    mended = seen("worker-fault", 0.3, fixes=(("replace-worker", 1.6),))
    stays = seen("a", 0.1, fixes=(("b", 1.9),))
    (payoff,) = compare(side(mended, stays), side(stays)).payoffs
    assert (payoff.causes, payoff.fixes) == (("worker-fault",), ("replace-worker",))
    assert (payoff.predicted_gain_s, payoff.gain_s) == pytest.approx((0.4, 0.3))
    assert payoff.reached == pytest.approx(0.75)


def test_the_plan_is_weighed_when_all_of_it_was_done() -> None:
    """Where all causes of the plan went, its prediction for all of them is weighed, too."""
    before = side(seen("a", 0.2), seen("b", 0.1), plan=(("b", "a"), 1.7))
    (payoff,) = compare(before, side()).payoffs
    assert payoff.causes == ("a", "b") and payoff.fixes == () and payoff.reached == pytest.approx(1.0)
    assert compare(before, side(seen("b", 0.1))).payoffs == ()


def test_jobs_that_are_not_alike() -> None:
    """Other parallelism, GPUs, frameworks, layers, work and makers are told."""
    a = side()
    shape = msgspec.structs.replace(a.shape, dp=8, gpus=256, gpu_type="B200", n_layers=64, framework="other")
    b = dataclasses.replace(a, shape=shape, clean_s=1.7, made_by=MadeBy("9", "x", None))
    a = dataclasses.replace(a, shape=msgspec.structs.replace(a.shape, framework="one"))
    said = "\n".join(compare(a, b).warnings)
    for word in (
        "dp 4 and 8",
        "128 and 256 GPUs",
        "H800 and B200",
        "one and other",
        "32 and 64",
        "1.13 times",
        "other versions",
    ):
        assert word in said
    assert compare(a, a).warnings == ()
