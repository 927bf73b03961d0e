"""All fixes that can be priced: the files of this folder that propose something, by name.

Enters: nothing. Leaves: fixes. Adding one is adding a file with NAME, TITLE, SETTINGS and `propose`; its
NAME is that of the file, with dashes.
"""

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Protocol, cast

import diagnose.fixes
from diagnose.errors import UsageError
from diagnose.model.analysis import Analysis
from diagnose.model.remedy import FaultLocation, Refusal, Remedy


class Propose(Protocol):
    """`propose` of a fix's file."""

    def __call__(self, analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:
        """Say what to change about a job, or why not."""
        ...


class Weigh(Protocol):
    """`weigh` of a fix's file, where it has one."""

    def __call__(self, analysis: Analysis, remedy: Remedy, gain_s: float) -> Remedy:
        """Say what a priced remedy costs against the seconds a step that it gives back."""
        ...


class FixModule(Protocol):
    """The file of a fix: its name for rules and users, what it does, and what a user may set, each with its meaning."""

    NAME: str
    TITLE: str
    SETTINGS: Mapping[str, str]
    propose: Propose


@functools.cache
def list_fixes() -> dict[str, FixModule]:
    """Find every fix, by name.

    >>> "replace-worker" in list_fixes()
    True
    """
    found = (look_up_fix(name) for name in _list_files())
    return {fix.NAME: fix for fix in found if fix is not None}


@functools.cache
def look_up_fix(name: str) -> FixModule | None:
    """Give the fix of a name, or None where there is none; only its own file is imported."""
    if name not in _list_files():
        return None
    loaded = importlib.import_module(f"diagnose.fixes.{_list_files()[name]}")
    return cast("FixModule", loaded) if hasattr(loaded, "propose") else None


@functools.cache
def _list_files() -> dict[str, str]:
    """List the files of this folder in order: the name that a fix in it has, and the module."""
    modules = sorted(module.name for module in pkgutil.iter_modules(diagnose.fixes.__path__))
    return {module.replace("_", "-"): module for module in modules}


def find_fix(name: str) -> FixModule:
    """Give the fix of a name; a `UsageError` where there is none."""
    if (found := look_up_fix(name)) is not None:
        return found
    known = list_fixes()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise UsageError(f"there is no fix {name!r}; {hint}")


def check_settings(fix: FixModule, settings: Mapping[str, str]) -> None:
    """Refuse settings that a fix does not have, by a `UsageError`."""
    for key in settings:
        if key not in fix.SETTINGS:
            known = ", ".join(fix.SETTINGS) or "none"
            raise UsageError(f"--fix {fix.NAME}: there is no setting {key!r}; it has: {known}")
