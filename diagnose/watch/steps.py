"""Follow what is written step by step: traces of the recorder, or in one file that is written anew, and logs of operations.

Enters: a folder, or a file. Leaves: deliveries of so many steps that every rank has written.

A rank that is late is waited for, for a while; then windows are diagnosed without it, and it is silent until it writes again.
A job that is started again writes into a new folder `start-...`, or its files begin anew: what is left of the start before is
diagnosed, then the first steps of the new one.
"""

import contextlib
import functools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from diagnose.trace.growing import NO_STEP
from diagnose.watch.files import Rows, StepFile, StepFiles
from diagnose.watch.source import Delivery, Mark

#: A late rank is waited for so many times as long as windows take, and at least for so long: the recorder writes once a minute,
#: each rank at its own moment.
PATIENCE_WINDOWS = 3.0
PATIENCE_S: Final = 150.0
#: Metadata beside a trace.
_BESIDE = (".yaml", ".yml")


class StepSource:
    """The files of one job, one a rank or one for all; `once` where nobody will look again, so that nothing is waited for."""

    def __init__(self, path: Path, mark: Mark, *, window_steps: int, files: StepFiles, once: bool = False) -> None:
        self._once = once
        self._path = path
        self._files = files
        self._is_folder = path.is_dir()
        self._n_steps = window_steps
        self._start = mark.start
        self._mark = NO_STEP if mark.position is None else mark.position
        self._parts: dict[Path, StepFile] = {}
        self._next_start: str | None = None
        #: Parts that are not waited for, how many ranks that have no file are known to be missing, and since when one is late.
        self._given_up: set[Path] = set()
        self._n_missing = 0
        self._late_since_s: float | None = None
        self._taken_s: float | None = None
        self._interval_s = 0.0
        self._ranks: set[int] = set()
        #: When the processes began whose steps were taken, as they say, and the files that are still of the start before.
        self._attempt = mark.attempt
        self._old: set[Path] = set()
        self._restarts = False
        self._has_new = False
        self._is_first_look = True
        self._delivery: Delivery | None = None

    def look(self) -> bool:
        """Look whether a file is new or another one than before."""
        starts = self._files.list_starts()
        if self._start not in starts and not self._parts and starts:
            self._begin(max(starts))
        self._next_start = self._find_next(starts)
        for path in starts.get(self._start, ()):
            if path not in self._parts:
                self._parts[path] = self._files.open(path, self._start, self._mark)
        changed = [part for part in self._parts.values() if part.look()]
        self._find_restart(changed)
        self._has_new = self._has_new or bool(changed) or self._next_start is not None
        return bool(changed)

    @property
    def written_s(self) -> float | None:
        """When a file was written last."""
        return max((part.written_s for part in self._parts.values()), default=0.0) or None

    def deliver(self, now_s: float) -> Delivery | None:
        """Give the next steps that every rank has written."""
        if self._delivery is None and self._has_new:
            self._delivery = self._collect(now_s)
        return self._delivery

    def take(self, delivery: Delivery, now_s: float) -> None:
        """Take what was delivered: it is not given again."""
        assert delivery.mark.position is not None
        self._mark = delivery.mark.position
        for part in self._parts.values():
            part.drop_through(self._mark)
        if self._taken_s is not None:
            self._interval_s = now_s - self._taken_s
        self._taken_s = now_s
        self._attempt = delivery.mark.attempt
        self._delivery, self._restarts = None, False

    def deliver_again(self, first: int, last: int) -> Delivery | None:
        """Give steps once more that were taken; None where their files are gone, or logs, which are read once."""
        parts = [part for path, part in self._parts.items() if path not in self._old]
        found: dict[Path, Rows] = {
            part.path: rows for part in parts if (rows := part.read_again(first, last)) is not None
        }
        if not found:
            return None
        return Delivery(
            n_rows=sum(map(len, found.values())),
            silent=(),
            n_ranks=None,
            work=None,
            lay_out=functools.partial(_lay_out, self._path, self._start, found),
            mark=Mark(start=self._start, position=last),
        )

    @property
    def has_ended(self) -> bool:
        """True where every rank has written its file for the last time, and all of it was taken."""
        parts = list(self._parts.values())
        is_over = bool(parts) and self._next_start is None and all(part.is_finished for part in parts)
        return is_over and self._delivery is None and not self._has_new

    # ---- Files ----

    def _find_next(self, starts: Iterable[str]) -> str | None:
        """Name the last start of the job where it is another one than this."""
        later = max(starts, default=self._start)
        return later if later > self._start else None

    def _begin(self, start: str) -> None:
        """Go to a start of the job."""
        self._restarts = self._restarts or bool(self._parts)
        self._start, self._mark, self._parts = start, NO_STEP, {}
        self._given_up, self._n_missing, self._late_since_s = set(), 0, None

    def _find_restart(self, changed: list[StepFile]) -> None:
        """Begin anew where files are of another start than those before; those that are not are not there until they are."""
        begun = {part.path for part in changed if part.has_restarted or self._is_after_mark(part)}
        if self._is_first_look and self._lacks_what_was_taken():
            begun = set(self._parts)
        self._is_first_look = self._is_first_look and not changed
        is_first = bool(begun - self._old)
        self._old -= {part.path for part in changed if part.path in begun}
        if not is_first:
            return
        self._old = set(self._parts) - begun
        self._mark, self._restarts, self._late_since_s, self._delivery = NO_STEP, True, None, None
        for part in self._parts.values():
            if part.path in self._old:
                part.skip_all()
            else:
                part.start_again(NO_STEP)

    def _lacks_what_was_taken(self) -> bool:
        """Say whether no file has the last step that was taken: while nobody watched they were begun anew, and say not when."""
        parts = self._parts.values()
        return (
            self._mark != NO_STEP
            and not self._attempt
            and all(p.written_s > 0 and p.last_step < self._mark for p in parts)
        )

    def _is_after_mark(self, part: StepFile) -> bool:
        """Say whether a file is of a start that began after the one whose steps were taken before this watch was started."""
        begun = part.started_at
        return bool(self._attempt and begun and begun > self._attempt and part.last_step < self._mark)

    # ---- Windows ----

    def _collect(self, now_s: float) -> Delivery | None:
        """Find the next window; None where it is not all there."""
        parts = [part for part in self._parts.values() if part.last_step > self._mark]
        ends = [steps[-1] for part in parts if len(steps := part.steps(self._n_steps)) == self._n_steps]
        if not ends:
            return self._close(parts, now_s)
        last = int(min(ends))
        for part in parts:
            part.read_through(last)
        late = {path for path, part in self._parts.items() if part.last_step < last or part.is_outdated}
        n_missing = self._count_missing()
        if not self._is_over() and (late - self._given_up or (n_missing > self._n_missing and not self._once)):
            if self._late_since_s is None:
                self._late_since_s = self._last_written_s(late) if self._once else now_s
            if now_s - self._late_since_s < max(PATIENCE_S, PATIENCE_WINDOWS * self._interval_s):
                return None
        self._given_up, self._n_missing, self._late_since_s = late, n_missing, None
        return self._make(last, late)

    def _close(self, parts: list[StepFile], now_s: float) -> Delivery | None:
        """Give what is left of a start that is over, where it is enough for a window; then go on with the next one."""
        is_over = self._is_over()
        lefts = [part.steps(self._n_steps) for part in parts]
        if not is_over and not (self._once and len(parts) == len(self._parts)):
            self._has_new = False
            return None
        left = (max if is_over else min)(lefts, key=len, default=None)
        if left is not None and len(left) and (self._mark == NO_STEP or 2 * len(left) >= self._n_steps):
            last = int(left[-1])
            return self._make(last, {path for path, part in self._parts.items() if part.last_step < last})
        self._has_new = False
        next_start = self._find_next(self._files.list_starts())  # what was read may have shown it
        if next_start is None:
            return None
        self._begin(next_start)
        self.look()
        return self._collect(now_s)

    def _last_written_s(self, late: set[Path]) -> float:
        """Say when a late rank wrote last."""
        return max((self._parts[path].written_s for path in late), default=0.0)

    def _is_over(self) -> bool:
        """Say whether nothing more comes of this start."""
        return self._next_start is not None or all(part.is_finished for part in self._parts.values())

    def _find_attempt(self) -> str:
        """Say when the last process of this start began."""
        return max((part.started_at or "" for path, part in self._parts.items() if path not in self._old), default="")

    def _count_missing(self) -> int:
        """Count the ranks that have no file, where each rank writes its own."""
        said = max((part.n_ranks or 0 for part in self._parts.values()), default=0)
        return max(said - len(self._parts), 0) if self._is_folder else 0

    def _make(self, last: int, late: set[Path]) -> Delivery:
        """Make the delivery of all rows up to a step."""
        found: dict[Path, Rows] = {
            path: rows for path, part in self._parts.items() if (rows := part.rows_through(last)) is not None
        }
        n_ranks = max((part.n_ranks or 0 for part in self._parts.values()), default=0)
        ranks = {path: rows.ranks() for path, rows in found.items()}
        whole = set().union(*(ranks[path] for path in found if path not in late))
        self._ranks |= set().union(*ranks.values())
        expected = self._ranks | (set(range(n_ranks)) if self._is_folder else set())
        return Delivery(
            n_rows=sum(map(len, found.values())),
            silent=tuple(sorted(expected - whole)),
            n_ranks=n_ranks or len(expected) or None,
            work=_measure_work(found.values()),
            lay_out=functools.partial(_lay_out, self._path, self._start, found),
            mark=Mark(start=self._start, position=last, attempt=self._find_attempt()),
            restarts=self._restarts,
        )


def _measure_work(found: Iterable[Rows]) -> float | None:
    """Say how much work a step holds: tokens where the rows tell them, else forward computes; None where neither is there."""
    each = [rows.work() for rows in found]
    n_steps = len({step for rows in found for step in rows.steps().tolist()})
    work = sum(tokens for tokens, _ in each) or sum(n for _, n in each)
    return work / n_steps if work and n_steps else None


@contextlib.contextmanager
def _lay_out(path: Path, start: str, found: Mapping[Path, Rows]) -> Iterator[Path]:
    """Write the rows of a window as their files would be that hold nothing else, with the metadata beside them."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        at = Path(folder, path.name)
        within = path / start if (path / start).is_dir() else path
        for file, rows in found.items():
            part = at / file.relative_to(within)  # hosts may have files of one name; of a file itself that is nothing
            part.parent.mkdir(parents=True, exist_ok=True)
            rows.write(part)
        for beside in (path.with_suffix(suffix) for suffix in _BESIDE):
            if beside.is_file():
                Path(folder, beside.name).symlink_to(beside.absolute())
        yield at
