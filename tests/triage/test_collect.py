"""The store read as a fleet, from each kind of database."""

import json

import pytest
import sqlalchemy as sa

from diagnose.fleet.totals import add_up
from diagnose.model.request import Request
from diagnose.model.saved import restore
from diagnose.pipeline import diagnose_job
from diagnose.report.gist import hours_lost_a_day
from diagnose.report.triage import render
from diagnose.triage import collect as collecting
from diagnose.triage.census import take_census
from diagnose.triage.collect import collect, read_diagnoses
from diagnose.triage.rows import cause_rows, job_row
from diagnose.triage.schema import DOCUMENTS
from diagnose.triage.store import Store
from diagnose.triage.tally import Tally
from tests.fixture_jobs import FIXTURES
from tests.fleet.stores import NEWEST_S, diagnosed, put, vary


def worker_fault(**job: object) -> dict:
    """Give a diagnosis with other facts about the job."""
    found = json.loads(diagnosed("worker-fault"))
    found["job"] |= job
    return found


def test_a_job_is_what_its_diagnosis_says(store_url: str) -> None:
    """Figures, causes, hosts and times of a job come from its row and its document."""
    with Store(store_url) as store:
        found = vary("worker-fault", 7)
        put(store, "/traces/a/j.parquet", found, at_s=NEWEST_S)
        (job,) = collect(store)
    assert (job.location, job.folder, job.verdict, job.when_s) == (
        "/traces/a/j.parquet",
        "/traces/a",
        "straggling",
        NEWEST_S,
    )
    assert job.hours_wasted == found["gpu_hours"]["wasted"] and job.slowdown == found["slowdown"]
    assert job.hosts == tuple(found["job"]["hosts"])
    (cause,) = job.causes
    assert cause.hosts == tuple(found["causes"][0]["where"]["hosts"]) and cause.who == "platform"
    share = 1 - found["plan"]["predicted_step_time"] / found["step_time"]["recorded"]
    back = min(share * found["gpu_hours"]["analysed"], found["gpu_hours"]["wasted"])
    assert job.hours_recoverable == pytest.approx(back)
    assert job.by_optype["forward-compute"] == found["what_if"]["by_optype"]["forward-compute"]
    assert len(job.step_ratio) == 12


def test_no_more_comes_back_than_was_lost(tmp_path) -> None:
    """A layout may beat the job without its faults: of the lost hours all come back, and no more."""
    found = worker_fault()
    found["plan"]["predicted_step_time"] = found["step_time"]["recorded"] / 100
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        put(store, "/j", found, at_s=NEWEST_S)
        (job,) = collect(store)
    assert job.hours_recoverable == job.hours_wasted == found["gpu_hours"]["wasted"]


def test_triage_fleet_and_gauges_have_one_number(tmp_path) -> None:
    """What an inconclusive job lost nobody knows: no sum has it, and it is said that it is left out."""
    jobs = {"/a": worker_fault(), "/b": worker_fault() | {"verdict": "inconclusive"}}
    tally = Tally()
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        for location, found in jobs.items():
            put(store, location, found, at_s=NEWEST_S)
            tally.add(job_row(location, found), cause_rows(location, found))
        fleet, census = add_up(collect(store)), take_census(store)
    run = tally.sum_up(2, store="", took_s=1.0, store_s=0.0)
    wasted = jobs["/a"]["gpu_hours"]["wasted"]
    assert fleet.hours_wasted == run.gpu_hours_wasted == census.gpu_hours_wasted == wasted > 0
    assert sum(census.wasted_by_cause.values()) <= wasted
    assert "; 1 inconclusive job left out" in render(run, width=200, color=False)


def test_a_job_is_as_much_slower_in_each_report(tmp_path) -> None:
    """What is lost and has no name is no fault: pages, triage, fleet, and the GPU hours a day leave it out."""
    found = worker_fault()
    found["ledger"]["unexplained"] = 0.4
    found["causes"][0] |= {"share": 0.6, "recoverable": 0.01}
    times, tally = found["step_time"], Tally()
    without_s = times["clean"] + 0.4 * (times["recorded"] - times["clean"])
    diagnosis = restore(found, min_speedup=1.02)
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        put(store, "/a", found, at_s=NEWEST_S)
        (job,) = collect(store)
    tally.add(job_row("/a", found), cause_rows("/a", found))
    (costly,) = tally.costly
    assert diagnosis.without_named_s == pytest.approx(without_s)
    assert job.slower == costly.slower == pytest.approx(times["recorded"] / without_s)
    a_day = 24 * found["job"]["gpus"] * (1 - without_s / times["recorded"])
    assert hours_lost_a_day(diagnosis) == pytest.approx(a_day)


@pytest.mark.parametrize(
    ("finished", "when_s"),
    [
        ("2026-02-01T00:00:00Z", 1_769_904_000.0),
        ("2026-02-01", 1_769_904_000.0),
        ("2999-01-01", NEWEST_S),
        ("soon", NEWEST_S),
        (None, NEWEST_S),
    ],
)
def test_when_a_job_ran(tmp_path, finished: str | None, when_s: float) -> None:
    """A job ran when it says that it ended, if that is a time before its diagnosis, else when it was diagnosed."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        put(store, "/j", worker_fault(finished_at=finished), at_s=NEWEST_S)
        (job,) = collect(store)
    assert job.when_s == when_s and job.diagnosed_at_s == pytest.approx(NEWEST_S)


def test_failed_and_unreadable_jobs(store_url: str) -> None:
    """A failed job has its reason, and one whose diagnosis cannot be read has failed, without an end of the others."""
    with Store(store_url) as store:
        put(store, "/a", None, at_s=NEWEST_S, failure="timeout", reason="over 600 s")
        for location in ("/b", "/c", "/d"):
            put(store, location, worker_fault(), at_s=NEWEST_S)
        for location, document in (("/b", "{"), ("/c", '{"schema": "diagnose/9"}')):
            change = sa.update(DOCUMENTS).where(DOCUMENTS.c.location == location).values(document=document)
            store.transact(lambda connection, change=change: connection.execute(change))
        jobs = collect(store)
    assert [job.location for job in jobs] == ["/a", "/b", "/c", "/d"]
    assert [job.failure for job in jobs] == ["timeout", "document", "document", None]
    assert "diagnose/9" in jobs[2].reason and jobs[0].reason == "over 600 s"
    assert [job.counts for job in jobs] == [False, False, False, True]


def test_chunks(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of documents read at a time, every job is read once, by location."""
    locations = [f"/{name}" for name in ("z", "B", "a-1", "a_1", "a", "ä", "Z", "b")]
    with Store(store_url) as store:
        for location in locations:
            put(store, location, worker_fault(), at_s=NEWEST_S)
        for size in (1, 3, 8, 500):
            monkeypatch.setattr(collecting, "CHUNK", size)
            assert [job.location for job in collect(store)] == sorted(locations)
            assert sorted(kept.location for kept in read_diagnoses(store, {"/z", "/ä"})) == ["/z", "/ä"]


def test_hosts_of_a_trace_reach_the_fleet(tmp_path) -> None:
    """The hosts in a trace are in its diagnosis, each once, and so in the store."""
    import pyarrow.parquet as pq

    table = pq.read_table(FIXTURES["healthy"])
    hosts = [f"gpu-{dp}" for dp in table["dp_rank"].to_pylist()]
    path = tmp_path / "with-hosts.parquet"
    pq.write_table(table.append_column("host", [hosts]), path)
    found = diagnose_job(Request(path)).to_dict()
    assert found["job"]["hosts"] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        put(store, str(path), found, at_s=NEWEST_S)
        assert collect(store)[0].hosts == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert json.loads(diagnosed("healthy"))["job"]["hosts"] is None
