"""The file of one rank."""

import json

import pyarrow.parquet as pq

from diagnose.record.clock import Window
from diagnose.record.log import StepLog
from diagnose.record.place import Place, replica_of
from diagnose.record.rows import Row
from diagnose.record.write import Kept, write_rows


def kept_of(n_steps):
    """Keep two rows a step."""
    kept = Kept()
    for number in range(n_steps):
        step = StepLog(number, Window(), 0, lengths={1: (12.0, 80.0, [4, 8])})
        forward = Row("forward-compute", False, 1_000_000, 5_000_000, 1, 5)
        kept.add(step, [forward, Row("optimizer", False, 9_000_000, 1_000_000)])
    return kept


def test_columns(tmp_path):
    """The file has the columns of the trace format: documents on computes, chunks from the stage within the model."""
    place = Place(rank=3, world=8, dp=1, dp_size=2, stage=1, pp_size=4, vpp=2, host="node-7")
    path = write_rows(tmp_path, kept_of(2), place, {"job_id": "j"})
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
        write_rows(tmp_path, kept_of(n_steps), Place(), {})
        assert [path.name for path in tmp_path.iterdir()] == ["rank-00000.parquet"]
        assert pq.read_metadata(tmp_path / "rank-00000.parquet").num_rows == 2 * n_steps


def test_replicas():
    """In both usual layouts every pipeline of a job has a number of its own."""
    beside = [[0, 1, 2, 3], [4, 5, 6, 7]]
    across = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for pipelines in (beside, across):
        assert [[replica_of(rank, ranks) for rank in ranks] for ranks in pipelines] == [[0] * 4, [1] * 4]
