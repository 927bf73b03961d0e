"""`diagnose LOG` and `diagnose TRACE --log LOG`, from files to reports."""

import io
import json
import os
import re
import threading
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report.schemas import make_schema
from diagnose.trace.load import parse_steps
from tests.trace.producers.megatron_lines import argument_lines, detector_line, noisy, run, timer_lines

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = make_schema("diagnosis")
TRACE = ROOT / "fixtures" / "worker-fault.parquet"


def run_main(*arguments: str | Path) -> int:
    """Run the command line."""
    return main([str(argument) for argument in arguments])


@pytest.fixture
def slow_log(tmp_path: Path) -> Path:
    """Write a log with an onset, a restart, timers and reports of the straggler detector."""
    sizes = {"world_size": 16, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 4}
    lines = argument_lines(**sizes)
    counted = [*range(1, 513), *range(501, 1001)]
    for i, line in enumerate(run(counted, noisy([(512, 1.4), (300, 1.4), (200, 1.9)]))):
        lines.append(line)
        if i % 10 == 0:
            slow = i >= 812
            rank_s = [0.4 + rank // 4 * 0.02 + (0.25 if rank == 5 and slow else 0.0) for rank in range(16)]
            lines += timer_lines("forward-compute", rank_s)
            lines.append(detector_line(slowest=5 if slow else i % 16, throttled=5 if slow else i % 16))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Write the log of the run that the slow steps of the trace are from: slow from 30 on, sound again from 300 on."""
    found = diagnose_job(Request(TRACE, steps=parse_steps("37-192")))
    slow_s = found.step_time.recorded
    usual_s = slow_s * (1 - found.causes[0].recoverable)
    path = tmp_path / "beside.log"
    path.write_text("\n".join(run(range(1, 401), noisy([(29, usual_s), (270, slow_s), (101, usual_s)]))))
    return path


def test_a_log_among_traces_does_not_hide_them(
    slow_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with traces and a log is a job with operations; a log that contradicts them is shown, and not believed."""
    folder = tmp_path / "job"
    folder.mkdir()
    rows = pq.read_table(TRACE)
    for dp in range(4):
        pq.write_table(rows.filter(pc.equal(rows["dp_rank"], dp)), folder / f"rank-{dp}.parquet")
    (folder / "train.log").write_bytes(slow_log.read_bytes())
    assert run_main(folder, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [cause["cause"] for cause in found["causes"]] == ["worker-fault"]
    assert found["job"]["ops"] == len(rows)
    assert found["log"]["file"].endswith("job/train.log")
    (warning,) = found["warnings"]
    assert warning.startswith("log and trace contradict each other")


def write_job(folder: Path) -> None:
    """Write the trace of the fixture, a file a dp rank."""
    folder.mkdir()
    rows = pq.read_table(TRACE)
    for dp in range(4):
        pq.write_table(rows.filter(pc.equal(rows["dp_rank"], dp)), folder / f"rank-{dp}.parquet")


def test_a_log_in_the_folder_is_the_log_beside(
    beside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies in the folder is joined as `--log` would; other nodes say the same again, and a log of another tool is told."""
    folder = tmp_path / "job"
    write_job(folder)
    steps = ("--steps", "37-192", "--format", "json")
    assert run_main(folder, "--log", beside, *steps) == 0
    expected = json.loads(capsys.readouterr().out)
    lines = beside.read_text().splitlines()
    (folder / "node-0.log").write_text("\n".join(lines))
    assert run_main(folder, *steps) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["log"].pop("file").endswith("job/node-0.log") and expected["log"].pop("file")
    assert found == expected
    assert found["causes"][0]["when"] == {
        "pattern": "transient",
        "onset_step": 30,
        "recovery_step": 300,
        "period_steps": None,
    }
    (folder / "node-1.log").write_text("\n".join(lines))
    (folder / "gpt.out").write_text("".join(f"iter {n}: loss 2.1, time 120.00ms, mfu 30.1%\n" for n in range(99)))
    assert run_main(folder, *steps) == 0
    found = json.loads(capsys.readouterr().out)
    (warning,) = found.pop("warnings")
    assert "gpt.out is not used: a log of nanoGPT" in warning
    assert found["log"].pop("file").endswith("job/node-0.log") and expected.pop("warnings") == []
    assert found == expected


def test_attempts_in_a_folder_follow_in_order_of_time(
    beside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs of attempts are one run whatever they are called."""
    folder = tmp_path / "job"
    write_job(folder)
    lines = beside.read_text().splitlines()
    (folder / "b.log").write_text("\n".join(lines[:150]))
    (folder / "a.log").write_text("\n".join(lines[150:]))
    assert run_main(folder, "--steps", "37-192", "--format", "json") == 0
    log = json.loads(capsys.readouterr().out)["log"]
    assert (log["first_iteration"], log["last_iteration"], log["restarts"]) == (1, 400, [])
    assert log["file"].endswith("job/{b.log, a.log}")


def test_log_alone(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log alone gives since when, restarts, and the rank; what it cannot tell is null, and every cause is unchecked."""
    assert run_main(slow_log, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert found["verdict"] == "straggling"
    (cause,) = found["causes"]
    assert (cause["cause"], cause["kind"]) == ("worker-fault", "high")
    assert [fix["predicted_step_time"] for fix in cause["fixes"]] == [None] * len(cause["fixes"])
    assert cause["when"]["onset_step"] == 801
    assert cause["where"]["workers"] == [{"dp": 1, "pp": 1, "rank": 5}]
    assert [found[key] for key in ("slowdown", "waste", "ledger", "plan")] == [None] * 4
    assert (found["step_time"]["simulated"], found["step_time"]["clean"]) == (None, None)
    assert found["what_if"]["by_optype"] == {}
    assert set(found["features"].values()) == {None}
    assert len(found["not_checked"]) == 9
    assert found["job"]["dp_size"] == 4
    (restart,) = found["log"]["restarts"]
    assert (restart["after"], restart["resumed_at"]) == (512, 501)
    assert restart["lost_s"] == pytest.approx(1.4, abs=0.1)
    assert restart["again_s"] == pytest.approx(12 * 1.4, rel=0.02)
    assert {slow["measure"] for slow in found["log"]["slow_ranks"]} == {"forward-compute", "Rtt", "Clk", "Tmp"}


def test_flat_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log without a change of pace is inconclusive, and of a job whose layout it does not tell nothing is made up."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(run(range(1, 201), noisy([(200, 1.4)]))))
    assert run_main(path, "--format", "json", "--fail-on", "straggling") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert (found["verdict"], found["causes"]) == ("inconclusive", [])
    assert {found["job"][key] for key in ("gpus", "world_size", "dp_size", "pp_size")} == {None}
    assert found["gpu_hours"] == {"analysed": None, "wasted": None}
    assert found["job"]["steps"] == 200


def test_steps_of_a_log(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--steps` keeps some iterations of a log, and refuses those that it does not have; metadata is not used, and that is said."""
    meta = slow_log.with_name("m.yaml")
    meta.write_text("owner: me\n")
    assert run_main(slow_log, "--format", "json", "--steps", "1-700", "--meta", meta) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["log"]["last_iteration"]) == ("inconclusive", 700)
    assert "is not used" in found["warnings"][0]
    assert run_main(slow_log, "--steps", "5000-6000") == 3
    assert "expected some of 1..1000" in capsys.readouterr().err


@pytest.mark.parametrize("output_format", ["terminal", "markdown", "junit"])
def test_reports_of_a_log(slow_log: Path, output_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every report of a log says since when, which rank, and that the causes are not checked."""
    assert run_main(slow_log, "--format", output_format, "-v") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "from step 801 on" in text
    assert "forward-compute of rank 5 takes 1.6" in text
    assert "nothing in it says what time is lost to" in text
    assert " nan" not in text


def test_first_page_of_a_log(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page that one sees first says how much slower it got, since when, and which rank is late."""
    assert run_main(slow_log, "--width", "80") == 0
    page = capsys.readouterr().out
    assert len(page.splitlines()) <= 22
    text = " ".join(page.split())
    assert "% slower: " in text and " otherwise " in text and "from step 801 on" in text
    assert "forward-compute of rank 5 takes 1.6" in text and " nan" not in text


def test_same_bytes(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same log gives the same bytes."""
    outputs = []
    for _ in range(2):
        assert run_main(slow_log, "--format", "json") == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_log_beside_a_trace(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log gives a cause that the trace has in all steps its onset before them, and its recovery after."""
    assert run_main(TRACE, "--steps", "37-192", "--log", beside, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert found["causes"][0]["cause"] == "worker-fault"
    assert found["causes"][0]["when"] == {
        "pattern": "transient",
        "onset_step": 30,
        "recovery_step": 300,
        "period_steps": None,
    }
    assert found["causes"][0]["evidence"][-1]["id"] == "worker-fault/log-iteration-30"
    assert found["log"]["step_time"]["traced"] == pytest.approx(found["step_time"]["recorded"], rel=0.02)
    assert run_main(TRACE, "--steps", "37-192", "--log", beside, "--width", "100", "-v") == 0
    page = capsys.readouterr().out
    assert "When         from step 30 until step 300" in page
    assert "Training log" in page


def test_log_of_another_run(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that contradicts the trace changes nothing but a warning."""
    assert run_main(TRACE, "--format", "json") == 0
    without = json.loads(capsys.readouterr().out)
    assert run_main(TRACE, "--log", slow_log, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["causes"] == without["causes"]
    assert "contradict each other" in found["warnings"][-1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([TRACE, "--log", "/nowhere"], 2, "/nowhere does not exist"),
        ([TRACE, TRACE, "--log", TRACE], 2, "--log is of one run"),
        ([TRACE, "--log", TRACE], 3, "is a trace (Parquet) and no training log"),
    ],
)
def test_refused(arguments: list[str | Path], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that is missing, one for several jobs, and a file that is no log are refused in one line."""
    assert run_main(*arguments) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_page_of_a_log(slow_log: Path, tmp_path: Path) -> None:
    """The page of a log alone has the picture of its iterations, the ledger as its table, and nothing of replays."""
    page = tmp_path / "page.html"
    assert run_main(slow_log, "--html", page) == 0
    text = page.read_text()
    assert 'id="log"' in text and "slow windows" in text and "worker-fault" in text
    assert "As in arXiv" not in text and "nan" not in text.partition("<script")[0].split()
    assert run_main(slow_log, "--perfetto", tmp_path / "t.json.gz") == 3


def test_first_page_of_a_period(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first page of a log whose every eighth iteration is slow says so, with its cost, and asks what has that period."""
    step_s = noisy([(1000, 0.9)])
    step_s[7::8] = [7.9] * 125
    path = tmp_path / "train.log"
    path.write_text("\n".join(run(range(1, 1001), step_s)))
    assert run_main(path, "--width", "80") == 0
    page = capsys.readouterr().out
    assert len(page.splitlines()) <= 22
    assert all(len(line) <= 80 for line in page.splitlines())
    text = " ".join(page.split())
    assert (
        "every 8 iterations one is slow" in text
        and "49% of all time" in text
        and "what does the job do every 8 steps?" in text
    )
    assert "slow iterations at a period 49%" in text


def test_a_steady_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a run with nothing but noise is steady, and the one line of its summary says so."""
    path = tmp_path / "train.log"
    path.write_text("\n".join(run(range(1, 301), noisy([(300, 1.4)]))))
    assert run_main(path, "--format", "json") == 0
    assert "steady: nothing stands out in the log" in json.loads(capsys.readouterr().out)["summary"]


def first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], paces: list[tuple[int, float]], end: str = ""
) -> str:
    """Write a log of so many iterations at each pace, and give its page in one line."""
    n = sum(count for count, _ in paces)
    path = tmp_path / "train.log"
    path.write_text("\n".join([*run(range(1, n + 1), noisy(paces)), end]))
    assert main([str(path), "--width", "200"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_is_over_is_said_as_past(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A window that has ended is no pace of now, and nothing comes back of it."""
    page = first_line(tmp_path, capsys, [(150, 2.0), (100, 2.6), (150, 2.0)])
    assert "was 30% slower from step 151 until step 251" in page
    assert re.search(r"Do nothing now, it is over: up to [67]\.\d% without it", page)
    assert "GPU hours are not known" in page and "a day" not in page
    page = first_line(tmp_path, capsys, [(200, 2.0), (200, 2.6)])
    assert "STRAGGLING 30% slower: 2.59 s an iteration" in page
    assert "if it were gone" in page


def test_the_log_beside_is_piped_in(beside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--log <(kubectl logs pod)` tells what the file tells, but for its name."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(beside.read_bytes(),))
    writer.start()
    found = []
    for log in (pipe, beside):
        assert run_main(TRACE, "--log", log, "--steps", "37-192", "--format", "json") == 0
        found.append(json.loads(capsys.readouterr().out))
        assert found[-1]["log"].pop("file") == str(log)
    writer.join()
    assert found[0] == found[1]


def test_what_is_over_makes_no_ticket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that got slower makes one; grown on, and sound again for long, the same log closes it, and the fleet has no fault."""
    store, log = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "train.log"
    sizes = argument_lines(world_size=16, tensor_model_parallel_size=1, pipeline_model_parallel_size=4)
    states, pages = [], []
    for paces in ([(150, 2.0), (100, 2.6)], [(150, 2.0), (100, 2.6), (150, 2.0)]):
        log.write_text("\n".join([*sizes, *run(range(1, sum(n for n, _ in paces) + 1), noisy(paces))]))
        assert run_main("triage", log, "--store", store) == 0
        capsys.readouterr()
        assert run_main(log) == 0
        pages.append(capsys.readouterr().out)
        assert run_main("tickets", "--store", store, "--all") == 0
        states.append([json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()])
        assert run_main("fleet", "--store", store, "--format", "json") == 0
        found = json.loads(capsys.readouterr().out)
        states.append([one["state"] for one in found["night"]["findings"]])
    assert states[:2] == [["open"], ["new"]] and states[3] == []
    assert states[2] in ([], ["fixed"])
    assert " a day" in pages[0] and " a day" not in pages[1] and "over since step 251" in pages[1]


def test_a_single_slow_iteration_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where one iteration costs a quarter of the run, it is said which."""
    page = first_line(tmp_path, capsys, [(221, 2.0), (1, 300.0), (178, 2.0)])
    assert "one iteration is slow" in page and "now and then" not in page
    assert re.search(r"Why iteration 222 takes 29\d s more: 27% of all time", page)


def test_steady_is_said_of_what_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines tell nothing, iterations that vary are not steady, and an error at the end is said first."""
    assert "only 2 lines of step times" in first_line(tmp_path, capsys, [(2, 2.0)])
    assert "steady: nothing stands out" in first_line(tmp_path, capsys, [(400, 2.0)])
    error = "Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: it broke\n"
    page = first_line(tmp_path, capsys, [(400, 2.0)], error)
    assert "INCONCLUSIVE ended with an error after iteration 400; steady until then" in page
    assert "End an error after iteration 400: RuntimeError: it broke" in page
    path = tmp_path / "varies.log"
    path.write_text("\n".join(run(range(1, 401), np.random.default_rng(5).normal(2.0, 0.3, 400).tolist())))
    assert main([str(path), "--width", "200"]) == 0
    assert "nothing stands out in the log, though iterations vary by 1" in capsys.readouterr().out


def test_restarts_that_took_much_are_said_first(slow_log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that stood still for half of its time says so beside its pace, and one that did not, does not."""
    assert run_main(slow_log) == 0
    assert "of all time" not in capsys.readouterr().out.partition("Cause")[0]
    lines = slow_log.read_text().splitlines()
    _, at = (i for i, line in enumerate(lines) if re.search(r"iteration +501/", line))
    later = [
        re.sub(r"\[(\d{4})-(\d\d)-(\d\d) ", lambda day: f"[{day[1]}-{day[2]}-{int(day[3]) + 1:02d} ", line)
        for line in lines[at:]
    ]
    slow_log.write_text("\n".join([*lines[:at], *later]))
    assert run_main(slow_log, "--width", "200") == 0
    assert re.search(r"slower: .*; restarts took \d\d% of all time", " ".join(capsys.readouterr().out.split()))


def test_two_logs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs that do not say on how many GPUs they ran are compared, with that doubt; one of rates alone is refused."""
    for name, pace_s in (("a.log", 2.0), ("b.log", 2.6)):
        (tmp_path / name).write_text("\n".join(run(range(1, 401), noisy([(400, pace_s)]))))
    assert run_main("compare", tmp_path / "a.log", tmp_path / "b.log") == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "slower: 2.00 s -> 2.60 s a step, 30% longer" in page
    assert "nothing says on how many GPUs both jobs ran" in page
    assert "no figure of it is to be trusted" not in page
    (tmp_path / "rates.csv").write_text("step,tps\n" + "".join(f"{n},5000\n" for n in range(1, 41)))
    assert run_main("compare", tmp_path / "a.log", tmp_path / "rates.csv") == 3
    assert "is a log of rates alone" in capsys.readouterr().err


def test_what_a_folder_of_logs_passes_over_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two logs of other writers the first page says which is not used; the HTML page claims no sizes that nobody told."""
    (tmp_path / "train.log").write_text("\n".join(run(range(1, 401), noisy([(400, 2.0)]))))
    lines = [f"iter {n}: loss 3.2, time 250.{n % 10}ms, mfu 30.00%" for n in range(300)]
    (tmp_path / "nano.log").write_text("\n".join(lines))
    assert run_main(tmp_path, "--html", tmp_path.with_suffix(".html")) == 0
    assert "Note 300 step lines of nanoGPT in it are passed over" in " ".join(capsys.readouterr().out.split())
    assert "world_size" not in tmp_path.with_suffix(".html").read_text()


def test_a_log_is_piped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A log from standard input, or from a pipe with a path, tells what it tells as a file, and no folder of ours names it."""
    content = "\n".join(run(range(1, 401), noisy([(200, 2.0), (200, 2.6)]))).encode()
    path = tmp_path / "train.log"
    path.write_bytes(content)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = {}
    for source in (path, "-", pipe):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        writer = threading.Thread(target=pipe.write_bytes, args=(content,)) if source == pipe else None
        if writer:
            writer.start()
        assert run_main(source, "--format", "json") == 0
        if writer:
            writer.join()
        document = json.loads(capsys.readouterr().out)
        found[source] = document["causes"][0]["when"], document["log"]["step_time"]
        name = "standard input" if source == "-" else f"{tmp_path.name}/{Path(source).name}"
        assert document["job"]["name"] == name
    assert found["-"] == found[pipe] == found[path]
