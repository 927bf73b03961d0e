"""A measured property of a job, or the reason why it could not be measured."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """`value` is None exactly when `reason` says why."""

    value: float | None
    reason: str = ""

    @classmethod
    def missing(cls, reason: str) -> "Feature":
        """Make a feature that could not be measured."""
        return cls(None, reason)


#: Features by name; the part before the dot is the subject.
Features = dict[str, Feature]
