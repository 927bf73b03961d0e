"""A worker with a slow card goes where less traffic is: its price is that of the job simulated with the card there."""

import dataclasses

import pytest

from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.fixes import swap_workers
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from tests.fixes.cases import analysis, at, truth

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=16, seed=74, transfer_s=6e-3)
CARD = NetworkFault(scope="card", dp_rank=1, stage=1, slowdown=8.0)


@pytest.mark.parametrize("to", [0, 2, 3])
def test_the_price_is_the_truth(to: int) -> None:
    """The predicted step time is that of the same job whose slow card sits on the other stage, to 2%."""
    job = analysis(SPEC, CARD)
    found = swap_workers.propose(job, at((1, 1)), {"to": str(to)})
    assert isinstance(found, Remedy)
    ratio = float(job.price(found.changes).mean()) / job.gains.replayed_s
    there = dataclasses.replace(CARD, stage=to)
    assert ratio == pytest.approx(truth(SPEC, there).step_time_s / truth(SPEC, CARD).step_time_s, rel=0.02)


def test_it_goes_to_an_end_of_the_pipeline() -> None:
    """The first and the last stage have one neighbour only: one of them is proposed."""
    found = swap_workers.propose(analysis(SPEC, CARD), at((1, 1)), {})
    assert isinstance(found, Remedy)
    assert found.settings["to"] in ("0", "3")
    assert found.figures["slower_p2p"] == pytest.approx(8.0, rel=0.2)


@pytest.mark.parametrize(
    ("place", "settings", "why"),
    [
        (FaultLocation(), {}, "one worker"),
        (at((1, 1), (2, 1)), {}, "one worker"),
        (at((3, 3)), {}, "no slower"),
        (at((1, 1)), {"to": "1"}, "already"),
    ],
)
def test_who_need_not_move(place: FaultLocation, settings: dict[str, str], why: str) -> None:
    """Without one slow card there is nothing to swap."""
    found = swap_workers.propose(analysis(SPEC, CARD), place, settings)
    assert isinstance(found, Refusal)
    assert why in found.reason


def test_one_stage_has_nowhere_to_go() -> None:
    """With one stage every place carries the same."""
    found = swap_workers.propose(analysis(JobSpec(pp=1, dp=4, steps=8, seed=1)), at((1, 0)), {})
    assert isinstance(found, Refusal)
