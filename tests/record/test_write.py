"""The file of one rank."""

import json
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from diagnose.record.clock import Clock, Window
from diagnose.record.log import StepLog
from diagnose.record.parallel_state import ParallelState, find_parallel_state, replica_of
from diagnose.record.rows import OperationRow
from diagnose.record.write import RecordedRows, write_rows
from diagnose.record.writer_thread import WriterThread


def kept_of(n_steps):
    """Keep two rows a step."""
    kept = RecordedRows()
    for number in range(n_steps):
        step = StepLog(number, Window(), 0, lengths={1: (12.0, 80.0, [4, 8])})
        forward = OperationRow("forward-compute", False, 1_000_000, 5_000_000, 1, 5)
        kept.add(step, [forward, OperationRow("optimizer", False, 9_000_000, 1_000_000)])
    return kept


def test_columns(tmp_path):
    """The file has the columns of the trace format: documents on computes, chunks from the stage within the model."""
    state = ParallelState(rank=3, world=8, dp=1, dp_size=2, stage=1, pp_size=4, vpp=2, host="node-7")
    path = write_rows(tmp_path, kept_of(2), state, {"job_id": "j"})
    table = pq.read_table(path)
    assert path.name == "rank-00003.parquet"
    forward, optimizer = table.slice(0, 2).to_pylist()
    assert (forward["mb_id"], forward["mc"], forward["gmc"], forward["stage"], forward["host"]) == (
        1,
        1,
        5,
        1,
        "node-7",
    )
    assert (forward["tokens"], forward["tokens_sq"], forward["doc_lengths"]) == (12.0, 80.0, [4, 8])
    assert (optimizer["mb_id"], optimizer["mc"], optimizer["tokens"], optimizer["doc_lengths"]) == (-1, -1, None, None)
    assert abs(forward["duration"] - 0.005) < 1e-9 and forward["start_ts"] > 1e9
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    assert (job["job_id"], job["dp_size"], job["pp_size"], job["vpp_size"], job["world_size"]) == ("j", 2, 4, 2, 8)


def test_always_whole(tmp_path):
    """Written again, the file is replaced as a whole and nothing else is left in the folder."""
    for n_steps in (1, 3):
        write_rows(tmp_path, kept_of(n_steps), ParallelState(), {})
        assert [path.name for path in tmp_path.iterdir()] == ["rank-00000.parquet"]
        assert pq.read_metadata(tmp_path / "rank-00000.parquet").num_rows == 2 * n_steps


def test_replicas():
    """In both usual layouts every pipeline of a job has a number of its own."""
    beside = [[0, 1, 2, 3], [4, 5, 6, 7]]
    across = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for pipelines in (beside, across):
        assert [[replica_of(rank, ranks) for rank in ranks] for ranks in pipelines] == [[0] * 4, [1] * 4]


def test_documents_here_and_there(tmp_path):
    """Steps with documents, with a sum alone and with nothing stay apart, and what JSON has no word for is text."""
    kept = RecordedRows()
    window = Window()
    for number, lengths in enumerate([{0: (12.0, 80.0, [4, 8])}, {0: (5.0, 7.0, None)}, {}, {1: (3.0, 9.0, [3])}]):
        step = StepLog(number, window, 0, lengths=lengths)
        kept.add(step, [OperationRow("forward-compute", False, 0, 1, microbatch, 0) for microbatch in (0, 1)])
    table = pq.read_table(write_rows(tmp_path, kept, ParallelState(), {"owner": tmp_path})).to_pydict()
    assert table["tokens"] == [12.0, None, 5.0, None, None, None, None, 3.0]
    documents = [None if found is None else list(found) for found in table["doc_lengths"]]
    assert documents == [[4, 8], None, None, None, None, None, None, [3]]


def test_a_full_disk(tmp_path, monkeypatch, caplog):
    """A file that cannot be written is tried again, with one warning, and nothing is left of the attempt."""

    def full(_table, path, **_options):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    writer = WriterThread(tmp_path, Clock(), ParallelState(), {}, pytest.fail)
    writer.kept = kept_of(1)
    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", full)
        writer._write()
        writer._write()
    assert list(tmp_path.iterdir()) == [] and caplog.text.count("No space left") == 1
    writer._write()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00000.parquet"]


def test_before_init_process_group(monkeypatch):
    """Ranks that do not know each other yet take their number from the launcher, and do not write one file."""
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    state = find_parallel_state(None, {}, [])
    assert (state.rank, state.world, state.dp, state.dp_size) == (5, 8, 5, 8)


@pytest.mark.parametrize("names", [("dp_replicate", "dp_shard"), ("replicate", "shard")])
def test_replicas_and_shards_of_a_mesh(monkeypatch, names):
    """Both dimensions of a hybrid mesh, by the names of torch's pages, are data-parallel ranks."""
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    mesh = SimpleNamespace(
        mesh_dim_names=names, get_coordinate=lambda: [1, 1], size=lambda dimension: (2, 4)[dimension]
    )
    state = find_parallel_state(mesh, {}, [])
    assert (state.dp, state.dp_size) == (5, 8)
