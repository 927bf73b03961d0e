"""`diagnose pack`: files it reads, its page and its JSON, and the errors it ends with."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.errors import TraceError
from diagnose.packing.read import read_lengths
from tests.packing.streams import draw_lengths

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [int(n) for n in draw_lengths(1_500, 0)]
SMALL = ["--window", "8192", "--batches", "8"]


def write(path: Path, **columns: object) -> Path:
    """Write a Parquet file."""
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give a file of lengths."""
    return write(tmp_path / "lengths.parquet", length=pa.array(LENGTHS), name=pa.array(["x"] * len(LENGTHS)))


def packed(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    """Run the command and read its JSON."""
    assert main(["pack", *args, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.endswith("\n") and out.count("\n") == 1
    return json.loads(out)


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    """Run the command and give its one line of error."""
    assert main(["pack", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("diagnose: error: ") and err.count("\n") == 1
    return err


def test_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page names every packer, fits into its width, and holds no escape sequence."""
    for width in (40, 60, 100):
        assert main(["pack", str(file), *SMALL, "--width", str(width)]) == 0
        out, err = capsys.readouterr()
        assert err == "" and "\x1b" not in out
        assert max(map(len, out.splitlines())) <= width
        words = " ".join(out.split())
        for said in ("imbalance", "original", "greedy", "balanced", "memory"):
            assert said in words
    assert "queues at 2K, 4K, 6K" in out
    assert "exact" not in out


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has a schema, what was packed, and the figures of every packer."""
    found = packed(capsys, str(file), *SMALL, "--dp", "2", "--microbatches", "3", "--queues", "2000,6000")
    assert found["schema"] == "diagnose-pack/1"
    assert (found["batches"], found["dp"], found["microbatches"], found["window"]) == (8, 2, 3, 8192)
    assert found["max_tokens"] == 9011
    packers = {(p["packer"], p["batches_together"]): p for p in found["packers"]}
    assert list(packers) == [
        ("original", 1),
        ("greedy", 1),
        ("greedy", 2),
        ("greedy", 4),
        ("greedy", 8),
        ("queues", 1),
        ("balanced", 1),
    ]
    assert packers["queues", 1]["queues"] == [2000, 6000]
    assert packers["balanced", 1]["imbalance"] < packers["original", 1]["imbalance"]
    assert packers["original", 1]["delay"] == 0
    assert all(p["tokens_max"] <= 9011 for p in found["packers"])


def test_exact(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--exact` adds the solver and says what is proven; whatever the solver prints stays out of the result."""
    found = packed(capfd, str(file), "--window", "8192", "--batches", "4", "--exact", "5")
    exact = [p for p in found["packers"] if p["packer"] == "exact"]
    assert [(p["batches_together"], p["problems"]) for p in exact] == [(1, 4), (2, 2), (4, 1)]
    assert all(0 <= p["proven"] <= p["problems"] for p in exact)
    assert main(["pack", str(file), "--window", "8192", "--batches", "4", "--exact", "5"]) == 0
    assert "proven optimal" in capfd.readouterr().out


def test_costs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cost is given as two numbers or as one; both at once, or nonsense, are refused."""
    for option in (["--cost", "2,1e-4"], ["--cost", "2.0,0.0001"]):
        assert packed(capsys, str(file), *SMALL, *option)["cost"] == {"linear": 2.0, "quadratic": 1e-4, "fixed": 0.0}
    assert packed(capsys, str(file), *SMALL, "--cost-quadratic", "1e-4")["cost"]["linear"] == 1.0
    assert "give one of them" in fails(capsys, 2, str(file), "--cost", "1,1", "--cost-quadratic", "1")
    for bad in ("1", "a,b", "1,2,3"):
        assert "not two numbers" in fails(capsys, 2, str(file), "--cost", bad)
    for bad in ("-1,1", "nan,1", "0,0", "1,inf"):
        assert "cost" in fails(capsys, 2, str(file), "--cost", bad)


@pytest.mark.parametrize(
    "options",
    [
        ["--window", "0"],
        ["--window", "x"],
        ["--memory", "0.9"],
        ["--memory", "nan"],
        ["--queues", "9,3"],
        ["--queues", "a"],
        ["--queues", "-5"],
        ["--exact", "0"],
        ["--exact", "nan"],
        ["--batches", "0"],
        ["--dp", "0"],
        ["--microbatches", "0"],
        ["--column", "nothing"],
        ["--column", "name"],
        ["--window", "100000000"],
        ["--dp", "100000", "--microbatches", "10000"],
    ],
)
def test_bad_options(file: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    """An option that makes no sense is one line and exit code 2."""
    fails(capsys, 2, str(file), *options)


def test_output_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o` writes a file and nothing else; never the file to read."""
    target = tmp_path / "out.json"
    assert main(["pack", str(file), *SMALL, "--format", "json", "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(target.read_text())["source"] == str(file)
    assert "file to read" in fails(capsys, 2, str(file), "-o", str(file))


# Files


def test_columns(tmp_path: Path) -> None:
    """Lists, named columns and the only column of whole numbers are found; lists are read in order."""
    path = tmp_path / "a.parquet"
    write(path, doc_lengths=pa.array([[3, 4], [], None, [5]], pa.list_(pa.int32())), length=pa.array([1, 1, 1, 1]))
    assert read_lengths(path).tolist() == [3, 4, 5]
    assert read_lengths(path, column="length").tolist() == [1, 1, 1, 1]
    write(path, tokens=pa.array([7, 8], pa.uint16()), text=["a", "b"])
    assert read_lengths(path).tolist() == [7, 8]


def test_trace(tmp_path: Path) -> None:
    """Of a trace each microbatch counts once: not again for later stages or the backward computation."""
    rows = [(kind, stage, mb) for kind in ("forward-compute", "backward-compute") for stage in (0, 1) for mb in (0, 1)]
    path = write(
        tmp_path / "t.parquet",
        optype=pa.array([kind for kind, _, _ in rows]).dictionary_encode(),
        stage=pa.array([stage for _, stage, _ in rows]),
        doc_lengths=pa.array([[10 + mb, 20 + mb] for _, _, mb in rows], pa.list_(pa.int32())),
    )
    assert read_lengths(path).tolist() == [10, 20, 11, 21]


@pytest.mark.parametrize(
    ("name", "text", "lengths"),
    [
        ("a.txt", "5\n\n6\n7\n", [5, 6, 7]),
        ("a.csv", "\ufefflength,name\n5,x\n6,y\n", [5, 6]),
        ("a.csv", "whatever\n 5 \n", [5]),
        ("A.CSV", "5\r\n6\r\n", [5, 6]),
    ],
)
def test_text(tmp_path: Path, name: str, text: str, lengths: list[int]) -> None:
    """Text has one length a line, or columns with a header."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    assert read_lengths(path).tolist() == lengths


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"5\nx\n", "a.txt:2: found 'x'; expected a whole number"),
        ("a.txt", b"5\n-1\n", "document 2 has -1 tokens"),
        ("a.txt", b"5\n0\n", "document 2 has 0 tokens"),
        ("a.txt", b"", "holds no document"),
        ("a.txt", b"length\n", "holds no document"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.txt", b"9999999999999999999999\n", "holds no document"),
        ("a.txt", b"5\n9999999999999999999999\n", "expected a whole number"),
        ("a.csv", b"a,b\n1,2\n", "2 columns could be lengths"),
        ("a.csv", b"1,2\n3,4\n", "2 columns could be lengths"),
        ("a.csv", b"length,b\n1\n", "expected 1 to"),
        ("a.parquet", b"PAR1 nonsense PAR1", "cannot be read as Parquet"),
        ("a.parquet", b"", "cannot be read as Parquet"),
        ("a.csv", b"length\n\x1b[31m\n", "\\x1b[31m"),
    ],
)
def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, said: str) -> None:
    """A file that holds no lengths is one line, without anything a terminal would obey, and exit code 3."""
    path = tmp_path / name
    path.write_bytes(content)
    if said == "expected 1 to":  # a short row is no error where the column is there
        assert read_lengths(path).tolist() == [1]
        return
    err = fails(capsys, 3, str(path))
    assert said in err and "\x1b" not in err


def test_bad_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No column, several columns, nulls in lists, lengths out of range: exit code 3; too few tokens: 2."""
    path = tmp_path / "a.parquet"
    write(path, a=["x"])
    assert "0 columns could be lengths" in fails(capsys, 3, str(path))
    write(path, a=[1], b=[1])
    assert "2 columns could be lengths" in fails(capsys, 3, str(path))
    write(path, lengths=pa.array([[1, None]], pa.list_(pa.int64())))
    assert "missing lengths" in fails(capsys, 3, str(path))
    write(path, lengths=pa.array([2**63 + 1], pa.uint64()))
    fails(capsys, 3, str(path))
    write(path, lengths=pa.array([], pa.int64()))
    assert "holds no document" in fails(capsys, 3, str(path))
    write(path, lengths=pa.array([5]))
    assert "do not fill a global batch" in fails(capsys, 2, str(path))


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there, or a folder, is exit code 3."""
    assert "no such file" in fails(capsys, 3, str(tmp_path / "nothing.parquet"))
    assert "folder" in fails(capsys, 3, str(tmp_path))
    with pytest.raises(TraceError):
        read_lengths(tmp_path / "nothing.csv")


def test_names_from_the_file_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file name or column with control characters shows them as escapes."""
    path = write(tmp_path / "a\x1b[31m.parquet", length=pa.array(LENGTHS))
    assert main(["pack", str(path), *SMALL]) == 0
    assert "\x1b" not in capsys.readouterr().out
    write(path, **{"\x1b[31m": pa.array(LENGTHS), "b": pa.array(LENGTHS)})
    assert "\x1b" not in fails(capsys, 2, str(path), "--column", "c")


def test_long_documents_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Documents longer than the window become several, and are counted."""
    path = write(tmp_path / "a.parquet", length=np.full(20, 1_000))
    found = packed(capsys, str(path), "--window", "300")
    assert found["documents_cut"] == 20
    assert found["packers"][0]["memory_ratio"] == 1.0


def test_as_a_program(file: Path) -> None:
    """The command runs as users run it, and its help answers."""
    command = [sys.executable, "-m", "diagnose", "pack"]
    done = subprocess.run([*command, str(file), *SMALL], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "balanced" in done.stdout and done.stderr == ""
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "--queues" in done.stdout


def test_same_input_same_bytes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in the output differs from run to run, unless times are asked for."""
    first, second = (packed(capsys, str(file), *SMALL) for _ in range(2))
    assert first == second
    assert "batch_s" not in first["packers"][0]
    assert packed(capsys, str(file), *SMALL, "--times")["packers"][0]["batch_s"] > 0
