"""What is freed is used again, and much of it goes back: `diagnose.heap`, each time in a process of its own."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
PROGRAM = """
import os, sys
import numpy as np
from diagnose.heap import give_back, reuse_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

if sys.argv[1] != "default":
    reuse_freed_memory()
before = resident()
array = np.ones(int(sys.argv[2]) << 17)
stays = np.ones(1 << 16) if sys.argv[1] == "give back" else None
array = None
if sys.argv[1] == "give back":
    give_back()
print(resident() - before)
"""


def kept_mib(how: str, mib: int) -> int:
    """Say how much memory a process keeps of an array that it has freed."""
    command = [sys.executable, "-c", PROGRAM, how, str(mib)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_is_kept_for_the_next_array() -> None:
    """An array of 64 MiB leaves its pages for the next one; by default they go back to the kernel."""
    assert kept_mib("default", 64) < 16
    assert kept_mib("reuse", 64) > 48


def test_much_memory_goes_back() -> None:
    """Of a gigabyte that nobody uses any more hardly anything stays."""
    assert kept_mib("reuse", 1024) < 256


def test_memory_below_what_stays_goes_back_when_told() -> None:
    """What is freed beneath an array that stays goes back as well, once somebody says so."""
    assert kept_mib("give back", 64) < 16
