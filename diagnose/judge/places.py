"""Where a cause sits: the workers, stages, hosts and links that it is named with, and the name of the fault there."""

import hashlib
import itertools
import json
from collections.abc import Sequence

import numpy as np

from diagnose.judge.members import name_member, suspect_hosts
from diagnose.judge.rule import Rule
from diagnose.judge.worth import gain_of
from diagnose.model.analysis import Analysis, Suspects
from diagnose.model.components import Gains
from diagnose.model.place import Link, Where, Worker
from diagnose.model.trace import Job, Seconds, Trace

#: Workers with less than this part of the worst worker's lost time are not named, and nobody if all have less of the gain.
NAMED_SHARE = 0.25
#: Where more than this part of the workers would be named, the cause is spread over the job.
SPREAD_SHARE = 0.5


def locate(analysis: Analysis, rule: Rule) -> Where:
    """Name the culprits of a cause, worst first."""
    trace, suspects = analysis.trace, analysis.suspects
    if rule.place == "stages" and suspects.longest_stage is not None:
        return Where(stages=(int(trace.stage_labels[suspects.longest_stage]),))
    if rule.place != "workers":
        return Where()
    whom = analysis.gains.traits_of(rule.components).whom
    if whom == "workers":
        return _locate_workers(analysis, rule)
    if whom == "links":
        return _locate_links(trace, suspects)
    return Where(workers=list_blamed(analysis, rule.components))


def _locate_links(trace: Trace, suspects: Suspects) -> Where:
    """Name slow cards, links and groups; a link that is slow in one direction in that direction."""
    links = []
    for direction, stage, dp in suspects.ways:
        ends = [label_worker(trace, dp, p) for p in (stage, (stage + 1) % trace.n_stages)]
        links.append(Link.between(*(ends[::-1] if direction == 1 else ends)))
    return Where(
        workers=tuple(label_worker(trace, dp, p) for dp, p in suspects.cards),
        stages=tuple(int(trace.stage_labels[group]) for group in suspects.groups),
        links=tuple(links),
    )


def _locate_workers(analysis: Analysis, rule: Rule) -> Where:
    """Name slow workers by their late members where these are known, and the hosts that may be at fault."""
    trace, named = analysis.trace, list_slow_workers(analysis, rule.components)
    late = analysis.suspects.late_members
    workers = tuple(name_member(label_worker(trace, *at), trace.members, at, late.get(at)) for at in named)
    hosts = (suspect_hosts(worker, trace.members, at) for worker, at in zip(workers, named, strict=True))
    return Where(workers=workers, hosts=tuple(dict.fromkeys(itertools.chain.from_iterable(hosts))))


def list_slow_workers(analysis: Analysis, components: Sequence[str]) -> list[tuple[int, int]]:
    """List slow workers as (dp index, stage index), worst first, without those that lose little to the components beside it."""
    lost, found = _sum_blame(analysis.gains, components), analysis.suspects.workers
    top = max((float(lost[worker]) for worker in found), default=0.0)
    return [worker for worker in found if lost[worker] >= NAMED_SHARE * top]


def list_blamed(analysis: Analysis, components: Sequence[str]) -> tuple[Worker, ...]:
    """List the workers that most of the components' seconds lie on, worst first.

    None where they are spread over the job, or where most of what is lost lies on nobody: who holds up a gap between steps that
    no row tells of is not known, whoever else is a little late.
    """
    gains = analysis.gains
    lost = _sum_blame(gains, components)
    if lost.max(initial=0.0) <= 0 or lost.sum() < NAMED_SHARE * gain_of(gains, components) * gains.recorded_s:
        return ()
    marked = lost >= SPREAD_SHARE * lost.max()
    possible = lost.shape[0] if gains.traits_of(components).first_stage_only else lost.size
    if marked.sum() > max(1.0, SPREAD_SHARE * possible):
        return ()
    order = np.argsort(-np.where(marked, lost, -np.inf), axis=None, kind="stable")[: int(marked.sum())]
    n_stages = lost.shape[1]
    return tuple(label_worker(analysis.trace, int(i) // n_stages, int(i) % n_stages) for i in order)


def _sum_blame(gains: Gains, components: Sequence[str]) -> Seconds:
    """Add up the seconds of components that lie on workers, shape (n_dp, n_stages), or (1, 1) where they lie on nobody."""
    by_component = [gains.blame_s[name] for name in components if name in gains.blame_s]
    return np.asarray(np.sum(by_component, axis=0)) if by_component else np.zeros((1, 1))


def label_worker(trace: Trace, dp: int, stage: int) -> Worker:
    """Name the worker at two indices by the labels of the file."""
    host = None if trace.hosts is None else trace.hosts[dp * trace.n_stages + stage] or None
    return Worker(int(trace.dp_labels[dp]), int(trace.stage_labels[stage]), int(trace.ranks[dp, stage]), host)


def name_fault(job: Job, cause: str, where: Where) -> str:
    """Name a fault so that other runs of the same job family with it in the same place get the same name."""
    family = [job.framework, job.dp_size, job.pp_size, job.tp_size, job.cp_size, job.vpp_size]
    links = [tuple((end.dp, end.pp) for end in link.ends) for link in where.links[:1]]
    place = [
        [(w.dp, w.pp) for w in where.workers[:1]],
        list(where.stages),
        list(where.hosts[:1]),
        *([links] if links else []),
    ]
    return hashlib.sha256(json.dumps([family, cause, place]).encode()).hexdigest()[:16]
