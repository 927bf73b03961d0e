"""What a job's times are made of: the parts that the component what-if removes one by one."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import numpy as np

from diagnose.model.feature import Features
from diagnose.model.stalls import Kinds, StallKind, Stalls
from diagnose.model.trace import Bools, Ints, Seconds

#: Every component in the order in which it is taken out of the times, with what it is in words. A new one is a line here and a
#: file of its name in `whatif/components/`.
COMPONENTS: dict[str, str] = {
    "queue": "computes queued behind communication in flight",
    "stage": "uneven pipeline stages",
    "worker": "slow workers",
    "microbatch": "uneven microbatches",
    "expert": "uneven experts",
    "evaluation": "evaluation, logging and other planned work",
    "step": "steps slow on most workers",
    "gc-pause": "pauses like those of garbage collection",
    "malloc-pause": "pauses like those of the memory allocator",
    "input-delay": "waiting for input",
    "pause": "pauses in forwards or backwards",
    "transfer": "slow transfers",
    "start-delay": "late workers at the start of a step",
    "end-delay": "long or late optimizers",
    "other-work": "uneven work of other types",
    "launch-delay": "operations that start late",
    "between-steps": "gaps between steps or at their end",
}


#: The component that a stall of some kind belongs to.
STALLED: dict[StallKind, str] = {
    StallKind.COLLECTION: "gc-pause",
    StallKind.ALLOCATION: "malloc-pause",
    StallKind.INPUT: "input-delay",
    StallKind.SAVING: "end-delay",
    StallKind.WORKER: "worker",
    StallKind.QUEUE: "queue",
    StallKind.PLANNED: "evaluation",
    StallKind.OTHER: "other-work",
}


def never_excused(_features: Features, _explained: Collection[str]) -> bool:
    """Say no: its time always needs an explanation."""
    return False


def always_measured(_breakdown: "Breakdown") -> str:
    """Give no reason: what it costs can always be told."""
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """What is special about a component, for who judges what it costs."""

    #: Who is to blame: `blamed` are the workers that its seconds lie on, `workers` those that are slow in all they compute,
    #: `links` slow links, network cards or groups.
    whom: Literal["blamed", "workers", "links"] = "blamed"
    #: Only workers of some stages can have it: those that read data.
    few_stages: bool = False
    #: A short trace has a handful of its stalls: their mean is known only up to chance.
    seldom: bool = False
    #: It stops all workers together, and may come at regular intervals.
    stops_all: bool = False
    #: At which end of a step it loses time: `start` or `end`; None inside the step.
    border: Literal["start", "end"] | None = None
    #: Stalls of this kind show since when it is there; None where the step times do.
    stall_kind: StallKind | None = None
    #: Says by the features of a job, and the components that are explained, whether its time needs no explanation.
    is_excused: Callable[[Features, Collection[str]], bool] = never_excused
    #: What of it comes and goes everywhere is ordinary variation, as long as it does not make a job straggle by itself.
    varies: bool = False
    #: When its time is lost where it is excused.
    excuse: str = "in one step"
    #: Says by the `Breakdown` of a job why nobody can tell what it costs; empty where somebody can.
    why_unmeasured: "Callable[[Breakdown], str]" = always_measured


NOTHING_SPECIAL = Traits()


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """What uneven experts explain: the same (step, virtual stage, microbatch) is long in both directions, on that stage alone."""

    #: Axes as in `Breakdown`: how long a compute takes against one with evenly dealt tokens, or, where no tokens are known, against
    #: the mean of its virtual stage and direction; None where experts explain nothing.
    ratio: Seconds | None = None
    #: Part of what varies from microbatch to microbatch that the other direction of the same compute predicts where it was not
    #: fitted, beyond what other stages and neighbours in time predict; None where nobody can tell.
    explained: float | None = None
    #: Part of what forward and backward of a microbatch share that other stages do not, 0..1; None with one stage.
    alone_share: float | None = None
    #: Part of it that data-parallel ranks of one group share, 0..1, and `group` how many ranks, one after the other, that are;
    #: None where no compute is uneven, or with one rank.
    alike: float | None = None
    group: int = 1
    #: Part of the variation of computes that `expert_tokens` predict where they were not fitted; None without them.
    tokens_fit: float | None = None
    #: Part of what ranks vary by from step to step that others of their stage make up for, 0..1; None where nobody knows of
    #: experts, or their tokens tell.
    moved: float | None = None


NO_EXPERTS = Experts()


@dataclasses.dataclass(frozen=True, slots=True)
class Breakdown:
    """Compute durations taken apart: duration = typical x stage x step x worker x microbatch x expert x rest + pause + waits.

    Axes: direction (0 forward, 1 backward; where backwards are split 1 is the input's gradient and 2 the weights'), virtual stage
    (chunk x n_stages + stage), microbatch, step (in the order of the blocks), dp rank. All factors are ratios around 1.
    """

    #: Shape (n_steps,).
    steps: Ints
    #: Shape (2, n_virtual, n_microbatches, n_steps, n_dp): recorded durations, seconds; NaN where there is none.
    compute_s: Seconds
    #: Shape (2, n_virtual): usual duration on each virtual stage.
    typical_s: Seconds
    #: Shape (2, n_steps): how long all computes of a step are against the usual step.
    step_ratio: Seconds
    #: Shape (2, n_virtual, n_steps, n_dp): how long a slow worker takes against its peers; exactly 1 for all others.
    worker_ratio: Seconds
    #: Shape (n_dp, n_stages).
    slow_workers: Bools
    #: Shape (2, n_microbatches, n_steps, n_dp): how long a microbatch takes on every stage against a typical one; 1 where the
    #: job has no such pattern.
    microbatch_ratio: Seconds
    #: Shape as `compute_s`: seconds in which a compute waited for communication in flight; None where none does.
    queue_wait_s: Seconds | None
    #: Seconds beyond what the factors say, where they stand out, and seconds before computes.
    stalls: Stalls
    #: Robust relative spread of what is left.
    noise_ratio: float
    #: `forward_backward_correlation`, `microbatch_spread`: of the microbatches' forward and backward times, and robust spread
    #: of the forward; None with fewer than 8 values.
    forward_backward_correlation: float | None
    microbatch_spread: float | None
    #: Part of what forward and backward of a compute have in common that other stages have, too, about 0..1; None with one
    #: stage.
    stage_share: float | None = None
    #: One a block, or empty: for the computes that waited for communication in flight, by node: the nodes that they waited for,
    #: each with its lanes, bool of shape (n_steps, n_dp).
    waited_for: tuple[Mapping[int, Mapping[int, Bools]], ...] = ()
    #: Shape (n_dp,), or one number: part of the logarithm of `microbatch_ratio` that is ordinary variation and stays when the
    #: unevenness goes, 0..1.
    microbatch_ordinary: Seconds | float = 0.0
    #: Shape (n_microbatches, n_steps, n_dp), or one number: part of `microbatch_ratio` that tokens tell, none of which is ordinary.
    #: 1 where they tell nothing.
    microbatch_told: Seconds | float = 1.0
    #: They tell it by which ranks have more all the time, which may be slow by themselves.
    is_told_by_ranks: bool = False
    #: One a block, each of shape (n_steps, n_dp): launch delays beyond the ordinary, or that rows explain, seconds by node.
    late_s: tuple[Mapping[int, Seconds], ...] = ()
    #: One a block, each of shape (n_steps, n_dp), or empty: what they are attributed to, a `StallKind`, by node; of computes
    #: `stalls` says it.
    late_kinds: tuple[Mapping[int, Kinds], ...] = ()
    #: One a block, each of shape (n_steps, n_dp), or empty: True where a row of another worker says what everybody waited for.
    late_for_others: tuple[Mapping[int, Bools], ...] = ()
    #: Shape (n_stages, n_steps, n_dp): seconds by which workers begin a step late, computes left out, as they wait for input;
    #: None where none does.
    start_s: Seconds | None = None
    #: Shape as `start_s`: True where a row says so.
    start_recorded: Bools | None = None
    #: Shape as `start_s`: seconds by which rows say that workers begin a step late for a collection, computes left out; None
    #: where none does.
    collected_s: Seconds | None = None
    #: Shape (n_steps,): time between steps that rows explain by something that is no save, seconds by what it is.
    between_s: Mapping[StallKind, Seconds] = dataclasses.field(default_factory=dict)
    #: Shape (n_dp, n_stages): seconds a step for which rows say that a worker waited for input while nobody had begun the step;
    #: None where none does.
    led_s: Seconds | None = None
    #: By how many standard deviations more computes wait for communication in flight than by chance; 0 where none does.
    queue_deviations: float = 0.0
    #: Part of these waits that are for parameters which the same compute always waits for.
    queue_on_purpose: float = 0.0
    #: The same, for sends of the worker, which may block it.
    queue_blocking: float = 0.0
    #: Part of the seconds that they wait for transfers that stand out among their like.
    queue_behind_slow: float = 0.0
    #: Shape (n_steps, n_dp, n_stages): how many times as long as its peers' the optimizers of a worker take that is slow in these
    #: alone; 1 elsewhere. None where nobody is.
    optimizer_ratio: Seconds | None = None
    #: What uneven experts explain of what is left.
    experts: Experts = NO_EXPERTS
    #: Broadcastable to `compute_s`, or one number: how long the schedule makes a compute against the ordinary one: beside
    #: another one, a whole backward among split ones, the weight gradients of several microbatches.
    variant_ratio: Seconds | float = 1.0
    #: For each block what each transfer that stands out took beyond ordinary ones, seconds by node, shape (n_steps, n_dp), and how
    #: far ordinary ones spread there.
    transfers: tuple[tuple[dict[int, Seconds], dict[int, float]], ...] = ()
    #: Seconds that transfers stood still with a process, by what that stood still for: by node, one dict a block.
    frozen_s: Mapping[StallKind, tuple[dict[int, Seconds], ...]] = dataclasses.field(default_factory=dict)
    #: Shape as `compute_s`: seconds in which a compute waited for collectives within it beyond what ordinary ones take; None where
    #: none does.
    transfer_wait_s: Seconds | None = None
    #: Token columns tell how long microbatches are: who has more of them is not taken for slow.
    has_token_costs: bool = False

    @property
    def alike_s(self) -> Seconds:
        """Recorded durations as if all computes of a direction were ordinary ones, axes as `compute_s`."""
        return np.asarray(self.compute_s / self.variant_ratio)

    @property
    def is_stopped(self) -> bool:
        """Say whether messages stood still with slow workers, as whole processes do."""
        return any(self.frozen_s.get(StallKind.WORKER, ()))


@dataclasses.dataclass(frozen=True, slots=True)
class Gains:
    """What comes back when components are removed, by replay with launch delays; mean seconds a step."""

    #: With the time between steps.
    recorded_s: float
    #: The same by replay: differs from `recorded_s` only by the error of the replay.
    replayed_s: float
    #: Every component removed; ordinary variation kept.
    clean_s: float
    #: Shape (n_steps,): the replayed step times behind `replayed_s`.
    replayed_steps_s: Seconds
    #: Shape (n_steps,): the step times behind `clean_s`.
    clean_steps_s: Seconds
    #: Shape (n_steps,): step times without that component.
    alone_steps_s: dict[str, Seconds]
    #: Their mean.
    alone_s: dict[str, float]
    #: Step time without all others: what is left to gain after them.
    last_s: dict[str, float]
    #: Shape (n_steps,): the step times behind it.
    last_steps_s: dict[str, Seconds]
    #: Shapley share of the lost time (replayed - clean) for each component that matters; empty where nothing was lost.
    share: dict[str, float]
    #: Shape (n_dp, n_stages): seconds of a component on each worker, mean a step, whether they lay on the critical path or not.
    blame_s: dict[str, Seconds]
    #: What is special about each component there is.
    traits: Mapping[str, Traits] = dataclasses.field(default_factory=dict)
    #: By which part of them steps are off that are replayed with computes waiting for communication in flight, as they seem to.
    waits_error: float = 0.0

    def recoverable(self, name: str) -> float:
        """Part of the recorded step time that comes back when that component alone is removed."""
        return (self.replayed_s - self.alone_s[name]) / self.recorded_s if name in self.alone_s else 0.0

    def recoverable_last(self, name: str) -> float:
        """Part of the step time that comes back when that component is removed after all others."""
        return (self.last_s[name] - self.clean_s) / self.last_s[name] if name in self.last_s else 0.0

    def traits_of(self, names: Sequence[str]) -> Traits:
        """Give what is special about components that one cause stands for: all must be so; to stop all workers one is enough."""
        each = [self.traits.get(name, NOTHING_SPECIAL) for name in names]
        whom = {traits.whom for traits in each}
        return Traits(
            whom=whom.pop() if len(whom) == 1 else "blamed",
            few_stages=all(traits.few_stages for traits in each),
            seldom=all(traits.seldom for traits in each),
            stops_all=any(traits.stops_all for traits in each),
        )
