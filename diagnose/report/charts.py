"""Bars, sparklines and heat maps out of characters, so that they read on a terminal, in a file and without colour.

Enters: arrays of slowdowns (ratios) and shares (0..1). Leaves: text, one entry a line.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from diagnose.model.trace import Bools, Ints, Seconds
from diagnose.report.escape import escape
from diagnose.report.words import percent, ratio

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SPARKS = "▁▂▃▄▅▆▇█"
#: Marks and colours of the heat map, coolest first. They differ without colour, and no cell is blank.
_MARKS = "·░▒▓█"
_STYLES = ("dim", "", "yellow", "red", "bold red")
#: What stands in place of them for workers that a cause names.
CULPRIT = "X"
_CULPRIT_STYLE = "bold red"
#: Slowdowns this near to each other are alike: below it a picture would show noise.
ALIKE_RATIO = 1.01
#: A slowdown below this never looks hot: jobs straggle from 1.1 on (arXiv 2505.05713, section 4).
HOT_SLOWDOWN = 1.1
#: Columns of the bar of a share: at most, and at least.
_BAR_WIDTH = 44
_LEAST_BAR = 8
#: Rows of a heat map at most.
_MAX_ROWS = 32
#: Columns that a cell with its number in it takes: mark, four digits, a blank.
_NUMBER_CELL = 6


def draw_bar(share: float, width: int) -> str:
    """Draw a share of 1 as a bar; a share below 0 has none, one above 1 is full.

    >>> draw_bar(0.5, 4), draw_bar(0.3, 4), draw_bar(-0.1, 4)
    ('██', '█▎', '')
    """
    if not math.isfinite(share):
        return ""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def draw_shares(width: int, *groups: Sequence[tuple[str, float, str]]) -> list[Table]:
    """Draw a bar for each part: its name, its share of 1 and the style of its bar; the columns of all groups are as wide."""
    longest = max((len(escape(part)) for group in groups for part, _, _ in group), default=0)
    names = min(longest, width - 12 - _LEAST_BAR)
    bar_width = max(_LEAST_BAR, min(_BAR_WIDTH, width - names - 12))
    tables = []
    for group in groups:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=names)
        table.add_column(justify="right", width=5)
        table.add_column(width=bar_width, no_wrap=True)
        for part, share, style in group:
            said = percent(share).replace("under ", "<")
            table.add_row(escape(part), said, Text(draw_bar(share, bar_width), style=style))
        tables.append(table)
    return tables


def draw_sparkline(values: Seconds, width: int) -> str:
    """Draw slowdowns, shape (n,), on the scale of `scale_of`, in at most `width` characters; a blank where none is known.

    Where there are more than `width`, a character stands for the largest of its neighbours.

    >>> import numpy as np
    >>> draw_sparkline(np.array([1.0, 1.5, 2.0, np.nan]), 10)
    '▁▅█ '
    """
    binned = _largest_of(values[None, :], bin_size(len(values), width))[0]
    low, high = scale_of(values)
    return "".join(" " if math.isnan(value) else _SPARKS[_level(value, low, high, 8)] for value in binned.tolist())


def draw_chart(values: Seconds, width: int, height: int) -> list[str]:
    """Draw slowdowns, shape (n,), as columns of so many lines, on the scale of `scale_of`; what is known is never blank.

    >>> import numpy as np
    >>> for line in draw_chart(np.array([1.0, 1.5, 2.0, np.nan]), 10, 2):
    ...     print(repr(line))
    ' ▁█ '
    '▁██ '
    """
    binned = _largest_of(values[None, :], bin_size(len(values), width))[0]
    low, high = scale_of(values)
    levels = [-1 if math.isnan(value) else _level(value, low, high, 8 * height) for value in binned.tolist()]
    floors = [8 * line for line in reversed(range(height))]
    return ["".join(" " if n < floor else _SPARKS[min(n - floor, 7)] for n in levels) for floor in floors]


def scale_of(values: Seconds) -> tuple[float, float]:
    """Give the range that a picture shows: from 1.0 to 1.1, or further to the smallest and the largest value."""
    return min(1.0, float(np.nanmin(values))), max(HOT_SLOWDOWN, float(np.nanmax(values)))


def are_alike(values: Seconds) -> bool:
    """Say whether all known values lie within 1% of each other."""
    return bool(np.nanmax(values) <= np.nanmin(values) * ALIKE_RATIO)


@dataclasses.dataclass(frozen=True, slots=True)
class _Grid:
    """A heat map after binning: `cells` and `marked` of shape (rows, columns), and how many ranks a cell stands for."""

    cells: Seconds
    marked: Bools
    dp_labels: list[int]
    row_names: list[str]
    dp_size: int
    stage_size: int
    low: float
    high: float

    def level(self, value: float) -> int:
        """Give 0..4, coolest first."""
        return _level(value, self.low, self.high, len(_MARKS))


def draw_heat_map(
    by_worker: Seconds,
    dp_labels: Ints,
    stage_labels: Ints,
    width: int,
    *,
    culprits: Bools | None = None,
    most_rows: int = _MAX_ROWS,
) -> list[Text]:
    """Draw the slowdown of every worker: dp ranks across, stages down, with axes and a legend.

    Parameters
    ----------
    by_worker : ndarray of float64, shape (n_dp, n_stages)
        Slowdown when that worker alone keeps its own times, ratio; NaN where unknown.
    dp_labels, stage_labels : ndarray of int64
        Ranks as the file names them.
    width : int
        Columns to fit into. Jobs that do not fit are binned: a cell is the largest of the ranks it stands for.
    culprits : ndarray of bool, shape (n_dp, n_stages), optional
        Workers to be marked; a cell that stands for one of them is.
    most_rows : int
        Lines of workers at most; where there are more stages a line stands for several.
    """
    if culprits is None:
        culprits = np.zeros(by_worker.shape, dtype=bool)
    names = max(len(f"stage {stage_labels[0]}-{stage_labels[-1]}"), len("stage 0"))
    room = max(width - names - 2, 8)
    with_numbers = by_worker.shape[0] * _NUMBER_CELL <= room and by_worker.shape[1] <= most_rows
    columns = by_worker.shape[0] if with_numbers else room
    grid = _bin_grid(by_worker, culprits, dp_labels, stage_labels, columns, most_rows)
    indent = max(len(name) for name in grid.row_names) + 2
    cell = _NUMBER_CELL if with_numbers else 1
    lines = [Text("dp".ljust(indent) + _ticks(grid.dp_labels, cell), style="dim")]
    for name, row, marks in zip(grid.row_names, grid.cells.tolist(), grid.marked.tolist(), strict=True):
        line = Text(name.ljust(indent), style="dim")
        for value, is_culprit in zip(row, marks, strict=True):
            mark, style = ("?", "dim") if math.isnan(value) else (_MARKS[grid.level(value)], _STYLES[grid.level(value)])
            mark, style = (CULPRIT, _CULPRIT_STYLE) if is_culprit else (mark, style)
            text = f"{mark}{_four_digits(value)} " if with_numbers else mark
            line.append(text, style=style or "not dim")
        lines.append(line)
    return [*lines, _legend(grid), *_bin_notes(grid)]


def _bin_grid(
    by_worker: Seconds, culprits: Bools, dp_labels: Ints, stage_labels: Ints, columns: int, rows: int
) -> _Grid:
    """Take the largest of neighbours until the map fits."""
    dp_size = bin_size(by_worker.shape[0], columns)
    stage_size = bin_size(by_worker.shape[1], rows)
    cells, marked = (
        _largest_of(_largest_of(values.T, dp_size).T, stage_size).T
        for values in (by_worker, culprits.astype(np.float64))
    )
    stages = [stage_labels[start : start + stage_size].tolist() for start in range(0, len(stage_labels), stage_size)]
    row_names = [f"stage {run[0]}" if len(run) == 1 else f"stage {run[0]}-{run[-1]}" for run in stages]
    low, high = scale_of(by_worker)
    return _Grid(cells, marked > 0, dp_labels[::dp_size].tolist(), row_names, dp_size, stage_size, low, high)


def bin_size(n: int, at_most: int) -> int:
    """Say how many neighbours share a cell so that at most that many cells are left."""
    return max(1, math.ceil(n / max(at_most, 1)))


def _largest_of(values: Seconds, size: int) -> Seconds:
    """Give the largest known of every `size` neighbours along the last axis; NaN where none is known."""
    n_cells = math.ceil(values.shape[1] / size)
    padded = np.full((values.shape[0], n_cells * size), -np.inf)
    padded[:, : values.shape[1]] = np.where(np.isnan(values), -np.inf, values)
    largest = padded.reshape(values.shape[0], n_cells, size).max(axis=2)
    return np.where(np.isneginf(largest), np.nan, largest)


def _level(value: float, low: float, high: float, n_levels: int) -> int:
    """Give the level of a value on a scale, 0 .. n_levels - 1."""
    if high <= low:
        return 0
    return min(n_levels - 1, max(0, int((value - low) / (high - low) * n_levels)))


def _ticks(labels: list[int], cell: int) -> str:
    """Write the labels of an axis where they have room."""
    line = ""
    every = 1 if cell > 1 else _tick_distance(labels)
    for column in range(0, len(labels), every):
        at = column * cell
        if at == 0 or at > len(line):
            line = line.ljust(at) + str(labels[column])
    return line


def _tick_distance(labels: list[int]) -> int:
    """Choose a round number of columns between two labels."""
    least = len(str(labels[-1])) + 4
    return next((every for every in (8, 16, 32) if every >= least), least)


def _legend(grid: _Grid) -> Text:
    """Say which slowdowns each mark stands for."""
    width = (grid.high - grid.low) / len(_MARKS)
    legend = Text("slowdown:")
    for level, (mark, style) in enumerate(zip(_MARKS, _STYLES, strict=True)):
        low, high = ratio(grid.low + level * width), ratio(grid.low + (level + 1) * width)
        legend.append(f"  {mark} {low}-{high}", style=style or "not dim")
    return legend


def _bin_notes(grid: _Grid) -> list[Text]:
    """Say how many ranks and stages a cell stands for, where it is more than one."""
    sizes = [(grid.dp_size, "dp ranks"), (grid.stage_size, "stages")]
    what = " and ".join(f"{size} {name}" for size, name in sizes if size > 1)
    return [Text(f"each mark is the largest of {what}", style="dim")] if what else []


def _four_digits(value: float) -> str:
    """Write a slowdown in four characters.

    >>> _four_digits(1.916), _four_digits(12.34), _four_digits(123.4), _four_digits(float("nan"))
    ('1.92', '12.3', ' 123', '    ')
    """
    if math.isnan(value):
        return "    "
    return f"{value:.2f}" if value < 9.995 else (f"{value:.1f}" if value < 99.95 else f"{min(value, 9999):4.0f}")
