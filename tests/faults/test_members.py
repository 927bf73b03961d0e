"""Generated rows of every member: what the group did, and who was late in it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from diagnose.errors import UsageError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault

FIELDS = {"pp": 2, "dp": 2, "microbatches": 3, "steps": 4, "tp_size": 2, "cp_size": 2, "workers_per_host": 1, "seed": 9}
FAULT = WorkerFault(places=((1, 0),), slowdown=1.5, member=2)
KEY = ["step", "dp_rank", "stage", "optype", "seq_id"]


def rows_of(fault: WorkerFault = FAULT, **fields: Any) -> pd.DataFrame:
    """Generate a job's rows."""
    rows = generate(JobSpec(**(FIELDS | fields)), [fault]).trace.to_pandas()
    return rows.assign(end_ts=rows.start_ts + rows.duration, optype=rows.optype.astype(str))


@pytest.mark.parametrize("kind", ["ends", "starts", "waits"])
def test_a_group_begins_with_the_first_and_ends_with_the_last_member(kind: str) -> None:
    """First start and last end over the members are the start and end of the one row for all."""
    one, every = rows_of(), rows_of(members=kind)
    groups = every[every.optype != "tp-allreduce"].groupby(KEY)
    assert (groups.size() == 4).all()
    first, last = groups.start_ts.min(), groups.end_ts.max()
    expected = one.set_index(KEY).sort_index()
    np.testing.assert_allclose(first, expected.start_ts, atol=2e-6)
    np.testing.assert_allclose(last, expected.end_ts, atol=2e-6)


@pytest.mark.parametrize(("kind", "side"), [("ends", "end_ts"), ("starts", "start_ts")])
def test_the_faulty_member_is_last(kind: str, side: str) -> None:
    """On the faulty worker member 2 ends, or starts, last in every compute; on the others no member does so in most."""
    every = rows_of(members=kind)
    computes = every[every.optype.str.endswith("-compute")].assign(member=lambda r: r.cp_rank * 2 + r.tp_rank)
    last = computes.loc[computes.groupby(KEY)[side].idxmax()]
    faulty = (last.dp_rank == 1) & (last.stage == 0)
    assert (last[faulty].member == 2).all()
    assert last[~faulty].member.value_counts(normalize=True).max() < 0.5


def test_the_faulty_member_does_not_wait() -> None:
    """In the group's collectives all members but the faulty one wait by what it is slower."""
    every = rows_of(members="waits", member_noise=0.0)
    waits = every[(every.optype == "tp-allreduce") & (every.dp_rank == 1) & (every.stage == 0)]
    by_member = waits.groupby(["cp_rank", "tp_rank"]).duration.mean()
    assert by_member.loc[(1, 0)] == 0.0
    lost_s = FIELDS_MEAN_S * (1.0 - 1.0 / 1.5)
    np.testing.assert_allclose(by_member.drop((1, 0)), lost_s, rtol=0.05)


#: Mean of a slow forward and backward: 0.05 s and 1.8 times that, 1.5 times as long.
FIELDS_MEAN_S = 1.5 * 0.05 * (1.0 + 1.8) / 2.0


def test_ranks_and_hosts_of_members() -> None:
    """Global ranks count tensor, context, data and then pipeline parallel; a host has a worker, or so many ranks."""
    every = rows_of(members="ends")
    expected = ((every.stage * 2 + every.dp_rank) * 2 + every.cp_rank) * 2 + every.tp_rank
    assert (every["rank"] == expected).all()
    assert (every.host.astype(str) == "host-" + (every["rank"] // 4).map("{:03}".format)).all()
    two = rows_of(members="ends", ranks_per_host=2)
    assert (two.host.astype(str) == "host-" + (two["rank"] // 2).map("{:03}".format)).all()


def test_clocks_of_members_are_off_by_a_constant() -> None:
    """The same job with clocks that are off has every row of a member moved alike, and no duration changed."""
    right, off = rows_of(members="ends"), rows_of(members="ends", member_clock_s=5e-3)
    np.testing.assert_allclose(off.duration, right.duration, atol=1e-6)
    moved = (off.start_ts - right.start_ts).groupby(off["rank"])
    assert (moved.max() - moved.min()).max() < 1e-5
    assert moved.mean().abs().max() > 1e-3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"members": "all"}, "members is 'all'"),
        ({"members": "ends", "tp_size": 1, "cp_size": 1}, "one member a worker"),
        ({"ranks_per_host": -1}, "ranks_per_host is -1"),
    ],
)
def test_member_rows_that_cannot_be(fields: dict[str, Any], said: str) -> None:
    """A kind of rows that is none, members where there is one, or hosts of less than no ranks are refused."""
    with pytest.raises(UsageError, match=said):
        JobSpec(**(FIELDS | fields))


def test_a_member_that_the_job_does_not_have() -> None:
    """A fault at member 4 of 4 is refused."""
    with pytest.raises(UsageError, match="no member 4; workers have 4"):
        rows_of(WorkerFault(places=((1, 0),), member=4))
