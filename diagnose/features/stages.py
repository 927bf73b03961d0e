"""Which pipeline stage is longer than the others, in which direction, and whether all dp ranks agree."""

import warnings

import numpy as np

from diagnose.model.components import Components
from diagnose.model.feature import Feature, Features


def measure_stages(components: Components, n_stages: int) -> Features:
    """Measure the unevenness of stages.

    Parameters
    ----------
    components : Components
    n_stages : int

    Returns
    -------
    Features
        `stage.ratio`: usual compute time of the longest stage over the mean of the others. `stage.forward_ratio`,
        `stage.backward_ratio`: the same of each direction. `stage.contradicted_share`: part of the dp ranks on which another
        stage is the longest.

    Reads as: 1 even; 1.5 the longest stage takes half as long again. Contradicted 0: all ranks alike, the layout; 0.9: one worker.

    Misleads when: with dp 1 a slow worker is a slow stage, and there is no other rank to contradict.
    """
    if n_stages == 1:
        reason = "the job has one pipeline stage"
        names = ("ratio", "forward_ratio", "backward_ratio", "contradicted_share")
        return {f"stage.{name}": Feature.missing(reason) for name in names}
    load = _by_stage(components.typical_s, n_stages)  # (2, n_stages)
    worst = longest_stage(components, n_stages)
    others = np.arange(n_stages) != worst
    forward, backward = load[0, worst] / load[0, others].mean(), load[1, worst] / load[1, others].mean()
    found = {
        "stage.ratio": Feature(float(load[:, worst].sum() / load[:, others].sum(axis=0).mean())),
        "stage.forward_ratio": Feature(float(forward)),
        "stage.backward_ratio": Feature(float(backward)),
    }
    n_dp = components.compute_s.shape[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a rank without any value has no median and contradicts nobody
        by_rank = np.nan_to_num(np.nanmedian(components.compute_s, axis=(2, 3)))  # (2, n_virtual, n_dp)
    rank_load = by_rank.sum(axis=0).reshape(-1, n_stages, n_dp).sum(axis=0)
    found["stage.contradicted_share"] = Feature(float(np.mean(rank_load.argmax(axis=0) != worst)))
    return found


def longest_stage(components: Components, n_stages: int) -> int:
    """Name the stage whose forward and backward of all its model chunks take longest."""
    return int(_by_stage(components.typical_s, n_stages).sum(axis=0).argmax())


def _by_stage(typical_s: np.typing.NDArray[np.float64], n_stages: int) -> np.typing.NDArray[np.float64]:
    """Add the model chunks of each stage: shape (2, n_stages), seconds a microbatch."""
    summed: np.typing.NDArray[np.float64] = typical_s.reshape(2, -1, n_stages).sum(axis=1)
    return summed
