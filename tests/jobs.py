"""Small jobs for tests: random ones of every shape, and a hand-made one whose times can be added in the head.

Leaves: DataFrames in the columns of `TRACE.md`. Random jobs lay out a schedule, draw own times and launch delays, and let the
plain loops of `tests.naive` say when everything starts and ends.
"""

import dataclasses
import io
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.model.optype import NAMES, Op
from diagnose.model.trace import Trace
from diagnose.trace.load import load_trace
from tests.naive import BACKWARD, COMPUTE, FORWARD, P2P, NaiveJob

COLUMNS = ["step", "dp_rank", "stage", "optype", "start_ts", "duration", "seq_id", "mb_id", "mc"]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What a job looks like; `n_microbatches` is a multiple of `n_stages` where `n_chunks` > 1."""

    n_steps: int = 2
    n_dp: int = 2
    n_stages: int = 2
    n_microbatches: int = 4
    n_chunks: int = 1
    cp: int = 1
    overlapped: bool = False
    blocking: bool = False
    compute_only: bool = False
    skip_first_recv: bool = False
    collections: bool = True
    clock_error_s: float = 0.0

    @property
    def has_dp(self) -> bool:
        """True where gradients are reduced over more than one member."""
        return self.n_dp * self.cp > 1

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that goes with the rows."""
        return {
            "job_id": "random",
            "dp_size": self.n_dp,
            "pp_size": self.n_stages,
            "tp_size": 1,
            "cp_size": self.cp,
            "vpp_size": self.n_chunks,
            "world_size": self.n_dp * self.n_stages * self.cp,
        }


def random_shape(seed: int) -> Shape:
    """Draw a shape; over a few hundred seeds every combination comes up."""
    rng = np.random.default_rng([seed, 1])
    n_stages = int(rng.choice([1, 2, 2, 3, 4]))
    n_chunks = int(rng.choice([1, 1, 2, 3])) if n_stages > 1 else 1
    n_microbatches = n_stages * int(rng.integers(1, 3)) if n_chunks > 1 else int(rng.integers(1, 7))
    return Shape(
        n_steps=int(rng.integers(1, 4)),
        n_dp=int(rng.choice([1, 2, 3, 4])),
        n_stages=n_stages,
        n_microbatches=n_microbatches,
        n_chunks=n_chunks,
        cp=int(rng.choice([1, 1, 2])),
        overlapped=bool(rng.random() < 0.3),
        blocking=bool(rng.random() < 0.3) and n_chunks == 1,
        compute_only=bool(rng.random() < 0.1),
        skip_first_recv=bool(rng.random() < 0.5),
        collections=bool(rng.random() < 0.7),
        clock_error_s=float(rng.choice([0.0, 0.0, 0.004, 0.03])),
    )


def schedule(shape: Shape, stage: int) -> list[tuple[str, int, int]]:
    """Give the computes of one stage in launch order: (type, chunk, microbatch); 1F1B, interleaved where `n_chunks` > 1."""
    p, v, m = shape.n_stages, shape.n_chunks, shape.n_microbatches
    total = m * v
    n_warm_up = min(p - stage - 1, m)
    if v > 1:
        n_warm_up = min((p - stage - 1) * 2 + (v - 1) * p, total) if m > p else total

    def turn(i: int, optype: str) -> tuple[str, int, int]:
        chunk = i // p % v if v > 1 else 0
        microbatch = i // (p * v) * p + i % p if v > 1 else i
        return (optype, v - 1 - chunk if optype == BACKWARD else chunk, microbatch)

    computes = [turn(i, FORWARD) for i in range(n_warm_up)]
    for i in range(total - n_warm_up):
        computes += [turn(i + n_warm_up, FORWARD), turn(i, BACKWARD)]
    return computes + [turn(i, BACKWARD) for i in range(total - n_warm_up, total)]


def launch_rows(shape: Shape) -> pd.DataFrame:
    """List every operation of one model-parallel group in one step, `start_ts` being its place in the launch order."""
    rows: list[tuple[Any, ...]] = []
    last_stage = shape.n_stages - 1
    for stage in range(shape.n_stages):
        counts: dict[str, int] = {}

        def add(
            optype: str, mb: int = -1, chunk: int = -1, *, stage: int = stage, counts: dict[str, int] = counts
        ) -> None:
            rows.append((stage, optype, float(len(rows)), counts.get(optype, 0), mb, chunk))
            counts[optype] = counts.get(optype, 0) + 1

        for chunk in range(shape.n_chunks):
            add("params-all-gather", -1, chunk)
        computes = schedule(shape, stage)
        for optype, chunk, mb in computes:
            way = optype.removesuffix("-compute")
            first = (
                stage == 0 and chunk == 0 if way == "forward" else stage == last_stage and chunk == shape.n_chunks - 1
            )
            last = (
                stage == last_stage and chunk == shape.n_chunks - 1 if way == "forward" else stage == 0 and chunk == 0
            )
            # With interleaving the transfers at the ends of the model are recorded, but move nothing.
            recorded = shape.n_chunks > 1
            nothing_yet = (
                shape.skip_first_recv and way == "forward" and stage == 0 and f"{way}-recv" not in counts and mb == 0
            )
            if (not first or recorded) and not (first and nothing_yet):
                add(f"{way}-recv")
            add(optype, mb, chunk)
            if not last or recorded:
                add(f"{way}-send")
        if shape.collections:
            add("gc")
        add("layernorm-grads-all-reduce")
        if stage in (0, last_stage):
            add("embedding-grads-all-reduce")
        for chunk in reversed(range(shape.n_chunks)):
            add("grads-reduce-scatter", -1, chunk)
        if shape.overlapped:
            add("separate-grads-all-reduce")
        add("optimizer-clip-main-grad")
        add("optimizer")
    frame = pd.DataFrame(rows, columns=["stage", "optype", "start_ts", "seq_id", "mb_id", "mc"])
    if shape.compute_only:
        frame = frame[frame.optype.isin((FORWARD, BACKWARD))]
    return frame.reset_index(drop=True)


def random_job(shape: Shape, seed: int) -> pd.DataFrame:
    """Make the rows of a job that ran as its launch order says, with random own times and launch delays.

    Times are consistent: replaying own times with launch delays gives the recorded times again, but for errors of clocks.
    """
    rng = np.random.default_rng([seed, 2])
    group = launch_rows(shape)
    steps = np.sort(rng.choice(1000, size=shape.n_steps, replace=False))
    rows = pd.concat(
        [group.assign(step=step, dp_rank=dp) for step in steps for dp in range(shape.n_dp)], ignore_index=True
    ).assign(duration=0.0)
    job = NaiveJob(rows, has_dp=shape.n_dp * shape.cp > 1)
    if shape.blocking:
        _block_computes_on_sends(job)
    typical = {FORWARD: 0.1, BACKWARD: 0.2, "optimizer": 0.05, "gc": 0.02}
    slow_worker = (int(rng.integers(shape.n_dp)), int(rng.integers(shape.n_stages)))
    own, delay = {}, {}
    for op in job.ops:
        own[op] = typical.get(op[0], 0.01) * float(rng.lognormal(0.0, 0.3))
        if op[0] in COMPUTE and (op[2], op[1]) == slow_worker:
            own[op] *= 1.7
        delay[op] = float(rng.exponential(0.002))
    start, end = job.replay(own, delay)
    offset = rng.normal(0.0, shape.clock_error_s, size=(shape.n_dp, shape.n_stages))
    keys = list(zip(rows.optype, rows.stage, rows.dp_rank, rows.step, rows.seq_id, strict=True))
    rows = rows[[key in start for key in keys]]
    keys = [key for key in keys if key in start]
    late = np.array([offset[dp, stage] for _, stage, dp, _, _ in keys])
    rows = rows.assign(
        start_ts=np.array([start[key] for key in keys]) + late, duration=[end[key] - start[key] for key in keys]
    )
    return rows[COLUMNS].reset_index(drop=True)


def _block_computes_on_sends(job: NaiveJob) -> None:
    """Let each compute wait for the send before it, as blocking point-to-point calls do; the trace shows it as launch delay."""
    for dp in job.dps:
        for step in job.steps:
            for stage in job.stages:
                stream = sorted(
                    (
                        op
                        for optype in (FORWARD, BACKWARD, "forward-send", "backward-send")
                        for op in job.place.get((optype, stage, dp, step), [])
                    ),
                    key=lambda op: job.start[op],
                )
                for before, op in itertools.pairwise(stream):
                    if before[0] in P2P and op[0] not in P2P:
                        job.waits[op].append(before)
    job.order = job._order()


def to_table(rows: pd.DataFrame, meta: Mapping[str, Any] | None = None) -> pa.Table:
    """Turn rows into a table that carries its metadata."""
    table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    return table if meta is None else table.replace_schema_metadata({"diagnose.job": json.dumps(dict(meta))})


def to_file(rows: pd.DataFrame | pa.Table, meta: Mapping[str, Any] | None = None) -> io.BytesIO:
    """Write rows into a Parquet file in memory."""
    table = rows if isinstance(rows, pa.Table) else to_table(rows, meta)
    file = io.BytesIO()
    pq.write_table(table, file)
    file.seek(0)
    return file


def load(rows: pd.DataFrame | pa.Table, meta: Mapping[str, Any] | None = None) -> Trace:
    """Load rows as if they came from a file."""
    return load_trace(to_file(rows, meta), name="job.parquet")


def write(path: Path, rows: pd.DataFrame, meta: Mapping[str, Any] | None = None) -> Path:
    """Write rows into a Parquet file on disk."""
    pq.write_table(to_table(rows, meta), path)
    return path


def block_rows(trace: Trace, filled: list[Any]) -> pd.DataFrame:
    """Turn blocks without gaps back into rows, so that the plain loops start from the same times."""
    rows = []
    for block in filled:
        nodes = block.nodes
        for node in range(len(nodes)):
            for i, step in enumerate(block.steps.tolist()):
                rows += [
                    (
                        step,
                        int(trace.dp_labels[dp]),
                        int(trace.stage_labels[int(nodes.stage[node])]),
                        NAMES[Op(int(nodes.op[node]))],
                        float(block.start_s[node, i, dp]),
                        float(block.end_s[node, i, dp] - block.start_s[node, i, dp]),
                        int(nodes.seq[node]),
                        int(nodes.microbatch[node]),
                        int(nodes.chunk[node]),
                    )
                    for dp in range(block.n_dp)
                ]
    return pd.DataFrame(rows, columns=COLUMNS)


def hand_job(*, slow_stage: int | None = None) -> pd.DataFrame:
    """Make 2 steps x 2 stages x 1 dp rank x 2 microbatches; forward 1 s, backward 2 s, all else takes 0 s.

    GPipe order: F0 F1 B0 B1. On each stage 2 x 1 + 2 x 2 = 6 s of work. Stage 0 runs F0 0-1, F1 1-2; stage 1 runs F0 1-2, F1 2-3,
    B0 3-5, B1 5-7; stage 0 runs B0 5-7, B1 7-9; optimizers at 9 s. A `slow_stage` takes twice as long: F 2 s, B 4 s.
    Slow stage 0: F0 0-2, F1 2-4 | stage 1 F0 2-3, F1 4-5, B0 5-7, B1 7-9 | B0 7-11, B1 11-15: step 15 s.
    Slow stage 1: F0 0-1, F1 1-2 | stage 1 F0 1-3, F1 3-5, B0 5-9, B1 9-13 | B0 9-11, B1 13-15: step 15 s.
    """
    forward = [[(0, 1), (1, 2)], [(1, 2), (2, 3)]]
    backward = [[(5, 7), (7, 9)], [(3, 5), (5, 7)]]
    end = 9
    if slow_stage == 0:
        forward, backward, end = [[(0, 2), (2, 4)], [(2, 3), (4, 5)]], [[(7, 11), (11, 15)], [(5, 7), (7, 9)]], 15
    if slow_stage == 1:
        forward, backward, end = [[(0, 1), (1, 2)], [(1, 3), (3, 5)]], [[(9, 11), (13, 15)], [(5, 9), (9, 13)]], 15
    rows: list[tuple[Any, ...]] = []
    for step in (10, 11):
        for mb in (0, 1):
            f0, f1, b0, b1 = forward[0][mb], forward[1][mb], backward[0][mb], backward[1][mb]
            # A recv is posted when the compute before it has ended.
            posted_f = forward[1][mb - 1][1] if mb else 0
            posted_b = backward[0][mb - 1][1] if mb else forward[0][0][1]
            moved_f, moved_b = max(f0[1], posted_f), max(b1[1], posted_b)
            spans = [
                (0, "forward-compute", *f0), (0, "forward-send", f0[1], moved_f), (1, "forward-recv", posted_f, moved_f),
                (1, "forward-compute", *f1), (1, "backward-compute", *b1), (1, "backward-send", b1[1], moved_b),
                (0, "backward-recv", posted_b, moved_b), (0, "backward-compute", *b0),
            ]  # fmt: skip
            rows += [
                (step, 0, s, name, float(a), float(b - a), mb, mb if "compute" in name else -1, 0)
                for s, name, a, b in spans
            ]
        for stage in (0, 1):
            for name in ("optimizer-clip-main-grad", "optimizer"):
                start = end if name == "optimizer" else backward[stage][1][1]
                rows.append((step, 0, stage, name, float(start), float(end - start), 0, -1, -1))
    return pd.DataFrame(rows, columns=COLUMNS)
