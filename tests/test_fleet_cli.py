"""`diagnose fleet` as users run it: pages, JSON, filters, and the folder of a site."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from diagnose.cli import site as site_module
from diagnose.cli.main import main
from diagnose.report.schemas import make_schema
from diagnose.triage.store import Store
from tests.fleet.stores import NEWEST_S, diagnosed, fill, put
from tests.report.hostile import HOSTILE
from tests.triage.conftest import fresh_database, postgres_server  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = make_schema("fleet")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of a store of 12 jobs."""
    url = f"sqlite:///{tmp_path_factory.mktemp('fleet') / 'store.db'}"
    fill(url, 12, n_days=3)
    return url


@pytest.fixture(scope="module")
def made_site(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the site of the store, once for all tests."""
    folder = tmp_path_factory.mktemp("fleet") / "site"
    assert main(["fleet", "--store", store, "--site", str(folder)]) == 0
    return folder


@pytest.fixture
def site(made_site: Path, tmp_path: Path) -> Path:
    """Give a site of one's own, as if it had just been written."""
    return Path(shutil.copytree(made_site, tmp_path / "site"))


def run(capsys: pytest.CaptureFixture[str], *args: str, rc: int = 0) -> tuple[str, str]:
    """Run the program, and give what it wrote."""
    assert main(["fleet", *args]) == rc
    return tuple(capsys.readouterr())


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Give the content and the time of every file of a site."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_page_and_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page begins with the first job of the JSON, and the JSON validates."""
    out, _ = run(capsys, "--store", store, "--width", "120")
    found = json.loads(run(capsys, "--store", store, "--format", "json")[0])
    jsonschema.validate(found, SCHEMA, cls=jsonschema.Draft202012Validator)
    assert out.startswith(f"worst: {found['jobs'][0]['job_id']}")
    assert found["totals"]["n_jobs"] == 12 and found["totals"]["n_failed"] == 1


def test_same_on_postgresql(store: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    """Another database with the same jobs gives the same JSON, but for its name."""
    url = fresh_database(request.getfixturevalue("postgres_server"))
    fill(url, 12, n_days=3)
    both = [json.loads(run(capsys, "--store", one, "--format", "json")[0]) for one in (store, url)]
    for one in both:
        assert one.pop("store")
    assert both[0] == both[1]


def test_filters(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Owner, cause, folder, framework and time choose jobs."""
    every = json.loads(run(capsys, "--store", store, "--format", "json")[0])["jobs"]
    for args, holds in (
        (("--owner", "alice"), lambda job: job["owner"] == "alice"),
        (("--cause", "data-loading"), lambda job: any(c["cause"] == "data-loading" for c in job["causes"])),
        (("--folder", "/traces/prod"), lambda job: job["folder"] == "/traces/prod"),
        (("--framework", "torchtitan"), lambda job: job["framework"] == "torchtitan"),
        (("--since", "1d"), lambda job: job["when_s"] >= NEWEST_S - 86_400),
    ):
        found = json.loads(run(capsys, "--store", store, "--format", "json", *args)[0])
        wanted = [job["job_id"] for job in every if holds(job)]
        assert [job["job_id"] for job in found["jobs"]] == wanted and 0 < len(wanted) < len(every)
        assert list(found["asked"].values()) == [args[1]]
    ranked = json.loads(run(capsys, "--store", store, "--format", "json", "--rank", "recoverable", "--limit", "3")[0])
    recoverable = [job["gpu_hours"]["recoverable"] for job in every]
    assert [job["gpu_hours"]["recoverable"] for job in ranked["jobs"]] == sorted(recoverable, reverse=True)[:3]


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a store there is one line that says who makes one, and no file."""
    _, err = run(capsys, "--store", f"sqlite:///{tmp_path / 'no.db'}", rc=74)
    assert err.count("\n") == 1 and "diagnose triage" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args", [("--night", "0h"), ("--night", "2026-01-01"), ("--since", "yesterday"), ("--limit", "0")]
)
def test_bad_usage(store: str, args: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that makes no sense is one line and exit code 2."""
    _, err = run(capsys, "--store", store, *args, rc=2)
    assert err.count("\n") == 1


def test_output_file(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page goes to a file that appears whole."""
    assert run(capsys, "--store", store, "-o", str(tmp_path / "page.txt"))[0] == ""
    assert (tmp_path / "page.txt").read_text().startswith("worst: ")


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """The schema is there for programs."""
    assert main(["schema", "fleet"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


# ---- The site ----


class Links(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep addresses."""
        self.found |= {value for key, value in attrs if key in {"href", "src", "action", "srcset"} and value}


def links(path: Path) -> set[str]:
    """Give all addresses of a page."""
    parser = Links()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser.found


def test_site(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The site has an index, a page a diagnosed job and the JSON; every link is relative and leads somewhere."""
    folder = tmp_path / "site"
    _, err = run(capsys, "--store", store, "--site", str(folder))
    assert "13 pages written, 0 as they were, 0 removed" in err  # 11 jobs, the index, the JSON
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    assert len(pages) == 12
    for page in pages:
        for link in links(folder / page) - {"data:,"}:
            path, _, at = link.partition("#")
            target = (folder / page).parent / path if path else folder / page
            assert target.is_file(), link
            assert not at or f'id="{at}"' in target.read_text(encoding="utf-8"), link
    linked = {link for link in links(folder / "index.html") if link.startswith("jobs/")}
    assert linked == {page for page in pages if page.startswith("jobs/")}
    assert json.loads((folder / "fleet.json").read_text()) == json.loads(
        run(capsys, "--store", store, "--format", "json")[0]
    )


def test_nothing_is_written_twice(store: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run leaves every file alone; a damaged page is made again, with the same bytes."""
    first = files(site)
    _, err = run(capsys, "--store", store, "--site", str(site))
    assert "0 pages written, 13 as they were" in err and files(site) == first
    page = next((site / "jobs").iterdir())
    page.write_text("damaged")
    assert "1 pages written, 12 as they were" in run(capsys, "--store", store, "--site", str(site))[1]
    assert {name: content for name, (content, _) in files(site).items()} == {
        name: content for name, (content, _) in first.items()
    }
    other = tmp_path / "other"
    run(capsys, "--store", store, "--site", str(other))
    assert {name: content for name, (content, _) in files(other).items()} == {
        name: content for name, (content, _) in first.items()
    }


def test_old_pages_go(store: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is no more in the store loses its page, and nobody else's file is touched."""
    url = f"sqlite:///{tmp_path / 'copy.db'}"
    shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "copy.db")
    (site / "jobs" / "mine.txt").write_text("mine")
    (site / "jobs" / ".diagnose-0123456789abcdef.tmp").write_text("of a writer that was killed")
    with Store(url) as opened:
        assert opened.prune(NEWEST_S - 86_400).n_jobs
    _, err = run(capsys, "--store", url, "--site", str(site))
    n_removed = int(re.search(r"(\d+) removed", err)[1])
    left = sorted(path.name for path in (site / "jobs").iterdir())
    assert n_removed > 0 and len(left) == 11 - n_removed + 1 and "mine.txt" in left


class _Writer:
    """Writes files as the site does, until it is killed."""

    def __init__(self, patch: pytest.MonkeyPatch, n_files: int) -> None:
        self.n_written, self._n_files, self._put = 0, n_files, site_module._put
        patch.setattr(site_module, "_put", self)

    def __call__(self, path: Path, content: bytes) -> None:
        """Write a file, or die."""
        if self.n_written == self._n_files:
            raise KeyboardInterrupt
        self._put(path, content)
        self.n_written += 1


def test_a_writer_that_dies(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any file, the site is whole: the old one until its index changes. The next run ends it, and nothing is over."""
    monkeypatch.setattr(
        "diagnose.report.html.page.render_saved", lambda diagnosis, _: f"page of {diagnosis.job.job_id}"
    )
    monkeypatch.setattr("diagnose.report.html.site.draw_all", lambda _: [])
    n_files, n_puts = 0, None
    while n_puts is None or n_files < n_puts:
        folder = tmp_path / f"site-{n_files}"
        run(capsys, "--store", store, "--site", str(folder), "--owner", "alice")
        before = (folder / "index.html").read_bytes()
        with monkeypatch.context() as patch:
            writer = _Writer(patch, 1000 if n_puts is None else n_files)
            run(capsys, "--store", store, "--site", str(folder), rc=0 if n_puts is None else 130)
        if n_puts is None:
            n_puts = writer.n_written
            shutil.rmtree(folder)
            continue
        links_now = links(folder / "index.html") - {"data:,"}
        assert all((folder / link).is_file() for link in links_now if not link.startswith("#"))
        assert ((folder / "index.html").read_bytes() == before) == (n_files < n_puts - 1), (
            "the index is the last but its list"
        )
        run(capsys, "--store", store, "--site", str(folder), "--owner", "bob")
        linked = {link for link in links(folder / "index.html") if link.startswith("jobs/")}
        assert {f"jobs/{path.name}" for path in (folder / "jobs").iterdir()} == linked
        n_files += 1
    assert n_puts > 8


def test_foreign_folders_are_refused(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with anything else in it is left alone, and so is one whose list of pages is not sound."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "index.html").write_text("mine")
    for content in (None, "{", "[]", '{"schema": "diagnose-site/1"}', '{"schema": "x", "pages": {}}'):
        if content is not None:
            (folder / "site.json").write_text(content)
        _, err = run(capsys, "--store", store, "--site", str(folder), rc=2)
        assert "not empty" in err and (folder / "index.html").read_text() == "mine"
    _, err = run(capsys, "--store", store, "--site", str(tmp_path / "no" / "site"), rc=2)
    assert "there is no folder" in err


def test_a_forged_list_removes_nothing(
    store: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in the list of pages that are not those of our pages are never removed."""
    victim = tmp_path / "victim.html"
    victim.write_text("keep")
    made = json.loads((site / "site.json").read_text())
    made["pages"] |= {
        name: ["", ""] for name in ("../victim.html", str(victim), "jobs/../../victim.html", "index.html")
    }
    (site / "site.json").write_text(json.dumps(made))
    run(capsys, "--store", store, "--site", str(site))
    assert victim.read_text() == "keep" and (site / "index.html").is_file()


@pytest.mark.parametrize("names", [tuple(HOSTILE)[at : at + 5] for at in range(0, len(HOSTILE), 5)], ids=" and ".join)
def test_hostile_site(names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever names hold, pages refer to nothing outside and hold no script but ours; no table leaves any of five out."""
    folder = tmp_path / "site"
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        for name in names:
            text, found = HOSTILE[name], json.loads(diagnosed("worker-fault"))
            found["job"] |= {"job_id": text, "owner": text, "framework": text, "gpu_type": text, "hosts": [text, "b"]}
            found["causes"][0] |= {"title": text}
            found["causes"][0]["where"]["hosts"] = [text]
            for n in range(2):  # a host is told of that is blamed twice
                put(opened, f"/{n}/{text}", found, at_s=NEWEST_S - n * 86_400)
            put(opened, f"/{text}/failed", None, at_s=NEWEST_S, failure="input", reason=text)
    run(capsys, "--store", f"sqlite:///{tmp_path / 'store.db'}", "--site", str(folder))
    ours = {"index.html", "fleet.json", "../index.html", "data:,"}
    for page in folder.rglob("*.html"):
        content = page.read_text(encoding="utf-8")
        assert all(
            link in ours or link[0] == "#" or re.fullmatch(r"jobs/[a-z0-9-]+\.html", link) for link in links(page)
        )
        assert "<script>alert" not in content and "<img" not in content
        assert all(char.isprintable() or char == "\n" for char in content)
    assert len(list((folder / "jobs").iterdir())) == 2 * len(names)


def test_pages_drawn_from_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that is as it was gives a page with all pictures, which stays when the trace is gone; a changed one does not."""
    traces, folder, url = tmp_path / "traces", tmp_path / "site", f"sqlite:///{tmp_path / 'store.db'}"
    traces.mkdir()
    for name in ("worker-fault", "stage-imbalance"):
        shutil.copy(ROOT / "fixtures" / f"{name}.parquet", traces / f"{name}.parquet")
    assert main(["triage", str(traces), "--store", url, "--workers", "1", "--quiet"]) == 0
    (traces / "stage-imbalance.parquet").write_bytes((ROOT / "fixtures" / "healthy.parquet").read_bytes())
    capsys.readouterr()
    run(capsys, "--store", url, "--site", str(folder), "--draw", "2")
    pages = {path.name.rsplit("-", 1)[0]: path for path in (folder / "jobs").iterdir()}
    drawn, plain = (pages[name].read_text(encoding="utf-8") for name in ("worker-fault", "stage-imbalance"))
    assert 'id="workers"' in drawn and '<a href="../index.html">' in drawn
    assert 'id="workers"' not in plain and 'id="measures"' in plain
    for path in traces.iterdir():
        path.unlink()
    _, err = run(capsys, "--store", url, "--site", str(folder))
    assert "0 pages written" in err and pages["worker-fault"].read_text(encoding="utf-8") == drawn
    assert "--site" in run(capsys, "--store", url, "--draw", "1", rc=2)[1]
