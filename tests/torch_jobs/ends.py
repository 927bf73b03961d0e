"""A real job of one process, or of a rank of two (gloo), that ends in all the ways in which jobs end.

A program: `python tests/torch_jobs/ends.py OUT --steps 20 --then wait`. Needs torch. Says "ready" when its steps are done.
"""

import argparse
import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from diagnose.record import Recorder, writer_thread


class Numbers(torch.utils.data.Dataset):
    """Numbers, for workers of a loader."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return torch.ones(2) * i


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sample", type=float, default=1.0)
    parser.add_argument("--handler", action="store_true", help="have a handler of the job's own")
    parser.add_argument("--workers", choices=["fork", "spawn"], help="read by two workers of a data loader")
    parser.add_argument("--write-every-s", type=float)
    parser.add_argument("--file-limit", type=int, help="bytes that a file may have: to the writer a full disk")
    parser.add_argument("--report", action="store_true", help="diagnose the job at its end")
    parser.add_argument("--tracker", choices=["tensorboard", "mlflow", "wandb"], help="log to it, below OUT.logs")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument(
        "--then", choices=["end", "wait", "train", "collective", "exit-at-once", "raise"], default="end"
    )
    return parser.parse_args()


def leave(_number, _frame):
    """End as jobs do that save first."""
    print("saved", flush=True)
    sys.exit(7)


def read_batches(options):
    """Give a batch a step."""
    if options.workers is None:
        for _ in range(options.steps):
            yield torch.ones(2)
        return
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, multiprocessing_context=options.workers)
    yield from itertools.islice(loader, options.steps)


def begin_logging(tracker, folder):
    """Give what logs a figure, as jobs do."""
    if tracker == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        return lambda: SummaryWriter(folder).add_scalar("loss", 1.0)
    if tracker == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder}.db")
        run = mlflow.start_run()
        mlflow.end_run()
        return lambda: mlflow.log_metric("loss", 1.0, run_id=run.info.run_id)
    if tracker == "wandb":
        import wandb

        run = wandb.init(mode="offline", dir=os.path.dirname(folder))  # noqa: PTH120
        return lambda: run.log({"loss": 1.0})
    return lambda: None


def main():
    """Train, and end."""
    options = parse()
    torch.set_num_threads(1)
    if options.handler:
        signal.signal(signal.SIGTERM, leave)
    if options.write_every_s is not None:
        writer_thread.WRITE_EVERY_S = options.write_every_s
    if options.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_limit, options.file_limit))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    is_slow = dist.is_initialized() and dist.get_rank() == options.slow_rank
    log = begin_logging(options.tracker, f"{options.out}.logs")
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Recorder(options.out, sample=options.sample, report=options.report) as recorder:

        def train(batch):
            """Do one step."""
            with recorder.step():
                loss = (weight * batch).sum()
                time.sleep(0.08 if is_slow else 0.02 if options.slow_rank >= 0 else 0.002)
                loss.backward()
                if dist.is_initialized() and options.slow_rank >= 0:
                    dist.all_reduce(weight.grad)
                optimizer.step()

        for batch in read_batches(options):
            train(batch)
        log()
        print("ready", flush=True)
        if options.then == "exit-at-once":
            while not list(Path(options.out).glob("start-*/rank-00000.parquet")):
                time.sleep(0.1)
            os._exit(3)
        while options.then == "train":
            time.sleep(0.2)  # so long that recording takes less than is allowed, and no step is left out
            train(torch.ones(2))
        if options.then == "raise":
            raise ZeroDivisionError
        if options.then == "collective" and dist.get_rank() == 0:
            dist.barrier()  # the other never comes
        if options.then in ("wait", "collective"):
            time.sleep(600)
    if options.tracker == "wandb":
        import wandb

        print(dict(wandb.run.summary), flush=True)
        wandb.finish()


if __name__ == "__main__":
    main()
