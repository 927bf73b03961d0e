"""The recorder in one process: what stops the host, steps that are sampled, and what happens when it fails."""

import contextlib
import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import diagnose

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from diagnose.record import Recorder  # noqa: E402 - only where there is torch
from diagnose.record.log import MANY  # noqa: E402 - the same


def read(folder):
    """Read what this process recorded."""
    return pq.read_table(next(folder.glob("start-*/rank-00000.parquet"))).to_pandas()


class Slow(torch.utils.data.Dataset):
    """Numbers that take a while to read."""

    def __init__(self, length=4, wait_s=0.003):
        self.length, self.wait_s = length, wait_s

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(self.wait_s)
        return torch.ones(2) * i


def train(weight, batch):
    """Do one step."""
    (weight * batch).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()


@pytest.fixture
def one_rank(tmp_path):
    """Make a process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_barrier_in_a_step(tmp_path, one_rank):
    """A collective without tensors, and without arguments, does not end the recording."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        for _ in range(3):
            with recorder.step():
                train(weight, torch.ones(2))
                torch.distributed.barrier()
    assert sorted(set(read(tmp_path / "trace").step)) == [0, 1, 2]


def test_a_step_may_be_a_function(tmp_path):
    """`recorder.step()` decorates, too: each call is a step."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:

        @recorder.step()
        def one():
            train(weight, torch.ones(2))

        one()
        one()
    assert sorted(set(read(tmp_path / "trace").step)) == [0, 1]


def waits_of(recorder):
    """Count what each compute of this step has waited for, of this rank's log."""
    return [len(compute.waits) for compute in recorder._log.step.computes]


def test_what_fsdp_waits_for(tmp_path):
    """A layer waits once before its forward, its backward and its gradients, whatever that calls, and where the job asks for it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
        for layer in model:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        fully_shard(model)
        with Recorder(tmp_path, sample=1.0) as recorder, recorder.step():
            model(torch.ones(2, 4)).sum().backward()
            assert waits_of(recorder) == [3, 3 + 2 + 1], (
                "the first layer's gradients, whose input has none, are reduced at the end"
            )
            model[0].unshard()
            model[1].unshard(async_op=True).wait()
            model(torch.ones(2, 4)).sum().backward()
            assert waits_of(recorder)[2:] == [1 + 2 + 3, 6], (
                "what is gathered at once is waited for at once, and the rest once more"
            )
            with pytest.raises(RuntimeError):
                model[1](torch.ones(2, 5))
            assert recorder._log.apart.on, "what comes after a forward that failed is noted"
    finally:
        torch.distributed.destroy_process_group()


def backwards_of_ddp(models):
    """Give the backwards of a step: the forward under `no_sync`, reduced or not, or beside that of a model that is not reduced."""
    first, second = models
    with first.no_sync():
        loss = first(torch.ones(1, 2)).sum()
    yield loss, False
    with first.no_sync():
        loss = first(torch.ones(1, 2)).sum()
    first.reducer.prepare_for_backward([])  # as `Accelerator.trigger_sync_in_backward` does, and Lightning
    yield loss, True
    output = first(torch.ones(1, 2))
    with second.no_sync():
        loss = second(output).sum()  # a generator's loss, for which its discriminator gets no gradients
    yield loss, True


def test_which_backwards_reduce(tmp_path, one_rank):
    """A backward reduces gradients at its end where DDP has prepared for it, whatever `no_sync` said in the last forward."""
    models = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2)) for _ in range(2)]
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step():
        for loss, reduces in backwards_of_ddp(models):
            n_before = len(recorder._log.step.collectives)
            loss.backward()
            noted = recorder._log.step.collectives[n_before:]
            assert [one.n_elements == MANY for one in noted] == [True] * reduces


def test_few_functions_are_called(tmp_path, one_rank):
    """A microbatch of DDP calls few functions of the recorder: each costs microseconds between computes."""
    called, ours = [], str(Path(diagnose.__file__).parent)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step(), model.no_sync():
        for _ in range(2):
            called.clear()
            gc.disable()  # a collection calls the recorder, too, whenever it comes
            sys.setprofile(lambda frame, event, _arg: called.append((frame.f_code.co_filename, event)))
            try:
                model(torch.ones(1, 2)).sum().backward()
            finally:
                sys.setprofile(None)
                gc.enable()
    assert 0 < sum(file.startswith(ours) and event == "call" for file, event in called) <= 11


def test_what_stops_the_host(tmp_path):
    """Collections, waits for input and saving are rows of their length, in the step they belong to."""
    weight = torch.ones(2, requires_grad=True)
    heap = [[i] for i in range(200_000)]
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        for step, batch in enumerate(torch.utils.data.DataLoader(Slow(), batch_size=None)):
            with recorder.step():
                train(weight, batch)
                if step == 1:
                    gc.collect()
                if step == 2:
                    torch.save(heap, tmp_path / "saved")
    rows = read(tmp_path / "trace")
    loads = rows[rows.optype == "data-load"]
    assert loads.step.tolist() == [1, 2, 3], "the first batch was asked for before the first step was known"
    assert (loads.duration >= 0.003).all()
    first = rows[rows.optype == "forward-compute"].set_index("step").start_ts
    assert (loads.set_index("step").start_ts < first.loc[1:]).all(), "a wait before a step belongs to it"
    collected = rows[(rows.optype == "gc") & (rows.step == 1)]
    assert collected.duration.max() > 0.001
    saved = rows[rows.optype == "checkpoint"]
    assert saved.step.tolist() == [2] and saved.duration.iloc[0] > 0.01


@pytest.mark.parametrize(("follows", "from_loader"), [(True, True), (False, True), (True, False)])
def test_what_is_computed_before_the_model(tmp_path, one_rank, follows, from_loader):
    """What a frozen teacher computes on a batch is work of its forward; where no loader gave one, it may be a wait for input."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        if follows:
            recorder.follow_optimizer()
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=None) if from_loader else torch.ones(4, 2):
            with contextlib.nullcontext() if follows else recorder.step():
                time.sleep(0.02)
                model(batch * torch.ones(2)).sum().backward()
                optimizer.step()
    rows = read(tmp_path / "trace")
    forwards = rows[rows.optype == "forward-compute"]
    assert len(forwards) == 4 and (forwards.duration.min() >= 0.02) == from_loader


def test_a_barrier_before_the_model(tmp_path, one_rank, monkeypatch):
    """What is computed on a batch before ranks wait for each other is work of the forward; what they wait is none."""
    barrier = torch.distributed.ProcessGroup.barrier
    monkeypatch.setattr(
        torch.distributed.ProcessGroup, "barrier", lambda *a, **more: time.sleep(0.2) or barrier(*a, **more)
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        recorder.follow_optimizer()
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=None):
            time.sleep(0.02)
            torch.distributed.barrier()
            model(batch * torch.ones(2)).sum().backward()
            optimizer.step()
    rows = read(tmp_path / "trace")
    assert 0.02 <= rows[rows.optype == "forward-compute"].duration.min() < 0.2


def diagnose_alone(folder, model):
    """Train in this process alone, with a loader that takes half of each step, and say what its trace tells."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(folder, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for batch in torch.utils.data.DataLoader(Slow(length=12, wait_s=0.04), batch_size=None):
            loss = model(batch).sum()
            time.sleep(0.04)
            loss.backward()
            optimizer.step()
    rows = read(folder)
    assert set(rows["rank"]) == set(rows.dp_rank) == {0} and set(rows.step) == set(range(12))
    found = diagnose.diagnose(folder)
    return found.verdict, found.causes[0].cause


def test_no_process_group(tmp_path):
    """A job of one process that makes no process group is recorded, and diagnosed as any other."""
    assert not torch.distributed.is_initialized()
    assert diagnose_alone(tmp_path, torch.nn.Linear(2, 1)) == ("straggling", "data-loading")


def test_a_world_of_one(tmp_path_factory, one_rank):
    """So is one whose process group has one rank."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    assert diagnose_alone(tmp_path_factory.mktemp("trace"), model) == ("straggling", "data-loading")


def test_a_step_without_wrappers(tmp_path):
    """A plain loop has a forward and a backward a call of `backward`, one after the other, and an optimizer."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path, sample=1.0) as recorder:
        for _ in range(2):
            with recorder.step():
                time.sleep(0.002)
                (weight * 2).sum().backward()
                train(weight, torch.ones(2))
    rows = read(tmp_path)
    one = rows[rows.step == 1].sort_values("start_ts")
    kinds = ["forward-compute", "backward-compute"] * 2 + ["optimizer"]
    assert one.optype.tolist() == kinds and one.mb_id.tolist() == [0, 0, 1, 1, -1]
    assert one.duration.iloc[0] >= 0.002
    assert ((one.start_ts + one.duration).iloc[:-1].to_numpy() <= one.start_ts.iloc[1:].to_numpy() + 1e-6).all()


def test_only_sampled_steps(tmp_path, monkeypatch):
    """The steps that are recorded are those the sampling names, counted from the first; their numbers are the job's."""
    from diagnose.record.sampling import Sampling

    monkeypatch.setattr(
        "diagnose.record.sampling.MAX_COST_SHARE", 1.0
    )  # on a loaded machine steps this short may cost too much
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path, sample=0.2) as recorder:
        for step in range(1000, 1300):
            with recorder.step(step):
                time.sleep(0.001)
                train(weight, torch.ones(2))
    expected = {1000 + step for step in range(300) if Sampling(0.2).span(step)[0] is not None}
    assert set(read(tmp_path).step) == expected and 210 < len(expected) < 230


def test_operations_of_ones_own(tmp_path):
    """A schedule that no hook knows names its operations itself, and autograd's are not counted beside them."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path, sample=1.0, stage=1, pp_size=2) as recorder, recorder.step():
        with recorder.operation("forward-compute", microbatch=3):
            loss = (weight * 2).sum()
        with recorder.operation("backward-compute", microbatch=3):
            loss.backward()
        for name in ("checkpoint", "rollout"):
            with recorder.operation(name):
                time.sleep(0.001)
    rows = read(tmp_path)
    assert rows.optype.tolist() == ["backward-compute", "forward-compute", "checkpoint", "rollout"]
    assert rows.mb_id.tolist() == [3, 3, -1, -1] and set(rows.stage) == {1}


def hooked():
    """List what the recorder puts its hooks around."""
    import torch.distributed as dist
    from torch.distributed.pipelining import schedules

    return [
        dist.Work.__dict__["wait"],
        dist.ProcessGroup.__dict__["allreduce"],
        torch.autograd.backward,
        torch.save,
        schedules._batch_p2p,
        torch.nn.parallel.DistributedDataParallel.forward,
        list(gc.callbacks),
    ]


def test_nothing_is_left_behind(tmp_path):
    """When it is closed every function is the one it was before, and the thread has ended."""
    before, threads = hooked(), threading.active_count()
    recorder = Recorder(tmp_path, sample=1.0)
    assert all(now is not then for now, then in zip(hooked()[:-1], before[:-1], strict=True))
    recorder.close()
    assert hooked() == before and threading.active_count() == threads


#: Nobody may write here, not even root, whom the rights of a folder do not stop.
READ_ONLY = "/sys/kernel"


@pytest.mark.parametrize(
    "below",
    [
        "a file",
        pytest.param(
            "a read-only folder", marks=pytest.mark.skipif(not Path(READ_ONLY).is_dir(), reason="Linux has one")
        ),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path, caplog, below):
    """A recorder that cannot start says so once, takes its hooks away, and lets the job train."""
    (tmp_path / "file").write_text("")
    folder = Path(READ_ONLY) if below == "a read-only folder" else tmp_path / "file"
    before = hooked()
    weight = torch.ones(2, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        recorder = Recorder(folder / "trace", sample=1.0)
    with recorder, recorder.step():
        train(weight, torch.ones(2))
    assert [record.name for record in caplog.records] == ["diagnose.record"]
    assert "the training is not affected" in caplog.text and hooked() == before
    assert weight.tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("part", ["nothing", "optimizer", "forward"])
def test_a_step_around_too_little(tmp_path, caplog, part):
    """Where `step` was never called, or not around the whole step, the job is told so when it ends."""

    def within(name):
        return recorder.step() if part == name else contextlib.nullcontext()

    weight = torch.zeros(2, requires_grad=True)
    with caplog.at_level(logging.WARNING), Recorder(tmp_path) as recorder:
        for _ in range(3):
            with within("forward"):
                loss = (weight * 2).sum()
            loss.backward()
            with within("optimizer"):
                torch.optim.SGD([weight], lr=0.1).step()
    assert "put all of a step" in caplog.text


def test_a_whole_step_is_enough(tmp_path, caplog):
    """Nobody is told anything who did it right, or whose job trains nothing."""
    weight = torch.zeros(2, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        with Recorder(tmp_path / "trains") as recorder, recorder.step():
            train(weight, torch.ones(2))
        with Recorder(tmp_path / "does not"), torch.no_grad():
            (weight * 2).sum()
    assert not caplog.records


def test_an_error_of_the_training(tmp_path):
    """What the training raises goes through the recorder as it was, and the steps after it are recorded."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path, sample=1.0) as recorder:
        for step in range(3):
            with pytest.raises(ZeroDivisionError) if step == 1 else recorder.step():
                if step == 1:
                    with recorder.step():
                        raise ZeroDivisionError
                train(weight, torch.ones(2))
    assert set(read(tmp_path).step) == {0, 2}


def test_saving_beside_the_training(tmp_path):
    """What another thread saves or reads ahead stops nobody, and is no evidence."""
    heap, weight = [[i] for i in range(50_000)], torch.ones(2, requires_grad=True)

    def beside():
        torch.save(heap, tmp_path / "saved")
        list(torch.utils.data.DataLoader(Slow(), batch_size=None))

    with Recorder(tmp_path / "trace", sample=1.0) as recorder, recorder.step():
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        train(weight, torch.ones(2))
    assert not {"checkpoint", "data-load"} & set(read(tmp_path / "trace").optype)


def test_compiled_code(tmp_path):
    """Code that is compiled as a whole still is in a recorded step: the compiler sees no hook."""

    def clipped(parameter):
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        return parameter * 2

    weight = torch.ones(2)
    weight.grad = torch.full((2,), 3.0)
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step():
        compiled = torch.compile(clipped, backend="eager", fullgraph=True)
        assert compiled(weight).tolist() == [2.0, 2.0]
        assert recorder._is_on
    assert weight.grad.norm() == pytest.approx(1.0)


def test_hooked_functions_are_pickled(tmp_path):
    """What holds a hooked function, as an argument of a process to be spawned may, can be pickled as before."""
    with Recorder(tmp_path, sample=1.0):
        pickled = pickle.dumps([torch.save, torch.nn.utils.clip_grad_norm_])
    assert pickle.loads(pickled) == [torch.save, torch.nn.utils.clip_grad_norm_]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_worker(tmp_path):
    """A process that the job forks within a recorded step looks at nothing, and leaves the parent's recording alone."""
    weight = torch.ones(2, requires_grad=True)
    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step():
        child = os.fork()
        if not child:
            log = recorder._log
            os._exit(int(log.inside.on or log.beside.on or log.always.on or recorder._is_on))
        assert os.waitpid(child, 0)[1] == 0
        train(weight, torch.ones(2))
    assert "optimizer" in set(read(tmp_path).optype)


def test_nobody_closes_it(tmp_path):
    """A job that ends without closing its recorder ends as it would, and leaves its file."""
    job = "from diagnose.record import Recorder; r = Recorder({!r}, sample=1.0)\nwith r.step(): r._log.end(r._log.begin(0, 0))"
    command = [sys.executable, "-c", job.format(str(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "") and len(read(tmp_path)) == 1


def test_lengths_on_the_gpu(tmp_path, caplog):
    """Lengths that are on the GPU are refused instead of waited for, and the job goes on."""

    class OnGpu:
        """A number that must not be read."""

        is_cuda = True

        def __int__(self):
            pytest.fail("this waits for the GPU")

    with Recorder(tmp_path, sample=1.0) as recorder, recorder.step():
        recorder.microbatch(doc_lengths=[OnGpu()])
    assert "on the GPU" in caplog.text
