"""Collect what the lines of a log tell, and make a `TrainingLog` of it.

Enters: what readers of formats found, line by line. Leaves: a `TrainingLog`: restarts counted, lines of several ranks told apart.
"""

import itertools
import math
from array import array
from collections.abc import Iterator

import numpy as np

from diagnose.model.diagnosis_document import LogRestart
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.model.training_log import (
    Extremes,
    LogEvent,
    LogEventKind,
    LogIntervalKind,
    LogPart,
    RankTimes,
    TrainingLog,
)
from diagnose.trace.logs.bars import choose_marks
from diagnose.trace.logs.stamps import find_stamp

#: No step is shorter than a kernel, and none is longer than a week and a half.
MIN_STEP_S, MAX_STEP_S = 1e-6, 1e6
#: Larger than any count of steps, tokens or ranks: what is more was damaged.
MAX_COUNT = 10**15
#: Kept at most of one log, so that a file of any size fits into memory: steps (72 bytes each), events, times of ranks.
MAX_STEPS = 1 << 22
MAX_EVENTS = 1 << 16
MAX_RANK_TIMES = 1 << 24
#: Events that several lines may tell; a save that goes on beside the training ends at most so many lines of steps after its begin.
_IN_PARTS = ("save", "evaluation", "error")
STEPS_DURING_A_SAVE = 64
#: Half of the last digit of stamps.
HALF_SECOND, HALF_MS = 0.5, 0.0005
#: Tokens that seconds are told of where only a rate is, and nothing says how many a step has.
NOMINAL = 1_000_000
#: Rates are as wrong as those of the steps at this quantile.
LONGEST = 0.9
#: Characters of a line that are kept with an event.
MAX_TEXT = 200
#: A process takes longer than this to start and come to its first step: two lines of one step that are nearer are of two ranks.
MIN_RESTART_S = 5.0
#: A log has the lines of several ranks where so many of its lines tell a step a second time.
SEVERAL_RANKS_SHARE = 0.1
#: A rank tells more steps than this.
MIN_LINES_OF_A_SOURCE = 3


class LogBuilder:
    """What was found so far.

    A reader may set `format`, `reads`, `is_mean` and `of` (of `TrainingLog`) where lines say them better than the format's
    constants.
    """

    def __init__(self, title: str, reads: str, *, is_mean: bool) -> None:
        self.format, self.reads, self.is_mean = title, reads, is_mean
        #: Set by the engine: the line that is being read; with what stood in front of it; what of that a launcher put there to
        #: say whose line it is, and the rank by that; its file.
        self.line, self.around, self.source = b"", b"", b""
        self.rank: int | None = None
        self.file = ""
        #: The last iteration that a reader saw which tells its steps at the end.
        self.seen = 0
        #: What `step_s` are the seconds of, where that is no step.
        self.of = ""
        #: The part that times are wrong by, where they are read off a coarse clock.
        self.error = self.clock = 0.0
        #: Half of the last digit of rates, steps a second, where times are told by these.
        self.half_rate = 0.0
        #: Column of a table that tells time, and its unit, where somebody says so.
        self.column: str | None = None
        self.unit: str | None = None
        self.total: int | None = None
        self.sizes: dict[str, int] = {}
        self.intervals: dict[LogIntervalKind, int] = {}
        self.notes: list[str] = []
        self._iteration, self._batch, self._n_steps, self._source = array("q"), array("q"), array("q"), array("l")
        self._step_s, self._stamp_s, self._fallback_s, self._tokens = (array("d") for _ in range(4))
        self._sources: dict[tuple[str, bytes], int] = {}
        self._begins: list[int] = []
        self._hosts: dict[tuple[int, str], None] = {}
        self._parts: dict[LogPart, tuple[array[int], array[float]]] = {}
        self._events: list[LogEvent] = []
        self._events_at: dict[tuple[LogEventKind, int | None], tuple[int, int, int | None]] = {}
        self._timers: dict[str, tuple[array[int], array[int], array[float]]] = {}
        self._extremes: dict[str, tuple[array[int], array[float]]] = {}

    @property
    def n_steps(self) -> int:
        """How many lines of steps were told so far."""
        return len(self._iteration)

    @property
    def last(self) -> int:
        """The last iteration that was told; 0 before the first."""
        return self._iteration[-1] if self._iteration else self.seen

    def add_step(
        self,
        iteration: int,
        step_s: float = math.nan,
        *,
        batch_size: int = 0,
        tokens: float = math.nan,
        stamp_s: float | None = None,
        n_steps: int = 0,
    ) -> None:
        """Add the line of a step; numbers that no step has are passed over.

        Parameters
        ----------
        iteration : int
        step_s : float
            NaN where the line does not say: then it is what passed since the line before, by stamps.
        batch_size, tokens
            As in `TrainingLog`.
        stamp_s : float or None
            When the line was written, Unix seconds; where left out, `find_stamp` says.
        n_steps : int
            As in `TrainingLog`.
        """
        if len(self._iteration) >= MAX_STEPS or not 0 <= iteration < MAX_COUNT:
            return
        if not (math.isnan(step_s) or MIN_STEP_S <= step_s < MAX_STEP_S):
            return
        self._iteration.append(iteration)
        self._step_s.append(step_s)
        self._n_steps.append(n_steps)
        self._batch.append(batch_size if 0 < batch_size < MAX_COUNT else 0)
        self._tokens.append(tokens if 0 < tokens < MAX_COUNT else math.nan)
        self._fallback_s.append(math.nan)
        self._stamp_s.append(self.find_stamp() if stamp_s is None else stamp_s)
        self._source.append(self._sources.setdefault((self.file, self.source), len(self._sources)))

    def add_steps(
        self,
        iteration: Ints,
        step_s: Seconds | None = None,
        *,
        batch_size: Ints | None = None,
        tokens: Seconds | None = None,
        stamp_s: Seconds | None = None,
    ) -> Ints:
        """Add the lines of many steps, as `add_step` does one; without `stamp_s` they have no stamp.

        Parameters
        ----------
        iteration : ndarray of int64, shape (n,)
        step_s, batch_size, tokens, stamp_s : ndarray, shape (n,)
            As of `add_step`.

        Returns
        -------
        kept : ndarray of int64
            Which of them were added: numbers that no step has are passed over.
        """
        nothing = np.full(len(iteration), np.nan)
        step_s, tokens = nothing if step_s is None else step_s, nothing if tokens is None else tokens
        batch_size = np.zeros(len(iteration), dtype=np.int64) if batch_size is None else batch_size
        is_step = (iteration >= 0) & (iteration < MAX_COUNT)
        is_step &= np.isnan(step_s) | ((step_s >= MIN_STEP_S) & (step_s < MAX_STEP_S))
        kept = np.flatnonzero(is_step)[: MAX_STEPS - len(self._iteration)]
        if not len(kept):
            return kept
        source = self._sources.setdefault((self.file, self.source), len(self._sources))
        for values, told in (
            (self._iteration, iteration),
            (self._step_s, step_s),
            (self._batch, np.where((batch_size > 0) & (batch_size < MAX_COUNT), batch_size, 0)),
            (self._tokens, np.where((tokens > 0) & (tokens < MAX_COUNT), tokens, np.nan)),
            (self._n_steps, np.zeros(len(iteration), dtype=np.int64)),
            (self._fallback_s, nothing),
            (self._stamp_s, nothing if stamp_s is None else stamp_s),
            (self._source, np.full(len(iteration), source)),
        ):
            values.frombytes(told[kept].astype(values.typecode).tobytes())
        return kept

    def read_clock(self, count: Ints, clock_s: Seconds, error_s: Seconds) -> Iterator[tuple[int, int, float]]:
        """Give the windows between readings of a clock that are so far apart that what passed between them is known.

        Parameters
        ----------
        count : ndarray of int64, shape (n,)
            Steps at each reading, increasing.
        clock_s, error_s : ndarray of float64, shape (n,)
            The readings, and what each is wrong by at most.

        Yields
        ------
        low, high : int
            The readings at both ends of a window.
        step_s : float
            The mean seconds of a step between them.
        """
        marks, error = choose_marks(count, clock_s, error_s)
        self.clock = max(self.clock, error)
        for low, high in itertools.pairwise(marks.tolist()):
            yield low, high, float((clock_s[high] - clock_s[low]) / max(count[high] - count[low], 1))

    def find_stamp(self) -> float:
        """Give when the line was written by the first date and time in it, else by what stood in front of it; NaN without."""
        stamp_s = find_stamp(self.line)
        return find_stamp(self.around) if math.isnan(stamp_s) and self.around is not self.line else stamp_s

    def set_tokens(self, tokens: float) -> None:
        """Set the tokens of the step that was told last, where a later line says them."""
        if self._tokens and 0 < tokens < MAX_COUNT:
            self._tokens[-1] = tokens

    def set_fallback(self, step_s: float) -> None:
        """Set the seconds of the step that was told last, for where neither clocks nor stamps tell them."""
        if self._fallback_s and MIN_STEP_S <= step_s < MAX_STEP_S:
            self._fallback_s[-1] = step_s

    def add_part(self, part: LogPart, seconds: float) -> None:
        """Add the seconds of a part of the last step that was told; of one part told twice, their sum."""
        at = len(self._iteration) - 1
        if at < 0 or not 0 <= seconds < MAX_STEP_S:
            return
        where, values = self._parts.setdefault(part, (array("q"), array("d")))
        if where and where[-1] == at:
            values[-1] += seconds
        elif len(where) < MAX_STEPS:
            where.append(at)
            values.append(seconds)

    def add_parts(self, part: LogPart, at: Ints, seconds: Seconds) -> None:
        """Add the seconds of a part of many steps, which are numbered by the lines told before them, and have none yet."""
        kept = (seconds >= 0) & (seconds < MAX_STEP_S)
        where, values = self._parts.setdefault(part, (array("q"), array("d")))
        where.frombytes(at[kept].astype(where.typecode).tobytes())
        values.frombytes(seconds[kept].tobytes())

    def add_event(
        self,
        kind: LogEventKind,
        *,
        iteration: int | None = None,
        seconds: float = math.nan,
        rank: int | None = None,
        text: bytes = b"",
    ) -> None:
        """Add what happened beside the pace.

        A save or an evaluation that several lines tell, as its begin, its end and its seconds, is kept once, with the iteration
        that one of them names; so are the errors of one rank that come without a step between them.
        """
        seconds = seconds if 0 <= seconds < MAX_STEP_S else math.nan
        if iteration is not None and not 0 <= iteration < MAX_COUNT:
            return
        at, told, named = self._events_at.get((kind, rank), (-1, 0, None))
        passed = self.n_steps - told
        is_same = named == iteration if named is not None and iteration is not None else not passed
        if at >= 0 and kind in _IN_PARTS and is_same and passed <= STEPS_DURING_A_SAVE:
            before = self._events[at]
            longest = float(np.fmax(before.seconds, seconds))
            known = before.iteration if iteration is None else iteration
            self._events[at] = LogEvent(kind, known, longest, rank, before.text or _printable(text))
            self._events_at[kind, rank] = at, told, named if iteration is None else iteration
        elif len(self._events) < MAX_EVENTS:
            self._events_at[kind, rank] = len(self._events), self.n_steps, iteration
            known = self.last if iteration is None else iteration
            self._events.append(LogEvent(kind, known, seconds, rank, _printable(text)))

    def add_rank_time(self, timer: str, rank: int, seconds: float) -> None:
        """Add what a timer measured on one rank, in the step that was told last."""
        iterations, ranks, values = self._timers.setdefault(timer, (array("q"), array("q"), array("f")))
        if len(ranks) < MAX_RANK_TIMES and 0 <= seconds < MAX_STEP_S and 0 <= rank < MAX_COUNT:
            iterations.append(self.last)
            ranks.append(rank)
            values.append(seconds)

    def add_extreme(self, key: str, low: tuple[float, int], high: tuple[float, int]) -> None:
        """Add the lowest and the highest value of a measure over all ranks, and whose they are: (value, rank)."""
        whole, real = self._extremes.setdefault(key, (array("q"), array("d")))
        if len(real) < MAX_RANK_TIMES and 0 <= low[1] < MAX_COUNT and 0 <= high[1] < MAX_COUNT:
            whole.extend((self.last, low[1], high[1]))
            real.extend((low[0], high[0]))

    def begin(self) -> None:
        """Say that the job starts here; a start that no line tells is seen by the counter, which falls back."""
        if self._iteration and (not self._begins or self._begins[-1] != len(self._iteration)):
            self._begins.append(len(self._iteration))

    def add_host(self, name: str) -> None:
        """Add a host of the attempt whose steps come next."""
        if len(self._hosts) < MAX_EVENTS:
            self._hosts[len(self._iteration), name] = None

    def set_interval(self, kind: LogIntervalKind, interval: int) -> None:
        """Set an interval that the log states; 0 and less means never."""
        if 0 < interval < MAX_COUNT:
            self.intervals[kind] = interval

    def finish(self, name: str) -> TrainingLog | None:
        """Make the log; None where no line tells how long a step took."""
        iteration, stamp_s = _ints(self._iteration), _floats(self._stamp_s)
        is_kept = self._choose_sources()
        attempt, restarts = self._count_attempts(iteration, stamp_s, is_kept)
        kept = np.flatnonzero(is_kept)
        step_s = _floats(self._step_s)
        are_whole = is_whole(stamp_s[kept])
        if self.half_rate and len(kept) > 1:
            half_s, passed_s = HALF_SECOND if are_whole else HALF_MS, np.diff(stamp_s[kept])
            rounded = float(np.nanmedian(self.half_rate * step_s[kept]))
            if (passed_s > 0).any() and rounded > half_s / float(np.median(passed_s[passed_s > 0])):
                step_s[:] = np.nan
            else:
                # A rate of few digits tells long steps worse than short ones.
                rounded = float(np.nanquantile(self.half_rate * step_s[kept], LONGEST))
                self.error = max(self.error, rounded / math.sqrt(3.0))
        if are_whole and np.isnan(step_s[kept]).all():
            self._read_stamps(step_s, iteration, attempt, kept, stamp_s)
        else:
            step_s = _fill_steps(step_s, iteration, attempt, kept, stamp_s)
        step_s = np.where(np.isnan(step_s), _floats(self._fallback_s), step_s)
        kept = kept[np.isfinite(step_s[kept])]
        if not len(kept):
            return None
        if self.n_steps >= MAX_STEPS:
            self.notes.append(f"lines after the first {MAX_STEPS:,} steps are left out")
        return TrainingLog(
            name=name,
            format=self.format,
            reads=self.reads,
            iteration=iteration[kept],
            step_s=step_s[kept],
            is_mean=self.is_mean,
            batch_size=_ints(self._batch)[kept],
            attempt=attempt[kept],
            stamp_s=stamp_s[kept],
            tokens=_floats(self._tokens)[kept],
            n_steps=_ints(self._n_steps)[kept],
            restarts=tuple(restarts),
            total=self.total,
            parts={part: _spread(at, seconds, len(iteration))[kept] for part, (at, seconds) in self._parts.items()},
            events=tuple(self._events),
            failures=self._list_failures(),
            intervals=dict(self.intervals),
            hosts=self._list_hosts(attempt, kept),
            timers={
                timer: RankTimes(_ints(iterations), _ints(ranks), _floats(values))
                for timer, (iterations, ranks, values) in self._timers.items()
                if ranks
            },
            extremes={key: _extremes(*found) for key, found in self._extremes.items() if found[1]},
            sizes=dict(self.sizes),
            notes=tuple(self.notes),
            of=self.of,
            clock=self.clock,
            error=max(
                self.error, self.clock, _find_digit(step_s[kept]) / math.sqrt(12.0) / float(np.median(step_s[kept]))
            ),
        )

    def _read_stamps(self, step_s: Seconds, iteration: Ints, attempt: Ints, kept: Ints, stamp_s: Seconds) -> None:
        """Fill in the seconds of lines that stamps of whole seconds tell, where these are far enough apart."""
        for lap in np.split(kept, np.flatnonzero(np.diff(attempt[kept])) + 1):
            for low, high, seconds in self.read_clock(iteration[lap], stamp_s[lap], np.full(len(lap), HALF_SECOND)):
                if seconds > 0:
                    step_s[lap[high]] = seconds
                    tokens = [self._tokens[at] for at in lap[low + 1 : high + 1].tolist()]
                    self._tokens[int(lap[high])] = float(np.mean(tokens))

    def _list_failures(self) -> tuple[LogEvent, ...]:
        """List the errors that no step came after, the first of each rank, in the order of the file."""
        last = sorted(
            at for (kind, _), (at, told, _) in self._events_at.items() if kind == "error" and told == self.n_steps
        )
        return tuple(self._events[at] for at in last)

    def _choose_sources(self) -> Bools:
        """Keep the steps of the rank that told most, and those of others where they tell what no kept one does."""
        source = _ints(self._source)
        keep = np.ones(len(source), dtype=bool)
        if len(self._sources) < 2 or len(source) < MIN_LINES_OF_A_SOURCE * len(self._sources):
            return keep  # so few lines of each are the numbers of steps, and no ranks
        keep[:] = False
        begun, ended = _spans(source, np.arange(len(source), dtype=np.float64))
        # Files are read one after the other: only their stamps tell which were written at once.
        begun_s, ended_s = _spans(source, _floats(self._stamp_s))
        kept: list[int] = []
        for one in np.argsort(-np.bincount(source), kind="stable").tolist():
            others = np.array(kept, dtype=np.int64)
            is_beside = (begun[others] <= ended[one]) & (ended[others] >= begun[one])
            is_beside |= (begun_s[others] <= ended_s[one]) & (ended_s[others] >= begun_s[one])
            if not is_beside.any():
                kept.append(one)
                keep |= source == one
        left_out = len(self._sources) - len(kept)
        if left_out:
            self.notes.append(f"step lines of {left_out} other rank{'s' if left_out > 1 else ''} are left out")
        return keep

    def _count_attempts(self, iteration: Ints, stamp_s: Seconds, is_kept: Bools) -> tuple[Ints, list[LogRestart]]:
        """Count the restarts before each line, and let go of lines that another rank wrote of the same step (in `is_kept`)."""
        kept = np.flatnonzero(is_kept)
        numbers, stamps, step_s = iteration[kept], stamp_s[kept], _floats(self._step_s)[kept]
        begins = np.searchsorted(kept, np.array(self._begins, dtype=np.int64))
        differences = np.diff(numbers)
        odd = np.union1d(np.flatnonzero(differences <= 0) + 1, begins[(begins > 0) & (begins < len(numbers))])
        several = len(numbers) > 1 and float(np.mean(differences == 0)) >= SEVERAL_RANKS_SHARE
        starts, restarts = [0], []
        is_begin = np.zeros(len(numbers) + 1, dtype=bool)
        is_begin[begins] = True
        last, before, at = (
            0,
            -1,
            1,
        )  # the last line kept, the one before of the same attempt, and the one that is looked at
        while at < len(numbers):
            if last == at - 1:
                jump = int(np.searchsorted(odd, at))
                following = int(odd[jump]) if jump < len(odd) else len(numbers)
                if following > at:
                    last, before, at = following - 1, following - 2, following
                    continue
            gap_s = float(stamps[at] - stamps[last])
            if not is_begin[at] and numbers[at] > numbers[last]:
                last, before = at, last
            elif not is_begin[at] and self._is_double(numbers, step_s, gap_s, (last, before, at), several=several):
                is_kept[kept[at]] = False
            else:
                restarts.append(LogRestart(int(numbers[last]), int(numbers[at]), gap_s if gap_s >= 0 else None))
                starts.append(at)
                last, before = at, -1
            at += 1
        attempt = np.zeros(len(iteration), dtype=np.int64)
        attempt[kept[starts[1:]]] = 1
        return np.cumsum(attempt), restarts

    @staticmethod
    def _is_double(numbers: Ints, step_s: Seconds, gap_s: float, where: tuple[int, int, int], *, several: bool) -> bool:
        """Say whether a line tells of a step that another rank told, and is no restart."""
        last, before, at = where
        if numbers[at] != numbers[last] and (before < 0 or numbers[at] != numbers[before]):
            return False
        if numbers[at] == numbers[last] and step_s[at] == step_s[last]:
            return True  # the same line by two ways
        if math.isnan(gap_s):  # a restart that goes on with the very step it ended with is rarer than a step told twice
            return several or numbers[at] == numbers[last]
        return gap_s < max(MIN_RESTART_S, 0.5 * float(step_s[at]))

    def _list_hosts(self, attempt: Ints, kept: Ints) -> tuple[tuple[str, ...], ...]:
        """Give the hosts of each attempt; nothing where no line names one."""
        if not self._hosts:
            return ()
        hosts: list[set[str]] = [set() for _ in range(int(attempt[kept].max()) + 1)]
        for at, host in self._hosts:
            hosts[min(int(attempt[min(at, len(attempt) - 1)]), len(hosts) - 1)].add(host)
        return tuple(tuple(sorted(names)) for names in hosts)


def _fill_steps(step_s: Seconds, iteration: Ints, attempt: Ints, kept: Ints, stamp_s: Seconds) -> Seconds:
    """Give steps that no line tells the time of what passed since the line before, by stamps."""
    filled = step_s.copy()
    n_steps = np.diff(iteration[kept])
    is_next = (np.diff(attempt[kept]) == 0) & (n_steps > 0)
    passed_s = np.r_[np.nan, np.where(is_next, np.diff(stamp_s[kept]), np.nan) / np.where(is_next, n_steps, 1)]
    passed_s[~((passed_s >= MIN_STEP_S) & (passed_s < MAX_STEP_S))] = np.nan
    filled[kept] = np.where(np.isnan(filled[kept]), passed_s, filled[kept])
    return filled


def is_whole(stamp_s: Seconds) -> bool:
    """Say whether lines are stamped, all with whole seconds."""
    return len(stamp_s) > 0 and bool((stamp_s == np.round(stamp_s)).all())


def _find_digit(step_s: Seconds) -> float:
    """Give the last digit of seconds that are all rounded to tenths, hundredths or thousandths; 0 where they have more."""
    for digit in (1.0, 0.1, 0.01, 0.001):
        # Most logs show by their first lines that they have more digits.
        if all(np.allclose(some / digit, np.round(some / digit), rtol=0, atol=1e-6) for some in (step_s[:100], step_s)):
            return digit
    return 0.0


def _spans(source: Ints, values: Seconds) -> tuple[Seconds, Seconds]:
    """Give the lowest and the highest value of each source, NaN where it has none; shape (n_sources,)."""
    low, high = np.full(int(source.max()) + 1, np.inf), np.full(int(source.max()) + 1, -np.inf)
    known = np.isfinite(values)
    np.minimum.at(low, source[known], values[known])
    np.maximum.at(high, source[known], values[known])
    return np.where(low <= high, low, np.nan), np.where(low <= high, high, np.nan)


def _extremes(whole: "array[int]", real: "array[float]") -> Extremes:
    """Take apart what was found of a measure."""
    iteration, low_rank, high_rank = _ints(whole).reshape(-1, 3).T
    low, high = _floats(real).reshape(-1, 2).T
    return Extremes(iteration, low, low_rank, high, high_rank)


def _spread(at: "array[int]", values: "array[float]", n: int) -> Seconds:
    """Put values at their lines; NaN elsewhere."""
    spread = np.full(n, np.nan)
    where = _ints(at)
    spread[where[where < n]] = _floats(values)[where < n]
    return spread


def _printable(text: bytes) -> str:
    """Keep the beginning of a line, without what no line has."""
    said = text[: 4 * MAX_TEXT].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in said).split())[:MAX_TEXT]


def _ints(values: "array[int]") -> Ints:
    return np.array(values, dtype=np.int64)


def _floats(values: "array[float]") -> Seconds:
    return np.array(values, dtype=np.float64)
