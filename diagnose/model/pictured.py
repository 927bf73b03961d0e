"""What pictures need to know of a cause that a rule found."""

import dataclasses

#: Pictures that can show a cause: those of the figures that a diagnosis keeps, and those beside them, which need the trace.
PICTURES = (
    *("pace", "transfers", "ranks", "experts", "pauses", "steps", "stages"),
    *("workers", "network", "microbatches"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pictured:
    """The components that a cause's rule owns, and the pictures that make it obvious: its page begins with them."""

    components: tuple[str, ...]
    pictures: tuple[str, ...] = ("workers",)


#: A cause that no rule found.
NO_RULE = Pictured(())
