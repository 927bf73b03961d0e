"""`diagnose machines`: which machine is faulty, from what machines measure of themselves, without a trace.

Enters: a file, a folder or the address of a Prometheus server. Leaves: a page or one JSON object, and an exit code for gates.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.fail_on import read_confidence
from diagnose.cli.options import EXIT_STRAGGLING, Options, format_option, look_options, output_option, quiet_option
from diagnose.cli.output import is_terminal
from diagnose.cli.progress import StageDisplay
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.model.machines import MachinesDocument


@click.command("machines")
@click.argument("source", metavar="PATH|URL", type=click.Path())
@format_option("terminal", "json", meaning="A page for people, or one JSON object (diagnose-machines/1).")
@output_option
@click.option(
    "--minutes",
    type=click.FloatRange(min=1.0, max=24 * 60.0),
    default=15.0,
    show_default=True,
    help="Look at the last so many minutes.",
)
@click.option(
    "--at", metavar="TIME", help="They end then: 2026-01-31T12:00:00Z or Unix seconds  [default: the last sample]"
)
@click.option(
    "--roles",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Which machines do the same work: a line a machine, its name and its role, such as `node-7 stage-2`  [default: found]",
)
@click.option(
    "--fail-on",
    metavar="WHAT",
    multiple=True,
    help="End with exit code 1 when a machine is faulty (faulty), or at least so surely (0.9), or when nobody can tell "
    "(cannot-tell); given again: any of these.",
)
@quiet_option
@look_options
def machines_command(
    *, source: str, minutes: float, at: str | None, roles: Path | None, fail_on: tuple[str, ...], **given: Any
) -> int:
    """Say which machine is faulty, from telemetry alone: what its exporters measured, with no trace of the job.

    PATH is a file or folder of telemetry (answers of Prometheus, text of exporters, tables of nvidia-smi); URL is that of a
    Prometheus server. The machines are compared with each other: give those of one job.
    """
    from diagnose.machines.find import find_machines
    from diagnose.report import machines as page
    from diagnose.telemetry.read import read_telemetry

    look = Options(**given)
    trips = _read_gate(fail_on)
    until_s = None if at is None else _read_time(at)
    layout = None if roles is None else _read_roles(roles)
    end_s = time.time() if until_s is None and "://" in source else until_s
    begin_s = None if end_s is None else end_s - 60.0 * minutes
    with StageDisplay("telemetry", shown=not look.quiet and is_terminal(sys.stderr)) as progress:
        telemetry = read_telemetry(source, begin_s=begin_s, end_s=end_s, report=progress)
        progress("comparing machines")
        found = find_machines(telemetry, minutes=minutes, until_s=until_s, roles=layout)
    look.write(page, found)
    return EXIT_STRAGGLING if trips(found) else 0


def _read_gate(asked: Sequence[str]) -> "Callable[[MachinesDocument], bool]":
    """Read all `--fail-on` of a command line; give what says whether an answer ends with exit code 1."""
    words = ("faulty", "cannot-tell")
    sures = [0.0 if word == "faulty" else read_confidence(word, words) for word in asked if word != "cannot-tell"]

    def trips(found: "MachinesDocument") -> bool:
        if found.verdict == "cannot-tell":
            return "cannot-tell" in asked
        return any(machine.confidence >= sure for machine in found.machines for sure in sures)

    return trips


def _read_time(text: str) -> float:
    """Read a moment."""
    from diagnose.telemetry.times import find_time

    found = find_time(text)
    if found is None:
        raise UsageError(f"--at: {text!r} is no time; expected 2026-01-31T12:00:00Z, or seconds since 1970")
    return found


def _read_roles(path: Path) -> dict[str, str]:
    """Read which role each machine has."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "is no text"
        raise UsageError(f"--roles: cannot read {path}: {said}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise UsageError(f"--roles: {path}:{number}: {len(words)} words; expected a machine and its role")
        found[words[0]] = words[1]
    return found
