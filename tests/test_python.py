"""The Python interface: what may be given, what comes back, how it shows itself, and how it refuses."""

import copy
import dataclasses
import html
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import diagnose
from diagnose.cli.main import main
from diagnose.report.html.draw import styled
from diagnose.report.html.figures import read_colours
from diagnose.results import frame, show_as
from diagnose.trace.sources import open_source
from tests.fixture_jobs import FIXTURES, diagnosed
from tests.jobs import hand_job
from tests.report.examples import EXAMPLES
from tests.report.hostile import HOSTILE, hostile
from tests.unprivileged import run_without_privileges

ROOT = Path(__file__).resolve().parents[1]
WORKER_FAULT = FIXTURES["worker-fault"]


@pytest.fixture(scope="module")
def found() -> diagnose.Diagnosis:
    """Diagnose a fixture as a user does; nobody may change the answer."""
    return diagnose.diagnose(WORKER_FAULT)


# What may be given

WAYS: dict[str, Callable[[], Any]] = {
    "text": lambda: str(WORKER_FAULT),
    "path": lambda: WORKER_FAULT,
    "bytes": WORKER_FAULT.read_bytes,
    "memoryview": lambda: memoryview(WORKER_FAULT.read_bytes()),
    "file": lambda: WORKER_FAULT.open("rb"),
    "buffer": lambda: io.BytesIO(WORKER_FAULT.read_bytes()),
    "frame": lambda: pd.read_parquet(WORKER_FAULT),
    "table": lambda: pq.read_table(WORKER_FAULT),
    "batch": lambda: pq.read_table(WORKER_FAULT).combine_chunks().to_batches()[0],
    "stream": lambda: pq.read_table(WORKER_FAULT).to_reader(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_rows(way: str) -> None:
    """Whatever holds a job, all columns of the trace arrive as the file has them, without an index."""
    given = WAYS[way]()
    source, _ = open_source(given)
    arrived, there = pq.read_table(source), pq.read_table(WORKER_FAULT)
    assert sorted(arrived.column_names) == sorted(there.column_names)
    assert arrived.to_pandas()[there.column_names].equals(there.to_pandas())
    if way == "file":
        given.close()


def test_strings_as_other_packages_keep_them() -> None:
    """Views into buffers, as polars has them, alone or in a dictionary, arrive as the strings that they are."""
    table = pq.read_table(WORKER_FAULT)
    names = table["optype"].cast(pa.string())
    for views in (
        names.cast(pa.string_view()),
        pa.chunked_array(
            [pa.DictionaryArray.from_arrays([0] * len(table), pa.array(["params-sync"], pa.string_view()))]
        ),
    ):
        source, _ = open_source(table.set_column(table.column_names.index("optype"), "optype", views))
        wanted = names if views.type == pa.string_view() else ["params-sync"] * len(table)
        assert pq.read_table(source)["optype"].to_pylist() == (
            wanted if isinstance(wanted, list) else wanted.to_pylist()
        )


def test_a_table_is_diagnosed_as_its_file(found: diagnose.Diagnosis) -> None:
    """A table brings the metadata of the file with it, and the answer is the same to the last digit."""
    assert diagnose.diagnose(pq.read_table(WORKER_FAULT)).to_json() == found.to_json()


def test_metadata_beside_a_frame() -> None:
    """A mapping says what a file of metadata would; columns that no trace has are not looked at, whatever they hold."""
    rows = hand_job().assign(mine=[object()] * len(hand_job()))
    meta = {"job_id": "run-7", "tp_size": np.int64(8), "owner": "me"}
    job = diagnose.diagnose(rows, meta=meta).job
    assert (job.job_id, job.tp_size, job.world_size, job.owner) == ("run-7", 8, 16, "me")


def test_a_file_is_read_from_its_beginning_and_stays_open() -> None:
    """A buffer that was just written stands at its end; that is no reason to find nothing."""
    file = io.BytesIO(WORKER_FAULT.read_bytes())
    file.seek(0, os.SEEK_END)
    source, name = open_source(file)
    assert source is file and name == "file" and file.read(4) == b"PAR1" and not file.closed


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """What cannot seek is read into memory, named as the file is."""
    with subprocess.Popen(["cat", str(WORKER_FAULT)], stdout=subprocess.PIPE) as cat:
        source, _ = open_source(cat.stdout)
        assert source.read() == WORKER_FAULT.read_bytes()


def test_options(found: diagnose.Diagnosis, tmp_path: Path) -> None:
    """Steps as text or numbers, paths as text: all of them arrive."""
    shutil.copy(ROOT / "rules" / "worker-fault.yaml", tmp_path)
    picked = diagnose.diagnose(WORKER_FAULT, steps="36-39", min_speedup=1.5, rules=str(tmp_path))
    assert picked.what_if.steps.tolist() == [36, 37, 38, 39] and picked.min_speedup == 1.5
    assert not picked.causes and found.causes
    again = diagnose.diagnose(WORKER_FAULT, steps=range(39, 35, -1), min_speedup=np.float64(1.5), pictures=False)
    assert again.what_if.steps.tolist() == [36, 37, 38, 39]


# What is wrong


class _Odd:
    """Reads as nothing does."""

    def read(self, n: int = -1) -> str:
        """Give text."""
        return "text"[:n]


def _closed() -> io.BytesIO:
    file = io.BytesIO(b"PAR1")
    file.close()
    return file


def _unreadable() -> Any:
    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def read(self, _n: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    return Broken()


ROWS = hand_job()
#: What is no job, and what the message says of it.
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, "of type NoneType; expected a path, bytes"),
    "number": (lambda: 3, "of type int"),
    "list": (lambda: [str(WORKER_FAULT)], "of type list"),
    "dict": (dict, "of type dict"),
    "series": (lambda: ROWS["step"], "column"),
    "empty path": (lambda: "", "expected a path"),
    "nul in a path": (lambda: "a\0b", "expected a path"),
    "no such file": (lambda: "no-such.parquet", "no such file"),
    "folder without a job": (lambda: ROOT / "diagnose" / "cli", "holds no trace"),
    "empty bytes": (lambda: b"", "bytes: is empty"),
    "bytes of something else": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(99), "."),
    "cut off": (lambda: WORKER_FAULT.read_bytes()[:-100], "cannot be read as Parquet"),
    "text": (lambda: io.StringIO("step,dp_rank"), "opened for text; open it with 'rb'"),
    "text of another kind": (_Odd, "opened for text"),
    "closed": (_closed, "closed; open it with 'rb'"),
    "for writing only": (lambda: Path(os.devnull).open("wb"), "open it with 'rb'"),  # noqa: SIM115 - the test closes it
    "broken": (_unreadable, "Input/output error"),
    "empty frame": (pd.DataFrame, "column 'step' is missing"),
    "no rows": (lambda: ROWS.iloc[:0], "has no rows"),
    "no rows of a table": (lambda: pa.Table.from_pandas(ROWS).slice(0, 0), "has no rows"),
    "missing column": (lambda: ROWS.drop(columns="duration"), "column 'duration' is missing"),
    "in the index": (lambda: ROWS.set_index("step"), "'step' is in the index; expected a column: call reset_index"),
    "duplicated column": (lambda: pd.concat([ROWS, ROWS["step"]], axis=1), "more than once"),
    "duplicated in a table": (
        lambda: pa.Table.from_pandas(ROWS).append_column("step", pa.array(ROWS["step"])),
        "more than once",
    ),
    "column of columns": (lambda: pd.concat({"a": ROWS}, axis=1), "column 'step' is missing"),
    "text for numbers": (
        lambda: ROWS.astype({"step": str}),
        "column 'step': has type .*string; expected whole numbers",
    ),
    "objects": (lambda: ROWS.assign(duration=[object()] * len(ROWS)), "cannot be turned into columns"),
    "mixed": (lambda: ROWS.assign(stage=["x", *ROWS["stage"][1:]]), "cannot be turned into columns"),
    "complex": (lambda: ROWS.assign(duration=1j), "."),
    "time zones": (
        lambda: ROWS.assign(start_ts=pd.Timestamp("2026-01-01", tz="Europe/Berlin")),
        "'start_ts': has type timestamp.*; expected seconds as a number",
    ),
    "lengths of time": (lambda: ROWS.assign(duration=pd.Timedelta(1, "s")), "expected seconds as a number"),
    "flags": (lambda: ROWS.assign(step=True), "has type bool; expected whole numbers"),
    "periods": (lambda: ROWS.assign(step=pd.Period("2026-01")), "expected whole numbers"),
    "sparse": (lambda: ROWS.assign(step=pd.arrays.SparseArray(ROWS["step"])), "."),
    "not numbers": (lambda: ROWS.assign(duration=np.nan), "."),
    "negative durations": (lambda: ROWS.assign(duration=-1.0), "."),
    "infinite": (lambda: ROWS.assign(start_ts=np.inf), "."),
    "steps between steps": (lambda: ROWS.assign(step=0.5), "."),
    "all at once": (lambda: ROWS.assign(start_ts=np.tile([1e11 + 1, 0.0], len(ROWS) // 2)), "start at once"),
    "no types": (lambda: ROWS.assign(optype=None), "."),
    "unknown types": (lambda: ROWS.assign(optype="dance"), "."),
    "column of a table alone": (lambda: pa.chunked_array([[1, 2]]), "."),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_a_diagnose_error(what: str) -> None:
    """Whatever is given, it is refused in one line that says what was expected."""
    make, message = WRONG[what]
    given = make()
    with pytest.raises(diagnose.DiagnoseError, match=message) as refused:
        diagnose.diagnose(given)
    if isinstance(given, io.IOBase):
        given.close()
    assert "\n" not in str(refused.value) and "standard input" not in str(refused.value)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    """A file that the user may not read is refused as that, and not as something that is no trace."""
    secret = tmp_path / "job.parquet"
    shutil.copy(WORKER_FAULT, secret)
    secret.chmod(0o000)
    code = (
        "import sys, diagnose\ntry: diagnose.diagnose(sys.argv[1])\nexcept diagnose.TraceError as error: print(error)"
    )
    assert "cannot be read: Permission denied" in run_without_privileges(code, secret)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": "x"},
        {"steps": [1.5]},
        {"steps": 3.5},
        {"steps": object()},
        {"min_speedup": 0.9},
        {"min_speedup": float("nan")},
        {"min_speedup": "2"},
        {"min_speedup": None},
        {"meta": 3},
        {"meta": "no-such.yaml"},
        {"rules": "no-such-folder"},
        {"rules": 3},
        {"rules": b"rules"},
        {"log": "no-such.log"},
        {"log": ""},
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any]) -> None:
    """They are refused before the job is read, with what was expected."""
    with pytest.raises(diagnose.DiagnoseError, match=r"expected|not exist|no such"):
        diagnose.diagnose(WORKER_FAULT, **options)


def test_a_step_without_computes() -> None:
    """A step of which only the optimizer was kept is diagnosed with the others."""
    is_last = ROWS["optype"].str.startswith("optimizer")
    rows = ROWS[(ROWS["step"] != ROWS["step"].min()) | is_last]
    rows = rows.assign(duration=rows["duration"].where(~is_last, 2.0))
    assert diagnose.diagnose(rows).verdict == "inconclusive"


_NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1), st.none(), st.text(max_size=3), st.booleans())


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*ROWS.columns]), st.lists(_NUMBERS, min_size=1, max_size=4), st.booleans())
def test_any_values_in_any_column(column: str, values: list[Any], is_frame: bool) -> None:
    """A job in which a column holds anything is diagnosed or refused, and nothing else comes out."""
    rows = ROWS.copy()
    rows[column] = pd.Series([values[i % len(values)] for i in range(len(rows))], dtype=object)
    if not is_frame:
        try:
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        except (pa.ArrowException, OverflowError):
            return  # not a table then
    try:
        assert diagnose.diagnose(rows, pictures=False).verdict
    except diagnose.DiagnoseError:
        return  # what it says is looked at above


@settings(max_examples=25)
@given(st.binary(max_size=200), st.integers(0, 10**6))
def test_any_bytes(noise: bytes, at: int) -> None:
    """Bytes that are no trace, or a damaged one, are refused or diagnosed."""
    whole = bytearray(_small_file())
    at %= len(whole)
    whole[at : at + len(noise)] = noise
    for content in (noise, bytes(whole)):
        try:
            assert diagnose.diagnose(content, pictures=False).verdict
        except diagnose.DiagnoseError:
            continue


def test_names_that_are_no_text() -> None:
    """Parquet does not check its strings: a name that is no UTF-8 is refused with its column."""
    content = _small_file()
    assert content.count(b"forward-compute")
    with pytest.raises(diagnose.TraceError, match=r"column optype: b'\\x80orward-.*' is no UTF-8 text"):
        diagnose.diagnose(content.replace(b"forward-compute", b"\x80orward-compute"), pictures=False)


def _small_file() -> bytes:
    file = io.BytesIO()
    ROWS.to_parquet(file)
    return file.getvalue()


# What comes back


def test_repr_is_one_line(found: diagnose.Diagnosis) -> None:
    """It says job, verdict and cause in a line, whatever the names hold."""
    assert repr(found).startswith("<Diagnosis worker-fault") and "slow worker" in repr(found)
    for name, text in HOSTILE.items():
        line = repr(show_as(diagnose.Diagnosis, hostile(text)))
        assert line.isprintable() and len(line.splitlines()) == 1, name
    for make in EXAMPLES.values():
        assert repr(show_as(diagnose.Diagnosis, make())).startswith("<Diagnosis ")


def test_same_json_as_the_commands(
    found: diagnose.Diagnosis, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Functions answer what the commands print, to the byte, and `to_dict` is that as plain types."""
    job, healthy = str(WORKER_FAULT), str(FIXTURES["healthy"])
    fix, scale = "replace-worker:dp=1,pp=0", "forward-compute stage=3 x0.8"
    answers: dict[tuple[str, ...], Any] = {
        (job,): found,
        ("explain", job, "worker-fault"): diagnose.explain(job, "worker-fault"),
        ("what-if", job, "--fix", fix, "--set", scale): diagnose.what_if(job, fix, scales=[scale]),
        ("compare", healthy, job): diagnose.compare(healthy, job),
    }
    for args, answer in answers.items():
        assert main([*args, "--format", "json"]) == 0
        printed = capsys.readouterr().out
        assert printed == answer.to_json() + "\n"
        assert answer.to_dict() == json.loads(printed)
        more, level = (["-v"], {"verbose": 1}) if answer is found else ([], {})  # the first page names the file, too
        assert main([*args, "--width", "70", *more]) == 0
        assert capsys.readouterr().out == answer.to_text(width=70, **level)
        assert len(repr(answer).splitlines()) == 1 and repr(answer).startswith(f"<{type(answer).__name__} ")
        assert answer._repr_html_().startswith("<iframe" if answer is found else "<pre")


def test_compare_takes_what_is_at_hand(found: diagnose.Diagnosis, tmp_path: Path) -> None:
    """A diagnosis, what it was saved as in memory or on disk, and a trace all compare alike."""
    (tmp_path / "saved.json").write_text(found.to_json())
    healthy = diagnosed("healthy")
    changes = {
        str([(change.change, change.seen.cause, change.before_s, change.after_s) for change in compared.changes])
        for other in (found, found.to_dict(), tmp_path / "saved.json", found.to_json().encode(), WORKER_FAULT)
        for compared in (diagnose.compare(healthy, other),)
    }
    assert len(changes) == 1 and "came" in changes.pop()
    with pytest.raises(diagnose.TraceError, match="save it again with --format json"):
        diagnose.compare(found, {"schema": "mine"})
    with pytest.raises(diagnose.DiagnoseError, match="of type int"):
        diagnose.compare(found, 3)


def test_what_if_refuses_nothing_and_nonsense() -> None:
    """Nothing to price, a fix that there is not, and what is no text are all refused."""
    for fixes, message in (
        ((), "nothing to price"),
        ("replace-wroker", "did you mean"),
        ([3], "expected texts"),
        (3, "texts"),
    ):
        with pytest.raises(diagnose.UsageError, match=message):
            diagnose.what_if(WORKER_FAULT, fixes)


def test_explain_refuses_what_is_no_cause() -> None:
    """The nearest cause is named."""
    with pytest.raises(diagnose.UsageError, match="did you mean 'worker-fault'"):
        diagnose.explain(WORKER_FAULT, "worker-falt")
    with pytest.raises(diagnose.UsageError, match="expected text"):
        diagnose.explain(WORKER_FAULT, None)


def test_triage(tmp_path: Path) -> None:
    """A folder is diagnosed into a store; asked again, nothing is to be done. The function keeps its name beside the package."""
    shutil.copy(WORKER_FAULT, tmp_path)
    store = f"sqlite:///{tmp_path}/night.db"
    trial = diagnose.triage([tmp_path], store=store, dry_run=True)
    assert trial.wanted == (str(tmp_path / "worker-fault.parquet"),) and not Path(tmp_path, "night.db").exists()
    seen: list[int] = []
    first = diagnose.triage(tmp_path, store=store, workers=1, watch=lambda progress: seen.append(progress.n_done))
    again = diagnose.triage(str(tmp_path), store=store, workers=1)
    assert (first.n_diagnosed, again.n_diagnosed, again.n_known) == (1, 0, 1) and seen[-1] == 1
    assert repr(first) == "<TriageRun 1 job: 1 diagnosed>" and first.to_dict()["schema"] == "diagnose-triage/1"
    assert callable(diagnose.triage) and callable(diagnose.compare)


@pytest.mark.parametrize(
    ("sources", "options"),
    [
        ((), {}),
        (3, {}),
        ([3], {}),
        ("", {}),
        ("x", {"workers": 0}),
        ("x", {"workers": True}),
        ("x", {"timeout": 0}),
        ("x", {"limit": 0}),
        ("x", {"memory": 8}),
        ("x", {"memory": "much"}),
        ("x", {"since": "yesterday"}),
        ("x", {"store": "mysql://x"}),
        ("x", {"store": None}),
        ("no-such-folder", {"dry_run": True}),
    ],
)
def test_triage_refuses(sources: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes no sense is refused, and no store is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(diagnose.DiagnoseError):
        diagnose.triage(sources, **options)
    assert not list(tmp_path.iterdir())


# Pages and pictures


def test_page(found: diagnose.Diagnosis, tmp_path: Path) -> None:
    """The page is the command's; written, it is whole or not there."""
    assert main([str(WORKER_FAULT), "--html", str(tmp_path / "by-command.html"), "-o", os.devnull]) == 0
    assert found.to_html(tmp_path / "page.html") is None
    assert (tmp_path / "page.html").read_text() == (tmp_path / "by-command.html").read_text() == found.to_html()
    for target in (tmp_path / "none" / "page.html", tmp_path, "a\0b"):
        with pytest.raises(diagnose.UsageError, match="cannot write"):
            found.to_html(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by-command.html", "page.html"]


def test_timelines(found: diagnose.Diagnosis, tmp_path: Path) -> None:
    """Timelines are the command's."""
    assert main([str(WORKER_FAULT), "--perfetto", str(tmp_path / "a.json"), "-o", os.devnull]) == 0
    assert found.to_perfetto(tmp_path / "b.json") == ()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_notebook_gets_a_frame(found: diagnose.Diagnosis) -> None:
    """The page is the value of one attribute of a frame that may run scripts and nothing else."""
    shown = found._repr_html_()
    head, _, rest = shown.partition('srcdoc="')
    assert head.startswith("<iframe ") and 'sandbox="allow-scripts"' in head and shown.count("<") == 2
    assert html.unescape(rest.removesuffix('"></iframe>')) == found.to_html()
    assert frame('"><script>').count("<") == 2


def test_what_was_not_kept(found: diagnose.Diagnosis) -> None:
    """Diagnoses that went through a pickle, or were asked to be small, have a page with tables, and say why there is no picture."""
    small = diagnose.diagnose(WORKER_FAULT, pictures=False)
    for one in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), small):
        assert one.to_json() == found.to_json()
        page = one.to_html()
        assert "<table" in page and "../index.html" not in page and len(page) < len(found.to_html()) / 2
        with pytest.raises(diagnose.UsageError, match="pictures=True"):
            one.plot_workers()
        assert one.plot_budget().texts


def test_a_log_alone(tmp_path: Path) -> None:
    """A diagnosis of a log has a page, and no pictures."""
    lines = [
        f" iteration {n:8d}/     100 | consumed samples: {n * 8:12d} | elapsed time per iteration (ms): "
        f"{1000 + (n > 30) * 400:.1f} | learning rate: 1.0E-4 | global batch size: {8:5d} | lm loss: 2.0E+00 |"
        for n in range(1, 61)
    ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    one = diagnose.diagnose(log)
    assert one.is_from_log and "<html" in one.to_html() and len(repr(one).splitlines()) == 1
    with pytest.raises(diagnose.UsageError, match="no operations to draw"):
        one.plot_workers()
    with pytest.raises(diagnose.UsageError, match="nothing to draw"):
        one.plot_budget()


@pytest.mark.parametrize("plot", ["plot_workers", "plot_timeline"])
def test_figures(found: diagnose.Diagnosis, plot: str) -> None:
    """A figure has title and legend, real colours on white, fits its canvas, and is a picture in a notebook."""
    figure = getattr(found, plot)()
    texts = [text.get_text() for text in figure.texts]
    assert texts[0].startswith("worker-fault: ") and figure.legends
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    drawn = file.getvalue().decode()
    assert "#fe0" not in drawn.lower() and read_colours()["heat8"] in drawn + read_colours()["heat8"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    canvas = figure.get_window_extent()
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    for text in figure.findobj(
        lambda artist: hasattr(artist, "get_text") and artist.get_text() and artist.get_visible()
    ):
        box = text.get_window_extent(renderer)
        assert box.x0 >= canvas.x0 - 1 and box.x1 <= canvas.x1 + 1, text.get_text()
        assert box.y0 >= canvas.y0 - 1 and box.y1 <= canvas.y1 + 1, text.get_text()


def test_colours_are_those_of_the_page() -> None:
    """Every colour that a drawing names is one of the page's; drawings of the page itself keep their stand-ins."""
    from diagnose.report.html.draw import COLOURS, colour

    assert set(COLOURS) <= read_colours().keys()
    with styled(read_colours()):
        assert colour("bad") == read_colours()["bad"]
    assert colour("bad") != read_colours()["bad"]


def test_types_ship() -> None:
    """The package says that it has types, and every name that it offers is there and documented."""
    assert (ROOT / "diagnose" / "py.typed").is_file()
    for name in diagnose.__all__:
        assert name.startswith("__") or getattr(diagnose, name).__doc__, name
    assert set(diagnose.__all__) <= set(dir(diagnose))
    for kind in (diagnose.Diagnosis, diagnose.Comparison, diagnose.Explanation, diagnose.Prices, diagnose.TriageRun):
        public = [name for name in vars(kind) if not name.startswith("_")]
        assert {"to_dict", "to_text"} <= set(public)
        assert all(
            getattr(kind, name).__doc__ for name in public if name not in {f.name for f in dataclasses.fields(kind)}
        )


#: What a user writes; every wrong line ends in the code of what mypy says of it.
SAMPLE = """
import io
from pathlib import Path

import diagnose
import pandas as pd


def look(path: Path) -> float:
    found = diagnose.diagnose(path, steps=range(3), meta={"tp_size": 8})
    diagnose.diagnose(io.BytesIO(b""))
    diagnose.diagnose(b"")
    diagnose.diagnose(pd.DataFrame())
    page: str = found.to_html()
    found.to_html("page.html")
    found.plot_workers().savefig("workers.png")
    verdict: str = found.verdict
    text: str = diagnose.compare(found, path).to_text(width=80) + diagnose.explain(path, "worker-fault").why
    step_s: float = diagnose.what_if(path, ["replace-worker"], scales="p2p x0.5").predicted_s
    try:
        diagnose.triage([path], store="sqlite:///x.db", workers=2).to_dict()["n_found"]
    except diagnose.DiagnoseError as error:
        print(error.message, error.where, page, verdict, text)
    return step_s + found.causes[0].confidence


diagnose.diagnose(3)  # arg-type
diagnose.diagnose("x", stesp="3")  # call-arg
diagnose.diagnose("x").verdict + 1  # operator
diagnose.triage(3)  # arg-type
"""


def test_a_users_program_passes_mypy(tmp_path: Path) -> None:
    """`mypy --strict` accepts what a user writes, and finds what is wrong in it."""
    pytest.importorskip("mypy.api", reason="mypy is not installed")
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path / "cache"),
            sample.name,
        ],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = {
        (int(line.split(":")[1]), line.rsplit("[", 1)[1].rstrip("]"))
        for line in done.stdout.splitlines()
        if ": error:" in line
    }
    wanted = {(n, line.rsplit("# ", 1)[1]) for n, line in enumerate(SAMPLE.splitlines(), start=1) if "  # " in line}
    assert said == wanted, done.stdout + done.stderr


def test_a_notebook_runs(tmp_path: Path) -> None:
    """A real kernel shows the page in a frame and figures as pictures; text beside them is one line."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    cells = [
        f"import diagnose\nfound = diagnose.diagnose({str(WORKER_FAULT)!r})\nfound",
        "found.plot_workers()",
        "found.plot_timeline()",
        f"diagnose.compare({str(FIXTURES['healthy'])!r}, found)",
        "found.causes_table()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    where = {"resources": {"metadata": {"path": str(ROOT)}}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", **where).execute()
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in notebook.cells]
    assert [{"text/html", "image/png"} & kinds for kinds in shown] == [
        {"text/html"}, {"image/png"}, {"image/png"}, {"text/html"}, {"text/html"},
    ]  # fmt: skip
    (first,) = notebook.cells[0].outputs
    assert first.data["text/html"].startswith("<iframe") and len(first.data["text/plain"].splitlines()) == 1
    assert all(len(cell.outputs) == 1 for cell in notebook.cells)
