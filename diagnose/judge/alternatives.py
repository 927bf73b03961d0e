"""What else may explain the same seconds as a cause: the confidence is split, and both are one finding.

Enters: a rule and features; causes as found. Leaves: causes with their alternatives.
"""

from collections.abc import Iterable

import msgspec.structs

from diagnose.judge.rule import Judgement, Rule
from diagnose.model.cause import Alternative, Cause
from diagnose.model.feature import Features

#: What is less probable than this is no alternative worth a sentence: one in four, as odds of three to one end most doubts.
TOLD_FROM = 0.25
#: A cause explains the seconds of another where it has at least this part of them.
SAME_SECONDS_SHARE = 0.5
#: Features of this family are facts of the job, no measures.
JOB = "job."
#: What tells a cause that nobody knows.
UNKNOWN_TELLS = "what else runs on these hosts in those steps, or a profile of the process"


def list_impossible(judgements: Iterable[Judgement]) -> frozenset[str]:
    """List the causes that the job cannot have, whatever its times: it runs without CUDA, or saves nothing."""
    return frozenset(
        judgement.rule.id
        for judgement in judgements
        if any(condition.feature.startswith(JOB) for condition, _ in judgement.vetoes)
    )


def split_confidence(
    rule: Rule, features: Features, sure: float, impossible: frozenset[str] = frozenset()
) -> tuple[float, tuple[Alternative, ...]]:
    """Split how sure a cause is with what else explains the same seconds, as probably as the rule's features say.

    What looks like a cause that is impossible has one that nobody knows. Several of one cause are one. What is too improbable to be
    told makes the cause less sure all the same.
    """
    probable = [(other, min(_read(features, other.feature), 1.0)) for other in rule.alternatives]
    whole = max(sum(probability for _, probability in probable), 1.0)
    found: dict[str, Alternative] = {}
    for other, probability in sorted(probable, key=lambda one: -one[1]):  # stable
        if probability < TOLD_FROM:
            break
        cause, tells = ("unknown", UNKNOWN_TELLS) if other.cause in impossible else (other.cause, other.tells_apart)
        one = found.setdefault(cause, Alternative(cause, 0.0, tells))
        found[cause] = msgspec.structs.replace(one, confidence=one.confidence + sure * probability / whole)
    told_of = sorted(found.values(), key=lambda other: -other.confidence)
    left = 1.0 - sum(probability for _, probability in probable) / whole
    return round(sure * left, 4), tuple(
        msgspec.structs.replace(other, confidence=round(other.confidence, 4)) for other in told_of
    )


def merge_alternatives(causes: list[Cause]) -> list[Cause]:
    """Make one finding of causes that are told as alternatives of each other: the surer one stays, in the order given.

    What is told of one finding is never more than certain. Two that are surer than that together are both said, but where one is
    rather the other.
    """
    kept: list[Cause] = []
    for cause in sorted(causes, key=lambda one: -one.confidence):  # stable
        rival = next((one for one in kept if _compete(one, cause) and _explains(one, cause)), None)
        left = 1.0 - (rival.confidence if rival else 0.0)
        if rival is None or (cause.confidence > left and not _is_rather(cause, rival.cause)):
            kept.append(cause)
        elif all(other.cause != cause.cause for other in rival.alternatives) and left >= TOLD_FROM:
            tells_apart = next(other.tells_apart for other in cause.alternatives if other.cause == rival.cause)
            one = Alternative(cause.cause, round(min(cause.confidence, left), 4), tells_apart)
            kept[kept.index(rival)] = msgspec.structs.replace(rival, alternatives=(*rival.alternatives, one))
    order = [cause.cause for cause in causes]
    return sorted(kept, key=lambda one: order.index(one.cause))


def _is_rather(cause: Cause, other: str) -> bool:
    """Say whether what looks like a cause is more probably another one."""
    return any(one.cause == other and one.confidence > cause.confidence for one in cause.alternatives)


def _compete(one: Cause, other: Cause) -> bool:
    """Say whether one of two causes is told as an alternative of the other."""
    return any(a.cause == other.cause for a in one.alternatives) or any(
        a.cause == one.cause for a in other.alternatives
    )


def _explains(one: Cause, other: Cause) -> bool:
    """Say whether a cause gives back enough to be what another gives back: a small one beside it has seconds of its own.

    Alone or by its share of all lost time: beside a second fault mending one alone may give little. A long stage and a slow worker
    of another stage are two.
    """
    stages, of_workers = (
        {*one.where.stages, *other.where.stages},
        {w.pp for w in (*one.where.workers, *other.where.workers)},
    )
    if stages and of_workers and not stages & of_workers:
        return False
    shares = (one.share or 0.0) >= SAME_SECONDS_SHARE * (other.share or 0.0)
    return shares and one.recoverable >= SAME_SECONDS_SHARE * other.recoverable


def _read(features: Features, name: str) -> float:
    """Read a probability; what could not be measured is none."""
    feature = features.get(name)
    return 0.0 if feature is None or feature.value is None else feature.value
