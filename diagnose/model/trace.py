"""A job's trace after loading: blocks of steps that share one structure, dense over (node, step, dp rank).

Enters: what `diagnose.trace` read and checked. Leaves: the input of the what-if analysis.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import ColumnTable
from diagnose.model.documents import Documents
from diagnose.model.members import Members
from diagnose.model.optype import NAMES, Op
from diagnose.model.recording import Account

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Columns that say how much a compute has to do, from whatever holds rows to a block.
TOKEN_COLUMNS = ("tokens", "tokens_sq", "expert_tokens")


@dataclasses.dataclass(frozen=True, slots=True)
class Loader:
    """How a job's data loader is set up, in the words of PyTorch's `DataLoader`; None where nobody says."""

    num_workers: int
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What is known about the job itself; sizes agree with the rows, everything else is as somebody says, or None.

    `job_id` is the run's; `name` is what its runs share (`model.job_names`). `schedule` is a hint: rows win. `has_cuda`, `saves`
    and `reads_input` say whether the job can have allocator stalls of a GPU, saves its state, and reads data at all; `records_gc`
    that every collection of some length has a row. `alloc_conf` is what the environment tells PyTorch's CUDA allocator.
    """

    job_id: str
    dp_size: int
    pp_size: int
    tp_size: int
    cp_size: int
    vpp_size: int
    world_size: int
    layers_per_stage: tuple[int, ...] | None = None
    steps_total: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    gpu_type: str | None = None
    owner: str | None = None
    framework: str | None = None
    ep_size: int | None = None
    schedule: str | None = None
    name: str | None = None
    has_cuda: bool | None = None
    n_hosts: int | None = None
    saves: bool | None = None
    reads_input: bool | None = None
    records_gc: bool | None = None
    loader: Loader | None = None
    alloc_conf: str | None = None

    @property
    def is_on_cpu(self) -> bool:
        """True where it computes on CPUs, as somebody says; a type of GPU says more than no trace of CUDA."""
        return (self.gpu_type or "").lower() == "cpu" or (self.has_cuda is False and not self.gpu_type)

    @property
    def has_dp(self) -> bool:
        """True where gradients are reduced over more than one member (context-parallel ranks count, `dsp_size`)."""
        return self.dp_size * self.cp_size > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """The operations of one model-parallel group in one step, one entry an operation.

    All arrays have shape (n_nodes,). `stage` is an index 0..pp-1. `seq` counts operations of one type on one
    stage by launch order. `microbatch` and `chunk` are -1 where the type has none. `position` is where in the model a chunk
    stands; None where chunks are dealt out in turn.
    """

    op: Ints
    stage: Ints
    seq: Ints
    microbatch: Ints
    chunk: Ints
    position: Ints | None = None

    def __len__(self) -> int:
        return len(self.op)

    def take(self, kept: Bools) -> "Nodes":
        """Keep some of them."""
        columns = (self.op, self.stage, self.seq, self.microbatch, self.chunk)
        op, stage, seq, microbatch, chunk = (column[kept] for column in columns)
        return Nodes(op, stage, seq, microbatch, chunk, None if self.position is None else self.position[kept])

    def add(self, op: Ints, stage: Ints, seq: Ints) -> "Nodes":
        """Put operations without a microbatch behind them."""
        none = np.full(len(op), -1, dtype=np.int64)
        return Nodes(
            op=np.r_[self.op, op],
            stage=np.r_[self.stage, stage],
            seq=np.r_[self.seq, seq],
            microbatch=np.r_[self.microbatch, none],
            chunk=np.r_[self.chunk, none],
            position=None if self.position is None else np.r_[self.position, none],
        )

    def name(self, node: int) -> str:
        """Say which operation a node is, in words."""
        return f"{NAMES[Op(int(self.op[node]))]} {int(self.seq[node])} of stage {int(self.stage[node])}"


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Steps whose model-parallel groups all have the same operations."""

    #: Shape (n_steps,): step numbers, increasing.
    steps: Ints
    nodes: Nodes
    #: `start_s`, `end_s`: shape (n_nodes, n_steps, n_dp): seconds after the step began; NaN where the row is missing.
    start_s: Seconds
    end_s: Seconds
    #: Shape (n_nodes, n_steps, n_dp): True where the operation does not exist there (fewer microbatches on one dp rank, no
    #: collection); None: nowhere.
    absent: Bools | None = None
    #: `tokens`, `tokens_sq`: shape (n_nodes, n_steps, n_dp): as in the trace, NaN where unknown.
    tokens: Seconds | None = None
    tokens_sq: Seconds | None = None
    #: Shape (n_nodes, n_steps, n_dp): True where a missing operation was filled in: nothing is learned from it, and nobody
    #: blamed for it. None: nowhere.
    filled: Bools | None = None
    #: Shape (n_nodes, n_steps, n_dp): tokens that all local experts together were given, NaN where unknown.
    expert_tokens: Seconds | None = None
    #: `step_ends_s`, once somebody asked.
    _ends_s: list[Seconds] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def n_dp(self) -> int:
        """Number of data-parallel ranks."""
        return int(self.start_s.shape[2])

    @property
    def step_ends_s(self) -> Seconds:
        """When the last operation of each step ends: seconds, shape (n_steps,), worked out once."""
        if not self._ends_s:
            self._ends_s.append(self.end_s.max(axis=(0, 2)))
        return self._ends_s[0]

    def take_steps(self, at: Ints | Bools) -> "Block":
        """Take some steps, by mask or by position."""
        taken: dict[str, Any] = {
            field.name: None if (values := getattr(self, field.name)) is None else values[:, at]
            for field in dataclasses.fields(self)
            if field.init and field.name not in {"steps", "nodes"}
        }
        return dataclasses.replace(self, steps=self.steps[at], **taken)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence(ColumnTable):
    """Rows that are no operations (`gc`, `cuda-malloc`, `data-load`, `checkpoint`, or of any other type), one entry a row.

    All arrays have shape (n_rows,); `op` is the type, `step` is the step number, `dp` and `stage` are indices, times are seconds
    after the step began.
    """

    op: Ints
    step: Ints
    dp: Ints
    stage: Ints
    start_s: Seconds
    end_s: Seconds


#: No rows.
_NONE = np.zeros(0, dtype=np.int64)
NO_ROWS = Evidence(_NONE, _NONE, _NONE, _NONE, np.zeros(0), np.zeros(0))


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """A whole job, checked."""

    job: Job
    #: Together every analysed step once.
    blocks: tuple[Block, ...]
    evidence: Evidence
    #: `dp_labels`, `stage_labels`: shape (n_dp,) and (n_stages,): the ranks as the file names them; indices elsewhere point
    #: into these.
    dp_labels: Ints
    stage_labels: Ints
    #: Host of each worker, at position `dp_index * n_stages + stage_index`.
    hosts: tuple[str, ...] | None
    #: Shape (n_dp, n_stages): global rank of each worker.
    ranks: Ints
    #: Shape (n_all_steps,): when each analysed step began, seconds on the job's clock, in step order; None where times are
    #: relative to the step.
    step_origin_s: Seconds | None
    n_ops: int
    steps_dropped: int
    #: First steps that are much longer than all others; causes are sought without them.
    warm_up_steps: tuple[int, ...]
    #: First steps after a restart inside the file; what lies between them and the step before is not the job's time.
    restarted_steps: tuple[int, ...]
    warnings: tuple[str, ...]
    #: The documents of the microbatches of the analysed steps; None where the trace knows of none.
    documents: Documents | None = None
    #: The tensor- and context-parallel members of each worker; None where the trace records one row for all of them.
    members: Members | None = None
    #: What another producer's files could not bring along; None where the rows were written as a trace.
    recording: Account | None = None
    #: Ranks that the job has by its metadata, which may be more than the rows are of; 0 where it does not say.
    ranks_told: int = 0
    #: Rows of types that the format does not name; their `op` is a position in `other_types`.
    others: Evidence = NO_ROWS
    #: Names of these types, as the file has them.
    other_types: tuple[str, ...] = ()
    #: Why times cannot be in seconds, where nobody said that they are; empty where they can.
    unit_doubt: str = ""
    #: Part of a typical compute that the clock cannot tell; 0 where it is fine enough.
    coarse_share: float = 0.0
    #: No transfer was recorded: those of the blocks were derived from the computes, which tell slow ones.
    are_derived: bool = False

    @property
    def is_on_one_cpu(self) -> bool:
        """True where all workers compute on the CPUs of one host, as far as the trace says: no network is between them."""
        return self.job.is_on_cpu and self.is_on_one_host

    @property
    def is_on_one_host(self) -> bool:
        """True where all workers are on one host, as far as the trace says: they have one clock."""
        hosts = set(self.hosts or ())
        return len(hosts) == 1 and "" not in hosts if hosts else self.job.n_hosts == 1

    def host_of(self, dp: int, stage: int) -> str | None:
        """Name the host of a worker given by indices."""
        return None if self.hosts is None else self.hosts[dp * self.n_stages + stage] or None

    @property
    def between_hosts(self) -> Bools | None:
        """Say which links, by their first stages, are between two hosts, shape (n_stages, n_dp); None where a host is unknown."""
        if not self.hosts or "" in self.hosts:
            return None
        host = np.array(self.hosts).reshape(self.n_dp, self.n_stages).T
        return np.asarray(host != np.roll(host, -1, axis=0))

    @property
    def steps(self) -> Ints:
        """Analysed step numbers, block after block."""
        return np.concatenate([block.steps for block in self.blocks])

    @property
    def n_dp(self) -> int:
        """Number of data-parallel ranks in the rows."""
        return len(self.dp_labels)

    @property
    def n_stages(self) -> int:
        """Number of pipeline stages in the rows."""
        return len(self.stage_labels)
