"""Other pauses: stalls inside computes that nothing explains."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component("pause", Part, inside=Whose.NOBODY)
