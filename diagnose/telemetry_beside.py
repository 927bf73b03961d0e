"""Telemetry beside a trace: why the machines that a diagnosis names are slow, by their own counters.

Enters: a diagnosis, and telemetry of its machines. Leaves: the diagnosis with what the counters say of its causes.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from diagnose.addresses import mask
from diagnose.errors import TraceError
from diagnose.judge.rules import built_in_rules
from diagnose.judge.severity import Severities
from diagnose.judge.telemetry import Place, join_telemetry
from diagnose.judge.telemetry_file import read_telemetry_rules
from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.telemetry import Span, Suspect, Telemetry
from diagnose.model.telemetry_document import TelemetryDocument
from diagnose.model.trace import Ints, Seconds
from diagnose.telemetry.compare import Comparison
from diagnose.telemetry.match import Machines, find_card, match_machines
from diagnose.telemetry.read import read_telemetry

#: Folder of what telemetry shows of each cause, in that of the rules.
FOLDER: Final = "telemetry"
#: Cards that do the same work, below which cards of other work are peers as well.
LEAST_PEERS: Final = 3
#: Before the traced steps a server is asked for so much of their time again, and so much at least: counters need two values.
MARGIN: Final = 0.25
MARGIN_S: Final = 120.0
#: Of the time of a finding so much must have been measured before anybody says that nothing was seen in it.
COVERED: Final = 0.8
#: Times of day lie after 2001 and before 2096; the clock of a job that begins with 0 does not.
_DAYS: Final = (1e9, 4e9)
#: Zones differ by whole quarters of an hour.
_ZONE_S: Final = 900.0
_HOUR_S: Final = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """When each step began; `starts_s` are Unix seconds, shape (n_steps,), and the last entry is the end of the last step.

    None where the trace does not have the time of day. `having` says of causes that come and go which steps have them.
    """

    steps: Ints
    starts_s: Seconds | None
    having: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, steps: Ints, origin_s: Seconds | None, step_s: float, having: Mapping[str, Sequence[int]] | None = None
    ) -> "Times":
        """Make it of the steps of a trace, in any order, when each began in order of steps, and the length of the last."""
        ordered = np.sort(steps)
        if origin_s is None or not len(origin_s) or len(origin_s) != len(ordered):
            return cls(ordered, None)
        is_day = _DAYS[0] < float(origin_s[0]) and float(origin_s[-1]) < _DAYS[1]
        return cls(ordered, np.append(origin_s, origin_s[-1] + step_s) if is_day else None, having or {})

    @property
    def span(self) -> tuple[float, float] | None:
        """When the first step began and the last ended."""
        return None if self.starts_s is None else (float(self.starts_s[0]), float(self.starts_s[-1]))


def add_telemetry(
    diagnosis: Diagnosis,
    source: str | os.PathLike[str] | Sequence[Path] | Telemetry,
    times: Times,
    *,
    severities: Severities,
    report: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Join what telemetry shows to a diagnosis.

    Parameters
    ----------
    source : path, address or Telemetry
        As `read_telemetry` takes it, or what was read already.
    times : Times
        Of the traced steps.
    severities : Severities
        A cause that is less sure is less severe.

    Raises
    ------
    TraceError
        Telemetry cannot be read, or is of other machines, or of another time.
    """
    hosts = sorted(set(diagnosis.hosts or ()) - {""})
    telemetry = source if isinstance(source, Telemetry) else _read(source, times, hosts, report)
    _check_time(telemetry, times)
    machines = match_machines(hosts, telemetry)
    span = times.span or (telemetry.first_s, telemetry.last_s)
    workers = _Workers(diagnosis, machines)
    comparison, places, unseen = Comparison(telemetry), {}, []
    for i, cause in enumerate(diagnosis.causes):
        suspects, during = workers.list_suspects(cause), _find_span(cause, times, span)
        covered = [comparison.cover(suspect, during) for suspect in suspects]
        unseen += [suspect.name for suspect, part in zip(suspects, covered, strict=True) if part == 0.0]
        if suspects:
            # Of what nobody knows when it was there the time was not measured: it may have been a moment of it.
            is_dated = cause.when.pattern is not None and not during.spells
            places[i] = Place(suspects, during, is_dated and min(covered) >= COVERED)
    rules = read_telemetry_rules(built_in_rules() / FOLDER)
    slowdown = diagnosis.features.get("worker.ratio") or 1.0
    causes, findings = join_telemetry(diagnosis.causes, rules, places, comparison, slowdown=slowdown)
    document = TelemetryDocument(
        source=telemetry.name,
        formats=telemetry.formats,
        begin_s=round(span[0], 3),
        end_s=round(span[1], 3),
        hosts=tuple(machines.called),
        missing=machines.missing,
        unread=telemetry.unread,
        findings=findings,
    )
    warnings = [f"telemetry: {warning}" for warning in telemetry.warnings]
    if machines.missing:
        warnings.append(f"telemetry: none of {len(machines.missing)} machines of the job: {_some(machines.missing)}")
    if unseen:
        warnings.append(f"telemetry: no value of {_some(list(dict.fromkeys(unseen)))} from the time of its finding")
    if times.span is None:
        warnings.append(
            "telemetry: the trace does not have the time of day: all of it is taken to be of the traced steps"
        )
    return dataclasses.replace(
        diagnosis,
        causes=severities.rate_all(causes, diagnosis.job.world_size),
        telemetry=document,
        warnings=(*diagnosis.warnings, *warnings),
    )


def _read(
    source: str | os.PathLike[str] | Sequence[Path],
    times: Times,
    hosts: Sequence[str],
    report: Callable[[str], None] | None,
) -> Telemetry:
    """Read the time of the traced steps, and some before."""
    if times.span is None:
        if "://" in str(source):
            raise TraceError(
                "cannot be asked for the time of a trace that does not have the time of day; expected its answers in a file",
                where=mask(str(source)),
            )
        return read_telemetry(source, report=report)
    begin_s, end_s = times.span
    margin_s = max(MARGIN * (end_s - begin_s), MARGIN_S)
    return read_telemetry(source, begin_s=begin_s - margin_s, end_s=end_s + margin_s, hosts=hosts, report=report)


def _check_time(telemetry: Telemetry, times: Times) -> None:
    """Refuse telemetry of another time."""
    if times.span is None or math.isnan(telemetry.first_s):
        return
    begin_s, end_s = times.span
    if telemetry.first_s <= end_s and telemetry.last_s >= begin_s:
        return
    away_s = begin_s - telemetry.last_s if telemetry.last_s < begin_s else end_s - telemetry.first_s
    zone_s = round((begin_s + end_s - telemetry.first_s - telemetry.last_s) / 2.0 / _ZONE_S) * _ZONE_S
    hint = ""
    if 0 < abs(zone_s) <= 14 * _HOUR_S and telemetry.first_s + zone_s <= end_s and telemetry.last_s + zone_s >= begin_s:
        hint = f"; moved by {zone_s / _HOUR_S:+g} h it would fit: are its times of another zone? Set TZ to that of the machines"
    raise TraceError(
        f"is of another time than the trace: {_describe_span(abs(away_s))} {'before' if away_s > 0 else 'after'} the traced steps; "
        f"expected telemetry of the same hours{hint}",
        where=telemetry.name,
    )


def _describe_span(seconds: float) -> str:
    """Say how long a time is."""
    return f"{seconds / _HOUR_S:.1f} h" if seconds >= _HOUR_S else f"{seconds:.0f} s"


def _some(names: Sequence[str]) -> str:
    """Name some."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def _find_span(cause: Cause, times: Times, whole: tuple[float, float]) -> Span:
    """Say when a cause was there, and which time before it, of the traced steps, to compare with."""
    if times.starts_s is None:
        return Span(*whole)
    begin_s, end_s = whole
    onset, recovery = cause.when.onset_step, cause.when.recovery_step
    before = None
    if onset is not None and onset > times.steps[0]:
        begin_s = float(times.starts_s[np.searchsorted(times.steps, onset)])
        # What is over again may have come and gone before, too.
        before = (whole[0], begin_s) if recovery is None else None
    if recovery is not None and times.steps[0] < recovery <= times.steps[-1]:
        end_s = float(times.starts_s[np.searchsorted(times.steps, recovery)])
    at = np.searchsorted(times.steps, times.having.get(cause.cause, ()))
    spells = tuple(zip(times.starts_s[at].tolist(), times.starts_s[at + 1].tolist(), strict=True))
    return Span(begin_s, max(end_s, begin_s), before, spells)


class _Workers:
    """The workers of a job as machines and cards."""

    def __init__(self, diagnosis: Diagnosis, machines: Machines) -> None:
        self._d, self._machines = diagnosis, machines
        n_dp, n_stages = diagnosis.ranks.shape
        self._n_members = max(1, diagnosis.job.world_size // max(n_dp * n_stages, 1))
        names = diagnosis.hosts or ("",) * (n_dp * n_stages)
        self._host = {at: names[at[0] * n_stages + at[1]] for at in np.ndindex(n_dp, n_stages)}
        self._ranks_of: dict[str, list[int]] = {}
        for at, host in self._host.items():
            first = int(diagnosis.ranks[at])
            self._ranks_of.setdefault(host, []).extend((first, first + self._n_members - 1))

    def list_suspects(self, cause: Cause) -> tuple[Suspect, ...]:
        """List the machines that a cause names, the worst first: those of its workers, links, stages, or all."""
        marked, members = self._mark(cause)
        suspected = {self._host[at] for at in marked}
        others = tuple(sorted({name for host, name in self._machines.called.items() if host not in suspected}))
        found: dict[str, list[tuple[int, int]]] = {}
        for at in marked:
            if self._host[at] in self._machines.called:
                found.setdefault(self._host[at], []).append(at)
        suspects = []
        for host, places in found.items():
            cards = [card for at in places for card in self._cards(at, members.get(at))]
            peers = self._peers(places, set(marked))
            is_everyone = all(at in marked for at in self._host if at[1] in {stage for _, stage in places})
            name = self._machines.called[host]
            rest = others or tuple(sorted(set(self._machines.called.values()) - {name}))
            suspects.append(
                Suspect(host, name, tuple(dict.fromkeys(cards)), peers, rest, is_everyone, is_every_host=not others)
            )
        return tuple(suspects)

    def _mark(self, cause: Cause) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
        """Give the places of the workers that a cause names, and of which only one rank is meant."""
        where, d = cause.where, self._d
        dp_of = {int(label): i for i, label in enumerate(d.dp_labels)}
        stage_of = {int(label): i for i, label in enumerate(d.stage_labels)}
        marked = [(dp_of[w.dp], stage_of[w.pp]) for w in where.all_workers if w.dp in dp_of and w.pp in stage_of]
        members = {
            (dp_of[w.dp], stage_of[w.pp]): w.rank
            for w in where.workers
            if (w.tp is not None or w.cp is not None) and w.rank is not None and w.dp in dp_of and w.pp in stage_of
        }
        if not marked:
            everywhere = list(self._host)
            marked = [at for at in everywhere if self._host[at] in where.hosts]
            marked = marked or [at for at in everywhere if int(d.stage_labels[at[1]]) in where.stages] or everywhere
        return list(dict.fromkeys(marked)), members

    def _cards(self, at: tuple[int, int], rank: int | None = None) -> list[str]:
        """List the cards of a worker; none where nobody can tell which."""
        host = self._host[at]
        there = self._machines.cards.get(self._machines.called.get(host, ""), ())
        first = int(self._d.ranks[at])
        ranks = range(first, first + self._n_members) if rank is None else [rank]
        cards = [find_card(one, self._ranks_of[host], there) for one in ranks]
        return [card for card in cards if card is not None] if None not in cards else []

    def _peers(self, places: Sequence[tuple[int, int]], marked: set[tuple[int, int]]) -> tuple[tuple[str, str], ...]:
        """List the cards of workers that nothing suspects: of the same stages, and where these are few of all."""
        stages = {stage for _, stage in places}
        sound = [at for at in self._host if at not in marked and self._host[at] in self._machines.called]
        alike = self._cards_of([at for at in sound if at[1] in stages], marked)
        if len(alike) >= LEAST_PEERS:
            return alike
        # Where everybody is a suspect, as in a group that waits for one of them, they are compared with each other.
        rest = [at for at in self._host if at not in places and self._host[at] in self._machines.called]
        return self._cards_of(sound, marked) or self._cards_of(rest, set(places))

    def _cards_of(self, sound: Sequence[tuple[int, int]], marked: set[tuple[int, int]]) -> tuple[tuple[str, str], ...]:
        """List the cards of some workers; where nobody can tell which they have, those of machines without a suspect."""
        suspected = {self._host[at] for at in marked}
        found: dict[tuple[str, str], None] = {}
        for at in sound:
            name = self._machines.called[self._host[at]]
            cards = self._cards(at)
            if not cards and self._host[at] not in suspected:
                cards = list(self._machines.cards.get(name, ()))
            found |= dict.fromkeys((name, card) for card in cards)
        return tuple(found)
