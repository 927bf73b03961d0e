"""What rows of a type that the format does not name take of a job's time."""

import dataclasses

from diagnose.model.trace import Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class OtherWork:
    """The rows of one type that keep workers from computing.

    Attributes
    ----------
    name : str
        The type, as the file has it.
    busy_s : ndarray of float64, shape (n_dp, n_stages)
        Seconds a step that they take of each worker, between steps too.
    uneven_s : float
        Seconds a step, of all workers together, that they take where such work is far longer than usual.
    ratio : float
        How many times the usual that is; 1 where it never is.
    """

    name: str
    busy_s: Seconds
    uneven_s: float
    ratio: float
