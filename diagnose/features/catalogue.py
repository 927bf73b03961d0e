"""All features that a job can have: by name, each with what it reads as, known before any job is read; and measured.

Enters: what was taken apart, replayed and timed. Leaves: `Features`, with every name of the catalogue and no other.
"""

from types import ModuleType

from diagnose.features import (
    contention,
    gains,
    hosts,
    members,
    network,
    periodicity,
    sequences,
    stages,
    stalls,
    workers,
)
from diagnose.model.components import Components, Gains
from diagnose.model.feature import Feature, Features
from diagnose.model.trace import Trace
from diagnose.model.transfers import Transfers
from diagnose.model.whatif import WhatIf

#: Features of the job as a whole.
JOB = {
    "slowdown": "S, the step time over that of the job with ideal times; 1 nothing to gain; leaves out launch delays",
    "discrepancy": "how far the recorded step time is above the replayed one; 0.05 launch delays that S leaves out",
    "noise": "relative spread of compute times that nothing accounts for; 0.02 ordinary",
}
MODULES: tuple[ModuleType, ...] = (
    contention,
    hosts,
    members,
    network,
    periodicity,
    sequences,
    stages,
    stalls,
    workers,
)


def list_features() -> dict[str, str]:
    """List all features there are.

    Returns
    -------
    dict of str to str
        Name -> one sentence on what it reads as, by name.

    >>> list_features()["slowdown"][:16]
    'S, the step time'
    """
    found = JOB | gains.list_gains()
    for module in MODULES:
        found |= module.NAMES
    return dict(sorted(found.items()))


def measure_features(
    trace: Trace, what_if: WhatIf, components: Components, job_gains: Gains, transfers: Transfers
) -> Features:
    """Measure every feature of a job.

    Parameters
    ----------
    trace : Trace
        With the evidence rows on the one clock of the other arguments.
    what_if : WhatIf
    components : Components
    job_gains : Gains
    transfers : Transfers

    Returns
    -------
    Features
        All of `list_features`; one that cannot be measured is missing with its reason.
    """
    found: Features = {
        "slowdown": Feature(what_if.slowdown),
        "discrepancy": Feature(what_if.discrepancy),
        "noise": Feature(components.noise_ratio),
    }
    found |= gains.measure_gains(components, job_gains)
    found |= stages.measure_stages(components, trace.n_stages)
    found |= workers.measure_workers(components, what_if)
    found |= hosts.measure_hosts(components, trace)
    found |= members.measure_members(trace, components)
    found |= sequences.measure_sequences(components, trace)
    found |= stalls.measure_stalls(components, trace.evidence)
    found |= contention.measure_contention(components)
    found |= network.measure_network(transfers, components)
    found |= periodicity.measure_periodicity(components, job_gains, trace.evidence)
    return found
