"""Put all that was measured and judged into a diagnosis."""

import numpy as np

from diagnose.judge.budget import share_out
from diagnose.judge.caveats import list_caveats
from diagnose.judge.conditions import list_details
from diagnose.judge.judged import Judged
from diagnose.judge.verdict import Verdict, is_replayed
from diagnose.model.analysis import Analysis
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Plan, StepTime


def assemble(
    analysis: Analysis, judged: Judged, verdict: Verdict, plan: Plan | None = None, *, min_speedup: float
) -> Diagnosis:
    """Put all that was measured and judged into a diagnosis."""
    trace, gains, what_if = analysis.trace, analysis.gains, analysis.what_if
    analysed = np.isin(what_if.steps, analysis.breakdown.steps)  # all but a warm-up
    hours = gains.recorded_s * len(analysis.breakdown.steps) * trace.job.world_size / 3600.0
    if trace.unit_doubt:  # hours of what?
        hours = float("nan")
    return Diagnosis(
        made_by=judged.made_by,
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
        gpu_hours_wasted=hours * max(0.0, 1.0 - gains.clean_s / gains.recorded_s) if is_replayed(analysis) else None,
        fidelity=analysis.fidelity,
        what_if=what_if,
        causes=judged.rule_set.severities.rate_all(verdict.causes, trace.job.world_size),
        ledger=verdict.ledger,
        checked=verdict.checked,
        not_checked=verdict.not_checked,
        features={key: feature.value for key, feature in analysis.features.items()},
        warnings=(*(text for text in list_caveats(analysis) if text != verdict.why), *verdict.warnings),
        dp_labels=trace.dp_labels,
        stage_labels=trace.stage_labels,
        ranks=trace.ranks,
        hosts=trace.hosts,
        recording=trace.recording,
        min_speedup=min_speedup,
        plan=plan,
        details=list_details(judged.judgements, analysis.features),
        why=verdict.why,
        budget=share_out(analysis, judged.rule_set.rules, verdict.causes, verdict.ledger),
    )
