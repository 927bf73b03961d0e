"""`diagnose run`: a training command as it is, recorded, and diagnosed at its end.

Enters: a command. Leaves: what the command leaves, its exit code, a folder with one trace a rank, and a page.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click

from diagnose.cli.jobs import jobs_command
from diagnose.cli.options import judging_options, quiet_option
from diagnose.cli.output import print_message, write_lines, write_stdout
from diagnose.errors import DiagnoseError, UsageError

#: Passed on to the command. Ctrl-C at a terminal goes to both anyway.
_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: What launchers call the number of a process, or of a node, that runs this command: only the first diagnoses.
_NUMBERS = ("RANK", "NODE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
#: As a shell says that a command was not found, or was not to be executed.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


@click.command(
    "run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, no_args_is_help=False
)
@click.argument("command", metavar="[--] COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Record into this folder, which all ranks share; traces/NAME of the script when left out.",
)
@click.option(
    "--sample",
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.1,
    show_default=True,
    help="Record this part of the steps.",
)
@click.option("--no-report", is_flag=True, help="Do not diagnose the job when it has ended.")
@click.option("--env", is_flag=True, help="Print the environment to set, for the shell, and run nothing.")
@judging_options
@quiet_option
def run_command(
    command: tuple[str, ...],
    folder: Path | None,
    sample: float,
    *,
    no_report: bool,
    env: bool,
    **given: Any,
) -> int:
    """Run a training COMMAND as it is, record each of its ranks, and print the diagnosis at its end.

    The training script is not changed: each Python process of the command that trains with torch records itself. Signals are
    passed on, and the exit code is the command's.

    diagnose run -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    """
    if not command and not env:
        raise UsageError("no command given: `diagnose run -- torchrun train.py` runs and records one")
    folder = folder or Path("traces", _name_of(command))
    told = {"DIAGNOSE_RECORD": str(folder.absolute()), "DIAGNOSE_SAMPLE": f"{sample:g}", "PYTHONPATH": _python_path()}
    if env:
        write_lines("".join(f"export {name}={shlex.quote(value)}\n" for name, value in told.items()).rstrip("\n"))
        return 0
    made = _make(folder)
    before = _list_files(folder)
    code = _run(command, os.environ | told)
    if _is_first():
        if not no_report:
            _report(folder, _list_files(folder) - before, code, given)
        for path in made:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
    return code


def _name_of(command: tuple[str, ...]) -> str:
    """Name the job: as its script, else as its command."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    return scripts[0] if scripts else Path(command[0]).name if command else "job"


def _python_path() -> str:
    """Put the folder whose `sitecustomize` records before what the user has."""
    from diagnose.record import unchanged

    return os.pathsep.join(filter(None, (str(Path(unchanged.__file__).parent), os.environ.get("PYTHONPATH"))))


def _make(folder: Path) -> list[Path]:
    """Make the folder, or refuse before anything runs for hours; give what was not there before, the innermost first."""
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o: cannot make the folder {folder}: {error.strerror}") from None
    return made


def _run(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the command to its end, passing signals on, and give its exit code as a shell does."""
    sys.stdout.flush()
    try:
        child = subprocess.Popen(command, env=environment)  # noqa: S603 - the user's own command
    except OSError as error:
        print_message("error", f"cannot run {command[0]}: {error.strerror}")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    with _passing_on(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_on(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass signals on to a process; those that the terminal sends to both are only waited out."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _is_in_foreground():
            child.send_signal(number)

    before = {}
    for name in _SIGNALS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Say whether a terminal sends Ctrl-C to this process, and so to the command that it runs."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _is_first() -> bool:
    """Say whether this is the only process, or the first, of those that a launcher started."""
    return all(os.environ.get(name, "0") == "0" for name in _NUMBERS)


def _list_files(folder: Path) -> set[Path]:
    """List what ranks have recorded in a folder; each start of a job has files of its own."""
    return set(folder.rglob("rank-*.parquet"))


def _report(folder: Path, files: set[Path], code: int, given: dict[str, Any]) -> None:
    """Print the page of what was recorded, and leave it in the folder; whatever happens, the exit code is the command's."""
    if not files and code:
        print_message(
            "warning", f"nothing was recorded in {folder}: the command ended with exit code {code} before it trained"
        )
        return
    if not files:
        print_message(
            "warning",
            f"nothing was recorded in {folder}: no process of the command made one of torch's optimizers, or all of them run with "
            "a PYTHONPATH of their own (`diagnose run --env` says what must be in it) or with `python -I`",
        )
        return
    page = {"html": str(folder / "diagnosis.html"), "json": str(folder / "diagnosis.json")}
    from diagnose.record.report import wait_for_others

    wait_for_others(max(files))
    write_stdout("\n")
    try:
        click.get_current_context().invoke(jobs_command, jobs=(str(folder),), **page, **given)
    except DiagnoseError as error:
        print_message("error", str(error))
