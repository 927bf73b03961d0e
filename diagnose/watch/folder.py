"""The page of a job, or a folder with an index and a page a job, written whole while the jobs run.

Enters: jobs as they are now. Leaves: files; at every moment each is the old one or the new one.
"""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from diagnose.errors import UsageError
from diagnose.files import appearing
from diagnose.model.live import STATES_SCHEMA, LiveEvent, WatchedJob
from diagnose.watch.pages import INDEX, STATES, Pages, PagesView, write_states

#: What drawing may take of all time: with many jobs pages wait for their turn, those with news first.
_SHARE: Final = 0.2
#: Seconds of drawing in one round, and at the end: the watch itself waits for it.
_ROUND_S: Final = 1.0
_END_S: Final = 5.0
#: Seconds after which the first page is written though nothing changed: its age says that somebody still watches.
_BEAT_S: Final = 60.0
#: Seconds until what could not be written is tried again.
_AGAIN_S: Final = 10.0
#: Names of files that may be ours; nothing else is ever removed.
_OURS = re.compile(r"jobs/[a-z0-9-]{1,80}\.html")


class PageFolder(PagesView):
    """A view that writes pages: into a folder, or where `path` ends with .html, into this file alone."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._is_file = path.suffix.lower() in {".html", ".htm"}
        self._path, self._warn, self._failed = path, warn, False
        super().__init__(Pages())
        self._written: dict[str, int | None] = {}
        self._told: dict[str, object] = {}
        self._beat_at = self._not_before = 0.0
        if not self._is_file:
            self._left_over = _claim(path)

    def show(self, jobs: Sequence[WatchedJob], events: Sequence[LiveEvent], now_s: float) -> None:
        """Write what changed, as far as there is time for it."""
        del events
        self._pages.update(jobs, now_s)
        began = time.monotonic()
        if began < self._not_before:
            return
        self._try(now_s, began + _ROUND_S)
        took = time.monotonic() - began
        self._not_before = began + max(took / _SHARE, _AGAIN_S if self._failed else 0.0)

    def close(self) -> None:
        """Write what is left, as far as it can be done soon."""
        self._try(self._pages.now_s, time.monotonic() + _END_S)

    def _try(self, now_s: float, until: float) -> None:
        """Write what can be written; a disk that is full is told once, and tried again later."""
        try:
            self._write(now_s, until)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._warn(f"--html: cannot write {error.filename or self._path}: {error.strerror}; it is tried again")
            self._failed = True

    def _write(self, now_s: float, until: float) -> None:
        """Write pages that are not as they should be: the index first, then jobs with news, then those that wait longest."""
        if self._is_file:
            self._write_file(now_s)
            return
        self._clean()
        news = {path: _name_news(job) for path, job in self._pages.jobs.items()}
        due = [path for path in self._pages.changed_since(-1) if self._is_old(path, now_s)]
        due.sort(
            key=lambda path: (path in news, news.get(path) == self._told.get(path), self._written.get(path, -1), path)
        )
        (self._path / "jobs").mkdir(exist_ok=True)
        for path in due:
            self._put(path, self._path / path)
            self._told[path] = news.get(path)
            if time.monotonic() > until:
                return

    def _write_file(self, now_s: float) -> None:
        """Write the page of the one job, or the index where there are several."""
        paths = list(self._pages.jobs)
        path = paths[0] if len(paths) == 1 else INDEX
        if self._is_old(path, now_s) or now_s - self._beat_at >= _BEAT_S:
            self._beat_at = now_s
            self._put(path, self._path, alone=True)

    def _is_old(self, path: str, now_s: float) -> bool:
        """Say whether a page is to be written."""
        if path == INDEX and now_s - self._beat_at >= _BEAT_S:
            self._beat_at = now_s
            return True
        return self._pages.version_of(path) != self._written.get(path)

    def _put(self, path: str, target: Path, *, alone: bool = False) -> None:
        """Write one page."""
        version = self._pages.version_of(path)
        page = self._pages.draw(path, alone=alone)
        if page is None:
            return
        with appearing(target) as beside:
            beside.write_bytes(page)
        self._written = {known: at for known, at in self._written.items() if known != path} | {path: version}

    def _clean(self) -> None:
        """Remove pages of jobs that are watched no more."""
        now = set(self._pages.jobs)
        for path in (self._left_over | {path for path in self._written if _OURS.fullmatch(path)}) - now:
            (self._path / path).unlink(missing_ok=True)
            self._written.pop(path, None)
            self._told.pop(path, None)
        self._left_over = set()


def _name_news(job: WatchedJob) -> object:
    """Give what people want to see at once when it changes: the state, and which episodes there are."""
    return job.state, *((episode.name, episode.recovered_step is None) for episode in job.episodes)


def _claim(folder: Path) -> set[str]:
    """Make the folder, or take over what an earlier watch left there and list its pages; refuse somebody else's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*folder.glob(".diagnose-*.tmp"), *folder.glob("jobs/.diagnose-*.tmp")]:  # of one that was killed
            path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            with appearing(folder / STATES) as beside:
                beside.write_text(write_states({}), encoding="utf-8")
            return set()
        found: Any = msgspec.json.decode((folder / STATES).read_bytes() if (folder / STATES).is_file() else b"null")
        if found["schema"] == STATES_SCHEMA:
            return {page for entry in found["jobs"] if _OURS.fullmatch(page := str(entry["page"]))}
    except OSError as error:
        raise UsageError(f"--html: cannot write into {folder}: {error.strerror}") from None
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    raise UsageError(
        f"--html: {folder} is not empty and no folder of `diagnose watch` (no sound {STATES}); name another"
    )
