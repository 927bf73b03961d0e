"""What the components of a cause are worth: what comes back without them, their share of the lost time, and how certain that is."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.analysis import Analysis
from diagnose.model.components import Gains

#: Whatever speedup is asked for, less than this is rounding.
NO_GAIN = 1e-9
#: Error of a gain besides its spread over steps: what the taking apart itself gets wrong (share of the step).
GAIN_ERROR = 0.005


def least_gain(min_speedup: float) -> float:
    """Give the part of the step time that must come back without a cause for it to be reported."""
    return max(1.0 - 1.0 / min_speedup, NO_GAIN)


def gain_of(gains: Gains, components: Sequence[str]) -> float:
    """Part of the step that comes back when components are removed alone, or after all others: the larger one."""
    key = "+".join(components)
    return max(gains.recoverable(key), gains.recoverable_last(key))


def is_unmeasured(analysis: Analysis, components: Sequence[str]) -> bool:
    """Say whether nobody can tell what components cost."""
    return any(analysis.features[f"gain.{name}"].value is None for name in components)


def chance_above(gains: Gains, components: Sequence[str], least: float) -> float:
    """Say how probable it is that the gain is truly above the least one, from its spread over steps."""
    without_s = gains.alone_steps_s.get("+".join(components), gains.replayed_steps_s)
    by_step = (gains.replayed_steps_s - without_s) / gains.replayed_s
    error = math.hypot(float(np.std(by_step)) / math.sqrt(len(by_step)), GAIN_ERROR)
    return 0.5 * (1.0 + math.erf((gain_of(gains, components) - least) / (error * math.sqrt(2.0))))


def share_of(gains: Gains, components: Sequence[str], claims: Mapping[str, int] | None = None) -> float | None:
    """Add up the ledger shares of components, each divided among the causes that claim it; None where nothing was lost."""
    share = gains.share
    return sum(share.get(name, 0.0) / (claims or {}).get(name, 1) for name in components) if share else None
