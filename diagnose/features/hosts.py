"""What stands around a slow worker: whether it waits least among its peers, and whether its neighbours on the host are slow."""

import numpy as np

from diagnose.features.workers import slow_workers
from diagnose.model.components import Breakdown
from diagnose.model.feature import Feature, Features
from diagnose.model.optype import DP_COLLECTIVES, of_types
from diagnose.model.trace import Seconds, Trace

#: Each feature: what its values read as, and when it misleads.
READS_AS = {
    "worker.wait_share": "time that the slowest worker spends in collectives over the mean of its peers; the culprit waits "
    "least, far below 1; above 1 a victim; misleads when the stage has another slow worker, or collectives are most of it",
    "host.slow_share": "part of the workers on the slowest worker's host that are slow; 1 all of them: the host; misleads with one "
    "worker a host",
}


def measure_hosts(breakdown: Breakdown, trace: Trace) -> Features:
    """Measure the surroundings of the slowest worker.

    They are missing where no worker is slow, or the trace does not say.
    """
    slow = slow_workers(breakdown)
    if not slow:
        return {name: Feature.missing("no worker is slow") for name in READS_AS}
    return {"worker.wait_share": _wait_share(trace, slow[0]), "host.slow_share": _slow_share(trace, slow)}


def _wait_share(trace: Trace, worker: tuple[int, int]) -> Feature:
    """Compare the time of a worker (dp index, stage index) in collectives with that of its peers."""
    dp, stage = worker
    if trace.n_dp == 1:
        return Feature.missing("with one dp rank a worker has no peers")
    spent_s: Seconds = np.zeros(trace.n_dp)
    n_seen = 0
    for block in trace.blocks:
        nodes = np.flatnonzero(of_types(block.nodes.op, DP_COLLECTIVES) & (block.nodes.stage == stage))
        seconds = block.end_s[nodes] - block.start_s[nodes]
        whole = np.asarray(~np.isnan(seconds).any(axis=2))  # what all ranks recorded
        spent_s += np.where(whole[:, :, None], seconds, 0.0).sum(axis=(0, 1))
        n_seen += int(whole.sum())
    others_s = float(np.delete(spent_s, dp).mean())
    if not n_seen or others_s <= 0:
        return Feature.missing("the stage has no collectives over its dp ranks")
    return Feature(float(spent_s[dp]) / others_s)


def _slow_share(trace: Trace, slow: list[tuple[int, int]]) -> Feature:
    """Say how many workers of the slowest one's host are slow."""
    if trace.hosts is None:
        return Feature.missing("the trace has no column host")
    host = trace.hosts[slow[0][0] * trace.n_stages + slow[0][1]]
    if not host:
        return Feature.missing("the trace does not say on which host the worker ran")
    there = [divmod(i, trace.n_stages) for i, name in enumerate(trace.hosts) if name == host]
    return Feature(sum(worker in slow for worker in there) / len(there))
