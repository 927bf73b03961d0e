"""What each component gives back, alone and after all others."""

import pytest

from diagnose.features.gains import measure_gains
from diagnose.model.components import COMPONENTS, Traits
from diagnose.whatif.components.catalogue import added
from diagnose.whatif.components.component import Component, Part
from tests.features.hand import N_STEPS, components, gains


def test_gains_are_parts_of_the_step() -> None:
    """Of steps of 20 s, 5 s to workers and 5 s to stages: each gives a quarter alone, a third of 15 s last, half together."""
    found = measure_gains(components(), gains({"worker": [5.0] * N_STEPS, "stage": [5.0] * N_STEPS}))
    assert found["gain.worker"].value == pytest.approx(0.25)
    assert found["last.worker"].value == pytest.approx(5 / 15)
    assert found["gain.stage"].value == pytest.approx(0.25)
    assert found["gain.all"].value == pytest.approx(0.5)


def test_what_a_job_does_not_have_gives_nothing() -> None:
    """Every component has both features, 0 where the job has no such thing."""
    found = measure_gains(components(), gains())
    assert {f"gain.{name}" for name in COMPONENTS} | {f"last.{name}" for name in COMPONENTS} <= set(found)
    assert all(feature.value == pytest.approx(0.0) for feature in found.values())


def test_without_peers_the_gain_of_workers_is_missing() -> None:
    """With one dp rank nobody knows what removing a slow worker would give."""
    found = measure_gains(components(n_dp=1), gains())
    assert found["gain.worker"].value is None
    assert "dp rank" in found["gain.worker"].reason
    assert found["gain.stage"].value == 0.0


def test_a_component_says_itself_why_it_is_not_measured() -> None:
    """Any component that says that nobody can tell what it costs has no gain, and its reason is the feature's."""
    blind = Component("haze", Part, traits=Traits(why_unmeasured=lambda _: "nobody can see"))
    with added(blind, "haze"):
        found = measure_gains(components(), gains({"haze": [5.0] * N_STEPS}))
    assert (found["gain.haze"].value, found["last.haze"].reason) == (None, "nobody can see")


def test_traits_of_several_components_are_what_all_have() -> None:
    """A cause is of workers, of links, seldom or of the first stage where all its components are; one that stops all is enough."""
    found = gains()
    assert found.traits_of(("worker",)).whom == "workers"
    assert found.traits_of(("worker", "transfer")).whom == found.traits_of(("worker", "pause")).whom == "blamed"
    assert found.traits_of(("gc-pause",)).seldom
    assert not found.traits_of(("gc-pause", "pause")).seldom
    assert not found.traits_of(("input-delay", "pause")).few_stages
    assert found.traits_of(("end-delay", "between-steps")).stops_all
    assert not found.traits_of(("end-delay",)).stops_all
