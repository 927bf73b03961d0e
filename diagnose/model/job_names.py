"""What a job is called: by its metadata, else by its path, and in a list by enough of that to be told from the others.

Enters: paths, and ids with locations. Leaves: names. An id never depends on what else is in a list: stores and tickets keep it.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = ".parquet"


def id_of_path(path: Path) -> str:
    """Give the id of a job whose metadata says none: the last part of its path.

    >>> id_of_path(Path("night/job-7.parquet")), id_of_path(Path("fig17/ZB/0_1"))
    ('job-7', '0_1')
    """
    named = path if path.name not in {"", ".."} else path.resolve()
    return named.name.removesuffix(_SUFFIX) or "job"


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
