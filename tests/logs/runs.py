"""A run whose every step is known: what the writers of logs write, and what is checked of what was read.

Enters: nothing. Leaves: a `LoggedRun`.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diagnose.model.training_log import LogEventKind, LogIntervalKind, LogPart


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Something between two steps that the log may tell of: a save, an evaluation."""

    kind: LogEventKind
    #: Index of the step that it follows.
    at: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the job: from which step in the order of `step_s` on, on which hosts, and the seconds it took to come up."""

    at: int
    hosts: tuple[str, ...] = ()
    gap_s: float = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Steps of a run in the order in which they ran; steps that were run again after a restart are there twice.

    A writer leaves out what its format does not tell.
    """

    #: Shape (n_steps,): its number as the framework counts; falls back where the job restarted.
    iteration: NDArray[np.int64]
    #: Shape (n_steps,): seconds of the step itself, without what is between it and the next.
    step_s: NDArray[np.float64]
    #: The log has a line for every so many iterations.
    interval: int
    #: The first begins at 0.
    attempts: tuple[Attempt, ...]
    #: Shape (n_steps,): tokens of all ranks in the step.
    tokens: NDArray[np.float64]
    #: Shape (n_steps,).
    batch_size: NDArray[np.int64]
    #: Shape (n_steps,): seconds of the step in each part that is known.
    parts: dict[LogPart, NDArray[np.float64]]
    #: In order.
    between: tuple[Between, ...]
    #: What the arguments state.
    intervals: dict[LogIntervalKind, int]
    #: Iterations that the job is to run.
    total: int
    world_size: int = 8
    tp_size: int = 1
    pp_size: int = 1
    #: Unix seconds.
    began_s: float = 1_767_225_600.0  # 2026-01-01

    def ends_s(self) -> NDArray[np.float64]:
        """Give when each step ended, Unix seconds, shape (n_steps,): what lies between steps and restarts counted in."""
        own_s = self.step_s.copy()
        for event in self.between:
            if event.at + 1 < len(own_s):
                own_s[event.at + 1] += event.seconds
        for attempt in self.attempts[1:]:
            own_s[attempt.at] += attempt.gap_s
        return np.asarray(self.began_s + self.attempts[0].gap_s + np.cumsum(own_s))


def steady_run(
    n_steps: int, step_s: float = 1.0, *, interval: int = 1, noise: float = 0.01, seed: int = 0
) -> LoggedRun:
    """Make a run in which nothing happens; `dataclasses.replace` makes others of it."""
    rng = np.random.default_rng(seed)
    return LoggedRun(
        iteration=np.arange(1, n_steps + 1),
        step_s=step_s * (1 + noise * rng.standard_normal(n_steps)),
        interval=interval,
        attempts=(Attempt(at=0),),
        tokens=np.full(n_steps, 1 << 20, dtype=np.float64),
        batch_size=np.full(n_steps, 512, dtype=np.int64),
        parts={},
        between=(),
        intervals={"log": interval},
        total=max(n_steps, 10_000),
    )
