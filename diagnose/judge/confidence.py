"""How sure a cause is: rule and classifier weighed against each other, and what makes either less certain."""

import math

import numpy as np

from diagnose.judge.classifier import Prediction
from diagnose.judge.rule import Judgement, Rule
from diagnose.judge.worth import chance_above, gain_of
from diagnose.model.analysis import Analysis
from diagnose.model.cause import When
from diagnose.model.components import Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.whatif import WhatIf

#: Replay error above which nothing is to be trusted (arXiv 2505.05713 threw away jobs above 5%).
MAX_REPLAY_ERROR = 0.05
#: Filled-in operations make gains too small and hide waits: each percent takes two from the certainty, up to half of it.
DOUBT_BY_FILLED = 2.0
MAX_DOUBT = 0.5
#: How sure a rule of each status can be at most.
CERTAINTY = {"stable": 0.97, "experimental": 0.85}
#: With one dp rank an uneven stage cannot be told from a slow worker; the study has 20 of the one for each of the other, but the
#: slow workers are the severe ones.
ONE_RANK_CERTAINTY = 0.8
#: A cause is reported where rule and classifier together are this sure, whatever the size of its gain.
REPORTED_FROM = 0.5
#: Nobody is surer than this, or less sure than its complement.
RAREST = 0.005
#: Twice always looks periodic; with fewer hits, and no rows, a stall between steps is a guess by elimination.
MIN_PERIODIC_HITS = 3
RARE_CERTAINTY = 0.75
#: The true number of rare events is below the limit with this probability; fewer than so many, or a gain below this part of the
#: step, are nothing to speak of.
SELDOM_CONFIDENCE = 0.975
MIN_SELDOM_STEPS = 2
MIN_SELDOM_GAIN = 0.005


def check_fidelity(what_if: WhatIf, gains: Gains) -> Fidelity:
    """Say how well the replay gives the recorded step time, and whether that is enough to judge."""
    error = abs(gains.replayed_s / gains.recorded_s - 1.0)
    return Fidelity(what_if.discrepancy, error, error <= MAX_REPLAY_ERROR)


def be_sure(analysis: Analysis, judgement: Judgement, least: float, prediction: Prediction | None) -> float | None:
    """Weigh rule and classifier alike, by the mean of their log odds; None where the cause is not to be reported.

    A rule that fires is as sure as its status lets it be, times the chance that the gain is truly above the least one. The
    classifier's probability counts where it knows the cause, and jobs like this one: it can keep a cause from being reported. Where
    the rule is silent the classifier is not asked: it has no evidence that a person could check, and rules were right where
    classifiers had learned their generator.
    """
    rule = judgement.rule
    if not judgement.fires:
        return None
    certain = CERTAINTY[rule.status] * (1.0 - min(DOUBT_BY_FILLED * analysis.filled_share, MAX_DOUBT))
    if has_one_rank_doubt(analysis, rule):
        certain *= ONE_RANK_CERTAINTY
    if is_rare(analysis, rule):
        certain *= RARE_CERTAINTY
    if gain_of(analysis.gains, rule.components) < least:
        # Its gain is known up to chance only, and the classifier knows no cause that gains so little.
        return round(certain * RARE_CERTAINTY, 4) if _may_cost(analysis, rule, least) else None
    sure = certain * chance_above(analysis.gains, rule.components, least)
    probability = probability_of(prediction, rule.id)
    if probability is None:
        return round(sure, 4)
    return round(_weigh(sure, probability), 4) if _weigh(certain, probability) >= REPORTED_FROM else None


def probability_of(prediction: Prediction | None, cause: str) -> float | None:
    """Give the classifier's probability of a cause; None where it does not know the cause, or no job like this one."""
    return None if prediction is None or prediction.unlike else prediction.probability.get(cause)


def is_rare(analysis: Analysis, rule: Rule) -> bool:
    """Say whether a stall between steps happened too seldom to show a period, and no row says what it was."""
    if not analysis.gains.traits_of(rule.components).stops_all:
        return False
    hits, recorded = analysis.features["stall.hits"].value, analysis.features["stall.checkpoint_share"].value
    return hits is not None and hits < MIN_PERIODIC_HITS and (recorded or 0.0) < 0.5


def has_one_rank_doubt(analysis: Analysis, rule: Rule) -> bool:
    """Say whether a slow worker and an uneven stage look alike: with one dp rank, from the first step on."""
    if analysis.trace.n_dp > 1:
        return False
    if analysis.gains.traits_of(rule.components).whom == "workers":
        return analysis.courses.get("+".join(rule.components), Course(When())).when.onset_step is None
    return rule.place == "stages"


def most_it_may_cost(analysis: Analysis, rule: Rule, least: float) -> float:
    """Give the largest part of the step that stalls seen a few times may cost, for all that a short trace tells.

    Each step that lost at least the least gain counts as one event of a Poisson process, whose true rate may be higher than seen.
    """
    return analysis.gains.recoverable("+".join(rule.components)) * how_often_at_most(_count_hit(analysis, rule, least))


def _may_cost(analysis: Analysis, rule: Rule, least: float) -> bool:
    """Say whether stalls that were seen a few times may cost the job the least gain."""
    gains, key = analysis.gains, "+".join(rule.components)
    if not gains.traits_of(rule.components).seldom or key not in gains.alone_steps_s:
        return False
    return (
        _count_hit(analysis, rule, least) >= MIN_SELDOM_STEPS
        and gains.recoverable(key) >= MIN_SELDOM_GAIN
        and most_it_may_cost(analysis, rule, least) >= least
    )


def _count_hit(analysis: Analysis, rule: Rule, least: float) -> int:
    """Count the steps that lost at least the least gain to a rule's components."""
    gains = analysis.gains
    lost_s = gains.replayed_steps_s - gains.alone_steps_s["+".join(rule.components)]
    return int(np.count_nonzero(lost_s > least * gains.replayed_s))


def how_often_at_most(n_seen: int) -> float:
    """Say how many times as often rare events may truly come as they were seen, at least one: upper limit of a Poisson mean.

    Source: Garwood, Fiducial limits for the Poisson distribution, Biometrika 28 (1936).
    """
    from scipy.special import gammaincinv

    return float(gammaincinv(n_seen + 1, SELDOM_CONFIDENCE) / n_seen)


def _weigh(*probabilities: float) -> float:
    """Take the mean of log odds, as a probability."""
    bounded = [min(max(p, RAREST), 1.0 - RAREST) for p in probabilities]
    mean = sum(math.log(p / (1.0 - p)) for p in bounded) / len(bounded)
    return 1.0 / (1.0 + math.exp(-mean))
