"""Files beside the report of a job: the page of --html, the object of --json, and the timelines of --perfetto.

Enters: a job taken apart, and options. Leaves: files, or a refusal before any work.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.cli.options import Options, parse_numbers
from diagnose.cli.output import print_message, write_bytes
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.model.analysis import ReportData
    from diagnose.model.diagnosis import Diagnosis


def check_beside(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse to write a page or an object that cannot be, or where something else is."""
    for option, path, other in (("--html", options.html, options.json), ("--json", options.json, options.html)):
        if path is None:
            continue
        if len(jobs) > 1:
            raise UsageError(f"{option} is of one job, and {len(jobs)} are given: diagnose them one by one")
        given = (options.output, options.perfetto, options.meta, options.log, other)
        others = [*jobs, *(path for path in given if path is not None)]
        if os.path.realpath(path) in {os.path.realpath(other) for other in others}:
            raise UsageError(f"{option}: {path} is read or written already; name another file")
        check_folder_of(option, path)


def check_folder_of(option: str, path: str | Path) -> None:
    """Refuse to write where there is no folder."""
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"{option}: there is no folder {Path(path).parent}")


def check_perfetto(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse to draw what cannot be drawn, or where something else is."""
    if options.perfetto is None:
        if options.perfetto_steps is not None or options.perfetto_dp is not None:
            raise UsageError("--perfetto-steps and --perfetto-dp say what to draw: give --perfetto FILE with them")
        return
    if len(jobs) > 1:
        raise UsageError(f"--perfetto draws one job, and {len(jobs)} are given: diagnose them one by one")
    others = [*jobs, *(path for path in (options.output, options.log) if path is not None)]
    if os.path.realpath(options.perfetto) in {os.path.realpath(other) for other in others}:
        raise UsageError(f"--perfetto: {options.perfetto} is the trace or the report; name another file")
    check_folder_of("--perfetto", options.perfetto)
    parse_numbers("--perfetto-steps", options.perfetto_steps)
    parse_numbers("--perfetto-dp", options.perfetto_dp)


def write_html(data: "ReportData | Diagnosis", job: str, path: str, options: Options) -> None:
    """Draw the page of a job, or of what cannot be replayed, into a file that appears when all is written."""
    from diagnose.model.diagnosis import Diagnosis
    from diagnose.report.html.page import render, render_without_replay

    given = (("--steps", options.steps), ("--rules", options.rules), ("--meta", options.meta), ("--log", options.log))
    said = [f" {name} {value}" for name, value in given if value is not None]
    asked = f"{''.join(said)} --min-speedup {options.min_speedup:g}"
    page = (
        render_without_replay(data, job, options=asked) if isinstance(data, Diagnosis) else render(data, options=asked)
    )
    write_bytes("--html", path, page.encode("utf-8", "backslashreplace"))


def write_json(diagnosis: "Diagnosis", path: str) -> None:
    """Write what `--format json` prints into a file that appears when all is written."""
    from diagnose.report import json_lines

    write_bytes("--json", path, f"{json_lines.render(diagnosis)}\n".encode())


def write_perfetto(data: "ReportData", path: str, options: Options, fixed: str = "the plan of the diagnosis") -> None:
    """Draw timelines into a file that appears when all is written, and say what did not fit; `fixed` names the fixes."""
    from diagnose.report.perfetto import AppliedFixes, render

    picture = render(
        data,
        steps=parse_numbers("--perfetto-steps", options.perfetto_steps),
        dp=parse_numbers("--perfetto-dp", options.perfetto_dp),
        limit_mb=options.perfetto_mb,
        compressed=not path.lower().endswith(".json"),
        applied=AppliedFixes(fixed, data.plan) if data.plan else None,
    )
    write_bytes("--perfetto", path, picture.content)
    for warning in picture.warnings:
        print_message("warning", warning)
