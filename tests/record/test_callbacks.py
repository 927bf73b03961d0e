"""Jobs of one process in Hugging Face's Trainer, Accelerate, Lightning and Fabric, recorded by the lines of their pages.

What is in the files, and what becomes of the job when the recorder breaks. What `diagnose` says of real faults: `table/`.
Frameworks that are not installed are skipped.
"""

import logging

import pyarrow.parquet as pq
import pytest

from tests.record.table.shown import lines_of, run_lines

PAGES = [("huggingface", 0), ("accelerate", 0), ("lightning", 0), ("lightning", 1)]
N_STEPS, ACCUMULATE, EVERY, N_BATCHES, BATCH = 8, 2, 4, 3, 2

pytestmark = pytest.mark.filterwarnings("ignore")  # what frameworks say where there is no GPU


@pytest.mark.parametrize(("page", "block"), PAGES)
def test_few_lines(page, block):
    """A user adds five lines or fewer."""
    assert 2 <= len(lines_of(page, block)) <= 5


class Job:
    """A model, what it is trained on, and where its state is saved."""

    def __init__(self, folder):
        self.torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
        self.torch.manual_seed(0)
        self.folder = folder
        self.trace = folder / "trace"
        self.model = self.torch.nn.Linear(4, 1)
        self.data = self.torch.randn(N_STEPS * ACCUMULATE * BATCH, 4)
        self.evaluation = self.data[: N_BATCHES * BATCH]
        #: Called with the recorder's callback, or the recorder, when training begins.
        self.before = lambda _recorder: None
        self.first_step = 0

    def loader(self, data):
        """Make a loader of these rows."""
        return self.torch.utils.data.DataLoader(data, batch_size=BATCH)

    def loss(self, batch):
        """Compute the loss of one microbatch."""
        return self.model(batch).square().mean()


def train_huggingface(job):
    """Train with `transformers.Trainer`."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: its callback is not tried"
    )

    class Model(job.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = job.model

        def forward(self, x):
            output = self.inner(x)
            return {"loss": output.square().mean(), "logits": output}

    class Begun(transformers.TrainerCallback):
        def on_train_begin(self, *_args, **_kwargs):
            job.before(trainer.callback_handler.callbacks[-2].recorder)

    arguments = transformers.TrainingArguments(
        output_dir=str(job.folder / "trained"),
        use_cpu=True,
        max_steps=N_STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        eval_strategy="steps",
        eval_steps=EVERY,
        save_strategy="steps",
        save_steps=EVERY,
        logging_steps=EVERY,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        Model(),
        arguments,
        train_dataset=job.data,
        eval_dataset=job.evaluation,
        data_collator=lambda rows: {"x": job.torch.stack(list(rows))},
    )
    run_lines("huggingface", job.trace, trainer=trainer)
    trainer.add_callback(Begun())
    trainer.train(
        resume_from_checkpoint=str(job.folder / "trained" / f"checkpoint-{EVERY}") if job.first_step else None
    )


def train_accelerate(job):
    """Train in a loop with an `Accelerator`."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: its loop is not tried")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    optimizer = job.torch.optim.SGD(job.model.parameters(), lr=0.1)
    model, optimizer, loader, evaluation = accelerator.prepare(
        job.model, optimizer, job.loader(job.data), job.loader(job.evaluation)
    )

    def train():
        n_steps = 0
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(job.loss(batch))
                optimizer.step()
                optimizer.zero_grad()
            n_steps += accelerator.sync_gradients
            if accelerator.sync_gradients and n_steps % EVERY == 0:
                model.eval()
                with job.torch.no_grad():
                    for rows in evaluation:
                        model(rows)
                model.train()
                accelerator.save_state(str(job.folder / "state"))
                accelerator.log({"steps": n_steps})

    run_lines("accelerate", job.trace, accelerator=accelerator, train=train)


def train_lightning(job):
    """Train with Lightning's `Trainer`."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: its callback is not tried")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = job.model

        def on_train_start(self):
            job.before(trainer.callbacks[0].recorder)

        def training_step(self, batch, _index):
            loss = job.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _index):
            self.log("validation", job.loss(batch))

        def configure_optimizers(self):
            return job.torch.optim.SGD(self.parameters(), lr=0.1)

    def make(callbacks):
        saves = lightning.pytorch.callbacks.ModelCheckpoint(
            job.folder / "saved", every_n_train_steps=EVERY, save_top_k=-1
        )
        return lightning.Trainer(
            accelerator="cpu",
            max_steps=N_STEPS,
            accumulate_grad_batches=ACCUMULATE,
            callbacks=[*callbacks, saves],
            val_check_interval=EVERY * ACCUMULATE,
            check_val_every_n_epoch=None,
            log_every_n_steps=EVERY,
            logger=lightning.pytorch.loggers.CSVLogger(job.folder),
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    trainer = run_lines("lightning", job.trace, Trainer=make)["trainer"]
    saved = sorted((job.folder / "saved").glob("*.ckpt")) if job.first_step else [None]
    trainer.fit(Model(), job.loader(job.data), job.loader(job.evaluation), ckpt_path=saved[0])


def train_fabric(job):
    """Train in a loop with a `Fabric`."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: its loop is not tried")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model, optimizer = fabric.setup(job.model, job.torch.optim.SGD(job.model.parameters(), lr=0.1))
    loader, evaluation = fabric.setup_dataloaders(job.loader(job.data), job.loader(job.evaluation))

    def train():
        for number, batch in enumerate(loader, start=1):
            fabric.backward(job.loss(batch))
            if number % ACCUMULATE:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if number % (EVERY * ACCUMULATE) == 0:
                model.eval()
                with job.torch.no_grad():
                    for rows in evaluation:
                        model(rows)
                model.train()
                fabric.save(job.folder / "saved.ckpt", {"model": model})
                fabric.log("steps", number)

    run_lines("lightning", job.trace, block=1, fabric=fabric, train=train)


TRAIN = {
    "huggingface": train_huggingface,
    "accelerate": train_accelerate,
    "lightning": train_lightning,
    "fabric": train_fabric,
}


def read(job):
    """Read the rows of the only rank."""
    return pq.read_table(max(job.trace.glob("start-*/rank-00000.parquet"))).to_pandas()


@pytest.mark.parametrize("framework", TRAIN)
def test_rows(framework, tmp_path):
    """Microbatches of one step belong to it; evaluations, saves and logging are rows of their own, and nothing else is."""
    job = Job(tmp_path)
    TRAIN[framework](job)
    rows = read(job)
    counts = rows.groupby(["step", "optype"], observed=True).size().unstack(fill_value=0)
    assert list(counts.index) == list(range(N_STEPS))
    assert (counts[["forward-compute", "backward-compute"]] == ACCUMULATE).all(axis=None)
    assert (counts["optimizer"] == 1).all()
    every = [step for step in range(N_STEPS) if (step + 1) % EVERY == 0]
    for optype in ("eval", "checkpoint", "log"):
        assert list(counts.index[counts[optype] > 0]) == every, optype
    # What is asked for and computed within an evaluation is none of the training's.
    evaluations, others = rows[rows.optype == "eval"], rows[~rows.optype.isin(["eval", "gc"])]
    for one in evaluations.itertuples():
        middle = others.start_ts + others.duration / 2
        assert not ((middle > one.start_ts) & (middle < one.start_ts + one.duration)).any()


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_resumed(framework, tmp_path):
    """A job that resumes goes on counting at the step of its checkpoint."""
    for first_step in (0, EVERY):
        job = Job(tmp_path)
        job.first_step = first_step
        TRAIN[framework](job)
        assert sorted(set(read(job).step)) == list(range(first_step, N_STEPS))


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_a_broken_recorder(framework, tmp_path, caplog):
    """Where the recorder breaks, the job trains to the same weights, and one warning says so."""
    whole, broken = Job(tmp_path / "whole"), Job(tmp_path / "broken")

    def break_it(recorder):
        recorder._log.clock.now = None

    broken.before = break_it
    TRAIN[framework](whole)
    with caplog.at_level(logging.WARNING, logger="diagnose.record"):
        TRAIN[framework](broken)
    assert [record.name for record in caplog.records].count("diagnose.record") == 1
    assert whole.torch.equal(whole.model.weight, broken.model.weight)
    assert not list(broken.trace.rglob("rank-*"))


def test_nothing_stays(tmp_path):
    """After the training the classes of the framework are as they were."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: its callback is not tried"
    )
    before = dict(vars(transformers.Trainer))
    train_huggingface(Job(tmp_path))
    assert dict(vars(transformers.Trainer)) == before
