"""Dumps of collectives beside the traces, the log, or other dumps of one job: what both say is evidence, else both are told.

Enters: a `Diagnosis` of traces, of a log, or of the dumps of another recorder, and that of the dumps. Leaves: one diagnosis.

Dumps seldom are of the traced steps: that one sees what the other does not is no proof against either.
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence

import msgspec.structs

from diagnose.judge.severity import Severities
from diagnose.judge.unknown import UNKNOWN
from diagnose.model.cause import Cause, EvidenceItem, When
from diagnose.model.collectives import CollectivesDocument
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.place import Link, Where, Worker
from diagnose.model.training_log import LogFacts

_NETWORK = "network-fault"
#: Two clocks that differ by more are not of two zones: these are 26 hours apart at most.
_ZONES_S = 26 * 3600.0
#: Places told of one cause.
_MOST_NAMED = 4


def join_collectives(diagnosis: Diagnosis, dumps: Diagnosis, severities: Severities) -> Diagnosis:
    """Join what dumps of collectives show.

    A hang comes first: nothing else matters to a job that stands still. A culprit that both name has what the dumps say as
    evidence; one that only the dumps name is a cause of its own, and a warning names both.
    """
    seen = dumps.collectives
    assert seen is not None
    refused = _contradict(diagnosis, dumps, seen)
    if refused:
        return dataclasses.replace(diagnosis, warnings=(*diagnosis.warnings, refused))
    warnings = [f"collectives: {warning}" for warning in dumps.warnings]
    causes, hangs, added = list(diagnosis.causes), [], []
    for cause in dumps.causes:
        placed = _place(cause, diagnosis)
        if cause.cause == UNKNOWN:  # only a hang has no name
            hangs.append(_date_hang(placed, seen, diagnosis.log))
            continue
        at = next((i for i, other in enumerate(causes) if _is_same(other, placed)), None)
        if at is None:
            added.append(placed)
        else:
            causes[at] = msgspec.structs.replace(causes[at], evidence=(*causes[at].evidence, *placed.evidence))
    warnings += _warn_times(seen, diagnosis.log)
    warnings += _warn_apart(diagnosis, dumps, added)
    everything = (*hangs, *causes, *added)
    new = {cause.cause for cause in added}
    looked = {*diagnosis.checked, *dumps.checked} | (new if diagnosis.is_replayed else set())
    job, is_known, gpu_hours = diagnosis.job, _is_laid_out(diagnosis), diagnosis.gpu_hours_analysed
    if not is_known and dumps.parallelism_known:  # what the log does not say
        sizes = {key: getattr(dumps.job, key) for key in ("dp_size", "pp_size", "tp_size", "world_size")}
        job, is_known = dataclasses.replace(job, **sizes), True
        if diagnosis.log is not None and diagnosis.log.ledger is not None and not diagnosis.log.of:
            gpu_hours = diagnosis.log.ledger.total_s * job.world_size / 3600.0
    return dataclasses.replace(
        diagnosis,
        job=job,
        gpu_hours_analysed=gpu_hours,
        parallelism_known=is_known,
        verdict="straggling" if hangs or added else diagnosis.verdict,
        causes=severities.rate_all(everything, job.world_size if is_known else None),
        checked=tuple(sorted(looked)),
        not_checked=tuple(entry for entry in diagnosis.not_checked if entry.cause not in looked | new),
        collectives=diagnosis.collectives or seen,
        warnings=(*diagnosis.warnings, *warnings),
    )


def _name_source(diagnosis: Diagnosis) -> str:
    """Say what a diagnosis is of."""
    if diagnosis.collectives is not None:
        return f"dumps of {diagnosis.collectives.format}"
    return "trace" if diagnosis.is_replayed else "log"


def _is_laid_out(diagnosis: Diagnosis) -> bool:
    """Say whether it is known on how many ranks a job ran."""
    return diagnosis.is_replayed or diagnosis.parallelism_known


def _contradict(diagnosis: Diagnosis, dumps: Diagnosis, seen: CollectivesDocument) -> str:
    """Say why dumps are not of this job; empty where they may be."""
    job, what = diagnosis.job, _name_source(diagnosis)
    if not _is_laid_out(diagnosis):
        return ""
    if seen.world_size > job.world_size:
        apart = f"the dumps are of {seen.world_size:,} ranks, the {what} of {job.world_size:,}"
    elif dumps.parallelism_known and dumps.job.pp_size > 1 and dumps.job.pp_size != job.pp_size:
        apart = f"the dumps are of {dumps.job.pp_size} stages, the {what} of {job.pp_size}"
    else:
        return ""
    return f"collectives and {what} contradict each other: {apart}; nothing of the dumps is used: is it the same run?"


def _place(cause: Cause, diagnosis: Diagnosis) -> Cause:
    """Name the workers of a cause as the trace does; a log has no better names."""
    if not diagnosis.ranks.size:
        return cause
    where = cause.where
    links = tuple(Link.between(*(_find_worker(end, diagnosis) for end in link.ends)) for link in where.links)
    workers = tuple(_find_worker(worker, diagnosis) for worker in where.workers)
    return msgspec.structs.replace(cause, where=msgspec.structs.replace(where, workers=workers, links=links))


def _find_worker(worker: Worker, diagnosis: Diagnosis) -> Worker:
    """Find the worker of a rank in the trace; the host is that of the dumps where these tell it."""
    n_dp, n_stages = diagnosis.ranks.shape
    n_members = max(1, diagnosis.job.world_size // (n_dp * n_stages))
    for i in range(n_dp):
        for j in range(n_stages):
            first = int(diagnosis.ranks[i, j])
            if worker.rank is not None and first <= worker.rank < first + n_members:
                known = diagnosis.worker(i, j)
                return msgspec.structs.replace(
                    known, rank=worker.rank, host=worker.host or known.host, tp=worker.tp if n_members > 1 else None
                )
    return worker


def _is_same(known: Cause, cause: Cause) -> bool:
    """Say whether a cause of the trace, or of the log, and one of the dumps name one culprit.

    A rank that comes late is seen in the dumps, and not why; so any cause at its worker agrees, but one of the network.
    """
    if (known.cause == _NETWORK) != (cause.cause == _NETWORK):
        return False
    mine, theirs = known.where.all_workers, cause.where.all_workers
    if mine and theirs:
        return all(any(_is_worker(one, other) for one in mine) for other in theirs)
    hosts = {_short(host) for host in known.where.hosts}
    return bool(hosts & {_short(host) for host in cause.where.hosts}) or (
        cause.cause == _NETWORK and bool(theirs) and {worker.pp for worker in theirs} <= set(known.where.stages)
    )


def _is_worker(known: Worker, worker: Worker) -> bool:
    """Say whether two workers are one, or one is a member of the other; on another host it is another machine."""
    if known.host and worker.host and _short(known.host) != _short(worker.host):
        return False
    if known.tp is not None and worker.tp is not None and known.tp != worker.tp:
        return False
    return (known.dp, known.pp) == (worker.dp, worker.pp)


def _short(host: str) -> str:
    """Give the name of a host without its domain."""
    return host.partition(".")[0].lower()


def _date_hang(cause: Cause, seen: CollectivesDocument, log: LogFacts | None) -> Cause:
    """Say after which iteration a job stands still, by its log."""
    if log is None or abs(_compare_ends(seen, log)) > _ZONES_S:
        return cause
    last = int(log.iterations[-1])
    text = f"the last line of the log is of iteration {last:,}"
    if log.ended_s is not None and seen.ended_s is not None:
        text += f", at {_write_time(log.ended_s)} by its clock; the last call in the dumps is of {_write_time(seen.ended_s)} UTC"
    item = EvidenceItem("log", "unknown/hang-log", text, {"iteration": last})
    return msgspec.structs.replace(cause, when=When("onset", last + 1), evidence=(*cause.evidence, item))


def _compare_ends(seen: CollectivesDocument, log: LogFacts) -> float:
    """Give the seconds by which the log ends after the dumps; 0 where nobody knows."""
    return log.ended_s - seen.ended_s if log.ended_s is not None and seen.ended_s is not None else 0.0


def _write_time(seconds: float) -> str:
    """Write Unix seconds."""
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _warn_times(seen: CollectivesDocument, log: LogFacts | None) -> list[str]:
    """Warn where a log and dumps of a hang do not end together, whatever the zone of the log."""
    apart_s = _compare_ends(seen, log) if log is not None and seen.hang is not None else 0.0
    if abs(apart_s) <= _ZONES_S:
        return []
    side = "after" if apart_s > 0 else "before"
    text = f"the log ends {abs(apart_s) / 3600.0:,.0f} h {side} the last call in the dumps, which show a hang"
    return [f"collectives and log contradict each other: {text}: are they of another attempt?"]


def _warn_apart(diagnosis: Diagnosis, dumps: Diagnosis, added: Sequence[Cause]) -> list[str]:
    """Warn of culprits that one of both names alone. That a log does not show who is slow contradicts nobody."""
    located = [cause for cause in diagnosis.causes if cause.where != Where()]
    if added and (located or diagnosis.is_replayed):
        theirs, mine = _name_all(added), _name_all(located)
    else:
        # With durations, dumps show who is late and which links are slow: of those they would have named them.
        unseen = [cause for cause in located if cause.cause in dumps.checked and cause.where.all_workers]
        if not unseen:
            return []
        theirs, mine = "nobody", _name_all(unseen)
    what = _name_source(diagnosis)
    return [
        f"collectives and {what} do not agree: the dumps name {theirs}, the {what} names {mine}; are they of other times?"
    ]


def _name_all(causes: Sequence[Cause]) -> str:
    """Name causes with their places."""
    return ", ".join(f"{_name(cause.where)} ({cause.cause})" for cause in causes) or "nobody"


def _name(where: Where) -> str:
    """Name the places of a cause."""
    workers = [
        (f"rank {one.rank}" if one.rank is not None else f"dp {one.dp}, stage {one.pp}")
        + (f" on {one.host}" if one.host else "")
        for one in where.all_workers
    ]
    named = workers or [f"host {host}" for host in where.hosts] or [f"stage {stage}" for stage in where.stages]
    return "; ".join(named[:_MOST_NAMED]) + (
        f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    )
