"""Timelines of a pipeline in which the weight gradients may be computed apart from their backward (zero-bubble schedules).

Enters: operations F, B and W of all ranks. Leaves: forwards and backwards, and an account of what was left out: the trace
format knows one backward.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from diagnose.model.optype import Op
from diagnose.model.recording import Dropped, Recording, Unobserved
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.columns import ColumnTable

#: Code of a weight gradient among operation types.
WEIGHTS = -1
#: Weight gradients always follow their backward where this part of them does.
FOLLOWS_SHARE = 0.8


@dataclasses.dataclass(frozen=True, slots=True)
class Computes(ColumnTable):
    """Operations, one entry each, in any order; shape (n,) each."""

    op: NDArray[np.int8]  # `Op.FORWARD`, `Op.BACKWARD`, or `WEIGHTS`
    step: Ints
    stage: Ints
    start_s: Seconds  # NaN where the file has none, as for `end_s`
    end_s: Seconds
    microbatch: Ints  # -1 where the file does not say, as for `chunk`
    chunk: Ints

    @classmethod
    def of(
        cls,
        op: Op | None,
        step: int,
        stage: int,
        starts: Sequence[float | None],
        ends: Sequence[float | None],
        microbatch: Sequence[int] | None,
        chunk: Sequence[int] | None,
        *,
        unit_s: float,
    ) -> Self:
        """Make operations of one kind on one rank in one step; `op` None stands for weight gradients."""
        n = len(starts)
        start_s, end_s = (
            np.array([np.nan if t is None else t for t in times], dtype=np.float64) * unit_s for times in (starts, ends)
        )
        unknown = np.full(n, -1, dtype=np.int64)
        return cls(
            op=np.full(n, WEIGHTS if op is None else int(op), dtype=np.int8),
            step=np.full(n, step, dtype=np.int64),
            stage=np.full(n, stage, dtype=np.int64),
            start_s=start_s,
            end_s=end_s,
            microbatch=unknown if microbatch is None else np.array(microbatch, dtype=np.int64),
            chunk=unknown if chunk is None else np.array(chunk, dtype=np.int64),
        )

    def recorded(self, **others: Any) -> Recording:
        """Make a recording of one data-parallel rank; `others` are the other fields of a `Recording`."""
        return Recording(
            op=self.op,
            step=self.step,
            dp=np.zeros(len(self), dtype=np.int64),
            stage=self.stage,
            start_s=self.start_s,
            duration_s=self.end_s - self.start_s,
            **others,
        )


def drop_weight_gradients(computes: Computes) -> tuple[Computes, tuple[Dropped, ...], tuple[Unobserved, ...]]:
    """Leave out the weight gradients; say what was left out, with its seconds, and what can no longer be told.

    Joined to its backward a W would end after what the stage before does next with that backward's gradient. Left out it is
    time in which the worker seems to wait: alike on all links where it always follows its backward, and else here and there.
    """
    is_weight = computes.op == WEIGHTS
    if not is_weight.any():
        return computes, (), ()
    order = np.lexsort((computes.start_s, computes.step, computes.stage))
    t = computes.take(order)
    follows = np.r_[False, (t.op[1:] == WEIGHTS) & (t.op[:-1] == Op.BACKWARD) & (t.stage[1:] == t.stage[:-1])]
    seconds = float(np.nansum((computes.end_s - computes.start_s)[is_weight]))
    reason = f"the trace format has one backward; {seconds:.3g} s of all ranks, in which workers seem to wait"
    dropped = (Dropped("W (weight gradients)", int(is_weight.sum()), reason),)
    unobserved: tuple[Unobserved, ...] = ()
    if follows.sum() < FOLLOWS_SHARE * is_weight.sum() or _one_in_a_gap(t) < FOLLOWS_SHARE:
        why = "they stand anywhere between forwards and backwards, and a worker that computes them seems to wait"
        unobserved = (Unobserved("weight gradients", why, ("input", "transfers")),)
    return computes.take(~is_weight), dropped, unobserved


def _one_in_a_gap(t: Computes) -> float:
    """Give the share of backwards that exactly one weight gradient follows before the next operation."""
    place = np.cumsum(t.op != WEIGHTS)  # a weight gradient has the number of the operation that it stands behind
    n_behind = np.bincount(place[t.op == WEIGHTS], minlength=int(place[-1]) + 1)[1:]
    of_backwards = n_behind[t.op[t.op != WEIGHTS] == Op.BACKWARD]
    return float(np.mean(of_backwards == 1)) if len(of_backwards) else 0.0
