"""Which member of a slow worker is said to be late."""

from types import SimpleNamespace

import numpy as np
import pytest

from diagnose.judge.members import describe_member, name_member
from diagnose.model.members import LateMember
from diagnose.model.place import Worker

LATE = LateMember(1, 0.02, 0.8, 0.9, "ends")


@pytest.mark.parametrize(
    ("worker", "who"),
    [
        (Worker(2, 3, 29, tp=1), "rank 29, tp 1 of dp 2 stage 3 ends"),
        (Worker(2, 3, 29, "gpu7", tp=1, cp=0), "rank 29, tp 1, cp 0 of dp 2 stage 3 on gpu7 ends"),
    ],
)
def test_a_late_member_is_named_by_what_is_known(worker: Worker, who: str) -> None:
    """By its rank and its place in its group, and by its host where that is known."""
    said = describe_member("worker-fault/late_member", worker, LATE)
    assert said.text.startswith(who + " 0.02 s after the other members in a compute, a share of 0.80 of what")
    assert said.text.endswith("it is last in a share of 0.90 of the computes")
    assert said.values == {"late_s": 0.02, "late_share": 0.8, "last_share": 0.9}


@pytest.mark.parametrize(
    ("share", "said"), [(0.994, "a share of 0.99"), (0.995, "a share of 0.99"), (0.996, "all"), (1.2, "all")]
)
def test_nearly_all_is_all(share: float, said: str) -> None:
    """What rounds to one, or is above it by noise, is no figure."""
    text = describe_member("x", Worker(2, 3, 29), LateMember(1, 0.02, share, min(share, 1.0), "ends")).text
    assert f", {said} of what the worker is behind its peers; it is last in {said} of the computes" in text


@pytest.mark.parametrize("measured", [(), (0.02, 0.3, 0.4, "ends")])
def test_a_member_that_nobody_knows(measured: tuple) -> None:
    """The reason is told, and nobody is named, whatever was measured of the one that comes last."""
    late = LateMember(None, *measured, reason="they all end together")
    said = describe_member("worker-fault/late_member", Worker(2, 3, 28), late)
    assert said.text == "which member of dp 2 stage 3 is slow is not known: they all end together"
    assert said.values == {"late_s": late.late_s, "late_share": late.late_share, "last_share": late.last_share}


@pytest.mark.parametrize(
    ("member", "hosts", "named"),
    [
        (1, ("a", "b"), Worker(2, 3, 29, "b", tp=5, cp=7)),
        (None, ("a", "b"), Worker(2, 3, 28)),  # nobody knows which, and they run on two hosts
        (None, ("a",), Worker(2, 3, 28, "a")),
    ],
)
def test_a_worker_is_named_with_its_late_member(member: int | None, hosts: tuple[str, ...], named: Worker) -> None:
    """By rank, host and place of the member that the others wait for; without one, by a host only where there is but one."""
    members = SimpleNamespace(
        hosts_of=lambda _dp, _stage: hosts,
        host=lambda _dp, _stage, at: hosts[at],
        rank=lambda _dp, _stage, at: 28 + at,
        tp=np.array([4, 5]),
        cp=np.array([6, 7]),
    )
    late = LateMember(member, reason="" if member else "they all end together")
    assert name_member(Worker(2, 3, 28, "a"), members, (2, 3), late) == named  # type: ignore[arg-type]
    assert name_member(Worker(2, 3, 28, "a"), None, (2, 3), None) == Worker(2, 3, 28, "a")
