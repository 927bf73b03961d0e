"""Read a YAML file that people write node by node, so that every fault is told with its line.

Enters: the bytes of a file. Leaves: its top mapping, and what its nodes hold. Nothing in a file is executed.
"""

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from diagnose.errors import RuleError

_Item = TypeVar("_Item")

#: A larger file is a mistake, or an attack.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
#: Brackets within brackets of any file; libyaml recurses without a limit of its own.
_MAX_NESTING = 4 * MAX_DEPTH
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_mapping(path: Path, text: bytes, faults: list[str], keys: Sequence[str]) -> yaml.MappingNode | None:
    """Read a file that is a mapping, with `keys` as the message says; None where it is none, and a fault is added."""
    if len(text) > MAX_BYTES:
        faults.append(f"{path}:1: {len(text)} bytes; expected at most {MAX_BYTES}")
        return None
    try:
        _check_nesting(text)
        root = yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        what = getattr(error, "problem", None) or " ".join(str(error).split())[:200]
        faults.append(f"{path}:{line}: is not YAML ({what})")
        return None
    if isinstance(root, yaml.MappingNode):
        return root
    faults.append(f"{path}:1: expected a mapping with {', '.join(keys)}")
    return None


def read_folder(
    folder: Path, read_one: Callable[[Path, bytes, list[str]], _Item | None]
) -> tuple[tuple[_Item, ...], str]:
    """Read all YAML files of a folder by name, with a digest of them; `read_one` adds its faults, and gives None where it has any.

    Raises
    ------
    RuleError
        A file is wrong, or there is none; the message lists all faults of all files.
    """
    faults: list[str] = []
    digest = hashlib.sha256()
    found = []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + text + b"\0")
        one = read_one(path, text, faults)
        found += [] if one is None else [one]
    if faults or not found:
        raise RuleError("\n".join(faults) or f"{folder}: no files; expected rules as YAML")
    return tuple(found), digest.hexdigest()[:12]


def _check_nesting(text: bytes) -> None:
    """Refuse aliases, a few lines of which can stand for billions of nodes, and nesting that would exhaust the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        mark: Any = event.start_mark  # libyaml has marks of its own
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias; write out what it stands for", problem_mark=mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_NESTING:
            raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=mark)


class YamlReader:
    """Turns YAML nodes into words, numbers and lists, and notes every fault with its line."""

    def __init__(self, path: str, faults: list[str]) -> None:
        self.path = path
        self.faults = faults

    def fault(self, node: yaml.Node | None, what: str) -> None:
        """Note a fault at a node."""
        line = 1 if node is None else node.start_mark.line + 1
        self.faults.append(f"{self.path}:{line}: {what}")

    def mapping(
        self, node: yaml.Node | None, required: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, yaml.Node]:
        """Read a mapping with known keys."""
        if not isinstance(node, yaml.MappingNode):
            self.fault(node, f"expected a mapping with {', '.join(required)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "(not a word)"
            if name not in required and name not in optional:
                near = difflib.get_close_matches(name, [*required, *optional], n=1)
                self.fault(key, f"unknown key {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
            elif name in found:
                self.fault(key, f"key {name!r} appears twice")
            found[name] = value
        for name in required:
            if name not in found:
                self.fault(node, f"key {name!r} is missing")
        return found

    def text(self, node: yaml.Node | None, allowed: Sequence[str] = (), *, pattern: str = "") -> str:
        """Read one word or text."""
        if node is None:
            return ""  # a missing key is its own fault
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).strip():
            self.fault(node, "expected text")
            return ""
        value = " ".join(str(node.value).split())
        if allowed and value not in allowed:
            near = difflib.get_close_matches(value, allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(allowed)}"
            self.fault(node, f"{value!r} is not known{hint}")
        if pattern and not re.fullmatch(pattern, value):
            self.fault(node, f"{value!r} is not a name; expected small letters, digits and dashes")
        return value

    def flag(self, node: yaml.Node | None) -> bool:
        """Read `true` or `false`."""
        return self.text(node, ("true", "false")) == "true"

    def words(self, node: yaml.Node | None, allowed: Sequence[str] = (), *, least: int = 1) -> tuple[str, ...]:
        """Read a list of words, so many at least."""
        return tuple(self.items(node, lambda item: self.text(item, allowed), least=least))

    def items(self, node: yaml.Node | None, read: Callable[[yaml.Node], _Item], *, least: int = 1) -> list[_Item]:
        """Read a list of so many items at least, each its own way."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode) or len(node.value) < least:
            self.fault(node, "expected a list")
            return []
        return [read(item) for item in node.value]

    def number(self, node: yaml.Node | None) -> float:
        """Read a finite number."""
        try:
            value = float(str(node.value)) if isinstance(node, yaml.ScalarNode) else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fault(node, "expected a number")
        return value
