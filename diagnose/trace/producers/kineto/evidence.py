"""What explains the operations of one rank: calls of the allocator, collections of Python, waits for input.

Enters: what was collected of one file, and its operations. Leaves: rows of evidence, added to the operations.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import EVIDENCE, Op
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.collect import Collected
from diagnose.trace.producers.kineto.operations import Operation, OperationList

#: Collections of Python that took less are counted, not kept: the youngest generation is collected all the time.
LEAST_COLLECTION_US = 100.0
#: Of so many operations asked for before a wait for input the last to end says until when the GPU had work.
N_BEFORE_WAIT = 8


def add_evidence(found: Collected, input_waits: Sequence[tuple[float, float]], made: OperationList) -> None:
    """Add what explains operations: allocator calls, collections, and the waits for input that are given."""
    by_start = sorted((o for o in made.listed if o.op not in EVIDENCE), key=lambda o: o.asked)
    asked = np.array([o.asked for o in by_start])
    for start, end in found.allocations.ranges():
        _explain(made, Op.CUDA_MALLOC, start, end, by_start, asked)
    for start, end in found.collections.ranges():
        if end - start < LEAST_COLLECTION_US:
            made.dropped["collections of Python", f"each took less than {LEAST_COLLECTION_US:.0f} us"] += 1
        else:
            _explain(made, Op.GC, start, end, by_start, asked)
    for start, end in input_waits:
        _add_wait_for_input(made, start, end, by_start, asked)


def _explain(made: OperationList, op: Op, start: float, end: float, by_start: list[Operation], asked: Seconds) -> None:
    """Add evidence; where it lies in an operation on the host, put it into that operation on the GPU."""
    row = made.add(op, start, end)
    at = int(np.searchsorted(asked, start, side="right")) - 1
    if row is None or at < 0 or start >= by_start[at].returned:
        return
    holds = by_start[at]
    length = min(end - start, holds.end - holds.start)
    row.start = min(max(start + holds.start - holds.asked, holds.start), holds.end - length)
    row.end = row.start + length


def _add_wait_for_input(
    made: OperationList, start: float, end: float, by_start: list[Operation], asked: Seconds
) -> None:
    """Add a wait for input: what the GPU did not work through lengthens the forward that follows.

    Megatron-LM's forward-compute fetches its batch, too.
    """
    row = made.add(Op.DATA_LOAD, start, end)
    at = int(np.searchsorted(asked, end))
    if row is None or at >= len(by_start):
        return
    follows = by_start[at]
    if follows.op != Op.FORWARD or follows.step != row.step:
        return
    before = max((o.end for o in by_start[max(0, at - N_BEFORE_WAIT) : at]), default=-np.inf)
    exposed = max(start, before)
    if exposed >= end:
        made.listed.pop()
        made.dropped["waits for input", "the GPU had work for as long as they took"] += 1
        return
    row.start = exposed
    row.end = min(end, follows.end)
    follows.start = min(follows.start, exposed)
