"""Find the best layout in whole layers, of all there are, with few replays.

Enters: the price of a layout. Leaves: a `Found`. A replayed step is the longest of many paths, the time of each path is linear in
the layers of each stage: so the mean step time is convex in the layout. A replay with its slopes therefore bounds the price of
every other layout from below; the search goes where these bounds are lowest, and is over when none is below the best price.

Source: Kelley (1960), cutting planes for convex functions, here over whole numbers.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

#: Price of a layout, whole or not: mean seconds a step.
PriceLayout = Callable[[Sequence[float]], float]
Layout = tuple[int, ...]

#: A layout less than this part cheaper is no better: slopes are differences, and nobody moves layers for so little.
TOLERANCE = 1e-5
#: Of layouts that give back as much as the best, but for this part of it, the one is taken for which fewest layers move.
AS_GOOD_SHARE = 0.005
#: Slopes are taken beside the layout, by parts of a layer, where no two paths are equally long, over steps this short.
BESIDE, STRIDE = 1e-5, 1e-6
#: How far from the best layout the next is looked for, first of all nearby; None: everywhere.
REACHES: tuple[int | None, ...] = (1, 2, None)
#: Bounds of unfinished layouts worked out at once at most; beyond, the most promising layouts are kept, and nothing is proven.
MAX_BOUNDS = 200_000
#: Turns in which the weights of the floor are found.
FLOOR_TURNS = 2_000


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The layout to take, its mean seconds a step, and those that no layout goes below; `proven` where the best one is known.

    `n_layouts` are whole layouts replayed, `n_replays` all replays, those for slopes included.
    """

    layout: Layout
    price_s: float
    n_layouts: int
    n_replays: int
    floor_s: float
    proven: bool


def find_layout(price: PriceLayout, starts: Sequence[Layout], *, limits: tuple[int, int], max_replays: int) -> Found:
    """Find the layout with the lowest price, which is convex in the layout; after `max_replays` the best so far.

    Of layouts that are as good it is the nearest to the first of `starts`, the present one. These are of the same number of
    layers, and priced in any case; `limits` are the fewest and most layers of a virtual stage.
    """
    search = _Search(price, limits)
    for start in dict.fromkeys(starts):
        search.look(start)
    per_cut = len(starts[0])
    nearby = True
    while nearby and search.n_replays + per_cut <= max_replays:
        if search.best not in search.cuts:
            search.cut(search.best)
            continue
        layouts = (search.lowest_bound(reach).layout for reach in REACHES)
        layout = next((found for found in layouts if found is not None), None)
        nearby = layout is not None
        if layout is not None:
            search.look(layout)
            if layout != search.best and search.n_replays + per_cut <= max_replays:
                search.cut(layout)
    last = search.lowest_bound(None)
    best_s = search.prices[search.best]
    enough_s = best_s + AS_GOOD_SHARE * (search.prices[starts[0]] - best_s)
    layout = min(
        (layout for layout, price_s in search.prices.items() if price_s <= enough_s),
        key=lambda layout: (sum(abs(n - before) for n, before in zip(layout, starts[0], strict=True)), layout),
    )
    return Found(
        layout=layout,
        price_s=search.prices[layout],
        n_layouts=len(search.prices),
        n_replays=search.n_replays,
        floor_s=min(last.bound_s if last.exact else search.floor(), best_s),
        proven=last.exact and last.layout is None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Next:
    """The layout that has the lowest bound of those not priced, None where no bound is below the best price.

    `exact` says that no layout was left out.
    """

    layout: Layout | None
    bound_s: float
    exact: bool


class _Search:
    """Layouts priced so far, and the bounds that they give."""

    def __init__(self, price: PriceLayout, limits: tuple[int, int]) -> None:
        self.price, (self.least, self.most) = price, limits
        self.prices: dict[Layout, float] = {}
        self.cuts: dict[Layout, tuple[float, NDArray[np.float64]]] = {}
        self.n_replays = 0

    @property
    def best(self) -> Layout:
        """The cheapest layout so far, the first of equals."""
        return min(self.prices, key=self.prices.__getitem__)

    def look(self, layout: Layout) -> None:
        """Price a layout."""
        if layout not in self.prices:
            self.prices[layout] = self._replay(np.array(layout, dtype=np.float64))

    def cut(self, layout: Layout) -> None:
        """Take the slopes at a layout: price(y) >= constant + slopes x y for every y of as many layers."""
        n = len(layout)
        # Beside the layout, by parts that have nothing to do with each other, no two paths are equally long.
        parts = np.sqrt(np.arange(n) + 2.0) % 1.0
        beside = np.array(layout) + BESIDE * (parts - parts.mean())
        here = self._replay(beside)
        slopes = np.zeros(n)
        for u in range(1, n):
            moved = beside.copy()
            moved[u] += STRIDE
            moved[0] -= STRIDE
            slopes[u] = (self._replay(moved) - here) / STRIDE
        # All have as many layers: what others get the first stage loses, so it has no slope of its own.
        self.cuts[layout] = (here - float(slopes @ beside), slopes)

    def _replay(self, layout: NDArray[np.float64]) -> float:
        """Price any layout."""
        self.n_replays += 1
        return self.price(layout.tolist())

    def lowest_bound(self, reach: int | None) -> _Next:
        """Find the layout with the lowest bound within reach of the best one, stage by stage.

        Unfinished layouts whose bound is not below the best price, whatever comes after, are left.
        """
        limit = self.prices[self.best] * (1.0 - TOLERANCE)
        n = len(self.best)
        if not self.cuts:
            return _Next(None, limit, exact=False)
        slopes = np.array([slope for _, slope in self.cuts.values()])
        sums = np.array([[constant for constant, _ in self.cuts.values()]])
        layouts, left, bounds_s = np.zeros((1, 0), dtype=np.int64), np.array([sum(self.best)]), np.zeros(1)
        exact = True
        for u in range(n):
            rest, counts = n - 1 - u, self._counts(u, reach)
            most = max(MAX_BOUNDS // (len(counts) * len(self.cuts)), 1)
            if len(left) > most:
                exact = False
                kept = np.sort(np.argsort(bounds_s, kind="stable")[:most])
                layouts, sums, left = layouts[kept], sums[kept], left[kept]
            after = left[:, None] - counts
            at, which = np.nonzero((after >= self.least * rest) & (after <= self.most * rest))
            left, sums = after[at, which], sums[at] + counts[which, None] * slopes[None, :, u]
            bound = sums
            if rest:
                of_rest = slopes[:, u + 1 :]
                spare = (left - self.least * rest)[:, None]
                bound = sums + self.least * of_rest.sum(axis=1) + spare * of_rest.min(axis=1)
            bounds_s = bound.max(axis=1)
            keep = np.flatnonzero(bounds_s < limit)
            layouts = np.concatenate([layouts[at[keep]], counts[which[keep], None]], axis=1)
            sums, left, bounds_s = sums[keep], left[keep], bounds_s[keep]
        for i in np.argsort(bounds_s, kind="stable").tolist():
            layout = tuple(layouts[i].tolist())
            if layout not in self.prices:
                return _Next(layout, float(bounds_s[i]), exact)
        return _Next(None, limit, exact)

    def floor(self) -> float:
        """Say what no layout is cheaper than, fractions of layers among them: the best mean of the bounds, each weighed.

        A mean of bounds is a bound too, and linear: its lowest value is found at once. Weights that bind there are raised in turn.
        """
        if not self.cuts:
            return 0.0
        n, total = len(self.best), sum(self.best)
        slopes = np.array([slope for _, slope in self.cuts.values()])
        lowest = np.array([constant for constant, _ in self.cuts.values()]) + self.least * slopes.sum(axis=1)
        spare = total - self.least * n
        log_weights, best = np.zeros(len(lowest)), -np.inf
        for turn in range(FLOOR_TURNS):
            weights = np.exp(log_weights - log_weights.max())
            weights /= weights.sum()
            mean = weights @ slopes
            at = int(np.argmin(mean))
            values = lowest + spare * slopes[:, at]
            best = max(best, float(weights @ values))
            spread = float(np.ptp(values))
            if spread == 0.0:
                break
            log_weights += values / spread * (4.0 / np.sqrt(turn + 1.0))
        return best

    def _counts(self, u: int, reach: int | None) -> NDArray[np.int64]:
        """List the numbers of layers that a virtual stage may have."""
        low, high = self.least, min(self.most, sum(self.best))
        if reach is not None:
            low, high = max(low, self.best[u] - reach), min(high, self.best[u] + reach)
        return np.arange(low, high + 1, dtype=np.int64)


def even_out(
    stage_s: Callable[[Sequence[float]], NDArray[np.float64]], n_virtual: int, total: int, limits: tuple[int, int]
) -> Layout:
    """Find the layout whose longest stage is shortest: give each layer to the stage that is shortest with it.

    That is exact where a stage never gets shorter with a layer more. `stage_s` gives the seconds of each virtual stage with a
    layout.

    >>> even_out(lambda layout: np.array(layout) + [0.0, 2.5], 2, 8, (1, 8))
    (5, 3)
    """
    layout = np.full(n_virtual, limits[0])
    for _ in range(total - limits[0] * n_virtual):
        with_one = np.where(layout < limits[1], stage_s((layout + 1).tolist()), np.inf)
        layout[int(np.argmin(with_one))] += 1
    return tuple(layout.tolist())
