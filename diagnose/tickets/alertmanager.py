"""Findings to Prometheus Alertmanager: what is open fires until the next run of `diagnose tickets`, what is not is resolved.

Enters: findings as tickets. Leaves: POSTs to its API v2. Alerts are known by their labels, which stay through an episode, so that
posting them again changes nothing; annotations are always the newest.

Source: https://prometheus.io/docs/alerting/latest/alerts_api.
"""

import dataclasses
from collections.abc import Sequence

from diagnose._version import __version__
from diagnose.addresses import mask
from diagnose.model.plain import to_json
from diagnose.model.ticket import Ticket, iso
from diagnose.report.escape import name as safe
from diagnose.tickets.compose import describe
from diagnose.tickets.post import Poster
from diagnose.tickets.target import HttpRequest, identify

ALERT = "TrainingJobSlow"
#: Alertmanager forgets an alert that is not posted again. Runs are a day apart: one that is late must not resolve anything.
FIRES_FOR_S = 36 * 3600.0
#: Alerts in one POST: a few KB each.
CHUNK = 100
_PATH = "/api/v2/alerts"
_UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """A ticket, and whether it fires or is over."""

    ticket: Ticket
    fires: bool

    @property
    def state(self) -> str:
        """Say what is remembered of having told it."""
        return "fires" if self.fires else "resolved"


class Alertmanager:
    """One Alertmanager, at its address or that of its API."""

    def __init__(self, url: str, timeout_s: float) -> None:
        base = url.rstrip("/").removesuffix(_PATH)
        self.name = f"alertmanager {mask(base)}"
        self.identity = identify("alertmanager", base)
        self._poster = Poster(self.name, base + _PATH, timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._poster.close()

    def requests(self, alerts: Sequence[Alert], now_s: float) -> list[tuple[Sequence[Alert], HttpRequest]]:
        """Give what is sent, with the alerts that are in it."""
        headers = {"content-type": "application/json", "user-agent": f"diagnose/{__version__}"}
        some = [alerts[start : start + CHUNK] for start in range(0, len(alerts), CHUNK)]
        return [(few, HttpRequest(headers, to_json([_write_alert(alert, now_s) for alert in few]))) for few in some]

    def send(self, request: HttpRequest) -> None:
        """Post it until it has arrived."""
        self._poster.post(lambda: (request.headers, request.body.encode()))


def _write_alert(alert: Alert, now_s: float) -> dict[str, object]:
    """Write an alert as the API takes it; a label without a value would be dropped, and is `unknown`."""
    finding = alert.ticket.finding
    labels = {
        "alertname": ALERT,
        "cause": finding.cause,
        "severity": finding.severity or _UNKNOWN,
        "owner": finding.owner or finding.who or _UNKNOWN,
        "job_family": finding.family,
        "fingerprint": finding.fingerprint,
    }
    lost = finding.gpu_hours_lost_per_day
    annotations = {
        "summary": alert.ticket.summary,
        "description": "\n".join(describe(alert.ticket)),
        "who": safe(finding.who or _UNKNOWN),
        "gpu_hours_lost_per_day": _UNKNOWN if lost is None else f"{lost:.1f}",
        "ticket": finding.ticket,
        **({"report": alert.ticket.report} if alert.ticket.report else {}),
    }
    written: dict[str, object] = {
        "labels": {key: safe(value) for key, value in labels.items()},
        "annotations": annotations,
        "startsAt": iso(min(finding.opened_at, now_s)),
        "endsAt": iso(now_s + FIRES_FOR_S if alert.fires else now_s),
    }
    return written | ({"generatorURL": alert.ticket.report} if alert.ticket.report else {})
