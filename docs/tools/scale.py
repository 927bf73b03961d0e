"""Measures time and memory of a diagnosis against the operations of the job, and draws them with their exponents.

Enters: the published trace AR, which is thinned out or repeated over dp ranks. Leaves: docs/pictures/scale.png, which is committed.
Run it in the root of a clone, with the published traces beside it: `python -m docs.tools.scale`. It takes ten minutes, 5 GB of
memory and 2 GB of disk.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from docs.tools.shell import ROOT
from tests.benchmarks.processes import Process, spend

SOURCE = ROOT.parent / "shared/artifact/trace-AR.parquet"
PICTURE = ROOT / "docs/pictures/scale.png"
#: A part of the steps of AR, all of it, and so many copies of each dp rank: 10^4 to 10^8 operations.
SIZES = (1 / 11, 1, 8, 64, 256, 854)
#: From so many operations on the job is given less memory than it needs whole.
SAMPLED_OPS, SAMPLED_MEMORY = 60_000_000, "4G"


class Run(NamedTuple):
    """What one diagnosis took: seconds of CPU, and bytes at the peak."""

    n_ops: int
    cpu_s: float
    peak_bytes: int


@click.command()
@click.argument("sizes", nargs=-1, type=float)
def main(sizes: tuple[float, ...]) -> None:
    """Measure all sizes, or those given as copies of AR, and draw them."""
    runs = []
    for size in sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.parquet")
            _write_job(path, size)
            runs.append(_measure(path))
        click.echo(f"{runs[-1].n_ops:>11,} operations  {runs[-1].cpu_s:7.1f} s  {runs[-1].peak_bytes / 1e6:7.0f} MB")
    _draw(runs)


def _write_job(path: Path, copies: float) -> None:
    """Write AR with so many copies of each dp rank, one after the other; below 1, with that part of its steps."""
    table = pq.read_table(SOURCE)
    if copies < 1:
        steps = np.unique(table["step"].to_numpy())
        table = table.filter(pc.is_in(table["step"], pa.array(steps[: max(3, round(len(steps) * copies))])))
    counted = {name: table[name].to_numpy().astype(np.int64) for name in ("dp_rank", "rank")}
    with pq.ParquetWriter(path, _number(table, counted, 0).schema) as writer:
        for copy in range(max(1, round(copies))):
            writer.write_table(_number(table, counted, copy))


def _number(table: pa.Table, counted: dict[str, np.ndarray], copy: int) -> pa.Table:
    """Give the dp ranks of a copy numbers of their own."""
    for name, values in counted.items():
        numbers = pa.array((values + copy * (int(values.max()) + 1)).astype(np.int32))
        table = table.set_column(table.column_names.index(name), name, numbers)
    return table


def _measure(path: Path) -> Run:
    """Diagnose a job in a process of its own."""
    n_ops = pq.read_metadata(path).num_rows
    memory = ["--memory", SAMPLED_MEMORY] if n_ops > SAMPLED_OPS else []
    command = [sys.executable, "-m", "diagnose", str(path), "--format", "json", *memory]
    cost = spend(Process(command, ROOT, os.environ), path.with_suffix(".json"))
    return Run(n_ops, cost.cpu_s, cost.peak_bytes)


def _draw(runs: list[Run]) -> None:
    """Draw seconds and bytes against operations, with the exponents between the two largest that were read whole."""
    n_ops = np.array([run.n_ops for run in runs])
    whole = n_ops <= SAMPLED_OPS
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = (
        ("CPU time, seconds", np.array([run.cpu_s for run in runs])),
        ("memory at the peak, MB", np.array([run.peak_bytes / 1e6 for run in runs])),
    )
    for axes, (label, values) in zip(figure.subplots(1, 2), panels, strict=True):
        axes.loglog(n_ops[whole], values[whole], "o-", color="#2f5d8a")
        axes.loglog(n_ops[~whole], values[~whole], "s", color="#bf5b3d", label=f"with --memory {SAMPLED_MEMORY}")
        large = np.flatnonzero(whole)[-2:]
        if len(large) == 2:
            exponent = np.diff(np.log(values[large]))[0] / np.diff(np.log(n_ops[large]))[0]
            axes.set_title(f"exponent {exponent:.2f} from {n_ops[large[0]]:,} operations on", fontsize=9)
        axes.set_xlabel("operations")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if not whole.all():
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
