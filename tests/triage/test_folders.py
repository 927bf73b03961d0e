"""A folder with one file a rank is one job of a triage run, beside folders with a job a file."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.model.memory import BYTES_PER_OP
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report import json_lines
from diagnose.triage.source import FoundJob, list_again, list_jobs
from diagnose.triage.triage import find_judge
from diagnose.triage.worker import Task, do_job
from tests.trace.producers.pipelines import Pipeline, write_primus

from .conftest import dump
from .test_run import run_on  # noqa: F401 - a fixture

OLD_S = 1_700_000_000


def age(folder: Path, seconds: int = OLD_S) -> None:
    """Make all files old enough that nobody doubts their times."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (seconds, seconds))


def record(folder: Path, trace: Path, job_id: str) -> Path:
    """Write a trace as the Recorder would have: a file a rank, each with what it says of itself."""
    folder.mkdir(parents=True)
    table = pq.read_table(trace)
    said = json.loads(table.schema.metadata[b"diagnose.job"]) | {"job_id": job_id}
    footer = {"diagnose.job": json.dumps(said), "diagnose.recorder": json.dumps({"collectives_within_computes": 0})}
    rank = table["rank"].to_numpy()
    for one in np.unique(rank).tolist():
        of_rank = table.filter(pa.array(rank == one)).replace_schema_metadata(footer)
        pq.write_table(of_rank, folder / f"rank-{one:05}.parquet")
    return folder


@pytest.fixture
def traces(tmp_path: Path, small_jobs: list[Path], make_folder: Callable[..., Path]) -> Path:
    """Give a folder with jobs of all kinds: two recorded, one of Primus, one damaged, and two whole ones; and things."""
    root = make_folder(tmp_path / "traces", 2)
    record(root / "run-1", small_jobs[1], "run-1")
    record(root / "deep" / "run-2", small_jobs[2], "run-2")
    write_primus(root / "primus", Pipeline(n_stages=2, n_microbatches=4, n_steps=6).run())
    broken = record(root / "broken", small_jobs[0], "broken")
    (broken / "rank-00001.parquet").write_bytes(b"PAR1 and no more")
    (root / "notes").mkdir()
    for name in ("a.txt", "b.txt"):
        (root / "notes" / name).write_text("notes")
    age(root)
    return root


JOBS = ["broken", "deep/run-2", "job-0000.parquet", "job-0001.parquet", "primus", "run-1"]


def test_each_is_one_job(traces: Path) -> None:
    """Folders of pieces are listed by their path, with the size of all files and the time of the newest."""
    jobs = list_jobs([str(traces)])
    assert [os.path.relpath(job.location, traces) for job in jobs] == JOBS
    found = jobs[-1]
    files = list((traces / "run-1").iterdir())
    assert found.size_bytes == sum(path.stat().st_size for path in files) and len(files) == 4
    assert found.is_folder and found.modified_s == OLD_S
    os.utime(files[2], (OLD_S + 60, OLD_S + 60))
    assert list_again(found).modified_s == OLD_S + 60


def test_a_folder_is_named(traces: Path, tmp_path: Path) -> None:
    """By itself, in a list and by a glob a folder is the same job; a file that is named is that file."""
    whole = [job for job in list_jobs([str(traces)]) if job.location.endswith("run-1")]
    (tmp_path / "list.txt").write_text(f"{traces}/run-1\n")
    for source in (traces / "run-1", tmp_path / "list.txt", traces / "run-*"):
        assert list_jobs([str(source)]) == whole
    assert not list_jobs([str(traces / "run-1" / "rank-00000.parquet")])[0].is_folder


@pytest.mark.parametrize("change", ["written", "added", "removed", "renamed", "described"])
def test_stamp(traces: Path, change: str) -> None:
    """A file that is written, comes, goes or gets another name makes the job new, as does the metadata beside the folder."""
    folder = traces / "run-1"
    (before,) = list_jobs([str(folder)])
    assert list_again(before) == before
    match change:
        case "written":
            os.utime(folder / "rank-00002.parquet", (5, 5))
        case "added":
            shutil.copy(folder / "rank-00000.parquet", folder / "rank-00009.parquet")
        case "removed":
            (folder / "rank-00003.parquet").unlink()
        case "renamed":
            (folder / "rank-00000.parquet").rename(folder / "rank-0.parquet")
        case "described":
            (traces / "run-1.yaml").write_text("owner: somebody\n")
    assert list_again(before).stamp not in {before.stamp, None}


def test_runs(run_on: Callable[..., Any], traces: Path, store_url: str, small_jobs: list[Path]) -> None:  # noqa: F811 - the fixture
    """A row a job, with the reason of the damaged one; the next run does nothing, a later one the job that changed."""
    found, done = run_on(traces)
    assert done == sorted(Path(name).name for name in JOBS) and found.n_failed == 1
    rows = {os.path.relpath(row["location"], traces): row for row in dump(store_url)["jobs"]}
    assert sorted(rows) == JOBS
    assert rows["run-1"]["job_id"] == "run-1" and rows["run-1"]["n_gpus"] == 4
    assert [name for name, row in rows.items() if row["failure"] is not None] == ["broken"]
    broken = rows["broken"]
    assert broken["failure"] == "input" and f"{traces}/broken/rank-00001.parquet" in broken["reason"]
    found, done = run_on(traces)
    assert done == [] and (found.n_known, found.n_known_by_time) == (6, 6)
    shutil.copy(traces / "run-1" / "rank-00001.parquet", traces / "broken" / "rank-00001.parquet")
    os.utime(traces / "primus" / "pp_rank_1.json")
    assert run_on(traces)[1] == ["broken"]
    (traces / "run-1" / "rank-00003.parquet").unlink()
    assert run_on(traces, since="2100-01-01")[1] == []
    assert run_on(traces)[1] == ["run-1"]


def do(job: FoundJob) -> str | None:
    """Diagnose a job as a worker does, and give the document."""
    return do_job(Task(job, find_judge(None, 1.02))).document


@pytest.mark.parametrize("name", ["run-1", "primus"])
def test_the_diagnosis_of_the_folder(traces: Path, name: str) -> None:
    """Is that of `diagnose FOLDER` byte for byte, metadata beside the folder included; folders in it are other jobs."""
    folder = traces / name
    (traces / f"{name}.yaml").write_text("owner: somebody\n")
    alone = json_lines.render(diagnose_job(Request(folder, name=str(folder))))
    assert '"owner":"somebody"' in alone.replace(" ", "")
    shutil.copytree(traces / "deep" / "run-2", folder / "run-2")
    jobs = list_jobs([str(folder)])
    assert [job.location for job in jobs] == [str(folder), str(folder / "run-2")]
    assert do(jobs[0]) == alone


def test_a_folder_that_is_gone(traces: Path) -> None:
    """Between listing and work a folder may go, or lose its pieces: the row says what is there."""
    (job,) = list_jobs([str(traces / "run-1")])
    task = Task(job, find_judge(None, 1.02))
    for path in (traces / "run-1").iterdir():
        path.unlink()
    row = do_job(task).row
    assert row is not None and row.failure == "unreadable" and "a folder that holds no job" in (row.reason or "")
    (traces / "run-1").rmdir()
    row = do_job(task).row
    assert row is not None and row.failure == "unreadable" and "No such file" in (row.reason or "")


def test_memory(traces: Path) -> None:
    """A folder whose files together need more memory than the job may take is handed back, by the rows of all footers."""
    (job,) = list_jobs([str(traces / "run-1")])
    n_ops = sum(pq.read_metadata(path).num_rows for path in (traces / "run-1").iterdir())
    task = Task(job, find_judge(None, 1.02), memory_bytes=n_ops * BYTES_PER_OP - 1, is_last_try=False)
    assert do_job(task).needs_bytes == n_ops * BYTES_PER_OP
    assert do_job(dataclasses.replace(task, is_last_try=True)).needs_bytes is None
