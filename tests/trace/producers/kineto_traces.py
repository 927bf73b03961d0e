"""Hand-made Kineto traces: events added one by one, written as torch.profiler writes them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The thread that runs the steps, the one of autograd, and the streams of the GPU.
MAIN, AUTOGRAD, STREAM, NCCL_STREAM = 100, 101, 7, 20
PID = 1


#: What the ranks of two stages do with two microbatches, in one chunk and in two.
ORDERS_1F1B = (
    ("F0", "send", "F1", "send+recv", "B0", "recv", "B1"),
    ("recv", "F0", "B0", "send+recv", "F1", "B1", "send"),
)
ORDERS_INTERLEAVED = tuple(
    tuple(order.split())
    for order in (
        "F0 send F1 send+recv F2 send+recv F3 send+recv B3 send+recv B2 send+recv B1 recv B0",
        "recv F0 send+recv F1 send+recv F2 recv B2 send+recv F3 B3 send B1 send B0 send",
    )
)


class KinetoTrace:
    """Events of one rank; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def span(self, category: str, name: str, start: float, duration: float, tid: int = MAIN, **args: Any) -> None:
        """Add a span."""
        event = {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": start, "dur": duration}
        self.events.append(event | {"args": args})

    def annotate(self, name: str, start: float, duration: float) -> None:
        """Add an annotation of the host."""
        self.span("user_annotation", name, start, duration)

    def kernel(
        self, launched: float, start: float, duration: float, name: str = "gemm", tid: int = MAIN, **args: Any
    ) -> None:
        """Add a launch on the host, and the kernel that it launched."""
        self.correlation += 1
        self.span("cuda_runtime", "cudaLaunchKernel", launched, 1.0, tid, correlation=self.correlation)
        stream = NCCL_STREAM if name.startswith("nccl") else STREAM
        self.span("kernel", name, start, duration, stream, correlation=self.correlation, **args)

    def write(self, path: Path, **header: Any) -> Path:
        """Write the trace, packed where its name says so."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schemaVersion": 1, **header, "traceEvents": self.events, "traceName": path.name}, indent=2)
        path.write_bytes(gzip.compress(text.encode(), 1, mtime=0) if path.suffix == ".gz" else text.encode())
        return path


def distributed(rank: int, world: int, **more: Any) -> dict[str, Any]:
    """Give the header of one rank."""
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world, **more}}


def data_parallel_rank(
    *, n_steps: int = 2, forward_us: float = 1000.0, stall_us: float = 0.0, base: float = 0.0
) -> KinetoTrace:
    """Make a rank of a job without pipeline: forward, backward of 2000 us, all-reduce that ends 500 us later, update of 100 us.

    The host asks for everything 10 us apart at the start of the step; a stall of the allocator lengthens the forward of step 1.
    """
    trace = KinetoTrace()
    for step in range(n_steps):
        at = base + 10_000.0 * step
        trace.annotate(f"ProfilerStep#{step}", at, 9_999.0)
        trace.span("cpu_op", "aten::linear", at + 10, 20)
        trace.events.append(
            {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": PID, "tid": MAIN, "ts": at + 11, "id": step}
        )
        stalled = stall_us if step == 1 else 0.0
        if stalled:
            trace.span("cuda_runtime", "cudaMalloc", at + 12, stalled)
        begun = at + 100
        ended = begun + forward_us + stalled
        trace.kernel(at + 15, begun, forward_us + stalled)
        trace.span(
            "cpu_op",
            "autograd::engine::evaluate_function: AddmmBackward0",
            at + 40,
            20,
            AUTOGRAD,
            **{"Fwd thread id": 1},
        )
        trace.kernel(at + 45, ended, 2000.0, tid=AUTOGRAD)
        reduction = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": step + 5}
        trace.kernel(
            at + 50, ended + 1500, 1000.0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(..)", AUTOGRAD, **reduction
        )
        trace.annotate("Optimizer.step#Adam.step", at + 70, 20)
        trace.kernel(at + 80, ended + 2500, 100.0)
    return trace


def pipeline_rank(
    stage: int, n_stages: int = 2, *, chunks: int = 1, n_microbatches: int = 2, prefix: str = "PP:"
) -> KinetoTrace:
    """Make a rank of a GPipe-like pipeline in a lock step, annotated as torch.distributed.pipelining does.

    Forward `m` of virtual stage `v` runs at (v + 2 m) ms for 0.8 ms, its send in the 0.1 ms after it and its recv in the 0.1 ms
    before; backwards mirror that after 20 ms. Microbatches of a second chunk follow 10 ms later.
    """
    trace = KinetoTrace()
    virtual_stages = n_stages * chunks
    trace.annotate("ProfilerStep#3", 0.0, 100_000.0)
    for chunk in range(chunks):
        virtual = stage + chunk * n_stages
        for microbatch in range(n_microbatches):
            start = 1000.0 * (virtual + 2 * microbatch) + 10_000.0 * chunk + 1000
            back = 90_000.0 - start - 800
            for letter, at, previous in (("F", start, virtual > 0), ("B", back, virtual < virtual_stages - 1)):
                trace.annotate(f"{prefix}{virtual}{letter}{microbatch}", at, 800.0)
                trace.kernel(at + 5, at + 50, 700.0)
                if previous:
                    trace.annotate(f"{prefix}{virtual}RECV_{letter}{microbatch}", at - 100, 90.0)
                    trace.kernel(at - 95, at - 90, 85.0, "ncclDevKernel_SendRecv(..)")
                following = virtual < virtual_stages - 1 if letter == "F" else virtual > 0
                if following:
                    trace.annotate(f"{prefix}{virtual}SEND_{letter}{microbatch}", at + 805, 90.0)
                    trace.kernel(at + 806, at + 810, 85.0, "ncclDevKernel_SendRecv(..)")
    return trace


def unannotated_pipeline_rank(stage: int, orders: Sequence[Sequence[str]] = ORDERS_1F1B) -> KinetoTrace:
    """Make a rank of a 1F1B pipeline of two stages and two microbatches over NCCL, as Schedule1F1B leaves it: without annotations.

    `orders` say what the rank of each stage does. Computes take 100 us on the host and 80 on the GPU, 5 after they were launched;
    batches of a send and a recv are one kernel, launched after both were called.
    """
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#4", 0.0, 10_000.0)
    for n, what in enumerate(orders[stage]):
        at = 1000.0 + 500.0 * n
        if what[0] == "F":
            trace.span("cpu_op", "aten::linear", at, 100.0)
            trace.events.append(
                {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": PID, "tid": MAIN, "ts": at + 1, "id": n}
            )
            trace.kernel(at + 2, at + 5, 80.0)
        elif what[0] == "B":
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.span("cpu_op", name, at, 100.0, AUTOGRAD, **{"Fwd thread id": 1})
            trace.kernel(at + 2, at + 5, 80.0, tid=AUTOGRAD)
        else:
            for m, part in enumerate(what.split("+")):
                trace.span("cpu_op", "c10d::send" if part == "send" else "c10d::recv_", at + 20 * m, 15.0)
                trace.span("cpu_op", "record_param_comms", at + 20 * m + 2, 10.0, **{"Collective name": part})
            trace.kernel(at + 60, at + 65, 200.0, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    return trace


def synchronising_rank(pauses_us: list[float], *, n_items: int = 1, module: str = "") -> KinetoTrace:
    """Make a rank of a job on one GPU whose host asks for the loss in each step, and then pauses; a step for each pause.

    Ten kernels of 1 ms are the forward and ten of 2 ms the backward, launched 20 us apart after fetching a batch for 50 us; an
    update takes 500 us. Then comes `aten::item`, `n_items` times, 100 us apart: it copies, and waits until the GPU has nothing to
    do. The host returns 10 us later.
    """
    trace = KinetoTrace()
    at = idle = 0.0

    def launch(duration: float, tid: int = MAIN, name: str = "gemm") -> None:
        nonlocal at, idle
        begun = max(at + 5.0, idle)
        trace.kernel(at, begun, duration, name, tid=tid)
        at, idle = at + 20.0, begun + duration

    for step, pause_us in enumerate(pauses_us, start=1):
        begins = at
        trace.annotate("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 50.0)
        at += 60.0
        for n in range(10):
            trace.span("cpu_op", "aten::linear", at - 2.0, 15.0)
            mark = {
                "ph": "s",
                "cat": "fwdbwd",
                "name": "fwdbwd",
                "pid": PID,
                "tid": MAIN,
                "ts": at,
                "id": 10 * step + n,
            }
            trace.events.append(mark)
            launch(1000.0)
        at += 10.0
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        trace.span("cpu_op", name, at, 200.0, AUTOGRAD, **{"Fwd thread id": 1})
        for _ in range(10):
            launch(2000.0, AUTOGRAD)
        at += 10.0
        trace.annotate("Optimizer.step#Adam.step", at, 30.0)
        launch(500.0)
        at += 20.0
        for _ in range(n_items):
            begun = at
            at += 10.0
            launch(2.0, name="Memcpy DtoH (Device -> Pageable)")
            trace.span("cuda_runtime", "cudaStreamSynchronize", at, max(idle + 10.0 - at, 5.0))
            at = max(idle + 10.0, at + 5.0)
            trace.span("cpu_op", "aten::_local_scalar_dense", begun + 3.0, at - begun)
            trace.span("cpu_op", "aten::item", begun, at + 5.0 - begun)
            if module:
                trace.span("python_function", module, begun - 5.0, at + 15.0 - begun)
            at += 100.0
        at += pause_us
        trace.annotate(f"ProfilerStep#{step}", begins, at - begins)
    return trace


def training_loop(plan: str, *, pause_us: float = 20.0) -> KinetoTrace:
    """Make a rank of a job on the CPU that does what each letter of a plan says, one after the other.

    `L` fetches a batch, `F` and `B` are a forward of ten operators and its backward, `E` a forward that no backward comes back to,
    `U` an update, `M` one done by hand, `C` a loss that is looked at, `S` the copies of 20 weights to be saved. `(` and `)` begin
    and end `Optimizer.step` around what a closure does, and `P` steps the profiler. Backwards run on the main thread, as they do
    on the CPU.
    """
    trace = KinetoTrace()
    at, marked, opened, n_marks = 1000.0, 1000.0, 0.0, 0
    for letter in plan.replace(" ", ""):
        begun = at
        if letter in "FE":
            for _ in range(10):
                trace.span("cpu_op", "aten::linear", at, 8.0)
                if letter == "F":
                    place = {"pid": PID, "tid": MAIN, "ts": at + 1, "id": len(trace.events)}
                    trace.events.append({"ph": "s", "cat": "fwdbwd", "name": "fwdbwd"} | place)
                at += 10.0
        elif letter == "B":
            for _ in range(10):
                name = "autograd::engine::evaluate_function: AddmmBackward0"
                trace.span("cpu_op", name, at, 20.0, **{"Fwd thread id": 1})
                at += 20.0
        elif letter in "UMC":
            n_operators = {"U": 4, "M": 12, "C": 2}[letter]
            for n in range(n_operators):
                trace.span("cpu_op", "aten::add_", at + 10.0 * n, 8.0)
            at += 10.0 * n_operators
            if letter == "U" and not opened:
                trace.annotate("Optimizer.step#Adam.step", begun - 1.0, at - begun + 2.0)
        elif letter == "S":
            for _ in range(20):
                trace.span("cpu_op", "detach", at, 8.0)
                trace.span("cpu_op", "aten::clone", at + 10.0, 8.0)
                at += 20.0
        elif letter == "L":
            trace.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 30.0)
            at += 30.0
        elif letter == "(":
            opened = at
        elif letter == ")":
            trace.annotate("Optimizer.step#Adam.step", opened, at - opened)
            opened = 0.0
        else:
            trace.annotate(f"ProfilerStep#{n_marks}", marked, at - marked)
            n_marks, marked = n_marks + 1, at
        at += pause_us if letter in "LFBEUMCS" else 1.0
    return trace
