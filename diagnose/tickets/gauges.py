"""The fleet as gauges, for node_exporter's textfile collector.

Enters: a census of the store, and what is open. Leaves: text in Prometheus' exposition format.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from diagnose.model.census import Census
from diagnose.model.ticket import Finding
from diagnose.report.escape import name as safe

_SEVERITIES = ("critical", "high", "medium", "low", "unknown")
#: Prometheus counts in seconds.
_HOUR_S = 3600.0


def render_gauges(census: Census, findings: Iterable[Finding], acked: Collection[str]) -> bytes:
    """Write the gauges of a fleet from all its findings and the fingerprints that somebody knows of.

    The same store gives the same bytes: no moment of writing is in it.
    """
    registry = CollectorRegistry()

    def show(name: str, meaning: str, values: dict[str, float], label: str) -> None:
        gauge = Gauge(name, meaning, [label], registry=registry)
        for value, number in sorted(values.items()):
            gauge.labels(safe(value)).set(number)

    def show_one(name: str, meaning: str, value: float) -> None:
        Gauge(name, meaning, registry=registry).set(value)

    verdicts = dict.fromkeys(("healthy", "noisy", "straggling", "inconclusive"), 0) | census.jobs_by_verdict
    show("diagnose_jobs", "Jobs in the store that were diagnosed, by verdict.", dict(verdicts), "verdict")
    show_one("diagnose_jobs_failed", "Jobs in the store without a diagnosis.", sum(census.failed_by_kind.values()))
    analysed, wasted = census.gpu_hours_analysed * _HOUR_S, census.gpu_hours_wasted * _HOUR_S
    show_one("diagnose_analysed_gpu_seconds", "GPU time of the steps analysed.", analysed)
    show_one("diagnose_wasted_gpu_seconds", "GPU time lost in the steps analysed.", wasted)
    by_cause = {cause: hours * _HOUR_S for cause, hours in census.wasted_by_cause.items()}
    show("diagnose_cause_wasted_gpu_seconds", "GPU time lost in the steps analysed, by cause.", by_cause, "cause")
    still = [finding for finding in findings if finding.state == "open"]
    told = Counter(finding.severity or "unknown" for finding in still if finding.fingerprint not in acked)
    severities = dict.fromkeys(_SEVERITIES, 0) | told
    show("diagnose_open_findings", "Findings that are open and not acknowledged.", dict(severities), "severity")
    n_acked = sum(finding.fingerprint in acked for finding in still)
    show_one("diagnose_acked_findings", "Findings that are open and acknowledged.", n_acked)
    if census.night_ended_at is not None:
        meaning = "When the last triage ended, seconds since 1970."
        show_one("diagnose_last_night_end_timestamp_seconds", meaning, census.night_ended_at)
    return generate_latest(registry)
