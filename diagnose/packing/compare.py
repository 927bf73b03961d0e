"""Run all packers on one stream of documents and put their figures side by side.

Enters: whole document lengths and what a batch is. Leaves: a `Comparison`.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints
from diagnose.packing.balanced import pack_balanced
from diagnose.packing.cost import PUBLISHED_COST, Cost
from diagnose.packing.exact import pack_exact
from diagnose.packing.greedy import pack_greedy
from diagnose.packing.lengths import WINDOW, Stream, cut_stream
from diagnose.packing.measure import Measured, measure
from diagnose.packing.plan import Documents, Packing, check_documents
from diagnose.packing.queues import pack_queues
from diagnose.packing.ranks import deal_ranks, sum_ranks

#: Global batches packed as one, as in the published table.
GREEDY_TOGETHER = (1, 2, 4, 8)
EXACT_TOGETHER = (1, 2, 4)
#: Thresholds of the queues of the published table, as parts of the window.
QUEUES = ((0.75,), (0.25, 0.5), (0.25, 0.5, 0.75))
#: Tokens that memory allows in a microbatch, as a multiple of the window.
MEMORY_RATIO = 1.1
#: A larger multiple is a typing error.
MAX_MEMORY_RATIO = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class PackingSetup:
    """What a batch is, and which packers are compared."""

    #: Tokens of a microbatch without a packer.
    window: int = WINDOW
    #: Microbatches of one data-parallel rank in a global batch.
    n_microbatches: int = 4
    #: Data-parallel ranks.
    n_ranks: int = 1
    #: Tokens that memory allows in a microbatch, as a multiple of the window; 1 or more.
    memory_ratio: float = MEMORY_RATIO
    cost: Cost = PUBLISHED_COST
    #: Thresholds in tokens, one tuple a row of the table; None: those of the published table, as parts of the window.
    queues: tuple[tuple[int, ...], ...] | None = None
    #: Seconds for each problem of the exact packer; None leaves it out.
    exact_s: float | None = None
    #: Global batches at most; None: all.
    n_batches: int | None = None
    #: Say how long each packer takes: that differs from run to run.
    timed: bool = False

    @property
    def n_bins(self) -> int:
        """Microbatches of a global batch, all ranks together."""
        return self.n_microbatches * self.n_ranks

    @property
    def max_tokens(self) -> int:
        """Tokens that memory allows in a microbatch."""
        return int(self.window * self.memory_ratio)

    @property
    def thresholds(self) -> tuple[tuple[int, ...], ...]:
        """Thresholds of the queues in tokens."""
        if self.queues is not None:
            return self.queues
        return tuple(tuple(sorted({max(1, round(part * self.window)) for part in parts})) for parts in QUEUES)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PackerResult:
    """One packer."""

    #: `original`, `greedy`, `exact`, `queues`, `balanced`.
    packer: str
    #: Global batches packed as one.
    together: int
    #: Of `queues`, tokens.
    thresholds: tuple[int, ...]
    measured: Measured
    #: Largest over mean cost of a data-parallel rank, mean over batches, 1 = balanced.
    rank_imbalance: float
    #: Seconds of packing a batch, where they were asked for.
    batch_s: float | None
    #: Of the exact packer: problems, and how many to a proven optimum.
    n_windows: int | None = None
    n_proven: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All packers on one stream."""

    plan: PackingSetup
    #: What was packed.
    stream: Stream
    #: Documents longer than the window, each cut into at least two.
    n_cut: int
    rows: tuple[PackerResult, ...]


def pack_original(docs: Documents) -> Packing:
    """Pack nothing: fill one microbatch after the other in the order of the data; what does not fit starts the next.

    On a stream from `cut_stream` with `max_tokens` its window, every microbatch is full and nothing is late: this is the reading of
    *original* in the published table, which the packers are compared with.
    """
    n_microbatches, max_tokens = docs.n_microbatches, docs.max_tokens
    bin_, used = -1, max_tokens  # counted over all batches
    for start, arriving in docs.arriving():
        for doc in arriving:
            tokens = docs.lengths[doc]
            if bin_ < start * n_microbatches:
                bin_, used = start * n_microbatches, 0
            if used + tokens > max_tokens:
                bin_, used = bin_ + 1, 0
            if bin_ >= docs.n_batches * n_microbatches:
                return docs.packing()
            docs.batch[doc], docs.microbatch[doc] = divmod(bin_, n_microbatches)
            used += tokens
    return docs.packing()


def compare_packers(lengths: Ints, plan: PackingSetup) -> Comparison:
    """Run every packer on the same documents.

    Parameters
    ----------
    lengths : ndarray of int64, shape (n_docs,)
        Tokens of whole documents, in the order of the data.

    Raises
    ------
    UsageError
        The plan makes no sense, or the documents do not fill one global batch.
    """
    if not 1 <= plan.memory_ratio <= MAX_MEMORY_RATIO:
        raise UsageError(f"memory for {plan.memory_ratio:g} windows a microbatch; expected 1 to 1000")
    stream = cut_stream(lengths, plan.n_bins, window=plan.window, n_batches=plan.n_batches)
    if stream.n_batches == 0:
        raise UsageError(
            f"{int(np.sum(lengths)):,} tokens do not fill a global batch of {plan.n_bins} x {plan.window:,}; "
            "give more documents, or a smaller --window, --microbatches or --dp"
        )
    rows = [
        _run(stream, plan, "original", pack_original, plan.window),
        *(
            _run(stream, plan, "greedy", partial(pack_greedy, together=k), plan.window, together=k)
            for k in GREEDY_TOGETHER
            if k <= stream.n_batches
        ),
        *(
            _run(stream, plan, "exact", partial(pack_exact, limit_s=plan.exact_s, together=k), plan.window, together=k)
            for k in EXACT_TOGETHER
            if k <= stream.n_batches and plan.exact_s is not None
        ),
        *(
            _run(stream, plan, "queues", partial(pack_queues, thresholds=bounds), plan.max_tokens, thresholds=bounds)
            for bounds in plan.thresholds
        ),
        _run(stream, plan, "balanced", pack_balanced, plan.max_tokens),
    ]
    return Comparison(plan, stream, int((np.asarray(lengths) > plan.window).sum()), tuple(rows))


def _run(
    stream: Stream,
    plan: PackingSetup,
    packer: str,
    pack: Callable[[Documents], Packing],
    max_tokens: int,
    *,
    together: int = 1,
    thresholds: tuple[int, ...] = (),
) -> PackerResult:
    """Run and time one packer, and deal its microbatches to ranks; without a packer they stay where they are."""
    start = time.perf_counter()
    packing = pack(check_documents(stream.lengths, stream.arrives, plan.n_bins, plan.cost, max_tokens))
    batch_s = (time.perf_counter() - start) / stream.n_batches if plan.timed else None
    if plan.n_ranks > 1 and packer != "original":
        packing = deal_ranks(packing, plan.cost, plan.n_ranks)
    measured = measure(packing, plan.cost, plan.window)
    ranks = sum_ranks(measured.costs, plan.n_ranks)
    means = ranks.mean(axis=1)
    used = means > 0
    rank_imbalance = float((ranks.max(axis=1)[used] / means[used]).mean()) if used.any() else 1.0
    return PackerResult(
        packer, together, thresholds, measured, rank_imbalance, batch_s, packing.n_windows, packing.n_proven
    )
