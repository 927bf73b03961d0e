"""Find out whose clock is off, from operations that end together on several workers.

Enters: blocks with times as recorded. Leaves: one offset a worker, for the component what-if; S and its relatives stay
on times as recorded.
"""

from collections.abc import Sequence

import numpy as np

from diagnose.model.trace import Block, Seconds


def estimate_offsets(blocks: Sequence[Block], n_stages: int) -> tuple[Seconds, list[str]]:
    """placeholder"""
    return np.zeros((blocks[0].n_dp, n_stages)), []
