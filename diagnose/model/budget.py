"""Where the GPU-seconds of a step go, and what would change that: the types behind `budget` and `levers` of a diagnosis."""

import dataclasses
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from diagnose.model.plain import says

#: What no cause accounts for, in ledgers, budgets and reports.
UNEXPLAINED = "unexplained"
#: Exposed communication of this part of the step is told of, however usual it is.
MUCH_EXPOSED = 0.1

Share = Annotated[float, Meta(ge=0, le=1)] | None


@dataclasses.dataclass(frozen=True, slots=True)
class CleanStep:
    """The step that is left when every component is removed, taken apart: mean seconds of a worker; together the clean step."""

    #: Some compute runs.
    compute_s: float
    #: The pipeline's shape alone keeps workers waiting: no launch is late, and nothing but computes takes time.
    bubble_s: float
    #: `transfers_s`, `collectives_s`: what point-to-point transfers, and then collectives, add to that; who waits for other
    #: data-parallel ranks does so in these.
    transfers_s: float
    collectives_s: float
    #: What launch delays, and collections of all workers at a planned place, add.
    host_s: float
    #: What rows of types that the format does not name add, where they keep their worker from computing.
    others_s: float
    #: Time between steps.
    between_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        waits_s = self.bubble_s + self.transfers_s + self.collectives_s + self.host_s + self.others_s
        return self.compute_s + waits_s + self.between_s


class HostWait(Struct, frozen=True):
    """What makes the host wait for the GPU, so that the GPU has nothing to do afterwards."""

    operator: Annotated[str, says("the outermost operator; empty where the program calls it itself")]
    call: Annotated[str, says("the call of the runtime")]
    inside: Annotated[str, says("the module or annotation that most are in; empty where none is known")]
    per_step: Annotated[float, says("how often, on the rank whose GPU waits most", ge=0)]
    share: Annotated[float, says("part of its time in which the GPU has nothing to do after it", ge=0, le=1)]
    rank: Annotated[int | None, says("that rank; null where the trace does not say")] = None


class Budget(Struct, frozen=True, kw_only=True):
    """Where the GPU-seconds of all workers and steps go: parts of the recorded time, which with those in `lost` sum to 1.

    A part that was not measured is null, `not_measured` says why, and its time stands in another part that is named there.
    """

    #: The parts in the order in which reports show them.
    PARTS: ClassVar[tuple[str, ...]] = (
        "compute",
        "bubble",
        "exposed_p2p",
        "exposed_collectives",
        "exposed_members",
        "input",
        "checkpoint",
        "evaluation",
        "other_work",
        "host",
        "between_steps",
    )

    compute: Annotated[Share, says("forwards, backwards, optimizers")]
    bubble: Annotated[Share, says("waiting that is due to the pipeline's shape, whatever transfers take")]
    exposed_p2p: Annotated[Share, says("what transfers between stages add to the step")]
    exposed_collectives: Annotated[
        Share, says("what collectives of data-parallel ranks add to it, waits for other ranks in them too")
    ]
    exposed_members: Annotated[Share, says("collectives of tensor- and context-parallel members")]
    input: Annotated[Share, says("waiting for input where no cause says so")]
    checkpoint: Annotated[Share, says("saves where no cause says so")]
    evaluation: Annotated[Share, says("evaluation and other planned work")]
    other_work: Annotated[Share, says("rows of types that the format does not name")]
    host: Annotated[Share, says("the host launches late: launch delays, and kernels that are launched late")]
    between_steps: Annotated[Share, says("after the end of a step, before the next one")]
    lost: Annotated[
        dict[str, Annotated[float, Meta(ge=0, le=1)]],
        says("recorded - clean, by cause; `unexplained` is ordinary variation and what no cause accounts for"),
    ]
    not_measured: Annotated[dict[str, str], says("why a part is null, and where its time is")]
    host_wait: Annotated[
        HostWait | None, says("what makes the host wait; null where the trace has no calls of the host")
    ] = None

    def measured(self) -> dict[str, float]:
        """Give all parts that were measured, in order."""
        return {name: value for name in self.PARTS if (value := getattr(self, name)) is not None}


class Lever(Struct, frozen=True):
    """Something else than mending a cause that would make the job faster, priced by replay of the job without its faults."""

    lever: str
    summary: Annotated[str, says("what to do")]
    how: Annotated[str, says("flags of the job's framework")]
    predicted_step_time: Annotated[float, says("seconds; of the same number of tokens", ge=0)]
    predicted_speedup: Annotated[float, says("against the recorded step time", ge=1)]
    at_most: Annotated[bool, says("it cannot give more: all of it is taken to be hidden")]
    assumes: tuple[str, ...]
