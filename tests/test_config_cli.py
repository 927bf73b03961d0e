"""The configuration file, `diagnose open`, completion, and what else every command has."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from diagnose.cli import open as opening
from diagnose.cli.config import KEYS
from diagnose.cli.main import COMMANDS, main, program
from tests.fixture_jobs import FIXTURES

ROOT = Path(__file__).resolve().parents[1]
WORKER_FAULT = str(FIXTURES["worker-fault"])
ADDRESS = "https://hooks.example/T00/secret"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a repository of its own, without a word in the environment."""
    for name in [name for name in os.environ if name.startswith("DIAGNOSE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "repo" / "below")
    return tmp_path / "repo"


def configured(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """Give what `diagnose config` says."""
    assert main(["config", "--format", "json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """List all commands with the words that call them."""
    for name, command in group.commands.items():
        below = (*path, name) if name else path
        yield from leaves(command, below) if isinstance(command, click.Group) else [(below, command)]


# Where it is found


def test_the_nearest_file_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The current folder goes before its parents, diagnose.toml before pyproject.toml, and one file alone is read."""
    assert configured(capsys)["file"] is None
    (here / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.diagnose]\nmin_speedup = 1.25\n')
    found = configured(capsys)
    assert found["keys"]["min_speedup"] == {"value": 1.25, "from": f"{here / 'pyproject.toml'}:5"}
    (here / "diagnose.toml").write_text("min_speedup = 1.5\n")
    assert configured(capsys)["keys"]["min_speedup"]["value"] == 1.5
    (here / "below" / "pyproject.toml").write_text('[project]\nname = "another tool\'s"\n')
    assert configured(capsys)["keys"]["min_speedup"]["value"] == 1.5
    (here / "below" / "diagnose.toml").write_text("[fleet]\nnight = '7d'\n")
    keys = configured(capsys)["keys"]
    assert (keys["min_speedup"]["from"], keys["fleet.night"]["value"]) == ("default", "7d")


def test_nothing_above_the_repository_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file above the root is not looked at; outside of a repository only the current folder is."""
    (here.parent / "diagnose.toml").write_text("min_speedup = 9.0\n")
    assert configured(capsys)["file"] is None
    (here / ".git").rmdir()
    (here / "diagnose.toml").write_text("min_speedup = 9.0\n")
    assert configured(capsys)["file"] is None


def test_another_tools_broken_file_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pyproject.toml that does not speak of us may be as broken as it likes."""
    (here / "pyproject.toml").write_text("= = =")
    assert configured(capsys)["file"] is None


def test_order(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Options beat environment variables, and these beat the file; a named file beats a found one."""
    (here / "diagnose.toml").write_text('store = "sqlite:///night.db"\n')
    assert main(["store", "info"]) == 74
    assert f"sqlite:///{here}/night.db is not there" in capsys.readouterr().err
    monkeypatch.setenv("DIAGNOSE_STORE", "sqlite:///variable.db")
    assert main(["store", "info"]) == 74
    assert "sqlite:///variable.db" in capsys.readouterr().err
    assert main(["store", "info", "--store", "sqlite:///option.db"]) == 74
    assert "sqlite:///option.db" in capsys.readouterr().err
    monkeypatch.delenv("DIAGNOSE_STORE")
    (here / "named.toml").write_text('store = "sqlite:///named.db"\n')
    monkeypatch.setenv("DIAGNOSE_CONFIG", str(here / "named.toml"))
    assert configured(capsys)["keys"]["store"]["value"] == f"sqlite:///{here}/named.db"
    (here / "more.toml").write_text('store = "sqlite:///more.db"\n')
    assert configured(capsys, "--config", str(here / "more.toml"))["keys"]["store"]["value"].endswith("more.db")
    monkeypatch.setenv("DIAGNOSE_CONFIG", os.devnull)
    assert configured(capsys)["keys"]["store"]["from"] == "default"


def test_it_reaches_the_diagnosis(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold of the file changes what is said; an option changes it back. Where nobody named the file, it is told."""
    file = here / "diagnose.toml"
    file.write_text("min_speedup = 1.9\n")
    said = []
    for args in ([], ["--config", str(file)], ["--min-speedup", "1.02"]):
        assert main([WORKER_FAULT, "--format", "json", *args]) == 0
        out, err = capsys.readouterr()
        said.append((bool(json.loads(out)["causes"]), err))
    note = f"diagnose: note: --min-speedup 1.9 is from {file}:1\n"
    assert said == [(False, note), (False, ""), (True, "")]


def test_rules_are_those_beside_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths are taken from the folder of the file, wherever the command runs."""
    (here / "mine").mkdir()
    (here / "mine" / "worker-fault.yaml").write_text("id: worker-fault\n")
    (here / "diagnose.toml").write_text('rules = "mine"\n')
    assert main(["rules", "list"]) == 4
    assert str(here / "mine" / "worker-fault.yaml") in capsys.readouterr().err


# What is wrong

WRONG = {
    'stroe = "sqlite:///x.db"': "1: unknown key 'stroe'; did you mean 'store'?",
    "\nmin-speedup = 1.1": "2: unknown key 'min-speedup'; did you mean 'min_speedup'?",
    "webhook = 'https://x'": "1: unknown key 'webhook'; did you mean 'tickets.webhook'?",
    "zebra = 1": "1: unknown key 'zebra'; expected one of store, rules, min_speedup",
    "[tickets]\nsend = true": "2: unknown key 'tickets.send'; expected one of webhook",
    "[tikets]\nlimit = 3": "1: unknown key 'tikets'; did you mean 'tickets'?",
    "tickets = 3": "1: tickets is 3, expected a table",
    "min_speedup = '2'": "1: min_speedup is '2', expected a number",
    "min_speedup = nan": "1: min_speedup is nan, expected a number",
    "min_speedup = true": "1: min_speedup is True, expected a number",
    "\n\nmin_speedup = 0.5": "3: min_speedup is 0.5: 0.5 is not in the range x>=1.0.",
    "store = ''": "1: store is '', expected text",
    "store = 'postgresql://me:secret@host/db'": "store holds a password, expected it in DIAGNOSE_STORE_PASSWORD",
    "[tickets]\nwebhook = ['https://x/secret', '']": "2: tickets.webhook is wrong, expected text, or a list of texts",
    "rules = 3": "1: rules is 3, expected a path",
    "a = 1\na = 2": "2: cannot be read as TOML",
    "# fine\nstore = ": "2: cannot be read as TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file(here: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Each fault is a line with file and line of it, and the exit code that of a configuration file."""
    (here / "diagnose.toml").write_text(text)
    assert main([WORKER_FAULT]) == 4
    out, err = capsys.readouterr()
    assert f"diagnose: error: {here / 'diagnose.toml'}:" in err and WRONG[text] in err and not out
    assert "secret" not in err and len(err.splitlines()) == 1


def test_all_faults_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who mends a file wants to see all that is wrong in it; help is there all the same."""
    (here / "pyproject.toml").write_text("[tool.diagnose]\nstroe = 1\n\n[tool.diagnose.fleet]\nnigth = 2\n")
    assert main(["config"]) == 4
    assert [line.split("pyproject.toml:")[1][0] for line in capsys.readouterr().err.splitlines()] == ["2", "5"]
    assert main(["config", "-h"]) == 0


def test_a_file_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is named must be there."""
    assert main([WORKER_FAULT, "--config", "none.toml"]) == 2
    assert "none.toml cannot be read" in capsys.readouterr().err


# What a stranger's file may not do

ADDRESSES = {
    "[tickets]\nwebhook = '{}'": ["tickets"],
    "[tickets]\nalertmanager = ['{}']": ["tickets", "--send"],
    "[tickets]\napprise = '{}'": ["tickets"],
    "[tickets]\nsite = '{}'": ["tickets"],
    "[triage]\ndask = '{}'": ["triage", "."],
    "store = 'postgresql://host/db'": ["triage", "."],
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_a_found_file_sends_nothing(here: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """An address in a file that was only found is refused when it would be used, before anything is opened or sent."""
    file = here / "diagnose.toml"
    file.write_text(text.format(ADDRESS))
    assert main(ADDRESSES[text]) == 4
    err = capsys.readouterr().err
    assert f"--config {file}" in err and "was only found" in err and ADDRESS not in err
    assert not list((here / "below").iterdir())
    assert main(["rules", "list", "-o", os.devnull]) == 0  # who does not need it is not held up
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "not used" in out and "secret" not in out
    assert main(["config", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "not used" not in out and "secret" not in out


def test_an_option_goes_before_what_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says the address does not need that of the file."""
    (here / "diagnose.toml").write_text("store = 'postgresql://host/db'\n")
    assert main(["store", "info", "--store", "sqlite:///mine.db"]) == 74
    monkeypatch.setenv("DIAGNOSE_STORE", "sqlite:///mine.db")
    assert main(["store", "info"]) == 74
    assert "mine.db is not there" in capsys.readouterr().err


def test_the_example_of_the_documentation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key is on the page, and what the page shows is a sound file."""
    page = (ROOT / "docs" / "how-to" / "configure.md").read_text()
    (here / "diagnose.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    keys = configured(capsys)["keys"]
    assert keys["triage.workers"]["value"] == 8 and "diagnose.toml:6" in keys["triage.workers"]["from"]
    assert all(key in page for table in KEYS.values() for key in table)


def test_every_key_stands_for_an_option() -> None:
    """A key that no command has an option for would be read and do nothing; flags, which send and overwrite, are no keys."""
    by_path = dict(leaves(program))
    for table, keys in KEYS.items():
        commands = [by_path[(table,)]] if table else list(by_path.values())
        for key in keys:
            options = [p for c in commands for p in c.params if f"--{key.replace('_', '-')}" in p.opts]
            assert options and not any(getattr(option, "is_flag", False) for option in options), key


# What every command has


def test_every_command_helps(capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` is `--help`, everywhere; what prints a result can write it into a file by both names of the option."""
    acting = {("ack",), ("store", "prune"), ("store", "export"), ("convert",), ("watch",)}
    for path, command in leaves(program):
        helps = []
        for flag in ("-h", "--help"):
            assert main([*path, flag]) == 0
            helps.append(capsys.readouterr().out)
        assert helps[0] == helps[1] != ""
        outputs = [set(param.opts) for param in command.params if "-o" in param.opts]
        assert path in acting or outputs == [{"-o", "--output"}], path
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize(
    "args",
    [
        ["explain", WORKER_FAULT, "worker-fault"],
        ["what-if", WORKER_FAULT, "--fix", "replace-worker"],
        ["fixes"],
        ["schema"],
        ["rules", "list"],
        ["rules", "show", "worker-fault"],
        ["completion", "bash"],
        ["config"],
    ],
)
def test_output(args: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What goes to standard output goes into a file instead, the same but for the width."""
    wide = ["--width", "100"] if args[0] in {"explain", "what-if"} else []
    assert main([*args, *wide]) == 0
    printed = capsys.readouterr().out
    assert main([*args, *wide, "--output", "file.txt"]) == 0
    assert capsys.readouterr().out == "" and Path("file.txt").read_text() == printed != ""


# A word that is nearly a command


@pytest.mark.parametrize(
    ("word", "command"), [("explian", "explain"), ("what_if", "what-if"), ("traige", "triage"), ("opne", "open")]
)
def test_a_misspelt_command(word: str, command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not taken for a job, unless it is one."""
    assert main([word, WORKER_FAULT]) == 2
    assert f"did you mean `diagnose {command}`?" in capsys.readouterr().err
    Path(word).write_bytes(Path(WORKER_FAULT).read_bytes())
    assert main([word, "-o", os.devnull]) == 0
    assert main([f"./{word}.parquet"]) == 3
    assert "no such file" in capsys.readouterr().err


def test_options_before_a_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command is not taken for a job that is missing, unless a file has its name."""
    assert main(["--quiet", "tickets"]) == 2
    assert "expected `diagnose tickets --quiet ...`" in capsys.readouterr().err
    Path("tickets").write_bytes(Path(WORKER_FAULT).read_bytes())
    assert main(["--quiet", "tickets"]) == 0


def test_a_job_that_is_not_there_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is far from every command is a file that is missing."""
    assert main(["night.parquet"]) == 3
    assert "no such file" in capsys.readouterr().err


# Completion


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["explain", WORKER_FAULT, "wor"], {"worker-fault"}),
        (["explain", WORKER_FAULT, "unk"], {"unknown"}),
        (["what-if", WORKER_FAULT, "--fix", "replace-"], {"replace-worker"}),
        (["rules", "show", "data"], {"data-loading"}),
        (["fleet", "--cause", "net"], {"network-fault"}),
        (["rules", "show", "--rules", "/no/such/folder", "data"], set()),
        (["conf"], {"config", "confirm"}),
    ],
)
def test_completion(words: list[str], offered: set[str]) -> None:
    """A shell is offered causes, fixes and rules, and never an error."""
    asked = {
        "_DIAGNOSE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["diagnose", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "diagnose"], env=os.environ | asked, cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {line.split(",")[1] for line in done.stdout.splitlines() if line.startswith("plain,")}
    assert offered <= found and len(found) <= max(len(offered), 1) and not done.stderr


# What-if


def test_what_if_that_has_nothing_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    """Where every fix is refused, the exit code says so; where one is not, all is well."""
    refused = ["--fix", "balance-experts"]
    assert main(["what-if", WORKER_FAULT, *refused]) == 1
    out = capsys.readouterr().out
    assert "not for this job" in out and "steps stay as they are" in out and "as fast" not in out
    assert main(["what-if", WORKER_FAULT, *refused, "--fix", "replace-worker", "-o", os.devnull]) == 0


# diagnose open


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a list in the place of the browser, beside a display."""
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: seen.append(url) is None)
    monkeypatch.setattr(opening, "_has_display", lambda: True)
    return seen


def test_open(opened: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page lies where it was asked to, and is what the browser gets."""
    assert main(["open", WORKER_FAULT, "-o", "page.html"]) == 0
    assert capsys.readouterr().out == "page.html\n" and opened == [Path("page.html").absolute().as_uri()]
    assert "Slow worker" in Path("page.html").read_text()


def test_open_in_a_temporary_folder(
    opened: list[str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name it goes into a folder that others may not look into; of a job that is none, nothing is left."""
    monkeypatch.setattr("tempfile.tempdir", str(here))
    before = set(here.iterdir())
    assert main(["open", "none.parquet"]) == 3
    assert set(here.iterdir()) == before and not opened
    assert main(["open", WORKER_FAULT]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.is_file() and page.parent.parent == here and page.parent.stat().st_mode & 0o077 == 0
    assert opened == [page.as_uri()]


def test_open_without_a_display(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started where nobody could see it; the path is printed."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("webbrowser.open", lambda _url: pytest.fail("a browser was started"))
    assert main(["open", WORKER_FAULT, "-o", "page.html"]) == 0
    out, err = capsys.readouterr()
    assert out == "page.html\n" and "no display" in err


def test_open_refuses_to_write_over_the_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace stays what it is, and a folder must be there."""
    Path("job.parquet").write_bytes(b"PAR1")
    assert main(["open", "job.parquet", "-o", "job.parquet"]) == 2
    assert main(["open", WORKER_FAULT, "-o", "none/page.html"]) == 2
    assert Path("job.parquet").read_bytes() == b"PAR1"
