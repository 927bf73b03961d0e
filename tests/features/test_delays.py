"""When time is lost outside operations: its period, and whether rows explain it."""

import pytest

from diagnose.features.delays import measure_delays
from diagnose.model.optype import Op
from tests.features.hand import N_STEPS, components, evidence, gains

#: A checkpoint's rule asks for more than this.
REGULAR = 0.9


def every(period: int, *, first: int = 0, seconds: float = 4.0) -> list[float]:
    """Lose seconds in every so manieth step."""
    return [seconds if i >= first and (i - first) % period == 0 else 0.0 for i in range(N_STEPS)]


def test_regular_stalls_have_a_period() -> None:
    """Steps 0, 3, 6 and 9 lose time: the period is 3, and all hits lie on it."""
    found = measure_delays(components(), gains({"between-steps": every(3)}), evidence())
    assert found["stall.period_steps"].value == 3.0
    assert found["stall.regularity"].value == 1.0


def test_start_and_end_of_steps_are_one_stall() -> None:
    """Time lost at the start of some steps and at the end of others counts together."""
    lost = {"start-delay": every(4), "between-steps": every(4, first=2)}
    found = measure_delays(components(), gains(lost), evidence())
    assert found["stall.period_steps"].value == 2.0
    assert found["stall.regularity"].value == 1.0


def test_irregular_stalls_have_none_to_speak_of() -> None:
    """Steps 0, 2, 5 and 9 are 2, 3 and 4 apart: no distance is the multiple of another often enough to be called regular."""
    lost = [4.0 if i in (0, 2, 5, 9) else 0.0 for i in range(N_STEPS)]
    regularity = measure_delays(components(), gains({"start-delay": lost}), evidence())["stall.regularity"].value
    assert regularity is not None
    assert regularity < REGULAR


def test_two_stalls_are_no_period() -> None:
    """Below three hits a period is missing, with the reason."""
    found = measure_delays(components(), gains({"start-delay": every(6)}), evidence())
    for name in ("stall.period_steps", "stall.regularity"):
        assert found[name].value is None
        assert "fewer than 3" in found[name].reason


def test_checkpoint_rows_explain_their_steps_and_the_next() -> None:
    """Of 4 s lost right after a checkpoint row and 4 s lost elsewhere half is explained."""
    lost = [4.0 if i in (3, 8) else 0.0 for i in range(N_STEPS)]
    found = measure_delays(components(), gains({"start-delay": lost}), evidence([(Op.CHECKPOINT, 102)]))
    assert found["stall.checkpoint_share"].value == pytest.approx(0.5)
    found = measure_delays(components(), gains({"start-delay": lost}), evidence([(Op.CHECKPOINT, 103)]))
    assert found["stall.checkpoint_share"].value == pytest.approx(0.5)


def test_without_rows_or_without_lost_time_checkpoints_are_missing() -> None:
    """No checkpoint rows, and rows but nothing lost, are two reasons and not 0."""
    without_rows = measure_delays(components(), gains({"start-delay": every(3)}), evidence())
    assert "no checkpoint rows" in without_rows["stall.checkpoint_share"].reason
    nothing_lost = measure_delays(components(), gains(), evidence([(Op.CHECKPOINT, 102)]))
    assert "no time was lost" in nothing_lost["stall.checkpoint_share"].reason


def test_input_delay_is_counted_by_steps() -> None:
    """Half of the steps wait for input by more than a hundredth of the step; where there is no such delay none does."""
    found = measure_delays(components(), gains({"input-delay": every(2)}), evidence())
    assert found["input.steps_share"].value == pytest.approx(0.5)
    assert measure_delays(components(), gains(), evidence())["input.steps_share"].value == 0.0
    little = measure_delays(components(), gains({"input-delay": every(2, seconds=0.05)}), evidence())
    assert little["input.steps_share"].value == 0.0
