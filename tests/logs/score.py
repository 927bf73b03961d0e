"""How well the log of a run whose truth is known is understood.

Enters: a `Shape`, and what was measured of a log of it. Leaves: a `Score`.
"""

import dataclasses
import math

import numpy as np

from diagnose.model.training_log import LogFacts
from tests.logs.shapes import Shape

#: What is told of: a smaller part of all time is ordinary variation.
TOLD_SHARE = 0.02
#: Lost time is right within this part of the truth, or within so many standard errors of the steps it is measured by.
RIGHT_SHARE, RIGHT_ERRORS = 0.02, 2.5


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Each is None where the shape has nothing of the kind."""

    #: What was said is what was put in, and nothing else.
    kind: bool
    #: All onsets and recoveries lie within a logged interval.
    onset: bool | None
    #: It is exact.
    period: bool | None
    #: Error of the lost time, as a part of the truth.
    lost: float | None
    #: It is small enough.
    lost_right: bool | None
    said: str


def name_kinds(facts: LogFacts) -> set[str]:
    """Name what a log is said to show that costs something."""
    assert facts.ledger is not None
    said = {
        key for key, share in facts.ledger.shares.items() if key not in ("variation", "between") and share >= TOLD_SHARE
    }
    # What costs next to nothing is no finding, but a window beside one is.
    told_s = TOLD_SHARE / 2 * facts.ledger.total_s
    said |= {"windows"} if sum(w.lost_s for w in facts.windows) >= told_s and not facts.ramps else set()
    return said | ({"ramps"} if sum(r.lost_s for r in facts.ramps) >= told_s else set())


def score(shape: Shape, facts: LogFacts) -> Score:
    """Compare what was measured with what was put in."""
    truth, ledger, k = shape.truth, facts.ledger, max(shape.run.interval, facts.interval)
    assert ledger is not None
    said = name_kinds(facts)
    total_s = float(shape.run.step_s.sum()) if facts.of else ledger.total_s
    wanted = {key for key, seconds in truth.lost_s.items() if seconds >= TOLD_SHARE * total_s}
    either = {key for key, seconds in truth.lost_s.items() if seconds >= TOLD_SHARE * total_s / 2}
    onset = period = None
    if truth.windows:
        found = [(window.onset, window.recovery) for window in facts.windows]
        onset = len(found) == len(truth.windows) and all(
            _is_near(a, b, k) for pair in zip(found, truth.windows, strict=True) for a, b in zip(*pair, strict=True)
        )
    if truth.period is not None:
        period = any(spikes.period == truth.period for spikes in facts.spikes)
    lost = right = None
    if truth.lost_s:
        put_in = sum(truth.lost_s.values())
        # The end of a ramp may be a level of its own.
        measured = sum(ledger.seconds.get(key, 0.0) for key in {*truth.lost_s, *_implied(set(truth.lost_s))})
        lost = abs(measured - put_in) / put_in
        n = sum(int(w.last - w.first + 1) for w in facts.windows) + sum(s.lines * k for s in facts.spikes)
        error_s = shape.noise_s * math.sqrt(max(n, 1)) * max(1.0, float(np.mean(facts.step_s)) / shape.pace_s)
        right = lost <= RIGHT_SHARE or lost * put_in <= RIGHT_ERRORS * error_s
    text = " ".join(f"{key}={share:.3f}" for key, share in ledger.shares.items())
    text += (
        f" | windows {[(w.onset, w.recovery) for w in facts.windows]} ramps {[(r.first, r.last) for r in facts.ramps]}"
    )
    text += f" | spikes {[(s.pattern, s.period, s.count) for s in facts.spikes]}"
    return Score(wanted <= said <= (wanted | either | _implied(wanted)), onset, period, lost, right, text)


def _implied(wanted: set[str]) -> set[str]:
    """A ramp is a window as well."""
    return {"windows"} if "ramps" in wanted else set()


def _is_near(found: int | None, true: int | None, interval: int) -> bool:
    """Say whether two iterations are within a logged interval of each other."""
    return found == true if found is None or true is None else abs(found - true) <= interval
