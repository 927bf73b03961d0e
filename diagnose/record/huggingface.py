"""Record a job of the Hugging Face `Trainer`.

Enters: a trainer that trains. Leaves: the trace of its steps, evaluations, predictions, saves and logging.

    from diagnose.record.huggingface import RecorderCallback

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[RecorderCallback("traces/job-7")])
"""

from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from diagnose.record.callbacks import RecordsTraining


class RecorderCallback(RecordsTraining, TrainerCallback):  # type: ignore[misc]  # its types are not installed where types are checked
    """Records what a `Trainer` trains; made of a folder, and more arguments of `diagnose.record.Recorder`, such as `sample`."""

    def on_train_begin(self, _arguments: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Begin to record; the trainer has made its process group and wrapped its model."""
        self._begin(getattr(PartialState(), "device_mesh", None), state.global_step)

    def on_train_end(self, _arguments: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Write what is left."""
        self._end()
