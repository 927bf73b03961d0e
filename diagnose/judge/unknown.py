"""Lost time that no rule explains: a finding of its own, under the name `unknown`."""

from collections.abc import Collection, Sequence

import numpy as np

from diagnose.judge.confidence import chance_above
from diagnose.judge.lone import is_lone_rank, only_waits
from diagnose.judge.other_work import UNEVEN, describe_uneven
from diagnose.judge.places import locate_and_price
from diagnose.judge.rule import Rule
from diagnose.judge.timing import date_cause
from diagnose.judge.worth import is_unmeasured, measure_alone, share_of
from diagnose.model.analysis import Analysis
from diagnose.model.cause import Cause, EvidenceItem, When
from diagnose.model.components import COMPONENTS
from diagnose.model.fingerprint import name_fault
from diagnose.model.optype import P2P, of_types
from diagnose.model.stalls import StallKind
from diagnose.numerics.figures import write_figure

#: What is said of time that no rule explains.
UNKNOWN = "unknown"
#: A part of the step that no rule explains is a finding from here on: real healthy jobs lose up to 3% to variation.
UNKNOWN_SHARE = 0.05
#: A job straggles from S = 1.1 on (arXiv 2505.05713): where so much of a step is lost, and nothing is to be named, it is noise.
#: Healthy recorded jobs lose 5%.
NOISY_SHARE = 1.0 - 1.0 / 1.1
#: Certainty of `unknown`: the time is lost, that much is measured.
UNKNOWN_CERTAINTY = 0.6
#: What a recorder knows of by the libraries' own functions alone: the fact of the job, what it may have missed, and in which
#: components that would be.
UNSEEN = (
    (
        "reads_input",
        "no loader was seen to read: if the job reads its data by other means, it may wait for these",
        ("launch-delay", "start-delay"),
    ),
    ("saves", "no save was seen: if the job saves by other means, it may be that", ("between-steps", "start-delay")),
)
#: Where data-load rows of workers that begin forwards late tell of no wait, as the rule for loaders says.
SILENT_SHARE = 0.8
SILENT = (
    "no rule says why: forwards begin late where data is read, and data-load rows tell of no wait then; look at what else comes "
    "before, as rollouts or the making of a batch"
)
SILENT_INSIDE = (
    "no rule says why: forwards take longer, and data-load rows tell of no wait then; what stops them comes once the batch is "
    "read, as collections of Python, rollouts or the making of a batch"
)
#: What slow transfers may be that are random, or too few to tell.
TRANSFERS = "a card or a switch now and then, or busy hosts: counters of ports and run queues at these times would tell"
#: ... and what they give back where they are so in more than this part of the steps, as the rule for networks has it.
MOST_STEPS_SHARE = 0.75
LOWER_BOUND = (
    "it is so in nearly all steps, and measured against the quickest of them: if these are slow, too, more comes back"
)
#: What may make all workers slower from one step on.
FOR_ALL = "it may be more work, as longer sequences or batches, or what hosts share, as power"
#: What makes such a pause.
ONCE = "a restart, the scheduler or a save does that"
#: A step that has this part of what is lost has nearly all of it.
ONE_STEP_SHARE = 0.9
#: What comes at an interval on nobody more than on others.
AS_PLANNED = "as planned work does: a collection of garbage, a log, a profiler"
AS_PLANNED_TRANSFERS = "as what is written over the same network does: a save, a log, another job's collectives"
#: Where no transfer was recorded whoever waits for one begins late.
NO_TRANSFERS = "no row tells of transfers between stages: it may be slow ones as well as hosts; record them"
BUSY_HOST = "between processes of one host is no network: look at what else takes its cores (top)"


def list_unexplained(analysis: Analysis, explained: Collection[str], least: float) -> list[str]:
    """Give the component that costs most of those that no rule explains, where that is too much for ordinary variation.

    What may be nothing but waits of a lone rank is not one: whom it waits for is not there. Neither is ordinary variation.
    """
    lone = is_lone_rank(analysis.trace)
    gains = {
        name: analysis.gains.recoverable(name)
        for name in COMPONENTS
        if name not in explained
        and not (lone and only_waits(analysis, (name,)))
        and not is_unmeasured(analysis, (name,))
        and not analysis.gains.traits[name].is_excused(analysis.features, explained)
    }
    large = sorted(
        (name for name, gain in gains.items() if gain >= max(UNKNOWN_SHARE, least)), key=lambda name: -gains[name]
    )
    worst = next((name for name in large if not comes_and_goes(analysis, name, least)), None)
    return [] if worst is None else [worst]


def comes_and_goes(analysis: Analysis, component: str, least: float) -> bool:
    """Say whether what a component costs is ordinary variation: now and then, on nobody more than on others, and not much."""
    if not analysis.gains.traits[component].varies or analysis.gains.recoverable(component) >= max(NOISY_SHARE, least):
        return False
    place = place_of((component,))
    if date_cause(analysis, (component,), place).pattern != "sporadic":
        return False
    where, _gain = locate_and_price(analysis, (component,), place, least)
    return not where.workers


def place_of(components: Sequence[str]) -> str:
    """Say what time that no rule explains lies on, as rules do: stages or workers."""
    return "stages" if tuple(components) == ("stage",) else "workers"


def report_unknown(analysis: Analysis, component: str, least: float, rule: Rule | None = None) -> Cause:
    """Report lost time that no rule explains; the rule that looks for such time, where one does, says how to make sure."""
    gains = analysis.gains
    place = place_of((component,))
    where, gain = locate_and_price(analysis, (component,), place, least)
    title, text = describe_uneven(analysis, where) if component == UNEVEN else ("", "")
    if component == "worker" and not analysis.breakdown.slow_workers.any():
        title = "unknown cause: slow in the same microbatch of each step"
        text = "the same microbatches take longer there than those of peers in all steps, others do not, and no rule says why"
    silent = analysis.features.get("input.silent_share")
    if component == "input-delay" and silent is not None and (silent.value or 0.0) >= SILENT_SHARE:
        title, text = "unknown cause: late forwards where data is read", SILENT
        stalls, (inside, before) = analysis.breakdown.stalls, analysis.breakdown.stalls.of_kind(StallKind.INPUT)
        if stalls.inside_s[inside].sum() > stalls.before_s[before].sum():
            title, text = "unknown cause: long forwards where data is read", SILENT_INSIDE
    text = text or f"time is lost to {COMPONENTS[component]}, and no rule says why"
    if component == "transfer":
        text += f"; {BUSY_HOST if analysis.trace.is_on_one_cpu else TRANSFERS}"
        steps_share = analysis.features["network.steps_share"].value
        text += f"; {LOWER_BOUND}" if steps_share is not None and steps_share > MOST_STEPS_SHARE else ""
    if component == "launch-delay" and lacks_transfers(analysis):
        text += f"; {NO_TRANSFERS}"
    when = date_cause(analysis, (component,), place)
    if (once := _describe_stop(analysis, component)) is not None:
        title, text, when = once
    if component == "step" and not where.workers and when.pattern in ("onset", "transient"):
        text += f"; {FOR_ALL}"
    if when.period_steps is not None and not where.workers:
        planned = AS_PLANNED_TRANSFERS if component == "transfer" else AS_PLANNED
        text += f"; it comes every {when.period_steps:.0f} steps, on nobody more than on others, {planned}"
    step, lost_s, part = _find_worst_step(analysis, component)
    if once is None and when.pattern == "sporadic" and part >= ONE_STEP_SHARE:
        text += f"; nearly all of it in step {step}, {write_figure(lost_s, 2)} s"
        when = _date_step(analysis, step)
    for fact, missed, components in UNSEEN:
        if component in components and getattr(analysis.trace.job, fact) is False:
            text += f"; {missed}"
    return Cause(
        cause=UNKNOWN,
        title=title or f"unknown cause: {COMPONENTS[component]}",
        confidence=round(UNKNOWN_CERTAINTY * chance_above(measure_alone(gains, (component,)), least), 4),
        share=share_of(gains, (component,)),
        recoverable=gain,
        where=where,
        when=when,
        evidence=(EvidenceItem("rule", f"{UNKNOWN}/gain.{component}", text, {f"gain.{component}": gain}),),
        fixes=(),
        fingerprint=name_fault(analysis.trace.job, f"{UNKNOWN}/{component}", None, where),
        check=rule.check_on(analysis.trace.job) if rule is not None else None,
    )


def lacks_transfers(analysis: Analysis) -> bool:
    """Say whether several stages were recorded, and no transfer between them was."""
    there = any(of_types(block.nodes.op, P2P).any() for block in analysis.trace.blocks)
    return analysis.trace.n_stages > 1 and not there


def _describe_stop(analysis: Analysis, component: str) -> tuple[str, str, When] | None:
    """Say when and for how long everybody stands still at an end of a step, where that happens once; None elsewhere."""
    gains, hits = analysis.gains, analysis.features.get("stall.hits")
    border = gains.traits[component].border
    if border is None or hits is None or hits.value != 1.0:
        return None
    step, lost_s, _ = _find_worst_step(analysis, component)
    where = f"{'before' if border == 'start' else 'after'} step {step}"
    text = f"everybody stands still once, for {write_figure(lost_s, 2)} s {where}: {ONCE}"
    return f"{UNKNOWN} cause: one pause of all workers", text, _date_step(analysis, step)


def _find_worst_step(analysis: Analysis, component: str) -> tuple[int, float, float]:
    """Give the step that loses most to a component, the seconds, and which part they are of all that it costs."""
    gains = analysis.gains
    lost_s = np.maximum(gains.replayed_steps_s - gains.alone_steps_s.get(component, gains.replayed_steps_s), 0.0)
    at = int(lost_s.argmax())
    return (
        int(analysis.breakdown.steps[at]),
        float(lost_s[at]),
        float(lost_s[at] / lost_s.sum()) if lost_s.any() else 0.0,
    )


def _date_step(analysis: Analysis, step: int) -> When:
    """Say that something happens in one step; whether it is over in the last one nobody knows."""
    is_last = step == int(analysis.breakdown.steps.max())
    return When("sporadic") if is_last else When("transient", step, step + 1)
