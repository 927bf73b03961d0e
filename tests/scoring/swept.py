"""The jobs of a sweep: one fault that loses a given part of the step, or a decoy in a healthy job.

Enters: a `Point` and the number of a job. Leaves: a `SweptJob`, diagnosed. Job i is the same however many there are, and the same
at every strength but for that.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from diagnose.errors import UsageError
from diagnose.faults.catalogue import list_cause_files
from diagnose.faults.decoy import Decoy, mark_multiples
from diagnose.faults.decoys import Evaluation, LongerComputes
from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.spec import NOISE, JobSpec
from diagnose.faults.world import draw_world
from tests.scoring.judged import JudgedJob, SaidCause, TrueCause
from tests.scoring.losing import find_losing
from tests.scoring.score import judge_generated
from tests.scoring.swept_decoys import OlderMachines, UnevenExperts

#: A fault that costs another part than it is to cost, by more than this part of it, is drawn again in another job, so many times.
OFF, MAX_DRAWN = 0.1, 12
#: Small jobs are diagnosed soon.
MAX_ROWS = 40_000


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """Some jobs of a sweep: a kind of fault, or a decoy, at one strength."""

    #: `cause/kind`, or the name of a decoy.
    name: str
    strength: float
    is_decoy: bool = False
    #: Seed, evidence and world of its jobs.
    seed: int = 0
    evidence: bool = True
    world: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SweptJob:
    """Job `index` of a point, and what was said of it; `reached` is what is truly lost to its fault."""

    point: Point
    index: int
    reached: float
    judged: JudgedJob


def _evaluate(spec: JobSpec, rng: np.random.Generator, strength: float) -> Decoy:
    """Let about every fifth of the sampled steps, at most, have an evaluation that costs that part of all steps."""
    periods = [p for p in range(3, 60) if 0 < mark_multiples(spec, p).mean() <= 0.35] or [int(spec.step_numbers()[-1])]
    period = int(rng.choice(periods))
    hits = float(mark_multiples(spec, period).mean())
    # A forward is about a third of what a step computes.
    return Evaluation(period_steps=period, slowdown=1.0 + 3.0 * strength / hits)


#: Decoys that are swept: computes longer on average, ranks slower, part of the steps, spread of computes.
DECOYS: dict[str, Callable[[JobSpec, np.random.Generator, float], Decoy]] = {
    "longer-computes": lambda spec, rng, strength: LongerComputes(excess=strength),  # noqa: ARG005 - as the others
    "older-machines": lambda spec, rng, strength: OlderMachines(slowdown=1.0 + strength),  # noqa: ARG005 - as the others
    "evaluation": _evaluate,
    "uneven-experts": lambda spec, rng, strength: UnevenExperts(spread=strength),  # noqa: ARG005 - as the others
}


def draw_fault_losing(
    seed: int,
    i: int,
    kind: str,
    lost: float,
    *,
    world: str | None = None,
    max_rows: int = MAX_ROWS,
) -> tuple[JobSpec, Fault, float]:
    """Draw job i of a seed with one fault, so strong that a part of its mean step time is lost.

    Parameters
    ----------
    kind : str
        `cause/kind`.
    lost : float
        That part.
    world : str, optional
        A feature of the job's world.

    Returns
    -------
    spec : JobSpec
    fault : Fault
    lost : float
        What is truly lost, not as much as asked for where no job was found in which it can be.

    Raises
    ------
    UsageError
        No job was found that can have it.
    """
    cause, _, name = kind.partition("/")
    draw, rng = list_cause_files()[cause].draw, np.random.default_rng([seed, i, *kind.encode()])
    best: tuple[JobSpec, Fault, float] | None = None
    for _ in range(MAX_DRAWN):
        spec = draw_world(rng, noise=NOISE, max_rows=max_rows, only=world)
        salt = int(rng.integers(2**62))

        def make(strength: float, spec: JobSpec = spec, salt: int = salt) -> Fault | None:
            return draw(spec, np.random.default_rng(salt), strength=strength, kind=name)

        first = make(1.0)
        if first is None or not first.tellable(spec):
            continue
        fault, reached = find_losing(spec, make, lost)  # type: ignore[arg-type] # a strength does not make a fault impossible
        if best is None or abs(reached - lost) < abs(best[2] - lost):
            best = spec, fault, reached
        if abs(best[2] - lost) <= OFF * lost:
            break
    if best is None:
        raise UsageError(f"no job in {MAX_DRAWN} can have it", where=kind)
    return best


def sweep_one(point: Point, i: int) -> SweptJob:
    """Make a job of a sweep, and diagnose it."""
    row, reached = JudgedJob(f"{point.name.replace('/', '-')}-{point.seed}-{i}"), 0.0
    try:
        if point.is_decoy:
            rng = np.random.default_rng([point.seed, i, *point.name.encode()])
            spec = draw_world(rng, noise=NOISE, max_rows=MAX_ROWS, only=point.world, without=("one-rank",))
            if point.name == "older-machines":  # one rank of two or three is a slow replica
                spec = dataclasses.replace(spec, dp=max(spec.dp - spec.dp % 2, 4))
            faults, decoys = [], [DECOYS[point.name](spec, rng, point.strength)]
        else:
            spec, fault, reached = draw_fault_losing(point.seed, i, point.name, point.strength, world=point.world)
            faults, decoys = [fault], []
        spec = dataclasses.replace(spec, job_id=row.job, evidence=point.evidence)
        return SweptJob(point, i, reached, judge_generated(generate(spec, faults, decoys)))
    except Exception as error:  # noqa: BLE001 - one job must not stop the others
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return SweptJob(point, i, reached, dataclasses.replace(row, error=text))


def read_row(fields: dict[str, Any]) -> JudgedJob:
    """Read a row that was written as JSON."""

    def workers(pairs: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        return tuple((dp, stage) for dp, stage in pairs)

    truth = tuple(
        TrueCause(**{**true, "workers": workers(true["workers"]), "stages": tuple(true["stages"])})
        for true in fields["truth"]
    )
    said = tuple(
        SaidCause(
            **{
                **one,
                "workers": workers(one["workers"]),
                "stages": tuple(one["stages"]),
                "alternatives": dict(one["alternatives"]),
                "links": tuple((tuple(a), tuple(b)) for a, b in one["links"]),
            }
        )
        for one in fields["said"]
    )
    lists = {name: tuple(fields[name]) for name in ("steps", "decoys", "world")}
    return JudgedJob(**{**fields, **lists, "truth": truth, "said": said})
