"""What `diagnose --format json` prints for one job, as types: writing, reading back and the JSON Schema come from them.

Fields are the keys of the JSON, in its order; other keys may be added. A field with a default is one that later versions added:
a diagnosis is always written with it, and older ones are read without. A measure that is not known is NaN in memory, and null in
the JSON.
"""

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

from diagnose.model.budget import Budget, Lever
from diagnose.model.cause import Cause, CauseId, NotChecked, NotNegative, When
from diagnose.model.collectives import CollectivesDocument
from diagnose.model.place import Worker
from diagnose.model.plain import says
from diagnose.model.telemetry_document import TelemetryDocument

if TYPE_CHECKING:
    Measure = float
    Size = float
else:
    #: A number of any sign, and one of at least 0: null in the JSON where it is not known, NaN in memory.
    Measure = float | None
    Size = NotNegative | None

SCHEMA: Final = "diagnose/2"
#: What is read back: the first had neither a budget nor levers.
SCHEMAS: Final = ("diagnose/1", SCHEMA)
Count = Annotated[int, Meta(ge=0)]
VerdictName = Literal["healthy", "noisy", "straggling", "inconclusive"]
_PerName = Annotated[dict[str, NotNegative | None], says("Name to slowdown, ratio")]
_JobSize = Annotated[Annotated[int, Meta(ge=1)] | None, says("null where a training log alone does not say")]


class MadeBy(Struct, frozen=True):
    """Version of the program, and digests of the rules and the classifier that judged."""

    version: str
    rules: Annotated[str, says("digest of the rules")]
    classifier: Annotated[str | None, says("digest of the classifier; null where none was used")]


class JobFacts(Struct, frozen=True, kw_only=True):
    """Metadata of the job as resolved."""

    job_id: Annotated[str, says("of this run")]
    dp_size: _JobSize
    pp_size: _JobSize
    tp_size: _JobSize
    cp_size: _JobSize
    vpp_size: _JobSize
    world_size: _JobSize
    layers_per_stage: tuple[Count, ...] | None
    steps_total: int | None
    started_at: str | None
    finished_at: str | None
    gpu_type: str | None
    owner: str | None
    framework: str | None
    gpus: _JobSize
    steps: Annotated[int, says("steps analysed", ge=0)]
    steps_dropped: Count
    ops: Count
    hosts: Annotated[tuple[str, ...] | None, says("all hosts that it ran on; null where the trace does not say")] = None
    name: Annotated[
        str | None,
        says("what runs of the job share: by its metadata, else the part of its id or path that stays the same"),
    ] = None


class StepTime(Struct, frozen=True):
    """Mean seconds a step: as recorded; replayed without launch delays; with ideal times; with every component removed."""

    recorded: Size
    simulated: Size
    ideal: Size
    clean: NotNegative | None

    def __post_init__(self) -> None:
        _read_null(self, "recorded", "simulated", "ideal")


class GpuHours(Struct, frozen=True):
    """GPU hours of the steps analysed."""

    analysed: NotNegative | None
    wasted: Annotated[float | None, says("against step_time.clean; null where the replay is not to be trusted")]


class Fidelity(Struct, frozen=True):
    """How far the replay can be trusted; ratios."""

    discrepancy: Annotated[Measure, says("recorded / simulated - 1")]
    replay_error: Annotated[Size, says("absolute error of the replay with launch delays")]
    ok: bool

    def __post_init__(self) -> None:
        _read_null(self, "discrepancy", "replay_error")


class WorkerSlowdown(Struct, frozen=True):
    """Slowdown when everything is ideal except one worker."""

    dp: int
    pp: int
    rank: int | None
    slowdown: NotNegative | None


class Slowdowns(Struct, frozen=True, kw_only=True):
    """Slowdown when everything is ideal except one type, stage, dp rank, worker; and by step."""

    by_optype: _PerName
    by_stage: _PerName
    by_dp_rank: _PerName
    by_worker: Annotated[tuple[WorkerSlowdown, ...], says("Largest first", max_length=64)]
    by_step: Annotated[
        dict[Annotated[str, Meta(pattern="^-?[0-9]+$")], NotNegative | None], says("Step number to slowdown, ratio")
    ]
    m_w: Annotated[
        float | None,
        says("part of the lost time that comes back with the slowest 3% of workers at ideal times; can pass 1"),
    ]
    m_s: Annotated[float | None, says("the same with the last stage")]


class Ledger(Struct, frozen=True):
    """Parts of the lost time; causes and unexplained sum to 1."""

    causes: dict[str, float]
    components: Annotated[
        dict[str, float], says("The same time by what it was lost to, whether a cause was found for it or not")
    ]
    unexplained: float
    immaterial: Annotated[float, says("What is too small to be told apart; components and immaterial sum to 1")]


class PlanStep(Struct, frozen=True):
    """One fix in the order in which to do them."""

    fix: str
    cause: CauseId
    predicted_step_time: Annotated[float, says("seconds, with it and all before it", ge=0)]
    predicted_speedup: Annotated[float | None, says("against the recorded step time")]
    gain: Annotated[float, says("part of the step time after those before it")]
    gain_alone: Annotated[float, says("part of the recorded step time without them")]
    note: Annotated[str | None, says("what a reader might not expect")]


class Plan(Struct, frozen=True):
    """The best fix of each cause, the most rewarding first, and what all of them give together."""

    steps: tuple[PlanStep, ...]
    predicted_step_time: NotNegative
    predicted_speedup: float | None


class DroppedRows(Struct, frozen=True):
    """Something in a file that has no place in a trace."""

    what: str
    n: int
    reason: str


class NotRecorded(Struct, frozen=True):
    """Something that a diagnosis needs and the file does not say."""

    what: str
    reason: str
    causes: tuple[str, ...]


class MovedClock(Struct, frozen=True):
    """Seconds taken from the times of a rank or host."""

    of: str
    offset_s: float
    spread_s: float | None
    how: str


class RecordingFacts(Struct, frozen=True):
    """What the files of another producer could not bring along."""

    producer: str
    dropped: tuple[DroppedRows, ...]
    unsaid: tuple[NotRecorded, ...]
    offsets: Annotated[
        tuple[MovedClock, ...], says("Clocks that were moved: seconds taken from the times of a rank or host")
    ]


class LogStepTime(Struct, frozen=True):
    """Seconds of an iteration: over the whole log; where it is fast; where it is slow; of the traced steps."""

    mean: NotNegative | None
    usual: NotNegative | None
    slow: NotNegative | None
    traced: NotNegative | None


class LogLevel(Struct, frozen=True):
    """Iterations of one pace."""

    first: int
    last: int
    step_time: NotNegative


class LogRestart(Struct, frozen=True):
    """The counter of iterations fell back."""

    after: int  # Last iteration that the log has of the attempt before
    resumed_at: int  # First one that it has of the next
    lost_s: NotNegative | None  # From the one line to the other; None where they bear no time
    again_s: Annotated[NotNegative | None, says("seconds of steps that were run again")] = None
    cost_s: Annotated[
        NotNegative | None,
        says("seconds without a step of the run: down, coming up, and run again; as far as the log tells"),
    ] = None
    hosts_gone: Annotated[tuple[str, ...], says("hosts that the next attempt does not run on")] = ()
    hosts_new: Annotated[tuple[str, ...], says("hosts that only the next attempt runs on")] = ()


class LogFailure(Struct, frozen=True):
    """An error that no iteration came after."""

    iteration: Annotated[int, says("the last one that was logged before it")]
    rank: int | None  # None where the line does not say
    text: str


class LogWindow(Struct, frozen=True):
    """Iterations that are slower than the job's own good pace."""

    first: int
    last: int
    onset: Annotated[int | None, says("null where it is slow from the first line on")]
    recovery: Annotated[int | None, says("null where it is slow to the last line")]
    step_time: Annotated[NotNegative, says("median seconds of an iteration within")]
    lost_s: Annotated[float, says("seconds above the good pace")]


class LogRamp(Struct, frozen=True):
    """Iterations that take longer and longer, or less and less."""

    first: int
    last: int
    from_step_time: NotNegative
    to_step_time: NotNegative
    slope: Annotated[float, says("seconds an iteration more with each iteration")]
    lost_s: Annotated[float, says("seconds above the good pace")]


class LogSpikes(Struct, frozen=True, kw_only=True):
    """Single slow iterations, or seconds between two, of one kind."""

    count: Count
    lines: Annotated[Count, says("lines of the log that they are counted in")]
    pattern: Literal["periodic", "sporadic"]
    period: Annotated[int | None, says("iterations from one to the next; null where there is none")]
    or_every: Annotated[
        tuple[int, ...], says("shorter periods that lines of several iterations would show in the same way")
    ] = ()
    regularity: Annotated[float | None, says("part of the iterations on the period that are slow")]
    first: int
    last: int
    matches: Annotated[
        tuple[str, ...],
        says("what the log, or the arguments in it, state the same interval of, or tell of at these iterations"),
    ]
    told: Annotated[bool, says("lines of the log tell of it at these iterations")] = False
    within: Annotated[bool, says("true within the logged step times, false between them, by stamps")] = True
    excess: Annotated[float, says("median seconds of one, above the pace around it")]
    spread: Annotated[float | None, says("how much they differ: middle half over the median")] = None
    part: Annotated[str | None, says("part of a step that most of it lies in, where the log tells parts")] = None
    lost_s: float


class LogWork(Struct, frozen=True):
    """What step times were divided by: they grow with it, and that is no fault."""

    of: str
    power: Annotated[float, says("step times grow with this power of it")]
    low: float
    high: float
    left: Annotated[float, says("part of the differences of step times that it leaves, on lines not fitted on")]


class LogSpread(Struct, frozen=True):
    """How much step times scatter, as a part of themselves, in the first and the last third of the log."""

    first: NotNegative
    last: NotNegative


class LogLedger(Struct, frozen=True, kw_only=True):
    """Where the time that the log tells of went: the good pace, and what lies above it, which sums to all of it."""

    total_s: Annotated[float, says("seconds that the log tells of, between steps and restarts too")]
    good_pace: Annotated[float, says("seconds of an iteration at the job's own good pace")]
    good_s: Annotated[float, says("seconds that all iterations take at it")]
    seconds: Annotated[
        dict[str, float], says("seconds above it by what they were lost to; variation is the rest, and may be below 0")
    ]
    shares: Annotated[dict[str, float], says("the same as parts of total_s")]


class LogSlowRank(Struct, frozen=True):
    """A rank that timers or the straggler detector set apart."""

    rank: int
    measure: str
    worker: Worker | None
    text: str
    values: dict[str, float | None]


class LogCheckpoints(Struct, frozen=True):
    """Saves, and their seconds together; iterations do not count them."""

    count: Count
    seconds: NotNegative


class LogDocument(Struct, frozen=True, kw_only=True):
    """What the training log says, alone or beside the trace."""

    file: str
    lines: Annotated[int, says("lines of iterations used: last attempt, batch size of the end", ge=1)]
    first_iteration: int
    last_iteration: int
    interval: Annotated[int, says("iterations that a line is the mean of", ge=1)]
    step_time: LogStepTime
    when: When
    levels: Annotated[tuple[LogLevel, ...], says("Paces one after the other")]
    restarts: tuple[LogRestart, ...]
    slow_ranks: Annotated[
        tuple[LogSlowRank, ...], says("Ranks that timers or the straggler detector set apart; global ranks")
    ]
    checkpoints: LogCheckpoints
    format: Annotated[str, says("who wrote it")] = ""
    reads: Annotated[str, says("what its times are from")] = ""
    is_mean: Annotated[bool, says("a line stands for all iterations since the one before")] = True
    of: Annotated[str, says("what all seconds are of where the log tells a rate only; empty where of an iteration")] = (
        ""
    )
    windows: Annotated[tuple[LogWindow, ...], says("Each time that it was slow, in order")] = ()
    ramps: tuple[LogRamp, ...] = ()
    spikes: Annotated[tuple[LogSpikes, ...], says("Those that cost most first")] = ()
    work: Annotated[LogWork | None, says("null where work does not vary, or says nothing")] = None
    spread: Annotated[LogSpread | None, says("null where step times scatter as much at the end")] = None
    ledger: LogLedger | None = None
    parts: Annotated[dict[str, float], says("Mean part of a step, as far as the log tells")] = {}
    intervals: Annotated[dict[str, int], says("In iterations, as far as the log states them")] = {}
    failures: Annotated[tuple[LogFailure, ...], says("Errors that the log ends with, the first of each rank")] = ()


class DiagnosisDocument(Struct, frozen=True, kw_only=True):
    """What `diagnose --format json` prints for one job.

    Times in seconds, ratios as plain numbers, missing is null. Other keys may be added.
    """

    schema: Annotated[Literal["diagnose/1", "diagnose/2"], says("1 of earlier versions, without a budget")]
    made_by: MadeBy
    job: JobFacts
    summary: Annotated[
        str, says("One line for people: job, verdict, first cause, place, and how much longer steps are for it")
    ] = ""
    verdict: VerdictName
    why: Annotated[str, says("In a sentence why the verdict is noisy or inconclusive; else empty")] = ""
    budget: Annotated[
        Budget | None, says("Where the GPU-seconds of a step go; null where a training log alone is given")
    ] = None
    levers: Annotated[
        tuple[Lever, ...], says("What else would make the job faster, the best first; each alone, on the job as it is")
    ] = ()
    step_time: StepTime
    slowdown: Annotated[NotNegative | None, says("S: simulated / ideal")]
    waste: Annotated[Annotated[float, Meta(le=1)] | None, says("1 - 1/S")]
    gpu_hours: GpuHours
    fidelity: Fidelity
    what_if: Slowdowns
    causes: Annotated[tuple[Cause, ...], says("Largest share first; empty when healthy or noisy")]
    ledger: Annotated[
        Ledger | None, says("Parts of the lost time; causes and unexplained sum to 1. Null when healthy or noisy")
    ]
    plan: Annotated[
        Plan | None, says("the best fix of each cause, the most rewarding first; null where there is none")
    ] = None
    checked: Annotated[tuple[str, ...], says("Causes that could be looked for")] = ()
    not_checked: tuple[NotChecked, ...]
    features: Annotated[
        dict[str, float | None], says("All that rules and classifier saw; null where it could not be measured")
    ]
    warnings: Annotated[tuple[str, ...], says("About the input")]
    recording: Annotated[
        RecordingFacts | None,
        says("What the files of another producer could not bring along; null where the input was written as a trace"),
    ] = None
    log: Annotated[
        LogDocument | None, says("What the training log says, alone or beside the trace; null where none was given")
    ] = None
    collectives: Annotated[
        CollectivesDocument | None,
        says("What a communication library recorded of its operations; null where no such recording was given"),
    ] = None
    telemetry: Annotated[
        TelemetryDocument | UnsetType,
        says("What the machines measured of themselves; left out where no telemetry was given"),
    ] = UNSET


def _read_null(found: Struct, *names: str) -> None:
    """Make NaN of what is not known."""
    for name in names:
        if getattr(found, name) is None:
            force_setattr(found, name, float("nan"))
