"""Price what makes a job faster that has no fault: another schedule, smaller microbatches, communication and hosts that are hidden.

Enters: a measured job and its `Budget`. Leaves: `Lever`s, the best first. Costs a replay of each that the budget leaves room for,
and where that is another layout of the pipeline, a new graph.

A job with faults is priced without them, as the budget has its parts: hiding the collectives in which everybody waits for a slow
worker must not take credit for that worker.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.errors import TraceError
from diagnose.fixes import planned_gc, schedule
from diagnose.fixes.frameworks import choose_how, identify_framework
from diagnose.fixes.layers import LayerModel, model_layers
from diagnose.fixes.plan import predict
from diagnose.model.analysis import Analysis
from diagnose.model.budget import Budget, Lever
from diagnose.model.change import Change, Remove, Reschedule, Scale, Work
from diagnose.model.optype import DP_COLLECTIVES, P2P, Op
from diagnose.model.planned import find_planned_collections
from diagnose.model.remedy import Refusal
from diagnose.model.schedule import SCHEDULES, SPLITTING, V_SHAPED
from diagnose.numerics.figures import write_figure

#: What gives back less than this part of the step is not listed (as causes, `--min-speedup`), nor priced where it cannot be more.
WORTH_LISTING = 0.02
#: ... and another layout of the pipeline not below this: nobody changes that for less.
WORTH_A_LAYOUT = 0.04
#: Schedules as people call them.
NAMES = {
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "gpipe": "GPipe",
    "zero-bubble": "a zero-bubble schedule (ZB-H1)",
    "zb-v": "ZB-V",
    "dualpipev": "DualPipeV",
}
#: Levers listed at most.
MOST_LISTED = 2
#: Microbatches are cut into so many.
PIECES = 2
#: A schedule is known if the job replayed by its name takes as long as by its rows, give or take this part.
KNOWN_SHARE = 0.02

_NO_TIME = np.zeros((1, 1, 1))


@dataclasses.dataclass(frozen=True, slots=True)
class _Idea:
    """A lever before it is priced, and what it changes."""

    name: str
    summary: str
    how: dict[str, str]
    changes: tuple[Change, ...]
    assumes: tuple[str, ...]
    at_most: bool = False
    #: Part of the step that comes back if the idea does what the textbook says.
    part: float = 1.0


def price_levers(analysis: Analysis, budget: Budget) -> tuple[Lever, ...]:
    """List the levers that give most, each priced alone on the job without its faults; one that is not better is not listed.

    Where the replay does not give the recorded time nothing is promised.
    """
    if not analysis.fidelity.ok:
        return ()
    now_s = analysis.gains.replayed_s
    faults, clean_s = tuple(Remove(name) for name in analysis.gains.alone_s), analysis.gains.clean_s
    best: dict[str, tuple[float, _Idea]] = {}
    for list_ideas in (_hide_communication, _launch_sooner, _collect_less_often, _reschedule):
        for idea in list_ideas(analysis, budget):
            if idea.name in best and best[idea.name][0] <= now_s * (1.0 - idea.part):
                continue
            left_s = _price(analysis, (*faults, *idea.changes))
            if left_s is None:
                continue
            step_s = now_s - (clean_s - left_s)
            if idea.name not in best or step_s < best[idea.name][0]:
                best[idea.name] = (step_s, idea)
    found = [one for one in best.values() if one[0] <= now_s * (1.0 - WORTH_LISTING)]
    found.sort(key=lambda one: (one[0], one[1].name))
    return tuple(_to_lever(analysis, *one) for one in found[:MOST_LISTED])


def _price(analysis: Analysis, changes: Sequence[Change]) -> float | None:
    """Give the mean seconds of a step with some changes; None where operations would wait for each other in a circle."""
    try:
        return float(analysis.price(changes).mean())
    except TraceError:
        return None


def _to_lever(analysis: Analysis, step_s: float, idea: _Idea) -> Lever:
    """Put a priced lever into words."""
    predicted, speedup = predict(analysis, step_s)
    how = choose_how(idea.how, analysis.trace.job)
    return Lever(idea.name, idea.summary, how, predicted, speedup or 1.0, idea.at_most, idea.assumes)


def _hide_communication(analysis: Analysis, budget: Budget) -> Iterator[_Idea]:
    """Let collectives, or transfers, run beside computes."""
    del analysis
    exposed = budget.exposed_collectives or 0.0
    if exposed >= WORTH_LISTING:
        yield _Idea(
            "overlap-collectives",
            "run data-parallel collectives beside computes",
            {
                "megatron": "--overlap-grad-reduce --overlap-param-gather, with --use-distributed-optimizer",
                "deepspeed": "zero_optimization: overlap_comm true",
                "pytorch": "DistributedDataParallel does so by itself, in buckets (bucket_cap_mb); FSDP with explicit prefetching",
            },
            (Scale(frozenset(int(op) for op in DP_COLLECTIVES), _NO_TIME),),
            ("all of them fit beside computes, and slow none of these down",),
            at_most=True,
        )
    exposed = budget.exposed_p2p or 0.0
    if exposed >= WORTH_LISTING:
        yield _Idea(
            "overlap-transfers",
            "run transfers between stages beside computes",
            {
                "megatron": "--num-layers-per-virtual-pipeline-stage: transfers overlap with several model chunks a stage only; "
                "--overlap-p2p-communication-warmup-flush for those at the ends of a step",
                "any": "post receives before they are needed, and send without waiting",
            },
            (Scale(frozenset(int(op) for op in P2P), _NO_TIME),),
            ("all of them fit beside computes, and slow none of these down",),
            at_most=True,
        )


def _launch_sooner(analysis: Analysis, budget: Budget) -> Iterator[_Idea]:
    """Let GPUs never wait for their hosts, where the trace tells how long they do within computes."""
    account = analysis.trace.recording
    host, compute = budget.host or 0.0, budget.compute or 0.0
    if account is None or account.host is None or host < WORTH_LISTING:
        return
    wait = account.host.wait
    caller = (wait.operator or wait.call) if wait else ""
    summary = f"do without {caller}, after which the GPU has nothing to do" if caller else "launch work sooner"
    yield _Idea(
        "host",
        summary,
        {
            "any": "torch.compile, CUDA graphs or larger kernels; read losses and metrics every few steps, without waiting"
        },
        (Work(np.full((1,) * 5, compute / (compute + host))),),
        ("the GPU never waits for the host; profiling itself takes no time of the host",),
        at_most=True,
    )


def _collect_less_often(analysis: Analysis, budget: Budget) -> Iterator[_Idea]:
    """Let collections that all workers take at a planned place be further apart, so that they cost next to nothing."""
    if (budget.evaluation or 0.0) < WORTH_LISTING:
        return
    planned = find_planned_collections(analysis.trace)
    if planned is None:
        return
    interval = planned.interval_steps
    every = planned_gc.choose_interval(planned.pause_s, analysis.gains.replayed_s)
    if every > interval:
        yield _Idea(
            "collect-less-often",
            f"collect garbage every {every} steps, not every {write_figure(interval, 2)}",
            planned_gc.write_how(every),
            (Scale(frozenset({int(Op.GC)}), np.full((1, 1, 1), interval / every)),),
            (f"a collection takes as long as now, and garbage of {every} steps fits into memory",),
        )


def _reschedule(analysis: Analysis, budget: Budget) -> Iterator[_Idea]:
    """Let the bubble be smaller: by another schedule, or by twice as many microbatches."""
    bubble, n_stages = budget.bubble or 0.0, analysis.trace.n_stages
    if n_stages < 2 or bubble < WORTH_A_LAYOUT:
        return
    model = model_layers(analysis, {}, schedule.NAME)
    if isinstance(model, Refusal):
        return
    now, n_microbatches = schedule.find_present(analysis, model), analysis.breakdown.compute_s.shape[2]

    def most(name: str, chunks: int, n: int) -> float:
        """Say how much of the step comes back if the bubble is that of the textbook, as now."""
        ratio = _bubble(name, chunks, n, n_stages) / _bubble(now.schedule, now.chunks, n_microbatches, n_stages)
        return bubble * (1.0 - ratio)

    offered = schedule.OFFERS.get(identify_framework(analysis.trace.job) or "megatron", tuple(SCHEDULES))
    numbers = {"interleaved": schedule.CHUNKS} | dict.fromkeys(V_SHAPED, (2,))
    others = [(name, chunks) for name in offered for chunks in numbers.get(name, (1,))]
    # What can give most first: it may leave nothing to gain by the others.
    for part, (name, chunks) in sorted(((most(*other, n_microbatches), other) for other in others), reverse=True):
        if (name, chunks) == (now.schedule, now.chunks) or part < WORTH_A_LAYOUT:
            continue
        if schedule.refuse_option(analysis, model, name, chunks) is None:
            yield dataclasses.replace(_describe_schedule(analysis, model, now, name, chunks), part=part)
    part = most(now.schedule, now.chunks, PIECES * n_microbatches)
    if part >= WORTH_A_LAYOUT:
        yield from _cut_microbatches(analysis, model, now)


def _bubble(name: str, chunks: int, n_microbatches: int, n_stages: int) -> float:
    """Give the textbook's part of a pipeline's time in which workers wait."""
    waits = (n_stages - 1) / chunks / (3.0 if name in SPLITTING else 1.0)
    return waits / (n_microbatches + waits)


def _describe_schedule(analysis: Analysis, model: LayerModel, now: schedule.Option, name: str, chunks: int) -> _Idea:
    """Say what to run instead of the schedule that the job runs now."""
    change = Reschedule(name, chunks, schedule.share_layers(model, name, chunks))
    option = schedule.Option(name, chunks, 0.0, schedule.count_held(analysis, name, chunks), change)
    of = f" with {chunks} model chunks a stage" if name == "interleaved" else ""
    if chunks != model.chunks and not model.known:
        of += " (if its layers divide so)"
    held, holds = max(now.in_flight), max(option.in_flight)
    return _Idea(
        "schedule",
        f"run {NAMES[name]}{of}, instead of {NAMES[now.schedule]}",
        schedule.list_flags(option, model),
        (change,),
        (*schedule.list_risks(option, held, holds), *(model.assumptions if chunks != model.chunks else ())),
        at_most=name in SPLITTING,  # as published; what frameworks have comes near it
    )


def _cut_microbatches(analysis: Analysis, model: LayerModel, now: schedule.Option) -> Iterator[_Idea]:
    """Let each microbatch be two of half the size, if the present schedule is one that can be laid out anew."""
    whole = Reschedule(now.schedule, now.chunks, schedule.share_layers(model, now.schedule, now.chunks))
    known_s, now_s = _price(analysis, (whole,)), analysis.gains.replayed_s
    if known_s is None or abs(known_s - now_s) > KNOWN_SHARE * now_s:
        return
    n = analysis.breakdown.compute_s.shape[2]
    yield _Idea(
        "microbatches",
        f"run {PIECES * n} microbatches of half the size instead of {n}, or as many more of the same size in a larger batch",
        {
            "megatron": "half --micro-batch-size, with the same --global-batch-size",
            "torchtitan": "half --parallelism.pipeline_parallel_microbatch_size, with the same --training.local_batch_size",
            "deepspeed": "half train_micro_batch_size_per_gpu, twice gradient_accumulation_steps",
            "pytorch": f"n_microbatches={PIECES * n} of the schedule",
        },
        (dataclasses.replace(whole, pieces=PIECES),),
        (
            "a microbatch of half the size takes half the time in computes and transfers; very small ones take more",
            "a larger batch gives at least as much for each token, and changes how the model learns",
        ),
    )
