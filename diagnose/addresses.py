"""Addresses of services: whether they are any, what of them may be shown, and where their secrets are kept.

Enters: an address as the user gives it, or the name of a secret. Leaves: it, checked, or a name without a secret; the secret.
"""

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from diagnose.errors import UsageError

HIDDEN: Final = "***"


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


def find_source(option: str, given: str) -> str:
    """Give an address as it is, and a path whole, so that another process finds it.

    Raises
    ------
    UsageError
        There is no such file or folder, or it is no address.
    """
    if "://" in given:
        return check_web_address(option, given)
    if not Path(given).exists():
        raise UsageError(f"{option}: {given} does not exist")
    return str(Path(given).resolve())


def read_secret(name: str) -> str | None:
    """Read a secret from an environment variable, or from the file that the one with `_FILE` behind it names; None: neither is set.

    Raises
    ------
    UsageError
        The file cannot be read.
    """
    if found := os.environ.get(name):
        return found
    file = os.environ.get(f"{name}_FILE")
    if not file:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{name}_FILE: cannot read {file}: {why}") from None


def holds_password(url: str) -> bool:
    """Say whether the address of a database holds a password.

    >>> holds_password("postgresql://me:pass@db/jobs"), holds_password("postgresql://me@db/jobs")
    (True, False)
    """
    return "@" in url and ":" in url.split("://", 1)[-1].rsplit("@", 1)[0]


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
