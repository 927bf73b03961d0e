"""Since when a cause is there, and how often."""

from collections.abc import Sequence

from diagnose.judge.confidence import is_rare
from diagnose.model.analysis import Analysis
from diagnose.model.cause import When

#: Stalls of which at least this part lies on the period are periodic.
PERIODIC_FROM = 0.5
#: ... and so many times the part of stalls in every step that lies there: half of these keep a period of two steps.
BEYOND_EVERY_STEP = 1.5


def date_cause(analysis: Analysis, components: Sequence[str], place: str) -> When:
    """Say since when components cost time, and how often; `place` is the rule's."""
    if place == "stages":
        return When("constant")
    period_steps = _find_period(analysis, components)
    if period_steps is not None:
        return When("periodic", period_steps=period_steps)
    course = analysis.courses.get("+".join(components))
    if course is None and analysis.gains.traits_of(components).seldom:
        return When("sporadic")
    return course.when if course else When()


def _find_period(analysis: Analysis, components: Sequence[str]) -> float | None:
    """Give the steps from one stall of all workers to the next; None where they do not come regularly."""
    period, regular = analysis.features.get("stall.period_steps"), analysis.features.get("stall.regularity")
    stops_all = analysis.gains.traits_of(components).stops_all
    if not stops_all or period is None or regular is None or is_rare(analysis, components):
        return None
    steps = period.value or 0.0
    is_periodic = steps > 1 and (regular.value or 0.0) >= max(PERIODIC_FROM, BEYOND_EVERY_STEP / steps)
    return period.value if is_periodic else None
