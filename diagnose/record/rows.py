"""From what the hooks noted to rows of the trace: what belongs together, what begins and ends where.

Enters: a `StepLog` whose events have passed. Leaves: `OperationRow`s in the words of the trace format.
"""

import bisect
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable

from diagnose.model.optype import NAMES, RECEIVES, Op
from diagnose.record.clock import Clock, Mark
from diagnose.record.log import Collective, Compute, StepLog, Transfer

#: A wait that took less than this, or than this part of the time since the transfer was posted, found it done: on a busy host
#: nothing takes no time.
SHORT_WAIT_NS = 100_000
SHORT_WAIT_SHARE = 0.01
#: Reductions of so few numbers are of losses and norms, not of gradients.
FEW_ELEMENTS = 16
#: Name of a backward that leaves the gradients of weights to a `backward-weight`.
INPUT = "backward-input"
#: Computes needed beside one in which the allocator retried, to say how much longer it took for that.
MIN_PEERS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation."""

    optype: str
    #: Whether `start_ns` is nanoseconds after the window's first event, or the host's counter.
    on_device: bool
    start_ns: int
    duration_ns: int
    #: -1 beside computes.
    microbatch: int = -1
    virtual: int = -1


def list_operations(step: StepLog) -> list[OperationRow]:
    """List the operations of one step, by type and then by start."""
    on_device = step.window.relative_ns(step.begun)[0]

    def at(mark: Mark) -> int:
        return step.window.relative_ns(mark)[1]

    computes = [compute for compute in step.computes if compute.end is not None]
    waits = _list_waits(step, at)
    spans, held_back_ns = _compute_spans(computes, waits, at)
    found: list[tuple[str, int, int, int, int]] = [
        (INPUT if c.is_split else NAMES[c.op], start, end, c.microbatch, c.virtual)
        for c, (start, end) in zip(computes, spans, strict=True)
    ]
    for op, start, end in _transfer_spans(step.transfers, at):
        found.append((NAMES[op], start, end, -1, -1))
    for compute in computes:
        for name, waited in compute.beside.items():
            # As one that ends as the last of them did: so those of all who waited for each other can be compared.
            end = max(at(until) for _, until in waited)
            found.append((name, end - sum(at(until) - at(since) for since, until in waited), end, -1, -1))
    closing = _closing_spans(step, at)
    if held_back_ns:
        # What was waited for before that comes after the last compute, too, as one row with the step's last reduction.
        start, end = closing.get(Op.REDUCE_SCATTER, (spans[-1][1] + held_back_ns,) * 2)
        closing[Op.REDUCE_SCATTER] = start - held_back_ns, end
    found += [(NAMES[op], start, end, -1, -1) for op, (start, end) in closing.items()]
    found += [(NAMES[Op.CUDA_MALLOC], start, end, -1, -1) for start, end in _stalls_of_allocator(step, computes, spans)]
    rows = [
        OperationRow(optype, on_device, start, max(end - start, 0), microbatch, virtual)
        for optype, start, end, microbatch, virtual in sorted(found)
    ]
    evidence = sorted(step.evidence, key=lambda pause: (isinstance(pause[0], str), pause))
    rows += [
        OperationRow(
            op if isinstance(op, str) else NAMES[op],
            on_device=False,
            start_ns=start - _shift(start, computes, waits, at),
            duration_ns=end - start,
        )
        for op, start, end in evidence
    ]
    return rows


def _list_waits(step: StepLog, at: Callable[[Mark], int]) -> list[tuple[Mark, Mark]]:
    """List when a worker waited for other ranks before its last compute had ended, within computes and between them, in order.

    Between computes of a pipeline a collective is none of all stages, and transfers say who waits for whom.
    """
    waits = [wait for compute in step.computes if compute.end is not None for wait in compute.waits]
    if not step.transfers:
        for collective in step.collectives:
            after = step.computes[collective.n_computes :][:1]
            # One that is launched before a compute and waited for after it does not hold the worker.
            if (
                collective.n_computes
                and after
                and collective.end is not None
                and at(collective.end) <= at(after[0].start)
            ):
                waits.append((collective.start, collective.end))
    apart: list[tuple[Mark, Mark]] = []
    for start, end in sorted(waits, key=lambda wait: at(wait[0])):
        if apart and at(start) < at(apart[-1][1]):  # launched together, and waited for one after the other
            apart[-1] = apart[-1][0], max(apart[-1][1], end, key=at)
        else:
            apart.append((start, end))
    return apart


def _shift(start_ns: int, computes: list[Compute], waits: list[tuple[Mark, Mark]], at: Callable[[Mark], int]) -> int:
    """Say by how much a pause goes forward with the computes that it stands beside; what follows the last of them stays."""
    if not computes or start_ns >= _end_ns(computes[-1]):
        return 0
    return sum(at(end) - at(start) for start, end in waits if Clock.host_ns(end) <= start_ns)


def _compute_spans(
    computes: list[Compute], waits: list[tuple[Mark, Mark]], at: Callable[[Mark], int]
) -> tuple[list[tuple[int, int]], int]:
    """Say when each compute began and ended, and for how long all of them waited for other ranks.

    Where every rank waits for the slowest within each layer (FSDP), or after each of several backwards, all computes look alike,
    or begin at once. Without their waits they stand back to back; all the waiting comes after the last, as it would with DDP
    that reduces once a step.
    """
    if not waits:
        return [(at(compute.start), at(compute.end)) for compute in computes if compute.end is not None], 0
    ends = [at(end) for _, end in waits]
    sums = [0, *itertools.accumulate(at(end) - at(start) for start, end in waits)]

    def without(mark: Mark) -> int:
        return at(mark) - sums[bisect.bisect_right(ends, at(mark))]

    return [(without(compute.start), without(compute.end)) for compute in computes if compute.end is not None], sums[-1]


def _transfer_spans(transfers: list[Transfer], at: Callable[[Mark], int]) -> Iterable[tuple[Op, int, int]]:
    """Say when each transfer began and ended.

    A transfer that was launched early and waited for later begins, as a row, where the worker had nothing else to do: what it
    did in between hides the rest. A send that was done by the time somebody asked ends when it was launched.
    """
    found: dict[tuple[Op, int, int], tuple[int, int]] = {}
    overtaken = _find_overtaken(transfers, at)
    for i, transfer in enumerate(transfers):
        start, end = _span(transfer, at, is_overtaken=i in overtaken)
        for op, microbatch, virtual in transfer.members:
            if microbatch < 0:
                yield op, start, end
            else:
                found[op, microbatch, virtual] = (start, end)
    yield from ((op, start, end) for (op, _, _), (start, end) in found.items())


def _find_overtaken(transfers: list[Transfer], at: Callable[[Mark], int]) -> set[int]:
    """Number the sends that had arrived before anybody waited for them: messages of one kind arrive in order, and a later one had.

    Schedules wait for all their sends at the end of a step, the last one first. What such a wait takes is the host's.
    """
    done: dict[tuple[Op, int], int] = {}
    found = set()
    for i, transfer in reversed(list(enumerate(transfers))):
        if transfer.wait_start is None or transfer.wait_end is None:
            continue
        kinds = {(op, virtual) for op, _, virtual in transfer.members}
        waited, end = at(transfer.wait_start), at(transfer.wait_end)
        if all(done.get(kind, waited + 1) <= waited for kind in kinds):
            found.add(i)
        done |= {kind: min(end, done.get(kind, end)) for kind in kinds}
    return found


def _span(transfer: Transfer, at: Callable[[Mark], int], *, is_overtaken: bool) -> tuple[int, int]:
    """Say when the transfers of a batch began and ended."""
    launched = transfer.posted if transfer.launched is None else transfer.launched
    if transfer.wait_start is None or transfer.wait_end is None:
        return at(transfer.posted), at(launched)
    start, waited, end = at(transfer.posted), at(transfer.wait_start), at(transfer.wait_end)
    if transfer.waited_at == transfer.posted_at:
        return start, end
    if any(op in RECEIVES for op, _, _ in transfer.members):
        return waited, end
    is_short = end - waited <= max(SHORT_WAIT_NS, SHORT_WAIT_SHARE * (end - start))
    return start, (at(launched) if is_short or is_overtaken else end)


def _closing_spans(step: StepLog, at: Callable[[Mark], int]) -> dict[Op, tuple[int, int]]:
    """Say when parameters were gathered, gradients reduced and clipped, and when the optimizer ran: each once a step."""
    last = max((at(compute.start) for compute in step.computes if compute.end is not None), default=None)
    # Where several optimizers run in turns with computes, those after the last compute.
    optimizers = [(at(start), at(end)) for op, start, end in step.others if op == Op.OPTIMIZER]
    optimizers = [span for span in optimizers if last is None or span[1] >= last]
    updated = min((start for start, _ in optimizers), default=None)
    clips = [(at(start), at(end)) for op, start, end in step.others if op == Op.CLIP]
    kinds: dict[Op, list[tuple[int, int]]] = {Op.OPTIMIZER: optimizers}
    for collective in step.collectives:
        op = _type_of(collective, len(step.computes))
        if op is not None and collective.end is not None:
            span = at(collective.start), at(collective.end)
            if updated is None or span[0] < updated:
                kinds.setdefault(op, []).append(span)
        elif updated is not None and _is_update(collective, len(step.computes)) and at(collective.start) >= updated:
            optimizers.append((at(collective.start), at(collective.end or collective.start)))
    # A norm of gradients counts as an operation of all ranks where it was reduced over several; else each clips by itself.
    norms = [span for span in kinds.pop(Op.CLIP, []) if clips and span[1] >= min(clips)[0]]
    if norms:
        kinds[Op.CLIP] = [*clips, *norms]
    return {op: (min(s for s, _ in spans), max(e for _, e in spans)) for op, spans in kinds.items() if spans}


def _type_of(collective: Collective, n_computes: int) -> Op | None:
    """Say what a collective is by where in the step it stands; None for what the trace format has no type for."""
    if collective.gathers:
        return Op.ALL_GATHER if collective.n_computes == 0 else None
    if collective.gathers is not None and collective.n_computes == n_computes and n_computes:
        return Op.REDUCE_SCATTER if collective.n_elements > FEW_ELEMENTS else Op.CLIP
    return None


def _is_update(collective: Collective, n_computes: int) -> bool:
    """Say whether a collective gathers what the optimizer has updated, each rank a part of it: this completes the update."""
    return bool(collective.gathers) and collective.n_elements > FEW_ELEMENTS and collective.n_computes == n_computes > 0


def _stalls_of_allocator(
    step: StepLog, computes: list[Compute], spans: list[tuple[int, int]]
) -> Iterable[tuple[int, int]]:
    """Say from when and until when computes stood still in which the allocator retried.

    Retries are counted by step only, as torch makes a table of all its counters for each answer. With n of them, they were in the n
    computes that kept the host busy for longer than their peers by most. On a GPU the host is ahead, and waits in a retry for what
    it has launched before: only that by which the compute itself was longer is lost. What was longer for another pause, which has
    a row, is none of it.
    """
    if not step.n_retries:
        return
    by_type: dict[Op, list[int]] = {}
    for i, compute in enumerate(computes):
        if any(begin < _end_ns(compute) and Clock.host_ns(compute.start) < end for _, begin, end in step.evidence):
            continue
        by_type.setdefault(compute.op, []).append(i)
    longer = []
    for peers in by_type.values():
        if len(peers) <= MIN_PEERS:
            continue
        usual_host_ns = statistics.median_low(_host_ns(computes[i]) for i in peers)
        usual_ns = statistics.median_low(spans[i][1] - spans[i][0] for i in peers)
        longer += [(_host_ns(computes[i]) - usual_host_ns, spans[i][0], spans[i][1] - usual_ns) for i in peers]
    for host_ns, start, end in sorted(longer, reverse=True)[: step.n_retries]:
        if (lost_ns := min(host_ns, end - start)) > 0:
            yield start, start + lost_ns


def _host_ns(compute: Compute) -> int:
    """Say how long the host was busy with a compute."""
    return _end_ns(compute) - Clock.host_ns(compute.start)


def _end_ns(compute: Compute) -> int:
    """Say when the host was done with a compute."""
    assert compute.end is not None
    return Clock.host_ns(compute.end)
