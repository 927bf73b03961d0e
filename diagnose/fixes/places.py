"""Where a fix acts: from the labels of a report, or of a user, to indices of arrays.

Enters: places and settings. Leaves: masks of workers.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from diagnose.errors import UsageError, name_some
from diagnose.model.place import ALL_STAGES, Worker, name_whole
from diagnose.model.trace import Bools, Ints, Trace


def mask_workers(trace: Trace, workers: Iterable[tuple[int, int]]) -> Bools:
    """Mark workers given by labels (dp rank, stage): shape (n_dp, n_stages)."""
    mask = np.zeros((trace.n_dp, trace.n_stages), dtype=bool)
    for dp, stage in workers:
        mask[trace.dp_labels == dp, np.flatnonzero(trace.stage_labels == stage)] = True
    return mask


def labels_of(trace: Trace, mask: Bools) -> list[tuple[int, int]]:
    """List the workers of a mask by their labels."""
    return [(int(trace.dp_labels[dp]), int(trace.stage_labels[stage])) for dp, stage in np.argwhere(mask)]


def mask_hosts(trace: Trace, hosts: Iterable[str]) -> Bools:
    """Mark all workers of some hosts, those too that have only a member there."""
    wanted = set(hosts)
    if trace.members is not None and trace.members.hosts is not None:
        of_member = [host in wanted for host in trace.members.hosts]
        return np.asarray(np.array(of_member, dtype=bool).reshape(trace.n_dp, trace.n_stages, -1).any(axis=2))
    of_worker = [host in wanted for host in trace.hosts or ("",) * (trace.n_dp * trace.n_stages)]
    return np.array(of_worker, dtype=bool).reshape(trace.n_dp, trace.n_stages)


def name_workers(workers: Iterable[Worker | tuple[int, int]]) -> str:
    """Name workers in words, the first three of them, by label.

    >>> name_workers([(1, 3), (0, 3)])
    'dp 0 stage 3, dp 1 stage 3'
    """
    pairs = [(w.dp, w.pp) if isinstance(w, Worker) else w for w in workers]
    return name_some([f"dp {dp} stage {stage}" for dp, stage in (*sorted(pairs[:3]), *pairs[3:])], 3)


def count_workers(workers: Sequence[tuple[int, int]], trace: Trace) -> str:
    """Say how many workers, and which: all of a stage or of a dp rank by that."""
    shape = max(trace.job.dp_size, trace.n_dp), max(trace.job.pp_size, trace.n_stages)
    whole = name_whole(workers, shape)
    return (
        f"the {len(workers)} workers of {whole.removesuffix(ALL_STAGES)}"
        if whole
        else f"{len(workers)} workers: {name_workers(workers)}"
    )


def read_worker(settings: Mapping[str, str], trace: Trace, fix: str) -> list[tuple[int, int]]:
    """Read the settings `dp` and `pp`: the workers they name, all along a line where one is left out; none without both.

    Raises a `UsageError` where there is no such worker.
    """
    if "dp" not in settings and "pp" not in settings:
        return []
    dps = read_labels(settings, "dp", trace.dp_labels, fix)
    stages = read_labels(settings, "pp", trace.stage_labels, fix)
    return [(dp, stage) for dp in dps for stage in stages]


def read_labels(settings: Mapping[str, str], key: str, labels: Ints, fix: str) -> list[int]:
    """Read one label of a setting, or all where it is left out."""
    known = [int(label) for label in labels]
    if key not in settings:
        return known
    found = read_whole(settings, key, fix)
    if found not in known:
        raise UsageError(f"--fix {fix}: there is no {key} {found}; the trace has {known[0]} to {known[-1]}")
    return [found]


def read_whole(settings: Mapping[str, str], key: str, fix: str, *, least: int = 0) -> int:
    """Read a whole number from a setting; a `UsageError` where it is none, or too small."""
    text = settings[key]
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"--fix {fix}: {key} is {text!r}; expected a whole number from {least} on")
    return int(text)


def read_number(settings: Mapping[str, str], key: str, fix: str) -> float:
    """Read a positive number from a setting; a `UsageError` where it is none."""
    try:
        value = float(settings[key])
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise UsageError(f"--fix {fix}: {key} is {settings[key]!r}; expected a number above 0")
    return value
