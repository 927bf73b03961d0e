"""What speaks for a cause, and what makes it less sure, one sentence each."""

from collections.abc import Iterator, Sequence

import msgspec.structs
import numpy as np

from diagnose.judge.check import COMPARISONS, find_deciding
from diagnose.judge.classifier import Prediction
from diagnose.judge.confidence import has_one_rank_doubt, is_rare, probability_of
from diagnose.judge.members import MAX_MEMBERS_NAMED, describe_member
from diagnose.judge.places import find_culprits, label_worker, locate, share_on
from diagnose.judge.rule import Judgement, Rule
from diagnose.judge.unknown import UNKNOWN_SHARE, lacks_transfers
from diagnose.judge.worth import Benefit
from diagnose.model.analysis import Analysis
from diagnose.model.cause import TURNS, Cause, EvidenceItem, When
from diagnose.model.components import COMPONENTS
from diagnose.model.fingerprint import HARDWARE
from diagnose.model.optype import DIRECTION_NAMES
from diagnose.model.stalls import StallKind
from diagnose.numerics.figures import write_figure, write_percent, write_ratio
from diagnose.numerics.robust import weighted_median

#: Below this probability the classifier disagrees with a rule that fires.
DISAGREES = 0.5
#: A model chunk stands out from the others of its stage by as much as a stage from others (rule of uneven stages).
LONG_CHUNK_RATIO = 1.03
#: So many stalls are described one by one at most; more say no more.
MAX_STALLS = 8
#: ... of those that are not far shorter than the longest.
STALL_SHARE = 0.1

#: Who is slow in one of so many steps at the beginning has no steps before, to compare with.
FIRST_STEPS = 2
#: So many workers that are slow one after the other are told of, each with its steps.
MAX_TURNS = 4
#: Features that say nothing more where another one reads the same.
REPEATS = {"input.in_a_step": "input.a_step"}
#: What features tell of the slowest worker alone.
OF_SLOWEST = ("worker.ratio", "worker.forward_ratio", "worker.backward_ratio")
#: What is said of a period, which two stops always have, and one has none.
OF_PERIOD = ("stall.regularity",)


def list_evidence(
    analysis: Analysis, judgement: Judgement, benefit: Benefit, prediction: Prediction | None
) -> Iterator[EvidenceItem]:
    """List a rank with more documents, stops, conditions, those that fail, members, doubts, stalls, changes, the classifier."""
    rule = judgement.rule
    others, seldom = _name_others(analysis, rule), is_rare(analysis, rule.components)
    yield from _describe_replica(analysis, rule)
    yield from _describe_turns(analysis, rule)
    yield from _describe_stops(analysis, rule)
    for condition, text in judgement.held:
        if (others and condition.feature in OF_SLOWEST) or (seldom and condition.feature in OF_PERIOD):
            continue
        value = analysis.features[condition.feature].value
        if condition.feature in REPEATS and value == analysis.features[REPEATS[condition.feature]].value:
            continue
        yield EvidenceItem("rule", f"{rule.id}/{condition.feature}", text, {condition.feature: value})
    if others:
        share = share_on(analysis, rule.components, others)
        text = f"{write_percent(share)} of the seconds lost to slow workers are on the named ones"
        yield EvidenceItem("rule", f"{rule.id}/named", text, {"worker.named_share": share})
    yield from _describe_silence(analysis, judgement)
    yield from _describe_hiding(rule, benefit, analysis.gains.recoverable("+".join(rule.components)))
    if analysis.gains.traits_of(rule.components).whom == "workers" and rule.place == "workers":
        yield from _describe_members(analysis, rule)
    yield from _describe_doubts(analysis, rule)
    yield from _describe_bounds(analysis, rule)
    yield from _describe_chunk(analysis, rule)
    yield from _describe_stalls(analysis, rule)
    course = analysis.courses.get("+".join(rule.components))
    for change in course.changes if course else ():
        chance = write_figure(change.chance, 2)
        text = f"from step {change.step} on it is on another level, which chance does with a probability of {chance}"
        values: dict[str, float | None] = {"before": change.before, "after": change.after, "chance": change.chance}
        yield EvidenceItem("change-point", f"{rule.id}/step-{change.step}", text, values)
    if course and course.when.period_steps is not None and course.steps:
        n = len({step % int(course.when.period_steps) for step in course.steps})
        if n > 1:
            text = f"it is there in {n} of every {course.when.period_steps:.0f} steps"
            yield EvidenceItem("change-point", f"{rule.id}/every", text, {"period_steps": course.when.period_steps})
    yield from _describe_classifier(analysis, prediction, judgement)


def tie_machines(causes: Sequence[Cause]) -> list[Cause]:
    """Say of faults of machines that are at the same worker, since the same step, that one may be behind both.

    Of what has the smaller share that comes first: nobody is to be sent twice.
    """
    tied = []
    for at, cause in enumerate(causes):
        evidence = cause.evidence
        if other := next((one for one in causes if one is not cause and _share_machine(cause, one)), None):
            text = (
                f"{other.title} ({other.cause}) is at the same worker: one fault of its machine may be both, as a path over PCIe "
                "that is busy, or narrow, slows computes and messages; look at both at once"
            )
            item = EvidenceItem("rule", f"{cause.cause}/same-machine", text, {})
            evidence = (*evidence, item) if other in causes[at:] else (item, *evidence)
        tied.append(msgspec.structs.replace(cause, evidence=evidence))
    return tied


def _share_machine(one: Cause, other: Cause) -> bool:
    """Say whether two causes are faults of machines, at one worker and since the same step."""
    of_one, of_other = ({(worker.dp, worker.pp) for worker in cause.where.workers} for cause in (one, other))
    since = one.when.onset_step == other.when.onset_step and one.when.recovery_step == other.when.recovery_step
    return {one.who, other.who} <= HARDWARE and bool(of_one & of_other) and since


def _describe_turns(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say since when each of a few slow workers is so, and until when, where they are not so at once."""
    if analysis.gains.traits_of(rule.components).whom != "workers" or rule.place != "workers":
        return
    turns = analysis.find_turns(find_culprits(analysis, rule.components))
    if not 0 < len(turns) <= MAX_TURNS:
        return
    workers = {at: label_worker(analysis.trace, *at) for at in turns}
    each = "; ".join(f"dp {w.dp} stage {w.pp} {_write_turn(turns[at])}" for at, w in workers.items())
    yield EvidenceItem("rule", f"{rule.id}{TURNS}", f"not all of them at once: {each}", {})


def _write_turn(when: When) -> str:
    """Say since when and until when one of several workers is slow."""
    return when.span or ("all the time" if when.pattern == "constant" else "now and then")


def _name_others(analysis: Analysis, rule: Rule) -> list[tuple[int, int]]:
    """List the workers that are named where the slowest one, of which features tell, is none of them: slow in few computes."""
    suspects = analysis.suspects.workers
    if analysis.gains.traits_of(rule.components).whom != "workers" or rule.place != "workers" or not suspects:
        return []
    named = find_culprits(analysis, rule.components)
    return [] if suspects[0] in named else named


def _describe_stops(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say for how long a slow worker's process stops at a time, where its messages show that it is the whole process."""
    stalled_s = analysis.breakdown.stalls.seconds_of(StallKind.WORKER)
    if (
        not analysis.breakdown.is_stopped
        or analysis.gains.traits_of(rule.components).whom != "workers"
        or rule.place != "workers"
    ):
        return
    usual_s = weighted_median(stalled_s[stalled_s > 0], stalled_s[stalled_s > 0])
    text = (
        f"now and then its process stops for about {write_figure(usual_s or 0.0, 2)} s: in forwards, in backwards and, at other "
        "times, in messages, as long; an allocator holds up no message, a link no compute, a collection no backward: look at what "
        "else its host runs"
    )
    yield EvidenceItem("rule", f"{rule.id}/stops", text, {"stopped_s": usual_s})


def _describe_silence(analysis: Analysis, judgement: Judgement) -> Iterator[EvidenceItem]:
    """Say which conditions fail where the rule is silent and the classifier alone names the cause."""
    if judgement.fires:
        return
    for condition in dict.fromkeys(find_deciding(judgement.rule.conditions, analysis.features)):
        feature = analysis.features[condition.feature]
        wanted = f"{condition.feature} to be {COMPARISONS[condition.comparison]} {condition.threshold:g}"
        found = "could not be measured" if feature.value is None else f"is {write_figure(feature.value)}"
        text = (
            f"the rule does not hold: it asks for {wanted}, and it {found}; the classifier names the cause all the same"
        )
        yield EvidenceItem("rule", f"{judgement.rule.id}/silent", text, {condition.feature: feature.value})


def _describe_hiding(rule: Rule, benefit: Benefit, alone: float) -> Iterator[EvidenceItem]:
    """Say that a cause gives something back only after others."""
    if benefit.after:
        first = " and ".join(COMPONENTS[name] for name in benefit.after)
        little, much = write_percent(max(alone, 0.0)), write_percent(benefit.gain)
        text = f"alone it gives back {little} of the step; without {first} it is {much}"
        yield EvidenceItem("rule", f"{rule.id}/after", text, {"gain.after": benefit.gain, "gain.alone": alone})


def _describe_members(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say of the worst slow workers which member is late."""
    where = locate(analysis, rule.components, rule.place)
    named = zip(find_culprits(analysis, rule.components), where.workers, strict=True)
    for at, worker in list(named)[:MAX_MEMBERS_NAMED]:
        if at in analysis.suspects.late_members:
            yield describe_member(f"{rule.id}/member", worker, analysis.suspects.late_members[at])


def _describe_doubts(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say what else it may be, and what cannot be known of its cost."""
    if has_one_rank_doubt(analysis, rule):
        text = "there is one dp rank: "
        text += (
            "only the optimizer's time tells the worker from an uneven stage"
            if analysis.gains.traits_of(rule.components).whom == "workers"
            else "a worker that was slow from the first step would look the same"
        )
        yield EvidenceItem("rule", f"{rule.id}/one-dp-rank", text, {"dp_ranks": 1.0})
    if is_rare(analysis, rule.components):
        hits = analysis.features["stall.hits"].value
        often = "once" if hits == 1 else f"{hits:.0f} times"
        text = f"it happened {often} only, too seldom to show a period: anything that stops all workers looks like it"
        yield EvidenceItem("rule", f"{rule.id}/rare", text, {"stall.hits": hits})


def _describe_bounds(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say why a slow network may cost more than what comes back by what was recorded: unseen messages, or nothing that is quick."""
    if analysis.gains.traits_of(rule.components).whom != "links":
        return
    late = analysis.gains.recoverable("launch-delay")
    if lacks_transfers(analysis) and late >= UNKNOWN_SHARE:
        text = (
            "the gain is a lower bound: no row tells of messages between stages, and what these wait for is among operations that "
            f"start late, which would give back {write_percent(late)}"
        )
        yield EvidenceItem("rule", f"{rule.id}/unseen", text, {"gain.launch-delay": late})
    course, transfers = analysis.courses.get("+".join(rule.components)), analysis.transfers
    onset = course.when.onset_step if course else None
    began = onset is not None and onset > int(np.sort(analysis.breakdown.steps)[:FIRST_STEPS][-1])
    if transfers.slow is not None and not began and transfers.slow.lacks_peers(np.isfinite(transfers.group_s)):
        text = (
            "the gain is a lower bound: there are no quick collectives of the same kind beside them, so they are measured against "
            "the quickest of their own, which may be slow, too"
        )
        yield EvidenceItem("rule", f"{rule.id}/no-peers", text, {"groups": float(np.isfinite(transfers.group_s).sum())})


def _describe_chunk(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say which model chunk makes a stage long, where it has several and one stands out."""
    if rule.place != "stages" or not analysis.suspects.long_stages:
        return
    stage, n_stages = analysis.suspects.long_stages[0], analysis.trace.n_stages
    typical_s = analysis.breakdown.typical_s[:, stage::n_stages].sum(axis=0)
    chunk = int(typical_s.argmax())
    others_s = float(np.median(np.delete(typical_s, chunk))) if len(typical_s) > 1 else 0.0
    if others_s > 0 and typical_s[chunk] > LONG_CHUNK_RATIO * others_s:
        ratio, label = float(typical_s[chunk]) / others_s, int(analysis.trace.stage_labels[stage])
        text = f"chunk {chunk} of stage {label} computes {write_ratio(ratio)} times as long as the stage's other chunks"
        yield EvidenceItem(
            "rule", f"{rule.id}/chunk", text, {"chunk": float(chunk), "stage": float(label), "ratio": ratio}
        )


def _describe_replica(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Say which dp rank has the most by its tokens, where one has more than others all the time."""
    if "microbatch" not in rule.components or not analysis.breakdown.is_told_by_ranks:
        return
    told = np.asarray(analysis.breakdown.microbatch_told)
    more = np.median(told, axis=(0, 1))
    dp = int(more.argmax())
    if more[dp] > 1.0:
        label, ratio = int(analysis.trace.dp_labels[dp]), float(more[dp])
        text = f"by its tokens dp {label} has {write_ratio(ratio)} times the work of others, all the time"
        yield EvidenceItem("rule", f"{rule.id}/replica", text, {"dp": float(label), "ratio": ratio})


def _describe_stalls(analysis: Analysis, rule: Rule) -> Iterator[EvidenceItem]:
    """Describe stalls that come seldom one by one: which compute, for how long, and what the step lost to it."""
    key = "+".join(rule.components)
    gains = analysis.gains
    if not gains.traits_of(rule.components).seldom or key not in gains.alone_steps_s:
        return
    lost_s = gains.replayed_steps_s - gains.alone_steps_s[key]
    stalls, steps = analysis.breakdown.stalls, analysis.breakdown.steps
    kinds = {kind for name in rule.components if (kind := gains.traits[name].stall_kind) is not None}
    seconds = np.sum([stalls.seconds_of(kind) for kind in kinds], axis=0)
    found = np.argwhere(seconds > STALL_SHARE * seconds.max(initial=0.0)).tolist()
    if len(found) > MAX_STALLS:
        return
    for place in sorted(found, key=lambda place: (int(steps[place[3]]), place)):
        yield _describe_stall(analysis, rule, place, float(seconds[tuple(place)]), float(lost_s[place[3]]))


def _describe_stall(analysis: Analysis, rule: Rule, place: list[int], pause_s: float, lost_s: float) -> EvidenceItem:
    """Describe the stall of one compute, given by its indices as in `Breakdown`."""
    direction, virtual, microbatch, at, dp = place
    n_stages, step = analysis.trace.n_stages, int(analysis.breakdown.steps[at])
    worker = label_worker(analysis.trace, dp, virtual % n_stages)
    cost = f"and the step {1e3 * lost_s:.0f} ms" if lost_s >= 1e-3 else "and the step nothing: others waited anyway"
    text = (
        f"step {step}, dp {worker.dp}, stage {worker.pp}: {DIRECTION_NAMES[direction]} of microbatch {microbatch} "
        f"took {1e3 * pause_s:.0f} ms longer, {cost}"
    )
    values: dict[str, float | None] = {
        "step": float(step),
        "dp": float(worker.dp),
        "stage": float(worker.pp),
        "chunk": float(virtual // n_stages),
        "microbatch": float(microbatch),
        "pause_s": pause_s,
        "step_lost_s": max(lost_s, 0.0),
    }
    return EvidenceItem("rule", f"{rule.id}/stall", text, values)


def _describe_classifier(
    analysis: Analysis, prediction: Prediction | None, judgement: Judgement
) -> Iterator[EvidenceItem]:
    """Say what the classifier makes of a cause that it knows."""
    rule = judgement.rule
    probability = probability_of(analysis, prediction, rule)
    if prediction is None or probability is None:
        return
    text = f"a classifier trained on generated jobs gives it a probability of {write_figure(probability, 2)}"
    if judgement.fires and probability < DISAGREES:
        text = f"the rule holds, but {text}: they disagree"
    seen: dict[str, float | None] = {"probability": probability}
    seen.update((c.feature, c.value) for c in prediction.contributions(rule.id)[:1])
    yield EvidenceItem("classifier", f"{rule.id}/probability", text, seen)
