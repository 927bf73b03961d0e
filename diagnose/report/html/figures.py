"""A drawing of the page as a figure of matplotlib's own, for notebooks, slides and papers.

Enters: `ReportData`, and what draws. Leaves: a `Figure` with title and legend, in the colours of the page by day.
"""

import functools
import re
import textwrap
from collections.abc import Callable, Mapping

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from diagnose.model.analysis import ReportData
from diagnose.report.html.draw import plain, styled
from diagnose.report.html.environment import own_file
from diagnose.report.html.picture import Picture

#: Pixels for the title, for a line of the words below it, and for a row of the legend.
_HEAD, _LINE, _ROW = 44, 16, 22
#: Pixels of a character of these words, on the safe side, and characters of them at most: the page has all.
_CHARACTER, _MAX_SAID = 6.0, 400
#: A narrow drawing is set in a figure as wide as this, pixels, so that title and legend have room.
_MIN_WIDTH = 560
#: Pixels of an inch on a screen; the sheet counts 72.
_DPI = 110


def plot(draw: Callable[[ReportData], Picture | None], data: ReportData) -> Figure | None:
    """Draw one picture of the page; None where the job has nothing to draw there."""
    colours = read_colours()
    with styled(colours):
        picture = draw(data)
        if picture is None:
            return None
        return _frame(picture, data.diagnosis.job.job_id, colours)


@functools.cache
def read_colours() -> Mapping[str, str]:
    """Read the colours of the page by day, by the name of their CSS variable."""
    day = own_file("style.css").partition("}")[0]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", day))


def _frame(picture: Picture, job: str, colours: Mapping[str, str]) -> Figure:
    """Give a drawing a title above and its legend below, which the page writes itself."""
    figure = picture.drawing.figure
    FigureCanvasAgg(figure)  # as every figure has that is no part of a window; it knows how wide words are
    old_width, old_height = (72 * inches for inches in figure.get_size_inches())
    width = max(old_width, _MIN_WIDTH)
    n_rows = _add_legend(figure, picture, width, colours)
    says = textwrap.wrap(plain(picture.says, _MAX_SAID), int((width - 32) / _CHARACTER))
    head, foot = _HEAD + _LINE * len(says), n_rows * _ROW + 12 if n_rows else 0
    height = old_height + head + foot
    for axes in figure.axes:
        box = axes.get_position()
        left, low = box.x0 * old_width / width, (box.y0 * old_height + foot) / height
        axes.set_position((left, low, box.width * old_width / width, box.height * old_height / height))
    figure.set_size_inches(width / 72, height / 72)
    figure.set_dpi(_DPI)
    figure.set_facecolor(colours["bg"])
    title = f"{plain(job, 40)}: {plain(picture.title)}"
    figure.text(16 / width, 1 - 20 / height, title, color=colours["ink"], fontsize=15, fontweight="bold", va="center")
    figure.text(
        16 / width, 1 - 34 / height, "\n".join(says), color=colours["muted"], fontsize=11, va="top", linespacing=1.3
    )
    return figure


def _add_legend(figure: Figure, picture: Picture, width: float, colours: Mapping[str, str]) -> int:
    """Write the legend into the lower left corner, in as few rows as fit, and give their number."""
    marks = [_patch(of, text, colours) for of, text in picture.legend]
    for n_rows in range(1, len(marks) + 1):
        legend = figure.legend(
            handles=marks,
            loc="lower left",
            bbox_to_anchor=(0.0, 0.0),
            ncols=-(-len(marks) // n_rows),
            frameon=False,
            fontsize=11,
            labelcolor=colours["ink"],
            handlelength=1.2,
            columnspacing=1.2,
        )
        if legend.get_window_extent().width <= width or n_rows == len(marks):
            return n_rows
        legend.remove()
    return 0


def _patch(of: str, text: str, colours: Mapping[str, str]) -> Patch:
    """Give the mark of a legend: a colour, or a frame."""
    if of.startswith("outline"):
        return Patch(facecolor="none", edgecolor=colours["ink"], linewidth=2, label=plain(text))
    return Patch(facecolor=colours[of], edgecolor=colours["line"], linewidth=0.5, label=plain(text))
