"""What Python imports by itself in every process of a job under `diagnose run`: this folder is on its `PYTHONPATH`.

Enters: `DIAGNOSE_RECORD`, the folder to record into. Leaves: a finder that waits until torch is imported, and in processes that
then make an optimizer a recorder. All others (launchers, workers of data loaders, compilers) pay for one comparison an import.

Only the standard library is imported here, this runs on any Python 3, and nothing raises.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer to import than all of this


class _WaitForTorch(importlib.abc.MetaPathFinder):
    """Waits until torch is imported; finds nothing by itself."""

    def find_spec(self, name: str, *_more: object) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                with contextlib.suppress(AttributeError):  # a stand-in for torch
                    _watch()

            loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def _watch() -> None:
    """Wait until this process makes an optimizer: by then it knows its rank and its GPU, and nothing is compiled yet."""
    torch = sys.modules["torch"]
    make = torch.optim.Optimizer.__init__

    @functools.wraps(make)
    def make_and_record(optimizer: object, *args: Any, **kwargs: Any) -> None:
        if torch.optim.Optimizer.__init__ is make_and_record:
            torch.optim.Optimizer.__init__ = make
            _record()
        make(optimizer, *args, **kwargs)

    torch.optim.Optimizer.__init__ = make_and_record


def _record() -> None:
    """Make the recorder, unless the job makes one itself."""
    if "diagnose.record" in sys.modules:
        return
    try:
        _find_diagnose()
        from diagnose.record import Recorder

        recorder = Recorder(os.environ["DIAGNOSE_RECORD"], sample=float(os.environ.get("DIAGNOSE_SAMPLE") or 0.1))
        recorder.follow_optimizer()
    except Exception as error:  # noqa: BLE001 - the training goes on
        import logging

        logging.getLogger("diagnose.record").warning(
            "diagnose does not record this process (%s: %s)", type(error).__name__, error
        )


def _find_diagnose() -> None:
    """Let this Python import diagnose where it was installed for another: it is Python alone, and needs pyarrow and numpy."""
    if importlib.util.find_spec("diagnose") is not None:
        return
    package = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120

    class _FindDiagnose(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_more: object) -> importlib.machinery.ModuleSpec | None:
            if name != "diagnose":
                return None
            return importlib.util.spec_from_file_location(
                name,
                os.path.join(package, "__init__.py"),  # noqa: PTH118
                submodule_search_locations=[package],
            )

    sys.meta_path.append(_FindDiagnose())


def _import_hidden() -> None:
    """Import the `sitecustomize` that this one hides, if there is one, in its place."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("DIAGNOSE_RECORD"):
        sys.meta_path.insert(0, _WaitForTorch())
    _import_hidden()
