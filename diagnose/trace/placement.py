"""Find where in the model the chunks of each stage stand: in turn, as a V, or in two copies that run towards each other.

Enters: laid-out operations with their times, and positions that rows say. Leaves: a position for each node, or None where chunks
are dealt out in turn. No forward on a microbatch begins before that of the model chunk before it has ended: the first placement
that the times bear out is taken.
"""

import warnings
from collections.abc import Iterator

import numpy as np

from diagnose.model.placement import WAYS
from diagnose.model.trace import Ints, Nodes, Seconds

#: Lanes looked at.
MAX_LANES = 64
#: Clocks may be off by this part of a typical compute.
CLOCK_SHARE = 0.1
#: A placement is borne out where at most this part of the computes begins too early.
MAX_EARLY_SHARE = 0.05
#: ... or where none is, by so many times fewer than the likeliest.
FAR_FEWER = 0.5


def find_positions(nodes: Nodes, start_s: Seconds, end_s: Seconds, told: Ints) -> Ints | None:
    """Find the position of each node in the model, shape (n_nodes,); -1 where it has none.

    Parameters
    ----------
    start_s, end_s : ndarray of float64, shape (n_nodes, n_steps, n_dp)
        Seconds, NaN where there is no row.
    told : ndarray of int64, shape (n_nodes,)
        What rows say (`gmc`), -1 where they do not.
    """
    n_stages, n_chunks = int(nodes.stage.max()) + 1, int(nodes.chunk.max(initial=0)) + 1
    if n_chunks < 2 or n_stages < 2:
        return None
    lanes = start_s.shape[1] * start_s.shape[2]
    stride = -(-lanes // MAX_LANES)
    start_s, end_s = (times.reshape(len(nodes), -1)[:, ::stride] for times in (start_s, end_s))
    in_turn = np.arange(n_chunks)[:, None] * n_stages + np.arange(n_stages)
    early: list[tuple[float, Ints]] = []
    for candidate in _list_candidates(nodes, told, n_stages, n_chunks):
        share = _share_early(nodes, candidate, start_s, end_s)
        early.append((share, candidate))
        if share <= MAX_EARLY_SHARE:
            break
    least, best = min(early, key=lambda found: found[0])
    if least > FAR_FEWER * early[0][0]:  # clocks, or damage, and no placement
        best = early[0][1]
    if np.array_equal(best, in_turn):
        return None
    return np.where(nodes.chunk >= 0, best[nodes.chunk, nodes.stage], -1)


def _list_candidates(nodes: Nodes, told: Ints, n_stages: int, n_chunks: int) -> Iterator[Ints]:
    """Give placements, likeliest first: the position of each chunk of each stage, shape (n_chunks, n_stages)."""
    known = np.full((n_chunks, n_stages), -1, dtype=np.int64)
    at = (told >= 0) & (nodes.chunk >= 0)
    known[nodes.chunk[at], nodes.stage[at]] = told[at]
    if (known >= 0).all() and len(np.unique(known)) == known.size:
        yield np.unique(known, return_inverse=True)[1].reshape(known.shape)
    first = np.arange(n_chunks)[:, None] * n_stages
    there = np.broadcast_to(np.arange(n_stages), known.shape)
    back = there[:, ::-1]
    odd = (np.arange(n_chunks) % 2 == 1)[:, None]
    yield first + there
    yield first + np.where(odd, back, there)
    if n_chunks == 2:  # a gap between the copies: nothing goes from the one to the other
        yield np.where(odd, n_stages + 1 + back, there)


def _share_early(nodes: Nodes, placement: Ints, start_s: Seconds, end_s: Seconds) -> float:
    """Say which part of the computes begins before that of the chunk before it, or after it for backwards, has ended."""
    n_early = n_looked = 0
    for op, _, _, ahead in WAYS:
        of_type = np.flatnonzero((nodes.op == op) & (nodes.chunk >= 0))
        position = placement[nodes.chunk[of_type], nodes.stage[of_type]]
        keys = zip(position.tolist(), nodes.microbatch[of_type].tolist(), strict=True)
        at = dict(zip(keys, of_type.tolist(), strict=True))
        pairs = [(at[p - ahead, m], node) for (p, m), node in at.items() if (p - ahead, m) in at]
        if not pairs:
            continue
        before, after = np.array(pairs).T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # computes that no lane has
            tolerance_s = CLOCK_SHARE * np.nan_to_num(np.nanmedian(end_s[of_type] - start_s[of_type]))
        ahead_s = start_s[after] - end_s[before]
        there = np.isfinite(ahead_s)
        n_early += int((ahead_s[there] < -tolerance_s).sum())
        n_looked += int(there.sum())
    return n_early / max(n_looked, 1)
