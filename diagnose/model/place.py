"""Places in a job: workers, the links between them, and the hosts they run on."""

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
