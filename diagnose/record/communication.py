"""Hooks for torch.distributed: point-to-point operations between pipeline stages, and collectives outside the computes.

Enters: process groups as they are used. Leaves: transfers and collectives in the log. The functions hooked are those of
`ProcessGroup` and `Work`, below `torch.distributed`: callers compare `torch.distributed.isend` with itself, and compilers look
for it, so it stays what it is.
"""

from collections.abc import Sequence
from typing import Any

from diagnose.model.groups import is_described, may_share_experts
from diagnose.model.optype import Op
from diagnose.record.hooks import Hooks
from diagnose.record.log import Collective, Log, Transfer
from diagnose.record.parallel_state import ParallelState

#: Functions of a process group, and whether they collect parameters; None for those that do neither that nor reduce gradients.
#: Some have new names since torch 2.13.
COLLECTIVES: dict[str, bool | None] = {
    "allreduce": False,
    "allreduce_coalesced": False,
    "reduce_scatter": False,
    "_reduce_scatter_base": False,
    "reduce_scatter_tensor_coalesced": False,
    "reduce_scatter_single": False,
    "reduce_scatter_single_coalesced": False,
    "allgather": True,
    "_allgather_base": True,
    "allgather_into_tensor_coalesced": True,
    "all_gather_single": True,
    "all_gather_single_coalesced": True,
    "all_to_all_single": None,
    "alltoall": None,
    "alltoall_base": None,
    "barrier": None,
    "broadcast": None,
}


#: Those by which ranks that share experts exchange tokens.
ALL_TO_ALL = ("all_to_all_single", "alltoall", "alltoall_base")


def hook_communication(hooks: Hooks, log: Log, state: ParallelState, stage_ranks: Sequence[int]) -> None:
    """Note what process groups do.

    For schedules of the job's own `stage_ranks` has the global rank of each stage of this pipeline; else it is empty.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    for name, gathers in COLLECTIVES.items():
        _hook_collective(hooks, log, state, dist.ProcessGroup, name, gathers=gathers)
    _hook_waits(hooks, log, dist.Work)
    if len(stage_ranks) > 1:
        own = _OwnTransfers(log, list(stage_ranks), dist)
        hooks.around(dist.ProcessGroup, "send", log.apart, own.before_send, log.launch)
        hooks.around(dist.ProcessGroup, "recv", log.apart, own.before_recv, log.launch)
        # Those who imported it by name are not seen: then its members are transfers of their own.
        hooks.around(dist, "batch_isend_irecv", log.apart, own.before_batch, own.after_batch)


def _hook_collective(
    hooks: Hooks, log: Log, state: ParallelState, owner: Any, name: str, *, gathers: bool | None
) -> None:
    """Note one kind of collective."""

    def before(group: Any, *args: Any, **_kwargs: Any) -> Collective | None:
        if log.step is None:
            return None
        is_within, wait = log.current is not None, ""
        if is_within and name in ALL_TO_ALL and not state.ep_size and may_share_experts(_describe(group)):
            state.ep_size = group.size()
        if is_within and (log.driver or state.tp_size * state.cp_size > 1):
            wait = "" if log.clock.is_device else name_wait(group, state, has_driver=bool(log.driver))
            if not wait:
                return None  # part of a compute of several members
        if not is_within and (log.is_outside() or log.evaluation is not None):
            return None  # of a checkpoint that is saved beside the training, of an evaluation, or the like
        n_elements = 0
        if gathers is not None:  # a barrier has no tensors, and may have no arguments
            tensors = args[1] if name.endswith(("_base", "_single")) and len(args) > 1 else args[0]
            n_elements = _n_elements(tensors)
        return Collective(gathers, n_elements, log.n_computes, log.clock.now(), is_within=is_within, wait=wait)

    def after(noted: Collective | None, work: Any) -> None:
        if noted is None or log.step is None:
            return
        noted.end = log.clock.now()
        if not noted.is_within:
            log.step.collectives.append(noted)
        elif work is None and log.current is not None:
            noted.note_within(log.current, noted.start, noted.end)
        # Else it holds the worker only where it is waited for.
        log.watch(work, noted)

    hooks.around(owner, name, log.apart, before, after)


def name_wait(group: Any, state: ParallelState, *, has_driver: bool) -> str:
    """Say what a wait is called that is told beside its compute; empty where it is taken out of it, or nobody knows whom it is for.

    A group goes by its description.
    """
    for kind, size in (("tp", state.tp_size), ("cp", state.cp_size)):
        if size > 1 and is_described(_describe(group), kind):
            return f"{kind}-wait"
    alone = has_driver and state.tp_size * state.cp_size == 1
    return "dp-wait" if alone and group.size() <= state.dp_size and not is_described(_describe(group), "pp") else ""


def _describe(group: Any) -> str:
    """Give the description of a process group; empty where there is none."""
    return str(getattr(group, "group_desc", ""))


def _n_elements(tensors: Any) -> int:
    """Count the elements of a tensor, or of all tensors of a list."""
    if isinstance(tensors, (list, tuple)):
        return sum(_n_elements(tensor) for tensor in tensors)
    return int(tensors.numel())


def _hook_waits(hooks: Hooks, log: Log, owner: Any) -> None:
    """Note when a work is waited for: until then the worker does something else, afterwards it is done."""

    def before(work: Any, *_args: Any, **_kwargs: Any) -> Transfer | Collective | None:
        found = log.pending.pop(id(work), None) if log.pending else None
        if found is None or found[0]() is not work:
            return None
        noted = found[1]
        if isinstance(noted, Collective):
            if noted.is_within:
                noted.start, noted.n_computes = log.clock.now(), log.n_computes
        elif noted.wait_start is None:
            noted.wait_start, noted.waited_at = log.clock.now(), log.n_computes
        return noted

    def after(noted: Transfer | Collective | None, _result: Any) -> None:
        if isinstance(noted, Transfer):
            noted.wait_end = log.clock.now()
        elif noted is not None:
            noted.end = log.clock.now()
            if noted.is_within and log.current is not None:
                noted.note_within(log.current, noted.start, noted.end)
            elif noted.is_within and log.step is not None:
                log.step.collectives.append(noted)

    hooks.around(owner, "wait", log.apart, before, after)


class _OwnTransfers:
    """Transfers of a schedule that the job brings itself, named by who talks to whom."""

    def __init__(self, log: Log, stage_ranks: list[int], dist: Any) -> None:
        self.log = log
        self.dist = dist
        self.stage_of = {rank: stage for stage, rank in enumerate(stage_ranks)}
        self.own_stage = self.stage_of[dist.get_rank()]
        self.batch: Transfer | None = None

    def _member(self, group: Any, peer: int, ahead: Op, behind: Op) -> tuple[Op, int, int] | None:
        """Name a transfer with a neighbour; None for anything else."""
        stage = self.stage_of.get(self.dist.get_global_rank(group, peer))
        if stage is None or abs(stage - self.own_stage) != 1:
            return None
        return (ahead if stage > self.own_stage else behind), -1, -1

    def before_send(self, group: Any, _tensors: Any, peer: int, *_args: Any, **_kwargs: Any) -> Transfer | None:
        return self._note(group, peer, Op.FORWARD_SEND, Op.BACKWARD_SEND)

    def before_recv(self, group: Any, _tensors: Any, peer: int, *_args: Any, **_kwargs: Any) -> Transfer | None:
        return self._note(group, peer, Op.BACKWARD_RECV, Op.FORWARD_RECV)

    def _note(self, group: Any, peer: int, ahead: Op, behind: Op) -> Transfer | None:
        """Note a transfer, alone or as a member of the batch that is being launched."""
        log = self.log
        if log.step is None or log.driver in ("pipelining", "megatron"):
            return None
        member = self._member(group, peer, ahead, behind)
        if member is None:
            return None
        if self.batch is not None:
            self.batch.members.append(member)
            return None
        return Transfer([member], log.clock.now(), log.n_computes)

    def before_batch(self, *_args: Any, **_kwargs: Any) -> None:
        if self.log.driver not in ("pipelining", "megatron"):
            self.batch = Transfer([], self.log.clock.now(), self.log.n_computes)

    def after_batch(self, _token: None, works: Any) -> None:
        transfer, self.batch = self.batch, None
        if transfer is not None and transfer.members:
            self.log.launch(transfer, works)
