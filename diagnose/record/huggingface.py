"""Record a job of the Hugging Face `Trainer`.

Enters: a trainer that trains. Leaves: the trace of its steps, evaluations, predictions, saves and logging.

    from diagnose.record.huggingface import RecorderCallback

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[RecorderCallback("traces/job-7")])
"""

from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import Trainer, TrainerCallback

from diagnose.record.callbacks import record_steps
from diagnose.record.recorder import Recorder

#: What each function of the trainer is. Its events tell where these end, not where they begin.
OPERATIONS = {
    "evaluate": "eval",
    "predict": "eval",
    "_save_checkpoint": "checkpoint",
    "save_model": "checkpoint",
    "log": "log",
}


class RecorderCallback(TrainerCallback):  # type: ignore[misc]  # transformers may be absent where types are checked
    """Records a `Trainer` from the beginning of its training to the end.

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

    def on_train_begin(self, _arguments: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Begin to record; the trainer has made its process group and wrapped its model."""
        mesh = getattr(PartialState(), "device_mesh", None)
        functions = [(Trainer, name, optype) for name, optype in OPERATIONS.items()]
        self.recorder = record_steps(self.folder, self.options, mesh, functions, state.global_step)

    def on_train_end(self, _arguments: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Write what is left."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
