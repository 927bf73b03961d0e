"""Numbers, places and times in words. Percent and milliseconds exist only here.

Enters: a part of a diagnosis. Leaves: text without line ends, user strings escaped.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from diagnose.model.cause import TURNS, Alternative, Cause, Fix, When
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.place import Link, Shape, Where, Worker, list_labels, name_whole
from diagnose.numerics.robust import Floats
from diagnose.report.escape import escape, name, prose

if TYPE_CHECKING:
    from diagnose.model.training_log import LogFacts

NOT_KNOWN = "not known"
#: Culprits named before "and N more".
MAX_NAMED = 6
#: So many workers of one stage, or of one dp rank, are named by it.
GROUP_FROM = 3
#: Confidence at least this high, in words; confidence is calibrated, so these are odds.
_CONFIDENCE = ((0.9, "almost certain"), (0.7, "likely"), (0.5, "more likely than not"), (0.3, "possible"))

#: Patterns in time, in words; the steps of an onset say it all.
_PATTERNS = {
    "constant": "all the time",
    "onset": "",
    "periodic": "at even intervals",
    "sporadic": "now and then",
    "transient": "for a while",
}


#: With fewer steps than this nothing is judged.
FEW_STEPS = 3
#: Iterations of a log that scatter by this part, as a standard deviation, are not called steady.
VARYING = 0.05
#: Restarts are told in the first line from this part of all time on.
MUCH = 0.1
#: Of fewer lines that vary nobody can say whether the pace changed.
FEW_LINES = 8
#: Lines that vary by this part have no pace: it is said from what to what they go.
UNEVEN = 0.5
#: A smaller share of a time is nothing: it would read 0%.
NO_SHARE = 0.0005
#: What a healthy job could gain is named from this part of the step time on.
WORTH_NAMING = 0.02
#: ... and time without a known cause is a finding from here on: the judge's `UNKNOWN_SHARE`.
UNNAMED_FROM = 0.05
#: Who could gain so much by other means is not told that there is nothing to be done.
LARGE_LEVER = 0.1
#: From this ratio on a job is said to be so many times slower, below it so many percent.
_TIMES_FROM = 1.5


def percent(share: float | None) -> str:
    """Say a share in percent.

    >>> percent(0.483), percent(0.0341), percent(0.0002), percent(None)
    ('48%', '3.4%', 'under 0.1%', 'not known')
    """
    if share is None or not math.isfinite(share):
        return NOT_KNOWN
    points = 100.0 * share
    if points == 0:
        return "0%"
    if abs(points) < 0.1:
        return "under 0.1%"
    return f"{points:.0f}%" if abs(points) >= 10 else f"{points:.1f}%"


def seconds(value: float | None) -> str:
    """Say a time in the unit that suits it.

    >>> seconds(12.314), seconds(0.0312), seconds(0.0000042), seconds(None)
    ('12.31 s', '31.2 ms', '4.20 us', 'not known')
    """
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * scale >= 1:
            return f"{_three_digits(value * scale)} {unit}"
    return f"{_three_digits(value * 1e6)} us" if value else "0 s"


def ratio(value: float | None) -> str:
    """Say a ratio with two decimals.

    >>> ratio(1.916), ratio(-0.001), ratio(float("nan"))
    ('1.92', '0.00', 'not known')
    """
    return f"{value:z,.2f}" if value is not None and math.isfinite(value) else NOT_KNOWN


def times(value: float) -> str:
    """Say a factor.

    >>> times(2.071), times(1.1768), times(14.3), times(4321.0)
    ('2.1x', '1.18x', '14x', 'over 1,000x')
    """
    if value > 1000:
        return "over 1,000x"
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


def slower(ratio: float) -> str:
    """Say by how much a job is slower: so many percent, or times where it is much.

    >>> slower(2.071), slower(1.177)
    ('2.1x', '18%')
    """
    return times(ratio) if ratio >= _TIMES_FROM else percent(ratio - 1)


def hours(value: float | None) -> str:
    """Say an amount of GPU hours.

    >>> hours(1234.5), hours(0.031), hours(0.0)
    ('1,234', '0.03', '0')
    """
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.01 else ("under 0.01" if value > 0 else "0")


def gpu_hours(*amounts: float) -> str:
    """Say an amount of GPU hours, or one of another; in seconds where hours are too few to read.

    >>> gpu_hours(0.02, 0.1), gpu_hours(0.004, 0.1), gpu_hours(0.002)
    ('0.02 of 0.10 GPU hours', '14.4 of 360 GPU seconds', '7.2 GPU seconds')
    """
    is_little = any(0 < amount < 0.01 for amount in amounts) and max(amounts) < 1
    said = " of ".join(hours(amount * 3600 if is_little else amount) for amount in amounts)
    return f"{said} GPU {'seconds' if is_little else 'hours'}"


def confidence(value: float) -> str:
    """Say a probability in words and as a number.

    >>> confidence(0.93)
    'almost certain (0.93)'
    """
    word = next((word for least, word in _CONFIDENCE if value >= least), "a guess")
    return f"{word} ({ratio(value)})"


def speedup(value: float | None) -> str:
    """Say how much faster, and how much shorter a step is then.

    >>> speedup(1.25)
    '1.25x as fast, steps 20% shorter'
    """
    if value is None or not math.isfinite(value) or value <= 0:
        return NOT_KNOWN
    if value < 1:
        return f"{ratio(value)}x as fast, steps {percent(1 / value - 1)} longer"
    return f"{ratio(value)}x as fast, steps {percent(1 - 1 / value)} shorter"


def pace(step_s: float | None, faster: float | None) -> str:
    """Say how long a step takes with a fix, and how much faster that is.

    >>> pace(0.8, 1.25)
    '800 ms a step, 1.25x as fast, steps 20% shorter'
    """
    return f"{seconds(step_s)} a step, {speedup(faster)}"


def worker(who: Worker) -> str:
    """Name a worker, with its rank and host where they are known; where one member of its group is meant, that one.

    >>> worker(Worker(0, 3, rank=24, host="gpu-17"))
    'dp 0, stage 3 (rank 24, host gpu-17)'
    >>> worker(Worker(0, 3, rank=27, tp=1, cp=1))
    'dp 0, stage 3, tp 1, cp 1 (rank 27)'
    """
    known = [f"rank {who.rank}"] if who.rank is not None else []
    known += [f"host {name(who.host)}"] if who.host else []
    return short_worker(who) + (f" ({', '.join(known)})" if known else "")


def short_worker(who: Worker) -> str:
    """Name a worker by its labels alone, or one member of its group.

    >>> short_worker(Worker(0, 3, rank=24, tp=1))
    'dp 0, stage 3, tp 1'
    """
    labels = [("dp", who.dp), ("stage", who.pp), ("tp", who.tp), ("cp", who.cp)]
    return ", ".join(f"{label} {value}" for label, value in labels if value is not None)


def link(ends: Link) -> str:
    """Name a link by its two ends.

    >>> link(Link(Worker(0, 1), Worker(0, 2)))
    'link dp 0, stage 1 -> dp 0, stage 2'
    """
    return "link " + " -> ".join(f"dp {end.dp}, stage {end.pp}" for end in ends.ends)


def some_of(names: Sequence[str]) -> list[str]:
    """Keep the first few names, and count the others.

    >>> some_of(["a", "b", "c", "d", "e", "f", "g", "h"])
    ['a', 'b', 'c', 'd', 'e', 'f', 'and 2 more']
    """
    left = len(names) - MAX_NAMED
    return [*names[:MAX_NAMED], f"and {left} more"] if left > 0 else list(names)


def places(where: Where) -> list[str]:
    """List where a cause sits, one line a worker or link, the worst of them by label; empty where it is spread over the job.

    >>> places(Where(workers=(Worker(0, 1, host="gpu-17"),), stages=(3, 4), hosts=("gpu-17",)))
    ['dp 0, stage 1 (host gpu-17)', 'stages 3, 4']
    """
    worst = [*sorted(where.workers[:MAX_NAMED], key=lambda who: (who.dp, who.pp)), *where.workers[MAX_NAMED:]]
    lines = some_of([worker(who) for who in worst]) + some_of([link(ends) for ends in where.links])
    named = {who.host for who in where.workers[:MAX_NAMED]}
    hosts = [] if set(where.hosts) <= named else [name(host) for host in where.hosts]
    for kind, names in (("stage", [str(stage) for stage in where.stages]), ("host", hosts)):
        if names:
            lines.append(f"{kind if len(names) == 1 else f'{kind}s'} {', '.join(some_of(names))}")
    return lines


def place(where: Where, shape: Shape | None = None) -> str:
    """Say in a few words where a cause sits, in a job of some shape where that is known; empty where it is spread over the job.

    >>> place(Where(workers=(Worker(1, 0), Worker(0, 0))))
    'stage 0, dp 0 and 1'
    >>> place(Where(workers=(Worker(1, 0), Worker(0, 0))), (2, 4))
    'stage 0'
    >>> place(Where(workers=(Worker(2, 0), Worker(0, 0), Worker(1, 0))))
    'stage 0, 3 workers'
    >>> place(Where(stages=(2, 1)))
    'stages 1 and 2'
    """
    hosts = [f"host {name(host)}" for host in where.hosts]
    if len(hosts) == 1 and len(where.workers) > 1:
        return f"{hosts[0]}, {len(where.workers)} workers"
    if found := _place_several(where.workers, shape):
        return found
    if len(where.workers) >= GROUP_FROM:
        dp, stage = ({getattr(who, side) for who in where.workers} for side in ("dp", "pp"))
        if len(stage) == 1 or len(dp) == 1:
            group = f"stage {min(stage)}" if len(stage) == 1 else f"dp {min(dp)}"
            return f"{group}, {len(where.workers)} workers"
    workers = [short_worker(who) for who in where.workers]
    for names in (workers, [link(ends) for ends in where.links], hosts):
        if names:
            return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f"stage{'s' if where.stages[1:] else ''} {list_labels(sorted(where.stages))}" if where.stages else ""


def _place_several(workers: Sequence[Worker], shape: Shape | None) -> str:
    """Name workers that are all of a stage or of a dp rank, or that are two; empty for others, and for members of a group."""
    pairs = sorted((who.dp, who.pp) for who in workers)
    if any(who.tp is not None or who.cp is not None for who in workers):
        return ""
    if shape is not None and (whole := name_whole(pairs, shape)):
        return whole
    if len(pairs) != 2:
        return ""
    dps, stages = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
    if len(stages) == 1:
        return f"stage {stages[0]}, dp {list_labels(dps)}"
    if len(dps) == 1:
        return f"dp {dps[0]}, stages {list_labels(stages)}"
    return " and ".join(f"dp {dp}, stage {stage}" for dp, stage in pairs)


def span(low: float, high: float) -> str:
    """Say a range of ratios, once where both ends read the same.

    >>> span(1.001, 1.204), span(1.921, 1.922)
    ('1.00 to 1.20', '1.92')
    """
    ends = (ratio(low), ratio(high))
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def since(when: When) -> str:
    """Say since when and how often a cause is there; empty where neither is known.

    >>> since(When("onset", onset_step=23))
    'from step 23 on'
    >>> since(When("periodic", period_steps=10.0))
    'about every 10 steps'
    """
    if when.period_steps is not None:
        pattern = f"about every {when.period_steps:.3g} steps"
    else:
        pattern = _PATTERNS.get(when.pattern or "", escape(when.pattern or ""))
    if when.span and when.pattern == "transient":
        pattern = ""
    return ", ".join(part for part in (pattern, when.span) if part)


def when(cause: Cause) -> str:
    """Say since when and how often a cause is there, and where that is not so of each of its workers all the while."""
    turns = "not all at once" if any(item.id.endswith(TURNS) for item in cause.evidence) else ""
    return ", ".join(part for part in (since(cause.when), turns) if part)


def headline(diagnosis: Diagnosis) -> str:
    """Say in one sentence the name of the job, the verdict, and the first cause with what mending it gives back."""
    return f"{name(diagnosis.job.job_id) or 'job'}: {finding(diagnosis)}"


def is_hang(diagnosis: Diagnosis) -> bool:
    """Say whether a job stands still, by the dumps of its collectives: no pace says more."""
    return diagnosis.collectives is not None and diagnosis.collectives.hang is not None


def summary(diagnosis: Diagnosis) -> str:
    """Say in one line the name of the job, the verdict, and the first cause with its place and how much longer steps are for it."""
    said = f"{name(diagnosis.job.job_id) or 'job'}: {escape(diagnosis.verdict)}"
    if not diagnosis.causes:
        return f"{said}, {finding(diagnosis).partition(' — ')[2]}"
    first, *others = diagnosis.causes
    said += f", {at_place(prose(first.title), first.where, is_placed=not diagnosis.is_from_log, shape=diagnosis.shape)}"
    if first.recoverable >= NO_SHARE and not diagnosis.is_from_collectives and not is_hang(diagnosis):
        said += f", steps {times(1 / (1 - first.recoverable) if first.recoverable < 1 else math.inf)} as long"
    return said + (f"; {count(len(others), 'more cause')}" if others else "")


def finding(diagnosis: Diagnosis) -> str:
    """Say verdict and first cause, without the name of the job."""
    if diagnosis.verdict == "healthy":
        if best_gain(diagnosis) is None:
            lever = describe_large_lever(diagnosis)
            return f"healthy — {f'no fault found, but {lever}' if lever else 'nothing found that is worth mending'}"
        return f"healthy — no known cause that is worth a speedup of {diagnosis.min_speedup:g}"
    if diagnosis.verdict == "inconclusive":
        return f"inconclusive — {why_inconclusive(diagnosis)}"
    if diagnosis.verdict == "noisy":
        return f"noisy — {prose(diagnosis.why)}"
    if not diagnosis.causes:
        return escape(diagnosis.verdict)
    first = diagnosis.told[0]
    others = len(diagnosis.causes) - 1
    also = f", and {count(others, 'more cause')}" if others else ""
    return (
        f"{escape(diagnosis.verdict)} — {titled(first, diagnosis.shape)}{also}; {promise(first, of_several=others > 0)}"
    )


def promise(cause: Cause, *, of_several: bool = False) -> str:
    """Say what the first fix of a cause gives: its own price, and no more; where none is priced, what would come back at most.

    Reports print the same digits where they tell of that fix.
    """
    gain = price(cause.fixes[0]) if cause.fixes else None
    if gain is None or cause.recoverable_after_others is not None:
        return bound(cause)
    fix = "the first fix" if of_several else "the fix"
    if is_for_next_job(cause.fixes[0]):
        until = "let it finish: " if cause.fixes[0].figures.get("steps_left") else ""
        return f"{until}with {fix} steps of the next job are {percent(gain)} shorter"
    return f"{fix} makes steps {percent(gain)} shorter"


def is_unpriced(cause: Cause) -> bool:
    """Say whether a log tells of a cause and of nothing that it costs."""
    return cause.share is None and cause.recoverable == 0.0 and cause.recoverable_after_others is None


def bound(cause: Cause) -> str:
    """Say what would come back at most without a cause whose fix has no price, or gives nothing before others are mended."""
    if cause.recoverable_after_others is not None:
        return f"up to {percent(cause.recoverable_after_others)} after the others"
    if is_unpriced(cause):
        return "what it costs does not show"
    if not math.isfinite(cause.recoverable) or cause.recoverable < NO_SHARE:
        return "nothing comes back when this alone is gone"
    return (
        f"up to {percent(cause.recoverable)} {'if it were gone' if cause.when.recovery_step is None else 'without it'}"
    )


def price(fix: Fix) -> float | None:
    """Give the part of the step time that a fix gives back by its own replay; None where no replay says it.

    >>> price(Fix("planned-gc", "", "", predicted_step_time=0.75, predicted_speedup=4 / 3))
    0.25
    """
    faster = fix.predicted_speedup
    if fix.predicted_step_time is None or faster is None or not math.isfinite(faster) or faster <= 0:
        return None
    return 1 - 1 / faster


def is_for_next_job(fix: Fix) -> bool:
    """Say whether a restart for a fix pays off only after the job's end."""
    steps, left = fix.figures.get("break_even_steps"), fix.figures.get("steps_left")
    return steps is not None and left is not None and left < steps


def spot(where: Where, *, is_placed: bool = True, shape: Shape | None = None) -> str:
    """Say in a few words where a cause sits, with its host where that is one; empty where nobody can know, as by a log.

    >>> spot(Where(workers=(Worker(0, 3, host="gpu-17"),))), spot(Where())
    ('at dp 0, stage 3 (gpu-17)', 'spread over the job')
    """
    found = place(where, shape)
    hosts = {who.host for who in where.workers} if len(where.workers) == 1 else set()
    host = hosts.pop() if hosts else None
    if not found:
        return "spread over the job" if is_placed else ""
    return f"at {found}{f' ({name(host)})' if host else ''}"


def at_place(cause: str, where: Where, *, is_placed: bool = True, shape: Shape | None = None) -> str:
    """Write a cause, escaped already, with its place behind.

    >>> at_place("worker-fault", Where(workers=(Worker(0, 3),))), at_place("noise", Where())
    ('worker-fault at dp 0, stage 3', 'noise, spread over the job')
    """
    found = spot(where, is_placed=is_placed, shape=shape)
    return f"{cause}{' ' if found.startswith('at ') else ', '}{found}" if found else cause


def first_line(
    severity: str | None,
    cause: str,
    where: Where,
    title: str,
    *,
    is_placed: bool = True,
    shape: Shape | None = None,
) -> str:
    """Write how severe a cause is, which, escaped already, where, and its title."""
    said = at_place(cause, where, is_placed=is_placed, shape=shape)
    return f"{f'{escape(severity.upper())} ' if severity else ''}{said}: {prose(title)}"


def name_alternative(other: Alternative, cause: Cause) -> str:
    """Name what else a cause may be: another one, escaped, or itself in another place; planned work by what it is, or no name."""
    if other.cause == "unknown":
        return "something without a name"
    if other.cause == cause.cause:
        return "other places"
    return "evaluation or logging" if other.cause == "evaluation" else escape(other.cause)


def titled(cause: Cause, shape: Shape | None = None) -> str:
    """Give a cause's title with its place behind, and what else it may be."""
    where = place(cause.where, shape)
    others = ["something else" if a.cause == "unknown" else name_alternative(a, cause) for a in cause.alternatives]
    return " or ".join([f"{prose(cause.title)} ({where})" if where else prose(cause.title), *others])


def best_gain(diagnosis: Diagnosis) -> tuple[str, float] | None:
    """Give the component whose removal alone gives back most, in words, and how much; None below 2% of the step time."""
    gains = {words: diagnosis.features.get(f"gain.{name}") or 0.0 for name, words in COMPONENTS.items()}
    best = max(gains, key=lambda words: gains[words])
    return (best, gains[best]) if gains[best] >= WORTH_NAMING else None


def describe_large_lever(diagnosis: Diagnosis) -> str:
    """Say how much shorter steps could be that no fault makes long, where that is much; empty elsewhere."""
    gain = 1 - 1 / diagnosis.levers[0].predicted_speedup if diagnosis.levers else 0.0
    if gain < LARGE_LEVER:
        return ""
    return f"steps could be {'up to ' if diagnosis.levers[0].at_most else ''}{percent(gain)} shorter"


def why_inconclusive(diagnosis: Diagnosis) -> str:
    """Say why a trace, or a log alone, does not let anyone judge."""
    if diagnosis.is_from_log:
        log = diagnosis.log
        least_s = WORTH_NAMING * log.ledger.total_s if log is not None and log.ledger is not None else math.inf
        planned = log is not None and any(spikes.matches and spikes.lost_s >= least_s for spikes in log.spikes)
        what = "nothing but planned work" if planned else "nothing"
        return _why_a_log_is_inconclusive(log, what) + describe_starts(log) if log is not None else ""
    if diagnosis.is_from_collectives:
        return prose(diagnosis.why)
    if not math.isfinite(diagnosis.gpu_hours_analysed):  # nobody knows the unit of its times
        return prose(diagnosis.why)
    if not diagnosis.fidelity.ok:
        return f"the replay is {describe_miss(diagnosis.fidelity)}, too far to be trusted"
    n_steps = len(diagnosis.what_if.steps)
    if n_steps < FEW_STEPS:
        return f"only {n_steps} {'step' if n_steps == 1 else 'steps'} could be analysed, too few to tell anything from chance"
    if diagnosis.why:
        return prose(diagnosis.why)
    if diagnosis.not_checked and not diagnosis.causes:
        n = len(diagnosis.not_checked)
        return f"{n} {'cause' if n == 1 else 'causes'} could not be checked, and nothing else was found"
    return "the trace does not say enough to judge"


def describe_starts(log: "LogFacts") -> str:
    """Say what part of all time first steps and restarts took, where it is much: no pace shows it. Empty elsewhere."""
    shares = log.ledger.shares if log.ledger is not None and not log.of else {}
    names = {"start": "first steps", "restarts": "restarts"}
    said = [f"{name} took {percent(shares[key])}" for key, name in names.items() if shares.get(key, 0.0) >= MUCH]
    return f"; {' and '.join(said)} of all time" if said else ""


def _why_a_log_is_inconclusive(log: "LogFacts", what: str) -> str:
    """Say that a log is steady, merely varies, or is too short to tell; first that it ends with an error."""
    ended = f"ended with an error after iteration {log.failures[0].iteration:,}; " if log.failures else ""
    if (n_lines := len(log.iterations)) < FEW_STEPS:
        return f"{ended}only {count(n_lines, 'line')} of step times, too few to tell anything from chance"
    if (varies := log_varies(log)) >= VARYING:
        each = "lines" if log.interval > 1 else "iterations"
        if n_lines >= FEW_LINES and varies >= UNEVEN and not log.of:
            low, middle, high = (seconds(s) for s in np.quantile(_ordinary(log), (0.0, 0.5, 1.0)).tolist())
            return (
                f"{ended}{what} stands out in the log: {each} take from {low} to {high}, half of them {middle} and less"
            )
        if n_lines >= FEW_LINES:
            return f"{ended}{what} stands out in the log, though {each} vary by {percent(varies)}"
        if (rise := log.step_s[-1] / log.step_s[0] - 1.0) >= VARYING and bool((np.diff(log.step_s) > 0).all()):
            said = f"each of {n_lines} lines takes longer than the one before, {percent(rise)} in all"
            return f"{ended}{said}: too few to be sure of a trend"
        return f"{ended}only {n_lines} lines of step times, which vary by {percent(varies)}: too few to tell anything from chance"
    if ended:
        return f"{ended}steady until then: {what} stands out in the log"
    return f"steady: {what} stands out in the log, which cannot say whether steps were slow from the first on"


def log_varies(log: "LogFacts") -> float:
    """Give by what part of the middle one most lines of a log differ from it, those of slow first steps left out."""
    low, middle, high = np.quantile(_ordinary(log), (0.159, 0.5, 0.841)).tolist()
    return float((high - low) / 2 / middle)


def _ordinary(log: "LogFacts") -> Floats:
    """Give the step times of a log without those of slow first steps."""
    return np.delete(log.step_s, np.array(log.start_lines, dtype=np.int64))


def describe_miss(fidelity: Fidelity) -> str:
    """Say how far the replay is off: with launch delays, or without them where its steps are longer than the recorded ones.

    >>> describe_miss(Fidelity(0.03, 0.12, ok=False)), describe_miss(Fidelity(-0.2, 0.01, ok=False))
    ('off by 12%', 'off by 1.0%, and without launch delays its steps are 25% longer than the recorded ones')
    """
    said = f"off by {percent(fidelity.replay_error)}"
    if fidelity.ok or not -fidelity.discrepancy > (fidelity.replay_error or 0.0):
        return said
    longer = 1.0 / (1.0 + fidelity.discrepancy) - 1.0
    return f"{said}, and without launch delays its steps are {percent(longer)} longer than the recorded ones"


def _three_digits(value: float) -> str:
    """Write a number of at least 1 with about three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"


def count(n: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "step"), count(12_000, "GPU")
    ('1 step', '12,000 GPUs')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
