"""Which causes a training log alone speaks for, and how surely.

Enters: `LogFacts`. Leaves: causes. A log has no operations: a cause of a rule is said where the log tells of it at the slow steps,
where its own interval comes back in them, or where it gives the seconds of that part of a step or of that rank. All else that costs
time is `unknown`, with when and how much. Nothing is replayed, so no fix has a price: `recoverable` is what the ledger has, a
bound.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from diagnose.judge.rule import Rule
from diagnose.judge.unknown import UNKNOWN_CERTAINTY
from diagnose.model.cause import Alternative, Cause, EvidenceItem, Fix, Kind, When
from diagnose.model.diagnosis_document import LogRestart, LogSpikes, LogWindow
from diagnose.model.fingerprint import name_fault
from diagnose.model.place import Where
from diagnose.model.trace import Job
from diagnose.model.training_log import LogFacts
from diagnose.numerics.figures import write_figure, write_percent

#: Causes by what a log tells of, or states the interval of. What is not here is planned work, and no fault.
CAUSES = {
    "save": "checkpoint-stall",
    "collection": "garbage-collection",
    "cache-flush": "allocator-stall",
    "loader-workers": "data-loading",
    "epoch": "data-loading",
    "data": "data-loading",
}
#: Planned work that takes time, in words.
PLANNED = {"evaluation": "an evaluation", "log": "logging", "profile": "a profiler"}
#: How sure a cause is that lines tell of at the slow steps, or whose seconds they give: what else happens then is not seen.
TOLD_CERTAINTY = 0.9
#: How sure one is whose stated interval is the period of the slow steps, exactly: another thing may have the same interval.
MATCHED_CERTAINTY = 0.8
#: What logs tell of without its seconds, at its own interval: it is no surer than what states that interval.
UNTIMED = ("collection",)
#: At the end of an epoch much else happens than that loaders start again.
EPOCH_CERTAINTY = 0.5
#: A rank that takes longer than those of its own stage, by their timers.
RANK_CERTAINTY = 0.8
#: Waiting for data is a finding from this part of the steps on, as for what no rule explains.
DATA_SHARE = 0.05
#: It is "all the time" by no fewer lines, of which the first waits for loaders to start.
LEAST_TOLD = 4
#: A slow window begins at a restart when it does within so many logged intervals of it.
AT_RESTART = 2
#: Iterations get longer and longer where they do for this part of what slow windows cost; else the ramp is a slow change of level.
RAMP_SHARE = 0.5
#: Three windows and more come at a period when their distances differ by no more than this part of it.
EVEN_SHARE = 0.1
#: Flushes of the allocator's cache are a finding where so many of the lines tell of one: a slow line now and then is told as such.
FLUSHED_SHARE = 0.1
#: How sure it is that they cost something where all steps have them, so that none is slow beside another.
FLUSHED_CERTAINTY = 0.6
#: How sure a loader is the cause of a period that nothing states: as many iterations as it has workers, few as a rule.
LOADER_CERTAINTY = 0.3
MOST_WORKERS = 64
#: How sure uneven experts are the cause of iterations of the same work that get longer, in a model that has experts.
EXPERTS_CERTAINTY = 0.3
#: What may have a period that nothing in the log states.
ASK_PERIOD = (
    "what does the job do every {} steps? loader workers (num_workers), garbage collection, saving, evaluation, logging"
)
#: What may make iterations longer that is no fault, where the log says nothing of the work of a step.
ASK_CHANGE = "did the work of a step change then (sequence length, batch, configuration)? the log does not say"
#: The same where it has the tokens of each step, and these did not change with its time.
ASK_SETTING = "did the configuration change then? the sequence length and the batch did not, by the log"


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """What is said of one part of the log."""

    cause: str
    title: str
    confidence: float
    lost_s: float
    recoverable: float
    when: When
    evidence: tuple[EvidenceItem, ...]
    where: Where = dataclasses.field(default_factory=Where)
    key: str = ""
    check: str | None = None
    alternatives: tuple[Alternative, ...] = ()


def list_log_causes(facts: LogFacts, job: Job, rules: Sequence[Rule], least: float) -> tuple[Cause, ...]:
    """List what costs at least the part `least` of all time that the log tells of, or since some iteration of each step."""
    found = [*_find_windows(facts, least), *_find_spikes(facts, least), *_find_data(facts), *_find_flushes(facts)]
    named: dict[tuple[str, str], _Found] = {}
    for one in sorted(found, key=lambda one: (-one.recoverable, one.cause)):
        named.setdefault((one.cause, one.key), one)
    known = {rule.id: rule for rule in rules}
    return tuple(_report(one, facts, job, known.get(one.cause)) for one in named.values())


def _report(found: _Found, facts: LogFacts, job: Job, rule: Rule | None) -> Cause:
    """Make a cause of what was found, with what its rule knows of it."""
    lost_s = sum(facts.ledger.seconds.values()) if facts.ledger is not None else 0.0
    fixes = rule.fixes if rule is not None else ()
    kind: Kind | None = rule.severity or None if rule is not None else None  # type: ignore[assignment]
    return Cause(
        cause=found.cause,
        title=rule.title if rule is not None else found.title,
        kind=kind,
        who=(rule.who or None) if rule is not None else None,
        confidence=found.confidence,
        share=min(found.lost_s / lost_s, 1.0) if lost_s > 0 and found.lost_s > 0 else None,
        recoverable=found.recoverable,
        where=found.where,
        when=found.when,
        check=(rule.check or None) if rule is not None else found.check,
        evidence=found.evidence,
        fixes=tuple(Fix(fix.fix, fix.summary, "", None, None) for fix in fixes),
        alternatives=found.alternatives,
        fingerprint=name_fault(
            job, f"{found.cause}/log{found.key}", (rule.who or None) if rule is not None else None, found.where
        ),
    )


# ------------------------------------------------------------------------------------------ windows


def _find_windows(facts: LogFacts, least: float) -> Iterator[_Found]:
    """Say when the run was slow, and after which restart; with a rank where timers of all ranks show one."""
    if facts.when.pattern is None or facts.usual_s is None or facts.slow_s is None:
        return
    goes_on = facts.when.recovery_step is None
    of_ramps = sum(ramp.lost_s for ramp in facts.ramps)
    ramp = facts.ramps[-1] if of_ramps > RAMP_SHARE * facts.lost_s else None
    now_s = max(facts.slow_s, ramp.to_step_time if ramp is not None and goes_on else 0.0)
    recoverable = 1.0 - facts.usual_s / now_s if goes_on or facts.ledger is None else facts.share_of(facts.lost_s)
    if recoverable < least:
        return
    restart = _find_restart(facts)
    workers = tuple(
        dict.fromkeys(slow.worker for slow in facts.slow_ranks if slow.by_peers and slow.worker is not None)
    )
    cause = "worker-fault" if workers else "unknown"
    who = "iterations" if facts.is_work_told else "iterations, or their work,"
    rises = ramp is not None and ramp.slope > 0
    how = (
        "got longer"
        if ramp is None
        else "get longer and longer"
        if rises
        else "were longer at first, and get shorter evenly"
    )
    title = f"unknown cause: {who} {how}"
    if restart is not None:
        title += " after a restart on other hosts" if restart.hosts_new else " after a restart"
    hosts = restart.hosts_new if restart is not None and not workers else ()
    alternatives: tuple[Alternative, ...] = ()
    if hosts:
        tells = "diagnose a trace of both, or run a node test on the hosts that are new"
        alternatives = (Alternative("worker-fault", 0.3, tells),)
    elif facts.experts and not workers:
        tells = "the tokens of each expert, or the loss that balances them, over the run"
        alternatives = (Alternative("expert-imbalance", EXPERTS_CERTAINTY, tells),)
    yield _Found(
        cause=cause,
        title=title,
        confidence=RANK_CERTAINTY if workers else UNKNOWN_CERTAINTY,
        lost_s=facts.lost_s,
        recoverable=recoverable,
        when=_date_windows(facts),
        evidence=(
            describe_change(cause, facts),
            *_describe_ramps(cause, facts),
            *_describe_windows(cause, facts),
            *_describe_part(cause, facts),
            *([_describe_restart(cause, restart)] if restart is not None else []),
            *describe_ranks(cause, facts),
        ),
        where=Where(workers=workers, hosts=hosts),
        check=None if facts.work is not None else ASK_SETTING if facts.is_work_told else ASK_CHANGE,
        alternatives=alternatives,
    )


def _date_windows(facts: LogFacts) -> When:
    """Say when the run is slow: of several windows, whether they come at even distances."""
    windows = facts.windows
    if len(windows) < 3:
        return facts.when
    onsets = [window.first for window in windows]
    apart = [b - a for a, b in itertools.pairwise(onsets)]
    mean = sum(apart) / len(apart)
    if max(apart) - min(apart) <= EVEN_SHARE * mean:
        return When("periodic", windows[0].onset, windows[-1].recovery, round(mean, 1))
    return When("sporadic", windows[0].onset, windows[-1].recovery)


def _find_restart(facts: LogFacts) -> LogRestart | None:
    """Give the restart that the slow window begins at."""
    onset = facts.when.onset_step
    near = [
        restart
        for restart in facts.restarts
        if onset is not None and abs(restart.resumed_at - onset) <= AT_RESTART * facts.interval
    ]
    return near[-1] if near else None


def describe_change(
    cause: str, facts: LogFacts, *, cost_s: float | None = None, window: LogWindow | None = None
) -> EvidenceItem:
    """Say how the pace changed by the log: in one window, or in that which goes on or cost most."""
    assert facts.usual_s is not None
    assert facts.slow_s is not None
    onset, recovery = (
        (window.onset, window.recovery) if window is not None else (facts.when.onset_step, facts.when.recovery_step)
    )
    slow_s = facts.slow_s if window is None else window.step_time
    since = f"from iteration {onset} " if onset is not None else ""
    until = f"until {recovery}" if recovery is not None else "on" if since else ""
    slow, usual = write_figure(slow_s, 4), write_figure(facts.usual_s, 4)
    text = f"by the log an iteration takes {slow} s {since}{until}".rstrip() + f", and {usual} s otherwise"
    if facts.of:  # a rate alone has no seconds
        times = write_figure(slow_s / facts.usual_s)
        text = (
            f"by the rates of the log iterations take {times} times as long {since}{until}".rstrip() + " as otherwise"
        )
    if cost_s is not None:
        more, cost = write_figure(slow_s - facts.usual_s), write_figure(cost_s)
        text += f": {more} s more, and this cause costs {cost} s of a traced step"
    values = {"slow_s": slow_s, "usual_s": facts.usual_s, "deviations": facts.deviations}
    at = onset if onset is not None else recovery
    return EvidenceItem("change-point", f"{cause}/log-iteration-{at}", text, values)


def _describe_ramps(cause: str, facts: LogFacts) -> Iterator[EvidenceItem]:
    """Say from what to what iterations got longer."""
    for ramp in facts.ramps[:3]:
        low, high = write_figure(ramp.from_step_time, 3), write_figure(ramp.to_step_time, 3)
        text = f"from iteration {ramp.first} to {ramp.last} an iteration goes from {low} to {high} s, evenly"
        if facts.of:
            times = write_figure(ramp.to_step_time / ramp.from_step_time)
            text = f"from iteration {ramp.first} to {ramp.last} iterations come to take {times} times as long, evenly"
        yield EvidenceItem(
            "log", f"{cause}/log-ramp-{ramp.first}", text, {"from_s": ramp.from_step_time, "to_s": ramp.to_step_time}
        )


def _describe_windows(cause: str, facts: LogFacts) -> Iterator[EvidenceItem]:
    """Count the windows where there are several, and say what they cost."""
    if len(facts.windows) < 2:
        return
    spans = [f"{w.first} to {w.last}" for w in facts.windows]
    more = f" and {len(spans) - 4} more" if len(spans) > 4 else ""
    share = facts.share_of(facts.lost_s)
    text = f"{len(spans)} slow windows, {write_percent(share)} of all time: iterations {', '.join(spans[:4])}{more}"
    yield EvidenceItem("log", f"{cause}/log-windows", text, {"windows": len(spans), "lost_s": facts.lost_s})


def _describe_part(cause: str, facts: LogFacts) -> Iterator[EvidenceItem]:
    """Say which part of a step takes what iterations get longer by, where the log gives the seconds of parts."""
    if facts.slower_part is None:
        return
    part, share = facts.slower_part
    text = f"{write_percent(share)} of what they take longer is {part} by the log's own times"
    if facts.experts:
        text += f"; the model has {facts.experts} experts"
    yield EvidenceItem("log", f"{cause}/log-part-{part}", text, {"share": share})


def _describe_restart(cause: str, restart: LogRestart) -> EvidenceItem:
    """Say that it began with a restart, and which hosts changed."""
    text = f"the job was restarted at iteration {restart.resumed_at}"
    if restart.hosts_new:
        new, gone = (", ".join(hosts[:4]) or "none" for hosts in (restart.hosts_new, restart.hosts_gone))
        text += f", on other hosts: {new} in the place of {gone}"
    return EvidenceItem("log", f"{cause}/log-restart-{restart.resumed_at}", text, {"cost_s": restart.cost_s})


def describe_ranks(cause: str, facts: LogFacts) -> list[EvidenceItem]:
    """Say which ranks the log sets apart, one sentence each."""
    return [
        EvidenceItem("log", f"{cause}/log-{slow.measure.lower()}-rank-{slow.rank}", slow.text, dict(slow.values))
        for slow in facts.slow_ranks
    ]


# ------------------------------------------------------------------------------------------ spikes, data


def _find_spikes(facts: LogFacts, least: float) -> Iterator[_Found]:
    """Say what single slow iterations are: what the log tells of at them, or what has their period; else unknown."""
    for spikes in facts.spikes:
        share = facts.share_of(spikes.lost_s)
        if share < least or is_planned(spikes):
            continue
        cause, certain = _name_spikes(spikes, [one.period for one in facts.spikes if one.period])
        # Of several periods none is known.
        pattern = spikes.pattern if spikes.count > 1 else None  # one is no "now and then"
        when = When(pattern, period_steps=None if spikes.or_every else spikes.period)
        text = describe_spikes(facts, spikes, share)
        values = {
            "count": spikes.count,
            "period_steps": spikes.period,
            "excess_s": spikes.excess,
            "lost_s": spikes.lost_s,
        }
        key = f"/{spikes.pattern}" if cause == "unknown" else ""
        often = " or ".join(f"{n}" for n in (*spikes.or_every, spikes.period))
        evenly = f"every {often} iterations one is slow" if spikes.period else _describe_sporadic(facts, spikes)
        check = ASK_PERIOD.format(often) if spikes.period and cause == "unknown" else None
        others = [name for name in spikes.matches if CAUSES.get(name) != cause]
        tells = "the lines around the slow iterations, or a trace of some of them"
        alternatives = tuple(Alternative(CAUSES.get(name, "unknown"), 0.1, tells) for name in others[:1])
        if (
            cause == "unknown"
            and spikes.period
            and not others
            and "data" not in facts.parts  # else it would show in these
            and min((spikes.period, *spikes.or_every)) <= MOST_WORKERS
        ):
            tells = "give the loader another number of workers (num_workers): a period that comes from it goes with it"
            alternatives = (Alternative("data-loading", LOADER_CERTAINTY, tells),)
        items = [EvidenceItem("log", f"{cause}/log-spikes-{spikes.period or 'sporadic'}", text, values)]
        if check is not None:
            items.append(EvidenceItem("log", f"{cause}/log-ask-{spikes.period}", check, {}))
        yield _Found(
            cause=cause,
            title=f"unknown cause: {evenly}",
            confidence=certain / (1 + len(others)),
            lost_s=spikes.lost_s,
            recoverable=share,
            when=when,
            evidence=tuple(items),
            key=key,
            check=check,
            alternatives=alternatives,
        )


def _describe_sporadic(facts: LogFacts, spikes: LogSpikes) -> str:
    """Say of slow lines without a period what they are: those of several iterations may hide one."""
    if spikes.count == 1:
        lines = f" of {facts.interval}" if facts.is_mean and facts.interval > 1 else ""
        return f"one line{lines} iterations is slow" if lines else "one iteration is slow"
    if facts.is_mean and facts.interval > 1:
        return f"single lines of {facts.interval} iterations are slow, at no period that they show"
    return "single iterations are slow, at random"


def is_planned(spikes: LogSpikes) -> bool:
    """Say whether slow iterations are work that the job plans, and none of a fault."""
    return bool(spikes.matches) and all(name in PLANNED for name in spikes.matches)


def _name_spikes(spikes: LogSpikes, periods: Sequence[int]) -> tuple[str, float]:
    """Name the cause of spikes, and how sure it is; `periods` are those of all spikes of the log.

    What comes more often than epochs, and longer every so many times, is not what happens at their ends.
    """
    named = [name for name in spikes.matches if name in CAUSES]
    if spikes.part in ("data", "save"):  # also where the log tells of something else there: it took no time
        return CAUSES[spikes.part], TOLD_CERTAINTY
    if not named:
        return "unknown", UNKNOWN_CERTAINTY
    if named[0] == "epoch":
        own = spikes.period or 0
        is_told_apart = not any(period < own and not own % period for period in periods)
        return (CAUSES["epoch"], EPOCH_CERTAINTY) if is_told_apart else ("unknown", UNKNOWN_CERTAINTY)
    is_sure = spikes.told and named[0] not in UNTIMED
    return CAUSES[named[0]], TOLD_CERTAINTY if is_sure else MATCHED_CERTAINTY


def describe_spikes(facts: LogFacts, spikes: LogSpikes, share: float) -> str:
    """Say how many iterations are slow, how often, what that costs, and what has the same interval."""
    each, all_of = f"{write_figure(spikes.excess, 3)} s", write_percent(share)
    if facts.of and facts.ledger is not None:  # a rate alone has no seconds
        each = f"{write_figure(spikes.excess / facts.ledger.good_pace, 2)} times the good pace"
    what = "iterations take" if spikes.within else "times"
    often = f"every {spikes.period} iterations" if spikes.period else "at no period"
    is_coarse = facts.is_mean and facts.interval > 1 and not spikes.period and not spikes.told
    if is_coarse and spikes.within:
        what, often = f"lines of {facts.interval} iterations take", "at no period that they show"
    if spikes.or_every:
        often += f" (or {' or '.join(map(str, spikes.or_every))}: lines of {facts.interval} show both alike)"
    text = f"{spikes.count} {what} {each} more, {often}: {all_of} of all time"
    if not spikes.within:
        text = f"{spikes.count} {what} {each} pass between two iterations, {often}: {all_of} of all time"
    if spikes.count == 1:
        at = f"iteration {int(facts.iterations[facts.spike_lines[facts.spikes.index(spikes)][0]]):,}"
        n = facts.interval if facts.is_mean else 1
        if spikes.within:
            text = f"{f'the line of {n} iterations to ' * (n > 1)}{at} takes {each} more: {all_of} of all time"
        else:
            where = f"before {at}" if n == 1 else f"between steps in the {n} iterations to {at}"
            text = f"{each} pass {where}: {all_of} of all time"
    if spikes.told:
        text += f"; the log tells of {_in_words(spikes.matches[0])} there"
    elif spikes.matches:
        text += f", as {' and '.join(_in_words(name) for name in spikes.matches)} by the log"
    if spikes.part:
        text += f"; most of it is {spikes.part} by the log's own times"
    return text


def _in_words(name: str) -> str:
    """Say what an interval is of."""
    return {
        "loader-workers": "the loader has workers (num_workers)",
        "collection": "garbage is collected",
        "cache-flush": "flushes of the allocator's cache",
        "save": "a save",
        "epoch": "an epoch",
    }.get(name, PLANNED.get(name, name))


def _find_data(facts: LogFacts) -> Iterator[_Found]:
    """Say that steps wait for data where the log gives the seconds of that."""
    share = facts.parts.get("data", 0.0)
    if share < DATA_SHARE or len(facts.iterations) < LEAST_TOLD:
        return
    text = f"by the log's own times {write_percent(share)} of the steps is waiting for data"
    lost_s = share * float(facts.ledger.total_s if facts.ledger is not None else 0.0)
    yield _Found(
        cause="data-loading",
        title="",
        confidence=TOLD_CERTAINTY,
        lost_s=0.0,
        recoverable=share,
        when=When("constant"),
        evidence=(EvidenceItem("log", "data-loading/log-data", text, {"share": share, "seconds": lost_s}),),
    )


def _find_flushes(facts: LogFacts) -> Iterator[_Found]:
    """Say that memory is short where flushes of the allocator's cache are told of again and again, and no line is slower for it."""
    n_lines, flushed = len(facts.iterations), facts.n_flushed
    if flushed < FLUSHED_SHARE * n_lines or any(spikes.matches == ("cache-flush",) for spikes in facts.spikes):
        return
    text = f"the log tells of flushes of the allocator's cache at {flushed} of {n_lines} lines: memory is short"
    cost = "each stops the device until memory is given back; what that costs does not show where steps are all alike"
    yield _Found(
        cause="allocator-stall",
        title="",
        confidence=FLUSHED_CERTAINTY,
        lost_s=0.0,
        recoverable=0.0,
        when=When("constant"),
        evidence=(
            EvidenceItem("log", "allocator-stall/log-flushes", text, {"lines": flushed}),
            EvidenceItem("log", "allocator-stall/log-flushes-cost", cost, {}),
        ),
    )
