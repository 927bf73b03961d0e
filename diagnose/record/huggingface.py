"""Record a job of the Hugging Face `Trainer`.

Enters: a trainer that trains. Leaves: the trace of its steps, evaluations, predictions, saves and logging.

    from diagnose.record.huggingface import RecorderCallback

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[RecorderCallback("traces/job-7")])
"""

from typing import Any

from accelerate import PartialState
from transformers import Trainer, TrainerCallback

from diagnose.record.callbacks import RecordsTraining

#: What each function of the trainer is. Its events tell where these end, not where they begin.
OPERATIONS = {
    "evaluate": "eval",
    "predict": "eval",
    "_save_checkpoint": "checkpoint",
    "save_model": "checkpoint",
    "log": "log",
}


class RecorderCallback(RecordsTraining, TrainerCallback):  # type: ignore[misc]  # its types are not installed where types are checked
    """Records what a `Trainer` trains; made of a folder, and more arguments of `diagnose.record.Recorder`, such as `sample`."""

    def on_train_begin(self, _arguments: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Begin to record; the trainer has made its process group and wrapped its model."""
        functions = [(Trainer, name, optype) for name, optype in OPERATIONS.items()]
        self._begin(getattr(PartialState(), "device_mesh", None), functions, state.global_step)

    def on_train_end(self, _arguments: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Write what is left."""
        self._end()
