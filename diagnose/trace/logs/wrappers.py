"""Take away what launchers and log collectors put around the lines of a program.

Enters: a line. Leaves: what the program printed, and whose line it is. `torchrun` (`[default3]:`), `srun -l` (`3: `), `mpirun
--tag-output` (`[1,3]<stdout>:`), Ray (`(Worker pid=7, ip=10.0.0.1) `), `pdsh` (`node-3: `), `kubectl logs --prefix`
(`[pod/job-3/train] `), container runtimes (`2026-..Z stdout F `), and JSON of Docker and cloud loggers are known.
"""

import json
import re

#: Keys of the line itself in the JSON of Docker and Fluent Bit, Loki, CloudWatch and journald, and Google's logging.
_KEYS = ("log", "line", "message", "MESSAGE", "msg", "textPayload")
#: Keys of when it was written.
_TIMES = ("time", "timestamp", "@timestamp", "ts")
#: The stamp of a collector, and what a container runtime puts behind it; a program's own stamp is left where it is.
_STAMP = rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d) +(?:std(?:out|err) [FP] )?)?"
#: Who wrote the line; a launcher may put a host before the rank.
_SOURCE = (
    rb"(?:\[(?:default|rank|Rank |RANK )\d{1,7}\]:? ?"
    rb"|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:? ?"
    rb"|\[pod/[^\]\s]{1,250}\] ?"
    rb"|\([^()\s]{1,80}(?: \w{1,40})? pid=\d{1,10}(?:, ip=[^)\s]{1,45})?\) "
    rb"| {0,6}\d{1,7}: (?!(?:-?nan|[\d.]{1,20}), )"  # Darknet prints its steps and losses so
    rb"|\d{1,3}(?:\.\d{1,3}){3}: "
    rb"|(?!(?i:step|iter|epoch|loss|train|eval|val|batch))(?=[A-Za-z][A-Za-z_.-]{0,60}\d)[\w.-]{2,120}: )"
)
_PREFIX = re.compile(_STAMP + rb"(" + _SOURCE + rb"{0,3})")
_RANK = re.compile(rb"(?:default|[rR]ank|RANK) ?(\d+)\]|,(\d+)\]<|^ *(\d+): ")


def unwrap(line: bytes) -> tuple[bytes, int | None, bytes]:
    """Give who wrote a line, which rank that is, and what the program printed; nothing and None where no prefix says so."""
    prefix = _PREFIX.match(line)
    if prefix is None:
        return b"", None, line
    said = _RANK.search(prefix[1])
    rank = None if said is None else int(said[1] or said[2] or said[3])
    return prefix[1], rank, line[prefix.end() :]


def unpack_json(line: bytes) -> tuple[list[bytes], bytes]:
    """Give the lines in the JSON of a log collector, and when it says they were written; no lines where it is something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return [], b""
    if not isinstance(found, dict):
        return [], b""
    said, time = (
        next((found[key] for key in keys if isinstance(found.get(key), str)), "").encode("utf-8", "replace")
        for keys in (_KEYS, _TIMES)
    )
    return said.splitlines(), time
