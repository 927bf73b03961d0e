"""The fixtures: small jobs, one a cause, and the README beside them.

Enters: the folder. Leaves: the jobs that it lacks, each with its truth, and its README.md; what is there stays, because another
processor may round the last bit of a time otherwise.
"""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.faults.catalogue import CauseFile, list_cause_files
from diagnose.faults.example import SMALL, Fixture
from diagnose.faults.generate import Job, generate, name_truth, write_job
from diagnose.faults.spec import JobSpec

#: Name and fixture of the job that has no cause.
HEALTHY = "healthy"
_NO_FAULT = Fixture("no fault", seed=1)
#: Options of all commands.
_SIZES = ("pp", "dp", "microbatches", "steps")
_HEAD = """\
# Small generated jobs, one a cause

`python -m diagnose.faults` writes this page and makes the fixtures that are not there, by what the file of each cause says
(`FIXTURE` in `diagnose/faults/<cause>.py`). Each is a {pp}-stage, {dp}-dp-rank job of {microbatches} microbatches and {steps}
sampled steps with the noise of production traces. Beside each trace stands `<name>.truth.json`: the job's spec, and for each
fault its cause, place, onset, strength, and `recoverable`, the part of the mean step time that comes back when that fault alone
is mended and the job run again. From the root of the repository, each command makes its fixture again:

| fixture | what | recoverable |
|---|---|---|
"""
_TAIL = "A test runs these commands and compares the tables. On another processor the last bit of a time may differ.\n"


def make_job(
    spec: JobSpec,
    causes: Sequence[str],
    *,
    strength: float | None = None,
    onset: int | None = None,
    kind: str | None = None,
) -> Job:
    """Make a job with a fault of each cause, drawn by the job's own seed.

    Raises
    ------
    UsageError
        A job of this shape cannot have one of them, or a cause has no such kind.
    """
    rng, known = spec.random("fault"), list_cause_files()
    faults = []
    for cause in causes:
        fault = known[cause].draw(spec, rng, strength=strength, onset=onset, kind=kind)
        if fault is None:
            raise UsageError(
                "a job of this shape cannot have it; use more stages, dp ranks or microbatches", where=cause
            )
        faults.append(fault)
    return generate(spec, faults)


def write_fixtures(folder: Path) -> Iterator[Path]:
    """Write the fixtures that a folder lacks, and its README.

    Yields
    ------
    Path
        Each file that was made, or has changed.
    """
    fixtures = _list_fixtures(list_cause_files())
    for name, fixture in fixtures.items():
        path = folder / f"{name}.parquet"
        if not (path.exists() and name_truth(path).exists()):
            causes = [] if name == HEALTHY else [name]
            spec = dataclasses.replace(SMALL, seed=fixture.seed, job_id=name, **fixture.changes)
            job = make_job(spec, causes, strength=fixture.strength, onset=fixture.onset, kind=fixture.kind)
            write_job(job, path)
            yield path
    page, text = folder / "README.md", write_readme(folder)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
        yield page


def write_readme(folder: Path) -> str:
    """Give the text of the README of a folder that has all fixtures."""
    fixtures = _list_fixtures(list_cause_files())
    rows = [f"| `{name}` | {fixture.what} | {_recoverable(folder, name)} |\n" for name, fixture in fixtures.items()]
    commands = [f"{_command(folder.name, name, fixture)}\n" for name, fixture in fixtures.items()]
    head = _HEAD.format(**{size: getattr(SMALL, size) for size in _SIZES})
    return f"{head}{''.join(rows)}\n```sh\n{''.join(commands)}```\n\n{_TAIL}"


def _list_fixtures(files: Mapping[str, CauseFile]) -> dict[str, Fixture]:
    """List all fixtures by name, the healthy job first."""
    return {HEALTHY: _NO_FAULT} | {cause: file.fixture for cause, file in files.items()}


def _recoverable(folder: Path, name: str) -> str:
    """Read from its truth what mending a fixture's fault gives back."""
    truth = json.loads(name_truth(folder / f"{name}.parquet").read_text(encoding="utf-8"))
    return f"{truth['faults'][0]['recoverable']:.3f}" if truth["faults"] else "0"


def _command(folder: str, name: str, fixture: Fixture) -> str:
    """Write the command that makes a fixture again."""
    options = {
        "cause": None if name == HEALTHY else name,
        "strength": fixture.strength,
        "onset": fixture.onset,
        "kind": fixture.kind,
        "job-id": name,
        **{size: getattr(SMALL, size) for size in _SIZES},
        **{field.replace("_", "-"): value for field, value in fixture.changes.items()},
        "seed": fixture.seed,
    }
    words = [word for key, value in options.items() if value is not None for word in (f"--{key}", str(value))]
    return f"python -m diagnose.faults {folder}/{name}.parquet {shlex.join(words)}"
