"""Record a DeepSpeed job: its steps by its engine, accumulation and pipeline included; each worker's place from its grid.

Enters: an engine. Leaves: a recorder. `deepspeed_hooks.py` says what is hooked.
"""

from pathlib import Path
from typing import Any

from diagnose.record.recorder import Recorder


def record(engine: Any, folder: str | Path, **options: Any) -> Recorder:
    """Record what a DeepSpeed engine does until the recorder is closed, on every rank; leaving its context does that.

    Call it after `deepspeed.initialize`, and after `load_checkpoint` where the job resumes.

    Parameters
    ----------
    engine : deepspeed.DeepSpeedEngine or deepspeed.PipelineEngine
    folder : path
        Where the files go; a folder that all ranks share.
    **options
        More arguments of `diagnose.record.Recorder`, such as `sample`.

    Returns
    -------
    recorder : Recorder
        Each step is one of the engine's, with all its microbatches.
    """
    recorder = Recorder(folder, **options)
    recorder.follow_optimizer(getattr(engine, "global_steps", None))
    return recorder
