"""Single slow lines, and seconds between lines: what the log tells of at these, their period, and what comes at random.

Enters: `Lines`, what each line has above its pace, and the events and intervals of the log. Leaves: `Spikes` of one kind each.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from diagnose.features.series.lines import Lines
from diagnose.model.diagnosis_document import LogSpikes
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.training_log import LogEventKind, LogLoss, LogPart, TrainingLog
from diagnose.numerics.period import LEAST_HITS, LEAST_KEPT, Train, find_train, is_chance
from diagnose.numerics.robust import MAD_TO_SIGMA

#: An event explains what is slow where this part of its lines are slow.
TOLD_SHARE = 0.6
#: What this part of the lines has is what all have.
FEW_SHARE = 0.1
#: Trains looked for among what is left, and kinds kept at most.
MOST_TRAINS = 4
MOST_KINDS = 8
#: Shorter periods that are named at most, the longest.
MOST_SHORTER = 3
#: Lines of so many steps at most are asked for periods shorter than a line.
MOST_WIDTH = 256
#: A part of a step takes most of what spikes cost from this share on.
PART_SHARE = 0.6
#: What a line that two kinds share has above the usual one of the first is the other's, from so many deviations on, and this part.
MORE_DEVIATIONS, LEAST_MORE = 4.0, 0.05
#: ... unless more than this part of the lines that no other kind has are as long.
COMMON_SHARE = 0.1
#: Intervals that say when something is done; the rest say how much is done at once.
TIMED = ("save", "evaluation", "collection", "log", "profile", "epoch")
#: Steps of an interval that a slow step may lie away from a multiple of it: what is done after a step shows in the next.
NEAR_MULTIPLE = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spikes:
    """What stands out of one kind: in the words of the diagnosis, its lines, the seconds at each, and what they count as."""

    said: LogSpikes
    lines: Ints
    seconds: Seconds
    loss: LogLoss


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    """Events of a kind that stand at lines that stand out: these lines, how many stand there, and the iterations of all events."""

    kind: LogEventKind
    at: Ints
    n: int
    numbers: Ints


def sort_spikes(log: TrainingLog, lines: Lines, excess_s: Seconds, hits: Bools, *, within: bool) -> list[Spikes]:
    """Sort what stands out by what the log tells of at these lines, then by period; what is left comes at random.

    Parameters
    ----------
    excess_s : ndarray of float64, shape (n_lines,)
        Seconds of a line above the pace around it, of all its steps together; or seconds between it and the line before.
    hits : ndarray of bool, shape (n_lines,)
        Lines that stand out.
    within : bool
        True where the seconds are within the logged step times.
    """
    left_s, left = np.where(hits, excess_s, 0.0), hits.copy()
    found = []
    told = _match_events(log, lines, left, within=within)
    free = np.ones(len(hits), dtype=bool)  # lines that no kind has yet
    stated = _list_stated(log, lines)
    if (around := _find_around(log, lines, left, told, stated)) is not None:
        taken = _take(np.flatnonzero(left)[around[0].hits], left_s, left, shared=around[1])
        found.append(_describe(log, lines, taken, train=around[0], free=free, within=within))
    for i, one in enumerate(told):
        others = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(other.at for other in told[i + 1 :])]))
        own_s = None if within else _add_up_events(log, lines, one.kind)[one.at]
        taken = _take(one.at, left_s, left, shared=np.isin(one.at, others), own_s=own_s)
        if len(taken[0]):
            found.append(_describe(log, lines, taken, told=one, within=within))
            free[taken[0]] = False
    for _ in range(MOST_TRAINS):
        train = find_train(lines.iteration, left, width=lines.interval if log.is_mean else 1, stated=stated)
        more = max(_list_shorter(log, lines, left, free), key=lambda one: one.n_hits, default=None)
        if more is not None and more.n_hits > (train.n_hits if train is not None else LEAST_HITS - 1):
            train = more
        if train is None:
            break
        at = np.flatnonzero(left)[train.hits]
        longer = [n for n in stated if n > train.period and n % train.period == 0]
        numbers = lines.iteration[at] - train.phase
        shared = (
            np.any([numbers % n < lines.interval for n in longer], axis=0) if longer else np.zeros(len(at), dtype=bool)
        )
        taken = _take(at, left_s, left, shared=shared)
        found.append(_describe(log, lines, taken, train=train, free=free, within=within))
        free[taken[0]] = False
    rest = np.flatnonzero(left)
    if len(rest):
        found.append(_describe(log, lines, (rest, left_s[rest]), within=within))
    found.sort(key=lambda one: -one.said.lost_s)
    return found[:MOST_KINDS]


def _find_around(
    log: TrainingLog, lines: Lines, hits: Bools, told: Sequence[_Told], stated: Sequence[int]
) -> tuple[Train, Bools] | None:
    """Find a period that nothing tells of, but at some of whose lines the log tells of something else; and which these are.

    An evaluation every hundred steps, and a save at every third of them: only the save has a line.
    """
    if not told:
        return None
    known = np.unique(np.concatenate([one.at for one in told]))
    train = find_train(lines.iteration, hits, width=lines.interval if log.is_mean else 1, stated=stated)
    if train is None:
        return None
    shared = np.isin(np.flatnonzero(hits)[train.hits], known)
    n_known = int(np.isin(known, np.flatnonzero(hits)[train.hits]).sum())
    is_around = n_known >= TOLD_SHARE * len(known) and 0.0 < float(shared.mean()) <= TOLD_SHARE
    return (train, shared) if is_around else None


def _add_up_events(log: TrainingLog, lines: Lines, kind: LogEventKind) -> Seconds:
    """Add up the seconds that events of a kind tell between each line and the one before, shape (n_lines,); NaN where none does."""
    told = [event for event in log.events if event.kind == kind and math.isfinite(event.seconds)]
    at = np.searchsorted(lines.iteration, np.array([event.iteration for event in told], dtype=np.int64), side="right")
    told_s = np.bincount(at, [event.seconds for event in told], minlength=len(lines.iteration) + 1)[:-1]
    return np.where(np.bincount(at, minlength=len(told_s) + 1)[:-1] > 0, told_s, np.nan)


def _take(
    at: Ints, left_s: Seconds, left: Bools, *, shared: Bools, own_s: Seconds | None = None
) -> tuple[Ints, Seconds]:
    """Take what a kind costs from what is left: all of a line, or of one that another kind shares as much as of others.

    `own_s` are the seconds that the log itself tells it took there, NaN where it does not.
    """
    here = left[at]
    at, shared = at[here], shared[here]
    seconds = left_s[at].copy()
    if own_s is not None:
        is_told = shared & np.isfinite(own_s[here])
        seconds[is_told] = np.minimum(seconds, own_s[here])[is_told]
        shared &= ~is_told
    if shared.any() and not shared.all():
        usual = float(np.median(seconds[~shared]))
        spread = float(MAD_TO_SIGMA * np.median(np.abs(seconds[~shared] - usual)))
        is_more = seconds > usual + max(MORE_DEVIATIONS * spread, LEAST_MORE * usual)
        # Where many of the others are as long, the other kind is not what makes these longer.
        if float(is_more[~shared].mean()) <= COMMON_SHARE:
            seconds[shared & is_more] = usual
    left_s[at] -= seconds
    left[at] = left_s[at] > 0
    return at, seconds


def _match_events(log: TrainingLog, lines: Lines, hits: Bools, *, within: bool) -> list[_Told]:
    """Give each kind of event that stands at lines that stand out, the most frequent first.

    Where all lines of several steps have some, it is those that have more that do.
    """
    kinds = {event.kind for event in log.events if event.kind != "error"}
    told: list[_Told] = []
    for kind in sorted(kinds):
        numbers = np.array(sorted({event.iteration for event in log.events if event.kind == kind}), dtype=np.int64)
        best, found = 0.0, None
        # It lies in the step that it names, or between that and the next.
        for side in ("right", "left") if within else ("right",):
            each = np.searchsorted(lines.iteration, numbers, side=side)
            n_events = np.bincount(each, minlength=len(hits) + 1)[: len(hits)]
            usual = int(np.quantile(n_events, FEW_SHARE, method="lower"))
            at = np.flatnonzero(n_events > usual)
            share = float(hits[at].mean()) if len(at) else 0.0
            if share > best:
                best, at = share, at[hits[at]]
                found = _Told(kind, at, int((n_events[at] - usual).sum()), numbers)
        if found is None:
            continue
        # Between lines an event takes what it tells, also where others of its kind are too short to stand out.
        if best >= TOLD_SHARE or (not within and bool(np.isfinite(_add_up_events(log, lines, kind)[found.at]).all())):
            told.append(found)
    return sorted(told, key=lambda one: -one.n)


def _list_stated(log: TrainingLog, lines: Lines) -> list[int]:
    """List the intervals that the log states, as lines of single steps show them."""
    return sorted({_as_shown(log, lines, n) for n in log.intervals.values() if n > 1})


def _as_shown(log: TrainingLog, lines: Lines, interval: int) -> int:
    """Give the interval at which lines show what comes at an interval.

    Lines of single steps see only some; lines of more steps than the interval have now one more, now one less within.
    """
    return interval if log.is_mean and interval > lines.interval else int(np.lcm(interval, lines.interval))


def _describe(
    log: TrainingLog,
    lines: Lines,
    taken: tuple[Ints, Seconds],
    *,
    told: _Told | None = None,
    train: Train | None = None,
    free: Bools | None = None,
    within: bool,
) -> Spikes:
    """Put spikes of one kind into words and figures; `free` are lines that no other kind has."""
    at, seconds = taken
    numbers = lines.iteration[at]
    parts = _share_parts(log, lines, at, seconds)
    matches: tuple[str, ...] = ()
    shorter: tuple[int, ...] = ()
    loss: LogLoss
    period, n, width = None, len(at), lines.interval
    if told is not None:
        matches, loss, n = (told.kind,), told.kind, told.n  # type: ignore[assignment]
        apart = np.diff(told.numbers)
        even = len(apart) >= 2 and int(apart.min()) > 0 and float(np.mean(apart == np.median(apart))) >= TOLD_SHARE
        period = int(np.median(apart)) if even else None
        stated = {str(name): n for name, n in log.intervals.items()}.get(told.kind)
        period = stated or period
    elif train is not None and free is not None:
        period = train.period
        matches = _match_intervals(log, lines, period, train.phase)
        if within and parts.get("data", 1.0) < PART_SHARE / 2:  # the loader's own seconds do not have it
            matches = tuple(kind for kind in matches if kind != "loader-workers")
        loss = _loss_of(matches)
        shorter = _name_shorter(log, lines, train, at, free) if not matches else ()
    else:
        loss = "sporadic"
    middle = float(np.quantile(seconds, 0.75) - np.quantile(seconds, 0.25)) / float(np.median(seconds))
    count = _count(lines, at, period, n, mean=log.is_mean)
    # A line that is one step of several costs what all of them would: the slow one is longer by its part of that.
    each_s = seconds / lines.steps[at] if within and not log.is_mean else seconds
    said = LogSpikes(
        count=count,
        lines=len(at),
        pattern="periodic" if period is not None else "sporadic",
        period=period,
        or_every=shorter,
        regularity=train.kept if train is not None else None,
        first=int(numbers[0]),
        last=int(numbers[-1]),
        matches=matches,
        told=told is not None,
        within=within,
        # Where lines have several, those that stand out have one more.
        excess=float(np.median(each_s)) * (len(at) / max(count, 1) if (period or width) >= width else 1.0),
        spread=middle if len(at) >= 4 else None,
        part=next((part for part, share in parts.items() if share >= PART_SHARE), None) if within else None,
        lost_s=float(seconds.sum()),
    )
    return Spikes(said, at, seconds, loss)


def _count(lines: Lines, at: Ints, period: int | None, n: int, *, mean: bool) -> int:
    """Count spikes: a line of several steps has one, or as many as its period puts into it."""
    if period is None or not mean or lines.interval == 1:
        return n
    return (
        max(n, round(float(lines.iteration[at[-1]] - lines.iteration[at[0]]) / period) + 1)
        if period < lines.interval
        else n
    )


def _name_shorter(log: TrainingLog, lines: Lines, train: Train, at: Ints, free: Bools) -> tuple[int, ...]:
    """Name the shorter periods that would show as this one: where lines are single steps, those whose others are not printed."""
    if not log.is_mean:
        width, period = lines.interval, train.period
        return tuple(n for n in range(2, period) if np.lcm(n, width) == period)[-MOST_SHORTER:] if width > 1 else ()
    hits = np.isin(np.arange(len(free)), at)
    return tuple(sorted(one.period for one in _list_shorter(log, lines, hits, free) if one.period < train.period))


def _list_shorter(log: TrainingLog, lines: Lines, hits: Bools, free: Bools) -> list[Train]:
    """List the periods shorter than a line that explain most of the hits.

    Where lines are means of several steps, those that are hit have one slow step more than all others that are free.
    """
    at, width = np.flatnonzero(hits), lines.interval
    if not log.is_mean or len(at) < LEAST_HITS:
        return []
    inside = slice(at[0], at[-1] + 1)
    ends, hit, is_free = lines.iteration[inside], hits[inside], free[inside]
    found: list[Train] = []
    for n in range(2, min(width, MOST_WIDTH)):
        part = width % n / n  # of the lines, with one more
        if not LEAST_KEPT * hit.mean() <= part <= float((hit | ~is_free).mean()) / LEAST_KEPT:
            continue
        for phase in range(n):
            more = (((ends - phase) // n - (ends - width - phase) // n) > width // n) & is_free
            both = int((more & hit).sum())
            kept = both / max(int(more.sum()), 1)
            if both < LEAST_KEPT * len(at) or kept < LEAST_KEPT:
                continue
            train = Train(n, phase, both, kept, more[hit])
            if not is_chance(train, frequent=float(hit.mean()), choices=width**2):
                found.append(train)
    best = max((one.n_hits * one.kept for one in found), default=0.0)
    return list({one.period: one for one in found if one.n_hits * one.kept >= best}.values())


def _match_intervals(log: TrainingLog, lines: Lines, period: int, phase: int) -> tuple[str, ...]:
    """Name what the log states the same interval of; what is done at multiples lies at, or just after, these."""
    found = []
    for kind, interval in sorted(log.intervals.items()):
        if interval <= 1 or _as_shown(log, lines, interval) != period:
            continue
        width = lines.interval if log.is_mean else 1
        if kind in TIMED:
            # phase is the smallest number within which it lies; of a line of several steps any of them may be it
            away = (phase + np.arange(width)) % period
            if not (np.minimum(away, period - away) <= NEAR_MULTIPLE).any():
                continue
        found.append(kind)
    return tuple(found)


def _loss_of(matches: Sequence[str]) -> LogLoss:
    """Say what spikes count as by what they match; the loader, and what matches nothing or too much, are told by their period."""
    if len(matches) == 1 and matches[0] in TIMED:
        return matches[0]  # type: ignore[return-value]
    return "periodic"


def _share_parts(log: TrainingLog, lines: Lines, at: Ints, seconds: Seconds) -> dict[LogPart, float]:
    """Give the share of what spikes cost that each part of a step has, by the log's own seconds; the largest first."""
    total = float(seconds.sum())
    ordinary = np.ones(len(lines.iteration), dtype=bool)
    ordinary[at] = False
    shares: dict[LogPart, float] = {}
    for part, all_s in log.parts.items():
        part_s = all_s[lines.index]
        known = np.isfinite(part_s)
        if not known[at].any() or not (known & ordinary).any():
            continue
        usual = float(np.median(part_s[known & ordinary]))
        shares[part] = float(((part_s[at] - usual) * lines.steps[at])[known[at]].sum()) / total
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))
