"""The training logs that lie in the folder of a job beside its traces: of several nodes, or of one attempt after the other.

Enters: a path. Leaves: one `TrainingLog` of them, and what is said of those that are not used.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diagnose.errors import TraceError
from diagnose.trace.input_files import InputFiles, is_trace, list_input_files, name_in

if TYPE_CHECKING:
    from diagnose.model.training_log import TrainingLog

#: Files that are looked at: a folder has a log a node, and the first of them tell the pace of all.
FILES_ASKED = 64
#: Ends of names under which programs write their output.
_CONSOLE_NAMES = re.compile(
    r"\.(?:log|out|err|txt|stdout|stderr)(?:[.-]?\d+)?(?:\.gz)?$|^(?:stdout|stderr|slurm-\d+)\b", re.IGNORECASE
)
#: Step times that two nodes tell of the same iteration differ by less than this part.
SAME_SHARE = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class LogsBeside:
    """What the logs of one run tell, and why others are left out."""

    log: "TrainingLog"
    warnings: tuple[str, ...]


def may_be_console(file: Path) -> bool:
    """Say whether a file is called as the output of a program is."""
    return _CONSOLE_NAMES.search(file.name) is not None


def is_log_beside(file: Path) -> bool:
    """Say whether a file beside traces is a training log: by its name one of a program's output, by its content one with steps."""
    from diagnose.trace.producers import training_log
    from diagnose.trace.producers.catalogue import find_producer

    return may_be_console(file) and find_producer(InputFiles(file, (file,))) is training_log


def find_logs_beside(folder: Path, *, name: str) -> LogsBeside | None:
    """Find the training logs of a folder with traces; None where there are none."""
    try:
        inputs = list_input_files(folder, name=name)
    except (TraceError, OSError):
        return None
    candidates = [file for file in inputs.files if may_be_console(file) and not is_trace(file)][:FILES_ASKED]
    found = [file for file in candidates if is_log_beside(file)]
    return _put_in_order(inputs.path, found, name) if found else None


def _put_in_order(folder: Path, files: Sequence[Path], name: str) -> LogsBeside | None:
    """Put the logs of one run in order of time, without those that say again what another says."""
    from diagnose.trace.logs.load import load_log

    logs: list[tuple[Path, TrainingLog]] = []
    warnings = []
    for file in files:
        try:
            log = load_log(InputFiles(file, (file,)), name=name_in(folder, file, name))
        except TraceError as error:
            warnings.append(f"a training log of the folder is not used: {error}")
            continue
        logs.append((file, log))
    logs.sort(key=lambda pair: -len(pair[1].iteration))  # the one that tells most first
    kept: list[tuple[Path, TrainingLog]] = []
    for file, log in logs:
        if any(_says_the_same(other, log) for _, other in kept):
            continue  # another node of the same run
        if kept and log.format != kept[0][1].format:
            warnings.append(
                f"{name_in(folder, file, name)} is not used: a log of {log.format} beside those of {kept[0][1].format}"
            )
            continue
        kept.append((file, log))
    if not kept:
        return None
    if len(kept) == 1:
        return LogsBeside(kept[0][1], tuple(warnings))
    kept.sort(key=lambda pair: (_begins(pair[1]), pair[0]))
    ordered = tuple(file for file, _ in kept)
    listed = ", ".join(file.relative_to(folder).as_posix() for file in ordered)
    return LogsBeside(load_log(InputFiles(folder, ordered), name=f"{name}/{{{listed}}}"), tuple(warnings))


def _says_the_same(log: "TrainingLog", other: "TrainingLog") -> bool:
    """Say whether two logs tell the same times of the same iterations, as two nodes of a run do."""
    common, at, of = np.intersect1d(log.iteration, other.iteration, return_indices=True)
    if 2 * len(common) < len(np.unique(other.iteration)):
        return False
    ratio = np.abs(np.log(log.step_s[at] / other.step_s[of]))
    begin, end = (
        (np.nanmin(other.stamp_s), np.nanmax(other.stamp_s)) if np.isfinite(other.stamp_s).any() else (0.0, 0.0)
    )
    is_told = np.isfinite(log.stamp_s).any() and end > 0
    apart = is_told and (begin > np.nanmax(log.stamp_s) or end < np.nanmin(log.stamp_s))
    return bool(np.median(ratio) < SAME_SHARE and not apart)


def _begins(log: "TrainingLog") -> float:
    """Say when a log begins; logs without stamps come last, by their names."""
    stamps = log.stamp_s[np.isfinite(log.stamp_s)]
    return float(stamps.min()) if len(stamps) else math.inf
