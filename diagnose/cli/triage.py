"""`diagnose triage`: all jobs that are new or changed, into a store.

Enters: folders, globs or buckets. Leaves: rows in a store, and a summary as a page or as one JSON object.
"""

import sys
from pathlib import Path
from typing import Any

import click

from diagnose.cli.inputs import check_rules_folder
from diagnose.cli.options import (
    EXIT_BATCH,
    Options,
    format_option,
    judging_options,
    look_options,
    output_option,
    quiet_option,
    store_option,
    telemetry_option,
)
from diagnose.cli.output import is_terminal
from diagnose.cli.progress import TriageDisplay


@click.command("triage")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@store_option
@click.option(
    "--workers", "n_workers", metavar="N", type=click.IntRange(1, 1024), help="Processes  [default: one a core]"
)
@click.option(
    "--memory", metavar="SIZE", help="Memory for all jobs together, such as 8G  [default: 60% of the machine]"
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Give a job up after so long.",
)
@click.option("--since", metavar="AGE|DATE", help="Only traces modified since: 12h, 2d, 1w or 2026-01-31.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Do at most so many jobs, the newest.")
@click.option("--force", is_flag=True, help="Do jobs that have not changed too.")
@click.option("--retry-failed", is_flag=True, help="Do jobs that have failed and not changed too.")
@click.option("--dry-run", is_flag=True, help="List what would be done, and do nothing.")
@click.option("--dask", metavar="ADDRESS", help="Work on this Dask cluster, such as tcp://host:8786.")
@telemetry_option
@judging_options
@format_option("terminal", "json", meaning="A summary for people, or one JSON object (diagnose-triage/1).")
@output_option
@look_options
@quiet_option
def triage_command(
    *,
    output_format: str,
    output: str | None,
    no_color: bool,
    width: int | None,
    quiet: bool,
    rules: Path | None,
    **asked: Any,
) -> int:
    """Diagnose all jobs in SOURCE that are new or changed, and keep the results in a store.

    SOURCE is a folder, a glob, a file with one of these a line (.txt), or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX. Stopped at
    any moment and started again, it goes on where it was; several may work on one store at the same time.
    """
    from diagnose.report import triage as page
    from diagnose.triage.triage import TriageRequest, triage

    check_rules_folder(rules)
    request = TriageRequest(rules=rules, **asked)
    with TriageDisplay(shown=not quiet and is_terminal(sys.stderr)) as progress:
        run = triage(request, watch=progress)
    look = Options(output_format=output_format, no_color=no_color, width=width, output=output)
    look.write(page, run)
    return EXIT_BATCH if run.n_failed else 0
