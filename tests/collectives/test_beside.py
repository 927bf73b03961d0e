"""What is said of a folder in which dumps of collectives lie beside a log, or beside traces: one answer."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest

import diagnose
from diagnose.report.html.page import render_without_replay
from diagnose.report.schemas import make_schema
from diagnose.trace.collectives import recognise
from tests.collectives.simulate import Fault, Shape, simulate
from tests.collectives.write import write_flight_recorder, write_inspector
from tests.trace.producers.megatron_lines import argument_lines, noisy, run

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
#: As the job of the trace is laid out; its slow worker is at dp 2, stage 1.
TRACED = Shape(1, 4, 4)
SMALL = Shape(2, 4, 2)


def write_hang(folder):
    """Write the dumps of a job that stands still for rank 11."""
    return write_flight_recorder(simulate(SMALL, Fault("hang", 11, at=0.6), seed=1, n_steps=6), folder, seed=1)


def write_log(path, n=1200, day="2026-09-21", **sizes):
    """Write the log of so many steady iterations, by default of the day of the dumps."""
    lines = [*(argument_lines(**sizes) if sizes else ()), *run(range(1, n + 1), noisy([(n, 1.0)]))]
    path.write_text(re.sub(r"\d{4}-\d\d-\d\d", day, "\n".join(lines)))


def write_durations(folder, shape, fault, seed=5):
    """Write dumps with durations, as Inspector does."""
    write_inspector(simulate(shape, fault, seed=seed, n_steps=12), folder, seed=1, version="v4.3", has_p2p=True)


def write_traced(folder, fault, seed=5):
    """Write a trace with a slow worker, and dumps with durations of a job of the same layout."""
    write_durations(folder / "dumps", TRACED, fault, seed)
    shutil.copy(FIXTURES / "worker-fault.parquet", folder / "trace.parquet")
    return diagnose.diagnose(folder)


def check(diagnosis):
    """Check that the JSON keeps its contract, and give it."""
    said = json.loads(diagnosis.to_json())
    jsonschema.validate(said, make_schema("diagnosis"))
    return said


@pytest.mark.parametrize("name", ["a.log", "zz.log"])
def test_a_log_and_the_dumps_of_a_hang(tmp_path, name):
    """The hang is said first, since the step after the last of the log, whose section is there, too."""
    write_hang(tmp_path / "dumps")
    write_log(tmp_path / name)
    diagnosis = diagnose.diagnose(tmp_path)
    first = diagnosis.causes[0]
    assert first.title.startswith("hang: rank 11 never called ")
    assert (first.when.onset_step, first.severity) == (1201, "high")
    assert [item.source for item in first.evidence][-1] == "log"
    assert "iteration 1,200" in first.evidence[-1].text
    said = check(diagnosis)
    assert (said["job"]["steps"], said["log"]["last_iteration"]) == (1200, 1200)
    assert (said["job"]["gpus"], said["job"]["tp_size"]) == (16, 2)
    assert diagnosis.gpu_hours_analysed == pytest.approx(16 * 1200.0 / 3600.0, rel=0.05)
    assert said["collectives"]["hang"]["ranks"] == [11]
    page = render_without_replay(diagnosis, "folder")
    assert "Hang: rank 11 never called" in page
    assert "1,200 lines" in page


def test_a_log_that_is_given(tmp_path):
    """`--log` joins a log to dumps that lie elsewhere."""
    write_log(tmp_path / "train.log", n=300)
    diagnosis = diagnose.diagnose(write_hang(tmp_path / "dumps"), log=tmp_path / "train.log")
    assert (diagnosis.causes[0].when.onset_step, diagnosis.collectives.hang.ranks) == (301, (11,))


def test_a_log_of_another_job(tmp_path):
    """Dumps of more ranks than the log tells of are not used, and both figures are said."""
    write_hang(tmp_path / "dumps")
    write_log(tmp_path / "train.log", world_size=8, tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
    diagnosis = diagnose.diagnose(tmp_path)
    assert diagnosis.causes == ()
    (warning,) = [text for text in diagnosis.warnings if "contradict" in text]
    assert "16 ranks, the log of 8" in warning


@pytest.mark.parametrize(
    ("day", "side"),
    [("2025-01-05", "before"), ("2026-09-23", "after"), ("2027-01-05", "after")],
)
def test_a_log_of_another_day(tmp_path, day, side):
    """A hang is not dated by a log that ends days away from it; that they do not fit is said."""
    write_hang(tmp_path / "dumps")
    write_log(tmp_path / "train.log", day=day)
    diagnosis = diagnose.diagnose(tmp_path)
    assert diagnosis.causes[0].when.onset_step is None
    (warning,) = [text for text in diagnosis.warnings if "are they of another attempt?" in text]
    assert f" h {side} the last call in the dumps" in warning


def test_dumps_that_agree_with_the_trace(tmp_path):
    """The rank that the dumps name is evidence of the cause at its worker, and no cause of its own."""
    alone = diagnose.diagnose(FIXTURES / "worker-fault.parquet")
    (cause,) = alone.causes
    rank = cause.where.workers[0].rank
    diagnosis = write_traced(tmp_path, Fault("slow", rank, 1.35))
    (joined,) = diagnosis.causes
    assert (joined.cause, joined.where, joined.recoverable) == (cause.cause, cause.where, cause.recoverable)
    assert joined.evidence[: len(cause.evidence)] == cause.evidence
    (added,) = joined.evidence[len(cause.evidence) :]
    assert (added.source, added.id) == ("collectives", f"worker-fault/rank-{rank}")
    assert not any("do not agree" in warning for warning in diagnosis.warnings)
    assert not any("Inspector" in warning for warning in diagnosis.warnings)
    assert (diagnosis.ledger, diagnosis.step_time) == (alone.ledger, alone.step_time)
    assert check(diagnosis)["collectives"]["late_ranks"][0]["rank"] == rank


def test_dumps_that_name_another_rank(tmp_path):
    """A rank that the trace does not name is a cause of its own behind those of the trace, and a warning names both."""
    diagnosis = write_traced(tmp_path, Fault("slow", 5, 1.35))
    ours, theirs = diagnosis.causes
    known = ours.where.workers[0].rank
    assert (theirs.cause, theirs.where.workers[0].rank, theirs.evidence[0].source) == ("worker-fault", 5, "collectives")
    assert theirs.severity is not None
    (warning,) = [text for text in diagnosis.warnings if "do not agree" in text]
    assert "dumps name rank 5" in warning
    assert f"trace names rank {known}" in warning
    check(diagnosis)
    left = [entry.cause for entry in diagnosis.not_checked]
    assert "worker-fault" in diagnosis.checked and sorted([*diagnosis.checked, *left]) == sorted(list_asked())


def list_asked():
    """List what is looked for in a trace."""
    alone = diagnose.diagnose(FIXTURES / "worker-fault.parquet")
    return [*alone.checked, *(entry.cause for entry in alone.not_checked)]


def test_a_log_and_the_dumps_of_a_slow_rank(tmp_path):
    """The dumps name the rank; what only a trace shows stays unchecked."""
    write_durations(tmp_path / "d", TRACED, Fault("slow", 5, 1.35))
    write_log(tmp_path / "a.log")
    diagnosis = diagnose.diagnose(tmp_path)
    assert [(cause.cause, cause.where.workers[0].rank) for cause in diagnosis.causes] == [("worker-fault", 5)]
    dumps = diagnose.diagnose(tmp_path / "d")
    assert set(diagnosis.checked) == set(dumps.checked)
    assert "worker-fault" not in {entry.cause for entry in diagnosis.not_checked}


def test_dumps_that_name_nobody(tmp_path):
    """Dumps with durations that show no late rank do not take the cause of the trace back: that they do not agree is said."""
    diagnosis = write_traced(tmp_path, Fault())
    assert len(diagnosis.causes) == 1
    (warning,) = [text for text in diagnosis.warnings if "do not agree" in text]
    assert "the dumps name nobody" in warning


def test_a_healthy_trace_and_a_hang(tmp_path):
    """A job that stands still is not healthy, whatever its trace was."""
    write_flight_recorder(simulate(TRACED, Fault("hang", 11, at=0.6), seed=1, n_steps=6), tmp_path / "dumps", seed=1)
    shutil.copy(FIXTURES / "healthy.parquet", tmp_path / "trace.parquet")
    diagnosis = diagnose.diagnose(tmp_path)
    assert diagnosis.verdict == "straggling"
    assert diagnosis.causes[0].title.startswith("hang: rank 11 ")
    assert "inf" not in diagnosis.summary
    check(diagnosis)


def test_damaged_dumps_beside_a_trace(tmp_path):
    """Dumps that cannot be read leave the diagnosis of the trace as it is, with a warning."""
    folder = write_hang(tmp_path / "dumps")
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:3000])
    shutil.copy(FIXTURES / "worker-fault.parquet", tmp_path / "trace.parquet")
    diagnosis = diagnose.diagnose(tmp_path)
    assert [cause.cause for cause in diagnosis.causes] == ["worker-fault"]
    assert diagnosis.collectives is None
    assert any(text.startswith("dumps are not used: ") for text in diagnosis.warnings)


def test_dumps_of_two_recorders(tmp_path):
    """The hang that the Flight Recorder shows, and the slow rank that Inspector shows, are both said."""
    write_hang(tmp_path / "hang")
    write_durations(tmp_path / "slow", SMALL, Fault("slow", 5, 1.6))
    alone = diagnose.diagnose(tmp_path / "hang"), diagnose.diagnose(tmp_path / "slow")
    diagnosis = diagnose.diagnose(tmp_path)
    check(diagnosis)
    assert [cause.title for cause in diagnosis.causes] == [cause.title for one in alone for cause in one.causes]
    assert diagnosis.collectives.format == "PyTorch Flight Recorder"
    # What one of them could not look for, and the other did, is open no longer.
    still_open = [{entry.cause for entry in one.not_checked} for one in (*alone, diagnosis)]
    assert "worker-fault" in still_open[0]
    assert still_open[2] == still_open[0] & still_open[1]


def test_damaged_dumps_of_the_second_recorder(tmp_path):
    """A warning names them, and the others are used."""
    write_durations(tmp_path / "slow", SMALL, Fault("slow", 5, 1.6))
    alone = diagnose.diagnose(tmp_path)
    for file in write_hang(tmp_path / "hang").iterdir():
        file.write_bytes(file.read_bytes()[:3000])
    diagnosis = diagnose.diagnose(tmp_path)
    assert diagnosis.causes == alone.causes
    assert any("dumps of one of two recorders are not used" in warning for warning in diagnosis.warnings)


def test_each_file_of_a_job_is_asked_once_whether_it_is_a_dump(tmp_path, monkeypatch):
    """A folder of traces and dumps is asked for dumps three times, and looked at once."""
    asked = []
    looked = recognise.name_dump
    monkeypatch.setattr(recognise, "name_dump", lambda inputs, file: asked.append(file) or looked(inputs, file))
    write_traced(tmp_path, Fault())
    first = {file for file in asked if asked.count(file) > 2}
    assert asked
    assert not first
