"""What a job's times are made of: the parts that the component what-if removes one by one."""

import dataclasses

from diagnose.model.trace import Bools, Ints, Seconds

#: Every component in the order in which it is taken out of the times, with what it is in words.
COMPONENTS: dict[str, str] = {
    "stage": "uneven pipeline stages",
    "worker": "slow workers",
    "microbatch": "uneven microbatches",
    "step": "slow computes of whole steps",
    "pause": "pauses inside computes",
    "transfer": "slow transfers",
    "input-delay": "launch delay before forwards of the first stage",
    "start-delay": "late workers at the start of a step",
    "launch-delay": "launch delay elsewhere",
    "between-steps": "time between or at the end of steps",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Components:
    """Compute durations taken apart: duration = typical x stage x step x worker x microbatch x rest + pause.

    Axes: direction (0 forward, 1 backward), virtual stage (chunk x n_stages + stage), microbatch, step (in the order of
    the blocks), dp rank. All factors are ratios around 1.

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
    worker_excess : ndarray of float64, shape (n_dp, n_stages, n_steps)
        Log of each worker's pace against its peers on the same stage, workload taken out; slow or not.
    microbatch_ratio : ndarray of float64, shape (2, n_microbatches, n_steps, n_dp)
        How long a microbatch takes on every stage against a typical one; 1 where the job has no such pattern.
    pause_s : ndarray of float64, shape as `compute_s`
        Seconds beyond what the factors say, where they stand out.
    noise_ratio : float
        Robust relative spread of what is left.
    pause_evidence : dict of str to float
        Part of the pauses' seconds that lies in operations with evidence rows of that type inside (`gc`, `cuda-malloc`,
        `data-load`); empty where there is no pause.
    forward_backward_correlation, microbatch_spread : float or None
        Of the microbatches' forward and backward times, and robust spread of the forward; None with fewer than 8 values.
    """

    steps: Ints
    compute_s: Seconds
    typical_s: Seconds
    step_ratio: Seconds
    worker_ratio: Seconds
    slow_workers: Bools
    worker_excess: Seconds
    microbatch_ratio: Seconds
    pause_s: Seconds
    noise_ratio: float
    pause_evidence: dict[str, float]
    forward_backward_correlation: float | None
    microbatch_spread: float | None


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
    """

    recorded_s: float
    replayed_s: float
    clean_s: float
    replayed_steps_s: Seconds
    alone_steps_s: dict[str, Seconds]
    alone_s: dict[str, float]
    last_s: dict[str, float]
    share: dict[str, float]
    blame_s: dict[str, Seconds]

    def recoverable(self, name: str) -> float:
        """Part of the recorded step time that comes back when that component alone is removed."""
        return (self.replayed_s - self.alone_s[name]) / self.recorded_s if name in self.alone_s else 0.0

    def recoverable_last(self, name: str) -> float:
        """Part of the step time that comes back when that component is removed after all others."""
        return (self.last_s[name] - self.clean_s) / self.last_s[name] if name in self.last_s else 0.0
