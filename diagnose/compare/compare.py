"""Compare two diagnoses: match their causes, and explain the change of the step time through both ledgers.

Enters: two `Side`s. Leaves: a `Comparison`. Nothing is judged anew: what neither diagnosis says is not said here.
"""

from collections.abc import Iterator

from diagnose.model.comparison import Account, Change, ChangeName, Comparison, Payoff, Seen, Side, whole_ns
from diagnose.model.fingerprint import HARDWARE
from diagnose.model.place import Where

#: Step times nearer than this are alike: a cause is worth reporting from there on (`--min-speedup`), and healthy runs of one
#: configuration differ as much.
ALIKE_SHARE = 0.02
#: Time lost to a cause that changes by less than this part of the step is the same: launch delays vary as much.
SAME_SHARE = 0.01
#: A step without any cause that differs by more than this is other work.
OTHER_WORK_SHARE = 0.05
#: Worst first.
_ORDER = ("came", "grew", "unclear", "same", "shrank", "went")


def compare(before: Side, after: Side) -> Comparison:
    """Say what became of a job between two diagnoses, such as before and after a fix, or of yesterday and today."""
    changes = tuple(sorted(_match(before, after), key=_rank))
    share = after.recorded_s / before.recorded_s - 1.0
    return Comparison(
        before=before,
        after=after,
        trend="slower" if share >= ALIKE_SHARE else "faster" if share <= -ALIKE_SHARE else "alike",
        changes=changes,
        account=_account(before, after, changes),
        payoffs=tuple(_weigh_fixes(before, changes)),
        warnings=tuple(_doubts(before, after)),
    )


def _match(before: Side, after: Side) -> Iterator[Change]:
    """Pair the causes of both sides: those of one id in one place belong together."""
    left = list(after.causes)
    for old in before.causes:
        new = next((one for one in left if _is_same(old, one)), None)
        if new is None:
            yield _change(old, None, before, after)
        else:
            left.remove(new)
            yield _change(old, new, before, after)
    for new in left:
        yield _change(None, new, before, after)


def _is_same(old: Seen, new: Seen) -> bool:
    """Say whether two causes are one: of one id, and in one place, or one of them without a place."""
    if old.cause != new.cause:
        return False
    if old.fingerprint and old.fingerprint == new.fingerprint and not _moved(old, new):
        return True
    places, others = _places(old.where), _places(new.where)
    return not _moved(old, new) and (not places or not others or bool(places & others))


def _moved(old: Seen, new: Seen) -> bool:
    """Say whether a fault of the hardware is on other hosts now."""
    hosts, others = _hosts(old.where), _hosts(new.where)
    return old.who in HARDWARE and bool(hosts) and bool(others) and not hosts & others


def _hosts(where: Where) -> set[str]:
    """Give all hosts of a place."""
    return set(where.hosts) | {worker.host for worker in where.workers if worker.host}


def _places(where: Where) -> set[tuple[str, object]]:
    """Give all that a place names."""
    found: set[tuple[str, object]] = {("host", host) for host in _hosts(where)}
    found |= {("worker", (worker.dp, worker.pp)) for worker in where.workers}
    found |= {("stage", stage) for stage in where.stages}
    return found | {("link", link) for link in where.links}


def _change(old: Seen | None, new: Seen | None, before: Side, after: Side) -> Change:
    """Say what became of one cause."""
    before_s, after_s = (0.0 if one is None else one.lost_s for one in (old, new))
    note = _why_unclear(old, new, before, after)
    change: ChangeName
    if note:
        change = "unclear"
    elif old is None or new is None:
        change = "came" if old is None else "went"
    else:
        by = after_s - before_s if before_s is not None and after_s is not None else new.cost_s - old.cost_s
        material = abs(by) >= SAME_SHARE * before.recorded_s
        change = "same" if not material else "grew" if by > 0 else "shrank"
    return Change(change, old, new, before_s, after_s, note)


def _why_unclear(old: Seen | None, new: Seen | None, before: Side, after: Side) -> str:
    """Say why nobody knows whether a cause that only one side says is there on the other; empty where that is known."""
    if old is not None and new is not None:
        return ""
    seen, silent, which = (new, before, "first") if old is None else (old, after, "second")
    if seen is None:
        return ""
    if silent.verdict == "inconclusive":
        return f"the {which} diagnosis is inconclusive"
    reason = silent.not_checked.get(seen.cause)
    return "" if reason is None else f"the {which} diagnosis could not look for it: {reason}"


def _rank(change: Change) -> tuple[int, float, str]:
    """Put what came and grew first, most seconds before fewer."""
    most_s = max(change.before_s or 0.0, change.after_s or 0.0)
    return _ORDER.index(change.change), -most_s, change.seen.cause


def _account(before: Side, after: Side, changes: tuple[Change, ...]) -> Account | None:
    """Explain the change of the step time: the step without causes, each cause, and the rest, in whole nanoseconds."""
    if before.clean_s is None or after.clean_s is None or "inconclusive" in (before.verdict, after.verdict):
        return None
    recorded = whole_ns(after.recorded_s) - whole_ns(before.recorded_s)
    clean = whole_ns(after.clean_s) - whole_ns(before.clean_s)
    causes: dict[str, int] = {}
    for change in changes:
        by = whole_ns(change.after_s or 0.0) - whole_ns(change.before_s or 0.0)
        causes[change.seen.cause] = causes.get(change.seen.cause, 0) + by
    rest = recorded - clean - sum(causes.values())
    return Account(recorded / 1e9, clean / 1e9, {cause: by / 1e9 for cause, by in causes.items()}, rest / 1e9)


def _weigh_fixes(before: Side, changes: tuple[Change, ...]) -> Iterator[Payoff]:
    """Set what the fixes of causes that went or shrank had promised beside what came of it."""
    mended = [change for change in changes if change.change in ("went", "shrank") and change.before is not None]
    for change in mended:
        for fix, predicted_s in change.before.fixes if change.before else ():
            yield _payoff(before, (change,), (fix,), predicted_s)
    planned = before.plan and sorted(before.plan[0]) == sorted(change.seen.cause for change in mended)
    if before.plan and planned and len(mended) > 1:
        yield _payoff(before, tuple(mended), (), before.plan[1])


def _payoff(before: Side, changes: tuple[Change, ...], fixes: tuple[str, ...], predicted_s: float) -> Payoff:
    """Weigh one fix, or the whole plan, whose fixes have no names here."""
    predicted_gain_s = before.recorded_s - predicted_s
    parts = [change.change_s for change in changes]
    gain_s = None if None in parts else -sum(part for part in parts if part is not None)
    worth = gain_s is not None and predicted_gain_s >= SAME_SHARE * before.recorded_s
    reached = gain_s / predicted_gain_s if worth and gain_s is not None else None
    return Payoff(tuple(c.seen.cause for c in changes), fixes, predicted_s, predicted_gain_s, gain_s, reached)


def _doubts(before: Side, after: Side) -> Iterator[str]:
    """Say why the two may not be comparable."""
    for side, which in ((before, "first"), (after, "second")):
        if side.is_log:
            yield f"the {which} is a training log: its step time is the mean of all its iterations"
        elif side.verdict == "inconclusive":
            yield f"the {which} diagnosis is inconclusive: no figure of it is to be trusted"
    a, b = before.shape, after.shape
    sizes = [("dp", a.dp, b.dp), ("pp", a.pp, b.pp), ("tp", a.tp, b.tp), ("cp", a.cp, b.cp), ("vpp", a.vpp, b.vpp)]
    other = [f"{label} {old} and {new}" for label, old, new in sizes if None not in (old, new) and old != new]
    if other:
        yield f"the jobs differ in parallelism ({', '.join(other)}): the work of a step may be another, and places too"
    if a.gpus is None or b.gpus is None:
        yield "nothing says on how many GPUs both jobs ran: the work of a step may be another"
    elif a.gpus != b.gpus:
        yield f"the jobs run on {a.gpus} and {b.gpus} GPUs: a shorter step may cost more GPU hours"
    texts = [
        ("GPUs", a.gpu_type, b.gpu_type),
        ("framework", a.framework, b.framework),
        ("layers", a.n_layers, b.n_layers),
    ]
    for label, old, new in texts:
        if old is not None and new is not None and old != new:
            yield f"the jobs differ in {label}: {old} and {new}"
    ratio = after.clean_s / before.clean_s if before.clean_s and after.clean_s is not None else 1.0
    if abs(ratio - 1.0) >= OTHER_WORK_SHARE:
        yield f"without any cause a step takes {ratio:.3g} times as long as before: other work, or other GPUs"
    if before.made_by != after.made_by:
        yield "they were made by other versions, rules or classifiers: causes may come and go for that alone"
