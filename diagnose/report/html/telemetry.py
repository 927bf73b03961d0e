"""The counters of a suspect over time, beside the band of its peers.

Enters: what telemetry says of the causes. Leaves: rows of `Picture`s.
"""

import datetime as dt

import numpy as np

from diagnose.model.telemetry import METRICS
from diagnose.model.telemetry_document import Curve, TelemetryDocument, TelemetryFinding
from diagnose.report.escape import escape, prose
from diagnose.report.html.draw import Sheet, colour, round_ticks
from diagnose.report.html.picture import LEAD_WIDTH, SIDE_WIDTH, Picture

_HEIGHT = 280.0
#: Causes, and counters of each, that are drawn.
_MAX_FINDINGS, _MAX_CURVES = 3, 2
#: Spans of time that marks on the axis may be apart, seconds.
_APART_S = (0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800)
_MAX_TICKS = 7


def draw_telemetry(telemetry: TelemetryDocument | None) -> list[list[Picture | None]]:
    """Draw the most telling counters of each cause, a row a cause."""
    if telemetry is None:
        return []
    return [
        [_draw(finding, curve, f"telemetry-{n}-{m}") for m, curve in enumerate(finding.curves[:_MAX_CURVES])]
        for n, finding in enumerate(telemetry.findings[:_MAX_FINDINGS])
    ]


def _draw(finding: TelemetryFinding, curve: Curve, key: str) -> Picture | None:
    """Draw one counter; None where there is nothing to see."""
    own, peers, low, high = (np.array(row, dtype=float) for row in (curve.values, curve.peers, curve.low, curve.high))
    times = np.array(curve.times)
    if not np.isfinite(own).any():
        return None
    scale, unit = _choose_scale(curve, float(np.nanmax(np.concatenate([own, np.nan_to_num(high)]))))
    own, peers, low, high = own * scale, peers * scale, low * scale, high * scale
    bottom, top = _choose_range(np.concatenate([own, low, high]))
    sheet = Sheet(key, LEAD_WIDTH if key.endswith("-0") else SIDE_WIDTH, _HEIGHT, (70, 16, 16, 46))
    half_s = (times[1] - times[0]) / 2 if len(times) > 1 else 0.5
    sheet.axes.set_xlim(times[0] - half_s, times[-1] + half_s)
    sheet.axes.set_ylim(bottom, top)
    ticks = round_ticks(bottom, top, 6)
    sheet.rule_y(ticks, [f"{tick:,.6g}" for tick in ticks])
    sheet.ticks_x(*_choose_times(float(times[0]), float(times[-1])))
    if curve.n_peers:
        sheet.axes.fill_between(times, low, high, color=colour("good"), alpha=0.25, linewidth=0)
        sheet.axes.plot(times, peers, color=colour("good"), linewidth=1.4, linestyle=(0, (4, 2)))
    of = "bad" if finding.kind is not None else "accent"
    sheet.axes.plot(times, own, color=colour(of), linewidth=2.2, marker="o" if len(times) < 2 else None, markersize=4)
    sheet.name_axes("time of day (UTC)", unit)
    for i, time in enumerate(times.tolist()):
        beside = f"; peers {_say(peers[i], unit)}" if np.isfinite(peers[i]) else ""
        sheet.point(time - half_s, time + half_s, bottom, top, f"{_clock(time)}: {_say(own[i], unit)}{beside}")
    kind = {"gpu": "card ", "disk": "disk "}.get(METRICS[curve.metric].of, "")
    who = escape(f"{kind}{curve.device} of {curve.host}" if curve.device else curve.host)
    says = f"{curve.words[:1].upper()}{curve.words[1:]} of {who}"
    says += (
        f" beside the band of {curve.n_peers} peers that do the same work, and their median (dashed)."
        if curve.n_peers
        else "."
    )
    if finding.kind is None:
        says += f" Nothing in it explains {escape(finding.cause)}."
        says += " Cards that wait for a slow one clock a little higher." if curve.metric == "gpu_sm_clock_mhz" else ""
    rows = [(_clock(t), _say(a, unit), _say(b, unit)) for t, a, b in zip(times.tolist(), own, peers, strict=True)]
    return Picture(
        key,
        f"{prose(curve.words[:1].upper() + curve.words[1:])}, {who}",
        says,
        sheet.svg(says),
        ("time", who, "median of peers"),
        rows,
        legend=((of, who), *((("good", "peers, and their median (dashed)"),) if curve.n_peers else ())),
        probe=sheet.points | {"tall": True},
    )


def _choose_scale(curve: Curve, top: float) -> tuple[float, str]:
    """Choose the unit that values are shown in."""
    if curve.unit in {"part", "s/s"}:
        return 100.0, "%" if curve.unit == "part" else "% of the time"
    if curve.unit.startswith("bytes") and top >= 1e6:
        return 1e-9, curve.unit.replace("bytes", "GB")
    return 1.0, {"1": "", "1/s": "a second", "packets/s": "a second"}.get(curve.unit, curve.unit)


def _choose_range(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    """Choose the ends of the axis: from 0 where that wastes little of it."""
    found = values[np.isfinite(values)]
    low, high = float(found.min()), float(found.max())
    low = 0.0 if 0 <= low < 0.7 * high else low
    low, high = min(low, 0.9 * high), max(high, 1.1 * low)  # what differs by little shall look so
    room = (high - low) * 0.08 or max(abs(high) * 0.05, 0.5)
    return (low if low == 0.0 else low - room), high + room


def _choose_times(first_s: float, last_s: float) -> tuple[list[float], list[str]]:
    """Choose round times of day for the axis."""
    apart = next((s for s in _APART_S if (last_s - first_s) / s < _MAX_TICKS), _APART_S[-1])
    start = int(np.ceil(first_s / apart))
    ticks = [n * apart for n in range(start, int(last_s // apart) + 1)] or [first_s]
    return ticks, [_clock(tick) for tick in ticks]


def _clock(time_s: float) -> str:
    """Write a time of day, as UTC."""
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%H:%M:%S")


def _say(value: float, unit: str) -> str:
    """Write a value."""
    return "-" if not np.isfinite(value) else f"{value:,.5g}{'' if unit.startswith('%') else ' '}{unit}".strip()
