"""What the callbacks for other people's training loops share.

Enters: a loop that is about to train. Leaves: a recorder that finds its steps by its optimizers. `frameworks.py` marks what else
the loop does.
"""

from pathlib import Path
from typing import Any

from diagnose.record.parallel_state import is_known
from diagnose.record.recorder import Recorder


def record_steps(folder: str | Path, options: dict[str, Any], mesh: Any, first_step: int) -> Recorder:
    """Begin to record a loop that somebody else wrote.

    Parameters
    ----------
    folder, options
        Arguments of `Recorder`.
    mesh : torch.distributed.DeviceMesh or None
        The one that the framework made, where it made one; the user's own comes first.
    first_step : int
        Number of the step that comes next.
    """
    if is_known(mesh):
        options = {"mesh": mesh} | options
    recorder = Recorder(folder, **options)
    recorder.follow_optimizer(first_step)
    return recorder


class RecordsTraining:
    """What a callback of any framework is that records one training after the other.

    Parameters
    ----------
    folder : path
        Where the files go, one a rank.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self.folder = folder
        self.options = options
        #: None while nothing is trained.
        self.recorder: Recorder | None = None

    def _begin(self, mesh: Any, first_step: int) -> None:
        """Begin to record, as `record_steps` does."""
        self._end()  # a training that failed told nobody
        self.recorder = record_steps(self.folder, self.options, mesh, first_step)

    def _end(self) -> None:
        """Write what is left."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
