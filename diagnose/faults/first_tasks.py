"""What workers begin a step with, and delays of it: by themselves, or all until the last is ready.

Enters: a programme and seconds by worker. Leaves: tasks, or pauses before them.
"""

import numpy as np

from diagnose.faults.inputs import Pause
from diagnose.faults.programme import Programme
from diagnose.model.optype import Op
from diagnose.model.trace import Ints, Seconds


def list_first_tasks(programme: Programme) -> tuple[Ints, Ints]:
    """List one task of each worker that can start at once when a step begins, and the others that can, too."""
    free = [s[0].tasks[0] for s in programme.streams if not s[0].after and not s[0].gates]
    stages, first = np.unique(programme.stage[free], return_index=True)
    told = np.array(free)[first]
    if len(stages) != len(np.unique(programme.stage)):
        raise RuntimeError("a worker has nothing that it could start with: a programme is wrong")
    return told, np.setdiff1d(free, told)


def delay_first_tasks(
    programme: Programme, kind: Op, busy_s: Seconds, *, recorded: bool, together: bool
) -> tuple[Pause, ...]:
    """Let workers be busy with something before they begin a step.

    Parameters
    ----------
    kind : Op
        Type of the evidence rows.
    busy_s : ndarray of float64, shape (n_stages, n_steps, n_dp)
        How long each worker is busy, seconds.
    together : bool
        All wait until the last is ready: a barrier that no row records. Rows then say what each was busy with, not the wait.

    Returns
    -------
    tuple of Pause
        Rows are of one task of each worker: the others begin as late.
    """
    told, untold = list_first_tasks(programme)
    begins_s = np.broadcast_to(busy_s.max(axis=(0, 2), keepdims=True), busy_s.shape) if together else busy_s
    pauses = []
    shape = (len(programme.tasks), *busy_s.shape[1:])
    for tasks, seconds, is_told in (
        (told, busy_s, recorded),
        (told, begins_s - busy_s, False),
        (untold, begins_s, False),
    ):
        if len(tasks) and seconds.any():
            by_task = np.zeros(shape)
            by_task[tasks] = seconds[programme.stage[tasks]]
            pauses.append(Pause(kind, by_task, "before", recorded=is_told))
    return tuple(pauses)
