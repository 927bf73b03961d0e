"""A log that tells rates alone: what is said of it has no seconds, no GPU hours and no place."""

import re
from pathlib import Path

import numpy as np
import pytest

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report import brief, junit, markdown, terminal
from diagnose.report.html.page import render_without_replay
from tests.logs.shapes import draw_shape
from tests.logs.writers.torchtune import write_disk_log

#: Figures with a unit of time, as reports write them.
SECONDS = re.compile(r"\b\d[\d.,]* ?(?:ns|us|ms|s|min|h)\b")
RENDERERS = {
    "brief": lambda diagnosis: brief.render(diagnosis, width=100, color=False),
    "terminal": lambda diagnosis: terminal.render(diagnosis, width=100, color=False, thorough=False),
    "markdown": markdown.render,
    "junit": junit.render,
    "html": lambda diagnosis: re.sub(
        r"<(style|script)\b.*?</\1>|<svg.*?</svg>", "", render_without_replay(diagnosis, "job"), flags=re.DOTALL
    ),
}


@pytest.fixture(scope="module", params=["windows", "ramp", "periodic", "restart", "healthy"])
def rated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """Diagnose the rates of a run of each shape."""
    path: Path = tmp_path_factory.mktemp("rates") / "train.log"
    path.write_bytes(write_disk_log(draw_shape(request.param, 5, interval=1).run))
    return diagnose_job(Request(path))


@pytest.mark.parametrize("name", RENDERERS)
def test_no_page_has_seconds_or_a_place(rated: Diagnosis, name: str) -> None:
    """No page says seconds of what is a rate, nor that something is spread over a job of which a log shows one series."""
    said = RENDERERS[name](rated)
    assert SECONDS.findall(said) == []
    assert "spread over the job" not in said


def test_hours_are_not_known(rated: Diagnosis) -> None:
    """Nothing is added up, and it is said of what the figures are."""
    assert rated.gpu_hours_wasted is None
    assert np.isnan(rated.gpu_hours_analysed)
    assert rated.log.of == "1,000,000 tokens of a GPU"
    assert "a rate only" in rated.warnings[0]
