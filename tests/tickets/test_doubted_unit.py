"""A job whose times cannot be seconds: no ticket, and no part in the fleet's sums, before somebody says the unit."""

import json
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from diagnose.cli.main import main
from tests.triage.conftest import triage

FIXTURE = Path(__file__).parents[2] / "fixtures" / "worker-fault.parquet"
#: What times are multiplied with, and the unit that they then are in.
UNITS = {"short": (1e-4, None), "microseconds": (1e6, "us"), "milliseconds": (1e3, "ms")}


def write_scaled(path: Path, factor: float) -> None:
    """Write the fixture with times in another unit."""
    table = parquet.read_table(FIXTURE)
    for name in ("start_ts", "duration"):
        table = table.set_column(table.schema.get_field_index(name), name, pc.multiply(table[name], factor))
    parquet.write_table(table, path)


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command to its end, and give what it prints."""
    assert main([*args]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_before_the_unit_is_settled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs with steps of microseconds, or of hours, change no ticket and no sum; settled, each counts as the sound one does."""
    jobs, url = tmp_path / "jobs", f"sqlite:///{tmp_path / 'store.db'}"
    jobs.mkdir()
    shutil.copy(FIXTURE, jobs / "sound.parquet")

    def see() -> tuple[set[str], dict, set[str]]:
        """Give the jobs with a ticket, the sums, and the jobs in the ranking."""
        tickets = [json.loads(line) for line in ask(capsys, "tickets", "--dry-run", "--store", url).splitlines()]
        fleet = json.loads(ask(capsys, "fleet", "--store", url, "--format", "json"))
        told = {Path(job["location"]).stem for ticket in tickets for job in ticket["jobs"]}
        return told, fleet["totals"], {Path(job["location"]).stem for job in fleet["jobs"]}

    night = triage(str(jobs), "--store", url)
    assert night["n_diagnosed"] == 1 and night["gpu_hours_wasted"] > 0.0
    told, alone, ranked = see()
    assert told == ranked == {"sound"} and alone["hours_wasted"] > 0.0

    for name, (factor, _) in UNITS.items():
        write_scaled(jobs / f"{name}.parquet", factor)
    night = triage(str(jobs), "--store", url)
    assert night["n_diagnosed"] == len(UNITS) and night["gpu_hours_analysed"] == night["gpu_hours_wasted"] == 0.0
    told, doubted, ranked = see()
    assert told == ranked == {"sound"}
    assert doubted == alone | {"n_jobs": 1 + len(UNITS), "n_inconclusive": len(UNITS)}

    settled = {name: unit for name, (_, unit) in UNITS.items() if unit}
    for name, unit in settled.items():
        (jobs / f"{name}.yaml").write_text(f"unit: {unit}\n")
    assert triage(str(jobs), "--store", url)["n_diagnosed"] == len(settled)
    told, totals, ranked = see()
    assert told == ranked == {"sound", *settled}
    for hours in ("hours_analysed", "hours_wasted"):
        assert totals[hours] == pytest.approx((1 + len(settled)) * alone[hours])
