"""The parts of a step by hand: what is moved where, and what was not measured."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.judge.budget import (
    _add_host_time,
    _claimed,
    _list_lacking,
    _measure_rows,
    _own_parts,
    _parts_of,
    _share_of_evaluation,
    _take_members,
)
from diagnose.model.budget import Budget
from diagnose.model.optype import Op
from diagnose.model.recording import Unobserved


def rows(*found: tuple[Op, int, int, float]) -> SimpleNamespace:
    """Give rows that are no operations: their type, step, dp rank and seconds, on stage 0."""
    op, step, dp, seconds = (np.array(column) for column in zip(*found, strict=True)) if found else (np.zeros(0),) * 4
    whole = [column.astype(np.int64) for column in (op, step, dp)]
    return SimpleNamespace(
        op=whole[0], step=whole[1], dp=whole[2], stage=whole[2] * 0, start_s=seconds * 0.0, end_s=seconds * 1.0
    )


def job(
    *,
    ops: tuple[int, ...] = (),
    evidence: Any = None,
    n_stages: int = 2,
    has_dp: bool = True,
    tp_size: int = 1,
    reads_input: bool | None = None,
    saves: bool | None = None,
    origin: Any = 0.0,
    lacks: dict[str, str] | None = None,
    host: Any = None,
    share: dict[str, float] | None = None,
    gain: float = 0.0,
    others: tuple[Any, ...] = (),
    wait_s: Any = None,
) -> Any:
    """Give what the budget asks a job for: 2 steps of 10 s, forwards of 3 s each on two workers."""
    entries = tuple(Unobserved("theirs", reason, (word,)) for word, reason in (lacks or {}).items())
    members = None if wait_s is None else SimpleNamespace(wait_s=np.array(wait_s), steps=np.array([4, 5, 6]))
    return SimpleNamespace(
        features={},
        trace=SimpleNamespace(
            blocks=[SimpleNamespace(nodes=SimpleNamespace(op=np.array(ops, dtype=np.int64)))],
            evidence=evidence or rows(),
            recording=SimpleNamespace(unobserved=entries, host=host) if lacks or host else None,
            n_stages=n_stages,
            step_origin_s=origin,
            members=members,
            job=SimpleNamespace(has_dp=has_dp, tp_size=tp_size, cp_size=1, reads_input=reads_input, saves=saves),
        ),
        breakdown=SimpleNamespace(steps=np.array([5, 6]), compute_s=np.full((1, n_stages, 1, 2, 1), 3.0)),
        gains=SimpleNamespace(recorded_s=10.0, share=share or {}, recoverable=lambda _: gain),
        others=others,
    )


NOTHING = dict.fromkeys(Budget.PARTS, 0.0)
ALL = (Op.FORWARD, Op.FORWARD_SEND, Op.ALL_GATHER)
SEEN = rows((Op.DATA_LOAD, 5, 0, 0.1), (Op.CHECKPOINT, 5, 0, 0.1))

# ------------------------------------------------------------------------------------------ what was not measured


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, []),
        ({"ops": (Op.FORWARD, Op.ALL_GATHER)}, ["exposed_p2p"]),
        ({"ops": (Op.FORWARD, Op.ALL_GATHER), "n_stages": 1}, []),
        ({"ops": (Op.FORWARD, Op.FORWARD_SEND)}, ["exposed_collectives"]),
        ({"ops": (Op.FORWARD, Op.OPTIMIZER, Op.FORWARD_SEND), "has_dp": False}, []),
        ({"tp_size": 2}, ["exposed_members"]),
        ({"evidence": rows((Op.CHECKPOINT, 5, 0, 0.1))}, ["input"]),
        ({"evidence": rows((Op.CHECKPOINT, 5, 0, 0.1)), "reads_input": False}, []),
        ({"evidence": rows((Op.DATA_LOAD, 5, 0, 0.1))}, ["checkpoint"]),
        ({"evidence": rows((Op.DATA_LOAD, 5, 0, 0.1)), "saves": False}, []),
        ({"origin": None}, ["between_steps"]),
        ({"lacks": {"between-steps": "no clock"}}, ["between_steps"]),
    ],
    ids=str,
)
def test_what_no_row_shows_was_not_measured(changes: dict[str, Any], lacking: list[str]) -> None:
    """Each part that rows of some type would show is lacking without them, unless the job cannot have it."""
    found = job(**({"ops": ALL, "evidence": SEEN} | changes))
    assert list(_list_lacking(found, dict(NOTHING), set())) == lacking


def test_what_a_cause_claims_was_measured() -> None:
    """So was a part that has time of its own; what the recording says of itself is the reason."""
    found = job(ops=ALL, origin=None, lacks={"input": "hidden", "between-steps": "no clock"})
    reasons = _list_lacking(found, dict(NOTHING), set())
    assert reasons == {
        "input": "theirs: hidden", "checkpoint": "no checkpoint rows", "between_steps": "theirs: no clock"
    }  # fmt: skip
    assert list(_list_lacking(found, dict(NOTHING), {"input-delay"})) == ["checkpoint", "between_steps"]
    for saving in ("between-steps", "end-delay", "start-delay"):
        assert "checkpoint" not in _list_lacking(found, dict(NOTHING), {saving})
    assert list(_list_lacking(found, NOTHING | {"checkpoint": 0.1, "between_steps": 0.1}, set())) == ["input"]


# ------------------------------------------------------------------------------------------ what goes where


def test_rows_count_on_the_worker_that_has_most() -> None:
    """Of two steps of 10 s, saves take 3 s on dp rank 1; rows of other types and of steps left out do not count."""
    found = job(
        evidence=rows(
            (Op.CHECKPOINT, 5, 0, 2.0), (Op.CHECKPOINT, 5, 1, 1.0), (Op.CHECKPOINT, 6, 1, 2.0),
            (Op.CHECKPOINT, 4, 1, 9.0), (Op.EVAL, 5, 1, 9.0),
        )
    )  # fmt: skip
    assert _measure_rows(found, Op.CHECKPOINT) == pytest.approx(3.0 / 20.0)
    assert _measure_rows(found, Op.LOG) == 0.0


@pytest.mark.parametrize(
    ("found", "share"),
    [((), 1.0), (((Op.EVAL, 5, 0, 3.0), (Op.LOG, 5, 0, 1.0)), 0.75), (((Op.LOG, 5, 0, 1.0),), 0.0)],
)
def test_planned_work_is_evaluation_and_logging(found: Any, share: float) -> None:
    """By the seconds of their rows; all of it is evaluation where there are none."""
    assert _share_of_evaluation(job(evidence=rows(*found))) == pytest.approx(share)


def test_parts_that_no_cause_claims() -> None:
    """Shares of the ledger are of the lost time, 0.2 of the step; saves are as long as their rows, at most as what they cost."""
    share = {"between-steps": 0.5, "input-delay": 0.1, "launch-delay": 0.05, "evaluation": -0.1}
    saves = rows((Op.CHECKPOINT, 5, 0, 1.2))
    found = _own_parts(job(share=share, evidence=saves), set(), 0.2)
    # 0.1 of the step between steps, 0.06 of them saves.
    assert found == pytest.approx({"checkpoint": 0.06, "between_steps": 0.04, "input": 0.02, "host": 0.01})
    found = _own_parts(job(share=share, evidence=rows((Op.CHECKPOINT, 5, 0, 9.0))), {"input-delay"}, 0.2)
    assert found == pytest.approx({"checkpoint": 0.1, "host": 0.01})
    # A component without a share costs what it gives back.
    assert _own_parts(job(gain=0.03), {"between-steps"}, 0.2) == pytest.approx(
        {"evaluation": 0.03, "host": 0.03, "input": 0.03}
    )


def test_logging_is_the_hosts_where_kernels_tell() -> None:
    """Rows of planned work that are no evaluation are what the host does between kernels."""
    planned = rows((Op.EVAL, 5, 0, 3.0), (Op.LOG, 5, 0, 1.0))
    for host, expected in (
        (None, {"evaluation": 0.1}),
        (SimpleNamespace(share=0.5), {"evaluation": 0.075, "host": 0.025}),
    ):
        found = _own_parts(job(share={"evaluation": 0.5}, evidence=planned, host=host), set(), 0.2)
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("host", "compute", "expected"),
    [(0.3, 0.5, (0.3, 0.3)), (0.1, 0.5, (0.5, 0.1)), (0.9, 0.5, (0.0, 0.6)), (0.05, 0.5, (0.5, 0.1))],
)
def test_late_hosts_inside_computes(host: float, compute: float, expected: tuple[float, float]) -> None:
    """What kernels say beyond what is the host's already is taken from computing, no more than there is."""
    parts = NOTHING | {"compute": compute, "host": 0.1}
    _add_host_time(job(host=SimpleNamespace(share=host)), parts)
    assert (parts["compute"], parts["host"]) == pytest.approx(expected)


def test_the_clean_step_is_shared_out() -> None:
    """Its parts are as much of the recorded step as they are of the clean one; without any time all of it is computing."""
    seconds = {
        "compute": 4.0,
        "bubble": 1.0,
        "transfers": 0.5,
        "collectives": 1.5,
        "host": 0.25,
        "others": 0.5,
        "between": 0.25,
    }
    clean = SimpleNamespace(step_s=8.0, **{f"{name}_s": s for name, s in seconds.items()})
    found = {name: part for name, part in _parts_of(job(), clean, 0.8).items() if part}
    assert found == pytest.approx(
        {
            "compute": 0.4, "bubble": 0.1, "exposed_p2p": 0.05, "exposed_collectives": 0.15, "other_work": 0.05,
            "host": 0.025, "between_steps": 0.025,
        }
    )  # fmt: skip
    clean.step_s = 0.0
    assert {name: part for name, part in _parts_of(job(), clean, 0.8).items() if part} == {"compute": 0.8}


def test_collectives_of_members_are_told_apart() -> None:
    """Beside computes by their rows; inside by how long members wait, in the steps analysed, no more than is computed."""
    work = (
        SimpleNamespace(name="tp-all-reduce", busy_s=np.array([1.0, 3.0])),
        SimpleNamespace(name="x", busy_s=np.array([6.0])),
    )
    parts = NOTHING | {"compute": 0.6, "other_work": 0.2}
    _take_members(job(others=work), parts)
    assert (parts["other_work"], parts["exposed_members"]) == pytest.approx((0.15, 0.05))
    # A worker computes 3 s in each step; its members wait 1.5 s in the steps analysed, 9 s in another.
    for wait_s, moved in (([9.0, 1.0, 2.0], 0.5), ([0.0, 90.0, 90.0], 1.0), ([9.0, np.nan, np.nan], 0.0)):
        parts = NOTHING | {"compute": 0.6}
        _take_members(job(wait_s=wait_s), parts)
        assert (parts["compute"], parts["exposed_members"]) == pytest.approx((0.6 * (1.0 - moved), 0.6 * moved))
    # Of 2.5 s, 2 are beside computes already.
    parts = NOTHING | {"compute": 0.6, "other_work": 0.2}
    _take_members(job(others=work, wait_s=[9.0, 2.0, 3.0]), parts)
    assert parts["compute"] == pytest.approx(0.6 - 0.6 * 0.5 / 3.0)


def test_what_no_rule_explains_claims_its_component() -> None:
    """Its evidence names it; another cause claims the components of its rule."""
    rule = SimpleNamespace(id="a", components=("stage", "queue"))
    known, unknown = (
        SimpleNamespace(cause=cause, evidence=[SimpleNamespace(values={"gain.worker": 0.1})])
        for cause in ("a", "unknown")
    )
    assert _claimed([rule], [known]) == {"stage", "queue"}
    assert _claimed([rule], [known, unknown]) == {"stage", "queue", "worker"}
