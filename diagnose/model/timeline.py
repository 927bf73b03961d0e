"""When each operation of one step ran, as recorded or as replayed under some changes."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from diagnose.model.change import Change
from diagnose.model.trace import Ints, Nodes, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """One step of some dp ranks, all stages."""

    #: `recorded`, `ideal` (every own time that of its type, no launch delays: the paper's), `clean` (every component removed),
    #: or a fix.
    name: str
    step: int
    #: Shape (n_lanes,): indices of the dp ranks.
    dp: Ints
    #: What runs, one entry an operation of a model-parallel group; under another schedule not those of the recorded step.
    nodes: Nodes
    #: `start_s`, `end_s`: shape (n_nodes, n_lanes): seconds after the step began; NaN where there is no such operation, or no
    #: replay says.
    start_s: Seconds
    end_s: Seconds
    #: Nodes that move together: sender and receiver of each point-to-point pair.
    pairs: tuple[tuple[int, int], ...]
    #: When the step ended, all dp ranks.
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
