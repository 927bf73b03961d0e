"""Evaluations told from training in jobs of two processes, whatever mode a wrapper, a layer or a second model was left in.

Needs torch; Lightning's job is skipped where it is not installed.
"""

import importlib.util
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from tests.record.test_torch_jobs import JOBS, read, run

sys.path.insert(0, str(JOBS))
from modes import EVALUATE, EVERY, N_MICROBATCHES, N_RANKS, N_STEPS, NEVER, WAYS

sys.path.remove(str(JOBS))
DUE = [step for step in range(N_STEPS) if step % EVERY == EVERY - 1]


def count(rows):
    """Count the rows of each type in each step of each rank."""
    counts = rows.groupby(["step", "rank", "optype"], observed=True).size().unstack(fill_value=0)
    assert len(counts) == N_STEPS * N_RANKS
    return counts.reindex(columns=counts.columns.union(["eval"]), fill_value=0)


@pytest.fixture(scope="module", params=["ddp", "fsdp1", "fsdp2"])
def jobs(request, tmp_path_factory):
    """Run a job in each mode."""
    folder = tmp_path_factory.mktemp(request.param)
    run("modes.py", folder, request.param)
    return request.param, folder


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", EVALUATE + NEVER)
def test_modes(jobs, mode, way):
    """Forwards with a backward are training, and what is evaluated is one row of the step before it."""
    wrapper, folder = jobs
    counts = count(read(folder / mode / way))
    assert (counts[["forward-compute", "backward-compute"]] == N_MICROBATCHES).all(axis=None)
    assert (counts["optimizer"] == 1).all()
    evaluated = counts.index.get_level_values("step").isin(DUE) & (mode in EVALUATE)
    assert (counts["eval"] == evaluated).all()
    if wrapper == "ddp":
        assert (counts["grads-reduce-scatter"] == 1).all()


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed: no job of it")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning(tmp_path, accumulate):
    """After a validation each step trains as before, with its reduction."""
    run("lightning_modes.py", tmp_path, str(accumulate))
    counts = count(read(tmp_path))
    assert (counts[["forward-compute", "backward-compute"]] == accumulate).all(axis=None)
    assert (counts[["optimizer", "grads-reduce-scatter"]] == 1).all(axis=None)
    assert (counts["eval"] == counts.index.get_level_values("step").isin(DUE)).all()
