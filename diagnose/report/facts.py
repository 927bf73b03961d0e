"""What every report for people tells in the same words: the figures of a job, its doubts, and the figures of a cause.

Enters: a diagnosis, or one of its causes. Leaves: lines of text, user strings escaped.
"""

import re
from collections.abc import Sequence

from diagnose.model.budget import MUCH_EXPOSED, Lever
from diagnose.model.cause import Alternative, Cause, EvidenceItem, Fix, NotChecked, RefusedFix
from diagnose.model.collectives import CollectivesDocument
from diagnose.model.components import COMPONENTS, STALLED
from diagnose.model.diagnosis import PROBABLE, Diagnosis
from diagnose.model.diagnosis_document import LogRestart, LogSpikes, MadeBy
from diagnose.model.place import Shape
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Job
from diagnose.model.training_log import LogFacts
from diagnose.numerics.figures import write_steps
from diagnose.report import words
from diagnose.report.escape import escape, name, prose

#: Warnings and unchecked causes shown before "and N more".
MAX_NOTES = 12
#: What recorded steps are beside simulated ones: longer, or shorter.
_DISCREPANCY = {
    False: "recorded / simulated - 1: launch delays, which S leaves out",
    True: "recorded / simulated - 1: operations run side by side that S puts one after the other",
}
#: Said of a fix that is not priced.
NO_PREDICTION = "no prediction: no replay says what it gives back"
#: Of a job whose causes are known exposed communication of so much is told beside them.
MOST_EXPOSED = 0.25
#: How the name of evidence ends that is a share of the slow workers.
_OF_SEVERAL = "/worker.began_share"
#: Restarts told one by one.
MAX_RESTARTS = 3
#: Kinds of slow iterations told one by one, from this part of all time on.
MAX_SPIKES = 3
WORTH_TELLING = 0.01
#: What time is lost to by a log, in words.
LOSSES = {
    "windows": "slow windows",
    "ramps": "paces that change evenly",
    "periodic": "slow iterations at a period",
    "sporadic": "slow iterations at random",
    "start": "first steps",
    "restarts": "restarts",
    "save": "saving",
    "evaluation": "evaluation",
    "collection": "garbage collection",
    "cache-flush": "flushes of the allocator's cache",
    "epoch": "ends of epochs",
    "profile": "profiling",
    "log": "logging",
    "between": "between iterations",
    "variation": "ordinary variation",
}
#: Where in the instructions of a fix those for the next framework begin.
_FRAMEWORKS = r"(?:Megatron-LM|torchtitan|DeepSpeed|PyTorch): "
_FRAMEWORK = re.compile(rf"(?<=[.;:]) (?={_FRAMEWORKS})")


def summarize(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Say what was analysed and how much was lost, each with its label."""
    if diagnosis.is_from_log:
        seen = diagnosis.collectives
        return _summarize_log(diagnosis) + ([] if seen is None else [("Collectives", describe_collectives(seen))])
    if diagnosis.is_from_collectives and diagnosis.collectives is not None:
        gpus = words.count(diagnosis.job.world_size, "rank")
        shape = f" ({_shape(diagnosis.job)})" if diagnosis.parallelism_known else ""
        return [
            ("Job", f"{gpus}{shape}, a recording of collectives without computes"),
            *list_collectives(diagnosis.collectives)[:1],
        ]
    times, job, w = diagnosis.step_time, diagnosis.job, diagnosis.what_if
    steps = f"{words.count(len(w.steps), 'step')} analysed"
    steps += f", {diagnosis.steps_dropped:,} dropped" if diagnosis.steps_dropped else ""
    without_s = diagnosis.without_named_s
    without = "" if without_s is None else f", {words.seconds(without_s)} without faults"
    gpus = words.count(job.world_size, "GPU") + (f" {name(job.gpu_type)}" if job.gpu_type else "")
    rows = [
        ("Job", f"{gpus} ({_shape(job)}), {steps}, {words.count(diagnosis.n_ops, 'operation')}"),
        ("Step time", f"{words.seconds(times.recorded)} recorded{without}"),
        ("GPU hours", _describe_hours(diagnosis)),
        ("Replay", describe_replay(diagnosis)),
    ]
    if diagnosis.log is not None:
        rows.append(("Log", describe_log(diagnosis.log)))
    if diagnosis.collectives is not None:
        rows.append(("Collectives", describe_collectives(diagnosis.collectives)))
    return rows


def describe_collectives(seen: CollectivesDocument) -> str:
    """Say what was recorded of collectives, and how much of it."""
    ranks = f"{seen.ranks:,} of {words.count(seen.world_size, 'rank')}"
    span = f", {words.seconds(seen.seconds)}" if seen.seconds is not None else ""
    return f"{escape(seen.format)}: {ranks}, {words.count(seen.groups, 'group')}, {words.count(seen.operations, 'operation')}{span}"


def list_collectives(seen: CollectivesDocument) -> list[tuple[str, str]]:
    """Say what a recording of collectives shows, each with its label."""
    rows = [("Recording", describe_collectives(seen))]
    if seen.hang is not None:
        rows.append(("Hang", prose(seen.hang.text)))
    rows += [
        (
            f"Rank {late.rank}",
            (
                f"{words.percent(late.share)} of the time more outside collectives than its peers in {escape(late.group)}; "
                f"{words.percent(late.waited_for)} of the waiting there is for it"
            ),
        )
        for late in seen.late_ranks[:MAX_NOTES]
    ]
    rows += [
        (
            "Slow",
            (
                f"{escape(slow.operation)} of {escape(slow.group)}, ranks {', '.join(map(str, slow.ranks[:8]))}: "
                f"{words.seconds(slow.transfer_s)} by itself, {words.seconds(slow.usual_s)} in groups of its kind"
            ),
        )
        for slow in seen.slow_groups[:MAX_NOTES]
    ]
    return rows + [("Doubt", prose(doubt)) for doubt in seen.doubts]


def describe_extent(diagnosis: Diagnosis) -> str:
    """Say in a few words how much was analysed."""
    n_steps = len(diagnosis.log.iterations) if diagnosis.is_from_log and diagnosis.log else len(diagnosis.what_if.steps)
    return f"{words.count(n_steps, 'step')} on {words.count(diagnosis.job.world_size, 'GPU')}"


def explain_paper(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Give the measures of arXiv 2505.05713, each with what it means: they leave launch delays out, and so differ from ours."""
    times, w = diagnosis.step_time, diagnosis.what_if
    known = [
        (
            "simulated",
            words.seconds(times.simulated),
            "a step replayed from recorded durations, nothing waits to be launched",
        ),
        ("ideal", words.seconds(times.ideal), "the same, each operation as long as is usual for its kind"),
        ("S", words.ratio(w.slowdown), "simulated / ideal: how many times as long steps take"),
        ("waste", words.percent(1 - 1 / w.slowdown), "1 - 1/S: the part of the GPU hours that ideal times would save"),
        (
            "discrepancy",
            words.percent(diagnosis.fidelity.discrepancy),
            _DISCREPANCY[diagnosis.fidelity.discrepancy < 0],
        ),
    ]
    back = [("M_W", w.m_w, "with the slowest 3% of workers ideal"), ("M_S", w.m_s, "with the last stage ideal")]
    known += [
        (label, words.ratio(value), f"part of S's lost time that comes back {how}; no percentage, may pass 1")
        for label, value, how in back
        if value is not None
    ]
    return [(label, f"{value}: {meaning}") for label, value, meaning in known]


def _describe_hours(diagnosis: Diagnosis) -> str:
    """Say how many GPU hours were analysed, and how many of them were lost."""
    lost = diagnosis.gpu_hours_lost if diagnosis.verdict != "inconclusive" else None
    said = "" if lost is None else f", {words.hours(lost)} {describe_loss(diagnosis)}"
    return f"{words.hours(diagnosis.gpu_hours_analysed)} analysed{said}"


def describe_loss(diagnosis: Diagnosis) -> str:
    """Say what became of the GPU hours that a clean step would not take: lost, or nothing that anybody could name."""
    if diagnosis.verdict not in ("healthy", "noisy"):
        return "lost"
    return (
        f"go to {'planned work and what varies' if diagnosis.budget and diagnosis.budget.evaluation else 'what varies'}"
    )


def _shape(job: Job) -> str:
    """Say how a job is laid out over GPUs."""
    sizes = [(job.dp_size, "dp"), (job.pp_size, "pp"), (job.tp_size, "tp"), (job.cp_size, "cp")]
    return " x ".join(f"{label} {size}" for size, label in sizes if size > 1) or "1 worker"


def _summarize_log(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Say what a training log alone tells, each with its label."""
    job, log = diagnosis.job, diagnosis.log
    assert log is not None
    gpus = f"{words.count(job.world_size, 'GPU')} ({_shape(job)})" if diagnosis.parallelism_known else "GPUs not known"
    rows = [
        ("Job", f"{gpus}, a training log without operations"),
        ("Log", describe_log(log)),
        ("End", describe_end(log)),
        ("Read", _describe_reading(log)),
        ("Step time", "" if log.of else f"recorded {words.seconds(diagnosis.step_time.recorded)}"),
        ("Time", "; ".join(f"{what} {words.percent(share)}" for what, _, share in describe_ledger(log))),
    ]
    rows = [row for row in rows if row[1]]
    if diagnosis.parallelism_known:
        rows.append(("GPU hours", _describe_hours(diagnosis)))
    return rows


def _describe_reading(log: LogFacts) -> str:
    """Say who wrote a log, and what its times are from."""
    said = ", ".join(prose(part) for part in (log.format, log.reads) if part)
    every = [f"{escape(key)} every {n:,}" for key, n in log.intervals.items() if key != "loader-workers"]
    workers = log.intervals.get("loader-workers")
    stated = ", ".join([*every, *([f"{workers} loader workers"] if workers else [])])
    return f"{said}; it states: {stated}" if said and stated else said


def write_pace(log: LogFacts, seconds: float) -> str:
    """Write the seconds of iterations; of a log that tells rates alone, how many times as long as at its good pace."""
    if not log.of:
        return words.seconds(seconds)
    good_s = log.ledger.good_pace if log.ledger is not None else float(log.step_s.mean())
    return f"{words.ratio(seconds / good_s)}x the good pace"


def describe_log(log: LogFacts) -> str:
    """Say what the lines of a training log show: how many, the paces, what stands out, restarts, saves."""
    span = f"{words.count(len(log.iterations), 'line')} of iterations {int(log.iterations[0]):,} to {int(log.iterations[-1]):,}"
    said = [span + (f", one each {log.interval}" if log.interval > 1 else "")]
    if log.usual_s is not None and log.slow_s is not None:
        slow = f"{write_pace(log, log.slow_s)} {words.since(log.when)}".strip()
        said.append(slow if log.of else f"{slow}, {words.seconds(log.usual_s)} otherwise")
        if len(log.windows) > 1:
            said.append(f"{len(log.windows)} slow windows")
    elif log.of:
        said.append(f"rates of {prose(log.of)} alone, no change of pace")
    else:
        pace_s = log.ledger.good_pace if log.ledger is not None else float(log.step_s.mean())
        n_lines = len(log.iterations)
        varies = words.log_varies(log)
        is_told = (
            varies < (words.UNEVEN if n_lines >= words.FEW_LINES else words.VARYING) and n_lines >= words.FEW_STEPS
        )
        unchanged = ", no change of pace" if is_told else " on average" * (varies >= words.UNEVEN)
        said.append(f"{words.seconds(pace_s)} an iteration{unchanged}")
    said += [
        describe_spikes(log, spikes)
        for spikes in log.spikes[:MAX_SPIKES]
        if log.share_of(spikes.lost_s) >= WORTH_TELLING
    ]
    shown = log.restarts[:MAX_RESTARTS]
    said += [_describe_restart(log, restart) for restart in shown]
    if len(log.restarts) > len(shown):
        said.append(f"and {len(log.restarts) - len(shown)} more restarts")
    if log.work is not None:
        said.append(f"times grow with {log.work.of}, which is no fault and taken out")
    if log.spread is not None:
        said.append(
            f"times scatter by {words.percent(log.spread.last)} at the end, {words.percent(log.spread.first)} at first"
        )
    if log.checkpoints_s:
        said.append(f"{words.count(len(log.checkpoints_s), 'save')} in {words.seconds(sum(log.checkpoints_s))}")
    return "; ".join(said)


def describe_end(log: LogFacts) -> str:
    """Say which error a log ends with, and how many more; empty where it ends with none."""
    if not log.failures:
        return ""
    first, *others = log.failures
    rank = "" if first.rank is None else f" on rank {first.rank:,}"
    also = f", and {words.count(len(others), 'more error')}" if others else ""
    return f"an error after iteration {first.iteration:,}{rank}{also}: {prose(first.text)}"


def describe_spikes(log: LogFacts, spikes: LogSpikes) -> str:
    """Say how many iterations are slow, how often, and what that costs."""
    is_random = spikes.period is None and not spikes.told and spikes.count > 1
    often = f" every {spikes.period:,}" if spikes.period is not None else " at random" * is_random
    what = "slow one" if spikes.within else "stop between iterations"
    what, each = (
        (what, "") if spikes.count == 1 else (what.replace("slow one", "slow ones").replace("stop ", "stops "), " each")
    )
    named = f" ({escape(' or '.join(spikes.matches))})" if spikes.matches else ""
    share = words.percent(log.share_of(spikes.lost_s))
    return f"{spikes.count:,} {what}{named}{often}, {write_pace(log, spikes.excess)} more{each}: {share} of all time"


def describe_ledger(log: LogFacts) -> list[tuple[str, str, float]]:
    """Say where the time of a log went: what, the seconds, and the part of all; the good pace first."""
    if log.ledger is None or log.ledger.total_s <= 0:
        return []
    ledger = log.ledger

    def write(seconds: float) -> str:
        return words.NOT_KNOWN if log.of else words.seconds(seconds)  # rates alone do not add up to seconds

    lost = [
        (LOSSES.get(key, escape(key)), write(seconds), ledger.shares[key])
        for key, seconds in ledger.seconds.items()
        if abs(ledger.shares[key]) >= words.NO_SHARE
    ]
    if not lost and words.log_varies(log) >= words.UNEVEN:  # what has no pace has no good one
        return []
    return [("at the job's own good pace", write(ledger.good_s), ledger.good_s / ledger.total_s), *lost]


def _describe_restart(log: LogFacts, restart: LogRestart) -> str:
    """Say where a job was restarted, at what cost, and on which other hosts."""
    said = f"restarted after {restart.after:,} at {restart.resumed_at:,}"
    if restart.cost_s and not log.of:
        said += f", {words.seconds(restart.cost_s)} lost"
    if restart.lost_s is None:
        said += ", how long it was down is not in the log"
    if restart.hosts_new:
        said += f", on other hosts: {', '.join(words.some_of([name(host) for host in restart.hosts_new]))}"
    return said


def describe_replay(diagnosis: Diagnosis) -> str:
    """Say whether the replay gives the recorded times again."""
    miss = words.describe_miss(diagnosis.fidelity)
    return f"faithful, {miss}" if diagnosis.fidelity.ok else f"NOT faithful, {miss} (5% at most)"


def head(cause: Cause, *, is_placed: bool = True, shape: Shape | None = None) -> str:
    """Give the first line of a cause: how severe, which, where, and its title; a log knows of a place only where it names one."""
    return words.first_line(
        cause.severity, escape(cause.cause), cause.where, cause.title, is_placed=is_placed, shape=shape
    )


def measure(cause: Cause) -> list[tuple[str, str]]:
    """Say where, since when, how much and how sure, and who can mend it, each with its label; what is not known is left out."""
    rows = [
        ("Where", "\n".join(words.places(cause.where))),
        ("When", words.when(cause)),
        ("Recoverable", describe_recoverable(cause)),
        ("Share", describe_share(cause)),
        ("Confidence", words.confidence(cause.confidence)),
        ("Or else", "\n".join(describe_alternatives(cause.alternatives))),
        ("Who acts", name(cause.who or "")),
        ("Check", prose(cause.check or "")),
    ]
    return [(label, fact) for label, fact in rows if fact]


def describe_alternatives(alternatives: Sequence[Alternative]) -> list[str]:
    """Say what else may explain the same seconds, how surely, and what would tell it apart."""
    return [
        f"{escape(other.cause)}, {words.confidence(other.confidence)}; what would tell: {prose(other.tells_apart)}"
        for other in alternatives
    ]


def describe_recoverable(cause: Cause) -> str:
    """Say how much comes back without a cause."""
    if cause.recoverable_after_others is not None:
        return f"{words.percent(cause.recoverable_after_others)} of the step time after the others, little alone"
    if words.is_unpriced(cause):
        return "what it costs does not show"
    if cause.recoverable < words.NO_SHARE:
        return "nothing when this alone is gone"
    if cause.recoverable >= 1:
        return "everything: the job stands still"
    gain = 1 / (1 - cause.recoverable)
    return f"{words.percent(cause.recoverable)} of the step time when this alone is gone ({words.ratio(gain)}x as fast)"


def describe_share(cause: Cause) -> str:
    """Say how much of the lost time a cause accounts for."""
    return words.NOT_KNOWN if cause.share is None else f"{words.percent(cause.share)} of the lost time"


def describe_nothing(diagnosis: Diagnosis) -> str:
    """Say plainly that nothing was found, or why nobody can say; and what a network that is slow everywhere would look like."""
    if diagnosis.verdict not in ("healthy", "noisy"):
        return f"None: {words.why_inconclusive(diagnosis)}. Take every figure here as a hint at most."
    said = f"None: {prose(diagnosis.why)}." if diagnosis.verdict == "noisy" else _describe_healthy(diagnosis)
    return f"{said} {exposed}" if (exposed := describe_exposed(diagnosis)) else said


def describe_exposed(diagnosis: Diagnosis, least: float = MUCH_EXPOSED) -> str:
    """Say that at least so much of the step is communication that takes its usual time, and what to compare it with; else nothing.

    What takes longer now and then, or in one place, is lost, and no part of this.
    """
    budget = diagnosis.budget
    if budget is None:
        return ""
    parts = [
        ("exposed collectives", budget.exposed_collectives, "all_reduce_perf"),
        ("exposed transfers", budget.exposed_p2p, "sendrecv_perf"),
    ]
    large = [(what, share, tool) for what, share, tool in parts if share is not None and share >= least]
    if not large:
        return ""
    taken = " and ".join(f"{what} take {words.percent(share)}" for what, share, _ in large).capitalize()
    usual = f"{' and '.join(tool for _, _, tool in large)} of nccl-tests"
    if diagnosis.job.is_on_cpu:
        usual = "iperf3 between its hosts, or the same job on hosts that do nothing else"
    how = "no longer than they usually do here: whether the network is slow all the time and everywhere"
    if _names_network(diagnosis):
        # They are longer somewhere, or for a while: what is usual then may itself be slow.
        how = "beside what is lost to slow ones: whether the rest of the network is slow, too,"
    return f"{taken} of the step, {how} the trace cannot tell. Compare with {usual} (docs/how-to/collectives.md)."


def _names_network(diagnosis: Diagnosis) -> bool:
    """Say whether an answer says of transfers, by their cause or without one, that they are slow, or that they may be."""
    named = {
        name for cause in diagnosis.causes for name in (cause.cause, *(other.cause for other in cause.alternatives))
    }
    slow = COMPONENTS["transfer"]
    return "network-fault" in named or any(
        cause.cause == "unknown" and slow in cause.title for cause in diagnosis.causes
    )


def _describe_healthy(diagnosis: Diagnosis) -> str:
    """Say plainly that nothing was found."""
    said = f"No known cause, removed alone, would make the job at least {diagnosis.min_speedup:g} times as fast"
    best = words.best_gain(diagnosis)
    if best is None:
        return f"{said}."
    if best[0] == COMPONENTS[STALLED[StallKind.PLANNED]]:
        return f"{said}. {words.percent(best[1])} of the step time goes to {best[0]}, which is no fault."
    if best[1] >= 1.0 - 1.0 / diagnosis.min_speedup:
        below = f", and below {words.UNNAMED_FROM:.0%} that counts as ordinary variation"
        lost = f"{words.percent(best[1])} of the step time is lost to {best[0]}; no cause can be named for it"
        return f"{said}. {lost}{below if best[1] < words.UNNAMED_FROM else ''}."
    return f"{said}; the most, {best[0]}, would give back {words.percent(best[1])} of the step time."


def describe_evidence(cause: Cause) -> list[str]:
    """Give the sentences that speak for a cause, each with who says it where that is not a rule."""
    return [
        prose(item.text) if item.source == "rule" else f"{prose(item.text)} ({escape(item.source)})"
        for item in list_told(cause)
    ]


def list_told(cause: Cause) -> tuple[EvidenceItem, ...]:
    """List the evidence that is told beside a cause.

    What is a share of the slow workers says nothing of one. Where the cause is a guess, or may be something else, the classifier's
    probability is not told: it is of the cause with all else that looks like it.
    """
    is_sure, is_one = cause.confidence >= PROBABLE and not cause.alternatives, len(cause.where.workers) == 1
    told = [
        item
        for item in cause.evidence
        if (is_sure or item.source != "classifier") and not (is_one and item.id.endswith(_OF_SEVERAL))
    ]
    return tuple(told) or cause.evidence


def list_slow_ranks(diagnosis: Diagnosis) -> list[str]:
    """Give the sentences on ranks that the training log sets apart and that no cause has as evidence."""
    said = {item.text for cause in diagnosis.causes for item in cause.evidence}
    slow_ranks = diagnosis.log.slow_ranks if diagnosis.log is not None else ()
    return [prose(slow.text) for slow in slow_ranks if slow.text not in said]


def name_refused(fix: RefusedFix) -> str:
    """Name a fix that is not for this job: its words, and its name behind.

    >>> name_refused(RefusedFix("repartition-stages", "one layer a stage", "move layers"))
    'move layers (repartition-stages)'
    """
    return f"{prose(fix.summary)} ({escape(fix.fix)})" if fix.summary else escape(fix.fix)


def predict(fix: Fix) -> str | None:
    """Say what a replay of a fix predicts; None where no replay does.

    What gives too little by itself may give more once others are done, which the plan tells: then nothing is said to pay off.
    """
    if fix.predicted_step_time is None or fix.predicted_speedup is None:
        return None
    pace = words.pace(fix.predicted_step_time, fix.predicted_speedup)
    if fix.predicted_speedup < MIN_SPEEDUP:
        return f"predicted by itself: {pace}"
    gain = f"predicted: {pace}"
    steps = fix.figures.get("break_even_steps")
    return gain + (
        f"; a restart pays off after {write_steps(steps, fix.predicted_step_time)}" if steps is not None else ""
    )


def split_how(fix: Fix | Lever) -> list[str]:
    """Give the instructions of a fix, one text a framework; none where they only repeat what it is."""
    how = prose(fix.how)
    return _FRAMEWORK.split(how) if how and how != prose(fix.summary) else []


def choose_how(fix: Fix | Lever) -> list[str]:
    """Give the instructions for everybody and those for the job's framework; where that is not known, name those there are."""
    parts = split_how(fix)
    recipes = [part for part in parts if re.match(_FRAMEWORKS, part)]
    if len(recipes) < 2:
        return parts
    names = ", ".join(part.partition(":")[0] for part in recipes)
    return [
        *(part for part in parts if part not in recipes),
        f"{names}: -vv, or name the job's framework in its metadata",
    ]


def list_reasons(diagnosis: Diagnosis) -> list[str]:
    """Put causes that could not be checked for the same reason on one line."""
    by_reason = group_reasons(diagnosis.not_checked, diagnosis)
    return [f"{', '.join(causes)}: {prose(reason)}" for reason, causes in by_reason.items()]


def group_reasons(entries: Sequence[NotChecked], diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Put causes, escaped, that could not be checked for the same reason together, by the reason."""
    by_reason: dict[str, list[str]] = {}
    for entry in entries:
        by_reason.setdefault(without_features(entry.reason, diagnosis), []).append(escape(entry.cause))
    return by_reason


def without_features(reason: str, diagnosis: Diagnosis) -> str:
    """Give each of several reasons once, without the name of the feature that it is about."""
    found = []
    for part in reason.split("; "):
        feature, _, why = part.partition(": ")
        found.append(why if feature in diagnosis.features else part)
    return "; ".join(dict.fromkeys(found))


def describe_makers(made: MadeBy) -> str:
    """Name the program, and the digests of rules and classifier."""
    classifier = f", classifier {escape(made.classifier)}" if made.classifier else ", no classifier"
    return f"diagnose {escape(made.version)}, rules {escape(made.rules)}{classifier}"


def first_of(texts: Sequence[str]) -> list[str]:
    """Keep the first few, and count the others."""
    left = len(texts) - MAX_NOTES
    return [*texts[:MAX_NOTES], f"and {left} more"] if left > 0 else list(texts)
