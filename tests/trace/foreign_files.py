"""Files of other programs, as these write them: what people bring beside traces, or in place of them."""

import base64
import gzip
import io
import json
import marshal
import pickle
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

#: A picture of one pixel.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def _flight_record(rank: int = 0) -> dict[str, Any]:
    entry = {
        "frames": [{"name": "all_reduce", "filename": "/opt/torch/distributed.py", "line": 2501}],
        "record_id": 7,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 8,
        "p2p_seq_id": 0,
        "op_id": 8,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_720_000_000_123_456_789,
        "duration_ms": 1.5,
        "input_sizes": [[1024]],
        "output_sizes": [[1024]],
        "state": "completed",
        "time_discovered_started_ns": None,
        "retired": True,
        "is_p2p": False,
    }
    return {
        "version": "2.10",
        "comm_lib_version": "2.21.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": "8", "last_completed_collective": "8"}},
        "entries": [entry] * (4 + rank),
    }


def _as_json(value: Any, *, lines: bool = False) -> bytes:
    if lines:
        return b"".join(json.dumps(row).encode() + b"\n" for row in value)
    return json.dumps(value, indent=1).encode()


def _database(*tables: str) -> bytes:
    database = sqlite3.connect(":memory:")
    for table in tables:
        database.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, start INTEGER, "end" INTEGER)')
        database.execute(f'INSERT INTO "{table}" VALUES (1, 2, 3)')
    database.commit()
    content = database.serialize()
    database.close()
    return content


def _tensorboard() -> bytes:
    event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:2"
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", zlib.crc32(length)) + event + struct.pack("<I", zlib.crc32(event)) + b"\0" * 40


def _message(field: int, content: bytes) -> bytes:
    """Write a protobuf field of variable length."""
    length, size = b"", len(content)
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | (0x80 if size else 0)])
        if not size:
            return bytes([field << 3 | 2]) + length + content


def _xplane() -> bytes:
    events = _message(3, b"\x08\x01" + _message(2, b"XLA Ops")) * 40
    plane = b"\x08\x01" + _message(2, b"/device:TPU:0") + events
    return _message(1, plane) + _message(1, b"\x08\x02" + _message(2, b"/host:CPU") + events)


def _archive(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, inside in members.items():
            archive.writestr(name, inside)
    return content.getvalue()


def _tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        about = tarfile.TarInfo("run/rank0.json")
        about.size = 2
        archive.addfile(about, io.BytesIO(b"{}"))
    return content.getvalue()


def _npz() -> bytes:
    content = io.BytesIO()
    np.savez(content, a=np.arange(3))
    return content.getvalue()


def _npy() -> bytes:
    content = io.BytesIO()
    np.save(content, np.arange(3))
    return content.getvalue()


def _safetensors() -> bytes:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 4


def _chrome(*names: str, category: str = "x", **around: Any) -> bytes:
    events = [{"ph": "M", "name": "process_name", "pid": n, "args": {"name": name}} for n, name in enumerate(names)]
    events += [{"ph": "X", "name": "work", "cat": category, "pid": 1, "tid": 2, "ts": 10.5, "dur": 4}] * 30
    return _as_json({**around, "traceEvents": events})


def _operations() -> pa.Table:
    """Eight steps of one worker with the columns of a trace."""
    rows = [
        {
            "step": step,
            "dp_rank": 0,
            "stage": 0,
            "optype": f"{way}-compute",
            "start_ts": start,
            "duration": 0.25,
            "mb_id": 0,
        }
        for step in range(1, 9)
        for way, start in (("forward", step + 0.0), ("backward", step + 0.25))
    ]
    return pa.Table.from_pylist(rows)


def _as_csv() -> bytes:
    file = io.BytesIO()
    pyarrow.csv.write_csv(_operations(), file)
    return file.getvalue()


def _as_arrow() -> bytes:
    file = io.BytesIO()
    pyarrow.feather.write_feather(_operations(), file)
    return file.getvalue()


def _as_packed_parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(_operations(), file)
    return gzip.compress(file.getvalue())


def _calls() -> bytes:
    """What cProfile writes of two calls."""
    return marshal.dumps({("a.py", 1, "f"): (1, 1, 0.5, 0.5, {}), ("a.py", 2, "g"): (1, 1, 0.5, 0.5, {})})


_ASCEND = [
    {"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {
        "ph": "X",
        "name": "aten::mm",
        "pid": 1,
        "tid": 2,
        "ts": "1699529623106750.123",
        "dur": 12.5,
        "cat": "cpu_op",
        "args": {},
    },
    {"ph": "X", "name": "hcom_allReduce__629_0_1", "pid": 5, "tid": 0, "ts": "1723545784535521.354", "dur": 40.3},
]
_STEP_TRACE = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n0,1,120.5,20.1,5,25.1,3.2,148.8,0,20.1,2.0\n"
)
_INSPECTOR = {
    "header": {"id": "0x9e7a479f95a66c", "rank": 0, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.0",
        "dump_timestamp_us": 1748030377748202,
        "pid": 1,
        "hostname": "a",
    },
    "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974},
}
_NCCL = "node1:123:456 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nnode1:123:456 [0] NCCL INFO Channel 00/02 : 0 1 2 3\n"
_NVIDIA_SMI = (
    "timestamp, name, uuid, clocks.current.sm [MHz], temperature.gpu, power.draw [W]\n"
    "2026/01/01 00:00:00.000, NVIDIA H100, GPU-1, 1980 MHz, 41, 302.11 W\n"
)
_DCGM = '# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\nDCGM_FI_DEV_SM_CLOCK{gpu="0"} 1980\n'

#: By what a refusal calls them: name of the file, and its content.
FOREIGN: dict[str, list[tuple[str, bytes | Callable[[], bytes]]]] = {
    "PyTorch Flight Recorder dump": [
        ("nccl_trace_rank_0", lambda: pickle.dumps(_flight_record(), protocol=2)),
        ("nccl_trace_rank_1", lambda: pickle.dumps(_flight_record(1), protocol=4)),
        ("nccl_trace_rank_2.json", lambda: _as_json(_flight_record(2))),
    ],
    "NCCL Inspector output": [("node-pid1.log", lambda: _as_json([_INSPECTOR] * 5, lines=True))],
    "Prometheus metrics of NCCL": [("nccl.prom", b'nccl_bus_bandwidth_gbs{comm_id="0x1",rank="0"} 380.1\n')],
    "nccl-tests result": [
        ("all_reduce.txt", b"#                  out-of-place        in-place\n# Avg bus bandwidth    : 412.1\n")
    ],
    "Ascend timeline": [("trace_view.json", lambda: _as_json(_ASCEND))],
    "Ascend step trace": [("step_trace_time.csv", _STEP_TRACE.encode())],
    "Ascend profiler table": [
        ("kernel_details.csv", b"Step Id,Device_id,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us)\n"),
        ("communication.json", lambda: _as_json({"step1": {"collective": {"x": {"Communication Time Info": {}}}}})),
    ],
    "Ascend profiler database": [("ascend_pytorch_profiler_0.db", lambda: _database("CANN_API", "STRING_IDS", "TASK"))],
    "Nsight Systems export": [
        (
            "report1.sqlite",
            lambda: _database("StringIds", "TARGET_INFO_SYSTEM_ENV", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"),
        ),
        ("empty.sqlite", lambda: _database("StringIds", "TARGET_INFO_GPU", "META_DATA_EXPORT")),
    ],
    "Nsight Systems report": [("report1.nsys-rep", b"\x13\x37 nobody publishes what stands here \xff\xfe" * 9)],
    "table of Nsight Systems": [
        (
            "stats.csv",
            b"Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n55.1,1,1,1,1,1,1,1,k\n",
        ),
        ("trace.csv", b"Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Name\n1,2,3,1,1,1,1,1,1,gemm\n"),
    ],
    "table of Nsight Compute": [
        (
            "ncu.csv",
            b'==PROF== Connected\n"ID","Process ID","Process Name","Host Name","Kernel Name"\n"0","1","python","h","gemm"\n',
        )
    ],
    "table of torch.profiler": [
        (
            "table.txt",
            b"-----  -----\n          Name    Self CPU %      Self CPU   CPU total %\n-----  -----\naten::mm 10% 1.2ms 11%\n",
        )
    ],
    "table of DeepSpeed's flops profiler": [
        (
            "flops.txt",
            b"\n-------------------------- DeepSpeed Flops Profiler --------------------------\nparams per gpu: 336.23 M\n",
        )
    ],
    "Nsight Compute report": [("kernels.ncu-rep", b"NVR\0\x01\x02\x03" * 9)],
    "ROCm profile": [("trace.rpd", lambda: _database("rocpd_string", "rocpd_op", "rocpd_api"))],
    "ROCm profiler table": [
        ("results.csv", b'"Index","KernelName","gpu-id","queue-id"\n0,"gemm",0,0\n'),
        ("1_kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id","Kernel_Name"\n"KERNEL_DISPATCH",1,1,"gemm"\n'),
    ],
    "XPlane profile": [("host.xplane.pb", _xplane)],
    "trace of JAX or TensorFlow": [
        ("perfetto_trace.json.gz", lambda: gzip.compress(_chrome("/device:TPU:0", "/host:CPU", displayTimeUnit="ns")))
    ],
    "PyTorch execution trace": [
        (
            "et_0.json",
            lambda: _as_json({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}),
        )
    ],
    "CUDA memory snapshot": [
        (
            "snapshot.pickle",
            lambda: pickle.dumps({"segments": [{"address": 1, "total_size": 2}], "device_traces": [[]]}),
        )
    ],
    "speedscope profile": [
        ("py.json", lambda: _as_json({"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}))
    ],
    "stack dump": [
        (
            "dump.txt",
            b'Process 12: python train.py\nPython v3.11\n\nThread 12 (idle): "MainThread"\n    wait (a.py:3)\n',
        )
    ],
    "stacks folded": [
        ("stacks.txt", b"main (a.py:1);train (a.py:2);step (a.py:3) 17\nmain (a.py:1);load (b.py:2) 3\n")
    ],
    "profile of Python": [
        ("run.prof", _calls),
        ("memray-train.bin", b"memray\0\x0b" + b"\0" * 40),
        ("scalene.json", b'{"alloc_samples": 1, "elapsed_time_sec": 12.0, "files": {}}'),
    ],
    "samples of Linux perf": [
        (
            "perf.txt",
            b"python 1234 [003] 123456.789012:     250000 cpu-clock:pppH: \n\t    7f12 PyEval+0x1 (/usr/bin/python3)\n\n",
        ),
        ("cycles.txt", b"# captured on: today\n:-1 1234/1240 5.789012: cycles: \n\tffffffff81 do_idle ([kernel])\n\n"),
    ],
    "log of system calls": [("strace.out", b'1234  12:00:00.000001 read(3, "abc", 1024) = 3 <0.000012>\n')],
    "perf.data": [("perf.data", b"PERFILE2" + b"\0" * 96)],
    "browser trace": [
        (
            "Trace-1.json",
            lambda: _chrome("CrBrowserMain", category="devtools.timeline", metadata={"chrome-bitness": 64}),
        )
    ],
    "Bazel profile": [("command.profile.gz", lambda: gzip.compress(_chrome("bazel", otherData={"build_id": "1"})))],
    "Chrome trace of a program": [("trace.json", lambda: _chrome("my server"))],
    "CSV table with the columns of a trace": [("trace.csv", _as_csv)],
    "JSON Lines with the columns of a trace": [
        ("trace.jsonl", lambda: _as_json(_operations().to_pylist(), lines=True))
    ],
    "Arrow table with the columns of a trace": [("trace.feather", _as_arrow)],
    "Parquet file that gzip or zstd packed": [("trace.parquet.gz", _as_packed_parquet)],
    "report of diagnose": [("diagnosis.json", b'{"schema": "diagnose/1", "job": {}}\n')],
    "store of diagnose triage": [("triage.db", lambda: _database("jobs", "causes", "diagnoses"))],
    "TensorBoard events": [("events.out.tfevents.1700000000.node1.12.0", _tensorboard)],
    "log of Weights & Biases": [("run-1.wandb", b":W&B\xe1\xbe\0" + b"\x01" * 40)],
    "metadata of Weights & Biases": [
        ("wandb-summary.json", b'{"loss": 1.5, "_runtime": 12, "_step": 9, "_wandb": {"runtime": 12}}'),
        ("wandb-metadata.json", b'{"os": "Linux", "program": "train.py", "codePath": "train.py"}'),
    ],
    "metrics.csv of Lightning": [("metrics.csv", b"epoch,step,train_loss\n0,49,1.5\n")],
    "result of Hugging Face's Trainer": [("train_results.json", b'{"epoch": 1.0, "train_runtime": 12.5}')],
    "store of MLflow": [("mlflow.db", lambda: _database("experiments", "runs", "metrics", "params"))],
    "DCGM metrics": [
        ("dcgm.prom", _DCGM.encode()),
        ("dcgm.txt", b"#Entity   SMCLK   TMPTR\nID\nGPU 0     1980    41\n"),
    ],
    "table of nvidia-smi": [("gpus.csv", _NVIDIA_SMI.encode())],
    "table of nvidia-smi dmon": [
        (
            "dmon.txt",
            b"# gpu   pwr gtemp mtemp    sm   mem\n# Idx     W     C     C     %     %\n    0   300    60    70    99    40\n",
        )
    ],
    "report of ibdiagnet": [
        ("ib.log", b"-I- Using port 1 as the local port.\n-I- Discovering ... 12 nodes discovered.\n")
    ],
    "capture of network packets": [("a.pcap", b"\xd4\xc3\xb2\xa1\x02\0\x04\0" + b"\0" * 40)],
    "page of nvidia-smi": [("smi.txt", b"+-----+\n| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05 |\n")],
    "Prometheus metrics": [
        ("node.prom", b"# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 3.1\n"),
        ("range.json", b'{"status":"success","data":{"resultType":"matrix","result":[]}}'),
    ],
    "kernel log of a host": [
        ("dmesg", b"[12345.678901] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n")
    ],
    "NCCL log": [("nccl.log", _NCCL.encode())],
    "console of a trainer": [
        ("hf.log", b"{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}\n"),
    ],
    "Slurm log": [
        ("slurm-12.out", b"slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***\n")
    ],
    "log of torchrun": [
        ("error.json", b'{"message": {"message": "RuntimeError: x", "extraInfo": {}}}'),
        ("err.log", b'Traceback (most recent call last):\n  File "a.py", line 1\nRuntimeError: x\n'),
    ],
    "workbook or document": [
        ("a.xlsx", lambda: _archive(**{"[Content_Types].xml": b"<Types/>", "xl/workbook.xml": b"<workbook/>"}))
    ],
    "PyTorch checkpoint": [
        ("model.pt", lambda: _archive(**{"model/data.pkl": b"\x80\x02}.", "model/version": b"3\n"}))
    ],
    "safetensors weights": [("model.safetensors", _safetensors)],
    "GGUF weights": [("model.gguf", b"GGUF\x03\0\0\0" + b"\0" * 64)],
    "ONNX model": [("model.onnx", b"\x08\x08" + _message(2, b"pytorch") + _message(3, b"2.1.0") + b"\x3a\x10graph")],
    "NumPy array": [("a.npz", _npz), ("a.npy", _npy)],
    "HDF5 file": [("a.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 64)],
    "Arrow or Avro table": [("a.arrow", b"ARROW1\0\0" + b"\0" * 64)],
    "ORC table": [("a.orc", b"ORC\n\x03" + b"\0" * 64)],
    "OTF2 archive": [("traces.otf2", b"\x02\0\x01" * 9)],
    "text in UTF-16": [
        ("a.txt", "hello, this is text\n".encode("utf-16")),
        ("b.txt", "hello, this is text\n".encode("utf-16-le")),
    ],
    "web page in UTF-16": [("a.html", "<!DOCTYPE html><html></html>".encode("utf-16"))],
    "Python pickle": [("a.pkl", lambda: pickle.dumps([1, 2, 3]))],
    "SQLite database": [("a.db", lambda: _database("users"))],
    "archive": [
        ("a.tar", _tar),
        ("a.zip", lambda: _archive(**{"readme.txt": b"hello"})),
        ("a.xz", b"\xfd7zXZ\0\0\x04" + b"\0" * 40),
    ],
    "broken gzip or zstd file": [
        ("a.json.gz", lambda: gzip.compress(b"hello" * 100)[:12]),
        ("a.json.zst", b"\x28\xb5\x2f\xfd\x24\x05\x29\0\0hello" + b"\0" * 9),
    ],
    "image": [("a.png", _PNG), ("a.svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>')],
    "PDF": [("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")],
    "web page": [("a.html", b"<!DOCTYPE html><html><head></head><body>hello</body></html>")],
    "XML file": [("a.xml", b'<?xml version="1.0"?><plist/>')],
    "notebook": [("a.ipynb", b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')],
    "program (ELF)": [("core", b"\x7fELF\x02\x01\x01" + b"\0" * 64)],
    "source code": [
        ("train.py", b'"""Train."""\n\nimport torch\n'),
        ("run.sh", b"#!/bin/bash\nset -e\n"),
        ("a.cc", b"#include <a.h>\n"),
    ],
}


def contents() -> list[tuple[str, str, bytes]]:
    """Give (what it is called, name of a file, its content) of all."""
    return [
        (called, name, content() if callable(content) else content)
        for called, files in FOREIGN.items()
        for name, content in files
    ]


def write(folder: Path, name: str, content: bytes) -> Path:
    """Write one file into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name
