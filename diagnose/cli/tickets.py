"""`diagnose tickets`: tell people and programs of what triage found.

Enters: a store that `diagnose triage` fills. Leaves: a line of JSON a finding, or messages to services, each finding once.
"""

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from diagnose.cli.options import EXIT_OUTPUT, output_option, store_option
from diagnose.cli.output import count, print_error, print_message, write_bytes, write_lines, write_stdout
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnose.model.ticket import Ticket
    from diagnose.tickets.tickets import TicketRequest, Tickets


_Command = TypeVar("_Command", bound=Callable[..., Any])


def target_option(name: str, variable: str, meaning: str) -> Callable[[_Command], _Command]:
    """Give an option for the address of a target."""
    return click.option(
        f"--{name}",
        f"{name}s",
        metavar="URL",
        multiple=True,
        envvar=variable,
        callback=_warn_of_secrets,
        help=f"{meaning} Better given in {variable}.",
    )


def _warn_of_secrets(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Warn where a password stands where everybody can read it."""
    from diagnose.tickets.target import has_password

    from_line = ctx.get_parameter_source(param.name or "") == click.core.ParameterSource.COMMANDLINE
    if from_line and any(map(has_password, value)):
        print_message(
            "warning",
            f"{param.opts[0]}: a password on the command line can be read by everybody on the machine; "
            f"give the address in {param.envvar}",
        )
    return value


@click.command("tickets")
@store_option
@output_option
@target_option("webhook", "DIAGNOSE_WEBHOOK_URL", "Post tickets there, signed (secret in DIAGNOSE_WEBHOOK_SECRET).")
@target_option("alertmanager", "DIAGNOSE_ALERTMANAGER_URL", "Let findings fire in this Prometheus Alertmanager.")
@target_option("apprise", "DIAGNOSE_APPRISE_URL", "Tell a service that Apprise reaches, such as slack://.")
@click.option("--send", is_flag=True, help="Send to these services; without it, print what would be sent.")
@click.option("--dry-run", is_flag=True, help="Print the tickets, and do not remember that they were printed.")
@click.option("--all", "everything", is_flag=True, help="Print all that is open, told before or not; remember nothing.")
@click.option("--fixed", "with_fixed", is_flag=True, help="Tell of what is fixed too; Alertmanager is always told.")
@click.option(
    "--site", metavar="URL", envvar="DIAGNOSE_SITE", help="Where `diagnose fleet --site` is served, to link to."
)
@click.option(
    "--min-gpu-hours",
    metavar="N",
    type=click.FloatRange(min=0.0),
    default=1.0,
    show_default=True,
    help="Only what loses at least so many GPU hours a day.",
)
@click.option(
    "--min-confidence",
    metavar="FLOAT",
    type=click.FloatRange(0.0, 1.0),
    default=0.5,
    show_default=True,
    help="Only what is at least so sure.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="At most so many new tickets, the costliest.")
@click.option(
    "--gone-after", metavar="AGE", default="30d", show_default=True, help="What no run had for so long is fixed."
)
@click.option("--prometheus-textfile", metavar="FILE", type=click.Path(), help="Write gauges for node_exporter there.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Wait so long for an answer, at each of a few tries.",
)
def tickets_command(  # noqa: PLR0913 - one argument an option that needs a second look
    *,
    store: str,
    output: str | None,
    send: bool,
    dry_run: bool,
    everything: bool,
    min_gpu_hours: float,
    min_confidence: float,
    gone_after: str,
    prometheus_textfile: str | None,
    **asked: Any,
) -> int:
    """Tell of every finding once: what `diagnose triage` found in one or more jobs, by its fingerprint.

    One line of JSON a finding (diagnose-ticket/1) on standard output or in -o FILE, or a message to each service. What was
    told is remembered in the store; a finding that comes back after it was fixed is told again.
    """
    from diagnose.tickets.due import Threshold
    from diagnose.tickets.tickets import TicketRequest, Tickets, check_request
    from diagnose.triage.store import Store

    request = TicketRequest(
        send=send and not dry_run,
        threshold=Threshold(min_gpu_hours, min_confidence),
        gone_after_s=_read_gone_after(gone_after),
        **asked,
    )
    check_request(request)
    if everything and request.has_targets:
        raise UsageError("--all is for standard output and -o; services are told what is new")
    if send and not request.has_targets:
        raise UsageError(
            "--send needs --webhook, --alertmanager or --apprise; tickets on standard output need no --send"
        )
    is_trial = dry_run or everything or (request.has_targets and not request.send)
    with Store(store, may_create=False, only_reads=is_trial) as opened:
        if not is_trial:
            opened.enter()
        tickets = Tickets(opened, request, opened.now_s(), is_trial=is_trial)
        is_well = _deliver(tickets, request, output, is_trial=is_trial, everything=everything)
        if prometheus_textfile is not None:
            write_bytes("--prometheus-textfile", prometheus_textfile, tickets.gauges())
    return 0 if is_well else EXIT_OUTPUT


def _read_gone_after(text: str) -> float:
    """Read an age in seconds."""
    from diagnose.triage.times import parse_since

    try:
        age_s = -parse_since(text, 0.0)
    except UsageError:
        age_s = math.nan
    if not age_s > 0:
        raise UsageError(f"--gone-after: {text!r} is no age such as 30d")
    return age_s


def _deliver(
    tickets: "Tickets", request: "TicketRequest", output: str | None, *, is_trial: bool, everything: bool
) -> bool:
    """Print, send, or say what would be sent; False where something did not arrive."""
    from diagnose.tickets.tickets import render_tickets

    def write(found: "Sequence[Ticket]") -> None:
        text = render_tickets(found)
        if output is None:
            write_stdout(text)
        else:
            write_bytes("-o", output, text.encode())

    if everything:
        write(tickets.all_open())
    elif not request.has_targets or output is not None:
        if is_trial:
            write(tickets.unwritten())
        else:
            tickets.write(write)
    if request.has_targets and not request.send:
        _show(tickets)
    return _send(tickets) if request.send else True


def _show(tickets: "Tickets") -> None:
    """Print exactly what would be sent where."""
    for unsent in tickets.show():
        write_lines(f"{unsent.target}: {count(len(unsent.requests), 'message')}, not sent; --send sends\n")
        for request in unsent.requests:
            headers = "".join(f"  {key}: {value}\n" for key, value in request.headers.items())
            write_lines(f"{headers}  {request.body}\n\n")


def _send(tickets: "Tickets") -> bool:
    """Send what is due to every target, and say what came of it."""
    is_well = True
    with contextlib.closing(tickets.send()) as outcomes:
        for sent in outcomes:
            left = f", {sent.n_left:,} left for the next time" if sent.n_left else ""
            elsewhere = f", {sent.n_elsewhere:,} in work in another process" if sent.n_elsewhere else ""
            write_lines(f"{sent.target}: {sent.n_sent:,} sent{left}{elsewhere}\n")
            for error in sent.errors:
                print_error(error)
            is_well = is_well and not sent.n_left
    return is_well
