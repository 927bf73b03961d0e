"""A data-parallel job of two processes (gloo) whose modules are in training or evaluation mode as frameworks and people leave them.

A program: `python tests/torch_jobs/modes.py OUT WRAPPER`. Needs torch. Leaves a trace of each mode and way in OUT/MODE/WAY.
"""

import copy
import sys

import torch
from data_parallel import wrap
from ranks import joined, start_ranks
from torch import nn

N_STEPS, EVERY, N_RANKS, N_MICROBATCHES, N_EVALUATED = 6, 3, 2, 2, 2
#: Modes in which something is evaluated after every third step, and those in which nothing ever is.
EVALUATE = ("wrapper-left", "inner", "with-gradients", "frozen-layers-with-gradients")
NEVER = ("frozen-layers", "tuned", "teacher", "own-teacher")
#: Who says what a step is: the optimizer, or the loop.
WAYS = ("follow", "named")


def main(out, wrapper):
    """Start one process a rank and wait for all."""
    start_ranks(run_rank, N_RANKS, out, wrapper)


def batches(n):
    """Give a loader of so many batches."""
    return torch.utils.data.DataLoader(torch.randn(4 * n, 16), batch_size=4)


def run_rank(rank, port, out, wrapper):
    """Train in all modes on one rank."""
    with joined(rank, port, N_RANKS):
        for mode in EVALUATE + NEVER:
            for way in WAYS:
                train(f"{out}/{mode}/{way}", wrapper, mode, way)


def train(out, wrapper, mode, way):
    """Train in one mode."""
    from diagnose.record import Recorder

    with Recorder(out, sample=1.0) as recorder:
        inner = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.LayerNorm(16))
        teacher = copy.deepcopy(inner).eval() if mode == "teacher" else None
        model = wrap(inner, wrapper)
        if mode == "tuned":
            model.eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if way == "follow":
            recorder.follow_optimizer()
        for step in range(N_STEPS):
            if way == "named":
                recorder.begin_step()
            if mode.startswith("frozen-layers"):
                model.train()
                inner[1].eval()
                inner[3].eval()
            for batch in batches(N_MICROBATCHES):  # a loader of its own each time, as in each epoch
                loss = model(batch).square().mean()
                if mode.endswith("teacher"):
                    with torch.no_grad():
                        target = (teacher or model)(batch)
                    loss = loss + (target - batch).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if way == "named":
                recorder.end_step()
            if mode in EVALUATE and step % EVERY == EVERY - 1:
                evaluate(model, inner, mode)


def evaluate(model, inner, mode):
    """Evaluate, and switch back as this mode does."""
    (inner if mode == "inner" else model).eval()
    for batch in batches(N_EVALUATED):
        with torch.set_grad_enabled(mode.endswith("-gradients")):
            model(batch)
    (model if mode == "with-gradients" else inner).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
