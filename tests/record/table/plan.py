"""How long the steps of a job take by its plan, and what its fault costs: the truth that a diagnosis is held against.

Enters: a framework and a fault. Leaves: seconds. The order of computes in a pipeline is that of 1F1B, or interleaved 1F1B.
"""

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Sequence

from diagnose.faults.compute_order import order_computes
from diagnose.faults.spec import JobSpec
from diagnose.model.optype import Op
from tests.record.table.fault import Fault
from tests.record.table.framework import Framework


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ranks of one job do, step by step."""

    framework: Framework
    fault: Fault

    @property
    def n_steps(self) -> int:
        """Count the steps: fewer where each is longer."""
        return max(self.framework.steps // self.accumulate, min(self.framework.steps, 15))

    @property
    def accumulate(self) -> int:
        """Say how many backwards a step has because gradients are accumulated: pipelines have microbatches anyway."""
        return self.fault.accumulate if self.framework.microbatches == 1 else 1

    @property
    def microbatches(self) -> int:
        """Count the microbatches of a step."""
        return self.framework.microbatches * self.accumulate

    @functools.cached_property
    def healthy_s(self) -> float:
        """Say how long a step takes without any fault or accumulation: the measure of all pauses."""
        return _replay(self.framework, self.framework.microbatches, {}, {})

    def slowdown(self, rank: int, step: int) -> float:
        """Say how much longer a rank computes than it should."""
        fault = self.fault
        return fault.slowdown if rank == self.framework.slow_rank and step >= fault.slow_from else 1.0

    def collection_s(self, rank: int, step: int) -> float:
        """Say for how long a rank collects garbage in the first forward of a step."""
        fault = self.fault
        turn = rank if fault.collects == "in-turns" else 0
        is_due = fault.collect_every and step % fault.collect_every == turn % fault.collect_every
        return fault.collect * self.healthy_s if is_due else 0.0

    def load_s(self, rank: int) -> float:
        """Say for how long a process of a rank's loader reads the batches of one step."""
        fault, framework = self.fault, self.framework
        is_slow = framework.places[rank][1] == 0 and (fault.loads_on == "all" or rank == framework.slow_loader)
        return fault.load * self.healthy_s * max(fault.workers, 1) if is_slow else 0.0

    @property
    def save_s(self) -> float:
        """Say how long a save takes."""
        return self.fault.save * self.healthy_s

    def is_due(self, every: int, step: int) -> bool:
        """True where something that is done every so many steps follows this step; never after the last."""
        return every > 0 and (step + 1) % every == 0 and step + 1 < self.n_steps

    @property
    def loss_s(self) -> tuple[float, float]:
        """Say how long the loss of a microbatch takes, forward and backward."""
        return self.fault.loss * self.framework.forward_s, self.fault.loss * self.framework.backward_s

    def gain(self, starts_s: Sequence[float], reads_s: Sequence[Sequence[float]]) -> float:
        """Say which part of the step time comes back without the fault; the first step, which makes connections, is none.

        Parameters
        ----------
        starts_s : sequence of float, one a step
            When each step began its first forward, as the job itself saw it.
        reads_s : sequence of sequences of float, one a rank and step
            For how long each rank truly read before that; on a busy host it is longer than planned.
        """
        steps_s = [end - start for start, end in itertools.pairwise(starts_s)][1:]
        mean_s = statistics.mean(steps_s)
        if self.fault.workers:
            # The loader sets the pace. In every four steps one or two wait; the others are as long as they were without it.
            return 1.0 - statistics.quantiles(steps_s, n=10)[2] / mean_s
        lost_s = [self.lost_s(step) for step in range(1, len(steps_s) + 1)]
        if self.fault.load:
            lost_s = [max(of_step) for of_step in zip(*reads_s, strict=True)][2:]
        return statistics.mean(lost_s) / mean_s

    def lost_s(self, step: int) -> float:
        """Say by how much a step is longer, up to the first forward of the next, than it were without the fault."""
        framework, fault = self.framework, self.fault
        if fault.cause is None:
            return 0.0
        lost_s = max(self.load_s(rank) for rank in range(len(framework.places)))
        lost_s += self.save_s * self.is_due(fault.save_every, step)
        slowdowns, pauses_s = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
        for rank, place in enumerate(framework.places):
            slowdowns[place] = max(slowdowns.get(place, 1.0), self.slowdown(rank, step))
            pauses_s[place] = max(pauses_s.get(place, 0.0), self.collection_s(rank, step))
        with_it = _replay(framework, self.microbatches, slowdowns, pauses_s, fault.loss)
        # A long stage has no work too many: without the fault its excess is spread evenly over all of them.
        even = dict.fromkeys(framework.places, 1.0 + fault.loss / framework.n_stages)
        return lost_s + with_it - _replay(framework, self.microbatches, even, {})


def _replay(
    framework: Framework,
    microbatches: int,
    slowdowns: dict[tuple[int, int], float],
    pauses_s: dict[tuple[int, int], float],
    loss: float = 0.0,
) -> float:
    """Say how long one step takes: the slowest data-parallel rank's.

    Parameters
    ----------
    slowdowns, pauses_s : dict from (dp rank, stage)
        Factor on all computes; seconds in the first forward.
    loss : float
        How much longer the last model chunk computes, as a part of its stage's computes of one microbatch.
    """
    pp, chunks = framework.n_stages, framework.chunks
    spec = JobSpec(pp=pp, vpp=chunks, microbatches=microbatches)
    own_s = {Op.FORWARD: framework.forward_s / chunks, Op.BACKWARD: framework.backward_s / chunks}
    last = pp * chunks - 1
    found_s = []
    for dp in sorted({dp for dp, _ in framework.places}):
        waiting = {stage: list(order_computes(spec, stage)) for stage in range(pp)}
        free_s = dict.fromkeys(waiting, 0.0)
        done_s: dict[tuple[Op, int, int], float] = {}
        while any(waiting.values()):
            for stage, todo in waiting.items():
                while todo:
                    op, microbatch, virtual = todo[0].op, todo[0].microbatch, todo[0].chunk * pp + stage
                    before = virtual - 1 if op == Op.FORWARD else virtual + 1
                    needs = (op, microbatch, before)
                    if op == Op.BACKWARD and virtual == last:
                        needs = (Op.FORWARD, microbatch, last)
                    if before >= 0 and needs not in done_s:
                        break
                    seconds = own_s[op] * slowdowns.get((dp, stage), 1.0)
                    seconds += loss * own_s[op] * chunks * (virtual == last)
                    if op == Op.FORWARD and microbatch == 0 and virtual < pp:
                        seconds += pauses_s.get((dp, stage), 0.0)
                    free_s[stage] = max(free_s[stage], done_s.get(needs, 0.0)) + seconds
                    done_s[op, microbatch, virtual] = free_s[stage]
                    todo.pop(0)
        found_s.append(max(free_s.values()))
    return max(found_s)
