"""A specification becomes a recording: a tiny real job is made and read. Needs torch, and is skipped without."""

import json
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
from tests.recorded import make as recorded

TINY = {"kind": "pipe", "pp": 2, "micro": 3, "steps": 4, "units": 1, "unit_s": 0.001}
TINY |= {
    "faults": {
        "slow": [{"ranks": [1], "x": 3}],
        "evaluate": [{"every": 3, "n": 1}],
        "save": [{"at": [1], "mb": 1, "ranks": [0]}],
    }
}


def make(folder, spec):
    """Make a recording of a specification."""
    (folder / "spec.json").write_text(json.dumps({"tiny": {"made": spec}}))
    command = [
        sys.executable,
        "-m",
        "tests.recorded.make",
        str(folder / "spec.json"),
        "tiny",
        str(folder / "tiny.parquet"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_tiny_job(tmp_path):
    """Each stage has its computes in each step, a slow one longer ones, and what was done beside them has rows."""
    done = make(tmp_path, TINY)
    assert done.returncode == 0, done.stderr[-2000:]
    table = pq.read_table(tmp_path / "tiny.parquet")
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    assert (job["job_id"], job["saves"]) == ("tiny", True)  # though the last rank does not save
    rows: pd.DataFrame = table.to_pandas()
    counts = rows.groupby(["optype", "stage"], observed=True).size()
    for optype in ("forward-compute", "backward-compute"):
        assert [counts[optype, stage] for stage in (0, 1)] == [12, 12]
    assert set(rows[rows.optype == "checkpoint"].stage) == {0}
    assert set(rows[rows.optype == "eval"].stage) == {0, 1}
    # A sleep is never shorter than was asked for, so that its least time is one whatever else the machine does.
    assert rows[(rows.optype == "backward-compute") & (rows.stage == 1)].duration.min() >= 0.006


def test_a_zero_bubble_job(tmp_path):
    """A zero-bubble schedule accepts layers that take their time, and parts their backwards."""
    spec = TINY | {"chunks": 2, "schedule": "zero-bubble", "micro": 4, "faults": {"noise": [{"chance": 0.5, "x": 0.3}]}}
    done = make(tmp_path, spec)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = pq.read_table(tmp_path / "tiny.parquet").to_pandas().optype.value_counts()
    assert [counts[optype] for optype in ("forward-compute", "backward-input", "backward-weight")] == [64, 64, 64]


def test_steps_of_other_lengths(tmp_path):
    """Steps have as many microbatches as `counts` says in turns; a save beside them neither fails nor stops them."""
    spec = {"dp": 2, "steps": 4, "units": 1, "unit_s": 0.001, "counts": [3, 1]}
    done = make(tmp_path, spec | {"faults": {"save": [{"at": [1], "mb": 1, "beside": 1, "busy": 0.01}]}})
    assert done.returncode == 0, done.stderr[-2000:]
    rows = pq.read_table(tmp_path / "tiny.parquet").to_pandas()
    counts = rows[rows.optype == "forward-compute"].groupby(["step", "dp_rank"]).size()
    assert counts.tolist() == [3, 3, 1, 1, 3, 3, 1, 1]


def test_sorted_documents_come_with_the_longest_first(tmp_path):
    """Microbatches cost less and less within a step where documents are sorted."""
    docs = {"sigma": 1.0, "sort": 1}
    job = recorded.Job(0, recorded.DEFAULTS | {"micro": 6, "faults": {"docs": [docs]}}, tmp_path)
    job.begin_step(3)
    assert job.costs == sorted(job.costs, reverse=True)
    assert len({*job.costs}) > 1


def test_noise_makes_a_compute_longer_forwards_or_backwards(tmp_path):
    """Noise of chance 1 lengthens forwards and backwards of a microbatch, each by its own part."""
    job = recorded.Job(0, recorded.DEFAULTS | {"faults": {"noise": [{"chance": 1, "x": 0.5}]}}, tmp_path)
    job.begin_step(0)
    forward, backward = job.seconds()
    job.begin_microbatch(type("Chunk", (), {"place": 0}))
    noisy = job.seconds()
    assert noisy[0] > forward
    assert noisy[1] > backward
    assert noisy[0] / forward != noisy[1] / backward


def test_a_card_is_slow_one_way(monkeypatch):
    """A rate given for one way leaves the other end of the card as it is, and ends with the fault."""
    said = []
    monkeypatch.setattr(recorded, "limit", lambda *arguments: said.append(arguments))
    fault = {"host": 1, "rate": "5mbit", "way": "out", "from": 2, "to": 4}
    hands = recorded.Hands(recorded.DEFAULTS | {"faults": {"nic": [fault]}}, ["a", "b"], [], None)
    for step in range(6):
        hands._begin_step(step)
    assert said == [("b", "5mbit", ["out"]), ("b", recorded.DEFAULTS["rate"], ["out"])]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fault": {}}, "tiny has fault; expected"),
        ({"faults": {"slwo": []}}, "tiny has slwo; expected"),
        ({"faults": {"slow": {"ranks": [1]}}}, "slow of tiny is no list"),
    ],
)
def test_what_is_unknown_is_said(tmp_path, wrong, said):
    """A misspelt word of a specification is an error that names it."""
    done = make(tmp_path, TINY | wrong)
    assert done.returncode == 2
    assert said in done.stderr
