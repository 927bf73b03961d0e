"""`diagnose rules`: list, show, check and test rules, with features that a stub knows and with the real ones."""

import re
from pathlib import Path

import pytest

from diagnose.cli.main import main
from diagnose.features import catalogue
from diagnose.judge.rules import built_in_rules, load_rules

A_RULE = """\
id: my-cause
title: a cause of mine
status: experimental
severity: low
who: platform
components: [worker, transfer]
place: workers
story: something happens to a worker that has a name-with-dashes, again and again, until somebody notices it and does something
conditions:
  any:
    - feature: worker.ratio
      at_least: 1.5
      from: measured on a Tuesday
      says: "{value} times as long"
    - all:
        - feature: slowdown
          above: 1.1
        - none:
            - feature: worker.slow_share
              below: 0.25
fixes:
  - fix: mend-it
    summary: mend it
    how: with --an-option-that-must-not-be-broken-at-its-dashes and with --another-option-that-must-not-be-broken
looks_like: [worker-fault, somebody-elses]
false_positives: Wednesdays
source: nobody
tests:
  - name: it happens
    features: {worker.ratio: 2, slowdown: 1.0, worker.slow_share: 0.0}
    fires: true
  - name: it happens to the job
    features: {worker.ratio: null, slowdown: 1.5, worker.slow_share: 0.5}
    fires: true
  - name: nothing happens
    features: {worker.ratio: 1.0, slowdown: 1.0, worker.slow_share: 0.5}
    fires: false
  - name: nobody looked
    features: {worker.ratio: null, slowdown: null, worker.slow_share: null}
    fires: false
"""
FEATURES = {"slowdown": "S", "worker.ratio": "1 like its peers", "worker.slow_share": "part of the workers"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a rule that is right."""
    (tmp_path / "mine.yaml").write_text(A_RULE)
    return tmp_path


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know three features only."""
    monkeypatch.setattr(catalogue, "list_features", lambda: FEATURES)


def change(folder: Path, old: str, new: str) -> int:
    """Change the rule, and number the line with the change."""
    assert A_RULE.count(old) == 1
    (folder / "mine.yaml").write_text(A_RULE.replace(old, new))
    return A_RULE[: A_RULE.index(old)].count("\n") + 1


# ------------------------------------------------------------------------------------------ list


def test_list_has_one_line_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """Each built-in rule has a line with all that is asked for, and each begins with its id."""
    assert main(["rules", "list"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert re.split(r"  +", head) == ["id", "title", "status", "who acts", "severity", "tests", "from"]
    assert [re.split(r"  +", line) for line in lines] == [
        [rule.id, rule.title, rule.status, rule.who, rule.severity, str(len(rule.tests)), "built-in"]
        for rule in load_rules().rules
    ]


def test_list_says_where_a_rule_comes_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule of the user's has its folder in the last column; one without severity has a dash."""
    change(folder, "severity: low\n", "")
    assert main(["rules", "list", "--rules", str(folder)]) == 0
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert ["my-cause", "a cause of mine", "experimental", "platform", "-", "4", str(folder)] in lines
    assert len(lines) == 2 + len(load_rules().rules)


# ------------------------------------------------------------------------------------------ show

PAGE = """\
my-cause: a cause of mine
experimental; severity low; platform acts; names the workers it lies on

Story
  something happens to a worker that has a name-with-dashes, again and again,
  until somebody notices it and does something

Fires when any of these holds
  - worker.ratio is at least 1.5
      reads as: 1 like its peers
      from: measured on a Tuesday
      says: {value} times as long
  - all of these hold:
    - slowdown is above 1.1
        reads as: S
    - none of these holds:
      - worker.slow_share is below 0.25
          reads as: part of the workers

Reported only where the job is faster without
  - slow workers
  - slow transfers

Looks like, but is not
  - worker-fault (slow worker)
  - somebody-elses

False positives
  Wednesdays

What to do
  - mend-it: mend it
    with --an-option-that-must-not-be-broken-at-its-dashes and with
    --another-option-that-must-not-be-broken

Cases beside it
  - fires: it happens
    worker.ratio 2, slowdown 1, worker.slow_share 0
  - fires: it happens to the job
    worker.ratio null, slowdown 1.5, worker.slow_share 0.5
  - silent: nothing happens
    worker.ratio 1, slowdown 1, worker.slow_share 0.5
  - silent: nobody looked
    worker.ratio null, slowdown null, worker.slow_share null

Source
  nobody

File
  FOLDER/mine.yaml
"""


def test_show_has_all_that_a_rule_says(folder: Path, stub: None, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has story, conditions with thresholds and where these come from, look-alikes, fixes, cases and source."""
    assert main(["rules", "show", "my-cause", "--rules", str(folder)]) == 0
    assert capsys.readouterr().out == PAGE.replace("FOLDER", str(folder))


def test_show_leaves_out_what_a_rule_does_not_say(folder: Path, stub: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Without severity and false positives there is no word of them."""
    change(folder, "severity: low\n", "")
    (folder / "mine.yaml").write_text((folder / "mine.yaml").read_text().replace("false_positives: Wednesdays\n", ""))
    assert main(["rules", "show", "my-cause", "--rules", str(folder)]) == 0
    page = capsys.readouterr().out
    assert "severity" not in page
    assert "False positives" not in page


@pytest.mark.parametrize("rule", load_rules().rules, ids=lambda rule: rule.id)
def test_every_page_fits_80_columns(rule: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Each built-in rule's page fits 80 columns of plain text, but for the path of its file."""
    assert main(["rules", "show", rule.id]) == 0
    page, _, _ = capsys.readouterr().out.partition("\nFile\n")
    assert max(map(len, page.splitlines())) <= 80
    assert all(char.isprintable() or char == "\n" for char in page)
    for title in ("Story", "Fires when", "Looks like", "False positives", "What to do", "Cases beside it", "Source"):
        assert f"\n\n{title}" in page


def test_a_misspelt_id_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that does not exist is bad usage; the nearest one, or all of them, are named."""
    assert main(["rules", "show", "worker-fualt"]) == 2
    assert "there is no rule 'worker-fualt'; did you mean 'worker-fault'?" in capsys.readouterr().err
    assert main(["rules", "show", "xyz"]) == 2
    assert "expected one of" in capsys.readouterr().err


def test_text_of_a_rule_cannot_speak_to_the_terminal(
    folder: Path, stub: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a terminal would obey is shown as an escape, in list, show and test."""
    change(folder, "title: a cause of mine", 'title: "evil \\u202e \\x9b2J"')
    for args in (["list", "--rules"], ["show", "my-cause", "--rules"]):
        assert main(["rules", *args, str(folder)]) == 0
        out = capsys.readouterr().out
        assert "\u202e" not in out and "\x9b" not in out
        assert r"\u202e" in out


# ------------------------------------------------------------------------------------------ check


def test_check_passes_what_is_right(folder: Path, stub: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without faults ends with 0 and one line that counts the rules."""
    assert main(["rules", "check", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 1 rule, no faults\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("feature: worker.ratio", "feature: worker.ration", "no feature 'worker.ration'; did you mean 'worker.ratio'?"),
        ("below: 0.25", "bellow: 0.25", "unknown key 'bellow'; did you mean 'below'?"),
        ("{worker.ratio: 2,", "{worker.ratoi: 2,", "no feature 'worker.ratoi'; did you mean 'worker.ratio'?"),
        ("severity: low", "severity: lo", "'lo' is not known; did you mean 'low'?"),
        ("components: [worker, transfer]", "components: [wrokers]", "did you mean 'worker'?"),
        ("who: platform", "who: [platform]", "expected text"),
    ],
)
def test_check_tells_a_fault_with_its_line(
    folder: Path, stub: None, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    """A fault is `file:line: what` on standard output, with a suggestion where a name is misspelt, and the exit code is 4."""
    line = change(folder, old, new)
    assert main(["rules", "check", str(folder)]) == 4
    out, err = capsys.readouterr()
    assert any(fault.startswith(f"{folder / 'mine.yaml'}:{line}: ") and says in fault for fault in out.splitlines())
    assert err == ""


def test_check_tells_all_faults_of_all_files_in_order(
    folder: Path, stub: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misspelt features are told beside other faults of the same file, and files and lines are in order."""
    (folder / "mine.yaml").write_text(A_RULE.replace("worker.ratio: 2", "x: 2").replace("severity: low", "severity: x"))
    (folder / "a.yml").write_text("- a list")
    assert main(["rules", "check", str(folder)]) == 4
    places = [fault.rsplit("/", 1)[1].split(": ")[0] for fault in capsys.readouterr().out.splitlines()]
    line = A_RULE[: A_RULE.index("worker.ratio: 2")].count("\n") + 1
    assert places == ["a.yml:1", "mine.yaml:4", f"mine.yaml:{line}"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [("it happens", "1 tests must fire and 2 must not"), ("nothing happens", "2 tests must fire and 1 must not")],
)
def test_check_asks_for_two_cases_on_either_side(
    folder: Path, stub: None, capsys: pytest.CaptureFixture[str], name: str, counts: str
) -> None:
    """A rule with one case that must fire, or one that must not, is incomplete; a diagnosis takes it nevertheless."""
    start = A_RULE.index(f"  - name: {name}\n")
    end = A_RULE.index("  - name:", start + 1)
    (folder / "mine.yaml").write_text(A_RULE[:start] + A_RULE[end:])
    assert main(["rules", "check", str(folder)]) == 4
    assert f"{counts}; expected at least 2 of each" in capsys.readouterr().out
    assert "my-cause" in {rule.id for rule in load_rules(folder).rules}


def test_the_built_in_rules_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    """`check` with all real features finds no fault in the rules that ship."""
    code = main(["rules", "check", str(built_in_rules())])
    assert (code, capsys.readouterr().out.splitlines()[1:]) == (0, [])


# ------------------------------------------------------------------------------------------ test


def test_cases_that_pass_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where every case holds, the one line counts rules and cases, and the exit code is 0."""
    assert main(["rules", "test", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 1 rule, 4 cases, 0 failing\n"
    assert main(["rules", "test", str(built_in_rules())]) == 0


@pytest.mark.parametrize(
    ("old", "new", "says", "deciding"),
    [
        (
            "{worker.ratio: 2, slowdown: 1.0, worker.slow_share: 0.0}",
            "{worker.ratio: 1.4, slowdown: 1.0, worker.slow_share: 0.5}",
            "it happens: expected to fire, and it does not fire",
            ["worker.ratio at least 1.5 (line 11): it is 1.4", "slowdown above 1.1 (line 16): it is 1"],
        ),
        (
            "{worker.ratio: null, slowdown: 1.5, worker.slow_share: 0.5}",
            "{worker.ratio: null, slowdown: 1.5, worker.slow_share: 0.1}",
            "it happens to the job: expected to fire, and it cannot tell",
            ["worker.ratio at least 1.5 (line 11): not measured"],
        ),
        (
            "{worker.ratio: 1.0, slowdown: 1.0, worker.slow_share: 0.5}",
            "{worker.ratio: 1.0, slowdown: 1.2, worker.slow_share: 0.5}",
            "nothing happens: expected not to fire, and it fires",
            ["slowdown above 1.1 (line 16): it is 1.2", "worker.slow_share below 0.25 (line 19): it is 0.5"],
        ),
        (
            "{worker.ratio: null, slowdown: null, worker.slow_share: null}",
            "{worker.ratio: 1.0, slowdown: 2.0}",
            "nobody looked: expected not to fire, and it cannot tell",
            [
                "worker.slow_share below 0.25 (line 19): the case does not name it; add it, null where it is not measured",
            ],
        ),
        (
            "{worker.ratio: null, slowdown: null, worker.slow_share: null}",
            "{worker.ratio: null, slowdown: 2.0}",
            "nobody looked: expected not to fire, and it cannot tell",
            [
                "worker.ratio at least 1.5 (line 11): not measured",
                "worker.slow_share below 0.25 (line 19): the case does not name it; add it, null where it is not measured",
            ],
        ),
    ],
)
def test_a_case_that_fails_says_what_decided(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str, deciding: list[str]
) -> None:
    """A failing case has its place, what was expected and what happened, and the conditions it turned on with their values."""
    line = change(folder, old, new) - 1
    assert main(["rules", "test", str(folder)]) == 4
    assert capsys.readouterr().out.splitlines() == [
        f"{folder / 'mine.yaml'}:{line}: my-cause: {says}",
        *(f"    decided by {text}" for text in deciding),
        f"{folder}: 1 rule, 4 cases, 1 failing",
    ]


def test_files_that_are_wrong_are_told_before_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases of a file that cannot be read are not judged: its faults are errors, with exit code 4."""
    change(folder, "status: experimental", "status: exprimental")
    assert main(["rules", "test", str(folder)]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"diagnose: error: {folder / 'mine.yaml'}:3: ")


# ------------------------------------------------------------------------------------------ usage


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Missing command"),
        (["nonsense"], "No such command 'nonsense'"),
        (["show"], "Missing argument 'ID'"),
        (["check"], "Missing argument 'DIR'"),
        (["check", "no-such-folder"], "no-such-folder is not a folder"),
        (["test", "pyproject.toml"], "pyproject.toml is not a folder"),
        (["list", "--rules", "no-such-folder"], "no-such-folder is not a folder"),
    ],
)
def test_bad_usage(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad usage ends with 2 and one line that says what is wrong."""
    assert main(["rules", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err and err.count("\n") == 1


def test_an_empty_folder_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without rule files is a mistake of whoever named it, in `check` and in `test`."""
    assert main(["rules", "check", str(tmp_path)]) == 4
    assert "no rule files" in capsys.readouterr().out
    assert main(["rules", "test", str(tmp_path)]) == 4
    assert "no rule files" in capsys.readouterr().err
