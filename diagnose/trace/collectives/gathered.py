"""Put the rows of all ranks side by side: one numbering of communicators, operations and contents.

Enters: `RankRows`, one a file. Leaves: `Collectives`.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from diagnose.model.collectives import COMPLETED, NONE, Collectives, Communicator
from diagnose.model.trace import Ints

#: How people call process groups, by what frameworks call them (Megatron-LM, PyTorch's device meshes, NeMo).
_SHORT_NAMES = {
    "default_pg": "world",
    "world": "world",
    "tensor_model_parallel_group": "tp",
    "data_parallel_group": "dp",
    "data_parallel_group_with_cp": "dp",
    "pipeline_model_parallel_group": "pp",
    "context_parallel_group": "cp",
    "model_parallel_group": "tp-pp",
    "embedding_group": "embedding",
    "expert_model_parallel_group": "ep",
}
#: Characters of a name that is shown.
_MAX_NAME = 48


class Names:
    """Numbers for whatever is met, in the order in which it is met first."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, name: Hashable) -> int:
        """Give the number of a name, a new one where it is new."""
        return self.numbers.setdefault(name, len(self.numbers))


@dataclasses.dataclass(slots=True)
class RankRows:
    """Rows of one rank, one list a column, in the order of its calls; `communicator` are keys into what the reader knows of them.

    `peer` is a rank in the communicator, or -1.
    """

    rank: int
    written_s: float = float("nan")
    host: str = ""
    communicator: list[int] = dataclasses.field(default_factory=list)
    kind: list[int] = dataclasses.field(default_factory=list)
    number: list[int] = dataclasses.field(default_factory=list)
    peer: list[int] = dataclasses.field(default_factory=list)
    is_send: list[bool] = dataclasses.field(default_factory=list)
    size: list[int] = dataclasses.field(default_factory=list)
    content: list[int] = dataclasses.field(default_factory=list)
    called_s: list[float] = dataclasses.field(default_factory=list)
    noticed_s: list[float] = dataclasses.field(default_factory=list)
    duration_s: list[float] = dataclasses.field(default_factory=list)
    state: list[int] = dataclasses.field(default_factory=list)
    frames: dict[int, str] = dataclasses.field(default_factory=dict)

    def add(  # noqa: PLR0913, PLR0917 - a row, column by column
        self,
        communicator: int,
        kind: int,
        number: int,
        peer: int,
        is_send: bool,  # noqa: FBT001 - a column among columns
        size: int,
        content: int,
        called_s: float,
        duration_s: float,
        noticed_s: float = float("nan"),
        state: int = COMPLETED,
    ) -> None:
        """Add one operation."""
        self.communicator.append(communicator)
        self.kind.append(kind)
        self.number.append(number)
        self.peer.append(peer)
        self.is_send.append(is_send)
        self.size.append(size)
        self.content.append(content)
        self.called_s.append(called_s)
        self.noticed_s.append(noticed_s)
        self.duration_s.append(duration_s)
        self.state.append(state)

    def last_s(self) -> float:
        """Give the last time that stands in any row; -inf where none does."""
        times = np.array([*self.called_s, *self.noticed_s, -np.inf])
        return float(np.nanmax(times))


#: Columns that are copied as they are, with their types.
_COLUMNS = {
    "communicator": np.int64,
    "kind": np.int64,
    "number": np.int64,
    "peer": np.int64,
    "is_send": np.bool_,
    "size": np.int64,
    "content": np.int64,
    "called_s": np.float64,
    "noticed_s": np.float64,
    "duration_s": np.float64,
    "state": np.int8,
}


def name_communicator(name: str) -> str:
    """Give the name that people use for a process group.

    >>> name_communicator("TENSOR_MODEL_PARALLEL_GROUP"), name_communicator("mesh_dp_shard"), name_communicator("0x7f8c")
    ('tp', 'dp_shard', '0x7f8c')
    """
    return _SHORT_NAMES.get(name.lower(), name.removeprefix("mesh_"))[:_MAX_NAME]


def gather(  # noqa: PLR0913 - what a recording has
    rows: Sequence[RankRows],
    communicators: Sequence[Communicator],
    kinds: Sequence[str],
    *,
    name: str,
    format_name: str,
    are_ranks_known: bool = True,
    is_ordered: bool,
    timeout_s: float = float("nan"),
    span_s: float | None = None,
    warnings: Sequence[str] = (),
) -> Collectives:
    """Join the rows of all ranks, which are in the order of their ranks.

    `span_s` is from the first to the last time of the rows themselves where it is not given.
    """
    columns = {
        column: np.concatenate([np.array(getattr(each, column), dtype=kind) for each in rows])
        for column, kind in _COLUMNS.items()
    }
    counts = [len(each.number) for each in rows]
    first = np.cumsum([0, *counts])
    columns["peer"] = _to_world(columns["peer"], columns["communicator"], communicators)
    if span_s is None:
        times = np.concatenate([columns["called_s"], columns["noticed_s"]])
        known = times[np.isfinite(times)]
        span_s = float(known.max() - known.min()) if len(known) else float("nan")
    return Collectives(
        name=name,
        format=format_name,
        ranks=np.array([each.rank for each in rows], dtype=np.int64),
        are_ranks_known=are_ranks_known,
        written_s=np.array([each.written_s for each in rows]),
        timeout_s=timeout_s,
        hosts=tuple(each.host for each in rows) if any(each.host for each in rows) else (),
        communicators=tuple(communicators),
        kinds=tuple(kinds),
        is_ordered=is_ordered,
        rank=np.repeat(np.array([each.rank for each in rows], dtype=np.int64), counts),
        frames={int(first[i]) + row: text for i, each in enumerate(rows) for row, text in each.frames.items()},
        span_s=span_s,
        warnings=tuple(warnings),
        **columns,
    )


def _to_world(peer: Ints, communicator: Ints, communicators: Sequence[Communicator]) -> Ints:
    """Turn ranks in a communicator into world ranks; -1 where nobody knows."""
    if not len(peer):
        return peer
    starts = np.cumsum([0, *(len(each.ranks) for each in communicators)])
    ranks = np.concatenate([*(each.ranks for each in communicators), np.array([NONE], dtype=np.int64)])
    sizes = np.diff(starts)
    known = (peer >= 0) & (peer < sizes[communicator])
    at = np.where(known, starts[communicator] + peer, len(ranks) - 1)
    return np.where(known, ranks[at], NONE)
