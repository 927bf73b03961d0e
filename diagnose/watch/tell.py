"""Tell what became of episodes: each event once to everybody, also after a kill.

Enters: jobs as they are kept in the store. Leaves: lines to print, and messages to the receivers of tickets. What was told is
remembered in the store beside them, by target, so that what is killed in between is told again under the same key, as tickets are.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Sequence

from diagnose.model.fingerprint import HOURS_A_DAY, find_machine
from diagnose.model.live import EpisodeEvent, LiveEvent
from diagnose.model.pages import live_page_path
from diagnose.model.plain import to_plain
from diagnose.model.ticket import Finding, JobWithFinding, Ticket, iso
from diagnose.report.live_words import describe_event, describe_others
from diagnose.tickets.alertmanager import Alert, Alertmanager
from diagnose.tickets.compose import summarize, write_title
from diagnose.tickets.deliver import Sent, send_alerts, send_messages
from diagnose.tickets.target import Recipient
from diagnose.triage.acks import list_acks
from diagnose.triage.deliveries import Deliveries
from diagnose.triage.store import Store
from diagnose.watch.episodes import Course, Told
from diagnose.watch.job import JobState

#: The name under which is kept what was printed.
OUTPUT = "watch-output"
#: A target that was never told of an episode hears of it when it is over, too, unless it is over for so long.
LATE_S = 86_400.0
#: After a target did not answer it is left alone for so long, and longer each time.
PAUSE_S = 60.0
MAX_PAUSE_S = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeFinding(Finding):
    """An episode as what tickets tell of."""

    episode: str = ""
    grown_at: float | None = None
    told: Told | None = None

    @property
    def ticket(self) -> str:
        """Name the ticket of this episode."""
        return f"{self.episode}-{int(self.opened_at)}"

    @property
    def latest_event(self) -> str:
        """Say what happened."""
        return "fixed" if self.state == "fixed" else "opened" if self.grown_at is None else "grew"

    @property
    def key(self) -> str:
        """Name the message about it."""
        when = "" if self.grown_at is None or self.state == "fixed" else f"-{int(self.grown_at)}"
        return f"{self.ticket}-{self.latest_event}{when}"


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """An event of an episode, as a ticket and as a line."""

    ticket: Ticket
    line: LiveEvent


class Teller:
    """Tells receivers, each with what it was told; the first of them prints."""

    def __init__(
        self,
        store: Store,
        write: Callable[[LiveEvent], None],
        messengers: Sequence[Recipient] = (),
        alertmanagers: Sequence[Alertmanager] = (),
        site: str | None = None,
    ) -> None:
        self._store = store
        self._site = site
        printer = _Printer(write)
        recipients: list[Recipient] = [printer, *messengers]
        self._receivers = [_Receiver(store, target) for target in recipients]
        self._printer = printer
        self._alerts = [_AlertReceiver(store, target) for target in alertmanagers]

    @property
    def is_behind(self) -> bool:
        """True while somebody has not taken everything."""
        patience = [*(receiver.patience for receiver in self._receivers), *(alerts.patience for alerts in self._alerts)]
        return any(one.is_behind for one in patience)

    def tell(self, jobs: Sequence[tuple[str, JobState]], now_s: float, *, repeats: bool = False) -> list[str]:
        """Tell what is new of some jobs, each with its location; give what went wrong, a line each.

        What fires is said again where it is to be repeated: Alertmanager forgets it after a day and a half.
        """
        news = [one for location, state in jobs for one in list_news(location, state, now_s, self._site)]
        acked = (
            {key for key, ack in list_acks(self._store).items() if ack.until_at is None or ack.until_at > now_s}
            if news
            else set()
        )
        errors: list[str] = []
        for receiver in self._receivers:
            known = set() if receiver.target is self._printer else acked
            errors += receiver.tell([one for one in news if one.ticket.finding.fingerprint not in known], now_s)
        for alerts in self._alerts:
            errors += alerts.tell(news, acked, now_s, repeats=repeats)
        return errors


def list_news(location: str, state: JobState, now_s: float, site: str | None = None) -> Iterator[News]:
    """List all events of the episodes of a job that anybody may not have heard of, the earliest first.

    `site` is the address of the pages of watched jobs, to link to.
    """
    report = None if site is None else f"{site.rstrip('/')}/{live_page_path(location)}"
    courses = (*state.episodes.open, *state.episodes.over)
    late = [course for course in courses if not (course.episode.recovered_s or now_s) < now_s - LATE_S]
    for course in sorted(late, key=lambda course: (course.episode.told_s, course.episode.name)):
        yield _make_news(location, state, course, "began", course.episode.told_s, report)
        for grown_s in course.grown_s:
            yield _make_news(location, state, course, "grew", grown_s, report)
        if course.episode.recovered_s is not None:
            yield _make_news(location, state, course, "recovered", course.episode.recovered_s, report)


def _make_news(
    location: str, state: JobState, course: Course, event: EpisodeEvent, at_s: float, report: str | None
) -> News:
    """Make the ticket and the line of an event."""
    episode, cause = course.episode, course.particulars
    lost = None if state.n_gpus is None else HOURS_A_DAY * state.n_gpus * episode.gain
    finding = EpisodeFinding(
        fingerprint=episode.fingerprint,
        cause=episode.cause,
        title=episode.title + describe_others(episode),
        family=state.family,
        state="fixed" if event == "recovered" else "open",
        event="opened",
        opened_at=episode.told_s,
        reminded_at=None,
        first_seen_at=episode.began_s or episode.told_s,
        last_seen_at=at_s,
        last_ended_at=None,
        last_noted_at=at_s,
        n_seen=1,
        severity=cause.severity,
        who=cause.who,
        owner=state.owner,
        worst_location=location,
        gpu_hours_lost_per_day=lost,
        confidence=episode.confidence,
        particulars=json.dumps(to_plain(cause)),
        fixed_at=at_s if event == "recovered" else None,
        fixed_because=f"steps from {episode.recovered_step} on do not have it" if event == "recovered" else None,
        name=state.name,
        machine=find_machine(cause.who, (*episode.where.hosts, *(worker.host for worker in episode.where.workers))),
        episode=episode.name,
        grown_at=at_s if event == "grew" else None,
        told=course.told,
    )
    title = write_title(finding, cause)
    job = JobWithFinding(state.name or None, location, state.owner, state.n_gpus, lost, at_s, report)
    line = LiveEvent(
        at=iso(at_s),
        event=event,
        location=location,
        name=state.name,
        text=describe_event(event, episode),
        state=state.state,
        episode=episode,
    )
    return News(Ticket(finding, None, title, summarize(finding, title), cause, 1, (job,), report), line)


class _Printer:
    """Prints events; to whoever reads them they are messages as others are."""

    name = "output"
    identity = OUTPUT

    def __init__(self, write: Callable[[LiveEvent], None]) -> None:
        self._write = write
        self.lines: dict[str, LiveEvent] = {}

    def send(self, ticket: Ticket) -> None:
        """Print one."""
        self._write(self.lines[ticket.finding.key])


class _Receiver:
    """One target that is told of events, and what it was told."""

    def __init__(self, store: Store, target: Recipient) -> None:
        self.target = target
        self.patience = _Patience()
        self._deliveries = Deliveries(store, target.identity)
        self._sent = self._deliveries.sent()

    def tell(self, news: Sequence[News], now_s: float) -> list[str]:
        """Tell what it has not heard."""
        due = [one for one in news if one.ticket.finding.key not in self._sent]
        if not due or self.patience.waits(now_s):
            return []
        if isinstance(self.target, _Printer):
            self.target.lines = {one.ticket.finding.key: one.line for one in due}
        sent = send_messages([one.ticket for one in due], self.target, self._deliveries)
        self._sent = self._deliveries.sent()
        return self.patience.note(sent, now_s)


def _as_told(ticket: Ticket) -> Ticket:
    """Give a ticket the labels that its alert fires with: under others nothing would resolve it."""
    finding = ticket.finding
    if not isinstance(finding, EpisodeFinding) or finding.told is None:
        return ticket
    told = finding.told
    same = dataclasses.replace(finding, cause=told.cause, severity=told.severity, who=told.who)
    return dataclasses.replace(ticket, finding=same)


class _AlertReceiver:
    """One Alertmanager: what is open fires."""

    def __init__(self, store: Store, target: Alertmanager) -> None:
        self.patience = _Patience()
        self._target = target
        self._deliveries = Deliveries(store, target.identity)
        self._told = self._deliveries.last_events()

    def tell(self, news: Sequence[News], acked: Collection[str], now_s: float, *, repeats: bool) -> list[str]:
        """Say what fires, or fires no more, where that has changed, or all is repeated; what is acknowledged fires no more."""
        if self.patience.waits(now_s):
            return []
        latest = {one.ticket.finding.ticket: _as_told(one.ticket) for one in news}
        alerts = [
            Alert(ticket, fires=ticket.finding.state == "open" and ticket.finding.fingerprint not in acked)
            for ticket in latest.values()
        ]
        due = [alert for alert in alerts if self._is_new(alert) or (repeats and alert.fires)]
        if not due:
            return []
        sent = send_alerts(due, self._target, self._deliveries, now_s)
        self._told = self._deliveries.last_events()
        return self.patience.note(sent, now_s)

    def _is_new(self, alert: Alert) -> bool:
        """Say whether it does not know yet that something fires, or fires no more."""
        return self._told.get(alert.ticket.finding.ticket, "resolved") != alert.state


class _Patience:
    """Leaves a target alone for a while that did not take everything, and longer each time."""

    def __init__(self) -> None:
        #: True while it has not taken everything.
        self.is_behind = False
        self._pause_s, self._next_s = PAUSE_S, 0.0

    def waits(self, now_s: float) -> bool:
        """Say whether it is left alone now."""
        return now_s < self._next_s

    def note(self, sent: Sent, now_s: float) -> list[str]:
        """Take note of how it went; give what went wrong."""
        self.is_behind = sent.n_left > 0
        self._next_s = now_s + self._pause_s if self.is_behind else 0.0
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S) if self.is_behind else PAUSE_S
        return list(sent.errors)
