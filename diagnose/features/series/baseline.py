"""The pace of a run from line to line: levels and ramps, the slow first lines of each attempt, and the job's own good pace.

Enters: `Lines`. Leaves: a `Baseline`, an array of the pace of every line.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from diagnose.features.series.lines import Lines
from diagnose.model.trace import Bools, Ints
from diagnose.numerics.pieces import LEAST_NOISE_RATIO, MIN_LEVEL, Piece, find_crowds, fit_pieces, noise_of_means
from diagnose.numerics.robust import MAD_TO_SIGMA, Floats, noise_of_differences

#: Lines after a start that may hold what is built or loaded once, and lines after these that they are compared with.
START_LINES = 5
START_COMPARED = 16
#: Steps of a start at most, where lines are of many.
START_STEPS = 50
#: They are slow from this ratio on, and from so many standard deviations on.
START_RATIO = 1.1
#: They are slower than this part of those that they are compared with.
OFTEN = 0.8
#: A line is slow from so many standard deviations of the lines around it on, and from this ratio on: less is lost in the digits.
SPIKE_DEVIATIONS = 6.0
SPIKE_RATIO = 1.02
#: Lines that scatter as one.
LOCAL_LINES = 50
#: Steps lie on two levels when these are so many standard deviations within them apart, the lower has this part of them at least,
#: and hardly any lie between.
LEVELS_APART = 4.0
#: Of fewer lines two levels come by chance, unless half of the lower one's lie within this part of what they are apart.
LEAST_OF_TWO, EVEN_SHARE = 20, 0.1
LOWER_SHARE = 0.2
#: A level lasts for this part of the run before it is what the job can do.
LASTING_SHARE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """The pace of every line, all arrays of shape (n,), seconds of a step of usual work."""

    #: Levels and ramps over all lines, one after the other; a level is the mean of its ordinary lines.
    pieces: tuple[Piece, ...]
    #: Of the pieces.
    pace_s: Floats
    #: The job's own good pace: the lowest that lasts.
    good_s: float
    #: Slow first lines of an attempt.
    starts: Bools
    #: Single slow lines, those of starts not counted.
    spikes: Bools
    #: Of a line to its pace.
    ratio: Floats
    #: Standard deviation of the logarithm of `ratio` around a line.
    sigma: Floats


def fit_baseline(lines: Lines, *, least_ratio: float) -> Baseline:
    """Fit levels and ramps that differ by the least ratio, and set apart what is slow beside them."""
    values = lines.pace_s
    starts = _find_starts(lines, values)
    kept = np.flatnonzero(~starts)
    pieces = fit_pieces(values[kept], least_ratio=least_ratio, noise=lines.noise, clock=lines.clock)
    pieces = _settle(values[kept], pieces, lines.noise)
    pieces = _add_crowds(values[kept], pieces, least_ratio, lines.noise)
    pieces = _add_ends(values[kept], pieces, least_ratio, lines)
    pieces = _over_all(pieces, kept, len(values))
    pieces, spikes = _calibrate(lines, values, pieces, starts)
    pace_s = np.concatenate([piece.values() for piece in pieces])
    ratio = values / pace_s
    return Baseline(
        pieces=tuple(pieces),
        pace_s=pace_s,
        good_s=_find_good(lines, values, pieces, starts | spikes, least_ratio),
        starts=starts,
        spikes=spikes,
        ratio=ratio,
        sigma=_scatter(np.log(ratio), lines.noise),
    )


def _find_starts(lines: Lines, values: Floats) -> Bools:
    """Mark the slow lines that each attempt begins with; more than a few are a level."""
    slow = np.zeros(len(values), dtype=bool)
    noise = float(noise_of_differences(np.log(values)))
    begins = np.flatnonzero(lines.begins)
    most = min(START_LINES, max(1, START_STEPS // lines.interval))
    for at, end in zip(begins.tolist(), [*begins[1:].tolist(), len(values)], strict=True):
        after = values[at + START_LINES : min(end, at + START_LINES + START_COMPARED)]
        n_most = most
        if is_short := len(after) < MIN_LEVEL:
            after = values[at + 1 : end]  # in a short log the first alone can be told
            if len(after) < 2:  # nor can an attempt of two lines be compared with itself
                after = np.delete(values, begins)
            n_most = 1
        if len(after) < 2:
            continue
        # Of few lines the slow first one is much of what they differ by.
        sigma = max(float(noise_of_differences(np.log(after))) if is_short else noise, lines.noise)
        least = max(START_RATIO, float(np.exp(SPIKE_DEVIATIONS * sigma)))
        usual = float(np.quantile(after, OFTEN))  # a line as slow as many later ones is none of the start
        n = 0
        while n <= n_most and at + n < end and values[at + n] > least * usual:
            n += 1
        if n > n_most:  # slow for longer than a start: a level, whose first line may stand out all the same
            rest = values[at + 1 : at + 1 + START_LINES]
            n = int(len(rest) > 0 and values[at] > least * float(rest.max()))
        slow[at : at + n] = True
    return slow


def _settle(values: Floats, pieces: Sequence[Piece], noise: float) -> list[Piece]:
    """Take the lower one of two levels that lines of one piece jump between."""
    return [
        piece
        if piece.is_ramp
        else Piece(piece.start, piece.end, *(2 * [_lower_of(values[piece.start : piece.end], noise)]))
        for piece in pieces
    ]


def _lower_of(values: Floats, noise: float) -> float:
    """Give the median, or that of the lower one of two levels.

    Source of the levels: Otsu, A Threshold Selection Method, IEEE Transactions on Systems, Man, and Cybernetics 9 (1979).
    """
    ordered = np.sort(np.log(values))
    n = len(ordered)
    if n < 2 * MIN_LEVEL:
        return float(np.exp(np.median(ordered)))
    count = np.arange(1, n)
    total = np.cumsum(ordered)
    low, high = total[:-1] / count, (total[-1] - total[:-1]) / (n - count)
    at = int(np.argmax(count * (n - count) * (high - low) ** 2)) + 1
    lower, upper = ordered[:at], ordered[at:]
    spread = max(_deviation(lower), noise)
    apart = float(np.median(upper) - np.median(lower))
    gap = float(upper[0] - np.quantile(lower, 0.95))
    is_even = n >= LEAST_OF_TWO or float(np.ptp(np.quantile(lower, [0.25, 0.75]))) <= EVEN_SHARE * apart
    if at >= max(LOWER_SHARE * n, MIN_LEVEL) and apart > LEVELS_APART * spread and gap > spread and is_even:
        return float(np.exp(np.median(lower)))
    return float(np.exp(np.median(ordered)))


def _deviation(values: Floats) -> float:
    """Estimate a standard deviation around the median."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))


def _add_crowds(values: Floats, pieces: Sequence[Piece], least_ratio: float, noise: float) -> list[Piece]:
    """Make levels of the slow lines that stand close to each other, as short windows do in a long log."""
    pace_s = np.concatenate([piece.values() for piece in pieces])
    logs = np.log(values / pace_s)
    hits = logs > _least_spike(_scatter(logs, noise))
    found: list[Piece] = []
    crowds = find_crowds(hits)
    for piece in pieces:
        at = piece.start
        for a, b in crowds:
            if piece.is_ramp or a < piece.start or b > piece.end:
                continue
            level = float(np.median(values[a:b]))
            if level < least_ratio * piece.first:
                continue
            if a > at:
                found.append(Piece(at, a, piece.first, piece.last))
            found.append(Piece(a, b, level, level))
            at = b
        if at < piece.end:
            found.append(Piece(at, piece.end, piece.first if at == piece.start else piece.last, piece.last))
    return found


def _add_ends(values: Floats, pieces: Sequence[Piece], least_ratio: float, lines: Lines) -> list[Piece]:
    """Make levels of the fast lines at both ends that are too few for a level of their own: a slow window does not cover them.

    Steps are seldom faster by chance, and so few are no pace that lasts.
    """
    found = list(pieces)
    for at, order in ((0, 1), (-1, -1)):
        piece = found[at]
        if piece.is_ramp or piece.end - piece.start < 2 * MIN_LEVEL:
            continue
        logs = np.log(values[piece.start : piece.end] / piece.first)
        end = logs[::order][:MIN_LEVEL]
        sigma = max(float(noise_of_differences(logs)), lines.noise)
        fast = end < -max(SPIKE_DEVIATIONS * sigma, float(np.log(least_ratio)))
        n = int(np.argmin(fast)) if not fast.all() else MIN_LEVEL
        if lines.clock > LEAST_NOISE_RATIO:  # of several lines together only the first and the last reading count
            count = np.arange(1, MIN_LEVEL + 1)
            means = np.cumsum(end) / count
            noise = noise_of_means(logs[::order][MIN_LEVEL:], count, lines.noise, lines.clock)
            best = int(np.argmin(means / noise))
            n = int(count[best]) * bool(means[best] < -max(SPIKE_DEVIATIONS * noise[best], np.log(least_ratio)))
        if not n:
            continue
        middle = piece.start + n if order > 0 else piece.end - n
        parts = [Piece(piece.start, middle, piece.first, piece.last), Piece(middle, piece.end, piece.first, piece.last)]
        edge = parts[at]
        middle_of = np.mean if lines.clock > LEAST_NOISE_RATIO else np.median
        level = float(middle_of(values[edge.start : edge.end]))
        parts[at] = Piece(edge.start, edge.end, level, level)
        found[at : at + 1 or None] = parts
    return found


def _over_all(pieces: Sequence[Piece], kept: Ints, n: int) -> list[Piece]:
    """Stretch pieces over the lines that were left out: each of these belongs to what comes after it."""
    ends = [int(kept[piece.end - 1]) + 1 for piece in pieces[:-1]] + [n]
    starts = [0, *ends[:-1]]
    return [Piece(a, b, piece.first, piece.last) for a, b, piece in zip(starts, ends, pieces, strict=True)]


def _calibrate(lines: Lines, values: Floats, pieces: Sequence[Piece], starts: Bools) -> tuple[list[Piece], Bools]:
    """Mark spikes, and make each piece the mean of its ordinary lines, so that costs add up."""
    pace_s = np.concatenate([piece.values() for piece in pieces])
    logs = np.log(values / pace_s)
    spikes = (logs > _least_spike(_scatter(logs, lines.noise))) & ~starts
    ordinary = ~(spikes | starts)
    if lines.interval > 1:
        # The mean of few lines needs all of them where their clock is coarse.
        ordinary &= ~_mark_changes(pieces, MIN_LEVEL * (1 + (lines.clock > LEAST_NOISE_RATIO)))
    weight = lines.steps * lines.work
    found = []
    for piece in pieces:
        part = slice(piece.start, piece.end)
        here = ordinary[part]
        if not here.any():
            found.append(piece)
            continue
        scale = float((values * weight)[part][here].sum() / (pace_s * weight)[part][here].sum())
        found.append(Piece(piece.start, piece.end, piece.first * scale, piece.last * scale))
    return found, spikes


def _mark_changes(pieces: Sequence[Piece], least: int) -> Bools:
    """Mark the lines at both sides of each change between levels of so many lines: one of several steps has some of both paces."""
    marked = np.zeros(pieces[-1].end, dtype=bool)
    for before, after in itertools.pairwise(pieces):
        if not (before.is_ramp or after.is_ramp):
            marked[before.end - 1] = before.end - before.start >= least
            marked[after.start] = after.end - after.start >= least
    return marked


def _least_spike(sigma: Floats) -> Floats:
    """Say from which logarithm of its ratio on a line is slow."""
    return np.maximum(SPIKE_DEVIATIONS * sigma, np.log(SPIKE_RATIO))


def _scatter(logs: Floats, noise: float) -> Floats:
    """Estimate the standard deviation around each line: at least that of all, more where lines scatter more.

    Only what lies below counts: of two levels the upper one is no scatter of the lower.
    """
    below = -logs[logs <= 0]
    whole = max(float(MAD_TO_SIGMA * np.median(below)) if len(below) else 0.0, noise)
    n = len(logs) // LOCAL_LINES
    if n < 2:
        return np.full(len(logs), whole)
    parts = -np.minimum(logs[: n * LOCAL_LINES].reshape(n, LOCAL_LINES), 0.0)
    counts = np.maximum((parts > 0).sum(axis=1), 1)
    rms = np.sqrt((np.minimum(parts, 4 * whole) ** 2).sum(axis=1) / counts)
    local = np.repeat(np.maximum(rms, whole), LOCAL_LINES)
    return np.concatenate([local, np.full(len(logs) - len(local), local[-1])])


def _find_good(lines: Lines, values: Floats, pieces: Sequence[Piece], apart: Bools, least_ratio: float) -> float:
    """Give the lowest pace that lasts: the mean of the ordinary lines of all levels that are as good."""
    n = len(values)
    lasting = [piece for piece in pieces if piece.end - piece.start >= max(MIN_LEVEL, LASTING_SHARE * n)] or list(
        pieces
    )
    best = min(min(piece.first, piece.last) for piece in lasting)
    good = [piece for piece in lasting if not piece.is_ramp and piece.first < least_ratio * best]
    if not good:
        return best
    at = np.concatenate([np.arange(piece.start, piece.end) for piece in good])
    at = at[~apart[at]]
    weight = lines.steps[at] * lines.work[at]
    return float((values[at] * weight).sum() / weight.sum()) if len(at) else best
