"""Take compute durations apart: waits for communication in flight, then stage, step, worker, microbatch and stalls, robustly.

Enters: observed blocks on one clock. Leaves: `Breakdown`. Costs a few passes over the computes; the medians are over
microbatches first, everything after works on arrays without that axis.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.components import Breakdown, Experts
from diagnose.model.members import Members
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.numerics.robust import lower_median, nan_median
from diagnose.numerics.slow_steps import FEW_QUICKEST, QUICKEST, find_slow_steps
from diagnose.numerics.turns import do_turn_round
from diagnose.whatif.components.evaluation import SLOW_WHOLE_STEP_RATIO
from diagnose.whatif.components.expert import find_experts, find_hot, find_moved, read_experts
from diagnose.whatif.components.microbatch import Microbatches, find_microbatches
from diagnose.whatif.components.pause import find_pauses
from diagnose.whatif.components.queue import find_queue_waits
from diagnose.whatif.components.stage import find_usual_durations, without_stalls
from diagnose.whatif.components.start_delay import find_late_starts
from diagnose.whatif.components.step import find_usual_steps, without_microbatches
from diagnose.whatif.components.transfer import find_waits_inside, transfer_excess
from diagnose.whatif.components.worker import (
    Draws,
    find_slow_optimizers,
    find_slow_workers,
    measure_draws,
    slow_throughout,
    slow_with,
    told_by_member,
)
from diagnose.whatif.computes import gather_computes, gather_seconds, iterate_blocks
from diagnose.whatif.delays import delay_excess
from diagnose.whatif.evidence import without_recorded_pauses
from diagnose.whatif.frozen import STOPPING, find_frozen
from diagnose.whatif.medians import TINY_RATIO
from diagnose.whatif.observed import Observed
from diagnose.whatif.rings import find_rings
from diagnose.whatif.stalls import attribute_stalls, find_receiving
from diagnose.whatif.starts import attribute_delays, attribute_held, attribute_launches, gather_delays, gather_starts
from diagnose.whatif.stopped import attribute_to_stopped
from diagnose.whatif.token_costs import read_token_costs
from diagnose.whatif.variants import find_beside, find_own_places, measure_variants

#: Two ways to take a job apart are as good where one leaves at most so many times as much to explain.
AS_GOOD = 1.1


def take_apart(
    observed: Sequence[Observed],
    evidence: Evidence,
    *,
    n_stages: int,
    reads_input: bool | None = None,
    ep_size: int | None = None,
    carried_s: Sequence[Seconds] | None = None,
    members: Members | None = None,
    between_hosts: Bools | None = None,
) -> Breakdown:
    """Take the compute durations of a job apart; `evidence` are rows that say why an operation was long or late.

    `reads_input` says whether any worker reads data, `ep_size` how many data-parallel ranks share the experts; None where nobody
    says. `carried_s` is what workers still do of the step before when a step begins, as `measure_carried` says; None: unknown.
    `members` are those of each worker, where the trace records them. `between_hosts` is as for `transfer_excess`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # lanes without any value give NaN, which is what is meant
        return _take_apart(
            observed,
            evidence,
            n_stages,
            reads_input=reads_input,
            ep_size=ep_size,
            carried_s=carried_s,
            members=members,
            between_hosts=between_hosts,
        )


def _take_apart(
    observed: Sequence[Observed],
    evidence: Evidence,
    n_stages: int,
    *,
    reads_input: bool | None,
    ep_size: int | None,
    carried_s: Sequence[Seconds] | None,
    members: Members | None,
    between_hosts: Bools | None,
) -> Breakdown:
    """Do the work of `take_apart`."""
    steps = np.concatenate([o.block.steps for o in observed])
    order = np.argsort(steps, kind="stable")  # blocks come one after the other, steps in time
    compute_s = gather_computes(observed, n_stages)
    beside = find_beside(observed, compute_s.shape, n_stages)
    unpaused_s = without_recorded_pauses(observed, evidence, compute_s, n_stages)
    paused_s = None if unpaused_s is compute_s else np.nan_to_num(compute_s - unpaused_s)
    in_rings_s = find_rings(observed, n_stages).excess_s
    transfers = tuple(
        transfer_excess(o, observed, between_hosts, in_ring_s)
        for o, in_ring_s in zip(observed, in_rings_s, strict=True)
    )
    queue = find_queue_waits(
        observed,
        compute_s.shape,
        n_stages,
        measure_variants(beside, compute_s),
        paused_s,
        [excess for excess, _ in transfers],
    )
    transfer_wait_s = find_waits_inside(observed, [excess for excess, _ in transfers], compute_s.shape, n_stages)
    free_s = compute_s if queue.inside_s is None else compute_s - queue.inside_s
    free_s = free_s if transfer_wait_s is None else free_s - transfer_wait_s
    # What rows say of an operation is no part of its work, whatever the medians would say.
    work_s = without_recorded_pauses(observed, evidence, free_s, n_stages)
    variants = measure_variants(beside, work_s)
    alike_s = work_s if variants is None else work_s / variants
    experts = read_experts(observed, alike_s, n_stages, ep_size)
    moved_ratio = None
    has_experts = (ep_size or 1) > 1 or experts.tokens_fit is not None or any(o.has_all_to_alls for o in observed)
    if has_experts and experts.ratio is None:
        moved, moved_ratio = find_moved(alike_s, ep_size, order)
        experts = dataclasses.replace(experts, moved=moved)
        alike_s = alike_s if moved_ratio is None else alike_s / moved_ratio
    by_member = told_by_member(members, compute_s, steps, n_stages) if compute_s.shape[-1] == 1 else None
    apart, hot_ratio = _find_with_experts(observed, alike_s, order, n_stages, experts, ep_size, by_member)
    if hot_ratio is not None:
        moved_ratio = hot_ratio if moved_ratio is None else moved_ratio * hot_ratio
    typical_s, step_ratio, workers, microbatches = apart.typical_s, apart.step_ratio, apart.workers, apart.microbatches
    experts, own_places, left = apart.experts, apart.own_places, apart.left
    if moved_ratio is not None:
        anew = 1.0 if experts.ratio is None else experts.ratio
        experts = dataclasses.replace(experts, ratio=moved_ratio * anew)
    at_own_places = None
    if own_places is not None:
        left, at_own_places = left * own_places, own_places > 1.0
    pause_s, noise = find_pauses(work_s, free_s, left, n_stages, at_own_places)
    excess_s = [delay_excess(o, None if carried_s is None else carried_s[i]) for i, o in enumerate(observed)]
    delays = attribute_delays(observed, evidence, excess_s, n_stages, reads_input=reads_input)
    late_s = tuple(d.late_s for d in delays)
    start_s, start_recorded = gather_starts(observed, delays, n_stages)
    collected_s, _ = gather_starts(observed, delays, n_stages, StallKind.COLLECTION)
    before_s = gather_seconds(observed, late_s, compute_s.shape, n_stages)
    before_s = np.zeros_like(pause_s) if before_s is None else before_s
    stalls = attribute_stalls(
        observed,
        evidence,
        pause_s,
        before_s if queue.before_s is None else np.maximum(before_s, queue.before_s),
        free_s - pause_s,
        workers.ratio,
        late=gather_delays(observed, delays, pause_s.shape, n_stages),
        queued=None if queue.before_s is None else queue.before_s > 0,
        starts_late=find_late_starts(observed, late_s, pause_s.shape),
        steps=steps,
        reads_input=reads_input,
        n_stages=n_stages,
        slow_places=_join(at_own_places, microbatches.busy),
        receiving=find_receiving(observed, pause_s.shape, n_stages),
    )
    attribute_held(observed, delays, stalls, n_stages)
    attribute_launches(observed, delays, stalls, n_stages)
    stopped_s = attribute_to_stopped(observed, stalls, [excess for excess, _ in transfers], n_stages)
    transfers = tuple(
        _without(pair, {StallKind.WORKER: of_block}) for pair, of_block in zip(transfers, stopped_s, strict=True)
    )
    frozen_s = tuple(
        find_frozen(o, at, evidence, stalls, excess, n_stages)
        for (at, o), (excess, _) in zip(iterate_blocks(observed), transfers, strict=True)
    )
    return Breakdown(
        steps=steps,
        compute_s=compute_s,
        typical_s=typical_s,
        step_ratio=step_ratio,
        worker_ratio=workers.ratio,
        slow_workers=workers.slow,
        optimizer_ratio=find_slow_optimizers(observed, order, workers.slow),
        microbatch_ratio=microbatches.ratio,
        microbatch_ordinary=microbatches.ordinary,
        microbatch_told=microbatches.told,
        is_told_by_ranks=apart.is_told_by_ranks and np.ndim(microbatches.told) > 0,
        queue_wait_s=queue.inside_s,
        transfers=tuple(_without(*pair) for pair in zip(transfers, frozen_s, strict=True)),
        frozen_s={kind: tuple(of_block[kind] for of_block in frozen_s) for kind in STOPPING}
        | {StallKind.WORKER: stopped_s},
        transfer_wait_s=transfer_wait_s,
        stalls=stalls,
        noise_ratio=noise,
        forward_backward_correlation=microbatches.correlation,
        microbatch_spread=microbatches.spread,
        stage_share=microbatches.stage_share,
        waited_for=queue.by,
        late_s=late_s,
        late_kinds=tuple(d.kinds for d in delays),
        late_for_others=tuple(d.for_others for d in delays),
        start_s=start_s,
        start_recorded=start_recorded,
        collected_s=collected_s,
        queue_deviations=queue.deviations,
        queue_on_purpose=queue.on_purpose,
        queue_blocking=queue.blocking,
        queue_behind_slow=queue.behind_slow,
        experts=experts,
        variant_ratio=1.0 if variants is None else variants,
        has_token_costs=apart.has_token_costs,
    )


def _join(at_own_places: Bools | None, busy: Bools | None) -> Bools | None:
    """Mark places in which a worker alone is slow in all steps, and all places of busy ranks; broadcastable to durations."""
    if busy is None or not busy.any():
        return at_own_places
    return busy if at_own_places is None else at_own_places | busy


def _without(
    measured: tuple[dict[int, Seconds], dict[int, float]], frozen_s: Mapping[StallKind, Mapping[int, Seconds]]
) -> tuple[dict[int, Seconds], dict[int, float]]:
    """Leave out what transfers stood still with their processes."""
    excess, spread = measured
    left = dict(excess)
    for of_kind in frozen_s.values():
        left |= {node: left[node] - seconds for node, seconds in of_kind.items()}
    return {node: seconds for node, seconds in left.items() if seconds.any()}, spread


def _shared_by_group(alike_s: Seconds, group: int) -> Seconds:
    """Say how long each compute is against the stage's usual one on the quicker ranks of each group, shape of `alike_s`.

    What all stages have of it is the step's, and nobody's experts.
    """
    quick = lower_median(alike_s.reshape(*alike_s.shape[:4], -1, group), axis=5)
    shared = quick / nan_median(quick, axis=(2, 3, 4), keepdims=True)
    of_step = np.log(nan_median(shared, axis=2))  # (2, n_virtual, n_steps, n_groups)
    least, most = (end(of_step, axis=(1, 3)) for end in (np.nanmin, np.nanmax))
    step = np.exp(np.maximum(least, 0.0) + np.minimum(most, 0.0))
    return np.repeat(shared / step[:, None, None, :, None], group, axis=4)


@dataclasses.dataclass(frozen=True, slots=True)
class _Workers:
    """How much longer workers take, shape (2, n_virtual, n_steps, n_dp), and which are slow, shape (n_dp, n_stages)."""

    ratio: Seconds
    slow: Bools


@dataclasses.dataclass(frozen=True, slots=True)
class _Factors:
    """What computes are the product of, as in `Breakdown`, and what is left of them."""

    typical_s: Seconds
    step_ratio: Seconds
    workers: _Workers
    microbatches: Microbatches
    experts: Experts
    own_places: Seconds | None
    left: Seconds
    has_token_costs: bool
    is_told_by_ranks: bool


def _find_with_experts(
    observed: Sequence[Observed],
    alike_s: Seconds,
    order: Ints,
    n_stages: int,
    told: Experts,
    ep_size: int | None,
    by_member: Seconds | None,
) -> tuple[_Factors, Seconds | None]:
    """Find the factors of computes, anew where experts that times tell of hide them, or stay hot; with what `find_hot` says."""
    apart = _find_factors(observed, alike_s, order, n_stages, told, ep_size, by_member=by_member)
    if told.ratio is not None or apart.experts.ratio is None:
        return apart, None
    if apart.experts.group > 1:
        # Experts that ranks share change what a whole stage takes, and hide who is slow on it, and how much: they are known now.
        shared = _shared_by_group(alike_s, apart.experts.group)
        again = _find_factors(observed, alike_s, order, n_stages, told, ep_size, shared)
        # Who is slow with all of its group is taken for experts then: nobody who was found is to be lost.
        finds_all = again.workers.slow.any() and (again.workers.slow >= apart.workers.slow).all()
        apart = again if finds_all else apart
    hot_ratio = find_hot(alike_s, apart.workers.slow)
    if hot_ratio is not None:
        apart = _find_factors(observed, alike_s / hot_ratio, order, n_stages, told, ep_size, by_member=by_member)
    return apart, hot_ratio


def _find_factors(
    observed: Sequence[Observed],
    alike_s: Seconds,
    order: Ints,
    n_stages: int,
    told: Experts,
    ep_size: int | None,
    shared: Seconds | None = None,
    by_member: Seconds | None = None,
) -> _Factors:
    """Find the factors of computes, one after the other; `shared` is what no worker is behind by, as its peers are, too.

    `by_member` is what `told_by_member` says.
    """
    shared = told.ratio if shared is None else shared
    even_s = alike_s if shared is None else alike_s / shared
    costs = read_token_costs(observed, even_s)
    draws = None if costs is None else _relative_to_step(costs.ratio)
    by_tokens = 1.0 if draws is None else draws
    own_s = even_s if draws is None else even_s / draws  # who has more work is not slow
    by_step = nan_median(even_s, axis=2)  # (2, n_virtual, n_steps, n_dp)
    typical_s, is_told = find_usual_durations(observed, by_step, order, n_stages, by_member)
    if even_s.shape[-1] == 1 and not is_told.any():
        typical_s = without_stalls(even_s, typical_s)
    drawn, more = measure_draws(own_s[:, 0][:, :, order]), 1.0 if draws is None else nan_median(draws, axis=0)

    def explain(typical_s: Seconds, pace: Seconds, step_ratio: Seconds, usual: Bools) -> _Explained:
        workers = _find_workers(own_s, typical_s, pace / more, step_ratio, order, is_told, drawn)
        if workers.slow.any() and not is_told.any():
            # What is usual is what those take who are not slow; who is slow was measured against a mixture of both.
            quick = np.where(workers.ratio > 1.0, np.nan, by_step)
            of_quick = lower_median(nan_median(quick[:, :, usual], axis=2), axis=2)
            typical_s = np.where(of_quick > 0, np.minimum(of_quick, typical_s), typical_s)
            pace = by_step / typical_s[:, :, None, None]
            step_ratio = find_slow_steps(np.where(workers.ratio > 1.0, np.nan, pace), usual)
            workers = _find_workers(own_s, typical_s, pace / more, step_ratio, order, is_told, drawn, workers.ratio)
        return typical_s, step_ratio, workers, pace

    pace = by_step / typical_s[:, :, None, None]
    step_ratio = find_slow_steps(pace)
    found = explain(typical_s, pace, step_ratio, np.ones(len(order), dtype=bool))
    usual = find_usual_steps(step_ratio, order)
    if not usual.all():
        # The whole job got slower; or most of its workers did, where that leaves far less to explain.
        typical_s = typical_s * nan_median(pace[:, :, usual], axis=(1, 2, 3))[:, None]
        pace = by_step / typical_s[:, :, None, None]
        again = explain(typical_s, pace, find_slow_steps(pace, usual), usual)
        found = found if _is_better(own_s, found, again) else again
    if (found[1] > SLOW_WHOLE_STEP_RATIO).any():
        # The whole job is slow in some steps; or more workers than those had in view, where that leaves far less to explain.
        other = explain(typical_s, pace, find_slow_steps(pace, usual, FEW_QUICKEST), usual)
        hid_them = other[2].slow.mean() > 1.0 - 1.0 / QUICKEST
        found = other if hid_them and _is_better(own_s, other, found) else found
    typical_s, step_ratio, workers, pace = found
    uneven_s = even_s if told.ratio is not None else alike_s  # where tokens tell of experts, times are not asked
    left = _without_workers(uneven_s, typical_s, step_ratio, workers)
    own_places = find_own_places(left, n_stages)
    turn_round = do_turn_round(np.log(np.maximum(pace[:2] / more, TINY_RATIO)).mean(axis=(0, 1)))
    microbatches = find_microbatches(
        left if own_places is None else left / own_places, by_tokens, turn_round=turn_round
    )
    if (error := microbatches.error_of_step()) > 0:
        step_ratio = without_microbatches(step_ratio, error)
        workers = _find_workers(own_s, typical_s, pace / more, step_ratio, order, is_told, drawn, workers.ratio)
        left = _without_workers(uneven_s, typical_s, step_ratio, workers)
        microbatches = find_microbatches(
            left if own_places is None else left / own_places, by_tokens, turn_round=turn_round
        )
    uneven = microbatches.uneven()
    left /= uneven[:, None]  # ordinary variation stays what it is
    if own_places is not None:
        left /= own_places
    experts, left = find_experts(left, uneven, told, ep_size)
    return _Factors(
        typical_s,
        step_ratio,
        workers,
        microbatches,
        experts,
        own_places,
        left,
        draws is not None,
        costs is not None and costs.of_ranks,
    )


_Explained = tuple[Seconds, Seconds, "_Workers", Seconds]


def _is_better(compute_s: Seconds, one: _Explained, other: _Explained) -> bool:
    """Say whether one way to explain durations, by usual ones, steps and workers, leaves far less of them than another."""
    return AS_GOOD * _measure_left(compute_s, *one[:3]) < _measure_left(compute_s, *other[:3])


def _measure_left(compute_s: Seconds, typical_s: Seconds, step_ratio: Seconds, workers: _Workers) -> float:
    """Say how far durations are from what is usual for stage, step and worker: mean of the absolute logarithm."""
    left = np.maximum(_without_workers(compute_s, typical_s, step_ratio, workers), TINY_RATIO)
    return float(np.nanmean(np.abs(np.log(left))))


def _find_workers(
    compute_s: Seconds,
    typical_s: Seconds,
    pace: Seconds,
    step_ratio: Seconds,
    order: Ints,
    told: Bools,
    drawn: Draws,
    known: Seconds | None = None,
) -> _Workers:
    """Find slow workers; `order` puts the steps in time, `drawn` says how far microbatches put a pace off."""
    n_stages = len(told)
    excess = np.log(np.maximum(pace / step_ratio[:, None, :, None], TINY_RATIO))  # (2, n_virtual, n_steps, n_dp)
    known = None if known is None else np.log(known[:, :, order])
    worker_log, slow = find_slow_workers(excess[:, :, order], n_stages, told, drawn, known)
    worker_log = worker_log[:, :, np.argsort(order)]
    if slow.any():
        throughout = slow_throughout(compute_s, typical_s, step_ratio, worker_log, n_stages, drawn)
        slow &= throughout | slow_with(throughout & slow, worker_log, n_stages)
        worker_log = np.where(np.tile(slow.T, (worker_log.shape[1] // n_stages, 1))[None, :, None, :], worker_log, 0.0)
    return _Workers(np.exp(worker_log), slow)


def _relative_to_step(costs: Seconds) -> Seconds:
    """Say how many times as long as usual in its step a microbatch is, shape (n_microbatches, n_steps, n_dp)."""
    return np.asarray(costs / lower_median(nan_median(costs, axis=0), axis=1)[:, None])


def _without_workers(compute_s: Seconds, typical_s: Seconds, step_ratio: Seconds, workers: _Workers) -> Seconds:
    """Give durations over what is usual for stage, step and worker, shape of `compute_s`."""
    usual_s = typical_s[:, :, None, None, None] * step_ratio[:, None, None, :, None] * workers.ratio[:, :, None]
    return np.asarray(compute_s / usual_s)
