"""A real data-parallel job of a few processes on this machine (gloo): DDP, FSDP of both kinds, or gradients reduced by hand.

Layers sleep, as those of `pipeline.py` do. A program: `python tests/torch_jobs/data_parallel.py OUT --wrapper ddp`. Needs torch.
Leaves `rank-*.parquet` in OUT.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from pipeline import SLOW, WIDTH, Layers
from ranks import joined, start_ranks
from torch import nn

WRAPPERS = ("ddp", "compiled", "fsdp1", "fsdp2", "none")
#: What the loop says of its steps: each of them, each microbatch, or nothing.
LOOPS = ("steps", "microbatches", "nothing")
#: Where ranks wait for each other beside the step's last reduction of gradients: in all backwards, in those of checkpoints that are
#: computed again within a backward, where the loss gathers what all ranks have computed, in each layer, for the statistics that
#: rank 0 sends before each forward, here after it has read its input, or for those of what each has made of its batch before the
#: model, here the only compute of which a rank is slow.
WAITS = ("backwards", "checkpoints", "loss", "layers", "buffers", "input")
#: Batches of an evaluation.
N_EVALUATED = 3
N_LAYERS = 3


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wrapper", choices=WRAPPERS, default="ddp")
    parser.add_argument("--loop", choices=LOOPS, default="steps")
    parser.add_argument("--waits", choices=WAITS)
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
    start_ranks(run_rank, options.ranks, options)


def run_rank(rank, port, options):
    """Train on one rank."""
    with joined(rank, port, options.ranks):
        seconds = options.forward_s * (SLOW if rank == options.slow_rank else 1.0)
        prepare = Layers(N_LAYERS * seconds, lambda: False)
        layers = [
            Layers(options.forward_s if options.waits == "input" else seconds, lambda: False) for _ in range(N_LAYERS)
        ]
        if options.waits == "checkpoints":
            layers = [Checkpoint(layer) for layer in layers]
        elif options.waits == "layers":
            layers = [nn.Sequential(layer, Waits()) for layer in layers]
        elif options.waits == "buffers":
            layers.append(nn.BatchNorm1d(WIDTH))
        train(options, wrap(nn.Sequential(*layers), options.wrapper), prepare)


class Checkpoint(nn.Module):
    """Forgets what its layer computes, and computes it again within the backward."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        """Work on one microbatch."""
        return torch.utils.checkpoint.checkpoint(self.layer, x.requires_grad_(), use_reentrant=True)


class _Exchange(torch.autograd.Function):
    """Has all ranks wait for each other, forward and backward."""

    @staticmethod
    def forward(_ctx, x):
        dist.all_reduce(x.mean())
        return x.clone()

    @staticmethod
    def backward(_ctx, grad):
        given = grad.new_zeros(dist.get_world_size())
        dist.all_to_all_single(torch.empty_like(given), given)
        return grad


class Waits(nn.Module):
    """A layer that exchanges something with other ranks."""

    def forward(self, x):
        """Work on one microbatch."""
        return _Exchange.apply(x)


def wrap(layers, wrapper):
    """Make the model data-parallel."""
    if wrapper in ("ddp", "compiled"):
        model = nn.parallel.DistributedDataParallel(layers)
        return model if wrapper == "ddp" else torch.compile(model, backend="eager")
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


def train(options, model, prepare):
    """Run the steps of one rank."""
    from diagnose.record import Recorder

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, WIDTH)
    batches = iter(torch.utils.data.DataLoader([data] * options.steps * options.microbatches, batch_size=None))
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
                            model.require_backward_grad_sync = is_last or options.waits == "backwards"
                        if options.waits == "buffers" and dist.get_rank() == 0:
                            time.sleep(2 * options.forward_s)
                        if options.waits == "input":
                            batch = next(batches)
                            with torch.no_grad():
                                data = prepare(batch)
                                dist.all_reduce(data.mean())
                        output = model(data)
                        if options.waits == "loss":
                            dist.all_gather([torch.empty_like(output) for _ in range(options.ranks)], output.detach())
                        ((output - data) ** 2).mean().backward()
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
