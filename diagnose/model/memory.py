"""How much memory a job may take, and how much it needs.

Enters: an amount as people write it, numbers of operations. Leaves: bytes.
"""

import os
from pathlib import Path

from diagnose.errors import UsageError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
#: Part of the machine's memory that jobs may take when nothing is said; the rest is for the processes themselves and others.
MEMORY_SHARE = 0.6
#: Where Linux says what a container may take.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Memory of a process that has read nothing yet.
BYTES_AT_START = 200 << 20
#: Memory that a diagnosis takes for each operation (measured: 143 at 7.5 million).
BYTES_PER_OP = 150
#: ... and for each different operation of a step.
BYTES_PER_NODE = 6_000


def read_bytes(text: str) -> int:
    """Read an amount of memory.

    >>> read_bytes("8G"), read_bytes("512MiB")
    (8589934592, 536870912)
    """
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        found = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise UsageError(f"--memory: {text!r} is no amount of memory such as 8G") from None
    if found < 2**20:
        raise UsageError(f"--memory: {text!r} is less than any job needs; expected an amount such as 8G")
    return found


def write_bytes(n_bytes: float) -> str:
    """Write an amount of memory.

    >>> write_bytes(4 * 2**30), write_bytes(300 * 2**20)
    ('4 GiB', '0.293 GiB')
    """
    return f"{n_bytes / 2**30:.3g} GiB"


def default_memory() -> int:
    """Give a part of the memory of this machine, or of the container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 * 2**30]
    for name in _CGROUPS:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such file, or `max`
            continue
    return int(min(limits) * MEMORY_SHARE)
