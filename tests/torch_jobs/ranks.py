"""The processes of one job on this machine, one a rank, and the group (gloo) in which they meet."""

import contextlib
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing


def start_ranks(run_rank, n_ranks, *arguments, method="spawn"):
    """Run `run_rank(rank, port, *arguments)` in one process a rank, and wait for all; forked they import torch once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(run_rank, args=(port, *arguments), nprocs=n_ranks, start_method=method)


@contextlib.contextmanager
def joined(rank, port, n_ranks):
    """Be one rank of the group; at the end wait for the others."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n_ranks)
    yield
    dist.barrier()
    dist.destroy_process_group()
