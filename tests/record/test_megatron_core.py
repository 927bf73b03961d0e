"""Jobs of the real Megatron-Core on the CPU, recorded: the rows are what its schedules did, and the slow place is named.

Needs torch and megatron-core, and is skipped without.
"""

import importlib.util
import json

import pytest

import diagnose
from tests.record.test_torch_jobs import read, run

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
if importlib.util.find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)

FAULTS = ("none", "slow-stage", "slow-worker", "slow-link")
#: Point-to-point as Megatron-Core can do it: with works that are waited for at once, in batches, and overlapped.
JOBS = {
    "1f1b": ["--schedule", "1f1b"],
    "1f1b-batches": ["--schedule", "1f1b", "--batch"],
    "interleaved": ["--schedule", "interleaved"],
    "interleaved-overlapped": ["--schedule", "interleaved", "--overlap"],
    "interleaved-all-overlapped": ["--schedule", "interleaved", "--overlap", "--warm-up"],
}
PP = DP = 2
TRANSFERS = {
    "forward-send": "send_next",
    "forward-recv": "recv_prev",
    "backward-send": "send_prev",
    "backward-recv": "recv_next",
}


#: Of these each fault is run; they have what there is: both schedules, and point-to-point overlapped or not.
WITH_FAULTS = ("1f1b", "interleaved-all-overlapped")


@pytest.fixture(scope="module", params=JOBS)
def jobs(request, tmp_path_factory):
    """Run one job a fault, recorded."""
    out = tmp_path_factory.mktemp(request.param)
    run(
        "megatron_job.py",
        out,
        *JOBS[request.param],
        "--faults",
        *(FAULTS if request.param in WITH_FAULTS else FAULTS[:1]),
    )
    return out


def test_rows_are_what_the_schedule_did(jobs):
    """Every compute has its microbatch and chunk, in order, and every message that was sent or received its row."""
    rows = read(jobs / "none")
    n_chunks = 1 + rows.mc.max()
    assert set(zip(rows["rank"], rows.stage, rows.dp_rank, strict=True)) == {(r, r // DP, r % DP) for r in range(4)}
    for rank in range(PP * DP):
        calls = json.loads((jobs / "none" / f"calls-{rank}.json").read_text())
        assert len(calls) == 8
        for step, asked in enumerate(calls):
            own = rows[(rows["rank"] == rank) & (rows.step == step)].sort_values("start_ts")
            check_step(own, asked, n_chunks)


def check_step(own, asked, n_chunks):
    """Compare the rows of one rank and step, by their start, with what Megatron-Core was asked to do."""
    computes = own[own.optype.isin(["forward-compute", "backward-compute"])]
    forwards, backwards = (own[own.optype == f"{way}-compute"] for way in ("forward", "backward"))
    true = [call.split() for call in asked if call.startswith(("forward", "backward"))]
    assert [name.removesuffix("-compute") for name in computes.optype] == [call[0] for call in true]
    order = [(int(chunk), int(microbatch)) for way, *more in true if way == "forward" for chunk, microbatch in [more]]
    assert list(zip(forwards.mc, forwards.mb_id, strict=True)) == order
    # Backwards come in the order of the forwards, the last chunk first.
    assert list(zip(backwards.mc, backwards.mb_id, strict=True)) == [(n_chunks - 1 - c, m) for c, m in order]
    assert (computes.gmc == computes.mc * PP + computes.stage).all()
    for optype, name in TRANSFERS.items():
        moved = own[own.optype == optype]
        assert len(moved) == asked.count(name), optype
        way = optype.split("-", maxsplit=1)[0]
        last = PP * n_chunks - 1
        ends = {"forward-send": last, "forward-recv": 0, "backward-send": 0, "backward-recv": last}
        partners = own[(own.optype == f"{way}-compute") & (own.gmc != ends[optype])]
        assert len(partners) == len(moved)
        if name.startswith("send"):
            assert (moved.start_ts.to_numpy() >= (partners.start_ts + partners.duration).to_numpy() - 1e-6).all()
        else:
            assert ((moved.start_ts + moved.duration).to_numpy() <= partners.start_ts.to_numpy() + 1e-6).all()


def test_a_healthy_job(jobs):
    """Nothing is said for sure of a job without a fault."""
    diagnosis = diagnose.diagnose(jobs / "none")
    assert diagnosis.fidelity.ok
    assert [cause.cause for cause in diagnosis.causes if cause.confidence >= 0.8] == []


@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.parametrize("jobs", WITH_FAULTS, indirect=True, scope="module")
def test_the_slow_place_is_named(jobs, fault):
    """The slow stage, the slow rank and the slow link are named first."""
    found = diagnose.diagnose(jobs / fault).causes[0]
    where = found.where
    if fault == "slow-stage":
        assert (found.cause, list(where.stages)) == ("stage-imbalance", [1])
    elif fault == "slow-worker":
        assert (found.cause, (1, 0)) == ("worker-fault", (where.workers[0].dp, where.workers[0].pp))
    else:
        # One link of one replica, or the card at one of its ends.
        places = {end for link in where.links for end in (link.source, link.target)} | set(where.workers)
        assert found.cause == "network-fault"
        assert {place.dp for place in places} == {1}
    assert found.confidence >= 0.8
