"""Tables of metrics with a step: CSV, TSV, JSON Lines, what trackers export, and `trainer_state.json` of Hugging Face.

Enters: a file. Leaves: steps.

Columns are found by their names: a step, and one of: the time of a step (`step_time_ms`, `train/step_time`), a clock that runs
on (`_runtime`, `_timestamp`, `Wall time`), steps a second, or tokens or samples a second. A unit in the name is obeyed; times
without one are seconds where they can be. `LogBuilder.column` and `unit` say it instead. Of a rate of tokens the time of a step
follows only with a column of tokens; else the pace is told, the seconds of a million tokens.

What it costs: 0.2 us a row of numbers in CSV, 5 us where rows are quoted or odd.

Source: Lightning's `metrics.csv` (src/lightning/fabric/loggers/csv_logs.py); the history of W&B (`_step`, `_runtime`,
`_timestamp`); TensorBoard's download (`Wall time,Step,Value`); MLflow's file store (`timestamp value step`, mlflow/store/tracking);
huggingface/transformers, trainer_callback.py (`TrainerState`).
"""

import csv
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.trace import Seconds
from diagnose.model.training_log import LogIntervalKind
from diagnose.trace.logs.builder import MAX_COUNT, MAX_STEPS, NOMINAL, LogBuilder
from diagnose.trace.logs.lines import read_blocks, read_lines, strip_colours
from diagnose.trace.logs.log_format import FileFormat
from diagnose.trace.logs.stamps import find_stamp, read_duration
from diagnose.trace.units import UNITS

_STEPS = (
    "step|_step|global_step|steps|iteration|iter|it|batch|update|updates|num_updates|n_step|train_step|training_step"
    "|optimizer_step|trainer/global_step|train/global_step|time/batch|global_batch|current_steps|global_step/max_steps"
)
_STEP = re.compile(rf"(?:{_STEPS})\Z")
#: How a name ends that says its unit, and the seconds in it.
_UNIT = re.compile(r"(?:[_ /.-]|\b)[(\[]?(ms|msec|milliseconds?|us|usec|microseconds?|ns|s|secs?|seconds?)[)\]]?\Z")
_SECONDS = {"m": 1e-3, "u": 1e-6, "n": 1e-9, "s": 1.0}
_TIME = re.compile(
    r"(?:(?:step|iter|iteration|batch)[_ -]?(?:time|duration|latency)|time[_ -]?per[_ -]?(?:step|iter|iteration|batch)"
    r"|(?:s|sec|seconds)(?:/|_per_)(?:step|it|iter|iteration|batch)|train_step_timing|end_to_end|timing_s/step|\bdt)(?:\Z|[_ (\[/])"
)
_CLOCK = re.compile(
    r"(?:_runtime|_timestamp|wall[_ ]?time|timestamp|time|elapsed|elapsed[_ ]time|relative time.{0,12}|runtime|time/train|date"
    r"|datetime)\Z"
)
_PER_SECOND = r"(?:/s|/sec|_per_s|_per_sec|_per_second)\b"
_STEP_RATE = re.compile(rf"(?:it|its|iter|iters|iterations|step|steps|batch|batches){_PER_SECOND}|\bups\Z")
_WORK_RATE = re.compile(
    rf"(?:tok|toks|token|tokens|words|sample|samples|examples|images|seq|seqs|sequences){_PER_SECOND}|\b(?:tps|wps|throughput)\b"
)
_WORK = re.compile(
    r"(?:(?:num_|n_|total_|consumed_)?tokens|n?tokens_seen|num_input_tokens_seen|(?:consumed_)?samples)\Z"
)
_DATA = re.compile(r"(?:data|dataloader|data_loading|dataloading)[_ ]?(?:time)?\Z")
#: Never a time of training.
OTHERS = re.compile(r"(?:\A|[/_ ])(?:val|valid|validation|eval|test|eta|lr)(?:[/_ ]|\Z)|__(?:min|max)\Z")
_NUMBER = re.compile(r"\s*[-+]?(?:\d{1,20}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?\s*\Z")
#: A step with how many there are to be.
_OF_ALL = re.compile(r"(\d{1,15})/\d{1,15}\Z")
#: Steps take longer than this in hardly any job: times without a unit that are longer may be milliseconds.
LONG_STEP_S = 60.0
#: A clock goes on at nearly each line.
INCREASING = 0.95
#: So many steps after another show that a column is no clock.
LEAST_ONWARD = 4
#: Unix times from 1990 to 2100 in each unit.
_UNIX = ((6.3e8, 4.1e9, 1.0), (6.3e11, 4.1e12, 1e-3), (6.3e14, 4.1e15, 1e-6), (6.3e17, 4.1e18, 1e-9))
#: Columns and bytes of a header at most.
MAX_COLUMNS = 10_000
#: Numbers are shorter than this; rows whose numbers are longer are read one after the other, as `_NUMBER` says.
LONG_NUMBER = 1e18
#: Rows that are made an array of at a time.
ROWS_AT_ONCE = 1 << 12


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Which column is the step, which tells the time, and how: `time`, `clock`, `step-rate` or `work-rate`."""

    step: str
    column: str
    kind: str
    work: str | None = None
    data: str | None = None
    epoch: str | None = None


def _bare(name: str) -> str:
    """Give a name without the run before it and without its unit, in small letters."""
    name = name.rpartition(" - ")[2].strip().lower()
    return _UNIT.sub("", name).rstrip(" _/(") or name


def plan_columns(names: list[str], column: str | None, unit: str | None) -> Plan | None:
    """Choose the columns; None where there is no step, or nothing that tells time."""
    lower = {name: name.rpartition(" - ")[2].strip().lower() for name in names[:MAX_COLUMNS]}
    epoch = next((name for name in lower if lower[name] == "epoch"), None)
    step = next((name for name in lower if _STEP.fullmatch(lower[name])), None)
    if step is None and epoch is not None and "time" in lower.values():
        step, epoch = epoch, None  # Ultralytics' results.csv
    if step is None:
        return None
    usable = [name for name in lower if name != step and not OTHERS.search(lower[name])]
    if column is not None:
        found = next((name for name in lower if column in (name, lower[name])), None)
        usable = [] if found is None else [found]
    kinds: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("time", lambda name: _TIME.search(_bare(name)) or _TIME.search(lower[name])),
        ("clock", lambda name: _CLOCK.fullmatch(lower[name].rpartition("/")[2]) or _CLOCK.fullmatch(lower[name])),
        ("step-rate", lambda name: _STEP_RATE.search(lower[name])),
        ("work-rate", lambda name: _WORK_RATE.search(lower[name])),
    )
    work = next((name for name in lower if _WORK.fullmatch(lower[name].rpartition("/")[2])), None)
    data = next((name for name in lower if _DATA.fullmatch(_bare(name).rpartition("/")[2])), None)
    if column is not None and usable and unit is not None:
        kind = {"it/s": "step-rate", "tokens/s": "work-rate", "samples/s": "work-rate"}.get(unit, "time")
        return Plan(step, usable[0], kind, work, data, epoch)
    for kind, fits in kinds:
        for name in usable:
            if fits(name):
                return Plan(step, name, kind, work, data, epoch)
    return Plan(step, usable[0], "time", work, data, epoch) if column is not None and usable else None


def _has_csv_column(head: bytes, column: str) -> bool:
    """Say whether the first line names a step and this column."""
    names, _ = _header(head.partition(b"\n")[0].decode("utf-8", "replace"))
    return plan_columns(names, column, None) is not None


def _has_json_column(head: bytes, column: str) -> bool:
    """Say whether the first line is an object with a step and this key."""
    first = _object(head.partition(b"\n")[0])
    return first is not None and plan_columns(list(first), column, None) is not None


def _recognise_csv(head: bytes) -> bool:
    """Say whether the first line names a step and something that tells time."""
    names, _ = _header(head.partition(b"\n")[0].decode("utf-8", "replace"))
    return len(names) > 1 and plan_columns(names, None, None) is not None


def _header(line: str) -> tuple[list[str], str]:
    """Give the names of the columns, and what stands between them."""
    separator = max(",\t;", key=line.count)
    try:
        return next(csv.reader([line.lstrip("# ")], delimiter=separator), []), separator
    except csv.Error:
        return [], separator


def _recognise_jsonl(head: bytes) -> bool:
    """Say whether the first line is an object with a step and something that tells time, and the next is an object, too."""
    lines = head.split(b"\n", 3)
    first = _object(lines[0]) if lines and lines[0].startswith(b"{") else None
    is_followed = len(lines) > 1 and lines[1].startswith(b"{")
    return first is not None and is_followed and plan_columns(list(first), None, None) is not None


def _object(line: bytes) -> dict[str, object] | None:
    """Read an object, and let what is nested be named by its path; None where it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    flat: dict[str, object] = {}
    for key, value in list(found.items())[:MAX_COLUMNS]:
        if isinstance(value, dict):
            flat.update({f"{key}/{inner}": inside for inner, inside in list(value.items())[:MAX_COLUMNS]})
        else:
            flat[key] = value
    return flat


def _read_csv(file: Path, log: LogBuilder, name: str) -> None:
    """Read a table whose first line names the columns: plain blocks of rows at once, others row by row."""
    blocks = read_blocks(file, name=name)
    head, _, rest = next(blocks, b"").partition(b"\n")
    names, separator = _header(_text(strip_colours(head)))
    plan = _plan_or_raise(names, log, name)
    at = {column: names.index(column) for column in list_columns(plan)}

    def rows(lines: Iterator[str]) -> Iterator[dict[str, object]]:
        for row in csv.reader(lines, delimiter=separator):
            yield {column: row[n] for column, n in at.items() if n < len(row)}

    def pieces() -> Iterator[Seconds]:
        following = itertools.chain((rest,), blocks)
        for block in following:
            if b'"' in block:  # a value may go on in the next block
                lines = (line for part in itertools.chain((block,), following) for line in _split_lines(part))
                yield from _measure(rows(lines), at)
                return
            plain = _measure_plain(block, separator, len(names), tuple(at.values()))
            yield from _measure(rows(_split_lines(block)), at) if plain is None else (plain,)

    try:
        tell_rows(pieces(), plan, log, name)
    except csv.Error as error:
        raise TraceError(f"is no table ({error}); expected a line of values below each other", where=name) from None


def _measure_plain(block: bytes, separator: str, n_columns: int, wanted: tuple[int, ...]) -> Seconds | None:
    """Read numbers of rows without quotes, a column each; None where the block has something else."""
    if b"\x1b" in block or b"\0" in block or not block.strip():
        return None
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    names = [str(n) for n in range(n_columns)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            arrow_csv.ParseOptions(delimiter=separator, quote_char=False),
            arrow_csv.ConvertOptions(
                include_columns=(chosen := [names[n] for n in wanted]),
                column_types=dict.fromkeys(chosen, pa.float64()),
            ),
        )
    except pa.ArrowInvalid:
        return None
    values = np.stack([column.to_numpy() for column in table.columns], axis=1)
    # Longer numbers are none in a row that is read alone.
    return None if np.any(np.abs(values) >= LONG_NUMBER) else values


def _measure(rows: Iterable[dict[str, object]], columns: Iterable[str]) -> Iterator[Seconds]:
    """Read the numbers of rows, so many at a time."""
    names = tuple(columns)
    values = (tuple(_number(row.get(name)) for name in names) for row in rows)
    while some := list(itertools.islice(values, ROWS_AT_ONCE)):
        yield np.array(some, dtype=np.float64)


def _split_lines(block: bytes) -> Iterator[str]:
    """Give the lines of a block as text."""
    return (_text(strip_colours(line)) for line in block.removesuffix(b"\n").split(b"\n"))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").replace("\0", "")


def _read_jsonl(file: Path, log: LogBuilder, name: str) -> None:
    """Read an object a line."""
    found = (
        row for line in read_lines(file, name=name) if line.startswith(b"{") and (row := _object(line)) is not None
    )
    first = next(found, {})
    plan = _plan_or_raise(list(first), log, name)
    tell_rows(_measure(itertools.chain((first,), found), list_columns(plan)), plan, log, name)


def _plan_or_raise(names: list[str], log: LogBuilder, name: str) -> Plan:
    """Choose the columns, as somebody says them or by their names."""
    plan = plan_columns(names, log.column, log.unit)
    if plan is None:
        some = ", ".join(names[:12])
        raise TraceError(
            f"has no column {log.column or 'that tells time'} beside one of steps; its columns are {some}: name one with --column, "
            "and its unit with --unit",
            where=name,
        )
    return plan


def list_columns(plan: Plan) -> list[str]:
    """List the columns that are read: the step first, then what tells the time."""
    return list(
        dict.fromkeys(name for name in (plan.step, plan.column, plan.work, plan.data, plan.epoch) if name is not None)
    )


def _number(value: object) -> float:
    """Read a number, a duration or a moment; NaN where it is none of them."""
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return math.nan
    if _NUMBER.match(value):
        return float(value)
    if of_all := _OF_ALL.match(value):
        return float(of_all[1])
    seconds = read_duration(value)
    return find_stamp(value.encode("utf-8", "replace")) if math.isnan(seconds) else seconds


def tell_rows(pieces: Iterable[Seconds], plan: Plan, log: LogBuilder, name: str) -> None:
    """Tell the steps of rows, given as arrays of shape (n_rows, n_columns)."""
    columns = list_columns(plan)
    found: list[Seconds] = []
    n_found = 0
    for values in pieces:
        is_row = (np.abs(values[:, 0]) < MAX_COUNT) & np.isfinite(values[:, 1])
        found.append(values[is_row][: MAX_STEPS - n_found])
        n_found += len(found[-1])
    if not n_found:
        return
    table = dict(zip(columns, np.concatenate(found).T, strict=True))
    step = table[plan.step]
    if plan.step.strip().lower() == "epoch":
        log.notes.append("it has a line an epoch: what is called a step here is one")
    if plan.epoch is not None:
        step = count_on(step, table[plan.epoch], log)
    if plan.kind == "clock" and _goes_back(step, table[plan.column]):
        plan = dataclasses.replace(plan, kind="time")
        log.notes.append(
            f"{plan.column} falls as often as it grows: it is taken for the time of a step, and not for a clock"
        )
    if plan.kind == "clock":
        tell_clock(step, table[plan.column], plan, log)
        return
    work = table[plan.work] if plan.work is not None else None
    step_s, tokens = _read_times(step, table[plan.column], work, plan, log, name)
    kept = np.flatnonzero(step_s > 0)
    before = log.n_steps
    kept = kept[log.add_steps(step[kept].astype(np.int64), step_s[kept], tokens=tokens[kept])]
    if plan.data is not None:
        waited = table[plan.data][kept]
        is_part = waited <= step_s[kept]
        log.add_parts("data", before + np.flatnonzero(is_part), waited[is_part])


def count_on(step: Seconds, epoch: Seconds, log: LogBuilder) -> Seconds:
    """Number steps that are counted in each epoch anew through the run."""
    is_next = (np.diff(step) < 0) & (np.diff(epoch) > 0)
    if not is_next.any():
        return step
    lengths = np.maximum.reduceat(step, np.r_[0, np.flatnonzero(is_next) + 1])[:-1]
    log.set_interval("epoch", int(np.median(lengths)))
    return np.asarray(step + np.r_[0.0, np.cumsum(np.where(is_next, step[:-1], 0.0))])


def _read_times(
    step: Seconds, values: Seconds, work: Seconds | None, plan: Plan, log: LogBuilder, name: str
) -> tuple[Seconds, Seconds]:
    """Turn a column into seconds of a step, and say how."""
    nothing = np.full(len(step), np.nan)
    if plan.kind == "time":
        if (
            values.size > 2
            and is_clock(step, values)
            and log.unit is None
            and _UNIT.search(plan.column.lower()) is None
        ):
            log.notes.append(
                f"{plan.column} grows with every line: it is taken for the time of a step, and not for a clock"
            )
        factor, unit = _unit_of(values, plan, log, name)
        log.reads = f"{plan.column} ({unit})"
        return values * factor, nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        if plan.kind == "step-rate":
            log.reads = f"{plan.column} (steps a second)"
            return 1.0 / values, nothing
        worked = nothing if work is None else _per_step(step, work)
        if np.isfinite(worked).any():
            log.reads = f"{plan.work} divided by {plan.column}"
            return worked / values, worked
        log.of = "1,000,000 tokens or samples"
        log.reads = f"{plan.column}: how many a step has is not stated"
        return NOMINAL / values, nothing


def _unit_of(values: Seconds, plan: Plan, log: LogBuilder, name: str) -> tuple[float, str]:
    """Say in what unit times are: as somebody says, as the name does, else seconds where they can be."""
    said = _UNIT.search(plan.column.lower())
    if log.unit in UNITS:
        return UNITS[log.unit], log.unit
    if said is not None:
        return _SECONDS[said[1][0]], said[1]
    usual = float(np.median(values))
    if usual > LONG_STEP_S:
        raise TraceError(
            f"column {plan.column} has values around {usual:.4g} and no unit; expected to know it: say --unit s, or --unit ms",
            where=name,
        )
    return 1.0, "no unit: taken for seconds"


def is_clock(step: Seconds, values: Seconds) -> bool:
    """Say whether values go on with the steps, as those of a clock do."""
    new = np.diff(step) > 0
    return bool(new.any()) and float((np.diff(values)[new] > 0).mean()) >= INCREASING


def _goes_back(step: Seconds, values: Seconds) -> bool:
    """Say whether values of following steps are none of a clock: they fall a third as often as they grow, or never grow."""
    onward = np.diff(values)[np.diff(step) > 0]
    n_fell, n_grew = int((onward < 0).sum()), int((onward > 0).sum())
    return n_fell > 0 and (len(onward) >= LEAST_ONWARD or not n_grew) and n_grew <= 3 * n_fell


def _per_step(step: Seconds, work: Seconds) -> Seconds:
    """Give the work of a step, of a column that tells that or what was done so far."""
    if len(step) < 3 or not is_clock(step, work):
        return work
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.diff(work, prepend=0.0) / np.diff(step, prepend=0.0)
    known = np.flatnonzero(each > 0)
    if not len(known):
        return np.full(len(step), np.nan)
    # After a restart a counter may go on where steps fall back: that row has the work of the next.
    following = known[np.minimum(np.searchsorted(known, np.arange(len(step))), len(known) - 1)]
    return np.where((each > 0) | (np.diff(step, prepend=0.0) >= 0), np.where(each > 0, each, np.nan), each[following])


def tell_clock(step: Seconds, clock: Seconds, plan: Plan, log: LogBuilder) -> None:
    """Tell the time between the lines of a clock."""
    usual = float(np.median(clock))
    scale = next((factor for low, high, factor in _UNIX if low <= usual <= high), 0.0)
    is_unix = scale > 0
    if log.unit in UNITS and not is_unix:
        scale = UNITS[log.unit]
    elif not is_unix:
        said = _UNIT.search(plan.column.lower())
        scale = 3600.0 if plan.column.lower() == "time/train" else _SECONDS[said[1][0]] if said else 1.0
    log.is_mean, log.reads = True, f"{plan.column}, a clock"
    is_whole = bool(np.all(clock == np.round(clock)))
    error = np.full(len(clock), 0.5 * scale if is_whole else 1e-3)
    # A step may have several lines, one a metric: the first counts. One that comes much later was run again.
    passed_s = np.diff(clock * scale)
    usual_s = float(np.median(passed_s[np.diff(step) > 0])) if (np.diff(step) > 0).any() else 0.0
    first = np.r_[True, (np.diff(step) != 0) | (passed_s > usual_s / 2)]
    step, clock_s, error = step[first], (clock * scale)[first], error[first]
    begins = [0, *(np.flatnonzero((np.diff(step) <= 0) | (np.diff(clock_s) < 0)) + 1).tolist(), len(step)]
    for low, high in itertools.pairwise(begins):
        if low:
            log.begin()
        for _, b, seconds in log.read_clock(step[low:high].astype(np.int64), clock_s[low:high], error[low:high]):
            log.add_step(int(step[low + b]), seconds, stamp_s=float(clock_s[low + b]) if is_unix else math.nan)


_MLFLOW = re.compile(rb"(?:\d{13} \S{1,40} \d{1,12}\n){3}")


def _recognise_mlflow(head: bytes) -> bool:
    """Say whether lines are a stamp, a value and a step."""
    return _MLFLOW.match(head) is not None


def _read_mlflow(file: Path, log: LogBuilder, name: str) -> None:
    """Read a metric of MLflow's file store."""
    rows = (line.split(b" ") for line in read_lines(file, name=name))
    table = [(float(row[2]), float(row[0])) for row in rows if len(row) == 3 and row[0].isdigit() and row[2].isdigit()]
    if table:
        step, clock = np.array(table[:MAX_STEPS]).T
        tell_clock(step, clock, Plan("step", "timestamp", "clock"), log)


def _recognise_state(head: bytes) -> bool:
    """Say whether it is the state that the Trainer saves with a checkpoint."""
    return head.lstrip()[:1] == b"{" and b'"log_history"' in head


def _read_state(file: Path, log: LogBuilder, name: str) -> None:
    """Read `trainer_state.json`: steps, and their time where a trainer logs it."""
    try:
        with file.open("rb") as content:
            state = json.loads(content.read(1 << 28))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(
            f"is no whole JSON ({str(error)[:80]}); expected trainer_state.json: copy it again", where=name
        ) from None
    history = state.get("log_history") if isinstance(state, dict) else None
    entries = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    kinds: tuple[tuple[str, LogIntervalKind], ...] = (
        ("logging_steps", "log"),
        ("save_steps", "save"),
        ("eval_steps", "evaluation"),
    )
    for key, kind in kinds:
        value = state.get(key) if isinstance(state, dict) else None
        if isinstance(value, int) and (kind != "evaluation" or any("eval_runtime" in entry for entry in entries)):
            log.set_interval(kind, value)
    total = state.get("max_steps") if isinstance(state, dict) else None
    log.total = total if isinstance(total, int) and total > 0 else None
    for entry in entries:
        step, seconds = _number(entry.get("step")), _number(entry.get("step_time"))
        if not math.isfinite(step):
            continue
        if "eval_runtime" in entry:
            log.add_event("evaluation", iteration=int(step), seconds=_number(entry["eval_runtime"]))
        elif seconds > 0:
            log.add_step(int(step), seconds, stamp_s=math.nan)
    if not log.n_steps:
        overall = next(
            (
                _number(entry.get("train_steps_per_second"))
                for entry in reversed(entries)
                if "train_steps_per_second" in entry
            ),
            0,
        )
        mean = f" (all steps together: {1 / overall:.3g} s a step)" if overall > 0 else ""
        raise TraceError(
            f"has steps and losses, and no time of any step{mean}; expected `step_time`, which TRL logs: give what the Trainer "
            "printed, or its TensorBoard or W&B history as CSV",
            where=name,
        )


FORMATS = (
    FileFormat(
        name="trainer-state",
        title="Hugging Face Trainer (trainer_state.json)",
        reads="step_time",
        example='{"log_history": [{"step": 10, "step_time": 1.2}]}',
        recognise=_recognise_state,
        read=_read_state,
        is_mean=True,
    ),
    FileFormat(
        name="jsonl",
        title="JSON Lines",
        reads="a column",
        example='{"step": 10, "step_time_ms": 123.4}',
        recognise=_recognise_jsonl,
        read=_read_jsonl,
        has_column=_has_json_column,
        is_mean=True,
    ),
    FileFormat(
        name="mlflow-metric",
        title="MLflow metric",
        reads="timestamp, a clock",
        example="1700000000000 2.5 10",
        recognise=_recognise_mlflow,
        read=_read_mlflow,
        is_mean=True,
    ),
    FileFormat(
        name="csv",
        title="CSV or TSV",
        reads="a column",
        example="step,step_time_ms",
        recognise=_recognise_csv,
        read=_read_csv,
        has_column=_has_csv_column,
        is_mean=True,
    ),
)
