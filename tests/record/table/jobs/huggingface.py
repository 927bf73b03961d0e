"""The Hugging Face `Trainer`, with DDP, recorded as its page shows."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="HF Trainer", needs=("torch", "transformers", "accelerate"))


def main(framework: Framework = FRAMEWORK, **options) -> None:
    """Train one rank."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tests.record.table.job import BATCH, Job
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(framework)

    class Model(torch.nn.Module):
        """Gives its loss, as the trainer wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = job.model()

        def forward(self, x):
            """Work on one microbatch."""
            output = self.layers(x)
            return {"loss": job.loss(output, x), "logits": output}

    class SlowDisk(Trainer):
        """Takes a while to save."""

        def _save(self, *args, **kwargs) -> None:
            super()._save(*args, **kwargs)
            job.save({})

    class NothingAtTheEnd(TrainerCallback):
        """Leaves out what the trainer does after the last step; the plan has nothing there."""

        def on_step_end(self, _arguments, state, control, **_kwargs) -> None:
            if state.global_step == job.n_steps:
                control.should_save = control.should_evaluate = False

    arguments = TrainingArguments(
        output_dir=str(job.out / "trained"),
        use_cpu=True,
        max_steps=job.n_steps,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=job.accumulate,
        dataloader_num_workers=job.fault.workers,
        eval_strategy="steps" if job.fault.evaluate else "no",
        eval_steps=job.fault.evaluate_every or None,
        save_strategy="steps" if job.fault.save else "no",
        save_steps=job.fault.save_every or 500,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    trainer = SlowDisk(
        Model(),
        arguments,
        train_dataset=job.dataset(),
        eval_dataset=job.evaluation_dataset(),
        data_collator=lambda rows: {"x": torch.stack(rows)},
        callbacks=[NothingAtTheEnd()],
    )
    run_lines("huggingface", job.trace, trainer=trainer)
    trainer.train()
    job.finish()


if __name__ == "__main__":
    main()
