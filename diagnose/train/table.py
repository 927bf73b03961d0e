"""Turn measured jobs into what the trees see, and what is true.

Enters: `MeasuredJob`s, and rules. Leaves: a `Table`.

What the trees of a cause look at stands in its rule (`classifier`): what its components give back, and those of what it is
mistaken for, and ratios of its own subject that have no scale. No noise level, no size, nothing that tells how many ranks, stages
or microbatches a job has, and nothing of other subjects: from those a classifier learns the generator (LESSONS.md).
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import UsageError
from diagnose.judge.classifier import round_input
from diagnose.judge.rule import Rule
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Bools, Ints
from diagnose.train.measure import MeasuredJob

#: A cause is there when mending it makes the job at least 2% faster, as in the report.
PRESENT_WORTH = 1.0 - 1.0 / MIN_SPEEDUP
#: Below this it is not; between the two nobody can say, and the job teaches nothing about that cause.
ABSENT_WORTH = 0.008


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Jobs in rows: each with its evidence rows and without."""

    #: Of the inputs.
    names: tuple[str, ...]
    causes: tuple[str, ...]
    #: Shape (n_rows, n_inputs). As the classifier sees them; NaN where missing.
    inputs: NDArray[np.float64]
    #: Shape (n_rows, n_causes). In the order of `causes`: 1 there, 0 not, NaN too little to say.
    present: NDArray[np.float64]
    #: Shape (n_rows,). Number of the job, the same for its rows.
    job: Ints

    def known(self, cause: str) -> Bools:
        """Mark the rows in which it is clear whether the cause is there."""
        marked: Bools = ~np.isnan(self.present[:, self.causes.index(cause)])
        return marked

    def truth(self, cause: str) -> Bools:
        """Mark the rows in which the cause is there."""
        marked: Bools = self.present[:, self.causes.index(cause)] == 1.0
        return marked


def make_table(jobs: Sequence[MeasuredJob], names: Sequence[str], causes: Sequence[str]) -> Table:
    """Put jobs into a table; those that failed are left out.

    Parameters
    ----------
    names : sequence of str
        Of the inputs, from `choose_inputs`.

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
        causes=tuple(causes),
        inputs=np.array([[round_input(values[name]) for name in names] for *_, values in rows]).reshape(-1, len(names)),
        present=np.array([[label(job.worth.get(cause, 0.0)) for cause in causes] for _, job, _ in rows]).reshape(
            -1, len(causes)
        ),
        job=np.array([number for number, *_ in rows], dtype=np.int64),
    )


def inputs_of(rule: Rule, names: Sequence[str]) -> Bools:
    """Mark the inputs that the trees of a cause may look at, shape (n_inputs,); all of them for a rule without patterns."""
    patterns = rule.classifier or ("*",)
    return np.array([any(_matches(name, pattern) for pattern in patterns) for name in names])


def _matches(name: str, pattern: str) -> bool:
    """Say whether a pattern names an input; `*.worker` means what the component gives back and not a subject of that name."""
    subject = name.split(".", maxsplit=1)[0]
    return fnmatch.fnmatchcase(name, pattern) and (not pattern.startswith("*.") or subject in ("gain", "last"))


def list_patterns(rules: Iterable[Rule]) -> tuple[str, ...]:
    """List the patterns of all inputs that some rule wants its trees to see."""
    return tuple(sorted({pattern for rule in rules for pattern in rule.classifier}))


def choose_inputs(known: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
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
        raise UsageError(f"no feature is called {', '.join(idle)}; expected some of {', '.join(names)}", where="rules")
    return tuple(dict.fromkeys(name for matches in found.values() for name in matches))


def label(worth: float) -> float:
    """Say whether a cause is there: 1 yes, 0 no, NaN when it is worth too little to say and too much to deny.

    >>> label(0.05), label(0.015), label(0.0)
    (1.0, nan, 0.0)
    """
    if worth >= PRESENT_WORTH:
        return 1.0
    return 0.0 if worth < ABSENT_WORTH else float("nan")
