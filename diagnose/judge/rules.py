"""Read all rules: those that ship with the program, and those of a folder of the user's.

Enters: folders of rule files. Leaves: a `RuleSet`.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from diagnose.errors import RuleError
from diagnose.judge.rule import Rule
from diagnose.judge.rule_file import read_rule
from diagnose.judge.severity import BUILT_IN, FILE_NAME, Severities, read_severities


@dataclasses.dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules, by id, from when on a cause is how severe, and a digest of their files."""

    rules: tuple[Rule, ...]
    digest: str
    severities: Severities


def built_in_rules() -> Path:
    """Find the rules that ship with the program: in the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_rules"
    return shipped if shipped.is_dir() else package.parent / "rules"


def load_rules(extra: Path | None = None, known_features: Iterable[str] | None = None) -> RuleSet:
    """Read the built-in rules and a folder of the user's; a rule of the user's replaces one of the same id.

    So does a `severity.yaml` in that folder, which may have no rules beside it.

    Raises
    ------
    RuleError
        Any file is wrong, or asks for features that are not known; the message lists all faults of all files as `file:line: what`.
    """
    faults: list[str] = []
    digest = hashlib.sha256()
    known = None if known_features is None else sorted(known_features)
    by_id = {rule.id: rule for rule in read_folder(built_in_rules(), faults, known, digest.update, complete=True)}
    if extra is not None:
        for rule in read_folder(extra, faults, known, digest.update):
            by_id[rule.id] = rule.replace(by_id[rule.id]) if rule.id in by_id else rule
    own = None if extra is None else read_own_severities(extra, faults, digest.update)
    severities = own or _read_severities(BUILT_IN, faults, digest.update)
    if faults or severities is None:
        raise RuleError("\n".join(faults))
    return RuleSet(tuple(by_id[key] for key in sorted(by_id)), digest.hexdigest()[:12], severities)


def read_own_severities(
    folder: Path, faults: list[str], tell: Callable[[bytes], object] | None = None
) -> Severities | None:
    """Read the thresholds of a folder; None where it has none, or these have faults, which are added."""
    path = folder / FILE_NAME
    return _read_severities(path, faults, tell) if path.is_file() else None


def _read_severities(path: Path, faults: list[str], tell: Callable[[bytes], object] | None) -> Severities | None:
    """Read a file with thresholds, and tell its content."""
    text = _read_bytes(path, faults, tell)
    return None if text is None else read_severities(path, text, faults)


def _read_bytes(path: Path, faults: list[str], tell: Callable[[bytes], object] | None) -> bytes | None:
    """Read a file, and tell its name and content; None where it cannot be read, which is a fault."""
    try:
        text = path.read_bytes()
    except OSError as error:
        faults.append(f"{path}:1: cannot be read ({error.strerror})")
        return None
    if tell is not None:
        tell(path.name.encode() + b"\0" + text + b"\0")
    return text


def read_folder(
    folder: Path,
    faults: list[str],
    known_features: Sequence[str] | None = None,
    tell: Callable[[bytes], object] | None = None,
    *,
    complete: bool = False,
) -> list[Rule]:
    """Read the rules without faults of one folder, `*.yaml` or `*.yml`, by file name; adds all faults of all files, as `read_rule`.

    `tell` takes the names and contents of the files, for a digest.
    """
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    paths = [path for path in files if path.name != FILE_NAME]
    if not files:
        faults.append(f"{folder}: no rule files; expected a folder with *.yaml or *.yml")
    by_id: dict[str, Rule] = {}
    for path in paths:
        text = _read_bytes(path, faults, tell)
        if text is None:
            continue
        known = None if known_features is None else tuple(known_features)
        rule, its_faults = _read_once(path, text, known, complete=complete)
        faults += its_faults
        if rule is None:
            continue
        if rule.id in by_id:
            faults.append(
                f"{path}:1: id {rule.id!r} is also in {by_id[rule.id].path}; expected one rule an id in a folder"
            )
        by_id[rule.id] = rule
    return list(by_id.values())


@functools.lru_cache(maxsize=256)
def _read_once(
    path: Path, text: bytes, known_features: tuple[str, ...] | None, *, complete: bool
) -> tuple[Rule | None, tuple[str, ...]]:
    """Read a rule file once as long as it stays as it is: who diagnoses many jobs would read it for each."""
    faults: list[str] = []
    return read_rule(path, text, faults, known_features, complete=complete), tuple(faults)
