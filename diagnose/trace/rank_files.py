"""Tell a folder that holds one job in pieces, a file a rank, from one that holds a job a file.

Enters: the names in one folder. Leaves: those of them that make one job together. This is checked for every folder of a large
store, so a few files of each are looked at: the footer of a Parquet file, or the first bytes of some files of another kind.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from diagnose.trace.input_files import InputFiles
from diagnose.trace.producers import training_log
from diagnose.trace.producers.catalogue import find_producer
from diagnose.trace.read import DESCRIPTIONS
from diagnose.trace.strangers import name_stranger

#: What only the Recorder writes into a footer: what it says of one rank alone.
RECORDER_KEY = b"diagnose.recorder"
#: Traces whose footer is asked for, until one can be read.
FOOTERS_ASKED = 3
#: Files of another kind that are looked at, and how many of them a producer must know: a single one is no folder of ranks.
FILES_ASKED = 4
FILES_KNOWN = 2


def pick_rank_files(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Name the files of a folder that are one job together; none where every file is for itself.

    What somebody recorded of a job with a tool that is not read makes a job, too: who reads it says what it is.

    `names` are the files that lie in the folder itself, sorted, without hidden ones. Where there are Parquet files, they
    decide, and other files are left out.
    """
    traces = [name for name in names if name.endswith(".parquet")]
    if traces:
        pieces = traces if _are_of_one_rank(folder, traces) else []
    else:
        others = [name for name in names if not name.lower().endswith(DESCRIPTIONS)]
        pieces = others if _are_known(folder, others) or _are_recordings(folder, others) else []
    return tuple(name for name in pieces if (folder / name).is_file())


def _are_of_one_rank(folder: Path, traces: Sequence[str]) -> bool:
    """Say whether the first trace that can be read is what the Recorder wrote on one rank."""
    asked = (_is_of_one_rank(folder / name) for name in traces[:FOOTERS_ASKED])
    return next((found for found in asked if found is not None), False)


def _is_of_one_rank(path: Path) -> bool | None:
    """Say whether the Recorder wrote a file on one rank; None where it cannot be read: who reads it says what is wrong with it."""
    from pyarrow import parquet

    if not path.is_file():
        return None
    ranks: set[int] = set()
    try:
        with parquet.ParquetFile(path) as file:
            if RECORDER_KEY not in (file.metadata.metadata or {}):
                return False
            # A file that was joined from several ranks keeps the metadata of the first. The rows say it: what a footer tells
            # of single columns ends the process where it is damaged (pyarrow 26).
            for batch in file.iter_batches(columns=["rank"]):
                ranks |= {rank for column in batch.columns for rank in column.unique().to_pylist() if rank is not None}
                if len(ranks) > 1:
                    return False
    except Exception:  # noqa: BLE001 - a damaged file can raise anything
        return None
    return True


def _are_known(folder: Path, names: Sequence[str]) -> bool:
    """Say whether a producer knows several files of the kind that is commonest; training logs hold no operations."""
    kinds = Counter(Path(name).suffix for name in names)
    if not kinds or max(kinds.values()) < FILES_KNOWN:
        return False
    kind = kinds.most_common(1)[0][0]
    of_kind = [folder / name for name in names if Path(name).suffix == kind]
    asked = of_kind[:: max(1, len(of_kind) // FILES_ASKED)][:FILES_ASKED]
    found = [find_producer(InputFiles(path, (path,))) for path in asked if path.is_file()]
    known = Counter(producer.NAME for producer in found if producer is not None and producer is not training_log)
    return max(known.values(), default=0) >= FILES_KNOWN


def _are_recordings(folder: Path, names: Sequence[str]) -> bool:
    """Say whether most of the files looked at were recorded of a job, by a tool that is not read."""
    asked = [folder / name for name in names[:: max(1, len(names) // FILES_ASKED)][:FILES_ASKED]]
    strangers = [name_stranger(InputFiles(path, (path,)), path) for path in asked if path.is_file()]
    return 2 * sum(stranger is not None and stranger.is_recording for stranger in strangers) > len(strangers)
