"""Time between or at the end of steps: after the last optimizer, until the next step began."""

from collections.abc import Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.optype import Op
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Evidence, Ints, Seconds, Trace
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.delays import ORDINARY_SHARE
from diagnose.whatif.evidence import SAYS
from diagnose.whatif.observed import Observed

#: The next step waits for what rows say of some workers if it has begun no earlier than this part of it, where it is known.
WAITED_SHARE = 0.95


class BetweenStepsPart(Part):
    """Without it the time between steps is at most the ordinary one, which no job is without."""

    def find(self) -> None:
        """Say what time between steps is ordinary in this job."""
        job = self.job
        explained_s = sum(job.gap_s.values(), start=np.zeros_like(job.between_s))
        rest_s = np.maximum(job.between_s - explained_s, 0.0)
        self._ordinary_s = float(np.median(rest_s))
        # Where no optimizer was recorded it lies between the steps, with all else that ends one.
        if any((o.block.nodes.op == Op.OPTIMIZER).any() for o in job.observed):
            self._ordinary_s = min(self._ordinary_s, ORDINARY_SHARE * (job.total_s / job.n_steps))
        self._excess_s = np.maximum(rest_s - self._ordinary_s, 0.0)

    def is_present(self) -> bool:
        """Say whether a step is followed by more than that."""
        return bool(self._excess_s.any())

    def ease_between(self, between_s: Seconds, steps: slice) -> Seconds:
        """Cut what is more than ordinary, and what no row explains by something else."""
        return np.maximum(between_s - self._excess_s[steps], 0.0)

    def blame(self) -> Seconds | None:
        """Add up the seconds in which rows say that a worker was busy, of the gaps that are more than ordinary."""
        job = self.job
        if job.tail_s is None or not job.tail_s.any():
            return None
        long = self._excess_s > 0
        busy_s = np.minimum(job.tail_s, job.between_s[:, None, None])
        return np.asarray(busy_s[long].sum(axis=0) / job.n_steps)


def measure_between(trace: Trace, observed: Sequence[Observed]) -> Seconds:
    """Say how long after each step's end the next one began.

    Returns
    -------
    ndarray of float64, shape (n_steps,)
        Seconds, in the order of the blocks: the gap to the next step where that is in the trace (where not, what rows say of it
        and the median of what they leave of the known gaps: a sampled trace says nothing of the steps it left out), if times are
        of the whole job; else until the first worker had done what its evidence rows say, or the last where known steps waited
        for it; else 0.
    """
    steps, length_s = _steps_of(observed)
    gap_s = np.zeros(len(steps))
    tail_s = measure_tails(trace, observed)
    if tail_s is not None:
        # What some workers do after the optimizer delays the next step's first collective and shows there; only what all of
        # them do lies between the steps.
        gap_s = tail_s.min(axis=(1, 2))
    if trace.step_origin_s is not None and len(trace.step_origin_s) > 1:
        every_step = np.sort(trace.steps)
        position = np.searchsorted(every_step, steps)
        following = np.append(np.diff(trace.step_origin_s), np.nan)[position] - length_s
        known = np.append(np.diff(every_step) == 1, False)[position]
        known &= ~np.isin(steps + 1, trace.restarted_steps)  # what lies before a restart is no time of the job
        if known.any():
            # Where the next step was not sampled rows may still say what followed.
            if tail_s is not None and _is_waited_for(tail_s[known].max(axis=(1, 2)), following[known]):
                gap_s = tail_s.max(axis=(1, 2))
            gap_s = np.maximum(gap_s, sum(_measure_leads(trace, observed).values(), start=np.zeros(len(steps))))
            beyond_s = max(float(np.median((following - gap_s)[known])), 0.0)
            gap_s = np.where(known, following, gap_s + beyond_s)
    return np.maximum(gap_s, 0.0)


def explain_between(trace: Trace, observed: Sequence[Observed], between_s: Seconds) -> dict[StallKind, Seconds]:
    """Say which part of the time between steps rows explain by something that is no save: waits for input, planned work.

    Returns
    -------
    dict of StallKind to ndarray of float64, shape (n_steps,)
        Seconds, together no more than `between_s`.
    """
    found = _measure_leads(trace, observed)
    steps, length_s = _steps_of(observed)
    for kind, rows in _rows_by_kind(trace.evidence).items():
        at, there = _find_steps(steps, trace.evidence.step[rows])
        busy_s = np.zeros((len(steps), trace.n_dp, trace.n_stages))
        seconds = trace.evidence.end_s[rows] - np.maximum(trace.evidence.start_s[rows], length_s[at])
        place = (at[there], trace.evidence.dp[rows][there], trace.evidence.stage[rows][there])
        np.add.at(busy_s, place, np.maximum(seconds[there], 0.0))
        found[kind] = found.get(kind, 0.0) + busy_s.max(axis=(1, 2))
    left_s = between_s
    for kind, seconds in found.items():
        found[kind] = np.minimum(seconds, left_s)
        left_s = left_s - found[kind]
    return {kind: seconds for kind, seconds in found.items() if seconds.any()}


def _measure_leads(trace: Trace, observed: Sequence[Observed]) -> dict[StallKind, Seconds]:
    """Say by kind how long rows that lie before a step's first operation kept the worker that was kept longest.

    On the clock of the job a step begins with its first operation: whatever all workers do before lies between the steps. Seconds
    after each step, shape (n_steps,); where the next one was not sampled, those before a step on average.
    """
    found: dict[StallKind, Seconds] = {}
    if trace.step_origin_s is None:
        return found
    steps, _ = _steps_of(observed)
    for kind, rows in _rows_by_kind(trace.evidence).items():
        at, there = _find_steps(steps, trace.evidence.step[rows])
        lead_s = np.zeros((len(steps), trace.n_dp, trace.n_stages))
        seconds = np.minimum(trace.evidence.end_s[rows], 0.0) - trace.evidence.start_s[rows]
        place = (at[there], trace.evidence.dp[rows][there], trace.evidence.stage[rows][there])
        np.add.at(lead_s, place, np.maximum(seconds[there], 0.0))
        longest_s = lead_s.max(axis=(1, 2))
        if longest_s.any():
            following, sampled = _find_steps(steps, steps + 1)
            found[kind] = np.where(sampled, longest_s[following], longest_s.mean())
    return found


def _rows_by_kind(evidence: Evidence) -> dict[StallKind, Ints]:
    """List the rows of each kind that is no save."""
    kinds = (StallKind.INPUT, StallKind.PLANNED)
    every = {kind: np.flatnonzero(np.isin(evidence.op, [op for op in SAYS if SAYS[op] == kind])) for kind in kinds}
    return {kind: rows for kind, rows in every.items() if len(rows)}


def _steps_of(observed: Sequence[Observed]) -> tuple[Ints, Seconds]:
    """Give the steps in the order of the blocks, and their lengths in seconds."""
    steps = np.concatenate([o.block.steps for o in observed])
    return steps, np.concatenate([o.block.end_s.max(axis=(0, 2)) for o in observed])


def _find_steps(steps: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Say where some step numbers stand in the order of the blocks, and which are there at all."""
    order = np.argsort(steps)
    at = order[np.minimum(np.searchsorted(steps[order], wanted), len(steps) - 1)]
    return at, steps[at] == wanted


def measure_tails(trace: Trace, observed: Sequence[Observed]) -> Seconds | None:
    """Say how long after each step's end evidence rows of each worker go on: seconds, shape (n_steps, n_dp, n_stages).

    0 for workers whose rows end before; None where the trace has no evidence rows.
    """
    if not len(trace.evidence):
        return None
    steps, length_s = _steps_of(observed)
    at, there = _find_steps(steps, trace.evidence.step)
    ends_s = np.zeros((len(steps), trace.n_dp, trace.n_stages))
    np.maximum.at(
        ends_s, (at[there], trace.evidence.dp[there], trace.evidence.stage[there]), trace.evidence.end_s[there]
    )
    return np.asarray(np.maximum(ends_s - length_s[:, None, None], 0.0))


def _is_waited_for(longest_s: Seconds, following_s: Seconds) -> bool:
    """Say whether the steps whose successor is known waited for the last worker that did something after its optimizer."""
    busy = longest_s > 0
    return bool(busy.any() and (following_s[busy] >= WAITED_SHARE * longest_s[busy]).all())


COMPONENT = Component("between-steps", BetweenStepsPart, traits=Traits(stops_all=True, border="end"))
