"""`diagnose watch`: jobs while they run.

Enters: folders and files that are being written. Leaves: a line an event, tickets, until somebody ends it.
"""

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diagnose.cli.inputs import check_rules_folder
from diagnose.cli.options import format_option, judging_options, store_option, telemetry_option
from diagnose.cli.output import print_error, print_message, write_stdout
from diagnose.cli.tickets import target_option
from diagnose.cli.watch_views import VIEW_OPTIONS, can_draw, open_views, view_options
from diagnose.errors import UsageError
from diagnose.heap import import_to_stay, reuse_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diagnose.model.live import LiveEvent
    from diagnose.tickets.alertmanager import Alertmanager
    from diagnose.tickets.target import Recipient
    from diagnose.watch.request import WatchRequest


@click.command("watch")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--window",
    "window_steps",
    metavar="N",
    type=click.IntRange(min=3),
    default=20,
    show_default=True,
    help="Diagnose so many recorded steps together.",
)
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Look at the files so often; at those of an idle job less and less often.",
)
@click.option("--once", is_flag=True, help="Diagnose what is there and nobody has seen yet, and stop.")
@store_option
@target_option("webhook", "DIAGNOSE_WEBHOOK_URL", "Post tickets there, signed (secret in DIAGNOSE_WEBHOOK_SECRET).")
@target_option("alertmanager", "DIAGNOSE_ALERTMANAGER_URL", "Let episodes fire in this Prometheus Alertmanager.")
@target_option("apprise", "DIAGNOSE_APPRISE_URL", "Tell a service that Apprise reaches, such as slack://.")
@click.option("--send", is_flag=True, help="Send to these services; without it nothing leaves the machine.")
@click.option(
    "--site", metavar="URL", help="Where the pages of --html or --serve can be reached, to link to in tickets."
)
@telemetry_option
@judging_options
@view_options
@format_option("terminal", "json", meaning="A line an event for people, or as JSON (diagnose-watch/1).")
def watch_command(
    *,
    sources: tuple[str, ...],
    store: str,
    output_format: str,
    rules: Path | None,
    webhooks: tuple[str, ...],
    alertmanagers: tuple[str, ...],
    apprises: tuple[str, ...],
    send: bool,
    **asked: Any,
) -> int:
    """Follow jobs while they run: diagnose each window of new steps, and tell of what begins, grows and ends.

    SOURCE is the folder of a job, a folder of many, or a file that is written while the job runs. Ended or killed at any moment
    and started again, it goes on where it was: what it knows is in the store.
    """
    reuse_freed_memory()
    with import_to_stay():
        import diagnose.pipeline  # noqa: F401
    from diagnose.addresses import check_web_address, find_source
    from diagnose.triage.store import Store
    from diagnose.watch.request import WatchRequest
    from diagnose.watch.tell import Teller
    from diagnose.watch.watch import Watch

    check_rules_folder(rules)
    if send and not (webhooks or alertmanagers or apprises):
        raise UsageError("--send needs --webhook, --alertmanager or --apprise")
    if not send and (webhooks or alertmanagers or apprises):
        print_message("warning", "nothing is sent without --send")
        webhooks = alertmanagers = apprises = ()
    for option, urls in (("--webhook", webhooks), ("--alertmanager", alertmanagers)):
        for url in urls:
            check_web_address(option, url)
    telemetry, site = asked.pop("telemetry"), asked.pop("site")
    if site is not None:
        check_web_address("--site", site)
    shown = {option: asked.pop(option) for option in VIEW_OPTIONS}
    measured = None if telemetry is None else find_source("--telemetry", telemetry)
    request = WatchRequest(sources=sources, rules=rules, telemetry=measured, **asked)
    _check_sources(request, store)
    screen = output_format == "terminal" and not request.once and can_draw()

    def write(event: "LiveEvent") -> None:
        if not screen or event.event != "window":  # the screen shows windows
            write_stdout(_render(event, output_format))

    with _open_targets(webhooks, apprises, alertmanagers) as (messengers, alerts), Store(store) as opened:
        opened.enter()
        teller = Teller(opened, write, messengers, alerts, site)
        views = open_views(**shown, screen=screen)
        watch = Watch(request, opened, teller, views=views, write=write, complain=print_error)
        try:
            watch.run()
        except KeyboardInterrupt:
            print_message("note", "ended; started again, it goes on where it was")
        finally:
            watch.close()
    return 0


def _check_sources(request: "WatchRequest", store: str) -> None:
    """Refuse what cannot be followed before a store is made for it, and say where nothing is there yet."""
    from diagnose.triage.store import NoStoreError, Store
    from diagnose.watch.find import find_sources, refuse_where_none

    try:
        Store(store, only_reads=True).close()
    except NoStoreError:
        found, refused = find_sources(request, set(), set(), time.time())
        refuse_where_none(request, found, refused)
        if not found:
            print_message("note", f"nothing to follow yet in {', '.join(request.sources)}: waiting for a job")


def _render(event: "LiveEvent", output_format: str) -> str:
    """Write an event as a line."""
    if output_format == "json":
        from diagnose.model.plain import to_json

        return to_json(event) + "\n"
    from diagnose.report.escape import name

    return f"{event.at}  {name(event.name)}  {event.text}\n"


@contextlib.contextmanager
def _open_targets(
    webhooks: "Sequence[str]", apprises: "Sequence[str]", alertmanagers: "Sequence[str]"
) -> "Iterator[tuple[Sequence[Recipient], list[Alertmanager]]]":
    """Open all receivers of tickets."""
    from diagnose.tickets.tickets import open_alertmanagers, open_messengers

    with (
        open_messengers(webhooks, apprises, timeout_s=10.0) as messengers,
        open_alertmanagers(alertmanagers, timeout_s=10.0) as alerts,
    ):
        yield messengers, alerts
