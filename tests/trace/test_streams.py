"""What never ends is refused at a bound: devices, pipes, standard input, and a log beside a trace."""

import io
import itertools
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose.cli.main import main
from diagnose.trace import streams
from tests.fixture_jobs import FIXTURES

JOB = FIXTURES["healthy"]
ENDLESS = Path("/dev/zero")


class Endless(io.RawIOBase):
    """Gives the same lines for ever."""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill what there is."""
        buffer[:] = bytes(itertools.islice(itertools.cycle(b"{}\n"), len(buffer)))
        return len(buffer)


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bound be 4 MiB."""
    monkeypatch.setattr(streams, "MAX_BYTES", 4 << 20)


def test_a_socket_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be opened is refused in a line."""
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("job")
        assert main(["job"]) == 3
    assert capsys.readouterr().err.startswith("diagnose: error: job: cannot be read: ")


@pytest.mark.skipif(not ENDLESS.is_char_device(), reason="no /dev/zero here")
@pytest.mark.parametrize(
    "args", [[str(ENDLESS)], [str(JOB), "--log", str(ENDLESS)], ["convert", str(ENDLESS), "-o", "x"]]
)
def test_a_device(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One line, and the exit code of an input that cannot be read."""
    monkeypatch.chdir(tmp_path)
    assert main(args) == 3
    err = capsys.readouterr().err
    assert "gives more than 4 MiB, and may never end; expected one job" in err and err.count("\n") == 1


@pytest.mark.parametrize("args", [["-"], ["convert", "-", "-o", "x"]])
def test_standard_input(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """So for what is piped in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert main(args) == 3
    assert "standard input: gives more than 4 MiB" in capsys.readouterr().err


def test_an_open_file() -> None:
    """So for a file that a program opened, and that cannot seek."""
    with pytest.raises(diagnose.TraceError, match="gives more than 4 MiB"):
        diagnose.diagnose(io.BufferedReader(Endless()))


def test_a_pipe_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends below the bound is read as ever."""
    found = streams.read_stream(io.BytesIO(JOB.read_bytes()), name="x")
    assert found.read() == JOB.read_bytes()
