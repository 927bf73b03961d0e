"""Where steps begin and end, in loops of one process as people write them."""

import contextlib
import gc
import time

import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from diagnose.record import Recorder  # noqa: E402 - only where there is torch

FORWARD, BACKWARD, OPTIMIZER = "forward-compute", "backward-compute", "optimizer"


class Batches(torch.utils.data.Dataset):
    """Batches that take 2 ms each to read."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.ones(2) * i


def batches(n):
    """Give a loader of so many batches."""
    return torch.utils.data.DataLoader(Batches(n), batch_size=None)


class Training:
    """A model and its optimizer."""

    def __init__(self):
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, batch):
        """Compute a loss, in 2 ms at least."""
        time.sleep(0.002)
        return self.model(batch).sum()

    def step(self, batch):
        """Do one step."""
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps_of(folder, *, without=("gc",)):
    """Give the types of the rows of each step, by start."""
    rows = (
        pq.read_table(next(folder.glob("start-*/rank-00000.parquet")))
        .to_pandas()
        .sort_values("start_ts", kind="stable")
    )
    rows = rows[~rows.optype.isin(without)]
    return {number: of_step.optype.tolist() for number, of_step in rows.groupby("step")}


def rows_of(folder, optype):
    """Give the rows of one type."""
    rows = pq.read_table(next(folder.glob("start-*/rank-00000.parquet"))).to_pandas().sort_values("start_ts")
    return rows[rows.optype == optype]


def test_microbatches_are_merged(tmp_path):
    """A `step()` around each microbatch is a part of the step that ends with the optimizer; what never got there is none."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        for i, batch in enumerate(batches(10)):
            with recorder.step(100 + i):
                recorder.microbatch(tokens=i)
                training.loss(batch).backward()
                if i % 4 == 3:
                    training.optimizer.step()
    found = steps_of(tmp_path, without=("gc", "data-load"))
    assert found == {100: [FORWARD, BACKWARD] * 4 + [OPTIMIZER], 104: [FORWARD, BACKWARD] * 4 + [OPTIMIZER]}
    forwards = rows_of(tmp_path, FORWARD)
    assert forwards.mb_id.tolist() == [0, 1, 2, 3] * 2 and forwards.tokens.tolist() == list(range(8))


def test_begin_and_end(tmp_path):
    """`begin_step` and `end_step` say the same as `step`, and a job without an optimizer has the steps that it says."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        for _ in range(3):
            recorder.begin_step()
            training.loss(torch.ones(2)).backward()
            recorder.end_step()
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD] for n in range(3)}


def test_an_optimizer_outside(tmp_path):
    """An optimizer that runs after the `with` block closes that step."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        for _ in range(3):
            with recorder.step():
                training.loss(torch.ones(2)).backward()
            training.optimizer.step()
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(3)}


@pytest.fixture
def no_collections():
    """Have the collector run only where it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_a_collection_before_anything_is_seen(tmp_path):
    """What stops a forward is of that forward's step, also where only its backward tells that the step has begun."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for i in range(4):
            loss = training.loss(torch.ones(2))
            if i == 2:
                gc.collect()
            loss.backward()
            training.optimizer.step()
            if i == 2:
                torch.save([], tmp_path / "saved")
    (collection,) = rows_of(tmp_path, "gc").itertuples()
    forward = rows_of(tmp_path, FORWARD).set_index("step").loc[2]
    assert collection.step == 2
    assert 0 <= collection.start_ts - forward.start_ts <= forward.duration - collection.duration + 1e-6
    assert rows_of(tmp_path, "checkpoint").step.tolist() == [2], "a save is of the step before it"


@pytest.mark.parametrize("follows", [True, False])
def test_what_was_read_before_the_first_step(tmp_path, follows):
    """Batches that are read before the training begins, for the statistics of the data or the like, keep no step waiting."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        assert len(list(batches(3))) == 3
        if follows:
            recorder.follow_optimizer()
        for _ in range(3):
            with contextlib.nullcontext() if follows else recorder.step():
                training.step(torch.ones(2))
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(3)}


def test_following_with_a_loader(tmp_path):
    """Steps are found by the optimizer: each begins with its first batch, also where gradients are accumulated."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer(7)
        for i, batch in enumerate(batches(6)):
            training.loss(batch).backward()
            if i % 2:
                training.optimizer.step()
    of_each = ["data-load", FORWARD, BACKWARD] * 2 + [OPTIMIZER]
    assert steps_of(tmp_path) == {7: of_each, 8: of_each, 9: of_each}
    assert (rows_of(tmp_path, FORWARD).duration >= 0.002).all()


def test_following_without_a_loader(tmp_path):
    """Where nothing says that a forward begins, it began when the optimizer had ended."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(3):
            training.step(torch.ones(2))
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(3)}
    assert (rows_of(tmp_path, FORWARD).duration >= 0.002).all()


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("n_asked", [1, 3])
def test_a_closure(tmp_path, follows, n_asked):
    """What an optimizer computes by a closure are forwards and backwards; the optimizer is what is left."""
    training = Training()
    optimizer = training.optimizer
    if n_asked > 1:
        optimizer = torch.optim.LBFGS(
            training.model.parameters(), max_iter=n_asked, tolerance_grad=-1, tolerance_change=-1
        )

    def closure():
        optimizer.zero_grad()
        loss = training.loss(torch.ones(2)).square()
        loss.backward()
        return loss

    with Recorder(tmp_path, sample=1.0) as recorder:
        if follows:
            recorder.follow_optimizer()
        for _ in range(3):
            if not follows:
                recorder.begin_step()
            optimizer.step(closure)
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD] * n_asked + [OPTIMIZER] for n in range(3)}
    assert rows_of(tmp_path, FORWARD).duration.min() >= 0.002
    assert rows_of(tmp_path, OPTIMIZER).duration.median() < rows_of(tmp_path, FORWARD).duration.median()


def test_optimizers_one_after_the_other(tmp_path):
    """Two optimizers that run together are one row of one step."""
    training, other = Training(), Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(3):
            (training.loss(torch.ones(2)) + other.loss(torch.ones(2))).backward()
            training.optimizer.step()
            other.optimizer.step()
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(3)}


def test_optimizers_in_turns(tmp_path):
    """Where two models are trained in turns a step is a turn of each, as soon as both are known."""
    training, other = Training(), Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(4):
            training.step(torch.ones(2))
            other.step(torch.ones(2))
    alone, both = [FORWARD, BACKWARD, OPTIMIZER], [FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER]
    assert steps_of(tmp_path) == {0: alone, 1: alone, 2: both, 3: both, 4: both}


def test_one_training_after_another(tmp_path):
    """Nobody waits for the optimizer of a training that is over (folds, a search of parameters): steps are as long as before."""
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(2):
            training = Training()
            for _ in range(3):
                training.step(torch.ones(2))
            del training
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(6)}


def test_an_optimizer_a_weight(tmp_path):
    """Where each weight has its optimizer, which runs within the backward, that is part of the backward."""
    training = Training()
    each = {p: torch.optim.SGD([p], lr=0.01) for p in training.model.parameters()}
    for parameter in each:
        parameter.register_post_accumulate_grad_hook(lambda p: each[p].step())
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for batch in batches(3):
            training.loss(batch).backward()
    assert steps_of(tmp_path) == {n: ["data-load", FORWARD, BACKWARD] for n in range(3)}


@pytest.mark.filterwarnings("ignore:torch.cuda.amp:FutureWarning")
def test_mixed_precision(tmp_path):
    """A step whose gradients overflow ends where its optimizer would have run."""
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for i in range(4):
            with torch.autocast("cpu"):
                loss = training.loss(torch.ones(2))
            scaler.scale(loss * (float("inf") if i == 1 else 1.0)).backward()
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
    assert steps_of(tmp_path) == {n: [FORWARD, BACKWARD, OPTIMIZER] for n in range(4)}


def evaluate(model):
    """Evaluate as tutorials do."""
    model.eval()
    with torch.no_grad():
        for batch in batches(3):
            time.sleep(0.002)
            model(batch)
    model.train()


def evaluate_by_batch(model):
    """Evaluate as trainers do that ask for batches outside `no_grad`."""
    model.eval()
    for batch in batches(3):
        with torch.no_grad():
            time.sleep(0.002)
            model(batch)
    model.train()


@pytest.mark.parametrize("evaluate", [evaluate, evaluate_by_batch])
@pytest.mark.parametrize("way", ["follow", "between", "within"])
def test_evaluations(tmp_path, way, evaluate):
    """An evaluation is one row of the step before it, with its batches and forwards, and a save after it another."""
    training = Training()
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        if way == "follow":
            recorder.follow_optimizer()
        for i, batch in enumerate(batches(6)):
            if way != "follow":
                recorder.begin_step()
            training.step(batch)
            if way == "between":
                recorder.end_step()
            if i == 2:
                evaluate(training.model)
                torch.save(training.model.state_dict(), tmp_path / "saved")
            if way == "within":
                recorder.end_step()
    usual = [FORWARD, BACKWARD, OPTIMIZER]
    expected = {n: usual + ["eval", "checkpoint"] * (n == 2) for n in range(6)}
    assert steps_of(tmp_path / "trace", without=("gc", "data-load")) == expected
    assert (rows_of(tmp_path / "trace", "eval").duration >= 0.010).all()
    assert len(rows_of(tmp_path / "trace", "data-load")) == 6 - (way != "follow"), "its batches are part of it"


def test_named_work_between_steps(tmp_path):
    """What the job names between steps is a row of the step before, and what happens within it is no row of its own."""
    training = Training()
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        recorder.follow_optimizer()
        for batch in batches(3):
            training.step(batch)
            token = recorder.begin_operation("eval")
            with recorder.operation("data-load"):
                list(batches(2))
            recorder.end_operation(token)
            with recorder.operation("checkpoint"):
                torch.save(training.model.state_dict(), tmp_path / "saved")
            with recorder.operation("log"):
                time.sleep(0.001)
    of_each = ["data-load", FORWARD, BACKWARD, OPTIMIZER, "eval", "checkpoint", "log"]
    assert steps_of(tmp_path / "trace") == dict.fromkeys(range(3), of_each)


def test_what_the_job_does(tmp_path):
    """The metadata say whether the job reads, saves and computes on a GPU, and how many hosts it has."""
    training = Training()
    with Recorder(tmp_path / "reads", sample=1.0) as recorder:
        recorder.follow_optimizer()
        for batch in batches(2):
            training.step(batch)
    with Recorder(tmp_path / "saves", sample=1.0) as recorder:
        with recorder.step():
            training.step(torch.ones(2))
        torch.save(training.model.state_dict(), tmp_path / "saved")
    said = [recorded(tmp_path / name) for name in ("reads", "saves")]
    assert [(job["reads_input"], job["saves"]) for job in said] == [(True, False), (False, True)]
    assert {(job["has_cuda"], job["n_hosts"], job["records_gc"]) for job in said} == {
        (torch.cuda.is_available(), 1, True)
    }


def test_how_the_loader_and_the_allocator_are_set_up(tmp_path, monkeypatch):
    """The metadata have the settings of the loader that feeds the training, and of the allocator, for who proposes others."""
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    training = Training()
    loader = torch.utils.data.DataLoader(
        torch.ones(4, 2), num_workers=1, prefetch_factor=3, multiprocessing_context="fork"
    )
    with Recorder(tmp_path / "trace", sample=1.0) as recorder:
        for batch in loader:
            with recorder.step():
                training.step(batch)
    said = recorded(tmp_path / "trace")
    expected = {"num_workers": 1, "prefetch_factor": 3, "pin_memory": False, "persistent_workers": False}
    assert said["loader"] == expected
    assert said["alloc_conf"] == "max_split_size_mb:128"


def test_the_start_of_an_epoch(tmp_path):
    """What a loader does before its first batch (workers that start, a shuffle of millions) is a wait for input, too."""

    class Shuffled(torch.utils.data.SequentialSampler):
        def __iter__(self):
            time.sleep(0.02)
            return super().__iter__()

    training = Training()
    loader = torch.utils.data.DataLoader(Batches(2), batch_size=None, sampler=Shuffled(range(2)))
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(3):
            for batch in loader:
                training.step(batch)
    waited_s = rows_of(tmp_path, "data-load").set_index("step").duration
    assert waited_s.index.tolist() == list(range(6)), "one wait a step"
    assert (waited_s[::2] >= 0.02).all() and waited_s[1::2].min() < 0.02


def test_no_optimizer_that_is_seen(tmp_path, caplog, monkeypatch):
    """Where steps are to be found by an optimizer and none runs, the recording ends with a warning that says what to do."""
    monkeypatch.setattr("diagnose.record.log.MAX_COMPUTES", 10)
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.follow_optimizer()
        for _ in range(8):
            training.loss(torch.ones(2)).backward()
    assert caplog.text.count("steps named by `step`") == 1


def test_an_optimizer_that_runs_no_more(tmp_path, monkeypatch):
    """Where only the first steps had an optimizer, each `step()` after them is a step."""
    monkeypatch.setattr("diagnose.record.steps.MAX_PARTS", 4)
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        for i in range(9):
            with recorder.step():
                training.loss(torch.ones(2)).backward()
                if i == 0:
                    training.optimizer.step()
    assert {n: len(of_step) for n, of_step in steps_of(tmp_path).items()} == {0: 3} | dict.fromkeys(range(1, 9), 2)


def test_recording_that_costs_much(tmp_path, caplog):
    """Where times take long to be taken fewer steps are recorded than were asked for, and the log and the metadata say so."""
    caplog.set_level("INFO", logger="diagnose.record")
    training = Training()

    def take_long():
        time.sleep(2e-4)
        return time.perf_counter_ns()

    with Recorder(tmp_path, sample=0.5) as recorder:
        recorder._clock.now = take_long
        for _ in range(260):
            with recorder.step():
                training.model(torch.ones(2)).sum().backward()
                training.optimizer.step()
    assert set(steps_of(tmp_path)) >= set(range(200)) and len(steps_of(tmp_path)) < 210
    assert recorded(tmp_path)["sample"] < 0.01
    assert sum("of the steps from now on" in record.message for record in caplog.records) == 1


def recorded(folder):
    """Read the job's metadata."""
    import json

    return json.loads(pq.read_metadata(next(folder.glob("start-*/rank-00000.parquet"))).metadata[b"diagnose.job"])


def test_a_place_said_late(tmp_path):
    """What a framework knows of a worker only later is said before the first file is written."""
    training = Training()
    with Recorder(tmp_path, sample=1.0) as recorder:
        recorder.place(dp_rank=1, dp_size=2, stage=3, pp_size=4)
        with recorder.step():
            training.step(torch.ones(2))
    rows = rows_of(tmp_path, FORWARD)
    assert rows[["dp_rank", "stage"]].to_numpy().tolist() == [[1, 3]]
    assert recorded(tmp_path)["world_size"] == 8
