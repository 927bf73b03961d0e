"""What a job is: its shape, its schedule and its typical times.

Enters: numbers from a test, the command line or a random generator. Leaves: a checked `JobSpec`.
"""

import dataclasses
import math
from typing import Literal, get_args

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints

P2P = Literal["blocking", "asynchronous"]
#: Random streams of a job; each draws from its own, so that one more draw in one changes nothing in another.
RandomStream = Literal["steps", "compute", "transfer", "delay", "fault"]
#: Limits of a sampled run of contiguous steps, and of the gap before the next one.
RUN_STEPS = (2, 8)
GAP_STEPS = (15, 400)


@dataclasses.dataclass(frozen=True, slots=True)
class JobSpec:
    """A hybrid-parallel training job.

    Attributes
    ----------
    pp, dp, tp_size, cp_size : int
        Pipeline stages, data-parallel ranks, and tensor- and context-parallel members a worker.
    vpp : int
        Model chunks a worker; above 1 the schedule is interleaved 1F1B.
    microbatches : int
        Microbatches a dp rank runs in each step; with `vpp` above 1 a multiple of `pp`.
    steps : int
        Sampled steps.
    forward_s : float
        Typical duration of one forward-compute, seconds.
    backward_ratio : float
        Typical backward over forward.
    transfer_s : float
        One point-to-point transfer, seconds.
    collective_s : float
        One params-all-gather of all model chunks of a worker, seconds; the other collectives are in proportion.
    optimizer_s : float
        One optimizer, seconds.
    launch_delay_s : float
        Typical time between the end of what an operation waited for and its start, seconds.
    host_gap_s : float
        Time the host takes before the first compute of a step, before reduce-scatter and (a quarter) before layernorm, seconds.
    noise : float
        1 is the noise of two production jobs (see `inputs`), 0 none.
    p2p : "blocking" or "asynchronous"
        Megatron's batches, which block the worker; or one stream for each of the four types.
    separate : bool
        Reduce-scatter of a model chunk overlaps with the backward of the next, and a separate-grads-all-reduce follows.
    averages_loss : bool
        The last stage averages its loss over the dp ranks before its layernorm-grads; no row records it.
    rank_0_waits : bool
        All stages of dp rank 0 wait for each other before layernorm-grads (one production job does so); no row records it.
    seed : int
        Same seed, same job.
    """

    pp: int = 4
    vpp: int = 1
    dp: int = 4
    microbatches: int = 8
    steps: int = 12
    tp_size: int = 1
    cp_size: int = 1
    forward_s: float = 0.05
    backward_ratio: float = 1.8
    transfer_s: float = 5e-4
    collective_s: float = 0.02
    optimizer_s: float = 0.01
    launch_delay_s: float = 5e-6
    host_gap_s: float = 2e-3
    noise: float = 1.0
    p2p: P2P = "blocking"
    separate: bool = False
    averages_loss: bool = True
    rank_0_waits: bool = False
    seed: int = 0
    job_id: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot run.

        Raises
        ------
        UsageError
            A size below 1, a negative or infinite time, interleaving without stages or with odd microbatches, an unknown
            point-to-point mode, a negative seed.
        """
        for name in ("pp", "vpp", "dp", "microbatches", "steps", "tp_size", "cp_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1", where="job spec")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is float and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{field.name} is {value}; expected a finite number from 0", where="job spec")
        if self.vpp > 1 and (self.pp < 2 or self.microbatches % self.pp):
            raise UsageError(
                f"vpp is {self.vpp} with pp {self.pp} and {self.microbatches} microbatches; interleaving needs pp of at "
                "least 2 and a multiple of pp microbatches",
                where="job spec",
            )
        if self.p2p not in get_args(P2P):
            raise UsageError(f"p2p is {self.p2p!r}; expected one of {', '.join(get_args(P2P))}", where="job spec")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; expected at least 0", where="job spec")

    @property
    def has_dp(self) -> bool:
        """True where parameters and gradients are shared out over more than one member."""
        return self.dp * self.cp_size > 1

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

    def step_numbers(self) -> Ints:
        """Number the sampled steps: runs of contiguous steps with gaps, as production traces are sampled.

        >>> JobSpec(steps=8).step_numbers().tolist()
        [16, 17, 18, 19, 20, 21, 22, 23]
        """
        rng = self.random("steps")
        numbers: list[int] = []
        start = 16
        while len(numbers) < self.steps:
            run = min(int(rng.integers(RUN_STEPS[0], RUN_STEPS[1] + 1)), self.steps - len(numbers))
            numbers.extend(range(start, start + run))
            start += run + int(rng.integers(GAP_STEPS[0], GAP_STEPS[1] + 1))
        return np.array(numbers, dtype=np.int64)


def random_spec(rng: np.random.Generator) -> JobSpec:
    """Draw a job of any shape that production traces have.

    Parameters
    ----------
    rng : numpy.random.Generator

    Returns
    -------
    JobSpec
        pp 1-8, vpp 1-3, dp 1-16, microbatches 1-16 (a multiple of pp where interleaved), steps 8-60, forward 1 ms to 0.5 s.
    """
    pp = int(rng.choice([1, 2, 3, 4, 6, 8], p=[0.15, 0.25, 0.1, 0.3, 0.05, 0.15]))
    vpp = int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1])) if pp > 1 else 1
    microbatches = int(rng.integers(1, 17))
    if vpp > 1:
        microbatches = pp * int(rng.integers(1, 16 // pp + 1))
    dp = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16], p=[0.1, 0.2, 0.05, 0.25, 0.05, 0.2, 0.05, 0.1]))
    forward_s = _log_uniform(rng, 1e-3, 0.5)
    compute_s = forward_s * vpp * microbatches
    return JobSpec(
        pp=pp,
        vpp=vpp,
        dp=dp,
        microbatches=microbatches,
        steps=int(rng.integers(8, 61)),
        tp_size=int(rng.choice([1, 2, 4, 8])),
        cp_size=int(rng.choice([1, 2], p=[0.85, 0.15])),
        forward_s=forward_s,
        backward_ratio=float(rng.uniform(1.4, 2.3)),
        transfer_s=forward_s * _log_uniform(rng, 0.002, 0.05),
        collective_s=compute_s * _log_uniform(rng, 0.002, 0.08),
        optimizer_s=compute_s * _log_uniform(rng, 0.003, 0.05),
        launch_delay_s=min(_log_uniform(rng, 3e-6, 5e-5), 0.01 * forward_s),
        host_gap_s=min(_log_uniform(rng, 5e-4, 2e-2), 0.05 * compute_s),
        noise=_log_uniform(rng, 0.3, 3.0),
        p2p="asynchronous" if rng.random() < (0.7 if vpp > 1 else 0.25) else "blocking",
        separate=bool(rng.random() < 0.3),
        averages_loss=bool(rng.random() < 0.7),
        rank_0_waits=bool(rng.random() < 0.3),
        seed=int(rng.integers(0, 2**31)),
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
