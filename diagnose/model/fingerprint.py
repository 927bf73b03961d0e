"""Which runs are of one job, which fault is which, and what it loses a day over all jobs that have it.

Enters: what is known of a job, and a cause with its place. Leaves: a key for the job, a fingerprint for the fault, GPU hours.
Nothing of a run goes in: no id, no time, no measured value.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence

from diagnose.model.place import Where, Worker
from diagnose.model.trace import Job

#: Who mends a fault that stays with the machine and not with the job.
HARDWARE = frozenset({"platform", "hardware"})
#: Losses are told in GPU hours a day; runs that came so long before the newest are of another night.
HOURS_A_DAY, DAY_S = 24.0, 86_400.0
#: A version behind the name of a framework: a job stays the same job when its framework is upgraded.
_VERSION = re.compile(r"\s+v?\d\S*$")


def name_family(*, name: str | None, owner: str | None, framework: str | None, sizes: Sequence[int | None]) -> str:
    """Give the key of a job, the same in all its runs: name, owner, framework without its version, and parallelism.

    `sizes` are those of data, pipeline, tensor and context parallelism, and the chunks a worker.

    >>> sizes = (2, 4, 1, 1, 1)
    >>> today = name_family(name="AR", owner=None, framework="torch 2.9.1", sizes=sizes)
    >>> today == name_family(name="AR", owner=None, framework="torch 2.10", sizes=sizes)
    True
    """
    return _digest(name, owner, framework and _VERSION.sub("", framework), *sizes)


def find_machine(who: str | None, hosts: Iterable[str | None]) -> str | None:
    """Give the host that a fault stays with, the first of those blamed; None where it is the job's, or no host is known."""
    return next((host for host in hosts if host), None) if who in HARDWARE else None


def name_fault(job: Job, cause: str, who: str | None, where: Where) -> str:
    """Give the fingerprint of a fault: of a machine, the cause and the host; else the job, the cause and the place in the job.

    Several workers count as the dp rank or the stage that they share, else as several, as do several stages and links: which of
    them is worst differs from run to run.
    """
    machine = find_machine(who, (*where.hosts, *(worker.host for worker in where.workers)))
    if machine is not None:
        return _digest("machine", cause, machine)
    sizes = (job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size)
    family = name_family(name=job.name or job.job_id, owner=job.owner, framework=job.framework, sizes=sizes)
    links = [[_spot(link.ends[:1]), _spot(link.ends[1:])] for link in where.links]
    stages = list(where.stages) if len(where.stages) < 2 else True
    return _digest(family, cause, _spot(where.workers), stages, links if len(links) == 1 else bool(links))


def sum_losses(runs: Iterable[tuple[str, float, float | None]]) -> float | None:
    """Add up the GPU hours that one fault loses a day, over all jobs that have it, while they run.

    Parameters
    ----------
    runs : iterable of (key of the job, when it came into the store, GPU hours a day)
        All runs with the fault, each once; seconds since 1970. Of a job those of its newest night count, and only jobs that had it
        in the day before the newest of all.

    Returns
    -------
    float or None
        None where no run says how many GPUs it has.

    >>> sum_losses([("a", 0.0, 9.0), ("a", 80_000.0, 1.0), ("a", 80_000.0, 2.0), ("b", 0.0, 4.0), ("c", -9e9, 8.0)])
    7.0
    """
    found = list(runs)
    newest: dict[str, float] = {}
    for job, came_at, _ in found:
        newest[job] = max(came_at, newest.get(job, came_at))
    latest = max(newest.values(), default=0.0)
    known = [
        lost for job, came_at, lost in found if lost is not None and came_at == newest[job] and came_at > latest - DAY_S
    ]
    return math.fsum(known) if known else None


def _spot(workers: Sequence[Worker]) -> list[int | None] | None:
    """Say which dp rank and stage workers have in common; None where there is none."""
    if not workers:
        return None
    dp, pp = {worker.dp for worker in workers}, {worker.pp for worker in workers}
    return [min(dp) if len(dp) == 1 else None, min(pp) if len(pp) == 1 else None]


def _digest(*parts: object) -> str:
    """Give 16 hexadecimal digits for what a fault is."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
