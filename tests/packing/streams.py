"""Lengths of documents as in long-context training: most short, few long. Drawn for the tests and the published table."""

import numpy as np

from diagnose.model.trace import Ints
from diagnose.packing.lengths import WINDOW, Stream, cut_stream

#: Share of short documents, uniform in 1..6554 tokens.
_SHORT_SHARE = 0.9725
_LONGEST_SHORT = 6554
#: Quantiles of the length of the others, tokens; between them the logarithm of the length is linear.
_LONG_QUANTILES = {
    0.05: 6_966,
    0.25: 9_716,
    0.50: 15_688,
    0.75: 47_351,
    0.90: 93_065,
    0.95: 111_713,
    0.99: 123_411,
}
#: From thousands to units of 1,024, twice: the quantiles are of a window of 125,000.
_SCALE = 1.0486


def draw_lengths(n: int, seed: int) -> Ints:
    """Draw document lengths with the long tail of long-context training.

    Returns
    -------
    ndarray of int64, shape (n,)
        Tokens, 1 .. 129,409, in random order.

    Source: a fit to the lengths shown in arXiv 2503.17924; quantiles beyond the first and last known one are held.
    """
    rng = np.random.default_rng(seed)
    short = rng.random(n) < _SHORT_SHARE
    uniform = rng.integers(1, _LONGEST_SHORT + 1, n)
    tail = np.exp(np.interp(rng.random(n), list(_LONG_QUANTILES), np.log(list(_LONG_QUANTILES.values()))))
    return np.maximum(1, np.rint(np.where(short, uniform, tail) * _SCALE)).astype(np.int64)


def draw_stream(n_batches: int, n_microbatches: int, seed: int, *, window: int = WINDOW) -> Stream:
    """Draw documents for so many global batches and cut them as `cut_stream` does.

    Parameters
    ----------
    n_batches, n_microbatches, seed : int
        `n_microbatches` is that of a global batch, all data-parallel ranks together.
    window : int
        Tokens of a microbatch.
    """
    tokens = n_batches * n_microbatches * window
    lengths = draw_lengths(1 + tokens // 1_000, seed)  # the mean is above 4,000
    return cut_stream(lengths, n_microbatches, window=window, n_batches=n_batches)
