"""Variable-length packing that decides for every batch which long documents are worth waiting for.

Enters: documents. Leaves: a `Packing`.

Queues let a long document wait for others between two thresholds, however well it would already fit. Here every batch asks what it
would cost: for each number of longest documents held back, the rest is laid out, and imbalance is weighed against the tokens
that wait. Short documents are plenty and small, so while choosing they are a liquid that levels the microbatches; only the
chosen layout is filled with real ones.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Seconds
from diagnose.packing.plan import Bins, Documents, Packing

#: Documents longer than this part of a microbatch are placed one by one while choosing, and wait at the higher price.
#: Half of it changed imbalance by less than 0.001.
_LONG_SHARE = 1 / 8
#: Imbalance (largest over mean cost of a microbatch, less 1) that is taken rather than let long documents of one batch's tokens
#: wait for another batch. Chosen on streams of seeds 5 and 6, judged on others: 0.4 to 0.7 all keep the mean delay near half a
#: batch and imbalance below 1.03.
HOLD_PRICE = 0.5
#: The same for short documents, which are cheaper to hold: they fit anywhere one batch later.
WAIT_PRICE = 0.4
#: Batches after which a long document that waits has doubled its price, so that none waits without end.
PATIENCE = 16.0
#: Layouts tried for one batch, about; where more long documents wait, some numbers are passed over.
_MAX_TRIES = 64
#: A layout must be better by more than rounding to replace one that holds less back.
_TIE = 1e-12


def pack_balanced(docs: Documents) -> Packing:
    """Balance cost, and hold long documents back only where that buys more balance than it costs delay.

    Parameters
    ----------
    docs : Documents
        `max_tokens` is the bound that memory sets, above the window.

    Returns
    -------
    Packing
        Nothing is trained before it arrives.
    """
    packer = BalancedPacker()
    for batch, arriving in docs.arriving():
        packer.form(docs, batch, arriving)
    return docs.packing()


@dataclasses.dataclass(slots=True)
class BalancedPacker:
    """Forms one batch after the other; documents that wait are named as in the `Documents` given."""

    long: list[int] = dataclasses.field(default_factory=list)
    #: Oldest first.
    short: list[int] = dataclasses.field(default_factory=list)
    #: Batches formed so far, and the tokens that have arrived in all of them.
    n_formed: int = 0
    arrived: int = 0

    def form(self, docs: Documents, batch: int, arriving: Sequence[int]) -> None:
        """Place documents in the next batch; what is left waits."""
        for doc in arriving:
            (self.long if docs.lengths[doc] > docs.max_tokens * _LONG_SHARE else self.short).append(doc)
            self.arrived += docs.lengths[doc]
        self.long.sort(key=docs.rank.__getitem__)
        self.n_formed += 1
        per_batch = max(self.arrived, 1) / self.n_formed
        prices = _price_long(docs, self.long, batch, per_batch)
        layout = _choose(docs, self.long, self.short, prices, WAIT_PRICE / per_batch)
        docs.place(batch, layout.placed)
        self.long = [doc for doc in self.long if doc not in layout.placed]
        self.short = _fill(docs, layout, self.short, batch)


def _price_long(docs: Documents, long: list[int], batch: int, per_batch: float) -> dict[int, float]:
    """Give the price of holding each long document back once more, where a batch brings so many tokens."""
    return {
        doc: HOLD_PRICE / per_batch * docs.lengths[doc] * (1.0 + (batch - int(docs.arrival_array[doc])) / PATIENCE)
        for doc in long
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Long documents in microbatches, and tokens of short ones to add."""

    bins: Bins
    placed: dict[int, int]
    short_tokens: float


def _choose(
    docs: Documents, long: list[int], short: list[int], price_of: dict[int, float], short_price: float
) -> _Layout:
    """Try every number of longest documents to hold back; give the layout of the lowest imbalance plus price."""
    amount = float(sum(docs.lengths[doc] for doc in short))
    density = sum(docs.costs[doc] for doc in short) / amount if amount else 0.0
    best, least = _Layout(Bins.empty(docs.n_microbatches), {}, amount), np.inf
    skipped_prices = [0.0, *itertools.accumulate(price_of.values())]
    for n_held in range(0, len(long) + 1, 1 + len(long) // _MAX_TRIES):
        skipped = skipped_prices[n_held]
        if skipped >= least:
            break
        bins = Bins.empty(docs.n_microbatches)
        placed, left = bins.fill(docs, long[n_held:])
        price = sum(price_of[doc] for doc in left)
        for short_tokens, imbalance in _level(bins, docs.max_tokens, density, amount):
            score = imbalance - 1.0 + skipped + price + short_price * (amount - short_tokens)
            if score < least - _TIE:
                best, least = _Layout(bins, placed, short_tokens), score
    return best


def _level(bins: Bins, max_tokens: int, density: float, amount: float) -> list[tuple[float, float]]:
    """Pour short documents in, all that fit or only what keeps the level; give their tokens and the imbalance of each way."""
    costs = np.array(bins.costs)
    room = max_tokens - np.array(bins.tokens, dtype=np.float64)
    if amount <= 0:
        return [(0.0, _imbalance(costs))]
    full = costs + room * density
    if room.sum() <= amount:
        ways = [(float(room.sum()), _imbalance(full))]
    else:
        poured = np.clip(_height(costs, full, amount * density) - costs, 0.0, room * density)
        ways = [(amount, _imbalance(costs + poured))]
    level = max(costs.max(), full.min())
    poured = np.clip(level - costs, 0.0, room * density)
    tokens = float(poured.sum()) / density
    if tokens < ways[0][0]:
        ways.append((tokens, _imbalance(costs + poured)))
    return ways


def _height(low: Seconds, high: Seconds, amount: float) -> float:
    """Give the height up to which microbatches, empty at `low` and full at `high`, rise together when so much is poured in."""
    points = np.concatenate([low, high])
    order = np.argsort(points, kind="stable")
    points = points[order]
    rising = np.cumsum(np.where(order < len(low), 1.0, -1.0))[:-1]
    poured = np.concatenate([[0.0], np.cumsum(rising * np.diff(points))])
    return float(np.interp(amount, poured, points))


def _imbalance(costs: Seconds) -> float:
    """Give the largest over the mean; an empty batch is as bad as one with all its work in one microbatch."""
    mean = float(costs.mean())
    return float(costs.max()) / mean if mean > 0 else float(len(costs))


def _fill(docs: Documents, layout: _Layout, short: list[int], batch: int) -> list[int]:
    """Add the oldest short documents, longest first; give those that wait, oldest first."""
    budget, n_taken = layout.short_tokens + 0.5, 0
    for doc in short:
        budget -= docs.lengths[doc]
        if budget < 0:
            break
        n_taken += 1
    placed, left = layout.bins.fill(docs, sorted(short[:n_taken], key=docs.rank.__getitem__))
    docs.place(batch, placed)
    return sorted(left + short[n_taken:], key=docs.arrival_array.__getitem__)
