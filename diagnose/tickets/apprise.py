"""Tickets to any service that Apprise reaches: chat, mail, pagers.

Enters: tickets. Leaves: a message each, in words. Apprise is an extra, imported when it is used.
"""

import functools
import logging
from typing import TYPE_CHECKING

import tenacity

from diagnose.addresses import HIDDEN
from diagnose.errors import UsageError
from diagnose.model.plain import to_json
from diagnose.model.ticket import Ticket
from diagnose.tickets.compose import describe
from diagnose.tickets.post import backoff
from diagnose.tickets.target import HttpRequest, SilentError, identify
from diagnose.tickets.within import within

if TYPE_CHECKING:
    from apprise import Apprise

#: Tries of one message, and the first wait between two in seconds.
TRIES = 4


class AppriseService:
    """One service by its Apprise URL, of which only the kind is ever shown; UsageError where Apprise is missing or knows it not."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        kind = url.split("://", 1)[0] if "://" in url else ""
        kind = kind if kind.isalnum() else HIDDEN
        self.name = f"apprise {kind}://{HIDDEN}"
        self.identity = identify("apprise", url)
        self._service = _open(url, self.name)

    def close(self) -> None:
        """Nothing stays open."""

    def request(self, ticket: Ticket) -> HttpRequest:
        """Give what is sent."""
        title, body = _write(ticket)
        return HttpRequest({}, to_json({"title": title, "body": body}))

    def send(self, ticket: Ticket) -> None:
        """Hand a message over until the service has taken it."""
        title, body = _write(ticket)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=backoff(),
            retry=tenacity.retry_if_result(lambda has_arrived: not has_arrived),
            retry_error_callback=lambda _state: False,
        )
        if not retrying(self._notify, title, body, is_over=ticket.finding.state == "fixed"):
            raise SilentError(f"{self.name}: did not take it, {TRIES} times; sent again the next time")

    def _notify(self, title: str, body: str, *, is_over: bool) -> bool:
        """Try once. What a service says is not repeated: it may hold what is secret."""
        from apprise import NotifyFormat, NotifyType

        kind = NotifyType.SUCCESS if is_over else NotifyType.WARNING
        notify = functools.partial(
            self._service.notify, body=body, title=title, notify_type=kind, body_format=NotifyFormat.TEXT
        )
        try:
            return bool(within(self._timeout_s, notify))
        except Exception:  # noqa: BLE001 - more than a hundred services, each fails in its own way
            return False


def _write(ticket: Ticket) -> tuple[str, str]:
    """Write the title and the text of a message."""
    finding = ticket.finding
    return ticket.title, "\n".join([f"{finding.latest_event}: {ticket.summary}", *describe(ticket), finding.key])


def _open(url: str, name: str) -> "Apprise":
    """Make Apprise's object for a service, silent: its log shows addresses."""
    try:
        from apprise import Apprise, AppriseAsset
    except ImportError:
        raise UsageError("--apprise needs Apprise: pip install 'diagnose-training[apprise]'") from None
    log = logging.getLogger("apprise")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    service = Apprise(asset=AppriseAsset(app_id="diagnose", secure_logging=True, async_mode=False))
    if not service.add(url):
        raise UsageError(
            f"{name}: Apprise knows no such service; expected a URL such as slack://TOKENS or mailto://..."
        )
    return service
