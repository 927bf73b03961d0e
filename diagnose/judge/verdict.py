"""Bring rules, classifier, gains and places together: which causes are there, how sure, where, since when, and the ledger.

Enters: everything measured. Leaves: a `Verdict`. A cause is reported when its removal makes the job faster by the least
speedup asked for, and rule and classifier together find it more probable than not.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from diagnose.judge.classifier import Opinion
from diagnose.judge.members import MAX_MEMBERS_SAID, name_member, say_member, suspect_hosts
from diagnose.judge.rules import Judgement, Rule
from diagnose.model.components import COMPONENTS, Components, Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis import (
    Cause,
    EvidenceItem,
    Fidelity,
    Ledger,
    NotChecked,
    When,
    Where,
    Worker,
)
from diagnose.model.feature import Features
from diagnose.model.members import LateMember
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Job, Seconds, Trace
from diagnose.model.transfers import Transfers

#: The causes of the contract; those without a rule are said to be unchecked.
CAUSES = (
    "allocator-stall",
    "checkpoint-stall",
    "data-loading",
    "garbage-collection",
    "kernel-queue-contention",
    "network-fault",
    "sequence-imbalance",
    "stage-imbalance",
    "worker-fault",
)
#: Steps below which nothing that varies can be told from chance.
MIN_STEPS = 3
#: ... but for stages, which differ in each of so many microbatches of a step.
MIN_MICROBATCHES = 4
#: Replay error above which nothing is to be trusted (arXiv 2505.05713 threw away jobs above 5%).
MAX_REPLAY_ERROR = 0.05
#: A part of the step that no rule explains is a finding of its own from here on: real healthy jobs lose up to 3% to variation.
UNKNOWN_SHARE = 0.05
#: Filled-in operations make gains too small and hide waits: each percent takes two from the certainty, up to half of it.
DOUBT_BY_FILLED = 2.0
MAX_DOUBT = 0.5
#: Whatever speedup is asked for, less than this is rounding.
NO_GAIN = 1e-9
#: Error of a gain besides its spread over steps: what the taking apart itself gets wrong (share of the step).
GAIN_ERROR = 0.005
#: How sure a rule of each status can be at most.
CERTAINTY = {"stable": 0.97, "experimental": 0.85}
#: With one dp rank an uneven stage cannot be told from a slow worker; the study has 20 of the one for each of the other, but the
#: slow workers are the severe ones.
ONE_RANK_CERTAINTY = 0.8
#: A cause is said where rule and classifier together are this sure, whatever the size of its gain.
SAID_FROM = 0.5
#: Nobody is surer than this, or less sure than its complement.
RAREST = 0.005
#: Below this probability the classifier disagrees with a rule that fires.
DISAGREES = 0.5
#: Twice always looks periodic; with fewer hits, and no rows, a stall between steps is a guess by elimination.
MIN_PERIODIC_HITS = 3
RARE_CERTAINTY = 0.75
#: A model chunk stands out from the others of its stage by as much as a stage from others (rule of uneven stages).
LONG_CHUNK_RATIO = 1.03
#: Stalls of single computes that come so seldom that a short trace has a handful of them: their mean is known only up to chance.
SELDOM = frozenset({"gc-pause"})
#: So many deviations above what was seen the true number of rare events lies at most (one side, 97.5%); fewer than so many, or a
#: gain below this part of the step, are nothing to speak of.
SELDOM_DEVIATIONS = 1.96
MIN_SELDOM_STEPS = 2
MIN_SELDOM_GAIN = 0.005
#: Stalls told one by one at most; many more say no more.
MAX_TOLD = 8
#: ... of those that are not far shorter than the longest.
TOLD_SHARE = 0.1
#: Certainty of `unknown`: the time is lost, that much is measured.
UNKNOWN_CERTAINTY = 0.6
#: Steps whose forwards alone are slow on all workers, on one period to this part, are evaluations.
EVALUATION_FORWARD_SHARE = 0.8
EVALUATION_REGULARITY = 0.8
#: Workers with less than this part of the worst worker's lost time are not named, and nobody if all have less of the gain.
NAMED_SHARE = 0.25
#: Where more than this part of the workers would be named, the cause is spread over the job.
SPREAD_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The judged part of a diagnosis."""

    verdict: str
    causes: tuple[Cause, ...]
    ledger: Ledger | None
    checked: tuple[str, ...]
    not_checked: tuple[NotChecked, ...]
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Everything measured of one job, as the judge sees it.

    `filled_share` is the part of the operations that were missing and filled in. `slow_workers`, `slow_cards` and `slow_links` (by
    their first stage) are (dp index, stage index), worst first; `slow_group` and `longest_stage` are stage indices; `courses` say
    since when each component, or several joined by `+`, costs time; `late_members` say of each slow worker which of its members the
    others wait for, where the trace records them.
    """

    trace: Trace
    components: Components
    gains: Gains
    features: Features
    fidelity: Fidelity
    transfers: Transfers
    filled_share: float
    slow_workers: Sequence[tuple[int, int]]
    slow_cards: Sequence[tuple[int, int]]
    slow_links: Sequence[tuple[int, int]]
    slow_group: int | None
    longest_stage: int | None
    courses: Mapping[str, Course]
    late_members: Mapping[tuple[int, int], LateMember] = dataclasses.field(default_factory=dict)


def reach_verdict(
    case: Case, judgements: Sequence[Judgement], *, min_speedup: float, opinion: Opinion | None = None
) -> Verdict:
    """Judge a job.

    Parameters
    ----------
    case : Case
    judgements : sequence of Judgement
        One a rule.
    min_speedup : float
        Report a cause when removing it makes the job at least this much faster.
    opinion : Opinion, optional
        The classifier's.

    Returns
    -------
    Verdict
    """
    least = max(1.0 - 1.0 / min_speedup, NO_GAIN)
    unsaid = _unsaid_causes(case, {*CAUSES, *(j.rule.id for j in judgements)})
    not_checked = [NotChecked(cause, reason) for cause, reason in unsaid.items()]
    unlooked = {name for j in judgements if j.rule.id in unsaid for name in j.rule.components}
    judgements = [j for j in judgements if j.rule.id not in unsaid]
    unlooked -= {name for j in judgements for name in j.rule.components}
    not_checked += [NotChecked(j.rule.id, _why_not(case, j)) for j in judgements if _could_not_look(case, j, least)]
    ruled = {j.rule.id for j in judgements} | unsaid.keys()
    not_checked += [NotChecked(cause, "this version has no rule for it") for cause in CAUSES if cause not in ruled]
    checked = tuple(j.rule.id for j in judgements if not _could_not_look(case, j, least))
    n_steps = len(case.components.steps)
    few = n_steps < MIN_STEPS
    told = [j for j in judgements if few and case.fidelity.ok and _tells_stage(case, j, least, opinion)]
    if (few and not told) or not case.fidelity.ok:
        reason = (
            f"only {n_steps} steps could be analysed, fewer than {MIN_STEPS}: nothing that varies can be told from chance"
            if n_steps < MIN_STEPS
            else f"the replay misses the recorded step time by {case.fidelity.replay_error:.3g} of it: no figure is to be trusted"
        )
        return Verdict("inconclusive", (), None, checked, tuple(not_checked), (reason,))
    if few:
        # What differs between stages does so in every microbatch of a step; of all that varies over steps nobody can tell.
        why = f"only {n_steps} steps could be analysed, fewer than {MIN_STEPS}"
        not_checked += [NotChecked(cause, why) for cause in checked if cause not in {j.rule.id for j in told}]
        judgements, checked = told, tuple(j.rule.id for j in told)
    said = [
        (j, sure)
        for j in judgements
        if not _unmeasured(case, j.rule) and (sure := be_sure(case, j, least, opinion)) is not None
    ]
    claims = Counter(name for j, _ in said for name in j.rule.components)
    causes = [_cause(case, j, sure, claims, opinion, least) for j, sure in said]
    explained = {name for j, _ in said for name in j.rule.components}
    # What looks like a cause that nobody can look for may be nobody's fault: who waits inside it seems slow.
    explained |= unlooked
    causes += [_unknown(case, name, least) for name in _open_components(case, explained, least) if not few]
    causes.sort(key=lambda cause: (-(cause.share or 0.0), -cause.recoverable, cause.cause))
    verdict = "straggling" if causes else "healthy"
    warnings = (f"the classifier was not asked: {opinion.unlike}",) if opinion and opinion.unlike else ()
    return Verdict(verdict, tuple(causes), _ledger(case, causes), checked, tuple(not_checked), warnings)


def _unsaid_causes(case: Case, known: set[str]) -> dict[str, str]:
    """Give the causes that nobody can look for in what another producer recorded, each with the reason."""
    found: dict[str, str] = {}
    for unsaid in case.trace.recording.unsaid if case.trace.recording else ():
        for cause in known.intersection(unsaid.causes):
            found.setdefault(cause, f"{unsaid.what}: {unsaid.reason}")
    return dict(sorted(found.items()))


def be_sure(case: Case, judgement: Judgement, least: float, opinion: Opinion | None) -> float | None:
    """Weigh rule and classifier alike, by the mean of their log odds; None where the cause is not to be said.

    A rule that fires is as sure as its status lets it be, times the chance that the gain is truly above the least one. The
    classifier's probability counts where it knows the cause, and jobs like this one: it can keep a cause from being said. Where the
    rule is silent it says nothing: it has no evidence that a person could check, and rules were right where classifiers had learned
    their generator (LESSONS.md).
    """
    rule = judgement.rule
    if not judgement.fires:
        return None
    certain = CERTAINTY[rule.status] * (1.0 - min(DOUBT_BY_FILLED * case.filled_share, MAX_DOUBT))
    if _is_one_rank_doubt(case, rule):
        certain *= ONE_RANK_CERTAINTY
    if _is_rare(case, rule):
        certain *= RARE_CERTAINTY
    if gain_of(case.gains, rule.components) < least:
        # Its gain is known up to chance only, and the classifier knows no cause that gains so little.
        return round(certain * RARE_CERTAINTY, 4) if _may_cost(case, rule, least) else None
    sure = certain * _chance_above(case.gains, "+".join(rule.components), rule.components, least)
    probability = _probability(opinion, rule.id)
    if probability is None:
        return round(sure, 4)
    return round(_weigh(sure, probability), 4) if _weigh(certain, probability) >= SAID_FROM else None


def _tells_stage(case: Case, judgement: Judgement, least: float, opinion: Opinion | None) -> bool:
    """Say whether a cause is an uneven stage, and is told by the many microbatches of a few steps."""
    return (
        judgement.rule.place == "stages"
        and int(case.components.compute_s.shape[2]) >= MIN_MICROBATCHES
        and not _unmeasured(case, judgement.rule)
        and gain_of(case.gains, judgement.rule.components) >= least
        and be_sure(case, judgement, least, opinion) is not None
    )


def _may_cost(case: Case, rule: Rule, least: float) -> bool:
    """Say whether stalls that were seen a few times may cost the job the least gain, for all that a short trace tells.

    Each step that lost at least that much counts as one event of a Poisson process, whose true rate may be higher than that seen.
    """
    gains, key = case.gains, "+".join(rule.components)
    if not SELDOM.issuperset(rule.components) or key not in gains.alone_steps_s:
        return False
    gain = gains.recoverable(key)
    n_hit = _count_hit(case, rule, least)
    return n_hit >= MIN_SELDOM_STEPS and gain >= MIN_SELDOM_GAIN and gain * _most_often(n_hit) >= least


def _count_hit(case: Case, rule: Rule, least: float) -> int:
    """Count the steps that lost at least the least gain to a rule's components."""
    gains = case.gains
    lost_s = gains.replayed_steps_s - gains.alone_steps_s["+".join(rule.components)]
    return int(np.count_nonzero(lost_s > least * gains.replayed_s))


def _most_often(n_seen: int) -> float:
    """Say how many times as often rare events may truly come as they were seen: upper limit of a Poisson mean.

    Source: the approximation of Wilson and Hilferty to Garwood's limit.
    """
    n = n_seen + 1.0
    return float(n * (1.0 - 1.0 / (9.0 * n) + SELDOM_DEVIATIONS / (3.0 * math.sqrt(n))) ** 3 / n_seen)


def _weigh(*probabilities: float) -> float:
    """Take the mean of log odds, as a probability."""
    bounded = [min(max(p, RAREST), 1.0 - RAREST) for p in probabilities]
    mean = sum(math.log(p / (1.0 - p)) for p in bounded) / len(bounded)
    return 1.0 / (1.0 + math.exp(-mean))


def _probability(opinion: Opinion | None, cause: str) -> float | None:
    """Give the classifier's probability of a cause; None where it does not know the cause, or no job like this one."""
    return None if opinion is None or opinion.unlike else opinion.probability.get(cause)


def _is_rare(case: Case, rule: Rule) -> bool:
    """Say whether a stall between steps happened too seldom to show a period, and no row says what it was."""
    if "between-steps" not in rule.components and "start-delay" not in rule.components:
        return False
    hits, said = case.features["stall.hits"].value, case.features["stall.checkpoint_share"].value
    return hits is not None and hits < MIN_PERIODIC_HITS and (said or 0.0) < 0.5


def _is_one_rank_doubt(case: Case, rule: Rule) -> bool:
    """Say whether a slow worker and an uneven stage look alike: with one dp rank, from the first step on."""
    if case.trace.n_dp > 1:
        return False
    if rule.components == ("worker",):
        return case.courses.get("worker", Course(When())).when.onset_step is None
    return rule.place == "stages"


def _could_not_look(case: Case, judgement: Judgement, least: float) -> bool:
    """Say whether a cause can be neither found nor ruled out: what its rule asks for is missing, and time may be lost to it."""
    if _unmeasured(case, judgement.rule):
        return True
    return judgement.fires is None and gain_of(case.gains, judgement.rule.components) >= least


def _why_not(case: Case, judgement: Judgement) -> str:
    """Say what could not be measured."""
    reasons = [case.features[f"gain.{name}"].reason for name in judgement.rule.components]
    return "; ".join(dict.fromkeys([reason for reason in reasons if reason] + list(judgement.missing)))


def _unmeasured(case: Case, rule: Rule) -> bool:
    """Say whether nobody can tell what a rule's components cost."""
    return any(case.features[f"gain.{name}"].value is None for name in rule.components)


def gain_of(gains: Gains, components: Sequence[str]) -> float:
    """Part of the step that comes back when components are removed alone, or after all others: the larger one."""
    key = "+".join(components)
    return max(gains.recoverable(key), gains.recoverable_last(key))


def _cause(
    case: Case, judgement: Judgement, sure: float, claims: Mapping[str, int], opinion: Opinion | None, least: float
) -> Cause:
    """Report one cause; `claims` says how many reported rules share each component."""
    rule, gains = judgement.rule, case.gains
    key = "+".join(rule.components)
    where = _where(case, rule)
    return Cause(
        cause=rule.id,
        title=rule.title,
        confidence=sure,
        share=_share(case, rule.components, claims),
        recoverable=gains.recoverable(key),
        where=where,
        when=_when(case, rule),
        evidence=tuple(_evidence(case, judgement, opinion, least)),
        fixes=(),
        fingerprint=name_fault(case.trace.job, rule.id, where),
        severity=rule.severity,
        who=rule.who,
    )


def _evidence(case: Case, judgement: Judgement, opinion: Opinion | None, least: float) -> Iterator[EvidenceItem]:
    """List what speaks for a cause, and what makes it less sure: conditions, doubts, change points, the classifier."""
    rule = judgement.rule
    for condition, text in judgement.held:
        value = case.features[condition.feature].value
        yield EvidenceItem("rule", f"{rule.id}/{condition.feature}", text, {condition.feature: value})
    if rule.components == ("worker",) and rule.place == "workers":
        for at, worker in list(zip(_worth_naming(case), _where(case, rule).workers, strict=True))[:MAX_MEMBERS_SAID]:
            if at in case.late_members:
                yield say_member(f"{rule.id}/member", worker, case.late_members[at])
    if _is_one_rank_doubt(case, rule):
        text = "there is one dp rank: "
        text += (
            "only the optimizer's time tells the worker from an uneven stage"
            if rule.components == ("worker",)
            else "a worker that was slow from the first step would look the same"
        )
        yield EvidenceItem("rule", f"{rule.id}/one-dp-rank", text, {"dp_ranks": 1.0})
    if _is_rare(case, rule):
        hits = case.features["stall.hits"].value
        text = f"it happened {hits:.0f} times only, too seldom to show a period: anything that stops all workers looks like it"
        yield EvidenceItem("rule", f"{rule.id}/rare", text, {"stall.hits": hits})
    if gain_of(case.gains, rule.components) < least:
        n_steps = len(case.components.steps)
        most = case.gains.recoverable("+".join(rule.components)) * _most_often(_count_hit(case, rule, least))
        text = f"it cost single steps much, but {n_steps} steps are too few to say what it costs the job: up to {100 * most:.2g}%"
        yield EvidenceItem("rule", f"{rule.id}/seldom", text, {"gain.most": most})
    yield from _told_chunk(case, rule)
    yield from _told_stalls(case, rule)
    course = case.courses.get("+".join(rule.components))
    for change in course.changes if course else ():
        text = f"from step {change.step} on it is on another level, which chance does with a probability of {change.chance:.2g}"
        values: dict[str, float | None] = {"before": change.before, "after": change.after, "chance": change.chance}
        yield EvidenceItem("change-point", f"{rule.id}/step-{change.step}", text, values)
    probability = _probability(opinion, rule.id)
    if opinion is None or probability is None or gain_of(case.gains, rule.components) < least:
        return
    strongest = opinion.contributions(rule.id)[:1]
    text = f"a classifier trained on generated jobs gives it a probability of {probability:.2g}"
    if probability < DISAGREES:
        text = f"the rule holds, but {text}: they disagree"
    seen: dict[str, float | None] = {"probability": probability}
    seen.update((c.feature, c.value) for c in strongest)
    yield EvidenceItem("classifier", f"{rule.id}/probability", text, seen)


def _told_chunk(case: Case, rule: Rule) -> Iterator[EvidenceItem]:
    """Tell which model chunk makes a stage long, where it has several and one stands out."""
    stage, n_stages = case.longest_stage, case.trace.n_stages
    if rule.place != "stages" or stage is None:
        return
    typical_s = case.components.typical_s[:, stage::n_stages].sum(axis=0)
    chunk = int(typical_s.argmax())
    others_s = float(np.median(np.delete(typical_s, chunk))) if len(typical_s) > 1 else 0.0
    if others_s > 0 and typical_s[chunk] > LONG_CHUNK_RATIO * others_s:
        ratio, label = float(typical_s[chunk]) / others_s, int(case.trace.stage_labels[stage])
        text = f"chunk {chunk} of stage {label} computes {ratio:.3g} times as long as the stage's other chunks"
        yield EvidenceItem(
            "rule", f"{rule.id}/chunk", text, {"chunk": float(chunk), "stage": float(label), "ratio": ratio}
        )


def _told_stalls(case: Case, rule: Rule) -> Iterator[EvidenceItem]:
    """Tell stalls one by one where there are few: which compute, for how long, and what the step lost to it."""
    key = "+".join(rule.components)
    if not SELDOM.issuperset(rule.components) or key not in case.gains.alone_steps_s:
        return
    lost_s = case.gains.replayed_steps_s - case.gains.alone_steps_s[key]
    components, trace = case.components, case.trace
    seconds = components.stalls.seconds_of(StallKind.COLLECTION)
    found = np.argwhere(seconds > TOLD_SHARE * seconds.max(initial=0.0))
    if len(found) > MAX_TOLD:
        return
    for direction, virtual, microbatch, at, dp in sorted(
        found.tolist(), key=lambda place: (int(components.steps[place[3]]), place)
    ):
        worker = _worker(trace, dp, virtual % trace.n_stages)
        step, pause_s, lost = (
            int(components.steps[at]),
            float(seconds[direction, virtual, microbatch, at, dp]),
            float(lost_s[at]),
        )
        cost = f"and the step {1e3 * lost:.0f} ms" if lost >= 1e-3 else "and the step nothing: others waited anyway"
        text = (
            f"step {step}, dp {worker.dp}, stage {worker.pp}: {'backward' if direction else 'forward'} of microbatch {microbatch} "
            f"took {1e3 * pause_s:.0f} ms longer, {cost}"
        )
        values: dict[str, float | None] = {
            "step": float(step),
            "dp": float(worker.dp),
            "stage": float(worker.pp),
            "chunk": float(virtual // trace.n_stages),
            "microbatch": float(microbatch),
            "pause_s": pause_s,
            "step_lost_s": max(lost, 0.0),
        }
        yield EvidenceItem("rule", f"{rule.id}/stall", text, values)


def _chance_above(gains: Gains, key: str, components: Sequence[str], least: float) -> float:
    """Say how probable it is that the gain is truly above the least one, from its spread over steps."""
    gain = gain_of(gains, components)
    by_step = (gains.replayed_steps_s - gains.alone_steps_s.get(key, gains.replayed_steps_s)) / gains.replayed_s
    error = math.hypot(float(np.std(by_step)) / math.sqrt(len(by_step)), GAIN_ERROR)
    return 0.5 * (1.0 + math.erf((gain - least) / (error * math.sqrt(2.0))))


def _share(case: Case, components: Sequence[str], claims: Mapping[str, int] | None = None) -> float | None:
    """Add the ledger shares of a cause's components; one that several causes claim is divided among them."""
    share = case.gains.share
    return sum(share.get(name, 0.0) / (claims or {}).get(name, 1) for name in components) if share else None


def _open_components(case: Case, explained: set[str], least: float) -> list[str]:
    """List the components that no rule explains and that cost too much for ordinary variation, worst first."""
    gains = {
        name: case.gains.recoverable(name)
        for name in COMPONENTS
        if name not in explained
        and case.features[f"gain.{name}"].value is not None
        and not (name == "step" and _is_evaluation(case.features))
        and not (name == "start-delay" and _is_beginning(case.features))
        and not (name == "transfer" and "worker" in explained and _is_true(case.features, "network.by_slow_worker"))
        and not (name == "transfer" and "queue" in explained)  # what computes wait for is slow by the same contention
    }
    found = [name for name, gain in gains.items() if gain >= max(UNKNOWN_SHARE, least)]
    return sorted(found, key=lambda name: -gains[name])[:1]


def _is_evaluation(features: Features) -> bool:
    """Say whether the slow steps are evaluations: forwards only, on all workers, at regular intervals. That is no loss."""
    forward, regular = features.get("step.forward_only"), features.get("step.regularity")
    if forward is None or regular is None or forward.value is None or regular.value is None:
        return False
    return forward.value >= EVALUATION_FORWARD_SHARE and regular.value >= EVALUATION_REGULARITY


def _is_beginning(features: Features) -> bool:
    """Say whether workers were late once only, in the first step recorded: what begins there costs the job nothing later on."""
    hits, regular = features.get("stall.hits"), features.get("stall.regularity")
    return hits is not None and hits.value == 1.0 and regular is not None and regular.value is None


def _is_true(features: Features, name: str) -> bool:
    """Say whether a feature that is 0 or 1 is 1."""
    found = features.get(name)
    return found is not None and found.value == 1.0


def _unknown(case: Case, component: str, least: float) -> Cause:
    """Report lost time that no rule explains."""
    gains = case.gains
    where = Where(workers=_blamed(case, (component,)))
    text = f"time is lost to {COMPONENTS[component]}, and no rule says why"
    gain = gains.recoverable(component)
    return Cause(
        cause="unknown",
        title=f"unexplained: {COMPONENTS[component]}",
        confidence=round(UNKNOWN_CERTAINTY * _chance_above(gains, component, (component,), least), 4),
        share=_share(case, (component,)),
        recoverable=gain,
        where=where,
        when=case.courses[component].when if component in case.courses else When(),
        evidence=(EvidenceItem("rule", f"unknown/gain.{component}", text, {f"gain.{component}": gain}),),
        fixes=(),
        fingerprint=name_fault(case.trace.job, f"unknown/{component}", where),
    )


def _ledger(case: Case, causes: Sequence[Cause]) -> Ledger | None:
    """Share the lost time out among causes, and among components; both sum to 1 with what is unexplained."""
    if not causes:
        return None
    by_cause = {cause.cause: cause.share or 0.0 for cause in causes}
    components = dict(case.gains.share)
    return Ledger(by_cause, components, 1.0 - sum(by_cause.values()), 1.0 - sum(components.values()))


def _where(case: Case, rule: Rule) -> Where:
    """Name the culprits of a cause, worst first."""
    if rule.place == "stages" and case.longest_stage is not None:
        return Where(stages=(int(case.trace.stage_labels[case.longest_stage]),))
    if rule.place != "workers":
        return Where()
    if rule.components == ("worker",):
        named = _worth_naming(case)
        workers = tuple(
            name_member(_worker(case.trace, *at), case.trace.members, at, case.late_members.get(at)) for at in named
        )
        suspects = (suspect_hosts(worker, case.trace.members, at) for worker, at in zip(workers, named, strict=True))
        hosts = tuple(dict.fromkeys(itertools.chain.from_iterable(suspects)))
        return Where(workers=workers, hosts=hosts)
    if rule.components == ("transfer",) and (case.slow_cards or case.slow_links):
        last = case.trace.n_stages
        links = [(_worker(case.trace, dp, p), _worker(case.trace, dp, (p + 1) % last)) for dp, p in case.slow_links]
        return Where(workers=tuple(_worker(case.trace, dp, p) for dp, p in case.slow_cards), links=tuple(links))
    if rule.components == ("transfer",) and case.slow_group is not None:
        return Where(stages=(int(case.trace.stage_labels[case.slow_group]),))
    return Where(workers=_blamed(case, rule.components))


def _worth_naming(case: Case) -> list[tuple[int, int]]:
    """List slow workers, worst first, without those that are hardly slow beside it."""
    lost = case.gains.blame_s["worker"]
    if not case.slow_workers:
        return []
    top = max(float(lost[worker]) for worker in case.slow_workers)
    return [worker for worker in case.slow_workers if lost[worker] >= NAMED_SHARE * top]


def _blamed(case: Case, components: Sequence[str]) -> tuple[Worker, ...]:
    """List the workers that most of the components' seconds lie on, worst first.

    None where they are spread over the job, or where most of what is lost lies on nobody: who holds up a gap between steps that
    no row tells of is not known, whoever else is a little late.
    """
    by_component = [case.gains.blame_s[name] for name in components if name in case.gains.blame_s]
    lost: Seconds = np.sum(by_component, axis=0) if by_component else np.zeros((1, 1))
    if lost.max(initial=0.0) <= 0 or lost.sum() < NAMED_SHARE * gain_of(case.gains, components) * case.gains.recorded_s:
        return ()
    marked = lost >= SPREAD_SHARE * lost.max()
    possible = lost.shape[0] if tuple(components) == ("input-delay",) else lost.size  # only the first stage reads input
    if marked.sum() > max(1.0, SPREAD_SHARE * possible):
        return ()
    order = np.argsort(-np.where(marked, lost, -np.inf), axis=None, kind="stable")[: int(marked.sum())]
    n_stages = lost.shape[1]
    return tuple(_worker(case.trace, int(i) // n_stages, int(i) % n_stages) for i in order)


def _worker(trace: Trace, dp: int, stage: int) -> Worker:
    """Name the worker at two indices by the labels of the file."""
    host = None if trace.hosts is None else trace.hosts[dp * trace.n_stages + stage] or None
    return Worker(int(trace.dp_labels[dp]), int(trace.stage_labels[stage]), int(trace.ranks[dp, stage]), host)


def _when(case: Case, rule: Rule) -> When:
    """Say since when a cause is there, and how often."""
    if rule.place == "stages":
        return When("constant")
    period = case.features.get("stall.period_steps")
    regular = case.features.get("stall.regularity")
    is_stall = "start-delay" in rule.components or "between-steps" in rule.components
    known = period is not None and regular is not None and (period.value or 0.0) > 1 and not _is_rare(case, rule)
    if is_stall and known and period and regular and (regular.value or 0.0) >= SPREAD_SHARE:
        return When("periodic", period_steps=period.value)
    course = case.courses.get("+".join(rule.components))
    if course is None and SELDOM.issuperset(rule.components):
        return When("sporadic")
    return course.when if course else When()


def name_fault(job: Job, cause: str, where: Where) -> str:
    """Name a fault so that other runs of the same job family with it in the same place get the same name."""
    family = [job.framework, job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size]
    links = [((a.dp, a.pp), (b.dp, b.pp)) for a, b in where.links[:1]]
    place = [
        [(w.dp, w.pp) for w in where.workers[:1]],
        list(where.stages),
        list(where.hosts[:1]),
        *([links] if links else []),
    ]
    return hashlib.sha256(json.dumps([family, cause, place]).encode()).hexdigest()[:16]
