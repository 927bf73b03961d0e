"""Put the workers of a recording on one clock where each rank, or each host, has its own.

Enters: a `Recording` with times as each clock read them. Leaves: the same recording on one clock, with a `ClockOffset` for each
clock that was moved. Costs a few sorts of the rows. Smaller offsets that are left are found later, by `diagnose.whatif.clocks`.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from diagnose.model.recording import ClockOffset, Recording
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.clock_links import ClockLink, LinkFinder, or_zero
from diagnose.trace.labels import number_combinations

#: Who shares a clock in a file: the ranks of a host, or nobody.
Clock = Literal["host", "rank"]
#: Clocks named in a warning.
MAX_NAMED = 5


def align(recording: Recording, clock: Clock, *, per_step: bool = False) -> Recording:
    """Put all workers on one clock.

    Parameters
    ----------
    recording : Recording
        Times as recorded.
    clock : {"host", "rank"}
        Who shares a clock: the rows of a host, which the recording names, or those of each (dp, stage, tp rank, cp rank).
    per_step : bool
        True where clocks start anew in each step (times since the step began): each step then has offsets of its own, and begins
        at 0. Else one offset holds for all steps.

    Returns
    -------
    Recording
        With `offsets`. Groups of clocks that nothing ties to each other are made to begin their steps together; a worker that
        has no step with any other stays as it is, with a warning.

    Notes
    -----
    Three things are asked, and of each pair of clocks the surest answer counts: operations that end together say the offset
    itself (both ends of a transfer; all members of a collective, or of a tensor-parallel group). The schedule bounds it: a
    forward of stage s+1 that begins at b cannot have begun before that of stage s ended, at e, so that its clock is ahead by at
    most b - e; backwards bound it from below. Clocks that agree as far as the bounds tell stay as they are. Others are taken to
    be in the middle between the tightest bounds, as in the network time protocol: a transfer takes about as long in both
    directions. The median clock stays where it is.
    """
    if not len(recording):
        return recording
    of_row, names = _name_clocks(recording, clock)
    if len(names) < 2:
        return recording
    group = np.zeros(len(recording), dtype=np.int64)
    if per_step:
        group = np.unique(recording.step, return_inverse=True)[1]
    finder = LinkFinder(recording, of_row, group)
    links = finder.find(per_step=per_step)
    ahead_s, spread_s, how, island = _tie(links, len(names), finder.n_groups)
    _tie_islands(finder, island, ahead_s, spread_s, how)
    offsets = tuple(
        ClockOffset(names[n], float(np.median(ahead_s[n][ahead_s[n] != 0.0])), float(spread_s[n]), how[n])
        for n in np.flatnonzero(ahead_s.any(axis=1)).tolist()
    )
    warnings = recording.warnings
    lost = [names[n] for n, text in enumerate(how) if not text]
    if lost:
        listed = ", ".join(lost[:MAX_NAMED]) + (", .." if len(lost) > MAX_NAMED else "")
        said = f"nothing ties the clocks of {len(lost)} ({listed}) to the others; their times are taken as they are"
        warnings = (*warnings, said)
    start_s = recording.start_s - ahead_s[of_row, group]
    if per_step:
        begun = np.full(finder.n_groups, np.inf)
        np.minimum.at(begun, group, start_s)
        start_s -= begun[group]
    return dataclasses.replace(recording, start_s=start_s, offsets=(*recording.offsets, *offsets), warnings=warnings)


def _name_clocks(recording: Recording, clock: Clock) -> tuple[Ints, list[str]]:
    """Say which clock timed each row, shape (n_rows,), and what each clock is called."""
    if clock == "host":
        if recording.host is None:
            return np.zeros(len(recording), dtype=np.int64), []
        labels, of_row = np.unique(recording.host, return_inverse=True)
        return of_row, ["(no host)" if n < 0 else recording.host_names[n] for n in labels.tolist()]
    tp, cp = or_zero(recording.tp_rank, recording), or_zero(recording.cp_rank, recording)
    columns = [recording.dp, recording.stage, tp, cp]
    labels, first, of_row = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    if recording.rank is not None and (recording.rank[first] >= 0).all():
        return of_row.ravel(), [f"rank {n}" for n in recording.rank[first].tolist()]
    return of_row.ravel(), [f"dp {dp} stage {stage}" for dp, stage, _, _ in labels.T.tolist()]


def _tie(links: Sequence[ClockLink], n_clocks: int, n_groups: int) -> tuple[Seconds, Seconds, list[str], Ints]:
    """Walk from clock to clock along the surest links.

    Gives how far each clock is ahead of the median one of those that it is tied to, shape (n_clocks, n_groups); how unsure that
    is along the way, shape (n_clocks,); by what it is tied, empty where by nothing; and the number of its island, shape
    (n_clocks,): clocks that are tied to each other have one.
    """
    at: list[list[ClockLink]] = [[] for _ in range(n_clocks)]
    for link in links:
        at[link.a].append(link)
        at[link.b].append(link)
    ahead_s, spread_s, how = np.zeros((n_clocks, n_groups)), np.zeros(n_clocks), [""] * n_clocks
    island = np.full(n_clocks, -1, dtype=np.int64)
    for root in range(n_clocks):
        if island[root] >= 0:
            continue
        tied = _walk(root, at, ahead_s, spread_s, how)
        island[tied] = root
        if len(tied) > 1:
            ahead_s[tied] -= np.median(ahead_s[tied], axis=0)
            how[root] = how[tied[1]]
    return ahead_s, spread_s, how, island


def _tie_islands(finder: LinkFinder, island: Ints, ahead_s: Seconds, spread_s: Seconds, how: list[str]) -> None:
    """Align groups of clocks that nothing ties to each other by the starts of their steps, in place.

    Gradients are averaged over all of them before a step ends, so that they begin the next within a step of each other.
    """
    labels, of_clock, counts = np.unique(island, return_inverse=True, return_counts=True)
    if len(labels) < 2:
        return
    step = number_combinations(finder.r.step)
    begun = np.full((len(labels), int(step.max()) + 1), np.inf)
    np.minimum.at(begun, (of_clock[finder.clock], step), finder.start_s - ahead_s[finder.clock, finder.group])
    most = int(counts.argmax())
    per_step = ahead_s.shape[1] > 1
    for n in range(len(labels)):
        known = np.isfinite(begun[n]) & np.isfinite(begun[most])
        if n == most or not known.any():
            continue
        later = np.subtract(begun[n], begun[most], where=known, out=np.zeros(len(known)))
        low, usual, high = np.quantile(later[known], [0.25, 0.5, 0.75])
        mine = of_clock == n
        ahead_s[mine] += np.where(known, later, usual) if per_step else usual
        spread_s[mine] = np.nan if per_step else (high - low) / 2.0
        for clock in np.flatnonzero(mine).tolist():
            how[clock] = how[clock] or "step starts"


def _walk(
    root: int, at: Sequence[Sequence[ClockLink]], ahead_s: Seconds, spread_s: Seconds, how: list[str]
) -> list[int]:
    """Reach every clock that is tied to one of them, by the surest link to any that is reached already; fills in the offsets."""
    reached: dict[int, None] = {root: None}
    queue: list[tuple[float, int, int, int]] = []
    links: list[ClockLink] = []

    def look(clock: int) -> None:
        for link in at[clock]:
            other = link.b if link.a == clock else link.a
            if other not in reached:
                # Half a bound comes last; an end in each step, with nothing beside it, is still an end.
                unsure = (np.inf if link.how == "schedule" else 0.0) if np.isnan(link.spread_s) else link.spread_s
                heapq.heappush(queue, (unsure, other, clock, len(links)))
                links.append(link)

    look(root)
    while queue:
        _, clock, known, n = heapq.heappop(queue)
        if clock in reached:
            continue
        link = links[n]
        reached[clock] = None
        # A step that says nothing has the offset of the others.
        said = link.ahead_s[np.isfinite(link.ahead_s)]
        further = np.where(np.isfinite(link.ahead_s), link.ahead_s, np.median(said) if said.size else 0.0)
        ahead_s[clock] = ahead_s[known] + (further if link.b == clock else -further)
        spread_s[clock] = spread_s[known] + link.spread_s
        how[clock] = link.how
        look(clock)
    return list(reached)
