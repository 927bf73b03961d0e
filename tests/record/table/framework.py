"""What the table has to know of a framework before its job is started: its ranks, its schedule, and what does not apply to it.

Enters: the scripts in `jobs/`, each with a `FRAMEWORK`. Leaves: them by name. Nothing here needs torch.
"""

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping

from tests.record.table import jobs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Framework:
    """One row of the table: the job that `jobs/<name>.py` runs."""

    #: Shown in the table.
    title: str
    #: Modules that the job imports; where one is missing, the row is left out aloud.
    needs: tuple[str, ...] = ("torch",)
    #: Data-parallel rank and stage of each rank.
    places: tuple[tuple[int, int], ...] = ((0, 0), (1, 0), (2, 0))
    #: The rank that is slow, or whose loader is; stages other than the first load nothing.
    slow_rank: int = 1
    slow_loader: int = 1
    #: Microbatches a step, in which each stage has so many model chunks.
    microbatches: int = 1
    chunks: int = 1
    #: Seconds of one microbatch on one rank, all chunks together, in a healthy job.
    forward_s: float = 0.06
    backward_s: float = 0.09
    steps: int = 45
    #: Faults that this job cannot have, and why.
    without: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: What starts one rank, before its script and its options: `{python}` is this Python, `{trace}` the folder for the trace.
    command: tuple[str, ...] = ("{python}",)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: False where one process starts all ranks itself.
    is_started_by_rank: bool = True

    @property
    def n_stages(self) -> int:
        """Count the stages of the pipeline; 1 where there is none."""
        return 1 + max(stage for _, stage in self.places)

    @property
    def loaders(self) -> tuple[tuple[int, int], ...]:
        """List the places that load data, each once."""
        return tuple(sorted({place for place in self.places if place[1] == 0}))

    def missing(self) -> list[str]:
        """List the modules that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name.partition(".")[0]) is None]


def list_frameworks() -> dict[str, Framework]:
    """Find the frameworks by the names of their scripts."""
    found = {}
    for module in pkgutil.iter_modules(jobs.__path__):
        framework = getattr(importlib.import_module(f"{jobs.__name__}.{module.name}"), "FRAMEWORK", None)
        if framework is not None:
            found[module.name.replace("_", "-")] = framework
    return found
