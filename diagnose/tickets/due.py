"""Which findings are worth a ticket, and what of them a target has not been told yet.

Enters: findings, who knows of them, and the keys of what was told. Leaves: the findings to tell of, the costliest first.
"""

import dataclasses
from collections.abc import Collection, Iterable

from diagnose.model.ticket import Ack, Finding


@dataclasses.dataclass(frozen=True, slots=True)
class Threshold:
    """What a finding must cost a day, and how sure it must be, to be worth somebody's time."""

    gpu_hours: float
    confidence: float

    def passes(self, finding: Finding) -> bool:
        """Say whether a finding is worth a ticket; one whose cost is not known is, unless cost is asked for."""
        cost = finding.gpu_hours_lost_per_day or 0.0
        return cost >= self.gpu_hours and finding.confidence >= self.confidence


def open_findings(findings: Iterable[Finding], acks: dict[str, Ack], threshold: Threshold) -> list[Finding]:
    """Give what is open, worth a ticket, and nobody knows of; the costliest first."""
    found = [one for one in findings if one.state == "open" and one.fingerprint not in acks and threshold.passes(one)]
    return sorted(found, key=by_cost)


def by_cost(finding: Finding) -> tuple[float, str]:
    """Put the costliest first."""
    return -(finding.gpu_hours_lost_per_day or 0.0), finding.fingerprint


def find_due(candidates: Iterable[Finding], sent: Collection[str], limit: int | None) -> list[Finding]:
    """Give the findings of whose last event a target has not heard, at most so many."""
    return [finding for finding in candidates if finding.key not in sent][:limit]


def find_fixed(findings: Iterable[Finding], told: Collection[str]) -> list[Finding]:
    """Give what is fixed of those of whose tickets a target has heard."""
    return sorted((one for one in findings if one.state == "fixed" and one.ticket in told), key=by_cost)
