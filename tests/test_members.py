"""A fault at one tensor- or context-parallel member, from its rows to the diagnosis."""

import dataclasses
import json
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.report import json_lines, terminal
from tests.judge.cases import diagnose_table, set_column
from tests.report.test_json_lines import SCHEMA

GROUPS = [(2, 1), (4, 1), (8, 1), (1, 2), (2, 2)]
KINDS = ["ends", "starts", "waits"]
CLOCKS_S = [0.0, 1e-3, 8e-3]
N_JOBS = 40
PLACE, MEMBER = (1, 1), 3
SPEC = JobSpec(pp=2, dp=3, microbatches=4, steps=8, tp_size=2, cp_size=2, members="ends", ranks_per_host=2, seed=5)
FAULT = WorkerFault(places=(PLACE,), slowdown=1.5, member=MEMBER)
RANK = (PLACE[1] * SPEC.dp + PLACE[0]) * 4 + MEMBER


def drawn(i: int) -> tuple[JobSpec, WorkerFault]:
    """Draw job i: groups of all shapes, all three ways in which a late member shows, clocks off by up to some 20 ms."""
    rng = np.random.default_rng(i)
    tp, cp = GROUPS[i % len(GROUPS)]
    spec = JobSpec(
        pp=2,
        dp=3,
        microbatches=4,
        steps=8,
        tp_size=tp,
        cp_size=cp,
        members=KINDS[i % 3],  # type: ignore[arg-type]
        member_clock_s=CLOCKS_S[i // 3 % 3],
        member_noise=float(rng.uniform(0.001, 0.01)),
        ranks_per_host=i % 3,
        seed=i,
    )
    slowdown = float(rng.uniform(1.1, 2.0))
    fault = WorkerFault(
        places=((int(rng.integers(spec.dp)), int(rng.integers(spec.pp))),),
        slowdown=slowdown,
        backward_slowdown=1.0 + (slowdown - 1.0) * float(rng.uniform(0.8, 1.1)),
        spread=float(rng.uniform(0.0, 0.04)),
        onset=3 if i % 4 == 0 else None,
        member=int(rng.integers(spec.n_members)),
    )
    return spec, fault


def slow_worker(diagnosis: Diagnosis) -> Cause:
    """Give the cause that is a slow worker."""
    (found,) = [cause for cause in diagnosis.causes if cause.cause == "worker-fault"]
    return found


def said_of_member(cause: Cause) -> str:
    """Give the sentence about the worker's members."""
    (text,) = [item.text for item in cause.evidence if item.id == "worker-fault/member"]
    return text


@cache
def slow_table() -> pa.Table:
    """Generate the job with the fault at one member, once."""
    return generate(SPEC, [FAULT]).trace


@cache
def slow_diagnosis() -> Diagnosis:
    """Diagnose it, once."""
    return diagnose_table(slow_table())


def test_a_slow_member_is_found() -> None:
    """Of 40 jobs with a fault at one member at least 95% name its rank, its labels and its host; none names another."""
    n_right = 0
    for i in range(N_JOBS):
        spec, fault = drawn(i)
        ((dp, stage),) = fault.places
        (worker,) = slow_worker(diagnose_table(generate(spec, [fault]).trace)).where.workers
        assert (worker.dp, worker.pp) == (dp, stage)
        assert fault.member is not None
        rank = (stage * spec.dp + dp) * spec.n_members + fault.member
        if worker.tp is None and worker.cp is None:
            continue
        assert worker.rank == rank
        assert worker.tp == (fault.member % spec.tp_size if spec.tp_size > 1 else None)
        assert worker.cp == (fault.member // spec.tp_size if spec.cp_size > 1 else None)
        assert worker.host == (f"host-{rank // spec.ranks_per_host:03}" if spec.ranks_per_host else None)
        n_right += 1
    assert n_right >= 0.95 * N_JOBS


@pytest.mark.parametrize("i", range(0, N_JOBS, 4))
def test_a_healthy_job_names_nobody(i: int) -> None:
    """Members whose clocks are off by milliseconds, and that differ by chance, make no job straggling."""
    assert diagnose_table(generate(drawn(i)[0]).trace).verdict == "healthy"


@pytest.mark.parametrize("i", range(0, N_JOBS, 4))
def test_members_that_are_all_slow_are_not_told_apart(i: int) -> None:
    """Where all members of a worker are slow alike the worker is named, no member, and the reason is said."""
    spec, _ = drawn(i)
    cause = slow_worker(diagnose_table(generate(spec, [WorkerFault(places=(PLACE,), slowdown=1.5)]).trace))
    (worker,) = cause.where.workers
    assert (worker.dp, worker.pp, worker.tp, worker.cp) == (*PLACE, None, None)
    assert said_of_member(cause).startswith("which member of dp 1 stage 1 is slow is not known: none ")


def test_waits_that_nobody_recorded_name_nobody() -> None:
    """Where members start and end together, and no row says who waited, the member is not known."""
    spec, fault = drawn(2)
    assert spec.members == "waits"
    table = generate(spec, [fault]).trace
    waited = pc.starts_with(table["optype"].cast(pa.string()), "tp-")
    cause = slow_worker(diagnose_table(table.filter(pc.invert(waited))))
    assert [(worker.tp, worker.cp) for worker in cause.where.workers] == [(None, None)]
    assert "is not known" in said_of_member(cause)


def test_the_order_of_rows_does_not_matter() -> None:
    """Rows in any order give the same diagnosis."""
    order = np.random.default_rng(0).permutation(slow_table().num_rows)
    assert diagnose_table(slow_table().take(pa.array(order))).to_dict() == slow_diagnosis().to_dict()


def test_missing_members_in_some_steps() -> None:
    """Without the rows of one member in two steps, and those of another throughout, the late one is named."""
    worker = pc.and_(pc.equal(slow_table()["dp_rank"], PLACE[0]), pc.equal(slow_table()["stage"], PLACE[1]))
    rank = slow_table()["rank"]
    steps = pc.is_in(slow_table()["step"], pa.array(SPEC.step_numbers()[2:4]))
    lost = pc.or_(pc.and_(steps, pc.equal(rank, RANK - 2)), pc.equal(rank, RANK - 1))
    cause = slow_worker(diagnose_table(slow_table().filter(pc.invert(pc.and_(worker, lost)))))
    assert [who.rank for who in cause.where.workers] == [RANK]


def test_members_known_by_global_rank_alone() -> None:
    """Without tp_rank and cp_rank the late member goes by its global rank."""
    table = slow_table().drop_columns(["tp_rank", "cp_rank"])
    cause = slow_worker(diagnose_table(table))
    (worker,) = cause.where.workers
    assert (worker.rank, worker.host, worker.tp, worker.cp) == (RANK, f"host-{RANK // 2:03}", None, None)
    assert said_of_member(cause).startswith(f"rank {RANK} of dp 1 stage 1 on host-{RANK // 2:03} ends ")


def test_ranks_that_no_row_names_follow_megatron() -> None:
    """Without a column rank the member's global rank is derived: tensor, then context, then data, then pipeline parallel."""
    cause = slow_worker(diagnose_table(slow_table().drop_columns(["rank"])))
    assert [(worker.rank, worker.tp, worker.cp) for worker in cause.where.workers] == [(RANK, 1, 1)]


def test_a_step_run_again_with_all_members() -> None:
    """A step that is in the file twice after a restart counts once, with its last attempt, members or not."""
    last = SPEC.step_numbers()[-1]
    again = slow_table().filter(pc.equal(slow_table()["step"], int(last)))
    again = set_column(again, "start_ts", again["start_ts"].to_numpy() + 500.0)
    found = diagnose_table(pa.concat_tables([slow_table(), again]))
    assert any("more than once (a restart" in text for text in found.warnings)
    assert found.n_ops == slow_diagnosis().n_ops
    assert [worker.rank for worker in slow_worker(found).where.workers] == [RANK]


@pytest.mark.parametrize("clock_s", CLOCKS_S)
@pytest.mark.parametrize("kind", KINDS)
def test_all_members_say_what_the_group_says(kind: Any, clock_s: float) -> None:
    """The diagnosis of all members' rows is that of one row for the group, and times agree to noise, however clocks are off."""
    fields = {"pp": 2, "dp": 3, "microbatches": 4, "steps": 8, "tp_size": 4, "seed": 11}
    one = diagnose_table(generate(JobSpec(**fields), [WorkerFault(places=(PLACE,), member=2)]).trace)
    spec = JobSpec(**fields, members=kind, member_clock_s=clock_s, member_noise=0.002)
    all_members = diagnose_table(generate(spec, [WorkerFault(places=(PLACE,), member=2)]).trace)
    assert [cause.cause for cause in all_members.causes] == [cause.cause for cause in one.causes] == ["worker-fault"]
    assert all_members.n_ops == one.n_ops
    assert slow_worker(all_members).recoverable == pytest.approx(slow_worker(one).recoverable, abs=0.01)
    assert all_members.step_time.recorded == pytest.approx(one.step_time.recorded, rel=0.02)


def test_reports_name_the_member() -> None:
    """JSON, within its schema, and the terminal name rank, labels and host; the fix drains that host alone."""
    found = json.loads(json_lines.render(slow_diagnosis()))
    jsonschema.validate(found, SCHEMA)
    (worker,) = found["causes"][0]["where"]["workers"]
    assert worker == {"dp": 1, "pp": 1, "rank": RANK, "host": f"host-{RANK // 2:03}", "tp": 1, "cp": 1}
    assert found["causes"][0]["where"]["hosts"] == [f"host-{RANK // 2:03}"]
    page = " ".join(terminal.render(slow_diagnosis(), width=120, color=False).split())
    assert f"dp 1, stage 1, tp 1, cp 1 (rank {RANK}, host host-{RANK // 2:03})" in page
    summary = found["causes"][0]["fixes"][0]["summary"]
    assert summary == (
        f"let it finish; before the next job replace rank {RANK} tp 1 cp 1 of the worker at dp 1 stage 1; "
        f"drain host-{RANK // 2:03}"
    )


def test_workers_with_a_member_on_the_drained_host() -> None:
    """A host that runs the late member and one of the next worker costs that worker, too, when it is drained."""
    cause = slow_worker(diagnose_table(generate(dataclasses.replace(SPEC, ranks_per_host=3), [FAULT]).trace))
    assert cause.where.hosts == (f"host-{RANK // 3:03}",)
    assert cause.fixes[0].figures["good_workers_drained"] == 1.0


def test_hosts_of_a_worker_whose_member_is_not_known() -> None:
    """A slow worker on two hosts, all members slow alike, is named without a host; both hosts are under suspicion."""
    cause = slow_worker(diagnose_table(generate(SPEC, [WorkerFault(places=(PLACE,), slowdown=1.5)]).trace))
    (worker,) = cause.where.workers
    assert worker.host is None
    first = (RANK - MEMBER) // 2
    assert cause.where.hosts == (f"host-{first:03}", f"host-{first + 1:03}")
    assert cause.fixes[0].summary.endswith(f"drain host-{first:03}, host-{first + 1:03}")
