"""Readings of small made series: values that one can add in the head, traps, and what a curve is drawn from."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from diagnose.judge.rules import built_in_rules
from diagnose.judge.telemetry import Place, judge_telemetry
from diagnose.judge.telemetry_file import Sign, read_telemetry_rules
from diagnose.judge.telemetry_words import describe_flat, describe_sign
from diagnose.model.telemetry import METRICS, Series, Span, Suspect, Telemetry
from diagnose.model.telemetry_document import TelemetryDocument, TelemetryFinding
from diagnose.report.html.draw import styled
from diagnose.report.html.telemetry import draw_telemetry
from diagnose.telemetry.compare import Comparison
from tests.report.examples import worker_fault

T0 = 1_769_860_800.0
SPAN = Span(T0 + 50.0, T0 + 90.0, (T0, T0 + 50.0))


def _series(metric, host, device, values, step=10.0):
    return Series(METRICS[metric], host, device, T0 + step * np.arange(len(values)), np.array(values, dtype=float))


def _read(series, metric, how, *, device="0", peers=("b", "c", "d"), bits=0, span=SPAN):
    telemetry = Telemetry("x", (), tuple(series), ())
    cards = tuple((peer, device) for peer in peers)
    suspect = Suspect("a", "a", (device,), cards, peers)
    return Comparison(telemetry).read(suspect, span, metric, how, bits)


def test_a_gauge_beside_its_peers_and_before():
    """The median of the span, the peers' median and spread over devices, and the median before."""
    series = [_series("gpu_temperature_c", "a", "0", [60] * 5 + [80, 90, 85, 90, 90])]
    series += [
        _series("gpu_temperature_c", host, "0", [level] * 10) for host, level in (("b", 60), ("c", 62), ("d", 64))
    ]
    (reading,) = _read(series, "gpu_temperature_c", "median")
    assert (reading.value, reading.peers, reading.before, reading.n_peers) == (90.0, 62.0, 60.0, 3)
    assert reading.spread == pytest.approx(2 * 1.4826)


def test_what_comes_and_goes_is_read_while_it_is_there():
    """A gauge counts in the spells, on the device and its peers alike; where none was measured in them the whole span does."""
    series = [_series("gpu_temperature_c", "a", "0", [60, 60, 60, 60, 60, 60, 60, 90, 60, 60])]
    series += [
        _series("gpu_temperature_c", host, "0", [50] * 7 + [level] + [50] * 2) for host, level in (("b", 52), ("c", 52))
    ]
    for spells, value, peers in (
        (((T0 + 55.0, T0 + 59.0), (T0 + 65.0, T0 + 75.0)), 90.0, 52.0),
        (((T0 + 55.0, T0 + 59.0),), 60.0, 50.0),
        ((), 60.0, 50.0),
    ):
        span = Span(T0 + 50.0, T0 + 90.0, None, spells)
        (reading,) = _read(series, "gpu_temperature_c", "median", peers=("b", "c"), span=span)
        assert (reading.value, reading.peers) == (value, peers)


@pytest.mark.parametrize(("peers", "said"), [((), ""), (("b",), ", its peers 60 °C")])
def test_a_sign_is_told_beside_its_peers_where_there_are_any(peers, said):
    """Nobody is compared with nobody."""
    series = [_series("gpu_temperature_c", host, "0", [level] * 10) for host, level in (("a", 90), ("b", 60))]
    (reading,) = _read(series, "gpu_temperature_c", "median", peers=peers)
    words = {"says": "it is at {value}", "beside": "its peers {peers}"}
    sign = Sign(reading.metric.name, "median", 0, True, 5.0, 0.0, 0.0, None, None, None, False, **words)
    assert describe_sign(sign, reading) == f"it is at 90 °C{said}"
    assert describe_sign(dataclasses.replace(sign, beside=""), reading) == "it is at 90 °C"
    assert describe_flat(sign, reading) == "temperature of the GPU 90 °C" + (", peers 60 °C" if peers else "")


def test_what_all_show_is_told_beside_what_was_before():
    """GIVEN a card at 90 degrees like all others, THEN the sentence says what it had before, and repeats no number."""
    series = [_series("gpu_temperature_c", host, "0", [60] * 5 + [90] * 5) for host in "ab"]
    (reading,) = _read(series, "gpu_temperature_c", "median", peers=("b",))
    words = {"says": "it is at {value}", "beside": "its peers {peers}"}
    sign = Sign(reading.metric.name, "median", 0, True, 5.0, 0.0, 0.0, None, None, None, False, **words)
    assert describe_sign(sign, reading) == "it is at 90 °C, before 60 °C"
    assert describe_sign(sign, dataclasses.replace(reading, before=math.nan)) == "it is at 90 °C"


def test_a_counter_that_was_set_back_grew_all_the_same():
    """A restart sets a counter to zero: what it grew is the sum of its steps up, and what it had after the restart."""
    series = [_series("net_errors", "a", "eth0", [0, 0, 0, 0, 5, 5, 8, 1, 2, 2])]
    (growth,) = _read(series, "net_errors", "growth", device="eth0", peers=())
    assert growth.value == 3 + 1 + 1
    assert math.isnan(growth.peers)
    (rate,) = _read(series, "net_errors", "rate", device="eth0", peers=())
    assert rate.value == pytest.approx(5 / 50)


def test_flags_are_counted_by_time():
    """Of the five values that tell of the span two have one of the bits that are asked for."""
    series = [_series("gpu_throttle_reasons", "a", "0", [0, 0, 0, 0, 0, 0x20, 0x4, 0x60, 0x0, 0x0])]
    (reading,) = _read(series, "gpu_throttle_reasons", "bits", bits=0x60, peers=())
    assert reading.value == pytest.approx(2 / 5)


def test_an_error_of_a_program_is_no_code():
    """The XID that a program's own error left behind is none of the card; one of its memory is."""
    for code, value in ((13, 0.0), (94, 94.0)):
        (reading,) = _read([_series("gpu_xid", "a", "0", [0] * 5 + [code] * 5)], "gpu_xid", "code", peers=())
        assert reading.value == value


def test_an_idle_card_rests():
    """Clock and link of a card that does nothing say nothing: values while it is idle are left out."""
    series = [
        _series("gpu_pcie_generation", "a", "0", [5, 5, 5, 5, 5, 1, 1, 5, 1, 1]),
        _series("gpu_utilization", "a", "0", [1, 1, 1, 1, 1, 0, 0, 1, 0, 0]),
    ]
    (reading,) = _read(series, "gpu_pcie_generation", "median", peers=())
    assert reading.value == 5.0


def test_ports_are_compared_with_those_of_the_same_name():
    """A second port that others do not use in the same way is compared with its like alone."""
    series = [
        _series("net_speed_bytes", "a", "mlx5_0", [25e9] * 10),
        _series("net_speed_bytes", "a", "eth0", [1e9] * 10),
    ]
    series += [_series("net_speed_bytes", host, "mlx5_0", [50e9] * 10) for host in "bcd"]
    series += [_series("net_speed_bytes", host, "eth0", [1e9] * 10) for host in "bcd"]
    found = {one.device: one for one in _read(series, "net_speed_bytes", "median")}
    assert (found["mlx5_0"].value, found["mlx5_0"].peers) == (25e9, 50e9)
    assert (found["eth0"].value, found["eth0"].peers) == (1e9, 1e9)


def test_nothing_measured_in_the_span_is_no_reading():
    """What was measured at another time alone gives nothing, and no zero."""
    assert _read([_series("gpu_temperature_c", "a", "0", [60, 60])], "gpu_temperature_c", "median") == []


def test_a_curve_is_drawn_from_before_the_span():
    """A curve begins where the time before does, follows a counter by its growth a second, and its picture escapes names."""
    telemetry = Telemetry(
        "x",
        (),
        tuple(_series("net_symbol_errors", h, "p", [0] * 5 + [100, 200, 300, 400, 500]) for h in ("a", "b")),
        (),
    )
    suspect = Suspect("<b>a", "a", (), (), ("b",))
    comparison = Comparison(telemetry)
    (reading,) = comparison.read(suspect, SPAN, "net_symbol_errors", "rate")
    curve = comparison.draw(suspect, reading, SPAN)
    assert curve.times[0] < T0 + 10
    assert curve.unit == "1/s"
    assert curve.values[1] == 0.0
    assert curve.values[-1] == pytest.approx(10.0)
    assert curve.n_peers == 1
    finding = TelemetryFinding(cause="network-fault", kind="x", title="t", hosts=("a",), curves=(curve,))
    document = TelemetryDocument(
        source="s", formats=(), begin_s=T0, end_s=T0, hosts=(), missing=(), unread=(), findings=(finding,)
    )
    with styled():
        ((picture,),) = draw_telemetry(document)
    assert "<b>" not in picture.drawing.svg
    assert picture.rows[-1][1:] == ("10 a second", "10 a second")
    assert draw_telemetry(None) == []


@pytest.mark.parametrize(
    ("clock", "is_everyone", "outcome"),
    [
        (1980.0, False, "weakened"),
        (1600.0, False, None),  # unlike its peers, and too little for a work of three times as long
        (1000.0, False, "clock-locked"),
        (1980.0, True, None),  # it is as steady as its work, and nobody else does that
    ],
)
def test_what_explains_half_is_no_reason_to_doubt(clock, is_everyone, outcome):
    """A clock that explains the slowdown is its reason; one that explains half of it is none, and is not like everyone's either."""
    wavering = 1980.0 + 15.0 * (np.arange(10) % 3)
    series = [_series("gpu_sm_clock_mhz", "a", "0", [clock] * 10)]
    series += [_series("gpu_sm_clock_mhz", host, "0", wavering) for host in "bcd"]
    suspect = Suspect("a", "a", ("0",), (("b", "0"), ("c", "0"), ("d", "0")), ("b", "c", "d"), is_everyone=is_everyone)
    rule = read_telemetry_rules(built_in_rules() / "telemetry")["worker-fault"]
    (cause,) = worker_fault().causes
    place = Place((suspect,), Span(T0, T0 + 90.0))
    found = judge_telemetry(cause, rule, place, Comparison(Telemetry("x", (), tuple(series), ())), slowdown=3.0)
    assert outcome == (None if found is None else found[1].kind or "weakened")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_suspects_with_the_same_sign_are_counted(n):
    """The first is described, and the others are told by their number: of four machines some have a low clock."""
    names = "abcd"
    series = [_series("gpu_sm_clock_mhz", host, "0", [1000.0 if host in names[:n] else 1980.0] * 10) for host in names]
    suspects = [
        Suspect(one, one, ("0",), tuple((other, "0") for other in names[n:]), tuple(names[n:])) for one in names[:n]
    ]
    rule = read_telemetry_rules(built_in_rules() / "telemetry")["worker-fault"]
    (cause,) = worker_fault().causes
    place = Place(tuple(suspects), Span(T0, T0 + 90.0))
    found, finding = judge_telemetry(
        cause, rule, place, Comparison(Telemetry("x", (), tuple(series), ())), slowdown=2.0
    )
    (told,) = [item.text for item in found.evidence if item.source == "telemetry"]
    assert ("more of" in told) == (n > 1) and (n == 1 or told.endswith(f"; {n - 1} more of {n} suspects alike"))
    assert finding.hosts == tuple(names[:n])


def test_cards_may_be_numbered_otherwise_than_ranks():
    """Where none of a host's cards has the number that its rank was given one with a low clock is the one meant."""
    series = [_series("gpu_sm_clock_mhz", host, "0", [1000.0 if host == "a" else 1980.0] * 10) for host in "abcd"]
    peers = ("b", "c", "d")
    suspect = Suspect("a", "a", ("GPU-6f1b",), tuple((peer, "0") for peer in peers), peers)
    rule = read_telemetry_rules(built_in_rules() / "telemetry")["worker-fault"]
    (cause,) = worker_fault().causes
    telemetry = Comparison(Telemetry("x", (), tuple(series), ()))
    _, found = judge_telemetry(cause, rule, Place((suspect,), Span(T0, T0 + 90.0)), telemetry, slowdown=2.0)
    assert (found.kind, found.hosts) == ("clock-low", ("a",))


@pytest.mark.parametrize(("unit", "said"), [("s", "25% of the time"), ("1", "0.25")])
def test_how_often_something_is_is_a_part_of_the_time(unit, said):
    """Where the counter counts seconds; others have no unit."""
    sign = SimpleNamespace(how="rate", says="it was {value}", beside="")
    reading = SimpleNamespace(metric=SimpleNamespace(unit=unit), value=0.25, n_peers=0)
    assert describe_sign(sign, reading) == f"it was {said}"
