"""Timelines of a pipeline in which the weight gradients may be computed apart from their backward (zero-bubble schedules).

Enters: operations F, B and W of all ranks. Leaves: columns of them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from diagnose.model.columns import ColumnTable
from diagnose.model.optype import Op
from diagnose.model.recording import Recording
from diagnose.model.trace import Ints, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Computes(ColumnTable):
    """Operations, one entry each, in any order; shape (n,) each."""

    op: NDArray[np.int8]  # `Op.FORWARD`, `Op.BACKWARD` or `Op.WEIGHT`
    step: Ints
    stage: Ints
    start_s: Seconds  # NaN where the file has none, as for `end_s`
    end_s: Seconds
    microbatch: Ints  # -1 where the file does not say, as for `chunk`
    chunk: Ints

    @classmethod
    def of(
        cls,
        op: Op,
        step: int,
        stage: int,
        starts: Sequence[float | None],
        ends: Sequence[float | None],
        microbatch: Sequence[int] | None,
        chunk: Sequence[int] | None,
        *,
        unit_s: float,
    ) -> Self:
        """Make operations of one kind on one rank in one step."""
        n = len(starts)
        start_s, end_s = (
            np.array([np.nan if t is None else t for t in times], dtype=np.float64) * unit_s for times in (starts, ends)
        )
        unknown = np.full(n, -1, dtype=np.int64)
        return cls(
            op=np.full(n, int(op), dtype=np.int8),
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
