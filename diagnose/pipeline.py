"""The table of contents of the product: from a file to a diagnosis, stage by stage."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

import diagnose
from diagnose.features.catalogue import list_features, measure_features
from diagnose.features.members import find_late_members
from diagnose.features.network import slow_card, slow_group
from diagnose.features.onset import find_course
from diagnose.features.paces import measure_log
from diagnose.features.stages import longest_stage
from diagnose.features.stalls import stall_course
from diagnose.features.workers import slow_steps, slow_workers
from diagnose.fixes.hand import parse_fix, parse_set, price_by_hand
from diagnose.fixes.plan import Named, Prices, Wanted, price_causes
from diagnose.judge.classifier import Classifier, load_classifier
from diagnose.judge.examination import Examination
from diagnose.judge.explain import check_cause, explain_cause, list_details
from diagnose.judge.log import join_log, judge_log
from diagnose.judge.rules import load_rules
from diagnose.judge.verdict import MAX_REPLAY_ERROR, Case, Verdict, reach_verdict
from diagnose.model.change import Change
from diagnose.model.components import Components, Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis import Cause, Diagnosis, Fidelity, MadeBy, Plan, StepTime
from diagnose.model.explanation import Explanation
from diagnose.model.priced import ByHand, Wishes
from diagnose.model.remedy import Place, Situation
from diagnose.model.scene import Scene
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Ints, Job, Seconds, Trace
from diagnose.model.training_log import TrainingLog
from diagnose.model.transfers import Transfers
from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace
from diagnose.trace.logs import find_log, load_log, load_log_beside
from diagnose.trace.producers.peek import Peek
from diagnose.whatif.components.between_steps import measure_between, measure_tails
from diagnose.whatif.observed import measure_filled, observe
from diagnose.whatif.removal import MATERIAL_SHARE, Removal
from diagnose.whatif.scenarios import explore, prepare
from diagnose.whatif.take_apart import take_apart
from diagnose.whatif.timeline import Timelines
from diagnose.whatif.transfers import measure_transfers

#: A healthy default: report what makes the job at least 2% faster.
MIN_SPEEDUP = 1.02
#: What a job without operations was replayed to.
NOTHING_REPLAYED = WhatIf(
    steps=np.zeros(0, dtype=np.int64),
    recorded_s=np.zeros(0),
    simulated_s=np.full(1, np.nan),
    ideal_s=np.full(1, np.nan),
    discrepancy=float("nan"),
    by_optype={},
    by_stage=np.zeros(0),
    by_dp=np.zeros(0),
    by_worker=np.zeros((0, 0)),
    by_step=np.zeros(0),
    by_worker_step=np.zeros((0, 0, 0)),
    m_w=None,
    m_s=None,
)


def diagnose_job(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    log: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Diagnose one job.

    Parameters
    ----------
    source, name, meta, steps, rules, progress
        As for `examine`. A training log alone is enough to say since when steps are slow.
    min_speedup : float
        Report a cause when removing it makes the job at least this much faster.
    log : Path, optional
        Training log of the run that the trace is of.

    Raises
    ------
    DiagnoseError
        As `examine` does.
    """
    alone = find_log(source) if log is None else None
    if alone is not None:
        return diagnose_log(
            alone, name=name, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup, progress=progress
        )
    scene = paint_job(
        source, name=name, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup, log=log, progress=progress
    )
    return scene.diagnosis


def diagnose_log(
    peek: Peek,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Say since when a job is slow, by its training log alone; what replays would tell is not known.

    Parameters
    ----------
    peek : Peek
        The log, or a folder with those of all nodes.
    name, steps, rules, min_speedup, progress
        As for `diagnose_job`.
    meta : Path, optional
        Not used: a log tells its own arguments. A warning says so.

    Raises
    ------
    TraceError
        It has no line of an iteration, none of the steps asked for, or cannot be read.
    """
    tell = progress or _say_nothing
    tell("reading")
    log = load_log(peek, name=name or str(peek.path), steps=steps, report=tell)
    tell("judging")
    facts = measure_log(log, min_speedup=min_speedup)
    job, known = describe_job(log, peek.path.stem)
    verdict = judge_log(facts, job)
    seconds = float(facts.step_s.sum()) * facts.interval
    hours = job.world_size / 3600.0 if known else float("nan")
    return Diagnosis(
        made_by=made_by(rules),
        job=job,
        n_ops=0,
        steps_dropped=len(log.iteration) - len(facts.iterations),
        verdict=verdict.verdict,
        step_time=StepTime(float(facts.step_s.mean()), float("nan"), float("nan"), None),
        gpu_hours_analysed=seconds * hours,
        gpu_hours_wasted=facts.lost_s * hours if known and verdict.causes else None,
        fidelity=Fidelity(float("nan"), float("nan"), ok=False),
        what_if=NOTHING_REPLAYED,
        causes=verdict.causes,
        ledger=None,
        checked=verdict.checked,
        not_checked=verdict.not_checked,
        features=dict.fromkeys(list_features()),
        warnings=() if meta is None else (f"{meta} is not used: a log alone is taken as it is",),
        dp_labels=np.zeros(0, dtype=np.int64),
        stage_labels=np.zeros(0, dtype=np.int64),
        ranks=np.zeros((0, 0), dtype=np.int64),
        hosts=None,
        min_speedup=min_speedup,
        log=facts,
        parallelism_known=known,
    )


def describe_job(log: TrainingLog, job_id: str) -> tuple[Job, bool]:
    """Make a `Job` of the arguments that a log printed; False where it printed too little to know how the job is laid out."""
    sizes = log.sizes
    world, pp, tp = (sizes.get(key, 0) for key in ("world_size", "pp_size", "tp_size"))
    cp = sizes.get("cp_size", 1)
    known = min(world, pp, tp, cp) > 0 and world % max(1, pp * tp * cp) == 0
    dp, pp, tp, cp, world = (world // (pp * tp * cp), pp, tp, cp, world) if known else (1, 1, 1, 1, 1)
    job = Job(job_id, dp, pp, tp, cp, 1, world, steps_total=log.total, framework="Megatron-LM")
    return job, known


def paint_job(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    log: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Scene:
    """Diagnose one job, and keep what pictures of it need.

    Parameters
    ----------
    source, name, meta, steps, rules, min_speedup, log, progress
        As for `diagnose_job`; there must be a trace.

    Raises
    ------
    DiagnoseError
        As `examine` does.
    """
    found = examine(source, name=name, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup, progress=progress)
    verdict = reach_verdict(found.case, found.judgements, min_speedup=min_speedup, opinion=found.opinion)
    (progress or _say_nothing)("pricing fixes")
    causes, prices = price_fixes(found, verdict.causes)
    diagnosis = assemble(found, dataclasses.replace(verdict, causes=causes), prices.plan, min_speedup=min_speedup)
    if log is not None:
        diagnosis = add_log(diagnosis, load_log_beside(log, report=progress or _say_nothing))
    return make_scene(found, diagnosis, prices.changes)


def add_log(diagnosis: Diagnosis, log: TrainingLog) -> Diagnosis:
    """Join the training log of a run to the diagnosis of its trace."""
    sizes = {key: getattr(diagnosis.job, key) for key in ("world_size", "pp_size", "tp_size", "cp_size")}
    causes, facts, warnings = join_log(
        diagnosis.causes,
        measure_log(log, min_speedup=diagnosis.min_speedup, sizes=sizes),
        steps=diagnosis.what_if.steps,
        recorded_s=diagnosis.step_time.recorded,
    )
    return dataclasses.replace(diagnosis, causes=causes, log=facts, warnings=(*diagnosis.warnings, *warnings))


def make_scene(found: Examination, diagnosis: Diagnosis, changes: Sequence[Change]) -> Scene:
    """Put together what pictures need; `changes` are drawn as fixed."""
    case = found.case
    return Scene(
        diagnosis=diagnosis,
        trace=case.trace,
        components=case.components,
        gains=case.gains,
        transfers=case.transfers,
        courses=case.courses,
        timelines=found.timelines,
        plan=tuple(changes),
    )


def made_by(rules: Path | None = None) -> MadeBy:
    """Say what judges jobs now: the version, and digests of rules and classifier.

    Parameters
    ----------
    rules : Path, optional
        Folder with rules of the user's.

    Raises
    ------
    RuleError
        A rule file, or the classifier, is wrong.
    """
    classifier = _load_classifier()
    digest = load_rules(rules, list_features()).digest
    return MadeBy(diagnose.__version__, digest, classifier.digest if classifier else None)


def explain_job(
    source: str | Path | BinaryIO,
    cause: str,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain why a cause is said of a job, or not.

    Parameters
    ----------
    cause : str
        Id of a rule, or `unknown`.
    source, name, meta, steps, rules, min_speedup, progress
        As for `diagnose_job`.

    Raises
    ------
    UsageError
        There is no such cause; told before the job is read.
    DiagnoseError
        As `examine` does.
    """
    check_cause(cause, load_rules(rules, list_features()).rules)
    found = examine(source, name=name, meta=meta, steps=steps, rules=rules, min_speedup=1.0, progress=progress)
    verdict = reach_verdict(found.case, found.judgements, min_speedup=min_speedup, opinion=found.opinion)
    return explain_cause(cause, found, verdict, min_speedup=min_speedup)


def price_job(
    source: str | Path | BinaryIO,
    wishes: Wishes,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    progress: Callable[[str], None] | None = None,
) -> tuple[ByHand, Scene]:
    """Say how fast a job would run with some fixes, or with own times scaled; the scene has them as its plan.

    Parameters
    ----------
    wishes : Wishes
    source, name, meta, steps, rules, min_speedup, progress
        As for `diagnose_job`.

    Raises
    ------
    UsageError
        A fix, a setting or a place is not known; of fixes told before the job is read.
    DiagnoseError
        As `examine` does.
    """
    named = [parse_fix(text) for text in wishes.fixes]
    found = examine(source, name=name, meta=meta, steps=steps, rules=rules, min_speedup=min_speedup, progress=progress)
    verdict = reach_verdict(found.case, found.judgements, min_speedup=min_speedup, opinion=found.opinion)
    (progress or _say_nothing)("pricing fixes")
    job = make_situation(found)
    mends = {rule.id: {fix.fix for fix in rule.fixes} for rule in found.rule_set.rules}
    places = [
        next((Place(c.where, c.when) for c in verdict.causes if fix.fix in mends.get(c.cause, ())), Place())
        for fix in named
    ]
    read = [(text, parse_set(text, job)) for text in wishes.scales]
    by_hand = price_by_hand(job, list(zip(named, places, strict=True)), read, job_id=found.trace.job.job_id)
    return by_hand, make_scene(found, assemble(found, verdict, min_speedup=min_speedup), by_hand.changes)


def examine(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    ask_classifier: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Examination:
    """Measure one job, and let every rule and the classifier judge it.

    Parameters
    ----------
    source : path, or open binary file that can seek
    name : str, optional
        How errors call the input.
    meta, rules : Path, optional
        YAML file with job metadata; folder with rules of the user's.
    steps : ndarray of int64, optional
        Analyse only these steps.
    min_speedup : float
        Say since when of what makes the job at least this much faster when it is removed.
    ask_classifier : bool
        Training says no: the classifier that it makes need not know the same features as the last.
    progress : callable, optional
        Called with the name of each stage as it begins.

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    RuleError
        A rule file, or the classifier, is wrong.
    UsageError
        An option makes no sense.
    """
    tell = progress or _say_nothing
    rule_set = load_rules(rules, list_features())
    tell("reading")
    trace = load_trace(source, name=name, meta=meta, steps=steps, report=lambda line: tell(f"reading {line}"))
    tell("replaying")
    prepared = prepare(trace)
    what_if = explore(trace, prepared)
    tell("taking apart")
    observed, evidence, offset_s = observe(trace, prepared)
    trace = dataclasses.replace(trace, evidence=evidence)
    components = take_apart(observed, evidence, n_stages=trace.n_stages)
    removal = Removal(
        observed,
        components,
        n_stages=trace.n_stages,
        between_s=measure_between(trace, observed),
        tail_s=measure_tails(trace, observed),
    )
    gains = removal.gains([rule.components for rule in rule_set.rules])
    tell("judging")
    transfers = measure_transfers(observed, n_stages=trace.n_stages)
    filled = measure_filled(observed)
    case = make_case(trace, what_if, components, gains, transfers, filled_share=filled, min_speedup=min_speedup)
    classifier = _load_classifier() if ask_classifier else None
    return Examination(
        what_if=what_if,
        case=case,
        rule_set=rule_set,
        judgements=tuple(rule.judge(case.features) for rule in rule_set.rules),
        opinion=classifier.judge(case.features) if classifier else None,
        made_by=MadeBy(diagnose.__version__, rule_set.digest, classifier.digest if classifier else None),
        price=removal.price,
        sample=removal.sample,
        timelines=Timelines(prepared, removal),
        warnings=(
            *(trace.recording.sentences() if trace.recording else ()),
            *trace.warnings,
            *_clock_warnings(trace, offset_s),
        ),
    )


def make_case(
    trace: Trace,
    what_if: WhatIf,
    components: Components,
    gains: Gains,
    transfers: Transfers,
    *,
    filled_share: float = 0.0,
    min_speedup: float = MIN_SPEEDUP,
) -> Case:
    """Measure every feature, and gather what the judge needs to know."""
    slow = slow_workers(components)
    cards, links = slow_card(transfers)
    error = abs(gains.replayed_s / gains.recorded_s - 1.0)
    return Case(
        trace=trace,
        components=components,
        gains=gains,
        features=measure_features(trace, what_if, components, gains, transfers),
        fidelity=Fidelity(what_if.discrepancy, error, error <= MAX_REPLAY_ERROR),
        transfers=transfers,
        filled_share=filled_share,
        slow_workers=slow,
        late_members=find_late_members(trace, components),
        slow_cards=cards,
        slow_links=links,
        slow_group=slow_group(transfers),
        longest_stage=longest_stage(components, trace.n_stages) if trace.n_stages > 1 else None,
        courses=find_courses(components, gains, slow, min_speedup=min_speedup),
    )


#: Components that are stalls of one kind.
STALLS = {"gc-pause": StallKind.COLLECTION, "malloc-pause": StallKind.ALLOCATION, "input-delay": StallKind.INPUT}


def find_courses(
    components: Components, gains: Gains, slow: Sequence[tuple[int, int]], *, min_speedup: float
) -> dict[str, Course]:
    """Say since when a component, or several joined, costs time, by what its removal gives back in each step.

    A slow worker's pace says more than that. What is worth less than the speedup asked for is left out: fitting costs.
    """
    least = max(1.0 - 1.0 / min_speedup, MATERIAL_SHARE)
    order = np.argsort(components.steps, kind="stable")
    found = {}
    for name, without_s in gains.alone_steps_s.items():
        if max(gains.recoverable(name), gains.recoverable_last(name)) < least:
            continue
        if name == "worker" and slow:
            found[name] = find_course(*slow_steps(components, slow[0]))
        elif name in STALLS:
            found[name] = stall_course(components, STALLS[name])
        else:
            found[name] = find_course(components.steps[order], (gains.replayed_steps_s - without_s)[order])
    return found


def price_fixes(found: Examination, causes: Sequence[Cause]) -> tuple[tuple[Cause, ...], Prices]:
    """Price the fixes that the rules of the causes name, and say in which order to do them."""
    rules = {rule.id: rule for rule in found.rule_set.rules}
    wanted = [
        Wanted(
            cause.cause,
            rules[cause.cause].components,
            Place(cause.where, cause.when),
            tuple(Named(fix.fix, fix.summary, fix.how) for fix in rules[cause.cause].fixes),
        )
        for cause in causes
        if cause.cause in rules
    ]
    prices = price_causes(make_situation(found), wanted)
    priced = dict(zip([one.cause for one in wanted], prices.fixes, strict=True))
    return tuple(
        dataclasses.replace(cause, fixes=priced[cause.cause][0], refused_fixes=priced[cause.cause][1])
        if cause.cause in priced
        else cause
        for cause in causes
    ), prices


def make_situation(found: Examination) -> Situation:
    """Give fixes what they need to know of a job."""
    case = found.case
    return Situation(
        trace=case.trace,
        components=case.components,
        gains=case.gains,
        transfers=case.transfers,
        features=case.features,
        courses=case.courses,
        price=found.price,
        sample=found.sample,
    )


def assemble(found: Examination, verdict: Verdict, plan: Plan | None = None, *, min_speedup: float) -> Diagnosis:
    """Put all that was measured and judged into a diagnosis."""
    case, what_if = found.case, found.what_if
    trace, gains = case.trace, case.gains
    analysed = np.isin(what_if.steps, case.components.steps)  # all but a warm-up
    hours = gains.recorded_s * len(case.components.steps) * trace.job.world_size / 3600.0
    return Diagnosis(
        made_by=found.made_by,
        job=trace.job,
        n_ops=trace.n_ops,
        steps_dropped=trace.steps_dropped,
        verdict=verdict.verdict,
        step_time=StepTime(
            recorded=gains.recorded_s,
            simulated=float(what_if.simulated_s[analysed].mean()),
            ideal=float(what_if.ideal_s[analysed].mean()),
            clean=gains.clean_s,
        ),
        gpu_hours_analysed=hours,
        gpu_hours_wasted=hours * max(0.0, 1.0 - gains.clean_s / gains.recorded_s),
        fidelity=case.fidelity,
        what_if=what_if,
        causes=verdict.causes,
        ledger=verdict.ledger,
        checked=verdict.checked,
        not_checked=verdict.not_checked,
        features={key: feature.value for key, feature in case.features.items()},
        warnings=(*found.warnings, *verdict.warnings),
        dp_labels=trace.dp_labels,
        stage_labels=trace.stage_labels,
        ranks=trace.ranks,
        hosts=trace.hosts,
        recording=trace.recording,
        min_speedup=min_speedup,
        plan=plan,
        details=list_details(found.judgements, case.features),
    )


@functools.cache
def _load_classifier() -> Classifier | None:
    """Read the classifier that ships with the program, once."""
    return load_classifier()


def _say_nothing(stage: str) -> None:
    """Take the name of a stage and do nothing: nobody watches."""


def _clock_warnings(trace: Trace, offset_s: Seconds) -> list[str]:
    """Say whose clock is furthest off."""
    if not offset_s.any():
        return []
    dp, stage = divmod(int(abs(offset_s).argmax()), trace.n_stages)
    who = f"dp {int(trace.dp_labels[dp])}, stage {int(trace.stage_labels[stage])}"
    by = f"{offset_s[dp, stage]:.2g} s"
    return [
        f"clocks differ: the worker at {who} is off by {by}; corrected for causes and gains, S is on times as recorded"
    ]
