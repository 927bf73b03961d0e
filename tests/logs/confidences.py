"""How often a named cause is what was put in, by how surely it is said: `python -m tests.logs.confidences [FIRST SEED] [RUNS]`.

Each job states the intervals of several things: loader workers, collections, saves, evaluations. One of them costs time, or
something that has an interval of its own and is stated nowhere: of round numbers in half of the jobs, so that some are those of a
thing that is innocent. Or steps wait for data by the log's own times, all or some of them. Enters: seeds. Leaves: counts.
"""

import argparse
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diagnose.features.paces import measure_log
from diagnose.judge.log import judge_log
from diagnose.judge.log_causes import CAUSES
from diagnose.model.trace import Job
from diagnose.model.training_log import LogIntervalKind
from diagnose.trace.find_log import find_log
from diagnose.trace.logs.load import load_log
from tests.judge.cases import built_in
from tests.logs.formats import FORMATS
from tests.logs.runs import LoggedRun
from tests.logs.shapes import draw_shape
from tests.trace.producers.recordings import say_nothing

#: Formats that state intervals, with those they state, and whether they tell the seconds of the loader.
STATED: dict[str, tuple[tuple[LogIntervalKind, ...], bool]] = {
    "Megatron-LM": (("loader-workers", "collection", "save", "evaluation"), False),
    "torchtitan": (("collection", "save", "evaluation"), False),
    "HF Trainer": (("loader-workers", "save", "evaluation"), False),
    "open_clip": (("loader-workers",), True),
}
#: What may be put in: a stated interval, one that is stated nowhere, slow steps at random, or waiting for data.
PUT_IN = ("stated", "stated", "unstated", "random", "data-always", "data-random", "data-stated")
#: Confidences, from the least of each on.
BINS = ((0.9, "0.9 and more"), (0.8, "0.8 to 0.9"), (0.5, "0.5 to 0.8"), (0.0, "below 0.5"))
_JOB = Job("job", 1, 1, 1, 1, 1, 1)
_ROUND = (10, 20, 25, 50, 100, 200)


def draw_run(name: str, seed: int) -> tuple[LoggedRun, str]:
    """Draw a run for a format, and say what is slow in it: a cause, or `unknown`."""
    rng = np.random.default_rng([seed, sorted(STATED).index(name)])
    kinds, tells_data = STATED[name]
    run = draw_shape("healthy", seed, interval=int(rng.choice([1, 1, 5]))).run
    intervals: dict[LogIntervalKind, int] = {"log": run.interval}
    for kind in kinds:
        intervals[kind] = int(rng.choice([2, 4, 6, 8, 12, 16] if kind == "loader-workers" else _ROUND))
    put_in = str(rng.choice([one for one in PUT_IN if tells_data or not one.startswith("data")]))
    n, pace_s = len(run.step_s), float(np.median(run.step_s))
    hit, cause = np.zeros(n, dtype=bool), "unknown"
    if put_in in ("stated", "unstated", "data-stated"):
        kind = str(rng.choice([kind for kind in kinds if kind != "evaluation"]))
        period = intervals[kind]  # type: ignore[index]
        if put_in == "unstated":
            period = int(rng.choice(_ROUND)) if rng.random() < 0.5 else int(rng.integers(2, 200))
        # Workers take turns from anywhere on, all else is done at multiples.
        phase = int(rng.integers(period)) if put_in == "unstated" or kind == "loader-workers" else period - 1
        hit[phase::period] = True
        cause = CAUSES[kind] if put_in == "stated" else "unknown"
    elif put_in != "data-always":
        hit = rng.random(n) < rng.uniform(0.01, 0.05)
    added_s = np.where(hit, pace_s * rng.uniform(1.0, 6.0) * run.interval**0.5 * rng.uniform(0.9, 1.1, n), 0.0)
    parts = {}
    if tells_data:
        waited_s = np.where(put_in == "data-always", rng.uniform(0.08, 0.6), rng.uniform(0.001, 0.02, n)) * run.step_s
        # What waits for a loader is in the loader's own seconds, where there are any.
        if put_in.startswith("data") or cause == "data-loading":
            cause, waited_s = "data-loading", waited_s + added_s
        parts = {"data": np.asarray(waited_s)}
    made = dataclasses.replace(run, step_s=run.step_s + added_s, intervals=intervals, parts=parts)
    return made, cause


def count_causes(seeds: Sequence[int]) -> Counter[tuple[str, str, bool]]:
    """Count causes with a name that are said, by confidence, and whether they are what was put in."""
    rules = built_in().rules
    found: Counter[tuple[str, str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in STATED:
            path = Path(folder) / FORMATS[name].file
            for seed in seeds:
                run, put_in = draw_run(name, seed)
                path.write_bytes(FORMATS[name].write(run))
                inputs = find_log(path)
                assert inputs is not None
                facts = measure_log(load_log(inputs, name="log", report=say_nothing), min_speedup=1.02)
                for cause in judge_log(facts, _JOB, rules).causes:
                    sure = next(words for least, words in BINS if cause.confidence >= least)
                    found[cause.cause, sure, cause.cause == put_in] += 1
    return found


def write_table(found: Counter[tuple[str, str, bool]]) -> str:
    """Write a line for each cause and each bin."""
    rows = []
    for cause, sure in sorted({key[:2] for key in found}):
        n_right, n_wrong = found[cause, sure, True], found[cause, sure, False]
        rows.append(f"| `{cause}` | {sure} | {n_right + n_wrong} | {100 * n_right / (n_right + n_wrong):.1f}% |")
    return "\n".join(["| cause | confidence | said | put in |", "| --- | --- | --- | --- |", *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int, nargs="?", default=90_000)
    parser.add_argument("n", type=int, nargs="?", default=100)
    given = parser.parse_args()
    print(write_table(count_causes(range(given.first, given.first + given.n))))
