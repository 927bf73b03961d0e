"""What a job is: its shape, its schedule and its typical times.

Enters: numbers from a test, the command line or a random generator. Leaves: a checked `JobSpec`.
"""

import dataclasses
import math
from typing import Literal, TypeVar, get_args

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints

#: Batches that block the worker; sends and recvs one by one, each of which blocks; one stream for each of the four types, the recv
#: posted early; sends in streams, and a recv that blocks the worker when its data are needed.
P2P = Literal["blocking", "pairs", "asynchronous", "lazy"]
#: 1F1B is interleaved where `vpp` is above 1, as is zero-bubble, which is ZB-H1. Eager 1F1B starts with twice the forwards, as does
#: ZB-H2. Looped breadth-first runs all microbatches of a model chunk before the next chunk. Under ZB-V and DualPipeV a worker has a
#: chunk from each end of the model.
Schedule = Literal["1f1b", "eager", "gpipe", "zero-bubble", "looped", "zb-h2", "zb-v", "dualpipev"]
#: Schedules of one model chunk; those whose last stage is where the first is; those that split backwards; and those whose transfers
#: never block the worker.
ONE_CHUNK: tuple[Schedule, ...] = ("eager", "gpipe", "zb-h2")
V_SHAPED: tuple[Schedule, ...] = ("zb-v", "dualpipev")
SPLITTING: tuple[Schedule, ...] = ("zero-bubble", "zb-h2", *V_SHAPED)
NOT_BLOCKING: tuple[Schedule, ...] = ("looped", *SPLITTING)
#: What the gradient of an input is called where its backward is split; those of weights are `backward-weight`.
InputRows = Literal["backward-compute", "backward-input"]
#: Who meets in optimizer-clip-main-grad: all workers, the stages of each dp rank, or there is none.
Clip = Literal["all", "stages", "none"]
#: Which rows a trace has of tensor- and context-parallel members: one for all of a worker, or each member's, a late one of which
#: ends late, starts late, or shows only in how long the others wait in collectives of the group.
MemberRows = Literal["one", "ends", "starts", "waits"]
#: Random streams of a job; each draws from its own, so that one more draw in one changes nothing in another.
RandomStream = Literal[
    "world",
    "steps",
    "compute",
    "tail",
    "drift",
    "transfer",
    "delay",
    "fault",
    "decoy",
    "member",
    "tide",
    "clock",
    "lost",
]
#: One or many.
IntOrInts = TypeVar("IntOrInts", int, Ints)
#: Limits of a sampled run of contiguous steps, and of the gap before the next one.
RUN_STEPS = (2, 8)
GAP_STEPS = (15, 400)
#: Limits of the noise of random jobs.
NOISE = (0.3, 3.0)
#: Most rows of a random job, so that a corpus of hundreds stays cheap; and the least of the limits drawn for each.
MAX_ROWS, LEAST_BUDGET = 150_000, 30_000
#: How often random jobs have each number of dp ranks, before they are made to fit.
DP_SHARES = (0.07, 0.11, 0.04, 0.15, 0.04, 0.15, 0.04, 0.13, 0.04, 0.09, 0.06, 0.04, 0.04)
#: Columns that a trace may lack.
OPTIONAL_COLUMNS = ("rank", "seq_id", "mc", "mb_id", "gmc", "host")
#: Tails longer than a third of a compute are faults.
MAX_TAIL_NOISE = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class JobSpec:
    """A hybrid-parallel training job."""

    #: Pipeline stages.
    pp: int = 4
    #: Model chunks a worker.
    vpp: int = 1
    #: Data-parallel ranks.
    dp: int = 4
    #: Microbatches a dp rank runs in each step; a multiple of `unit`.
    microbatches: int = 8
    #: Sampled steps.
    steps: int = 12
    #: Tensor- and context-parallel members a worker.
    tp_size: int = 1
    cp_size: int = 1
    #: Typical duration of one forward-compute, seconds.
    forward_s: float = 0.05
    #: Typical backward over forward.
    backward_ratio: float = 1.8
    #: One point-to-point transfer, seconds.
    transfer_s: float = 5e-4
    #: One params-all-gather of all model chunks of a worker, seconds; the other collectives are in proportion.
    collective_s: float = 0.02
    #: One optimizer, seconds.
    optimizer_s: float = 0.01
    #: Typical time between the end of what an operation waited for and its start, seconds.
    launch_delay_s: float = 5e-6
    #: Time the host takes before the first compute of a step, before reduce-scatter and (a quarter) before layernorm, seconds.
    host_gap_s: float = 2e-3
    #: 1 is the noise of two production jobs (see `inputs`), 0 none.
    noise: float = 1.0
    p2p: P2P = "blocking"
    clip: Clip = "all"
    #: Parameters are gathered at the start of a step; without, gradients are reduced and every rank keeps all parameters.
    gathers: bool = True
    #: They are gathered when the optimizer is through, and end the step.
    gathers_last: bool = False
    #: Reduce-scatter of a model chunk overlaps with the backward of the next, and a separate-grads-all-reduce follows.
    separate: bool = False
    #: Seconds of a params-all-gather before each compute, while the one before runs; a reduce-scatter then follows each backward.
    #: 0: there is one of each in a step.
    gather_s: float = 0.0
    #: Part of a backward that is left when the reduce-scatter of its gradients begins; above 0 it overlaps with the last one, too.
    scatters_within: float = 0.0
    #: The last stage averages its loss over the dp ranks before its layernorm-grads; no row records it.
    averages_loss: bool = True
    #: All stages of dp rank 0 wait for each other before layernorm-grads (one production job does so); no row records it.
    rank_0_waits: bool = False
    #: The dp ranks of a stage begin a step together, once the last of them has its input; no row records it, nor the next two.
    starts_together: bool = False
    #: The dp ranks of a stage wait for each other after their last backward.
    gradients_wait: bool = False
    #: All workers wait for each other before the optimizer.
    optimizer_waits: bool = False
    #: Heavy tails: a few percent of the computes take longer by about that part; 0 none (see `inputs`).
    tail_noise: float = 0.0
    #: Standard deviation of the logarithm of a slow drift of all computes over the steps; 0 none (see `inputs`).
    drift: float = 0.0
    #: The same of each host by itself, where there are hosts.
    host_drift: float = 0.0
    #: All communication takes longer by up to this part, as the hours go; 0 none (see `inputs`).
    network_tide: float = 0.0
    #: Transfers between workers of different hosts take this many times as long.
    link_ratio: float = 1.0
    #: Sampled steps are contiguous; else runs of steps with gaps.
    contiguous: bool = False
    #: Part of the rows that are lost, in short runs.
    lost_share: float = 0.0
    #: Columns that the trace lacks, joined by commas.
    lacks: str = ""
    #: Standard deviation of how far the clocks of workers are off, each by a constant, seconds.
    clock_s: float = 0.0
    #: Workers on a host, in the order of their ranks; 0: the trace has no `host` column.
    workers_per_host: int = 0
    #: The trace has times within the job instead of within each step.
    absolute_times: bool = False
    #: The trace has evidence rows and token columns where the job makes some; without, they are left out of the trace.
    evidence: bool = True
    #: Same seed, same job.
    seed: int = 0
    job_id: str = ""
    schedule: Schedule = "1f1b"
    #: Part of a backward that computes weight gradients, where the schedule splits it.
    weight_share: float = 0.5
    input_rows: InputRows = "backward-compute"
    #: Weight gradients of several microbatches that follow each other are computed together, and have one row.
    merges_weights: bool = False
    #: A forward and a backward that run at the same time take this many times as long as each by itself (DualPipeV).
    overlap_cost: float = 1.3
    #: The trace has rows of transfers between stages.
    records_transfers: bool = True
    #: The metadata name the schedule.
    says_schedule: bool = False
    #: The trace has one row for all tensor- and context-parallel members of a worker, or each member's; a late member
    #: then ends late, starts late, or all begin and end together and rows of `tp-allreduce` say how long each waited.
    members: MemberRows = "one"
    #: Standard deviation of how much earlier members are done with a compute than the slowest, part of its duration.
    member_noise: float = 0.003
    #: Standard deviation of how far hosts' clocks are off, each by a constant, seconds, where each member has rows.
    member_clock_s: float = 0.0
    #: Global ranks on a host, where each member has rows; 0: `workers_per_host` says it.
    ranks_per_host: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot run.

        Raises
        ------
        UsageError
            A size below 1, a negative or infinite time, interleaving without stages or with odd microbatches, an unknown
            point-to-point mode, schedule, clip or kind of member rows, rows of every member where there is one, a schedule that
            does not interleave with several chunks, transfers that would wait in a circle, columns that a trace cannot lack, a part
            above 1, gathers before each compute where there are chunks or split backwards, a negative seed or number of workers or
            ranks on a host.
        """
        for name in ("pp", "vpp", "dp", "microbatches", "steps", "tp_size", "cp_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1", where="job spec")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is float and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{field.name} is {value}; expected a finite number from 0", where="job spec")
        if self.vpp > 1 and (self.pp < 2 or self.microbatches % self.unit):
            raise UsageError(
                f"vpp is {self.vpp} with pp {self.pp} and {self.microbatches} microbatches; interleaving needs pp of at "
                "least 2 and a multiple of pp microbatches",
                where="job spec",
            )
        kinds = {"p2p": P2P, "schedule": Schedule, "members": MemberRows, "clip": Clip, "input_rows": InputRows}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                expected = ", ".join(get_args(kind))
                raise UsageError(f"{name} is {getattr(self, name)!r}; expected one of {expected}", where="job spec")
        self._check_schedule()
        for name in ("weight_share", "scatters_within"):
            if getattr(self, name) > 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at most 1", where="job spec")
        if self.members != "one" and self.n_members == 1:
            raise UsageError(
                f"members is {self.members!r} with one member a worker; expected tp_size or cp_size above 1",
                where="job spec",
            )
        self._check_transfers_and_rows()
        if self.shards and (self.vpp > 1 or self.schedule in SPLITTING):
            raise UsageError(
                f"gather_s is {self.gather_s} with vpp {self.vpp} and schedule {self.schedule!r}; expected one chunk and whole "
                "backwards",
                where="job spec",
            )
        for name in ("seed", "workers_per_host", "ranks_per_host"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 0", where="job spec")

    def _check_schedule(self) -> None:
        """Refuse a schedule that does not run so many chunks, or so few microbatches."""
        if self.schedule in ONE_CHUNK and self.vpp > 1:
            raise UsageError(f"schedule is {self.schedule!r} with vpp {self.vpp}; expected vpp 1", where="job spec")
        if self.is_v and self.vpp != 2:
            raise UsageError(f"schedule is {self.schedule!r} with vpp {self.vpp}; expected vpp 2", where="job spec")
        if self.schedule == "dualpipev" and self.microbatches < 2 * self.pp:
            raise UsageError(
                f"schedule is 'dualpipev' with pp {self.pp} and {self.microbatches} microbatches; expected at least "
                f"{2 * self.pp}",
                where="job spec",
            )

    def _check_transfers_and_rows(self) -> None:
        """Refuse transfers that would wait in a circle, and a trace that lacks what it must have."""
        if self.schedule == "eager" and self.p2p not in ("asynchronous", "lazy"):
            raise UsageError(
                f"schedule is 'eager' with p2p {self.p2p!r}; expected sends that do not block", where="job spec"
            )
        if self.p2p == "pairs" and self.vpp > 1:
            raise UsageError(f"p2p is 'pairs' with vpp {self.vpp}; expected vpp 1", where="job spec")
        if unknown := set(self.lacked) - set(OPTIONAL_COLUMNS):
            raise UsageError(
                f"lacks {', '.join(sorted(unknown))}; expected some of {', '.join(OPTIONAL_COLUMNS)}", where="job spec"
            )
        if self.lost_share >= 1:
            raise UsageError(f"lost_share is {self.lost_share}; expected less than 1", where="job spec")

    @property
    def has_dp(self) -> bool:
        """True where parameters and gradients are shared out over more than one member."""
        return self.dp * self.cp_size > 1

    @property
    def shards(self) -> bool:
        """True where parameters are gathered anew before each compute, and gradients scattered after each backward."""
        return self.gather_s > 0

    @property
    def overlaps_scatters(self) -> bool:
        """True where reduce-scatters run beside backwards."""
        return self.has_dp and (self.separate or self.shards or self.scatters_within > 0)

    @property
    def n_members(self) -> int:
        """Tensor- and context-parallel members of a worker."""
        return self.tp_size * self.cp_size

    @property
    def unit(self) -> int:
        """Microbatches that are run together: there are a multiple of them."""
        return self.pp if self.vpp > 1 and self.schedule in ("1f1b", "zero-bubble") else 1

    @property
    def least_microbatches(self) -> int:
        """Fewest microbatches that its schedule runs."""
        return 2 * self.pp if self.schedule == "dualpipev" else self.unit

    @property
    def is_v(self) -> bool:
        """True where the last model chunk is on the first stage."""
        return self.schedule in V_SHAPED

    @property
    def blocks(self) -> bool:
        """True where transfers block the worker."""
        return self.p2p in ("blocking", "pairs") and self.schedule not in NOT_BLOCKING

    @property
    def records_no_moves(self) -> bool:
        """True where transfers to nobody, at the ends of the model, have rows: Megatron's interleaved 1F1B."""
        return self.vpp > 1 and self.schedule == "1f1b"

    @property
    def schedule_name(self) -> str:
        """What metadata call the schedule."""
        names = {"zb-v": "zbv", "1f1b": "interleaved" if self.vpp > 1 else "1f1b"}
        return names.get(self.schedule, self.schedule)

    def position(self, stage: IntOrInts, chunk: IntOrInts) -> IntOrInts:
        """Count the model chunks of the model before some."""
        one_way = chunk * self.pp + stage
        # The second chunk of a V counts down: pp + (pp - 1 - stage).
        return one_way + (chunk > 0) * (self.pp - 1 - 2 * stage) if self.is_v else one_way

    def place(self, position: int) -> tuple[int, int]:
        """Name the stage and the chunk that are at a position of the model."""
        chunk, stage = divmod(position, self.pp)
        return (self.pp - 1 - stage if self.is_v and chunk else stage), chunk

    def neighbour(self, stage: int, chunk: int, ahead: int) -> tuple[int, int] | None:
        """Name the stage and the chunk so many model chunks ahead; None at the ends of the model."""
        position = self.position(stage, chunk) + ahead
        return self.place(position) if 0 <= position < self.n_virtual else None

    @property
    def lacked(self) -> tuple[str, ...]:
        """Columns that the trace lacks."""
        return tuple(self.lacks.split(",")) if self.lacks else ()

    @property
    def n_virtual(self) -> int:
        """Model chunks in the model."""
        return self.pp * self.vpp

    @property
    def name(self) -> str:
        """Name of the job, from the seed where none was given."""
        return self.job_id or f"job-{self.seed}"

    def random(self, stream: RandomStream, *salt: int) -> np.random.Generator:
        """Give the generator of one random stream of this job."""
        return np.random.default_rng([self.seed, *stream.encode(), *salt])

    @property
    def members_per_host(self) -> int:
        """Count the global ranks on a host; 0 where no host is named."""
        return (self.members != "one" and self.ranks_per_host) or self.workers_per_host * self.n_members

    def hosts(self) -> Ints:
        """Number the host of each worker, shape (n_stages, n_dp); without hosts each is one by itself."""
        rank = np.arange(self.pp * self.dp).reshape(self.pp, self.dp)
        return rank // max(self.workers_per_host, 1)

    def step_numbers(self) -> Ints:
        """Number the sampled steps: runs of contiguous steps with gaps, as production traces are sampled.

        >>> JobSpec(steps=8).step_numbers().tolist()
        [16, 17, 18, 19, 20, 21, 22, 23]
        """
        if self.contiguous:
            return np.arange(16, 16 + self.steps)
        rng = self.random("steps")
        numbers: list[int] = []
        start = 16
        while len(numbers) < self.steps:
            run = min(int(rng.integers(RUN_STEPS[0], RUN_STEPS[1] + 1)), self.steps - len(numbers))
            numbers.extend(range(start, start + run))
            start += run + int(rng.integers(GAP_STEPS[0], GAP_STEPS[1] + 1))
        return np.array(numbers, dtype=np.int64)


def count_rows(spec: JobSpec) -> int:
    """Count the rows of a job's trace without evidence, from its sizes alone; weight gradients as if none were merged.

    >>> count_rows(JobSpec(pp=4, dp=4, microbatches=8, steps=12))
    8928
    """
    computes = 2 * spec.n_virtual * spec.microbatches
    n_borders = spec.n_virtual - 1 - spec.is_v
    transfers = 2 * computes if spec.records_no_moves else 4 * spec.microbatches * n_borders
    transfers *= spec.records_transfers
    if spec.schedule == "dualpipev":  # stage s splits 2 pp - 1 - s backwards
        computes += spec.pp * (2 * spec.pp - 1) - spec.pp * (spec.pp - 1) // 2
    elif spec.schedule in SPLITTING:
        computes += spec.n_virtual * spec.microbatches
    gradients = spec.microbatches if spec.shards else spec.vpp
    gathers = spec.gathers * gradients * (1 + spec.shards)  # before each forward and each backward
    collectives = spec.pp * (gathers + gradients + spec.separate) if spec.has_dp else 0
    # gc, layernorm, clip, optimizer; embedding on the first and last stage
    alone = (3 + (spec.clip != "none")) * spec.pp + min(spec.pp, 2)
    return spec.steps * spec.dp * (computes + transfers + collectives + alone)


def random_spec(rng: np.random.Generator, *, noise: tuple[float, float] = NOISE, max_rows: int = MAX_ROWS) -> JobSpec:
    """Draw a job of any shape that production traces have.

    Parameters
    ----------
    noise : (float, float)
        Limits of the noise; its logarithm is uniform.
    max_rows : int
        Most rows of the trace, evidence left out.

    Returns
    -------
    JobSpec
        pp 1-16, vpp 1-4, dp 1-256, microbatches 1-64 (a multiple of pp where interleaved), steps 8-60, forward 1 ms to 0.5 s.
        All sizes occur, but not together.
    """
    shape = _random_shape(rng, max_rows)
    forward_s = draw_log_uniform(rng, 1e-3, 0.5)
    compute_s = forward_s * shape.vpp * shape.microbatches
    level = draw_log_uniform(rng, *noise)
    recomputes = rng.random() < 0.25  # a backward that runs its forward again first
    return dataclasses.replace(
        shape,
        tp_size=int(rng.choice([1, 2, 4, 8])),
        forward_s=forward_s,
        backward_ratio=float(rng.uniform(1.4, 2.3)) + recomputes,
        transfer_s=forward_s * draw_log_uniform(rng, 0.002, 0.05),
        collective_s=compute_s * draw_log_uniform(rng, 0.002, 0.08),
        optimizer_s=compute_s * draw_log_uniform(rng, 0.003, 0.05),
        launch_delay_s=min(draw_log_uniform(rng, 3e-6, 5e-5), 0.01 * forward_s),
        host_gap_s=min(draw_log_uniform(rng, 5e-4, 2e-2), 0.05 * compute_s),
        noise=level,
        p2p="asynchronous" if rng.random() < (0.7 if shape.vpp > 1 else 0.25) else "blocking",
        averages_loss=bool(rng.random() < 0.7),
        rank_0_waits=bool(rng.random() < 0.3),
        tail_noise=min(level * float(rng.uniform(0.02, 0.06)), MAX_TAIL_NOISE) if rng.random() < 0.4 else 0.0,
        drift=level * float(rng.uniform(0.004, 0.016)) if rng.random() < 0.4 else 0.0,
        workers_per_host=int(rng.choice([0, 1, 2, 4, 8], p=[0.5, 0.125, 0.125, 0.125, 0.125])),
        absolute_times=bool(rng.random() < 0.25),
        seed=int(rng.integers(0, 2**31)),
    )


def _random_shape(rng: np.random.Generator, max_rows: int) -> JobSpec:
    """Draw a job's sizes, then cut one of them after the other, in random order, until its trace has few enough rows."""
    pp = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16], p=[0.1, 0.15, 0.06, 0.22, 0.07, 0.2, 0.05, 0.15]))
    vpp = int(rng.choice([1, 2, 3, 4], p=[0.65, 0.18, 0.09, 0.08])) if pp > 1 else 1
    microbatches = round(draw_log_uniform(rng, 0.6, 64.5))
    microbatches = min(max(microbatches, 1), 64)
    if vpp > 1:
        microbatches = pp * max(1, microbatches // pp)
    dp = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256], p=DP_SHARES))
    shape = JobSpec(
        pp=pp,
        vpp=vpp,
        dp=dp,
        microbatches=microbatches,
        steps=int(rng.integers(8, 61)),
        cp_size=int(rng.choice([1, 2], p=[0.85, 0.15])),
        separate=bool(rng.random() < 0.3),
    )
    budget = draw_log_uniform(rng, min(LEAST_BUDGET, max_rows), max_rows)
    while count_rows(shape) > budget:
        smaller = [s for s in _smaller(shape) if s != shape]
        if not smaller:
            break
        shape = smaller[int(rng.integers(len(smaller)))]
    return shape


def _smaller(shape: JobSpec) -> list[JobSpec]:
    """List what a job is with two thirds of its steps or microbatches, half of its dp ranks, or two thirds of its stages."""
    unit = shape.pp if shape.vpp > 1 else 1
    pp = shape.pp // 2 if shape.vpp > 1 else max(shape.pp * 2 // 3, 1)  # a half still divides the microbatches
    return [
        dataclasses.replace(shape, steps=max(shape.steps * 2 // 3, 8)),
        dataclasses.replace(shape, microbatches=unit * max(shape.microbatches * 2 // 3 // unit, 1)),
        dataclasses.replace(shape, dp=max(shape.dp // 2, 1)),
        dataclasses.replace(shape, pp=pp, vpp=shape.vpp if pp > 1 else 1),
    ]


def draw_log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
