"""What recording costs: a call of a hook, and the same training with and without the recorder, in one process.

Run with `pytest tests/benchmarks/test_record.py --benchmarks -s`; needs torch. Times are the processor's, of the training's thread
alone; where there is a GPU it computes, and seconds until it has done all stand beside them. Steps that are recorded and steps that
are not follow each other in random order, and so do two that are not, whose difference is the noise. `AGAINST=FOLDER` names a
folder with the `diagnose` package of an older version, for `-k within_hooks`. No time is asserted.
"""

import collections
import contextlib
import functools
import importlib
import os
import random
import re
import shutil
import statistics
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

pytestmark = pytest.mark.benchmark
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
CLOCKS = ("of the thread", "until the GPU has done all") if DEVICE == "cuda" else ("of the thread",)
#: So long steps of each kind take turns.
MEASURED_S = 120.0
N_MICROBATCHES = 8
WIDTH = 128
#: Steps, or rounds of steps of each kind, in which hooks are timed, and steps before them.
N_STEPS, N_WARM = 100, 10
#: Calls timed at once, and how often: the quickest is what a call takes where nothing else runs.
N_CALLS, N_REPEATS = 400, 1500


def layers(n):
    """Make a small model."""
    return torch.nn.Sequential(
        *[
            torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(n)
        ]
    ).to(DEVICE)


def data_parallel():
    """Give one step of DDP with 12 layers: gradients reduced after the last of the microbatches."""
    model = torch.nn.parallel.DistributedDataParallel(layers(12))

    def is_last(microbatch):
        model.require_backward_grad_sync = microbatch == N_MICROBATCHES - 1

    return training(model, is_last)


def sharded():
    """Give one step of FSDP2 with 24 layers: parameters gathered and gradients scattered in each of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh(DEVICE, (2,)), layers(24)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return training(fully_shard(model, mesh=mesh), lambda _: None)


def training(model, before):
    """Give one step of some microbatches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(32, WIDTH, device=DEVICE)

    def step():
        for microbatch in range(N_MICROBATCHES):
            before(microbatch)
            (model(data) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline():
    """Give one step of an interleaved pipeline of four stages, all on this rank."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    stages = [PipelineStage(layers(2), i, 4, torch.device(DEVICE), group=dist.group.WORLD) for i in range(4)]
    schedule = ScheduleInterleaved1F1B(
        stages, n_microbatches=N_MICROBATCHES, loss_fn=lambda output, target: ((output - target) ** 2).mean()
    )
    data = torch.randn(32 * N_MICROBATCHES, WIDTH, device=DEVICE)

    def step():
        schedule.step(data, target=data)

    return step


def join(make, folder):
    """Make the process group: FSDP gathers nothing alone, so its peer is one whose collectives take no time."""
    import torch.distributed as dist

    if make is sharded:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    else:
        dist.init_process_group(BACKEND, init_method=f"file://{folder / 'store'}", rank=0, world_size=1)


@pytest.mark.parametrize("make", [data_parallel, sharded, pipeline])
def test_overhead(make, tmp_path):
    """Prints the step time where nothing is recorded, and how much longer steps are that are recorded."""
    import torch.distributed as dist

    from diagnose.record import Recorder

    torch.set_num_threads(1)
    join(make, tmp_path)
    recorder = Recorder(tmp_path / "trace", sample=1.0)
    ways, rng, rounds = {"without": None, "noise": None, "recorded": recorder}, random.Random(1), []
    try:
        step = make()
        for _ in range(N_WARM):
            one_round(step, ways, rng)
        ends = time.monotonic() + MEASURED_S
        while len(rounds) < 2 or time.monotonic() < ends:
            rounds.append(one_round(step, ways, rng))
    finally:
        recorder.close()
        dist.destroy_process_group()
    for clock, of_what in enumerate(CLOCKS):
        usual_s = statistics.median(found["without"][clock] for found in rounds)
        print(f"\n{make.__name__}: {1e3 * usual_s:.1f} ms {of_what} a step that is not recorded; {len(rounds)} rounds")
        for way in ("noise", "recorded"):
            more_s, error_s = middle([found[way][clock] - found["without"][clock] for found in rounds])
            print(f"  {way}: {1e3 * more_s:+.3f} +- {1e3 * error_s:.3f} ms a step ({more_s / usual_s:+.2%})")


def middle(values):
    """Give the median, and its standard error where values are distributed normally."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, 0.93 * (high - low) / len(values) ** 0.5


def one_round(step, ways, rng):
    """Give the seconds of a step, of the thread and until all is done, by way, in random order."""
    found = {}
    for way in rng.sample(list(ways), len(ways)):
        settle()
        began, began_s = time.thread_time(), time.perf_counter()
        with ways[way].step() if ways[way] else contextlib.nullcontext():
            step()
        took_s = time.thread_time() - began
        settle()
        found[way] = took_s, time.perf_counter() - began_s
        rest(ways[way])
    return found


def rest(recorder):
    """Have a recorder note nothing until it is told of its next step."""
    for name in ("inside", "apart", "beside") if recorder else ():
        getattr(recorder._log, name, recorder._log.inside).on = False


@pytest.mark.skipif("AGAINST" not in os.environ, reason="AGAINST names no older version")
@pytest.mark.parametrize("make", [data_parallel, sharded, pipeline])
def test_within_hooks(make, tmp_path, monkeypatch):
    """Prints what the hooks of this version and of an older take more of a step that they record than of one that they do not.

    Both are in place in one process. What they call is taken out, and what it takes to measure that is in both.
    """
    import torch.distributed as dist

    import diagnose.record

    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(tmp_path)
    older = import_older(Path(os.environ["AGAINST"]), tmp_path / "older_diagnose")
    taken_ns = [0]
    for package in (diagnose.record, older):
        time_hooks(monkeypatch, importlib.import_module(f"{package.__name__}.hooks").Hooks, taken_ns)
    join(make, tmp_path)
    ways = {
        name: package.Recorder(tmp_path / name, sample=1.0)
        for name, package in (("now", diagnose.record), ("older", older))
    }
    ways["now"]._steps._measure = lambda **_: None  # else it measures itself in some steps
    rounds, rng = [], random.Random(1)
    try:
        step = make()
        for _ in range(N_WARM + N_STEPS):
            found = {}
            for way in rng.sample(["off", *ways], 3):
                before_ns = taken_ns[0]
                within = timed(ways[way].step, taken_ns)() if way in ways else contextlib.nullcontext()
                timed(within.__enter__, taken_ns)()
                step()
                timed(within.__exit__, taken_ns)(None, None, None)
                found[way] = (taken_ns[0] - before_ns) / 1e3
                rest(ways.get(way))
            rounds.append(found)
    finally:
        for recorder in ways.values():
            recorder.close()
        dist.destroy_process_group()
    print(f"\n{make.__name__}, us of a recorded step within hooks:")
    for way in ways:
        print("  {}: {:.0f} +- {:.0f}".format(way, *middle([found[way] - found["off"] for found in rounds[N_WARM:]])))
    shares = [(found["now"] - found["off"]) / (found["older"] - found["off"]) for found in rounds[N_WARM:]]
    print("  now / older, of each round: {:.2f} +- {:.2f}".format(*middle(shares)))


def import_older(folder, copy):
    """Import the recorder of an older version under another name, beside the one of now."""
    shutil.copytree(folder / "diagnose", copy)
    for path in copy.rglob("*.py"):
        path.write_text(re.sub(r"\b(from|import) diagnose\b", rf"\1 {copy.name}", path.read_text()))
    return importlib.import_module(f"{copy.name}.record")


def time_hooks(monkeypatch, hooks, taken_ns):
    """Have all hooks add what they take, without what they are put around."""
    around, guarded = hooks.around, hooks.guarded

    def timed_around(self, owner, name, *more):
        if hasattr(owner, name):
            setattr(owner, name, timed(getattr(owner, name), taken_ns, -1))
            around(self, owner, name, *more)
            setattr(owner, name, timed(getattr(owner, name), taken_ns))

    monkeypatch.setattr(hooks, "around", timed_around)
    monkeypatch.setattr(hooks, "guarded", lambda *more: timed(guarded(*more), taken_ns))


def timed(function, taken_ns, sign=1):
    """Make a function that does the same, and adds what that takes."""

    @functools.wraps(function, updated=())
    def call(*args, **kwargs):
        began = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            taken_ns[0] += sign * (time.perf_counter_ns() - began)

    return call


def settle():
    """Wait until the GPU has done all, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("make", [data_parallel, sharded, pipeline])
def test_cost_by_hook(make, tmp_path):
    """Prints what each hook takes where it stands: between computes, which leave nothing of it in the processor's caches."""
    import torch.distributed as dist

    from diagnose.record import Recorder

    torch.set_num_threads(1)
    join(make, tmp_path)
    found, of_steps_us, steps_ms = collections.defaultdict(list), [], []
    try:
        step = make()
        with Recorder(tmp_path / "trace", sample=1.0) as recorder:

            def timed(function):
                def call(*args, **kwargs):
                    began = time.perf_counter_ns()
                    try:
                        return function(*args, **kwargs)
                    finally:
                        took_ns = time.perf_counter_ns() - began
                        recorder._cost.taken_ns += took_ns
                        found[function.__qualname__].append(took_ns)

                return call

            for n in range(N_WARM + N_STEPS):
                if n == N_WARM:
                    recorder._hooks.timed = timed
                    recorder._hooks.time(True)
                before_ns, began = recorder._cost.taken_ns, time.perf_counter()
                with recorder.step():
                    step()
                steps_ms.append(1e3 * (time.perf_counter() - began))
                of_steps_us.append((recorder._cost.taken_ns - before_ns) / 1e3)
    finally:
        dist.destroy_process_group()
    low, median, high = statistics.quantiles(of_steps_us[N_WARM:], n=4)
    usual_ms = statistics.median(steps_ms[N_WARM:])
    print(
        f"\n{make.__name__}: {median:.0f} us (quartiles {low:.0f} and {high:.0f}) in a recorded step of {usual_ms:.1f} ms"
    )
    for name, took_ns in sorted(found.items(), key=lambda item: -sum(item[1])):
        calls = len(took_ns) / N_STEPS
        print(f"  {name:60} {calls:6.1f} calls a step, {statistics.median(took_ns) / 1e3:6.1f} us each")
    assert len(of_steps_us) == N_WARM + N_STEPS and found


def test_calls():
    """Prints what a call of a hook takes: in a step that is not recorded, for a wait of FSDP, and for a microbatch."""
    from diagnose.model.optype import Op
    from diagnose.record.clock import Clock, Window
    from diagnose.record.data_parallel import Autograd
    from diagnose.record.graphs import keep_out_compiler
    from diagnose.record.hooks import Hooks
    from diagnose.record.log import Log

    class Hooked:
        """What is hooked does nothing."""

        def forward(self):
            """A forward."""

        def backward(self, loss):
            """A backward."""

        def unshard(self):
            """A wait for parameters."""

    log, hooks = Log(Clock()), Hooks(pytest.fail)
    keep_out_compiler(hooks, torch)
    autograd = Autograd(log)
    log.is_grad_enabled = torch.is_grad_enabled
    hooked, loss = Hooked(), torch.ones(())
    plain_ns = quickest_ns(hooked.unshard)
    hooks.around(Hooked, "unshard", log.inside, autograd.begin_wait, autograd.end_wait)
    hooks.around(Hooked, "forward", log.inside, autograd.before_replica, autograd.after_replica)
    hooks.around(
        Hooked, "backward", log.inside, lambda _, loss: autograd.before_backward(loss), autograd.after_backward
    )
    off_ns = quickest_ns(hooked.unshard)
    log.open(0, Window())
    running = log.begin(Op.FORWARD, 0)
    wait_ns = quickest_ns(hooked.unshard, running.waits.clear)
    log.end(running)
    log.step.computes.clear()

    def microbatch():
        hooked.forward()
        hooked.backward(loss)

    microbatch_ns = quickest_ns(microbatch, log.step.computes.clear, n_calls=N_MICROBATCHES) - 2 * plain_ns
    hooks.undo()
    print(f"\na hook that is off: {off_ns - plain_ns:.0f} ns; a wait of FSDP: {wait_ns - plain_ns:.0f} ns")
    print(f"a microbatch of DDP, forward and backward: {microbatch_ns:.0f} ns")
    assert off_ns > 0 and wait_ns > 0 and microbatch_ns > 0


def quickest_ns(call, before=lambda: None, n_calls=N_CALLS):
    """Give the nanoseconds of a call: the least of many tries."""
    least = float("inf")
    for _ in range(N_REPEATS):
        before()
        began = time.perf_counter_ns()
        for _ in range(n_calls):
            call()
        least = min(least, time.perf_counter_ns() - began)
    return least / n_calls
