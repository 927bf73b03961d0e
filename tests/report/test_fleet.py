"""The fleet as a page of text and as JSON. UPDATE_GOLDEN=1 writes the golden files anew."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len

from diagnose.fleet.measure import Asked, measure_fleet
from diagnose.model.fleet import Fleet, FleetCause
from diagnose.model.place import Where, Worker
from diagnose.report.fleet import render, render_json, say_worst
from diagnose.report.schemas import make_schema
from tests.fleet.jobs import DAY_S, cause, failed, job
from tests.report.hostile import HOSTILE

GOLDEN = Path(__file__).parent / "golden_fleet"
SCHEMA = make_schema("fleet")
UNTIL_S = 1_772_334_000.0


def small() -> Fleet:
    """Make a fleet of seven jobs: a host that is at fault in three of them, uneven stages, one healthy, two failed."""
    hosts = tuple(f"gpu-{n:02}" for n in range(16))
    stage = FleetCause("stage-imbalance", "uneven stages", Where(stages=(3,)), 0.8, 0.12, "job owner", "stage")
    jobs = [
        job(f"/prod/{n}", cause(host="gpu-03", dp=n, fingerprint=f"bad-{n}"), owner="alice", wasted=30.0 + n, hosts=hosts,
            when_s=UNTIL_S - n * DAY_S, diagnosed_at_s=UNTIL_S - n * DAY_S)
        for n in range(3)
    ]  # fmt: skip
    jobs += [
        job("/prod/uneven", stage, owner="bob", wasted=12.5, n_gpus=512, when_s=UNTIL_S, hours_recoverable=None),
        job("/research/healthy", wasted=0.5, when_s=UNTIL_S - DAY_S, slowdown=1.02),
        failed("/prod/broken", "input", "/prod/broken: it is no Parquet file; save it again"),
        failed("/prod/slow", "timeout", "it took more than 600 s; raise --timeout"),
    ]
    return measure_fleet(jobs, Asked(), store="sqlite:///fleet.db")


@pytest.mark.parametrize("width", [40, 80, 160])
def test_golden(width: int) -> None:
    """The page is the one that was last read and agreed to."""
    path = GOLDEN / f"{width}.txt"
    report = render(small(), width=width, color=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(report, encoding="utf-8")
    assert report == path.read_text(encoding="utf-8"), "run with UPDATE_GOLDEN=1 and read the difference"


def test_first_line_is_the_worst_waste() -> None:
    """The first line says which job lost most, how much comes back, why and where."""
    line = render(small(), width=200, color=False).splitlines()[0]
    assert line == (
        "worst: prod/2 (alice) lost 32.0 of 100 GPU hours, 5.0 recoverable: worker-fault at dp 2, stage 0 (gpu-03)"
    )


@pytest.mark.parametrize("width", [40, 72, 100, 200])
def test_lines_fit(width: int) -> None:
    """No line is wider than asked for."""
    assert max(cell_len(line) for line in render(small(), width=width, color=False).splitlines()) <= width


def test_empty() -> None:
    """No jobs, jobs that all failed, and jobs that lose nothing are said plainly."""
    assert say_worst(measure_fleet([], Asked())) == "no jobs"
    assert (
        say_worst(measure_fleet([failed("/a")], Asked())) == "no job to speak of: none of 1 job has figures that count"
    )
    assert say_worst(measure_fleet([job("/a", wasted=0.0)], Asked())) == "no GPU hours lost in 1 job"
    for jobs in ([], [failed("/a")], [job("/a", wasted=0.0)], [job("/a", wasted=None, hours_analysed=None)]):
        fleet = measure_fleet(jobs, Asked())
        assert render(fleet, width=80, color=False)
        jsonschema.validate(json.loads(render_json(fleet)), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_json_validates_and_is_whole() -> None:
    """The JSON is as its schema says, lists every job, and its sums are those of its lists."""
    found = json.loads(render_json(small()))
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert len(found["jobs"]) == 5 and len(found["not_analysed"]) == 2
    assert sum(one["gpu_hours"]["wasted"] for one in found["jobs"]) == found["totals"]["hours_wasted"] == 106.0
    assert [entry["kind"] for entry in found["not_analysed"]] == ["input", "timeout"]
    assert len(json.loads(render_json(small(), limit=2))["jobs"]) == 2


def test_schema_is_strict() -> None:
    """The schema refuses what is none."""
    found = json.loads(render_json(small()))
    for change in ({"schema": "diagnose/1"}, {"jobs": [{}]}, {"night": {}}, {"totals": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(found | change, SCHEMA, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("color", [False, True])
def test_same_bytes(color: bool) -> None:
    """The same fleet gives the same page."""
    assert render(small(), width=100, color=color) == render(small(), width=100, color=color)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str) -> None:
    """Whatever owners, hosts and reasons hold, no control character reaches the terminal."""
    text = HOSTILE[name]
    found = FleetCause(text, text, Where(workers=(Worker(0, 0, host=text),), hosts=(text,)), 1.0, 0.1, "platform", text)
    jobs = [
        job(f"/{n}{text}", found, owner=text, framework=text, gpu_type=text, folder=text, job_id=text, hosts=(text, "b"),
            when_s=UNTIL_S - n * DAY_S, diagnosed_at_s=UNTIL_S)
        for n in range(3)
    ]  # fmt: skip
    fleet = measure_fleet([*jobs, failed(text, "input", text)], Asked(said={"owner": text}), store=text)
    page = render(fleet, width=100, color=False)
    assert all(char.isprintable() or char == "\n" for char in page)
    assert len(page) < 60_000
    json.loads(render_json(fleet))
