"""The questions: what was asked, an input that somebody could have given, made here, and what a right answer says.

Enters: a folder to write into. Leaves: the path to diagnose. The wording is ours; each thread is named by its project and number.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.logs.runs import LoggedRun, steady_run
from tests.logs.writers import deepspeed, huggingface, lightning, megatron, verl, vision
from tests.trace.producers import kineto_traces, pipelines

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
Found = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One thread."""

    #: Project and number.
    thread: str
    #: The question, in a sentence.
    asked: str
    #: What the thread, or what is known of the fault, says.
    truth: str
    #: The input, in words.
    given: str
    #: Writes the input; None where the thread was not found, or nothing could show it.
    make: Callable[[Path], Path] | None = None
    #: `right`, `part`: say of the JSON of the diagnosis whether it answers the question, or a part of it.
    right: Callable[[Found], bool] = lambda _: False
    part: Callable[[Found], bool] = lambda _: False
    #: Writes what of the JSON is the answer.
    say: Callable[[Found], str] = lambda found: str(found["summary"]).partition(": ")[2]


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _says(cause: str) -> Callable[[Found], bool]:
    return lambda found: cause in [each["cause"] for each in found["causes"]]


def _grows(found: Found) -> bool:
    """Say whether the answer tells of times that grow."""
    return "ramp" in json.dumps([found["log"], found["summary"], found["causes"]])


def _shows_exposed(found: Found) -> bool:
    """Say whether the answer tells that steps wait for collectives."""
    return found["budget"] is not None and found["budget"]["exposed_collectives"] > 0.05


def _say_budget(found: Found) -> str:
    """Write where a step goes."""
    parts = {key: share for key, share in found["budget"].items() if isinstance(share, float) and share >= 0.005}
    return "budget of a step: " + ", ".join(f"{key} {share:.0%}" for key, share in parts.items())


def _say_levers(found: Found) -> str:
    """Write where a step goes, and what makes it shorter."""
    return f"{_say_budget(found)}; {'; '.join(lever['summary'] for lever in found['levers'])}"


def _say_else(found: Found) -> str:
    """Write the summary, what else it may be, and what would tell."""
    others = [f"or else {one['cause']}: {one['tells_apart']}" for one in found["causes"][0]["alternatives"]]
    return "; ".join([str(found["summary"]).partition(": ")[2], *others])


def _or_else(cause: str) -> Callable[[Found], bool]:
    """Say whether the answer names a cause, or names it as what else it may be, with what would tell."""
    return lambda found: (
        cause in [other["cause"] for each in found["causes"] for other in (each, *each["alternatives"])]
    )


def _dates(found: Found) -> bool:
    """Say whether the answer tells since when."""
    return found["verdict"] == "straggling"


def _every(n: int, extra_s: float, n_steps: int = 240) -> LoggedRun:
    """Make a run whose every n-th step waits for its input, with as many workers that load it."""
    run = steady_run(n_steps, 0.9)
    wait_s = np.where(np.arange(n_steps) % n == n - 1, extra_s, 0.01)
    return dataclasses.replace(
        run, step_s=run.step_s + wait_s, parts={"data": wait_s}, intervals={"log": 1, "loader-workers": n}
    )


def _ramp(first_s: float, last_s: float, n_steps: int = 250) -> LoggedRun:
    """Make a run whose steps take longer and longer."""
    run = steady_run(n_steps, 1.0)
    return dataclasses.replace(run, step_s=run.step_s * np.linspace(first_s, last_s, n_steps))


def _slower_updates() -> LoggedRun:
    """Make a run of reinforcement learning whose updates take longer and longer, while what the policy writes takes what it did."""
    run = steady_run(250, 60.0)
    update_s = 15.0 * np.linspace(1.0, 6.0, 250)
    return dataclasses.replace(run, step_s=run.step_s + update_s, parts={"update": update_s})


def _flushes(text: bytes, is_flushed: Callable[[int], bool] = lambda _: True) -> bytes:
    """Put DeepSpeed's warning of cache flushes before the lines of some steps."""
    warning = (
        b"[2026-01-01 00:00:00,000] [WARNING] [stage3.py:2069:step] 2 pytorch allocator cache flushes since last step. "
        b"this happens when there is high memory pressure\n"
    )
    lines, n = [], 0
    for line in text.splitlines(keepends=True):
        said = re.search(rb"global_step=(\d+)| (\d+)/\d+ \[", line)
        if said and int(said[1] or said[2]) == n + 1:
            lines += [warning] if is_flushed(n) else []
            n += 1
        lines.append(line)
    return b"".join(lines)


def _short_of_memory(folder: Path) -> Path:
    """Write the console of a Trainer under ZeRO-3, in which some steps flush the cache and take longer."""
    rng = np.random.default_rng(3)
    is_flushed = rng.random(200) < 0.15
    run = steady_run(200, 3.0)
    run = dataclasses.replace(run, step_s=run.step_s + 2.5 * is_flushed)
    text = huggingface.write_trainer(run, returns=False)
    return _write(folder / "train.log", _flushes(text, lambda n: bool(is_flushed[n])))


def _pipeline(folder: Path) -> Path:
    pipelines.write_primus(folder / "pp_data", pipelines.Pipeline().run())
    return folder / "pp_data"


def _asking(folder: Path) -> Path:
    """Write the trace of a GPU whose host asks for the loss in every step, and goes on 45 ms later."""
    trace = kineto_traces.synchronising_rank([45_000.0] * 12, module="nn.Module: CrossEntropyLoss")
    trace.write(folder / "rank0.json")
    return folder


def _sharded(folder: Path, *, gather_us: float) -> Path:
    """Write traces of FSDP: eight layers, each gathered before its computing, and nothing beside the gathering."""
    for rank in range(4):
        trace = kineto_traces.KinetoTrace()
        for step in range(8):
            begins = at = 100_000.0 * step
            for direction, us in (("forward", 1000.0), ("backward", 2000.0)):
                tid = kineto_traces.MAIN if direction == "forward" else kineto_traces.AUTOGRAD
                for layer in range(8):
                    what = {"Collective name": "_allgather_base", "Process Group Name": "0", "Seq": 17 * step + layer}
                    trace.annotate("FSDP::all_gather", begins + 19 + layer, 1)
                    trace.kernel(
                        begins + 20 + layer, at + 60, gather_us, "ncclDevKernel_AllGather_RING_LL(..)", tid, **what
                    )
                    if direction == "forward":
                        trace.span("cpu_op", "aten::linear", begins + 10 + 5 * layer, 4)
                        mark = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": kineto_traces.PID, "tid": tid}
                        trace.events.append(mark | {"ts": begins + 11 + 5 * layer, "id": 8 * step + layer})
                    else:
                        name = "autograd::engine::evaluate_function: AddmmBackward0"
                        trace.span("cpu_op", name, begins + 100 + 5 * layer, 4, tid, **{"Fwd thread id": 1})
                    launched = begins + (12 if direction == "forward" else 102) + 5 * layer
                    trace.kernel(launched, at + 60 + gather_us, us, tid=tid)
                    at += gather_us + us
            what = {"Collective name": "_reduce_scatter_base", "Process Group Name": "0", "Seq": 17 * step + 16}
            reduction = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(..)"
            trace.annotate("FSDP::post_backward_reduce", begins + 180, 5)
            trace.kernel(begins + 182, at + 60, gather_us, reduction, kineto_traces.AUTOGRAD, **what)
            at += gather_us
            trace.annotate("Optimizer.step#Adam.step", begins + 200, 20)
            trace.kernel(begins + 205, at + 70, 100.0)
            trace.annotate(f"ProfilerStep#{step}", begins, at + 190.0 - begins)
        trace.write(folder / f"rank{rank}.json", **kineto_traces.distributed(rank, 4))
    return folder


def _flight_recorder(folder: Path) -> Path:
    """Write the dumps of eight ranks that wait in a collective which rank 5 never entered."""
    for rank in range(8):
        n_begun = 11 if rank == 5 else 12
        entries = [
            {
                "frames": [{"name": "train_step", "filename": "train.py", "line": 12}],
                "record_id": seq,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": 1_767_225_600_000_000_000 + seq * 10**9,
                "input_sizes": [[1024]],
                "output_sizes": [[1024]],
                "state": "completed" if seq < 12 else "started",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": seq < 12,
                "is_p2p": False,
            }
            for seq in range(1, n_begun + 1)
        ]
        dump = {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(8)))}},
            "pg_status": {"0": {"last_enqueued_collective": n_begun, "last_completed_collective": 11}},
            "entries": entries,
        }
        (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump))
    return folder


def _inspector(folder: Path) -> Path:
    """Write what NCCL Inspector says of 64 all-reduces of eight ranks; rank 5 always comes last, so that they take it least."""
    rng = np.random.default_rng(0)
    for rank in range(8):
        rows = []
        for number in range(64):
            us = (9000 if rank != 5 else 3000) * (1 + 0.02 * rng.standard_normal())
            rows.append(
                {
                    "header": {"id": "0x1a2b", "rank": rank, "n_ranks": 8, "nnodes": 1},
                    "metadata": {
                        "inspector_output_format_version": "v4.0",
                        "rec_mechanism": "profiler_plugin",
                        "dump_timestamp_us": 1_767_225_600_000_000 + number * 20_000,
                        "hostname": "gpu-1",
                        "pid": 100 + rank,
                    },
                    "coll_perf": {
                        "coll": "AllReduce",
                        "coll_sn": number,
                        "coll_msg_size_bytes": 1 << 26,
                        "coll_exec_time_us": us,
                        "coll_timing_source": "kernel_gpu",
                        "coll_algobw_gbs": 60.0,
                        "coll_busbw_gbs": 105.0,
                    },
                }
            )
        (folder / f"gpu-1-pid{100 + rank}.log").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _names_rank(rank: int) -> Callable[[Found], bool]:
    def is_named(found: Found) -> bool:
        workers = [worker for cause in found["causes"] for worker in cause["where"]["workers"]]
        return any(worker.get("rank") == rank for worker in workers) or f"rank {rank}" in found["summary"]

    return is_named


NOT_FOUND = "the thread was not found"
QUESTIONS = (
    Question(
        "Megatron-LM 691",
        "How is the bubble of pipeline parallelism measured?",
        "nobody said",
        "timelines of the pipeline ranks",
        _pipeline,
        lambda found: found["budget"]["bubble"] > 0.05,
        say=_say_budget,
    ),
    Question(
        "Megatron-LM 828",
        "How are the bubble and the point-to-point time of a pipeline measured?",
        "general advice, no figure",
        "timelines of the pipeline ranks",
        _pipeline,
        lambda found: found["budget"]["bubble"] > 0.05 and found["budget"]["exposed_p2p"] > 0.01,
        say=_say_budget,
    ),
    Question("Megatron-LM 716", NOT_FOUND, "-", "-"),
    Question(
        "Megatron-LM 756",
        "Why does an 8 x 7B model with experts reach 130 TFLOP/s on H100?",
        "the token dispatcher, the grouped GEMM, the layout; uneven experts while it is young",
        "the log",
        lambda at: _write(at / "train.log", megatron.write_megatron(steady_run(100, 5.5))),
    ),
    Question(
        "Megatron-LLM 22",
        "Why does the time of an iteration grow from 11 s on?",
        "a fault at one sequence a microbatch",
        "the log",
        lambda at: _write(at / "train.log", megatron.write_megatron(_ramp(11.0, 40.0))),
        _grows,
        _dates,
    ),
    Question(
        "Megatron-LLM 11",
        "Why is training half as fast as elsewhere, and slower by the hour?",
        "the log shows 45 s growing to 166 s",
        "the log",
        lambda at: _write(at / "train.log", megatron.write_megatron(_ramp(45.0, 166.0))),
        _grows,
        _dates,
    ),
    Question("torchtitan 1092", NOT_FOUND, "-", "-"),
    Question(
        "pytorch 117550",
        "Why are some all-gathers long, while one rank does nothing on its GPU?",
        "the host of one rank stops; open",
        "a trace of all ranks with evidence of collections",
        lambda _: FIXTURES / "garbage-collection.parquet",
        _says("garbage-collection"),
    ),
    Question(
        "pytorch 102434",
        "Why is FSDP slow on several nodes and fast on one?",
        "the network between nodes",
        "profiler traces of all ranks",
        lambda at: _sharded(at, gather_us=4000.0),
        part=_shows_exposed,
        say=_say_levers,
    ),
    Question(
        "pytorch 106177",
        "Why do all-gathers not overlap with computing?",
        "not said in what is stored of the thread",
        "profiler traces of all ranks",
        lambda at: _sharded(at, gather_us=2500.0),
        lambda found: _shows_exposed(found) and found["levers"][0]["lever"] == "overlap-collectives",
        _shows_exposed,
        say=_say_levers,
    ),
    Question(
        "pytorch 104509",
        "Why is one model of 7B much slower than another?",
        "retries of cudaMalloc in the loss",
        "a trace with allocator calls",
        lambda _: FIXTURES / "allocator-stall.parquet",
        _says("allocator-stall"),
    ),
    Question(
        "DeepSpeedExamples 172",
        "Training is slow and warns of allocator cache flushes in every step: what to change?",
        "memory pressure",
        "DeepSpeed's log",
        lambda at: _write(at / "train.log", _flushes(deepspeed.write_deepspeed(steady_run(200, 3.0)))),
        _says("allocator-stall"),
        _dates,
    ),
    Question(
        "trl 1100",
        "DPO with ZeRO-3 warns of allocator cache flushes: is there a remedy?",
        "memory pressure",
        "the console of the Trainer",
        _short_of_memory,
        _says("allocator-stall"),
        _dates,
    ),
    Question(
        "open_clip 703",
        "Why does training freeze every `num_workers` iterations?",
        "slow storage: all loaders run dry together",
        "open_clip's log, of every batch",
        lambda at: _write(at / "out.log", vision.write_open_clip(_every(8, 7.0))),
        _says("data-loading"),
        _dates,
    ),
    Question(
        "Lightning 1322",
        "Why does training stop for a second after every 4 steps?",
        "too few loading workers",
        "metrics.csv with a step_time",
        lambda at: _write(at / "metrics.csv", lightning.write_metrics_csv(_every(4, 1.0))),
        _or_else("data-loading"),
        lambda found: [cause["when"]["period_steps"] for cause in found["causes"]] == [4],
        say=_say_else,
    ),
    Question(
        "nccl 349",
        "Which node of a ring is slow?",
        "bisect with nccl-tests, or profile each node",
        "NCCL Inspector's files",
        _inspector,
        _names_rank(5),
    ),
    Question(
        "nccl 1260",
        "When a collective times out, which ranks have not joined?",
        "PyTorch has to say",
        "Flight Recorder dumps of all ranks",
        _flight_recorder,
        _names_rank(5),
    ),
    Question(
        "nccl 1911",
        "RAS lists the two ranks that are ahead; which are behind?",
        "open",
        "Flight Recorder dumps of all ranks",
        _flight_recorder,
        _names_rank(5),
    ),
    Question(
        "dlrover 688",
        "Which node is the straggler?",
        "run a small task on all nodes and compare",
        "a trace of some steps",
        lambda _: FIXTURES / "worker-fault.parquet",
        _says("worker-fault"),
    ),
    Question(
        "verl 4103",
        "Why does the update of an actor with experts take longer from step to step?",
        "experts get uneven: a loss that balances them",
        "verl's console",
        lambda at: _write(at / "out.log", verl.write_verl(_slower_updates(), experts=128)),
        lambda found: _grows(found) and "expert" in json.dumps(found["causes"]),
        _dates,
        say=_say_else,
    ),
    Question(
        "torchtune 522",
        "Why does every step lose 40 to 50 ms?",
        "reading the loss waits for the GPU",
        "a profiler trace",
        _asking,
        lambda found: found["budget"]["host_wait"] is not None and "aten::item" in found["levers"][0]["summary"],
        say=lambda found: f"{_say_budget(found)}; {found['levers'][0]['summary']}",
    ),
    Question(
        "traceml 252",
        "One rank is slow in backwards, and all backwards are equally long: which is it?",
        "the wait for gradients hides it: take it out",
        "a trace with computes apart from collectives",
        lambda _: FIXTURES / "worker-fault.parquet",
        lambda found: _says("worker-fault")(found) and _names_rank(1)(found),
    ),
)
