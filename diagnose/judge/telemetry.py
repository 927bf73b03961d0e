"""What the counters of machines add to the causes found in a trace: why a suspect is slow, or that nothing shows it.

Enters: a `Diagnosis`, suspects by cause, and what reads their metrics. Leaves: causes with a sub-cause and evidence, or, where the
counters of all suspects are like everyone's, with less confidence.

A card that waits for a slow one draws less power and may be less busy: low use is no sign. A sign stands out from peers that do the
same work in the same time, by more than they differ among each other, and was not there before the fault was.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec.structs

from diagnose.judge.telemetry_file import Kind, Sign, TelemetryRule
from diagnose.judge.telemetry_words import describe_flat, describe_sign, list_values, name_device, name_suspect
from diagnose.model.cause import NO_SIGN, Cause, EvidenceItem, Subcause
from diagnose.model.telemetry import METRICS, How, Reading, Span, Suspect
from diagnose.model.telemetry_document import Curve, TelemetryFinding

#: Standard deviations of the peers that a sign stands out by: with 64 peers chance does so once in a hundred metrics.
DEVIATIONS = 4.0
#: Peers with fewer others than this tell little of how they differ: a sign stands out by twice as much.
FEW_PEERS = 3
#: What a sign of a device must have moved by since before the fault, as a part of what it stands out by at least.
MOVED = 0.5
#: Suspects that are looked at, the worst first, before nobody says any more that there is nothing; signs that are told and drawn.
MAX_SUSPECTS = 64
MAX_SIGNS = 3
#: Counters that are told, and drawn, where nothing stands out.
MAX_FLAT = 3
#: Patterns of what comes and goes: it may be over between two samples, and is little in the mean. Nobody says that it is not there.
FLEETING = frozenset({"sporadic", "periodic", "transient"})
#: From this part of what would be a sign on, nobody says that there is none.
NEARLY = 0.5
#: Nobody is less sure than this by counters alone.
LEAST_SURE = 0.05


class Counters(Protocol):
    """Reads metrics of suspects, and gives their courses."""

    def read(self, suspect: Suspect, span: Span, metric: str, how: How, bits: int = 0) -> list[Reading]:
        """Read a metric of each device of a suspect."""

    def draw(self, suspect: Suspect, reading: Reading, span: Span) -> Curve:
        """Give the course of a metric."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a cause is, as machines: its suspects, the span of time in which it was there, and whether that was measured."""

    suspects: tuple[Suspect, ...]
    span: Span
    is_covered: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A sign of a suspect that is there, with what was read."""

    suspect: Suspect
    sign: Sign
    reading: Reading


def judge_telemetry(
    cause: Cause, rule: TelemetryRule, place: Place, counters: Counters, *, slowdown: float
) -> tuple[Cause, TelemetryFinding] | None:
    """Say what counters show of one cause.

    Parameters
    ----------
    slowdown : float
        How many times as long as on its peers the work takes, by the trace; 1 where it does not say.

    Returns
    -------
    tuple of Cause and TelemetryFinding, or None
        The cause with its evidence, and what is drawn of it; None where nothing that would show it was measured.
    """
    read = _Reader(place.span, counters, slowdown)
    shown: dict[str, list[tuple[Kind, list[_Seen]]]] = {}
    suspects = place.suspects[:MAX_SUSPECTS]
    for suspect in suspects:
        if (first := read.find_first(rule, suspect)) is not None:
            shown.setdefault(first[0].kind, []).append(first)
    if not shown:
        # Cards may be numbered otherwise than ranks: by UUID, or as an environment variable says.
        for suspect in suspects:
            first = read.find_first(rule, dataclasses.replace(suspect, cards=())) if suspect.cards else None
            if first is not None and first[1][0].reading.metric.of == "gpu":
                shown.setdefault(first[0].kind, []).append(first)
    if shown:
        # The sub-cause of most suspects; of as many, that of the worst.
        found = max(shown.values(), key=len)
        return _show(cause, found, suspects, read)
    is_near = any(read.is_near(kind, suspect) for kind in rule.kinds for suspect in suspects)
    is_whole = place.is_covered and len(place.suspects) <= MAX_SUSPECTS and cause.when.pattern not in FLEETING
    return None if is_near or not is_whole else _weaken(cause, rule, suspects, read)


class _Reader:
    """Finds signs; each metric of a suspect is read once."""

    def __init__(self, span: Span, counters: Counters, slowdown: float) -> None:
        self.span, self.counters, self.slowdown = span, counters, slowdown
        self._known: dict[tuple[str, tuple[str, ...], str, How, int], list[Reading]] = {}

    def read(self, sign: Sign, suspect: Suspect) -> list[Reading]:
        """Read the metric of a sign, of each device."""
        key = (suspect.host, suspect.cards, sign.metric, sign.how, sign.bits)
        if key not in self._known:
            self._known[key] = self.counters.read(suspect, self.span, sign.metric, sign.how, sign.bits)
        return self._known[key]

    def find_first(self, rule: TelemetryRule, suspect: Suspect) -> tuple[Kind, list[_Seen]] | None:
        """Find the sub-cause of a suspect: what is asked first explains it."""
        return next(((kind, seen) for kind in rule.kinds if (seen := self.find(kind, suspect))), None)

    def find(self, kind: Kind, suspect: Suspect, *, whenever: bool = False) -> list[_Seen]:
        """Find the signs of a sub-cause; none where it is not there. What was not measured speaks neither for it nor against it."""
        every = [self.see(sign, suspect, whenever=whenever) for sign in kind.every if self.is_measured(sign, suspect)]
        some = [seen for sign in kind.some if (seen := self.see(sign, suspect, whenever=whenever)) is not None]
        if not some or any(seen is None for seen in every):
            return []
        return [*(seen for seen in every if seen is not None), *some]

    def is_measured(self, sign: Sign, suspect: Suspect) -> bool:
        """Say whether somebody can tell a sign: it was measured, and of others too, or needs none."""
        return any(
            (reading.n_peers and not _is_everyone(sign, suspect))
            or sign.alone is not None
            or not math.isnan(reading.before)
            for reading in self.read(sign, suspect)
        )

    def is_near(self, kind: Kind, suspect: Suspect) -> bool:
        """Say whether a suspect is not like everyone else, though it is no sign: it was so before, or is half of one."""
        if self.find(kind, suspect, whenever=True):
            return True
        return any(
            reading.value >= NEARLY * sign.alone
            for sign in kind.some
            if sign.alone is not None and sign.above and (sign.is_shared or _is_everyone(sign, suspect))
            for reading in self.read(sign, suspect)
        )

    def see(self, sign: Sign, suspect: Suspect, *, whenever: bool = False) -> _Seen | None:
        """Find a sign of a suspect, on the device that shows it most; None where it is not there, or was before, too."""
        there = [one for one in self.read(sign, suspect) if self._stands_out(sign, one, suspect, whenever=whenever)]
        if not there:
            return None
        return _Seen(suspect, sign, max(there, key=lambda one: one.value if sign.above else -one.value))

    def _stands_out(self, sign: Sign, reading: Reading, suspect: Suspect, *, whenever: bool) -> bool:
        """Say whether a reading is a sign."""
        if (sign.at_least is not None and reading.value < sign.at_least) or (
            sign.at_most is not None and reading.value > sign.at_most
        ):
            return False
        up = 1.0 if sign.above else -1.0
        if sign.alone is not None and (sign.is_shared or _is_everyone(sign, suspect) or not reading.n_peers):
            return up * (reading.value - sign.alone) >= 0
        if not whenever and not math.isnan(reading.before):
            least = self._least(sign, reading.before)
            moved = up * (reading.value - reading.before)
            if moved < MOVED * least:
                return False
            if (_is_everyone(sign, suspect) or not reading.n_peers) and moved >= 2.0 * least > 0.0:
                return True  # nobody is there to compare with but itself
        if sign.how == "wavering" and _is_everyone(sign, suspect):
            return False  # how steady a card is follows from its work, which nobody else does
        if reading.n_peers:
            least = max(self._least(sign, reading.peers, whenever=whenever), DEVIATIONS * reading.spread)
            least *= 2.0 if reading.n_peers < FEW_PEERS and sign.how not in {"code", "growth"} else 1.0
            return up * (reading.value - reading.peers) >= least and reading.value != reading.peers
        return False

    def _least(self, sign: Sign, usual: float, *, whenever: bool = False) -> float:
        """Say by how much a sign stands out at least; `whenever`: or half explains the slowdown."""
        explained = (NEARLY if whenever else 1.0) * sign.of_slowdown
        part = max(sign.by_ratio, explained * (1.0 - 1.0 / max(self.slowdown, 1.0)))
        return max(sign.by, part * abs(usual))


def _is_everyone(sign: Sign, suspect: Suspect) -> bool:
    """Say whether all that have the metric of a sign are suspects, so that peers are no measure."""
    return suspect.is_everyone if METRICS[sign.metric].of == "gpu" else suspect.is_every_host


def _show(
    cause: Cause, found: Sequence[tuple[Kind, list[_Seen]]], suspects: Sequence[Suspect], read: _Reader
) -> tuple[Cause, TelemetryFinding]:
    """Give a cause its sub-cause."""
    kind, seen = found[0]
    told = seen[:MAX_SIGNS]
    first = told[0].reading
    says = "; ".join(describe_sign(one.sign, one.reading) for one in told)
    others = len(found) - 1
    more = f"; {others} more of {len(suspects)} suspects alike" if others else ""
    text = (
        f"{name_device(first)} is {kind.title}: {says}{more}"
        if _is_state(kind.title)
        else f"{name_device(first)}, {kind.title}: {says}{more}"
    )
    evidence = EvidenceItem(
        "telemetry", f"{cause.cause}/{kind.kind}", text, list_values([(one.sign, one.reading) for one in told])
    )
    hosts = tuple(dict.fromkeys(signs[0].suspect.name for _, signs in found))
    drawn = sorted(told, key=lambda one: one.reading.metric.kind == "code")  # a set of flags is a poor picture
    curves = tuple(read.counters.draw(one.suspect, one.reading, read.span) for one in drawn)
    return (
        msgspec.structs.replace(
            cause,
            title=f"{cause.title}, {kind.title}",
            check=kind.check,
            evidence=(evidence, *cause.evidence),
            subcause=Subcause(kind.kind, kind.title, hosts),
        ),
        TelemetryFinding(cause=cause.cause, kind=kind.kind, title=kind.title, hosts=hosts, curves=curves),
    )


def _is_state(title: str) -> bool:
    """Say whether a title says how something is: "held back by heat"."""
    return title.startswith("held back")


def _weaken(
    cause: Cause, rule: TelemetryRule, suspects: Sequence[Suspect], read: _Reader
) -> tuple[Cause, TelemetryFinding] | None:
    """Take confidence from a cause whose suspects are like everyone else by all that was measured.

    The odds fall by the part of such faults that would have shown: Bayes' rule, with faults elsewhere leaving these counters alone.
    """
    measured = [kind for kind in rule.kinds if all(_was_looked_for(kind, suspect, read) for suspect in suspects)]
    part = sum(kind.part for kind in measured)
    if not suspects:
        return None
    odds = cause.confidence / max(1.0 - cause.confidence, 1e-9) * (1.0 - part)
    confidence = min(cause.confidence, max(round(odds / (1.0 + odds), 4), LEAST_SURE))
    if round(cause.confidence - confidence, 2) <= 0:
        return None
    flat = _list_flat(measured, suspects[0], read)
    is_of_cards = any(one.metric.of == "gpu" for _, one in flat)
    where = ", ".join(name_suspect(suspect) if is_of_cards else suspect.name for suspect in suspects[:2])
    where += f" and {len(suspects) - 2} more" if len(suspects) > 2 else ""
    figures = "; ".join(describe_flat(sign, one) for sign, one in flat)
    text = (
        f"surer by the trace alone ({cause.confidence:.2f}): nothing in the counters of {where} explains it ({figures}); "
        f"{rule.flat}"
    )
    values: dict[str, int | float | None] = {"confidence_before": cause.confidence, "shown_part": round(part, 4)}
    values |= list_values(flat)
    evidence = EvidenceItem("telemetry", f"{cause.cause}{NO_SIGN}", text, values)
    curves = tuple(read.counters.draw(suspects[0], one, read.span) for _, one in flat)
    hosts = tuple(dict.fromkeys(suspect.name for suspect in suspects))
    return (
        msgspec.structs.replace(cause, confidence=confidence, evidence=(*cause.evidence, evidence)),
        TelemetryFinding(cause=cause.cause, kind=None, title="", hosts=hosts, curves=curves),
    )


def _was_looked_for(kind: Kind, suspect: Suspect, read: _Reader) -> bool:
    """Say whether a sub-cause would have been seen: a sign that it must have was measured, or one that it may have."""
    return any(read.is_measured(sign, suspect) for sign in (*kind.every, *kind.some))


def _list_flat(kinds: Sequence[Kind], suspect: Suspect, read: _Reader) -> list[tuple[Sign, Reading]]:
    """List the metrics that say most plainly that nothing stands out, one a sub-cause, those of the commonest first."""
    found: dict[str, tuple[Sign, Reading]] = {}
    for kind in sorted(kinds, key=lambda kind: -kind.part):
        signs = sorted((*kind.every, *kind.some), key=lambda sign: sign.how != "median")
        for sign in signs:
            readings = [one for one in read.read(sign, suspect) if one.n_peers or sign.alone is not None]
            if readings and sign.how in {"median", "rate"}:
                most = max(readings, key=lambda one: one.value if sign.above else -one.value)
                found.setdefault(sign.metric, (sign, most))
                break
    return list(found.values())[:MAX_FLAT]


def join_telemetry(
    causes: Sequence[Cause],
    rules: Mapping[str, TelemetryRule],
    places: Mapping[int, Place],
    counters: Counters,
    *,
    slowdown: float,
) -> tuple[tuple[Cause, ...], tuple[TelemetryFinding, ...]]:
    """Join what counters show to the causes found; `places` are by position of the cause, `slowdown` is that of slow workers."""
    joined, findings = [], []
    for i, cause in enumerate(causes):
        said = None
        if i in places and cause.cause in rules:
            said = judge_telemetry(cause, rules[cause.cause], places[i], counters, slowdown=slowdown)
        joined.append(cause if said is None else said[0])
        findings += [] if said is None else [said[1]]
    return tuple(joined), tuple(findings)
