"""Slow workers that are not slow at once: each is told of, and who has recovered is not replaced."""

import pytest

from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from tests.judge.cases import diagnosed


@pytest.mark.parametrize(
    ("spans", "turns", "replaced"),
    [
        (
            [(4, 10), (10, None)],
            "dp 0 stage 1 from step 20 until step 26; dp 2 stage 0 from step 26 on",
            "dp 2 stage 0",
        ),
        ([(None, None), (10, None)], "dp 0 stage 1 all the time; dp 2 stage 0 from step 26 on", "2 workers"),
        ([(6, None), (6, None)], "", "2 workers"),
        ([(None, 9), (5, 12)], "dp 0 stage 1 until step 25; dp 2 stage 0 from step 21 until step 28", "2 workers"),
    ],
    ids=["one has recovered", "one began later", "both at once", "both have recovered"],
)
def test_workers_that_are_slow_one_after_the_other(
    spans: list[tuple[int | None, int | None]], turns: str, replaced: str
) -> None:
    """The first is slow from where the first begins on; each is told of, and who has recovered is not replaced."""
    spec = JobSpec(pp=2, dp=4, microbatches=4, steps=20, contiguous=True, seed=91)
    places = [(0, 1), (2, 0)]
    faults = [
        WorkerFault(places=(place,), slowdown=1.6, onset=onset, recovery=recovery)
        for place, (onset, recovery) in zip(places, spans, strict=True)
    ]
    (cause,) = diagnosed(spec, *faults).causes
    assert [(worker.dp, worker.pp) for worker in sorted(cause.where.workers, key=lambda w: w.dp)] == places
    first = spans[0][0]
    assert cause.when.onset_step == (None if first is None else spec.step_numbers()[first])
    told = [item.text for item in cause.evidence if item.id.endswith("/turns")]
    assert told == ([f"not all of them at once: {turns}"] if turns else [])
    assert replaced in cause.fixes[0].summary
