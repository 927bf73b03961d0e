"""Tell targets what is due: claim, send, mark; so whatever is killed in between is sent again, under the same key.

Enters: tickets, a target, and what it was told. Leaves: what came of it.
"""

import dataclasses
from collections.abc import Callable, Sequence

from diagnose.model.ticket import Ticket
from diagnose.tickets.alertmanager import Alert, Alertmanager
from diagnose.tickets.target import Recipient, RefusedError, SilentError
from diagnose.triage.deliveries import Deliveries

#: Messages in a row that found nobody before the others are left for the next time.
_MOST_SILENT = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """What came of telling one target: messages that arrived, that did not, and that another process is sending."""

    target: str
    n_sent: int
    n_left: int
    n_elsewhere: int = 0
    errors: tuple[str, ...] = ()


def send_messages(tickets: Sequence[Ticket], target: Recipient, deliveries: Deliveries) -> Sent:
    """Send a target one message a ticket; one that is refused does not stop the others."""
    n_sent = n_elsewhere = n_silent = 0
    errors = []
    for ticket in tickets:
        key = ticket.finding.key
        if not deliveries.claim(key, ticket.finding.ticket, ticket.finding.latest_event):
            n_elsewhere += 1
            continue
        try:
            target.send(ticket)
        except (RefusedError, SilentError) as error:
            deliveries.release(key)
            errors.append(str(error))
            n_silent = n_silent + 1 if isinstance(error, SilentError) else 0
            if n_silent == _MOST_SILENT:
                break
            continue
        n_silent = 0
        deliveries.mark(key)
        n_sent += 1
    return Sent(target.name, n_sent, len(tickets) - n_sent - n_elsewhere, n_elsewhere, tuple(dict.fromkeys(errors)))


def send_alerts(alerts: Sequence[Alert], target: Alertmanager, deliveries: Deliveries, now_s: float) -> Sent:
    """Tell Alertmanager what fires and what is over; told twice is as told once, so nothing is claimed."""
    n_sent = 0
    errors = []
    for few, request in target.requests(alerts, now_s):
        try:
            target.send(request)
        except RefusedError as error:
            errors.append(str(error))
            continue
        except SilentError as error:
            errors.append(str(error))
            break
        deliveries.record_events({alert.ticket.finding.ticket: alert.state for alert in few})
        n_sent += len(few)
    return Sent(target.name, n_sent, len(alerts) - n_sent, 0, tuple(dict.fromkeys(errors)))


def write_tickets(tickets: Sequence[Ticket], write: Callable[[Sequence[Ticket]], None], deliveries: Deliveries) -> Sent:
    """Write tickets all at once, those that no other process is writing; what fails is theirs who catch it."""
    claimed: list[Ticket] = []
    try:
        for ticket in tickets:
            if deliveries.claim(ticket.finding.key, ticket.finding.ticket, ticket.finding.latest_event):
                claimed.append(ticket)  # noqa: PERF401 - what is claimed is given back, whatever happens on the way
        write(claimed)
    except BaseException:
        for ticket in claimed:
            deliveries.release(ticket.finding.key)
        raise
    for ticket in claimed:
        deliveries.mark(ticket.finding.key)
    return Sent("output", len(claimed), 0, len(tickets) - len(claimed))
