"""Pack the documents of a job anew: what each microbatch then holds, how late tokens come, and how much memory it takes.

Enters: documents by their place, and what they cost. Leaves: sums of lengths and of squares for every microbatch. Costs one run of
a packer; of a large job an even sample of the steps is packed.
"""

import dataclasses
import itertools
import math

import numpy as np

from diagnose.fixes.deal import deal_evenly, take_dealt
from diagnose.fixes.microbatch_costs import Lengths
from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.packing.balanced import pack_balanced
from diagnose.packing.cost import Cost
from diagnose.packing.forming import PackerName
from diagnose.packing.greedy import pack_greedy
from diagnose.packing.measure import measure
from diagnose.packing.plan import WAITING, Documents, Packing, check_documents
from diagnose.packing.queues import pack_queues
from diagnose.packing.ranks import fill_ranks

#: Work of a packer: documents times microbatches to choose from, and this many more for each document; 20 to 50 ns each.
OVERHEAD = 300
#: A call of a packer costs as many documents.
CALL_DOCUMENTS = 20
#: The search of `balanced` looks at every long document (above this part of the room) for every number of them held back.
LONG_SHARE = 0.125
#: Outlier queues where none are given: a document that alone costs this part of a mean microbatch waits for others like it.
QUEUE_SHARES = (0.5, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How to pack."""

    layout: PackerName
    #: Room of a microbatch over the tokens of the longest one now.
    memory: float
    #: Of the queues, tokens; None: chosen by what documents cost.
    thresholds: tuple[int, ...] | None = None
    #: Work that a packer may do; where all steps are more, an even sample of them is packed.
    max_work: float = math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """Documents in their new places."""

    #: `tokens`, `tokens_sq`: shape (n_microbatches, n_steps, n_dp): as they were where nothing was packed anew; 0 where not
    #: known.
    tokens: Seconds
    tokens_sq: Seconds
    #: Shape (n_microbatches, n_steps, n_dp): which microbatches were packed anew.
    known: Bools
    #: Shape (n_steps,): steps that could have been packed, and were left out because there are too many.
    left: Bools
    #: `delayed_share`, `mean_delay_steps`: part of the tokens that come later than in their own step, and steps that a token
    #: waits on average, all tokens counted.
    delayed_share: float
    mean_delay_steps: float
    max_delay_steps: int
    #: Tokens of the longest microbatch over those of the longest before.
    memory_ratio: float
    #: Part of the tokens that still wait after the last step; the others stand in for them.
    waiting_share: float

    @property
    def sampled_share(self) -> float:
        """Part of the steps that could be packed that was."""
        n_packed = int(self.known.any(axis=(0, 2)).sum())
        return n_packed / max(n_packed + int(self.left.sum()), 1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Stream:
    """Documents of some steps, in time."""

    #: Shape (n_batches,): positions of the steps.
    steps: Ints
    #: `lengths`, `arrives`: shape (n_documents,): `arrives` is an index into `steps`, and rises.
    lengths: Ints
    arrives: Ints
    #: Shape (n_microbatches, n_batches, n_dp): which microbatches they are of.
    places: Bools


def repack(lengths: Lengths, steps: Ints, cost: Cost, way: Way, *, longest_weight: float) -> Packed | None:
    """Pack the documents of every step whose documents are known, or of an even sample of them.

    Packers take the `steps` in time, as if each followed the one before. None where one global batch alone is more work than
    allowed.
    """
    assert lengths.documents is not None
    waits = way.layout in ("queues", "balanced")
    room = max(int(way.memory * float(np.nanmax(lengths.tokens)) + 1e-6), int(lengths.documents.lengths.max(initial=1)))
    everything = _gather(lengths, _choose_steps(lengths.list_at >= 0, steps, alike=waits))
    per_step = _work_of(everything, way, room) / len(everything.steps)
    if per_step > way.max_work:
        return None
    stride = max(1, math.ceil(per_step * len(everything.steps) / way.max_work))
    stream = everything if stride == 1 else _gather(lengths, everything.steps[::stride])
    packing = _pack(stream, cost, room, way)
    measured = measure(packing, cost, 1)
    known = np.zeros(lengths.list_at.shape, dtype=bool)
    known[:, stream.steps] = stream.places
    left = np.isin(np.arange(len(steps)), np.setdiff1d(everything.steps, stream.steps))
    tokens, tokens_sq = _lay_out(packing, stream, lengths, cost)
    if way.layout != "ranks":
        new_cost = cost.linear * tokens + cost.quadratic * tokens_sq
        source = deal_evenly(new_cost, known, longest_weight=longest_weight)
        tokens, tokens_sq = take_dealt(tokens, source), take_dealt(tokens_sq, source)
    return Packed(
        tokens=tokens,
        tokens_sq=tokens_sq,
        known=known,
        left=left,
        delayed_share=measured.delayed_share,
        mean_delay_steps=measured.mean_delay,
        max_delay_steps=measured.max_delay,
        memory_ratio=measured.max_tokens / max(float(np.nanmax(lengths.tokens)), 1.0),
        waiting_share=measured.waiting_tokens / max(float(packing.lengths.sum()), 1.0),
    )


def choose_thresholds(cost: Cost, mean_cost: float, max_tokens: int) -> tuple[int, ...]:
    """Choose outlier queues: the lengths at which a document alone costs some part of a mean microbatch.

    >>> choose_thresholds(Cost(0.0, 1.0), 100.0, 1000)
    (8, 10)
    """
    found = []
    for share in QUEUE_SHARES:
        wanted = share * mean_cost
        tokens = wanted / cost.linear if cost.linear > 0 else math.inf
        if cost.quadratic > 0:
            root = math.sqrt(cost.linear**2 + 4.0 * cost.quadratic * wanted)
            tokens = (root - cost.linear) / (2.0 * cost.quadratic)
        found.append(max(math.ceil(min(tokens, max_tokens + 1.0)), 1))
    return tuple(sorted(set(found)))


def _choose_steps(known: Bools, steps: Ints, *, alike: bool) -> Ints:
    """Choose the steps of which something is known, in time; `alike`: those of which the same, the most there are."""
    in_time = np.argsort(steps, kind="stable")
    if not alike:
        some = np.asarray(known.any(axis=(0, 2)))
        return np.asarray(in_time[some[in_time]])
    patterns, of_step = np.unique(known.transpose(1, 0, 2).reshape(len(steps), -1), axis=0, return_inverse=True)
    size = np.bincount(of_step) * patterns.sum(axis=1)
    return np.asarray(in_time[of_step[in_time] == size.argmax()])


def _gather(lengths: Lengths, steps: Ints) -> _Stream:
    """Gather the documents of some steps, in the order of the steps; those without tokens are left out."""
    assert lengths.documents is not None
    list_at = lengths.list_at[:, steps]
    of_step = list_at.transpose(1, 0, 2).reshape(len(steps), -1)
    batch, at = np.nonzero(of_step >= 0)
    taken = lengths.documents.take(of_step[batch, at])
    some = taken.lengths > 0
    arrives = batch[taken.list_of_document()]
    return _Stream(steps, taken.lengths[some].astype(np.int64), arrives[some], list_at >= 0)


def _work_of(stream: _Stream, way: Way, room: int) -> float:
    """Say about how much work a packer has."""
    n_documents, n_batches = len(stream.lengths), len(stream.steps)
    n_bins, of_rank = int(stream.places.sum(axis=(0, 2)).max()), int(stream.places.sum(axis=0).max())
    n_dp: int = stream.places.shape[2]
    if way.layout == "ranks":
        calls = CALL_DOCUMENTS * n_batches * (1 + n_dp)
        return float(n_documents) * (n_dp + of_rank + 2 * OVERHEAD) + float(calls) * OVERHEAD
    work = float(n_documents) * (n_bins + OVERHEAD)
    if way.layout == "balanced":
        n_long = np.bincount(stream.arrives[stream.lengths > LONG_SHARE * room], minlength=n_batches)
        work += float((n_long.astype(np.float64) ** 2).sum()) * n_bins
    return work


def _pack(stream: _Stream, cost: Cost, room: int, way: Way) -> Packing:
    """Run a packer; microbatches are numbered as they stand in the places of their step."""
    n_batches = len(stream.steps)
    n_bins = int(stream.places.sum(axis=(0, 2)).max())
    if way.layout in ("queues", "balanced"):
        docs = check_documents(stream.lengths, stream.arrives, n_bins, cost, room, n_batches=n_batches)
        if way.layout == "balanced":
            return pack_balanced(docs)
        thresholds = way.thresholds
        if thresholds is None:
            mean = float(cost.of(stream.lengths).sum()) / (n_batches * n_bins)
            thresholds = choose_thresholds(cost, mean, room)
        return pack_queues(docs, thresholds=thresholds)
    fill = _fill_ranks if way.layout == "ranks" else _fill_flat
    microbatch = np.zeros(len(stream.lengths), dtype=np.int64)
    bounds = np.searchsorted(stream.arrives, np.arange(n_batches + 1)).tolist()
    for batch, (low, high) in enumerate(itertools.pairwise(bounds)):
        microbatch[low:high] = fill(stream.lengths[low:high], stream.places[:, batch], cost, room)
    return Packing(stream.lengths, stream.arrives, stream.arrives, microbatch, n_batches, n_bins)


def _fill_flat(lengths: Ints, places: Bools, cost: Cost, room: int) -> Ints:
    """Deal the documents of one step to all of its microbatches: number of the microbatch of each, shape (n_documents,)."""
    docs = _arriving_together(lengths, int(places.sum()), cost, room)
    found: Ints = pack_greedy(docs).microbatch.copy()
    return _place_rest(found, np.flatnonzero(found < 0).tolist(), lengths, docs.n_microbatches)


def _fill_ranks(lengths: Ints, places: Bools, cost: Cost, room: int) -> Ints:
    """Deal the documents of one step to dp ranks, and those of a rank to its microbatches."""
    n_places = places.sum(axis=0)
    if len(np.unique(n_places[n_places > 0])) > 1:
        return _fill_flat(lengths, places, cost, room)  # ranks that cannot take as much
    docs = _arriving_together(lengths, int(places.sum()), cost, room)
    placed, waiting = fill_ranks(docs, np.argsort(docs.rank).tolist(), len(np.flatnonzero(n_places)))
    found: Ints = np.full(len(lengths), WAITING, dtype=np.int64)
    found[list(placed)] = list(placed.values())
    number = np.cumsum(places).reshape(places.shape) - 1  # of each microbatch, in the order of places
    by_rank = number.T[places.T]
    return by_rank[_place_rest(found, waiting, lengths, docs.n_microbatches)]


def _arriving_together(lengths: Ints, n_bins: int, cost: Cost, room: int) -> Documents:
    """Take the documents of one step for a packer."""
    return check_documents(lengths, np.zeros(len(lengths), dtype=np.int64), n_bins, cost, room, n_batches=1)


def _place_rest(found: Ints, waiting: list[int], lengths: Ints, n_bins: int) -> Ints:
    """Put what has no room where most is left, beyond the limit: nothing waits."""
    for document in waiting:
        placed = found >= 0
        found[document] = int(np.bincount(found[placed], lengths[placed], n_bins).argmin())
    return found


def _lay_out(packing: Packing, stream: _Stream, lengths: Lengths, cost: Cost) -> tuple[Seconds, Seconds]:
    """Say what every microbatch holds: sums of lengths and of squares, shape (n_microbatches, n_steps, n_dp).

    What still waits at the end is missing in the sums: they are scaled, so that all steps together cost what they did.
    """
    placed = packing.batch >= 0
    at = packing.batch[placed] * packing.n_microbatches + packing.microbatch[placed]
    held = packing.lengths[placed].astype(np.float64)
    shape = packing.n_batches, packing.n_microbatches
    sums = [np.bincount(at, values, shape[0] * shape[1]).reshape(shape) for values in (held, held**2)]
    before, now = float(cost.of(packing.lengths).sum()), float(cost.of(packing.lengths[placed]).sum())
    places = stream.places.transpose(1, 0, 2)
    used = np.arange(shape[1]) < places.sum(axis=(1, 2))[:, None]
    found = []
    for values, packed in zip((lengths.tokens, lengths.tokens_sq), sums, strict=True):
        laid = np.nan_to_num(values)
        of_steps = laid[:, stream.steps].transpose(1, 0, 2)
        of_steps[places] = packed[used] * (before / max(now, 1e-300))
        laid[:, stream.steps] = of_steps.transpose(1, 0, 2)
        found.append(laid)
    return found[0], found[1]
