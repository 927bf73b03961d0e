"""Generated telemetry holds what its truth says, and agrees with the trace of the same job."""

import dataclasses
import json

import numpy as np
import pytest

from diagnose.errors import UsageError
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from tests.clusters.bridge import SUB_CAUSES, telemetry_of
from tests.clusters.prometheus import render_range
from tests.clusters.ranges import HELD_OUT, TUNED
from tests.clusters.render import render
from tests.clusters.worlds import draw_world

SPEC = JobSpec(pp=4, dp=4, steps=20, workers_per_host=4, contiguous=True, absolute_times=True)


def _series(telemetry, metric):
    return {(one.host, one.device): one for one in telemetry.series if one.metric.name == metric}


@pytest.mark.parametrize("ranges", [TUNED, HELD_OUT], ids=["tuned", "held-out"])
def test_series_are_well_formed(ranges):
    """Times ascend, values are numbers, counters never fall, and every machine has its name from the world."""
    for i in range(12):
        world = draw_world(1, i, ranges=ranges, n_hosts=24)
        telemetry = render(world.cluster)
        assert set(telemetry.hosts) <= set(world.cluster.names)
        for one in telemetry.series:
            assert (np.diff(one.times) > 0).all()
            assert np.isfinite(one.values).all()
            if one.metric.kind == "counter":
                assert (np.diff(one.values) >= 0).all(), one.metric.name


def test_half_of_the_worlds_have_no_fault():
    """Every other world has none; kinds come about as often as their shares say."""
    worlds = [draw_world(2, i, n_hosts=16) for i in range(400)]
    assert [bool(world.faulty) for world in worlds] == [bool(i % 2) for i in range(400)]
    kinds = [fault.kind for world in worlds for fault in world.faults]
    assert 0.28 < kinds.count("ecc") / len(kinds) < 0.48
    assert 0.0 < sum(len(world.unobservable) for world in worlds) / len(kinds) < 0.15


def test_same_seed_same_telemetry():
    """A world is the same whatever other worlds are drawn."""
    first, again = (render(draw_world(3, 5, n_hosts=8).cluster) for _ in range(2))
    assert all(np.array_equal(one.values, other.values) for one, other in zip(first.series, again.series, strict=True))
    assert draw_world(3, 6).cluster.seed != draw_world(3, 5).cluster.seed


def test_a_dead_process_leaves_its_machine_idle_and_the_others_spinning():
    """Of a stopped job the others' GPUs are busy waiting; where the process died power falls to nothing."""
    worlds = (draw_world(4, i, n_hosts=16) for i in range(1, 400, 2))
    world = next(
        w
        for w in worlds
        if (f := w.faults[0]).outcome == "stop" and "gpu-idle" in f.shows and f.part == 1.0 and not w.benign
        and len(w.faults) == 1 and not f.victims
    )  # fmt: skip
    (name,) = world.faulty
    telemetry = render(dataclasses.replace(world.cluster, noise=0.2))
    power, busy = _series(telemetry, "gpu_power_w"), _series(telemetry, "gpu_utilization")
    for key, one in power.items():
        after = slice(-5, None) if world.cluster.courses[0, 6, -40:].sum() == 0 else slice(-12, -8)
        assert (one.values[after].mean() < 110.0) == (key[0] == name)
        assert (busy[key].values[after].mean() < 0.1) == (key[0] == name)


@pytest.mark.parametrize("sub_cause", SUB_CAUSES["worker-fault"])
def test_telemetry_beside_a_job(sub_cause):
    """The machine of the slow worker shows it, from its first slow step on, and no other machine does."""
    fault = WorkerFault(places=((1, 2),), slowdown=2.0, onset=10)
    job = generate(SPEC, [fault])
    beside = telemetry_of(job, [fault], [sub_cause])
    assert set(beside.telemetry.hosts) == {str(name) for name in job.trace["host"].to_pylist()}
    (reason,) = beside.reasons
    assert reason.hosts == ("host-002",)
    assert reason.cards == (() if sub_cause == "cpu-contention" else (1,))
    metric = {
        "power-cap": "gpu_power_limit_w",
        "thermal": "gpu_throttle_reasons",
        "clock-locked": "gpu_throttle_reasons",
        "pcie": "gpu_pcie_width",
        "ecc": "gpu_ecc_corrected",
        "xid": "gpu_xid",
        "cpu-contention": "cpu_steal",
    }[sub_cause]
    plain = _series(telemetry_of(job).telemetry, metric)
    changed = {
        key: one.times[one.values != plain[key].values]
        for key, one in _series(beside.telemetry, metric).items()
        if not np.array_equal(one.values, plain[key].values)
    }
    assert list(changed) == [("host-002", "" if sub_cause == "cpu-contention" else "1")]
    (times,) = changed.values()
    assert 0.0 <= times[0] - reason.from_s <= 3 * beside.interval_s + (2.0 if sub_cause == "ecc" else 0.0)


def test_a_sub_cause_of_something_else_is_refused():
    """A slow worker is not slow because its storage is."""
    fault = WorkerFault(places=((1, 2),))
    with pytest.raises(UsageError, match="no sub-cause 'disk-wait' of worker-fault"):
        telemetry_of(generate(SPEC, [fault]), [fault], ["disk-wait"])


def test_written_as_prometheus_answers():
    """An answer to a range query: numbers as text, cards by index, and the CPU's seconds by mode add up to the time."""
    found = json.loads(render_range(render(draw_world(5, 0, n_hosts=4).cluster)))["data"]
    assert found["resultType"] == "matrix"
    cpu = [one for one in found["result"] if one["metric"]["__name__"] == "node_cpu_seconds_total"]
    one_host = [one for one in cpu if one["metric"]["instance"] == cpu[0]["metric"]["instance"]]
    assert sum(float(one["values"][-1][1]) for one in one_host) == pytest.approx(
        one_host[0]["values"][-1][0] - one_host[0]["values"][0][0], rel=1e-6
    )
    assert {one["metric"].get("gpu") for one in found["result"]} >= {None, "0"}
