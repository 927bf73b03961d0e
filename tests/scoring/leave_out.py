"""`python -m tests.scoring.leave_out`: say how good diagnoses are of what training has never seen.

python -m tests.scoring.leave_out --workers 2
python -m tests.scoring.leave_out --jobs 200 --calibrate 80 --name worker-fault --name gpipe

Each kind of fault, and each feature of worlds, is left out of training in turn, and the jobs that have it are judged by what was
trained on the others. Jobs are measured once, and kept (half a megabyte each): what is left out changes the classifier alone, and
with it the verdict. Parts, of which none has seen its own jobs, say how good it all is with nothing left out.
"""

import dataclasses
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from diagnose.errors import DiagnoseError
from diagnose.judge.classifier import Classifier, read_classifier
from diagnose.judge.rules import RuleSet
from diagnose.judges import read_rules
from diagnose.train.__main__ import CALIBRATION_NOISE, CALIBRATION_SEED, NOISE, Progress, measure_options
from diagnose.train.fit import dump_model, train
from diagnose.train.measure import MeasuredJob, RandomJobs, measure_jobs, place_kept
from tests.scoring.figures import Figures, PartFigures, Rate, measure, measure_kind, measure_world
from tests.scoring.judged import JudgedJob, describe, find_worst
from tests.scoring.kept import NotPricedError, measure_again, read_kept, rejudge, write_kept, write_made
from tests.scoring.score_tables import Table, ratio, render_parts, table
from tests.scoring.sweep import run_in_any_order

#: Parts into which all jobs are cut to judge each by the others.
N_PARTS = 5
#: Fewer jobs say nothing of what they have; with more than this part of them left out little is left to train on.
LEAST_JOBS, MOST_SHARE = 5, 0.6


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """All jobs, with where they are kept, and those that only calibrate."""

    wanted: tuple[RandomJobs, RandomJobs]
    cache: Path
    jobs: tuple[list[MeasuredJob], list[MeasuredJob]]

    def split(self, name: str) -> tuple[tuple[list[MeasuredJob], list[MeasuredJob]], list[tuple[int, MeasuredJob]]]:
        """Give the jobs to train on, for trees and for calibration, and those left out, each with which of both it is of."""
        others = tuple([job for job in part if job.features and not _is_in(job, name)] for part in self.jobs)
        left_out = [
            (which, job) for which, part in enumerate(self.jobs) for job in part if job.features and _is_in(job, name)
        ]
        return (others[0], others[1]), left_out


def _is_in(job: MeasuredJob, name: str) -> bool:
    """Say whether a job is left out with a kind, a feature or a part."""
    return job.index % N_PARTS == int(name.removeprefix("part-")) if name.startswith("part-") else job.has(name)


@click.command()
@measure_options
@click.option(
    "--name", "names", multiple=True, help="Leave out this kind, feature, or each kind of this cause; default: all."
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all rows and figures there."
)
@click.option(
    "--worst", type=click.IntRange(min=0), default=0, metavar="N", help="List the N jobs judged worst of each."
)
def main(
    n_jobs: int,
    n_calibrate: int,
    seed: int,
    names: tuple[str, ...],
    cache: Path,
    workers: int,
    json_path: Path | None,
    worst: int,
) -> None:
    """Train without each kind of fault, and without each feature of worlds, and judge what was left out."""
    wanted = (RandomJobs(seed, n_jobs, NOISE), RandomJobs(seed + CALIBRATION_SEED, n_calibrate, CALIBRATION_NOISE))
    try:
        jobs = [
            measure_jobs(part, cache=cache, keep=write_made, workers=workers, progress=Progress(what, part.n_jobs))
            for what, part in zip(("trees", "calibration"), wanted, strict=True)
        ]
        measured = Measured(wanted, cache, (jobs[0], jobs[1]))
        parts = [f"part-{i}" for i in range(N_PARTS)]
        left_out = dict(_leave_out_all(measured, [*parts, *list_names(measured, names)], workers))
    except DiagnoseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(render(left_out), nl=False)
    for name, rows in left_out.items():
        for row in find_worst(rows, worst):
            click.echo(f"{name}: {describe(row)}")
    for job in (job for part in jobs for job in part if job.error):
        click.echo(f"failed: job {job.index} of seed {job.seed}: {job.error}", err=True)
    if json_path is not None:
        found = {name: [dataclasses.asdict(row) for row in rows] for name, rows in left_out.items()}
        json_path.write_text(json.dumps(found) + "\n", encoding="utf-8")


def list_names(measured: Measured, wanted: Sequence[str] = ()) -> list[str]:
    """List the kinds and features that enough jobs have, and enough have not; of those wanted, if any are."""
    jobs = [job for part in measured.jobs for job in part if job.features]
    counts = Counter(name for job in jobs for name in (*job.kinds, *job.world))
    enough = {name for name, n in counts.items() if LEAST_JOBS <= n <= MOST_SHARE * len(jobs)}
    found = {name for name in enough if not wanted or name in wanted or name.partition("/")[0] in wanted}
    return sorted(found, key=lambda name: ("/" not in name, name))


def _leave_out_all(measured: Measured, names: Sequence[str], workers: int) -> Iterator[tuple[str, list[JudgedJob]]]:
    """Leave out one after the other, in some processes."""
    calls = [functools.partial(leave_out, measured, name) for name in names]
    began_s, found = time.monotonic(), {}
    for n_done, (name, rows) in enumerate(run_in_any_order(calls, workers), start=1):
        found[name] = rows
        if sys.stderr.isatty():
            left_s = (time.monotonic() - began_s) / n_done * (len(calls) - n_done)
            click.echo(
                f"\rleft out {n_done}/{len(calls)}, {left_s:.0f} s left\x1b[K", err=True, nl=n_done == len(calls)
            )
    yield from ((name, found[name]) for name in names)


def leave_out(measured: Measured, name: str) -> tuple[str, list[JudgedJob]]:
    """Train without a kind of fault, a feature or a part, and judge the jobs that have it."""
    rule_set = read_rules()
    (trees, calibration), left_out = measured.split(name)
    model = train(trees, calibration, rule_set.rules, seed=measured.wanted[0].seed)
    classifier = read_classifier(dump_model(model).encode())
    return name, [_judge(measured, which, job, rule_set, classifier) for which, job in left_out]


def _judge(measured: Measured, which: int, job: MeasuredJob, rule_set: RuleSet, classifier: Classifier) -> JudgedJob:
    """Judge a job by a classifier; where something was not priced it is measured again, and kept with the new price."""
    wanted = measured.wanted[which]
    path = place_kept(measured.cache, wanted, job.index)
    kept = read_kept(path)
    prediction = classifier.judge(kept.analysis.features)
    try:
        return rejudge(kept, rule_set, prediction)
    except NotPricedError:
        again = measure_again(wanted.seed, job.index, wanted.noise)
        again.analysis.price.known.update(kept.analysis.price.known)  # type: ignore[attr-defined] # both are `Prices`
        row = rejudge(again, rule_set, prediction)
        write_kept(again, path)
        return row


def render(left_out: dict[str, list[JudgedJob]]) -> str:
    """Write what was found of all that was left out."""
    by_kind = {name: rows for name, rows in left_out.items() if "/" in name}
    worlds = {name: rows for name, rows in left_out.items() if "/" not in name and not name.startswith("part-")}
    parts = [row for name, rows in left_out.items() if name.startswith("part-") for row in rows]
    kinds = [measure_kind(name, there) for name, rows in by_kind.items() if (there := _with_kind(rows, name))]
    features = [measure_world(name, rows) for name, rows in worlds.items()]
    tables = [
        _render_totals(measure(parts), by_kind, kinds, features),
        render_parts("Kinds of fault left out: jobs in which they have to be said", kinds),
        render_parts("Features of worlds left out", features),
    ]
    return "\n".join(f"{title}\n{table(cells)}" for title, cells in tables if len(cells) > 1)


def _with_kind(rows: Sequence[JudgedJob], kind: str) -> list[JudgedJob]:
    """Keep the jobs in which a kind has to be said."""
    return [row for row in rows if kind in {true.kind for true in row.countable()}]


def _render_totals(
    whole: Figures, by_kind: dict[str, list[JudgedJob]], kinds: Sequence[PartFigures], features: Sequence[PartFigures]
) -> Table:
    """Show what the figures come to."""
    pooled = measure([row for rows in by_kind.values() for row in rows])
    of_kinds = {part.name: part.f1 for part in kinds if part.f1 is not None}
    of_worlds = {part.name: part.macro_f1 for part in features if part.macro_f1 is not None}
    cells = [
        ["", "figure", "of"],
        ["nothing left out but the job's own part: macro-F1", ratio(whole.macro_f1), str(whole.n_jobs)],
        ["  largest cause first", *_rate(whole.primary)],
        ["  healthy with anything said", *_rate(whole.false_alarms)],
        ["  said with 0.9 or more: there", *_rate(whole.sure)],
        ["  expected calibration error", ratio(whole.calibration_error), str(sum(b.n for b in whole.bins))],
        ["  mean error of recoverable", ratio(whole.gain.mean, 4), str(whole.gain.n)],
    ]
    if of_kinds:
        cells += [
            ["kinds left out: mean F1", ratio(float(np.mean(list(of_kinds.values())))), str(len(of_kinds))],
            [f"  lowest: {min(of_kinds, key=of_kinds.__getitem__)}", ratio(min(of_kinds.values())), ""],
            ["  said with 0.9 or more: there", *_rate(pooled.sure)],
            ["  expected calibration error", ratio(pooled.calibration_error), str(sum(b.n for b in pooled.bins))],
        ]
    if of_worlds:
        cells += [
            ["features left out: mean macro-F1", ratio(float(np.mean(list(of_worlds.values())))), str(len(of_worlds))],
            [f"  lowest: {min(of_worlds, key=of_worlds.__getitem__)}", ratio(min(of_worlds.values())), ""],
        ]
    return "Judged by what was trained on others", cells


def _rate(found: Rate) -> list[str]:
    return [ratio(found.share), str(found.n)]


if __name__ == "__main__":
    main()
