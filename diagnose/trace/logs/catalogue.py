"""The formats of training logs that are read.

Enters: nothing. Leaves: the formats, the one that wins where two tell as many steps of a file first.
"""

import functools
import importlib

from diagnose.errors import name_some
from diagnose.trace.logs.log_format import FileFormat, LogFormat

#: Modules of `formats/`; each has a constant `FORMAT`, or `FORMATS` where one module reads several.
BUILT_IN: tuple[str, ...] = (
    "megatron",
    "nemo",
    "olmo",
    "consoles",
    "torchtitan",
    "composer",
    "verl",
    "vision",
    "progress_bars",
    "deepspeed",
    "traceml",
    "tables",
    "event_files",
)


@functools.cache
def list_formats() -> tuple[LogFormat | FileFormat, ...]:
    """Give all formats."""
    modules = [importlib.import_module(f"diagnose.trace.logs.formats.{module}") for module in BUILT_IN]
    return tuple(found for module in modules for found in getattr(module, "FORMATS", None) or (module.FORMAT,))


def name_formats() -> str:
    """Name some of the writers of logs that are read, for an error."""
    names = list(dict.fromkeys(found.title for found in list_formats()))
    return name_some(names, 4)
