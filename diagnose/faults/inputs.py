"""How long everything takes by itself, before anybody waits for anybody: what faults change.

Enters: a `JobSpec`. Leaves: `Inputs` of a healthy job. All randomness of a healthy job is here, drawn before any
fault, so that the same job with and without a fault differs in nothing else.
"""

import dataclasses
from typing import Literal

import numpy as np

from diagnose.faults.members import LateMember
from diagnose.faults.programme import Programme, Task, build_programme
from diagnose.faults.spec import JobSpec
from diagnose.model.documents import Documents
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.trace import Bools, Ints, Seconds

# Noise 1: standard deviations of the logarithm of durations in the production traces AR (forward 0.22 s) and ST
# (0.068 s), without AR's slow worker. Measured as: log duration, minus the median of (stage, dp rank), minus that of
# (step, stage, dp rank); split by the covariance of stages into what all stages of a microbatch share and the rest:
#   forward   shared 0.0144 / 0.0127, rest 0.0045 / 0.0110, together 0.0150 / 0.0168
#   backward  shared 0.0205 / 0.0132, rest 0.0037 / 0.0039, together 0.0210 / 0.0138
#   correlation of the shared parts of forward and backward 0.92 / 0.80; between dp ranks none
#   step (all workers alike, 1.48 x median absolute deviation) forward 0.0048 / 0.0100, backward 0.0057 / 0.0113
#   worker within a step 0.0033 / 0.0084 forward, 0.0067 / 0.0075 backward; worker over the job 0.001-0.006 / 0.002-0.005
#   optimizer 0.0018-0.0033 / 0.0039-0.0054; collectives 0.003-0.02; transfers 0.05-0.09 / two modes 1.7 apart
#: Shared by all stages of a microbatch, by type.
MICROBATCH_SPREAD = {Op.FORWARD: 0.0136, Op.BACKWARD: 0.0170}
#: Correlation of a microbatch's forward and backward.
FORWARD_BACKWARD_CORRELATION = 0.86
#: Of each compute by itself.
REST_SPREAD = {Op.FORWARD: 0.0080, Op.BACKWARD: 0.0040}
STEP_SPREAD = 0.0080
WORKER_STEP_SPREAD = 0.0060
WORKER_SPREAD = 0.0030
OPTIMIZER_SPREAD = 0.0035
COLLECTIVE_SPREAD = 0.010
TRANSFER_SPREAD = 0.080
#: Part of the computes in a heavy tail, and its longest in units of the typical one.
TAIL_SHARE, LONGEST_TAIL = 0.03, 3.0
#: Drift of a worker by itself, for each 1 of the drift of all.
OWN_DRIFT = 0.25
#: Steps of one tide of the network, in units of the steps from the first sampled one to the last.
TIDE_STEPS = (0.4, 2.0)
#: Launch delays: 5th and 95th percentile are 2 and 9 us about a median of 4 us in ST.
LAUNCH_SPREAD = 0.45
#: Host gaps keep within 1% in ST and 20% in AR.
HOST_GAP_SPREAD = 0.05
#: Seconds of a collective for each second of params-all-gather, about the mean of AR and ST.
COLLECTIVE_SHARE = {
    Op.ALL_GATHER: 1.0,
    Op.REDUCE_SCATTER: 2.0,
    Op.SEPARATE: 0.3,
    Op.LAYERNORM: 0.01,
    Op.EMBEDDING: 0.3,
    Op.CLIP: 0.15,
}
#: Part of the host gap, which is whole (AR and ST: 15-17 ms) before the first compute or recv and before reduce-scatter.
LAYERNORM_GAP_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Seconds in which an operation does no work, and the evidence row that a tracer would write of it."""

    #: Type of the evidence row: gc, cuda-malloc, data-load, checkpoint.
    kind: Op
    #: Broadcastable to (n_tasks, n_steps, n_dp).
    seconds: Seconds
    #: The pause makes the operation longer (its row begins with it), or delays its start.
    where: Literal["inside", "before"]
    #: The trace has the row.
    recorded: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A compute does no work until `sources`, other tasks of the same worker, have ended, although it has started.

    Kernels that queue behind a communication in flight do so.
    """

    task: int
    sources: tuple[int, ...]
    #: Broadcastable to (n_steps, n_dp). In which lanes.
    held: Bools
    #: It does not even start until then.
    late: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """Physical times of a job. A fault replaces some of them; nothing here is ever written in place."""

    spec: JobSpec
    programme: Programme
    #: Shape (n_tasks, n_steps, n_dp). Seconds of computing; 0 for communication.
    work_s: Seconds
    #: Shape (n_tasks, n_steps, n_dp). Seconds a communication takes by itself, through this member's link; the slowest
    #: member counts.
    transfer_s: Seconds
    #: Shape (n_tasks, n_steps, n_dp). Seconds in which a transfer or collective does not move at all, whatever its link
    #: does; the slowest member counts.
    stall_s: Seconds
    #: Shape (n_tasks, n_steps, n_dp). Seconds the host takes between the end of what the task waits for and its start.
    delay_s: Seconds
    #: Broadcastable to (n_stages, n_steps, n_dp). Seconds after the optimizer, before the worker can begin the next step.
    tail_s: Seconds
    pauses: tuple[Pause, ...] = ()
    holds: tuple[Hold, ...] = ()
    #: Type of the evidence row that records the tail.
    tail_kind: Op | None = None
    #: Shape (n_microbatches, n_steps, n_dp). Sum of document lengths and of their squares; None: not recorded.
    tokens: Seconds | None = None
    tokens_sq: Seconds | None = None
    #: The documents themselves, `step` an index; None: not recorded.
    documents: Documents | None = None
    #: Shape (n_virtual, n_microbatches, n_steps, n_dp, n_experts). Tokens that each local expert was given; None: not recorded.
    expert_tokens: Ints | None = None
    #: How many ranks share the experts, as the metadata say; None: they do not.
    ep_size: int | None = None
    #: Members that the others of their worker wait for.
    late_members: tuple[LateMember, ...] = ()

    @property
    def lanes(self) -> tuple[int, int]:
        """Shape of everything that varies by lane: steps, dp ranks."""
        return self.spec.steps, self.spec.dp

    def with_work(self, tasks: Ints | Bools, factor: Seconds | float) -> "Inputs":
        """Give the times of the job with some computes so many times as long; broadcastable to (n_chosen, n_steps, n_dp)."""
        work_s = self.work_s.copy()
        work_s[tasks] *= factor
        return dataclasses.replace(self, work_s=work_s)

    def with_pauses(self, *pauses: Pause) -> "Inputs":
        """Give the times of the job with more pauses."""
        return dataclasses.replace(self, pauses=(*self.pauses, *pauses))

    def with_pauses_at(
        self, at: tuple[Ints, Ints, Ints], length_s: Seconds, is_inside: Bools, *, kind: Op, recorded: bool
    ) -> "Inputs":
        """Give the times of the job with pauses of some tasks in some lanes: inside the operation, or before it.

        Parameters
        ----------
        at : (ndarray, ndarray, ndarray) of int64, shape (n_pauses,) each
            Task, step and dp rank of each pause; none twice.
        length_s, is_inside : ndarray, shape (n_pauses,)
        """
        places: tuple[tuple[Literal["inside", "before"], Bools], ...] = (("inside", is_inside), ("before", ~is_inside))
        pauses = []
        for where, here in places:
            if here.any():
                seconds = np.zeros(self.work_s.shape)
                seconds[at[0][here], at[1][here], at[2][here]] = length_s[here]
                pauses.append(Pause(kind, seconds, where, recorded=recorded))
        return self.with_pauses(*pauses)


def draw_inputs(spec: JobSpec) -> Inputs:
    """Draw the times of a healthy job."""
    programme = build_programme(spec)
    return Inputs(
        spec=spec,
        programme=programme,
        work_s=_draw_work(spec, programme),
        transfer_s=_draw_transfers(spec, programme),
        stall_s=np.broadcast_to(np.zeros(()), (len(programme.tasks), spec.steps, spec.dp)),
        delay_s=_draw_delays(spec, programme),
        tail_s=np.zeros((spec.pp, 1, 1)),
    )


def _draw_work(spec: JobSpec, programme: Programme) -> Seconds:
    """Draw the seconds of each compute: typical x step x worker x microbatch x rest, all lognormal."""
    rng, lanes = spec.random("compute"), (spec.steps, spec.dp)
    step = STEP_SPREAD * rng.standard_normal((1, spec.steps, 1))
    worker = WORKER_SPREAD * rng.standard_normal((spec.pp, 1, spec.dp))
    shared = rng.standard_normal((spec.microbatches, *lanes))
    other = rng.standard_normal((spec.microbatches, *lanes))
    mixed = FORWARD_BACKWARD_CORRELATION * shared + np.sqrt(1 - FORWARD_BACKWARD_CORRELATION**2) * other
    work_s = np.zeros((len(programme.tasks), *lanes))
    for op, microbatch, typical_s in (
        (Op.FORWARD, shared, spec.forward_s),
        (Op.BACKWARD, mixed, spec.forward_s * spec.backward_ratio),
    ):
        tasks = programme.is_op(op)
        stage, number = programme.stage[tasks], programme.microbatch[tasks]
        within_step = WORKER_STEP_SPREAD * rng.standard_normal((spec.pp, *lanes))
        log = REST_SPREAD[op] * rng.standard_normal((int(tasks.sum()), *lanes))
        log += step + (worker + within_step)[stage] + MICROBATCH_SPREAD[op] * microbatch[number]
        work_s[tasks] = typical_s * np.exp(spec.noise * log)
    work_s *= np.array([task.share for task in programme.tasks])[:, None, None]
    optimizers = programme.is_op(Op.OPTIMIZER)
    log = OPTIMIZER_SPREAD * rng.standard_normal((spec.pp, *lanes))
    work_s[optimizers] = spec.optimizer_s * np.exp(spec.noise * log)
    computes = np.flatnonzero(programme.is_op(Op.FORWARD, Op.BACKWARD))
    if spec.tail_noise:
        work_s[computes] *= _draw_tails(spec, len(computes))
    if spec.drift or spec.host_drift:
        work_s[computes] *= _draw_drift(spec)[programme.stage[computes]]
    return work_s


def _draw_tails(spec: JobSpec, n_computes: int) -> Seconds:
    """Draw the factor of each compute for heavy tails: a few are longer, by the size of a Student t of 3 degrees."""
    rng, shape = spec.random("tail"), (n_computes, spec.steps, spec.dp)
    is_long = rng.random(shape) < TAIL_SHARE
    excess = np.zeros(shape)
    sizes = np.abs(rng.standard_t(3, size=int(is_long.sum())))
    excess[is_long] = spec.tail_noise * np.minimum(sizes, LONGEST_TAIL)
    return 1.0 + excess


def _draw_drift(spec: JobSpec) -> Seconds:
    """Draw the factor of each worker in each step, shape (n_stages, n_steps, n_dp): random walks of all, each, and each host."""
    rng, n_workers = spec.random("drift"), spec.pp * spec.dp
    walks = rng.standard_normal((1 + 2 * n_workers, spec.steps)).cumsum(axis=1)
    walks -= walks.mean(axis=1, keepdims=True)
    walks /= np.maximum(walks.std(axis=1, keepdims=True), 1e-9)
    own = walks[1 : 1 + n_workers].reshape(spec.pp, spec.dp, spec.steps).transpose(0, 2, 1)
    by_host = walks[1 + n_workers + spec.hosts()].transpose(0, 2, 1)
    log = spec.drift * (walks[0][None, :, None] + OWN_DRIFT * own) + spec.host_drift * by_host
    return np.asarray(np.exp(log))


def _draw_transfers(spec: JobSpec, programme: Programme) -> Seconds:
    """Draw the seconds of each communication; members of a pair draw alike, members of a collective each for itself."""
    rng, lanes = spec.random("transfer"), (spec.steps, spec.dp)
    typical_s = np.zeros(len(programme.tasks))
    # A transfer to nobody costs its call alone.
    typical_s[programme.is_op(*P2P)] = min(spec.launch_delay_s, spec.transfer_s)
    for op, share in COLLECTIVE_SHARE.items():
        per_call = spec.vpp if op in DP_COLLECTIVES and op != Op.SEPARATE else 1
        often = spec.shards and op in (Op.ALL_GATHER, Op.REDUCE_SCATTER)
        typical_s[programme.is_op(op)] = share * (spec.gather_s if often else spec.collective_s / per_call)
    spread = np.where(programme.is_op(*P2P), TRANSFER_SPREAD, np.where(typical_s > 0, COLLECTIVE_SPREAD, 0.0))
    log = spread[:, None, None] * rng.standard_normal((len(programme.tasks), *lanes))
    for meeting in programme.meetings:
        if programme.tasks[meeting.members[0]].op in P2P:
            typical_s[list(meeting.members)] = spec.transfer_s
            log[meeting.members[1]] = log[meeting.members[0]]
    transfer_s = typical_s[:, None, None] * np.exp(spec.noise * log)
    if spec.network_tide:
        transfer_s *= _draw_tide(spec)[:, None]
    if spec.link_ratio != 1.0:
        hosts = spec.hosts()
        for meeting in programme.meetings:
            if programme.tasks[meeting.members[0]].op in P2P:
                ends = [hosts[programme.stage[member]] for member in meeting.members]
                transfer_s[list(meeting.members)] *= np.where(ends[0] != ends[-1], spec.link_ratio, 1.0)
    return np.asarray(transfer_s)


def _draw_tide(spec: JobSpec) -> Seconds:
    """Draw the factor of all communication in each step, shape (n_steps,): it comes and goes with the hours."""
    rng, numbers = spec.random("tide"), spec.step_numbers()
    period = max(rng.uniform(*TIDE_STEPS) * (numbers[-1] - numbers[0]), 1.0)
    return np.asarray(1.0 + spec.network_tide * np.sin(np.pi * ((numbers - numbers[0]) / period + rng.random())) ** 2)


def _draw_delays(spec: JobSpec, programme: Programme) -> Seconds:
    """Draw the seconds that the host takes before each launch."""
    rng, lanes = spec.random("delay"), (spec.steps, spec.dp)
    calm = min(spec.noise, 1.0)  # the noise level is about computes; launch delays are small and noisy enough
    log = LAUNCH_SPREAD * rng.standard_normal((len(programme.tasks), *lanes))
    delay_s = spec.launch_delay_s * np.exp(calm * log)
    delay_s[programme.is_op(Op.GC)] = 0.0
    gap = np.array([_gap_share(spec, task) for task in programme.tasks])
    waiting = np.flatnonzero(gap)
    log = HOST_GAP_SPREAD * rng.standard_normal((len(waiting), *lanes))
    delay_s[waiting] += spec.host_gap_s * gap[waiting, None, None] * np.exp(calm * log)
    return delay_s


def _gap_share(spec: JobSpec, task: Task) -> float:
    """Say which part of the host gap stands before a task."""
    if task.op == Op.LAYERNORM:
        return LAYERNORM_GAP_SHARE
    opening = Op.FORWARD if task.stage == 0 else Op.FORWARD_RECV
    scatter_alone = task.op == Op.REDUCE_SCATTER and not spec.overlaps_scatters
    return 1.0 if task.seq == 0 and (task.op == opening or scatter_alone) else 0.0
