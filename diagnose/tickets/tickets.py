"""Tickets from end to end: what became of findings, what is due to whom, and telling them.

Enters: what the user asks for, and a store. Leaves: lines of JSON, what would be sent, or what was; and gauges.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from diagnose.addresses import check_web_address
from diagnose.model.plain import to_json
from diagnose.model.ticket import Finding, Ticket
from diagnose.tickets.alertmanager import Alert, Alertmanager
from diagnose.tickets.apprise import AppriseService
from diagnose.tickets.compose import compose
from diagnose.tickets.deliver import Sent, send_alerts, send_messages, write_tickets
from diagnose.tickets.due import Threshold, find_due, find_fixed, open_findings
from diagnose.tickets.target import HttpRequest
from diagnose.tickets.webhook import Webhook, read_key
from diagnose.triage.acks import list_acks
from diagnose.triage.census import take_census
from diagnose.triage.deliveries import Deliveries
from diagnose.triage.findings import update_findings
from diagnose.triage.store import Store

#: The name under which is kept what went to standard output or a file.
_OUTPUT = "output"
_Target = TypeVar("_Target", bound=Webhook | AppriseService | Alertmanager)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TicketRequest:
    """What the user asks for."""

    #: Addresses, which may hold secrets.
    webhooks: tuple[str, ...] = ()
    alertmanagers: tuple[str, ...] = ()
    apprises: tuple[str, ...] = ()
    send: bool = False  # Send, and remember it; else only say what would be sent
    threshold: Threshold
    limit: int | None = None  # Tell a target of at most so many findings that it has not heard of
    gone_after_s: float  # A finding that no run had for so long is fixed
    with_fixed: bool = False  # Tell of what is fixed, too
    site: str | None = None  # Address of the fleet's site
    timeout_s: float = 10.0  # For one try to reach a target

    @property
    def has_targets(self) -> bool:
        """True where anything is to leave the machine."""
        return bool(self.webhooks or self.alertmanagers or self.apprises)


@dataclasses.dataclass(frozen=True, slots=True)
class Unsent:
    """What would be sent to a target."""

    target: str
    requests: tuple[HttpRequest, ...]


class Tickets:
    """The findings of a store as they are now (seconds since 1970), and what is due of them; a trial leaves the store as it is."""

    def __init__(self, store: Store, request: TicketRequest, now_s: float, *, is_trial: bool) -> None:
        self._store = store
        self._request = request
        self._now_s = now_s
        self._findings = update_findings(store, now_s, request.gone_after_s, is_trial=is_trial)
        known = list_acks(store)
        self._acks = {key: ack for key, ack in known.items() if ack.until_at is None or ack.until_at > now_s}
        self._open = open_findings(self._findings, self._acks, request.threshold)

    def all_open(self) -> list[Ticket]:
        """Write tickets of all that is open and worth one, told or not, acknowledged or not."""
        return self._compose(open_findings(self._findings, {}, self._request.threshold)[: self._request.limit])

    def unwritten(self) -> list[Ticket]:
        """Write the tickets that no output had yet."""
        return self._due(Deliveries(self._store, _OUTPUT))

    def write(self, write: Callable[[Sequence[Ticket]], None]) -> Sent:
        """Have the tickets written that no output had yet, and remember it."""
        deliveries = Deliveries(self._store, _OUTPUT)
        return write_tickets(self._due(deliveries), write, deliveries)

    def show(self) -> Iterator[Unsent]:
        """Say what would be sent to each target."""
        with self._open_messengers(signs=False) as messengers:
            for target in messengers:
                due = self._due(Deliveries(self._store, target.identity))
                yield Unsent(target.name, tuple(target.request(ticket) for ticket in due))
        with self._open_alertmanagers() as alertmanagers:
            for alertmanager in alertmanagers:
                alerts = self._alerts(Deliveries(self._store, alertmanager.identity))
                requests = alertmanager.requests(alerts, self._now_s)
                yield Unsent(alertmanager.name, tuple(request for _, request in requests))

    def send(self) -> Generator[Sent, None, None]:
        """Tell every target what is due; one that fails does not stop the others."""
        with self._open_messengers(signs=True) as messengers, self._open_alertmanagers() as alertmanagers:
            for target in messengers:
                deliveries = Deliveries(self._store, target.identity)
                yield send_messages(self._due(deliveries), target, deliveries)
            for alertmanager in alertmanagers:
                deliveries = Deliveries(self._store, alertmanager.identity)
                yield send_alerts(self._alerts(deliveries), alertmanager, deliveries, self._now_s)

    def gauges(self) -> bytes:
        """Write the gauges of the fleet."""
        from diagnose.tickets.gauges import render_gauges

        return render_gauges(take_census(self._store), self._findings, self._acks)

    def _due(self, deliveries: Deliveries) -> list[Ticket]:
        """Write the tickets that a target has not heard of."""
        sent = deliveries.sent()
        due = find_due(self._open, sent, self._request.limit)
        fixed = (
            find_due(find_fixed(self._findings, deliveries.last_events()), sent, None)
            if self._request.with_fixed
            else []
        )
        return self._compose([*due, *fixed])

    def _alerts(self, deliveries: Deliveries) -> list[Alert]:
        """Give what fires, all of it, and what fired and is over."""
        told = deliveries.last_events()
        known = [finding for finding in self._open if told.get(finding.ticket) == "fires"]
        new = [finding for finding in self._open if told.get(finding.ticket) != "fires"][: self._request.limit]
        firing = {finding.ticket for finding in self._open}
        over = [one for one in self._findings if told.get(one.ticket) == "fires" and one.ticket not in firing]
        return [
            *(Alert(ticket, fires=True) for ticket in self._compose([*known, *new])),
            *(Alert(ticket, fires=False) for ticket in self._compose(over)),
        ]

    def _open_messengers(self, *, signs: bool) -> "contextlib.AbstractContextManager[list[Webhook | AppriseService]]":
        """Open all targets that are told of events."""
        asked = self._request
        return open_messengers(asked.webhooks, asked.apprises, timeout_s=asked.timeout_s, signs=signs)

    def _open_alertmanagers(self) -> "contextlib.AbstractContextManager[list[Alertmanager]]":
        """Open all Alertmanagers."""
        return open_alertmanagers(self._request.alertmanagers, timeout_s=self._request.timeout_s)

    def _compose(self, findings: list[Finding]) -> list[Ticket]:
        """Write tickets."""
        return compose(self._store, findings, self._acks, self._request.site)


def open_messengers(
    webhooks: Sequence[str], apprises: Sequence[str], *, timeout_s: float, signs: bool = True
) -> "contextlib.AbstractContextManager[list[Webhook | AppriseService]]":
    """Open all targets that are told of events; messages to webhooks are signed where they are to be sent."""
    key = read_key() if webhooks and signs else None
    return _closing(
        [*(Webhook(url, timeout_s, key) for url in webhooks), *(AppriseService(url, timeout_s) for url in apprises)]
    )


def open_alertmanagers(
    urls: Sequence[str], *, timeout_s: float
) -> "contextlib.AbstractContextManager[list[Alertmanager]]":
    """Open all Alertmanagers."""
    return _closing([Alertmanager(url, timeout_s) for url in urls])


@contextlib.contextmanager
def _closing(targets: list[_Target]) -> Iterator[list[_Target]]:
    """Close all targets at the end."""
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.callback(target.close)
        yield targets


def check_request(request: TicketRequest) -> None:
    """Refuse, before anything is done, an address that is none, and to sign without a secret."""
    for option, urls in (("--webhook", request.webhooks), ("--alertmanager", request.alertmanagers)):
        for url in urls:
            check_web_address(option, url)
    if request.send and request.webhooks:
        read_key()
    if request.site is not None:
        check_web_address("--site", request.site)


def render_tickets(tickets: Sequence[Ticket]) -> str:
    """Write tickets as JSON Lines."""
    return "".join(to_json(ticket.to_document()) + "\n" for ticket in tickets)
