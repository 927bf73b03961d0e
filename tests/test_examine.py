"""The examination of a job: what is measured and judged before a verdict, and what is left undone because it costs."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose import pipeline
from diagnose.judge.classifier import Opinion
from diagnose.judge.verdict import reach_verdict
from diagnose.report.json_lines import render

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SLOW, HEALTHY = FIXTURES / "worker-fault.parquet", FIXTURES / "healthy.parquet"


class Asked:
    """A classifier that counts how often it is asked."""

    digest = "0123456789ab"

    def __init__(self) -> None:
        self.times = 0

    def judge(self, features: object) -> Opinion:
        """Give no opinion."""
        assert features
        self.times += 1
        return Opinion({}, {}, {}, 0.0, None, {})


def test_a_diagnosis_is_an_examination_and_a_verdict() -> None:
    """An examination holds all that a diagnosis is made of: judging it and putting it together gives the same bytes."""
    found = pipeline.examine(SLOW, min_speedup=1.05)
    assert [judgement.rule for judgement in found.judgements] == list(found.rule_set.rules)
    assert found.trace.n_ops == 8928
    verdict = reach_verdict(found.case, found.judgements, min_speedup=1.05, opinion=found.opinion)
    causes, prices = pipeline.price_fixes(found, verdict.causes)
    alone = pipeline.assemble(found, dataclasses.replace(verdict, causes=causes), prices.plan, min_speedup=1.05)
    assert render(alone) == render(pipeline.diagnose_job(SLOW, min_speedup=1.05))


def test_the_classifier_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a classifier, its opinion of the job is in the examination, and its digest in the diagnosis, too."""
    asked = Asked()
    monkeypatch.setattr(pipeline, "_load_classifier", lambda: asked)
    found = pipeline.examine(HEALTHY)
    assert found.opinion is not None
    assert asked.times == 1
    assert found.made_by.classifier == asked.digest
    assert pipeline.diagnose_job(HEALTHY).made_by.classifier == asked.digest


def test_training_does_not_ask_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures in order to train is not stopped by a classifier that knows other features."""

    def load() -> None:
        raise AssertionError

    monkeypatch.setattr(pipeline, "_load_classifier", load)
    found = pipeline.examine(HEALTHY, ask_classifier=False)
    assert found.opinion is None
    assert found.made_by.classifier is None


def test_the_classifier_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that diagnoses many jobs reads the file of the classifier for the first of them only."""
    reads = []
    monkeypatch.setattr(pipeline, "load_classifier", lambda: reads.append(SimpleNamespace()))
    pipeline._load_classifier.cache_clear()
    try:
        pipeline._load_classifier()
        pipeline._load_classifier()
    finally:
        pipeline._load_classifier.cache_clear()
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("path", "min_speedup", "told"),
    [(SLOW, 1.02, {"worker"}), (SLOW, 1.5, set()), (HEALTHY, 1.02, set())],
    ids=["worth it", "too little", "healthy"],
)
def test_since_when_is_asked_only_of_what_is_worth_it(path: Path, min_speedup: float, told: set[str]) -> None:
    """Only a component that gives back the speedup asked for has a course: fitting one costs more than all the rest."""
    assert set(pipeline.examine(path, min_speedup=min_speedup).case.courses) == told


def test_a_healthy_job_is_diagnosed_without_fitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No series of a healthy job is fitted, whatever it holds."""

    def fit(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pipeline, "find_course", fit)
    assert pipeline.diagnose_job(HEALTHY).verdict == "healthy"
