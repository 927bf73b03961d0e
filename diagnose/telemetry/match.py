"""Which machine and which cards of the telemetry each worker of a job is.

Enters: `Telemetry`, and the hosts and ranks of a job. Leaves: a `Machines`. Names are compared whole, then without their domain; a
card is the rank's place on its machine. What cannot be told is not guessed.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from diagnose.errors import TraceError
from diagnose.model.telemetry import Telemetry

#: Names listed in an error.
_NAMED = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Machines:
    """The machines of a job that telemetry has."""

    #: The name of each in the telemetry, by its name in the trace.
    called: Mapping[str, str]
    #: Machines of the job that the telemetry does not have, sorted.
    missing: tuple[str, ...]
    #: Cards of each machine, by its name in the telemetry, in order.
    cards: Mapping[str, tuple[str, ...]]


def match_machines(hosts: Collection[str], telemetry: Telemetry) -> Machines:
    """Find the machines of a job in telemetry.

    Raises
    ------
    TraceError
        It has none of them; the message lists those of both.
    """
    wanted, there = sorted(set(hosts) - {""}), telemetry.hosts
    if not wanted:
        raise TraceError(
            f"the trace does not say which machine each rank ran on, and telemetry is of {_list(there)}; expected a column "
            "host, or a job whose recorder writes it",
            where=telemetry.name,
        )
    exact = {name.lower(): name for name in there}
    short = _unique(there)
    short_wanted = _unique(wanted)
    called = {}
    for host in wanted:
        found = exact.get(host.lower())
        if found is None and _short(host) in short_wanted:
            found = short.get(_short(host))
        if found is not None:
            called[host] = found
    if not called:
        raise other_machines(there, wanted, telemetry.name)
    cards: dict[str, dict[str, None]] = {}
    for one in telemetry.series:
        if one.metric.of == "gpu":
            cards.setdefault(one.host, {})[one.device] = None
    return Machines(
        called,
        tuple(host for host in wanted if host not in called),
        {host: tuple(sorted(devices, key=by_number)) for host, devices in cards.items()},
    )


def other_machines(there: Collection[str], wanted: Collection[str], name: str) -> TraceError:
    """Say that telemetry is of other machines than a job, with those of both."""
    return TraceError(
        f"is of other machines than the job: it has {_list(there) or 'none'}; the job ran on {_list(wanted)}: give the "
        "telemetry of these, or a label or file name that says theirs",
        where=name,
    )


def find_card(rank: int, ranks_of_host: Sequence[int], cards: Sequence[str]) -> str | None:
    """Say which card a rank has; None where ranks do not fill machines one after the other, so that nobody can tell.

    Parameters
    ----------
    rank : int
        Global rank.
    ranks_of_host : sequence of int
        Global ranks that are known to run on its machine, itself among them.
    cards : sequence of str
        Cards of that machine, in order.

    >>> find_card(11, [8, 11], ["0", "1", "2", "3", "4", "5", "6", "7"]), find_card(11, [3, 11], ["0", "1"])
    ('3', None)
    """
    if not cards or any(other // len(cards) != rank // len(cards) for other in ranks_of_host):
        return None
    return cards[rank % len(cards)]


def _short(name: str) -> str:
    """Give a name without its domain; an address stays whole."""
    return name.lower() if name.replace(".", "").isdecimal() else name.lower().split(".", 1)[0]


def _unique(names: Collection[str]) -> dict[str, str]:
    """Give names by their short form, those that share one left out."""
    by_short: dict[str, list[str]] = {}
    for name in names:
        by_short.setdefault(_short(name), []).append(name)
    return {short: found[0] for short, found in by_short.items() if len(found) == 1}


def by_number(device: str) -> tuple[int, str]:
    """Sort cards by number, and others behind them.

    >>> sorted(["10", "²", "2"], key=by_number)
    ['2', '10', '²']
    """
    return (int(device), "") if device.isdecimal() else (1 << 30, device)


def _list(names: Collection[str]) -> str:
    """List some names."""
    shown = sorted(names)[:_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
