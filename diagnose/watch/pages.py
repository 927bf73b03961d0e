"""The pages of all watched jobs: which there are, which of them changed, and each of them drawn when somebody wants it.

Enters: jobs as they are now, and their diagnoses. Leaves: bytes of pages. Threads may ask for pages while the watch goes on.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from diagnose.model.analysis import ReportData
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.live import WatchedJob, WatchedPage, WatchStates, Window
from diagnose.model.pages import live_page_path
from diagnose.model.plain import to_json
from diagnose.report.html.live import Served, render_index, render_job

INDEX: Final = "index.html"
#: The same for programs.
STATES: Final = "watch.json"
#: Pages that are kept as drawn: a drawing takes some tenths of a second, and few pages are looked at.
_MOST_KEPT = 16


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """What pages are made of at one moment; replaced whole, so that who draws a page sees one moment."""

    jobs: Mapping[str, WatchedJob]  # By the path of their page
    versions: Mapping[str, int]  # Of each page: the change that it changed with last
    last: int  # Number of the last change
    now_s: float


def write_states(jobs: Mapping[str, WatchedJob]) -> str:
    """Write jobs, by the paths of their pages, as one JSON object; of the windows of each the last one."""
    found = [WatchedPage(page=path, job=replace(job, windows=job.windows[-1:])) for path, job in jobs.items()]
    return to_json(WatchStates(jobs=tuple(found))) + "\n"


class Pages:
    """The pages of jobs, an index and the states as JSON; `epoch` begins the versions of those that a server gives."""

    def __init__(self, epoch: str | None = None) -> None:
        self._epoch = epoch
        self._state = _State({}, {INDEX: 0, STATES: 0}, 0, 0.0)
        self._diagnoses: dict[str, tuple[Window, Diagnosis]] = {}
        self._kept: dict[str, tuple[int, bytes]] = {}
        self._drawing = threading.Lock()  # matplotlib has one set of settings for all threads

    @property
    def now_s(self) -> float:
        """When jobs were looked at last, Unix seconds."""
        return self._state.now_s

    @property
    def last(self) -> int:
        """Give the number of the last change."""
        return self._state.last

    @property
    def jobs(self) -> Mapping[str, WatchedJob]:
        """All jobs, by the paths of their pages."""
        return self._state.jobs

    def note(self, job: WatchedJob, diagnosis: Diagnosis) -> None:
        """Keep the diagnosis of a window until the next; without what only `explain` needs, which is large."""
        self._diagnoses[job.location] = job.windows[-1], dataclasses.replace(diagnosis, details=None)

    def update(self, jobs: Sequence[WatchedJob], now_s: float) -> None:
        """Take all jobs as they are now."""
        old = self._state
        found = {live_page_path(job.location): job for job in jobs}
        changed = {path for path, job in found.items() if old.jobs.get(path) != job}
        if not changed and found.keys() == old.jobs.keys() and old.last:
            self._state = dataclasses.replace(old, now_s=now_s)
            return
        last = old.last + 1
        versions = {path: last if path in changed else old.versions[path] for path in found}
        self._state = _State(found, versions | {INDEX: last, STATES: last}, last, now_s)
        for location in self._diagnoses.keys() - {job.location for job in jobs}:
            del self._diagnoses[location]

    def changed_since(self, number: int) -> list[str]:
        """List the pages that changed with later changes than this."""
        return [path for path, version in self._state.versions.items() if version > number]

    def version_of(self, path: str) -> int | None:
        """Give the number of the change that a page changed with last; None where there is no such page."""
        return self._state.versions.get(path)

    def version(self, number: int) -> str:
        """Name a change so that a server that was started anew can tell that it is none of its own."""
        return f"{self._epoch}-{number}"

    def number(self, version: str) -> int:
        """Give the number of a change; 0, before all of them, where it is none of ours."""
        epoch, _, number = version.rpartition("-")
        return int(number) if epoch == self._epoch and number.isascii() and number.isdigit() and len(number) < 10 else 0

    def draw(self, path: str, *, alone: bool = False) -> bytes | None:
        """Draw a page; None where there is no such page. One that stands `alone` links to no other."""
        with self._drawing:
            state = self._state
            if path not in state.versions:
                return None
            version, (known, page) = state.versions[path], self._kept.get(path, (-1, b""))
            if known == version and path != INDEX:
                return page
            page = self._draw(state, path, alone=alone).encode("utf-8", "backslashreplace")
            self._kept.pop(path, None)
            self._kept[path] = version, page
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return page

    def _draw(self, state: _State, path: str, *, alone: bool) -> str:
        """Draw one page of one moment."""
        served = None if self._epoch is None else Served(path, self.version(state.last))
        if path == STATES:
            return write_states(state.jobs)
        if path == INDEX:
            links = {} if alone else {job.location: path for path, job in state.jobs.items()}
            return render_index(list(state.jobs.values()), links, now_s=state.now_s, served=served)
        job = state.jobs[path]
        return render_job(job, self._diagnoses.get(job.location), now_s=state.now_s, in_site=not alone, served=served)


class PagesView:
    """What views that show pages share: the diagnosis of a window is kept for the page of its job."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def diagnosed(self, job: WatchedJob, diagnosis: Diagnosis, data: ReportData | None) -> None:
        """Keep what the page of the job shows of its last window."""
        del data
        self._pages.note(job, diagnosis)
