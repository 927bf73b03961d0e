"""A slow link of a job on one machine: messages over it move when both ends are there, as with NCCL, and take their time."""

import collections
import time

import torch
import torch.distributed as dist

#: Messages over one link in one direction that can be told apart.
N_MESSAGES = 100_000
#: How often an end that waits for the other looks, in seconds.
TICK_S = 0.0005


def make_posts():
    """Make what the processes of a job share: when each message was posted, by direction, sender or receiver, and number."""
    return torch.zeros(2, 2, N_MESSAGES, dtype=torch.float64).share_memory_()


def slow_down(seconds, ends, posts):
    """Let each message between two ranks take so many seconds; call it in each process before the recorder is made.

    Parameters
    ----------
    ends : tuple of int
        Global ranks at the two ends of the link.
    posts : torch.Tensor
        As `make_posts` made it, the same for all processes.
    """
    rank = dist.get_rank()
    if rank not in ends:
        return
    numbers = collections.Counter()
    moving = {}
    wait = dist.Work.wait

    def posting(post, receives):
        def posted(group, tensors, peer, *more):
            work = post(group, tensors, peer, *more)
            if dist.get_global_rank(group, peer) in ends:
                direction = posts[ends.index(rank) ^ receives]
                number = numbers[receives]
                numbers[receives] += 1
                direction[int(receives), number] = time.monotonic()
                moving[id(work)] = work, direction[:, number]
            return work

        return posted

    def late_wait(work, *more):
        result = wait(work, *more)
        _, posted = moving.pop(id(work), (None, None))
        if posted is not None:
            while not posted.all():
                time.sleep(TICK_S)
            time.sleep(max(float(posted.max()) + seconds - time.monotonic(), 0.0))
        return result

    dist.ProcessGroup.send = posting(dist.ProcessGroup.send, receives=False)
    dist.ProcessGroup.recv = posting(dist.ProcessGroup.recv, receives=True)
    dist.Work.wait = late_wait
