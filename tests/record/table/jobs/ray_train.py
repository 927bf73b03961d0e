"""Ray Train: a `TorchTrainer` of three workers whose loop is recorded in each."""

import dataclasses

from tests.record.table.framework import Framework

FRAMEWORK = Framework(title="Ray Train", needs=("torch", "ray"), is_started_by_rank=False)


def train(config: dict) -> None:
    """Train in one worker, as Ray's own examples do."""
    import ray.train
    import ray.train.torch
    import torch

    from tests.record.table.job import Job

    framework = dataclasses.replace(FRAMEWORK, steps=config["steps"])
    job = Job(framework, config["fault"], config["out"], rank=ray.train.get_context().get_world_rank())
    model = ray.train.torch.prepare_model(job.model())
    loader = ray.train.torch.prepare_data_loader(job.loader())
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(loader)
    for step in range(job.n_steps):
        for _ in range(job.accumulate):
            batch = next(batches)
            job.loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if job.evaluates_after(step):
            job.evaluate(model)
        if job.saves_after(step):
            saved = None
            if job.rank == 0:
                folder = job.out / f"saved-{step}"
                folder.mkdir()
                job.save(model.state_dict())
                saved = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=saved)
    job.finish()


def main() -> None:
    """Start the workers."""
    import argparse
    from pathlib import Path

    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from tests.record.table.shown import run_lines

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--fault", default="healthy")
    parser.add_argument("--steps", type=int, default=FRAMEWORK.steps)
    options = parser.parse_args()
    n_workers = len(FRAMEWORK.places)
    ray.init(num_cpus=n_workers + 1, include_dashboard=False, object_store_memory=100_000_000)
    settings = {
        "train_loop_config": {"out": str(options.out), "fault": options.fault, "steps": options.steps},
        "scaling_config": ScalingConfig(num_workers=n_workers),
        "torch_config": TorchConfig(backend="gloo"),
        "run_config": RunConfig(storage_path=str(options.out / "ray")),
    }
    shown = run_lines("ray", options.out / "trace", TorchTrainer=TorchTrainer, train_loop=train, settings=settings)
    shown["trainer"].fit()


if __name__ == "__main__":
    main()
