"""Hold the diagnosis of one job against its truth.

Enters: the folder of a job that has ended. Leaves: a `Cell`: what was expected, what was found, and what is wrong with it.
"""

import dataclasses
import json
from pathlib import Path

import diagnose
from diagnose.model.cause import Cause
from tests.record.table.fault import FAULTS, NOTHING
from tests.record.table.framework import Framework
from tests.record.table.plan import Plan

#: How far a gain may be from the truth, part of the step time.
CLOSE = 0.05
#: Steps by which the first slow one may be missed.
NEAR_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Cell:
    """One framework with one fault."""

    framework: str
    fault: str
    #: None where no cause may be named.
    expected: str | None
    true_gain: float | None
    found: str | None
    gain: float | None
    #: Where, as dp rank and stage.
    where: str
    verdict: str
    n_steps: int
    #: Why the cell is wrong; empty where it is right.
    wrong: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """True where nothing is wrong."""
        return not self.wrong


def judge(name: str, framework: Framework, fault: str, out: Path) -> Cell:
    """Diagnose a job and judge the diagnosis."""
    plan, kind = Plan(framework, FAULTS[fault]), FAULTS[fault]
    diagnosis = diagnose.diagnose(out / "trace")
    first = next(iter(diagnosis.causes), None)
    truth = _true_gain(plan, out) if kind.cause else None
    wrong = []
    if kind.cause is None:
        named = [cause for cause in diagnosis.causes if cause.recoverable > NOTHING]
        wrong += [f"{cause.cause} is named with {cause.recoverable:.0%}" for cause in named]
    elif first is None or first.cause != kind.cause:
        wrong.append(f"{first.cause if first else 'nothing'} comes first")
    else:
        wrong += _judge_place(framework, fault, first)
        assert truth is not None
        if abs(first.recoverable - truth) > CLOSE:
            wrong.append("gain")
    n_steps = diagnosis.to_dict()["job"]["steps"] + diagnosis.steps_dropped
    if abs(n_steps - plan.n_steps) > 1:
        wrong.append(f"{n_steps} steps of {plan.n_steps}")
    where = first.where if first else None
    return Cell(
        framework=name,
        fault=fault,
        expected=kind.cause,
        true_gain=truth,
        found=first.cause if first else None,
        gain=first.recoverable if first else None,
        where=""
        if where is None
        else " ".join([f"{w.dp}/{w.pp}" for w in where.workers] + [f"stage {s}" for s in where.stages]),
        verdict=diagnosis.verdict,
        n_steps=n_steps,
        wrong=tuple(wrong),
    )


def _true_gain(plan: Plan, out: Path) -> float:
    """Read what the ranks saw of their own steps, and say what the fault costs."""
    seen = [json.loads((out / f"seen-{rank}.json").read_text()) for rank in range(len(plan.framework.places))]
    return plan.gain(seen[0]["starts_s"], [of_rank["reads_s"][: plan.n_steps] for of_rank in seen])


def _judge_place(framework: Framework, fault: str, cause: Cause) -> list[str]:
    """Say what is wrong with where and since when a cause is."""
    kind, where = FAULTS[fault], cause.where
    workers = {(worker.dp, worker.pp) for worker in where.workers}
    wrong = []
    expected = {
        "slow-rank": {framework.places[framework.slow_rank]},
        "slow-loader": {framework.places[framework.slow_loader]},
    }.get(kind.place)
    if expected is not None and workers != expected:
        wrong.append("place")
    if kind.place == "spread" and workers and not workers >= set(framework.loaders):
        wrong.append("place")
    if kind.place == "last-stage" and list(where.stages) != [framework.n_stages - 1]:
        wrong.append("place")
    onset = cause.when.onset_step
    if kind.slow_from and (onset is None or abs(onset - kind.slow_from) > NEAR_STEPS):
        wrong.append(f"onset {onset}")
    return wrong
