"""The promise of the README: a new cause is a rule and a fault, two files that nobody else has to know of."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.faults.catalogue import CauseFile, list_cause_files, list_look_alikes
from diagnose.faults.generate import generate, list_causes
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job, prepare_report
from diagnose.report.html import page
from tests.judge.cases import causes, culprits, diagnose_table

RULE = """\
id: offloaded-optimizer
title: optimizer state lies on the host
status: experimental
severity: low
who: job owner
components: [end-delay]
place: workers
needs: [between-steps]
pictures: [timeline]
story: >
  One worker keeps its optimizer state in the memory of its host, and moves it there and back in some steps.
conditions:
  all:
    - feature: gain.end-delay
      at_least: 0.05
      from: a part of the step that one sees
      says: optimizers cost {value%} of the step
    - feature: stall.regularity
      below: 0.8
      from: checkpoints are taken at exact multiples
      says: "{value%} of the steps that lose time lie on one period"
fixes:
  - fix: keep-on-device
    summary: keep the optimizer state on the device
looks_like: [checkpoint-stall]
false_positives: checkpoints now and then
source: nobody
tests:
  - name: at no period
    features: {gain.end-delay: 0.2, stall.regularity: 0.3}
    fires: true
  - name: every fifth step
    features: {gain.end-delay: 0.2, stall.regularity: 1.0}
    fires: false
"""
FAULT = '''
"""A worker whose optimizer takes longer in some steps, because it moves its state."""

import dataclasses
from typing import ClassVar

import numpy as np

from diagnose.faults.decoy import Decoy
from diagnose.faults.example import PLAIN_JOB, SMALL, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault
from diagnose.model.optype import Op


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffloadedOptimizer(Fault):
    cause: ClassVar[str] = "offloaded-optimizer"
    dp: int
    stage: int
    slowdown: float

    @property
    def strength(self):
        return self.slowdown

    def workers(self, spec):
        return ((self.dp, self.stage),)

    def apply(self, inputs):
        work_s, programme = inputs.work_s.copy(), inputs.programme
        moves = self.random(inputs.spec).random(inputs.spec.steps) < 0.4
        here = programme.is_op(Op.OPTIMIZER) & (programme.stage == self.stage)
        work_s[here, :, self.dp] *= np.where(moves, self.slowdown, 1.0)
        return dataclasses.replace(inputs, work_s=work_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongOptimizers(Decoy):
    name: ClassVar[str] = "long-optimizers"
    unlike: ClassVar[frozenset[str]] = frozenset({"offloaded-optimizer"})

    def apply(self, inputs):
        work_s = inputs.work_s.copy()
        work_s[inputs.programme.is_op(Op.OPTIMIZER)] *= 10.0
        return dataclasses.replace(inputs, work_s=work_s)


def draw_fault(spec, rng, *, strength=None, onset=None):
    return OffloadedOptimizer(
        dp=int(rng.integers(spec.dp)), stage=int(rng.integers(spec.pp)), slowdown=strength or 100.0, onset=onset
    )


EXAMPLES = {"an optimizer on the host": Example(OffloadedOptimizer(dp=1, stage=2, slowdown=100.0), SMALL)}
PLAIN = Example(OffloadedOptimizer(dp=2, stage=1, slowdown=100.0), PLAIN_JOB)
LOOK_ALIKES = {"long optimizers everywhere": LookAlike(LongOptimizers(), SMALL)}
FIXTURE = Fixture("the optimizer of one worker takes 100 times as long in some steps", seed=1)
'''
CAUSE = "offloaded-optimizer"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the two files of the new cause."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / f"{CAUSE}.yaml").write_text(RULE)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "offloaded_optimizer.py").write_text(FAULT)
    return tmp_path


@pytest.fixture
def file(folder: Path) -> CauseFile:
    """Give what the new fault file brings."""
    return list_cause_files(folder / "faults")[CAUSE]


def diagnose_example(file: CauseFile, folder: Path) -> Diagnosis:
    """Diagnose the clear example of the new cause by the new rule."""
    (example,) = file.examples.values()
    return diagnose_table(generate(example.spec, [example.fault]).trace, rules=folder / "rules")


def test_its_fault_is_listed_beside_the_others(folder: Path) -> None:
    """The new cause can be drawn, and what it brings is among the examples and look-alikes that tests run over."""
    assert set(list_causes(folder / "faults")) == {CAUSE, *list_causes()}
    assert set(list_look_alikes(folder / "faults")) == {"long optimizers everywhere", *list_look_alikes()}


def test_it_is_found_in_its_place(file: CauseFile, folder: Path) -> None:
    """The new cause is the one that is said, with its title, worker, true gain, evidence and fix."""
    (example,) = file.examples.values()
    (true,) = generate(example.spec, [example.fault]).truth.faults
    found = diagnose_example(file, folder)
    assert causes(found) == [CAUSE]
    assert culprits(found, CAUSE) == list(true.workers)
    (cause,) = found.causes
    assert (cause.title, cause.severity, cause.who) == ("optimizer state lies on the host", "low", "job owner")
    assert cause.recoverable == pytest.approx(true.recoverable, abs=0.03)
    assert re.fullmatch(r"optimizers cost \d+\.?\d*% of the step", cause.evidence[0].text)
    assert [fix.fix for fix in cause.fixes] == ["keep-on-device"]
    assert CAUSE in found.checked


def test_without_its_rule_it_is_unknown(file: CauseFile) -> None:
    """Nothing else in the program knows the cause: by the built-in rules alone its time is lost to something unknown."""
    (example,) = file.examples.values()
    assert causes(diagnose_table(generate(example.spec, [example.fault]).trace)) == ["unknown"]


def test_its_look_alike_is_healthy(file: CauseFile, folder: Path) -> None:
    """What its file says is no fault is none by its rule."""
    (look_alike,) = file.look_alikes.values()
    found = diagnose_table(generate(look_alike.spec, (), [look_alike.decoy]).trace, rules=folder / "rules")
    assert (found.verdict, causes(found)) == ("healthy", [])


def test_its_picture_leads_its_page(file: CauseFile, folder: Path) -> None:
    """The page of a job with it begins with the picture that its rule names."""
    (example,) = file.examples.values()
    pq.write_table(generate(example.spec, [example.fault]).trace, folder / "job.parquet")
    text = page.render(prepare_report(Request(folder / "job.parquet", rules=folder / "rules")))
    first = re.search(r'<figure id="([^"]+)"', text)
    assert first is not None and first[1] == "timeline"


def lacking(table: pa.Table, *lacks: str) -> pa.Table:
    """Give a trace that was converted from files which do not show something."""
    entry = {"what": "a stopwatch", "reason": "shows little", "lacks": lacks, "causes": []}
    kept = {"producer": "theirs", "dropped": [], "unsaid": [entry], "offsets": [], "warnings": []}
    return table.replace_schema_metadata({**table.schema.metadata, b"diagnose.recording": json.dumps(kept).encode()})


def test_it_is_not_checked_where_a_recording_cannot_show_it(file: CauseFile, folder: Path) -> None:
    """Where what its rule needs is lacking it is neither said nor cleared, and the reason is told; elsewhere it is checked."""
    (example,) = file.examples.values()
    table = generate(example.spec, [example.fault]).trace
    pq.write_table(lacking(table, "between-steps"), folder / "blind.parquet")
    pq.write_table(lacking(table, "transfers"), folder / "other.parquet")
    blind, other = (
        diagnose_job(Request(folder / f"{name}.parquet", rules=folder / "rules")) for name in ("blind", "other")
    )
    assert {entry.cause: entry.reason for entry in blind.not_checked}[CAUSE] == "a stopwatch: shows little"
    assert CAUSE not in [*blind.checked, *causes(blind)]
    assert any(f"(not checked for that: checkpoint-stall, {CAUSE})" in warning for warning in blind.warnings)
    assert causes(other) == [CAUSE]
