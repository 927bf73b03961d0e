"""`diagnose convert`: make a trace of what another tool recorded, and list the tools that are known.

Enters: a file or folder. Leaves: a Parquet file that appears when all is written, and on standard error what was lost on the way.
"""

import os
import sys
from pathlib import Path

import click

from diagnose.cli.inputs import name_of
from diagnose.cli.options import meta_option, quiet_option
from diagnose.cli.output import count, is_terminal, print_message, write_bytes, write_lines
from diagnose.cli.progress import StageDisplay
from diagnose.errors import UsageError


@click.command("convert")
@click.argument("job", metavar="PATH", required=False, type=click.Path())
@click.option("-o", "--output", metavar="FILE", help="Parquet file to write.")
@click.option("--list", "list_them", is_flag=True, help="List what can be read, and end.")
@meta_option
@quiet_option
def convert_command(*, job: str | None, output: str | None, list_them: bool, meta: Path | None, quiet: bool) -> int:
    """Write the trace of a job that another tool recorded, with an account of what was lost.

    PATH is a file or folder of one job. What it is, is told by what is in it. `diagnose PATH` reads the same without this.
    """
    if list_them:
        _list_producers()
        return 0
    if job is None or output is None:
        raise UsageError("expected `diagnose convert PATH -o FILE.parquet`, or `diagnose convert --list`")
    if os.path.realpath(output) == os.path.realpath(job) or Path(output).is_dir():
        raise UsageError(f"-o: {output} is a folder, or what is to be read; name another file")
    from diagnose.model.job_names import id_of_path, locate, name_of_job
    from diagnose.trace.convert import write_trace
    from diagnose.trace.metadata import read_metadata
    from diagnose.trace.read import read_rows
    from diagnose.trace.streams import read_stream

    name = name_of(job)
    with StageDisplay(name, shown=not quiet and is_terminal(sys.stderr)) as progress:
        source = read_stream(sys.stdin.buffer, name=name) if job == "-" else Path(job)
        rows = read_rows(source, name=name, report=progress)
        path = source if isinstance(source, Path) else None
        about = read_metadata(path, rows.job, meta)
        run_id = str(about["job_id"]) if "job_id" in about else None
        location = locate(name) if path else name
        about.setdefault("name", name_of_job(name=None, job_id=run_id, location=location))
        about.setdefault("job_id", id_of_path(path) if path else "job")
        content = write_trace(rows, about)
    write_bytes("-o", output, content)
    if quiet:
        return 0
    for line in (*(rows.recording.sentences() if rows.recording else ()), *rows.recording_warnings):
        print_message("note", line)
    producer = f", read as {rows.recording.producer}" if rows.recording else ""
    print_message("note", f"{output}: {count(len(rows), 'operation')}{producer}")
    return 0


def _list_producers() -> None:
    """List all producers, those of other packages too."""
    from diagnose.trace.producers.catalogue import list_producers

    lines = [f"{producer.NAME}: {producer.TITLE}" for producer in list_producers()]
    lines.append("trace: Parquet, one row an operation; or a folder with one such file a rank")
    write_lines("\n".join(lines) + "\n")
