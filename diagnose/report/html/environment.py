"""Where pages are made: templates in which everything that is printed is disarmed and escaped.

Enters: values from traces and stores, which may hold anything. Leaves: text that a page shows and never obeys.
"""

import base64
import functools
import hashlib
import html
import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from diagnose.report.escape import escape
from diagnose.report.html.picture import Picture

FOLDER = Path(__file__).parent
#: What else a page may do: nothing, but to show its own icon.
_ELSE = "img-src data:; base-uri 'none'; form-action 'none'"
#: Tags, and their attributes: values are quoted, and what comes from a trace cannot end one.
_TAG = re.compile(r"<[a-z][^<>]*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r'\s([\w:.-]+)="([^"]*)"')
#: Declarations: nothing that could end a rule, or load anything.
_PLAIN_STYLE = re.compile(r"(?:(?!url\()[-\w\s:;#.,()%'])*", re.IGNORECASE)
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


def fill_in(
    template: str,
    probed: Iterable[Picture],
    /,
    *,
    more_style: str = "",
    more_script: str = "",
    connects: bool = False,
    **values: Any,
) -> str:
    """Fill in a template: style, script, what the script needs of these pictures, and values.

    A browser obeys this style and this script by their digests, and no other that stands on the page. A page that `connects` may
    ask the server that it came from, and no other; any other page asks nobody.
    """
    style_at, rules_at = (trusted(secrets.token_hex(16)) for _ in range(2))
    script = own_file("script.js") + more_script
    page = (
        make_environment()
        .get_template(template)
        .render(
            style=style_at,
            script=script,
            security=rules_at,
            probes=trusted(safe_json({picture.key: picture.probe for picture in probed})),
            **values,
        )
    )
    page, style = _gather_styles(page, own_file("style.css") + more_style)
    rules = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; {_ELSE}"
    if connects:
        rules += "; connect-src 'self'"
    return page.replace(style_at, style, 1).replace(rules_at, rules, 1)


def _gather_styles(page: str, style: str) -> tuple[str, str]:
    """Move the styles of single elements into the style of the page: a browser that goes by digests obeys no other."""
    numbers: dict[str, int] = {}

    def move(attribute: re.Match[str]) -> str:
        if attribute[1] != "style":
            return attribute[0]
        said = html.unescape(attribute[2])
        if not _PLAIN_STYLE.fullmatch(said):
            raise ValueError(f"no style of ours: {said!r}")
        return f' data-style="{numbers.setdefault(said, len(numbers))}"'

    page = _TAG.sub(lambda tag: _ATTRIBUTE.sub(move, tag[0]), page)
    # As strong as the style of an element: what the sheet says of its kind stays weaker.
    rules = [f':is(#style,[data-style="{number}"]){{{said}}}' for said, number in numbers.items()]
    return page, "\n".join([style, *rules])


def _digest(text: str) -> str:
    """Write the digest of what stands in an element, as a browser compares it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
