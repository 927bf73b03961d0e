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
    "step": "slow computes of whole steps",
    "gc-pause": "pauses like those of garbage collection",
    "malloc-pause": "pauses like those of the memory allocator",
    "input-delay": "waiting for input",
    "pause": "other pauses inside computes",
    "transfer": "slow transfers",
    "start-delay": "late workers at the start of a step",
    "end-delay": "long or late optimizers",
    "other-work": "uneven work of other types",
    "launch-delay": "launch delay elsewhere",
    "between-steps": "time between or at the end of steps",
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
    """What is special about a component, for who judges what it costs.

    Attributes
    ----------
    whom : str
        Who is to blame: `blamed` are the workers that its seconds lie on, `workers` those that are slow in all they compute,
        `links` slow links, network cards or groups.
    few_stages : bool
        Only workers of some stages can have it: those that read data.
    seldom : bool
        A short trace has a handful of its stalls: their mean is known only up to chance.
    stops_all : bool
        It stops all workers together, and may come at regular intervals.
    border : str or None
        At which end of a step it loses time: `start` or `end`; None inside the step.
    stall_kind : StallKind or None
        Stalls of this kind show since when it is there; None where the step times do.
    is_excused : callable
        Says by the features of a job, and the components that are explained, whether its time needs no explanation.
    excuse : str
        When its time is lost where it is excused.
    why_unmeasured : callable
        Says by the `Breakdown` of a job why nobody can tell what it costs; empty where somebody can.
    """

    whom: Literal["blamed", "workers", "links"] = "blamed"
    few_stages: bool = False
    seldom: bool = False
    stops_all: bool = False
    border: Literal["start", "end"] | None = None
    stall_kind: StallKind | None = None
    is_excused: Callable[[Features, Collection[str]], bool] = never_excused
    excuse: str = "in one step"
    why_unmeasured: "Callable[[Breakdown], str]" = always_measured


NOTHING_SPECIAL = Traits()


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """What uneven experts explain: the same (step, virtual stage, microbatch) is long in both directions, on that stage alone.

    Attributes
    ----------
    ratio : ndarray of float64, axes as in `Breakdown`, or None
        How long a compute takes against the mean of its virtual stage and direction; None where experts explain nothing.
    explained : float or None
        Part of what varies from microbatch to microbatch that the other direction of the same compute predicts where it was not
        fitted, beyond what other stages and neighbours in time predict; None where nobody can tell.
    alone_share : float or None
        Part of what forward and backward of a microbatch share that other stages do not, 0..1; None with one stage.
    alike : float or None
        Part of it that data-parallel ranks of one group share, 0..1, and `group` how many ranks, one after the other, that are;
        None where no compute is uneven, or with one rank.
    tokens_fit : float or None
        Part of the variation of computes that `expert_tokens` predict where they were not fitted; None without them.
    """

    ratio: Seconds | None = None
    explained: float | None = None
    alone_share: float | None = None
    alike: float | None = None
    group: int = 1
    tokens_fit: float | None = None


NO_EXPERTS = Experts()


@dataclasses.dataclass(frozen=True, slots=True)
class Breakdown:
    """Compute durations taken apart: duration = typical x stage x step x worker x microbatch x expert x rest + pause + queue wait.

    Axes: direction (0 forward, 1 backward; where backwards are split 1 is the input's gradient and 2 the weights'), virtual stage
    (chunk x n_stages + stage), microbatch, step (in the order of the blocks), dp rank. All factors are ratios around 1.

    Attributes
    ----------
    steps : ndarray of int64, shape (n_steps,)
    compute_s : ndarray of float64, shape (2, n_virtual, n_microbatches, n_steps, n_dp)
        Recorded durations, seconds; NaN where there is none.
    typical_s : ndarray of float64, shape (2, n_virtual)
        Usual duration on each virtual stage.
    step_ratio : ndarray of float64, shape (2, n_steps)
        How long all computes of a step are against the usual step.
    worker_ratio : ndarray of float64, shape (2, n_virtual, n_steps, n_dp)
        How long a slow worker takes against its peers; exactly 1 for all others.
    slow_workers : ndarray of bool, shape (n_dp, n_stages)
    microbatch_ratio : ndarray of float64, shape (2, n_microbatches, n_steps, n_dp)
        How long a microbatch takes on every stage against a typical one; 1 where the job has no such pattern.
    microbatch_ordinary : ndarray of float64, shape (n_dp,), or float
        Part of the logarithm of `microbatch_ratio` that is ordinary variation and stays when the unevenness goes, 0..1.
    microbatch_told : ndarray of float64, shape (n_microbatches, n_steps, n_dp), or float
        Part of `microbatch_ratio` that tokens tell by which ranks have more all the time: none of it is ordinary, but these ranks
        may be slow by themselves. 1 where they tell nothing so.
    queue_wait_s : ndarray of float64, shape as `compute_s`, or None
        Seconds in which a compute waited for communication in flight; None where none does.
    stalls : Stalls
        Seconds beyond what the factors say, where they stand out, and seconds before computes.
    noise_ratio : float
        Robust relative spread of what is left.
    waited_for : tuple of dict, one a block, or empty
        For the computes that waited for communication in flight, by node: the nodes that they waited for, each with its lanes,
        bool of shape (n_steps, n_dp).
    late_s : tuple of dict of int to ndarray of float64, shape (n_steps, n_dp), one a block
        Launch delays beyond the ordinary, or that rows explain, seconds by node.
    late_kinds : tuple of dict of int to ndarray of int8, shape (n_steps, n_dp), one a block, or empty
        What they are attributed to, a `StallKind`, by node; of computes `stalls` says it.
    late_for_others : tuple of dict of int to ndarray of bool, shape (n_steps, n_dp), one a block, or empty
        True where a row of another worker says what everybody waited for.
    start_s : ndarray of float64, shape (n_stages, n_steps, n_dp), or None
        Seconds by which workers begin a step late, computes left out, as they wait for input; None where none does.
    start_recorded : ndarray of bool, shape as `start_s`, or None
        True where a row says so.
    collected_s : ndarray of float64, shape as `start_s`, or None
        Seconds by which rows say that workers begin a step late for a collection, computes left out; None where none does.
    between_s : dict of StallKind to ndarray of float64, shape (n_steps,)
        Time between steps that rows explain by something that is no save, seconds by what it is.
    led_s : ndarray of float64, shape (n_dp, n_stages), or None
        Seconds a step for which rows say that a worker waited for input while nobody had begun the step; None where none does.
    queue_deviations : float
        By how many standard deviations more computes wait for communication in flight than by chance; 0 where none does.
    forward_backward_correlation, microbatch_spread : float or None
        Of the microbatches' forward and backward times, and robust spread of the forward; None with fewer than 8 values.
    stage_share : float or None
        Part of what forward and backward of a compute have in common that other stages have, too, about 0..1; None with one stage.
    experts : Experts
        What uneven experts explain of what is left.
    variant_ratio : ndarray of float64, broadcastable to `compute_s`, or float
        How long the schedule makes a compute against the ordinary one: beside another one, a whole backward among split ones, the
        weight gradients of several microbatches.
    has_token_costs : bool
        Token columns tell how long microbatches are: who has more of them is not taken for slow.
    """

    steps: Ints
    compute_s: Seconds
    typical_s: Seconds
    step_ratio: Seconds
    worker_ratio: Seconds
    slow_workers: Bools
    microbatch_ratio: Seconds
    queue_wait_s: Seconds | None
    stalls: Stalls
    noise_ratio: float
    forward_backward_correlation: float | None
    microbatch_spread: float | None
    stage_share: float | None = None
    waited_for: tuple[Mapping[int, Mapping[int, Bools]], ...] = ()
    microbatch_ordinary: Seconds | float = 0.0
    microbatch_told: Seconds | float = 1.0
    late_s: tuple[Mapping[int, Seconds], ...] = ()
    late_kinds: tuple[Mapping[int, Kinds], ...] = ()
    late_for_others: tuple[Mapping[int, Bools], ...] = ()
    start_s: Seconds | None = None
    start_recorded: Bools | None = None
    collected_s: Seconds | None = None
    between_s: Mapping[StallKind, Seconds] = dataclasses.field(default_factory=dict)
    led_s: Seconds | None = None
    queue_deviations: float = 0.0
    experts: Experts = NO_EXPERTS
    variant_ratio: Seconds | float = 1.0
    has_token_costs: bool = False

    @property
    def alike_s(self) -> Seconds:
        """Recorded durations as if all computes of a direction were ordinary ones, axes as `compute_s`."""
        return np.asarray(self.compute_s / self.variant_ratio)


@dataclasses.dataclass(frozen=True, slots=True)
class Gains:
    """What comes back when components are removed, by replay with launch delays; mean seconds a step.

    Attributes
    ----------
    recorded_s : float
        With the time between steps.
    replayed_s : float
        The same by replay: differs from `recorded_s` only by the error of the replay.
    clean_s : float
        Every component removed; ordinary variation kept.
    replayed_steps_s : ndarray of float64, shape (n_steps,)
        The replayed step times behind `replayed_s`.
    clean_steps_s : ndarray of float64, shape (n_steps,)
        The step times behind `clean_s`.
    alone_steps_s : dict of str to ndarray of float64, shape (n_steps,)
        Step times without that component.
    alone_s : dict of str to float
        Their mean.
    last_s : dict of str to float
        Step time without all others: what is left to gain after them.
    share : dict of str to float
        Shapley share of the lost time (replayed - clean) for each component that matters; empty where nothing was lost.
    blame_s : dict of str to ndarray of float64, shape (n_dp, n_stages)
        Seconds of a component on each worker, mean a step, whether they lay on the critical path or not.
    traits : dict of str to Traits
        What is special about each component there is.
    """

    recorded_s: float
    replayed_s: float
    clean_s: float
    replayed_steps_s: Seconds
    clean_steps_s: Seconds
    alone_steps_s: dict[str, Seconds]
    alone_s: dict[str, float]
    last_s: dict[str, float]
    share: dict[str, float]
    blame_s: dict[str, Seconds]
    traits: Mapping[str, Traits] = dataclasses.field(default_factory=dict)

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
