"""What torch itself leaves: dumps of its Flight Recorder by processes over gloo. Needs torch, and is skipped without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import diagnose

pytest.importorskip("torch", reason="torch is not installed: no process leaves a dump")

JOB = Path(__file__).resolve().parents[1] / "torch_jobs" / "missing_call.py"


def test_the_rank_that_did_not_call_is_named(tmp_path):
    """Of four ranks the one that never called the twelfth reduction is named, with the line of those that wait for it."""
    environment = os.environ | {"PYTHONPATH": str(JOB.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    dumps = list((tmp_path / "dumps").iterdir())
    assert len(dumps) == 4, done.stderr[-2000:]
    for dump in dumps:  # torch writes them once a call has lasted for its time-out, half an hour here
        os.utime(dump, (dump.stat().st_mtime + 1800,) * 2)
    diagnosis = diagnose.diagnose(tmp_path / "dumps")
    hang = diagnosis.collectives.hang
    assert (hang.kind, hang.ranks, hang.at.number, hang.at.waiting) == ("missing", (2,), 12, (0, 1, 3))
    assert hang.at.frame.startswith("missing_call.py:")
