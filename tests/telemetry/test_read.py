"""Telemetry in the formats that tools write: which series come out of it, and what is said of what cannot be read."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import TraceError
from diagnose.telemetry.gather import Gathering
from diagnose.telemetry.read import read_content, read_telemetry
from diagnose.telemetry.recognise import find_telemetry

T0 = 1_769_860_800.0  # 2026-01-31T12:00:00Z


def _matrix(*results):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(results)}})


def _series(name, values, step=15.0, **labels):
    return {"metric": {"__name__": name, **labels}, "values": [[T0 + step * i, str(v)] for i, v in enumerate(values)]}


def _find(telemetry, metric, host, device=""):
    found = [s for s in telemetry.series if (s.metric.name, s.host, s.device) == (metric, host, device)]
    assert len(found) == 1, [(s.metric.name, s.host, s.device) for s in telemetry.series]
    return found[0]


@pytest.fixture
def write(tmp_path):
    """Give what writes a file."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_range_queries_of_dcgm_exporter(write):
    """A card has its host, index and UUID; units become ours; what nobody knows is listed."""
    card = {"Hostname": "node-3", "gpu": "5", "UUID": "GPU-abc", "instance": "10.0.0.3:9400"}
    path = write(
        "range.json",
        _matrix(
            _series("DCGM_FI_DEV_SM_CLOCK", [1410, 1200], **card),
            _series("DCGM_FI_DEV_GPU_UTIL", [99, 50], **card),
            _series("DCGM_FI_DEV_ENC_UTIL", [0, 0], **card),
        ),
    )
    telemetry = read_telemetry(path)
    clock = _find(telemetry, "gpu_sm_clock_mhz", "node-3", "5")
    assert clock.times.tolist() == [T0, T0 + 15.0]
    assert clock.values.tolist() == [1410.0, 1200.0]
    assert _find(telemetry, "gpu_utilization", "node-3", "5").values.tolist() == [0.99, 0.5]
    assert telemetry.formats == ("Prometheus range query",)
    assert telemetry.unread == ("DCGM_FI_DEV_ENC_UTIL",)
    assert (telemetry.first_s, telemetry.last_s) == (T0, T0 + 15.0)


@pytest.mark.parametrize("wrap", ["lines", "list", "by_name", "promtool", "pretty"])
def test_several_answers_in_one_file(write, wrap):
    """Answers one after the other, in a list, by name, or as promtool prints them, are all read."""
    one = _series("node_procs_running", [3, 4], instance="node-1:9100")
    two = _series("node_network_up", [1, 1], instance="node-1:9100", device="eth0")
    answers = [json.loads(_matrix(one)), json.loads(_matrix(two))]
    text = {
        "lines": "\n".join(json.dumps(answer) for answer in answers),
        "list": json.dumps(answers),
        "by_name": json.dumps({"running": answers[0], "up": answers[1]}),
        "promtool": json.dumps([one, two]),
        "pretty": "\n".join(json.dumps(answer, indent=2) for answer in answers),
    }[wrap]
    telemetry = read_telemetry(write("answers.json", text))
    assert _find(telemetry, "run_queue", "node-1").values.tolist() == [3.0, 4.0]
    assert _find(telemetry, "net_up", "node-1", "eth0").values.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: f"[{one}, {one}]"], ids=["one", "list"])
def test_a_large_answer_needs_little_more_memory_than_its_bytes(wrap):
    """One series at a time becomes objects; sixteen bytes a value are kept of each."""
    card = {"Hostname": "node-3", "gpu": "5"}
    answer = _matrix(*(_series("DCGM_FI_DEV_SM_CLOCK", range(1000), **card | {"gpu": str(i)}) for i in range(40)))
    content = wrap(answer).encode()
    tracemalloc.start()
    try:
        read_content(content, Gathering(), host="")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(content)


def test_machines_are_called_by_their_own_names(write):
    """Where `node_uname_info` tells how the machine of an address is called, it is called so."""
    path = write(
        "uname.json",
        _matrix(
            _series("node_uname_info", [1, 1], instance="10.0.0.7:9100", nodename="node-7"),
            _series("node_procs_running", [3, 4], instance="10.0.0.7:9100"),
        ),
    )
    assert read_telemetry(path).hosts == ("node-7",)


def test_cpu_seconds_become_shares(write):
    """Seconds of two CPUs by mode become the shares of the time between two scrapes."""
    series = [
        _series("node_cpu_seconds_total", [100, 100 + grown], 10.0, instance="n:9100", cpu=cpu, mode=mode)
        for cpu in ("0", "1")
        for mode, grown in (("idle", 4.0), ("user", 3.0), ("iowait", 1.0), ("steal", 2.0))
    ]
    telemetry = read_telemetry(write("cpu.json", _matrix(*series)))
    assert _find(telemetry, "cpu_used", "n").values == pytest.approx([0.5])
    assert _find(telemetry, "cpu_io_wait", "n").values == pytest.approx([0.1])
    assert _find(telemetry, "cpu_steal", "n").values == pytest.approx([0.2])


def test_counters_of_both_directions_add_up(write):
    """Errors received and sent are errors of the port; one of them was set back by a restart."""
    labels = {"instance": "n:9100", "device": "eth0"}
    path = write(
        "net.json",
        _matrix(
            _series("node_network_receive_errs_total", [5, 7, 7], **labels),
            _series("node_network_transmit_errs_total", [1, 1, 4], **labels),
            _series("node_network_receive_errs_total", [9, 9, 9], instance="n:9100", device="veth12"),
        ),
    )
    telemetry = read_telemetry(path)
    assert _find(telemetry, "net_errors", "n", "eth0").values.tolist() == [6.0, 8.0, 11.0]
    assert len(telemetry.series) == 1


def test_one_card_of_two_pods_is_one_series(write):
    """A card whose pod changed keeps one series, in order of time."""
    path = write(
        "pods.json",
        _matrix(
            {
                "metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n", "gpu": "0", "pod": "b"},
                "values": [[T0 + 30, "7"]],
            },
            {
                "metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n", "gpu": "0", "pod": "a"},
                "values": [[T0, "6"]],
            },
        ),
    )
    assert _find(read_telemetry(path), "gpu_power_w", "n", "0").values.tolist() == [6.0, 7.0]


@pytest.mark.parametrize("units", [True, False])
def test_nvidia_smi(write, units, monkeypatch):
    """A table of nvidia-smi, with units or without; the file names the machine; a cut last row is left out."""
    monkeypatch.setenv("TZ", "UTC")
    header = (
        "timestamp, index, uuid, clocks.current.sm [MHz], power.draw [W], clocks_throttle_reasons.active, "
        "pcie.link.gen.current, fan.speed [%]"
    )
    mhz, w = (" MHz", " W") if units else ("", "")
    rows = [
        f"2026/01/31 12:00:0{s}.500, {i}, GPU-{i}, {1410 - s}{mhz}, 300.25{w}, 0x0000000000000004, {4 - i}, [N/A]"
        for s in (0, 1)
        for i in (0, 1)
    ]
    telemetry = read_telemetry(
        write("nvidia-smi-node-17.csv", "\n".join([header, *rows, "2026/01/31 12:00:02.5, 0, GP"]))
    )
    clock = _find(telemetry, "gpu_sm_clock_mhz", "node-17", "1")
    assert clock.values.tolist() == [1410.0, 1409.0]
    assert np.diff(clock.times).tolist() == [1.0]
    assert _find(telemetry, "gpu_throttle_reasons", "node-17", "0").values.tolist() == [4.0, 4.0]
    assert _find(telemetry, "gpu_pcie_generation", "node-17", "1").values.tolist() == [3.0, 3.0]
    assert telemetry.unread == ("fan.speed",)


def test_reasons_one_by_one_become_a_set(write):
    """Columns of single reasons are the bits of the set."""
    text = (
        "timestamp, index, clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_thermal_slowdown\n"
        "2026/01/31 12:00:00.000, 0, Active, Not Active\n"
        "2026/01/31 12:00:01.000, 0, Active, Active\n"
    )
    assert _find(read_telemetry(write("n1.csv", text)), "gpu_throttle_reasons", "n1", "0").values.tolist() == [
        4.0,
        68.0,
    ]


def test_text_of_an_exporter(write):
    """Two scrapes in a file: one with a comment that says its time, one whose samples say it in milliseconds."""
    text = (
        "# 2026-01-31T12:00:00Z\n# HELP node_procs_running Number\n# TYPE node_procs_running gauge\nnode_procs_running 3\n"
        f"node_procs_running 4 {int(T0 + 15) * 1000}\n"
    )
    series = _find(read_telemetry(write("node-2.prom", text)), "run_queue", "node-2")
    assert (series.times.tolist(), series.values.tolist()) == ([T0, T0 + 15.0], [3.0, 4.0])


def test_a_folder_has_files_of_several_formats(tmp_path, write):
    """All files of a folder are read, packed ones too; of one that is no telemetry a warning says so."""
    write("node-1/gpu.csv", "timestamp, index, power.draw [W]\n2026/01/31 12:00:00.000, 0, 300.00 W\n")
    write("notes.txt", "nothing that is known\n")
    (tmp_path / "x.json.gz").write_bytes(
        gzip.compress(_matrix(_series("node_procs_running", [1], instance="node-2")).encode())
    )
    telemetry = read_telemetry(tmp_path)
    assert telemetry.hosts == ("node-1", "node-2")
    assert telemetry.formats == ("Prometheus range query", "nvidia-smi CSV")
    assert len(telemetry.warnings) == 1
    assert "notes.txt" in telemetry.warnings[0]


def test_values_of_other_times_are_let_go(write):
    """Only what lies in the time asked for is kept; when there was any is still known."""
    path = write("long.json", _matrix(_series("node_procs_running", range(100), instance="n")))
    telemetry = read_telemetry(path, begin_s=T0 + 150.0, end_s=T0 + 180.0)
    assert telemetry.series[0].values.tolist() == [10.0, 11.0, 12.0]
    assert telemetry.last_s == T0 + 99 * 15.0
    assert read_telemetry(path, begin_s=T0 + 1e6, end_s=T0 + 2e6).series == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hello\n", "nothing that is known here"),
        ("{", "no JSON from character"),
        ('{"status":"error","errorType":"timeout","error":"query timed out"}', "query timed out"),
        ('{"status":"success","data":{"resultType":"matrix","result":[]}}', "without any series"),
        ('{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "expected matrix"),
        ('[{"metric":{"__name__":"x"},"values":[[1]]}]', "none of Prometheus's"),
        (
            '[{"metric":{"__name__":"DCGM_FI_DEV_POWER_USAGE","gpu":"0","Hostname":"n"},"values":[[1769860800000,"1"]]}]',
            "at 1769860800000; expected seconds",
        ),
        ("timestamp, power.draw [W]\n2026/01/31 12:00:00.000, 3 W\n", "expected index or uuid"),
        ("timestamp, index, power.draw [W]\n", "no row of nvidia-smi"),
        ("node_load1 0.5\n", "without a time"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(write, text, said):
    """Each error is one line that names the file, what was found and what was expected."""
    path = write("bad", text)
    with pytest.raises(TraceError) as error:
        read_telemetry(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "expected" in str(error.value)
    assert "\n" not in str(error.value)


def test_dcgmi_dmon(write):
    """Lines of dcgmi dmon with the time that `ts` puts before each; headers come again and again, and N/A is no value."""
    text = """\
2026-01-31T12:00:00+0000 #Entity   SMCLK   POWER   GPUTL   TENSO
2026-01-31T12:00:00+0000       Id     MHz       W
2026-01-31T12:00:00+0000 GPU 0     1410    301.5   99   0.412
2026-01-31T12:00:00+0000 GPU 1     1395    N/A     98   0.398
2026-01-31T12:00:10+0000 #Entity   SMCLK   POWER   GPUTL   TENSO
2026-01-31T12:00:10+0000 GPU 0     1200    250.0   99   0.333
2026-01-31T12:00:10+0000 GPU 1     13
"""
    telemetry = read_telemetry(write("node-9.dmon.log", text))
    clock = _find(telemetry, "gpu_sm_clock_mhz", "node-9", "0")
    assert (clock.times.tolist(), clock.values.tolist()) == ([T0, T0 + 10.0], [1410.0, 1200.0])
    assert _find(telemetry, "gpu_utilization", "node-9", "1").values.tolist() == [0.98]
    assert not [s for s in telemetry.series if s.metric.name == "gpu_power_w" and s.device == "1"]


def test_dmon_without_times_is_refused(write):
    """As it stands dcgmi dmon says no time: the error says how to put one before each line."""
    with pytest.raises(TraceError, match=r"2 lines without a time; .* ts "):
        read_telemetry(write("n.log", "#Entity   SMCLK\n      Id\nGPU 0     1410\nGPU 1     1410\n"))


SNAPSHOT = """\
# diagnose snapshot {time} node-4
# nvidia-smi -q
==============NVSMI LOG==============

Timestamp                                 : Sat Jan 31 11:11:11 2026
Driver Version                            : 550.90.07
Attached GPUs                             : 2

GPU 00000000:17:00.0
    Product Name                          : NVIDIA H100
    GPU UUID                              : GPU-aaaa
    PCI
        Bus                               : 0x17
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : {replays}
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            DRAM Correctable              : {ecc}
        Aggregate
            DRAM Correctable              : 900
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 61 C
    Clocks Throttle Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
    Clocks
        Graphics                          : 1980 MHz
        SM                                : 1755 MHz
    Max Clocks
        SM                                : 1980 MHz
GPU 00000000:2A:00.0
    GPU UUID                              : GPU-bbbb
    Temperature
        GPU Current Temp                  : 62 C
# ethtool -S eth0
NIC statistics:
     rx_crc_errors_phy: {crc}
     tx_prio3_pause: 5
     tx_prio4_pause: 7
     whatever: 3
# grep -H . /sys/class/infiniband/*/ports/*/*counters/*
/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:{crc}
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:1000
/sys/class/net/eth0/carrier_changes:2
"""


def test_snapshots_before_and_after_a_job(write):
    """A prolog's and an epilog's counters: two values each, of cards in their order, of ports by name."""
    before = SNAPSHOT.format(time="2026-01-31T12:00:00Z", replays=3, ecc=10, crc=0)
    after = SNAPSHOT.format(time="2026-01-31T13:00:00Z", replays=9, ecc=25, crc=44)
    telemetry = read_telemetry(write("slurm-77.txt", before + after))
    assert telemetry.hosts == ("node-4",)
    replays = _find(telemetry, "gpu_pcie_replays", "node-4", "0")
    assert (replays.times.tolist(), replays.values.tolist()) == ([T0, T0 + 3600.0], [3.0, 9.0])
    assert _find(telemetry, "gpu_pcie_width", "node-4", "0").values.tolist() == [8.0, 8.0]
    assert _find(telemetry, "gpu_ecc_corrected", "node-4", "0").values.tolist() == [11.0, 26.0]
    assert _find(telemetry, "gpu_throttle_reasons", "node-4", "0").values.tolist() == [4.0, 4.0]
    assert _find(telemetry, "gpu_sm_clock_mhz", "node-4", "0").values.tolist() == [1755.0, 1755.0]
    assert _find(telemetry, "gpu_temperature_c", "node-4", "1").values.tolist() == [62.0, 62.0]
    assert _find(telemetry, "net_symbol_errors", "node-4", "eth0").values.tolist() == [0.0, 44.0]
    assert _find(telemetry, "net_symbol_errors", "node-4", "mlx5_0").values.tolist() == [0.0, 44.0]
    assert _find(telemetry, "net_pfc_sent", "node-4", "eth0").values.tolist() == [12.0, 12.0]
    assert _find(telemetry, "net_sent_bytes", "node-4", "mlx5_0").values.tolist() == [4000.0, 4000.0]


def test_what_is_beside_telemetry_is_none(tmp_path, write):
    """Of a job's folder only what surely is telemetry is taken: no training log, no table of losses, no trace of a profiler."""
    write("train.log", "step 1 loss 3.2\nlr 0.1\nGPU 0 ready\n")
    write("losses.csv", "timestamp,step,loss,memory\n2026-01-31 12:00:00,1,3.2,4\n")
    write("trace.json", '{"traceEvents": [{"name": "x", "metric": 3}]}')
    write("result.json", '{"metric": "loss", "values": [1, 2]}')
    write("my.prom", "my_metric 3\n")
    kept = [
        write("node-1/gpu.csv", "timestamp, index, power.draw [W]\n2026/01/31 12:00:00.000, 0, 300.00 W\n"),
        write("node-1/node.prom", "# HELP node_load1 1m load average.\nnode_load1 3\n"),
        write("range.json", _matrix(_series("node_procs_running", [1], instance="node-2"))),
    ]
    assert find_telemetry(tmp_path) == tuple(sorted(kept))


def test_a_pipe_in_a_folder_is_not_opened(tmp_path, monkeypatch):
    """Whoever opens a named pipe waits until somebody writes into it."""
    os.mkfifo(tmp_path / "gpu.csv")
    monkeypatch.setattr(Path, "open", lambda path, *_: pytest.fail(f"{path.name} was opened"))
    assert find_telemetry(tmp_path) == ()
