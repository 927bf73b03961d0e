"""One worker alone is slow in the same microbatch of each step: no documents, and no experts, which each step draws anew."""

import numpy as np
import pytest

from diagnose.model.stalls import StallKind
from diagnose.model.trace import Seconds
from diagnose.whatif.stalls import attribute_stalls
from diagnose.whatif.variants import find_own_places
from tests.features.hand import evidence

N_STAGES, N_MICROBATCHES, N_STEPS, N_DP = 2, 6, 40, 3


def left(spread: float = 0.1) -> Seconds:
    """Draw what is left of computes: noise of each by itself."""
    rng = np.random.default_rng(0)
    return np.exp(spread * rng.standard_normal((2, N_STAGES, N_MICROBATCHES, N_STEPS, N_DP)))


@pytest.mark.parametrize("microbatches", [[0], [4, 5]])
def test_a_place_of_one_worker_is_its_own(microbatches: list[int]) -> None:
    """Where it takes 1.5 times as long, forward and backward, it does so and nothing else does."""
    slow = left()
    slow[:, 1, microbatches, :, 2] *= 1.5
    ratio = find_own_places(slow, N_STAGES)
    assert ratio is not None
    expected = np.zeros(ratio.shape, dtype=bool)
    expected[:, 1, microbatches, 0, 2] = True
    np.testing.assert_array_equal(ratio > 1.0, expected)
    np.testing.assert_allclose(ratio[expected], 1.5, rtol=0.15)


@pytest.mark.parametrize(
    "slow",
    [
        (slice(None), 1, 0, slice(None), slice(None)),
        (slice(None), slice(None), 0, slice(None), 2),
        (0, 1, 0, slice(None), 2),
        (slice(None), 1, 0, slice(0, 15), 2),
    ],
    ids=["all ranks", "all stages of a rank", "forwards", "some steps"],
)
def test_what_others_share_or_only_some_steps_have_is_none(slow: tuple[slice | int, ...]) -> None:
    """The schedule makes it so for all ranks, sorted documents for all stages, a loader for forwards, chance for some steps."""
    values = left()
    values[slow] *= 1.5
    assert find_own_places(values, N_STAGES) is None


def test_few_steps_show_no_places() -> None:
    """A microbatch that is long in each of three steps is so by chance."""
    slow = left()[:, :, :, :3]
    slow[:, 1, 0, :, 2] *= 2.0
    assert find_own_places(slow, N_STAGES) is None


def test_documents_have_no_places() -> None:
    """Long microbatches of one rank, drawn anew in each step, on one stage."""
    rng = np.random.default_rng(1)
    values = left()[:, :1]
    values[:, :, :, :, 1] *= np.exp(0.5 * rng.standard_normal((1, 1, N_MICROBATCHES, N_STEPS)))
    assert find_own_places(values, 1) is None


def test_stalls_there_are_the_workers() -> None:
    """Seconds that stand out in such a place, backwards among them, are those of its worker, and no loader's or allocator's."""
    at = np.zeros((2, N_STAGES, N_MICROBATCHES, 1, N_DP), dtype=bool)
    at[:, 1, 0, :, 2] = True
    inside_s = np.where(at, 1.5, 0.0) * np.ones((1, 1, 1, N_STEPS, 1))
    stalls = attribute_stalls(
        [],
        evidence(),
        inside_s,
        np.zeros(inside_s.shape),
        np.ones(inside_s.shape),
        np.ones((2, N_STAGES, N_STEPS, N_DP)),
        queued=None,
        late=(np.zeros(inside_s.shape, dtype=np.int8), inside_s < 0),
        starts_late=np.zeros((N_STEPS, N_DP), dtype=bool),
        steps=np.arange(N_STEPS),
        n_stages=N_STAGES,
        slow_places=at,
    )
    assert set(stalls.inside[inside_s > 0]) == {StallKind.WORKER}


@pytest.mark.parametrize("n_stages", [1, 2])
def test_a_place_of_one_worker_stands_out_of_its_peers(n_stages: int) -> None:
    """With one stage there is no other that could have longer documents, too."""
    slow = np.array(left(0.01)[:, :n_stages])
    assert find_own_places(slow, n_stages) is None
    slow[:, -1, 2, :, 1] *= 1.5
    found = find_own_places(slow, n_stages)
    assert found is not None
    assert np.argwhere(found[0] > 1.0).tolist() == [[n_stages - 1, 2, 0, 1]]
