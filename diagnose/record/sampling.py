"""Which steps are recorded: the first ones, then short runs of consecutive steps, the same on every rank without asking each other.

Enters: how many steps came before. Leaves: whether a step is recorded, and in which window.
"""

import dataclasses
import math
import zlib

#: Steps recorded one after the other: time between steps, and what a step leaves to the next, shows in neighbours only.
WINDOW_STEPS = 4
#: So many steps are all recorded first: a short job has no others, and a verdict of a few steps is none.
DENSE_STEPS = 200
#: In so many of them, the last, what recording costs is measured.
MEASURED_STEPS = 40
#: What recording may add to the time of the job, as a share of it, and by what part of the windows it is cut where it adds more.
MAX_COST_SHARE = 0.005
CUT = 4
#: After so many blocks they become twice as long, and again: a job of a million steps keeps some 20,000 of them.
BLOCKS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """A window of `WINDOW_STEPS` steps somewhere in each block of steps.

    Where in the block differs from block to block, by a checksum of the block's number: a window that always stood at the same
    place would see all or none of what comes every so many steps (a planned collection, a checkpoint).
    """

    #: Part of the steps that are recorded, above 0 to 1.
    share: float
    #: How often that part was cut to a quarter since recording cost too much. A rank that cut less records what this one does.
    n_cuts: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"sample is {self.share}; expected a part of the steps, above 0 and at most 1")

    @property
    def part(self) -> float:
        """Which part of the steps is recorded, after the first."""
        return float(self.share / CUT**self.n_cuts)

    def cut(self, cost_share: float) -> "Sampling":
        """Record so much less that the cost stays small.

        Parameters
        ----------
        cost_share : float
            How much longer a step takes that is recorded, as a share of it.

        >>> Sampling(0.1).cut(0.04).part
        0.1
        >>> Sampling(0.1).cut(0.10).part
        0.025
        """
        cost_share *= self.share
        n_cuts = math.ceil(math.log(cost_share / MAX_COST_SHARE, CUT)) if cost_share > MAX_COST_SHARE else 0
        return dataclasses.replace(self, n_cuts=n_cuts)

    def span(self, step: int) -> tuple[int | None, int]:
        """Give the window of a step, and before which step nothing changes.

        >>> Sampling(0.1).span(200), Sampling(0.1).span(229), Sampling(0.1).span(232)
        ((None, 228), (55, 232), (None, 240))
        """
        if step < DENSE_STEPS:
            window = step // WINDOW_STEPS
            return window, (window + 1) * WINDOW_STEPS
        length = max(WINDOW_STEPS, math.ceil(WINDOW_STEPS / self.share))
        first_step = first_block = 0
        if self.share < 1.0:
            while step >= first_step + BLOCKS * length:
                first_step += BLOCKS * length
                first_block += BLOCKS
                length *= 2
        block = (step - first_step) // length
        first_step += block * length
        block += first_block
        mixed = zlib.crc32(block.to_bytes(8, "little"))
        begins = first_step + mixed % (length - WINDOW_STEPS + 1)
        ends = begins + WINDOW_STEPS
        if zlib.crc32(mixed.to_bytes(4, "little")) % CUT**self.n_cuts or step >= ends:
            return None, first_step + length
        if step < begins:
            return None, begins
        return DENSE_STEPS // WINDOW_STEPS + block, ends
