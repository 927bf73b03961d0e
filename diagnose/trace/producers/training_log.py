"""Training logs among the files of producers: known, and refused where operations are needed.

Enters: the files of a log. Leaves: nothing; `diagnose.trace.logs` reads them.
"""

from typing import NoReturn

from diagnose.errors import TraceError
from diagnose.trace.input_files import InputFiles
from diagnose.trace.logs.catalogue import name_formats
from diagnose.trace.logs.load import is_log
from diagnose.trace.producers.catalogue import Report

NAME = "training-log"
TITLE = f"training log ({name_formats()}): step times, onset and restarts; alone, or beside a trace with --log"


def recognise(inputs: InputFiles) -> bool:
    """Say whether one of the first files is a log, by a sample of each."""
    return is_log(inputs)


def read(inputs: InputFiles, *, name: str, report: Report) -> NoReturn:  # noqa: ARG001 - what every producer takes
    """Say that a log holds no operations: always raises a `TraceError`."""
    raise TraceError(
        "is a training log, which has step times and no operations; expected a trace: `diagnose LOG` tells since when steps are "
        "slow, `diagnose TRACE --log LOG` joins it to a trace",
        where=name,
    )
