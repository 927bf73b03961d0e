"""A real data-parallel job of a few processes on this machine (gloo): DDP, FSDP of both kinds, or gradients reduced by hand.

Layers sleep, as those of `pipeline.py` do. A program: `python tests/torch_jobs/data_parallel.py OUT --wrapper ddp`. Needs torch.
Leaves `rank-*.parquet` in OUT.
"""

import argparse
import contextlib
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from pipeline import SLOW, WIDTH, Layers
from torch import nn

WRAPPERS = ("ddp", "fsdp1", "fsdp2", "none")
#: What the loop says of its steps: each of them, each microbatch, or nothing.
LOOPS = ("steps", "microbatches", "nothing")
#: Batches of an evaluation.
N_EVALUATED = 3
N_LAYERS = 3


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wrapper", choices=WRAPPERS, default="ddp")
    parser.add_argument("--loop", choices=LOOPS, default="steps")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps between evaluations; 0 for none")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--forward-s", type=float, default=0.01, help="of each layer")
    parser.add_argument("--break-at", type=int, default=-1, help="break the recorder itself in this step")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Start one process a rank and wait for all."""
    options = parse(arguments)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(options, port), nprocs=options.ranks)


def run_rank(rank, options, port):
    """Train on one rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    seconds = options.forward_s * (SLOW if rank == options.slow_rank else 1.0)
    layers = nn.Sequential(*[Layers(seconds, lambda: False) for _ in range(N_LAYERS)])
    train(options, wrap(layers, options.wrapper))
    dist.barrier()
    dist.destroy_process_group()


def wrap(layers, wrapper):
    """Make the model data-parallel."""
    if wrapper == "ddp":
        return nn.parallel.DistributedDataParallel(layers)
    if wrapper == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return Fsdp(layers, auto_wrap_policy=ModuleWrapPolicy({Layers}), device_id=torch.device("cpu"))
    if wrapper == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(layers, mesh=mesh)
    return layers


def train(options, model):
    """Run the steps of one rank."""
    from diagnose.record import Recorder

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, WIDTH)
    with Recorder(options.out, sample=1.0) as recorder:
        of_step, of_microbatch = contextlib.nullcontext, contextlib.nullcontext
        if options.loop == "steps":
            of_step = recorder.step
        elif options.loop == "microbatches":
            of_microbatch = recorder.step
        else:
            recorder.follow_optimizer()
        for step in range(options.steps):
            with of_step():
                if step == options.break_at:
                    recorder._log.clock.now = None
                for microbatch in range(options.microbatches):
                    with of_microbatch():
                        recorder.microbatch(doc_lengths=[4, 8 + microbatch])
                        is_last = microbatch == options.microbatches - 1
                        if options.wrapper == "ddp":
                            model.require_backward_grad_sync = is_last
                        ((model(data) - data) ** 2).mean().backward()
                        if is_last:
                            update(options, model, optimizer)
            if options.evaluate_every and step % options.evaluate_every == options.evaluate_every - 1:
                evaluate(model, data)
    print("trained", float(sum(p.detach().abs().sum() for p in model.parameters())), flush=True)


def update(options, model, optimizer):
    """Reduce gradients, where nobody else does, and update."""
    if options.wrapper == "none":
        for p in model.parameters():
            dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model, data):
    """Run forwards that nothing is trained by."""
    model.eval()
    with torch.no_grad():
        for _ in range(N_EVALUATED):
            model(data)
    model.train()


if __name__ == "__main__":
    main(sys.argv[1:])
