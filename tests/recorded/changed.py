"""What is said of the recorded jobs when their files are changed in ways that leave the truth as it is.

    python -m tests.recorded.changed                      # all jobs, all changes; ten minutes of CPU
    python -m tests.recorded.changed --change jump drift --every 6

Rows are shuffled, steps are sampled or cut, clocks are coarse, drift or are set, times are longer, rows are lost or of a type are
missing. Printed are, for each change, the jobs of which something is said then that is not there, and was not said before; and of
how many causes said with each confidence there truly were any.
"""

import argparse
import io
import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.recorded.score import JOBS, SURE, TRUTH, is_right

Rows = pd.DataFrame
Change = Callable[[Rows, np.random.Generator], Rows]
#: Part of a typical step that a clock is off by where it moves.
OFF_SHARE = 0.05


def sample(start: int, stop: float, stride: int) -> Change:
    """Keep every so many steps of a part of the trace; `stop` is a number of steps, or a part below 1."""

    def change(rows: Rows, _: np.random.Generator) -> Rows:
        steps = np.sort(rows["step"].unique())
        first = start if start >= 0 else len(steps) // 2
        last = int(stop * len(steps)) if stop <= 1.0 else int(stop)
        return rows[rows["step"].isin(steps[first:last:stride])]

    return change


def rescale(factor: float) -> Change:
    """Make all times longer."""

    def change(rows: Rows, _: np.random.Generator) -> Rows:
        first = rows["start_ts"].min()
        later = first + (rows["start_ts"] - first) * factor
        return rows.assign(start_ts=later, duration=rows["duration"] * factor)

    return change


def round_down(tick_s: float) -> Change:
    """Read all times off a coarse clock."""

    def change(rows: Rows, _: np.random.Generator) -> Rows:
        start, end = (
            np.floor(times / tick_s) * tick_s for times in (rows["start_ts"], rows["start_ts"] + rows["duration"])
        )
        return rows.assign(start_ts=start, duration=end - start)

    return change


def move_clock(how: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Let the clock of one worker be off by so much in each step, in parts of a step; `how` takes when that is, from 0 to 1."""

    def change(rows: Rows, rng: np.random.Generator) -> Rows:
        begun = rows.groupby("step")["start_ts"].min()
        workers = sorted(set(zip(rows["dp_rank"], rows["stage"], strict=True)))
        dp, stage = workers[rng.integers(len(workers))]
        at = np.searchsorted(begun.index, rows["step"]) / max(len(begun) - 1, 1)
        off_s = OFF_SHARE * float(np.median(np.diff(begun))) * how(at)
        mine = (rows["dp_rank"] == dp) & (rows["stage"] == stage)
        # Workers of one host have one clock.
        return rows.assign(start_ts=rows["start_ts"] + off_s * mine).drop(columns="host", errors="ignore")

    return change


CHANGES: dict[str, Change] = {
    "shuffled": lambda rows, rng: rows.iloc[rng.permutation(len(rows))],
    "ten times as long": rescale(10.0),
    "every second step": sample(0, 1.0, 2),
    "every third step": sample(1, 1.0, 3),
    "first half": sample(0, 0.5, 1),
    "second half": sample(-1, 1.0, 1),
    "twelve steps": sample(2, 14, 1),
    "whole milliseconds": round_down(1e-3),
    "1% lost": lambda rows, rng: rows[rng.random(len(rows)) > 0.01],
    "no optimizer": lambda rows, _: rows[rows["optype"] != "optimizer"],
    "no clip": lambda rows, _: rows[~rows["optype"].str.startswith("optimizer-clip")],
    "jump": move_clock(lambda at: (at >= 0.5).astype(float)),
    "drift": move_clock(lambda at: 2.0 * at - 1.0),
}


def diagnose_changed(name: str, change: str) -> Diagnosis:
    """Diagnose a job whose rows are changed; as it is where `change` is empty."""
    table = pq.read_table(JOBS / f"{name}.parquet")
    job = json.loads(table.schema.metadata[b"diagnose.job"])
    rows = table.to_pandas()
    rows["optype"] = rows["optype"].astype(str)
    if change:
        rows = CHANGES[change](rows, np.random.default_rng(zlib.crc32(f"{name} {change}".encode())))
    if "host" not in rows:
        job.pop("n_hosts", None)
    file = io.BytesIO()
    changed = pa.Table.from_pandas(rows, preserve_index=False)
    pq.write_table(changed.replace_schema_metadata({"diagnose.job": json.dumps(job)}), file)
    file.seek(0)
    return diagnose_job(Request(file, name=name))


def list_wrong(name: str, found: Diagnosis) -> list[str]:
    """List the causes that are surer than `SURE` and not there."""
    sure = [cause for cause in found.causes if cause.cause != "unknown" and cause.confidence > SURE]
    return [cause.cause for cause in sure if not is_right(cause, TRUTH[name]["causes"])]


def main() -> None:
    """Print what each change brings, and how sure what is said was."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded.changed", description=__doc__.split("\n\n")[0])
    parser.add_argument("--change", nargs="+", choices=CHANGES, default=list(CHANGES), metavar="NAME")
    parser.add_argument("--every", type=int, default=1, help="take every so many jobs")
    options = parser.parse_args()
    names = sorted(TRUTH)[:: options.every]
    said: dict[int, list[bool]] = defaultdict(list)

    def look(name: str, change: str) -> list[str]:
        found = diagnose_changed(name, change)
        there = {true["cause"] for true in TRUTH[name]["causes"]}
        for cause in found.causes:
            if cause.cause != "unknown":
                said[min(int(10 * cause.confidence), 9)].append(cause.cause in there)
        return list_wrong(name, found)

    before: dict[str, Any] = {name: look(name, "") for name in names}
    print(f"as recorded: {sum(map(bool, before.values()))} of {len(names)} with something wrong")
    for change in options.change:
        wrong = {name: set(look(name, change)) - set(before[name]) for name in names}
        listed = ", ".join(f"{name} {'+'.join(sorted(causes))}" for name, causes in wrong.items() if causes)
        print(f"{change}: {sum(map(bool, wrong.values()))} newly wrong  {listed}", flush=True)
    for tenth, right in sorted(said.items(), reverse=True):
        print(f"said with {tenth / 10:.1f} and more: {sum(right)} of {len(right)} there")


if __name__ == "__main__":
    main()
