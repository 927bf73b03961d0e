"""What shows watched jobs beside the lines of `diagnose watch`: a terminal, pages, a server, gauges.

Enters: options. Leaves: views, each opened before anything is diagnosed, or a refusal.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.drawings import check_folder_of
from diagnose.cli.options import together
from diagnose.cli.output import print_message
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.watch.views import View

#: Where `--serve` listens where nobody says anything else. The range of exporters of Prometheus is full; nobody claims this one.
PORT, HOST = 8731, "127.0.0.1"
#: The options of views, as click calls them.
VIEW_OPTIONS = ("html", "serve", "serve_address", "gauges")


#: The options of all views.
view_options = together(
    click.option(
        "--html",
        metavar="FILE|DIR",
        type=click.Path(path_type=Path),
        help="Keep a page there: FILE.html of one job, or a folder with an index and a page a job.",
    ),
    click.option(
        "--serve",
        metavar="[PORT]",
        is_flag=False,
        flag_value=str(PORT),
        help=f"Give pages, /metrics and watch.json on this machine alone  [PORT: {PORT}; 0: any that is free]",
    ),
    click.option(
        "--serve-address", metavar="ADDRESS", help=f"Listen there instead of {HOST}; others can read it then."
    ),
    click.option(
        "--prometheus-textfile",
        "gauges",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Keep gauges there for node_exporter's textfile collector.",
    ),
)


def can_draw() -> bool:
    """Say whether standard output is a terminal that can be drawn on, in characters that it has."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in {"", "dumb", "unknown"}:
        return False
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def open_views(
    *, html: Path | None, serve: str | None, serve_address: str | None, gauges: Path | None, screen: bool
) -> "list[View]":
    """Open the views that are asked for; `screen` asks for the one on the terminal. Who has them closes them."""
    views: list[View] = []
    if serve_address is not None and serve is None:
        raise UsageError("--serve-address says where to listen: give --serve with it")
    if html is not None and gauges is not None and gauges.resolve() == html.resolve():
        raise UsageError(f"--prometheus-textfile: {gauges} is the page of --html already; name another file")
    try:
        if gauges is not None:
            from diagnose.watch.gauges import GaugesFile

            check_folder_of("--prometheus-textfile", gauges)
            views.append(GaugesFile(gauges, _warn))
        if html is not None:
            from diagnose.watch.folder import PageFolder

            check_folder_of("--html", html)
            views.append(PageFolder(html, _warn))
        if serve is not None:
            views.append(_serve(serve, serve_address or HOST))
        if screen:
            from diagnose.watch.screen import Screen

            views.append(Screen())
    except BaseException:
        for view in views:
            view.close()
        raise
    return views


def _serve(port: str, host: str) -> "View":
    """Listen, and say where."""
    from diagnose.watch.serve import Server, is_loopback

    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--serve: {port!r} is no port (0 to 65535); give sources before it, or --serve={PORT}")
    server = Server(int(port), host)
    print_message("serve", server.address)
    if not is_loopback(host):
        print_message(
            "warning",
            f"--serve-address: whoever reaches {host} can read names and times of all jobs: nobody is asked who it is",
        )
    return server


def _warn(message: str) -> None:
    """Say what does not stop the watch."""
    print_message("warning", message)
