"""DistributedDataParallel in a script that knows nothing of a recorder, under `diagnose run`."""

import contextlib

from tests.record.table.framework import Framework

FRAMEWORK = Framework(
    title="`diagnose run`, DDP",
    command=("{python}", "-m", "diagnose", "run", "--sample=1", "--no-report", "--output={trace}", "--", "{python}"),
)


def main() -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist

    from tests.record.table.job import Job

    job = Job.from_command_line(FRAMEWORK)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(job.model())
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(job.loader())
    for step in range(job.n_steps):
        for microbatch in range(job.accumulate):
            batch = next(batches)
            with contextlib.nullcontext() if microbatch == job.accumulate - 1 else model.no_sync():
                job.loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if job.evaluates_after(step):
            job.evaluate(model)
        if job.saves_after(step) and job.rank == 0:
            job.save(model.state_dict())
    job.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
