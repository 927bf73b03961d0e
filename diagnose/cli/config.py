"""The configuration file: defaults of options, for who does not want to give them each time.

Enters: `diagnose.toml`, or `[tool.diagnose]` of `pyproject.toml`. Leaves: defaults, each with the line that it is from; a wrong
file is a `RuleError` with a line a fault. Options beat environment variables, and these beat the file.

A file that was merely found, in the current folder or above it, may be a stranger's. Nothing is sent to a place that only such a
file names, and no machine is asked to work: these keys count only in a file that the user names, with `--config` or
`DIAGNOSE_CONFIG`.
"""

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from diagnose.addresses import holds_password
from diagnose.cli.options import format_option, output_option
from diagnose.cli.output import open_output, print_message
from diagnose.errors import RuleError, UsageError

FILE, PROJECT_FILE = "diagnose.toml", "pyproject.toml"
VARIABLE = "DIAGNOSE_CONFIG"
#: A larger file is a mistake.
MAX_BYTES = 1024 * 1024
#: What keys stand for, by table: the long options of these names, of the table's command, or of every command that has them.
#: Where the value is one of `ADDRESSES`, it says where something is sent or run.
KEYS: Mapping[str, Mapping[str, str]] = {
    "": {"store": "text", "rules": "path", "min_speedup": "number"},
    "triage": {"workers": "whole", "memory": "text", "timeout": "number", "dask": "text"},
    "tickets": {
        "webhook": "texts",
        "alertmanager": "texts",
        "apprise": "texts",
        "site": "text",
        "min_gpu_hours": "number",
        "min_confidence": "number",
        "gone_after": "text",
        "limit": "whole",
    },
    "fleet": {"night": "text", "rank": "text", "limit": "whole"},
}
ADDRESSES = {"triage.dask", "tickets.webhook", "tickets.alertmanager", "tickets.apprise", "tickets.site"}
#: What changes answers: whoever reads them must know of it.
ANSWERS = {"rules", "min_speedup"}
_EXPECTED = {
    "text": "text",
    "path": "a path",
    "number": "a number",
    "whole": "a whole number",
    "texts": "text, or a list of texts",
}
_LOCAL_STORE = "sqlite:///"
#: Where a context keeps the file that was read.
_META = "diagnose.config"


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A value of the file; `where` is `file:line`, and `name` its key with the table in front."""

    name: str
    value: Any
    where: str

    @property
    def option(self) -> str:
        """The option that it is the default of."""
        return f"--{self.name.rpartition('.')[2].replace('_', '-')}"


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """A configuration file that was read; `is_named` where the user named it, and did not only stand below it."""

    path: Path
    is_named: bool
    settings: tuple[Setting, ...]

    def defaults(self, command: click.Command) -> dict[str, Callable[[], Any]]:
        """Give the defaults of a command, by parameter; what may not be used here is refused when it would be."""
        by_option = {option: param for param in command.params for option in param.opts}
        mine = [setting for setting in self.settings if setting.name.rpartition(".")[0] in ("", command.name)]
        return {
            param.name: functools.partial(self.use, setting, param)
            for setting in mine
            if (param := by_option.get(setting.option)) is not None and param.name
        }

    def use(self, setting: Setting, param: click.Parameter) -> Any:
        """Give a value for a parameter; one that changes answers is told, where nobody named the file.

        Raises
        ------
        RuleError
            The option does not take it; or it says where something is sent or run, and nobody named the file.
        """
        if not self.allows(setting):
            raise RuleError(
                f"{setting.where}: {setting.name} says where things are sent, and this file was only found: name it with "
                f"--config {self.path} or {VARIABLE}, or give {setting.option}"
            )
        try:
            value = param.type_cast_value(click.Context(click.Command("config")), setting.value)
        except click.BadParameter as error:
            raise RuleError(f"{setting.where}: {setting.name} is {setting.value!r}: {error.message}") from None
        if setting.name in ANSWERS and not self.is_named:
            _tell(f"{setting.option} {setting.value} is from {setting.where}")
        return value

    def allows(self, setting: Setting) -> bool:
        """Say whether a value may be used."""
        is_remote = setting.name == "store" and not setting.value.startswith(_LOCAL_STORE)
        return self.is_named or not (setting.name in ADDRESSES or is_remote)


def find_config(named: str | None) -> Config | None:
    """Read the file that the user names, else the nearest one of the current folder and its parents, up to the repository's root.

    Outside of a repository only the current folder is looked at. In one folder `diagnose.toml` goes before `pyproject.toml`, which
    counts only where it has `[tool.diagnose]`.

    Raises
    ------
    RuleError
        The file is wrong: all its faults, a line each.
    UsageError
        The file that the user names is not there.
    """
    if named is not None:
        path = Path(named)
        text = _read(path)
        if text is None:
            raise UsageError(f"--config: {named} cannot be read; expected a file such as {FILE}")
        found = _parse(path, text, must=True)
        return Config(path, True, found or ())  # noqa: FBT003 - its name stands in the class
    for folder in _folders():
        for path in (folder / FILE, folder / PROJECT_FILE):
            text = _read(path) if path.is_file() else None
            found = None if text is None else _parse(path, text, must=path.name == FILE)
            if found is not None:
                return Config(path, False, found)  # noqa: FBT003
    return None


def _folders() -> Iterator[Path]:
    """List the current folder, and its parents where they are of one repository."""
    try:
        here = Path.cwd()
    except OSError:  # it is gone
        return
    above = [here, *here.parents]
    root = next((n for n, folder in enumerate(above) if (folder / ".git").exists()), 0)
    yield from above[: root + 1]


def _read(path: Path) -> str | None:
    """Read a file; None where it cannot be."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)[:MAX_BYTES].decode("utf-8", "replace")
    except OSError:
        return None


def _parse(path: Path, text: str, *, must: bool) -> tuple[Setting, ...] | None:
    """Read the settings of a file; None where it is another tool's, unless it must be ours."""
    import tomllib

    is_project = path.name == PROJECT_FILE
    if is_project and not must and "diagnose" not in text:
        return None
    try:
        found: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column \d+\)", str(error))
        said = str(error).partition(" (at ")[0]
        line = at[1] if at else text.rstrip().count("\n") + 1  # at the end of the document
        raise RuleError(f"{path}:{line}: cannot be read as TOML: {said}") from None
    if is_project:
        found = found.get("tool", {})
        found = found.get("diagnose") if isinstance(found, dict) else None
        if found is None:
            return () if must else None
    faults: list[str] = []
    settings = tuple(_check(path, _Lines(text, "tool.diagnose" if is_project else ""), found, faults))
    if faults:
        raise RuleError("\n".join(faults))
    return settings


class _Lines:
    """Where keys stand in the text of a TOML file whose tables begin with some name."""

    def __init__(self, text: str, begin: str) -> None:
        self._at: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
                table = re.sub(r"[\"'\s]", "", header[1])
                self._at.setdefault(table, number)
            elif key := re.match(r"\s*([\w\"'.\-\s]+?)\s*=", line):
                named = re.sub(r"[\"'\s]", "", key[1])
                self._at.setdefault(f"{table}.{named}" if table else named, number)
        self._begin = f"{begin}." if begin else ""

    def of(self, name: str) -> int:
        """Give the line of a key, else of its table, else the first."""
        table = name.rpartition(".")[0]
        known = (self._at.get(f"{self._begin}{one}".rstrip(".")) for one in (name, table))
        return next((line for line in known if line is not None), 1)


def _check(path: Path, lines: _Lines, found: Any, faults: list[str]) -> Iterator[Setting]:
    """Check all keys and values, and give those without fault."""
    if not isinstance(found, dict):
        faults.append(f"{path}:{lines.of('')}: expected a table with {', '.join(KEYS[''])}")
        return
    for table in KEYS:
        values = found.get(table, {}) if table else found
        if not isinstance(values, dict):
            faults.append(f"{path}:{lines.of(table)}: {table} is {values!r}, expected a table")
            continue
        for key, value in values.items():
            name = f"{table}.{key}" if table else key
            if not table and key in KEYS:
                continue
            where = f"{path}:{lines.of(name)}"
            if key not in KEYS[table]:
                faults.append(f"{where}: unknown key {name!r}{_hint(key, table)}")
            elif (wrong := _find_fault(name, KEYS[table][key], value)) is not None:
                faults.append(f"{where}: {name} {wrong}")
            else:
                yield Setting(name, _resolve(path, KEYS[table][key], name, value), where)


def _hint(key: str, table: str) -> str:
    """Say which key may be meant."""
    import difflib

    known = [*KEYS[table], *(() if table else (other for other in KEYS if other))]
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    elsewhere = [f"{other}.{key}" for other in KEYS if other and key in KEYS[other] and other != table]
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; did you mean {elsewhere[0]!r}?" if elsewhere else f"; expected one of {', '.join(known)}"


def _find_fault(name: str, kind: str, value: Any) -> str | None:
    """Say what is wrong with a value, and never what may be secret in it."""
    is_text = isinstance(value, str) and bool(value) and "\0" not in value
    fits = {
        "text": is_text,
        "path": is_text,
        "number": isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
        "whole": isinstance(value, int) and not isinstance(value, bool),
        "texts": is_text or (isinstance(value, list) and all(isinstance(one, str) and one for one in value)),
    }[kind]
    if not fits:
        return f"is {'wrong' if name in ADDRESSES else repr(value)}, expected {_EXPECTED[kind]}"
    if name == "store" and holds_password(value):
        return "holds a password, expected it in DIAGNOSE_STORE_PASSWORD, or in a file named by DIAGNOSE_STORE_PASSWORD_FILE"
    return None


def _resolve(path: Path, kind: str, name: str, value: Any) -> Any:
    """Take paths from the folder of the file."""
    folder = path.absolute().parent
    if kind == "texts":
        return (value,) if isinstance(value, str) else tuple(value)
    if kind == "path":
        return str(folder / value)
    if name == "store" and value.startswith(_LOCAL_STORE):
        return f"{_LOCAL_STORE}{folder / value.removeprefix(_LOCAL_STORE)}"
    return value


def _apply(ctx: click.Context, _param: click.Parameter, named: str | None) -> None:
    """Let the file say the defaults of the command."""
    if ctx.resilient_parsing:
        return
    found = find_config(named)
    ctx.meta[_META] = found
    if found is not None:
        ctx.default_map = found.defaults(ctx.command)


@functools.cache
def _tell(message: str) -> None:
    """Say something on standard error, once."""
    print_message("note", message)


config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    envvar=VARIABLE,
    is_eager=True,
    expose_value=False,
    callback=_apply,
    help=f"Take defaults from there  [default: the nearest {FILE}, or [tool.diagnose] of {PROJECT_FILE}]",
)


def takes_defaults(command: click.Command) -> bool:
    """Say whether the file may have a default for one of a command's options."""
    named = {f"--{key.replace('_', '-')}" for key in (*KEYS[""], *KEYS.get(command.name or "", ()))}
    return any(named & set(param.opts) for param in command.params)


@click.command("config")
@format_option("terminal", "json", meaning="Lines for people, or one JSON object (diagnose-config/1).")
@output_option
@config_option
def config_command(output_format: str, output: str | None) -> int:
    """Say which defaults apply here, and where each is from.

    The file is the one that --config or DIAGNOSE_CONFIG names, else the nearest diagnose.toml, or [tool.diagnose] of
    pyproject.toml, from the current folder up to the root of its repository. Options beat environment variables, and these beat
    the file. Addresses, and a store on another machine, count only in a file that is named: a file that was only found may be a
    stranger's.
    """
    from diagnose.report.escape import escape

    ctx = click.get_current_context()
    found: Config | None = ctx.meta.get(_META)
    rows = list(_list_defaults(ctx.find_root().command, found))
    with open_output(output) as write:
        if output_format == "json":
            keys = {name: {"value": value, "from": origin} for name, value, origin in rows}
            file = None if found is None else str(found.path)
            write(json.dumps({"schema": "diagnose-config/1", "file": file, "keys": keys}) + "\n")
            return 0
        how = "no file" if found is None else f"{found.path} ({'named' if found.is_named else 'found'})"
        lines = [
            ("file", how, ""),
            *((name, "" if value is None else str(value), origin) for name, value, origin in rows),
        ]
        wide = [max(len(line[n]) for line in lines) for n in (0, 1)]
        for name, value, origin in lines:
            write(escape(f"{name:<{wide[0]}}  {value:<{wide[1]}}  {origin}".rstrip()) + "\n")
    return 0


def _list_defaults(program: click.Command, config: Config | None) -> Iterator[tuple[str, Any, str]]:
    """List every key with the value that applies, nothing secret in it, and where it is from."""
    commands = program.commands if isinstance(program, click.Group) else {}
    settings = {} if config is None else {setting.name: setting for setting in config.settings}
    for table, keys in KEYS.items():
        for key in keys:
            name, setting = f"{table}.{key}" if table else key, settings.get(f"{table}.{key}" if table else key)
            option = f"--{key.replace('_', '-')}"
            owners = [commands[table]] if table in commands and table else commands.values()
            params = (param for command in owners for param in command.params if option in param.opts)
            param = next(params, None)
            if param is None:
                continue
            variable = param.envvar if isinstance(param.envvar, str) else None
            if variable is not None and os.environ.get(variable):
                yield name, _mask(name, os.environ[variable]), variable
            elif setting is not None and config is not None:
                origin = (
                    setting.where if config.allows(setting) else f"{setting.where}: not used, as nobody named the file"
                )
                yield name, _mask(name, setting.value), origin
            else:
                default = param.get_default(click.Context(click.Command("config")), call=True)
                yield name, default if isinstance(default, str | int | float) else None, "default"


def _mask(name: str, value: Any) -> Any:
    """Show a value; of an address only what is no secret."""
    if name not in ADDRESSES and name != "store":
        return value
    shown = [re.sub(r"(?<=://).*", "***", one) for one in ([value] if isinstance(value, str) else value)]
    if name == "store":
        return re.sub(r"(?<=://)([^@/]*):[^@/]*@", r"\1:***@", value)
    return shown[0] if len(shown) == 1 else shown
