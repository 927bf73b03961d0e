"""`diagnose compare` as users run it: traces and saved diagnoses, formats, exit codes."""

import io
import json
import sys
from pathlib import Path

import jsonschema
import pytest

from diagnose.cli.main import main
from diagnose.report.json_lines import render
from diagnose.report.schemas import make_schema
from tests.report.examples import healthy, two_causes, worker_fault

ROOT = Path(__file__).resolve().parents[1]
SLOW, HEALTHY = (str(ROOT / "fixtures" / f"{name}.parquet") for name in ("worker-fault", "healthy"))
SCHEMA = make_schema("compare")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save some diagnoses."""
    lines = {"healthy": [healthy()], "slow": [worker_fault()], "many": [healthy(), worker_fault(), two_causes()]}
    for name, diagnoses in lines.items():
        (tmp_path / f"{name}.json").write_text("".join(f"{render(one)}\n" for one in diagnoses))
    return tmp_path


def test_a_trace_is_what_was_saved_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Comparing two traces says to the bit what comparing their saved diagnoses does, but for the names of the files."""
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for trace, file in zip([SLOW, HEALTHY], files, strict=True):
        assert main([trace, "--format", "json", "-o", file]) == 0
    found = []
    for pair in ([SLOW, HEALTHY], files, [SLOW, files[1]]):
        assert main(["compare", *pair, "--format", "json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
        jsonschema.validate(found[-1], SCHEMA, cls=jsonschema.Draft202012Validator)
        for key in ("before", "after"):
            del found[-1][key]["source"]
    assert found[0] == found[1] == found[2]
    (change,) = found[0]["changes"]
    assert (change["change"], change["cause"]) == ("went", "worker-fault")
    assert found[0]["payoffs"][0]["reached"] == pytest.approx(1.0, abs=0.05)


def test_rank_and_severity_of_a_trace_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """What a diagnosis knows of a culprit is in the comparison."""
    assert main(["compare", HEALTHY, SLOW, "--format", "json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["change"] == "came" and change["severity"] == "high"
    assert change["where_after"]["workers"] == [{"dp": 1, "pp": 0, "rank": 1}]


@pytest.mark.parametrize(
    ("pair", "fail_on", "code"),
    [
        (("healthy", "slow"), None, 0),
        (("healthy", "slow"), "worse", 1),
        (("healthy", "slow"), "came", 1),
        (("slow", "healthy"), "worse", 0),
        (("slow", "healthy"), "came", 0),
        (("slow", "slow"), "worse", 0),
        (("slow", "slow"), "came", 0),
    ],
)
def test_gates(folder: Path, pair: tuple[str, str], fail_on: str | None, code: int) -> None:
    """With --fail-on the exit code is 1 when the second diagnosis is worse, or has a cause that came."""
    gate = [] if fail_on is None else ["--fail-on", fail_on]
    assert main(["compare", *(str(folder / f"{name}.json") for name in pair), *gate]) == code


def test_formats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page, Markdown, and a file that appears when all is written."""
    pair = [str(folder / "healthy.json"), str(folder / "slow.json")]
    assert main(["compare", *pair, "--width", "60"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("slower: ") and max(map(len, page.splitlines())) <= 60
    assert main(["compare", *pair, "--format", "markdown", "-o", str(folder / "out.md")]) == 0
    assert capsys.readouterr().out == ""
    assert (folder / "out.md").read_text().startswith("## slower: ")
    assert main(["compare", *pair, "-o", pair[0]]) == 2


def test_one_of_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several diagnoses the job of the other file is taken, or the one that is named; else the error lists them."""
    many, slow = str(folder / "many.json"), str(folder / "slow.json")
    assert main(["compare", many, slow, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"]["job_id"] == "AR"
    assert main(["compare", many, many, "--job", "moe-32b", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"]["job_id"], found["after"]["job_id"], found["trend"]) == ("moe-32b", "moe-32b", "alike")
    assert main(["compare", many, many]) == 2
    assert "it holds 3 diagnoses ('pretrain-7b', 'AR', 'moe-32b'); say which with --job ID" in capsys.readouterr().err


def test_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One of both may come from standard input."""
    data = io.BytesIO((folder / "slow.json").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    assert main(["compare", str(folder / "healthy.json"), "-", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["after"]["source"] == "standard input"
    assert main(["compare", "-", "-"]) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"schema": "diagnose-explain/1"}', "it is 'diagnose-explain/1', not 'diagnose/2'"),
        ('{"schema": "diagnose/1"', "it is no JSON, or cut off"),
        ('{"schema": "diagnose/1"}', "job is missing; expected an object"),
        ("neither", ""),
        (None, "no such file"),
    ],
)
def test_what_cannot_be_compared(
    folder: Path, content: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is neither a trace nor a diagnosis is one line on standard error, and exit code 3."""
    bad = folder / "bad"
    if content is not None:
        bad.write_text(content)
    assert main(["compare", str(folder / "slow.json"), str(bad)]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"diagnose: error: {bad}") and says in err
