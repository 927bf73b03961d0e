"""Files that appear when all is written: who reads one finds the old or the new, never a half."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give an empty file to write into; at the end, unless it was deleted, it takes the place of the target, with its permissions.

    It is new, and nobody can guess its name: in a folder of many users nobody can have put a link there.
    """
    beside = target.with_name(f".diagnose-{os.urandom(8).hex()}.tmp")
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield beside
        if beside.exists():
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
