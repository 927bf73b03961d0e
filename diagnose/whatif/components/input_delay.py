"""Waiting for input: forwards of the first stage start late, or stand still, until a batch is there."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component("input-delay", Part, inside=Whose.INPUT, before=Whose.INPUT)
