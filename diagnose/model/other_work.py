"""What rows of a type that the format does not name take of a job's time."""

import dataclasses

from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class OtherWork:
    """The rows of one type that keep workers from computing."""

    #: The type, as the file has it.
    name: str
    #: Shape (n_dp, n_stages): seconds a step that they take of each worker, between steps too.
    busy_s: Seconds
    #: Seconds a step, of all workers together, that they take where such work is far longer than usual.
    uneven_s: float
    #: How many times the usual that is; 0 where there usually is none.
    ratio: float
    #: Members of a group wait in it for the last: replays let them.
    is_met: bool = False
