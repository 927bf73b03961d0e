"""1F1B of `torch.distributed.pipelining`: two stages, two times data-parallel, gradients reduced by hand, as its tutorials do."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(
    title="1F1B, pp 2 x dp 2",
    places=((0, 0), (1, 0), (0, 1), (1, 1)),
    slow_rank=3,
    slow_loader=1,
    microbatches=4,
    forward_s=0.05,
    backward_s=0.075,
    steps=30,
)


def main(framework: Framework = FRAMEWORK) -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    from tests.record.table.job import Job

    job = Job.from_command_line(framework)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    n_stages, peers = framework.n_stages, mesh["dp"].get_group()
    stages = [
        PipelineStage(
            job.model(chunk),
            chunk * n_stages + job.stage,
            framework.chunks * n_stages,
            torch.device("cpu"),
            group=mesh["pp"].get_group(),
        )
        for chunk in range(framework.chunks)
    ]
    schedule = (
        ScheduleInterleaved1F1B(stages, framework.microbatches, loss_fn=job.loss)
        if framework.chunks > 1
        else Schedule1F1B(stages[0], framework.microbatches, loss_fn=job.loss)
    )
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    # The last stage is given the targets, from a loader of its own.
    job.pace.skip(1)  # before the first step each stage runs once to learn the shapes of what it sends
    is_first, is_last = job.stage == 0, job.stage == n_stages - 1

    def feed(batch: torch.Tensor, run) -> None:
        run(*([batch] if is_first else []), **({"target": batch} if is_last else {}))

    with job.recorder() as recorder:
        batches = iter(job.loader())
        for step in range(job.n_steps):
            batch = next(batches) if is_first or is_last else None
            with recorder.step():
                feed(batch, schedule.step)
                for p in parameters:
                    dist.all_reduce(p.grad, group=peers)
                optimizer.step()
                optimizer.zero_grad()
            if job.evaluates_after(step):
                for batch in torch.utils.data.DataLoader(job.evaluation_dataset(), **job.loader_options):
                    feed(batch, schedule.eval)
            if job.saves_after(step) and job.dp_rank == 0:
                job.save([p.detach() for p in parameters])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
