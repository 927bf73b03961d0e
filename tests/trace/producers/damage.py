"""Damage to the files of any producer, the same for all: what follows is a diagnosis or one clear line, never anything else.

A test of another format calls `assert_survives` with a folder of its own, as `test_damage.py` does.
"""

import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from diagnose.errors import DiagnoseError
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job

#: Damaged copies of a format that are tried.
N_DAMAGED = 200
#: What no damage may take longer than; far beyond what any takes.
LIMIT_S = 60
#: Address space that reading a damaged copy of a small job may take more than before.
LIMIT_BYTES = 4 << 30
_HUGE = (
    "1e999",
    "-1e308",
    "99999999999999999999999999",
    "NaN",
    "null",
    '""',
    '"x"',
    "[]",
    "{}",
    "true",
    "-1",
    "0",
    "1e15",
)


def assert_survives(folder: Path, scratch: Path, *, seed: int, n: int = N_DAMAGED) -> tuple[int, int]:
    """Damage copies of a folder with one job in many ways, and diagnose each.

    Parameters
    ----------
    folder : Path
        Files of one small job.
    scratch : Path
        Where the copies go; one at a time.
    seed : int
    n : int
        Copies.

    Returns
    -------
    n_diagnosed, n_refused : int
        How many could still be read, and how many were refused in one line with exit code 3.
    """
    chance = random.Random(seed)
    diagnosed = refused = 0
    copy = scratch / "damaged"
    with _limited_memory():
        for _ in range(n):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            for file in copy.rglob("*"):
                file.chmod(0o755 if file.is_dir() else 0o644)
            how = chance.choice(DAMAGES)
            files = sorted(file for file in copy.rglob("*") if file.is_file())
            how(chance.choice(files), chance)
            try:
                with _limited_time():
                    diagnose_job(Request(copy))
                diagnosed += 1
                continue
            except DiagnoseError as error:
                line, code = str(error), error.exit_code
            assert code == 3, f"{how.__name__}: exit code {code}: {line}"
            assert "\n" not in line and len(line) < 1500, f"{how.__name__}: not one clear line: {line!r}"
            refused += 1
    return diagnosed, refused


def truncate(file: Path, chance: random.Random) -> None:
    """Cut a file off."""
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content) + 1)])


def empty(file: Path, _chance: random.Random) -> None:
    """Leave nothing in a file."""
    file.write_bytes(b"")


def remove(file: Path, _chance: random.Random) -> None:
    """Lose a file."""
    file.unlink()


def flip(file: Path, chance: random.Random) -> None:
    """Change some bytes."""
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 3, 30)) if content else 0):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(content))


def cut_out(file: Path, chance: random.Random) -> None:
    """Lose a block in the middle."""
    content = file.read_bytes()
    first = chance.randrange(len(content) + 1)
    file.write_bytes(content[:first] + content[first + chance.randrange(1, 2000) :])


def double(file: Path, chance: random.Random) -> None:
    """Repeat a block."""
    content = file.read_bytes()
    first = chance.randrange(len(content) + 1)
    file.write_bytes(content[: first + 500] + content[first:])


def replace_number(file: Path, chance: random.Random) -> None:
    """Put something huge, odd or of another type in the place of some numbers."""
    import re

    text = file.read_text("latin-1")
    places = [match.span() for match in re.finditer(r"-?\d+(?:\.\d+)?", text)]
    for first, last in sorted(chance.sample(places, min(len(places), chance.choice((1, 2, 20)))), reverse=True):
        text = text[:first] + chance.choice(_HUGE) + text[last:]
    file.write_text(text, "latin-1")


def nest(file: Path, chance: random.Random) -> None:
    """Nest something deeply in the middle of a file, or instead of it."""
    deep = chance.choice(("[", '{"a":')) * 200_000
    content = file.read_bytes()
    first = chance.randrange(len(content) + 1)
    file.write_bytes(chance.choice((deep.encode(), content[:first] + deep.encode() + content[first:])))


def change_json(file: Path, chance: random.Random) -> None:
    """Leave out, or change the type of, fields anywhere in a JSON file; of another one flip bytes."""
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return flip(file, chance)
    for _ in range(chance.choice((1, 5, 50))):
        _change_one(content, chance)
    return file.write_text(json.dumps(content)) and None


def _change_one(value: Any, chance: random.Random) -> None:
    """Walk to some place and damage it."""
    while isinstance(value, (dict, list)) and value:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, (dict, list)) or chance.random() < 0.2:
            if chance.random() < 0.5:
                del value[key]
            else:
                value[key] = chance.choice((None, "x", -1, 10**30, 1e300, [], {}, True, "7", 0))
            return
        value = inner


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    truncate,
    truncate,
    empty,
    remove,
    flip,
    flip,
    cut_out,
    double,
    replace_number,
    replace_number,
    nest,
    change_json,
    change_json,
)


class _limited_time:  # noqa: N801 - reads as a statement
    """Fail a test that takes far too long."""

    def __enter__(self) -> None:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            raise AssertionError(f"took more than {LIMIT_S} s")

        self._before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT_S)

    def __exit__(self, *_error: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._before)


class _limited_memory:  # noqa: N801 - as above
    """Fail a test that takes far too much memory: an allocation beyond it raises `MemoryError`, which is no `DiagnoseError`."""

    def __enter__(self) -> None:
        import resource

        self._before = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, self._before[1]))

    def __exit__(self, *_error: object) -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, self._before)
