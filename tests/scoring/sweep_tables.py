"""What a sweep found, as tables.

Enters: `SweptJob`s. Leaves: titles and cells, and words about the jobs that were judged wrong.
"""

from collections.abc import Sequence

import numpy as np

from tests.scoring.judged import UNKNOWN, Found, JudgedJob, SaidCause
from tests.scoring.score_tables import NONE, ratio
from tests.scoring.swept import Point, SweptJob

#: What is said of another cause from here on is said surely.
SURE = 0.8


def table_of_faults(jobs: Sequence[SweptJob]) -> tuple[str, list[list[str]]]:
    """Show, for each kind and strength, what was said."""
    head = [
        "kind",
        "lost",
        "jobs",
        "reached",
        "found",
        "alone",
        "place",
        "all of it",
        "unknown",
        "other",
        f"at {SURE:g}",
    ]
    cells = [[*head, "confidence", "gain off"]]
    for point, part in _by_point(jobs).items():
        if point.is_decoy:
            continue
        judged = [job.judged for job in part]
        found = [(row, item) for row in judged for item in _found(row)]
        placed = [item for _, item in found if item.asks_for_worker or item.true.stages]
        others = [_list_others(row) for row in judged]
        alone = sum(bool(_found(row)) and len(row.said) == 1 for row in judged)
        errors = [abs(item.said.recoverable - item.true.recoverable) for _, item in found]
        cells.append(
            [
                point.name,
                f"{point.strength:g}",
                f"{len(judged)}" + (f" ({n} failed)" if (n := sum(bool(row.error) for row in judged)) else ""),
                ratio(float(np.mean([job.reached for job in part]))),
                str(len(found)),
                str(alone),
                f"{sum(is_right_place(item) for item in placed)} of {len(placed)}" if placed else NONE,
                f"{sum(is_whole_place(item) for item in placed)} of {len(placed)}" if placed else NONE,
                str(sum(any(said.cause == UNKNOWN for said in row.said) for row in judged)),
                str(sum(bool(said) for said in others)),
                str(sum(any(one.confidence >= SURE for one in said) for said in others)),
                ratio(float(np.mean([item.said.confidence for _, item in found])) if found else None, 2),
                ratio(float(np.mean(errors)) if errors else None, 4),
            ]
        )
    return (
        "Faults: jobs in which the cause was found, alone, in its place; another cause was said, and said surely",
        cells,
    )


def table_of_decoys(jobs: Sequence[SweptJob]) -> tuple[str, list[list[str]]]:
    """Show, for each decoy and strength, what was said of healthy jobs."""
    cells = [
        [
            "decoy",
            "strength",
            "jobs",
            "healthy",
            "unknown",
            "a cause",
            f"at {SURE:g}",
            "causes, with the highest confidence",
        ]
    ]
    for point, part in _by_point(jobs).items():
        if not point.is_decoy:
            continue
        judged = [job.judged for job in part]
        top: dict[str, float] = {}
        for said in (said for row in judged for said in row.named()):
            top[said.cause] = max(said.confidence, top.get(said.cause, 0.0))
        cells.append(
            [
                point.name,
                f"{point.strength:g}",
                f"{len(judged)}" + (f" ({n} failed)" if (n := sum(bool(row.error) for row in judged)) else ""),
                str(sum(not row.said and not row.error for row in judged)),
                str(sum(any(said.cause == UNKNOWN for said in row.said) for row in judged)),
                str(sum(bool(row.named()) for row in judged)),
                str(sum(any(said.confidence >= SURE for said in row.named()) for row in judged)),
                ", ".join(f"{cause} {sure:.2f}" for cause, sure in sorted(top.items(), key=lambda pair: -pair[1]))
                or NONE,
            ]
        )
    return "Healthy jobs with something that is no fault: jobs in which anything was said, and said surely", cells


def _by_point(jobs: Sequence[SweptJob]) -> dict[Point, list[SweptJob]]:
    parts: dict[Point, list[SweptJob]] = {}
    for job in jobs:
        parts.setdefault(job.point, []).append(job)
    return parts


def _found(row: JudgedJob) -> list[Found]:
    """List the true causes that were said, however small they are."""
    said = {one.cause: one for one in row.said}
    return [Found(row, true, said[true.cause]) for true in row.truth if true.cause in said]


def _list_others(row: JudgedJob) -> list[SaidCause]:
    """List the causes that were said and are not there, nor what else they may be, as was said."""
    there = {true.cause for true in row.truth}
    return [said for said in row.named() if said.cause not in there and there.isdisjoint(said.alternatives)]


def is_right_place(item: Found) -> bool:
    """Say whether the place named first is one that has the fault."""
    return item.right_worker if item.asks_for_worker else item.right_stage


def is_whole_place(item: Found) -> bool:
    """Say whether the workers, or stages, that are named are those that have the fault, all of them and no others."""
    if not item.asks_for_worker:
        named = item.said.stages or {stage for _, stage in item.said.workers}
        return set(named) == set(item.true.stages)
    ends = {worker for link in item.said.links for worker in link}
    return set(item.said.workers or ends) == set(item.true.workers)


def list_worst(jobs: Sequence[SweptJob], n: int) -> list[str]:
    """Write the jobs of each point in which the cause was not found, or another one was said, up to `n` of each."""
    lines: list[str] = []
    for point, part in _by_point(jobs).items():
        wrong = [job for job in part if job.judged.error or not _is_right(job.judged)]
        for job in wrong[:n]:
            row = job.judged
            said = ", ".join(f"{one.cause} {one.recoverable:.3f} @{one.confidence:.2f}" for one in row.ranked())
            place, world = f"dp {row.dp} pp {row.pp}, {len(row.steps)} steps", ", ".join(row.world)
            lines.append(
                f"{point.name} {point.strength:g} job {job.index} ({place}): said {row.error or said or 'nothing'}; {world}"
            )
    return lines


def _is_right(row: JudgedJob) -> bool:
    """Say whether every true cause was said and no other."""
    return {said.cause for said in row.named()} == {true.cause for true in row.truth}
