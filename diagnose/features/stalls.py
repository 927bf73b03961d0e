"""What the stalls of computes look like: those of garbage collection, of the allocator, and of input."""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from diagnose.features.contention import TINY_S
from diagnose.features.onset import find_course
from diagnose.model.components import Breakdown
from diagnose.model.course import Course
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import NAMES as OPTYPES
from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import LONG_SHARE, StallKind, Stalls, find_counted
from diagnose.model.trace import Bools, Evidence, Ints, Job, Seconds
from diagnose.numerics.chance import TOSS_UP, chance_of_excess, chance_of_growth, weigh_part_against_length
from diagnose.numerics.period import find_period
from diagnose.numerics.robust import lower_median, nan_median, robust_deviation, take_where, weighted_median

#: Each kind of stall with the prefix of its features, and the evidence row that says so.
KINDS = {
    "collection": (StallKind.COLLECTION, Op.GC),
    "allocator": (StallKind.ALLOCATION, Op.CUDA_MALLOC),
    "input": (StallKind.INPUT, Op.DATA_LOAD),
}
#: What is measured of the stalls of each kind: what its values read as, and when it misleads.
OF_EACH_KIND = {
    "recorded_share": "part of the stalls' seconds with {row} rows; 1 all are recorded; misleads when rows are sampled",
    "backward_share": "part of the stalls' seconds in or before backwards; collections 0, allocator about 0.5",
    "stall_ratio": "a typical stall over the compute it stretches; 1 as long again; misleads on very short computes",
    "a_step": "stalls a step on the workers that have any; collections below 1, a slow loader as many as forwards",
    "worker_steps_share": "part of the steps of the workers that have any in which they do; collections below 0.5",
    "in_a_step": "stalls of a worker in the steps in which it has any; 1 single ones, more: as a loader for each microbatch",
    "workers_share": "part of the workers that have such stalls; 1 all of them",
    "contrast": "seconds stalled there over those on other workers (collections: over those of backwards), at most 100",
    "before_share": "part of the seconds in the gap before the compute and not in it",
    "first_share": "part of the stalls in the first microbatch; 1 only there; misleads with one microbatch",
    "steps_share": "part of the steps that have such a stall anywhere",
    "together_share": "part of the workers that stall, in a typical step with any; 1 all at once, planned",
    "growth": "seconds a step in the later half of the steps over the earlier; 1 steady; at most 100",
}
#: Each feature, likewise.
READS_AS = {
    f"{kind}.{name}": text.format(row=OPTYPES[row])
    for kind, (_, row) in KINDS.items()
    for name, text in OF_EACH_KIND.items()
} | {
    "input.start_share": "part of the seconds waited for input, of who waits longest, before workers begin a step; 1 all of them",
    "input.unseen_doubt": "how probable it is that they wait for something else on a host: where nearly all workers begin a step "
    "late together, or workers wait in one step only, or nearly all at a period, or with one stage most as long before nearly "
    "all steps, or mostly in few steps and on no worker above all, or for no longer than computes vary, or in forwards of every "
    "length, or the last stage alone, "
    "and no row says for whom, or for what; or rows tell of less than half, or of no wait there",
    "input.collected_doubt": "how probable it is that waits before steps are collections of Python between them: no row tells of "
    "either, and now one worker waits, now another, each in half of the steps at most; misleads where loaders are slow that seldom",
    "input.period_steps": "steps from one wait for input to the next, where rows tell of most waits and they come at a period; "
    "the number of a loader's workers, who take turns; misleads when something else of the loader has a period, as its shards",
    "input.between_share": "part of them between steps, where only rows show it; 1 all",
    "input.silent_share": "part of them on workers that have data-load rows in half of the steps, none of which tells of it; 1 a "
    "loader is seen, and is not late then; misleads where the job reads data by other means, too",
    "collection.silent_share": "part of them that no gc row tells of, on workers that have such rows, or all where a job says so; "
    "1 collections are recorded, and these are none; misleads where some workers record theirs and others have something else",
    "allocator.backward_contrast": "seconds stalled in or before backwards on the workers with stalls of the allocator over those "
    "on other workers, at most 100; collections and loaders elsewhere do not count, as they stop no backward",
    "allocator.place_chance": "chance that so many of all stalls of backwards lie on the workers with stalls of the allocator, did "
    "they choose none; 0 a fixed part of the workers, 1 all of them, or others in each burst; misleads where a host is a stage",
    "collection.close_pairs": "how often a worker stalls again long before its mean interval is over, against stalls by chance; 0 "
    "each at intervals of its own, 1 at random; of those without rows; misleads when a worker's rate changes",
    "allocator.pace_doubt": "how probable it is that what no row calls stalls of the allocator is a slow worker's unsteady pace: "
    "where they are in nearly half of the computes of the steps that have any, or on single workers and grow no more frequent; "
    "misleads when memory is full nearly all the time",
    "collection.counted_share": "part of the seconds paused in forwards that are on workers that pause every so many, each by a "
    "count of its own and whichever microbatch comes then; 1 all, 0 where a worker has several chunks",
    "collection.between_share": "part of the seconds paused as if by collections that lie between steps, where all wait, with a "
    "gc row; 1 all of them; misleads where steps have no clock in common",
    "collection.asked_doubt": "how probable it is that what no row calls collections is a late loader: where it stands before the "
    "first forwards of steps, on the first stage, and the loader has no rows",
    "collection.lone_doubt": "how probable it is that what no row calls collections is something else that stops a process: where "
    "far fewer workers have such pauses than so many would be on by chance, though each has a collector, or there are one or two, "
    "or all are in one step, or nearly all workers have them at once, or computes vary by as much; "
    "misleads where one worker alone makes much garbage",
    "allocator.unseen_doubt": "how probable it is that what no row calls stalls of the allocator is something else on the hosts: "
    "where they are on no workers above all, or on single ones and as an unsteady pace is; misleads where the job is short",
    "allocator.growth_chance": "chance that stalls of the allocator come so much more often to the end, were they as frequent all "
    "the time; 0 memory fills up; misleads when noise grows as well",
}
#: Stalls may begin short and rare and grow: a step has some from this part on of what a step with many has.
FIRST_SIGN = 0.05
#: In one step and on this part of the workers: together.
TOGETHER_SHARE = 0.6
#: Workers that begin steps late together, at no period and not in few steps, wait for input in about two of three cases: nothing
#: else is asked for in each step, but the host may be busy.
UNSEEN_CHANCE = 0.35
#: One late step chooses neither microbatch nor worker again: a host that was busy once looks the same.
ONCE_CHANCE = TOSS_UP
#: So do a few that have half of the time, each on another worker: after real saves and evaluations 2 to 10% of the steps had it; of
#: waits that are alike half of the steps have it, of random ones (exponential) a fifth.
HALF_SHARE, FEW_STEPS_SHARE = 0.5, 0.12
#: Nearly all steps.
ALWAYS_SHARE = 0.9
#: ... and so do those that keep a period as exactly as the rule for saves asks for, and by no chance.
REGULAR, PERIOD_CHANCE = 0.8, 0.05
#: ... and so do waits of at most so many deviations of computes: real ones without a loader at fault were 2 to 5, late loaders 30
#: and more; pauses without collections up to 5, real collections 8 and more.
VARIES_DEVIATIONS = 6.0
#: ... and waits that are as long as pauses, but for such a factor.
ALIKE_RATIO = 2.0
#: ... and waits of several ranks that are no longer than such a factor of the pauses of computes that nobody names, if these have a
#: quarter of the seconds: on real busy hosts up to 1.3, late loaders 1.8 and more.
BUSY_RATIO, PAUSES_SHARE, LONE_SHARE = 1.5, 0.25, 0.75
#: ... and waits that are the longer side of one spread: on the way from a forward that this part is shorter than to a typical wait
#: fewer than half of them are below the first of three marks, and more between it and the second than from there to the third.
SHORTEST_SHARE, OF_THE_WAY = 0.1, (0.25, 0.75, 1.25)
#: Waits are at the first forwards of steps from this part of their seconds on, as in the rule; a worker waits seldom in up to this
#: part of the steps, or inside forwards, which then began with their batch, fading up to the next. All five real jobs in which
#: Python collects had that between steps; a sixth that collected every second step had pauses inside forwards in 0.525 of them.
FIRST_SHARE, SELDOM_SHARE, OFTEN_SHARE, COLLECTED_CHANCE = 0.7, 0.5, 0.8, TOSS_UP
#: A collector stops a worker once in a step, or twice: who waits this often in a typical step with any waits for something else.
OFTEN_A_STEP = 3.0
#: Of fewer steps nobody can say that most of them have waits.
ENOUGH_STEPS = 6
#: From so many times the variance of chance on, the workers that wait in a step do so together: for a storage that they share.
TOGETHER_RATIO = 1.8
#: ... and by so many standard deviations of that variance, as of counts that are about normal.
DEVIATIONS = 3.0
#: Ratios above are as good as infinite.
MOST = 100.0
#: Where stalls are in this part of the computes of a worker's steps with any, whether they are a pace or pauses nobody can tell.
PACE_SHARE = 0.4
#: ... while they are shorter than this part of their computes: no clock varies by more from one compute to the next.
PACE_RATIO = 0.5
PACE_CHANCE = 0.5
#: Where computes are shorter than usual so much of as often as they are longer by as much, there is one spread and no pauses.
TAIL_SHARE = 0.25
#: Without rows pauses of single workers, or one or two, are as often those of a process that something else stops: of five jobs
#: recorded for this project with pauses of one worker two had collections, none an allocator.
LONE_CHANCE = TOSS_UP
#: ... and workers with fewer than this part of the most have some by chance (as for the component).
MUCH_SHARE = 0.25
#: ... or beside computes that wait for communication for so much of their time.
HELD_SHARE = 0.25
#: Single workers are fewer than this part of those that so many pauses would be on, did they choose none; both counted by seconds.
LONE_WORKERS_SHARE, FEW_STALLS = 2.0 / 3.0, 2.0
#: ... and collections come again: what all have in one step and hardly ever later, as in the first of a job, is no proof of them.
ONE_STEP = 1.5
#: A chance below the first tells where stalls of the allocator are, below the second that they grow more frequent (as the rule).
PLACED_CHANCE, GROWING_CHANCE = 0.02, 0.05
#: A step waits for input where it does so for this part of the longest wait; so many of them may have a period.
PERIODIC_PART, MIN_PERIODIC = 0.3, 3
#: Where rows tell of a larger part of the seconds, how the rest is spread says nothing of them.
RECORDED_SHARE = 0.5
#: A worker with rows of its loader in this part of the steps has them wherever it waits: those that lack are too short.
ALL_STEPS_SHARE = 0.5
#: Waits of two stages are of the same seconds up to this part of them.
ALIKE_SHARE = 0.05
#: Stalls within this part of a worker's mean interval are close; so many must be expected at random to tell.
CLOSE_SHARE = 0.4
#: So many stalls follow closely at most.
MOST_CLOSE = 4
MIN_CLOSE_PAIRS = 3.0
#: Fewer stalls have no trend.
MIN_STALLS = 6


def measure_stalls(breakdown: Breakdown, evidence: Evidence, job: Job | None = None) -> Features:
    """Measure the stalls of each kind; those of a kind are missing where no stall belongs to it."""
    records_gc = job is not None and job.records_gc is True
    found: Features = {}
    for kind, (whose, row) in KINDS.items():
        found |= {f"{kind}.{name}": feature for name, feature in _measure(breakdown, evidence, whose, row).items()}
    found |= {"allocator.backward_contrast": _backward_contrast(breakdown)} | _measure_chances(breakdown)
    waits, paused_s = _Waits.of(breakdown), breakdown.stalls.seconds_of(StallKind.COLLECTION)
    between = _share_between(breakdown, paused_s)
    is_told = _is_told(breakdown, StallKind.COLLECTION, paused_s) or (between.value or 0.0) > HALF_SHARE
    varies = functools.cache(functools.partial(_measure_variation, breakdown))
    found["collection.close_pairs"] = _close_pairs(breakdown, paused_s, is_told=is_told)
    silent = _silent_share(breakdown, evidence, waits)
    found["input.collected_doubt"] = _doubt_loaders(breakdown, evidence, waits, records_gc=records_gc)
    counted = found["collection.counted_share"] = _counted_share(breakdown, paused_s)
    found["collection.silent_share"] = _silent_collections(breakdown, evidence, paused_s, records_gc=records_gc)
    found["collection.lone_doubt"] = _doubt_collections(
        breakdown, paused_s, varies, is_told=is_told, by_count=(counted.value or 0.0) > HALF_SHARE
    )
    found["collection.asked_doubt"] = _doubt_collectors(breakdown, evidence, paused_s, is_told=is_told)
    found["collection.between_share"] = between
    found |= {"input.silent_share": silent} | _measure_places(breakdown, waits, varies)
    doubt = found["input.unseen_doubt"].value
    if doubt is not None and (silent.value or 0.0) > HALF_SHARE:
        found["input.unseen_doubt"] = Feature(max(doubt, silent.value or 0.0))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Waits:
    """Waits for input inside and before computes, and whether a row tells of each; both have the shape of the stalls."""

    seconds: Seconds
    told: Bools

    @classmethod
    def of(cls, breakdown: Breakdown) -> "_Waits":
        """Take those of a job."""
        return cls(breakdown.stalls.seconds_of(StallKind.INPUT), _told_of_input(breakdown))


def measure_places_of_waits(breakdown: Breakdown) -> Features:
    """Say which parts of the seconds waited for input lie before workers begin a step, and between steps."""
    return _measure_places(breakdown, _Waits.of(breakdown), functools.partial(_measure_variation, breakdown))


def _measure_places(breakdown: Breakdown, waits: _Waits, varies: Callable[[], float]) -> Features:
    """Do the work of `measure_places_of_waits`; `varies` gives what `_measure_variation` says."""
    names = ("input.start_share", "input.unseen_doubt", "input.between_share", "input.period_steps")
    start_s = np.zeros((1, 1, 1)) if breakdown.start_s is None else breakdown.start_s
    between_s = float(np.sum(breakdown.between_s.get(StallKind.INPUT, 0.0)))
    # Many wait in one step: whoever waits longest is who counts, as between steps.
    inside_s = waits.seconds.sum(axis=(0, 1, 2)).max(axis=-1)  # (n_steps,)
    waited_s = inside_s + start_s.max(axis=(0, 2))
    total_s = float(waited_s.sum()) + between_s
    if not total_s:
        return dict.fromkeys(
            names, Feature.missing("no compute stalls in that way, and no worker begins a step late for input")
        )
    longest_s = start_s.max(axis=(0, 2))
    unseen = ONCE_CHANCE if _are_few(waited_s) else UNSEEN_CHANCE
    doubt = unseen * float(waited_s[_begin_late_together(breakdown, waits)].sum()) / total_s
    if (
        _waits_once(breakdown, waits)
        or _waits_anywhere(breakdown, waits)
        or _waits_at_period(breakdown, waits)
        or _waits_as_computes_pause(breakdown, waits)
        or _waits_always(breakdown, waits)
        or _are_of_one_spread(breakdown, waits)
    ):
        doubt = max(doubt, ONCE_CHANCE)
    if _waits_for_labels_alone(breakdown, waits):
        doubt = max(doubt, UNSEEN_CHANCE)
    if waits.seconds.any() and not waits.told.any() and _are_as_short(waits.seconds, varies()):
        told = breakdown.start_recorded  # of those before all computes a row says what is waited for
        told_s = 0.0 if told is None else float(np.where(told, start_s, 0.0).max(axis=(0, 2)).sum())
        doubt = max(doubt, ONCE_CHANCE * (1.0 - told_s / total_s))
    untold = 1.0 - _told_share(breakdown, total_s)
    if HALF_SHARE < untold < 1.0:  # who records waits for input records all of them
        doubt = max(doubt, ONCE_CHANCE * untold)
    return {
        name: Feature(value)
        for name, value in zip(names, (float(longest_s.sum()) / total_s, doubt, between_s / total_s), strict=False)
    } | {"input.period_steps": _period_of_waits(breakdown, waited_s)}


def _waits_for_labels_alone(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether the first of several stages waits for nothing, and no row tells of waits: the last writes logs, too."""
    waited_s = _waited_by_worker(breakdown, waits)  # (n_stages, n_steps, n_dp)
    told = waits.told.any() or (breakdown.start_recorded is not None and breakdown.start_recorded.any())
    return len(waited_s) > 1 and not told and bool(waited_s.any()) and not waited_s[0].any()


def _silent_share(breakdown: Breakdown, evidence: Evidence, waits: _Waits) -> Feature:
    """Say which part of the seconds waited for input lies where rows of a loader, there all the time, tell of no wait.

    Where another worker's rows tell of as long a wait in that step, it is that one who is waited for.
    """
    n_dp, n_stages = breakdown.slow_workers.shape
    of_each = (waits.seconds, np.where(waits.told, 0.0, waits.seconds))
    by_worker = [_add_chunks(s.sum(axis=2), n_stages).sum(axis=0) for s in of_each]
    if breakdown.start_s is not None and breakdown.start_recorded is not None:
        start_s, untold_s = breakdown.start_s, np.where(breakdown.start_recorded, 0.0, breakdown.start_s)
        by_worker = [of + s for of, s in zip(by_worker, (start_s, untold_s), strict=True)]
    all_s, silent_s = by_worker  # (n_stages, n_steps, n_dp)
    if not all_s.any():
        return Feature.missing("no compute stalls in that way, and nobody waits for input")
    told_s = (all_s - silent_s).max(axis=(0, 2))
    all_s, silent_s = (
        of.sum(axis=1) for of in (all_s, np.where(told_s[:, None] < HALF_SHARE * silent_s, silent_s, 0.0))
    )
    silent = float(silent_s[_have_loader_rows(breakdown, evidence)].sum())
    # Between steps all ranks wait, and only rows show it: more of this is what the loader is late by.
    between_s = n_dp * float(np.sum(breakdown.between_s.get(StallKind.INPUT, 0.0)))
    return Feature(silent / (float(all_s.sum()) + (between_s if between_s > silent else 0.0)))


def _have_loader_rows(breakdown: Breakdown, evidence: Evidence) -> Bools:
    """Mark the workers whose loader has rows wherever it reads, shape (n_stages, n_dp)."""
    rows = np.flatnonzero((evidence.op == Op.DATA_LOAD) & np.isin(evidence.step, breakdown.steps))
    of_step = np.unique(np.stack([evidence.stage[rows], evidence.dp[rows], evidence.step[rows]]), axis=1)
    n_with = np.zeros(breakdown.slow_workers.T.shape)
    np.add.at(n_with, (of_step[0], of_step[1]), 1.0)
    return np.asarray(n_with >= ALL_STEPS_SHARE * len(breakdown.steps))


def _share_between(breakdown: Breakdown, paused_s: Seconds) -> Feature:
    """Say which part of the seconds of collections lies between steps, where only rows show it."""
    between_s = float(np.sum(breakdown.between_s.get(StallKind.COLLECTION, 0.0)))
    start_s, _ = _starts_of(breakdown, StallKind.COLLECTION)
    # Many pause in one step: who pauses longest is who counts, as between steps.
    inside_s = paused_s.sum(axis=(0, 1, 2)).max(axis=-1)
    if start_s is not None:
        inside_s = inside_s + start_s.max(axis=(0, 2))
    total_s = between_s + float(inside_s.sum())
    return Feature(between_s / total_s) if total_s else Feature.missing("no compute stalls in that way")


def _counted_share(breakdown: Breakdown, paused_s: Seconds) -> Feature:
    """Say which part of the seconds paused in forwards as if by collections is on workers that pause by a count of their own."""
    forward_s = paused_s[0]
    if not forward_s.any():
        return Feature.missing("no compute stalls in that way")
    counted = find_counted(breakdown.stalls, breakdown.steps, breakdown.slow_workers.shape[1])
    counted = np.tile(counted, (len(forward_s) // len(counted), 1))
    return Feature(float(forward_s.sum(axis=(1, 2))[counted].sum() / forward_s.sum()))


def _silent_collections(breakdown: Breakdown, evidence: Evidence, paused_s: Seconds, *, records_gc: bool) -> Feature:
    """Say which part of the seconds paused as if by collections no row tells of, in a job whose collections are recorded."""
    stalls, n_stages = breakdown.stalls, breakdown.slow_workers.shape[1]
    told = np.logical_or(*stalls.told_of(StallKind.COLLECTION))
    all_s, silent_s = (
        _add_chunks(s.sum(axis=2), n_stages).sum(axis=(0, 2)) for s in (paused_s, np.where(told, 0.0, paused_s))
    )  # (n_stages, n_dp)
    if breakdown.collected_s is not None:
        all_s = all_s + breakdown.collected_s.sum(axis=1)
    if not all_s.any():
        return Feature.missing("no compute stalls in that way")
    # Who records collections records all of them; rows that took nothing are calls that a job made itself.
    rows = np.flatnonzero((evidence.op == Op.GC) & (evidence.end_s > evidence.start_s))
    if not (records_gc or len(rows)):
        return Feature(0.0)
    recording = np.zeros(all_s.shape, dtype=bool)
    recording[evidence.stage[rows], evidence.dp[rows]] = True
    if not records_gc and (recording & (silent_s < all_s)).any():
        # Some workers record theirs, and it is these pauses: of the others nobody can tell.
        all_s, silent_s = np.where(recording, all_s, 0.0), np.where(recording, silent_s, 0.0)
    between_s = float(breakdown.between_s.get(StallKind.COLLECTION, np.zeros(1)).sum())  # of which rows tell
    return Feature(float(silent_s.sum() / (all_s.sum() + between_s)))


def _doubt_loaders(breakdown: Breakdown, evidence: Evidence, waits: _Waits, *, records_gc: bool) -> Feature:
    """Say how probable it is that waits before the first forwards of steps are collections: those of real jobs are mostly there.

    What a step made is garbage at its end. A loader is late in most steps, for all, or one rank's every so many steps; a
    collector counts objects.
    """
    waited_s = _waited_by_worker(breakdown, waits)  # (n_stages, n_steps, n_dp)
    first_s = _add_chunks(waits.seconds[:, :, 0], len(waited_s)).sum(axis=0)
    start_s, told = _starts_of(breakdown, StallKind.INPUT)
    if start_s is not None:
        waited_s, first_s = waited_s + start_s, first_s + start_s
    if not waited_s.any():
        return Feature.missing("no compute stalls in that way, and nobody waits for input")
    is_told = waits.told.any() or (told is not None and told.any())
    # Who records collections records all of them; rows that took nothing are calls that a job made itself.
    records = records_gc or bool(((evidence.op == Op.GC) & (evidence.end_s > evidence.start_s)).any())
    anywhere = len(waited_s) > 1 and first_s.sum() < FIRST_SHARE * waited_s.sum()  # with one stage all forwards read
    least_s = _least_length(waited_s)
    hits, long = waited_s > least_s, waits.seconds > least_s
    again = long.sum() >= OFTEN_A_STEP * hits.sum()
    if is_told or records or again or _wait_alike(waited_s):
        return Feature(0.0)
    is_one = hits.any(axis=1).sum() == 1
    inside_s = breakdown.stalls.inside_s[breakdown.stalls.of_kind(StallKind.INPUT)[0]].sum()
    is_inside = inside_s > HALF_SHARE * waited_s.sum()
    if anywhere:
        # One worker, once a step, in any microbatch: a loader that is late for single batches is so twice in some steps.
        is_once = long.sum() == hits.sum()
        return Feature(COLLECTED_CHANCE if is_one and is_once and is_inside else 0.0)
    in_step: Bools = np.any(hits, axis=(0, 2))
    often = float(hits.mean(axis=1).max())
    if hits.shape[1] < ENOUGH_STEPS:
        often -= 0.5 / math.sqrt(hits.shape[1])  # a standard error: two of three steps may be one of two
    most = OFTEN_SHARE if is_inside else SELDOM_SHARE
    seldom = float(often <= SELDOM_SHARE or np.clip((most - often) / (OFTEN_SHARE - SELDOM_SHARE), 0.0, 1.0))
    in_time = np.argsort(breakdown.steps, kind="stable")
    _, regularity, chance = find_period(breakdown.steps[in_time], in_step[in_time])
    counts_steps = is_one and hits.sum() >= MIN_PERIODIC and regularity >= REGULAR and chance <= PERIOD_CHANCE
    if counts_steps or _are_together(hits):
        return Feature(0.0)
    # Between steps they stop the first stage, too, and they choose none.
    n_workers = int(waited_s.any(axis=1).sum())
    by_chance = 1.0 if waited_s[0].any() else float(len(waited_s)) ** (1 - n_workers)
    return Feature(COLLECTED_CHANCE * seldom * by_chance)


def _wait_alike(waited_s: Seconds) -> bool:
    """Say whether two stages of a rank mostly wait as long, as for inputs and labels; shape (n_stages, n_steps, n_dp)."""
    if len(waited_s) == 1:
        return False
    second_s, longest_s = np.sort(waited_s, axis=0)[-2:]
    return float(longest_s[second_s >= (1.0 - ALIKE_SHARE) * longest_s].sum()) > HALF_SHARE * float(longest_s.sum())


def _are_together(hits: Bools) -> bool:
    """Say whether workers wait in the same steps, more of them at once than chance does; shape (n_stages, n_steps, n_dp)."""
    steps = np.flatnonzero(np.any(hits, axis=(0, 2)))
    span = slice(int(steps[0]), int(steps[-1]) + 1)
    often = hits[:, span].mean(axis=1)
    by_chance = float((often * (1.0 - often)).sum())
    # All of n at once: n times the variance of chance, which itself varies the more the fewer steps there are.
    counts = hits[:, span].sum(axis=(0, 2))
    least = max(TOGETHER_RATIO, 1.0 + DEVIATIONS * math.sqrt(2.0 / len(counts)))
    return float(counts.var()) > least * by_chance


def _period_of_waits(breakdown: Breakdown, waited_s: Seconds) -> Feature:
    """Say every how many steps somebody waits for input, where rows say that it is input.

    `waited_s` are the seconds within each step, shape (n_steps,).
    """
    stalls, order = breakdown.stalls, np.argsort(breakdown.steps, kind="stable")
    steps = breakdown.steps[order]
    told = stalls.told_seconds_of(StallKind.INPUT).any(axis=(0, 1, 2, 4))
    if breakdown.start_recorded is not None:
        told = told | breakdown.start_recorded.any(axis=(0, 2))
    if waited_s[~told].sum() > RECORDED_SHARE * waited_s.sum():
        return Feature.missing("no rows tell of the waits")
    waited_s = waited_s[order]
    if StallKind.INPUT in breakdown.between_s:
        # What lies after a step is the wait of the next one.
        between_s = breakdown.between_s[StallKind.INPUT][order]
        follows = np.append(np.diff(steps) == 1, False)
        waited_s = waited_s + np.where(follows, 0.0, between_s)
        waited_s[1:] += np.where(follows, between_s, 0.0)[:-1]
    hits = waited_s > PERIODIC_PART * waited_s.max()
    period, regularity, _ = find_period(steps, hits)
    if period < 2 or regularity < REGULAR or hits.sum() < MIN_PERIODIC:
        return Feature.missing("waits come at no period")
    return Feature(float(period))


def _waits_once(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether there are waits for input in one step only, and no row says so."""
    start_s = breakdown.start_s
    in_step = (waits.seconds > 0).any(axis=(0, 1, 2, 4))
    is_told = bool(waits.told.any() or np.any(breakdown.between_s.get(StallKind.INPUT, 0.0)))
    if start_s is not None and breakdown.start_recorded is not None:
        in_step |= (start_s > 0).any(axis=(0, 2))
        is_told |= bool(breakdown.start_recorded.any())
    return not is_told and int(in_step.sum()) == 1


def _waits_always(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether, with one stage, most ranks wait before nearly every step, each time about as long, and no row says so.

    Whatever else the host does before a step takes as long on all ranks, too, and on all stages.
    """
    if breakdown.slow_workers.shape[1] > 1:
        return False
    start_s, told = breakdown.start_s, breakdown.start_recorded
    waited_s = _waited_by_worker(breakdown, waits)[0] + (0.0 if start_s is None else start_s[0])  # (n_steps, n_dp)
    if (
        waits.told.any()
        or (told is not None and told.any())
        or waits.seconds[0, 0, 1:].sum() > HALF_SHARE * waited_s.sum()
    ):
        return False
    longest_s = waited_s.max(axis=1)
    low_s, usual_s, high_s = np.quantile(longest_s, (1.0 - ALWAYS_SHARE, 0.5, ALWAYS_SHARE))
    together = lower_median(waited_s, axis=1) > HALF_SHARE * longest_s
    is_usual = usual_s > 0 and usual_s * len(longest_s) >= HALF_SHARE * longest_s.sum()
    return bool(is_usual and high_s - low_s <= HALF_SHARE * usual_s and together.mean() >= ALWAYS_SHARE)


def _waits_anywhere(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether, with one stage, waits for input are in few steps and on no worker above all but the first, and no row says so.

    Whatever stops all workers, as a save or an evaluation, ends on each at a time of its own; and the first saves and logs for all.
    """
    if breakdown.slow_workers.shape[1] > 1 or breakdown.start_s is not None:
        return False
    waited_s = waits.seconds.sum(axis=(0, 1, 2))  # (n_steps, n_dp)
    if waits.told.any() or not waited_s.any() or np.any(breakdown.between_s.get(StallKind.INPUT, 0.0)):
        return False
    by_rank = waited_s.sum(axis=0)
    is_lone = by_rank.max() > TOGETHER_SHARE * by_rank.sum() and by_rank.argmax() > 0
    return _are_few(waited_s.sum(axis=1)) and not is_lone


def _are_as_short(stalled_s: Seconds, varies_s: float) -> bool:
    """Say whether stalls are no longer than computes vary by themselves: a busy host delays both."""
    return _usual_s(stalled_s[stalled_s > 0]) < VARIES_DEVIATIONS * varies_s


def _measure_variation(breakdown: Breakdown) -> float:
    """Say by how many seconds computes vary by themselves; 0 where there is nothing but forwards."""
    apart = _measure_apart(breakdown, breakdown.stalls.inside_s)
    there = np.isfinite(apart)
    if not there.any():
        return 0.0
    return robust_deviation(take_where(there, apart)) / math.sqrt(2.0) * float(np.mean(breakdown.typical_s[0]))


def _measure_apart(breakdown: Breakdown, without_s: Seconds) -> Seconds:
    """Say how much longer each forward is than its backward, against the usual of its virtual stage: logarithms; NaN without one.

    Both without some seconds, and as if all were ordinary ones. Documents and experts lengthen forward and backward of a
    microbatch alike; a busy host does not.
    """
    log = np.log(np.maximum((breakdown.compute_s - without_s) / breakdown.variant_ratio, TINY_S))
    apart = log[0] - log[1]
    return np.asarray(apart - nan_median(apart, axis=(1, 2, 3), keepdims=True))


def _are_of_one_spread(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether the waits, mostly inside forwards, are the longer ones of forwards of every length, and no row tells of any.

    A loader leaves most forwards as they are, or holds them up for a time of some size: few are between. Those of a busy host, or
    of what grows with the data and is no loader, differ from hardly to much.
    """
    inside: Bools = breakdown.stalls.of_kind(StallKind.INPUT)[0]
    inside_s = np.where(inside, breakdown.stalls.inside_s, 0.0)[0]
    if waits.told.any() or inside_s.sum() <= HALF_SHARE * waits.seconds.sum():
        return False
    apart = _measure_apart(breakdown, np.where(inside, 0.0, breakdown.stalls.inside_s))
    by_worker = inside_s.sum(axis=(1, 2))  # (n_virtual, n_dp)
    theirs = (by_worker >= LONG_SHARE * by_worker.max())[:, None, None] & np.isfinite(apart)
    if not (theirs & (inside_s > 0)).any():
        return False
    shortest = float(np.quantile(apart[theirs], SHORTEST_SHARE))
    way = float(np.median(apart[theirs & (inside_s > 0)])) - shortest  # to a typical wait
    usual, short, held = (float((apart[theirs] < shortest + part * way).mean()) for part in OF_THE_WAY)
    return usual < HALF_SHARE and short - usual > held - short


def _waits_as_computes_pause(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether waits for input are no longer than computes pause for a reason that nobody names, and on no rank above all.

    What stops a process, as another one on a busy host, does so wherever it is, also as it loads: then rows of its loader are long,
    too. Without rows waits that are as long as pauses, collections and the allocator's among them, that have more of the seconds
    may be such anywhere; where a barrier lets all wait alike each is one wait.
    """
    stalls = breakdown.stalls
    by_rank = waits.seconds.sum(axis=(0, 1, 2, 3))
    waits_s = waits.seconds[waits.seconds > 0]
    start_s, told = breakdown.start_s, breakdown.start_recorded
    told_s = 0.0 if start_s is None or told is None else float(start_s[told].sum())
    if not len(waits_s) or told_s > waits_s.sum():  # rows tell of most that is waited for
        return False
    pauses_s = _pauses(stalls, StallKind.NOBODY, StallKind.COLLECTION, StallKind.ALLOCATION)
    # Backwards read nothing: what keeps them waiting is no loader.
    late = of_types(stalls.before[1:], (StallKind.NOBODY, StallKind.ALLOCATION, StallKind.WORKER))
    pauses_s = np.append(pauses_s, stalls.before_s[1:][late & (stalls.before_s[1:] > 0)])
    wait_s, pause_s = _usual_s(waits_s), _usual_s(pauses_s)
    alike_s = float(np.where((waits.seconds > 0).all(axis=-1), waits.seconds.min(axis=-1), 0.0).sum())
    if pauses_s.sum() > waits_s.sum() - alike_s * (waits.seconds.shape[-1] - 1) and not waits.told.any():
        return max(wait_s, pause_s) < ALIKE_RATIO * min(wait_s, pause_s)
    pauses_s = _pauses(stalls, StallKind.NOBODY)
    between_s = float(np.sum(breakdown.between_s.get(StallKind.INPUT, 0.0)))
    if by_rank.max() > LONE_SHARE * by_rank.sum() or between_s > waits_s.sum():
        return False
    return pauses_s.sum() > PAUSES_SHARE * waits_s.sum() and wait_s < BUSY_RATIO * _usual_s(pauses_s)


def _pauses(stalls: Stalls, *kinds: StallKind) -> Seconds:
    """Give the seconds of each pause inside a compute that no row tells of."""
    of_kinds = of_types(stalls.inside, kinds) & ~stalls.recorded_inside & (stalls.inside_s > 0)
    return np.asarray(stalls.inside_s[of_kinds])


def _usual_s(seconds: Seconds) -> float:
    """Give the length in which half of the time is lost."""
    return weighted_median(seconds, seconds) or 0.0


def _are_few(by_step: Seconds) -> bool:
    """Say whether a few steps have half of the time, shape (n_steps,)."""
    longest_s = np.sort(by_step)[::-1]
    n_steps = 1 + int(np.searchsorted(np.cumsum(longest_s), HALF_SHARE * longest_s.sum()))
    return n_steps <= FEW_STEPS_SHARE * len(by_step)


def _waits_at_period(breakdown: Breakdown, waits: _Waits) -> bool:
    """Say whether nearly all workers of a stage, or the first alone, wait every so many steps, and no row says for what.

    A save, an evaluation or a log looks the same, and so does a loader whose workers take turns.
    """
    waited_s = _waited_by_worker(breakdown, waits)
    by_step = waited_s.sum(axis=(0, 2))
    if waits.told.any() or not by_step.any():
        return False
    order = np.argsort(breakdown.steps, kind="stable")
    hits = by_step[order] > LONG_SHARE * by_step.max()
    _, regularity, chance = find_period(breakdown.steps[order], hits)
    together = (waited_s > 0).mean(axis=2).max(axis=0)[order][hits].mean() >= TOGETHER_SHARE
    by_first = bool(waited_s[:, :, 0].sum() > TOGETHER_SHARE * waited_s.sum())
    return bool((together or by_first) and regularity >= REGULAR and chance <= PERIOD_CHANCE)


def _told_share(breakdown: Breakdown, total_s: float) -> float:
    """Say which part of the seconds waited for input has rows, those between steps, which only rows show, among them."""
    by_step = breakdown.stalls.told_seconds_of(StallKind.INPUT).sum(axis=(0, 1, 2)).max(axis=-1)
    if breakdown.start_s is not None and breakdown.start_recorded is not None:
        by_step = by_step + np.where(breakdown.start_recorded, breakdown.start_s, 0.0).max(axis=(0, 2))
    return float(by_step.sum() + np.sum(breakdown.between_s.get(StallKind.INPUT, 0.0))) / total_s


def _begin_late_together(breakdown: Breakdown, waits: _Waits) -> Bools:
    """Mark the steps that nearly all workers begin late, and no row says why; shape (n_steps,).

    Who waits before its first forward is as late as who waits before anything; alone, a first stage reads what it waits for.
    """
    start_s, told = breakdown.start_s, breakdown.start_recorded
    if start_s is None:
        return np.zeros(len(breakdown.steps), dtype=bool)
    late = (start_s > 0) | (_waited_by_worker(breakdown, waits) > 0)
    recorded = waits.told.any(axis=(0, 1, 2, 4))
    if told is not None:
        recorded |= told.any(axis=(0, 2))
    return np.asarray((start_s > 0).any(axis=(0, 2)) & (late.mean(axis=(0, 2)) >= TOGETHER_SHARE) & ~recorded)


def _waited_by_worker(breakdown: Breakdown, waits: _Waits) -> Seconds:
    """Add up what each worker waits for input inside and before its computes, shape (n_stages, n_steps, n_dp)."""
    return np.asarray(_add_chunks(waits.seconds.sum(axis=2), breakdown.slow_workers.shape[1]).sum(axis=0))


def _told_of_input(breakdown: Breakdown) -> Bools:
    """Mark the computes whose waits for input have a row; shape of the stalls."""
    return np.asarray(np.logical_or(*breakdown.stalls.told_of(StallKind.INPUT)))


def stall_course(breakdown: Breakdown, whose: StallKind) -> Course:
    """Say since when stalls of one kind are there, from the first sign of them on.

    What all workers wait for after a step counts as well; after the last step nobody sees it.
    """
    order = np.argsort(breakdown.steps, kind="stable")
    seconds = breakdown.stalls.seconds_of(whose)
    by_step = seconds.sum(axis=(0, 1, 2, 4))
    start_s, _ = _starts_of(breakdown, whose)
    if start_s is not None:
        by_step = by_step + start_s.sum(axis=(0, 2))
    if whose in breakdown.between_s:
        by_step = by_step + seconds.shape[-1] * breakdown.between_s[whose]
        order = order[:-1]
    return find_course(breakdown.steps[order], by_step[order], least=FIRST_SIGN)


def _measure(breakdown: Breakdown, evidence: Evidence, whose: StallKind, row: Op) -> Features:
    """Measure the stalls of one kind."""
    stalls = breakdown.stalls
    seconds = stalls.seconds_of(whose)
    start_s, start_recorded = _starts_of(breakdown, whose)
    if start_s is not None:
        # Who waits before it begins the step with anything waits for its first forward.
        seconds = np.array(seconds)
        seconds[0, : len(start_s), 0] += start_s
    at = seconds > _least_length(seconds)
    if not at.any():
        missing = dict.fromkeys(OF_EACH_KIND, Feature.missing("no compute stalls in that way"))
        is_told = (evidence.op == row).any() and _holds_up_launches(breakdown, whose)
        return missing | {"recorded_share": Feature(1.0)} if is_told else missing
    told_inside, told_before = stalls.told_of(whose)
    recorded_s = _sum_at(told_inside, stalls.inside_s) + _sum_at(told_before, stalls.before_s)
    before = _sum_at(stalls.of_kind(whose)[1], stalls.before_s)
    if start_s is not None and start_recorded is not None:
        recorded_s += _sum_at(start_recorded, start_s)
        before += float(start_s.sum())
    total = float(seconds.sum())
    work = np.maximum(np.nan_to_num(breakdown.compute_s[at]) - stalls.inside_s[at], TINY_S)
    n_stages = breakdown.slow_workers.shape[1]
    by_worker = _add_chunks(at.sum(axis=2), n_stages)  # (n_directions, n_stages, n_steps, n_dp)
    counts = by_worker.sum(axis=0)
    hit = counts.sum(axis=1) > 0  # (n_stages, n_dp)
    in_step = (counts > 0).sum(axis=(0, 2))  # workers a step
    order = np.argsort(breakdown.steps, kind="stable")
    return {
        "recorded_share": Feature(recorded_s / total)
        if (evidence.op == row).any()
        else Feature.missing(f"the trace has no {OPTYPES[row]} rows"),
        "backward_share": Feature(float(seconds[1:].sum()) / total),
        "stall_ratio": Feature(float(np.median(seconds[at] / work))),
        "a_step": Feature(float(counts.sum(axis=1)[hit].mean()) / counts.shape[1]),
        "worker_steps_share": Feature(float((counts > 0).mean(axis=1)[hit].mean())),
        "in_a_step": Feature(float(counts[counts > 0].mean())),
        "workers_share": Feature(float(hit.mean())),
        "contrast": _contrast(breakdown, hit, whose),
        "before_share": Feature(before / total),
        "first_share": Feature(float(at[:, :, 0].sum() / at.sum())),
        "steps_share": Feature(float((in_step > 0).mean())),
        "together_share": Feature(float(np.median(in_step[in_step > 0])) / hit.size),
        "growth": _growth(seconds.sum(axis=(0, 1, 2, 4))[order], int(at.sum())),
    }


def _holds_up_launches(breakdown: Breakdown, whose: StallKind) -> bool:
    """Say whether something else than a compute begins late for a kind, as a reduction after a row of it."""
    return any((kinds == whose).any() for of_block in breakdown.late_kinds for kinds in of_block.values())


def _sum_at(at: Bools, seconds: Seconds) -> float:
    """Add up the seconds at some places."""
    return float(np.where(at, seconds, 0.0).sum()) if at.any() else 0.0


def _starts_of(breakdown: Breakdown, whose: StallKind) -> tuple[Seconds, Bools] | tuple[None, None]:
    """Give the seconds by which workers begin a step late for a kind, computes left out, and where rows say it."""
    if whose == StallKind.INPUT and breakdown.start_s is not None and breakdown.start_recorded is not None:
        return breakdown.start_s, breakdown.start_recorded
    if whose == StallKind.COLLECTION and breakdown.collected_s is not None:
        return breakdown.collected_s, np.ones(breakdown.collected_s.shape, dtype=bool)
    return None, None


def _least_length(seconds: Seconds) -> float:
    """Say how long a stall must be to count beside those that most of the time is lost to, seconds."""
    lengths = seconds[seconds > 0]
    return LONG_SHARE * (weighted_median(lengths, lengths) or 0.0)


def _add_chunks(by_virtual: Seconds, n_stages: int) -> Seconds:
    """Add up over the chunks of each worker: second axis from n_virtual to n_stages; the first are directions."""
    shape = (len(by_virtual), -1, n_stages, *by_virtual.shape[2:])
    return np.asarray(by_virtual.reshape(shape).sum(axis=1))


def _contrast(breakdown: Breakdown, hit: Bools, whose: StallKind) -> Feature:
    """Say how many times as long stalls are on the workers that have them as stalls of other kinds are on the others.

    For collections the others are backwards, which they never stop.
    """
    stalls = breakdown.stalls
    known = [whose, StallKind.WORKER, StallKind.QUEUE, StallKind.TOGETHER]
    known += [StallKind.ALLOCATION] if whose == StallKind.COLLECTION else []  # the allocator stops backwards, too
    other = np.where(of_types(stalls.inside, known), 0.0, stalls.inside_s)
    other += np.where(of_types(stalls.before, known), 0.0, stalls.before_s)
    here_s = _add_chunks(stalls.seconds_of(whose).sum(axis=2), hit.shape[0])
    elsewhere_s = _add_chunks(other.sum(axis=2), hit.shape[0])
    if whose == StallKind.COLLECTION:
        here, there = float(here_s[0].sum()), float(elsewhere_s[1:].sum())
    elif hit.all():
        return Feature.missing("every worker has such stalls")
    else:
        here = float(here_s.sum(axis=(0, 2))[hit].mean())
        there = float(elsewhere_s.sum(axis=(0, 2))[~hit].mean())
    return Feature(min(here / there, MOST) if there > 0 else MOST)


def _backward_contrast(breakdown: Breakdown) -> Feature:
    """Say how many times as long backwards stall on the workers with stalls of the allocator as on the others."""
    stalls, n_stages = breakdown.stalls, breakdown.slow_workers.shape[1]
    at = stalls.seconds_of(StallKind.ALLOCATION) > 0
    if not at.any():
        return Feature.missing("no compute stalls in that way")
    hit = _add_chunks(at.sum(axis=2), n_stages).sum(axis=(0, 2)) > 0  # (n_stages, n_dp)
    if hit.all():
        return Feature.missing("every worker has such stalls")
    known = [StallKind.WORKER, StallKind.QUEUE, StallKind.TOGETHER]
    seconds = np.where(of_types(stalls.inside[1:], known), 0.0, stalls.inside_s[1:])
    seconds += np.where(of_types(stalls.before[1:], known), 0.0, stalls.before_s[1:])
    by_worker = seconds.sum(axis=(0, 2, 3)).reshape(-1, n_stages, seconds.shape[-1]).sum(axis=0)
    here, there = float(by_worker[hit].mean()), float(by_worker[~hit].mean())
    return Feature(min(here / there, MOST) if there > 0 else MOST)


def _close_pairs(breakdown: Breakdown, paused_s: Seconds, *, is_told: bool) -> Feature:
    """Count how often workers stall twice within a part of their mean interval, and how often they would at random.

    In steps; where they stall in nearly each, in computes.
    """
    in_time = np.argsort(breakdown.steps, kind="stable")
    if is_told:
        return Feature.missing("rows tell of most of them")
    at_all = paused_s > _least_length(paused_s)
    at_all &= ~(breakdown.stalls.recorded_inside | breakdown.stalls.recorded_before)
    n_stages = breakdown.slow_workers.shape[1]
    _, n_virtual, n_microbatches, _, n_dp = at_all.shape
    lost_s = np.where(at_all, paused_s, 0.0).sum(axis=(0, 2, 3)).reshape(-1, n_stages, n_dp).sum(axis=0)
    # Who loses far less than another has what every job has.
    theirs = np.tile(lost_s >= LONG_SHARE * lost_s.max(), (n_virtual // n_stages, 1))
    either: Bools = np.any(at_all & theirs[:, None, None], axis=0)
    of_step = n_virtual // n_stages * n_microbatches
    by_compute = either[:, :, in_time].reshape(-1, n_stages, *either.shape[1:]).transpose(1, 4, 3, 2, 0)
    hit: Bools = by_compute.reshape(n_stages * n_dp, -1, of_step)  # (n_workers, n_steps, computes of a step)
    at = np.flatnonzero(hit.any(axis=(0, 2)))
    if not len(at):
        return Feature.missing("no compute stalls in that way")
    span = slice(int(at[0]), int(at[-1]) + 1)
    hit, steps = hit[:, span], breakdown.steps[in_time][span]
    in_steps: Bools = np.any(hit, axis=2)
    if in_steps.sum() > CLOSE_SHARE * in_steps[in_steps.any(axis=1)].size:
        # A stall may reach into the next compute: that is no other one.
        computes = (steps[:, None] * of_step + np.arange(of_step)).ravel()
        seen, expected = _count_close(hit.reshape(len(hit), -1), computes, 2)
    else:
        seen, expected = _count_close(in_steps, steps, 1)
    if expected < MIN_CLOSE_PAIRS:
        return Feature.missing(f"at random fewer than {MIN_CLOSE_PAIRS:g} would come so soon after another")
    return Feature(seen / expected)


def _count_close(hit: Bools, at: Ints, least: int) -> tuple[float, float]:
    """Count pairs of hits, shape (n_workers, n), that are close and `least` apart, and how many there would be at random."""
    often = hit.mean(axis=1)
    most = np.where(often > 0, CLOSE_SHARE / np.maximum(often, 1.0 / len(at)), 0.0)
    worker, where = np.nonzero(hit)
    seen = 0.0
    for n in range(1, MOST_CLOSE + 1):
        apart = at[where[n:]] - at[where[:-n]]
        seen += float(((worker[n:] == worker[:-n]) & (apart >= least) & (apart <= most[worker[n:]])).sum())
    runs = np.diff(np.append(0, np.flatnonzero(np.diff(at, append=at[-1] + 2) > 1) + 1))  # lengths without a gap
    lags = np.arange(least, int(most.max()) + 1)
    pairs = np.maximum(runs[:, None] - lags, 0).sum(axis=0)
    return seen, float((often**2 * np.where(lags <= most[:, None], pairs, 0).sum(axis=1)).sum())


def _is_told(breakdown: Breakdown, whose: StallKind, seconds: Seconds) -> bool:
    """Say whether rows tell of most of the seconds of stalls of a kind."""
    stalls, (start_s, told) = breakdown.stalls, _starts_of(breakdown, whose)
    recorded = stalls.recorded_inside | stalls.recorded_before
    all_s, told_s = float(seconds.sum()), float(seconds[recorded].sum())
    if start_s is not None:
        all_s, told_s = all_s + float(start_s.sum()), told_s + float(start_s[told].sum())
    return told_s > RECORDED_SHARE * all_s


def _doubt_collections(
    breakdown: Breakdown, seconds: Seconds, varies: Callable[[], float], *, is_told: bool, by_count: bool = False
) -> Feature:
    """Say how probable it is that pauses like those of collections are something else.

    They are on few workers, in one step, too few, of nearly all workers at once, though not each by a count of its own, or no
    longer than computes vary.
    """
    if is_told:
        return Feature(0.0)
    if not seconds.any():
        return Feature.missing("no compute stalls in that way")
    in_step = _add_chunks(seconds.sum(axis=2), breakdown.slow_workers.shape[1]).sum(axis=0)  # (n_stages, n_steps, n_dp)
    by_worker, n_steps = in_step.sum(axis=1), _count_alike(in_step.sum(axis=(0, 2)))
    is_lone = _are_on_few(seconds, by_worker) or _count_alike(seconds) <= FEW_STALLS or n_steps < ONE_STEP
    is_lone |= (
        not by_count and by_worker.size > 1 and _count_alike(in_step) >= TOGETHER_SHARE * by_worker.size * n_steps
    )
    return Feature(LONE_CHANCE if is_lone or _are_as_short(seconds, varies()) else 0.0)


def _doubt_collectors(breakdown: Breakdown, evidence: Evidence, seconds: Seconds, *, is_told: bool) -> Feature:
    """Say how probable it is that pauses like those of collections are waits for input: all stand before who reads its batch.

    Where rows of its loader tell of no wait there they are none.
    """
    if is_told:
        return Feature(0.0)
    paused_s = float(seconds.sum())
    if not paused_s:
        return Feature.missing("no compute stalls in that way")
    # Forwards of the first microbatch, where the model begins.
    kinds, before_s = breakdown.stalls.before[0, 0, 0], breakdown.stalls.before_s[0, 0, 0]
    of_rank = np.where(kinds == StallKind.COLLECTION, before_s, 0.0).sum(axis=0)
    with_rows_s = of_rank[_have_loader_rows(breakdown, evidence)[0]].sum()
    is_read = of_rank.sum() >= FIRST_SHARE * paused_s and with_rows_s <= HALF_SHARE * of_rank.sum()
    return Feature(COLLECTED_CHANCE if is_read else 0.0)


def _are_on_few(seconds: Seconds, by_worker: Seconds) -> bool:
    """Say whether stalls are on far fewer workers than so many would be by chance; `by_worker` is their sum for each."""
    n_stalls = _count_alike(seconds)
    by_chance = n_stalls / (1.0 + (n_stalls - 1.0) / by_worker.size)
    return _count_alike(by_worker) < LONE_WORKERS_SHARE * by_chance


def _count_alike(seconds: Seconds) -> float:
    """Say how many there are, as if all were as long."""
    return float(seconds.sum() ** 2 / (seconds**2).sum())


def _measure_chances(breakdown: Breakdown) -> Features:
    """Say whether chance explains where the allocator's stalls are, and when; beside long ones short ones do not count."""
    stalls, n_stages = breakdown.stalls, breakdown.slow_workers.shape[1]
    seconds = stalls.seconds_of(StallKind.ALLOCATION)
    least_s = _least_length(seconds)
    at = seconds > least_s
    names = ("allocator.place_chance", "allocator.growth_chance", "allocator.pace_doubt", "allocator.unseen_doubt")
    if not at.any():
        return dict.fromkeys(names, Feature.missing("no compute stalls in that way"))
    in_time = np.argsort(breakdown.steps, kind="stable")
    free = at | (stalls.seconds_of(StallKind.NOBODY) > least_s)
    # (n_stages, n_steps, n_dp) of the backwards, in time.
    stalled, there = (
        _add_chunks(a.sum(axis=2), n_stages)[1:].sum(axis=0)[:, in_time]
        for a in (free, np.isfinite(breakdown.compute_s))
    )
    by_worker = _add_chunks(at.sum(axis=2), n_stages).sum(axis=0)  # (n_stages, n_steps, n_dp)
    hit = by_worker.sum(axis=1)[:, None] > 0
    unrecorded = at & ~(stalls.recorded_inside | stalls.recorded_before)
    of_steps = np.where(
        by_worker > 0, _add_chunks(np.isfinite(breakdown.compute_s).sum(axis=2), n_stages).sum(axis=0), 0
    )
    work_s = np.maximum(np.nan_to_num(breakdown.compute_s[at]) - stalls.inside_s[at], TINY_S)
    is_short = float(np.median(seconds[at] / work_s)) < PACE_RATIO
    is_pace = is_short and unrecorded.sum() >= PACE_SHARE * of_steps.sum()
    here, elsewhere = ([np.where(mask, a, 0).sum(axis=(0, 2)) for a in (stalled, there)] for mask in (hit, ~hit))
    by_step = [a.sum(axis=(0, 1, 2, 4))[in_time] for a in (at, np.isfinite(breakdown.compute_s))]
    of_place, of_growth = chance_of_excess(*here, *elsewhere), chance_of_growth(*by_step)
    often = by_worker.sum(axis=1)  # (n_stages, n_dp)
    mostly = often >= MUCH_SHARE * often.max()  # a stray stall makes no whole stage
    is_placed, on_stages = (
        of_place <= PLACED_CHANCE,
        hit.shape[-1] > 1 and bool((mostly.all(axis=-1) | ~mostly.any(axis=-1)).all()),
    )
    held_s = float(stalls.seconds_of(StallKind.QUEUE).sum())
    held_s += 0.0 if breakdown.queue_wait_s is None else float(breakdown.queue_wait_s.sum())
    is_held = held_s > HELD_SHARE * float(seconds.sum())  # then more of it may be computes that communication holds
    is_there = is_placed and not is_held
    is_seen = is_there and (on_stages or of_growth <= GROWING_CHANCE)
    is_told = _is_told(breakdown, StallKind.ALLOCATION, seconds)
    if is_seen and not is_told and not is_pace:
        is_pace = _may_be_a_pace(breakdown, often) or _are_a_tail(breakdown, at)
    # Single workers whose memory does not fill up are as probably stopped by their machines, as by a quota.
    is_lone = is_there and not is_seen and not is_told
    is_seen |= is_told or (is_lone and not is_pace)
    is_pace |= is_lone
    return {
        "allocator.place_chance": Feature(of_place),
        "allocator.growth_chance": Feature(of_growth),
        "allocator.unseen_doubt": Feature(0.0 if is_seen else LONE_CHANCE),
        "allocator.pace_doubt": Feature(PACE_CHANCE if is_pace else 0.0),
    }


def _may_be_a_pace(breakdown: Breakdown, often: Seconds) -> bool:
    """Say whether stalls of workers may be those of slow ones: they take a part longer, and an allocator as long in all computes.

    `often` says how many each has, shape (n_stages, n_dp); where all ranks of a stage have them no single one is slow.
    """
    stalls, mostly = breakdown.stalls, often >= MUCH_SHARE * often.max()
    if mostly.all(axis=-1).any():
        return False
    long_s = stalls.inside_s + stalls.before_s
    work_s = np.maximum(np.nan_to_num(breakdown.compute_s) - stalls.inside_s, TINY_S)
    theirs = np.tile(mostly, (long_s.shape[1] // len(mostly), 1))[:, None, None, :] & (long_s > 0)
    return weigh_part_against_length(theirs, long_s / work_s, long_s) > math.log(PLACED_CHANCE)


def _are_a_tail(breakdown: Breakdown, at: Bools) -> bool:
    """Say whether computes with stalls are the longer side of a wide spread: their workers have as many that are as much shorter.

    Stalls in about half of them say nothing of that: the usual compute is one with or one without, by chance.
    """
    taken_s = breakdown.compute_s + np.where(at, breakdown.stalls.before_s, 0.0)
    theirs_s = np.where(at.any(axis=(2, 3), keepdims=True), taken_s, np.nan)
    if at.sum() >= PACE_SHARE * np.isfinite(theirs_s).sum():
        return False
    log = np.log(
        np.maximum(theirs_s / breakdown.worker_ratio[:, :, None], TINY_S)
    )  # a slow worker's pace varies around its own
    log -= nan_median(log, axis=(2, 3), keepdims=True)
    stands_out = float(np.median(log[at]))
    return int((log <= -stands_out).sum()) >= TAIL_SHARE * int((log >= stands_out).sum())


def _growth(by_step: Seconds, n_stalls: int) -> Feature:
    """Compare the later half of the steps with the earlier."""
    if n_stalls < MIN_STALLS or len(by_step) < 2:
        return Feature.missing(f"fewer than {MIN_STALLS} stalls")
    middle = len(by_step) // 2
    early, late = float(by_step[:middle].mean()), float(by_step[middle:].mean())
    return Feature(min(late / early, MOST) if early > 0 else MOST)
