"""Whatever holds one job is read by what is in it: a trace, a folder of traces, another tool's files, another package's reader."""

import dataclasses
import gzip
import io
import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.errors import TraceError
from diagnose.model.recording import Account, ClockOffset, Dropped, Recording, Unobserved
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.account import read_account, write_account
from diagnose.trace.load import load_trace
from diagnose.trace.producers.catalogue import list_producers
from diagnose.trace.recorded import make_rows
from tests.fixture_jobs import diagnosed
from tests.trace.producers.pipelines import Pipeline, write_event_timer, write_megascan, write_primus

FIXTURE = Path("fixtures/worker-fault.parquet").resolve()


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Give a folder with one trace a rank, as a recorder writes it."""
    table = pq.read_table(FIXTURE)
    rank = table["rank"].to_numpy()
    (tmp_path / "ranks").mkdir()
    for one in np.unique(rank).tolist():
        pq.write_table(table.filter(pa.array(rank == one)), tmp_path / "ranks" / f"rank-{one}.parquet")
    return tmp_path / "ranks"


def change_job(file: Path, **changed: Any) -> None:
    """Change the metadata of a trace; None takes a key out."""
    table = pq.read_table(file)
    job = json.loads(table.schema.metadata[b"diagnose.job"]) | changed
    job = {key: value for key, value in job.items() if value is not None}
    pq.write_table(table.replace_schema_metadata({"diagnose.job": json.dumps(job)}), file)


def test_a_folder_of_ranks_is_diagnosed_as_one_file(ranks: Path) -> None:
    """The parts together give the diagnosis of the whole, byte for byte but for nothing."""
    (ranks / "notes.yaml").write_text("")
    assert json.dumps(diagnose_job(Request(ranks)).to_dict()) == json.dumps(diagnosed("worker-fault").to_dict())


def test_what_is_no_trace_in_a_folder_of_ranks_is_said(ranks: Path) -> None:
    """A file that nobody reads is counted in a warning."""
    (ranks / "recorder.log").write_text("hello")
    assert "1 files of the folder are no traces, and are not read" in load_trace(ranks).warnings


def test_ranks_that_contradict_each_other_are_refused(ranks: Path) -> None:
    """Two names of a job in one folder are two jobs; the message names both files and what to do."""
    change_job(ranks / "rank-5.parquet", job_id="another")
    with pytest.raises(
        TraceError, match=r"rank-5\.parquet: .*says that job_id is 'another', and .*rank-0\.parquet says .*triage"
    ):
        load_trace(ranks)


def test_when_a_job_began_and_ended_is_told_by_the_first_and_the_last(ranks: Path) -> None:
    """Each process says when it began and ended; that is no contradiction."""
    change_job(
        ranks / "rank-0.parquet", started_at="2026-01-01T00:00:03", finished_at="2026-01-01T01:00:00", steps_total=9
    )
    change_job(
        ranks / "rank-1.parquet", started_at="2026-01-01T00:00:01", finished_at="2026-01-01T01:00:02", steps_total=10
    )
    for other in range(2, 16):
        change_job(ranks / f"rank-{other}.parquet", steps_total=None)
    job = load_trace(ranks).job
    assert (job.started_at, job.finished_at, job.steps_total) == ("2026-01-01T00:00:01", "2026-01-01T01:00:02", 10)


def test_two_jobs_without_names_are_no_job(tmp_path: Path) -> None:
    """Without a name two files with the same steps of the same worker are two jobs."""
    for name in ("a", "b"):
        shutil.copy(FIXTURE, tmp_path / f"{name}.parquet")
        change_job(tmp_path / f"{name}.parquet", job_id=None)
    with pytest.raises(TraceError, match=r"both have step .* and no job_id says that they are of one job"):
        load_trace(tmp_path)


def test_lists_of_documents_are_gathered(tmp_path: Path) -> None:
    """Columns that only some files have, document lengths among them, stay with their rows."""
    table = pq.read_table("fixtures/sequence-imbalance.parquet")
    lengths = [[int(n)] if n and n > 0 else None for n in table["tokens"].to_pylist()]
    table = table.append_column("doc_lengths", pa.array(lengths, type=pa.list_(pa.int64())))
    whole = tmp_path / "whole.parquet"
    pq.write_table(table, whole)
    rank = table["rank"].to_numpy()
    (tmp_path / "ranks").mkdir()
    for one in np.unique(rank).tolist():
        part = table.filter(pa.array(rank == one))
        if one // 4 == 1:  # one stage; the others say the same of each microbatch
            part = part.drop_columns(["doc_lengths"])
        pq.write_table(part, tmp_path / "ranks" / f"{one}.parquet")
    found, expected = load_trace(tmp_path / "ranks").documents, load_trace(whole).documents
    assert found is not None and expected is not None
    assert len(found) == len(expected)
    converted = tmp_path / "converted.parquet"
    assert main(["convert", str(tmp_path / "ranks"), "-o", str(converted), "--quiet"]) == 0
    again = load_trace(converted).documents
    assert again is not None and len(again) == len(expected)


def test_what_nobody_knows_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown file, and an unknown folder, end with exit code 3 and say what was looked for."""
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "job.json", tmp_path / "folder" / "x.bin"):
        path.write_text('{"some": "thing"}')
    for job in ("job.json", "folder"):
        assert main([str(tmp_path / job)]) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert "is neither Parquet nor what a known producer writes (primus, megascan, event-timer" in line
        assert "`diagnose convert --list`" in line


def test_known_files_are_read_through_a_pipe(tmp_path: Path) -> None:
    """What is piped in is recognised as a file is; gzip changes nothing."""
    folder = write_event_timer(tmp_path / "job", Pipeline(2, 4, 4).run())
    content = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    plain, packed = (load_trace(io.BytesIO(data), name="standard input") for data in (content, gzip.compress(content)))
    assert plain.n_ops == packed.n_ops == 2 * 4 * 4 * 2


WRITERS = {"primus": write_primus, "event-timer": write_event_timer, "megascan": write_megascan}


@pytest.mark.parametrize("name", WRITERS)
def test_a_converted_job_gets_the_same_diagnosis(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose convert` loses nothing that the direct read has: the diagnosis of what it writes is the same, byte for byte."""
    spans = Pipeline(slow_link=1, since=6, link_delay_s=0.04).run()
    folder = WRITERS[name](tmp_path / "job", spans)  # type: ignore[operator]  # one signature too many
    (tmp_path / "job" / "other.txt").write_text("something else")
    assert main(["convert", str(folder), "-o", str(tmp_path / "job.parquet")]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"diagnose: note: {name}: 1 x files dropped" in said.err
    assert json.dumps(diagnose_job(Request(folder)).to_dict()) == json.dumps(
        diagnose_job(Request(tmp_path / "job.parquet")).to_dict()
    )
    first = (tmp_path / "job.parquet").read_bytes()
    assert main(["convert", str(folder), "-o", str(tmp_path / "job.parquet"), "--quiet"]) == 0
    assert (tmp_path / "job.parquet").read_bytes() == first


def test_converting_over_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file to read is never the file to write, and a failed conversion leaves nothing behind."""
    (tmp_path / "x").write_text("nothing known")
    assert main(["convert", str(tmp_path / "x"), "-o", str(tmp_path / "x")]) == 2
    assert main(["convert", str(tmp_path / "x"), "-o", str(tmp_path / "y.parquet")]) == 3
    assert main(["convert", str(tmp_path / "x")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_what_cannot_be_said_is_not_claimed(tmp_path: Path) -> None:
    """Causes that a format cannot show go to `not_checked` with the reason, and the account reaches page and JSON."""
    found = diagnose_job(Request(write_primus(tmp_path, Pipeline(n_steps=8).run()))).to_dict()
    reasons = {entry["cause"]: entry["reason"] for entry in found["not_checked"]}
    assert reasons["checkpoint-stall"] == "time between steps: each iteration begins at 0"
    assert "checkpoint-stall" not in found["checked"]
    assert found["recording"]["producer"] == "primus"
    assert [entry["what"] for entry in found["recording"]["unsaid"]][-1] == "point-to-point operations"
    assert any(warning.startswith("primus: collectives:") for warning in found["warnings"])


def test_a_trace_has_no_account() -> None:
    """What was written as a trace was converted from nothing."""
    assert diagnosed("worker-fault").to_dict()["recording"] is None


def test_an_account_survives_its_file() -> None:
    """Everything in an account, an unknown spread too, is read back as it was written."""
    account = Account(
        "x",
        (Dropped("a", 3, "b"),),
        (Unobserved("c", "d", ("transfers",)), Unobserved("e", "f", causes=("network-fault",))),
        (ClockOffset("rank 1", 0.5, math.nan, "schedule"), ClockOffset("rank 2", -0.5, 0.1, "collectives")),
    )
    text = json.dumps(write_account(account, ("w",)), allow_nan=False)
    found, warnings = read_account(json.loads(text))
    assert math.isnan(found.offsets[0].spread_s)
    assert dataclasses.replace(found, offsets=found.offsets[1:]) == dataclasses.replace(
        account, offsets=account.offsets[1:]
    )
    assert warnings == ("w",)


def test_an_account_of_an_earlier_version_is_honoured(tmp_path: Path) -> None:
    """A file converted when producers named causes themselves is read as it was written: the cause is not checked."""
    table = pq.read_table(FIXTURE)
    entry = {"what": "ends of computes", "reason": "only the host's times", "causes": ["worker-fault"]}
    kept = {"producer": "theirs", "dropped": [], "unsaid": [entry], "offsets": [], "warnings": []}
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"diagnose.recording": json.dumps(kept).encode()}),
        tmp_path / "x.parquet",
    )
    found = diagnose_job(Request(tmp_path / "x.parquet"))
    assert found.recording is not None and found.recording.to_dict()["unsaid"] == [entry]
    assert "worker-fault" not in found.checked
    reasons = {entry.cause: entry.reason for entry in found.not_checked}
    assert reasons["worker-fault"] == "ends of computes: only the host's times"


def test_an_account_of_a_later_version_is_read(tmp_path: Path) -> None:
    """A word for what is lacking that this version does not know is left out; the file and the other words count."""
    entry = {"what": "w", "reason": "r", "lacks": ["warp-speed", "transfers"], "causes": []}
    found, _ = read_account({"producer": "x", "dropped": [], "unsaid": [entry], "offsets": [], "warnings": []})
    assert found.unobserved[0].lacks == ("transfers",)


def test_a_damaged_account_is_refused(tmp_path: Path) -> None:
    """Metadata that no conversion writes is told with its key."""
    table = pq.read_table(FIXTURE)
    metadata = {**table.schema.metadata, b"diagnose.recording": b'{"producer": "x", "dropped": 3}'}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "x.parquet")
    with pytest.raises(TraceError, match=r"metadata 'diagnose.recording': is not what `diagnose convert` writes"):
        load_trace(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"stage": np.zeros(3, dtype=np.int64)}, r"stage has shape \(3,\)"),
        ({"start_s": np.array(["x", "y"])}, "start_s has shape"),
        ({"op": np.array([0, 99], dtype=np.int8)}, "op has a code"),
        ({"host": np.array([0, 1]), "host_names": ("a",)}, "host points beyond"),
    ],
)
def test_a_reader_that_gives_nonsense_is_told_so(changed: dict[str, Any], says: str) -> None:
    """Columns of another package's reader that do not fit are its fault, and the message says whose."""
    zero = np.zeros(2, dtype=np.int64)
    recording = Recording("theirs", zero.astype(np.int8), zero, zero, zero, zero.astype(float), zero + 1.0)
    with pytest.raises(TraceError, match=says) as raised:
        make_rows(dataclasses.replace(recording, **changed), name="job")
    assert "theirs" in str(raised.value)


PACKAGE = """
import numpy as np
from diagnose.model.recording import Recording, Unobserved

NAME = "stopwatch"
TITLE = "a stopwatch, for tests"

def recognise(inputs):
    return any(inputs.head(file).startswith(b"stopwatch") for file in inputs.files)

def read(inputs, *, name, report):
    n, m = 6, 4
    step, stage, microbatch, op = (axis.ravel() for axis in np.meshgrid(range(n), range(2), range(m), range(2), indexing="ij"))
    start_s = step * 10.0 + stage * 0.5 + microbatch + np.where(op == 1, 0.5 + 4.0 - stage, 0.0)
    return Recording(NAME, op.astype(np.int8), step, step * 0, stage, start_s, np.full(len(op), 0.4), microbatch=microbatch,
                     unobserved=(Unobserved("hosts", "a stopwatch knows none", ("peers",)),))
"""


@pytest.fixture
def stopwatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package of somebody else that reads another format."""
    site = tmp_path / "site"
    (site / "stopwatch_reader-1.0.dist-info").mkdir(parents=True)
    (site / "stopwatch_reader.py").write_text(PACKAGE)
    about = site / "stopwatch_reader-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stopwatch-reader\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[diagnose.producers]\nstopwatch = stopwatch_reader\n")
    monkeypatch.syspath_prepend(str(site))
    list_producers.cache_clear()
    yield site
    list_producers.cache_clear()
    sys.modules.pop("stopwatch_reader", None)


def test_another_package_reads_its_own_format(
    stopwatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that an installed package names by an entry point is listed, asked, and its account is kept."""
    (tmp_path / "job").write_text("stopwatch 1")
    assert main(["convert", "--list"]) == 0
    assert "stopwatch: a stopwatch, for tests" in capsys.readouterr().out.splitlines()
    found = diagnose_job(Request(tmp_path / "job"))
    assert found.recording is not None and found.recording.producer == "stopwatch"
    assert "hosts: a stopwatch knows none" in {
        entry.reason for entry in found.not_checked if entry.cause == "worker-fault"
    }


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise RuntimeError('boom')", "does not load .RuntimeError: boom."),
        ("NAME = 'x'", "has no TITLE; expected NAME"),
    ],
)
def test_a_broken_package_is_named(stopwatch: Path, tmp_path: Path, code: str, says: str) -> None:
    """A reader that does not load, or is none, is told with its entry point instead of a traceback."""
    (stopwatch / "stopwatch_reader.py").write_text(code)
    (tmp_path / "job").write_text("x")
    with pytest.raises(TraceError, match=rf"entry point 'stopwatch' of diagnose.producers: {says}"):
        load_trace(tmp_path / "job")


def test_explain_says_what_cannot_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked why a cause is not said that a format cannot show, the format is the answer."""
    write_primus(tmp_path / "job", Pipeline(n_steps=8).run())
    assert main(["explain", str(tmp_path / "job"), "checkpoint-stall"]) == 0
    assert "what was recorded cannot show it; time between steps" in " ".join(capsys.readouterr().out.split())
