"""What each component gives back, as features: the gate of every cause."""

from diagnose.model.components import COMPONENTS, Breakdown, Gains
from diagnose.model.feature import Feature, Features


def list_gains() -> dict[str, str]:
    """Say what each feature reads as, with when it misleads: two for every component."""
    found = {
        "gain.all": "part of the step time that comes back without all components together; 0 only ordinary variation is left; "
        "misleads when components cannot all be mended",
    }
    for component, words in COMPONENTS.items():
        found[f"gain.{component}"] = (
            f"part of the recorded step time that comes back without {words}, all else kept; 0 nothing, 0.5 steps "
            "take half the time, negative they take longer; misleads when the component was estimated from another cause"
        )
        found[f"last.{component}"] = (
            f"part of the step time that comes back without {words} after everything else was removed; shows "
            "what another cause hides; misleads as gain does"
        )
    return found


def measure_gains(breakdown: Breakdown, gains: Gains) -> Features:
    """Measure what removing each component gives back; missing where nobody can tell."""
    found: Features = {}
    for name in COMPONENTS:
        why_unmeasured = gains.traits[name].why_unmeasured(breakdown)
        if why_unmeasured:
            found[f"gain.{name}"] = found[f"last.{name}"] = Feature.missing(why_unmeasured)
            continue
        found[f"gain.{name}"] = Feature(gains.recoverable(name))
        found[f"last.{name}"] = Feature(gains.recoverable_last(name))
    found["gain.all"] = Feature(1.0 - gains.clean_s / gains.replayed_s)
    return found
