"""What a fault is: something that happens to a job's physical times, somewhere, from some step on.

Enters: `Inputs` of a job without it. Leaves: `Inputs` of the job with it.

A cause has *kinds*: `KINDS` of its file names them, each with how often a random fault is of it. `draw_fault` draws one of them, or
the one it is given, with `choose_kind`, and notes it in `Fault.kind`. The truth calls it `cause/kind`; jobs are drawn, left out of
training, swept and scored by that name.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.inputs import Inputs
from diagnose.faults.spec import JobSpec
from diagnose.model.trace import Bools

#: (dp rank, stage)
Worker = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault(abc.ABC):
    """A fault with its place, strength and time. A cause is one subclass, in a file of its own."""

    #: Name of the cause, as in `rules/`.
    cause: ClassVar[str]
    #: The field that says how strong it is, in the unit that its class says.
    strength_field: ClassVar[str] = ""
    #: Where it is clear its first step can be told exactly.
    has_exact_onset: ClassVar[bool] = False
    #: Index among the sampled steps of the first step with the fault and of the first without it again; None: from the
    #: beginning, and to the end.
    onset: int | None = None
    recovery: int | None = None
    #: One of `KINDS` of its file; empty where nobody drew it.
    kind: str = ""

    @property
    def full_kind(self) -> str:
        """Name the kind with its cause, as the truth does: `worker-fault/replica`."""
        return f"{self.cause}/{self.kind}" if self.kind else self.cause

    @property
    def strength(self) -> float:
        """How strong the fault is, in the unit that its class says."""
        return float(getattr(self, self.strength_field))

    @abc.abstractmethod
    def apply(self, inputs: Inputs) -> Inputs:
        """Give the times of the job with this fault."""

    def mend(self, inputs: Inputs) -> Inputs:
        """Give the times of the job with this fault mended: what the true fix leaves.

        A fault that adds work leaves nothing. One that moves work to the wrong place leaves the work, spread evenly.
        """
        return inputs

    def workers(self, spec: JobSpec) -> tuple[Worker, ...]:  # noqa: ARG002 - subclasses look at the job
        """List the workers where it happens; none where it has no such place."""
        return ()

    def stages(self, spec: JobSpec) -> tuple[int, ...]:  # noqa: ARG002 - subclasses look at the job
        """List the stages where it happens; none where it has no such place."""
        return ()

    def tellable(self, spec: JobSpec) -> bool:  # noqa: ARG002 - subclasses look at the job
        """Say whether anything in the trace can tell this fault from the job's normal, however strong it is."""
        return True

    def place_tellable(self, spec: JobSpec) -> bool:  # noqa: ARG002 - subclasses look at the job
        """Say whether anything in the trace can tell the workers it names from others, however strong it is."""
        return True

    def active(self, spec: JobSpec) -> Bools:
        """Mark the steps in which it happens, shape (n_steps, 1)."""
        index = np.arange(spec.steps)
        first = 0 if self.onset is None else self.onset
        last = spec.steps if self.recovery is None else self.recovery
        return ((index >= first) & (index < last))[:, None]

    def random(self, spec: JobSpec) -> np.random.Generator:
        """Give the generator of this fault's own draws: the same whatever else happens to the job."""
        return spec.random("fault", *self.cause.encode())


def draw_times(spec: JobSpec, rng: np.random.Generator, onset: int | None) -> tuple[int | None, int | None]:
    """Draw when a fault begins, where no onset is given, and when it ends: mostly it is there from the first step to the last."""
    drawn = int(rng.integers(1, 3 * spec.steps // 4)) if rng.random() < 0.3 and spec.steps > 3 else None
    onset = drawn if onset is None else onset
    first, rest = onset or 0, spec.steps - (onset or 0)
    return onset, first + int(rng.integers(rest // 2, rest)) if rng.random() < 0.07 and rest > 3 else None


def choose_kind(kinds: Mapping[str, float], rng: np.random.Generator, kind: str | None = None) -> str:
    """Give the kind that is asked for, or draw one by how often each is to be; `rng` draws the same afterwards.

    Raises
    ------
    UsageError
        The cause has no such kind.

    >>> choose_kind({"replica": 1.0}, np.random.default_rng(0))
    'replica'
    """
    if kind is None:
        weight = np.array(list(kinds.values()))
        return list(kinds)[int(rng.spawn(1)[0].choice(len(weight), p=weight / weight.sum()))]
    if kind not in kinds:
        raise UsageError(f"no kind {kind!r}; expected one of {', '.join(kinds)}", where="kind")
    return kind


class DrawFault(Protocol):
    """`draw_fault` of a cause's file."""

    def __call__(
        self,
        spec: JobSpec,
        rng: np.random.Generator,
        *,
        strength: float | None = None,
        onset: int | None = None,
        kind: str | None = None,
    ) -> Fault | None:
        """Draw a fault that suits the job, its place and all that is not given at random; None where none suits."""
        ...
