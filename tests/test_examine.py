"""The examination of a job: what is measured and judged before a verdict, and what is left undone because it costs."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from diagnose import judges, pipeline
from diagnose.features import courses
from diagnose.fixes.levers import price_levers
from diagnose.fixes.plan import add_fixes, price_causes
from diagnose.judge.assemble import assemble
from diagnose.judge.classifier import Prediction
from diagnose.judge.mending import list_fixes_to_price
from diagnose.judge.pictured import list_pictured
from diagnose.judge.proof import add_proofs
from diagnose.judge.verdict import reach_verdict
from diagnose.model.request import Request
from diagnose.report import brief
from diagnose.report.json_lines import render

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SLOW, HEALTHY = FIXTURES / "worker-fault.parquet", FIXTURES / "healthy.parquet"


class Asked:
    """A classifier that counts how often it is asked."""

    digest = "0123456789ab"

    def __init__(self) -> None:
        self.times = 0

    def judge(self, features: object) -> Prediction:
        """Give no prediction."""
        assert features
        self.times += 1
        return Prediction({}, {}, {}, None, {})


def test_a_diagnosis_is_an_analysis_and_a_verdict() -> None:
    """Judging what was measured and putting it together gives the same bytes as diagnosing the job."""
    request = Request(SLOW, min_speedup=1.05)
    analysis, judged = pipeline.examine(request)
    assert [judgement.rule for judgement in judged.judgements] == list(judged.rule_set.rules)
    assert analysis.trace.n_ops == 8928
    verdict = reach_verdict(analysis, judged.judgements, min_speedup=1.05, prediction=judged.prediction)
    wanted = list_fixes_to_price(verdict.causes, judged.rule_set)
    prices = price_causes(analysis, wanted)
    causes = add_proofs(analysis, add_fixes(verdict.causes, wanted, prices), list_pictured(judged.rule_set))
    verdict = dataclasses.replace(verdict, causes=causes)
    alone = assemble(analysis, judged, verdict, prices.plan, min_speedup=1.05)
    assert alone.budget is not None
    alone = dataclasses.replace(alone, levers=price_levers(analysis, alone.budget))
    assert render(alone) == render(pipeline.diagnose_job(request))


def test_what_is_lost_is_not_known_where_the_replay_is_not_trusted() -> None:
    """A replay that misses the recorded steps says nothing of what was wasted: null, and not 0."""
    analysis, judged = pipeline.examine(Request(SLOW))
    for ok in (True, False):
        job = dataclasses.replace(analysis, fidelity=msgspec.structs.replace(analysis.fidelity, ok=ok))
        found = assemble(job, judged, reach_verdict(job, judged.judgements, min_speedup=1.02), min_speedup=1.02)
        assert (found.verdict, found.gpu_hours_wasted is None) == (
            ("straggling", False) if ok else ("inconclusive", True)
        )
        assert ("Cost    not known; " in brief.render(found, width=100, color=False)) == (not ok)


def test_the_classifier_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a classifier, its prediction of the job is kept, and its digest is in the diagnosis, too."""
    asked = Asked()
    monkeypatch.setattr(judges, "read_classifier", lambda: asked)
    _, judged = pipeline.examine(Request(HEALTHY))
    assert judged.prediction is not None
    assert asked.times == 1
    assert judged.made_by.classifier == asked.digest
    assert pipeline.diagnose_job(Request(HEALTHY)).made_by.classifier == asked.digest


def test_measuring_does_not_ask_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures in order to train is not stopped by a classifier that knows other features."""

    def load() -> None:
        raise AssertionError

    monkeypatch.setattr(judges, "read_classifier", load)
    assert pipeline.analyse_job(Request(HEALTHY), judges.read_rules()).features


def test_the_classifier_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that diagnoses many jobs reads the file of the classifier for the first of them only."""
    reads = []
    monkeypatch.setattr(judges, "load_classifier", lambda: reads.append(SimpleNamespace()))
    judges.read_classifier.cache_clear()
    try:
        judges.read_classifier()
        judges.read_classifier()
    finally:
        judges.read_classifier.cache_clear()
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("path", "min_speedup", "told"),
    [(SLOW, 1.02, {"worker"}), (SLOW, 1.5, set()), (HEALTHY, 1.02, set())],
    ids=["worth it", "too little", "healthy"],
)
def test_since_when_is_asked_only_of_what_is_worth_it(path: Path, min_speedup: float, told: set[str]) -> None:
    """Only a component that gives back the speedup asked for has a course: fitting one costs more than all the rest."""
    analysis, _ = pipeline.examine(Request(path, min_speedup=min_speedup))
    assert set(analysis.courses) == told


def test_a_healthy_job_is_diagnosed_without_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No series of a healthy job is fitted, whatever it holds."""

    def fit(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(courses, "find_course", fit)
    assert pipeline.diagnose_job(Request(HEALTHY)).verdict == "healthy"
