"""Read the YAML files that say what telemetry shows of a cause, and tell all that is wrong with them.

Enters: a folder of files, one a cause. Leaves: `TelemetryRule`s by cause. A sign is words and numbers: nothing in a
file is executed.
"""

import dataclasses
import functools
import typing
from pathlib import Path

import yaml

from diagnose.judge.yaml_file import YamlReader, read_folder, read_mapping
from diagnose.model.telemetry import METRICS, REASONS, How

_TOP = ("cause", "flat", "signs", "kinds", "source")
_SIGN = ("metric", "read", "is", "from", "says")
_SIGN_MORE = ("shared", "beside", "bits", "by", "by_ratio", "of_slowdown", "at_least", "at_most", "alone")
_KIND = ("kind", "title", "check", "any", "part")


@dataclasses.dataclass(frozen=True, slots=True)
class Sign:
    """One thing that can be seen in a metric of a suspect."""

    metric: str
    #: How it is read; `bits` are those that are meant.
    how: How
    bits: int
    #: It is a sign when it is above that of the peers, and itself before; else when below.
    above: bool
    #: `by`, `by_ratio`, `of_slowdown`: by how much at least: in the metric's unit, as a part of that of the peers, and as a
    #: part of what a clock would be lower by that explains the slowdown. The largest counts.
    by: float
    by_ratio: float
    of_slowdown: float
    #: `at_least`, `at_most`: what the value itself must be beside that.
    at_least: float | None
    at_most: float | None
    #: From where on it is a sign where nobody is there to compare with.
    alone: float | None
    #: It is of something that all share, so that peers have it as well: `alone` counts whatever they have.
    is_shared: bool
    #: `says`, `beside`: the sentence, with {value}; and what follows it where there are peers, with {peers}.
    says: str
    beside: str


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A sub-cause: all signs of `every`, and one at least of `some`; `part` of the faults of its cause are of it."""

    kind: str
    title: str
    check: str
    every: tuple[Sign, ...]
    some: tuple[Sign, ...]
    part: float


@dataclasses.dataclass(frozen=True, slots=True)
class TelemetryRule:
    """What telemetry shows of one cause; `flat` says what it would not show, `kinds` come in the order in which they are asked."""

    cause: str
    flat: str
    kinds: tuple[Kind, ...]


@functools.lru_cache(maxsize=4)
def read_telemetry_rules(folder: Path) -> dict[str, TelemetryRule]:
    """Read all files of a folder.

    Raises
    ------
    RuleError
        A file is wrong; the message lists all faults as `file:line: what`.
    """
    rules, _ = read_folder(folder, _read_rule)
    return {rule.cause: rule for rule in rules}


def _read_rule(path: Path, text: bytes, faults: list[str]) -> TelemetryRule | None:
    """Read a file; None where there are faults, which are added."""
    before = len(faults)
    root = read_mapping(path, text, faults, _TOP)
    if root is None:
        return None
    reader = _Reader(str(path), faults)
    fields = reader.mapping(root, _TOP)
    signs = reader.signs(fields.get("signs"))
    kinds = tuple(reader.items(fields.get("kinds"), lambda node: reader.kind(node, signs)))
    reader.text(fields.get("source"))
    rule = TelemetryRule(reader.text(fields.get("cause")), reader.text(fields.get("flat")), kinds)
    if not sum(kind.part for kind in kinds) < 1.0:
        reader.fault(fields.get("kinds"), "parts add up to 1 or more; expected less: some faults no counter shows")
    return rule if len(faults) == before else None


class _Reader(YamlReader):
    """Reads signs and kinds."""

    def signs(self, node: yaml.Node | None) -> dict[str, Sign]:
        """Read the signs of a file by name."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, "expected signs by name")
            return {}
        return {str(key.value): self.sign(value) for key, value in node.value}

    def sign(self, node: yaml.Node) -> Sign:
        """Read a sign."""
        fields = self.mapping(node, _SIGN, _SIGN_MORE)
        self.text(fields.get("from"))
        bits = 0
        for word in self.words(fields["bits"], tuple(REASONS)) if "bits" in fields else ():
            bits |= REASONS.get(word, 0)
        return Sign(
            metric=self.text(fields.get("metric"), tuple(METRICS)),
            how=typing.cast("How", self.text(fields.get("read"), typing.get_args(How))),
            bits=bits,
            above=self.text(fields.get("is"), ("above", "below")) == "above",
            by=self.number(fields["by"]) if "by" in fields else 0.0,
            by_ratio=self.number(fields["by_ratio"]) if "by_ratio" in fields else 0.0,
            of_slowdown=self.number(fields["of_slowdown"]) if "of_slowdown" in fields else 0.0,
            at_least=self.number(fields["at_least"]) if "at_least" in fields else None,
            at_most=self.number(fields["at_most"]) if "at_most" in fields else None,
            alone=self.number(fields["alone"]) if "alone" in fields else None,
            is_shared="shared" in fields and self.flag(fields["shared"]),
            says=self.text(fields.get("says")),
            beside=self.text(fields["beside"]) if "beside" in fields else "",
        )

    def kind(self, node: yaml.Node, signs: dict[str, Sign]) -> Kind:
        """Read a sub-cause."""
        fields = self.mapping(node, _KIND, ("all",))

        def named(key: str) -> tuple[Sign, ...]:
            words = self.words(fields[key], tuple(signs)) if key in fields else ()
            return tuple(signs[word] for word in words if word in signs)

        return Kind(
            kind=self.text(fields.get("kind"), pattern=r"[a-z][a-z0-9-]*"),
            title=self.text(fields.get("title")),
            check=self.text(fields.get("check")),
            every=named("all"),
            some=named("any"),
            part=self.number(fields.get("part")),
        )
