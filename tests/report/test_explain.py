"""The page and the JSON of an explanation: nothing is left out, nothing runs over the edge, nothing speaks to the terminal."""

import dataclasses
import json
import math
from typing import Any

import pytest

from diagnose.model.cause import When
from diagnose.model.course import Change
from diagnose.model.diagnosis_document import MadeBy
from diagnose.model.explanation import REASONS, CausePrediction, Checked, CheckedGroup, Explanation, Weight, Worth
from diagnose.model.place import Where, Worker
from diagnose.report.explain import describe_why, render, render_json

HIGH = Checked("worker.ratio", "at_least", 1.03, True, 1.61, "", "it takes 1.61 times as long", "a prototype", True)
LOW = Checked("worker.forward_ratio", "at_most", 1.015, False, 1.4, "", "", "half of it", True)
BLIND = Checked("worker.slow_share", "below", 0.5, None, None, "no peers", "", "", False)
EXAMPLE = Explanation(
    job_id="pretrain-7b",
    cause="worker-fault",
    title="slow worker",
    said=True,
    because=(),
    verdict="straggling",
    doubt="",
    confidence=0.93,
    gain=0.12,
    least_gain=0.0196,
    rule="worker-fault.yaml (built-in)",
    fires=True,
    conditions=CheckedGroup("all", True, (HIGH, CheckedGroup("any", False, (LOW, BLIND)))),
    prediction=CausePrediction(
        0.91, (Weight("gain.worker", 0.12, 2.5),), (Weight("stage.ratio", None, -0.4),), "trained on no job like this"
    ),
    changes=(Change(37, 0.0, math.log(1.6), 0.005),),
    changes_in="log-ratio",
    when=When("onset", 37),
    where=Where(workers=(Worker(1, 0, rank=1, host="gpu-17"),)),
    recorded_s=1.95,
    worth=(
        Worth("worker", "slow workers", 0.12, 0.11, 0.9, 1.7, ""),
        Worth("pause", "other pauses", None, None, None, None, "no rows"),
        Worth("worker+pause", "slow workers and other pauses", 0.12, 0.13, 0.95, 1.69, ""),
    ),
    made_by=MadeBy("0.1.0", "1f0c2a77", "9b1d44e0"),
    warnings=("clocks differ",),
)


def change(**changes: Any) -> Explanation:
    """Give the example with some of it changed."""
    return dataclasses.replace(EXAMPLE, **changes)


def words_of(page: str) -> str:
    """Take the layout out of a page."""
    return " ".join(page.split())


@pytest.mark.parametrize(
    "part",
    [
        "pretrain-7b: slow worker (worker-fault) is said",
        "Confidence almost certain (0.93)",
        "recorded 1.95 s, without it 1.69 s",
        "dp 1, stage 0 (rank 1, host gpu-17)",
        "from step 37 on",
        "holds worker.ratio at least 1.03: it is 1.61 so it takes 1.61 times as long threshold from: a prototype",
        "does not hold any of: does not hold worker.forward_ratio at most 1.015: it is 1.4 threshold from: half of it",
        "cannot be said worker.slow_share below 0.5: not measured: no peers",
        "slow workers 12% 11% 90% 1.70 s",
        "other pauses - - - -",
        "other pauses: no rows",
        "step 37: from 1.00x to 1.60x its peers' time; by chance with probability 0.005",
        "probability 0.91 trained on no job like this",
        "for gain.worker 0.12 +2.50",
        "against stage.ratio missing -0.40",
        "Rule worker-fault.yaml (built-in)",
        "Warning clocks differ",
        "diagnose 0.1.0, rules 1f0c2a77, classifier 9b1d44e0",
    ],
)
def test_the_page_has_everything(part: str) -> None:
    """Every part of an explanation is on its page, in words."""
    assert part in words_of(render(EXAMPLE, width=100, color=False))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_page(width: int) -> None:
    """Every line fits the width, and none ends with blanks, so that a page can be pasted."""
    lines = render(EXAMPLE, width=width, color=False).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_colours_are_all_that_colour_adds() -> None:
    """Without the escape sequences a page with colours is the page without."""
    import re

    coloured = render(EXAMPLE, width=80, color=True)
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.split("\n")] == render(EXAMPLE, width=80, color=False).split("\n")


def test_the_trace_cannot_speak_to_the_terminal() -> None:
    """Whatever a trace or a rule calls its things, the page without colours holds nothing that a terminal obeys."""
    evil = "a\x1b[2J\u202e\x9b\r\nb [bold]x[/bold]"
    parts = (
        dataclasses.replace(HIGH, feature=evil, says=evil, origin=evil),
        dataclasses.replace(BLIND, reason=evil, deciding=True),
    )
    found = change(
        job_id=evil,
        title=evil,
        cause=evil,
        said=False,
        because=tuple(REASONS),
        doubt=evil,
        rule=evil,
        conditions=CheckedGroup("all", False, parts),
        prediction=CausePrediction(0.5, (Weight(evil, 1.0, 1.0),), (), evil),
        where=Where(workers=(Worker(0, 0, host=evil),), hosts=(evil,)),
        worth=(Worth("worker", evil, None, None, None, None, evil),),
        warnings=(evil,),
    )
    page = render(found, width=80, color=False)
    assert all(char.isprintable() or char == "\n" for char in page)
    assert "[bold]" in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "Said: the conditions of its rule hold, and without it steps are 12% shorter (2.0% is asked for)."),
        ({"prediction": CausePrediction(0.03, (), (), None)}, "; the classifier gives it a probability of 0.03."),
        ({"fires": False}, "Said: the conditions of its rule do not hold, but the classifier sees it, and without it"),
        ({"conditions": None}, "Said: no rule explains the time, and without it"),
        ({"said": False, "because": ("gain",), "gain": 0.01, "least_gain": 0.02}, "Not said: without it steps are"),
        ({"said": False, "because": ("gain",), "gain": -0.3}, "Not said: nothing comes back without it (2.0%"),
        ({"said": False, "because": ("conditions",)}, "worker.forward_ratio is 1.4, not at most 1.015."),
        ({"said": False, "because": ("inconclusive",), "doubt": "one step"}, "Not said: one step."),
        ({"said": False, "because": ("classifier",)}, "but the classifier gives it a probability of 0.91."),
        ({"said": False, "because": ("explained",)}, "but other causes account for that time."),
    ],
)
def test_one_sentence_says_why(changes: dict[str, Any], says: str) -> None:
    """Whatever decided is in the one sentence that the page begins with and the JSON has as `why`."""
    found = change(**changes)
    assert says in describe_why(found)
    assert describe_why(found).count("\n") == 0
    assert json.loads(render_json(found))["why"] == describe_why(found)


def test_what_was_not_measured_is_in_the_sentence() -> None:
    """Where nobody could look, the sentence names the feature and the reason."""
    blind = dataclasses.replace(BLIND, deciding=True)
    found = change(said=False, because=("unknown-conditions",), conditions=CheckedGroup("all", None, (blind,)))
    assert describe_why(found) == "Not said: worker.slow_share could not be measured (no peers)."
    worth = (Worth("worker", "slow workers", None, None, None, None, "no peers"),)
    assert "nobody can tell what it costs, as no peers" in describe_why(
        change(said=False, because=("unmeasured",), worth=worth)
    )


def test_a_gain_that_others_hide() -> None:
    """What comes back only after the causes that are said are gone is said to."""
    worth = (Worth("stage", "uneven pipeline stages", 0.001, 0.08, 0.1, 1.9, ""),)
    assert "without it, once the causes that are said are gone, steps are 8.0% shorter" in describe_why(
        change(gain=0.08, worth=worth, after_others=True)
    )


def test_the_json_has_the_documented_keys() -> None:
    """The object has the keys that its documentation lists, in any case, and no number that is none."""
    keys = {
        *("schema", "made_by", "job_id", "cause", "title", "said", "because", "verdict", "doubt", "confidence", "gain"),
        "alternatives",
        *("least_gain", "rule", "classifier", "when", "where", "changes", "changes_in", "step_time", "gains"),
        *("warnings", "why"),
    }
    for found in (EXAMPLE, change(conditions=None, prediction=None, changes=(), gain=None, confidence=math.nan)):
        text = render_json(found)
        assert "\n" not in text and "NaN" not in text
        assert set(json.loads(text)) == keys
        assert all(f"`{key}`" in Explanation.to_dict.__doc__ for key in keys - {"why"})
    assert json.loads(render_json(EXAMPLE))["schema"] == "diagnose-explain/1"
