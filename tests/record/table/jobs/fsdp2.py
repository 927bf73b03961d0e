"""`fully_shard` of every layer in a plain loop; each rank saves its own shards."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="FSDP2")


def main() -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from tests.record.table.job import Job

    job = Job.from_command_line(FRAMEWORK)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (job.world_size,))
    model = job.model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    with job.recorder() as recorder:
        batches = iter(job.loader())
        for step in range(job.n_steps):
            for microbatch in range(job.accumulate):
                batch = next(batches)
                with recorder.step():
                    is_last = microbatch == job.accumulate - 1
                    model.set_requires_gradient_sync(is_last)
                    job.loss(model(batch), batch).backward()
                    if is_last:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        optimizer.zero_grad()
            if job.evaluates_after(step):
                job.evaluate(model)
            if job.saves_after(step):
                job.save({name: value.to_local() for name, value in model.state_dict().items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
