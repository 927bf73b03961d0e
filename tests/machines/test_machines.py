"""Faulty machines are found from telemetry alone, with their kind, and sound clusters are left alone."""

import dataclasses

import numpy as np
import pytest

from diagnose.errors import TraceError, UsageError
from diagnose.machines.find import find_machines
from diagnose.machines.job import Course, find_slowing
from diagnose.machines.rules import read_machine_rule, read_machine_rules
from diagnose.model.telemetry import METRICS, Series, Telemetry
from tests.clusters.ranges import TUNED
from tests.clusters.render import render
from tests.clusters.worlds import draw_world
from tests.machines.score import RIGHT, Count

NEVER = np.zeros(90, dtype=bool)
SMALL = dataclasses.replace(TUNED, n_hosts=(6, 48), n_cards=(1, 2))


def _worlds(seed, n, **given):
    for i in range(n):
        yield draw_world(seed, i, ranges=SMALL, **given)


#: Six machines that hold less than the others.
TWO_ROLES = {
    "gpu_tensor_active": lambda _, t: np.full(len(t), 0.5),
    "gpu_memory_used_bytes": lambda h, t: np.full(len(t), 6e10 if h < 6 else 7e10),
}


def _cluster(n_hosts=8, seconds=900, **metrics):
    """Telemetry by hand: each metric a function of (host, times)."""
    times = 1.7e9 + np.arange(0.0, seconds, 5.0)
    rng = np.random.default_rng(0)
    series = []
    for name, level in metrics.items():
        for host in range(n_hosts):
            values = np.asarray(level(host, times - times[0]))
            if METRICS[name].kind == "gauge":
                values = values * (1.0 + 0.01 * rng.standard_normal(len(times)))
            device = "0" if METRICS[name].of in ("gpu", "nic") else ""
            series.append(Series(METRICS[name], f"n{host}", device, times, values))
    return Telemetry("hand", ("hand",), tuple(series), ())


def test_forty_worlds():
    """Nearly all faulty machines that show anything are named, with the right kind; none of a sound cluster is."""
    count = Count()
    for world in _worlds(20, 40):
        found = find_machines(render(world.cluster))
        named = {machine.host: machine.kind for machine in found.machines}
        hidden = set(world.unobservable)
        count.add(
            {h: k for h, k in named.items() if h not in hidden},
            {h: k for h, k in world.faulty.items() if h not in hidden},
        )
    assert count.f1 > 0.93
    assert count.kinds_right >= 0.95 * count.right


def test_the_culprit_and_not_those_that_wait():
    """One machine's processes are gone, all others wait in a collective: only the one is named, since then."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_power_w=lambda h, t: np.where(t < 500, 600.0, 80.0 if h == 3 else 230.0),
            gpu_utilization=lambda h, t: np.where(t < 500, 0.98, 0.0 if h == 3 else 1.0),
        )
    )
    assert (found.verdict, found.job.state) == ("faulty", "stopped")
    (machine,) = found.machines
    assert (machine.host, machine.kind) == ("n3", "process-died")
    assert abs(machine.since_s - (1.7e9 + 500)) <= 20.0
    assert machine.confidence >= 0.9


def test_a_job_that_stops_everywhere_alike_is_no_machines_fault():
    """All wait and none differs: nobody can tell, and the answer says where to look."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_power_w=lambda _, t: np.where(t < 500, 600.0, 230.0),
        )
    )
    assert found.verdict == "cannot-tell"
    assert "logs" in found.reason
    assert found.machines == ()


def test_a_job_that_ends_is_sound():
    """All processes leave together: nothing is wrong."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_utilization=lambda _, t: np.where(t < 500, 0.98, 0.0),
        )
    )
    assert (found.verdict, found.job.state) == ("sound", "ended")


def test_a_service_that_hurts_nobody_is_remarked_and_not_blamed():
    """One machine's CPU is busier since a while, and the job runs as before."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.full(len(t), 0.5),
            cpu_used=lambda h, t: np.where((h == 2) & (t > 400), 0.5, 0.2),
        )
    )
    assert found.verdict == "sound"
    assert any(remark.startswith("n2: CPU busy: ") for remark in found.remarks)


def test_a_job_that_stopped_long_ago():
    """All wait since before the window, and one machine's processes are gone: it is named, though nothing changes any more."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.zeros(len(t)),
            gpu_power_w=lambda h, t: np.full(len(t), 80.0 if h == 5 else 230.0),
            gpu_utilization=lambda h, t: np.full(len(t), 0.0 if h == 5 else 1.0),
        )
    )
    assert (found.job.state, found.job.since_s) == ("stopped", None)
    assert [(machine.host, machine.kind) for machine in found.machines] == [("n5", "process-died")]


def test_a_clock_that_is_low_all_the_time():
    """One card runs at two thirds of its peers' clock as long as one can see: it is named."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.full(len(t), 0.5),
            gpu_sm_clock_mhz=lambda h, t: np.full(len(t), 1200.0 if h == 1 else 1800.0),
        )
    )
    assert [(machine.host, machine.kind) for machine in found.machines] == [("n1", "slow-gpu")]


def test_a_job_that_is_slower_everywhere_alike_is_not_sound():
    """No machine differs, and the job does a third less: nobody can tell, and the answer says where to look."""
    found = find_machines(_cluster(gpu_tensor_active=lambda _, t: np.where(t < 500, 0.6, 0.4)))
    assert found.verdict == "cannot-tell" and not found.machines
    assert "33% less work" in found.reason


def test_a_machine_that_does_nothing_all_the_time():
    """A spare and a machine that failed before look alike: nobody can tell, and the answer says how to find out."""
    found = find_machines(
        _cluster(
            gpu_power_w=lambda h, t: np.full(len(t), 80.0 if h == 5 else 600.0),
            gpu_utilization=lambda h, t: np.full(len(t), 0.0 if h == 5 else 0.98),
        )
    )
    assert found.verdict == "cannot-tell"
    assert found.reason.startswith("n5 did nothing all the time")


def test_two_slow_cards_are_two_faults():
    """GIVEN two machines whose clocks fall, one 20 s after the other, in a job that is slower since, THEN both are named."""

    def late(host, t):
        return (t >= 500 + 20 * (host == 5)) & (host in (3, 5))

    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda h, t: np.where(t < 500, 0.5, 0.5 if h in (3, 5) else 0.35),
            gpu_sm_clock_mhz=lambda h, t: np.where(late(h, t), 1200.0, 1800.0),
        )
    )
    assert [(machine.host, machine.kind) for machine in found.machines] == [("n3", "slow-gpu"), ("n5", "slow-gpu")]
    assert not found.affected


def test_a_machine_that_sends_less_in_a_job_that_is_slower():
    """GIVEN a port that sends and takes a third less since the job is slower, THEN its link is named; else it is remarked."""

    def levels(slower):
        traffic = {
            f"net_{way}_bytes": lambda h, t: t * 1e9 - np.where((t >= 500) & (h == 3), (t - 500) * 0.35e9, 0.0)
            for way in ("sent", "received")
        }
        return _cluster(gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, slower), **traffic)

    slowed, running = find_machines(levels(0.35)), find_machines(levels(0.5))
    assert [(machine.host, machine.kind) for machine in slowed.machines] == [("n3", "slow-link")]
    assert running.verdict == "sound" and "n3: bytes" in running.remarks[0]


def test_a_congested_rack_is_no_fault_of_one_of_its_machines():
    """GIVEN four machines that send as many pauses since one moment, one with a GPU that did more before, THEN none is named."""
    found = find_machines(
        _cluster(
            16,
            gpu_tensor_active=lambda h, t: np.where((t >= 350) & (h == 2), 0.46, 0.5),
            net_pfc_sent=lambda h, t: t * 100.0 + np.where((t >= 500) & (h < 4), (t - 500) * 3000.0, 0.0),
        )
    )
    assert not found.machines and {"n0", "n1", "n2", "n3"} <= set(found.affected)


def test_a_congested_rack_of_machines_of_two_roles_is_no_fault_of_the_few():
    """GIVEN a rack with all machines of one role and two of another, THEN the two are not named."""
    found = find_machines(
        _cluster(
            16,
            **TWO_ROLES,
            net_pfc_sent=lambda h, t: t * 100.0 + np.where((t >= 500) & (h < 8), (t - 500) * 3000.0, 0.0),
        )
    )
    assert len(found.roles) == 2
    assert not found.machines and set(found.affected) == {"n6", "n7"}


def test_of_machines_that_send_pauses_the_one_that_sends_most_is_named():
    """GIVEN pauses a hundred times as many as before at one machine, and a third of that at another, THEN the first is named."""
    more = {3: 30000.0, 5: 9000.0}
    found = find_machines(
        _cluster(
            16,
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.4),
            net_pfc_sent=lambda h, t: t * 100.0 + np.where(t >= 500, (t - 500) * more.get(h, 0.0), 0.0),
        )
    )
    assert [machine.host for machine in found.machines] == ["n3"] and found.affected == ("n5",)


def test_whose_gpus_alone_fall_idle_in_the_same_moment_is_no_culprit():
    """GIVEN a machine whose process is gone, and two whose GPUs fall idle as it goes, THEN the first is named; alone both are."""

    def cluster(*, with_first):
        idle = (2, 3, 4) if with_first else (3, 4)
        return _cluster(
            16,
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_utilization=lambda h, t: np.where((t >= 500) & (h in idle), 0.0, 1.0),
            cpu_used=lambda h, t: np.where((t >= 500) & (h == 2) & with_first, 0.01, 0.2),
        )

    found = find_machines(cluster(with_first=True))
    assert [machine.host for machine in found.machines] == ["n2"] and set(found.affected) == {"n3", "n4"}
    assert [machine.host for machine in find_machines(cluster(with_first=False)).machines] == ["n3", "n4"]


def test_a_job_that_ends_with_a_save_was_stopped_by_nobody():
    """GIVEN processes that end after they saved for a minute, THEN who sends pauses is not named; if GPUs waited it is."""

    def cluster(busy):
        return _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_utilization=lambda _, t: np.where(t < 500, 0.98, np.where(t < 560, busy, 0.0)),
            net_pfc_sent=lambda h, t: t * 100.0 + np.where((t >= 480) & (h == 2), (t - 480) * 9000.0, 0.0),
        )

    saved, waited = find_machines(cluster(0.25)), find_machines(cluster(1.0))
    assert (saved.job.state, saved.verdict) == ("ended", "sound")
    assert waited.job.state == "stopped" and [machine.host for machine in waited.machines] == ["n2"]


def test_who_is_silent_when_a_job_ends_was_waited_for_by_nobody():
    """GIVEN processes that end at once, and a machine that is silent since some seconds before, THEN it is not named."""
    telemetry = _cluster(
        gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
        gpu_utilization=lambda _, t: np.where(t < 500, 0.98, 0.0),
    )
    cut = tuple(
        dataclasses.replace(one, times=one.times[:94], values=one.values[:94]) if one.host == "n3" else one
        for one in telemetry.series
    )
    found = find_machines(dataclasses.replace(telemetry, series=cut))
    assert (found.job.state, found.machines) == ("ended", ())


def test_waiting_in_each_step_is_no_save():
    """GIVEN a job that does less since bin 48 as all wait ten seconds in each step of thirty, THEN it is slower since then."""
    at = np.arange(90)
    work = np.where((at >= 48) & (at % 3 == 0), 0.02, 0.8) + 0.05 * np.random.default_rng(3).standard_normal(90)
    slowing = find_slowing(Course("running", "gpu_tensor_active", work, work < 0.12, NEVER, 0, 90, 90), 10.0)
    assert slowing is not None and abs(slowing.since - 48) <= 6
    # A save of twenty seconds every two minutes and a half, which began later than the job, is one.
    work = np.where((at >= 30) & (at % 15 < 2), 0.0, 0.8) + 0.05 * np.random.default_rng(3).standard_normal(90)
    assert find_slowing(Course("running", "gpu_tensor_active", work, work < 0.12, NEVER, 0, 90, 90), 10.0) is None


def test_a_save_does_not_hide_since_when_a_job_is_slower():
    """GIVEN a job that is slower from bin 30 on, and saved for 40 s two minutes before, THEN it is slower since bin 30."""
    work = np.where(np.arange(90) < 30, 0.94, 0.72) + 0.08 * np.random.default_rng(3).standard_normal(90)
    work[18:22] = 0.0
    slowing = find_slowing(Course("running", "gpu_tensor_active", work, work < 0.3, NEVER, 0, 90, 90), 10.0)
    assert slowing is not None and abs(slowing.since - 30) <= 2


def test_an_evaluation_does_not_hide_since_when_a_job_is_slower():
    """GIVEN a job that is slower since second 300, and evaluates from 320 to 410, THEN it is slower since then."""

    def evaluates(t):
        return (t >= 320) & (t < 410)

    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where((t < 300) | evaluates(t), 0.5, 0.4),
            net_sent_bytes=lambda _, t: np.cumsum(np.where(evaluates(t), 1e9, 1e10)),
        )
    )
    assert found.job.state == "slowed" and abs(found.job.since_s - (1.7e9 + 300)) <= 60.0


def test_a_process_that_dies_later_on_another_machine_is_a_fault_of_its_own():
    """GIVEN a machine whose processes are gone, and one of which half are soon after, THEN both are; who idles whole waits."""

    def cluster(left):
        return _cluster(
            16,
            gpu_tensor_active=lambda _, t: np.where(t < 520, 0.5, 0.0),
            gpu_utilization=lambda h, t: np.where(
                (t >= 500) & (h == 2), 0.0, np.where((t >= 510) & (h == 5), left, 1.0)
            ),
            cpu_used=lambda h, t: np.where((t >= 500) & (h == 2), 0.01, 0.2),
        )

    assert [machine.host for machine in find_machines(cluster(0.5)).machines] == ["n2", "n5"]
    whole = find_machines(cluster(0.0))
    assert ([machine.host for machine in whole.machines], whole.affected) == (["n2"], ("n5",))


def test_a_congested_rack_does_not_hide_whose_cpu_is_taken():
    """GIVEN a machine whose CPU is taken as the job slows, and a rack that sends pauses later, THEN the machine is named."""
    found = find_machines(
        _cluster(
            16,
            gpu_tensor_active=lambda _, t: np.where(t < 450, 0.5, 0.4),
            cpu_used=lambda h, t: np.where((t >= 450) & (h == 9), 0.8, 0.2),
            net_pfc_sent=lambda h, t: t * 100.0 + np.where((t >= 500) & (h < 6), (t - 500) * 3000.0, 0.0),
        )
    )
    assert [(machine.host, machine.kind) for machine in found.machines] == [("n9", "cpu-contention")]
    assert {f"n{host}" for host in range(6)} <= set(found.affected)


def _sound(change, n_hosts=8):
    """Telemetry of a job that runs, with machine n3 changed."""
    telemetry = _cluster(
        n_hosts,
        gpu_tensor_active=lambda _, t: np.full(len(t), 0.5),
        gpu_power_w=lambda _, t: np.full(len(t), 600.0),
        gpu_xid=lambda _, t: np.zeros(len(t)),
    )
    return dataclasses.replace(
        telemetry, series=tuple(change(one) if one.host == "n3" else one for one in telemetry.series)
    )


@pytest.mark.parametrize(
    ("later_s", "why"),
    [
        (3600.0, "sends samples of 3,600 s later than most: its clock is wrong"),
        (300.0, "sends samples of 300 s later than most: its clock is wrong"),
        (-3600.0, "sent nothing in these minutes: it is gone, or its clock is wrong"),
    ],
)
def test_a_machine_with_another_clock_is_told_and_hides_nobody(later_s, why):
    """One machine's clock is an hour ahead, or behind: the others are compared in their own minutes, and it is not called sound."""
    found = find_machines(_sound(lambda one: dataclasses.replace(one, times=one.times + later_s)))
    assert (found.verdict, found.reason) == ("cannot-tell", f"n3: {why}; the other 7 are sound")
    assert found.n_machines == 7 and found.warnings == (f"n3: {why}; not compared",)
    assert found.to_s == 1.7e9 + 895.0


def test_samples_far_apart_are_no_other_clock():
    """With a sample every five minutes a scrape that is four minutes later is one."""
    telemetry = _sound(lambda one: dataclasses.replace(one, times=one.times + 240.0))
    cut = tuple(dataclasses.replace(one, times=one.times[::60], values=one.values[::60]) for one in telemetry.series)
    assert not any("clock" in warning for warning in find_machines(dataclasses.replace(telemetry, series=cut)).warnings)


@pytest.mark.parametrize("since", [0, 60, 120])
def test_an_exporter_that_hangs_is_told(since):
    """Its numbers stay as they are while those of all others change: nobody knows how that machine is."""

    def hang(one):
        return dataclasses.replace(
            one, values=np.r_[one.values[:since], np.full(len(one.values) - since, one.values[since])]
        )

    found = find_machines(_sound(hang))
    assert found.verdict == "cannot-tell"
    assert found.reason.startswith("n3: sends the same numbers again and again: its exporter hangs")


def test_what_is_the_same_everywhere_hangs_nowhere():
    """GIVEN numbers that no machine changes, or one metric alone that one machine does not, THEN no exporter hangs."""
    still = _cluster(gpu_tensor_active=lambda _, t: np.full(len(t), 0.5), cpu_used=lambda _, t: np.full(len(t), 0.2))
    same = tuple(dataclasses.replace(one, values=np.full_like(one.values, 0.5)) for one in still.series)
    one_metric = tuple(
        new if new.host == "n3" and new.metric.name == "cpu_used" else old
        for new, old in zip(same, still.series, strict=True)
    )
    assert find_machines(dataclasses.replace(still, series=same)).warnings == ()
    assert find_machines(dataclasses.replace(still, series=one_metric)).warnings == ()


def test_a_machine_at_rest_has_no_exporter_that_hangs():
    """GIVEN a machine whose processes are gone, and whose cards draw the same power to the watt, THEN it is at fault."""
    telemetry = _cluster(
        gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
        gpu_power_w=lambda h, t: np.where(t < 500, 600.0, 80.0 if h == 3 else 230.0),
        gpu_utilization=lambda h, t: np.where(t < 500, 0.98, 0.0 if h == 3 else 1.0),
    )
    whole = tuple(
        dataclasses.replace(
            one, values=np.where((one.times > 1.7e9 + 500) & (one.host == "n3"), one.values.round(-1), one.values)
        )
        for one in telemetry.series
    )
    found = find_machines(dataclasses.replace(telemetry, series=whole))
    assert ([machine.host for machine in found.machines], found.warnings) == (["n3"], ())


@pytest.mark.parametrize(("code", "verdict"), [(79, "cannot-tell"), (48, "cannot-tell"), (43, "sound")])
def test_an_xid_from_before_is_told(code, verdict):
    """The driver reports it all the time: of a card that breaks nobody calls that machine sound; of a program it is remarked."""
    found = find_machines(
        _sound(
            lambda one: (
                dataclasses.replace(one, values=np.full_like(one.values, code)) if one.metric.name == "gpu_xid" else one
            )
        )
    )
    assert found.verdict == verdict and found.machines == ()
    assert f"n3: last XID (card 0): {code} since before these minutes" in (found.reason or "", *found.remarks)[-1]


def test_what_explains_a_stop_leaves_no_room_for_chance():
    """GIVEN a machine that is silent since the job stopped, THEN one of a little less power is not named; alone it is."""

    def cluster(*, is_silent):
        telemetry = _cluster(
            12,
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_power_w=lambda h, t: np.where(t < 500, 600.0, 230.0 - (34.0 if h == 5 else 0.0)),
        )
        kept = [one for one in telemetry.series if one.host != "n3"]
        cut = [
            dataclasses.replace(one, times=one.times[:100], values=one.values[:100])
            for one in telemetry.series
            if one.host == "n3"
        ]
        return dataclasses.replace(telemetry, series=(*kept, *cut)) if is_silent else telemetry

    assert [(one.host, one.kind) for one in find_machines(cluster(is_silent=True)).machines] == [("n3", "unreachable")]
    assert [one.host for one in find_machines(cluster(is_silent=False)).machines] == ["n5"]


def test_what_rises_early_is_no_measure_of_itself():
    """A CPU is busy from a quarter of the time on, and the job is slower since: what it usually has is what its peers have."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 300, 0.5, 0.4),
            cpu_used=lambda h, t: np.where((h == 2) & (t > 210), 0.7, 0.2),
        )
    )
    assert [(machine.host, machine.kind) for machine in found.machines] == [("n2", "cpu-contention")]


def test_who_writes_for_all_does_not_wait_for_its_storage():
    """Nobody works while one machine saves, ever more often: the job runs as before, and nothing is wrong with the machine."""

    def saves(t):
        return (t % 150 < 30) & (t > 300)

    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(saves(t), 0.0, 0.5),
            cpu_io_wait=lambda h, t: np.where(saves(t) & (h == 4), 0.3, 0.002),
        )
    )
    assert (found.job.state, found.verdict, found.machines) == ("running", "sound", ())


@pytest.mark.parametrize(("n_other", "ends"), [(3, True), (3, False), (10, True)])
def test_machines_of_another_job_are_not_compared(n_other, ends):
    """Some end, or begin, while the others work as before: they are of another job, which is said, and no fault."""

    def level(high, low):
        return lambda h, t: np.where((h < n_other) & ((t > 400) == ends), low, high)

    jobs = {
        "gpu_tensor_active": level(0.5, 0.0),
        "gpu_utilization": level(0.98, 0.0),
        "gpu_power_w": level(600.0, 80.0),
    }
    found = find_machines(_cluster(24, **jobs))
    assert (found.verdict, found.n_machines) == ("cannot-tell", 24 - n_other)
    assert found.reason.startswith("n0, n1") and "give those of one job" in found.reason
    assert found.warnings and found.machines == ()
    faulty = find_machines(_cluster(24, **jobs, gpu_xid=lambda h, t: np.where((h == 20) & (t > 300), 79.0, 0.0)))
    assert [machine.host for machine in faulty.machines] == ["n20"]


@pytest.mark.parametrize(("n_machines", "faulty"), [(6, {2}), (16, {2, 9})])
def test_a_counter_that_grows_on_few_of_few_machines(n_machines, faulty):
    """Errors of one of six machines, or of two of sixteen, are theirs; of half of them they are nobody's."""

    def cluster(hosts):
        return _cluster(
            n_machines,
            gpu_tensor_active=lambda _, t: np.full(len(t), 0.5),
            gpu_ecc_uncorrected=lambda h, t: np.where((t > 500) & (h in hosts), 8.0, 0.0),
        )

    assert {machine.host for machine in find_machines(cluster(faulty)).machines} == {f"n{host}" for host in faulty}
    assert not find_machines(cluster(range(0, n_machines, 2))).machines


def test_half_of_the_machines_are_no_machines():
    """Where many change together it is what they share."""
    found = find_machines(
        _cluster(
            gpu_tensor_active=lambda _, t: np.where(t < 500, 0.5, 0.0),
            gpu_xid=lambda h, t: np.where((t > 495) & (h < 4), 79.0, 0.0).round(),
        )
    )
    assert found.verdict == "cannot-tell"
    assert "4 of 8 machines changed together" in found.reason


def test_roles_are_found():
    """Machines that do different work are told apart, and one that is odd makes no role."""
    found = find_machines(
        _cluster(
            12,
            **TWO_ROLES,
            cpu_used=lambda h, t: np.full(len(t), 0.6 if h == 11 else 0.2),
        )
    )
    assert [len(role) for role in found.roles] == [6, 6]


def test_roles_that_lack_machines_are_refused():
    """A layout must name all machines."""
    telemetry = _cluster(gpu_power_w=lambda _, t: np.full(len(t), 600.0))
    with pytest.raises(UsageError, match="names no role for 7 of 8 machines, the first 'n1'"):
        find_machines(telemetry, roles={"n0": "stage-0"})


def test_too_little_to_compare():
    """Two machines, or two minutes, are too little, and the answer says so."""
    steady = {"gpu_power_w": lambda _, t: np.full(len(t), 600.0)}
    assert find_machines(_cluster(2, **steady)).reason.startswith("2 machines")
    assert find_machines(_cluster(8, 120, **steady)).reason.startswith("115 s of telemetry")
    blind = find_machines(_cluster(8, cpu_used=lambda _, t: np.full(len(t), 0.2)))
    assert blind.reason.startswith("no metric tells whether the job works")
    with pytest.raises(TraceError, match="no samples"):
        find_machines(_cluster(8, **steady), until_s=1.0)


@pytest.mark.parametrize("seconds", [10, 60, 100])
def test_a_minute_is_too_little(seconds):
    """What is shorter than any mean is told to be too short."""
    telemetry = _cluster(seconds=seconds, gpu_tensor_active=lambda _, t: np.full(len(t), 0.5))
    assert "s of telemetry; expected 4 minutes or more" in find_machines(telemetry).reason


def test_what_falls_below_nothing_is_no_slower_job():
    """Some exporters write -1 where they know nothing: of no work there is no part."""
    work = np.r_[np.zeros(45), -np.ones(45)]
    assert find_slowing(Course("running", "gpu_power_w", work, work < -2.0, NEVER, 0, 90, 90), 10.0) is None


@pytest.mark.parametrize("n_busy", [0, 1])
def test_machines_at_rest_are_not_called_sound(n_busy):
    """Cards that are never busy draw power, and do no work."""
    found = find_machines(
        _cluster(
            gpu_utilization=lambda h, t: np.full(len(t), 0.9 * (h < n_busy)),
            gpu_power_w=lambda h, t: np.full(len(t), 600.0 if h < n_busy else 60.0),
        )
    )
    assert (found.verdict, found.machines) == ("cannot-tell", ())
    assert found.reason.startswith("most machines do nothing all the time")


def test_the_order_of_series_does_not_matter():
    """The same telemetry in another order gives the same answer."""
    telemetry = render(draw_world(21, 1, ranges=SMALL).cluster)
    shuffled = dataclasses.replace(telemetry, series=telemetry.series[::-1])
    assert find_machines(telemetry) == find_machines(shuffled)


def test_every_rule_is_sound():
    """Rules ask only for metrics that are known, and each kind of the generator has one that is right for it."""
    rules, _ = read_machine_rules()
    assert {kind for kinds in RIGHT.values() for kind in kinds} <= {rule.id for rule in rules}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tells: [{metric: gpu_watts, change: falls}]", "1: 'gpu_watts' is not known"),
        ("tells: [{metric: gpu_power_w, change: sinks}]", "1: 'sinks' is not known"),
        ("tells: [{metric: gpu_xid, change: becomes}]", "1: codes go with change: becomes"),
        ("helps: [{metric: gpu_power_w, change: falls}]", "neither tells nor least"),
    ],
)
def test_wrong_rules_are_told_with_their_line(line, said, tmp_path):
    """A rule that would never fire, or asks for what nobody measures, is refused."""
    text = f"{line}\nid: x\ntitle: t\njob: [running]\ndo: [look]\nmistaken_for: [nothing]\n".encode()
    faults: list[str] = []
    assert read_machine_rule(tmp_path / "x.yaml", text, faults) is None
    assert any(said in fault for fault in faults), faults
