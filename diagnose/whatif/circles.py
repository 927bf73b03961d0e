"""Leave out learned waits that close a circle: which of two operations comes first is open where timestamps vary by more than both.

Enters: what each operation waits for, and which of that is known whatever the times show. Leaves: it, without circles. Costs
O(events + waits), and is asked of graphs that have no order alone.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.model.trace import Ints, Seconds
from diagnose.whatif.graph import Events, Ragged, join_batches, list_edges


def drop_circles(
    waits: list[set[int]], known: list[set[int]], events: Events, batches: Sequence[tuple[int, ...]], ends_at: Seconds
) -> int:
    """Take the waits out, in place, that close a circle, but for `known` ones; say how many.

    Of events that wait for each other the one that usually moves first waits for none of the others. `ends_at` is when what each
    node waits for usually has moved: seconds, shape (n_nodes,).

    Raises
    ------
    TraceError
        What is known, or the batches, are circles.
    """
    events, n_nodes = join_batches(events, Ragged.of(batches), len(waits)), len(waits)
    pairs, of_known = Ragged.of(waits), Ragged.of(known)
    source, waiter = pairs.flat, pairs.row_of()
    is_learned = ~np.isin(waiter * n_nodes + source, of_known.row_of() * n_nodes + of_known.flat)
    starts_in, ends_in = (events.find(rows, n_nodes) for rows in (events.members, events.completes))
    earlier, later = ends_in[source], starts_in[waiter]
    learned = np.flatnonzero(is_learned & (earlier >= 0) & (later >= 0) & (earlier != later))
    sure = np.stack(list_edges(events, Ragged.of_pairs(waiter[~is_learned], source[~is_learned], n_nodes), {}))
    maybe = np.stack([earlier[learned], later[learned]])
    circle = _find_circles(np.concatenate([sure, maybe], axis=1), len(events))
    sure, within = sure[:, circle[sure[0]] == circle[sure[1]]], circle[maybe[0]] == circle[maybe[1]]
    learned, maybe = learned[within], maybe[:, within]
    moves_s = np.full(len(events), np.nan)
    for rows in (events.completes, events.members):
        moves_s[rows.row_of()] = ends_at[rows.flat]
    place = _order_anyway(sure, maybe, moves_s)
    against = learned[place[maybe[0]] > place[maybe[1]]]
    for node, one in zip(waiter[against].tolist(), source[against].tolist(), strict=True):
        waits[node].discard(one)
    return len(against)


def _find_circles(edges: Ints, n_events: int) -> Ints:
    """Number the events so that those have one number that wait for each other, directly or not: shape (n_events,).

    *Source*: Kosaraju's algorithm, in A. Aho, J. Hopcroft and J. Ullman, Data Structures and Algorithms, 1983, section 6.7.
    """
    after, before = (_list_next(of, n_events) for of in (edges, edges[::-1]))
    behind, left, seen = list[int](), list(range(n_events)), [False] * n_events
    while left:  # each event behind all that wait for it
        i = left.pop()
        if i < 0:
            behind.append(~i)
        elif not seen[i]:
            seen[i] = True
            left += [~i, *after[i]]
    number = np.full(n_events, -1)
    for first in reversed(behind):
        found = [first] if number[first] < 0 else []
        for i in found:  # which grows meanwhile
            if number[i] < 0:
                number[i] = first
                found += before[i]
    return number


def _list_next(edges: Ints, n_events: int) -> list[list[int]]:
    """List for each event those that wait for it; `edges`, shape (2, n), are the earlier and the later ones."""
    earlier, later = edges[:, np.argsort(edges[0], kind="stable")]
    return [of.tolist() for of in np.split(later, np.searchsorted(earlier, np.arange(1, n_events)))]


def _order_anyway(sure: Ints, maybe: Ints, moves_s: Seconds) -> Ints:
    """Give each event a place behind all that it waits for, but for those of `maybe` that leave none to begin with.

    `sure` and `maybe`, shape (2, n), are which event must have moved before which.
    """
    n_sure, n_maybe = (np.bincount(of[1], minlength=len(moves_s)).tolist() for of in (sure, maybe))
    after = [(n_open, _list_next(of, len(moves_s))) for of, n_open in ((sure, n_sure), (maybe, n_maybe))]
    usual_s, place, n_placed = moves_s.tolist(), np.full(len(moves_s), -1), 0
    free = [(n_maybe[i] > 0, at_s, i) for i, at_s in enumerate(usual_s) if not n_sure[i]]
    heapq.heapify(free)
    while free:
        *_, i = heapq.heappop(free)
        if place[i] >= 0:
            continue
        place[i] = n_placed
        n_placed += 1
        for n_open, following in after:
            for j in following[i]:
                n_open[j] -= 1
                if not n_open[j] and not n_sure[j]:
                    heapq.heappush(free, (n_maybe[j] > 0, usual_s[j], j))
    if n_placed < len(place):
        raise TraceError("operations wait for each other in a circle, whatever the times show", where="graph")
    return place
