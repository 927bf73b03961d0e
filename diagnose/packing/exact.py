"""Fixed-length packing by branch and bound, time-limited: the reference for greedy packers.

Enters: documents, seconds. Leaves: a `Packing` that says how much of it is proven.

A few long documents make the imbalance; the many short ones level what they leave. So only the longest are decided as whole
documents by the solver, and all others may be split between microbatches: a relaxation, whose optimum bounds every packing
from below. Then whole short documents are put where the relaxation puts most of them. Where the result is within a hundredth
of the bound it is called proven.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Bools, Seconds
from diagnose.packing.greedy import deal_batches, order_documents
from diagnose.packing.plan import Bins, Documents, Packing

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

#: Long documents decided as a whole, for each microbatch. More of them make the bound tighter and the search longer.
_LONG_PER_BIN = 2
#: The solver stops within this of the bound, relative.
_SOLVER_GAP = 0.002
#: A packing within this of the bound is proven optimal, relative: what whole short documents cost beyond split ones.
PROVEN_GAP = 0.01
#: Tokens that may be left over for the next batch beyond what greedy packing leaves, as a share of all: whole documents seldom fill
#: every microbatch to the last token.
_LEFT_SHARE = 0.001
#: Variables of one problem; above it building the problem would outlast any limit.
_MAX_VARIABLES = 2_000_000


def pack_exact(docs: Documents, *, limit_s: float, together: int = 1) -> Packing:
    """Pack so that the sum over batches of the dearest microbatch is least, as far as that is found in time.

    Parameters
    ----------
    docs : Documents
        `max_tokens` is the window.
    limit_s : float
        Seconds for each problem. Where a limit ends a search the result depends on the machine.
    together : int
        Global batches that are read and packed as one problem.

    Returns
    -------
    Packing
        Never dearer than `pack_greedy` on the same documents, which is taken where the solver finds nothing better. What fits
        nowhere is packed with the next batches.

    Raises
    ------
    UsageError
        A limit that is not above 0, or a problem of more than 2 million variables.

    Notes
    -----
    Our reading of the *solver* in the published table. The solver is HiGHS through scipy, on one thread and without random choices.
    """
    if not limit_s > 0:
        raise UsageError(f"a limit of {limit_s:g} seconds leaves no time to solve anything; expected more than 0")
    waiting: list[int] = []
    n_windows = n_proven = 0
    for start, arriving in docs.arriving(together):
        size = min(together, docs.n_batches - start)
        ordered = order_documents(docs, waiting, arriving, start, together)
        bins = Bins.empty(size * docs.n_microbatches)
        best = _Filled(bins, *bins.fill(docs, ordered))
        if ordered:
            best, is_proven = _improve(docs, ordered, size, best, limit_s)
            n_windows, n_proven = n_windows + 1, n_proven + is_proven
        waiting = best.waiting
        deal_batches(docs, best.bins, best.placed, start)
    return docs.packing(n_windows=n_windows, n_proven=n_proven)


class _Filled(NamedTuple):
    """Microbatches, the one of each document, and what fits nowhere."""

    bins: Bins
    placed: dict[int, int]
    waiting: list[int]


def _improve(
    docs: Documents, ordered: list[int], n_batches: int, greedy: _Filled, limit_s: float
) -> tuple[_Filled, bool]:
    """Solve one problem, and keep the greedy packing where it is as good; say whether nothing better exists."""
    n_bins = n_batches * docs.n_microbatches
    if len(ordered) * n_bins > _MAX_VARIABLES:
        raise UsageError(
            f"{len(ordered)} documents in {n_bins} microbatches are too many for the exact packer; "
            "leave it out, or pack fewer batches as one"
        )
    longest_first = sorted(greedy.placed, key=docs.rank.__getitem__)
    split, bound = _relax(docs, longest_first, n_batches, limit_s)
    best = greedy
    if split is not None:
        found = _round(docs, ordered, longest_first, split)
        cheaper = _objective(found.bins, n_batches) < _objective(greedy.bins, n_batches)
        if cheaper and _leaves_no_more(docs, found.waiting, greedy.waiting, n_bins):
            best = found
    return best, bool(_objective(best.bins, n_batches) <= bound * (1 + PROVEN_GAP))


def _leaves_no_more(docs: Documents, waiting: list[int], other: list[int], n_bins: int) -> bool:
    """Say whether no more is left over than the other packing leaves, up to rounding."""
    more = sum(docs.lengths[doc] for doc in waiting) - sum(docs.lengths[doc] for doc in other)
    return more <= docs.max_tokens * n_bins * _LEFT_SHARE


def _objective(bins: Bins, n_batches: int) -> float:
    """Sum the dearest microbatch of every batch, batches formed of microbatches that cost alike."""
    costs = np.sort(bins.costs)[::-1].reshape(n_batches, -1)
    return float(costs[:, 0].sum())


def _relax(docs: Documents, longest_first: list[int], n_batches: int, limit_s: float) -> tuple[Seconds | None, float]:
    """Decide where long documents go when short ones may be split; give parts of shape (n_docs, n_bins), and the bound."""
    from scipy.optimize import Bounds, milp

    n_bins = n_batches * docs.n_microbatches
    costs = np.array([docs.costs[doc] for doc in longest_first])
    scale = costs.sum() / n_bins
    tokens = np.array([docs.lengths[doc] for doc in longest_first]) / docs.max_tokens
    n_long = min(_LONG_PER_BIN * n_bins, len(costs))
    n_parts = len(costs) * n_bins
    whole = np.zeros(n_parts + n_batches)
    whole[: n_long * n_bins] = 1
    upper = np.concatenate(
        [_open_in_order(len(costs), n_long, n_batches, docs.n_microbatches).ravel(), np.ones(n_batches)]
    )
    upper[n_parts:] = np.inf
    constraints = _constraints(tokens, costs / scale, n_long, n_batches, docs.n_microbatches)
    with _silence():
        found = milp(
            np.concatenate([np.zeros(n_parts), np.ones(n_batches)]),
            constraints=constraints,
            integrality=whole,
            bounds=Bounds(np.zeros(n_parts + n_batches), upper),
            options={"time_limit": limit_s, "mip_rel_gap": _SOLVER_GAP},
        )
    bound = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale
    return (None if found.x is None else found.x[:n_parts].reshape(len(costs), n_bins)), bound


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Send what the solver prints from C++ (it does now and then, whatever its options) to standard error, out of results."""
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # a stream is closed: nothing can be spoilt, or nothing be saved
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, TypeError, AttributeError):
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _open_in_order(n_docs: int, n_long: int, n_batches: int, n_microbatches: int) -> Bools:
    """Say where each document may go when the batches and microbatches, all alike, are numbered as long documents open them."""
    batch, microbatch = np.divmod(np.arange(n_batches * n_microbatches), n_microbatches)
    allowed: Bools = np.arange(n_docs)[:, None] >= (batch + microbatch)[None, :]
    allowed[n_long:] = True
    return allowed


def _constraints(
    tokens: Seconds, costs: Seconds, n_long: int, n_batches: int, n_microbatches: int
) -> "list[LinearConstraint]":
    """Say in sparse rows: each document once, no microbatch over its tokens, each batch as dear as its dearest microbatch.

    The variables are the parts of each document in each microbatch, document by document, then the dearest cost of each batch.
    """
    from scipy import sparse
    from scipy.optimize import LinearConstraint

    n_docs, n_bins = len(tokens), n_batches * n_microbatches
    one_bin, one_batch = sparse.eye_array(n_bins), sparse.eye_array(n_batches)
    of_batch = sparse.kron(one_batch, np.ones((1, n_microbatches)))  # (n_batches, n_bins)
    once = _widen(sparse.kron(sparse.eye_array(n_docs), np.ones((1, n_bins))), n_batches)
    full = _widen(sparse.kron(tokens[None, :], one_bin), n_batches)
    dearest = sparse.hstack([sparse.kron(costs[None, :], one_bin), -of_batch.T])
    mean = sparse.hstack([sparse.kron(costs[None, :] / n_microbatches, of_batch), -one_batch])
    long = sparse.kron(sparse.diags_array(costs[:n_long]), of_batch)  # a batch is as dear as each of its long documents
    rest = sparse.csr_array((n_long * n_batches, (n_docs - n_long) * n_bins))
    each = sparse.hstack([long, rest, -sparse.kron(np.ones((n_long, 1)), one_batch)])
    return [
        LinearConstraint(once, 1, 1),
        LinearConstraint(full, -np.inf, 1),
        LinearConstraint(sparse.vstack([dearest, mean, each]), -np.inf, 0),
    ]


def _widen(rows: Any, n: int) -> Any:
    """Add columns of zeros."""
    from scipy import sparse

    return sparse.hstack([rows, sparse.csr_array((rows.shape[0], n))])


def _round(docs: Documents, ordered: list[int], longest_first: list[int], split: Seconds) -> _Filled:
    """Put documents where the relaxation has most of them, what no longer fits where most of the planned cost is missing."""
    bins = Bins.empty(split.shape[1])
    costs = np.array([docs.costs[doc] for doc in longest_first])
    missing = (costs @ split).tolist()  # of the planned cost of each microbatch
    main = dict(zip(longest_first, split.argmax(axis=1).tolist(), strict=True))
    placed: dict[int, int] = {}
    waiting: list[int] = []
    for doc in ordered:
        limit = docs.max_tokens - docs.lengths[doc]
        bin_ = main.get(doc, -1)
        if bin_ < 0 or bins.tokens[bin_] > limit:
            fitting = (n for n, used in enumerate(bins.tokens) if used <= limit)
            bin_ = max(fitting, key=missing.__getitem__, default=-1)
        if bin_ < 0:
            waiting.append(doc)
            continue
        bins.add(bin_, docs.costs[doc], docs.lengths[doc])
        missing[bin_] -= docs.costs[doc]
        placed[doc] = bin_
    return _Filled(bins, placed, waiting)
