"""Late workers at the start of a step: operations that wait for nothing start late, as after writing a checkpoint."""

from diagnose.model.stalls import Whose
from diagnose.whatif.components.component import Component, Part

COMPONENT = Component(
    "start-delay",
    Part,
    inside=Whose.SAVING,
    before=Whose.SAVING,
    owns_delay=lambda o, node: not o.graph.waits[node],
)
