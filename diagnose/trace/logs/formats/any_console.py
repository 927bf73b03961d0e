"""Read a console that nobody described: lines that count steps, and tell how long they took, again and again.

Enters: a text in which no other format is found. Leaves: steps.

The lines that say the same of one number after the other are a table: of the most frequent kind of line that has a counter (`step`,
`iter 3/90`, `Epoch: [2][30/90]`) and one of these. First, when lines were written, also without a date, since that means the same
whoever prints it; but where stamps are too coarse for steps, what is printed. Then seconds with `/step`, or named as a step's time;
steps a second; and seconds alone. These may be of a step, or since the line before, or since the begin: they are a clock where they
grow as the counter does, and where lines are several steps apart nothing is said in seconds. Last, tokens or samples a second.

Where no line has both, records of several lines are read as one: names and numbers below each other, or in two columns of a table,
up to the line whose name the record has already.

What it costs: 25 us a line of a step.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.model.training_log import LogEventKind
from diagnose.trace.logs.builder import HALF_MS, HALF_SECOND, MAX_COUNT, MAX_STEPS, NOMINAL, LogBuilder, is_whole
from diagnose.trace.logs.formats.tables import count_on, is_clock
from diagnose.trace.logs.lines import read_lines, read_sample, strip_colours
from diagnose.trace.logs.log_format import FileFormat
from diagnose.trace.logs.stamps import HEAD_BYTES, find_stamp
from diagnose.trace.logs.wrappers import unwrap

#: Lines that tell steps, at least; a longer line is none.
LEAST_LINES, MOST_BYTES = 3, 2000
#: Lines of each piece of a sample of a large file.
PIECE_LINES = 200
#: Numbers of a record of several lines, at most; a longer line is none of it.
MOST_ITEMS, MOST_ITEM_BYTES = 200, 160
#: Counters grow from nearly each line to the next.
GROWS = 0.8
#: Stamps tell steps where they do for so many of the lines.
STAMPED = 0.8
#: A clock and a counter began together where one predicts the other to this part.
PROPORTIONAL = 0.5
#: A day, for stamps without a date.
DAY_S = 86400.0

_N = rb"(?<![\w.:/-])(?P<value>\d{1,12}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?)(?![\d.]*[:\d])"
_COUNTED = rb"(?:steps?|iterations?|iters?|itrs?|its?|batch(?:es)?|updates?|ticks?)"
_UNIT = rb"(?P<unit>ms|msecs?|milliseconds?|us|usecs?|s|secs?|seconds?)"
_A_SECOND = rb" ?/ ?s(?:ec(?:ond)?)?(?!\w)"
_WORK = rb"(?:tok|tokens|words|samples|examples|imgs?|images|sentences|frames|seqs)"
#: A number behind its name, with the unit in brackets or behind it.
_NAMED = (
    rb"(?:[_ ]?[(\[]?"
    + _UNIT
    + rb"\]?)?\)?[\"']?[\t ]{0,4}[:=]?[\t ]{0,8}"
    + _N
    + rb"(?: ?"
    + _UNIT.replace(b"unit", b"unit2")
    + rb")?(?![\w/])"
)
_IS = rb"\)?[\t ]{0,4}[:=]?[\t ]{0,8}" + _N + rb"(?![\w/])"
#: What seconds are of: of a step, steps a second, seconds of nobody knows what, tokens or samples a second.
_TIMES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("time", _N + rb" ?" + _UNIT + rb" ?(?:/|per) ?" + _COUNTED + rb"(?!\w)"),
        ("time", rb"(?<!\w)" + _UNIT + rb"(?:/|[_ ]per[_ ])" + _COUNTED + _IS),
        ("time", rb"(?<![A-Za-z])" + _COUNTED + rb"[_ -]?(?:time|duration)" + _NAMED),
        ("time", rb"(?<!\w)(?:time[_ ](?:per|this)[_ ]" + _COUNTED + rb"|dt)" + _NAMED),
        ("rate", _N + rb" ?" + _COUNTED + _A_SECOND),
        ("rate", rb"(?<![\w/])" + _COUNTED + _A_SECOND + _IS),
        ("seconds", rb"(?<![A-Za-z])(?:time|timer|elapsed|took|duration|train)(?:[_ ]time)?" + _NAMED),
        ("seconds", _N + rb" ?" + _UNIT + rb"(?: elapsed)?[;,.)]?\s{0,200}\Z"),
        ("work", _N + rb" ?" + _WORK + _A_SECOND),
        ("work", rb"(?<![\w/])" + _WORK + _A_SECOND + _IS),
    )
)
#: A value of fewer digits tells no time: half of the last one is this part of it at most.
ROUNDED = 0.1
#: What stands before a time that is none of training.
_OTHERS = re.compile(
    rb"(?:eta|val|valid|validation|eval|test|infer|remain(?:ing)?|data|load(?:er)?|total)[\W_]{0,4}(?:(?:time|took|in)[\W_]{0,4})?\Z",
    re.IGNORECASE,
)
#: Counters, the surest first: an epoch and a step in it, a step, so many of all, and epochs alone.
_WHOLE = rb"\d{1,3}(?:,\d{3}){1,4}(?!\d)|\d{1,12}"
_STEP = (
    rb"(?<![\w./])(?!max_|num_|total_|n_|warmup_)(?:[a-z]{2,12}[_ ])?"
    rb"(?:steps?|iterations?|iters?|itr|updates?|up\.|tick|(?:mini)?batch)[\"']?"
    rb"[\t ]{0,3}[:=#]?[\t ]{0,3}[\"\[]?[\t ]{0,9}(?P<step>"
    + _WHOLE
    + rb")(?![.\w%])(?:\]? ?/ {0,9}(?P<length>\d{1,12}))?"
)
_EPOCH = rb"(?<![\w./])(?:epoch|ep)\.?[: #=]{0,3}\[? {0,9}(?P<epoch>\d{1,9})(?![.\d])"
_COUNTERS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        _EPOCH.replace(b"epoch|ep", b"epoch|ep|train")
        + rb"(?:(?:/ ?\d{1,9})?\] {0,3}\[|,) {0,9}(?P<step>\d{1,12}) ?/ ?(?P<length>\d{1,12})(?:\]|;)",
        _STEP,
        rb"(?<![\w./])(?P<step>\d{1,12}) {0,3}/ {0,9}(?P<length>\d{1,12}) (?:batches|steps|iterations|iters|updates)(?!\w)",
        _EPOCH.replace(b"<epoch>", b"<step>"),
    )
)
_EPOCHS = len(_COUNTERS) - 1
_DIGITS = re.compile(rb"[\d:.,]")
#: How tables are drawn, beside with `|`.
_BARS = tuple(bar.encode() for bar in "│┃║")
_IN_EPOCH = re.compile(_EPOCH, re.IGNORECASE)
_RANK = re.compile(rb"(?<![A-Za-z])(?:rank|cuda|gpu|device=xla:\d|worker)[ :=/]{1,2}(\d{1,6})", re.IGNORECASE)
#: What only the line of a step has, where it tells no time.
_MEASURE = re.compile(
    rb"(?<![A-Za-z])(?:loss|lr|learning[ _]rate|acc|ppl|perplexity|reward|cost|train|epoch)(?![A-Za-z])", re.IGNORECASE
)
#: What lines tell of beside steps.
_EVENTS: tuple[tuple[LogEventKind, re.Pattern[bytes]], ...] = (
    (
        "evaluation",
        re.compile(rb"(?<![A-Za-z])(?:validation|validating|evaluation|evaluating)(?![A-Za-z])", re.IGNORECASE),
    ),
    (
        "save",
        re.compile(
            rb"(?<![A-Za-z])(?:sav(?:e|ed|ing)|snapshotting) [^\n]{0,60}?(?:model|checkpoint|state|iter)", re.IGNORECASE
        ),
    ),
)
_MAY_TELL = re.compile(rb"[vV](?:alid|alua|ALID|ALUA|ing|ed |e )|[pP]shot")
#: A mean since the begin shows in so many lines, most of which fall, and as one over the number of the step does.
LEAST_MEANS, FALLS, AS_ONE_OVER = 6, 0.9, 0.95
#: When a line was written, without a date.
_MOMENT = re.compile(rb"(?<![\d:.])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?![\d:])")


#: Which counter and which time a line has (-1: none), whether it is stamped, and what stands before its epoch.
_Kind = tuple[int, int, bool, bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """What a line of a step says: its numbers, NaN where it has none, which kind of line it is, and where it stands."""

    kind: _Kind
    at: int
    epoch: float
    step: float
    length: float
    value: float
    stamp_s: float
    rank: bytes


def _take(line: bytes, at: int, only: _Kind | None) -> _Line | None:
    """Take a line; None where it is none of a step, or not `only` of this kind."""
    if len(line) > MOST_BYTES:
        return None
    source, _, said = unwrap(line)
    asked = range(len(_COUNTERS)) if only is None else (only[0],)
    counter = next(((n, found) for n in asked if (found := _COUNTERS[n].search(said))), None)
    if counter is None:
        return None
    n, found = counter
    groups = found.groupdict()
    epoch = _IN_EPOCH.search(said) if n != _EPOCHS and not groups.get("epoch") else None
    kind, value = _find_time(said, range(len(_TIMES)) if only is None else (only[1],))
    stamp_s = _find_moment(said)
    if kind < 0 and (math.isnan(stamp_s) or not _MEASURE.search(said)):
        return None
    # Of an epoch several lines tell: its begin, how far it is, its end.
    before = _DIGITS.sub(b"", said[max(found.start() - 12, 0) : found.start()]) if n == _EPOCHS else b""
    rank = _RANK.search(said)
    return _Line(
        kind=(n, kind, not math.isnan(stamp_s), before),
        at=at,
        epoch=_float(groups.get("epoch") or (epoch["epoch"] if epoch else None)),
        step=float(groups["step"].replace(b",", b"")),
        length=_float(groups.get("length")),
        value=value,
        stamp_s=stamp_s,
        rank=source + (rank[0] if rank else b""),
    )


def _float(text: bytes | None) -> float:
    return math.nan if text is None else float(text)


def _find_time(line: bytes, asked: Iterable[int]) -> tuple[int, float]:
    """Find how long something took, in seconds, or how many a second, and which of the patterns says so; -1 where none does."""
    for n in asked:
        for said in _TIMES[n][1].finditer(line) if n >= 0 else ():
            if _OTHERS.search(line, max(said.start() - 24, 0), said.start()):
                continue
            if 0.5 * 10.0 ** -len(said["value"].partition(b".")[2]) <= ROUNDED * float(said["value"]):
                groups = said.groupdict()
                unit = (groups.get("unit") or groups.get("unit2") or b"s").lower()
                scale = 1e-3 if unit.startswith(b"m") else 1e-6 if unit.startswith(b"u") else 1.0
                return n, float(said["value"]) * scale
    return -1, math.nan


def _find_moment(line: bytes) -> float:
    """Give when a line was written; without a date, since midnight."""
    stamp_s = find_stamp(line)
    if (
        math.isnan(stamp_s)
        and (said := _MOMENT.search(line, 0, HEAD_BYTES))
        and not _OTHERS.search(line, 0, said.start())
    ):
        hours, minutes, seconds = (int(part) for part in said.groups()[:3])
        stamp_s = 3600.0 * hours + 60.0 * minutes + seconds + float(b"0." + (said[4] or b"0"))
    return stamp_s


def _gather(
    lines: Iterable[bytes], *, only: _Kind | None = None, events: list[tuple[int, LogEventKind, bytes]] | None = None
) -> list[_Line]:
    """Give the lines of the kind that tells most steps, of one rank; nothing where no kind tells some after the other.

    `only` looks for one kind, which costs less; `events` are filled with what else the lines tell of, and where.
    """
    kinds: dict[_Kind, list[_Line]] = {}
    n_lines = 0
    for at, line in enumerate(lines):
        if n_lines < MAX_STEPS and (found := _take(line, at, only)) is not None and only in (None, found.kind):
            kinds.setdefault(found.kind, []).append(found)
            n_lines += 1
        elif events is not None and len(line) <= MOST_BYTES and _MAY_TELL.search(line):
            events.extend((at, kind, line) for kind, pattern in _EVENTS if pattern.search(line))
    chosen: list[_Line] = []
    # Where several tell as many, as one line by two ways, that with a step, a time and a stamp.
    for kind in sorted(
        kinds, key=lambda kind: (-len(kinds[kind]), kind[0] == _EPOCHS, kind[1] < 0, not kind[2], kind[0])
    ):
        ranks: dict[bytes, list[_Line]] = {}
        for one in kinds[kind]:
            ranks.setdefault(one.rank, []).append(one)
        for of_rank in sorted(ranks.values(), key=len, reverse=True)[:1]:
            if len(of_rank) >= LEAST_LINES and _counts_on(of_rank):
                chosen = of_rank if len(of_rank) > len(chosen) else chosen
    return chosen


def _join(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Give each record of several lines as one: a line whose name it has already begins the next."""
    record: dict[bytes, bytes] = {}
    for line in lines:
        if len(line) > MOST_ITEM_BYTES:
            continue
        said = strip_colours(line).translate(None, b"'\"{}").strip(b" \t,")
        for bar in _BARS:
            said = said.replace(bar, b"|")
        cells = [cell.strip() for cell in said.strip(b"| ").split(b"|")]
        name = _DIGITS.sub(b"", cells[0] if len(cells) == 2 else said.partition(b": ")[0])
        if len(cells) > 2 or name == said:
            continue
        if name in record or len(record) >= MOST_ITEMS:
            yield b"; ".join(record.values())
            record = {}
        record[name] = b": ".join(cells)
    yield b"; ".join(record.values())


def _counts_on(lines: list[_Line]) -> bool:
    """Say whether a counter goes on from line to line."""
    counts = [(0.0 if math.isnan(one.epoch) else one.epoch, one.step) for one in lines]
    onward = [b > a for a, b in itertools.pairwise(counts) if b != a]
    return len(onward) >= LEAST_LINES - 1 and sum(onward) >= GROWS * len(onward)


def _recognise(head: bytes) -> bool:
    return any(_gather(lines) for lines in (head.split(b"\n"), _join(head.split(b"\n"))))


def has_lines(file: Path) -> bool:
    """Say whether a sample of a file has such lines; never raises."""
    return bool(_gather_sample(file)[0])


def _gather_sample(file: Path) -> tuple[list[_Line], bool]:
    """Give the lines of steps in a sample of a file, some from each of its pieces, and whether each is a record of several."""
    pieces = [piece.split(b"\n") for piece in read_sample(file)]
    lines = [line for piece in pieces for line in (piece if len(pieces) == 1 else piece[:PIECE_LINES])]
    alone = _gather(lines)
    return (alone, False) if alone else (_gather(_join(lines)), True)


def _read(file: Path, log: LogBuilder, name: str) -> None:
    """Read the lines of steps of a file."""
    events: list[tuple[int, LogEventKind, bytes]] = []
    sample, are_records = _gather_sample(file)
    text = read_lines(file, name=name)
    lines = _gather(_join(text) if are_records else text, only=sample[0].kind, events=events) if sample else []
    if not lines:
        return
    step, first = _number(lines, log)
    step, lines = step[first], [lines[n] for n in np.flatnonzero(first)]
    _tell(lines, step, log)
    for at, kind, text_of in [] if are_records else events:
        before = np.searchsorted([one.at for one in lines], at)
        log.add_event(kind, iteration=int(step[before - 1]) if before else 0, text=text_of)


def _tell(lines: list[_Line], step: Ints, log: LogBuilder) -> None:
    """Tell the steps of lines by what is surest of their times."""
    value, stamp_s = (np.array([getattr(one, name) for one in lines]) for name in ("value", "stamp_s"))
    kind = _TIMES[lines[0].kind[1]][0] if lines[0].kind[1] >= 0 else ""
    if (np.isfinite(stamp_s).all() and _tell_stamps(step, stamp_s, log, is_only=not kind)) or not kind:
        return
    log.is_mean = False
    apart = np.diff(step)
    interval = int(np.median(apart[apart > 0])) if (apart > 0).any() else 1
    with np.errstate(divide="ignore"):
        if kind == "seconds" and _began_together(step, value):
            log.reads = "seconds since the begin, from line to line"
            _tell_clock(step, value, log)
            return
        if kind == "seconds" and interval > 1:
            log.of = f"one iteration, or {interval}: the log does not say which"
        elif kind == "work":
            log.of, value = "1,000,000 tokens or samples", NOMINAL / value
        elif kind == "rate":
            value = 1.0 / value
        elif kind == "time" and _are_means(step, value):
            log.reads = "means since the begin, taken apart"
            _tell_clock(step, value * step, log, error_s=HALF_MS * step.astype(np.float64))
            return
    log.reads = {
        "time": "seconds a step",
        "rate": "steps a second",
        "seconds": "seconds",
        "work": "tokens or samples a second",
    }[kind]
    kept = np.flatnonzero(np.isfinite(value) & (value > 0))
    log.add_steps(step[kept], value[kept])


def _number(lines: list[_Line], log: LogBuilder) -> tuple[Ints, np.ndarray]:
    """Number steps through the run, and say which lines are the first to tell theirs."""
    epoch, step, length = (np.array([getattr(one, name) for one in lines]) for name in ("epoch", "step", "length"))
    if np.isfinite(epoch).all() and len(set(length.tolist())) == 1 and step.max() <= length[0]:
        log.set_interval("epoch", int(length[0]))
        step = (epoch - epoch.min()) * length + step
    elif np.isfinite(epoch).all():
        step = count_on(step, epoch, log)
    if lines[0].kind[0] == _EPOCHS:
        log.notes.append("it has a line an epoch: what is called a step here is one")
    number = np.clip(step, 0, MAX_COUNT - 1).astype(np.int64)
    return number, np.r_[True, np.diff(number) != 0]


def _tell_stamps(step: Ints, stamp_s: Seconds, log: LogBuilder, *, is_only: bool) -> bool:
    """Tell what passed from line to line by when they were written; False where that is too coarse, and something else tells it."""
    has_date = bool(stamp_s[0] > DAY_S)
    clock_s = stamp_s if has_date else stamp_s + DAY_S * np.r_[0.0, np.cumsum(np.diff(stamp_s) < -DAY_S / 2)]
    error_s = np.full(len(step), HALF_SECOND if is_whole(stamp_s) else HALF_MS)
    if not is_only and not (np.diff(clock_s) > 4.0 * error_s[1:]).mean() >= STAMPED:
        return False
    log.is_mean, log.reads = True, "stamps of the lines"
    _tell_clock(step, clock_s, log, error_s=error_s, stamp_s=stamp_s if has_date else None)
    return log.n_steps > 0


def _tell_clock(
    step: Ints, clock_s: Seconds, log: LogBuilder, *, error_s: Seconds | None = None, stamp_s: Seconds | None = None
) -> None:
    """Tell what passed between the readings of a clock."""
    log.is_mean = True
    error_s = np.full(len(step), HALF_SECOND if is_whole(clock_s) else 1e-2) if error_s is None else error_s
    ends = np.flatnonzero((np.diff(step) <= 0) | (np.diff(clock_s) < 0)) + 1
    for lap in np.split(np.arange(len(step)), ends):
        if lap[0]:
            log.begin()
        for _, high, seconds in log.read_clock(step[lap], clock_s[lap], error_s[lap]):
            at = lap[high]
            log.add_step(int(step[at]), seconds, stamp_s=math.nan if stamp_s is None else float(stamp_s[at]))


def _are_means(step: Ints, value: Seconds) -> bool:
    """Say whether seconds of a step are the mean since the first one: then they fall as one over its number does."""
    onward = np.diff(value)
    if len(value) < LEAST_MEANS or not 0 < step[0] <= np.median(np.diff(step)) or (onward <= 0).mean() < FALLS:
        return False
    return bool((np.diff(value * step) > 0).all()) and float(np.corrcoef(value, 1.0 / step)[0, 1]) >= AS_ONE_OVER


def _began_together(step: Ints, value: Seconds) -> bool:
    """Say whether values are a clock that began with the counter of steps: from the first line on one predicts the other."""
    if not is_clock(step.astype(np.float64), value) or step[-1] <= step[0]:
        return False
    a_step = float(value[-1] - value[0]) / float(step[-1] - step[0])
    foretold, told = a_step * float(step[0]), float(value[0])
    return abs(foretold - told) <= PROPORTIONAL * max(foretold, told) + a_step


FORMAT = FileFormat(
    name="any-console",
    title="a console that counts steps and tells their time",
    reads="",
    example="step 10 .. 0.52 s/step",
    recognise=_recognise,
    read=_read,
)
