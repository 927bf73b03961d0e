"""Collections before the first forwards of steps are no waits for input."""

import numpy as np
import pytest

from diagnose.faults.decoys import OrdinaryLoads
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.model.stalls import StallKind, Stalls
from diagnose.whatif.components.gc_pause import attribute_waits_to_collections
from tests.judge.cases import causes, measure

N_STEPS, STAGES, MICROBATCHES, DP = 16, 2, 3, 4


def judged(
    *,
    wait_s: float = 1.0,
    n_pauses: int = 8,
    every: int = 4,
    recorded: bool = False,
    inside: tuple[bool, bool] = (False, False),
) -> set[int]:
    """Let all ranks in turn wait for input, each every so many steps, beside collections of 1 s; give the kinds of the waits.

    `inside` says of waits and of collections whether they lie within forwards.
    """
    waits_s = np.zeros((2, STAGES, MICROBATCHES, N_STEPS, DP))
    paused_s = waits_s.copy()
    for dp in range(DP):
        waits_s[0, 0, 0, dp % every :: every, dp] = wait_s
    for step in range(n_pauses):
        paused_s[0, 1, step % MICROBATCHES, step, step % DP] = 1.0
    kinds = np.where(waits_s > 0, StallKind.INPUT, np.where(paused_s > 0, StallKind.COLLECTION, 0)).astype(np.int8)
    within: np.ndarray = np.where(waits_s > 0, *inside) if inside[0] != inside[1] else np.full(kinds.shape, inside[0])
    stalls = Stalls(
        np.where(within, waits_s + paused_s, 0.0),
        np.where(within, 0.0, waits_s + paused_s),
        np.where(within, kinds, 0).astype(np.int8),
        np.where(within, 0, kinds).astype(np.int8),
        within & (waits_s > 0) & recorded,
        ~within & (waits_s > 0) & recorded,
    )
    attribute_waits_to_collections(stalls)
    found = stalls.inside + stalls.before
    assert set(found[paused_s > 0].tolist()) <= {StallKind.COLLECTION}
    return set(found[waits_s > 0].tolist())


@pytest.mark.parametrize(
    ("wait_s", "n_pauses", "kind"),
    [
        (1.0, 12, StallKind.COLLECTION),
        (1.4, 12, StallKind.COLLECTION),
        (0.7, 12, StallKind.COLLECTION),
        (1.6, 16, StallKind.INPUT),
        (0.6, 12, StallKind.INPUT),
        (1.0, 8, StallKind.INPUT),
        (1.0, 0, StallKind.INPUT),
    ],
    ids=["alike", "longer", "shorter", "too long", "too short", "half of them", "no collections"],
)
def test_waits_as_long_as_collections_are_collections(wait_s: float, n_pauses: int, kind: StallKind) -> None:
    """16 steps in which somebody waits, beside collections with more than half of those seconds, in the middle of the model."""
    assert judged(wait_s=wait_s, n_pauses=n_pauses) == {kind}


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ((True, True), StallKind.COLLECTION),
        ((True, False), StallKind.INPUT),
        ((False, True), StallKind.INPUT),
    ],
)
def test_one_mechanism_stops_forwards_in_one_way(inside: tuple[bool, bool], kind: StallKind) -> None:
    """Where waits lie before forwards and collections within, or the other way round, they are two things."""
    assert judged(n_pauses=12, inside=inside) == {kind}


def test_rows_of_a_loader_are_believed() -> None:
    """What a row tells of is what it says."""
    assert judged(n_pauses=12, recorded=True) == {StallKind.INPUT}


def test_who_waits_in_most_steps_has_a_late_loader() -> None:
    """A collector needs time to fill up."""
    assert judged(n_pauses=16, every=1) == {StallKind.INPUT}


@pytest.mark.parametrize("seed", [5, 6])
def test_pauses_beside_loads_that_nobody_waits_for(seed: int) -> None:
    """Rows of quick loads before each first forward hide none of the pauses within it, nor of those in the other forwards."""
    spec = JobSpec(pp=1, dp=32, microbatches=2, steps=12, seed=seed)
    fault = GarbageCollection(
        kind="reaching-into-backwards",
        pause_s=3.0 * spec.forward_s,
        worker_period_steps=25.0,
        spill_share=0.25,
        inside_share=1.0,
    )
    job = generate(spec, [fault], [OrdinaryLoads(share=0.8)])
    found = measure(job.trace)
    assert causes(found.diagnosis) == ["garbage-collection"]
    assert found.gains.recoverable("gc-pause") == pytest.approx(job.truth.faults[0].recoverable, abs=0.01)
