"""Traces of torch.profiler (Kineto): one Chrome trace a rank, packed or not.

Enters: the traces of all ranks of a job, or of one. Leaves: a `Recording`. Ranks are read apart, several at a time, each as a
stream (`events`, `collect`), and made operations of (`rank`); here they find their places and their rows.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.budget import HostWait
from diagnose.model.members import WAITS
from diagnose.model.optype import DIRECTIONS, P2P, Op
from diagnose.model.recording import Dropped, HostTime, Recording, Unobserved
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.clocks import align
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.producers.catalogue import Report
from diagnose.trace.producers.kineto.apart import list_names, refuse_other_jobs
from diagnose.trace.producers.kineto.layout import Layout, RankCoordinates, place_ranks
from diagnose.trace.producers.kineto.operations import CUT, WAIT, Operations
from diagnose.trace.producers.kineto.rank import Rank, read_rank_safely
from diagnose.trace.producers.kineto.table import (
    OperationTable,
    begin_receives,
    drop_mismatched,
    end_sends,
    fill_ends,
)

NAME = "kineto"
TITLE = "PyTorch profiler traces (torch.profiler, Kineto): a folder with one *.json or *.json.gz a rank, or one of them"

#: Files of one rank are read beside each other from this size on: a process takes a second to start.
MIN_PARALLEL_BYTES = 8 << 20
#: Processes that read at a time: each takes some 200 MB where a rank has 200 MB of text.
MAX_PROCESSES = 8
#: Who saves the state of a model copies it from the GPU: a megabyte and more at a time, which takes longer than this, microseconds.
SAVED_US = 50.0
#: A call that waits for the GPU is told where this part of them follows one.
SYNCHRONISED_SHARE = 0.1
_MARKS = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
    b"ProfilerStep#",
    b'"cpu_op"',
    b'"user_annotation"',
    b'"cuda_runtime"',
)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


def recognise(inputs: InputFiles) -> bool:
    """Say whether any of the files begins as a trace of Kineto."""
    return any(_is_trace(inputs, file) for file in inputs.files)


def read(inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read the traces of all ranks: of each rank and step one, in which something says what was computed.

    A file that cannot be read is left out, with a warning that says why, where another one can.
    """
    files = [file for file in inputs.files if _is_trace(inputs, file)]
    where = [name_in(inputs.path, file, name) for file in files]
    parts: list[Rank] = []
    faults: list[TraceError] = []
    for n, rank in enumerate(_read_all(files, where), start=1):
        report(f"rank file {n} of {len(files)}")
        if isinstance(rank, Rank):
            parts.append(rank)
        else:
            faults.append(rank)
    if not parts:
        raise faults[0]
    refuse_other_jobs(parts)
    numbers, warnings = _number_ranks(parts)
    parts, lent = _lend_bases(parts)
    if all(part.steps and part.steps_by != "profiler" and not part.steps_moved for part in parts):
        parts = _count_alike(parts)
    parts, numbers = _join_cycles(parts, numbers)
    left_out = [name_in(inputs.path, file, name) for file in inputs.files if file not in files and ".json" in file.name]
    told = [f"left out, as it cannot be used: {fault}" for fault in faults]
    told += [f"left out, as no Kineto traces begin in them: {list_names(left_out)}"] if left_out else []
    try:
        _refuse_empty(parts, name)
        layout = place_ranks(parts, numbers, name=name)
    except TraceError as error:
        if not told:
            raise
        raise TraceError("; ".join((error.message, *told)), where=error.where) from error
    recording, one_clock = _lay_out(parts, layout)
    one_clock = one_clock and not lent
    recording = dataclasses.replace(
        recording,
        dropped=(*recording.dropped, *_count_dropped(parts, len(inputs.files) - len(files))),
        unobserved=(*recording.unobserved, *_list_missing(parts, recording)),
        warnings=(
            *told,
            *warnings,
            *layout.warnings,
            *(w for rank in parts for w in rank.warnings),
            *_warn(parts, recording),
        ),
        host_time=_join_host_time(parts),
    )
    if one_clock:
        return recording
    return align(recording, "host" if recording.host is not None else "rank")


def _is_trace(inputs: InputFiles, file: Path) -> bool:
    """Say whether a file begins as a trace of Kineto; its header may be longer than what is looked at."""
    head = inputs.head(file)
    if head.lstrip()[:1] != b"{":
        return False
    n_marks = sum(mark in head for mark in _MARKS)
    return n_marks >= 1 and (bool(_EVENTS.search(head)) or (n_marks > 1 and b'"schemaVersion"' in head))


def _read_all(files: Sequence[Path], where: Sequence[str]) -> Iterator[Rank | TraceError]:
    """Read files in their order, several at a time where they are large; of one that cannot be read give why."""
    n_processes = min(os.cpu_count() or 1, len(files), MAX_PROCESSES)
    small = sum(file.stat().st_size for file in files) < MIN_PARALLEL_BYTES
    alone = multiprocessing.current_process().daemon  # which may have no children
    done = 0
    if n_processes > 1 and not small and not alone:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(n_processes, context, initializer=_begin_reading) as pool:
            try:
                for found in pool.map(read_rank_safely, files, where):
                    yield found
                    done += 1
            except concurrent.futures.BrokenExecutor:
                pass  # none can be started here (a program without a main guard): go on in this process
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    for file, place in list(zip(files, where, strict=True))[done:]:
        yield read_rank_safely(file, place)


def _begin_reading() -> None:
    """Prepare a process that reads: its parent handles an interrupt, and it ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Wait for the parent to end, however it does, and end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _number_ranks(parts: Sequence[Rank]) -> tuple[list[int], list[str]]:
    """Say the global rank of each file: its header, else its name, else its turn."""
    warnings: list[str] = []
    if len(parts) == 1:
        return [parts[0].rank or 0], warnings
    unknown = [part for part in parts if part.rank is None]
    by_name = [part for part in parts if part.rank is not None and part.rank_from_name]
    if unknown:
        warnings.append(
            f"{len(unknown)} of {len(parts)} traces say their rank neither inside nor by name; all are numbered in the order of "
            "their names"
        )
        workers = list(dict.fromkeys(part.worker for part in parts))
        return [workers.index(part.worker) for part in parts], warnings
    if by_name:
        warnings.append(
            f"{len(by_name)} of {len(parts)} traces have no distributedInfo; their rank is that of their name"
        )
    return [part.rank for part in parts if part.rank is not None], warnings


def _lend_bases(parts: Sequence[Rank]) -> tuple[list[Rank], bool]:
    """Give those that do not say what their times count from what another's do; say whether any needed it.

    Some versions write it at the end of a file, which may be cut off.
    """
    known = [part.base_ns for part in parts if part.base_ns is not None]
    base_ns = min(known, default=0)
    lent = [part if part.base_ns is not None else dataclasses.replace(part, base_ns=base_ns) for part in parts]
    return lent, 0 < len(known) < len(parts)


def _count_alike(parts: Sequence[Rank]) -> list[Rank]:
    """Count the steps that no profiler numbers alike in all ranks, from the first one that half of them have whole.

    Others may lack the first ones; which, say the ends of steps: those of one step are closer to each other than to the next one's.
    """
    counting = max(parts, key=lambda part: len(part.steps))
    counted_us = _list_ends(counting)
    firsts = []
    for part in parts:
        n_lacking = len(counting.steps) - len(part.steps)
        ends_us = _list_ends(part) + ((part.base_ns or 0) - (counting.base_ns or 0)) / 1e3
        off_us = [np.median(np.abs(ends_us - counted_us[at : at + len(ends_us)])) for at in range(n_lacking + 1)]
        firsts.append(int(np.argmin(off_us)))
    begin = sorted(firsts)[len(parts) // 2]
    return [_begin_with(part, begin - first) for part, first in zip(parts, firsts, strict=True)]


def _begin_with(part: Rank, n_before: int) -> Rank:
    """Leave out so many steps at the begin of a rank, and count from 0 what follows; where it is below 0 some are lacking there."""
    if n_before == 0:
        return part
    operations = part.operations.take(part.operations.step >= n_before)
    operations = dataclasses.replace(operations, step=operations.step - n_before)
    steps = tuple(step - n_before for step in part.steps if step >= n_before)
    cut = Counter({CUT: len(part.operations) - len(operations)})
    return dataclasses.replace(part, operations=operations, steps=steps, dropped=part.dropped + cut)


def _list_ends(part: Rank) -> Seconds:
    """Give when the last operation of each step ends, microseconds of the file, 0 where there is none; steps are counted from 0."""
    ends = np.zeros(len(part.steps))
    np.maximum.at(ends, part.operations.step, part.operations.end)
    return ends


def _join_cycles(parts: Sequence[Rank], numbers: Sequence[int]) -> tuple[list[Rank], list[int]]:
    """Join the files of one rank, one for each time that its profiler was on."""
    joined: dict[int, Rank] = {}
    for part, number in zip(parts, numbers, strict=True):
        before = joined.get(number)
        if before is None:
            joined[number] = part
            continue
        shift = ((part.base_ns or 0) - (before.base_ns or 0)) / 1e3
        moved = dataclasses.replace(
            part.operations, start=part.operations.start + shift, end=part.operations.end + shift
        )
        joined[number] = dataclasses.replace(
            before,
            operations=Operations.join([before.operations, moved]),
            groups=(*before.groups, *part.groups),
            steps=(*before.steps, *part.steps),
            n_on_host=before.n_on_host + part.n_on_host,
            dropped=before.dropped + part.dropped,
            warnings=(*before.warnings, *part.warnings),
        )
    order = sorted(joined)
    return [joined[number] for number in order], order


def _refuse_empty(parts: Sequence[Rank], name: str) -> None:
    """Refuse traces that do not say what was computed."""
    for op, what in ((Op.FORWARD, "forward"), (Op.BACKWARD, "backward")):
        if any((part.operations.op == op).any() for part in parts):
            continue
        if not any(part.steps for part in parts):
            raise TraceError(
                "is a Kineto trace without steps; expected ProfilerStep#N, or Optimizer.step: call profiler.step() in the loop, "
                "and record whole steps",
                where=name,
            )
        raise TraceError(
            f"is a Kineto trace with no {what} in its steps: neither annotations name one, nor do operators of autograd show one; "
            "expected ProfilerActivity.CPU among the activities, and whole training steps",
            where=name,
        )


def _lay_out(parts: Sequence[Rank], layout: Layout) -> tuple[Recording, bool]:
    """Make rows of the operations of all ranks; say whether their times are of one clock."""
    hosts = [part.host for part in parts]
    known = all(hosts)
    names = tuple(dict.fromkeys(hosts)) if known else ()
    one_clock = len(parts) == 1 or len(names) == 1
    table = _make_table(parts, layout, [names.index(host) if known else -1 for host in hosts])
    table, mismatched = drop_mismatched(table)
    table, unobserved = _settle_transfers(table, parts, layout, one_clock=one_clock)
    waits = (table.other >= 0).any()
    counted = layout.n_chunks == 1 or layout.names_chunks  # else the schedule says which compute is which
    recording = Recording(
        producer=NAME,
        op=table.op,
        other=table.other if waits else None,
        other_types=WAITS if waits else (),
        step=table.step,
        dp=table.dp,
        stage=table.stage,
        start_s=table.start_s,
        duration_s=np.maximum(table.end_s - table.start_s, 0.0),
        microbatch=np.where(table.is_op(*DIRECTIONS), table.microbatch, -1) if counted else None,
        chunk=table.chunk if counted else None,
        position=np.where(table.is_op(*DIRECTIONS), table.virtual, -1) if layout.in_v else None,
        rank=table.rank,
        tp_rank=table.tp if layout.n_tp > 1 else None,
        cp_rank=table.cp if layout.n_cp > 1 else None,
        host=table.host if known else None,
        host_names=names,
        job=_describe(parts, layout),
        dropped=tuple(mismatched),
        unobserved=tuple(unobserved),
    )
    return recording, one_clock


def _make_table(parts: Sequence[Rank], layout: Layout, hosts: Sequence[int]) -> OperationTable:
    """Put the operations of all ranks into one table, on one base of time."""
    n_rows = [len(part.operations) for part in parts]
    of = {
        field: np.repeat(np.array([getattr(place, field) for place in layout.places], dtype=np.int64), n_rows)
        for field in ("rank", "dp", "stage", "tp", "cp")
    }
    column = {
        field: np.concatenate([getattr(part.operations, field) for part in parts])
        for field in ("op", "step", "stage", "microbatch", "chunk", "seq")
    }
    # Bases are taken from each other as whole numbers: unix microseconds have a quarter of one left in floating point.
    bases_ns = [part.base_ns or 0 for part in parts]
    base_ns = min(bases_ns)
    start_us, end_us = (
        np.concatenate(
            [getattr(p.operations, side) + (of - base_ns) / 1e3 for p, of in zip(parts, bases_ns, strict=True)]
        )
        for side in ("start", "end")
    )
    first_us = float(start_us.min())
    named = column["stage"] >= 0
    chunk = np.where(named, np.maximum(column["stage"], 0) // layout.n_stages, column["chunk"])
    of_chunk = np.isin(column["op"], [int(op) for op in (*DIRECTIONS, Op.ALL_GATHER, Op.REDUCE_SCATTER)])
    place_of = {place.rank: place for place in layout.places}
    other = np.concatenate([_name_waits(part, place_of, n_stages=layout.n_stages) for part in parts])
    return OperationTable(
        op=column["op"],
        step=column["step"],
        **of,
        host=np.repeat(np.array(hosts, dtype=np.int64), n_rows),
        virtual=np.where(named, column["stage"], of["stage"]),
        microbatch=column["microbatch"],
        chunk=np.where(of_chunk, np.maximum(chunk, 0), -1),
        seq=column["seq"],
        other=other,
        start_s=(start_us - first_us) / 1e6,
        end_s=(end_us - first_us) / 1e6,
    ).take((column["op"] != WAIT) | (other >= 0))


def _name_waits(part: Rank, place_of: Mapping[int, RankCoordinates], *, n_stages: int) -> Ints:
    """Say for whom a rank waits in each of its rows, by the places of the group's ranks: position in `WAITS`, -1: nobody knows.

    Waits for other data-parallel ranks of a job without stages lie at the end of its steps already.
    """
    group, is_wait = part.operations.group, part.operations.op == WAIT
    found = np.full(len(group), -1, dtype=np.int64)
    for name in np.unique(group[is_wait]).tolist():
        groups = [of for of in part.groups if of.name == name] if name else part.groups
        kinds = {kind for of in groups if (kind := _name_group(of.ranks, place_of)) is not None}
        if len(kinds) > 1 and not part.sharded:
            kinds.discard("dp-wait")  # gradients are reduced between computes, or in hooks
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and (kind != "dp-wait" or n_stages > 1):
            found[is_wait & (group == name)] = WAITS.index(kind)
    return found


def _name_group(ranks: Sequence[int], place_of: Mapping[int, RankCoordinates]) -> str | None:
    """Name the waits in a group of ranks; None where these are of several stages, or fewer than two."""
    places = [place_of[rank] for rank in ranks if rank in place_of]
    if len(places) < 2 or len({place.stage for place in places}) > 1:
        return None
    if len({place.dp for place in places}) > 1:
        return "dp-wait"
    return "tp-wait" if len({place.tp for place in places}) > 1 else "cp-wait"


def _settle_transfers(
    table: OperationTable, parts: Sequence[Rank], layout: Layout, *, one_clock: bool
) -> tuple[OperationTable, list[Unobserved]]:
    """Bring sends and receives into the form of the trace format, or say why there are none."""
    if not table.is_op(*P2P).any():
        return table, []
    lacks = ("transfers", "communication-in-flight")
    if all(part.dialect != "own" for part in parts) and not any(part.on_gpu for part in parts):
        if not one_clock:
            reason = "on the CPU a send is known to have ended once it was waited for, and the ranks share no clock"
            return table.take(~table.is_op(*P2P)), [Unobserved("transfers between stages", reason, lacks)]
        table = end_sends(begin_receives(table))
    if layout.n_chunks == 1:
        return table, []
    if not layout.names_chunks:
        reason = "no annotation says of which chunk a send or receive is; computes follow the interleaved schedule"
        return table.take(~table.is_op(*P2P)), [Unobserved("transfers between stages", reason, lacks)]
    if layout.in_v:
        reason = (
            "in a V a rank sends and receives on both sides in both directions; they are told from its computes alone"
        )
        return table.take(~table.is_op(*P2P)), [Unobserved("when transfers between stages began and ended", reason)]
    filled = fill_ends(table, layout.n_stages * layout.n_chunks)
    if filled is None:
        reason = "sends and receives do not go with the computes one by one: some are missing, or in another order"
        return table.take(~table.is_op(*P2P)), [Unobserved("transfers between stages", reason, lacks)]
    return filled, []


def _describe(parts: Sequence[Rank], layout: Layout) -> dict[str, Any]:
    """Give the metadata of the job."""
    job: dict[str, Any] = {
        "framework": "PyTorch",
        "dp_size": max(place.dp for place in layout.places) + 1,
        "pp_size": layout.n_stages,
        "tp_size": layout.n_tp,  # said even where it is 1: else the highest rank of a job with absent ranks is taken for its size
        "cp_size": layout.n_cp,
    }
    if layout.n_chunks > 1:
        job["vpp_size"] = layout.n_chunks
    if (world := max(part.world or 1 for part in parts)) > len(parts):
        job["world_size"] = world
    if all(part.has_gpu is not None for part in parts):
        job["has_cuda"] = any(part.has_gpu for part in parts)
    if (ep_size := _count_sharing(parts, layout)) and (job["dp_size"] % ep_size == 0 or world > len(parts)):
        job["ep_size"] = ep_size
    copied_us = [part.longest_to_host_us for part in parts]
    if world <= len(parts) and all(us is not None and us < SAVED_US for us in copied_us):
        job["saves"] = False
    gpu = next((part.gpu_type for part in parts if part.gpu_type), None)
    if gpu:
        job["gpu_type"] = gpu
    return job


def _count_sharing(parts: Sequence[Rank], layout: Layout) -> int:
    """Say how many ranks share experts; 0 where no trace shows any.

    Where calls name no group it is the largest one of data-parallel ranks of a stage that has a name.
    """
    place_of = {place.rank: place for place in layout.places}
    for part in parts:
        if part.expert_group is not None:
            of_replicas = [of for of in part.groups if _name_group(of.ranks, place_of) == "dp-wait"]
            may_be = [] if part.expert_group else of_replicas
            sharing = [of for of in part.groups if of.name == part.expert_group] or may_be
            return max((len(of.ranks) for of in sharing), default=part.world or 0)
    return 0


def _count_dropped(parts: Sequence[Rank], n_others: int) -> list[Dropped]:
    """Add up what was dropped in all files."""
    total: Counter[tuple[str, str]] = Counter()
    for part in parts:
        total.update(part.dropped)
    dropped = [Dropped(what, n, reason) for (what, reason), n in sorted(total.items())]
    if n_others:
        dropped.append(Dropped("files", n_others, "are no Kineto traces"))
    return dropped


def _list_missing(parts: Sequence[Rank], recording: Recording) -> list[Unobserved]:
    """Say what the profiles cannot tell."""
    unobserved = []
    world = max((part.world or 0 for part in parts), default=0)
    if world > len(parts):
        alone: tuple[str, ...] = ("peers", "transfers") if len(parts) == 1 else ()
        if len(parts) > 1 and recording.job["pp_size"] == 1:
            alone = ("transfers",)  # what all of them wait for in a collective may be one of those
        reason = "their traces are not there; what is slowest, or waited for, may be among them"
        unobserved.append(Unobserved(f"{world - len(parts)} of {world} ranks", reason, alone))
    elif len(parts) == 1 and not world and not parts[0].alone:
        reason = (
            "it has collectives, or a model wrapped for them, and no distributedInfo; whom it waits for is not there"
        )
        unobserved.append(Unobserved("other ranks", reason, ("peers", "transfers")))
    if recording.job["pp_size"] > 1 and not np.isin(recording.op, P2P).any() and not recording.unobserved:
        reason = "no annotation, kernel or call of a send or receive is in the traces"
        unobserved.append(Unobserved("transfers between stages", reason, ("transfers", "communication-in-flight")))
    if not any(part.on_gpu for part in parts):
        reason = "nothing in the traces ran on one; times are those of the host, which are right for a job on CPUs only"
        unobserved.append(Unobserved("times of the GPU", reason))
    if not any(part.records_collections for part in parts) and not (recording.op == Op.GC).any():
        reason = "only with_stack and record_python_gc_info record them; their stalls are told by their shape alone"
        unobserved.append(Unobserved("collections of Python", reason, ("collection-rows",)))
    moved = recording.job["pp_size"] == 1 and any(part.dialect in ("runs", "phases") for part in parts)
    if moved and any(part.sharded for part in parts):
        reason = "FSDP waits for parameters inside forwards and backwards; these waits are moved to the end of the last backward"
        unobserved.append(Unobserved("when each layer waited", reason))
    return unobserved


def _join_host_time(parts: Sequence[Rank]) -> HostTime | None:
    """Say how long GPUs wait for their hosts, and what the one that waits most waits for; None where nothing tells."""
    waiting = [part for part in parts if part.host_time.total_us]
    if not waiting:
        return None
    share = sum(part.host_time.idle_us for part in waiting) / sum(part.host_time.total_us for part in waiting)
    worst = max(waiting, key=lambda part: part.host_time.idle_us / part.host_time.total_us)
    costly = next((one for one in worst.host_time.synchronisations if one.lost_us > 0), None)
    if costly is None or costly.lost_us < SYNCHRONISED_SHARE * worst.host_time.idle_us:
        return HostTime(share)
    per_step, lost = costly.n / max(len(worst.steps), 1), costly.lost_us / worst.host_time.total_us
    return HostTime(share, HostWait(costly.operator, costly.call, costly.inside, per_step, lost, worst.rank))


def _warn(parts: Sequence[Rank], recording: Recording) -> list[str]:
    """Say what may mislead."""
    warnings = []
    n_on_host = sum(part.n_on_host for part in parts)
    if n_on_host:
        warnings.append(f"{n_on_host} computes have no kernel in the traces; they are timed by the host")
    by = {part.steps_by for part in parts if not part.steps_moved}
    if "updates" in by:
        warnings.append("no ProfilerStep#N is in the traces; steps are cut after each Optimizer.step")
    if "backwards" in by:
        warnings.append(
            "neither ProfilerStep#N nor Optimizer.step is in the traces; a forward after a backward is taken to begin a step"
        )
    if any(part.steps_moved for part in parts):
        warnings.append(
            "ProfilerStep#N lies within iterations, as where a trainer steps its profiler before the backward or once a "
            "microbatch; steps are cut after each Optimizer.step"
        )
    if {part.dialect for part in parts} <= {"runs"}:
        warnings.append("no annotation names forwards and backwards; they are told by the operators of autograd")
    elif len({part.dialect for part in parts}) > 1:
        listed = ", ".join(sorted({part.dialect for part in parts}))
        warnings.append(f"the ranks name their operations in different ways ({listed})")
    if len(parts) == 1 and recording.job["pp_size"] == 1 and not parts[0].world and parts[0].alone:
        warnings.append("one trace without distributedInfo: taken for a job of one GPU")
    return warnings
