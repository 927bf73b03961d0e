"""Which stage is the longest, by how much, and whether all ranks agree."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.stages import long_stages, measure_stages
from tests.features.hand import components, slowed


def test_even_stages() -> None:
    """Stages alike have a ratio of 1 in both directions."""
    found = measure_stages(components(), 2)
    for name in ("ratio", "forward_ratio", "backward_ratio"):
        assert found[f"stage.{name}"].value == pytest.approx(1.0)


def test_a_long_stage_is_measured_in_both_directions() -> None:
    """Stage 1 takes 2 + 3 s where stage 0 takes 1 + 2: 5/3 as long, forward twice, backward 1.5 times; both ranks agree."""
    base = components()
    factor = np.array([[1.0, 2.0], [1.0, 1.5]])
    parts = components(typical_s=base.typical_s * factor, compute_s=base.compute_s * factor[:, :, None, None, None])
    found = measure_stages(parts, 2)
    assert long_stages(parts, 2) == [1]
    assert found["stage.ratio"].value == pytest.approx(5 / 3)
    assert found["stage.forward_ratio"].value == pytest.approx(2.0)
    assert found["stage.backward_ratio"].value == pytest.approx(1.5)
    assert found["stage.contradicted_share"].value == 0.0


def test_stages_that_are_nearly_as_long_as_the_longest_are_named_with_it() -> None:
    """Of six stages one takes 1.7 and one 1.5 times the usual: both; 1.2 times is no culprit, nor are four of six."""
    base = components()
    for factor, named in (
        ([1.5, 1.0, 1.0, 1.7, 1.0, 1.0], [3, 0]),
        ([1.2, 1.0, 1.0, 1.7, 1.0, 1.0], [3]),
        ([1.7, 1.7, 1.6, 1.7, 1.0, 1.0], [0]),
    ):
        typical_s = np.ones((2, 6)) * np.array(factor)
        assert long_stages(dataclasses.replace(base, typical_s=typical_s), 6) == named


def test_the_longest_is_compared_with_the_mean_of_the_others() -> None:
    """Of three stages with 3, 3 and 6 s the last is 6 / 3 as long."""
    base = components(n_stages=3)
    factor = np.array([1.0, 1.0, 2.0])
    found = measure_stages(components(n_stages=3, typical_s=base.typical_s * factor), 3)
    assert found["stage.ratio"].value == pytest.approx(2.0)


def test_chunks_of_a_stage_are_added_up() -> None:
    """With two chunks a stage of 1 and 3 times the usual takes as long as one of 2 and 2: stages are even."""
    base = components(n_chunks=2)
    factor = np.array([1.0, 2.0, 3.0, 2.0])  # chunk 0 of stages 0 and 1, then chunk 1
    found = measure_stages(components(n_chunks=2, typical_s=base.typical_s * factor), 2)
    assert found["stage.ratio"].value == pytest.approx(1.0)


def test_a_slow_worker_contradicts_no_stage() -> None:
    """Stage 1 is a little the longest, and dp rank 0 has a worker on stage 0 three times as slow: as fast as its peer it agrees."""
    slow = slowed({(0, 0): 3.0})
    factor = np.array([1.0, 1.1])
    typical = slow.typical_s * factor
    parts = components(
        typical_s=typical,
        compute_s=slow.compute_s * factor[:, None, None, None],
        worker_ratio=slow.worker_ratio,
        slow_workers=slow.slow_workers,
    )
    assert measure_stages(parts, 2)["stage.contradicted_share"].value == 0.0


def test_a_rank_with_another_longest_stage_contradicts() -> None:
    """Stage 1 is the longest on two of three ranks, and no worker is slow: a third of them say another."""
    base = components(n_dp=3)
    compute_s = base.compute_s * np.array([[1.0, 1.0, 1.3], [1.1, 1.1, 1.1]])[None, :, None, None]
    parts = components(n_dp=3, typical_s=base.typical_s * np.array([1.0, 1.1]), compute_s=compute_s)
    assert measure_stages(parts, 2)["stage.contradicted_share"].value == pytest.approx(1 / 3)


def test_one_of_two_long_stages_does_not_contradict_the_other() -> None:
    """Stages 0 and 2 of four are as long, up to noise: which of both is the longest on a rank says nothing."""
    base = components(n_dp=4, n_stages=4)
    usual = np.array([1.2, 1.0, 1.21, 1.0])
    by_rank = np.array([[1.22] * 4, [1.0] * 4, [1.2] * 4, [1.0] * 4])
    parts = components(
        n_dp=4,
        n_stages=4,
        typical_s=base.typical_s * usual,
        compute_s=base.compute_s * by_rank[None, :, None, None],
    )
    assert measure_stages(parts, 4)["stage.contradicted_share"].value == 0.0


def test_a_rank_without_values_is_no_contradiction_by_crash() -> None:
    """A dp rank without a single compute is survived, warnings being errors."""
    base = components()
    compute_s = base.compute_s.copy()
    compute_s[..., 1] = np.nan
    found = measure_stages(components(compute_s=compute_s), 2)
    assert found["stage.contradicted_share"].value is not None


def test_one_stage_has_nothing_to_compare() -> None:
    """Without a pipeline every feature is missing with the reason."""
    found = measure_stages(components(n_stages=1), 1)
    assert found
    assert all(feature.value is None and "one pipeline stage" in feature.reason for feature in found.values())


@pytest.mark.parametrize(
    ("late", "expected"), [(1.5, 0.0), (1.9, 0.0), (2.5, 0.435), (3.0, 0.495), (1.1, 0.495), (1.0, 0.495)]
)
def test_a_layout_does_not_change(late: float, expected: float) -> None:
    """A stage that is half as long again as the others is so in the last steps, too: far more, or less, is no layout."""
    base = components()
    factor = np.ones((1, 2, 1, 10, 1))
    factor[:, 1] = np.r_[np.full(4, 1.5), np.full(6, late)][:, None]
    parts = components(typical_s=base.typical_s * [1.0, 1.5], compute_s=base.compute_s * factor)
    assert measure_stages(parts, 2)["stage.change_doubt"].value == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("in_common", "doubt"), [(False, 0.0), (True, 0.495)])
def test_layers_do_not_move_from_step_to_step(doubt: float, *, in_common: bool) -> None:
    """A stage may vary by as much as its ends differ, each rank by itself; on all at once it has other work, as of hot experts."""
    base = components()
    n_dp = base.compute_s.shape[-1]
    of_step = np.array([1.2, 2.0, 1.2, 2.0, 1.2, 2.0, 1.2, 2.0, 2.0, 1.2])
    factor = np.ones((1, 2, 1, 10, n_dp))
    factor[:, 1] = np.stack([np.roll(of_step, 0 if in_common else dp) for dp in range(n_dp)], axis=-1)
    parts = components(typical_s=base.typical_s * [1.0, 1.5], compute_s=base.compute_s * factor)
    assert measure_stages(parts, 2)["stage.change_doubt"].value == pytest.approx(doubt)
