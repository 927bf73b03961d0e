"""`--telemetry` of each command: a job alone, a page, many jobs, and jobs that are watched."""

import json
import shutil

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import diagnose
from diagnose.cli.main import main
from diagnose.faults.generate import generate
from diagnose.faults.spec import JobSpec
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.saved import restore
from diagnose.report.html.page import render_saved
from diagnose.report.schemas import make_schema
from tests.clusters.bridge import telemetry_of
from tests.clusters.prometheus import render_range
from tests.report.pages import assert_fits
from tests.trace.producers import megatron_lines

BEGAN_S = 1.75e9
SPEC = JobSpec(pp=2, dp=4, steps=24, workers_per_host=2, absolute_times=True, seed=5, forward_s=0.2, job_id="run-7")
FAULT = WorkerFault(places=((1, 1),), slowdown=1.5, onset=10)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a job, telemetry that shows why it is slow, and telemetry that does not."""
    folder = tmp_path_factory.mktemp("made")
    job = generate(SPEC, [FAULT])
    at = job.trace.schema.get_field_index("start_ts")
    moved = job.trace.set_column(at, "start_ts", pa.array(job.trace["start_ts"].to_numpy() + BEGAN_S))
    pq.write_table(moved, folder / "run-7.parquet")
    for name, sub_cause in (("hot", "thermal"), ("flat", None)):
        beside = telemetry_of(job, [FAULT], [sub_cause], began_s=BEGAN_S)
        (folder / f"{name}.json").write_text(render_range(beside.telemetry))
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Work in a folder with the job in it, and the telemetry beside that."""
    (tmp_path / "jobs").mkdir()
    shutil.copy(made / "run-7.parquet", tmp_path / "jobs")
    for name in ("hot.json", "flat.json"):
        shutil.copy(made / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_page(here, capsys):
    """A screen says why the machine is slow, or that nothing in its counters does."""
    assert main(["jobs/run-7.parquet", "--telemetry", "hot.json", "--width", "80"]) == 0
    hot = capsys.readouterr().out
    assert "slow worker, held back by heat" in hot
    assert "its SM clock is" in hot
    assert main(["jobs/run-7.parquet", "--telemetry", "flat.json", "--width", "80"]) == 0
    flat = capsys.readouterr().out
    assert "But     surer by the trace alone" in flat
    for page in (hot, flat):
        assert_fits(page)


def test_every_format(here, capsys):
    """JSON obeys its schema, Markdown and the page name the reason, and the page draws it."""
    assert main(["jobs/run-7.parquet", "--telemetry", "hot.json", "--format", "json", "--html", "page.html"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, make_schema("diagnosis"))
    assert document["telemetry"]["findings"][0]["kind"] == document["causes"][0]["subcause"]["kind"] == "thermal"
    page = (here / "page.html").read_text()
    assert "Clock of the SMs, card 1 of host-002" in page
    assert main(["jobs/run-7.parquet", "--telemetry", "flat.json", "--format", "markdown"]) == 0
    assert "nothing in the counters of card 1 of" in capsys.readouterr().out


def test_in_the_folder_of_the_trace(here, capsys):
    """Telemetry beside a trace is found without the option; what is of other machines gives a warning, and no error."""
    shutil.copy("hot.json", "jobs")
    assert main(["jobs", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["causes"][0]["subcause"]["kind"] == "thermal"
    text = (here / "hot.json").read_text()
    (here / "jobs/hot.json").write_text(text.replace("host-0", "other-0"))
    assert main(["jobs", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "telemetry" not in document
    assert any("telemetry is not used" in warning and "other-000" in warning for warning in document["warnings"])
    assert main(["jobs/run-7.parquet", "--telemetry", "jobs/hot.json"]) == 3
    error = capsys.readouterr().err
    assert "other-000" in error and "host-000" in error and error.count("\n") == 1


def test_a_diagnosis_that_was_kept(here, capsys):
    """A diagnosis that is read back says the same of the counters, and its page draws them."""
    assert main(["jobs/run-7.parquet", "--telemetry", "hot.json", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    kept = restore(document, min_speedup=1.02)
    assert kept.to_dict()["telemetry"] == document["telemetry"]
    assert kept.causes[0].subcause.kind == "thermal"
    assert "Clock of the SMs, card 1 of host-002" in render_saved(kept)
    del document["telemetry"]
    assert "telemetry" not in restore(document, min_speedup=1.02).to_dict()


def test_a_log_alone(here, capsys):
    """Telemetry beside a log alone is not used, and a warning says so."""
    lines = megatron_lines.run(range(1, 61), megatron_lines.noisy([(30, 1.0), (30, 1.3)]))
    (here / "train.log").write_text("\n".join(lines) + "\n")
    assert main(["train.log", "--telemetry", "hot.json", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert any("telemetry is not used" in warning for warning in document["warnings"])


def test_the_program_interface(here):
    """`diagnose.diagnose` takes the same."""
    found = diagnose.diagnose("jobs/run-7.parquet", telemetry="hot.json", pictures=False)
    assert found.causes[0].subcause.kind == "thermal"


def test_triage(here, capsys):
    """A triage of many jobs gives each what is of its machines; of one that has none a warning says so."""
    shutil.copy("jobs/run-7.parquet", "jobs/run-8.parquet")
    code = main(["triage", "jobs", "--store", "sqlite:///t.db", "--telemetry", "hot.json", "--workers", "1", "--quiet"])
    assert code == 0
    capsys.readouterr()
    assert main(["tickets", "--store", "sqlite:///t.db", "--all"]) == 0
    assert "held back by heat" in capsys.readouterr().out
    again = ["triage", "jobs", "--store", "sqlite:///t.db", "--workers", "1", "--quiet"]
    for telemetry, n_done in ((["hot.json"], 0), (["flat.json"], 2), ([], 2), ([], 0), (["hot.json"], 2)):
        assert main([*again, *(word for one in telemetry for word in ("--telemetry", one)), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["n_diagnosed"] == n_done
    assert main(["triage", "jobs", "--store", "sqlite:///t.db", "--telemetry", "nothing.json"]) == 2
    assert "nothing.json does not exist" in capsys.readouterr().err


def test_watch(here, capsys):
    """An episode of a watched job is called by its reason."""
    assert main(["watch", "jobs", "--once", "--store", "sqlite:///w.db", "--telemetry", "hot.json"]) == 0
    assert "slow worker, held back by heat" in capsys.readouterr().out
