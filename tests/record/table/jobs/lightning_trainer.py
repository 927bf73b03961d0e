"""Lightning's `Trainer`, with DDP, recorded as its page shows."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="Lightning", needs=("torch", "lightning"), environment={"NODE_RANK": "0"})


def main() -> None:
    """Train one rank."""
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tests.record.table.job import BATCH, Job, SlowToSave
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(FRAMEWORK)

    class Model(lightning.LightningModule):
        """Trains, validates and saves."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = job.model()

        def training_step(self, batch, _index):
            """Work on one microbatch."""
            loss = job.loss(self.layers(batch), batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _index):
            """Work on one batch of a validation."""
            self.log("validation", self.layers(batch).mean(), sync_dist=True)

        def configure_optimizers(self):
            """Train all."""
            return torch.optim.AdamW(self.parameters())

        def on_save_checkpoint(self, checkpoint) -> None:
            """Take a while to be saved."""
            checkpoint["slow"] = SlowToSave(job.plan.save_s)

    def make(callbacks) -> lightning.Trainer:
        saves = ModelCheckpoint(job.out / "saved", every_n_train_steps=job.fault.save_every, save_top_k=-1)
        return lightning.Trainer(
            accelerator="cpu",
            devices=job.world_size,
            strategy="ddp",
            max_steps=job.n_steps,
            accumulate_grad_batches=job.accumulate,
            gradient_clip_val=1.0,
            callbacks=[*callbacks, *([saves] if job.fault.save else [])],
            enable_checkpointing=bool(job.fault.save),
            val_check_interval=job.fault.evaluate_every or None,
            check_val_every_n_epoch=None if job.fault.evaluate else 1,
            limit_val_batches=job.fault.evaluate,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=job.out,
        )

    trainer = run_lines("lightning", job.trace, Trainer=make)["trainer"]
    evaluation = torch.utils.data.DataLoader(job.evaluation_dataset(), batch_size=BATCH)
    trainer.fit(Model(), job.loader(), evaluation)
    job.finish()


if __name__ == "__main__":
    main()
