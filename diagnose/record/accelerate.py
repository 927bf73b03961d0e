"""Record a loop that uses Hugging Face Accelerate.

Enters: an `Accelerator`. Leaves: the trace of the loop's steps, saves and logging.

    from diagnose.record.accelerate import record

    with record(accelerator, "traces/job-7"):
        for batch in loader:
            with accelerator.accumulate(model):
                train(batch)
"""

from pathlib import Path
from typing import Any

from diagnose.record.callbacks import record_steps
from diagnose.record.recorder import Recorder


def record(accelerator: Any, folder: str | Path, *, first_step: int = 0, **options: Any) -> Recorder:
    """Record the loop of an `Accelerator` until the recorder is closed; leaving its context does that.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        The one that prepares the model.
    folder : path
        Where the files go, one a rank.
    first_step : int
        Number of the first step, where the job resumes.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`.

    Returns
    -------
    Recorder
        A step ends where the optimizer ends: batches within `accelerator.accumulate()` are its microbatches.
    """
    return record_steps(folder, options, getattr(accelerator, "torch_device_mesh", None), first_step)
