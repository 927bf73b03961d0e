"""Which link, card or group is slower than its equals, and what of it is the network's fault."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diagnose.features.catalogue import list_groups
from diagnose.features.network import measure_network
from diagnose.model.stalls import StallKind
from diagnose.model.transfers import SlowPlaces, Transfers
from tests.features.hand import N_STEPS, components, slowed, stalled
from tests.judge.cases import causes, culprits, measured_file

NAN = float("nan")


def transfers(
    link_ms: object,
    *,
    late_ms: object = None,
    group_ms: object = (20.0, 20.0),
    link_excess_ms: object = None,
    group_excess_ms: object = None,
    excess_ratio: float | None = None,
    step_s: float = 10.0,
) -> Transfers:
    """Give transfers in milliseconds, (n_stages, n_dp)."""
    link_s = np.array(link_ms, dtype=float) * 1e-3
    late_s = np.where(np.isnan(link_s), np.nan, 0.0) if late_ms is None else np.array(late_ms, dtype=float) * 1e-3
    group_s = np.array(group_ms, dtype=float) * 1e-3
    excess_s = np.zeros(link_s.shape) if link_excess_ms is None else np.array(link_excess_ms, dtype=float) * 1e-3
    of_groups_s = np.zeros(len(link_s)) if group_excess_ms is None else np.array(group_excess_ms, dtype=float) * 1e-3
    return Transfers(link_s, late_s, group_s, step_s, excess_s, of_groups_s, excess_ratio, excess_ratio)


@pytest.mark.parametrize(("slow_steps", "expected"), [([2, 3], 1.0), ([6, 7], 0.0), ([], 0.0)])
def test_transfers_that_are_slow_with_all_computes(slow_steps: list[int], expected: float) -> None:
    """Collectives that are slow everywhere in two steps are the hosts' where computes are slow in these, too."""
    group_steps_s = np.full((2, N_STEPS), 0.02)
    group_steps_s[:, 2:4] = 0.5
    step_ratio = np.ones((2, N_STEPS))
    step_ratio[:, slow_steps] = 1.5
    nowhere = SlowPlaces.nowhere(2, 2)
    found = dataclasses.replace(
        transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=[[9.0, 0.0], [0.0, 0.0]], excess_ratio=5.0),
        slow=dataclasses.replace(nowhere, repeats=0.8, in_time=True),
        group_steps_s=group_steps_s,
    )
    measured = measure_network(found, components(step_ratio=step_ratio))
    assert measured["network.slow_computes"].value == expected
    assert measured["network.rank_ratio"].value is None  # no link has what others do not have
    found = dataclasses.replace(found, slow=nowhere)
    assert measure_network(found, components(step_ratio=step_ratio))["network.slow_computes"].value is None


@pytest.mark.parametrize(
    ("repeats", "peer_ms", "on_one_cpu", "expected"),
    [(0.9, 10.0, True, 0.0), (0.7, 10.0, True, 0.9), (0.7, 10.0, False, 0.165), (0.7, 0.9, True, 0.165)],
)
def test_links_between_processes_of_one_host(repeats: float, peer_ms: float, on_one_cpu: bool, expected: float) -> None:
    """Between processes of one host is no network: where slow places hardly repeat its cores are busy, but if one has it all."""
    slow = dataclasses.replace(SlowPlaces.nowhere(2, 2), repeats=repeats)
    excess_ms = [[90.0, peer_ms], [0.0, 0.0]]
    found = dataclasses.replace(
        transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=excess_ms, excess_ratio=5.0), slow=slow
    )
    measured = measure_network(found, components(), on_one_cpu=on_one_cpu)
    assert measured["network.chance_doubt"].value == pytest.approx(expected)


@pytest.mark.parametrize(("n_groups", "on_one_cpu", "expected"), [(1, True, 0.495), (2, True, 0.0), (1, False, 0.0)])
def test_one_group_of_one_host_has_no_places(n_groups: int, on_one_cpu: bool, expected: float) -> None:
    """Where all are one group, the same place is slow again whatever it is: as probably what else takes the host's cores."""
    slow = dataclasses.replace(SlowPlaces.nowhere(n_groups, 2), repeats=0.9)
    no_links = [[NAN, NAN]] * n_groups
    found = dataclasses.replace(
        transfers(no_links, group_ms=[9.0, 1.0][:n_groups], group_excess_ms=[9.0, 0.0][:n_groups]), slow=slow
    )
    measured = measure_network(found, components(), on_one_cpu=on_one_cpu)
    assert measured["network.chance_doubt"].value == pytest.approx(expected)


@pytest.mark.parametrize(("is_one", "expected"), [(True, 0.9), (False, 0.165)])
def test_who_measures_says_whether_there_is_a_network(is_one: bool, expected: float) -> None:
    """Features of a job know from its trace that all is on one host."""
    slow = dataclasses.replace(SlowPlaces.nowhere(2, 2), repeats=0.7)
    excess_ms = [[90.0, 10.0], [0.0, 0.0]]
    found = dataclasses.replace(transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=excess_ms), slow=slow)
    job: Any = SimpleNamespace(transfers=found, breakdown=components(), trace=SimpleNamespace(is_on_one_cpu=is_one))
    (group,) = (group for group in list_groups() if "network.chance_doubt" in group.reads_as)
    assert group.measure(job)["network.chance_doubt"].value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("repeats", "second_ms", "is_link", "expected"),
    [(0.7, 60.0, True, 0.495), (0.7, 10.0, True, 0.165), (0.9, 60.0, True, 0.0), (0.7, 60.0, False, 0.165)],
)
def test_links_of_several_ranks_that_hardly_repeat(
    repeats: float, second_ms: float, is_link: bool, expected: float
) -> None:
    """Where the same link of the other dp rank is slow, too, now and then, the hosts are busy; of a group it says nothing."""
    nowhere = SlowPlaces.nowhere(2, 2)
    slow = dataclasses.replace(
        nowhere, repeats=repeats, ways=nowhere.ways | is_link, groups=nowhere.groups | (not is_link)
    )
    excess_ms = [[90.0, second_ms], [0.0, 0.0]]
    found = dataclasses.replace(
        transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=excess_ms), slow=slow, excess_ratio=5.0
    )
    assert measure_network(found, components())["network.chance_doubt"].value == pytest.approx(expected)


@pytest.mark.parametrize(("n_steps", "expected"), [(1, 0.495), (2, 0.0)])
def test_a_transfer_that_got_stuck_once(n_steps: int, expected: float) -> None:
    """One single time may be a process that was paused; twice is the network."""
    stuck = dataclasses.replace(SlowPlaces.nowhere(2, 2), apart=50.0, steps_share=n_steps / N_STEPS)
    found = dataclasses.replace(transfers([[1.0, 1.0], [NAN, NAN]]), slow=stuck)
    assert measure_network(found, components())["network.chance_doubt"].value == pytest.approx(expected)


def test_links_and_groups_alike() -> None:
    """Where all links take the same, ratios are 1, nothing is late and nobody is named."""
    alike = transfers([[1.0, 1.0], [NAN, NAN]])
    found = measure_network(alike, components())
    assert [found[f"network.{name}"].value for name in ("link_ratio", "group_ratio", "late_share")] == [1.0, 1.0, 0.0]
    assert found["network.by_slow_worker"].value == 0.0


def test_one_slow_link_is_measured_against_the_others() -> None:
    """5 ms among links of 1 ms is a ratio of 5, by its median."""
    one = transfers([[1.0, 1.0], [1.0, 5.0], [1.0, 1.0], [NAN, NAN]])
    assert measure_network(one, components(n_stages=4))["network.link_ratio"].value == pytest.approx(5.0)


def test_late_transfers_are_counted_beyond_the_ordinary_link() -> None:
    """1.2 s a step on one link, 0.2 s on an ordinary one, are 10% of a step of 10 s."""
    late = transfers([[1.0, 1.0, 1.0], [NAN] * 3], late_ms=[[200.0, 200.0, 1200.0], [NAN] * 3])
    assert measure_network(late, components())["network.late_share"].value == pytest.approx(0.1)


def test_one_slow_group() -> None:
    """A stage whose collectives take 80 ms against 20 ms has a ratio of 4."""
    found = measure_network(transfers([[1.0, 1.0], [NAN, NAN]], group_ms=(20.0, 80.0)), components())
    assert found["network.group_ratio"].value == pytest.approx(4.0)


def test_a_slow_link_at_a_slow_worker_is_marked() -> None:
    """The slowest link counts as the slow worker's when it ends there, and only then."""
    link_ms = [[1.0, 5.0], [NAN, NAN]]
    assert measure_network(transfers(link_ms), slowed({(1, 1): 2.0}))["network.by_slow_worker"].value == 1.0
    apart = transfers(link_ms, group_ms=(NAN, NAN))
    assert measure_network(apart, slowed({(0, 1): 2.0}))["network.by_slow_worker"].value == 0.0


def test_a_slow_link_elsewhere_is_not_the_slow_workers() -> None:
    """What is beyond the ordinary says where, not medians that differ by chance, nor a group of which the worker is a member."""
    slow = slowed({(1, 1): 2.0})
    beside = {"link_ms": [[1.0, 1.1], [NAN, NAN]], "excess_ratio": 2.0}
    link = transfers(**beside, link_excess_ms=[[300.0, 0.0], [0.0, 0.0]], group_excess_ms=[0.0, 400.0])
    assert measure_network(link, slow)["network.by_slow_worker"].value == 0.0
    group = transfers(**beside, group_excess_ms=[400.0, 0.0])
    assert measure_network(group, slow)["network.by_slow_worker"].value == 0.0
    its_own = transfers(**beside, link_excess_ms=[[0.0, 300.0], [0.0, 0.0]])
    assert measure_network(its_own, slow)["network.by_slow_worker"].value == 1.0


def test_a_slow_worker_explains_no_transfer_far_slower_than_itself() -> None:
    """A worker that takes twice as long explains transfers of 3 times the ordinary, and not of 40 times."""
    for excess_ratio, is_explained in ((2.0, 1.0), (39.0, 0.0)):
        group = transfers([[1.0, 1.0], [NAN, NAN]], group_excess_ms=[0.0, 400.0], excess_ratio=excess_ratio)
        assert measure_network(group, slowed({(1, 1): 2.0}))["network.by_slow_worker"].value == is_explained


@pytest.mark.parametrize(
    ("lost_ms", "n_links", "doubt"), [(400.0, 0, 0.495), (750.0, 0, 0.2475), (1000.0, 0, 0.0), (400.0, 2, 0.0)]
)
def test_the_only_group_that_is_late_now_and_then_may_be_busy_hosts(lost_ms: float, n_links: int, doubt: float) -> None:
    """A single group that loses up to a twentieth of steps of 10 s: nothing tells a network from hosts but how much it is."""
    late = dataclasses.replace(
        transfers(
            [[1.0, 1.0] if n_links else [NAN, NAN]], group_ms=[20.0], group_excess_ms=[lost_ms], excess_ratio=9.0
        ),
        slow=dataclasses.replace(SlowPlaces.nowhere(1, 2), apart=50.0, steps_share=0.5),
    )
    assert measure_network(late, components())["network.chance_doubt"].value == pytest.approx(doubt, abs=0.003)


@pytest.mark.parametrize(("since", "is_explained"), [(0, 0.0), (N_STEPS // 2, 1.0)])
def test_a_worker_that_is_slow_before_its_network_is_does_not_explain_it(since: int, is_explained: float) -> None:
    """Collectives are slow in the later half of the steps, and a worker of the stage in all of them, or in these."""
    group_steps_s = np.full((2, N_STEPS), 0.02)
    group_steps_s[1, N_STEPS // 2 :] = 0.06
    group = dataclasses.replace(
        transfers([[1.0, 1.0], [NAN, NAN]], group_excess_ms=[0.0, 400.0], excess_ratio=2.0),
        slow=dataclasses.replace(SlowPlaces.nowhere(2, 2), repeats=0.9, in_time=True),
        group_steps_s=group_steps_s,
    )
    slow = slowed({(1, 1): 2.0}, steps=slice(since, None))
    assert measure_network(group, slow)["network.by_slow_worker"].value == is_explained


@pytest.mark.parametrize("at_interval", [False, True])
def test_what_is_slow_every_so_many_steps_may_be_what_the_job_writes(*, at_interval: bool) -> None:
    """Transfers that are slow together in a stretch, or every so many steps: a save in the background keeps such an interval."""
    slow = dataclasses.replace(SlowPlaces.nowhere(2, 2), repeats=0.9, in_time=True, at_interval=at_interval)
    group = dataclasses.replace(transfers([[1.0, 1.0], [NAN, NAN]], group_excess_ms=[400.0, 400.0]), slow=slow)
    assert measure_network(group, components())["network.interval_doubt"].value == (0.28 if at_interval else 0.0)


@pytest.mark.parametrize(
    ("late_s", "dp", "excess_ms", "is_explained"),
    [(0.4, 1, 90.0, 1.0), (0.1, 1, 90.0, 0.0), (0.4, 0, 90.0, 0.0), (0.4, 1, 300.0, 0.0)],
)
def test_who_stops_sends_nothing(late_s: float, dp: int, excess_ms: float, is_explained: float) -> None:
    """A worker at the end of the worst link stops for 0.3 s in some computes; transfers are late for as long. Or another stops.

    Or they are late for longer in all than it stops.
    """
    places = dict.fromkeys([(0, 1, 0, step, dp) for step in (1, 4, 7)], 0.3)
    parts = stalled({place: (s, StallKind.WORKER) for place, s in places.items()})
    parts = dataclasses.replace(parts, transfers=(({0: np.full((1, 1), late_s)}, {0: 0.01}),))
    link = transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=[[0.0, excess_ms], [0.0, 0.0]], excess_ratio=300.0)
    assert measure_network(link, parts)["network.by_slow_worker"].value == is_explained


@pytest.mark.parametrize(
    ("late_s", "beside", "is_told", "doubt"),
    [(0.4, 0, False, 0.495), (0.1, 0, False, 0.0), (0.4, 2, False, 0.0), (0.4, 0, True, 0.0)],
)
@pytest.mark.parametrize("kind", [StallKind.NOBODY, StallKind.COLLECTION])
def test_something_may_stop_whose_transfers_are_late(
    kind: StallKind, late_s: float, beside: int, is_told: bool, doubt: float
) -> None:
    """Whatever its pauses look like, where no row tells of them, and workers elsewhere do not pause as well."""
    places = {(0, 1, 0, step, 1): 0.3 for step in (1, 4, 7)} | {(0, 1, 0, step, 0): 0.3 for step in range(beside)}
    parts = stalled({place: (s, kind) for place, s in places.items()}, recorded=places if is_told else ())
    parts = dataclasses.replace(parts, transfers=(({0: np.full((1, 1), late_s)}, {0: 0.01}),))
    link = transfers([[1.0, 1.0], [NAN, NAN]], link_excess_ms=[[0.0, 90.0], [0.0, 0.0]], excess_ratio=300.0)
    assert measure_network(link, parts)["network.chance_doubt"].value == pytest.approx(doubt)


def test_one_stage_has_no_links() -> None:
    """With one stage what needs links or several groups is missing, with the reason."""
    found = measure_network(transfers([[NAN, NAN]], group_ms=(20.0,)), components(n_stages=1))
    for name in ("link_ratio", "late_share"):
        assert found[f"network.{name}"].value is None
        assert found[f"network.{name}"].reason == "fewer than two links between stages"
    assert found["network.group_ratio"].value is None
    assert found["network.group_ratio"].reason == "fewer than two groups of dp ranks"


def test_what_is_beyond_the_ordinary_has_a_place() -> None:
    """Of 400 ms a step beyond ordinary transfers 300 are on one link, 100 in one group: three quarters of place and links."""
    found = measure_network(
        transfers(
            [[1.0, 1.0], [NAN, NAN]],
            link_excess_ms=[[0.0, 300.0], [0.0, 0.0]],
            group_excess_ms=[0.0, 100.0],
            excess_ratio=8.0,
        ),
        components(),
    )
    assert found["network.excess_ratio"].value == pytest.approx(8.0)
    assert found["network.place_share"].value == pytest.approx(0.75)
    assert found["network.links_share"].value == pytest.approx(0.75)


def test_nothing_beyond_the_ordinary_has_no_place() -> None:
    """Where no transfer is longer than ordinary ones, what describes such is missing, with the reason."""
    found = measure_network(transfers([[1.0, 1.0], [NAN, NAN]]), components())
    for name in ("excess_ratio", "place_share", "links_share"):
        assert found[f"network.{name}"].value is None
        assert "no transfer takes longer" in found[f"network.{name}"].reason


def test_the_worst_link_is_compared_with_other_ranks() -> None:
    """300 ms on one link beside 100 on the same stage's link of each of the other ranks is three times as much."""
    excess_ms = [[100.0, 300.0, 100.0], [0.0, 0.0, 0.0]]
    one = transfers([[1.0] * 3, [NAN] * 3], link_excess_ms=excess_ms, excess_ratio=2.0)
    assert measure_network(one, components())["network.rank_ratio"].value == pytest.approx(3.0)


def test_with_one_dp_rank_no_other_has_the_same_link() -> None:
    """What nobody else could have is no sign: it is not said of a link that others do not have it."""
    one = transfers([[1.0], [NAN]], link_excess_ms=[[300.0], [0.0]], excess_ratio=2.0)
    found = measure_network(one, components())["network.rank_ratio"]
    assert (found.value, found.reason) == (None, "with one dp rank no other has the same link")


def test_a_real_slow_card(shared: Path) -> None:
    """The real job with a slow network card is told so first, and whose card it is."""
    diagnosis = measured_file(shared / "real" / "net-nic.parquet").diagnosis
    assert causes(diagnosis)[0] == "network-fault"
    assert culprits(diagnosis, "network-fault") == [(0, 2)]


def test_a_real_slow_worker_is_no_network_fault(shared: Path) -> None:
    """A throttled real worker makes its group and links slow, and is still no fault of the network."""
    diagnosis = measured_file(shared / "real" / "worker-quota.parquet").diagnosis
    assert causes(diagnosis)[0] == "worker-fault"
    assert "network-fault" not in causes(diagnosis)
    assert diagnosis.features["network.by_slow_worker"] == 1.0
