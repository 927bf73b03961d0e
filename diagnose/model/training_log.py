"""What a training log says: step times of the whole run, restarts, and now and then a rank.

Enters: what a reader of logs found, and what was measured of it. Leaves: the `log` of a diagnosis.
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from diagnose.model.cause import When
from diagnose.model.diagnosis_document import (
    LogCheckpoints,
    LogDocument,
    LogFailure,
    LogLedger,
    LogLevel,
    LogRamp,
    LogRestart,
    LogSlowRank,
    LogSpikes,
    LogSpread,
    LogStepTime,
    LogWindow,
    LogWork,
)
from diagnose.model.place import Worker
from diagnose.model.trace import Ints, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class RankTimes:
    """One timer of every rank in every report, all arrays of shape (n_values,).

    `iteration` is the one that was logged before; `seconds` are those of a step, all microbatches together.
    """

    iteration: Ints
    rank: Ints
    seconds: Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Extremes:
    """The lowest and highest value of a measure over all ranks, in the unit of the log.

    All arrays have shape (n_reports,): one entry a report of the straggler detector.
    """

    iteration: Ints
    low: NDArray[np.float64]
    low_rank: Ints
    high: NDArray[np.float64]
    high_rank: Ints


#: What a log may tell of a moment beside the pace. `cache-flush`: the allocator returned its memory to the device.
LogEventKind = Literal["save", "evaluation", "cache-flush", "collection", "epoch", "profile", "error"]
#: What a log or the arguments in it may state an interval of, in iterations; `loader-workers` is `num_workers`.
LogIntervalKind = Literal["log", "save", "evaluation", "collection", "profile", "epoch", "loader-workers"]
#: What a log may tell the seconds of, as a part of a step. `data`: waiting for input; `generation` and `update`: of reinforcement
#: learning, what the policy writes, and forwards, backwards and optimizer of its training.
LogPart = Literal[
    "data", "forward", "backward", "communication", "optimizer", "save", "evaluation", "generation", "update"
]


@dataclasses.dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that a log tells of one moment."""

    kind: LogEventKind
    #: The last one that was logged before it, or the one that the line itself names.
    iteration: int
    #: NaN where the log does not say.
    seconds: float = float("nan")
    #: None where it does not say, or where it is of all ranks.
    rank: int | None = None
    #: The line, or the part of it that says so, of at most 200 characters.
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingLog:
    """A log of iterations, in the order of the file."""

    #: How reports call it.
    name: str
    #: Who wrote it, as people call that: `Megatron-LM`, `torchtitan`, `Hugging Face Trainer`.
    format: str
    #: What its times are from, for people: "elapsed time per iteration (ms)".
    reads: str
    #: Shape (n_lines,).
    iteration: Ints
    #: Shape (n_lines,): seconds of an iteration: the mean since the line before, or of the line's own iteration alone
    #: (`is_mean`).
    step_s: Seconds
    #: True where a line stands for all iterations since the line before.
    is_mean: bool
    #: Shape (n_lines,): sequences in all microbatches of a step; 0 where the line does not say.
    batch_size: Ints
    #: Shape (n_lines,): restarts before the line.
    attempt: Ints
    #: Shape (n_lines,): when the line was written, Unix seconds in whatever zone the job ran; NaN where it does not say.
    stamp_s: Seconds
    #: Shape (n_lines,): tokens of a step, or what else its work is measured in (sequence length, samples of varying number):
    #: only its ratios are used. NaN where the line does not say.
    tokens: NDArray[np.float64]
    #: Shape (n_lines,): iterations that a line stands for, where these are not those since the line before; else 0.
    n_steps: Ints
    restarts: tuple[LogRestart, ...] = ()
    #: Iterations that the job is to run.
    total: int | None = None
    #: Shape (n_lines,): seconds of a step in each `LogPart` that the lines tell, NaN where a line does not.
    parts: dict[LogPart, Seconds] = dataclasses.field(default_factory=dict)
    #: In the order of the file.
    events: tuple[LogEvent, ...] = ()
    #: The errors among them that no step came after, the first of each rank.
    failures: tuple[LogEvent, ...] = ()
    #: By `LogIntervalKind`, as far as the log or the arguments in it state them.
    intervals: dict[LogIntervalKind, int] = dataclasses.field(default_factory=dict)
    #: Hosts of each attempt, sorted; empty where the log does not say.
    hosts: tuple[tuple[str, ...], ...] = ()
    #: `forward-compute`, `backward-compute`, `batch-generator`, as far as the log has them rank by rank.
    timers: dict[str, RankTimes] = dataclasses.field(default_factory=dict)
    #: `Rtt` (milliseconds in forwards), `Clk` (MHz), `Tmp` (degrees Celsius), `Pwr`, `Utl`, as `--log-straggler` names them;
    #: `Score`: how fast kernels are, 1 as on the fastest rank.
    extremes: dict[str, Extremes] = dataclasses.field(default_factory=dict)
    #: `world_size`, `pp_size`, `tp_size`, `cp_size`, `dp_size`, as far as the log printed its arguments.
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    #: What of the file was not used, and why: a sentence each.
    notes: tuple[str, ...] = ()
    #: What `step_s` are the seconds of where the log tells only a rate: "1,000,000 tokens of a GPU". Empty where it is a step:
    #: only then they may be added up.
    of: str = ""
    #: The part of `step_s` that most lines are wrong by, as they were read off a coarse clock, or rounded: a standard
    #: deviation.
    error: float = 0.0
    #: That of a clock alone, whose every reading ends one line and begins the next.
    clock: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Iterations of one pace: first and last, and the median of their seconds."""

    first: int
    last: int
    step_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the log shows apart from its peers."""

    rank: int
    #: `forward-compute`, `backward-compute`, or `Rtt`, `Clk`, `Tmp` of the straggler detector.
    measure: str
    #: Where it is; None where nothing says how ranks are laid out.
    worker: Worker | None
    #: What was seen, a sentence.
    text: str
    values: dict[str, float]
    #: True where it was compared with ranks of its own stage: only then it is more than a hint.
    by_peers: bool


#: What time above the good pace is lost to; `variation` is the rest.
LogLoss = Literal[
    "windows", "ramps", "periodic", "sporadic", "start", "restarts", "save", "evaluation", "collection", "cache-flush",
    "epoch", "profile", "log", "between", "variation",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What a diagnosis keeps of a log."""

    name: str
    #: Shape (n,): without earlier attempts; increasing.
    iterations: Ints
    #: Shape (n,).
    step_s: Seconds
    #: Iterations between two lines, usually.
    interval: int
    #: Paces, one after the other; those of a ramp are its two ends.
    levels: tuple[Level, ...]
    #: `usual_s`, `slow_s`: seconds of an iteration at the good pace, and where it is slow; None where it never is for a while.
    usual_s: float | None
    slow_s: float | None
    #: Since when and until when iterations are slow: of the window that goes on, else of the one that cost most; all None
    #: without one.
    when: When
    #: Difference of the two paces in standard deviations.
    deviations: float | None
    #: Seconds that the iterations of all windows took longer than at the good pace.
    lost_s: float
    restarts: tuple[LogRestart, ...]
    slow_ranks: tuple[SlowRank, ...]
    checkpoints_s: tuple[float, ...]
    format: str = ""
    reads: str = ""
    is_mean: bool = True
    #: What the seconds are of where the log tells a rate only; empty where they are of an iteration.
    of: str = ""
    #: Each time that the run was slow, in order; ramps count.
    windows: tuple[LogWindow, ...] = ()
    ramps: tuple[LogRamp, ...] = ()
    #: What cost most first; `spike_lines` has the positions of their lines.
    spikes: tuple[LogSpikes, ...] = ()
    spike_lines: tuple[Ints, ...] = ()
    #: Positions of the slow first lines of attempts.
    start_lines: tuple[int, ...] = ()
    work: LogWork | None = None
    #: True where lines tell the tokens or the batch of their steps, so that longer steps of more work can be told from slow ones.
    is_work_told: bool = False
    #: Lines at which flushes of the allocator's cache are told of.
    n_flushed: int = 0
    #: The part of a step that takes most of what slow windows take longer, and how much of it; None where none does.
    slower_part: tuple[LogPart, float] | None = None
    #: Experts of the model as far as the log tells, else 0.
    experts: int = 0
    spread: LogSpread | None = None
    ledger: LogLedger | None = None
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    intervals: dict[str, int] = dataclasses.field(default_factory=dict)
    #: Mean seconds of the traced iterations by the log; None without a trace, or where the log has none of them.
    traced_s: float | None = None
    #: The errors that the log ends with, the first of each rank.
    failures: tuple[LogEvent, ...] = ()
    #: When the last line was written, in whatever zone the log has; None where lines bear no time.
    ended_s: float | None = None

    def share_of(self, seconds: float) -> float:
        """Give seconds as a part of all time that the log tells of."""
        return seconds / self.ledger.total_s if self.ledger is not None and self.ledger.total_s > 0 else 0.0

    def to_document(self) -> LogDocument:
        """Give the `log` of the JSON of a diagnosis."""
        return LogDocument(
            file=self.name,
            lines=len(self.iterations),
            first_iteration=int(self.iterations[0]),
            last_iteration=int(self.iterations[-1]),
            interval=self.interval,
            step_time=LogStepTime(float(self.step_s.mean()), self.usual_s, self.slow_s, self.traced_s),
            when=self.when,
            levels=tuple(LogLevel(level.first, level.last, level.step_s) for level in self.levels),
            restarts=self.restarts,
            slow_ranks=tuple(
                LogSlowRank(slow.rank, slow.measure, slow.worker, slow.text, dict(slow.values))
                for slow in self.slow_ranks
            ),
            checkpoints=LogCheckpoints(len(self.checkpoints_s), float(sum(self.checkpoints_s))),
            format=self.format,
            reads=self.reads,
            is_mean=self.is_mean,
            of=self.of,
            windows=self.windows,
            ramps=self.ramps,
            spikes=self.spikes,
            work=self.work,
            spread=self.spread,
            ledger=self.ledger,
            parts=self.parts,
            intervals=self.intervals,
            failures=tuple(LogFailure(event.iteration, event.rank, event.text) for event in self.failures),
        )
