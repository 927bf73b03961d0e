"""Who holds up a job that hangs: the ranks that others wait for and that wait for nobody.

Enters: `Collectives`. Leaves: `HangFacts`, or what could not be told. Dumps are taken one after the other: a rank that is behind
because its dump is older is told by what others ended meanwhile, which they cannot without it.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import msgspec.structs
import numpy as np

from diagnose.model.collectives import COMPLETED, NONE, STARTED, Collectives, HangFacts, HangKind, WaitingAt
from diagnose.model.trace import Bools, Ints

#: What nobody can end before all came.
_TOGETHER = (
    "all_reduce",
    "allreduce",
    "gather_base",
    "_allgather_base",
    "reduce_scatter",
    "barrier",
    "all_to_all",
    "all_gather",
)
#: Where all ranks give as much, of one type: these must agree in that, too.
_ALIKE = ("all_reduce", "broadcast", "_base", "barrier")
#: A wait of fewer seconds than this, or than so many times the longest pause that the rank made before, is seen in jobs that run.
_LEAST_WAIT_S, _PAUSES = 10.0, 3.0
#: More of the ranks than this part are not what the others wait for, but a job on its way; the same with ranks without a dump.
_MOST_AWAITED = 0.125
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Front:
    """A collective, or the transfers of two ranks, that somebody waits in.

    `behind` are ranks that put it into the queue behind a call that is not over.
    """

    communicator: int
    number: int
    rows: Ints
    missing: frozenset[int]
    called_s: float
    behind: frozenset[int] = frozenset()


def find_hang(recorded: Collectives) -> tuple[HangFacts | None, tuple[str, ...]]:
    """Find what a job waits for where it hangs, and say what could not be told."""
    view = _View(recorded)
    if not len(view.first_open):
        return None, ()
    fronts = view.list_fronts()
    mismatch = view.find_mismatch(fronts)
    if view.may_run():
        return None, (
            "some operations are not over, but no longer under way than is usual for this job: it may just have run on",
        )
    if mismatch is not None:
        return mismatch, ()
    if view.stale:
        older = name_ranks(sorted(view.stale))
        return None, (
            f"dumps of {older} are older than others, so the job was under way: who is missing cannot be told",
        )
    found, doubts = view.find_awaited(fronts)
    working = view.list_working(found.ranks) if found is not None else []
    if working:
        doubt = "not waiting, and not waited for: a moment in a job under way looks the same as a hang"
        return None, (f"{name_ranks(working)}: {doubt}",)
    return found, doubts


class _View:
    """What each rank called and ended in each communicator."""

    def __init__(self, recorded: Collectives) -> None:
        self.recorded = recorded
        n = len(recorded.communicators)
        self.row_of_rank = {int(rank): i for i, rank in enumerate(recorded.ranks)}
        at = np.searchsorted(recorded.ranks, recorded.rank) * n + recorded.communicator
        transfers = recorded.peer != NONE
        size = (len(recorded.ranks), n)
        self.called = _most(at, recorded.number, ~transfers, size)
        over = recorded.state == COMPLETED
        self.ended = _most(at, recorded.number, ~transfers & over, size)
        together = np.array([any(part in kind for part in _TOGETHER) for kind in recorded.kinds], dtype=bool)
        self.ended_together = _most(at, recorded.number, ~transfers & over & together[recorded.kind], size)
        ended_transfers = _most(at, recorded.number, transfers & over, size)
        later = np.where(transfers, ended_transfers.flat[at], self.ended.flat[at])
        is_open = np.flatnonzero(~over & (recorded.number > later))
        # Of one rank and communicator the first: those behind it wait for it.
        order = is_open[np.lexsort((recorded.number[is_open], transfers[is_open], at[is_open]))]
        keys = np.stack([at[order], transfers[order]], axis=1) if len(order) else np.zeros((0, 2), dtype=np.int64)
        firsts: dict[tuple[int, bool], list[int]] = {}
        for row, (key, is_transfer) in zip(order.tolist(), keys.tolist(), strict=True):
            first = firsts.setdefault((key, is_transfer), [row])
            if is_transfer and row != first[0] and recorded.number[row] == recorded.number[first[0]]:
                first.append(row)
        self.first_open = np.array(sorted(row for rows in firsts.values() for row in rows), dtype=np.int64)
        self.stale = self._find_stale()
        self.is_transfer: Bools = transfers

    def _find_stale(self) -> frozenset[int]:
        """Find ranks whose dump is older than those of others: these ended what cannot end without them."""
        stale = set()
        for g, each in enumerate(self.recorded.communicators):
            here = [self.row_of_rank[rank] for rank in each.ranks.tolist() if rank in self.row_of_rank]
            if here:
                furthest = int(self.ended_together[here, g].max())
                stale |= {int(self.recorded.ranks[i]) for i in here if 0 <= self.called[i, g] < furthest}
        return frozenset(stale)

    def may_run(self) -> bool:
        """Say whether files are as young as the calls in them, so that a job under way may have left them."""
        recorded = self.recorded
        rows = self.first_open
        wrote = recorded.written_s[np.searchsorted(recorded.ranks, recorded.rank[rows])]
        waited_s = float(np.median(wrote - recorded.called_s[rows]))
        if not np.isfinite(waited_s) or waited_s < 0:
            return False
        same = recorded.rank[1:] == recorded.rank[:-1]
        pauses = np.diff(recorded.called_s)[same]
        longest = float(np.nanmax(pauses, initial=0.0))
        enough = max(_LEAST_WAIT_S, _PAUSES * longest)
        if np.isfinite(recorded.timeout_s):
            enough = min(enough, 0.9 * recorded.timeout_s)
        return waited_s < enough

    def list_working(self, awaited: Sequence[int]) -> list[int]:
        """List ranks that are at work: until a hang is noticed, everybody waits but those who are awaited."""
        waiting = self.recorded.rank[self.first_open].tolist()
        return sorted({int(rank) for rank in self.recorded.ranks} - {*waiting, *awaited})

    def list_fronts(self) -> list[_Front]:
        """List what is waited in, the earliest call first."""
        recorded = self.recorded
        fronts: list[_Front] = []
        groups: dict[tuple[int, int], list[int]] = {}
        for row in self.first_open.tolist():
            g, number, peer = int(recorded.communicator[row]), int(recorded.number[row]), int(recorded.peer[row])
            if not self.is_transfer[row]:
                groups.setdefault((g, number), []).append(row)
                continue
            other = self._find_other_end(row)
            missing = frozenset() if other else frozenset({peer})
            fronts.append(_Front(g, number, np.array([row]), missing, float(recorded.called_s[row])))
        for (g, number), rows in groups.items():
            members = [rank for rank in recorded.communicators[g].ranks.tolist() if rank != NONE]
            missing = frozenset(
                rank
                for rank in members
                if rank not in self.row_of_rank or self.called[self.row_of_rank[rank], g] < number
            )
            called_s = float(np.nanmin(recorded.called_s[rows])) if len(rows) else np.nan
            behind = frozenset(int(recorded.rank[row]) for row in rows if self._is_behind(row))
            fronts.append(_Front(g, number, np.array(rows), missing, called_s, behind))
        return sorted(fronts, key=lambda front: (front.called_s, front.communicator, front.number))

    def _is_behind(self, row: int) -> bool:
        """Say whether a rank put a call into the queue behind one that is not over: its device did not come to it."""
        recorded = self.recorded
        if not recorded.is_ordered or recorded.state[row] == STARTED:
            return False
        first = self.first_open[recorded.rank[self.first_open] == recorded.rank[row]].min()
        return bool(first < row and recorded.communicator[first] != recorded.communicator[row])

    def _find_other_end(self, row: int) -> bool:
        """Say whether the rank at the other end of a transfer is in it."""
        recorded = self.recorded
        there = self.first_open[recorded.rank[self.first_open] == recorded.peer[row]]
        ends = recorded.peer[there] == recorded.rank[row]
        return bool((ends & (recorded.is_send[there] != recorded.is_send[row])).any())

    def find_mismatch(self, fronts: Sequence[_Front]) -> HangFacts | None:
        """Find ranks that called something else under the number of what the others wait in."""
        recorded = self.recorded
        for front in fronts:
            if self.is_transfer[front.rows[0]] or len(front.rows) < 2:
                continue
            kinds = {recorded.kinds[kind] for kind in recorded.kind[front.rows].tolist()}
            by_content = len(kinds) == 1 and any(part in next(iter(kinds)) for part in _ALIKE)
            said = (recorded.content if by_content else recorded.kind)[front.rows]
            counted = Counter(said.tolist()).most_common()
            if len(counted) < 2:
                continue
            usual = counted[0][0]
            odd = front.rows[said != usual]
            others = front.rows[said == usual]
            name = recorded.communicators[front.communicator].name
            ranks = recorded.rank[odd].tolist()
            if len(odd) == len(others):
                ranks = sorted([*ranks, *recorded.rank[others].tolist()])
            what, instead = (self._describe_call(int(rows[0])) for rows in (odd, others))
            if by_content:
                what, instead = (
                    f"{text} of {int(recorded.size[rows[0]]):,} elements"
                    for text, rows in ((what, odd), (instead, others))
                )
            who = name_ranks(recorded.rank[odd].tolist())
            text = f"hang: {who} called {what} where {len(others)} others of {name} called {instead}"
            return self._make("mismatch", ranks, front, text)
        return None

    def find_awaited(self, fronts: Sequence[_Front]) -> tuple[HangFacts | None, tuple[str, ...]]:
        """Find the ranks that others wait for and that wait for nobody themselves."""
        recorded = self.recorded
        waits: dict[int, set[int]] = {}
        for front in fronts:
            for rank in recorded.rank[front.rows].tolist():
                waits.setdefault(rank, set()).update(front.missing)
        stuck = {rank for rank, missing in waits.items() if missing}
        for front in fronts:  # a device that waits elsewhere does not come here
            for rank in recorded.rank[front.rows].tolist():
                waits[rank] |= (front.behind & stuck) - {rank}
        awaited = frozenset[int]().union(*waits.values()) if waits else frozenset()
        if not awaited:
            return self._find_unfinished(fronts)
        roots = sorted(rank for rank in awaited if not waits.get(rank))
        if not roots:
            front = next(front for front in fronts if front.missing)
            rank = min(front.missing)
            theirs = next(other for other in fronts if rank in recorded.rank[other.rows].tolist())
            text = (
                f"hang: ranks wait for each other: {name_ranks(recorded.rank[front.rows].tolist())} in {self._describe(front)}, "
                f"rank {rank} in {self._describe(theirs)}"
            )
            return self._make("deadlock", [rank], front, text), ()
        silent = [rank for rank in roots if rank not in self.row_of_rank]
        most = max(1, int(_MOST_AWAITED * recorded.world_size))
        if len(silent) == len(roots) > most:
            return None, (
                f"{len(waits)} ranks wait for some of {len(silent)} that left no dump: give the dumps of all ranks to see which",
            )
        there = [rank for rank in roots if rank in self.row_of_rank]
        named, kind = (there, "missing") if there else (silent, "no-dump")
        if len(named) > most:
            return None, (
                f"{len(waits)} ranks wait for {len(named)} others: a moment in a job under way looks the same as a hang",
            )
        if there and not _is_one_fault(there, fronts):
            return None, (
                f"{len(waits)} ranks wait for {name_ranks(there)} in different groups: a moment in a job under way looks the same",
            )
        front = next(front for front in fronts if front.missing & set(named))
        n = len(waits)
        text = f"hang: {name_ranks(named)} never called {self._describe(front)}"
        facts = self._make("missing" if kind == "missing" else "no-dump", named, front, text)
        seen = f"; last seen in {facts.last_frame or facts.last_call}" if facts.last_call else ", and left no dump"
        text += f"{seen}; {n} {'rank waits' if n == 1 else 'ranks wait'}"
        return msgspec.structs.replace(facts, text=text), ()

    def _find_unfinished(self, fronts: Sequence[_Front]) -> tuple[HangFacts | None, tuple[str, ...]]:
        """Judge operations that all ranks called and that are not over: who began them is known with timing alone."""
        recorded = self.recorded
        whole = []
        for front in fronts:
            begun = recorded.state[front.rows] == STARTED
            if self.is_transfer[front.rows[0]] or not begun.any() or len(front.rows) < 2:
                continue
            late = recorded.rank[front.rows[~begun]].tolist()
            if 0 < len(late) <= max(1, len(front.rows) // 2):
                text = (
                    f"hang: the device of {name_ranks(late)} never began {self._describe(front)}, which its host called"
                )
                return self._make("not-started", late, front, text), ()
            if not late and len(front.rows) == len(recorded.communicators[front.communicator].ranks):
                whole.append(front)
        if len(whole) > 1:
            return None, (
                f"all ranks of {len(whole)} groups began what none ended: the network, or a moment in a job under way",
            )
        if whole:
            text = f"hang: all ranks began {self._describe(whole[0])}, and none ended it: the network, or the library"
            return self._make("unfinished", recorded.rank[whole[0].rows].tolist(), whole[0], text), ()
        unseen = "who did not begin them is recorded with TORCH_NCCL_ENABLE_TIMING=1 alone"
        return None, (f"operations are not over that all their ranks called: {unseen}",)

    def _describe_call(self, row: int) -> str:
        """Name one operation with its number."""
        return f"{self.recorded.kinds[int(self.recorded.kind[row])]} #{int(self.recorded.number[row])}"

    def _describe(self, front: _Front) -> str:
        """Name what is waited in."""
        each = self.recorded.communicators[front.communicator]
        return f"{self._describe_call(int(front.rows[0]))} of {each.name} ({len(each.ranks)} ranks)"

    def _make(self, kind: HangKind, ranks: Sequence[int], front: _Front, text: str) -> HangFacts:
        """Put the facts of a hang together."""
        recorded = self.recorded
        each = recorded.communicators[front.communicator]
        row = int(front.rows[0])
        own = np.flatnonzero(recorded.rank == ranks[0])
        last = int(own[-1]) if len(own) else NONE
        group = None if last == NONE else recorded.communicators[int(recorded.communicator[last])].name
        return HangFacts(
            kind=kind,
            ranks=tuple(int(rank) for rank in ranks),
            at=WaitingAt(
                group=each.name,
                group_size=len(each.ranks),
                operation=recorded.kinds[int(recorded.kind[row])],
                number=int(recorded.number[row]),
                waiting=tuple(sorted(set(recorded.rank[front.rows].tolist()))),
                missing=tuple(sorted(front.missing)),
                frame=recorded.frames.get(row),
            ),
            n_waiting=len(set(recorded.rank[self.first_open].tolist()) - set(ranks)),
            last_call=None if last == NONE else f"{self._describe_call(last)} of {group}",
            last_frame=recorded.frames.get(last),
            text=text,
        )


def _is_one_fault(ranks: Sequence[int], fronts: Sequence[_Front]) -> bool:
    """Say whether ranks that nobody saw wait can have stopped for one reason, rather than each be at its own work.

    One call is short of all of them, or their numbers follow each other, as those of a host and of a tensor group do.
    """
    is_row = ranks[-1] - ranks[0] + 1 == len(ranks)
    return is_row or any(front.missing >= set(ranks) for front in fronts)


def name_ranks(ranks: Sequence[int]) -> str:
    """Name some ranks, and count the others.

    >>> name_ranks([3]), name_ranks([3, 4]), name_ranks(list(range(12)))
    ('rank 3', 'ranks 3, 4', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    shown = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _most(at: Ints, number: Ints, chosen: Bools, size: tuple[int, int]) -> Ints:
    """Give the highest number of each rank in each communicator; -1 where there is none."""
    found = np.full(size, NONE, dtype=np.int64)
    np.maximum.at(found.reshape(-1), at[chosen], number[chosen])
    return found
