"""How machines break, how often, and what of it their metrics show.

Enters: a random generator, and which metrics are exported. Leaves: a `MachineFault`.

Source of the kinds and of how often each is: Minder (arXiv 2411.01791), table 1. Which metrics a kind moves follows its text; how
often, and how far, is ours.
"""

import dataclasses
from collections.abc import Collection
from typing import Final, Literal

import numpy as np

from diagnose.faults.spec import draw_log_uniform
from tests.clusters.load import LOADS

#: What a machine shows of a fault. The first five are families of metrics that do as if nothing ran any more.
Symptom = Literal[
    "gpu-idle",
    "cpu-idle",
    "memory-freed",
    "net-idle",
    "disk-idle",
    "starved",
    "never-waits",
    "cpu-busy",
    "pfc",
    "net-slow",
    "nvlink-slow",
    "clock-low",
    "hot",
    "ecc-count",
    "xid",
    "pcie-link",
    "nvlink-errors",
    "symbol-errors",
    "port-down",
    "vanishes",
    "card-vanishes",
]
#: What becomes of the job: it stops, it is slowed, nothing.
Outcome = Literal["stop", "slow-compute", "slow-network", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One way to break.

    Attributes
    ----------
    share : float
        How often a fault is of it.
    outcomes : mapping of Outcome to float
        How often each is what becomes of the job.
    shows : mapping of Symptom to float
        Chance that the machine shows it, where the metric is exported.
    spreads : float
        Chance that machines of its group show some of it as well.
    xids : tuple of int
        What the driver may report.
    """

    share: float
    outcomes: dict[Outcome, float]
    shows: dict[Symptom, float]
    spreads: float = 0.0
    xids: tuple[int, ...] = ()


_DIES: Final[dict[Symptom, float]] = {"cpu-idle": 0.8, "gpu-idle": 0.75, "memory-freed": 0.6, "net-idle": 0.45}
KINDS: Final[dict[str, Kind]] = {
    "ecc": Kind(0.389, {"stop": 1.0}, {**_DIES, "ecc-count": 0.7, "xid": 0.8, "pfc": 0.09}, 0.05, (48, 63, 94, 95)),
    "pcie-downgrade": Kind(
        0.066, {"slow-network": 0.9, "none": 0.1}, {"pfc": 0.97, "net-slow": 0.35, "pcie-link": 0.8}, 0.4
    ),
    "nic-dropout": Kind(0.057, {"stop": 1.0}, {"net-idle": 1.0, "port-down": 0.9, "cpu-idle": 0.4}, 0.1),
    "gpu-card-drop": Kind(
        0.020, {"stop": 1.0}, {"card-vanishes": 0.7, "gpu-idle": 0.5, "cpu-idle": 0.7, "xid": 0.8}, 0.05, (79,)
    ),
    "nvlink": Kind(
        0.017, {"stop": 0.6, "slow-compute": 0.4}, {"nvlink-slow": 0.8, "nvlink-errors": 0.8, "xid": 0.7}, 0.1, (74,)
    ),
    "aoc-cable": Kind(
        0.009, {"slow-network": 0.8, "none": 0.2}, {"symbol-errors": 0.8, "pfc": 0.25, "net-slow": 0.25}, 0.3
    ),
    "cuda-execution": Kind(0.146, {"stop": 1.0}, {**_DIES, "xid": 0.5}, 0.1, (13, 31, 43)),
    "gpu-execution": Kind(0.077, {"stop": 1.0}, {**_DIES, "gpu-idle": 0.55, "xid": 0.4}, 0.5, (31, 43, 45)),
    "hdfs": Kind(0.057, {"stop": 0.5, "slow-compute": 0.5}, {"starved": 0.9, "cpu-idle": 0.2}, 0.05),
    "unreachable": Kind(0.060, {"stop": 1.0}, {"vanishes": 0.9, "net-idle": 0.5, "cpu-idle": 0.3}, 0.05),
    "slow-gpu": Kind(0.052, {"slow-compute": 1.0}, {"never-waits": 1.0, "clock-low": 0.95, "hot": 0.5}, 0.0),
    "cpu-contention": Kind(0.050, {"slow-compute": 1.0}, {"cpu-busy": 0.95}, 0.0),
}
#: Metrics in which each symptom is seen; one that is exported is enough.
SEEN_IN: Final[dict[Symptom, tuple[str, ...]]] = {
    "gpu-idle": tuple(name for name, load in LOADS.items() if load.family == "gpu"),
    "cpu-idle": ("cpu_used", "run_queue"),
    "memory-freed": ("gpu_memory_used_bytes", "memory_available_bytes"),
    "net-idle": ("net_sent_bytes", "net_received_bytes"),
    "disk-idle": ("disk_read_bytes", "disk_wait_s"),
    "starved": ("gpu_utilization", "gpu_graphics_active", "gpu_power_w", "cpu_io_wait", "nfs_wait_s"),
    "never-waits": ("gpu_power_w", "gpu_tensor_active"),
    "cpu-busy": ("cpu_used", "run_queue"),
    "pfc": ("net_pfc_sent",),
    "net-slow": ("net_sent_bytes", "net_received_bytes"),
    "nvlink-slow": ("gpu_nvlink_bytes",),
    "clock-low": ("gpu_sm_clock_mhz", "gpu_power_w", "gpu_graphics_active"),
    "hot": ("gpu_temperature_c",),
    "ecc-count": ("gpu_ecc_uncorrected",),
    "xid": ("gpu_xid",),
    "pcie-link": ("gpu_pcie_generation", "gpu_pcie_width"),
    "nvlink-errors": ("gpu_nvlink_errors",),
    "symbol-errors": ("net_symbol_errors",),
    "port-down": ("net_up",),
    "vanishes": ("cpu_used",),
    "card-vanishes": ("gpu_utilization",),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineFault:
    """A fault of one machine.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    host : int
    card : int or None
        The card, where it is one of several that have metrics of their own.
    onset_s : float
        Seconds after the first sample.
    outcome : str
        See `Outcome`.
    delay_s : float
        Seconds until the other machines feel it.
    slowdown : float
        Of a job that is slowed: a step takes so many times as long.
    shows : tuple of str
        Symptoms that the metrics which are exported show; none: nobody can tell this machine from the others.
    part : float
        Part of the machine's processes that it happens to.
    strength : float
        How far symptoms go, 0..1.
    ramp_s, period_s : float
        As of an effect.
    victims : tuple of int
        Machines of its group that show some of it as well.
    victims_s : float
        Seconds after the onset at which they do.
    xid : int
    """

    kind: str
    host: int
    card: int | None
    onset_s: float
    outcome: Outcome
    delay_s: float
    slowdown: float
    shows: tuple[Symptom, ...]
    part: float
    strength: float
    ramp_s: float
    period_s: float
    victims: tuple[int, ...]
    victims_s: float
    xid: int

    @property
    def is_visible(self) -> bool:
        """Say whether anything tells this machine: on links of a job that stands still nothing moves, whoever's fault it is."""
        still = {"net-idle", "nvlink-slow", "net-slow"} if self.outcome == "stop" else set()
        return bool(set(self.shows) - still)


def draw_symptoms(kind: Kind, rng: np.random.Generator, metrics: Collection[str]) -> tuple[Symptom, ...]:
    """Draw what a fault shows in some metrics; perhaps nothing."""
    drawn = [(symptom, rng.random() < chance) for symptom, chance in kind.shows.items()]
    return tuple(symptom for symptom, shown in drawn if shown and set(SEEN_IN[symptom]) & set(metrics))


def draw_slowdown(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw how many times as long a step takes; little is more frequent."""
    return 1.0 + draw_log_uniform(rng, low, high)
