"""A sheet to draw on: matplotlib's figure in pixels, turned into SVG that takes its colours from the page.

Enters: what to draw, in data coordinates. Leaves: SVG text without scripts, styles of its own, dates, or ids of other sheets.
Colours are names of CSS variables, so that one drawing serves light, dark and print.
"""

import contextlib
import dataclasses
import html
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from diagnose.model.trace import Ints
from diagnose.report.escape import escape

#: Colours of a heat map, `heat0` to `heat8` in style.css.
N_LEVELS = 9
#: Colours by the name of their CSS variable.
COLOURS = (
    *("ink", "muted", "line", "panel", "bad", "good", "warn", "accent", "forward", "backward", "comm", "other"),
    *(f"heat{level}" for level in range(N_LEVELS)),
    *(f"heat{level}-ink" for level in range(N_LEVELS)),
)
#: What matplotlib is told for each of them; no colour that it chooses itself looks like that.
_SENTINEL = {name: f"#fe{n:02x}a5" for n, name in enumerate(COLOURS)}
#: Everything that a user's own settings of matplotlib could change is set here.
_STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "text.parse_math": False,
    "text.usetex": False,
    "axes.unicode_minus": False,
    "axes.formatter.useoffset": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "diagnose",
    "svg.image_inline": True,
    "path.simplify": False,
    "path.sketch": None,
}
#: Pixels that a frame is wide and high at the least.
_LEAST_FRAME = 9.0
#: Characters of an alternative text: the table says the rest.
_MAX_ALT = 1500
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


#: What is drawn with now.
_palette: ContextVar[Mapping[str, str]] = ContextVar("palette", default=_SENTINEL)


@contextlib.contextmanager
def styled(colours: Mapping[str, str] = _SENTINEL) -> Iterator[None]:
    """Draw by matplotlib's defaults and those of this page, whatever the user's own settings say.

    Without `colours`, by the name of their CSS variable, a drawing has stand-ins, which its SVG leaves to the page.
    """
    before = _palette.set(colours)
    try:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(_STYLE)
            yield
    finally:
        _palette.reset(before)


def colour(name: str) -> str:
    """Give the colour that stands in a drawing for a CSS variable."""
    return _palette.get()[name]


class NotebookFigure(Figure):
    """A figure that a notebook shows also where nobody has asked for pyplot."""

    def _repr_png_(self) -> bytes:
        """Give the picture that a notebook shows."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=self.dpi)
        return file.getvalue()


@dataclasses.dataclass(frozen=True, slots=True)
class Drawing:
    """What was drawn: SVG that is safe to put into the page, and the figure that it was written from."""

    svg: str
    figure: Figure


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """Where a rectangle of data coordinates lies on the sheet, pixels from the upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def listed(self) -> list[float]:
        """Give the four numbers, rounded as the script wants them."""
        return [round(value, 1) for value in (self.x, self.y, self.width, self.height)]


class Sheet:
    """One drawing with one pair of axes; sizes and margins (left, right, top, bottom) in pixels, `key` begins every id in it."""

    def __init__(
        self, key: str, width: float, height: float, margins: tuple[float, float, float, float] = (70, 16, 14, 46)
    ) -> None:
        left, right, top, bottom = margins
        self.key, self.width, self.height = key, width, height
        self._points: list[list[object]] = []
        self.figure = NotebookFigure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        self.canvas = FigureCanvasSVG(self.figure)
        self.axes: Axes = self.figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height),
            facecolor="none",
        )
        self.axes.tick_params(colors=colour("muted"), labelsize=11, length=3)
        for side, spine in self.axes.spines.items():
            spine.set_color(colour("line"))
            spine.set_visible(side in {"left", "bottom"})

    def bare(self) -> None:
        """Hide the frame and the marks of the axes: what is drawn names its own places."""
        self.axes.set_xticks([])
        self.axes.set_yticks([])
        self.axes.tick_params(length=0)
        for spine in self.axes.spines.values():
            spine.set_visible(False)

    def ticks_x(self, at: Sequence[float], labels: Sequence[str] | None = None) -> None:
        """Put marks on the horizontal axis."""
        self.axes.set_xticks(list(at), None if labels is None else [plain(text) for text in labels])

    def ticks_y(self, at: Sequence[float], labels: Sequence[str] | None = None) -> None:
        """Put marks on the vertical axis."""
        self.axes.set_yticks(list(at), None if labels is None else [plain(text) for text in labels])

    def rule_y(self, at: Sequence[float], labels: Sequence[str]) -> None:
        """Put marks on the vertical axis, with a line across at each."""
        self.ticks_y(at, labels)
        for y in at:
            self.axes.axhline(y, color=colour("line"), linewidth=0.6, zorder=0)

    def name_axes(self, across: str, up: str = "") -> None:
        """Say what the axes are."""
        self.axes.set_xlabel(plain(across), color=colour("muted"), fontsize=12)
        if up:
            self.axes.set_ylabel(plain(up), color=colour("muted"), fontsize=12)

    def write(
        self, x: float, y: float, text: str, *, of: str = "ink", size: float = 12, across: str = "left", bold: bool = False,
        key: str | None = None,
    ) -> None:  # fmt: skip
        """Write a word at a place in data coordinates, centred on its height."""
        self.axes.text(
            x, y, plain(text), color=colour(of), fontsize=size, ha=across, va="center",
            fontweight="bold" if bold else "normal", clip_on=False, gid=key,
        )  # fmt: skip

    def cells(self, rectangles: Iterable[Sequence[float]], of: str, name: str = "", *, edge: str = "") -> None:
        """Fill rectangles (left, right, low, high; data coordinates) of one colour as one path of that name."""
        corners = np.asarray(list(rectangles), dtype=float).reshape(-1, 4)
        left, right, low, high = corners.T
        points = np.stack([left, low, right, low, right, high, left, high, left, low], axis=1).reshape(-1, 2)
        codes = np.tile(np.array([1, 2, 2, 2, 79], dtype=np.uint8), len(corners))
        path = Path(points, codes) if len(corners) else Path(np.full((1, 2), np.nan))
        patch = PathPatch(
            path, facecolor=colour(of), edgecolor=colour(edge) if edge else "none", linewidth=1 if edge else 0
        )
        patch.set_gid(name or None)
        self.axes.add_artist(patch)

    def outline(self, left: float, right: float, low: float, high: float, *, grow: float = 1.5) -> None:
        """Draw a frame around a rectangle, so many pixels away from it."""
        box = self.box(left, right, low, high)
        grow_x, grow_y = (max(0.0, _LEAST_FRAME - side) / 2 + grow for side in (box.width, box.height))
        one = self.box(0, 1, 0, 1)
        dx, dy = grow_x / one.width, grow_y / one.height
        corners = [(left - dx, low - dy), (right + dx, low - dy), (right + dx, high + dy), (left - dx, high + dy)]
        path = Path([*corners, corners[0]], [1, 2, 2, 2, 79])
        self.axes.add_artist(PathPatch(path, facecolor="none", edgecolor=colour("ink"), linewidth=2.5, clip_on=False))

    def box(self, left: float, right: float, low: float, high: float) -> Box:
        """Say where a rectangle of data coordinates lies."""
        (x0, y0), (x1, y1) = self.axes.transData.transform([(left, low), (right, high)])
        return Box(min(x0, x1), self.height - max(y0, y1), abs(x1 - x0), abs(y1 - y0))

    def point(self, left: float, right: float, low: float, high: float, *said: object) -> None:
        """Let a rectangle of data coordinates say something to who points at it."""
        self._points.append([*self.box(left, right, low, high).listed(), *said])

    @property
    def points(self) -> dict[str, object]:
        """What the script needs to know of the rectangles that answer to the pointer."""
        return {"kind": "points", "items": self._points}

    def heat(self, levels: Ints, *, edge: str) -> None:
        """Fill the cells of a grid (rows down, columns across), each by its level of heat."""
        for level in range(N_LEVELS):
            at = np.argwhere(levels == level).tolist()
            self.cells([(x, x + 1, y, y + 1) for y, x in at], f"heat{level}", edge=edge)

    def svg(self, alt: str) -> Drawing:
        """Write the drawing as SVG with its alternative text; the caller escapes nothing, and trusts the result."""
        page = io.StringIO()
        self.canvas.print_svg(page, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        return Drawing(_inline(page.getvalue(), self.key, self.width, self.height, alt), self.figure)


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Choose round numbers between two ends, 1, 2 or 5 times a power of ten apart, at most so many.

    >>> round_ticks(0.0, 0.43, 6), round_ticks(16.0, 27.0, 12)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0])
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for apart in (power * part for part in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
        if last - first < most:
            return [float(f"{n * apart:.12g}") for n in range(first, last + 1)]
    return [low, high]


def plain(text: str, most: int = 60) -> str:
    """Shorten and disarm text for a drawing, in which only characters of the font have a width."""
    shown = escape(text).encode("latin-1", "replace").decode("latin-1")
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _round(number: re.Match[str]) -> str:
    """Write a number of pixels with two digits behind the point at most."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _inline(svg: str, key: str, width: float, height: float, alt: str) -> str:
    """Make a file of matplotlib's a part of the page."""
    body = svg[svg.index("<svg") :]
    body = body[body.index(">") + 1 :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{key}-", body).replace("xlink:href", "href")
    for name, stand_in in _SENTINEL.items():
        body = body.replace(stand_in, f"var(--{name})")
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"<[^>]*>", lambda tag: _LONG_NUMBER.sub(_round, tag[0]), body)  # places, never words
    body = re.sub(r"\n\s*", "\n", body)
    name = html.escape(escape(alt)[:_MAX_ALT])
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{name}" style="--w:{width:g}px">'
    return head + body
