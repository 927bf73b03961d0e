"""Jobs that still run as gauges: for node_exporter's textfile collector, and for `/metrics`.

Enters: `WatchedJob`s. Leaves: text in Prometheus' exposition format.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from diagnose.files import appearing
from diagnose.model.analysis import ReportData
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import LiveEvent, WatchedJob, Window
from diagnose.report import words
from diagnose.report.escape import escape
from diagnose.report.escape import name as safe
from diagnose.report.live_words import list_open

#: `job` and `instance` are what Prometheus calls whom it asks; these are what is watched.
_LABELS = ["name", "location"]
_STATES: Final = ("waiting", "running", "blind", "ended")
#: Seconds after which the file is written though nothing changed: Prometheus can tell from it that somebody still watches.
_BEAT_S: Final = 30.0
#: What is told of the last window of each job: name, meaning, value.
_OF_WINDOWS: tuple[tuple[str, str, Callable[[Window], float | None]], ...] = (
    ("slowdown_ratio", "Slowdown of the last window against the ideal.", lambda last: last.slowdown),
    ("step_seconds", "Mean step time of the last window.", lambda last: last.step_s),
    ("last_step", "The last step that was diagnosed.", lambda last: last.last_step),
    (
        "last_window_timestamp_seconds",
        "When the last window was there to be read, since 1970.",
        lambda last: last.seen_s,
    ),
    ("diagnosis_seconds", "What the diagnosis of the last window took.", lambda last: last.took_s),
    ("silent_ranks", "Ranks whose rows are missing in the last window.", lambda last: len(last.silent)),
)


def render_gauges(jobs: Iterable[WatchedJob], now_s: float) -> bytes:
    """Write the gauges of jobs as they were when all of them were looked at last, at `now_s`, Unix seconds."""
    registry = CollectorRegistry()
    registry.register(_Watched(sorted(((job.location, job) for job in jobs), key=lambda entry: entry[0]), now_s))
    return generate_latest(registry)


class GaugesFile:
    """A view that writes the gauges into a file, such as one of node_exporter's textfile collector."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn, self._failed = path, warn, False
        self._shown: Sequence[WatchedJob] | None = None
        self._written_s = 0.0

    def diagnosed(self, job: WatchedJob, diagnosis: Diagnosis, data: ReportData | None) -> None:
        """Take no note: the job itself says it."""

    def show(self, jobs: Sequence[WatchedJob], events: Sequence[LiveEvent], now_s: float) -> None:
        """Write the gauges where something changed, and now and then where nothing did; a full disk is told once."""
        if not events and self._shown == list(jobs) and now_s - self._written_s < _BEAT_S:
            return
        try:
            with appearing(self._path) as beside:
                beside.write_bytes(render_gauges(jobs, now_s))
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._warn(f"--prometheus-textfile: cannot write {self._path}: {error.strerror}; it is tried again")
            self._failed = True
            return
        self._shown, self._written_s = list(jobs), now_s

    def close(self) -> None:
        """Leave the file: the age of its last round tells that nobody watches any more."""


class _Watched(Collector):
    """What is told of jobs that are watched."""

    def __init__(self, jobs: Sequence[tuple[str, WatchedJob]], now_s: float) -> None:
        self._now_s = now_s
        self._jobs = [((safe(job.name), escape(location)), job) for location, job in jobs]

    def collect(self) -> Iterable[Metric]:
        """Give all of them, in one order."""
        state = GaugeMetricFamily(
            "diagnose_watch_state", "1 for the state that a job is in, else 0.", labels=[*_LABELS, "state"]
        )
        windows = CounterMetricFamily("diagnose_watch_windows", "Windows diagnosed.", labels=_LABELS)
        for labels, job in self._jobs:
            for one in _STATES:
                state.add_metric([*labels, one], float(job.state == one))
            windows.add_metric(labels, job.windows[-1].number + 1 if job.windows else 0)
        yield GaugeMetricFamily(
            "diagnose_watch_round_timestamp_seconds", "When jobs were looked at last, since 1970.", self._now_s
        )
        yield state
        yield windows
        for suffix, meaning, value_of in _OF_WINDOWS:
            gauge = GaugeMetricFamily(f"diagnose_watch_{suffix}", meaning, labels=_LABELS)
            for labels, job in self._jobs:
                value = value_of(job.windows[-1]) if job.windows else None
                if value is not None:
                    gauge.add_metric(labels, value)
            yield gauge
        yield from self._collect_episodes()

    def _collect_episodes(self) -> Iterator[Metric]:
        """Give what is told of episodes that last."""
        n_open = GaugeMetricFamily("diagnose_watch_open_episodes", "Episodes that last.", labels=_LABELS)
        of_one = [*_LABELS, "cause", "place", "fingerprint"]
        gain = GaugeMetricFamily(
            "diagnose_watch_episode_gain_ratio", "Part of the step time that an open episode costs.", labels=of_one
        )
        delay = GaugeMetricFamily(
            "diagnose_watch_episode_delay_seconds", "From the end of its first step until it was told.", labels=of_one
        )
        for labels, job in self._jobs:
            opened = {episode.name: episode for episode in list_open(job)}
            n_open.add_metric(labels, len(opened))
            for episode in {episode.fingerprint: episode for episode in reversed(opened.values())}.values():
                of = [*labels, safe(episode.cause), words.place(episode.where), safe(episode.fingerprint)]
                gain.add_metric(of, episode.gain)
                if episode.delay_s is not None:
                    delay.add_metric(of, episode.delay_s)
        yield from (n_open, gain, delay)
