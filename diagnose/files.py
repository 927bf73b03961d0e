"""Files that appear when all is written: who reads one finds the old or the new, never a half."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Give a name to write under; at the end what was written, if anything, takes the place of the file, with its permissions."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield beside
        if beside.exists():
            if target.exists():
                shutil.copymode(target, beside)
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
