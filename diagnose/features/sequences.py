"""Whether microbatches differ in length: slow on every stage of their rank, forward and backward alike."""

import numpy as np

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import Op
from diagnose.model.trace import Seconds, Trace
from diagnose.numerics.chance import TOSS_UP
from diagnose.numerics.robust import nan_median, robust_deviation
from diagnose.numerics.slow_steps import find_slow_steps
from diagnose.numerics.turns import do_turn_round

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "sequence.correlation": "correlation between forward and backward of the microbatches, over stages; 0.9 they differ in length; "
    "misleads when the spread is that of noise (a slow worker reaches 0.999), or one stage pauses in both directions",
    "sequence.spread": "relative spread of the microbatches' forwards; 0.02 noise, 0.2 long documents; misleads when the "
    "correlation is low: then it is no length",
    "sequence.stage_share": "part of what forward and backward of a compute have in common that other stages have, too; 1 "
    "documents, 0 what each stage has by itself, as uneven experts; misleads when forward and backward have little in common",
    "sequence.other_doubt": "how probable it is that no documents are long: what microbatches differ by, their ranks have in one "
    "step and the next, or all of a rank have it in one step, or there is one stage, and forward and backward of a microbatch are "
    "no more alike than a busy host makes neighbours; misleads where a rank has long documents for many steps, or for all of one",
    "sequence.paused_doubt": "how probable it is that a process was stopped where a microbatch is long: with one stage few are "
    "long, the rest is even, and as many forwards are longer by as much whose backwards are not; misleads where collections and "
    "few long documents meet",
    "sequence.worker_doubt": "how probable it is that ranks that are taken for those with longer documents are slow by themselves: "
    "these documents are longer all the time, so that nothing tells what they cost, or there is one stage, and the microbatches of "
    "all but a few ranks are even; misleads where few ranks alone read long documents",
    "sequence.one_stage": "1 with one pipeline stage, else 0; misleads never",
    "sequence.tokens_fit": "part of the variation of the forwards that tokens and their squares explain (R squared); 1 all: the "
    "documents; misleads when all microbatches are alike, as noise is left",
    "sequence.slow_steps": "part of what steps that are slow as a whole take longer that tokens and their squares explain; 1 these "
    "steps have more work, 0 they are slow; misleads when tokens say little of the times",
    "sequence.worst_ratio": "the longest microbatch over a typical one; 1 even; misleads when one outlier stands for all",
}
#: A step is as long as usual up to this part.
AS_USUAL = 0.03
#: Microbatches needed for a fit of up to three coefficients.
MIN_MICROBATCHES = 8

#: From this part on what microbatches differ by lasts from step to step: with documents of any kind it is 0.1 at most, where most
#: ranks are slow for a while 0.5 to 0.9. Then that is more probable.
LASTING_SHARE, LASTING_CHANCE, TINY = 0.4, 0.6, 1e-12
#: ... and where those of one rank and step have so much in common, from the one part on to the other: documents that are drawn have
#: none.
OWN_ALIKE, ALL_ALIKE = 0.6, 0.8
#: With one stage nobody else agrees: forwards and backwards of real healthy jobs on busy hosts had correlations up to 0.7, those of
#: real documents 0.6 to 1.0. So little is a toss-up, more is none.
BUSY_ALIKE, DOCUMENTS_ALIKE, BUSY_CHANCE = 0.7, 0.8, TOSS_UP
#: ... where a backward is like the forward after it by so much of what it is like its own: 0.7 to 1.1 on real busy hosts, up to
#: 0.15 with real documents, unless they are sorted.
NEXT_LEAST, NEXT_ALIKE = 0.25, 0.5
#: Who is slow and who has longer documents, both all the time, are mostly the same because documents cost time.
WORKER_CHANCE = 0.3
#: Documents are dealt to all ranks. A few have nearly all that microbatches differ by, so many times as much as others, where these
#: ranks alone read long ones, or their machines are slow now and then.
FEW_RANKS, NEARLY_ALL, FAR_MORE = 1.0 / 3.0, 0.9, 4.0
#: Up to this part of the microbatches are few; so many deviations stand out. Half as many forwards that are longer by as much, up
#: to such a factor, while their backwards are not, were stopped: no document is short backwards.
FEW_SHARE, STANDS_OUT, ALSO_PAUSED, ALIKE_RATIO = 0.125, 6.0, 0.5, 2.0


def measure_sequences(breakdown: Breakdown, trace: Trace) -> Features:
    """Measure how uneven microbatches are.

    All are missing with too few microbatches, and the fit without token columns.
    """
    if breakdown.forward_backward_correlation is None or breakdown.microbatch_spread is None:
        reason = "fewer than 8 microbatches with forward and backward"
        return {name: Feature.missing(reason) for name in READS_AS}
    ratio = breakdown.microbatch_ratio[0]
    return {
        "sequence.correlation": Feature(breakdown.forward_backward_correlation),
        "sequence.spread": Feature(breakdown.microbatch_spread),
        "sequence.stage_share": (
            Feature.missing("there is one stage")
            if breakdown.stage_share is None
            else Feature(min(breakdown.stage_share, 1.0))
        ),
        "sequence.other_doubt": _doubt(breakdown),
        "sequence.paused_doubt": Feature(_doubt_documents(breakdown)),
        "sequence.worker_doubt": Feature(_doubt_ranks(breakdown)),
        "sequence.one_stage": Feature(float(breakdown.typical_s.shape[1] == 1)),
        "sequence.tokens_fit": fit_tokens(breakdown, trace),
        "sequence.slow_steps": _explain_steps(breakdown, trace),
        "sequence.worst_ratio": Feature(float(ratio.max())),
    }


def _doubt(breakdown: Breakdown) -> Feature:
    """Say how probable it is that ranks are slow for a while, unlike documents, or that a busy host slows neighbours."""
    if breakdown.has_token_costs:
        return Feature.missing("tokens tell how long microbatches are")
    logs = np.log(breakdown.microbatch_ratio[:2]).mean(axis=0)[:, np.argsort(breakdown.steps, kind="stable")]
    logs -= logs.mean()
    pace = logs.mean(axis=0)  # (n_steps, n_dp)
    if do_turn_round(pace):
        return Feature(0.0)
    lasting = float(np.sum(pace[1:] * pace[:-1])) * logs.size / max(float(np.sum(logs**2)) * pace[1:].size, TINY)
    doubt = LASTING_CHANCE if lasting >= LASTING_SHARE else 0.0
    if len(logs) > 1:
        # Of documents that are drawn those of one rank and step have as much in common as chance gives them.
        by_chance = 1.0 / len(logs)
        common = float(np.sum(pace**2)) * len(logs) / max(float(np.sum(logs**2)), TINY)
        alike = (common - by_chance) / (1.0 - by_chance)
        doubt = max(doubt, LASTING_CHANCE * float(np.clip((alike - OWN_ALIKE) / (ALL_ALIKE - OWN_ALIKE), 0.0, 1.0)))
    if breakdown.slow_workers.shape[1] == 1:
        alike = breakdown.forward_backward_correlation or 0.0
        unsure = np.clip((DOCUMENTS_ALIKE - alike) / (DOCUMENTS_ALIKE - BUSY_ALIKE), 0.0, 1.0)
        doubt = max(doubt, BUSY_CHANCE * float(min(unsure, _near_in_time(breakdown))))
    return Feature(doubt)


def _doubt_ranks(breakdown: Breakdown) -> float:
    """Say how probable it is that ranks with longer documents are slow by themselves, as no other stage says which are long."""
    if breakdown.is_told_by_ranks:
        return WORKER_CHANCE
    if breakdown.has_token_costs or breakdown.compute_s.shape[1] > 1:
        return 0.0
    of_rank = (np.log(breakdown.microbatch_ratio[:2]) ** 2).mean(axis=(0, 1, 2))
    far = of_rank > FAR_MORE * np.sort(of_rank)[(len(of_rank) - 1) // 3]
    few = 0.0 < far.mean() <= FEW_RANKS and of_rank[far].sum() >= NEARLY_ALL * of_rank.sum()
    return TOSS_UP if few else 0.0


def _doubt_documents(breakdown: Breakdown) -> float:
    """Say how probable it is that long microbatches are stopped ones, as forwards beside them are that no row tells of."""
    if breakdown.has_token_costs or breakdown.compute_s.shape[1] > 1:
        return 0.0
    times_s = breakdown.compute_s[:2, 0]
    longer_s = times_s - nan_median(times_s, axis=(1, 2, 3), keepdims=True)
    deviation_s = np.array([robust_deviation(of[np.isfinite(of)]) for of in longer_s])[:, None, None, None]
    is_long = longer_s > STANDS_OUT * deviation_s
    both = is_long.all(axis=0)
    if not both.any() or np.mean(both) > FEW_SHARE:
        return 0.0
    usual_s = float(np.median(longer_s.sum(axis=0)[both]))
    paused_s = longer_s[0][is_long[0] & ~is_long[1] & ~breakdown.stalls.recorded_inside[0, 0]]
    n_paused = np.sum((paused_s >= usual_s / ALIKE_RATIO) & (paused_s <= usual_s * ALIKE_RATIO))
    return TOSS_UP if n_paused >= ALSO_PAUSED * both.sum() else 0.0


def _near_in_time(breakdown: Breakdown) -> float:
    """Say whether a backward is as much like the forward after it, of other documents, as like its own: 1 it is, 0 it is not."""
    logs = np.log(np.maximum(breakdown.compute_s[:2, 0] - breakdown.stalls.inside_s[:2, 0], TINY))
    if logs.shape[1] < 2:
        return 0.5  # nobody tells
    logs = logs - nan_median(logs, axis=2, keepdims=True)
    logs = logs - nan_median(logs, axis=(1, 3), keepdims=True)  # (2, n_microbatches, n_steps, n_dp)
    own, after = _correlate(logs[0], logs[1]), _correlate(logs[1, :-1], logs[0, 1:])
    return float(np.clip((after / max(own, TINY) - NEXT_LEAST) / (NEXT_ALIKE - NEXT_LEAST), 0.0, 1.0))


def _correlate(values: Seconds, others: Seconds) -> float:
    """Give the correlation of what both have; 0 where they do not vary."""
    both = np.isfinite(values) & np.isfinite(others)
    values, others = (part[both] - part[both].mean() if both.any() else np.zeros(1) for part in (values, others))
    return float((values * others).sum() / max(float(np.sqrt((values**2).sum() * (others**2).sum())), TINY))


def fit_tokens(breakdown: Breakdown, trace: Trace) -> Feature:
    """Fit the forwards of the first stage on tokens and their squares: cost = a + b x tokens + c x tokens_sq."""
    found = _fit(breakdown, trace)
    if isinstance(found, Feature):
        return found
    seconds, fitted = (values[np.isfinite(values)] for values in found)
    total = float(np.var(seconds))
    return (
        Feature(max(0.0, 1.0 - float(np.mean((seconds - fitted) ** 2)) / total))
        if total > 0
        else Feature.missing("no forward varies")
    )


def _explain_steps(breakdown: Breakdown, trace: Trace) -> Feature:
    """Say which part of what slow steps take longer is the work of their documents, by the fit of tokens."""
    found = _fit(breakdown, trace)
    if isinstance(found, Feature):
        return found
    known = np.isfinite(found[1]).any(axis=(0, 2))
    told = _share_told(found[1][:, known], breakdown.step_ratio[0, known])
    return Feature.missing("no step is slow as a whole") if told is None else Feature(told)


def _share_told(work_s: Seconds, ratio: Seconds) -> float | None:
    """Say which part of what slow steps take longer is more work, of all ranks or of those that say how long it is.

    Parameters
    ----------
    work_s : ndarray of float64, shape (n_microbatches, n_steps, n_dp)
    ratio : ndarray of float64, shape (n_steps,)
        How long each step is against the usual one; None comes back where none is slow.
    """
    excess = np.maximum(ratio - 1.0, 0.0)
    if not excess.any():
        return None
    # Usual work is that of the steps that are as long as usual: where steps grow that is no median.
    off = np.abs(ratio - 1.0)
    usual = off <= max(AS_USUAL, float(off.min()))
    of_all_s = np.nanmean(work_s, axis=(0, 2))
    of_ranks = find_slow_steps(nan_median(work_s, axis=0)[None, None], usual)[0]
    told = (np.clip(of - 1.0, 0.0, excess).sum() for of in (of_all_s / np.median(of_all_s[usual]), of_ranks))
    return float(max(told) / excess.sum())


def _fit(breakdown: Breakdown, trace: Trace) -> Feature | tuple[Seconds, Seconds]:
    """Give seconds of the first stage's forwards and those that tokens say, NaN where unknown; else what is missing.

    Both have the shape (n_microbatches, n_steps, n_dp).
    """
    rows = []
    at = {int(step): i for i, step in enumerate(breakdown.steps)}
    forward_s = breakdown.alike_s[0, 0]
    places = np.arange(forward_s.size).reshape(forward_s.shape)
    for block in trace.blocks:
        if block.tokens is None and block.tokens_sq is None:
            return Feature.missing("the trace has no columns tokens and tokens_sq")
        kept = [i for i, step in enumerate(block.steps.tolist()) if step in at]
        steps = [at[int(step)] for step in block.steps[kept]]
        first = (block.nodes.op == Op.FORWARD) & (block.nodes.stage == 0) & (block.nodes.chunk <= 0)
        for node in np.flatnonzero(first).tolist():
            microbatch = int(block.nodes.microbatch[node])
            seconds = forward_s[microbatch][steps]
            columns = [places[microbatch][steps], np.ones_like(seconds)]
            columns += [c[node][kept] for c in (block.tokens, block.tokens_sq) if c is not None]
            rows.append(np.stack([*columns, seconds], axis=-1).reshape(-1, len(columns) + 1))
    table = np.concatenate(rows) if rows else np.zeros((0, 3))
    table = table[np.isfinite(table).all(axis=1)]
    varies = np.ptp(table[:, 2:-1], axis=0) > 0 if len(table) else np.zeros(0, dtype=bool)
    if len(table) < MIN_MICROBATCHES or not varies.any():
        return Feature.missing("tokens are the same in all microbatches, or recorded in too few")
    inputs = np.column_stack([table[:, 1], table[:, 2:-1][:, varies] / table[:, 2:-1][:, varies].max(axis=0)])
    found = np.full((2, forward_s.size), np.nan)
    found[:, table[:, 0].astype(np.int64)] = table[:, -1], inputs @ np.linalg.lstsq(inputs, table[:, -1], rcond=None)[0]
    seconds, fitted = found.reshape(2, *forward_s.shape)
    return seconds, fitted
