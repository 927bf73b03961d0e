"""What a recording of collectives alone says of a job: who hangs it, who is waited for, which transfers are slow.

Enters: `Collectives`. Leaves: a `Verdict`, and what stands in the diagnosis beside it.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from diagnose.judge.collectives_hang import find_hang, name_ranks
from diagnose.judge.collectives_layout import Layout, find_layout
from diagnose.judge.collectives_waits import Waits, measure_waits
from diagnose.judge.rule import Rule
from diagnose.judge.verdict import Verdict
from diagnose.judge.worth import least_gain
from diagnose.model.cause import Cause, EvidenceItem, NotChecked, When
from diagnose.model.collectives import Collectives, CollectivesDocument, HangFacts, LateRank, SlowGroup
from diagnose.model.fingerprint import name_fault
from diagnose.model.place import Link, Where
from diagnose.model.trace import Job
from diagnose.numerics.figures import write_figure, write_percent

#: Why every other cause stays open.
NO_COMPUTES = "a recording of collectives has no computes: nothing in it says what else time is lost to"
#: How sure each is, by what it was measured with: of a rank that left no dump nobody knows whether somebody just did not copy it.
_SURE_HANG = {"missing": 0.9, "mismatch": 0.9, "no-dump": 0.75, "deadlock": 0.8, "not-started": 0.75, "unfinished": 0.7}
_SURE_LATE = {"durations": 0.85, "calls": 0.65, "nothing": 0.5}
_SURE_SLOW = 0.8
#: Slow groups told in one cause.
_MAX_GROUPS = 3


def judge_collectives(
    recorded: Collectives, job: Job, rules: Sequence[Rule], *, min_speedup: float
) -> tuple[Verdict, CollectivesDocument]:
    """Judge a job by what its communication library recorded, and nothing else."""
    hang, doubts = find_hang(recorded)
    waits = _leave_doubtful(measure_waits(recorded, least=least_gain(min_speedup)), hang)
    if hang is not None and hang.kind == "missing" and {each.rank for each in waits.late} >= set(hang.ranks):
        doubts = (
            f"{len(hang.at.waiting)} ranks wait for {name_ranks(hang.ranks)}, as they did all along: hang or not, it is that rank",
        )
        hang = None
    layout = find_layout(recorded)
    by_id = {rule.id: rule for rule in rules}
    causes = []
    if hang is not None:
        causes.append(_report_hang(hang, job, layout))
    if waits.late:
        causes.append(_report_late(waits, job, layout, by_id.get("worker-fault")))
    if waits.slow:
        causes.append(_report_slow(waits.slow, job, layout, by_id.get("network-fault")))
    found = {cause.cause for cause in causes}
    looked = ("worker-fault", "network-fault") if waits.measured_by == "durations" else ()
    open_causes = [rule.id for rule in rules if rule.id not in found and rule.id not in looked]
    said = (*doubts, *waits.doubts)
    document = CollectivesDocument(
        file=recorded.name,
        format=recorded.format,
        ranks=len(recorded.ranks),
        world_size=recorded.world_size,
        groups=len(recorded.communicators),
        operations=len(recorded.rank),
        seconds=recorded.span_s if math.isfinite(recorded.span_s) else None,
        ended_s=_find_end(recorded),
        measured_by=waits.measured_by,
        hang=hang,
        late_ranks=waits.late,
        slow_groups=waits.slow,
        doubts=said,
    )
    verdict = Verdict(
        "straggling" if causes else "inconclusive",
        tuple(causes),
        None,
        tuple(cause for cause in looked if cause not in found),
        tuple(NotChecked(cause, NO_COMPUTES) for cause in open_causes),
        said,
        why=_say_nothing(recorded, waits),
    )
    return verdict, document


def _find_end(recorded: Collectives) -> float | None:
    """Give when the last operation was called; None where no times were recorded."""
    known = recorded.called_s[np.isfinite(recorded.called_s)]
    return round(float(known.max()), 3) if len(known) else None


def _leave_doubtful(waits: Waits, hang: HangFacts | None) -> Waits:
    """Leave out late ranks that something else explains.

    Where a rank is gone its groups cannot be compared by their calls. Who shares a pipeline with a slow link waits in it, and comes
    late elsewhere.
    """
    is_explained = bool(waits.late and waits.slow) and waits.slow[0].share >= waits.late[0].share
    if is_explained or (hang is not None and waits.measured_by == "calls"):
        return dataclasses.replace(waits, late=())
    return waits


def _say_nothing(recorded: Collectives, waits: Waits) -> str:
    """Say why nothing was found, in a sentence."""
    n_missing = recorded.world_size - len(recorded.ranks)
    if n_missing > 0:
        return f"nobody hangs or is late for sure: dumps of {n_missing} of {recorded.world_size} ranks are missing"
    if waits.measured_by == "durations":
        return "no rank and no group costs so much that it is worth mending; ranks that are all slow alike do not show"
    if waits.unsure:
        return f"{name_ranks(waits.unsure)} come late together: one is slow, and which it is only durations would tell"
    return "no rank hangs or comes late for sure; without durations a slow device or link does not show"


def _report_hang(hang: HangFacts, job: Job, layout: Layout) -> Cause:
    """Report a job that stands still: what it was lost to is seen on the ranks that are named."""
    where = Where(workers=tuple(layout.worker(rank) for rank in hang.ranks))
    at = f" at {hang.at.frame}" if hang.at.frame else ""
    at = f"{hang.at.operation} #{hang.at.number}{at}"
    texts = [f"{len(hang.at.waiting)} of {hang.at.group_size} ranks of {hang.at.group} called {at}"]
    if hang.last_call is not None:
        seen = f", at {hang.last_frame}" if hang.last_frame else ""
        texts.append(f"the last call of rank {hang.ranks[0]} was {hang.last_call}{seen}")
    if hang.n_waiting > len(hang.at.waiting):
        texts.append(f"{hang.n_waiting} ranks wait, for it or for somebody who does")
    return Cause(
        cause="unknown",
        title=hang.text.split("; ")[0],
        kind="high",
        confidence=_SURE_HANG[hang.kind],
        share=None,
        recoverable=1.0,
        where=where,
        when=When("onset"),
        check=f"py-spy dump, and the log, of {name_ranks(hang.ranks)}",
        evidence=tuple(
            EvidenceItem("collectives", f"unknown/hang-{hang.kind}-{i}", text, {}) for i, text in enumerate(texts)
        ),
        fixes=(),
        fingerprint=name_fault(job, f"unknown/hang-{hang.kind}", None, where),
    )


def _report_late(waits: Waits, job: Job, layout: Layout, rule: Rule | None) -> Cause:
    """Report ranks that the others wait for."""
    where = Where(
        workers=tuple(layout.worker(each.rank) for each in waits.late),
        hosts=tuple(dict.fromkeys(each.host for each in waits.late if each.host)),
    )
    by_calls = ", by when it calls them" if waits.measured_by == "calls" else ""
    title = f"slow worker: {name_ranks([each.rank for each in waits.late])} {'comes' if len(waits.late) == 1 else 'come'} last"
    return Cause(
        cause="worker-fault",
        title=title,
        confidence=_SURE_LATE[waits.measured_by],
        share=None,
        recoverable=min(1.0, waits.late[0].share),
        where=where,
        when=When("constant"),
        check=rule.check or None if rule is not None else None,
        who=rule.who if rule is not None else None,
        evidence=tuple(
            EvidenceItem(
                "collectives", f"worker-fault/rank-{each.rank}", _describe_late(each) + by_calls, _figures(each)
            )
            for each in waits.late
        ),
        fixes=(),
        fingerprint=name_fault(job, "worker-fault", rule.who if rule is not None else None, where),
    )


def _describe_late(late: LateRank) -> str:
    """Say what was seen of a late rank."""
    return (
        f"rank {late.rank} spends {write_percent(late.share)} of the time outside collectives more than its peers in {late.group}, "
        f"and {write_percent(late.waited_for)} of their waiting there is for it"
    )


def _figures(late: LateRank) -> dict[str, float | None]:
    """Give the numbers behind that."""
    return {"share": late.share, "more_s": late.more_s, "waited_for": late.waited_for}


def _report_slow(slow: Sequence[SlowGroup], job: Job, layout: Layout, rule: Rule | None) -> Cause:
    """Report groups, or links, whose transfers take longer than those of their sisters."""
    first = slow[0]
    pairs = [each for each in slow if each.is_pair]
    where = Where(
        hosts=tuple(dict.fromkeys(host for each in slow[:_MAX_GROUPS] for host in each.hosts)),
        links=tuple(Link.between(layout.worker(each.ranks[0]), layout.worker(each.ranks[1])) for each in pairs),
        workers=() if pairs else tuple(layout.worker(rank) for rank in first.ranks),
    )
    what = (
        f"ranks {first.ranks[0]} to {first.ranks[1]}"
        if first.is_pair
        else f"group {first.group}, {name_ranks(first.ranks)}"
    )
    texts = [
        f"{each.operation} of {name_ranks(each.ranks)} takes {write_figure(each.transfer_s)} s by itself, "
        f"{write_figure(each.usual_s)} s in other groups of its kind"
        for each in slow[:_MAX_GROUPS]
    ]
    return Cause(
        cause="network-fault",
        title=f"slow {'link' if first.is_pair else 'transfers'}: {what}",
        confidence=_SURE_SLOW,
        share=None,
        recoverable=min(1.0, first.share),
        where=where,
        when=When("constant"),
        check=rule.check or None if rule is not None else None,
        who=rule.who if rule is not None else None,
        evidence=tuple(
            EvidenceItem(
                "collectives",
                f"network-fault/group-{i}",
                text,
                {"transfer_s": each.transfer_s, "usual_s": each.usual_s},
            )
            for i, (text, each) in enumerate(zip(texts, slow, strict=False))
        ),
        fixes=(),
        fingerprint=name_fault(job, "network-fault", rule.who if rule is not None else None, where),
    )
