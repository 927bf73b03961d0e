"""Find the best way to even out the microbatches of a job: by its documents, or else by dealing whole microbatches out anew.

Enters: a measured job, and what a user asks for. Leaves: the new cost of every microbatch, as a factor on its work. Costs a run of
a packer and a replay for each way that is tried: four replays at most where the documents are known, else two.
"""

import dataclasses
from typing import Literal

import numpy as np

from diagnose.fixes.deal import Order, arrange, deal_evenly, measure_imbalance, measure_load, take_dealt
from diagnose.fixes.microbatch_costs import (
    MIN_QUALITY,
    LengthCost,
    Lengths,
    find_places,
    fit_costs,
    implied_cost,
    read_lengths,
    weigh_directions,
)
from diagnose.fixes.repack import Packed, Way, repack
from diagnose.model.analysis import Analysis
from diagnose.model.change import Work
from diagnose.model.remedy import Refusal
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.packing.forming import PackerName

Method = Literal["greedy", "queues", "balanced", "implied"]
#: Ways of each method. Those of the first keep every document in its step; which is best depends on how long the longest are:
#: one that no packing can even out is better met by neighbours that rise to it and fall again than by many of one size.
LAYOUTS: dict[Method, tuple[PackerName | None, ...]] = {
    "greedy": ("ranks", "greedy", None),
    "queues": ("queues",),
    "balanced": ("balanced",),
    "implied": (None,),
}
#: Work of a packer (see `repack`): about a second where nobody asked for the method, ten where somebody did.
MAX_WORK = 3e7
MAX_WORK_ASKED = 3e8
#: More of the tokens waiting after the last step than this: the trace is too short to say what the method gives in the long run.
MAX_WAITING_SHARE = 0.1
#: So much of the work may get lost on the way where microbatches are priced by what they cost.
MAX_LOST_SHARE = 0.01
#: Replays after which the work of steps that were left out is what makes them as much faster as the others.
SCALING_ROUNDS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """What a user asks for; `method` None: the best that delays no token. `memory` and `thresholds` as in `repack.Way`."""

    method: Method | None = None
    memory: float = 1.1
    thresholds: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job's microbatches."""

    #: Shape (n_microbatches, n_steps, n_dp).
    there: Bools
    #: Shape (2, n_microbatches, n_steps, n_dp): of each, forward and backward, in units of a typical one.
    cost: Seconds
    #: Shape (2, 1, 1, 1): parts of the time that are forward and backward.
    weight: Seconds
    #: Shape (n_microbatches, n_steps, n_dp): those whose cost is known.
    movable: Bools
    lengths: Lengths | None
    #: None where lengths are not known, or do not explain the times.
    fit: LengthCost | None
    #: Part of the variance that the lengths explain; None where they are not known.
    quality: float | None
    #: How often the longest microbatch of a rank counts beside the sum.
    longest_weight: float

    def join(self, cost: Seconds) -> Seconds:
        """Take forward and backward together, shape (n_microbatches, n_steps, n_dp)."""
        return np.asarray((cost * self.weight).sum(axis=0))


@dataclasses.dataclass(frozen=True, slots=True)
class Rebalanced:
    """One way to even out the microbatches, priced."""

    method: Method
    order: Order
    #: Of the packer; None where whole microbatches are dealt.
    layout: PackerName | None
    #: Shape (2, n_microbatches, n_steps, n_dp): of each place afterwards.
    cost: Seconds
    #: The change.
    work: Work
    #: Mean seconds a step.
    step_s: float
    #: Shape (n_microbatches, n_steps, n_dp): whole microbatches: which one goes where, as of `deal_evenly`.
    source: Ints | None
    #: Documents: what each place holds afterwards.
    packed: Packed | None
    #: True where a way to pack documents was left out because it takes too long.
    untried: bool = False


def know(analysis: Analysis) -> Known:
    """Gather what is known of a job's microbatches: costs by lengths where these explain the times, else as the times imply."""
    c = analysis.breakdown
    there = find_places(c)
    lengths = read_lengths(analysis)
    fit = None if lengths is None else fit_costs(analysis, lengths.tokens, lengths.tokens_sq)
    quality = None if lengths is None else 0.0 if fit is None else fit.quality
    cost, movable = implied_cost(c), there
    if lengths is None or fit is None or fit.quality < MIN_QUALITY:
        fit = None
    else:
        movable = there & np.isfinite(lengths.tokens) & (lengths.tokens > 0)
        by_length = fit.of(lengths.tokens, lengths.tokens_sq)
        cost = np.where(movable, by_length, cost)
    n_chunks = c.typical_s.shape[1] // analysis.trace.n_stages
    weight = (analysis.trace.n_stages - 1) / n_chunks
    return Known(there, cost, weigh_directions(c), movable, lengths, fit, quality, weight)


def rebalance(
    analysis: Analysis, known: Known, asked: RebalanceSettings, *, only: Method | None = None
) -> Rebalanced | Refusal:
    """Even out the microbatches of a job, in the way that the replay likes best.

    The method `only` is looked at although nobody asked for it: quickly, or not at all.
    """
    method: Method = only or asked.method or ("greedy" if has_documents(known) else "implied")
    refusal = _refuse(known, method)
    if refusal is not None:
        return refusal
    max_work = MAX_WORK if asked.method is None else MAX_WORK_ASKED
    pipelined = analysis.trace.n_stages > 1
    interleaved = analysis.breakdown.typical_s.shape[1] > analysis.trace.n_stages
    first: Order = ("falling" if interleaved else "middle") if pipelined else "arrival"
    found = []
    for layout in LAYOUTS[method]:
        one = _try(analysis, known, layout, asked, max_work, first)
        if one is None and len(LAYOUTS[method]) > 1:
            continue  # another layout of the method is quicker: whole microbatches need no packer
        if one is None:
            return Refusal(f"a global batch is too large for method={method}; method=queues is quicker")
        if one.packed is not None and one.packed.waiting_share > MAX_WAITING_SHARE:
            return Refusal(
                f"with method={method} {one.packed.waiting_share:.0%} of the tokens still wait at the end of the trace: it has too "
                "few steps to say what the method gives in the long run"
            )
        found.append(one)
    best = min(found, key=lambda one: one.step_s)
    if pipelined:
        best = min(
            (best, _reorder(analysis, known, best, "middle" if interleaved else "falling")), key=lambda one: one.step_s
        )
    untried = len(found) < len(LAYOUTS[method])
    return dataclasses.replace(best, method="implied" if best.layout is None else method, untried=untried)


def imbalance_of(known: Known, cost: Seconds, packed: Packed | None) -> tuple[float, float]:
    """Say how uneven microbatches are, longest over mean of a step, and dp ranks alike; means over the steps looked at."""
    seen = np.ones(cost.shape[2], dtype=bool) if packed is None else ~packed.left
    both, there = known.join(cost)[:, seen], known.there[:, seen]
    load = measure_load(both, there)
    ranks = load.max(axis=1) / np.maximum(load.mean(axis=1), 1e-12)
    return measure_imbalance(both, there), float(ranks.mean())


def has_documents(known: Known) -> bool:
    """Say whether documents can be packed by a cost that can be trusted."""
    return known.fit is not None and known.lengths is not None and known.lengths.documents is not None


def _refuse(known: Known, method: Method) -> Refusal | None:
    """Say why a method is not for this job; None where it is."""
    n_each = known.there.sum(axis=(0, 2))
    if n_each.max() <= 1:
        return Refusal("a global batch is one microbatch: there is nothing to deal out")
    if method == "implied":
        if known.there.shape[2] == 1 and known.longest_weight == 0:
            return Refusal("with one dp rank and one stage whole microbatches can go nowhere else")
        return None
    if known.lengths is None or known.lengths.documents is None:
        return Refusal(
            f"the trace has no doc_lengths, which method={method} deals out; method=implied deals whole microbatches"
        )
    if known.fit is None:
        return Refusal(
            f"document lengths explain {known.quality or 0.0:.0%} of what microbatches take, below {MIN_QUALITY:.0%}: something "
            "else makes them uneven; method=implied deals whole microbatches by their times"
        )
    return None


def _try(
    analysis: Analysis, known: Known, layout: PackerName | None, asked: RebalanceSettings, max_work: float, order: Order
) -> Rebalanced | None:
    """Price one way; None where the packer would take too long."""
    if layout is None:
        both = known.join(known.cost)
        dealt = deal_evenly(both, known.movable, longest_weight=known.longest_weight)
        source = take_dealt(dealt, arrange(take_dealt(both, dealt), known.movable, order))
        cost = np.stack([take_dealt(one, source) for one in known.cost])
        return _price(analysis, known, Rebalanced("implied", order, None, cost, Work(cost), 0.0, source, None))
    assert known.lengths is not None
    assert known.fit is not None
    way = Way(layout, asked.memory, asked.thresholds, max_work)
    packed = repack(known.lengths, analysis.breakdown.steps, known.fit.both, way, longest_weight=known.longest_weight)
    if packed is None:
        return None
    return _place(analysis, known, packed, layout, order)


def _place(analysis: Analysis, known: Known, packed: Packed, layout: PackerName, order: Order) -> Rebalanced:
    """Put packed microbatches in order and price them."""
    assert known.fit is not None
    both = known.join(known.fit.of(packed.tokens, packed.tokens_sq))
    source = arrange(both, packed.known, order)
    packed = dataclasses.replace(
        packed, tokens=take_dealt(packed.tokens, source), tokens_sq=take_dealt(packed.tokens_sq, source)
    )
    cost = np.where(packed.known, known.fit.of(packed.tokens, packed.tokens_sq), known.cost)
    return _price(analysis, known, Rebalanced("greedy", order, layout, cost, Work(cost), 0.0, None, packed))


def _reorder(analysis: Analysis, known: Known, one: Rebalanced, order: Order) -> Rebalanced:
    """Put the same microbatches of each rank in another order."""
    if one.packed is not None and one.layout is not None:
        return _place(analysis, known, one.packed, one.layout, order)
    assert one.source is not None
    source = take_dealt(one.source, arrange(known.join(one.cost), known.movable, order))
    cost = np.stack([take_dealt(old, source) for old in known.cost])
    return _price(analysis, known, dataclasses.replace(one, order=order, cost=cost, source=source))


def _price(analysis: Analysis, known: Known, one: Rebalanced) -> Rebalanced:
    """Replay a job with other costs of its microbatches: each place keeps what varies besides.

    Where costs explain little that would move long ones to where work costs less, and lose some of it on the way: then whole
    microbatches take along what they took, and documents that meet others what they cost, all of them together what they took.
    Steps that were left out become faster as a whole by as much as those that were packed: their work is scaled until the replay
    says so.
    """
    took = implied_cost(analysis.breakdown)
    factor = one.cost / np.maximum(known.cost, 1e-12)
    moved = known.there if one.packed is None else known.there & one.packed.known
    before, after, now, found = (of[:, moved].sum(axis=1) for of in (known.cost, one.cost, took, took * factor))
    kept = now * after / np.maximum(before, 1e-12)
    if np.abs(found / np.maximum(kept, 1e-12) - 1.0).max() > MAX_LOST_SHARE:
        if one.source is not None:
            factor = np.stack([take_dealt(of, one.source) for of in took]) / took
        else:
            factor = np.where(moved, factor * (kept / np.maximum(found, 1e-12))[:, None, None, None], factor)
    factor = np.where(known.there, factor, 1.0)[:, None]
    step_s = analysis.price([Work(factor)])
    left = None if one.packed is None or not one.packed.left.any() else one.packed.left
    if left is not None:
        before_s = analysis.gains.replayed_steps_s
        packed = one.packed.known.any(axis=(0, 2)) if one.packed is not None else ~left
        wanted = float(step_s[packed].sum() / before_s[packed].sum())
        scale = wanted
        for _ in range(SCALING_ROUNDS):
            factor[..., left, :] = scale
            step_s = analysis.price([Work(factor)])
            reached = float(step_s[left].sum() / before_s[left].sum())
            scale *= wanted / max(reached, 1e-12)
    cost = one.cost if one.source is not None else known.cost * factor[:, 0]
    return dataclasses.replace(one, cost=cost, work=Work(factor), step_s=float(step_s.mean()))
