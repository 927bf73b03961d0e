"""Nights of real jobs through triage, tickets and fleet: every finding is told once, closed once and reopened once."""

import contextlib
import datetime as dt
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diagnose.cli.main import main
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from tests.triage.conftest import fresh_database, postgres_server, start

__all__ = ["postgres_server"]

#: The healthy run of each shape, by the number of its data-parallel ranks.
HEALTHY = {2: "healthy-pp4dp2-b", 4: "healthy-pp2dp4-b"}
#: Real jobs in which nothing is to be found.
CLEAN = {"healthy-pp4dp2-b", "healthy-pp2dp4-b", "noise"}
#: Those that also run under another name: a worker's fault, one of the whole job, and nothing.
COPIED = ("worker-quota", "checkpoint", "noise")


class Nights:
    """A folder of traces and a store; each night brings a run of every job, and of some under another name too."""

    def __init__(
        self, real: Path, folder: Path, store: str, capsys: pytest.CaptureFixture[str], *, with_times: bool
    ) -> None:
        self.real = {path.stem: path for path in sorted(real.glob("*.parquet"))}
        self.folder = folder
        self.store = store
        self.capsys = capsys
        self.with_times = with_times
        self.n = 0

    def run(self, *args: str) -> str:
        """Run a command on the store, and give what it prints."""
        assert main([*args, "--store", self.store]) == 0
        return self.capsys.readouterr().out

    def put(self, trace: str, path: Path, **metadata: object) -> None:
        """Write a trace of the corpus under another name, with times of tonight where it says any."""
        table = put_on_one_clock(pq.read_table(self.real[trace])) if trace in CLEAN else pq.read_table(self.real[trace])
        job = json.loads(table.schema.metadata[b"diagnose.job"])
        for key in ("started_at", "finished_at"):
            del job[key]
        if self.with_times:
            began = dt.datetime(2026, 1, 1, 20, tzinfo=dt.UTC) + dt.timedelta(days=self.n)
            job |= {"started_at": began.isoformat(), "finished_at": (began + dt.timedelta(hours=3)).isoformat()}
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata({"diagnose.job": json.dumps(job | metadata)}), path)

    def pass_(self, *, clean: bool = False) -> list[dict]:
        """Let every job run, and tell of what is found."""
        self.run_jobs(clean=clean)
        return self.tell()

    def names_with_findings(self) -> set[str]:
        """Name the jobs in which something is to be found."""
        found = {*self.real, *(f"copy of {name}" for name in COPIED)}
        return {name for name in found if name.removeprefix("copy of ") not in CLEAN}

    def run_jobs(self, *, clean: bool = False) -> None:
        """Let every job run once more."""
        self.n += 1
        for name in self.real:
            shape = json.loads(pq.read_schema(self.real[name]).metadata[b"diagnose.job"])["dp_size"]
            trace = HEALTHY[shape] if clean else name
            self.put(trace, self.folder / f"{name}.parquet", job_id=f"{name}-2026010{self.n}")
            if name in COPIED:
                copy = self.folder / "copies" / f"{name}.parquet"
                self.put(trace, copy, job_id=str(4_242_000 + self.n), name=f"copy of {name}")

    def tell(self) -> list[dict]:
        """Triage what is new, and give the tickets."""
        self.run("triage", str(self.folder), "--quiet", "--workers", "1")
        return self.tickets()

    def tickets(self) -> list[dict]:
        """Give the tickets of what was triaged."""
        return [json.loads(line) for line in self.run("tickets", "--min-gpu-hours", "0", "--fixed").splitlines()]


def put_on_one_clock(table: pa.Table) -> pa.Table:
    """Let each step begin when the one before has ended: only such a trace shows that nothing lies between the steps."""
    rows = table.to_pandas()
    ends = (rows["start_ts"] + rows["duration"]).groupby(rows["step"]).max()
    rows["start_ts"] += rows["step"].map(ends.cumsum().shift(fill_value=0))
    return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(table.schema.metadata)


@pytest.fixture(params=["times, sqlite", "no times, postgresql"])
def nights(request: pytest.FixtureRequest, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Nights:
    """Give nights of the real jobs, that say when they ran, or do not."""
    times, kind = request.param.split(", ")
    is_file = kind == "sqlite"
    url = (
        f"sqlite:///{tmp_path / 'store.db'}" if is_file else fresh_database(request.getfixturevalue("postgres_server"))
    )
    return Nights(shared / "real", tmp_path / "traces", url, capsys, with_times=times == "times")


def events(tickets: list[dict]) -> Counter[tuple[str, str]]:
    """Count events by job."""
    return Counter((ticket["name"], ticket["event"]) for ticket in tickets)


def test_told_once_closed_once_reopened_once(nights: Nights) -> None:
    """Ten real jobs, and copies under other names: shapes agree, names differ, and no finding is lost or doubled."""
    names = nights.names_with_findings()
    assert len(names) == 9
    opened = nights.pass_()
    assert events(opened) == dict.fromkeys(((name, "opened") for name in names), 1)
    assert nights.tell() == []
    by_name = {ticket["name"]: ticket for ticket in opened}
    title = by_name["worker-quota"]["title"]
    assert title == "worker-quota: slow worker at dp 1, stage 2, steps 1.38x"
    assert by_name["copy of worker-quota"]["title"] == f"copy of {title}"

    fleet = json.loads(nights.run("fleet", "--format", "json"))
    a_day = {finding["fingerprint"]: finding["gpu_hours_lost_per_day"] for finding in fleet["night"]["findings"]}
    assert a_day == {ticket["fingerprint"]: pytest.approx(ticket["gpu_hours_lost_per_day"]) for ticket in opened}
    assert {finding["state"] for finding in fleet["night"]["findings"]} == {"new"}
    page = nights.run("fleet")
    assert "13 jobs; all are new: nothing to compare with" in page
    worst = page.split("Jobs that lose most GPU hours")[1].split("\n\n")[0]
    assert not any(name in worst for name in CLEAN)

    fixed = nights.pass_(clean=True)
    assert events(fixed) == dict.fromkeys(((name, "fixed") for name in names), 1)
    assert {ticket["id"] for ticket in fixed} == {ticket["id"] for ticket in opened}
    assert nights.tell() == []

    again = nights.pass_()
    assert events(again) == dict.fromkeys(((name, "reopened") for name in names), 1)
    assert {ticket["fingerprint"] for ticket in again} == {ticket["fingerprint"] for ticket in opened}
    assert {ticket["id"] for ticket in again}.isdisjoint(ticket["id"] for ticket in opened)
    assert nights.tell() == []


@pytest.mark.parametrize("nights", ["times, sqlite"], indirect=True)
def test_strangers_with_numbers_for_ids(nights: Nights) -> None:
    """A clean job of the same shape and folder, known by a scheduler's number alone, closes nobody's ticket."""
    for number, trace in enumerate(("worker-quota", HEALTHY[2]), start=4711):
        nights.n += 1
        nights.put(trace, nights.folder / f"{number}.parquet", job_id=str(number))
        told = nights.tell()
        assert [(ticket["name"], ticket["event"]) for ticket in told] == (
            [("4711", "opened")] if number == 4711 else []
        )


@pytest.mark.parametrize("nights", ["no times, sqlite"], indirect=True)
def test_killed_in_the_middle_and_two_at_once(nights: Nights) -> None:
    """A triage that dies, two that go on side by side, and tickets after each: every finding is told once, and none is closed."""
    nights.run_jobs()
    for name in nights.real:  # what is found in a second is written at once: a night must take some
        for n in range(6):
            nights.put(HEALTHY[2], nights.folder / f"{name}-{n}.parquet", job_id=f"sound-{name}-{n}")
    args = ("triage", str(nights.folder), "--store", nights.store, "--quiet", "--workers", "1")
    told: list[dict] = []
    dying = start(*args)
    while not told:
        assert dying.poll() is None, "it was done before it could be killed"
        time.sleep(0.2)
        with contextlib.suppress(AssertionError):  # there is no store yet
            told += nights.tickets()
    os.kill(dying.pid, signal.SIGKILL)
    dying.communicate()
    told += nights.tickets()
    assert 0 < len(told) < 9, "it was killed in the middle"
    for triage in [start(*args), start(*args)]:
        out, err = triage.communicate(timeout=300)
        assert triage.returncode == 0, out + err
        told += nights.tickets()
    assert events(told) == dict.fromkeys(((name, "opened") for name in nights.names_with_findings()), 1)


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_fingerprints_stay_though_values_change(shared: Path, name: str) -> None:
    """The first steps of a job, the last, and all of them have the same finding."""
    path = shared / "artifact" / f"trace-{name}.parquet"
    steps = np.unique(pq.read_table(path, columns=["step"])["step"].to_numpy())
    third = len(steps) // 3
    found = [diagnose_job(Request(path, steps=some)).causes for some in (steps, steps[: 2 * third], steps[third:])]
    assert len({causes[0].recoverable for causes in found}) == 3
    assert len({causes[0].fingerprint for causes in found}) == 1
