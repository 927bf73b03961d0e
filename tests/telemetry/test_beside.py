"""Telemetry beside a trace: why a machine is slow, that nothing shows it, and what is said where machines or times do not fit."""

import dataclasses
import json

import msgspec.structs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.generate import generate
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.judge.rules import load_rules
from diagnose.model.cause import When
from diagnose.model.request import Request
from diagnose.model.telemetry import METRICS, Series, Telemetry
from diagnose.pipeline import diagnose_job
from diagnose.report.terminal import render
from diagnose.telemetry_beside import Times, add_telemetry
from tests.clusters.bridge import telemetry_of
from tests.clusters.prometheus import render_range

BEGAN_S = 1.75e9
SPEC = JobSpec(pp=2, dp=4, steps=24, workers_per_host=2, absolute_times=True, seed=5, forward_s=0.2)
SLOW = WorkerFault(places=((1, 1),), slowdown=1.5, onset=10)
LINK = NetworkFault(dp_rank=2, stage=0, slowdown=20.0)
LOADER = DataLoading(wait_ratio=3.0)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Give what writes the trace of a job with the time of day."""
    folder = tmp_path_factory.mktemp("jobs")

    def write(fault, *, spec=SPEC, began_s=BEGAN_S):
        table = generate(spec, [fault]).trace
        at = table.schema.get_field_index("start_ts")
        table = table.set_column(at, "start_ts", pa.array(table["start_ts"].to_numpy() + began_s))
        path = folder / f"{fault.cause}-{began_s:.0f}.parquet"
        pq.write_table(table, path)
        return path

    return write


def _telemetry(fault, sub_cause, metrics=None):
    return telemetry_of(generate(SPEC, [fault]), [fault], [sub_cause], began_s=BEGAN_S, metrics=metrics).telemetry


def _find(diagnosis, cause):
    return next(found for found in diagnosis.causes if found.cause == cause)


@pytest.mark.parametrize(
    ("fault", "sub_cause"),
    [
        (SLOW, "thermal"),
        (SLOW, "power-cap"),
        (SLOW, "clock-locked"),
        (SLOW, "pcie"),
        (SLOW, "ecc"),
        (SLOW, "xid"),
        (SLOW, "cpu-contention"),
        (LINK, "symbol-errors"),
        (LINK, "flaps"),
        (LINK, "width"),
        (LOADER, "network-storage"),
        (LOADER, "disk-wait"),
    ],
)
def test_the_reason_is_found(write, fault, sub_cause):
    """The machine of the culprit shows the reason, its cards or ports alone, and the cause is called by it."""
    diagnosis = diagnose_job(Request(write(fault), telemetry=_telemetry(fault, sub_cause)))
    cause = _find(diagnosis, fault.cause)
    assert cause.subcause.kind == sub_cause
    first = cause.evidence[0]
    assert (first.source, first.id) == ("telemetry", f"{fault.cause}/{sub_cause}")
    if fault is SLOW:
        assert cause.subcause.hosts == ("host-002",)
        assert ("card 1 of host-002" in first.text) == (sub_cause != "cpu-contention")
    assert cause.title.endswith(cause.subcause.title)
    plain = diagnose_job(Request(write(fault)))
    assert cause.confidence == _find(plain, fault.cause).confidence


@pytest.mark.parametrize("sub_cause", ["thermal", "power-cap", "clock-locked"])
def test_stock_counters_tell_why_a_clock_is_low(write, sub_cause):
    """Clocks, temperature and power alone, as a stock dcgm-exporter gives them, tell heat from a cap and from a lock."""
    stock = ("gpu_sm_clock_mhz", "gpu_temperature_c", "gpu_power_w", "gpu_utilization", "gpu_xid", "gpu_pcie_replays")
    diagnosis = diagnose_job(Request(write(SLOW), telemetry=_telemetry(SLOW, sub_cause, stock)))
    assert _find(diagnosis, "worker-fault").subcause.kind == sub_cause


def test_counters_like_everyones_weaken_a_suspect(write):
    """Where no counter of the blamed card explains it the cause stays, less sure, and says so with figures."""
    plain = _find(diagnose_job(Request(write(SLOW))), "worker-fault")
    found = diagnose_job(Request(write(SLOW), telemetry=_telemetry(SLOW, None)))
    cause = _find(found, "worker-fault")
    assert 0.2 < cause.confidence < plain.confidence - 0.1
    assert cause.where == plain.where
    (item,) = [item for item in cause.evidence if item.source == "telemetry"]
    assert item.id == "worker-fault/no-sign"
    assert "card 1 of host-002" in item.text
    assert item.values["gpu_sm_clock_mhz"] == pytest.approx(1710, rel=0.05)
    (finding,) = found.telemetry.findings
    assert finding.kind is None
    assert finding.curves[0].n_peers >= 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (SLOW, "they speak for slow worker, held back by its power cap"),
        (LINK, "they speak neither for nor against a cause"),
    ],
)
def test_the_full_report_says_that_counters_were_read(write, fault, says):
    """Whether or not counters say anything of a cause, `-v` tells of how many machines they are, and that they were asked."""
    found = diagnose_job(
        Request(write(fault), telemetry=_telemetry(SLOW, "power-cap", ("gpu_power_w", "gpu_sm_clock_mhz")))
    )
    lines = render(found, width=400, color=False).splitlines()
    (line,) = [line for line in lines if line.lstrip().startswith("Telemetry")]
    assert f"counters of 4 of 4 machines (generated); {says}" in line


def test_what_nobody_knows_the_time_of_is_not_weakened(write):
    """GIVEN a cause of which nobody knows in which steps it was, THEN counters like everyone's over all steps say nothing of it."""
    found = diagnose_job(Request(write(SLOW)))
    origin_s = BEGAN_S + found.step_time.recorded * np.arange(len(found.what_if.steps))
    times = Times.of(found.what_if.steps, origin_s, found.step_time.recorded)
    for pattern, n_items in (("constant", 1), (None, 0)):
        causes = tuple(msgspec.structs.replace(cause, when=When(pattern)) for cause in found.causes)
        joined = add_telemetry(
            dataclasses.replace(found, causes=causes),
            _telemetry(SLOW, None),
            times,
            severities=load_rules().severities,
        )
        cause = _find(joined, "worker-fault")
        assert sum(item.source == "telemetry" for item in cause.evidence) == n_items


def test_few_counters_weaken_less(write):
    """Counters that could have shown few of the reasons speak less against a suspect than many."""
    sure = {}
    for name, metrics in (("all", None), ("few", ("gpu_pcie_replays", "gpu_utilization"))):
        telemetry = _telemetry(SLOW, None, metrics)
        sure[name] = _find(diagnose_job(Request(write(SLOW), telemetry=telemetry)), "worker-fault").confidence
    assert sure["all"] < sure["few"] - 0.05


def test_a_card_that_waits_is_no_culprit(write):
    """Peers that wait draw less power and clock higher than a slow worker: neither is taken for a reason."""
    telemetry = _telemetry(SLOW, None)
    power = {(s.host, s.device): np.median(s.values[-40:]) for s in telemetry.series if s.metric.name == "gpu_power_w"}
    assert power["host-002", "1"] > np.median(list(power.values()))
    cause = _find(diagnose_job(Request(write(SLOW), telemetry=telemetry)), "worker-fault")
    assert not hasattr(cause.subcause, "kind")


def test_what_was_there_before_is_no_reason(write):
    """A card that has always been hot, clocked low and of a low power limit did not become slow by that."""
    telemetry = _telemetry(SLOW, "thermal")
    always = []
    for one in telemetry.series:
        values = one.values
        if (one.host, one.device) == ("host-002", "1") and one.metric.kind != "counter":
            values = np.full(len(values), np.median(values[-40:]))
        always.append(dataclasses.replace(one, values=values))
    without = [one for one in always if one.metric.kind != "counter"]
    cause = _find(
        diagnose_job(Request(write(SLOW), telemetry=dataclasses.replace(telemetry, series=tuple(without)))),
        "worker-fault",
    )
    assert not hasattr(cause.subcause, "kind")


def test_other_machines_are_an_error_with_both_lists(write):
    """Telemetry of other machines is refused; both lists are in the line."""
    telemetry = _telemetry(SLOW, None)
    other = tuple(dataclasses.replace(one, host=one.host.replace("host", "rack")) for one in telemetry.series)
    with pytest.raises(TraceError, match=r"rack-000, rack-001.*; the job ran on host-000, host-001") as error:
        diagnose_job(Request(write(SLOW), telemetry=dataclasses.replace(telemetry, series=other)))
    assert "\n" not in str(error.value)


def test_full_names_are_found_by_short_ones(write):
    """Machines with their domain in the telemetry are those of the trace; one that is missing is named."""
    telemetry = _telemetry(SLOW, "thermal")
    other = tuple(
        dataclasses.replace(one, host=f"{one.host.upper()}.cluster.example")
        for one in telemetry.series
        if one.host != "host-003"
    )
    diagnosis = diagnose_job(Request(write(SLOW), telemetry=dataclasses.replace(telemetry, series=other)))
    assert _find(diagnosis, "worker-fault").subcause.hosts == ("host-002",)
    assert diagnosis.telemetry.missing == ("host-003",)
    assert any("host-003" in warning for warning in diagnosis.warnings)


def test_another_time_is_said(write, tmp_path):
    """Telemetry of another time is refused, with the zone that it may be of."""
    telemetry = _telemetry(SLOW, None)
    path = tmp_path / "range.json"
    path.write_text(render_range(telemetry))
    with pytest.raises(TraceError, match=r"is of another time than the trace.*moved by \+8 h it would fit"):
        diagnose_job(Request(write(SLOW, began_s=BEGAN_S + 8 * 3600), telemetry=path))


def test_a_worker_that_is_slow_now_and_then(write):
    """Counters are asked in the slow steps, where they show a reason; that they show none is no reason to doubt."""
    now_and_then = WorkerFault(places=((1, 1),), slowdown=1.8, course="on-off")
    spec = dataclasses.replace(SPEC, steps=48)
    job = generate(spec, [now_and_then])
    part = (now_and_then.level(spec) > 0).mean()
    assert 0.1 < part < 0.45
    path = write(now_and_then, spec=spec)
    for sub_cause, kind in (("power-cap", "power-cap"), (None, None)):
        telemetry = telemetry_of(job, [now_and_then], [sub_cause], began_s=BEGAN_S).telemetry
        cause = _find(diagnose_job(Request(path, telemetry=telemetry)), "worker-fault")
        assert getattr(cause.subcause, "kind", None) == kind
        assert not any(item.id.endswith("/no-sign") for item in cause.evidence)


def test_a_file_gives_the_same(write, tmp_path):
    """What exporters write of the same machines gives the same reason, through the file and its JSON document."""
    path = tmp_path / "range.json"
    path.write_text(render_range(_telemetry(SLOW, "power-cap")))
    document = diagnose_job(Request(write(SLOW), telemetry=path)).to_dict()
    (cause,) = [cause for cause in document["causes"] if cause["cause"] == "worker-fault"]
    assert cause["subcause"]["kind"] == "power-cap"
    assert document["telemetry"]["formats"] == ["Prometheus range query"]
    assert len(document["telemetry"]["hosts"]) == 4
    assert json.loads(json.dumps(document)) == document


def test_nothing_is_said_without_telemetry(write):
    """Without telemetry neither its key nor a sub-cause is in the document."""
    document = diagnose_job(Request(write(SLOW))).to_dict()
    assert "telemetry" not in document
    assert all("subcause" not in cause for cause in document["causes"])


def test_machines_of_nobody(write):
    """Telemetry without any machine of the job is refused, even where it has no series at all."""
    with pytest.raises(TraceError, match="none; the job ran on"):
        diagnose_job(Request(write(SLOW), telemetry=Telemetry("x", (), (), ())))


def test_two_values_are_enough(write):
    """A scraper that came by twice in the traced time still tells a reason."""
    times = np.array([BEGAN_S + 5.0, BEGAN_S + 20.0])
    series = [
        Series(METRICS["gpu_pcie_width"], f"host-{host:03}", str(card), times, np.array([w, w]))
        for host in range(4)
        for card in range(2)
        for w in [4.0 if (host, card) == (2, 1) else 16.0]
    ]
    slow = dataclasses.replace(SLOW, onset=None)
    path = write(slow)
    cause = _find(
        diagnose_job(Request(path, telemetry=Telemetry("x", (), tuple(series), (), (), *times))), "worker-fault"
    )
    assert cause.subcause.kind == "pcie"
