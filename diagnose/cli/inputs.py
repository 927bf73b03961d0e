"""What commands read: jobs, standard input and folders of rules.

Enters: arguments and options. Leaves: an open source with what the pipeline is told of it, or a refusal before any work.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from diagnose.cli.drawings import check_beside, check_perfetto
from diagnose.cli.options import Options, parse_numbers
from diagnose.cli.output import is_terminal
from diagnose.cli.progress import StageDisplay
from diagnose.errors import UsageError
from diagnose.heap import import_to_stay, reuse_freed_memory
from diagnose.model.memory import read_bytes
from diagnose.model.request import Request


def check_jobs(jobs: tuple[str, ...], options: Options) -> None:
    """Refuse arguments that make no sense together, before any work."""
    if not jobs:
        raise UsageError("no job given: `diagnose FILE` diagnoses one, `diagnose --help` shows everything")
    if jobs.count("-") > 1:
        raise UsageError("standard input (-) can be read once only")
    if "-" in jobs and sys.stdin is None:
        raise UsageError("standard input is closed: pipe a trace into it, or name a file instead of -")
    if "-" in jobs and is_terminal(sys.stdin):
        raise UsageError("standard input is a terminal: pipe a trace into it, or name a file instead of -")
    if options.meta is not None and len(jobs) > 1:
        raise UsageError(f"--meta describes one job, and {len(jobs)} are given: diagnose them one by one")
    if options.meta is not None and not options.meta.is_file():
        raise UsageError(f"--meta: {options.meta} is not a file")
    if options.log is not None and len(jobs) > 1:
        raise UsageError(f"--log is of one run, and {len(jobs)} jobs are given: diagnose them one by one")
    if options.log is not None and not options.log.exists():
        raise UsageError(f"--log: {options.log} does not exist")
    if options.output is not None and os.path.realpath(options.output) in {os.path.realpath(job) for job in jobs}:
        raise UsageError(f"-o: {options.output} is the trace to read; name another file")
    if options.output is not None and options.log and os.path.realpath(options.output) == os.path.realpath(options.log):
        raise UsageError(f"-o: {options.output} is the log to read; name another file")
    if options.rules is not None and not options.rules.is_dir():
        raise UsageError(f"--rules: {options.rules} is not a folder")
    check_perfetto(jobs, options)
    check_beside(jobs, options)


def check_rules_folder(folder: Path | None) -> None:
    """Refuse what is no folder."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected one with rule files")


def import_pipeline() -> None:
    """Import what diagnoses traces; a log needs nothing of it."""
    if "diagnose.pipeline" not in sys.modules:
        with import_to_stay():
            import diagnose.pipeline  # noqa: F401


def name_of(given: str) -> str:
    """Name an input as errors do."""
    return "standard input" if given == "-" else given


@contextlib.contextmanager
def open_job(job: str, options: Options) -> Iterator[Request]:
    """Give what the pipeline is asked about a job, with progress on a terminal until it is done."""
    from diagnose.trace.streams import read_stream

    if "diagnose.alone" not in sys.modules:  # the first job of this process
        reuse_freed_memory()
    name, steps = name_of(job), parse_numbers("--steps", options.steps)
    with StageDisplay(name, shown=not options.quiet and is_terminal(sys.stderr)) as progress:
        yield Request(
            read_stream(sys.stdin.buffer, name=name) if job == "-" else Path(job),
            name=name,
            meta=options.meta,
            steps=steps,
            rules=options.rules,
            min_speedup=options.min_speedup,
            log=options.log,
            telemetry=options.telemetry,
            unit=options.unit,
            column=options.column,
            memory_bytes=None if options.memory is None else read_bytes(options.memory),
            progress=progress,
        )
