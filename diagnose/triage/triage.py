"""One triage from end to end: sources, store, workers. What `diagnose triage` calls.

Enters: what the user asks for. Leaves: a `TriageRun`.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.addresses import find_source
from diagnose.model.memory import default_memory, read_bytes
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.triage_run import Progress, TriageRun
from diagnose.triage.identity import Judge
from diagnose.triage.source import list_jobs
from diagnose.triage.times import parse_since

if TYPE_CHECKING:
    from diagnose.triage.pools import WorkerPool
    from diagnose.triage.store import Store


@dataclasses.dataclass(frozen=True, slots=True)
class TriageRequest:
    """What the user asks for; `memory`, `since` as written, None where nothing was said."""

    sources: tuple[str, ...]
    store: str
    n_workers: int | None = None
    memory: str | None = None
    timeout_s: float = 600.0
    since: str | None = None
    limit: int | None = None
    force: bool = False
    retry_failed: bool = False
    dry_run: bool = False
    dask: str | None = None
    rules: Path | None = None
    min_speedup: float = MIN_SPEEDUP
    telemetry: str | None = None


def triage(request: TriageRequest, *, watch: Callable[[Progress], None] | None = None) -> TriageRun:
    """Diagnose all jobs of the sources that are new or changed.

    `watch` is told how far it has come.

    Raises
    ------
    UsageError
        An option makes no sense, or what it needs is not installed.
    RuleError
        A rule file is wrong.
    ServiceError
        The store or the cluster does not answer.
    """
    from diagnose.triage.run import plan_triage, run_triage
    from diagnose.triage.settings import RunSettings

    judge = find_judge(request.rules, request.min_speedup)
    telemetry = None if request.telemetry is None else find_source("--telemetry", request.telemetry)
    settings = RunSettings(
        judge=dataclasses.replace(judge, telemetry=telemetry),
        rules=None if request.rules is None else str(request.rules.resolve()),
        memory_bytes=read_bytes(request.memory) if request.memory else default_memory(),
        timeout_s=request.timeout_s,
        since_s=None if request.since is None else parse_since(request.since, time.time()),
        limit=request.limit,
        force=request.force,
        retry_failed=request.retry_failed,
    )
    logs: list[str] = []
    jobs = list_jobs(request.sources, logs)
    if request.dry_run:
        store = _open_existing(request.store)
        try:
            return dataclasses.replace(plan_triage(jobs, store, settings), n_logs=len(logs))
        finally:
            if store is not None:
                store.close()
    from diagnose.triage.store import Store

    with Store(request.store) as store:
        run = run_triage(jobs, store, lambda n: _open_pool(n, request, judge), settings, watch=watch)
    return dataclasses.replace(run, n_logs=len(logs))


def find_judge(rules: Path | None, min_speedup: float) -> Judge:
    """Say what judges jobs on this machine; Dask workers are asked the same."""
    from diagnose.judges import made_by

    found = made_by(rules)
    return Judge(found.version, found.rules, found.classifier, min_speedup)


def default_workers() -> int:
    """Give the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open_existing(url: str) -> "Store | None":
    """Open a store to look into; None where there is none yet."""
    from diagnose.triage.store import NoStoreError, Store

    try:
        return Store(url, only_reads=True)
    except NoStoreError:
        return None


def _open_pool(n_jobs: int, request: TriageRequest, judge: Judge) -> "WorkerPool":
    """Open the pool of workers."""
    from diagnose.triage.pools import DaskPool, ProcessPool

    if request.dask is not None:
        rules = None if request.rules is None else request.rules.resolve()
        check = functools.partial(find_judge, rules, request.min_speedup)
        return DaskPool(request.dask, check, judge, at_most=request.n_workers)
    return ProcessPool(min(n_jobs, request.n_workers or default_workers()))
