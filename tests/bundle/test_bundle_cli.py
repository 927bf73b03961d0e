"""`diagnose bundle`: from a folder to a zip, and from the zip to the same answer."""

import gzip
import json
import os
import pickle
import stat
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from tests.trace.foreign_files import _flight_record
from tests.trace.producers.megatron_lines import noisy, run

ROOT = Path(__file__).resolve().parents[2]
HOSTS = [f"gpu-{n}.acme.net" for n in (11, 2, 30, 4)]


def run_main(*arguments: str | Path) -> int:
    """Run the command line."""
    return main([str(argument) for argument in arguments])


def diagnosed(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Give the JSON of a diagnosis."""
    capsys.readouterr()
    assert run_main(path, "--format", "json") == 0
    return capsys.readouterr().out


def read(path: Path, name: str) -> bytes:
    """Read a file of a zip."""
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Make a job of four traces, one a host, with metadata beside."""
    folder = tmp_path / "traces" / "acme-7"
    folder.mkdir(parents=True)
    rows = pq.read_table(ROOT / "fixtures" / "worker-fault.parquet")
    for dp, host in enumerate(HOSTS):
        part = rows.filter(pc.equal(rows["dp_rank"], dp))
        pq.write_table(part.append_column("host", pa.array([host] * len(part))), folder / f"rank-{dp}.parquet")
    (tmp_path / "traces" / "acme-7.yaml").write_text("gpu_type: H100\nowner: robert\n")
    return folder


@pytest.fixture
def full(job: Path) -> Path:
    """Put beside the traces what lies in the folders of real jobs."""
    (job / "gpu-2.log").write_text(
        "gpu-2:1:2 [0] NCCL INFO ok /home/robert/x/train.py\nHF_TOKEN=hf_abcdefghijklmnopqrst\n"
    )
    (job / "out.txt.gz").write_bytes(gzip.compress(b"password=hunter22 on gpu-30 by robert\n" * 9))
    (job / "nccl_trace_rank_3").write_bytes(pickle.dumps(_flight_record(3) | {"at": "/home/robert/z.py"}, protocol=4))
    for name, content in {".env": b"A=b", "prod.env": b"A=b", "id_rsa": b"x", "weights.safetensors": b"x" * 99}.items():
        (job / name).write_bytes(content)
    (job / "train.py").write_text("import torch\n")
    (job / "passwd.log").symlink_to("/etc/passwd")
    os.mkfifo(job / "pipe")
    pq.write_table(pa.table({"text": ["a document"]}), job / "data.parquet")
    return job


def test_the_same_answer(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle of traces gives the diagnosis of their folder to the byte, and has it inside."""
    assert run_main("bundle", job, "-o", tmp_path / "b.zip") == 0
    assert "5 files (1 x metadata, 4 x trace)" in capsys.readouterr().err
    expected = diagnosed(job, capsys)
    assert diagnosed(tmp_path / "b.zip", capsys) == expected
    assert json.loads(read(tmp_path / "b.zip", "diagnosis.json"))["causes"] == json.loads(expected)["causes"]


def test_the_same_answer_under_other_names(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An anonymous bundle gives the same diagnosis but for names, and nothing in it has an old one."""
    path, names = tmp_path / "b.zip", tmp_path / "names.json"
    assert run_main("bundle", job, "-o", path, "--anonymous", "--names", names) == 0
    found, expected = diagnosed(path, capsys), diagnosed(job, capsys)
    assert "acme" not in found and "robert" not in found
    for new, old in json.loads(names.read_text()).items():
        found = found.replace(new, old)
    found, expected = json.loads(found), json.loads(expected)
    for document in (found, expected):
        for cause in document["causes"]:
            cause.pop("fingerprint")  # of the name of the job
    assert found == expected
    with zipfile.ZipFile(path) as archive:
        texts = b"".join(archive.read(name) for name in archive.namelist() if not name.endswith(".parquet"))
        assert b"acme" not in texts and b"robert" not in texts and b"acme" not in "".join(archive.namelist()).encode()
        (tmp_path / "r").write_bytes(archive.read("job/rank-1.parquet"))
    assert set(pq.read_table(tmp_path / "r")["host"].to_pylist()) == {"host-002.domain-1"}


def test_a_log_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is bundled as what it is, and its metadata comes along."""
    log = tmp_path / "train.log"
    log.write_text("\n".join(run(range(1, 121), noisy([(60, 1.0), (60, 1.3)]))))
    assert run_main("bundle", log, "-o", tmp_path / "b.zip", "--quiet") == 0
    found, expected = (json.loads(diagnosed(path, capsys)) for path in (tmp_path / "b.zip", log))
    assert found["log"].pop("file") and expected["log"].pop("file")
    assert found == expected


def test_what_goes_in_and_what_does_not(full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Traces, logs and dumps go in, cleaned; keys, weights, code, data, links and pipes do not, each with a reason."""
    path = tmp_path / "b.zip"
    assert run_main("bundle", full, "-o", path, "--no-diagnosis") == 0
    said = capsys.readouterr().err
    manifest = json.loads(read(path, "bundle.json"))
    assert manifest["masked"] == {"Hugging Face token": 1, "password": 9}
    assert "masked 10 secrets" in said
    kinds = {file["path"].rpartition("/")[2]: file["kind"] for file in manifest["files"]}
    traces = {f"rank-{dp}.parquet": "trace" for dp in range(4)}
    assert (
        kinds
        == {"acme-7.yaml": "metadata", "gpu-2.log": "console", "nccl_trace_rank_3": "dump", "out.txt.gz": "console"}
        | traces
    )
    reasons = {each["path"].rpartition("/")[2]: each["reason"] for each in manifest["left_out"]}
    assert reasons == {
        ".env": "hidden",
        "prod.env": "may hold keys or passwords, by its name",
        "id_rsa": "may hold keys or passwords, by its name",
        "weights.safetensors": "not needed: nothing that is known here",
        "train.py": "not needed: source code",
        "passwd.log": "a link that leads out of the folder",
        "pipe": "no file but a pipe, a socket or a device",
        "data.parquet": "Parquet without the columns of a trace",
    }
    assert all(name in said for name in reasons)
    assert b"hf_" not in read(path, "acme-7/gpu-2.log")
    assert gzip.decompress(read(path, "acme-7/out.txt.gz")) == b"password=*** on gpu-30 by robert\n" * 9
    assert read(path, "acme-7/nccl_trace_rank_3") == (full / "nccl_trace_rank_3").read_bytes()


def test_pickles_are_cleaned_and_never_loaded(full: Path, tmp_path: Path) -> None:
    """The texts of a dump have other names, its numbers stay, and one that would run code is data."""

    class _Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/ran",)

    (full / "nccl_trace_rank_4").write_bytes(pickle.dumps(_flight_record(4) | {"b": _Bomb()}, protocol=2))
    path = tmp_path / "b.zip"
    assert run_main("bundle", full, "-o", path, "--anonymous", "--quiet", "--no-diagnosis") == 0
    found = pickle.loads(read(path, "job/nccl_trace_rank_3"))
    expected = _flight_record(3)
    assert found.pop("at").startswith("/home/user-1/file-")
    assert {entry["frames"][0]["line"] for entry in found["entries"]} == {2501}
    for record in (found, expected):
        record["entries"] = [{**entry, "frames": None} for entry in record["entries"]]
    assert found == expected
    assert not (tmp_path / "ran").exists()


def test_same_files_same_bytes(full: Path, tmp_path: Path) -> None:
    """Neither the clock nor the order of a folder is in a bundle; what was there before stays until it is whole."""
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for path in paths:
        assert run_main("bundle", full, "-o", path, "--anonymous", "--quiet") == 0
        for file in full.iterdir():
            if not file.is_symlink():
                os.utime(file, (1, 1))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert list(tmp_path.glob(".diagnose*")) == []
    with zipfile.ZipFile(paths[0]) as archive:
        assert {stat.S_IMODE(entry.external_attr >> 16) for entry in archive.infolist()} == {0o644}
        names = [entry.filename for entry in archive.infolist()]
        assert names[:-2] == sorted(names[:-2])


def test_several_sources_and_sizes(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders and files given together are one job; what is too large is left out and told."""
    log = tmp_path / "train.log"
    log.write_text("x" * 70_000)
    assert run_main("bundle", job, log, "-o", tmp_path / "b.zip", "--max-size", "64K", "--no-diagnosis") == 0
    assert "b/train.log: too large: 0 MiB, more than --max-size" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert "b/acme-7/rank-0.parquet" in archive.namelist()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing", "-o", "b.zip"), 2, "does not exist"),
        (("empty", "-o", "b.zip"), 3, "holds nothing that a diagnosis is made from"),
        (("empty", "-o", "no/b.zip"), 2, "there is no folder"),
        (("empty", "-o", "empty"), 2, "is no file"),
        (("empty", "-o", "b.zip", "--names", "n.json"), 2, "give both"),
        (("empty", "-o", "b.zip", "--max-size", "big"), 2, "is no size"),
        (("empty/a.log", "-o", "empty/a.log"), 2, "is a file to collect"),
    ],
)
def test_refused(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What makes no sense is refused in a line, and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.log").write_text("")
    assert run_main("bundle", *arguments) == code
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]
