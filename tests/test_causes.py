"""Every cause, clear and alone: found first, in its place and time, with its true gain, for no other; decoys are no cause."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from diagnose.faults.allocator_stall import AllocatorStall
from diagnose.faults.checkpoint_stall import CheckpointStall
from diagnose.faults.data_loading import DataLoading
from diagnose.faults.decoy import Decoy
from diagnose.faults.decoys import (
    Evaluation,
    EvenDocuments,
    HiddenPause,
    HiddenTransfer,
    HiddenWorker,
    OrdinaryLoads,
    PlannedCollections,
    QuickCheckpoints,
    TinyCollections,
    UniformlySlow,
    WarmUp,
)
from diagnose.faults.fault import Fault
from diagnose.faults.garbage_collection import GarbageCollection
from diagnose.faults.generate import FaultTruth, generate, list_causes, strip_evidence
from diagnose.faults.kernel_queue_contention import KernelQueueContention
from diagnose.faults.network_fault import NetworkFault
from diagnose.faults.sequence_imbalance import SequenceImbalance
from diagnose.faults.spec import JobSpec
from diagnose.faults.stage_imbalance import StageImbalance
from diagnose.faults.worker_fault import WorkerFault
from diagnose.model.cause import Cause
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.optype import Op
from tests.judge.cases import built_in, causes, diagnose_table, diagnosed, make

#: A predicted gain must come that near to the true one.
GAIN_TOLERANCE = 0.03
#: A clear fault is worth at least that part of the step.
CLEAR = 0.08

SPEC = JobSpec(pp=4, dp=4, microbatches=8, steps=24, seed=71)
ONE_CLOCK = dataclasses.replace(SPEC, absolute_times=True)
ASYNCHRONOUS = dataclasses.replace(SPEC, p2p="asynchronous")
OVERLAPPED = dataclasses.replace(ASYNCHRONOUS, vpp=2, separate=True)
SLOW_LINKS = dataclasses.replace(SPEC, transfer_s=5e-3)

#: Clear faults, at least one a cause, each in a job that suits it.
FAULTS: dict[str, tuple[JobSpec, Fault]] = {
    "a slow worker": (SPEC, WorkerFault(places=((1, 2),), slowdown=1.6)),
    "a slow worker since step 9": (SPEC, WorkerFault(places=((3, 0),), slowdown=2.0, onset=9)),
    "two slow workers": (SPEC, WorkerFault(places=((1, 2), (2, 0)), slowdown=1.6, spread=0.03)),
    "a long last stage": (SPEC, StageImbalance(stage=-1, forward_slowdown=1.9, backward_slowdown=1.6)),
    "a long first stage": (ASYNCHRONOUS, StageImbalance(stage=0, forward_slowdown=1.7, backward_slowdown=1.7)),
    "long documents": (SPEC, SequenceImbalance(quadratic_share=0.5)),
    "collections with rows": (SPEC, GarbageCollection(pause_s=0.4, worker_period_steps=6.0, records=True)),
    "collections since step 10": (SPEC, GarbageCollection(pause_s=0.6, worker_period_steps=6.0, onset=10)),
    "an allocator on the first stage": (SPEC, AllocatorStall(stall_ratio=6.0, probability=0.15, records=True)),
    "an allocator of two ranks": (
        SPEC, AllocatorStall(on_dp_ranks=(1, 2), stall_ratio=8.0, probability=0.15)
    ),
    "an allocator that gets worse": (
        SPEC, AllocatorStall(stall_ratio=4.0, probability=0.1, frequency_growth=2.0, length_growth=1.0)
    ),
    "backwards behind recvs": (ASYNCHRONOUS, KernelQueueContention(rivals="recvs", slowdown=20.0)),
    "backwards behind gradients": (OVERLAPPED, KernelQueueContention(rivals="reduce-scatter", slowdown=25.0)),
    "a bad card": (SPEC, NetworkFault(scope="card", dp_rank=2, stage=1, slowdown=20.0)),
    "a bad link": (SLOW_LINKS, NetworkFault(scope="link", dp_rank=1, stage=1, slowdown=15.0)),
    "a congested group since step 8": (SPEC, NetworkFault(scope="group", stage=2, slowdown=10.0, onset=8)),
    "late first batches": (SPEC, DataLoading(wait_ratio=8.0, records=True)),
    "late batches in forwards": (
        SPEC, DataLoading(wait_ratio=3.0, spread=0.3, every_microbatch=True, where="inside")
    ),
    "one bad loader": (SPEC, DataLoading(wait_ratio=12.0, probability=0.9, dp_ranks=(2,))),
    "checkpoints between steps": (ONE_CLOCK, CheckpointStall(period_steps=5, phase=2, duration_s=3.0)),
    "checkpoints before steps": (SPEC, CheckpointStall(period_steps=4, duration_s=2.5, where="before")),
    "checkpoints in optimizers": (SPEC, CheckpointStall(period_steps=4, duration_s=2.5, where="inside", recorded=False)),
}  # fmt: skip
#: What looks like a fault and is none, each kind alone.
NO_FAULTS: Mapping[str, Decoy] = {
    "evaluation": Evaluation(period_steps=4, slowdown=2.0),
    "warm-up": WarmUp(n_steps=2, slowdown=3.0),
    "uniformly slow": UniformlySlow(slowdown=2.0),
    "hidden worker": HiddenWorker(dp=1, stage=2, shorter=0.05, excess=0.07),
    "hidden transfer": HiddenTransfer(dp=1, stage=1, first=2, seconds=0.05, strengths=(1.0, 0.5) * 12),
    "hidden pause of a forward": HiddenPause(
        dp=1, stage=2, op=Op.FORWARD, number=1, seconds=0.1, kind=None, strengths=(0.0, 0.0, 1.0) * 8
    ),
    "hidden pause of a backward with rows": HiddenPause(
        dp=2, stage=1, op=Op.BACKWARD, number=5, seconds=0.1, kind=Op.CUDA_MALLOC, strengths=(0.0, 1.0) * 12
    ),
    "planned collections": PlannedCollections(period_steps=5, seconds=0.05, microbatch=None, recorded=True),
    "planned collections in a forward": PlannedCollections(period_steps=5, seconds=0.08, microbatch=3, recorded=False),
    "tiny collections": TinyCollections(share=0.02, seconds=1e-3),
    "even documents": EvenDocuments(packed_tokens=8192, document_tokens=2048, spread=0.02),
    "quick checkpoints": QuickCheckpoints(period_steps=5, seconds=2e-3),
    "ordinary loads": OrdinaryLoads(share=0.6),
}


def found_without_rows(name: str) -> Diagnosis:
    """Diagnose the job of a fault without evidence rows and tokens."""
    return diagnose_table(strip_evidence(make(*FAULTS[name]).trace))


def assert_in_place(found: Cause, true: FaultTruth, spec: JobSpec) -> None:
    """Compare the places named with those where the fault is."""
    named = {(worker.dp, worker.pp) for worker in found.where.workers}
    named |= {(end.dp, end.pp) for link in found.where.links for end in link.ends}
    if true.workers:
        assert named == set(true.workers)
    elif true.stages:
        assert set(found.where.stages) | {stage for _, stage in named} == set(true.stages)
    else:
        assert not found.where.stages or set(found.where.stages) == set(range(spec.pp))


def assert_found(found: Diagnosis, name: str) -> None:
    """The fault is found, alone, in its place, with its true gain, and since when it is there."""
    spec, fault = FAULTS[name]
    (true,) = make(spec, fault).truth.faults
    assert true.recoverable > CLEAR, true.recoverable
    assert found.verdict == "straggling"
    assert causes(found) == [fault.cause]
    cause = found.causes[0]
    assert cause.recoverable == pytest.approx(true.recoverable, abs=GAIN_TOLERANCE)
    assert cause.confidence > 0.7
    assert_in_place(cause, true, spec)
    assert cause.when.onset_step == true.onset_step or not isinstance(fault, WorkerFault | NetworkFault)


def test_every_cause_has_a_clear_fault() -> None:
    """Each cause that can be generated, and each that has a rule, is among the faults here."""
    here = {fault.cause for _, fault in FAULTS.values()}
    assert here == set(list_causes())
    assert here == {rule.id for rule in built_in().rules}


@pytest.mark.parametrize("name", FAULTS)
def test_a_clear_fault_is_found(name: str) -> None:
    """A clear fault alone in a job is the one cause found, where it is, with its true gain."""
    assert_found(diagnosed(*FAULTS[name]), name)


@pytest.mark.parametrize("name", FAULTS)
def test_a_clear_fault_is_found_without_rows(name: str) -> None:
    """The same holds where the trace has no evidence rows: the times alone say so."""
    assert_found(found_without_rows(name), name)


@pytest.mark.parametrize("name", FAULTS)
def test_look_alikes_stay_silent(name: str) -> None:
    """No cause that the rule's file lists as looking like it is reported in its stead, or beside it."""
    fault = FAULTS[name][1]
    (rule,) = [rule for rule in built_in().rules if rule.id == fault.cause]
    assert rule.looks_like
    assert not set(rule.looks_like) & set(causes(diagnosed(*FAULTS[name])))


@pytest.mark.parametrize("name", [name for name, (_, fault) in FAULTS.items() if fault.onset is not None])
def test_what_begins_later_is_dated(name: str) -> None:
    """A fault with an onset is said to have one, no more than a few steps from the true one, and never to end."""
    spec, fault = FAULTS[name]
    numbers, when = spec.step_numbers().tolist(), diagnosed(spec, fault).causes[0].when
    assert when.onset_step is not None
    assert abs(numbers.index(when.onset_step) - (fault.onset or 0)) <= 2
    assert when.recovery_step is None


@pytest.mark.parametrize("name", NO_FAULTS)
def test_a_decoy_is_no_fault(name: str) -> None:
    """A job with nothing but one decoy is healthy."""
    job = generate(SPEC if name != "hidden transfer" else ASYNCHRONOUS, (), [NO_FAULTS[name]])
    assert job.truth.decoys == (NO_FAULTS[name].name,)
    found = diagnose_table(job.trace)
    assert (found.verdict, causes(found)) == ("healthy", [])


def test_every_decoy_is_here() -> None:
    """Each kind of decoy that random jobs have is among those here."""

    def kinds(of: type[Decoy]) -> set[type[Decoy]]:
        below = set(of.__subclasses__())
        return below | {kind for one in below for kind in kinds(one)}

    named = {kind for kind in kinds(Decoy) if isinstance(getattr(kind, "name", None), str)}
    assert named == {type(decoy) for decoy in NO_FAULTS.values()}


@pytest.mark.parametrize("seed", range(3))
def test_two_decoys_are_no_fault_either(seed: int) -> None:
    """Two of them in one job, here and there, are still healthy."""
    pair = np.random.default_rng(seed).choice(list(NO_FAULTS), size=2, replace=False)
    job = generate(ASYNCHRONOUS, (), [NO_FAULTS[name] for name in pair])
    found = diagnose_table(job.trace)
    assert (found.verdict, causes(found)) == ("healthy", []), pair
