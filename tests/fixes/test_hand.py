"""Fixes and scalings given by hand: what they read as, what they cost, and what is refused before any work."""

import json
from pathlib import Path

import numpy as np
import pytest

from diagnose.cli.main import main
from diagnose.errors import UsageError
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes.hand import parse_fix, parse_set, price_by_hand
from diagnose.model.change import Scale
from diagnose.model.optype import Op
from diagnose.model.remedy import FaultLocation
from tests.fixes.cases import analysis

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
JOB = str(FIXTURES / "worker-fault.parquet")
SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=12, seed=73)
SLOW = WorkerFault(places=((1, 2),), slowdown=2.0)


def test_a_fix_with_settings() -> None:
    """Settings are keys and values; a value may be a list."""
    assert parse_fix("replace-worker:dp=0,pp=3").settings == {"dp": "0", "pp": "3"}
    assert parse_fix("planned-gc").settings == {}
    assert parse_fix(" planned-gc : every = 20 ").settings == {"every": "20"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("replace-wroker", "did you mean 'replace-worker'"),
        ("planned-gc:evry=3", "no setting 'evry'; it has: every"),
        ("planned-gc:200", "expected NAME:key=value"),
        ("planned-gc:every=", "expected NAME:key=value"),
        ("expandable-segments:a=1", "it has: none"),
        ("", "there is no fix ''"),
    ],
)
def test_bad_fixes(text: str, said: str) -> None:
    """What is no fix and no setting is refused, with what was expected."""
    with pytest.raises(UsageError, match=said):
        parse_fix(text)


def test_a_scaling_is_where_it_says() -> None:
    """Stage, dp rank and steps are labels, lists and ranges of them."""
    job = analysis(SPEC)
    scale = parse_set("forward-compute,optimizer stage=3 dp=0,2-3 x0.8", job)
    assert scale.ops == {int(Op.FORWARD), int(Op.OPTIMIZER)}
    expected = np.ones((4, 12, 4))
    expected[3][:, [0, 2, 3]] = 0.8
    np.testing.assert_array_equal(scale.factor, expected)
    first = int(job.breakdown.steps[0])
    assert (parse_set(f"compute step={first} x2", job).factor[:, 0] == 2.0).all()
    assert (parse_set(f"compute step={first} x2", job).factor[:, 1:] == 1.0).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("forward-compute", "expected operation types, places and a factor"),
        ("forward-compute stage=3 0.8", "expected operation types, places and a factor"),
        ("forward-compute stage=3 x-1", "expected operation types, places and a factor"),
        ("forward-compute stage=3 xinf", "expected operation types, places and a factor"),
        ("backwards x2", "no operation type 'backwards'"),
        ("gc x2", "no operation type 'gc'"),
        ("compute host=3 x2", "'host=3' is no place"),
        ("compute stage=4 x2", "the job has none of 4; it has 0 to 3"),
        ("compute stage=a x2", "no number and no range"),
    ],
)
def test_bad_scalings(text: str, said: str) -> None:
    """What cannot be read, or is not there, is refused."""
    with pytest.raises(UsageError, match=said):
        parse_set(text, analysis(SPEC))


def test_scaling_the_slow_worker_down_mends_it() -> None:
    """Half the time for the worker that takes twice as long is what replacing it gives."""
    job = analysis(SPEC, SLOW)
    halved = parse_set("compute,optimizer stage=2 dp=1 x0.5", job)
    replaced = price_by_hand(job, [(parse_fix("replace-worker"), FaultLocation())], [])
    scaled = price_by_hand(job, [], [("halved", halved)])
    assert scaled.predicted_s == pytest.approx(replaced.predicted_s, rel=0.01)
    assert scaled.speedup is not None
    assert scaled.speedup > 1.3


def test_who_is_slow_in_its_optimizers_alone_can_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A real rank whose optimizers took 80 ms longer, in steps of 543 ms."""
    job = Path(__file__).resolve().parents[1] / "recorded" / "jobs" / "opt-f4.parquet"
    assert main(["what-if", str(job), "--fix", "replace-worker"]) == 0
    out = capsys.readouterr().out
    assert "replace the worker at dp 1 stage 0" in out
    assert "steps 14% shorter" in out


def test_scaling_everything_scales_the_job() -> None:
    """All own times and delays twice as long make a step twice as long, but for the launch delays, which stay."""
    job = analysis(SPEC)
    everything = Scale(frozenset(int(op) for op in Op), np.array([[[2.0]]]))
    found = price_by_hand(job, [], [("all", everything)])
    assert found.predicted_s == pytest.approx(2.0 * found.recorded_s, rel=0.06)
    assert found.predicted_s < 2.0 * found.recorded_s


def test_one_after_the_other() -> None:
    """Each entry counts after those before it; a refused one changes nothing; the last is the sum of all."""
    job = analysis(SPEC, SLOW)
    asked = [
        (parse_fix(text), FaultLocation())
        for text in ("replace-worker", "raise-connections", "replace-worker:dp=1,pp=2")
    ]
    found = price_by_hand(job, asked, [])
    first, refused, again = found.asked
    assert refused.fix is None
    assert refused.refused
    assert first.after_step_time == again.after_step_time == found.predicted_s
    assert again.gain == 0.0


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints before, each fix, and after; the JSON says the same."""
    asked = ["what-if", JOB, "--fix", "replace-worker", "--set", "forward-compute stage=1 x0.9"]
    assert main([*asked, "--width", "90"]) == 0
    page, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, page.splitlines())) <= 90
    for text in ("as recorded", "replace the worker at dp 1 stage 0", "a step with all of it", "after those before it"):
        assert text in page
    assert main([*asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "diagnose-what-if/1"
    assert found["predicted_speedup"] == pytest.approx(found["recorded_step_time"] / found["predicted_step_time"])
    assert [one["text"] for one in found["asked"]] == ["replace-worker", "forward-compute stage=1 x0.9"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to price"),
        (["--fix", "planned"], "did you mean 'planned-gc'"),
        (["--fix", "replace-worker:dp=99"], "there is no dp 99"),
        (["--set", "compute stage=77 x2"], "the job has none of 77"),
    ],
)
def test_bad_usage(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad usage ends in one line and exit code 2."""
    assert main(["what-if", JOB, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_the_list_of_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose fixes` names every fix with its settings."""
    assert main(["fixes"]) == 0
    out = capsys.readouterr().out
    assert "replace-worker: " in out
    assert "    every: " in out


def test_timelines_of_fixes_given_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--perfetto` draws the step as it would be with these fixes, under their name."""
    file = tmp_path / "timelines.json"
    assert main(["what-if", JOB, "--fix", "replace-worker", "--perfetto", str(file)]) == 0
    capsys.readouterr()
    assert "the fixes given by hand" in file.read_text()
    assert main(["what-if", JOB, "--fix", "replace-worker", "--perfetto", JOB]) == 2
    assert "is the trace" in capsys.readouterr().err
