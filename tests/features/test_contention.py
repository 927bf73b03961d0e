"""How many computes are held up by communication in flight, on how many workers, in which steps, for how long."""

import dataclasses

import numpy as np
import pytest

from diagnose.features.contention import READS_AS, measure_contention
from diagnose.model.components import Breakdown
from diagnose.model.stalls import StallKind
from tests.features.hand import N_STEPS, components, gains, stalled


def held(*places: tuple[object, ...], seconds: float = 1.0) -> Breakdown:
    """Hold computes up for some seconds each, at places that may be slices."""
    base = components()
    wait_s = np.zeros_like(base.compute_s)
    for place in places:
        wait_s[place] = seconds
    return components(queue_wait_s=wait_s, compute_s=base.compute_s + wait_s)


def values(parts: Breakdown) -> dict[str, float | None]:
    """Measure, by name without the kind."""
    return {name.removeprefix("queue."): feature.value for name, feature in measure_contention(parts, gains()).items()}


@pytest.mark.parametrize("parts", [components(), held()], ids=["no communication beside computes", "none holds any up"])
def test_nothing_held_is_nothing_to_measure(parts: Breakdown) -> None:
    """Where no compute waits everything is missing, with the reason."""
    found = measure_contention(parts, gains())
    assert set(found) == set(READS_AS)
    assert all(feature.value is None and "no compute is held up" in feature.reason for feature in found.values())


def test_every_backward_of_every_worker() -> None:
    """Each backward of 2 s waits 1 s: all of them, on all workers, in all steps, by half of their work."""
    found = values(held((1,)))
    assert found["held_share"] == pytest.approx(1.0)
    assert found["workers_share"] == pytest.approx(1.0)
    assert found["ratio"] == pytest.approx(0.5)


def test_since_a_change_of_versions() -> None:
    """Held in the last four of ten steps: all computes concerned."""
    found = values(held((1, slice(None), slice(None), slice(6, None))))
    assert found["held_share"] == pytest.approx(1.0)


def test_some_of_them_some_of_the_time() -> None:
    """On one rank in every other step the second backward of stage 0 is held: of those in these steps, half; one worker of four."""
    found = values(held((1, 0, 1, slice(0, None, 2), 1)))
    assert found["held_share"] == pytest.approx(0.5)
    assert found["workers_share"] == pytest.approx(0.25)


def test_late_computes_count_as_held() -> None:
    """A compute that starts 3 s late for communication in flight is held as one that lasts longer is."""
    place = (1, 0, 0, 4, 1)
    late = stalled(before={place: (3.0, StallKind.QUEUE)})
    assert values(late) == pytest.approx(values(held(place, seconds=3.0)))
    assert values(stalled(before={place: (3.0, StallKind.INPUT)}))["held_share"] is None


@pytest.mark.parametrize(
    ("slow", "last", "share"), [(3.0, 0.1, 0.9), (3.0, 1.0, 0.0), (0.5, 0.1, 0.0), (0.0, 0.1, 0.0)]
)
def test_waits_for_slow_transfers(slow: float, last: float, share: float) -> None:
    """Waits of 1 s of which 0.1 s is left where no transfer is slow, if these cost more; without slow ones they are no victims."""
    found = gains({"queue": [1.0] * N_STEPS, "transfer": [slow] * N_STEPS})
    found = dataclasses.replace(found, last_s={**found.last_s, "queue": 10.0 + last})
    assert measure_contention(held((1,)), found)["queue.of_slow_share"].value == pytest.approx(share, abs=0.05)


def test_missing_computes_do_not_count() -> None:
    """Where a lost row leaves half of the backwards out, all of the others are held."""
    parts = held((1,))
    compute_s = parts.compute_s.copy()
    compute_s[1, :, 1], wait_s = np.nan, np.where(np.isnan(compute_s), 0.0, parts.queue_wait_s)
    wait_s[1, :, 1] = 0.0
    found = values(dataclasses.replace(parts, compute_s=compute_s, queue_wait_s=wait_s))
    assert found["held_share"] == pytest.approx(1.0)
