"""Writes the reference of the Python interface from signatures and docstrings (numpydoc).

Enters: the public functions and types of the package. Leaves: Markdown, which `docs/tools/pages.py` puts below the words of
`docs/reference/python.md`.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import diagnose
from diagnose.record.recorder import Recorder

#: What stands on the page, by heading; the name in front is that by which a user reaches it.
FUNCTIONS = ("diagnose", "compare", "what_if", "explain", "triage")
RESULTS = ("Diagnosis", "Comparison", "Explanation", "Prices", "TriageRun")
ERRORS = ("DiagnoseError", "TraceError", "RuleError", "ServiceError", "UsageError")
#: Sections of a docstring that are lists, and the head of the first column of their tables.
_TYPED = {"Parameters": "parameter", "Attributes": "attribute"}
_UNTYPED = {"Returns": "gives", "Raises": "raises"}


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A section of a docstring: its title, empty for the words before the first one, and its lines."""

    title: str
    lines: list[str]


def write_python() -> str:
    """Write the reference: functions, what they give, errors, the recorder."""
    parts = ["## Functions"]
    parts += [_describe(f"diagnose.{name}", getattr(diagnose, name), 3) for name in FUNCTIONS]
    parts.append("## What they give")
    parts += [_describe_class(f"diagnose.{name}", getattr(diagnose, name)) for name in RESULTS]
    parts.append("## Errors")
    parts += [_describe(f"diagnose.{name}", getattr(diagnose, name), 3, signature=False) for name in ERRORS]
    parts += ["## The recorder", _describe_class("diagnose.record.Recorder", Recorder, signature=True)]
    return "\n\n".join(parts) + "\n"


def _describe_class(name: str, of: type, *, signature: bool = False) -> str:
    """Describe a class and its public methods."""
    parts = [_describe(name, of, 3, signature=signature)]
    for method_name, method in inspect.getmembers(of, inspect.isfunction):
        if not method_name.startswith("_"):
            parts.append(_describe(f"{name.rpartition('.')[2]}.{method_name}", method, 4))
    return "\n\n".join(parts)


def _describe(name: str, of: Callable[..., Any] | type, level: int, *, signature: bool = True) -> str:
    """Describe a function or a class: how it is called, and its docstring."""
    parts = [f"{'#' * level} {name}"]
    if signature:
        parts.append(f"```python\n{name.rpartition('.')[2]}{_signature(of)}\n```")
    parts += [_write_section(section) for section in _split(inspect.getdoc(of) or "")]
    return "\n\n".join(part for part in parts if part)


def _signature(of: Callable[..., Any] | type) -> str:
    """Write the arguments without their types, which the tables have."""
    found = inspect.signature(of)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values() if one.name != "self"]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _split(docstring: str) -> Iterator[Section]:
    """Split a docstring at its underlined titles."""
    section = Section("", [])
    lines = docstring.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"} and len(below) == len(line):
            yield section
            section = Section(line, [])
        elif not (line and set(line) == {"-"}):
            section.lines.append(line)
    yield section


def _write_section(section: Section) -> str:
    """Write a section: a table where it is a list, else its words."""
    if section.title in _TYPED:
        rows = [f"| `{name}` | {_cell(kind)} | {_cell(about)} |" for name, kind, about in _entries(section.lines)]
        return "\n".join((f"| {_TYPED[section.title]} | type | meaning |", "| --- | --- | --- |", *rows))
    if section.title in _UNTYPED:
        rows = [f"| `{name}` | {_cell(about)} |" for name, _, about in _entries(section.lines)]
        return "\n".join((f"| {_UNTYPED[section.title]} | |", "| --- | --- |", *rows))
    text = "\n".join(section.lines).strip()
    text = re.sub(r"(?m)^>>> (?:.|\n(?!\n))*", lambda example: f"```pycon\n{_runnable(example[0])}\n```", text)
    return f"**{section.title}**\n\n{text}" if section.title else text


def _runnable(example: str) -> str:
    """Write an example without what only its test needs."""
    return re.sub(r"\s*# doctest: .*", "", example)


def _entries(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """List the name, type and meaning of each entry of a section."""
    entry: list[str] = []
    for line in [*lines, "end"]:
        if line and not line.startswith(" "):
            if entry:
                name, _, kind = entry[0].partition(" : ")
                yield name, kind, " ".join(part.strip() for part in entry[1:])
            entry = []
        entry.append(line)


def _cell(text: str) -> str:
    """Write a text for a cell of a table."""
    return text.strip().replace("|", "\\|")
