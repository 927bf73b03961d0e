"""Mend a slow link, card or group: its transfers become those of its equals.

The replay takes out what transfers take beyond the median of their equals.
"""

from collections.abc import Mapping

import numpy as np

from diagnose.errors import name_some
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import labels_of, mask_workers, name_workers, read_worker
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.place import Where
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.trace import Trace

NAME = "fix-link"
TITLE = "mend a slow link or card"
SETTINGS = {
    "dp": "dp rank of the worker whose transfers are mended; all of the stage where left out",
    "pp": "stage of the worker; all of the dp rank where left out",
}
#: This part of what is lost is nearly all of it.
NEARLY_ALL = 0.9
_HOW = {
    "any": "Counters first: CNP, PFC pauses, symbol errors, link_downed of the port (ethtool -S, perfquery), nvidia-smi nvlink -e; "
    "then swap cable, port or card, or drain the host. Until then: NCCL_IB_TIMEOUT=22, NCCL_IB_RETRY_CNT=7 against flaps, "
    "NCCL_IB_QPS_PER_CONNECTION=4 against congestion, or keep data-parallel traffic off the link",
}
#: Where all workers are on one host no card, port or switch lies between them.
_HOW_ON_ONE_HOST = {
    "any": "nvidia-smi nvlink -s and -e (links that are down, errors), nvidia-smi topo -m (which pairs go over PCIe or between "
    "sockets), dmesg for PCIe errors, and what else the host runs; then another GPU or host",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
    """Let the transfers of the culprits be those of their equals; of everybody where nobody is named."""
    trace = analysis.trace
    on_one_host = trace.job.n_hosts == 1
    what = "link within the host" if on_one_host else "card, port or cable"
    if "transfer" not in analysis.gains.alone_s:
        return Refusal("no transfer is slower than its equals")
    named = read_worker(settings, trace, NAME)
    mask = mask_workers(trace, named) if named else None  # else all places that are named: the component is on no other
    if mask is not None:
        summary = f"mend the {what} of the worker at {name_workers(labels_of(trace, mask))}"
    else:
        summary = _describe(trace, place.where, what) or f"mend the network: {_name_slow(analysis)} are slow everywhere"
    workers = place.where.workers if not place.where.links and not place.where.stages else ()
    one = named if len(named) == 1 else [(worker.dp, worker.pp) for worker in workers if len(workers) == 1]
    return Remedy(
        summary=summary,
        how=choose_how(_HOW_ON_ONE_HOST if on_one_host else _HOW, trace.job),
        changes=(Remove("transfer", mask),),
        settings={"dp": str(one[0][0]), "pp": str(one[0][1])} if one else {},
        assumptions=("a mended link is as fast as the median of its equals",),
        risks=() if one or on_one_host else ("a fault of a switch comes back on whatever host is put there",),
        figures={"slower_than_equals": analysis.transfers.excess_ratio},
    )


def _describe(trace: Trace, where: Where, what: str) -> str:
    """Say in one sentence what to mend, nothing where no place is named; `what` a worker has that can be slow."""
    named = []
    if where.workers:
        named.append(f"the {what} of the worker at {name_workers(where.workers)}")
    if sides := _find_switch(trace, where):
        slow = "both" if len(where.links) == 2 else f"all {len(where.links)}"
        named.append(f"{_name_switch(*sides)}, as {slow} links between them are slow")
    elif where.links:
        pairs = [f"{name_workers([a])} and {name_workers([b])}" for a, b in (link.ends for link in where.links)]
        named.append(f"the link{'s' if len(pairs) > 1 else ''} between {name_some(pairs, 3)}")
    if where.stages:
        stages = f"stage {where.stages[0]}" if len(where.stages) == 1 else f"stages {', '.join(map(str, where.stages))}"
        groups = "group" if len(where.stages) == 1 else "groups"
        named.append(f"the network of the data-parallel {groups} of {stages}")
    return f"mend {', and '.join(named)}" if named else ""


def _name_slow(analysis: Analysis) -> str:
    """Say which transfers have nearly all of what is lost."""
    links_s, groups_s = (
        float(np.nansum(s)) for s in (analysis.transfers.link_excess_s, analysis.transfers.group_excess_s)
    )
    if groups_s >= NEARLY_ALL * (links_s + groups_s):
        return "collectives"
    return "transfers between stages" if links_s >= NEARLY_ALL * (links_s + groups_s) else "transfers"


def _name_switch(one: list[str], other: list[str]) -> str:
    """Name what lies between hosts: two of them may have a cable of their own, more have a switch.

    >>> _name_switch(["a"], ["b"]), _name_switch(["a", "b"], ["c", "d"])
    ('the switch or cable between hosts a and b', 'the switch between hosts a, b on one side and c, d on the other')
    """
    if len(one) == len(other) == 1:
        return f"the switch or cable between hosts {one[0]} and {other[0]}"
    return f"the switch between hosts {', '.join(one)} on one side and {', '.join(other)} on the other"


def _find_switch(trace: Trace, where: Where) -> tuple[list[str], ...]:
    """Name the hosts on both sides where several links are slow, and these are all that go from the one side to the other."""
    if trace.hosts is None or len(where.links) < 2:
        return ()
    host = {}
    for key in {(end.dp, end.pp) for link in where.links for end in link.ends}:
        ((dp, stage),) = np.argwhere(mask_workers(trace, [key])).tolist()
        host[key] = trace.host_of(dp, stage)
    sides = [{host[link.ends[side].dp, link.ends[side].pp] for link in where.links} for side in (0, 1)]
    if None in sides[0] | sides[1] or sides[0] & sides[1]:
        return ()
    slow = {frozenset((end.dp, end.pp) for end in link.ends) for link in where.links}
    crossing = 0
    for dp in range(trace.n_dp):
        for stage in range(trace.n_stages - 1):
            first, second = trace.host_of(dp, stage), trace.host_of(dp, stage + 1)
            crossing += (first in sides[0] and second in sides[1]) or (first in sides[1] and second in sides[0])
    return tuple(sorted(sorted(str(name) for name in side) for side in sides)) if crossing == len(slow) else ()
