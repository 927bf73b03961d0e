"""What the components of a cause are worth: what comes back without them, their share of the lost time, and how certain that is."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove, Scale
from diagnose.model.components import Gains
from diagnose.model.optype import Op
from diagnose.model.planned import find_planned_collections
from diagnose.model.trace import Bools, Seconds

#: Whatever speedup is asked for, less than this is rounding.
NO_GAIN = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Benefit:
    """What comes back without the components of a cause."""

    #: Part of the step time.
    gain: float
    #: Shape (n_steps,): the same of each step, as part of the mean one.
    by_step: Seconds
    #: Components that have to go first; empty: it is what comes back alone.
    after: tuple[str, ...] = ()


def least_gain(min_speedup: float) -> float:
    """Give the part of the step time that must come back without a cause for it to be reported."""
    return max(1.0 - 1.0 / min_speedup, NO_GAIN)


def measure_alone(gains: Gains, components: Sequence[str]) -> Benefit:
    """Say what comes back without components, all else as it is."""
    key = "+".join(components)
    without_s = gains.alone_steps_s.get(key, gains.replayed_steps_s)
    return Benefit(gains.recoverable(key), (gains.replayed_steps_s - without_s) / gains.replayed_s)


def measure_after(analysis: Analysis, components: Sequence[str], gone: Iterable[str]) -> Benefit:
    """Say what comes back without components once others are gone; costs two replays."""
    first = tuple(dict.fromkeys(gone))
    before_s = analysis.price([Remove(name) for name in first])
    after_s = analysis.price([Remove(name) for name in dict.fromkeys((*first, *components))])
    by_step = (before_s - after_s) / float(before_s.mean())
    return Benefit(float(by_step.mean()), by_step, first)


def measure_best(analysis: Analysis, components: Sequence[str], gone: Iterable[str]) -> Benefit:
    """Say what comes back without components, alone or once others are gone: the larger one."""
    alone, first = measure_alone(analysis.gains, components), [name for name in gone if name not in components]
    return max(alone, measure_after(analysis, components, first), key=lambda one: one.gain) if first else alone


def measure_named(analysis: Analysis, components: Sequence[str], workers: Bools) -> float:
    """Say which part of the recorded step comes back without components on some workers, shape (n_dp, n_stages); one replay."""
    gains = analysis.gains
    step_s = float(analysis.price([Remove(name, workers) for name in components]).mean())
    return max(gains.replayed_s - step_s, 0.0) / gains.recorded_s


def clean_without_collections(analysis: Analysis) -> Seconds:
    """Give the clean steps without planned collections, seconds of shape (n_steps,); costs one replay where there are any."""
    if find_planned_collections(analysis.trace) is None:
        return analysis.gains.clean_steps_s
    none = Scale(frozenset({int(Op.GC)}), np.zeros((1, 1, 1)))
    return analysis.price([*(Remove(name) for name in analysis.gains.alone_s), none])


def measure_planned_collections(analysis: Analysis) -> float:
    """Say which part of the recorded step planned collections take."""
    gains = analysis.gains
    return max(gains.clean_s - float(clean_without_collections(analysis).mean()), 0.0) / gains.recorded_s


def most_gain(gains: Gains, components: Sequence[str]) -> float:
    """Part of the step that comes back when components are removed alone, or after all others: the larger one."""
    key = "+".join(components)
    return max(gains.recoverable(key), gains.recoverable_last(key))


def is_unmeasured(analysis: Analysis, components: Sequence[str]) -> bool:
    """Say whether nobody can tell what components cost."""
    return any(analysis.features[f"gain.{name}"].value is None for name in components)


def share_of(gains: Gains, components: Sequence[str], claims: Mapping[str, int] | None = None) -> float | None:
    """Add up the ledger shares of components, each divided among the causes that claim it; None where nothing was lost."""
    share = gains.share
    return sum(share.get(name, 0.0) / (claims or {}).get(name, 1) for name in components) if share else None
