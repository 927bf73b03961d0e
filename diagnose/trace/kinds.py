"""What each file of a job is for a diagnosis: a trace, a log, a dump of collectives, telemetry, metadata, or nothing of it.

Enters: the files of a path. Leaves: what each is. Told by content, as everywhere; a name decides where there is no mark.
"""

import re
from pathlib import Path
from typing import Literal

from diagnose.trace.input_files import InputFiles, is_trace
from diagnose.trace.logs.load import has_steps
from diagnose.trace.logs_beside import may_be_console
from diagnose.trace.producers import training_log
from diagnose.trace.producers.catalogue import find_producer
from diagnose.trace.read import BESIDE, DESCRIPTIONS
from diagnose.trace.strangers import Stranger, name_stranger

#: What a file is of use for. `console`: text of a program, in which nothing measures steps.
FileKind = Literal["trace", "log", "dump", "telemetry", "metadata", "console", "report", "other"]

#: What communication libraries leave.
DUMPS = frozenset(
    {
        "a PyTorch Flight Recorder dump",
        "NCCL Inspector output",
        "Prometheus metrics of NCCL",
        "an nccl-tests result",
    }
)
#: What tells of hosts and their devices.
TELEMETRY = frozenset(
    {
        "DCGM metrics",
        "a table of nvidia-smi",
        "a page of nvidia-smi or rocm-smi",
        "Prometheus metrics",
        "a kernel log of a host",
    }
)
#: What programs wrote for people, and what trainers keep beside it.
CONSOLES = frozenset(
    {
        "an NCCL log",
        "a console of torchtitan",
        "a console of a trainer",
        "a Slurm log",
        "a log of torchrun or a Python error",
        "a stack dump (py-spy, faulthandler, gdb)",
        "trainer_state.json of Hugging Face",
        "metrics.csv of Lightning",
        "a result of Hugging Face's Trainer",
    }
)
#: Bytes of a text for people: no control characters but blanks and colours.
_NO_TEXT = re.compile(rb"[\0-\x06\x0e-\x1a\x7f]")
#: Larger metadata is something else.
MAX_META_BYTES = 256 * 1024


def sort_file(inputs: InputFiles, file: Path) -> tuple[FileKind, str]:
    """Say what one file of a job is of use for, and what it is in words."""
    if is_trace(file):
        return "trace", "trace"
    name = file.name.lower()
    if name.endswith(DESCRIPTIONS):
        is_small = file.stat().st_size <= MAX_META_BYTES
        return ("metadata", "metadata") if is_small else ("other", "a YAML file that is too large for metadata")
    if file.name in BESIDE:
        return "report", "what a diagnosis leaves"
    alone = InputFiles(file, (file,))
    producer = find_producer(alone)
    if producer is not None:
        return ("log" if producer is training_log else "trace"), producer.NAME
    if name == "config.json" and _is_beside_primus(inputs, file):
        return "metadata", "config.json of Primus"
    stranger = name_stranger(alone, file)
    kind: FileKind = "other" if stranger is None else _sort_stranger(stranger)
    head = inputs.head(file)
    is_text = bool(head) and not _NO_TEXT.search(head) and may_be_console(file)
    if (kind == "console" or (stranger is None and is_text)) and has_steps(file):
        return "log", training_log.NAME
    if stranger is not None:
        return kind, stranger.name
    return ("console", "text") if is_text else ("other", "nothing that is known here" if head else "empty")


def _sort_stranger(stranger: Stranger) -> FileKind:
    """Give the kind of a file that is no trace."""
    if stranger.name in DUMPS:
        return "dump"
    if stranger.name in TELEMETRY:
        return "telemetry"
    if stranger.name in CONSOLES:
        return "console"
    return "report" if stranger.name == "a report of diagnose" else "other"


def _is_beside_primus(inputs: InputFiles, file: Path) -> bool:
    """Say whether a file lies beside what Primus recorded."""
    from diagnose.trace.producers import primus

    beside = tuple(other for other in inputs.files if other.parent == file.parent and other != file)
    return primus.recognise(InputFiles(file.parent, beside))
