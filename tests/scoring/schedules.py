"""How good diagnoses are under each schedule: `python -m tests.scoring.schedules JOBS SEED [SCHEDULE...]`.

Each job of a schedule (`diagnose.faults.world`) is judged as it is, and once more under 1F1B, with the same faults in the same
places. The difference of the mean F1 is that of these pairs; its error is that of drawing other jobs, a thousand times.
"""

import dataclasses
import sys
import warnings
from collections.abc import Sequence

import numpy as np

from diagnose.errors import DiagnoseError
from diagnose.faults.generate import draw_job, generate
from tests.scoring.figures import Figures, Rate, macro_f1, measure, measure_causes
from tests.scoring.judged import JudgedJob, describe
from tests.scoring.score import judge_generated

SCHEDULES = ("eager", "gpipe", "interleaved", "looped", "zero-bubble", "zb-h2", "zb-v", "dualpipev")
N_DRAWS = 1000


def judge_pair(seed: int, i: int, schedule: str) -> tuple[JudgedJob, JudgedJob] | None:
    """Diagnose a job and its twin under 1F1B; None where what happens to the job has no place in that."""
    spec, faults, *others = draw_job(seed, i, world=schedule)
    twin = dataclasses.replace(spec, schedule="1f1b", vpp=1)
    try:
        jobs = [generate(one, faults, *others) for one in (spec, twin)]
    except (DiagnoseError, IndexError):  # a decoy names a task by its number
        return None
    here, there = (judge_generated(job) for job in jobs)
    return here, there


def measure_error(pairs: Sequence[tuple[JudgedJob, JudgedJob]]) -> float:
    """Say by how much the difference of the mean F1 varies with the jobs that are drawn: one standard deviation."""
    rng, found = np.random.default_rng(0), []
    for _ in range(N_DRAWS):
        drawn = [pairs[i] for i in rng.integers(0, len(pairs), len(pairs))]
        here, there = (macro_f1(measure_causes(rows)) for rows in zip(*drawn, strict=True))
        found.append((here or 0.0) - (there or 0.0))
    return float(np.std(found))


def row_of(schedule: str, here: Figures, there: Figures, error: float) -> str:
    """Write the row of a schedule."""

    def of(rate: Rate) -> str:
        return f"{rate.hits} of {rate.n}"

    ours, theirs = here.macro_f1 or 0.0, there.macro_f1 or 0.0
    cells = [schedule, f"{ours:.3f}", f"{theirs:.3f}", f"{ours - theirs:+.3f} ± {error:.3f}", of(here.primary)]
    cells += [of(here.false_alarms), of(here.sure), f"{here.gain.mean or 0.0:.3f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Judge the jobs; list what was missed or made up under the schedule and not under 1F1B, and print the table."""
    warnings.simplefilter("ignore")
    n_jobs, seed = int(sys.argv[1]), int(sys.argv[2])
    for schedule in sys.argv[3:] or SCHEDULES:
        drawn = (judge_pair(seed, i, schedule) for i in range(n_jobs))
        pairs = [pair for pair in drawn if pair is not None]
        for here, there in pairs:
            worse = {true.cause for true in here.missed()} - {true.cause for true in there.missed()}
            worse |= {said.cause for said in here.made_up()} - {said.cause for said in there.made_up()}
            if worse:
                print(describe(here))
        figures = [measure(rows) for rows in zip(*pairs, strict=True)]
        print(row_of(schedule, figures[0], figures[1], measure_error(pairs)), flush=True)


if __name__ == "__main__":
    main()
