"""What a training log shows: paces of the run one after the other, and ranks apart from their peers.

Enters: a `TrainingLog`. Leaves: `LogFacts`. A log may have a million lines: levels are fitted to medians of neighbouring lines, and
each change is then moved to the line where it is.
"""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.features.onset import MAD_TO_SIGMA
from diagnose.model.cause import When
from diagnose.model.place import Worker
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.training_log import Level, LogFacts, SlowRank, TrainingLog

#: Values that levels are fitted to at most.
MAX_BINS = 2000
#: Lines that a level lasts at least, and neighbours that a lone slow line is compared with.
MIN_LEVEL = 3
WINDOW = 5
#: A penalty of so many times the noise's variance, and the logarithm of the number of values, for each change.
PENALTY = 4.0
#: Noise below this part of a step is that of rounding to a tenth of a millisecond.
LEAST_NOISE = 2e-3
#: A change is no chance from so many standard deviations on: a log has room for many.
DEVIATIONS = 6.0
#: The first line after a start holds what is built or loaded once, when it takes so many times as long as those after it.
START_UP_RATIO = 1.2
#: A rank is slow against its stage from this ratio, and so many deviations of its peers, on.
SLOW_RATIO = 1.1
SLOW_DEVIATIONS = 5.0
#: Peers needed to compare with.
MIN_PEERS = 3
#: A rank is the slowest of all when it is so in this part of the reports, of at least so many.
SLOWEST_SHARE = 0.8
MIN_REPORTS = 3
#: A clock this far below the highest is throttled.
THROTTLED = 0.9
#: Ranks named at most.
MAX_RANKS = 16


def measure_log(log: TrainingLog, *, min_speedup: float, sizes: dict[str, int] | None = None) -> LogFacts:
    """Say since when a run is slow, and which ranks the log shows apart.

    Parameters
    ----------
    log : TrainingLog
    min_speedup : float
        A pace is slow when the usual one is at least this much faster.
    sizes : dict of str to int, optional
        `world_size`, `pp_size`, `tp_size`, `cp_size` by a trace; those of the log where left out.

    Returns
    -------
    LogFacts
    """
    iterations, step_s = _last_attempt(log)
    levels = _fit_levels(iterations, step_s, min_speedup)
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
        checkpoints_s=log.checkpoints_s,
    )


def _last_attempt(log: TrainingLog) -> tuple[Ints, Seconds]:
    """Keep the last attempt at each iteration, without start-up, at the batch size that the run ends with."""
    keep = np.ones(len(log.iteration), dtype=bool)
    first = np.flatnonzero(np.r_[True, np.diff(log.attempt) > 0])
    for at in first.tolist():
        after = log.step_s[at + 1 : at + 1 + WINDOW]
        if len(after) and log.step_s[at] > START_UP_RATIO * np.median(after):
            keep[at] = False
    keep &= log.batch_size == log.batch_size[-1]  # a batch that grows makes steps longer, and nobody slower
    kept = np.flatnonzero(keep) if keep.any() else np.arange(len(keep))
    iterations, back = np.unique(log.iteration[kept][::-1], return_index=True)
    return iterations, log.step_s[kept][::-1][back]


def _smooth(values: Seconds) -> Seconds:
    """Take the median of each value and its neighbours: a lone slow step is no pace, and edges stay."""
    if len(values) < WINDOW:
        return values
    padded = np.pad(values, WINDOW // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1))


def _fit_levels(iterations: Ints, step_s: Seconds, least_ratio: float) -> tuple[Level, ...]:
    """Fit paces to the step times, as many as the noise justifies; neighbours differ by the least ratio."""
    n = len(step_s)
    smooth = _smooth(step_s)
    width = -(-n // MAX_BINS)
    edges = [*range(0, n, width), n]
    bins = np.array([np.median(smooth[a:b]) for a, b in itertools.pairwise(edges)])
    ends = _fit_changes(bins, _noise(step_s) / np.sqrt(width))
    bounds = [0, *(edges[end] for end in ends[:-1]), n]
    for i in range(1, len(bounds) - 1):
        bounds[i] = _place_change(step_s, bounds[i - 1], bounds[i], bounds[i + 1], 2 * width + WINDOW)
    bounds = _join_alike(step_s, bounds, least_ratio)
    return tuple(
        Level(int(iterations[a]), int(iterations[b - 1]), float(np.median(step_s[a:b])))
        for a, b in itertools.pairwise(bounds)
        if b > a
    )


def _fit_changes(bins: Seconds, noise_s: float) -> list[int]:
    """Say where each pace ends, by number of values that scatter by so many seconds."""
    n = len(bins)
    if n < 2 * MIN_LEVEL:
        return [n]
    import ruptures  # takes long to import

    scale = float(np.median(bins))
    sigma = max(noise_s / scale, LEAST_NOISE)
    penalty = PENALTY * sigma**2 * np.log(n)
    fitted = ruptures.KernelCPD(kernel="linear", min_size=MIN_LEVEL).fit((bins / scale)[:, None])
    return [int(end) for end in fitted.predict(pen=penalty)]


def _join_alike(step_s: Seconds, bounds: list[int], least_ratio: float) -> list[int]:
    """Take away changes, the least first, until neighbours differ by the least ratio."""
    bounds = list(bounds)
    while len(bounds) > 2:
        paces = np.array([np.median(step_s[a:b]) if b > a else np.nan for a, b in itertools.pairwise(bounds)])
        apart = np.abs(np.diff(np.log(paces)))
        least = int(np.argmin(np.where(np.isnan(apart), -1.0, apart)))
        if apart[least] >= np.log(least_ratio):
            break
        del bounds[least + 1]
    return bounds


def _noise(values: Seconds) -> float:
    """Say how much values scatter from one to the next; seconds."""
    if len(values) < 2:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(np.diff(values)))) / float(np.sqrt(2.0))


def _place_change(step_s: Seconds, low: int, at: int, high: int, reach: int) -> int:
    """Move a change to the line that parts the two paces best."""
    before, after = float(np.median(step_s[low:at])), float(np.median(step_s[at:high]))
    first, last = max(low + 1, at - reach), min(high - 1, at + reach)
    near = np.clip(step_s[first:last], min(before, after), max(before, after))
    # Cost of parting before each line: those left of it against the pace before, the others against that after.
    left = np.r_[0.0, np.cumsum(np.abs(near - before))]
    right = np.r_[0.0, np.cumsum(np.abs(near - after))]
    return first + int(np.argmin(left + right[-1] - right)) if last > first else at


def _find_slow(
    iterations: Ints, step_s: Seconds, levels: tuple[Level, ...], min_speedup: float
) -> tuple[float | None, float | None, When, float | None, float]:
    """Say how fast the run usually is, how slow, since and until when, how surely, and how much time it lost."""
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
    # What goes on is what matters; else what cost most.
    at = len(runs) - 1 if slow[-1] else int(np.argmax(lost))
    run = runs[at]
    during = (iterations >= run[0].first) & (iterations <= run[-1].last)
    slow_s = float(np.median(step_s[during]))
    n_slow, n_usual = int(during.sum()), int(_within(iterations, usual).sum())
    noise = max(_noise(step_s), LEAST_NOISE * usual.step_s)
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
    """Name ranks that are apart from their peers, those compared within their stage first."""
    named = set()
    for slow in itertools.chain(_by_timers(log, sizes, when), _by_detector(log, sizes, when)):
        # Somebody is always the hottest, for where it stands in the rack: that is worth telling of a rank that is slow.
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
            spread_s = MAD_TO_SIGMA * float(np.median(np.abs(mean_s[here] - usual_s)))
            far = mean_s[here] >= max(SLOW_RATIO * usual_s, usual_s + SLOW_DEVIATIONS * spread_s)
            if len(here) > MIN_PEERS and usual_s > 0:
                found += [(float(mean_s[i] / usual_s), int(ranks[i]), float(mean_s[i]), usual_s) for i in here[far]]
        for ratio, rank, rank_s, usual_s in sorted(found, reverse=True):
            text = f"{timer} of rank {rank} takes {ratio:.2f} times as long as that of its peers on the stage (sum of microbatches)"
            values = {"ratio": ratio, "rank_s": rank_s, "peers_s": usual_s}
            yield SlowRank(rank, timer, _worker_of(rank, sizes), text, values, by_peers=True)
        if found:
            return  # the other direction tells of the same ranks


def _by_detector(log: TrainingLog, sizes: dict[str, int], when: When) -> Iterator[SlowRank]:
    """Name the rank that the straggler detector has at an extreme nearly always; it compares all stages with each other."""
    for key, say in (("Rtt", "slowest forwards"), ("Clk", "lowest clock"), ("Tmp", "highest temperature")):
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
        text = f"rank {rank} has the {say} of all ranks in {n} of {len(odd_rank)} reports: {value:g} {unit}"
        text += f", at the other end {others:g} {unit}"
        values = {"reports": float(len(odd_rank)), "named": float(n), "value": value, "other_end": others}
        yield SlowRank(int(rank), key, _worker_of(int(rank), sizes), text, values, by_peers=False)


def _while_slow(iteration: Ints, when: When) -> Bools:
    """Mark the reports while the run is slow; all where it never is, or none was made then."""
    low = -np.inf if when.onset_step is None else when.onset_step
    high = np.inf if when.recovery_step is None else when.recovery_step
    at = np.asarray((iteration >= low) & (iteration < high))
    return at if at.any() else np.ones(len(iteration), dtype=bool)


def _stage_of(rank: int, sizes: dict[str, int]) -> int | None:
    """Say on which stage a rank is: Megatron-LM numbers stages last. None where sizes are not known or make no sense."""
    world, n_stages = sizes.get("world_size"), sizes.get("pp_size")
    if not world or not n_stages or world % n_stages:
        return None
    return rank // (world // n_stages)


def _worker_of(rank: int, sizes: dict[str, int]) -> Worker | None:
    """Say which dp rank and stage a global rank is: Megatron-LM numbers tensor- and context-parallel members first."""
    stage = _stage_of(rank, sizes)
    members = sizes.get("tp_size", 0) * sizes.get("cp_size", 1)
    if stage is None or not members:
        return None
    return Worker(rank % (sizes["world_size"] // sizes["pp_size"]) // members, stage, rank - rank % members)
