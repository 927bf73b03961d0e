"""Choose what is tested: the machines that a diagnosis blames, sound ones beside them, and who sends to whom.

Enters: a diagnosis, or an answer of `diagnose machines`, as its JSON has it. Leaves: a `TestPlan`, the same for the same diagnosis.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from diagnose.confirm.catalogue import GROUPS, groups_of
from diagnose.errors import TraceError, UsageError
from diagnose.model.confirmation import Pair, Suspect, TestPlan
from diagnose.model.diagnosis_document import DiagnosisDocument
from diagnose.model.machines import MachinesDocument
from diagnose.model.place import Worker

#: Suspects that are tested at once: each is a machine that trains nothing meanwhile.
MAX_SUSPECTS = 16
#: Sound machines beside them: of four the median stands though one of them is slow as well.
CONTROLS = 4
#: Controls that each suspect sends to: where both ways are slow, it is not the link.
_PARTNERS = 2
#: What machines are called where it is safe in a shell, in a file's name and in Slurm's lists: RFC 1123, and underscores.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
#: What ids of jobs may hold to stand in a script as they are.
_JOB = re.compile(r"[A-Za-z0-9_./:@+-]{1,200}")
#: Names in a message.
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class _Accused:
    """What a document says of machines: whom it blames, worst first, for which causes; whom nothing is said of; cards of each."""

    job: str
    blamed: dict[str, Suspect]
    causes: tuple[str, ...]
    sound: tuple[str, ...]
    n_cards: int | None
    nothing: str


def make_plan(
    found: DiagnosisDocument | MachinesDocument,
    *,
    suspects: Sequence[str] = (),
    tested: Sequence[str] = (),
    controls: Sequence[str] = (),
    n_controls: int = CONTROLS,
    n_cards: int | None = None,
    data: str = "",
    host_of: Callable[[int, int], str | None] | None = None,
) -> TestPlan:
    """Choose suspects, controls and tests.

    Parameters
    ----------
    found : DiagnosisDocument or MachinesDocument
    suspects, controls : sequence of str
        Machines that the user names in place of those that are blamed, or chosen.
    tested : sequence of str
        Machines that were tested as suspects already: beside those of the diagnosis.
    n_controls : int
        How many controls to choose where none are named.
    n_cards : int, optional
        GPUs a machine, where ranks and machines do not say it.
    data : str
        Folder to read from in the test of storage.
    host_of : callable, optional
        Gives the machine of a worker by dp rank and stage, where the trace is at hand.

    Raises
    ------
    UsageError
        Nothing is blamed on a machine, or nobody knows which machine.
    TraceError
        A machine has a name that no script should hold.
    """
    said = _accuse_by_machines(found) if isinstance(found, MachinesDocument) else _accuse(found, host_of)
    blamed = said.blamed
    accused = {*blamed, *suspects, *tested}
    if named := dict.fromkeys(suspects or (*blamed, *tested)):
        blamed = {host: blamed.get(host, Suspect(host=host, causes=said.causes)) for host in named}
    if not blamed:
        raise UsageError(said.nothing)
    first = tuple(blamed.values())[:MAX_SUSPECTS]
    sound = tuple(dict.fromkeys(controls)) or _choose(said.sound, accused, n_controls)
    if both := set(sound) & accused:
        raise UsageError(f"{min(both)} is a suspect, and cannot be a control; name another machine with --control")
    check_names([*(one.host for one in first), *sound])
    groups = {group for one in first for cause in one.causes or ("",) for group in groups_of(cause)}
    if any("network-fault" in one.causes and not one.partners for one in first):
        groups.add("gpu")  # it may be a link within the machine, which the diagnostics of the cards try
    pairs = _pair(first, sound) if "network" in groups else ()
    return TestPlan(
        job=name_job(said.job),
        suspects=first,
        controls=sound,
        left_out=len(blamed) - len(first),
        tests=tuple(group for group in ("network", *GROUPS) if group in groups),
        pairs=pairs,
        n_cards=n_cards or said.n_cards,
        data=data,
    )


def name_job(job_id: str) -> str:
    """Name a job in a script: as it is, or by a digest where its id might be an order.

    >>> name_job("pretrain/7b-4711"), name_job("$(reboot)")
    ('pretrain/7b-4711', '796c4c55bc5daba3')
    """
    return job_id if _JOB.fullmatch(job_id) else hashlib.sha256(job_id.encode("utf-8", "replace")).hexdigest()[:16]


def check_names(hosts: Iterable[str]) -> None:
    """Refuse names of machines that would be an order in a shell, or a place in a file system.

    Raises
    ------
    TraceError
        A name has other characters than letters, digits, `.`, `-` and `_`, or begins or ends with one of the last three.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise TraceError(
                f"{host[:80]!r} is no name of a machine: expected letters, digits, '.', '-' and '_'; nothing is written for it"
            )


def _accuse(found: DiagnosisDocument, host_of: Callable[[int, int], str | None] | None) -> _Accused:
    """Say what a diagnosis of a trace says of machines."""
    return _Accused(
        job=found.job.job_id,
        blamed=_find_blamed(found, host_of),
        causes=tuple(dict.fromkeys(cause.cause for cause in found.causes)),
        sound=found.job.hosts or (),
        n_cards=_cards_a_host(found),
        nothing=_explain_nothing(found),
    )


def _accuse_by_machines(found: MachinesDocument) -> _Accused:
    """Say what an answer about machines says of them; those that are affected are no measure of what is sound."""
    affected = set(found.affected)
    return _Accused(
        job=f"{found.source}@{found.to_s:.0f}",  # it knows no job, and of one source asks again later
        blamed={
            machine.host: Suspect(
                host=machine.host,
                causes=(machine.kind,),
                cards=tuple(int(card) for card in machine.devices if card.isdecimal()),
            )
            for machine in found.machines
        },
        causes=tuple(dict.fromkeys(machine.kind for machine in found.machines)),
        sound=tuple(host for role in found.roles for host in role if host not in affected),
        n_cards=None,
        nothing=f"the answer is {found.verdict.replace('-', ' ')} and blames no machine: nothing to test; "
        "to test one, name it with --suspect HOST",
    )


def _find_blamed(found: DiagnosisDocument, host_of: Callable[[int, int], str | None] | None) -> dict[str, Suspect]:
    """List the machines that causes name, worst first."""
    n_cards = _cards_a_host(found)
    causes: dict[str, dict[str, None]] = {}
    ranks: dict[str, dict[int, None]] = {}
    partners: dict[str, dict[str, None]] = {}

    def find(worker: Worker) -> str | None:
        return worker.host or (host_of(worker.dp, worker.pp) if host_of is not None else None)

    for cause in found.causes:
        where = cause.where
        linked = [(find(link.source), find(link.target)) for link in where.links]
        named = [*where.hosts, *(find(worker) for worker in where.workers), *itertools.chain.from_iterable(linked)]
        for each in filter(None, named):
            causes.setdefault(each, {})[cause.cause] = None
        for worker in where.workers:
            if (host := find(worker)) and worker.rank is not None and worker.rank >= 0:
                ranks.setdefault(host, {})[worker.rank] = None
        for one, other in linked:
            if one and other and one != other:
                partners.setdefault(one, {})[other] = None
                partners.setdefault(other, {})[one] = None
    return {
        host: Suspect(
            host=host,
            causes=tuple(causes[host]),
            cards=tuple(dict.fromkeys(rank % n_cards for rank in ranks.get(host, ()))) if n_cards else (),
            partners=tuple(partners.get(host, ())),
        )
        for host in causes
    }


def _cards_a_host(found: DiagnosisDocument) -> int | None:
    """Say how many ranks each machine runs, where that comes out even: launchers deal them in order."""
    n_hosts, n_ranks = len(found.job.hosts or ()), found.job.world_size
    return n_ranks // n_hosts if n_hosts and n_ranks and n_ranks % n_hosts == 0 else None


def _explain_nothing(found: DiagnosisDocument) -> str:
    """Say why there is nothing to test, and what to do."""
    placed = [cause.cause for cause in found.causes if cause.where.workers or cause.where.links]
    if placed:
        what = f"{', '.join(placed[:_MOST_NAMED])} names workers, but not the machines that they ran on"
        return f"{what}; give the trace itself if it has a column `host`, or name them: --suspect HOST --control HOST"
    if found.causes:
        named = ", ".join(cause.cause for cause in found.causes[:_MOST_NAMED])
        return (
            f"{named} is blamed on no machine: nothing to test; to test one all the same, name it with --suspect HOST"
        )
    return f"the diagnosis is {found.verdict} and blames no machine: nothing to test; to test one, name it with --suspect HOST"


def _choose(hosts: Sequence[str], blamed: set[str], n: int) -> tuple[str, ...]:
    """Choose controls: of all that nothing is said of, evenly spaced ones, as neighbours share switches and racks."""
    sound = sorted(set(hosts) - blamed)
    sound = [host for host in sound if _HOST.fullmatch(host)]
    n = min(n, len(sound))
    return tuple(sound[(2 * i + 1) * len(sound) // (2 * n)] for i in range(n))


def _pair(suspects: Sequence[Suspect], controls: Sequence[str]) -> tuple[Pair, ...]:
    """Say who sends to whom, so that a bad machine is told from a bad link.

    Each suspect sends to two controls; the ends of a blamed link to each other besides; controls to each other in a ring, which is
    what the others are compared with. In a round nobody has two partners.
    """
    wanted: dict[tuple[str, str], None] = {}

    def add(one: str, other: str) -> None:
        if one != other and (other, one) not in wanted:
            wanted[one, other] = None

    tested = {one.host for one in suspects}
    for suspect in suspects:
        for partner in suspect.partners:
            if partner in tested:
                add(partner, suspect.host)
    for n, suspect in enumerate(suspects):
        for k in range(min(_PARTNERS, len(controls))):
            add(controls[(_PARTNERS * n + k) % len(controls)], suspect.host)
    for one, other in itertools.pairwise([*controls, controls[0]] if len(controls) > 2 else controls):
        add(one, other)
    busy: list[set[str]] = []
    pairs = []
    for one, other in wanted:
        at = next((n for n, taken in enumerate(busy) if not taken & {one, other}), len(busy))
        if at == len(busy):
            busy.append(set())
        busy[at] |= {one, other}
        pairs.append(Pair(one, other, at))
    return tuple(sorted(pairs, key=lambda pair: pair.round))
