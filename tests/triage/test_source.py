"""Sources name jobs: folders, globs, lists, object stores."""

import os
from pathlib import Path

import pytest

from diagnose.errors import UsageError
from diagnose.triage.source import list_again, list_jobs, open_remote
from diagnose.triage.times import parse_since
from tests.unprivileged import run_without_privileges


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with traces and other things."""
    for name in ("b.parquet", "a.parquet", "deep/c.parquet", ".hidden/d.parquet", ".e.parquet", "notes.txt", "a.yaml"):
        path = tmp_path / "traces" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "traces"


def names(*sources: object) -> list[str]:
    """Name the jobs that sources give."""
    return [Path(job.location).name for job in list_jobs(map(str, sources))]


def test_folder(folder: Path) -> None:
    """All traces in it, at any depth, hidden ones left out."""
    assert names(folder) == ["a.parquet", "b.parquet", "c.parquet"]
    job = list_jobs([str(folder)])[0]
    assert job.size_bytes == len("a.parquet") and job.beside == (str(folder / "a.yaml"),)


def test_logs_that_are_left_out_are_told(folder: Path) -> None:
    """Files that are called as logs are in a folder without a job are listed, and are jobs where a glob names them."""
    for name in ("train.log", "slurm-7.out", "notes.md"):
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / name).write_text(name)
    logs: list[str] = []
    assert len(list_jobs([str(folder)], logs)) == 3
    assert sorted(Path(log).name for log in logs) == ["slurm-7.out", "train.log"]
    assert names(folder / "logs" / "*.log") == ["train.log"]


def test_each_file_of_a_folder_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of 50 traces, every tenth with metadata, gives what its files give by themselves, for two looks a job at most."""
    traces = [tmp_path / f"trace-{i}.parquet" for i in range(50)]
    for path in (*traces, *(tmp_path / f"trace-{i}.yaml" for i in range(0, 50, 10))):
        path.write_text(path.name)
    alone = list_jobs(map(str, traces))
    looks = []
    for name in ("stat", "lstat"):
        look = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, look=look, **options: (looks.append(args), look(*args, **options))[1]
        )
    assert list_jobs([str(tmp_path)]) == alone
    assert 50 <= len(looks) <= 100 and sum(len(job.beside) for job in alone) == 5


def test_files_and_globs(folder: Path) -> None:
    """A file is taken whatever its name; each job comes once, however often it is named."""
    assert names(folder / "a.yaml") == ["a.yaml"]
    assert names(folder / "*.parquet", folder / "a.parquet") == ["a.parquet", "b.parquet"]
    assert names(folder / "**/c*") == ["c.parquet"]
    (folder / "link.parquet").symlink_to(folder / "a.parquet")
    assert names(folder) == ["a.parquet", "b.parquet", "c.parquet"]
    assert names(folder / "none-*") == []


def test_list(folder: Path, tmp_path: Path) -> None:
    """A list names sources; what is not there becomes a job that will say so."""
    (tmp_path / "list.txt").write_text(f"# jobs\n\n{folder}/a.parquet\n{folder}/deep\n{folder}/gone.parquet\n")
    assert names(tmp_path / "list.txt") == ["a.parquet", "c.parquet", "gone.parquet"]
    gone = list_jobs([str(tmp_path / "list.txt")])[-1]
    assert gone.stamp is None


def test_not_there(tmp_path: Path) -> None:
    """A source that is misspelt is an error."""
    with pytest.raises(UsageError, match="is not there; expected a folder"):
        list_jobs([str(tmp_path / "none")])


def test_a_closed_folder(folder: Path, tmp_path: Path) -> None:
    """A folder below a source that may not be listed is named, and the rest goes on; one that the user names is an error."""
    closed = folder / "closed"
    closed.mkdir(mode=0o000)
    (tmp_path / "list.txt").write_text(f"{closed}\n{folder}/a.parquet\n")
    code = (
        "import sys; from diagnose.errors import UsageError; from diagnose.triage.source import list_jobs\n"
        "for source in sys.argv[1:]:\n"
        "    try: print([(job.location.rsplit('/')[-1], job.refused) for job in list_jobs([source])])\n"
        "    except UsageError as error: print(error)"
    )
    said = run_without_privileges(code, folder, folder / "c*", tmp_path / "list.txt", closed).splitlines()
    why = "the folder cannot be listed: Permission denied; expected one that you may read"
    traces = [("a.parquet", ""), ("b.parquet", "")]
    assert said == [
        repr([*traces, ("closed", why), ("c.parquet", "")]),
        repr([("closed", why)]),
        repr([traces[0], ("closed", why)]),
        f"cannot list {closed}: Permission denied",
    ]


def test_an_odd_name(folder: Path) -> None:
    """Names that are no UTF-8 are names."""
    path = os.fsencode(folder) + b"/\xff.parquet"
    with open(path, "wb"):  # noqa: PTH123
        pass
    assert os.fsencode(list_jobs([str(folder)])[-1].location) == path


@pytest.mark.parametrize("change", ["a.parquet", "a.yaml"])
def test_stamp(folder: Path, change: str) -> None:
    """The stamp of a job changes with the trace, and with the metadata beside it."""
    before = list_jobs([str(folder)])[0]
    assert list_again(before) == before
    os.utime(folder / change, (5, 5))
    assert list_again(before).stamp != before.stamp
    (folder / "a.yaml").unlink()
    assert list_again(before).stamp not in {before.stamp, None}


def test_since() -> None:
    """Ages and dates; whatever else is refused."""
    assert parse_since("1.5h", 10_000) == 4600
    assert parse_since("1970-01-01T01:00:00+01:00", 0) == 0
    for wrong in ("", "yesterday", "3", "-2d", "2y", "99999-01-01"):
        with pytest.raises(UsageError, match="is no age such as"):
            parse_since(wrong, 0)


class TestRemote:
    """Object stores, by the one that fsspec keeps in memory."""

    @pytest.fixture
    def memory(self):
        """Give a store with two traces."""
        fsspec = pytest.importorskip("fsspec")
        files = fsspec.filesystem("memory")
        for name in ("a.parquet", "a.yaml", "x/b.parquet", "notes.txt"):
            files.pipe(f"/bucket/{name}", name.encode())
        yield files
        files.rm("/bucket", recursive=True)

    @pytest.mark.usefixtures("memory")
    def test_prefix(self) -> None:
        """A prefix is a folder."""
        jobs = list_jobs(["memory://bucket"])
        assert [job.location for job in jobs] == ["memory:///bucket/a.parquet", "memory:///bucket/x/b.parquet"]
        assert jobs[0].beside == ("memory:///bucket/a.yaml",) and jobs[0].size_bytes == 9 and jobs[0].stamp

    @pytest.mark.usefixtures("memory")
    def test_object_and_glob(self) -> None:
        """One object, or those that match."""
        assert [job.beside for job in list_jobs(["memory://bucket/a.parquet"])] == [("memory:///bucket/a.yaml",)]
        assert len(list_jobs(["memory://bucket/*/*.parquet"])) == 1

    def test_refused(self) -> None:
        """Unknown stores, and secrets in a URL."""
        with pytest.raises(UsageError, match="ftp:// is not known"):
            open_remote("ftp://host/a")
        with pytest.raises(UsageError, match="give them in the environment") as error:
            open_remote("s3://key:s3cret@bucket/a")
        assert "s3cret" not in str(error.value)
