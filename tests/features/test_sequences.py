"""How uneven microbatches are: passed on from the components, missing where there are too few."""

import pytest

from diagnose.features.sequences import measure_sequences
from tests.features.hand import components


def test_uneven_microbatches() -> None:
    """Correlation and spread are the components', the worst ratio is that of the longest forward."""
    ratio = components().microbatch_ratio.copy()
    ratio[0, 1, 4, 0], ratio[1, 1, 4, 0] = 2.5, 3.0
    parts = components(forward_backward_correlation=0.9, microbatch_spread=0.22, microbatch_ratio=ratio)
    found = measure_sequences(parts)
    assert found["sequence.correlation"].value == pytest.approx(0.9)
    assert found["sequence.spread"].value == pytest.approx(0.22)
    assert found["sequence.worst_ratio"].value == pytest.approx(2.5)


def test_too_few_microbatches() -> None:
    """Where neither could be measured all three are missing, with the reason."""
    found = measure_sequences(components(forward_backward_correlation=None, microbatch_spread=None))
    assert len(found) == 3
    assert all(feature.value is None and "microbatches" in feature.reason for feature in found.values())
