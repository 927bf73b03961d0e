"""A real data-parallel job of a few processes (DDP, gloo) with a fault that a setting mends, and with that setting.

    python tests/torch_jobs/closed_loop.py OUT --fault collections [--planned-gc 200]
    python tests/torch_jobs/closed_loop.py OUT --fault sequences [--packer ranks]

Layers sleep for as long as the documents of their microbatch cost. `collections`: Python collects by itself, on each rank in steps
of its own. `sequences`: few documents are long. Leaves `rank-*.parquet` in OUT. Needs torch.
"""

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from ranks import joined, start_ranks
from torch import nn

from diagnose.packing import Cost, PackedBatchSampler
from diagnose.packing.forming import PackerName

FAULTS = ("collections", "sequences")
WIDTH, N_MICROBATCHES = 16, 2
#: Documents of a global batch, all ranks together.
N_DOCUMENTS = 48
#: Tokens of documents: a few are long. A long one costs as much again as its tokens at 4,000 of them.
SHORT, LONG, LONG_SHARE = (100, 600), (3000, 9000), 0.06
MAX_TOKENS = 20_000
COST = Cost(linear=1.0, quadratic=1.0 / 4000.0)
#: Seconds of a forward for a cost of 1,000: long, so that what else the machine does is short beside it.
SECONDS = 0.008
#: Of `collections`, whose microbatches are all alike.
EVEN_COST = 5_000
#: Lists on the heap of each rank, which every whole collection looks at, ...
N_OBJECTS = 100_000
#: ... and those that a step makes and keeps for some steps; Python collects all when a quarter more has come.
N_MADE, STEPS_KEPT = 12_000, 4


class _Sleeping(torch.autograd.Function):
    """Passes its input on, and the gradient of its output back, after a while."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2.0 * ctx.seconds)
        return grad, None


class Layer(nn.Module):
    """A tiny product, and sleep for the rest of its time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch):
        """Work on one microbatch: its rows, and what its documents cost."""
        x, cost = batch
        return _Sleeping.apply(torch.tanh(self.linear(x)), SECONDS * cost / 1000.0), cost


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--planned-gc", type=int)
    parser.add_argument("--packer", choices=get_args(PackerName))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    return parser.parse_args(arguments)


def draw_lengths(n_steps):
    """Draw the lengths of all documents, the same in each process."""
    rng = np.random.default_rng(11)
    n = n_steps * N_DOCUMENTS
    return np.where(rng.random(n) < LONG_SHARE, rng.integers(*LONG, n), rng.integers(*SHORT, n))


def main(arguments=None):
    """Start one process a rank and wait for all."""
    options = parse(arguments)
    start_ranks(run_rank, options.ranks, options, method="fork")


def run_rank(rank, port, options):
    """Train on one rank."""
    with joined(rank, port, options.ranks):
        if options.fault == "collections":
            gc.disable()
            heap = [[i] for i in range(N_OBJECTS)]
            gc.enable()
            train(options, ([0] for _ in range(options.steps * N_MICROBATCHES)), np.array([1]), rank)
            del heap
        else:
            lengths = draw_lengths(options.steps)
            train(options, deal(options, lengths, rank), lengths, rank)


def deal(options, lengths, rank):
    """Give the documents of each microbatch of this rank: as they come, or packed."""
    if options.packer:
        return PackedBatchSampler(
            lengths,
            batch_documents=N_DOCUMENTS,
            n_microbatches=N_MICROBATCHES,
            max_tokens=MAX_TOKENS,
            cost=COST,
            packer=options.packer,
            rank=rank,
            n_ranks=options.ranks,
            shuffle=False,
        )
    n = N_DOCUMENTS // (options.ranks * N_MICROBATCHES)
    order = np.arange(len(lengths)).reshape(-1, options.ranks, N_MICROBATCHES, n)
    return order[:, rank].reshape(-1, n).tolist()


def train(options, microbatches, lengths, rank):
    """Run the steps of one rank."""
    from diagnose.record import Recorder

    model = nn.parallel.DistributedDataParallel(Layer())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows, kept, microbatches = torch.randn(4, WIDTH), [], iter(microbatches)
    with Recorder(options.out, sample=1.0, planned_gc=options.planned_gc) as recorder:
        for _ in range(options.steps):
            with recorder.step():
                for microbatch in range(N_MICROBATCHES):
                    of_microbatch = lengths[next(microbatches)]
                    cost = float(COST.of(of_microbatch).sum())
                    if options.fault == "collections":
                        cost = EVEN_COST
                        kept.append([[i] for i in range((N_MADE + 4000 * rank) // N_MICROBATCHES)])
                        del kept[: -STEPS_KEPT * N_MICROBATCHES]
                    else:
                        recorder.microbatch(doc_lengths=of_microbatch.tolist())
                    model.require_backward_grad_sync = microbatch == N_MICROBATCHES - 1
                    model((rows, cost))[0].square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1:])
