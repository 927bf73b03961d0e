"""How fast AR repeated 64 times over dp ranks (7.5 million operations) is read and analysed; no time is asserted, answers are.

Run with `pytest tests/benchmarks --benchmarks -s`. Times vary between machines and from run to run; what stands is the ratio to
reading the same file with pyarrow, in the same run.
"""

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from diagnose.model.whatif import WhatIf
from diagnose.trace.load import load_trace
from diagnose.whatif.scenarios import explore, prepare

pytestmark = pytest.mark.benchmark
N_RUNS = 5


def repeat(source: Path, target: Path, copies: int) -> Path:
    """Write a trace whose dp ranks are repeated; copies of a rank have equal times."""
    table = pq.read_table(source)
    n_dp = pc.max(table["dp_rank"]).as_py() + 1
    i, j = table.column_names.index("dp_rank"), table.column_names.index("rank")
    n_ranks = pc.max(table["rank"]).as_py() + 1
    dp, rank = table["dp_rank"].to_numpy().astype(np.int16), table["rank"].to_numpy().astype(np.int32)
    parts = [
        table.set_column(i, "dp_rank", pa.array(dp + np.int16(k * n_dp))).set_column(
            j, "rank", pa.array(rank + np.int32(k * n_ranks))
        )
        for k in range(copies)
    ]
    pq.write_table(pa.concat_tables(parts), target)
    return target


def analyse(path: Path) -> tuple[WhatIf, float, float]:
    """Load and analyse; give the result and the seconds of each."""
    start = time.perf_counter()
    trace = load_trace(path)
    loaded = time.perf_counter()
    found = explore(trace, prepare(trace))
    return found, loaded - start, time.perf_counter() - loaded


def timed(call: Callable[[], Any]) -> float:
    """Give the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.fixture(scope="module")
def ar(shared: Path) -> Path:
    """Give the real trace."""
    return shared / "artifact" / "trace-AR.parquet"


def test_ar_64_times(ar: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """64 copies of each dp rank have the same S, and each copy its original's: exact S_w of 1,024 workers."""
    path = repeat(ar, tmp_path_factory.mktemp("ar64") / "ar64.parquet", 64)
    n_rows = pq.read_metadata(path).num_rows
    reading, loading, exploring = [], [], []
    for _ in range(N_RUNS):  # taken in turn, so that whatever else the machine does hits all alike
        reading.append(timed(lambda: pq.read_table(path)))
        found, load_s, explore_s = analyse(path)
        loading.append(load_s)
        exploring.append(explore_s)
    read, whole = statistics.median(reading), statistics.median(a + b for a, b in zip(loading, exploring, strict=True))
    print(
        f"\n\nAR x 64: {n_rows:,} operations, {path.stat().st_size / 1e6:.0f} MB, median of {N_RUNS} runs (least, most)"
    )
    for name, seconds in (
        ("pyarrow.parquet.read_table", reading),
        ("load_trace", loading),
        ("prepare + explore", exploring),
    ):
        print(f"  {name:28} {statistics.median(seconds):7.3f} s  ({min(seconds):.3f}, {max(seconds):.3f})")
    print(f"  whole / read_table           {whole / read:7.2f}")
    print(f"  peak memory of this process  {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:7.2f} GiB")

    once, _, _ = analyse(ar)
    n_dp, n_stages = once.by_worker.shape
    assert found.by_worker.shape == (64 * n_dp, n_stages)
    assert found.slowdown == pytest.approx(once.slowdown, rel=1e-9)
    np.testing.assert_allclose(found.simulated_s, once.simulated_s, rtol=1e-9)
    np.testing.assert_allclose(found.ideal_s, once.ideal_s, rtol=1e-9)
    np.testing.assert_allclose(found.by_stage, once.by_stage, rtol=1e-9)
    np.testing.assert_allclose(found.by_dp, np.tile(once.by_dp, 64), rtol=1e-9)
    np.testing.assert_allclose(found.by_worker, np.tile(once.by_worker, (64, 1)), rtol=1e-9)
    assert found.by_optype == pytest.approx(once.by_optype, rel=1e-9)


def test_time_grows_with_the_operations(ar: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From dp 4 to dp 256 the answer stays and the time for each operation is printed."""
    folder = tmp_path_factory.mktemp("growth")
    slowdowns = []
    print("\n\n   dp  operations   read_table  load_trace     what-if   whole/read  us/op")
    for copies in (1, 2, 4, 8, 16, 32, 64):
        path = repeat(ar, folder / f"ar{copies}.parquet", copies)
        n_rows = pq.read_metadata(path).num_rows
        runs = []
        for _ in range(3):
            read_s = timed(lambda path=path: pq.read_table(path))  # type: ignore[misc]
            found, load_s, explore_s = analyse(path)
            runs.append((read_s, load_s, explore_s))
        slowdowns.append(found.slowdown)
        read_s, load_s, explore_s = (statistics.median(column) for column in zip(*runs, strict=True))
        whole = load_s + explore_s
        print(
            f"{4 * copies:5} {n_rows:11,} {read_s:11.3f}s {load_s:10.3f}s {explore_s:10.3f}s "
            f"{whole / read_s:11.2f} {whole / n_rows * 1e6:7.3f}"
        )
        path.unlink()
    np.testing.assert_allclose(slowdowns, slowdowns[0], rtol=1e-9)
