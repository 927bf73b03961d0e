"""A slow worker whose process stops now and then is told as such."""

import dataclasses

import numpy as np
import pytest

from diagnose.faults.spec import JobSpec
from diagnose.judge.evidence import list_evidence
from diagnose.judge.worth import measure_alone
from diagnose.model.stalls import StallKind
from tests.judge.cases import judge, measured


@pytest.mark.parametrize("is_frozen", [True, False])
def test_stops_are_told(*, is_frozen: bool) -> None:
    """Where messages stood still with a process the evidence says for how long it stops, and what does no such thing."""
    analysis = measured(JobSpec(pp=2, dp=2, microbatches=2, steps=4, seed=1)).analysis
    stalls = analysis.breakdown.stalls
    inside_s, inside = np.zeros(stalls.inside_s.shape), np.zeros_like(stalls.inside)
    inside_s[0, 0, 0, 1, 1], inside[0, 0, 0, 1, 1] = 0.25, StallKind.WORKER
    breakdown = dataclasses.replace(
        analysis.breakdown,
        stalls=dataclasses.replace(stalls, inside_s=inside_s, inside=inside),
        frozen_s={StallKind.WORKER: ({0: np.ones((4, 2))} if is_frozen else {},)},
    )
    analysis = dataclasses.replace(analysis, breakdown=breakdown)
    (judgement,) = [j for j in judge(analysis) if j.rule.id == "worker-fault"]
    evidence = list_evidence(analysis, judgement, measure_alone(analysis.gains, ("worker",)), None)
    told = [item.text for item in evidence if item.id == "worker-fault/stops"]
    assert [text.split(":")[0] for text in told] == ["now and then its process stops for about 0.25 s"] * is_frozen
