"""Who is waited for, and which transfers are slow: by how long the operations of a recording took on each rank.

Enters: `Collectives`. Leaves: late ranks, and slow groups. Of the ranks in one collective the last to come is in it for the
shortest time. Who is late may have waited elsewhere: for a rank of its tensor group, or for the stage before. Waiting is time in
collectives, too. So a rank is blamed by what is left: the part of its time that it spends outside of all collectives and transfers,
against ranks of one of its groups, which do the same work. Only a rank that computes longer has more of it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from diagnose.model.collectives import NONE, Collectives, LateRank, SlowGroup
from diagnose.model.trace import Ints, Seconds

#: Operations of a group below which chance is not told from a fault.
_MIN_CALLS = 8
#: A rank is late where it is so many times as far off as ranks usually are, and the others of its group wait for it in so much of
#: the time that they wait there.
_DEVIATIONS, _WAITED_FOR = 5.0, 0.5
#: Parts of a recording that are compared with each other where there are two ranks only; each has one operation at least.
_N_PARTS = _MIN_CALLS
#: Late in one group, a rank is late in its others, too, by this part of it at least: bubbles of a pipeline take up the rest.
_ELSEWHERE = 0.25
#: By calls alone a host is seen and no device: it takes a larger part of the time.
_LEAST_BY_CALLS = 0.05
#: Transfers are slow at so many times the usual time in groups of one kind, of which there are so many at least.
_SLOW_RATIO, _MIN_SISTERS = 1.5, 3
#: Clocks of hosts that differ by less cannot be told apart: ends are noticed up to a tenth of a second late.
_CLOCK_S = 0.02
_CLOCK_ROUNDS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """What the times of a recording tell."""

    measured_by: Literal["durations", "calls", "nothing"]
    late: tuple[LateRank, ...]
    slow: tuple[SlowGroup, ...]
    doubts: tuple[str, ...]
    #: Ranks of which one is late, and it is not recorded which.
    unsure: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Collectives of one group that all its ranks recorded: seconds in them, shape (n_calls, n_ranks)."""

    communicator: int
    ranks: Ints
    content: Ints
    seconds: Seconds


def measure_waits(recorded: Collectives, *, least: float) -> Waits:
    """Find ranks that are waited for and slow groups that cost at least a part `least` of the time."""
    known = np.isfinite(recorded.duration_s)
    by: Literal["durations", "calls"] = "durations" if known.any() and known.mean() > 0.25 else "calls"
    if by == "calls" and not (recorded.is_ordered and np.isfinite(recorded.called_s).mean() > 0.5):
        return Waits("nothing", (), (), ("no times were recorded: who is late cannot be told",))
    if by == "durations":
        tables = _tabulate(recorded, recorded.duration_s)
    else:
        called = _tabulate(recorded, recorded.called_s - _align_clocks(recorded))
        tables = [
            dataclasses.replace(table, seconds=table.seconds.max(axis=1)[:, None] - table.seconds) for table in called
        ]
    if not tables:
        return Waits(
            by, (), (), ("no group has enough collectives that all its ranks recorded: who is late cannot be told",)
        )
    lengths, span_s = _measure_spans(recorded)
    busy = _add_up(recorded, tables, by) / lengths
    floor = least if by == "durations" else max(least, _LEAST_BY_CALLS)
    late, unsure = _find_late(recorded, tables, busy, span_s, floor, by)
    doubts = []
    if unsure:
        named = ", ".join(str(rank) for rank in unsure[:8]) + (" and more" if len(unsure) > 8 else "")
        doubts.append(f"ranks {named} come late together; which of them is slow, or waits for another, is not recorded")
    if by == "calls":
        doubts.append(
            "operations have no durations (TORCH_NCCL_ENABLE_TIMING=1 records them): a slow device or link does not show"
        )
    slow = _find_slow(recorded, tables, span_s, least) if by == "durations" else ()
    return Waits(by, late, slow, tuple(doubts), unsure)


def _tabulate(recorded: Collectives, values: Seconds) -> list[_Table]:
    """Put the collectives of each group side by side, by their numbers; those that a rank lacks are left out."""
    tables = []
    rows = np.flatnonzero((recorded.peer == NONE) & np.isfinite(values))
    order = rows[np.argsort(recorded.communicator[rows], kind="stable")]
    bounds = np.searchsorted(recorded.communicator[order], np.arange(len(recorded.communicators) + 1))
    for g, each in enumerate(recorded.communicators):
        own = order[bounds[g] : bounds[g + 1]]
        there = np.unique(recorded.rank[own])
        if len(there) < 2 or len(there) < len(each.ranks):
            continue
        numbers, at = np.unique(recorded.number[own], return_inverse=True)
        table = np.full((len(numbers), len(there)), np.nan)
        content = np.full(table.shape, NONE, dtype=np.int64)
        column = np.searchsorted(there, recorded.rank[own])
        table[at, column] = values[own]
        content[at, column] = recorded.content[own]
        whole = np.isfinite(table).all(axis=1)
        if whole.sum() >= _MIN_CALLS:
            tables.append(_Table(g, there, content[whole, 0], table[whole]))
    return tables


def _align_clocks(recorded: Collectives) -> Seconds:
    """Give, for each row, how far the clock of its rank is off, by when ranks noticed the same end."""
    offsets = np.zeros(recorded.world_size)
    tables = _tabulate(recorded, recorded.noticed_s)
    for _ in range(_CLOCK_ROUNDS if tables else 0):
        for table in sorted(tables, key=lambda each: -len(each.ranks)):
            off = table.seconds - offsets[table.ranks]
            offsets[table.ranks] += np.median(off - np.median(off, axis=1)[:, None], axis=0)
    order = np.argsort(offsets, kind="stable")
    parts = np.cumsum(np.concatenate([[0], np.diff(offsets[order]) > _CLOCK_S])) if len(order) else order
    for part in np.unique(parts):
        offsets[order[parts == part]] = offsets[order[parts == part]].mean()
    return offsets[recorded.rank]


def _measure_spans(recorded: Collectives) -> tuple[Seconds, float]:
    """Give the seconds that the rows of each rank span, by world rank, and the longest."""
    lengths = np.full(recorded.world_size, np.nan)
    if recorded.is_ordered and np.isfinite(recorded.called_s).any():
        for rank in recorded.ranks.tolist():
            own = recorded.called_s[recorded.rank == rank]
            own = own[np.isfinite(own)]
            lengths[rank] = own[-1] - own[0] if len(own) > 1 and own[-1] > own[0] else np.nan
        return lengths, float(np.nanmax(lengths, initial=0.0))
    total = np.zeros(recorded.world_size)
    chosen = np.isfinite(recorded.duration_s)
    np.add.at(total, recorded.rank[chosen], recorded.duration_s[chosen])
    span_s = max(recorded.span_s if np.isfinite(recorded.span_s) else 0.0, float(total.max(initial=0.0)))
    lengths[recorded.ranks] = span_s if span_s > 0 else np.nan
    return lengths, span_s


def _add_up(recorded: Collectives, tables: Sequence[_Table], by: str) -> Seconds:
    """Add up the seconds that each rank spends in collectives and transfers, by world rank."""
    total = np.zeros(recorded.world_size)
    if by == "durations":
        chosen = np.isfinite(recorded.duration_s)
        if recorded.is_ordered:  # a span ends with the last call, and not with how long that took
            last = np.full(recorded.world_size, -np.inf)
            np.fmax.at(last, recorded.rank, recorded.called_s)
            chosen &= recorded.called_s < last[recorded.rank]
        np.add.at(total, recorded.rank[chosen], recorded.duration_s[chosen])
        return total
    for table in tables:
        total[table.ranks] += table.seconds.sum(axis=0)
    return total


def _find_late(
    recorded: Collectives,
    tables: Sequence[_Table],
    busy: Seconds,
    span_s: float,
    least: float,
    by: str,
) -> tuple[tuple[LateRank, ...], tuple[int, ...]]:
    """Find ranks that spend more of their time outside collectives than the ranks of their groups; and some of which one may.

    Where transfers between stages have no times, a rank that waits in one is late in one of its groups, and not in the other.
    """
    is_blind = by == "calls" or not (recorded.peer != NONE).any()
    mixed = {int(g) for g in np.unique(recorded.communicator[recorded.peer != NONE])}
    sets = {table.communicator: frozenset(table.ranks.tolist()) for table in tables}
    of_rank: dict[int, list[_Table]] = {}
    for table in tables:
        for rank in table.ranks.tolist():
            of_rank.setdefault(rank, []).append(table)
    excess: dict[int, list[tuple[float, float, _Table]]] = {}
    for rank, own in of_rank.items():
        # A group around another of the same rank has ranks of other work in it: other stages.
        inner = [t for t in own if not any(sets[o.communicator] < sets[t.communicator] for o in own)]
        for table in inner:
            if table.communicator in mixed:
                continue
            more = float(np.median(busy[table.ranks[table.ranks != rank]]) - busy[rank])
            if np.isfinite(more):
                excess.setdefault(rank, []).append((more, _share_waited_for(table, rank), table))
    if not excess:
        return (), ()
    largest = np.array([max(more for more, _, _ in found) for found in excess.values()])
    usual = 1.4826 * float(np.median(np.abs(largest - np.median(largest))))
    if len(excess) == 2 and by == "durations":  # what one of them is ahead the other is behind
        usual = min(usual, max(_vary(table) for table in tables) / span_s)
    late, unsure = [], []
    for rank, found in sorted(excess.items()):
        more, waited_for, table = max(found, key=lambda each: (each[0], each[1]))
        # One pause makes no slow worker.
        lasting = (
            more - max(_longest_pause_s(each, rank) for _, _, each in found) / span_s if by == "durations" else more
        )
        if lasting < least or more < _DEVIATIONS * usual or max(w for m, w, _ in found if m >= more / 2) < _WAITED_FOR:
            continue
        named = LateRank(
            rank=rank,
            host=recorded.host_of(rank),
            group=recorded.communicators[table.communicator].name,
            more_s=more * span_s,
            share=more,
            waited_for=waited_for,
        )
        if not is_blind or (len(found) > 1 and min(m for m, _, _ in found) >= _ELSEWHERE * more):
            late.append(named)
        elif len(found) == 1:
            unsure.append(named)
    if not late and len(unsure) == 1:
        late, unsure = unsure, []
    if is_blind and by == "calls" and any({each.rank for each in late} == ranks for ranks in sets.values()):
        late, unsure = [], late  # whoever left a slow collective late is late in the next
    late.sort(key=lambda each: (-each.share, each.rank))
    return tuple(late), tuple(sorted(each.rank for each in unsure) if not late else ())


def _share_waited_for(table: _Table, rank: int) -> float:
    """Say which part of the waiting in a group was for one of its ranks."""
    waited = table.seconds.max(axis=1) - table.seconds.min(axis=1)
    is_last = table.ranks[table.seconds.argmin(axis=1)] == rank
    total = float(waited.sum())
    return float(waited[is_last].sum()) / total if total > 0 else 0.0


def _vary(table: _Table) -> float:
    """Say by how much chance alone makes one of two ranks wait for longer than the other: seconds, from parts of the recording."""
    parts = np.array_split(table.seconds[:, 0] - table.seconds[:, 1], _N_PARTS)
    return float(np.std([part.sum() for part in parts]) * np.sqrt(_N_PARTS))


def _longest_pause_s(table: _Table, rank: int) -> float:
    """Give by how much the longest wait of a group for one of its ranks is longer than most of its waits for it."""
    waited = (table.seconds.max(axis=1) - table.seconds.min(axis=1))[table.ranks[table.seconds.argmin(axis=1)] == rank]
    return float(waited.max() - np.median(waited)) if len(waited) else 0.0


def _find_slow(recorded: Collectives, tables: Sequence[_Table], span_s: float, least: float) -> tuple[SlowGroup, ...]:
    """Find groups, and pairs of ranks, whose transfers take longer than those of their sisters.

    Whoever comes last waits for nobody: the shortest time in a collective is that of the transfer.
    """
    found: list[tuple[int, tuple[int, ...], int, float, int, bool]] = []
    for table in tables:
        for content in np.unique(table.content).tolist():
            own = table.seconds[table.content == content].min(axis=1)
            if len(own) >= _MIN_CALLS:
                found.append(
                    (table.communicator, tuple(table.ranks.tolist()), content, float(np.median(own)), len(own), False)
                )
    found += _measure_pairs(recorded)
    kinds: dict[tuple[int, int, bool], list[int]] = {}
    for i, (_, ranks, content, _, _, is_pair) in enumerate(found):
        kinds.setdefault((len(ranks), content, is_pair), []).append(i)
    names = {
        int(content): recorded.kinds[int(kind)] for content, kind in zip(recorded.content, recorded.kind, strict=True)
    }
    slow = []
    for members in kinds.values():
        times = np.array([found[i][3] for i in members])
        usual = float(np.median(times))
        if len(members) < _MIN_SISTERS or usual <= 0:
            continue
        for i in members:
            g, ranks, content, took, n, is_pair = found[i]
            more_s = (took - usual) * n
            if took >= _SLOW_RATIO * usual and span_s > 0 and more_s >= least * span_s:
                hosts = tuple(dict.fromkeys(host for rank in ranks if (host := recorded.host_of(rank))))
                slow.append(
                    SlowGroup(
                        group=recorded.communicators[g].name,
                        ranks=ranks,
                        hosts=hosts,
                        operation=names[content],
                        transfer_s=took,
                        usual_s=usual,
                        more_s=more_s,
                        share=min(1.0, more_s / span_s),
                        is_pair=is_pair,
                    )
                )
    return tuple(sorted(slow, key=lambda each: (-each.share, each.ranks)))


def _measure_pairs(recorded: Collectives) -> list[tuple[int, tuple[int, ...], int, float, int, bool]]:
    """Measure the transfers of each pair: the end that waits less is in them for as long as the bytes take."""
    rows = np.flatnonzero((recorded.peer != NONE) & np.isfinite(recorded.duration_s))
    ends: dict[tuple[int, int, int], dict[bool, tuple[float, int, int]]] = {}
    columns: NDArray[np.int64] = np.stack(
        [
            recorded.communicator[rows],
            recorded.rank[rows],
            recorded.peer[rows],
            recorded.is_send[rows].astype(np.int64),
        ],
        axis=1,
    )
    keys, at = np.unique(columns, axis=0, return_inverse=True)
    order = np.argsort(at.reshape(-1), kind="stable")
    bounds = np.searchsorted(at.reshape(-1)[order], np.arange(len(keys) + 1))
    for i, (g, rank, peer, is_send) in enumerate(keys.tolist()):
        own = rows[order[bounds[i] : bounds[i + 1]]]
        if len(own) >= _MIN_CALLS:
            pair = (g, rank, peer) if is_send else (g, peer, rank)
            took = float(np.quantile(recorded.duration_s[own], 0.2))
            ends.setdefault(pair, {})[bool(is_send)] = (took, len(own), int(recorded.content[own[0]]))
    found: list[tuple[int, tuple[int, ...], int, float, int, bool]] = []
    for (g, source, target), both in ends.items():
        if len(both) == 2:
            took, n, _ = min(both.values())
            found.append((g, (source, target), both[True][2], took, n, True))
    return found
