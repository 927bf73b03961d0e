"""How good the causes are: random jobs with one fault, with two, and with none; prints the table of the README."""

import io
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest

from diagnose.faults.generate import Truth, generate, random_faults
from diagnose.faults.spec import random_spec
from diagnose.model.diagnosis import Diagnosis
from diagnose.pipeline import MIN_SPEEDUP, diagnose_job

pytestmark = pytest.mark.benchmark

CAUSES = ("sequence-imbalance", "stage-imbalance", "worker-fault")
#: A cause counts when removing it makes the job faster by the least speedup that is reported.
LEAST = 1.0 - 1.0 / MIN_SPEEDUP
N_JOBS = 150

Outcome = tuple[Truth, Diagnosis]


def run(seed: int, n_faults: int) -> Outcome:
    """Make one random job and diagnose it."""
    rng = np.random.default_rng([2026, seed, n_faults])
    while True:
        spec = random_spec(rng)
        causes = sorted(rng.choice(CAUSES, size=n_faults, replace=False).tolist())
        faults = random_faults(spec, rng, causes) if n_faults else []
        if len(faults) == n_faults:
            break
    job = generate(spec, faults)
    file = io.BytesIO()
    pq.write_table(job.trace, file)
    file.seek(0)
    return job.truth, diagnose_job(file, name=f"seed {seed}")


@pytest.mark.parametrize("n_faults", [0, 1, 2])
def test_causes_of_random_jobs(n_faults: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Of random jobs nearly every cause is found and hardly any is made up, with gains that are true."""
    with ProcessPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, range(N_JOBS), [n_faults] * N_JOBS, chunksize=5))
    found, missed, made_up = Counter[str](), Counter[str](), Counter[str]()
    errors: list[float] = []
    places: list[bool] = []
    onsets: list[bool] = []
    for truth, diagnosis in outcomes:
        said = {cause.cause: cause for cause in diagnosis.causes}
        there = {fault.cause: fault for fault in truth.faults}
        worth = {cause for cause, fault in there.items() if fault.recoverable >= LEAST}
        found.update(worth & set(said))
        missed.update(worth - set(said))
        made_up.update(set(said) - set(there))
        for cause in set(there) & set(said):
            errors.append(abs(said[cause].recoverable - there[cause].recoverable))
            if cause == "worker-fault":
                named = said[cause].where.workers
                places.append(bool(named) and (named[0].dp, named[0].pp) in there[cause].workers)
                onsets.append(said[cause].when.onset_step == there[cause].onset_step)
    with capsys.disabled():
        print(f"\n{N_JOBS} jobs with {n_faults} faults")
        for cause in sorted(found | missed | made_up):
            print(f"  {cause:20} found {found[cause]:3}  missed {missed[cause]:3}  made up {made_up[cause]:3}")
        if errors:
            print(
                f"  recoverable: mean error {np.mean(errors):.4f}, 90% below {np.quantile(errors, 0.9):.4f} of the step"
            )
        if places:
            print(
                f"  worker named first: {np.mean(places):.3f}, its onset right: {np.mean(onsets):.3f} of {len(places)}"
            )
        verdicts = Counter(diagnosis.verdict for _, diagnosis in outcomes)
        print(f"  verdicts: {dict(sorted(verdicts.items()))}")
    assert sum(made_up.values()) <= 0.15 * N_JOBS
    assert sum(found.values()) >= 0.85 * (sum(found.values()) + sum(missed.values()))
    assert not errors or np.mean(errors) < 0.01
