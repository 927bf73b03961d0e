"""Structured logs of torchtitan: what stops the host's loop is found, and nobody is blamed who waits."""

from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.judge.unchecked import name_unchecked
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.optype import Op
from diagnose.model.recording import Recording
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.producers.catalogue import Producer
from diagnose.trace.producers.torchtitan import job as torchtitan
from tests.judge.cases import built_in
from tests.trace.producers.recordings import read, to_parquet
from tests.trace.producers.torchtitan_files import write_logs

PRODUCER = cast("Producer", cast("ModuleType", torchtitan))


def record(tmp_path: Path, **job: Any) -> Recording:
    """Write the logs of a job and read them."""
    return read(PRODUCER, write_logs(tmp_path / "structured_logs", **job))


def diagnose(recording: Recording) -> Diagnosis:
    """Diagnose what was read."""
    return diagnose_job(Request(to_parquet(recording), name="structured_logs"))


def causes_of(found: Diagnosis, recording: Recording) -> list[str]:
    """List the causes found that the recording lets anyone look for."""
    account = name_unchecked(recording.account, built_in().rules)
    assert account is not None
    hidden = {cause for entry in account.unobserved for cause in entry.causes}
    return [cause.cause for cause in found.causes if cause.cause not in hidden]


def test_spans_are_rows(tmp_path: Path) -> None:
    """Each fwd_bwd is a forward and a backward that fill it; fetches, collections and saves are evidence."""
    recording = record(tmp_path, n_ranks=4, steps=range(5, 8), save=lambda _, step: 2.0 if step == 6 else 0.0)
    n = {op: int((recording.op == op).sum()) for op in Op}
    assert (n[Op.FORWARD], n[Op.BACKWARD], n[Op.OPTIMIZER], n[Op.DATA_LOAD]) == (24, 24, 12, 24)
    assert (n[Op.GC], n[Op.CHECKPOINT], n[Op.ALL_GATHER]) == (12, 4, 12)
    assert set(recording.step.tolist()) == {5, 6, 7}
    assert set(recording.dp.tolist()) == {0, 1, 2, 3}
    assert recording.host_names == ("node0",)
    assert [(entry.what, entry.n) for entry in recording.dropped] == [("checkpoint_save", 8)]
    assert recording.tokens is not None
    assert np.nansum(recording.tokens[recording.op == Op.FORWARD]) == 12 * 8192
    forward_s, backward_s = (recording.duration_s[recording.op == op] for op in (Op.FORWARD, Op.BACKWARD))
    np.testing.assert_allclose(backward_s, 2 * forward_s, atol=1e-6)


@pytest.mark.parametrize("skew_s", [0.0, 0.3])
def test_sound_job(tmp_path: Path, skew_s: float) -> None:
    """A sound job has no cause, whatever its clocks say, and tells which causes cannot be checked."""
    recording = record(tmp_path, skew_s=skew_s)
    assert causes_of(diagnose(recording), recording) == []
    assert "worker-times" in recording.unobserved[0].lacks


@pytest.mark.parametrize("wait_s", [0.2, 1.0])
def test_slow_input_everywhere(tmp_path: Path, wait_s: float) -> None:
    """Input that is late on all ranks is data loading and costs what it takes, shorter or longer than the step."""
    recording = record(tmp_path, fetch=lambda *_: wait_s)
    found = diagnose(recording)
    assert causes_of(found, recording) == ["data-loading"]
    assert found.causes[0].recoverable == pytest.approx(2 * wait_s / found.step_time.recorded, abs=0.01)


@pytest.mark.parametrize("meets", [True, False])
def test_slow_input_of_one_rank(tmp_path: Path, meets: bool) -> None:
    """Where all wait for one rank's batch, before fwd_bwd or in it, that is data loading; a warning names it, nobody else is."""
    recording = record(tmp_path, fetch=lambda rank, _: 0.2 if rank == 3 else 0.0, skew_s=0.05, meets=meets)
    found = diagnose(recording)
    assert causes_of(found, recording) == ["data-loading"]
    assert found.causes[0].where.workers == ()
    assert found.causes[0].recoverable == pytest.approx(0.4 / found.step_time.recorded, abs=0.015)
    assert found.what_if.by_worker.max() < 1.02
    assert "rank 3 is it in 60 of 60 steps" in recording.warnings[0]


def test_clocks_are_aligned(tmp_path: Path) -> None:
    """Clocks that differ from host to host are moved by where ranks meet."""
    recording = record(tmp_path, fetch=lambda rank, _: 0.2 if rank == 3 else 0.0, skew_s=0.05)
    offsets = np.array([entry.offset_s for entry in recording.offsets])
    np.testing.assert_allclose(offsets - offsets[0], [0.0] * 4 + [0.05] * 4, atol=1e-3)
    assert {entry.how for entry in recording.offsets} == {"collectives"}


def test_collections(tmp_path: Path) -> None:
    """Collections of single ranks that all wait for are garbage collection."""
    recording = record(tmp_path, collect=lambda rank, step: 0.6 if (step + 5 * rank) % 10 == 0 else 0.0)
    found = diagnose(recording)
    assert causes_of(found, recording) == ["garbage-collection"]
    assert found.causes[0].recoverable == pytest.approx(0.12 / found.step_time.recorded, abs=0.01)


def test_saving(tmp_path: Path) -> None:
    """Saving every so many steps is a checkpoint stall with its period."""
    recording = record(tmp_path, save=lambda _, step: 3.0 if step % 20 == 0 else 0.0)
    found = diagnose(recording)
    assert causes_of(found, recording) == ["checkpoint-stall"]
    assert found.causes[0].when.period_steps == pytest.approx(20)


def test_evaluation_is_no_loss(tmp_path: Path) -> None:
    """Evaluations are cut out of the clock, and no cause."""
    recording = record(tmp_path, evaluate=lambda _, step: 3.0 if step % 10 == 0 else 0.0)
    found = diagnose(recording)
    assert causes_of(found, recording) == []
    assert found.step_time.recorded == pytest.approx(0.88, abs=0.01)
    assert ("eval", 48) in [(entry.what, entry.n) for entry in recording.dropped]


def test_who_waits_is_not_blamed(tmp_path: Path) -> None:
    """A slow rank is not seen from the host: nobody is blamed, neither it nor those that wait for it."""
    recording = record(tmp_path, compute=lambda rank, _: 0.2 if rank == 5 else 0.0)
    assert causes_of(diagnose(recording), recording) == []


def test_slow_rank_that_others_wait_for(tmp_path: Path) -> None:
    """Where ranks wait after fwd_bwd and not in it, a slow one is seen, and found."""
    recording = record(tmp_path, compute=lambda rank, _: 0.2 if rank == 5 else 0.0, waits_in_compute=False)
    found = diagnose(recording)
    assert causes_of(found, recording) == ["worker-fault"]
    assert [worker.rank for worker in found.causes[0].where.workers] == [5]
    assert found.causes[0].recoverable == pytest.approx(0.4 / found.step_time.recorded, abs=0.02)


def test_restart(tmp_path: Path) -> None:
    """Steps that were run again count once, as they were run last."""
    folder = write_logs(tmp_path / "logs", n_ranks=2, steps=range(1, 8))
    recording = read(PRODUCER, write_logs(folder, n_ranks=2, steps=range(5, 11), attempt=1))
    assert "3 steps" in recording.warnings[0]
    assert int((recording.op == Op.FORWARD).sum()) == 2 * 2 * 10
    start_s = {step: float(recording.start_s[recording.step == step].min()) for step in (4, 5, 6)}
    assert start_s[5] - start_s[4] > 9e4
    assert start_s[6] - start_s[5] < 2


def test_one_rank(tmp_path: Path) -> None:
    """One file of one rank is read."""
    folder = write_logs(tmp_path / "logs", n_ranks=2, fetch=lambda *_: 0.2)
    recording = read(PRODUCER, next(iter(sorted(folder.iterdir()))))
    assert causes_of(diagnose(recording), recording) == ["data-loading"]


def test_damaged_lines(tmp_path: Path) -> None:
    """Lines that are cut off are counted; a log without a training step is refused."""
    folder = write_logs(tmp_path / "logs", n_ranks=1, steps=range(1, 4))
    path = next(folder.iterdir())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1][:40]]))
    assert [(entry.what, entry.n) for entry in read(PRODUCER, path).dropped][-1] == (
        "lines that are no whole record",
        1,
    )
    path.write_text("\n".join(line for line in lines if "fwd_bwd" not in line))
    with pytest.raises(TraceError, match="no training step with fwd_bwd"):
        read(PRODUCER, path)
