"""Where tickets go, and what is shown of its address: never a secret.

Enters: an address as the user gives it. Leaves: a name that can be shown and kept, and requests.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from diagnose.errors import ServiceError, UsageError
from diagnose.model.ticket import Ticket

HIDDEN = "***"


class RefusedError(ServiceError):
    """A target did not take a message; the next may be another matter."""


class SilentError(ServiceError):
    """A target does not answer, or says that it cannot now; neither will it for the next message."""


@dataclasses.dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is sent: headers that say who and what, none that is secret, and the body."""

    headers: Mapping[str, str]
    body: str


class Messages(Protocol):
    """A target that is told of events, one message each."""

    name: str
    identity: str

    def request(self, ticket: Ticket) -> HttpRequest:
        """Give what would be sent, for who wants to see it first."""

    def send(self, ticket: Ticket) -> None:
        """Send it; returns when it has arrived."""


def check_web_address(option: str, url: str) -> str:
    """Refuse what is no address of a web service.

    Raises
    ------
    UsageError
        It is none; the message does not show it.
    """
    try:
        parts = urlsplit(url)
        is_fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_fine = False
    if not is_fine or any(char.isspace() or not char.isprintable() for char in url):
        raise UsageError(f"{option}: expected an address such as https://host/path")
    return url


def mask(url: str) -> str:
    """Show a web address without anything in it that may be secret.

    >>> mask("https://me:pass@hooks.example:8443/services/T00/xyz?token=1"), mask("http://am:9093")
    ('https://***@hooks.example:8443/***', 'http://am:9093')
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    user = f"{HIDDEN}@" if "@" in parts.netloc else ""
    rest = f"/{HIDDEN}" if parts.path.strip("/") or parts.query or parts.fragment else ""
    return f"{parts.scheme}://{user}{host}{port}{rest}"


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
