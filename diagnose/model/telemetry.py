"""What machines measured of themselves: temperatures, clocks, counters, over time.

Enters: what a reader of telemetry found. Leaves: series under one set of names, whatever exporter wrote them.
"""

import dataclasses
import math
from typing import Final, Literal

from diagnose.model.trace import Seconds

#: A gauge is a level. A counter only grows, but for restarts; what it tells is its growth. A code is a number that names something
#: (the last XID, a set of throttle reasons as bits): it has no mean.
MetricKind = Literal["gauge", "counter", "code"]


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One thing that machines measure."""

    #: Ours, with its unit: `gpu_sm_clock_mhz`.
    name: str
    #: How its values are to be read.
    kind: MetricKind
    #: For people: "MHz".
    unit: str
    #: What it is, for people: "clock of the SMs".
    words: str
    #: What has it: a card, the whole machine, a network port, a disk.
    of: Literal["gpu", "host", "nic", "disk"]


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """One metric of one device over time; arrays have shape (n_samples,), times ascend, no value is NaN.

    `device` is the index of a card, the name of a port or disk, and empty for the whole machine. `times` are Unix seconds, of
    the clock of whoever scraped.
    """

    metric: Metric
    host: str
    device: str
    times: Seconds
    values: Seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Telemetry:
    """All series that were read, sorted by metric, host and device."""

    #: How reports call it: its file, folder or server.
    name: str
    #: What it was read from: "Prometheus range query", "nvidia-smi CSV".
    formats: tuple[str, ...]
    #: One for each metric of each device.
    series: tuple[Series, ...]
    #: Names of metrics in it that nobody here knows, sorted.
    unread: tuple[str, ...]
    #: What of it could not be read, and why: files of a folder.
    warnings: tuple[str, ...] = ()
    #: `first_s`, `last_s`: Unix seconds of the first and the last value that there was, also outside of what was asked for; NaN
    #: where there was none.
    first_s: float = math.nan
    last_s: float = math.nan

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the machines, sorted."""
        return tuple(sorted({one.host for one in self.series}))


#: Reasons why a clock is held back (nvml.h): bits of `gpu_throttle_reasons` by their names in nvidia-smi.
REASONS: Final = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
#: How a metric is read over a span of time: the median of a gauge; how much of the time some bits are set; how far a gauge wavers,
#: as a part of its median; the last code that a machine is to blame for; of a counter its growth a second, or in all.
How = Literal["median", "bits", "wavering", "code", "rate", "growth"]


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A span of time, Unix seconds, and one before it in which what is asked about was not there yet.

    `spells` are the parts of it, one after the other, in which what comes and goes is there; none: it is there throughout.
    """

    begin_s: float
    end_s: float
    before: tuple[float, float] | None = None
    spells: tuple[tuple[float, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A machine that a cause names, or some of its cards, and who does the same work."""

    #: The machine as the trace calls it.
    name: str
    #: As the telemetry does.
    host: str
    #: Those that are meant; empty: all of the machine.
    cards: tuple[str, ...]
    #: Cards that do the same work elsewhere, as (host, card).
    peers: tuple[tuple[str, str], ...]
    #: Machines of the job that nothing suspects; where all are suspects, the others.
    hosts: tuple[str, ...]
    #: All who do the same work are suspects, so that nobody is there to compare with.
    is_everyone: bool = False
    #: All machines are suspects, so that what is of a whole machine, its ports and disks has nobody to compare with.
    is_every_host: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One metric of one device of a suspect over a span, beside its peers and itself.

    `peers` is the median of the peers and `spread` their deviation (median absolute deviation x 1.4826); NaN where there are none.
    `before` is NaN where nothing was measured before.
    """

    metric: Metric
    name: str
    host: str
    device: str
    value: float
    peers: float
    spread: float
    n_peers: int
    before: float


_CARD: Final = (
    Metric("gpu_sm_clock_mhz", "gauge", "MHz", "clock of the SMs", "gpu"),
    Metric("gpu_memory_clock_mhz", "gauge", "MHz", "clock of the memory", "gpu"),
    Metric("gpu_temperature_c", "gauge", "°C", "temperature of the GPU", "gpu"),
    Metric("gpu_memory_temperature_c", "gauge", "°C", "temperature of the memory", "gpu"),
    Metric("gpu_power_w", "gauge", "W", "power drawn", "gpu"),
    Metric("gpu_power_limit_w", "gauge", "W", "power limit", "gpu"),
    Metric("gpu_utilization", "gauge", "part", "GPU busy", "gpu"),
    Metric("gpu_graphics_active", "gauge", "part", "graphics engine active", "gpu"),
    Metric("gpu_tensor_active", "gauge", "part", "tensor pipe active", "gpu"),
    Metric("gpu_dram_active", "gauge", "part", "memory interface active", "gpu"),
    Metric("gpu_memory_used_bytes", "gauge", "bytes", "memory in use", "gpu"),
    Metric("gpu_throttle_reasons", "code", "bits", "clock event reasons", "gpu"),
    Metric("gpu_thermal_violation_s", "counter", "s", "time held back by heat", "gpu"),
    Metric("gpu_power_violation_s", "counter", "s", "time held back by power", "gpu"),
    Metric("gpu_xid", "code", "code", "last XID", "gpu"),
    Metric("gpu_pcie_replays", "counter", "1", "PCIe replays", "gpu"),
    Metric("gpu_pcie_generation", "gauge", "1", "PCIe generation", "gpu"),
    Metric("gpu_pcie_width", "gauge", "lanes", "PCIe width", "gpu"),
    Metric("gpu_pcie_bytes", "counter", "bytes", "bytes over PCIe", "gpu"),
    Metric("gpu_nvlink_bytes", "counter", "bytes", "bytes over NVLink", "gpu"),
    Metric("gpu_nvlink_errors", "counter", "1", "NVLink CRC errors and replays", "gpu"),
    Metric("gpu_ecc_corrected", "counter", "1", "corrected memory errors", "gpu"),
    Metric("gpu_ecc_uncorrected", "counter", "1", "uncorrected memory errors", "gpu"),
    Metric("gpu_remapped_rows", "counter", "1", "remapped memory rows", "gpu"),
    Metric("gpu_row_remap_failure", "gauge", "1", "remapping of a memory row failed", "gpu"),
)
_MACHINE: Final = (
    Metric("cpu_used", "gauge", "part", "CPU busy", "host"),
    Metric("cpu_steal", "gauge", "part", "CPU taken by the hypervisor", "host"),
    Metric("cpu_io_wait", "gauge", "part", "CPU waiting for disks", "host"),
    Metric("run_queue", "gauge", "tasks", "tasks that want a CPU", "host"),
    Metric("cpu_waiting_s", "counter", "s", "time that tasks waited for a CPU", "host"),
    Metric("io_waiting_s", "counter", "s", "time that tasks waited for input or output", "host"),
    Metric("memory_available_bytes", "gauge", "bytes", "memory available", "host"),
    Metric("major_faults", "counter", "1", "page faults that read from disk", "host"),
    Metric("disk_busy_s", "counter", "s", "time the disk was busy", "disk"),
    Metric("disk_read_bytes", "counter", "bytes", "bytes read from disk", "disk"),
    Metric("disk_wait_s", "counter", "s", "time that reads waited for the disk", "disk"),
    Metric("nfs_wait_s", "counter", "s", "time that reads waited for network storage", "host"),
)
_PORT: Final = (
    Metric("net_sent_bytes", "counter", "bytes", "bytes sent", "nic"),
    Metric("net_received_bytes", "counter", "bytes", "bytes received", "nic"),
    Metric("net_errors", "counter", "1", "packets with errors", "nic"),
    Metric("net_drops", "counter", "1", "packets dropped", "nic"),
    Metric("net_carrier_changes", "counter", "1", "times the link went down or up", "nic"),
    Metric("net_up", "gauge", "1", "link up", "nic"),
    Metric("net_speed_bytes", "gauge", "bytes/s", "speed of the link", "nic"),
    Metric("net_symbol_errors", "counter", "1", "symbol and CRC errors of the link", "nic"),
    Metric("net_pfc_sent", "counter", "packets", "pause frames sent", "nic"),
    Metric("net_pfc_received", "counter", "packets", "pause frames received", "nic"),
    Metric("net_retransmits", "counter", "packets", "packets sent again", "nic"),
)
#: All metrics that are understood, by name.
METRICS: Final = {metric.name: metric for metric in (*_CARD, *_MACHINE, *_PORT)}
