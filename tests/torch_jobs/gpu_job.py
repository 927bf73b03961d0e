"""Real training jobs on one GPU, one process a rank, with faults: `python tests/torch_jobs/gpu_job.py OUT JOBS.json`.

Ranks share the GPU. NCCL takes them for ranks of several hosts (NCCL_HOSTID), and sends through the loopback. Computes are kernels
that spin for a time on one of the GPU's processors (`spin`), so that ranks do not time each other, or matrix products (`matmul`).
JOBS.json is a list of jobs, all of one number of ranks, run one after the other by the same processes: `name`, `kind` (ddp, fsdp2,
1f1b), `dp`, `work`, `steps`, and what of `DEFAULTS` differs. Leaves OUT/NAME/rank-*.parquet, with `profile` OUT/NAME.rank*.json.gz,
and in OUT/truth.jsonl a line for each job: its seconds a step. Needs torch, and a GPU unless `--device cpu`.
"""

import argparse
import contextlib
import gc
import gzip
import json
import os
import pickle
import random
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import start_ranks
from torch import nn

#: What a job may say. `slow`: [rank, factor, first step]; `loader`: [rank or -1, seconds], read in the training's process where
#: `workers` is 0; `collect`: objects are collected every so many steps of each rank; `item`: the loss is read after each
#: microbatch; `host`: [rank, seconds], the host sleeps before each layer; `evaluate`, `save`: every so many steps; `fragment`: rank
#: whose memory is short; `flush`: the allocator gives all back after each step; `lengths`: microbatches differ, and `told` how.
DEFAULTS = json.loads("""
    {"kind": "ddp", "dp": 1, "work": "spin", "steps": 30, "micro": 4, "layers": 4, "ms": 2.0, "width": 256, "rows": 256,
     "slow": null, "loader": null, "workers": 0, "collect": 0, "item": false, "host": null, "evaluate": 0, "save": 0,
     "fragment": null, "flush": false, "lengths": false, "told": false, "profile": false, "sample": 1.0, "sync": false,
     "dump": false, "compile": false, "amp": false}
""")
#: Steps until kernels are loaded and groups are made: no part of a step's time.
N_WARM = 3
N_OBJECTS = 1_500_000


class Spin(torch.autograd.Function):
    """Passes its input on, and the gradient back, after the GPU was busy for a while."""

    @staticmethod
    def forward(ctx, x, work, ms):
        """Work, and pass on."""
        ctx.work, ctx.ms = work, ms
        work(ms)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Work for twice as long, and pass on."""
        ctx.work(2 * ctx.ms)
        return grad, None, None


def _stop(now):
    """Do on the host what is asked for before a layer."""
    if now["host_s"]:
        time.sleep(now["host_s"])
    if now["collect"]:
        now["collect"] = False
        gc.collect()
    if now["hog"]:
        now["hog"].allocate()


class Layer(nn.Module):
    """A small product, and work for the rest of its time."""

    def __init__(self, job, now):
        super().__init__()
        self.linear = nn.Linear(job["width"], job["width"])
        self.ms, self.now = job["ms"], now

    def forward(self, x):
        """Work on one microbatch."""
        now = self.now
        _stop(now)
        return torch.tanh(self.linear(Spin.apply(x, now["work"], self.ms * now["factor"])))


class Products(nn.Module):
    """A layer of a transformer without attention: matrix products only."""

    def __init__(self, job, now):
        super().__init__()
        self.up, self.down = nn.Linear(job["width"], 4 * job["width"]), nn.Linear(4 * job["width"], job["width"])
        self.now = now

    def forward(self, x):
        """Work on one microbatch; a slow rank does so several times."""
        _stop(self.now)
        for _ in range(round(self.now["factor"])):
            x = x + self.down(nn.functional.gelu(self.up(x)))
        return x


class Batches(torch.utils.data.Dataset):
    """Inputs of one step each, which a slow disk may keep waiting."""

    def __init__(self, n, shape, wait_s):
        self.n, self.shape, self.wait_s = n, shape, wait_s

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.wait_s)
        return torch.full(self.shape, 0.1 + 0.01 * (i % 7))


def main():
    """Start one process a rank and wait for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start_ranks(run_rank, options.ranks, options, method="fork")


def run_rank(rank, port, options):
    """Run all jobs on one rank."""
    os.environ |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    torch.set_num_threads(1)
    is_cuda = options.device == "cuda"
    torch.set_float32_matmul_precision("high")
    if is_cuda:
        torch.cuda.set_device(0)
    backend = "nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    work = _busy(is_cuda)
    for given in json.loads(options.jobs.read_text()):
        if unknown := given.keys() - DEFAULTS.keys() - {"name"}:
            raise ValueError(f"{given['name']} has {unknown}")
        torch.manual_seed(0)
        job = DEFAULTS | given
        seconds = train(rank, options, job, work)
        if rank == 0:
            print(job["name"], f"{1e3 * seconds:.1f} ms a step", flush=True)
            with (options.out / "truth.jsonl").open("a") as truth:
                truth.write(json.dumps({**given, "ranks": options.ranks, "step_s": round(seconds, 6)}) + "\n")
        gc.collect()
    os._exit(0)  # a group of which a rank left something out does not end


def _busy(is_cuda):
    """Give what keeps the device busy for so many milliseconds."""
    if not is_cuda:
        return lambda ms: time.sleep(ms / 1e3)
    cycles = 20_000_000
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    events[0].record()
    torch.cuda._sleep(cycles)
    events[1].record()
    torch.cuda.synchronize()
    per_ms = cycles / events[0].elapsed_time(events[1])
    return lambda ms: torch.cuda._sleep(int(ms * per_ms))


def train(rank, options, job, work):
    """Run the steps of one job; give the seconds of a step."""
    device = torch.device(options.device)
    now = {"work": work, "factor": 1.0, "collect": False, "host_s": 0.0, "hog": None}
    if job["host"] and rank == job["host"][0]:
        now["host_s"] = job["host"][1]
    hog = _Hog() if rank == job["fragment"] and options.device == "cuda" else None
    kind = Products if job["work"] == "matmul" else Layer
    layers = nn.Sequential(*[kind(job, now) for _ in range(job["layers"])]).to(device)
    heap = [[i] for i in range(N_OBJECTS)] if job["collect"] else []
    if heap:
        gc.disable()
    step_of = (
        _pipeline(rank, options, job, layers, device) if job["kind"] == "1f1b" else _plain(job, layers, device, now)
    )
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4)
    lengths = random.Random(5 + rank)
    began = 0.0
    with _recorder(options, job) as recorder, _profiler(options, job, rank) as profiler:
        batches = iter(_loader(rank, options, job))
        for step in range(job["steps"]):
            if step == N_WARM:
                _settle(options.device)
                began = time.perf_counter()
            is_slow = job["slow"] and rank == job["slow"][0] and step >= job["slow"][2]
            now["factor"] = job["slow"][1] if is_slow else 1.0
            now["collect"] = bool(heap) and (step + 3 * rank) % job["collect"] == 0
            now["hog"] = hog if step > N_WARM else None
            with recorder.step():
                batch = next(batches).to(device, non_blocking=True)
                factors = [lengths.lognormvariate(0, 0.5) if job["lengths"] else 1.0 for _ in range(job["micro"])]
                for i, factor in enumerate(factors if job["told"] else []):
                    recorder.microbatch(i, tokens=round(1000 * factor))
                step_of(batch, factors)
                torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            _after_step(rank, options, job, layers, batch, step)
            profiler.step()
        _settle(options.device)
        seconds = (time.perf_counter() - began) / max(job["steps"] - N_WARM, 1)
    if hog:
        hog.end()
    if job["dump"]:
        _dump(rank, options, job)
    return seconds


def _loader(rank, options, job):
    """Give the loader of a rank, which may be a slow one."""
    wait_s = job["loader"][1] if job["loader"] and job["loader"][0] in (-1, rank) else 0.0
    batches = Batches(job["steps"] + 8, (job["micro"] * job["rows"], job["width"]), wait_s)
    return torch.utils.data.DataLoader(
        batches, batch_size=None, num_workers=job["workers"], pin_memory=options.device == "cuda"
    )


def _after_step(rank, options, job, layers, batch, step):
    """Do what jobs do between steps."""
    if job["flush"] and options.device == "cuda":
        torch.cuda.empty_cache()
    if job["sync"]:
        _settle(options.device)
    if job["evaluate"] and step % job["evaluate"] == job["evaluate"] - 1:
        layers.eval()
        with torch.no_grad():
            for _ in range(job["micro"]):
                layers(batch[: job["rows"]])
        layers.train()
    if job["save"] and step % job["save"] == job["save"] - 1:
        torch.save([p.detach() for p in layers.parameters()], options.out / f"checkpoint-{rank}.pt")


def _settle(device):
    """Wait until the device has done all."""
    if device == "cuda":
        torch.cuda.synchronize()


def _plain(job, layers, device, now):
    """Give the computes of a step of DDP or FSDP2, or of a world of one without either."""
    model = layers
    if job["kind"] == "ddp":
        model = nn.parallel.DistributedDataParallel(layers, device_ids=[0] if device.type == "cuda" else None)
    elif job["kind"] == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(layers, mesh=mesh)
    call = torch.compile(model) if job["compile"] else model

    def step_of(batch, factors):
        base = now["factor"]
        for i, factor in enumerate(factors):
            if job["kind"] == "ddp":
                model.require_backward_grad_sync = i == len(factors) - 1
            now["factor"] = base * factor
            with torch.autocast(device.type, torch.bfloat16, enabled=job["amp"]):
                loss = (call(batch[i * job["rows"] : (i + 1) * job["rows"]]) ** 2).mean()
            loss.backward()
            if job["item"]:
                loss.item()

    return step_of


def _pipeline(rank, options, job, layers, device):
    """Give the computes of a step of a pipeline and its replicas."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    pp = options.ranks // job["dp"]
    stage, dp = divmod(rank, job["dp"])
    pipe = [dist.new_group([s * job["dp"] + d for s in range(pp)]) for d in range(job["dp"])][dp]
    peers = [dist.new_group([s * job["dp"] + d for d in range(job["dp"])]) for s in range(pp)][stage]
    schedule = Schedule1F1B(
        PipelineStage(layers, stage, pp, device, group=pipe),
        n_microbatches=job["micro"],
        loss_fn=lambda output, target: ((output - target) ** 2).mean(),
    )

    def step_of(batch, factors):
        schedule.step(*([batch] if stage == 0 else []), **({"target": batch} if stage == pp - 1 else {}))
        if job["dp"] > 1:
            for p in layers.parameters():
                dist.all_reduce(p.grad, group=peers)

    return step_of


class _Hog:
    """Takes memory in pieces of ever new sizes, until the allocator must give back what it keeps to get more."""

    def __init__(self):
        self.random, self.pieces = random.Random(7), []
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 7 * 2**30) / total)

    def allocate(self):
        """Let go of what was taken, and take other sizes."""
        self.pieces = []
        for _ in range(3):
            size = self.random.randrange(2**29, 3 * 2**29)
            self.pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def end(self):
        """Give all back."""
        self.pieces = []
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)


def _recorder(options, job):
    """Make the recorder."""
    from diagnose.record import Recorder

    return Recorder(options.out / job["name"], sample=job["sample"])


@contextlib.contextmanager
def _profiler(options, job, rank):
    """Profile six of the steps and write a Chrome trace, if asked."""
    if not job["profile"]:
        yield argparse.Namespace(step=lambda: None)
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if options.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    raw = options.out / f"{job['name']}.rank{rank}.json"
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=4, warmup=2, active=6, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(raw)),
    ) as profiler:
        yield profiler
    with raw.open("rb") as source, gzip.open(f"{raw}.gz", "wb") as packed:
        shutil.copyfileobj(source, packed)
    raw.unlink()


def _dump(rank, options, job):
    """Write what the flight recorder of NCCL holds, as a job does that hangs."""
    from torch._C._distributed_c10d import _dump_nccl_trace

    found = _dump_nccl_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False)
    pickle.loads(found)  # ours, of this process: it must be whole
    (options.out / f"{job['name']}.dump_{rank}").write_bytes(found)


if __name__ == "__main__":
    sys.exit(main())
