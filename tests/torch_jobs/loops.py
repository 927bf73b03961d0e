"""Run a small training loop of one process under torch.profiler, as trainers write them, without annotations of our own.

    python tests/torch_jobs/loops.py closure --out /tmp/trace.json

Enters: a kind of loop. Leaves: one Kineto trace of ten iterations. Needs torch; runs on the CPU.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

WIDTH, ROWS, STEPS, WAIT = 192, 64, 10, 2


def make_model() -> nn.Sequential:
    """Make a model of six layers."""
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


class Loop:
    """One iteration of each kind of loop is a method; `step_profiler` is called where the trainer would do it."""

    def __init__(self) -> None:
        self.model, self.other = make_model(), make_model()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.second = torch.optim.SGD(self.other.parameters(), lr=0.01)
        self.batches = iter(DataLoader(TensorDataset(torch.randn(ROWS * 500, WIDTH)), batch_size=ROWS))
        self.step_profiler: Callable[[], Any] = lambda: None
        self.n = 0

    def loss(self) -> torch.Tensor:
        """Fetch a batch, and compute its loss."""
        return self.model(next(self.batches)[0]).square().mean()

    def plain(self) -> None:
        """Train as the tutorials do."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        self.step_profiler()

    def closure(self) -> None:
        """Train as Lightning does: forward and backward within the optimizer's step, the profiler stepped between them."""
        (batch,) = next(self.batches)

        def compute() -> torch.Tensor:
            loss = self.model(batch).square().mean()
            self.step_profiler()
            self.optimizer.zero_grad()
            loss.backward()
            return loss

        self.optimizer.step(compute)

    def accumulate(self) -> None:
        """Train as Hugging Face's Trainer does with accumulated gradients and a norm that is clipped."""
        for _ in range(3):
            (self.loss() / 3).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_profiler()

    def microbatches(self) -> None:
        """Step the profiler once a microbatch."""
        for last in (False, True):
            (self.loss() / 2).backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.step_profiler()

    def by_hand(self) -> None:
        """Update the weights without an optimizer."""
        self.loss().backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None

    def two_models(self) -> None:
        """Train two models in turn."""
        (batch,) = next(self.batches)
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.second.zero_grad()
        self.other(self.model(batch)).square().mean().backward()
        self.second.step()

    def evaluating(self) -> None:
        """Evaluate after every fourth step."""
        self.plain()
        self.n += 1
        if self.n % 4 == 0:
            with torch.no_grad():
                for _ in range(4):
                    self.loss().item()

    def recomputing(self) -> None:
        """Compute forwards anew within the backward."""
        self.optimizer.zero_grad()
        x = next(self.batches)[0].requires_grad_()
        for layer in self.model:
            x = checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()
        self.optimizer.step()
        self.step_profiler()

    def in_hooks(self) -> None:
        """Update each weight as soon as its gradient is there, within the backward."""
        if not self.n:
            each = {p: torch.optim.SGD([p], lr=0.01) for p in self.model.parameters()}

            def update(parameter: torch.Tensor) -> None:
                each[parameter].step()
                each[parameter].zero_grad()

            for parameter in each:
                parameter.register_post_accumulate_grad_hook(update)
        self.n += 1
        self.loss().backward()

    def lbfgs(self) -> None:
        """Ask for the loss several times a step."""
        if not self.n:
            self.optimizer = torch.optim.LBFGS(self.model.parameters(), max_iter=3)
        self.n += 1
        (batch,) = next(self.batches)

        def compute() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(batch).square().mean()
            loss.backward()
            return loss

        self.optimizer.step(compute)
        self.step_profiler()


def main() -> None:
    """Run a loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind")
    parser.add_argument("--out", required=True)
    parser.add_argument("--api", choices=["profiler", "steps", "autograd"], default="profiler")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loop = Loop()
    iterate = getattr(loop, options.kind)
    if options.api == "steps":
        when = schedule(wait=1, warmup=1, active=STEPS)
        with profile(
            activities=[ProfilerActivity.CPU],
            schedule=when,
            on_trace_ready=lambda found: found.export_chrome_trace(options.out),
        ) as profiler:
            loop.step_profiler = profiler.step
            for _ in range(STEPS + WAIT):
                iterate()
        return
    for _ in range(WAIT):
        iterate()
    whole = torch.autograd.profiler.profile(use_kineto=True) if options.api == "autograd" else profile()
    with whole as found:
        for _ in range(STEPS):
            iterate()
    found.export_chrome_trace(options.out)


if __name__ == "__main__":
    main()
