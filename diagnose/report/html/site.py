"""The fleet as pages: an index that sorts and filters, and the names of the pages of its jobs.

Enters: a `Fleet`. Leaves: the text of the index, the same bytes for the same fleet. No page asks a network for anything.
"""

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from diagnose.model.fleet import Fleet, FleetJob
from diagnose.report import fleet as text
from diagnose.report import words
from diagnose.report.escape import escape, name
from diagnose.report.html.draw import styled
from diagnose.report.html.environment import FOLDER, fill_in, own_file
from diagnose.report.html.fleet_pictures import draw_all, slice_rows

#: Rows of tables beside that of the jobs; what is left out is said.
_MAX_ROWS = 200
#: States of faults that are on the page at once; the others open.
_URGENT = ("new", "worse", "back")
#: Slices that have a table; causes and days have pictures.
_TABLES = ("owner", "folder", "host", "framework", "gpu_type")


def digest_of_maker(made_by: str) -> str:
    """Digest what pages are made by, so that they are made again when it changes: templates, code, libraries."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*FOLDER.iterdir(), *FOLDER.parent.glob("*.py")]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    digest.update(f"{made_by} {version('matplotlib')} {version('jinja2')}".encode())
    return digest.hexdigest()


def render_index(fleet: Fleet, pages: Mapping[str, str], made_by: str) -> str:
    """Write the index, a whole HTML document.

    `pages` are those of the jobs, from the root of the site, by location; `made_by` is the version of the program.
    """
    with styled():
        pictures = draw_all(fleet)
    slow = text.list_slow(fleet)
    return fill_in(
        "fleet.html.j2",
        pictures,
        more_style=own_file("fleet.css"),
        version=made_by,
        more_script=own_file("fleet.js"),
        headline=text.describe_worst(fleet).removeprefix("worst: "),
        worst=pages.get(slow[0].location) if slow else None,
        facts=text.list_facts(fleet),
        pictures=pictures,
        night=_about_night(fleet, pages),
        hosts=_about_hosts(fleet, pages),
        study=_about_study(fleet),
        n_study=fleet.study.n_jobs,
        left_out=fleet.study.left_out,
        slices=[_about_slice(fleet, key) for key in _TABLES if any(entry.key for entry in fleet.by[key])],
        jobs=[_row(job, pages) for job in (*fleet.jobs, *(job for job in fleet.uncounted if job.failure is None))],
        verdicts=sorted({job.verdict or "" for job in (*fleet.jobs, *fleet.uncounted) if job.failure is None}),
        causes=sorted({name(cause.cause) for job in fleet.jobs for cause in job.causes}),
        gaps=[(gap.kind, f"{gap.n_jobs:,}") for gap in fleet.coverage],
        failed=_list_failed(fleet)[:_MAX_ROWS],
        n_failed=fleet.totals.n_failed,
    )


def _row(job: FleetJob, pages: Mapping[str, str]) -> dict[str, Any]:
    """Write the row of a job: what it shows, and by what it is sorted."""
    first = job.causes[0] if job.causes else None
    hours = [(job.hours_wasted, 4), (job.hours_recoverable, 4), (job.slower, 4), (job.n_gpus, 0)]
    said = [
        words.hours(job.hours_wasted),
        words.hours(job.hours_recoverable),
        words.NOT_KNOWN if job.slower is None else words.times(job.slower),
    ]
    return {
        "page": pages.get(job.location),
        "name": name(job.called or job.job_id or job.location),
        "owner": name(job.owner or ""),
        "figures": [
            (shown, "" if value is None else f"{value:.{digits}f}")
            for shown, (value, digits) in zip((*said, f"{job.n_gpus:,}" if job.n_gpus else ""), hours, strict=True)
        ],
        "verdict": job.verdict or "",
        "cause": "" if first is None else name(first.cause),
        "where": "" if first is None else words.spot(first.where).removeprefix("at "),
        "all_causes": " ".join(name(cause.cause) for cause in job.causes),
        "framework": name(job.framework or ""),
        "folder": name(job.folder),
        "day": job.day,
    }


def _about_night(fleet: Fleet, pages: Mapping[str, str]) -> dict[str, Any] | None:
    """Put into words what is new; None where there is nothing to compare with."""
    night = fleet.night
    if night is None or not (night.n_before or night.n_earlier):
        return None
    names = text.list_names(fleet)
    rows = [
        (finding.state, text.describe_finding(finding, names), pages.get(finding.location), finding.fingerprint)
        for finding in night.findings
    ]
    return {
        "says": text.describe_last_night(fleet),
        "hours": f"{night.hours:g}",
        "urgent": [row for row in rows[:_MAX_ROWS] if row[0] in _URGENT],
        "others": [row for row in rows[:_MAX_ROWS] if row[0] not in _URGENT],
        "left": max(len(rows) - _MAX_ROWS, 0),
        "meanings": [f"{state}: {meaning}" for state, meaning in text.STATES_SAID.items()],
    }


def _about_hosts(fleet: Fleet, pages: Mapping[str, str]) -> dict[str, Any] | None:
    """Put into words which hosts are blamed in several jobs; None where none is."""
    hosts = fleet.hosts
    if not hosts.blamed:
        return None
    return {
        "rows": [
            {
                "host": name(entry.host),
                "figures": (
                    f"{entry.n_blamed:,} of {entry.n_ran:,}",
                    f"{entry.expected:.2g}",
                    f"{entry.p_value:.2g}",
                    f"{entry.p_adjusted:.2g}",
                    words.hours(entry.hours_wasted),
                ),
                "proposal": entry.proposal or "none: chance explains it",
                "jobs": [
                    (pages[location], n) for n, location in enumerate(entry.jobs[:5], start=1) if location in pages
                ],
            }
            for entry in hosts.blamed[:_MAX_ROWS]
        ],
        "base": text.describe_base(hosts),
        "assumption": hosts.assumption,
    }


def _about_study(fleet: Fleet) -> list[tuple[str, ...]]:
    """Put the figures of the study beside those of the fleet."""
    rows: list[tuple[str, ...]] = []
    for figure in fleet.study.figures:
        ours, published = text.describe_figure(figure, figure.ours), text.describe_figure(figure, figure.published)
        rows.append((figure.meaning, ours, published, f"{figure.n:,}", figure.source))
    return rows


def _list_failed(fleet: Fleet) -> list[tuple[str, str, str]]:
    """List jobs without a diagnosis: location, kind of failure, reason."""
    return [
        (job.location, job.failure, (job.reason or "").removeprefix(f"{job.location}: "))
        for job in fleet.uncounted
        if job.failure is not None
    ]


def _about_slice(fleet: Fleet, key: str) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Give the table of one way to slice lost time: title, names of the columns, rows."""
    title, unknown = text.SLICES[key]
    rows = slice_rows(fleet.by[key], unknown)
    cut = f" (the first {_MAX_ROWS} of {len(rows):,})" if len(rows) > _MAX_ROWS else ""
    head = (title.removeprefix("By "), "GPU hours lost", "part of all", "recoverable", "jobs")
    return f"{title}{cut}", head, [tuple(escape(cell) for cell in row) for row in rows[:_MAX_ROWS]]
