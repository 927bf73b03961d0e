"""Run a piece of Python as a user whom permissions hold back: root reads everything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def drop_privileges() -> list[str]:
    """Give what stands before a command so that permissions hold for it; skip where root cannot be held back."""
    if getattr(os, "geteuid", lambda: 1)() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root is kept from nothing, and no setpriv is on this machine")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def run_without_privileges(code: str, *args: object) -> str:
    """Run code with arguments, and give what it prints."""
    done = subprocess.run(
        [*drop_privileges(), sys.executable, "-c", code, *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
