"""Hand-made components and gains: 2 stages x 2 dp ranks x 2 microbatches x 10 steps, forward 1 s, backward 2 s."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.model.components import Components, Gains
from diagnose.model.optype import Op
from diagnose.model.trace import Evidence
from diagnose.model.whatif import WhatIf

N_STEPS = 10
STEPS = np.arange(100, 100 + N_STEPS)


def components(
    *, n_stages: int = 2, n_chunks: int = 1, n_dp: int = 2, n_microbatches: int = 2, **changes: Any
) -> Components:
    """Give the parts of a job without any fault, some of them changed."""
    n_virtual = n_stages * n_chunks
    compute_s = np.ones((2, n_virtual, n_microbatches, N_STEPS, n_dp))
    compute_s[1] = 2.0
    parts: dict[str, Any] = {
        "steps": STEPS,
        "compute_s": compute_s,
        "typical_s": np.array([[1.0], [2.0]]) * np.ones((2, n_virtual)),
        "step_ratio": np.ones((2, N_STEPS)),
        "worker_ratio": np.ones((2, n_virtual, N_STEPS, n_dp)),
        "slow_workers": np.zeros((n_dp, n_stages), dtype=bool),
        "worker_excess": np.zeros((n_dp, n_stages, N_STEPS)),
        "microbatch_ratio": np.ones((2, n_microbatches, N_STEPS, n_dp)),
        "pause_s": np.zeros_like(compute_s),
        "noise_ratio": 0.01,
        "pause_evidence": {},
        "forward_backward_correlation": 0.2,
        "microbatch_spread": 0.02,
    }
    return Components(**(parts | changes))


def slowed(places: Mapping[tuple[int, int], float], *, steps: slice = slice(None), backward: float = 1.0) -> Components:
    """Slow some workers (dp, stage) down by a factor, in some steps; `backward` is the part of the excess that it has."""
    base = components()
    ratio, slow = base.worker_ratio.copy(), base.slow_workers.copy()
    compute_s, excess = base.compute_s.copy(), base.worker_excess.copy()
    for (dp, stage), factor in places.items():
        ratio[0, stage, steps, dp] = factor
        ratio[1, stage, steps, dp] = 1.0 + (factor - 1.0) * backward
        slow[dp, stage] = True
        excess[dp, stage, steps] = np.log(ratio[:, stage, steps, dp]).mean(axis=0)
    compute_s *= ratio[:, :, None]
    return components(worker_ratio=ratio, slow_workers=slow, compute_s=compute_s, worker_excess=excess)


def paused(pauses: Mapping[tuple[int, int, int, int, int], float], **changes: Any) -> Components:
    """Put pauses of some seconds at (direction, stage, microbatch, step index, dp)."""
    base = components()
    pause_s = base.pause_s.copy()
    for place, seconds in pauses.items():
        pause_s[place] = seconds
    return components(pause_s=pause_s, compute_s=base.compute_s + pause_s, **changes)


def gains(lost: Mapping[str, Sequence[float]] | None = None) -> Gains:
    """Give the gains of a job whose steps take 10 s without the seconds a component costs in each step."""
    lost = lost or {}
    seconds = {name: np.asarray(values, dtype=float) for name, values in lost.items()}
    steps_s = 10.0 + sum(seconds.values(), np.zeros(N_STEPS))
    alone = {name: steps_s - values for name, values in seconds.items()}
    replayed, total = float(steps_s.mean()), float(steps_s.mean() - 10.0)
    return Gains(
        recorded_s=replayed,
        replayed_s=replayed,
        clean_s=10.0,
        replayed_steps_s=steps_s,
        alone_steps_s=alone,
        alone_s={name: float(values.mean()) for name, values in alone.items()},
        last_s={name: 10.0 + float(values.mean()) for name, values in seconds.items()},
        share={name: float(values.mean()) / total for name, values in seconds.items()} if total else {},
        blame_s={},
    )


def evidence(rows: Sequence[tuple[Op, int]] = ()) -> Evidence:
    """Give evidence rows of a type and a step each."""
    return Evidence(
        op=np.array([int(op) for op, _ in rows], dtype=np.int64),
        step=np.array([step for _, step in rows], dtype=np.int64),
        dp=np.zeros(len(rows), dtype=np.int64),
        stage=np.zeros(len(rows), dtype=np.int64),
        start_s=np.zeros(len(rows)),
        end_s=np.ones(len(rows)),
    )


def what_if(**changes: Any) -> WhatIf:
    """Give the paper's measures of a job that lost nothing, some of them changed."""
    ones = np.ones(N_STEPS)
    parts: dict[str, Any] = {
        "steps": STEPS,
        "recorded_s": ones,
        "simulated_s": ones,
        "ideal_s": ones,
        "discrepancy": 0.0,
        "by_optype": {},
        "by_stage": np.ones(2),
        "by_dp": np.ones(2),
        "by_worker": np.ones((2, 2)),
        "by_step": ones,
        "by_worker_step": np.ones((2, 2, N_STEPS)),
        "m_w": None,
        "m_s": None,
    }
    return WhatIf(**(parts | changes))
