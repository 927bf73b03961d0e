"""Diagnose a job at its own end, on rank 0: a page in the job's log, files in the folder, and a line for experiment trackers.

Enters: the folder of a job whose ranks are about to end. Leaves: `diagnosis.html` and `diagnosis.json` in it. The diagnosis runs
in a process of its own: what it needs of memory, threads and time is not the job's.
"""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from diagnose.record.trackers import Trackers
from diagnose.record.write import count_ranks, is_finished

LOGGER = logging.getLogger("diagnose.record")

#: The other ranks end within seconds of this one. They are waited for so long, and less where nothing of them comes.
WAIT_S = 60.0
SILENCE_S = 15.0
LOOK_EVERY_S = 0.5
#: A diagnosis takes seconds; it is given up where it would hold up the job's end.
DIAGNOSIS_S = 300.0
#: Standard error of the process: the job's log, whatever Python has put in the place of `sys.stderr`.
_LOG = 2


def report_job(folder: Path, files: Path, n_ranks: int, trackers: Trackers) -> None:
    """Diagnose a job whose ranks are ending.

    Parameters
    ----------
    folder : Path
        Of the job.
    files : Path
        Folder in which each rank leaves its file.
    n_ranks : int
        How many there are.
    trackers : Trackers
        Where the job logs to.
    """
    n_missing = n_ranks - wait_for_ranks(files, n_ranks)
    if n_missing:
        LOGGER.warning("diagnose reports without %d of %d ranks: their files are not in %s", n_missing, n_ranks, files)
    page, found = folder / "diagnosis.html", folder / "diagnosis.json"
    command = [
        sys.executable,
        "-m",
        "diagnose",
        str(folder),
        "--quiet",
        "--no-color",
        "--html",
        str(page),
        "--json",
        str(found),
    ]
    package = Path(__file__).parents[2]
    told = {name: value for name, value in os.environ.items() if name != "DIAGNOSE_RECORD"}
    told["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), told.get("PYTHONPATH"))))
    told["PYTHONSAFEPATH"] = "1"  # what lies in the job's working folder is none of our modules
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=_LOG, timeout=DIAGNOSIS_S, check=False, env=told)  # noqa: S603
    if done.returncode == 0:
        trackers.tell(json.loads(found.read_bytes()), page)


def wait_for_others(file: Path) -> None:
    """Wait for the ranks of other nodes, given the file of a rank of this one, whose ranks have all ended."""
    n_ranks = count_ranks(file)
    if len(list(file.parent.glob("rank-*.parquet"))) < n_ranks:
        wait_for_ranks(file.parent, n_ranks)


def wait_for_ranks(files: Path, n_ranks: int) -> int:
    """Wait until every rank has written its last file, and no longer than ranks go on ending; give how many have."""
    began = changed = time.monotonic()
    finished: set[str] = set()
    while True:
        names = {f"rank-{rank:05}.parquet" for rank in range(n_ranks)} - finished
        ended = {name for name in names if is_finished(files / name)}
        now = time.monotonic()
        if ended:
            finished |= ended
            changed = now
        if len(finished) == n_ranks or now - began > WAIT_S or now - changed > SILENCE_S:
            return len(finished)
        time.sleep(LOOK_EVERY_S)
