"""Faulty machines as a page of text, or as one JSON object.

Enters: a `MachinesDocument`. Leaves: text that reads at any width from 40 columns, with or without colour; the
machines to take out stand on its first line.
"""

import datetime as dt
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from diagnose.errors import name_some
from diagnose.model.machines import FaultyMachine, MachinesDocument
from diagnose.model.plain import to_json
from diagnose.report import words
from diagnose.report.escape import name, prose
from diagnose.report.layout import PROSE_WIDTH, draw_bullets, draw_facts, draw_sections

_STYLES = {"faulty": "bold red", "sound": "bold green", "cannot-tell": "bold yellow"}
#: Names listed of machines that are only affected.
_NAMED = 6


def render(found: MachinesDocument, *, width: int, color: bool) -> str:
    """Write what was found as a page."""
    return draw_sections(_sections(found), width=min(width, PROSE_WIDTH), color=color)


def render_json(found: MachinesDocument) -> str:
    """Write what was found as one JSON object on one line, without the line end; ASCII."""
    return to_json(found)


def describe_machines(found: MachinesDocument) -> str:
    """Say in one sentence which machines are faulty."""
    if found.verdict == "sound":
        return f"sound: none of {found.n_machines} machines stands out"
    if found.verdict == "cannot-tell":
        return f"cannot tell: {prose(found.reason or '')}"
    listed = name_some([name(machine.host) for machine in found.machines], _NAMED)
    return f"faulty: {listed}, of {found.n_machines} machines"


def _sections(found: MachinesDocument) -> Iterator[tuple[str, RenderableType]]:
    """Give the sections in the order of the page: title and body."""
    yield "", Text(describe_machines(found), style=_STYLES[found.verdict])
    yield "", draw_facts(_list_facts(found))
    for machine in found.machines:
        yield f"{name(machine.host)}: {prose(machine.title)}", _draw_machine(machine)
    if found.affected:
        yield "Affected, not at fault", Text(name_some([name(host) for host in found.affected], _NAMED))
    if found.remarks:
        yield "Stands out, and is no reason to blame a machine", draw_bullets([prose(one) for one in found.remarks])
    if found.warnings:
        yield "Mind", draw_bullets([prose(one) for one in found.warnings], mark="!")


def _list_facts(found: MachinesDocument) -> Iterator[tuple[str, str]]:
    """List what was looked at."""
    minutes = (found.to_s - found.from_s) / 60.0
    yield (
        "Looked at",
        (
            f"{name(found.source)}: {words.count(len(found.metrics), 'metric')} of {words.count(found.n_machines, 'machine')}, "
            f"{minutes:.0f} minutes until {_clock(found.to_s)}, a sample every {found.interval_s:.3g} s"
        ),
    )
    said = {
        "running": "runs",
        "slowed": f"does {words.percent(found.job.lost_share)} less work",
        "stopped": "stopped, its processes wait",
        "ended": "ended",
        "unseen": "no metric tells",
    }[found.job.state]
    if found.job.since_s is not None:
        said += f" since {_clock(found.job.since_s)}"
    elif found.job.state == "stopped":
        said += ", since before these minutes"
    yield "Job", said
    if len(found.roles) > 1:
        yield "Roles", f"{len(found.roles)} groups of machines do different work: {_sizes(found)}"


def _sizes(found: MachinesDocument) -> str:
    """Write the sizes of roles."""
    sizes = [len(role) for role in found.roles]
    return " + ".join(map(str, sizes[:8])) + (" + ..." if len(sizes) > 8 else "")


def _draw_machine(machine: FaultyMachine) -> RenderableType:
    """Draw how sure, since when, why, and what to do."""
    since = "all the time" if machine.since_s is None else f"since {_clock(machine.since_s)}"
    cards = f"; cards {', '.join(name(device) for device in machine.devices)}" if machine.devices else ""
    rows: list[tuple[str, RenderableType]] = [
        ("Sure", Text(f"{words.confidence(machine.confidence)}, {since}{cards}")),
        ("Why", draw_bullets([prose(sign.sentence) for sign in machine.signs])),
        ("Next", draw_bullets([prose(step) for step in machine.do])),
        ("Or else", draw_bullets([prose(other) for other in machine.mistaken_for])),
    ]
    return Group(draw_facts(rows))


def _clock(seconds: float) -> str:
    """Write a time of day."""
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).strftime("%H:%M:%S UTC")
