"""Hosts that are blamed in more jobs than chance would blame them in.

Enters: jobs with the hosts that each ran on. Leaves: counts, expectations, probabilities, and proposals; nothing is drained here.

By chance, each job blames the hosts that it does at random among those that it ran on, and jobs do not know of each other. The
number of jobs that blame one host is then a sum of independent draws with their own probabilities (Poisson binomial), whatever
share of the jobs blames anybody.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diagnose.model.fingerprint import HARDWARE
from diagnose.model.fleet import FleetCause, FleetJob
from diagnose.model.fleet_document import HostCount, Hosts
from diagnose.model.trace import Seconds

#: Below this, after correction, chance is no explanation: of the hosts proposed, one in twenty is innocent.
LEVEL = 0.05
#: A host blamed in one job is that job's business.
LEAST_JOBS = 2
ASSUMPTION = (
    "Only faults of machines count (their rule says platform or hardware). By chance, each job would blame as many of its hosts "
    "as it does, any of them alike, whatever other jobs blame (Poisson binomial). Corrected over all hosts by Benjamini and "
    "Hochberg. Jobs with the same content count once."
)


def count_hosts(jobs: Sequence[FleetJob]) -> Hosts:
    """Count in how many of the jobs whose figures count each host is blamed, and say how likely that is by chance."""
    first: dict[str, FleetJob] = {}
    for job in jobs:
        first.setdefault(job.content or job.location, job)
    told = [job for job in first.values() if job.hosts]
    ran, blamed = _who_ran(told), _who_is_blamed(told)
    hosts = sorted(ran)
    p_values = {host: _p_value(ran[host], len(blamed.get(host, ()))) for host in hosts}
    adjusted = _correct([p_values[host] for host in hosts])
    found = [
        _about(host, blamed[host], ran[host], p_values[host], p_adjusted)
        for host, p_adjusted in zip(hosts, adjusted, strict=True)
        if len(blamed.get(host, ())) >= LEAST_JOBS
    ]
    return Hosts(
        n_jobs=len(told),
        n_hosts=len(hosts),
        n_unknown=len(first) - len(told),
        n_copies=len(jobs) - len(first),
        assumption=ASSUMPTION,
        blamed=tuple(sorted(found, key=lambda entry: (entry.p_adjusted, entry.p_value, entry.host))),
    )


def tail_probability(chances: Sequence[float], least: int) -> float:
    """Give the probability that at least so many of independent events happen, by the probability of each, 0..1.

    Exact but for rounding, however small: only positive numbers are added.

    >>> tail_probability([0.5, 0.5], 1), tail_probability([0.5, 0.5], 2), tail_probability([0.1], 2)
    (0.75, 0.25, 0.0)
    """
    state = np.zeros(least + 1)  # so many have happened; the last: at least so many
    state[0] = 1.0
    for chance in chances:
        moved = state[:-1] * chance
        state[:-1] *= 1.0 - chance
        state[1:] += moved
    return float(min(state[-1], 1.0))


def _who_ran(jobs: Sequence[FleetJob]) -> dict[str, Seconds]:
    """Give, for every host, the chance that each job it took part in blames it."""
    chances: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        took_part = set(job.hosts or ())
        n_blamed = len({host for cause in _faults(job) for host in cause.hosts if host in took_part})
        for host in took_part:
            chances[host].append(n_blamed / len(took_part))
    return {host: np.array(found) for host, found in chances.items()}


def _who_is_blamed(jobs: Sequence[FleetJob]) -> dict[str, list[FleetJob]]:
    """Give the jobs that blame each host, of those that it took part in."""
    found: dict[str, list[FleetJob]] = defaultdict(list)
    for job in jobs:
        for host in sorted({host for cause in _faults(job) for host in cause.hosts} & set(job.hosts or ())):
            found[host].append(job)
    return found


def _faults(job: FleetJob) -> list[FleetCause]:
    """Give the causes that a machine, and not the job, is to blame for."""
    return [cause for cause in job.causes if cause.who in HARDWARE]


def _p_value(chances: Seconds, n_blamed: int) -> float:
    """Say how likely a host is to be blamed at least so often by chance."""
    if n_blamed == 0:
        return 1.0
    return tail_probability(chances[chances > 0].tolist(), n_blamed)


def _correct(p_values: Sequence[float]) -> list[float]:
    """Correct for having looked at so many hosts, by Benjamini and Hochberg."""
    if not p_values:
        return []
    from scipy.stats import false_discovery_control

    return [float(value) for value in false_discovery_control(p_values, method="bh")]


def _about(host: str, jobs: list[FleetJob], chances: Seconds, p_value: float, p_adjusted: float) -> HostCount:
    """Say all about a host that is blamed."""
    lost = {job.location: _lost_to(job, host) for job in jobs}
    places = {place for job in jobs for place in _places(job, host)}
    return HostCount(
        host=host,
        n_blamed=len(jobs),
        n_ran=len(chances),
        expected=float(chances.sum()),
        p_value=p_value,
        p_adjusted=p_adjusted,
        n_places=len(places),
        hours_wasted=float(sum(lost.values())),
        jobs=tuple(sorted(lost, key=lambda location: (-lost[location], location))),
        proposal=_propose(len(places)) if p_adjusted <= LEVEL else "",
    )


def _lost_to(job: FleetJob, host: str) -> float:
    """Give the GPU hours that a job lost to causes that blame a host, its part of those that blame several."""
    return sum(job.lost_to(cause) / len(cause.hosts) for cause in _faults(job) if host in cause.hosts)


def _places(job: FleetJob, host: str) -> list[tuple[object, ...]]:
    """Give the places in jobs of that parallelism at which a host is blamed."""
    workers = [worker for cause in _faults(job) for worker in cause.where.workers if worker.host == host]
    return [(job.framework, job.sizes, worker.dp, worker.pp) for worker in workers]


def _propose(n_places: int) -> str:
    """Say what to think about for a host that chance does not explain."""
    if n_places == 1:
        return (
            "always at one place of one kind of job, which may be to blame: swap it with another host and see whether the "
            "fault goes with it; if so, drain it"
        )
    return "propose to drain it and burn it in: chance does not explain it"
