"""The faults of the table, each in one place: what it does to a job, and what a diagnosis has to say of it.

All lengths are parts of the step that the healthy job of the same framework has by its plan.
"""

import dataclasses
from typing import Literal

#: What a healthy job may be said to lose to a cause; above it something is named that is not there.
NOTHING = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to a job; nothing, as it stands."""

    title: str
    #: The cause that has to come first; None where none may be named above `NOTHING`.
    cause: str | None = None
    #: What `where` of that cause has to hold: the slow worker, the slow loader, all or none of them, the last stage, anything.
    place: Literal["slow-rank", "slow-loader", "spread", "last-stage", "any"] = "any"
    #: Computes of one rank are so much longer, from this step on.
    slowdown: float = 1.0
    slow_from: int = 0
    #: Parts of a step that a loader takes for the batches of one step, on one rank or on all.
    load: float = 0.0
    loads_on: Literal["one", "all"] = "all"
    #: Processes of the loader; the more, the longer each takes.
    workers: int = 0
    #: Parts of a step that a collection takes, every so many steps, in the same step on all ranks or each rank in its own.
    collect: float = 0.0
    collect_every: int = 0
    collects: Literal["together", "in-turns"] = "together"
    #: Forwards of an evaluation, and parts of a step that a save takes, every so many steps.
    evaluate: int = 0
    evaluate_every: int = 0
    save: float = 0.0
    save_every: int = 0
    #: Backwards until the optimizer runs, where the framework has no microbatches of its own.
    accumulate: int = 1
    #: The loss is this part of a stage's compute.
    loss: float = 0.0
    needs_stages: bool = False


FAULTS = {
    "healthy": Fault(title="healthy"),
    "slow-rank": Fault(title="one rank 1.6x slow", cause="worker-fault", place="slow-rank", slowdown=1.6),
    "slow-from-20": Fault(
        title="the same from step 20", cause="worker-fault", place="slow-rank", slowdown=1.6, slow_from=20
    ),
    "loader-one": Fault(
        title="loader slow on one rank", cause="data-loading", place="slow-loader", load=0.6, loads_on="one"
    ),
    "loader-all": Fault(title="loader slow on all ranks", cause="data-loading", place="spread", load=0.6),
    "loader-workers": Fault(
        title="loader slow every 4 steps (4 workers)", cause="data-loading", place="spread", load=2.2, workers=4
    ),
    "gc-together": Fault(
        title="collections on all ranks", cause="garbage-collection", place="spread", collect=0.6, collect_every=3
    ),
    "gc-in-turns": Fault(
        title="collections rank by rank",
        cause="garbage-collection",
        place="spread",
        collect=0.6,
        collect_every=4,
        collects="in-turns",
    ),
    "evaluation": Fault(title="evaluation every 10 steps", evaluate=4, evaluate_every=10),
    "save": Fault(title="a save every 10 steps", cause="checkpoint-stall", save=3.0, save_every=10),
    "accumulation": Fault(title="accumulation by 4", accumulate=4),
    "long-loss": Fault(
        title="last stage long", cause="stage-imbalance", place="last-stage", loss=0.6, needs_stages=True
    ),
}
