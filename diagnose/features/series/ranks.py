"""Which ranks a log sets apart from their peers.

Enters: a `TrainingLog` with timers of every rank, or reports of the straggler detector. Leaves: `SlowRank`s.
"""

import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np

from diagnose.model.cause import When
from diagnose.model.place import Worker
from diagnose.model.trace import Bools, Ints
from diagnose.model.training_log import SlowRank, TrainingLog
from diagnose.numerics.robust import robust_deviation

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


def find_slow_ranks(log: TrainingLog, sizes: dict[str, int], when: When) -> tuple[SlowRank, ...]:
    """Find the ranks that are apart from their peers while the run is slow, those compared within their stage first."""
    return tuple(itertools.islice(_slow_ranks(log, sizes, when), MAX_RANKS))


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
