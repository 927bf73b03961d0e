"""Record a job of Megatron-LM, or of another trainer on Megatron-Core.

Enters: a folder, before the training begins. Leaves: a recorder. `megatron_hooks.py` says what is hooked.
"""

import importlib
from pathlib import Path
from typing import Any

from diagnose.record.megatron_hooks import MODULE
from diagnose.record.recorder import Recorder


def record(folder: str | Path, *, first_step: int = 0, **options: Any) -> Recorder:
    """Record the training that follows until the recorder is closed, on every rank; leaving its context does that.

    Parameters
    ----------
    folder : path
        Where the files go; a folder that all ranks share.
    first_step : int
        Number of the first step, where the job resumes.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`. Which worker this is need not be said:
        `parallel_state` knows.

    Returns
    -------
    recorder : Recorder
        Each step is a `train_step`, whatever it has imported before.
    """
    importlib.import_module(MODULE)  # where it is imported later, the first step would go unseen
    recorder = Recorder(folder, **options)
    recorder.follow_optimizer(first_step)
    return recorder
