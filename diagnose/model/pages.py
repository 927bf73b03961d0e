"""Where the page of a job is on the site of a fleet: who links to it and who writes it ask here.

Enters: a job's id and location. Leaves: a path below the site that stays the same from night to night.
"""

import hashlib
import re

#: Characters of a job's name in the name of its page.
_MAX_SLUG = 40


def live_page_path(location: str) -> str:
    """Name the live page of a job that is watched, by its location alone: its name is not known before its first window.

    >>> live_page_path("/traces/run-7/")
    'jobs/run-7-7bda119a62eb.html'
    """
    return page_path(location.rstrip("/").rpartition("/")[2], location)


def page_path(job_id: str, location: str) -> str:
    """Name the page of a job, from the root of the site: by its location, so that links last.

    >>> page_path("Run 7/<b>", "/traces/a.parquet")
    'jobs/run-7-b-a46127aca98e.html'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", job_id.lower())[:_MAX_SLUG].strip("-") or "job"
    digest = hashlib.blake2b(location.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return f"jobs/{slug}-{digest}.html"
