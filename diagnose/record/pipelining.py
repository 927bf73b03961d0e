"""Hooks for torch.distributed.pipelining: GPipe, 1F1B, looped schedules and those that split the backward.

Enters: stages and schedules as they run. Leaves: computes and transfers with their microbatch and stage, wherever stages are
placed: around the ranks, or in a V (ZBV, DualPipeV), where neighbours on one rank hand over without a transfer.
"""

from typing import Any

from diagnose.model.optype import Op
from diagnose.record.data_parallel import Reductions
from diagnose.record.hooks import Hooks
from diagnose.record.log import BACKWARD, FORWARD, Compute, Log, Transfer
from diagnose.record.parallel_state import ParallelState

#: What a stage lists before it communicates, and what that is.
LISTED = {
    "get_fwd_recv_ops": Op.FORWARD_RECV,
    "get_fwd_send_ops": Op.FORWARD_SEND,
    "get_bwd_recv_ops": Op.BACKWARD_RECV,
    "get_bwd_send_ops": Op.BACKWARD_SEND,
}
#: What schedules are called in the metadata of a trace, by their class.
SCHEDULES = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
    "ScheduleLoopedBFS": "looped-bfs",
    "ScheduleInterleavedZeroBubble": "zero-bubble",
    "ScheduleZBVZeroBubble": "zbv",
    "ScheduleDualPipeV": "dualpipev",
}
#: Where a listed operation carries what it is.
LABEL = "_diagnose_member"


def hook_pipelining(hooks: Hooks, log: Log, state: ParallelState, reductions: Reductions) -> None:
    """Note what pipeline schedules do."""
    from torch.distributed.pipelining import schedules, stage

    base = stage._PipelineStageBase  # noqa: SLF001 - what is public leads through it
    pipeline = _Pipelining(log, state, reductions)
    for schedule in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        hooks.around(schedule, "step", log.beside, pipeline.before_schedule, pipeline.after_schedule)
    hooks.around(
        schedules._PipelineSchedule,  # noqa: SLF001
        "_maybe_compute_loss",
        log.inside,
        pipeline.before_loss,
        log.end,
    )
    hooks.around(base, "forward_one_chunk", log.inside, pipeline.before_forward, log.end)
    hooks.around(base, "backward_one_chunk", log.inside, pipeline.before_backward, pipeline.after_backward)
    hooks.around(base, "backward_weight_one_chunk", log.inside, pipeline.before_weight, log.end)
    hooks.around(base, "perform_reduce_grad", log.inside, pipeline.before_reduce, log.end_reduction)
    # Stages that were traced or made by hand share the base's functions; a subclass with its own is hooked by itself.
    for owner in (base, stage.PipelineStage):
        for name, op in LISTED.items():
            if name in vars(owner):
                hooks.around(owner, name, log.inside, pipeline.before_listing(op), pipeline.after_listing)
    hooks.around(schedules, "_batch_p2p", log.inside, pipeline.before_batch, log.launch)


class _Pipelining:
    """What the hooks share."""

    def __init__(self, log: Log, state: ParallelState, reductions: Reductions) -> None:
        self.log = log
        self.state = state
        self.reductions = reductions
        #: Number of this schedule's first microbatch in the step.
        self.first = 0

    def before_schedule(self, schedule: Any, *_args: Any, **_kwargs: Any) -> None:
        stages = schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]  # noqa: SLF001
        if not schedule._has_backward:  # noqa: SLF001
            self.log.driver = "evaluation"
            self.log.note_evaluation()
            return
        if not self.log.inside.on:
            return
        self.first = self.log.n_microbatches
        chunks = tuple(stage.stage_index for stage in stages)
        self.state.note_pipeline(stages[0].group, stages[0].group_rank, stages[0].group_size, chunks)
        self.state.schedule = SCHEDULES.get(type(schedule).__name__, "")
        self.log.driver = "pipelining"

    def after_schedule(self, _token: None, _result: Any) -> None:
        if self.log.driver == "evaluation":
            self.log.note_evaluation()
        self.log.driver = ""

    def _is_ours(self) -> bool:
        return self.log.driver == "pipelining"

    def before_forward(self, stage: Any, fwd_chunk_id: int, *_args: Any, **_kwargs: Any) -> Compute | None:
        return self.log.begin(FORWARD, self.first + fwd_chunk_id, stage.stage_index) if self._is_ours() else None

    def before_backward(
        self,
        stage: Any,
        bwd_chunk_id: int,
        loss: Any = None,  # noqa: ARG002 - as the function that is hooked
        full_backward: bool = True,  # noqa: FBT001, FBT002 - the same
        last_backward: bool = False,  # noqa: FBT001, FBT002 - the same
    ) -> Compute | None:
        if not self._is_ours() or not stage.has_backward:
            return None
        self.reductions.expect(stage.submod, last_backward=last_backward)
        backward = self.log.begin(BACKWARD, self.first + bwd_chunk_id, stage.stage_index)
        backward.is_split = not full_backward
        return backward

    def before_weight(self, stage: Any, bwd_chunk_id: int, *_args: Any, **_kwargs: Any) -> Compute | None:
        return self.log.begin(Op.WEIGHT, self.first + bwd_chunk_id, stage.stage_index) if self._is_ours() else None

    def after_backward(self, compute: Compute | None, _result: Any) -> None:
        if compute is not None:
            self.log.end(compute)
            if self.reductions.expected:
                self.reductions.close(compute)

    def before_loss(self, _schedule: Any, stage: Any, _output: Any, _target: Any, mb_index: int, *_args: Any) -> Any:
        """The loss is part of the last stage's forward."""
        if not (self._is_ours() and stage.is_last and self.log.step is not None):
            return None
        forward = next((c for c in reversed(self.log.step.computes) if c.op == FORWARD), None)
        if forward is None or (forward.microbatch, forward.virtual) != (self.first + mb_index, stage.stage_index):
            return None
        self.log.current = forward
        return forward

    def before_reduce(self, stage: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Sharded stages reduce their gradients after the last backward."""
        if not (self._is_ours() and self.reductions.is_sharded(stage.submod)):
            return None
        return self.log.begin_one()

    def before_listing(self, op: Op) -> Any:
        def before(stage: Any, chunk_id: int, *_args: Any, **_kwargs: Any) -> tuple[Op, int, int]:
            return op, self.first + chunk_id, stage.stage_index

        return before

    def after_listing(self, member: tuple[Op, int, int], listed: Any) -> None:
        for p2p_op in listed:
            setattr(p2p_op, LABEL, member)

    def before_batch(self, p2p_ops: Any, *_args: Any, **_kwargs: Any) -> Transfer | None:
        if not self._is_ours():
            return None
        labels = [getattr(p2p_op, LABEL, None) for p2p_op in p2p_ops]
        members = list(dict.fromkeys(label for label in labels if label is not None))
        return Transfer(members, self.log.clock.now(), self.log.n_computes) if members else None
