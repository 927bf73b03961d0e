"""What all pages of text are laid out with: a console that writes into memory, sections, facts, lists.

Enters: sections. Leaves: text that reads at any width from 40 columns, with or without colour.
"""

import io
from collections.abc import Callable, Collection, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: Prose wider than this is hard to read.
PROSE_WIDTH = 110

#: Title, empty for none, and body of a part of a page.
Section = tuple[str | Text, RenderableType]


def make_console(page: io.StringIO, width: int, *, color: bool) -> Console:
    """Make a console that writes into memory and looks at nothing outside."""
    return Console(
        file=page,
        width=width,
        height=100,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )


def draw(write: Callable[[Console], None], *, width: int, color: bool) -> str:
    """Let something write on a console, and give the page: lines without trailing blanks, each ended by a line end."""
    page = io.StringIO()
    write(make_console(page, width, color=color))
    return "\n".join(line.rstrip() for line in page.getvalue().split("\n"))


def print_sections(console: Console, sections: Iterable[Section], wide: Collection[str] = ()) -> None:
    """Print sections with a blank line between; prose no wider than is easy to read, but for those titled as `wide`."""
    prose = min(console.width, PROSE_WIDTH)
    for n, (title, body) in enumerate(sections):
        if n:
            console.print()
        if title:
            console.print(Text(title, style="bold") if isinstance(title, str) else title, width=prose)
        width = console.width if str(title) in wide else prose
        console.print(Padding(body, (0, 0, 0, 2 if title else 0)), width=width)


def draw_sections(sections: Iterable[Section], *, width: int, color: bool) -> str:
    """Write sections as a page, as `print_sections` does."""
    return draw(lambda console: print_sections(console, sections), width=width, color=color)


def make_grid(*columns: str, gap: int = 2) -> Table:
    """Make a table without lines, of columns of `text`, which is folded, of a `mark`, which is not, or of a `number`."""
    kinds: dict[str, dict[str, Any]] = {
        "text": {"overflow": "fold"},
        "mark": {"no_wrap": True},
        "number": {"justify": "right", "no_wrap": True},
    }
    table = Table.grid(padding=(0, gap))
    for column in columns:
        table.add_column(**kinds[column])
    return table


def draw_facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Lay out labels and what belongs to them in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, fact in rows:
        table.add_row(label, fact)
    return table


def draw_marked(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Lay out what stands behind marks or numbers."""
    table = make_grid("mark", "text", gap=1)
    for mark, body in rows:
        table.add_row(mark, body)
    return table


def draw_bullets(texts: Iterable[str], *, mark: str = "•") -> Table:
    """Lay out sentences as a list."""
    return draw_marked([(mark, text) for text in texts])
