"""`diagnose bundle`: a job in one zip, for somebody else to diagnose.

Enters: folders and files. Leaves: a zip that appears when all is written, and on standard error what is not in it.
"""

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diagnose.cli.drawings import check_folder_of
from diagnose.cli.options import quiet_option
from diagnose.cli.output import count, is_terminal, print_message, write_bytes
from diagnose.cli.progress import StageDisplay
from diagnose.errors import DiagnoseError, UsageError, explain_unwritten, name_some
from diagnose.files import appearing

if TYPE_CHECKING:
    from diagnose.bundle.pack import Bundle

#: Files named of each reason for which some are left out.
_NAMED = 3
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def _read_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Read an amount of bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size such as 500M or 2G.")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


@click.command("bundle")
@click.argument("sources", metavar="DIR|FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", required=True, help="Zip to write.")
@click.option(
    "--anonymous",
    is_flag=True,
    help="Give hosts, users, addresses and paths other names, the same in every file.",
)
@click.option("--names", metavar="FILE", type=click.Path(), help="With --anonymous: write there what stands for what.")
@click.option("--max-size", metavar="SIZE", callback=_read_size, help="Leave out larger files  [default: 1G]")
@click.option("--no-diagnosis", is_flag=True, help="Leave out the diagnosis, which takes as long as `diagnose` does.")
@quiet_option
def bundle_command(
    *,
    sources: tuple[Path, ...],
    output: str,
    anonymous: bool,
    names: str | None,
    max_size: int | None,
    no_diagnosis: bool,
    quiet: bool,
) -> int:
    """Collect the files of a job in a zip that `diagnose` reads, for somebody else to diagnose it.

    DIR|FILE... are of one job: its folder, or its traces, logs, dumps of collectives and telemetry. Tokens, keys and passwords
    are masked in every file. Weights, data, code, keys and what is not known are left out, and listed.
    """
    from diagnose.bundle.pack import MAX_BYTES, write_bundle

    _check(sources, output, names, anonymous=anonymous)
    target = Path(os.path.realpath(output))
    with StageDisplay(str(sources[0]), shown=not quiet and is_terminal(sys.stderr)) as progress:
        try:
            with appearing(target) as beside:
                made = write_bundle(
                    sources,
                    beside,
                    title=target.name.removesuffix(".zip") or "job",
                    anonymous=anonymous,
                    max_bytes=MAX_BYTES if max_size is None else max_size,
                    excluded={target} if names is None else {target, Path(os.path.realpath(names))},
                    diagnosis=None
                    if no_diagnosis
                    else lambda job, location: _diagnose(beside, job, location, quiet=quiet),
                    report=progress,
                )
                if names is not None:
                    _write_names(names, made)
        except OSError as error:
            raise explain_unwritten(f"-o: cannot write {output}", error) from None
    if not quiet:
        _describe(output, target.stat().st_size, made)
    return 0


def _check(sources: tuple[Path, ...], output: str, names: str | None, *, anonymous: bool) -> None:
    """Refuse what makes no sense, before any work."""
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source} does not exist; expected a folder, or files of one job")
    check_folder_of("-o", output)
    target = Path(os.path.realpath(output))
    if target.exists() and not target.is_file():
        raise UsageError(f"-o: {output} is no file; expected the name of a zip")
    written = {"-o": target}
    if names is not None:
        if not anonymous:
            raise UsageError("--names lists what --anonymous replaces: give both")
        check_folder_of("--names", names)
        written["--names"] = Path(os.path.realpath(names))
        if written["--names"] == target:
            raise UsageError(f"--names: {names} is the zip; name another file")
    for option, path in written.items():
        if path in {Path(os.path.realpath(source)) for source in sources}:
            raise UsageError(f"{option}: {path} is a file to collect; name another one")


def _diagnose(archive: Path, job: str, location: str, *, quiet: bool) -> str | None:
    """Diagnose the job as it is in the zip, which shows that it can be read there; None where it cannot be diagnosed."""
    import tempfile

    from diagnose.model.request import Request
    from diagnose.pipeline import diagnose_job
    from diagnose.report import json_lines
    from diagnose.trace.zips import unpack

    try:
        with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
            unpack(archive, Path(folder), name=archive.name)
            found = diagnose_job(Request(Path(folder, job), name=job, location=location))
    except DiagnoseError as error:
        if not quiet:
            print_message("warning", f"the bundle has no diagnosis: {error}")
        return None
    return f"{json_lines.render(found)}\n"


def _write_names(path: str, made: "Bundle") -> None:
    """Write what stands for what, for the eyes of who made the bundle."""
    import json

    write_bytes("--names", path, (json.dumps(made.names, indent=1) + "\n").encode())


def _describe(output: str, n_bytes: int, made: "Bundle") -> None:
    """Say what is in the zip, and what is not."""
    kinds = Counter(kind for _, kind in made.files)
    listed = ", ".join(f"{n} x {kind}" for kind, n in kinds.items())
    print_message("note", f"{output}: {count(len(made.files), 'file')} ({listed}), {n_bytes / 2**20:.3g} MiB")
    if made.masked:
        listed = ", ".join(f"{n} x {kind}" for kind, n in made.masked.items())
        print_message("note", f"masked {count(sum(made.masked.values()), 'secret')}: {listed}")
    if made.renamed:
        print_message("note", "replaced " + ", ".join(f"{n} {kind}" for kind, n in made.renamed.items()))
    reasons: dict[str, list[str]] = {}
    for each in made.left_out:
        reasons.setdefault(each.reason, []).append(each.path)
    for reason, paths in reasons.items():
        print_message("note", f"left out {name_some(paths, _NAMED)}: {reason}")
