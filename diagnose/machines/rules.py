"""Kinds of faults of machines, one YAML file each in rules/machines.

Enters: a folder. Leaves: `MachineRule`s, by id.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, get_args

from diagnose.judge.rules import built_in_rules
from diagnose.judge.yaml_file import YamlReader, read_folder, read_mapping
from diagnose.model.machines import JobState
from diagnose.model.telemetry import METRICS

#: Becomes lower or higher than before and than its peers; a counter grows that stands still elsewhere; a code becomes
#: another; there are no more samples.
Change = Literal["falls", "rises", "grows", "becomes", "ends"]
_REQUIRED, _OPTIONAL = (
    ("id", "title", "job", "do", "mistaken_for"),
    ("tells", "shows", "helps", "never", "least", "alone"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """One sign that a rule looks for; `least` is how far a counter grows, `codes` what a code becomes, `part` what ends."""

    metric: str
    change: Change
    codes: tuple[int, ...] = ()
    least: float = 1.0
    part: Literal["host", "device"] = "host"


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """Something that a machine shows since a moment, in the words of rules: what happened to it, or how it differs from its peers.

    `value` is the code, the growth or the new level; `score` counts standard deviations, and is 0 of what happened; `effect` is the
    difference in parts of the usual level, or in decades. `devices` are all that show it; none where all of the machine do.
    """

    host: int
    metric: str
    device: str
    change: Change
    since_s: float
    value: float
    peers: float
    score: float = 0.0
    devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class MachineRule:
    """One kind of fault."""

    id: str
    title: str
    #: What the job may do meanwhile.
    job: tuple[JobState, ...]
    #: One of them is enough.
    tells: tuple[Wanted, ...]
    #: `least` of them together are enough; 0: they are only shown.
    shows: tuple[Wanted, ...]
    #: Shown as well.
    helps: tuple[Wanted, ...]
    #: With one of these it is something else.
    never: tuple[Wanted, ...]
    least: int
    #: It counts only where nothing else explains why the job suffers.
    alone: bool
    do: tuple[str, ...]
    mistaken_for: tuple[str, ...]


@functools.cache
def read_machine_rules() -> tuple[tuple[MachineRule, ...], str]:
    """Read all rules, and give a digest of their files.

    Raises
    ------
    RuleError
        A file is wrong; the message lists all faults of all files.
    """
    return read_folder(built_in_rules() / "machines", read_machine_rule)


def read_machine_rule(path: Path, text: bytes, faults: list[str]) -> MachineRule | None:
    """Read one rule; None where there are faults, which are added as `file:line: what`."""
    before = len(faults)
    root = read_mapping(path, text, faults, _REQUIRED)
    if root is None:
        return None
    reader = _Reader(str(path), faults)
    fields = reader.mapping(root, _REQUIRED, _OPTIONAL)
    states = reader.words(fields.get("job"), get_args(JobState))
    signs = {key: tuple(reader.items(fields.get(key), reader.wanted)) for key in ("tells", "shows", "helps", "never")}
    least = int(reader.number(fields["least"])) if "least" in fields else 0
    if not signs["tells"] and not least:
        reader.fault(root, "neither tells nor least: nothing would ever be found")
    rule = MachineRule(
        id=reader.text(fields.get("id"), pattern=r"[a-z][a-z0-9-]*"),
        title=reader.text(fields.get("title")),
        job=states,  # type: ignore[arg-type] # each one of JobState, as `words` asks
        **signs,
        least=least,
        alone="alone" in fields and reader.flag(fields["alone"]),
        do=reader.words(fields.get("do")),
        mistaken_for=reader.words(fields.get("mistaken_for")),
    )
    if rule.id != path.stem and len(faults) == before:
        reader.fault(root, f"id is {rule.id!r}; expected {path.stem!r}, the name of its file")
    return rule if len(faults) == before else None


class _Reader(YamlReader):
    """Turns YAML nodes into signs."""

    def wanted(self, node: Any) -> Wanted:
        """Read one sign."""
        fields = self.mapping(node, ("metric", "change"), ("codes", "least", "part"))
        change = self.text(fields.get("change"), get_args(Change))
        codes = self.items(fields.get("codes"), self.number) if "codes" in fields else []
        if (change == "becomes") != bool(codes):
            self.fault(node, "codes go with change: becomes, and with nothing else")
        return Wanted(
            metric=self.text(fields.get("metric"), tuple(METRICS)),
            change=change,  # type: ignore[arg-type] # one of Change, as `text` asks
            codes=tuple(int(code) for code in codes),
            least=self.number(fields["least"]) if "least" in fields else 1.0,
            part=self.text(fields["part"], ("host", "device")) if "part" in fields else "host",  # type: ignore[arg-type] # as `text` asks
        )
