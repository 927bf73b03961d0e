"""A folder with the pieces of one job is told from a folder with a job a file, by a few of its files."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.record.parallel_state import ParallelState
from diagnose.record.write import write_rows
from diagnose.trace import input_files
from diagnose.trace.gather import gather_traces
from diagnose.trace.growing import GrowingTrace
from diagnose.trace.rank_files import FILES_ASKED, FOOTERS_ASKED, RECORDER_KEY, pick_rank_files
from tests.record.test_write import kept_of
from tests.trace.foreign_files import FOREIGN, write
from tests.trace.producers.kineto_traces import data_parallel_rank, distributed
from tests.trace.producers.pipelines import Pipeline, write_event_timer, write_megascan, write_primus
from tests.trace.producers.torchtitan_files import write_logs

PIPELINE = Pipeline(n_stages=2, n_microbatches=2, n_steps=2)


def pick(folder: Path) -> tuple[str, ...]:
    """Pick the pieces of a folder."""
    return pick_rank_files(folder, sorted(path.name for path in folder.iterdir()))


def record(folder: Path, n_ranks: int = 2) -> list[Path]:
    """Record a job of some ranks."""
    return [
        write_rows(
            folder, kept_of(2), ParallelState(rank=rank, world=n_ranks, stage=rank, pp_size=n_ranks), {"job_id": "j"}
        )
        for rank in range(n_ranks)
    ]


def test_the_files_of_the_recorder_are_pieces(tmp_path: Path) -> None:
    """What the Recorder writes is one job, also of one rank, and whatever else lies beside it is left out."""
    record(tmp_path, 1)
    (tmp_path / "stdout.log").write_text("iteration 1")
    assert pick(tmp_path) == ("rank-00000.parquet",)
    record(tmp_path, 2)
    assert pick(tmp_path) == ("rank-00000.parquet", "rank-00001.parquet")


def test_a_damaged_first_piece_is_no_reason(tmp_path: Path) -> None:
    """Until a footer can be read the next file is asked, up to three; after that nobody is."""
    paths = record(tmp_path, FOOTERS_ASKED + 1)
    for n, path in enumerate(paths[:FOOTERS_ASKED]):
        assert len(pick(tmp_path)) == len(paths), n
        path.write_bytes(path.read_bytes()[:-20])
    assert pick(tmp_path) == ()


def test_a_damaged_footer_does_not_end_the_process(tmp_path: Path) -> None:
    """GIVEN a footer that says of one column that it has another type THEN its statistics are not asked for: pyarrow 26 aborts."""
    (path,) = record(tmp_path, 1)
    whole = path.read_bytes()
    for column in (b"step", b"rank"):
        at = whole.rindex(b"\x1c\x15", 0, whole.rindex(b"\x19\x18\x04" + column)) + 2  # the type, before the path
        path.write_bytes(whole[:at] + b"\x00" + whole[at + 1 :])
        assert pick(tmp_path) == (() if column == b"rank" else (path.name,))
        assert GrowingTrace(path).look() == (column == b"rank")


def test_whole_jobs_are_no_pieces(tmp_path: Path) -> None:
    """What was put together from pieces keeps the metadata of the first, and is still a job of its own."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "whole").mkdir()
    tables = [pq.read_table(path) for path in record(tmp_path / "ranks")]
    pq.write_table(pa.concat_tables(tables), tmp_path / "whole" / "a.parquet")
    assert RECORDER_KEY in pq.read_metadata(tmp_path / "whole" / "a.parquet").metadata
    assert pick(tmp_path / "whole") == ()


def write_kineto(folder: Path) -> None:
    """Write the packed profiles of two ranks."""
    for rank in range(2):
        data_parallel_rank().write(folder / f"rank{rank}.pt.trace.json.gz", **distributed(rank, 2))


WRITERS = {
    "primus": lambda folder: write_primus(folder, PIPELINE.run()),
    "megascan": lambda folder: write_megascan(folder, PIPELINE.run()),
    "event_timer": lambda folder: write_event_timer(folder, PIPELINE.run()),
    "torchtitan": lambda folder: write_logs(folder, n_ranks=2, steps=range(1, 4)),
    "kineto": write_kineto,
}


@pytest.mark.parametrize("write_job", WRITERS.values(), ids=WRITERS)
def test_files_that_a_producer_knows_are_pieces(tmp_path: Path, write_job: Callable[[Path], object]) -> None:
    """One file a rank of a known producer is one job; its configuration is among the files, descriptions are not."""
    write_job(tmp_path / "job")
    written = tuple(sorted(path.name for path in (tmp_path / "job").iterdir()))
    (tmp_path / "job" / "job.yaml").write_text("owner: somebody\n")
    assert pick(tmp_path / "job") == written


def test_what_nobody_knows_is_no_job(tmp_path: Path) -> None:
    """Notes, a single file of a producer, training logs of several jobs, and pipes: nothing, and nobody waits."""
    assert pick(tmp_path) == ()
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("notes")
    os.mkfifo(tmp_path / "d.txt")
    assert pick(tmp_path) == ()
    write_primus(tmp_path / "job", PIPELINE.run())
    (tmp_path / "job" / "pp_rank_1.json").unlink()
    assert pick(tmp_path / "job") == ()
    (tmp_path / "logs").mkdir()
    line = " iteration        1/     100 | consumed samples: 8 | elapsed time per iteration (ms): 900.0 | global batch size: 8 |\n"
    for name in ("job-1.log", "job-2.log"):
        (tmp_path / "logs" / name).write_text(line * 5)
    assert pick(tmp_path / "logs") == ()


def test_few_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files a folder has, the first bytes of four are read."""
    for n in range(100):
        (tmp_path / f"shard-{n:03}.bin").write_bytes(b"\0" * 10)
    looked_at = set()
    monkeypatch.setattr(input_files, "_head", lambda file: looked_at.add(file) or b"")
    assert pick(tmp_path) == () and len(looked_at) == FILES_ASKED


def test_what_another_tool_recorded_is_a_job(tmp_path: Path) -> None:
    """Dumps that are not read are one job, which will say what they are; logs and pictures beside each other are none."""
    for name, content in FOREIGN["PyTorch Flight Recorder dump"]:
        write(tmp_path / "dumps", name, content() if callable(content) else content)
    assert pick(tmp_path / "dumps") == ("nccl_trace_rank_0", "nccl_trace_rank_1", "nccl_trace_rank_2.json")
    for called in ("Slurm log", "NCCL log", "image", "PyTorch checkpoint", "source code", "TensorBoard events"):
        for name, content in FOREIGN[called]:
            write(tmp_path / "run", name, content() if callable(content) else content)
    assert pick(tmp_path / "run") == ()


def test_what_one_rank_does_the_job_does(tmp_path: Path) -> None:
    """One rank saves and one reads: the job does both; of ranks that recorded different parts only common steps are the job's."""
    for rank in range(2):
        state = ParallelState(rank=rank, world=2, dp=rank, dp_size=2)
        said = {"job_id": "j", "saves": rank == 0, "reads_input": rank == 1, "sample": (0.1, 0.025)[rank]}
        write_rows(tmp_path, kept_of(6 - 3 * rank), state, said)
    paths = tuple(sorted(tmp_path.iterdir()))
    rows = gather_traces(tmp_path, paths, name="job", report=lambda _: None)
    assert rows.job["saves"] and rows.job["reads_input"] and rows.job["sample"] == 0.025
    assert sorted(set(zip(rows.dp.tolist(), rows.step.tolist(), strict=True))) == [
        (d, s) for d in (0, 1) for s in range(3)
    ]
