"""Launch delay elsewhere: operations start later than all that they wait for, and no other component owns that."""

from diagnose.model.stalls import StallKind
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component("launch-delay", Part, before=StallKind.NOBODY)
