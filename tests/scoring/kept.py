"""What is kept of a diagnosed job so that another classifier can judge it again, without a replay.

Enters: an `Analysis`, and what is true of its job. Leaves: a file. A verdict prices some removals: those that were priced
before are looked up, and for another one the job is measured again.
"""

import dataclasses
import json
import pickle
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.faults.generate import Job, draw_job, generate
from diagnose.judge.classifier import Prediction
from diagnose.judge.rules import RuleSet
from diagnose.judge.verdict import reach_verdict
from diagnose.judges import read_rules
from diagnose.model.analysis import Analysis
from diagnose.model.change import Change
from diagnose.model.request import MIN_SPEEDUP
from diagnose.model.trace import Seconds
from diagnose.train.measure import analyse
from tests.scoring.judged import JudgedJob
from tests.scoring.score import read_said, read_truth

#: Probabilities for which a job is judged when it is measured, so that most removals are priced: nobody is asked, all are sure.
PRICED_AT = (None, 0.995)
_COMPRESSION = 1


class NotPricedError(LookupError):
    """A removal that was not priced when the job was measured."""


class Prices:
    """Prices removals once each; without a job to replay it knows those priced before, and no others."""

    def __init__(self, price: Callable[[Sequence[Change]], Seconds] | None = None) -> None:
        self.price = price
        self.known: dict[tuple[tuple[str, ...], ...], Seconds] = {}

    def __call__(self, changes: Sequence[Change]) -> Seconds:
        """Give the step times with some changes.

        Raises
        ------
        NotPricedError
            It was not priced before, and there is nothing to replay.
        """
        key = tuple(sorted(_name(change) for change in changes))
        if key not in self.known:
            if self.price is None:
                raise NotPricedError
            self.known[key] = self.price(changes)
        return self.known[key]

    def __getstate__(self) -> dict[str, Any]:
        """Keep what is known, and nothing to replay."""
        return {"price": None, "known": self.known}


@dataclasses.dataclass(frozen=True, slots=True)
class KeptJob:
    """A job that can be judged again: what is true of it, and what was measured, without replays but for `analysis.price`."""

    row: JudgedJob
    analysis: Analysis


def keep_job(row: JudgedJob, analysis: Analysis, rule_set: RuleSet) -> KeptJob:
    """Judge a job in a few ways, so that what verdicts ask for is priced, and keep it."""
    nothing: Any = None
    prices = Prices(analysis.price)
    kept = dataclasses.replace(analysis, price=prices, sample=nothing, split_clean=nothing, timelines=nothing)
    job = KeptJob(row, kept)
    causes = [rule.id for rule in rule_set.rules]
    for probability in PRICED_AT:
        sure = None if probability is None else dict.fromkeys(causes, probability)
        rejudge(job, rule_set, None if sure is None else Prediction(sure, sure, sure, None, {}))
    return job


def keep_made(job: Job, analysis: Analysis) -> KeptJob:
    """Keep a job that was made."""
    truth = json.loads(job.truth.to_json())
    return keep_job(read_truth(truth, job.truth.spec.step_numbers().tolist()), analysis, read_rules())


def measure_again(seed: int, index: int, noise: tuple[float, float]) -> KeptJob:
    """Make a job and measure it, to be judged in other ways."""
    job = generate(*draw_job(seed, index, noise=noise))
    return keep_made(job, analyse(job.trace))


def rejudge(job: KeptJob, rule_set: RuleSet, prediction: Prediction | None) -> JudgedJob:
    """Judge a job again by what a classifier makes of it.

    Raises
    ------
    NotPricedError
        The verdict asks for a removal that was not priced.
    """
    judgements = [rule.judge(job.analysis.features) for rule in rule_set.rules]
    verdict = reach_verdict(job.analysis, judgements, min_speedup=MIN_SPEEDUP, prediction=prediction)
    return dataclasses.replace(job.row, verdict=verdict.verdict, said=read_said(verdict.causes))


def write_kept(job: KeptJob, path: Path) -> None:
    """Write a job; the file appears under its name when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(zlib.compress(pickle.dumps(job, pickle.HIGHEST_PROTOCOL), _COMPRESSION))
    partial.replace(path)


def write_made(path: Path, job: Job, analysis: Analysis) -> None:
    """Keep a job that was made in a file."""
    write_kept(keep_made(job, analysis), path)


def read_kept(path: Path) -> KeptJob:
    """Read a job that `write_kept` wrote."""
    found = pickle.loads(zlib.decompress(path.read_bytes()))
    assert isinstance(found, KeptJob)
    return found


def _name(change: Change) -> tuple[str, ...]:
    """Name a change by all that it says."""
    values = [getattr(change, field.name) for field in dataclasses.fields(change)]
    return (
        type(change).__name__,
        *(f"{v.shape}{v.tobytes().hex()}" if isinstance(v, np.ndarray) else repr(v) for v in values),
    )
