"""Telemetry as a Prometheus server answers range queries, under the names of dcgm-exporter and node_exporter.

Enters: `Telemetry`. Leaves: JSON, one answer with all series.

Source: the HTTP API of Prometheus (range queries); etc/default-counters.csv of dcgm-exporter; the collectors of node_exporter.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from diagnose.model.telemetry import Series, Telemetry
from diagnose.model.trace import Seconds

_MEBI = 2.0**20
_IB: Final = "node_infiniband_"
#: What exporters call each metric, and how many of their units are one of ours.
NAMES: Final = {
    "gpu_sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "gpu_temperature_c": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "gpu_power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "gpu_power_limit_w": ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 1.0),
    "gpu_utilization": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "gpu_graphics_active": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0),
    "gpu_tensor_active": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0),
    "gpu_dram_active": ("DCGM_FI_PROF_DRAM_ACTIVE", 1.0),
    "gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", 1.0 / _MEBI),
    "gpu_throttle_reasons": ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1.0),
    "gpu_thermal_violation_s": ("DCGM_FI_DEV_THERMAL_VIOLATION", 1e9),
    "gpu_power_violation_s": ("DCGM_FI_DEV_POWER_VIOLATION", 1e9),
    "gpu_xid": ("DCGM_FI_DEV_XID_ERRORS", 1.0),
    "gpu_pcie_replays": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
    "gpu_pcie_generation": ("DCGM_FI_DEV_PCIE_LINK_GEN", 1.0),
    "gpu_pcie_width": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 1.0),
    "gpu_nvlink_bytes": ("DCGM_FI_PROF_NVLINK_TX_BYTES", 1.0),
    "gpu_pcie_bytes": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1.0),
    "gpu_nvlink_errors": ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0),
    "gpu_ecc_corrected": ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
    "gpu_ecc_uncorrected": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
    "gpu_remapped_rows": ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1.0),
    "run_queue": ("node_procs_running", 1.0),
    "memory_available_bytes": ("node_memory_MemAvailable_bytes", 1.0),
    "major_faults": ("node_vmstat_pgmajfault", 1.0),
    "disk_busy_s": ("node_disk_io_time_seconds_total", 1.0),
    "disk_read_bytes": ("node_disk_read_bytes_total", 1.0),
    "disk_wait_s": ("node_disk_read_time_seconds_total", 1.0),
    "nfs_wait_s": ("node_mountstats_nfs_operations_request_time_seconds_total", 1.0),
    "net_sent_bytes": (f"{_IB}port_data_transmitted_bytes_total", 1.0),
    "net_received_bytes": (f"{_IB}port_data_received_bytes_total", 1.0),
    "net_errors": (f"{_IB}port_errors_received_total", 1.0),
    "net_carrier_changes": (f"{_IB}link_downed_total", 1.0),
    "net_symbol_errors": (f"{_IB}symbol_error_total", 1.0),
    "net_retransmits": (f"{_IB}packet_sequence_errors_total", 1.0),
    "net_speed_bytes": (f"{_IB}rate_bytes_per_second", 1.0),
    "net_up": ("node_network_up", 1.0),
    "net_pfc_sent": ("node_ethtool_transmitted_prio3_pause", 1.0),
}
#: Counters here that dcgm-exporter gives as bytes a second.
_AS_RATES: Final = ("gpu_nvlink_bytes", "gpu_pcie_bytes")
#: Parts of a CPU's time by mode; the rest is idle.
_MODES: Final = {"cpu_used": "user", "cpu_io_wait": "iowait", "cpu_steal": "steal"}


def render_range(telemetry: Telemetry) -> str:
    """Write one answer to a range query; metrics that no exporter has are left out."""
    result = [
        {"metric": labels, "values": [[round(t, 3), f"{v:.10g}"] for t, v in zip(times, values, strict=True)]}
        for labels, times, values in _list_answers(telemetry)
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def _list_answers(telemetry: Telemetry) -> Iterator[tuple[dict[str, str], list[float], list[float]]]:
    """List labels, times and values of what an exporter would have given."""
    cpu: dict[str, list[Series]] = {}
    for one in telemetry.series:
        if one.metric.name in _MODES:
            cpu.setdefault(one.host, []).append(one)
        elif one.metric.name in NAMES:
            name, scale = NAMES[one.metric.name]
            values = _rate(one) if one.metric.name in _AS_RATES else one.values
            yield {"__name__": name, **_label(one)}, one.times.tolist(), (values * scale).tolist()
    for host, parts in cpu.items():
        yield from _split_cpu(host, parts)


def _label(one: Series) -> dict[str, str]:
    """Give the labels by which exporters tell machines and devices."""
    match one.metric.of:
        case "gpu":
            return {"Hostname": one.host, "instance": f"{one.host}:9400", "gpu": one.device}
        case "nic":
            return {"instance": f"{one.host}:9100", "device": one.device}
        case "disk":
            return {"instance": f"{one.host}:9100", "device": one.device}
        case _:
            more = {"operation": "READ"} if one.metric.name == "nfs_wait_s" else {}
            return {"instance": f"{one.host}:9100", **more}


def _rate(one: Series) -> Seconds:
    """Turn a counter into units a second, over the interval before each sample."""
    if len(one.times) < 2:
        return np.zeros(len(one.times))
    rate = np.diff(one.values) / np.diff(one.times)
    return np.asarray(np.r_[rate[:1], rate])


def _split_cpu(host: str, parts: Iterable[Series]) -> Iterator[tuple[dict[str, str], list[float], list[float]]]:
    """Write parts of the CPU's time as node_exporter does: seconds of one CPU since it started, by mode."""
    named = {"__name__": "node_cpu_seconds_total", "instance": f"{host}:9100", "cpu": "0"}
    busy, times = np.zeros(0), np.zeros(0)
    for one in parts:
        spent = np.cumsum(np.r_[0.0, one.values[1:] * np.diff(one.times)])
        busy, times = (busy + spent if len(busy) else spent), one.times
        yield {**named, "mode": _MODES[one.metric.name]}, times.tolist(), spent.tolist()
    yield {**named, "mode": "idle"}, times.tolist(), (times - times[0] - busy).tolist()
