"""Draw the decoys of a random job.

Enters: a `JobSpec` and the causes of its faults. Leaves: what else happens to the job.
"""

from collections.abc import Callable, Sequence

import numpy as np

from diagnose.faults.decoy import Decoy, mark_multiples
from diagnose.faults.decoys import (
    Evaluation,
    EvenDocuments,
    HiddenPause,
    HiddenTransfer,
    HiddenWorker,
    LongerComputes,
    OrdinaryLoads,
    PlannedCollections,
    QuickCheckpoints,
    TinyCollections,
    UniformlySlow,
    WarmUp,
)
from diagnose.faults.spec import JobSpec, draw_log_uniform
from diagnose.model.optype import Op

#: How many of ten jobs have none, one, two decoys.
N_DECOYS_SHARES = (0.25, 0.45, 0.3)
#: Evaluations and collections happen every so many steps, and in so large a part of the sampled steps at most.
PERIODS, MOST_STEPS = (2, 25), 0.4
#: Steps that a job needs to have a warm-up: its mean is not all warm-up then.
WARM_UP_STEPS = 12
#: A stage that is shorter by this part for each stage of the job gains less than a reportable part if evened out.
SHORT_STAGE = 0.012


def draw_decoys(spec: JobSpec, rng: np.random.Generator, causes: Sequence[str]) -> list[Decoy]:
    """Draw none, one or two decoys of different kinds that suit a job and the causes of its faults."""
    n_decoys = int(rng.choice(len(N_DECOYS_SHARES), p=N_DECOYS_SHARES))
    shares = np.array(list(_DRAWN.values()))
    drawn: list[Decoy] = []
    for kind in rng.choice(len(_DRAWN), size=len(_DRAWN), replace=False, p=shares / shares.sum()).tolist():
        if len(drawn) == n_decoys:
            break
        decoy = list(_DRAWN)[kind](spec, rng)
        if decoy is not None and not decoy.unlike & set(causes) and not _explains(decoy) & set(causes):
            drawn.append(decoy)
    return drawn


def _draw_evaluation(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    slowdown = float(rng.uniform(1.3, 3.0))
    return None if period is None else Evaluation(period_steps=period, slowdown=slowdown)


def _draw_warm_up(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    if spec.steps < WARM_UP_STEPS:
        return None
    return WarmUp(n_steps=int(rng.integers(1, 3)), slowdown=float(rng.uniform(1.5, 4.0)))


def _draw_uniformly_slow(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    return UniformlySlow(slowdown=float(rng.uniform(1.2, 3.0)))


def _draw_hidden(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    """Draw something slow that is to be hidden: of the ways that the job has, any."""
    dp, stage = int(rng.integers(spec.dp)), int(rng.integers(spec.pp))
    total = spec.vpp * spec.microbatches
    in_step = np.where(rng.random(spec.steps) < rng.uniform(0.1, 1.0), rng.uniform(0.3, 1.0, spec.steps), 0.0)
    in_step[int(rng.integers(spec.steps))] = 1.0
    strengths = tuple(in_step.tolist())
    length_s = spec.forward_s * draw_log_uniform(rng, 0.3, 6.0)
    way = rng.choice(["worker", "transfer", "pause"], p=[0.25, 0.25, 0.5])
    if way == "worker" and spec.pp >= 4 and spec.dp > 1:
        shorter = SHORT_STAGE * spec.pp
        return HiddenWorker(dp=dp, stage=stage, shorter=shorter, excess=1.5 * shorter)
    if way == "transfer" and spec.p2p == "asynchronous" and spec.pp > 1 and total > 1:
        before_last = int(rng.integers(spec.pp - 1))
        first = int(rng.integers(1, total))  # number 0 always is waited for
        return HiddenTransfer(dp=dp, stage=before_last, first=first, seconds=length_s, strengths=strengths)
    if spec.pp == 1 and spec.dp == 1:
        return None
    op = Op.FORWARD if rng.random() < 0.8 else Op.BACKWARD
    early = rng.random() < 0.7  # most room is before the first backward
    number = int(rng.integers(min(total, spec.pp) if early else total))
    kind = (None, None, Op.GC, Op.CUDA_MALLOC)[int(rng.integers(4))]
    return HiddenPause(dp=dp, stage=stage, op=op, number=number, seconds=length_s, kind=kind, strengths=strengths)


def _draw_planned_collections(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    inside = rng.random() < 0.4
    if period is None:
        return None
    return PlannedCollections(
        period_steps=period,
        seconds=float(rng.uniform(0.003, 0.02)) * period * _guess_step_s(spec),
        microbatch=int(rng.integers(spec.microbatches)) if inside else None,
        recorded=bool(rng.random() < 0.5),
    )


def _draw_tiny_collections(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    share = float(rng.uniform(0.1, 1.0)) / (2 * spec.vpp * spec.microbatches)
    return TinyCollections(share=share, seconds=min(2e-3, 2e-3 * spec.forward_s))


def _draw_even_documents(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    packed = int(2 ** rng.integers(12, 17))
    document = int(packed / 2 ** int(rng.integers(5)))
    return EvenDocuments(packed_tokens=packed, document_tokens=document, spread=float(rng.uniform(0.0, 0.03)))


def _draw_quick_checkpoints(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:
    period = _draw_period(spec, rng)
    seconds = float(rng.uniform(3e-4, 2.5e-3)) * _guess_step_s(spec)
    return None if period is None else QuickCheckpoints(period_steps=period, seconds=seconds)


def _draw_ordinary_loads(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    return OrdinaryLoads(share=float(rng.uniform(0.1, 0.9)))


def _draw_longer_computes(spec: JobSpec, rng: np.random.Generator) -> Decoy | None:  # noqa: ARG001 - as the others
    return LongerComputes(share=float(rng.uniform(0.05, 0.6)), excess=draw_log_uniform(rng, 0.02, 0.3))


#: Ways to draw a decoy, one for each kind, and how often each comes first.
_DRAWN: dict[Callable[[JobSpec, np.random.Generator], Decoy | None], float] = {
    _draw_hidden: 2.5,
    _draw_evaluation: 1.5,
    _draw_warm_up: 1.5,
    _draw_planned_collections: 1.5,
    _draw_tiny_collections: 1.0,
    _draw_ordinary_loads: 1.0,
    _draw_quick_checkpoints: 1.0,
    _draw_uniformly_slow: 0.7,
    _draw_even_documents: 0.7,
    _draw_longer_computes: 0.7,
}


def _explains(decoy: Decoy) -> frozenset[str]:
    """Say which cause the rows of a hidden pause would seem to explain."""
    causes = {Op.GC: "garbage-collection", Op.CUDA_MALLOC: "allocator-stall"}
    kind = decoy.kind if isinstance(decoy, HiddenPause) else None
    return frozenset({causes[kind]} if kind is not None else ())


def _draw_period(spec: JobSpec, rng: np.random.Generator) -> int | None:
    """Draw a period that some sampled steps are multiples of, but not too many; None where none is found."""
    for period in rng.integers(PERIODS[0], PERIODS[1] + 1, size=20).tolist():
        if 0 < mark_multiples(spec, period).mean() <= MOST_STEPS:
            return int(period)
    return None


def _guess_step_s(spec: JobSpec) -> float:
    """Guess the step time from a job's typical times."""
    compute_s = spec.forward_s * (1.0 + spec.backward_ratio) * (spec.vpp * spec.microbatches + spec.pp - 1)
    return compute_s + spec.optimizer_s + 3.0 * spec.collective_s * spec.has_dp
