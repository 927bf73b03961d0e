"""How context parallelism shares out the documents of one microbatch, and what short chunks cost.

Causal attention makes the end of a document dearer than its beginning. Cutting the whole *sequence* into 2 x cp chunks and
giving rank r the chunks r and 2 cp - 1 - r evens that out for one document, but not for several: the rank whose chunks hold
the ends of long documents works longest. Cutting every *document* in this way is even for any documents, but makes short
chunks, on which attention kernels are slow.

Source: arXiv 2503.17924, sharding on the level of context parallelism.
"""

import dataclasses

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.trace import Ints, Seconds

PER_SEQUENCE = "per-sequence"
PER_DOCUMENT = "per-document"


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """How an attention kernel slows down on chunks with few queries.

    Notes
    -----
    time = 2 x quadratic x pairs x (queries rounded up / queries) / speed(queries), pairs being those of query and key that the
    causal mask of a document lets attend. The two effects are those that arXiv 2503.17924 names for short chunks; the numbers
    are defaults to be replaced by measured ones, for kernels differ.
    """

    #: Queries that are computed together: a chunk costs as if its queries were rounded up to a multiple. 128 is the
    #: tile of FlashAttention on Hopper GPUs.
    tile: int = 128
    #: Queries from which on a chunk runs at full speed. Below it keys and values that are loaded serve few tiles. 256: two tiles.
    full_speed: int = 256
    #: Speed of a chunk of a single tile or less, as part of full speed; in between it rises linearly with the queries.
    slowest: float = 0.75

    def __post_init__(self) -> None:
        if self.tile < 1 or self.full_speed < self.tile or not 0 < self.slowest <= 1:
            raise UsageError(
                f"a kernel with tiles of {self.tile}, full speed from {self.full_speed} queries on and a least speed of "
                f"{self.slowest:g} makes no sense; expected 1 <= tile <= full_speed and 0 < slowest <= 1"
            )

    def loss(self, queries: Ints) -> Seconds:
        """Say how many times longer a chunk of so many queries, 1 or more, takes for its work than a long one, 1 = no loss.

        >>> Kernel().loss(np.array([16, 128, 192, 256, 300])).round(2).tolist()
        [10.67, 1.33, 1.52, 1.0, 1.28]
        """
        padded = np.ceil(queries / self.tile) * self.tile
        part = np.clip((queries - self.tile) / max(self.full_speed - self.tile, 1), 0.0, 1.0)
        part = np.where(queries >= self.full_speed, 1.0, part)
        loss: Seconds = padded / queries / (self.slowest + (1.0 - self.slowest) * part)
        return loss
