"""Which steps are recorded: short runs of consecutive steps, the same on every rank without asking each other.

Enters: the number of a step. Leaves: whether it is recorded, and in which window.
"""

import dataclasses
import math
import zlib

#: Steps recorded one after the other: time between steps, and what a step leaves to the next, shows in neighbours only.
WINDOW_STEPS = 4
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

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"sample is {self.share}; expected a part of the steps, above 0 and at most 1")

    def window(self, step: int) -> int | None:
        """Number the window that a step is recorded in; None where it is not recorded.

        >>> [step for step in range(80) if Sampling(0.1).window(step) is not None]
        [12, 13, 14, 15, 53, 54, 55, 56]
        >>> Sampling(1.0).window(7)
        1
        """
        length = max(WINDOW_STEPS, math.ceil(WINDOW_STEPS / self.share))
        first_block = 0
        if self.share < 1.0:
            while step >= BLOCKS * length:
                step -= BLOCKS * length
                first_block += BLOCKS
                length *= 2
        block, place = first_block + step // length, step % length
        first = zlib.crc32(block.to_bytes(8, "little")) % (length - WINDOW_STEPS + 1)
        return block if first <= place < first + WINDOW_STEPS else None
