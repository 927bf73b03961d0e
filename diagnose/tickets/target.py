"""Where tickets go, and what is shown of its address: never a secret.

Enters: an address as the user gives it. Leaves: a name that can be shown and kept, and requests.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Protocol

from diagnose.errors import ServiceError
from diagnose.model.ticket import Ticket


class RefusedError(ServiceError):
    """A target did not take a message; the next may be another matter."""


class SilentError(ServiceError):
    """A target does not answer, or says that it cannot now; neither will it for the next message."""


@dataclasses.dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is sent: headers that say who and what, none that is secret, and the body."""

    headers: Mapping[str, str]
    body: str


class Recipient(Protocol):
    """Who is told of events, one message each."""

    name: str
    identity: str

    def send(self, ticket: Ticket) -> None:
        """Send it; returns when it has arrived."""


def identify(kind: str, url: str) -> str:
    """Name a target in the store: the same from run to run, and nothing that gives its password away.

    >>> identify("webhook", "https://a:old@host/x") == identify("webhook", "https://a:new@host/x")
    True
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    return f"{kind}-{hashlib.sha256(f'{scheme}://{host}{slash}{path}'.encode()).hexdigest()[:16]}"


def has_password(url: str) -> bool:
    """Say whether an address holds a password."""
    return "@" in url.split("://", 1)[-1].split("/", 1)[0]
