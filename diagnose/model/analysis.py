"""Everything that is measured of one job."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from diagnose.model.budget import CleanStep
from diagnose.model.cause import Cause
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


@dataclasses.dataclass(frozen=True, slots=True)
class Suspects:
    """The places that stand out, whether or not they cost anything.

    Attributes
    ----------
    workers : sequence of (int, int)
        Slow workers as (dp index, stage index), worst first.
    late_members : dict of (int, int) to LateMember
        Which member of each slow worker the others wait for, where the trace records them.
    cards : sequence of (int, int)
        Slow network cards: (dp index, stage index).
    ways : sequence of (int, int, int)
        Slow links by their first stage: (direction, stage index, dp index); 0 forwards, 1 backwards, 2 both.
    groups : sequence of int
        Stage indices of slow data-parallel groups.
    long_stages : sequence of int
        Indices of the longest stage and those nearly as long, longest first; none with one stage.
    """

    workers: Sequence[tuple[int, int]] = ()
    late_members: Mapping[tuple[int, int], LateMember] = dataclasses.field(default_factory=dict)
    cards: Sequence[tuple[int, int]] = ()
    ways: Sequence[tuple[int, int, int]] = ()
    groups: Sequence[int] = ()
    long_stages: Sequence[int] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """One job as measured: read, replayed, taken apart. The judge, fixes and pictures all start from it.

    Attributes
    ----------
    trace : Trace
        With the evidence rows on the one clock of all else.
    what_if : WhatIf
        The paper's measures.
    breakdown : Breakdown
        Compute times taken apart.
    gains : Gains
        Step times without each component.
    courses : dict of str to Course
        Since when each component, or several joined by `+`, costs time; only those that are worth asking.
    fidelity : Fidelity
        How well the replay gives the recorded step time.
    filled_share : float
        Part of the operations that were missing and filled in, 0..1.
    clock_offset_s : ndarray of float64, shape (n_dp, n_stages)
        Seconds by which the clock of each worker was off; corrected everywhere but in `what_if`.
    price : callable
        Replays the job with some changes. Costs one replay.
    sample : callable
        The same on an even sample of the steps of a large job, for searches: compare with `sample([])` only.
    split_clean : callable
        Takes apart the step that is left without any component. Costs about six replays of that sample.
    others : tuple of OtherWork
        What rows of types that the format does not name take.
    """

    trace: Trace
    what_if: WhatIf
    breakdown: Breakdown
    gains: Gains
    transfers: Transfers
    features: Features
    courses: Mapping[str, Course]
    suspects: Suspects
    fidelity: Fidelity
    filled_share: float
    clock_offset_s: Seconds
    price: Price
    sample: Price
    timelines: Timelines
    split_clean: Callable[[], CleanStep]
    others: tuple[OtherWork, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ReportData:
    """An analysed job and its diagnosis: what pictures are made from.

    Attributes
    ----------
    plan : tuple of Change
        What the fixes that are drawn change together: those of the diagnosis' plan, or those given by hand.
    pictured : dict of str to Pictured
        By cause, of every rule.
    explain : callable or None
        Says why a cause, by its id, is said or not. Costs a replay at most.
    """

    analysis: Analysis
    diagnosis: Diagnosis
    plan: tuple[Change, ...]
    pictured: Mapping[str, Pictured]
    explain: "Callable[[str], Explanation] | None" = None

    def causes_of(self, component: str) -> list[Cause]:
        """List the causes found whose rules own a component."""
        return [c for c in self.diagnosis.causes if component in self.pictured.get(c.cause, NO_RULE).components]
