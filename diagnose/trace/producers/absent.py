"""Find pipeline ranks whose files are not there, and say what therefore cannot be seen.

Enters: a `Recording` whose stages are those of the files that were found. Leaves: what it cannot show. Without it the time that a
missing stage computes, between two that are there, would pass for a slow link from one to the other.
"""

import numpy as np

from diagnose.model.optype import Op
from diagnose.model.recording import Recording, Unobserved
from diagnose.model.trace import Ints


def find_absent(recording: Recording, *, n_stages: int | None = None, numbered: bool = True) -> tuple[Unobserved, ...]:
    """Say which neighbours of the pipeline ranks in the files are missing, in one entry or none.

    `n_stages` is how many pipeline ranks the job had, where the files say so. With `numbered` a row's `stage` is the number of
    its pipeline rank; else it only orders them, from 0.

    Notes
    -----
    Under 1F1B a worker runs as many forwards before its first backward as there are stages from it to the end: 4, 3, 2, 1. A
    jump in these counts is a missing rank, and so is a last worker that runs more than one. Schedules that count otherwise
    (all forwards first; several model chunks; split backwards) tell nothing.
    """
    stages = np.unique(recording.stage[recording.stage >= 0])
    if not len(stages):
        return ()
    between, after = _jumps(recording, stages)
    if numbered:
        between |= bool(len(stages) <= stages[-1] - stages[0])
        after |= n_stages is not None and bool(stages[-1] < n_stages - 1)
    before = bool(stages[0] > 0)
    absent = {"before the first": before, "between two": between, "after the last": after}
    places = [place for place, is_absent in absent.items() if is_absent]
    if not places:
        return ()
    lacks = {"last-stage": after, "first-stage": before, "next-stages": between or after}
    reason = (
        f"there are ranks {' and '.join(places)} of those in the files; what waits for them seems slow: add their files"
    )
    return (
        Unobserved("missing pipeline ranks", reason, tuple(name for name, is_lacking in lacks.items() if is_lacking)),
    )


def _jumps(recording: Recording, stages: Ints) -> tuple[bool, bool]:
    """Say whether the forwards before the first backward tell of ranks that are missing between, and after, those there."""
    if recording.chunk is not None and len(np.unique(recording.chunk)) > 1:
        return False, False
    if (recording.op == Op.WEIGHT).any():
        return False, False  # a schedule that splits backwards may have any number of forwards before the first
    leads, n_forwards = _count_leads(recording, stages)
    # Where all forwards come first, few microbatches may have capped the count.
    told = leads[(leads > 0) & (leads < n_forwards)]
    down = told[:-1] - told[1:]
    if not len(told) or (down < 1).any():
        return False, False
    return bool(len(down)) and bool(down.max() > down.min()), bool(told[-1] > 1)


def _count_leads(recording: Recording, stages: Ints) -> tuple[Ints, Ints]:
    """Count each stage's forwards before its first backward, and all of them, in the median step: shape (n_stages,) each."""
    steps, step = np.unique(recording.step, return_inverse=True)
    stage = np.searchsorted(stages, recording.stage)
    is_forward = (recording.op == Op.FORWARD) & (recording.stage >= 0)
    is_backward = (recording.op == Op.BACKWARD) & (recording.stage >= 0)
    first_s = np.full((len(stages), len(steps)), np.inf)
    np.minimum.at(first_s, (stage[is_backward], step[is_backward]), recording.start_s[is_backward])
    at = stage[is_forward], step[is_forward]
    n_forwards = np.zeros(first_s.shape, dtype=np.int64)
    leads = n_forwards.copy()
    np.add.at(n_forwards, at, 1)
    np.add.at(leads, at, recording.start_s[is_forward] < first_s[at])
    return np.median(leads, axis=1).astype(np.int64), np.median(n_forwards, axis=1).astype(np.int64)
