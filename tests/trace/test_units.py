"""Times that are not in seconds: doubted where nobody says so, read where somebody does."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from diagnose.cli.main import main
from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.load import load_trace
from tests.jobs import hand_job, load, to_file, write

#: A forward of 100 ms, and steps of 0.9 s.
USUAL = hand_job().assign(start_ts=lambda rows: rows.start_ts / 10, duration=lambda rows: rows.duration / 10)


def scaled(factor: float, rows: pd.DataFrame = USUAL) -> pd.DataFrame:
    """Give the job with times in another unit."""
    return rows.assign(start_ts=rows.start_ts * factor, duration=rows.duration * factor)


@pytest.mark.parametrize(("factor", "unit"), [(1e3, "ms"), (1e6, "us")])
def test_times_that_cannot_be_seconds_are_doubted(factor: float, unit: str) -> None:
    """The likely unit is named; who says a unit has no doubt, and the same times as in seconds."""
    doubted = load(scaled(factor))
    assert f"say --unit {unit}, or --unit s" in doubted.unit_doubt and not load(USUAL).unit_doubt
    for said in ({"unit": unit}, {"meta": {"unit": unit}}):
        found = load_trace(to_file(scaled(factor)), **said)
        assert not found.unit_doubt and not any("unit" in line for line in found.warnings)
        np.testing.assert_allclose(found.blocks[0].end_s, load(USUAL).blocks[0].end_s, rtol=1e-12)
    assert not load_trace(to_file(scaled(factor)), unit="s").unit_doubt


@pytest.mark.parametrize(
    ("factor", "is_doubted"),
    [
        (1.2e-3, False),
        (1.1e-3, True),
        (1e-8, True),
        (660.0, False),
        (680.0, True),
    ],  # steps of 0.9 s, computes of 0.15 s
)
def test_bounds(factor: float, *, is_doubted: bool) -> None:
    """Steps below a millisecond, and computes above a hundred seconds, are of no job."""
    assert bool(load(scaled(factor)).unit_doubt) is is_doubted


def test_long_steps_of_long_computes() -> None:
    """Steps of twenty-five minutes with computes of thirty seconds are of no job, though either may be."""
    late = USUAL.assign(start_ts=USUAL.start_ts + np.where(USUAL.start_ts > 0.2, 7.0, 0.0))  # steps of 7.9 s
    assert "likely in milliseconds" in load(scaled(200.0, late)).unit_doubt
    assert not load(scaled(130.0, late)).unit_doubt
    assert not load(scaled(200.0)).unit_doubt


def test_long_steps() -> None:
    """Steps of more than an hour are of no job, however short their computes."""
    late = USUAL.assign(start_ts=USUAL.start_ts + np.where(USUAL.start_ts > 0.2, 3600.0, 0.0))
    assert "likely in milliseconds" in load(late).unit_doubt


@pytest.mark.parametrize(
    ("start", "factor", "unit"),
    [(1.76e12, 1e3, "ms"), (1.76e15, 1e6, "us"), (1.76e18, 1e9, "ns"), (0.0, 1e9, "ns")],
)
def test_times_far_beyond_seconds_are_refused_with_their_unit(start: float, factor: float, unit: str) -> None:
    """Unix times that are no seconds, and nanoseconds: said to be so, and read with the unit."""
    rows = scaled(factor)
    rows = rows.assign(start_ts=rows.start_ts + start + rows.step * 2 * factor)
    with pytest.raises(TraceError, match=f"expected seconds: they look like .*--unit {unit}, or `unit: {unit}`"):
        load(rows)
    found = load_trace(to_file(rows), unit=unit)
    np.testing.assert_allclose(found.blocks[0].end_s[~np.isnan(found.blocks[0].end_s)].max(), 0.9, rtol=1e-3)


@pytest.mark.parametrize("said", ["days", 3, ["s"], True, "x" * 1000])
def test_a_unit_that_is_none(said: Any) -> None:
    """It is ignored, with a warning that is no longer than it need be."""
    found = load_trace(to_file(USUAL), meta={"unit": said})
    (warning,) = (line for line in found.warnings if line.startswith("metadata: unit is"))
    assert warning.endswith("expected one of s, ms, us, ns; ignored") and len(warning) < 150


def test_nothing_is_said_before_the_unit_is(tmp_path: Path) -> None:
    """No cause and no GPU hours, but a verdict that says why; and the unit on the command line settles it."""
    path = write(tmp_path / "job.parquet", scaled(1e6))
    found = diagnose_job(Request(path)).to_dict()
    assert (found["verdict"], found["causes"]) == ("inconclusive", [])
    assert found["why"].startswith("times are likely in microseconds") and found["why"] in found["warnings"]
    assert found["gpu_hours"] == {"analysed": None, "wasted": None}
    assert not diagnose_job(Request(path)).levers
    settled = diagnose_job(Request(path, unit="us")).to_dict()
    assert settled["gpu_hours"]["analysed"] == pytest.approx(2 * 0.9 * 2 / 3600)
    assert "unit" not in settled["why"]


def test_every_report_bears_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hours that nobody knows are said to be not known, in every format."""
    path = str(write(tmp_path / "job.parquet", scaled(1e6)))
    for options in (["-v"], [], ["--format", "markdown"], ["--format", "junit"], ["--html", str(tmp_path / "x.html")]):
        assert main([path, *options]) == 0
        out, err = capsys.readouterr()
        assert not err and "nan" not in out.split() and ("microseconds" in out or "--html" in options)


def test_short_computes_are_no_evaluation() -> None:
    """A last forward that ends less than a millisecond before the last backward does is trained, where all is so short."""
    found = load_trace(to_file(scaled(1e-3)))
    assert found.n_ops == load(USUAL).n_ops and found.steps_dropped == 0
