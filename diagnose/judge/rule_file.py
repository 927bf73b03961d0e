"""Read the YAML file of one rule, and tell all that is wrong with it.

Enters: the bytes of a file. Leaves: a `Rule`. A condition is words and numbers: nothing in a rule is executed.
"""

import difflib
import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path

import yaml

from diagnose.judge.rule import Condition, Group, Rule, RuleAlternative, RuleFix, RuleTest
from diagnose.judge.yaml_file import MAX_DEPTH, YamlReader, read_mapping
from diagnose.model.capabilities import CAPABILITIES
from diagnose.model.components import COMPONENTS
from diagnose.model.pictured import NO_RULE, PICTURES

STATUSES = ("experimental", "stable")
ACTORS = ("job owner", "platform", "hardware")
SEVERITIES = ("low", "medium", "high")
#: Cases beside a complete rule that fire, and as many that do not.
MIN_CASES = 2
_COMPARISONS = ("at_least", "at_most", "above", "below")
_REQUIRED = ("id", "title", "status", "who", "story", "components", "conditions", "fixes", "source", "tests")
_OPTIONAL = (
    *("looks_like", "false_positives", "place", "severity", "check", "check_cpu"),
    *("needs", "vetoes", "alternatives", "pictures", "dated_by_log", "classifier"),
)
PLACES = ("workers", "stages", "spread")
#: Names less similar than this are no misspelling of each other: features of all subjects end alike.
SIMILAR = 0.75


def read_rule(
    path: Path,
    text: bytes,
    faults: list[str],
    known_features: Sequence[str] | None = None,
    *,
    complete: bool = False,
) -> Rule | None:
    """Read one rule file; None where there are faults, which are added to `faults`, one line each.

    Where features are known all others, in conditions and in cases beside the rule, are faults; so are, where the rule must be
    `complete`, fewer than two cases beside it that must fire, or two that must not.
    """
    before = len(faults)
    root = read_mapping(path, text, faults, _REQUIRED)
    if root is None:
        return None
    reader = _Reader(str(path), faults, known_features)
    fields = reader.mapping(root, _REQUIRED, _OPTIONAL)
    components = reader.words(fields.get("components"), tuple(COMPONENTS))
    if fields.get("id") is not None and str(fields["id"].value).strip() == "unknown":
        reader.fault(fields["id"], "'unknown' is what no rule explains; choose another id")
    rule = Rule(
        id=reader.text(fields.get("id"), pattern=r"[a-z][a-z0-9-]*"),
        title=reader.text(fields.get("title")),
        status=reader.text(fields.get("status"), STATUSES),
        severity=reader.text(fields["severity"], SEVERITIES) if "severity" in fields else "",
        check=reader.text(fields["check"]) if "check" in fields else "",
        check_cpu=reader.text(fields["check_cpu"]) if "check_cpu" in fields else "",
        who=reader.text(fields.get("who"), ACTORS),
        story=reader.text(fields.get("story")),
        components=components,
        place=reader.text(fields["place"], PLACES) if "place" in fields else "spread",
        needs=reader.words(fields["needs"], tuple(CAPABILITIES), least=0) if "needs" in fields else (),
        vetoes=Group("any", tuple(reader.items(fields.get("vetoes"), reader.veto, least=0))),
        alternatives=tuple(reader.items(fields.get("alternatives"), reader.alternative, least=0)),
        pictures=reader.words(fields["pictures"], PICTURES) if "pictures" in fields else NO_RULE.pictures,
        dated_by_log=reader.flag(fields["dated_by_log"]) if "dated_by_log" in fields else True,
        classifier=tuple(reader.items(fields["classifier"], reader.pattern)) if "classifier" in fields else (),
        conditions=reader.group(fields.get("conditions")),
        fixes=tuple(reader.items(fields.get("fixes"), reader.fix)),
        looks_like=reader.words(fields["looks_like"]) if "looks_like" in fields else (),
        false_positives=reader.text(fields["false_positives"]) if "false_positives" in fields else "",
        source=reader.text(fields.get("source")),
        tests=tuple(reader.items(fields.get("tests"), reader.test)),
        path=str(path),
        given=frozenset(fields),
    )
    if complete and isinstance(fields.get("tests"), yaml.SequenceNode):
        n_fire = sum(case.fires for case in rule.tests)
        if min(n_fire, len(rule.tests) - n_fire) < MIN_CASES:
            what = f"{n_fire} tests must fire and {len(rule.tests) - n_fire} must not; expected at least {MIN_CASES} of each"
            reader.fault(fields["tests"], what)
    return rule if len(faults) == before else None


class _Reader(YamlReader):
    """Turns YAML nodes into rule parts and notes every fault with its line."""

    def __init__(self, path: str, faults: list[str], known_features: Sequence[str] | None) -> None:
        super().__init__(path, faults)
        self.known_features = known_features

    def feature(self, node: yaml.Node | None) -> str:
        """Read the name of a feature."""
        name = self.text(node)
        if name and self.known_features is not None and name not in self.known_features:
            self.fault(node, _no_feature(name, self.known_features))
        return name

    def pattern(self, node: yaml.Node) -> str:
        """Read a pattern of names of features; without a `*` it is a name."""
        pattern = self.text(node)
        known = self.known_features
        # Most are names; what a pattern needs to be compiled takes longer than all else in a file.
        if pattern and known is not None and pattern not in known and not fnmatch.filter(known, pattern):
            self.fault(node, _no_feature(pattern, known))
        return pattern

    def group(self, node: yaml.Node | None, depth: int = 0) -> Group:
        """Read `all`, `any` or `none` with their conditions."""
        if node is None:
            return Group("all", ())
        kinds = ("all", "any", "none")
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1 or depth > MAX_DEPTH:
            self.fault(node, "expected one of all, any, none with a list of conditions")
            return Group("all", ())
        key, value = node.value[0]
        kind = self.text(key, kinds)
        if not isinstance(value, yaml.SequenceNode) or not value.value:
            self.fault(value, "expected a list of conditions")
            return Group(kind, ())
        return Group(kind, tuple(self._part(item, depth + 1) for item in value.value))

    def veto(self, node: yaml.Node) -> Condition | Group:
        """Read a condition, or a group of them, that forbids a cause: each says why, and where its threshold is from."""
        part = self._part(node, 0)
        for condition in part.conditions() if isinstance(part, Group) else [part]:
            if not condition.says or not condition.origin:
                self.faults.append(f"{self.path}:{condition.line}: a veto needs says and from")
        return part

    def alternative(self, node: yaml.Node) -> RuleAlternative:
        """Read what else may explain the same seconds."""
        fields = self.mapping(node, ("cause", "feature", "tells_apart"))
        return RuleAlternative(
            cause=self.text(fields.get("cause"), pattern=r"[a-z][a-z0-9-]*"),
            feature=self.feature(fields.get("feature")),
            tells_apart=self.text(fields.get("tells_apart")),
        )

    def _part(self, node: yaml.Node, depth: int) -> Condition | Group:
        """Read a condition, or a group within a group."""
        if isinstance(node, yaml.MappingNode) and any(
            str(key.value) in ("all", "any", "none") for key, _ in node.value
        ):
            return self.group(node, depth)
        return self._condition(node)

    def _condition(self, node: yaml.Node) -> Condition:
        """Read one comparison."""
        fields = self.mapping(node, ("feature",), (*_COMPARISONS, "says", "from"))
        given = [name for name in _COMPARISONS if name in fields]
        if len(given) != 1:
            self.fault(node, f"expected exactly one of {', '.join(_COMPARISONS)}")
        return Condition(
            feature=self.feature(fields.get("feature")),
            comparison=given[0] if given else "at_least",
            threshold=self.number(fields[given[0]]) if given else math.nan,
            says=self.text(fields["says"]) if "says" in fields else "",
            line=node.start_mark.line + 1,
            origin=self.text(fields["from"]) if "from" in fields else "",
        )

    def fix(self, node: yaml.Node) -> RuleFix:
        """Read one fix."""
        fields = self.mapping(node, ("fix", "summary"), ("how",))
        how = self.text(fields["how"]) if "how" in fields else ""
        return RuleFix(self.text(fields.get("fix")), self.text(fields.get("summary")), how)

    def test(self, node: yaml.Node) -> RuleTest:
        """Read one test case."""
        fields = self.mapping(node, ("name", "features", "fires"))
        features: dict[str, float | None] = {}
        values = fields.get("features")
        if not isinstance(values, yaml.MappingNode):
            self.fault(values or node, "expected features with numbers, or null for one that could not be measured")
        else:
            for key, value in values.value:
                is_null = isinstance(value, yaml.ScalarNode) and str(value.value) in ("null", "~", "")
                name = self.feature(key)
                features[name] = None if is_null else self.number(value)
        return RuleTest(
            name=self.text(fields.get("name")),
            features=features,
            fires=self.flag(fields.get("fires")),
            line=node.start_mark.line + 1,
        )


def _no_feature(name: str, known: Sequence[str]) -> str:
    """Say that there is no such feature, with the nearest one there is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=SIMILAR)
    return f"there is no feature {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
