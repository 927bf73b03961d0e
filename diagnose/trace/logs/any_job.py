"""Read what any job prints, whatever trains it: the hosts it runs on, and that it failed.

Enters: lines. Leaves: hosts and errors in a builder.

* `node-3:811:811 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.3<0>`, with `NCCL_DEBUG=INFO`. Source: NVIDIA/nccl, src/bootstrap.cc
  and src/debug.cc.
* `Traceback (most recent call last):`, then lines that begin with a space, then the error.
"""

import re

from diagnose.trace.logs.builder import LogBuilder

_TRACEBACK = b"Traceback (most recent call last)"
_BOOTSTRAP = b"NCCL INFO Bootstrap"
MARKS = (_BOOTSTRAP, _TRACEBACK)
#: Lines of a traceback at most; a deep recursion prints a thousand.
MAX_LINES = 2_000
_HOST = re.compile(rb"([A-Za-z0-9][\w.-]{0,120}):\d{1,10}:\d{1,10} \[\d{1,4}\] " + _BOOTSTRAP)


class AnyJobReader:
    """Reads such lines; a `LineReader`."""

    def __init__(self, log: LogBuilder) -> None:
        self.log = log
        self.left = 0

    def take(self, line: bytes) -> bool:
        """Take one line."""
        if said := _HOST.search(line):
            self.log.add_host(said[1].decode())
        elif _TRACEBACK in line:
            self.left = MAX_LINES
        elif self.left and line.strip() and not line.startswith((b" ", b"\t")):
            self.log.add_event("error", rank=self.log.rank, text=line)
            self.left = 0
        self.left = max(self.left - 1, 0)
        return self.left > 0
