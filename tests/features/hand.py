"""Hand-made components and gains: 2 stages x 2 dp ranks x 2 microbatches x 10 steps, forward 1 s, backward 2 s."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.model.components import Breakdown, Gains
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.model.trace import Evidence
from diagnose.model.whatif import WhatIf
from diagnose.whatif.components.catalogue import list_components

N_STEPS = 10
STEPS = np.arange(100, 100 + N_STEPS)
#: Direction (0 forward, 1 backward), virtual stage, microbatch, index of the step, dp rank.
Place = tuple[int, int, int, int, int]
#: Seconds, and whose doing it is.
Stall = tuple[float, StallKind]


def components(
    *, n_stages: int = 2, n_chunks: int = 1, n_dp: int = 2, n_microbatches: int = 2, **changes: Any
) -> Breakdown:
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
        "microbatch_ratio": np.ones((2, n_microbatches, N_STEPS, n_dp)),
        "queue_wait_s": None,
        "stalls": stalls(compute_s.shape),
        "noise_ratio": 0.01,
        "forward_backward_correlation": 0.2,
        "microbatch_spread": 0.02,
    }
    return Breakdown(**(parts | changes))


def slowed(places: Mapping[tuple[int, int], float], *, steps: slice = slice(None), backward: float = 1.0) -> Breakdown:
    """Slow some workers (dp, stage) down by a factor, in some steps; `backward` is the part of the excess that it has."""
    base = components()
    ratio, slow = base.worker_ratio.copy(), base.slow_workers.copy()
    compute_s = base.compute_s.copy()
    for (dp, stage), factor in places.items():
        ratio[0, stage, steps, dp] = factor
        ratio[1, stage, steps, dp] = 1.0 + (factor - 1.0) * backward
        slow[dp, stage] = True
    compute_s *= ratio[:, :, None]
    return components(worker_ratio=ratio, slow_workers=slow, compute_s=compute_s)


def stalls(
    shape: tuple[int, ...],
    inside: Mapping[Place, Stall] | None = None,
    before: Mapping[Place, Stall] | None = None,
    *,
    recorded: Collection[Place] = (),
) -> Stalls:
    """Put stalls, each with whose doing it is, into arrays; those at the places `recorded` have evidence rows."""
    found: list[Any] = []
    for kind in (inside or {}, before or {}):
        seconds, whose, said = np.zeros(shape), np.zeros(shape, dtype=np.int8), np.zeros(shape, dtype=bool)
        for place, (stall_s, cause) in kind.items():
            seconds[place], whose[place], said[place] = stall_s, cause, place in recorded
        found.append((seconds, whose, said))
    (inside_s, whose_inside, said_inside), (before_s, whose_before, said_before) = found
    return Stalls(inside_s, before_s, whose_inside, whose_before, said_inside, said_before)


def stalled(
    inside: Mapping[Place, Stall] | None = None,
    before: Mapping[Place, Stall] | None = None,
    *,
    recorded: Collection[Place] = (),
    **shape: int,
) -> Breakdown:
    """Let computes stand still, or start late."""
    base = components(**shape)
    kept = stalls(base.compute_s.shape, inside, before, recorded=recorded)
    return components(**shape, stalls=kept, compute_s=base.compute_s + kept.inside_s)


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
        clean_steps_s=np.full(N_STEPS, 10.0),
        alone_steps_s=alone,
        alone_s={name: float(values.mean()) for name, values in alone.items()},
        last_s={name: 10.0 + float(values.mean()) for name, values in seconds.items()},
        last_steps_s={name: 10.0 + values for name, values in seconds.items()},
        share={name: float(values.mean()) / total for name, values in seconds.items()} if total else {},
        blame_s={},
        traits={component.name: component.traits for component in list_components()},
    )


def evidence(rows: Sequence[tuple[Op, int]] = (), *, seconds: float = 1.0) -> Evidence:
    """Give evidence rows of a type and a step each, all of one length."""
    return Evidence(
        op=np.array([int(op) for op, _ in rows], dtype=np.int64),
        step=np.array([step for _, step in rows], dtype=np.int64),
        dp=np.zeros(len(rows), dtype=np.int64),
        stage=np.zeros(len(rows), dtype=np.int64),
        start_s=np.zeros(len(rows)),
        end_s=np.full(len(rows), seconds),
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
