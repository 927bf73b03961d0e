"""Generate the jobs of a seed and measure them, in worker processes; what was measured is kept for the next training.

Enters: which jobs. Leaves: one `MeasuredJob` for each job, in the order of the jobs.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import multiprocessing
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from diagnose.faults.generate import FaultTruth, Job, draw_job, generate, strip_evidence
from diagnose.judge.rules import load_rules
from diagnose.judges import read_rules
from diagnose.model.analysis import Analysis
from diagnose.model.request import Request
from diagnose.pipeline import analyse_job

#: Parts of the package that decide what is measured of which job; judging and reporting do not.
_MEASURING = ("errors.py", "pipeline.py", "model", "trace", "whatif", "features", "faults")
#: Programs among them.
_NOT_MEASURING = ("faults/__main__.py", "faults/corpus.py", "faults/fixtures.py")
#: Jobs that a worker process takes at once.
_CHUNK = 4

#: Keeps, in a file, a job that was made and measured.
Keep = Callable[[Path, Job, Analysis], None]
#: Seed, index and noise of a job, and what keeps it.
Order = tuple[int, int, tuple[float, float], Callable[[Job, Analysis], None] | None]
#: Feature by name, None where it could not be measured.
Values = dict[str, float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class RandomJobs:
    """The first `n_jobs` of a seed, with noise between two limits, as `draw_job` draws them."""

    seed: int
    n_jobs: int
    noise: tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredJob:
    """What is true about a job, and what was measured of it."""

    #: As `draw_job` was given them.
    seed: int
    index: int
    #: Kinds of its faults, as `worker-fault/replica`, and features of its world.
    kinds: tuple[str, ...]
    world: tuple[str, ...]
    #: By cause: part of the step that comes back when the fault is mended, alone or after all others, whichever is more.
    worth: dict[str, float]
    #: With the evidence rows, and without; empty where the job failed.
    features: tuple[Values, ...]
    #: Why the job could not be generated or diagnosed; empty where it could.
    error: str = ""

    def has(self, name: str) -> bool:
        """Say whether it has a kind of fault, or a feature of worlds."""
        return name in self.kinds or name in self.world


def measure_jobs(
    wanted: RandomJobs,
    *,
    cache: Path,
    keep: Keep | None = None,
    workers: int = 1,
    progress: Callable[[MeasuredJob, int], None] | None = None,
) -> list[MeasuredJob]:
    """Measure random jobs.

    Parameters
    ----------
    cache : Path
        Folder with what was measured before, by the same code; what is measured now is added to it job by job. Jobs that failed
        are tried again.
    keep : callable, optional
        Keeps each job besides, in a file of the cache (`place_kept`); one that has no such file is measured again.
    workers : int
        Processes; they change nothing but the time.
    progress : callable, optional
        Called with each job that is measured now, and the number of those still to come.

    Returns
    -------
    list of MeasuredJob
        By index; a job that failed says why.
    """
    file = cache / f"{name_jobs(wanted)}.jsonl"
    cache.mkdir(parents=True, exist_ok=True)
    jobs = _read_jobs(file)
    _write_jobs(file, jobs)  # without what failed, and a last line that an interrupted training left half written
    kept = {index: place_kept(cache, wanted, index) for index in range(wanted.n_jobs)} if keep else {}
    for path in kept.values():
        path.parent.mkdir(exist_ok=True)
    left = [i for i in range(wanted.n_jobs) if i not in jobs or (i in kept and not kept[i].exists())]
    orders: list[Order] = [
        (wanted.seed, i, wanted.noise, functools.partial(keep, kept[i]) if keep else None) for i in left
    ]
    with file.open("a", encoding="utf-8") as lines, contextlib.closing(_run(orders, workers)) as measured:
        for n_done, job in enumerate(measured, start=1):
            jobs[job.index] = job
            lines.write(_to_line(job))
            lines.flush()
            if progress is not None:
                progress(job, len(left) - n_done)
    return [jobs[index] for index in range(wanted.n_jobs)]


def name_jobs(wanted: RandomJobs) -> str:
    """Name the file of what was measured of some jobs by this version of the code."""
    low, high = wanted.noise
    return f"seed-{wanted.seed}-noise-{low:g}-{high:g}-{measuring_digest()}"


def place_kept(cache: Path, wanted: RandomJobs, index: int) -> Path:
    """Say where a job is kept."""
    return cache / name_jobs(wanted) / f"{index}.kept"


def measure_job(trace: pa.Table) -> Values:
    """Measure the features of one job."""
    return _values_of(analyse(trace))


def analyse(trace: pa.Table) -> Analysis:
    """Measure all of a job, as the pipeline does."""
    file = io.BytesIO()
    pq.write_table(trace, file)
    file.seek(0)
    return analyse_job(Request(file, name="generated job"), read_rules())


def _values_of(analysis: Analysis) -> Values:
    return {name: feature.value for name, feature in analysis.features.items()}


def measuring_digest() -> str:
    """Name the version of all code that decides what is measured, and what rules count together."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    paths = [path for part in _MEASURING for path in [package / part, *(package / part).rglob("*.py")]]
    for path in sorted(path for path in paths if path.is_file()):
        name = path.relative_to(package).as_posix()
        if name not in _NOT_MEASURING:
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr([(rule.id, rule.components) for rule in load_rules().rules]).encode())
    return digest.hexdigest()[:12]


#: What nothing in the trace can tell is left out of training: between what counts and what does not.
NOT_TELLABLE = 0.012


def worth_by_cause(faults: Iterable[FaultTruth]) -> dict[str, float]:
    """Say what mending each cause gives back, alone or after the others: the larger one."""
    worth: dict[str, float] = {}
    for fault in faults:
        found = max(fault.recoverable, fault.recoverable_last) if fault.tellable else NOT_TELLABLE
        worth[fault.cause] = max(found, worth.get(fault.cause, found))
    return worth


def _run(orders: list[Order], workers: int) -> Generator[MeasuredJob, None, None]:
    """Measure jobs in order, here or in other processes."""
    if workers == 1 or len(orders) <= 1:
        yield from map(_measure_one, orders)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_measure_one, orders, chunksize=_CHUNK)


def _measure_one(order: Order) -> MeasuredJob:
    """Generate a job and measure it with its evidence rows and without; whatever goes wrong is a finding."""
    seed, index, noise, keep = order
    try:
        job = generate(*draw_job(seed, index, noise=noise))
        bare = strip_evidence(job.trace)
        analysis = analyse(job.trace)
        if keep is not None:
            keep(job, analysis)
        whole = _values_of(analysis)
        features = (whole, whole if bare.equals(job.trace) else measure_job(bare))
    except Exception as error:  # noqa: BLE001 - a job that fails is reported, the others are measured
        return MeasuredJob(seed, index, (), (), {}, (), f"{type(error).__name__}: {error}{_place_of(error)}")
    kinds = tuple(dict.fromkeys(fault.kind for fault in job.truth.faults))
    return MeasuredJob(seed, index, kinds, job.truth.world, worth_by_cause(job.truth.faults), features)


def _place_of(error: BaseException) -> str:
    """Name the line of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""


def _read_jobs(file: Path) -> dict[int, MeasuredJob]:
    """Read what was measured before, by index: whole lines, and jobs that did not fail."""
    jobs: dict[int, MeasuredJob] = {}
    if not file.is_file():
        return jobs
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            fields: dict[str, Any] = json.loads(line)
            lists = {name: tuple(fields[name]) for name in ("kinds", "world", "features")}
            job = MeasuredJob(**{**fields, **lists})
        except (ValueError, TypeError, KeyError):
            break
        if not job.error:
            jobs[job.index] = job
    return jobs


def _write_jobs(file: Path, jobs: Mapping[int, MeasuredJob]) -> None:
    """Write jobs to a file that appears when it is whole."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text("".join(_to_line(jobs[index]) for index in sorted(jobs)), encoding="utf-8")
    partial.replace(file)


def _to_line(job: MeasuredJob) -> str:
    return json.dumps(dataclasses.asdict(job)) + "\n"
