"""Runs the commands that the pages show, each page in a folder of its own.

Enters: the Markdown of a page. Leaves: what each command of its `sh` and `console` blocks printed, and how it ended. The site is
built with these outputs, and `tests/docs/test_commands.py` runs the same commands.

In a `sh` block every line is a command. In a `console` block the lines that begin with `$` are commands; what they print is filled
in when the site is built. A line that ends with a backslash goes on.
"""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What names on the pages stand for: a file or folder of the repository.
STANDS_FOR = {
    "fixtures": "fixtures",
    "deploy": "deploy",
    "job.parquet": "fixtures/stage-imbalance.parquet",
    "before.parquet": "fixtures/worker-fault.parquet",
    "after.parquet": "fixtures/healthy.parquet",
    "traces/healthy.parquet": "fixtures/healthy.parquet",
    "traces/stage-imbalance.parquet": "fixtures/stage-imbalance.parquet",
    "traces/worker-fault.parquet": "fixtures/worker-fault.parquet",
}
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>sh|console)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
#: What only a shell can do.
_FOR_A_SHELL = re.compile(r"[|&;<>$()*~`]|diagnose triage")
#: The size of a terminal that nobody enlarged.
TERMINAL = {"COLUMNS": "80", "LINES": "24"}


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """What became of a command."""

    command: str
    output: str
    code: int


def list_commands(markdown: str) -> list[str]:
    """List the commands of a page, in its order."""
    return [command for block in _BLOCK.finditer(markdown) for command in _commands_of(block)]


def fill_outputs(markdown: str, ran: Sequence[Ran]) -> str:
    """Write below each command of the `console` blocks of a page what it printed; `ran` are all commands, in its order."""
    left = iter(ran)

    def fill(block: re.Match[str]) -> str:
        found = [next(left) for _ in _commands_of(block)]
        if block["language"] != "console":
            return block[0]
        shown = "".join(f"$ {one.command}\n{one.output}" for one in found)
        lines = "".join(f"{block['indent']}{line}".rstrip() + "\n" for line in shown.rstrip().splitlines())
        return f"{block['indent']}```console\n{lines}{block['indent']}```"

    return _BLOCK.sub(fill, markdown)


def has_outputs(markdown: str) -> bool:
    """Say whether a page shows what commands print."""
    return any(block["language"] == "console" for block in _BLOCK.finditer(markdown))


def _commands_of(block: re.Match[str]) -> Iterator[str]:
    """List the commands of a block, without comments and with lines that go on put together."""
    lines = block["body"].replace("\\\n", " ").splitlines()
    if block["language"] == "console":
        lines = [line.lstrip().removeprefix("$ ") for line in lines if line.lstrip().startswith("$ ")]
    for line in lines:
        command = re.sub(r"\s+", " ", re.sub(r"(^|\s)#\s.*", "", line)).strip()
        if command:
            yield command


class Shell:
    """A folder in which the commands of one page run one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, source in STANDS_FOR.items():
            self.put(name, ROOT / source)
        tools = folder / ".bin"
        tools.mkdir(parents=True)
        (tools / "diagnose").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m diagnose "$@"\n')
        (tools / "diagnose").chmod(0o755)
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("DIAGNOSE_", "COV_"))}
        self._environment = (
            keep
            | TERMINAL
            | {
                "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
                "PYTHONPATH": str(ROOT),
                "NO_COLOR": "1",
            }
        )

    def put(self, name: str, source: Path) -> None:
        """Copy a file or folder to where the page has it."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.json", "*.md"), dirs_exist_ok=True)
        else:
            shutil.copy(source, place)

    def run(self, command: str) -> Ran:
        """Run a command and give what it printed, errors included."""
        found = self._run_here(command) if self._is_simple(command) else self._run_in_shell(command)
        return dataclasses.replace(
            found, output=found.output.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        )

    def run_all(self, markdown: str) -> list[Ran]:
        """Run all commands of a page, in its order."""
        return [self.run(command) for command in list_commands(markdown)]

    @staticmethod
    def _is_simple(command: str) -> bool:
        """Say whether a command is one of ours that needs no shell, and so no process of its own."""
        return command.startswith("diagnose ") and not _FOR_A_SHELL.search(command)

    def _run_here(self, command: str) -> Ran:
        """Run one of our commands in this process, which saves its start."""
        from diagnose.cli.main import main

        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with (
            contextlib.chdir(self.folder),
            _environment(self._environment),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            code = main(shlex.split(command)[1:])
            output.flush()
        return Ran(command, output.buffer.getvalue().decode(), code)

    def _run_in_shell(self, command: str) -> Ran:
        """Run a command in bash."""
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        return Ran(command, ended.stdout, ended.returncode)


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Have these environment variables for a while, and no others."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(wanted)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
