"""When each operation of one step ran, as recorded or as replayed under some changes."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from diagnose.model.change import Change
from diagnose.model.trace import Ints, Nodes, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """One step of some dp ranks, all stages.

    Attributes
    ----------
    name : str
        `recorded`, `ideal` (every own time that of its type, no launch delays: the paper's), `clean` (every component removed), or
        a fix.
    dp : ndarray of int64, shape (n_lanes,)
        Indices of the dp ranks.
    nodes : Nodes
        What runs, one entry an operation of a model-parallel group; under another schedule not those of the recorded step.
    start_s, end_s : ndarray of float64, shape (n_nodes, n_lanes)
        Seconds after the step began; NaN where there is no such operation, or no replay says.
    pairs : tuple of (int, int)
        Nodes that move together: sender and receiver of each point-to-point pair.
    step_s : float
        When the step ended, all dp ranks.
    """

    name: str
    step: int
    dp: Ints
    nodes: Nodes
    start_s: Seconds
    end_s: Seconds
    pairs: tuple[tuple[int, int], ...]
    step_s: float


class Timelines(Protocol):
    """Draws single steps of a job, some dp ranks (indices) of them; each gives None where it cannot."""

    def recorded(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step as it was recorded."""
        ...

    def ideal(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step with ideal own times and without launch delays."""
        ...

    def clean(self, step: int, dp: Ints) -> Timeline | None:
        """Give a step replayed with every component removed."""
        ...

    def changed(self, name: str, step: int, dp: Ints, changes: Sequence[Change]) -> Timeline | None:
        """Give a step replayed with some changes."""
        ...
