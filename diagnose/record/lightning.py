"""Record a job of Lightning: of its `Trainer`, or a loop that uses `Fabric`.

Enters: a trainer that fits, or a fabric. Leaves: the trace of the steps, validation, saves and logging.

    from diagnose.record.lightning import RecorderCallback

    trainer = Trainer(callbacks=[RecorderCallback("traces/job-7")])
"""

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the package by its older name
    from pytorch_lightning import Callback

from diagnose.record.callbacks import RecordsTraining, record_steps
from diagnose.record.recorder import Recorder


class RecorderCallback(RecordsTraining, Callback):  # type: ignore[misc]  # its types are not installed where types are checked
    """Records what a `Trainer` fits; made of a folder, and more arguments of `diagnose.record.Recorder`, such as `sample`."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record; the trainer has made its process group and has read the checkpoint that it resumes from."""
        self._begin(getattr(pl_module, "device_mesh", None), trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - as Lightning calls it
        """Write what is left."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002 - the same
        """Write what was recorded before the training failed."""
        self._end()


def record(fabric: Any, folder: str | Path, *, first_step: int = 0, **options: Any) -> Recorder:
    """Record the loop of a `Fabric` until the recorder is closed; leaving its context does that.

    Parameters
    ----------
    fabric : lightning.Fabric
        After its `launch`.
    folder : path
        Where the files go, one a rank.
    first_step : int
        Number of the first step, where the job resumes.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`.

    Returns
    -------
    Recorder
        A step ends where the optimizer ends.
    """
    return record_steps(folder, options, getattr(fabric.strategy, "_device_mesh", None), first_step)
