"""Minder's method as its paper tells it: the baseline that ours is set against.

Align and pad the samples of each metric, scale them to 0..1 over all machines, denoise windows of eight samples with a model of
each metric, add up the distances of each machine's denoised window to those of all others, and take the machine whose sum is the
most standard deviations above the mean as a candidate where these are enough. A candidate that stays the same for four minutes is
faulty. Metrics are asked one after the other, in the order of a decision tree over their largest scores; the first that names a
machine ends it.

Where the paper has an LSTM-VAE for each metric, a linear autoencoder stands here (PCA of windows, trained on sound clusters): it
does the same, to leave out what windows of sound machines do not have. Windows begin every `STRIDE_S`.

Source: Minder, arXiv 2411.01791, sections 3 and 4.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from diagnose.machines.grid import make_grid
from diagnose.model.telemetry import Telemetry
from tests.clusters.worlds import SEVEN

#: Samples of a window; parts that the denoised window is made of; seconds from one window to the next.
WINDOW, N_PARTS, STRIDE_S = 8, 3, 20.0
#: A machine stays the candidate for so long: the paper's four minutes.
CONTINUITY_S = 240.0
#: Thresholds that are tried for each metric; none of them: it is not asked.
THRESHOLDS = (*np.arange(0.1, 0.7, 0.1), *np.arange(0.7, 1.0, 0.04))


#: Of each window who is furthest out, and how far, 0..1 of what is possible; and seconds from one window to the next.
Course = tuple[np.ndarray, np.ndarray, float]


@dataclasses.dataclass(frozen=True)
class Minder:
    """A trained baseline: a model and a threshold for each metric, and the order in which they are asked."""

    models: dict[str, tuple[np.ndarray, np.ndarray]]
    order: tuple[str, ...]
    thresholds: dict[str, float]
    continuity_s: float = CONTINUITY_S

    def find(self, telemetry: Telemetry) -> str | None:
        """Name the faulty machine, or None."""
        hosts, metrics, interval_s = align(telemetry)
        return self.choose(hosts, lambda name: follow(metrics[name], self.models[name], interval_s))

    def choose(self, hosts: tuple[str, ...], course_of: Callable[[str], Course]) -> str | None:
        """Ask metric by metric, until one names a machine."""
        for name in self.order:
            if name not in self.thresholds:
                continue
            who, score, stride_s = course_of(name)
            found = _stays(who, score >= self.thresholds[name], max(2, round(self.continuity_s / stride_s)))
            if found is not None:
                return hosts[found]
        return None


def align(telemetry: Telemetry) -> tuple[tuple[str, ...], dict[str, np.ndarray], float]:
    """Put each metric of each machine on a common grid, scaled to 0..1; of several cards the mean; gaps as their last sample."""
    grid = make_grid(telemetry, seconds=900.0, bin_s=0.0)
    metrics = {}
    for name in SEVEN:
        if name not in grid.levels:
            continue
        values = grid.levels[name].values
        known = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            values = np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)
        values = _pad(values)
        low, high = float(values.min()), float(values.max())
        metrics[name] = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return grid.hosts, metrics, grid.bin_s


def _pad(values: np.ndarray) -> np.ndarray:
    """Fill gaps with the last sample before them, and at the beginning with the first behind."""
    at = np.where(np.isfinite(values), np.arange(values.shape[1]), -1)
    at = np.maximum.accumulate(at, axis=1)
    first = np.argmax(np.isfinite(values), axis=1)
    at = np.where(at < 0, first[:, None], at)
    return np.nan_to_num(np.take_along_axis(values, at, axis=1))


def windows_of(values: np.ndarray, interval_s: float) -> tuple[np.ndarray, float]:
    """Cut series into windows, shape (n_windows, n_hosts, WINDOW); and say how many seconds lie between two."""
    stride = max(1, round(STRIDE_S / interval_s))
    cut = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=1)[:, ::stride]
    return cut.transpose(1, 0, 2), stride * interval_s


def follow(values: np.ndarray, model: tuple[np.ndarray, np.ndarray], interval_s: float) -> Course:
    """Say of each window which machine is furthest from all others, and how many standard deviations its sum is above the mean.

    Of n machines one can be (n - 1) / sqrt(n) above it; the paper scales by the number of machines, so this does.
    """
    windows, stride_s = windows_of(values, interval_s)
    mean, parts = model
    codes = ((windows - mean) @ parts.T).astype(np.float32)
    who, score = [], []
    for code in codes:
        square = (code**2).sum(axis=1)
        apart = code @ code.T
        apart *= -2.0
        apart += square[:, None]
        apart += square
        distance = np.sqrt(np.maximum(apart, 0.0, out=apart), out=apart).sum(axis=1)
        spread = float(distance.std())
        z = (distance - distance.mean()) / spread if spread > 1e-9 else np.zeros(len(distance))
        who.append(int(np.argmax(z)))
        score.append(float(z.max()) * np.sqrt(len(z)) / max(len(z) - 1, 1))
    return np.array(who), np.array(score), stride_s


def _stays(who: np.ndarray, enough: np.ndarray, n_windows: int) -> int | None:
    """Name the machine that is the candidate in so many windows one after the other."""
    if enough.sum() < n_windows:
        return None
    run, last = 0, -1
    for one, is_candidate in zip(who.tolist(), enough.tolist(), strict=True):
        run = run + 1 if is_candidate and one == last else int(is_candidate)
        last = one if is_candidate else -1
        if run >= n_windows:
            return last
    return None


def train(sound: list[Telemetry], labelled: list[tuple[Telemetry, frozenset[str]]]) -> Minder:
    """Train models on sound clusters, the order of metrics and the threshold on labelled ones; the threshold with the best F1."""
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    samples: dict[str, list[np.ndarray]] = {name: [] for name in SEVEN}
    for telemetry in sound:
        _, metrics, interval_s = align(telemetry)
        for name, values in metrics.items():
            windows = windows_of(values, interval_s)[0].reshape(-1, WINDOW)
            samples[name].append(windows[rng.integers(len(windows), size=min(2000, len(windows)))])
    models = {}
    for name, some in samples.items():
        every = np.concatenate(some)
        mean = every.mean(axis=0)
        models[name] = (mean, np.linalg.svd(every - mean, full_matrices=False)[2][:N_PARTS])
    rows, truth, told = [], [], []
    for telemetry, faulty in labelled:
        hosts, metrics, interval_s = align(telemetry)
        found = {name: follow(metrics[name], models[name], interval_s) for name in SEVEN}
        rows.append([float(np.quantile(found[name][1], 0.9)) for name in SEVEN])
        truth.append(bool(faulty))
        told.append((hosts, found, faulty))
    tree = DecisionTreeClassifier(max_depth=6, min_samples_leaf=5, random_state=0).fit(rows, truth)
    order = tuple(SEVEN[i] for i in np.argsort(-tree.feature_importances_, kind="stable"))
    best = Minder(models, order, {})
    for continuity_s in (120.0, 180.0, CONTINUITY_S):
        tried = Minder(models, order, {}, continuity_s)
        for name in (*order, *order):  # twice, as each threshold is the best beside those of the others
            choices = [dataclasses.replace(tried, thresholds={k: v for k, v in tried.thresholds.items() if k != name})]
            choices += [
                dataclasses.replace(tried, thresholds=tried.thresholds | {name: float(threshold)})
                for threshold in THRESHOLDS
            ]
            tried = max(choices, key=lambda one: _f1(one, told))
        best = max(best, tried, key=lambda one: _f1(one, told))
    return best


def _f1(minder: Minder, told: list[tuple[tuple[str, ...], dict[str, Course], frozenset[str]]]) -> float:
    """Say how good a baseline is on clusters whose truth is told."""
    right = wrong = n_faulty = 0
    for hosts, courses, faulty in told:
        named = minder.choose(hosts, courses.__getitem__)
        right += named in faulty
        wrong += named is not None and named not in faulty
        n_faulty += len(faulty)
    return 2.0 * right / max(right + wrong + n_faulty, 1)
