"""What the callbacks for other people's training loops share.

Enters: a loop that is about to train. Leaves: a recorder that finds its steps by its optimizers.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnose.record.parallel_state import is_known
from diagnose.record.recorder import Recorder


def record_steps(
    folder: str | Path,
    options: dict[str, Any],
    mesh: Any,
    functions: Iterable[tuple[Any, str, str]],
    first_step: int,
) -> Recorder:
    """Begin to record a loop that somebody else wrote.

    Parameters
    ----------
    folder, options
        Arguments of `Recorder`.
    mesh : torch.distributed.DeviceMesh or None
        The one that the framework made, where it made one; the user's own comes first.
    functions : iterable of (owner, str, str)
        Functions of the framework that are no training, and which operation each is.
    first_step : int
        Number of the step that comes next.
    """
    if is_known(mesh):
        options = {"mesh": mesh} | options
    recorder = Recorder(folder, **options)
    for owner, name, optype in functions:
        recorder.mark(owner, name, optype)
    recorder.follow_optimizer(first_step)
    return recorder
