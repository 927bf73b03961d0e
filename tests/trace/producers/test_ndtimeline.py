"""Traces of ndtimeline are read as what they descend to: the trace format."""

from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pandas as pd
import pytest

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.input_files import list_input_files
from diagnose.trace.producers import ndtimeline
from diagnose.trace.producers.catalogue import Producer
from tests.fixture_jobs import FIXTURES, diagnosed
from tests.trace.producers.ndtimeline_files import raw_lines, timed, write_events
from tests.trace.producers.recordings import frame, read, say_nothing, to_parquet

PRODUCER = cast("Producer", cast("ModuleType", ndtimeline))
KEYS = ["step", "dp_rank", "stage", "rank", "optype", "start_ts"]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Give a job with a slow worker, as far as ndtimeline times it."""
    return timed(pd.read_parquet(FIXTURES["worker-fault"]))


def check_same(found: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Compare operations: the same ones, at the same times to a microsecond."""
    found, rows = (table.sort_values(KEYS, ignore_index=True) for table in (found, rows))
    assert len(found) == len(rows)
    for column in KEYS[:-1]:
        assert (found[column].to_numpy() == rows[column].to_numpy()).all(), column
    np.testing.assert_allclose(np.diff(found.start_ts), np.diff(rows.start_ts), atol=1e-6)
    np.testing.assert_allclose(found.duration, rows.duration, atol=1e-6)


def test_events_are_the_operations(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Events of two hosts give the operations of the Parquet file, whatever pid and tid say; folders name hosts."""
    recording = read(PRODUCER, write_events(tmp_path / "events", rows))
    check_same(frame(recording), rows)
    assert recording.host_names == ("host0", "host1")
    assert recording.dropped == ()


@pytest.mark.parametrize("stepped", [True, False])
def test_raw_lines_are_the_operations(tmp_path: Path, rows: pd.DataFrame, stepped: bool) -> None:
    """Raw lines give the operations of the Parquet file, whether each names its step or the line a range of steps."""
    rows = rows[rows.step.isin([36, 37])]  # a range has no holes
    path = tmp_path / "timeline_run0_raw.log"
    path.write_text("\n".join(["some other line", *raw_lines(rows, stepped=stepped)]))
    recording = read(PRODUCER, path)
    check_same(frame(recording), rows)
    assert recording.job["world_size"] == 16
    assert recording.host_names == ("10.0.0.0", "10.0.0.1")


def test_diagnosis_is_the_same(tmp_path: Path, rows: pd.DataFrame) -> None:
    """The slow worker is found at its place and with its onset, as in the Parquet file."""
    expected = diagnosed("worker-fault")
    recording = read(PRODUCER, write_events(tmp_path / "events", rows))
    found = diagnose_job(Request(to_parquet(recording), name="events"))
    assert found.causes[0].cause == expected.causes[0].cause == "worker-fault"
    who, wanted = found.causes[0].where.workers, expected.causes[0].where.workers
    assert [(w.dp, w.pp, w.rank) for w in who] == [(w.dp, w.pp, w.rank) for w in wanted]
    assert who[0].host == "host0"
    assert found.causes[0].when == expected.causes[0].when
    assert found.causes[0].recoverable == pytest.approx(expected.causes[0].recoverable, abs=0.005)


@pytest.mark.parametrize("name", ["network-fault", "stage-imbalance", "kernel-queue-contention", "healthy"])
def test_other_diagnoses_are_the_same(tmp_path: Path, name: str) -> None:
    """Raw lines of other jobs give the cause, place and gain that their Parquet file gives."""
    expected = diagnosed(name)
    path = tmp_path / "raw.log"
    path.write_text("\n".join(raw_lines(timed(pd.read_parquet(FIXTURES[name])))))
    found = diagnose_job(Request(to_parquet(read(PRODUCER, path)), name=name))
    assert found.verdict == expected.verdict
    for cause, wanted in zip(found.causes, expected.causes, strict=True):
        assert cause.cause == wanted.cause
        assert [(w.dp, w.pp) for w in cause.where.workers] == [(w.dp, w.pp) for w in wanted.where.workers]
        assert cause.where.stages == wanted.where.stages
        assert cause.recoverable == pytest.approx(wanted.recoverable, abs=0.01)


def test_tensor_parallel_members(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Where every tensor-parallel rank is recorded, the group is one worker and the diagnosis stays."""
    recording = read(PRODUCER, write_events(tmp_path / "events", rows, tp_size=2))
    assert recording.tp_rank is not None
    assert set(recording.tp_rank.tolist()) == {0, 1}
    assert set(recording.dp.tolist()) == {0, 1, 2, 3}
    found = diagnose_job(Request(to_parquet(recording), name="events"))
    assert found.job.tp_size == 2
    assert [(w.dp, w.pp) for w in found.causes[0].where.workers] == [(1, 0)]


def test_other_names(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Batched pairs become their parts, gradient and parameter collectives go by their other names, the rest is accounted for."""
    one = rows[(rows["rank"] == 0) & (rows.step == 16)]
    renamed = {
        "forward-send": "forward-send-backward-recv",
        "grads-reduce-scatter": "grad-reduce-scatter",
        "params-all-gather": "unshard-all-gather",
        "optimizer": "optimizer-inner-step",
        "optimizer-clip-main-grad": "tp-allreduce",
    }
    one = one[one.optype != "backward-recv"].assign(optype=lambda r: r.optype.replace(renamed))
    after = one[one.optype == "optimizer-inner-step"].assign(
        optype="optimizer-copy-main-to-model-params", start_ts=lambda r: r.start_ts + r.duration
    )
    recording = read(
        PRODUCER, write_events(tmp_path / "events", pd.concat([one, after, one.iloc[:1].assign(optype="lunch")]))
    )
    n = {op: int((recording.op == op).sum()) for op in Op}
    n_pairs = int((one.optype == "forward-send-backward-recv").sum())
    assert n[Op.FORWARD_SEND] == n[Op.BACKWARD_RECV] == n_pairs > 0
    assert n[Op.REDUCE_SCATTER] == n[Op.ALL_GATHER] == n[Op.OPTIMIZER] == 1
    optimizer_s = float(recording.duration_s[recording.op == Op.OPTIMIZER][0])
    assert optimizer_s == pytest.approx(2 * float(after.duration.iloc[0]), abs=1e-6)
    assert recording.dropped == ()
    assert recording.other is not None
    assert sorted(recording.other_types[n] for n in recording.other[recording.op < 0]) == ["lunch", "tp-allreduce"]


def test_mixed_lines_are_counted(tmp_path: Path, rows: pd.DataFrame) -> None:
    """A raw line that another rank wrote into is left out and counted, the others stay."""
    lines = raw_lines(rows[rows.step == 16])
    lines[0] = lines[0][: len(lines[0]) // 2] + lines[1]
    path = tmp_path / "raw.log"
    path.write_text("\n".join(lines))
    recording = read(PRODUCER, path)
    assert [(entry.what, entry.n) for entry in recording.dropped] == [
        ("raw lines that are cut off or mixed with others", 1)
    ]
    assert len(recording) > 0


def test_nothing_is_evaluated(tmp_path: Path, rows: pd.DataFrame) -> None:
    """Code in the place of numbers makes a broken line and does not run."""
    line = raw_lines(rows[rows.step == 16])[0]
    low, high = line.index("recent_elapsed_raw_parts: [") + 27, line.index("], recent_since")
    path = tmp_path / "raw.log"
    path.write_text(f"{line[:low]}__import__('os').mkdir('{tmp_path}/ran'){line[high:]}\n")
    with pytest.raises(TraceError, match="no whole event"):
        read(PRODUCER, path)
    assert not (tmp_path / "ran").exists()


def test_cut_off_list_is_refused(tmp_path: Path, rows: pd.DataFrame) -> None:
    """A list that ends in the middle is one clear line with the name of the file."""
    folder = write_events(tmp_path / "events", rows[rows.step == 16])
    file = next(folder.rglob("trace_step*"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TraceError, match="expected a whole list of events") as caught:
        ndtimeline.read(list_input_files(folder, name="events"), name="events", report=say_nothing)
    assert "events/host0/trace_step16_16" in str(caught.value)
