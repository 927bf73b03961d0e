"""Which machines of a cluster are faulty, as their own metrics tell: what `diagnose machines --format json` prints, as types.

Fields are the keys of the JSON, in its order; other keys may be added.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from diagnose.model.confirmation import Confirmation
from diagnose.model.diagnosis_document import Count, MadeBy
from diagnose.model.plain import says

SCHEMA: Final = "diagnose-machines/1"
#: `faulty`: machines are named. `sound`: none stands out, and nothing says that one should. `cannot-tell`: see `reason`.
MachinesVerdict = Literal["faulty", "sound", "cannot-tell"]
#: What the job did, as most machines show it. `stopped`: processes are there and wait. `ended`: they are gone everywhere.
#: `unseen`: no metric tells.
JobState = Literal["running", "slowed", "stopped", "ended", "unseen"]
Confidence = Annotated[float, Meta(ge=0, le=1)]


class Sign(Struct, frozen=True, kw_only=True):
    """One thing in which a machine differs from its peers, or from itself before."""

    metric: str
    device: Annotated[str, says("index of the card, name of the port or disk; empty: the whole machine")]
    sentence: str
    since_s: Annotated[float | None, says("Unix seconds; null: all the time")]
    value: Annotated[float | None, says("since then, in the metric's unit; of counters a second")]
    peers: Annotated[float | None, says("what its peers have in that time")]
    deviations: Annotated[float, says("how far out it is, in standard deviations of its peers; 0 for events")]


class FaultyMachine(Struct, frozen=True, kw_only=True):
    """A machine that is faulty, or that somebody should look at."""

    host: str
    kind: Annotated[str, says("id of a rule of rules/machines")]
    title: str
    confidence: Confidence
    since_s: Annotated[float | None, says("Unix seconds; null: all the time")]
    devices: Annotated[tuple[str, ...], says("cards that show it, where not all of them do")]
    signs: Annotated[tuple[Sign, ...], says("what tells most first")]
    do: Annotated[tuple[str, ...], says("what to do next")]
    mistaken_for: Annotated[tuple[str, ...], says("what else it may be")]
    confirmed: Annotated[Confirmation | UnsetType, says("what tests on it say; left out where none were read")] = UNSET


class JobCourse(Struct, frozen=True):
    """What the job did in the time looked at."""

    state: JobState
    since_s: Annotated[float | None, says("null where it runs, or did so before these minutes")]
    metric: Annotated[str | None, says("which metric tells it")]
    lost_share: Annotated[float | None, says("of a slowed job: part of its work that it does no more")]


class MachinesDocument(Struct, frozen=True, kw_only=True):
    """What `diagnose machines --format json` prints.

    Times in Unix seconds of the scraper's clock, missing is null. Other keys may be added.
    """

    schema: Literal["diagnose-machines/1"]
    made_by: MadeBy
    source: Annotated[str, says("the file, folder or server, without what may be secret")]
    verdict: MachinesVerdict
    reason: Annotated[str | None, says("why nobody can tell")]
    from_s: float
    to_s: float
    interval_s: Annotated[float, says("usual seconds between samples")]
    n_machines: Count
    roles: Annotated[tuple[tuple[str, ...], ...], says("machines that do the same work, compared with each other")]
    metrics: tuple[str, ...]
    job: JobCourse
    machines: Annotated[tuple[FaultyMachine, ...], says("surest first")]
    affected: Annotated[tuple[str, ...], says("machines that show some of it, later or less: not to be replaced")]
    remarks: Annotated[tuple[str, ...], says("what stands out and is no fault")]
    warnings: tuple[str, ...]
