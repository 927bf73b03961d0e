"""Tables of metrics: the column that tells time is found by its name, or said; what it is in is told."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.find_log import find_log
from diagnose.trace.logs.formats import tables
from diagnose.trace.logs.load import load_log
from tests.logs.runs import Attempt, LoggedRun, steady_run
from tests.logs.writers.composer import write_composer_jsonl
from tests.logs.writers.huggingface import write_trainer_state
from tests.logs.writers.lightning import write_metrics_csv
from tests.logs.writers.stragglers import write_traceml
from tests.logs.writers.tables import (
    write_csv,
    write_jsonl,
    write_mlflow,
    write_tensorboard_csv,
    write_wandb_chart,
    write_wandb_csv,
)
from tests.trace.logs.reading import read_content
from tests.trace.producers.recordings import say_nothing

#: A file name, its writer, what is read, and whether its steps count from 0.
CASES: dict[str, tuple[str, Callable[[LoggedRun], bytes], str, bool]] = {
    "csv": ("m.csv", write_csv, "step_time_ms (ms)", False),
    "tsv": (
        "m.tsv",
        lambda run: write_csv(run, time="train/step_time_s", unit="s", separator="\t"),
        "train/step_time_s (s)",
        False,
    ),
    "no-unit": (
        "m.csv",
        lambda run: write_csv(run, step="global_step", time="step_time", unit="s"),
        "step_time (no unit: taken for seconds)",
        False,
    ),
    "rate": ("m.csv", lambda run: write_csv(run, time="it/s", unit="it"), "it/s (steps a second)", False),
    "tokens": ("m.jsonl", write_jsonl, "tokens_seen divided by tokens_per_sec", False),
    "wandb": ("history.csv", write_wandb_csv, "_runtime, a clock", False),
    "tensorboard": ("loss.csv", write_tensorboard_csv, "Wall time, a clock", False),
    "mlflow": ("loss", write_mlflow, "timestamp, a clock", False),
    "lightning": ("metrics.csv", write_metrics_csv, "step_time (no unit: taken for seconds)", True),
    "composer": ("metrics.jsonl", write_composer_jsonl, "time/train, a clock", True),
    "trainer-state": ("trainer_state.json", lambda run: write_trainer_state(run, trl=True), "step_time", False),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_come_back(case: str, tmp_path: Path) -> None:
    """Each row tells the mean time of the steps since the row before."""
    name, write, reads, from_zero = CASES[case]
    run = steady_run(200, 1.3, interval=5)
    log = read_content(tmp_path, write(run), name)
    assert (log.reads, log.of, log.restarts) == (reads, "", ())
    last = log.iteration + from_zero
    assert last[-1] == 200
    assert len(last) >= 39
    ends_s = np.r_[0.0, np.cumsum(run.step_s)]
    true_s = (ends_s[last[1:]] - ends_s[last[:-1]]) / np.diff(last)
    assert np.allclose(log.step_s[1:], true_s, rtol=1e-3)


@pytest.mark.parametrize("case", ["wandb", "tensorboard", "mlflow", "csv"])
def test_a_restart_comes_back(case: str, tmp_path: Path) -> None:
    """A step that falls back is a restart, and what lies between is no step."""
    run = steady_run(200, 1.3, interval=5)
    again = np.r_[run.iteration[:120], run.iteration[80:160]]
    run = dataclasses.replace(run, iteration=again, attempts=(Attempt(at=0), Attempt(at=120, gap_s=300.0)))
    name, write, *_ = CASES[case]
    log = read_content(tmp_path, write(run), name)
    (restart,) = log.restarts
    assert (restart.after, restart.resumed_at) in ((120, 85), (120, 90))
    assert log.step_s.max() < 1.4


def test_a_rate_without_an_amount_is_a_pace(tmp_path: Path) -> None:
    """Tokens a second alone give the seconds of a million of them, and the log says so."""
    run = steady_run(200, 1.3, interval=5)
    for content, name in ((write_wandb_chart(run), "m.csv"), (write_jsonl(run, tokens=False), "m.jsonl")):
        log = read_content(tmp_path, content, name)
        assert log.of == "1,000,000 tokens or samples"
        assert "not stated" in log.reads


def test_column_and_unit_are_said(tmp_path: Path) -> None:
    """A column of any name is read as somebody says; without its unit, values that are no seconds are asked about."""
    content = write_csv(steady_run(200, 1.3, interval=5), time="foo", unit="ms")
    (tmp_path / "m.csv").write_bytes(content)
    assert find_log(tmp_path / "m.csv") is None
    log = read_content(tmp_path, content, "m.csv", column="foo", unit="ms")
    assert np.median(log.step_s) == pytest.approx(1.3, rel=0.01)
    with pytest.raises(TraceError, match=r"values around 130\d and no unit; .*say --unit s, or --unit ms"):
        read_content(tmp_path, content, "m.csv", column="foo")
    slow = write_csv(steady_run(200, 1.3, interval=5), time="rate", unit="it")
    assert np.median(read_content(tmp_path, slow, "rate.csv", column="rate", unit="it/s").step_s) == pytest.approx(
        1.3, rel=0.01
    )


@pytest.mark.parametrize("name", ["time", "elapsed", "runtime"])
def test_a_column_that_falls_is_no_clock(name: str, tmp_path: Path) -> None:
    """Seconds of steps under the name of a clock are seconds of steps, and no restarts; a clock stays one."""
    seconds = 0.3 + 0.01 * np.random.default_rng(1).standard_normal(100)
    for values, note in ((seconds, True), (np.cumsum(seconds), False)):
        rows = "".join(f"{n},{value:.4f}\n" for n, value in enumerate(values, start=1))
        log = read_content(tmp_path, f"step,{name}\n{rows}".encode(), "m.csv")
        assert log.restarts == ()
        assert any("falls as often as it grows" in said for said in log.notes) == note
        assert np.median(log.step_s) == pytest.approx(0.3, rel=0.02)


def test_a_state_without_times(tmp_path: Path) -> None:
    """`trainer_state.json` has steps and no times: the error says what to give instead."""
    with pytest.raises(TraceError, match=r"no time of any step.*give what the Trainer printed"):
        read_content(tmp_path, write_trainer_state(steady_run(50, 1.3, interval=5)), "trainer_state.json")


def test_a_summary_of_traceml_names_the_slow_rank(tmp_path: Path) -> None:
    """Of a data-parallel job the rank whose forwards take longer is named, and none where all are alike."""
    for slow, ranks in ((1.8, [3]), (1.0, [])):
        forward_s = np.full(8, 0.11) + 0.0005 * np.arange(8)
        forward_s[3] *= slow
        path = tmp_path / f"final_summary_{slow}.json"
        path.write_bytes(write_traceml(forward_s, np.full(8, 0.01)))
        found = diagnose_job(Request(path)).log
        assert found is not None
        assert (len(found.iterations), [rank.rank for rank in found.slow_ranks]) == (1, ranks)


@pytest.mark.parametrize(
    "content", [b"step,loss\n1,2\n2,3\n", b"epoch,step_time\n1,2\n", b'{"a": 1}\n', b"step,eta,val/time\n1,2,3\n"]
)
def test_other_tables_are_no_logs(content: bytes, tmp_path: Path) -> None:
    """Without a step, or without anything that tells time, a table is nothing that is read."""
    (tmp_path / "m.csv").write_bytes(content)
    assert find_log(tmp_path / "m.csv") is None


@pytest.mark.parametrize("case", CASES)
def test_no_damage_breaks_the_reader(case: str, tmp_path: Path) -> None:
    """Cut and spliced tables give a log or an error in words, and no step that is no number."""
    name, write, *_ = CASES[case]
    content = write(steady_run(100, 1.3, interval=5))
    rng = np.random.default_rng(7)
    for _ in range(25):
        a, b = sorted(rng.integers(0, len(content), 2).tolist())
        for damaged in (
            content[a:b],
            content[:a] + content[b:],
            content[:b] + content[a:],
            content[:a] + b"\0\xff\x80" + content[a:],
        ):
            (tmp_path / name).write_bytes(damaged)
            inputs = find_log(tmp_path / name)
            if inputs is None:
                continue
            try:
                log = load_log(inputs, name=name, report=say_nothing)
            except TraceError:
                continue
            assert np.all(log.step_s > 0)
            assert np.all(log.iteration >= 0)


@pytest.mark.parametrize("case", ["csv", "tsv", "wandb", "lightning", "data"])
def test_rows_at_once_tell_the_same(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many rows tell at once is what they tell one after the other, also where some are damaged or of another shape."""
    header, *rows = b"step,data_time,step_time", *(b"%d,0.%03d,1.%03d" % (n, n % 400, n) for n in range(1, 300))
    if case != "data":
        header, *rows = CASES[case][1](steady_run(300, 1.3)).splitlines()
    odd = (
        b'"',
        b",",
        b"nan",
        b"1e999",
        b"1e25",
        b"inf",
        b" ",
        b"",
        b"\0",
        b"\x1b[0m",
        b"\n",
        b"-",
        b"x",
        b"\xff",
        b"2026-01-01 00:00:00",
    )
    rng = np.random.default_rng(5)
    for n_damaged in (0, 1, 1, 1, 1, 1, 1, 3, 30):
        damaged = list(rows)
        for at in rng.integers(len(rows), size=n_damaged).tolist():
            cut = int(rng.integers(len(rows[at]) + 1))
            damaged[at] = rows[at][:cut] + odd[int(rng.integers(len(odd)))] + rows[at][cut + int(rng.integers(3)) :]
        told = []
        for at_once in (tables._measure_plain, lambda *_: None):
            monkeypatch.setattr(tables, "_measure_plain", at_once)
            log = read_content(tmp_path, b"\n".join([header, *damaged]), "m.csv")
            told.append([log.iteration, log.step_s, log.tokens, log.stamp_s, log.parts.get("data", np.zeros(0))])
        assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(*told, strict=True))


def test_plain_rows_are_read_at_once() -> None:
    """Numbers, empty fields and other columns of any text are plain; quotes, short rows and long numbers are not."""
    plain = tables._measure_plain(b"1,x,2.5\n\n2,\xff,\n", ",", 3, (0, 2))
    assert plain is not None
    assert np.array_equal(plain, [[1.0, 2.5], [2.0, np.nan]], equal_nan=True)
    for odd in (b"1,x\n", b"1,x,2,3\n", b"1,x,1e20\n", b"1,x,2026-01-01\n", b"\n", b""):
        assert tables._measure_plain(b"1,x,2.5\n" * bool(odd.strip()) + odd, ",", 3, (0, 2)) is None
