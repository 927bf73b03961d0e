"""Collect Python's garbage on all ranks in the same step, at a chosen interval, instead of whenever each feels like it.

The replay takes every collection out of the computes and adds one pause of all ranks every N steps.
"""

from collections.abc import Mapping

import numpy as np

from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import read_whole
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove, Spend
from diagnose.model.planned import LEAST_SHARE, LONGEST_QUANTILE, find_interval
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.stalls import TOGETHER_SHARE, StallKind
from diagnose.model.trace import Ints, Seconds
from diagnose.numerics.chance import chance_of_many
from diagnose.numerics.figures import write_figure
from diagnose.numerics.robust import weighted_median

NAME = "planned-gc"
TITLE = "collect garbage on all ranks in the same step"
SETTINGS = {"every": "steps between two collections; chosen from the length of the pauses where left out"}
#: Intervals to choose from (the study's teams ended at 500; Megatron-LM's example is 100).
INTERVALS = (10, 20, 50, 100, 200, 500, 1000)
#: The planned pauses may cost this part of the step.
PLANNED_SHARE = 1e-3
#: Which part of the pauses, the last ones, says how long a pause is now.
RECENT_SHARE = 0.5
#: Pauses from which on their growth with the steps is fitted.
MIN_FOR_GROWTH = 8
#: Pauses are said to grow where so many later ones are longer by chance this seldom at most.
CHANCE = 0.01
HOW = {
    "megatron": "--manual-gc --manual-gc-interval {every}",
    "torchtitan": "--training.gc_freq {every}",
    "pytorch": "diagnose.record.Recorder(folder, planned_gc={every}) does it; by hand: gc.disable() at the start, gc.freeze() once "
    "the model is built, and gc.collect() on all ranks when step % {every} == 0",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - a fix's interface
    """Replace the pauses of single ranks by planned ones."""
    steps, pause_s = _pauses(analysis)
    if not len(pause_s):
        return Refusal("no pause looks like a collection of garbage")
    now_s, growth_s = _length_now(steps, pause_s)
    n_workers = analysis.trace.n_dp * analysis.trace.n_stages
    interval_now = n_workers * len(analysis.breakdown.steps) / len(pause_s)
    every = (
        read_whole(settings, "every", NAME, least=1)
        if "every" in settings
        else choose_interval(now_s, analysis.gains.replayed_s)
    )
    now = _together(analysis)
    risks = [
        f"garbage is kept for {every} steps: watch the memory of the hosts, and of the GPUs where tensors sit in reference cycles"
    ]
    if growth_s * 1000 > 0.1 * now_s and _chance_of_growth(steps, pause_s) < CHANCE:
        risks.append(
            f"the pauses grow by {write_figure(growth_s * 1e3, 2)} ms a step: something may leak; gc.freeze() and look for it"
        )
    return Remedy(
        summary=f"collect on all ranks in the same step, every {every} steps" + (f", not every {now}" if now else ""),
        how=choose_how(write_how(every), analysis.trace.job),
        changes=(Remove("gc-pause"), Spend(np.array([now_s / every]))),
        settings={"every": str(every)},
        assumptions=(
            f"a planned collection takes as long as the long ones of now, {write_figure(now_s)} s, and all ranks take it at once",
        ),
        risks=tuple(risks),
        figures={
            "every_steps": float(every),
            "planned_pause_s": now_s,
            "pauses": float(len(pause_s)),
            "interval_now_steps": interval_now,
            "growth_s_per_step": growth_s,
        },
    )


def _pauses(analysis: Analysis) -> tuple[Ints, Seconds]:
    """List the step and the length of every collection that costs something, inside computes, before them and between steps."""
    by_worker = _by_worker(analysis)
    step, length_s = np.broadcast_to(analysis.breakdown.steps[:, None], by_worker.shape), by_worker.ravel()
    there = length_s > LEAST_SHARE * (weighted_median(length_s, length_s) or 0.0)
    return step.ravel()[there], length_s[there]


def _by_worker(analysis: Analysis) -> Seconds:
    """Say how long each worker collects in each step, seconds, shape (n_steps, n_workers)."""
    c, n_stages = analysis.breakdown, analysis.trace.n_stages
    stall_s = c.stalls.seconds_of(StallKind.COLLECTION).sum(axis=(0, 2))  # (n_virtual, n_steps, n_dp)
    found = stall_s.reshape(-1, n_stages, *stall_s.shape[1:]).sum(axis=0)
    if c.collected_s is not None:
        found = found + c.collected_s
    found = found + np.broadcast_to(c.between_s.get(StallKind.COLLECTION, 0.0), (len(c.steps),))[None, :, None]
    return np.asarray(np.moveaxis(found, 1, 0).reshape(len(c.steps), -1))


def _together(analysis: Analysis) -> int | None:
    """Say every how many steps all workers collect together; None where each does so in steps of its own."""
    seconds = _by_worker(analysis)
    workers = (seconds > LEAST_SHARE * (weighted_median(seconds.ravel(), seconds.ravel()) or 0.0)).mean(axis=1)
    hits = workers[workers > 0]
    if workers.size < 2 or seconds.shape[1] < 2 or np.median(hits) < TOGETHER_SHARE:
        return None
    return round(find_interval(analysis.breakdown.steps, workers >= TOGETHER_SHARE))


def _length_now(steps: Ints, pause_s: Seconds) -> tuple[float, float]:
    """Say how long a long pause is at the end of the trace, and by how many seconds a step they grow."""
    recent = steps >= np.quantile(steps, 1.0 - RECENT_SHARE)
    now_s = float(np.quantile(pause_s[recent], LONGEST_QUANTILE))
    return now_s, _growth(steps, pause_s) if len(steps) >= MIN_FOR_GROWTH else 0.0


def _growth(steps: Ints, pause_s: Seconds) -> float:
    """Say by how many seconds a step pauses grow: the median of slopes, so that a single long one is no growth.

    Source: the incomplete method of Theil (1950), each pause of the first half against one of the second.
    """
    longer_s, apart = _pair_halves(steps, pause_s)
    return float(np.median(longer_s / apart)) if len(apart) else 0.0


def _chance_of_growth(steps: Ints, pause_s: Seconds) -> float:
    """Say how probable at least so many longer pauses of the second half are where none grows: a sign test of the pairs."""
    longer_s, _ = _pair_halves(steps, pause_s)
    return chance_of_many(int((longer_s > 0).sum()), int((longer_s != 0).sum()), 0.5)


def _pair_halves(steps: Ints, pause_s: Seconds) -> tuple[Seconds, Ints]:
    """Say by how many seconds each pause of the second half is longer than one of the first, and how many steps are between."""
    order, half = np.argsort(steps, kind="stable"), len(steps) // 2
    early, late = order[:half], order[-half:]
    apart = steps[late] - steps[early]
    known = apart > 0
    return (pause_s[late] - pause_s[early])[known], apart[known]


def write_how(every: int) -> dict[str, str]:
    """Say by framework how to collect every so many steps."""
    return {name: how.replace("{every}", str(every)) for name, how in HOW.items()}


def choose_interval(pause_s: float, step_s: float) -> int:
    """Take the shortest interval at which the planned pauses cost next to nothing: memory is kept no longer than needed."""
    return next((n for n in INTERVALS if pause_s / n <= PLANNED_SHARE * step_s), INTERVALS[-1])
