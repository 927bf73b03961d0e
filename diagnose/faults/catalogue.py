"""Every cause that jobs can be made with: the files of this folder that have `draw_fault`, or of a folder of somebody's own.

Enters: folders. Leaves: what the file of each cause brings.
"""

import dataclasses
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import diagnose.faults
from diagnose.errors import UsageError
from diagnose.faults import decoys
from diagnose.faults.example import Example, Fixture, LookAlike
from diagnose.faults.fault import DrawFault


@dataclasses.dataclass(frozen=True, slots=True)
class CauseFile:
    """What the file of a cause brings."""

    draw: DrawFault
    #: How often a random fault is of each kind, by name.
    kinds: Mapping[str, float]
    #: Clear faults, by what they are.
    examples: Mapping[str, Example]
    #: A job whose names, units of time and order of rows must not matter.
    plain: Example
    #: What looks like the cause and is none, by what it is.
    look_alikes: Mapping[str, LookAlike]
    fixture: Fixture


def list_cause_files(extra: Path | None = None) -> dict[str, CauseFile]:
    """Find every cause, those in a folder `extra` of one's own too, by name: the name of its file, with dashes for underscores.

    Raises
    ------
    UsageError
        A file has `draw_fault` and lacks something else that the file of a cause brings.

    >>> "worker-fault" in list_cause_files()
    True
    """
    found = dict(_list_built_in())
    for path in sorted(extra.glob("*.py")) if extra else ():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= _read_module(path.stem, module)
    return found


def list_look_alikes(extra: Path | None = None) -> dict[str, LookAlike]:
    """List all that looks like a fault and is none, by what it is: like no cause in particular, or like one."""
    found = dict(decoys.LOOK_ALIKES)
    for file in list_cause_files(extra).values():
        found |= file.look_alikes
    return found


@functools.cache
def _list_built_in() -> dict[str, CauseFile]:
    """Read the files of this folder."""
    found: dict[str, CauseFile] = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(diagnose.faults.__path__)):
        if not name.startswith("_"):
            found |= _read_module(name, importlib.import_module(f"diagnose.faults.{name}"))
    return found


def _read_module(name: str, module: ModuleType) -> dict[str, CauseFile]:
    """Read the file of a cause; nothing where it is none."""
    if not hasattr(module, "draw_fault"):
        return {}
    wanted = ("KINDS", "EXAMPLES", "PLAIN", "LOOK_ALIKES", "FIXTURE")
    if lacking := [attribute for attribute in wanted if not hasattr(module, attribute)]:
        raise UsageError(f"has draw_fault and no {', '.join(lacking)}", where=str(module.__file__))
    parts = (getattr(module, attribute) for attribute in wanted)
    return {name.replace("_", "-"): CauseFile(module.draw_fault, *parts)}
