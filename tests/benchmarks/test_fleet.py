"""What the fleet of a study costs: 3,079 jobs read, added up and written as pages; no time is asserted, answers are.

Run with `pytest tests/benchmarks/test_fleet.py --benchmarks -s`. Jobs are varied fixtures; CPU seconds of this process.
"""

import itertools
import time
from pathlib import Path

import pytest

from diagnose.cli.site import write_site
from diagnose.fleet.measure import FleetQuery, measure_fleet
from diagnose.report.fleet import render
from diagnose.triage.collect import collect
from diagnose.triage.store import Store
from tests.fleet.stores import BAD_HOST, fill

pytestmark = pytest.mark.benchmark
N_JOBS = 3_079


def test_a_study_of_jobs(tmp_path: Path) -> None:
    """Read, add up, write all pages, and write them again."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    fill(url, N_JOBS)
    with Store(url) as store:
        took = {"": time.process_time()}
        jobs = collect(store)
        took["read"] = time.process_time()
        fleet = measure_fleet(jobs, FleetQuery(), store=store.name)
        took["add up"] = time.process_time()
        page = render(fleet, width=100, color=False)
        took["page of text"] = time.process_time()
        first = write_site(store, fleet, tmp_path / "site")
        took["site"] = time.process_time()
        again = write_site(store, fleet, tmp_path / "site")
        took["site, unchanged"] = time.process_time()
    for (_, before), (what, after) in itertools.pairwise(took.items()):
        print(f"\n{what}: {after - before:.2f} s CPU", end="")
    files = [path.stat().st_size for path in (tmp_path / "site").rglob("*") if path.is_file()]
    index = (tmp_path / "site/index.html").stat().st_size
    print(f"\n{len(files):,} files, {sum(files) / 2**20:.0f} MiB; index {index / 2**20:.1f} MiB")
    assert fleet.totals.n_jobs == N_JOBS == fleet.totals.n_counted + fleet.totals.n_failed
    assert page.startswith("worst: ")
    assert fleet.hosts.blamed[0].host == BAD_HOST and fleet.hosts.blamed[0].proposal
    assert (first.n_kept, again.n_written, again.n_kept) == (0, 0, first.n_written)
