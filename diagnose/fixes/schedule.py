"""Run the pipeline under another schedule: what each of those published would give, and what it holds in memory.

Enters: a measured job. Leaves: a `Remedy` with the best schedule its framework has, and a table of all. Costs a replay of each.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.errors import TraceError, UsageError
from diagnose.fixes.frameworks import choose_how, identify_framework
from diagnose.fixes.layers import LayerModel, model_layers
from diagnose.fixes.places import read_whole
from diagnose.model.analysis import Analysis
from diagnose.model.change import Reschedule
from diagnose.model.optype import DIRECTIONS, Op, of_types
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.schedule import (
    SCHEDULES,
    SPLITTING,
    V_SHAPED,
    WEIGHT,
    count_in_flight,
    order_launches,
    positions_under,
    refuse_schedule,
)
from diagnose.model.trace import Ints
from diagnose.numerics.figures import write_figure
from diagnose.numerics.robust import nan_median

NAME = "schedule"
TITLE = "run the pipeline under another schedule"
SETTINGS = {
    "name": f"one of {', '.join(SCHEDULES)}; the best of them where left out",
    "chunks": "model chunks of each stage, with interleaving",
    "weight_share": "part of a backward that computes weight gradients, where a schedule does them later: 0.5, or as in the job",
    "overlap_cost": "how many times as long computes take that DualPipeV runs at the same time; left out, one after the other",
    "layers": "how many layers the model has, or how many each virtual stage has now, like 8/8/8/8",
}

#: Numbers of model chunks that are tried where none is said.
CHUNKS = (2, 4)
#: A schedule this much slower than the fastest is as good, if it holds less in memory.
TIE_SHARE = 0.005
#: Forward, input and weight gradients take about as long each (arXiv 2401.10241, section 2).
WEIGHT_SHARE = 0.5
#: What frameworks have; those that are not here have all.
OFFERS = {"megatron": ("1f1b", "interleaved"), "deepspeed": ("1f1b",)}


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A schedule with its price, mean seconds a step; without a change where the job runs so now.

    `in_flight` are the microbatches that each stage holds at most, in units of all that its chunks keep of one.
    """

    schedule: str
    chunks: int
    step_s: float
    in_flight: tuple[float, ...]
    change: Reschedule | None

    @property
    def name(self) -> str:
        """Name the schedule, with its chunks where it has several."""
        return f"{self.schedule}_{self.chunks}" if self.chunks > 1 and self.schedule not in V_SHAPED else self.schedule


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - it concerns all stages
    """Say which schedule to run.

    It is refused where there is one stage, the job cannot run the schedule asked for, or none is faster than the present.

    Raises
    ------
    UsageError
        A setting makes no sense.
    """
    wanted = settings.get("name")
    if wanted is not None and wanted not in SCHEDULES:
        raise UsageError(f"--fix {NAME}: name is {wanted!r}; expected one of {', '.join(SCHEDULES)}")
    how = {"weight_share": _read_share(settings), "overlap_cost": _read_cost(settings)}
    chunks = read_whole(settings, "chunks", NAME, least=1) if "chunks" in settings else None
    model = model_layers(analysis, settings, NAME)
    if isinstance(model, Refusal):
        return model
    now = find_present(analysis, model)
    options, refused = _price_options(analysis, model, now, chunks, how)
    of_name = [
        o
        for o in options
        if wanted in (None, o.schedule) and (chunks in (None, o.chunks) or o.schedule != "interleaved")
    ]
    if not of_name:
        return Refusal(next((why for name, why in refused if wanted in (None, name)), "the job cannot run so"))
    offered = OFFERS.get(identify_framework(analysis.trace.job) or "", tuple(SCHEDULES))
    of_framework = [o for o in of_name if wanted or o.schedule in offered]
    best = _choose([now, *of_framework] if wanted is None else of_framework)
    if best.change is None and wanted is None:
        return Refusal(_no_better(now, options))
    if best.change is None:
        return Refusal(f"the job runs {best.name.replace('_', ' with ')} already")
    return _to_remedy(analysis, model, now, best, options, settings)


def _read_share(settings: Mapping[str, str]) -> float:
    """Read the part of a backward that computes weight gradients."""
    text = settings.get("weight_share", str(WEIGHT_SHARE))
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"--fix {NAME}: weight_share is {text!r}; expected a number from 0 to 1")
    return share


def _read_cost(settings: Mapping[str, str]) -> float | None:
    """Read how many times as long computes take beside another one."""
    text = settings.get("overlap_cost")
    try:
        cost = None if text is None else float(text)
    except ValueError:
        cost = 0.0
    if cost is not None and not 1.0 <= cost < np.inf:
        raise UsageError(f"--fix {NAME}: overlap_cost is {text!r}; expected a number from 1")
    return cost


def find_present(analysis: Analysis, model: LayerModel) -> Option:
    """Say how the job runs now: by its chunks, and whether all forwards come before the first backward."""
    step_s = analysis.gains.replayed_s
    if list(model.positions) != sorted(model.positions):
        return Option(_find_v(analysis, model), model.chunks, step_s, _hold_now(analysis, model.chunks), None)
    if any((block.nodes.op == Op.WEIGHT).any() for block in analysis.trace.blocks):
        return Option("zero-bubble", model.chunks, step_s, _hold_now(analysis, model.chunks), None)
    schedule = "interleaved" if model.chunks > 1 else "gpipe" if _runs_gpipe(analysis) else "1f1b"
    return Option(schedule, model.chunks, step_s, count_held(analysis, schedule, model.chunks), None)


def _runs_gpipe(analysis: Analysis) -> bool:
    """Say whether the last stage runs its second forward before its first backward, as only GPipe does."""
    block = max(analysis.trace.blocks, key=lambda b: len(b.steps))
    nodes, last = block.nodes, analysis.trace.n_stages - 1
    here = (nodes.stage == last) & np.isin(nodes.seq, (0, 1))
    second = np.flatnonzero(here & (nodes.op == Op.FORWARD) & (nodes.seq == 1))
    first = np.flatnonzero(here & (nodes.op == Op.BACKWARD) & (nodes.seq == 0))
    if not len(second) or not len(first):
        return False
    gap = block.start_s[second[0]] - block.start_s[first[0]]
    return bool(np.nanmean(gap < 0) > 0.5) if np.isfinite(gap).any() else False


def _find_v(analysis: Analysis, model: LayerModel) -> str:
    """Say which of the V-shaped schedules has more of the job's forwards and backwards where they are."""
    now = [order[order[:, 0] < WEIGHT] for order in _list_orders(analysis)]

    def count_same(name: str) -> int:
        n_microbatches = analysis.breakdown.compute_s.shape[2]
        found = 0
        for stage, order in enumerate(now):
            other = order_launches(name, stage, n_stages=model.n_stages, chunks=2, n_microbatches=n_microbatches)
            other = other[other[:, 0] < WEIGHT]
            n = min(len(order), len(other))
            found += int((order[:n, :3] == other[:n, :3]).all(axis=1).sum())
        return found

    return max(V_SHAPED, key=count_same)


def _hold_now(analysis: Analysis, chunks: int) -> tuple[float, ...]:
    """Say how many microbatches each stage holds at most, by the order in which it runs computes now."""
    return tuple(count_in_flight(order, chunks) for order in _list_orders(analysis))


def _list_orders(analysis: Analysis) -> list[Ints]:
    """List the computes of each stage in the order in which it runs them now, as `order_launches` does."""
    block = max(analysis.trace.blocks, key=lambda b: len(b.steps))
    nodes = block.nodes
    start_s = np.nan_to_num(nan_median(block.start_s, axis=(1, 2)))
    found = []
    for stage in range(analysis.trace.n_stages):
        here = np.flatnonzero((nodes.stage == stage) & of_types(nodes.op, DIRECTIONS))
        here = here[np.argsort(start_s[here], kind="stable")]
        part = np.array([DIRECTIONS.index(Op(op)) for op in nodes.op[here].tolist()], dtype=np.int64)
        found.append(np.stack([part, nodes.chunk[here], nodes.microbatch[here], np.zeros_like(part)], axis=1))
    return found


def count_held(analysis: Analysis, schedule: str, chunks: int) -> tuple[float, ...]:
    """Say how many microbatches each stage holds at most."""
    sizes = {
        "n_stages": analysis.trace.n_stages,
        "chunks": chunks,
        "n_microbatches": analysis.breakdown.compute_s.shape[2],
    }
    return tuple(
        count_in_flight(order_launches(schedule, stage, **sizes), chunks) for stage in range(analysis.trace.n_stages)
    )


def _price_options(
    analysis: Analysis, model: LayerModel, now: Option, chunks: int | None, how: Mapping[str, Any]
) -> tuple[list[Option], list[tuple[str, str]]]:
    """Price every schedule that the job can run, and say why it cannot run the others."""
    tried = (chunks,) if chunks is not None and chunks > 1 else tuple(dict.fromkeys((*CHUNKS, model.chunks)))
    candidates = [("1f1b", 1), ("gpipe", 1), ("zero-bubble", 1), *((name, 2) for name in V_SHAPED)]
    candidates += [("interleaved", v) for v in tried if v > 1]
    options, refused = [], []
    for schedule, v in candidates:
        if (schedule, v) == (now.schedule, now.chunks):
            options.append(now)
            continue
        reason = refuse_option(analysis, model, schedule, v)
        if reason is None:
            change = Reschedule(schedule, v, share_layers(model, schedule, v), **how)
            try:
                step_s = float(analysis.price((change,)).mean())
            except TraceError as error:  # its operations would wait for each other in a circle
                reason = str(error)
            else:
                options.append(Option(schedule, v, step_s, count_held(analysis, schedule, v), change))
        if reason is not None:
            refused.append((schedule, reason))
    return options, refused


def refuse_option(analysis: Analysis, model: LayerModel, schedule: str, chunks: int) -> str | None:
    """Say why the job cannot run a schedule."""
    n_microbatches = analysis.breakdown.compute_s.shape[2]
    n_virtual, total = model.n_stages * chunks, sum(model.layers)
    reason = refuse_schedule(schedule, n_stages=model.n_stages, chunks=chunks, n_microbatches=n_microbatches)
    if reason is None and model.known and chunks != model.chunks and total % n_virtual:
        reason = f"{total} layers cannot be split evenly over {n_virtual} virtual stages; repartition-stages:chunks={chunks} can"
    return reason


def share_layers(model: LayerModel, schedule: str, chunks: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Say which part of the work goes where: layers stay where they are, or are split evenly over other chunks.

    Shape (n_directions, n_virtual_after, n_virtual_before), by chunk x stages + stage.
    """
    n_before, n_after = len(model.layers), chunks * model.n_stages
    if n_after == n_before:  # as many layers at each place of the model, whoever has them
        share = np.stack([np.eye(n_before)] * len(model.typical_s))
    else:
        share = model.share([sum(model.layers) / n_after] * n_after)
    return share[:, positions_under(schedule, model.n_stages, chunks)][:, :, list(model.positions)]


def _choose(options: Sequence[Option]) -> Option:
    """Take the fastest, or one about as fast that holds less; the present one of equals."""
    fastest_s = min(option.step_s for option in options)
    good = [option for option in options if option.step_s <= fastest_s * (1.0 + TIE_SHARE)]
    return min(good, key=lambda option: (max(option.in_flight), option.change is not None, option.step_s))


def _no_better(now: Option, options: Sequence[Option]) -> str:
    """Say what the others would give."""
    others = ", ".join(f"{o.name} {write_figure(o.step_s, 4)} s" for o in options if o.change is not None)
    pace = f"{write_figure(now.step_s, 4)} s a step"
    return f"no schedule that the framework has is faster than {now.name} ({pace}): {others or 'none can run'}"


def _to_remedy(
    analysis: Analysis,
    model: LayerModel,
    now: Option,
    best: Option,
    options: Sequence[Option],
    settings: Mapping[str, str],
) -> Remedy:
    """Put a schedule into words, flags and figures."""
    assert best.change is not None
    figures: dict[str, float | None] = {}
    for option in options:
        figures[f"{option.name}_step_time_s"] = option.step_s
        figures[f"{option.name}_bubble_share"] = _bubble(analysis, option.step_s)
        figures[f"{option.name}_in_flight_microbatches"] = max(option.in_flight)
    chosen = {**settings, "name": best.schedule}
    if best.chunks > 1:
        chosen["chunks"] = str(best.chunks)
    if best.schedule in SPLITTING:
        chosen["weight_share"] = f"{best.change.weight_share:g}"
    held, holds = max(now.in_flight), max(best.in_flight)
    chunks = f", {best.chunks} model chunks" if best.schedule == "interleaved" else ""
    memory = f", a stage holds at most {holds:g} microbatches instead of {held:g}" if holds != held else ""
    bubble, bubble_then = (100 * _bubble(analysis, option.step_s) for option in (now, best))
    return Remedy(
        summary=(
            f"run {SCHEDULES[best.schedule]}{chunks}: workers wait in the pipeline, for faults too, for "
            f"{bubble_then:.0f}% of the step instead of {bubble:.0f}%{memory}"
        ),
        how=choose_how(list_flags(best, model), analysis.trace.job),
        changes=(best.change,),
        settings=chosen,
        assumptions=list_assumptions(best, model),
        risks=list_risks(best, held, holds),
        figures=figures,
    )


def _bubble(analysis: Analysis, step_s: float) -> float:
    """Say in which part of a step of so many seconds the mean worker waits between the first forward and the last backward.

    What comes before and after the pipeline is taken as it is now.
    """
    work = np.nansum(analysis.breakdown.compute_s, axis=(0, 1, 2)).mean() / analysis.trace.n_stages
    beside = []
    for block in analysis.trace.blocks:
        computes = of_types(block.nodes.op, DIRECTIONS)
        start_s, end_s = block.start_s[computes], block.end_s[computes]
        beside.append(
            np.nanmax(block.end_s, axis=(0, 2)) - np.nanmax(end_s, axis=(0, 2)) + np.nanmin(start_s, axis=(0, 2))
        )
    return float(max(step_s - work - np.nanmean(np.concatenate(beside)), 0.0) / step_s)


def list_assumptions(best: Option, model: LayerModel) -> tuple[str, ...]:
    """Say what the prediction takes for granted."""
    found = ["transfers take as long as those recorded over the same link; a link not used now, as the median of all"]
    if best.schedule in SPLITTING:
        share = best.change.weight_share if best.change is not None else WEIGHT_SHARE
        part = "what the job computes apart" if len(model.typical_s) > 2 else f"{100 * share:g}% of a backward"
        found += [
            f"{part} computes weight gradients and can wait; splitting it costs nothing",
            "transfers do not block the worker, as in the published implementations",
        ]
    else:
        found.append("workers wait for their sends if they do now")
    if best.schedule == "dualpipev":
        cost = best.change.overlap_cost if best.change is not None else None
        found.append(
            "a forward and a backward launched together run one after the other, as in PyTorch (overlap_cost= says otherwise)"
            if cost is None
            else f"a forward and a backward that run at the same time take {cost:g} times as long each"
        )
    if best.chunks != model.chunks:
        found += ["the layers are split evenly over the model chunks", *model.assumptions]
    return tuple(found)


def list_risks(best: Option, held: float, holds: float) -> tuple[str, ...]:
    """Say what a schedule may cost."""
    risks = []
    if holds > held:
        risks.append(
            f"activations of {holds:g} microbatches at once instead of {held:g}: {write_figure(holds / held, 2)} times the memory"
        )
    if best.chunks > 1:
        risks.append("more and smaller transfers: on a slow network they may not hide")
    if best.schedule in SPLITTING:
        risks.append(
            "the model's backward must be split into input and weight gradients, and keeps both inputs until the second"
        )
    return tuple(risks)


def list_flags(best: Option, model: LayerModel) -> dict[str, str]:
    """Say how each framework is told a schedule."""
    n_virtual = best.chunks * model.n_stages
    each = f"{max(sum(model.layers) // n_virtual, 1)}" if model.known else f"L/{n_virtual}"
    how = {
        "1f1b": {
            "megatron": "leave out --num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank",
            "torchtitan": "--parallelism.pipeline_parallel_schedule 1F1B",
            "deepspeed": "the schedule of PipelineModule",
            "pytorch": "torch.distributed.pipelining.Schedule1F1B",
        },
        "interleaved": {
            "megatron": f"--num-layers-per-virtual-pipeline-stage {each} (or --num-virtual-stages-per-pipeline-rank {best.chunks})",
            "torchtitan": (
                "--parallelism.pipeline_parallel_schedule Interleaved1F1B "
                f"--parallelism.pipeline_parallel_layers_per_stage {each}"
            ),
            "deepspeed": "PipelineModule has no interleaving",
            "pytorch": f"torch.distributed.pipelining.ScheduleInterleaved1F1B with {best.chunks} stages a rank",
        },
        "gpipe": {
            "megatron": "has no GPipe",
            "torchtitan": "--parallelism.pipeline_parallel_schedule GPipe",
            "deepspeed": "PipelineModule has no GPipe",
            "pytorch": "torch.distributed.pipelining.ScheduleGPipe",
        },
        "zero-bubble": {
            "megatron": "not in Megatron-LM itself; the paper's fork is sail-sg/zero-bubble-pipeline-parallelism",
            "torchtitan": "--parallelism.pipeline_parallel_schedule InterleavedZeroBubble, the nearest it has",
            "deepspeed": "PipelineModule has no zero-bubble",
            "pytorch": "torch.distributed.pipelining.ScheduleInterleavedZeroBubble, the nearest it has",
        },
        "zb-v": {
            "megatron": "not in Megatron-LM itself; the paper's fork is sail-sg/zero-bubble-pipeline-parallelism",
            "torchtitan": "--parallelism.pipeline_parallel_schedule ZBVZeroBubble",
            "deepspeed": "PipelineModule has no zero bubble",
            "pytorch": "torch.distributed.pipelining.ScheduleZBVZeroBubble with 2 stages a rank, one from each end of the model",
        },
        "dualpipev": {
            "megatron": "not in Megatron-LM",
            "torchtitan": "--parallelism.pipeline_parallel_schedule DualPipeV",
            "deepspeed": "PipelineModule has no DualPipeV",
            "pytorch": "torch.distributed.pipelining.ScheduleDualPipeV with 2 stages a rank, one from each end of the model",
        },
    }
    return how[best.schedule]
