"""What the what-if analysis found: step times under each scenario."""

import dataclasses

import numpy as np

from diagnose.model.trace import Ints, Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class WhatIf:
    """The paper's measures; step times in seconds, slowdowns as ratios to the ideal."""

    #: Shape (n_steps,): step numbers, increasing.
    steps: Ints
    #: `recorded_s`, `simulated_s`, `ideal_s`: shape (n_steps,): step time as recorded, replayed without launch delays, and
    #: replayed with ideal own times.
    recorded_s: Seconds
    simulated_s: Seconds
    ideal_s: Seconds
    #: Recorded over simulated, minus 1: launch delays and what the graph misses.
    discrepancy: float
    #: Slowdown when only operations of that type keep their own times.
    by_optype: dict[str, float]
    #: `by_stage`, `by_dp`: shape (n_stages,) and (n_dp,).
    by_stage: Seconds
    by_dp: Seconds
    #: Shape (n_dp, n_stages): exact: each worker replayed alone.
    by_worker: Seconds
    #: Shape (n_steps,).
    by_step: Seconds
    #: Shape (n_dp, n_stages, n_steps): `by_worker` for every step.
    by_worker_step: Seconds
    #: `m_w`, `m_s`: part of the lost time that comes back with the slowest 3% of the workers, or the last stage, at ideal
    #: times; None where no time was lost.
    m_w: float | None
    m_s: float | None

    @property
    def slowdown(self) -> float:
        """S: simulated over ideal."""
        return float(self.simulated_s.sum() / self.ideal_s.sum())


#: Of a job without operations: nothing could be replayed.
NOTHING_REPLAYED = WhatIf(
    steps=np.zeros(0, dtype=np.int64),
    recorded_s=np.zeros(0),
    simulated_s=np.full(1, np.nan),
    ideal_s=np.full(1, np.nan),
    discrepancy=float("nan"),
    by_optype={},
    by_stage=np.zeros(0),
    by_dp=np.zeros(0),
    by_worker=np.zeros((0, 0)),
    by_step=np.zeros(0),
    by_worker_step=np.zeros((0, 0, 0)),
    m_w=None,
    m_s=None,
)
