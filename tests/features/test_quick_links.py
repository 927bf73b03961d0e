"""Of two slow links of a worker the one that is quick one way, while nothing holds it up, has no fault."""

import numpy as np
import pytest

from diagnose.features.network import slow_card
from diagnose.model.transfers import Transfers


def slow_links(alone_s: list[float] | None) -> Transfers:
    """Give four stages of one rank whose second and third links take long."""
    link_s = np.array([[0.003], [0.030], [0.031], [np.nan]])
    excess_s = np.array([[0.0], [0.30], [0.31], [0.0]])
    alone = None if alone_s is None else np.array(alone_s)[:, None]
    return Transfers(link_s, np.zeros((4, 1)), np.full(4, np.nan), 1.0, excess_s, np.zeros(4), 9.0, alone)


@pytest.mark.parametrize(
    ("alone_s", "workers", "links"),
    [
        ([np.nan, 0.0, 0.027, np.nan], [], [(0, 2)]),
        ([np.nan, 0.027, 0.001, np.nan], [], [(0, 1)]),
        ([np.nan, 0.025, 0.027, np.nan], [(0, 2)], []),
        ([np.nan, np.nan, 0.027, np.nan], [(0, 2)], []),
        (None, [(0, 2)], []),
    ],
)
def test_a_card_is_blamed_only_if_both_its_links_are_slow_by_themselves(
    alone_s: list[float] | None, workers: list[tuple[int, int]], links: list[tuple[int, int]]
) -> None:
    """The link that is slow both ways is at fault; the card where both are, or where nobody can tell."""
    assert slow_card(slow_links(alone_s)) == (workers, links)
