"""Four processes (gloo) that reduce eleven times, and all but rank 2 a twelfth time; each leaves a dump of the Flight Recorder.

python missing_call.py FOLDER
"""

import os
import pickle
import sys
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"  # read when torch is imported

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import _dump_fr_trace

N_RANKS, N_CALLS, MISSING = 4, 11, 2


def leave_dump(rank: int, folder: Path) -> None:
    """Call, wait until all ranks have called what they call, and write the dump."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=N_RANKS)
    values = torch.ones(8)
    for _ in range(N_CALLS):
        dist.all_reduce(values)
    if rank != MISSING:
        dist.all_reduce(values, async_op=True)
    (folder / f"called-{rank}").touch()
    while len(list(folder.glob("called-*"))) + len(list(folder.glob("written-*"))) < N_RANKS:
        time.sleep(0.01)
    while not all(entry["retired"] for entry in pickle.loads(_dump_fr_trace())["entries"][:N_CALLS]):
        time.sleep(0.01)  # gloo's own thread notes the end of a call a moment after the call has returned
    dumps = folder / "dumps"
    dumps.mkdir(exist_ok=True)
    (dumps / f"nccl_trace_rank_{rank}").write_bytes(_dump_fr_trace())
    (folder / f"called-{rank}").rename(folder / f"written-{rank}")
    while len(list(folder.glob("written-*"))) < N_RANKS:
        time.sleep(0.01)
    os._exit(0)  # a group whose last call never ends cannot be left


if __name__ == "__main__":
    mp.start_processes(leave_dump, (Path(sys.argv[1]),), N_RANKS, start_method="spawn")
