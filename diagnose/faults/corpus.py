"""A folder of random jobs, written by some processes.

Enters: a `Corpus`, and how many jobs. Leaves: two files a job, the same whoever writes them.
"""

import dataclasses
import functools
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from diagnose.faults.fault import Fault
from diagnose.faults.generate import draw_job, generate, name_truth, write_job
from diagnose.faults.spec import NOISE, JobSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Corpus:
    """Which random jobs, and where; the fields are those of `draw_job`."""

    folder: Path
    seed: int
    noise: tuple[float, float] = NOISE
    evidence: bool = True
    causes: tuple[str, ...] = ()


def write_corpus(corpus: Corpus, n_jobs: int, n_workers: int = 1) -> Iterator[None]:
    """Write the jobs that the folder does not have yet; give None for each job that is there.

    Job i of a corpus is the same however many there are.
    """
    corpus.folder.mkdir(parents=True, exist_ok=True)
    write = functools.partial(_write_one, corpus)
    if n_workers == 1:
        yield from map(write, range(n_jobs))
        return
    # Not forked: the libraries have threads by now.
    with ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(write, range(n_jobs))


def _write_one(corpus: Corpus, i: int) -> None:
    """Write one job, unless it is there."""
    spec, faults, decoys = draw_job(corpus.seed, i, noise=corpus.noise, evidence=corpus.evidence, causes=corpus.causes)
    path = corpus.folder / f"{spec.job_id}.parquet"
    if not _is_written(path, spec, faults):
        write_job(generate(spec, faults, decoys), path)


def _is_written(path: Path, spec: JobSpec, faults: list[Fault]) -> bool:
    """Say whether a job is there whole; its truth is written last."""
    truth = name_truth(path)
    if not (path.exists() and truth.exists()):
        return False
    written = json.loads(truth.read_text())
    asked = [dataclasses.asdict(spec), *(dataclasses.asdict(fault) for fault in faults)]
    there = [written["spec"], *(fault["settings"] for fault in written["faults"])]
    return bool(there == json.loads(json.dumps(asked)))
