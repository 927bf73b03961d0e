"""Pauses of the memory allocator: workers whose memory is nearly full stop, in backwards too."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component("malloc-pause", Part, inside=Whose.ALLOCATION, before=Whose.ALLOCATION)
