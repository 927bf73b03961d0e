"""Tell the traces of different jobs, or of different runs of one, apart.

Enters: what was read of each file. Leaves: nothing, or a `TraceError` that says which files belong together, and why others do not.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.errors import TraceError, name_some
from diagnose.trace.producers.kineto.rank import Rank

#: Ranks work on a step at the same time. Clocks of hosts differ by less: Kerberos refuses those that are five minutes apart.
MAX_APART_US = 300e6
#: Times beyond are microseconds since 1970 (2001 and later), others count from something else.
UNIX_US = 1e15
#: Files of one job that an error names.
MAX_NAMED = 3


def refuse_other_jobs(parts: Sequence[Rank]) -> None:
    """Refuse traces that cannot be of one job.

    Raises
    ------
    TraceError
        It names the files of each job.
    """
    jobs: list[list[int]] = []
    wrong, reason = -1, ""
    for n, part in enumerate(parts):
        why = ""
        for job in jobs:
            why = next((why for m in job if (why := _differ(parts[m], part))), "")
            if not why:
                job.append(n)
                break
        else:
            jobs.append([n])
            if why and not reason:
                wrong, reason = n, why
    if len(jobs) > 1:
        shown = "; ".join(list_names([parts[n].where for n in job]) for job in jobs[:MAX_NAMED])
        more = "" if len(jobs) <= MAX_NAMED else f"; and {len(jobs) - MAX_NAMED} more"
        raise TraceError(
            f"{reason}; expected the traces of one job, and these seem to be of {len(jobs)}: {shown}{more}: name one file, or "
            "put the files of each job into a folder of its own",
            where=parts[wrong].where,
        )


def _differ(before: Rank, part: Rank) -> str:
    """Say why two traces are not of one run of one job; empty where they may be."""
    if None not in (before.world, part.world) and before.world != part.world:
        return f"is of a job of {part.world} ranks, and {before.where} of one of {before.world}"
    named = part.steps_by == before.steps_by == "profiler"
    both = sorted(set(before.steps).intersection(part.steps))
    if part.rank is None and part.world is None and before.world:
        return f"says its rank neither inside nor by name, and {before.where} is of a job of {before.world} ranks"
    if before.rank is None and before.world is None and part.world:
        return f"is of a job of {part.world} ranks, and {before.where} says its rank neither inside nor by name"
    if (before.rank == part.rank) if part.rank is not None else (before.worker == part.worker):
        if both or not named:
            shared = f"step {both[0]}" if both else "no step by its number"
            of = "the same process" if part.rank is None else f"rank {part.rank}"
            return f"is of {of}, as {before.where} is, and both have {shared}"
        return ""
    if part.alone and before.alone:
        return f"exchanges nothing with any other rank, and no more does {before.where}"
    if both:
        apart_us = abs(_began_us(part, both[0]) - _began_us(before, both[0]))
        if apart_us > MAX_APART_US:
            return f"has step {both[0]} {apart_us / 60e6:.0f} minutes apart from {before.where}"
    return ""


def _began_us(part: Rank, step: int) -> float:
    """Say when a rank began a step, microseconds since 1970; NaN where its clock does not say."""
    starts = part.operations.start[part.operations.step == step]
    began = float(starts.min()) + (part.base_ns or 0) / 1e3 if len(starts) else np.nan
    return began if began > UNIX_US else np.nan


def list_names(names: Sequence[str]) -> str:
    """Name some files."""
    return name_some([name.rpartition("/")[2] for name in names], MAX_NAMED)
