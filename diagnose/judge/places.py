"""Where a cause sits: the workers, stages, hosts and links that it is named with."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from diagnose.judge.members import name_member, suspect_hosts
from diagnose.judge.worth import measure_named, most_gain
from diagnose.model.analysis import Analysis, Suspects
from diagnose.model.components import STALLED, Gains
from diagnose.model.place import Link, Where, Worker
from diagnose.model.stalls import MOSTLY_SHARE, StallKind
from diagnose.model.trace import Seconds, Trace
from diagnose.numerics.robust import weighted_median

#: Nobody is named where the workers together have less than this part of the gain.
NAMED_SHARE = 0.25
#: Where more than this part of the workers would be named, the cause is spread over the job.
SPREAD_SHARE = 0.5
#: A slow worker that loses this part of the step is named however much worse another one is. Below that, healthy workers of busy
#: machines lost up to 24% of what the slow one beside them did (three real jobs, one of them in Megatron-LM).
WORTH_NAMING_SHARE = 0.1
#: So little of the lost seconds on others than the named workers is rounding.
ELSEWHERE_SHARE = 0.001
#: Who bears at least such a share of what the worst worker bears is named: the first that names the culprits.
NAMED_FROM = (0.5, 0.25, 0.1)
#: More than this part is most of it.
MOST_OF_IT = 0.5
#: What usually all have is a single worker's, of several, where it bears this part of it.
SEVERAL_WORKERS, ALONE_SHARE = 4, 0.9
#: ... or a few workers' that bear most of it, where it hits them alone with no more than this probability by chance.
CHANCE = 0.02
#: A replica that is the longest by chance is not so in that part of as many steps.
ENOUGH_STEPS = 6
#: Named workers are the culprits where mending them gives back this part of all; of what chance spreads over a few workers the
#: worst ones bear up to 0.8.
MOSTLY = 0.9


def locate(analysis: Analysis, components: Sequence[str], place: str) -> Where:
    """Name the culprits of components, worst first; `place` is a rule's: workers, stages or spread."""
    trace, suspects = analysis.trace, analysis.suspects
    if place == "stages":
        return Where(stages=tuple(int(trace.stage_labels[stage]) for stage in suspects.long_stages))
    if place != "workers":
        return _locate_lone(analysis, components)
    whom = analysis.gains.traits_of(components).whom
    if whom == "links":
        return _locate_links(trace, suspects)
    return _name_workers(analysis, find_culprits(analysis, components), slow=whom == "workers")


def _locate_lone(analysis: Analysis, components: Sequence[str]) -> Where:
    """Name the only ones that have what usually all have: the workers that alone collect, the replica of the long documents."""
    if tuple(components) == ("microbatch",):
        return _locate_longest(analysis)
    if tuple(components) != (STALLED[StallKind.COLLECTION],):
        return Where()
    return _name_workers(analysis, _find_collectors(analysis, components), slow=False)


def _find_collectors(analysis: Analysis, components: Sequence[str]) -> list[tuple[int, int]]:
    """Find the workers that alone collect: one of several, or a few with so many collections that chance chose none of them."""
    named, n_workers = list_blamed(analysis, components), _sum_blame(analysis.gains, components).size
    share = share_on(analysis, components, named) if named else 0.0
    if len(named) == 1 and n_workers >= SEVERAL_WORKERS and share >= ALONE_SHARE:
        return named
    if share < MOSTLY_SHARE:
        return []
    stalled_s = analysis.breakdown.stalls.seconds_of(StallKind.COLLECTION)
    long = stalled_s > MOST_OF_IT * (weighted_median(stalled_s.ravel(), stalled_s.ravel()) or 0.0)
    n_long = sum(int(long[:, stage :: analysis.trace.n_stages, ..., dp].sum()) for dp, stage in named)
    # In logarithms: of thousands of workers there are more choices than a float can count.
    n_choices = math.lgamma(n_workers + 1) - math.lgamma(len(named) + 1) - math.lgamma(n_workers - len(named) + 1)
    return named if n_choices + n_long * math.log(len(named) / n_workers) < math.log(CHANCE) else []


def _locate_longest(analysis: Analysis) -> Where:
    """Name the replica whose microbatches are the longest of all in nearly every step."""
    ratio, trace = analysis.breakdown.microbatch_ratio, analysis.trace
    work = np.broadcast_to(ratio, (*ratio.shape[:3], trace.ranks.shape[0])).sum(axis=(0, 1))  # (n_steps, n_dp)
    n_steps, n_dp = work.shape
    longest = np.bincount(work.argmax(axis=1), minlength=n_dp)
    if n_dp < 2 or n_steps < ENOUGH_STEPS or longest.max() < ALONE_SHARE * n_steps:
        return Where()
    dp = int(longest.argmax())
    return _name_workers(analysis, [(dp, stage) for stage in range(trace.n_stages)], slow=False)


def _locate_links(trace: Trace, suspects: Suspects) -> Where:
    """Name slow cards, links and groups; a link that is slow in one direction in that direction."""
    links = []
    for direction, stage, dp in suspects.ways:
        ends = [label_worker(trace, dp, p) for p in (stage, (stage + 1) % trace.n_stages)]
        links.append(Link.between(*(ends[::-1] if direction == 1 else ends)))
    links += [Link.between(*(label_worker(trace, dp, stage) for dp in ends)) for stage, *ends in suspects.rings]
    return Where(
        workers=tuple(label_worker(trace, dp, p) for dp, p in suspects.cards),
        stages=tuple(int(trace.stage_labels[group]) for group in suspects.groups),
        links=tuple(links),
    )


def locate_and_price(analysis: Analysis, components: Sequence[str], place: str, least: float) -> tuple[Where, float]:
    """Name the culprits of components, and say which part of the step comes back when these are mended.

    Where components lie on other workers than the named ones, too, the named ones are priced, by one replay. Where that is not
    nearly all that the components cost, those that bear less are named with them; where that is not enough, nobody is. Slow
    workers are named all the same, unless mending them gives less than a cause must. Where steps get longer nothing comes back.
    """
    whole = max(analysis.gains.recoverable("+".join(components)), 0.0)
    whom = analysis.gains.traits_of(components).whom
    where = locate(analysis, components, place)
    if place != "workers" or whom == "links" or not where.workers:
        return where, whole
    lost, theirs = _sum_blame(analysis.gains, components), whole
    by_share = [tuple(find_culprits(analysis, components, share)) for share in NAMED_FROM]
    for culprits in dict.fromkeys(by_share):
        if not culprits:
            break
        where = _name_workers(analysis, culprits, slow=whom == "workers")
        named = np.zeros(lost.shape, dtype=bool)
        named[tuple(np.transpose(culprits))] = True
        if lost[~named].sum() <= ELSEWHERE_SHARE * lost.sum():
            return where, whole
        theirs = measure_named(analysis, components, named)
        if theirs >= MOSTLY * whole or whole < least:
            return where, theirs
    return (where, theirs) if whom == "workers" and theirs >= least else (Where(), whole)


def find_culprits(analysis: Analysis, components: Sequence[str], share: float = NAMED_FROM[0]) -> list[tuple[int, int]]:
    """Find the workers that components lie on, as (dp index, stage index), worst first; `share` is as in `list_blamed`.

    Slow workers are these where they bear most of it, or nobody else does: others may stall, or have long optimizers, beside one
    that is a little slow.
    """
    blamed = list_blamed(analysis, components, share)
    if analysis.gains.traits_of(components).whom == "workers" and analysis.suspects.workers:
        lost = _sum_blame(analysis.gains, components)
        on_slow = sum(float(lost[worker]) for worker in analysis.suspects.workers)
        if not blamed or on_slow >= MOST_OF_IT * lost.sum():
            return _list_slow_workers(analysis, components, share)
    return blamed


def _name_workers(analysis: Analysis, at: Sequence[tuple[int, int]], *, slow: bool) -> Where:
    """Name workers; slow ones by their late members where these are known, with the hosts that may be at fault."""
    trace = analysis.trace
    workers = tuple(label_worker(trace, *one) for one in at)
    if not slow:
        return Where(workers=workers)
    late = analysis.suspects.late_members
    workers = tuple(
        name_member(worker, trace.members, one, late.get(one)) for worker, one in zip(workers, at, strict=True)
    )
    hosts = (suspect_hosts(worker, trace.members, one) for worker, one in zip(workers, at, strict=True))
    return Where(workers=workers, hosts=tuple(dict.fromkeys(itertools.chain.from_iterable(hosts))))


def _list_slow_workers(
    analysis: Analysis, components: Sequence[str], share: float = NAMED_FROM[0]
) -> list[tuple[int, int]]:
    """List slow workers as (dp index, stage index), worst first, without those that lose little to the components.

    That is little beside the worst, half of `share`, and less than is worth saying of one alone.
    """
    lost, found = _sum_blame(analysis.gains, components), analysis.suspects.workers
    top = max((float(lost[worker]) for worker in found), default=0.0)
    little = min(0.5 * share * top, WORTH_NAMING_SHARE * analysis.gains.recorded_s)
    return [worker for worker in found if lost[worker] >= little]


def list_blamed(analysis: Analysis, components: Sequence[str], share: float = NAMED_FROM[0]) -> list[tuple[int, int]]:
    """List the workers that bear at least a share of what the worst one does, as (dp index, stage index), worst first.

    None where they are spread over the job, or where most of what is lost lies on nobody: who holds up a gap between steps that
    no row tells of is not known, whoever else is a little late.
    """
    gains = analysis.gains
    lost = _sum_blame(gains, components)
    whole = most_gain(gains, components)
    if lost.max(initial=0.0) <= 0 or lost.sum() < NAMED_SHARE * whole * gains.recorded_s:
        return []
    # Workers that are a little late side by side lose more seconds together than the job does.
    if sum(most_gain(gains, [name]) for name in components if name in gains.blame_s) < NAMED_SHARE * whole:
        return []
    marked = lost >= share * lost.max()
    of_stages = int((lost > 0).any(axis=0).sum()) if gains.traits_of(components).few_stages else lost.shape[1]
    possible = lost.shape[0] * of_stages
    if marked.sum() > max(1.0, SPREAD_SHARE * possible):
        return []
    order = np.argsort(-np.where(marked, lost, -np.inf), axis=None, kind="stable")[: int(marked.sum())]
    n_stages = lost.shape[1]
    return [(int(i) // n_stages, int(i) % n_stages) for i in order]


def share_on(analysis: Analysis, components: Sequence[str], workers: Sequence[tuple[int, int]]) -> float:
    """Say which part of the seconds of components lies on some workers, (dp index, stage index) each."""
    lost = _sum_blame(analysis.gains, components)
    return sum(float(lost[worker]) for worker in workers) / float(lost.sum())


def _sum_blame(gains: Gains, components: Sequence[str]) -> Seconds:
    """Add up the seconds of components that lie on workers, shape (n_dp, n_stages), or (1, 1) where they lie on nobody."""
    by_component = [gains.blame_s[name] for name in components if name in gains.blame_s]
    return np.asarray(np.sum(by_component, axis=0)) if by_component else np.zeros((1, 1))


def label_worker(trace: Trace, dp: int, stage: int) -> Worker:
    """Name the worker at two indices by the labels of the file."""
    labels = int(trace.dp_labels[dp]), int(trace.stage_labels[stage])
    return Worker(*labels, int(trace.ranks[dp, stage]), trace.host_of(dp, stage))
