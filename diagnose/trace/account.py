"""The account of a conversion as the metadata of the converted file keeps it.

Enters: an `Account` and warnings, or the JSON object that was made of them. Leaves: the other of the two.
"""

import dataclasses
import math
from typing import Any

from diagnose.model.capabilities import CAPABILITIES
from diagnose.model.recording import Account, ClockOffset, Dropped, HostTime, Unobserved


def write_account(account: Account, warnings: tuple[str, ...]) -> dict[str, Any]:
    """Give the JSON object for the metadata."""
    unsaid = [dataclasses.asdict(entry) for entry in account.unobserved]
    host = {} if account.host is None else {"host": account.host.to_dict()}
    return account.to_dict() | {"unsaid": unsaid, "warnings": list(warnings)} | host


def read_account(found: dict[str, Any]) -> tuple[Account, tuple[str, ...]]:
    """Read the JSON object of the metadata, also one of an earlier version, which has causes where this one has what is lacking.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        It is not what `write_account` gives.
    """
    account = Account(
        producer=str(found["producer"]),
        dropped=tuple(Dropped(str(e["what"]), int(e["n"]), str(e["reason"])) for e in found["dropped"]),
        unobserved=tuple(
            Unobserved(
                str(e["what"]),
                str(e["reason"]),
                # A word that is not known is a later version's.
                tuple(name for name in e.get("lacks") or () if name in CAPABILITIES),
                tuple(str(cause) for cause in e["causes"]),
            )
            for e in found["unsaid"]
        ),
        offsets=tuple(
            ClockOffset(
                str(e["of"]),
                float(e["offset_s"]),
                math.nan if e["spread_s"] is None else float(e["spread_s"]),
                str(e["how"]),
            )
            for e in found["offsets"]
        ),
        host=HostTime.read(found["host"]) if found.get("host") else None,
    )
    return account, tuple(str(warning) for warning in found["warnings"])
