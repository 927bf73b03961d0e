"""Figures that show a cause: what is left over of a job in a few rows and columns."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.judge.proof import MAX_COLUMNS, MAX_ROWS, add_proofs, prove
from diagnose.model.analysis import ReportData
from diagnose.model.cause import Cause, EvidenceItem, When
from diagnose.model.components import COMPONENTS
from diagnose.model.pictured import NO_RULE, Pictured
from diagnose.model.place import Where
from diagnose.model.plain import to_json
from diagnose.model.request import Request
from diagnose.pipeline import prepare_report
from tests.jobs import random_job, random_shape, to_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data() -> ReportData:
    """Give a job with collections."""
    return prepare_report(Request(ROOT / "fixtures/garbage-collection.parquet"))


def unknown(component: str) -> Cause:
    """Make a finding that no rule explains."""
    item = EvidenceItem("rule", f"unknown/gain.{component}", "", {f"gain.{component}": 0.1})
    return Cause(
        cause="unknown", confidence=0.5, share=0.1, recoverable=0.1, where=Where(), when=When(), evidence=(item,), fixes=(),
        fingerprint="x",
    )  # fmt: skip


@pytest.mark.parametrize("component", COMPONENTS)
def test_whatever_loses_time_can_be_shown(data: ReportData, component: str) -> None:
    """What no rule explains has figures too: where what it loses time to shows, or else the steps."""
    (cause,) = add_proofs(data.analysis, [unknown(component)], {})
    assert cause.proof is not None
    shown = {
        "stage": "stages",
        "microbatch": "ranks",
        "expert": "experts",
        "transfer": "transfers",
        "gc-pause": "pauses",
    }
    assert cause.proof.kind == shown.get(component, "steps")
    assert len(cause.proof.values) == len(cause.proof.rows)
    assert {len(row) for row in cause.proof.values} == {len(cause.proof.columns)}


def test_a_rule_says_what_shows_its_cause(data: ReportData) -> None:
    """The first of its pictures that the job has figures for, or else what its components need."""
    for pictures, kind in ((("ranks",), "ranks"), (("pace", "stages"), "stages"), ((), "pauses")):
        proof = prove(data.analysis, unknown("pause"), Pictured(("gc-pause",), pictures))
        assert proof is not None and proof.kind == kind


def test_collections_are_those_of_the_trace(data: ReportData) -> None:
    """Each pause stands at its worker and step, with the seconds that the breakdown has."""
    proof = prove(data.analysis, unknown("gc-pause"), NO_RULE)
    assert proof is not None and proof.unit == "seconds" and proof.left_out == 0
    stalls = data.analysis.breakdown.stalls
    total_s = float((stalls.inside_s + stalls.before_s)[stalls.inside == 1].sum())
    assert np.array(proof.values).sum() == pytest.approx(total_s, rel=1e-3)
    assert list(proof.columns) == sorted(data.analysis.breakdown.steps.tolist())


@pytest.mark.parametrize("seed", range(6))
def test_figures_stay_small(seed: int) -> None:
    """Any job's figures have a bounded size, finite or null, whatever they show."""
    data = prepare_report(Request(to_file(random_job(random_shape(seed), seed)), name="random"))
    for component in COMPONENTS:
        proof = prove(data.analysis, unknown(component), NO_RULE)
        assert proof is not None
        assert len(proof.rows) <= MAX_ROWS and len(proof.columns) <= MAX_COLUMNS
        assert "NaN" not in to_json(proof)


def test_steps_share_columns_where_there_are_many(data: ReportData, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map keeps the worst of the steps that share a column, and the rows that show most."""
    from diagnose.judge import proof as proofs

    whole = prove(data.analysis, unknown("gc-pause"), NO_RULE)
    monkeypatch.setattr(proofs, "MAX_COLUMNS", 5)
    monkeypatch.setattr(proofs, "MAX_ROWS", 3)
    small = prove(data.analysis, unknown("gc-pause"), NO_RULE)
    assert whole is not None and small is not None
    assert (small.steps_each, small.left_out) == (3, len(whole.rows) - 3)
    assert small.columns == whole.columns[::3]
    rows = [whole.rows.index(name) for name in small.rows]
    for row, values in zip(rows, small.values, strict=True):
        assert list(values) == [max(whole.values[row][i : i + 3]) for i in range(0, len(whole.columns), 3)]
    assert min(sum(whole.values[row]) for row in rows) >= max(
        sum(values) for i, values in enumerate(whole.values) if i not in rows
    )
