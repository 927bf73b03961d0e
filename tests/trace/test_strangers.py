"""Files that are no traces: each is named by its content, with what it could tell and what to record instead."""

import gzip
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from diagnose.cli.main import main
from diagnose.errors import TraceError
from diagnose.trace.load import load_trace
from tests.trace.foreign_files import FOREIGN, contents, write
from tests.trace.producers.pipelines import Pipeline, write_event_timer, write_megascan, write_primus

#: What is read as a log is no stranger where it is alone.
FILES = [entry for entry in contents() if entry[0] != "TensorBoard events"]
FIXTURE = Path("fixtures/healthy.parquet").resolve()


def refusal(path: Path) -> str:
    """Give the sentence with which a path is refused."""
    with pytest.raises(TraceError) as raised:
        load_trace(path)
    (line,) = str(raised.value).splitlines()
    return line


def test_there_are_many_kinds() -> None:
    """Forty kinds are shown, and each is called differently."""
    assert len(FOREIGN) >= 40


@pytest.mark.parametrize(("called", "name", "content"), FILES, ids=[name for _, name, _ in FILES])
def test_each_is_named(called: str, name: str, content: bytes, tmp_path: Path) -> None:
    """A file is told what it is, alone under its own name and under another, and in a folder with its name."""
    file = write(tmp_path / "alone", name, content)
    said = refusal(file)
    assert said.startswith(f"{file}: is no trace but ")
    assert called in said.split(", which ")[0]
    if called not in ("Nsight Systems report", "OTF2 archive"):  # told by the ends of their names alone
        other = write(tmp_path / "other", "job", content)
        assert refusal(other).removeprefix(str(other)) == said.removeprefix(str(file))
        with pytest.raises(TraceError, match="standard input: is no trace but "):
            load_trace(io.BytesIO(content), name="standard input")
    write(tmp_path / "folder" / "logs", name, content)
    in_folder = refusal(tmp_path / "folder")
    assert in_folder.startswith(f"{tmp_path / 'folder'}: holds no trace: 1 x ")
    assert called in in_folder
    assert f"(logs/{name})" in in_folder


def test_a_folder_of_several_kinds_names_all(tmp_path: Path) -> None:
    """The most telling kind comes first, with what to do; a file that nobody knows changes nothing."""
    for called in ("image", "NCCL log", "PyTorch Flight Recorder dump"):
        for name, content in FOREIGN[called]:
            write(tmp_path, name, content() if callable(content) else content)
    write(tmp_path, "unknown.bin", b"\x01\x02\x03")
    said = refusal(tmp_path)
    assert (
        "3 x PyTorch Flight Recorder dump (nccl_trace_rank_0, nccl_trace_rank_1, ...); 1 x NCCL log (nccl.log); 2 x image"
        in said
    )
    assert said.index("diagnose.record.Recorder") > said.index("image")


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"\n  \n"])
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, content: bytes) -> None:
    """Nothing in it, or nothing but zeros, as a full disk leaves it."""
    assert "is empty; expected a trace" in refusal(write(tmp_path, "rank0.json", content))
    assert "holds 1 empty files" in refusal(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "step 1 took 2.5\nstep 2 took 2.4\n",
        "Übung macht den Meister\n",
        "# Notes\n\nSee `[RANK1] F @ 1 (ms) to 2 (ms)`.\n",
    ],
)
def test_text_is_said_to_be_text(tmp_path: Path, content: str) -> None:
    """Text of no known kind, whatever it quotes, says what to record; bytes that are no text are not called so."""
    file = write(tmp_path / "job", "notes", content.encode())
    said = refusal(file)
    assert (
        said.startswith(f"{file}: is text in which no known tool wrote operations")
        and "diagnose.record.Recorder" in said
    )
    assert "holds 1 files of text" in refusal(tmp_path / "job")
    write(tmp_path / "job", "x.bin", b"\x01\x02\x03")
    assert "is neither Parquet nor" in refusal(tmp_path / "job")


def test_our_own_readme_is_no_log(tmp_path: Path) -> None:
    """It quotes a line of each format that can be read, and is none of them."""
    assert "is text in which no known tool" in refusal(Path(shutil.copy(Path("README.md").resolve(), tmp_path)))


def test_what_lies_beside_traces_is_named(tmp_path: Path) -> None:
    """A trace beside other files is read, and a warning names these."""
    shutil.copy(FIXTURE, tmp_path / "trace.parquet")
    for called in ("NCCL log", "TensorBoard events"):
        for name, content in FOREIGN[called]:
            write(tmp_path, name, content() if callable(content) else content)
    (warning,) = [w for w in load_trace(tmp_path).warnings if "are no traces" in w]
    assert warning.endswith(
        "not read: 1 x TensorBoard events (events.out.tfevents.1700000000.node1.12.0); 1 x NCCL log (nccl.log)"
    )


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl", "trace.feather"])
def test_how_to_write_a_table_as_parquet(name: str, tmp_path: Path) -> None:
    """The command that is shown makes a trace of the rows."""
    content = next(content for called, n, content in FILES if n == name and called.endswith("of a trace"))
    said = refusal(write(tmp_path, name, content))
    command = said[said.index("python -c") :].replace("FILE", name).replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert load_trace(tmp_path / "trace.parquet").n_ops == 16


def test_what_a_producer_reads_stays_read(tmp_path: Path) -> None:
    """Files of a known producer are read whatever lies beside them."""
    folder = write_event_timer(tmp_path / "job", Pipeline(2, 4, 4).run())
    expected = load_trace(folder).n_ops
    for _, name, content in FILES:
        write(folder / "others", name, content)
    assert load_trace(folder).n_ops == expected


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    """A pickle that would write a file when it is read writes none."""
    mark = tmp_path / "mark"
    content = b"\x80\x02cpathlib\nPath\n(X" + len(str(mark)).to_bytes(4, "little") + str(mark).encode() + b"tR."
    content = content.replace(b"cpathlib\nPath\n", b"cos\nmkdir\n")
    assert "a Python pickle" in refusal(write(tmp_path, "x", content))
    assert not mark.exists()


def test_a_refusal_ends_with_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line says it in a line, and goes on with the next job."""
    (name, content), _ = FOREIGN["Nsight Systems export"]
    write(tmp_path, name, content() if callable(content) else content)
    assert main([str(tmp_path / name)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"diagnose: error: {tmp_path / name}: is no trace but an Nsight Systems export (SQLite), which has"
    )
    assert main([str(tmp_path / name), str(FIXTURE), "--format", "json"]) != 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "healthy"


def _damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut a file off, change some of its bytes, or put another one behind it."""
    kind = rng.integers(5)
    if kind == 0:
        return content[: int(rng.integers(0, len(content) + 1))]
    if kind == 1 and content:
        changed = bytearray(content)
        for at in rng.integers(0, len(content), 8).tolist():
            changed[at] = int(rng.integers(256))
        return bytes(changed)
    if kind == 2:
        return content + FILES[int(rng.integers(len(FILES)))][2]
    if kind == 3:
        return gzip.compress(content)
    return content


def _mix(folder: Path, rng: np.random.Generator, traces: Sequence[Path]) -> None:
    """Fill a folder with files of all kinds, damaged or not, some in folders within it, and now and then a trace."""
    for n in range(int(rng.integers(1, 6))):
        _, name, content = FILES[int(rng.integers(len(FILES)))]
        if rng.random() < 0.35:
            file = traces[int(rng.integers(len(traces)))]
            name, content = file.name, file.read_bytes()
        if rng.random() < 0.5:
            content = _damage(content, rng)
        place = folder / ("", "logs", "run 1/ünicode")[int(rng.integers(3))]
        write(place, name if rng.random() < 0.5 else f"{n}{Path(name).suffix}", content)


@pytest.mark.parametrize("part", range(30))
def test_mixed_folders(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten folders of mixed files each: an answer or an error in a line, and never an internal one."""
    spans = Pipeline(2, 4, 5).run()
    traces = [
        FIXTURE,
        *write_event_timer(tmp_path / "timer", spans).iterdir(),
        *write_primus(tmp_path / "primus", spans).iterdir(),
    ]
    traces += list(write_megascan(tmp_path / "scan", spans).iterdir())
    rng = np.random.default_rng(part)
    for n in range(10):
        folder = tmp_path / f"mix{n}"
        _mix(folder, rng, traces)
        code = main([str(folder), "--format", "json", "--quiet"])
        said = capsys.readouterr()
        listed = sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))
        assert code in (0, 3), (listed, said.err)
        assert len(said.err.splitlines()) == (1 if code else 0), (listed, said.err)
        assert "internal error" not in said.err
