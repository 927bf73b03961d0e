"""One diagnosed job whose truth is known: what is true, what was said, and what of it is wrong.

Enters: truths and causes said. Leaves: `JudgedJob`s, and words about those that were judged wrong.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from diagnose.faults.fault import Worker
from diagnose.model.request import MIN_SPEEDUP

#: A true cause must be said when this part of the step comes back with it mended: the step is 2% shorter, as in a diagnosis.
COUNTS = 1.0 - 1.0 / MIN_SPEEDUP
#: Below this a true cause is as good as none, and false when said; in between it is neither required nor false.
TOO_SMALL = 0.008
#: Said where time is lost and no cause is known for it.
UNKNOWN = "unknown"
#: An alternative of causes that is none, and the decoy that it is.
EVALUATION = "evaluation"
#: Decoys that cost time, which is nobody's fault.
COSTLY = frozenset({"longer-computes", "older-machines", "uneven-experts"})
#: Column of the confusion table for jobs in which nothing was said.
NOTHING = "nothing"
#: Thresholds of arXiv 2505.05713: a job straggles, one worker or the last stage makes up for half of it, sequences vary.
PUBLISHED_S = 1.1
PUBLISHED_M = 0.5
PUBLISHED_CORRELATION = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class TrueCause:
    """A fault that a job has; `recoverable` with it alone mended, `recoverable_last` with all others mended before.

    One that nothing in the trace can tell from the job's normal (`tellable` false) is neither asked for nor wrong when said. Its
    workers are not asked for where nothing can tell them from others (`place_tellable` false).
    """

    cause: str
    workers: tuple[Worker, ...]
    stages: tuple[int, ...]
    onset_step: int | None
    recoverable: float
    recoverable_last: float
    tellable: bool = True
    place_tellable: bool = True
    #: With its kind, as `worker-fault/replica`; of several faults of a cause, that of the one that costs most.
    kind: str = ""

    @property
    def worth(self) -> float:
        """Part of the step that comes back, alone or after the others: the larger one."""
        return max(self.recoverable, self.recoverable_last)


@dataclasses.dataclass(frozen=True, slots=True)
class SaidCause:
    """A cause that was reported; `links` by the workers at their ends."""

    cause: str
    confidence: float
    share: float | None
    recoverable: float
    workers: tuple[Worker, ...] = ()
    stages: tuple[int, ...] = ()
    links: tuple[tuple[Worker, Worker], ...] = ()
    onset_step: int | None = None
    pattern: str | None = None
    #: What else it may be, as the finding itself says, and how probably.
    alternatives: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedJob:
    """One job: what is true, what was said, and what went wrong."""

    job: str
    #: 0 where the job could not be made or read, so that there is no truth.
    dp: int = 0
    pp: int = 0
    #: Numbers of the sampled steps, increasing.
    steps: tuple[int, ...] = ()
    #: What the job has that looks like a cause and is none.
    decoys: tuple[str, ...] = ()
    #: Features of its world.
    world: tuple[str, ...] = ()
    #: One a cause at most.
    truth: tuple[TrueCause, ...] = ()
    verdict: str | None = None
    said: tuple[SaidCause, ...] = ()
    #: What the published thresholds ask for; None where it was not measured.
    slowdown: float | None = None
    m_w: float | None = None
    m_s: float | None = None
    correlation: float | None = None
    #: Why there is no diagnosis; empty where there is one.
    error: str = ""

    @property
    def is_healthy(self) -> bool:
        """True where no true cause is worth a word."""
        return all(true.worth < TOO_SMALL for true in self.truth)

    def countable(self) -> list[TrueCause]:
        """List the true causes that must be said, the largest first."""
        return sorted(
            (true for true in self.truth if true.worth >= COUNTS and true.tellable), key=lambda true: -true.recoverable
        )

    def named(self) -> list[SaidCause]:
        """List the causes said, as a report does: the largest share first, `unknown` left out."""
        return [said for said in self.ranked() if said.cause != UNKNOWN]

    def ranked(self) -> list[SaidCause]:
        """List all that was said, the largest share first."""
        return sorted(self.said, key=lambda said: (-(said.share or 0.0), -said.recoverable, said.cause))

    def missed(self) -> list[TrueCause]:
        """List the true causes that were not said and had to be."""
        names = {said.cause for said in self.said}
        return [true for true in self.countable() if true.cause not in names]

    def made_up(self) -> list[SaidCause]:
        """List what was said and is not there, nor what else it may be; `unknown` is made up only where nothing costs time."""
        there = {true.cause for true in self.truth if true.worth >= TOO_SMALL}
        if not self.is_healthy or not COSTLY.isdisjoint(self.decoys):
            there.add(UNKNOWN)
        return [said for said in self.ranked() if said.cause not in there and there.isdisjoint(said.alternatives)]

    def found(self) -> "list[Found]":
        """List the true causes that had to be said and were, with what was said of them."""
        by_cause = {said.cause: said for said in self.said}
        return [Found(self, true, by_cause[true.cause]) for true in self.countable() if true.cause in by_cause]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A true cause of a job, and what was said of it."""

    row: JudgedJob
    true: TrueCause
    said: SaidCause

    @property
    def asks_for_worker(self) -> bool:
        """True where a worker can be named: there is one, peers to tell it from, and a trace that shows which it is."""
        return bool(self.true.workers) and self.true.place_tellable and self.row.dp != 1

    @property
    def right_worker(self) -> bool:
        """True where the worker named first has the fault, or where only links are named, an end of the first."""
        first = self.said.workers[:1] or (self.said.links[0] if self.said.links else ())
        return any(worker in self.true.workers for worker in first)

    @property
    def gain_error(self) -> float:
        """By what part of the step the gain that was promised is off."""
        return abs(self.said.recoverable - self.true.recoverable)

    @property
    def right_stage(self) -> bool:
        """True where the stage named first, or else that of the first worker, has the fault."""
        first = self.said.stages[:1] or tuple(stage for _, stage in self.said.workers[:1])
        return bool(first) and first[0] in self.true.stages


def judge_as_published(row: JudgedJob) -> JudgedJob:
    """Say instead what the thresholds of arXiv 2505.05713 say of a job."""
    signs = {
        "worker-fault": (row.m_w, PUBLISHED_M),
        "stage-imbalance": (row.m_s, PUBLISHED_M),
        "sequence-imbalance": (row.correlation, PUBLISHED_CORRELATION),
    }
    straggles = row.slowdown is not None and row.slowdown >= PUBLISHED_S
    said = [
        SaidCause(cause, 1.0, None, value)
        for cause, (value, least) in signs.items()
        if straggles and value is not None and value >= least
    ]
    return dataclasses.replace(row, said=tuple(said))


def find_worst(rows: Iterable[JudgedJob], n: int) -> list[JudgedJob]:
    """List at most `n` jobs that were judged wrong, those where most of the step is at stake first."""
    at_stake = {row.job: sum(stake for _, stake in list_errors(row)) for row in rows}
    wrong = [row for row in rows if list_errors(row)]
    return sorted(wrong, key=lambda row: (-at_stake[row.job], row.job))[:n]


def list_errors(row: JudgedJob) -> list[tuple[str, float]]:
    """List what is wrong about a diagnosis, in words and by the part of the step at stake."""
    wrong = [(f"missed {true.cause}", true.worth) for true in row.missed()]
    wrong += [(f"made up {said.cause}", said.recoverable) for said in row.made_up()]
    wrong += [
        (f"worker of {item.true.cause}: {_first(item.said)} for {_place(item.true.workers)}", item.true.worth)
        for item in row.found()
        if item.asks_for_worker and not item.right_worker
    ]
    wrong += [
        (f"gain of {item.true.cause}: {item.said.recoverable:.3f} for {item.true.recoverable:.3f}", item.gain_error)
        for item in row.found()
        if item.gain_error >= COUNTS
    ]
    return wrong


def describe(row: JudgedJob) -> str:
    """Write a job in one line: what is true, what was said, and what of it is wrong."""
    there = ", ".join(f"{true.cause} {true.recoverable:.3f} (last {true.recoverable_last:.3f})" for true in row.truth)
    said = ", ".join(f"{said.cause} {said.recoverable:.3f} @{said.confidence:.2f}" for said in row.ranked())
    parts = [f"true: {there or 'healthy'}"]
    parts += [f"decoys: {', '.join(row.decoys)}"] if row.decoys else []
    parts += [f"said: {said or NOTHING}", f"WRONG: {', '.join(what for what, _ in list_errors(row))}"]
    parts += [f"failed: {row.error}"] if row.error else []
    return f"{row.job} (dp {row.dp} pp {row.pp}, {len(row.steps)} steps): " + "; ".join(parts)


def _first(said: SaidCause) -> str:
    """Name the worker, or else the link, that was named first."""
    link = said.links[:1]
    return _place(said.workers) if said.workers or not link else f"{_place(link[0][:1])} to {_place(link[0][1:])}"


def _place(workers: Sequence[Worker]) -> str:
    """Name the first worker."""
    return f"dp {workers[0][0]} stage {workers[0][1]}" if workers else "nobody"
