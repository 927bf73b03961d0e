"""Record a job of Ray Train: each worker makes its own recorder.

Enters: a training loop. Leaves: one that is recorded. `ray_hooks.py` says what else is hooked.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diagnose.record.recorder import Recorder


def recorded(train_loop: Callable[..., Any], folder: str | Path, **options: Any) -> Callable[..., Any]:
    """Make a training loop that is recorded in each worker that runs it.

    Parameters
    ----------
    train_loop : function
        As for `TorchTrainer`, with or without a config.
    folder : path
        Where the files go: on storage that all workers share. A relative path is taken from where the trainer is made.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`.

    Returns
    -------
    recorded_loop : function
        For `TorchTrainer` instead of `train_loop`.
    """
    folder = Path(folder).resolve()  # workers run in folders of their own

    @functools.wraps(train_loop)
    def recorded_loop(*args: Any, **kwargs: Any) -> Any:
        with Recorder(folder, **options) as recorder:
            recorder.follow_optimizer()
            return train_loop(*args, **kwargs)

    return recorded_loop
