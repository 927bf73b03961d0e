"""Makes what the pages show when the site is built: outputs of commands, and pages from rules, commands and schemas.

MkDocs calls `on_files` and `on_page_markdown` (`hooks` in mkdocs.yml). What is made here is never committed, so it cannot be older
than the program. The pictures are made by `docs/tools/pictures.py`, and are committed.
"""

import logging
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import jinja2
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from diagnose.cli.jobs import JOBS
from diagnose.cli.main import program
from diagnose.features.catalogue import list_features
from diagnose.judge.check import COMPARISONS
from diagnose.judge.rule import Rule
from diagnose.judge.rules import load_rules
from diagnose.model.capabilities import CAPABILITIES
from diagnose.model.components import COMPONENTS
from diagnose.report.schemas import make_schema
from docs.tools.python_reference import write_python
from docs.tools.shell import Shell, fill_outputs, has_outputs

#: Documents that have a schema, each with how it is printed.
DOCUMENTS = {
    "diagnosis": "diagnose JOB --format json",
    "compare": "diagnose compare A B --format json",
    "fleet": "diagnose fleet --format json",
    "ticket": "diagnose tickets",
    "machines": "diagnose machines PATH --format json",
    "watch": "diagnose watch --format json",
    "watch-states": "diagnose watch --html DIR",
}
#: What is written here as a warning is an error of `mkdocs build --strict`.
_LOG = logging.getLogger("mkdocs.hooks.pages")
_CLI_BEGINS = """# Command line

This page is made from the program itself. Results go to standard output; progress and errors go to standard error."""
_JSON_BEGINS = """# JSON

This page is made from the JSON Schemas of the program, which `diagnose schema` prints. Keys that exist stay. Other keys may be
added, so a reader must ignore keys that it does not know. Times are in seconds, ratios are plain numbers, and what is not known is
`null`, never 0."""
_GROUPS = {"all": "all of these hold", "any": "any of these holds", "none": "none of these holds"}
_PLACES = {
    "workers": "The finding names the workers at fault.",
    "stages": "The finding names the stage at fault.",
    "spread": "The finding has no place: it is spread over the job.",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the program."""
    for path, text in generate_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs asks so
    """Fill in what the commands of a page print, and the reference of the Python interface."""
    if page.file.src_uri == "reference/python.md":
        return f"{markdown}\n{write_python()}"
    if not has_outputs(markdown):
        return markdown
    with tempfile.TemporaryDirectory() as folder:
        ran = Shell(Path(folder).resolve()).run_all(markdown)
    for one in ran:
        if one.code:
            _LOG.warning("%s: %s ended with %d: %s", page.file.src_uri, one.command, one.code, one.output)
    return fill_outputs(markdown, ran)


def generate_pages() -> Iterator[tuple[str, str]]:
    """Make the path and the Markdown of each page."""
    rules = sorted(load_rules(None).rules, key=lambda rule: rule.id)
    yield "causes/index.md", write_causes(rules)
    for rule in rules:
        yield f"causes/{rule.id}.md", write_cause(rule, {other.id: other.title for other in rules})
    yield "reference/cli.md", write_cli()
    yield "reference/json.md", write_json()


def write_causes(rules: Iterable[Rule]) -> str:
    """Write the list of causes."""
    rows = [f"| [`{rule.id}`]({rule.id}.md) | {rule.title} | {rule.who} | {_first(rule.story)} |" for rule in rules]
    return "\n".join(
        (
            "# The causes\n",
            f"`diagnose` knows {len(rows)} causes. Each is one YAML file in `rules/`, and one page here that is made from it.",
            "Time that is lost and that none of them explains is called `unknown`.\n",
            "| cause | in words | who acts | what happens |",
            "| --- | --- | --- | --- |",
            *rows,
            "\nYou can add a cause of your own: see [Rules of your own](../how-to/own-rules.md).\n",
        )
    )


def write_cause(rule: Rule, titles: dict[str, str]) -> str:
    """Write the page of a cause."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701 - it writes Markdown, of our own rules
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": _cell, "sentence": _sentences}
    return environment.get_template("cause.md.j2").render(
        rule=rule,
        titles=titles,
        features=list_features(),
        comparisons=COMPARISONS,
        groups=_GROUPS,
        places=_PLACES,
        components=COMPONENTS,
        capabilities=CAPABILITIES,
    )


def write_cli() -> str:
    """Write the reference of the command line."""
    context = click.Context(program, info_name="diagnose")
    parts = [
        _CLI_BEGINS,
        "## diagnose JOB...\n\n" + _about_command(program, context, program.commands[JOBS]),
    ]
    for name, command in sorted(program.commands.items()):
        if command.hidden or name == JOBS:
            continue
        within = click.Context(command, info_name=name, parent=context)
        parts.append(f"## diagnose {name}\n\n{_about_command(command, within)}")
        if isinstance(command, click.Group):
            for inner_name, inner in sorted(command.commands.items()):
                inner_context = click.Context(inner, info_name=inner_name, parent=within)
                parts.append(f"### diagnose {name} {inner_name}\n\n{_about_command(inner, inner_context)}")
    parts.append("## Exit codes\n\n" + _exit_codes(program.epilog or ""))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _about_command(command: click.Command, context: click.Context, options_of: click.Command | None = None) -> str:
    """Write usage, words and options of a command."""
    usage = re.sub(r"\s+", " ", command.get_usage(context).removeprefix("Usage:")).strip()
    usage = usage.replace(" diagnose COMMAND", "\ndiagnose COMMAND")
    rows = []
    for option in (options_of or command).get_params(context):
        if not isinstance(option, click.Option) or option.hidden:
            continue
        record = option.get_help_record(context)
        if record is not None:
            rows.append(f"| {_code(record[0])} | {_cell(record[1])} |\n")
    table = f"\n\n| option | |\n| --- | --- |\n{''.join(rows)}" if rows else ""
    about = _escape(_plain(command.help or ""))
    return f"```text\n{usage}\n```\n\n{about}{table}"


def _plain(text: str) -> str:
    """Put the lines of each paragraph of a help text together."""
    paragraphs = re.split(r"\n\s*\n", textwrap.dedent(text).strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip() != "\b")


def _exit_codes(epilog: str) -> str:
    """Make a table of the exit codes that the help lists."""
    found: list[list[str]] = []
    for line in epilog.splitlines():
        match = re.match(r"\s+(\d+)\s+(\S.*)", line)
        if match:
            found.append([match[1], match[2]])
        elif found and line.startswith("      "):
            found[-1][1] += " " + line.strip()
        elif found:
            break
    rows = "".join(f"| {code} | {_cell(words)} |\n" for code, words in found)
    return f"| code | meaning |\n| --- | --- |\n{rows}"


def write_json() -> str:
    """Write the reference of the JSON documents."""
    parts = [_JSON_BEGINS]
    for name, command in DOCUMENTS.items():
        schema = make_schema(name)
        argument = "" if name == "diagnosis" else f" {name}"
        parts.append(
            f"## {schema['title']}\n\nPrinted by `{command}`; its schema by `diagnose schema{argument}`. "
            f"{_cell(schema['description'])}\n\n{_properties(schema, name, schema['$defs'])}"
        )
        for part, about in schema["$defs"].items():
            if "properties" in about:
                heading = f"### {schema['title']}: {part} {{ #{name}-{part.lower()} }}"
                parts += [heading, _cell(about.get("description", "")), _properties(about, name, schema["$defs"])]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _properties(schema: dict[str, Any], document: str, parts: dict[str, Any]) -> str:
    """Make a table of the keys of an object."""
    rows = [
        f"| `{key}` | {_kind(about, document)} | {_cell(about.get('description', '') or _describe_part(about, parts))} |"
        for key, about in schema["properties"].items()
    ]
    return "\n".join(("| key | type | meaning |", "| --- | --- | --- |", *rows))


def _describe_part(about: dict[str, Any], parts: dict[str, Any]) -> str:
    """Describe a key that says nothing of itself by the object that it holds."""
    name = about.get("$ref", about.get("items", {}).get("$ref", "")).rpartition("/")[2]
    return re.split(r"(?<=\.)\s", parts.get(name, {}).get("description", ""))[0]


def _kind(about: dict[str, Any], document: str) -> str:
    """Write a type of a schema in words."""
    if "$ref" in about:
        name = about["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{document}-{name.lower()})"
    if "anyOf" in about:
        return " or ".join(_kind(part, document) for part in about["anyOf"])
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    kinds = about.get("type", "any")
    if kinds == "array":
        return f"list of {_kind(about.get('items', {}), document)}"
    if kinds == "object" and isinstance(about.get("additionalProperties"), dict):
        return f"object of {_kind(about['additionalProperties'], document)}"
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def _first(text: str) -> str:
    """Give the first sentence of a text, for a cell."""
    return _cell(re.split(r"(?<=\.)\s", " ".join(text.split()))[0])


def _sentences(text: str) -> str:
    """Write a text from a rule as sentences: a capital first, a full stop last."""
    text = _escape(" ".join(text.split()))
    first = text if text.startswith("arXiv") else text[:1].upper() + text[1:]
    return f"{first.rstrip('.')}." if text else ""


def _cell(text: str) -> str:
    """Write a text for a cell of a table."""
    return _escape(" ".join(str(text).split())).replace("|", "\\|")


def _code(text: str) -> str:
    """Write an option as code for a cell."""
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


def _escape(text: str) -> str:
    """Write a text so that Markdown shows it as it is; what stands in backquotes stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]])", r"\\\1", part) for part in parts)
