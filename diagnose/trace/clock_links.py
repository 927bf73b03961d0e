"""How far the clocks of two workers are apart, by what they do together.

Enters: a `Recording` and the clock of each row. Leaves: a `ClockLink` for each pair of clocks and each kind of evidence.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from diagnose.model.columns import begins_run
from diagnose.model.optype import DIRECTIONS, DP_COLLECTIVES, Op, of_types
from diagnose.model.recording import Recording
from diagnose.model.trace import Ints, Seconds
from diagnose.trace.labels import number_combinations
from diagnose.trace.rows import derive_seq

#: Of the bounds of single steps the tightest tenth counts where one offset holds for all: a fault may widen all the others.
TIGHT_QUANTILE = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class ClockLink:
    """How far clock `b` is ahead of clock `a`: seconds, shape (n_groups,); `spread_s` is how unsure that is."""

    a: int
    b: int
    ahead_s: Seconds
    spread_s: float
    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Ends:
    """Differences of times that are equal on one clock: shape (n,), of clock `b` minus clock `a` in a group of steps."""

    a: Ints
    b: Ints
    group: Ints
    ahead_s: Seconds


class LinkFinder:
    """Rows by what they have in common: the step and the members of the job that work on the same microbatches.

    `of_row`, shape (n_rows,), is the clock of each row; `group`, shape (n_rows,), numbers the steps that share an offset.
    """

    def __init__(self, recording: Recording, of_row: Ints, group: Ints) -> None:
        self.r = recording
        self.clock = of_row
        self.group = group
        self.n_groups = int(group.max()) + 1
        self.start_s = recording.start_s
        self.end_s = recording.start_s + recording.duration_s
        self.stage = np.unique(recording.stage, return_inverse=True)[1]
        self.n_stages = int(self.stage.max()) + 1
        self.tp, self.cp = or_zero(recording.tp_rank, recording), or_zero(recording.cp_rank, recording)
        self.worker = number_combinations(recording.step, recording.dp, recording.stage, self.tp, self.cp)
        self.seq = derive_seq(number_combinations(self.worker, recording.op), recording.start_s)
        #: Pipelines, each in one step.
        self.lane = number_combinations(recording.step, recording.dp, self.tp, self.cp)

    def find(self, *, per_step: bool) -> list[ClockLink]:
        """Find all links: by transfers, by what members do together, and by the schedule."""
        return [*self._pairs(), *self._members(), *self._bounds(per_step=per_step)]

    def _pairs(self) -> list[ClockLink]:
        """Compare the ends of transfers: the n-th send of a stage, and the n-th recv of the stage it sends to."""
        found = []
        for send, recv, ahead in ((Op.FORWARD_SEND, Op.FORWARD_RECV, 1), (Op.BACKWARD_SEND, Op.BACKWARD_RECV, -1)):
            sends, recvs = np.flatnonzero(self.r.op == send), np.flatnonzero(self.r.op == recv)
            to = self.stage[sends] + ahead
            sends = sends[(to >= 0) & (to < self.n_stages)]
            a, b = self._match((sends, self.stage[sends] + ahead), (recvs, self.stage[recvs]))
            found.append(_Ends(self.clock[a], self.clock[b], self.group[a], self.end_s[b] - self.end_s[a]))
        return _both_ways(found, self.n_groups, "matched pairs")

    def _match(self, a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        """Pair rows of the same pipeline, place and number, where both sides have as many in that step."""
        (rows_a, place_a), (rows_b, place_b) = a, b
        both = np.r_[rows_a, rows_b]
        place = number_combinations(self.lane[both], np.r_[place_a, place_b])
        key = number_combinations(place, self.seq[both])
        side = np.arange(len(both)) >= len(rows_a)
        n_places = int(place.max(initial=-1)) + 1
        as_many = np.bincount(place[~side], minlength=n_places) == np.bincount(place[side], minlength=n_places)
        _, at_a, at_b = np.intersect1d(key[~side], key[side], return_indices=True)
        keep = as_many[place[~side][at_a]]
        return rows_a[at_a[keep]], rows_b[at_b[keep]]

    def _members(self) -> list[ClockLink]:
        """Compare the ends of collectives, and of what the members of a tensor- or context-parallel group do together."""
        r, found = self.r, []
        zero = np.zeros(len(r), dtype=np.int64)
        for ops, same in (
            (DP_COLLECTIVES, (r.step, self.stage, self.tp, self.cp)),
            ((Op.CLIP,), (r.step, zero, zero, zero)),
            ((Op.EMBEDDING,), (r.step, r.dp, self.tp, self.cp)),
            (DIRECTIONS, (r.step, r.dp, self.stage, zero)),
        ):
            rows = np.flatnonzero(of_types(r.op, ops))
            key = number_combinations(*(column[rows] for column in same), r.op[rows].astype(np.int64), self.seq[rows])
            rows = rows[np.lexsort((self.clock[rows], key))]
            key = np.sort(key)
            if not len(rows):
                continue
            first = np.flatnonzero(begins_run(key))
            hub = np.repeat(rows[first], np.diff(np.r_[first, len(rows)]))
            found.append(_Ends(self.clock[hub], self.clock[rows], self.group[rows], self.end_s[rows] - self.end_s[hub]))
        # What ends together; the rest says how unsure that is.
        return [_middle(clocks, *ends, self.n_groups, "collectives") for clocks, ends in _by_clocks(found).items()]

    def _bounds(self, *, per_step: bool) -> list[ClockLink]:
        """Bound the offsets by the schedule: no compute begins before that of the same microbatch on the stage before it ended."""
        upper: dict[tuple[int, int], dict[int, float]] = {}
        step = number_combinations(self.r.step)
        for op, ahead in ((Op.FORWARD, 1), (Op.BACKWARD, -1)):
            rows = np.flatnonzero(self.r.op == op)
            virtual, microbatch = self._places(rows)
            there = (virtual >= 0) & (microbatch >= 0)
            rows, virtual, microbatch = rows[there], virtual[there], microbatch[there]
            both = np.r_[rows, rows]
            key = number_combinations(self.lane[both], np.r_[microbatch, microbatch], np.r_[virtual + ahead, virtual])
            _, before, after = np.intersect1d(key[: len(rows)], key[len(rows) :], return_indices=True)
            a, b = rows[before], rows[after]
            apart = self.clock[a] != self.clock[b]
            a, b = a[apart], b[apart]
            place = np.stack([self.clock[a], self.clock[b], step[a]])
            keys, at = np.unique(place, axis=1, return_inverse=True)
            least = np.full(keys.shape[1], np.inf)
            np.minimum.at(least, at.ravel(), self.start_s[b] - self.end_s[a])
            for (of_a, of_b, of_step), most in zip(keys.T.tolist(), least.tolist(), strict=True):
                by_step = upper.setdefault((of_a, of_b), {})
                by_step[of_step] = min(by_step.get(of_step, np.inf), most)
        with np.errstate(invalid="ignore"):
            return _bounded(upper, int(step.max()) + 1, per_step=per_step)

    def _places(self, rows: Ints) -> tuple[Ints, Ints]:
        """Say on which virtual stage, and on which microbatch, computes work; -1 where nobody knows."""
        r = self.r
        chunk = np.zeros(len(rows), dtype=np.int64) if r.chunk is None else np.maximum(r.chunk[rows], 0)
        microbatch = None if r.microbatch is None else r.microbatch[rows]
        if microbatch is None or (microbatch < 0).all():
            # Whatever the schedule, a stage runs the microbatches of a chunk in their order.
            microbatch = derive_seq(number_combinations(self.worker[rows], chunk), r.start_s[rows])
        in_turn = chunk * self.n_stages + self.stage[rows]
        return in_turn if r.position is None else r.position[rows], microbatch


def _by_clocks(ends: Sequence[_Ends]) -> dict[tuple[int, int], tuple[Ints, Seconds]]:
    """Collect the differences of each pair of clocks, lower one first: their groups, and seconds."""
    if not any(len(e.a) for e in ends):
        return {}
    a, b = np.concatenate([e.a for e in ends]), np.concatenate([e.b for e in ends])
    group, ahead_s = np.concatenate([e.group for e in ends]), np.concatenate([e.ahead_s for e in ends])
    apart = a != b
    if not apart.any():
        return {}
    a, b, group, ahead_s = a[apart], b[apart], group[apart], ahead_s[apart]
    ahead_s = np.where(a > b, -ahead_s, ahead_s)
    low, high = np.minimum(a, b), np.maximum(a, b)
    order = np.lexsort((group, high, low))
    low, high, group, ahead_s = low[order], high[order], group[order], ahead_s[order]
    first = np.flatnonzero(begins_run(low, high))
    return {
        (int(low[i]), int(high[i])): (group[i:j], ahead_s[i:j])
        for i, j in zip(first.tolist(), [*first[1:].tolist(), len(low)], strict=True)
    }


def _both_ways(ends: Sequence[_Ends], n_groups: int, how: str) -> list[ClockLink]:
    """Take the middle of both directions, so that what the receiving end always reports late cancels out."""
    there, back = (_by_clocks([e]) for e in ends)
    links = []
    for clocks in sorted(there.keys() & back.keys()):
        one, other = (_middle(clocks, *found[clocks], n_groups, how) for found in (there, back))
        apart = np.abs(one.ahead_s - other.ahead_s) / 2.0
        apart = apart[np.isfinite(apart)]
        late_s = float(np.median(apart)) if apart.size else np.nan
        spread_s = float(np.max([one.spread_s, other.spread_s, late_s]))
        links.append(ClockLink(*clocks, (one.ahead_s + other.ahead_s) / 2.0, spread_s, how))
    return links


def _middle(clocks: tuple[int, int], group: Ints, ahead_s: Seconds, n_groups: int, how: str) -> ClockLink:
    """Take the median of each group of steps, NaN where it has none, and the half interquartile range around the medians.

    `group` is sorted.
    """
    found = np.full(n_groups, np.nan)
    first = np.flatnonzero(begins_run(group))
    found[group[first]] = [np.median(part) for part in np.split(ahead_s, first[1:])]
    low, high = np.quantile(ahead_s - found[group], [0.25, 0.75])
    one_each = n_groups > 1 and len(first) == len(group)
    return ClockLink(*clocks, found, np.nan if one_each else float(high - low) / 2.0, how)


def _bounded(upper: dict[tuple[int, int], dict[int, float]], n_steps: int, *, per_step: bool) -> list[ClockLink]:
    """Take the middle between the bounds of both directions; where there is one only, no more than it asks for."""
    links = []
    for a, b in sorted({(min(pair), max(pair)) for pair in upper}):
        most, least = (_of_steps(upper.get(pair, {}), n_steps) for pair in ((a, b), (b, a)))
        if not per_step:
            most, least = (np.array([_tightest(bound)]) for bound in (most, least))
        least = -least
        above, below = np.isfinite(most), np.isfinite(least)
        both = above & below
        ahead = np.full(len(most), np.nan)
        ahead[above] = np.minimum(most[above], 0.0)
        ahead[below] = np.maximum(least[below], 0.0)
        agree = (least <= 0.0) & (
            most >= 0.0
        )  # a difference that nothing asks for is no evidence: links may be slow one way
        ahead[both] = np.where(agree, 0.0, (most + least) / 2.0)[both]
        width = np.abs(most[both] - least[both]) / 2.0
        links.append(ClockLink(a, b, ahead, float(np.median(width)) if width.size else np.nan, "schedule"))
    return links


def _of_steps(bound: dict[int, float], n_steps: int) -> Seconds:
    """Lay bounds out by step; infinite where a step says nothing."""
    found = np.full(n_steps, np.inf)
    found[list(bound.keys())] = list(bound.values())
    return found


def _tightest(bound: Seconds) -> float:
    """Take the tight end of the bounds of all steps, a few that are torn off left out."""
    known = bound[np.isfinite(bound)]
    return float(np.quantile(known, TIGHT_QUANTILE)) if known.size else np.inf


def or_zero(column: Ints | None, recording: Recording) -> Ints:
    """Give a column, or zeros where the format has none."""
    return np.zeros(len(recording), dtype=np.int64) if column is None else column
