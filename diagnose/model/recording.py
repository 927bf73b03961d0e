"""What a file of another producer says, in the terms of the trace format: one entry an operation, and what was lost.

Enters: what an adapter in `diagnose.trace.producers` read. Leaves: the rows of a trace, and an account of what the format
cannot show, what was dropped, and how the clocks were aligned.
"""

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from diagnose.model.budget import HostWait
from diagnose.model.capabilities import CAPABILITIES


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """Something in the file that has no place in a trace, in the producer's words: `"B (weight gradient) of stage 3"`."""

    what: str
    n: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Unobserved:
    """Something that the format, or this file, does not show."""

    #: `"point-to-point operations"`.
    what: str
    reason: str
    #: Of `CAPABILITIES`: what a diagnosis therefore cannot rest on.
    lacks: tuple[str, ...] = ()
    #: Causes that cannot be checked for that. Producers leave it empty: `judge.unchecked` fills it in by what the rules need. A
    #: file that an earlier version converted names causes itself.
    causes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no capability.

        Raises
        ------
        ValueError
            The word is not in `CAPABILITIES`: no rule could ever need it.
        """
        if unknown := [name for name in self.lacks if name not in CAPABILITIES]:
            raise ValueError(f"no capability {unknown[0]!r}; expected some of {', '.join(CAPABILITIES)}")


@dataclasses.dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far the clock of one worker or host was moved."""

    #: `"rank 3"`, or the name of a host.
    of: str
    #: Seconds taken from its times; where it differs from step to step, the median of the steps in which it was off.
    offset_s: float
    #: Half the interquartile range of what it was estimated from, or half of what the schedule leaves open if that is more; NaN
    #: where nothing says how sure it is.
    spread_s: float
    #: `"matched pairs"`, `"collectives"`, `"schedule"`.
    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class HostTime:
    """How much of the time GPUs had nothing to do because their hosts had launched nothing, 0..1, and what they waited for."""

    share: float
    wait: HostWait | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give plain types, which `read` takes."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def read(cls, found: Any) -> "HostTime":
        """Read what `to_dict` gave.

        Raises
        ------
        ValueError
            It is something else.
        """
        return msgspec.convert(found, cls)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """What became of the parts of a recording: what was lost, what nobody can see, whose clocks were moved, how late hosts were."""

    producer: str
    dropped: tuple[Dropped, ...] = ()
    unobserved: tuple[Unobserved, ...] = ()
    offsets: tuple[ClockOffset, ...] = ()
    host: HostTime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the `recording` of a diagnosis: plain types, no NaN."""
        return {
            "producer": self.producer,
            "dropped": [dataclasses.asdict(entry) for entry in self.dropped],
            "unsaid": [
                {"what": entry.what, "reason": entry.reason, "causes": list(entry.causes)} for entry in self.unobserved
            ],
            "offsets": [
                dataclasses.asdict(entry) | {"spread_s": entry.spread_s if math.isfinite(entry.spread_s) else None}
                for entry in self.offsets
            ],
        }

    def sentences(self) -> tuple[str, ...]:
        """Say it in a sentence each: what was dropped, what cannot be seen, and how far clocks were moved."""
        said = [f"{self.producer}: {entry.n} x {entry.what} dropped: {entry.reason}" for entry in self.dropped]
        for entry in self.unobserved:
            unchecked = f" (not checked for that: {', '.join(entry.causes)})" if entry.causes else ""
            said.append(f"{self.producer}: {entry.what}: {entry.reason}{unchecked}")
        for how in dict.fromkeys(entry.how for entry in self.offsets):
            found = [entry for entry in self.offsets if entry.how == how]
            furthest = max(found, key=lambda entry: abs(entry.offset_s))
            sure = f", give or take {furthest.spread_s:.2g} s" if math.isfinite(furthest.spread_s) else ""
            said.append(
                f"{self.producer}: clocks of {len(found)} aligned by {how}; {furthest.of} was moved furthest, by "
                f"{furthest.offset_s:.2g} s{sure}"
            )
        return tuple(said)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """Operations of one job as another producer recorded them, in any order."""

    #: NAME of the adapter.
    producer: str
    #: Shape (n_rows,): `Op`; evidence rows (`gc`, `cuda-malloc`, `data-load`, `checkpoint`) among them. -1 for rows of other
    #: types.
    op: NDArray[np.int8]
    #: `step`, `dp`, `stage`: shape (n_rows,).
    step: NDArray[np.int64]
    dp: NDArray[np.int64]
    stage: NDArray[np.int64]
    #: `start_s`, `duration_s`: shape (n_rows,): seconds on one clock of the job, a large common base (unix time) already taken
    #: away.
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    #: `microbatch`, `chunk`, `rank`, `tp_rank`, `cp_rank`: shape (n_rows,): -1 where there is none; None where the format does
    #: not say.
    microbatch: NDArray[np.int64] | None = None
    chunk: NDArray[np.int64] | None = None
    rank: NDArray[np.int64] | None = None
    tp_rank: NDArray[np.int64] | None = None
    cp_rank: NDArray[np.int64] | None = None
    #: Shape (n_rows,): position in `host_names`; -1 where unknown.
    host: NDArray[np.int64] | None = None
    host_names: tuple[str, ...] = ()
    #: `tokens`, `tokens_sq`: shape (n_rows,): NaN where unknown.
    tokens: NDArray[np.float64] | None = None
    tokens_sq: NDArray[np.float64] | None = None
    #: Metadata as in the trace format.
    job: dict[str, Any] = dataclasses.field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    unobserved: tuple[Unobserved, ...] = ()
    offsets: tuple[ClockOffset, ...] = ()
    warnings: tuple[str, ...] = ()
    #: Shape (n_rows,): where in the model the model chunk of a compute stands; None where chunks are dealt out in turn, or
    #: nobody says.
    position: NDArray[np.int64] | None = None
    #: Shape (n_rows,): position in `other_types` of rows of other types, which are not simulated; -1 elsewhere.
    other: NDArray[np.int64] | None = None
    #: Names of these types.
    other_types: tuple[str, ...] = ()
    host_time: HostTime | None = None

    def __len__(self) -> int:
        return len(self.op)

    @property
    def account(self) -> Account:
        """What is kept of it beside the rows."""
        return Account(self.producer, self.dropped, self.unobserved, self.offsets, self.host_time)
