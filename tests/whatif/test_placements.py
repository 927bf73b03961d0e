"""Pipelines whose stages hold chunks from both ends of the model, and workers that compute a forward beside a backward."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from diagnose.faults.fault import Fault
from diagnose.faults.generate import generate
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.fixes.layers import model_layers
from diagnose.model.optype import Op
from diagnose.model.placement import match_transfers, stage_at
from diagnose.model.remedy import Refusal
from diagnose.model.trace import Nodes
from diagnose.trace.placement import find_positions
from diagnose.whatif.dependencies import N_TYPES, number_kinds
from diagnose.whatif.graph import Layout
from diagnose.whatif.overlaps import chain_beside, find_overlaps
from diagnose.whatif.recorded import MOVES
from diagnose.whatif.schedule import _list_ends
from diagnose.whatif.variants import measure_variants
from tests.jobs import load, to_table
from tests.judge.cases import measure

V = JobSpec(pp=4, vpp=2, dp=4, microbatches=10, steps=12, schedule="zb-v", p2p="asynchronous", seed=4)
DUAL = dataclasses.replace(V, schedule="dualpipev")
#: Every schedule that the generator knows beside these.
OTHERS = {
    "gpipe": {"vpp": 1, "p2p": "blocking"},
    "eager": {"vpp": 1},
    "zb-h2": {"vpp": 1},
    "zero-bubble": {"vpp": 1},
    "looped": {"vpp": 3},
}


@pytest.mark.parametrize("spec", [V, DUAL], ids=lambda spec: spec.schedule)
@pytest.mark.parametrize("lacks", ["", "gmc"])
def test_the_v_is_found(spec: JobSpec, lacks: str) -> None:
    """Whether rows say so or only times do: stage 0 holds positions 0 and 7, stage 3 positions 3 and 4."""
    trace = load(generate(dataclasses.replace(spec, lacks=lacks)).trace)
    holder = stage_at(trace.blocks[0].nodes)
    assert [holder[position] for position in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipev", *OTHERS])
def test_healthy_jobs_of_every_schedule(schedule: str) -> None:
    """The replay takes as long as the job did, to half a percent, and nothing is said of it."""
    given = OTHERS.get(schedule, {})
    for seed in range(2):
        spec = dataclasses.replace(V, schedule=schedule, seed=seed, microbatches=9 + 3 * seed, pp=3, **given)  # type: ignore[arg-type]
        m = measure(generate(spec).trace)
        assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.005), spec
        assert abs(m.analysis.what_if.discrepancy) < 0.05, spec
        assert (m.diagnosis.verdict, m.diagnosis.causes) == ("healthy", ()), spec


@pytest.mark.parametrize("spec", [V, DUAL], ids=lambda spec: spec.schedule)
@pytest.mark.parametrize(
    "fault",
    [
        WorkerFault(places=((1, 2),), slowdown=1.5),
        StageImbalance(stage=3, forward_slowdown=1.6, backward_slowdown=1.6),
        SequenceImbalance(),
        NetworkFault(),
    ],
    ids=lambda fault: fault.cause,
)
def test_faults_are_named_and_priced(spec: JobSpec, fault: Fault) -> None:
    """The cause is the right one alone, and gives back what mending it truly does."""
    job = generate(spec, [fault])
    m = measure(job.trace)
    assert [cause.cause for cause in m.diagnosis.causes] == [fault.cause]
    assert m.diagnosis.causes[0].recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=0.03)


@pytest.mark.parametrize("spec", [V, DUAL], ids=lambda spec: spec.schedule)
@pytest.mark.parametrize("slowdown", [3.0, 6.0])
def test_what_waits_for_a_very_slow_worker_is_given_back(spec: JobSpec, slowdown: float) -> None:
    """Messages to each neighbour queue up behind those that a slow worker has not fetched: that is no launch delay."""
    fault = WorkerFault(kind="forwards", places=((0, 5),), slowdown=slowdown, backward_slowdown=1.0)
    job = generate(dataclasses.replace(spec, pp=8, dp=2, microbatches=16, steps=8), [fault])
    (cause,) = measure(job.trace).diagnosis.causes
    assert cause.cause == "worker-fault"
    assert cause.recoverable == pytest.approx(job.truth.faults[0].recoverable, abs=0.02)


def run_two_copies(slowdown: float) -> pa.Table:
    """Run two copies of a model towards each other on four stages: half of the microbatches enters at either end."""
    n_stages, n_each, rng = 4, 4, np.random.default_rng(3)
    rows = []
    for step, dp in itertools.product(range(8), range(2)):
        at, ends = [float(step)] * n_stages, dict[tuple[int, int, int, int], float]()
        every = itertools.product(range(2), range(n_each), range(2), range(n_stages))
        # All forwards, then all backwards, each in waves from both ends.
        for part, i, copy, k in sorted(
            every, key=lambda c: (c[0], c[1] + (n_stages - 1 - c[3] if c[0] else c[3]), c[2])
        ):
            stage = n_stages - 1 - k if copy else k
            needs = ends.get((part, i, copy, k + 1 if part else k - 1), ends.get((0, i, copy, k), 0.0))
            took = 0.03 * (1 + part) * float(rng.lognormal(0.0, 0.01)) * (slowdown if (dp, stage) == (1, 2) else 1.0)
            start = max(at[stage], needs) + 1e-4
            at[stage] = ends[part, i, copy, k] = start + took
            rows.append(
                (dp, stage, step, f"{('forward', 'backward')[part]}-compute", start, took, i + n_each * copy, copy)
            )
    columns = ["dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id", "mc"]
    found = pd.DataFrame(rows, columns=columns)
    found["seq_id"] = found.groupby(["dp_rank", "stage", "step", "optype"]).cumcount()
    return to_table(
        found, {"job_id": "copies", "dp_size": 2, "pp_size": n_stages, "tp_size": 1, "cp_size": 1, "world_size": 8}
    )


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_two_copies_that_run_towards_each_other(slowdown: float) -> None:
    """The replay is exact, a slow worker is named, and no layer is moved: what is on one stage is on another one, too."""
    m = measure(run_two_copies(slowdown))
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.005)
    named = [(cause.cause, [(w.dp, w.pp) for w in cause.where.workers]) for cause in m.diagnosis.causes]
    assert named == ([("worker-fault", [(1, 2)])] if slowdown > 1.0 else [])
    assert isinstance(model_layers(m.analysis, {}, "schedule"), Refusal)


def test_lost_rows_of_two_names() -> None:
    """Whole backwards beside split ones are counted together, though rows are lost: the replay is exact all the same."""
    spec = dataclasses.replace(DUAL, lost_share=0.003, input_rows="backward-input", seed=9)
    m = measure(generate(spec).trace)
    assert m.gains.replayed_s == pytest.approx(m.gains.recorded_s, rel=0.005)


def nodes_of(places: list[tuple[int, int, int]]) -> Nodes:
    """Make forwards of (stage, chunk, microbatch)."""
    stage, chunk, microbatch = (np.array(column) for column in zip(*places, strict=True))
    seq = np.array([sum(other[0] == place[0] for other in places[:i]) for i, place in enumerate(places)])
    return Nodes(np.full(len(places), int(Op.FORWARD)), stage, seq, microbatch, chunk)


def positions(starts: dict[tuple[int, int], float], told: list[int] | None = None) -> list[int] | None:
    """Find the positions of forwards of one second, of one microbatch, by (stage, chunk); in the order of the starts."""
    nodes = nodes_of([(stage, chunk, 0) for stage, chunk in starts])
    start_s = np.array(list(starts.values()))[:, None, None]
    none = np.full(len(starts), -1)
    found = find_positions(nodes, start_s, start_s + 1.0, none if told is None else np.array(told))
    return None if found is None else found.tolist()


def test_placements_by_times() -> None:
    """Dealt out in turn, as a V, and as two copies that run towards each other; what rows say goes first where times allow it."""
    assert positions({(0, 0): 0.0, (1, 0): 1.0, (0, 1): 2.0, (1, 1): 3.0}) is None
    assert positions({(0, 0): 0.0, (1, 0): 1.0, (0, 1): 3.0, (1, 1): 2.0}) == [0, 1, 3, 2]
    assert positions({(0, 0): 0.0, (1, 0): 1.0, (0, 1): 1.0, (1, 1): 0.0}) == [0, 1, 4, 3]
    assert positions({(0, 0): 0.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 3.0}, told=[0, 1, 2, 3]) == [0, 1, 2, 3]
    assert positions({(0, 0): 0.0, (1, 0): 1.0, (0, 1): 3.0, (1, 1): 2.0}, told=[0, 2, 1, 3]) == [0, 1, 3, 2]


def test_transfers_serve_what_crosses_stages() -> None:
    """Of two chunks on stage 1 of a V the first receives, and the second, whose input is made on the same stage, sends."""
    nodes = nodes_of([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0)])
    nodes = dataclasses.replace(nodes, position=np.array([0, 1, 2, 3]))
    ops = np.array([Op.FORWARD_SEND, Op.FORWARD_RECV, Op.FORWARD_SEND, Op.FORWARD_RECV])
    nodes = nodes.add(ops, np.array([0, 1, 1, 0]), np.zeros(4, dtype=np.int64))
    assert match_transfers(nodes) == {4: 0, 5: 1, 6: 2, 7: 3}


def test_transfers_with_each_peer_are_a_stream_of_their_own() -> None:
    """Stage 1 sends forwards of both of its chunks to stage 2, and receives one from stage 0 and one from stage 2."""
    holder = [0, 1, 2, 1, 2, 0]
    nodes = nodes_of([(stage, holder[:at].count(stage), 0) for at, stage in enumerate(holder)])
    nodes = dataclasses.replace(nodes, position=np.arange(6))
    ops = np.array([Op.FORWARD_SEND, Op.FORWARD_SEND, Op.FORWARD_RECV, Op.FORWARD_RECV])
    nodes = nodes.add(ops, np.ones(4, dtype=np.int64), np.array([0, 1, 0, 1]))
    kinds = number_kinds(Layout(nodes, np.arange(10.0)))
    assert [kind // N_TYPES for kind in kinds[6:]] == [1, 1, 2, 1]
    assert [kind % N_TYPES for kind in kinds] == nodes.op.tolist()


def test_both_ends_of_a_message_are_of_one_link() -> None:
    """What a chunk sends forward the next one receives, and what it sends backward the one before, dealt out or as a V."""
    for positions in (np.arange(6), np.array([0, 1, 2, 5, 4, 3])):
        links = dict(zip(MOVES, _list_ends(3, positions), strict=True))
        chunk = np.argsort(positions)
        for send, recv, here, there in (
            (Op.FORWARD_SEND, Op.FORWARD_RECV, chunk[:-1], chunk[1:]),
            (Op.BACKWARD_SEND, Op.BACKWARD_RECV, chunk[1:], chunk[:-1]),
        ):
            assert links[send][here].tolist() == links[recv][there].tolist()
            assert links[send][here[0]] == here[0] % 3 * 4 + there[0] % 3


def test_what_runs_beside_something_waits_for_what_that_waits_for() -> None:
    """Of four computes the second and third overlap: both wait for the first, and the fourth for both."""
    waits: list[set[int]] = [set() for _ in range(4)]
    assert chain_beside(waits, [0, 1, 2, 3], {1: {2}, 2: {1}}) == [3]
    assert waits == [set(), {0}, {0}, {1, 2}]


def test_computes_one_after_the_other_do_not_overlap() -> None:
    """Noise of clocks makes no streams, steady overlaps do."""
    assert not find_overlaps(*_block(dataclasses.replace(V, clock_s=1e-3)))
    assert find_overlaps(*_block(DUAL))


def _block(spec: JobSpec) -> tuple:  # type: ignore[type-arg] # block and starts
    block = load(generate(spec).trace).blocks[0]
    return block, np.nanmean(block.start_s, axis=(1, 2))


def test_merged_weight_gradients_count_as_many() -> None:
    """One row for three microbatches is three times as long as one for one, and no longer than its like."""
    work_s = np.full((3, 1, 4, 2, 2), np.nan)
    work_s[0], work_s[1] = 1.0, 1.0
    work_s[2, :, 0], work_s[2, :, 3] = 0.5, 1.5
    found = measure_variants(np.zeros(work_s.shape[:3], dtype=bool), work_s)
    assert found is not None
    assert found[2, 0, [0, 3], 0, 0].tolist() == [1.0, 3.0]
    assert (found[:2] == 1.0).all()


def test_whole_backwards_beside_split_ones() -> None:
    """Where a stage computes some backwards whole they are compared with each other."""
    work_s = np.full((3, 2, 4, 2, 2), 1.0)
    work_s[1, :, 2:], work_s[2, :, 2:] = 2.0, np.nan
    found = measure_variants(np.zeros(work_s.shape[:3], dtype=bool), work_s)
    assert found is not None
    assert np.allclose(found[1, :, :, 0, 0], [[1.0, 1.0, 2.0, 2.0]] * 2, rtol=1e-4)


def test_sorted_documents_are_no_models() -> None:
    """Each microbatch shorter than the one before, on all ranks: each has documents of its own. Two kinds are not sorted so."""
    rng = np.random.default_rng(1)
    lengths = np.sort(rng.lognormal(0.0, 0.5, (16, 20, 4)), axis=0)[::-1]
    work_s = np.exp(0.02 * rng.standard_normal((2, 1, 16, 20, 4))) * (0.5 + lengths)
    no_overlap = np.zeros(work_s.shape[:3], dtype=bool)
    assert measure_variants(no_overlap, work_s) is None
    assert measure_variants(no_overlap, work_s[:, :, ::-1]) is None
    two_kinds = np.exp(0.02 * rng.standard_normal(work_s.shape)) * np.repeat([3.0, 1.0], 8)[:, None, None]
    assert measure_variants(no_overlap, two_kinds) is not None


def test_two_models_in_turns() -> None:
    """Where nothing is pipelined, what a step does first may be longer than what comes next, on all ranks and in all steps."""
    rng = np.random.default_rng(1)
    work_s = np.exp(0.02 * rng.standard_normal((2, 1, 3, 20, 4))) * [[[[[3.0]], [[1.0]], [[1.0]]]], [[[[1.0]]] * 3]]
    work_s[..., 2] *= 1.6  # a slow rank is none of it
    no_overlap = np.zeros(work_s.shape[:3], dtype=bool)
    found = measure_variants(no_overlap, work_s)
    assert found is not None
    assert np.allclose(found[0, 0, :, 0, 0], [3.0, 1.0, 1.0], rtol=0.05)
    assert (found[1] == 1.0).all()
    lost = work_s.copy()
    lost[0, 0, 1] = np.nan  # nobody knows how long they are: as long as others
    found = measure_variants(no_overlap, lost)
    assert found is not None and found[0, 0, 1] == 1.0 < found[0, 0, 0]
    # A long document of one rank, documents of all, and microbatches of a pipeline are none.
    once = np.where(np.arange(4) == 1, work_s, 1.0)
    assert measure_variants(no_overlap, once) is None
    assert measure_variants(no_overlap, np.exp(rng.standard_normal(work_s.shape))) is None
    assert measure_variants(np.zeros((2, 2, 3), dtype=bool), np.repeat(work_s, 2, axis=1)) is None
