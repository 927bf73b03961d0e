"""A real `torch.distributed.pipelining` job of a few processes on this machine (gloo), with a fault if asked.

Layers sleep and multiply tiny matrices: on two cores four processes that really computed would time each other and not their
own work. A program, not a test: `python tests/torch_jobs/pipeline.py OUT --schedule 1f1b --fault slow-stage`. Needs torch.

Leaves `rank-*.parquet` in OUT, unless `--no-record`, and with `--profile DIR` Chrome traces of torch.profiler, `DIR/rank*.json`.
"""

import argparse
import contextlib
import gc
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from links import make_posts, slow_down
from ranks import joined, start_ranks
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
CHUNKED = ("interleaved", "zero-bubble", "zbv", "dualpipev")
#: These place the chunks of a rank at both ends of the model.
V_SHAPED = ("zbv", "dualpipev")
FAULTS = ("none", "slow-stage", "slow-worker", "slow-link", "long-loss", "gc", "slow-loader", "checkpoint")
WIDTH = 16
#: Seconds of one stage's forward; the gradients of its input and of its weights take as long each.
FORWARD_S = 0.016
#: What a fault adds to that, as a factor.
SLOW = 1.8
#: How many forwards a message takes on the slow link.
LATE = 4.0
#: Objects on the heap of every rank where collections are the fault: a full collection of them takes some 40 ms.
N_OBJECTS = 300_000
#: A collection every so many steps on a rank, each rank in other steps.
COLLECT_EVERY = 3


class _Sleeping(torch.autograd.Function):
    """Passes its input on, and the gradient of its output back, after a while."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class _SleepingForWeights(torch.autograd.Function):
    """Passes weights on, and takes a while for their gradients: where a schedule computes these apart, it is then."""

    @staticmethod
    def forward(ctx, weight, seconds):
        ctx.seconds = seconds
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class Layers(nn.Module):
    """The layers of one stage: a tiny product, and sleep for the rest of their time."""

    def __init__(self, seconds, collect):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = seconds
        self.collect = collect

    def forward(self, x):
        """Work on one microbatch."""
        with torch.profiler.record_function("layers"):
            if self.collect():
                gc.collect()
            weight = _SleepingForWeights.apply(self.linear.weight, self.seconds)
            product = nn.functional.linear(x, weight, self.linear.bias)
            return _Sleeping.apply(torch.tanh(product), self.seconds)


class Numbers(torch.utils.data.Dataset):
    """Inputs of one step each, which a slow disk may keep waiting."""

    def __init__(self, n_steps, rows, wait_s):
        self.n_steps, self.rows, self.wait_s = n_steps, rows, wait_s

    def __len__(self):
        return self.n_steps

    def __getitem__(self, i):
        time.sleep(self.wait_s)
        return torch.randn(self.rows, WIDTH, generator=torch.Generator().manual_seed(i))


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument(
        "--place",
        type=int,
        default=1,
        help="pipeline rank of slow-stage, rank of slow-worker and slow-loader, pipeline rank at which slow-link begins",
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dp", type=int, default=1, help="data-parallel replicas among the ranks")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--forward-s", type=float, default=FORWARD_S)
    parser.add_argument("--profile", type=Path, help="folder for the Chrome traces of torch.profiler")
    parser.add_argument("--no-norm", action="store_true", help="no norm over all stages closes the step")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--sample", type=float, default=1.0)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Start one process a rank and wait for all."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    start_ranks(run_rank, options.ranks, options, make_posts(), method="fork")


def run_rank(rank, port, options, posts):
    """Train on one rank."""
    with joined(rank, port, options.ranks):
        pp = options.ranks // options.dp
        # Data-parallel ranks lie side by side, as in Megatron-LM: rank = stage * dp + dp_rank.
        stage_rank, dp_rank = divmod(rank, options.dp)
        if options.fault == "slow-link":
            slow_down(LATE * options.forward_s, (options.place * options.dp, (options.place + 1) * options.dp), posts)
        pipes = [dist.new_group([s * options.dp + d for s in range(pp)]) for d in range(options.dp)]
        peers = [dist.new_group([s * options.dp + d for d in range(options.dp)]) for s in range(pp)]
        train(rank, options, stage_rank, dp_rank, pipes[dp_rank], peers[stage_rank])


def train(rank, options, stage_rank, dp_rank, pipe, peers):
    """Run the steps of one rank, recorded and profiled as asked."""
    pp = options.ranks // options.dp
    random_steps = random.Random(rank)
    now = {"step": -1, "collect": False}
    heap = [[i] for i in range(N_OBJECTS)] if options.fault == "gc" else []
    if heap:
        gc.disable()  # what collects is the fault alone

    def collect():
        if now["collect"] and random_steps.random() < 0.3:
            now["collect"] = False
            return True
        return False

    n_chunks = 2 if options.schedule in CHUNKED else 1
    seconds = options.forward_s / n_chunks
    if (options.fault == "slow-stage" and stage_rank == options.place) or (
        options.fault == "slow-worker" and rank == options.place
    ):
        seconds *= SLOW
    places = [chunk * pp + stage_rank for chunk in range(n_chunks)]
    if options.schedule in V_SHAPED:
        places = [stage_rank, 2 * pp - 1 - stage_rank]
    stages = [
        PipelineStage(Layers(seconds, collect), place, n_chunks * pp, torch.device("cpu"), group=pipe)
        for place in places
    ]
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)

    def loss_fn(output, target):
        if options.fault == "long-loss":
            output = _Sleeping.apply(output, (SLOW - 1) * options.forward_s)
        return ((output - target) ** 2).mean()

    schedule = SCHEDULES[options.schedule](
        stages if options.schedule in CHUNKED else stages[0], n_microbatches=options.microbatches, loss_fn=loss_fn
    )
    rows = 4 * options.microbatches
    slow_loader = options.fault == "slow-loader" and rank == options.place
    loader = torch.utils.data.DataLoader(
        Numbers(options.steps, rows, 5 * options.forward_s if slow_loader else 0.0), batch_size=None
    )
    with _profiler(rank, options) as profiler, _recorder(options) as recorder:
        batches = iter(loader)
        for step in range(options.steps):
            with recorder.step() if recorder else contextlib.nullcontext():
                batch = next(batches)
                now.update(step=step, collect=bool(heap) and (step + rank) % COLLECT_EVERY == 0)
                schedule.step(
                    *([batch] if stage_rank == 0 else []), **({"target": batch} if n_chunks * pp - 1 in places else {})
                )
                if options.dp > 1:
                    for p in parameters:
                        dist.all_reduce(p.grad, group=peers)
                if not options.no_norm:
                    _clip(parameters)
                optimizer.step()
                optimizer.zero_grad()
                if options.fault == "checkpoint" and step % 4 == 3:
                    torch.save([p.detach() for p in parameters], options.out / f".checkpoint-{rank}")
            if profiler:
                profiler.step()


def _clip(parameters):
    """Clip gradients by their norm over all stages and replicas: it closes the step on every rank at once."""
    gradients = [p.grad for p in parameters]
    norm = torch.nn.utils.get_total_norm(gradients) ** 2
    dist.all_reduce(norm)
    torch.nn.utils.clip_grads_with_norm_(parameters, 10.0, norm**0.5)


@contextlib.contextmanager
def _profiler(rank, options):
    """Profile all steps and write a Chrome trace, if asked."""
    if not options.profile:
        yield None
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield profiler
    options.profile.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(options.profile / f"rank{rank}.json"))


def _recorder(options):
    """Make the recorder, if asked."""
    if options.no_record:
        return contextlib.nullcontext()
    from diagnose.record import Recorder

    return Recorder(options.out, sample=options.sample)


if __name__ == "__main__":
    main(sys.argv[1:])
