"""Pipeline schedules: in which order each stage launches forwards and backwards, and how much of them it holds at once.

Enters: sizes. Leaves: launch orders, which the replay builds graphs of and fixes read memory off.
"""

import numpy as np

from diagnose.model.trace import Ints

#: Every schedule that can be replayed, with what it is in words.
SCHEDULES: dict[str, str] = {
    "1f1b": "one forward, one backward",
    "interleaved": "one forward, one backward over several model chunks a stage",
    "gpipe": "all forwards, then all backwards",
    "zero-bubble": "1F1B with the weight gradients computed later, where the stage would wait (ZB-H1)",
    "zb-v": "zero bubble over two model chunks a stage, the second on the way back (ZB-V)",
    "dualpipev": "two model chunks a stage, the second on the way back, forwards and backwards of which run together (DualPipeV)",
}
#: Those that place the second model chunks in the opposite order, so that the first stage holds both ends of the model.
V_SHAPED = ("zb-v", "dualpipev")
#: Those that compute weight gradients apart.
SPLITTING = ("zero-bubble", *V_SHAPED)

#: Numbers of what a launch computes: a backward without weight gradients apart is all of it, else the input gradients.
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
    if schedule in V_SHAPED:
        least = 2 * n_stages if schedule == "dualpipev" else 1
        if chunks != 2:
            return f"{schedule} runs 2 model chunks a stage, not {chunks}"
        return (
            None if n_microbatches >= least else f"{schedule} needs {least} microbatches; the job has {n_microbatches}"
        )
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
    ndarray of int64, shape (n_launches, 4)
        What it computes by number, model chunk, microbatch, and 1 where it may run at the same time as the one before.

    Source: GPipe arXiv 1811.06965; 1F1B and interleaved arXiv 2104.04473, section 2.2; ZB-H1 and ZB-V arXiv 2401.10241,
    sections 3.1 and 6; DualPipeV: the steps of torch's ScheduleDualPipeV.

    >>> ["fbw"[p] + str(m) for p, _, m, _ in order_launches("1f1b", 0, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    >>> ["fbw"[p] + str(m) for p, _, m, _ in order_launches("zero-bubble", 1, n_stages=2, chunks=1, n_microbatches=3)]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    if schedule in V_SHAPED:
        return _order_v(schedule, stage, n_stages, n_microbatches)
    k = np.arange(chunks * n_microbatches)
    ahead = _count_warm_up(schedule, n_stages - 1 - stage, n_stages, chunks, n_microbatches)
    group, within = np.divmod(k, n_stages * chunks)
    turn, lane = np.divmod(within, n_stages)
    chunk, microbatch = (turn, group * n_stages + lane) if chunks > 1 else (np.zeros_like(k), k)
    parts = [(FORWARD, chunk, 3 * (k - ahead)), (BACKWARD, chunks - 1 - chunk, 3 * k + 1)]
    if schedule == "zero-bubble":
        # The later a stage, the earlier it must send input gradients back, and the longer its weight gradients wait.
        parts.append((WEIGHT, chunk, 3 * (k + stage) + 2))
    columns = [(np.full_like(k, part), at, microbatch, np.zeros_like(k)) for part, at, _ in parts]
    launches = np.concatenate([np.stack(of_part, axis=1) for of_part in columns])
    return np.asarray(launches[np.argsort(np.concatenate([turns for *_, turns in parts]))])


def list_v_phases(schedule: str, stage: int, n_stages: int, n_microbatches: int) -> list[tuple[int, str]]:
    """List the phases in which a stage runs a V-shaped schedule: so many times these computes.

    Each is a letter, F forward, B whole backward, I gradient of the input, W gradients of weights, and the model chunk that it is
    of, or else whichever waits longest. `F0|B1` may run at the same time. What a stage has no more of is left out.

    Source: ZB-V arXiv 2401.10241, section 6; DualPipeV: the steps of torch's ScheduleDualPipeV and of DeepSeek's DualPipe.
    """
    behind, before, n = n_stages - 1 - stage, stage, n_microbatches
    if schedule == "zb-v":
        return [
            (2 * behind + 1, "F0"),
            (before, "F1 F0"),
            (behind + 1, "F1 I1 W1"),
            (n - n_stages, "F0 I0 W0 F1 I1 W1"),
            (before, "I0 I1"),
            (behind + 1, "I0 W0"),
            (n, "W1"),
            (n, "W0"),
        ]
    return [
        (2 * behind, "F0"),
        (before + 1, "F0 F1"),
        (behind, "I1 W F1"),
        (1, "F0 B1 F1|B0" if behind == 0 else "F0|B1 F1|B0"),
        (n - 2 * n_stages + before, "F0|B1 F1|B0"),
        (behind, "B1 F1|B0"),
        ((before + 1) // 2, "B1 B0"),
        ((before + 1) % 2, "B1 I0"),
        ((before + 1) // 2, "I1 I0"),
        (behind, "W I0"),
        (2 * n, "W"),
    ]


def _order_v(schedule: str, stage: int, n_stages: int, n_microbatches: int) -> Ints:
    """Put the computes of a stage into the launch order of a V-shaped schedule, as `order_launches` gives it."""
    # With fewer microbatches ZB-V runs as with so many, what there is none of left out.
    n = max(n_microbatches, 2 * n_stages - 1) if schedule == "zb-v" else n_microbatches
    launched: list[tuple[int, int, int, int]] = []
    counted, pending = {(letter, chunk): 0 for letter in "FB" for chunk in (0, 1)}, list[tuple[int, int]]()
    for times, computes in list_v_phases(schedule, stage, n_stages, n):
        for together in computes.split() * times:
            beside = 0
            for name in together.split("|"):
                letter, chunk = name[0], int(name[1:] or -1)
                if letter == "W":
                    found = next((place for place in pending if chunk in (-1, place[0])), None)
                    if found is not None:
                        pending.remove(found)
                else:
                    way = "F" if letter == "F" else "B"
                    found = (chunk, counted[way, chunk]) if counted[way, chunk] < n else None
                    counted[way, chunk] += 1
                    if letter == "I" and found is not None:
                        pending.append(found)
                if found is not None and found[1] < n_microbatches:
                    launched.append(("FBW".index("B" if letter == "I" else letter), *found, beside))
                    beside = 1
    return np.array(launched, dtype=np.int64)


def positions_under(schedule: str, n_stages: int, chunks: int) -> Ints:
    """Say where in the model each model chunk stands under a schedule, by chunk x stages + stage.

    >>> positions_under("zb-v", 3, 2).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    found = np.arange(chunks * n_stages)
    return np.r_[found[:n_stages], found[n_stages:][::-1]] if schedule in V_SHAPED else found


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
    `order_launches` gives it; a backward without weight gradients of its own is whole.

    >>> count_in_flight(order_launches("1f1b", 0, n_stages=4, chunks=1, n_microbatches=8), 1)
    4.0
    """
    part, chunk, microbatch = order.T[:3]
    begun, ended = part == FORWARD, part == WEIGHT
    split = set(zip(chunk[ended].tolist(), microbatch[ended].tolist(), strict=True))
    whole = [place not in split for place in zip(chunk.tolist(), microbatch.tolist(), strict=True)]
    ended |= (part == BACKWARD) & whole
    return float((np.cumsum(begun) - np.cumsum(ended) + ended).max(initial=0) / chunks)
