"""`python -m tests.scoring.score`: jobs from a folder or made in memory, the same whatever the number of processes."""

import functools
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diagnose import pipeline
from diagnose.errors import UsageError
from diagnose.faults.generate import generate, write_job
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.request import Request
from tests.scoring import score
from tests.scoring.figures import measure
from tests.scoring.judged import JudgedJob, SaidCause, TrueCause
from tests.scoring.score import judge_file, main, read_truth, to_json
from tests.scoring.score_tables import render, table

SMALL = JobSpec(pp=2, dp=2, microbatches=4, steps=6)
SLOW = WorkerFault(places=((1, 0),), slowdown=2.0, onset=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a job with a slow worker and a healthy one."""
    write_job(generate(SMALL, [SLOW]), tmp_path / "job-0.parquet")
    write_job(generate(SMALL), tmp_path / "job-1.parquet")
    return tmp_path


def run(*args: object) -> Result:
    """Run the program."""
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_a_folder_is_judged(folder: Path) -> None:
    """A slow worker with its place and onset is found in the one job, nothing in the other, and all is well."""
    done = run(folder, "--json", folder / "score.json")
    assert done.exit_code == 0, done.output
    figures = json.loads((folder / "score.json").read_text())["figures"]
    (worker_fault,) = figures["causes"]
    assert worker_fault["cause"] == "worker-fault"
    assert (worker_fault["f1"], worker_fault["worker"]["share"], worker_fault["onset"]["exact"]) == (1.0, 1.0, 1.0)
    assert worker_fault["gain"]["mean"] < 0.01
    assert figures["false_alarms"] == {"n": 1, "hits": 0, "share": 0.0}
    assert "macro 1.000" in done.output


def test_rows_hold_truth_and_what_was_said(folder: Path) -> None:
    """Each row of the JSON has what is true, what was said with confidence, place, time and gain, and the paper's figures."""
    run(folder, "--json", folder / "score.json")
    faulty, healthy = json.loads((folder / "score.json").read_text())["rows"]
    assert faulty["truth"][0]["workers"] == faulty["said"][0]["workers"] == [[1, 0]]
    assert faulty["truth"][0]["onset_step"] == faulty["said"][0]["onset_step"] == faulty["steps"][3]
    assert faulty["said"][0]["confidence"] > 0.5
    assert faulty["m_w"] > 0.5
    assert (healthy["truth"], healthy["said"], healthy["verdict"]) == ([], [], "healthy")


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    """With one process or two the same seed gives the same bytes, and job i does not depend on how many there are."""
    options = ["--seed", 5, "--json"]
    one = run("--jobs", 3, "--workers", 1, *options, tmp_path / "one.json")
    two = run("--jobs", 3, "--workers", 2, *options, tmp_path / "two.json")
    run("--jobs", 2, *options, tmp_path / "fewer.json")
    assert one.exit_code == two.exit_code == 0, one.output
    assert one.output == two.output
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    rows = [json.loads((tmp_path / name).read_text())["rows"] for name in ("one.json", "fewer.json")]
    assert rows[0][:2] == rows[1]


def test_options_reach_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--noise` and `--no-evidence` are what jobs are drawn with; without them the generator's own defaults hold."""
    calls: list[dict[str, object]] = []

    def draw_job(seed: int, i: int, **options: object) -> None:
        calls.append({"seed": seed, "i": i} | options)
        raise UsageError("enough")

    monkeypatch.setattr(score, "draw_job", draw_job)
    run("--jobs", 1, "--seed", 4, "--noise", 0.5, 2, "--no-evidence")
    run("--jobs", 1)
    assert calls == [{"seed": 4, "i": 0, "noise": (0.5, 2.0), "evidence": False}, {"seed": 0, "i": 0}]


def test_healthy_jobs_are_those_of_the_others_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--healthy` takes so many jobs without a fault, each with the number that it has among all."""
    judged: list[int] = []
    monkeypatch.setattr(score, "draw_job", lambda _seed, i: (None, [] if i in (1, 4, 5) else ["fault"], []))
    monkeypatch.setattr(score, "judge_drawn", lambda _seed, i, _options: judged.append(i) or JudgedJob(str(i)))
    run("--jobs", 2, "--healthy")
    assert judged == [1, 4]


def test_a_job_that_fails_is_a_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of one job is counted and listed with its error, the others are judged, and the exit code is 5."""
    diagnose_job = pipeline.diagnose_job

    def crash(request: Request) -> object:
        if Path(request.source).name == "job-1.parquet":
            raise ZeroDivisionError("division\nby zero")
        return diagnose_job(request)

    monkeypatch.setattr(pipeline, "diagnose_job", crash)
    done = run(folder, "--json", folder / "score.json")
    assert done.exit_code == 5
    assert "job-0: ZeroDivisionError: division by zero" in done.output
    assert "1 failed" in done.output
    assert [row["error"] for row in json.loads((folder / "score.json").read_text())["rows"]] == [
        "",
        "ZeroDivisionError: division by zero",
    ]


def test_a_broken_file_is_a_row(folder: Path) -> None:
    """A truth that is no JSON, and a trace that is no Parquet, end in rows with errors and nothing else."""
    (folder / "job-0.truth.json").write_text("{")
    (folder / "job-1.parquet").write_bytes(b"PAR1")
    errors = [judge_file(folder / f"job-{i}.parquet").error for i in (0, 1)]
    assert all(errors)
    assert "JSONDecodeError" in errors[0]
    assert run(folder).exit_code == 5


def test_a_process_that_dies_is_a_row() -> None:
    """A job that takes its process with it ends in a row with an error, not in a traceback."""
    (row,) = score.run([functools.partial(os._exit, 1)], workers=2)
    assert row.job == "1"
    assert "BrokenProcessPool" in row.error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "expected a folder"),
        (["{folder}", "--jobs", "3"], "expected a folder"),
        (["{folder}", "--noise", "1", "2"], "go with --jobs"),
        (["{folder}", "--no-evidence"], "go with --jobs"),
        (["{folder}", "--healthy"], "go with --jobs"),
        (["--jobs", "3", "--healthy", "--cause", "worker-fault"], "a healthy job has no cause"),
        (["{empty}"], "no *.parquet"),
        (["{folder}", "--min-confidence", "2"], "2.0 is not in the range"),
    ],
)
def test_bad_usage(folder: Path, args: list[str], says: str) -> None:
    """What makes no sense ends with 2 and says so, before any job is touched."""
    (folder / "empty").mkdir()
    done = run(*(arg.format(folder=folder, empty=folder / "empty") for arg in args))
    assert done.exit_code == 2
    assert says in done.output


def test_the_worst_jobs_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--worst` lists what was judged wrong, one line a job, by what is said from the confidence asked for."""
    assert "Judged worst" not in run(folder, "--worst", 5).output
    done = run(folder, "--worst", 5, "--min-confidence", 1)
    assert done.output.splitlines()[-2] == "Judged worst"
    assert "WRONG: missed worker-fault" in done.output.splitlines()[-1]


def test_faults_of_one_cause_are_one() -> None:
    """Two faults of one cause are the larger one, in the places of both; without a gain after the others the one alone holds."""
    fault = {"cause": "a", "stages": [], "onset_step": None}
    faults = [
        fault | {"workers": [[0, 1]], "recoverable": 0.1, "recoverable_last": 0.1},
        fault | {"workers": [[1, 0]], "recoverable": 0.3},
    ]
    truth = {"job_id": "j", "spec": {"dp": 2, "pp": 2}, "faults": faults, "decoys": ["warm-up"]}
    row = read_truth(truth, [1, 2])
    assert row.truth == (TrueCause("a", ((1, 0), (0, 1)), (), None, 0.3, 0.3),)
    assert (row.job, row.dp, row.pp, row.steps, row.decoys) == ("j", 2, 2, (1, 2), ("warm-up",))


ROWS = [
    JudgedJob("a", 4, 2, (1, 2), truth=(TrueCause("worker-fault", ((0, 0),), (), 2, 0.1, 0.1),)),
    JudgedJob("b", 4, 2, (1, 2), said=(SaidCause("unknown", 0.5, None, 0.1),)),
]


def test_tables_are_aligned() -> None:
    """In plain text all lines of a table are as long as its head, up to blanks at the end."""
    text = table([["cause", "n"], ["network-fault", "7"], ["x", "1234"]])
    assert text == "cause             n\nnetwork-fault     7\nx              1234\n"


def test_tables_in_markdown() -> None:
    """`--markdown` writes the same cells as tables of Markdown, each with its rule below its head."""
    plain, marked = (render(measure(ROWS), markdown=markdown) for markdown in (False, True))
    assert "| worker-fault | 1 | 0 | 1 | 0 | - | 0.000 | 0.000 |" in marked
    assert marked.count("| --- |") == marked.count("**\n\n|") == 8
    words = [" ".join(text.replace("|", " ").replace("**", "").split()) for text in (plain, marked)]
    assert words[0] == " ".join(word for word in words[1].split() if word not in {"---", "--:"})


def test_every_figure_is_shown() -> None:
    """Healthy, unknown, missed and published figures stand in the page."""
    page = render(measure(ROWS))
    for words in (
        "2 jobs, 1 of them healthy",
        "1 of 1",
        "Published thresholds",
        "expected calibration error -",
        "nothing",
    ):
        assert words in page


def test_json_is_plain() -> None:
    """Rows and figures without a diagnosis are JSON without NaN."""
    written = json.loads(to_json(ROWS, measure(ROWS)), parse_constant=pytest.fail)
    assert written["rows"][1]["said"][0]["cause"] == "unknown"
    assert written["figures"]["macro_f1"] == 0.0
