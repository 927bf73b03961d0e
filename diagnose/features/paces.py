"""What a training log shows: its pace, when it was slow and by how much, what comes at a period, restarts, and ranks apart.

Enters: a `TrainingLog`. Leaves: `LogFacts`, with a ledger that sums to all time above the job's own good pace.
"""

import dataclasses
import itertools
import math
from collections import defaultdict

import numpy as np

from diagnose.features.series.baseline import SPIKE_DEVIATIONS, Baseline, fit_baseline
from diagnose.features.series.lines import KNOWN_SHARE, Lines, keep_lines
from diagnose.features.series.ranks import find_slow_ranks
from diagnose.features.series.spikes import Spikes, sort_spikes
from diagnose.model.cause import When
from diagnose.model.diagnosis_document import LogLedger, LogRamp, LogRestart, LogSpread, LogWindow
from diagnose.model.trace import Bools, Seconds
from diagnose.model.training_log import Level, LogFacts, LogLoss, LogPart, TrainingLog
from diagnose.numerics.pieces import LEAST_NOISE_RATIO, Piece
from diagnose.numerics.robust import MAD_TO_SIGMA, Floats

#: A part of the step takes most of what slow lines take longer from this share on.
PART_SHARE = 0.6
#: Seconds between two lines stand out from this part of the seconds of their steps on.
BETWEEN_SHARE = 0.02
#: Time between steps that is no more than this part of all is what stamps and digits leave.
LEAST_BETWEEN = 0.005
#: Stamps say nothing of time between steps where this part of all that passed is a digit of them.
LEAST_RESOLVED = 0.05
#: A log that scatters so many times as much in its last third as in its first has grown restless; both have so many lines.
RESTLESS = 2.0
LEAST_THIRD = 30


@dataclasses.dataclass(frozen=True, slots=True)
class _Between:
    """Seconds between each line and the one before that are not in steps, shape (n_lines,); NaN where stamps do not say."""

    seconds: Seconds
    hits: Bools


#: The mean of lines is another one where it differs by so many standard errors of the clock that they were read off.
READ_ERRORS = 3.0


def measure_log(log: TrainingLog, *, min_speedup: float, sizes: dict[str, int] | None = None) -> LogFacts:
    """Find when a run is slow and what that costs, and which ranks are apart from their peers.

    A pace is slow when the good one is at least `min_speedup` faster. `sizes` are `world_size`, `pp_size`, `tp_size` and
    `cp_size` by a trace; those of the log where left out.
    """
    lines = keep_lines(log)
    base = fit_baseline(lines, least_ratio=min_speedup)
    slow = [_is_slow(piece, lines, base, min_speedup) for piece in base.pieces]
    all_s = _add_up_lines(log, lines, base)
    excess_s = all_s - lines.work * base.pace_s * lines.steps
    between = _measure_between(lines, all_s)
    spikes = sort_spikes(log, lines, excess_s, base.spikes, within=True)
    if between is not None:
        spikes += sort_spikes(log, lines, np.nan_to_num(between.seconds), between.hits, within=False)
        spikes.sort(key=lambda one: -one.said.lost_s)
    windows, ramps = _find_windows(log, lines, base, slow, min_speedup)
    restarts = _price_restarts(log, lines)
    ledger = _keep_ledger(log, lines, base, slow, all_s, spikes, between, restarts)
    when, at = _choose_window(windows)
    usual_s, slow_s, deviations = _compare_paces(lines, base, windows, at)
    return LogFacts(
        name=log.name,
        iterations=lines.iteration,
        step_s=lines.step_s,
        interval=lines.interval,
        failures=log.failures,
        ended_s=_find_end(lines),
        levels=_list_levels(lines, base),
        usual_s=usual_s,
        slow_s=slow_s,
        when=when,
        deviations=deviations,
        lost_s=float(sum(window.lost_s for window in windows)),
        restarts=restarts,
        slow_ranks=find_slow_ranks(log, sizes or log.sizes, when),
        checkpoints_s=tuple(
            event.seconds for event in log.events if event.kind == "save" and math.isfinite(event.seconds)
        ),
        format=log.format,
        reads=log.reads,
        is_mean=log.is_mean,
        of=log.of,
        windows=windows,
        ramps=ramps,
        spikes=tuple(one.said for one in spikes),
        spike_lines=tuple(one.lines for one in spikes),
        start_lines=tuple(np.flatnonzero(base.starts).tolist()),
        work=lines.by,
        n_flushed=_count_flushed(log, lines),
        slower_part=_find_slower_part(log, lines, base, slow),
        experts=log.sizes.get("experts", 0),
        is_work_told=bool(np.isfinite(log.tokens[lines.index]).mean() >= KNOWN_SHARE),
        spread=_measure_spread(base),
        ledger=ledger,
        parts=_share_parts(log, lines, base),
        intervals={str(kind): n for kind, n in log.intervals.items()},
    )


# ------------------------------------------------------------------------------------------ windows


def _is_slow(piece: Piece, lines: Lines, base: Baseline, min_speedup: float) -> bool:
    """Say whether a piece is slow beside the good pace.

    A few lines that were read off a coarse clock are as slow as the good ones by its readings, and the first of them may still have
    steps of the piece before.
    """
    if max(piece.first, piece.last) < min_speedup * base.good_s:
        return False
    inner = np.arange(piece.start + 1, piece.end)
    inner = inner[~base.spikes[inner]]
    if lines.clock <= LEAST_NOISE_RATIO or piece.is_ramp or not piece.start or not len(inner):
        return True
    least = 1.0 + READ_ERRORS * lines.clock / math.sqrt(len(inner))
    return bool(lines.pace_s[inner].mean() >= max(min_speedup, least) * base.good_s)


def _find_windows(
    log: TrainingLog, lines: Lines, base: Baseline, slow: list[bool], min_speedup: float
) -> tuple[tuple[LogWindow, ...], tuple[LogRamp, ...]]:
    """Give each time that the run was slow, and the ramps within."""
    cost_s = _cost_of_pace(lines, base)
    windows, ramps = [], []
    for is_slow, group in itertools.groupby(zip(slow, base.pieces, strict=True), key=lambda pair: pair[0]):
        pieces = [piece for _, piece in group]
        ramps += [_describe_ramp(lines, piece, cost_s) for piece in pieces if piece.is_ramp and is_slow]
        if not is_slow:
            continue
        start, end = pieces[0].start, pieces[-1].end
        first = _date_change(log, lines, base, start)
        last, is_over = int(lines.iteration[-1]), end < len(lines.iteration)
        if is_over:
            last = _date_change(log, lines, base, end) - 1
        elif pieces[-1].is_ramp and pieces[-1].last < min_speedup * base.good_s:  # it falls to the good pace
            last, is_over = last - 1, True
        apart = base.starts[start:end] | base.spikes[start:end]
        within = lines.pace_s[start:end]
        windows.append(
            LogWindow(
                first=first,
                last=last,
                onset=first if start > 0 else None,
                recovery=last + 1 if is_over else None,
                step_time=float(np.median(within[~apart] if not apart.all() else within)),
                lost_s=float(cost_s[start:end].sum()),
            )
        )
    return tuple(windows), tuple(ramps)


def _date_change(log: TrainingLog, lines: Lines, base: Baseline, at: int) -> int:
    """Give the first iteration of a piece: where a line is the mean of several, the one at which the pace changed within it."""
    if not log.is_mean or lines.interval == 1:
        return int(lines.iteration[at])
    if at == 0:
        return int(lines.iteration[0] - lines.steps[0] + 1)
    before, after = base.pace_s[max(at - 2, 0)], base.pace_s[min(at + 1, len(base.pace_s) - 1)]
    near = [i for i in (at - 1, at) if not lines.begins[i]]
    passed = [min(max((after - lines.pace_s[i]) / (after - before), 0.0), 1.0) for i in near] if after != before else []
    steps = float(sum(part * lines.steps[i] for part, i in zip(passed, near, strict=False)))
    began = lines.iteration[near[0]] - lines.steps[near[0]] if near else lines.iteration[at] - lines.steps[at]
    return int(began + round(steps)) + 1


def _cost_of_pace(lines: Lines, base: Baseline) -> Seconds:
    """Give what each line costs above the good pace, without what stands out: seconds of all its steps, shape (n_lines,)."""
    apart = base.starts | base.spikes
    pace_s = np.where(apart, base.pace_s, lines.pace_s)
    return np.asarray((pace_s - base.good_s) * lines.work * lines.steps)


def _describe_ramp(lines: Lines, piece: Piece, cost_s: Seconds) -> LogRamp:
    """Say from what to what a ramp goes."""
    first, last = int(lines.iteration[piece.start]), int(lines.iteration[piece.end - 1])
    return LogRamp(
        first=first,
        last=last,
        from_step_time=piece.first,
        to_step_time=piece.last,
        slope=(piece.last - piece.first) / max(last - first, 1),
        lost_s=float(cost_s[piece.start : piece.end].sum()),
    )


def _choose_window(windows: tuple[LogWindow, ...]) -> tuple[When, int | None]:
    """Say since when and until when a run is slow: of the window that goes on, else of the one that cost most."""
    if not windows:
        return When(), None
    at = len(windows) - 1 if windows[-1].recovery is None else max(range(len(windows)), key=lambda i: windows[i].lost_s)
    window = windows[at]
    if window.recovery is not None:
        return When("transient", window.onset, window.recovery), at
    return When("onset", window.onset), at


def _compare_paces(
    lines: Lines, base: Baseline, windows: tuple[LogWindow, ...], at: int | None
) -> tuple[float | None, float | None, float | None]:
    """Give the good pace, that of a window, and by how many standard deviations they differ."""
    if at is None:
        return None, None, None
    window = windows[at]
    during = (lines.iteration >= window.first) & (lines.iteration <= window.last)
    n_slow, n_usual = int(during.sum()), max(int((~during).sum()), 1)
    noise = max(float(np.median(base.sigma)), LEAST_NOISE_RATIO) * base.good_s
    return (
        base.good_s,
        window.step_time,
        (window.step_time - base.good_s) / (noise * math.sqrt(1.0 / n_slow + 1.0 / n_usual)),
    )


def _list_levels(lines: Lines, base: Baseline) -> tuple[Level, ...]:
    """List the paces one after the other: a ramp by what it begins with."""
    return tuple(
        Level(
            int(lines.iteration[piece.start]),
            int(lines.iteration[piece.end - 1]),
            piece.first if piece.is_ramp else _level_of(lines, base, piece),
        )
        for piece in base.pieces
    )


def _level_of(lines: Lines, base: Baseline, piece: Piece) -> float:
    """Give the median of the ordinary lines of a level."""
    part = slice(piece.start, piece.end)
    ordinary = ~(base.starts | base.spikes)[part]
    return float(np.median(lines.pace_s[part][ordinary])) if ordinary.any() else piece.first


# ------------------------------------------------------------------------------------------ between steps, restarts


def _measure_between(lines: Lines, all_s: Seconds) -> _Between | None:
    """Measure the seconds between lines that are not in their steps; None where too few lines bear a time."""
    seconds = np.full(len(lines.iteration), np.nan)
    inner = np.flatnonzero(~lines.begins)
    follows = inner[lines.index[inner] == lines.index[inner - 1] + 1]
    passed_s = lines.stamp_s[follows] - lines.stamp_s[follows - 1]
    apart = np.diff(lines.iteration, prepend=lines.iteration[0] - lines.interval)[follows]
    seconds[follows] = np.where(apart == lines.steps[follows], passed_s - all_s[follows], np.nan)
    known = np.isfinite(seconds)
    if known.sum() < max(3, len(seconds) // 2):
        return None
    stamps = lines.stamp_s[np.isfinite(lines.stamp_s)]
    resolution = 1.0 if np.all(stamps == np.round(stamps)) else 1e-3
    if resolution > LEAST_RESOLVED * float(passed_s[known[follows]].sum()):
        return None
    usual = float(np.median(seconds[known]))
    sigma = float(MAD_TO_SIGMA * np.median(np.abs(seconds[known] - usual)))
    least = usual + np.maximum(
        max(SPIKE_DEVIATIONS * sigma, 2 * resolution), BETWEEN_SHARE * lines.step_s * lines.steps
    )
    hits = known & (np.nan_to_num(seconds, nan=-np.inf) > least)
    return _Between(seconds, hits)


def _find_end(lines: Lines) -> float | None:
    """Give when the last line that bears a time was written."""
    stamps = lines.stamp_s[np.isfinite(lines.stamp_s)]
    return float(stamps[-1]) if len(stamps) else None


def _price_restarts(log: TrainingLog, lines: Lines) -> tuple[LogRestart, ...]:
    """Say what each restart cost: the time from one line to the next that is not in a step, and steps that were run again."""
    found = []
    begins = np.flatnonzero(np.diff(log.attempt, prepend=log.attempt[0]) > 0)
    for n, restart in enumerate(log.restarts):
        again_s = float(lines.again_s[n]) if n < len(lines.again_s) else 0.0
        down_s = 0.0
        if restart.lost_s is not None and n < len(begins):
            down_s = max(0.0, restart.lost_s - float(log.step_s[begins[n]]) * lines.interval)
        gone: tuple[str, ...] = ()
        new: tuple[str, ...] = ()
        if n + 1 < len(log.hosts) and log.hosts[n] and log.hosts[n + 1]:
            gone = tuple(sorted(set(log.hosts[n]) - set(log.hosts[n + 1])))
            new = tuple(sorted(set(log.hosts[n + 1]) - set(log.hosts[n])))
        cost_s = again_s + down_s if restart.lost_s is not None or again_s else None
        found.append(LogRestart(restart.after, restart.resumed_at, restart.lost_s, again_s, cost_s, gone, new))
    return tuple(found)


# ------------------------------------------------------------------------------------------ ledger


def _add_up_lines(log: TrainingLog, lines: Lines, base: Baseline) -> Seconds:
    """Give the seconds of all steps that each line stands for, shape (n_lines,).

    Where a line is one step of several, those that are not printed are like it, but for what the log tells of at this one: an
    evaluation is in the time of the iteration that it is printed before, and in no other.
    """
    all_s = lines.step_s * lines.steps
    if not log.is_mean:
        told = {event.iteration for event in log.events if event.kind in ("evaluation", "save")}
        alone = np.isin(lines.iteration, np.array(sorted(told), dtype=np.int64)) & base.spikes
        all_s[alone] = (lines.step_s + (lines.steps - 1.0) * lines.work * base.pace_s)[alone]
    return np.asarray(all_s)


def _keep_ledger(
    log: TrainingLog,
    lines: Lines,
    base: Baseline,
    slow: list[bool],
    all_s: Seconds,
    spikes: list[Spikes],
    between: _Between | None,
    restarts: tuple[LogRestart, ...],
) -> LogLedger:
    """Share out all time above the good pace; what is left is ordinary variation."""
    lost: defaultdict[LogLoss, float] = defaultdict(float)
    cost_s = _cost_of_pace(lines, base)
    for is_slow, piece in zip(slow, base.pieces, strict=True):
        if is_slow:
            lost["ramps" if piece.is_ramp else "windows"] += float(cost_s[piece.start : piece.end].sum())
    lost["start"] = float((all_s - lines.work * base.pace_s * lines.steps)[base.starts].sum())
    for one in spikes:
        lost[one.loss] += float(one.seconds.sum())
    lost["restarts"] = float(sum(restart.cost_s or 0.0 for restart in restarts))
    total_s = float(all_s.sum()) + lost["restarts"]
    if between is None:
        for kind, told_s in _add_up_told(log, lines, spikes).items():
            lost[kind] += told_s
            total_s += told_s
    else:
        hits_s = float(between.seconds[between.hits].sum())
        rest_s = float(np.nansum(between.seconds)) - hits_s
        lost["between"] = rest_s if rest_s > LEAST_BETWEEN * (total_s + hits_s + rest_s) else 0.0
        total_s += hits_s + lost["between"]
    good_s = float((lines.work * lines.steps).sum()) * base.good_s
    seconds: dict[str, float] = {
        key: value for key, value in sorted(lost.items(), key=lambda e: (-e[1], e[0])) if value
    }
    seconds["variation"] = total_s - good_s - sum(seconds.values())
    return LogLedger(
        total_s=total_s,
        good_pace=base.good_s,
        good_s=good_s,
        seconds=seconds,
        shares={key: value / total_s for key, value in seconds.items()},
    )


def _add_up_told(log: TrainingLog, lines: Lines, spikes: list[Spikes]) -> dict[LogLoss, float]:
    """Add up the seconds that the log tells of events that no step time shows: they lie between steps."""
    shown = {one.loss for one in spikes}
    found: dict[LogLoss, float] = {}
    for event in log.events:
        kind = event.kind
        if kind == "error" or kind in shown or not math.isfinite(event.seconds):
            continue
        if lines.iteration[0] - lines.interval <= event.iteration <= lines.iteration[-1]:
            found[kind] = found.get(kind, 0.0) + event.seconds
    return found


# ------------------------------------------------------------------------------------------ the rest


def _measure_spread(base: Baseline) -> LogSpread | None:
    """Compare how step times scatter at both ends of the log; None where they do alike."""
    logs = np.log(base.ratio)[~(base.starts | base.spikes)]
    third = len(logs) // 3
    if third < LEAST_THIRD:
        return None
    first, last = (
        max(float(MAD_TO_SIGMA * np.median(np.abs(part - np.median(part)))), LEAST_NOISE_RATIO)
        for part in (logs[:third], logs[-third:])
    )
    return LogSpread(first, last) if last >= RESTLESS * first else None


def _count_flushed(log: TrainingLog, lines: Lines) -> int:
    """Count the lines at which flushes of the allocator's cache are told of, by the first rank that tells of any."""
    ranks = [event.rank for event in log.events if event.kind == "cache-flush"]
    numbers = {event.iteration for event in log.events if event.kind == "cache-flush" and event.rank == ranks[0]}
    at = np.searchsorted(lines.iteration, np.array(sorted(numbers), dtype=np.int64))
    return len(np.unique(np.minimum(at, len(lines.iteration) - 1)))


def _find_slower_part(log: TrainingLog, lines: Lines, base: Baseline, slow: list[bool]) -> tuple[LogPart, float] | None:
    """Name the part of a step that takes most of what lines of slow windows take longer than the others."""
    during = np.zeros(len(lines.iteration), dtype=bool)
    for is_slow, piece in zip(slow, base.pieces, strict=True):
        during[piece.start : piece.end] |= is_slow
    # A ramp over the whole log is compared with itself: its slower half with the other.
    if during.all():
        during = base.pace_s > np.median(base.pace_s)
    if not during.any() or during.all():
        return None
    longer_s = float(lines.step_s[during].mean() - lines.step_s[~during].mean())
    shares: dict[LogPart, float] = {}
    for part, all_s in log.parts.items():
        part_s = all_s[lines.index]
        if longer_s > 0 and np.isfinite(part_s).mean() >= KNOWN_SHARE:
            shares[part] = float(np.nanmean(part_s[during]) - np.nanmean(part_s[~during])) / longer_s
    best = max(shares, key=lambda part: shares[part], default=None)
    return (best, min(shares[best], 1.0)) if best is not None and shares[best] >= PART_SHARE else None


def _share_parts(log: TrainingLog, lines: Lines, base: Baseline) -> dict[str, float]:
    """Give the mean part of an ordinary step that each part takes, where most lines tell it: what stands out is told by itself."""
    found: dict[str, float] = {}
    # The first step of an attempt that is printed alone is a start, also where there are too few lines to see that.
    ordinary = ~(base.starts | base.spikes | (lines.begins & (lines.steps < lines.interval)))
    for part, all_s in log.parts.items():
        seconds: Floats = all_s[lines.index]
        known = np.isfinite(seconds) & ordinary
        if 2 * known.sum() > ordinary.sum():
            weight = lines.steps[known]
            found[part] = float((seconds[known] * weight).sum() / (lines.step_s[known] * weight).sum())
    return found
