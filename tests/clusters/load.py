"""What each metric shows while a machine computes, exchanges gradients, saves, waits, or does nothing at all.

Enters: nothing. Leaves: a table of levels, metric by metric, and how much each scatters.
"""

import dataclasses
from typing import Final, Literal, get_args

#: What the processes of a job do on a machine. `wait`: in a collective for somebody else, which keeps GPU and CPU spinning. `dead`:
#: there is no process. `starved`: for input.
Phase = Literal["compute", "exchange", "save", "evaluate", "start", "wait", "dead", "starved"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
#: Metrics that a fault moves together.
Family = Literal["gpu", "memory", "cpu", "net", "disk"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How one metric follows the job.

    Attributes
    ----------
    family : str
        See `Family`.
    levels : tuple of float
        Value in each of `PHASES`; of a counter its growth each second.
    role_spread, host_spread : float
        Standard deviation of the logarithm of how pipeline stages differ, and machines of a stage.
    noise : float
        Standard deviation of a sample, part of its level.
    floor : float
        Standard deviation of a sample where its level is nothing, in the metric's unit.
    most : float
        No sample is above it.
    """

    family: Family
    levels: tuple[float, ...]
    role_spread: float
    host_spread: float
    noise: float
    floor: float = 0.0
    most: float = float("inf")


# Levels are those of a machine with eight cards of 700 W, each card by itself; what matters is how they stand to each other.
# A collective that waits keeps the GPU "busy" and its tensor cores idle, at about a third of the power: that is how hung jobs look.
LOADS: Final = {
    "gpu_utilization": Load("gpu", (0.98, 0.97, 0.25, 0.9, 0.2, 1.0, 0.0, 0.1), 0.01, 0.003, 0.01, most=1.0),
    "gpu_graphics_active": Load("gpu", (0.93, 0.85, 0.1, 0.85, 0.1, 0.95, 0.0, 0.05), 0.03, 0.004, 0.02, most=1.0),
    "gpu_tensor_active": Load("gpu", (0.55, 0.02, 0.0, 0.45, 0.02, 0.0, 0.0, 0.0), 0.1, 0.006, 0.04, 0.0005, 1.0),
    "gpu_dram_active": Load("gpu", (0.45, 0.3, 0.1, 0.4, 0.1, 0.03, 0.0, 0.02), 0.08, 0.006, 0.04, 0.0005, 1.0),
    "gpu_power_w": Load("gpu", (640.0, 380.0, 160.0, 560.0, 140.0, 230.0, 75.0, 110.0), 0.05, 0.02, 0.025, 1.0, 720.0),
    "gpu_sm_clock_mhz": Load("gpu", (1710, 1850, 1905, 1755, 1905, 1980, 1980, 1980), 0.01, 0.006, 0.008, most=1980.0),
    "gpu_nvlink_bytes": Load("gpu", (1.5e11, 6e10, 0, 1.2e11, 0, 4e8, 0, 0), 0.12, 0.006, 0.06, 1e5),
    "gpu_pcie_bytes": Load("gpu", (6e9, 2.5e10, 1.2e10, 5e9, 3e9, 5e7, 1e5, 1e8), 0.2, 0.02, 0.08, 1e4),
    "gpu_memory_used_bytes": Load("memory", (7e10, 7e10, 7e10, 7e10, 3e10, 7e10, 6e8, 7e10), 0.12, 0.01, 0.002),
    "cpu_used": Load("cpu", (0.22, 0.2, 0.35, 0.2, 0.45, 0.17, 0.015, 0.1), 0.12, 0.05, 0.08, 0.003, 1.0),
    "cpu_io_wait": Load("cpu", (0.002, 0.002, 0.05, 0.004, 0.05, 0.001, 0.001, 0.06), 0.1, 0.1, 0.4, 0.0005, 1.0),
    "run_queue": Load("cpu", (24.0, 22.0, 40.0, 24.0, 55.0, 19.0, 1.5, 10.0), 0.1, 0.05, 0.15, 0.5),
    "memory_available_bytes": Load("memory", (1e12, 1e12, 9e11, 1e12, 1.3e12, 1e12, 1.9e12, 1e12), 0.05, 0.02, 0.004),
    "disk_read_bytes": Load("disk", (2e7, 2e7, 2e7, 2e7, 1e9, 1e6, 1e6, 1e7), 0.3, 0.1, 0.5, 1e4),
    "disk_wait_s": Load("disk", (0.01, 0.01, 0.1, 0.02, 0.4, 0.001, 0.001, 0.3), 0.2, 0.1, 0.4, 5e-4),
    "nfs_wait_s": Load("disk", (0.01, 0.01, 0.6, 0.02, 0.8, 0.001, 0.001, 0.9), 0.2, 0.1, 0.4, 5e-4),
    "net_sent_bytes": Load("net", (3e9, 4e10, 8e9, 2e9, 1e9, 2e6, 1e6, 2e6), 0.2, 0.015, 0.08, 2e5),
    "net_received_bytes": Load("net", (3e9, 4e10, 2e9, 2e9, 3e9, 2e6, 1e6, 2e6), 0.2, 0.015, 0.08, 2e5),
    "net_pfc_sent": Load("net", (20.0, 800.0, 60.0, 10.0, 5.0, 0.5, 0.0, 0.5), 0.4, 0.15, 0.6, 0.3),
    "net_retransmits": Load("net", (0.05, 0.4, 0.1, 0.02, 0.02, 0.0, 0.0, 0.0), 0.3, 0.3, 1.0, 0.05),
}
#: What is the same all the time on a sound machine: levels, counters that do not move, codes.
STILL: Final = {
    "gpu_xid": 0.0,
    "gpu_ecc_corrected": 0.0,
    "gpu_ecc_uncorrected": 0.0,
    "gpu_remapped_rows": 0.0,
    "gpu_pcie_replays": 0.0,
    "gpu_pcie_generation": 5.0,
    "gpu_pcie_width": 16.0,
    "gpu_nvlink_errors": 0.0,
    "gpu_power_limit_w": 700.0,
    "gpu_throttle_reasons": 0.0,
    "gpu_thermal_violation_s": 0.0,
    "gpu_power_violation_s": 0.0,
    "cpu_steal": 0.0,
    "major_faults": 0.0,
    "net_up": 1.0,
    "net_speed_bytes": 5e10,
    "net_symbol_errors": 0.0,
    "net_carrier_changes": 0.0,
    "net_errors": 0.0,
}
#: Temperature follows power: degrees above the air at full load, and the seconds that it takes.
DEGREES_A_WATT, AIR_C, WARMING_S, HOST_DEGREES = 0.06, 28.0, 25.0, 2.0
