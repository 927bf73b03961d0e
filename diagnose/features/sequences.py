"""Whether microbatches differ in length: slow on every stage of their rank, forward and backward alike."""

from diagnose.model.components import Components
from diagnose.model.feature import Feature, Features


def measure_sequences(components: Components) -> Features:
    """Measure how uneven microbatches are.

    Parameters
    ----------
    components : Components

    Returns
    -------
    Features
        `sequence.correlation`: between forward and backward of a microbatch, over stages. `sequence.spread`: relative spread of
        the forward. `sequence.worst_ratio`: the longest microbatch over a typical one.

    Reads as: correlation 0.9 and spread 0.2 long documents (real: 0.226); spread 0.02 noise, whatever the correlation.

    Misleads when: with one stage and pauses in both directions; a merely slow worker reaches a correlation of 0.999 before it is
    taken out.
    """
    if components.forward_backward_correlation is None or components.microbatch_spread is None:
        reason = "fewer than 8 microbatches with forward and backward"
        return {f"sequence.{name}": Feature.missing(reason) for name in ("correlation", "spread", "worst_ratio")}
    return {
        "sequence.correlation": Feature(components.forward_backward_correlation),
        "sequence.spread": Feature(components.microbatch_spread),
        "sequence.worst_ratio": Feature(float(components.microbatch_ratio[0].max())),
    }
