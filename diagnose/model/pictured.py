"""What pictures need to know of a cause that a rule found."""

import dataclasses

#: Pictures of the page, by key, in its order.
PICTURES = ("workers", "steps", "timeline", "stages", "pauses", "links", "forward-backward", "tokens", "optypes")


@dataclasses.dataclass(frozen=True, slots=True)
class Pictured:
    """The components that a cause's rule owns, and the pictures that make it obvious: the first that the job has leads its page."""

    components: tuple[str, ...]
    pictures: tuple[str, ...] = ("workers",)


#: A cause that no rule found.
NO_RULE = Pictured(())
