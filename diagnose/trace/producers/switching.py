"""Put the iterations of a scheduler that switches into order of time: each of its modes counts its own from 1.

Enters: when each iteration of each mode began and ended, and the step times of the whole job where a training log has them. Leaves:
the number of each iteration within the job, and a warning where nothing says it.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Ints, Seconds

#: What a switch must explain of the step times, as a part of one: two modes that take equally long are not mixed at random.
SWITCH_COST = 0.02
#: Pairs of iterations of two modes that are compared at most.
MAX_PAIRS = 1_000_000
#: Iterations that begin within this part of their length of each other have times of their own.
OWN_TIMES_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of one mode, in their order: shape (n,) each."""

    begin_s: Seconds
    end_s: Seconds

    def __len__(self) -> int:
        return len(self.begin_s)


def order_iterations(modes: Sequence[Iterations], step_s: Seconds | None) -> tuple[list[Ints], str | None]:
    """Number the iterations of two modes from 1 through the job.

    `step_s` are the step times of the job, shape (n_steps,), where a training log has them. Gives the numbers of each mode, and a
    warning where nothing that was recorded says the order.
    """
    first, second = modes
    if _share_a_clock(modes):
        began = np.concatenate([first.begin_s, second.begin_s])
        number = np.argsort(np.argsort(began, kind="stable"), kind="stable") + 1
        return [number[: len(first)], number[len(first) :]], None
    if step_s is not None and len(step_s) == len(first) + len(second) and len(first) * len(second) <= MAX_PAIRS:
        return _match(first.end_s - first.begin_s, second.end_s - second.begin_s, step_s), None
    # The scheduler sets up both: it runs its first iteration in the second mode.
    at = np.arange(1, len(first) + 1) + min(1, len(second))
    rest = np.arange(len(first) + 2, len(first) + len(second) + 1)
    warning = (
        "no time and no training log says in which order the iterations of the two logs of a rank ran: taken as the first of the "
        "second log (_CPU), all of the other, then the rest"
    )
    return [at, np.concatenate([np.ones(min(1, len(second)), dtype=np.int64), rest])], warning


def _share_a_clock(modes: Sequence[Iterations]) -> bool:
    """Say whether the times of all iterations are of one clock, rather than of each iteration."""
    begin_s = np.concatenate([mode.begin_s for mode in modes])
    length_s = np.concatenate([mode.end_s - mode.begin_s for mode in modes])
    return bool(np.ptp(begin_s) > OWN_TIMES_SHARE * len(begin_s) * float(np.median(length_s)))


def _match(first_s: Seconds, second_s: Seconds, step_s: Seconds) -> list[Ints]:
    """Find the order in which the iterations took what the steps of the job took, with few switches.

    A step takes longer than its iteration, by the optimizer and what else comes after it: as much longer in all of them.
    """
    usual_s = float(np.median(step_s))
    after_s = np.median(np.sort(step_s) - np.sort(np.concatenate([first_s, second_s])))
    lasts = [mode / usual_s for mode in (first_s, second_s)]
    steps = (step_s - after_s) / usual_s
    n, m = len(first_s), len(second_s)
    # Least cost of the first i and j iterations of the modes when the last one was of mode k, and the mode before it.
    cost = np.full((n + 1, m + 1, 2), math.inf)
    before = np.zeros((n + 1, m + 1, 2), dtype=np.int8)
    cost[0, 0] = 0.0
    for i in range(n + 1):
        for j in range(m + 1):
            for k, (a, b) in enumerate(((i - 1, j), (i, j - 1))):
                if min(a, b) < 0:
                    continue
                paid = cost[a, b] + [SWITCH_COST * (k != 0 and i + j > 1), SWITCH_COST * (k != 1 and i + j > 1)]
                before[i, j, k] = paid.argmin()
                cost[i, j, k] = paid.min() + abs(steps[i + j - 1] - lasts[k][(i, j)[k] - 1])
    numbers: list[list[int]] = [[], []]
    i, j, k = n, m, int(cost[n, m].argmin())
    while i + j:
        numbers[k].append(i + j)
        i, j, k = i - (k == 0), j - (k == 1), int(before[i, j, k])
    return [np.array(mode[::-1], dtype=np.int64) for mode in numbers]
