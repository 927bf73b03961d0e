"""Late workers at the start of a step: operations that wait for nothing start late, as after writing a checkpoint."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.feature import Features
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.period import is_interval
from diagnose.whatif.components.attribution import LongStalls
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.computes import iterate_blocks, place_of
from diagnose.whatif.observed import Observed

#: The first data-parallel rank alone is late where it has this part of all that begin a step late by as much.
ALONE_SHARE = 0.8
#: Input is read on this part of the stages at most, where there are so many.
MOST_STAGES, MANY_STAGES = 0.5, 3


def attribute_to_saves(found: LongStalls) -> None:
    """Attribute to saves what makes the first data-parallel rank alone begin steps late, every so many: it writes for all.

    Or workers of most stages, now one and now another: what they leave one after the other. A collector counts objects and not
    steps, and a loader reads on every rank, and on few stages. Nobody saves once a step has begun.
    """
    firsts = (0, slice(None), 0)  # forwards of the first microbatch: (n_virtual, n_steps, n_dp)
    all_s, late_s = found.stalls.inside_s + found.stalls.before_s, found.stalls.before_s[firsts]
    late = found.long[firsts] & (late_s > found.stalls.inside_s[firsts])
    late = late if found.begun is None else late & ~found.begun
    by_first = late[..., 0]
    if late.shape[-1] > 1 and by_first.sum() >= ALONE_SHARE * late.sum():
        late[..., 1:] = False
    elif (
        found.n_stages < MANY_STAGES
        or late.any(axis=(1, 2)).mean() <= MOST_STAGES
        or late_s.sum(where=late) < ALONE_SHARE * all_s.sum(where=found.long)
    ):
        return
    if is_interval(found.steps, np.any(late, axis=(0, 2))):
        at = np.zeros(found.long.shape, dtype=bool)
        at[0, :, 0] = late
        found.assign(at, StallKind.SAVING)


def find_begun(observed: Sequence[Observed], shape: tuple[int, ...], n_stages: int) -> Bools:
    """Say where a gather of the worker's has ended long before its first forward: the step has begun on all ranks by then.

    `shape` is that of arrays of `Breakdown`; the result has the shape (n_virtual, n_steps, n_dp).
    """
    found = np.zeros((shape[1], *shape[3:]), dtype=bool)
    for at, o in iterate_blocks(observed):
        nodes, start_s, end_s = o.block.nodes, o.block.start_s, o.block.end_s
        for node in np.flatnonzero((nodes.op == Op.FORWARD) & (nodes.microbatch == 0)).tolist():
            virtual = place_of(nodes, node, n_stages)[1]
            for gather in np.flatnonzero((nodes.op == Op.ALL_GATHER) & (nodes.stage == nodes.stage[node])).tolist():
                found[virtual, at] |= end_s[gather] < start_s[node] - o.idle(node) / 2.0
    return found


def find_late_starts(
    observed: Sequence[Observed], late_s: Sequence[Mapping[int, Seconds]], shape: tuple[int, ...]
) -> Bools:
    """Say where most of what opens a step on the workers, computes left out, is late: shape (n_steps, n_dp)."""
    found = np.zeros(shape[3:], dtype=bool)
    for (at, o), late in zip(iterate_blocks(observed), late_s, strict=True):
        members = o.graph.moves.members.flat
        opens = (o.graph.sources.lengths == 0) & (o.block.nodes.op != Op.FORWARD)
        opening = members[opens[members]].tolist()
        if opening and any(n in late for n in opening):
            n_late = sum((late[n] > 0 for n in opening if n in late), np.zeros(found[at].shape))
            found[at] = n_late > len(opening) / 2
    return found


def _is_beginning(features: Features, _explained: Collection[str]) -> bool:
    """Say whether workers were late once only, in the first step recorded: what begins there costs the job nothing later on."""
    hits, regular = features.get("stall.hits"), features.get("stall.regularity")
    return hits is not None and hits.value == 1.0 and regular is not None and regular.value is None


COMPONENT = Component(
    "start-delay",
    Part,
    inside=StallKind.SAVING,
    before=StallKind.SAVING,
    owns_delay=lambda o, node: bool(o.graph.sources.begin[node] == o.graph.sources.begin[node + 1]),
    traits=Traits(stops_all=True, border="start", is_excused=_is_beginning),
)
