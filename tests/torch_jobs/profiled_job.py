"""Run a small training job of four processes under torch.profiler, with a fault put in, and write down what truly happened.

    python tests/torch_jobs/profiled_job.py --schedule 1f1b --slow-stage 2 --out /tmp/job

Enters: a schedule of torch.distributed.pipelining, or `ddp` or `fsdp`, and faults. Leaves: in `--out`, one Kineto trace a
rank (`rank3.json.gz`), and beside it `truth3.json`: one entry an operation with its times on the same clock, taken by
hooks around the computes and not from the profiler. Needs torch; runs on gloo, on the CPU, over the loopback.
"""

import argparse
import gc
import gzip
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules
from torch.distributed.pipelining.schedules import Schedule1F1B
from torch.profiler import ProfilerActivity, profile, schedule

OF_CHUNKS = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "interleaved-zb": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
#: Rank p holds the stages p from both ends of the model.
SHAPED_AS_V = ("zbv", "dualpipev")
WORLD = 4
WIDTH = 256
ROWS = 64
MICROBATCHES = 6
WAIT_STEPS = 2


class Standstill(torch.autograd.Function):
    """Stands still in the forward and in the backward, as something does that takes longer than it should."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Wait."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Wait as long."""
        time.sleep(ctx.seconds)
        return grad, None


class Block(nn.Module):
    """Layers of one stage; `pause_s` seconds of standing still in the middle make it a slow one."""

    def __init__(self, n_layers: int, pause_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(n_layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
        self.pause_s = pause_s
        self.collect: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute; collect garbage on the way where it is asked for."""
        for n, layer in enumerate(self.layers):
            x = layer(x)
            if n == 1 and self.pause_s:
                x = Standstill.apply(x, self.pause_s)
            if n == 1 and self.collect is not None:
                collect, self.collect = self.collect, None
                collect()
        return x


class Truth:
    """What this rank did, by its own clock."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.step = 0

    def watch(self, stage: Any, name: str, op: str) -> None:
        """Time each call of `forward_one_chunk` or `backward_one_chunk` of a stage."""
        inner = getattr(stage, name)

        def timed(microbatch: int, *args: Any, **kwargs: Any) -> Any:
            began = time.time_ns()
            try:
                return inner(microbatch, *args, **kwargs)
            finally:
                self.add(op, began, stage=stage.stage_index, microbatch=microbatch)

        setattr(stage, name, timed)

    def add(self, op: str, began_ns: int, **more: Any) -> None:
        """Note an operation that ends now."""
        self.rows.append({"op": op, "step": self.step, "start_ns": began_ns, "end_ns": time.time_ns(), **more})


def make_loss(extra_rows: int) -> Any:
    """Give a loss; `extra_rows` makes it as long as the loss over a large vocabulary."""
    head = torch.randn(WIDTH, max(extra_rows, 1))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found = nn.functional.mse_loss(output, target)
        if extra_rows:
            found = found + 1e-6 * torch.logsumexp(output @ head, dim=-1).mean()
        return found

    return loss


def build_pipeline(rank: int, options: argparse.Namespace, truth: Truth) -> tuple[list[Block], Any]:
    """Build the stages of this rank and their schedule."""
    chunks = 1 if options.schedule in ("gpipe", "1f1b") else 2
    n_stages = chunks * WORLD
    mine = [rank, n_stages - 1 - rank] if options.schedule in SHAPED_AS_V else [rank + WORLD * n for n in range(chunks)]
    pause = lambda stage: options.slow_s if stage == options.slow_stage else 0.0  # noqa: E731
    modules = [Block(options.layers, pause(stage)) for stage in mine]
    stages = [
        PipelineStage(module, stage, n_stages, torch.device("cpu")) for module, stage in zip(modules, mine, strict=True)
    ]
    for stage in stages:
        truth.watch(stage, "forward_one_chunk", "forward-compute")
        truth.watch(stage, "backward_one_chunk", "backward-compute")
        truth.watch(stage, "backward_weight_one_chunk", "backward-weight")
    loss = make_loss(options.long_loss)
    if options.schedule in OF_CHUNKS:
        return modules, OF_CHUNKS[options.schedule](stages, MICROBATCHES * 2 // 3 * 2, loss_fn=loss)
    cls = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[options.schedule]
    return modules, cls(stages[0], MICROBATCHES, loss_fn=loss)


def run_rank(rank: int, store: str, options: argparse.Namespace) -> None:
    """Train a few steps as one rank."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    gc.disable()  # so that a collection happens where it is asked for, and nowhere else
    truth = Truth()
    first, step = (run_parallel if options.schedule in ("ddp", "fsdp") else run_pipeline)(rank, options, truth)
    kept = (
        [[n] for n in range(options.objects)] if options.collect_rank == rank else []
    )  # what a collection walks through

    def collect() -> None:
        began = time.time_ns()
        with torch.profiler.record_function("gc"):
            gc.collect()
        truth.add("gc", began)

    out = Path(options.out)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WAIT_STEPS, warmup=1, active=options.steps),
        on_trace_ready=lambda found: export(found, out / f"rank{rank}.json.gz"),
    ) as profiler:
        for number in range(WAIT_STEPS + 1 + options.steps):
            truth.step = number
            if kept and number % 2 == 0:
                first.collect = collect
            step(number)
            profiler.step()
    (out / f"truth{rank}.json").write_text(json.dumps(truth.rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def export(found: Any, path: Path) -> None:
    """Write a trace, packed."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        found.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=1) as packed:
            shutil.copyfileobj(source, packed)


def run_pipeline(rank: int, options: argparse.Namespace, truth: Truth) -> tuple[Block, Any]:
    """Give the first block of this rank, and the function that runs one step of a pipeline."""
    modules, pipeline = build_pipeline(rank, options, truth)
    optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.01)
    rows = ROWS * pipeline._n_microbatches
    x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)

    def step(_: int) -> None:
        optimizer.zero_grad()
        if rank == 0 and options.schedule in SHAPED_AS_V:
            pipeline.step(x, target=y, losses=[])
        elif rank == 0:
            pipeline.step(x)
        elif rank == WORLD - 1 and options.schedule not in SHAPED_AS_V:
            pipeline.step(target=y, losses=[])
        else:
            pipeline.step()
        began = time.time_ns()
        optimizer.step()
        truth.add("optimizer", began)

    return modules[0], step


class Examples(torch.utils.data.Dataset):
    """Random rows; `seconds` each take to be read."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read one row."""
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((WIDTH,), float(index % 7))


def run_parallel(rank: int, options: argparse.Namespace, truth: Truth) -> tuple[Block, Any]:
    """Give the block of this rank, and the function that runs one step of plain data parallelism."""
    block = Block(4 * options.layers, options.slow_s if rank == options.slow_rank else 0.0)
    module: nn.Module = block
    if options.schedule == "ddp":
        module = nn.parallel.DistributedDataParallel(block)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in block.layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(block)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    loader = iter(torch.utils.data.DataLoader(Examples(options.read_s / ROWS), batch_size=ROWS))
    loss_of = make_loss(options.long_loss)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for microbatch in range(options.accumulate):
            began = time.time_ns()
            x = next(loader)
            truth.add("data-load", began)
            began = time.time_ns()
            loss = loss_of(module(x), x)
            truth.add("forward-compute", began, stage=0, microbatch=microbatch)
            began = time.time_ns()
            loss.backward()
            truth.add("backward-compute", began, stage=0, microbatch=microbatch)
        began = time.time_ns()
        optimizer.step()
        truth.add("optimizer", began)

    return block, step


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedule", choices=["gpipe", "1f1b", *OF_CHUNKS, "ddp", "fsdp"], required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=4, help="profiled steps")
    parser.add_argument("--layers", type=int, default=4, help="of each stage")
    parser.add_argument("--slow-stage", type=int, default=-1, help="stage whose computes pause")
    parser.add_argument("--slow-rank", type=int, default=-1, help="rank whose computes pause (ddp, fsdp)")
    parser.add_argument("--slow-s", type=float, default=0.02, help="seconds of that pause")
    parser.add_argument("--long-loss", type=int, default=0, help="columns of an extra matrix product in the loss")
    parser.add_argument("--collect-rank", type=int, default=-1, help="rank that collects garbage in every second step")
    parser.add_argument("--objects", type=int, default=1_000_000, help="objects that such a collection walks through")
    parser.add_argument("--read-s", type=float, default=0.0, help="seconds to read a batch (ddp, fsdp)")
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches a step (ddp, fsdp)")
    return parser.parse_args(argv)


def main() -> None:
    """Run the job."""
    options = parse()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(str(Path(folder) / "store"), options), nprocs=WORLD)


if __name__ == "__main__":
    main()
