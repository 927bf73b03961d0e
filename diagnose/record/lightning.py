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

from diagnose.record.callbacks import record_steps
from diagnose.record.recorder import Recorder

#: What each function of a `Fabric`, of a logger, and of a trainer is, beside training.
OF_FABRIC = {"save": "checkpoint", "log_dict": "log"}
OF_LOGGER = {"log_metrics": "log", "save": "log"}
OF_TRAINER = {"save_checkpoint": "checkpoint"}


class RecorderCallback(Callback):  # type: ignore[misc]  # lightning may be absent where types are checked
    """Records a `Trainer` while it fits.

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

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record; the trainer has made its process group and has read the checkpoint that it resumes from."""
        functions = [(trainer, name, optype) for name, optype in OF_TRAINER.items()]
        functions += [(logger, name, optype) for logger in trainer.loggers for name, optype in OF_LOGGER.items()]
        # Loaders and their workers are made before the first event of a validation, so its events are too late.
        validation = getattr(getattr(trainer.fit_loop, "epoch_loop", None), "val_loop", None)
        functions.append((validation, "run", "eval"))
        mesh = getattr(pl_module, "device_mesh", None)
        self.recorder = record_steps(self.folder, self.options, mesh, functions, trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - as Lightning calls it
        """Write what is left."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002 - the same
        """Write what was recorded before the training failed."""
        self._close()

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None


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
    functions = [(fabric, name, optype) for name, optype in OF_FABRIC.items()]
    mesh = getattr(fabric.strategy, "_device_mesh", None)
    return record_steps(folder, options, mesh, functions, first_step)
