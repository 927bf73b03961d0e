"""From notes to rows, on steps made by hand whose times one can add in the head (milliseconds)."""

import weakref
from types import SimpleNamespace

import pytest

from diagnose.model.optype import Op
from diagnose.record.clock import Clock, Moment, Window
from diagnose.record.communication import _hook_collective, _hook_waits, name_wait
from diagnose.record.data_parallel import Autograd
from diagnose.record.graphs import hook_captures
from diagnose.record.hooks import Hooks
from diagnose.record.log import Collective, Compute, Log, StepLog, Transfer
from diagnose.record.parallel_state import ParallelState
from diagnose.record.rows import list_operations

MS = 1_000_000


def step_of(**parts):
    """Make a step that began at 0."""
    return StepLog(3, Window(), 0, **parts)


def compute(op, start, end, microbatch=0, virtual=0, **more):
    """Make a compute."""
    return Compute(op, microbatch, virtual, start * MS, end * MS, **more)


def spans(rows):
    """Give type, start and end of each row in milliseconds."""
    return [(row.optype, row.start_ns / MS, (row.start_ns + row.duration_ns) / MS) for row in rows]


def test_a_batch_is_one():
    """Transfers launched together and waited for at once have one start and one end."""
    batch = Transfer([(Op.FORWARD_SEND, 0, 1), (Op.BACKWARD_RECV, 0, 1)], 10 * MS, 1, 11 * MS, 11 * MS, 25 * MS, 1)
    rows = list_operations(step_of(computes=[compute(Op.FORWARD, 0, 10)], transfers=[batch]))
    assert spans(rows) == [("backward-recv", 10, 25), ("forward-compute", 0, 10), ("forward-send", 10, 25)]


def test_an_early_recv():
    """A recv that was launched before a compute and waited for after it begins where the worker waits."""
    recv = Transfer([(Op.FORWARD_RECV, 1, 1)], 1 * MS, 1, 1 * MS, 12 * MS, 15 * MS, 2)
    assert ("forward-recv", 12, 15) in spans(list_operations(step_of(transfers=[recv])))


def test_a_send_that_was_done():
    """A send found done when it was asked for ends where it was launched; one that held the worker ends then."""
    done = Transfer([(Op.FORWARD_SEND, 0, 0)], 1 * MS, 1, 2 * MS, 40 * MS, 40 * MS, 2)
    slow = Transfer([(Op.FORWARD_SEND, 1, 0)], 5 * MS, 1, 6 * MS, 40 * MS, 47 * MS, 2)
    # On a busy host even that takes a moment.
    late = Transfer([(Op.FORWARD_SEND, 2, 0)], 7 * MS, 1, 8 * MS, 100 * MS, 100.5 * MS, 2)
    found = spans(list_operations(step_of(transfers=[done, slow, late])))
    assert found == [("forward-send", 1, 2), ("forward-send", 5, 47), ("forward-send", 7, 8)]


def test_a_send_that_a_later_one_overtook():
    """Sends to one stage arrive in order: what waits for one after a later one had arrived is the host; to another it may wait."""
    early = Transfer([(Op.FORWARD_SEND, 0, 0)], 1 * MS, 1, 2 * MS, 100 * MS, 120 * MS, 9)
    later = Transfer([(Op.FORWARD_SEND, 1, 0)], 5 * MS, 2, 6 * MS, 90 * MS, 95 * MS, 9)
    elsewhere = Transfer([(Op.FORWARD_SEND, 0, 7)], 3 * MS, 1, 4 * MS, 120 * MS, 125 * MS, 9)
    found = spans(list_operations(step_of(transfers=[early, elsewhere, later])))
    assert found == [("forward-send", 1, 2), ("forward-send", 3, 125), ("forward-send", 5, 95)]


def test_sharded_waits_come_last():
    """Without their waits for other ranks computes stand back to back, and all the waiting ends with the step."""
    computes = [
        compute(Op.FORWARD, 0, 30, waits=[(0, 5 * MS), (10 * MS, 20 * MS)]),
        compute(Op.BACKWARD, 30, 60, waits=[(50 * MS, 60 * MS)]),
    ]
    assert spans(list_operations(step_of(computes=computes))) == [
        ("backward-compute", 15, 35),
        ("forward-compute", 0, 15),
        ("grads-reduce-scatter", 35, 60),
    ]


def test_waits_that_are_told_beside_their_computes():
    """One row a compute, as long as all its waits, that ends with the last of them; the computes stay as they were."""
    waiting = compute(Op.FORWARD, 0, 30)
    waited = Collective(None, 0, 1, 0, is_within=True, wait="tp-wait")
    waited.note_within(waiting, 5 * MS, 8 * MS)
    waited.note_within(waiting, 20 * MS, 26 * MS)
    plain = Collective(None, 0, 2, 0, is_within=True)
    backward = compute(Op.BACKWARD, 30, 60)
    plain.note_within(backward, 40 * MS, 50 * MS)
    assert waiting.waits == [] and backward.beside == {}
    found = spans(list_operations(step_of(computes=[waiting])))
    assert found == [("forward-compute", 0, 30), ("tp-wait", 17, 26)]


@pytest.mark.parametrize(
    ("description", "size", "sizes", "driver", "name"),
    [
        ("mesh_tp", 2, {"tp_size": 2}, "pipelining", "tp-wait"),
        ("tp", 2, {"tp_size": 2}, "", "tp-wait"),
        ("TENSOR_MODEL_PARALLEL_GROUP", 2, {"tp_size": 2, "cp_size": 2}, "megatron", "tp-wait"),
        ("CONTEXT_PARALLEL_GROUP", 2, {"tp_size": 2, "cp_size": 2}, "megatron", "cp-wait"),
        ("mesh_dp", 2, {"tp_size": 2, "dp_size": 2}, "pipelining", ""),  # gradients, or nobody knows
        ("undefined", 2, {"dp_size": 2}, "pipelining", "dp-wait"),
        ("mesh_pp", 2, {"dp_size": 2}, "pipelining", ""),
        ("undefined", 4, {"dp_size": 2}, "pipelining", ""),  # of several stages
        ("undefined", 2, {"dp_size": 2}, "", ""),  # taken out of the compute
        ("tp", 2, {"dp_size": 2}, "", ""),
    ],
)
def test_whom_a_wait_within_a_compute_is_for(description, size, sizes, driver, name):
    """By what its group is called, and in a pipeline of single ranks by its size."""
    group = SimpleNamespace(group_desc=description, size=lambda: size)
    assert name_wait(group, ParallelState(**sizes), has_driver=bool(driver)) == name


def exchange_within_a_compute(description, name="all_to_all_single", *, driver="pipelining", on_gpu=False, tp_size=1):
    """Let two ranks of a group exchange at once while a compute runs; give that, and what became known of the job."""
    owner = type("ProcessGroup", (), {"group_desc": description, "size": lambda _: 2, name: lambda _, __: None})
    log, hooks, state = Log(Clock()), Hooks([].append), ParallelState(dp_size=2, tp_size=tp_size)
    log.driver = driver
    _hook_collective(hooks, log, state, owner, name, gathers=None)
    log.open(1, Window())
    log.current = compute(Op.FORWARD, 0, 1)
    if on_gpu:
        log.clock.use_cuda(SimpleNamespace(Event=lambda **_: SimpleNamespace(record=lambda: None)))
    getattr(owner(), name)(None)
    hooks.undo()
    return log.current, state


def test_how_a_wait_within_a_compute_is_kept():
    """Beside it within a pipeline, and taken out of it elsewhere; on a GPU, where nothing waits on the host, not at all."""
    within, _ = exchange_within_a_compute("undefined")
    assert list(within.beside) == ["dp-wait"] and not within.waits
    alone, _ = exchange_within_a_compute("undefined", driver="")
    assert len(alone.waits) == 1 and not alone.beside
    unknown, _ = exchange_within_a_compute("mesh_dp", tp_size=2)
    on_gpu, _ = exchange_within_a_compute("undefined", on_gpu=True)
    assert not (unknown.waits or unknown.beside or on_gpu.waits or on_gpu.beside)


@pytest.mark.parametrize(
    ("description", "name", "ep_size"),
    [
        ("undefined", "all_to_all_single", 2),
        ("EXPERT_MODEL_PARALLEL_GROUP", "alltoall", 2),
        ("undefined", "barrier", 0),
        ("CONTEXT_PARALLEL_GROUP", "all_to_all_single", 0),
        ("ulysses", "all_to_all_single", 0),
        ("mesh_tp", "alltoall_base", 0),
    ],
)
def test_who_shares_experts(description, name, ep_size):
    """Ranks that exchange all with all within a compute, but for parts of a sequence or of a layer."""
    assert exchange_within_a_compute(description, name)[1].ep_size == ep_size


def test_ranks_that_share_experts_are_metadata():
    """Where they are a part of the replicas."""
    assert ParallelState(dp_size=4, ep_size=2).metadata()["ep_size"] == 2
    assert "ep_size" not in ParallelState(dp_size=4, ep_size=3).metadata()
    assert "ep_size" not in ParallelState(dp_size=4).metadata()


def test_waits_between_computes_come_last():
    """What holds a worker between two computes is taken out, once; a collective that a compute overlaps holds nobody."""
    computes = [compute(Op.FORWARD, 0, 10), compute(Op.BACKWARD, 10, 20), compute(Op.FORWARD, 50, 60, 1)]
    between = [(2, 20, 40), (2, 21, 50), (1, 10, 20), (3, 65, 70)]
    collectives = [Collective(False, 100, n, start * MS, end * MS) for n, start, end in between]
    assert spans(list_operations(step_of(computes=computes, collectives=collectives))) == [
        ("backward-compute", 10, 20),
        ("forward-compute", 0, 10),
        ("forward-compute", 20, 30),
        ("grads-reduce-scatter", 35, 70),
    ]
    # In a pipeline transfers say who waits for whom.
    send = Transfer([(Op.FORWARD_SEND, 0, 0)], 10 * MS, 1, 10 * MS)
    kept = spans(list_operations(step_of(computes=computes, collectives=collectives, transfers=[send])))
    assert ("forward-compute", 50, 60) in kept


def test_pauses_stay_beside_their_computes():
    """Where computes go forward by what they waited for, a wait for input between them goes with them; what follows them stays."""
    computes = [compute(Op.BACKWARD, 0, 30, waits=[(20 * MS, 30 * MS)]), compute(Op.BACKWARD, 40, 60, 1)]
    evidence = [(Op.DATA_LOAD, 30 * MS, 40 * MS), (Op.CHECKPOINT, 60 * MS, 70 * MS)]
    rows = spans(list_operations(step_of(computes=computes, evidence=evidence)))
    assert rows[-2:] == [("data-load", 20, 30), ("checkpoint", 60, 70)]
    assert rows[:2] == [("backward-compute", 0, 20), ("backward-compute", 30, 50)]


def test_collectives_by_their_place():
    """Gathering before the first compute, reducing after the last, a norm, and gathering what was updated are told apart."""
    others = [(Op.CLIP, 60 * MS, 61 * MS), (Op.CLIP, 63 * MS, 64 * MS), (Op.OPTIMIZER, 65 * MS, 70 * MS)]
    collectives = [
        Collective(gathers=True, n_elements=100, n_computes=0, start=0, end=9 * MS),
        Collective(
            gathers=False, n_elements=100, n_computes=1, start=20 * MS, end=21 * MS
        ),  # between computes: nothing
        Collective(gathers=False, n_elements=100, n_computes=2, start=50 * MS, end=52 * MS),
        Collective(gathers=False, n_elements=100, n_computes=2, start=52 * MS, end=55 * MS),
        Collective(gathers=False, n_elements=1, n_computes=2, start=61 * MS, end=63 * MS),
        Collective(gathers=True, n_elements=100, n_computes=2, start=71 * MS, end=75 * MS),
    ]
    computes = [compute(Op.FORWARD, 10, 20), compute(Op.BACKWARD, 20, 50)]
    rows = list_operations(step_of(computes=computes, collectives=collectives, others=others))
    assert [span for span in spans(rows) if "compute" not in span[0]] == [
        ("grads-reduce-scatter", 50, 55),
        ("optimizer", 65, 75),
        ("optimizer-clip-main-grad", 60, 64),
        ("params-all-gather", 0, 9),
    ]


def test_clipping_alone_is_no_barrier():
    """A rank that clips by its own norm waits for nobody, and gets no row that says so."""
    step = step_of(computes=[compute(Op.FORWARD, 0, 1)], others=[(Op.CLIP, 2 * MS, 3 * MS)])
    assert [row.optype for row in list_operations(step)] == ["forward-compute"]


def test_retries_of_the_allocator():
    """In a step with one, the longest compute took as much longer for it as it did than its peers; alone, nobody knows."""
    computes = [compute(Op.FORWARD, 0, 10), compute(Op.FORWARD, 10, 20), compute(Op.FORWARD, 20, 65)]
    found = spans(list_operations(step_of(computes=computes, n_retries=1)))
    assert [span for span in found if span[0] == "cuda-malloc"] == [("cuda-malloc", 20, 55)]
    collected = [(Op.GC, 30 * MS, 60 * MS)]
    for nobody in (
        step_of(computes=computes),
        step_of(computes=computes[2:], n_retries=1),
        step_of(computes=computes, n_retries=1, evidence=collected),
    ):
        assert "cuda-malloc" not in {row.optype for row in list_operations(nobody)}


def test_a_retry_waits_for_what_was_launched_before():
    """A host that is 30 ms ahead of its GPU is kept by a call for as long again; only what the compute stands still is lost."""

    class Event:
        """An event of a GPU."""

        def __init__(self, ms):
            self.ms = ms

        def elapsed_time(self, later):
            """Milliseconds from this to a later one."""
            return later.ms - self.ms

    def passed(ms, host_ms):
        moment = Moment(host_ms * MS, Event(ms))
        moment.seen_ns = (ms + 1000) * MS
        return moment

    on_gpu_and_host = [((0, 10), (0, 2)), ((10, 20), (2, 4)), ((20, 45), (4, 44))]
    computes = [Compute(Op.FORWARD, i, 0, *map(passed, *times)) for i, times in enumerate(on_gpu_and_host)]
    step = StepLog(3, Window(), passed(0, 0), computes=computes, n_retries=1)
    assert [span for span in spans(list_operations(step)) if span[0] == "cuda-malloc"] == [("cuda-malloc", 20, 35)]


def test_what_never_ended():
    """A forward without a backward (an evaluation within the step) is no row."""
    assert list_operations(step_of(computes=[Compute(Op.FORWARD, 0, 0, 0)])) == []


def test_weights_alone():
    """Where a backward is split, the gradients of the input and of weights are named."""
    computes = [compute(Op.BACKWARD, 0, 1, is_split=True), compute(Op.WEIGHT, 1, 2), compute(Op.BACKWARD, 2, 4)]
    assert spans(list_operations(step_of(computes=computes))) == [
        ("backward-compute", 2, 4),
        ("backward-input", 0, 1),
        ("backward-weight", 1, 2),
    ]


class Event:
    """An event of a GPU whose clock stands 5 s before the host's."""

    device = "cuda:3"

    def __init__(self, at_ms):
        self.at_ms = at_ms

    def elapsed_time(self, other):
        """Milliseconds from this one to the other."""
        return other.at_ms - self.at_ms

    def query(self):
        """It has passed."""
        return True

    def record(self):
        """Put it on a stream."""


def test_device_times_meet_the_host():
    """Events of a GPU come out on unix time, between when they were put on the stream and when they were seen to have passed."""
    import time

    chosen = []

    class Cuda:
        """Makes events that pass 0.2 ms after they were recorded."""

        @staticmethod
        def Event(enable_timing):  # noqa: ARG004, N802 - as torch calls it
            """Make one."""
            return Event((time.perf_counter_ns() - 5_000 * MS) / MS + 0.2)

        @staticmethod
        def set_device(device):
            """Choose a GPU for the calling thread."""
            chosen.append(device)

    clock, window = Clock(), Window()
    clock.use_cuda(Cuda)
    marks = []
    for _ in range(50):
        marks.append(clock.now())
        time.sleep(0.0005)
        clock.next_passed()
    for mark in marks:
        found = window.relative_ns(mark)
        assert found[0]
    for mark in marks:
        off = window.unix_ns(window.relative_ns(mark)) - window.wall_ns - mark.host_ns
        assert -MS < off < 2 * MS
    assert chosen == ["cuda:3"], "asked on GPU 0, each process would take memory there; and once is enough"
    n_free = len(clock._free)
    clock.reuse(marks, window)
    assert len(clock._free) == n_free + len(marks) - 1, "the event that the window counts from is not used again"


def test_no_event_is_asked_during_a_capture():
    """While a CUDA graph is captured nothing is recorded and no event is asked; afterwards it goes on, also where it failed."""

    class Graph:
        """Captures."""

        def capture_begin(self):
            """Begin."""

        def capture_end(self):
            """End."""
            if broken:
                raise RuntimeError("the capture was invalidated")

    class Asked(Event):
        """Counts how often it is asked."""

        device = None
        n = 0

        def query(self):
            """Count."""
            Asked.n += 1
            return True

    broken = []
    log, failures = Log(Clock()), []
    hooks = Hooks(failures.append)
    hook_captures(hooks, log, Graph)
    log.clock.moments.append(Moment(0, Asked(0)))
    log.open(1, Window())
    graph = Graph()
    graph.capture_begin()
    assert not log.inside.on and log.step is None and log.clock.next_passed() is None and Asked.n == 0
    graph.capture_end()
    assert log.clock.next_passed() is not None and Asked.n == 1 and not failures
    graph.capture_begin()
    with log.clock.asking() as may_ask:
        assert not may_ask
    broken.append(True)
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert not log.clock.is_paused
    hooks.undo()


def test_a_work_that_nobody_waits_for():
    """It is not kept alive, for it keeps its tensors; and another that gets its place in memory is not taken for it."""

    class Work:
        """Waited for, or not."""

        def wait(self):
            """Wait."""

    log, hooks = Log(Clock()), Hooks([].append)
    _hook_waits(hooks, log, Work)
    log.open(1, Window())
    dropped, other, waited = Work(), Work(), Work()
    gone, first, second = weakref.ref(dropped), Collective(False, 1, 0, 0), Collective(False, 1, 0, 0)
    log.watch([dropped, waited], second)
    log.pending[id(other)] = (gone, first)
    del dropped
    assert gone() is None
    other.wait()
    assert first.end is None and second.end is None
    waited.wait()
    assert second.end is not None
    hooks.undo()


def test_the_end_of_a_backward_never_raises():
    """What goes wrong in the callback that autograd runs last does not reach the backward."""

    def broken():
        raise RuntimeError("another device")

    log = Log(Clock())
    log.open(1, Window())
    log.clock.now = broken
    autograd = Autograd(log)
    reductions = autograd.reductions
    reductions.expected = True
    autograd._has_computed()
    assert not reductions.expected and reductions.computed is None
