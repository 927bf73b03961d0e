"""A diagnosis with all that pictures of it need."""

import dataclasses
from collections.abc import Mapping

from diagnose.model.change import Change
from diagnose.model.components import Components, Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis import Cause, Diagnosis
from diagnose.model.pictured import NO_RULE, Pictured
from diagnose.model.timeline import Timelines
from diagnose.model.trace import Trace
from diagnose.model.transfers import Transfers


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """What a picture is made from.

    Attributes
    ----------
    diagnosis : Diagnosis
    trace : Trace
    components : Components
        Compute times taken apart: pace of each worker by step, stalls by whose doing, microbatches.
    gains : Gains
        Step times without each component, by step.
    transfers : Transfers
    courses : dict of str to Course
        Since when each component costs time.
    timelines : Timelines
        Draws single steps on demand.
    plan : tuple of Change
        What all fixes of the diagnosis' plan change together; empty where there is none.
    pictured : dict of str to Pictured
        By cause, of every rule.
    """

    diagnosis: Diagnosis
    trace: Trace
    components: Components
    gains: Gains
    transfers: Transfers
    courses: Mapping[str, Course]
    timelines: Timelines
    plan: tuple[Change, ...]
    pictured: Mapping[str, Pictured]

    def causes_of(self, component: str) -> list[Cause]:
        """List the causes found whose rules own a component."""
        return [c for c in self.diagnosis.causes if component in self.pictured.get(c.cause, NO_RULE).components]
