"""A specification becomes a recording: a tiny real job is made and read. Needs torch, and is skipped without."""

import json
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

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
