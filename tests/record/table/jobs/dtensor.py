"""Tensor parallelism by DTensor over two ranks, two times data-parallel, gradients reduced by hand."""

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="DTensor, tp 2 x dp 2", places=((0, 0), (0, 0), (1, 0), (1, 0)), slow_rank=2, slow_loader=2)


def main() -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from tests.record.table.job import Job

    job = Job.from_command_line(FRAMEWORK)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, peers = job.model(), mesh["dp"].get_group()
    for n, layer in enumerate(model):
        way = ColwiseParallel(output_layouts=Replicate()) if n % 2 else RowwiseParallel(input_layouts=Replicate())
        parallelize_module(layer, mesh["tp"], {"linear": way})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with job.recorder(mesh=mesh) as recorder:
        batches = iter(job.loader())
        for step in range(job.n_steps):
            for microbatch in range(job.accumulate):
                batch = next(batches)
                with recorder.step():
                    is_last = microbatch == job.accumulate - 1
                    job.loss(model(batch), batch).backward()
                    if is_last:
                        for p in model.parameters():
                            dist.all_reduce(p.grad.to_local(), group=peers)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
                        optimizer.step()
                        optimizer.zero_grad()
            if job.evaluates_after(step):
                job.evaluate(model)
            if job.saves_after(step):
                job.save({name: value.to_local() for name, value in model.state_dict().items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
