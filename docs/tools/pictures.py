"""Draws the pictures of the documentation: terminals, pages, the fleet, a notebook.

Leaves: PNG files in docs/pictures, which are committed. Run it in the root of a clone, with Chromium, after a change of what people
see: `python -m docs.tools.pictures`, or with the beginnings of the names of some pictures.
"""

import fcntl
import html
import io
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from PIL import Image
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

import diagnose
from diagnose.judge.rules import load_rules
from docs.tools.shell import ROOT, Shell

PICTURES = ROOT / "docs/pictures"
#: Columns and rows of a terminal that nobody enlarged.
COLUMNS, ROWS = 80, 24
#: The first screen of a browser, in pixels.
SCREEN = (1280, 900)
#: Colours of a picture: its file is a third of what all colours would take.
N_COLORS = 256
_TERMINAL = """<body style="margin:0;background:#1b1d23"><pre style="margin:0;padding:10px 14px;display:inline-block;color:#d5d8df;
font:14px/1.25 'DejaVu Sans Mono',monospace">{code}</pre></body>"""
_NOTEBOOK = """<body style="margin:0;padding:16px;background:#fff;font:14px sans-serif;color:#222">
<div style="display:flex;gap:10px;margin-bottom:12px"><code style="color:#307fc1;white-space:nowrap">In [1]:</code>
<pre style="margin:0;flex:1;background:#f5f5f5;border:1px solid #ddd;padding:6px 8px">{source}</pre></div>
<div style="display:flex;gap:10px"><code style="color:#bf5b3d;white-space:nowrap">Out[1]:</code>
<div style="flex:1">{output}</div></div></body>"""
_SOURCE = 'import diagnose\n\ndiagnose.diagnose("fixtures/worker-fault.parquet")'

#: Opens an address in a window of this size and gives the PNG of an element, or of the window.
Shoot = Callable[..., bytes]


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Draw all pictures, or those whose names begin like one of NAMES."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        folder = Path(scratch)

        def shoot(
            page: Path, *, element: str | None = None, screen: tuple[int, int] = SCREEN, wait_ms: int = 0
        ) -> bytes:
            wide, high = screen
            context = browser.new_context(viewport={"width": wide, "height": high}, color_scheme="light")
            tab = context.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_timeout(wait_ms)
            taken = tab.locator(element).screenshot() if element else tab.screenshot()
            context.close()
            return bytes(taken)

        for name, draw in _list_pictures(folder):
            if not names or name.startswith(names):
                (PICTURES / f"{name}.png").write_bytes(_shrink(draw(shoot)))
                click.echo(f"{name}: {(PICTURES / f'{name}.png').stat().st_size:,} bytes")
        browser.close()


def _list_pictures(folder: Path) -> Iterator[tuple[str, Callable[[Shoot], bytes]]]:
    """List the names of all pictures, each with what draws it."""
    for rule in sorted(load_rules(None).rules, key=lambda rule: rule.id):
        yield f"terminal-{rule.id}", partial(_draw_terminal, folder=folder, name=rule.id)
        yield f"page-{rule.id}", partial(_draw_page, folder=folder, name=rule.id)
    yield "fleet", partial(_draw_fleet, folder=folder)
    yield "notebook", partial(_draw_notebook, folder=folder)


def _draw_terminal(shoot: Shoot, folder: Path, name: str) -> bytes:
    """Draw what a terminal of 80 x 24 shows."""
    command = f"diagnose fixtures/{name}.parquet"
    shown = _run_in_terminal([sys.executable, "-m", "diagnose", *command.split()[1:]])
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {command}"))
    console.print(Text.from_ansi(shown.replace("\r\n", "\n").rstrip()))
    page = folder / f"terminal-{name}.html"
    page.write_text(
        console.export_html(theme=SVG_EXPORT_THEME, inline_styles=True, code_format=_TERMINAL), encoding="utf-8"
    )
    return shoot(page, element="pre", screen=(800, 500))


def _run_in_terminal(command: list[str]) -> str:
    """Run a command in a terminal of its own and give what it wrote, colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "COLUMNS", "LINES"}}
    running = subprocess.Popen(
        command,
        stdout=theirs,
        stdin=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    if running.wait():
        raise RuntimeError(f"{command} ended with {running.returncode}")
    return b"".join(parts).decode()


def _draw_page(shoot: Shoot, folder: Path, name: str) -> bytes:
    """Draw the first screen of the page of a job."""
    page = folder / f"page-{name}.html"
    subprocess.run(
        [sys.executable, "-m", "diagnose", f"fixtures/{name}.parquet", "--html", str(page), "-o", os.devnull],
        cwd=ROOT,
        check=True,
    )
    return shoot(page)


def _draw_fleet(shoot: Shoot, folder: Path) -> bytes:
    """Draw the index of the fleet of all fixtures."""
    shell = Shell(folder / "fleet")
    for command in ("diagnose triage fixtures --quiet", "diagnose fleet --site site -o fleet.txt"):
        ended = shell.run(command)
        if ended.code:
            raise RuntimeError(ended.output)
    return shoot(folder / "fleet/site/index.html")


def _draw_notebook(shoot: Shoot, folder: Path) -> bytes:
    """Draw a cell of a notebook whose last line is a diagnosis, with what it shows of itself."""
    found: Any = diagnose.diagnose(ROOT / "fixtures/worker-fault.parquet")
    output = found._repr_html_() if hasattr(found, "_repr_html_") else f"<pre>{html.escape(repr(found))}</pre>"
    page = folder / "notebook.html"
    text = f'<!doctype html><meta charset="utf-8">{_NOTEBOOK.format(source=html.escape(_SOURCE), output=output)}'
    page.write_text(text, encoding="utf-8")
    return shoot(page, screen=(1100, 860), wait_ms=500)


def _shrink(png: bytes) -> bytes:
    """Write a picture with few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(N_COLORS, dither=Image.Dither.NONE)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
