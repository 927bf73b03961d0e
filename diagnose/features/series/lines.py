"""Which lines of a log count, how many steps each stands for, and how much work a step was.

Enters: a `TrainingLog`. Leaves: `Lines`: the last attempt at each iteration, with the work taken out.
"""

import dataclasses

import numpy as np

from diagnose.model.diagnosis_document import LogWork
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.training_log import TrainingLog
from diagnose.numerics.pieces import LEAST_NOISE_RATIO
from diagnose.numerics.robust import Floats

#: An interval between lines that fewer lines have than this part is a hole in the log.
HOLE_SHARE = 0.02
#: Of two lines one was read late where they differ from their mean by this part of it, and it from those around by no more than
#: that.
LATE, EVEN = 0.2, 0.05
AROUND = 3
#: Work that varies by less than this part of itself is no reason to divide by it.
LEAST_WORK_RATIO = 0.01
#: Lines that tell the work of a step, at least.
KNOWN_SHARE = 0.9
#: Folds of lines, one after the other, of which each is predicted by the others.
FOLDS = 6
#: Lines with and without a difference in work to learn from.
LEAST_LINES = 8
#: Work is believed when it leaves no more than this part of what step times differ by.
BELIEVED = 0.6
#: Where work changes in few places, times change there, at those lines, by this part of what it predicts at least, and not by more
#: than so many times as much.
AT_ONCE = (0.5, 1.6)
#: Work changes in few places when no more than this part of the lines begins with another work.
FEW_CHANGES = 0.1
#: Lines on each side of such a place that are compared.
BESIDE = 5
#: Powers of work that times may grow with: attention is the square of a sequence.
MOST_POWER = 2.2


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """The last attempt at each iteration, in order; all arrays have shape (n,)."""

    #: Of the line in the log.
    index: Ints
    iteration: Ints
    step_s: Seconds
    #: Iterations that a line stands for.
    steps: Floats
    #: Of a step, over that of most lines; 1 where it says nothing of step times.
    work: Floats
    #: First line of an attempt.
    begins: Bools
    stamp_s: Seconds
    interval: int
    #: Shape (n_attempts,): seconds of each attempt in steps that a later one ran again.
    again_s: Seconds
    by: LogWork | None
    #: The part that times are wrong by at least: of their digits, or of the clock that they were read off.
    noise: float
    #: The part of it that is due to readings of a clock, each of which ends one line and begins the next.
    clock: float

    @property
    def pace_s(self) -> Seconds:
        """Seconds of a step of usual work."""
        return self.step_s / self.work


def keep_lines(log: TrainingLog) -> Lines:
    """Keep the last attempt at each iteration, and take the work out of its times."""
    steps, interval = _count_steps(log)
    _, back = np.unique(log.iteration[::-1], return_index=True)
    kept = len(log.iteration) - 1 - back
    # What an attempt ran beyond the point from which the next resumed was run again, also where the next did not come so far.
    first_later = np.full(int(log.attempt.max()) + 2, np.iinfo(np.int64).max)
    np.minimum.at(first_later, log.attempt, log.iteration)
    resumed = np.minimum.accumulate(first_later[::-1])[::-1][1:]  # lowest iteration of all later attempts
    valid = log.iteration[kept] < resumed[log.attempt[kept]]
    kept = kept[valid]
    again = np.ones(len(log.iteration), dtype=bool)
    again[kept] = False
    again_s = np.bincount(log.attempt[again], (log.step_s * steps)[again], minlength=int(log.attempt.max()) + 1).astype(
        np.float64
    )
    attempt = log.attempt[kept]
    work, by = _take_out(log, kept)
    step_s = log.step_s[kept]
    if log.is_mean or interval == 1:
        step_s = _share_late(step_s, (np.diff(attempt) == 0) & (np.diff(steps[kept]) == 0))
    return Lines(
        index=kept,
        iteration=log.iteration[kept],
        step_s=step_s,
        steps=steps[kept],
        work=work,
        begins=np.r_[True, np.diff(attempt) > 0],
        stamp_s=log.stamp_s[kept],
        interval=interval,
        again_s=again_s,
        by=by,
        noise=max(log.error, LEAST_NOISE_RATIO),
        clock=log.clock,
    )


def _count_steps(log: TrainingLog) -> tuple[Floats, int]:
    """Say how many iterations each line stands for, and how many most do."""
    apart = np.diff(log.iteration, prepend=0)
    begins = np.r_[True, np.diff(log.attempt) > 0]
    inner = apart[~begins]
    if not len(inner):
        return np.ones(len(apart)), 1
    interval = max(1, int(np.median(inner)))
    sizes, counts = np.unique(inner, return_counts=True)
    usual = sizes[counts >= max(2, HOLE_SHARE * len(inner))]
    steps = np.where(np.isin(apart, usual) | (apart < interval), apart, interval)
    steps[begins] = np.minimum(interval, np.maximum(log.iteration[begins], 1))
    return np.where(log.n_steps > 0, log.n_steps, np.maximum(steps, 1)).astype(np.float64), interval


def _share_late(step_s: Seconds, follows: Bools) -> Seconds:
    """Give both lines of a pair their mean where one is longer by what the other is shorter, shape (n_lines,).

    A clock was read late, or early, between them: the host runs ahead of the device, and nothing was lost.
    """
    mean_s, more_s = (step_s[1:] + step_s[:-1]) / 2, np.abs(np.diff(step_s)) / 2
    pairs = np.flatnonzero(follows & (more_s > LATE * mean_s))
    pairs = pairs[(pairs >= AROUND) & (pairs < len(step_s) - AROUND - 1)]
    # Lines on both sides are as long as the pair, and each as the next: where they differ as the pair does, it is none. Another
    # pair among them counts as its mean.
    shared = step_s.copy()
    for is_last in (False, True):
        for beside in (np.arange(-AROUND, 0), np.arange(2, AROUND + 2)):
            around_s = shared[pairs[:, None] + beside]
            usual_s = np.median(around_s, axis=1)
            is_one = np.abs(mean_s[pairs] - usual_s) <= EVEN * usual_s
            if is_last:
                is_one &= np.abs(around_s - usual_s[:, None]).max(axis=1, initial=0.0) <= LATE * usual_s
            pairs = pairs[is_one]
        shared = step_s.copy()
        for at in pairs.tolist():
            shared[at : at + 2] = mean_s[at]
    return shared


# ------------------------------------------------------------------------------------------ work


def _take_out(log: TrainingLog, kept: Ints) -> tuple[Floats, LogWork | None]:
    """Give the work of each line, by what predicts step times best; 1 where nothing does."""
    logs = np.log(log.step_s[kept])
    best: tuple[float, Floats, LogWork | None] = (BELIEVED, np.ones(len(kept)), None)
    for name, told in (("tokens", log.tokens[kept]), ("batch size", log.batch_size[kept].astype(np.float64))):
        known = np.isfinite(told) & (told > 0)
        if len(kept) < LEAST_LINES or known.mean() < KNOWN_SHARE:
            continue
        # What is counted from line to line begins with the second of an attempt, which is of the same work as a rule.
        following = np.minimum(np.searchsorted(np.flatnonzero(known), np.arange(len(kept))), known.sum() - 1)
        values = told[known][following]
        if values.max() < (1.0 + LEAST_WORK_RATIO) * values.min():
            continue
        size = np.log(values)
        left, power = _predict(size, logs, is_coarse=log.clock > 0)
        if left < best[0] and _changes_at_once(size, logs, power):
            usual = float(np.median(size))
            low, high = float(values.min()), float(values.max())
            best = (left, np.exp(power * (size - usual)), LogWork(name, power, low, high, left))
    return best[1], best[2]


def _predict(size: Floats, logs: Floats, *, is_coarse: bool) -> tuple[float, float]:
    """Predict the times of each fold by the work of the others: the part of the differences that is left, and the power."""
    folds = np.arange(len(size)) * FOLDS // len(size)
    few = len(np.unique(size)) <= 2
    left_out, by_chance = [], []
    for fold in range(FOLDS):
        here = folds == fold
        power = _fit_power(size[~here], logs[~here], is_coarse=is_coarse)
        if not 0.0 < power <= MOST_POWER:
            continue
        others = logs[~here] - power * size[~here]
        left_out.append(logs[here] - power * size[here] - np.median(others))
        by_chance.append(logs[here] - np.median(logs[~here]))
    power = _fit_power(size, logs, is_coarse=is_coarse)
    if len(left_out) < FOLDS - 1 - 2 * few or not 0.0 < power <= MOST_POWER:
        return np.inf, 0.0
    before, after = (float(np.mean(np.minimum(np.abs(np.concatenate(parts)), 3.0))) for parts in (by_chance, left_out))
    return (after / before if before > 0 else np.inf), power


def _fit_power(size: Floats, logs: Floats, *, is_coarse: bool) -> float:
    """Fit the power of work that times grow with: the line through medians of equally many lines in the order of work.

    Readings of a coarse clock are multiples of its digit, and so is their median: of these the mean is taken, without the ends.
    """
    middle = _trimmed_mean if is_coarse else np.median
    order = np.argsort(size, kind="stable")
    parts = [part for part in np.array_split(order, min(16, max(2, len(order) // 4))) if len(part)]
    x, y = (np.array([middle(values[part]) for part in parts]) for values in (size, logs))
    spread = float(((x - x.mean()) ** 2).sum())
    return float(((x - x.mean()) * (y - y.mean())).sum() / spread) if spread > 0 else 0.0


def _trimmed_mean(values: Floats) -> float:
    """Give the mean of values without the lowest and the highest tenth."""
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _changes_at_once(size: Floats, logs: Floats, power: float) -> bool:
    """Say whether times change where work does, for work that changes in few places; a fault that began some time later is none."""
    at = np.flatnonzero(np.diff(size)) + 1
    if len(at) > FEW_CHANGES * len(size):
        return True
    wanted = measured = 0.0
    # A line of several steps may have some of each work: then it changes twice, in the same direction.
    up = size[at] > size[at - 1]
    for part in np.split(at, np.flatnonzero((np.diff(at) > 1) | (np.diff(up) != 0)) + 1):
        first, last = int(part[0]), int(part[-1])
        predicted = power * (size[last] - size[first - 1])
        before, after = logs[max(0, first - BESIDE) : first], logs[last : last + BESIDE]
        wanted += abs(predicted)
        measured += float(np.sign(predicted) * (np.median(after) - np.median(before)))
    return AT_ONCE[0] * wanted <= measured <= AT_ONCE[1] * wanted
