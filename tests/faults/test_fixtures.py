"""The fixtures are what the commands beside them make."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from diagnose.faults.__main__ import main
from diagnose.faults.fixtures import write_readme

FIXTURES = Path(__file__).parents[2] / "fixtures"
PREFIX = "python -m diagnose.faults "
COMMANDS = [line for line in (FIXTURES / "README.md").read_text().splitlines() if line.startswith(PREFIX)]
#: float32 of a time of seconds: another processor may round the last bit of a logarithm otherwise.
ROUNDING_S = 1e-6


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: Path(shlex.split(c)[3]).stem)
def test_fixture_can_be_made_again(command: str, tmp_path: Path) -> None:
    """The command in the README makes the fixture's table and truth again."""
    path, *options = shlex.split(command.removeprefix(PREFIX))
    fixture = FIXTURES.parent / path
    made = tmp_path / fixture.name
    result = CliRunner().invoke(main, [str(made), *options])
    assert result.exit_code == 0, result.output
    _assert_same(pq.read_table(made), pq.read_table(fixture))
    truths = [json.loads(p.with_name(f"{fixture.stem}.truth.json").read_text()) for p in (made, fixture)]
    assert truths[0]["step_time_s"] == pytest.approx(truths[1]["step_time_s"], rel=1e-9)
    assert [f["cause"] for f in truths[0]["faults"]] == [f["cause"] for f in truths[1]["faults"]]
    for again, kept in zip(truths[0]["faults"], truths[1]["faults"], strict=True):
        assert again["recoverable"] == pytest.approx(kept["recoverable"], abs=1e-9)
        assert (again["workers"], again["stages"], again["onset_step"]) == (
            kept["workers"],
            kept["stages"],
            kept["onset_step"],
        )


def test_every_fixture_has_its_command() -> None:
    """No trace lies among the fixtures that `diagnose.faults` made and nobody can make again."""
    made = {Path(shlex.split(c)[3]).name for c in COMMANDS}
    kept = {p.name for p in FIXTURES.glob("*.parquet") if p.with_name(f"{p.stem}.truth.json").exists()}
    assert made == kept
    assert all((FIXTURES / name).stat().st_size < 400_000 for name in made)


def test_the_readme_is_the_generated_one() -> None:
    """What stands beside the fixtures is what the files of the causes say of them."""
    assert (FIXTURES / "README.md").read_text() == write_readme(FIXTURES)


def test_only_what_is_missing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path the program makes the one fixture that is not there and leaves the others, and the page is the same."""
    shutil.copytree(FIXTURES, tmp_path / "fixtures")
    (tmp_path / "fixtures" / "data-loading.parquet").unlink()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [])
    assert (result.exit_code, result.output) == (0, "fixtures/data-loading.parquet\n")
    made, kept = (folder / "data-loading.parquet" for folder in (tmp_path / "fixtures", FIXTURES))
    _assert_same(pq.read_table(made), pq.read_table(kept))
    assert CliRunner().invoke(main, []).output == ""
    monkeypatch.chdir(tmp_path / "fixtures")
    result = CliRunner().invoke(main, [])
    assert (result.exit_code, "run it at the root of the repository" in result.output) == (2, True)


def _assert_same(made: pa.Table, kept: pa.Table) -> None:
    """Compare two tables: times to rounding, everything else exactly."""
    assert made.schema.equals(kept.schema, check_metadata=True)
    for name in made.column_names:
        if pa.types.is_floating(made.schema.field(name).type):
            values = [table[name].to_numpy() for table in (made, kept)]
            np.testing.assert_allclose(values[0], values[1], rtol=ROUNDING_S, atol=ROUNDING_S, err_msg=name)
        else:
            assert made[name].equals(kept[name]), name
