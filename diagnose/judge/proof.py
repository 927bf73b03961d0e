"""The figures that show a cause at a glance: a small table of places over steps, which pictures are drawn from.

Enters: what was measured of a job, and its causes. Leaves: the causes, each with its `Proof`. Nothing is judged here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec.structs
import numpy as np

from diagnose.model.analysis import Analysis
from diagnose.model.cause import Cause
from diagnose.model.components import COMPONENTS, STALLED
from diagnose.model.optype import Op
from diagnose.model.pictured import NO_RULE, Pictured
from diagnose.model.place import Where
from diagnose.model.proof import Proof, ProofKind, ProofUnit
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.robust import nan_median, nan_quantile

#: Rows and columns of a table at most: a diagnosis is kept for every job of every night.
MAX_ROWS, MAX_COLUMNS = 24, 100
#: Culprits that have a row of their own at most.
MAX_CULPRITS = 6
#: Slow links, and slow groups, that have one.
_MAX_SLOW = 3
#: Digits that count.
_DIGITS = 4
#: The ends of the middle nine tenths of the peers.
_LOW, _HIGH = 0.05, 0.95
#: What shows a component, where the rule of its cause does not say; the others show in the step times.
_BY_COMPONENT: dict[str, ProofKind] = {
    "worker": "pace",
    "transfer": "transfers",
    "microbatch": "ranks",
    "expert": "experts",
    "stage": "stages",
    **dict.fromkeys(("queue", "gc-pause", "malloc-pause", "input-delay", "pause", "other-work"), "pauses"),
}
#: Rows of the trace that tell of stalls.
_ROWS = {StallKind.COLLECTION: Op.GC, StallKind.ALLOCATION: Op.CUDA_MALLOC, StallKind.SAVING: Op.CHECKPOINT}
_KIND_OF = {component: kind for kind, component in STALLED.items()} | {"pause": StallKind.NOBODY}


def add_proofs(analysis: Analysis, causes: Sequence[Cause], pictured: Mapping[str, Pictured]) -> tuple[Cause, ...]:
    """Give each cause the figures that show it."""
    return tuple(
        msgspec.structs.replace(cause, proof=prove(analysis, cause, pictured.get(cause.cause, NO_RULE)))
        for cause in causes
    )


def prove(analysis: Analysis, cause: Cause, rule: Pictured) -> Proof | None:
    """Make the table that shows a cause: the first that there is of those its rule names, else by what it loses time to."""
    components = rule.components or _list_named(cause)
    kinds = [kind for kind in rule.pictures if kind in _MAKERS]
    kinds += [_BY_COMPONENT[name] for name in components if name in _BY_COMPONENT]
    if "worker" in components and not analysis.breakdown.slow_workers.any():
        hidden = not rule.pictures or analysis.breakdown.optimizer_ratio is not None
        kinds = [kind for kind in kinds if kind != "pace" or not hidden]  # no computes are slow
    for kind in (*kinds, "steps"):
        proof = _MAKERS[kind](analysis, cause.where, components)
        if proof is not None:
            return proof
    return None


def _list_named(cause: Cause) -> tuple[str, ...]:
    """List the components that a cause without a rule is about: its evidence has their gains."""
    return tuple(name for name in COMPONENTS if any(f"gain.{name}" in item.values for item in cause.evidence))


def _pace(analysis: Analysis, where: Where, components: Sequence[str]) -> Proof | None:
    """Compare what culprits compute in each step with the median of their peers on the stage; alone, with their usual time.

    That is what they take before the cause is there, or after it, where it has a beginning or an end.
    """
    culprits = _find_workers(analysis, where)[:MAX_CULPRITS]
    if not culprits:
        return None
    busy_s = _sum_workers(analysis, analysis.breakdown.compute_s)
    named = np.zeros(busy_s.shape[:2], dtype=bool)
    named[tuple(np.transpose(_find_workers(analysis, where)))] = True
    peers_s = nan_median(np.where(named[..., None], np.nan, busy_s), axis=0)  # by stage and step
    course = analysis.courses.get("+".join(components))
    away = [course is None or not course.when.covers(step) for step in analysis.breakdown.steps.tolist()]
    own_s = busy_s[..., away] if any(away) else busy_s
    usual_s = np.where(np.isnan(peers_s), nan_median(own_s, axis=(0, 2))[:, None], peers_s)
    ratio = busy_s / usual_s
    stages = sorted({stage for _, stage in culprits})
    others = np.where(named[..., None], np.nan, ratio)[:, stages].reshape(-1, busy_s.shape[2])
    rows = [(_name_worker(analysis, *place), ratio[place]) for place in culprits]
    return _over_steps(analysis, "pace", "ratio", [*rows, *_band("peers", others)], n_culprits=len(rows))


def _transfers(analysis: Analysis, where: Where, _components: Sequence[str]) -> Proof | None:
    """Compare transfers of slow links, and collectives of slow groups, with the usual ones of all others."""
    links_s, groups_s = analysis.transfers.link_steps_s, analysis.transfers.group_steps_s
    if links_s is None or groups_s is None:
        return None
    labels, n_stages = analysis.trace.stage_labels, len(groups_s)
    at_link, at_group = _find_links(analysis, where), np.zeros(n_stages, dtype=bool)
    at_group[_find_stages(analysis, where)] = True
    links, groups = links_s / _usual(links_s, at_link), groups_s / _usual(groups_s, at_group)
    slow = np.argwhere(at_link & np.isfinite(links).any(axis=2))
    slow = slow[np.argsort([-np.nanmean(links[at[0], at[1]]) for at in slow], kind="stable")][:_MAX_SLOW]
    rows = [
        (
            f"link dp {analysis.trace.dp_labels[dp]}, stage {labels[stage]} - {labels[(stage + 1) % n_stages]}",
            links[stage, dp],
        )
        for stage, dp in slow.tolist()
    ]
    held = np.flatnonzero(at_group & np.isfinite(groups).any(axis=1)).tolist()
    rows += [(f"collectives of stage {labels[stage]}", groups[stage]) for stage in held[:_MAX_SLOW]]
    others = np.concatenate([links[~at_link], groups[~at_group]])
    band = list(_band("all others" if rows else "all transfers", others))
    return _over_steps(analysis, "transfers", "ratio", [*rows, *band], n_culprits=len(rows)) if rows or band else None


def _usual(seconds: Seconds, slow: Bools) -> float:
    """Give the median of all places that are not slow, or of all where there are no others; NaN where nothing takes time."""
    for some in (seconds[~slow], seconds):
        usual = float(nan_median(some, axis=tuple(range(some.ndim)))) if some.size else 0.0
        if usual > 0:
            return usual
    return np.nan


def _ranks(analysis: Analysis, _where: Where, _components: Sequence[str]) -> Proof | None:
    """Compare what each dp rank computes in a step with the mean of all; a single rank's microbatches with each other."""
    by_rank = np.nansum(_sum_workers(analysis, analysis.breakdown.compute_s), axis=1)
    names = [f"dp {label}" for label in analysis.trace.dp_labels]
    if len(by_rank) == 1:
        by_rank = np.nansum(analysis.breakdown.compute_s[..., 0], axis=(0, 1))
        names = [f"microbatch {n}" for n in range(len(by_rank))]
    return _as_map(analysis, "ranks", "ratio", names, _over_mean(by_rank))


def _experts(analysis: Analysis, _where: Where, _components: Sequence[str]) -> Proof | None:
    """Compare what each worker computes in a step with the mean of its stage: which ranks have the busy experts."""
    ratio = np.swapaxes(_over_mean(_sum_workers(analysis, analysis.breakdown.compute_s)), 0, 1)
    names = [_name_worker(analysis, dp, stage) for stage, dp in np.ndindex(ratio.shape[:2])]
    return _as_map(analysis, "experts", "ratio", names, ratio.reshape(len(names), -1))


def _over_mean(values: Seconds) -> Seconds:
    """Divide by the mean over the first axis; NaN where nothing takes time."""
    known = np.isfinite(values).sum(axis=0)
    mean = np.nansum(values, axis=0) / np.maximum(known, 1)
    return np.asarray(values / np.where(mean > 0, mean, np.nan))


def _pauses(analysis: Analysis, _where: Where, components: Sequence[str]) -> Proof | None:
    """List the seconds that each worker lost in each step to what the components stand for; None where that is nothing."""
    breakdown = analysis.breakdown
    lost_s = np.zeros((analysis.trace.n_dp, analysis.trace.n_stages, len(breakdown.steps)))
    for component in components:
        if component == "queue" and breakdown.queue_wait_s is not None:
            lost_s = lost_s + _sum_workers(analysis, breakdown.queue_wait_s)
        elif component in _KIND_OF:
            kind = _KIND_OF[component]
            lost_s = lost_s + _sum_workers(analysis, breakdown.stalls.seconds_of(kind))
            if kind in _ROWS and not lost_s.any():
                lost_s = _sum_rows(analysis, _ROWS[kind])
            if kind == StallKind.INPUT and breakdown.start_s is not None:
                lost_s = lost_s + np.moveaxis(breakdown.start_s, 2, 0)
    lost_s = np.nan_to_num(lost_s)
    if not lost_s.any():
        return None
    names = [_name_worker(analysis, *at) for at in np.ndindex(lost_s.shape[:2])]
    proof = _as_map(analysis, "pauses", "seconds", names, lost_s.reshape(len(names), -1))
    return (
        msgspec.structs.replace(proof, marked=_list_saves(analysis))
        if StallKind.SAVING in map(_KIND_OF.get, components)
        else proof
    )


def _steps(analysis: Analysis, _where: Where, components: Sequence[str]) -> Proof | None:
    """Put the step times beside those without the components."""
    gains = analysis.gains
    without_s = gains.alone_steps_s.get("+".join(components), gains.clean_steps_s)
    rows = [("as recorded", gains.replayed_steps_s), ("without it", without_s)]
    proof = _over_steps(analysis, "steps", "seconds", rows, n_culprits=1)
    return msgspec.structs.replace(proof, marked=_list_saves(analysis))


def _stages(analysis: Analysis, _where: Where, _components: Sequence[str]) -> Proof | None:
    """List the usual seconds of one microbatch on each virtual stage, forward and backward."""
    typical_s = analysis.breakdown.typical_s
    both_s = np.stack([typical_s[0], typical_s[1:].sum(axis=0)])  # weight gradients are a part of the backward
    if both_s.shape[1] > MAX_COLUMNS or np.isnan(both_s).all():
        return None
    columns = tuple(range(both_s.shape[1]))
    return Proof(kind="stages", unit="seconds", rows=("forward", "backward"), columns=columns, values=_listed(both_s))


_MAKERS: dict[str, Callable[[Analysis, Where, Sequence[str]], Proof | None]] = {
    "pace": _pace,
    "transfers": _transfers,
    "ranks": _ranks,
    "experts": _experts,
    "pauses": _pauses,
    "steps": _steps,
    "stages": _stages,
}


def _over_steps(
    analysis: Analysis, kind: ProofKind, unit: ProofUnit, rows: Sequence[tuple[str, Seconds]], *, n_culprits: int
) -> Proof:
    """Make lines over steps; of steps that share a column it has the mean."""
    table, columns, each = _share_columns(analysis, np.stack([values for _, values in rows]), np.add)
    return Proof(
        kind=kind, unit=unit, rows=tuple(name for name, _ in rows), n_culprits=n_culprits,
        columns=columns, steps_each=each, values=_listed(table),
    )  # fmt: skip


def _as_map(analysis: Analysis, kind: ProofKind, unit: ProofUnit, names: Sequence[str], table: Seconds) -> Proof:
    """Make a map of places and steps: the rows that show most, in their order; of steps that share a column it has the most."""
    table, columns, each = _share_columns(analysis, table, np.fmax)
    shows = np.nan_to_num(table).max(axis=1) if unit == "ratio" else table.sum(axis=1)
    shown = np.sort(np.argsort(-shows, kind="stable")[:MAX_ROWS])
    return Proof(
        kind=kind, unit=unit, rows=tuple(names[i] for i in shown), columns=columns, steps_each=each,
        values=_listed(table[shown]), left_out=len(table) - len(shown),
    )  # fmt: skip


def _share_columns(analysis: Analysis, table: Seconds, join: np.ufunc) -> tuple[Seconds, tuple[int, ...], int]:
    """Order columns by step, and join neighbours where there are too many; give the first step of each, and how many it is."""
    steps = analysis.breakdown.steps
    order = np.argsort(steps, kind="stable")
    each = -(-len(steps) // MAX_COLUMNS)
    starts = np.arange(0, len(steps), each)
    joined = join.reduceat(table[:, order], starts, axis=1)
    if join is np.add:
        joined = joined / np.diff([*starts, len(steps)])
    return joined, tuple(int(step) for step in steps[order][starts]), each


def _band(whose: str, values: Seconds) -> Iterator[tuple[str, Seconds]]:
    """Give the median of peers in each step and, where there are several, the ends of their middle nine tenths."""
    values = values[np.isfinite(values).any(axis=1)]
    if len(values) == 0:
        return
    yield f"{whose}, median", nan_median(values, axis=0)
    if len(values) > 1:  # one alone is its own median
        yield f"{whose}, low end", nan_quantile(values, _LOW, axis=0)
        yield f"{whose}, high end", nan_quantile(values, _HIGH, axis=0)


def _sum_workers(analysis: Analysis, values: Seconds) -> Seconds:
    """Add up values of computes (direction, virtual stage, microbatch, step, dp rank) by (dp, stage, step); NaN where none is."""
    n_stages = analysis.trace.n_stages
    by_virtual = np.nansum(values, axis=(0, 2))
    known = np.isfinite(values).any(axis=(0, 2))
    folded = [part.reshape(-1, n_stages, *part.shape[1:]).sum(axis=0) for part in (by_virtual, known)]
    return np.transpose(np.where(folded[1] > 0, folded[0], np.nan), (2, 0, 1))


def _sum_rows(analysis: Analysis, op: Op) -> Seconds:
    """Add up the rows of one kind of evidence by (dp, stage, step)."""
    evidence, steps = analysis.trace.evidence, analysis.breakdown.steps
    found = np.zeros((analysis.trace.n_dp, analysis.trace.n_stages, len(steps)))
    order = np.argsort(steps, kind="stable")
    rows = np.flatnonzero((evidence.op == op) & np.isin(evidence.step, steps))
    at = order[np.searchsorted(steps[order], evidence.step[rows])]
    spans = np.maximum(evidence.end_s[rows] - evidence.start_s[rows], 0.0)
    np.add.at(found, (evidence.dp[rows], evidence.stage[rows], at), spans)
    return found


def _list_saves(analysis: Analysis) -> tuple[int, ...]:
    """List the steps in which a row says that a checkpoint was written."""
    evidence = analysis.trace.evidence
    saved = np.unique(evidence.step[evidence.op == Op.CHECKPOINT])
    return tuple(int(step) for step in saved[np.isin(saved, analysis.breakdown.steps)])


def _find_workers(analysis: Analysis, where: Where) -> list[tuple[int, int]]:
    """Give the indices (dp, stage) of the workers of a place."""
    dp = {int(label): i for i, label in enumerate(analysis.trace.dp_labels)}
    stage = {int(label): i for i, label in enumerate(analysis.trace.stage_labels)}
    return [(dp[w.dp], stage[w.pp]) for w in where.workers]


def _find_stages(analysis: Analysis, where: Where) -> list[int]:
    """Give the indices of the stages of a place, those of its workers among them."""
    stage = {int(label): i for i, label in enumerate(analysis.trace.stage_labels)}
    return [*(stage[label] for label in where.stages), *(stage[w.pp] for w in where.workers)]


def _find_links(analysis: Analysis, where: Where) -> Bools:
    """Mark the links of a place, those of its workers among them; shape (n_stages, n_dp), by their first stage."""
    n_stages = analysis.trace.n_stages
    marked = np.zeros((n_stages, analysis.trace.n_dp), dtype=bool)
    for dp, stage in _find_workers(analysis, where):
        marked[[stage, (stage - 1) % n_stages], dp] = True
    for link in where.links:
        (dp, a), (_, b) = _find_workers(analysis, Where(workers=link.ends))
        marked[min(a, b) if abs(a - b) == 1 else max(a, b), dp] = True
    return marked


def _name_worker(analysis: Analysis, dp: int, stage: int) -> str:
    """Name a worker by the labels of the file."""
    return f"dp {analysis.trace.dp_labels[dp]}, stage {analysis.trace.stage_labels[stage]}"


def _listed(table: Seconds) -> tuple[tuple[float | None, ...], ...]:
    """Give the rows with the digits that count; None where nothing is known."""
    return tuple(
        tuple(float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in row) for row in table.tolist()
    )
