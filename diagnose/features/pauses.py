"""Pauses inside computes: in which direction, on how many workers, and whether evidence rows say why."""

import numpy as np

from diagnose.model.components import Components
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import NAMES, Op
from diagnose.model.trace import Evidence

#: Pauses that count: at least this part of the longest ones. Ordinary variation stands out a little, too.
LONG_SHARE = 0.2


def measure_pauses(components: Components, evidence: Evidence) -> Features:
    """Measure what pauses look like.

    Parameters
    ----------
    components : Components
    evidence : Evidence

    Returns
    -------
    Features
        `pause.forward_share`: part of the long pauses' seconds in forwards. `pause.gc_share`, `pause.malloc_share`: part of all
        pauses' seconds in operations that have `gc` or `cuda-malloc` rows inside. `pause.ratio`: a typical long pause over the
        operation it stretches. `pause.workers_share`: part of the workers that have long pauses.

    Reads as: forward_share 1 collection of Python objects; 0.5 both directions; 0.33 noise in proportion to duration.

    Misleads when: a job has few pauses; without evidence rows forward-only pauses may also be a loader inside the forward.
    """
    found: Features = {}
    pause_s = components.pause_s
    top = float(pause_s.max(initial=0.0))
    long = pause_s > LONG_SHARE * top if top > 0 else np.zeros_like(pause_s, dtype=bool)
    if not long.any():
        names = ("forward_share", "ratio", "workers_share")
        found |= {f"pause.{name}": Feature.missing("no compute stands out as paused") for name in names}
    else:
        found["pause.forward_share"] = Feature(float(pause_s[0][long[0]].sum() / pause_s[long].sum()))
        work = np.nan_to_num(components.compute_s) - pause_s
        found["pause.ratio"] = Feature(float(np.median(pause_s[long] / np.maximum(work[long], 1e-9))))
        n_stages = components.slow_workers.shape[1]
        by_virtual = long.any(axis=(0, 2, 3))  # (n_virtual, n_dp)
        workers = by_virtual.reshape(-1, n_stages, by_virtual.shape[-1]).any(axis=0)
        found["pause.workers_share"] = Feature(float(workers.mean()))
    for name, op in (("gc_share", Op.GC), ("malloc_share", Op.CUDA_MALLOC)):
        if not (evidence.op == op).any():
            found[f"pause.{name}"] = Feature.missing(f"the trace has no {NAMES[op]} rows")
        elif not components.pause_evidence and not long.any():
            found[f"pause.{name}"] = Feature.missing("no compute stands out as paused")
        else:
            found[f"pause.{name}"] = Feature(components.pause_evidence.get(NAMES[op], 0.0))
    return found
