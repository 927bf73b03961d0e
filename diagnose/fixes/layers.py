"""What a layer costs on this job, and what stages of other layers would.

Enters: a measured job. Leaves: a `LayerModel`. The time of a virtual stage is its layers times the time of a layer, and what the
first (embedding) and the last (loss) compute beside that.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.errors import UsageError
from diagnose.model.analysis import Analysis
from diagnose.model.change import Change, Reschedule, Work
from diagnose.model.optype import DIRECTIONS, of_types
from diagnose.model.placement import positions_of
from diagnose.model.remedy import Refusal
from diagnose.model.trace import Seconds

#: Layers of a stage where nobody says how many there are: 32 layers on 4 stages, 80 on 10.
ASSUMED_LAYERS = 8
#: A stage with no layers left still takes this part of the time of a layer.
LEAST_LAYER_SHARE = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class LayerModel:
    """Layers of each virtual stage and what they cost."""

    n_stages: int
    #: Length n_virtual: where in the model each model chunk stands now, by chunk x stages + stage.
    positions: tuple[int, ...]
    #: Length n_virtual: as it runs now, in the order of the model, as all that follows.
    layers: tuple[int, ...]
    #: Somebody said how many layers there are; else their number is assumed and split evenly.
    known: bool
    #: Shape (n_directions, n_virtual): usual time of each virtual stage in each direction, seconds.
    typical_s: Seconds
    #: Shape (n_directions,): time of one layer, seconds.
    layer_s: Seconds
    assumptions: tuple[str, ...]

    @property
    def chunks(self) -> int:
        """Model chunks of each stage."""
        return len(self.layers) // self.n_stages

    @property
    def extra_s(self) -> Seconds:
        """What the first and the last virtual stage compute beside their layers, seconds, shape (n_directions, 2)."""
        counted = self.typical_s - np.outer(self.layer_s, self.layers)
        return np.maximum(counted[:, [0, -1]], 0.0)

    def stage_s(self, layout: Sequence[float]) -> Seconds:
        """Say how long each virtual stage takes with other layers in each direction, seconds, shape (n_directions, n_virtual).

        What a stage takes beyond its layers now it takes then.
        """
        moved = np.asarray(layout, dtype=np.float64) - self.layers
        return np.asarray(
            np.maximum(self.typical_s + np.outer(self.layer_s, moved), LEAST_LAYER_SHARE * self.layer_s[:, None])
        )

    def change(self, layout: Sequence[float]) -> tuple[Change, ...]:
        """Say what another layout changes: work of the stages there are, or another number of chunks, interleaved."""
        if len(layout) == len(self.layers):
            factor = self.stage_s(layout) / self.typical_s
            return (Work(factor[:, :, None, None, None]),)
        chunks = len(layout) // self.n_stages
        return (Reschedule("interleaved" if chunks > 1 else "1f1b", chunks, self.share(layout)),)

    def share(self, layout: Sequence[float]) -> Seconds:
        """Say which part of the work of each virtual stage goes to each of another layout.

        Layers keep their order; embedding and loss go to the ends.

        Returns
        -------
        ndarray of float64, shape (n_directions, n_virtual_after, n_virtual_before)
            Columns sum to 1.
        """
        before = np.r_[0.0, np.cumsum(self.layers)]
        after = np.r_[0.0, np.cumsum(layout)]
        after *= before[-1] / after[-1]
        overlap = np.minimum(after[1:, None], before[None, 1:]) - np.maximum(after[:-1, None], before[None, :-1])
        of_layers = np.maximum(overlap, 0.0) / np.maximum(np.diff(before), 1e-9)
        empty = np.flatnonzero(np.diff(before) == 0)
        of_layers[:, empty] = 0.0
        of_layers[np.minimum(np.searchsorted(after[1:], before[empty]), len(layout) - 1), empty] = 1.0
        share = np.stack([of_layers] * len(self.typical_s))
        part = self.extra_s / self.typical_s[:, [0, -1]]
        for end, at in ((0, 0), (1, -1)):
            share[:, :, at] *= 1.0 - part[:, end, None]
            share[:, at, at] += part[:, end]
        return share


def model_layers(analysis: Analysis, settings: Mapping[str, str], fix: str) -> LayerModel | Refusal:
    """Say what a layer costs.

    The setting `layers` is how many there are in all, or on each virtual stage; errors name the fix that asks. It is refused where
    there is one stage, or two copies of the model, or the layers given do not fit the stages there are.

    Raises
    ------
    UsageError
        `layers` is none of both.
    """
    typical_s, n_stages = analysis.breakdown.typical_s, analysis.trace.n_stages
    n_virtual = typical_s.shape[1]
    if n_stages < 2:
        return Refusal("the job has one pipeline stage: there is nothing to move between stages")
    positions = _find_positions(analysis, n_virtual)
    if max(positions) >= n_virtual:
        return Refusal(
            "the job has two copies of its model, which run towards each other: no layer moves between stages alone"
        )
    layers, assumptions = _count_layers(analysis, settings, fix, n_stages, n_virtual)
    if isinstance(layers, Refusal):
        return layers
    in_order = np.argsort(positions)
    typical_s, layers = typical_s[:, in_order], tuple(layers[virtual] for virtual in in_order.tolist())
    counts = np.array(layers, dtype=np.float64)
    if n_virtual > 2 and (counts[1:-1] > 0).any():
        middle = np.flatnonzero(counts[1:-1] > 0) + 1
        layer_s = np.median(typical_s[:, middle] / counts[middle], axis=1)
    elif counts[0] > 0:
        layer_s = typical_s[:, 0] / counts[0]
        assumptions.append(
            "with two stages the embedding cannot be told from the layers: the first stage is taken to have none"
        )
    else:
        return Refusal("no stage between the first and the last has a layer: what a layer costs cannot be read off")
    known = "layers" in settings or analysis.trace.job.layers_per_stage is not None
    return LayerModel(n_stages, positions, layers, known, typical_s, np.asarray(layer_s), tuple(assumptions))


def _find_positions(analysis: Analysis, n_virtual: int) -> tuple[int, ...]:
    """Say where in the model each model chunk stands, by chunk x stages + stage."""
    found = np.arange(n_virtual)
    for block in analysis.trace.blocks:
        nodes, computes = block.nodes, np.flatnonzero(of_types(block.nodes.op, DIRECTIONS))
        virtual = np.maximum(nodes.chunk, 0) * analysis.trace.n_stages + nodes.stage
        found[virtual[computes]] = positions_of(nodes)[computes]
    return tuple(found.tolist())


def _count_layers(
    analysis: Analysis, settings: Mapping[str, str], fix: str, n_stages: int, n_virtual: int
) -> tuple[tuple[int, ...] | Refusal, list[str]]:
    """Say how many layers each virtual stage has, and what that takes for granted."""
    known = analysis.trace.job.layers_per_stage
    if "layers" in settings:
        counts = read_layers(settings["layers"], fix, "layers")
        if len(counts) == 1:
            return split_evenly(counts[0], n_virtual), [f"the {counts[0]} layers are split evenly over the stages now"]
        source = f"--fix {fix}: layers"
    elif known is not None:
        counts, source = known, "layers_per_stage of the metadata"
    else:
        each = max(round(ASSUMED_LAYERS * n_stages / n_virtual), 1)
        stage = "stage" if n_virtual == n_stages else "virtual stage"
        note = (
            f"nothing says how many layers there are: taken as {each * n_virtual}, {each} on each {stage} now; "
            f"give --fix {fix}:layers=N"
        )
        return (each,) * n_virtual, [note]
    chunks = n_virtual // n_stages
    if len(counts) == n_stages and chunks > 1 and not any(n % chunks for n in counts):
        counts = tuple(n // chunks for n in counts) * chunks
    if len(counts) != n_virtual or sum(counts) < 1:
        return Refusal(
            f"{source} has {len(counts)} numbers; expected one for each of the {n_virtual} virtual stages"
        ), []
    return tuple(counts), []


def read_layers(text: str, fix: str, key: str) -> tuple[int, ...]:
    """Read whole numbers with commas or slashes between them; a `UsageError` where they are none.

    >>> read_layers("9/9/9/5", "repartition-stages", "layout")
    (9, 9, 9, 5)
    """
    parts = re.split(r"[,/]", text)
    if not all(re.fullmatch(r"[0-9]{1,4}", part) for part in parts) or not sum(map(int, parts)):
        raise UsageError(
            f"--fix {fix}: {key} is {text!r}; expected a number of layers, or one for each virtual stage like 9/9/9/5"
        )
    return tuple(map(int, parts))


def split_evenly(total: int, n_virtual: int) -> tuple[int, ...]:
    """Split layers as evenly as whole numbers go, the first stages one more.

    >>> split_evenly(30, 4)
    (8, 8, 7, 7)
    """
    each, rest = divmod(total, n_virtual)
    return tuple(each + (i < rest) for i in range(n_virtual))


def name_layout(layout: Sequence[int]) -> str:
    """Write a layout down.

    >>> name_layout((9, 9, 9, 5))
    '9/9/9/5'
    """
    return "/".join(str(n) for n in layout)
