"""A cause as a diagnosis says it: where, since when, by what evidence, and what to change.

These types are part of the contract of the JSON: their fields are its keys, in its order.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from diagnose.model.confirmation import Confirmation
from diagnose.model.place import Where
from diagnose.model.plain import says
from diagnose.model.proof import Proof

CauseId = Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
NotNegative = Annotated[float, Meta(ge=0)]
Pattern = Literal["constant", "onset", "periodic", "sporadic", "transient"]
Source = Literal["rule", "classifier", "change-point", "log", "collectives", "telemetry", "confirm"]
Severity = Literal["low", "medium", "high", "critical"]
Kind = Literal["low", "medium", "high"]
#: End of the name of evidence that nothing in the counters of a suspect explains a cause.
NO_SIGN = "/no-sign"
#: End of the name of evidence that tells since when, and until when, each of several workers is what they are not all at once.
TURNS = "/turns"


class When(Struct, frozen=True):
    """Since when and how often; null where not known."""

    pattern: Pattern | None = None
    onset_step: int | None = None
    recovery_step: int | None = None
    period_steps: Annotated[float, Meta(gt=0)] | None = None

    @property
    def span(self) -> str:
        """Since when and until when, in words; empty where neither is known.

        >>> When("onset", onset_step=23).span, When("transient", recovery_step=14).span, When("transient", 4, 5).span
        ('from step 23 on', 'until step 14', 'in step 4')
        """
        if self.onset_step is not None and self.recovery_step == self.onset_step + 1:
            return f"in step {self.onset_step}"
        ends = [f"from step {self.onset_step}"] if self.onset_step is not None else []
        if self.recovery_step is not None:
            ends.append(f"until step {self.recovery_step}")
        elif ends:
            ends.append("on")
        return " ".join(ends)

    def covers(self, step: int) -> bool:
        """Say whether a step is between beginning and end, as far as these are known.

        >>> When("onset", onset_step=3).covers(2), When("transient", 3, 5).covers(4)
        (False, True)
        """
        began = self.onset_step is None or step >= self.onset_step
        return began and (self.recovery_step is None or step < self.recovery_step)

    @property
    def is_past(self) -> bool:
        """True where it came, and went before the recording ended."""
        return self.pattern == "transient" and self.recovery_step is not None


class EvidenceItem(Struct, frozen=True):
    """One sentence that a person can check, with the values it rests on."""

    source: Source
    id: str
    text: str
    values: dict[str, int | float | None]


class Fix(Struct, frozen=True):
    """What to change; step times in seconds, with launch delays; null where no replay says it."""

    fix: str
    summary: str
    how: str
    predicted_step_time: NotNegative | None
    predicted_speedup: Annotated[NotNegative | None, says("recorded / predicted")]
    settings: Annotated[dict[str, str], says("what `diagnose what-if --fix NAME:key=value` takes for the same")] = {}
    assumptions: Annotated[tuple[str, ...], says("what the prediction takes for granted")] = ()
    risks: Annotated[tuple[str, ...], says("what may go wrong, or cost elsewhere")] = ()
    figures: Annotated[
        dict[str, int | float | None], says("numbers worth knowing beside the step time, unit at the end of the name")
    ] = {}


class RefusedFix(Struct, frozen=True):
    """A fix that is not for this job, and why."""

    fix: str
    reason: str
    summary: Annotated[str, says("the fix in a few words; empty where the rule has none")] = ""


class Subcause(Struct, frozen=True):
    """Why a machine that a cause names is slow, by its own counters."""

    kind: CauseId
    title: Annotated[str, says("in a few words")]
    hosts: Annotated[tuple[str, ...], says("machines whose counters show it")]


class Alternative(Struct, frozen=True):
    """Another cause that explains the same seconds nearly as well, and what would tell the two apart."""

    cause: CauseId
    confidence: Annotated[float, Meta(ge=0, le=1)]
    tells_apart: str


class Cause(Struct, frozen=True, kw_only=True):
    """One cause found."""

    cause: CauseId
    title: Annotated[str, says("the cause in a few words")] = ""
    severity: Annotated[
        Severity | None,
        says(
            "how bad it is in this job: from what comes back without it, how sure it is, and how many GPUs wait for it"
        ),
    ] = None
    kind: Annotated[Kind | None, says("how bad it is as a rule; null where no rule says so")] = None
    who: Annotated[str | None, says("who can mend it: job owner, platform or hardware; null where no rule says so")] = (
        None
    )
    confidence: Annotated[float, says("calibrated: of all causes said with 0.8, 80% are there", ge=0, le=1)]
    share: Annotated[float | None, says("part of the lost time in the ledger")]
    recoverable: Annotated[
        float,
        says(
            "fraction of the recorded step time that comes back when this cause alone is removed, where workers are "
            "named from these, never negative; may be nothing where recoverable_after_others is a number: that one counts then",
            le=1,
        ),
    ]
    recoverable_after_others: Annotated[
        Annotated[float, Meta(le=1)] | None,
        says("the same once other causes are gone, where it gives back too little alone; else null"),
    ] = None
    where: Where
    when: When
    check: Annotated[str | None, says("one line: how to make sure of it by hand; null where no rule says so")] = None
    evidence: tuple[EvidenceItem, ...]
    fixes: Annotated[tuple[Fix, ...], says("Best first")]
    refused_fixes: Annotated[tuple[RefusedFix, ...], says("fixes that are not for this job")] = ()
    alternatives: Annotated[
        tuple[Alternative, ...],
        says("causes that explain the same seconds nearly as well, the likeliest first; the confidence is split"),
    ] = ()
    proof: Annotated[
        Proof | None, says("figures that show the cause: what the first picture of its page is drawn from")
    ] = None
    subcause: Annotated[Subcause | UnsetType, says("left out where no telemetry shows one")] = UNSET
    fingerprint: Annotated[
        str,
        says(
            "the same over runs of one job (name, owner, framework, parallelism) with the same fault in the same "
            "place; of a fault of a machine, over all jobs on the same host"
        ),
    ]
    confirmed: Annotated[
        Confirmation | UnsetType,
        says("what tests on its machines said; there only where `diagnose confirm` read their results"),
    ] = UNSET

    @property
    def is_known(self) -> bool:
        """False of time that no cause explains, which has no fix."""
        return self.cause != "unknown"


class KeptCause(Cause, frozen=True, kw_only=True):
    """A cause as a store gives it back: with any name, so that an odd one does not stop a command that reads them all."""

    cause: str


class NotChecked(Struct, frozen=True):
    """A cause that could not be looked for, and why."""

    cause: CauseId
    reason: str
