"""How well logs of every format and every shape are understood: `python -m tests.logs.formats_table [FIRST SEED] [RUNS]`.

Writes docs/about/logs.md: formats x shapes, how many of so many logs are answered right. Where a file does not tell, an answer is
right that says so: it is counted apart, with what the file lacks. All formats take an hour of CPU: `--rows FILE` keeps each row
when it is done, so that the next run goes on from there; `--formats FORMAT ...` takes some. `--look FORMAT ...` prints what is not
right.
"""

import argparse
import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from diagnose.errors import TraceError
from diagnose.features.paces import measure_log
from diagnose.features.series.baseline import SPIKE_DEVIATIONS
from diagnose.judge.log import judge_log
from diagnose.judge.log_causes import ASK_CHANGE
from diagnose.judge.verdict import Verdict
from diagnose.model.trace import Job
from diagnose.model.training_log import LogFacts, TrainingLog
from diagnose.trace.find_log import find_log
from diagnose.trace.logs.load import load_log
from tests.judge.cases import built_in
from tests.logs.confidences import BINS, count_causes, write_table
from tests.logs.formats import FORMATS, Written
from tests.logs.score import Score, score
from tests.logs.shapes import SHAPES, Shape, draw_shape
from tests.trace.producers.recordings import say_nothing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "about" / "logs.md"
JOB = Job("job", 1, 1, 1, 1, 1, 1)
#: Seeds that nothing was chosen by, and logs of a format and a shape.
FIRST, N = 60_000, 40
#: Jobs whose causes are counted by how surely they are said: nothing was chosen by these either.
CONFIDENCES_FROM, CONFIDENCES_RUNS = 93_000, 80
#: Parts of the logs of a shape of which the answer is right, or says that the file does not tell.
RIGHT, QUIET = 0.95, 0.97
#: Times that are wrong by this part are read off a coarse clock: less than what counts as slow.
COARSE = 0.005
#: A first line that has less than this part of the seconds until it was printed does not tell them.
FIRST_PART = 0.75
#: Less than this part of the steps in lines is too few for their cost.
TOLD_PART = 0.99
#: A period shows where so many lines are in one.
SHOWN_LINES = 3
#: What files lack, and what is said then.
LACKS = {
    "clock": "bars show whole seconds, or rates of two digits: what is shorter than that does not show",
    "lines": "too few lines",
    "lines between": "each line is one step and the steps between are not printed, or some are in no line: periods are named with "
    "their divisors, the cost is that of the printed steps",
    "stamps": "a restart is told and what was run again, not how long the job was down",
    "first lines": "times run from line to line, so that the first line of a start has none: slow first steps are in the cost of "
    "the restart",
    "tokens": "longer steps may have more work: that is said, and asked",
    "intervals": "nothing says what is done every so many steps: the period is told, and asked about",
    "seconds between": "times leave saves or evaluations out, and nothing tells their seconds",
    "starts": "a restart that has no line of its own, and runs one logged step again at most, does not show",
    "unit": "a column whose values are above 60 and name no unit may be milliseconds: `--unit` is asked for",
    "seconds": "rates alone: how many times as long, no seconds",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What is said of one log."""

    seed: int
    shape: Shape
    score: Score
    is_right: bool
    #: What the file does not tell, where the answer says no more than it can tell; a key of `LACKS`.
    lacks: str
    #: The same, of the lost time.
    unpriced: str
    said: str
    #: Causes, and how surely each is said.
    told: tuple[tuple[str, float], ...] = ()

    def count_told(self) -> Iterator[tuple[str, float, bool]]:
        """Give each cause that is said, how surely, and whether it is what was put in."""
        for cause, confidence in self.told:
            is_put_in = self.shape.kind == "saves" if cause == "checkpoint-stall" else self.is_right or bool(self.lacks)
            yield cause, confidence, is_put_in and cause in ("checkpoint-stall", "unknown")


def run_cell(written: Written, kind: str, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Write, read and judge logs of a format and a shape."""
    rules = built_in().rules
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / written.file
        for seed in seeds:
            shape = draw_shape(kind, seed)
            path.write_bytes(written.write(shape.run))
            inputs = find_log(path)
            if inputs is None:
                nothing = Score(kind=False, onset=None, period=None, lost=None, lost_right=None, said="")
                yield Outcome(seed, shape, nothing, False, "lines", "lines", "no log")
                continue
            try:
                log = load_log(inputs, name="log", report=say_nothing)
            except TraceError as error:
                nothing = Score(kind=False, onset=None, period=None, lost=None, lost_right=None, said="")
                lacks = "unit" if "no unit" in str(error) else ""
                yield Outcome(seed, shape, nothing, False, lacks, lacks, str(error))
                continue
            facts = measure_log(log, min_speedup=1.02)
            verdict = judge_log(facts, JOB, rules)
            found = score(shape, facts)
            is_right = found.kind and found.onset is not False and found.period is not False
            lacks = "" if is_right else name_lack(shape, log, facts, verdict)
            unpriced = lacks or _name_unpriced(shape, log, facts)
            said = f"{found.said} {[cause.title for cause in verdict.causes]}"
            told = tuple((cause.cause, cause.confidence) for cause in verdict.causes)
            yield Outcome(seed, shape, found, is_right, lacks, unpriced, said, told)


def name_lack(shape: Shape, log: TrainingLog, facts: LogFacts, verdict: Verdict) -> str:
    """Name what a file lacks, where what is said of it is no more than it can tell; empty where something false is said."""
    kind, causes = shape.kind, verdict.causes
    if {cause.cause for cause in causes} - {"unknown", *(["checkpoint-stall"] if kind == "saves" else [])}:
        return ""
    periods = {p for spikes in facts.spikes for p in (spikes.period, *spikes.or_every) if p}
    is_true, what = False, ""
    if kind == "restart":
        fell_back = bool((np.diff(shape.run.iteration) < -shape.run.interval).any())
        is_true = (len(facts.restarts) == 1 or not fell_back) and not causes
        what = "starts" if not facts.restarts else "stamps" if np.isnan(log.stamp_s).all() else "first lines"
    elif kind == "sequence":
        is_true = not facts.is_work_told and bool(facts.windows) and all(cause.check == ASK_CHANGE for cause in causes)
        what = "tokens"
    elif kind == "saves":
        known = {shape.run.intervals["evaluation"], shape.run.intervals["save"]}
        told = [known & {spikes.period, *spikes.or_every} for spikes in facts.spikes if spikes.period]
        is_stated = log.intervals.keys() & {"save", "evaluation"} or log.events
        what = "seconds between" if is_stated or _are_left_out(shape, facts) else "intervals"
        # What no interval is stated of, times may show: then the period is told.
        # Of lines that are longer than what is between two evaluations a few may stand out at no period.
        are_long = log.is_mean and facts.interval > shape.run.interval
        is_asked = [bool(cause.check) or (are_long and "lines of" in cause.title) for cause in causes]
        is_true = not facts.windows and all(told) and all(is_asked)
        is_true = is_true and (bool(told) or _are_left_out(shape, facts) or _is_hidden(shape, log, facts))
    elif kind == "periodic" and shape.truth.period in periods and not facts.windows:
        is_true, what = True, "lines between"
    if not is_true and kind in ("periodic", "sporadic", "saves", "restart"):
        if _is_sampled(log, facts):
            is_true, what = not periods or _are_multiples(shape, facts), "lines between"
        elif log.error > COARSE:
            is_true, what = not causes and (kind == "restart" or _is_hidden(shape, log, facts)), "clock"
    if not (is_true and what) and log.is_mean and facts.interval > shape.run.interval:
        # Lines are longer than what is between two of the file: slow ones are said to be lines, and not iterations.
        unknown = [cause for cause in causes if cause.cause == "unknown"]  # what has a name was put in: see above
        is_true = not periods and all("lines of" in cause.title for cause in unknown) and not facts.windows
        is_true = is_true and (kind != "periodic" or bool(causes) or _is_hidden(shape, log, facts))
        is_true = is_true and not (shape.truth.period is not None and shape.truth.period > SHOWN_LINES * facts.interval)
        what = "clock"
    return what if is_true else ""


def _are_left_out(shape: Shape, facts: LogFacts) -> bool:
    """Say whether the times of a log are those of steps alone: what is between them is nowhere in the file."""
    told_s, between_s = float(facts.step_s.sum()) * facts.interval, sum(one.seconds for one in shape.run.between)
    if facts.of:  # rates: a step is so many times a usual one
        told_s *= float(np.median(shape.run.step_s) / np.median(facts.step_s))
    return told_s < float(shape.run.step_s.sum()) + 0.5 * between_s


def _is_hidden(shape: Shape, log: TrainingLog, facts: LogFacts) -> bool:
    """Say whether slow steps are lost in the clock that lines are read off: each is short for a line, or each line has some."""
    n_lines = max(len(facts.iterations), 1)
    n_slow = shape.truth.count or len(shape.run.between)
    each_s = sum(shape.truth.lost_s.values()) / max(n_slow, 1)
    line_s = float(np.median(facts.step_s)) * facts.interval
    return each_s < SPIKE_DEVIATIONS * log.error * line_s or n_slow > n_lines / SHOWN_LINES


def _are_multiples(shape: Shape, facts: LogFacts) -> bool:
    """Say whether all periods that are told are multiples of those that were put in."""
    put_in = [shape.truth.period] if shape.truth.period else []
    if shape.kind == "saves":
        put_in = [shape.run.intervals["evaluation"], shape.run.intervals["save"]]
    told = [spikes.period for spikes in facts.spikes if spikes.period]
    return all(any(period % own == 0 for own in put_in) for period in told)


def _is_sampled(log: TrainingLog, facts: LogFacts) -> bool:
    """Say whether the steps between lines are not in the log."""
    return not log.is_mean and facts.interval > 1


def _lacks_start(shape: Shape, log: TrainingLog) -> bool:
    """Say whether the first line has not the slow first step of the run, as where it has its own step alone."""
    first = int(log.iteration[0])
    return float(log.step_s[0]) * first < FIRST_PART * float(shape.run.step_s[:first].sum())


def _count_told(log: TrainingLog) -> int:
    """Count the steps between the first and the last line that some line stands for."""
    passed = np.diff(log.iteration).clip(0)
    return int(np.where(log.n_steps[1:] > 0, np.minimum(log.n_steps[1:], passed), passed).sum())


def _name_unpriced(shape: Shape, log: TrainingLog, facts: LogFacts) -> str:
    """Name what a file lacks for the cost of what is told of it."""
    if log.of:
        return "seconds"
    if log.error > COARSE:
        return "clock"
    if shape.kind == "restart" and all(restart.lost_s is None for restart in facts.restarts):
        return "stamps"
    if shape.kind in ("periodic", "sporadic", "restart", "saves") and _is_sampled(log, facts):
        return "lines between"
    if shape.kind in ("restart", "first-steps", "windows", "ramp") and log.iteration[0] > shape.run.interval:
        return "first lines"
    if shape.kind == "restart" and _lacks_start(shape, log):
        return "first lines"
    if log.is_mean and _count_told(log) < TOLD_PART * float(np.diff(log.iteration).clip(0).sum()):
        return "lines between"
    return ""


def look(formats: Sequence[str], seeds: Sequence[int]) -> None:
    """Print a line for each format, and each log of which something false is said."""
    for name in formats:
        for kind in [kind for kind in SHAPES if kind not in FORMATS[name].never]:
            cell = list(run_cell(FORMATS[name], kind, seeds))
            print(f"{name:24} {kind:12} {write_cell(cell)}", flush=True)
            for one in cell:
                is_false, is_off = not (one.is_right or one.lacks), one.score.lost_right is False and not one.unpriced
                if is_false or is_off:
                    run, truth = one.shape.run, one.shape.truth
                    put_in = {key: round(s / float(run.step_s.sum()), 3) for key, s in truth.lost_s.items()}
                    print("  ", one.seed, "FALSE" if is_false else f"lost {one.score.lost:.3f}", run.interval, end=" ")
                    print(f"pace {one.shape.pace_s:.2f}", truth.period, truth.windows, put_in, run.intervals, one.said)


def write_cell(cell: Sequence[Outcome]) -> str:
    """Write how many are right, how many say that the file does not tell, and how much of the lost time is right."""
    n_open = sum(bool(one.lacks) for one in cell)
    lacks = ", ".join(sorted({one.lacks for one in cell} - {""}))
    priced = [one.score.lost_right for one in cell if one.score.lost_right is not None and not one.unpriced]
    text = str(sum(one.is_right for one in cell)) + (f" + {n_open} {lacks}" if n_open else "")
    return text + (f"; {sum(priced)}/{len(priced)}" if priced else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A format in the table, with the seeds of its logs."""

    name: str
    first: int
    n: int
    cells: tuple[str, ...]
    #: How many of its logs are right, open, priced, rightly priced, and all.
    counts: tuple[int, ...]
    #: Cells below the bound.
    below: tuple[str, ...]
    #: Causes that were said, between which confidences, how often, and how often it is what was put in.
    told: tuple[tuple[str, str, int, int], ...] = ()

    def to_text(self) -> str:
        """Write the line of the table."""
        return f"| {self.name} | {self.n} from {self.first} | {' | '.join(self.cells)} |"


def write_row(name: str, seeds: Sequence[int]) -> Row:
    """Write the row of a format."""
    written = FORMATS[name]
    cells, counts, below = [], np.zeros(5, dtype=np.int64), []
    told: Counter[tuple[str, str, bool]] = Counter()
    for kind in SHAPES:
        if kind in written.never:
            cells.append("never")
            continue
        cell = list(run_cell(written, kind, seeds))
        text = write_cell(cell)
        told.update(
            (cause, next(name for least, name in BINS if confidence >= least), is_true)
            for one in cell
            for cause, confidence, is_true in one.count_told()
        )
        n_right, n_open = sum(one.is_right for one in cell), sum(bool(one.lacks) for one in cell)
        if n_right + n_open < (QUIET if kind in ("healthy", "sequence") else RIGHT) * len(cell):
            below.append(f"{name}, {kind}: {len(cell) - n_right - n_open} of {len(cell)}")
            text = f"**{text}**"
        cells.append(text)
        priced = [one.score.lost_right for one in cell if one.score.lost_right is not None and not one.unpriced]
        counts += (n_right, n_open, len(priced), sum(priced), len(cell))
    said = sorted({key[:2] for key in told})
    sure = tuple((*key, told[*key, True] + told[*key, False], told[*key, True]) for key in said)
    row = Row(name, seeds[0], len(seeds), tuple(cells), tuple(counts.tolist()), tuple(below), sure)
    print(row.to_text(), flush=True)
    return row


def run_rows(formats: Sequence[str], seeds: Sequence[int], jobs: int, kept: Path | None) -> dict[str, Row]:
    """Give the rows of formats: those that are kept already, and of the others each when it is done, which is kept."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept is not None and kept.exists() else []
    rows = {row.name: row for row in (Row(**json.loads(line)) for line in lines)}
    with ProcessPoolExecutor(jobs) as pool:
        running = [pool.submit(write_row, name, seeds) for name in formats if name not in rows]
        for done in as_completed(running):
            row = done.result()
            rows[row.name] = row
            if kept is not None:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(row)) + "\n")
    return rows


def write_page(rows: dict[str, Row], commit: str) -> str:
    """Write the page: a row for each format, a column for each shape, and what files lack."""
    ordered = [rows[name] for name in FORMATS if name in rows]
    n_right, n_open, n_priced, n_exact, n_all = np.array([row.counts for row in ordered]).sum(axis=0).tolist()
    head = [f"| | logs | {' | '.join(SHAPES)} |", "| --- |" + " --- |" * (len(SHAPES) + 1)]
    missing = ", ".join(f'"{name}"' for name in FORMATS if name not in rows)
    told: Counter[tuple[str, str]] = Counter()
    true: Counter[tuple[str, str]] = Counter()
    for row in ordered:
        for cause, sure, n, n_true in row.told:
            told[cause, sure] += n
            true[cause, sure] += n_true
    return _PAGE.format(
        table="\n".join([*head, *(row.to_text() for row in ordered)]),
        lacks="\n".join(f"| {key} | {text} |" for key, text in LACKS.items()),
        sure="\n".join(
            f"| `{cause}` | {sure} | {n} | {100 * true[cause, sure] / n:.1f}% |"
            for (cause, sure), n in sorted(told.items())
        ),
        commit=f"All rows are of commit {commit}. " if commit else "",
        right=n_right,
        open=n_open,
        all=n_all,
        false=n_all - n_right - n_open,
        priced=n_priced,
        exact=n_exact,
        below="; ".join(text for row in ordered for text in row.below) or "none",
        named=write_table(count_causes(range(CONFIDENCES_FROM, CONFIDENCES_FROM + CONFIDENCES_RUNS))),
        missing=f"\nNot run: {missing}.\n" if missing else "",
    )


_PAGE = """# How well logs are understood

`python -m tests.logs.formats_table` writes this page: logs of every format and every shape, each from a run whose steps are
all known, with a writer made after the format's source (`tests/logs/writers/`), and of a seed that nothing was chosen by. The
shapes are ours, so that this says that the parts fit, and not how often real logs are like this.

A log is right where what is said is what was put in, all of it and nothing else, with onsets and recoveries within a line, and
periods exact. `38 + 2 stamps; 35/38`: 38 are right, of 2 it is said no more than the file can tell, which lacks stamps; and where
the lost time can be told, it is within 2% of the truth, or within the noise of the steps it is measured by, in 35 of 38. What is
missing to all is false, and a cell in bold is below the bound: 95%, of healthy runs and growing sequences 97%.

{table}

{commit}Formats have the same runs, so that one that is answered falsely is counted once a format.

Right: {right} of {all}; the file cannot tell, and the answer says so: {open}; false: {false}. Lost time right: {exact} of {priced}.
Below the bound: {below}.
{missing}
How sure it is said in these logs, and how often that is what was put in. Of causes with a name only saves are put in, so that any
other one that is said counts as wrong; `unknown` is right where the whole answer is.

| cause | confidence | said | right |
| --- | --- | --- | --- |
{sure}

The same of jobs that state the intervals of several things, one of which costs time, or something that is stated nowhere and may
have the interval of one of them (`python -m tests.logs.confidences`):

{named}

| what the file lacks | what is said then |
| --- | --- |
{lacks}
"""


def main() -> None:
    """Write the page, or print what is not right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int, nargs="?", default=FIRST)
    parser.add_argument("n", type=int, nargs="?", default=N)
    parser.add_argument("--look", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--commit", default="", help="what the rows are of, for the page")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.n)
    if given.look is not None:
        look(given.look or list(FORMATS), seeds)
    else:
        rows = run_rows(given.formats, seeds, given.jobs, given.rows)
        PAGE.write_text(write_page(rows, given.commit), encoding="utf-8")


if __name__ == "__main__":
    main()
