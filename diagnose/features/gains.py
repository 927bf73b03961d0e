"""What each component gives back, as features: the gate of every cause."""

from diagnose.model.components import COMPONENTS, Components, Gains
from diagnose.model.feature import Feature, Features


def measure_gains(components: Components, gains: Gains) -> Features:
    """Measure what removing each component gives back.

    Parameters
    ----------
    components : Components
    gains : Gains

    Returns
    -------
    Features
        `gain.<component>`: part of the recorded step time that comes back when it is removed alone. `last.<component>`: the
        same when it is removed after all others.

    Reads as: 0 nothing, 0.5 steps take half the time. Negative: removing it alone makes the job slower.

    Misleads when: the component was estimated from another cause (a slow worker taken for an uneven stage with dp 1).
    """
    found: Features = {}
    cannot = {}
    if components.compute_s.shape[-1] == 1 and not components.slow_workers.any():
        cannot["worker"] = "with one dp rank no worker has peers on its stage, and none fell behind itself"
    for name in COMPONENTS:
        if name in cannot:
            found[f"gain.{name}"] = found[f"last.{name}"] = Feature.missing(cannot[name])
            continue
        found[f"gain.{name}"] = Feature(gains.recoverable(name))
        found[f"last.{name}"] = Feature(gains.recoverable_last(name))
    found["gain.all"] = Feature(1.0 - gains.clean_s / gains.replayed_s)
    return found
