"""Find forwards and backwards that no annotation names, by the operators of autograd.

Enters: the events of one rank in one step. Leaves: `Run`: forward and backward after backward, by start, as the host saw them.

A backward is a run of operators of autograd, on whatever thread. A forward is a run of operators of the main thread that such
a backward comes back to (flow events say which; without them, all operators that are not another thing's). Sends and receives
end a run, so that the forwards of two microbatches in a row are two.
"""

import dataclasses

import numpy as np

from diagnose.model.groups import splits_sequence
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.annotations import is_fetch
from diagnose.trace.producers.kineto.collect import Collected, Exchange, Spans
from diagnose.trace.producers.kineto.gpu import is_inside, merge

#: Beginnings of annotations: an update of the weights, gradients set to zero, which may be between a forward and its backward.
UPDATE, ZERO = "Optimizer.step", "Optimizer.zero_grad"
#: Operators ahead of a forward that no backward comes back to are an evaluation from this part of a forward's on: fewer prepare a
#: batch, or log.
EVALUATION_SHARE = 0.5
#: ... and not below so many: a loss, a gradient's norm and their logging take some.
LEAST_EVALUATION = 8
#: Operators that copy, name or fetch tensors compute nothing: who takes the state to save it calls one for each weight.
COPYING = frozenset(
    f"{of}{name}"
    for of in ("", "aten::")
    for name in (
        "_to_copy",
        "clone",
        "contiguous",
        "copy_",
        "detach",
        "detach_",
        "empty",
        "empty_like",
        "empty_strided",
        "item",
        "to",
    )
)
#: Calls that move a tensor to one peer, or from one.
TO_ONE_PEER = ("send", "recv")
#: A pipeline sends and receives between its computes: where this part of all calls lies inside backwards it is none.
RING_SHARE = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A forward or a backward, as the host saw it: from its first operator to its last, microseconds of the file."""

    forward: bool
    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class HostOperators:
    """Operators of one rank that computes are made of, by start; microseconds of the file."""

    #: Starts and ends of the operators of the main thread that may be of a forward, outermost ones only.
    forward: tuple[Seconds, Seconds]
    backward: tuple[Seconds, Seconds]  # merged spans of autograd
    calls: tuple[Exchange, ...]  # sends and receives, as they were called
    is_ring: bool  # there are some, and all are within computes, which are left out
    apart: tuple[float, ...]  # when the host began what ends a forward: fetching input, an update
    updates: tuple[Seconds, Seconds]  # merged updates of the weights
    other: tuple[
        Seconds, Seconds
    ]  # outermost operators of the main thread that are none of all that, and compute something


def find_main_thread(found: Collected) -> int:
    """Say which thread runs the steps, where no step is annotated; -1 where nothing ran.

    It is the one that updates the weights, else the one whose operators backwards come back to, else the busiest one.
    """
    updates = np.array([name.startswith(UPDATE) for name in found.names], dtype=bool)
    backward = merge(found.autograd.start, found.autograd.end)
    spans = found.annotations.take(updates[found.annotations.key])
    others = found.operators.take(~is_inside(found.operators.start, backward))
    for threads in (spans.thread[~is_inside(spans.start, backward)], found.forward_marks.thread, others.thread):
        if len(threads):
            return int(np.bincount(threads).argmax())
    return -1


def _list_updates(
    spans: Spans, names: tuple[str, ...], backward: tuple[Seconds, Seconds], outer: Spans
) -> tuple[Seconds, Seconds]:
    """List updates of the weights: those inside backwards are part of these, and what a closure computes comes before its own."""
    steps = np.array([name.startswith(UPDATE) for name in names], dtype=bool)
    spans = spans.take(steps[spans.key])
    spans = spans.take(~is_inside(spans.start, backward))
    start, end = merge(spans.start, spans.end)
    last = np.searchsorted(backward[0], end) - 1
    computed = np.r_[backward[1], -np.inf][last]  # when the last backward before its end has ended; -1 is none
    begun = np.r_[outer.start, np.inf][np.searchsorted(outer.start, computed)]  # with the first operator after that
    return np.where(computed > start, np.minimum(begun, end), start), end


def list_operators(found: Collected, main: int, *, may_be_ring: bool = False) -> HostOperators:
    """Pick the operators that forwards and backwards are made of; thread `main` runs the steps.

    Sends and receives inside backwards are those of ring attention, and so are all others, where the rank is in no pipeline.
    """
    backward = merge(found.autograd.start, found.autograd.end)
    outer = outermost(found.operators.take(found.operators.thread == main))
    spans = found.annotations.take(found.annotations.thread == main)
    marks = found.forward_marks.start[found.forward_marks.thread == main]
    marks = marks[~is_inside(marks, backward)]
    updates = _list_updates(spans, found.names, backward, outer)
    apart = np.array([is_fetch(name) or name.startswith(ZERO) for name in found.names], dtype=bool)
    fetches = np.array([is_fetch(name) for name in found.names], dtype=bool)
    others = spans.take(apart[spans.key])
    others_at = merge(np.r_[others.start, updates[0]], np.r_[others.end, updates[1]])
    middle = (outer.start + outer.end) / 2
    may_be = ~is_inside(outer.start, backward) & ~is_inside(middle, others_at)
    forward = may_be
    if len(marks):
        first, last = np.searchsorted(marks, outer.start), np.searchsorted(marks, outer.end, side="right")
        forward = may_be & (last > first)
    copies = np.array([name in COPYING for name in found.operator_names], dtype=bool)
    other = may_be & ~forward & ~copies[outer.key]
    calls: list[Exchange] = []
    for exchange in found.exchanges:
        if exchange.by == "call" and exchange.collective in TO_ONE_PEER and exchange.thread == main:
            is_part = bool(calls) and exchange.start < calls[-1].end  # record_param_comms inside the call it belongs to
            calls[-1:] = [merge_calls(calls[-1], exchange)] if is_part else [*calls[-1:], exchange]
    between = [call for call in calls if not splits_sequence(call.description)]
    inside = is_inside(np.array([call.start for call in between]), backward)
    if may_be_ring and between and inside.mean() >= RING_SHARE:
        between = []
    ended = np.sort(np.r_[spans.start[fetches[spans.key]], updates[0]])
    return HostOperators(
        forward=(outer.start[forward], outer.end[forward]),
        backward=backward,
        calls=tuple(between),
        is_ring=bool(calls) and not between,
        apart=tuple(ended.tolist()),
        updates=updates,
        other=(outer.start[other], outer.end[other]),
    )


def merge_calls(outer: Exchange, part: Exchange) -> Exchange:
    """Give a call with the group that a part of it names."""
    return dataclasses.replace(
        outer, group=part.group or outer.group, description=part.description or outer.description
    )


def find_runs(operators: HostOperators, start: float = -np.inf, end: float = np.inf) -> list[Run]:
    """Find the forwards and backwards of one step, by start; the step is given in microseconds of the file.

    Forwards that no backward follows in the step, as those of an evaluation, are left out.
    """
    items: list[tuple[float, float, str]] = []
    for kind, spans in (("forward", operators.forward), ("backward", operators.backward)):
        first, last = np.searchsorted(spans[0], (start, end))
        items += [
            (a, b, kind) for a, b in zip(spans[0][first:last].tolist(), spans[1][first:last].tolist(), strict=True)
        ]
    items += [(call.start, call.end, "call") for call in operators.calls if start <= call.start < end]
    items += [(at, at, "apart") for at in operators.apart if start <= at < end]
    runs: list[Run] = []
    before = "call"
    for a, b, kind in sorted(items):
        if kind == "apart":
            if before == "forward":
                runs.pop()
        elif kind != "call":
            if kind == before:
                runs[-1] = dataclasses.replace(runs[-1], end=max(runs[-1].end, b))
            else:
                runs.append(Run(kind == "forward", a, b))
        before = kind
    last_backward = max((n for n, run in enumerate(runs) if not run.forward), default=-1)
    return runs[: last_backward + 1]


def find_evaluations(
    operators: HostOperators, fetches: tuple[Seconds, Seconds], runs: list[Run], outer: Spans
) -> tuple[Seconds, Seconds]:
    """Find evaluations: as many operators as a forward has, between an update and the next forward, that no backward follows.

    Fetching batches for it is a part of it, and not so fetching the batch that is trained on next; `fetches` has all. What lies in
    one annotation of `outer` with the next forward is that one's, as where DDP sends buffers around before.
    """
    starts, ends = [], []
    forwards = np.array([[run.start, run.end] for run in runs if run.forward]).reshape(-1, 2)
    updates, other = operators.updates, operators.other
    if len(forwards) and len(updates[0]) and len(other[0]):
        n_usual = np.median(np.diff(np.searchsorted(operators.forward[0], forwards), axis=1))
        busy = np.sort(np.r_[updates[1], [run.end for run in runs]])
        for begins in (*forwards[:, 0].tolist(), np.inf):
            at = int(np.searchsorted(busy, begins))
            since = float(busy[at - 1]) if at else -np.inf
            if since not in updates[1]:
                continue
            holding = outer.start[slice(*np.searchsorted(outer.start, (since, begins)))]
            reach = outer.end[slice(*np.searchsorted(outer.start, (since, begins)))]
            first, last = np.searchsorted(other[0], (since, min([begins, *holding[reach > begins][:1]])))
            a, b = np.searchsorted(fetches[0], (since, begins))
            if b > a and begins < np.inf:
                last = min(last, np.searchsorted(other[0], fetches[0][b - 1]))
            if last - first >= max(EVALUATION_SHARE * n_usual, LEAST_EVALUATION):
                starts.append(min([other[0][first], *fetches[0][a:b][:1]]))
                ends.append(other[1][first:last].max())
    return np.array(starts), np.array(ends)


def outermost(spans: Spans) -> Spans:
    """Leave out operators inside others; those of one thread, by start."""
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans.end)
    outer = np.r_[True, spans.start[1:] >= reach[:-1]]
    return spans.take(np.flatnonzero(outer))
