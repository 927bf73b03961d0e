"""Lightning's `Trainer` with DDP on two processes (gloo): its loop switches the module back to training and leaves the wrapper.

A program: `python tests/torch_jobs/lightning_modes.py OUT ACCUMULATE`. Leaves `rank-*.parquet` in OUT.
"""

import sys

import lightning
import torch
from modes import EVERY, N_EVALUATED, N_STEPS, batches

from diagnose.record.lightning import RecorderCallback


class Model(lightning.LightningModule):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def training_step(self, batch, _index):
        """Give the loss of a microbatch."""
        return self.layer(batch).square().mean()

    def validation_step(self, batch, _index):
        """Compute what nothing is trained by."""
        self.layer(batch)

    def configure_optimizers(self):
        """Give the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(out, accumulate):
    """Train."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_steps=N_STEPS,
        accumulate_grad_batches=int(accumulate),
        val_check_interval=EVERY * int(accumulate),
        check_val_every_n_epoch=None,
        callbacks=[RecorderCallback(out, sample=1.0)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), batches(4 * N_STEPS), batches(N_EVALUATED))


if __name__ == "__main__":
    main(*sys.argv[1:])
