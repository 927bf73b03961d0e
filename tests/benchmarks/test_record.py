"""What recording costs: the same training with and without, in one process, steps in random order.

Run with `pytest tests/benchmarks/test_record.py --benchmarks -s`; needs torch. Steps compute all the time, so the processor's time
of the whole process, the recorder's thread included, is the step time on a machine that runs nothing else. No time is asserted.
"""

import gc
import random
import statistics
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

pytestmark = pytest.mark.benchmark
#: Steps each way of running.
N_ROUNDS = 60
#: What others on the machine do makes steps longer, never shorter: the quickest are compared.
QUICKEST = 12
WAYS = ("without", "hooked", "recorded")
N_MICROBATCHES = 8
WIDTH = 256


def layers(n):
    """Make a small model."""
    return torch.nn.Sequential(
        *[
            torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(n)
        ]
    )


def data_parallel():
    """Give one step of DDP: eight microbatches, gradients reduced after the last."""
    model = torch.nn.parallel.DistributedDataParallel(layers(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(128, WIDTH)

    def step():
        for microbatch in range(N_MICROBATCHES):
            model.require_backward_grad_sync = microbatch == N_MICROBATCHES - 1
            (model(data) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline():
    """Give one step of an interleaved pipeline of four stages, all on this rank."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    stages = [PipelineStage(layers(2), i, 4, torch.device("cpu"), group=dist.group.WORLD) for i in range(4)]
    schedule = ScheduleInterleaved1F1B(
        stages, n_microbatches=N_MICROBATCHES, loss_fn=lambda output, target: ((output - target) ** 2).mean()
    )
    data = torch.randn(128 * N_MICROBATCHES, WIDTH)

    def step():
        schedule.step(data, target=data)

    return step


@pytest.mark.parametrize("make", [data_parallel, pipeline])
def test_overhead(make, tmp_path):
    """Prints the step time without the recorder, and how much longer steps are with its hooks and while they are recorded."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        step = make()
        for _ in range(4):
            step()
        spent = measure(step, tmp_path / "trace")
    finally:
        dist.destroy_process_group()
    quick_s = {way: statistics.mean(sorted(times)[:QUICKEST]) for way, times in spent.items()}
    usual = f"{1e3 * quick_s['without']:.1f} ms a step without the recorder"
    print(f"\n{make.__name__}: {usual}; the {QUICKEST} quickest of {N_ROUNDS} steps")
    excess = {way: quick_s[way] / quick_s["without"] - 1 for way in WAYS[1:]}
    for way, share in excess.items():
        print(f"  {way}: {share:+.2%}")
    print(f"  one step in ten recorded: {0.9 * excess['hooked'] + 0.1 * excess['recorded']:+.3%}")
    assert all(len(times) == N_ROUNDS for times in spent.values())


def measure(step, folder):
    """Give the processor's seconds of each step, by way: all ways once a round, in random order."""
    from diagnose.record import Recorder

    order = random.Random(0)
    spent = {way: [] for way in WAYS}
    gc.collect()
    gc.disable()
    for _ in range(N_ROUNDS):
        for way in order.sample(WAYS, len(WAYS)):
            recorder = None if way == "without" else Recorder(folder, sample=1.0 if way == "recorded" else 1e-6)
            began = time.process_time()
            if recorder is None:
                step()
            else:
                with recorder.step(1):
                    step()
            spent[way].append(time.process_time() - began)
            if recorder is not None:
                recorder.close()
    gc.enable()
    return spent
