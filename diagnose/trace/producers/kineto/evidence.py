"""What explains the operations of one rank: calls of the allocator, collections of Python, saves, waits for input.

Enters: what was collected of one file, and its operations. Leaves: rows of evidence, added to the operations.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.optype import EVIDENCE, Op
from diagnose.model.trace import Seconds
from diagnose.trace.producers.kineto.collect import Collected
from diagnose.trace.producers.kineto.gpu import GpuTime, is_inside, merge, overlap
from diagnose.trace.producers.kineto.operations import Operation, OperationList

#: Collections of Python that took less are counted, not kept: the youngest generation is collected all the time.
LEAST_COLLECTION_US = 100.0
#: What the host does between operations is kept between these parts of what it usually does in a step.
LEAST_GAP_SHARE, MOST_GAPS = 0.02, 3.0
#: Of so many operations asked for before a wait for input the last to end says until when the GPU had work.
N_BEFORE_WAIT = 8


def add_evidence(
    found: Collected, gpu: GpuTime, input_waits: Sequence[tuple[float, float]], made: OperationList
) -> None:
    """Add what explains operations: allocator calls, collections, saves, and the waits for input that are given."""
    by_start = sorted((o for o in made.listed if o.op not in EVIDENCE), key=lambda o: o.asked)
    asked = np.array([o.asked for o in by_start])
    for start, end in found.allocations.ranges():
        _explain(made, Op.CUDA_MALLOC, start, end, by_start, asked)
    for start, end in found.collections.ranges():
        if end - start < LEAST_COLLECTION_US:
            made.dropped["collections of Python", f"each took less than {LEAST_COLLECTION_US:.0f} us"] += 1
        else:
            _explain(made, Op.GC, start, end, by_start, asked)
    # A trainer's save calls that of torch.
    for start, end in zip(*(of.tolist() for of in merge(found.saves.start, found.saves.end)), strict=True):
        made.add(Op.CHECKPOINT, start, end)
    for start, end in input_waits:
        _add_wait_for_input(made, gpu, (start, end), by_start, asked)


def add_host_gaps(gaps: tuple[Seconds, Seconds], made: OperationList) -> None:
    """Add, as planned work, what the host does in most steps between operations while the GPU has nothing to do.

    It is no wait for input: the profiler names those. Gaps within operations stay a part of these, as those of a slow host are
    longer. Far longer ones than usual are left out, too: they have a reason of their own.
    """
    running = [o for o in made.listed if o.op not in EVIDENCE or o.op == Op.EVAL]
    busy = merge(np.array([o.start for o in running]), np.array([o.end for o in running]))
    waits = [o for o in made.listed if o.op in (Op.DATA_LOAD, Op.CUDA_MALLOC, Op.GC)]
    told = merge(np.array([o.start for o in waits]), np.array([o.end for o in waits]))
    left, right = gaps
    lost = right - left - overlap(left, right, told)
    step = np.searchsorted(made.starts, right, side="right") - 1
    own = (step >= 0) & (right < np.r_[made.ends, -np.inf][step]) & ~is_inside((left + right) / 2, busy)
    in_step = np.bincount(
        step[own], lost[own], minlength=len(made.starts)
    )  # the first lacks what lies before the recording
    usual = float(np.median(in_step)) if len(in_step) else 0.0
    if not usual:
        return
    own &= (lost >= LEAST_GAP_SHARE * usual) & (lost <= MOST_GAPS * usual)
    for start, end, at in zip(left[own].tolist(), right[own].tolist(), step[own].tolist(), strict=True):
        made.listed.append(Operation(Op.LOG, int(made.numbers[at]), start, end, start, end))


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
    made: OperationList, gpu: GpuTime, wait: tuple[float, float], by_start: list[Operation], asked: Seconds
) -> None:
    """Add a wait for input: what the GPU did not work through lengthens the forward that follows.

    Megatron-LM's forward-compute fetches its batch, too.
    """
    start, end = wait
    row = made.add(Op.DATA_LOAD, start, end)
    at = int(np.searchsorted(asked, end))
    if row is None or at >= len(by_start):
        return
    follows = by_start[at]
    if follows.op != Op.FORWARD or follows.step != row.step:
        return
    inside = by_start[at + 1 : at + 1 + N_BEFORE_WAIT]
    if any(o.op == Op.FORWARD_RECV and o.asked < follows.returned and o.end <= follows.start for o in inside):
        return  # it received its input after that, and waited for another stage
    # On the CPU nothing else works meanwhile: what is under way then is another thread's, as a collective that is waited for later.
    before = (
        max((o.end for o in by_start[max(0, at - N_BEFORE_WAIT) : at]), default=-np.inf) if gpu.is_there else -np.inf
    )
    start = max(start, min(gpu.worked_until(end, follows.start), end))
    start, end = start - follows.earlier, end - follows.earlier
    exposed = max(start, before)
    if exposed >= end:
        made.listed.pop()
        made.dropped["waits for input", "the GPU had work for as long as they took"] += 1
        return
    row.start = exposed
    row.end = min(end, follows.end)
    follows.start = min(follows.start, exposed)
