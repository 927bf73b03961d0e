"""The timelines for Perfetto: their numbers are those of the trace and of the JSON, and Perfetto's importer would take all of them.

Perfetto's own trace processor is downloaded by its package when it is first run, which no test may do. Where one is installed
(`trace_processor_shell` on the path, or named by PERFETTO_TRACE_PROCESSOR) it is asked; everywhere else `import_events` does what
its importer of JSON does with slices, flows and counters (google/perfetto, src/trace_processor/importers), and what that would
drop is a fault.
"""

import dataclasses
import gzip
import json
import math
import os
import shutil
import subprocess
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec.structs
import numpy as np
import pytest

from diagnose.cli.main import main
from diagnose.errors import UsageError
from diagnose.faults.spec import JobSpec
from diagnose.model.analysis import ReportData
from diagnose.model.change import Reschedule
from diagnose.model.optype import NAMES, Op
from diagnose.model.request import Request
from diagnose.pipeline import prepare_report
from diagnose.report import json_lines
from diagnose.report.perfetto import AppliedFixes, PerfettoFile, render
from diagnose.report.perfetto_choice import choose_dp, choose_steps
from diagnose.report.perfetto_events import micros
from diagnose.whatif.clocks import Clocks, correct_clocks
from tests.jobs import random_job, random_shape, to_file
from tests.judge.cases import make, measured_file

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = sorted((ROOT / "fixtures").glob("*.parquet"))
KINDS = ("recorded", "clean", "fixed", "ideal")
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\u2066\n" + "x" * 10_000
TIME = {"type": "number", "minimum": 0}
NUMBER = {"type": "integer", "minimum": 1}
NAME = {"type": "string", "minLength": 1, "maxLength": 2500}
COMMON = {"pid": NUMBER, "name": NAME}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit", "otherData"],
    "properties": {"displayTimeUnit": {"enum": ["ms", "ns"]}, "traceEvents": {"type": "array", "items": {"oneOf": [
        {
            "properties": COMMON | {
                "ph": {"const": "X"}, "tid": NUMBER, "ts": TIME, "dur": TIME, "cat": NAME, "args": {"type": "object"},
            },
            "required": ["ph", "pid", "tid", "ts", "dur", "name", "cat"], "additionalProperties": False,
        },
        {
            "properties": COMMON | {
                "ph": {"enum": ["s", "f"]}, "tid": NUMBER, "ts": TIME, "cat": NAME, "id": NUMBER, "bp": {"const": "e"},
            },
            "required": ["ph", "pid", "tid", "ts", "name", "cat", "id"], "additionalProperties": False,
        },
        {
            "properties": COMMON | {
                "ph": {"const": "C"}, "ts": TIME,
                "args": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}},
            },
            "required": ["ph", "pid", "ts", "name", "args"], "additionalProperties": False,
        },
        {
            "properties": COMMON | {
                "ph": {"const": "M"}, "tid": NUMBER, "args": {"type": "object"},
                "name": {"enum": ["process_name", "process_sort_index", "thread_name", "thread_sort_index"]},
            },
            "required": ["ph", "pid", "name", "args"], "additionalProperties": False,
        },
    ]}}},
}  # fmt: skip


@dataclasses.dataclass
class Imported:
    """What Perfetto would make of a file; times in nanoseconds."""

    slices: list[dict[str, Any]]
    flows: list[tuple[dict[str, Any], dict[str, Any]]]
    counters: dict[tuple[str, str], list[tuple[int, float]]]

    def of(self, kind: str, dp: int) -> list[dict[str, Any]]:
        """Give the slices of one dp rank of one kind of timeline."""
        return [s for s in self.slices if s["kind"] == kind and s["dp"] == dp]


def to_ns(us: float) -> int:
    """Cut off as the importer of some versions does."""
    return int(us * 1000.0)


def import_events(content: bytes) -> Imported:
    """Read a file as Perfetto's trace processor does; fail at everything that it would drop."""
    text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    assert text.startswith(b'{"traceEvents":[\n{')
    assert text.isascii()
    found = json.loads(text)
    events = found["traceEvents"]
    jsonschema.Draft202012Validator(SCHEMA).validate(found | {"traceEvents": events[:400] + events[-100:]})
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    homes = {e["tid"]: e["pid"] for e in events if e["name"] == "thread_name"}
    timed = sorted((e for e in events if e["ph"] != "M"), key=lambda e: to_ns(e["ts"]))
    stacks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    open_flows: dict[int, dict[str, Any]] = {}
    taken = Imported([], [], defaultdict(list))
    for event in timed:
        at, process = to_ns(event["ts"]), processes[event["pid"]]
        if event["ph"] == "C":
            for key, value in event["args"].items():
                assert math.isfinite(value)
                taken.counters[process, f"{event['name']} {key}"].append((at, value))
            continue
        assert homes[event["tid"]] == event["pid"]
        assert event["tid"] not in processes
        stack = stacks[event["tid"]]
        if event["ph"] == "X":
            end = at + to_ns(event["dur"])
            while stack and stack[-1]["end"] <= at:
                stack.pop()
            assert not stack or end <= stack[-1]["end"], f"dropped: {event} crosses {stack[-1]}"
            kind, _, rest = process.partition(":")
            made = {
                "name": event["name"], "cat": event["cat"], "start": at, "end": end, "args": event.get("args", {}),
                "kind": kind.split(" ")[0], "dp": int(rest.split()[1]) if rest else None,
                "thread": threads[event["tid"]], "depth": len(stack), "process": process,
            }  # fmt: skip
            stack.append(made)
            taken.slices.append(made)
        elif event["ph"] == "s":
            assert event["id"] not in open_flows
            open_flows[event["id"]] = stack[-1]
        else:
            assert event["bp"] == "e"
            sender, receiver = open_flows.pop(event["id"]), stack[-1]
            assert sender["start"] <= receiver["start"], "the arrow would be turned round"
            taken.flows.append((sender, receiver))
    assert not open_flows
    return taken


@cache
def scene_of(path: Path) -> ReportData:
    """Diagnose a file, once."""
    return prepare_report(Request(path))


@cache
def picture_of(path: Path) -> PerfettoFile:
    """Draw a file with all defaults, once."""
    return render(scene_of(path))


@cache
def taken_of(path: Path) -> Imported:
    """Draw a file, and read it as Perfetto does, once."""
    return import_events(picture_of(path).content)


def begins(taken: Imported) -> dict[int, int]:
    """Say where each drawn step begins on the axis."""
    return {s["args"]["step"]: s["start"] for s in taken.slices if s["cat"] == "step"}


def length(one: dict[str, Any]) -> float:
    """Give the length of an operation in seconds, with what was cut off because clocks err."""
    return (one["end"] - one["start"]) / 1e9 + one["args"].get("drawn_shorter_by_ms", 0.0) / 1e3


def operations(slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what is drawn beside or inside operations."""
    return [s for s in slices if s["cat"] in NAMES.values()]


def stage_of(one: dict[str, Any]) -> int:
    """Read the stage of a slice from its thread."""
    return int(one["thread"].split()[1])


def assert_equals_trace(data: ReportData, taken: Imported, *, clocks: Clocks | None = None) -> None:
    """Check each recorded slice against the row of the trace, on one clock where those of the workers differ."""
    at = begins(taken)
    picture_dp = {s["dp"] for s in taken.slices if s["dp"] is not None}
    labels = data.diagnosis.dp_labels.tolist()
    for recorded in data.analysis.trace.blocks:
        block = recorded if clocks is None else correct_clocks(recorded, clocks)
        for i, step in enumerate(block.steps.tolist()):
            if step not in at:
                continue
            for dp in picture_dp:
                start_s, end_s = (values[:, i, labels.index(dp)] for values in (block.start_s, block.end_s))
                there = np.isfinite(start_s)
                if block.filled is not None:
                    there &= ~block.filled[:, i, labels.index(dp)]
                rows = sorted(
                    (NAMES[Op(int(op))], int(data.diagnosis.stage_labels[int(stage)]), a, b - a)
                    for op, stage, a, b in np.column_stack(
                        [values[there] for values in (block.nodes.op, block.nodes.stage, start_s, end_s)]
                    ).tolist()
                )  # fmt: skip
                drawn = sorted(
                    (s["cat"], stage_of(s), (s["start"] - at[step]) / 1e9, length(s))
                    for s in operations(taken.of("recorded", dp))
                    if s["args"]["step"] == step and s["cat"] != "evidence"
                )
                assert [row[:2] for row in drawn] == [row[:2] for row in rows]
                np.testing.assert_allclose([row[2:] for row in drawn], [row[2:] for row in rows], atol=2.1e-9)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_what_was_recorded_is_drawn(path: Path) -> None:
    """Slices of `recorded` are the rows of the trace, to the nanosecond, all of the chosen steps and ranks and no others."""
    data, picture = scene_of(path), picture_of(path)
    assert len(picture.choice.steps) == 2
    assert not picture.warnings
    assert_equals_trace(data, taken_of(path))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_steps_end_as_the_replay_says(path: Path) -> None:
    """Each timeline ends when the replay does, and recorded and ideal step times and slowdowns are those of the JSON."""
    data, taken = scene_of(path), taken_of(path)
    w = data.diagnosis.what_if
    by_step = json.loads(json_lines.render(data.diagnosis))["what_if"]["by_step"]
    everyone = np.arange(data.analysis.trace.n_dp)
    for one in [s for s in taken.slices if s["cat"] == "step"]:
        step, args = one["args"]["step"], one["args"]
        at = int(np.flatnonzero(w.steps == step)[0])
        assert args["recorded_s"] == pytest.approx(w.recorded_s[at], rel=1e-9)
        assert args["ideal_s"] == pytest.approx(w.ideal_s[at], rel=1e-9)
        assert args["slowdown"] == by_step[str(step)]
        assert args["clean_s"] == data.analysis.timelines.clean(step, everyone).step_s
        for kind in KINDS:
            drawn = [s for s in taken.slices if s["kind"] == kind and s["args"].get("step") == step]
            if drawn:
                last = max(s["end"] for s in drawn if s["cat"] not in ("evidence", "stall"))
                assert (last - one["start"]) / 1e9 <= args[f"{kind}_s"] + 1e-8
    # The mean over all steps is the figure of the report.
    clean = [data.analysis.timelines.clean(int(step), everyone).step_s for step in data.analysis.breakdown.steps]
    assert np.mean(clean) == pytest.approx(data.diagnosis.step_time.clean, rel=0.02)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_counters_are_the_figures_of_the_diagnosis(path: Path) -> None:
    """S of steps and S_w of workers are those of the what-if analysis; lateness is recorded minus clean end."""
    data, taken = scene_of(path), taken_of(path)
    w, at = data.diagnosis.what_if, begins(taken)
    of_step = {step: int(np.flatnonzero(w.steps == step)[0]) for step in at}
    (about,) = {process for process, _ in taken.counters if process.startswith("diagnosis of ")}
    assert taken.counters[about, "slowdown S of the step"] == sorted(
        (at[step], float(w.by_step[i])) for step, i in of_step.items()
    )
    for place in picture_of(path).choice.dp:
        label = int(data.diagnosis.dp_labels[place])
        (process,) = {s["process"] for s in taken.of("recorded", label)}
        for stage, name in enumerate(data.diagnosis.stage_labels.tolist()):
            assert taken.counters[process, f"slowdown S_w stage {name}"] == sorted(
                (at[step], float(w.by_worker_step[place, stage, i])) for step, i in of_step.items()
            )
            late = Counter(
                (s["end"], s["args"]["later_than_clean_by_ms"])
                for s in operations(taken.of("recorded", label))
                if stage_of(s) == name
                and "later_than_clean_by_ms" in s["args"]
                and "drawn_shorter_by_ms" not in s["args"]
            )
            counted = Counter(taken.counters[process, f"later than clean [ms] stage {name}"])
            assert late <= counted
        for step, begin in at.items():
            recorded, clean = (
                {
                    (s["name"], s["thread"]): s["end"]
                    for s in operations(taken.of(kind, label))
                    if s["args"]["step"] == step
                }
                for kind in ("recorded", "clean")
            )
            assert begin >= 0
            for s in operations(taken.of("recorded", label)):
                key = (s["name"], s["thread"])
                if s["args"]["step"] == step and "drawn_shorter_by_ms" not in s["args"] and key in clean:
                    assert (recorded[key] - clean[key]) / 1e6 == pytest.approx(
                        s["args"]["later_than_clean_by_ms"], abs=0.11
                    )


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_an_arrow_leads_from_each_send_to_its_recv(path: Path) -> None:
    """Every pair of every timeline has one arrow, to when its data moved; both ends move together."""
    data, picture, taken = scene_of(path), picture_of(path), taken_of(path)
    timeline = data.analysis.timelines.recorded(picture.choice.steps[0], np.arange(data.analysis.trace.n_dp))
    n_pairs = int((timeline.nodes.op == Op.FORWARD_SEND).sum() + (timeline.nodes.op == Op.BACKWARD_SEND).sum())
    kinds = {s["kind"] for s in taken.slices} & set(KINDS)
    assert {"recorded", "clean", "ideal"} <= kinds
    assert len(taken.flows) == n_pairs * 2 * len(picture.choice.dp) * len(kinds)
    for send, moving in taken.flows:
        assert send["name"] == moving["name"].replace("moving", "send")
        assert (send["process"], send["args"]["step"]) == (moving["process"], send["args"]["step"])
        assert abs(stage_of(send) - stage_of(moving)) == 1
        assert moving["depth"] == 1
        assert moving["start"] >= send["start"]
        assert (moving["end"] - moving["start"]) / 1e6 == pytest.approx(send["args"]["own_ms"], abs=0.11)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_causes_are_drawn_with_their_sentence(path: Path) -> None:
    """Each cause is a slice over all the time drawn, with confidence, gain, places, evidence and fixes."""
    data, taken = scene_of(path), taken_of(path)
    drawn = [s for s in taken.slices if s["cat"] == "cause" and s["depth"] == 0]
    assert [s["args"]["cause"] for s in drawn] == [cause.cause for cause in data.diagnosis.causes]
    for one, cause in zip(drawn, data.diagnosis.causes, strict=True):
        assert one["args"]["confidence"] == cause.confidence
        assert one["args"]["recoverable"] == cause.recoverable
        assert len(one["args"]["evidence"]) == len(cause.evidence)
        assert one["start"] <= min(s["start"] for s in taken.slices if s["cat"] == "step")
        assert one["end"] >= max(s["end"] for s in taken.slices if s["cat"] == "step")


def test_stalls_name_their_cause() -> None:
    """Pauses of the allocator are slices with the sentence of the cause, as long as the component says."""
    path = ROOT / "fixtures" / "allocator-stall.parquet"
    data, taken = scene_of(path), taken_of(path)
    stalls = [s for s in taken.slices if s["name"] == "memory allocator"]
    assert stalls
    assert {s["args"]["why"] for s in stalls} == {data.diagnosis.causes[0].evidence[0].text}
    c = data.analysis.breakdown
    for place in picture_of(path).choice.dp:
        for step in picture_of(path).choice.steps:
            at = int(np.flatnonzero(c.steps == step)[0])
            label = int(data.diagnosis.dp_labels[place])
            seconds = sum(
                (s["end"] - s["start"]) / 1e9
                for s in taken.of("recorded", label)
                if s["cat"] == "stall" and s["name"] != "queued behind communication" and s["args"]["step"] == step
            )
            parts = c.stalls.inside_s[:, :, :, at, place], c.stalls.before_s[:, :, :, at, place]
            assert seconds == pytest.approx(sum(float(p[p > 1e-6].sum()) for p in parts), abs=1e-6)


def test_culprits_stand_first() -> None:
    """The slow worker's rank and the worst step are chosen, a sound peer beside it, and processes stand in their order."""
    path = ROOT / "fixtures" / "worker-fault.parquet"
    data = scene_of(path)
    w = data.diagnosis.what_if
    assert choose_dp(data)[0] == 1
    assert len(choose_dp(data)) == 2
    assert choose_steps(data)[0] == int(w.steps[np.argmax(w.recorded_s / w.ideal_s)])
    events = json.loads(gzip.decompress(picture_of(path).content))["traceEvents"]
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    top_down = [names[pid] for pid in sorted(order, key=lambda pid: order[pid])]
    assert top_down[0] == "diagnosis of worker-fault"
    assert top_down[1] == "recorded: dp 1 — slow worker"
    assert [name.split(":")[0].split(" ")[0] for name in top_down[1:]] == [k for k in KINDS for _ in range(2)]


def test_slower_than_ideal_and_own_times() -> None:
    """The slow worker's computes are slower than ideal by what their own time says; sends say how long they moved data."""
    path = ROOT / "fixtures" / "worker-fault.parquet"
    taken = taken_of(path)
    step = picture_of(path).choice.steps[0]
    ideal = {(s["name"], s["thread"]): s for s in operations(taken.of("ideal", 1)) if s["args"]["step"] == step}
    for s in operations(taken.of("recorded", 1)):
        if s["args"]["step"] == step and s["cat"].endswith("compute"):
            assert s["args"]["own_ms"] == pytest.approx(1e3 * length(s), abs=1e-5)
            expected = s["args"]["own_ms"] - ideal[s["name"], s["thread"]]["args"]["own_ms"]
            assert s["args"]["slower_than_ideal_by_ms"] == pytest.approx(expected, abs=1e-5)
            assert s["args"]["launch_delay_ms"] >= 0


@pytest.mark.parametrize("seed", range(12))
def test_random_jobs(seed: int) -> None:
    """Jobs of every shape (interleaved, without transfers, with batches that block) are drawn as recorded."""
    shape = dataclasses.replace(random_shape(seed), n_steps=3, clock_error_s=0.0)
    data = prepare_report(Request(to_file(random_job(shape, seed), shape.meta), name="random"))
    taken = import_events(render(data).content)
    assert_equals_trace(data, taken)
    assert all(s["end"] >= s["start"] for s in taken.slices)


def test_clocks_that_disagree_are_corrected() -> None:
    """Where clocks differ the picture shows corrected times, as everything but S, and says so."""
    shape = dataclasses.replace(random_shape(2), n_steps=3, clock_error_s=0.1)
    data = prepare_report(Request(to_file(random_job(shape, 2), shape.meta), name="random"))
    picture = render(data)
    taken = import_events(picture.content)
    assert any("clocks differ" in text for s in taken.slices if s["cat"] == "verdict" for text in s["args"]["warnings"])
    step, dp = picture.choice.steps[0], picture.choice.dp[0]
    timeline = data.analysis.timelines.recorded(step, np.arange(data.analysis.trace.n_dp))
    drawn = operations(taken.of("recorded", int(data.diagnosis.dp_labels[dp])))
    starts = sorted((s["start"] - begins(taken)[step]) / 1e9 for s in drawn if s["args"]["step"] == step)
    expected = timeline.start_s[:, dp]
    np.testing.assert_allclose(starts, sorted(expected[np.isfinite(expected)]), atol=2.1e-9)


def test_same_job_same_bytes() -> None:
    """A job that is read and drawn twice gives the same bytes, and no time of day is in them."""
    path = ROOT / "fixtures" / "network-fault.parquet"
    assert render(prepare_report(Request(path))).content == picture_of(path).content
    assert picture_of(path).content[4:8] == b"\0\0\0\0"


def test_a_plain_file_says_the_same() -> None:
    """Without gzip the same text is written."""
    path = ROOT / "fixtures" / "healthy.parquet"
    assert render(scene_of(path), compressed=False).content == gzip.decompress(picture_of(path).content)


def test_what_does_not_fit_is_left_out_and_told() -> None:
    """Whole steps and ranks are left out, the culprit and the worst step last, and it is said which."""
    data = scene_of(ROOT / "fixtures" / "worker-fault.parquet")
    everything = render(data, steps=data.analysis.breakdown.steps, dp=data.diagnosis.dp_labels)
    limit_mb = 0.3 * len(everything.content) / 1e6
    some = render(data, steps=data.analysis.breakdown.steps, dp=data.diagnosis.dp_labels, limit_mb=limit_mb)
    assert len(some.content) <= limit_mb * 1e6
    assert len(some.content) > 0.4 * limit_mb * 1e6
    assert some.choice.dp[0] == 1
    assert some.choice.steps[0] == choose_steps(data)[0]
    assert any("steps" in warning and "left out" in warning for warning in some.warnings)
    assert set(begins(import_events(some.content))) == set(some.choice.steps)
    with pytest.raises(UsageError, match="one step of one dp rank"):
        render(data, limit_mb=0.001)


def test_another_schedule_has_no_timeline() -> None:
    """A fix that changes the schedule is said to have no timeline; everything else is drawn."""
    data = scene_of(ROOT / "fixtures" / "worker-fault.parquet")
    picture = render(
        data, applied=AppliedFixes("zero-bubble", (Reschedule("zero-bubble", 1, np.eye(4)[None].repeat(2, 0)),))
    )
    assert "zero-bubble" in picture.warnings[0]
    assert not any(s["kind"] == "fixed" for s in import_events(picture.content).slices)


def strings(value: Any) -> list[str]:
    """List every text in a document, names of fields too."""
    if isinstance(value, dict):
        return [text for key, entry in value.items() for text in (key, *strings(entry))]
    if isinstance(value, list):
        return [text for entry in value for text in strings(entry)]
    return [value] if isinstance(value, str) else []


def test_hostile_names_are_harmless() -> None:
    """Names that a terminal or a viewer would obey are shown as escapes, and long ones cut."""
    data = scene_of(ROOT / "fixtures" / "worker-fault.parquet")
    d = data.diagnosis
    n_workers = len(d.dp_labels) * len(d.stage_labels)
    cause = msgspec.structs.replace(
        d.causes[0],
        title=HOSTILE,
        evidence=tuple(msgspec.structs.replace(item, text=HOSTILE) for item in d.causes[0].evidence),
    )
    diagnosis = dataclasses.replace(
        d,
        job=dataclasses.replace(d.job, job_id=HOSTILE),
        hosts=(HOSTILE,) * n_workers,
        causes=(cause,),
        warnings=(HOSTILE,),
    )
    content = render(dataclasses.replace(data, diagnosis=diagnosis)).content
    import_events(content)
    text = "".join(strings(json.loads(gzip.decompress(content))))
    for bad in ("\x1b", "\u202e", "\u2066", "x" * 2500):
        assert bad not in text
    assert "\\x1b[31m" in text
    assert text.isprintable()


def test_microseconds_keep_nanoseconds() -> None:
    """Cut off or rounded, every time gives back its nanoseconds."""
    rng = np.random.default_rng(3)
    for ns in [0, 1, 999, 1001, *rng.integers(0, 10**14, 20_000).tolist()]:
        assert int(micros(ns) * 1000.0) == ns
        assert round(micros(ns) * 1000.0) == ns


def test_one_step_one_rank() -> None:
    """A job of one data-parallel rank has no peer to show, and is drawn all the same."""
    job = make(JobSpec(pp=2, dp=1, microbatches=4, steps=4, seed=5))
    data = prepare_report(
        Request(to_file(job.trace), name="small", steps=np.array([int(job.trace["step"][0].as_py())]))
    )
    picture = render(data)
    assert len(picture.choice.dp) == 1
    assert len(picture.choice.steps) == 1
    assert_equals_trace(data, import_events(picture.content))


def test_production_traces(shared: Path) -> None:
    """Both published traces are drawn as recorded; workers of AR, whose clocks drift, are put on one clock."""
    for name in ("AR", "ST"):
        path = shared / "artifact" / f"trace-{name}.parquet"
        picture = picture_of(path)
        assert len(picture.content) < 1e6
        clocks = measured_file(path).clocks
        assert clocks.agree == (name == "ST")
        assert_equals_trace(scene_of(path), import_events(picture.content), clocks=clocks)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is written beside the report, for the steps and ranks asked for, and nothing else is left behind."""
    job, out = ROOT / "fixtures" / "worker-fault.parquet", tmp_path / "t.json.gz"
    steps = "36,40"
    args = [str(job), "--format", "json", "--perfetto", str(out), "--perfetto-steps", steps, "--perfetto-dp", "0-1"]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["causes"][0]["cause"] == "worker-fault"
    assert not printed.err
    taken = import_events(out.read_bytes())
    assert sorted(begins(taken)) == [36, 40]
    assert {s["dp"] for s in taken.slices if s["dp"] is not None} == {0, 1}
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]
    plain = tmp_path / "t.json"
    assert main([*args[:4], str(plain), *args[5:]]) == 0
    assert plain.read_bytes() == gzip.decompress(out.read_bytes())


def test_the_command_line_warns_of_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit is told on standard error."""
    job, out = ROOT / "fixtures" / "worker-fault.parquet", tmp_path / "t.json.gz"
    assert main([str(job), "--perfetto", str(out), "--perfetto-mb", "0.04"]) == 0
    assert "diagnose: warning: --perfetto: 0.04 MB do not hold everything" in capsys.readouterr().err
    assert out.stat().st_size <= 40_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--perfetto", "no/such/folder/t.json.gz"], "there is no folder"),
        (["--perfetto", "{job}"], "is the trace or the report"),
        (["--perfetto-dp", "0"], "give --perfetto FILE"),
        (["--perfetto", "{tmp}/t.gz", "--perfetto-steps", "a"], "not a list of steps"),
        (["--perfetto", "{tmp}/t.gz", "--perfetto-steps", "5"], "step 5 is not analysed"),
        (["--perfetto", "{tmp}/t.gz", "--perfetto-dp", "9"], "the job has no dp rank 9"),
        (["--perfetto", "{tmp}/t.gz", "{job}"], "draws one job, and 2 are given"),
    ],
)
def test_bad_usage(options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be drawn is refused in one line, with exit code 2, and no file is left."""
    job = str(ROOT / "fixtures" / "worker-fault.parquet")
    assert main([job, *(option.format(job=job, tmp=tmp_path) for option in options)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_trace_processor_agrees() -> None:
    """Perfetto's own trace processor, where there is one, finds every slice and flow and drops none."""
    program = os.environ.get("PERFETTO_TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
    if not program:
        pytest.skip("Perfetto's trace processor is not here: its package downloads it when it first runs")
    path = ROOT / "fixtures" / "worker-fault.parquet"
    taken = taken_of(path)
    query = (
        "select (select count(*) from slice), (select count(*) from flow), (select sum(dur) from slice), "
        "(select sum(value) from stats where severity in ('error', 'data_loss'));"
    )
    file = Path(os.environ.get("TMPDIR", "/tmp")) / f"diagnose-{os.getpid()}.json.gz"
    try:
        file.write_bytes(picture_of(path).content)
        done = subprocess.run([program, "query", str(file), query], capture_output=True, text=True, check=True)
    finally:
        file.unlink(missing_ok=True)
    values = [int(value) for value in done.stdout.splitlines()[-1].split(",")]
    expected = [len(taken.slices), len(taken.flows), sum(s["end"] - s["start"] for s in taken.slices), 0]
    assert values == expected
