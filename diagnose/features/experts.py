"""Whether experts are given uneven shares of the tokens: computes long in both directions, on their own stage alone."""

import numpy as np

from diagnose.features.stages import measure_excess
from diagnose.features.workers import is_slow, slow_steps, slow_workers
from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import Op
from diagnose.model.trace import Bools, Trace
from diagnose.numerics.robust import nan_median, robust_deviation

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "expert.explained": "part of how computes vary that the other direction of the same microbatch and stage predicts, where it "
    "was not fitted and beyond other stages and neighbours in time; 0 nothing, 1 all; misleads when a stage pauses both ways",
    "expert.alone_share": "part of what forward and backward of a microbatch share that other stages do not; 0 documents, "
    "1 experts; misleads when they share nothing",
    "expert.or_sequences": "probability that what looks like documents of different length are uneven experts; 0 where several "
    "stages, or columns, tell; misleads with one stage and no columns: then it is no more than how often each happens",
    "expert.or_worker": "probability that what looks like a slow worker are experts that stay hot; 0 without experts, and where "
    "its optimizer is slow, too; misleads as it is no more than how often each happens",
    "expert.or_stage": "probability that what looks like a long stage are experts that stay hot, whose ranks wait for each other "
    "inside the compute; 0 without experts, where their tokens are known, and where one direction is long; misleads as it is no "
    "more than how often each happens",
    "expert.tokens_fit": "part of how computes vary that the tokens of their experts predict, where they were not fitted; 1 all; "
    "misleads when they are recorded of other layers",
    "expert.moved": "part of how the computes of ranks vary from step to step that others of the stage make up for; 1 work goes "
    "from rank to rank, 0 each is slow by itself; misleads when workers are slow in turns",
    "expert.alike": "part of it that the ranks of one expert-parallel group share; 1 they wait for each other inside the compute; "
    "misleads when the group is no run of data-parallel ranks",
    "expert.ep_size": "ranks that share the experts, by the metadata; 1 none do, and no rank can have more tokens than others; "
    "misleads when the metadata are of another run",
}
#: From this part on columns settle it.
TOKENS_SETTLE = 0.5
#: What nothing in the times tells: one in four where nobody says that there are experts, else half and half.
UNKNOWN_CHANCE, SHARED_CHANCE = 0.25, 0.5
#: A worker this many robust deviations of all workers' paces behind is slow by itself.
OUTLIER_DEVIATIONS = 4.0
#: More workers than this part, or several on this part of the stages, are not slow one by one where experts are uneven.
FEW_SHARE = 0.25
MANY_STAGES_SHARE = 0.5
#: The optimizer of a slow machine is behind by at least this part of what its computes are behind by (log), and so many times.
OPTIMIZER_SHARE, SLOW_OPTIMIZER = 0.5, 1.1
#: ... and by so many standard errors: those of a few milliseconds vary on a busy host.
CHANCE_DEVIATIONS = 4.0
#: Backwards are long for experts by this much for each 1 of forwards (production jobs: 0.7 to 1.4).
SLOPES = (0.5, 2.0)
#: Durations of 0 are recorded.
TINY_RATIO = 1e-9


def measure_experts(breakdown: Breakdown, trace: Trace, tokens_fit: Feature) -> Features:
    """Measure how uneven experts are; `tokens_fit` says how well documents predict the times."""
    experts, ep_size = breakdown.experts, trace.job.ep_size
    few = "one stage, one microbatch or too few steps: nothing parts experts from documents"
    uneven = "no compute is long in both directions on its stage alone, or there is one dp rank"
    return {
        "expert.explained": _known(experts.explained, few),
        "expert.alone_share": _known(experts.alone_share, few),
        "expert.or_sequences": Feature(_weigh_against_sequences(breakdown, ep_size, tokens_fit.value)),
        "expert.or_worker": Feature(_weigh_against_worker(breakdown, trace)),
        "expert.or_stage": Feature(_weigh_against_stage(breakdown, ep_size)),
        "expert.tokens_fit": _known(experts.tokens_fit, "the trace has no column expert_tokens, or all are the same"),
        "expert.moved": _known(experts.moved, "nobody says that there are experts, or their tokens tell"),
        "expert.alike": _known(experts.alike, uneven),
        "expert.ep_size": _known(None if ep_size is None else float(ep_size), "the metadata have no ep_size"),
    }


def _known(value: float | None, reason: str) -> Feature:
    """Give a value, or why there is none."""
    return Feature.missing(reason) if value is None else Feature(value)


def _weigh_against_sequences(breakdown: Breakdown, ep_size: int | None, documents_fit: float | None) -> float:
    """Say how probable experts are where all stages agree: with one stage nothing but columns tells."""
    one_stage = breakdown.typical_s.shape[1] == 1
    told = breakdown.experts.tokens_fit is not None or (documents_fit or 0.0) >= TOKENS_SETTLE
    if ep_size == 1 or told or not one_stage:
        return 0.0
    return UNKNOWN_CHANCE if ep_size is None else SHARED_CHANCE


def _weigh_against_worker(breakdown: Breakdown, trace: Trace) -> float:
    """Say how probable experts are where a worker is slow in all that it computes: a column tells, or what has no tokens."""
    experts, ep_size = breakdown.experts, trace.job.ep_size
    has_slow_optimizer = _has_slow_optimizer(breakdown, trace)
    if ep_size == 1 or experts.tokens_fit is not None or has_slow_optimizer:
        return 0.0
    if experts.ratio is not None:
        slow = breakdown.slow_workers
        few = slow.sum() == 1 or (slow.mean() <= FEW_SHARE and slow.any(axis=0).mean() < MANY_STAGES_SHARE)
        alone = few and _has_outlier(breakdown) and not _are_whole_groups(slow, ep_size or experts.group)
        if not alone:
            return SHARED_CHANCE
        # A throttled card keeps its memory's pace: an optimizer that is none the slower proves nothing.
        return 0.0 if has_slow_optimizer is None else UNKNOWN_CHANCE
    # A rank whose experts stay hot and a slow one look the same, but for an optimizer.
    return 0.0 if ep_size is None else SHARED_CHANCE


def _weigh_against_stage(breakdown: Breakdown, ep_size: int | None) -> float:
    """Say how probable experts are where a stage is long: members that wait for each other all take as long as the busiest.

    A loss makes a forward far longer than its backward; experts lengthen both, as `ExpertPart` asks it.
    """
    experts, (n_dp, n_stages) = breakdown.experts, breakdown.slow_workers.shape
    shares = experts.group > 1 or (ep_size or 1) > 1
    each_its_own = (
        experts.ratio is not None and experts.group == 1 and n_dp > 1
    )  # then their mean is that of even tokens
    if n_stages == 1 or ep_size == 1 or not shares or each_its_own or experts.tokens_fit is not None:
        return 0.0
    forward, backward = measure_excess(breakdown, n_stages)
    return SHARED_CHANCE if SLOPES[0] * forward <= backward <= SLOPES[1] * forward else 0.0


def _has_slow_optimizer(breakdown: Breakdown, trace: Trace) -> bool | None:
    """Say whether the slowest worker's optimizer is behind its peers', too, None where nobody knows.

    Then its machine is slow: no token makes an optimizer longer.
    """
    workers = slow_workers(breakdown)
    if not workers or len(breakdown.slow_workers) == 1:
        return None
    dp, stage = workers[0]
    steps, behind = slow_steps(breakdown, workers[0])
    at, found = is_slow(behind), []
    for block in trace.blocks:
        there = np.isin(block.steps, steps[at])
        for node in np.flatnonzero((block.nodes.op == Op.OPTIMIZER) & (block.nodes.stage == stage)).tolist():
            own = np.log(np.maximum((block.end_s[node] - block.start_s[node])[there], TINY_RATIO))
            found.append(own[:, dp] - nan_median(np.delete(own, dp, axis=1), axis=1))
    longer = np.concatenate([np.zeros(0), *found])
    longer = longer[np.isfinite(longer)]
    if not len(longer):
        return None
    usual = float(np.median(longer))
    chance = CHANCE_DEVIATIONS * robust_deviation(longer - usual) / float(np.sqrt(len(longer)))
    return usual >= max(OPTIMIZER_SHARE * float(behind[at].mean()), float(np.log(SLOW_OPTIMIZER)), chance)


def _are_whole_groups(slow: Bools, ep_size: int) -> bool:
    """Say whether all who share experts with a slow worker, shape (n_dp, n_stages), are slow: they wait for each other inside."""
    n_dp = len(slow)
    if ep_size == 1 or n_dp % ep_size:
        return False
    groups = slow.reshape(n_dp // ep_size, ep_size, -1)
    return bool((groups.any(axis=1) == groups.all(axis=1)).all())


def _has_outlier(breakdown: Breakdown) -> bool:
    """Say whether the slowest worker is slower than the others differ: hot experts make all of a stage fast or slow."""
    pace = np.log(np.maximum(breakdown.alike_s / breakdown.typical_s[:, :, None, None, None], TINY_RATIO))
    level = nan_median(pace, axis=2).mean(axis=0)  # (n_virtual, n_steps, n_dp)
    is_slow = breakdown.worker_ratio > 1.0
    level = np.where(is_slow.any(axis=0), np.nan, level)
    level = level - nan_median(level, axis=2, keepdims=True)
    slower = np.where(is_slow, np.log(breakdown.worker_ratio), np.nan)
    behind = nan_median(slower, axis=2).mean(axis=0)  # in the steps in which a worker is slow
    known, found = level[np.isfinite(level)], behind[np.isfinite(behind)]
    return bool(found.size) and float(found.max()) > OUTLIER_DEVIATIONS * robust_deviation(known)
