"""What the container installs: each at one version, by its digests, and what `pyproject.toml` asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Each lock, and the extras that it is for; None: what builds the wheel.
LOCKS = {
    "deploy/requirements.txt": ["postgres", "s3", "gs"],
    "deploy/build-requirements.txt": None,
}


def read_lock(name: str) -> dict[str, set[str]]:
    """Give the versions of each package: several where they depend on the machine."""
    entries = re.split(r"\n(?=[^\s#])", (ROOT / name).read_text())
    found: dict[str, set[str]] = {}
    for entry in (entry for entry in entries if not entry.startswith("#")):
        match = re.match(r"([\w.-]+)==([^\s;]+)", entry)
        assert match is not None and "--hash=sha256:" in entry, entry[:80]
        found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_fits(name: str) -> None:
    """Nothing is without digests, and nothing that is asked for is missing or of a version that does not fit."""
    locked, extras = read_lock(name), LOCKS[name]
    wanted = PROJECT["build-system"]["requires"]
    if extras is not None:
        optional = PROJECT["project"]["optional-dependencies"]
        wanted = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in optional[extra])]
    for requirement in map(Requirement, wanted):
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"{requirement} is not locked in {name}: make it anew with the command in its first lines"
        assert all(version in requirement.specifier for version in versions), (str(requirement), versions)
