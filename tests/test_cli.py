"""The command line: exit codes, streams, files; with a pipeline that knows the answers, and with the real one."""

import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import diagnose
from diagnose.cli.main import main
from diagnose.cli.progress import StageDisplay
from diagnose.errors import MetadataError, RuleError, TraceError
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.report import brief
from diagnose.report.schemas import make_schema
from tests.fixture_jobs import FIXTURES
from tests.report.examples import EXAMPLES, worker_fault

ROOT = Path(__file__).resolve().parents[1]
FIXTURE = ROOT / "fixtures" / "worker-fault.parquet"
REPORT_IT = "please report it; set DIAGNOSE_DEBUG=1 for the traceback"
HEAVY = {"numpy", "pandas", "pyarrow", "rich", "sklearn", "yaml", "scipy", "importlib.metadata"}
HEAVY |= {"sqlalchemy", "httpx", "apprise", "tenacity"}
SCHEMA = make_schema("diagnosis")


class FakePipeline(types.ModuleType):
    """A pipeline that knows what each job has by its name."""

    def __init__(self) -> None:
        super().__init__("diagnose.pipeline")
        self.calls: list[Request] = []

    def prepare_report(self, request: Request) -> types.SimpleNamespace:
        """Give the example of that name with nothing to draw, or the error."""
        return types.SimpleNamespace(diagnosis=self._diagnose(request))

    def _diagnose(self, request: Request) -> Diagnosis:
        source, name = request.source, request.name
        self.calls.append(request)
        request.report("reading")
        stem = Path(name or "healthy").stem if isinstance(source, Path) else "healthy"
        if stem in EXAMPLES:
            return EXAMPLES[stem]()
        if stem == "rule":
            raise RuleError("rules/a.yaml:3: no cause\nrules/b.yaml:9: no such feature")
        if stem == "meta":
            raise MetadataError("cannot be read as YAML", where="meta.yaml:2")
        if stem == "bug":
            raise ZeroDivisionError("division\nby zero")
        if stem == "stop":
            raise KeyboardInterrupt
        if stem in {"ended", "interrupted"}:
            try:
                raise SystemExit(143) if stem == "ended" else KeyboardInterrupt
            finally:
                threading.Lock().release()  # what a signal within Condition.wait does to those around it
        raise TraceError("no column duration; expected step, ...; look at the file", where=str(name))


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    """Put the fake in place of the pipeline."""
    fake = FakePipeline()
    monkeypatch.setitem(sys.modules, "diagnose.pipeline", fake)
    monkeypatch.setenv("COLUMNS", "100")
    return fake


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Give what is piped into standard input."""
    data = io.BytesIO(b"PAR1...PAR1")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    return data


def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as users do."""
    return subprocess.run(
        [sys.executable, "-m", "diagnose", *args],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
        **options,
    )


# Verdicts and formats


def test_terminal_report(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A job is reported on standard output alone, as wide as the terminal, with exit code 0 although it straggles."""
    assert main(["worker-fault.parquet"]) == 0
    out, err = capsys.readouterr()
    assert out == brief.render(worker_fault(), width=100, color=False, path="worker-fault.parquet")
    assert err == ""


def test_options_reach_the_pipeline(pipeline: FakePipeline, tmp_path: Path) -> None:
    """Every option arrives as the pipeline expects it."""
    meta, log = tmp_path / "m.yaml", tmp_path / "train.log"
    meta.touch()
    log.touch()
    options = ["--meta", str(meta), "--steps", "16-18,80", "--rules", str(tmp_path), "--min-speedup", "1.1", "--quiet"]
    assert main(["healthy.parquet", *options, "--log", str(log)]) == 0
    (call,) = pipeline.calls
    assert call.steps.tolist() == [16, 17, 18, 80]
    rest = dataclasses.replace(call, steps=None, progress=None)
    assert rest == Request(
        Path("healthy.parquet"), "healthy.parquet", meta=meta, rules=tmp_path, min_speedup=1.1, log=log
    )


def test_options_may_come_first(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """An option before the job changes nothing."""
    assert main(["--format", "json", "healthy.parquet"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "healthy"


def test_width(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """`--width` goes before the width of the terminal."""
    assert main(["big.parquet", "--width", "60"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_no_color_when_piped(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A report that no terminal shows holds no escape sequence."""
    main(["worker-fault.parquet"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "env", "colored"),
    [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False), ([], {"TERM": "dumb"}, False)],
)
def test_color_on_a_terminal(
    pipeline: FakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    env: dict[str, str],
    colored: bool,
) -> None:
    """A terminal gets colours unless `--no-color`, NO_COLOR or TERM=dumb forbids them."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["worker-fault.parquet", *args])
    assert ("\x1b[" in capsys.readouterr().out) == colored


def test_fail_on_straggling(pipeline: FakePipeline) -> None:
    """`--fail-on straggling` ends with 1 when one of the jobs straggles, else with 0."""
    assert main(["healthy.parquet", "noisy.parquet", "inconclusive.parquet", "--fail-on", "straggling"]) == 0
    assert main(["healthy.parquet", "worker-fault.parquet", "--fail-on", "straggling"]) == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (["low"], 1),
        (["high"], 1),
        (["critical"], 0),
        (["0.97"], 1),
        (["0.98"], 0),
        (["high", "0.97", "straggling"], 1),
        (["critical", "0.5"], 0),
        (["high", "0.99"], 0),
    ],
)
def test_fail_on_severity_and_confidence(pipeline: FakePipeline, asked: list[str], code: int) -> None:
    """A severity, or a confidence, is reached or not; what is asked for together must hold of one cause."""
    gates = [word for one in asked for word in ("--fail-on", one)]
    assert main(["worker-fault.parquet", "healthy.parquet", *gates]) == code


@pytest.mark.parametrize(
    ("asked", "code"), [(["straggling"], 0), (["low"], 0), (["0"], 0), (["unknown"], 1), (["unknown", "0.9"], 0)]
)
def test_unknown_fails_only_when_asked_for(pipeline: FakePipeline, asked: list[str], code: int) -> None:
    """Time that nothing explains stops nobody's gate, unless he wants it to."""
    assert main(["unknown.parquet", *[word for one in asked for word in ("--fail-on", one)]]) == code


@pytest.mark.parametrize(("asked", "code"), [(["unknown"], 0), (["unknown", "straggling"], 1), (["unknown", "low"], 1)])
def test_unknown_alone_is_no_gate_for_causes_with_a_name(pipeline: FakePipeline, asked: list[str], code: int) -> None:
    """Who asks for what nothing explains is not stopped by what a cause explains."""
    assert main(["worker-fault.parquet", *[word for one in asked for word in ("--fail-on", one)]]) == code


def test_standard_input(pipeline: FakePipeline, piped: io.BytesIO) -> None:
    """`-` reads the whole of standard input into something that can seek."""
    assert main(["-"]) == 0
    (call,) = pipeline.calls
    assert call.name == "standard input"
    assert call.source.seekable()
    assert call.source.read() == b"PAR1...PAR1"


# Several jobs


def test_json_lines(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """Several jobs as JSON are one object a line, in the order asked for."""
    assert main([f"{name}.parquet" for name in EXAMPLES] + ["--format", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["job"]["job_id"] for line in lines] == [
        example().job.job_id for example in EXAMPLES.values()
    ]
    for line in lines:
        jsonschema.validate(json.loads(line), SCHEMA)


def test_several_reports(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """Several reports for people are parted by a rule, and end with a table, the worst job first, what is not read last."""
    main(["healthy.parquet", "worker-fault.parquet", "broken.parquet", "two-causes.parquet"])
    first, second, third, table = capsys.readouterr().out.split("\n" + "─" * 100 + "\n\n")
    assert first.startswith("pretrain-7b  HEALTHY")
    assert second.startswith("AR  STRAGGLING") and third.startswith("moe-32b  STRAGGLING")
    head, *lines = table.splitlines()
    assert head.split() == ["job", "verdict", "slower", "GPU", "h/day", "cause"]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "AR",
        "moe-32b",
        "broken.parquet",
        "pretrain-7b",
    ]


def test_several_markdown_reports(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """Several reports in Markdown are one document."""
    assert main(["healthy.parquet", "worker-fault.parquet", "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n\n---\n\n## ") == 2 and out.startswith("## `pretrain-7b`: healthy")
    assert "## 2 jobs\n\n| job | verdict |" in out and out.index("| `AR` |") < out.index("| `pretrain-7b` |")


def test_several_junit_suites(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """Several jobs are one document, also where some of them cannot be read; these are errors in it."""
    jobs = ["broken.parquet", "worker-fault.parquet", "bug.parquet", "healthy.parquet"]
    assert main([*jobs, "--format", "junit", "--fail-on", "straggling"]) == 5
    out, err = capsys.readouterr()
    root = ET.fromstring(out.encode())
    assert [suite.get("name") for suite in root] == ["broken.parquet", "AR", "bug.parquet", "pretrain-7b"]
    assert [suite.get("errors") for suite in root] == ["1", "0", "1", "0"]
    assert err.count("diagnose: error: ") == 2
    assert main(["worker-fault.parquet", "--format", "junit", "--fail-on", "straggling"]) == 1
    assert main(["worker-fault.parquet", "--format", "junit"]) == 0


def test_junit_tells_of_a_job_that_cannot_be_read(pipeline: FakePipeline, tmp_path: Path) -> None:
    """The only job cannot be read: the exit code says so, and so does the document, which is whole."""
    out = tmp_path / "gate.xml"
    assert main(["broken.parquet", "--format", "junit", "-o", str(out)]) == 3
    assert ET.fromstring(out.read_bytes())[0].find("testcase/error").get("message").startswith("broken.parquet: no col")
    out.unlink()
    assert main(["rule.parquet", "--format", "junit", "-o", str(out)]) == 4
    assert not out.exists()


def test_verbose(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """`-v` gives all figures, `-vv` the features, too; `--verbose` counts like `-v`."""

    def show(*options: str) -> str:
        main(["healthy.parquet", *options])
        return capsys.readouterr().out

    assert "As in arXiv" not in show() and "As in arXiv" in show("-v") and "\nFeatures\n" not in show("-v")
    assert "\nFeatures\n" in show("-vv")
    assert (show("--verbose"), show("--verbose", "-v")) == (show("-v"), show("-vv"))


def test_broken_job_stops_no_other(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that cannot be read is one line on standard error, the others are diagnosed, and the exit code is 5."""
    assert (
        main(["broken.parquet", "healthy.parquet", "bug.parquet", "--format", "json", "--fail-on", "straggling"]) == 5
    )
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err.splitlines() == [
        "diagnose: error: broken.parquet: no column duration; expected step, ...; look at the file",
        f"diagnose: error: bug.parquet: internal error: ZeroDivisionError: division by zero; {REPORT_IT}",
    ]


def test_an_error_of_one_job_of_several_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it is none of reading the file: with one job everybody knows which."""
    table = pq.read_table(FIXTURES["healthy"])
    is_recv = pc.equal(pc.cast(table["optype"], pa.string()), "forward-recv")
    of_stage = pc.equal(table["stage"], 1)  # that of others is there: it is no type that nobody recorded
    pq.write_table(table.filter(pc.invert(pc.and_(is_recv, of_stage))), tmp_path / "unpaired.parquet")
    for more in ((), (str(FIXTURES["healthy"]),)):
        main([str(tmp_path / "unpaired.parquet"), *more])
        told = capsys.readouterr().err.startswith(f"diagnose: error: {tmp_path / 'unpaired.parquet'}: graph: ")
        assert told == bool(more)


@pytest.mark.parametrize(
    ("jobs", "code"),
    [
        (["meta"], 4),
        (["meta", "healthy"], 5),
        (["broken"], 3),
        (["broken", "worse"], 3),
        (["bug"], 70),
        (["broken", "bug"], 5),
        (["broken", "healthy"], 5),
    ],
)
def test_codes_of_failures(pipeline: FakePipeline, jobs: list[str], code: int) -> None:
    """When all jobs fail alike the exit code is theirs, otherwise 5."""
    assert main(jobs) == code


def test_rule_error_stops_all(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong rule ends the run with 4, and every fault has its line."""
    assert main(["./rule", "healthy"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "diagnose: error: rules/a.yaml:3: no cause",
        "diagnose: error: rules/b.yaml:9: no such feature",
    ]


def test_interrupt(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends with 130 and one line."""
    assert main(["stop"]) == 130
    assert capsys.readouterr().err == "diagnose: error: interrupted\n"


def test_debug_shows_the_traceback(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DIAGNOSE_DEBUG adds the traceback of an internal error."""
    monkeypatch.setenv("DIAGNOSE_DEBUG", "1")
    assert main(["bug"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_errors_are_escaped(pipeline: FakePipeline, capsys: pytest.CaptureFixture[str]) -> None:
    """A file name can neither add lines nor speak to the terminal."""
    assert main(["a\n\x1b[2J"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("diagnose: error: a\\x0a\\x1b[2J: no column")
    assert err.count("\n") == 1


# Output files


def test_output_file(pipeline: FakePipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o` writes the report, plain, to the file and nothing to standard output."""
    out = tmp_path / "report.txt"
    assert main(["worker-fault.parquet", "-o", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == brief.render(
        worker_fault(), width=100, color=False, path="worker-fault.parquet"
    )
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("job", "code"), [("broken", 3), ("bug", 70), ("rule", 4), ("stop", 130)])
def test_output_file_survives_failure(pipeline: FakePipeline, tmp_path: Path, job: str, code: int) -> None:
    """When nothing was diagnosed, or the run was stopped, the file that stood there stays as it was and nothing lies beside it."""
    out = tmp_path / "report.json"
    out.write_text("old")
    jobs = [job] if job in {"broken", "bug"} else ["healthy", job]
    assert main([*jobs, "-o", str(out)]) == code
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_output_file_is_never_half_written(
    pipeline: FakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While jobs are diagnosed the old file stands; it changes once, at the end, and keeps its mode."""
    out = tmp_path / "report.json"
    out.write_text("old")
    out.chmod(0o640)
    seen = []
    prepare_report = pipeline.prepare_report

    def look(request: Request) -> types.SimpleNamespace:
        seen.append(out.read_text())
        return prepare_report(request)

    monkeypatch.setattr(pipeline, "prepare_report", look)
    assert main(["healthy", "worker-fault", "-o", str(out), "--format", "json"]) == 0
    assert seen == ["old", "old"]
    assert len(out.read_text().splitlines()) == 2
    assert out.stat().st_mode & 0o777 == 0o640


def test_output_through_a_link(pipeline: FakePipeline, tmp_path: Path) -> None:
    """A symbolic link stays one; the file it leads to is written."""
    out = tmp_path / "real.txt"
    link = tmp_path / "link.txt"
    link.symlink_to(out)
    assert main(["healthy", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert out.read_text(encoding="utf-8").startswith("pretrain-7b")


def test_output_to_a_device(pipeline: FakePipeline) -> None:
    """A device is written to, not replaced."""
    assert main(["healthy", "-o", os.devnull]) == 0
    assert not Path(os.devnull).is_file()


# Usage


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no job given"),
        (["x", "--nonsense"], "No such option"),
        (["x", "--format", "yaml"], "'yaml' is not one of"),
        (["x", "--min-speedup", "0.5"], "0.5 is not in the range"),
        (["x", "--min-speedup", "nan"], "nan is not a finite number"),
        (["x", "--min-speedup", "inf"], "inf is not a finite number"),
        (["x", "--width", "3"], "3 is not in the range"),
        (
            ["x", "--fail-on", "healthy"],
            "'healthy' is not one of straggling, critical, high, medium, low, unknown, nor",
        ),
        (["x", "--fail-on", "1.5"], "nor a confidence from 0 to 1"),
        (["x", "--steps", "9-4"], "--steps: '9-4' is not a list of steps and ranges such as 16-40,80"),
        (["x", "--steps", ""], "--steps: '' is not"),
        (["x", "--meta", "no-such-file"], "--meta: no-such-file is not a file"),
        (["x", "y", "--meta", "pyproject.toml"], "--meta describes one job, and 2 are given"),
        (["x", "--rules", "no-such-folder"], "--rules: no-such-folder is not a folder"),
        (["x", "-o", "no-such-folder/file"], "-o: cannot write no-such-folder/file: No such file or directory"),
        (["x", "-o", "./x"], "-o: ./x is the trace to read"),
        (["-", "-"], "standard input (-) can be read once only"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["completion"], "Missing argument"),
        (["schema", "extra"], "is not one of"),
        (["schema", "compare", "extra"], "unexpected extra argument"),
    ],
)
def test_bad_usage(
    pipeline: FakePipeline, piped: io.BytesIO, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    """Bad usage ends with 2 and one line that says what is wrong, before any job is touched."""
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("diagnose: error: ") and err.count("\n") == 1
    assert says in err
    assert not pipeline.calls


def test_terminal_is_no_trace(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, piped: io.BytesIO) -> None:
    """`-` at a terminal says so instead of waiting for ever."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["-"]) == 2


def test_help_shows_everything() -> None:
    """`--help`, wherever it stands, shows usage, options, commands and exit codes."""
    shown = run("--help")
    assert shown.returncode == 0 and shown.stderr == ""
    for word in ["diagnose [OPTIONS] JOB...", "diagnose COMMAND", "completion", "schema", "Exit codes", "--version"]:
        assert word in shown.stdout
    for option in [
        "--format",
        "-o, --output",
        "--meta",
        "--steps",
        "--rules",
        "--min-speedup",
        "--fail-on",
        "--no-color",
        "--width",
        "-v, --verbose",
        "--quiet",
    ]:
        assert f"  {option} " in shown.stdout
    assert run("some.parquet", "--help").stdout == shown.stdout


def test_version() -> None:
    """`--version` names program and version."""
    assert run("--version").stdout == f"diagnose {diagnose.__version__}\n"


@pytest.mark.parametrize("command", [[], ["triage"], ["tickets"]])
def test_light_start(command: list[str]) -> None:
    """Asking for help imports nothing heavy."""
    code = (
        f"import json, sys; from diagnose.cli.main import main; main([*{command}, '--help']); "
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(json.loads(shown.stderr))
    assert "click" in loaded
    assert not HEAVY & loaded


def test_schema_of_comparisons(capsys: pytest.CaptureFixture[str]) -> None:
    """`schema compare` prints the schema of comparisons."""
    assert main(["schema", "compare"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Comparison"


def test_schema_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose schema` prints the schema that every output validates against."""
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell gets a script that asks the program."""
    assert main(["completion", shell]) == 0
    assert f"_DIAGNOSE_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (
            "diagnose ",
            [
                *(
                    f"plain,{name}"
                    for name in (
                        "ack",
                        "bundle",
                        "compare",
                        "completion",
                        "config",
                        "confirm",
                        "convert",
                        "explain",
                        "fixes",
                    )
                ),
                *(
                    f"plain,{name}"
                    for name in (
                        "fleet",
                        "machines",
                        "open",
                        "pack",
                        "rules",
                        "run",
                        "schema",
                        "store",
                        "tickets",
                        "triage",
                        "watch",
                        "what-if",
                    )
                ),
                "file,",
            ],
        ),
        ("diagnose fixt", ["file,fixt"]),
        ("diagnose --fo", ["plain,--format"]),
        ("diagnose x.parquet --fo", ["plain,--format"]),
        ("diagnose x.parquet --format ", ["plain,terminal", "plain,json", "plain,markdown", "plain,junit"]),
        ("diagnose completion ", ["plain,bash", "plain,zsh", "plain,fish"]),
    ],
)
def test_completion_offers(
    words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, files, options and their values are completed."""
    monkeypatch.setenv("_DIAGNOSE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == offered


@pytest.mark.parametrize(("job", "code", "says"), [("ended", 143, ""), ("interrupted", 130, "interrupted")])
def test_end_asked_for_while_a_lock_is_held(
    pipeline: FakePipeline, capsys: pytest.CaptureFixture[str], job: str, code: int, says: str
) -> None:
    """A signal that breaks a lock on its way out still is the end that was asked for: no internal error, no next job."""
    assert main([f"{job}.parquet", "healthy.parquet"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"diagnose: error: {says}\n" if says else "")
    assert [Path(str(call.source)).stem for call in pipeline.calls] == [job]


# Streams


def test_closed_pipe_is_quiet() -> None:
    """A reader that goes away ends the program without a word."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "diagnose", "schema"], stdout=out, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    assert ended.stderr == b""
    assert ended.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk() -> None:
    """Output that cannot be written is one line and exit code 74."""
    with Path("/dev/full").open("w") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "diagnose", "schema"],
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
            text=True,
        )
    assert ended.stderr == "diagnose: error: cannot write the report: No space left on device\n"
    assert ended.returncode == 74


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_narrow_encoding(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
) -> None:
    """A terminal that knows few characters gets a report in ASCII, without escapes; a file keeps them all."""
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", page)
    assert main(["worker-fault", "healthy", "-v"]) == 0
    page.seek(0)
    report = page.read()
    assert "####" in report and "\\" not in report and report.isascii()
    assert main(["worker-fault", "-v", "-o", str(tmp_path / "r.txt")]) == 0
    assert "████" in (tmp_path / "r.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes streams")
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("- <&-", 2, "diagnose: error: standard input is closed: pipe a trace into it, or name a file instead of -\n"),
        ("schema >&-", 74, "diagnose: error: cannot write the report: standard output is closed\n"),
        ("no-such-file 2>&-", 3, ""),
        ("--nonsense 2>&-", 2, ""),
        ("- <&- >&- 2>&-", 2, ""),
    ],
)
def test_closed_streams(command: str, code: int, says: str) -> None:
    """A standard stream that is closed is told where anyone can hear it, and the exit code stays the right one."""
    shell = ["sh", "-c", f'"$0" -m diagnose {command}', sys.executable]
    ended = subprocess.run(shell, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (code, says)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_termination_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGTERM ends with 143, without a word, and takes the half-written file away."""
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "diagnose", str(pipe), "-o", str(out / "report.txt")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as running:
        while not any(out.iterdir()):
            assert running.poll() is None, "it ended before it had begun to write"
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (143, b"")
    assert not list(out.iterdir())


class _Console:
    """Stands for rich's console, and counts what it is asked for."""

    shown: list[str]

    def __init__(self, **_: Any) -> None:
        pass

    def status(self, text: Any) -> "_Console":
        """Begin a status line."""
        self.shown.append(f"status {text}")
        return self

    def start(self) -> None:
        """Show it."""
        self.shown.append("start")

    def update(self, text: Any) -> None:
        """Change it."""
        self.shown.append(f"update {text}")

    def stop(self) -> None:
        """Take it away."""
        self.shown.append("stop")


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give what progress shows."""
    _Console.shown = []
    monkeypatch.setattr("rich.console.Console", _Console)
    return _Console.shown  # type: ignore[return-value]


def test_progress_of_a_quick_job(console: list[str]) -> None:
    """A job that takes less than a second shows nothing."""
    with StageDisplay("job", shown=True) as progress:
        progress("replaying")
    assert console == []


def test_progress_of_a_long_job(console: list[str]) -> None:
    """A longer job shows its stage, and the line goes away at the end."""
    with StageDisplay("job", shown=True) as progress:
        progress("replaying")
        progress._show()
        progress("judging")
    assert console == ["status job: replaying", "start", "update job: judging", "stop"]


def test_progress_comes_too_late(console: list[str]) -> None:
    """A timer that fires after the job shows nothing."""
    with StageDisplay("job", shown=True) as progress:
        pass
    progress._show()
    assert console == []


# Python


def test_api_has_no_other_names() -> None:
    """A name that the package does not have is an AttributeError."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = diagnose.nonsense


# With the real pipeline

needs_fixture = pytest.mark.skipif(
    not (FIXTURE.is_file() and (ROOT / "diagnose" / "pipeline.py").is_file()), reason="no fixture, or no pipeline yet"
)


@needs_fixture
def test_real_job() -> None:
    """The slow worker of the fixture is found, in JSON that validates, with nothing on standard error."""
    ended = run(str(FIXTURE), "--format", "json", "--fail-on", "straggling")
    assert ended.returncode == 1 and ended.stderr == ""
    found = json.loads(ended.stdout)
    jsonschema.validate(found, SCHEMA)
    assert found["causes"][0]["cause"] == "worker-fault"


@needs_fixture
def test_real_healthy_job() -> None:
    """A healthy job is cleared, and does not fail a check."""
    ended = run(str(FIXTURE.with_name("healthy.parquet")), "--fail-on", "straggling")
    assert ended.returncode == 0 and ended.stderr == ""
    assert "healthy  HEALTHY  no fault found, but steps could be 19% shorter" in ended.stdout


@needs_fixture
def test_real_job_from_standard_input() -> None:
    """A trace read from a pipe gives the same figures as the file."""
    by_name = json.loads(run(str(FIXTURE), "--format", "json").stdout)
    with FIXTURE.open("rb") as trace:
        piped = json.loads(run("-", "--format", "json", stdin=trace).stdout)
    assert piped["causes"] == by_name["causes"]
    assert piped["step_time"] == by_name["step_time"]


@needs_fixture
def test_real_report() -> None:
    """The report of the fixture names the cause and fits the width; a command to paste is whole, however long its path."""
    ended = run(str(FIXTURE), "--width", "80")
    assert ended.returncode == 0 and ended.stderr == ""
    assert "worker-fault" in ended.stdout
    command = f"diagnose explain {shlex.quote(str(FIXTURE))} worker-fault"
    lines = ended.stdout.splitlines()
    assert any(line.endswith(command) for line in lines)
    assert max(len(line) for line in lines if not line.endswith(command)) <= 80


@needs_fixture
def test_same_bytes() -> None:
    """The same job twice gives the same bytes."""
    assert run(str(FIXTURE), "--format", "json").stdout == run(str(FIXTURE), "--format", "json").stdout


@pytest.mark.skipif(not (ROOT / "diagnose" / "pipeline.py").is_file(), reason="no pipeline yet")
def test_not_a_trace() -> None:
    """A file that is no trace is one line on standard error and exit code 3; so is one that is not there."""
    for name in ["README.md", "no-such-file.parquet"]:
        ended = run(name)
        assert ended.returncode == 3 and ended.stdout == ""
        assert ended.stderr.startswith(f"diagnose: error: {name}: ") and ended.stderr.count("\n") == 1
