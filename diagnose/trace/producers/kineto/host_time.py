"""How long the GPU stood still because the host had launched nothing, and which operators made the host wait for it before.

Enters: what was collected of one file. Leaves: `HostTime`. Nothing runs on the GPU in a gap, and what ends it was launched before
or in it: the former waits for another stream, or for its turn; the latter the host was late with. Waits for input, calls of the
allocator and collections of Python are taken out, which are told apart.
"""

import dataclasses
from collections import Counter

import numpy as np

from diagnose.model.trace import Ints, Seconds
from diagnose.trace.producers.kineto.annotations import parse_step
from diagnose.trace.producers.kineto.collect import Collected, Spans
from diagnose.trace.producers.kineto.computes import outermost
from diagnose.trace.producers.kineto.gpu import find_launch, merge, overlap

#: Spans that are looked at, from the last one begun, for the innermost one around a call.
MAX_DEPTH = 64
#: Calls of an operator that are asked for the module that they are in.
MAX_ASKED = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Synchronisation:
    """What makes the host wait for the GPU, and how often; `lost_us` the GPU then stood still."""

    operator: str  # the outermost one; empty where the program calls it itself
    call: str  # of the runtime
    inside: str  # the module, or annotation, that most of them are in; empty where none is known
    n: int
    lost_us: float


@dataclasses.dataclass(frozen=True, slots=True)
class HostTime:
    """Of one rank: `total_us` from its first kernel to its last, in `idle_us` of which the host had launched nothing.

    `gaps` are the spans of that, microseconds of the file; `synchronisations` come with the costliest first.
    """

    total_us: float = 0.0
    idle_us: float = 0.0
    gaps: tuple[Seconds, Seconds] = dataclasses.field(default_factory=lambda: (np.zeros(0), np.zeros(0)))
    synchronisations: tuple[Synchronisation, ...] = ()


def measure_host_time(found: Collected, fetches: tuple[Seconds, Seconds]) -> HostTime:
    """Measure it over the whole file; `fetches` are merged waits for input."""
    on_gpu = Spans.join([found.kernels, found.communication])
    at = find_launch(on_gpu.key, found.launches)
    if not len(on_gpu) or not (at >= 0).any():
        return HostTime()
    order = np.argsort(on_gpu.start, kind="stable")
    on_gpu, at = on_gpu.take(order), at[order]
    begun, ended = merge(on_gpu.start, on_gpu.end)
    first = np.searchsorted(on_gpu.start, begun[1:])  # what ends each gap
    launched = np.where(at[first] >= 0, found.launches.start[np.maximum(at[first], 0)], -np.inf)
    left, right = ended[:-1], np.minimum(launched, begun[1:])
    known = right > left
    left, right = left[known], right[known]
    others = [
        fetches,
        (found.allocations.start, found.allocations.end),
        (found.collections.start, found.collections.end),
    ]
    told = merge(*(np.concatenate([other[side] for other in others]) for side in (0, 1)))
    lost = right - left - overlap(left, right, told)
    return HostTime(
        total_us=float(ended[-1] - begun[0]),
        idle_us=float(lost.sum()),
        gaps=(left, right),
        synchronisations=_list_synchronisations(found, left, right, lost),
    )


def _list_synchronisations(
    found: Collected, left: Seconds, right: Seconds, lost: Seconds
) -> tuple[Synchronisation, ...]:
    """List what waited for the GPU, by operator and call; a gap is lost to the last call that returns in it."""
    calls = found.synchronisations
    if not len(calls) or not len(left):
        return ()
    operator = np.full(len(calls), -1, dtype=np.int64)
    for thread in np.unique(calls.thread).tolist():
        mine = np.flatnonzero(calls.thread == thread)
        outer = outermost(found.operators.take(found.operators.thread == thread))
        if len(outer):
            at = np.searchsorted(outer.start, calls.start[mine], side="right") - 1
            inside = (at >= 0) & (calls.start[mine] <= outer.end[at])
            operator[mine] = np.where(inside, outer.key[at], -1)
    gap = np.searchsorted(left, calls.end, side="right") - 1
    inside = (gap >= 0) & (calls.end <= right[gap])
    inside[:-1] &= ~(inside[1:] & (gap[1:] == gap[:-1]))  # the last one that returns in a gap
    cost = np.where(inside, lost[gap], 0.0)
    listed = []
    for kind in np.unique(np.stack([operator, calls.key], axis=1), axis=0).tolist():
        of = np.flatnonzero((operator == kind[0]) & (calls.key == kind[1]))
        name = found.operator_names[kind[0]] if kind[0] >= 0 else ""
        inside_of = _name_place(found, calls, of)
        listed.append(Synchronisation(name, found.operator_names[kind[1]], inside_of, len(of), float(cost[of].sum())))
    return tuple(sorted(listed, key=lambda one: (-one.lost_us, -one.n, one.operator, one.call)))


def _name_place(found: Collected, calls: Spans, of: Ints) -> str:
    """Name the innermost module, else annotation, that most of some calls are in."""
    for spans in (found.modules, found.annotations):
        seen: Counter[str] = Counter()
        for n in of[:MAX_ASKED].tolist():
            behind = int(np.searchsorted(spans.start, calls.start[n], side="right"))
            around = np.arange(max(0, behind - MAX_DEPTH), behind)
            around = around[(spans.end[around] >= calls.end[n]) & (spans.thread[around] == calls.thread[n])]
            names = [found.names[key] for key in spans.key[around].tolist()]
            seen.update([name for name in names if parse_step(name) is None][-1:])
        if seen:
            return seen.most_common(1)[0][0]
    return ""
