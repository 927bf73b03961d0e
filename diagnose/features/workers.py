"""Which workers are behind their peers on the same stage, how steadily, and whether they wait least."""

from collections.abc import Sequence

import numpy as np

from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.whatif import WhatIf
from diagnose.numerics.chance import TOSS_UP, chance_of_growth, weigh_part_against_length, weigh_time_against_count
from diagnose.numerics.robust import fill_nan, nan_median

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "worker.ratio": "time of the slowest worker over its peers' on the stage in the steps in which it is slow; 1 like them, 2 "
    "twice as long; misleads with two dp ranks, of which the faster one is taken for the healthy one",
    "worker.forward_ratio": "as worker.ratio, of the forward",
    "worker.backward_ratio": "as worker.ratio, of the backward; far below the forward's: pauses and no slow clock",
    "worker.slow_steps_share": "part of the steps in which the slowest worker is slow; 1 constant, 0.5 half of them",
    "worker.slow_share": "part of all workers that are slow, by a tenth of what the slowest one is; above 0.5 peers "
    "are no reference",
    "worker.began_share": "part of the slow workers that were not slow in the first steps; 1 all fell behind; misleads when slow "
    "steps come and go",
    "worker.layout_doubt": "how probable it is that the slow workers are older machines and no fault: about half of all, alike, "
    "from the first step on; or that so many machines have something in common; misleads where a rack is half of the job",
    "worker.loader_doubt": "how probable it is that slow workers wait for input in their forwards: those that cost "
    "most are of the first stage, and slow in forwards of its first chunk alone; misleads where no worker reads data",
    "worker.host_doubt": "how probable it is that something else stops the processes of slow workers now and then, as collections "
    "do: forwards are far slower than backwards, and these are slow, too; misleads where a fault slows both by different amounts",
    "worker.pause_doubt": "how probable it is that what makes a worker slow in single steps are stalls of its allocator: with one "
    "microbatch a step nothing shows whether others of that step are slow, too; or some of a step are far longer than others; or "
    "it stands still in single computes, for no part of them, and not by the clock; misleads where the job has no such allocator",
    "worker.stage_doubt": "how probable it is that the slow worker is a long stage: with one dp rank its optimizer alone tells; "
    "where all ranks of stages fall behind their work may have grown, as that of experts or unfrozen layers; 0 where that is in "
    "forwards alone, where data is read; misleads never",
    "worker.optimizer_ratio": "time of the optimizers of the worker that is slow in these alone over its peers'; 2 twice as long; "
    "misleads where one worker updates more, as with unevenly split states",
    "worker.optimizer_doubt": "how probable it is that such a worker does something that its peers do not, and is not slow: its "
    "computes are not; misleads where a host's processor alone is slow",
    "worker.documents_doubt": "how probable it is that a slow replica has longer documents than others: all stages of a dp rank "
    "are slow since the first step, documents differ by as much, and no tokens tell; misleads where they are dealt at random",
    "worker.m_w": "M_W of the paper: part of S's lost time that comes back when the slowest 3% of the workers are ideal; may "
    "pass 1; misleads when slow workers and uneven stages overlap",
    "stage.m_s": "M_S of the paper: part of S's lost time that comes back when the last stage is ideal; may pass 1; misleads when "
    "microbatches are uneven, as long ones are long on the last stage, too",
}
#: A worker is slow in the steps in which it is behind by more than this part of what it is behind at most; the most is a quantile,
#: as one step may be extreme (both as for any effect in `onset`).
SLOW_STEP_SHARE = 0.5
#: Layers take as long in each step, a worker may not: what is slow in fewer of them is no long stage.
MOST_STEPS = 0.75
MOST_QUANTILE = 0.9
#: What costs more than this part of what all slow workers cost is most of it.
MOST_OF_IT = 0.5
#: Whole stages that are slow have at least this part of it: a worker beside them that is slow in a few steps says nothing of them.
NEARLY_ALL = 0.75
#: Who is slow in none of so many steps at the beginning was not slow before.
FIRST_STEPS = 2
#: Older machines are about half of all, and slow by the same factor, up to this part of it: then it is a toss-up with racks.
LAYOUT_SHARES, ALIKE_SHARE, LAYOUT_CHANCE = (0.4, 0.6), 0.25, 0.5
#: More machines than this do not fail at once. Where hosts are not known each may have so many of the slow workers.
MOST_MACHINES, WORKERS_A_HOST = 8, 8
#: Forwards of the first stage that are all long are a slow processor or a slow loader: nothing in their times tells which.
LOADER_CHANCE = TOSS_UP
#: A slow device slows both directions, a slow processor forwards alone. Where backwards are behind by less than this part of what
#: forwards are (in logarithms), but behind, it is as probable that something stops the process, mostly in forwards.
HOST_SHARE, HOST_CHANCE = 1.0 / 3.0, TOSS_UP
#: With one dp rank a slow worker is told from a long stage by its optimizer alone, and that of a stage of more layers is as long.
#: Where all of several ranks fall behind nobody else has the work of their stage.
LAYERS_CHANCE, STAGE_CHANCE = TOSS_UP, 0.4
#: With one microbatch a step a burst of a worker and a storm of its allocator are the same few long computes. A machine that others
#: share makes computes longer by a part, as certain log odds say.
PAUSE_CHANCE, PART_ODDS, TINY_S = 0.4, 4.0, 1e-12
#: Computes of a step of a slow machine are long by a like factor: those of 140 recorded jobs are off its usual one by up to 0.17
#: (mean of logs) beyond what those of peers are; of an allocator that stalls most computes, in one made job, by 0.54.
SCATTERED = 1.0 / 3.0
#: Less than this probable is no chance (as for onsets).
CHANCE = 0.02
#: A replica that is slow since the first step by no more than so many standard deviations of its documents may have longer ones:
#: the times of both are the same, so that nothing tells.
DOCUMENTS_DEVIATIONS, DOCUMENTS_CHANCE = 3.0, TOSS_UP
#: Optimizers alone of one worker are long for its machine, or for what it alone does in them: three and three of six recorded jobs.
OPTIMIZER_CHANCE = TOSS_UP
#: Below this ratio a direction is not slow (as the rule), nor where it is behind by less than this part of what forwards are: so
#: much is noise (a real loader that tripled forwards left backwards at 1.02).
SLOW_DIRECTION_RATIO = 1.015
SLOW_DIRECTION_SHARE = 0.1
#: Nor is one of several workers beside one that is behind by more than so many times as much.
SLOW_WORKER_SHARE = 0.1


def measure_workers(
    breakdown: Breakdown, what_if: WhatIf, n_members: int = 1, hosts: Sequence[str] | None = None
) -> Features:
    """Measure how far the slowest worker is behind its peers.

    `n_members` are its tensor- or context-parallel members where one of them alone makes it slow, else 1: no stage is longer for
    one of them. `hosts` are those of all workers, as `Trace` has them. They are missing where no worker has peers, or nothing was
    lost.
    """
    n_dp = breakdown.compute_s.shape[-1]
    names = (
        "ratio",
        "forward_ratio",
        "backward_ratio",
        "slow_steps_share",
        "slow_share",
        "began_share",
        "layout_doubt",
        "loader_doubt",
        "host_doubt",
        "stage_doubt",
        "pause_doubt",
        "documents_doubt",
    )
    found: Features
    if n_dp == 1 and not (breakdown.slow_workers.any() or breakdown.is_stopped):
        reason = "with one dp rank no worker has peers on its stage, and none fell behind itself"
        found = {f"worker.{name}": Feature.missing(reason) for name in names}
    elif not breakdown.slow_workers.any():
        values = dict.fromkeys(names, 0.0) | _measure_jitter(breakdown)
        found = {f"worker.{name}": Feature(value) for name, value in values.items()}
    else:
        dp, stage = slow_workers(breakdown)[0]
        n_stages = breakdown.slow_workers.shape[1]
        ratio = breakdown.worker_ratio[:, stage::n_stages, :, dp].mean(axis=1)  # (n_directions, n_steps)
        level = np.log(ratio).mean(axis=0)
        at, alone = is_slow(level), breakdown.compute_s.shape[2] == 1
        forward, *backwards = ratio[:, at].mean(axis=1) if at.any() else (1.0, 1.0)
        backward = sum(backwards) / len(backwards)
        behind = float(level[at].mean()) if at.any() else 0.0
        waits = _doubt_loader(breakdown)  # more layers, or experts, make backwards longer, too
        found = {
            "worker.ratio": Feature(float((forward + backward) / 2)),
            "worker.forward_ratio": Feature(float(forward)),
            "worker.backward_ratio": Feature(float(backward)),
            "worker.slow_steps_share": Feature(float(at.mean())),
            "worker.slow_share": Feature(float(_mainly_slow(breakdown).mean()) / n_members),
            "worker.began_share": Feature(_count_began(breakdown)),
            "worker.layout_doubt": Feature(_doubt_layout(breakdown, hosts)),
            "worker.pause_doubt": Feature(
                PAUSE_CHANCE
                * ((alone and at.mean() < SLOW_STEP_SHARE) or _scatters(breakdown, (dp, stage), at, behind))
            ),
            "worker.stage_doubt": Feature(_doubt_stage(breakdown) if n_members == 1 and not waits else 0.0),
            "worker.loader_doubt": Feature(waits),
            "worker.host_doubt": Feature(_doubt_host(float(forward), float(backward))),
            "worker.documents_doubt": Feature(_doubt_documents(breakdown)),
        }
    found |= _measure_optimizers(breakdown)
    missing = Feature.missing("no time was lost against the ideal")
    found["worker.m_w"] = missing if what_if.m_w is None else Feature(what_if.m_w)
    found["stage.m_s"] = missing if what_if.m_s is None else Feature(what_if.m_s)
    return found


def _measure_optimizers(breakdown: Breakdown) -> Features:
    """Measure the worker that is slow in its optimizers alone."""
    ratio = breakdown.optimizer_ratio
    slow = None if ratio is None else np.where(ratio > 1.0, ratio, np.nan)
    usual = 1.0 if slow is None else float(np.nanmax(nan_median(slow, axis=0)))
    doubt = OPTIMIZER_CHANCE if usual > 1.0 else 0.0
    return {"worker.optimizer_ratio": Feature(usual), "worker.optimizer_doubt": Feature(doubt)}


def _measure_jitter(breakdown: Breakdown) -> dict[str, float]:
    """Measure the worker that is slow now and then, whatever it computes, as where another process shares its machine."""
    stalls, n_stages = breakdown.stalls, breakdown.slow_workers.shape[1]
    work_s = np.nan_to_num(breakdown.compute_s) - stalls.inside_s
    stalled_s = stalls.seconds_of(StallKind.WORKER)
    by_worker, of_work, hits = (
        a.reshape(len(a), -1, n_stages, *a.shape[2:]) for a in (stalled_s, work_s, (stalled_s > 0).astype(float))
    )
    # Shape (n_stages, n_dp): of the places of one direction, as power slows backwards more and a processor forwards alone.
    often = hits.any(axis=(1, 4)).mean(axis=2).max(axis=0)
    is_slow = (often > MOST_OF_IT) | (breakdown.is_stopped & (often > 0))
    found = {"ratio": 1.0, "forward_ratio": 1.0, "backward_ratio": 1.0}
    if not is_slow.any():
        return found
    lost_s = by_worker.sum(axis=(0, 1, 3, 4))
    stage, dp = np.unravel_index(int(np.where(is_slow, lost_s, 0.0).argmax()), is_slow.shape)
    extra, usual = (a[:, :, stage, :, :, dp].sum(axis=(1, 2, 3)) for a in (by_worker, of_work))
    ratio = 1.0 + extra / np.where(usual > 0, usual, 1.0)  # (n_directions,)
    in_step = hits[:, :, stage, :, :, dp].any(axis=(0, 1, 2))
    is_machine = breakdown.is_stopped or _take_a_part(breakdown, is_slow) or _come_by_the_clock(breakdown, is_slow)
    return {
        "ratio": float(ratio.mean()),
        "forward_ratio": float(ratio[0]),
        "backward_ratio": float(ratio[1:].mean()),
        "slow_steps_share": float(in_step.mean()),
        "slow_share": float(is_slow.mean()),
        "pause_doubt": 0.0 if is_machine else PAUSE_CHANCE,
        "stage_doubt": STAGE_CHANCE if len(is_slow) > 1 and is_slow.all(axis=1).any() else 0.0,
    }


def _scatters(breakdown: Breakdown, worker: tuple[int, int], at: Bools, behind: float) -> bool:
    """Say whether microbatches of the steps in which a worker is slow, (n_steps,), take it now as long as peers, now far longer.

    So they do, too, where a few of them make most of what it is behind by (log ratio): those in the middle are not.
    """
    dp, stage = worker
    logs = np.log(np.maximum(breakdown.compute_s[:, stage :: breakdown.slow_workers.shape[1], :, at], TINY_S))
    more = logs - nan_median(logs, axis=2, keepdims=True)
    n = np.maximum(np.isfinite(logs).sum(axis=(0, 1, 2, 3)), 1)
    off, few = (np.nansum(of.reshape(-1, of.shape[-1]), axis=0) / n for of in (np.abs(more), more))
    scattered, of_few = (float(of[dp] - (np.median(np.delete(of, dp)) if len(of) > 1 else 0.0)) for of in (off, few))
    return scattered > SCATTERED or of_few > MOST_OF_IT * behind


def _take_a_part(breakdown: Breakdown, is_slow: Bools) -> bool:
    """Say whether what makes slow workers long now and then is a part of each compute, and no length; shape (n_stages, n_dp)."""
    stalls, n_virtual = breakdown.stalls, breakdown.compute_s.shape[1]
    long_s = np.where(stalls.of_kind(StallKind.WORKER)[0], stalls.inside_s, 0.0)
    theirs = np.tile(is_slow, (n_virtual // len(is_slow), 1))[:, None, None, :] & (long_s > 0)
    part = long_s / np.maximum(np.nan_to_num(breakdown.compute_s) - stalls.inside_s, TINY_S)
    return weigh_part_against_length(theirs, part, long_s) > PART_ODDS


def _come_by_the_clock(breakdown: Breakdown, is_slow: Bools) -> bool:
    """Say whether slow workers stop by the clock, as an allocator does not; shape (n_stages, n_dp).

    Where they are the first stages, whose memory is the fullest, or stop more and more often, that may strike backwards as often.
    """
    stalls, whole = breakdown.stalls, np.asarray(is_slow.all(axis=1))
    in_time = np.argsort(breakdown.steps, kind="stable")
    hits, there = stalls.of_kind(StallKind.WORKER)[0] & (stalls.inside_s > 0), np.isfinite(breakdown.compute_s)
    growth = chance_of_growth(*(a.sum(axis=(0, 1, 2, 4))[in_time] for a in (hits, there)))
    if growth < CHANCE or (whole[0] and (whole[:, None] == is_slow).all() and not whole.all()):
        return False
    theirs = np.broadcast_to(
        np.tile(is_slow, (breakdown.compute_s.shape[1] // len(is_slow), 1))[:, None, None, :], breakdown.compute_s.shape
    )
    work_s = np.nan_to_num(breakdown.compute_s - stalls.inside_s)
    return weigh_time_against_count(theirs, stalls.seconds_of(StallKind.WORKER), work_s) > PART_ODDS


def _count_began(breakdown: Breakdown) -> float:
    """Say which part of the slow workers were not slow in the first steps."""
    workers = slow_workers(breakdown)
    return sum(_has_begun(breakdown, worker) for worker in workers) / len(workers)


def _has_begun(breakdown: Breakdown, worker: tuple[int, int]) -> bool:
    """Say whether a worker was not slow in the first steps."""
    return not is_slow(slow_steps(breakdown, worker)[1])[:FIRST_STEPS].any()


def _doubt_stage(breakdown: Breakdown) -> float:
    """Say how probable it is that slow workers are long stages: the slowest one, with one dp rank, or all of several."""
    n_dp, n_stages = breakdown.slow_workers.shape
    if n_stages == 1:
        return 0.0
    if n_dp == 1:
        behind = is_slow(slow_steps(breakdown, slow_workers(breakdown)[0])[1])
        is_always = bool(behind[:FIRST_STEPS].any()) and behind.mean() > MOST_STEPS
        return LAYERS_CHANCE if is_always else 0.0
    whole = np.asarray(_mainly_slow(breakdown).all(axis=0))  # (n_stages,)
    level = np.log(breakdown.worker_ratio).sum(axis=(0, 2, 3)).reshape(-1, n_stages).sum(axis=0)
    # None where single workers beside them count.
    return STAGE_CHANCE if whole.any() and level[whole].sum() > NEARLY_ALL * level.sum() else 0.0


def _doubt_layout(breakdown: Breakdown, hosts: Sequence[str] | None) -> float:
    """Say how probable it is that slow workers are how the job was laid out: half of all, alike, all the time.

    Or what many machines have in common, that are no replica and no stage.
    """
    slow = breakdown.slow_workers
    single = slow & ~slow.all(axis=1, keepdims=True)
    known = None if hosts is None or "" in hosts else np.array(hosts).reshape(slow.shape)
    n_machines = -(-int(single.sum()) // WORKERS_A_HOST) if known is None else len(np.unique(known[single]))
    if n_machines > MOST_MACHINES and single.any(axis=0).sum() > 1:
        return LAYOUT_CHANCE
    level = (
        np.log(breakdown.worker_ratio)
        .reshape(len(breakdown.worker_ratio), -1, slow.shape[1], *breakdown.worker_ratio.shape[2:])
        .mean(axis=(0, 1))
    )
    usual = np.median(level, axis=1).T[slow]  # of each slow worker over the steps
    always = bool((np.quantile(level, 1.0 - MOST_QUANTILE, axis=1).T[slow] > 0).all())
    alike = always and float(np.std(usual)) < ALIKE_SHARE * float(np.mean(usual))
    half = LAYOUT_SHARES[0] <= slow.mean() <= LAYOUT_SHARES[1] and slow.any(axis=1).sum() > 1
    return LAYOUT_CHANCE if alike and half else 0.0


def _doubt_loader(breakdown: Breakdown) -> float:
    """Say how probable it is that slow workers wait for input: a loader inside forwards holds up those of the first chunk alone.

    Or, with its labels, those of the model's end on the same dp ranks, too. Another slow worker beside them, which costs less, says
    nothing of them.
    """
    n_stages, ratio = breakdown.slow_workers.shape[1], breakdown.worker_ratio.max(axis=(2, 3))
    longer_s = fill_nan(breakdown.compute_s) * (1.0 - 1.0 / breakdown.worker_ratio[:, :, None])
    of_place = longer_s.sum(axis=(2, 3, 4))  # (n_directions, n_virtual)
    by_stage, last = breakdown.slow_workers.T, len(ratio[0]) - 1
    for readers in ([0], [0, last]) if n_stages > 1 and (by_stage[0] == by_stage[last % n_stages]).all() else ([0],):
        theirs = np.isin(np.arange(len(ratio[0])) % n_stages, np.array(readers) % n_stages)
        elsewhere = np.where(theirs, ratio, 1.0)
        elsewhere[0, readers] = 1.0
        little = max(np.log(SLOW_DIRECTION_RATIO), SLOW_DIRECTION_SHARE * np.log(float(ratio[0, readers].min())))
        # A loader holds up no stage between those two as long.
        alike = (
            len(readers) > 1
            and np.delete(of_place[0], readers).max(initial=0.0) > MOST_OF_IT * of_place[0, readers].min()
        )
        if np.log(elsewhere.max()) < little and of_place[0, readers].sum() > MOST_OF_IT * of_place.sum() and not alike:
            return LOADER_CHANCE
    return 0.0


def _doubt_host(forward: float, backward: float) -> float:
    """Say how probable it is that something stops a slow worker's process: both directions are slow, forwards far more."""
    if forward <= 1.0 or backward < SLOW_DIRECTION_RATIO:
        return 0.0
    share = np.log(backward) / np.log(forward)
    return HOST_CHANCE if SLOW_DIRECTION_SHARE <= share < HOST_SHARE else 0.0


def _doubt_documents(breakdown: Breakdown) -> float:
    """Say how probable it is that slow workers have longer documents: whole replicas, all the time, by what documents differ by.

    Or one worker that is hardly slower than the other stages of its replica are, which vary as much from step to step.
    """
    slow = breakdown.slow_workers
    replicas = np.asarray(slow.all(axis=1))
    if breakdown.has_token_costs:
        return 0.0
    if slow.sum() == 1 and slow.shape[1] > 1 and _varies_with_replica(breakdown):
        return DOCUMENTS_CHANCE
    if (slow & ~replicas[:, None]).any() or _count_began(breakdown):
        return 0.0
    uneven = (1.0 - breakdown.microbatch_ordinary) * np.log(breakdown.microbatch_ratio[0])
    behind = np.log(breakdown.worker_ratio).mean(axis=(0, 1, 2))[replicas]  # (n_replicas,)
    return DOCUMENTS_CHANCE if behind.max() <= DOCUMENTS_DEVIATIONS * uneven[..., replicas].std() else 0.0


def _varies_with_replica(breakdown: Breakdown) -> bool:
    """Say whether the slow worker is slow by what the other stages of its dp rank are, and these vary as much over the steps."""
    ((dp, stage),) = np.argwhere(breakdown.slow_workers).tolist()
    n_stages = breakdown.slow_workers.shape[1]
    pace = nan_median(breakdown.alike_s[:2, ..., dp], axis=2) / breakdown.typical_s[:2, :, None]
    logs = np.log(np.maximum(pace / breakdown.step_ratio[:2, None], TINY_S)).mean(axis=0)
    level = logs.reshape(-1, n_stages, logs.shape[-1]).mean(axis=0)
    at = is_slow(np.log(breakdown.worker_ratio[:, stage::n_stages, :, dp]).mean(axis=(0, 1)))
    own, others = level[stage, at], nan_median(np.delete(level, stage, axis=0)[:, at], axis=0)
    known = np.isfinite(own) & np.isfinite(others)
    own, others = own[known], others[known]
    return len(own) > 0 and bool((own - others).mean() < MOST_OF_IT * own.mean() < others.std())


def is_slow(behind: Seconds) -> Bools:
    """Mark the steps in which a worker is slow; `behind` is how far it is behind in each (log ratio)."""
    return np.asarray(behind > SLOW_STEP_SHARE * float(np.quantile(behind, MOST_QUANTILE)))


def _mainly_slow(breakdown: Breakdown) -> Bools:
    """Mark the slow workers beside whom the slowest is not slow by far more, shape (n_dp, n_stages)."""
    behind = _behind(breakdown)
    return np.asarray(breakdown.slow_workers & (behind >= SLOW_WORKER_SHARE * behind.max()))


def _behind(breakdown: Breakdown) -> Seconds:
    """Say how far each worker is behind over all steps (sum of log ratios), shape (n_dp, n_stages)."""
    behind: Seconds = np.log(breakdown.worker_ratio).sum(axis=(0, 2))  # (n_virtual, n_dp)
    return np.asarray(behind.reshape(-1, breakdown.slow_workers.shape[1], behind.shape[-1]).sum(axis=0).T)


def slow_workers(breakdown: Breakdown) -> list[tuple[int, int]]:
    """List the slow workers as (dp index, stage index), most lost time first."""
    by_worker = _behind(breakdown)
    found: list[tuple[int, int]] = [(int(dp), int(stage)) for dp, stage in np.argwhere(breakdown.slow_workers)]
    return sorted(found, key=lambda worker: (-by_worker[worker], worker))


def mainly_slow(breakdown: Breakdown) -> list[tuple[int, int]]:
    """List the slow workers beside whom the slowest is not slow by far more, as `slow_workers` does."""
    mainly = _mainly_slow(breakdown)
    return [worker for worker in slow_workers(breakdown) if mainly[worker]]


def slow_steps(breakdown: Breakdown, worker: tuple[int, int]) -> tuple[Ints, Seconds]:
    """Give the step numbers, increasing, and how far the worker was behind in each (log ratio; 0 where it was not)."""
    dp, stage = worker
    n_stages = breakdown.slow_workers.shape[1]
    order = np.argsort(breakdown.steps, kind="stable")
    behind: Seconds = np.log(breakdown.worker_ratio[:, stage::n_stages, :, dp]).mean(axis=(0, 1))
    return breakdown.steps[order], behind[order]
