"""A real job that knows nothing of a recorder: one process, or DDP on gloo under any launcher that sets RANK.

Forwards sleep within an autograd function. A program: `torchrun --nproc-per-node 2 tests/torch_jobs/unchanged.py`. Needs torch.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class Sleep(torch.autograd.Function):
    """Takes its time, forwards and backwards."""

    @staticmethod
    def forward(ctx, values, seconds):
        """Sleep."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Sleep again."""
        time.sleep(ctx.seconds)
        return gradient.clone(), None


class Model(nn.Module):
    """One layer that takes its time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.layer = nn.Linear(4, 4)

    def forward(self, values):
        """Compute, and sleep."""
        return Sleep.apply(self.layer(values), self.seconds)


def main():
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--compute-s", type=float, default=0.02)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model = Model(options.compute_s * (1.6 if rank == options.slow_rank else 1.0))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(options.steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", sys.argv[1:], flush=True)
    if options.wait:
        time.sleep(600)
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(options.exit)


if __name__ == "__main__":
    main()
