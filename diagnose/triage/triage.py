"""One triage from end to end: sources, store, place to work. What `diagnose triage` calls.

Enters: what the user asks for. Leaves: a `Night`.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.errors import UsageError
from diagnose.model.night import Headway, Night
from diagnose.model.request import MIN_SPEEDUP
from diagnose.triage.identity import Judge
from diagnose.triage.source import list_jobs, parse_since

if TYPE_CHECKING:
    from diagnose.triage.store import Store
    from diagnose.triage.workplace import Workplace

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
#: Part of the machine's memory that jobs may take when nothing is said; the rest is for the processes themselves and others.
MEMORY_SHARE = 0.6
#: Where Linux says what a container may take.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
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


def triage(wishes: Wishes, *, watch: Callable[[Headway], None] | None = None) -> Night:
    """Diagnose all jobs of the sources that are new or changed.

    Parameters
    ----------
    wishes : Wishes
    watch : callable, optional
        Told how far it has come.

    Raises
    ------
    UsageError
        A wish makes no sense, or what it needs is not installed.
    RuleError
        A rule file is wrong.
    ServiceError
        The store or the cluster does not answer.
    """
    from diagnose.triage.night import Orders, plan_night, run_night

    judge = find_judge(wishes.rules, wishes.min_speedup)
    orders = Orders(
        judge=judge,
        rules=None if wishes.rules is None else str(wishes.rules.resolve()),
        memory_bytes=read_bytes(wishes.memory) if wishes.memory else default_memory(),
        timeout_s=wishes.timeout_s,
        since_s=None if wishes.since is None else parse_since(wishes.since, time.time()),
        limit=wishes.limit,
        force=wishes.force,
        retry_failed=wishes.retry_failed,
    )
    jobs = list_jobs(wishes.sources)
    if wishes.dry_run:
        store = _open_existing(wishes.store)
        try:
            return plan_night(jobs, store, orders)
        finally:
            if store is not None:
                store.close()
    from diagnose.triage.store import Store

    with Store(wishes.store) as store:
        return run_night(jobs, store, lambda n: _open_workplace(n, wishes, judge), orders, watch=watch)


def find_judge(rules: Path | None, min_speedup: float) -> Judge:
    """Say what judges jobs on this machine; Dask workers are asked the same."""
    from diagnose.judges import made_by

    found = made_by(rules)
    return Judge(found.version, found.rules, found.classifier, min_speedup)


def read_bytes(text: str) -> int:
    """Read an amount of memory.

    >>> read_bytes("8G"), read_bytes("512MiB")
    (8589934592, 536870912)
    """
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        found = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise UsageError(f"--memory: {text!r} is no amount of memory such as 8G") from None
    if found < 2**20:
        raise UsageError(f"--memory: {text!r} is less than any job needs; expected an amount such as 8G")
    return found


def default_memory() -> int:
    """Give a part of the memory of this machine, or of the container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 * 2**30]
    for name in _CGROUPS:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such file, or `max`
            continue
    return int(min(limits) * MEMORY_SHARE)


def default_workers() -> int:
    """Give the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open_existing(url: str) -> "Store | None":
    """Open a store to look into; None where there is none yet."""
    from diagnose.triage.store import NoStoreError, Store

    try:
        return Store(url, may_create=False)
    except NoStoreError:
        return None


def _open_workplace(n_jobs: int, wishes: Wishes, judge: Judge) -> "Workplace":
    """Open the place to work."""
    from diagnose.triage.workplace import DaskWorkplace, LocalWorkplace

    if wishes.dask is not None:
        rules = None if wishes.rules is None else wishes.rules.resolve()
        check = functools.partial(find_judge, rules, wishes.min_speedup)
        return DaskWorkplace(wishes.dask, check, judge, at_most=wishes.n_workers)
    return LocalWorkplace(min(n_jobs, wishes.n_workers or default_workers()))
