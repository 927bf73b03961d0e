"""How sure a cause is: rule and classifier weighed against each other, and what makes either less certain."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from diagnose.judge.classifier import Prediction
from diagnose.judge.rule import Judgement, Rule
from diagnose.judge.worth import Benefit, least_gain, measure_alone, most_gain
from diagnose.model.analysis import Analysis
from diagnose.model.cause import When
from diagnose.model.components import Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.whatif import WhatIf
from diagnose.numerics.chance import TOSS_UP
from diagnose.numerics.period import MIN_PERIODIC_HITS

#: Replay error above which nothing is to be trusted (arXiv 2505.05713 threw away jobs above 5%).
MAX_REPLAY_ERROR = 0.05
#: Filled-in operations make gains too small and hide waits: each percent takes two from the certainty, up to half of it.
DOUBT_BY_FILLED = 2.0
MAX_DOUBT = 0.5
#: How sure a rule of each status can be at most.
CERTAINTY = {"stable": 0.97, "experimental": 0.85}
#: Nobody is surer than this, or less sure than its complement.
RAREST = 0.005
#: Simulated steps this much longer than the recorded ones: operations overlap that S puts one after the other. As much as the
#: replay may be off. Where computes of one worker run beside each other for as large a part of their time no worker ran them so.
MAX_OVERLAP = 0.05
#: A rule that is silent speaks against its cause with odds of three to one, and a classifier that knows made jobs alone never makes
#: more of it than a toss-up.
SILENT_CERTAINTY = 0.25
#: Where the rule is silent a cause is said only where the classifier is this sure, and so much of the step comes back.
CLASSIFIER_ALONE_FROM = 0.9
ALONE_GAIN = 0.05
#: On a job unlike all of training no rule was tried out, or where much runs beside what S takes it to wait for: it is as sure as an
#: experimental one.
UNLIKE_CERTAINTY = CERTAINTY["experimental"]
#: A cause whose gain is truly just below the least one is there all the same: what counts is that it gives back this part of it.
THERE_SHARE = 0.5
#: Error of a gain besides its spread over steps: what the taking apart itself gets wrong (share of the step).
GAIN_ERROR = 0.005
#: Microbatches and workers of one step see the same fault about half as independently as steps do.
ALIKE_IN_STEP = 0.5


def check_fidelity(what_if: WhatIf, gains: Gains, beside: Callable[[], float]) -> Fidelity:
    """Say how well the replay gives the recorded step time, and whether that is enough to judge.

    `beside` gives the part of the time of computes in which one runs beside another, and is asked where it matters: what computes
    overlap with besides, as collectives, the replay has as it was.
    """
    error = abs(gains.replayed_s / gains.recorded_s - 1.0)
    impossible = overlaps_too_much(what_if.discrepancy) and beside() > MAX_OVERLAP
    return Fidelity(what_if.discrepancy, error, error <= MAX_REPLAY_ERROR and not impossible)


def overlaps_too_much(discrepancy: float) -> bool:
    """Say whether simulated steps are longer than recorded ones by more than the replay may be off."""
    return 1.0 / (1.0 + discrepancy) - 1.0 > MAX_OVERLAP


def runs_beside(analysis: Analysis) -> bool:
    """Say whether much runs beside what S takes it to wait for."""
    return overlaps_too_much(analysis.fidelity.discrepancy)


def believe(analysis: Analysis, judgement: Judgement, prediction: Prediction | None) -> float | None:
    """Say how sure a judgement is at most that its cause is there, whatever that costs; None where it is not to be reported.

    A rule that fires is as sure as its status lets it be. One that is silent counts against its cause, and a veto forbids it. Where
    the rule is silent the classifier must be sure, and much must come back.
    """
    probability = probability_of(analysis, prediction, judgement.rule)
    if judgement.is_vetoed:
        return None
    if not judgement.fires:
        sure = probability is not None and probability >= CLASSIFIER_ALONE_FROM
        return SILENT_CERTAINTY if sure and _gives_much(analysis, judgement.rule) else None
    return _trust_rule(analysis, judgement.rule, prediction)


def be_sure(
    analysis: Analysis, rule: Rule, certain: float, benefit: Benefit, least: float, prediction: Prediction | None
) -> float:
    """Weigh rule and classifier alike, by the mean of their log odds; `certain` is as sure as the judgement is at most.

    It counts times the chance that the gain is truly above the least one; and all of it for as much as so few looks are worth, and
    as the clock tells. The classifier's probability counts where it knows the cause, and jobs like this one.
    """
    sure = certain * chance_above(benefit, least)
    probability = probability_of(analysis, prediction, rule)
    weighed = sure if probability is None else _weigh(sure, probability)
    if certain <= SILENT_CERTAINTY:
        weighed = min(weighed, TOSS_UP)
    told = 1.0 - min(analysis.trace.coarse_share, MAX_DOUBT)
    return round(weighed * told * trust_looks(analysis, rule.place), 4)


def chance_above(benefit: Benefit, least: float) -> float:
    """Say how probable it is that the gain is truly above the least one, from its spread over steps.

    The mean of n steps has an error of Student's t with n - 1 degrees of freedom; beside the constant error of the taking apart, of
    as many as Welch and Satterthwaite give their sum.

    Source: Welch, The generalization of Student's problem, Biometrika 34 (1947).
    """
    n_steps = len(benefit.by_step)
    of_mean = float(np.var(benefit.by_step, ddof=1)) / n_steps if n_steps > 1 else 0.0
    variance = of_mean + GAIN_ERROR**2
    freedom = (n_steps - 1) * (variance / of_mean) ** 2 if of_mean > 0 else math.inf
    return student_below((benefit.gain - least) / math.sqrt(variance), freedom)


def student_below(t: float, freedom: float) -> float:
    """Say how probable it is that Student's t is below a value, to 0.003 from two degrees of freedom on.

    Source: Wallace, Bounds on normal approximations to Student's and the chi-square distributions, Annals of Mathematical
    Statistics 30 (1959).
    """
    z = abs(t)
    if math.isfinite(freedom):
        z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0)
    return 0.5 * (1.0 + math.erf(math.copysign(z, t) / math.sqrt(2.0)))


def trust_looks(analysis: Analysis, place: str) -> float:
    """Say how far what was seen in all steps can be trusted to be so: the more steps, microbatches and workers the more.

    That is the mean of what is known of a share after it was 1 in n looks (Jeffreys' prior). Looks within a step are alike: so many
    count as n / (1 + (n - 1) x `ALIKE_IN_STEP`), the design effect of a sample of clusters. Of a stage, each dp rank and microbatch
    is a look; of what is spread over the job, each worker and microbatch; of a worker, each microbatch.

    Source: Kish, Survey sampling (1965), section 5.4.
    """
    *_, n_microbatches, n_steps, n_dp = analysis.breakdown.compute_s.shape
    places = {"stages": n_dp, "spread": n_dp * analysis.trace.n_stages}.get(place, 1)
    in_step = n_microbatches * places
    looks = n_steps * in_step / (1.0 + (in_step - 1.0) * ALIKE_IN_STEP)
    return float((looks + 0.5) / (looks + 1.0))


def _gives_much(analysis: Analysis, rule: Rule) -> bool:
    """Say whether more than ordinary variation comes back without a rule's components."""
    return measure_alone(analysis.gains, rule.components).gain >= ALONE_GAIN


def _trust_rule(analysis: Analysis, rule: Rule, prediction: Prediction | None) -> float:
    """Say how sure a rule that fires can be at most on this job."""
    certain = CERTAINTY[rule.status] * (1.0 - min(DOUBT_BY_FILLED * analysis.filled_share, MAX_DOUBT))
    unlike = prediction is not None and bool(prediction.unlike)
    if unlike or runs_beside(analysis):
        certain *= UNLIKE_CERTAINTY
    return certain


def probability_of(analysis: Analysis, prediction: Prediction | None, rule: Rule) -> float | None:
    """Give the classifier's probability of a cause.

    None where it does not know the cause, no job like this one, or, as training called it absent, no cause that gains so little.
    """
    if prediction is None or prediction.unlike or most_gain(analysis.gains, rule.components) < least_gain(MIN_SPEEDUP):
        return None
    return prediction.probability.get(rule.id)


def is_rare(analysis: Analysis, components: Sequence[str]) -> bool:
    """Say whether a stall between steps happened too seldom to show a period, and no row says what it was."""
    if not analysis.gains.traits_of(components).stops_all:
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


def _weigh(*probabilities: float) -> float:
    """Take the mean of log odds, as a probability."""
    bounded = [min(max(p, RAREST), 1.0 - RAREST) for p in probabilities]
    mean = sum(math.log(p / (1.0 - p)) for p in bounded) / len(bounded)
    return 1.0 / (1.0 + math.exp(-mean))
