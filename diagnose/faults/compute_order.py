"""In which order a stage computes, and which microbatch and model chunk each compute is of.

Enters: a `JobSpec`. Leaves: computes in launch order. A schedule is a few phases: so many times these computes, in this order.

Sources: GPipe arXiv 1811.06965; 1F1B and interleaved 1F1B arXiv 2104.04473, section 2.2; breadth-first arXiv 2211.05953; ZB-H1,
ZB-H2 and ZB-V arXiv 2401.10241; DualPipeV: the steps of torch's ScheduleDualPipeV and of DeepSeek's DualPipe.
"""

import functools
import itertools
from collections import defaultdict
from typing import Literal, NamedTuple

from diagnose.faults.spec import JobSpec, Schedule
from diagnose.model.optype import Op
from diagnose.model.schedule import V_SHAPED, list_v_phases

#: What a compute does of a backward: all of it, the gradient of its input, or those of its weights; `whole` of forwards.
Part = Literal["whole", "input", "weight"]


class Compute(NamedTuple):
    """One compute of a stage.

    `number` counts those of its type by launch; weight gradients are of type backward, and count on after all other backwards.
    """

    op: Op
    number: int
    chunk: int
    #: Of several whose weight gradients are computed together, the last.
    microbatch: int
    part: Part = "whole"
    #: How many microbatches it is of.
    n_microbatches: int = 1
    #: It runs at the same time as the compute launched before it.
    beside: bool = False


class Phase(NamedTuple):
    """A number of turns of the same computes.

    Each is a letter, F forward, B whole backward, I gradient of the input, W gradients of weights, and the model chunk that it is
    of, or else whichever is next. `F0|B1` run at the same time. What a stage has no more of is left out.
    """

    times: int
    computes: str


@functools.lru_cache(maxsize=512)
def _order(
    schedule: Schedule, pp: int, vpp: int, microbatches: int, stage: int, *, merges_weights: bool
) -> tuple[Compute, ...]:
    """Put the computes of a stage into launch order."""
    n_padded = max(microbatches, 2 * pp - 1) if schedule == "zb-v" else microbatches
    forwards, backwards = _list_places(schedule, pp, vpp, n_padded)
    left = {"F": forwards, "B": backwards, "W": list[tuple[int, int]]()}
    launched: list[tuple[str, int, int, bool]] = []
    for phase in _list_phases(schedule, pp, vpp, n_padded, stage):
        for group in phase.computes.split() * phase.times:
            beside = False
            for name in group.split("|"):
                letter, chunk = name[0], name[1:]
                queue = left["B" if letter == "I" else letter]
                place = next((p for p in queue if not chunk or p[0] == int(chunk)), None)
                if place is None:
                    continue
                queue.remove(place)
                if letter == "I":
                    left["W"].append(place)
                launched.append((letter, *place, beside))
                beside = True
    launched = [one for one in launched if one[2] < microbatches]
    return _count(_merge(launched) if merges_weights else [(*one, 1) for one in launched])


def order_computes(spec: JobSpec, stage: int) -> tuple[Compute, ...]:
    """Put the forwards and backwards of a stage into launch order.

    >>> [f"{c.op.name[0]}{c.number}" for c in order_computes(JobSpec(pp=2, microbatches=3), 0)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> [f"{c.op.name[0]}{c.number}" for c in order_computes(JobSpec(pp=2, microbatches=3, schedule="zero-bubble"), 1)]
    ['F0', 'B0', 'F1', 'B1', 'B3', 'F2', 'B2', 'B4', 'B5']
    """
    return _order(spec.schedule, spec.pp, spec.vpp, spec.microbatches, stage, merges_weights=spec.merges_weights)


def count_warmup(schedule: Schedule, pp: int, vpp: int, microbatches: int, stage: int) -> int:
    """Count the forwards before the first forward that a backward follows at once."""
    total, behind = vpp * microbatches, pp - 1 - stage
    if schedule in ("gpipe", "looped") or (schedule == "1f1b" and vpp > 1 and microbatches == pp):
        return total
    one_way = schedule == "zero-bubble" or (schedule == "1f1b" and vpp == 1)
    return min((1 if one_way else 2) * behind + (vpp - 1) * pp, total)


def _list_phases(schedule: Schedule, pp: int, vpp: int, n: int, stage: int) -> list[Phase]:
    """Say in which phases a stage runs a schedule of `n` microbatches."""
    if schedule in V_SHAPED:
        return [Phase(*phase) for phase in list_v_phases(schedule, stage, pp, n)]
    total, warmup = vpp * n, count_warmup(schedule, pp, vpp, n, stage)
    if schedule not in ("zero-bubble", "zb-h2"):
        return [Phase(warmup, "F"), Phase(total, "F B")]
    # The later a stage, the earlier it must send input gradients back, and the longer its weight gradients wait: so long that no
    # stage holds more than the first one does.
    delay = min((2 if schedule == "zb-h2" else 1) * stage, total)
    return [Phase(warmup, "F"), Phase(delay, "F I"), Phase(total - delay, "F I W"), Phase(delay, "W")]


def _list_places(
    schedule: Schedule, pp: int, vpp: int, microbatches: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """List the model chunk and microbatch of all forwards of a stage, and of all backwards, in the order of each."""
    size = microbatches if schedule == "looped" else pp
    groups = [range(first, min(first + size, microbatches)) for first in range(0, microbatches, size)]
    forwards, backwards = (
        [(chunk, microbatch) for group in groups for chunk in chunks for microbatch in group]
        for chunks in (range(vpp), range(vpp - 1, -1, -1))
    )
    return forwards, backwards


def _merge(launched: list[tuple[str, int, int, bool]]) -> list[tuple[str, int, int, bool, int]]:
    """Compute the weight gradients of a model chunk together, where nothing runs between them."""
    merged: list[tuple[str, int, int, bool, int]] = []
    for (letter, _), run in itertools.groupby(launched, key=lambda one: one[:2]):
        ones = list(run)
        merged += [(*ones[-1], len(ones))] if letter == "W" else [(*one, 1) for one in ones]
    return merged


def _count(launched: list[tuple[str, int, int, bool, int]]) -> tuple[Compute, ...]:
    """Number the computes of each type."""
    parts: dict[str, Part] = {"I": "input", "W": "weight"}
    counted: dict[str, int] = defaultdict(int)
    n_backwards = sum(letter in "BI" for letter, *_ in launched)
    found = []
    for letter, chunk, microbatch, beside, n_microbatches in launched:
        kind = "B" if letter == "I" else letter
        number = counted[kind] + (n_backwards if kind == "W" else 0)
        counted[kind] += 1
        op = Op.FORWARD if kind == "F" else Op.BACKWARD
        found.append(Compute(op, number, chunk, microbatch, parts.get(letter, "whole"), n_microbatches, beside))
    return tuple(found)


def share_compute(spec: JobSpec, compute: Compute) -> float:
    """Say which part of the time of a whole forward or backward a compute takes, beside another one or by itself."""
    parts = {"whole": 1.0, "input": 1.0 - spec.weight_share, "weight": spec.weight_share * compute.n_microbatches}
    return parts[compute.part]
