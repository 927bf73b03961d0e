"""The folder of one start of a job: a job that is started again replaces nothing of what it recorded before.

Enters: the folder of the job. Leaves: `start-<time>` in it, the same on all ranks, without a rank waiting for another.
"""

import datetime as dt
import itertools
import os
from pathlib import Path

#: What launchers say of a start, for ranks that are in no process group: its job, and how often it was restarted.
_SAID = (("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"), ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"))
_recorders = itertools.count()


def find_start(folder: Path, *, n_ranks: int) -> Path:
    """Make the folder of this start of the job.

    Parameters
    ----------
    folder : Path
        Of the job.
    n_ranks : int
        How many ranks the job has, also where they are in no process group.
    """
    name = f"start-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
    if n_ranks > 1:
        start = folder / _agree(name)
        start.mkdir(parents=True, exist_ok=True)
        return start
    for number in itertools.count(2):
        start = folder / name
        try:
            start.mkdir(parents=True)
        except FileExistsError:  # another process of one, in the same second
            name = f"{name.rpartition('Z')[0]}Z-{number}"
        else:
            return start
    raise AssertionError


def _agree(name: str) -> str:
    """Take the name of the rank that came first; where the ranks have no store, what the launcher says; else none."""
    import torch.distributed as dist

    number = next(_recorders)  # ranks make their recorders in one order
    try:
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - the one that the ranks met at
        return bytes(store.compare_set(f"diagnose/start/{number}", "", name)).decode()
    except Exception:  # noqa: BLE001 - no process group, or one that has no store
        said = next((pair for pair in _SAID if os.environ.get(pair[0])), None)
        return "" if said is None else "-".join(["start", *(os.environ.get(key, "0") for key in said)])
