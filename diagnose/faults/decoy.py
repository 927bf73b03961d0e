"""What a decoy is: something in a job that looks like a fault and is none.

Enters: `Inputs` of a job without it. Leaves: `Inputs` of the job with it. Some decoys are none only as long as they cost
nothing: those are made weaker until the job, run with and without them, takes as long.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np

from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.trace import Bools, Seconds

#: How often a decoy that costs too much is made half as strong, before it is cut to what it may cost.
N_HALVINGS = 4

#: Runs a job with a decoy; gives its step times, shape (n_steps,).
RunWith = Callable[["Decoy"], Seconds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoy(abc.ABC):
    """Something that is no fault."""

    name: ClassVar[str]
    #: Causes beside which it would be a lie, or part of the fault.
    unlike: ClassVar[frozenset[str]] = frozenset()

    @abc.abstractmethod
    def apply(self, inputs: Inputs) -> Inputs:
        """Give the times of the job with it."""

    def random(self, spec: JobSpec) -> np.random.Generator:
        """Give the generator of this decoy's own draws: the same whatever else happens to the job."""
        return spec.random("decoy", *self.name.encode())


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenDecoy(Decoy):
    """A decoy that is none only while it costs nothing."""

    #: Part of the step time that it may cost, in each step or, with one strength, on average.
    most: ClassVar[float] = 0.003
    #: Nothing worth having where no strength reaches this.
    least: ClassVar[float] = 0.02
    #: Part of its full strength in each step, or one for all steps.
    strengths: tuple[float, ...] = (1.0,)

    def with_strengths(self, strengths: Seconds) -> Self:
        """Give the same decoy with other strengths, shape as before."""
        return dataclasses.replace(self, strengths=tuple(np.broadcast_to(strengths, len(self.strengths)).tolist()))


def settle(decoy: Decoy, runs: Sequence[RunWith]) -> Decoy | None:
    """Make a decoy so weak that it costs nothing, whichever of some jobs it is in; None where nothing is left of it.

    Parameters
    ----------
    decoy : Decoy
        Of a `HiddenDecoy` the result costs at most `most`; others cost what they cost.
    runs : sequence of functions
        Each runs one job with a decoy.
    """
    if not isinstance(decoy, HiddenDecoy):
        return decoy
    without_s = [run(decoy.with_strengths(np.zeros(1))) for run in runs]
    for halving in range(N_HALVINGS + 1):
        pairs = [(run(decoy), before_s) for run, before_s in zip(runs, without_s, strict=True)]
        if len(decoy.strengths) == 1:
            pairs = [(after_s.mean(keepdims=True), before_s.mean(keepdims=True)) for after_s, before_s in pairs]
        cost = np.max([after_s / before_s - 1.0 for after_s, before_s in pairs], axis=0)
        dear = cost > decoy.most
        if not dear.any():
            break
        # A step is a maximum of sums, so half of the strength costs half at most: the last cut is always enough.
        cut = np.full(cost.shape, 0.5) if halving < N_HALVINGS else decoy.most * 0.999 / np.maximum(cost, decoy.most)
        decoy = decoy.with_strengths(np.where(dear, cut, 1.0) * decoy.strengths)
    return decoy if max(decoy.strengths) >= decoy.least else None


def mark_multiples(spec: JobSpec, period_steps: int) -> Bools:
    """Mark the sampled steps whose number is a multiple of a period, shape (n_steps,)."""
    return np.asarray(spec.step_numbers() % period_steps == 0)
