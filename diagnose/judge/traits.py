"""What the judge knows of single components: the one file of this folder that names any.

Enters: the components of a rule, features. Leaves: what is special about them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from diagnose.model.feature import Features
from diagnose.model.stalls import StallKind

#: Stalls of single computes that come so seldom that a short trace has a handful of them: their mean is known only up to chance.
SELDOM = {"gc-pause": StallKind.COLLECTION}
#: Stalls of all workers together: they may come at regular intervals.
STOPS = frozenset({"start-delay", "between-steps"})
#: What only the first stage can have.
FIRST_STAGE_ONLY = frozenset({"input-delay"})
#: Steps whose forwards alone are slow on all workers, on one period to this part, are evaluations.
EVALUATION_FORWARD_SHARE = 0.8
EVALUATION_REGULARITY = 0.8


def is_of_workers(components: Sequence[str]) -> bool:
    """Say whether a cause is workers that are slow in all they compute."""
    return tuple(components) == ("worker",)


def is_of_transfers(components: Sequence[str]) -> bool:
    """Say whether a cause is slow transfers."""
    return tuple(components) == ("transfer",)


def is_of_stops(components: Collection[str]) -> bool:
    """Say whether a cause stops all workers together."""
    return not STOPS.isdisjoint(components)


def is_seldom(components: Collection[str]) -> bool:
    """Say whether all components are stalls that come seldom."""
    return SELDOM.keys() >= set(components)


def is_excused(component: str, features: Features, explained: Collection[str]) -> bool:
    """Say whether the time of a component needs no explanation, beside the components that are explained."""
    return component in _EXCUSES and _EXCUSES[component](features, explained)


def _is_evaluation(features: Features, _explained: Collection[str]) -> bool:
    """Say whether the slow steps are evaluations: forwards only, on all workers, at regular intervals. That is no loss."""
    forward, regular = features.get("step.forward_only"), features.get("step.regularity")
    if forward is None or regular is None or forward.value is None or regular.value is None:
        return False
    return forward.value >= EVALUATION_FORWARD_SHARE and regular.value >= EVALUATION_REGULARITY


def _is_beginning(features: Features, _explained: Collection[str]) -> bool:
    """Say whether workers were late once only, in the first step recorded: what begins there costs the job nothing later on."""
    hits, regular = features.get("stall.hits"), features.get("stall.regularity")
    return hits is not None and hits.value == 1.0 and regular is not None and regular.value is None


def _is_slowed(features: Features, explained: Collection[str]) -> bool:
    """Say whether transfers are slow for what slows their workers, or for the contention that computes wait for, too."""
    by_worker = features.get("network.by_slow_worker")
    return "queue" in explained or ("worker" in explained and by_worker is not None and by_worker.value == 1.0)


_EXCUSES: Mapping[str, Callable[[Features, Collection[str]], bool]] = {
    "step": _is_evaluation,
    "start-delay": _is_beginning,
    "transfer": _is_slowed,
}
