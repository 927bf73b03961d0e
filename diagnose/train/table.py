"""Turn measured jobs into what the trees see, and what is true.

Enters: `MeasuredJob`s. Leaves: a `Table`.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import UsageError
from diagnose.judge.classifier import round_input
from diagnose.judge.verdict import CAUSES
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Bools, Ints
from diagnose.train.measure import MeasuredJob

#: What the trees of each cause look at: what its components give back, and those of what it is mistaken for, and ratios of its own
#: subject that have no scale. No noise level, no size, nothing that tells how many ranks, stages or microbatches a job has, and
#: nothing of other subjects: from those a classifier learns the generator (LESSONS.md).
INPUTS_OF = {
    "worker-fault": ("*.worker", "*.stage", "*.microbatch", "*.malloc-pause", "worker.ratio", "worker.forward_ratio",
                     "worker.backward_ratio", "worker.slow_steps_share", "stage.contradicted_share"),
    "stage-imbalance": ("*.stage", "*.worker", "*.queue", "stage.ratio", "stage.forward_ratio", "stage.backward_ratio",
                        "stage.contradicted_share"),
    "sequence-imbalance": ("*.microbatch", "*.worker", "*.step", "*.pause", "sequence.correlation",
                           "sequence.worst_ratio"),
    "garbage-collection": ("*.gc-pause", "*.malloc-pause", "*.input-delay", "*.pause", "collection.recorded_share",
                           "collection.contrast", "collection.a_step", "collection.together_share", "collection.first_share"),
    "allocator-stall": ("*.malloc-pause", "*.gc-pause", "*.pause", "*.worker", "allocator.recorded_share",
                        "allocator.backward_share", "allocator.contrast", "allocator.workers_share"),
    "data-loading": ("*.input-delay", "*.gc-pause", "*.start-delay", "input.recorded_share", "input.contrast",
                     "input.first_share", "input.in_a_step", "input.a_step", "input.before_share"),
    "kernel-queue-contention": ("*.queue", "*.stage", "queue.held_share", "queue.workers_share", "queue.ratio"),
    "network-fault": ("*.transfer", "*.worker", "network.link_ratio", "network.group_ratio", "network.late_share",
                      "network.excess_ratio", "network.place_share", "network.by_slow_worker"),
    "checkpoint-stall": ("*.start-delay", "*.end-delay", "*.between-steps", "*.input-delay", "stall.regularity",
                         "stall.checkpoint_share", "stall.steps_share", "stall.size_ratio", "stall.chance"),
}  # fmt: skip
INPUTS = tuple(sorted({pattern for patterns in INPUTS_OF.values() for pattern in patterns}))
#: A cause is there when mending it makes the job at least 2% faster, as in the report.
PRESENT_WORTH = 1.0 - 1.0 / MIN_SPEEDUP
#: Below this it is not; between the two nobody can say, and the job teaches nothing about that cause.
ABSENT_WORTH = 0.008
#: Families of shapes that can be left out, to see how a classifier does on what it has not seen.
FAMILIES: dict[str, Callable[[dict[str, int]], bool]] = {
    "interleaved": lambda shape: shape["vpp"] > 1,
    "large-dp": lambda shape: shape["dp"] >= 64,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Jobs in rows: each with its evidence rows and without.

    Attributes
    ----------
    names : tuple of str
        Of the inputs.
    inputs : ndarray of float64, shape (n_rows, n_inputs)
        As the classifier sees them; NaN where missing.
    present : ndarray of float64, shape (n_rows, n_causes)
        In the order of `CAUSES`: 1 there, 0 not, NaN too little to say.
    job : ndarray of int64, shape (n_rows,)
        Number of the job, the same for its rows.
    """

    names: tuple[str, ...]
    inputs: NDArray[np.float64]
    present: NDArray[np.float64]
    job: Ints

    def known(self, cause: str) -> Bools:
        """Mark the rows in which it is clear whether the cause is there."""
        marked: Bools = ~np.isnan(self.present[:, CAUSES.index(cause)])
        return marked

    def truth(self, cause: str) -> Bools:
        """Mark the rows in which the cause is there."""
        marked: Bools = self.present[:, CAUSES.index(cause)] == 1.0
        return marked


def make_table(jobs: Sequence[MeasuredJob], names: Sequence[str]) -> Table:
    """Put jobs into a table; those that failed are left out.

    Parameters
    ----------
    jobs : sequence of MeasuredJob
    names : sequence of str
        Of the inputs, from `choose_inputs`.

    Returns
    -------
    Table

    Raises
    ------
    UsageError
        A job does not have all inputs: it was measured by other code.
    """
    rows = [(number, job, values) for number, job in enumerate(jobs) for values in job.features]
    for _, job, values in rows:
        if lacking := [name for name in names if name not in values]:
            raise UsageError(
                f"has no {', '.join(lacking)}; measure it again", where=f"job {job.index} of seed {job.seed}"
            )
    return Table(
        names=tuple(names),
        inputs=np.array([[round_input(values[name]) for name in names] for *_, values in rows]).reshape(-1, len(names)),
        present=np.array([[label(job.worth.get(cause, 0.0)) for cause in CAUSES] for _, job, _ in rows]).reshape(
            -1, len(CAUSES)
        ),
        job=np.array([number for number, *_ in rows], dtype=np.int64),
    )


def inputs_of(cause: str, names: Sequence[str]) -> Bools:
    """Mark the inputs that the trees of a cause may look at, shape (n_inputs,); all of them for a cause without a list."""
    patterns = INPUTS_OF.get(cause, ("*",))
    return np.array([any(_matches(name, pattern) for pattern in patterns) for name in names])


def _matches(name: str, pattern: str) -> bool:
    """Say whether a pattern names an input; `*.worker` means what the component gives back and not a subject of that name."""
    subject = name.split(".", maxsplit=1)[0]
    return fnmatch.fnmatchcase(name, pattern) and (not pattern.startswith("*.") or subject in ("gain", "last"))


def choose_inputs(known: Iterable[str], patterns: Sequence[str] = INPUTS) -> tuple[str, ...]:
    """List the features that match the patterns, by pattern and name.

    Raises
    ------
    UsageError
        A pattern matches nothing: a feature was renamed or is gone.

    >>> choose_inputs(["noise", "gain.b", "gain.a"], ["gain.*"])
    ('gain.a', 'gain.b')
    """
    names = sorted(known)
    found = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
    if idle := [pattern for pattern, matches in found.items() if not matches]:
        raise UsageError(f"no feature is called {', '.join(idle)}; expected some of {', '.join(names)}", where="INPUTS")
    return tuple(dict.fromkeys(name for matches in found.values() for name in matches))


def label(worth: float) -> float:
    """Say whether a cause is there: 1 yes, 0 no, NaN when it is worth too little to say and too much to deny.

    >>> label(0.05), label(0.015), label(0.0)
    (1.0, nan, 0.0)
    """
    if worth >= PRESENT_WORTH:
        return 1.0
    return 0.0 if worth < ABSENT_WORTH else float("nan")
