"""`python -m tests.scoring.grafted`: real recordings of healthy jobs, with faults grafted on whose truth is known.

python -m tests.scoring.grafted ../shared/real/healthy-pp4dp2-b.parquet ../shared/real/noise.parquet --jobs 200 --seed 7

A recording gives the times of a job that nobody drew: its noise, its delays, its collectives. They become the `Inputs` of the
generator, which lets faults and decoys happen to them as to any other job. So the faults are ours, but the world is not.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diagnose.errors import UsageError
from diagnose.faults.draw_decoys import draw_decoys
from diagnose.faults.fault import Fault
from diagnose.faults.generate import draw_causes, draw_kinds, generate, random_faults
from diagnose.faults.inputs import Inputs
from diagnose.faults.programme import Launch, Programme, build_programme
from diagnose.faults.simulate import simulate
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import COMPUTE, NAMES, Op
from diagnose.model.trace import Seconds
from tests.scoring.figures import measure
from tests.scoring.judged import JudgedJob, describe, find_worst
from tests.scoring.score import judge_generated, list_rows, run, to_json, what
from tests.scoring.score_tables import render

#: Operations at the end of a step that a recording need not have.
CLOSING = (Op.LAYERNORM, Op.EMBEDDING, Op.CLIP)
#: Steps of a recording may come out this part longer or shorter when they are simulated, on average.
MOST_OFF = 0.06


@click.command()
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--jobs", type=click.IntRange(min=1), default=100, show_default=True, help="How many jobs.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--cause", "causes", multiple=True, help="With these causes, or kinds (worker-fault/replica), alone.")
@click.option("--no-evidence", is_flag=True, help="Without evidence rows.")
@click.option("--no-decoys", is_flag=True, help="With nothing that only looks like a fault.")
@click.option(
    "--for-a-while", is_flag=True, help="Faults begin and end within the job; stages are not uneven for a while."
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write rows and figures there."
)
@click.option("--worst", type=click.IntRange(min=0), default=0, metavar="N", help="List the N jobs judged worst.")
def main(
    recordings: tuple[Path, ...],
    *,
    jobs: int,
    seed: int,
    causes: tuple[str, ...],
    no_evidence: bool,
    no_decoys: bool,
    for_a_while: bool,
    workers: int,
    json_path: Path | None,
    worst: int,
) -> None:
    """Graft random faults on RECORDINGS, one after the other, diagnose the jobs and say how good the diagnoses are."""
    calls = [
        functools.partial(
            judge_grafted,
            recordings[i % len(recordings)],
            seed,
            i,
            causes=causes,
            evidence=not no_evidence,
            decoys=not no_decoys,
            for_a_while=for_a_while,
        )
        for i in range(jobs)
    ]
    rows = list(run(calls, workers))
    figures = measure(rows)
    click.echo(render(figures), nl=False)
    for line in list_rows("Judged worst", [describe(row) for row in find_worst(rows, worst)]):
        click.echo(line)
    for line in list_rows("Failed", [f"{row.job}: {row.error}" for row in rows if row.error]):
        click.echo(line)
    if json_path is not None:
        json_path.write_text(to_json(rows, figures), encoding="utf-8")
    sys.exit(5 if figures.n_failed else 0)


def judge_grafted(
    recording: Path,
    seed: int,
    i: int,
    *,
    causes: tuple[str, ...] = (),
    evidence: bool = True,
    decoys: bool = True,
    for_a_while: bool = False,
) -> JudgedJob:
    """Graft faults on a recording, and diagnose the job."""
    row = JudgedJob(f"{recording.stem}-{seed}-{i:05d}")
    try:
        rng = np.random.default_rng([seed, i])
        names = draw_kinds(rng, tuple(causes) or draw_causes(rng))
        healthy = read_inputs(recording)
        spec = dataclasses.replace(
            healthy.spec,
            job_id=row.job,
            seed=int(rng.integers(2**31)),
            evidence=evidence,
            workers_per_host=int(rng.choice([0, 1, 2, 4])),
        )
        faults = random_faults(spec, rng, names) if names else []
        if for_a_while:
            faults = [_pass(fault, spec, rng) for fault in faults if fault.cause != "stage-imbalance"]
        drawn = draw_decoys(spec, rng, [fault.cause for fault in faults]) if decoys else []
        job = generate(spec, faults, drawn, healthy=dataclasses.replace(healthy, spec=spec))
        job = dataclasses.replace(job, trace=_like(recording, job.trace))
    except Exception as error:  # noqa: BLE001 - one broken job must not stop the others
        return dataclasses.replace(row, error=what(error))
    return judge_generated(job)


def _pass(fault: Fault, spec: JobSpec, rng: np.random.Generator) -> Fault:
    """Let a fault begin in the first half of a job, and end before the job does: few of those for training do."""
    onset = int(rng.integers(spec.steps // 8, spec.steps // 2))
    length = int(rng.integers(max(spec.steps // 6, 5), spec.steps // 2))
    return dataclasses.replace(fault, onset=onset, recovery=min(onset + length, spec.steps - 3))


@functools.cache
def read_inputs(recording: Path) -> Inputs:
    """Take the times of a recorded job apart: what each operation took by itself, and how late it was launched.

    The job must be one that the generator can lay down: 1F1B with blocking batches, or no pipeline; one row for each
    operation of each worker and step. Simulated, its steps are as long as they were recorded.

    Raises
    ------
    UsageError
        It is not.
    """
    rows = pq.read_table(recording).to_pandas()
    spec = _read_spec(rows, json.loads(pq.read_schema(recording).metadata[b"diagnose.job"]))
    programme = build_programme(spec)
    absent = np.flatnonzero(programme.is_op(*_absent(rows))).tolist()
    # Nobody meets in what there is not.
    meetings = tuple(meeting for meeting in programme.meetings if not set(absent) & set(meeting.members))
    programme = dataclasses.replace(programme, meetings=meetings)
    start_s, end_s = _read_times(rows, spec, programme, recording)
    free_s = _free(programme, start_s, end_s)
    last_s = np.nanmax(end_s, axis=(0, 2))
    recorded_s = last_s - free_s.max(axis=(0, 2))
    own_s, delay_s = _take_apart(programme, start_s, end_s, free_s)
    is_compute = np.isin(programme.op, [int(op) for op in COMPUTE])[:, None, None]
    inputs = Inputs(
        spec=spec,
        programme=programme,
        work_s=np.where(is_compute, own_s, 0.0),
        transfer_s=np.where(is_compute, 0.0, own_s),
        stall_s=np.broadcast_to(np.zeros(()), own_s.shape),
        delay_s=delay_s,
        tail_s=np.zeros((spec.pp, 1, 1)),
    )
    off = float(np.abs(simulate(inputs).step_s / recorded_s - 1.0).mean())
    if off > MOST_OFF:
        raise UsageError(
            f"simulated, its steps are off by {off:.1%}; expected a schedule that can be laid down",
            where=str(recording),
        )
    return inputs


def _read_spec(rows: pd.DataFrame, metadata: dict[str, object]) -> JobSpec:
    """Say what the generator would call such a job."""
    op = rows["optype"].astype(str)
    usual = rows["duration"].groupby(op).median()
    pp = int(rows["stage"].max()) + 1
    return JobSpec(
        pp=pp,
        dp=int(rows["dp_rank"].max()) + 1,
        microbatches=int(rows["mb_id"].max()) + 1,
        steps=rows["step"].nunique(),
        forward_s=float(usual["forward-compute"]),
        backward_ratio=float(usual["backward-compute"] / usual["forward-compute"]),
        transfer_s=float(rows["duration"][op == "backward-send"].quantile(0.25)) if pp > 1 else 1e-4,
        collective_s=float(usual["grads-reduce-scatter"]),
        optimizer_s=float(usual["optimizer"]),
        averages_loss=False,
        contiguous=True,
        clip="all" if "optimizer-clip-main-grad" in usual else "none",
        gathers="params-all-gather" in usual,
        job_id=str(metadata["job_id"]),
    )


def _read_times(rows: pd.DataFrame, spec: JobSpec, programme: Programme, recording: Path) -> tuple[Seconds, Seconds]:
    """Put start and end of every row at its task: seconds, shape (n_tasks, n_steps, n_dp)."""
    places = {(NAMES[Op(task.op)], task.stage, task.seq): t for t, task in enumerate(programme.tasks)}
    rows = rows.sort_values(["step", "dp_rank", "stage", "start_ts"], kind="stable")
    rows["seq_id"] = rows.groupby(["step", "dp_rank", "stage", "optype"], observed=True).cumcount()
    steps = {number: i for i, number in enumerate(sorted(rows["step"].unique().tolist()))}
    start_s = np.full((len(programme.tasks), spec.steps, spec.dp), np.nan)
    end_s = start_s.copy()
    columns = rows[["optype", "stage", "seq_id", "step", "dp_rank", "start_ts", "duration"]]
    for op, stage, seq, step, dp, start, duration in columns.itertuples(index=False):
        task = places.get((str(op), stage, seq))
        if task is not None:
            start_s[task, steps[step], dp], end_s[task, steps[step], dp] = start, start + duration
    missing = np.isnan(start_s).any(axis=(1, 2)) & ~programme.is_op(*_absent(rows))
    if missing.any():
        raise UsageError(f"no row of {programme.name(int(missing.argmax()))}", where=str(recording))
    return start_s, end_s


def _free(programme: Programme, start_s: Seconds, end_s: Seconds) -> Seconds:
    """Say from when on each worker could begin each step: seconds, shape (n_stages, n_steps, n_dp).

    On the job's clock when it ended the step before: who ends late begins late, and the generator lets all begin together. Where
    times count from the start of a step, when the first of all begins.
    """
    free_s = np.repeat(np.nanmin(start_s, axis=(0, 2))[None, :, None], programme.stage.max() + 1, axis=0)
    free_s = np.repeat(free_s, start_s.shape[2], axis=2)
    if (np.diff(np.nanmin(start_s, axis=(0, 2))) > 0.0).all():
        for stage in range(len(free_s)):
            free_s[stage, 1:] = np.nanmax(end_s[programme.stage == stage, :-1], axis=0)
    return free_s


def _absent(rows: pd.DataFrame) -> list[Op]:
    """List the types of which a recording has no row: the generator lays them down, so that they take no time."""
    known = set(rows["optype"].astype(str))
    return [Op.GC, *(op for op in CLOSING if NAMES[op] not in known)]


def _like(recording: Path, trace: pa.Table) -> pa.Table:
    """Leave out of a trace the operations that the recording has not."""
    absent = _absent(pq.read_table(recording, columns=["optype"]).to_pandas())
    names = pa.array([NAMES[op] for op in absent if op != Op.GC], pa.string())
    return trace.filter(pc.invert(pc.is_in(trace["optype"].cast(pa.string()), names)))


def _take_apart(programme: Programme, start_s: Seconds, end_s: Seconds, free_s: Seconds) -> tuple[Seconds, Seconds]:
    """Say what each task took by itself, and how long after it could it was launched: seconds, shape (n_tasks, n_steps, n_dp).

    Tasks that were not recorded start and end where what they wait for ends.
    """
    delay_s = np.zeros_like(start_s)
    absent = np.isnan(start_s).any(axis=(1, 2)) | programme.is_op(Op.GC)
    for task, sources in _before(programme).items():
        ready_s = functools.reduce(np.maximum, [end_s[source] for source in sources], free_s[programme.stage[task]])
        if absent[task]:
            start_s[task] = end_s[task] = ready_s
        delay_s[task] = np.maximum(start_s[task] - ready_s, 0.0)
    own_s = end_s - start_s
    for meeting in programme.meetings:
        began_s = functools.reduce(np.maximum, [start_s[member] for member in meeting.members])
        if meeting.across_dp:
            began_s = began_s.max(axis=1, keepdims=True)
        ended_s = functools.reduce(np.minimum, [end_s[member] for member in meeting.members])
        for member in meeting.members:
            took_s = ended_s if len(meeting.members) == 2 and not meeting.across_dp else end_s[member]
            own_s[member] = 0.0 if absent[member] else np.maximum(took_s - began_s, 0.0)
    return own_s, delay_s


def _before(programme: Programme) -> dict[int, list[int]]:
    """List what each task waits for on its worker: the launch before it in its stream, and those of other streams."""
    before: dict[int, list[int]] = {}
    for stream in programme.streams:
        last: Launch | None = None
        for launch in stream:
            for task in launch.tasks:
                before[task] = [*launch.after, *(last.tasks if last is not None else ())]
            last = launch
    return before


if __name__ == "__main__":
    main()
