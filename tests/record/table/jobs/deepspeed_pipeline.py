"""DeepSpeed's `PipelineEngine`: two stages, two times data-parallel, ZeRO-1."""

import dataclasses

from tests.record.table.framework import Framework
from tests.record.table.jobs import deepspeed_zero2, pipeline_1f1b

FRAMEWORK = dataclasses.replace(
    pipeline_1f1b.FRAMEWORK,
    title="DeepSpeed pipeline, pp 2 x dp 2",
    needs=deepspeed_zero2.FRAMEWORK.needs,
    environment=deepspeed_zero2.FRAMEWORK.environment,
)


def main(framework: Framework = FRAMEWORK) -> None:
    """Train one rank."""
    import deepspeed
    import torch
    from deepspeed.pipe import PipelineModule

    from tests.record.table.job import BATCH, Job, SlowToSave
    from tests.record.table.shown import run_lines

    job = Job.from_command_line(framework)
    deepspeed.init_distributed("gloo", verbose=False)
    stages = [job.model() for _ in range(framework.n_stages)]
    model = PipelineModule(layers=stages, num_stages=framework.n_stages, loss_fn=job.loss, partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": framework.microbatches,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def microbatches(loader):
        for batch in loader:
            yield from ((part, part) for part in batch.chunk(framework.microbatches))

    def train() -> None:
        batches = microbatches(job.loader())
        for step in range(job.n_steps):
            engine.train_batch(batches)
            if job.evaluates_after(step):
                loader = torch.utils.data.DataLoader(job.evaluation_dataset(), **job.loader_options)
                engine.eval_batch(microbatches(loader))
            if job.saves_after(step):
                engine.save_checkpoint(str(job.out / "saved"), client_state={"slow": SlowToSave(job.plan.save_s)})

    run_lines("deepspeed", job.trace, engine=engine, train=train)
    job.finish()


if __name__ == "__main__":
    main()
