"""Other pauses: stalls inside computes that nothing explains."""

import numpy as np

from diagnose.model.components import Traits
from diagnose.model.stalls import StallKind
from diagnose.model.trace import Bools, Seconds
from diagnose.numerics.robust import MAD_TO_SIGMA, fill_nan, lower_median, nan_median, weighted_median
from diagnose.whatif.components.component import Component, Part

#: A pause stands out by this many robust deviations, and by this part of the operation (prototype).
PAUSE_DEVIATIONS = 6.0
PAUSE_RATIO = 0.03
#: Pauses of a known length are told from this part of that on, where the longer ones are more than so many times the shorter ones.
#: ... and so many, where this part of the others pause: of computes of seven healthy jobs on busy hosts up to 7% did.
HIDDEN_SHARE, FEW_SHORTER, MIN_HIDDEN, OFTEN = 0.5, 4.0, 12, 0.1
#: What makes one backward of a worker longer in this part of its steps, of so many at least, belongs to the schedule.
STRUCTURE_SHARE = 0.9
MIN_STRUCTURE_STEPS = 5


def find_pauses(
    work_s: Seconds, free_s: Seconds, left: Seconds, n_stages: int, at_own_places: Bools | None = None
) -> tuple[Seconds, float]:
    """Find the seconds in computes that stand out from what factors and ordinary variation explain.

    Parameters
    ----------
    work_s, free_s : ndarray of float64, axes as in `Breakdown`
        Computes without the seconds that rows say, and with them; both without waits for communication.
    left : ndarray of float64, same shape
        Durations over all factors; about 1.
    at_own_places : ndarray of bool, shape (n_directions, n_virtual, n_microbatches, 1, n_dp), optional
        Places in which a worker alone is slow in all steps.

    Returns
    -------
    pause_s : ndarray of float64, same shape
        Seconds, 0 where nothing stands out.
    noise : float
        Robust relative spread of what is left.
    """
    noise = _measure_noise(left - 1.0, n_stages)
    usual_s = work_s / np.where(left > 0, left, 1.0)
    rest_s = fill_nan(free_s - usual_s)
    least_s = max(PAUSE_RATIO, PAUSE_DEVIATIONS * noise) * usual_s
    pause_s = np.where(rest_s > least_s, rest_s, 0.0)
    if len(pause_s) > 1:
        pause_s[:2] += [_find_hidden(pause_s, rest_s, least_s, direction) for direction in range(2)]
    _keep_in_work(pause_s, ~np.isnan(work_s), at_own_places)
    return pause_s, noise


def _measure_noise(rest: Seconds, n_stages: int) -> float:
    """Say how far computes vary by themselves, on the usual worker: where many stand still they are no ordinary variation."""
    if not rest.size:
        return 0.0
    by_worker = rest.reshape(len(rest), -1, n_stages, *rest.shape[2:])  # direction, chunk, stage, microbatch, step, dp
    off = np.abs(by_worker - nan_median(rest, axis=tuple(range(rest.ndim))))
    mad = nan_median(np.moveaxis(off, (2, 5), (0, 1)).reshape(n_stages * rest.shape[-1], -1), axis=1)
    mad = mad[np.isfinite(mad)]
    return float(MAD_TO_SIGMA * lower_median(mad)) if len(mad) else 0.0


def _find_hidden(pause_s: Seconds, rest_s: Seconds, least_s: Seconds, direction: int) -> Seconds:
    """Find the pauses of a direction that are as long as those of the other one, where that does not stand out there.

    What stands out in forwards may be less than ordinary variation of backwards, which are longer. That these are longer by as much
    is no chance where hardly any are as much shorter.
    """
    lengths = pause_s[1 - direction][pause_s[1 - direction] > 0]
    if lengths.size < OFTEN * pause_s[1 - direction].size:
        return np.zeros(pause_s[direction].shape)
    length_s = weighted_median(lengths, lengths) or 0.0
    lower_s = np.maximum(HIDDEN_SHARE * least_s[direction], length_s / 2.0)
    asked = (lower_s < length_s) & (least_s[direction] > length_s) & (pause_s[direction] == 0)
    longer, shorter = ((asked & (of > lower_s)) for of in (rest_s[direction], -rest_s[direction]))
    are_pauses = longer.sum() >= MIN_HIDDEN + FEW_SHORTER * shorter.sum()
    return np.where(longer & are_pauses, rest_s[direction], 0.0)


def _keep_in_work(pause_s: Seconds, there: Bools, at_own_places: Bools | None = None) -> None:
    """Leave to the work, in place, what makes the same backward of a worker longer in nearly every step.

    A step's last backward also begins to reduce gradients; no stall chooses one microbatch of all.
    """
    if pause_s.shape[2] < 2 or pause_s.shape[3] < MIN_STRUCTURE_STEPS:
        return
    hit = pause_s[1:] > 0  # (1, n_virtual, n_microbatches, n_steps, n_dp)
    always = hit.sum(axis=3) >= STRUCTURE_SHARE * np.maximum(there[1:].sum(axis=3), 1)
    # Where other microbatches are hit as often the worker is at fault, not the place.
    alone = always & (always.sum(axis=2, keepdims=True) == 1)
    if at_own_places is not None:
        alone &= ~at_own_places[1:, :, :, 0]
    if alone.any():
        pause_s[1:] = np.where(alone[:, :, :, None], 0.0, pause_s[1:])


COMPONENT = Component("pause", Part, inside=StallKind.NOBODY, traits=Traits(varies=True))
