"""From a file to a checked `Trace`: the one verb of this folder.

Enters: a path or standard input. Leaves: a `Trace`, or a `TraceError` that says what to do.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from diagnose.errors import MemoryShortageError
from diagnose.model.job_names import id_of_path, locate
from diagnose.model.members import Members
from diagnose.model.memory import BYTES_AT_START, BYTES_PER_NODE, default_memory, write_bytes
from diagnose.model.optype import DP_COLLECTIVES, NAMES, P2P, Op, of_types
from diagnose.model.recording import Unobserved
from diagnose.model.trace import Ints, Job, Trace
from diagnose.trace.derive import derive_transfers, lacks_transfers
from diagnose.trace.grid import Grid, build_grid
from diagnose.trace.metadata import count_ranks_told, read_metadata, resolve_job
from diagnose.trace.read import read_rows
from diagnose.trace.rows import Rows, take_rows
from diagnose.trace.units import convert_rows, doubt_unit, measure_coarseness, read_unit

#: Model chunks a worker beyond which metadata is damage.
MAX_CHUNKS = 1000
#: Fewer different operations are no question of memory.
MANY_NODES = 10_000
#: What is said where no transfer was recorded.
DERIVED = (
    "taken to last from one compute of a worker to the next, where it sends or receives in between; what else it does then "
    "counts as transfer"
)
QUEUED = "workers of interleaved chunks go on before the other end is ready, so that queued transfers and slow ones look alike"
#: Both ends of a transfer.
_ENDS = ((Op.FORWARD_SEND, Op.FORWARD_RECV), (Op.BACKWARD_SEND, Op.BACKWARD_RECV))
#: Steps that one range may name: a typing error must not fill the memory.
MAX_STEPS = 10_000_000


def load_trace(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    meta: Path | Mapping[str, Any] | None = None,
    steps: Ints | None = None,
    unit: str | None = None,
    memory_bytes: int | None = None,
    location: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Trace:
    """Read, check and lay out the trace of one job.

    Parameters
    ----------
    source : path, or open binary file that can seek
        A trace, a folder with one trace a rank, or files of a known producer.
    name : str, optional
        How errors and reports call the input; the path when left out.
    meta : Path or mapping, optional
        YAML file with job metadata, or what would stand in one.
    steps : ndarray of int64, optional
        Analyse only these steps.
    unit : {"s", "ms", "us", "ns"}, optional
        What the times of a trace are in, whatever its metadata says; without either they are seconds, which is doubted where they
        cannot be. The files of another producer say their unit themselves.
    memory_bytes : int, optional
        Memory that the job may take; what the machine allows when left out. Of a larger trace whole steps are read.
    location : str, optional
        Where the job lies, which names it where its metadata does not; `name` when left out.
    report : callable, optional
        Told what is being read, a line at a time.

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    UsageError
        `meta` does not exist.
    """
    path = Path(source) if isinstance(source, (str, Path)) else None
    name = name or (str(path) if path else "standard input")
    rows = read_rows(source, name=name, report=report, memory_bytes=memory_bytes, steps=steps)
    found = read_metadata(path, rows.job, meta)
    unit_warnings: list[str] = []
    unit = unit or read_unit(found, unit_warnings)
    if rows.recording is not None:
        unit = "s"
    elif unit is not None:
        rows = convert_rows(rows, unit)
    rows, lone = _leave_out_lone_transfers(rows)
    grid = build_grid(rows, name=name, vpp_size=_read_vpp_size(found), pick_steps=steps)
    _refuse_large_graphs(grid, memory_bytes or default_memory(), name)
    if grid.n_cp is not None and found.get("cp_size") is None:
        found = found | {"cp_size": grid.n_cp}
    if _reduces_alone(grid, found):
        found = found | {"tp_size": 1}
    # Producers that know the members of workers say themselves which ranks lack.
    says_lacking = rows.recording is not None and found.get("tp_size") is not None
    job, warnings = resolve_job(
        found | {"world_size": None} if says_lacking else found,
        run_id=id_of_path(path) if path else "job",
        location=location or (locate(name) if path else name),
        n_dp=len(grid.dp_labels),
        n_stages=len(grid.stage_labels),
        n_chunks=grid.n_chunks,
        max_rank=int(grid.ranks.max()) if grid.has_ranks else None,
        n_tp=grid.n_tp,
    )
    ranks, members = _number_ranks(grid, job)
    coarse_share, coarse = measure_coarseness(rows, grid.blocks)
    blocks, recording = grid.blocks, rows.recording
    # In a file that was written as a trace what is not there was not meant to be: its graph links computes directly.
    are_told = False
    if recording is not None and lacks_transfers(blocks):
        blocks, are_told = derive_transfers(blocks)
        what = "point-to-point operations"
        lack = Unobserved(what, DERIVED) if are_told else Unobserved(what, f"{DERIVED}; {QUEUED}", ("transfers",))
        recording = dataclasses.replace(recording, unobserved=(*recording.unobserved, lack))
    return Trace(
        job=job,
        ranks_told=count_ranks_told(found),
        blocks=blocks,
        evidence=grid.evidence,
        others=grid.others,
        other_types=grid.other_types,
        dp_labels=grid.dp_labels,
        stage_labels=grid.stage_labels,
        hosts=grid.hosts,
        ranks=ranks,
        step_origin_s=grid.step_origin_s,
        n_ops=grid.n_ops,
        steps_dropped=grid.steps_dropped,
        warm_up_steps=grid.warm_up_steps,
        restarted_steps=grid.restarted_steps,
        warnings=(
            *rows.recording_warnings,
            *unit_warnings,
            *warnings,
            *lone,
            *grid.warnings,
            *([coarse] if coarse else []),
        ),
        documents=grid.documents,
        members=members,
        recording=recording,
        unit_doubt=doubt_unit(grid.blocks) if unit is None else "",
        coarse_share=coarse_share,
        are_derived=are_told,
    )


def _leave_out_lone_transfers(rows: Rows) -> tuple[Rows, list[str]]:
    """Leave transfers out where nobody recorded one end of them: the other end alone cannot be replayed; with what is said."""
    there = np.bincount(rows.op[rows.op >= 0], minlength=len(Op)).astype(bool)
    alone = [NAMES[one] for ends in _ENDS for one, other in (ends, ends[::-1]) if there[one] and not there[other]]
    if not alone or np.ptp(rows.stage) == 0:
        return rows, []
    said = f"{' and '.join(alone)} rows without those of the other end: no transfer rows are used"
    return take_rows(rows, ~of_types(rows.op, P2P)), [said]


def _refuse_large_graphs(grid: Grid, memory_bytes: int, name: str) -> None:
    """Refuse steps of so many different operations that what waits for what does not fit into memory."""
    n_nodes = sum(len(block.nodes) for block in grid.blocks)
    layouts = 1 if len(grid.stage_labels) == 1 else 2  # several stages are laid out under other schedules, too
    needs = BYTES_AT_START + BYTES_PER_NODE * n_nodes * layouts
    if n_nodes > MANY_NODES and needs > memory_bytes:
        raise MemoryShortageError(
            f"steps have {n_nodes} different operations, which need about {write_bytes(needs)} of memory; the job may take "
            f"{write_bytes(memory_bytes)}: raise --memory",
            where=name,
        )


def _read_vpp_size(found: dict[str, Any]) -> int | None:
    """Read the model chunks a worker from the metadata; None where it says none that can be."""
    said = found.get("vpp_size")
    return said if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= MAX_CHUNKS else None


def _reduces_alone(grid: Grid, found: dict[str, Any]) -> bool:
    """Say whether one data-parallel rank reduces gradients with ranks that are not there: no tensor parallelism explains these."""
    if (
        len(grid.dp_labels) > 1
        or grid.n_tp is not None
        or any(found.get(key) for key in ("tp_size", "cp_size", "dp_size"))
    ):
        return False
    return any(of_types(block.nodes.op, DP_COLLECTIVES).any() for block in grid.blocks)


def _number_ranks(grid: Grid, job: Job) -> tuple[Ints, Members | None]:
    """Give the global rank of each worker and of its members: as the rows say, else as Megatron-LM deals ranks."""
    if grid.has_ranks:
        return grid.ranks, grid.members
    ranks = grid.ranks * job.tp_size * job.cp_size  # tensor- and context-parallel members are numbered first
    members = grid.members
    if members is not None:
        number, n_tp = np.arange(members.n_members), grid.n_tp or 1
        within = number // n_tp * job.tp_size + number % n_tp
        members = dataclasses.replace(members, ranks=ranks[:, :, None] + within)
    return ranks, members


def parse_steps(text: str) -> Ints:
    """Read a list of steps and ranges such as `16-40,80`.

    >>> parse_steps("3-5,80").tolist()
    [3, 4, 5, 80]
    """
    steps: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = int(first)
        high = int(last) if dash else low
        if high < low or high - low > MAX_STEPS:
            raise ValueError(part)
        steps.update(range(low, high + 1))
    return np.array(sorted(steps), dtype=np.int64)
