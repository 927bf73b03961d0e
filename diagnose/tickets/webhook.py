"""Tickets to a webhook, one POST each, signed as Standard Webhooks says.

Enters: tickets. Leaves: POSTs whose body is the JSON of the ticket. `webhook-id` and `Idempotency-Key` are the key of the
ticket: whoever gets it twice knows it by that.

Source: Standard Webhooks, https://www.standardwebhooks.com: `webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over
`ID.TIMESTAMP.BODY`, its key the base64 behind `whsec_`.
"""

import base64
import binascii
import hashlib
import hmac
import time

from diagnose._version import __version__
from diagnose.addresses import mask, read_secret
from diagnose.errors import UsageError
from diagnose.model.plain import to_json
from diagnose.model.ticket import Ticket
from diagnose.tickets.post import Poster
from diagnose.tickets.target import HttpRequest, identify

#: Environment variable with the secret that signs; with `_FILE` behind it, the name of a file that has it.
SECRET = "DIAGNOSE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
_PREFIX = "whsec_"
#: Stands for headers that every try has its own of.
_LATER = "made when it is sent"
#: Bytes of a key, as Standard Webhooks wants them.
_LEAST_BYTES, _MOST_BYTES = 24, 64
_HOW = f'expected {_PREFIX} and base64 of {_LEAST_BYTES} to {_MOST_BYTES} bytes: echo "{_PREFIX}$(openssl rand -base64 32)"'


class Webhook:
    """One webhook; `key` signs, and is None where nothing will be sent."""

    def __init__(self, url: str, timeout_s: float, key: bytes | None) -> None:
        self.name = f"webhook {mask(url)}"
        self.identity = identify("webhook", url)
        self._key = key
        self._poster = Poster(self.name, url, timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._poster.close()

    def request(self, ticket: Ticket) -> HttpRequest:
        """Give what is sent, but for the time and the signature."""
        key = ticket.finding.key
        headers = {
            "content-type": "application/json",
            "user-agent": f"diagnose/{__version__}",
            "webhook-id": key,
            "idempotency-key": key,
            "webhook-timestamp": _LATER,
            "webhook-signature": _LATER,
        }
        return HttpRequest(headers, to_json(ticket.to_document()))

    def send(self, ticket: Ticket) -> None:
        """Post a ticket until it has arrived."""
        request = self.request(ticket)
        body = request.body.encode()

        def make_request() -> tuple[dict[str, str], bytes]:
            at = str(int(time.time()))
            assert self._key is not None, "read_key comes first"
            signature = sign(self._key, ticket.finding.key, at, body)
            return {**request.headers, "webhook-timestamp": at, "webhook-signature": signature}, body

        self._poster.post(make_request)


def sign(key: bytes, message: str, timestamp: str, body: bytes) -> str:
    """Sign a message.

    >>> sign(b"0" * 24, "1", "1700000000", b"{}")
    'v1,N2AktWXxiYi9KdG+t4mUyygam7Fmc5flnZR+WAHYisg='
    """
    content = f"{message}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def read_key() -> bytes:
    """Read the key that signs from the environment, or the file that it names.

    Raises
    ------
    UsageError
        There is none, or it is none; the message does not show it.
    """
    text = read_secret(SECRET)
    if not text:
        raise UsageError(
            f"--webhook needs a secret to sign with in {SECRET}, or in a file named by {SECRET}_FILE; {_HOW}"
        )
    text = text.strip()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else None
    except binascii.Error:
        key = None
    if key is None:
        raise UsageError(f"{SECRET}: what is there is no secret of Standard Webhooks; {_HOW}") from None
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise UsageError(f"{SECRET}: it has {len(key)} bytes; {_HOW}")
    return key
