"""Where pages are made: templates in which everything that is printed is disarmed and escaped.

Enters: values from traces and stores, which may hold anything. Leaves: text that a page shows and never obeys.
"""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from diagnose.report.escape import escape
from diagnose.report.html.picture import Picture

FOLDER = Path(__file__).parent
#: Characters of one value on the page; what is longer is cut, and says so.
_MAX_TEXT = 1500


@functools.cache
def make_environment() -> jinja2.Environment:
    """Make what loads templates: it disarms every value that they print, and then escapes it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=tame,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["trusted"] = trusted
    return environment


def fill_in(template: str, probed: Iterable[Picture], /, *, more_style: str = "", **values: Any) -> str:
    """Fill in a template: style, script what the script needs of these pictures, and values."""
    return (
        make_environment()
        .get_template(template)
        .render(
            style=own_file("style.css") + more_style,
            script=own_file("script.js"),
            probes=trusted(safe_json({picture.key: picture.probe for picture in probed})),
            **values,
        )
    )


def tame(value: Any) -> Any:
    """Disarm a value that the template prints: no control or bidi characters, not endless. Trusted markup stays."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = escape(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text):,} characters)"


def trusted(text: str) -> Markup:
    """Let through what is ours: style, script, drawings, and data made by `safe_json`."""
    return Markup(text)  # noqa: S704 - never with text of the trace in it


def own_file(name: str) -> Markup:
    """Read one of the files beside this one: style or script."""
    return trusted((FOLDER / name).read_text(encoding="utf-8"))


def safe_json(data: Any) -> str:
    """Write data so that it cannot end the element that holds it, nor begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
