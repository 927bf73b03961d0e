"""Rules: each ships with its own tests, judges with three values, executes nothing, and all faults are told at once."""

import dataclasses
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import RuleError
from diagnose.faults.spec import JobSpec
from diagnose.features.catalogue import list_features
from diagnose.judge.check import try_case
from diagnose.judge.describe import describe_rule
from diagnose.judge.rule import Condition, Group, Rule, RuleTest, write_sentence
from diagnose.judge.rule_file import SEVERITIES, read_rule
from diagnose.judge.rules import built_in_rules, load_rules
from diagnose.judge.yaml_file import MAX_BYTES, MAX_DEPTH, read_mapping
from diagnose.model.components import COMPONENTS
from diagnose.model.feature import Feature, Features
from tests.judge.cases import built_in, causes, diagnose_table, make, measured

ROOT = Path(__file__).resolve().parents[2]
RULES = built_in().rules
CASES = [(rule, case) for rule in RULES for case in rule.tests]
SMALL = JobSpec(pp=2, dp=2, microbatches=4, steps=4)
#: A file that hangs the reader is given up on after this.
PATIENCE_S = 5
VALUES = (True, False, None)

A_RULE = """\
id: my-cause
title: a cause of mine
status: experimental
who: platform
components: [pause]
story: something happens
conditions:
  all:
    - feature: slowdown
      at_least: 1.0
      says: S is {value}
fixes:
  - fix: mend-it
    summary: mend it
    how: with care
source: nobody
tests:
  - name: it happens
    features: {slowdown: 1.5}
    fires: true
"""


def features_of(values: dict[str, float | None]) -> Features:
    """Make features; None could not be measured."""
    return {
        name: Feature.missing("not here") if value is None else Feature(float(value)) for name, value in values.items()
    }


def write(folder: Path, name: str, text: str) -> Path:
    """Write a rule file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def faults_in(folder: Path) -> list[str]:
    """Read the rules of a folder; give the faults."""
    with pytest.raises(RuleError) as caught:
        load_rules(folder)
    return str(caught.value).splitlines()


# ------------------------------------------------------------------------------------------ the rules that ship


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[f"{rule.id}: {case.name}" for rule, case in CASES])
def test_each_rule_judges_its_own_tests_as_they_say(rule: Rule, case: RuleTest) -> None:
    """A rule fires on the case beside it that must fire, and on no other; where all was measured it says yes or no."""
    fires = rule.judge(features_of(case.features)).fires
    assert (fires is True) == case.fires
    if None not in case.features.values():
        assert fires is not None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_has_two_cases_that_fire_and_two_that_do_not(rule: Rule) -> None:
    """No rule stands without at least two cases on either side."""
    fires = [case.fires for case in rule.tests]
    assert fires.count(True) >= 2
    assert fires.count(False) >= 2


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_says_how_severe_it_is_and_where_its_thresholds_come_from(rule: Rule) -> None:
    """Every built-in rule has a severity, what it is mistaken for, and an origin of every threshold."""
    assert rule.severity in SEVERITIES
    assert rule.false_positives
    assert rule.looks_like
    assert all(condition.origin for condition in rule.conditions.conditions())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_speaks_of_features_that_a_job_has(rule: Rule) -> None:
    """Every feature that conditions and cases name is among those of a real diagnosis; cases may name those of vetoes."""
    known = measured(SMALL).analysis.features
    named = {name for case in rule.tests for name in case.features}
    assert named <= set(known)
    conditions = {condition.feature for condition in rule.conditions.conditions()}
    assert conditions <= named <= conditions | {condition.feature for condition in rule.vetoes.conditions()}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_is_blind_where_nothing_was_measured(rule: Rule) -> None:
    """Without any feature no rule says yes or no, and each says why."""
    judgement = rule.judge({})
    assert judgement.fires is None
    assert judgement.held == ()
    assert len(judgement.missing) == len({condition.feature for condition in rule.conditions.conditions()})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_is_in_the_file_of_its_name(rule: Rule) -> None:
    """A cause's room is `rules/<cause>.yaml`, its components exist, and what looks like it is no name for itself."""
    assert Path(rule.path).stem == rule.id
    assert set(rule.components) <= set(COMPONENTS)
    assert rule.id not in rule.looks_like


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_that_fires_gives_a_sentence_with_numbers(rule: Rule) -> None:
    """Where a rule fires, at least one sentence bears it out, and no placeholder is left in it."""
    for case in rule.tests:
        held = rule.judge(features_of(case.features)).held
        assert held or not case.fires
        for _, text in held:
            assert not re.search(r"[{}]", text), text


# ------------------------------------------------------------------------------------------ three values


def leaf(name: str) -> Condition:
    """Make a condition that holds where its feature is at least 1."""
    return Condition(name, "at_least", 1.0, "", 1)


def given_values(values: Sequence[bool | None]) -> Features:
    """Make a feature a value: one that makes its leaf true, false, or unknown."""
    return features_of({f"f{i}": None if value is None else 2.0 if value else 0.0 for i, value in enumerate(values)})


def by_completion(truth: Callable[[Sequence[bool]], bool], values: Sequence[bool | None]) -> bool | None:
    """Say what is true whatever the unknown ones may be; None where that matters."""
    open_ = [VALUES[:2] if value is None else (value,) for value in values]
    found = {truth(completed) for completed in itertools.product(*open_)}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("values", list(itertools.product(VALUES, repeat=3)), ids=str)
@pytest.mark.parametrize(
    ("kind", "truth"), [("all", all), ("any", any), ("none", lambda found: not any(found))], ids=["all", "any", "none"]
)
def test_a_group_is_unknown_only_where_the_unknown_matters(
    kind: str, truth: Callable[[Sequence[bool]], bool], values: tuple[bool | None, ...]
) -> None:
    """`all`, `any` and `none` say true or false exactly when every completion of the unknown conditions says so."""
    group = Group(kind, tuple(leaf(f"f{i}") for i in range(len(values))))
    assert group.holds(given_values(values)) is by_completion(truth, values)


@pytest.mark.parametrize("values", list(itertools.product(VALUES, repeat=4)), ids=str)
def test_groups_within_groups_are_judged_inside_out(values: tuple[bool | None, ...]) -> None:
    """all(f0, any(f1, none(f2, f3))) is unknown exactly where a completion of the unknown ones could say either."""
    inner = Group("none", (leaf("f2"), leaf("f3")))
    group = Group("all", (leaf("f0"), Group("any", (leaf("f1"), inner))))
    expected = by_completion(lambda f: f[0] and (f[1] or not (f[2] or f[3])), values)
    assert group.holds(given_values(values)) is expected


@pytest.mark.parametrize(
    ("comparison", "below", "equal", "above"),
    [
        ("at_least", False, True, True),
        ("at_most", True, True, False),
        ("above", False, False, True),
        ("below", True, False, False),
    ],
)
def test_comparisons_treat_the_threshold_as_they_say(comparison: str, below: bool, equal: bool, above: bool) -> None:
    """`at_least` and `at_most` hold at the threshold, `above` and `below` do not."""
    condition = Condition("f", comparison, 1.0, "", 1)
    found = [condition.holds(features_of({"f": value})) for value in (0.5, 1.0, 1.5)]
    assert found == [below, equal, above]


@pytest.mark.parametrize("features", [{}, features_of({"f": None}), {"f": Feature(float("nan"))}], ids=str)
def test_what_was_not_measured_is_unknown(features: Features) -> None:
    """A feature that is absent, missing or not a number makes its condition unknown, not false."""
    assert leaf("f").holds(features) is None


# ------------------------------------------------------------------------------------------ faults of files


def line_of(text: str, part: str) -> int:
    """Number the first line that has a part."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    """Each fault of each file is one line with file and line; what is misspelt gets a suggestion."""
    first = A_RULE.replace("story:", "storys:").replace("[pause]", "[pauses]").replace("at_least: 1.0", "at_least: one")
    second = A_RULE.replace("id: my-cause", "id: other").replace("status: experimental", "status: stabel")
    write(tmp_path, "a.yaml", first)
    write(tmp_path, "b.yaml", second)
    found = faults_in(tmp_path)
    for name, text, part, words in (
        ("a.yaml", first, "storys", "'story'"),
        ("a.yaml", first, "[pauses]", "'pause'"),
        ("a.yaml", first, "at_least: one", "number"),
        ("b.yaml", second, "stabel", "'stable'"),
    ):
        place = f"{tmp_path / name}:{line_of(text, part)}: "
        assert any(fault.startswith(place) and words in fault for fault in found), (place, found)
    assert any("'story' is missing" in fault for fault in found)
    assert all(re.match(r".+\.yaml:\d+: .+", fault) for fault in found)


def test_a_misspelt_feature_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    """A condition on a feature that does not exist stops the diagnosis with file, line and the nearest name."""
    text = A_RULE.replace("feature: slowdown", "feature: worker.ration").replace(
        "{slowdown: 1.5}", "{worker.ration: 1}"
    )
    write(tmp_path, "mine.yaml", text)
    with pytest.raises(RuleError) as caught:
        diagnose_table(make(SMALL).trace, rules=tmp_path)
    line = line_of(text, "feature: worker.ration")
    assert f"{tmp_path / 'mine.yaml'}:{line}: " in str(caught.value)
    assert "'worker.ratio'" in str(caught.value)


def test_misspelt_features_are_told_at_loading_beside_other_faults(tmp_path: Path) -> None:
    """Where all features are known in advance, misspelt ones are faults like others, told before any job is read."""
    text = A_RULE.replace("{slowdown: 1.5}", "{slowdwon: 1.5}").replace("status:", "satatus:")
    write(tmp_path, "mine.yaml", text)
    write(tmp_path, "yours.yaml", A_RULE.replace("id: my", "id: your").replace("feature: slowdown", "feature: abc"))
    known = list_features()
    with pytest.raises(RuleError) as caught:
        load_rules(tmp_path, known)
    found = str(caught.value).splitlines()
    line = line_of(text, "slowdwon")
    assert f"{tmp_path / 'mine.yaml'}:{line}: there is no feature 'slowdwon'; did you mean 'slowdown'?" in found
    assert any("'satatus'" in fault for fault in found)
    assert found[-1] == f"{tmp_path / 'yours.yaml'}:{line_of(A_RULE, 'feature: ')}: there is no feature 'abc'"


def test_known_features_are_no_fault(tmp_path: Path) -> None:
    """Where every feature is known, loading with their names gives the same rules as without."""
    write(tmp_path, "mine.yaml", A_RULE)
    known = list_features()
    assert load_rules(tmp_path, iter(known)) == load_rules(tmp_path)


def test_what_a_rule_says_of_itself_is_kept(tmp_path: Path) -> None:
    """Severity, false positives and the origins of thresholds are read; without them they are empty."""
    text = A_RULE.replace("who:", "severity: high\nfalse_positives: on  Tuesdays\nwho:")
    text = text.replace("says:", "from: a guess\n      says:")
    rule, bare = (read_rule(tmp_path / "mine.yaml", source.encode(), []) for source in (text, A_RULE))
    assert rule is not None and bare is not None
    assert (rule.severity, rule.false_positives) == ("high", "on Tuesdays")
    assert [condition.origin for condition in rule.conditions.conditions()] == ["a guess"]
    assert (bare.severity, bare.false_positives, bare.conditions.conditions()[0].origin) == ("", "", "")


def test_what_else_a_rule_states_is_read_and_checked(tmp_path: Path) -> None:
    """Needs, pictures, inputs of the classifier and whether a log dates the cause have defaults; other words are faults."""
    path = tmp_path / "mine.yaml"
    stated = (
        "needs: [peers]\npictures: [steps, transfers]\nclassifier: ['*.pause', slowdown]\ndated_by_log: false\nwho:"
    )
    rule, bare = (read_rule(path, text.encode(), []) for text in (A_RULE.replace("who:", stated), A_RULE))
    assert rule is not None and bare is not None
    assert (rule.needs, rule.pictures, rule.classifier, rule.dated_by_log) == (
        ("peers",),
        ("steps", "transfers"),
        ("*.pause", "slowdown"),
        False,
    )
    assert (bare.needs, bare.pictures, bare.classifier, bare.dated_by_log) == ((), (), (), True)
    wrong = (
        stated.replace("peers", "peer").replace("steps", "step").replace("false", "no").replace("*.pause", "*.pauses")
    )
    faults: list[str] = []
    assert read_rule(path, A_RULE.replace("who:", wrong).encode(), faults, sorted(list_features())) is None
    assert [fault.split(": ", 1)[1] for fault in faults] == [
        "'peer' is not known; did you mean 'peers'?",
        "'step' is not known; did you mean 'steps'?",
        "'no' is not known; expected one of true, false",
        "there is no feature '*.pauses'",
    ]


def test_a_built_in_rule_without_cases_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules that ship need two cases that fire and two that do not; those of users need none of a kind."""
    write(tmp_path, "mine.yaml", A_RULE)
    monkeypatch.setattr("diagnose.judge.rules.built_in_rules", lambda: tmp_path)
    with pytest.raises(RuleError) as caught:
        load_rules()
    line = line_of(A_RULE, "  - name: it happens")
    assert str(caught.value) == (
        f"{tmp_path / 'mine.yaml'}:{line}: 1 tests must fire and 0 must not; expected at least 2 of each"
    )


def test_two_rules_of_one_id_in_a_folder_are_refused(tmp_path: Path) -> None:
    """The fault names both files."""
    write(tmp_path, "a.yaml", A_RULE)
    write(tmp_path, "b.yaml", A_RULE)
    (fault,) = faults_in(tmp_path)
    assert fault.startswith(f"{tmp_path / 'b.yaml'}:1: ")
    assert "my-cause" in fault
    assert str(tmp_path / "a.yaml") in fault


ONE = "[{feature: slowdown, at_least: 1, from: a test, says: x}]"


@pytest.mark.parametrize(
    ("name", "conditions", "fault"),
    [
        ("unknown", ONE, "'unknown' is what no rule explains; choose another id"),
        ("my-cause", "3", "expected a list of conditions"),
        ("my-cause", "[]", "expected a list of conditions"),
    ],
)
def test_what_no_rule_may_say(tmp_path: Path, name: str, conditions: str, fault: str) -> None:
    """An id that stands for something else, and conditions that are none."""
    start, end = A_RULE.index("conditions:"), A_RULE.index("fixes:")
    text = A_RULE[:start].replace("id: my-cause", f"id: {name}") + f"conditions: {{all: {conditions}}}\n" + A_RULE[end:]
    write(tmp_path, "a.yaml", text)
    assert any(fault in found for found in faults_in(tmp_path))


def nested(depth: int) -> str:
    """Write a rule whose condition, and a veto, lie that many groups deep."""
    deep = "{all: [" * depth + "{feature: slowdown, at_least: 1, from: a test, says: x}" + "]}" * depth
    start, end = A_RULE.index("conditions:"), A_RULE.index("fixes:")
    return A_RULE[:start] + f"conditions: {deep}\nvetoes: [{deep}]\n" + A_RULE[end:]


@pytest.mark.parametrize(
    ("depth", "is_refused"), [(1, False), (MAX_DEPTH + 1, False), (MAX_DEPTH + 3, True), (400, True)]
)
def test_conditions_may_be_nested_so_deep_and_no_deeper(tmp_path: Path, depth: int, is_refused: bool) -> None:
    """Too deep is a fault of the file with its line, not a crash."""
    write(tmp_path, "deep.yaml", nested(depth))
    if is_refused:
        faults = faults_in(tmp_path)
        assert faults
        assert all(
            fault.startswith((f"{tmp_path / 'deep.yaml'}:7: ", f"{tmp_path / 'deep.yaml'}:8: ")) for fault in faults
        )
    else:
        assert "my-cause" in {rule.id for rule in load_rules(tmp_path).rules}


@pytest.mark.parametrize(("depth", "faults"), [(79, []), (80, ["x.yaml:1: is not YAML (nested too deep)"])])
def test_brackets_are_counted_before_anything_is_made_of_them(depth: int, faults: list[str]) -> None:
    """The library that reads YAML goes as deep as a file says."""
    found: list[str] = []
    root = read_mapping(Path("x.yaml"), b"a: " + b"[" * depth + b"]" * depth, found, ("a",))
    assert found == faults
    assert (root is None) == bool(faults)


@pytest.mark.parametrize(
    "text",
    [
        "id: [unclosed",
        "a: b: c",
        "\t- tab",
        "{",
        "%YAML 9.9\n---\n",
        "\x00\x01",
        "--- a\n--- b",
        "'",
        "",
        "- a list",
        "7",
    ],
    ids=repr,
)
def test_what_is_not_a_mapping_in_yaml_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    """Broken YAML, two documents, nothing and a list are each one fault with a line."""
    write(tmp_path, "broken.yaml", text)
    faults = faults_in(tmp_path)
    assert len(faults) == 1
    assert re.match(re.escape(str(tmp_path / "broken.yaml")) + r":\d+: .+", faults[0])


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """More bytes than any rule has are refused, whatever they say."""
    write(tmp_path, "huge.yaml", A_RULE + "#" * MAX_BYTES)
    (fault,) = faults_in(tmp_path)
    assert str(MAX_BYTES) in fault


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    """A folder without rules is a mistake of whoever named it."""
    (fault,) = faults_in(tmp_path)
    assert str(tmp_path) in fault


def _alias_bomb() -> str:
    """Write a rule that is small, and endless where each alias is followed."""
    deep = "&a0 {feature: slowdown, at_least: 1}"
    for i in range(12):
        deep = f"&a{i + 1} {{all: [{deep}{f', *a{i}' * 9}]}}"
    start, end = A_RULE.index("conditions:"), A_RULE.index("fixes:")
    return A_RULE[:start] + f"conditions: {deep}\n" + A_RULE[end:]


def _circle() -> str:
    """Write a rule whose conditions contain themselves."""
    start, end = A_RULE.index("conditions:"), A_RULE.index("fixes:")
    return A_RULE[:start] + "conditions: &a {all: [*a, *a]}\n" + A_RULE[end:]


@pytest.mark.parametrize(
    "text",
    [_alias_bomb(), _circle(), "[" * 100_000, "[" * 100_000 + "]" * 100_000, "- " * 100_000 + "a"],
    ids=["alias bomb", "alias of itself", "open brackets", "brackets", "dashes"],
)
def test_no_file_hangs_or_kills_the_reader(tmp_path: Path, text: str) -> None:
    """Aliases of aliases, aliases of themselves and a hundred thousand brackets end in a fault of the file, soon."""
    write(tmp_path, "bomb.yaml", text)
    program = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, ({PATIENCE_S}, {2 * PATIENCE_S}))  # its own time, on a busy machine, too
        from pathlib import Path
        from diagnose.errors import RuleError
        from diagnose.judge.rules import load_rules
        try:
            load_rules(Path({str(tmp_path)!r}))
        except RuleError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != -signal.SIGXCPU, f"{len(text)} bytes keep the reader busy for more than {PATIENCE_S} s"
    assert done.returncode == 0, f"the interpreter died with {done.returncode}: {done.stderr[-300:]}"
    assert "bomb.yaml:" in done.stdout


# ------------------------------------------------------------------------------------------ rules of the user's


def test_a_rule_of_the_users_is_added(tmp_path: Path) -> None:
    """A new id joins the built-in ones, and the digest of the rules changes."""
    found = load_rules(write(tmp_path, "mine.yaml", A_RULE))
    assert {rule.id for rule in found.rules} == {rule.id for rule in RULES} | {"my-cause"}
    assert found.digest != built_in().digest
    assert load_rules().digest == built_in().digest


def test_rules_may_end_in_yml(tmp_path: Path) -> None:
    """`*.yml` is read as `*.yaml` is, and one id in both is refused."""
    write(tmp_path, "mine.yml", A_RULE)
    assert "my-cause" in {rule.id for rule in load_rules(tmp_path).rules}
    write(tmp_path, "mine.yaml", A_RULE)
    (fault,) = faults_in(tmp_path)
    assert "mine.yaml" in fault and "mine.yml" in fault


def test_a_rule_of_the_users_replaces_the_built_in_one_of_its_id(tmp_path: Path) -> None:
    """With the id of a built-in rule the user's takes its place, and no other changes."""
    name = RULES[0].id
    found = load_rules(write(tmp_path, "whatever.yaml", A_RULE.replace("id: my-cause", f"id: {name}")))
    by_id = {rule.id: rule for rule in found.rules}
    assert set(by_id) == {rule.id for rule in RULES}
    assert by_id[name].title == "a cause of mine"
    assert [rule for rule in found.rules if rule.id != name] == list(RULES[1:])


def test_a_users_rule_judges_jobs(tmp_path: Path) -> None:
    """A rule in a folder of the user's is looked for in a job, and the job's digest of rules says so."""
    folder = write(tmp_path, "mine.yaml", A_RULE.replace("at_least: 1.0", "at_least: 1000"))
    found = diagnose_table(make(SMALL).trace, rules=folder)
    assert "my-cause" in found.checked
    assert "my-cause" not in causes(found)
    assert found.made_by.rules == load_rules(folder).digest


# ------------------------------------------------------------------------------------------ sentences, and nothing executed


def test_a_sentence_has_value_share_and_threshold() -> None:
    """`{value}` has three digits, `{value%}` is in percent, `{threshold}` is the rule's."""
    condition = Condition("f", "at_least", 0.25, "{value}, {value%}, {threshold}, {value}", 1)
    assert write_sentence(condition, 1 / 3) == "0.333, 33.3%, 0.25, 0.333"


def test_how_many_times_is_told_up_to_a_hundred() -> None:
    """A ratio beyond that says no more; another number does."""
    times, number = (Condition("f", "at_least", 1.0, text, 1) for text in ("{value} times", "{value} pauses"))
    assert write_sentence(times, 43210.0) == "over 100 times"
    assert "over" not in write_sentence(number, 43210.0)


@pytest.mark.parametrize(
    "text",
    [
        "{value.__class__}",
        "{value!r}",
        "{value:>1000000000}",
        "{0}",
        "{}",
        "{threshold.real}",
        "%(value)s %s",
        "{value[0]}",
        "{condition}",
    ],
)
def test_a_sentence_is_no_format_string(text: str) -> None:
    """What looks like a format string beyond the three placeholders is left as it stands."""
    assert write_sentence(Condition("f", "at_least", 0.0, text, 1), 1.5) == text


@pytest.mark.parametrize(
    "tag",
    [
        '!!python/object/apply:os.system ["touch {target}"]',
        '!!python/object/new:subprocess.check_output [["touch", "{target}"]]',
        "!!python/name:os.system",
        "!!python/object:diagnose.judge.rule.Rule {{}}",
        '!!python/object/apply:builtins.open ["{target}", "w"]',
    ],
)
@pytest.mark.parametrize(
    "at", ["title: a cause of mine", "at_least: 1.0", "says: S is {value}", "[pause]", "fires: true"]
)
def test_nothing_in_a_rule_is_executed(tmp_path: Path, tag: str, at: str) -> None:
    """A tag that makes Python objects makes none: it is a fault, or plain text."""
    target = tmp_path / "executed"
    key = at.partition(":")[0] if ":" in at else ""
    text = A_RULE.replace(at, (f"{key}: " if key else "") + tag.format(target=target))
    faults: list[str] = []
    rule = read_rule(tmp_path / "evil.yaml", text.encode(), faults)
    assert (rule is None) == bool(faults)
    assert not target.exists()
    if rule is not None:
        assert isinstance(rule.title, str)
        rule.judge(features_of({"slowdown": 2.0}))
    assert not target.exists()


def assert_read_or_refused(text: bytes) -> None:
    """Read one file: a rule that can judge, or faults with lines."""
    faults: list[str] = []
    rule = read_rule(Path("random.yaml"), text, faults)
    if rule is None:
        assert faults
        assert all(re.match(r"random\.yaml:\d+: .", fault, re.DOTALL) for fault in faults)
    else:
        assert not faults
        assert rule.judge({}).fires in (True, False, None)


@settings(max_examples=150, derandomize=True)
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_random_bytes_are_refused_and_nothing_else(text: bytes) -> None:
    """Whatever bytes a file has, reading it ends in a rule or in faults."""
    assert_read_or_refused(text)


@pytest.mark.parametrize("path", sorted(built_in_rules().glob("*.yaml")), ids=lambda path: path.stem)
def test_damaged_rules_are_refused_and_nothing_else(path: Path) -> None:
    """Real rules with bytes flipped, lines lost, doubled or swapped are rules or faults, never another exception."""
    content = path.read_bytes()
    rng = np.random.default_rng(len(content))
    for _ in range(25):
        damaged = bytearray(content)
        for at in rng.integers(0, len(damaged), size=int(rng.integers(1, 6))):
            damaged[at] = int(rng.choice(list(b":-[]{}&*!|>'\"%@` \n\t#,?0\xff\x00a")))
        assert_read_or_refused(bytes(damaged))
        lines = content.splitlines(keepends=True)
        picked = rng.integers(0, len(lines), size=len(lines)) if rng.random() < 0.2 else np.arange(len(lines))
        kept = [lines[i] for i in picked if rng.random() > 0.05]
        assert_read_or_refused(b"".join(kept))


def test_rules_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A rule file that is a folder, or may not be opened, is a `RuleError` too, which tells of other files all the same."""
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "other.yaml").write_text("[]")
    with pytest.raises(RuleError, match=r"(?s)folder\.yaml.*other\.yaml"):
        load_rules(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="a link that leads nowhere")
def test_a_broken_link_is_told(tmp_path: Path) -> None:
    """A rule file whose target is gone is a `RuleError` that names it."""
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RuleError, match=r"gone\.yaml"):
        load_rules(tmp_path)


# ------------------------------------------------------------------------------------------ vetoes and alternatives

FORBIDS = """\
vetoes:
  - feature: noise
    at_least: 0.1
    from: a test
    says: noise is {value}
  - all:
      - {feature: stage.ratio, at_least: 2.0, from: a test, says: a stage is long}
      - {feature: worker.ratio, at_most: 1.0, from: a test, says: nobody is slow}
alternatives:
  - cause: worker-fault
    feature: worker.slow_share
    tells_apart: the optimizer of that worker
"""


def forbidden(tmp_path: Path) -> Rule:
    """Read the rule with vetoes and an alternative."""
    faults: list[str] = []
    rule = read_rule(tmp_path / "a.yaml", (A_RULE + FORBIDS).encode(), faults, sorted(list_features()))
    assert rule is not None, faults
    return rule


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ({"noise": 0.2}, ["noise is 0.2"]),
        ({"stage.ratio": 2.5, "worker.ratio": 1.0}, ["a stage is long", "nobody is slow"]),
        ({"noise": 0.0, "stage.ratio": 2.5, "worker.ratio": 1.2}, None),
        ({"noise": None, "stage.ratio": 2.5, "worker.ratio": None}, None),
        ({}, None),
    ],
    ids=["one", "a group", "none", "not measured", "not there"],
)
def test_a_veto_silences_a_rule_whose_conditions_hold(
    tmp_path: Path, values: dict[str, float | None], sentences: list[str] | None
) -> None:
    """Any veto that holds is enough, and says why; what could not be measured forbids nothing."""
    judgement = forbidden(tmp_path).judge(features_of({"slowdown": 1.5} | values))
    assert judgement.fires == (sentences is None)
    assert judgement.is_vetoed == (sentences is not None)
    assert [text for _, text in judgement.vetoes] == (sentences or [])


def test_a_case_beside_a_rule_may_be_vetoed(tmp_path: Path) -> None:
    """A case that a veto silences passes where it must not fire, and what decided is the veto."""
    case = RuleTest("noisy", {"slowdown": 1.5, "noise": 0.2}, fires=False, line=1)
    trial = try_case(forbidden(tmp_path), case)
    assert trial.passes
    assert [part.feature for part in trial.deciding] == ["noise"]


def test_a_rule_in_the_place_of_another_keeps_its_vetoes_and_alternatives(tmp_path: Path) -> None:
    """Like what it needs: a file that says nothing of them leaves them as they were."""
    faults: list[str] = []
    bare = read_rule(tmp_path / "b.yaml", A_RULE.encode(), faults)
    emptied = read_rule(tmp_path / "c.yaml", f"{A_RULE}vetoes: []\nalternatives: []\n".encode(), faults)
    assert bare is not None and emptied is not None, faults
    rule = forbidden(tmp_path)
    assert (bare.replace(rule).vetoes, bare.replace(rule).alternatives) == (rule.vetoes, rule.alternatives)
    assert (emptied.replace(rule).vetoes.parts, emptied.replace(rule).alternatives) == ((), ())


def test_faults_of_vetoes_and_alternatives_are_told(tmp_path: Path) -> None:
    """A veto says why and where its threshold is from; an alternative has all its keys; both speak of features that there are."""
    text = f"{A_RULE}vetoes:\n  - feature: noise\n    at_least: 0.1\nalternatives:\n  - cause: worker-fault\n    feature: nose\n"
    faults: list[str] = []
    assert read_rule(tmp_path / "a.yaml", text.encode(), faults, sorted(list_features())) is None
    found = " ".join(faults)
    assert "a veto needs says and from" in found
    assert "key 'tells_apart' is missing" in found
    assert "there is no feature 'nose'; did you mean 'noise'" in found


def test_the_page_of_a_rule_has_its_vetoes_and_alternatives(tmp_path: Path) -> None:
    """Who reads a rule sees what rules its cause out, and what else it may be."""
    page = describe_rule(forbidden(tmp_path), {}, list_features())
    assert "Never said where any of these holds" in page
    assert "noise is at least 0.1" in page
    link = "https://example.org/" + "a" * 100
    assert link in describe_rule(dataclasses.replace(forbidden(tmp_path), source=link), {}, list_features())
    assert "Told together with" in page and "the optimizer of that worker" in " ".join(page.split())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_alternatives_are_causes_that_there_are(rule: Rule) -> None:
    """What else a built-in cause may be is the cause of a built-in rule, itself in other places, planned work, or has no name."""
    known = {other.id for other in RULES} | {"evaluation", "unknown"}
    assert {other.cause for other in rule.alternatives} <= known
