"""The table of contents of the product: from a file to a diagnosis, stage by stage.

    read the trace -> replay it -> take its times apart -> measure features -> judge -> price fixes -> put the diagnosis together

`analyse_job` has the first four stages, `prepare_report` the others. `alone` diagnoses a job that has no trace.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from diagnose.alone import diagnose_alone, unpacked
from diagnose.errors import ServiceError, TraceError
from diagnose.features.catalogue import Measured, measure_features
from diagnose.features.courses import date_worker, find_courses
from diagnose.features.suspects import find_suspects
from diagnose.fixes.levers import price_levers
from diagnose.fixes.plan import add_fixes, price_causes
from diagnose.judge.assemble import assemble
from diagnose.judge.confidence import check_fidelity
from diagnose.judge.judged import Judged
from diagnose.judge.mending import list_fixes_to_price, locate_fix
from diagnose.judge.pictured import list_pictured
from diagnose.judge.proof import add_proofs
from diagnose.judge.rules import RuleSet
from diagnose.judge.unchecked import name_unchecked
from diagnose.judge.verdict import Verdict, reach_verdict
from diagnose.judge.worth import least_gain
from diagnose.judges import ask_judges, read_rules
from diagnose.model.analysis import Analysis, ReportData
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.priced import HandFixes, HandPrices
from diagnose.model.request import Request
from diagnose.model.trace import Evidence
from diagnose.trace.collectives.recognise import find_dumps
from diagnose.trace.load import load_trace
from diagnose.whatif.clean import split_clean
from diagnose.whatif.clocks import carry_over, correct_clocks
from diagnose.whatif.components.between_steps import blame_leads, explain_between, measure_between, measure_tails
from diagnose.whatif.components.other_work import describe_types
from diagnose.whatif.delays import measure_carried
from diagnose.whatif.observed import describe_dropped, measure_filled, observe
from diagnose.whatif.overlaps import measure_beside
from diagnose.whatif.removal import MATERIAL_SHARE, Removal
from diagnose.whatif.scenarios import explore, leave_out_unordered, prepare
from diagnose.whatif.take_apart import take_apart
from diagnose.whatif.timeline import Timelines
from diagnose.whatif.transfers import measure_transfers

if TYPE_CHECKING:
    from diagnose.model.explanation import Explanation
    from diagnose.model.telemetry import Telemetry
    from diagnose.model.training_log import TrainingLog

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def _unpacking(
    answer: Callable[Concatenate[Request, _Given], _Answer],
) -> Callable[Concatenate[Request, _Given], _Answer]:
    """Answer for the job that lies in a zip, where the source is one."""

    @functools.wraps(answer)
    def answer_unpacked(request: Request, /, *given: _Given.args, **named: _Given.kwargs) -> _Answer:
        with unpacked(request) as found:
            return answer(found, *given, **named)

    return answer_unpacked


def diagnose_job(request: Request) -> Diagnosis:
    """Diagnose one job; a training log alone is enough to say since when steps are slow.

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    RuleError
        A rule file, or the classifier, is wrong.
    UsageError
        An option makes no sense.
    """
    return diagnose_and_keep(request)[0]


@_unpacking
def diagnose_and_keep(request: Request) -> tuple[Diagnosis, ReportData | None]:
    """Diagnose one job as `diagnose_job` does, and keep what pictures of it need; a log alone has nothing to draw."""
    alone = diagnose_alone(request)
    if alone is not None:
        return alone, None
    data = prepare_report(request)
    return data.diagnosis, data


@_unpacking
def prepare_report(request: Request) -> ReportData:
    """Diagnose one job by its trace, and keep what pictures of it need; raises as `diagnose_job` does."""
    analysis, judged = examine(request)
    verdict = reach_verdict(analysis, judged.judgements, min_speedup=request.min_speedup, prediction=judged.prediction)
    request.report("pricing fixes")
    wanted = list_fixes_to_price(verdict.causes, judged.rule_set)
    prices = price_causes(analysis, wanted)
    pictured = list_pictured(judged.rule_set)
    causes = add_proofs(analysis, add_fixes(verdict.causes, wanted, prices), pictured)
    verdict = dataclasses.replace(verdict, causes=causes)
    diagnosis = assemble(analysis, judged, verdict, prices.plan, min_speedup=request.min_speedup)
    if diagnosis.budget is not None and not analysis.trace.unit_doubt:
        diagnosis = dataclasses.replace(diagnosis, levers=price_levers(analysis, diagnosis.budget))
    if request.log is not None:
        diagnosis = _read_log_beside(diagnosis, request.log, request, judged)
    else:
        diagnosis = _read_logs_of_folder(diagnosis, request, judged)
    diagnosis = _join_collectives(diagnosis, request, judged)
    diagnosis = _join_telemetry(diagnosis, request, analysis, judged)
    sampled = dataclasses.replace(analysis, price=analysis.sample)  # nine sentences need no replay of every step
    explain = functools.partial(
        _explain, analysis=sampled, judged=judged, verdict=verdict, min_speedup=request.min_speedup
    )
    return ReportData(analysis, diagnosis, prices.changes, pictured, explain)


def _read_log_beside(diagnosis: Diagnosis, path: Path, request: Request, judged: Judged) -> Diagnosis:
    """Join what the training log beside a trace shows."""
    from diagnose.trace.logs.load import load_log_beside

    return _join_log(diagnosis, load_log_beside(path, report=request.report), request, judged)


def _read_logs_of_folder(diagnosis: Diagnosis, request: Request, judged: Judged) -> Diagnosis:
    """Join what training logs among the traces of a folder show; of a log that is of another run a warning says so."""
    if not isinstance(request.source, (str, Path)) or not Path(request.source).is_dir():
        return diagnosis
    from diagnose.trace.logs_beside import find_logs_beside

    name = request.name or str(request.source)
    beside = find_logs_beside(Path(request.source), name=name)
    if beside is None:
        return diagnosis
    diagnosis = dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, *beside.warnings))
    return _join_log(diagnosis, beside.log, request, judged)


def _join_log(diagnosis: Diagnosis, log: "TrainingLog", request: Request, judged: Judged) -> Diagnosis:
    """Join what a training log shows."""
    from diagnose.features.paces import measure_log
    from diagnose.judge.log import add_log

    sizes = {key: getattr(diagnosis.job, key) for key in ("world_size", "pp_size", "tp_size", "cp_size")}
    return add_log(diagnosis, measure_log(log, min_speedup=request.min_speedup, sizes=sizes), judged.rule_set.rules)


def _join_collectives(diagnosis: Diagnosis, request: Request, judged: Judged) -> Diagnosis:
    """Join what dumps of collectives among the traces of a folder show."""
    if not isinstance(request.source, (str, Path)) or not Path(request.source).is_dir():
        return diagnosis
    dumps = find_dumps(request.source)
    if dumps is None:
        return diagnosis
    from diagnose.collectives_alone import diagnose_collectives
    from diagnose.judge.collectives_beside import join_collectives

    try:
        beside = diagnose_collectives(dumps, dataclasses.replace(request, meta=None))
    except TraceError as error:
        return dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, f"dumps are not used: {error}"))
    return join_collectives(diagnosis, beside, judged.rule_set.severities)


def _join_telemetry(diagnosis: Diagnosis, request: Request, analysis: Analysis, judged: Judged) -> Diagnosis:
    """Join what the machines of the job measured of themselves: what the user gives, or what lies in the folder of the trace."""
    telemetry: str | Path | Telemetry | Sequence[Path] | None = request.telemetry
    if telemetry is None and isinstance(request.source, (str, Path)) and Path(request.source).is_dir():
        from diagnose.telemetry.recognise import find_telemetry

        telemetry = find_telemetry(Path(request.source)) or None
    if telemetry is None:
        return diagnosis
    from diagnose.telemetry_beside import Times, add_telemetry

    request.report("reading telemetry")
    try:
        return add_telemetry(
            diagnosis,
            telemetry,
            Times.of(
                analysis.trace.steps,
                analysis.trace.step_origin_s,
                diagnosis.step_time.recorded,
                {
                    rule.id: course.steps
                    for rule in judged.rule_set.rules
                    if (course := analysis.courses.get("+".join(rule.components))) is not None
                },
            ),
            severities=judged.rule_set.severities,
            report=lambda line: request.report(f"telemetry: {line}"),
        )
    except (TraceError, ServiceError) as error:
        if request.telemetry is not None and not request.shares_telemetry:
            raise
        return dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, f"telemetry is not used: {error}"))


def _explain(cause: str, analysis: Analysis, judged: Judged, verdict: Verdict, *, min_speedup: float) -> "Explanation":
    """Explain a cause; what does so is imported when somebody asks."""
    from diagnose.judge.explain import explain_cause

    return explain_cause(cause, analysis, judged, verdict, min_speedup=min_speedup)


@_unpacking
def explain_job(request: Request, cause: str) -> "Explanation":
    """Explain why a cause, the id of a rule or `unknown`, is reported of a job, or not.

    Raises
    ------
    UsageError
        There is no such cause; raised before the job is read.
    DiagnoseError
        As `diagnose_job` does.
    """
    from diagnose.judge.explain import check_cause

    check_cause(cause, read_rules(request.rules).rules)
    # Since when is asked of everything, also of what is worth less than the speedup asked for.
    analysis, judged = examine(dataclasses.replace(request, min_speedup=1.0))
    verdict = reach_verdict(analysis, judged.judgements, min_speedup=request.min_speedup, prediction=judged.prediction)
    return _explain(cause, analysis, judged, verdict, min_speedup=request.min_speedup)


@_unpacking
def price_job(request: Request, by_hand: HandFixes) -> tuple[HandPrices, ReportData]:
    """Say how fast a job would run with some fixes, or with own times scaled; the report data has them as its plan.

    Raises
    ------
    UsageError
        A fix, a setting or a place is not known; of fixes raised before the job is read.
    DiagnoseError
        As `diagnose_job` does.
    """
    from diagnose.fixes.hand import parse_fix, parse_set, price_by_hand

    fixes = [parse_fix(text) for text in by_hand.fixes]
    analysis, judged = examine(request)
    verdict = reach_verdict(analysis, judged.judgements, min_speedup=request.min_speedup, prediction=judged.prediction)
    request.report("pricing fixes")
    placed = [(fix, locate_fix(fix.fix, verdict.causes, judged.rule_set)) for fix in fixes]
    scales = [(text, parse_set(text, analysis)) for text in by_hand.scales]
    prices = price_by_hand(analysis, placed, scales)
    diagnosis = assemble(analysis, judged, verdict, min_speedup=request.min_speedup)
    return prices, ReportData(analysis, diagnosis, prices.changes, list_pictured(judged.rule_set))


def examine(request: Request) -> tuple[Analysis, Judged]:
    """Measure one job, and let every rule and the classifier judge it; raises as `diagnose_job` does."""
    rule_set = read_rules(request.rules)
    analysis = analyse_job(request, rule_set)
    return analysis, ask_judges(analysis.features, rule_set)


def analyse_job(request: Request, rule_set: RuleSet) -> Analysis:
    """Measure one job; components that a rule takes together are removed together, too."""
    request.report("reading")
    trace = load_trace(
        request.source,
        name=request.name,
        meta=request.meta,
        steps=request.steps,
        unit=request.unit,
        memory_bytes=request.memory_bytes,
        location=request.location,
        report=lambda line: request.report(f"reading {line}"),
    )
    trace = dataclasses.replace(trace, recording=name_unchecked(trace.recording, rule_set.rules))
    request.report("replaying")
    try:
        prepared = prepare(trace)
    except TraceError:
        trace = leave_out_unordered(trace)
        prepared = prepare(trace)
    what_if = explore(trace, prepared)
    request.report("taking apart")
    observed, evidence, clocks = observe(trace, prepared)
    others, warnings = Evidence.join([o.others for o in observed]), (*trace.warnings, *describe_dropped(observed))
    trace = dataclasses.replace(trace, evidence=evidence, others=others, warnings=warnings)
    breakdown = take_apart(
        observed,
        carry_over(evidence, trace),
        n_stages=trace.n_stages,
        reads_input=trace.job.reads_input,
        ep_size=trace.job.ep_size,
        carried_s=measure_carried(trace, observed),
        members=trace.members,
        between_hosts=trace.between_hosts,
    )
    between_s = measure_between(trace, observed)
    explained_s = explain_between(trace, observed, between_s)
    breakdown = dataclasses.replace(breakdown, between_s=explained_s, led_s=blame_leads(trace, observed, explained_s))
    tail_s = measure_tails(trace, observed)
    removal = Removal(observed, breakdown, n_stages=trace.n_stages, between_s=between_s, tail_s=tail_s)
    gains = removal.gains([rule.components for rule in rule_set.rules])
    request.report("judging")
    if clocks.are_apart(gains.recorded_s):
        on_one_clock = dataclasses.replace(trace, blocks=tuple(correct_clocks(block, clocks) for block in trace.blocks))
        prepared = prepare(on_one_clock)
        what_if = explore(on_one_clock, prepared)
    transfers = measure_transfers(removal)
    suspects = find_suspects(trace, breakdown, transfers)
    return Analysis(
        trace=trace,
        what_if=what_if,
        breakdown=breakdown,
        gains=gains,
        transfers=transfers,
        features=measure_features(Measured(trace, what_if, breakdown, gains, transfers)),
        courses=find_courses(
            breakdown,
            gains,
            suspects,
            [o.block for o in observed],
            least=max(least_gain(request.min_speedup), MATERIAL_SHARE),
        ),
        suspects=suspects,
        fidelity=check_fidelity(what_if, gains, lambda: measure_beside(trace.blocks)),
        filled_share=measure_filled(observed),
        clock_offset_s=clocks.find_extremes(),
        clocks_apart=clocks.are_apart(gains.recorded_s),
        clocks_move=bool(len(clocks.steps)),
        price=removal.price,
        sample=removal.sample,
        timelines=Timelines(prepared, removal),
        date_worker=functools.partial(date_worker, breakdown),
        split_clean=functools.partial(split_clean, removal, gains.clean_s),
        others=describe_types(observed, trace.other_types, trace.n_stages),
    )
