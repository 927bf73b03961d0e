"""Pipeline schedules: in which order each stage launches forwards and backwards, and how much of them it holds at once.

Enters: sizes. Leaves: launch orders, which the replay builds graphs of and fixes read memory off.
"""

from typing import Literal

import numpy as np

from diagnose.model.trace import Ints

#: Every schedule that can be replayed, with what it is in words.
SCHEDULES: dict[str, str] = {
    "1f1b": "one forward, one backward",
    "interleaved": "one forward, one backward over several model chunks a stage",
    "gpipe": "all forwards, then all backwards",
    "zero-bubble": "1F1B with the weight gradients computed later, where the stage would wait (ZB-H1)",
}

#: What a launch computes: `backward` without `weight` is all of it, with it the input gradients.
Part = Literal["forward", "backward", "weight"]
#: Numbers of parts.
FORWARD, BACKWARD, WEIGHT = range(3)


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


def order_launches(schedule: str, stage: int, *, n_stages: int, chunks: int, n_microbatches: int) -> Ints:
    """Put the computes of a stage into launch order.

    Parameters
    ----------
    schedule : str
        One of `SCHEDULES`, that these sizes can run.

    Returns
    -------
    ndarray of int64, shape (n_launches, 3)
        Part by number (as in `Part`), model chunk, microbatch.

    Source: GPipe arXiv 1811.06965; 1F1B and interleaved arXiv 2104.04473, section 2.2; ZB-H1 arXiv 2401.10241, section 3.1.

    >>> ["fbw"[p] + str(m) for p, _, m in order_launches("1f1b", 0, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    >>> ["fbw"[p] + str(m) for p, _, m in order_launches("zero-bubble", 1, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    k = np.arange(chunks * n_microbatches)
    ahead = _count_warm_up(schedule, n_stages - 1 - stage, n_stages, chunks, n_microbatches)
    group, within = np.divmod(k, n_stages * chunks)
    turn, lane = np.divmod(within, n_stages)
    chunk, microbatch = (turn, group * n_stages + lane) if chunks > 1 else (np.zeros_like(k), k)
    parts = [(FORWARD, chunk, 3 * (k - ahead)), (BACKWARD, chunks - 1 - chunk, 3 * k + 1)]
    if schedule == "zero-bubble":
        # The later a stage, the earlier it must send input gradients back, and the longer its weight gradients wait.
        parts.append((WEIGHT, chunk, 3 * (k + stage) + 2))
    launches = np.concatenate([np.stack([np.full_like(k, part), at, microbatch], axis=1) for part, at, _ in parts])
    return np.asarray(launches[np.argsort(np.concatenate([turns for *_, turns in parts]))])


def _count_warm_up(schedule: str, stages_behind: int, n_stages: int, chunks: int, n_microbatches: int) -> int:
    """Count the forwards before the first forward that a backward follows at once."""
    total = chunks * n_microbatches
    if schedule == "gpipe" or (schedule == "interleaved" and n_microbatches == n_stages):
        return total
    if schedule == "interleaved":
        return min(2 * stages_behind + (chunks - 1) * n_stages, total)
    return min(stages_behind, total)


def count_in_flight(order: Ints, chunks: int) -> float:
    """Say how many microbatches' activations a stage holds at most, in units of all that its chunks keep of one.

    A microbatch is held from its forward to the end of its backward, weight gradients included. `order` is as
    `order_launches` gives it.

    >>> count_in_flight(order_launches("1f1b", 0, n_stages=4, chunks=1, n_microbatches=8), 1)
    4.0
    """
    part = order[:, 0]
    begun, ended = part == FORWARD, part == part.max(initial=BACKWARD)
    return float((np.cumsum(begun) - np.cumsum(ended) + ended).max(initial=0) / chunks)
