"""Time between or at the end of steps: after the last optimizer, until the next step began."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.optype import Op, of_types
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Evidence, Ints, Seconds, Trace
from diagnose.numerics.robust import median
from diagnose.whatif.components.component import Component, Part
from diagnose.whatif.computes import iterate_blocks
from diagnose.whatif.delays import ORDINARY_SHARE
from diagnose.whatif.evidence import SAYS
from diagnose.whatif.observed import Observed
from diagnose.whatif.starts import list_members, list_opening

#: The next step waits for what rows say of some workers if it has begun no earlier than this part of it, where it is known.
WAITED_SHARE = 0.95
#: Who was busy after a step begins the next one late by this part of it, in most cases, where that shows there.
SHOWN_SHARE = 0.5
#: Type of all rows of types that the format does not name.
OTHER_ROW = -1


class BetweenStepsPart(Part):
    """Without it the time between steps is at most the ordinary one, which no job is without."""

    def find(self) -> None:
        """Say what time between steps is ordinary in this job."""
        job = self.job
        explained_s = sum(job.gap_s.values(), start=np.zeros_like(job.between_s))
        rest_s = np.maximum(job.between_s - explained_s, 0.0)
        self._ordinary_s = float(median(rest_s))
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
        of the whole job; else until the last worker had done what its evidence rows say, or the first where the next step shows
        who is late. What rows say of the time before a step whose predecessor was not sampled counts as after it.
    """
    steps, length_s = _steps_of(observed)
    gap_s, before_s = np.zeros(len(steps)), np.zeros(len(steps))
    every = _list_rows(trace)
    tail_s = measure_tails(trace, observed, every)
    if tail_s is not None:
        # A row long after the last step, as the log of a job that has ended, does not say that all until then was the step's.
        ends = np.isin(steps + 1, (steps.max() + 1, *trace.restarted_steps))
        busy_s = _busy_after(every, steps, length_s, np.arange(len(every)))
        tail_s = np.where(ends[:, None, None], np.minimum(tail_s, busy_s[:, None, None]), tail_s)
        # Where the next step shows who is late, only what all of them do lies between the steps.
        shown = trace.step_origin_s is not None or _shows_in_next_step(observed, steps, tail_s)
        gap_s = tail_s.min(axis=(1, 2)) if shown else tail_s.max(axis=(1, 2))
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
            leads = _measure_leads(trace, observed).values()
            led_s = sum((lead_s for lead_s, _ in leads), start=np.zeros(len(steps)))
            before_s = sum((lead_s for _, lead_s in leads), start=before_s)
            beyond_s = max(float(median((following - np.maximum(gap_s, led_s))[known])), 0.0)
            gap_s = np.where(known, following, gap_s + beyond_s)
    return np.maximum(gap_s, 0.0) + before_s


def explain_between(trace: Trace, observed: Sequence[Observed], between_s: Seconds) -> dict[StallKind, Seconds]:
    """Say which part of the time between steps rows explain by something that is no save: waits for input, planned work.

    Returns
    -------
    dict of StallKind to ndarray of float64, shape (n_steps,)
        Seconds, together no more than `between_s`.
    """
    leads = _measure_leads(trace, observed)
    steps, length_s = _steps_of(observed)
    found, left_s = dict[StallKind, Seconds](), between_s
    every = _list_rows(trace)
    for kind, rows in _rows_by_kind(every).items():
        if kind == StallKind.SAVING:
            continue
        explained_s = _busy_after(every, steps, length_s, rows)
        explained_s += sum(leads.get(kind, ()), start=np.zeros(len(steps)))
        if explained_s.any():
            found[kind] = np.minimum(explained_s, left_s)
            left_s = left_s - found[kind]
    return found


def _busy_after(every: Evidence, steps: Ints, length_s: Seconds, rows: Ints) -> Seconds:
    """Say how long some worker is busy with evidence rows after each step's end: seconds, shape (n_steps,)."""
    ended_s = length_s[_find_steps(steps, every.step[rows])[0]]
    return _busy_by_step(every, steps, rows, np.maximum(every.start_s[rows], ended_s), every.end_s[rows])


def _measure_leads(trace: Trace, observed: Sequence[Observed]) -> dict[StallKind, tuple[Seconds, Seconds]]:
    """Say by kind how long rows kept some worker before a step's first operation.

    On the clock of the job a step begins with its first operation: whatever all workers do before lies between the steps. Seconds
    by the step that they follow, and those before steps whose predecessor was not sampled by that step; shape (n_steps,) each.
    What lies before the first step, as a job's first batch, or before a restart is no time of the steps recorded.
    """
    found: dict[StallKind, tuple[Seconds, Seconds]] = {}
    if trace.step_origin_s is None:
        return found
    steps, _ = _steps_of(observed)
    following, sampled = _find_steps(steps, steps + 1)
    follows = _find_steps(steps, steps - 1)[1]
    begins = _find_beginnings(trace, steps)
    every = _list_rows(trace)
    for kind, rows in _rows_by_kind(every).items():
        ends_s = np.minimum(every.end_s[rows], 0.0)
        lead_s = np.where(begins, 0.0, _busy_by_step(every, steps, rows, every.start_s[rows], ends_s))
        if lead_s.any():
            found[kind] = np.where(sampled, lead_s[following], 0.0), np.where(follows, 0.0, lead_s)
    return found


def blame_leads(trace: Trace, observed: Sequence[Observed], explained_s: Mapping[StallKind, Seconds]) -> Seconds | None:
    """Say for how long rows kept each worker waiting for input while nobody had begun the step.

    Parameters
    ----------
    explained_s : dict of StallKind to ndarray of float64, shape (n_steps,)
        As of `explain_between`.

    Returns
    -------
    ndarray of float64, shape (n_dp, n_stages), or None
        Seconds, mean a step: who then begins last has waited longer only by what the others are ahead.
    """
    known_s = explained_s.get(StallKind.INPUT)
    if known_s is None or trace.step_origin_s is None:
        return None
    steps, _ = _steps_of(observed)
    before, follows = _find_steps(steps, steps - 1)
    known_s = np.where(follows, known_s[before], known_s)
    known_s[_find_beginnings(trace, steps)] = 0.0
    rows = trace.evidence.take(_rows_by_kind(trace.evidence)[StallKind.INPUT])
    at, there = _find_steps(steps, rows.step)
    lead_s = np.minimum(np.minimum(rows.end_s, 0.0) - np.minimum(rows.start_s, 0.0), known_s[at])
    found = np.zeros((trace.n_dp, trace.n_stages))
    np.add.at(found, (rows.dp[there], rows.stage[there]), lead_s[there] / len(steps))
    return found


def _find_beginnings(trace: Trace, steps: Ints) -> Bools:
    """Mark the steps before which is no time of the job."""
    return np.isin(steps, (steps.min(), *trace.restarted_steps))


def _busy_by_step(every: Evidence, steps: Ints, rows: Ints, begins_s: Seconds, ends_s: Seconds) -> Seconds:
    """Say how long some worker is busy with evidence rows in each step, cut to given times: seconds, shape (n_steps,)."""
    at, there = _find_steps(steps, every.step[rows])
    there &= ends_s > begins_s
    at, begins_s, ends_s = at[there], begins_s[there], ends_s[there]
    found = np.zeros(len(steps))
    if not len(at):
        return found
    order = np.lexsort((begins_s, at))
    # Each step far behind the one before, so that what is covered so far never reaches into the next.
    apart_s = at[order] * (2.0 * max(float(np.abs(begins_s).max()), float(np.abs(ends_s).max())))
    begins_s, ends_s = begins_s[order] + apart_s, ends_s[order] + apart_s
    covered_s = np.concatenate([[-np.inf], np.maximum.accumulate(ends_s)[:-1]])
    np.add.at(found, at[order], np.maximum(ends_s - np.maximum(begins_s, covered_s), 0.0))
    return found


def _shows_in_next_step(observed: Sequence[Observed], steps: Ints, tail_s: Seconds) -> bool:
    """Say whether workers that were busy after a step begin the next one late, as far as steps follow each other at all.

    Where they do not, the next step is counted from when all were ready.
    """
    following, sampled = _find_steps(steps, steps + 1)
    busy = (tail_s > 0) & sampled[:, None, None]
    if not busy.any():
        return False
    late_s = np.zeros(tail_s.shape)
    for at, o in iterate_blocks(observed):
        for stage, members in enumerate(list_members(o, tail_s.shape[2])):
            waits = [
                np.broadcast_to(o.delay[node], o.block.start_s.shape[1:]) for node in list_opening(o, members).nodes
            ]
            if waits:
                late_s[at, :, stage] = np.max(waits, axis=0)
    shown = late_s[following][busy] >= SHOWN_SHARE * tail_s[busy]
    return bool(shown.mean() > SHOWN_SHARE)


def _rows_by_kind(evidence: Evidence) -> dict[StallKind, Ints]:
    """List the rows of each kind that may lie between steps."""
    kinds = (StallKind.INPUT, StallKind.PLANNED, StallKind.COLLECTION, StallKind.SAVING)
    every = {kind: np.flatnonzero(of_types(evidence.op, [op for op in SAYS if SAYS[op] == kind])) for kind in kinds}
    every[StallKind.OTHER] = np.flatnonzero(evidence.op == OTHER_ROW)
    return {kind: rows for kind, rows in every.items() if len(rows)}


def _list_rows(trace: Trace) -> Evidence:
    """List all rows that may lie between steps; those of types that the format does not name are one more."""
    if not len(trace.others):
        return trace.evidence
    of_others = dataclasses.replace(trace.others, op=np.full(len(trace.others), OTHER_ROW))
    return Evidence.join([trace.evidence, of_others])


def _steps_of(observed: Sequence[Observed]) -> tuple[Ints, Seconds]:
    """Give the steps in the order of the blocks, and their lengths in seconds."""
    steps = np.concatenate([o.block.steps for o in observed])
    return steps, np.concatenate([o.block.step_ends_s for o in observed])


def _find_steps(steps: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Say where some step numbers stand in the order of the blocks, and which are there at all."""
    order = np.argsort(steps)
    at = order[np.minimum(np.searchsorted(steps[order], wanted), len(steps) - 1)]
    return at, steps[at] == wanted


def measure_tails(trace: Trace, observed: Sequence[Observed], rows: Evidence | None = None) -> Seconds | None:
    """Say how long after each step's end evidence rows of each worker go on: seconds, shape (n_steps, n_dp, n_stages).

    0 for workers whose rows end before; None where the trace has no evidence rows. `rows` are looked at instead, if given.
    """
    rows = trace.evidence if rows is None else rows
    if not len(rows):
        return None
    steps, length_s = _steps_of(observed)
    at, there = _find_steps(steps, rows.step)
    ends_s = np.zeros((len(steps), trace.n_dp, trace.n_stages))
    np.maximum.at(ends_s, (at[there], rows.dp[there], rows.stage[there]), rows.end_s[there])
    return np.asarray(np.maximum(ends_s - length_s[:, None, None], 0.0))


def _is_waited_for(longest_s: Seconds, following_s: Seconds) -> bool:
    """Say whether the steps whose successor is known waited for the last worker that did something after its optimizer.

    Where none of them had such a worker nothing speaks against it: who does something else begins its next step later.
    """
    busy = longest_s > 0
    return bool((following_s[busy] >= WAITED_SHARE * longest_s[busy]).all())


COMPONENT = Component("between-steps", BetweenStepsPart, traits=Traits(stops_all=True, border="end"))
