"""What a training log shows: paces of the run one after the other, and ranks apart from their peers.

Enters: a `TrainingLog`. Leaves: `LogFacts`.
"""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.model.cause import When
from diagnose.model.place import Worker
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.training_log import Level, LogFacts, SlowRank, TrainingLog
from diagnose.numerics.change_points import LEAST_NOISE_RATIO, MIN_LEVEL, fit_levels
from diagnose.numerics.robust import noise_of_differences, robust_deviation

#: Lines after a start that its first line is compared with.
START_UP_LINES = 5
#: The first line after a start holds what is built or loaded once, when it takes so many times as long as those after it.
START_UP_RATIO = 1.2
#: The run is slow from so many standard deviations on: a log of many lines has room for smaller changes by chance.
DEVIATIONS = 6.0
#: A rank is slow from this ratio to its stage on, and from so many robust deviations of its stage on.
SLOW_RATIO = 1.1
SLOW_DEVIATIONS = 5.0
#: A stage has more ranks than this, else there are too few to compare with.
MIN_PEERS = 3
#: A rank is at an extreme when it is in this part of the reports, of at least so many.
SLOWEST_SHARE = 0.8
MIN_REPORTS = 3
#: A clock is throttled below this part of the highest.
THROTTLED = 0.9
#: Ranks named at most.
MAX_RANKS = 16


def measure_log(log: TrainingLog, *, min_speedup: float, sizes: dict[str, int] | None = None) -> LogFacts:
    """Find since when a run is slow, and which ranks are apart from their peers.

    A pace is slow when the usual one is at least `min_speedup` faster. `sizes` are `world_size`, `pp_size`, `tp_size` and
    `cp_size` by a trace; those of the log where left out.
    """
    iterations, step_s = _last_attempt(log)
    levels = _fit_paces(iterations, step_s, min_speedup)
    usual_s, slow_s, when, deviations, lost_s = _find_slow(iterations, step_s, levels, min_speedup)
    gaps = np.diff(iterations)
    return LogFacts(
        name=log.name,
        iterations=iterations,
        step_s=step_s,
        interval=int(np.median(gaps)) if len(gaps) else 1,
        total=log.total,
        levels=levels,
        usual_s=usual_s,
        slow_s=slow_s,
        when=when,
        deviations=deviations,
        lost_s=lost_s,
        restarts=log.restarts,
        slow_ranks=tuple(itertools.islice(_slow_ranks(log, sizes or log.sizes, when), MAX_RANKS)),
        checkpoints_s=tuple(event.seconds for event in log.events if event.kind == "save"),
    )


def _last_attempt(log: TrainingLog) -> tuple[Ints, Seconds]:
    """Keep the last attempt at each iteration, without start-up, at the batch size that the run ends with."""
    keep = np.ones(len(log.iteration), dtype=bool)
    first = np.flatnonzero(np.r_[True, np.diff(log.attempt) > 0])
    for at in first.tolist():
        after = log.step_s[at + 1 : at + 1 + START_UP_LINES]
        if len(after) and log.step_s[at] > START_UP_RATIO * np.median(after):
            keep[at] = False
    keep &= log.batch_size == log.batch_size[-1]  # a batch that grows makes steps longer, and nobody slower
    kept = np.flatnonzero(keep) if keep.any() else np.arange(len(keep))
    iterations, back = np.unique(log.iteration[kept][::-1], return_index=True)
    return iterations, log.step_s[kept][::-1][back]


def _fit_paces(iterations: Ints, step_s: Seconds, least_ratio: float) -> tuple[Level, ...]:
    """Fit paces to the step times; neighbours differ by the least ratio."""
    bounds = fit_levels(step_s, least_ratio=least_ratio)
    return tuple(
        Level(int(iterations[a]), int(iterations[b - 1]), float(np.median(step_s[a:b])))
        for a, b in itertools.pairwise(bounds)
        if b > a
    )


def _find_slow(
    iterations: Ints, step_s: Seconds, levels: tuple[Level, ...], min_speedup: float
) -> tuple[float | None, float | None, When, float | None, float]:
    """Find the usual and the slow pace, since and until when it is slow, by how many deviations, and the seconds lost."""
    nothing = (None, None, When(), None, 0.0)
    lasting = [level for level in levels if np.count_nonzero(_within(iterations, level)) >= MIN_LEVEL]
    if len(lasting) < 2:
        return nothing
    usual = min(lasting, key=lambda level: level.step_s)
    slow = [level.step_s >= min_speedup * usual.step_s for level in lasting]
    runs = []
    for is_slow, group in itertools.groupby(zip(slow, lasting, strict=True), key=lambda pair: pair[0]):
        if is_slow:
            runs.append([level for _, level in group])
    if not runs:
        return nothing
    lost = [_lost_s(iterations, step_s, run, usual.step_s) for run in runs]
    # A slow pace that goes on comes first, else the one that cost most.
    at = len(runs) - 1 if slow[-1] else int(np.argmax(lost))
    run = runs[at]
    during = (iterations >= run[0].first) & (iterations <= run[-1].last)
    slow_s = float(np.median(step_s[during]))
    n_slow, n_usual = int(during.sum()), int(_within(iterations, usual).sum())
    noise = max(float(noise_of_differences(step_s)), LEAST_NOISE_RATIO * usual.step_s)
    deviations = (slow_s - usual.step_s) / (noise * float(np.sqrt(1 / n_slow + 1 / n_usual)))
    if deviations < DEVIATIONS or slow_s < min_speedup * usual.step_s:
        return nothing
    onset = run[0].first if run[0].first > iterations[0] else None
    later = iterations[iterations > run[-1].last]
    recovery = int(later[0]) if len(later) else None
    if recovery is not None:
        return usual.step_s, slow_s, When("transient", onset, recovery), deviations, lost[at]
    return usual.step_s, slow_s, When("onset", onset), deviations, lost[at]


def _within(iterations: Ints, level: Level) -> Bools:
    """Mark the iterations of one pace."""
    return np.asarray((iterations >= level.first) & (iterations <= level.last))


def _lost_s(iterations: Ints, step_s: Seconds, run: list[Level], usual_s: float) -> float:
    """Add up what iterations took longer than usual; each line stands for those since the one before."""
    during = (iterations >= run[0].first) & (iterations <= run[-1].last)
    usual_gap = float(np.median(np.diff(iterations))) if len(iterations) > 1 else 1.0
    return float((step_s[during] - usual_s).sum() * usual_gap)


def _slow_ranks(log: TrainingLog, sizes: dict[str, int], when: When) -> Iterator[SlowRank]:
    """Give ranks that are apart from their peers, those compared within their stage first."""
    named = set()
    for slow in itertools.chain(_by_timers(log, sizes, when), _by_detector(log, sizes, when)):
        # Some rank is always the hottest, because of its place in the rack: heat counts for a rank that is slow as well.
        if slow.measure != "Tmp" or slow.rank in named:
            named.add(slow.rank)
            yield slow


def _by_timers(log: TrainingLog, sizes: dict[str, int], when: When) -> Iterator[SlowRank]:
    """Compare each rank's forwards and backwards with those of its stage, since the run is slow."""
    for timer in ("forward-compute", "backward-compute"):
        times = log.timers.get(timer)
        if times is None or _stage_of(0, sizes) is None:
            continue
        at = _while_slow(times.iteration, when)
        ranks, index = np.unique(times.rank[at], return_inverse=True)
        mean_s = np.bincount(index, times.seconds[at]) / np.bincount(index)
        stages = np.array([_stage_of(int(rank), sizes) for rank in ranks])
        found = []
        for stage in np.unique(stages).tolist():
            here = np.flatnonzero(stages == stage)
            usual_s = float(np.median(mean_s[here]))
            spread_s = robust_deviation(mean_s[here] - usual_s)
            far = mean_s[here] >= max(SLOW_RATIO * usual_s, usual_s + SLOW_DEVIATIONS * spread_s)
            if len(here) > MIN_PEERS and usual_s > 0:
                found += [(float(mean_s[i] / usual_s), int(ranks[i]), float(mean_s[i]), usual_s) for i in here[far]]
        for ratio, rank, rank_s, usual_s in sorted(found, reverse=True):
            text = f"{timer} of rank {rank} takes {ratio:.2f} times as long as that of its peers on the stage (sum of microbatches)"
            values = {"ratio": ratio, "rank_s": rank_s, "peers_s": usual_s}
            yield SlowRank(rank, timer, _worker_of(rank, sizes), text, values, by_peers=True)
        if found:
            return  # the other direction shows the same ranks


def _by_detector(log: TrainingLog, sizes: dict[str, int], when: When) -> Iterator[SlowRank]:
    """Give the rank that the straggler detector reports at an extreme nearly always; it compares all stages with each other."""
    for key, extreme in (("Rtt", "slowest forwards"), ("Clk", "lowest clock"), ("Tmp", "highest temperature")):
        extremes = log.extremes.get(key)
        if extremes is None:
            continue
        at = _while_slow(extremes.iteration, when)
        odd_rank = (extremes.low_rank if key == "Clk" else extremes.high_rank)[at]
        low, high = float(np.median(extremes.low[at])), float(np.median(extremes.high[at]))
        if len(odd_rank) < MIN_REPORTS:
            continue
        rank, n = Counter(odd_rank.tolist()).most_common(1)[0]
        apart = low <= THROTTLED * high if key == "Clk" else high >= SLOW_RATIO * low
        if n < SLOWEST_SHARE * len(odd_rank) or not apart:
            continue
        unit = {"Rtt": "ms", "Clk": "MHz", "Tmp": "C"}[key]
        value, others = (low, high) if key == "Clk" else (high, low)
        text = f"rank {rank} has the {extreme} of all ranks in {n} of {len(odd_rank)} reports: {value:g} {unit}"
        text += f", at the other end {others:g} {unit}"
        values = {"reports": float(len(odd_rank)), "named": float(n), "value": value, "other_end": others}
        yield SlowRank(int(rank), key, _worker_of(int(rank), sizes), text, values, by_peers=False)


def _while_slow(iteration: Ints, when: When) -> Bools:
    """Mark the reports while the run is slow; all of them where it never is, or where none was made while it was."""
    low = -np.inf if when.onset_step is None else when.onset_step
    high = np.inf if when.recovery_step is None else when.recovery_step
    at = np.asarray((iteration >= low) & (iteration < high))
    return at if at.any() else np.ones(len(iteration), dtype=bool)


def _stage_of(rank: int, sizes: dict[str, int]) -> int | None:
    """Give the stage of a rank: Megatron-LM numbers stages last. None where sizes are not known or contradict each other."""
    world, n_stages = sizes.get("world_size"), sizes.get("pp_size")
    if not world or not n_stages or world % n_stages:
        return None
    return rank // (world // n_stages)


def _worker_of(rank: int, sizes: dict[str, int]) -> Worker | None:
    """Give the worker of a global rank: Megatron-LM numbers tensor- and context-parallel members first."""
    stage = _stage_of(rank, sizes)
    members = sizes.get("tp_size", 0) * sizes.get("cp_size", 1)
    if stage is None or not members:
        return None
    return Worker(rank % (sizes["world_size"] // sizes["pp_size"]) // members, stage, rank - rank % members)
