"""Breakdown as objects: each name has its file, and one from outside of the package goes all the way to the report."""

from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import RuleError
from diagnose.faults.spec import JobSpec
from diagnose.features.catalogue import list_features
from diagnose.judge.rules import load_rules
from diagnose.model.components import COMPONENTS
from diagnose.model.feature import Feature
from diagnose.model.trace import Seconds
from diagnose.report.terminal import render
from diagnose.whatif import components
from diagnose.whatif.components.catalogue import added, list_components
from diagnose.whatif.components.component import Component, Lanes, Part, mix
from diagnose.whatif.computes import Place
from tests.judge.cases import make, measure

SPEC = JobSpec(pp=2, dp=2, microbatches=4, steps=6, seed=77)
#: Files of the folder that are no component.
SHARED = {"__init__", "attribution", "catalogue", "component"}
TAX = 0.2
RULE = """
id: taxed-forwards
title: taxed forwards
status: experimental
who: job owner
components: [tax]
story: Forwards pay a tax.
conditions:
  all:
    - feature: gain.tax
      at_least: 0.01
      from: made up
      says: without the tax steps take {value%} less
fixes:
  - fix: abolish
    summary: abolish the tax
source: made up
tests:
  - name: taxed
    features: {gain.tax: 0.1}
    fires: true
  - name: not taxed
    features: {gain.tax: 0.0}
    fires: false
"""


class TaxPart(Part):
    """A part of every forward that is no work."""

    changes_work = True

    def is_present(self) -> bool:
        """Everybody pays."""
        return True

    def ease_work(self, work: Seconds, place: Place, steps: slice, lanes: Lanes) -> Seconds:
        """Leave the tax out of forwards."""
        del steps
        return work * mix(lanes, np.where(place[0], 1.0, 1.0 - TAX)[..., None, None], 1.0)


TAX_COMPONENT = Component("tax", TaxPart)


def test_every_name_has_a_file_and_every_file_a_name() -> None:
    """The list of names and the files of the folder are the same, and each component has the name it is listed under."""
    folder = Path(components.__file__).parent
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py") if path.stem not in SHARED}
    assert files == set(COMPONENTS)
    assert [component.name for component in list_components()] == list(COMPONENTS)


def test_each_kind_of_stall_has_one_owner() -> None:
    """No two components take the same stalls out, and none is left to nobody."""
    for owned in ([c.inside for c in list_components()], [c.before for c in list_components()]):
        kinds = [kind for kind in owned if kind is not None]
        assert len(kinds) == len(set(kinds)) == 10


def test_a_component_from_outside_is_taken_out_and_named() -> None:
    """A component defined here has a gain, a share of the ledger, features, and its words in the report."""
    table = make(SPEC).trace
    with added(TAX_COMPONENT, "a tax on forwards"):
        m = measure(table)
        assert {"gain.tax", "last.tax"} <= set(list_features())
        text = render(m.diagnosis, width=120, color=False)
    # A third of the compute of a job is forwards; a fifth of that is the tax.
    assert m.gains.recoverable("tax") == pytest.approx(TAX / 3.0, abs=0.02)
    assert m.gains.share["tax"] > 0.9
    assert m.diagnosis.features["gain.tax"] == m.gains.recoverable("tax")
    assert m.diagnosis.ledger is not None and "tax" in m.diagnosis.ledger.components
    assert "a tax on forwards" in text


def test_what_was_added_goes_again() -> None:
    """After the context everything is as before, and a name that is taken is refused."""
    before = dict(COMPONENTS)
    taken = pytest.raises(ValueError, match="there is a component 'tax' already")
    with added(TAX_COMPONENT, "a tax on forwards"), taken, added(TAX_COMPONENT, "another one"):
        pass
    assert before == COMPONENTS
    assert "gain.tax" not in list_features()


def test_a_rule_may_name_a_component_from_outside(tmp_path: Path) -> None:
    """A rule over a component that was added is read; without it the rule is refused."""
    (tmp_path / "taxed-forwards.yaml").write_text(RULE, encoding="utf-8")
    with added(TAX_COMPONENT, "a tax on forwards"):
        rules = load_rules(tmp_path, known_features=list_features())
    assert "taxed-forwards" in [rule.id for rule in rules.rules]
    with pytest.raises(RuleError, match="tax"):
        load_rules(tmp_path, known_features=list_features())


def test_what_is_special_about_components_reaches_the_judge() -> None:
    """Gains carry the traits of every component: whom it blames, and what excuses it."""
    traits = measure(make(SPEC).trace).gains.traits
    assert list(traits) == list(COMPONENTS)
    assert [name for name, of_one in traits.items() if of_one.whom != "blamed"] == ["worker", "transfer"]
    assert traits["evaluation"].is_excused({}, ())
    assert not traits["step"].is_excused({}, ())
    assert traits["transfer"].is_excused({}, {"queue"})
    assert not traits["transfer"].is_excused({"last.transfer": Feature(0.1)}, {"queue"})
