"""What a tracer records of a job: rows as in a production trace.

Enters: `Inputs` and `Times`. Leaves: a table in the format of TRACE.md, with the narrow types of the published traces.
"""

import dataclasses
import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from diagnose.faults.inputs import Inputs
from diagnose.faults.members import WAIT, WorkerRows, spread_members
from diagnose.faults.simulate import Times
from diagnose.faults.spec import JobSpec
from diagnose.model.documents import Documents
from diagnose.model.optype import EVIDENCE, NAMES, P2P, Op
from diagnose.model.trace import Ints, Seconds

#: Codes of rows that have a name of their own in traces alone, behind those of the types that there are: in which members wait for
#: each other, and gradients of inputs where a schedule splits the backward.
WAIT_CODE, INPUT_CODE = range(len(Op), len(Op) + 2)
OWN_NAMES = {WAIT_CODE: WAIT, INPUT_CODE: "backward-input"}
#: Most rows that are lost in a run.
LOST_ROWS = 12


def record(inputs: Inputs, times: Times) -> pa.Table:
    """Write a job's trace.

    Returns
    -------
    pyarrow.Table
        One row an operation, by step, dp rank, stage and launch order, then the evidence rows; job metadata under the key
        `diagnose.job` of the schema. Times in seconds after the step began, or where the job has `absolute_times` after its
        first recorded step began.
    """
    parts = [_task_rows(inputs, times), *_pause_rows(inputs, times)]
    tail = _tail_rows(inputs, times)
    if tail is not None:
        parts.append(tail)
    rows = parts[0]
    if len(parts) > 1:
        joined = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in dataclasses.fields(WorkerRows)}
        rows = _count_evidence(WorkerRows(**joined))
    if inputs.spec.clock_s:
        clock_s = inputs.spec.clock_s * inputs.spec.random("clock").standard_normal((inputs.spec.pp, inputs.spec.dp))
        rows = dataclasses.replace(rows, start_s=rows.start_s + clock_s[rows.stage, rows.dp])
    if inputs.spec.absolute_times:
        rows = dataclasses.replace(rows, start_s=rows.start_s + _origins(inputs, times)[rows.step])
    table = _table(inputs, rows) if inputs.spec.members == "one" else _table(inputs, *_member_rows(inputs, rows))
    return _lose(inputs.spec, table)


def _lose(spec: JobSpec, table: pa.Table) -> pa.Table:
    """Leave out the columns that the trace lacks, and runs of rows that are lost: of one worker, one after the other."""
    in_time = np.lexsort([table[name].to_numpy() for name in ("start_ts", "stage", "dp_rank", "step")])
    table = table.drop_columns([name for name in spec.lacked if name in table.column_names])
    if not spec.lost_share:
        return table
    rng, mean_rows = spec.random("lost"), (1 + LOST_ROWS) / 2
    kept = np.ones(table.num_rows, dtype=bool)
    for first in rng.integers(table.num_rows, size=max(1, round(spec.lost_share * table.num_rows / mean_rows))):
        kept[in_time[first : first + int(rng.integers(1, LOST_ROWS + 1))]] = False
    return table.filter(pa.array(kept))


def job_metadata(inputs: Inputs) -> dict[str, Any]:
    """Say what a trace's metadata says about a job."""
    spec = inputs.spec
    return {
        "job_id": spec.name,
        "dp_size": spec.dp,
        "pp_size": spec.pp,
        "tp_size": spec.tp_size,
        "cp_size": spec.cp_size,
        "vpp_size": spec.vpp,
        "world_size": spec.dp * spec.pp * spec.tp_size * spec.cp_size,
        "steps_total": int(spec.step_numbers()[-1]) + 100,
        "framework": "diagnose.faults",
        **({} if inputs.ep_size is None else {"ep_size": inputs.ep_size}),
        **({"schedule": spec.schedule_name} if spec.says_schedule else {}),
    }


def _origins(inputs: Inputs, times: Times) -> Seconds:
    """Say when each step began: one after the other, those that were not sampled as long as the mean; shape (n_steps,)."""
    n_left_out = np.diff(inputs.spec.step_numbers()) - 1
    return np.asarray(np.r_[0.0, np.cumsum(times.step_s[:-1] + n_left_out * times.step_s.mean())])


def _task_rows(inputs: Inputs, times: Times) -> WorkerRows:
    """List one row for each task, step and dp rank."""
    tasks, (n_steps, n_dp) = inputs.programme.tasks, inputs.lanes
    kept = ~inputs.programme.is_op(*(() if inputs.spec.records_transfers else P2P))
    order = np.array(
        sorted(np.flatnonzero(kept).tolist(), key=lambda t: (tasks[t].stage, int(tasks[t].op), tasks[t].seq))
    )
    start_s = times.start_s[order].transpose(1, 2, 0)
    n_lanes = n_steps * n_dp
    codes = {"weight": int(Op.WEIGHT)}
    if inputs.spec.input_rows == "backward-input":
        codes["input"] = INPUT_CODE
    op = np.array([codes.get(tasks[t].part, int(tasks[t].op)) for t in order])
    seq, n_before = np.zeros(len(order), dtype=np.int64), Counter[tuple[int, int]]()
    for i, key in enumerate(zip(inputs.programme.stage[order].tolist(), op.tolist(), strict=True)):
        seq[i] = n_before[key]
        n_before[key] += 1
    return WorkerRows(
        op=np.tile(op, n_lanes),
        task=np.tile(order, n_lanes),
        seq=np.tile(seq, n_lanes),
        step=np.repeat(np.arange(n_steps), n_dp * len(order)),
        dp=np.tile(np.repeat(np.arange(n_dp), len(order)), n_steps),
        stage=np.tile(inputs.programme.stage[order], n_lanes),
        start_s=start_s.ravel(),
        duration_s=(times.end_s[order].transpose(1, 2, 0) - start_s).ravel(),
    )


def _pause_rows(inputs: Inputs, times: Times) -> list[WorkerRows]:
    """List the evidence rows of pauses that are recorded: from the start of the operation, or up to it, one after the other."""
    found = []
    for i, pause in enumerate(inputs.pauses):
        if not pause.recorded:
            continue
        seconds = np.broadcast_to(pause.seconds, times.start_s.shape)
        # A collection after the last compute has its row already.
        at = np.nonzero(seconds * ~inputs.programme.is_op(pause.kind)[:, None, None])
        start_s = times.start_s[at]
        if pause.where == "before":
            behind = [other.seconds for other in inputs.pauses[i:] if other.where == "before"]
            start_s = start_s - sum(np.broadcast_to(seconds_of, times.start_s.shape)[at] for seconds_of in behind)
        found.append(_evidence(pause.kind, inputs.programme.stage[at[0]], at[1], at[2], start_s, seconds[at]))
    return found


def _tail_rows(inputs: Inputs, times: Times) -> WorkerRows | None:
    """List the evidence rows of what follows the optimizer, if that is recorded."""
    if inputs.tail_kind is None:
        return None
    end_s = times.end_s[inputs.programme.last_tasks]
    seconds = np.broadcast_to(inputs.tail_s, end_s.shape)
    at = np.nonzero(seconds)
    return _evidence(inputs.tail_kind, at[0], at[1], at[2], end_s[at], seconds[at])


def _evidence(op: Op, stage: Ints, step: Ints, dp: Ints, start_s: Seconds, duration_s: Seconds) -> WorkerRows:
    """Make evidence rows of one type, not yet counted."""
    n_rows = len(start_s)
    return WorkerRows(
        np.full(n_rows, int(op)), np.full(n_rows, -1), np.zeros(n_rows, np.int64), step, dp, stage, start_s, duration_s
    )


def _count_evidence(rows: WorkerRows) -> WorkerRows:
    """Count the evidence rows of each type on each worker in each step by start."""
    at = np.flatnonzero(np.isin(rows.op, [int(op) for op in EVIDENCE]))
    order = at[np.lexsort((rows.start_s[at], rows.op[at], rows.stage[at], rows.dp[at], rows.step[at]))]
    key = np.stack([rows.step, rows.dp, rows.stage, rows.op])[:, order]
    is_first = np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)][: len(order)]
    first = np.flatnonzero(is_first)
    seq = rows.seq.copy()
    seq[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    return dataclasses.replace(rows, seq=seq)


def _member_rows(inputs: Inputs, rows: WorkerRows) -> tuple[WorkerRows, Ints]:
    """List the rows of every member, with which member each is of; where members wait for each other, rows of that behind them."""
    n_rows, n_members = len(rows.op), inputs.spec.n_members
    named = {f.name: getattr(rows, f.name) for f in dataclasses.fields(WorkerRows)}
    computes = (rows.task >= 0) & inputs.programme.is_op(Op.FORWARD, Op.BACKWARD)[rows.task]
    own = spread_members(inputs.spec, inputs.late_members, rows, computes)
    member = np.tile(np.arange(n_members), n_rows)
    found = WorkerRows(**{key: np.repeat(values, n_members) for key, values in named.items()})
    found = dataclasses.replace(found, start_s=own.start_s.ravel(), duration_s=own.duration_s.ravel())
    if own.wait_s is None:
        return found, member
    wait_s = own.wait_s.ravel()
    at = np.flatnonzero(~np.isnan(wait_s))
    waits = {f.name: getattr(found, f.name)[at] for f in dataclasses.fields(WorkerRows)}
    waits |= {"op": np.full(len(at), WAIT_CODE), "task": np.full(len(at), -1), "duration_s": wait_s[at]}
    waits["start_s"] = waits["start_s"] + found.duration_s[at] - wait_s[at]
    both = {f.name: np.concatenate([getattr(found, f.name), waits[f.name]]) for f in dataclasses.fields(WorkerRows)}
    return WorkerRows(**both), np.r_[member, member[at]]


def _table(inputs: Inputs, rows: WorkerRows, member: Ints | None = None) -> pa.Table:
    """Turn rows into columns with the narrow types of production traces."""
    spec, programme = inputs.spec, inputs.programme
    is_task = rows.task >= 0
    chunk = np.where(is_task, programme.chunk[rows.task], -1)
    microbatch = np.where(is_task, programme.microbatch[rows.task], -1)
    compute = microbatch >= 0
    rank = (rows.stage * spec.dp + rows.dp) * spec.n_members + (0 if member is None else member)
    seldom = {Op.EVAL, Op.LOG, Op.WEIGHT, *OWN_NAMES}
    codes = [code for code in (*Op, *OWN_NAMES) if code not in seldom or (rows.op == code).any()]
    names = [OWN_NAMES[code] if code in OWN_NAMES else NAMES[Op(code)] for code in codes]
    number = np.searchsorted(codes, rows.op)
    columns: dict[str, pa.Array] = {
        "dp_rank": _integers(rows.dp, pa.int8()),
        "stage": _integers(rows.stage, pa.int8()),
        "rank": _integers(rank, pa.int16()),
        "step": pa.array(spec.step_numbers()[rows.step]),
        "optype": pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int8)), pa.array(names)),
        "start_ts": pa.array(rows.start_s.astype(np.float64 if inputs.spec.absolute_times else np.float32)),
        "duration": pa.array(rows.duration_s.astype(np.float32)),
        "seq_id": pa.array(rows.seq.astype(np.int32)),
        "mc": _integers(chunk, pa.int8()),
        "mb_id": _integers(microbatch, pa.int8()),
        "gmc": _integers(np.where(compute, spec.position(rows.stage, chunk), -1), pa.int16()),
    }
    if member is not None:
        sizes = (("tp_rank", spec.tp_size, member % spec.tp_size), ("cp_rank", spec.cp_size, member // spec.tp_size))
        columns |= {name: _integers(values, pa.int8()) for name, size, values in sizes if size > 1}
    if per_host := spec.members_per_host:
        number = rank // per_host
        hosts = pa.array([f"host-{i:03}" for i in range(int(number.max(initial=0)) + 1)])
        columns["host"] = pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int32)), hosts)
    for name, values, kind in (("tokens", inputs.tokens, pa.int32()), ("tokens_sq", inputs.tokens_sq, pa.float64())):
        if values is not None:
            per_row = np.where(compute, values[microbatch, rows.step, rows.dp], 0.0)
            columns[name] = pa.array(per_row, mask=~compute).cast(kind)
    if inputs.documents is not None:
        columns["doc_lengths"] = _lists(inputs.documents, microbatch, rows)
    if inputs.expert_tokens is not None:
        tokens = inputs.expert_tokens[np.maximum(chunk, 0) * spec.pp + rows.stage, microbatch, rows.step, rows.dp]
        offsets = np.arange(len(tokens) + 1, dtype=np.int32) * tokens.shape[1]
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.ravel().astype(np.int32)))
        columns["expert_tokens"] = lists.take(pa.array(np.arange(len(tokens)), mask=~compute))
    metadata = {"diagnose.job": json.dumps(job_metadata(inputs), sort_keys=True)}
    return pa.table(columns).replace_schema_metadata(metadata)


def _lists(documents: Documents, microbatch: Ints, rows: WorkerRows) -> pa.Array:
    """Repeat the documents of a microbatch on each of its rows; null where they are unknown, and beside computes."""
    shape = (int(microbatch.max()) + 1, int(rows.step.max()) + 1, int(rows.dp.max()) + 1)
    list_of = np.full(shape, -1, dtype=np.int64)
    list_of[documents.microbatch, documents.step, documents.dp] = np.arange(len(documents))
    at = np.where(microbatch >= 0, list_of[microbatch, rows.step, rows.dp], -1)
    lists = pa.ListArray.from_arrays(pa.array(documents.offsets.astype(np.int32)), pa.array(documents.lengths))
    return lists.take(pa.array(at, mask=at < 0))


def _integers(values: NDArray[np.int64], narrow: pa.DataType) -> pa.Array:
    """Use the narrow type of production traces where the values fit, else the next that holds them."""
    largest = int(np.abs(values).max(initial=0))
    for kind in (narrow, pa.int16(), pa.int32()):
        if largest < 2 ** (kind.bit_width - 1):
            return pa.array(values.astype(kind.to_pandas_dtype()))
    return pa.array(values)
