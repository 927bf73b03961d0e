"""What exporters call the things that are measured, and what they are called here.

Enters: nothing. Leaves: `find_known`, from the name of an exporter to one of `METRICS`, with how its values become ours.

Source: etc/default-counters.csv and etc/dcp-metrics-included.csv of dcgm-exporter; dcgm_fields.h of DCGM; the collectors of
node_exporter; nvidia-smi(1), `nvidia-smi --help-query-gpu`; the counters of mlx5 in the kernel's documentation.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Final, Literal

from diagnose.model.telemetry import REASONS

#: How values become ours. `level`: as they are. `growth`: counters, which add up over the parts of a device. `rate`: units a
#: second, which become a counter. `either`: one of both, as they show. `cpu`: seconds of CPUs by mode. `bit`: a flag of a set.
How = Literal["level", "growth", "rate", "either", "cpu", "bit"]


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What one name of an exporter stands for: our metric, a factor to its unit, and how values become ours.

    `only` is a label and the value that it must have; `bit` is the flag that the name stands for.
    """

    metric: str
    scale: float = 1.0
    how: How = "level"
    only: tuple[str, str] | None = None
    bit: int = 0


_MEBI: Final = 2.0**20
_DCGM: Final = {
    "DEV_SM_CLOCK": Known("gpu_sm_clock_mhz"),
    "DEV_MEM_CLOCK": Known("gpu_memory_clock_mhz"),
    "DEV_GPU_TEMP": Known("gpu_temperature_c"),
    "DEV_MEMORY_TEMP": Known("gpu_memory_temperature_c"),
    "DEV_POWER_USAGE": Known("gpu_power_w"),
    "DEV_POWER_USAGE_INSTANT": Known("gpu_power_w"),
    "DEV_POWER_MGMT_LIMIT": Known("gpu_power_limit_w"),
    "DEV_ENFORCED_POWER_LIMIT": Known("gpu_power_limit_w"),
    "DEV_GPU_UTIL": Known("gpu_utilization", 0.01),
    "DEV_FB_USED": Known("gpu_memory_used_bytes", _MEBI),
    "DEV_CLOCK_THROTTLE_REASONS": Known("gpu_throttle_reasons"),
    "DEV_CLOCKS_EVENT_REASONS": Known("gpu_throttle_reasons"),
    # Headers of DCGM say nanoseconds; comments in files of counters have said microseconds, which would be a thousand times more.
    "DEV_THERMAL_VIOLATION": Known("gpu_thermal_violation_s", 1e-9, "growth"),
    "DEV_POWER_VIOLATION": Known("gpu_power_violation_s", 1e-9, "growth"),
    "DEV_XID_ERRORS": Known("gpu_xid"),
    "DEV_PCIE_REPLAY_COUNTER": Known("gpu_pcie_replays", 1.0, "growth"),
    "DEV_PCIE_LINK_GEN": Known("gpu_pcie_generation"),
    "DEV_PCIE_LINK_WIDTH": Known("gpu_pcie_width"),
    "DEV_NVLINK_BANDWIDTH_TOTAL": Known("gpu_nvlink_bytes", _MEBI, "either"),
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Known("gpu_nvlink_errors", 1.0, "growth"),
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": Known("gpu_nvlink_errors", 1.0, "growth"),
    "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Known("gpu_nvlink_errors", 1.0, "growth"),
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": Known("gpu_nvlink_errors", 1.0, "growth"),
    "DEV_ECC_SBE_VOL_TOTAL": Known("gpu_ecc_corrected", 1.0, "growth"),
    "DEV_ECC_DBE_VOL_TOTAL": Known("gpu_ecc_uncorrected", 1.0, "growth"),
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": Known("gpu_remapped_rows", 1.0, "growth"),
    "DEV_CORRECTABLE_REMAPPED_ROWS": Known("gpu_remapped_rows", 1.0, "growth"),
    "DEV_ROW_REMAP_FAILURE": Known("gpu_row_remap_failure"),
    "PROF_GR_ENGINE_ACTIVE": Known("gpu_graphics_active"),
    "PROF_PIPE_TENSOR_ACTIVE": Known("gpu_tensor_active"),
    "PROF_DRAM_ACTIVE": Known("gpu_dram_active"),
    "PROF_PCIE_TX_BYTES": Known("gpu_pcie_bytes", 1.0, "rate"),
    "PROF_PCIE_RX_BYTES": Known("gpu_pcie_bytes", 1.0, "rate"),
    "PROF_NVLINK_TX_BYTES": Known("gpu_nvlink_bytes", 1.0, "rate"),
    "PROF_NVLINK_RX_BYTES": Known("gpu_nvlink_bytes", 1.0, "rate"),
}
_IB: Final = "node_infiniband_"
_NODE: Final = {
    "node_cpu_seconds_total": Known("cpu_used", 1.0, "cpu"),
    "node_procs_running": Known("run_queue"),
    "node_pressure_cpu_waiting_seconds_total": Known("cpu_waiting_s", 1.0, "growth"),
    "node_pressure_io_waiting_seconds_total": Known("io_waiting_s", 1.0, "growth"),
    "node_memory_MemAvailable_bytes": Known("memory_available_bytes"),
    "node_vmstat_pgmajfault": Known("major_faults", 1.0, "growth"),
    "node_disk_io_time_seconds_total": Known("disk_busy_s", 1.0, "growth"),
    "node_disk_read_bytes_total": Known("disk_read_bytes", 1.0, "growth"),
    "node_disk_read_time_seconds_total": Known("disk_wait_s", 1.0, "growth"),
    "node_mountstats_nfs_operations_request_time_seconds_total": Known(
        "nfs_wait_s", 1.0, "growth", only=("operation", "READ")
    ),
    "node_network_transmit_bytes_total": Known("net_sent_bytes", 1.0, "growth"),
    "node_network_receive_bytes_total": Known("net_received_bytes", 1.0, "growth"),
    "node_network_receive_errs_total": Known("net_errors", 1.0, "growth"),
    "node_network_transmit_errs_total": Known("net_errors", 1.0, "growth"),
    "node_network_receive_drop_total": Known("net_drops", 1.0, "growth"),
    "node_network_transmit_drop_total": Known("net_drops", 1.0, "growth"),
    "node_network_carrier_changes_total": Known("net_carrier_changes", 1.0, "growth"),
    "node_network_up": Known("net_up"),
    "node_network_speed_bytes": Known("net_speed_bytes"),
    f"{_IB}port_data_transmitted_bytes_total": Known("net_sent_bytes", 1.0, "growth"),
    f"{_IB}port_data_received_bytes_total": Known("net_received_bytes", 1.0, "growth"),
    f"{_IB}port_errors_received_total": Known("net_errors", 1.0, "growth"),
    f"{_IB}port_discards_received_total": Known("net_drops", 1.0, "growth"),
    f"{_IB}port_discards_transmitted_total": Known("net_drops", 1.0, "growth"),
    f"{_IB}link_downed_total": Known("net_carrier_changes", 1.0, "growth"),
    f"{_IB}link_error_recovery_total": Known("net_carrier_changes", 1.0, "growth"),
    f"{_IB}symbol_error_total": Known("net_symbol_errors", 1.0, "growth"),
    f"{_IB}rate_bytes_per_second": Known("net_speed_bytes"),
    f"{_IB}packet_sequence_errors_total": Known("net_retransmits", 1.0, "growth"),
    f"{_IB}local_ack_timeout_errors_total": Known("net_retransmits", 1.0, "growth"),
}
#: Counters of network cards by the names of their drivers, and files below /sys/class/infiniband.
_CARD: Final = {
    "rx_symbol_err_phy": Known("net_symbol_errors", 1.0, "growth"),
    "rx_pcs_symbol_err_phy": Known("net_symbol_errors", 1.0, "growth"),
    "rx_crc_errors_phy": Known("net_symbol_errors", 1.0, "growth"),
    "rx_crc_errors": Known("net_symbol_errors", 1.0, "growth"),
    "link_down_events_phy": Known("net_carrier_changes", 1.0, "growth"),
    "rx_discards_phy": Known("net_drops", 1.0, "growth"),
    "tx_discards_phy": Known("net_drops", 1.0, "growth"),
    "rx_prio_pause": Known("net_pfc_received", 1.0, "growth"),
    "tx_prio_pause": Known("net_pfc_sent", 1.0, "growth"),
    "roce_adp_retrans": Known("net_retransmits", 1.0, "growth"),
    "packet_seq_err": Known("net_retransmits", 1.0, "growth"),
    "local_ack_timeout_err": Known("net_retransmits", 1.0, "growth"),
    "symbol_error": Known("net_symbol_errors", 1.0, "growth"),
    "link_downed": Known("net_carrier_changes", 1.0, "growth"),
    "link_error_recovery": Known("net_carrier_changes", 1.0, "growth"),
    "port_rcv_errors": Known("net_errors", 1.0, "growth"),
    "port_xmit_discards": Known("net_drops", 1.0, "growth"),
    "port_xmit_data": Known("net_sent_bytes", 4.0, "growth"),  # in words of four bytes
    "port_rcv_data": Known("net_received_bytes", 4.0, "growth"),
    "carrier_changes": Known("net_carrier_changes", 1.0, "growth"),
}
#: Columns of nvidia-smi, and the short names of columns of `dcgmi dmon`.
_COLUMNS: Final = {
    "clocks.sm": Known("gpu_sm_clock_mhz"),
    "clocks.mem": Known("gpu_memory_clock_mhz"),
    "temperature.gpu": Known("gpu_temperature_c"),
    "temperature.memory": Known("gpu_memory_temperature_c"),
    "power.draw": Known("gpu_power_w"),
    "power.draw.average": Known("gpu_power_w"),
    "power.draw.instant": Known("gpu_power_w"),
    "power.limit": Known("gpu_power_limit_w"),
    "enforced.power.limit": Known("gpu_power_limit_w"),
    "utilization.gpu": Known("gpu_utilization", 0.01),
    "memory.used": Known("gpu_memory_used_bytes", _MEBI),
    "clocks_event_reasons.active": Known("gpu_throttle_reasons"),
    "pcie.link.gen.current": Known("gpu_pcie_generation"),
    "pcie.link.gen.gpucurrent": Known("gpu_pcie_generation"),
    "pcie.link.width.current": Known("gpu_pcie_width"),
    "ecc.errors.corrected.volatile.total": Known("gpu_ecc_corrected", 1.0, "growth"),
    "ecc.errors.uncorrected.volatile.total": Known("gpu_ecc_uncorrected", 1.0, "growth"),
    **{
        f"ecc.errors.{what}.volatile.{where}": Known(f"gpu_ecc_{what}", 1.0, "growth")
        for what in ("corrected", "uncorrected")
        for where in ("sram", "dram")
    },
    "remapped_rows.correctable": Known("gpu_remapped_rows", 1.0, "growth"),
    "remapped_rows.uncorrectable": Known("gpu_remapped_rows", 1.0, "growth"),
    "remapped_rows.failure": Known("gpu_row_remap_failure"),
    "SMCLK": Known("gpu_sm_clock_mhz"),
    "MMCLK": Known("gpu_memory_clock_mhz"),
    "TMPTR": Known("gpu_temperature_c"),
    "POWER": Known("gpu_power_w"),
    "GPUTL": Known("gpu_utilization", 0.01),
    "FBUSD": Known("gpu_memory_used_bytes", _MEBI),
    "GRACT": Known("gpu_graphics_active"),
    "TENSO": Known("gpu_tensor_active"),
    "DRAMA": Known("gpu_dram_active"),
    "PCITX": Known("gpu_pcie_bytes", 1.0, "rate"),
    "PCIRX": Known("gpu_pcie_bytes", 1.0, "rate"),
    "NVLTX": Known("gpu_nvlink_bytes", 1.0, "rate"),
    "NVLRX": Known("gpu_nvlink_bytes", 1.0, "rate"),
    **{
        f"clocks_event_reasons.{name}": Known("gpu_throttle_reasons", how="bit", bit=bit)
        for name, bit in REASONS.items()
    },
}
_KNOWN: Final = {f"DCGM_FI_{name}": known for name, known in _DCGM.items()} | _NODE | _CARD | _COLUMNS
#: One metric may have several names that say the same: the first that a device has is read, and no sum is made of them.
_SAME: Final = (
    ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE_INSTANT"),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
    ("power.draw", "power.draw.average", "power.draw.instant"),
    ("enforced.power.limit", "power.limit"),
    ("pcie.link.gen.gpucurrent", "pcie.link.gen.current"),
    ("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
    ("DCGM_FI_PROF_NVLINK_RX_BYTES", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
)
#: A name, and those that are better where a device has both.
BETTER: Final = {
    worse: tuple(same[0] for same in _SAME if worse in same[1:])
    + tuple(b for same in _SAME if worse in same[2:] for b in same[1:2])
    for worse in {name for same in _SAME for name in same[1:]}
}
_OLD: Final = (
    ("clocks_throttle_reasons.", "clocks_event_reasons."),
    ("clocks.current.graphics", "clocks.gr"),
    ("clocks.current.sm", "clocks.sm"),
    ("clocks.current.memory", "clocks.mem"),
)
#: Columns of nvidia-smi that say which card a row is of.
CARD_COLUMNS: Final = frozenset({"index", "uuid", "gpu_uuid"})
_ETHTOOL: Final = re.compile(r"^node_ethtool_(received_|transmitted_)?(.+?)(?:_total)?$")
_PRIORITY: Final = re.compile(r"(?<=[rt]x_prio)\d+(?=_pause$)")


def find_known(name: str) -> Known | None:
    """Say what a name of an exporter stands for; None where nobody knows it."""
    return _KNOWN.get(plain_name(name))


@functools.lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Give a name as the table has it: of today's drivers, without the number of a priority."""
    for old, new in _OLD:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    found = _ETHTOOL.match(name)
    if found is not None:
        name = {"received_": "rx_", "transmitted_": "tx_"}.get(found[1] or "", "") + found[2]
    return _PRIORITY.sub("", name)


def name_columns(cells: Iterable[str]) -> list[str]:
    """Give the names of the columns of a table without their units.

    >>> name_columns(["timestamp", ' "clocks.current.sm [MHz]"'])
    ['timestamp', 'clocks.current.sm']
    """
    return [cell.partition("[")[0].strip(' \t"') for cell in cells]
