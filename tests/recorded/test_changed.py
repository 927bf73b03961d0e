"""What does not change the truth does not change the answer."""

import pytest

from tests.recorded.changed import diagnose_changed

#: A slow worker, a loader, collections, a save, a long stage, a slow network, uneven documents and a healthy job.
NAMES = ("gpu-slow-p22", "load4-p22", "gc-d8", "save-a4", "fw-meg-head-p22", "nic-p42", "docs-p22", "healthy-p24")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["shuffled", "ten times as long", "no clip"])
def test_the_answer_stays(name: str, change: str) -> None:
    """The order of rows, how long all takes, and a norm that waits for everybody say nothing of why a job is slow."""
    plain, changed = (
        [
            (cause.cause, cause.where, cause.when.onset_step, pytest.approx(cause.recoverable, abs=0.002))
            for cause in found.causes
        ]
        for found in (diagnose_changed(name, ""), diagnose_changed(name, change))
    )
    assert [one[:3] for one in changed] == [one[:3] for one in plain]
    assert plain or name.startswith("healthy")


@pytest.mark.parametrize("change", ["jump", "drift"])
@pytest.mark.parametrize("name", ["gpu-slow-p22", "healthy-p24", "skew-slow-p32", "mid-p41"])
def test_a_moving_clock_is_no_cause(name: str, change: str) -> None:
    """Nor does anything that was said go."""
    plain, changed = (diagnose_changed(name, how) for how in ("", change))
    assert {cause.cause for cause in changed.causes} == {cause.cause for cause in plain.causes}
