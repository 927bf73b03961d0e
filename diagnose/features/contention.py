"""Whether computes queue behind communication in flight, and on how many workers."""

import numpy as np

from diagnose.model.components import Breakdown, Gains
from diagnose.model.feature import Feature, Features
from diagnose.model.stalls import StallKind
from diagnose.numerics.chance import TOSS_UP

#: No compute takes less: keeps ratios finite.
TINY_S = 1e-12
#: What gives back less is not said.
WORTH_SHARE = 0.02

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "queue.held_share": "part of the computes that are ever held up which are, in the steps with any; 1 all; misleads when so few "
    "overlap that chance explains it",
    "queue.workers_share": "part of the workers on which computes are held up; 1 all, as the software is the same",
    "queue.chance_deviations": "by how many standard deviations more computes end, or start, with communication in flight than by "
    "chance; 0 none, 4 no chance; misleads where a framework waits on purpose",
    "queue.on_purpose_share": "part of the waits that are for a gather which the same compute waits for in nearly all steps and "
    "ranks; 1 a job that gathers its parameters before each compute; misleads where a software always queues so",
    "queue.blocking_doubt": "how probable it is that the program waits for its sends, or for reductions where it gathers "
    "parameters anew: where computes hardly ever begin before these have ended; misleads where a software always queues so",
    "queue.behind_slow_share": "part of the seconds waited that are for transfers which stand out among their like; 0 they are for "
    "ordinary ones, 1 what stops a process, or its network, stops both; misleads where contention slows single transfers",
    "queue.of_slow_share": "part of what comes back without these waits that is gone as well where no transfer is slow, if more "
    "comes back without these and hardly any of it is left; 0 the waits have a cause of their own, 1 what is waited for is slow; "
    "misleads where both are small",
    "queue.replay_error": "by which part of them steps are off that are replayed with these waits; 0 computes do wait so; misleads "
    "where clocks are coarse",
    "queue.ratio": "time that a held compute waits over its work",
}


def measure_contention(breakdown: Breakdown, gains: Gains) -> Features:
    """Measure how computes are held up by communication; all are missing where nothing is held up."""
    inside_s = np.zeros(()) if breakdown.queue_wait_s is None else breakdown.queue_wait_s
    wait_s = breakdown.stalls.seconds_of(StallKind.QUEUE) + inside_s
    held = wait_s > 0
    if not held.any():
        return {name: Feature.missing("no compute is held up by communication in flight") for name in READS_AS}
    n_stages = breakdown.slow_workers.shape[1]
    by_virtual = held.any(axis=(0, 2, 3))
    workers = by_virtual.reshape(-1, n_stages, by_virtual.shape[-1]).any(axis=0)
    work_s = np.maximum(breakdown.compute_s - breakdown.stalls.inside_s - inside_s, TINY_S)
    concerned = held.any(axis=(3, 4), keepdims=True) & held.any(axis=(0, 1, 2, 4), keepdims=True)
    concerned = concerned & np.isfinite(breakdown.compute_s)
    return {
        "queue.held_share": Feature(float(held.sum() / concerned.sum())),
        "queue.workers_share": Feature(float(workers.mean())),
        "queue.chance_deviations": Feature(breakdown.queue_deviations),
        "queue.on_purpose_share": Feature(breakdown.queue_on_purpose),
        "queue.blocking_doubt": Feature(TOSS_UP * breakdown.queue_blocking),
        "queue.behind_slow_share": Feature(breakdown.queue_behind_slow),
        "queue.of_slow_share": Feature(_share_of_slow(gains)),
        "queue.replay_error": Feature(gains.waits_error),
        "queue.ratio": Feature(float(np.median(wait_s[held] / work_s[held]))),
    }


def _share_of_slow(gains: Gains) -> float:
    """Say which part of what waits for communication cost slow transfers explain; 0 where they leave enough to be worth saying."""
    waits, slow, left = gains.recoverable("queue"), gains.recoverable("transfer"), gains.recoverable_last("queue")
    if not 0.0 < waits <= slow or left >= WORTH_SHARE:
        return 0.0
    return float(np.clip(1.0 - left / waits, 0.0, 1.0))
