"""What a training log adds to a verdict, and what can be said of a log alone.

Enters: `LogFacts`, and the causes found in a trace if there is one. Leaves: a `Verdict` of the log alone; or the causes with when
they began, where that was before the trace or between its steps, and what contradicts them.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

import msgspec.structs
import numpy as np

from diagnose.judge.rule import Rule
from diagnose.judge.unknown import UNKNOWN_CERTAINTY
from diagnose.judge.verdict import Verdict
from diagnose.model.cause import Cause, EvidenceItem, NotChecked, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.fingerprint import name_fault
from diagnose.model.place import Where
from diagnose.model.trace import Ints, Job
from diagnose.model.training_log import LogFacts
from diagnose.numerics.figures import write_figure

#: Why a log alone leaves every cause open.
NO_OPERATIONS = "a training log has step times and no operations: nothing in it says what time is lost to"
#: A cause and a change of pace are the same when one costs no more than so many times as much as the other.
ALIKE = 2.0
#: Log and trace contradict each other when the traced steps differ by more than this part.
CONTRADICTION = 0.1
#: Traced steps that lie in the slow part of the log before the whole trace does.
INSIDE_SHARE = 0.9


def judge_log(facts: LogFacts, job: Job, rules: Sequence[Rule]) -> Verdict:
    """Judge a job by its log alone, which leaves the cause of every rule open.

    It is `straggling` with the cause `unknown` where steps got longer; else `inconclusive`: steps that were slow from the first on
    look the same as healthy ones.
    """
    not_checked = tuple(NotChecked(rule.id, NO_OPERATIONS) for rule in rules)
    if facts.when.pattern is None or facts.usual_s is None or facts.slow_s is None:
        return Verdict("inconclusive", (), None, (), not_checked, ())
    workers = tuple(
        dict.fromkeys(slow.worker for slow in facts.slow_ranks if slow.by_peers and slow.worker is not None)
    )
    where = Where(workers=workers)
    cause = Cause(
        cause="unknown",
        title="unknown cause: iterations got longer",
        confidence=UNKNOWN_CERTAINTY,
        share=None,
        recoverable=1.0 - facts.usual_s / facts.slow_s,
        where=where,
        when=facts.when,
        evidence=(_describe_change("unknown", facts), *_describe_ranks("unknown", facts)),
        fixes=(),
        fingerprint=name_fault(job, "unknown/log", None, where),
    )
    return Verdict("straggling", (cause,), None, (), not_checked, ())


def add_log(diagnosis: Diagnosis, facts: LogFacts, rules: Sequence[Rule]) -> Diagnosis:
    """Join what the training log of a run shows to the diagnosis of its trace."""
    causes, facts, warnings = join_log(
        diagnosis.causes, facts, rules, steps=diagnosis.what_if.steps, recorded_s=diagnosis.step_time.recorded
    )
    return dataclasses.replace(diagnosis, causes=causes, log=facts, warnings=(*diagnosis.warnings, *warnings))


def join_log(
    causes: Sequence[Cause], facts: LogFacts, rules: Sequence[Rule], *, steps: Ints, recorded_s: float
) -> tuple[tuple[Cause, ...], LogFacts, tuple[str, ...]]:
    """Join what a log shows to what was found in the trace of the same run.

    Parameters
    ----------
    steps : ndarray of int64, shape (n_steps,)
        Traced steps that were analysed, increasing; `recorded_s` is their mean.

    Returns
    -------
    causes : tuple of Cause
        The one that costs as much as the change of pace knows since when, also outside the trace; culprits that the log sets apart,
        too, have that as evidence.
    facts : LogFacts
        With the seconds of the traced steps by the log.
    warnings : tuple of str
    """
    lines = np.minimum(np.searchsorted(facts.iterations, steps), len(facts.iterations) - 1)
    ahead = facts.iterations[lines] - steps  # each line is the mean of the iterations up to it
    covered = (ahead >= 0) & (ahead < facts.interval)
    if not covered.any():
        span = f"{int(facts.iterations[0])} to {int(facts.iterations[-1])}"
        warning = f"the log has none of the traced steps (its iterations are {span}): nothing of it is used; is it the same run?"
        return tuple(causes), facts, (warning,)
    facts = dataclasses.replace(facts, traced_s=float(facts.step_s[lines[covered]].mean()))
    warnings = _contradict(facts, recorded_s)
    if warnings:
        return tuple(causes), facts, warnings
    undatable = {rule.id for rule in rules if not rule.dated_by_log}
    at = _find_alike(causes, facts, steps, recorded_s, undatable)
    if facts.when.pattern is not None and at is None and causes and not _is_outside(facts, steps):
        warnings = ("the log shows a change of pace that no cause found in the trace accounts for",)
    joined = []
    for i, cause in enumerate(causes):
        evidence = [*cause.evidence]
        when = cause.when
        if i == at:
            when = _join_when(cause, facts, steps)
            evidence.append(_describe_change(cause.cause, facts, cost_s=cause.recoverable * recorded_s))
        culprits = {(worker.dp, worker.pp) for worker in cause.where.workers}
        evidence += [
            item
            for item, slow in zip(_describe_ranks(cause.cause, facts), facts.slow_ranks, strict=True)
            if slow.worker is not None and (slow.worker.dp, slow.worker.pp) in culprits
        ]
        joined.append(msgspec.structs.replace(cause, when=when, evidence=tuple(evidence)))
    return tuple(joined), facts, warnings


def _contradict(facts: LogFacts, recorded_s: float) -> tuple[str, ...]:
    """Warn where log and trace do not tell of the same steps."""
    assert facts.traced_s is not None
    if abs(math.log(facts.traced_s / recorded_s)) <= math.log(1.0 + CONTRADICTION):
        return ()
    text = f"the traced steps take {write_figure(facts.traced_s, 4)} s by the log and {write_figure(recorded_s, 4)} s by the trace"
    return (f"log and trace contradict each other: {text}; nothing of the log is used: is it the same run?",)


def _bounds(facts: LogFacts) -> tuple[float, float]:
    """Give the first slow iteration, and the first that is not slow any more."""
    low = -math.inf if facts.when.onset_step is None else facts.when.onset_step
    return low, math.inf if facts.when.recovery_step is None else facts.when.recovery_step


def _is_outside(facts: LogFacts, steps: Ints) -> bool:
    """Say whether no traced step is slow by the log."""
    low, high = _bounds(facts)
    return not ((steps >= low) & (steps < high)).any()


def _find_alike(
    causes: Sequence[Cause], facts: LogFacts, steps: Ints, recorded_s: float, undatable: Collection[str]
) -> int | None:
    """Find the cause that costs in traced steps what the change of pace costs; None where none does."""
    if facts.usual_s is None or facts.slow_s is None or _is_outside(facts, steps):
        return None
    low, high = _bounds(facts)
    extra_s = (facts.slow_s - facts.usual_s) * float(((steps >= low) & (steps < high)).mean())
    found = []
    for i, cause in enumerate(causes):
        cost_s = cause.recoverable * recorded_s
        if cause.cause in undatable or cost_s <= 0 or cause.when.pattern not in (None, "constant", "onset"):
            continue
        found.append((abs(math.log(cost_s / extra_s)), i))
    best = min(found, default=(math.inf, -1))
    return best[1] if best[0] <= math.log(ALIKE) else None


def _join_when(cause: Cause, facts: LogFacts, steps: Ints) -> When:
    """Say when a cause began and ended by trace and log together: the log sees what lies between and around the traced steps."""
    low, high = _bounds(facts)
    onset, recovery = cause.when.onset_step, facts.when.recovery_step
    inside = float(((steps >= low) & (steps < high)).mean()) >= INSIDE_SHARE
    if onset is None and inside:
        onset = facts.when.onset_step
    elif onset is not None and facts.when.onset_step is not None:
        before = steps[steps < onset]
        if (before[-1] if len(before) else -math.inf) < facts.when.onset_step <= onset:
            onset = facts.when.onset_step
    if recovery is not None and recovery <= steps[-1]:
        recovery = None  # the trace itself would show it
    if recovery is not None:
        return When("transient", onset, recovery)
    return When("onset", onset) if onset is not None else cause.when


def _describe_change(cause: str, facts: LogFacts, *, cost_s: float | None = None) -> EvidenceItem:
    """Say how the pace changed by the log."""
    assert facts.usual_s is not None
    assert facts.slow_s is not None
    when = facts.when
    since = f"from iteration {when.onset_step} " if when.onset_step is not None else ""
    until = f"until {when.recovery_step}" if when.recovery_step is not None else "on" if since else ""
    slow, usual = write_figure(facts.slow_s, 4), write_figure(facts.usual_s, 4)
    text = f"by the log an iteration takes {slow} s {since}{until}, and {usual} s otherwise"
    if cost_s is not None:
        more, cost = write_figure(facts.slow_s - facts.usual_s), write_figure(cost_s)
        text += f": {more} s more, and this cause costs {cost} s of a traced step"
    values = {"slow_s": facts.slow_s, "usual_s": facts.usual_s, "deviations": facts.deviations}
    at = when.onset_step if when.onset_step is not None else when.recovery_step
    return EvidenceItem("change-point", f"{cause}/log-iteration-{at}", text, values)


def _describe_ranks(cause: str, facts: LogFacts) -> list[EvidenceItem]:
    """Say which ranks the log sets apart, one sentence each."""
    return [
        EvidenceItem("log", f"{cause}/log-{slow.measure.lower()}-rank-{slow.rank}", slow.text, dict(slow.values))
        for slow in facts.slow_ranks
    ]
