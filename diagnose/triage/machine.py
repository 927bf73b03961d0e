"""Say who this process is, and whether another one on the same machine still lives."""

import contextlib
import os
import socket
from pathlib import Path


def name_machine() -> str:
    """Name what shares process numbers with this process: the host since it started, and the container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def name_process(pid: int) -> str:
    """Name a process by its number and when it began, because numbers come again."""
    return f"{pid} {_read_stat(pid)[1]}"


def is_alive(process: str) -> bool:
    """Say whether a process of this machine lives; where that cannot be known, yes.

    >>> is_alive(name_process(os.getpid())), is_alive("999999999 1")
    (True, False)
    """
    number, _, began = process.partition(" ")
    if os.name != "posix" or not number.isdigit():
        return True
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    state, now_began = _read_stat(int(number))
    return state != "Z" and now_began == began


def _read_stat(pid: int) -> tuple[str, str]:
    """Give the state of a process and when it began, in ticks since the machine did; empty where only Linux would know."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
