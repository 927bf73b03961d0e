"""What pictures need to know of a cause that a rule found."""

import dataclasses

#: Pictures of the page by key: those of the figures that show a cause, and those that need the whole trace.
PICTURES = (
    *("pace", "transfers", "ranks", "experts", "pauses", "steps", "stages"),
    *("workers", "timeline", "network", "microbatches"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Pictured:
    """The components that a cause's rule owns, and the pictures that make it obvious: its page begins with them."""

    components: tuple[str, ...]
    pictures: tuple[str, ...] = ("workers",)


#: A cause that no rule found.
NO_RULE = Pictured(())
