"""A real pipeline of two stages (gloo) whose schedule is the job's own: sends and recvs by hand, computes named.

A program: `python tests/torch_jobs/own_schedule.py OUT`. Needs torch. Leaves `rank-*.parquet` in OUT.
"""

import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

N_MICROBATCHES = 3


def main(out):
    """Start both processes and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, args=(out, port), nprocs=2)


def run_rank(rank, out, port):
    """All forwards, then all backwards, which communicate in batches of one."""
    from diagnose.record import Recorder

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x = torch.zeros(4)
    with Recorder(out, sample=1.0, stage_ranks=[0, 1]) as recorder:
        for _ in range(4):
            with recorder.step():
                for microbatch in range(N_MICROBATCHES):
                    if rank == 1:
                        dist.recv(x, 0)
                    with recorder.operation("forward-compute", microbatch=microbatch):
                        time.sleep(0.005)
                    if rank == 0:
                        dist.isend(x, 1).wait()
                for microbatch in range(N_MICROBATCHES):
                    if rank == 0:
                        _together(dist.P2POp(dist.irecv, x, 1))
                    with recorder.operation("backward-compute", microbatch=microbatch):
                        time.sleep(0.01)
                    if rank == 1:
                        _together(dist.P2POp(dist.isend, x, 0))
                with recorder.operation("optimizer"):
                    dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


def _together(*operations):
    """Launch operations as one batch and wait for them."""
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


if __name__ == "__main__":
    main(sys.argv[1])
