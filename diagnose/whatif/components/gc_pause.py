"""Pauses for garbage collection: Python stops one worker in a forward now and then."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component("gc-pause", Part, inside=Whose.COLLECTION, before=Whose.COLLECTION)
