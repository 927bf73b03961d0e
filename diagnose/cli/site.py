"""The folder of `diagnose fleet --site`: an index, a page a job, and the same as JSON.

Enters: a fleet and the store it is from. Leaves: files that any web server or bucket serves, and that open from a disk.

At every moment the folder is a whole site: each file is written beside its place and renamed, pages come before the index that
links to them, and pages that no index links to any more go last. A list of what was made tells what need not be made again.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose.errors import UsageError, explain_unwritten
from diagnose.files import appearing

if TYPE_CHECKING:
    from diagnose.model.fleet import Fleet
    from diagnose.triage.collect import StoredDiagnosis
    from diagnose.triage.store import Store

#: What was made, and of what.
LIST = "site.json"
SCHEMA = "diagnose-site/1"
#: Names of files that may be ours; nothing else is ever removed.
_OURS = re.compile(r"jobs/[a-z0-9-]{1,80}\.html")
#: What a writer that was killed leaves behind.
_LEFT_BEHIND = re.compile(r"\.diagnose-[0-9a-f]{16}\.tmp")


@dataclasses.dataclass(frozen=True, slots=True)
class SiteCounts:
    """Pages written, left as they were, and removed."""

    n_written: int
    n_kept: int
    n_removed: int


@dataclasses.dataclass(frozen=True, slots=True)
class _PageRecord:
    """A page: digest of what it was made from, and of its bytes."""

    of: str
    content: str


def write_site(store: "Store", fleet: "Fleet", folder: Path, *, draw: int = 0) -> SiteCounts:
    """Write the site of a fleet, of whose jobs the store has the diagnoses.

    The folder is made where it is missing; UsageError where it holds something else, or cannot be written. The pages of the first
    `draw` jobs of the fleet are drawn from their traces, where these are as they were.
    """
    try:
        return _write(store, fleet, folder, draw)
    except OSError as error:
        raise explain_unwritten(f"--site: cannot write {error.filename or folder}", error) from None


def _write(store: "Store", fleet: "Fleet", folder: Path, draw: int) -> SiteCounts:
    """Write pages, then the index, then remove what is left over."""
    from diagnose._version import __version__
    from diagnose.model.pages import page_path
    from diagnose.report import fleet as page
    from diagnose.report.html.page import render_saved
    from diagnose.report.html.site import digest_of_maker, render_index
    from diagnose.triage.collect import read_diagnoses

    old = _read_list(folder)
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    jobs = [*fleet.jobs, *(job for job in fleet.uncounted if job.failure is None)]
    pages = {job.location: page_path(job.job_id, job.location) for job in jobs}
    _write_list(folder, old | {name: old.get(name, _PageRecord("", "")) for name in pages.values()})
    maker, made, n_written = digest_of_maker(__version__), dict[str, _PageRecord](), 0
    contents = {job.location: job.content for job in fleet.jobs[:draw]}
    for kept in read_diagnoses(store, pages):
        name = pages[kept.location]
        of = _digest(json.dumps([maker, kept.location, kept.min_speedup, kept.document]).encode())
        drawn = f"{of}, drawn"
        known = old.get(name)
        if known is not None and _digest_file(folder / name) != known.content:
            known = None
        painted = None
        if kept.location in contents and (known is None or known.of != drawn):
            painted = _draw(kept, contents[kept.location])
        if painted is not None:
            known = _put_page(folder / name, painted, drawn)
            n_written += 1
        elif known is None or known.of not in {of, drawn}:
            known = _put_page(folder / name, render_saved(kept.restore(), kept.location), of)
            n_written += 1
        made[name] = known
    n_kept = len(made) - n_written
    present = {location: name for location, name in pages.items() if name in made}  # pruned meanwhile: no link
    index = render_index(fleet, present, __version__).encode("utf-8", "backslashreplace")
    for name, content in (("fleet.json", page.render_json(fleet).encode() + b"\n"), ("index.html", index)):
        if _digest_file(folder / name) == _digest(content):
            n_kept += 1
        else:
            _put(folder / name, content)
            n_written += 1
    return SiteCounts(n_written, n_kept, _clean(folder, old, made))


def _draw(kept: "StoredDiagnosis", content: str | None) -> str | None:
    """Draw the page of a job from its trace; None where the trace is not here, is another, or is diagnosed otherwise now."""
    from diagnose.model.request import Request
    from diagnose.pipeline import prepare_report
    from diagnose.report.html.page import render
    from diagnose.report.json_lines import render as to_document
    from diagnose.triage.identity import digest_files
    from diagnose.triage.source import is_remote, list_jobs

    if is_remote(kept.location) or not Path(kept.location).is_file():
        return None
    try:
        (job,) = list_jobs([kept.location])
        if digest_files([Path(job.location), *map(Path, job.beside)]) != content:
            return None
        data = prepare_report(Request(Path(kept.location), kept.location, min_speedup=kept.min_speedup))
        if to_document(data.diagnosis) != kept.document:
            return None
        return render(data, options=f" --min-speedup {kept.min_speedup:g}", in_site=True)
    except Exception:  # noqa: BLE001 - one broken trace must not stop the others: their page is made of what is kept
        return None


def _put_page(path: Path, page: str, of: str) -> _PageRecord:
    """Write a page, and say what was made."""
    content = page.encode("utf-8", "backslashreplace")
    _put(path, content)
    return _PageRecord(of, _digest(content))


def _clean(folder: Path, old: dict[str, _PageRecord], made: dict[str, _PageRecord]) -> int:
    """Remove pages that nothing links to any more, and what a killed writer left; give the number of pages."""
    gone = old.keys() - made.keys()
    for name in gone:
        (folder / name).unlink(missing_ok=True)
    for path in [*folder.iterdir(), *(folder / "jobs").iterdir()]:
        if _LEFT_BEHIND.fullmatch(path.name):
            path.unlink(missing_ok=True)
    _write_list(folder, made)
    return len(gone)


def _read_list(folder: Path) -> dict[str, _PageRecord]:
    """Read what an earlier run made; refuse a folder that is somebody else's."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return {}
    try:
        found: Any = json.loads((folder / LIST).read_text(encoding="utf-8"))
        is_ours = found["schema"] == SCHEMA
        entries = {name: _PageRecord(str(of), str(content)) for name, (of, content) in found["pages"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_ours, entries = False, {}
    if not is_ours:
        raise UsageError(
            f"--site: {folder} is not empty and no site of `diagnose fleet` (no sound {LIST} in it); name another folder"
        )
    return {name: made for name, made in entries.items() if _OURS.fullmatch(name)}


def _write_list(folder: Path, made: dict[str, _PageRecord]) -> None:
    """Write what is made, or will be: a page is on the list before it is there, so that it is never forgotten."""
    pages = {name: [entry.of, entry.content] for name, entry in sorted(made.items())}
    content = json.dumps({"schema": SCHEMA, "pages": pages}, indent=0).encode() + b"\n"
    if _digest_file(folder / LIST) != _digest(content):
        _put(folder / LIST, content)


def _put(path: Path, content: bytes) -> None:
    """Write a file that appears when it is complete."""
    with appearing(path) as beside:
        beside.write_bytes(content)


def _digest(content: bytes) -> str:
    """Digest bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _digest_file(path: Path) -> str | None:
    """Digest a file; None where there is none."""
    try:
        return _digest(path.read_bytes())
    except FileNotFoundError:
        return None
