"""Traces of torch.profiler: what header, annotations, kernels and the operators of autograd say, and what damage does."""

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from diagnose.errors import TraceError
from diagnose.model.members import WAITS
from diagnose.model.optype import BY_NAME, P2P, Op
from diagnose.model.recording import Recording
from diagnose.model.request import Request
from diagnose.pipeline import diagnose_job
from diagnose.report import gist
from diagnose.trace.input_files import list_input_files
from diagnose.trace.load import load_trace
from diagnose.trace.producers.kineto import job as kineto
from diagnose.trace.producers.kineto.annotations import parse_annotation
from diagnose.trace.producers.kineto.collect import Exchange, collect
from diagnose.trace.producers.kineto.collectives import Collectives
from diagnose.trace.producers.kineto.computes import find_main_thread, list_operators
from diagnose.trace.producers.kineto.events import Stream, read_events
from diagnose.trace.producers.kineto.gpu import GpuTime
from diagnose.trace.producers.kineto.job import _name_group, _name_waits
from diagnose.trace.producers.kineto.layout import RankCoordinates
from diagnose.trace.producers.kineto.operations import WAIT, OperationList
from diagnose.trace.producers.kineto.rank import ProcessGroup, read_rank
from tests.trace.producers.kineto_traces import (
    AUTOGRAD,
    NCCL_STREAM,
    ORDERS_1F1B,
    ORDERS_INTERLEAVED,
    STREAM,
    KinetoTrace,
    data_parallel_rank,
    distributed,
    pipeline_rank,
    synchronising_rank,
    training_loop,
    unannotated_pipeline_rank,
)

FORMATS = Path(__file__).resolve().parents[4] / "shared" / "formats"


def read(path: Path) -> Recording:
    """Read a trace, or a folder of them."""
    return kineto.read(list_input_files(path, name=path.name), name=path.name, report=lambda _: None)


@pytest.fixture(scope="module")
def formats() -> Path:
    """Give the folder with real traces, or skip."""
    if not (FORMATS / "kineto_pipeline").is_dir():
        pytest.skip(f"real traces are not here ({FORMATS} is absent)")
    return FORMATS


def rows_of(recording: Recording, op: Op, **place: int) -> list[tuple[float, float]]:
    """List start and end of operations in milliseconds, by start."""
    keep = recording.op == op
    for column, value in place.items():
        keep &= getattr(recording, column) == value
    start = recording.start_s[keep] * 1e3
    order = np.argsort(start)
    return [
        (round(float(a), 6), round(float(b), 6))
        for a, b in zip(start[order], (start + recording.duration_s[keep] * 1e3)[order], strict=True)
    ]


# -- real traces


def test_the_real_pipeline_is_read_as_its_parquet_says(formats: Path) -> None:
    """The eight ranks of a real job have the operations of the same job's Parquet file; 99 of 100 times agree to 0.2 ms."""
    recording = read(formats / "kineto_pipeline")
    table = pq.read_table(formats / "kineto_pipeline" / "kineto-healthy.parquet").to_pandas()
    table["op"] = [int(BY_NAME[name]) for name in table["optype"]]
    table = table[table["op"] != Op.GC]  # rows that took no time, and that only the recorder of that file writes
    assert len(table) == len(recording)
    apart_s = []
    for step in np.unique(recording.step).tolist():
        started, lasted = [], []
        for (op, rank), group in table[table["step"] == step].groupby(["op", "rank"]):
            keep = (recording.op == op) & (recording.rank == rank) & (recording.step == step)
            order = np.argsort(recording.start_s[keep], kind="stable")
            rows = group.sort_values("start_ts", kind="stable")
            assert recording.dp[keep].tolist() == rows["dp_rank"].tolist()
            assert recording.stage[keep].tolist() == rows["stage"].tolist()
            assert recording.microbatch is not None
            if op in (Op.FORWARD, Op.BACKWARD):
                assert recording.microbatch[keep][order].tolist() == rows["mb_id"].tolist()
            started.append(recording.start_s[keep][order] - rows["start_ts"].to_numpy())
            lasted.append(recording.duration_s[keep][order] - rows["duration"].to_numpy())
        start = np.concatenate(started)
        apart_s += [np.abs(start - np.median(start)), np.abs(np.concatenate(lasted))]
    assert np.mean(np.concatenate(apart_s) < 0.2e-3) > 0.99


def test_the_first_step_of_a_recording_is_no_checkpoint(formats: Path) -> None:
    """In the example, of which nothing was slowed, workers enter the first recorded step late once: no cause is named."""
    found = diagnose_job(Request(formats / "kineto_pipeline"))
    assert found.causes == ()
    assert "first step recorded" in {e.cause: e.reason for e in found.not_checked}["checkpoint-stall"]


def test_a_loader_without_workers_is_seen_to_stop_the_gpu(formats: Path) -> None:
    """Waits for input fill a third of the steps of the trace without loader workers, and next to nothing with four."""
    shares = []
    for workers in (0, 4):
        (file,) = (formats / "kineto_loader").glob(f"*num_workers_{workers}*")
        recording = read(file)
        waited = recording.duration_s[recording.op == Op.DATA_LOAD].sum()
        shares.append(waited / (recording.start_s + recording.duration_s).max())
        assert [len(rows_of(recording, op)) for op in (Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER)] == [6, 6, 6]
    assert shares[0] > 0.3
    assert shares[1] < 0.05


def test_a_folder_with_traces_of_two_jobs_is_refused(formats: Path) -> None:
    """Two traces of the same rank and step are of two jobs, and the error names both files."""
    with pytest.raises(TraceError, match=r"num_workers_4.*rank 0, as .*num_workers_0.*step 5"):
        read(formats / "kineto_loader")


@pytest.mark.parametrize("name", ["distributed_info_not_found", "nccl_data", "sampled_rank-0", "sampled_rank-1"])
def test_header_variants_are_read(formats: Path, name: str) -> None:
    """Each header variant gives as many forwards as backwards, and says which of the job's other ranks are not there."""
    recording = read(formats / "kineto" / f"{name}.json.gz")
    assert len(rows_of(recording, Op.FORWARD)) == len(rows_of(recording, Op.BACKWARD)) > 0
    alone = [entry.what for entry in recording.unobserved if "ranks" in entry.what]
    assert alone == {"nccl_data": ["1 of 2 ranks"], "distributed_info_not_found": ["other ranks"]}.get(
        name, ["127 of 128 ranks"]
    )


# -- times and ranks


def test_times_are_those_of_the_gpu(tmp_path: Path) -> None:
    """Computes are as long as their kernels, whichever thread launched them, and not as the host's calls."""
    recording = read(data_parallel_rank().write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert rows_of(recording, Op.FORWARD) == [(0.0, 1.0), (10.0, 11.0)]
    assert rows_of(recording, Op.BACKWARD) == [(1.0, 3.0), (11.0, 13.0)]
    assert rows_of(recording, Op.OPTIMIZER) == [(3.5, 3.6), (13.5, 13.6)]


def test_only_what_no_backward_hides_of_a_reduction_counts(tmp_path: Path) -> None:
    """A reduction of gradients that begins during the backward is a row from the end of the backward on."""
    recording = read(data_parallel_rank().write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert rows_of(recording, Op.SEPARATE) == [(3.0, 3.5), (13.0, 13.5)]


def test_a_call_of_the_allocator_lies_in_the_operation_it_stopped(tmp_path: Path) -> None:
    """A cudaMalloc on the host is moved with the forward that it belongs to onto the time of the GPU."""
    recording = read(data_parallel_rank(stall_us=300.0).write(tmp_path / "rank0.json", **distributed(0, 1)))
    ((start, end),) = rows_of(recording, Op.CUDA_MALLOC)
    (_, (first, last)) = rows_of(recording, Op.FORWARD)
    assert last - first == pytest.approx(1.3)
    assert end - start == pytest.approx(0.3)
    assert first <= start
    assert end <= last


def test_collections_of_python_are_evidence_and_tiny_ones_are_counted(tmp_path: Path) -> None:
    """A collection of 50 ms becomes a gc row, one of 10 us is counted among what was dropped."""
    trace = data_parallel_rank()
    trace.span("python_function", "Python GC", 5000.0, 3000.0)
    trace.span("python_function", "Python GC", 4000.0, 10.0)
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert [round(end - start, 3) for start, end in rows_of(recording, Op.GC)] == [3.0]
    assert [(entry.what, entry.n) for entry in recording.dropped] == [("collections of Python", 1)]


def test_saves_are_evidence_whoever_names_them(tmp_path: Path) -> None:
    """A function of torch in one of the trainer's is one save; an annotation is another, and recomputed activations are none."""
    trace = data_parallel_rank()
    trace.span("python_function", "trainer.py(7): save_checkpoint", 4000.0, 3000.0)
    trace.span("python_function", "torch/serialization.py(944): save", 5000.0, 1000.0)
    trace.span("python_function", "torch/utils/checkpoint.py(9): checkpoint", 1000.0, 1000.0)
    trace.span("user_annotation", "Save checkpoint", 8000.0, 1000.0)
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert [round(end - start, 3) for start, end in rows_of(recording, Op.CHECKPOINT)] == [3.0, 1.0]


def test_bases_of_ranks_are_taken_from_each_other_exactly(tmp_path: Path) -> None:
    """Two ranks whose bases, in nanoseconds since 1970, differ by 250 keep those 250 ns."""
    base = 1_790_857_026_000_000_000
    for rank in range(2):
        header = distributed(rank, 2) | {"baseTimeNanoseconds": base + 250 * rank, "host_name": "one"}
        data_parallel_rank(base=1000.0).write(tmp_path / f"rank{rank}.json.gz", **header)
    recording = read(tmp_path)
    starts = [rows_of(recording, Op.FORWARD, dp=dp)[0][0] for dp in range(2)]
    assert starts[1] - starts[0] == pytest.approx(250e-6, abs=2e-6)


def test_unix_times_without_a_base_are_read(tmp_path: Path) -> None:
    """Traces of 2021 and before count microseconds since 1970."""
    recording = read(data_parallel_rank(base=1.6e15).write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert rows_of(recording, Op.FORWARD)[1] == (10.0, 11.0)


def test_distributed_info_may_be_a_string(tmp_path: Path) -> None:
    """Rank and world size are found in distributedInfo that is JSON within JSON."""
    for rank in (3, 5):
        header = {"distributedInfo": json.dumps({"rank": str(rank), "world_size": 8})}
        data_parallel_rank().write(tmp_path / f"host_{rank + 90}.json", **header)
    recording = read(tmp_path)
    assert recording.rank is not None
    assert np.unique(recording.rank).tolist() == [3, 5]
    assert "6 of 8 ranks" in [entry.what for entry in recording.unobserved]


def test_without_distributed_info_the_name_gives_the_rank_and_a_warning(tmp_path: Path) -> None:
    """The rank of a file that does not say it is that of its name, and the reader is told so."""
    for rank in (0, 1):
        data_parallel_rank().write(tmp_path / f"job_rank_{rank}.json")
    recording = read(tmp_path)
    assert recording.rank is not None
    assert np.unique(recording.rank).tolist() == [0, 1]
    assert any("no distributedInfo" in warning for warning in recording.warnings)


def test_cycles_of_one_rank_are_joined(tmp_path: Path) -> None:
    """Two files of one rank with different steps are one job, as a profiler that records now and then writes them."""
    data_parallel_rank(n_steps=1).write(tmp_path / "a.pt.trace.json", **distributed(0, 1))
    later = data_parallel_rank(n_steps=1, base=50_000.0)
    for event in later.events:
        event["name"] = event["name"].replace("ProfilerStep#0", "ProfilerStep#7")
    later.write(tmp_path / "b.pt.trace.json", **distributed(0, 1))
    recording = read(tmp_path)
    assert np.unique(recording.step).tolist() == [0, 7]
    assert rows_of(recording, Op.FORWARD) == [(0.0, 1.0), (50.0, 51.0)]


def test_files_of_other_jobs_are_refused(tmp_path: Path) -> None:
    """Headers that tell of different world sizes are not one job."""
    data_parallel_rank().write(tmp_path / "rank0.json", **distributed(0, 2))
    data_parallel_rank().write(tmp_path / "rank1.json", **distributed(1, 4))
    with pytest.raises(TraceError, match="job of 4 ranks"):
        read(tmp_path)


def test_reading_in_other_processes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks read beside each other give the same rows in the same order as one after the other."""
    for rank in range(3):
        data_parallel_rank(forward_us=1000.0 + rank).write(tmp_path / f"rank{rank}.json.gz", **distributed(rank, 3))
    here = read(tmp_path)
    monkeypatch.setattr("diagnose.trace.producers.kineto.job.MIN_PARALLEL_BYTES", 0)
    beside = read(tmp_path)
    for column in ("op", "step", "dp", "start_s", "duration_s", "rank"):
        np.testing.assert_array_equal(getattr(here, column), getattr(beside, column))


# -- loops of any trainer


def count_rows(recording: Recording, *ops: Op) -> list[list[int]]:
    """Count the rows of some types in each step."""
    return [
        [int((recording.op[recording.step == step] == op).sum()) for op in ops] for step in np.unique(recording.step)
    ]


@pytest.mark.parametrize(
    ("plan", "computes", "evaluations"),
    [
        ("LFBU" * 6, [1] * 6, 0),
        ("LFBUP" * 6, [1] * 6, 0),
        ("L(FBU)" * 6, [1] * 6, 0),  # a closure
        (
            "L(FPBU)" * 6,
            [1] * 5,
            0,
        ),  # Lightning: the profiler is stepped after the forward; the last mark is before the last update
        ("BU" + "L(FPBU)" * 6, [1] * 5, 0),  # the recording begins in the middle of a step
        ("L(FBFBFBU)" * 5, [3] * 5, 0),  # L-BFGS
        ("LFBLFBU" * 5, [2] * 5, 0),
        ("LFBPLFBUP" * 5, [2] * 5, 0),  # the profiler is stepped once a microbatch
        ("LFBM" * 6, [1] * 6, 0),  # no optimizer of PyTorch
        ("LFBULFBU" * 3, [1] * 6, 0),
        ("LFBUFFBU" * 4, [2] * 4, 0),  # a discriminator, then a generator through it
        ("LFBUC" * 6, [1] * 6, 0),
        ("LFBU" * 3 + "LELELE" + "LFBU" * 3, [1] * 6, 1),
        ("LFBUEEEP" * 4, [1] * 4, 4),
        ("LFBUS" * 4, [1] * 4, 0),  # saving computes nothing
    ],
)
def test_steps_are_those_of_any_loop(tmp_path: Path, plan: str, computes: list[int], evaluations: int) -> None:
    """Each step has its forwards, as many backwards, and one update after them all; evaluations are no part of a forward."""
    recording = read(training_loop(plan).write(tmp_path / "a.json"))
    assert count_rows(recording, Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER) == [[n, n, 1] for n in computes]
    assert len(rows_of(recording, Op.EVAL)) == evaluations
    for step in np.unique(recording.step):
        last = rows_of(recording, Op.BACKWARD, step=step)[-1]
        ((begun, ended),) = rows_of(recording, Op.OPTIMIZER, step=step)
        assert last[1] <= begun < ended
    for begun, ended in rows_of(recording, Op.EVAL):
        assert not any(a < ended and begun < b for op in (Op.FORWARD, Op.DATA_LOAD) for a, b in rows_of(recording, op))


@pytest.mark.parametrize(("plans", "n_steps"), [(("whole", "late"), 5), (("whole", "late", "whole"), 6)])
def test_a_rank_that_lacks_its_first_step_counts_as_the_others(
    plans: tuple[str, ...], n_steps: int, tmp_path: Path
) -> None:
    """No profiler numbers the steps, and a recording begins in the middle of one: rows of a step are of one time in all ranks."""
    for rank, plan in enumerate(plans):
        trace = training_loop("LFBU" * 6 if plan == "whole" else "BU" + "LFBU" * 5)
        base_ns = 0 if plan == "whole" else 170_000  # the batch and the forward that it has not
        header = {"host_name": "a", "baseTimeNanoseconds": base_ns}
        trace.write(tmp_path / f"rank{rank}.json", **distributed(rank, len(plans)), **header)
    recording = read(tmp_path)
    assert np.unique(recording.step).tolist() == list(range(n_steps))
    for step in range(n_steps):
        updates = rows_of(recording, Op.OPTIMIZER, step=step)
        assert updates == pytest.approx(np.array(updates[:1] * len(updates)))


def test_computes_without_annotations_are_those_that_annotations_name(formats: Path, tmp_path: Path) -> None:
    """A real DDP job says forward and backward; without these names its computes are within 2% of what they say."""
    file = formats / "kineto" / "nccl_data.json.gz"
    text = gzip.decompress(file.read_bytes()).replace(b"## forward ##", b"one").replace(b"## backward ##", b"two")
    (tmp_path / "rank0.json").write_bytes(text)
    named, told = read(file), read(tmp_path / "rank0.json")
    assert (
        np.unique(told.op).tolist() == np.unique(named.op).tolist()
    )  # buffers that DDP sends around are no evaluation
    for op in (Op.FORWARD, Op.BACKWARD):
        assert told.duration_s[told.op == op] == pytest.approx(named.duration_s[named.op == op], rel=0.02)


def test_waits_between_microbatches_are_put_before_the_last_reduction(tmp_path: Path) -> None:
    """Without `no_sync` each microbatch's gradients are reduced: what a rank waits there is no late forward of its own."""
    without = training_loop("LFBLFBU" * 3, pause_us=5000.0)
    waiting = training_loop("LFBLFBU" * 3, pause_us=5000.0)
    recordings = []
    for name, trace in (("a", without), ("b", waiting)):
        ends = [event["ts"] + 20.0 for event in trace.events if "Backward" in event["name"]][9::10]
        for n, end in enumerate(ends):
            if n % 2 or name == "b":  # the last one of each step; else all
                trace.annotate("gloo:all_reduce", end, 1000.0 if n % 2 else 4000.0)
        recordings.append(read(trace.write(tmp_path / name / "rank0.json", **distributed(0, 2))))
    before, after = recordings
    for op, moved in ((Op.FORWARD, 4.0), (Op.BACKWARD, 4.0), (Op.DATA_LOAD, 4.0)):
        starts = [[start for start, _ in rows_of(recording, op)] for recording in recordings]
        assert starts[1][::2] == starts[0][::2]
        assert np.subtract(starts[0][1::2], starts[1][1::2]) == pytest.approx(moved)
    lengths = [[end - start for start, end in rows_of(recording, Op.SEPARATE)] for recording in recordings]
    assert lengths == [pytest.approx([1.0] * 3), pytest.approx([5.0] * 3)]
    assert rows_of(before, Op.OPTIMIZER) == rows_of(after, Op.OPTIMIZER)


def exchanging(held_by: str, waited_us: float) -> KinetoTrace:
    """Make a rank whose third backward operator holds a collective for so long; its third forward operator, too, but for hooks."""
    trace = training_loop("FBU" * 3, pause_us=5000.0)
    operators = [event for event in trace.events if event["ph"] == "X" and event["dur"] in (8.0, 20.0)]
    for n, event in enumerate(operators):
        # Of ten forward operators, as many backwards and four of the update.
        if n % 24 == 12 or (n % 24 == 2 and "AccumulateGrad" not in held_by):
            begins = event["ts"] + 1.0
            for later in [other for other in trace.events if other["ts"] > begins]:
                later["ts"] += waited_us
            event["name"] = held_by
            event["dur"] += waited_us
            trace.span("cpu_op", "c10d::allreduce_", begins, 2.0)
            trace.span("user_annotation", "gloo:all_reduce", begins + 1.0, waited_us, tid=77)
    return trace


@pytest.mark.parametrize(
    ("held_by", "waits"),
    [
        ("GatherFromModelParallelRegion", True),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", False),
    ],
)
def test_waits_within_computes_are_put_before_the_last_reduction(tmp_path: Path, held_by: str, waits: bool) -> None:
    """What layers wait for is no part of their compute; what a hook reduces as a gradient is ready is waited for by nobody."""
    quick, slow = (
        read(exchanging(held_by, us).write(tmp_path / f"{us}" / "rank0.json", **distributed(0, 2)))
        for us in (4.0, 1000.0)
    )
    forward_s, backward_s = (
        slow.duration_s[slow.op == op] - quick.duration_s[quick.op == op] for op in (Op.FORWARD, Op.BACKWARD)
    )
    assert forward_s == pytest.approx(0.0, abs=5e-6)
    assert backward_s == pytest.approx(0.0 if waits else 996e-6, abs=5e-6)


def test_waits_within_computes_of_a_pipeline_stay_there(tmp_path: Path) -> None:
    """A rank that sends to another one may wait before a compute for that: nothing is moved."""
    lengths = []
    for us in (4.0, 1000.0):
        trace = exchanging("GatherFromModelParallelRegion", us)
        for update in [event for event in trace.events if event["name"].startswith("Optimizer.step")]:
            trace.span("cpu_op", "c10d::send", update["ts"] - 1000.0, 2.0)
        found = read_rank(trace.write(tmp_path / f"{us}.json", **distributed(0, 2)), "a").operations
        at = np.isin(found.op, (Op.FORWARD, Op.BACKWARD))
        lengths.append(float((found.end - found.start)[at].sum()))
    assert lengths[1] - lengths[0] == pytest.approx(6 * 996.0)


@pytest.mark.parametrize(
    ("description", "world", "ep_size"),
    [("default_pg", 2, 2), ("default_pg", 3, 3), ("CONTEXT_PARALLEL_GROUP", 2, None)],
)
def test_ranks_that_exchange_all_with_all_share_experts(
    tmp_path: Path, description: str, world: int, ep_size: int | None
) -> None:
    """They send tokens to experts and back, where these are no parts of a sequence; also where one was not recorded."""
    for rank in range(2):
        trace = training_loop("FBU" * 3)
        for event in [event for event in trace.events if event["name"] == "aten::linear"]:
            named = {"Collective name": "all_to_allv", "Process Group Description": description}
            trace.span("cpu_op", "record_param_comms", event["ts"] + 1.0, 2.0, **named)
        trace.write(tmp_path / f"rank{rank}.json", **distributed(rank, world))
    assert read(tmp_path).job.get("ep_size") == ep_size


def test_updates_within_the_backward_are_a_part_of_it(tmp_path: Path) -> None:
    """Optimizers that run in hooks of the backward cut neither the step nor the backward."""
    trace = training_loop("LFB" * 5)
    for event in [event for event in trace.events if "Backward" in event["name"]]:
        trace.annotate("Optimizer.step#SGD.step", event["ts"] + 5.0, 10.0)
    recording = read(trace.write(tmp_path / "a.json"))
    assert count_rows(recording, Op.FORWARD, Op.BACKWARD, Op.OPTIMIZER) == [[1, 1, 0]] * 5


@pytest.mark.parametrize("name", ["__next__", "[pl][profile][_TrainingEpochLoop].train_dataloader_next"])
def test_loaders_by_other_names(formats: Path, tmp_path: Path, name: str) -> None:
    """A profile of the autograd API has no steps; its waits for input are found under any name that loaders have had."""
    (file,) = (formats / "kineto_loader").glob("*num_workers_0*")
    found = json.loads(gzip.decompress(file.read_bytes()))
    events = [event for event in found["traceEvents"] if not str(event.get("name")).startswith("ProfilerStep#")]
    for event in events:
        if str(event.get("name")).startswith("enumerate(DataLoader)"):
            event["name"] = name
    (tmp_path / "worker0.pt.trace.json").write_text(json.dumps(found | {"traceEvents": events}))
    found = diagnose_job(Request(tmp_path / "worker0.pt.trace.json"))
    assert [cause.cause for cause in found.causes] == ["data-loading"]
    assert found.causes[0].recoverable > 0.25


# -- files that are of no one job


def test_jobs_of_one_gpu_each_are_told_apart(tmp_path: Path) -> None:
    """Traces that exchange nothing with other ranks are not the ranks of one job."""
    for name in "abc":
        training_loop("LFBU" * 4).write(tmp_path / f"{name}.json")
    with pytest.raises(TraceError, match=r"b\.json: exchanges nothing.*of 3: a\.json; b\.json; c\.json: name one file"):
        read(tmp_path)


def test_times_of_one_process_are_joined_by_the_name_of_its_files(tmp_path: Path) -> None:
    """The profiler's handler writes a file each time that it was on; their names say that they belong together."""
    training_loop("LFBUP" * 3).write(tmp_path / "host_77.1700000000001.pt.trace.json")
    later = training_loop("LFBUP" * 3)
    for event in later.events:
        event["ts"] += 1e6
        event["name"] = event["name"].replace("ProfilerStep#", "ProfilerStep#10")
    later.write(tmp_path / "host_77.1700000001001.pt.trace.json")
    recording = read(tmp_path)
    assert np.unique(recording.step).tolist() == [0, 1, 2, 100, 101, 102]
    assert recording.job["dp_size"] == 1


def test_runs_of_different_times_are_told_apart(tmp_path: Path) -> None:
    """Ranks 0 and 1 of the same sizes and steps, an hour apart, are of two runs."""
    for rank in range(2):
        header = distributed(rank, 2) | {"baseTimeNanoseconds": 1_790_857_026_000_000_000 + rank * 3_600_000_000_000}
        data_parallel_rank().write(tmp_path / f"rank{rank}.json", **header)
    with pytest.raises(TraceError, match=r"rank1\.json: has step 0 60 minutes apart from .*rank0\.json"):
        read(tmp_path)


def test_a_file_without_its_rank_beside_others_is_named(tmp_path: Path) -> None:
    """What says neither rank nor job stands beside the traces of a job, and is named as another's."""
    for rank in range(2):
        data_parallel_rank().write(tmp_path / f"rank{rank}.json", **distributed(rank, 2))
    data_parallel_rank().write(tmp_path / "other.json")
    with pytest.raises(
        TraceError,
        match=r"rank0\.json: is of a job of 2 .*other\.json says its rank neither inside nor by name.*of 2: other\.json; rank0",
    ):
        read(tmp_path)


def test_a_file_that_lost_its_base_is_put_beside_the_others(tmp_path: Path) -> None:
    """Where the end of a file, and with it the base of its times, is cut off, its rank is not years before the others."""
    base = {"baseTimeNanoseconds": 1_790_857_026_000_000_000}
    for rank in range(3):
        data_parallel_rank(n_steps=4, base=1000.0).write(
            tmp_path / f"rank{rank}.json", **distributed(rank, 3), **(base if rank else {})
        )
    recording = read(tmp_path)
    assert np.ptp(recording.start_s) < 0.05
    assert [rows_of(recording, Op.FORWARD, dp=dp)[0][0] for dp in range(3)] == [0.0, 0.0, 0.0]


def test_all_ranks_wait_for_one_that_is_not_there(tmp_path: Path) -> None:
    """Reductions that take long on both ranks recorded of eight may wait for a third one: neither network nor worker is blamed."""
    rng = np.random.default_rng(3)
    late_us = rng.lognormal(np.log(2000.0), 0.8, 12)
    for rank in range(2):
        trace = data_parallel_rank(n_steps=12)
        slow_reductions(trace, late_us)
        trace.write(tmp_path / f"rank{rank}.json", **distributed(rank, 8))
    found = diagnose_job(Request(tmp_path))
    assert found.verdict == "inconclusive"
    assert "network-fault" in {entry.cause for entry in found.not_checked}


@pytest.mark.parametrize("header", [distributed(0, 8), {}])
def test_a_lone_rank_that_waits_is_inconclusive(tmp_path: Path, header: dict[str, object]) -> None:
    """What one of several ranks waits for is not there, whether or not it says of how many; its optimizer is not late."""
    rng = np.random.default_rng(5)
    trace = data_parallel_rank(n_steps=12)
    slow_reductions(trace, rng.lognormal(np.log(3000.0), 0.8, 12))
    found = diagnose_job(Request(trace.write(tmp_path / "rank0.json", **header)))
    assert found.verdict == "inconclusive"
    assert found.causes == ()
    assert "network-fault" in {entry.cause for entry in found.not_checked}


def test_what_a_lone_rank_lacks_stands_on_its_page(tmp_path: Path) -> None:
    """Its wait for input is named; nobody knows how quick it were without waiting for others, and who is not there is said."""
    found = diagnose_job(Request(training_loop("LFBU" * 12).write(tmp_path / "rank0.json", **distributed(0, 2))))
    assert [cause.cause for cause in found.causes] == ["data-loading"]
    assert gist.describe_pace(found) == "450 us a step"
    assert "not there: 1 of 2 ranks; " in next(row.text for row in gist.list_rows(found) if row.label == "Note")


def slow_reductions(trace: KinetoTrace, late_us: np.ndarray) -> None:
    """Let the reductions of each step end later, and all that comes after them."""
    reductions = [event for event in trace.events if event["name"].startswith("nccl")]
    for event, late, before in zip(reductions, late_us, np.cumsum(late_us) - late_us, strict=True):
        first = 10_000.0 * reductions.index(event)
        ended = event["ts"] + event["dur"]
        for other in trace.events:
            if first <= other["ts"] < first + 10_000.0 and not other.get("moved"):
                after = other["ts"] >= ended or other["name"].startswith("Optimizer")
                other["ts"] += before + (late if after else 0.0)
                if other["name"].startswith("ProfilerStep"):
                    other["dur"] += late
                other["moved"] = True
        event["dur"] += late


# -- the GPU waits for the host


def test_the_operator_that_synchronises_is_named(tmp_path: Path) -> None:
    """A third of the time the GPU has nothing to do, after `aten::item`; nothing else is blamed for it."""
    trace = synchronising_rank([15_000.0] * 12, n_items=3, module="nn.Module: Loss_0")
    found = diagnose_job(Request(trace.write(tmp_path / "rank0.json")))
    budget = found.budget
    assert budget is not None and budget.host == pytest.approx(0.32, abs=0.005)
    wait = budget.host_wait
    assert wait is not None and (wait.operator, wait.call) == ("aten::item", "cudaStreamSynchronize")
    assert (wait.inside, wait.per_step) == ("nn.Module: Loss_0", 3.0) and wait.share > 0.3
    assert found.causes == ()


def test_the_rank_whose_gpu_waits_most_is_named(tmp_path: Path) -> None:
    """Of two ranks one host pauses after each step."""
    for rank, pause_us in enumerate((100.0, 15_000.0)):
        synchronising_rank([pause_us] * 6).write(tmp_path / f"rank{rank}.json", **distributed(rank, 2))
    host = read(tmp_path).host_time
    assert host is not None and host.wait is not None and host.wait.rank == 1
    assert 0.1 < host.share < 0.2 and 0.25 < host.wait.share < 0.3


def test_a_synchronisation_that_costs_nothing_is_not_told(tmp_path: Path) -> None:
    """Where the host goes on at once, asking for the loss costs next to nothing."""
    found = diagnose_job(Request(synchronising_rank([50.0] * 12).write(tmp_path / "rank0.json")))
    assert found.budget is not None and found.budget.host is not None and found.budget.host < 0.02
    assert found.verdict == "healthy"


@pytest.mark.parametrize("seed", range(5))
def test_pauses_of_the_host_are_no_input_and_no_save(tmp_path: Path, seed: int) -> None:
    """What the host does after each step differs from step to step; batches were there, and nothing was copied from the GPU."""
    pauses_us = np.random.default_rng(seed).lognormal(np.log(8000.0), 0.5, 20)
    found = diagnose_job(Request(synchronising_rank(list(pauses_us)).write(tmp_path / "rank0.json")))
    assert not {"data-loading", "checkpoint-stall"} & {cause.cause for cause in found.causes}
    assert found.budget is not None and found.budget.host_wait is not None
    assert (found.budget.host_wait.operator, found.budget.host_wait.per_step) == ("aten::item", 1.0)


def test_a_gpu_that_is_behind_when_the_recording_begins_waits_for_no_input(tmp_path: Path) -> None:
    """Kernels that were launched before keep it busy for 40 ms, a step and more: the batch is there by then."""
    trace = data_parallel_rank(n_steps=3, base=100.0)
    for step in range(3):
        trace.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10_000.0 * step + 100.0, 8.0)
    for event in trace.events:
        if event["cat"] == "kernel":
            event["ts"] += 40_000.0
    for n in range(4):
        trace.span("kernel", "gemm", 10_000.0 * n + 50.0, 9_990.0, STREAM, correlation=900 + n)
    recording = read(trace.write(tmp_path / "rank0.json"))
    assert rows_of(recording, Op.FORWARD)[0] == (0.0, 1.0)
    assert not rows_of(recording, Op.DATA_LOAD)


def test_a_kernel_without_a_launch_is_no_proof_that_the_gpu_was_behind(tmp_path: Path) -> None:
    """In the middle of a recording, and right before the forward, it hides no wait for input."""
    trace = data_parallel_rank(n_steps=3)
    for event in trace.events:
        event["ts"] += 8_000.0
    for step in range(3):
        trace.annotate("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10_000.0 * step + 8_001.0, 6.0)
        if step:
            trace.span("kernel", "cast", 10_000.0 * step + 8_020.0, 10.0, STREAM, correlation=900 + step)
    recording = read(trace.write(tmp_path / "rank0.json"))
    assert len(rows_of(recording, Op.DATA_LOAD)) == 3


def test_a_transfer_that_was_launched_before_the_recording_is_no_call_in_it(tmp_path: Path) -> None:
    """It runs while the host has called the first send already, whose own kernel comes after it."""
    trace = unannotated_pipeline_rank(0)
    trace.span("kernel", "ncclDevKernel_SendRecv(..)", 1505.0, 40.0, NCCL_STREAM, correlation=900)
    unannotated_pipeline_rank(1).write(tmp_path / "rank1.json", **distributed(1, 2))
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 2)).parent)
    ((begun, ended), *_) = rows_of(recording, Op.FORWARD_SEND, stage=0)
    assert ended - begun == pytest.approx(0.2)


def test_layers_that_nothing_trains_are_a_part_of_the_forward(tmp_path: Path) -> None:
    """No backward comes back to them, but the GPU works on them right before the others; what it did long before is none of it."""
    trace = data_parallel_rank(n_steps=2)
    for step in range(2):
        at = 10_000.0 * step
        for asked, begun, lasts in ((2.0, -900.0, 100.0), (6.0, -600.0, 699.0)):
            trace.span("cpu_op", "aten::linear", at + asked, 1.5)
            trace.kernel(at + asked + 0.5, at + begun, lasts)
    recording = read(trace.write(tmp_path / "a.json"))
    assert [round(b - a, 6) for a, b in rows_of(recording, Op.FORWARD)] == [1.7, 1.7]


def test_a_wait_for_input_is_none_for_the_host(formats: Path) -> None:
    """Of the trace without loader workers the waits for input, a third, are not counted among the waits for the host."""
    (file,) = (formats / "kineto_loader").glob("*num_workers_0*")
    found = diagnose_job(Request(file))
    assert found.budget is not None and found.budget.host == pytest.approx(0.08, abs=0.005)
    assert found.budget.host_wait is None and found.budget.lost["data-loading"] > 0.3


# -- pipelines


@pytest.mark.parametrize("prefix", ["PP:", ""])
def test_annotations_of_pipelining_name_stage_and_microbatch(tmp_path: Path, prefix: str) -> None:
    """Stages and microbatches come from the names, with and without their prefix, and times from the kernels."""
    for stage in range(2):
        pipeline_rank(stage, prefix=prefix).write(tmp_path / f"rank{stage}.json", **distributed(stage, 2))
    recording = read(tmp_path)
    first = rows_of(recording, Op.FORWARD, stage=0, microbatch=0)[0][0]
    assert [round(a - first, 3) for a, _ in rows_of(recording, Op.FORWARD, stage=1)] == [1.0, 3.0]
    assert rows_of(recording, Op.FORWARD, stage=1, microbatch=1)[0][0] - first == pytest.approx(3.0)
    assert {op.name: len(rows_of(recording, op)) for op in (Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND)} == {
        "FORWARD_SEND": 2,
        "FORWARD_RECV": 2,
        "BACKWARD_SEND": 2,
    }


def test_interleaved_stages_are_chunks_and_every_compute_has_its_transfers(tmp_path: Path) -> None:
    """With two stages a rank the later one is chunk 1, and transfers at the ends of the model take no time."""
    for stage in range(2):
        pipeline_rank(stage, chunks=2).write(tmp_path / f"rank{stage}.json", **distributed(stage, 2))
    recording = read(tmp_path)
    assert recording.job["vpp_size"] == 2
    assert [len(rows_of(recording, Op.FORWARD, chunk=chunk)) for chunk in (0, 1)] == [4, 4]
    sends = rows_of(recording, Op.FORWARD_SEND, stage=1)
    assert [round(end - start, 3) for start, end in sends] == [0.085, 0.085, 0.0, 0.0]
    assert len(rows_of(recording, Op.FORWARD_RECV, stage=0)) == 4


def test_ranks_that_lack_are_told_once(tmp_path: Path) -> None:
    """Two of three were brought along: the trace knows of all, and no warning holds the size of the job against its rows."""
    for rank in range(2):
        data_parallel_rank().write(tmp_path / f"rank{rank}.json", **distributed(rank, 3))
    trace = load_trace(tmp_path)
    assert (trace.ranks_told, trace.job.world_size) == (3, 2)
    assert not any("world_size" in warning for warning in trace.warnings)


def test_ranks_that_are_merged_in_one_file_are_told(tmp_path: Path) -> None:
    """Each has a process of its own; read as one rank it would compute everything at once."""
    trace, other = data_parallel_rank(), data_parallel_rank()
    trace.events += [{**event, "pid": 77} for event in other.events]
    with pytest.raises(
        TraceError, match=r"has 2 processes that train \(.*77.*\); expected one rank a file: give a folder"
    ):
        read(trace.write(tmp_path / "merged.json", **distributed(0, 2)))


def test_a_rank_of_a_pipeline_that_lacks_is_named(tmp_path: Path) -> None:
    """Of three ranks the second was not brought along, and no group says which stage the others are."""
    for stage, rank in enumerate((0, 2)):
        unannotated_pipeline_rank(stage).write(tmp_path / f"rank{rank}.json", **distributed(rank, 3))
    with pytest.raises(
        TraceError, match=r"has 2 of 3 ranks of a pipeline, .*; expected all ranks, but there is no trace of rank 1$"
    ):
        read(tmp_path)


def test_a_small_packed_file_that_breaks_off_gives_what_it_has(tmp_path: Path) -> None:
    """Less than what is read at a time: its whole steps are read, and the other rank's are."""
    for rank in range(2):
        data_parallel_rank(n_steps=40).write(tmp_path / f"rank{rank}.json.gz", **distributed(rank, 2))
    whole = (tmp_path / "rank1.json.gz").read_bytes()
    (tmp_path / "rank1.json.gz").write_bytes(whole[: len(whole) // 2])
    recording = read(tmp_path)
    assert len(rows_of(recording, Op.FORWARD, dp=0)) == 40
    assert 10 < len(rows_of(recording, Op.FORWARD, dp=1)) < 30
    assert not any("ranks" in entry.what for entry in recording.unobserved)


def test_a_pipeline_without_annotations_is_told_by_its_transfers(tmp_path: Path) -> None:
    """1F1B over NCCL names nothing: sends and receives part the microbatches, and a batch of two is one kernel and two rows."""
    for stage in range(2):
        unannotated_pipeline_rank(stage).write(tmp_path / f"rank{stage}.json", **distributed(stage, 2))
    recording = read(tmp_path)
    for stage in range(2):
        for op in (Op.FORWARD, Op.BACKWARD):
            for microbatch in range(2):
                ((start, end),) = rows_of(recording, op, stage=stage, microbatch=microbatch)
                assert end - start == pytest.approx(0.08)
    assert len(rows_of(recording, Op.FORWARD_SEND, stage=0)) == len(rows_of(recording, Op.BACKWARD_RECV, stage=0)) == 2
    assert len(rows_of(recording, Op.FORWARD_RECV, stage=1)) == len(rows_of(recording, Op.BACKWARD_SEND, stage=1)) == 2
    assert rows_of(recording, Op.FORWARD_SEND, stage=0)[1] == rows_of(recording, Op.BACKWARD_RECV, stage=0)[0]
    transfers = [Op.FORWARD_SEND, Op.FORWARD_RECV, Op.BACKWARD_SEND, Op.BACKWARD_RECV]
    assert np.isin(recording.op, transfers).sum() == 8
    assert recording.duration_s[np.isin(recording.op, transfers)] == pytest.approx(0.2e-3)


def test_one_rank_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    """A rank whose other stages are not there is refused with what is missing."""
    file = pipeline_rank(1).write(tmp_path / "rank1.json", **distributed(1, 2))
    with pytest.raises(TraceError, match=r"no trace of stages 0 of a pipeline of 2"):
        read(file)


def test_a_file_that_is_no_trace_is_named_where_its_rank_is_missing(tmp_path: Path) -> None:
    """A profiler that was killed leaves a file without a trace in it: an error, or a warning, names it."""
    pipeline_rank(1).write(tmp_path / "rank1.json", **distributed(1, 2))
    (tmp_path / "rank0.json").write_bytes(b"\0" * 61)
    with pytest.raises(TraceError, match=r"no Kineto traces begin in them: rank0\.json"):
        read(tmp_path)
    data_parallel_rank(forward_us=300.0).write(tmp_path / "rank1.json", **distributed(1, 2))
    assert [warning for warning in read(tmp_path).warnings if "rank0.json" in warning]


def test_waits_of_a_sharded_rank_are_gathered_at_its_end(tmp_path: Path) -> None:
    """What FSDP waits for parameters inside a forward is no part of it, and comes before the reduction of the gradients."""
    trace = data_parallel_rank(forward_us=300.0)
    for step in range(2):
        at = 10_000.0 * step
        trace.annotate("FSDP::all_gather", at + 16, 2)
        gather = "ncclDevKernel_AllGather_RING_LL(..)"
        trace.kernel(at + 17, at + 400, 600.0, gather, **{"Collective name": "_allgather_base"})
        trace.kernel(at + 18, at + 1000, 100.0)
    for event in trace.events:  # the rest of the step begins 700 us later
        if event["cat"] == "kernel" and event["ts"] % 10_000 >= 400.0 and event["dur"] in (2000.0, 1000.0):
            event["ts"] += 700.0
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 1)))
    lengths = {op: [round(end - start, 3) for start, end in rows_of(recording, op)] for op in (Op.FORWARD, Op.BACKWARD)}
    assert lengths == {Op.FORWARD: [0.4, 0.4], Op.BACKWARD: [2.0, 2.0]}
    (first, second) = rows_of(recording, Op.REDUCE_SCATTER)
    assert first[1] - first[0] == pytest.approx(0.6 + 0.5)
    assert second[0] - rows_of(recording, Op.BACKWARD)[1][1] == pytest.approx(0.0, abs=1e-6)


def write_stages(folder: Path, held: list[tuple[int, ...]]) -> Path:
    """Write ranks that hold some stages each, and compute one microbatch of each in turn."""
    for rank, stages in enumerate(held):
        trace = KinetoTrace()
        trace.annotate("ProfilerStep#1", 0.0, 1e5)
        for stage in stages:
            trace.annotate(f"PP:{stage}F0", 1000.0 * stage, 900.0)
            trace.annotate(f"PP:{stage}B0", 20_000.0 - 1000 * stage, 900.0)
        trace.write(folder / f"rank{rank}.json", **distributed(rank, len(held)))
    return folder


def test_stages_dealt_in_a_v_have_their_places(tmp_path: Path) -> None:
    """A rank that holds the first and the last stage has two model chunks, at both ends of the model."""
    recording = read(write_stages(tmp_path, [(0, 3), (1, 2)]))
    assert recording.position is not None
    assert recording.chunk is not None
    computes = np.isin(recording.op, (Op.FORWARD, Op.BACKWARD))
    places = np.stack([recording.stage, recording.chunk, recording.position], axis=1)[computes]
    assert np.unique(places, axis=0).tolist() == [[0, 0, 0], [0, 1, 3], [1, 0, 1], [1, 1, 2]]
    assert diagnose_job(Request(tmp_path)).job.pp_size == 2


def test_stages_dealt_otherwise_are_refused(tmp_path: Path) -> None:
    """Ranks that hold neighbouring stages are of a schedule that the replay does not know, and the error says so."""
    with pytest.raises(TraceError, match=r"0,1; 2,3.*ZBVZeroBubble"):
        read(write_stages(tmp_path, [(0, 1), (2, 3)]))


def test_a_forward_and_a_backward_in_one_annotation_are_two(tmp_path: Path) -> None:
    """What DualPipeV runs as one is a forward up to the first operator of autograd, and a backward from there on."""
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#1", 0.0, 1e5)
    trace.annotate("PP:0F0", 1000.0, 900.0)
    trace.annotate("PP:(0F1;0B0)OVERLAP_F_B", 2000.0, 3000.0)
    trace.span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 3200.0, 1700.0, **{"Fwd thread id": 1})
    trace.annotate("PP:0B1", 6000.0, 1900.0)
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert rows_of(recording, Op.FORWARD) == [(0.0, 0.9), (1.0, 2.2)]
    assert rows_of(recording, Op.BACKWARD) == [(2.2, 4.0), (5.0, 6.9)]
    assert recording.dropped == ()


def test_weight_gradients_apart(tmp_path: Path) -> None:
    """I is the gradient of the input and W that of the weights, each of its microbatch."""
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#1", 0.0, 1e5)
    for name, at in (
        ("0F0", 0.0),
        ("0F1", 1000.0),
        ("0I0", 2000.0),
        ("0W0", 2900.0),
        ("0I1", 4000.0),
        ("0F2", 5000.0),
        ("0W1", 6000.0),
    ):
        trace.annotate(f"PP:{name}", at, 900.0)
        trace.kernel(at + 1, at + 2, 890.0)
    recording = read(trace.write(tmp_path / "rank0.json", **distributed(0, 1)))
    assert [round(end - start, 3) for start, end in rows_of(recording, Op.BACKWARD)] == [0.89, 0.89]
    assert [round(end - start, 3) for start, end in rows_of(recording, Op.WEIGHT)] == [0.89, 0.89]
    assert recording.microbatch is not None
    assert recording.microbatch[recording.op == Op.WEIGHT].tolist() == [0, 1]
    assert not any("weight" in entry.what.lower() for entry in (*recording.dropped, *recording.unobserved))


def test_names_of_other_things_name_no_operation() -> None:
    """Names that only look like actions are none."""
    for name in ("PP:0", "F0", "PP:1X2", "forward-compute-mb", "ProfilerStep#1", "PP:(0F1;xB2)OVERLAP_F_B", ""):
        assert parse_annotation(name) == ()
    assert [named.stage for named in parse_annotation("PP:(0F3;1B2)OVERLAP_F_B")] == [0, 1]


# -- what is no trace, or damaged


def test_a_trace_without_computes_says_why_not(tmp_path: Path) -> None:
    """A trace with steps but without forwards is refused with what to record."""
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#1", 0.0, 1e5)
    with pytest.raises(TraceError, match=r"no forward in its steps.*ProfilerActivity\.CPU"):
        read(trace.write(tmp_path / "rank0.json"))


def test_a_trace_without_steps_says_why_not(tmp_path: Path) -> None:
    """A trace of no step is refused with how to mark steps."""
    trace = KinetoTrace()
    trace.span("cpu_op", "aten::mm", 0.0, 10.0)
    with pytest.raises(TraceError, match=r"profiler\.step\(\)"):
        read(trace.write(tmp_path / "rank0.json"))


def test_a_file_cut_short_gives_what_it_has(tmp_path: Path) -> None:
    """A trace that ends in the middle of an event is read up to there, with a warning."""
    file = data_parallel_rank(n_steps=4).write(tmp_path / "rank0.json", **distributed(0, 1))
    content = file.read_bytes()
    file.write_bytes(content[: 3 * len(content) // 4])
    recording = read(file)
    assert any("ends in the middle" in warning for warning in recording.warnings)
    assert 2 <= len(rows_of(recording, Op.FORWARD)) <= 3


def test_damage_in_the_middle_is_told_with_its_place(tmp_path: Path) -> None:
    """Garbage between events is refused with where it begins."""
    file = data_parallel_rank(n_steps=400).write(tmp_path / "rank0.json", **distributed(0, 1))
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[:middle] + b'}}]" garbage {{' + content[middle:])
    with pytest.raises(TraceError, match=r"rank0.json: is damaged about \d+ KB into its text") as told:
        read(file)
    assert abs(int(str(told.value).split(" KB", 1)[0].split()[-1]) - (middle >> 10)) <= 1


@pytest.mark.parametrize("parallel", [False, True])
def test_a_rank_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, parallel: bool
) -> None:
    """One damaged file of three: the others are read, and which is left out is said, with the reason; of one file it is refused."""
    if parallel:
        monkeypatch.setattr("diagnose.trace.producers.kineto.job.MIN_PARALLEL_BYTES", 0)
    for rank in range(3):
        file = data_parallel_rank().write(tmp_path / f"rank{rank}.json", **distributed(rank, 3))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] + b'}}]" garbage {{' + content[len(content) // 2 :])
    recording = read(tmp_path)
    assert set(recording.rank[recording.op == Op.FORWARD].tolist()) == {0, 1}
    (told,) = [warning for warning in recording.warnings if "rank2.json" in warning]
    assert "left out, as it cannot be used" in told and "is damaged about" in told
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").unlink()
    with pytest.raises(TraceError, match=r"rank2.json: is damaged about"):
        read(tmp_path)


def test_events_in_pieces_of_any_size_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes are read at a time, the events are those of the whole."""
    trace = data_parallel_rank(n_steps=3)
    trace.span("cpu_op", 'a "quoted" }, { name [', 1.0, 1.0, args={"inner": [{"a": 1}, {"b": "}, {"}]})
    file = trace.write(tmp_path / "rank0.json", **distributed(0, 1))
    listed = []
    for size in (64, 1000, 1 << 22):
        monkeypatch.setattr("diagnose.trace.producers.kineto.events.CHUNK_BYTES", size)
        stream = Stream()
        listed.append([(e.name, e.ts) for events in read_events(file, stream, where="x") for e in events])
        assert stream.header["traceName"] == "rank0.json"
    assert listed[0] == listed[1] == listed[2]
    assert len(listed[0]) == len(trace.events)


def test_what_is_nearly_json_is_read(tmp_path: Path) -> None:
    """Infinite bandwidths, text that is no UTF-8, tabs and stray backslashes in names do not stop the reading."""
    file = data_parallel_rank().write(tmp_path / "rank0.json", **distributed(0, 1))
    odd = b'{"ph": "X", "cat": "gpu_memcpy", "name": "a\xff\t\\q", "ts": 5, "dur": 1, "args": {"bandwidth": inf}},'
    content = file.read_bytes()
    at = content.index(b"[") + 1
    file.write_bytes(content[:at] + odd + content[at:])
    assert len(rows_of(read(file), Op.FORWARD)) == 2


def test_damaged_files_give_a_recording_or_one_error(tmp_path: Path) -> None:
    """200 damaged traces, of one rank and of a pipeline, give a recording or a TraceError in one line, and nothing else."""
    rng = np.random.default_rng(7)
    files = [
        data_parallel_rank(stall_us=50.0).write(tmp_path / "whole" / "a" / "rank0.json", **distributed(0, 1)),
        pipeline_rank(0, chunks=2).write(tmp_path / "whole" / "b" / "rank0.json", **distributed(0, 2)),
        pipeline_rank(1, chunks=2).write(tmp_path / "whole" / "b" / "rank1.json.gz", **distributed(1, 2)),
    ]
    outcomes = {"read": 0, "refused": 0}
    for trial in range(200):
        folder = tmp_path / f"trial{trial}"
        folder.mkdir()
        job = files[:1] if trial % 2 else files[1:]
        for file in job:
            (folder / file.name).write_bytes(damage(file.read_bytes(), rng))
        try:
            recording = read(folder)
        except TraceError as error:
            outcomes["refused"] += "\n" not in str(error)
        else:
            assert np.isfinite(recording.start_s).all()
            assert (recording.duration_s >= 0).all()
            outcomes["read"] += 1
    assert sum(outcomes.values()) == 200
    assert min(outcomes.values()) > 20


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage a file in one of seven ways."""
    at = int(rng.integers(len(content)))
    length = int(rng.integers(1, 400))
    way = int(rng.integers(7))
    if way == 0:
        return content[:at]
    if way == 1:
        return content[:at] + content[at + length :]
    if way == 2:
        return content[: at + length] + content[at:]
    if way == 3:
        return content[:at] + rng.bytes(length) + content[at + length :]
    if way == 4:
        return content.replace(
            b'"ts": 1', rng.choice([b'"ts": null, "x": 1', b'"ts": "', b'"ts": -1e300', b'"ts": 1e400']), 3
        )
    if way == 5:
        return content.replace(
            b'"args": {', rng.choice([b'"args": [{', b'"name": [], "args": {', b'"args": 3, "y": {']), 2
        )
    return content.replace(
        b'"rank": ', rng.choice([b'"rank": -', b'"rank": "a', b'"rank": 1e', b'"rank": [], "z": ']), 1
    )


# ------------------------------------------------------------------------------------------ waits within computes


def tensor_parallel_pipeline(folder: Path, *, named: bool = True, tensor: str = "TENSOR_MODEL_PARALLEL_GROUP") -> Path:
    """Write a pipeline of two stages of two ranks, which add up each compute: it ends 60 us later, with 20 us of computing.

    The second rank of a stage comes 30 us late and waits 10 us, where the first one waits 40.
    """
    groups = [("7", "PIPELINE_MODEL_PARALLEL_GROUP", 0, 2), ("8", "PIPELINE_MODEL_PARALLEL_GROUP", 1, 3)]
    groups += [("5", tensor, 0, 1), ("6", tensor, 2, 3)]
    header = [{"pg_name": name, "pg_desc": what, "ranks": list(ranks)} for name, what, *ranks in groups]
    for rank in range(4):
        stage, late_us = rank // 2, 30.0 * (rank % 2)
        trace = unannotated_pipeline_rank(stage)
        said = {"Collective name": "allreduce"} | ({"Process Group Name": str(5 + stage)} if named else {})
        for at in [event["ts"] for event in trace.events if event["name"].startswith(("aten::", "autograd::"))]:
            trace.kernel(
                at + 3, at + 85 + late_us, 40.0 - late_us, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(..)", **said
            )
            trace.kernel(at + 4, at + 125, 20.0)
        trace.write(folder / f"rank{rank}.json", **distributed(rank, 4, pg_config=header))
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_waits_for_tensor_parallel_members_within_computes(tmp_path: Path, *, named: bool) -> None:
    """Each compute has one, of a group that the call names, or else the only one of a stage's ranks: it says who is waited for."""
    found = read(tensor_parallel_pipeline(tmp_path, named=named))
    assert found.other is not None and found.tp_rank is not None
    waits = found.other >= 0
    assert {found.other_types[kind] for kind in found.other[waits].tolist()} == {"tp-wait"}
    for tp, waited_us in enumerate((40.0, 10.0)):
        waited_s = found.duration_s[waits & (found.tp_rank == tp)]
        assert len(waited_s) == 2 * 4 and waited_s == pytest.approx(waited_us / 1e6)
    first = rows_of(found, Op.FORWARD, stage=0, tp_rank=0)[0]
    waited = rows_of_waits(found, stage=0, tp_rank=0)[0]
    assert waited == (pytest.approx(first[1] - 0.06), pytest.approx(first[1] - 0.02)), "it ends before the last 20 us"


def rows_of_waits(recording: Recording, **place: int) -> list[tuple[float, float]]:
    """List start and end of waits in milliseconds, by start."""
    return rows_of(dataclasses.replace(recording, op=np.where(recording.op < 0, Op.LOG, recording.op)), Op.LOG, **place)


def test_what_explains_a_compute_is_not_put_into_its_waits(tmp_path: Path) -> None:
    """A stall of the allocator that is longer than the wait for a member stays as long as it was, within the compute."""
    folder = tensor_parallel_pipeline(tmp_path)
    for file in sorted(folder.iterdir()):
        trace = json.loads(file.read_text())
        at = min(event["ts"] for event in trace["traceEvents"] if event["name"].startswith("aten::"))
        stall = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaMalloc",
            "pid": 1,
            "tid": 100,
            "ts": at + 20,
            "dur": 35.0,
        }
        trace["traceEvents"].append(stall | {"args": {}})
        file.write_text(json.dumps(trace))
    found = read(folder)
    for rank in range(4):
        ((start, end),), first = rows_of(found, Op.CUDA_MALLOC, rank=rank), rows_of(found, Op.FORWARD, rank=rank)[0]
        assert first[0] <= start and end <= first[1]
        assert end - start == pytest.approx(0.035)


def test_waits_for_data_parallel_ranks_within_computes(tmp_path: Path) -> None:
    """Ranks of a stage that no tensor-parallel group holds are replicas: what they wait for each other is not theirs alone."""
    found = read(tensor_parallel_pipeline(tmp_path, tensor="EXPERT_MODEL_PARALLEL_GROUP"))
    assert found.other is not None and found.tp_rank is None
    assert {found.other_types[kind] for kind in found.other[found.other >= 0].tolist()} == {"dp-wait"}


def test_whom_a_group_is_of() -> None:
    """Of members of a worker, or of data-parallel ranks; of several stages, or of one rank, it tells nothing."""
    replicas = {rank: RankCoordinates(rank, rank % 2, rank // 2, 0, 0) for rank in range(4)}
    assert [_name_group(ranks, replicas) for ranks in ((0, 1), (0, 2), (0,), ())] == ["dp-wait", None, None, None]
    context = {rank: RankCoordinates(rank, 0, rank // 2, 0, rank % 2) for rank in range(4)}
    assert _name_group((2, 3), context) == "cp-wait"


@pytest.mark.parametrize(
    ("groups", "n_stages", "is_sharded", "name"),
    [
        ([(0, 1), (0, 2)], 2, False, "tp-wait"),  # gradients are no part of computes
        ([(0, 1), (0, 2)], 2, True, None),  # parameters of layers may be
        ([(0, 2)], 2, True, "dp-wait"),
        ([(0, 2)], 1, False, None),  # they lie at the end of the step already
        ([(0, 1)], 1, False, "tp-wait"),
        ([(0, 4)], 2, False, None),
        ([], 2, False, None),
    ],
)
def test_whom_unnamed_waits_are_for(
    groups: list[tuple[int, ...]], n_stages: int, *, is_sharded: bool, name: str | None
) -> None:
    """Where calls name no group, the only kind of group that a rank is in with others of its stage."""
    place_of = {rank: RankCoordinates(rank, rank // 2 % 2, rank // 4, rank % 2, 0) for rank in range(8)}
    operations = SimpleNamespace(op=np.array([0, WAIT]), group=np.array(["", ""]))
    part = SimpleNamespace(
        operations=operations, sharded=is_sharded, groups=[ProcessGroup(str(n), "", of) for n, of in enumerate(groups)]
    )
    found = _name_waits(part, place_of, n_stages=n_stages)  # type: ignore[arg-type] # of it nothing else is asked
    assert found.tolist() == [-1, -1 if name is None else WAITS.index(name)]


def test_waits_of_computes_that_were_moved_lie_where_they_ran() -> None:
    """A compute is put 50 us earlier, without the 10 us that it waited: these are its wait, and not what lies 50 us before."""
    made = OperationList(np.array([0]), np.array([0.0]), np.array([1000.0]))
    compute = made.add(Op.FORWARD, 50.0, 140.0)
    assert compute is not None
    compute.earlier, compute.shorter = 50.0, 10.0
    collectives = object.__new__(Collectives)
    collectives.busy = np.array([0.0]), np.array([5.0])
    said = ("all_reduce", 190.0, 200.0, 1, -1, "3", "", -1, "work")
    collectives.running = [Exchange(*said), dataclasses.replace(Exchange(*said), start=60.0, end=90.0, group="4")]
    collectives.add_waits(made)
    assert [(one.op, one.start, one.end, one.group) for one in made.listed[1:]] == [(WAIT, 140.0, 150.0, "3")]


@pytest.mark.parametrize("described", ["CONTEXT_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"])
def test_sends_within_a_pipeline_that_are_no_transfers(tmp_path: Path, described: str) -> None:
    """By what their group is called: those of ring attention are waits within computes, those of stages are neither."""
    trace = ring_rank()
    for event in trace.events:
        if event["name"].startswith(("record_param_comms", "nccl")):
            event["args"] |= {"Process Group Name": "3", "Process Group Description": described}
    found = collect(trace.write(tmp_path / "rank0.json", **distributed(0, 2)), where="rank0.json")
    main = find_main_thread(found)
    operators = list_operators(found, main)
    collectives = Collectives(found, GpuTime(found), main, is_ring=False)
    is_ring = described.startswith("CONTEXT")
    assert len(operators.calls) == (0 if is_ring else 8)
    assert len(collectives.running) == (4 if is_ring else 0)


# ------------------------------------------------------------------------------------------ schedules without annotations


@pytest.mark.parametrize(("orders", "n_chunks"), [(ORDERS_1F1B, None), (ORDERS_INTERLEAVED, 2)])
def test_chunks_are_counted_where_nobody_names_them(
    tmp_path: Path, orders: Sequence[Sequence[str]], n_chunks: int | None
) -> None:
    """A first stage that sends gradients, too, is followed by the last one: the schedule says of which chunk a compute is."""
    pipeline = [{"pg_name": "7", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
    for stage in range(2):
        trace = unannotated_pipeline_rank(stage, orders)
        trace.write(tmp_path / f"rank{stage}.json", **distributed(stage, 2, pg_config=pipeline))
    recording = read(tmp_path)
    assert recording.job.get("vpp_size") == n_chunks
    assert recording.job["pp_size"] == 2
    assert len(rows_of(recording, Op.FORWARD, stage=0)) == 2 * (n_chunks or 1)
    lacking = [entry for entry in recording.unobserved if "transfers" in entry.lacks]
    if n_chunks:
        assert recording.chunk is recording.microbatch is None
        assert lacking and not np.isin(recording.op, P2P).any()
    else:
        assert recording.chunk is not None and not lacking


def ring_rank() -> KinetoTrace:
    """Make a rank of ring attention over NCCL, one microbatch: it sends and receives within its forward and its backward."""
    trace = KinetoTrace()
    trace.annotate("ProfilerStep#4", 0.0, 10_000.0)
    trace.span(
        "cpu_op", "autograd::engine::evaluate_function: RingBackward", 3000.0, 1000.0, AUTOGRAD, **{"Fwd thread id": 1}
    )
    for forward, at in ((True, 1000.0), (True, 1300.0), (False, 3000.0), (False, 3300.0)):
        if forward:
            trace.span("cpu_op", "aten::linear", at, 100.0)
            mark = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 100, "ts": at + 1, "id": int(at)}
            trace.events.append(mark)
        trace.kernel(at + 2, at + 5, 200.0, tid=100 if forward else AUTOGRAD)
        for n, part in enumerate(("send", "recv")):
            trace.span("cpu_op", f"c10d::{part}", at + 150 + 20 * n, 15.0)
            trace.span("cpu_op", "record_param_comms", at + 152 + 20 * n, 10.0, **{"Collective name": part})
        trace.kernel(at + 190, at + 205, 60.0, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    trace.annotate("Optimizer.step#SGD.step", 5000.0, 100.0)
    return trace


@pytest.mark.parametrize("described", ["CONTEXT_PARALLEL_GROUP", ""])
def test_ring_attention_is_no_pipeline(tmp_path: Path, described: str) -> None:
    """Its sends and receives lie within computes: there is one forward, and they are waits for other members."""
    groups = [{"pg_name": "3", "pg_desc": "CONTEXT_PARALLEL_GROUP", "ranks": [0, 1]}]
    for rank in range(2):
        trace = ring_rank()
        for event in trace.events:
            if described and event["name"] == "record_param_comms":
                event["args"] |= {"Process Group Name": "3", "Process Group Description": described}
        trace.write(tmp_path / f"rank{rank}.json", **distributed(rank, 2, pg_config=groups))
    recording = read(tmp_path)
    assert (recording.job["pp_size"], recording.job["cp_size"]) == (1, 2)
    assert not np.isin(recording.op, P2P).any()
    assert recording.other is not None and recording.cp_rank is not None
    for rank in range(2):
        assert [len(rows_of(recording, op, rank=rank)) for op in (Op.FORWARD, Op.BACKWARD)] == [1, 1]
        waits = recording.other[recording.cp_rank == rank]
        assert {recording.other_types[kind] for kind in waits[waits >= 0].tolist()} == {"cp-wait"}
