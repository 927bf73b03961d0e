"""In which direction pauses lie, on how many workers, how long against the operation, and what rows say of them."""

import pytest

from diagnose.features.pauses import measure_pauses
from diagnose.model.optype import Op
from tests.features.hand import components, evidence, paused


def test_no_pause_is_nothing_to_measure() -> None:
    """Without pauses direction, ratio and place are missing with the reason, and so is what no row can say."""
    found = measure_pauses(components(), evidence())
    for name in ("forward_share", "ratio", "workers_share"):
        assert found[f"pause.{name}"].value is None
        assert "no compute stands out" in found[f"pause.{name}"].reason
    assert "no gc rows" in found["pause.gc_share"].reason
    assert "no cuda-malloc rows" in found["pause.malloc_share"].reason


def test_pauses_in_forwards_only() -> None:
    """Two pauses of 4 s in forwards of 1 s on two of four workers: all forward, 4 times the operation, half of the workers."""
    found = measure_pauses(paused({(0, 0, 0, 3, 0): 4.0, (0, 1, 1, 5, 1): 4.0}), evidence())
    assert found["pause.forward_share"].value == pytest.approx(1.0)
    assert found["pause.ratio"].value == pytest.approx(4.0)
    assert found["pause.workers_share"].value == pytest.approx(0.5)


def test_pauses_in_both_directions() -> None:
    """3 s in a forward and 1 s in a backward are three quarters forward."""
    found = measure_pauses(paused({(0, 0, 0, 3, 0): 3.0, (1, 0, 0, 3, 0): 1.0}), evidence())
    assert found["pause.forward_share"].value == pytest.approx(0.75)
    assert found["pause.workers_share"].value == pytest.approx(0.25)


def test_small_change_beside_long_pauses_does_not_count() -> None:
    """Seconds below a fifth of the longest pause are ordinary variation: they change neither direction nor place."""
    long = {(0, 0, 0, 3, 0): 5.0}
    small = {(1, 1, 1, step, 1): 0.5 for step in range(8)}
    assert measure_pauses(paused(long | small), evidence()) == measure_pauses(paused(long), evidence())


def test_rows_say_whose_pauses_they_are() -> None:
    """With gc rows the share inside them is what the components say, 0 where none lies inside; malloc rows are not there."""
    rows = evidence([(Op.GC, 103)])
    found = measure_pauses(paused({(0, 0, 0, 3, 0): 4.0}, pause_evidence={"gc": 0.8}), rows)
    assert found["pause.gc_share"].value == pytest.approx(0.8)
    assert found["pause.malloc_share"].value is None
    found = measure_pauses(paused({(0, 0, 0, 3, 0): 4.0}, pause_evidence={"cuda-malloc": 0.3}), rows)
    assert found["pause.gc_share"].value == 0.0


def test_rows_without_pauses_say_nothing() -> None:
    """Where nothing is paused, rows have nothing to explain: missing, not 0."""
    found = measure_pauses(components(), evidence([(Op.GC, 103), (Op.CUDA_MALLOC, 104)]))
    assert found["pause.gc_share"].value is None
    assert found["pause.malloc_share"].value is None
