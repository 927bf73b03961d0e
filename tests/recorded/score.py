"""How right the answers on the recorded jobs are: `python -m tests.recorded.score [NAME...] [-v]`.

A cause is wrong where it is surer than 0.5 and nothing of the kind, or not there, was done to the job; `unknown` is never wrong.
"""

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job

JOBS = Path(__file__).parent / "jobs"
TRUTH: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "truth.json").read_text())
VARIANTS = ("recorded", "bare", "relative")
#: Rows that tell of what happened beside operations, and columns that few traces have.
EVIDENCE = ("gc", "cuda-malloc", "data-load", "checkpoint", "eval", "log")
EXTRAS = ("host", "tokens", "tokens_sq", "expert_tokens", "doc_lengths")
#: Metadata of bare jobs: their shape.
SHAPE = (
    "job_id",
    "dp_size",
    "pp_size",
    "tp_size",
    "cp_size",
    "vpp_size",
    "world_size",
    "steps_total",
    "unit",
    "schedule",
)
SURE = 0.5
#: Of the others all that was done is found in the file as recorded, and nothing else.
NOT_RIGHT = {
    "card-window-f4",
    "fw-gc-d4",
    "fw-k-conv-d2",
    "fw-layers-p41",
    "fwd-onset-d6",
    "gc-one-d4",
    "gc-one-p42",
    "hot-e4",
    "last-mb-a16",
    "load-thread-d4",
    "loadin-p22",
    "mid-p41",
    "nic-flap-d3",
    "quota-host-d4",
    "save-busy-f4",
    "save-by-hand-d6",
    "save-rare-i22",
    "save-raw-p22",
    "steal-onoff-f4",
    "steal-onset-d4",
    "steal-p22",
    "stopped-burst-d8",
    "t10-gan-disc-slow-d4",
    "t10-gp32-back-slow",
    "t10-moe-hotter-d4",
    "t10-npsave-d4",
    "t10-sample-slow-d4",
    "t11-d-inside",
    "t11-w3-preempt",
    "t13-gc-grow-p42",
    "t13-gc-rank-0-d6",
    "t23-hide-p42",
    "t26-stopped-host-p34",
    "t28-images-p32",
    "t28-in-turn-d6",
    "t28-lost-worker-p42",
    "two-save-docs-d4",
}


def diagnose(name: str, variant: str) -> Diagnosis:
    """Diagnose a variant of a job."""
    path = JOBS / f"{name}.parquet"
    if variant == "recorded":
        return diagnose_job(Request(path))
    return diagnose_job(Request(strip(path, relative=variant == "relative"), name=name))


def strip(path: Path, *, relative: bool) -> io.BytesIO:
    """Leave out what only our own recorder writes; with `relative` times count from the first operation of each step."""
    job = json.loads((pq.read_schema(path).metadata or {}).get(b"diagnose.job", b"{}"))
    rows: pd.DataFrame = pq.read_table(path).to_pandas()
    rows["optype"] = rows["optype"].astype(str)
    rows = rows[~rows["optype"].isin(EVIDENCE)].drop(columns=list(EXTRAS), errors="ignore")
    if relative:
        rows["start_ts"] -= rows.groupby("step")["start_ts"].transform("min")
    metadata = {"diagnose.job": json.dumps({key: job[key] for key in SHAPE if key in job})}
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(metadata), file)
    file.seek(0)
    return file


def is_right(cause: Cause, truth: list[dict[str, Any]]) -> bool:
    """Say whether a cause is one of the true ones, and names no place beside theirs."""
    for true in truth:
        if true["cause"] != cause.cause:
            continue
        at = {(worker.dp, worker.pp) for worker in cause.where.workers}
        places = {(worker["dp_rank"], worker["stage"]) for worker in true.get("workers", ())}
        stages = set(true.get("stages", ()))
        if (not places or at <= places) and (not stages or set(cause.where.stages) <= stages):
            return True
    return False


def score(name: str, found: Diagnosis) -> str:
    """Say how right an answer is: right, part, cannot tell, or WRONG with what is."""
    truth = TRUTH[name]["causes"]
    named = [cause for cause in found.causes if cause.cause != "unknown"]
    right = {cause.cause for cause in named if is_right(cause, truth)}
    wrong = [f"{c.cause} {c.confidence:.2f}" for c in named if c.confidence > SURE and not is_right(c, truth)]
    if wrong:
        return "WRONG " + ", ".join(wrong)
    if len(right) == len(truth):
        return "right"
    return "part" if right else "cannot tell"


def main(arguments: list[str]) -> None:
    """Print a table of the jobs named, or of all."""
    names = [name for name in arguments if not name.startswith("-")] or sorted(TRUTH)
    counts = {variant: Counter[str]() for variant in VARIANTS}
    alarms = Counter[str]()
    for name in names:
        said = {}
        for variant in VARIANTS:
            found = diagnose(name, variant)
            said[variant] = score(name, found)
            counts[variant][said[variant].split()[0]] += 1
            alarms[variant] += not TRUTH[name]["causes"] and found.verdict == "straggling"
            if "-v" in arguments:
                for cause in found.causes:
                    print(
                        "   ",
                        variant,
                        cause.cause,
                        f"{cause.confidence:.2f}",
                        *(e.text for e in cause.evidence),
                        sep=" | ",
                    )
        truth = ", ".join(cause["cause"] for cause in TRUTH[name]["causes"]) or "none"
        print("|", name, "|", truth, "|", " | ".join(said.values()), "|", flush=True)
    n_without = sum(not TRUTH[name]["causes"] for name in names)
    for variant, count in counts.items():
        print(
            variant, dict(sorted(count.items())), f"without a cause called straggling: {alarms[variant]} of {n_without}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
