"""Read times off progress bars: what each shows of its clock and its rate, and how long the iterations between two took.

Enters: counts, elapsed seconds and rates, as bars show them. Leaves: seconds of iterations.

A bar of tqdm shows the elapsed time in whole seconds, and a rate of two decimals. The rate is either the mean since the bar
began, or smoothed: after each painting `A = a x new iterations + (1 - a) x A` and `B = a x new seconds + (1 - a) x B`, and the
bar shows A / B. Both can be undone, and tell the time of single iterations to a hundredth of them where whole seconds cannot.
What they tell is compared with the elapsed time, and where it does not fit, whole seconds are taken, over as many iterations as
they need.

Source: tqdm/std.py of tqdm (`update`, `format_meter`, `EMA`).
"""

import dataclasses
import math

import numpy as np

from diagnose.model.trace import Ints, Seconds

#: tqdm's default: the share of the newest rate in the smoothed one.
SMOOTHING = 0.3
#: Two readings of a clock tell what passed between them where they are wrong by this part of it at most. Lines of fewer steps
#: date windows better, as what they are wrong by cancels in their means; beyond it weak slowdowns are no longer found.
TOLERANCE = 0.1
#: Of the steps between readings that are far enough apart this quantile is taken: in faster parts of a run less is known.
LONGER = 0.75
#: One reading to the next does where it does for this part of them.
ALL_BUT_FEW = 0.9
#: What a bar shows in whole seconds, and what rates tell, may differ by so much more than by that: figures are rounded.
SLACK_S = 0.25
#: A bar whose rate explains so many of its elapsed times is read by its rate.
EXPLAINED = 0.95
#: tqdm does not paint more often than this, and counts by how many iterations that is.
PAINTED_S = 0.1
#: Half of the last digit of a rate.
HALF_DIGIT = 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class Lap:
    """The bars of one count from its begin to its end, one a count."""

    #: Shape (n_bars,): increasing.
    count: Ints
    #: Shape (n_bars,): whole seconds, rounded down.
    elapsed_s: Seconds
    #: Shape (n_bars,): iterations a second, NaN where the bar does not say.
    rate: Seconds
    #: Shape (n_bars,): True where the bar shows seconds an iteration.
    is_inverse: np.ndarray


def read_lap(lap: Lap, *, is_mean: bool, apart: float = 0.0) -> tuple[Ints, Seconds, float, str]:
    """Say how long the iterations of a lap took.

    Parameters
    ----------
    lap : Lap
    is_mean : bool
        True where the rate is more likely the mean since the bar began, in case both readings fit.
    apart : float
        Steps of a window, as `choose_marks` takes them.

    Returns
    -------
    bars : ndarray of int64, shape (n_windows,)
        Index of the bar at the end of each window; the first window begins with the first bar.
    mean_s : ndarray of float64, shape (n_windows,)
        Mean seconds of an iteration; NaN where the bars do not say.
    error : float
        The part that most of these seconds are wrong by.
    how : str
        What was read, for people.
    """
    readings = [_by_mean_rate(lap, apart), _by_smoothed_rate(lap)]
    best, how = max(
        zip(readings, ("mean rate", "smoothed rate, undone"), strict=True),
        key=lambda pair: (pair[0][0], (pair[1] == "mean rate") == is_mean),
    )
    if best[0] >= EXPLAINED:
        return *best[1:], how
    return *_between(lap, lap.elapsed_s + 0.5, np.full(len(lap.count), 0.5), apart), "elapsed, whole seconds"


def choose_marks(count: Ints, clock_s: Seconds, error_s: Seconds, apart: float = 0.0) -> tuple[Ints, float]:
    """Choose readings of a clock that are so far apart that what passed between them is known well enough.

    Where one reading to the next does not do, they are equally many steps apart, so that lines are alike.

    Parameters
    ----------
    count : ndarray of int64, shape (n,)
        Steps at each reading, increasing.
    clock_s, error_s : ndarray of float64, shape (n,)
        What it shows, and by how much that may be wrong.
    apart : float
        Steps from one reading to the next, where somebody knows how many do; else they are chosen.

    Returns
    -------
    marks : ndarray of int64, shape (n_marks,)
        Indices; the first is 0.
    error : float
        The part that what passes between two of them is wrong by, most often: a standard deviation.
    """
    if apart:
        return _with_error(_space_evenly(count, apart), clock_s, error_s)
    marks, at, wrong = [0], float(clock_s[0]), float(error_s[0])
    for n, (now, error) in enumerate(zip(clock_s.tolist(), error_s.tolist(), strict=True)):
        if n and now - at >= (error + wrong) / TOLERANCE and now > at:
            marks.append(n)
            at, wrong = now, error
    if len(marks) < 3 or np.quantile(np.diff(marks), ALL_BUT_FEW) <= 1:
        return _with_error(np.array(marks, dtype=np.int64), clock_s, error_s)
    usual = float(np.median(np.diff(count)))
    apart = _round_up(float(np.quantile(np.diff(count[marks]), LONGER)) / usual) * usual
    return _with_error(_space_evenly(count, apart), clock_s, error_s)


def _space_evenly(count: Ints, apart: float) -> Ints:
    """Give readings that are so many steps apart."""
    lines = (count - count[0]) // apart
    ends = np.flatnonzero(np.diff(lines, prepend=0) > 0)
    if len(ends) and count[-1] - count[ends[-1]] >= apart / 2:
        ends = np.append(ends, len(count) - 1)
    return np.concatenate([np.zeros(1, dtype=np.int64), ends])


def _with_error(marks: Ints, clock_s: Seconds, error_s: Seconds) -> tuple[Ints, float]:
    """Give marks with how wrong the time between two of them is: two readings, each as likely anywhere within its bounds."""
    wrong_s, passed_s = np.hypot(error_s[marks][1:], error_s[marks][:-1]) / math.sqrt(3.0), np.diff(clock_s[marks])
    return marks, float(np.quantile(wrong_s / np.maximum(passed_s, 1e-9), LONGER)) if len(marks) > 1 else 0.0


def _round_up(number: float) -> int:
    """Give 1, 2 or 5 times a power of ten, at least as large: so are intervals of logs, and laps of one run have the same.

    >>> [_round_up(n) for n in (1, 1.2, 4, 14, 50)]
    [1, 2, 5, 20, 50]
    """
    ten = int(10 ** math.floor(math.log10(max(number, 1.0))))
    return next(n * ten for n in (1, 2, 5, 10) if n * ten >= number)


def _between(lap: Lap, clock_s: Seconds, error_s: Seconds, apart: float) -> tuple[Ints, Seconds, float]:
    """Give the windows between readings that are far enough apart."""
    marks, error = choose_marks(lap.count, clock_s, error_s, apart)
    return marks[1:], np.diff(clock_s[marks]) / np.diff(lap.count[marks]), error


def _by_mean_rate(lap: Lap, apart: float) -> tuple[float, Ints, Seconds, float]:
    """Read the rate as the mean since the bar began: which part of the bars that explains, and the windows."""
    low_rate, high_rate = _bounds(lap)
    known = (lap.count > 0) & ~np.isnan(lap.rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        low_s = np.where(known, lap.count / high_rate, lap.elapsed_s)
        high_s = np.where(known, lap.count / low_rate, lap.elapsed_s)
    low_s, high_s = np.fmax(low_s, lap.elapsed_s), np.fmin(high_s, lap.elapsed_s + 1.0)
    fits = ~(low_s > high_s)
    clock_s, error_s = (low_s + high_s) / 2, np.abs(high_s - low_s) / 2
    clock_s[~fits], error_s[~fits] = lap.elapsed_s[~fits] + 0.5, 0.5
    explained = float(fits[known].mean()) if known.any() else 0.0
    return explained, *_between(lap, clock_s, error_s, apart)


def _by_smoothed_rate(lap: Lap) -> tuple[float, Ints, Seconds, float]:
    """Undo the smoothing of the rate: which part of the bars the result explains, and a window a bar."""
    new = np.diff(lap.count).tolist()
    rates, elapsed = lap.rate.tolist(), lap.elapsed_s.tolist()
    begun = lap.elapsed_s[0] == 0 and np.isnan(lap.rate[0])
    # Where the begin is not seen, the smoothed count is what it is after many bars.
    count = 0.0 if begun or not new else float(new[0])
    seconds = 0.0 if begun or not new else count / rates[0] if rates[0] > 0 else np.nan
    took: list[float] = []
    clock, low, high, n_fit = 0.0, elapsed[0], elapsed[0] + (SLACK_S if begun else 1.0), 0
    least = 0.0  # iterations from one bar to the next, at least
    for by, rate, shown in zip(new, rates[1:], elapsed[1:], strict=True):
        count = SMOOTHING * by + (1 - SMOOTHING) * count
        before, seconds = seconds, count / rate if rate > 0 else np.nan
        passed = (seconds - (1 - SMOOTHING) * before) / SMOOTHING
        clock += passed
        # Where the clock of the bar began, by all bars so far.
        now_low, now_high = max(low, shown - clock), min(high, shown + 1.0 - clock)
        # Bars are missing where one would have been painted before: then the smoothing cannot be undone.
        is_next = by <= max(1, math.ceil(least)) or passed <= 2 * by * PAINTED_S
        fits = passed > 0 and now_low - now_high <= SLACK_S and is_next
        if passed > 0:
            least = SMOOTHING * by * PAINTED_S / passed + (1 - SMOOTHING) * least
        if fits:
            low, high = now_low, now_high
            n_fit += 1
        else:
            clock, low, high = 0.0, shown, shown + 1.0
        took.append(passed / by if fits else np.nan)
    return n_fit / max(len(new), 1), np.arange(1, len(lap.count)), np.array(took), 0.0


def _bounds(lap: Lap) -> tuple[Seconds, Seconds]:
    """Give between what the rate of each bar lies, by the digits that it shows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.where(lap.is_inverse, 1.0 / lap.rate, lap.rate)
        low, high = np.maximum(shown - HALF_DIGIT, 1e-9), shown + HALF_DIGIT
        return np.where(lap.is_inverse, 1.0 / high, low), np.where(lap.is_inverse, 1.0 / low, high)
