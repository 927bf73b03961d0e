"""A loop that uses Accelerate, with DDP, recorded as its page shows."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="Accelerate", needs=("torch", "accelerate"))


def main() -> None:
    """Train one rank."""
    import torch
    from accelerate import Accelerator

    from tests.record.table.job import Job, SlowToSave
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(FRAMEWORK)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.accumulate)
    model = job.model()
    model, optimizer, loader, evaluation = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters()),
        job.loader(),
        torch.utils.data.DataLoader(job.evaluation_dataset(), batch_size=job.loader_options["batch_size"]),
    )

    class SlowState:
        """Takes a while to save."""

        def state_dict(self) -> dict[str, object]:
            return {"slow": SlowToSave(job.plan.save_s)}

        def load_state_dict(self, state: dict[str, object]) -> None:
            """Is never called."""

    accelerator.register_for_checkpointing(SlowState())

    def train() -> None:
        step = 0
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(job.loss(model(batch), batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            if job.evaluates_after(step):
                model.eval()
                with torch.no_grad():
                    for rows in evaluation:
                        accelerator.gather_for_metrics(model(rows))
                model.train()
            if job.saves_after(step):
                accelerator.save_state(str(job.out / "state"))
            step += 1
            if step == job.n_steps:
                break

    run_lines("accelerate", job.trace, accelerator=accelerator, train=train)
    accelerator.end_training()
    job.finish()


if __name__ == "__main__":
    main()
