"""What pictures need to know of a cause that a rule found."""

import dataclasses
from typing import get_args

from diagnose.model.proof import ProofKind

#: Pictures that can show a cause, by key.
PICTURES: tuple[ProofKind, ...] = get_args(ProofKind)


@dataclasses.dataclass(frozen=True, slots=True)
class Pictured:
    """The components that a cause's rule owns, and the pictures that show it, the best first; none: what its components need."""

    components: tuple[str, ...]
    pictures: tuple[str, ...] = ()


#: A cause that no rule found.
NO_RULE = Pictured(())
