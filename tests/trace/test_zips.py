"""Jobs in a zip: what is unpacked, and what is refused before a byte of it is written."""

import io
import json
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from diagnose.errors import TraceError
from diagnose.trace import zips
from diagnose.trace.load import load_trace
from diagnose.trace.zips import MANIFEST, extract, is_tar, is_zip, open_zip
from tests.trace.producers.pipelines import Pipeline, write_event_timer


def pack(path: Path, files: dict[str, bytes], **about: str) -> Path:
    """Write a zip, with a manifest where something is said in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if about:
            archive.writestr(MANIFEST, json.dumps(about))
    return path


def pack_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz", kind: bytes = tarfile.REGTYPE) -> Path:
    """Write a tar of files, or of what else is named."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.type, about.linkname = len(content), kind, "/etc/passwd"
            archive.addfile(about, io.BytesIO(content))
    return path


def list_all(folder: Path) -> list[str]:
    """List all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_bundle_says_which_file_is_the_job(tmp_path: Path) -> None:
    """The manifest names the job and where it was; it is there as long as the zip is open."""
    path = pack(tmp_path / "b.zip", {"job-7/a.log": b"x", "job-7.yaml": b"dp_size: 4"}, job="job-7", location="t/job-7")
    with open_zip(path, name="b.zip") as found:
        assert found is not None
        assert (found.path.name, found.location, list_all(found.path)) == ("job-7", "t/job-7", ["a.log"])
        assert found.path.with_name("job-7.yaml").is_file()
    assert not found.path.exists()


@pytest.mark.parametrize(
    ("files", "job", "inside"),
    [
        ({"run/a.log": b"x", "run/b.log": b"y"}, "run", ["a.log", "b.log"]),
        ({"a.log": b"x", "sub/b.log": b"y"}, "by-hand", ["a.log", "sub/b.log"]),
        ({"a.parquet": b"x"}, "a.parquet", []),
    ],
)
def test_a_zip_made_by_hand(tmp_path: Path, files: dict[str, bytes], job: str, inside: list[str]) -> None:
    """Without a manifest the job is the one thing in the zip, or all of it, called as the zip is."""
    path = pack(tmp_path / "by-hand.zip", files)
    with open_zip(str(path), name="by-hand.zip") as found:
        assert found is not None
        assert found.path.name == job and list_all(found.path) == inside
        assert found.location == str(tmp_path / "by-hand")


def test_what_is_no_zip_of_a_job(tmp_path: Path) -> None:
    """Weights, arrays, text that begins as a zip, and files that are not there are left to others."""
    paths = [
        pack(tmp_path / "model.pt", {"model/data.pkl": b"x"}),
        pack(tmp_path / "a.npz", {"x.npy": b"x"}),
        tmp_path / "none.zip",
        tmp_path,
    ]
    (tmp_path / "text.zip").write_bytes(b"PK\x03\x04 and no more")
    for path in (*paths, tmp_path / "text.zip"):
        assert not is_zip(path), path
        with open_zip(path, name="x") as found:
            assert found is None


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\..\\x", "C:x", "./x", "a\x1bb", "a/./b"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    """A name that may lie anywhere is refused, and nothing is written, not even the files before it."""
    path, folder = pack(tmp_path / "b.zip", {"ok.log": b"x", name: b"y"}), tmp_path / "out"
    folder.mkdir()
    with pytest.raises(TraceError, match="leads out of the zip"):
        extract(path, folder, name="b.zip")
    assert list_all(folder) == []
    assert not (tmp_path / "x").exists()


def test_links_doubles_and_passwords(tmp_path: Path) -> None:
    """A link, a name that is there twice, an encrypted file and a packing that nobody needs are refused."""

    def refuse(change: str, match: str) -> None:
        path = tmp_path / f"{change}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            entry = zipfile.ZipInfo("a.log")
            if change == "link":
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, b"/etc/passwd", zipfile.ZIP_BZIP2 if change == "bzip2" else zipfile.ZIP_STORED)
            if change == "twice":
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr("a.log", b"y")
        if change == "encrypted":
            content = bytearray(path.read_bytes())
            content[6] |= 1
            content[content.index(b"PK\x01\x02") + 8] |= 1
            path.write_bytes(content)
        with pytest.raises(TraceError, match=match):
            extract(path, tmp_path, name="b.zip")

    refuse("link", "is a link or a device")
    refuse("twice", "is there twice")
    refuse("encrypted", "is encrypted")
    refuse("bzip2", "packed in a way")


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks to far more than it is, or to more than there is room for, is refused by its sizes alone."""
    monkeypatch.setattr(zips, "SMALL_BYTES", 1 << 20)
    bomb = pack(tmp_path / "bomb.zip", {f"{n}.log": bytes(1 << 20) for n in range(4)})
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(TraceError, match="unpacks to 4 MiB from 0 MiB"):
        extract(bomb, folder, name="bomb.zip")
    lines = pack(tmp_path / "log.zip", {"a.log": os.urandom(1 << 18) + bytes(1 << 20)})
    assert extract(lines, folder, name="log.zip").path.stat().st_size == (1 << 18) + (1 << 20)
    monkeypatch.setattr(zips, "ROOM_BYTES", 1 << 62)
    with pytest.raises(TraceError, match="has room for 0"):
        extract(lines, folder, name="log.zip")


def test_a_zip_in_a_zip_stays_packed(tmp_path: Path) -> None:
    """Nothing inside is unpacked again."""
    inner = pack(tmp_path / "inner.zip", {"a.log": b"x"})
    outer = pack(tmp_path / "outer.zip", {"job/inner.zip": inner.read_bytes(), "job/b.log": b"y"})
    with open_zip(outer, name="outer.zip") as found:
        assert found is not None
        assert list_all(found.path) == ["b.log", "inner.zip"]


def test_every_byte_may_be_damaged(tmp_path: Path) -> None:
    """Whatever is cut off or flipped, a zip is read, refused with a reason, or no zip."""
    content = pack(tmp_path / "b.zip", {"job/a.log": b"line\n" * 99}, job="job", location="job").read_bytes()
    path = tmp_path / "damaged.zip"
    refused = []
    for at in range(0, len(content), 3):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :]):
            path.write_bytes(damaged)
            try:
                with open_zip(path, name="damaged.zip"):
                    pass
            except TraceError as error:
                refused.append(str(error))
    assert len(refused) > 20
    assert all(said.startswith("damaged.zip") for said in refused)


@pytest.mark.parametrize(("ending", "mode"), [("tar", "w"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")])
def test_a_tar_is_read_as_a_zip_is(tmp_path: Path, ending: str, mode: str) -> None:
    """However it is packed, its one folder is the job; what lies at the top is called as the tar is."""
    path = pack_tar(tmp_path / f"job-7.{ending}", {"./run/a.log": b"x", "./run/b.log": b"y"}, mode)
    with open_zip(path, name="x") as found:
        assert found is not None and not is_zip(path)
        assert (found.path.name, list_all(found.path)) == ("run", ["a.log", "b.log"])
        assert found.location == str(tmp_path / "job-7")


def test_runs_in_one_tar_are_no_one_job(tmp_path: Path) -> None:
    """Logs in a tar look like one log, each run like a restart of the one before it; unpacked they are refused, or one is read."""
    folder = write_event_timer(tmp_path / "runs" / "a", Pipeline(2, 4, 5).run())
    write_event_timer(tmp_path / "runs" / "b", Pipeline(2, 4, 5).run())
    for name, added in {"two": "runs", "one": "runs/a"}.items():
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            archive.add(tmp_path / added, "job")
        with pytest.raises(TraceError, match="is no trace but an archive"):
            load_trace(tmp_path / f"{name}.tar")
    with open_zip(tmp_path / "two.tar", name="x") as found:
        assert found is not None
        with pytest.raises(TraceError, match="expected the logs of one job"):
            load_trace(found.path)
    with open_zip(tmp_path / "one.tar", name="x") as found:
        assert found is not None
        assert load_trace(found.path).n_ops == load_trace(folder).n_ops


def test_what_a_tar_may_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that lead out, links and more than a job has are refused, and nothing is written."""
    folder = tmp_path / "out"
    folder.mkdir()
    for files, kind, match in (
        ({"ok": b"x", "../x": b"y"}, tarfile.REGTYPE, "leads out of the tar"),
        ({"ok": b"", "x": b""}, tarfile.SYMTYPE, "is a link or a device"),
        ({"x": b""}, tarfile.FIFOTYPE, "is a link or a device"),
    ):
        path = pack_tar(tmp_path / "a.tgz", files, kind=kind)
        with pytest.raises(TraceError, match=match):
            extract(path, folder, name="a.tgz")
        assert list_all(folder) == [] and not (tmp_path / "x").exists()
    monkeypatch.setattr(zips, "SMALL_BYTES", 1 << 20)
    with pytest.raises(TraceError, match="unpacks to 2 MiB from 0 MiB"):
        extract(pack_tar(tmp_path / "b.tgz", {f"{n}.log": bytes(1 << 20) for n in range(9)}), folder, name="b.tgz")


def test_every_part_of_a_tar_may_be_damaged(tmp_path: Path) -> None:
    """Whatever is cut off or flipped, a packed tar is read, refused with a reason, or no tar."""
    for ending, mode in (("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz"), ("tar", "w")):
        content = pack_tar(tmp_path / f"a.{ending}", {"job/a.log": os.urandom(999)}, mode).read_bytes()[:3000]
        path = tmp_path / f"damaged.{ending}"
        for at in range(0, len(content), 41):
            for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :]):
                path.write_bytes(damaged)
                refused = ""
                try:
                    with open_zip(path, name="damaged"):
                        pass
                except TraceError as error:
                    refused = str(error)
                assert not refused or refused.startswith("damaged: ")


def test_files_that_are_no_tars(tmp_path: Path) -> None:
    """Folders, packed text, and files that break off are left to others."""
    (tmp_path / "a.xz").write_bytes(b"\xfd7zXZ\0 and no more")
    (tmp_path / "zeros.tar").write_bytes(bytes(4096))
    assert not any(map(is_tar, (tmp_path, tmp_path / "none", tmp_path / "a.xz", tmp_path / "zeros.tar")))
