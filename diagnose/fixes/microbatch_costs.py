"""What each microbatch costs: by its documents where a fit on the trace says so, else by how long it took.

Enters: a measured job. Leaves: costs of every microbatch, forward and backward, in units of a typical one, and the documents by
their place. Costs a few passes over the computes and a fit on a sample of the microbatches.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from diagnose.model.analysis import Analysis
from diagnose.model.components import Breakdown
from diagnose.model.documents import Documents
from diagnose.model.optype import Op
from diagnose.model.trace import Block, Bools, Ints, Seconds
from diagnose.numerics.robust import nan_median
from diagnose.packing.cost import Cost, fit_cost

#: Lengths must explain this part of the variance of the microbatches; below, something else makes most of them uneven. On generated
#: jobs with long documents it is above 0.8 in all but the noisiest, and below 0.1 where the lengths say nothing.
MIN_QUALITY = 0.5
#: Microbatches that a fit looks at.
MAX_FITTED = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class LengthCost:
    """Cost of a microbatch by the lengths of its documents, in units of a typical microbatch."""

    #: Forward, backward, and weight gradients where they are computed apart.
    directions: tuple[Cost, ...]
    #: All of them together, each by its part of the time.
    both: Cost
    #: Part of the variance of the microbatches' times that it explains, 1 all.
    quality: float
    #: Part of a typical microbatch's time that each direction is.
    shares: tuple[float, ...]

    def both_of(self, cost_of: Callable[[Cost], Seconds]) -> Seconds:
        """Add up what all directions cost, each by its part of the time; `cost_of` says it for one cost."""
        forward, *others = (share * cost_of(cost) for share, cost in zip(self.shares, self.directions, strict=True))
        return sum(others, start=forward)

    def of(self, tokens: Seconds, tokens_sq: Seconds) -> Seconds:
        """Give the cost in each direction, shape (n_directions, ...) where the sums have shape (...)."""
        return np.stack([cost.linear * tokens + cost.quadratic * tokens_sq for cost in self.directions])


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """Documents by their place."""

    #: `tokens`, `tokens_sq`: shape (n_microbatches, n_steps, n_dp): sum of the lengths and of their squares; NaN where unknown.
    tokens: Seconds
    tokens_sq: Seconds
    #: The lists behind them; None where the trace has sums alone.
    documents: Documents | None
    #: Shape (n_microbatches, n_steps, n_dp): which list is there; -1 where none is known.
    list_at: Ints


def weigh_directions(breakdown: Breakdown) -> Seconds:
    """Say which part of a typical microbatch's time each direction is, shape (n_directions, 1, 1, 1)."""
    weight = np.nan_to_num(breakdown.typical_s).sum(axis=1)
    return np.asarray(weight / max(float(weight.sum()), 1e-12)).reshape(-1, 1, 1, 1)


def find_places(breakdown: Breakdown) -> Bools:
    """Say which microbatches there are, shape (n_microbatches, n_steps, n_dp)."""
    return np.asarray(~np.isnan(breakdown.compute_s).all(axis=(0, 1)))


def implied_cost(breakdown: Breakdown) -> Seconds:
    """Give what the times say that each microbatch costs; shape (2, n_microbatches, n_steps, n_dp).

    `microbatch_ordinary` says how much of the spread is ordinary. Its square is the part of the variance, and so how far a value
    is to be drawn back to the middle for what it owes to chance. (Removing the component keeps the spread instead, which would
    cut the longest microbatches short here: they move, they do not go.)
    """
    told = breakdown.microbatch_told
    return np.asarray(told * (breakdown.microbatch_ratio / told) ** (1.0 - breakdown.microbatch_ordinary**2))


def read_lengths(analysis: Analysis) -> Lengths | None:
    """Put documents, or else the sums that the rows say, into their places; None where the trace has neither."""
    shape = analysis.breakdown.compute_s.shape[2:]
    found = _from_documents(analysis.trace.documents, analysis.breakdown.steps, find_places(analysis.breakdown))
    if found is not None:
        return found
    tokens, tokens_sq = np.full(shape, np.nan), np.full(shape, np.nan)
    for block in analysis.trace.blocks:
        if block.tokens is None or block.tokens_sq is None:
            return None
        at, of_block = _find_steps(block.steps, analysis.breakdown.steps)
        for values, rows in ((tokens, block.tokens), (tokens_sq, block.tokens_sq)):
            for node in _first_stage(block):
                values[block.nodes.microbatch[node], at] = rows[node][of_block]
    return Lengths(tokens, tokens_sq, None, np.full(shape, -1, dtype=np.int64))


def fit_costs(analysis: Analysis, tokens: Seconds, tokens_sq: Seconds) -> LengthCost | None:
    """Fit the cost of a microbatch, a x tokens + b x sum of squared lengths, to the times of this job.

    Parameters
    ----------
    analysis : Analysis
    tokens, tokens_sq : ndarray of float64, shape (n_microbatches, n_steps, n_dp)
        NaN where unknown.

    Returns
    -------
    LengthCost or None
        None where too few microbatches are known, or their times do not grow with the lengths.
    """
    ratio = _measured_ratio(analysis.breakdown)
    weight = weigh_directions(analysis.breakdown)
    both = (ratio * weight).sum(axis=0)
    known = np.flatnonzero(np.isfinite(both) & np.isfinite(tokens) & np.isfinite(tokens_sq))
    picked = known[:: max(1, -(-len(known) // MAX_FITTED))]
    lengths = tokens.ravel()[picked], tokens_sq.ravel()[picked]
    first = fit_cost(*lengths, both.ravel()[picked])
    if first is None:
        return None
    pace = _pace_of_ranks(both, first.cost.linear * tokens + first.cost.quadratic * tokens_sq)
    fits = [fit_cost(*lengths, (y / pace).ravel()[picked]) for y in (*ratio, both)]
    found = [fit for fit in fits if fit is not None]
    if len(found) < len(fits):
        return None
    costs = tuple(fit.cost for fit in found[:-1])
    shares = weight.ravel()[:-1].tolist()
    shares.append(1.0 - sum(shares))
    joined = Cost(
        sum(share * cost.linear for share, cost in zip(shares, costs, strict=True)),
        sum(share * cost.quadratic for share, cost in zip(shares, costs, strict=True)),
    )
    return LengthCost(costs, joined, found[-1].r_squared, tuple(shares))


def _pace_of_ranks(both: Seconds, predicted: Seconds) -> Seconds:
    """Say how slow each dp rank is for what its microbatches hold, shape (n_dp,), 1 the middle one.

    A slow worker among few peers may pass for uneven microbatches; the same factor on all of a rank is no matter of lengths.
    """
    pace = nan_median(both / np.where(predicted > 0, predicted, np.nan), axis=(0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):  # computes that take no time have no pace
        pace = pace / nan_median(pace, axis=0)
    return np.where(np.isfinite(pace) & (pace > 0), pace, 1.0)


def _measured_ratio(c: Breakdown) -> Seconds:
    """Say how long each microbatch took against a typical one, middle of the stages; shape (2, n_microbatches, n_steps, n_dp)."""
    work_s = c.compute_s - c.stalls.inside_s - (0.0 if c.queue_wait_s is None else c.queue_wait_s)
    usual_s = (
        c.variant_ratio
        * c.typical_s[:, :, None, None, None]
        * c.step_ratio[:, None, None, :, None]
        * c.worker_ratio[:, :, None]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(nan_median(work_s / usual_s, axis=1))  # NaN where no stage has it


def _from_documents(documents: Documents | None, steps: Ints, there: Bools) -> Lengths | None:
    """Put the lists into their places; None where there are none."""
    if documents is None:
        return None
    at, of_list = _find_steps(documents.step, steps)
    kept = there[documents.microbatch[of_list], at, documents.dp[of_list]]
    at, of_list = at[kept], of_list[kept]
    if not len(of_list):
        return None
    place = documents.microbatch[of_list], at, documents.dp[of_list]
    list_at = np.full(there.shape, -1, dtype=np.int64)
    list_at[place] = of_list
    sums = []
    for values in (documents.tokens(), documents.tokens_sq()):
        laid = np.full(there.shape, np.nan)
        laid[place] = values[of_list]
        sums.append(laid)
    return Lengths(sums[0], sums[1], documents, list_at)


def _find_steps(steps: Ints, among: Ints) -> tuple[Ints, Ints]:
    """Find step numbers among others: their positions there, and which of them were found."""
    order = np.argsort(among, kind="stable")
    at = np.minimum(np.searchsorted(among[order], steps), len(among) - 1)
    found = np.flatnonzero(among[order][at] == steps)
    return order[at[found]], found


def _first_stage(block: Block) -> list[int]:
    """List the forwards of the first stage that says tokens."""
    nodes = block.nodes
    forwards = (nodes.op == Op.FORWARD) & (nodes.chunk <= 0)
    for stage in range(int(nodes.stage.max()) + 1):
        of_stage = np.flatnonzero(forwards & (nodes.stage == stage))
        if block.tokens is not None and not np.isnan(block.tokens[of_stage]).all():
            return [int(node) for node in of_stage]
    return []
