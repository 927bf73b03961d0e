"""Mend a slow link, card or group: its transfers become those of its equals.

The replay takes out what transfers take beyond the median of their equals.
"""

from collections.abc import Mapping

from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.places import labels_of, mask_workers, name_workers, read_worker
from diagnose.model.analysis import Analysis
from diagnose.model.change import Remove
from diagnose.model.remedy import FaultLocation, Refusal, Remedy

NAME = "fix-link"
TITLE = "mend a slow link or card"
SETTINGS = {
    "dp": "dp rank of the worker whose transfers are mended; all of the stage where left out",
    "pp": "stage of the worker; all of the dp rank where left out",
}
_HOW = {
    "any": "Counters first: CNP, PFC pauses, symbol errors, link_downed of the port (ethtool -S, perfquery), nvidia-smi nvlink -e; "
    "then swap cable, port or card, or drain the host. Until then: NCCL_IB_TIMEOUT=22, NCCL_IB_RETRY_CNT=7 against flaps, "
    "NCCL_IB_QPS_PER_CONNECTION=4 against congestion, or keep data-parallel traffic off the link",
}


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
    """Let the transfers of the culprits be those of their equals; of everybody where nobody is named."""
    trace = analysis.trace
    if "transfer" not in analysis.gains.alone_s:
        return Refusal("no transfer is slower than its equals")
    named = read_worker(settings, trace, NAME) or [(worker.dp, worker.pp) for worker in place.where.workers]
    named = named or [(link.source.dp, link.source.pp) for link in place.where.links]
    named = named or [(int(dp), stage) for stage in place.where.stages for dp in trace.dp_labels]
    mask = mask_workers(trace, named) if named else None
    if mask is None:
        summary = "mend the network: transfers of many links are slow at times"
    elif place.where.stages and not place.where.workers and not settings:
        summary = f"mend the network of the data-parallel group of stage {place.where.stages[0]}"
    elif place.where.links and not place.where.workers and not settings:
        first, second = place.where.links[0].ends
        summary = f"mend the link between {name_workers([first])} and {name_workers([second])}"
    else:
        summary = f"mend the card, port or cable of the worker at {name_workers(labels_of(trace, mask))}"
    one = labels_of(trace, mask) if mask is not None and mask.sum() == 1 else []
    return Remedy(
        summary=summary,
        how=choose_how(_HOW, trace.job),
        changes=(Remove("transfer", mask),),
        settings={"dp": str(one[0][0]), "pp": str(one[0][1])} if one else {},
        assumptions=("a mended link is as fast as the median of its equals",),
        risks=() if one else ("a fault of a switch comes back on whatever host is put there",),
        figures={"slower_than_equals": analysis.transfers.excess_ratio},
    )
