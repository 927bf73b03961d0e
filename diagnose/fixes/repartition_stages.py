"""Move layers between pipeline stages so that the step is shortest: what a layer costs is read off the trace.

Enters: a measured job. Leaves: a `Remedy` with the best layout in whole layers. Costs the search's replays, fewer on large jobs.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.errors import UsageError
from diagnose.fixes.assign import Found, Layout, even_out, find_layout
from diagnose.fixes.frameworks import choose_how
from diagnose.fixes.layers import LayerModel, model_layers, name_layout, read_layers, split_evenly
from diagnose.fixes.places import read_whole
from diagnose.model.analysis import Analysis
from diagnose.model.change import Change, Remove, Reschedule
from diagnose.model.remedy import FaultLocation, Refusal, Remedy
from diagnose.model.schedule import refuse_schedule
from diagnose.model.trace import Seconds

NAME = "repartition-stages"
TITLE = "move layers between pipeline stages"
SETTINGS = {
    "layers": "how many layers the model has, or how many each virtual stage has now, like 8/8/8/8",
    "layout": "price this layout, like 9/9/9/5, instead of looking for the best",
    "chunks": "model chunks of each stage afterwards (interleaving); now's where left out",
    "least": "fewest layers of a virtual stage (1); 0 leaves a stage for embedding or loss alone",
    "most": "most layers of a virtual stage, where memory allows no more",
}

#: Operations replayed in the search at most: a second or two.
SEARCH_OPS = 10_000_000
#: ... of which larger jobs replay about so many for a layout (`Analysis.sample`).
SAMPLED_OPS = 750_000
#: Replays of a search at least and at most.
REPLAYS = (16, 240)
#: Less than this part of the step is not worth moving a layer: as `plan.HELPS_FROM`.
WORTH_SHARE = 0.005
#: Where layers of more stages move they are not listed.
MOST_NAMED = 6
#: Why a layout may be faster than a job without uneven stages: with few microbatches a step is more than its longest stage's work.
BEATS_EVEN = ", better than even: stages that wait can hold more"


def propose(analysis: Analysis, place: FaultLocation, settings: Mapping[str, str]) -> Remedy | Refusal:  # noqa: ARG001 - it concerns all stages
    """Say which layers to move.

    It is refused where there is one stage, the layers given do not fit the stages, or no layout is faster than the present.

    Raises
    ------
    UsageError
        A setting makes no sense.
    """
    model = model_layers(analysis, settings, NAME)
    if isinstance(model, Refusal):
        return model
    if list(model.positions) != sorted(model.positions):
        return Refusal("stages hold chunks from both ends of the model: what other layouts give is not priced")
    limits = _read_limits(settings, sum(model.layers))
    chunks = read_whole(settings, "chunks", NAME, least=1) if "chunks" in settings else model.chunks
    n_virtual = model.n_stages * chunks
    if chunks > 1 and chunks != model.chunks:
        n_microbatches = analysis.breakdown.compute_s.shape[2]
        reason = refuse_schedule("interleaved", n_stages=model.n_stages, chunks=chunks, n_microbatches=n_microbatches)
        if reason is not None:
            return Refusal(reason)
    if not limits[0] * n_virtual <= sum(model.layers) <= limits[1] * n_virtual:
        return Refusal(
            f"{n_virtual} virtual stages of {limits[0]} to {limits[1]} layers cannot hold {sum(model.layers)}"
        )
    prices = _LayoutPrices(analysis, model, n_virtual)
    found = _price_one(prices, settings) if "layout" in settings else _search(prices, limits)
    if "layout" not in settings and prices.gain(found.price_s) < WORTH_SHARE:
        return Refusal(_no_better(prices, found))
    return _to_remedy(prices, found, settings)


def _read_limits(settings: Mapping[str, str], total: int) -> tuple[int, int]:
    """Read the fewest and most layers of a virtual stage."""
    least = read_whole(settings, "least", NAME) if "least" in settings else 1
    most = read_whole(settings, "most", NAME, least=max(least, 1)) if "most" in settings else total
    return least, most


class _LayoutPrices:
    """Prices layouts of one job.

    All other faults are taken as mended: else the best layout takes work off a slow worker, or gives a stage less to do because
    its link is slow, and is wrong once they are.
    """

    def __init__(self, analysis: Analysis, model: LayerModel, n_virtual: int) -> None:
        self.analysis, self.model, self.n_virtual = analysis, model, n_virtual
        others = analysis.gains.alone_s.keys() - {"stage"}
        self.aside: tuple[Change, ...] = tuple(Remove(name) for name in sorted(others) if "+" not in name)
        self.present_s = float(analysis.sample(self.aside).mean())

    @property
    def chunks(self) -> int:
        """Model chunks of a stage afterwards."""
        return self.n_virtual // self.model.n_stages

    def price(self, layout: Sequence[float]) -> float:
        """Say how long a step of the sample takes with a layout, seconds."""
        return float(self.analysis.sample((*self.aside, *self.model.change(layout))).mean())

    def price_bound(self) -> float:
        """Say how long it takes with equal stages, all work spread evenly in fractions of layers where it must be; seconds."""
        if self.chunks == self.model.chunks:
            even: Change = Remove("stage")
        else:
            share = np.full((len(self.model.typical_s), self.n_virtual, len(self.model.layers)), 1.0 / self.n_virtual)
            even = Reschedule("interleaved" if self.chunks > 1 else "1f1b", self.chunks, share)
        return float(self.analysis.sample((*self.aside, even)).mean())

    def gain(self, price_s: float) -> float:
        """Say which part of the step comes back."""
        return 1.0 - price_s / self.present_s


def _search(prices: _LayoutPrices, limits: tuple[int, int]) -> Found:
    """Look for the best layout, from the present one and the one whose longest stage is shortest."""
    model, total = prices.model, sum(prices.model.layers)
    starts = [
        model.layers if len(model.layers) == prices.n_virtual else split_evenly(total, prices.n_virtual),
        even_out(lambda layout: _longest(model, layout), prices.n_virtual, total, limits),
    ]
    starts = [start for start in starts if min(start) >= limits[0] and max(start) <= limits[1]]
    max_replays = int(np.clip(SEARCH_OPS // max(min(prices.analysis.trace.n_ops, SAMPLED_OPS), 1), *REPLAYS))
    return find_layout(prices.price, starts, limits=limits, max_replays=max_replays)


def _longest(model: LayerModel, layout: Sequence[float]) -> Seconds:
    """Say how long each virtual stage takes, forward and backward together; of another number of them, by the layers."""
    if len(layout) == len(model.layers):
        return np.asarray(model.stage_s(layout).sum(axis=0))
    stage_s: Seconds = model.layer_s.sum() * np.asarray(layout, dtype=np.float64)
    stage_s[[0, -1]] += model.extra_s.sum(axis=0)
    return stage_s


def _price_one(prices: _LayoutPrices, settings: Mapping[str, str]) -> Found:
    """Price the layout that the user gives."""
    layout, total = read_layers(settings["layout"], NAME, "layout"), sum(prices.model.layers)
    if len(layout) != prices.n_virtual or sum(layout) != total:
        raise UsageError(
            f"--fix {NAME}: layout is {settings['layout']!r}; expected {prices.n_virtual} numbers, {total} layers together"
        )
    return Found(layout, prices.price(layout), n_layouts=1, n_replays=1, floor_s=0.0, proven=False)


def _no_better(prices: _LayoutPrices, found: Found) -> str:
    """Say that the layers are where they should be, or that a whole layer is more than what there is to move."""
    sure = "no other layout in whole layers is" if found.proven else f"none of {found.n_layouts} layouts replayed is"
    is_uneven = prices.gain(prices.price_bound()) >= WORTH_SHARE
    why = "whole layers are too coarse to even it out" if is_uneven else "there is no imbalance to move"
    return f"{why}: {sure} {100 * WORTH_SHARE:g}% faster than the present {name_layout(prices.model.layers)}"


def _to_remedy(prices: _LayoutPrices, found: Found, settings: Mapping[str, str]) -> Remedy:
    """Put the layout into words, flags and figures."""
    model, layout = prices.model, found.layout
    bound_s = prices.price_bound()
    gain, bound_gain = prices.gain(found.price_s), prices.gain(bound_s)
    chosen = {"layers": name_layout(model.layers), "layout": name_layout(layout)}
    if prices.chunks != model.chunks:
        chosen["chunks"] = str(prices.chunks)
    assumptions = [*model.assumptions, "all layers cost the same, and cost on another stage what they cost now"]
    if prices.present_s < (1.0 - WORTH_SHARE) * float(prices.analysis.sample(()).mean()):
        assumptions.append(
            "the layout is chosen for the time after all other faults are mended: else it would work around them"
        )
    guess = "" if model.known else f"if there are {sum(model.layers)} layers, "
    why = BEATS_EVEN if found.price_s < (1.0 - WORTH_SHARE) * bound_s else ""
    return Remedy(
        summary=f"{guess}{_moves(model, layout)}: {name_layout(layout)} layers on the {_stages(prices.chunks)}{why}",
        how=choose_how(_how(layout, model.n_stages), prices.analysis.trace.job),
        changes=model.change(layout),
        settings={**settings, **chosen},
        assumptions=tuple(assumptions),
        risks=_risks(model, layout),
        figures={
            "gain_share": gain,
            "bound_step_time_s": bound_s,
            "part_of_bound_ratio": gain / bound_gain if bound_gain > WORTH_SHARE else None,
            "forward_layer_s": float(model.layer_s[0]),
            "backward_layer_s": float(model.layer_s[1]),
            "first_stage_extra_layers": float(model.extra_s[:, 0].sum() / model.layer_s.sum()),
            "last_stage_extra_layers": float(model.extra_s[:, 1].sum() / model.layer_s.sum()),
            "n_layouts": float(found.n_layouts),
            "n_replays": float(found.n_replays),
            "proven": float(found.proven),
            "left_to_gain_at_most_share": None if "layout" in settings else 1.0 - found.floor_s / found.price_s,
        },
    )


def _risks(model: LayerModel, layout: Layout) -> tuple[str, ...]:
    """Say what a layout may cost."""
    risks = []
    before, after = (np.reshape(n, (-1, model.n_stages)).sum(axis=0) for n in (model.layers, layout))
    more = int(np.argmax(after / np.maximum(before, 1)))
    if after[more] > before[more]:
        risks.append(
            f"stage {more} holds {after[more]} layers instead of {before[more]}, with memory for parameters and activations in "
            f"proportion: --fix {NAME}:most=N limits it"
        )
    return (
        *risks,
        "a checkpoint of the old layout may have to be converted",
        "where a stage is long because its GPUs are slow, moving layers hides the fault: check them first",
    )


def _stages(chunks: int) -> str:
    """Say what a layout counts over."""
    return "stages" if chunks == 1 else f"virtual stages ({chunks} model chunks a stage, in the order of the model)"


def _moves(model: LayerModel, layout: Layout) -> str:
    """Say in words what moves.

    >>> import numpy as np
    >>> model = LayerModel(4, (0, 1, 2, 3), (8, 8, 8, 8), True, np.ones((2, 4)), np.ones(2), ())
    >>> _moves(model, (9, 9, 9, 5))
    'move 3 layers: 3 off stage 3; 1 to each of stages 0, 1, 2'
    >>> model = LayerModel(8, tuple(range(8)), (2,) * 8, True, np.ones((2, 8)), np.ones(2), ())
    >>> _moves(model, (3, 3, 3, 3, 1, 1, 1, 1))
    'move 4 layers'
    """
    if len(layout) != len(model.layers):
        return f"interleave with {len(layout) // model.n_stages} model chunks a stage"
    name = "stage" if model.chunks == 1 else "virtual stage"
    more = {u: after - before for u, (before, after) in enumerate(zip(model.layers, layout, strict=True))}
    n_moved = sum(n for n in more.values() if n > 0)
    if not n_moved:
        return "keep the layers where they are"
    moved = f"move {n_moved} layer{'s' * (n_moved > 1)}"
    if sum(n != 0 for n in more.values()) > MOST_NAMED:
        return moved  # the layout says where
    off = [_group(n, places, "off", name) for n, places in _by_count({u: -n for u, n in more.items() if n < 0})]
    to = [_group(n, places, "to", name) for n, places in _by_count({u: n for u, n in more.items() if n > 0})]
    return f"{moved}: {', '.join(off)}; {', '.join(to)}"


def _by_count(moved: Mapping[int, int]) -> list[tuple[int, list[int]]]:
    """Group stages by how many layers they get or give, most first."""
    return [(n, [u for u in moved if moved[u] == n]) for n in sorted(set(moved.values()), reverse=True)]


def _group(count: int, places: Sequence[int], way: str, name: str) -> str:
    """Say how many layers go where.

    >>> _group(2, [0, 1], "to", "stage")
    '2 to each of stages 0, 1'
    """
    if len(places) == 1:
        return f"{count} {way} {name} {places[0]}"
    return f"{count} {way} each of {name}s {', '.join(map(str, places))}"


def _how(layout: Layout, n_stages: int) -> dict[str, str]:
    """Say how each framework is told a layout."""
    starts = [sum(layout[:u]) for u in range(len(layout) + 1)]
    parts = []
    for u in range(len(layout)):
        names = ["tok_embeddings"] * (u == 0) + [f"layers.{i}" for i in range(starts[u], starts[u + 1])]
        parts.append([*names, *(["norm", "output"] if u == len(layout) - 1 else [])])
    parts_text = "[" + ", ".join(_abbreviate(part) for part in parts) + "]"
    splits = ", ".join(f'"layers.{start}": SplitPoint.BEGINNING' for start in starts[1:-1])
    return {
        "megatron": _megatron_flags(layout, n_stages),
        "torchtitan": f"parallelism.module_fqns_per_model_part = {parts_text} (list every layer; names as in Llama)",
        "pytorch": f"torch.distributed.pipelining: split_spec={{{splits}}}, or build each PipelineStage of its layers",
        "deepspeed": (
            "partition_method of PipelineModule balances parameters or types, not times: subclass it, and in _partition_layers set "
            f"the bounds so that the transformer layers begin at {', '.join(map(str, starts[:-1]))}"
        ),
    }


def _megatron_flags(layout: Layout, n_stages: int) -> str:
    """Write a layout as flags: of the ends where only they differ, else all of it.

    >>> _megatron_flags((9, 9, 9, 5), 4)
    '--decoder-last-pipeline-num-layers 5'
    >>> _megatron_flags((2, 3, 3, 2, 2, 2, 2, 1), 4)
    '--pipeline-model-parallel-layout "Et*2|t*3|t*3|t*2|t*2|t*2|t*2|tL" (alone, without other flags of the split or of chunks)'
    """
    middle = set(layout[1:-1])
    if len(layout) == n_stages > 2 and len(middle) == 1 and 0 not in layout:
        (even,) = middle
        flags = [f"--decoder-first-pipeline-num-layers {layout[0]}"] if layout[0] != even else []
        flags += [f"--decoder-last-pipeline-num-layers {layout[-1]}"] if layout[-1] != even else []
        return " ".join(flags) or "an even split: no flag of the split"
    stages = ["t" * n if n < 2 else f"t*{n}" for n in layout]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
    return (
        f'--pipeline-model-parallel-layout "{"|".join(stages)}" (alone, without other flags of the split or of chunks)'
    )


def _abbreviate(names: Sequence[str]) -> str:
    """Write a list of modules down, long ones by their ends.

    >>> _abbreviate(["layers.0", "layers.1", "layers.2", "layers.3"])
    '["layers.0", ..., "layers.3"]'
    """
    shown = list(names)
    layers = [name for name in shown if name.startswith("layers.")]
    if len(layers) > 3:
        at = shown.index(layers[0])
        shown[at + 1 : at + len(layers) - 1] = ["..."]
    return "[" + ", ".join(name if name == "..." else f'"{name}"' for name in shown) + "]"
