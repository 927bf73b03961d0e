"""Time outside operations: before forwards of the first stage, at the start of steps, and between them."""

import numpy as np

from diagnose.model.components import Components, Gains
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import Op
from diagnose.model.trace import Evidence

#: Steps that lost more than this part of the most that any step lost count as hit.
HIT_SHARE = 0.3
#: Hits needed for a period.
MIN_HITS = 3


def measure_delays(components: Components, gains: Gains, evidence: Evidence) -> Features:
    """Measure when time is lost outside operations.

    Parameters
    ----------
    components : Components
    gains : Gains
    evidence : Evidence

    Returns
    -------
    Features
        `stall.period_steps`: distance of the steps that lose time at their start or end, where it is regular.
        `stall.regularity`: part of those steps that lie on that period. `stall.checkpoint_share`: part of that time in steps
        with checkpoint rows or right after one. `input.steps_share`: part of the steps that lose time before forwards.

    Reads as: regularity 1 every hit on the period; checkpoint_share 1 all of it explained by rows.

    Misleads when: a trace samples steps so sparsely that a period cannot show.
    """
    found: Features = {}
    order = np.argsort(components.steps, kind="stable")
    steps = components.steps[order]
    lost = np.zeros(len(steps))
    for name in ("start-delay", "between-steps"):
        if name in gains.alone_steps_s:
            lost += np.maximum(gains.replayed_steps_s - gains.alone_steps_s[name], 0.0)[order]
    hits = lost > HIT_SHARE * lost.max(initial=0.0) if lost.max(initial=0.0) > 0 else np.zeros(len(steps), dtype=bool)
    period, regularity = _find_period(steps[hits])
    found["stall.period_steps"] = period
    found["stall.regularity"] = regularity
    saved = np.unique(evidence.step[evidence.op == Op.CHECKPOINT])
    if not len(saved):
        found["stall.checkpoint_share"] = Feature.missing("the trace has no checkpoint rows")
    elif lost.sum() <= 0:
        found["stall.checkpoint_share"] = Feature.missing("no time was lost at the start or end of steps")
    else:
        near = np.isin(steps, np.concatenate([saved, saved + 1]))
        found["stall.checkpoint_share"] = Feature(float(lost[near].sum() / lost.sum()))
    if "input-delay" in gains.alone_steps_s:
        waited = gains.replayed_steps_s - gains.alone_steps_s["input-delay"]
        found["input.steps_share"] = Feature(float(np.mean(waited > 0.01 * gains.replayed_s)))
    else:
        found["input.steps_share"] = Feature(0.0)
    return found


def _find_period(hit_steps: np.typing.NDArray[np.int64]) -> tuple[Feature, Feature]:
    """Find the spacing of hits: the most frequent distance that the others are multiples of."""
    if len(hit_steps) < MIN_HITS:
        missing = Feature.missing(f"fewer than {MIN_HITS} steps lose time at their start or end")
        return missing, missing
    distances = np.diff(hit_steps)
    values, counts = np.unique(distances, return_counts=True)
    period = int(values[counts.argmax()])
    return Feature(float(period)), Feature(float(np.mean(distances % period == 0)) if period > 1 else 0.0)
