"""Find forwards and backwards that no annotation names, by the operators of autograd.

Enters: the events of one rank in one step. Leaves: `Run`: forward and backward after backward, by start, as the host saw them.

A backward is a run of operators of autograd, on whatever thread. A forward is a run of operators of the main thread that such
a backward comes back to (flow events say which; without them, all operators that are not another thing's). Sends and receives
end a run, so that the forwards of two microbatches in a row are two.
"""

import dataclasses

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.collect import Collected, Exchange, Spans
from diagnose.trace.producers.kineto.gpu import is_inside, merge

#: Prefixes of annotations whose operators are no forward.
NO_FORWARD = ("Optimizer.", "enumerate(Data")
#: Prefixes of annotations before which a forward without a backward has ended, and was none; gradients may be set to zero between
#: a forward and its backward.
ENDS_FORWARD = ("Optimizer.step", "enumerate(Data")
#: Calls that move a tensor to one peer, or from one.
TO_ONE_PEER = ("send", "recv")


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
    apart: tuple[float, ...]  # when the host began what ends a forward: fetching input, an update


def list_operators(found: Collected, main: int) -> HostOperators:
    """Pick the operators that forwards and backwards are made of; thread `main` runs the steps."""
    backward = merge(found.autograd.start, found.autograd.end)
    outer = _outermost(found.operators.take(found.operators.thread == main))
    apart = np.array([name.startswith(NO_FORWARD) for name in found.names], dtype=bool)
    ending = np.array([name.startswith(ENDS_FORWARD) for name in found.names], dtype=bool)
    spans = found.annotations.take(found.annotations.thread == main)
    others = spans.take(apart[spans.key])
    middle = (outer.start + outer.end) / 2
    may_be = ~is_inside(outer.start, backward) & ~is_inside(middle, merge(others.start, others.end))
    marks = found.forward_marks.start[found.forward_marks.thread == main]
    marks = marks[~is_inside(marks, backward)]
    if len(marks):
        first, last = np.searchsorted(marks, outer.start), np.searchsorted(marks, outer.end, side="right")
        may_be &= last > first
    at = np.flatnonzero(may_be)
    calls: list[Exchange] = []
    for exchange in found.exchanges:
        if exchange.by == "call" and exchange.collective in TO_ONE_PEER and exchange.thread == main:
            if calls and exchange.start < calls[-1].end:
                continue  # record_param_comms inside the call it belongs to
            calls.append(exchange)
    ended = spans.start[ending[spans.key]]
    return HostOperators((outer.start[at], outer.end[at]), backward, tuple(calls), tuple(ended.tolist()))


def find_runs(operators: HostOperators, start: float, end: float) -> list[Run]:
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


def _outermost(spans: Spans) -> Spans:
    """Leave out operators inside others; those of one thread, by start."""
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans.end)
    outer = np.r_[True, spans.start[1:] >= reach[:-1]]
    return spans.take(np.flatnonzero(outer))
