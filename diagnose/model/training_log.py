"""What a training log says: step times of the whole run, restarts, and now and then a rank.

Enters: what `diagnose.trace.producers.megatron_log` read, and what was measured of it. Leaves: the `log` of a diagnosis.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diagnose.model.cause import When
from diagnose.model.diagnosis_document import (
    LogCheckpoints,
    LogDocument,
    LogLevel,
    LogRestart,
    LogSlowRank,
    LogStepTime,
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


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingLog:
    """A log of iterations, in the order of the file.

    Attributes
    ----------
    name : str
        How reports call it.
    iteration : ndarray of int64, shape (n_lines,)
    step_s : ndarray of float64, shape (n_lines,)
        Mean seconds of an iteration since the line before.
    batch_size : ndarray of int64, shape (n_lines,)
        Sequences in all microbatches of a step; 0 where the line does not say.
    attempt : ndarray of int64, shape (n_lines,)
        Restarts before the line.
    total : int or None
        Iterations that the job is to run.
    timers : dict of str to RankTimes
        `forward-compute`, `backward-compute`, `batch-generator`, as far as the log has them rank by rank.
    extremes : dict of str to Extremes
        `Rtt` (milliseconds in forwards), `Clk` (MHz), `Tmp` (degrees Celsius), `Pwr`, `Utl`, as `--log-straggler` names them.
    checkpoints_s : tuple of float
        Seconds of each save.
    sizes : dict of str to int
        `world_size`, `pp_size`, `tp_size`, `cp_size`, `dp_size`, as far as the log printed its arguments.
    """

    name: str
    iteration: Ints
    step_s: Seconds
    batch_size: Ints
    attempt: Ints
    restarts: tuple[LogRestart, ...]
    total: int | None
    timers: dict[str, RankTimes]
    extremes: dict[str, Extremes]
    checkpoints_s: tuple[float, ...]
    sizes: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Level:
    """Iterations of one pace: first and last, and the median of their seconds."""

    first: int
    last: int
    step_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that the log shows apart from its peers.

    Attributes
    ----------
    measure : str
        `forward-compute`, `backward-compute`, or `Rtt`, `Clk`, `Tmp` of the straggler detector.
    worker : Worker or None
        Where it is; None where nothing says how ranks are laid out.
    text : str
        What was seen, a sentence.
    by_peers : bool
        True where it was compared with ranks of its own stage: only then it is more than a hint.
    """

    rank: int
    measure: str
    worker: Worker | None
    text: str
    values: dict[str, float]
    by_peers: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LogFacts:
    """What a diagnosis keeps of a log.

    Attributes
    ----------
    iterations : ndarray of int64, shape (n,)
        Without earlier attempts; increasing.
    step_s : ndarray of float64, shape (n,)
    interval : int
        Iterations between two lines, usually.
    levels : tuple of Level
        Paces, one after the other.
    usual_s, slow_s : float or None
        Seconds of an iteration where it is as fast as the log ever shows for a while, and where it is slow; None without a change.
    when : When
        Since when and until when iterations are slow; all None where the log shows no change.
    deviations : float or None
        Difference of the two paces in standard deviations.
    lost_s : float
        Seconds that slow iterations took longer than usual ones, all together.
    traced_s : float or None
        Mean seconds of the traced iterations by the log; None without a trace, or where the log has none of them.
    """

    name: str
    iterations: Ints
    step_s: Seconds
    interval: int
    total: int | None
    levels: tuple[Level, ...]
    usual_s: float | None
    slow_s: float | None
    when: When
    deviations: float | None
    lost_s: float
    restarts: tuple[LogRestart, ...]
    slow_ranks: tuple[SlowRank, ...]
    checkpoints_s: tuple[float, ...]
    traced_s: float | None = None

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
        )
