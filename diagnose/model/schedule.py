"""Pipeline schedules: in which order each stage launches forwards and backwards, and how much of them it holds at once.

Enters: sizes. Leaves: launch orders, which the replay builds graphs of and fixes read memory off.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

#: Every schedule that can be replayed, with what it is in words.
SCHEDULES: dict[str, str] = {
    "1f1b": "one forward, one backward",
    "interleaved": "one forward, one backward over several model chunks a stage",
    "gpipe": "all forwards, then all backwards",
    "zero-bubble": "1F1B with the weight gradients computed later, where the stage would wait (ZB-H1)",
}

#: What a launch computes: `backward` without `weight` is all of it, with it the input gradients.
Part = Literal["forward", "backward", "weight"]


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """One compute of a stage: its part, its model chunk, and its microbatch by number."""

    part: Part
    chunk: int
    microbatch: int


def refuse_schedule(schedule: str, *, n_stages: int, chunks: int, n_microbatches: int) -> str | None:
    """Say why a job of these sizes cannot run a schedule; None: it can.

    >>> refuse_schedule("interleaved", n_stages=4, chunks=2, n_microbatches=6)
    'interleaving needs a multiple of 4 microbatches; the job has 6'
    """
    if schedule not in SCHEDULES:
        return f"there is no schedule {schedule!r}; expected one of {', '.join(SCHEDULES)}"
    if n_stages < 2:
        return "the job has one pipeline stage: there is nothing to schedule"
    if schedule != "interleaved":
        return None if chunks == 1 else f"{schedule} runs one model chunk a stage, not {chunks}"
    if chunks < 2:
        return "interleaving needs at least 2 model chunks a stage"
    if n_microbatches % n_stages:
        return f"interleaving needs a multiple of {n_stages} microbatches; the job has {n_microbatches}"
    return None


def order_launches(schedule: str, stage: int, *, n_stages: int, chunks: int, n_microbatches: int) -> list[Launch]:
    """Put the computes of a stage into launch order.

    Parameters
    ----------
    schedule : str
        One of `SCHEDULES`, that these sizes can run.

    Source: GPipe arXiv 1811.06965; 1F1B and interleaved arXiv 2104.04473, section 2.2; ZB-H1 arXiv 2401.10241, section 3.1.

    >>> [f"{l.part[0]}{l.microbatch}" for l in order_launches("1f1b", 0, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    >>> [f"{l.part[0]}{l.microbatch}" for l in order_launches("zero-bubble", 1, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    total = chunks * n_microbatches
    forwards = [_place("forward", k, n_stages, chunks) for k in range(total)]
    backwards = [_place("backward", k, n_stages, chunks) for k in range(total)]
    ahead = _count_warm_up(schedule, n_stages - 1 - stage, n_stages, chunks, n_microbatches)
    order = forwards[:ahead]
    for k, backward in enumerate(backwards):
        order += forwards[ahead + k : ahead + k + 1]
        order.append(backward)
        # The later a stage, the earlier it must send input gradients back, and the longer its weight gradients wait.
        if schedule == "zero-bubble" and k >= stage:
            order.append(Launch("weight", 0, k - stage))
    if schedule == "zero-bubble":
        order += [Launch("weight", 0, k) for k in range(max(total - stage, 0), total)]
    return order


def _count_warm_up(schedule: str, stages_behind: int, n_stages: int, chunks: int, n_microbatches: int) -> int:
    """Count the forwards before the first forward that a backward follows at once."""
    total = chunks * n_microbatches
    if schedule == "gpipe" or (schedule == "interleaved" and n_microbatches == n_stages):
        return total
    if schedule == "interleaved":
        return min(2 * stages_behind + (chunks - 1) * n_stages, total)
    return min(stages_behind, total)


def _place(part: Part, number: int, n_stages: int, chunks: int) -> Launch:
    """Say which model chunk and microbatch the compute of that number works on."""
    if chunks == 1:
        return Launch(part, 0, number)
    group, within = divmod(number, n_stages * chunks)
    turn, lane = divmod(within, n_stages)
    return Launch(part, turn if part == "forward" else chunks - 1 - turn, group * n_stages + lane)


def count_in_flight(order: Sequence[Launch], chunks: int) -> float:
    """Say how many microbatches' activations a stage holds at most, in units of all that its chunks keep of one.

    A microbatch is held from its forward to the end of its backward, weight gradients included.

    >>> count_in_flight(order_launches("1f1b", 0, n_stages=4, chunks=1, n_microbatches=8), 1)
    4.0
    """
    last = "weight" if any(launch.part == "weight" for launch in order) else "backward"
    held = most = 0
    for launch in order:
        held += launch.part == "forward"
        most = max(most, held)
        held -= launch.part == last
    return most / chunks
