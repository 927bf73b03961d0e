"""Everything that is measured of one job."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.model.budget import CleanStep
from diagnose.model.cause import Cause, When
from diagnose.model.change import Change, Price
from diagnose.model.components import Breakdown, Gains
from diagnose.model.course import Course
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.diagnosis_document import Fidelity
from diagnose.model.feature import Features
from diagnose.model.members import LateMember
from diagnose.model.other_work import OtherWork
from diagnose.model.pictured import NO_RULE, Pictured
from diagnose.model.timeline import Timelines
from diagnose.model.trace import Seconds, Trace
from diagnose.model.transfers import Transfers
from diagnose.model.whatif import WhatIf

if TYPE_CHECKING:
    from diagnose.model.explanation import Explanation


#: Of more workers none is dated by itself: that costs.
MANY_WORKERS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Suspects:
    """The places that stand out, whether or not they cost anything."""

    #: Slow workers as (dp index, stage index), worst first.
    workers: Sequence[tuple[int, int]] = ()
    #: Which member of each slow worker the others wait for, where the trace records them.
    late_members: Mapping[tuple[int, int], LateMember] = dataclasses.field(default_factory=dict)
    #: Slow network cards: (dp index, stage index).
    cards: Sequence[tuple[int, int]] = ()
    #: Slow links by their first stage: (direction, stage index, dp index); 0 forwards, 1 backwards, 2 both.
    ways: Sequence[tuple[int, int, int]] = ()
    #: Slow links of data-parallel rings: (stage index, dp index before it, dp index behind it).
    rings: Sequence[tuple[int, int, int]] = ()
    #: Stage indices of slow data-parallel groups.
    groups: Sequence[int] = ()
    #: Indices of the longest stage and those nearly as long, longest first; none with one stage.
    long_stages: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """One job as measured: read, replayed, taken apart. The judge, fixes and pictures all start from it."""

    #: With the evidence rows on the one clock of all else.
    trace: Trace
    #: The paper's measures.
    what_if: WhatIf
    #: Compute times taken apart.
    breakdown: Breakdown
    #: Step times without each component.
    gains: Gains
    transfers: Transfers
    features: Features
    #: Since when each component, or several joined by `+`, costs time; only those that are worth asking.
    courses: Mapping[str, Course]
    suspects: Suspects
    #: How well the replay gives the recorded step time.
    fidelity: Fidelity
    #: Part of the operations that were missing and filled in, 0..1.
    filled_share: float
    #: Shape (n_dp, n_stages): seconds by which the clock of each worker was off, where it was furthest; corrected
    #: everywhere, but in `what_if` only where `clocks_apart`.
    clock_offset_s: Seconds
    #: True where clocks are off by so much of a step that figures on times as recorded mean little.
    clocks_apart: bool
    #: True where a clock is off by more in some steps than in others.
    clocks_move: bool
    #: Replays the job with some changes. Costs one replay.
    price: Price
    #: The same on an even sample of the steps of a large job, for searches: compare with `sample([])` only.
    sample: Price
    timelines: Timelines
    #: Says since when a worker, (dp index, stage index), is slow, and until when.
    date_worker: Callable[[tuple[int, int]], When]
    #: Takes apart the step that is left without any component. Costs about six replays of that sample.
    split_clean: Callable[[], CleanStep]
    #: What rows of types that the format does not name take.
    others: tuple[OtherWork, ...] = ()

    def find_turns(self, workers: Sequence[tuple[int, int]]) -> dict[tuple[int, int], When]:
        """Say since when each of several workers is slow, and until when, those that were so first first; nothing if all are alike.

        They differ where some have recovered, or were slow before, and others have not. Of many nobody wants to know each.
        """
        found = {worker: self.date_worker(worker) for worker in workers} if len(workers) <= MANY_WORKERS else {}
        if len({(when.is_past, when.onset_step is None) for when in found.values()}) <= 1:
            return {}
        return dict(
            sorted(found.items(), key=lambda one: (-1 if one[1].onset_step is None else one[1].onset_step, one[0]))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ReportData:
    """An analysed job and its diagnosis: what pictures are made from."""

    analysis: Analysis
    diagnosis: Diagnosis
    #: What the fixes that are drawn change together: those of the diagnosis' plan, or those given by hand.
    plan: tuple[Change, ...]
    #: By cause, of every rule.
    pictured: Mapping[str, Pictured]
    #: Says why a cause, by its id, is said or not. Costs a replay at most.
    explain: "Callable[[str], Explanation] | None" = None

    def causes_of(self, component: str) -> list[Cause]:
        """List the causes found whose rules own a component."""
        return [c for c in self.diagnosis.causes if component in self.pictured.get(c.cause, NO_RULE).components]
