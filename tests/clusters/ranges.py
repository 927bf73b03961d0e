"""What random clusters are drawn from: one set of ranges for tuning, and another that no tuning has seen.

Enters: nothing. Leaves: `Ranges`.
"""

import dataclasses
from typing import Final, Literal

#: What happens on clusters and is no fault.
Benign = Literal[
    "job-starts",
    "save",
    "evaluation",
    "hot-rack",
    "service",
    "writer",
    "exporter-gap",
    "exporter-dies",
    "old-xid",
    "corrected-errors",
    "congested-rack",
    "spike",
    "finishes",
    "software-hang",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """What worlds are drawn from.

    Attributes
    ----------
    minutes : tuple of float
        Length of the telemetry.
    n_hosts : tuple of int
        Machines; the logarithm is uniform.
    intervals_s : tuple of float
    n_roles, n_cards : tuple of int
    step_s, exchange_share : tuple of float
        Length of a step, and part of it in which gradients are exchanged.
    onset_s : tuple of float
        Seconds before the end.
    delay_s, slowdown, strength : tuple of float
        Limits; of the slowdown what it adds.
    parts : tuple of float
        Parts of a machine's processes that a fault happens to.
    ramps_s, periods_s : tuple of float
        Shapes of effects.
    noise, drift, tails, missing_share, shift_s, alike : tuple of float
        Limits; see `Cluster`.
    benign : mapping of Benign to float
        Chance of each.
    n_faults : tuple of float
        How often one, two, three machines break.
    dies_share : float
        Part of the stopped jobs that are killed before the end.
    """

    minutes: tuple[float, ...] = (15.0,)
    n_hosts: tuple[int, int] = (4, 1500)
    intervals_s: tuple[float, ...] = (1.0, 5.0, 15.0)
    n_roles: tuple[int, ...] = (1, 2, 4, 8)
    n_cards: tuple[int, ...] = (1, 1, 2, 8)
    step_s: tuple[float, float] = (2.0, 20.0)
    exchange_share: tuple[float, float] = (0.1, 0.35)
    onset_s: tuple[float, float] = (300.0, 720.0)
    delay_s: tuple[float, float] = (2.0, 60.0)
    slowdown: tuple[float, float] = (0.1, 2.0)
    strength: tuple[float, float] = (0.25, 1.0)
    parts: tuple[float, ...] = (1.0, 1.0, 1.0, 0.5, 0.125)
    ramps_s: tuple[float, ...] = (0.0, 0.0, 30.0)
    periods_s: tuple[float, ...] = (0.0,)
    noise: tuple[float, float] = (0.5, 2.0)
    drift: tuple[float, float] = (0.1, 0.5)
    tails: tuple[float, float] = (1e-4, 3e-3)
    missing_share: tuple[float, float] = (0.0, 0.02)
    shift_s: tuple[float, float] = (0.0, 2.0)
    alike: tuple[float, float] = (0.5, 1.5)
    benign: dict[Benign, float] = dataclasses.field(
        default_factory=lambda: {
            "job-starts": 0.12,
            "save": 0.5,
            "evaluation": 0.25,
            "hot-rack": 0.2,
            "service": 0.25,
            "writer": 0.2,
            "exporter-gap": 0.2,
            "exporter-dies": 0.05,
            "old-xid": 0.1,
            "corrected-errors": 0.2,
            "congested-rack": 0.15,
            "spike": 0.3,
            "finishes": 0.05,
            "software-hang": 0.05,
        }
    )
    n_faults: tuple[float, ...] = (0.88, 0.09, 0.03)
    dies_share: float = 0.1


#: What thresholds are tuned on.
TUNED: Final = Ranges()
#: What is reported as well, and was never looked at before: other workloads, intervals, noise and shapes of faults.
HELD_OUT: Final = Ranges(
    intervals_s=(2.0, 10.0, 30.0),
    n_roles=(1, 3, 6, 16),
    n_cards=(1, 4),
    step_s=(0.7, 60.0),
    exchange_share=(0.03, 0.6),
    onset_s=(270.0, 800.0),
    delay_s=(0.0, 120.0),
    slowdown=(0.05, 4.0),
    parts=(1.0, 1.0, 0.25),
    ramps_s=(0.0, 10.0, 90.0),
    periods_s=(0.0, 0.0, 60.0),
    noise=(0.3, 3.0),
    drift=(0.0, 0.8),
    tails=(0.0, 1e-2),
    missing_share=(0.0, 0.06),
    shift_s=(0.0, 10.0),
    alike=(0.2, 2.0),
    dies_share=0.25,
)
