"""What a training log adds to a verdict, and what can be said of a log alone.

Enters: `LogFacts`, and the causes found in a trace if there is one. Leaves: a `Verdict` of the log alone; or the causes with when
they began, where that was before the trace or between its steps, and what contradicts them.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

import msgspec.structs
import numpy as np

from diagnose.judge.log_causes import describe_change, describe_ranks, list_log_causes
from diagnose.judge.rule import Rule
from diagnose.judge.unknown import UNKNOWN
from diagnose.judge.verdict import Verdict
from diagnose.judge.worth import least_gain
from diagnose.model.cause import Cause, NotChecked, When
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import LogWindow
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Bools, Ints, Job
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


def judge_log(facts: LogFacts, job: Job, rules: Sequence[Rule], *, min_speedup: float = MIN_SPEEDUP) -> Verdict:
    """Judge a job by its log alone.

    It is `straggling` where steps got longer, or where single ones cost at least what `min_speedup` asks for; else `inconclusive`:
    steps that were slow from the first on look the same as healthy ones.
    """
    causes = list_log_causes(facts, job, rules, least_gain(min_speedup))
    named = {cause.cause for cause in causes}
    not_checked = tuple(NotChecked(rule.id, NO_OPERATIONS) for rule in rules if rule.id not in named)
    checked = tuple(sorted(named - {UNKNOWN}))
    return Verdict("straggling" if causes else "inconclusive", causes, None, checked, not_checked, ())


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
            window = _choose_window(facts, steps)
            evidence.append(describe_change(cause.cause, facts, cost_s=cause.recoverable * recorded_s, window=window))
        culprits = {(worker.dp, worker.pp) for worker in cause.where.workers}
        evidence += [
            item
            for item, slow in zip(describe_ranks(cause.cause, facts), facts.slow_ranks, strict=True)
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


def _mark_slow(facts: LogFacts, steps: Ints) -> Bools:
    """Mark the traced steps that are slow by the log."""
    slow = np.zeros(len(steps), dtype=bool)
    for low, high in _list_spans(facts):
        slow |= (steps >= low) & (steps < high)
    return slow


def _list_spans(facts: LogFacts) -> list[tuple[float, float]]:
    """List the first slow iteration, and the first that is not slow any more, of each window."""
    if facts.windows:
        found = [(window.onset, window.recovery) for window in facts.windows]
    else:
        found = [(facts.when.onset_step, facts.when.recovery_step)] if facts.when.pattern is not None else []
    return [(-math.inf if a is None else a, math.inf if b is None else b) for a, b in found]


def _choose_window(facts: LogFacts, steps: Ints) -> LogWindow | None:
    """Give the window that most traced steps lie in; None where the log has but one."""
    if len(facts.windows) < 2:
        return None
    return max(facts.windows, key=lambda w: int(((steps >= w.first) & (steps <= w.last)).sum()))


def _is_outside(facts: LogFacts, steps: Ints) -> bool:
    """Say whether no traced step is slow by the log."""
    return not _mark_slow(facts, steps).any()


def _find_alike(
    causes: Sequence[Cause], facts: LogFacts, steps: Ints, recorded_s: float, undatable: Collection[str]
) -> int | None:
    """Find the cause that costs in traced steps what the change of pace costs; None where none does."""
    if facts.usual_s is None or facts.slow_s is None or _is_outside(facts, steps):
        return None
    window = _choose_window(facts, steps)
    slow_s = facts.slow_s if window is None else window.step_time
    extra_s = (slow_s - facts.usual_s) * float(_mark_slow(facts, steps).mean())
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
    window = _choose_window(facts, steps)
    began = facts.when.onset_step if window is None else window.onset
    onset, recovery = cause.when.onset_step, facts.when.recovery_step if window is None else window.recovery
    low, high = -math.inf if began is None else began, math.inf if recovery is None else recovery
    inside = float(((steps >= low) & (steps < high)).mean()) >= INSIDE_SHARE
    if onset is None and inside:
        onset = began
    elif onset is not None and began is not None:
        before = steps[steps < onset]
        if (before[-1] if len(before) else -math.inf) < began <= onset:
            onset = began
    if recovery is not None and recovery <= steps[-1]:
        recovery = None  # the trace itself would show it
    if recovery is not None:
        return When("transient", onset, recovery)
    return When("onset", onset) if onset is not None else cause.when
