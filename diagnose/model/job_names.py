"""What a job is called: by its metadata, else by its path, and in a list by enough of that to be told from the others.

Enters: metadata, paths, and ids with locations. Leaves: ids, names, and what jobs are called in a list. An id is that of one run; a
name stays the same from run to run. Neither depends on what else is in a list: stores and tickets keep them.
"""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".parquet"
#: Parts of a path that make a name: a folder and a file, or two folders. One alone is too often `train` or `trace`.
_N_PARTS = 2
#: Names that say nothing of which job it is.
_COMMON = re.compile(
    r"(?:data|downloads?|home|jobs?|logs?|mnt|outputs?|out|profiles?|profiler|ranks?|results?|root|runs?|scratch|shared|slurm|"
    r"srv|steps?|tmp|torch|pytorch|traces?|training|train|var|work|workspace)",
    re.IGNORECASE,
)
_BEFORE, _AFTER = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
#: What differs from run to run, wherever it stands in a name.
_VARIES = re.compile(
    rf"""
      {_BEFORE}[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}{_AFTER}                       # a UUID
    | {_BEFORE}(?:re)?(?:start|try|run|night|day|attempt|epoch|jobid|pid|step|iter)(?:ed)?[-_=:. ]*
      \d[-\d:._+TZhms]*{_AFTER}                                                                 # start-<time>, run-12
    | (?<!\d)(?:19|20)\d\d(?P<dash>[-_.]?)(?:0[1-9]|1[0-2])(?P=dash)(?:0[1-9]|[12]\d|3[01])
      (?:[-_:.T +]*\d+Z?{_AFTER})*(?![0-9])                                                     # a date, with its time
    | {_BEFORE}(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{{7,}}{_AFTER}                             # a hash
    | {_BEFORE}(?P<number>\d{{4,}}|0\d\d+){_AFTER}                                              # of a scheduler, or a count
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: A run that says of itself that it is one of what its folder names: `start-<time>`, `attempt-2`, a date.
_OF_FOLDER = re.compile(
    r"(?:(?:re)?start(?:ed)?|attempt|try|run|night|day)[^A-Za-z]*\d.*|(?:19|20)\d\d[-_.]?\d\d.*", re.IGNORECASE
)


def id_of_path(path: Path) -> str:
    """Give the id of a job whose metadata says none: the last part of its path.

    >>> id_of_path(Path("night/job-7.parquet")), id_of_path(Path("fig17/ZB/0_1"))
    ('job-7', '0_1')
    """
    named = path if path.name not in {"", ".."} else path.resolve()
    return named.name.removesuffix(_SUFFIX) or "job"


def locate(given: str) -> str:
    """Give the whole path of what is named by a part of it; a URL is as it is."""
    return given if "://" in given else os.path.abspath(given)  # noqa: PTH100 - a link keeps its name


def name_of_job(*, name: str | None, job_id: str | None, location: str) -> str:
    """Give the name that the runs of one job share.

    Parameters
    ----------
    name, job_id : str or None
        As the metadata has them. A name is taken as it is; of an id what is the same from run to run.
    location : str
        Path or URL of the trace, for where the metadata says neither: its last two parts that say something.

    Returns
    -------
    str
        Never empty. Where all of an id differs from run to run (a scheduler's number), the id itself, whatever its folder: a run
        that shares its name with no other is told once too often, one that shares it with a stranger is lost.

    >>> name_of_job(name="llama 70B", job_id="7", location="/a"), name_of_job(name=None, job_id="AR-20261122", location="/a")
    ('llama 70B', 'AR')
    >>> name_of_job(name=None, job_id=None, location="/traces/team-a/llama-70b/start-2026-11-22T02:00:00/trace.parquet")
    'llama-70b/trace'
    >>> name_of_job(name=None, job_id="4711", location="s3://bucket/4711.parquet")
    '4711'
    """
    if name and name.strip():
        return _tidy(name)
    place = location.removesuffix(_SUFFIX)
    path = [part for part in place.partition("://")[2 if "://" in place else 0].split("/") if part]
    given = [job_id] if job_id else path
    last = (given or [location])[-1]
    stable = _stable_name(given) if job_id or stable_part(last) or _OF_FOLDER.fullmatch(last) else ""
    return stable or _tidy(last) or "job"


def stable_part(text: str) -> str:
    """Leave out of a name what differs from run to run: dates, times, hashes, run numbers, and numbers that are no size.

    >>> [stable_part(text) for text in ("llama-70b-2026-11-22T02:00:00Z-ft", "run_12", "AR-start-1763792400", "gpt3-ctx-8192")]
    ['llama-70b-ft', '', 'AR', 'gpt3-ctx-8192']
    >>> [stable_part(text) for text in ("exp-2", "job-123456", "a1b2c3d-eval", "0_1", "moe-8x7b-pp4")]
    ['exp-2', 'job', 'eval', '', 'moe-8x7b-pp4']
    """
    left = _VARIES.sub(lambda found: found[0] if _is_size(found["number"]) else "\0", _tidy(text))
    parts = [part.strip("-_.=+: ") for part in left.split("\0")]
    joined = "-".join(part for part in parts if part)
    return joined if any(character.isalpha() for character in joined) else ""


def _stable_name(parts: list[str]) -> str:
    """Join what is stable of the last parts of a path; empty where nothing of it says which job it is."""
    found: list[str] = []
    for i, part in enumerate(reversed(parts)):
        stable = stable_part(part)
        # A common name says which of the traces of a folder it is, and no more.
        if stable and (not _COMMON.fullmatch(stable) or (i == 0 and stable == part)):
            found.append(stable)
        if len(found) == _N_PARTS:
            break
    return "" if all(map(_COMMON.fullmatch, found)) else "/".join(reversed(found))


def _is_size(number: str | None) -> bool:
    """Say whether a number is a power of two, as sizes of contexts and batches are, and numbers of runs seldom."""
    n = int(number) if number and len(number) < 19 and not number.startswith("0") else 0
    return n > 0 and n & (n - 1) == 0


def _tidy(text: str) -> str:
    """Write a name in one line, and each character in one way."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def tell_apart(jobs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Call each job of a list, given as location and id, by its id, and where others have that too by the end of its path.

    Returns
    -------
    dict of str to str
        What each job is called, by location.

    >>> tell_apart([("/fig17/ZB/0_1", "0_1"), ("/fig17/1F1B/0_1", "0_1"), ("/a.parquet", "a"), ("/b.parquet", "run")])
    {'/fig17/ZB/0_1': 'ZB/0_1', '/fig17/1F1B/0_1': '1F1B/0_1', '/a.parquet': 'a', '/b.parquet': 'run'}
    """
    by_id: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for location, job_id in jobs:
        by_id[job_id][location] = None
    return {
        location: called for job_id, places in by_id.items() for location, called in _call(job_id, list(places)).items()
    }


def _call(job_id: str, locations: list[str]) -> dict[str, str]:
    """Call the jobs that share an id."""
    if len(locations) == 1 or not job_id:
        return {location: job_id or location for location in locations}
    parts = [location.removesuffix(_SUFFIX).rstrip("/").split("/") for location in locations]
    ends: list[str] = []
    for n in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(part[-n:]) for part in parts]
        if len(set(ends)) == len(ends):
            break
    return {
        location: end if part[-1] == job_id else f"{job_id} ({end})"
        for location, end, part in zip(locations, ends, parts, strict=True)
    }
