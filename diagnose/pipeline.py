"""The table of contents of the product: from a file to a diagnosis, stage by stage."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

import diagnose
from diagnose.features.delays import measure_delays
from diagnose.features.gains import measure_gains
from diagnose.features.network import measure_network, slow_card
from diagnose.features.pauses import measure_pauses
from diagnose.features.sequences import measure_sequences
from diagnose.features.stages import longest_stage, measure_stages
from diagnose.features.workers import measure_workers, slow_steps, slow_workers
from diagnose.judge.rules import RuleSet, check_features, load_rules
from diagnose.judge.verdict import MAX_REPLAY_ERROR, Case, Verdict, reach_verdict
from diagnose.model.components import Components, Gains
from diagnose.model.diagnosis import Diagnosis, Fidelity, MadeBy, StepTime, When
from diagnose.model.feature import Feature, Features
from diagnose.model.onset import find_when
from diagnose.model.trace import Ints, Seconds, Trace
from diagnose.model.transfers import Transfers
from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace
from diagnose.whatif.between import measure_between
from diagnose.whatif.components import take_apart
from diagnose.whatif.observed import measure_filled, observe
from diagnose.whatif.removal import Removal
from diagnose.whatif.scenarios import explore, prepare
from diagnose.whatif.transfers import measure_transfers

#: A healthy default: report what makes the job at least 2% faster.
MIN_SPEEDUP = 1.02


def diagnose_job(
    source: str | Path | BinaryIO,
    *,
    name: str | None = None,
    meta: Path | None = None,
    steps: Ints | None = None,
    rules: Path | None = None,
    min_speedup: float = MIN_SPEEDUP,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Diagnose one job.

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
        Report a cause when removing it makes the job at least this much faster.
    progress : callable, optional
        Called with the name of each stage as it begins.

    Raises
    ------
    TraceError
        The input cannot be read as a trace.
    RuleError
        A rule file is wrong.
    UsageError
        An option makes no sense.
    """
    tell = progress or _say_nothing
    rule_set = load_rules(rules)
    tell("reading")
    trace = load_trace(source, name=name, meta=meta, steps=steps)
    tell("replaying")
    prepared = prepare(trace)
    what_if = explore(trace, prepared)
    tell("taking apart")
    observed, evidence, offset_s = observe(trace, prepared)
    trace = dataclasses.replace(trace, evidence=evidence)
    components = take_apart(observed, evidence, n_stages=trace.n_stages)
    removal = Removal(observed, components, n_stages=trace.n_stages, between_s=measure_between(trace, observed))
    gains = removal.gains([rule.components for rule in rule_set.rules])
    tell("judging")
    transfers = measure_transfers(observed, n_stages=trace.n_stages)
    case = make_case(trace, what_if, components, gains, transfers, filled_share=measure_filled(observed))
    check_features(rule_set.rules, case.features)
    verdict = reach_verdict(case, [rule.judge(case.features) for rule in rule_set.rules], min_speedup=min_speedup)
    return assemble(
        case, what_if, verdict, rule_set, min_speedup=min_speedup, warnings=_clock_warnings(trace, offset_s)
    )


def make_case(
    trace: Trace,
    what_if: WhatIf,
    components: Components,
    gains: Gains,
    transfers: Transfers,
    *,
    filled_share: float = 0.0,
) -> Case:
    """Measure every feature, and gather what the judge needs to know."""
    features: Features = {
        "slowdown": Feature(what_if.slowdown),
        "discrepancy": Feature(what_if.discrepancy),
        "noise": Feature(components.noise_ratio),
    }
    features |= measure_gains(components, gains)
    features |= measure_stages(components, trace.n_stages)
    features |= measure_workers(components, what_if)
    features |= measure_sequences(components)
    features |= measure_pauses(components, trace.evidence)
    features |= measure_network(transfers, components)
    features |= measure_delays(components, gains, trace.evidence)
    slow = slow_workers(components)
    cards, links = slow_card(transfers)
    error = abs(gains.replayed_s / gains.recorded_s - 1.0)
    return Case(
        trace=trace,
        components=components,
        gains=gains,
        features=features,
        fidelity=Fidelity(what_if.discrepancy, error, error <= MAX_REPLAY_ERROR),
        filled_share=filled_share,
        slow_workers=slow,
        slow_cards=cards,
        slow_links=links,
        longest_stage=longest_stage(components, trace.n_stages) if trace.n_stages > 1 else None,
        worker_when=find_when(*slow_steps(components, slow[0])) if slow else When(),
    )


def assemble(
    case: Case,
    what_if: WhatIf,
    verdict: Verdict,
    rule_set: RuleSet,
    *,
    min_speedup: float,
    warnings: Sequence[str],
) -> Diagnosis:
    """Put all that was measured and judged into a diagnosis."""
    trace, gains = case.trace, case.gains
    analysed = np.isin(what_if.steps, case.components.steps)  # all but a warm-up
    hours = gains.recorded_s * len(case.components.steps) * trace.job.world_size / 3600.0
    return Diagnosis(
        made_by=MadeBy(diagnose.__version__, rule_set.digest, None),
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
        warnings=(*trace.warnings, *warnings, *verdict.warnings),
        dp_labels=trace.dp_labels,
        stage_labels=trace.stage_labels,
        ranks=trace.ranks,
        hosts=trace.hosts,
        min_speedup=min_speedup,
    )


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
