"""The files that say what telemetry shows of a cause: those that ship are right, and what is wrong in one is told with its line."""

import pytest

from diagnose.errors import RuleError
from diagnose.judge.rules import built_in_rules, load_rules
from diagnose.judge.telemetry_file import read_telemetry_rules

GOOD = """\
cause: worker-fault
flat: it may be something else
signs:
  low:
    metric: gpu_sm_clock_mhz
    read: median
    is: below
    by_ratio: 0.02
    from: a guess
    says: its clock is {value}
kinds:
  - kind: clock
    title: clock low
    check: look
    any: [low]
    part: 0.5
source: nowhere
"""


def test_those_that_ship():
    """Each is of a rule, every sign has a threshold and a sentence, and some faults are left to what no counter shows."""
    rules = read_telemetry_rules(built_in_rules() / "telemetry")
    assert set(rules) == {"worker-fault", "network-fault", "data-loading"}
    assert set(rules) <= {rule.id for rule in load_rules().rules}
    for rule in rules.values():
        assert 0.3 < sum(kind.part for kind in rule.kinds) < 0.9
        for kind in rule.kinds:
            assert kind.some
            for sign in (*kind.every, *kind.some):
                assert sign.by or sign.by_ratio or sign.at_most is not None
                assert "{value}" in sign.says or sign.metric in {"net_up", "gpu_row_remap_failure"}


def test_what_a_sign_does_not_say(tmp_path):
    """Is asked of nobody: no difference but the one it names, no bound, and peers count as well as earlier times."""
    (tmp_path / "x.yaml").write_text(GOOD)
    (kind,) = read_telemetry_rules(tmp_path)["worker-fault"].kinds
    (sign,) = kind.some
    assert (sign.by_ratio, sign.by, sign.of_slowdown, sign.bits) == (0.02, 0.0, 0.0, 0)
    assert (sign.at_least, sign.at_most, sign.alone) == (None, None, None)
    assert (sign.above, sign.is_shared, kind.every) == (False, False, ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metric: gpu_sm_clock_mhz", "metric: gpu_sm_clock", r"x\.yaml:5: 'gpu_sm_clock' is not known; did you mean"),
        ("read: median", "read: mean", r"x\.yaml:6: 'mean' is not known"),
        ("is: below", "is: under", r"x\.yaml:7: 'under' is not known"),
        ("by_ratio: 0.02", "by_ratio: little", r"x\.yaml:8: expected a number"),
        ("by_ratio: 0.02", "by_ration: 0.02", r"x\.yaml:8: unknown key 'by_ration'; did you mean 'by_ratio'"),
        ("    from: a guess\n", "", r"x\.yaml:5: key 'from' is missing"),
        ("any: [low]", "any: [lower]", r"x\.yaml:15: 'lower' is not known; did you mean 'low'"),
        ("part: 0.5", "part: 1.5", r"x\.yaml:12: parts add up to 1 or more"),
        ("part: 0.5", "part: 1.0", r"x\.yaml:12: parts add up to 1 or more"),
        ("kinds:", "kind:", r"unknown key 'kind'"),
        ("  low:\n", "  - low:\n", r"x\.yaml:4: expected signs by name"),
        ("cause: worker-fault", "- 1", r"x\.yaml:\d+: is not YAML|expected a mapping"),
    ],
)
def test_faults_are_told_with_their_line(tmp_path, old, new, said):
    """A word, a number or a key that is wrong is a fault at its line."""
    assert old in GOOD
    (tmp_path / "x.yaml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(RuleError, match=said):
        read_telemetry_rules(tmp_path)
    other = tmp_path / "good"
    other.mkdir()
    (other / "x.yaml").write_text(GOOD)
    assert read_telemetry_rules(other)["worker-fault"].kinds[0].some[0].by_ratio == 0.02
