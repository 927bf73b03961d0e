"""Two diagnoses compared: what came, went, grew and shrank, and how the ledger explains the change of the step time."""

import dataclasses
from typing import Any

from diagnose.model.diagnosis import MadeBy, Where

SCHEMA = "diagnose-compare/1"

#: What may become of a cause between two diagnoses; `unclear` where one of them could not look for it.
CHANGES = ("came", "grew", "went", "shrank", "same", "unclear")
#: What may become of the step time.
TRENDS = ("slower", "alike", "faster")


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A cause as a diagnosis says it; `lost_s` is its part of the lost time, seconds a step, None where it was not shared out.

    `cost_s` is the time that comes back when it alone is removed; `fixes` are those with a prediction: name and seconds a step.
    """

    cause: str
    title: str
    severity: str
    who: str
    lost_s: float | None
    cost_s: float
    where: Where
    fingerprint: str
    fixes: tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What two jobs should have in common to be compared; None where not known."""

    gpus: int
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    n_layers: int | None
    gpu_type: str | None
    framework: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One of the two diagnoses; step times in seconds.

    Attributes
    ----------
    source : str
        Its file, as the user named it.
    not_checked : dict
        Why a cause could not be looked for, by its id.
    plan : (tuple of str, float) or None
        Causes that the plan mends, and the step time that it predicts.
    """

    source: str
    job_id: str
    verdict: str
    recorded_s: float
    clean_s: float | None
    shape: Shape
    made_by: MadeBy
    causes: tuple[Seen, ...]
    not_checked: dict[str, str]
    plan: tuple[tuple[str, ...], float] | None

    def to_dict(self) -> dict[str, Any]:
        """Give what the JSON tells of one side."""
        return {
            "source": self.source,
            "job_id": self.job_id,
            "verdict": self.verdict,
            "step_time": {"recorded": self.recorded_s, "clean": self.clean_s},
            "job": dataclasses.asdict(self.shape),
            "made_by": dataclasses.asdict(self.made_by),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What became of one cause in one place: `before` and `after` are None where it is not said.

    Attributes
    ----------
    change : str
        One of `CHANGES`.
    before_s, after_s : float or None
        Seconds a step lost to it, 0 where it is not said; None where they were not shared out.
    note : str
        Why it is unclear.
    """

    change: str
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
        return (
            None
            if self.before_s is None or self.after_s is None
            else (whole_ns(self.after_s) - whole_ns(self.before_s)) / 1e9
        )

    def to_dict(self) -> dict[str, Any]:
        """Give one entry of `changes`."""
        return {
            "change": self.change,
            "cause": self.seen.cause,
            "title": self.seen.title,
            "severity": self.seen.severity or None,
            "before_s": self.before_s,
            "after_s": self.after_s,
            "change_s": self.change_s,
            "where_before": None if self.before is None else self.before.where.to_dict(),
            "where_after": None if self.after is None else self.after.where.to_dict(),
            "fingerprint": self.seen.fingerprint,
            "note": self.note or None,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """The change of the step time, seconds: `recorded` is `clean`, all of `causes` and `unexplained` together.

    All are whole nanoseconds, so that they add up exactly. `clean` is the change of the step without any cause: other work.
    """

    recorded: float
    clean: float
    causes: dict[str, float]
    unexplained: float


@dataclasses.dataclass(frozen=True, slots=True)
class Payoff:
    """What a fix of a cause that went or shrank had promised, and what came of it; seconds a step.

    Attributes
    ----------
    predicted_s : float
        Step time that the first diagnosis predicts with it.
    predicted_gain_s, gain_s : float, float or None
        What it would give back, and by how much the time lost to its causes fell.
    reached : float or None
        The one in parts of the other.
    """

    causes: tuple[str, ...]
    fixes: tuple[str, ...]
    predicted_s: float
    predicted_gain_s: float
    gain_s: float | None
    reached: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """All that two diagnoses say of each other; `account` is None where one of them has no clean step time to trust."""

    before: Side
    after: Side
    trend: str
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

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `diagnose compare --format json` prints: plain types."""
        return {
            "schema": SCHEMA,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "trend": self.trend,
            "change_s": self.change_s,
            "change_share": self.change_share,
            "changes": [change.to_dict() for change in self.changes],
            "account": None if self.account is None else dataclasses.asdict(self.account),
            "payoffs": [dataclasses.asdict(payoff) for payoff in self.payoffs],
            "warnings": list(self.warnings),
        }


def whole_ns(value_s: float) -> int:
    """Give whole nanoseconds."""
    return round(value_s * 1e9)
