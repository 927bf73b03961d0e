"""A real pipeline of two stages (gloo) whose schedule is the job's own: sends and recvs by hand, computes named.

A program: `python tests/torch_jobs/own_schedule.py OUT`. Needs torch. Leaves `rank-*.parquet` in OUT.
"""

import sys
import time

import torch
import torch.distributed as dist
from ranks import joined, start_ranks

N_MICROBATCHES = 3


def main(out):
    """Start both processes and wait for them."""
    start_ranks(run_rank, 2, out)


def run_rank(rank, port, out):
    """All forwards, then all backwards, which communicate in batches of one."""
    from diagnose.record import Recorder

    x = torch.zeros(4)
    with joined(rank, port, 2), Recorder(out, sample=1.0, stage_ranks=[0, 1]) as recorder:
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


def _together(*operations):
    """Launch operations as one batch and wait for them."""
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


if __name__ == "__main__":
    main(sys.argv[1])
