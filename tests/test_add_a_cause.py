"""The promise of the README: a new cause is a rule, a fault and, where none carries its time, a component; no other file knows."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.faults.catalogue import CauseFile, list_cause_files, list_look_alikes
from diagnose.faults.generate import generate
from diagnose.model.components import COMPONENTS
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job, prepare_report
from diagnose.report.html import page
from diagnose.whatif.components.catalogue import added
from tests.judge.cases import causes, culprits, diagnose_table

RULE = """\
id: gradient-flush
title: gradients are flushed in the last backward
status: experimental
severity: low
who: job owner
components: [last-backward]
place: workers
needs: [data-parallel-ranks]
pictures: [pace]
story: >
  One worker sums its gradients up in one go, at the end of its last backward of a step.
conditions:
  all:
    - feature: gain.last-backward
      at_least: 0.05
      from: a part of the step that one sees
      says: last backwards cost {value%} of the step
fixes:
  - fix: accumulate
    summary: sum gradients up microbatch by microbatch
looks_like: [worker-fault]
false_positives: another kernel for the last microbatch
source: nobody
tests:
  - name: long last backwards
    features: {gain.last-backward: 0.2}
    fires: true
  - name: like all others
    features: {gain.last-backward: 0.0}
    fires: false
"""
FAULT = '''
"""A worker whose last backward of each step takes longer than its others."""

import dataclasses
from typing import ClassVar

from diagnose.faults.decoy import Decoy
from diagnose.faults.example import PLAIN_JOB, SMALL, Example, Fixture, LookAlike
from diagnose.faults.fault import Fault, choose_kind
from diagnose.model.optype import Op


def last_backwards(inputs):
    programme = inputs.programme
    return programme.is_op(Op.BACKWARD) & (programme.microbatch == inputs.spec.microbatches - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientFlush(Fault):
    cause: ClassVar[str] = "gradient-flush"
    dp: int
    stage: int
    slowdown: float

    @property
    def strength(self):
        return self.slowdown

    def workers(self, spec):
        return ((self.dp, self.stage),)

    def apply(self, inputs):
        work_s = inputs.work_s.copy()
        work_s[last_backwards(inputs) & (inputs.programme.stage == self.stage), :, self.dp] *= self.slowdown
        return dataclasses.replace(inputs, work_s=work_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongLastBackwards(Decoy):
    name: ClassVar[str] = "long-last-backwards"
    unlike: ClassVar[frozenset[str]] = frozenset({"gradient-flush"})

    def apply(self, inputs):
        work_s = inputs.work_s.copy()
        work_s[last_backwards(inputs)] *= 3.0
        return dataclasses.replace(inputs, work_s=work_s)


KINDS = {"last": 1.0}


def draw_fault(spec, rng, *, strength=None, onset=None, kind=None):
    return GradientFlush(
        kind=choose_kind(KINDS, rng, kind),
        dp=int(rng.integers(spec.dp)), stage=int(rng.integers(spec.pp)), slowdown=strength or 8.0, onset=onset
    )


EXAMPLES = {"gradients flushed at once": Example(GradientFlush(dp=1, stage=2, slowdown=8.0), SMALL)}
PLAIN = Example(GradientFlush(dp=2, stage=1, slowdown=8.0), PLAIN_JOB)
LOOK_ALIKES = {"long last backwards everywhere": LookAlike(LongLastBackwards(), SMALL)}
FIXTURE = Fixture("the last backward of one worker takes 8 times as long", seed=1)
'''
COMPONENT = '''
"""Last backwards: a worker's last backward of a step takes longer, over its others, than that of usual workers."""

import numpy as np

from diagnose.whatif.components.component import Component, Part, mix

#: A last backward stands out beyond this many times the usual one.
LONG_RATIO = 1.5


class LastBackwardPart(Part):
    changes_work = True

    def find(self):
        backward_s = self.job.breakdown.compute_s[1]  # (n_virtual, n_microbatches, n_steps, n_dp)
        ratio = np.median(backward_s[:, -1] / np.median(backward_s[:, :-1], axis=1), axis=1)  # (n_virtual, n_dp)
        ratio = ratio / np.median(ratio)
        self.ratio = np.where(ratio > LONG_RATIO, ratio, 1.0)

    def is_present(self):
        return bool((self.ratio > 1.0).any())

    def ease_work(self, work, place, steps, lanes):
        direction, virtual, microbatch = place
        is_last = (direction == 1) & (microbatch == self.job.breakdown.compute_s.shape[2] - 1)
        return work / mix(lanes, np.where(is_last[..., None], self.ratio[virtual], 1.0)[..., None, :], 1.0)

    def blame(self):
        longer_s = np.zeros_like(self.job.breakdown.compute_s)
        longer_s[1, :, -1] = self.job.breakdown.compute_s[1, :, -1] * (1.0 - 1.0 / self.ratio)[:, None]
        return self.job.by_worker(longer_s)


COMPONENT = Component("last-backward", LastBackwardPart)
'''
CAUSE = "gradient-flush"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Give a folder with the three files of the new cause, while its component is taken out of all times."""
    files = {f"rules/{CAUSE}.yaml": RULE, "faults/gradient_flush.py": FAULT, "last_backward.py": COMPONENT}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    component = runpy.run_path(str(tmp_path / "last_backward.py"))["COMPONENT"]
    with added(component, "long last backwards"):
        yield tmp_path


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
    assert set(list_cause_files(folder / "faults")) == {CAUSE, *list_cause_files()}
    assert set(list_look_alikes(folder / "faults")) == {"long last backwards everywhere", *list_look_alikes()}


def test_it_is_found_in_its_place(file: CauseFile, folder: Path) -> None:
    """The new cause is the one that is said, with its title, worker, true gain, evidence and fix."""
    (example,) = file.examples.values()
    (true,) = generate(example.spec, [example.fault]).truth.faults
    found = diagnose_example(file, folder)
    assert causes(found) == [CAUSE]
    assert culprits(found, CAUSE) == list(true.workers)
    (cause,) = found.causes
    assert (cause.title, cause.kind, cause.who) == (
        "gradients are flushed in the last backward",
        "low",
        "job owner",
    )
    assert cause.recoverable == pytest.approx(true.recoverable, abs=0.03)
    assert re.fullmatch(r"last backwards cost \d+\.?\d*% of the step", cause.evidence[0].text)
    assert [fix.fix for fix in cause.fixes] == ["accumulate"]
    assert CAUSE in found.checked


def test_the_command_line_says_it(file: CauseFile, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose job.parquet --rules` begins with the cause and its worker."""
    (example,) = file.examples.values()
    pq.write_table(generate(example.spec, [example.fault]).trace, folder / "job.parquet")
    code = main([str(folder / "job.parquet"), "--rules", str(folder / "rules"), "--no-color"])
    headline, cause, *_ = capsys.readouterr().out.splitlines()
    assert (code, headline.startswith("job-0  STRAGGLING  ")) == (0, True)
    assert cause.startswith("Cause   gradients are flushed in the last backward: dp 1, stage 2 ")


def test_without_its_rule_it_is_unknown(file: CauseFile) -> None:
    """Nothing else in the program knows the cause: by the built-in rules alone nobody says why its component costs time."""
    (example,) = file.examples.values()
    (cause,) = diagnose_table(generate(example.spec, [example.fault]).trace).causes
    assert (cause.cause, cause.title) == ("unknown", "unknown cause: long last backwards")


def test_without_its_component_nobody_sees_it(file: CauseFile) -> None:
    """Without its component nobody sees the time that it costs: the job seems healthy."""
    (example,) = file.examples.values()
    table = generate(example.spec, [example.fault]).trace
    with mock.patch.dict(COMPONENTS):
        del COMPONENTS["last-backward"]
        assert causes(diagnose_table(table)) == []


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
    assert first is not None and first[1] == "pace"


def lacking(table: pa.Table, *lacks: str) -> pa.Table:
    """Give a trace that was converted from files which do not show something."""
    entry = {"what": "a stopwatch", "reason": "shows little", "lacks": lacks, "causes": []}
    kept = {"producer": "theirs", "dropped": [], "unsaid": [entry], "offsets": [], "warnings": []}
    return table.replace_schema_metadata({**table.schema.metadata, b"diagnose.recording": json.dumps(kept).encode()})


def test_it_is_not_checked_where_a_recording_cannot_show_it(file: CauseFile, folder: Path) -> None:
    """Where what its rule needs is lacking it is neither said nor cleared, and the reason is told; elsewhere it is checked."""
    (example,) = file.examples.values()
    table = generate(example.spec, [example.fault]).trace
    pq.write_table(lacking(table, "data-parallel-ranks"), folder / "blind.parquet")
    pq.write_table(lacking(table, "transfers"), folder / "other.parquet")
    blind, other = (
        diagnose_job(Request(folder / f"{name}.parquet", rules=folder / "rules")) for name in ("blind", "other")
    )
    assert {entry.cause: entry.reason for entry in blind.not_checked}[CAUSE] == "a stopwatch: shows little"
    assert CAUSE not in [*blind.checked, *causes(blind)]
    assert any(f"(not checked for that: {CAUSE})" in warning for warning in blind.warnings)
    assert causes(other) == [CAUSE]
