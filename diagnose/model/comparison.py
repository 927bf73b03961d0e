"""Two diagnoses compared: what came, went, grew and shrank, and how the ledger explains the change of the step time."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta, Struct

from diagnose.model.cause import CauseId, Severity
from diagnose.model.diagnosis_document import MadeBy, VerdictName
from diagnose.model.place import Where
from diagnose.model.plain import says

#: What may become of a cause between two diagnoses; `unclear` where one of them could not look for it.
ChangeName = Literal["came", "grew", "went", "shrank", "same", "unclear"]
#: What may become of the step time.
Trend = Literal["slower", "alike", "faster"]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A cause as a diagnosis says it; `lost_s` is its part of the lost time, seconds a step, None where it was not shared out.

    `cost_s` is the time that comes back when it alone is removed; `fixes` are those with a prediction: name and seconds a step.
    """

    cause: str
    title: str
    severity: Severity | None
    who: str
    lost_s: float | None
    cost_s: float
    where: Where
    fingerprint: str
    fixes: tuple[tuple[str, float], ...]


class Shape(Struct, frozen=True):
    """What two jobs should have in common to be compared; None where not known."""

    gpus: int | None
    dp: int | None
    pp: int | None
    tp: int | None
    cp: int | None
    vpp: int | None
    n_layers: int | None
    gpu_type: str | None
    framework: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One of the two diagnoses; step times in seconds.

    `source` is its file, as the user named it; `not_checked` says why a cause could not be looked for, by its id; `plan` has the
    causes that the plan mends, and the step time that it predicts. `is_log` is True of a training log alone.
    """

    source: str
    job_id: str
    verdict: VerdictName
    recorded_s: float
    clean_s: float | None
    shape: Shape
    made_by: MadeBy
    causes: tuple[Seen, ...]
    not_checked: dict[str, str]
    plan: tuple[tuple[str, ...], float] | None
    is_log: bool = False

    def to_document(self) -> "SideDocument":
        """Give what the JSON tells of one side."""
        step_time = RecordedAndClean(self.recorded_s, self.clean_s)
        return SideDocument(self.source, self.job_id, self.verdict, step_time, self.shape, self.made_by)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What became of one cause in one place: `before` and `after` are None where it is not said.

    Seconds a step lost to it are 0 where it is not said, and None where they were not shared out. `note` says why it is unclear.
    """

    change: ChangeName
    before: Seen | None
    after: Seen | None
    before_s: float | None
    after_s: float | None
    note: str = ""

    @property
    def seen(self) -> Seen:
        """The cause as it is last seen."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def change_s(self) -> float | None:
        """Seconds a step that it costs more than before."""
        if self.before_s is None or self.after_s is None:
            return None
        return (whole_ns(self.after_s) - whole_ns(self.before_s)) / 1e9

    def to_document(self) -> "ChangeDocument":
        """Give one entry of `changes`."""
        return ChangeDocument(
            change=self.change,
            cause=self.seen.cause,
            title=self.seen.title,
            severity=self.seen.severity,
            before_s=self.before_s,
            after_s=self.after_s,
            change_s=self.change_s,
            where_before=None if self.before is None else self.before.where,
            where_after=None if self.after is None else self.after.where,
            fingerprint=self.seen.fingerprint,
            note=self.note or None,
        )


class Account(Struct, frozen=True):
    """The change of the step time, seconds: `recorded` is `clean`, `causes` and `unexplained`, in whole nanoseconds."""

    recorded: float
    clean: Annotated[float, says("change of the step without any cause: other work")]
    causes: dict[str, float]
    unexplained: float


class Payoff(Struct, frozen=True):
    """What a fix of a cause that went or shrank had promised, and what came of it; seconds a step."""

    causes: tuple[CauseId, ...]
    fixes: Annotated[tuple[str, ...], says("empty: all of the plan")]
    predicted_s: Annotated[float, says("step time predicted by the first diagnosis")]
    predicted_gain_s: Annotated[float, says("what it would give back")]
    gain_s: Annotated[float | None, says("by how much the time lost to the causes fell")]
    reached: Annotated[float | None, says("the one in parts of the other")]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """All that two diagnoses say of each other; `account` is None where one of them has no clean step time to trust."""

    before: Side
    after: Side
    trend: Trend
    changes: tuple[Change, ...]
    account: Account | None
    payoffs: tuple[Payoff, ...]
    warnings: tuple[str, ...]

    @property
    def change_s(self) -> float:
        """Seconds that a step takes longer than before."""
        return (whole_ns(self.after.recorded_s) - whole_ns(self.before.recorded_s)) / 1e9

    @property
    def change_share(self) -> float:
        """The same in parts of the step before."""
        return self.change_s / self.before.recorded_s

    def to_document(self) -> "ComparisonDocument":
        """Give what `diagnose compare --format json` prints."""
        return ComparisonDocument(
            schema="diagnose-compare/1",
            before=self.before.to_document(),
            after=self.after.to_document(),
            trend=self.trend,
            change_s=self.change_s,
            change_share=self.change_share,
            changes=tuple(change.to_document() for change in self.changes),
            account=self.account,
            payoffs=self.payoffs,
            warnings=self.warnings,
        )


class RecordedAndClean(Struct, frozen=True):
    """Mean seconds a step: as recorded, and without any cause."""

    recorded: Annotated[float, Meta(gt=0)]
    clean: float | None


class SideDocument(Struct, frozen=True):
    """One of the two diagnoses."""

    source: Annotated[str, says("the file, as it was named")]
    job_id: str
    verdict: VerdictName
    step_time: RecordedAndClean
    job: Shape
    made_by: MadeBy


class ChangeDocument(Struct, frozen=True, kw_only=True):
    """What became of one cause in one place; seconds a step lost to it."""

    change: ChangeName
    cause: CauseId
    title: str
    severity: Severity | None
    before_s: Annotated[float | None, says("lost to it before; 0 where it was not said, null where not known")]
    after_s: float | None
    change_s: float | None
    where_before: Annotated[Where | None, says("null where it was not said")]
    where_after: Annotated[Where | None, says("null where it is not said")]
    fingerprint: str
    note: Annotated[str | None, says("why it is unclear")]


class ComparisonDocument(Struct, frozen=True, kw_only=True):
    """What `diagnose compare --format json` prints.

    Times in seconds a step, parts as plain numbers, missing is null. Other keys may be added.
    """

    schema: Literal["diagnose-compare/1"]
    before: SideDocument
    after: SideDocument
    trend: Annotated[Trend, says("what became of the step time; alike below 2%")]
    change_s: Annotated[float, says("recorded step time after - before")]
    change_share: Annotated[float, says("the same in parts of the step before")]
    changes: Annotated[tuple[ChangeDocument, ...], says("What came and grew first")]
    account: Annotated[
        Account | None,
        says(
            "The change of the step time: recorded = clean + all causes + unexplained, in whole nanoseconds. "
            "Null where a diagnosis is inconclusive"
        ),
    ]
    payoffs: Annotated[
        tuple[Payoff, ...], says("Fixes of causes that went or shrank, as the first diagnosis predicted them")
    ]
    warnings: Annotated[tuple[str, ...], says("Why the two may not be comparable")]


def whole_ns(value_s: float) -> int:
    """Give whole nanoseconds."""
    return round(value_s * 1e9)
