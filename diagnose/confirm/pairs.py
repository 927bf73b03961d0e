"""Tell a bad machine from a bad link: what is slow with everybody is the machine's, what is slow with one is between the two.

Enters: what the machines of all pairs sent to each other. Leaves: a judgement on each port of a suspect, and the slow links.
"""

import dataclasses
from collections.abc import Sequence

from diagnose.confirm.catalogue import TESTS
from diagnose.model.confirmation import HostResult, Outcome, Tested

#: Pairs without which nobody knows what is usual.
_FEWEST_PAIRS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """What one pair sent over one port."""

    #: `server`, `client`: the machines.
    server: str
    client: str
    #: Of both: "mlx5_0", or "TCP".
    port: str
    #: Of what is usual in this run: 1 where it is as fast.
    part: float
    #: `gbit_s`, `usual_gbit_s`: the same in Gb/s.
    gbit_s: float
    usual_gbit_s: float

    @property
    def is_slow(self) -> bool:
        """True where it is slower than sound pairs are."""
        return self.part <= 1.0 - TESTS["network"].slow

    @property
    def is_sound(self) -> bool:
        """True where it is as fast as others."""
        return self.part >= 1.0 - TESTS["network"].sound

    def other(self, host: str) -> str:
        """Name the partner of a machine."""
        return self.client if host == self.server else self.server


def read_pairs(results: Sequence[HostResult]) -> tuple[Sent, ...]:
    """Collect what was sent, beside what is usual: the upper quartile of all pairs, which stands though half of them are slow."""
    found = []
    for result in results:
        for one in result.measured:
            server, _, port = one.of.rpartition(" ")
            if one.test == "network" and one.value is not None and server and server != result.host:
                found.append((server, result.host, port, one.value))
    # Ports of one machine may be of two kinds: each is compared with the same port of other pairs.
    usual = {port: _upper_quartile([row[3] for row in found if row[2] == port]) for port in {row[2] for row in found}}
    few = {port for port in usual if len({row[:2] for row in found if row[2] == port}) < _FEWEST_PAIRS}
    return tuple(
        Sent(server, client, port, value / usual[port], value, usual[port])
        for server, client, port, value in sorted(found)
        if port not in few and usual[port] > 0
    )


def judge_pairs(host: str, pairs: Sequence[Sent]) -> list[Tested]:
    """Judge each port of a machine by all its partners that are sound themselves."""
    found = []
    for port in sorted({one.port for one in pairs if host in (one.server, one.client)}):
        own = [one for one in pairs if one.port == port and host in (one.server, one.client)]
        used = [one for one in own if not _is_bad(one.other(host), pairs, port, without=host)] or own
        found.append(_judge_port(host, port, used))
    return found


def find_slow_links(pairs: Sequence[Sent]) -> tuple[Sent, ...]:
    """List the pairs that are slow while both machines are sound with others on the same port."""

    def is_sound(host: str, one: Sent) -> bool:
        others = [
            each for each in pairs if each.port == one.port and host in (each.server, each.client) and each != one
        ]
        return bool(others) and any(each.is_sound for each in others)

    return tuple(one for one in pairs if one.is_slow and is_sound(one.server, one) and is_sound(one.client, one))


def _judge_port(host: str, port: str, own: Sequence[Sent]) -> Tested:
    """Judge one port of a machine."""
    n_slow, n_sound = sum(one.is_slow for one in own), sum(one.is_sound for one in own)
    best = max(own, key=lambda one: one.part)
    what = f"{port} sends {best.gbit_s:.3g} Gb/s at best, and {best.usual_gbit_s:.3g} is usual here"
    outcome: Outcome = "unclear"
    if n_slow == len(own) and len({one.other(host) for one in own}) > 1:
        outcome, what = "confirmed", f"{what}: slow with each of {len(own)} partners"
    elif n_slow == len(own):
        what = f"{what}: slow with {own[0].other(host)}, and no other partner answered: it may be the link"
    elif n_sound:
        outcome = "cleared"
        slow = ", ".join(one.other(host) for one in own if one.is_slow)
        what = f"{what}: slow with {slow} only" if slow else what
    return Tested(
        test="network",
        of=port,
        outcome=outcome,
        value=best.gbit_s,
        controls=best.usual_gbit_s,
        n_controls=len({one.other(host) for one in own}),
        text=what,
    )


def _is_bad(host: str, pairs: Sequence[Sent], port: str, *, without: str) -> bool:
    """Say whether a partner is slow with everybody else, so that its pair says nothing of another machine."""
    others = [
        one
        for one in pairs
        if one.port == port and host in (one.server, one.client) and without not in (one.server, one.client)
    ]
    return len(others) > 1 and all(one.is_slow for one in others)


def _upper_quartile(values: Sequence[float]) -> float:
    """Give the value that a quarter of all reach or pass."""
    return sorted(values)[(3 * (len(values) - 1) + 3) // 4] if values else 0.0
