"""DeepSpeed's engine with ZeRO-2, which reduces gradients after each backward."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="DeepSpeed ZeRO-2", needs=("torch", "deepspeed"), environment={"DS_ACCELERATOR": "cpu"})


def main() -> None:
    """Train one rank."""
    import deepspeed
    import torch

    from tests.record.table.job import BATCH, Job, SlowToSave
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(FRAMEWORK)
    deepspeed.init_distributed("gloo", verbose=False)
    model = job.model()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": job.accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def train() -> None:
        batches = iter(job.loader())
        for step in range(job.n_steps):
            for _ in range(job.accumulate):
                batch = next(batches)
                engine.backward(job.loss(engine(batch), batch))
                engine.step()
            if job.evaluates_after(step):
                job.evaluate(engine)
            if job.saves_after(step):
                engine.save_checkpoint(str(job.out / "saved"), client_state={"slow": SlowToSave(job.plan.save_s)})

    run_lines("deepspeed", job.trace, engine=engine, train=train)
    job.finish()


if __name__ == "__main__":
    main()
