"""MegatronApp: the two public timelines, raw MegaScan files, and pipelines with faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.optype import Op
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.trace.input_files import list_input_files
from diagnose.trace.load import load_trace
from diagnose.trace.producers import megascan
from tests.trace.producers.pipelines import Pipeline, write_megascan

EXAMPLES = Path(__file__).resolve().parents[4] / "shared" / "formats" / "megatronapp"
example = pytest.mark.skipif(not EXAMPLES.exists(), reason="no examples of other formats here")
NAMES = ("dpp", "pp")


def example_file(name: str) -> Path:
    """Give one of the public timelines."""
    return EXAMPLES / f"data-1-pipeline-4-tensor-1-{name}-aggregated-iter10.json"


@example
@pytest.mark.parametrize("name", NAMES)
def test_the_long_chunk_of_the_example_is_named(name: str) -> None:
    """Rank 3 is long for its last chunk, with the projection and the loss; of one iteration nothing else is said."""
    found = diagnose_job(Request(example_file(name)))
    (cause,) = found.causes
    assert (cause.cause, cause.where.stages) == ("stage-imbalance", (3,))
    assert cause.recoverable > 0.02
    assert any("chunk 3 of stage 3" in item.text for item in cause.evidence)
    assert "worker-fault" in {entry.cause for entry in found.not_checked}


@example
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stage", "chunk"), [(1, 2), (0, 0)])
def test_another_long_chunk_is_named(tmp_path: Path, name: str, stage: int, chunk: int) -> None:
    """With the work of rank 3's last chunk made ordinary and another one's long, that one is named."""
    events = json.loads(example_file(name).read_text())
    spans = pair(events)
    for pid, one_chunk, begin, end in spans:
        usual = 3500 if begin["name"] == "forward" else 7000
        took = end["ts"] - begin["ts"]
        if (pid, one_chunk) == (3, 3):
            end["ts"] = begin["ts"] + usual
        if (pid, one_chunk) == (stage, chunk):
            begin["ts"] = end["ts"] - took
    stretch(spans, stage, chunk)
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(events))
    found = diagnose_job(Request(file))
    assert [(cause.cause, cause.where.stages) for cause in found.causes] == [("stage-imbalance", (stage,))]


def pair(events: list[dict[str, Any]]) -> list[tuple[int, int, dict[str, Any], dict[str, Any]]]:
    """Pair B and E: (rank, chunk, begin, end), in order of the beginnings."""
    open_at: dict[tuple[int, str], dict[str, Any]] = {}
    found = []
    for event in events:
        key = event["pid"], event["name"]
        if event["ph"] == "B":
            open_at[key] = event
        elif event["ph"] == "E":
            found.append((event["pid"], event["args"]["model_chunk"], open_at.pop(key), event))
    return sorted(found, key=lambda entry: entry[2]["ts"])


def stretch(spans: list[tuple[int, int, dict[str, Any], dict[str, Any]]], stage: int, chunk: int) -> None:
    """Run the same operations again, in the same order on each rank, with four times the time for one chunk."""
    n_stages = 1 + max(pid for pid, *_ in spans)
    free = [0.0] * n_stages
    done: dict[tuple[str, int, int], float] = {}
    last = max((chunk * n_stages + pid) for pid, chunk, *_ in spans)
    queues = [[span for span in spans if span[0] == pid] for pid in range(n_stages)]
    while any(queues):
        for pid, queue in enumerate(queues):
            while queue:
                _, of_chunk, begin, end = queue[0]
                virtual, microbatch = of_chunk * n_stages + pid, end["args"]["microbatch"]
                before = virtual - 1 if begin["name"] == "forward" else virtual + 1
                key = (begin["name"], before, microbatch)
                if 0 <= before <= last and key not in done:
                    break
                took = (3500.0 if begin["name"] == "forward" else 7000.0) * (
                    4.0 if (pid, of_chunk) == (stage, chunk) else 1.0
                )
                begin["ts"] = max(free[pid], done.get(key, 0.0) + 800.0)
                end["ts"] = free[pid] = begin["ts"] + took
                done[begin["name"], virtual, microbatch] = end["ts"]
                queue.pop(0)


@example
def test_two_timelines_are_no_job() -> None:
    """A folder with two aggregated timelines is refused: they are two jobs, and which they are is said."""
    said = (
        r"has 2 aggregated timelines and 0 raw files; expected one timeline.* a folder of its own: \S*dpp-\S*; \S*json$"
    )
    with pytest.raises(TraceError, match=said):
        load_trace(EXAMPLES)


def test_raw_files_of_all_ranks_are_one_job(tmp_path: Path) -> None:
    """Each iteration starts at 0 on each rank; iterations lie apart by the wall clock, and are counted from 0."""
    spans = Pipeline(n_steps=4).run()
    trace = load_trace(write_megascan(tmp_path, spans))
    assert trace.steps.tolist() == [0, 1, 2, 3]
    assert trace.step_origin_s is not None
    took = max(s.end_s for s in spans if s.step == 1)
    assert np.diff(trace.step_origin_s)[0] == pytest.approx(took + 0.2, abs=0.001)
    forwards = trace.blocks[0].nodes.op == Op.FORWARD
    assert trace.blocks[0].nodes.microbatch[forwards].tolist() == [*range(8)] * 4


@pytest.mark.parametrize(("link", "since"), [(0, 6), (2, 10)])
def test_a_slow_link_is_found_in_raw_files(tmp_path: Path, link: int, since: int) -> None:
    """Computes alone tell it, whatever the clocks of the ranks say."""
    shift = np.random.default_rng(link).normal(0.0, 0.01, (4, 20))
    spans = Pipeline(slow_link=link, since=since, link_delay_s=0.04).run()
    (cause,) = diagnose_job(Request(write_megascan(tmp_path, spans, lambda s, t: float(shift[s, t])))).causes
    assert (cause.cause, [tuple(end.pp for end in link.ends) for link in cause.where.links]) == (
        "network-fault",
        [(link, link + 1)],
    )
    assert cause.when.onset_step == since - 1


def raw(name: str, start_ms: float, end_ms: float, **said: Any) -> list[dict[str, Any]]:
    """Give the two records of a scope on rank 0 of two."""
    place = {"dp_rk": 0, "pp_rk": 0, "tp_rk": 0, "g_rk": 0, **said}
    return [
        {"name": name, "ph": "B", "rel_ts": int(1e6 * start_ms), **place},
        {"name": name, "ph": "E", "rel_ts": int(1e6 * end_ms), **place},
    ]


def test_scopes_become_operations(tmp_path: Path) -> None:
    """An exchange sends and receives in one batch; what the outermost stages have no peer for is no operation."""
    first = [
        *raw("forward-warmup", 0, 3),
        *raw("send-warmup", 3, 4),
        *raw("forward", 4, 7),
        *raw("exchange-next", 7, 9, group=[1], data=10),
        *raw("backward", 9, 15),
        *raw("send-extra", 15, 15),
        *raw("recv-cooldown", 15, 16),
        *raw("backward-cooldown", 16, 22),
        *raw("loss", 22, 23),
        *raw("optimizer", 23, 25),
    ]
    second = [*raw("recv-warmup", 0, 4, pp_rk=1, g_rk=1), *raw("forward", 4, 6, pp_rk=1, g_rk=1)]
    begin, end = (
        {"name": "iteration", "ph": "B", "pad_before": None},
        {"name": "iteration", "ph": "E", "duration_wall": 25_000_000},
    )
    for n, rows in enumerate((first, second)):
        (tmp_path / f"{n}.json").write_text(json.dumps([begin, *rows, end | {"pp_rk": n, "rel_ts": 25_000_000}]))
    recording = megascan.read(list_input_files(tmp_path, name="job"), name="job", report=str)
    on_first = recording.op[(recording.stage == 0) & (recording.op >= 0)].tolist()
    assert on_first == [
        Op.FORWARD,
        Op.FORWARD_SEND,
        Op.FORWARD,
        Op.FORWARD_SEND,
        Op.BACKWARD_RECV,
        Op.BACKWARD,
        Op.BACKWARD_RECV,
        Op.BACKWARD,
        Op.OPTIMIZER,
    ]
    assert recording.op[recording.stage == 1].tolist() == [Op.FORWARD_RECV, Op.FORWARD]
    assert recording.dropped == ()
    assert recording.other is not None
    assert [recording.other_types[n] for n in recording.other[recording.op < 0]] == ["loss"]


def test_whole_events_are_read_as_pairs_are(tmp_path: Path) -> None:
    """The newer aggregate with X events, and B and E of the older, give the same operations."""
    write_megascan(tmp_path / "raw", Pipeline(n_steps=4).run())
    events: dict[str, list[dict[str, Any]]] = {"X": [], "BE": []}
    for file in sorted((tmp_path / "raw").iterdir()):
        iteration, begun = -1, 0.0
        for row in json.loads(file.read_text()):
            if row["name"] == "iteration":
                iteration += row["ph"] == "B"
                continue
            args = {"iteration": iteration, **{k: row[k] for k in ("dp_rk", "pp_rk", "tp_rk", "g_rk")}}
            ts = row["rel_ts"] / 1e3 + 2e6 * iteration
            one = {"name": row["name"], "pid": row["g_rk"], "tid": 0}
            events["BE"].append(one | {"ph": row["ph"], "ts": ts, "args": args})
            if row["ph"] == "E":
                events["X"].append(one | {"ph": "X", "ts": begun, "dur": ts - begun, "args": args})
            begun = ts
    found = []
    for name, listed in events.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(listed))
        found.append(load_trace(tmp_path / f"{name}.json").blocks[0])
    assert np.allclose(found[0].start_s, found[1].start_s, atol=1e-9)
    assert np.allclose(found[0].end_s, found[1].end_s, atol=1e-9)


def test_tensor_parallel_ranks_are_members_of_one_worker(tmp_path: Path) -> None:
    """Files of all tensor-parallel ranks give one operation for each group, as long as its slowest member."""
    spans = Pipeline(n_steps=4).run()
    write_megascan(tmp_path, spans)

    def double(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"tp_rk": 1, "g_rk": row["g_rk"] + 4}

    for file in list(tmp_path.iterdir()):
        rows = json.loads(file.read_text())
        other = [double(row) if "g_rk" in row else row for row in rows]
        file.with_name(file.name.replace("tensor-0", "tensor-1")).write_text(json.dumps(other))
    trace = load_trace(tmp_path)
    assert (trace.job.tp_size, trace.n_stages, trace.n_dp) == (2, 4, 1)
