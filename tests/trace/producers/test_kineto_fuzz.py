"""Folders of profiles from which events, categories and headers are missing, or that do not belong together."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report.json_lines import render
from tests.trace.producers.kineto_traces import (
    KinetoTrace,
    data_parallel_rank,
    distributed,
    pipeline_rank,
    synchronising_rank,
    training_loop,
    unannotated_pipeline_rank,
)

N_FOLDERS = 100


def make_jobs() -> list[list[dict[str, Any]]]:
    """Make whole jobs, each the traces of its ranks."""

    def trace(rank: KinetoTrace, **header: Any) -> dict[str, Any]:
        return {"schemaVersion": 1, "deviceProperties": [], **header, "traceEvents": rank.events}

    loops = ["L(FPBU)" * 8, "LFBU" * 8, "LFBLFBUP" * 6, "LFBM" * 8, "LFBUFFBU" * 5, ("LFBU" * 3 + "LELE") * 3]
    base = {"baseTimeNanoseconds": 1_790_857_026_000_000_000, "host_name": "one"}
    return [
        *([trace(training_loop(plan), **base)] for plan in loops),
        [trace(synchronising_rank([2000.0] * 8, n_items=2))],
        [trace(data_parallel_rank(n_steps=6, stall_us=30.0 * n), **distributed(n, 3), **base) for n in range(3)],
        [trace(pipeline_rank(stage), **distributed(stage, 2)) for stage in range(2)],
        [trace(pipeline_rank(stage, chunks=2), **distributed(stage, 2)) for stage in range(2)],
        [trace(unannotated_pipeline_rank(stage), **distributed(stage, 2)) for stage in range(2)],
    ]


def spoil(trace: dict[str, Any], rng: np.random.Generator) -> str:
    """Spoil one trace in one of nine ways, or leave it; give its text, which may be cut off."""
    events = [dict(event) for event in trace["traceEvents"]]
    way = int(rng.integers(10))
    if way == 0:
        share = float(rng.choice([0.01, 0.1, 0.5, 0.9]))
        events = [event for event in events if rng.random() > share]
    elif way in (1, 2):
        key = "cat" if way == 1 else "name"
        values = sorted({str(event.get(key)) for event in events})
        gone = set(rng.choice(values, max(1, len(values) // 4), replace=False).tolist())
        events = [event for event in events if str(event.get(key)) not in gone]
    elif way == 3:
        events = events[: int(rng.integers(len(events)))]
    elif way == 4:
        events = [events[n] for n in rng.permutation(len(events))]
    elif way in (5, 6, 7):
        for event in events:
            if rng.random() < 0.1:
                if way == 5:
                    event["ts"] += float(rng.uniform(-1e4, 1e4))
                elif way == 6:
                    event["dur"] = [0, None, 100.0 * event.get("dur", 1.0)][int(rng.integers(3))]
                else:
                    event["tid"] = [1, 2, "x"][int(rng.integers(3))]
    spoiled = trace | {"traceEvents": events}
    for key in ("distributedInfo", "baseTimeNanoseconds", "host_name"):
        if rng.random() < 0.2:
            spoiled.pop(key, None)
    text = json.dumps(spoiled)
    return text[: int(rng.integers(len(text) // 2, len(text)))] if rng.random() < 0.15 else text


@pytest.mark.parametrize("part", range(4))
def test_spoiled_folders_give_a_diagnosis_or_one_line(tmp_path: Path, part: int) -> None:
    """Of 100 folders none ends in anything but a diagnosis or one line; files of other jobs are among them."""
    jobs = make_jobs()
    outcomes = {"diagnosed": 0, "refused": 0}
    for seed in range(part, N_FOLDERS, 4):
        rng = np.random.default_rng(seed)
        files = list(jobs[int(rng.integers(len(jobs)))])
        if rng.random() < 0.3:
            stranger = jobs[int(rng.integers(len(jobs)))]
            files.append(stranger[int(rng.integers(len(stranger)))])
        if len(files) > 1 and rng.random() < 0.3:
            files.pop(int(rng.integers(len(files))))
        folder = tmp_path / str(seed)
        for n, trace in enumerate(files):
            name = [f"rank{n}.json", f"t{n}.json", f"host_{n}.17900000000{n:02d}.pt.trace.json"][int(rng.integers(3))]
            place = folder / ["", "a", "b"][int(rng.integers(3))]
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(spoil(trace, rng))
        try:
            render(diagnose_job(Request(folder)))
            outcomes["diagnosed"] += 1
        except TraceError as error:
            outcomes["refused"] += "\n" not in str(error)
    assert sum(outcomes.values()) == len(range(part, N_FOLDERS, 4))
    assert min(outcomes.values()) > N_FOLDERS // 4 // 8
