"""What a figure of the page consists of, beside its drawing."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from diagnose.model.diagnosis import Diagnosis
from diagnose.model.trace import Ints, Seconds
from diagnose.report import words
from diagnose.report.html.draw import N_LEVELS, Drawing

#: Widths in pixels of a picture that leads a row, of the one beside it, and of one that has a row to itself.
LEAD_WIDTH, SIDE_WIDTH, FULL_WIDTH = 690.0, 510.0, 1200.0
#: Rows of a table at most; what is left out is said above it.
MAX_ROWS = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A figure with the words and the table that say the same."""

    key: str  # Id on the page
    title: str
    says: str  # What to see in it
    drawing: Drawing
    head: tuple[str, ...]  # Names of the columns of the table
    rows: Sequence[tuple[str, ...]]
    note: str = ""  # What the table leaves out
    #: CSS colour and what it means; a colour that begins with `outline` is a frame.
    legend: tuple[tuple[str, str], ...] = ()
    #: What the script needs to show values, plain types.
    probe: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Culprits:
    """Positions of what the causes name: workers (dp index, stage index) and stages (index), worst first."""

    workers: tuple[tuple[int, int], ...]
    stages: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """How values of a unit are written: in a sentence, in a cell, and along an axis."""

    say: Callable[[float], str]
    brief: Callable[[float], str]
    label: Callable[[Sequence[float]], list[str]]


def _label_seconds(ticks: Sequence[float]) -> list[str]:
    """Write round times in one unit.

    >>> _label_seconds([0.0, 0.2, 0.4])
    ['0', '200 ms', '400 ms']
    """
    top = max((abs(tick) for tick in ticks), default=0.0)
    unit, scale = ("s", 1.0) if top >= 1 or top == 0 else ("ms", 1e3) if top >= 1e-3 else ("us", 1e6)
    return [f"{tick * scale:.6g} {unit}" if tick else "0" for tick in ticks]


#: By the unit of a `Proof`.
UNITS = {
    "seconds": Unit(words.seconds, words.seconds, _label_seconds),
    "ratio": Unit(
        lambda value: f"{words.ratio(value)}x" if np.isfinite(value) else words.NOT_KNOWN,
        words.ratio,
        lambda ticks: [f"{tick:.6g}x" for tick in ticks],
    ),
}


def find_culprits(diagnosis: Diagnosis) -> Culprits:
    """Give the indices of all workers and stages that causes name."""
    dp = {int(label): i for i, label in enumerate(diagnosis.dp_labels)}
    stage = {int(label): i for i, label in enumerate(diagnosis.stage_labels)}
    workers = [(dp[w.dp], stage[w.pp]) for cause in diagnosis.causes for w in cause.where.workers]
    stages = [stage[label] for cause in diagnosis.causes for label in cause.where.stages]
    return Culprits(tuple(dict.fromkeys(workers)), tuple(dict.fromkeys(stages)))


def largest_first(values: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Order named values, the largest first, ties by name."""
    return sorted(values, key=lambda entry: (-entry[1], entry[0]))


def level_of(values: Seconds, low: float, high: float) -> Ints:
    """Give the level of heat of each value, 0 .. 8; -1 where it is not known."""
    span = high - low if high > low else 1.0
    levels = np.clip(np.floor((np.nan_to_num(values, nan=low) - low) / span * N_LEVELS), 0, N_LEVELS - 1)
    return np.where(np.isnan(values), -1, levels).astype(np.int64)


def spread(labels: Ints, room: int) -> list[int]:
    """Choose positions of an axis to label so that at most so many are, evenly."""
    every = max(1, -(-len(labels) // max(room, 1)))
    nice = next(
        n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1000, 10**9) if n >= every
    )
    return list(range(0, len(labels), nice))
