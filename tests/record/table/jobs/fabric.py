"""A loop that uses Lightning's `Fabric`, with DDP, recorded as its page shows."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="Fabric", needs=("torch", "lightning"), environment={"NODE_RANK": "0"})


def main() -> None:
    """Train one rank."""
    import lightning
    import torch

    from tests.record.table.job import BATCH, Job, SlowToSave
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(FRAMEWORK)
    fabric = lightning.Fabric(accelerator="cpu", devices=job.world_size, strategy="ddp")
    fabric.launch()
    model = job.model()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    loader, evaluation = fabric.setup_dataloaders(
        job.loader(), torch.utils.data.DataLoader(job.evaluation_dataset(), batch_size=BATCH)
    )

    fabric.save(job.out / "saved.ckpt", {})  # the first imports for some 0.2 s, which no plan knows

    def train() -> None:
        batches = iter(loader)
        for step in range(job.n_steps):
            for microbatch in range(job.accumulate):
                batch = next(batches)
                with fabric.no_backward_sync(model, enabled=microbatch < job.accumulate - 1):
                    fabric.backward(job.loss(model(batch), batch))
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            if job.evaluates_after(step):
                model.eval()
                with torch.no_grad():
                    for rows in evaluation:
                        model(rows)
                model.train()
            if job.saves_after(step):
                slow = SlowToSave(job.plan.save_s)
                fabric.save(job.out / "saved.ckpt", {"model": model, "optimizer": optimizer, "slow": slow})

    run_lines("lightning", job.trace, block=1, fabric=fabric, train=train)
    job.finish()


if __name__ == "__main__":
    main()
