"""All features that a job can have: by name, each with what it reads as, known before any job is read; and measured.

Enters: what was taken apart, replayed and timed. Leaves: `Features`, with every name of the catalogue and no other.

A new file of features is imported here and gets one line in `list_groups`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from diagnose.features import (
    contention,
    experts,
    gains,
    job,
    members,
    network,
    periodicity,
    sequences,
    stages,
    stalls,
    workers,
)
from diagnose.model.components import Breakdown, Gains
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Trace
from diagnose.model.transfers import Transfers
from diagnose.model.whatif import WhatIf


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What features are measured on: one job, its evidence rows on the one clock of all times."""

    trace: Trace
    what_if: WhatIf
    breakdown: Breakdown
    gains: Gains
    transfers: Transfers

    @property
    def documents_fit(self) -> Feature:
        """How well the documents predict the times."""
        return sequences.fit_tokens(self.breakdown, self.trace)


class FeatureGroup(NamedTuple):
    """The features of one file."""

    reads_as: dict[str, str]
    """Name -> one sentence on what values mean, and when they mislead."""
    measure: Callable[[Measured], Features]
    """Gives every name of `reads_as`, measured or missing with its reason."""


def _measure_workers(m: Measured) -> Features:
    """Measure slow workers; whether it is one member of a worker matters to what else it may be."""
    n_members = members.count_members(m.trace, m.breakdown)
    return workers.measure_workers(m.breakdown, m.what_if, n_members=n_members, hosts=m.trace.hosts)


def list_groups() -> tuple[FeatureGroup, ...]:
    """List the groups; those of gains are of the components that there are when it is asked."""
    return (
        FeatureGroup(job.READS_AS, lambda m: job.measure_job(m.what_if, m.breakdown, m.trace.job)),
        FeatureGroup(gains.list_gains(), lambda m: gains.measure_gains(m.breakdown, m.gains)),
        FeatureGroup(stages.READS_AS, lambda m: stages.measure_stages(m.breakdown, m.trace.n_stages)),
        FeatureGroup(workers.READS_AS, _measure_workers),
        FeatureGroup(members.READS_AS, lambda m: members.measure_members(m.trace, m.breakdown)),
        FeatureGroup(sequences.READS_AS, lambda m: sequences.measure_sequences(m.breakdown, m.trace)),
        FeatureGroup(experts.READS_AS, lambda m: experts.measure_experts(m.breakdown, m.trace, m.documents_fit)),
        FeatureGroup(stalls.READS_AS, lambda m: stalls.measure_stalls(m.breakdown, m.trace.evidence, m.trace.job)),
        FeatureGroup(contention.READS_AS, lambda m: contention.measure_contention(m.breakdown, m.gains)),
        FeatureGroup(
            network.READS_AS,
            lambda m: network.measure_network(m.transfers, m.breakdown, on_one_cpu=m.trace.is_on_one_cpu),
        ),
        FeatureGroup(
            periodicity.READS_AS,
            lambda m: periodicity.measure_periodicity(m.breakdown, m.gains, m.trace.evidence),
        ),
    )


def list_features() -> dict[str, str]:
    """List all features there are, by name, each with one sentence on what it reads as.

    >>> list_features()["slowdown"][:16]
    'S, the step time'
    """
    return dict(sorted((name, text) for group in list_groups() for name, text in group.reads_as.items()))


def measure_features(measured: Measured) -> Features:
    """Measure every feature of a job; one that cannot be measured is missing with its reason."""
    found: Features = {}
    for group in list_groups():
        found |= group.measure(measured)
    return found
