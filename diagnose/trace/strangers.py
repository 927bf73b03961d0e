"""Files that people bring and that are no traces: what each is, what it could tell, and what to record instead.

Enters: the files of a path that nobody could read. Leaves: a sentence about them. Told by content: the first bytes,
unpacked where gzip packed them, and of a database the names of its tables. Nothing is unpickled, extracted or run.
"""

import contextlib
import dataclasses
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import TraceError
from diagnose.trace.input_files import InputFiles, name_in
from diagnose.trace.logs.catalogue import name_formats
from diagnose.trace.logs.lines import find_utf16

#: Files of a folder that are looked at, spread over all of it, and names written of each kind.
FILES_ASKED = 64
FILES_NAMED = 2
#: What nobody has read of a database: it may be as large as a disk.
SQLITE = b"SQLite format 3\0"
#: Tables named in a database at most.
MAX_TABLES = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Stranger:
    """One kind of file: what it is called, how it is told, and what is said of it."""

    name: str
    pattern: re.Pattern[bytes]
    #: What it could tell; begins with a verb.
    tells: str
    #: What to do for a diagnosis; begins with a verb.
    instead: str
    #: True where somebody recorded it of a job in place of a trace: triage lists a folder of these as a job that cannot be read.
    is_recording: bool = False
    #: Ends of names that tell where no published mark does.
    suffixes: tuple[str, ...] = ()


_TRACE = "record the steps with diagnose.record.Recorder, or with torch.profiler, on every rank"
_PROFILE = "record the same steps with torch.profiler on every rank, and give the folder"
_BESIDE = f"{_TRACE}: this has no operations"
_TELEMETRY = "give this beside the trace, diagnose TRACE --telemetry FILE: it says why a machine is slow"
_LOG = "give the log that the trainer printed for step times (`diagnose convert --list`: whose are read), or a trace for causes"
_WANDB = (
    "export its history as CSV with a column of step times, or _runtime: `wandb sync` its folder, then "
    'wandb.Api().run("ENTITY/PROJECT/ID").history(samples=10**6).to_csv("history.csv"); or give what the trainer printed'
)
_UNPACK = "unpack it, and give the folder"


def _write_parquet(module: str, read: str) -> str:
    """Say how a table is written as Parquet."""
    return (
        f"write it as Parquet: python -c 'import {module} as m, pyarrow.parquet as p, sys; "
        f'p.write_table(m.{read}(sys.argv[1]), "trace.parquet")\' FILE'
    )


def _is(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def _anywhere(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.MULTILINE)


def _keys(*keys: bytes) -> re.Pattern[bytes]:
    """Tell JSON, or JSON Lines, that begins with an object or a list and has all of these keys."""
    ahead = b"".join(rb'(?=.*"' + key + rb'"\s*:)' for key in keys)
    return re.compile(rb"\A\s*[\[{]" + ahead, re.DOTALL)


#: Lines of text, of any language, that are no JSON.
_TEXT = re.compile(rb"\A(?!\s*(?:\{|\[\s*[\[{\"\]]))[^\0-\x08\x0e-\x1a\x1c-\x1f\x7f]+\Z")
#: The most telling first: the first that fits names the file.
STRANGERS: tuple[Stranger, ...] = (
    # of collectives
    Stranger(
        "a PyTorch Flight Recorder dump",
        _is(
            rb"\A(?:\x80[\x02-\x05]|\s*\{)(?!.*distributedInfo)"
            rb"(?=.*(?:pg_config|pg_status|collective_seq_id|time_discovered_started))"
        ),
        "has the last collectives that a rank began and ended, and could tell who was missing when a job hung",
        f"{_TRACE} to see slowness: collectives without computes have no schedule to replay",
        is_recording=True,
    ),
    Stranger(
        "NCCL Inspector output",
        _keys(rb"coll_perf"),
        "has the time and bandwidth of each collective, and could tell slow communicators",
        _TRACE,
        is_recording=True,
    ),
    Stranger(
        "Prometheus metrics of NCCL",
        _anywhere(rb"^(?:nccl_collective_exec_time_microseconds|nccl_bus_bandwidth_gbs)\b"),
        "has the time and bandwidth of collectives, and could tell slow communicators",
        _TRACE,
    ),
    Stranger(
        "an nccl-tests result",
        _anywhere(rb"^#.*\bout-of-place\b.*\bin-place\b|^# Avg bus bandwidth"),
        "has the bandwidth of one kind of collective, and could tell a slow fabric",
        _TRACE,
    ),
    # of profilers
    Stranger(
        "an Ascend timeline (trace_view.json, msprof)",
        _is(
            rb'\A\s*(?:\[|\{\s*"traceEvents").*'
            rb'(?:"Ascend Hardware"|"AscendCL@|"name"\s*:\s*"(?:CANN|HCCL|Overlap Analysis)"|"hcom_|"async_npu")'
        ),
        "has the operators of one NPU, and could tell its compute from its communication",
        "record the job with diagnose.record.Recorder on every rank: NPU timelines are not read",
        is_recording=True,
    ),
    Stranger(
        "an Ascend step trace (step_trace_time.csv)",
        _is(rb"\A(?:\xef\xbb\xbf)?[^\n]*\bCommunication\(Not Overlapped"),
        "has the seconds of computing, communication and waiting a step and NPU, and could tell the slowest one",
        "record the job with diagnose.record.Recorder on every rank: sums have no order to replay",
        is_recording=True,
    ),
    Stranger(
        "an Ascend profiler table",
        _is(
            rb"\A(?:\xef\xbb\xbf)?(?:[^\n]*\b(?:Accelerator Core|aic_total_cycles|OP Type,Core Type)\b"
            rb'|\s*\{.*"(?:Communication Time Info|Communication Bandwidth Info)")'
        ),
        "has the operators of one NPU, one by one or summed",
        "record the job with diagnose.record.Recorder on every rank",
        is_recording=True,
    ),
    Stranger(
        "an Ascend profiler database",
        _is(rb"\ASQLite tables:(?=.*\b(?:CANN_API|COMPUTE_TASK_INFO|COMMUNICATION_OP|StepTraceTime)\b)"),
        "has the operators and collectives of one NPU",
        "record the job with diagnose.record.Recorder on every rank",
        is_recording=True,
    ),
    Stranger(
        "an Nsight Systems export (SQLite)",
        _is(
            rb"\ASQLite tables:(?=.*\b(?:CUPTI_ACTIVITY_KIND_\w+|TARGET_INFO_\w+|META_DATA_EXPORT|NVTX_EVENTS|ANALYSIS_DETAILS)\b)"
        ),
        "has kernels, CUDA calls and NVTX ranges of one process, and could tell computes where NVTX names them",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "a table of Nsight Systems (nsys stats)",
        _is(rb'\A(?:\xef\xbb\xbf)?(?:"?Time \(%\)"?,"?Total Time \(|"?Start \(ns\)"?,"?Duration \()'),
        "has kernels or calls of one process, summed or one by one",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "an Nsight Systems report",
        _is(rb"(?!)"),  # its form is not published
        "has kernels, CUDA calls and NVTX ranges of one process",
        _PROFILE,
        is_recording=True,
        suffixes=(".nsys-rep", ".qdrep", ".qdstrm"),
    ),
    Stranger(
        "an Nsight Compute report",
        _is(rb"\ANVR\0"),
        "has the counters of single kernels",
        _PROFILE,
        is_recording=True,
        suffixes=(".ncu-rep",),
    ),
    Stranger(
        "a table of Nsight Compute",
        _anywhere(rb'^"ID","Process ID","Process Name",[^\n]*"Kernel Name"'),
        "has the counters of single kernels",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "a table of torch.profiler (key_averages)",
        _anywhere(rb"^ +Name +Self CPU %"),
        "has the operators of one rank, summed",
        f"{_PROFILE}: sums have no order to replay; the profiler's export_chrome_trace() writes a file that is read",
        is_recording=True,
    ),
    Stranger(
        "a table of DeepSpeed's flops profiler",
        _anywhere(rb"^-+ DeepSpeed Flops Profiler -+"),
        "has the arithmetic of one step and rank",
        _PROFILE,
    ),
    Stranger(
        "an OTF2 archive (Score-P)",
        _is(rb"(?!)"),  # named by the end of its anchor file
        "has what each process called and sent, and could tell late senders",
        f"{_TRACE}: OTF2 is not read",
        is_recording=True,
        suffixes=(".otf2",),
    ),
    Stranger(
        "a Perfetto trace (protobuf)",
        _is(rb"(?!)"),  # packets of any kind in any order
        "has what the kernel or a browser of one host did",
        _PROFILE,
        suffixes=(".perfetto-trace", ".pftrace", ".perfetto"),
    ),
    Stranger(
        "a ROCm profile (rocpd, RPD)",
        _is(rb"\ASQLite tables:(?=.*\brocpd_\w+)"),
        "has kernels and HIP calls of one process",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "a ROCm profiler table",
        _is(
            rb'\A(?:\xef\xbb\xbf)?(?:"?Index"?,"?KernelName"?|"?Kind"?,"?Agent_Id"?|"?Name"?,"?Calls"?,"?TotalDurationNs"?|"?Domain"?,"?Function"?,"?Process_Id"?)'
        ),
        "has kernels of one process, one by one or summed",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "an XPlane profile of JAX or TensorFlow (*.xplane.pb)",
        _is(rb"\A\x0a.{1,5}?(?:\x08.{1,10}?)?\x12.(?:/host:|/device:|Task Environment|/task)"),
        "has the operations of the devices of one host",
        "record steps where PyTorch trains, or write the trace format yourself (README): XProf's files are not read",
        is_recording=True,
    ),
    Stranger(
        "a trace of JAX or TensorFlow (XProf)",
        _is(rb'\A\s*\{.*"(?:/device:(?:TPU|GPU)[^"]*|/host:CPU)"'),
        "has the operations of the devices of one host",
        "record steps where PyTorch trains, or write the trace format yourself (README): XProf's files are not read",
        is_recording=True,
    ),
    Stranger(
        "a PyTorch execution trace (Chakra)",
        _keys(rb"schema", rb"nodes"),
        "has the operators of one rank and what they depend on, without times on the device",
        _PROFILE,
        is_recording=True,
    ),
    Stranger(
        "a CUDA memory snapshot of PyTorch",
        _is(rb"\A\x80[\x02-\x05](?=.*device_traces|.*segments.{0,400}total_size)"),
        "has what the allocator held and did, and could tell fragmentation",
        "record torch.profiler with profile_memory=True on every rank: cudaMalloc shows there beside the computes",
        is_recording=True,
    ),
    Stranger(
        "a speedscope profile (py-spy)",
        _is(rb"\A\s*\{.*speedscope\.app/file-format-schema"),
        "has what Python did on one host, by samples",
        _TRACE,
    ),
    Stranger(
        "a stack dump (py-spy, faulthandler, gdb)",
        _anywhere(
            rb"^(?:Thread \d+ \((?:idle|active|LWP|Thread 0x)|Thread 0x[0-9a-fA-F]+ (?:\(|\[)|Current thread 0x|Fatal Python error)"
        ),
        "has what one process did at one moment, and could tell where a job hung",
        _TRACE,
    ),
    Stranger(
        "stacks folded for a flame graph",
        _is(rb"\A(?:[^;\n]{1,300};){2,}[^\n]{1,300} \d+\n"),
        "has what Python did on one host, by samples",
        _TRACE,
    ),
    Stranger(
        "a profile of Python (cProfile, memray, Scalene)",
        _is(
            rb'\A(?:\xfb[\x28\x29\xa8\xa9]\x03|\{[\x28\x29\xa8\xa9]\x03|memray\0|\s*\{(?=.*"alloc_samples"\s*:)(?=.*"elapsed_time_sec"\s*:))'
        ),
        "has what one process did or held, summed by function",
        _TRACE,
    ),
    Stranger(
        "samples of Linux perf (perf script)",
        _is(
            rb"\A(?:#[^\n]*\n)*\S[^\n]{0,40}? +\d+(?:/\d+)? +(?:\[\d+\] +)?\d+\.\d+: +(?:\d+ +)?[\w:-]+: *\n\s+[0-9a-f]+ "
        ),
        "has samples of what the CPUs of one host did",
        _TRACE,
    ),
    Stranger(
        "a log of system calls (strace)",
        _is(rb"\A(?:(?:\[pid +)?\d+\]? +)?(?:[\d:.]+ +)?\w+\([^\n]*\) += +-?(?:\d|0x)"),
        "has what one process asked of its kernel",
        _TRACE,
    ),
    Stranger(
        "perf.data of Linux perf",
        _is(rb"\A(?:PERFILE2|2ELIFREP|PERFFILE)"),
        "has samples of what the CPUs of one host did",
        _TRACE,
    ),
    Stranger(
        "a browser trace (Chrome)",
        _is(
            rb'\A\s*[\[{](?=.*"(?:traceEvents|ph)")(?=.*"(?:chrome-bitness|devtools\.timeline|CrBrowserMain|blink|clock-domain)[^"]*")'
        ),
        "has what a browser did",
        _PROFILE,
    ),
    Stranger(
        "a Bazel profile",
        _is(rb'\A\s*\{.*"(?:bazel_version|build_id|output_base)"'),
        "has what a build did",
        _PROFILE,
    ),
    Stranger(
        "a Chrome trace of a program that is not known here",
        _is(rb'\A\s*(?:\[|\{)(?=.*"(?:ph|traceEvents)"\s*:)(?=.*"(?:ts|traceEvents|pid)"\s*:)'),
        "has spans, and nothing that says which are forwards and backwards of a training step",
        f"{_PROFILE}; of another producer an entry point of diagnose.producers reads it",
    ),
    # of our own columns in what is no Parquet
    Stranger(
        "a CSV table with the columns of a trace",
        _is(
            rb'\A(?:\xef\xbb\xbf)?(?=[^\n]*\boptype\b)(?=[^\n]*\bstart_ts\b)(?=[^\n]*\bduration\b)[\w" ]+(?:,[^\n,]+){4,}\n'
        ),
        "has the operations of a job",
        _write_parquet("pyarrow.csv", "read_csv"),
        is_recording=True,
    ),
    Stranger(
        "JSON Lines with the columns of a trace",
        _is(rb'\A\s*\{(?=[^\n]*"optype")(?=[^\n]*"start_ts")[^\n]*"duration"'),
        "has the operations of a job",
        _write_parquet("pyarrow.json", "read_json"),
        is_recording=True,
    ),
    Stranger(
        "an Arrow table with the columns of a trace",
        _is(rb"\AARROW1(?=.*optype)(?=.*start_ts).*duration"),
        "has the operations of a job",
        _write_parquet("pyarrow.feather", "read_table"),
        is_recording=True,
    ),
    Stranger(
        "a Parquet file that gzip or zstd packed",
        _is(rb"\APAR1"),  # one that nothing packed is read
        "may have the operations of a job",
        "unpack it with gunzip or unzstd, and give what was in it; Parquet packs by itself",
        is_recording=True,
    ),
    # of what a diagnosis is made of, or made to
    Stranger(
        "a report of diagnose",
        _is(rb'\A\s*\{\s*"schema"\s*:\s*"diagnose[\w-]*/'),
        "has what was said of a job",
        "give the trace that it was made from, or `diagnose compare` two of these",
    ),
    Stranger(
        "a store of diagnose triage",
        _is(rb"\ASQLite tables:(?=.*\bjobs\b)(?=.*\bcauses\b)"),
        "has the diagnoses of many jobs",
        "give it with --store to `diagnose fleet`",
    ),
    # of experiment trackers and trainers
    Stranger(
        "TensorBoard events",
        _is(rb"\A.{8,40}?brain\.Event:\d"),
        "has the curves of a training run, with its step times where the trainer wrote them",
        _LOG,
    ),
    Stranger(
        "a log of Weights & Biases (.wandb)",
        _is(rb"\A:W&B"),
        "has the curves and system metrics of a run",
        _WANDB,
    ),
    Stranger(
        "a log of SwanLab",
        _is(rb"\A:SWL"),
        "has the curves and system metrics of a run",
        _LOG,
    ),
    Stranger(
        "metadata of Weights & Biases",
        _is(rb'\A\s*\{(?=.*"(?:_wandb|_runtime|wandbVersion)"|.*"codePath".*"program"|.*"program".*"codePath")'),
        "has what was run, or its last metrics",
        _LOG,
    ),
    Stranger(
        "metrics.csv of Lightning",
        _is(rb"\A(?=[^\n]*\bepoch\b)(?=[^\n]*\bstep\b)[^\n]*,[^\n]*\n"),
        "has the metrics by step, and no times",
        _BESIDE,
    ),
    Stranger(
        "a result of Hugging Face's Trainer",
        _keys(rb"train_runtime"),
        "has the seconds of a whole run",
        _BESIDE,
    ),
    Stranger(
        "a store of MLflow",
        _is(rb"\ASQLite tables:(?=.*\bexperiments\b)(?=.*\bruns\b)(?=.*\bmetrics\b)"),
        "has the curves of training runs",
        _LOG,
    ),
    # of hosts and clusters
    Stranger(
        "DCGM metrics",
        _anywhere(rb"\bDCGM_FI_(?:DEV|PROF)_\w+|^#\s*Entity\b"),
        "has temperatures, clocks and power of GPUs, and could tell a throttled one",
        f"{_BESIDE}; {_TELEMETRY}",
    ),
    Stranger(
        "a table of nvidia-smi",
        _anywhere(
            rb"^(?:timestamp|index|name|uuid), ?[^\n]*(?:\[MHz\]|\[W\]|\[%\]|temperature\.gpu|clocks|utilization|pcie)"
        ),
        "has clocks, temperatures and power of GPUs, and could tell a throttled one",
        f"{_BESIDE}; {_TELEMETRY}",
    ),
    Stranger(
        "a table of nvidia-smi dmon",
        _anywhere(rb"^# ?gpu +(?:pwr|sm|pid|rxpci|xid)\b|^#Date +Time +gpu\b"),
        "has the load, clocks and power of GPUs, mostly without times",
        f"{_BESIDE}; beside it nvidia-smi --query-gpu=timestamp,index,... --format=csv can say why a machine is slow",
    ),
    Stranger(
        "a report of ibdiagnet",
        _anywhere(rb"^-[IWE]- (?:Using port|Discovering|Errors|Load)|\bibdiagnet\b"),
        "has the state of an InfiniBand fabric, and could tell a broken link",
        f"{_BESIDE}; keep this: it says which link is bad",
    ),
    Stranger(
        "a capture of network packets",
        _is(rb"\A(?:\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\x4d\x3c\xb2\xa1|\x0a\x0d\x0d\x0a)"),
        "has what one host sent and received",
        _TRACE,
    ),
    Stranger(
        "a page of nvidia-smi or rocm-smi",
        _anywhere(rb"\bNVIDIA-SMI \d|=NVSMI LOG=|ROCm System Management Interface|^\s+GPU0\s+GPU1\b|^GPU 0: NVIDIA"),
        "has the state of GPUs at one moment",
        f"{_BESIDE}; {_TELEMETRY}",
    ),
    Stranger(
        "Prometheus metrics",
        _is(rb'\A(?:# (?:HELP|TYPE) \w+|\s*\{(?=.*"resultType"\s*:))'),
        "has counters of hosts or programs over time",
        f"{_BESIDE}; {_TELEMETRY}",
    ),
    Stranger(
        "a kernel log of a host",
        _anywhere(rb"\bNVRM: Xid|^\[ *\d+\.\d{6}\] \S"),
        "has errors of devices, and could tell a broken one",
        f"{_BESIDE}; keep this: it says why a host is slow",
    ),
    # of consoles
    Stranger(
        "an NCCL log",
        _anywhere(rb"\bNCCL (?:INFO|WARN|TRACE|version)\b"),
        "has the topology and the channels that NCCL chose, and could tell a lost network card",
        _TRACE,
    ),
    Stranger(
        "a console of a trainer",
        _anywhere(
            rb"\{'(?:loss|train_loss|train_runtime|eval_loss)': |^iter \d+: loss |^(?:Epoch|epoch)[ \[:]+\d+.{0,200}(?:loss|it/s)"
        ),
        "has the loss, and step times where the trainer prints them",
        _LOG,
    ),
    Stranger(
        "a Slurm log",
        _anywhere(rb"^(?:slurmstepd|srun|sbatch|salloc): |\bSLURM_JOB_ID=|^Submitted batch job \d"),
        "has what the scheduler said",
        _LOG,
    ),
    Stranger(
        "a log of torchrun or a Python error",
        _anywhere(
            rb'\A\s*\{"message": ?\{"message":|'
            rb"^(?:\S*:? ?)?Traceback \(most recent call last\):|\btorch\.distributed\.(?:run|elastic)\b|torchelastic"
        ),
        "has why a job ended",
        _TRACE,
    ),
    # of models and data
    Stranger(
        "a workbook or document (Office)",
        _is(rb"\APK\x03\x04.{26}[^\n]{0,20}?(?:\[Content_Types\]\.xml|mimetypeapplication/vnd\.oasis)"),
        "has sheets or text",
        "save the sheet as CSV and name its column of step times with --column, if it has such",
    ),
    Stranger(
        "a PyTorch checkpoint",
        _is(rb"\A(?:PK\x03\x04.{26}[^\n]{0,200}?(?:data\.pkl|\.data/|/version)|\x80\x02\x8a\x0al\xfc\x9cF\xf9)"),
        "has weights",
        _TRACE,
    ),
    Stranger(
        "safetensors weights",
        _is(rb'\A.{5}\0\0\0\s*\{(?=.*"(?:__metadata__|data_offsets|dtype)")'),
        "has weights",
        _TRACE,
    ),
    Stranger("GGUF weights", _is(rb"\AGGUF"), "has weights", _TRACE),
    Stranger(
        "an ONNX model",
        _is(rb"\A\x08[\x01-\x20]\x12.[\w. +-]{1,60}(?:\x1a|:|\x22|\x28)"),
        "has a model",
        _TRACE,
    ),
    Stranger("a NumPy array", _is(rb"\A(?:\x93NUMPY|PK\x03\x04.{26}[^\n]{1,200}?\.npy)"), "has numbers", _TRACE),
    Stranger("an HDF5 file", _is(rb"\A\x89HDF\r\n\x1a\n"), "has arrays", _TRACE),
    Stranger(
        "an ORC table",
        _is(rb"\AORC"),
        "has a table",
        f"if it is a trace, {_write_parquet('pyarrow.orc', 'read_table')}",
    ),
    Stranger(
        "an Arrow or Avro table",
        _is(rb"\A(?:ARROW1|Obj\x01)"),
        "has a table",
        "write the table as Parquet with the columns of the trace format (README), if it is a trace",
    ),
    Stranger(
        "a Python pickle",
        _is(rb"\A\x80[\x02-\x05](?:\x95.{8}|[\x00-\xff])"),
        "may hold anything, and is never opened: reading it can run code",
        _TRACE,
    ),
    # of everything else
    Stranger(
        "an SQLite database",
        _is(rb"\ASQLite tables:|\ASQLite format 3\0"),
        "has tables that are not known here",
        _TRACE,
    ),
    Stranger(
        "an archive (tar, zip, xz, bzip2, lz4 or 7z)",
        _is(rb"\A(?:PK(?:\x03\x04|\x05\x06)|\xfd7zXZ\0|BZh[1-9]|\x04\x22\x4d\x18|7z\xbc\xaf\x27\x1c|Rar!|.{257}ustar)"),
        "has other files in it",
        _UNPACK,
    ),
    Stranger(
        "a broken gzip or zstd file",
        _is(rb"\A(?:\x1f\x8b|\x28\xb5\x2f\xfd)"),
        "has nothing that can be unpacked",
        "copy it again, or give Parquet",
    ),
    Stranger(
        "an image",
        _is(rb"\A(?:\x89PNG|\xff\xd8\xff|GIF8|RIFF.{4}WEBP|BM.{4}\0{4}|<svg|<\?xml[^>]*>\s*<svg)"),
        "has a picture",
        _TRACE,
    ),
    Stranger("a PDF", _is(rb"\A%PDF-"), "has pages", _TRACE),
    Stranger(
        "a web page", _is(rb"(?i)\A(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html|head)"), "has text for people", _TRACE
    ),
    Stranger("an XML file", _is(rb"\A(?:\xef\xbb\xbf)?\s*<\?xml"), "has data of another program", _TRACE),
    Stranger("a notebook (Jupyter)", _keys(rb"nbformat"), "has code", "run it on a trace: `import diagnose`"),
    Stranger("a program (ELF)", _is(rb"\A\x7fELF"), "has machine code, or what was left of a process", _TRACE),
    Stranger(
        "source code",
        _is(
            rb"\A(?:\xef\xbb\xbf)?\s*(?:#!|#include\b|#pragma\b|//|/\*|\"\"\"|import \w|from [\w.]+ import "
            rb"|def \w+\(|class \w+[:(]|package \w|set -e)"
        ),
        "has code",
        "give what the program recorded",
    ),
)


def name_stranger(inputs: InputFiles, file: Path) -> Stranger | None:
    """Say what a file is that is no trace; None where it is nothing that is known here."""
    head = inputs.head(file) or _read_raw(file)
    if (encoding := find_utf16(head)) and (found := _name_text(head.decode(encoding, "replace"))) is not None:
        return found
    if head.startswith(SQLITE):
        head = _read_tables(file) or head
    name = file.name.lower()
    return next((s for s in STRANGERS if s.pattern.search(head) or name.endswith(s.suffixes)), None)


def _name_text(text: str) -> Stranger | None:
    """Say what text in UTF-16 is, and that it is to be written as UTF-8 first."""
    head = text.removeprefix("\ufeff").encode()
    known = next((s for s in STRANGERS if s.pattern.search(head)), None)
    name, tells = (
        ("a text", "has lines in which no known tool wrote anything") if known is None else (known.name, known.tells)
    )
    first = "write it as UTF-8 first (iconv -f UTF-16 -t UTF-8)"
    return Stranger(
        f"{name} in UTF-16", re.compile(b"(?!)"), tells, first if known is None else f"{first}; {known.instead}"
    )


def _rank(stranger: Stranger) -> int:
    """Say where a kind stands in the table; text that nobody knows is behind all."""
    return next((i for i, known in enumerate(STRANGERS) if stranger.name.startswith(known.name)), len(STRANGERS))


def refuse_strangers(inputs: InputFiles, *, name: str) -> TraceError | None:
    """Say in a line what the files are, what they could tell and what to record instead; None where none is known."""
    known = [(file, stranger) for file in _pick(inputs.files) if (stranger := name_stranger(inputs, file)) is not None]
    if not known:
        return _refuse_empty(inputs, name) or _refuse_text(inputs, name)
    first = min((stranger for _, stranger in known), key=_rank)
    if not inputs.is_folder:
        return TraceError(f"is no trace but {first.name}, which {first.tells}; {first.instead}", where=name)
    listed = "; ".join(_count_kinds(inputs, known))
    of = "" if len(inputs.files) <= FILES_ASKED else f" (of its {len(inputs.files)} files {FILES_ASKED} were looked at)"
    return TraceError(f"holds no trace{of}: {listed}. The first {first.tells}; {first.instead}", where=name)


def describe_strangers(inputs: InputFiles, files: Sequence[Path]) -> str:
    """Name the kinds of files that lie beside traces, the most telling first; empty where none is known."""
    known = [(file, stranger) for file in _pick(files) if (stranger := name_stranger(inputs, file)) is not None]
    return "; ".join(_count_kinds(inputs, known))


def _count_kinds(inputs: InputFiles, known: Sequence[tuple[Path, Stranger]]) -> list[str]:
    """Write each kind with how many there are and some names, in the order of the table."""
    lines = []
    for stranger in sorted({stranger for _, stranger in known}, key=_rank):
        files = [name_in(inputs.path, file, "").lstrip("/") for file, found in known if found == stranger]
        more = ", ..." if len(files) > FILES_NAMED else ""
        lines.append(
            f"{len(files)} x {stranger.name.removeprefix('a ').removeprefix('an ')} ({', '.join(files[:FILES_NAMED])}{more})"
        )
    return lines


def _refuse_empty(inputs: InputFiles, name: str) -> TraceError | None:
    """Refuse files of which none has a byte."""
    if any(_read_raw(file).strip(b"\0 \t\r\n") for file in inputs.files[:FILES_ASKED]):
        return None
    what = f"holds {len(inputs.files)} empty files" if inputs.is_folder else "is empty"
    return TraceError(
        f"{what}; expected a trace (Parquet, or what a known tool records): was it written to its end, and copied whole?",
        where=name,
    )


def _refuse_text(inputs: InputFiles, name: str) -> TraceError | None:
    """Refuse files that are all lines of text, for people or of a log that nobody knows."""
    if not all(_TEXT.match(_read_raw(file)) for file in _pick(inputs.files)):
        return None
    what = f"holds {len(inputs.files)} files of text" if inputs.is_folder else "is text"
    return TraceError(
        f"{what} in which no known tool wrote operations or step times (looked for those of {name_formats()}); give the "
        f"log that the trainer printed, name the times of a table with --column, or {_TRACE}: "
        "`diagnose convert --list` shows what can be read",
        where=name,
    )


def _pick(files: Sequence[Path]) -> Sequence[Path]:
    """Pick so many files that are spread over all of them."""
    return files[:: max(1, -(-len(files) // FILES_ASKED))]


def _read_raw(file: Path) -> bytes:
    """Read the first bytes of a file as they lie there; empty where it cannot be read."""
    try:
        with file.open("rb") as content:
            return content.read(512)
    except OSError:
        return b""


def _read_tables(file: Path) -> bytes:
    """Name the tables of a database; empty where it is damaged."""
    with contextlib.suppress(sqlite3.Error, OSError, ValueError):
        uri = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            rows = database.execute("SELECT name FROM sqlite_master LIMIT ?", (MAX_TABLES,)).fetchall()
            return b"SQLite tables: " + " ".join(str(row[0]) for row in rows).encode("utf-8", "replace")
    return b""
