"""Places in a job: workers, the links between them, and the hosts they run on."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Struct

from diagnose.model.plain import says


class Worker(Struct, frozen=True, omit_defaults=True):
    """One (dp rank, stage), by the labels of the file; what is not known is left out of the JSON.

    Where one of its tensor- or context-parallel members is meant, `rank` and `host` are that member's, and `tp`, `cp` its labels.
    """

    dp: int
    pp: int
    rank: Annotated[int | None, says("global rank; of the member where tp or cp name one")] = None
    host: Annotated[str | None, says("machine that runs that rank")] = None
    tp: Annotated[
        int | None, says("tensor-parallel member that the others wait for, where the trace records them all")
    ] = None
    cp: Annotated[
        int | None, says("context-parallel member that the others wait for, where the trace records them all")
    ] = None


class Link(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """The network between two workers, which are named by dp rank and stage alone."""

    source: Worker
    target: Worker

    @classmethod
    def between(cls, source: Worker, target: Worker) -> "Link":
        """Make the link of two workers, whatever else is known of them."""
        return cls(Worker(source.dp, source.pp), Worker(target.dp, target.pp))

    @property
    def ends(self) -> tuple[Worker, Worker]:
        """Both workers."""
        return self.source, self.target


class Where(Struct, frozen=True):
    """Culprits, worst first; all empty where a cause is spread over the job."""

    workers: tuple[Worker, ...] = ()
    stages: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()

    @property
    def all_workers(self) -> list[Worker]:
        """The workers, and the ends of the links."""
        return [*self.workers, *(end for link in self.links for end in link.ends)]


#: Numbers of dp ranks and of stages that a job has.
Shape = tuple[int, int]
#: Ends the name of all workers of dp ranks, which without it may be one of them.
ALL_STAGES = ", all stages"
#: Labels named before the others are counted.
_MOST_LABELS = 3


def name_whole(workers: Iterable[tuple[int, int]], shape: Shape) -> str:
    """Name workers, (dp rank, stage) each, that are all of some stages or of some dp ranks; empty where they are not.

    >>> name_whole([(0, 1), (1, 1)], (2, 4)), name_whole([(3, 0), (3, 1)], (4, 2)), name_whole([(0, 1), (1, 1)], (4, 2))
    ('stage 1', 'dp 3, all stages', '')
    """
    pairs = set(workers)
    dps, stages = ({pair[side] for pair in pairs} for side in (0, 1))
    if len(pairs) < 2 or len(pairs) != len(dps) * len(stages):
        return ""
    if (len(dps), len(stages)) == shape:
        return "the whole job"
    if len(dps) == shape[0]:
        return f"stage{'s' if len(stages) > 1 else ''} {list_labels(sorted(stages))}"
    return f"dp {list_labels(sorted(dps))}{ALL_STAGES}" if len(stages) == shape[1] > 1 else ""


def list_labels(labels: Sequence[int]) -> str:
    """Write a few labels, and count the others.

    >>> list_labels([2]), list_labels([0, 3]), list_labels([0, 1, 2, 3, 5])
    ('2', '0 and 3', '0, 1, 2 and 2 more')
    """
    named = [str(label) for label in labels[:_MOST_LABELS]]
    left = len(labels) - len(named)
    last = f"{left} more" if left else named.pop()
    return f"{', '.join(named)} and {last}" if named else last
