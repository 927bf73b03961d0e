"""What a communication library recorded of a job: collectives and transfers of every rank, one row each.

Enters: what a reader of dumps found, and what was judged of it. Leaves: the `collectives` of a diagnosis.
"""

import dataclasses
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from diagnose.model.plain import says
from diagnose.model.trace import Bools, Ints, Seconds

#: How far an operation came: it is in the queue; its kernel runs; it is over.
SCHEDULED, STARTED, COMPLETED = 0, 1, 2
#: Nobody: a peer, a frame, a number that is not known.
NONE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Communicator:
    """A process group, or the communicator of one."""

    #: As people call it: `tp`, `dp`, `world`; else the id that the library gave it.
    name: str
    #: Shape (n_ranks,): world ranks, by their rank in it; -1 for one that left nothing behind and that nothing names.
    ranks: Ints
    #: True where the recording says who belongs to it; else these are the ranks that took part.
    is_stated: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Collectives:
    """Operations of all ranks; rows of one rank lie together, in the order in which it called them.

    All arrays of rows have shape (n_rows,); times are Unix seconds of the rank's own host.
    """

    #: How reports call it.
    name: str
    #: Who recorded it: `PyTorch Flight Recorder`, `NCCL Inspector`.
    format: str
    #: Shape (n_files,): world ranks that left something behind, increasing.
    ranks: Ints
    #: False where nothing tells world ranks: then processes are numbered by host and process id.
    are_ranks_known: bool
    #: Shape (n_files,): when the file of each rank was written by the file system; a copy is younger than what it copies.
    written_s: Seconds
    #: After how long the library gives up waiting; NaN where nothing says so.
    timeout_s: float
    #: Of each of `ranks`; empty where nothing tells hosts.
    hosts: tuple[str, ...]
    communicators: tuple[Communicator, ...]
    #: Names of operations: `all_reduce`, `send`.
    kinds: tuple[str, ...]
    #: True where rows of different communicators are in the order of their calls.
    is_ordered: bool
    #: World rank.
    rank: Ints
    #: `communicator`, `kind`: indices into `communicators` and `kinds`.
    communicator: Ints
    kind: Ints
    #: Sequence number in the communicator, the same on all its ranks; of a transfer, the rank's own count.
    number: Ints
    #: World rank at the other end of a transfer; -1 of a collective.
    peer: Ints
    is_send: Bools
    #: Elements, or bytes, that the rank gave; -1 where not known.
    size: Ints
    #: The same for operations of one kind, size and data type.
    content: Ints
    #: When the rank put it into the queue.
    called_s: Seconds
    #: When the library noticed that it is over, up to a tenth of a second late.
    noticed_s: Seconds
    #: From its start to its end on this rank, waiting for others included; of operations sent as one, each has its part.
    duration_s: Seconds
    #: `SCHEDULED`, `STARTED`, `COMPLETED`.
    state: NDArray[np.int8]
    #: Where a rank called it, by row: of the last call of each rank, and of calls that are not over.
    frames: dict[int, str]
    #: From the first to the last time of all rows; NaN where there is none.
    span_s: float
    warnings: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks that take part in any communicator, or left something behind."""
        named = [int(each.ranks.max()) for each in self.communicators if len(each.ranks)]
        return max([*named, *(int(rank) for rank in self.ranks[-1:])], default=NONE) + 1

    def host_of(self, rank: int) -> str | None:
        """Name the host of a rank; None where nothing tells it."""
        at = int(np.searchsorted(self.ranks, rank))
        if not self.hosts or at >= len(self.ranks) or int(self.ranks[at]) != rank:
            return None
        return self.hosts[at] or None


_Rank = Annotated[int, Meta(ge=0)]
_Share = Annotated[float, says("part of the time that was recorded")]
HangKind = Literal["missing", "no-dump", "mismatch", "deadlock", "not-started", "unfinished"]


class WaitingAt(Struct, frozen=True, kw_only=True):
    """A collective, or a transfer, that some ranks wait in."""

    group: Annotated[str, says("process group or communicator, as the recording calls it")]
    group_size: Annotated[int, Meta(ge=0)]
    operation: Annotated[str, says("all_reduce, send, ...")]
    number: Annotated[int, says("sequence number in the group; of a transfer, the rank's own count")]
    waiting: Annotated[tuple[_Rank, ...], says("ranks that called it and wait")]
    missing: Annotated[tuple[_Rank, ...], says("ranks of the group that did not call it")]
    frame: Annotated[str | None, says("where those that wait called it")]


class HangFacts(Struct, frozen=True, kw_only=True):
    """Ranks that wait for others which do not come."""

    kind: Annotated[
        HangKind,
        says(
            "missing: a rank never called what others wait in; no-dump: the same, and it left no dump; mismatch: ranks "
            "called different operations under one number; deadlock: ranks wait for each other in different groups; not-started: "
            "a rank called it and its device did not begin; unfinished: all began it and none ended it"
        ),
    ]
    ranks: Annotated[tuple[_Rank, ...], says("ranks that the others wait for; of a mismatch, the fewer")]
    at: WaitingAt
    n_waiting: Annotated[int, says("ranks that wait, for these or for somebody who waits for them", ge=0)]
    last_call: Annotated[str | None, says("what the first of `ranks` called last")]
    last_frame: Annotated[str | None, says("where it called that")]
    text: str


class LateRank(Struct, frozen=True, kw_only=True):
    """A rank that the others wait for."""

    rank: _Rank
    host: str | None
    group: Annotated[str, says("where it was compared with ranks of the same work")]
    more_s: Annotated[float, says("seconds that it spends outside collectives more than its peers, all together")]
    share: _Share
    waited_for: Annotated[float, says("part of all waiting in that group that was for this rank, 1: all of it")]


class SlowGroup(Struct, frozen=True, kw_only=True):
    """A communicator, or a pair of ranks, that moves the same bytes more slowly than others of its kind."""

    group: str
    ranks: tuple[_Rank, ...]
    hosts: tuple[str, ...]
    operation: str
    transfer_s: Annotated[float, says("seconds of the transfer itself, nobody waiting: median")]
    usual_s: Annotated[float, says("the same in the other groups: median")]
    more_s: float
    share: _Share
    is_pair: Annotated[bool, says("true of a link between two ranks, from the first to the second")]


class CollectivesDocument(Struct, frozen=True, kw_only=True):
    """What was recorded by a communication library, and what it shows."""

    file: str
    format: str
    ranks: Annotated[int, says("ranks that left something behind", ge=0)]
    world_size: Annotated[int, says("ranks that groups name", ge=0)]
    groups: Annotated[int, Meta(ge=0)]
    operations: Annotated[int, Meta(ge=0)]
    seconds: Annotated[float | None, says("that the rows span; null where they have no times")]
    ended_s: Annotated[float | None, says("when the last one was called; Unix seconds")]
    measured_by: Annotated[
        Literal["durations", "calls", "nothing"],
        says("whether waiting was measured by how long operations took, or by when ranks called them"),
    ]
    hang: HangFacts | None
    late_ranks: tuple[LateRank, ...]
    slow_groups: tuple[SlowGroup, ...]
    doubts: Annotated[tuple[str, ...], says("what could not be told, and why")]
