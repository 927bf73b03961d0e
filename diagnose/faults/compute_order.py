"""In which order a stage computes, and which microbatch and model chunk each compute is of.

Enters: a `JobSpec`. Leaves: operations with their numbers.
"""

from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op


def order_computes(spec: JobSpec, stage: int) -> list[tuple[Op, int]]:
    """Put the forwards and backwards of a stage into launch order.

    Returns
    -------
    list of (Op, int)
        Type, and its number among those of its type; the weight gradients of a split backward count on after all backwards.

    >>> [f"{op.name[0]}{k}" for op, k in order_computes(JobSpec(pp=2, microbatches=3), 0)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> [f"{op.name[0]}{k}" for op, k in order_computes(JobSpec(pp=2, microbatches=3, schedule="zero-bubble"), 1)]
    ['F0', 'B0', 'F1', 'B1', 'B3', 'F2', 'B2', 'B4', 'B5']
    """
    total = spec.microbatches * spec.vpp
    warmup = count_warmup(spec, stage)
    steady = total - warmup
    order = [(Op.FORWARD, k) for k in range(warmup)]
    for k in range(steady):
        order += [(Op.FORWARD, warmup + k), (Op.BACKWARD, k)]
    order += [(Op.BACKWARD, k) for k in range(steady, total)]
    return _delay_weights(order, stage, total) if spec.schedule == "zero-bubble" else order


def _delay_weights(order: list[tuple[Op, int]], stage: int, total: int) -> list[tuple[Op, int]]:
    """Put the weight gradients of each backward after as many later backwards as there are stages before this one."""
    split: list[tuple[Op, int]] = []
    for op, number in order:
        split.append((op, number))
        if op == Op.BACKWARD and number >= stage:
            split.append((Op.BACKWARD, total + number - stage))
    return split + [(Op.BACKWARD, total + k) for k in range(max(total - stage, 0), total)]


def count_warmup(spec: JobSpec, stage: int) -> int:
    """Count the forwards before the first forward that a backward follows at once."""
    total = spec.microbatches * spec.vpp
    if spec.schedule == "gpipe":
        return total
    if spec.vpp == 1:
        return min((1 + (spec.schedule == "eager")) * (spec.pp - stage - 1), total)
    if spec.microbatches == spec.pp:
        return total
    return min(2 * (spec.pp - stage - 1) + (spec.vpp - 1) * spec.pp, total)


def place_compute(spec: JobSpec, op: Op, number: int) -> tuple[int, int]:
    """Say which model chunk and microbatch the compute of that number works on."""
    group, within = divmod(number, spec.n_virtual)
    turn, lane = divmod(within, spec.pp)
    chunk = turn if op == Op.FORWARD else spec.vpp - 1 - turn
    return (chunk, group * spec.pp + lane) if spec.vpp > 1 else (0, number % spec.microbatches)


def share_compute(spec: JobSpec, op: Op, number: int) -> float:
    """Say which part of a whole forward or backward the compute of that number is."""
    if op == Op.FORWARD or spec.schedule != "zero-bubble":
        return 1.0
    return 1.0 - spec.weight_share if number < spec.microbatches else spec.weight_share
