"""Find transfers that stood still with a process of one of their ends, or began late: what stops a process stops what it sends.

Enters: an observed block, pauses by rows of collections and by the stalls of computes, and what transfers take beyond ordinary
ones. Leaves: the part of that for which a process stood still. Costs pauses x transfers of a stage, in array operations.
"""

from collections.abc import Mapping

import numpy as np

from diagnose.model.optype import DP_COLLECTIVES, Op
from diagnose.model.stalls import StallKind, Stalls
from diagnose.model.trace import Bools, Evidence, Ints, Seconds
from diagnose.whatif.computes import COMPUTES, find_computes, places_of
from diagnose.whatif.observed import Observed

#: What pauses are attributed to that may stop a process, and not only a compute: what it sends and receives meanwhile says it.
STOPPING = (StallKind.COLLECTION, StallKind.ALLOCATION, StallKind.INPUT, StallKind.NOBODY)
#: Pauses that are set against the transfers of their stage at a time.
MAX_AT_ONCE = 4096
#: Computes may wait for stuck transfers, too, and stand still then alone: of pauses that no row tells of at most this part of
#: the seconds is beside late transfers (real ones: 0.3 to 0.7), and each is so where it is by half.
MOST_BESIDE, BESIDE_SHARE = 0.8, 0.5

#: Pauses: stage, step (its place in the block), dp rank, and between which seconds of the step they stopped it for how long.
Pauses = tuple[Ints, Ints, Ints, Seconds, Seconds, Seconds]


def find_frozen(
    o: Observed, steps: slice, evidence: Evidence, stalls: Stalls, excess_s: Mapping[int, Seconds], n_stages: int
) -> dict[StallKind, dict[int, Seconds]]:
    """Say for how long of what they take beyond ordinary ones transfers stood still as a process of one of their ends did.

    A collection, or whoever stops a process, stops all its threads, also those that send and receive. `excess_s` is as
    `transfer_excess` has it; by what the process stood still for, seconds by node, shape (n_steps, n_dp).
    """
    found: dict[StallKind, dict[int, Seconds]] = {}
    left_s = dict(excess_s)
    for kind in STOPPING:
        of_kind, _ = _set_against(o, _read_rows(o, evidence), left_s) if kind == StallKind.COLLECTION else ({}, 0.0)
        of_stalls = read_stalls(o, steps, stalls, n_stages, kind)
        by_stalls, beside_s = _set_against(o, of_stalls, left_s)
        if beside_s <= MOST_BESIDE * float(of_stalls[-1].sum()):
            for node, seconds in by_stalls.items():
                of_kind[node] = np.maximum(of_kind[node], seconds) if node in of_kind else seconds
        found[kind] = {node: np.minimum(seconds, left_s[node]) for node, seconds in of_kind.items() if node in left_s}
        left_s |= {node: left_s[node] - seconds for node, seconds in found[kind].items()}
    return found


def find_held(
    o: Observed, steps: slice, stalls: Stalls, late_s: Mapping[int, Seconds], n_stages: int
) -> dict[int, Bools]:
    """Mark launches of operations, no computes, that are late for as long as their process collected meanwhile.

    What stands still launches nothing. By stalls of computes that no row tells of: rows say it themselves. `late_s` is how late
    launches are, seconds by node; both have shape (n_steps, n_dp).
    """
    stages, step, dp, begins_s, ends_s, paused_s = read_stalls(o, steps, stalls, n_stages, StallKind.COLLECTION)
    found = dict[int, Bools]()
    for node, seconds in late_s.items():
        here = stages == o.block.nodes.stage[node]
        if o.block.nodes.op[node] in COMPUTES or not here.any():
            continue
        at = step[here], dp[here]
        launched_s = np.broadcast_to(o.block.start_s[node], seconds.shape)[at]
        both_s = np.minimum(launched_s, ends_s[here]) - np.maximum(launched_s - seconds[at], begins_s[here])
        held_s = np.zeros(seconds.shape)
        np.add.at(held_s, at, np.clip(both_s, 0.0, paused_s[here]))
        found[node] = held_s > BESIDE_SHARE * seconds
    return found


def _set_against(o: Observed, pauses: Pauses, excess_s: Mapping[int, Seconds]) -> tuple[dict[int, Seconds], float]:
    """Say for how long late transfers stood still in pauses, and how many seconds of these have such a one beside them."""
    found: dict[int, Seconds] = {}
    beside_s, slow = 0.0, np.array([*excess_s], dtype=np.int64)
    stages, steps, ranks, *seconds = pauses
    for stage in np.unique(stages).tolist() if len(slow) else ():
        own, here = slow[o.block.nodes.stage[slow] == stage][:, None], np.flatnonzero(stages == stage)
        here = here[_find_late(o, own[:, 0], excess_s)[steps[here], ranks[here]]]
        for first in range(0, len(here), MAX_AT_ONCE):
            at = here[first : first + MAX_AT_ONCE]
            step, dp, (begins_s, ends_s, paused_s) = steps[at], ranks[at], (each[at] for each in seconds)
            begin_s, end_s = o.block.start_s[own, step, dp], o.block.end_s[own, step, dp]
            both_s = np.clip(np.minimum(end_s, ends_s) - np.maximum(begin_s, begins_s), 0.0, paused_s)
            late_s = np.array([excess_s[int(node)][step, dp] for node in own[:, 0]]).reshape(both_s.shape)
            beside_s += float(paused_s[(np.minimum(both_s, late_s) > BESIDE_SHARE * paused_s).any(axis=0)].sum())
            for n in np.flatnonzero(both_s.any(axis=1)).tolist():
                _add(found, o, int(own[n, 0]), step, dp, both_s[n])
    return found, beside_s


def _find_late(o: Observed, nodes: Ints, excess_s: Mapping[int, Seconds]) -> Bools:
    """Mark the steps and dp ranks, (n_steps, n_dp), in which any of some transfers is late at any end; collectives on all ranks."""
    late = np.zeros(o.block.start_s[0].shape, dtype=bool)
    for node in nodes.tolist():
        at = np.any([excess_s[end] > 0 for end in o.graph.members_of(node).tolist() if end in excess_s], axis=0)
        late |= at.any(axis=1, keepdims=True) if o.block.nodes.op[node] in DP_COLLECTIVES else at
    return late


def _add(found: dict[int, Seconds], o: Observed, node: int, step: Ints, dp: Ints, frozen_s: Seconds) -> None:
    """Note for how long a transfer stood still, at its other ends, too; in a collective of all dp ranks all stand still."""
    frozen = np.zeros(o.block.start_s[node].shape)
    np.add.at(frozen, (step, dp), frozen_s)
    if o.block.nodes.op[node] in DP_COLLECTIVES:
        frozen = np.broadcast_to(frozen.max(axis=1, keepdims=True), frozen.shape)
    for end in o.graph.members_of(node).tolist():
        found[end] = np.maximum(found[end], frozen) if end in found else frozen


def _read_rows(o: Observed, evidence: Evidence) -> Pauses:
    """List the collections that rows tell of."""
    rows = np.flatnonzero((evidence.op == Op.GC) & np.isin(evidence.step, o.block.steps))
    begins_s, ends_s = evidence.start_s[rows], evidence.end_s[rows]
    step = np.searchsorted(o.block.steps, evidence.step[rows])
    return evidence.stage[rows], step, evidence.dp[rows], begins_s, ends_s, ends_s - begins_s


def read_stalls(o: Observed, steps: slice, stalls: Stalls, n_stages: int, kind: StallKind) -> Pauses:
    """List the pauses of a kind that stalls of computes tell of, and no row."""
    nodes, computes = o.block.nodes, find_computes(o.block.nodes)
    place = places_of(nodes, computes, n_stages)
    inside_s, before_s = (
        np.where((kinds[place] == int(kind)) & ~told[place], seconds[place], 0.0)[:, steps]
        for seconds, kinds, told in (
            (stalls.inside_s, stalls.inside, stalls.recorded_inside),
            (stalls.before_s, stalls.before, stalls.recorded_before),
        )
    )
    i, step, dp = np.nonzero(inside_s + before_s)
    late_s, paused_s = before_s[i, step, dp], (inside_s + before_s)[i, step, dp]
    node = computes[i]
    return (
        nodes.stage[node],
        step,
        dp,
        o.block.start_s[node, step, dp] - late_s,
        o.block.end_s[node, step, dp],
        paused_s,
    )
