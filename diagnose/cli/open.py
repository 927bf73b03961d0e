"""`diagnose open`: the page of a job, in the browser.

Enters: a trace. Leaves: a file with the page, its path on standard output, and a browser that shows it. Nothing is served.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from diagnose.cli.drawings import check_folder_of, write_html
from diagnose.cli.inputs import check_jobs, open_job
from diagnose.cli.options import Options, log_option, output_option, quiet_option, reading_options
from diagnose.cli.output import print_message, write_lines


@click.command("open")
@click.argument("job", type=click.Path())
@output_option
@reading_options
@log_option
@quiet_option
def open_command(job: str, output: str | None, **given: Any) -> int:
    """Draw the page of a JOB, and open it in the browser.

    The page goes into a new folder for temporary files, or into -o FILE; its path is printed. Where there is no display, nothing
    is opened.
    """
    import tempfile

    options = Options(output_format="terminal", no_color=True, width=None, output=output, **given)
    check_jobs((job,), options)
    if output is not None:
        check_folder_of("-o", output)
        _draw(job, output, options)
        return _show(Path(output))
    folder = Path(tempfile.mkdtemp(prefix="diagnose-"))
    try:
        page = folder / "job.html"
        _draw(job, str(page), options)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _show(page)


def _draw(job: str, page: str, options: Options) -> None:
    """Diagnose the job, and write its page."""
    from diagnose.pipeline import diagnose_and_keep

    with open_job(job, options) as request:
        diagnosis, data = diagnose_and_keep(request)
        request.report("drawing")
        write_html(diagnosis if data is None else data, job, page, options)


def _show(page: Path) -> int:
    """Say where the page is, and let a browser show it where one can."""
    import webbrowser

    write_lines(f"{page}\n")
    if not _has_display():
        print_message("open", "there is no display here, so nothing was opened; copy the file to where there is one")
    elif not webbrowser.open(page.absolute().as_uri()):
        print_message("open", "no browser could be started; open the file yourself")
    return 0


def _has_display() -> bool:
    """Say whether a window can be opened here."""
    if sys.platform in {"win32", "darwin"}:
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
