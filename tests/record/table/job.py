"""What a rank of a job in the table does, whatever its framework: layers that sleep, data that are slow, saves, an evaluation.

Enters: the command line `OUT --fault NAME --steps N`, and the environment that torchrun sets. Leaves: `OUT/trace/rank-*.parquet`,
as the recorder writes it, and `OUT/seen-<rank>.json`: when each step began its first forward by the job's own clock, and for how
long it read examples before that. Needs torch.

Layers sleep within autograd functions. Four processes that really computed would time each other on a machine of few cores.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

from tests.record.table.fault import FAULTS
from tests.record.table.framework import Framework
from tests.record.table.plan import Plan

WIDTH = 16
#: Examples of one microbatch.
BATCH = 4
#: Layers of a model chunk; FSDP waits in each.
N_LAYERS = 3
#: What a job may ask for beyond its steps.
SPARE_STEPS = 20


class Job:
    """One rank of one job.

    Parameters
    ----------
    framework : Framework
    fault : str
        One of `FAULTS`.
    out : path
        Folder of the job.
    rank : int, optional
        `RANK` of the environment when left out.
    """

    def __init__(self, framework: Framework, fault: str, out: Path, rank: int | None = None) -> None:
        self.plan = Plan(framework, FAULTS[fault])
        self.framework = framework
        self.fault = FAULTS[fault]
        self.out = Path(out)
        self.rank = int(os.environ["RANK"]) if rank is None else rank
        self.world_size = len(framework.places)
        self.dp_rank, self.stage = framework.places[self.rank]
        self.n_steps = self.plan.n_steps
        #: Backwards until the optimizer runs; 1 but where gradients are accumulated.
        self.accumulate = self.plan.accumulate
        self.pace = _Pace(self)
        torch.set_num_threads(1)
        torch.manual_seed(0)

    @classmethod
    def from_command_line(cls, framework: Framework) -> "Job":
        """Read what the launcher said."""
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("out", type=Path)
        parser.add_argument("--fault", choices=FAULTS, default="healthy")
        parser.add_argument("--steps", type=int, default=framework.steps)
        options = parser.parse_args()
        return cls(dataclasses.replace(framework, steps=options.steps), options.fault, options.out)

    @property
    def trace(self) -> Path:
        """Say where the recorder writes."""
        return self.out / "trace"

    def model(self, chunk: int = 0) -> nn.Sequential:
        """Make the layers of one model chunk; rows of `WIDTH` numbers go in and come out."""
        return nn.Sequential(*[Layer(self, is_first=chunk == 0 and n == 0) for n in range(N_LAYERS)])

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Compute the loss, which is long where that is the fault."""
        forward_s, backward_s = self.plan.loss_s
        if forward_s and output.device.type != "meta":
            output = _Sleep.apply(output, forward_s, backward_s)
        return ((output - target) ** 2).mean()

    def dataset(self) -> "Examples":
        """Give the examples that this rank trains on, as slow as its fault makes them; also where they are shared out."""
        examples = self.framework.microbatches * BATCH
        n_batches = (self.n_steps + SPARE_STEPS) * self.accumulate * len({dp for dp, _ in self.framework.places})
        seconds = self.plan.load_s(self.rank) / examples / self.accumulate
        return Examples(n_batches * examples, seconds, self.pace.note_reading)

    def evaluation_dataset(self) -> "Examples":
        """Give the examples of an evaluation."""
        ranks = len({dp for dp, _ in self.framework.places})
        return Examples(max(self.fault.evaluate, 1) * self.framework.microbatches * BATCH * ranks, 0.0)

    @property
    def loader_options(self) -> dict[str, int]:
        """Say what a `DataLoader` gets: the batch size of a rank's microbatch (of its step, in a pipeline), and its workers."""
        return {"batch_size": self.framework.microbatches * BATCH, "num_workers": self.fault.workers}

    def loader(self) -> torch.utils.data.DataLoader:
        """Make the loader of this rank, where it has one of its own."""
        return torch.utils.data.DataLoader(self.dataset(), **self.loader_options)

    def evaluates_after(self, step: int) -> bool:
        """True where an evaluation follows a step."""
        return self.plan.is_due(self.fault.evaluate_every, step)

    def saves_after(self, step: int) -> bool:
        """True where a save follows a step."""
        return self.plan.is_due(self.fault.save_every, step)

    def save(self, state: object) -> None:
        """Save with `torch.save`, which takes its while."""
        torch.save([state, SlowToSave(self.plan.save_s)], self.out / f"state-{self.rank}.pt")

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> None:
        """Evaluate as a plain loop does."""
        model.eval()
        for batch in torch.utils.data.DataLoader(Examples(self.fault.evaluate * BATCH, 0.0), batch_size=BATCH):
            model(batch)
        model.train()

    @contextlib.contextmanager
    def recorder(self, **options):
        """Record, and leave at the end what the job itself saw."""
        from diagnose.record import Recorder

        with Recorder(self.trace, sample=1.0, **options) as recorder:
            yield recorder
        self.finish()

    def finish(self) -> None:
        """Leave what the job itself saw; `recorder` does it."""
        self.out.mkdir(parents=True, exist_ok=True)
        seen = {"starts_s": self.pace.starts_s, "reads_s": self.pace.reads_s[: len(self.pace.starts_s)]}
        (self.out / f"seen-{self.rank}.json").write_text(json.dumps(seen))


class _Pace:
    """Counts the training forwards of a rank, and so knows its step, whatever runs the loop."""

    def __init__(self, job: Job) -> None:
        self.microbatches = job.plan.microbatches
        self.n_forwards = 0
        self.starts_s: list[float] = []
        self.reads_s = [0.0]

    def skip(self, n_forwards: int) -> None:
        """Leave out forwards before the first step, by which a framework learns shapes; without gradients none count."""
        self.n_forwards -= n_forwards

    @property
    def step(self) -> int:
        """Say which step runs."""
        return max(self.n_forwards - 1, 0) // self.microbatches

    def begin_forward(self) -> bool:
        """Count a forward of a microbatch; true for the first of a step."""
        self.n_forwards += 1
        if self.n_forwards < 1 or (self.n_forwards - 1) % self.microbatches:
            return False
        self.starts_s.append(time.perf_counter())
        self.reads_s.append(0.0)
        return True

    def note_reading(self, seconds: float) -> None:
        """Note that an example was read, in this process."""
        self.reads_s[-1] += seconds


class _Sleep(torch.autograd.Function):
    """Passes its input on, and the gradient of its output back, after a while."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.backward_s)
        return grad, None, None


class Layer(nn.Module):
    """A tiny product, and sleep for the rest of its time; collections where they are the fault."""

    def __init__(self, job: Job, *, is_first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.job = [job]  # no part of the model: in a list it is neither saved nor copied to another type
        self.is_first = is_first

    def __deepcopy__(self, memo):
        """Share the job."""
        copied = Layer(self.job[0], is_first=self.is_first)
        copied.load_state_dict(self.state_dict())
        return copied

    def forward(self, x):
        """Work on one microbatch."""
        x = torch.tanh(self.linear(x))
        if x.device.type == "meta":
            return x
        job = self.job[0]
        plan, framework, is_training = job.plan, job.framework, torch.is_grad_enabled()
        if self.is_first and is_training and job.pace.begin_forward():
            collect(plan.collection_s(job.rank, job.pace.step))
        share = plan.slowdown(job.rank, job.pace.step) / N_LAYERS / framework.chunks
        return _Sleep.apply(x, share * framework.forward_s, share * framework.backward_s)


class _Garbage:
    """In a circle with itself; to collect it takes a while."""

    def __init__(self, seconds: float) -> None:
        self.circle = self
        self.seconds = seconds

    def __del__(self) -> None:
        time.sleep(self.seconds)


def collect(seconds: float) -> None:
    """Collect garbage, for so long."""
    if seconds:
        _Garbage(seconds)
        gc.collect(0)


class SlowToSave:
    """Takes a while to be pickled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self):
        time.sleep(self.seconds)
        return float, (self.seconds,)


class Examples(torch.utils.data.Dataset):
    """Rows of numbers, each of which may take a while to be read."""

    def __init__(self, n_examples: int, seconds: float, note=None) -> None:
        self.n_examples, self.seconds, self.note = n_examples, seconds, note

    def __len__(self) -> int:
        return self.n_examples

    def __getitem__(self, i):
        began = time.perf_counter()
        if self.seconds:
            time.sleep(self.seconds)
        if self.note is not None:
            self.note(time.perf_counter() - began)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(int(i)))
