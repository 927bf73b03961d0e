"""Sentences of what was read from telemetry.

Enters: signs and readings. Leaves: text, and the numbers that it rests on.
"""

import math
from collections.abc import Sequence

from diagnose.judge.telemetry_file import Sign
from diagnose.model.telemetry import Metric, Reading, Suspect
from diagnose.numerics.figures import write_figure, write_percent


def describe_flat(sign: Sign, reading: Reading) -> str:
    """Write what was read where it is no sign."""
    peers = f", peers {_write(reading.metric, sign, reading.peers)}" if reading.n_peers else ""
    return f"{reading.metric.words} {_write(reading.metric, sign, reading.value)}{peers}"


def describe_sign(sign: Sign, reading: Reading) -> str:
    """Write the sentence of a sign."""
    value = _write(reading.metric, sign, reading.value)
    said = sign.says.replace("{value}", value)
    if not reading.n_peers or not sign.beside:
        return said
    peers = _write(reading.metric, sign, reading.peers)
    if peers != value:
        return f"{said}, {sign.beside.replace('{peers}', peers)}"
    # Where all machines show it, what they had before tells more.
    return said if math.isnan(reading.before) else f"{said}, before {_write(reading.metric, sign, reading.before)}"


def name_device(reading: Reading) -> str:
    """Name what was read, as people do."""
    match reading.metric.of:
        case "gpu":
            return f"card {reading.device} of {reading.name}"
        case "nic":
            return f"{reading.device} of {reading.name}"
        case "disk":
            return f"disk {reading.device} of {reading.name}"
    return reading.name


def name_suspect(suspect: Suspect) -> str:
    """Name a suspect."""
    if not suspect.cards:
        return suspect.name
    cards = ", ".join(suspect.cards)
    return f"card{'s' if len(suspect.cards) > 1 else ''} {cards} of {suspect.name}"


def list_values(seen: Sequence[tuple[Sign, Reading]]) -> dict[str, int | float | None]:
    """List the numbers that a sentence rests on."""
    values: dict[str, int | float | None] = {}
    for sign, reading in seen:
        name = sign.metric if sign.how in {"median", "rate"} else f"{sign.metric}_{sign.how}"
        for key, value in (("", reading.value), (".peers", reading.peers), (".before", reading.before)):
            values[name + key] = None if math.isnan(value) else float(f"{value:.6g}")
    return values


def _write(metric: Metric, sign: Sign, value: float) -> str:
    """Write a value with its unit."""
    unit = metric.unit
    if math.isnan(value):
        return "not known"
    if sign.how == "code":
        return f"{value:.0f}"
    if sign.how in {"bits", "wavering"} or unit == "part":
        return write_percent(value)
    if sign.how == "rate":
        return f"{write_percent(value)} of the time" if unit == "s" else write_figure(value)
    if unit in {"bytes", "bytes/s"}:
        return f"{write_figure(value / 1e9)} G{unit.replace('bytes', 'B')}"
    return write_figure(value) if unit in {"1", "packets"} else f"{write_figure(value, 4)} {unit}"
