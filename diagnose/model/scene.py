"""A diagnosis with all that pictures of it need."""

import dataclasses
from collections.abc import Mapping

from diagnose.model.change import Change
from diagnose.model.components import Components, Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis import Diagnosis
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
    """

    diagnosis: Diagnosis
    trace: Trace
    components: Components
    gains: Gains
    transfers: Transfers
    courses: Mapping[str, Course]
    timelines: Timelines
    plan: tuple[Change, ...]
