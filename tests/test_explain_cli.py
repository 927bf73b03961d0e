"""`diagnose explain`: pages and JSON of real jobs, options, exit codes."""

import io
import json
import sys
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.cli.main import main
from diagnose.judge.rules import load_rules
from diagnose.model.request import Request

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
JOB = str(FIXTURES / "worker-fault.parquet")
A_RULE = """\
id: mine
title: a cause of mine
status: experimental
who: platform
components: [worker]
place: workers
story: something happens
conditions:
  all:
    - feature: slowdown
      at_least: 9
      from: a guess
fixes:
  - {fix: mend, summary: mend it, how: somehow}
source: nobody
tests:
  - {name: it does, features: {slowdown: 10}, fires: true}
"""


@pytest.fixture(scope="module")
def examined():
    """Give what is found in the job, which is the same whatever cause is asked about."""
    return pipeline.examine(Request(JOB, min_speedup=1.0))


def test_a_cause_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The page of the cause of a job says so, with the worker, the step, every condition and the step time without it."""
    assert main(["explain", JOB, "worker-fault", "--width", "80"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("worker-fault: slow worker (worker-fault) is said\n")
    for text in ("Said: ", "dp 1, stage 0", "step 37", "worker.backward_ratio", "without it 1.66 s", "threshold from"):
        assert text in out


def test_a_cause_that_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The page of another cause says in its first lines why it is not said, and exits with 0 nevertheless."""
    assert main(["explain", JOB, "garbage-collection", "--width", "80"]) == 0
    head, _, _ = capsys.readouterr().out.partition("\n\nConditions")
    assert "Not said: nothing comes back without it" in head


@pytest.mark.parametrize("cause", [*(rule.id for rule in load_rules().rules), "unknown"])
def test_every_cause_has_a_page_and_an_object(
    cause: str, examined, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each built-in cause, and `unknown`, is explained on a page of at most 80 columns, and as one JSON object on one line."""
    monkeypatch.setattr(pipeline, "examine", lambda _: examined)
    assert main(["explain", JOB, cause, "--width", "80"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert main(["explain", JOB, cause, "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = json.loads(out)
    assert (found["schema"], found["cause"]) == ("diagnose-explain/1", cause)
    assert found["said"] == (not found["because"]) == (cause == "worker-fault")


def test_the_same_job_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Two explanations of one job do not differ."""
    pages = []
    for _ in range(2):
        main(["explain", JOB, "worker-fault", "--format", "json"])
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


def test_a_rule_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule in a folder of the user's is explained like a built-in one, and its file is named."""
    (tmp_path / "mine.yaml").write_text(A_RULE)
    assert main(["explain", JOB, "mine", "--rules", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["because"] == ["conditions"]
    assert found["rule"]["file"] == str(tmp_path / "mine.yaml")
    assert found["rule"]["conditions"]["parts"][0]["origin"] == "a guess"
    assert main(["explain", JOB, "mine"]) == 2


@pytest.mark.parametrize(
    ("args", "because"),
    [(["--min-speedup", "1.5"], ["gain"]), (["--steps", "37-38"], ["inconclusive"]), (["--steps", "37-43"], [])],
)
def test_options_change_what_is_said(args: list[str], because: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The speedup asked for and the steps picked decide as they do for a diagnosis."""
    assert main(["explain", JOB, "worker-fault", "--format", "json", *args]) == 0
    found = json.loads(capsys.readouterr().out)["because"]
    assert found[:1] == because


def test_a_job_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` explains what is piped in."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(JOB).read_bytes())))
    assert main(["explain", "-", "worker-fault", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["said"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([JOB, "worker-fualt"], 2, "there is no cause 'worker-fualt'; did you mean 'worker-fault'?"),
        ([JOB, "xyz"], 2, "expected one of"),
        (["no-such-file", "worker-fualt"], 2, "there is no cause"),
        ([JOB], 2, "Missing argument 'CAUSE'"),
        ([JOB, "worker-fault", "--rules", "no-such-folder"], 2, "is not a folder"),
        ([JOB, "worker-fault", "--min-speedup", "nan"], 2, "not a finite number"),
        ([JOB, "worker-fault", "--steps", "x"], 2, "is not a list of steps"),
        (["no-such-file", "worker-fault"], 3, "no-such-file"),
    ],
)
def test_what_cannot_be_explained(args: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument ends with its exit code and one line, a misspelt cause before the job is read."""
    assert main(["explain", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err and err.count("\n") == 1


def test_help_lists_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The command is in the help of the program, and has its own."""
    assert main(["--help"]) == 0
    assert "explain" in capsys.readouterr().out
    assert main(["explain", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--rules", "--meta", "--steps", "--min-speedup", "--width", "--no-color", "--format"):
        assert option in out
