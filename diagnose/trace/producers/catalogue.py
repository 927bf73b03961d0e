"""The producers whose files are understood, and which of them wrote a given file.

Enters: a path. Leaves: the adapter that reads it. A producer is one module of this folder, or an object that another
package names by an entry point of the group `diagnose.producers`, with the attributes of `Producer`.
"""

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Protocol, cast

from diagnose.errors import DiagnoseError, TraceError
from diagnose.model.recording import Recording
from diagnose.trace.input_files import InputFiles

#: Modules of this folder, in the order in which they are tried: the format that is recognised most surely comes first.
BUILT_IN: tuple[str, ...] = (
    "primus",
    "megascan",
    "event_timer",
    "ndtimeline",
    "torchtitan.job",
    "kineto.job",
    "training_log",
)
ENTRY_POINTS = "diagnose.producers"

#: Called with what is being read, a line at a time: `"rank 3 of 64"`.
Report = Callable[[str], None]


class Producer(Protocol):
    """Reads the files of one producer."""

    NAME: str  # as it is called on a command line and in a report: "kineto"
    TITLE: str  # what it is, for `diagnose convert --list`, in a line

    def recognise(self, inputs: InputFiles) -> bool:
        """Say whether these are its files, from their first bytes; never raises."""

    def read(self, inputs: InputFiles, *, name: str, report: Report) -> Recording:
        """Read the files.

        Raises
        ------
        TraceError
            They cannot be read: where, what was found, what was expected, and what to do.
        """


@functools.cache
def list_producers() -> tuple[Producer, ...]:
    """Give all producers: those of this package, then those of others by name.

    Raises
    ------
    TraceError
        An entry point of another package does not load, or is no producer.
    """
    own = [importlib.import_module(f"diagnose.trace.producers.{module}") for module in BUILT_IN]
    others = []
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            found = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's fault
            raise TraceError(
                f"does not load ({type(error).__name__}: {error}); mend or uninstall the package that brings it",
                where=f"entry point {entry.name!r} of {ENTRY_POINTS}",
            ) from None
        lacking = [name for name in ("NAME", "TITLE", "recognise", "read") if not hasattr(found, name)]
        if lacking:
            raise TraceError(
                f"has no {lacking[0]}; expected NAME, TITLE, recognise and read",
                where=f"entry point {entry.name!r} of {ENTRY_POINTS}",
            )
        others.append(found)
    return tuple(cast("Producer", found) for found in (*own, *others))


def find_producer(inputs: InputFiles) -> Producer | None:
    """Say whose files these are; None where nobody knows them."""
    return next((producer for producer in list_producers() if producer.recognise(inputs)), None)


def read_with(producer: Producer, inputs: InputFiles, *, name: str, report: Report) -> Recording:
    """Read files with a producer's adapter; what another package's raises is told as its fault.

    Raises
    ------
    TraceError
        As `Producer.read` does, or with the name of the other package's adapter.
    """
    try:
        return producer.read(inputs, name=name, report=report)
    except DiagnoseError:
        raise
    except Exception as error:
        if getattr(producer, "__name__", "").startswith(__package__):
            raise
        raise TraceError(
            f"cannot be read by {producer.NAME!r} ({type(error).__name__}: {error}); mend or uninstall the package that brings it",
            where=name,
        ) from None
