"""Real jobs of a few processes (gloo), recorded: what is in the files, and what `diagnose` says of them.

They sleep instead of computing, so that four of them fit on two cores. Needs torch, and is skipped without.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import diagnose

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

JOBS = Path(__file__).resolve().parents[1] / "torch_jobs"
#: What others on a busy machine do to a job of sleeping processes stays below this part of its step time; the faults are above it.
NOISE = 0.1


def run(job, out, *options):
    """Run a job and give what it printed."""
    environment = os.environ | {"PYTHONPATH": str(JOBS.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(JOBS / job), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def read(out):
    """Read the rows of all ranks."""
    return pd.concat([pq.read_table(path).to_pandas() for path in sorted(out.glob("start-*/rank-*.parquet"))])


def found_in(out):
    """Give the causes worth more than the noise of the machine, the strongest first."""
    causes = diagnose.diagnose(out).causes
    return sorted((c for c in causes if c.recoverable > NOISE), key=lambda c: -c.recoverable)


#: Chunks a rank, and how often a microbatch goes over to another rank on its way through the model.
SCHEDULES = {
    "gpipe": (1, 3),
    "1f1b": (1, 3),
    "interleaved": (2, 7),
    "zero-bubble": (2, 7),
    "zbv": (2, 6),
    "dualpipev": (2, 6),
}
SPLIT = ("zero-bubble", "zbv", "dualpipev")
V_SHAPED = ("zbv", "dualpipev")


def first_named(out):
    """Give the strongest cause that has a name."""
    return next(cause for cause in found_in(out) if cause.cause != "unknown")


@pytest.fixture(scope="module", params=SCHEDULES)
def healthy(request, tmp_path_factory):
    """Run each schedule without a fault, recorded and profiled at once."""
    folder = tmp_path_factory.mktemp(request.param)
    profile = str(folder / "profile")
    run("pipeline.py", folder / "trace", "--schedule", request.param, "--profile", profile, "--steps", "8")
    return request.param, folder


def test_every_operation(healthy):
    """Each stage has a row for every forward and backward of every microbatch and chunk, and each send has its recv."""
    schedule, folder = healthy
    rows = read(folder / "trace")
    n_chunks, n_moves = SCHEDULES[schedule]
    assert set(rows.mc) == {-1, *range(n_chunks)}
    names = ["forward-compute", "backward-compute", "backward-input", "backward-weight"]
    counts = rows[rows.optype.isin(names)].pivot_table(
        index=["step", "stage", "mc", "gmc", "mb_id"],
        columns="optype",
        values="duration",
        aggfunc="size",
        observed=True,
    )
    counts = counts.reindex(columns=names).fillna(0).astype(int)
    assert len(counts) == 8 * 4 * 8 * n_chunks
    assert (counts["forward-compute"] == 1).all()
    # A backward is one, or the gradients of its input and those of its weights.
    assert (counts["backward-input"] == counts["backward-weight"]).all()
    assert (counts["backward-compute"] + counts["backward-input"] == 1).all()
    assert (counts["backward-input"] == 1).any() == (schedule in SPLIT)
    stage, chunk, place = (counts.index.get_level_values(name) for name in ("stage", "mc", "gmc"))
    bent = (chunk == 1) & (schedule in V_SHAPED)
    assert (place == np.where(bent, 7 - stage, 4 * chunk + stage)).all()
    for optype in ("forward-send", "forward-recv", "backward-send", "backward-recv"):
        assert (rows.optype == optype).sum() == 8 * 8 * n_moves, optype
    once = rows[rows.optype.isin(["optimizer", "optimizer-clip-main-grad"])]
    assert (once.groupby(["step", "stage", "optype"], observed=True).size() == 1).all()


def test_it_agrees_with_the_profiler(healthy):
    """Forwards and backwards begin and end where torch.profiler saw their layers work, to a millisecond."""
    schedule, folder = healthy
    if schedule in SPLIT:
        pytest.skip("what belongs to a part of a backward is not told by the names of its layers")
    rows = read(folder / "trace")
    apart = []
    for rank in range(4):
        layers = layers_of(folder / "profile" / f"rank{rank}.json")
        own = rows[rows["rank"] == rank]
        for optype in ("forward-compute", "backward-compute"):
            mine = own[own.optype == optype].sort_values("start_ts")
            assert len(mine) == len(layers[optype])
            start_s, end_s = np.array(layers[optype]).T
            if optype == "forward-compute" and rank == 3:
                end_s = np.full_like(end_s, np.nan)  # the loss follows, which is no layer
            apart += [mine.start_ts - start_s, mine.start_ts + mine.duration - end_s]
    apart_s = np.abs(np.concatenate(apart))
    apart_s = apart_s[~np.isnan(apart_s)]
    assert np.median(apart_s) < 1e-3
    assert np.mean(apart_s < 1e-3) > 0.9, "the rest are processes that had to wait for a core"


def layers_of(path):
    """Read from a profile when the layers of each microbatch worked, forwards and backwards: unix seconds."""
    profile = json.loads(path.read_text())
    base_us = profile["baseTimeNanoseconds"] / 1e3
    events = [e for e in profile["traceEvents"] if e.get("ph") == "X" and "ts" in e]

    def spans(name):
        found = [((base_us + e["ts"]) / 1e6, e["dur"] / 1e6) for e in events if e["name"].startswith(name)]
        return sorted((start, start + length) for start, length in found)

    # The first time, each schedule runs every layer once to learn the shapes of what it sends.
    forwards, slept = spans("layers"), spans("autograd::engine::evaluate_function: _SleepingBackward")
    ended = np.array([end for _, end in spans("autograd::engine::evaluate_function: _SleepingForWeightsBackward")])
    backwards = [(start, ended[np.searchsorted(ended, end)]) for start, end in slept]
    return {"forward-compute": drop_shapes(forwards), "backward-compute": drop_shapes(backwards)}


def drop_shapes(spans):
    """Leave out what was run before the first step."""
    return spans[len(spans) % 8 :]


def test_healthy(healthy):
    """Of a job without a fault no cause is named beyond the noise of a machine that runs other things."""
    _, folder = healthy
    assert [cause.cause for cause in found_in(folder / "trace") if cause.cause != "unknown"] == []


@pytest.mark.parametrize(
    ("schedule", "fault", "cause", "stages"),
    [
        ("1f1b", "slow-stage", "stage-imbalance", [1]),
        ("interleaved", "long-loss", "stage-imbalance", [3]),
        ("gpipe", "gc", "garbage-collection", []),
        ("zero-bubble", "long-loss", "stage-imbalance", [3]),
        ("zbv", "slow-stage", "stage-imbalance", [1]),
    ],
)
def test_faults_are_named(tmp_path, schedule, fault, cause, stages):
    """A slow stage, a long loss and collections on single ranks are named first, in their state."""
    run("pipeline.py", tmp_path, "--schedule", schedule, "--fault", fault, "--steps", "12")
    found = first_named(tmp_path)
    assert (found.cause, list(found.where.stages)) == (cause, stages)


@pytest.mark.parametrize("schedule", ["interleaved", "zbv", "dualpipev"])
def test_a_slow_rank_is_named(tmp_path, schedule):
    """Of two replicas one rank is slow, with all chunks that it holds."""
    options = ("--fault", "slow-worker", "--place", "3", "--ranks", "8", "--dp", "2", "--steps", "10")
    run("pipeline.py", tmp_path, "--schedule", schedule, *options)
    found = first_named(tmp_path)
    assert (found.cause, [(worker.dp, worker.pp) for worker in found.where.workers]) == ("worker-fault", [(1, 1)])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_slow_link_is_named(tmp_path, schedule):
    """Of two replicas one has a slow link: it is named, or the cards at its ends."""
    options = ("--fault", "slow-link", "--place", "1", "--ranks", "8", "--dp", "2", "--steps", "10")
    run("pipeline.py", tmp_path, "--schedule", schedule, *options)
    found = first_named(tmp_path)
    ends = {end for link in found.where.links for end in (link.source, link.target)} | set(found.where.workers)
    assert found.cause == "network-fault"
    assert {(end.dp, end.pp) for end in ends} <= {(0, 1), (0, 2)} and ends


@pytest.mark.parametrize("wrapper", ["ddp", "compiled", "fsdp1", "fsdp2", "none"])
def test_data_parallel(tmp_path, wrapper):
    """However gradients are reduced, every step has its computes and one reduction, and a slow rank is named."""
    run("data_parallel.py", tmp_path, "--wrapper", wrapper, "--slow-rank", "1", "--forward-s", "0.02")
    rows = read(tmp_path)
    assert set(rows.optype) >= {"forward-compute", "backward-compute", "grads-reduce-scatter", "optimizer"}
    counts = rows.pivot_table(
        index=["step", "dp_rank"], columns="optype", values="duration", aggfunc="size", observed=True
    )
    assert (counts[["forward-compute", "backward-compute"]] == 2).all(axis=None)
    assert (counts[["grads-reduce-scatter", "optimizer"]] == 1).all(axis=None)
    computes = rows[rows.optype == "forward-compute"]
    assert computes.sort_values("start_ts").doc_lengths.iloc[0].tolist() == [4, 8]
    mean_s = computes.groupby("dp_rank").duration.median()
    assert mean_s[1] > 1.4 * mean_s[[0, 2]].max(), (
        "the others wait for the slow rank, and their computes must not show it"
    )
    found = found_in(tmp_path)[0]
    assert (found.cause, [worker.dp for worker in found.where.workers]) == ("worker-fault", [1])


@pytest.mark.parametrize("waits", ["backwards", "checkpoints", "loss", "layers"])
def test_waiting_within_a_step(tmp_path, waits):
    """Wherever in a step ranks wait for each other, their computes do not show it, and a slow rank is named."""
    run("data_parallel.py", tmp_path, "--waits", waits, "--slow-rank", "1", "--forward-s", "0.02")
    rows = read(tmp_path)
    computes = rows[rows.optype.isin(["forward-compute", "backward-compute"])]
    median_s = computes.pivot_table(
        index="optype", columns="dp_rank", values="duration", aggfunc="median", observed=True
    )
    assert (median_s[1] > 1.4 * median_s[[0, 2]].max(axis=1)).all()
    ordered = computes.sort_values(["dp_rank", "step", "start_ts"])
    first, second = (ordered.iloc[n::4] for n in (1, 2))  # a backward, and the forward after it
    gap_s = second.start_ts.to_numpy() - (first.start_ts + first.duration).to_numpy()
    assert np.median(gap_s) < 0.005, "nor does what is between them"
    found = found_in(tmp_path)[0]
    assert (found.cause, [worker.dp for worker in found.where.workers]) == ("worker-fault", [1])


@pytest.mark.parametrize(("wrapper", "loop"), [("ddp", "nothing"), ("fsdp2", "steps"), ("none", "steps")])
def test_waiting_before_the_model(tmp_path, wrapper, loop):
    """A rank that is slow in what it makes of its batches, for which all wait before the model, is named."""
    options = ("--wrapper", wrapper, "--loop", loop, "--ranks", "2", "--slow-rank", "1", "--forward-s", "0.04")
    run("data_parallel.py", tmp_path, "--waits", "input", "--microbatches", "1", *options)
    found = next(cause for cause in found_in(tmp_path) if cause.cause != "unknown")
    assert (found.cause, [worker.dp for worker in found.where.workers]) == ("worker-fault", [1])


def test_statistics_are_waited_for(tmp_path):
    """Where rank 0 sends its statistics before each forward, others that wait for it compute no longer."""
    run("data_parallel.py", tmp_path, "--waits", "buffers", "--forward-s", "0.02", "--microbatches", "1")
    rows = read(tmp_path)
    median_s = rows[rows.optype == "forward-compute"].groupby("dp_rank").duration.median()
    assert median_s[[1, 2]].max() < median_s[0] + 0.02, "half of what rank 0 comes too late"


@pytest.mark.parametrize(("wrapper", "loop"), [("ddp", "microbatches"), ("fsdp2", "nothing")])
def test_steps_end_with_the_optimizer(tmp_path, wrapper, loop):
    """Whatever the loop says of steps: gradients are accumulated in them, evaluations come between, and a slow rank is found."""
    options = ("--loop", loop, "--microbatches", "3", "--evaluate-every", "4", "--slow-rank", "1", "--steps", "12")
    run("data_parallel.py", tmp_path, "--wrapper", wrapper, *options)
    rows = read(tmp_path)
    counts = rows.pivot_table(
        index=["step", "dp_rank"], columns="optype", values="duration", aggfunc="size", observed=True
    )
    assert len(counts) == 12 * 3 and (counts[["forward-compute", "backward-compute"]] == 3).all(axis=None)
    assert (counts[["grads-reduce-scatter", "optimizer"]] == 1).all(axis=None)
    evaluations = rows[rows.optype == "eval"].groupby("dp_rank").duration.agg(["size", "min"])
    assert evaluations["size"].tolist() == [3, 3, 3]
    assert (evaluations["min"] > 3 * 3 * 0.01).all(), "three forwards of three layers of 10 ms"
    computes = rows[rows.optype == "forward-compute"]
    assert set(computes.mb_id) == {0, 1, 2}
    found = next(cause for cause in found_in(tmp_path) if cause.cause != "unknown")
    assert (found.cause, [worker.dp for worker in found.where.workers]) == ("worker-fault", [1])


@pytest.mark.parametrize("fault", ["none", "slow-stage"])
def test_no_norm_closes_the_step(tmp_path, fault):
    """Where stages wait early for the next step, as in torch's own tutorials, no input is waited for; a slow stage is named."""
    options = ("--no-norm", "--ranks", "3", "--microbatches", "4", "--forward-s", "0.03", "--fault", fault)
    run("pipeline.py", tmp_path, *options)
    named = [(found.cause, list(found.where.stages)) for found in found_in(tmp_path) if found.cause != "unknown"]
    assert named == ([] if fault == "none" else [("stage-imbalance", [1])])


def test_a_broken_recorder(tmp_path):
    """When the recorder itself breaks, the job trains to the same numbers, and one warning a rank says so."""
    whole = run("data_parallel.py", tmp_path / "whole", "--forward-s", "0.001")
    broken = run("data_parallel.py", tmp_path / "broken", "--forward-s", "0.001", "--break-at", "4")
    assert broken.stdout == whole.stdout != ""
    assert broken.stderr.count("diagnose stopped recording") == 3
    assert set(read(tmp_path / "broken").step) == {0, 1, 2, 3}


def test_a_schedule_of_ones_own(tmp_path):
    """Sends and recvs made by hand are told apart by who talks to whom, and pair up."""
    run("own_schedule.py", tmp_path)
    rows = read(tmp_path)
    counts = rows[rows.step == 2].groupby(["stage", "optype"], observed=True).size()
    assert counts.to_dict() == {
        (stage, optype): n
        for stage, more in ((0, ("forward-send", "backward-recv")), (1, ("forward-recv", "backward-send")))
        for optype, n in [("optimizer", 1), *((optype, 3) for optype in ("forward-compute", "backward-compute", *more))]
    }
    waited = rows[(rows.optype == "backward-recv") & (rows.step == 2)].duration
    assert waited.max() > 0.004, "the first stage waits for the second's first backward"
    assert diagnose.diagnose(tmp_path).fidelity.ok


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_that_share_a_device(tmp_path, device):
    """The rank whose kernels take three times as long is slow; on a GPU, where there is one, its clock says so."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU: only the same job on the processor is run")
    jobs = [{"name": "slow", "slow": [1, 3.0, 0]}, {"name": "sharded", "kind": "fsdp2", "slow": [0, 3.0, 0]}]
    (tmp_path / "jobs.json").write_text(json.dumps([{"ms": 15.0, "layers": 2, "steps": 12, **job} for job in jobs]))
    run("gpu_job.py", tmp_path, str(tmp_path / "jobs.json"), "--ranks", "2", "--device", device)
    for name, rank in (("slow", 1), ("sharded", 0)):
        found = [cause for cause in found_in(tmp_path / name) if cause.cause == "worker-fault"]
        assert [[worker.dp for worker in cause.where.workers] for cause in found] == [[rank]]
    truth = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    assert [job["name"] for job in truth] == ["slow", "sharded"] and all(job["step_s"] > 0.1 for job in truth)
