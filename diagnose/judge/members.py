"""Place a slow worker's fault at one member of its tensor- or context-parallel group, and say why there, or why not.

Enters: a slow worker and what was found about its members. Leaves: the worker by its late member, its hosts, and a sentence of
evidence.
"""

import msgspec.structs

from diagnose.model.cause import EvidenceItem
from diagnose.model.members import LateMember, Members
from diagnose.model.place import Worker

#: So many workers have a sentence about their members.
MAX_MEMBERS_NAMED = 4
#: A share above this rounds to all.
ALL = 0.995
#: What a late member does, and what it does most often.
_DOES = {
    "ends": ("ends {:.2g} s after the other members in a compute", "is last in {} of the computes"),
    "starts": ("starts {:.2g} s after the other members in a compute", "is last in {} of the computes"),
    "waits": ("waits {:.2g} s a compute less than the other members", "waits least in {} of the steps"),
}


def name_member(worker: Worker, members: Members | None, at: tuple[int, int], late: LateMember | None) -> Worker:
    """Name a slow worker, given by (dp index, stage index), with the member that the others wait for.

    Where no member is named the worker stays as it was, but without a host where its members run on several.
    """
    if members is None or late is None:
        return worker
    if late.member is None:
        return worker if len(members.hosts_of(*at)) < 2 else msgspec.structs.replace(worker, host=None)
    return msgspec.structs.replace(
        worker,
        rank=members.rank(*at, late.member),
        host=members.host(*at, late.member),
        tp=None if members.tp is None else int(members.tp[late.member]),
        cp=None if members.cp is None else int(members.cp[late.member]),
    )


def suspect_hosts(worker: Worker, members: Members | None, at: tuple[int, int]) -> tuple[str, ...]:
    """List the hosts that a slow worker's fault may be on: the one it is named with, else those of all its members."""
    if worker.host is not None:
        return (worker.host,)
    named = worker.tp is not None or worker.cp is not None
    return () if members is None or named else members.hosts_of(*at)


def describe_member(name: str, worker: Worker, late: LateMember) -> EvidenceItem:
    """Say which member of a slow worker is late and by how much, or why none is named."""
    values = {"late_s": late.late_s, "late_share": late.late_share, "last_share": late.last_share}
    place = f"dp {worker.dp} stage {worker.pp}"
    if late.member is None or late.late_s is None or late.late_share is None or late.last_share is None:
        return EvidenceItem("rule", name, f"which member of {place} is slow is not known: {late.reason}", values)
    labels = [("rank", worker.rank), ("tp", worker.tp), ("cp", worker.cp)]
    who = ", ".join(f"{label} {value}" for label, value in labels if value is not None)
    where = f" on {worker.host}" if worker.host else ""
    does, often = _DOES[late.how]
    does = does.format(late.late_s)
    text = (
        f"{who} of {place}{where} {does}, {_write_share(late.late_share)} of what the worker is behind its peers; it "
        f"{often.format(_write_share(late.last_share))}"
    )
    return EvidenceItem("rule", name, text, values)


def _write_share(share: float) -> str:
    """Write a share: what rounds to 1, or is above it by noise, is all."""
    return "all" if share > ALL else f"a share of {share:.2f}"
